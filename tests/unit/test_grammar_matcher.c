/* test_grammar_matcher.c - moving forth and back, forks, blocks, room, memory. */
#include "support/cm.h"

#include <time.h>

#include "support/grammar.h"

#define TINY_TOKENIZER "tests/data/tiny-tokenizer.json"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static int32_t n_ids, eos;

static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},\"tags\":{"
    "\"type\":"
    "\"array\",\"items\":{\"enum\":[\"red\",\"green\"]},\"minItems\":1},\"ok\":{\"type\":"
    "\"boolean\"}},"
    "\"required\":[\"name\",\"tags\",\"ok\"],\"additionalProperties\":false}";

static struct matcher *start(const char *schema, const struct matcher_opts *o)
{
    struct grammar *g;
    struct matcher *m;

    if (grammar_test_schema(&g, schema, NULL) < 0)
        fail_msg("%s", fst_error_text());
    assert_int_equal(matcher_new(&m, g, vocab, o), FST_OK);
    grammar_unref(g); /* the matcher has its own reference */
    return m;
}

static void take(struct matcher *m, const char *text)
{
    struct tokenizer_ids ids = {0};

    assert_int_equal(tokenizer_encode_text(tok, text, strlen(text), false, &ids), FST_OK);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(matcher_advance(m, ids.id[i]), FST_OK);
    tokenizer_ids_release(&ids);
}

static uint32_t *new_mask(struct matcher *m)
{
    return mem_calloc(matcher_mask_words(m), sizeof(uint32_t));
}

static int32_t first_bit(const uint32_t *mask)
{
    for (int32_t id = 0; id < n_ids; id++)
        if (grammar_test_bit(mask, id))
            return id;
    return -1;
}

static void back_and_forth(void **state)
{
    struct matcher_opts o = {.rollback_max = 4};
    struct matcher *m = start("{\"const\":\"abcdefgh\"}", &o);

    (void)state;
    assert_int_equal(matcher_undoable(m), 0);
    assert_int_equal(matcher_advance_text(m, "\"abc", 4), 4);
    assert_int_equal(matcher_advance_text(m, "de", 2), 2);
    assert_int_equal(matcher_undoable(m), 2);
    matcher_rollback(m, 1);
    assert_int_equal(matcher_advance_text(m, "x", 1), 0); /* not legal: nothing moved */
    assert_int_equal(matcher_advance_text(m, "dx", 2), 1);
    assert_int_equal(matcher_undoable(m), 1);
    for (const char *s = "defgh\""; *s; s++)
        assert_int_equal(matcher_advance_text(m, s, 1), 1);
    assert_int_equal(matcher_undoable(m), 4);
    assert_true(matcher_is_accepting(m));
    assert_true(matcher_is_over(m));
    matcher_rollback(m, 4);
    assert_false(matcher_is_accepting(m));
    assert_int_equal(matcher_advance_text(m, "fgh\"", 4), 4);
    assert_int_equal(matcher_advance(m, eos), FST_OK);
    assert_true(matcher_is_over(m));
    assert_int_equal(matcher_advance(m, eos), FST_EINVAL);
    matcher_rollback(m, 1);
    assert_true(matcher_is_accepting(m));
    matcher_reset(m);
    assert_int_equal(matcher_undoable(m), 0);
    assert_int_equal(matcher_advance(m, eos), FST_EINVAL);
    matcher_free(m);
}

static void forks(void **state)
{
    struct matcher *m = start(person, NULL), *a, *b;

    (void)state;
    take(m, "{\"name\":\"");
    assert_int_equal(matcher_fork(&a, m), FST_OK);
    assert_int_equal(matcher_fork(&b, a), FST_OK);
    assert_int_equal(matcher_undoable(a), 0);
    take(a, "x\",\"tags\":[\"red\"],\"ok\":true}");
    assert_true(matcher_is_accepting(a));
    matcher_free(m); /* the first may go first */
    take(b, "yy\", \"tags\": [\"green\", \"red\"], \"ok\": false}");
    assert_true(matcher_is_accepting(b));
    matcher_free(a);
    matcher_free(b);
}

