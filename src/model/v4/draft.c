/* draft.c - target rows into the drafter's windows; the DSpark drafter: blocks of tokens out of them
 * (DSpark paper §3).  mtp.c has the other one's. */
#include "model/v4/v4.h"

static struct rows rows_at(struct model *m, const struct kv *kv, int n_rows, int n_spans)
{
    struct v4_rows at = v4_rows_of(m, n_rows);
    return (struct rows){.n_rows = n_rows,
                         .n_spans = n_spans,
                         .slot = at.slot,
                         .pos = at.pos,
                         .id = at.id,
                         .span = at.span,
                         .span_first = at.span_first,
                         .pages = kv_pages_for_kernels(kv),
                         .page_stride = kv->page_stride};
}

/* The rows to inject as a step of their own: same slots and positions, runs as spans. */
static struct rows picked_rows(struct model *m, const struct kv *kv, const struct rows *rows,
                               const int32_t *row, int n)
{
    struct v4_rows b = v4_rows_shared(m, n);
    int n_spans = 0;
    for (int i = 0; i < n; i++) {
        int t = row[i];
        bool same = i && rows->span[t] == rows->span[row[i - 1]];
        FST_ASSERT(!same || t == row[i - 1] + 1);
        if (!same)
            b.span_first[n_spans++] = i;
        b.slot[i] = rows->slot[t];
        b.pos[i] = rows->pos[t];
        b.id[i] = rows->id[t];
        b.span[i] = n_spans - 1;
        b.pick[i] = t;
    }
    b.span_first[n_spans] = n;
    return rows_at(m, kv, n, n_spans);
}

/* The window rows of one stage from the fused hidden rows in work.a. */
static enum fst_status inject_stage(struct model *m, const struct v4_layer *l, struct kv *kv,
                                    const struct rows *rows)
{
    const struct model_config *c = m->c;
    const struct kv_layer *pool = &kv->layer[l->pool];
    struct v4_work *b = &m->work;
    struct attn_in_args in = {.x = b->a,
                              .wkv = &l->w->attn.wkv,
                              .kv_norm = l->w->attn.kv_norm,
                              .kv = b->kv,
                              .norm_eps = c->norm_eps,
                              .n_rows = rows->n_rows};
    FST_TRY(v4_run_attn_in(m, &in));
    struct kv_write_args write = {.rows = rows,
                                  .l = pool,
                                  .kv = b->kv,
                                  .cs = b->cs[0],
                                  .freq = m->work.freq[0],
                                  .head_dim = c->head_dim,
                                  .rope_dim = c->rope_dim,
                                  .index_dim = c->index_dim,
                                  .norm_eps = c->norm_eps};
    FST_TRY(v4_run_kv_write(m, &write));
    struct ring_store_args ring = {
        .rows = rows, .l = pool, .kv = b->kv, .head_dim = c->head_dim, .rope_dim = c->rope_dim};
    return v4_run_ring_store(m, &ring);
}

struct draft_call {
    struct kv *kv;
    struct rows rows;            /* as kernels see them */
    const float *hidden;         /* injection: what the rows' picks count in */
    const struct draft_batch *d; /* NULL: injection */
};

/* What the stages' wkv read, in work.a. */
static enum fst_status dspark_inputs(struct model *m, const struct draft_call *f)
{
    int n = f->rows.n_rows;
    struct main_proj_args fuse = {.h = f->hidden,
                                  .row = v4_rows_of(m, n).pick,
                                  .main_proj = &m->w->dspark.main_proj,
                                  .main_norm = m->w->dspark.main_norm,
                                  .main = m->work.a,
                                  .n_rows = n,
                                  .norm_eps = m->c->norm_eps};
    return v4_run_main_proj(m, &fuse);
}

/* One layer's rows follow from its input alone: neither attention nor experts are asked for them. */
static enum fst_status mtp_inputs(struct model *m, const struct draft_call *f)
{
    const struct layer_weights *w = m->stage[0].w;
    int n = f->rows.n_rows;
    FST_TRY(v4_mtp_streams(m, f->hidden, v4_rows_of(m, n).pick, f->rows.id, n));
    return v4_seam(m, m->work.draft_x, n, NULL, &w->hc_attn, w->attn_norm, NULL);
}

static enum fst_status enqueue_inject(struct model *m, void *ud)
{
    const struct draft_call *f = ud;
    FST_TRY(v4_send_rows(m, f->rows.n_rows));
    FST_TRY(m->c->has_mtp ? mtp_inputs(m, f) : dspark_inputs(m, f));
    FST_TRY(v4_rope(m, &f->rows, false));
    for (int s = 0; s < m->n_stages; s++)
        FST_TRY(inject_stage(m, &m->stage[s], f->kv, &f->rows));
    return FST_OK;
}

