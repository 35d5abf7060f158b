/* mtp.c - the classic multi-token-prediction block of preview and base checkpoints. */
#include "model/v4/v4.h"

struct mtp_call {
    struct kv *kv;
    struct rows rows; /* as kernels see them, with the next ids */
    int n_logits;
};

static enum fst_status enqueue_mtp(struct model *m, void *ud)
{
    const struct mtp_call *f = ud;
    const struct mtp_weights *w = &m->w->mtp;
    const struct rows *rows = &f->rows;
    struct v4_work *b = &m->work;
    int64_t n = rows->n_rows, dim = m->c->hidden_size;
    FST_TRY(v4_send_rows(m, rows->n_rows));
    struct mtp_in_args in = {.src = b->x,
                             .x = b->draft_x,
                             .table = &m->w->embed,
                             .e_proj = &w->e_proj,
                             .h_proj = &w->h_proj,
                             .enorm = w->enorm,
                             .hnorm = w->hnorm,
                             .id = rows->id,
                             .n_rows = (int)n,
                             .dim = (int)dim,
                             .norm_eps = m->c->norm_eps};
    FST_TRY(v4_run_mtp_in(m, &in));
    FST_TRY(v4_rope(m, rows, false));
    FST_TRY(v4_layer(m, &m->stage[0], f->kv, rows, ATTN_CAUSAL, b->draft_x, NULL, NULL));
    FST_TRY(v4_seam(m, b->draft_x, (int)n, b->y, NULL, NULL, NULL));
    return v4_head(m, b->draft_x, &w->hc_head, w->norm, v4_rows_of(m, rows->n_rows).pick,
                   f->n_logits, b->head_y, b->logits);
}

enum fst_status model_mtp_forward(struct model *m, struct kv *kv, const struct rows *rows,
                                  const int32_t *next_id, const int32_t *logit_row, int n_logits,
                                  float **logits)
{
    FST_ASSERT(m->n_stages == 1);
    FST_ASSERT(m->c->has_mtp);
    v4_check_picks(logit_row, n_logits, rows->n_rows, m->opts.max_logits);
    FST_TRY(v4_check_rows(m, kv, rows, next_id));
    struct mtp_call f = {.kv = kv, .n_logits = n_logits};
    FST_TRY(v4_begin(m));
    FST_TRY(v4_send_pages(m, kv, rows));
    f.rows = v4_take_rows(m, kv, rows, next_id, logit_row, n_logits);
    struct v4_key key = {.call = V4_MTP,
                         .n_rows = rows->n_rows,
                         .n_spans = rows->n_spans,
                         .n_logits = n_logits,
                         .scored = m->scored,
                         .kv = kv,
                         .pages = kv->pages};
    if (logits)
        *logits = m->work.logits;
    return v4_run(m, &key, enqueue_mtp, &f, true);
}
