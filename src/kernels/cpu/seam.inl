/* seam.inl - between two sublayers, in three passes over the rows: write the sublayer back into the
 * streams; the 24 control products; mix, collapse, norm.  Few rows of a narrow model stay on the
 * caller's thread in all three. */
#include "kernels/cpu/linear.h"
#include "kernels/cpu/streams.h"

struct seam_job {
    const struct seam_args *a;
    const float *z; /* (n_rows, KERN_MIX) */
};

/* x[k] = bf16(post[k]*bf16(y) + sum_j comb[j][k]*x[j]), j ascending. */
static void expand(float *x, const float *y, const float *mix, int dim)
{
    const float *post = mix + 4, *comb = mix + 8;
    for (int d = 0; d < dim; d += VL) {
        vf in[KERN_HC], v = v_bf16(v_load(y + d));
        for (int j = 0; j < KERN_HC; j++)
            in[j] = v_load(x + (int64_t)j * dim + d);
        for (int k = 0; k < KERN_HC; k++) {
            vf s = v_mul(v_set1(post[k]), v);
            for (int j = 0; j < KERN_HC; j++)
                s = v_fma(v_set1(comb[4 * j + k]), in[j], s);
            v_store(x + (int64_t)k * dim + d, v_bf16(s));
        }
    }
}

static void capture(float *out, const float *x, int64_t dim)
{
    for (int64_t d = 0; d < dim; d += VL) {
        vf a = v_add(v_load(x + d), v_load(x + dim + d));
        vf b = v_add(v_load(x + 2 * dim + d), v_load(x + 3 * dim + d));
        v_store(out + d, v_bf16(v_mul(v_add(a, b), v_set1(0.25f))));
    }
}

static void expand_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct seam_job *j = ud;
    const struct seam_args *a = j->a;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        float *x = a->x + t * KERN_HC * a->dim;
        if (a->y)
            expand(x, a->y + t * a->dim, a->mix + t * KERN_MIX, a->dim);
        if (a->capture)
            capture(a->capture + t * a->capture_ld, x, a->dim);
    }
}

/* One division and four products per side: rows r (lanes are columns) become sums 1 in each column
 * of lanes. */
SIMD_INLINE void to_sum_one(__m128 r[4], __m128 eps)
{
    __m128 s = _mm_add_ps(_mm_add_ps(_mm_add_ps(r[0], r[1]), _mm_add_ps(r[2], r[3])), eps);
    s = _mm_div_ps(_mm_set1_ps(1.0f), s);
    for (int i = 0; i < 4; i++)
        r[i] = _mm_mul_ps(r[i], s);
}

static void sinkhorn(float comb[16], int iters, float hc_eps)
{
    float e[16];
    __m128 r[4], eps = _mm_set1_ps(hc_eps);
    for (int j = 0; j < 4; j++) {
        const float *c = comb + 4 * j;
        float top = FST_MAX(FST_MAX(c[0], c[1]), FST_MAX(c[2], c[3]));
        for (int k = 0; k < 4; k++)
            e[4 * j + k] = c[k] - top;
    }
    for (int i = 0; i < 16; i += VL)
        v_store(e + i, v_exp(v_load(e + i)));
    for (int j = 0; j < 4; j++)
        r[j] = _mm_loadu_ps(e + 4 * j);
    _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]); /* lanes are rows */
    to_sum_one(r, _mm_setzero_ps());
    for (int j = 0; j < 4; j++)
        r[j] = _mm_add_ps(r[j], eps);
    for (int it = 0; it < iters; it++) {
        if (it)
            to_sum_one(r, eps);
        _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
        to_sum_one(r, eps);
        if (it + 1 < iters)
            _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
    }
    if (iters <= 0)
        _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
    for (int j = 0; j < 4; j++)
        _mm_storeu_ps(comb + 4 * j, r[j]);
}

static void mix_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct seam_job *j = ud;
    const struct seam_args *a = j->a;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        const float *x = a->x + t * KERN_HC * a->dim;
        float *mix = a->mix + t * KERN_MIX, *u = a->out + t * a->dim, g[16] = {0};
        float rho = v_rms_factor(x, (int64_t)KERN_HC * a->dim, a->norm_eps);
        for (int i = 0; i < KERN_MIX; i++) {
            int part = i < 4 ? 0 : i < 8 ? 1 : 2;
            float z = j->z[t * KERN_MIX + i] * rho * a->scale[part] + a->base[i];
            if (i < 8)
                g[i] = z;
            else
                mix[i] = z;
        }
        for (int i = 0; i < 8; i += VL)
            v_store(g + i, v_sigmoid(v_load(g + i)));
        for (int k = 0; k < 4; k++) {
            mix[k] = g[k] + a->hc_eps;
            mix[4 + k] = 2 * g[4 + k];
        }
        sinkhorn(mix + 8, a->iters, a->hc_eps);
        streams_collapse(u, x, mix, a->dim);
        v_rmsnorm(u, u, a->norm, a->dim, a->norm_eps);
    }
}

enum fst_status SIMD_NAME(seam)(const struct seam_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    int64_t wide = (int64_t)KERN_HC * a->dim;
    struct seam_job j = {.a = a};
    FST_ASSERT(a->dim % VL == 0);
    if (a->y || a->capture)
        simd_spread(s, a->n_rows, 24 * a->dim, expand_body, &j);
    if (!a->fn)
        return FST_OK;
    float *z = cut_take(&c, (int64_t)a->n_rows * KERN_MIX * 4);
    struct mat fn = {WEIGHT_F32, KERN_MIX, (int)wide, a->fn, NULL};
    struct lin_job zs = {.w = &fn,
                         .x = (const uint8_t *)a->x,
                         .ldx = wide * 4,
                         .y = z,
                         .ldy = KERN_MIX,
                         .n_rows = a->n_rows,
                         .n_out = KERN_MIX};
    lin_run(s, &zs, 1);
    j.z = z;
    simd_spread(s, a->n_rows, 12 * a->dim + 10000, mix_body, &j);
    return FST_OK;
}
