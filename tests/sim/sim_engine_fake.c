/* sim_engine_fake.c - the real engine, scheduler, sampler and page allocator over a model of hashes.
 *
 * The model of this file defines the functions of model.h and weights_open itself, so that the step
 * loop runs at a million rows a second and every wrong row, page or order shows: the "KV" of a
 * position is a hash of all tokens up to it, and the model asserts that the position before each
 * row was written by the same tenant of the slot.  An oracle draws every request's tokens one by
 * one without engine; ids, log-probabilities, finish and counts must be equal for any mix of
 * neighbours, chunk sizes, page shortage (the youngest gives its place back), drafts that are
 * right, wrong or mixed, cancels and deadlines. */
#include "support/cm.h"

#include <math.h>
#include <unistd.h>

#include "engine/draft.h"
#include "firesteel/engine.h"
#include "kernels/philox.h"
#include "model/model.h"
#include "sample/sample.h"
#include "weights/weights.h"

enum { VOCAB = 50, WINDOW = 16, GAMMA = 5, EOS = 1, CONTEXT = 1024, HELD = WINDOW + GAMMA };

/* ------------------------------------------------------------------ the model */

static double draft_right = 0.7; /* share of drafts that are the target's own draw */
static bool has_mtp;             /* the checkpoint has an MTP block, not DSpark */
static int nan_at = -1;          /* position whose logits hold a NaN */
static int fail_forward_at = -1; /* step number at which the model fails */
static int n_forwards;

struct model {
    struct model_opts o;
    struct model_config config;
    struct kernels ref;
    uint64_t (*hash)[CONTEXT];     /* by slot and position */
    uint32_t (*tenant)[CONTEXT];   /* generation that wrote it */
    uint64_t (*injected)[CONTEXT]; /* hash that was injected; MTP: with the token behind it */
    uint32_t (*injector)[CONTEXT];
    uint64_t (*held)[HELD]; /* hash of the position that a slot's ring holds, and who held it */
    int64_t (*held_pos)[HELD];
    uint32_t (*holder)[HELD];
    float *logits;
    int n_rows;
};

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ (h >> 29);
}

static void hash_logits(uint64_t h, float *out)
{
    for (int v = 0; v < VOCAB; v++)
        out[v] = (float)(mix(h, (uint64_t)v + 77) >> 40) * 0x1p-24f * 5.0f;
    out[EOS] -= 1.0f; /* about one token in a hundred */
}

enum fst_status weights_open(struct weights **out, const char *dir, const struct weights_opts *o)
{
    struct weights *w = mem_calloc(1, sizeof *w);
    (void)dir;
    (void)o;
    *out = NULL;
    if (!w)
        return fst_error(FST_ENOMEM, "no memory");
    w->config = (struct model_config){.model_type = "deepseek_v4",
                                      .vocab_size = VOCAB,
                                      .window = WINDOW,
                                      .max_positions = CONTEXT,
                                      .eos_id = EOS};
    w->config.has_mtp = has_mtp;
    if (!has_mtp) {
        w->config.has_dspark = w->config.confidence_head = true;
        w->config.n_stages = 3;
        w->config.gamma = GAMMA;
    }
    *out = w;
    return FST_OK;
}

uint64_t weights_digest(const struct weights *w)
{
    return (uint64_t)w->config.vocab_size;
}

enum fst_status weights_upload(struct weights *w, const struct device *d,
                               const struct weights_upload_opts *opts)
{
    (void)w;
    (void)opts;
    return fst_error(FST_EUNSUPPORTED, "no weights for %s", d->name);
}

enum fst_status weights_check_values(const struct weights *w)
{
    (void)w;
    return FST_OK;
}

void weights_free(struct weights *w)
{
    mem_free(w);
}

void model_kv_spec(const struct weights *w, bool drafting, struct kv_spec *spec)
{
    *spec = (struct kv_spec){.n_layers = 2,
                             .ratio = {4, 128},
                             .head_dim = 512,
                             .rope_dim = 64,
                             .index_dim = 128,
                             .window = w->config.window};
    (void)drafting;
}

size_t model_scratch_bytes(const struct weights *w, const struct model_opts *o, int n_threads)
{
    (void)w;
    (void)n_threads;
    return 65536 + (size_t)o->max_rows * 4096;
}

size_t model_work_bytes(const struct weights *w, const struct model_opts *o)
{
    (void)w;
    return (size_t)o->max_logits * VOCAB * sizeof(float);
}

struct model_graphs model_graphs_of(const struct model *m)
{
    (void)m;
    return (struct model_graphs){0};
}

