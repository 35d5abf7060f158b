/* prop_engine_text_parity.c - the promise: what a request gives depends on nothing but itself.
 *
 * 200 mixed prompts on the bundled model, at temperature 0 and at temperature 1 with a seed.  The
 * base answer: alone, drafting off, unified-fp8 rows, chunks of 64, one thread.  Every cell of
 * {drafting on, off, by an MTP block} x {unified-bf16, unified-fp8, paged} x {chunk 1, 7, 64, 2048} x {alone, in batches of
 * 2..16} x {1, 2 threads} must give the same ids, log-probabilities (bits), finish reason and
 * counts; so must an engine so short of pages that requests lose their place and resume.
 * CI runs a seeded 5 % of the cells, long all, under sanitizers 1 %. */
#include "support/engine.h"
#include "support/prompts.h"

#include <unistd.h>

enum { N_PROMPTS = 200, MAX_NEW = 40, CONTEXT = 3072, N_TOP = 2 };

struct answer {
    bool have;
    int32_t ids[MAX_NEW];
    float logprobs[MAX_NEW];
    struct fst_top_logprob top[MAX_NEW * N_TOP];
    size_t n, n_prompt;
    enum fst_finish finish;
    int32_t matched;
};

static struct tokenizer_ids prompts[N_PROMPTS];
static struct answer base[N_PROMPTS][2]; /* by temperature: 0, 1 */
static const char *model_dir = "models/kindling";
static uint64_t n_verify[2], n_accepted[2], n_cells; /* DSpark, MTP */
static bool mtp;

static fst_engine *open_engine(struct fst_engine_opts o)
{
    return engine_of_test(o, model_dir, CONTEXT, 16);
}

static fst_request *submit(fst_engine *e, int prompt, int temp)
{
    struct fst_request_opts o;
    fst_request *r;

    fst_request_opts_default(&o);
    o.ids = prompts[prompt].id;
    o.n_ids = prompts[prompt].n;
    o.max_new_tokens = 8 + prompt % (MAX_NEW - 7);
    o.sampling.temperature = (float)temp;
    o.sampling.top_p = prompt % 3 == 1 ? 0.9f : 1.0f;
    o.sampling.has_seed = true;
    o.sampling.seed = (uint64_t)prompt * 31 + 7;
    o.ignore_eos = prompt % 5 == 0;
    o.min_new_tokens = prompt % 7 == 0 ? 12 : 0;
    o.logprobs = true;
    o.top_logprobs = N_TOP;
    if (fst_request_submit(e, &o, &r) < 0)
        fail_msg("prompt %d: %s", prompt, fst_error_text());
    return r;
}

static void collect(fst_request *r, struct answer *a)
{
    struct fst_request_view v;

    engine_finished(r, &v);
    memset(a, 0, sizeof *a);
    a->have = true;
    a->n = v.n;
    a->n_prompt = v.n_prompt;
    a->finish = v.finish;
    a->matched = v.matched_id;
    memcpy(a->ids, v.ids, v.n * sizeof *v.ids);
    memcpy(a->logprobs, v.logprobs, v.n * sizeof *v.logprobs);
    memcpy(a->top, v.top, v.n * N_TOP * sizeof *v.top);
    n_verify[mtp] += v.spec.verify_steps;
    n_accepted[mtp] += v.spec.accepted;
    fst_request_free(r);
}

static void compare(const struct answer *got, int prompt, int temp, const char *cell)
{
    const struct answer *want = &base[prompt][temp];
    size_t i = 0;

    n_cells++;
    while (i < got->n && i < want->n && got->ids[i] == want->ids[i] &&
           memcmp(&got->logprobs[i], &want->logprobs[i], sizeof(float)) == 0)
        i++;
    if (i < got->n || i < want->n)
        fail_msg("%s, prompt %d (%zu tokens), temperature %d: token %zu of %zu/%zu is %d (%.9g), "
                 "alone without drafts %d (%.9g)",
                 cell, prompt, prompts[prompt].n, temp, i, got->n, want->n, got->ids[i],
                 (double)got->logprobs[i], want->ids[i], (double)want->logprobs[i]);
    if (memcmp(got, want, sizeof *got) != 0)
        fail_msg("%s, prompt %d: finish, counts or alternatives differ", cell, prompt);
}

