/* prop_engine_text_reject.c - rejection sampling in the engine: tokens are distributed as without drafting, repeat
 * with their seed, and are accepted about as often as coupled draws. */
#include "support/engine.h"
#include "support/prompts.h"

#include <math.h>

enum { CONTEXT = 4096, BATCH = 16, TOKENS = 4, CELLS = 4096 };

static const char *model_dir = "models/kindling";
static struct tokenizer *tok;
static bool ruled; /* requests have penalties and a bias */

static fst_request *submit(fst_engine *e, const struct tokenizer_ids *p, uint64_t seed,
                           int64_t max_new, float temperature, float top_p)
{
    struct fst_request_opts o;
    fst_request *r;

    fst_request_opts_default(&o);
    o.ids = p->id;
    o.n_ids = p->n;
    o.max_new_tokens = max_new;
    o.ignore_eos = true;
    o.logprobs = true;
    o.sampling.temperature = temperature;
    o.sampling.top_p = top_p;
    o.sampling.has_seed = true;
    o.sampling.seed = seed;
    if (ruled) {
        o.sampling.presence_penalty = 1.5f;
        o.sampling.repetition_penalty = 1.4f;
        o.logit_bias = &(struct fst_logit_bias){p->id[p->n - 1], 2};
        o.n_logit_bias = 1;
    }
    if (fst_request_submit(e, &o, &r) < 0)
        fail_msg("%s", fst_error_text());
    return r;
}

/* Counts of the first tokens behind one prompt, by a hash of them: one cell for each run of tokens that is met. */
static void count(const struct fst_engine_opts *o, const struct tokenizer_ids *p, int n,
                  uint64_t first_seed, float top_p, uint64_t cell[CELLS],
                  struct fst_spec_stats *spec)
{
    fst_engine *e = engine_of_test(*o, model_dir, CONTEXT, BATCH);
    struct fst_engine_stats s;

    memset(cell, 0, CELLS * sizeof *cell);
    for (int at = 0; at < n; at += BATCH) {
        fst_request *r[BATCH];
        struct fst_request_view v;
        for (int i = 0; i < BATCH; i++)
            r[i] = submit(e, p, first_seed + (uint64_t)(at + i), TOKENS, 1, top_p);
        for (int i = 0; i < BATCH; i++) {
            uint64_t h = 0;
            engine_finished(r[i], &v);
            assert_int_equal(v.n, TOKENS);
            for (size_t k = 0; k < v.n; k++)
                h = (h ^ (uint64_t)v.ids[k]) * 0x9E3779B97F4A7C15u;
            cell[h >> 52]++;
            fst_request_free(r[i]);
        }
    }
    fst_engine_get_stats(e, &s);
    *spec = s.spec;
    fst_engine_close(e);
}

/* Two samples of one distribution?  As a standard normal (Wilson and Hilferty). */
static double two_samples(const uint64_t *a, const uint64_t *b, int *n_cells)
{
    double chi = 0, ra = 0, rb = 0, k;

    *n_cells = 0;
    for (int i = 0; i <= CELLS; i++) {
        double x = i < CELLS ? (double)a[i] : ra, y = i < CELLS ? (double)b[i] : rb;
        if (i < CELLS && x + y < 20) { /* rare ones together */
            ra += x;
            rb += y;
            continue;
        }
        if (x + y == 0)
            continue;
        chi += (x - y) * (x - y) / (x + y);
        ++*n_cells;
    }
    k = *n_cells - 1;
    return (cbrt(chi / k) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k));
}

static void test_distribution(void **state)
{
    static uint64_t plain[CELLS], drafted[CELLS], half[CELLS];
    static const char *const texts[] = {"What is 3 + 4?", "The access code for silver lantern is",
                                        "What is 3 + 4?"};
    int n = test_size(1600, 96000, 160);

    (void)state;
    for (size_t t = 0; t < FST_COUNT(texts); t++) {
        struct tokenizer_ids p = {0};
        struct fst_spec_stats spec;
        float top_p = t == 1 ? 0.9f : 1.0f;
        ruled = t == 2;
        int n_cells;
        assert_int_equal(tokenizer_encode_text(tok, texts[t], strlen(texts[t]), true, &p), FST_OK);
        count(&(struct fst_engine_opts){.spec_algorithm = "none"}, &p, n, 1, top_p, plain, &spec);
        assert_int_equal(spec.verify_steps, 0);
        /* compact: live confidences trim the rounds, by Algorithm 1 */
        struct fst_engine_opts eo = {.spec_accept = "rejection",
                                     .measure_cost = t > 0,
                                     .verify_mode = t ? "compact" : "static"};
        count(&eo, &p, n, 1u << 20, top_p, drafted, &spec);
        assert_true(spec.accepted > (uint64_t)n / 10);
        double z = two_samples(plain, drafted, &n_cells);
        printf("\"%s\": %d cells, z %.2f, accept length %.2f\n", texts[t], n_cells, z,
               spec.accept_length);
        assert_true(fabs(z) < 4 || n_cells < 3);
        if (test_size(0, 1, 0)) { /* and the test can tell: other temperatures differ */
            memcpy(half, plain, sizeof half);
            for (int i = 0; i < CELLS; i++)
                half[i] = plain[i] > 40 ? plain[i] + plain[i] / 5 : plain[i];
            assert_true(two_samples(plain, half, &n_cells) > 4);
        }
        tokenizer_ids_release(&p);
    }
    ruled = false;
}