enum fst_status model_open(struct model **out, const struct weights *w, const struct model_opts *o)
{
    struct model *m = mem_calloc(1, sizeof *m);
    size_t n = (size_t)o->max_requests + 1;
    *out = NULL;
    if (!m)
        return fst_error(FST_ENOMEM, "no memory");
    m->o = *o;
    m->config = w->config;
    kernels_init(&m->ref, 0);
    m->hash = mem_calloc(n, sizeof *m->hash);
    m->tenant = mem_calloc(n, sizeof *m->tenant);
    m->injected = mem_calloc(n, sizeof *m->injected);
    m->injector = mem_calloc(n, sizeof *m->injector);
    m->held = mem_calloc(n, sizeof *m->held);
    m->held_pos = mem_calloc(n, sizeof *m->held_pos);
    m->holder = mem_calloc(n, sizeof *m->holder);
    m->logits = mem_calloc((size_t)o->max_logits * VOCAB, sizeof *m->logits);
    n_forwards = 0;
    if (!m->held || !m->held_pos || !m->holder || !m->hash || !m->tenant || !m->injected ||
        !m->injector || !m->logits) {
        model_free(m);
        return fst_error(FST_ENOMEM, "no memory");
    }
    *out = m;
    return FST_OK;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    mem_free(m->hash);
    mem_free(m->tenant);
    mem_free(m->injected);
    mem_free(m->injector);
    mem_free(m->held);
    mem_free(m->held_pos);
    mem_free(m->holder);
    mem_free(m->logits);
    mem_free(m);
}

const struct model_config *model_config_of(const struct model *m)
{
    return &m->config;
}

int model_timings(struct model *m, const struct model_timing **out)
{
    (void)m;
    *out = NULL;
    return 0;
}

void model_timings_reset(struct model *m)
{
    (void)m;
}

enum fst_status model_forward(struct model *m, struct kv *kv, const struct rows *rows,
                              const int32_t *logit_row, int n_logits, float **logits)
{
    int next = 0;

    FST_ASSERT(rows->n_rows >= 1);
    FST_ASSERT(rows->n_rows <= m->o.max_rows);
    FST_ASSERT(n_logits <= m->o.max_logits);
    if (n_forwards++ == fail_forward_at)
        return fst_error(FST_EINTERNAL, "the model failed on purpose");
    for (int t = 0; t < rows->n_rows; t++) {
        int s = rows->slot[t], p = rows->pos[t];
        uint32_t g = kv->slots[s].generation;

        FST_ASSERT(kv->slots[s].used);
        FST_ASSERT(s > 0);
        FST_ASSERT(p < 256 * kv->slots[s].n_pages);
        FST_ASSERT(rows->pages[s * rows->page_stride + p / 256] > 0);
        if (p > 0)
            FST_ASSERT(m->tenant[s][p - 1] == g + 1); /* +1: 0 means never */
        m->hash[s][p] = mix(p ? m->hash[s][p - 1] : 12345, (uint64_t)rows->id[t]);
        m->tenant[s][p] = g + 1;
        if (next < n_logits && logit_row[next] == t) {
            float *l = m->logits + (size_t)next++ * VOCAB;
            hash_logits(m->hash[s][p], l);
            if (p == nan_at)
                l[3] = NAN;
        }
    }
    FST_ASSERT(next == n_logits);
    m->n_rows = rows->n_rows;
    *logits = m->logits;
    return FST_OK;
}

enum fst_status model_inject(struct model *m, struct kv *kv, const struct rows *rows,
                             const int32_t *row, int n)
{
    FST_ASSERT(m->config.has_dspark);
    for (int i = 0; i < n; i++) {
        int t = row[i], s = rows->slot[t], p = rows->pos[t];
        FST_ASSERT(i == 0 || row[i] > row[i - 1]);
        FST_ASSERT(t < m->n_rows);
        m->injected[s][p] = m->hash[s][p];
        m->injector[s][p] = kv->slots[s].generation + 1;
    }
    return FST_OK;
}

int model_held_rows(const struct model *m, const struct kv *kv)
{
    (void)m;
    (void)kv;
    return HELD;
}

enum fst_status model_hold(struct model *m, struct kv *kv, const struct rows *rows,
                           const int32_t *row, int n)
{
    (void)kv;
    for (int i = 0; i < n; i++) {
        int t = row[i], s = rows->slot[t], p = rows->pos[t];
        FST_ASSERT(i == 0 || row[i] > row[i - 1]);
        FST_ASSERT(t < m->n_rows);
        m->held[s][p % HELD] = m->hash[s][p];
        m->held_pos[s][p % HELD] = p;
        m->holder[s][p % HELD] = m->tenant[s][p];
    }
    return FST_OK;
}

enum fst_status model_inject_held(struct model *m, struct kv *kv, const struct model_held *held,
                                  int n)
{
    for (int i = 0; i < n; i++) {
        int s = held[i].slot;
        FST_ASSERT(held[i].to - held[i].from <= HELD);
        FST_ASSERT(held[i].to > held[i].from);
        FST_ASSERT(kv->slots[s].used);
        for (int64_t p = held[i].from; p < held[i].to; p++) {
            FST_ASSERT(m->held_pos[s][p % HELD] == p);
            FST_ASSERT(m->holder[s][p % HELD] == kv->slots[s].generation + 1);
            m->injected[s][p] = m->held[s][p % HELD];
            if (m->config.has_mtp)
                m->injected[s][p] =
                    mix(m->injected[s][p], (uint64_t)held[i].next[p - held[i].from]);
            m->injector[s][p] = kv->slots[s].generation + 1;
        }
    }
    return FST_OK;
}

static int32_t draw_one(const struct kernels *k, uint64_t hash, const struct draw_params *d,
                        uint32_t out_pos)
{
    float logits[VOCAB], lse;
    int32_t id;
    struct stream s = {0};
    struct draw_args a = {.logits = logits,
                          .draw = d,
                          .out_pos = &out_pos,
                          .id = &id,
                          .lse = &lse,
                          .n = 1,
                          .vocab = VOCAB};
    hash_logits(hash, logits);
    k->draw(&a, &s);
    return id;
}

