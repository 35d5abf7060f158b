/* prop_engine_text_cover.c - every pair of choices somewhere: a covering array over
 *
 *   option of a request x way of drafting x requests at once x chunk of prefill x KV layout x prefix known or not
 *
 * A cell is a batch whose first request has the cell's option and whose others have any, so that one step mixes
 * verify blocks of different lengths, prefill chunks and requests that do not draft.  Every answer must equal, bit
 * for bit in ids and log-probabilities, the one that its request gives alone, without drafts, cold.
 *
 * CI runs 400 cells, which cover all pairs (asserted), long 20,000, sanitizers 12.  Whatever option comes next
 * is one more entry of `options`. */
#include "chat/watch.h"
#include "engine/draft.h"
#include "support/engine.h"
#include "support/prompts.h"

enum { N_PROMPTS = 9, MAX_NEW = 10, CONTEXT = 512, BATCH_MAX = 33, N_TOP = 3 };

static const char *model_dir = "models/kindling";
static struct tokenizer_ids prompts[N_PROMPTS];
static int32_t stop_ids[2];

/* ------------------------------------------------------------------ factors */

static const char *const options[] = {"greedy",       "ignore_eos", "min_tokens",      "stop_ids",
                                      "seed",         "top_p",      "top_k",           "min_p",
                                      "top_logprobs", "choice",     "prompt_logprobs", "one_token",
                                      "no_drafting",  "penalties",  "logit_bias",      "force_ids",
                                      "watched",      "retracted",  "everything",      "chat"};

static const struct way {
    const char *name, *mode;
    int block;
    bool harm, mtp;
} ways[] = {{"none", NULL, 0, false, false},         {"static", "static", 0, false, false},
            {"cap", "cap", 0, false, false},         {"compact", "compact", 0, false, false},
            {"auto", "auto", 0, false, false},       {"block 1", "static", 1, false, false},
            {"block 3", "compact", 3, false, false}, {"harm", "auto", 0, true, false},
            {"harm cap", "cap", 0, true, false},     {"mtp", "static", 0, false, true},
            {"mtp auto", "auto", 0, false, true},    {"mtp compact", "compact", 2, false, true},
            {"mtp harm", "auto", 0, true, true}};

static const int batches[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33};
static const int chunks[] = {1, 7, 64, 2048};
static const char *const layouts[] = {"unified-fp8", "unified-bf16", "paged"};

enum { OPTION, WAY, BATCH, CHUNK, LAYOUT, HIT, FACTORS, LEVELS_MAX = 20 };
static const int n_levels[FACTORS] = {FST_COUNT(options), FST_COUNT(ways),    FST_COUNT(batches),
                                      FST_COUNT(chunks),  FST_COUNT(layouts), 2};

struct cell {
    int at[FACTORS];
};

/* ------------------------------------------------------------------ covering */

static bool covered[FACTORS][FACTORS][LEVELS_MAX][LEVELS_MAX];

static int new_pairs(const struct cell *c, bool take)
{
    int n = 0;
    for (int f = 0; f < FACTORS; f++)
        for (int g = f + 1; g < FACTORS; g++) {
            bool *x = &covered[f][g][c->at[f]][c->at[g]];
            n += !*x;
            *x |= take;
        }
    return n;
}

static int n_pairs(void)
{
    int n = 0;
    for (int f = 0; f < FACTORS; f++)
        for (int g = f + 1; g < FACTORS; g++)
            n += n_levels[f] * n_levels[g];
    return n;
}

/* Of some random cells the one with most new pairs.  Returns how many pairs are covered then. */
static int pick(struct cell *out, struct test_rng *r)
{
    static int n_covered;
    int most = -1;
    for (int t = 0; t < 200; t++) {
        struct cell c;
        for (int f = 0; f < FACTORS; f++)
            c.at[f] = test_below(r, n_levels[f]);
        int n = new_pairs(&c, false);
        if (n > most) {
            most = n;
            *out = c;
        }
    }
    return n_covered += new_pairs(out, true);
}

/* Cells of one engine next to each other. */
static int by_engine(const void *a, const void *b)
{
    static const int order[] = {LAYOUT, CHUNK, WAY, HIT, BATCH, OPTION};
    const struct cell *x = a, *y = b;
    for (int i = 0; i < FACTORS; i++)
        if (x->at[order[i]] != y->at[order[i]])
            return x->at[order[i]] - y->at[order[i]];
    return 0;
}

