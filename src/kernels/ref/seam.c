/* seam.c - between two sublayers: write one back into the streams, read the next one's input. */
#include <math.h>

#include "kernels/ref/ref.h"

struct job {
    const struct seam_args *a;
    enum precision p;
};

/* x[k] = post[k]*y + sum_j comb[j][k]*x[j], every column apart. */
static void expand(float *x, const float *y, const float *mix, int dim, enum precision p)
{
    const float *post = mix + 4, *comb = mix + 8;
    for (int d = 0; d < dim; d++) {
        double in[KERN_HC], v = (double)ref_round(y[d], p);
        for (int j = 0; j < KERN_HC; j++)
            in[j] = (double)x[j * dim + d];
        for (int k = 0; k < KERN_HC; k++) {
            double sum = (double)post[k] * v;
            for (int j = 0; j < KERN_HC; j++)
                sum += (double)comb[4 * j + k] * in[j];
            x[k * dim + d] = ref_round((float)sum, p);
        }
    }
}

static void rows_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct job *j = ud;
    const struct seam_args *a = j->a;
    int dim = a->dim;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        float *x = a->x + t * KERN_HC * dim, *mix = a->mix + t * KERN_MIX;
        if (a->y)
            expand(x, a->y + t * dim, mix, dim, j->p);
        if (a->capture)
            for (int d = 0; d < dim; d++) {
                double m = ((double)x[d] + (double)x[dim + d]) +
                           ((double)x[2 * dim + d] + (double)x[3 * dim + d]);
                a->capture[t * a->capture_ld + d] = ref_round((float)(m / 4), j->p);
            }
        if (!a->fn)
            continue;
        ref_hc_split(mix, x, dim, a->fn, a->base, a->scale, a->iters, a->hc_eps, a->norm_eps);
        float *u = a->out + t * dim;
        for (int d = 0; d < dim; d++) {
            double sum = 0;
            for (int k = 0; k < KERN_HC; k++)
                sum += (double)mix[k] * (double)x[k * dim + d];
            u[d] = ref_round((float)sum, j->p);
        }
        ref_rmsnorm(u, u, a->norm, dim, a->norm_eps, j->p);
    }
}

enum fst_status seam_ref(const struct seam_args *a, struct stream *s)
{
    struct job j = {a, s->precision};
    pool_run(s->pool, a->n_rows, 4, rows_body, &j);
    return FST_OK;
}