enum fst_status model_inject(struct model *m, struct kv *kv, const struct rows *rows,
                             const int32_t *row, int n)
{
    FST_ASSERT(m->n_stages > 0);
    FST_ASSERT(m->c->has_dspark);
    v4_check_picks(row, n, rows->n_rows, m->opts.max_rows);
    if (n == 0)
        return FST_OK;
    FST_TRY(v4_begin(m));
    struct draft_call f = {
        .kv = kv, .rows = picked_rows(m, kv, rows, row, n), .hidden = m->work.captured};
    struct v4_key key = {
        .call = V4_INJECT, .n_rows = n, .n_spans = f.rows.n_spans, .kv = kv, .pages = kv->pages};
    return v4_run(m, &key, enqueue_inject, &f, false);
}

/* ---------------------------------------------------------------- rows that are held */

static int64_t held_at(const struct model *m, const struct kv *kv, int64_t slot, int64_t pos)
{
    int n = model_held_rows(m, kv);
    return slot * n + pos % n;
}

static float *held_rows(const struct model *m, const struct kv *kv)
{
    return m->c->has_mtp ? kv->carry : m->work.held;
}

enum fst_status model_hold(struct model *m, struct kv *kv, const struct rows *rows,
                           const int32_t *row, int n)
{
    const float *from = m->c->has_mtp ? m->work.x : m->work.captured;
    int64_t width = (m->c->has_mtp ? KERN_HC : m->n_stages) * (int64_t)m->c->hidden_size;
    FST_ASSERT(m->n_stages > 0);
    FST_ASSERT(!m->c->has_mtp || kv->spec.carry_floats == width);
    v4_check_picks(row, n, rows->n_rows, m->opts.max_rows);
    for (int i = 0, run; i < n; i += run) { /* rows that stay next to each other */
        int t = row[i];
        int64_t to = held_at(m, kv, rows->slot[t], rows->pos[t]);
        for (run = 1; i + run < n && row[i + run] == t + run &&
                      held_at(m, kv, rows->slot[t + run], rows->pos[t + run]) == to + run;
             run++)
            ;
        FST_TRY(stream_copy(m->stream, held_rows(m, kv) + to * width, from + (int64_t)t * width,
                            (size_t)(run * width) * sizeof(float)));
    }
    m->under_way |= n > 0;
    return FST_OK;
}

static enum fst_status inject_some(struct model *m, struct kv *kv, int n, int n_spans)
{
    struct draft_call f = {
        .kv = kv, .rows = rows_at(m, kv, n, n_spans), .hidden = held_rows(m, kv)};
    struct v4_key key = {.call = V4_INJECT_HELD, .n_rows = n, .n_spans = n_spans, .kv = kv};
    v4_rows_shared(m, n).span_first[n_spans] = n;
    return v4_run(m, &key, enqueue_inject, &f, false);
}

enum fst_status model_inject_held(struct model *m, struct kv *kv, const struct model_held *held,
                                  int n)
{
    FST_ASSERT(m->n_stages > 0);
    for (int i = 0; i < n;) {
        /* Arrays lie by the number of rows, so that comes first. */
        int last = i, n_rows = 0, at = 0;
        for (; last < n; last++) {
            int64_t more = held[last].to - held[last].from;
            FST_ASSERT(more > 0);
            FST_ASSERT(more <= model_held_rows(m, kv));
            if (last > i && n_rows + more > m->max_rows)
                break;
            n_rows += (int)more;
        }
        if (n_rows > m->max_rows) { /* one slot's, in a workspace of few rows */
            FST_ASSERT(last == i + 1);
            struct model_held h = held[i];
            for (int64_t to = h.to; h.from < to; h.from = h.to) {
                h.to = FST_MIN(h.from + m->max_rows, to);
                FST_TRY(model_inject_held(m, kv, &h, 1));
                h.next = h.next ? h.next + (h.to - h.from) : NULL;
            }
            i = last;
            continue;
        }
        FST_TRY(v4_begin(m));
        struct v4_rows b = v4_rows_shared(m, n_rows);
        for (int s = i; s < last; s++) {
            b.span_first[s - i] = at;
            for (int64_t p = held[s].from; p < held[s].to; p++, at++) {
                b.slot[at] = held[s].slot;
                b.pos[at] = (int32_t)p;
                b.id[at] = held[s].next ? held[s].next[p - held[s].from] : 0;
                b.span[at] = s - i;
                b.pick[at] = (int32_t)held_at(m, kv, held[s].slot, p);
            }
        }
        FST_TRY(inject_some(m, kv, n_rows, last - i));
        i = last;
    }
    return FST_OK;
}

