/* linear.c - y = W x for every stored form of W.
 *
 * A weight row is decoded once to floats (exact for all forms) and used for all rows of x; work is
 * spread over outputs, so a result never depends on the number of rows or threads. */
#include "kernels/ref/ref.h"

void ref_mat_row(const struct mat *w, int64_t o, float *out)
{
    FST_ASSERT(o >= 0);
    FST_ASSERT(o < w->n_out);
    int64_t n = w->n_in;
    const uint8_t *p = w->data;
    switch (w->fmt) {
    case WEIGHT_F32:
        memcpy(out, p + o * n * 4, (size_t)n * 4);
        return;
    case WEIGHT_BF16:
        p += o * n * 2;
        for (int64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * i, 2);
            out[i] = ref_float((uint32_t)h << 16);
        }
        return;
    case WEIGHT_FP8:
        p += o * n;
        for (int64_t b = 0; b < n; b += 128) {
            float s = ref_e8m0(w->scale[o / 128 * div_up(n, 128) + b / 128]);
            for (int64_t i = b; i < FST_MIN(b + 128, n); i++)
                out[i] = ref_e4m3(p[i]) * s;
        }
        return;
    case WEIGHT_FP4:
        p += o * (n / 2);
        for (int64_t i = 0; i < n; i++)
            out[i] = ref_e2m1(i & 1 ? p[i / 2] >> 4 : p[i / 2] & 15) *
                     ref_e8m0(w->scale[o * (n / 32) + i / 32]);
        return;
    case WEIGHT_NONE:
    case WEIGHT_I32:
        break;
    }
    FST_ASSERT(!"matrix form");
}

/* K in 8 equal segments, each summed apart, added in fp32 by one tree (kernels.h, attn_out). */
static float dot_segments(const float *x, const float *w, int n)
{
    float part[KERN_SEGMENTS];
    int len = n / KERN_SEGMENTS;
    FST_ASSERT(n % KERN_SEGMENTS == 0);
    for (int i = 0; i < KERN_SEGMENTS; i++)
        part[i] = (float)ref_dot(x + i * len, w + i * len, len);
    return ((part[0] + part[1]) + (part[2] + part[3])) +
           ((part[4] + part[5]) + (part[6] + part[7]));
}

struct job {
    const struct ref_linear *a;
    const float *x;
    int64_t ldx;
    const int32_t *pick;
    uint8_t *scratch;
    enum precision precision;
    size_t row_bytes;
};

static void outputs(void *ud, int64_t first, int64_t last, int worker)
{
    const struct job *j = ud;
    const struct ref_linear *a = j->a;
    int n = a->w->n_in;
    float *row = (float *)(void *)(j->scratch + (size_t)worker * j->row_bytes);
    for (int64_t o = first; o < last; o++) {
        ref_mat_row(a->w, a->first + o, row);
        for (int i = 0; i < a->n_rows; i++) {
            const float *x = j->x + (j->pick ? j->pick[i] : i) * j->ldx;
            float *y = a->y + (a->pick_y ? a->pick_y[i] : i) * a->ldy + o;
            float v = a->flags & REF_SEGMENTS ? dot_segments(x, row, n) : (float)ref_dot(x, row, n);
            if (a->flags & REF_ROUND)
                v = ref_round(v, j->precision);
            *y = a->flags & REF_ADD ? *y + v : v;
        }
    }
}

static size_t row_bytes(int64_t n_in)
{
    return (size_t)round_up(n_in * 4, 64);
}

size_t ref_linear_scratch(int64_t n_rows, int64_t n_in, int n_threads)
{
    return row_bytes(n_in) * (size_t)(n_rows + n_threads);
}

void ref_linear(struct stream *s, const struct ref_linear *a, uint8_t *scratch)
{
    int n = a->w->n_in;
    bool coded = a->w->fmt == WEIGHT_FP8 || a->w->fmt == WEIGHT_FP4;
    struct job j = {a, a->x, a->ldx, a->pick_x, scratch, s->precision, row_bytes(n)};
    FST_ASSERT(a->first >= 0);
    FST_ASSERT(a->first + a->n_out <= a->w->n_out);
    if (a->flags & REF_QUANT && coded && s->precision == PRECISION_NATIVE) {
        float *q = (float *)(void *)(scratch + j.row_bytes * (size_t)pool_threads(s->pool));
        int64_t ld = (int64_t)(j.row_bytes / 4);
        for (int i = 0; i < a->n_rows; i++) {
            memcpy(q + i * ld, a->x + (a->pick_x ? a->pick_x[i] : i) * a->ldx, (size_t)n * 4);
            ref_fp8_grid(q + i * ld, n, 128, NULL);
        }
        j.x = q;
        j.ldx = ld;
        j.pick = NULL;
    }
    pool_run(s->pool, a->n_out, 16, outputs, &j);
}

void ref_linear_all(struct stream *s, const struct mat *w, const float *x, int n_rows, float *y,
                    unsigned flags, uint8_t *scratch)
{
    struct ref_linear a = {.w = w,
                           .x = x,
                           .y = y,
                           .ldx = w->n_in,
                           .ldy = w->n_out,
                           .n_rows = n_rows,
                           .n_out = w->n_out,
                           .flags = flags};
    ref_linear(s, &a, scratch);
}
