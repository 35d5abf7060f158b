/* experts.c - the routed experts of every row in ascending order, then the shared one. */
#include <math.h>

#include "kernels/ref/ref.h"

/* Rows of the step that visit one expert. */
struct visit {
    int n;
    int32_t *row;  /* (n_rows) row of the step */
    float *weight; /* (n_rows) */
};

static void routed(const struct experts_args *a, int e, struct visit *v)
{
    v->n = 0;
    for (int64_t t = 0; t < a->n_rows; t++)
        for (int i = 0; i < a->k; i++)
            if (a->expert[t * a->k + i] == e) {
                v->row[v->n] = (int32_t)t;
                v->weight[v->n++] = a->weight[t * a->k + i];
            }
}

static void all_rows(const struct experts_args *a, struct visit *v)
{
    v->n = a->n_rows;
    for (int t = 0; t < a->n_rows; t++) {
        v->row[t] = t;
        v->weight[t] = 1.0f;
    }
}

static void run(const struct experts_args *a, const struct expert_mats *m, const struct visit *v,
                float *gate, float *up, uint8_t *scratch, struct stream *s)
{
    struct ref_linear l = {.w = &m->w1,
                           .x = a->x,
                           .y = gate,
                           .ldx = a->dim,
                           .ldy = a->moe_dim,
                           .n_rows = v->n,
                           .n_out = a->moe_dim,
                           .pick_x = v->row,
                           .flags = REF_QUANT | REF_ROUND};
    ref_linear(s, &l, scratch);
    l.w = &m->w3;
    l.y = up;
    ref_linear(s, &l, scratch);
    for (int i = 0; i < v->n; i++)
        for (int d = 0; d < a->moe_dim; d++) {
            float *g = gate + (int64_t)i * a->moe_dim + d;
            double x = (double)fminf(*g, a->limit);
            double y = (double)fmaxf(-a->limit, fminf(up[(int64_t)i * a->moe_dim + d], a->limit));
            *g = ref_round((float)((double)v->weight[i] * (x * ref_sigmoid(x) * y)), s->precision);
        }
    struct ref_linear down = {.w = &m->w2,
                              .x = gate,
                              .y = a->y,
                              .ldx = a->moe_dim,
                              .ldy = a->dim,
                              .n_rows = v->n,
                              .n_out = a->dim,
                              .pick_y = v->row,
                              .flags = REF_QUANT | REF_SEGMENTS | REF_ADD};
    ref_linear(s, &down, scratch);
}

enum fst_status experts_ref(const struct experts_args *a, struct stream *s)
{
    size_t n = (size_t)a->n_rows, list = (size_t)round_up((int64_t)n * 4, 64);
    size_t hidden = (size_t)round_up((int64_t)n * a->moe_dim * 4, 64);
    int64_t widest = FST_MAX(a->dim, a->moe_dim);
    ref_need(s,
             2 * list + 2 * hidden + ref_linear_scratch((int64_t)n, widest, pool_threads(s->pool)));
    struct visit v = {.row = (int32_t *)(void *)s->scratch,
                      .weight = (float *)(void *)(s->scratch + list)};
    float *gate = (float *)(void *)(s->scratch + 2 * list);
    float *up = (float *)(void *)(s->scratch + 2 * list + hidden);
    uint8_t *scratch = s->scratch + 2 * list + 2 * hidden;
    memset(a->y, 0, n * (size_t)a->dim * 4);
    for (int e = 0; e < a->n_experts; e++) {
        routed(a, e, &v);
        if (v.n)
            run(a, &a->experts[e], &v, gate, up, scratch, s);
    }
    all_rows(a, &v);
    run(a, a->shared, &v, gate, up, scratch, s);
    return FST_OK;
}
