/* prop_engine_text_mtp.c - what an MTP block drafts follows from the tokens alone.
 *
 * Equal answers cannot show it: a drafter whose window or streams are wrong drafts badly, and nobody is told.  So
 * every draft is compared with the one that stands behind the same tokens in a run that is alone, cold and
 * drafts behind every token: in any chunks, layouts and batches, with rounds skipped at random, behind prefix hits, in
 * requests that lose their place, with fewer steps. */
#include "base/hash.h"
#include "engine/draft.h"
#include "support/engine.h"
#include "support/prompts.h"

enum {
    N_PROMPTS = 12,
    MAX_NEW = 40,
    CONTEXT = 1024,
    STEPS = 3,
    PLACES = 1 << 14,
    ROOM = 700,
    N_LONG = 9,
    LONG = 280
};

static struct tokenizer_ids prompts[N_PROMPTS];
static const char *model_dir = "models/kindling";

/* ------------------------------------------------------------------ drafts by the ids before them */

static struct place {
    uint64_t key;
    int n;
    int32_t draft[STEPS];
} places[PLACES];
static bool recording;
static uint64_t n_same, n_unknown;

static void saw(void *ud, const int32_t *ids, int64_t n_prompt, int64_t n_known, int32_t *draft,
                int n)
{
    uint64_t key = hash64(ids, (size_t)n_known * sizeof *ids, (uint64_t)n_prompt) | 1;
    struct place *p = &places[key % PLACES];
    (void)ud;
    while (p->key && p->key != key)
        p = p == places + PLACES - 1 ? places : p + 1;
    if (!p->key && recording) {
        p->key = key;
        p->n = n;
        memcpy(p->draft, draft, (size_t)n * sizeof *draft);
    }
    if (!p->key) {
        n_unknown++;
        return;
    }
    for (int k = 0; k < n && k < p->n; k++) {
        if (draft[k] != p->draft[k])
            fail_msg("behind %lld tokens draft %d is %d, elsewhere %d", (long long)n_known, k,
                     draft[k], p->draft[k]);
        n_same++;
    }
}

/* Half of a stretch of rounds does not draft, the others blocks of any length. */
static int any_drafting(void *ud, int64_t n_committed, int gamma)
{
    return n_committed / 3 % 2 ? test_below(ud, gamma + 1) : 0;
}

/* ------------------------------------------------------------------ requests */

static fst_engine *open_engine(struct fst_engine_opts o)
{
    o.spec_algorithm = "mtp";
    if (!o.verify_mode)
        o.verify_mode = "static";
    return engine_of_test(o, model_dir, CONTEXT, 9);
}

/* Every draft depends on how its request is drawn too, so that is the prompt's. */
static fst_request *submit(fst_engine *e, int prompt, const int32_t *ids, size_t n, int max_new)
{
    struct fst_request_opts o;
    fst_request *r;

    fst_request_opts_default(&o);
    o.ids = ids;
    o.n_ids = n;
    o.max_new_tokens = max_new;
    o.ignore_eos = true;
    o.sampling.temperature = (float)(prompt % 2);
    o.sampling.has_seed = true;
    o.sampling.seed = (uint64_t)prompt * 7 + 1;
    if (fst_request_submit(e, &o, &r) < 0)
        fail_msg("%s", fst_error_text());
    return r;
}

struct turn {
    int32_t ids[ROOM];
    size_t n;
};

/* Returns the prompt tokens that came from the cache; next: the prompt, its answer and a few ids. */
static size_t collect(fst_request *r, struct turn *next)
{
    struct fst_request_view v;
    engine_finished(r, &v);
    if (next) {
        memcpy(next->ids + next->n, v.ids, v.n * sizeof *v.ids);
        next->n += v.n;
        for (int i = 0; i < 5; i++)
            next->ids[next->n++] = 30 + i;
    }
    size_t cached = v.n_cached;
    fst_request_free(r);
    return cached;
}

static struct turn turns[N_PROMPTS]; /* a second turn of each prompt */
static struct turn borders[N_LONG];  /* requests that begin in front of a page's end */

static void verify_nothing(void *ud, const int32_t *draft, struct spec_ask *ask)
{
    (void)ud;
    (void)draft;
    ask->n = 0;
}

/* Each request alone, and its drafts behind every token. */
static void record(void)
{
    fst_engine *e = open_engine((struct fst_engine_opts){
        .verify_mode = "compact", .disable_prefix_cache = true, .chunked_prefill_size = 64});
    draft_seams.length = verify_nothing;
    recording = true;
    for (int i = 0; i < N_PROMPTS; i++) {
        memcpy(turns[i].ids, prompts[i].id, prompts[i].n * sizeof *turns[i].ids);
        turns[i].n = prompts[i].n;
        collect(submit(e, i, prompts[i].id, prompts[i].n, MAX_NEW), &turns[i]);
        collect(submit(e, i, turns[i].ids, turns[i].n, MAX_NEW), NULL);
    }
    for (int i = 0; i < N_LONG; i++) {
        borders[i].n = (size_t)(236 + 2 * i);
        for (size_t k = 0; k < borders[i].n; k++)
            borders[i].ids[k] = turns[i].ids[k % turns[i].n];
        collect(submit(e, i, borders[i].ids, borders[i].n, LONG), NULL);
    }
    recording = false;
    draft_seams.length = NULL;
    fst_engine_close(e);
}

