/* q_path.c - queries of the attention heads and of the indexer. */
#include <math.h>

#include "kernels/ref/ref.h"

struct job {
    const struct q_path_args *a;
    enum precision p;
};

static void rows_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct job *j = ud;
    const struct q_path_args *a = j->a;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        const float *cs = a->cs + t * a->rope_dim;
        for (int h = 0; h < a->n_heads; h++) {
            float *q = a->q + (t * a->n_heads + h) * a->head_dim;
            /* norm and rotation in one go, one rounding (model.py rounds after every operation) */
            ref_rmsnorm(q, q, NULL, a->head_dim, a->norm_eps, PRECISION_REFERENCE);
            ref_rotate(q, a->head_dim, a->rope_dim, cs, 1.0f, PRECISION_REFERENCE);
            for (int d = 0; d < a->head_dim; d++)
                q[d] = ref_round(q[d], j->p);
        }
        for (int h = 0; ref_mat_there(a->idx_wq_b) && h < a->index_heads; h++) {
            float *q = a->qi + (t * a->index_heads + h) * a->index_dim;
            ref_rotate(q, a->index_dim, a->rope_dim, cs, 1.0f, j->p);
            ref_hadamard(q, a->index_dim, j->p);
            if (j->p == PRECISION_NATIVE)
                ref_fp4_grid(q, a->index_dim, NULL);
        }
    }
}

enum fst_status q_path_ref(const struct q_path_args *a, struct stream *s)
{
    struct job j = {a, s->precision};
    ref_need(s, ref_linear_scratch(a->n_rows, a->wq_b->n_in, pool_threads(s->pool)));
    FST_ASSERT(a->wq_b->n_out == a->n_heads * a->head_dim);
    ref_linear_all(s, a->wq_b, a->qr, a->n_rows, a->q, REF_QUANT | REF_ROUND, s->scratch);
    if (ref_mat_there(a->idx_wq_b))
        ref_linear_all(s, a->idx_wq_b, a->qr, a->n_rows, a->qi, REF_QUANT | REF_ROUND, s->scratch);
    pool_run(s->pool, a->n_rows, 4, rows_body, &j);
    return FST_OK;
}