enum fst_status model_draft(struct model *m, struct kv *kv, const struct draft_batch *b)
{
    for (int i = 0; i < b->n; i++) {
        int s = b->slot[i];
        int64_t n = b->n_committed[i];
        uint32_t g = kv->slots[s].generation;
        uint64_t h;

        FST_ASSERT(kv->slots[s].used);
        FST_ASSERT(n == kv->slots[s].n_committed);
        for (int64_t p = FST_MAX(0, n - WINDOW); p < n - m->config.has_mtp; p++) {
            FST_ASSERT(m->injector[s][p] == g + 1);
            FST_ASSERT(m->injected[s][p] == m->hash[s][p + m->config.has_mtp]);
        }
        if (m->config.has_mtp) { /* its first row is for good, the others are anything */
            FST_ASSERT(!b->conf);
            FST_ASSERT(m->held_pos[s][(n - 1) % HELD] == n - 1);
            FST_ASSERT(m->held[s][(n - 1) % HELD] == m->hash[s][n - 1]);
            FST_ASSERT(m->holder[s][(n - 1) % HELD] == g + 1);
            for (int64_t p = n - 1; p < n - 1 + b->gamma; p++) {
                m->injected[s][p] = p >= n ? 0 : mix(m->hash[s][n - 1], (uint64_t)b->anchor[i]);
                m->injector[s][p] = g + 1;
            }
        }
        h = mix(m->hash[s][n - 1], (uint64_t)b->anchor[i]);
        for (int k = 0; k < b->gamma; k++) {
            int32_t id = draw_one(&m->ref, h, &b->draw[i], b->out_pos[i] + (uint32_t)k);
            double luck = (double)(mix(h, 5) >> 11) * 0x1p-53;
            if (luck > draft_right)
                id = (id + 7) % VOCAB;
            if (b->conf) /* knows a little */
                b->conf[i * b->gamma + k] = (float)(2 * (draft_right - luck) + 0.3);
            b->ids[i * b->gamma + k] = id;
            h = mix(h, (uint64_t)id);
        }
    }
    return FST_OK;
}

/* ------------------------------------------------------------------ the oracle */

struct plan {
    int32_t prompt[CONTEXT];
    int n_prompt;
    struct fst_request_opts o;
    int32_t stop_ids[2];
    struct fst_logit_bias bias[2];
    /* expected */
    int32_t ids[CONTEXT];
    float logprobs[CONTEXT];
    int n;
    enum fst_finish finish;
};

/* Bias and penalties behind the first n tokens, by their definition. */
static void adjust(const struct plan *p, float *logits)
{
    const struct fst_sampling *s = &p->o.sampling;

    for (size_t i = 0; i < p->o.n_logit_bias; i++)
        logits[p->bias[i].id] += p->bias[i].bias;
    for (int v = 0; v < VOCAB; v++) {
        int in_prompt = 0, in_answer = 0;
        for (int i = 0; i < p->n_prompt; i++)
            in_prompt += p->prompt[i] == v;
        for (int i = 0; i < p->n; i++)
            in_answer += p->ids[i] == v;
        if (in_prompt + in_answer)
            logits[v] = logits[v] > 0 ? logits[v] / s->repetition_penalty
                                      : logits[v] * s->repetition_penalty;
        if (in_answer) {
            logits[v] -= s->frequency_penalty * (float)in_answer;
            logits[v] -= s->presence_penalty;
        }
    }
}

static void expect(struct plan *p, int64_t context)
{
    struct kernels k;
    struct stream stream = {0};
    struct sampler smp;
    struct sample_params sp = {.temperature = p->o.sampling.temperature,
                               .top_p = p->o.sampling.top_p,
                               .min_p = p->o.sampling.min_p,
                               .top_k = p->o.sampling.top_k,
                               .seed = p->o.sampling.seed,
                               .choice = p->o.sampling.choice};
    int32_t ends[3] = {EOS, p->stop_ids[0], p->stop_ids[1]};
    int64_t max = p->o.max_new_tokens < 0 ? context : p->o.max_new_tokens;
    uint64_t h = 12345;

    max = FST_MIN(max, context - p->n_prompt);
    kernels_init(&k, 0);
    assert_int_equal(sample_init(&smp, &k, &stream, VOCAB, 1, NULL, 0), FST_OK);
    for (int i = 0; i < p->n_prompt; i++)
        h = mix(h, (uint64_t)p->prompt[i]);
    p->n = 0;
    p->finish = FST_FINISH_LENGTH;
    while (p->n < max) {
        float logits[VOCAB], raw[VOCAB], lse;
        bool ban = p->n < p->o.min_new_tokens;
        struct sample_row row = {.params = &sp,
                                 .out_pos = (uint32_t)p->n,
                                 .banned = ends,
                                 .n_banned = ban ? 1 + (int)p->o.n_stop_ids : 0};
        hash_logits(h, raw);
        memcpy(logits, raw, sizeof raw);
        assert_int_equal(sample_rows(&smp, logits, &row, 1), FST_OK);
        lse = smp.lse[0];
        memcpy(logits, raw, sizeof raw);
        adjust(p, logits);
        assert_int_equal(sample_rows(&smp, logits, &row, 1), FST_OK);
        p->ids[p->n] = row.id;
        p->logprobs[p->n++] = raw[row.id] - lse;
        h = mix(h, (uint64_t)row.id);
        if (row.id == EOS && !p->o.ignore_eos)
            p->finish = FST_FINISH_STOP;
        for (size_t i = 0; i < p->o.n_stop_ids; i++)
            if (row.id == p->stop_ids[i])
                p->finish = FST_FINISH_STOP;
        if (p->finish == FST_FINISH_STOP)
            break;
    }
    sample_release(&smp);
}

