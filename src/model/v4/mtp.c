/* mtp.c - the classic multi-token-prediction block of preview and base checkpoints. */
#include "model/v4/v4.h"

enum fst_status model_mtp_forward(struct model *m, struct kv *kv, const struct rows *rows,
                                  const int32_t *next_id, const int32_t *logit_row, int n_logits,
                                  float **logits)
{
    const struct mtp_weights *w = &m->w->mtp;
    struct v4_work *b = &m->work;
    struct rows r = *rows;
    int64_t n = rows->n_rows, dim = m->c->hidden_size;
    FST_ASSERT(m->n_stages == 1);
    FST_ASSERT(m->c->has_mtp);
    v4_check_picks(logit_row, n_logits, rows->n_rows, m->opts.max_logits);
    FST_TRY(v4_check_rows(m, kv, rows, next_id));
    r.id = next_id;

    FST_TRY(stream_copy(m->stream, b->draft_x, b->x, (size_t)(n * KERN_HC * dim) * sizeof(float)));
    struct mtp_in_args in = {.x = b->draft_x,
                             .table = &m->w->embed,
                             .e_proj = &w->e_proj,
                             .h_proj = &w->h_proj,
                             .enorm = w->enorm,
                             .hnorm = w->hnorm,
                             .id = next_id,
                             .n_rows = (int)n,
                             .dim = (int)dim,
                             .norm_eps = m->c->norm_eps};
    FST_TRY(v4_run_mtp_in(m, &in));
    FST_TRY(v4_rope(m, &r, false));
    FST_TRY(v4_layer(m, &m->stage[0], kv, &r, ATTN_CAUSAL, b->draft_x, NULL, NULL));
    FST_TRY(v4_seam(m, b->draft_x, (int)n, b->y, NULL, NULL, NULL));
    if (logits)
        *logits = b->logits;
    FST_TRY(
        v4_head(m, b->draft_x, &w->hc_head, w->norm, logit_row, n_logits, b->head_y, b->logits));
    return stream_sync(m->stream);
}
