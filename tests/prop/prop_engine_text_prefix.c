/* prop_engine_text_prefix.c - the promise: what a prompt is spared changes nothing of its answer.
 *
 * On the bundled model: an engine that keeps prefixes against one that computes every prompt whole
 * (alone, drafting off).  Ids, log-probabilities (bits), finish reason and counts must be equal, and the
 * cached tokens at least what was promised, for prompts of every residue of a page, a turn after a
 * turn, many that share a preamble, with drafting and without, every layout and chunk, with so few
 * pages and bytes that what is kept goes again, and with requests that are cancelled half way. */
#include "support/prefixes.h"

#include <unistd.h>

/* The first n tokens, then the same again, then some more behind them. */
static void check_residue(fst_engine *e, int n, const char *what)
{
    struct answer first, a;
    ask(e, stream, n, 3, &first);
    compare(&first, stream, n, 3, what);
    size_t cached = ask(e, stream, n, 3, &a);
    if (memcmp(&a, &first, sizeof a) != 0 || (n > 1 && cached != (size_t)n - 1))
        fail_msg("%s, prompt of %d again: another answer, or %zu cached", what, n, cached);
    cached = ask(e, stream, n + 9, 3, &a);
    compare(&a, stream, n + 9, 3, what);
    if (cached < (size_t)n - 1)
        fail_msg("%s, prompt of %d after %d: %zu cached", what, n + 9, n, cached);
}

static void test_residues(void **state)
{
    static const int edges[] = {1,   2,   3,   4,   5,   127, 128, 129,
                                255, 256, 257, 383, 384, 511, 512, 513};
    struct test_rng r = {.s = 3};
    int some = test_size(3, 256, 1);

    (void)state;
    for (size_t c = 0; c < FST_COUNT(cells); c++) {
        fst_engine *e = open_engine(cells[c].o);
        cold_of(&cells[c].o);
        for (size_t i = 0; i < FST_COUNT(edges); i++)
            if (some == 256 || (i + c) % (some > 1 ? 2 : 4) == 1)
                check_residue(e, edges[i], cells[c].name);
        for (int i = 0; i < some; i++) /* long: every residue of a page */
            check_residue(e, some == 256 ? 300 + i : 1 + test_below(&r, 900), cells[c].name);
        fst_engine_close(e);
    }
}

/* A prompt, its answer, what comes next, and so on. */
static void test_turns(void **state)
{
    int turns = test_size(4, 20, 2);

    (void)state;
    for (size_t c = 0; c < FST_COUNT(cells); c++) {
        fst_engine *e = open_engine(cells[c].o);
        static int32_t ids[CONTEXT];
        int n = 137, known = 0;
        struct fst_engine_opts plain = cells[c].o;
        plain.disable_prefix_cache = true;
        fst_engine *whole = open_engine(plain); /* which drafts like e */
        cold_of(&cells[c].o);
        memcpy(ids, stream, (size_t)n * sizeof *ids);
        for (int t = 0; t < turns; t++) {
            struct answer a;
            size_t cached = ask(e, ids, n, MAX_NEW, &a);
            struct fst_spec_stats spec = last_spec;
            compare(&a, ids, n, MAX_NEW, cells[c].name);
            ask(whole, ids, n, MAX_NEW, &a);
            if (memcmp(&spec, &last_spec, sizeof spec) != 0)
                fail_msg("%s, turn %d: %llu of %llu drafts accepted, cold %llu of %llu",
                         cells[c].name, t, (unsigned long long)spec.accepted,
                         (unsigned long long)spec.drafted, (unsigned long long)last_spec.accepted,
                         (unsigned long long)last_spec.drafted);
            if (known && cached < (size_t)known - 1)
                fail_msg("%s, turn %d of %d ids: %zu cached, %d known", cells[c].name, t, n, cached,
                         known);
            memcpy(ids + n, a.ids, a.n * sizeof *ids);
            known = n + (int)a.n;
            n = known + 11 + 17 * t % 60;
            memcpy(ids + known, stream + 40 * t, (size_t)(n - known) * sizeof *ids);
        }
        fst_engine_close(whole);
        fst_engine_close(e);
    }
}

/* Many behind one preamble: the second leaves it where no snapshot stands, all others find one there.  Where
 * the first says how long it is, the second does too, to the token. */
static void share_preamble(bool told)
{
    enum { SHARED = 600, OWN = 50, AGENTS = 8 };
    static int32_t ids[AGENTS][SHARED + OWN];
    fst_engine *e = open_engine((struct fst_engine_opts){0});
    struct answer a;

    preamble = told ? SHARED : 0;
    cold_of(&(struct fst_engine_opts){0});
    for (int i = 0; i < AGENTS; i++) {
        memcpy(ids[i], stream, SHARED * sizeof **ids);
        memcpy(ids[i] + SHARED, stream + SHARED + 1 + 70 * i, OWN * sizeof **ids);
        size_t cached = ask(e, ids[i], SHARED + OWN, 4, &a);
        compare(&a, ids[i], SHARED + OWN, 4, "a shared preamble");
        if (i > !told && cached < (told ? SHARED : SHARED / 256 * 256)) /* else whole pages of it */
            fail_msg("agent %d: %zu cached", i, cached);
    }
    preamble = 0;
    fst_engine_close(e);
}

static void test_preamble(void **state)
{
    (void)state;
    share_preamble(false);
    share_preamble(true);
}

/* Nothing of one salt is found under another. */
static void test_salt(void **state)
{
    fst_engine *e = open_engine((struct fst_engine_opts){0});
    struct answer a;

    (void)state;
    assert_int_equal(collect(submit(e, stream, 500, 3, 1), &a), 0);
    assert_int_equal(collect(submit(e, stream, 500, 3, 2), &a), 0);
    assert_int_equal(collect(submit(e, stream, 500, 3, 0), &a), 0);
    assert_int_equal(collect(submit(e, stream, 500, 3, 2), &a), 499);
    fst_engine_flush_prefixes(e);
    assert_int_equal(collect(submit(e, stream, 500, 3, 2), &a), 0);
    assert_int_equal(collect(submit(e, stream, 500, 3, 2), &a), 499);
    fst_engine_close(e);
}

/* Many at once, few pages, few bytes, some cancelled: what is kept goes, answers stay. */
static void test_pressure(void **state)
{
    fst_engine *e = open_engine((struct fst_engine_opts){.verify_mode = "auto",
                                                         .context_length = 1024,
                                                         .max_total_tokens = 3072,
                                                         .max_running_requests = CROWD,
                                                         .prefix_cache_bytes = 8 << 20});
    struct fst_engine_stats s;
    struct test_rng r = {.s = 9};
    int rounds = test_size(8, 200, 2);

    (void)state;
    cold_of(&(struct fst_engine_opts){0});
    for (int round = 0; round < rounds; round++)
        crowd(e, &r);
    do { /* those that were cancelled leave at the next step */
        usleep(1000);
        fst_engine_get_stats(e, &s);
    } while (s.running || s.waiting);
    assert_int_equal(s.slots_used, 0);
    assert_int_equal(s.kv_tokens_used, 0);
    assert_true(s.cached_tokens > 0);
    printf("%llu of %llu prompt tokens cached, %llu times a request lost its place\n",
           (unsigned long long)s.cached_tokens, (unsigned long long)s.prompt_tokens,
           (unsigned long long)s.retracted);
    fst_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residues), cmocka_unit_test(test_turns),
        cmocka_unit_test(test_preamble), cmocka_unit_test(test_salt),
        cmocka_unit_test(test_pressure),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