static void make_plan(struct plan *p, struct test_rng *r, int64_t context)
{
    fst_request_opts_default(&p->o);
    p->n_prompt = 1 + test_below(r, test_below(r, 4) ? 40 : (int)context / 2);
    for (int i = 0; i < p->n_prompt; i++)
        p->prompt[i] = test_below(r, VOCAB);
    p->o.ids = p->prompt;
    p->o.n_ids = (size_t)p->n_prompt;
    p->o.max_new_tokens = test_below(r, 8) ? test_below(r, 120) : -1;
    p->o.min_new_tokens = test_below(r, 3) ? 0 : test_below(r, 30);
    p->o.ignore_eos = test_below(r, 4) == 0;
    p->o.sampling.temperature = test_below(r, 2) ? 0.0f : 0.3f + 0.1f * (float)test_below(r, 15);
    p->o.sampling.top_p = test_below(r, 3) ? 1.0f : 0.7f;
    p->o.sampling.top_k = test_below(r, 3) ? -1 : 1 + test_below(r, 20);
    p->o.sampling.min_p = test_below(r, 4) ? 0.0f : 0.1f;
    p->o.sampling.has_seed = true;
    p->o.sampling.seed = test_next(r);
    p->o.sampling.choice = (uint32_t)test_below(r, 3);
    if (test_below(r, 3) == 0) {
        p->o.sampling.presence_penalty = (float)test_below(r, 5) * 0.5f - 1;
        p->o.sampling.frequency_penalty = (float)test_below(r, 5) * 0.5f - 1;
        p->o.sampling.repetition_penalty = 0.5f + (float)test_below(r, 4) * 0.5f;
    }
    if (test_below(r, 4) == 0) {
        p->bias[0] = (struct fst_logit_bias){test_below(r, VOCAB / 2), 3};
        p->bias[1] = (struct fst_logit_bias){VOCAB / 2 + test_below(r, VOCAB / 2), -100};
        p->o.logit_bias = p->bias;
        p->o.n_logit_bias = 2;
    }
    p->o.logprobs = true;
    p->o.no_drafting = test_below(r, 5) == 0;
    p->stop_ids[0] = test_below(r, VOCAB);
    p->stop_ids[1] = test_below(r, VOCAB);
    p->o.stop_ids = p->stop_ids;
    p->o.n_stop_ids = test_below(r, 4) ? 0 : 2;
    expect(p, context);
}

static void check_request(const struct plan *p, fst_request *req)
{
    struct fst_request_view v;

    if (fst_request_wait(req, 60) < 0)
        fail_msg("%s", fst_error_text());
    fst_request_get_view(req, &v);
    if (v.finish != p->finish)
        fail_msg("finish %d, expected %d (%s)", v.finish, p->finish, v.error);
    assert_int_equal(v.n, p->n);
    assert_memory_equal(v.ids, p->ids, (size_t)p->n * sizeof *v.ids);
    assert_memory_equal(v.logprobs, p->logprobs, (size_t)p->n * sizeof *v.logprobs);
    assert_int_equal(v.n_prompt, p->n_prompt);
    assert_int_equal(v.seed, p->o.sampling.seed);
}

/* Nothing leaks: poll, because a cancel is seen at the next step. */
static void check_idle(fst_engine *e, bool all)
{
    struct fst_engine_stats s;

    for (int i = 0; i < 10000; i++) {
        fst_engine_get_stats(e, &s);
        if (s.running == 0 && s.waiting == 0)
            break;
        usleep(1000);
    }
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.slots_used, 0);
    assert_int_equal(s.kv_tokens_used, 0);
    assert_int_equal(s.requests, s.finished + s.aborted + s.failed);
    /* Every step is of one kind and no time is counted twice. */
    assert_int_equal(s.steps, s.prefill_steps_n + s.verify_steps_n + s.decode_steps_n);
    assert_int_equal(s.step_ns, s.prefill_ns + s.verify_ns + s.decode_ns + s.draft_ns);
    assert_true(s.draft_steps <= s.draft_rounds);
    assert_true(s.draft_steps <= s.steps);
    assert_true(s.draft_rounds >= s.spec.verify_steps);
    assert_true(s.spec_drafted >= s.spec.drafted);
    assert_true(s.held_rows >= s.resumed_rows);
    if (all)
        assert_int_equal(s.finished, s.requests);
}

static fst_engine *open_engine(struct fst_engine_opts o)
{
    fst_engine *e;
    o.model_dir = "fake";
    o.kernels = "ref";
    o.disable_prefix_cache = true; /* what the fake model remembers of a slot is not in its KV */
    o.threads = 1;
    if (fst_engine_open(&e, &o) < 0)
        fail_msg("%s", fst_error_text());
    return e;
}

