/* head.c - collapse of the streams, last norm, logits. */
#include <math.h>

#include "kernels/ref/ref.h"

struct job {
    const struct head_args *a;
    enum precision p;
    float *h; /* (n, dim) */
};

static void rows_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct job *j = ud;
    const struct head_args *a = j->a;
    int dim = a->dim, n = KERN_HC * dim;
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        const float *x = a->x + (int64_t)a->row[i] * n;
        float *y = a->y + i * dim;
        double rho = 1.0 / sqrt(ref_mean_square(x, n) + (double)a->norm_eps), pre[KERN_HC];
        for (int k = 0; k < KERN_HC; k++) {
            double z = ref_dot(a->fn + (int64_t)k * n, x, n) * rho;
            pre[k] = ref_sigmoid(z * (double)a->scale[0] + (double)a->base[k]) + (double)a->hc_eps;
        }
        for (int d = 0; d < dim; d++) {
            double sum = 0;
            for (int k = 0; k < KERN_HC; k++)
                sum += pre[k] * (double)x[k * dim + d];
            y[d] = ref_round((float)sum, j->p);
        }
        ref_rmsnorm(j->h + i * dim, y, a->norm, dim, a->norm_eps, j->p);
    }
}

enum fst_status head_ref(const struct head_args *a, struct stream *s)
{
    size_t one = (size_t)round_up((int64_t)a->n * a->dim * 4, 64);
    ref_need(s, one + ref_linear_scratch(a->n, a->dim, pool_threads(s->pool)));
    struct job j = {a, s->precision, (float *)(void *)s->scratch};
    pool_run(s->pool, a->n, 1, rows_body, &j);
    ref_linear_all(s, a->head, j.h, a->n, a->logits, 0, s->scratch + one);
    return FST_OK;
}