static void need_base(fst_engine **e, int prompt, int temp)
{
    if (base[prompt][temp].have)
        return;
    if (!*e)
        *e = open_engine((struct fst_engine_opts){
            .spec_algorithm = "none", .chunked_prefill_size = 64, .threads = 1});
    collect(submit(*e, prompt, temp), &base[prompt][temp]);
}

/* A shuffled list of all (prompt, temperature) pairs: pair k is prompt k / 2 at temperature k % 2. */
static void shuffle(int *pair, struct test_rng *r)
{
    for (int i = 0; i < 2 * N_PROMPTS; i++)
        pair[i] = i;
    for (int i = 2 * N_PROMPTS - 1; i > 0; i--) {
        int j = test_below(r, i + 1), t = pair[i];
        pair[i] = pair[j];
        pair[j] = t;
    }
}

/* One engine configuration: n_alone pairs alone, then n_batched pairs in batches of 2..16. */
static void run_cell(struct fst_engine_opts o, const char *name, int n_alone, int n_batched,
                     struct test_rng *r, fst_engine **plain)
{
    fst_engine *e = open_engine(o);
    int pair[2 * N_PROMPTS];

    shuffle(pair, r);
    for (int i = 0; i < n_alone; i++) {
        struct answer a;
        need_base(plain, pair[i] / 2, pair[i] % 2);
        collect(submit(e, pair[i] / 2, pair[i] % 2), &a);
        compare(&a, pair[i] / 2, pair[i] % 2, name);
    }
    shuffle(pair, r);
    for (int at = 0; at < n_batched;) {
        int want = 2 + test_below(r, 15), n = FST_MIN(want, n_batched - at);
        fst_request *req[16];
        for (int i = 0; i < n; i++)
            need_base(plain, pair[at + i] / 2, pair[at + i] % 2);
        for (int i = 0; i < n; i++)
            req[i] = submit(e, pair[at + i] / 2, pair[at + i] % 2);
        for (int i = 0; i < n; i++) {
            struct answer a;
            collect(req[i], &a);
            compare(&a, pair[at + i] / 2, pair[at + i] % 2, name);
        }
        at += n;
    }
    fst_engine_close(e);
}

static void test_matrix(void **state)
{
    static const int chunks[] = {1, 7, 64, 2048};
    static const char *const layouts[] = {"unified-fp8", "unified-bf16", "paged"};
    static const char *const spec[] = {"none", "dspark", "mtp"};
    struct test_rng r = {.s = 2026};
    fst_engine *plain = NULL;
    /* 5 % of 400 pairs; all; 1 % */
    int n = test_size(20, 2 * N_PROMPTS, 4);
    double length;

    (void)state;
    for (int c = 0; c < 4; c++)
        for (int l = 0; l < 3; l++)
            for (int s = 0; s < 3; s++) {
                char name[96];
                if (l == 2 && c % 2 == 0) /* the chunks between would add little */
                    continue;
                if (s == 2 && (c + l) % 2) /* nor would those of the second drafter */
                    continue;
                int threads = 1 + ((c + l + s) & 1);
                mtp = s == 2;
                snprintf(name, sizeof name, "chunk %d, %s, drafting %s, %d threads", chunks[c],
                         layouts[l], spec[s], threads);
                run_cell((struct fst_engine_opts){.kv_layout = layouts[l],
                                                  .spec_algorithm = spec[s],
                                                  .verify_mode = s == 2 ? "static" : NULL,
                                                  .chunked_prefill_size = chunks[c],
                                                  .threads = threads},
                         name, n, n, &r, &plain);
            }
    mtp = false;
    for (int block = 1; block < 5; block++) { /* shorter drafts than the checkpoint's */
        char name[32];
        snprintf(name, sizeof name, "draft block %d", block);
        run_cell((struct fst_engine_opts){.spec_block_size = block}, name, n / 4, n / 4, &r,
                 &plain);
    }
    fst_engine_close(plain);
    length = n_verify[0] ? (double)(n_accepted[0] + n_verify[0]) / (double)n_verify[0] : 0.0;
    printf("%llu answers equal; %llu verify rounds, accept length %.2f; MTP: %llu, %llu accepted\n",
           (unsigned long long)n_cells, (unsigned long long)n_verify[0], length,
           (unsigned long long)n_verify[1], (unsigned long long)n_accepted[1]);
    /* A drafter that is never right would make all this prove little. */
    assert_true(length > 1.5);
    assert_true(n_verify[1] > 0);
}

