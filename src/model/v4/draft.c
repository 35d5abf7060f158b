/* draft.c - the DSpark drafter: target rows into its windows, blocks of tokens out of it
 * (DSpark paper §3). */
#include "model/v4/v4.h"

/* The rows to inject as a step of their own: same slots and positions, runs as spans. */
static struct rows picked_rows(struct model *m, const struct kv *kv, const struct rows *rows,
                               const int32_t *row, int n)
{
    struct v4_work *b = &m->work;
    struct rows r = {.n_rows = n,
                     .slot = b->slot,
                     .pos = b->pos,
                     .id = b->id,
                     .span = b->span,
                     .span_first = b->span_first,
                     .pages = kv->pages,
                     .page_stride = kv->page_stride};
    for (int i = 0; i < n; i++) {
        int t = row[i];
        bool same = i && rows->span[t] == rows->span[row[i - 1]];
        FST_ASSERT(!same || t == row[i - 1] + 1);
        if (!same)
            b->span_first[r.n_spans++] = i;
        b->slot[i] = rows->slot[t];
        b->pos[i] = rows->pos[t];
        b->id[i] = rows->id[t];
        b->span[i] = r.n_spans - 1;
    }
    b->span_first[r.n_spans] = n;
    return r;
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

enum fst_status model_inject(struct model *m, struct kv *kv, const struct rows *rows,
                             const int32_t *row, int n)
{
    struct v4_work *b = &m->work;
    FST_ASSERT(m->n_stages > 0);
    FST_ASSERT(m->c->has_dspark);
    v4_check_picks(row, n, rows->n_rows, m->opts.max_rows);
    if (n == 0)
        return FST_OK;
    struct rows r = picked_rows(m, kv, rows, row, n);
    struct main_proj_args fuse = {.h = b->captured,
                                  .row = row,
                                  .main_proj = &m->w->dspark.main_proj,
                                  .main_norm = m->w->dspark.main_norm,
                                  .main = b->a,
                                  .n_rows = n,
                                  .norm_eps = m->c->norm_eps};
    FST_TRY(v4_run_main_proj(m, &fuse));
    FST_TRY(v4_rope(m, &r, false));
    for (int s = 0; s < m->n_stages; s++)
        FST_TRY(inject_stage(m, &m->stage[s], kv, &r));
    return stream_sync(m->stream); /* the next call writes the arrays of r anew */
}

/* Blocks [anchor, noise, noise, ...] at positions n .. n+gamma-1, one span per request. */
static struct rows block_rows(struct model *m, const struct kv *kv, const struct draft_batch *d)
{
    struct v4_work *b = &m->work;
    struct rows r = {.n_rows = d->n * d->gamma,
                     .n_spans = d->n,
                     .slot = b->slot,
                     .pos = b->pos,
                     .id = b->id,
                     .span = b->span,
                     .span_first = b->span_first,
                     .pages = kv->pages,
                     .page_stride = kv->page_stride};
    for (int i = 0; i < d->n; i++) {
        FST_ASSERT(d->slot[i] >= 0);
        FST_ASSERT(d->slot[i] <= kv->spec.n_slots);
        FST_ASSERT(d->n_committed[i] > 0);
        FST_ASSERT(d->anchor[i] >= 0);
        FST_ASSERT(d->anchor[i] < m->c->vocab_size);
        b->span_first[i] = i * d->gamma;
        for (int k = 0; k < d->gamma; k++) {
            int t = i * d->gamma + k;
            b->slot[t] = d->slot[i];
            b->pos[t] = (int32_t)(d->n_committed[i] + k);
            b->id[t] = k ? m->c->noise_id : d->anchor[i];
            b->span[t] = i;
            b->pick[t] = t;
        }
    }
    b->span_first[d->n] = r.n_rows;
    return r;
}

enum fst_status model_draft(struct model *m, struct kv *kv, const struct draft_batch *d)
{
    const struct model_config *c = m->c;
    const struct dspark_weights *w = &m->w->dspark;
    struct v4_work *b = &m->work;
    FST_ASSERT(m->n_stages > 0);
    FST_ASSERT(c->has_dspark);
    FST_ASSERT(d->gamma >= 1);
    FST_ASSERT(d->gamma <= c->gamma);
    FST_ASSERT(d->n <= m->opts.max_requests);
    if (d->n <= 0)
        return FST_OK;
    struct rows r = block_rows(m, kv, d);
    struct embed_args embed = {.x = b->draft_x,
                               .table = &m->w->embed,
                               .id = r.id,
                               .n_rows = r.n_rows,
                               .dim = c->hidden_size};
    FST_TRY(v4_run_embed(m, &embed));
    FST_TRY(v4_rope(m, &r, false));

    const float *y = NULL;
    for (int s = 0; s < m->n_stages; s++) {
        FST_TRY(v4_layer(m, &m->stage[s], kv, &r, ATTN_BLOCK, b->draft_x, y, NULL));
        y = b->y;
    }
    FST_TRY(v4_seam(m, b->draft_x, r.n_rows, y, NULL, NULL, NULL));
    FST_TRY(v4_head(m, b->draft_x, &w->hc_head, w->norm, b->pick, r.n_rows, b->draft_y,
                    b->draft_logits));

    struct draft_chain_args chain = {.base = b->draft_logits,
                                     .y = b->draft_y,
                                     .w1 = &w->markov_w1,
                                     .w2 = &w->markov_w2,
                                     .anchor = d->anchor,
                                     .draw = d->draw,
                                     .out_pos = d->out_pos,
                                     .id = d->ids,
                                     .conf = d->conf,
                                     .n = d->n,
                                     .gamma = d->gamma,
                                     .vocab = c->vocab_size,
                                     .dim = c->hidden_size,
                                     .rank = c->markov_rank};
    if (d->conf && w->confidence.fmt != WEIGHT_NONE)
        chain.conf_proj = &w->confidence;
    FST_TRY(v4_run_draft_chain(m, &chain));
    return stream_sync(m->stream);
}