/* The same seed, the same tokens, if the engine does the same rounds; temperature 0 is what it always is. */
static void test_repeats(void **state)
{
    struct tokenizer_ids p = {0};
    int32_t ids[2][100];
    float logprobs[2][100];

    (void)state;
    assert_int_equal(tokenizer_encode_text(tok, "Once upon a time", 16, true, &p), FST_OK);
    for (int greedy = 0; greedy < 2; greedy++) {
        for (int pass = 0; pass < 2; pass++) {
            struct fst_engine_opts o = {.spec_accept = greedy && pass ? "coupled" : "rejection",
                                        .verify_mode = "static",
                                        .threads = 1 + pass};
            fst_engine *e = engine_of_test(o, model_dir, CONTEXT, 2);
            struct fst_request_view v;
            fst_request *r = submit(e, &p, 9, 100, greedy ? 0 : 1, 1);
            engine_finished(r, &v);
            memcpy(ids[pass], v.ids, sizeof ids[pass]);
            memcpy(logprobs[pass], v.logprobs, sizeof logprobs[pass]);
            fst_request_free(r);
            fst_engine_close(e);
        }
        assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
        assert_memory_equal(logprobs[0], logprobs[1], sizeof logprobs[0]);
    }
    tokenizer_ids_release(&p);
}

/* Log-probabilities are those of the tokens that were given out: a prompt of them says the same. */
static void test_logprobs(void **state)
{
    struct tokenizer_ids p = {0};
    struct fst_request_view v, w;
    struct fst_request_opts o;
    fst_request *r, *scored;

    (void)state;
    assert_int_equal(tokenizer_encode_text(tok, "Once upon a time", 16, true, &p), FST_OK);
    struct fst_engine_opts eo = {.spec_accept = "rejection", .verify_mode = "static"};
    fst_engine *e = engine_of_test(eo, model_dir, CONTEXT, 2);
    r = submit(e, &p, 10, 120, 1, 0.95f);
    engine_finished(r, &v);
    assert_true(v.spec.accepted > 0);
    size_t n = p.n;
    for (size_t i = 0; i < v.n; i++)
        assert_int_equal(tokenizer_ids_push(&p, v.ids[i]), FST_OK);
    fst_request_opts_default(&o);
    o.ids = p.id;
    o.n_ids = p.n;
    o.max_new_tokens = 0;
    o.prompt_logprobs_from = 0;
    if (fst_request_submit(e, &o, &scored) < 0)
        fail_msg("%s", fst_error_text());
    engine_finished(scored, &w);
    for (size_t i = 0; i < v.n; i++)
        assert_memory_equal(&v.logprobs[i], &w.prompt_logprobs[n + i], sizeof(float));
    fst_request_free(r);
    fst_request_free(scored);
    fst_engine_close(e);
    tokenizer_ids_release(&p);
}

/* Coupled draws accept nearly as much. */
static void test_acceptance(void **state)
{
    double length[2];
    int n = test_size(48, 400, 4);

    (void)state;
    for (int rejection = 0; rejection < 2; rejection++) {
        struct fst_engine_opts o = {.spec_accept = rejection ? "rejection" : "coupled",
                                    .verify_mode = "static"};
        fst_engine *e = engine_of_test(o, model_dir, CONTEXT, BATCH);
        struct fst_engine_stats s;
        for (int at = 0; at < n; at += BATCH) {
            fst_request *r[BATCH];
            struct fst_request_view v;
            int here = FST_MIN(BATCH, n - at);
            for (int i = 0; i < here; i++) {
                struct tokenizer_ids p = {0};
                prompt_make(tok, 5, at + i, &p);
                r[i] = submit(e, &p, (uint64_t)(at + i), 64, 1, 1);
                tokenizer_ids_release(&p);
            }
            for (int i = 0; i < here; i++) {
                engine_finished(r[i], &v);
                fst_request_free(r[i]);
            }
        }
        fst_engine_get_stats(e, &s);
        length[rejection] = s.spec.accept_length;
        fst_engine_close(e);
    }
    printf("accept length at temperature 1: coupled %.3f, rejection %.3f\n", length[0], length[1]);
    if (n >= 48)
        assert_true(length[0] >= 0.9 * length[1]);
}

static void test_refused(void **state)
{
    struct fst_engine_opts bad[] = {
        {.spec_accept = "never"},
        {.spec_accept = "rejection", .debug_hooks = true, .debug_reject_at = 1}};
    const char *parts[] = {"coupled, rejection", "--speculative-accept coupled"};
    fst_engine *e;

    (void)state;
    for (size_t i = 0; i < FST_COUNT(bad); i++) {
        bad[i].model_dir = model_dir;
        assert_true(fst_engine_open(&e, &bad[i]) < 0);
        assert_non_null(strstr(fst_error_text(), parts[i]));
    }
}

static int load(void **state)
{
    (void)state;
    if (tokenizer_load(&tok, "models/kindling/tokenizer.json") < 0) {
        print_error("%s\n", fst_error_text());
        return -1;
    }
    return 0;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_logprobs), cmocka_unit_test(test_acceptance),
        cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, load, unload);
}
