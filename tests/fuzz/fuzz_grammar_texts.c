/* fuzz_grammar_texts.c - any text as schema, regular expression or EBNF: a grammar or a refusal with a
 * text, and from a grammar a walk that ends in a document within the tokens it asked for.  Byte 0
 * chooses the front end and options, byte 1 the walk. */
#include "base/rng.h"
#include "support/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static int32_t eos;

static void prepare(void)
{
    if (vocab)
        return;
    FST_ASSERT(tokenizer_load(&tok, "tests/data/tiny-tokenizer.json") == FST_OK);
    eos = tokenizer_specials(tok)->eos;
    FST_ASSERT(grammar_vocab_new(&vocab, tok, tokenizer_vocab_size(tok), eos, PROTOCOL_MARK) ==
               FST_OK);
}

static enum fst_status compile(struct grammar **g, const uint8_t *data, const char *text,
                               size_t len)
{
    struct grammar_opts o = {.lenient = data[0] & 8,
                             .closed = data[0] & 16,
                             .space = (enum grammar_space)((data[0] >> 5) % 3),
                             .memory_max_bytes = 8 << 20};
    struct grammar_tools_opts to = {.start = (enum grammar_tools_start)(data[1] % 3)};
    struct grammar_tool t = {.name = "f"};
    struct json_doc *d;
    enum fst_status rc;

    if ((data[0] & 7) < 2)
        return grammar_from_regex(g, text, len, &o);
    if ((data[0] & 7) < 4)
        return grammar_from_ebnf(g, text, len, &o);
    *g = NULL;
    rc = json_parse(&d, text, len);
    if (rc < 0)
        return rc;
    t.parameters = json_root(d);
    rc = (data[0] & 7) == 7 ? grammar_from_tools(g, &t, 1, &grammar_test_format, &to, &o)
                            : grammar_from_schema(g, json_root(d), &o);
    json_free(d);
    return rc;
}

static void walk(struct grammar *g, uint8_t seed)
{
    struct matcher_opts o = {.space_bytes = 1};
    struct matcher *m;
    struct rng r;
    uint32_t *mask, room;
    int32_t n_ids = tokenizer_vocab_size(tok);

    FST_ASSERT(matcher_new(&m, g, vocab, &o) == FST_OK);
    room = matcher_least_tokens(m);
    mask = mem_calloc(matcher_mask_words(m), sizeof *mask);
    FST_ASSERT(mask);
    rng_init(&r, seed);
    room += (uint32_t)rng_below(&r, 20);
    if (room > 300) /* too long to walk here */
        goto out;
    while (!matcher_is_over(m)) {
        int32_t id = -1;
        uint64_t n = 0;
        enum fst_status rc = matcher_mask(m, room, mask);

        if (rc == FST_EBUDGET)
            goto out;
        FST_ASSERT(rc == FST_OK);
        for (int32_t k = 0; k < n_ids; k++)
            if (grammar_test_bit(mask, k) && rng_below(&r, ++n) == 0)
                id = k;
        if (id == eos || (!room && matcher_is_accepting(m)))
            break;
        FST_ASSERT(id >= 0);
        FST_ASSERT(room > 0);
        rc = matcher_advance(m, id);
        if (rc == FST_EBUDGET)
            goto out;
        FST_ASSERT(rc == FST_OK);
        FST_ASSERT(matcher_least_tokens(m) < room);
        room--;
    }
    FST_ASSERT(matcher_is_accepting(m));
out:
    mem_free(mask);
    matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g;

    if (size < 2 || size > 4096)
        return 0;
    prepare();
    if (compile(&g, data, (const char *)data + 2, size - 2) == FST_OK) {
        walk(g, data[1]);
        grammar_unref(g);
    } else {
        FST_ASSERT(*fst_error_text());
        FST_ASSERT(!g);
    }
    return 0;
}