/* ------------------------------------------------------------------ a planner that means harm */

/* It looks at the drafts themselves, which a planner never may where drafts are accepted by chance, and knows
 * which are right: it cuts in front of them, behind them, or as it likes. */
static int harm;

static void harmful_length(void *ud, const int32_t *draft, struct spec_ask *ask)
{
    struct test_rng *r = ud;
    if (harm == 1)
        ask->n = draft[0] % 2 ? ask->n_max : 0;
    else if (harm == 2)
        ask->n = draft[ask->n_max - 1] % (ask->n_max + 1);
    else
        ask->n = test_below(r, ask->n_max + 1);
}

/* Drafting begins and ends at any time, for blocks of any length. */
static int harmful_drafting(void *ud, int64_t n_committed, int gamma)
{
    struct test_rng *r = ud;
    int stretch = 1 << (harm + 2); /* of positions: so that all that is held has to be injected */
    if ((n_committed / stretch) % 2 == 0)
        return 0;
    return test_below(r, gamma + 1);
}

/* ------------------------------------------------------------------ tests */

/* Three answers that cross a page border together, and no page for any of their drafts: who went without. */
static uint64_t short_of_pages(void)
{
    struct fst_engine_opts o = {
        .model_dir = "fake", .spec_algorithm = "dspark", .verify_mode = "static"};
    struct fst_engine_stats s;
    fst_request *req[3];
    int32_t ids[240];

    harm = 0;
    o.spec_block_size = GAMMA;
    o.context_length = CONTEXT;
    o.max_running_requests = 3;
    o.max_total_tokens = 6 * KERN_PAGE;
    fst_engine *e = open_engine(o);
    for (int i = 0; i < 3; i++) {
        struct fst_request_opts r;
        fst_request_opts_default(&r);
        for (int k = 0; k < 240; k++)
            ids[k] = 2 + (k + 7 * i) % (VOCAB - 2);
        r.ids = ids;
        r.n_ids = 240;
        r.max_new_tokens = 320;
        r.ignore_eos = true;
        assert_int_equal(fst_request_submit(e, &r, &req[i]), FST_OK);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fst_request_wait(req[i], 60), FST_OK);
        fst_request_free(req[i]);
    }
    fst_engine_get_stats(e, &s);
    fst_engine_close(e);
    assert_true(s.spec_skipped[FST_SPEC_SKIP_PAGES] > 0);
    return s.spec_skipped[FST_SPEC_SKIP_PAGES];
}

static void test_days(void **state)
{
    int days = test_size(150, 4000, 10);
    uint64_t skipped[FST_SPEC_SKIPS] = {0}, by_band = 0, rounds = 0, resumed = 0, trimmed = 0,
             audited = 0;
    struct test_rng harm_rng = {.s = 4};
    (void)state;

    for (int day = 0; day < days; day++) {
        enum { N = 24 };
        static struct plan plan[N];
        struct test_rng r = {.s = (uint64_t)day * 7919 + 1};
        struct fst_engine_opts o = {0};
        fst_request *req[N];
        struct fst_engine_stats s;
        fst_engine *e;
        int n = 1 + test_below(&r, N);

        o.context_length = 64 + test_below(&r, CONTEXT - 64);
        o.max_running_requests = 1 + test_below(&r, 6);
        o.chunked_prefill_size = 1 + test_below(&r, test_below(&r, 2) ? 8 : 300);
        /* Often too few pages for all: somebody must give his place back. */
        o.max_total_tokens = o.context_length + test_below(&r, 1200);
        has_mtp = day % 3 == 2;
        o.spec_algorithm = !test_below(&r, 4) ? "none" : has_mtp ? "mtp" : "dspark";
        if (has_mtp)
            o.spec_num_steps = 1 + test_below(&r, MODEL_MTP_STEPS);
        else
            o.spec_block_size = 1 + test_below(&r, GAMMA);
        o.verify_mode = (const char *const[]){"auto", "static", "cap", "compact"}[day % 4];
        o.audit_share = 0.5 * (day % 3); /* between requests, and before the engine goes */
        o.audit_time = 1;
        harm = test_below(&r, 4); /* 0: none */
        draft_seams = (struct draft_seams){.ud = &harm_rng};
        if (harm) {
            draft_seams.length = harmful_length;
            draft_seams.drafting = harmful_drafting;
        }
        draft_right = 0.25 * test_below(&r, 5);
        e = open_engine(o);
        for (int i = 0; i < n; i++) {
            make_plan(&plan[i], &r, o.context_length);
            if (plan[i].n_prompt >= o.context_length)
                plan[i].o.n_ids = (size_t)(plan[i].n_prompt = 1),
                expect(&plan[i], o.context_length);
            if (fst_request_submit(e, &plan[i].o, &req[i]) < 0)
                fail_msg("day %d request %d: %s", day, i, fst_error_text());
            if (test_below(&r, 4) == 0)
                usleep((useconds_t)test_below(&r, 300));
        }
        for (int i = 0; i < n; i++) {
            check_request(&plan[i], req[i]);
            fst_request_free(req[i]);
        }
        check_idle(e, true);
        fst_engine_get_stats(e, &s);
        assert_true(s.spec.accepted <= s.spec.drafted);
        assert_int_equal(s.audit.mismatches, 0);
        audited += s.audit.equal;
        if (draft_right == 1.0 && s.spec.verify_steps > 0)
            assert_true(s.spec.accept_length > 1.0);
        for (int i = 0; i < FST_SPEC_BANDS; i++)
            by_band += s.spec_band[i].verify_steps;
        for (int i = 0; i < FST_SPEC_SKIPS; i++)
            skipped[i] += s.spec_skipped[i];
        rounds += s.spec.verify_steps;
        resumed += s.resumed_rows;
        trimmed += s.spec_trimmed;
        fst_engine_close(e);
    }
    has_mtp = false;
    draft_seams = (struct draft_seams){0};
    skipped[FST_SPEC_SKIP_PAGES] += short_of_pages();
    assert_int_equal(by_band, rounds);
    assert_true(resumed > 0);
    if (days > 100) { /* all of it has happened */
        assert_true(trimmed > 0);
        assert_true(audited > 0);
        for (int i = 0; i < FST_SPEC_SKIPS; i++)
            /* nothing is kept here to go on from, and no audit has found anything */
            if (i != FST_SPEC_SKIP_WINDOW && i != FST_SPEC_SKIP_AUDIT && !skipped[i])
                fail_msg("nobody was skipped for reason %d", i);
    }
}