/* FP8 index keys choose other entries than FP4 ones, so they have a base answer of their own; for it
 * too drafting, chunks and neighbours change nothing. */
static void test_index_keys(void **state)
{
    struct fst_engine_opts o = {.index_keys = "fp8", .spec_algorithm = "none", .threads = 1};
    struct test_rng r = {.s = 5};
    fst_engine *a = open_engine(o), *b;
    int n = test_size(8, 60, 2);

    (void)state;
    b = open_engine((struct fst_engine_opts){.index_keys = "fp8", .chunked_prefill_size = 50});
    for (int i = 0; i < n; i++) {
        static struct answer one, two;
        int prompt = 7 * test_below(&r, N_PROMPTS / 7) + 3, temp = i & 1; /* the long ones */
        fst_request *other = submit(b, test_below(&r, N_PROMPTS), 1),
                    *mine = submit(b, prompt, temp);
        collect(submit(a, prompt, temp), &one);
        collect(mine, &two);
        fst_request_free(other);
        assert_memory_equal(&one, &two, sizeof one);
    }
    fst_engine_close(a);
    fst_engine_close(b);
}

/* Pages for three long requests, ten of them running: prompts just below a page border that all
 * cross two borders while they decode.  The youngest lose their place, wait, and resume; what they
 * give is what they give alone. */
static void test_retraction(void **state)
{
    enum { N = 10, LONG = 300 };
    static int32_t want_ids[N][LONG], ids[N][256];
    static float want_logprobs[N][LONG];
    fst_engine *e = open_engine((struct fst_engine_opts){.spec_algorithm = "none", .threads = 1});
    struct fst_engine_stats s;
    struct test_rng r = {.s = 77};

    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        fst_request *req[N];
        if (pass) {
            fst_engine_close(e);
            e = open_engine((struct fst_engine_opts){
                .context_length = 1024, .max_total_tokens = 2560, .max_running_requests = N});
        }
        for (int i = 0; i < N; i++) {
            struct fst_request_opts o;
            int n = 236 + 2 * i;
            for (int k = 0; k < n && !pass; k++)
                ids[i][k] = prompts[7 * i + 3].id[k % (int)prompts[7 * i + 3].n];
            fst_request_opts_default(&o);
            o.ids = ids[i];
            o.n_ids = (size_t)n;
            o.max_new_tokens = LONG;
            o.ignore_eos = true;
            o.logprobs = true;
            o.sampling.temperature = (float)(i & 1);
            o.sampling.has_seed = true;
            o.sampling.seed = (uint64_t)i;
            if (fst_request_submit(e, &o, &req[i]) < 0)
                fail_msg("%s", fst_error_text());
            if (!pass) /* alone */
                assert_int_equal(fst_request_wait(req[i], 600), FST_OK);
            else if (test_below(&r, 2))
                usleep(2000);
        }
        for (int i = 0; i < N; i++) {
            struct fst_request_view v;
            assert_int_equal(fst_request_wait(req[i], 600), FST_OK);
            fst_request_get_view(req[i], &v);
            assert_int_equal(v.finish, FST_FINISH_LENGTH);
            assert_int_equal(v.n, LONG);
            if (!pass) {
                memcpy(want_ids[i], v.ids, sizeof want_ids[i]);
                memcpy(want_logprobs[i], v.logprobs, sizeof want_logprobs[i]);
            }
            assert_memory_equal(v.ids, want_ids[i], sizeof want_ids[i]);
            assert_memory_equal(v.logprobs, want_logprobs[i], sizeof want_logprobs[i]);
            fst_request_free(req[i]);
        }
    }
    fst_engine_get_stats(e, &s);
    assert_int_equal(s.slots_used, 0);
    assert_int_equal(s.kv_tokens_used, 0);
    assert_true(s.retracted > 0);
    assert_true(s.resumed_tokens > 0);
    fst_engine_close(e);
    printf("%llu times a request lost its place and resumed, %llu tokens kept\n",
           (unsigned long long)s.retracted, (unsigned long long)s.resumed_tokens);
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
    for (int i = 0; i < N_PROMPTS; i++)
        prompt_make(t, 1, i, &prompts[i]);
    tokenizer_free(t);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    for (int i = 0; i < N_PROMPTS; i++)
        tokenizer_ids_release(&prompts[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_matrix),
                                       cmocka_unit_test(test_index_keys),
                                       cmocka_unit_test(test_retraction)};
    return cmocka_run_group_tests(tests, load, unload);
}