/* Blocks [anchor, noise, noise, ...] at positions n .. n+gamma-1, one span per request. */
static struct rows block_rows(struct model *m, const struct kv *kv, const struct draft_batch *d)
{
    struct v4_rows b = v4_rows_shared(m, d->n * d->gamma);
    for (int i = 0; i < d->n; i++) {
        FST_ASSERT(d->slot[i] >= 0);
        FST_ASSERT(d->slot[i] <= kv->spec.n_slots);
        FST_ASSERT(d->n_committed[i] > 0);
        FST_ASSERT(d->anchor[i] >= 0);
        FST_ASSERT(d->anchor[i] < m->c->vocab_size);
        b.span_first[i] = i * d->gamma;
        for (int k = 0; k < d->gamma; k++) {
            int t = i * d->gamma + k;
            b.slot[t] = d->slot[i];
            b.pos[t] = (int32_t)(d->n_committed[i] + k);
            b.id[t] = k ? m->c->noise_id : d->anchor[i];
            b.span[t] = i;
            b.pick[t] = t;
        }
    }
    b.span_first[d->n] = d->n * d->gamma;
    return rows_at(m, kv, d->n * d->gamma, d->n);
}

static enum fst_status enqueue_chain(struct model *m, const struct draft_batch *d)
{
    const struct dspark_weights *w = &m->w->dspark;
    struct draft_chain_args chain = {.base = m->work.draft_logits,
                                     .y = m->work.draft_y,
                                     .w1 = &w->markov_w1,
                                     .w2 = &w->markov_w2,
                                     .anchor = d->anchor,
                                     .draw = d->draw,
                                     .out_pos = d->out_pos,
                                     .id = d->ids,
                                     .conf = d->conf,
                                     .corrected = d->logits,
                                     .n = d->n,
                                     .gamma = d->gamma,
                                     .vocab = m->c->vocab_size,
                                     .dim = m->c->hidden_size,
                                     .rank = m->c->markov_rank};
    if (d->conf && w->confidence.fmt != WEIGHT_NONE)
        chain.conf_proj = &w->confidence;
    return v4_run_draft_chain(m, &chain);
}

static enum fst_status enqueue_draft(struct model *m, void *ud)
{
    const struct draft_call *f = ud;
    const struct dspark_weights *w = &m->w->dspark;
    const struct rows *r = &f->rows;
    struct v4_work *b = &m->work;
    struct embed_args embed = {.x = b->draft_x,
                               .table = &m->w->embed,
                               .id = r->id,
                               .n_rows = r->n_rows,
                               .dim = m->c->hidden_size};
    FST_TRY(v4_send_rows(m, r->n_rows));
    FST_TRY(v4_run_embed(m, &embed));
    FST_TRY(v4_rope(m, r, false));

    const float *y = NULL;
    for (int s = 0; s < m->n_stages; s++) {
        FST_TRY(v4_layer(m, &m->stage[s], f->kv, r, ATTN_BLOCK, b->draft_x, y, NULL));
        y = b->y;
    }
    FST_TRY(v4_seam(m, b->draft_x, r->n_rows, y, NULL, NULL, NULL));
    FST_TRY(v4_head(m, b->draft_x, &w->hc_head, w->norm, v4_rows_of(m, r->n_rows).pick, r->n_rows,
                    b->draft_y, b->draft_logits));
    return enqueue_chain(m, f->d);
}

enum fst_status model_draft(struct model *m, struct kv *kv, const struct draft_batch *d)
{
    FST_ASSERT(m->n_stages > 0);
    FST_ASSERT(d->gamma >= 1);
    FST_ASSERT(d->gamma <= model_drafts_max(m->c));
    FST_ASSERT(d->n <= m->opts.max_requests);
    FST_ASSERT(!d->logits || !m->stream->device); /* a recorded call would keep their address */
    if (d->n <= 0)
        return FST_OK;
    FST_TRY(v4_begin(m));
    if (m->c->has_mtp)
        return v4_mtp_draft(m, kv, d);
    struct draft_call f = {.kv = kv, .rows = block_rows(m, kv, d), .d = d};
    struct v4_key key = {.call = V4_DRAFT,
                         .n_rows = f.rows.n_rows,
                         .n_spans = f.rows.n_spans,
                         .gamma = d->gamma,
                         .kv = kv,
                         .pages = kv->pages,
                         .anchor = d->anchor,
                         .draw = d->draw,
                         .out_pos = d->out_pos,
                         .ids = d->ids,
                         .conf = d->conf};
    return v4_run(m, &key, enqueue_draft, &f, true);
}
