/* attention.c - the attention site of a layer (DeepSeek-V4 technical report §2.3). */
#include <math.h>

#include "model/v4/v4.h"

/* One table for everything in a layer: ratio-0 layers and drafters have their own base, without
 * the long-context scaling. */
static int table_of(const struct v4_layer *l)
{
    return l->w->ratio != 0;
}

static const float *freq_of(const struct model *m, const struct v4_layer *l)
{
    return m->work.freq[table_of(l)];
}

enum fst_status v4_rope(struct model *m, const struct rows *rows, bool compressed)
{
    struct rope_args a = {.cs = m->work.cs[0],
                          .freq = m->work.freq[0],
                          .pos = rows->pos,
                          .n = rows->n_rows,
                          .rope_dim = m->c->rope_dim};
    FST_TRY(v4_run_rope(m, &a));
    if (!compressed)
        return FST_OK;
    a.cs = m->work.cs[1];
    a.freq = m->work.freq[1];
    return v4_run_rope(m, &a);
}

static enum fst_status project(struct model *m, const struct v4_layer *l, int n_rows)
{
    const struct model_config *c = m->c;
    const struct attn_weights *w = &l->w->attn;
    struct v4_work *b = &m->work;
    struct attn_in_args a = {.x = b->a,
                             .wq_a = &w->wq_a,
                             .wkv = &w->wkv,
                             .q_norm = w->q_norm,
                             .kv_norm = w->kv_norm,
                             .qr = b->qr,
                             .kv = b->kv,
                             .cmp = b->cmp,
                             .idx = b->idx,
                             .iw = b->iw,
                             .norm_eps = c->norm_eps,
                             .n_rows = n_rows,
                             .operand = v4_a_operand(m, n_rows),
                             .qr_operand = v4_qr_operand(m, n_rows)};
    if (l->w->ratio) {
        a.cmp_wkv = &w->compressor.wkv;
        a.cmp_wgate = &w->compressor.wgate;
    }
    if (l->w->ratio == 4) {
        a.idx_wkv = &w->indexer.compressor.wkv;
        a.idx_wgate = &w->indexer.compressor.wgate;
        a.weights_proj = &w->indexer.weights_proj;
        a.iw_scale = (float)(1.0 / sqrt((double)c->index_dim * c->index_heads));
    }
    return v4_run_attn_in(m, &a);
}

static enum fst_status write_kv(struct model *m, const struct v4_layer *l,
                                const struct kv_layer *pool, const struct rows *rows)
{
    const struct model_config *c = m->c;
    const struct compressor_weights *cmp = &l->w->attn.compressor;
    const struct compressor_weights *idx = &l->w->attn.indexer.compressor;
    struct v4_work *b = &m->work;
    struct kv_write_args a = {.rows = rows,
                              .l = pool,
                              .kv = b->kv,
                              .cs = b->cs[table_of(l)],
                              .freq = freq_of(m, l),
                              .head_dim = c->head_dim,
                              .rope_dim = c->rope_dim,
                              .index_dim = c->index_dim,
                              .norm_eps = c->norm_eps};
    if (l->w->ratio) {
        a.cmp = b->cmp;
        a.ape = cmp->ape;
        a.cmp_norm = cmp->norm;
    }
    if (l->w->ratio == 4) {
        a.idx = b->idx;
        a.idx_ape = idx->ape;
        a.idx_norm = idx->norm;
    }
    return v4_run_kv_write(m, &a);
}

static bool scores(const struct model *m, const struct v4_layer *l)
{
    return l->w->ratio == 4 && m->scored;
}

/* Whether q and o of this layer travel packed. */
static bool heads_packed(const struct model *m, const struct v4_layer *l)
{
    const struct attn_weights *w = &l->w->attn;
    struct q_path_args q = {.wq_b = &w->wq_b,
                            .idx_wq_b = scores(m, l) ? &w->indexer.wq_b : NULL,
                            .head_dim = m->c->head_dim};
    struct attn_out_args out = {.wo_a = &w->wo_a, .wo_b = &w->wo_b, .groups = m->c->o_groups};
    return m->kernels->heads_packed && m->kernels->heads_packed(&q, &out);
}

