/* numeric.c - number formats, norms, rotations: the plain functions under the reference blocks. */
#include <math.h>

#include "kernels/ref/ref.h"

float ref_e2m1(uint8_t nibble)
{
    static const float value[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return nibble & 8 ? -value[nibble & 7] : value[nibble & 7];
}

uint8_t ref_e4m3_encode(float x)
{
    uint32_t sign = ref_bits(x) >> 31 << 7;
    float a = fminf(fabsf(x), 448.0f);
    if (a < 0x1p-6f) /* subnormal codes are multiples of 2^-9; 8 of them are the first normal */
        return (uint8_t)(sign | (uint32_t)rintf(a * 0x1p9f));
    uint32_t u = ref_bits(a);
    u += 0x7ffffu + ((u >> 20) & 1);
    return (uint8_t)(sign | ((u >> 20) - (120u << 3)));
}

uint8_t ref_e2m1_encode(float x)
{
    uint32_t sign = ref_bits(x) >> 31 << 3;
    float a = fabsf(x);
    /* Midpoints between neighbours; a tie goes to the even code. */
    uint32_t c = a <= 0.25f   ? 0
                 : a < 0.75f  ? 1
                 : a <= 1.25f ? 2
                 : a < 1.75f  ? 3
                 : a <= 2.5f  ? 4
                 : a < 3.5f   ? 5
                 : a <= 5.0f  ? 6
                              : 7;
    return (uint8_t)(sign | c);
}

uint8_t ref_scale_code(float t)
{
    uint32_t u = ref_bits(t);
    return (uint8_t)(((u >> 23) & 255) + ((u & 0x7fffff) != 0));
}

static float amax(const float *x, int n)
{
    float a = 0;
    for (int i = 0; i < n; i++)
        a = fmaxf(a, fabsf(x[i]));
    return a;
}

void ref_fp8_grid(float *x, int n, int block, uint8_t *codes)
{
    FST_ASSERT(n % block == 0);
    for (int b = 0; b < n / block; b++) {
        float *y = x + (int64_t)b * block;
        /* times fl(1/448), as published: equal to the division for every bf16 input */
        uint8_t code = ref_scale_code(fmaxf(amax(y, block), 1e-4f) * (1.0f / 448.0f));
        float up = ref_e8m0(code), down = ref_e8m0((uint8_t)(254 - code));
        for (int i = 0; i < block; i++)
            y[i] = ref_e4m3(ref_e4m3_encode(y[i] * down)) * up;
        if (codes)
            codes[b] = code;
    }
}

void ref_fp4_grid(float *x, int n, uint8_t *codes)
{
    FST_ASSERT(n % 32 == 0);
    for (int b = 0; b < n / 32; b++) {
        float *y = x + (int64_t)b * 32;
        uint8_t code = ref_scale_code(fmaxf(amax(y, 32), 6 * 0x1p-126f) * (1.0f / 6.0f));
        float up = ref_e8m0(code);
        for (int i = 0; i < 32; i++)
            y[i] = ref_e2m1(ref_e2m1_encode(y[i] / up)) * up;
        if (codes)
            codes[b] = code;
    }
}

double ref_dot(const float *a, const float *b, int n)
{
    double part[16] = {0};
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            part[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < n; i++)
        part[i % 16] += (double)a[i] * (double)b[i];
    for (int step = 8; step; step /= 2)
        for (int j = 0; j < step; j++)
            part[j] += part[j + step];
    return part[0];
}

double ref_mean_square(const float *x, int n)
{
    return ref_dot(x, x, n) / n;
}

void ref_rmsnorm(float *out, const float *x, const float *w, int n, float eps, enum precision p)
{
    double r = 1.0 / sqrt(ref_mean_square(x, n) + (double)eps);
    for (int i = 0; i < n; i++)
        out[i] = ref_round((float)((double)x[i] * r * (w ? (double)w[i] : 1.0)), p);
}

void ref_rotate(float *x, int n, int rope_dim, const float *cs, float sign, enum precision p)
{
    float *y = x + n - rope_dim;
    for (int i = 0; i < rope_dim; i += 2) {
        double c = (double)cs[i], s = (double)(sign * cs[i + 1]);
        double a = (double)y[i], b = (double)y[i + 1];
        y[i] = ref_round((float)(a * c - b * s), p);
        y[i + 1] = ref_round((float)(a * s + b * c), p);
    }
}

void ref_rope_cs(float *cs, const float *freq, int rope_dim, int32_t pos)
{
    for (int i = 0; i < rope_dim / 2; i++) {
        float angle = (float)pos * freq[i]; /* one fp32 product: the published table */
        cs[2 * i] = (float)cos((double)angle);
        cs[2 * i + 1] = (float)sin((double)angle);
    }
}

void ref_hadamard(float *x, int n, enum precision p)
{
    double y[1024];
    FST_ASSERT(n <= 1024);
    FST_ASSERT((n & (n - 1)) == 0);
    for (int i = 0; i < n; i++)
        y[i] = (double)x[i];
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                double a = y[j], b = y[j + h];
                y[j] = a + b;
                y[j + h] = a - b;
            }
    double scale = 1.0 / sqrt((double)n);
    for (int i = 0; i < n; i++)
        x[i] = ref_round((float)(y[i] * scale), p);
}

static void normalise(double *a, int first, int step, double eps)
{
    double sum = eps;
    for (int i = 0; i < 4; i++)
        sum += a[first + i * step];
    for (int i = 0; i < 4; i++)
        a[first + i * step] /= sum;
}

void ref_sinkhorn(double a[16], int iters, double eps)
{
    for (int j = 0; j < 4; j++) {
        double *row = a + 4 * j, top = row[0];
        for (int k = 1; k < 4; k++)
            top = fmax(top, row[k]);
        for (int k = 0; k < 4; k++)
            row[k] = exp(row[k] - top);
        normalise(a, 4 * j, 1, 0.0);
        for (int k = 0; k < 4; k++)
            row[k] += eps;
    }
    for (int it = 0; it < iters; it++) {
        for (int j = 0; it && j < 4; j++)
            normalise(a, 4 * j, 1, eps);
        for (int k = 0; k < 4; k++)
            normalise(a, k, 4, eps);
    }
}

double ref_sigmoid(double z)
{
    return 1.0 / (1.0 + exp(-z));
}

void ref_hc_split(float mix[KERN_MIX], const float *x, int dim, const float *fn, const float *base,
                  const float *scale, int iters, float hc_eps, float norm_eps)
{
    int n = KERN_HC * dim;
    double rho = 1.0 / sqrt(ref_mean_square(x, n) + (double)norm_eps), z[KERN_MIX], comb[16];
    for (int i = 0; i < KERN_MIX; i++)
        z[i] = ref_dot(fn + (int64_t)i * n, x, n) * rho;
    for (int k = 0; k < 4; k++) {
        mix[k] = (float)(ref_sigmoid(z[k] * (double)scale[0] + (double)base[k]) + (double)hc_eps);
        mix[4 + k] = (float)(2 * ref_sigmoid(z[4 + k] * (double)scale[1] + (double)base[4 + k]));
    }
    for (int i = 0; i < 16; i++)
        comb[i] = z[8 + i] * (double)scale[2] + (double)base[8 + i];
    ref_sinkhorn(comb, iters, (double)hc_eps);
    for (int i = 0; i < 16; i++)
        mix[8 + i] = (float)comb[i];
}