/* ------------------------------------------------------------------ requests */

struct answer {
    bool have;
    int32_t ids[MAX_NEW];
    float logprobs[MAX_NEW], prompt_logprobs[CONTEXT];
    struct fst_top_logprob top[MAX_NEW * N_TOP];
    size_t n, n_prompt;
    enum fst_finish finish;
    int32_t matched;
};
static struct answer base[N_PROMPTS][FST_COUNT(options)];

static bool is(int option, const char *name)
{
    return strcmp(options[option], name) == 0;
}

/* As a budget, a stop and a guard would: an id is forced, and the end follows from the ids. */
static struct fst_verdict on_token(void *ud, int64_t n, int32_t id, enum fst_finish ends)
{
    struct fst_verdict v = {.force = n == 3 ? 80 : -1, .stop = n > 5 && id % 3 == 0, .keep = n};

    (void)ud;
    (void)ends;
    return v;
}

/* A server's: thoughts of two tokens, then a stop string, and loops.  A watcher lives as long as its request: of so
 * many none is left when its place is wanted again. */
static struct chat_watch *watchers[2 * BATCH_MAX];
static struct tokenizer *tok;

static struct fst_verdict on_text(void *ud, int64_t n, int32_t id, enum fst_finish ends)
{
    struct chat_watch_verdict v = chat_watch_feed(ud, id,
                                                  ends == FST_FINISH_STOP     ? CHAT_WATCH_STOP_ID
                                                  : ends == FST_FINISH_LENGTH ? CHAT_WATCH_LENGTH
                                                                              : CHAT_WATCH_GOES_ON);
    (void)n;
    return (struct fst_verdict){.force = v.force, .stop = v.stop, .keep = (int64_t)v.keep};
}

static void watch_text(struct fst_request_opts *o)
{
    static const struct chat_str stops[] = {{"e", 1}, {"\n", 1}};
    static size_t at;
    struct chat_watch_opts w = {.stream = {.kind = CHAT_STREAM_CHAT,
                                           .tokenizer = tok,
                                           .stops = stops,
                                           .n_stops = FST_COUNT(stops)},
                                .budget = 2,
                                .loops = true};
    struct chat_watch **place = &watchers[at++ % FST_COUNT(watchers)];

    w.stream.parser.start = CHAT_START_REASONING;
    w.stream.parser.tools_on = true;
    chat_watch_free(*place);
    assert_int_equal(chat_watch_new(place, &w), FST_OK);
    o->on_token = on_text;
    o->on_token_ud = *place;
}

/* Sampled, so that drafts are rejected at all places. */
static void add_rules(struct fst_request_opts *o, int option)
{
    static const struct fst_logit_bias bias[] = {{1, -100}, {80, 6}, {81, 6}, {300, -3}};
    static const int32_t forced[] = {90, 91, 92, 93};
    bool all = is(option, "everything");

    if (all) {
        o->sampling.top_p = 0.9f;
        o->min_new_tokens = 5;
        o->stop_ids = stop_ids;
        o->n_stop_ids = 2;
        o->top_logprobs = N_TOP;
    }
    if (all || is(option, "penalties") || is(option, "retracted")) {
        o->sampling.temperature = 0.8f;
        o->sampling.presence_penalty = 1;
        o->sampling.frequency_penalty = 0.5f;
        o->sampling.repetition_penalty = 1.3f;
    }
    if (all || is(option, "logit_bias") || is(option, "watched")) {
        o->logit_bias = bias;
        o->n_logit_bias = FST_COUNT(bias);
    }
    if (is(option, "force_ids")) {
        o->force_ids = forced;
        o->n_force_ids = FST_COUNT(forced);
    }
    if (all || is(option, "watched") || is(option, "retracted"))
        o->on_token = on_token;
    if (is(option, "chat"))
        watch_text(o);
    if (all || is(option, "retracted") || is(option, "chat"))
        o->debug_retract_at = 4;
}