/* Requests that are cancelled at random moments, freed at once, or run into a deadline. */
static void test_cancels(void **state)
{
    int n = test_size(1000, 20000, 100);
    struct test_rng r = {.s = 99};
    struct fst_engine_opts o = {.context_length = 512,
                                .max_running_requests = 4,
                                .max_queued_requests = 64,
                                .chunked_prefill_size = 16,
                                .max_total_tokens = 1024,
                                .spec_algorithm = "dspark"};
    fst_engine *e = open_engine(o);
    static struct plan plan;
    int full = 0;

    (void)state;
    draft_right = 0.6;
    for (int i = 0; i < n; i++) {
        fst_request *req;
        enum fst_status rc;
        make_plan(&plan, &r, o.context_length);
        plan.o.timeout_s = test_below(&r, 10) ? 0 : 1e-4;
        rc = fst_request_submit(e, &plan.o, &req);
        if (rc == FST_EFULL) {
            full++;
            usleep(500);
            continue;
        }
        assert_int_equal(rc, FST_OK);
        if (test_below(&r, 2))
            usleep((useconds_t)test_below(&r, 200));
        if (test_below(&r, 3) == 0) {
            fst_request_cancel(req);
            fst_request_cancel(req);
        } else if (test_below(&r, 4) == 0 && plan.o.timeout_s == 0) {
            check_request(&plan, req);
        }
        fst_request_free(req);
    }
    assert_true(full < n / 2);
    check_idle(e, false);
    make_plan(&plan, &r, o.context_length); /* and the next one is right */
    fst_request *req;
    assert_int_equal(fst_request_submit(e, &plan.o, &req), FST_OK);
    check_request(&plan, req);
    fst_request_free(req);
    fst_engine_close(e);
}

static void test_faults(void **state)
{
    struct test_rng r = {.s = 5};
    struct fst_engine_opts o = {
        .context_length = 512, .max_running_requests = 2, .spec_algorithm = "dspark"};
    static struct plan bad, good;
    struct fst_request_view v;
    fst_request *a, *b;
    fst_engine *e;

    (void)state;
    /* A NaN row fails its request alone. */
    make_plan(&bad, &r, 512);
    make_plan(&good, &r, 512);
    bad.n_prompt = 60;
    bad.o.n_ids = 60;
    bad.o.max_new_tokens = good.o.max_new_tokens = 30;
    bad.o.n_stop_ids = good.o.n_stop_ids = 0;
    good.n_prompt = 3;
    good.o.n_ids = 3;
    bad.o.ignore_eos = good.o.ignore_eos = true;
    expect(&good, 512);
    nan_at = 70;
    e = open_engine(o);
    assert_int_equal(fst_request_submit(e, &bad.o, &a), FST_OK);
    assert_int_equal(fst_request_submit(e, &good.o, &b), FST_OK);
    check_request(&good, b);
    assert_int_equal(fst_request_wait(a, 60), FST_OK);
    fst_request_get_view(a, &v);
    assert_int_equal(v.finish, FST_FINISH_ERROR);
    assert_int_equal(v.status, FST_ENUMERIC);
    assert_int_equal(v.n, 11); /* positions 60..70 were drawn from rows 59..69 */
    fst_request_free(a);
    fst_request_free(b);
    check_idle(e, false);
    nan_at = -1;

    /* A fault of the model ends what runs with its message; the engine lives. */
    fail_forward_at = n_forwards + 3;
    assert_int_equal(fst_request_submit(e, &good.o, &a), FST_OK);
    assert_int_equal(fst_request_wait(a, 60), FST_OK);
    fst_request_get_view(a, &v);
    assert_int_equal(v.finish, FST_FINISH_ERROR);
    assert_non_null(strstr(v.error, "on purpose"));
    fst_request_free(a);
    fail_forward_at = -1;
    assert_int_equal(fst_request_submit(e, &good.o, &a), FST_OK);
    check_request(&good, a);

    /* Closing with requests at hand: they end, and outlive the engine. */
    bad.o.max_new_tokens = 400;
    assert_int_equal(fst_request_submit(e, &bad.o, &b), FST_OK);
    fst_engine_drain(e);
    assert_int_equal(fst_request_submit(e, &good.o, &(fst_request *){NULL}), FST_ESHUTDOWN);
    fst_engine_close(e);
    fst_request_get_view(b, &v);
    assert_true(v.finish != FST_FINISH_NONE);
    fst_request_free(a);
    fst_request_free(b);
}

