/* inputs.c - what enters a forward: rope tables, embeddings, the inputs of the drafters. */
#include "kernels/ref/ref.h"

enum fst_status rope_ref(const struct rope_args *a, struct stream *s)
{
    (void)s;
    for (int i = 0; i < a->n; i++)
        ref_rope_cs(a->cs + (int64_t)i * a->rope_dim, a->freq, a->rope_dim, a->pos[i]);
    return FST_OK;
}

enum fst_status embed_ref(const struct embed_args *a, struct stream *s)
{
    (void)s;
    FST_ASSERT(a->table->n_in == a->dim);
    for (int i = 0; i < a->n_rows; i++) {
        float *x = a->x + (int64_t)i * KERN_HC * a->dim;
        ref_mat_row(a->table, a->id[i], x);
        for (int k = 1; k < KERN_HC; k++)
            memcpy(x + (int64_t)k * a->dim, x, (size_t)a->dim * 4);
    }
    return FST_OK;
}

enum fst_status mtp_in_ref(const struct mtp_in_args *a, struct stream *s)
{
    int64_t dim = a->dim, n = a->n_rows;
    size_t one = (size_t)round_up(n * dim * 4, 64);
    ref_need(s, 2 * one + ref_linear_scratch(n, dim, pool_threads(s->pool)));
    float *in = (float *)(void *)s->scratch, *e = (float *)(void *)(s->scratch + one);
    uint8_t *scratch = s->scratch + 2 * one;
    for (int64_t i = 0; i < n; i++) {
        ref_mat_row(a->table, a->id[i], in + i * dim);
        ref_rmsnorm(in + i * dim, in + i * dim, a->enorm, a->dim, a->norm_eps, s->precision);
    }
    ref_linear_all(s, a->e_proj, in, (int)n, e, REF_QUANT | REF_ROUND, scratch);
    for (int k = 0; k < KERN_HC; k++) {
        float *x = a->x + k * dim;
        for (int64_t i = 0; i < n; i++) {
            int64_t from = (a->row ? a->row[i] : i) * KERN_HC + k;
            ref_rmsnorm(in + i * dim, a->src + from * dim, a->hnorm, a->dim, a->norm_eps,
                        s->precision);
        }
        struct ref_linear h = {.w = a->h_proj,
                               .x = in,
                               .y = x,
                               .ldx = dim,
                               .ldy = KERN_HC * dim,
                               .n_rows = (int)n,
                               .n_out = a->dim,
                               .flags = REF_QUANT | REF_ROUND};
        ref_linear(s, &h, scratch);
        for (int64_t i = 0; i < n; i++)
            for (int64_t d = 0; d < dim; d++) {
                float *v = x + i * KERN_HC * dim + d;
                *v = ref_round(e[i * dim + d] + *v, s->precision);
            }
    }
    return FST_OK;
}

enum fst_status main_proj_ref(const struct main_proj_args *a, struct stream *s)
{
    int dim = a->main_proj->n_out;
    ref_need(s, ref_linear_scratch(a->n_rows, a->main_proj->n_in, pool_threads(s->pool)));
    struct ref_linear l = {.w = a->main_proj,
                           .x = a->h,
                           .y = a->main,
                           .ldx = a->main_proj->n_in,
                           .ldy = dim,
                           .n_rows = a->n_rows,
                           .n_out = dim,
                           .pick_x = a->row,
                           .flags = REF_QUANT | REF_ROUND};
    ref_linear(s, &l, s->scratch);
    for (int i = 0; i < a->n_rows; i++) {
        float *m = a->main + (int64_t)i * dim;
        ref_rmsnorm(m, m, a->main_norm, dim, a->norm_eps, s->precision);
    }
    return FST_OK;
}
