/* ref.h - the plain functions that the reference blocks are composed of, and the blocks' names.
 *
 * Truth, not speed: sums are double and in a fixed order (16 interleaved partial sums, so that the
 * compiler may use vectors), one rounding where the published model stores a value.  In
 * PRECISION_REFERENCE the roundings and grids are left out.
 *
 * Formulas: DeepSeek-V4 reference inference, model.py and kernel.py. */
#ifndef FST_KERNELS_REF_H
#define FST_KERNELS_REF_H

#include <string.h>

#include "kernels/kernels.h"
#include "kernels/rows.h"

/* ---------------------------------------------------------------- numbers (numeric.c) */

static inline uint32_t ref_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float ref_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
/* Nearest bf16, ties to even, as a float. */
static inline float ref_bf16(float x)
{
    uint32_t u = ref_bits(x);
    return ref_float((u + ((u >> 16) & 1) + 0x7fff) & 0xffff0000u);
}
static inline float ref_round(float x, enum precision p)
{
    return p == PRECISION_NATIVE ? ref_bf16(x) : x;
}
/* E8M0: 2^(b-127); 0 is 2^-127.  255 is refused by the loader. */
static inline float ref_e8m0(uint8_t b)
{
    return ref_float(b ? (uint32_t)b << 23 : 0x00400000u);
}
/* E4M3: exponent and mantissa moved into an fp32, then 2^120; exact for subnormals too.  0x7f and
 * 0xff (not numbers) are refused by the loader. */
static inline float ref_e4m3(uint8_t c)
{
    return ref_float(((uint32_t)(c & 0x80) << 24) | ((uint32_t)(c & 0x7f) << 20)) * 0x1p120f;
}
float ref_e2m1(uint8_t nibble);
uint8_t ref_e4m3_encode(float x); /* nearest, ties to even, saturates at 448 */
uint8_t ref_e2m1_encode(float x); /* nearest, ties to the even code, saturates at 6 */
/* E8M0 code of 2^ceil(log2 t), on the bits; t > 0, normal. */
uint8_t ref_scale_code(float t);

/* In place to the grid: code of the scale per block is returned in codes (may be NULL).
 * fp8: scale from max(amax, 1e-4)/448; fp4: from max(amax, 6*2^-126)/6. */
void ref_fp8_grid(float *x, int n, int block, uint8_t *codes);
void ref_fp4_grid(float *x, int n, uint8_t *codes); /* blocks of 32 */

double ref_dot(const float *a, const float *b, int n);
double ref_mean_square(const float *x, int n);
/* out = round(w * x * rsqrt(mean(x^2) + eps)); out may be x; w NULL: no weight. */
void ref_rmsnorm(float *out, const float *x, const float *w, int n, float eps, enum precision p);
/* Rotate the last rope_dim of n dims by cs (cos, sin interleaved); sign -1 rotates back. */
void ref_rotate(float *x, int n, int rope_dim, const float *cs, float sign, enum precision p);
/* cos and sin of the fp32 angle pos*freq. */
void ref_rope_cs(float *cs, const float *freq, int rope_dim, int32_t pos);
/* Walsh-Hadamard in Sylvester order times n^-1/2; n a power of two <= 1024. */
void ref_hadamard(float *x, int n, enum precision p);
/* a[j][k], source-major, to its Sinkhorn form (row softmax + eps, then `iters` column steps). */
void ref_sinkhorn(double a[16], int iters, double eps);
double ref_sigmoid(double z);
/* pre, post, comb from the 4*dim stream values of one row. */
void ref_hc_split(float mix[KERN_MIX], const float *x, int dim, const float *fn, const float *base,
                  const float *scale, int iters, float hc_eps, float norm_eps);

/* ---------------------------------------------------------------- linear maps (linear.c) */

/* Row `o` of w as floats. */
void ref_mat_row(const struct mat *w, int64_t o, float *out);

enum ref_linear_flags {
    REF_QUANT = 1,    /* FP8 input grid in front of FP8 and FP4 weights (native) */
    REF_ROUND = 2,    /* bf16 out (native) */
    REF_SEGMENTS = 4, /* K in KERN_SEGMENTS segments, fp32 tree */
    REF_ADD = 8       /* y += instead of y = */
};
/* y[i] (stride ldy) from x[i] (stride ldx) through output rows first .. first+n_out-1 of w, for
 * i < n_rows; pick NULL, or x and y rows are pick[i].  Scratch: ref_linear_scratch. */
struct ref_linear {
    const struct mat *w;
    const float *x;
    float *y;
    int64_t ldx, ldy;
    int n_rows, first, n_out;
    const int32_t *pick_x, *pick_y;
    unsigned flags;
};
void ref_linear(struct stream *s, const struct ref_linear *a, uint8_t *scratch);
size_t ref_linear_scratch(int64_t n_rows, int64_t n_in, int n_threads);
size_t ref_attention_scratch(int n_heads, int head_dim, int n_threads);

/* The whole of w, rows packed. */
void ref_linear_all(struct stream *s, const struct mat *w, const float *x, int n_rows, float *y,
                    unsigned flags, uint8_t *scratch);

static inline void ref_need(const struct stream *s, size_t bytes)
{
    FST_ASSERT(s->scratch_bytes >= bytes);
}
static inline bool ref_mat_there(const struct mat *m)
{
    return m && m->fmt != WEIGHT_NONE;
}

/* ---------------------------------------------------------------- blocks */

#define REF_DECLARE(entry, args) enum fst_status entry##_ref(const args *a, struct stream *s);
KERNELS_MAP(REF_DECLARE)
#undef REF_DECLARE

/* Scratch bytes for any block within the limits. */
size_t ref_scratch_bytes(const struct kernel_limits *l, int n_threads);

#endif
