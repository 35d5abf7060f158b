/* prefixes.h - answers of an engine that keeps prefixes, compared with those of one that keeps nothing.
 *
 * On the bundled model; the cold engine computes every prompt whole, alone, drafting off.  Ids, bits of
 * log-probabilities, finish reason and counts must be equal. */
#ifndef TESTS_SUPPORT_PREFIXES_H
#define TESTS_SUPPORT_PREFIXES_H

#include <unistd.h>

#include "support/engine.h"
#include "support/prompts.h"

enum { CONTEXT = 3072, MAX_NEW = 24, STREAM = 2600 };

struct answer {
    int32_t ids[MAX_NEW];
    float logprobs[MAX_NEW];
    size_t n;
    enum fst_finish finish;
    int32_t matched;
};
static struct fst_spec_stats last_spec; /* of the last answer that was collected */

static int32_t stream[STREAM]; /* tokens of mixed prompts, one after the other */
static const char *model_dir = "models/kindling";
static fst_engine *cold;

/* Whole blocks in every round, so that what is accepted can be compared too. */
static inline fst_engine *open_engine(struct fst_engine_opts o)
{
    if (!o.verify_mode)
        o.verify_mode = "static";
    return engine_of_test(o, model_dir, CONTEXT, 8);
}

static size_t preamble; /* of requests that are submitted */

static inline fst_request *submit(fst_engine *e, const int32_t *ids, int n, int max_new,
                                  uint64_t salt)
{
    struct fst_request_opts o;
    fst_request *r;

    fst_request_opts_default(&o);
    o.n_preamble = preamble;
    o.ids = ids;
    o.n_ids = (size_t)n;
    o.max_new_tokens = max_new;
    o.sampling.temperature = (float)(n % 2);
    o.sampling.has_seed = true;
    o.sampling.seed = (uint64_t)n * 31 + 7;
    o.ignore_eos = true;
    o.logprobs = true;
    o.cache_salt[0] = salt;
    o.report_prefix = n % 3 == 0;
    if (fst_request_submit(e, &o, &r) < 0)
        fail_msg("%d ids: %s", n, fst_error_text());
    return r;
}

/* Its answer; returns how many prompt tokens were cached. */
static inline size_t collect(fst_request *r, struct answer *a)
{
    struct fst_request_view v;

    engine_finished(r, &v);
    memset(a, 0, sizeof *a);
    a->n = v.n;
    a->finish = v.finish;
    a->matched = v.matched_id;
    memcpy(a->ids, v.ids, v.n * sizeof *v.ids);
    memcpy(a->logprobs, v.logprobs, v.n * sizeof *v.logprobs);
    size_t cached = v.n_cached;
    last_spec = v.spec;
    assert_true(cached < v.n_prompt);
    fst_request_free(r);
    return cached;
}

static inline size_t ask(fst_engine *e, const int32_t *ids, int n, int max_new, struct answer *a)
{
    return collect(submit(e, ids, n, max_new, 0), a);
}

static inline void compare(const struct answer *got, const int32_t *ids, int n, int max_new,
                           const char *what)
{
    struct answer want;
    ask(cold, ids, n, max_new, &want);
    for (size_t i = 0; i < got->n && i < want.n; i++)
        if (got->ids[i] != want.ids[i] ||
            memcmp(&got->logprobs[i], &want.logprobs[i], sizeof(float)) != 0)
            fail_msg("%s, prompt of %d: token %zu is %d (%.9g), cold %d (%.9g)", what, n, i,
                     got->ids[i], (double)got->logprobs[i], want.ids[i], (double)want.logprobs[i]);
    assert_memory_equal(got, &want, sizeof want);
}

enum { CROWD = 8 };

/* As many requests at once: of several streams, cut at several places; some are given up, the others' answers are
 * the cold ones. */
static inline void crowd(fst_engine *e, struct test_rng *r)
{
    fst_request *req[CROWD];
    int first[CROWD], len[CROWD];
    for (int i = 0; i < CROWD; i++) {
        first[i] = 256 * test_below(r, 3);
        len[i] = 100 + 40 * test_below(r, 18);
        req[i] = submit(e, stream + first[i], len[i], MAX_NEW, 0);
    }
    for (int i = 0; i < CROWD; i++) {
        struct answer a;
        if (test_below(r, 4) == 0) {
            usleep((useconds_t)test_below(r, 20000));
            fst_request_free(req[i]);
            continue;
        }
        collect(req[i], &a);
        compare(&a, stream + first[i], len[i], MAX_NEW, "few pages");
    }
}

static const struct {
    const char *name;
    struct fst_engine_opts o;
} cells[] = {
    {"drafting, fp8 rows", {.chunked_prefill_size = 512}},
    {"no drafting, fp8 rows, chunks of 7", {.spec_algorithm = "none", .chunked_prefill_size = 7}},
    {"drafting, bf16 rows, chunks of 64",
     {.kv_layout = "unified-bf16", .chunked_prefill_size = 64}},
    {"drafting, paged rows, chunks of 100", {.kv_layout = "paged", .chunked_prefill_size = 100}},
    {"drafts of two, fp8 rows", {.spec_block_size = 2}},
    {"MTP, fp8 rows", {.spec_algorithm = "mtp"}},
    {"two MTP steps, bf16 rows, chunks of 64",
     {.spec_algorithm = "mtp",
      .spec_num_steps = 2,
      .kv_layout = "unified-bf16",
      .chunked_prefill_size = 64}},
};

static inline fst_engine *cold_of(const struct fst_engine_opts *o)
{
    fst_engine_close(cold);
    return cold = open_engine((struct fst_engine_opts){.kv_layout = o->kv_layout,
                                                       .index_keys = o->index_keys,
                                                       .spec_algorithm = "none",
                                                       .disable_prefix_cache = true});
}

static inline int load(void **state)
{
    struct tokenizer *t;
    char path[256];
    int n = 0;

    (void)state;
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir);
    if (tokenizer_load(&t, path) < 0) {
        print_error("%s\n", fst_error_text());
        return -1;
    }
    for (int i = 0; n < STREAM; i++) {
        struct tokenizer_ids p = {0};
        prompt_make(t, 1, i, &p);
        for (size_t k = 0; k < p.n && n < STREAM; k++)
            stream[n++] = p.id[k];
        tokenizer_ids_release(&p);
    }
    tokenizer_free(t);
    return 0;
}

static inline int unload(void **state)
{
    (void)state;
    fst_engine_close(cold);
    return 0;
}

#endif
