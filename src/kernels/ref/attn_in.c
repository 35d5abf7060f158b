/* attn_in.c - everything that reads the normed input of the attention site. */
#include "kernels/ref/ref.h"

static void normed(const struct attn_in_args *a, struct stream *s, const struct mat *w,
                   const float *norm, float *y)
{
    if (!ref_mat_there(w))
        return;
    ref_linear_all(s, w, a->x, a->n_rows, y, REF_QUANT | REF_ROUND, s->scratch);
    for (int64_t i = 0; i < a->n_rows; i++)
        ref_rmsnorm(y + i * w->n_out, y + i * w->n_out, norm, w->n_out, a->norm_eps, s->precision);
}

/* [wkv x | wgate x] in fp32. */
static void pair(const struct attn_in_args *a, struct stream *s, const struct mat *wkv,
                 const struct mat *wgate, float *y)
{
    if (!ref_mat_there(wkv))
        return;
    FST_ASSERT(ref_mat_there(wgate));
    struct ref_linear l = {.w = wkv,
                           .x = a->x,
                           .y = y,
                           .ldx = wkv->n_in,
                           .ldy = 2 * wkv->n_out,
                           .n_rows = a->n_rows,
                           .n_out = wkv->n_out,
                           .flags = REF_QUANT};
    ref_linear(s, &l, s->scratch);
    l.w = wgate;
    l.y = y + wkv->n_out;
    ref_linear(s, &l, s->scratch);
}

enum fst_status attn_in_ref(const struct attn_in_args *a, struct stream *s)
{
    FST_ASSERT(ref_mat_there(a->wkv));
    ref_need(s, ref_linear_scratch(a->n_rows, a->wkv->n_in, pool_threads(s->pool)));
    normed(a, s, a->wq_a, a->q_norm, a->qr);
    normed(a, s, a->wkv, a->kv_norm, a->kv);
    pair(a, s, a->cmp_wkv, a->cmp_wgate, a->cmp);
    pair(a, s, a->idx_wkv, a->idx_wgate, a->idx);
    if (ref_mat_there(a->weights_proj)) {
        int64_t n = (int64_t)a->n_rows * a->weights_proj->n_out;
        ref_linear_all(s, a->weights_proj, a->x, a->n_rows, a->iw, REF_QUANT | REF_ROUND,
                       s->scratch);
        for (int64_t i = 0; i < n; i++)
            a->iw[i] = ref_round(a->iw[i] * a->iw_scale, s->precision);
    }
    return FST_OK;
}