static fst_request *submit(fst_engine *e, int prompt, int option, uint64_t salt)
{
    struct fst_request_opts o;
    fst_request *r;

    fst_request_opts_default(&o);
    o.ids = prompts[prompt].id;
    o.n_ids = prompts[prompt].n;
    o.max_new_tokens = is(option, "one_token") ? 1 : MAX_NEW - prompt % 4;
    o.sampling.temperature = 0;
    o.sampling.has_seed = true;
    o.sampling.seed = 40 + (uint64_t)prompt;
    o.cache_salt[0] = salt;
    o.logprobs = true;
    o.ignore_eos = is(option, "ignore_eos");
    o.no_drafting = is(option, "no_drafting");
    if (is(option, "min_tokens"))
        o.min_new_tokens = 7;
    if (is(option, "stop_ids")) {
        o.stop_ids = stop_ids;
        o.n_stop_ids = 2;
    }
    if (is(option, "seed") || is(option, "choice"))
        o.sampling.temperature = 1;
    if (is(option, "choice"))
        o.sampling.choice = 3;
    if (is(option, "top_p") || is(option, "top_k") || is(option, "min_p"))
        o.sampling.temperature = 0.7f;
    if (is(option, "top_p"))
        o.sampling.top_p = 0.8f;
    if (is(option, "top_k"))
        o.sampling.top_k = 4;
    if (is(option, "min_p"))
        o.sampling.min_p = 0.1f;
    if (is(option, "top_logprobs"))
        o.top_logprobs = N_TOP;
    if (is(option, "prompt_logprobs"))
        o.prompt_logprobs_from = 2;
    add_rules(&o, option);
    if (fst_request_submit(e, &o, &r) < 0)
        fail_msg("%s", fst_error_text());
    return r;
}

/* Returns the prompt tokens that came from the cache. */
static size_t collect(fst_request *r, struct answer *a)
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
    if (v.top)
        memcpy(a->top, v.top, v.n * N_TOP * sizeof *v.top);
    for (size_t i = 2; v.prompt_logprobs && i < v.n_prompt; i++)
        a->prompt_logprobs[i] = v.prompt_logprobs[i];
    size_t cached = v.n_cached;
    fst_request_free(r);
    return cached;
}

static fst_engine *plain;

static const struct answer *truth(int prompt, int option)
{
    struct answer *a = &base[prompt][option];
    if (a->have)
        return a;
    if (!plain)
        plain = engine_of_test((struct fst_engine_opts){.spec_algorithm = "none",
                                                        .threads = 1,
                                                        .debug_hooks = true,
                                                        .disable_prefix_cache = true},
                               model_dir, CONTEXT, 2);
    collect(submit(plain, prompt, option, 0), a);
    return a;
}

/* ------------------------------------------------------------------ cells */

static struct test_rng harm_rng;

static void any_length(void *ud, const int32_t *draft, struct spec_ask *ask)
{
    ask->n = draft[0] % 3 ? test_below(ud, ask->n_max + 1) : 0;
}

static int any_drafting(void *ud, int64_t n_committed, int gamma)
{
    return n_committed / 4 % 2 ? test_below(ud, gamma + 1) : 0;
}

static fst_engine *open_for(const struct cell *c)
{
    const struct way *w = &ways[c->at[WAY]];
    draft_seams = (struct draft_seams){.ud = &harm_rng};
    if (w->harm) {
        draft_seams.length = any_length;
        draft_seams.drafting = any_drafting;
    }
    return engine_of_test((struct fst_engine_opts){.kv_layout = layouts[c->at[LAYOUT]],
                                                   .spec_algorithm = w->mtp    ? "mtp"
                                                                     : w->mode ? "dspark"
                                                                               : "none",
                                                   .verify_mode = w->mode,
                                                   .spec_block_size = w->mtp ? 0 : w->block,
                                                   .spec_num_steps = w->mtp ? w->block : 0,
                                                   .chunked_prefill_size = chunks[c->at[CHUNK]],
                                                   .check_memory = c->at[CHUNK] == 2,
                                                   .debug_hooks = true,
                                                   .threads = 1 + c->at[CHUNK] % 2},
                          model_dir, CONTEXT, BATCH_MAX);
}

