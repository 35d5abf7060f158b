/* bench_calls.c - keeps the launches of a step with their arguments, and plays those of one entry alone.
 *
 * A set is the entry's calls at one kind of layer, each with its own weights, and copies of those weights
 * until no cache holds them: calls of a small entry would else find theirs in it.  KV rows are the layers'
 * own alone; those of few rows of a step may stay in a cache.  Rounds over the set follow each other
 * without a pause; on a card they are one recording, between two marks of its clock, enqueued
 * while a long fill runs, so that early starts (kernels/gpu/gpu.h) are as in a step and launching costs
 * nothing.  A pass is one recording; seam and kv_write, which change their inputs, and experts, which
 * use up their operand, find them as they were at the beginning of each.
 *
 * Looks into kernels, their arguments and the model by exception. */
#include "tools/bench_calls.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "weights/config.h"

enum {
    PASSES = 5,
    PASS_US = 10000,
    ROUNDS_MAX = 20,    /* but for sets so small that this makes no LAUNCHES */
    LAUNCHES = 64,      /* starting a recording costs 2 us, which are theirs */
    LAUNCHES_MAX = 512, /* of a recording */
    SETS_MAX = 256,
    DISTINCT = 256 << 20, /* bytes of weights that no cache holds: an H200's has 50 MB */
    LINE = 256,
    MATS = 8, /* of an entry, at most */
    BUSY_US = 2000,
    REST_BUSY_US = 200,
    LOOK = 1 << 16 /* floats that are looked at for numbers */
};

static struct calls *active;

const char *calls_entry_name(int entry)
{
    static const char *const names[] = {
#define CALL_NAME(entry, args) #entry,
        KERNELS_MAP(CALL_NAME)
#undef CALL_NAME
    };
    return names[entry];
}

/* ------------------------------------------------------------------ keeping */

/* Where a call's arguments point to its rows; NULL: nowhere. */
static const struct rows **rows_of(struct call *k)
{
    switch (k->entry) {
    case CALL_kv_write:
        return &k->a.kv_write.rows;
    case CALL_ring_store:
        return &k->a.ring_store.rows;
    case CALL_index_topk:
        return &k->a.index_topk.rows;
    case CALL_attention:
        return &k->a.attention.rows;
    default:
        return NULL;
    }
}

static size_t operand_bytes(const struct calls *c, const struct experts_args *a)
{
    return a->operand ? c->table->operand_bytes(a->n_rows, a->dim) : 0;
}

static size_t choice_bytes(const struct experts_args *a)
{
    return (size_t)a->n_rows * (size_t)a->k * sizeof *a->expert;
}

/* Layers share these arrays: each call gets its own, as they are when it runs. */
static enum fst_status own_experts(struct calls *c, struct call *k)
{
    struct experts_args *a = &k->a.experts;
    size_t choice = choice_bytes(a), operand = operand_bytes(c, a);
    k->expert = device_alloc(c->stream->device, choice);
    k->weight = device_alloc(c->stream->device, choice);
    k->operand = operand ? device_alloc(c->stream->device, operand) : NULL;
    if (!k->expert || !k->weight || (operand && !k->operand))
        return fst_error(FST_ENOMEM, "bench: %zu bytes for the inputs of experts",
                         2 * choice + operand);
    FST_TRY(stream_copy(c->stream, k->expert, a->expert, choice));
    FST_TRY(stream_copy(c->stream, k->weight, a->weight, choice));
    a->expert = k->expert;
    a->weight = k->weight;
    return operand ? stream_copy(c->stream, k->operand, a->operand, operand) : FST_OK;
}

static enum fst_status keep(int entry, const void *args, size_t bytes)
{
    struct calls *c = active;
    if (!c->keeps)
        return FST_OK;
    if (entry == CALL_main_proj || entry == CALL_embed)
        c->injects = entry == CALL_main_proj;
    FST_ASSERT(c->n < c->cap);
    struct call *k = &c->call[c->n++];
    *k = (struct call){.entry = entry,
                       .site = c->injects ? CALL_SITE_INJECT : (int)model_site_now(c->model)};
    memcpy(&k->a, args, bytes);
    const struct rows **rows = rows_of(k);
    if (rows) { /* they lie on the caller's stack */
        k->rows = **rows;
        *rows = &k->rows;
    }
    return entry == CALL_experts ? own_experts(c, k) : FST_OK;
}