static bool on_logits(void *ud, int64_t pos, const float *logits, int vocab)
{
    int64_t *next = ud;
    assert_int_equal(pos, *next);
    assert_int_equal(vocab, VOCAB);
    assert_true(isfinite(logits[0]));
    ++*next;
    return pos < 299;
}

static void test_prompt_scores(void **state)
{
    struct test_rng r = {.s = 11};
    struct fst_engine_opts o = {.context_length = 1024, .max_running_requests = 2};
    static struct plan p;
    struct fst_request_view v;
    fst_engine *e = open_engine(o);
    fst_request *req;
    int64_t next = 0;
    uint64_t h = 12345;

    (void)state;
    make_plan(&p, &r, 1024);
    p.n_prompt = 500;
    for (int i = 0; i < 500; i++)
        p.prompt[i] = test_below(&r, VOCAB);
    p.o.n_ids = 500;
    p.o.max_new_tokens = 0;
    p.o.prompt_logprobs_from = 10;
    p.o.prompt_top_logprobs = 3;
    assert_int_equal(fst_request_submit(e, &p.o, &req), FST_OK);
    assert_int_equal(fst_request_wait(req, 60), FST_OK);
    fst_request_get_view(req, &v);
    assert_int_equal(v.finish, FST_FINISH_LENGTH);
    assert_int_equal(v.n, 0);
    assert_int_equal(v.n_prefilled, 500);
    for (int i = 0; i < 500; i++) {
        float logits[VOCAB];
        double sum = 0;
        if (i < 10)
            assert_true(isnan(v.prompt_logprobs[i]));
        if (i >= 10) {
            hash_logits(h, logits);
            for (int k = 0; k < VOCAB; k++)
                sum += exp((double)logits[k]);
            assert_true(fabs((double)v.prompt_logprobs[i] -
                             ((double)logits[p.prompt[i]] - log(sum))) < 1e-5);
            assert_true(v.prompt_top[i * 3].logprob >= v.prompt_top[i * 3 + 1].logprob);
            assert_true(v.prompt_top[i * 3].logprob >= v.prompt_logprobs[i]);
        }
        h = mix(h, (uint64_t)p.prompt[i]);
    }
    fst_request_free(req);
    p.o.prompt_logprobs_from = -1;
    p.o.on_prompt_logits = on_logits;
    p.o.on_prompt_logits_ud = &next;
    assert_int_equal(fst_request_submit(e, &p.o, &req), FST_OK);
    assert_int_equal(fst_request_wait(req, 60), FST_OK);
    assert_int_equal(next, 300); /* it said stop there */
    fst_request_get_view(req, &v);
    assert_int_equal(v.finish, FST_FINISH_ABORT);
    fst_request_free(req);
    check_idle(e, false);
    fst_engine_close(e);
}

static void test_no_allocation(void **state)
{
    struct test_rng r = {.s = 21};
    struct fst_engine_opts o = {.context_length = 1024, .max_running_requests = 4};
    static struct plan p[4];
    fst_engine *e = open_engine(o);
    fst_request *req[4];
    uint64_t before;

    (void)state;
    for (int i = 0; i < 4; i++) {
        make_plan(&p[i], &r, 1024);
        p[i].o.sampling.repetition_penalty = i % 2 ? 1.5f : 1;
        assert_int_equal(fst_request_submit(e, &p[i].o, &req[i]), FST_OK);
    }
    before = mem_count();
    for (int i = 0; i < 4; i++)
        assert_int_equal(fst_request_wait(req[i], 60), FST_OK);
    assert_int_equal(mem_count(), before);
    for (int i = 0; i < 4; i++)
        fst_request_free(req[i]);
    fst_engine_close(e);
}

static void refuse(fst_engine *e, const struct fst_request_opts *o, const char *text)
{
    fst_request *req = NULL;
    if (fst_request_submit(e, o, &req) != FST_EINVAL)
        fail_msg("accepted, expected: %s", text);
    if (!strstr(fst_error_text(), text))
        fail_msg("\"%s\" does not say \"%s\"", fst_error_text(), text);
    assert_null(req);
}