/* A fork's own memory outlives its place, and may stand there again. */
static void forks_in_two_steps(void **state)
{
    struct matcher *m = start(person, NULL), *a;

    (void)state;
    assert_int_equal(matcher_new_detached(&a, m), FST_OK);
    matcher_detach(a);
    take(m, "{\"name\":\"");
    for (int i = 0; i < 2; i++) {
        matcher_attach(a, m);
        assert_int_equal(matcher_undoable(a), 0);
        take(a, "x\",\"tags\":[\"red\"],\"ok\":true}");
        assert_true(matcher_is_accepting(a));
        matcher_detach(a);
    }
    matcher_free(m);
    matcher_free(a);
}

/* No added token is legal anywhere but EOS at the end, whatever its text. */
static void special_tokens(void **state)
{
    struct matcher *m = start("{\"type\":\"string\"}", NULL);
    uint32_t *mask = new_mask(m);

    (void)state;
    take(m, "\"a");
    assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, mask), FST_OK);
    for (int32_t id = 0; id < n_ids; id++) {
        size_t len;
        const char *s = tokenizer_bytes(tok, id, &len);
        bool added = len && tokenizer_special(tok, s) == id;

        if (added || !len) {
            assert_false(grammar_test_bit(mask, id));
            assert_int_equal(matcher_advance(m, id), FST_EINVAL);
        }
    }
    assert_int_equal(matcher_advance(m, -1), FST_EINVAL);
    assert_int_equal(matcher_advance(m, n_ids + 5), FST_EINVAL);
    take(m, "\"");
    assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, mask), FST_OK);
    assert_int_equal(first_bit(mask), eos);
    mem_free(mask);
    matcher_free(m);
}

static void draft_block(void **state)
{
    struct matcher *m = start(person, NULL);
    size_t words = matcher_mask_words(m);
    uint32_t *masks = mem_calloc(24 * words, sizeof *masks), *one = new_mask(m);
    struct tokenizer_ids ids = {0};
    int n;

    (void)state;
    assert_int_equal(tokenizer_encode_text(tok, "{\"name\":\"ab\"", 12, false, &ids), FST_OK);
    assert_true(ids.n >= 2);
    assert_true(ids.n <= 20);
    n = matcher_mask_block(m, ids.id, (int)ids.n, MATCHER_NO_LIMIT, masks);
    assert_int_equal(n, (int)ids.n + 1);
    assert_int_equal(matcher_undoable(m), 0);
    for (size_t i = 0; i <= ids.n; i++) {
        assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, one), FST_OK);
        assert_memory_equal(one, masks + i * words, words * sizeof *one);
        if (i < ids.n)
            assert_int_equal(matcher_advance(m, ids.id[i]), FST_OK);
    }
    matcher_rollback(m, (int)ids.n);
    ids.id[1] = eos; /* a draft that is not legal ends the block behind its mask */
    assert_int_equal(matcher_mask_block(m, ids.id, (int)ids.n, MATCHER_NO_LIMIT, masks), 2);
    assert_int_equal(matcher_undoable(m), 0);
    tokenizer_ids_release(&ids);
    mem_free(masks);
    mem_free(one);
    matcher_free(m);
}

/* With exactly the least number of tokens every way through the masks ends in a document. */
static void least_tokens(void **state)
{
    static const char *const schema[] = {
        person,
        "{\"type\":\"integer\",\"minimum\":1000}",
        "{\"type\":\"string\",\"minLength\":9}",
        "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":7}",
        "{}",
        "{\"type\":\"string\",\"pattern\":\"^(abc|[0-9]{4})-x+$\"}"};
    struct test_rng r = {7};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(schema); i++) {
        struct matcher *m = start(schema[i], NULL);
        uint32_t *mask = new_mask(m), least = matcher_least_tokens(m);

        assert_true(least > 0);
        for (int walk = 0; walk < 200; walk++) {
            uint32_t room = least + (uint32_t)(walk % 4);

            matcher_reset(m);
            while (!matcher_is_over(m)) {
                int32_t id = -1;
                int n = 0;

                assert_true(matcher_least_tokens(m) <= room);
                assert_int_equal(matcher_mask(m, room, mask), FST_OK);
                for (int32_t k = 0; k < n_ids; k++)
                    if (grammar_test_bit(mask, k) && test_below(&r, ++n) == 0)
                        id = k;
                if (id == eos || (!room && matcher_is_accepting(m)))
                    break;
                assert_true(id >= 0);
                assert_true(room > 0);
                assert_int_equal(matcher_advance(m, id), FST_OK);
                room--;
            }
            assert_true(matcher_is_accepting(m));
        }
        /* one token too few: the mask is as without a limit */
        matcher_reset(m);
        {
            uint32_t *plain = new_mask(m);
            assert_int_equal(matcher_mask(m, least - 1, mask), FST_OK);
            assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, plain), FST_OK);
            assert_memory_equal(mask, plain, matcher_mask_words(m) * sizeof *mask);
            mem_free(plain);
        }
        mem_free(mask);
        matcher_free(m);
    }
}

