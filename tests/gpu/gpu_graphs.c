/* gpu_graphs.c - recorded steps give the tokens that kernels launched one by one give, to the bit.
 *
 *     gpu_graphs [--device cuda]
 *
 * The bundled model answers the same requests with and without recordings (--disable-cuda-graph), with
 * and without drafts: greedy and drawn ones, one at a time and several together, so that many shapes of
 * steps come.  Ids and log-probabilities must be equal; printed is also what a step takes.  Run from the
 * root of the repository. */
#include "firesteel/engine.h"
#include "support/cm.h"

enum { REQUESTS = 42, TOKENS = 96, PROMPT_MAX = 3000, TOGETHER = 8 };

struct answer {
    size_t n;
    int32_t ids[TOKENS];
    float logprobs[TOKENS];
};

struct run {
    struct answer answer[REQUESTS];
    struct fst_engine_stats stats;
};

static const char *device = "cuda";

static _Noreturn void die(const char *what)
{
    printf("%s: %s\n0 passed, 1 failed, 0 skipped\n", what, fst_error_text());
    exit(fst_exit_status(FST_EMACHINE));
}

/* Mostly short prompts; every tenth goes over several steps and pages. */
static fst_request *submit(fst_engine *e, int i, int vocab)
{
    static int32_t ids[PROMPT_MAX];
    struct test_rng r = {.s = 1000003 + (uint64_t)i};
    struct fst_request_opts o;
    fst_request *out;
    fst_request_opts_default(&o);
    o.ids = ids;
    o.n_ids = (size_t)(i % 10 == 9 ? PROMPT_MAX : 5 + test_below(&r, 120));
    for (size_t k = 0; k < o.n_ids; k++)
        ids[k] = 200 + test_below(&r, vocab - 300);
    o.max_new_tokens = TOKENS;
    o.ignore_eos = true;
    o.logprobs = true;
    o.sampling.temperature = i % 2 ? 0.8f : 0;
    o.sampling.has_seed = true;
    o.sampling.seed = (uint64_t)i;
    if (fst_request_submit(e, &o, &out) < 0)
        die("submit");
    return out;
}

static void take(struct answer *a, fst_request *r)
{
    struct fst_request_view v;
    if (fst_request_wait(r, 600) < 0)
        die("wait");
    fst_request_get_view(r, &v);
    if (v.finish == FST_FINISH_ERROR) {
        printf("a request failed: %s\n0 passed, 1 failed, 0 skipped\n", v.error);
        exit(1);
    }
    a->n = v.n;
    memcpy(a->ids, v.ids, v.n * sizeof *v.ids);
    memcpy(a->logprobs, v.logprobs, v.n * sizeof *v.logprobs);
    fst_request_free(r);
}

static void run(struct run *out, const char *algorithm, bool graphs)
{
    bool mtp = strcmp(algorithm, "mtp") == 0;
    struct fst_engine_opts o = {.model_dir = mtp ? "build/kindling-mtp" : "models/kindling",
                                .device = device,
                                .spec_algorithm = algorithm,
                                .verify_mode = "static", /* the same steps in both runs */
                                .context_length = 4096,
                                .max_running_requests = TOGETHER,
                                .disable_cuda_graph = !graphs};
    struct fst_engine_info info;
    fst_engine *e;
    if (fst_engine_open(&e, &o) < 0)
        die("engine");
    fst_engine_get_info(e, &info);
    for (int at = 0, n = 1; at < REQUESTS; at += n, n = n % TOGETHER + 1) {
        fst_request *r[TOGETHER];
        for (int i = 0; i < n && at + i < REQUESTS; i++)
            r[i] = submit(e, at + i, info.vocab_size);
        for (int i = 0; i < n && at + i < REQUESTS; i++)
            take(&out->answer[at + i], r[i]);
    }
    fst_engine_get_stats(e, &out->stats);
    fst_engine_close(e);
}

static double per_step_us(uint64_t ns, uint64_t n)
{
    return n ? (double)ns / (double)n * 1e-3 : 0;
}

static void show(const char *what, const struct fst_engine_stats *s)
{
    printf("%-16s decode %.1f us a step (%llu), verify %.1f (%llu), draft %.1f (%llu); %d graphs, "
           "%llu launches; %.1f us between steps (%llu)\n",
           what, per_step_us(s->decode_ns, s->decode_steps_n),
           (unsigned long long)s->decode_steps_n, per_step_us(s->verify_ns, s->verify_steps_n),
           (unsigned long long)s->verify_steps_n, per_step_us(s->draft_ns, s->draft_steps),
           (unsigned long long)s->draft_steps, s->graphs, (unsigned long long)s->graph_launches,
           per_step_us(s->gap_ns, s->gaps), (unsigned long long)s->gaps);
}

static int same(const struct run *a, const struct run *b)
{
    int equal = 0;
    for (int i = 0; i < REQUESTS; i++) {
        const struct answer *x = &a->answer[i], *y = &b->answer[i];
        bool good = x->n == y->n && memcmp(x->ids, y->ids, x->n * sizeof *x->ids) == 0 &&
                    memcmp(x->logprobs, y->logprobs, x->n * sizeof *x->logprobs) == 0;
        if (!good)
            printf("request %d differs\n", i);
        equal += good;
    }
    return equal;
}

int main(int argc, char **argv)
{
    static const char *const algorithm[] = {"none", "dspark", "mtp"};
    static struct run plain, recorded;
    int passed = 0, failed = 0;
    if (argc == 3 && strcmp(argv[1], "--device") == 0)
        device = argv[2];
    else if (argc != 1)
        return 2;
    for (int i = 0; i < 3; i++) {
        run(&plain, algorithm[i], false);
        run(&recorded, algorithm[i], true);
        int equal = same(&plain, &recorded);
        bool used = recorded.stats.graph_launches > recorded.stats.steps / 2;
        printf("drafting %s: %d of %d requests equal\n", algorithm[i], equal, REQUESTS);
        show("  one by one", &plain.stats);
        show("  recorded", &recorded.stats);
        if (strcmp(device, "cpu") != 0 && !used)
            printf("hardly a step was recorded\n");
        used |= strcmp(device, "cpu") == 0;
        passed += equal + used;
        failed += REQUESTS - equal + !used;
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
