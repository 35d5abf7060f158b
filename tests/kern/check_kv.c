/* check_kv.c - the blocks that read and write KV: kv_write, index_topk, attention, ring_store.
 *
 * A world is one layer's storage for a few slots: everything that was never written is 0xff (not a
 * number in every format), history comes from ref, and a step has spans of all kinds: a prefill
 * chunk from 0, chunks that cross pages and pieces of 64, verify blocks, single rows. */
#include "checkkern.h"

enum { SLOTS = 6, SPANS_MAX = SLOTS, RING = 141, STATE_RING = 256 };

/* Rows first..first+n-1 of a step as a step of their own. */
struct part {
    struct rows r;
    int32_t span[4096], span_first[4097];
};

struct world {
    const struct ck_shape *m;
    struct kv_layer l;
    int n, n_spans; /* rows and spans of the step */
    int32_t *slot, *pos, *id, *pages;
    int span_start[SPANS_MAX + 1];
    int page_stride;
    size_t nope_bytes, rope_bytes, key_bytes, state_bytes, index_state_bytes;
    void *area[5], *saved[5];
    size_t area_bytes[5];
    float *kv0, *cmp, *idx, *cs, *q, *qi, *iw; /* inputs of the step's rows */
    float *q_packed;                           /* of the run in progress */
    float *ape, *cmp_norm, *idx_ape, *idx_norm, *sink, freq[32];
    float *kv_done; /* kv as ref finishes it */
    int32_t *sel_ref, *n_sel_ref;
    int64_t max_entries;
    enum attn_mode mode;
    /* outputs */
    float *kv, *o, *entries, *keys, *scores, *raw;
    int32_t *sel, *n_sel;
    float *margin;    /* (n) of the run in progress */
    struct part part; /* of the run in progress */
};

static float *gauss(struct ck *c, int64_t n, float mean, float spread)
{
    float *x = ck_alloc(c, (size_t)n * 4);
    ck_floats(c, x, n, mean, spread);
    return x;
}