/* Counts are passed over without a walk: a text written out has the same figures, and a billion
 * characters cost no more than a thousand. */
static void least_of_long_texts(void **state)
{
    static const char counted[] = "root ::= x{99} y \"end\"\nx ::= z{2} \"-\"\nz ::= \"ab\"{25}\n"
                                  "y ::= y5 y5\ny5 ::= y4 y4\ny4 ::= y3 y3\ny3 ::= \"qrs\"{64}";
    struct buf text = {0}, one = {0};
    struct grammar *g;
    struct matcher *m, *plain;
    uint32_t *mask;

    (void)state;
    for (int i = 0; i < 99 * 101; i++)
        buf_putc(&text, i % 101 == 100 ? '-' : "ab"[i % 101 % 2]);
    for (int i = 0; i < 8 * 64; i++)
        buf_puts(&text, "qrs");
    buf_puts(&text, "end");
    buf_printf(&one, "root ::= \"%s\"", buf_str(&text));
    assert_int_equal(grammar_from_ebnf(&g, counted, sizeof counted - 1, NULL), FST_OK);
    assert_int_equal(matcher_new(&m, g, vocab, NULL), FST_OK);
    grammar_unref(g);
    assert_int_equal(grammar_from_ebnf(&g, one.data, one.len, NULL), FST_OK);
    assert_int_equal(matcher_new(&plain, g, vocab, NULL), FST_OK);
    grammar_unref(g);
    for (size_t i = 0; i < text.len; i += 7) {
        size_t n = FST_MIN(text.len - i, (size_t)7);
        assert_int_equal(matcher_least_tokens(m), matcher_least_tokens(plain));
        assert_int_equal(matcher_advance_text(m, text.data + i, n), n);
        assert_int_equal(matcher_advance_text(plain, text.data + i, n), n);
    }
    assert_true(matcher_is_accepting(m));
    matcher_free(m);
    matcher_free(plain);
    buf_release(&text);
    buf_release(&one);

    clock_t before = clock();
    m = start("{\"type\":\"string\",\"minLength\":1000000000}", NULL);
    plain = start("{\"type\":\"string\",\"minLength\":1000000}", NULL);
    mask = new_mask(m);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(matcher_least_tokens(m) - matcher_least_tokens(plain), 999000000);
        assert_int_equal(matcher_mask(m, 30, mask), FST_OK);
        assert_int_equal(matcher_advance_text(m, i ? "a" : "\"", 1), 1);
        assert_int_equal(matcher_advance_text(plain, i ? "a" : "\"", 1), 1);
    }
    assert_true(clock() - before < 5 * CLOCKS_PER_SEC); /* a walk takes seconds at each place */
    mem_free(mask);
    matcher_free(m);
    matcher_free(plain);
}

static void forced_bytes(void **state)
{
    struct matcher *m = start(person, NULL);
    char out[64];
    size_t n = matcher_forced(m, out, sizeof out);

    (void)state;
    assert_int_equal(n, 8);
    assert_memory_equal(out, "{\"name\":", 8);
    assert_int_equal(matcher_forced(m, out, 3), 3);
    assert_int_equal(matcher_undoable(m), 0);
    matcher_free(m);
}

/* Nobody allocates after the matcher is there; with hardly any memory places are dropped and made
 * again, and nothing changes but the time. */
