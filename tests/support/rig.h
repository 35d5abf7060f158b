/* rig.h - a model with everything it stands on, for tests: weights from a hash, KV, kernels, pool.
 *
 * All failures are cmocka's. */
#ifndef TESTS_SUPPORT_RIG_H
#define TESTS_SUPPORT_RIG_H

#include <math.h>
#include <unistd.h>

#include "golden/hashweights.h"
#include "kernels/kernels.h"
#include "kv/kv.h"
#include "model/model.h"
#include "support/cm.h"
#include "weights/weights.h"

/* ---------------------------------------------------------------- weights */

static inline struct weights *rig_weights(const struct hashweights_spec *spec)
{
    char dir[] = "/tmp/fst-rig-XXXXXX";
    struct weights *w = NULL;
    assert_non_null(mkdtemp(dir));
    if (hashweights_write(dir, spec) < 0 || weights_open(&w, dir, NULL) < 0)
        fail_msg("%s", fst_error_text());
    hashweights_remove(dir); /* the mapping stays */
    return w;
}

/* The kernels' shapes in a model that runs in a second: head_dim 512, window 128, all ratios, and
 * index top-k that drops entries from position 4*16+3 on; DSpark with three stages. */
static inline struct hashweights_spec rig_small(enum hashweights_format format)
{
    static const int ratio[] = {0, 128, 4, 4};
    struct hashweights_spec s = hashweights_dspark();
    s.config.n_layers = 4;
    memcpy(s.config.compress_ratio, ratio, sizeof ratio);
    s.config.head_dim = 512;
    s.config.n_heads = 8;
    s.config.o_groups = 1;
    s.config.window = 128;
    s.config.index_heads = 64;
    s.config.index_topk = 16;
    s.config.n_hash_layers = 1;
    for (int i = 0; i < 3; i++)
        s.config.target_layer[i] = 1 + i;
    s.format = format;
    return s;
}

/* The same target with an MTP block. */
static inline struct hashweights_spec rig_small_mtp(enum hashweights_format format)
{
    struct hashweights_spec s = rig_small(format);
    s.draft = INVENTORY_MTP;
    s.config.has_dspark = false;
    s.config.has_mtp = true;
    s.config.n_stages = s.config.gamma = s.config.markov_rank = s.config.noise_id = 0;
    return s;
}

/* ---------------------------------------------------------------- the rig */

struct rig_opts {
    const struct weights *w;
    const struct kernels *kernels; /* NULL: set "ref" */
    const struct device *device;   /* NULL: the host */
    enum precision precision;
    int threads; /* 0: the caller's alone */
    enum row_format format;
    enum index_format index_format;
    int max_rows, n_slots;
    int64_t context;
    int block; /* 0: 1 */
    bool drafting;
    bool disable_graphs; /* of a device that records */
};

struct rig {
    struct kernels ref;
    struct pool *pool;
    struct stream stream;
    const struct weights *w;
    struct model *m;
    struct kv kv;
    int vocab, max_rows;
    size_t array_bytes;
    int32_t *slot, *pos, *id, *span, *first, *pick;
    struct rows rows;
    float *seen; /* rig_logits of a device */
};

struct rig_span {
    int slot;
    int64_t pos;
    const int32_t *ids;
    int n;
};

static inline void rig_ok(enum fst_status rc)
{
    if (rc < 0)
        fail_msg("%s: %s", fst_status_name(rc), fst_error_text());
}

static inline void rig_open(struct rig *r, const struct rig_opts *o)
{
    *r = (struct rig){.w = o->w, .vocab = o->w->config.vocab_size, .max_rows = o->max_rows};
    kernels_init(&r->ref, 0);
    if (o->threads > 1)
        rig_ok(pool_new(&r->pool, o->threads));
    struct model_opts m = {.kernels = o->kernels ? o->kernels : &r->ref,
                           .stream = &r->stream,
                           .max_rows = o->max_rows,
                           .max_logits = o->max_rows,
                           .max_requests = o->n_slots,
                           .context_length = o->context,
                           .drafting = o->drafting,
                           .disable_graphs = o->disable_graphs};
    rig_ok(stream_init(&r->stream, o->device, r->pool, o->precision,
                       model_scratch_bytes(o->w, &m, pool_threads(r->pool))));
    rig_ok(model_open(&r->m, o->w, &m));
    struct kv_spec kv = {.device = o->device,
                         .block = o->block ? o->block : 1,
                         .format = o->format,
                         .index_format = o->index_format,
                         .n_slots = o->n_slots,
                         .n_pages = o->n_slots * div_up(o->context, KERN_PAGE),
                         .context_length = o->context};
    model_kv_spec(o->w, o->drafting, &kv);
    rig_ok(kv_init(&r->kv, &kv));
    r->array_bytes = ((size_t)o->max_rows * 6 + 6) * sizeof(int32_t);
    r->slot = device_alloc_shared(o->device, r->array_bytes);
    assert_non_null(r->slot);
    r->pos = r->slot + o->max_rows;
    r->id = r->pos + o->max_rows;
    r->span = r->id + o->max_rows;
    r->pick = r->span + o->max_rows;
    r->first = r->pick + o->max_rows;
}

static inline void rig_close(struct rig *r)
{
    free(r->seen);
    device_free_shared(r->stream.device, r->slot, r->array_bytes);
    kv_release(&r->kv);
    model_free(r->m);
    stream_release(&r->stream);
    pool_free(r->pool);
    *r = (struct rig){0};
}

static inline int rig_slot(struct rig *r)
{
    int slot;
    rig_ok(kv_slot_open(&r->kv, &slot));
    return slot;
}