static void run_cell(fst_engine *e, const struct cell *c, struct test_rng *r, uint64_t salt)
{
    int n = batches[c->at[BATCH]], prompt[BATCH_MAX], option[BATCH_MAX];
    fst_request *req[BATCH_MAX];
    static struct answer got;

    for (int i = 0; i < n; i++) {
        prompt[i] = test_below(r, N_PROMPTS);
        option[i] = i ? test_below(r, FST_COUNT(options)) : c->at[OPTION];
        truth(prompt[i], option[i]);
    }
    for (int pass = 0; pass <= c->at[HIT]; pass++) {
        for (int i = 0; i < n; i++) /* cold: nobody shares */
            req[i] = submit(e, prompt[i], option[i], c->at[HIT] ? salt : salt + (uint64_t)i);
        for (int i = 0; i < n; i++) {
            const struct answer *want = truth(prompt[i], option[i]);
            size_t cached = collect(req[i], &got);
            if (memcmp(&got, want, sizeof got) != 0) {
                size_t k = 0;
                while (k < got.n && k < want->n && got.ids[k] == want->ids[k] &&
                       memcmp(&got.logprobs[k], &want->logprobs[k], sizeof(float)) == 0)
                    k++;
                fail_msg("%s of %d, %s, chunk %d, %s, %s: prompt %d (%zu tokens) with %s differs "
                         "from token "
                         "%zu on (of %zu and %zu), finish %d and %d",
                         ways[c->at[WAY]].name, n, options[c->at[OPTION]], chunks[c->at[CHUNK]],
                         layouts[c->at[LAYOUT]], pass ? "hit" : "cold", prompt[i],
                         prompts[prompt[i]].n, options[option[i]], k, got.n, want->n, got.finish,
                         want->finish);
            }
            if (!c->at[HIT])
                assert_int_equal(cached, 0);
            else if (pass && !is(option[i], "prompt_logprobs"))
                assert_true(cached > 0);
        }
    }
}

static void test_cover(void **state)
{
    int n = test_size(400, 20000, 12), pairs = 0;
    struct cell *cell = calloc((size_t)n, sizeof *cell);
    struct test_rng r = {.s = 7};
    uint64_t salt = 1, verified = 0, skipped = 0;
    fst_engine *e = NULL;

    (void)state;
    assert_non_null(cell);
    for (int i = 0; i < n; i++)
        pairs = pick(&cell[i], &r);
    if (n >= 400)
        assert_int_equal(pairs, n_pairs());
    qsort(cell, (size_t)n, sizeof *cell, by_engine);
    for (int i = 0; i < n; i++) {
        bool other = i == 0 || cell[i].at[WAY] != cell[i - 1].at[WAY] ||
                     cell[i].at[CHUNK] != cell[i - 1].at[CHUNK] ||
                     cell[i].at[LAYOUT] != cell[i - 1].at[LAYOUT];
        if (other) {
            fst_engine_close(e);
            e = open_for(&cell[i]);
        }
        run_cell(e, &cell[i], &r, salt);
        salt += BATCH_MAX;
        if (i + 1 == n || (i % 20 == 0)) {
            struct fst_engine_stats s;
            fst_engine_get_stats(e, &s);
            verified += s.spec.verify_steps;
            for (int k = 0; k < FST_SPEC_SKIPS; k++)
                skipped += s.spec_skipped[k];
        }
    }
    fst_engine_close(e);
    fst_engine_close(plain);
    free(cell);
    draft_seams = (struct draft_seams){0};
    printf("%d cells, %d of %d pairs\n", n, pairs, n_pairs());
    assert_true(verified > 0);
    assert_true(n < 400 || skipped > 0); /* a few cells may all draft */
}

static int load(void **state)
{
    char path[256];
    int n = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir);
    if (tokenizer_load(&tok, path) < 0) {
        print_error("%s\n", fst_error_text());
        return -1;
    }
    for (int i = 0; n < N_PROMPTS && i < 200; i++) {
        struct tokenizer_ids p = {0};
        prompt_make(tok, 1, i, &p);
        if (p.n >= 3 && p.n < (n % 4 == 3 ? 160 : 40))
            prompts[n++] = p;
        else
            tokenizer_ids_release(&p);
    }
    /* Ids that some answers hold. */
    if (n < N_PROMPTS)
        return -1;
    for (int i = 0; i < 2; i++) {
        const struct answer *a = truth(i, 1);
        stop_ids[i] = a->ids[a->n / 2];
    }
    return 0;
}

static int unload(void **state)
{
    (void)state;
    for (int i = 0; i < N_PROMPTS; i++)
        tokenizer_ids_release(&prompts[i]);
    for (size_t i = 0; i < FST_COUNT(watchers); i++)
        chat_watch_free(watchers[i]);
    tokenizer_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cover)};
    return cmocka_run_group_tests(tests, load, unload);
}