static enum fst_status query(struct model *m, const struct v4_layer *l, const struct rows *rows,
                             bool packed)
{
    const struct model_config *c = m->c;
    const struct attn_weights *w = &l->w->attn;
    struct v4_work *b = &m->work;
    struct q_path_args a = {.qr = b->qr,
                            .wq_b = &w->wq_b,
                            .idx_wq_b = scores(m, l) ? &w->indexer.wq_b : NULL,
                            .cs = b->cs[table_of(l)],
                            .q = b->q,
                            .qi = b->qi,
                            .n_rows = rows->n_rows,
                            .n_heads = c->n_heads,
                            .head_dim = c->head_dim,
                            .rope_dim = c->rope_dim,
                            .index_heads = c->index_heads,
                            .index_dim = c->index_dim,
                            .norm_eps = c->norm_eps,
                            .packed = packed,
                            .operand = v4_qr_operand(m, rows->n_rows)};
    return v4_run_q_path(m, &a);
}

static enum fst_status choose(struct model *m, const struct kv_layer *pool, const struct rows *rows)
{
    const struct model_config *c = m->c;
    struct v4_work *b = &m->work;
    int64_t most = m->opts.context_length / 4;
    struct index_topk_args a = {.rows = rows,
                                .l = pool,
                                .qi = b->qi,
                                .iw = b->iw,
                                .sel = b->sel,
                                .n_sel = b->n_sel,
                                /* nothing to score: a card then launches the choice alone */
                                .max_entries = m->scored ? most : FST_MIN(most, c->index_topk),
                                .index_heads = c->index_heads,
                                .index_dim = c->index_dim,
                                .topk = c->index_topk};
    return v4_run_index_topk(m, &a);
}

static enum fst_status attend(struct model *m, const struct v4_layer *l,
                              const struct kv_layer *pool, const struct rows *rows,
                              enum attn_mode mode, bool packed)
{
    const struct model_config *c = m->c;
    struct v4_work *b = &m->work;
    struct attention_args a = {.rows = rows,
                               .l = pool,
                               .mode = mode,
                               .q = b->q,
                               .kv = b->kv,
                               .sel = b->sel,
                               .n_sel = b->n_sel,
                               .topk = c->index_topk,
                               .sink = l->w->attn.sink,
                               .cs = b->cs[table_of(l)],
                               .o = b->o,
                               .n_heads = c->n_heads,
                               .head_dim = c->head_dim,
                               .rope_dim = c->rope_dim,
                               .window = c->window,
                               .scale = (float)(1.0 / sqrt((double)c->head_dim)),
                               .packed = packed};
    return v4_run_attention(m, &a);
}

enum fst_status v4_attention(struct model *m, const struct v4_layer *l, struct kv *kv,
                             const struct rows *rows, enum attn_mode mode)
{
    const struct kv_layer *pool = &kv->layer[l->pool];
    struct v4_work *b = &m->work;
    bool packed = heads_packed(m, l);
    FST_ASSERT(pool->ratio == l->w->ratio);
    FST_TRY(project(m, l, rows->n_rows));
    FST_TRY(write_kv(m, l, pool, rows));
    FST_TRY(query(m, l, rows, packed));
    if (l->w->ratio == 4) /* after kv_write: the newest entry may be this step's own */
        FST_TRY(choose(m, pool, rows));
    FST_TRY(attend(m, l, pool, rows, mode, packed));
    if (mode == ATTN_CAUSAL) { /* after attention, which still reads the rows this overwrites */
        struct ring_store_args ring = {.rows = rows,
                                       .l = pool,
                                       .kv = b->kv,
                                       .head_dim = m->c->head_dim,
                                       .rope_dim = m->c->rope_dim};
        FST_TRY(v4_run_ring_store(m, &ring));
    }
    struct attn_out_args out = {.o = b->o,
                                .wo_a = &l->w->attn.wo_a,
                                .wo_b = &l->w->attn.wo_b,
                                .y = b->y,
                                .n_rows = rows->n_rows,
                                .groups = m->c->o_groups,
                                .packed = packed};
    m->y_parts = 0;
    return v4_run_attn_out(m, &out);
}