/* Lay the spans out as the rows of one step; pages are reserved as needed. */
static inline void rig_rows(struct rig *r, const struct rig_span *s, int n)
{
    r->rows = (struct rows){.n_spans = n,
                            .slot = r->slot,
                            .pos = r->pos,
                            .id = r->id,
                            .span = r->span,
                            .span_first = r->first,
                            .pages = r->kv.pages,
                            .page_stride = r->kv.page_stride};
    for (int i = 0; i < n; i++) {
        r->first[i] = r->rows.n_rows;
        rig_ok(kv_reserve(&r->kv, s[i].slot, s[i].pos + s[i].n));
        for (int j = 0; j < s[i].n; j++) {
            int t = r->rows.n_rows++;
            assert_true(t < r->max_rows);
            r->slot[t] = s[i].slot;
            r->pos[t] = (int32_t)(s[i].pos + j);
            r->id[t] = s[i].ids[j];
            r->span[t] = i;
            r->pick[t] = t;
        }
    }
    r->first[n] = r->rows.n_rows;
}

/* n rows of logits where the host can read them, valid until the next step. */
static inline float *rig_logits(struct rig *r, float *logits, int n)
{
    size_t bytes = (size_t)n * (size_t)r->vocab * sizeof *logits;
    if (!r->stream.device)
        return logits;
    free(r->seen);
    r->seen = malloc(bytes + 1);
    assert_non_null(r->seen);
    rig_ok(stream_sync(&r->stream));
    rig_ok(device_copy(r->stream.device, r->seen, logits, bytes));
    return r->seen;
}

/* One step; logits of all its rows, valid until the next. */
static inline float *rig_step(struct rig *r, const struct rig_span *s, int n)
{
    float *logits;
    rig_rows(r, s, n);
    rig_ok(model_forward(r->m, &r->kv, &r->rows, r->pick, r->rows.n_rows, &logits));
    return rig_logits(r, logits, r->rows.n_rows);
}

static inline float *rig_run(struct rig *r, int slot, int64_t pos, const int32_t *ids, int n)
{
    struct rig_span s = {slot, pos, ids, n};
    return rig_step(r, &s, 1);
}

/* Inject rows first .. first+n-1 of the last step. */
static inline void rig_inject(struct rig *r, int first, int n)
{
    rig_ok(model_inject(r->m, &r->kv, &r->rows, r->pick + first, n));
}

static inline int rig_argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* One round of MTP drafts behind n committed positions and the token after them; logits: (gamma, vocab) or
 * NULL. */
static inline void rig_mtp_round(struct rig *r, int slot, int64_t n, int32_t anchor, int gamma,
                                 int32_t *drafts, float *logits)
{
    struct draw_params greedy = {0};
    uint32_t out_pos = 0;
    struct draft_batch d = {.n = 1,
                            .gamma = gamma,
                            .slot = &slot,
                            .n_committed = &n,
                            .anchor = &anchor,
                            .draw = &greedy,
                            .out_pos = &out_pos,
                            .ids = drafts,
                            .logits = logits};
    rig_ok(model_draft(r->m, &r->kv, &d));
}

/* One MTP draft behind each of the n positions of the last step, the first of its slot; ids (n + 1), out
 * (n, vocab): logits for position p + 2. */
static inline void rig_mtp(struct rig *r, int slot, const int32_t *ids, int n, float *out)
{
    for (int p = 0; p < n; p++) {
        int32_t draft;
        rig_ok(model_hold(r->m, &r->kv, &r->rows, r->pick + p, 1));
        rig_mtp_round(r, slot, p + 1, ids[p + 1], 1, &draft, out + (int64_t)p * r->vocab);
        assert_int_equal(draft, rig_argmax(out + (int64_t)p * r->vocab, r->vocab));
    }
}

/* ids through the model in steps of `chunk` rows, logits of every position into out (n, vocab). */
static inline void rig_chunks(struct rig *r, int slot, const int32_t *ids, int n, int chunk,
                              float *out)
{
    for (int at = 0; at < n; at += chunk) {
        int len = FST_MIN(chunk, n - at);
        float *logits = rig_run(r, slot, at, ids + at, len);
        memcpy(out + (int64_t)at * r->vocab, logits, (size_t)len * (size_t)r->vocab * sizeof *out);
    }
}

/* ---------------------------------------------------------------- comparing */

static inline double rig_norm(const float *x, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return sqrt(s);
}

static inline double rig_max_diff(const float *a, const float *b, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= m)) /* a NaN is the largest difference */
            m = d;
    }
    return m;
}

static inline double rig_rel_l2(const float *a, const float *b, int64_t n)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = (double)a[i] - (double)b[i];
        d += e * e;
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(d / (s > 0 ? s : 1));
}

/* Equal bits, with the first difference named. */
static inline void rig_same(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s: value %lld is %.9g, expected %.9g", what, (long long)i, (double)a[i],
                     (double)b[i]);
}

static inline float *rig_floats(int64_t n)
{
    float *p = calloc((size_t)n, sizeof *p);
    assert_non_null(p);
    return p;
}

/* Kernel sets of this machine: ref first. */
static inline int rig_sets(struct kernels out[3])
{
    static const unsigned flags[] = {0, KERN_AVX2, KERN_AVX2 | KERN_AVX512};
    int n = 0;
    for (size_t i = 0; i < FST_COUNT(flags); i++)
        if ((flags[i] & ~kernels_probe()) == 0)
            kernels_init(&out[n++], flags[i]);
    return n;
}

#endif
