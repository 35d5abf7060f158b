/* Properties of masks: a token is in the mask if and only if the matcher takes it (and, with little
 * room, if and only if it leaves room enough), at random places of random documents. */
#include "support/cm.h"

#include "support/grammar.h"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static int32_t n_ids, eos;

static const char *const grammars[] = {
    "s{}",
    "s{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":9},\"b\":{"
    "\"type\":\"number\",\"minimum\":3}}}",
    "s{\"type\":\"string\",\"pattern\":\"^.{2,8}$\"}",
    "s{\"type\":\"string\",\"pattern\":\"^\\\\p{L}+( \\\\p{Lu}+)?$\",\"minLength\":3}",
    "s{\"type\":\"string\",\"pattern\":\"[0-9]\",\"maxLength\":30}",
    "s{\"type\":\"string\",\"maxLength\":6}",
    "s{\"type\":\"string\",\"minLength\":2,\"maxLength\":20}",
    "s{\"type\":\"string\",\"format\":\"hostname\"}",
    "s{\"type\":\"string\",\"format\":\"date-time\"}",
    "s{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":20,\"maxLength\":300},"
    "\"maxItems\":4}",
    "s{\"enum\":[\"alpha\",\"beta\",\"\xe6\xaf\x95\xe8\x80\x81\",12,[1,{\"x\":null}]]}",
    "s{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"properties\":{\"and\":"
    "{\"type\":\"null\"}}}",
    "r[a-z]{1,12}( [a-z]{1,12}){0,5}",
    "r[^a-m]*(x|yy|\xe6\xaf\x95)+",
    "r(?s).{3,}",
    "r(?s)\\x{1f600}(.*xyz)?", /* a run may make the way to the end longer */
    "r\\x{1f600}([ -~]{1,20}!)?",
    "eroot ::= [^\\n]{1,2} [a-z]*", /* and go on behind what is counted */
    "eroot ::= (\"if\" | [a-z_]+ | [0-9]+ | \" \" | \"(\" root \")\")+",
    "estart: (WORD | \"and\" | /[,.]/)+\n%import common.WORD\n%ignore \" \"",
    "t{\"type\":\"object\",\"properties\":{\"q\":{\"type\":\"string\"},\"n\":{\"type\":["
    "\"integer\",\"string\"],\"maxLength\":5}},\"required\":[\"q\"]}",
};

static struct grammar *compile(const char *text)
{
    struct grammar *g = NULL;
    enum fst_status rc = FST_EINVAL;
    struct json_doc *d;

    if (*text == 's')
        rc = grammar_test_schema(&g, text + 1, NULL);
    if (*text == 'r')
        rc = grammar_from_regex(&g, text + 1, strlen(text + 1), NULL);
    if (*text == 'e')
        rc = grammar_from_ebnf(&g, text + 1, strlen(text + 1), NULL);
    if (*text == 't') {
        struct grammar_tool t = {.name = "f"};
        struct grammar_tools_opts o = {0};
        assert_int_equal(json_parse(&d, text + 1, strlen(text + 1)), FST_OK);
        t.parameters = json_root(d);
        rc = grammar_from_tools(&g, &t, 1, &grammar_test_format, &o, NULL);
        json_free(d);
    }
    if (rc < 0)
        fail_msg("%s: %s", text, fst_error_text());
    return g;
}

static void check_place(struct matcher *m, uint32_t room, const uint32_t *mask, const char *name)
{
    bool enough = room != MATCHER_NO_LIMIT && matcher_least_tokens(m) <= room;

    for (int32_t id = 0; id < n_ids; id++) {
        bool ok = matcher_advance(m, id) == FST_OK;
        if (ok) {
            if (enough && id != eos)
                ok = room && matcher_least_tokens(m) <= room - 1;
            matcher_rollback(m, 1);
        }
        if (ok != grammar_test_bit(mask, id)) {
            size_t len;
            const char *s = tokenizer_bytes(tok, id, &len);
            fail_msg("%s: token %d \"%.*s\" room %u: mask says %d", name, (int)id, (int)len, s,
                     (unsigned)room, !ok);
        }
    }
}

static void agree(void **state)
{
    struct test_rng r = {1};
    int walks = test_size(12, 400, 1);

    (void)state;
    for (size_t i = 0; i < FST_COUNT(grammars); i++) {
        struct grammar *g = compile(grammars[i]);
        struct matcher *m;
        uint32_t *mask;

        assert_int_equal(matcher_new(&m, g, vocab, NULL), FST_OK);
        mask = mem_calloc(matcher_mask_words(m), sizeof *mask);
        for (int walk = 0; walk < walks; walk++) {
            matcher_reset(m);
            for (int n = 0; n < 40 && !matcher_is_over(m); n++) {
                uint32_t least = matcher_least_tokens(m), room = MATCHER_NO_LIMIT;
                int32_t id = -1;
                int k = 0;

                if (test_below(&r, 2))
                    room = least + (uint32_t)test_below(&r, 4);
                assert_int_equal(matcher_mask(m, room, mask), FST_OK);
                check_place(m, room, mask, grammars[i]);
                if (room != MATCHER_NO_LIMIT) /* go on without: the walk is to get far */
                    assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, mask), FST_OK);
                for (int32_t t = 0; t < n_ids; t++)
                    if (grammar_test_bit(mask, t) && t != eos && test_below(&r, ++k) == 0)
                        id = t;
                if (id < 0)
                    break;
                assert_int_equal(matcher_advance(m, id), FST_OK);
            }
        }
        mem_free(mask);
        matcher_free(m);
        grammar_unref(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agree)};
    int rc;

    if (!grammar_test_open(&tok, &vocab))
        return 1;
    n_ids = tokenizer_vocab_size(tok);
    eos = tokenizer_specials(tok)->eos;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    grammar_test_close(tok, vocab);
    return rc;
}
