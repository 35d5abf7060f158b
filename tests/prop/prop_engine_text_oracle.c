/* prop_engine_text_oracle.c - every way a block can end, at every place: an oracle drafts what the target is
 * going to draw, and spoils the draft behind as many tokens as a plan says.
 *
 * One long answer per layout without drafts is the truth; the same request with the oracle must give it bit
 * for bit, ids and log-probabilities, while its rounds pass through
 *   every (position mod 128, accepted 0..5): rings, pages, compressors' groups of 4 and 128 end there
 *   every sequence of three rounds of 0..5 accepted each (a de Bruijn sequence)
 * What was accepted is counted, so that the plan is known to have happened.  In every round the drafts behind
 * the spoiled one are as wrong as can be: the target's own draws of other positions. */
#include "engine/draft.h"
#include "support/engine.h"
#include "support/prompts.h"

#include <unistd.h>

enum { WAYS = 6, MOD = 128, ROUNDS_MAX = 2000, LENGTH = 6000, CONTEXT = 8192 };

static const char *model_dir = "models/kindling";
static struct tokenizer_ids prompt;

static struct oracle {
    int32_t truth[LENGTH];
    int n_truth;
    uint8_t plan[ROUNDS_MAX]; /* accepted drafts of round i */
    int n_rounds, at;
    int64_t n_prompt;
} oracle;

static void spoil(void *ud, const int32_t *ids, int64_t n_prompt, int64_t n_known, int32_t *draft,
                  int n)
{
    struct oracle *o = ud;
    int64_t from = n_known - n_prompt;
    int right = o->at < o->n_rounds ? o->plan[o->at] : 0;
    (void)ids;
    o->at++;
    for (int i = 0; i < n; i++) {
        int64_t k = from + i;
        draft[i] = k < o->n_truth ? o->truth[k] : 0;
        if (i == right)
            draft[i] = draft[i] ? draft[i] - 1 : 1;
        else if (i > right) /* likely ones, elsewhere */
            draft[i] = o->truth[(k + 7) % o->n_truth];
    }
}

/* The lexically least sequence with every three of 0..5 in a row once (Fredricksen, Kessler and Maiorana). */
static void de_bruijn(int t, int p, uint8_t *a, uint8_t *out, int *n)
{
    if (t > 3) {
        if (3 % p == 0)
            for (int i = 1; i <= p; i++)
                out[(*n)++] = a[i];
        return;
    }
    a[t] = a[t - p];
    de_bruijn(t + 1, p, a, out, n);
    for (int j = a[t - p] + 1; j < WAYS; j++) {
        a[t] = (uint8_t)j;
        de_bruijn(t + 1, t, a, out, n);
    }
}

/* Rounds from position n0 on: all triples, then whatever is missing of (position, accepted).  Returns the tokens
 * that they give. */
static int make_plan(struct oracle *o, int64_t n0)
{
    static bool seen[MOD][WAYS];
    uint8_t a[8] = {0}, triple[WAYS * WAYS * WAYS];
    int n = 0, open = MOD * WAYS, tokens = 0;
    int64_t pos = n0;

    memset(seen, 0, sizeof seen);
    de_bruijn(1, 1, a, triple, &n);
    assert_int_equal(n, WAYS * WAYS * WAYS);
    for (o->n_rounds = 0; o->n_rounds < n + 2 || open > 0; o->n_rounds++) {
        int p = (int)(pos % MOD), take = 0, best = -1;
        if (o->n_rounds < n + 2)
            take = triple[o->n_rounds % n];
        else
            for (int w = 0; w < WAYS; w++) { /* one that is missing here, else to where most are */
                int missing = 0;
                for (int v = 0; v < WAYS; v++)
                    missing += !seen[(p + w + 1) % MOD][v];
                missing += seen[p][w] ? 0 : 100;
                if (missing > best) {
                    best = missing;
                    take = w;
                }
            }
        assert_true(o->n_rounds < ROUNDS_MAX);
        o->plan[o->n_rounds] = (uint8_t)take;
        open -= !seen[p][take];
        seen[p][take] = true;
        pos += take + 1;
        tokens += take + 1;
    }
    return tokens;
}