#define CALL_KEEP(entry, args)                                                                     \
    static enum fst_status keep_##entry(const args *a, struct stream *s)                           \
    {                                                                                              \
        FST_TRY(keep(CALL_##entry, a, sizeof *a));                                                 \
        return active->inner.entry(a, s);                                                          \
    }
KERNELS_MAP(CALL_KEEP)
#undef CALL_KEEP

static enum fst_status launch(const struct calls *c, const struct call *k)
{
    switch (k->entry) {
#define CALL_LAUNCH(entry, args)                                                                   \
    case CALL_##entry:                                                                             \
        return c->table->entry(&k->a.entry, c->stream);
        KERNELS_MAP(CALL_LAUNCH)
#undef CALL_LAUNCH
    default:
        FST_ASSERT(false);
    }
}

enum fst_status calls_open(struct calls *c, struct kernels *front, const struct kernels *table,
                           const struct model *m, struct stream *s)
{
    const struct model_config *cfg = model_config_of(m);
    *c = (struct calls){.inner = *front, .table = table, .model = m, .stream = s};
    c->cap = (cfg->n_layers + cfg->n_stages) * CALL_ENTRIES + CALL_ENTRIES;
    c->call = mem_calloc((size_t)c->cap, sizeof *c->call);
    active = c;
#define CALL_FRONT(entry, args) front->entry = keep_##entry;
    KERNELS_MAP(CALL_FRONT)
#undef CALL_FRONT
    return c->call ? FST_OK : fst_error(FST_ENOMEM, "bench: no memory for %d launches", c->cap);
}

static void forget(struct calls *c)
{
    const struct device *d = c->stream->device;
    for (int i = 0; i < c->n; i++) {
        struct call *k = &c->call[i];
        if (k->entry != CALL_experts)
            continue;
        device_free(d, k->expert, choice_bytes(&k->a.experts));
        device_free(d, k->weight, choice_bytes(&k->a.experts));
        device_free(d, k->operand, operand_bytes(c, &k->a.experts));
    }
    c->n = 0;
}

void calls_close(struct calls *c)
{
    if (c->call)
        forget(c);
    mem_free(c->call);
    c->call = NULL;
}

void calls_begin(struct calls *c)
{
    forget(c);
    c->keeps = true;
    c->injects = false;
}

void calls_end(struct calls *c)
{
    c->keeps = false;
}

static bool is_of(const struct call *k, int entry, int site)
{
    return k->entry == entry && k->site == site;
}

int calls_count(const struct calls *c, int entry, int site)
{
    int n = 0;
    for (int i = 0; i < c->n; i++)
        n += is_of(&c->call[i], entry, site);
    return n;
}

enum fst_status calls_distinct(const struct calls *c, int site, double *distinct)
{
    int64_t sum = 0;
    int n = calls_count(c, CALL_experts, site);
    *distinct = 0;
    for (int i = 0; i < c->n; i++) {
        const struct call *k = &c->call[i];
        uint8_t met[CONFIG_EXPERTS_MAX] = {0};
        if (!is_of(k, CALL_experts, site))
            continue;
        size_t bytes = choice_bytes(&k->a.experts);
        int32_t *host = mem_alloc(bytes);
        if (!host)
            return fst_error(FST_ENOMEM, "bench: %zu bytes for the experts of rows", bytes);
        enum fst_status rc = device_copy(c->stream->device, host, k->expert, bytes);
        for (size_t v = 0; v < bytes / sizeof *host && rc == FST_OK; v++) {
            FST_ASSERT(host[v] >= 0 && host[v] < CONFIG_EXPERTS_MAX);
            sum += !met[host[v]];
            met[host[v]] = 1;
        }
        mem_free(host);
        FST_TRY(rc);
    }
    *distinct = n ? (double)sum / n : 0;
    return FST_OK;
}

/* ------------------------------------------------------------------ weights of a call */

/* What is copied of a call's weights: matrices, and one array of floats. */
struct own_weights {
    const struct mat **mat[MATS];
    const float **floats;
    size_t float_bytes;
    int n;
};

static void add_mat(struct own_weights *w, const struct mat **m)
{
    if (*m && (*m)->fmt != WEIGHT_NONE)
        w->mat[w->n++] = m;
}

/* None of experts, which share one array of all layers' views, and of what reads KV rows: there, layers are
 * different enough. */
static struct own_weights weights_of(struct call *k)
{
    struct own_weights w = {.n = 0};
    switch (k->entry) {
    case CALL_seam:
        w.floats = &k->a.seam.fn;
        w.float_bytes = (size_t)KERN_MIX * KERN_HC * (size_t)k->a.seam.dim * sizeof(float);
        break;
    case CALL_attn_in:
        add_mat(&w, &k->a.attn_in.wq_a);
        add_mat(&w, &k->a.attn_in.wkv);
        add_mat(&w, &k->a.attn_in.cmp_wkv);
        add_mat(&w, &k->a.attn_in.cmp_wgate);
        add_mat(&w, &k->a.attn_in.idx_wkv);
        add_mat(&w, &k->a.attn_in.idx_wgate);
        add_mat(&w, &k->a.attn_in.weights_proj);
        break;
    case CALL_q_path:
        add_mat(&w, &k->a.q_path.wq_b);
        add_mat(&w, &k->a.q_path.idx_wq_b);
        break;
    case CALL_attn_out:
        add_mat(&w, &k->a.attn_out.wo_a);
        add_mat(&w, &k->a.attn_out.wo_b);
        break;
    case CALL_route:
        add_mat(&w, &k->a.route.gate);
        break;
    case CALL_main_proj:
        add_mat(&w, &k->a.main_proj.main_proj);
        break;
    case CALL_head:
        add_mat(&w, &k->a.head.head);
        break;
    case CALL_draft_chain:
        add_mat(&w, &k->a.draft_chain.w1);
        add_mat(&w, &k->a.draft_chain.w2);
        break;
    default:
        break;
    }
    if (w.floats && !*w.floats)
        w.floats = NULL;
    return w;
}

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static size_t data_bytes(const struct mat *m)
{
    static const size_t halves[] = {
        [WEIGHT_F32] = 8, [WEIGHT_BF16] = 4, [WEIGHT_FP8] = 2, [WEIGHT_FP4] = 1, [WEIGHT_I32] = 8};
    return (size_t)m->n_out * (size_t)m->n_in * halves[m->fmt] / 2;
}

static size_t scale_bytes(const struct mat *m)
{
    if (m->fmt == WEIGHT_FP4)
        return (size_t)m->n_out * (size_t)m->n_in / 32;
    return m->fmt == WEIGHT_FP8 ? (size_t)(div_up(m->n_out, 128) * div_up(m->n_in, 128)) : 0;
}

static size_t weights_bytes(const struct own_weights *w)
{
    size_t bytes = w->floats ? lines(w->float_bytes) : 0;
    for (int i = 0; i < w->n; i++)
        bytes += lines(data_bytes(*w->mat[i])) + lines(scale_bytes(*w->mat[i]));
    return bytes;
}

static enum fst_status copy_to(struct stream *s, uint8_t **at, const void **p, size_t bytes)
{
    if (!bytes)
        return FST_OK;
    FST_TRY(stream_copy(s, *at, *p, bytes));
    *p = *at;
    *at += lines(bytes);
    return FST_OK;
}

/* The call's weights at *at instead of where they are; mat: room for its matrices. */
static enum fst_status move_weights(struct stream *s, struct call *k, struct mat *mat, uint8_t **at)
{
    struct own_weights w = weights_of(k);
    const void *p;
    for (int i = 0; i < w.n; i++) {
        mat[i] = **w.mat[i];
        FST_TRY(copy_to(s, at, &mat[i].data, data_bytes(&mat[i])));
        p = mat[i].scale;
        FST_TRY(copy_to(s, at, &p, scale_bytes(&mat[i])));
        mat[i].scale = p;
        *w.mat[i] = &mat[i];
    }
    if (!w.floats)
        return FST_OK;
    p = *w.floats;
    FST_TRY(copy_to(s, at, &p, w.float_bytes));
    *w.floats = p;
    return FST_OK;
}

/* ------------------------------------------------------------------ sets */

/* What a launch changes and a pass begins with. */
struct kept {
    float *at, *copy; /* copy: owned, device memory */
    size_t bytes;
};

struct set {
    const struct calls *c;
    struct call *call; /* owned: the entry's, with copies behind */
    int n, rounds;
    struct mat *mats; /* owned: of the copies */
    uint8_t *block;   /* owned, device memory: their weights */
    size_t block_bytes;
    struct kept kept[2];
    uint8_t *operands; /* owned, device memory: one for each launch of experts */
    size_t operand, operands_bytes;
    void *graph; /* owned; NULL: launches are not recorded here */
};

static enum fst_status keep_input(struct set *s, int i, float *at, size_t values)
{
    struct kept *k = &s->kept[i];
    *k = (struct kept){.at = at, .bytes = values * sizeof *at};
    if (!(k->copy = device_alloc(s->c->stream->device, k->bytes)))
        return fst_error(FST_ENOMEM, "bench: %zu bytes for inputs", k->bytes);
    return stream_copy(s->c->stream, k->copy, k->at, k->bytes);
}

static enum fst_status keep_inputs(struct set *s)
{
    struct call *k = &s->call[0];
    if (k->entry == CALL_kv_write) {
        struct kv_write_args *a = &k->a.kv_write;
        return keep_input(s, 0, a->kv, (size_t)a->rows->n_rows * (size_t)a->head_dim);
    }
    if (k->entry != CALL_seam)
        return FST_OK;
    struct seam_args *a = &k->a.seam;
    FST_TRY(keep_input(s, 0, a->x, (size_t)a->n_rows * KERN_HC * (size_t)a->dim));
    return keep_input(s, 1, a->mix, (size_t)a->n_rows * KERN_MIX);
}

static enum fst_status put_back(struct set *s)
{
    struct stream *st = s->c->stream;
    for (size_t i = 0; i < FST_COUNT(s->kept) && s->kept[i].copy; i++)
        FST_TRY(stream_copy(st, s->kept[i].at, s->kept[i].copy, s->kept[i].bytes));
    for (int i = 0; s->operands && i < s->n * s->rounds; i++)
        FST_TRY(stream_copy(st, s->operands + (size_t)i * lines(s->operand),
                            s->call[i % s->n].operand, s->operand));
    return FST_OK;
}

/* What is in place must still be numbers: anything else takes another time. */
static enum fst_status look(const struct set *s)
{
    for (size_t i = 0; i < FST_COUNT(s->kept) && s->kept[i].copy; i++) {
        size_t n = FST_MIN(s->kept[i].bytes / sizeof(float), (size_t)LOOK), bad = 0;
        float *host = mem_alloc(n * sizeof *host);
        if (!host)
            return fst_error(FST_ENOMEM, "bench: no memory for %zu values", n);
        enum fst_status rc =
            device_copy(s->c->stream->device, host, s->kept[i].at, n * sizeof *host);
        while (rc == FST_OK && bad < n && isfinite(host[bad]))
            bad++;
        if (rc == FST_OK && bad < n)
            rc = fst_error(FST_EINTERNAL, "bench: value %zu of %s is %g after so many launches",
                           bad, calls_entry_name(s->call[0].entry), (double)host[bad]);
        mem_free(host);
        FST_TRY(rc);
    }
    return FST_OK;
}

/* Copies of weights behind the s->n calls, until there is more of them than a cache holds. */
static enum fst_status copy_weights(struct set *s)
{
    size_t bytes = 0, one = 0;
    for (int i = 0; i < s->n; i++) {
        struct own_weights w = weights_of(&s->call[i]);
        one = weights_bytes(&w);
        bytes += one;
    }
    if (!one || bytes >= DISTINCT || s->n >= SETS_MAX)
        return FST_OK;
    size_t more = (DISTINCT - bytes + one - 1) / one;
    int from = s->n, all = from + (int)FST_MIN(more, (size_t)(SETS_MAX - from));
    for (int i = from; i < all; i++) {
        s->call[i] = s->call[i % from];
        struct own_weights w = weights_of(&s->call[i]);
        s->block_bytes += weights_bytes(&w);
    }
    s->block = s->block_bytes ? device_alloc(s->c->stream->device, s->block_bytes) : NULL;
    s->mats = mem_calloc((size_t)all * MATS, sizeof *s->mats);
    if (!s->block || !s->mats)
        return fst_error(FST_ENOMEM, "bench: %zu bytes for weights of %s", s->block_bytes,
                         calls_entry_name(s->call[0].entry));
    uint8_t *at = s->block;
    for (s->n = from; s->n < all; s->n++)
        FST_TRY(move_weights(s->c->stream, &s->call[s->n], &s->mats[(size_t)s->n * MATS], &at));
    return FST_OK;
}

static enum fst_status launch_all(const struct set *s, int rounds)
{
    for (int i = 0; i < rounds * s->n; i++) {
        struct call *k = &s->call[i % s->n];
        if (s->operands)
            k->a.experts.operand = s->operands + (size_t)i * lines(s->operand);
        FST_TRY(launch(s->c, k));
    }
    return FST_OK;
}

/* One round untimed, which says how many make a pass; a card has loaded all code then. */
static enum fst_status choose_rounds(struct set *s, bool rest)
{
    struct stream *st = s->c->stream;
    FST_TRY(stream_sync(st));
    int64_t start = clock_ns();
    FST_TRY(launch_all(s, 1));
    FST_TRY(stream_sync(st));
    double us = FST_MAX(1.0, (double)(clock_ns() - start) * 1e-3);
    int most =
        FST_MAX(1, FST_MIN((int)LAUNCHES_MAX, FST_MAX(ROUNDS_MAX * s->n, (int)LAUNCHES)) / s->n);
    s->rounds = rest ? 1 : (int)FST_MAX(1.0, FST_MIN((double)most, ceil(PASS_US / us)));
    return FST_OK;
}

static enum fst_status make_operands(struct set *s, int launches)
{
    const struct device *d = s->c->stream->device;
    struct call *k = &s->call[0];
    device_free(d, s->operands, s->operands_bytes);
    s->operands = NULL;
    if (k->entry != CALL_experts || !k->operand)
        return FST_OK;
    s->operand = operand_bytes(s->c, &k->a.experts);
    s->operands_bytes = (size_t)launches * lines(s->operand);
    if (!(s->operands = device_alloc(d, s->operands_bytes)))
        return fst_error(FST_ENOMEM, "bench: %zu bytes for inputs", s->operands_bytes);
    return put_back(s);
}

static enum fst_status record(struct set *s)
{
    struct stream *st = s->c->stream;
    if (!stream_can_capture(st) || !st->device->mark)
        return FST_OK;
    FST_TRY(stream_sync(st));
    FST_TRY(stream_capture_begin(st));
    enum fst_status rc = launch_all(s, s->rounds), end = stream_capture_end(st, &s->graph);
    return rc < 0 ? rc : end;
}

static enum fst_status set_open(struct set *s, const struct calls *c, int entry, int site,
                                bool rest)
{
    int n = calls_count(c, entry, site);
    *s = (struct set){.c = c, .rounds = 1};
    s->call = mem_calloc((size_t)FST_MAX(n, (int)SETS_MAX), sizeof *s->call);
    if (!s->call)
        return fst_error(FST_ENOMEM, "bench: no memory for %d launches", n);
    for (int i = 0; i < c->n; i++)
        if (is_of(&c->call[i], entry, site))
            s->call[s->n++] = c->call[i];
    FST_TRY(copy_weights(s));
    for (int i = 0; i < s->n; i++) {
        const struct rows **rows = rows_of(&s->call[i]);
        if (rows)
            *rows = &s->call[i].rows;
    }
    FST_TRY(keep_inputs(s));
    FST_TRY(make_operands(s, s->n));
    FST_TRY(choose_rounds(s, rest));
    FST_TRY(make_operands(s, s->n * s->rounds));
    return record(s);
}

static void set_close(struct set *s)
{
    const struct device *d = s->c->stream->device;
    if (s->graph)
        stream_graph_free(s->c->stream, s->graph);
    for (size_t i = 0; i < FST_COUNT(s->kept); i++)
        device_free(d, s->kept[i].copy, s->kept[i].bytes);
    device_free(d, s->operands, s->operands_bytes);
    device_free(d, s->block, s->block_bytes);
    mem_free(s->mats);
    mem_free(s->call);
}

/* ------------------------------------------------------------------ playing */

static enum fst_status pass(struct set *s, bool rest, calls_busy_fn *busy, void *ud, double *us)
{
    struct stream *st = s->c->stream;
    FST_TRY(put_back(s));
    FST_TRY(stream_sync(st));
    if (rest)
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    if (s->graph) {
        FST_TRY(busy(ud, rest ? REST_BUSY_US : BUSY_US));
        FST_TRY(stream_mark(st, 0));
        FST_TRY(stream_graph_launch(st, s->graph));
        FST_TRY(stream_mark(st, 1));
        FST_TRY(stream_sync(st));
        return stream_between(st, 0, 1, us);
    }
    int64_t start = clock_ns();
    FST_TRY(launch_all(s, s->rounds));
    FST_TRY(stream_sync(st));
    *us = (double)(clock_ns() - start) * 1e-3;
    return FST_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum fst_status calls_play(struct calls *c, int entry, int site, bool rest, calls_busy_fn *busy,
                           void *ud, struct played *out)
{
    struct set s;
    double us[PASSES + 1];
    enum fst_status rc = set_open(&s, c, entry, site, rest);
    int first = s.graph ? 1 : 0; /* a recording goes to the card when it is launched first */
    for (int i = 0; i < PASSES + first && rc == FST_OK; i++)
        rc = pass(&s, rest, busy, ud, &us[i]);
    if (rc == FST_OK)
        rc = look(&s);
    if (rc == FST_OK)
        rc = put_back(&s);
    if (rc == FST_OK)
        rc = stream_sync(c->stream);
    if (rc == FST_OK) {
        int n = s.n * s.rounds;
        qsort(us + first, PASSES, sizeof *us, by_value);
        *out = (struct played){.sets = s.n,
                               .launches = n * PASSES,
                               .median_us = us[first + PASSES / 2] / n,
                               .best_us = us[first] / n};
    }
    set_close(&s);
    return rc;
}