static void test_bad_requests(void **state)
{
    struct fst_engine_opts o = {.context_length = 100, .max_running_requests = 1};
    fst_engine *e = open_engine(o);
    int32_t ids[200] = {2, 3, 4};
    struct fst_request_opts good, b;

    (void)state;
    fst_request_opts_default(&good);
    good.ids = ids;
    good.n_ids = 3;
    refuse(e, (b = good, b.n_ids = 0, &b), "at least one token");
    refuse(e, (b = good, b.n_ids = 100, &b), "context length (100 tokens)");
    ids[2] = VOCAB;
    refuse(e, &good, "input_ids[2] is 50, out of range");
    ids[2] = -1;
    refuse(e, &good, "input_ids[2] is -1, out of range");
    ids[2] = 4;
    refuse(e, (b = good, b.max_new_tokens = -2, &b), "max_new_tokens");
    refuse(e, (b = good, b.min_new_tokens = -1, &b), "min_new_tokens");
    refuse(e, (b = good, b.sampling.temperature = -0.1f, &b), "temperature");
    refuse(e, (b = good, b.sampling.temperature = NAN, &b), "temperature");
    refuse(e, (b = good, b.sampling.top_p = 0, &b), "top_p must be in (0, 1], got 0");
    refuse(e, (b = good, b.sampling.top_p = 1.5f, &b), "top_p must be in (0, 1], got 1.5");
    refuse(e, (b = good, b.sampling.min_p = -1, &b), "min_p");
    refuse(e, (b = good, b.sampling.top_k = -2, &b), "top_k");
    refuse(e, (b = good, b.top_logprobs = 21, &b), "top_logprobs");
    refuse(e, (b = good, b.timeout_s = -1, &b), "timeout");
    ids[100] = 9999;
    refuse(e, (b = good, b.stop_ids = ids + 100, b.n_stop_ids = 1, &b),
           "stop_token_ids[0] is 9999");
    fst_engine_close(e);
}

static void refuse_open(struct fst_engine_opts o, enum fst_status rc, const char *text)
{
    fst_engine *e = NULL;
    o.model_dir = "fake";
    o.kernels = "ref";
    assert_int_equal(fst_engine_open(&e, &o), rc);
    assert_null(e);
    if (!strstr(fst_error_text(), text))
        fail_msg("\"%s\" does not say \"%s\"", fst_error_text(), text);
}

static void test_bad_options(void **state)
{
    (void)state;
    refuse_open((struct fst_engine_opts){.kv_layout = "x"}, FST_EINVAL,
                "--kv-layout: unknown value \"x\"; known: unified-fp8, unified-bf16, paged");
    refuse_open((struct fst_engine_opts){.spec_algorithm = "EAGLE"}, FST_EINVAL, "DSpark drafter");
    refuse_open((struct fst_engine_opts){.spec_block_size = 6}, FST_EINVAL, "[1, 5]");
    refuse_open((struct fst_engine_opts){.verify_mode = "x"}, FST_EINVAL,
                "--verify-mode: unknown value \"x\"; known: auto, static, cap, compact");
    refuse_open((struct fst_engine_opts){.sts_path = "/nowhere/sts.json"}, FST_ENOTFOUND,
                "/nowhere/sts.json");
    refuse_open((struct fst_engine_opts){.context_length = 5000}, FST_EINVAL, "[1, 1024]");
    refuse_open((struct fst_engine_opts){.context_length = 1000, .max_total_tokens = 256},
                FST_EBUDGET, "does not fit");
    refuse_open((struct fst_engine_opts){.chunked_prefill_size = -1}, FST_EINVAL,
                "--chunked-prefill-size");
    refuse_open((struct fst_engine_opts){.threads = 1000}, FST_EINVAL, "--threads");
    setenv("FIRESTEEL_MODULES", "/nowhere", 1); /* `make gpu` leaves one beside the program */
    refuse_open((struct fst_engine_opts){.device = "cuda"}, FST_EMACHINE, "there is no module");
    unsetenv("FIRESTEEL_MODULES");
    refuse_open((struct fst_engine_opts){.device = "tpu"}, FST_EINVAL, "known: cpu, cuda, hip");
    for (int i = 0; i < 3; i++) { /* each of them opens */
        static const char *const layout[] = {"unified-fp8", "unified-bf16", "paged"};
        fst_engine *e;
        struct fst_engine_opts o = {.model_dir = "fake", .kernels = "ref", .kv_layout = layout[i]};
        assert_int_equal(fst_engine_open(&e, &o), FST_OK);
        fst_engine_close(e);
    }
    refuse_open((struct fst_engine_opts){.max_total_tokens = INT64_C(1) << 50}, FST_EINVAL,
                "--max-total-tokens must be in");
    refuse_open((struct fst_engine_opts){.max_total_tokens = INT64_C(1) << 37}, FST_EBUDGET,
                "GiB of memory are available");
}

/* Opening fails cleanly at every allocation. */
static void test_open_without_memory(void **state)
{
    struct fst_engine_opts o = {.model_dir = "fake",
                                .kernels = "ref",
                                .threads = 1,
                                .context_length = 300,
                                .max_running_requests = 2};
    (void)state;
    for (uint64_t n = 1;; n++) {
        fst_engine *e = NULL;
        uint64_t before = mem_count(), took;
        enum fst_status rc;
        mem_fail_at(n);
        rc = fst_engine_open(&e, &o);
        mem_fail_at(0);
        took = mem_count() - before;
        if (rc == FST_OK) {
            fst_engine_close(e);
            assert_true(took < n); /* nobody went on without his memory */
            break;
        } else {
            assert_int_equal(rc, FST_ENOMEM);
            assert_null(e);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_requests),  cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_days),          cmocka_unit_test(test_cancels),
        cmocka_unit_test(test_faults),        cmocka_unit_test(test_prompt_scores),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_open_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