static void run(const char *what, struct fst_engine_opts o, int batch, bool hits)
{
    fst_engine *e = open_engine(o);
    size_t cached = 0;
    uint64_t before = n_same;

    for (int pass = 0; pass <= hits; pass++)
        for (int second = 0; second < 2; second++)
            for (int at = 0; at < N_PROMPTS; at += batch) {
                int n = FST_MIN(batch, N_PROMPTS - at);
                fst_request *r[N_PROMPTS];
                for (int i = 0; i < n; i++)
                    r[i] = second
                               ? submit(e, at + i, turns[at + i].ids, turns[at + i].n, MAX_NEW)
                               : submit(e, at + i, prompts[at + i].id, prompts[at + i].n, MAX_NEW);
                for (int i = 0; i < n; i++)
                    cached += collect(r[i], NULL);
            }
    struct fst_engine_stats s;
    fst_engine_get_stats(e, &s);
    fst_engine_close(e);
    printf("%s: %llu drafts equal, %zu tokens cached, %llu rows held and %llu taken up\n", what,
           (unsigned long long)(n_same - before), cached, (unsigned long long)s.held_rows,
           (unsigned long long)s.resumed_rows);
    assert_true(n_same > before);
    assert_true((cached > 0) == hits);
}

static void test_drafts(void **state)
{
    static const int chunks[] = {1, 7, 2048};
    static const char *const layouts[] = {"unified-bf16", "paged", "unified-fp8"};
    struct test_rng r = {.s = 3};
    int most = test_size(3, 3, 1);

    (void)state;
    draft_seams = (struct draft_seams){.drafts = saw, .ud = &r};
    record();
    for (int i = 0; i < most; i++) {
        char what[64];
        snprintf(what, sizeof what, "chunks of %d, %s, %d together", chunks[i], layouts[i],
                 1 + 4 * i);
        run(what,
            (struct fst_engine_opts){.kv_layout = layouts[i],
                                     .chunked_prefill_size = chunks[i],
                                     .disable_prefix_cache = true},
            1 + 4 * i, false);
    }
    run("hits", (struct fst_engine_opts){0}, 1, true);
    run("hits together, two steps", (struct fst_engine_opts){.spec_num_steps = 2}, 6, true);
    run("compact, one step",
        (struct fst_engine_opts){.verify_mode = "compact", .spec_num_steps = 1}, 4, true);
    draft_seams.drafting = any_drafting;
    run("rounds skipped",
        (struct fst_engine_opts){.verify_mode = "auto", .disable_prefix_cache = true}, 5, false);
    run("rounds skipped, hits", (struct fst_engine_opts){.verify_mode = "auto"}, 3, true);
    draft_seams = (struct draft_seams){0};
    printf("%llu drafts equal, %llu behind tokens that nobody else had\n",
           (unsigned long long)n_same, (unsigned long long)n_unknown);
    assert_int_equal(n_unknown, 0);
}

/* Pages for a few, all of them running: the youngest lose their place and begin again where they were. */
static void test_retraction(void **state)
{
    struct fst_engine_stats s;
    fst_request *r[N_LONG];

    (void)state;
    draft_seams = (struct draft_seams){.drafts = saw};
    fst_engine *e = open_engine((struct fst_engine_opts){.max_total_tokens = 2048});
    uint64_t before = n_same;
    for (int i = 0; i < N_LONG; i++)
        r[i] = submit(e, i, borders[i].ids, borders[i].n, LONG);
    for (int i = 0; i < N_LONG; i++)
        collect(r[i], NULL);
    fst_engine_get_stats(e, &s);
    fst_engine_close(e);
    draft_seams = (struct draft_seams){0};
    printf("%llu drafts equal, %llu times a place was lost\n",
           (unsigned long long)(n_same - before), (unsigned long long)s.retracted);
    assert_true(n_same > before);
    assert_true(s.retracted > 0);
    assert_int_equal(n_unknown, 0);
}

static int load(void **state)
{
    struct tokenizer *t;
    int n = 0;

    (void)state;
    if (tokenizer_load(&t, "models/kindling/tokenizer.json") < 0) {
        print_error("%s\n", fst_error_text());
        return -1;
    }
    for (int i = 0; n < N_PROMPTS; i++) {
        struct tokenizer_ids p = {0};
        prompt_make(t, 3, i, &p);
        if (p.n + 2 * MAX_NEW + 10 < ROOM)
            prompts[n++] = p;
        else
            tokenizer_ids_release(&p);
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drafts),
                                       cmocka_unit_test(test_retraction)};
    return cmocka_run_group_tests(tests, load, unload);
}