/* Values as a normed row or query has them: bf16, about 1. */
static float *normed(struct ck *c, int64_t n)
{
    float *x = gauss(c, n, 0, 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = ck_bf16(x[i]);
    return x;
}

/* Queries on the FP4 grid, blocks of 32. */
static float *fp4_values(struct ck *c, int64_t n)
{
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float *x = ck_alloc(c, (size_t)n * 4), scale = 1;
    for (int64_t i = 0; i < n; i++) {
        if (i % 32 == 0)
            scale = ldexpf(1, ck_below(c, 4) - 3);
        float v = value[ck_below(c, 8)] * scale;
        x[i] = ck_below(c, 2) ? v : -v;
    }
    return x;
}

static struct rows *part_rows(struct world *w, int first, int n)
{
    struct part *p = &w->part;
    int spans = 0;
    FST_ASSERT(n <= 4096);
    for (int i = 0; i < n; i++) {
        int t = first + i;
        bool fresh = i == 0 || w->slot[t] != w->slot[t - 1];
        if (fresh)
            p->span_first[spans++] = i;
        p->span[i] = spans - 1;
    }
    p->span_first[spans] = n;
    p->r = (struct rows){n,       spans,         w->slot + first, w->pos + first, w->id + first,
                         p->span, p->span_first, w->pages,        w->page_stride};
    return &p->r;
}

static void write_kv(const struct world *w, const struct kernels *k, struct stream *s,
                     struct rows *r, float *kv, const float *cmp, const float *idx, const float *cs)
{
    const struct ck_shape *m = w->m;
    struct kv_write_args a = {r,       &w->l,       kv,          cmp,          idx,
                              w->ape,  w->cmp_norm, w->idx_ape,  w->idx_norm,  cs,
                              w->freq, m->head_dim, m->rope_dim, m->index_dim, 1e-6f};
    FST_ASSERT(k->kv_write(&a, s) == FST_OK);
}

static void store_ring(const struct world *w, const struct kernels *k, struct stream *s,
                       struct rows *r, const float *kv)
{
    struct ring_store_args a = {r, &w->l, kv, w->m->head_dim, w->m->rope_dim};
    FST_ASSERT(k->ring_store(&a, s) == FST_OK);
}

static void make_cs(struct ck *c, const struct world *w, const int32_t *pos, int n, float *cs)
{
    struct rope_args a = {cs, w->freq, pos, n, w->m->rope_dim};
    FST_ASSERT(c->k.rope(&a, &c->s) == FST_OK);
}

/* Positions 0..n-1 of a slot, by ref, in one chunk. */
static void history(struct ck *c, struct world *w, int slot, int n)
{
    const struct ck_shape *m = w->m;
    int32_t *s = ck_alloc(c, (size_t)n * 4), *p = ck_alloc(c, (size_t)n * 4);
    int32_t *span = ck_alloc(c, (size_t)n * 4), first[2] = {0, n};
    int wide = w->l.ratio == 4 ? 4 * m->head_dim : 2 * m->head_dim;
    for (int i = 0; i < n; i++) {
        s[i] = slot;
        p[i] = i;
    }
    struct rows r = {n, 1, s, p, p, span, first, w->pages, w->page_stride};
    float *kv = normed(c, (int64_t)n * m->head_dim), *cmp = NULL, *idx = NULL;
    float *cs = ck_alloc(c, (size_t)n * (size_t)m->rope_dim * 4);
    make_cs(c, w, p, n, cs);
    if (w->l.ratio)
        cmp = gauss(c, (int64_t)n * wide, 0, 1);
    if (w->l.ratio == 4)
        idx = gauss(c, (int64_t)n * 4 * m->index_dim, 0, 1);
    write_kv(w, &c->ref, &c->s_ref, &r, kv, cmp, idx, cs);
    store_ring(w, &c->ref, &c->s_ref, &r, kv);
}

static void *area(struct ck *c, struct world *w, int i, size_t bytes)
{
    w->area_bytes[i] = bytes;
    w->area[i] = ck_alloc(c, bytes);
    w->saved[i] = ck_alloc(c, bytes);
    memset(w->area[i], 0xff, bytes);
    return w->area[i];
}

static void keep_world(struct world *w)
{
    for (int i = 0; i < 5; i++)
        if (w->area[i])
            memcpy(w->saved[i], w->area[i], w->area_bytes[i]);
}

static void reset_world(struct ck *c, struct ck_case *t)
{
    struct world *w = t->ud;
    (void)c;
    for (int i = 0; i < 5; i++)
        if (w->area[i])
            memcpy(w->area[i], w->saved[i], w->area_bytes[i]);
}

static struct world *new_world(struct ck *c, const struct ck_shape *m, int ratio,
                               enum row_format format, enum index_format index,
                               const int start[SLOTS], const int len[SLOTS])
{
    struct world *w = ck_alloc(c, sizeof *w);
    int longest = 0, n = 0;
    w->m = m;
    for (int i = 0; i < SLOTS; i++) {
        longest = FST_MAX(longest, start[i] + len[i]);
        n += len[i];
    }
    w->n = n;
    w->page_stride = (int)div_up(longest, KERN_PAGE) + 1;
    int n_pages = SLOTS * w->page_stride, per_page = ratio ? KERN_PAGE / ratio : 0;
    w->pages = ck_alloc(c, (size_t)n_pages * 4);
    for (int i = 0; i < n_pages; i++) /* scattered: 7 has no factor in common with n_pages */
        w->pages[i] = (int32_t)(((int64_t)i * 10007 + 3) % n_pages);
    w->max_entries = ratio == 4 ? longest / 4 + 1 : 0;
    ck_scratch(c, m, FST_MAX(n, longest), w->max_entries);
    w->l = (struct kv_layer){.format = format,
                             .ring = RING,
                             .ratio = ratio,
                             .compressed_base = SLOTS * RING,
                             .n_rows = SLOTS * RING + n_pages * per_page,
                             .state_ring = ratio == 4 ? 32 : STATE_RING,
                             .index_format = index};
    int64_t bytes = w->l.n_rows * rows_bytes(format, m->head_dim);
    if (format == ROW_PAGED)
        bytes = div_up(SLOTS * RING, ROWS_PAGED_WINDOW) * rows_paged_page(ROWS_PAGED_WINDOW) +
                n_pages * rows_paged_page(per_page);
    w->l.nope = area(c, w, 0, (size_t)bytes);
    if (format == ROW_FP8)
        w->l.rope = area(c, w, 1, (size_t)w->l.n_rows * ROWS_ROPE_BYTES);
    int width = ratio == 4 ? 4 * m->head_dim : 2 * m->head_dim;
    if (ratio)
        w->l.state = area(c, w, 2, (size_t)(SLOTS * w->l.state_ring * width) * 4);
    if (ratio == 4) {
        w->l.index_keys =
            area(c, w, 3, (size_t)(n_pages * rows_index_page_bytes(index, m->index_dim)));
        w->l.index_state = area(c, w, 4, (size_t)(SLOTS * w->l.state_ring * 4 * m->index_dim) * 4);
    }
    for (int i = 0; i < m->rope_dim / 2; i++)
        w->freq[i] = powf(160000, -2.0f * (float)i / (float)m->rope_dim);
    w->ape = gauss(c, (int64_t)FST_MAX(ratio, 1) * width / 2, 0, 0.5f);
    w->cmp_norm = gauss(c, m->head_dim, 1, 0.2f);
    w->idx_ape = gauss(c, 8 * m->index_dim, 0, 0.5f);
    w->idx_norm = gauss(c, m->index_dim, 1, 0.2f);
    w->sink = gauss(c, m->n_heads, 0, 1);
    w->margin = ck_alloc(c, (size_t)n * 4);
    w->slot = ck_alloc(c, (size_t)n * 4);
    w->pos = ck_alloc(c, (size_t)n * 4);
    w->id = ck_alloc(c, (size_t)n * 4);
    int t = 0;
    for (int i = 0; i < SLOTS; i++) {
        int slot = (i * 5 + 2) % SLOTS; /* slots in no order */
        if (start[i] && len[i])
            history(c, w, slot, start[i]);
        if (len[i])
            w->span_start[w->n_spans++] = t;
        for (int j = 0; j < len[i]; j++, t++) {
            w->slot[t] = slot;
            w->pos[t] = start[i] + j;
        }
    }
    w->span_start[w->n_spans] = n;
    w->kv0 = normed(c, (int64_t)n * m->head_dim);
    w->cs = ck_alloc(c, (size_t)n * (size_t)m->rope_dim * 4);
    make_cs(c, w, w->pos, n, w->cs);
    if (ratio)
        w->cmp = gauss(c, (int64_t)n * width, 0, 1);
    if (ratio == 4)
        w->idx = gauss(c, (int64_t)n * 4 * m->index_dim, 0, 1);
    w->q = normed(c, (int64_t)n * m->n_heads * m->head_dim);
    w->q_packed = ck_alloc(c, (size_t)n * (size_t)m->n_heads * (size_t)m->head_dim * 4);
    if (ratio == 4) {
        w->qi = fp4_values(c, (int64_t)n * m->index_heads * m->index_dim);
        w->iw = normed(c, (int64_t)n * m->index_heads);
    }
    return w;
}

static void new_case(struct ck_case *t, const char *entry, struct world *w, int n_rows, int n_ref)
{
    static const char *const row[] = {"bf16", "fp8", "f32"}, *const key[] = {"fp4", "fp8", "f32"};
    *t = (struct ck_case){.entry = entry,
                          .n_rows = n_rows,
                          .n_ref = FST_MIN(n_rows, n_ref),
                          .ud = w,
                          .reset = reset_world,
                          .sequential = true};
    snprintf(t->label, sizeof t->label, "%s ratio %d, %s rows, %s keys", w->m->name, w->l.ratio,
             row[w->l.format], key[w->l.index_format]);
}

/* ---------------------------------------------------------------- kv_write */

static void load_entries(const struct world *w, int first, int n)
{
    const struct ck_shape *m = w->m;
    for (int t = first; t < first + n; t++) {
        float *e = w->entries + (int64_t)t * m->head_dim,
              *key = w->keys + (int64_t)t * m->index_dim;
        const int32_t *pages = w->pages + (int64_t)w->slot[t] * w->page_stride;
        memset(e, 0, (size_t)m->head_dim * 4);
        memset(key, 0, (size_t)m->index_dim * 4);
        if (!w->l.ratio || (w->pos[t] + 1) % w->l.ratio)
            continue;
        int64_t at = w->pos[t] / w->l.ratio;
        rows_load(&w->l, rows_entry(&w->l, pages, at), e, m->head_dim, m->rope_dim);
        if (w->l.ratio == 4)
            rows_index_load(&w->l, pages, at, key, m->index_dim);
    }
}

static void run_write(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                      int first, int n)
{
    struct world *w = t->ud;
    int64_t dim = w->m->head_dim, width = (w->l.ratio == 4 ? 4 : 2) * dim;
    struct rows *r = part_rows(w, first, n);
    float *kv = w->kv + first * dim;
    (void)c;
    memcpy(kv, w->kv0 + first * dim, (size_t)(n * dim) * 4);
    write_kv(w, k, s, r, kv, w->cmp ? w->cmp + first * width : NULL,
             w->idx ? w->idx + (int64_t)first * 4 * w->m->index_dim : NULL,
             w->cs + (int64_t)first * w->m->rope_dim);
    if (!c->bench)
        load_entries(w, first, n);
}

static void case_write(struct ck *c, struct world *w)
{
    struct ck_case t;
    int dim = w->m->head_dim, nope = dim - w->m->rope_dim;
    new_case(&t, "kv_write", w, w->n, w->n);
    t.run = run_write;
    /* every third row: a staircase over the denormal codes and their midpoints, under 448 */
    for (int i = 0; i < w->n; i += 3)
        for (int d = 0; d < nope; d++)
            w->kv0[i * dim + d] = d % 64 ? (d & 1 ? -1.0f : 1.0f) * 0x1p-11f * (float)(d + i) : 448;
    ck_out(&t, c, "kv", &w->kv, dim, 1e-5);
    ck_out(&t, c, "entries", &w->entries, dim, 1e-5);
    ck_out(&t, c, "keys", &w->keys, w->m->index_dim, 1e-3); /* a flipped code is a large step */
    ck_run(c, &t);
    if (c->bench)
        return;
    /* no angle in the first dims: the grid is exact */
    size_t bytes = (size_t)(w->n * dim) * 4;
    float *ref = ck_alloc(c, bytes);
    reset_world(c, &t);
    run_write(c, &t, &c->ref, &c->s_ref, 0, w->n);
    memcpy(ref, w->kv, bytes);
    reset_world(c, &t);
    run_write(c, &t, &c->k, &c->s, 0, w->n);
    bool same = true;
    for (int i = 0; i < w->n && same; i++)
        same = memcmp(ref + i * dim, w->kv + i * dim, (size_t)nope * 4) == 0;
    ck_verdict(c, same, "kv_write", "%s: values off the FP8 grid of ref", t.label);
}

/* ---------------------------------------------------------------- index_topk */

static void run_index(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                      int first, int n)
{
    struct world *w = t->ud;
    const struct ck_shape *m = w->m;
    struct index_topk_args a = {.rows = part_rows(w, first, n),
                                .l = &w->l,
                                .qi = w->qi + (int64_t)first * m->index_heads * m->index_dim,
                                .iw = w->iw + (int64_t)first * m->index_heads,
                                .sel = w->sel + (int64_t)first * m->topk,
                                .n_sel = w->n_sel + first,
                                .max_entries = w->max_entries,
                                .scores = w->scores ? w->scores + first * w->max_entries : NULL,
                                .index_heads = m->index_heads,
                                .index_dim = m->index_dim,
                                .topk = m->topk,
                                .margin = w->margin};
    (void)c;
    FST_ASSERT(k->index_topk(&a, s) == FST_OK);
    for (int t0 = first; t0 < first + n && w->scores; t0++) { /* poison would drown the NMSE */
        int64_t nv = ((int64_t)w->pos[t0] + 1) / 4;
        memset(w->scores + t0 * w->max_entries + nv, 0, (size_t)(w->max_entries - nv) * 4);
    }
}

/* The choice that the scores of the same run ask for, entry by entry. */
static bool choice_right(const struct world *w, int t)
{
    int64_t nv = ((int64_t)w->pos[t] + 1) / 4, at = 0;
    int k = (int)FST_MIN(nv, w->m->topk);
    const float *s = w->scores + t * w->max_entries;
    const int32_t *sel = w->sel + (int64_t)t * w->m->topk;
    if (w->n_sel[t] != k)
        return false;
    for (int64_t e = 0; e < nv; e++) {
        int64_t above = 0;
        for (int64_t f = 0; f < nv && above < k; f++)
            above += s[f] > s[e] || (s[f] == s[e] && f < e);
        if (above < k && sel[at++] != e)
            return false;
    }
    return at == k;
}

static void case_index(struct ck *c, struct world *w, bool ties)
{
    struct ck_case t;
    new_case(&t, "index_topk", w, w->n, w->n);
    t.run = run_index;
    if (ties) { /* few distinct scores, then all equal */
        for (int64_t i = 0; i < (int64_t)w->n * w->m->index_heads; i++)
            w->iw[i] = i % w->m->index_heads == 0 && i / w->m->index_heads % 3 ? 1 : 0;
        snprintf(t.label + strlen(t.label), 16, ", ties");
    }
    ck_out(&t, c, "scores", &w->scores, w->max_entries, ties ? 1e-5 : 1e-6);
    ck_out_int(&t, c, "sel", &w->sel, w->m->topk);
    t.out[1].nmse = -1;
    ck_out_int(&t, c, "n_sel", &w->n_sel, 1);
    for (int i = 0; i < w->n; i++) {
        t.macs += ((int64_t)w->pos[i] + 1) / 4 * w->m->index_heads * w->m->index_dim;
        t.bytes += ((int64_t)w->pos[i] + 1) / 4 *
                   (rows_index_page_bytes(w->l.index_format, w->m->index_dim) / ROWS_INDEX_PAGE);
    }
    ck_run(c, &t);
    if (c->bench)
        return;
    reset_world(c, &t);
    run_index(c, &t, &c->k, &c->s, 0, w->n);
    for (int i = 0; i < w->n; i += ties ? 1 : 3)
        ck_verdict(c, choice_right(w, i), "index_topk", "%s: wrong choice in row %d", t.label, i);
    /* without the scores the same choice */
    float *scores = w->scores;
    int32_t *sel = ck_alloc(c, (size_t)w->n * (size_t)w->m->topk * 4);
    memcpy(sel, w->sel, (size_t)w->n * (size_t)w->m->topk * 4);
    w->scores = NULL;
    run_index(c, &t, &c->k, &c->s, 0, w->n);
    w->scores = scores;
    ck_verdict(c, memcmp(sel, w->sel, (size_t)w->n * (size_t)w->m->topk * 4) == 0, "index_topk",
               "%s: choice changes when scores are not asked for", t.label);
}

/* ---------------------------------------------------------------- attention */

/* Heads packed where the table takes them, over FP8 rows; over others as floats. */
static bool takes_packed(const struct world *w, const struct kernels *k)
{
    struct q_path_args q = {.head_dim = w->m->head_dim};
    struct attn_out_args out = {.groups = w->m->groups};
    return w->l.format == ROW_FP8 && k->heads_packed && k->heads_packed(&q, &out);
}
static const float *queries(struct world *w, int first, int n, bool packed)
{
    int64_t heads = w->m->n_heads * w->m->head_dim;
    if (!packed)
        return w->q + first * heads;
    memcpy(w->q_packed, w->q + first * heads, (size_t)(n * heads) * 4);
    ck_pack(w->q_packed, n, heads, false);
    return w->q_packed;
}

static void run_attention(struct ck *c, struct ck_case *t, const struct kernels *k,
                          struct stream *s, int first, int n)
{
    struct world *w = t->ud;
    const struct ck_shape *m = w->m;
    int64_t dim = m->head_dim, heads = m->n_heads * dim;
    struct rows *r = part_rows(w, first, n);
    bool packed = takes_packed(w, k);
    struct attention_args a = {.rows = r,
                               .l = &w->l,
                               .mode = ATTN_CAUSAL,
                               .q = queries(w, first, n, packed),
                               .kv = w->kv_done + first * dim,
                               .sel = w->sel_ref ? w->sel_ref + (int64_t)first * m->topk : NULL,
                               .n_sel = w->n_sel_ref ? w->n_sel_ref + first : NULL,
                               .topk = m->topk,
                               .sink = w->sink,
                               .cs = w->cs + (int64_t)first * m->rope_dim,
                               .o = w->o + first * heads,
                               .n_heads = m->n_heads,
                               .head_dim = m->head_dim,
                               .rope_dim = m->rope_dim,
                               .window = m->window,
                               .scale = 1 / sqrtf((float)m->head_dim),
                               .packed = packed};
    FST_ASSERT(k->attention(&a, s) == FST_OK);
    if (packed)
        ck_unpack(a.o, n, heads, true);
    if (!c->bench)
        store_ring(w, k, s, r, w->kv_done + first * dim);
}

/* Bytes of the ring rows of the step's last rows. */
static void run_ring(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                     int first, int n)
{
    struct world *w = t->ud;
    int64_t dim = w->m->head_dim, bytes = rows_bytes(w->l.format, w->m->head_dim);
    struct rows *r = part_rows(w, first, n);
    (void)c;
    store_ring(w, k, s, r, w->kv_done + first * dim);
    for (int i = 0; i < w->n; i++) { /* all rows: later ones are still history */
        uint8_t *raw = (uint8_t *)w->raw + (size_t)i * 1280;
        int64_t row = rows_window(&w->l, w->slot[i], w->pos[i]);
        memset(raw, 0, 1280);
        if (i >= first + n)
            continue;
        if (w->l.format == ROW_PAGED) {
            uint8_t *scale;
            memcpy(raw, rows_paged(&w->l, row, &scale), ROWS_PAGED_DATA);
            memcpy(raw + ROWS_PAGED_DATA, scale, ROWS_PAGED_SCALE);
            continue;
        }
        memcpy(raw, w->l.nope + row * bytes, (size_t)bytes);
        if (w->l.format == ROW_FP8) {
            memset(raw + 462, 0, 50);
            memcpy(raw + 512, w->l.rope + row * ROWS_ROPE_BYTES, ROWS_ROPE_BYTES);
        }
    }
}

static void case_ring(struct ck *c, struct world *w)
{
    struct ck_case t;
    new_case(&t, "ring_store", w, w->n, w->n);
    t.run = run_ring;
    ck_out(&t, c, "bytes", &w->raw, 320, 0);
    ck_run(c, &t);
}

/* What a row may not see may hold anything: with the last row of every span no number, all other rows
 * keep their bits. */
static void check_later_rows(struct ck *c, struct ck_case *t)
{
    struct world *w = t->ud;
    size_t heads = (size_t)(w->m->n_heads * w->m->head_dim) * 4, all = (size_t)w->n * heads;
    int dim = w->m->head_dim;
    float *o = ck_alloc(c, all), *kv = ck_alloc(c, (size_t)(w->n * dim) * 4), *done = w->kv_done;
    reset_world(c, t);
    run_attention(c, t, &c->k, &c->s, 0, w->n);
    memcpy(o, w->o, all);
    memcpy(kv, done, (size_t)(w->n * dim) * 4);
    for (int i = 0; i < w->n_spans; i++)
        for (int d = 0; d < dim; d++)
            kv[(int64_t)(w->span_start[i + 1] - 1) * dim + d] = NAN;
    w->kv_done = kv;
    reset_world(c, t);
    run_attention(c, t, &c->k, &c->s, 0, w->n);
    w->kv_done = done;
    for (int i = 0; i < w->n_spans; i++) {
        size_t at = (size_t)w->span_start[i] * heads;
        size_t n = (size_t)(w->span_start[i + 1] - 1 - w->span_start[i]) * heads;
        ck_verdict(c, memcmp((uint8_t *)o + at, (uint8_t *)w->o + at, n) == 0, "attention",
                   "%s: a later row leaks into span %d", t->label, i);
    }
}

static void case_attention(struct ck *c, struct world *w, int n_ref)
{
    struct ck_case t;
    new_case(&t, "attention", w, w->n, n_ref);
    t.run = run_attention;
    for (int i = 0; i < w->n; i++) {
        int64_t keys = FST_MIN(w->pos[i] + 1, w->m->window);
        if (w->l.ratio == 128)
            keys += (w->pos[i] + 1) / 128;
        if (w->l.ratio == 4)
            keys += FST_MIN((w->pos[i] + 1) / 4, w->m->topk);
        t.macs += keys * w->m->n_heads * w->m->head_dim * 2;
        t.bytes += keys * (w->l.format == ROW_FP8 ? 590 : rows_bytes(w->l.format, w->m->head_dim));
    }
    ck_out(&t, c, "o", &w->o, (int64_t)w->m->n_heads * w->m->head_dim, 1e-5);
    ck_run(c, &t);
    if (!c->bench && !c->sweep && c->k.flags)
        check_later_rows(c, &t);
}

/* ---------------------------------------------------------------- draft blocks */

static void run_block(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                      int first, int n)
{
    struct world *w = t->ud;
    const struct ck_shape *m = w->m;
    int r0 = w->span_start[first], rows = w->span_start[first + n] - r0;
    int64_t dim = m->head_dim, heads = m->n_heads * dim;
    bool packed = takes_packed(w, k);
    struct attention_args a = {.rows = part_rows(w, r0, rows),
                               .l = &w->l,
                               .mode = ATTN_BLOCK,
                               .q = queries(w, r0, rows, packed),
                               .kv = w->kv_done + r0 * dim,
                               .sink = w->sink,
                               .cs = w->cs + (int64_t)r0 * m->rope_dim,
                               .o = w->o + r0 * heads,
                               .n_heads = m->n_heads,
                               .head_dim = m->head_dim,
                               .rope_dim = m->rope_dim,
                               .window = m->window,
                               .scale = 1 / sqrtf((float)m->head_dim),
                               .packed = packed};
    (void)c;
    FST_ASSERT(k->attention(&a, s) == FST_OK);
    if (packed)
        ck_unpack(a.o, rows, heads, true);
}

static void case_block(struct ck *c, struct world *w)
{
    struct ck_case t; /* a "row" is a span: blocks of 5 cannot be cut */
    new_case(&t, "attention", w, w->n_spans, w->n_spans);
    t.run = run_block;
    snprintf(t.label + strlen(t.label), 24, ", draft block");
    t.sequential = false;
    ck_out(&t, c, "o", &w->o, (int64_t)5 * w->m->n_heads * w->m->head_dim, 1e-5);
    ck_run(c, &t);
}

/* ---------------------------------------------------------------- the whole chain */

/* What a layer does to its rows in a step, all by one set: the same bits however the step is cut. */
static void run_chain(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                      int first, int n)
{
    struct world *w = t->ud;
    run_write(c, t, k, s, first, n);
    if (w->l.ratio == 4)
        run_index(c, t, k, s, first, n);
    w->kv_done = w->kv;
    w->sel_ref = w->sel;
    w->n_sel_ref = w->n_sel;
    run_attention(c, t, k, s, first, n);
}

static void case_chain(struct ck *c, struct world *w)
{
    struct ck_case t;
    float *done = w->kv_done;
    int32_t *sel = w->sel_ref, *n_sel = w->n_sel_ref;
    new_case(&t, "attention", w, w->n, 1);
    t.run = run_chain;
    snprintf(t.label + strlen(t.label), 24, ", whole chain");
    w->scores = NULL;
    ck_out(&t, c, "kv", &w->kv, w->m->head_dim, -1);
    ck_out(&t, c, "entries", &w->entries, w->m->head_dim, -1);
    ck_out(&t, c, "keys", &w->keys, w->m->index_dim, -1);
    if (w->l.ratio == 4) {
        ck_out_int(&t, c, "sel", &w->sel, w->m->topk);
        ck_out_int(&t, c, "n_sel", &w->n_sel, 1);
        t.out[3].nmse = t.out[4].nmse = -1;
    }
    ck_out(&t, c, "o", &w->o, (int64_t)w->m->n_heads * w->m->head_dim, -1);
    ck_run(c, &t);
    w->kv_done = done;
    w->sel_ref = sel;
    w->n_sel_ref = n_sel;
}

/* ---------------------------------------------------------------- all */

/* kv, entries, keys and selections of the step as ref makes them, for the blocks behind kv_write. */
static void finish_by_ref(struct ck *c, struct world *w)
{
    struct ck_case t = {.ud = w};
    const struct ck_shape *m = w->m;
    w->kv = w->kv_done = ck_alloc(c, (size_t)w->n * (size_t)m->head_dim * 4);
    w->entries = ck_alloc(c, (size_t)w->n * (size_t)m->head_dim * 4);
    w->keys = ck_alloc(c, (size_t)w->n * (size_t)m->index_dim * 4);
    run_write(c, &t, &c->ref, &c->s_ref, 0, w->n);
    keep_world(w);
    if (w->l.ratio == 4) {
        w->sel = w->sel_ref = ck_alloc(c, (size_t)w->n * (size_t)m->topk * 4);
        w->n_sel = w->n_sel_ref = ck_alloc(c, (size_t)w->n * 4);
        w->scores = NULL;
        const struct kernels *k = c->bench ? &c->k : &c->ref;
        run_index(c, &t, k, &c->s_ref, 0, w->n);
    }
}

static void all_of(struct ck *c, const struct ck_shape *m, int ratio, enum row_format format,
                   enum index_format index, const int start[SLOTS], const int len[SLOTS], int n_ref)
{
    struct world *w = new_world(c, m, ratio, format, index, start, len);
    keep_world(w);
    if (ck_wanted(c, "kv_write"))
        case_write(c, w);
    if (ck_wanted(c, "attention") && !c->sweep && !c->bench)
        case_chain(c, w);
    reset_world(c, &(struct ck_case){.ud = w});
    finish_by_ref(c, w);
    if (ck_wanted(c, "attention"))
        case_attention(c, w, n_ref);
    if (ck_wanted(c, "ring_store"))
        case_ring(c, w);
    if (ratio == 4 && ck_wanted(c, "index_topk")) {
        case_index(c, w, false);
        if (!c->bench)
            case_index(c, w, true);
    }
    ck_free_all(c);
}

static void blocks(struct ck *c, enum row_format format)
{
    static const int start[SLOTS] = {0, 1, 64, 127, 200, 1000}, len[SLOTS] = {5, 5, 5, 5, 5, 5};
    struct world *w = new_world(c, &ck_kindling, 0, format, INDEX_FP4, start, len);
    keep_world(w);
    finish_by_ref(c, w);
    case_block(c, w);
    ck_free_all(c);
}

void check_kv(struct ck *c)
{
    /* from 0; across pages; over a group of 128 begun in the span; one row; a verify block on the
     * edge of a group; late */
    static const int start[SLOTS] = {0, 250, 60, 700, 511, 2301};
    static const int len[SLOTS] = {70, 12, 70, 1, 6, 9};
    static const int few[SLOTS] = {3, 6, 6, 1, 1, 2};
    static const int one[SLOTS] = {0, 0, 0, 0, 0, 1}, six[SLOTS] = {0, 0, 0, 0, 0, 6};
    static const int late[SLOTS] = {0, 0, 0, 0, 0, 3000}, prefill[SLOTS] = {0, 0, 0, 0, 0, 1024};
    static const int ratios[] = {0, 128, 4};
    bool any = ck_wanted(c, "kv_write") || ck_wanted(c, "attention") ||
               ck_wanted(c, "ring_store") || ck_wanted(c, "index_topk");
    if (!any)
        return;
    for (size_t i = 0; i < FST_COUNT(ratios); i++) {
        if (c->bench) {
            all_of(c, &ck_kindling, ratios[i], ROW_FP8, INDEX_FP4, late, one, 1);
            all_of(c, &ck_kindling, ratios[i], ROW_FP8, INDEX_FP4, late, six, 1);
            if (c->k.flags)
                all_of(c, &ck_kindling, ratios[i], ROW_FP8, INDEX_FP4, late, prefill, 1);
            continue;
        }
        bool small = c->emulated && !c->is_long;
        const int *n = c->k.flags && !c->sweep && !small ? len : few;
        all_of(c, &ck_kindling, ratios[i], ROW_FP8, INDEX_FP4, start, n, 200);
        if (c->sweep)
            continue;
        all_of(c, &ck_kindling, ratios[i], ROW_BF16, INDEX_FP8, start, n, 200);
        all_of(c, &ck_kindling, ratios[i], ROW_PAGED, INDEX_FP4, start, n, 200);
        all_of(c, &ck_t1, ratios[i], ROW_BF16, INDEX_FP4, start, few, 200);
        if (c->k.flags && c->is_long && !c->emulated)
            all_of(c, &ck_flash, ratios[i], ROW_FP8, INDEX_FP4, start, few, 20);
    }
    if (c->bench || !ck_wanted(c, "attention"))
        return;
    blocks(c, ROW_FP8);
    blocks(c, ROW_BF16);
    if (c->k.flags && !c->sweep && !c->is_long && !c->emulated) {
        static const int two[SLOTS] = {0, 0, 0, 0, 0, 2}, where[SLOTS] = {0, 0, 0, 0, 0, 2301};
        all_of(c, &ck_flash, 4, ROW_FP8, INDEX_FP4, where, two, 2);
    }
}
