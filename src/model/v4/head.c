/* head.c - streams to logits: sigmoid-gated collapse, last norm, output matrix. */
#include "model/v4/v4.h"

enum fst_status v4_head(struct model *m, const float *x, const struct hc_weights *hc,
                        const float *norm, const int32_t *row, int n, float *y, float *logits)
{
    struct head_args a = {.x = x,
                          .row = row,
                          .fn = hc->fn,
                          .base = hc->base,
                          .scale = hc->scale,
                          .norm = norm,
                          .head = &m->w->head,
                          .y = y,
                          .logits = logits,
                          .n = n,
                          .dim = m->c->hidden_size,
                          .hc_eps = m->c->hc_eps,
                          .norm_eps = m->c->norm_eps};
    return n ? v4_run_head(m, &a) : FST_OK;
}