static void memory(void **state)
{
    static const char text[] = "{\"a\": [[1, {\"b\": [true, \"xyz\"]}], [{\"c\": {\"d\": {\"e\": "
                               "[[[[[[]]]]]]}}}]], \"f\": null}";
    struct matcher_opts small = {.space_bytes = 1};
    struct matcher *m = start("{\"type\":\"object\"}", NULL),
                   *tight = start("{\"type\":\"object\"}", &small);
    uint32_t *a = new_mask(m), *b = new_mask(m);
    uint64_t before = mem_count();

    (void)state;
    for (int round = 0; round < test_size(30, 300, 3); round++) {
        matcher_reset(m);
        matcher_reset(tight);
        for (size_t i = 0; i < sizeof text - 1; i++) {
            assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, a), FST_OK);
            assert_int_equal(matcher_mask(tight, MATCHER_NO_LIMIT, b), FST_OK);
            assert_memory_equal(a, b, matcher_mask_words(m) * sizeof *a);
            assert_int_equal(matcher_advance_text(m, text + i, 1), 1);
            assert_int_equal(matcher_advance_text(tight, text + i, 1), 1);
            assert_int_equal(matcher_least_tokens(m), matcher_least_tokens(tight));
        }
        assert_true(matcher_is_accepting(m));
        assert_true(matcher_is_accepting(tight));
    }
    assert_int_equal(mem_count() - before, 0);
    assert_true(matcher_stats(m).masks_cached > 0);
    mem_free(a);
    mem_free(b);
    matcher_free(m);
    matcher_free(tight);
}

/* Many positions that are all new, on little memory: collections happen, answers stay right. */
static void collections(void **state)
{
    struct matcher_opts small = {.space_bytes = 1};
    struct matcher *m = start("{\"type\":\"string\",\"maxLength\":60000}", &small);
    uint32_t *mask = new_mask(m);

    (void)state;
    take(m, "\"");
    for (int i = 0; i < 20000; i++) {
        assert_int_equal(matcher_advance_text(m, "ab ", 3), 3);
        if (i % 500 == 0) {
            assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, mask), FST_OK);
            assert_true(first_bit(mask) >= 0);
        }
    }
    assert_true(matcher_stats(m).collections > 3);
    matcher_rollback(m, 64);
    assert_int_equal(matcher_advance_text(m, "a", 1), 1);
    for (int i = 0; i < 63; i++)
        assert_int_equal(matcher_advance_text(m, "ab ", 3), 3);
    assert_int_equal(matcher_advance_text(m, "abc", 3), 2); /* 60000 are there, with two of them */
    assert_int_equal(matcher_advance_text(m, "ab\"", 3), 3);
    assert_true(matcher_is_over(m));
    mem_free(mask);
    matcher_free(m);
}

/* A grammar of which one text can be read in very many ways stays sound. */
static void ambiguous(void **state)
{
    static const char text[] = "root ::= s\ns ::= \"a\" s s | \"a\" s | \"b\" s \"b\" | \"a\"";
    struct grammar *g;
    struct matcher *m;
    uint32_t *mask;
    char many[201];

    (void)state;
    memset(many, 'a', sizeof many);
    assert_int_equal(grammar_from_ebnf(&g, text, sizeof text - 1, NULL), FST_OK);
    assert_int_equal(matcher_new(&m, g, vocab, NULL), FST_OK);
    mask = new_mask(m);
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(matcher_advance_text(m, many + i, 1), 1);
    assert_true(matcher_is_accepting(m));
    assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, mask), FST_OK);
    assert_true(grammar_test_bit(mask, eos));
    mem_free(mask);
    matcher_free(m);
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(back_and_forth),
                                       cmocka_unit_test(forks),
                                       cmocka_unit_test(forks_in_two_steps),
                                       cmocka_unit_test(special_tokens),
                                       cmocka_unit_test(draft_block),
                                       cmocka_unit_test(least_tokens),
                                       cmocka_unit_test(least_of_long_texts),
                                       cmocka_unit_test(forced_bytes),
                                       cmocka_unit_test(memory),
                                       cmocka_unit_test(collections),
                                       cmocka_unit_test(ambiguous)};
    int rc;

    if (!grammar_test_open(&tok, &vocab))
        return 1;
    n_ids = tokenizer_vocab_size(tok);
    eos = tokenizer_specials(tok)->eos;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    grammar_test_close(tok, vocab);
    return rc;
}