static fst_request *ask(fst_engine *e, int n_new, float temperature)
{
    struct fst_request_opts o;
    fst_request *r;
    fst_request_opts_default(&o);
    o.ids = prompt.id;
    o.n_ids = prompt.n;
    o.max_new_tokens = n_new;
    o.ignore_eos = true;
    o.logprobs = true;
    o.sampling.temperature = temperature;
    o.sampling.has_seed = true;
    o.sampling.seed = 12;
    if (fst_request_submit(e, &o, &r) < 0)
        fail_msg("%s", fst_error_text());
    return r;
}

static void run(const char *layout, float temperature, const char *mode)
{
    static float logprobs[LENGTH];
    struct fst_engine_opts o = {.kv_layout = layout, .threads = 1};
    struct fst_request_view v;
    int64_t n = (int64_t)prompt.n;
    int tokens =
        make_plan(&oracle, n); /* the first anchor stands at n: the prompt's end draws it */
    int n_new = 1 + tokens + 16;

    if (test_size(0, 0, 1)) /* sanitizers: all triples, and positions as far as they go */
        n_new = FST_MIN(n_new, 300);
    assert_true(n_new <= LENGTH);
    o.spec_algorithm = "none";
    fst_engine *e = engine_of_test(o, model_dir, CONTEXT, 2);
    fst_request *r = ask(e, n_new, temperature);
    engine_finished(r, &v);
    assert_int_equal(v.n, n_new);
    memcpy(oracle.truth, v.ids, v.n * sizeof *v.ids);
    memcpy(logprobs, v.logprobs, v.n * sizeof *v.logprobs);
    oracle.n_truth = n_new;
    fst_request_free(r);
    fst_engine_close(e);

    oracle.at = 0;
    draft_seams = (struct draft_seams){.drafts = spoil, .ud = &oracle};
    o.spec_algorithm = "dspark";
    o.verify_mode = mode;
    e = engine_of_test(o, model_dir, CONTEXT, 2);
    r = ask(e, n_new, temperature);
    engine_finished(r, &v);
    uint64_t accepted = 0;
    for (size_t i = 0; i < v.n && i < (size_t)n_new; i++)
        if (v.ids[i] != oracle.truth[i] || memcmp(&v.logprobs[i], &logprobs[i], sizeof(float)) != 0)
            fail_msg(
                "%s, temperature %g, %s: token %zu (position %lld) is %d (%.9g), without drafts %d "
                "(%.9g)",
                layout, (double)temperature, mode, i, (long long)n + (long long)i, v.ids[i],
                (double)v.logprobs[i], oracle.truth[i], (double)logprobs[i]);
    assert_int_equal(v.n, n_new);
    for (int i = 0; i < oracle.n_rounds && i < oracle.at - 4; i++)
        accepted += oracle.plan[i];
    if (strcmp(mode, "static") ==
        0) { /* it went as planned but for the last rounds, cut by the end */
        assert_true(v.spec.accepted >= accepted);
        assert_true(v.spec.accepted <= accepted + 4 * (WAYS - 1));
    }
    fst_request_free(r);
    fst_engine_close(e);
    draft_seams = (struct draft_seams){0};
    printf("%s, temperature %g, %s: %d rounds, %d tokens\n", layout, (double)temperature, mode,
           oracle.at, n_new);
}

static void test_fp8(void **state)
{
    (void)state;
    run("unified-fp8", 0, "static");
}

static void test_bf16(void **state)
{
    (void)state;
    run("unified-bf16", 0, "static");
}

static void test_paged(void **state)
{
    (void)state;
    if (getenv("FST_TEST_DEVICE"))
        skip();
    run("paged", 0, "static");
}

static void test_sampled(void **state)
{
    (void)state;
    run("unified-fp8", 1, "static");
}

/* Blocks that the confidences cut: the oracle's drafts are not what the head speaks of, which is as bad a plan
 * as any. */
static void test_compact(void **state)
{
    (void)state;
    run("unified-fp8", 0, "compact");
}

static int load(void **state)
{
    struct tokenizer *t;
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir);
    if (tokenizer_load(&t, path) < 0) {
        print_error("%s\n", fst_error_text());
        return -1;
    }
    prompt_make(t, 1, 5, &prompt);
    tokenizer_free(t);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_ids_release(&prompt);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp8), cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_paged), cmocka_unit_test(test_sampled),
                                       cmocka_unit_test(test_compact)};
    return cmocka_run_group_tests(tests, load, unload);
}
