/* linear.inl - matrix products from stored FP8, FP4, BF16 and F32 weights.
 *
 * AVX-512: codes become bf16 operands of dpbf16.  An E4M3 code is moved into a bf16 by shift and mask
 * with exponent bits 0111 in front, 2^-8 of its value; codes with exponent 0 (about one in 10^4 of
 * trained weights) are seen by one test per 64 codes and replaced from a table, since dpbf16 flushes
 * denormals.  An E2M1 nibble indexes a table of 16-bit values (permw), four nibbles per word.
 * AVX2: codes become fp16, then floats (conversion takes denormals at full speed). */
#include "kernels/cpu/linear.h"

enum { LIN_OUT_TILE = 64, LIN_ROW_TILE = 48 };

/* ---------------------------------------------------------------- prepared rows */

enum lin_layout lin_layout_of(const struct mat *w)
{
    int align = w->fmt == WEIGHT_F32 ? 16 : w->fmt == WEIGHT_BF16 ? 32 : 128;
    if (w->n_in % align)
        return LIN_FLOAT; /* plain loop */
#if SIMD_WIDE
    return w->fmt == WEIGHT_FP8    ? LIN_FP8
           : w->fmt == WEIGHT_FP4  ? LIN_FP4
           : w->fmt == WEIGHT_BF16 ? LIN_BF16
                                   : LIN_FLOAT;
#else
    return w->fmt == WEIGHT_FP8 ? LIN_FP8 : w->fmt == WEIGHT_FP4 ? LIN_FP4 : LIN_FLOAT;
#endif
}

int64_t lin_row_bytes(enum lin_layout layout, int n_in)
{
    bool wide = layout == LIN_FLOAT || !SIMD_WIDE;
    return round_up((int64_t)n_in * (wide ? 4 : 2), 64);
}

/* The general form of a quantised row: floats, last block may be short. */
static void prepare_floats(const float *x, int n_in, float *out)
{
    int i = 0;
    for (; i + 128 <= n_in; i += 128)
        v_fp8_block(out + i, x + i, 128);
    if (i < n_in) {
        float tail[128] = {0};
        memcpy(tail, x + i, (size_t)(n_in - i) * 4);
        v_fp8_block(tail, tail, 128);
        memcpy(out + i, tail, (size_t)(n_in - i) * 4);
    }
}

#if SIMD_WIDE
/* Even and odd words of 64. */
SIMD_INLINE void split_words(__m512i a, __m512i b, __m512i *even, __m512i *odd)
{
    const __m512i step = _mm512_set1_epi32(0x00020002);
    __m512i i = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30,
                                 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    *even = _mm512_permutex2var_epi16(a, i, b);
    i = _mm512_add_epi16(i, _mm512_srli_epi16(step, 1));
    *odd = _mm512_permutex2var_epi16(a, i, b);
}

SIMD_INLINE __m512i pack32(const float *x)
{
    return (__m512i)_mm512_cvtne2ps_pbh(v_load(x + 16), v_load(x));
}

static void lay_out(enum lin_layout layout, const float *x, int n, uint8_t *out)
{
    if (layout == LIN_BF16) {
        for (int i = 0; i < n; i += 32)
            v_istore(out + 2 * i, pack32(x + i));
        return;
    }
    for (int i = 0; i < n; i += 128) {
        __m512i e0, o0, e1, o1, n0, n1, n2, n3;
        split_words(pack32(x + i), pack32(x + i + 32), &e0, &o0);
        split_words(pack32(x + i + 64), pack32(x + i + 96), &e1, &o1);
        n0 = e0, n1 = o0, n2 = e1, n3 = o1;
        if (layout == LIN_FP4) {
            split_words(e0, e1, &n0, &n2);
            split_words(o0, o1, &n1, &n3);
        }
        v_istore(out + 2 * i, n0);
        v_istore(out + 2 * i + 64, n1);
        v_istore(out + 2 * i + 128, n2);
        v_istore(out + 2 * i + 192, n3);
    }
}
#else
static void lay_out(enum lin_layout layout, const float *x, int n, uint8_t *out)
{
    float *y = (float *)(void *)out;
    int ways = layout == LIN_FP8 ? 2 : 4, block = 16 * ways;
    for (int i = 0; i < n; i += block)
        for (int w = 0; w < ways; w++)
            for (int j = 0; j < 16; j++)
                y[i + 16 * w + j] = x[i + ways * j + w];
}
#endif

void lin_prepare(enum lin_layout layout, bool quantise, const float *x, int n_in, uint8_t *out)
{
    if (layout == LIN_FLOAT) {
        if (quantise)
            prepare_floats(x, n_in, (float *)(void *)out);
        else
            memcpy(out, x, (size_t)n_in * 4);
        return;
    }
    int64_t bytes = lin_row_bytes(layout, 128);
    int step = n_in % 128 ? 32 : 128; /* LIN_BF16 alone may have another width */
    for (int i = 0; i < n_in; i += step) {
        float block[128];
        if (quantise)
            v_fp8_block(block, x + i, 128);
        lay_out(layout, quantise ? block : x + i, step, out + bytes * i / 128);
    }
}

struct prepare {
    const struct lin_input *in;
    enum lin_layout layout;
    bool quantise;
    uint8_t *out;
    int64_t bytes;
};

static void prepare_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct prepare *p = ud;
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        int64_t row = p->in->pick ? p->in->pick[i] : i;
        lin_prepare(p->layout, p->quantise, p->in->x + row * p->in->ldx, p->in->n_in,
                    p->out + i * p->bytes);
    }
}

struct lin_job lin_make(struct stream *s, struct cut *c, struct lin_input *in, const struct mat *w,
                        bool quantise, float *y, int64_t ldy, unsigned flags)
{
    enum lin_layout layout = lin_layout_of(w);
    int64_t bytes = lin_row_bytes(layout, w->n_in);
    quantise = quantise && (w->fmt == WEIGHT_FP8 || w->fmt == WEIGHT_FP4);
    FST_ASSERT(w->n_in == in->n_in);
    struct lin_job j = {
        .w = w, .y = y, .ldy = ldy, .n_rows = in->n_rows, .n_out = w->n_out, .flags = flags};
    if (layout == LIN_FLOAT && !quantise) {
        j.x = (const uint8_t *)in->x;
        j.ldx = in->ldx * 4;
        j.pick_x = in->pick;
        return j;
    }
    if (!in->rows[layout][quantise]) {
        struct prepare p = {in, layout, quantise, cut_take(c, in->n_rows * bytes), bytes};
        in->rows[layout][quantise] = p.out;
        simd_spread(s, in->n_rows, 4 * w->n_in, prepare_body, &p);
    }
    j.x = in->rows[layout][quantise];
    j.ldx = bytes;
    return j;
}

/* ---------------------------------------------------------------- one tile */

/* Outputs o0..o1-1 of w for up to LIN_R rows. */
struct tile {
    const struct mat *w;
    const uint8_t *x[6];
    float *y[6]; /* of output o0 */
    int64_t o0, o1;
    unsigned flags;
};

#if SIMD_WIDE
enum { LIN_R = 6 };

SIMD_INLINE vf dot(vf acc, __m512i w, const uint8_t *x)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)_mm512_loadu_si512(x));
}

/* The codes with exponent 0 of 32 words: m * 2^-9 * 2^-8 with the code's sign (word bit 15). */
SIMD_INLINE __m512i fix_subnormal(__m512i w, __m512i code, __mmask32 m)
{
    const __m512i value = _mm512_set_epi16(
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* no such code */
        0x3860, 0x3840, 0x3820, 0x3800, 0x37c0, 0x3780, 0x3700, 0);
    __m512i index = _mm512_and_si512(_mm512_srli_epi16(code, 8), _mm512_set1_epi16(7));
    __m512i sign = _mm512_and_si512(code, _mm512_set1_epi16((short)0x8000));
    return _mm512_mask_mov_epi16(w, m,
                                 _mm512_or_si512(_mm512_permutexvar_epi16(index, value), sign));
}

/* 64 codes to 2^-8 of their values: even elements, odd elements. */
SIMD_INLINE void decode_fp8(const uint8_t *p, __m512i w[2])
{
    const __m512i keep = _mm512_set1_epi16((short)0x87f0), one = _mm512_set1_epi16(0x3800);
    __m512i c = _mm512_loadu_si512(p), e = _mm512_slli_epi16(c, 8);
    w[0] = _mm512_ternarylogic_epi32(_mm512_srai_epi16(e, 4), keep, one, 0xea);
    w[1] = _mm512_ternarylogic_epi32(_mm512_srai_epi16(c, 4), keep, one, 0xea);
    __mmask64 low = _mm512_testn_epi8_mask(c, _mm512_set1_epi8(0x78));
    if (__builtin_expect(low != 0, 0)) {
        const __m512i exponent = _mm512_set1_epi16(0x7800);
        w[0] = fix_subnormal(w[0], e, _mm512_testn_epi16_mask(e, exponent));
        w[1] = fix_subnormal(w[1], c, _mm512_testn_epi16_mask(c, exponent));
    }
}

/* 128 nibbles to bf16: elements 0 mod 4, 1 mod 4, ... */
SIMD_INLINE void decode_fp4(const uint8_t *p, __m512i w[4])
{
    const __m512i table = _mm512_set_epi16(
        (short)0xc0c0, (short)0xc080, (short)0xc040, (short)0xc000, (short)0xbfc0, (short)0xbf80,
        (short)0xbf00, (short)0x8000, 0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0,
        (short)0xc0c0, (short)0xc080, (short)0xc040, (short)0xc000, (short)0xbfc0, (short)0xbf80,
        (short)0xbf00, (short)0x8000, 0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0);
    __m512i c = _mm512_loadu_si512(p); /* permw looks at 5 bits: the table stands there twice */
    w[0] = _mm512_permutexvar_epi16(c, table);
    w[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(c, 4), table);
    w[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(c, 8), table);
    w[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(c, 12), table);
}

/* Scales of 4 blocks of 32, each for its 4 lanes. */
SIMD_INLINE vf scales_fp4(const uint8_t *p)
{
    const __m512i spread =
        _mm512_set_epi32(0x03ffffff, 0x03ffffff, 0x03ffffff, 0x03ffffff, 0x02ffffff, 0x02ffffff,
                         0x02ffffff, 0x02ffffff, 0x01ffffff, 0x01ffffff, 0x01ffffff, 0x01ffffff,
                         0x00ffffff, 0x00ffffff, 0x00ffffff, 0x00ffffff);
    int32_t codes;
    memcpy(&codes, p, 4);
    return v_float(v_srl(_mm512_shuffle_epi8(_mm512_set1_epi32(codes), spread), 1));
}

#define LIN_ROWS_OF(R) for (int r = 0; r < (R); r++)

SIMD_INLINE void walk_fp8_by(const int R, const int O, const bool half, const struct tile *t,
                             const uint8_t *const *p, int64_t o, int k0, int k1, vf (*acc)[6])
{
    int64_t n = t->w->n_in;
    const uint8_t *scale = t->w->scale + o / 128 * (n / 128);
    for (int k = k0; k < k1; k += 128) {
        vf s = v_set1(s_e8m0(scale[k / 128]) * 256.0f);
#pragma GCC unroll 8
        for (int i = 0; i < O; i++) {
            __m512i w[4];
            decode_fp8(p[i] + k, w);
            if (!half)
                decode_fp8(p[i] + k + 64, w + 2);
            _mm_prefetch((const char *)(p[i] + k + O * n), _MM_HINT_T0);
            _mm_prefetch((const char *)(p[i] + k + O * n + 64), _MM_HINT_T0);
#pragma GCC unroll 6
            LIN_ROWS_OF(R)
            {
                const uint8_t *x = t->x[r] + 2 * (int64_t)k;
                vf d = dot(dot(v_zero(), w[0], x), w[1], x + 64);
                if (!half)
                    d = dot(dot(d, w[2], x + 128), w[3], x + 192);
                acc[i][r] = v_fma(d, s, acc[i][r]);
            }
        }
    }
}

SIMD_INLINE void walk_fp8(const int R, const int O, const struct tile *t, const uint8_t *const *p,
                          int64_t o, int k0, int k1, vf (*acc)[6])
{
    if (k1 - k0 < 128) /* a part of one chunk (narrow wo_b, w2) */
        walk_fp8_by(R, O, true, t, p, o, k0, k1, acc);
    else
        walk_fp8_by(R, O, false, t, p, o, k0, k1, acc);
}

SIMD_INLINE void walk_fp4(const int R, const int O, const struct tile *t, const uint8_t *const *p,
                          int64_t o, int k0, int k1, vf (*acc)[6])
{
    int64_t n = t->w->n_in, last = t->o1 - 1;
    for (int k = k0; k < k1; k += 128) {
#pragma GCC unroll 8
        for (int i = 0; i < O; i++) {
            __m512i w[4];
            decode_fp4(p[i] + k / 2, w);
            vf s = scales_fp4(t->w->scale + FST_MIN(o + i, last) * (n / 32) + k / 32);
            _mm_prefetch((const char *)(p[i] + k / 2 + O * n / 2), _MM_HINT_T0);
#pragma GCC unroll 6
            LIN_ROWS_OF(R)
            {
                const uint8_t *x = t->x[r] + 2 * (int64_t)k;
                vf d = dot(dot(v_zero(), w[0], x), w[1], x + 64);
                d = dot(dot(d, w[2], x + 128), w[3], x + 192);
                acc[i][r] = v_fma(d, s, acc[i][r]);
            }
        }
    }
}

SIMD_INLINE void walk_bf16(const int R, const int O, const struct tile *t, const uint8_t *const *p,
                           int64_t o, int k0, int k1, vf (*acc)[6])
{
    int64_t n = t->w->n_in;
    (void)o;
    for (int k = k0; k < k1; k += 32)
#pragma GCC unroll 8
        for (int i = 0; i < O; i++) {
            __m512i w = _mm512_loadu_si512(p[i] + 2 * (int64_t)k);
            _mm_prefetch((const char *)(p[i] + 2 * (k + O * n)), _MM_HINT_T0);
#pragma GCC unroll 6
            LIN_ROWS_OF(R)
            acc[i][r] = dot(acc[i][r], w, t->x[r] + 2 * (int64_t)k);
        }
}
#else
enum { LIN_R = 3 };

/* 16 fp16 words to two vectors; their 8 first and 8 last. */
SIMD_INLINE void widen(__m256i h, vf *lo, vf *hi)
{
    *lo = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
    *hi = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
}

/* 32 codes to 2^-8 of their values: even elements (0-7, 8-15), odd elements.  Sign, exponent and
 * mantissa of a code are moved into an fp16 with a small exponent; denormals come out right. */
SIMD_INLINE void decode_fp8(const uint8_t *p, vf w[4])
{
    const __m256i keep = _mm256_set1_epi16((short)0xbf80);
    __m256i c = _mm256_loadu_si256((const __m256i *)p), e = _mm256_slli_epi16(c, 8);
    widen(_mm256_and_si256(_mm256_srai_epi16(e, 1), keep), &w[0], &w[1]);
    widen(_mm256_and_si256(_mm256_srai_epi16(c, 1), keep), &w[2], &w[3]);
}

/* 64 nibbles to 2^-14 of their values: elements 0 mod 4 (first and last 8), 1 mod 4, ... */
SIMD_INLINE void decode_fp4(const uint8_t *p, vf w[8])
{
    const __m256i keep = _mm256_set1_epi16((short)0x8e00);
    __m256i c = _mm256_loadu_si256((const __m256i *)p);
    __m256i c0 = _mm256_slli_epi16(c, 12), c1 = _mm256_slli_epi16(c, 8);
    __m256i c2 = _mm256_slli_epi16(c, 4);
    widen(_mm256_and_si256(_mm256_srai_epi16(c0, 3), keep), &w[0], &w[1]);
    widen(_mm256_and_si256(_mm256_srai_epi16(c1, 3), keep), &w[2], &w[3]);
    widen(_mm256_and_si256(_mm256_srai_epi16(c2, 3), keep), &w[4], &w[5]);
    widen(_mm256_and_si256(_mm256_srai_epi16(c, 3), keep), &w[6], &w[7]);
}

SIMD_INLINE vf at(const struct tile *t, int r, int k)
{
    return v_load((const float *)(const void *)t->x[r] + k);
}

#define LIN_ROWS_OF(R) for (int r = 0; r < (R); r++)

SIMD_INLINE void walk_fp8(const int R, const int O, const struct tile *t, const uint8_t *const *p,
                          int64_t o, int k0, int k1, vf (*acc)[6])
{
    int64_t n = t->w->n_in;
    const uint8_t *scale = t->w->scale + o / 128 * (n / 128);
    if (k1 - k0 == 16) { /* a part of half a step (narrow wo_b): one half of each vector pair */
        int k = k0 & ~31, h = k0 >> 4 & 1;
        vf s = v_set1(s_e8m0(scale[k / 128]) * 256.0f);
        for (int i = 0; i < O; i++) {
            vf w[4];
            decode_fp8(p[i] + k, w);
#pragma GCC unroll 6
            LIN_ROWS_OF(R)
            {
                vf d = v_mul(w[h], at(t, r, k + 8 * h));
                acc[i][r] = v_mul(v_fma(w[2 + h], at(t, r, k + 16 + 8 * h), d), s);
            }
        }
        return;
    }
    for (int k = k0; k < k1; k += 32) {
        vf s = v_set1(s_e8m0(scale[k / 128]) * 256.0f);
#pragma GCC unroll 8
        for (int i = 0; i < O; i++) {
            vf w[4];
            decode_fp8(p[i] + k, w);
            if (k % 64 == 0)
                _mm_prefetch((const char *)(p[i] + k + O * n), _MM_HINT_T0);
#pragma GCC unroll 6
            LIN_ROWS_OF(R)
            {
                vf d = v_mul(w[0], at(t, r, k));
                d = v_fma(w[1], at(t, r, k + 8), d);
                d = v_fma(w[2], at(t, r, k + 16), d);
                d = v_fma(w[3], at(t, r, k + 24), d);
                acc[i][r] = v_fma(d, s, acc[i][r]);
            }
        }
    }
}

SIMD_INLINE void walk_fp4(const int R, const int O, const struct tile *t, const uint8_t *const *p,
                          int64_t o, int k0, int k1, vf (*acc)[6])
{
    int64_t n = t->w->n_in, last = t->o1 - 1;
    bool half = k1 - k0 == 32; /* a part of half a step (narrow w2) */
    for (int k = k0 & ~63; k < k1; k += 64)
#pragma GCC unroll 8
        for (int i = 0; i < O; i++) {
            vf w[8];
            const uint8_t *scale = t->w->scale + FST_MIN(o + i, last) * (n / 32) + k / 32;
            decode_fp4(p[i] + k / 2, w);
            if (k % 128 == 0)
                _mm_prefetch((const char *)(p[i] + k / 2 + O * n / 2), _MM_HINT_T0);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                if (half && h != (k0 >> 5 & 1))
                    continue;
                vf s = v_set1(s_e8m0(scale[h]) * 0x1p14f);
#pragma GCC unroll 6
                LIN_ROWS_OF(R)
                {
                    vf d = v_mul(w[h], at(t, r, k + 8 * h));
                    d = v_fma(w[2 + h], at(t, r, k + 16 + 8 * h), d);
                    d = v_fma(w[4 + h], at(t, r, k + 32 + 8 * h), d);
                    d = v_fma(w[6 + h], at(t, r, k + 48 + 8 * h), d);
                    acc[i][r] = v_fma(d, s, acc[i][r]);
                }
            }
        }
}

SIMD_INLINE void walk_bf16(const int R, const int O, const struct tile *t, const uint8_t *const *p,
                           int64_t o, int k0, int k1, vf (*acc)[6])
{
    int64_t n = t->w->n_in;
    (void)o;
    for (int k = k0; k < k1; k += 8)
#pragma GCC unroll 8
        for (int i = 0; i < O; i++) {
            vf w = v_load_bf16(p[i] + 2 * (int64_t)k);
            if (k % 32 == 0)
                _mm_prefetch((const char *)(p[i] + 2 * (k + O * n)), _MM_HINT_T0);
#pragma GCC unroll 6
            LIN_ROWS_OF(R)
            acc[i][r] = v_fma(w, at(t, r, k), acc[i][r]);
        }
}
#endif

SIMD_INLINE void walk_f32(const int R, const int O, const struct tile *t, const uint8_t *const *p,
                          int64_t o, int k0, int k1, vf (*acc)[6])
{
    (void)o;
    for (int k = k0; k < k1; k += VL)
#pragma GCC unroll 8
        for (int i = 0; i < O; i++) {
            vf w = v_load((const float *)(const void *)(p[i] + 4 * (int64_t)k));
#pragma GCC unroll 6
            LIN_ROWS_OF(R)
            acc[i][r] = v_fma(w, v_load((const float *)(const void *)(t->x[r] + 4 * (int64_t)k)),
                              acc[i][r]);
        }
}

/* Elements per step of a form: a part of K is a multiple of it. */
SIMD_INLINE int step_of(const int fmt)
{
#if SIMD_WIDE
    return fmt == WEIGHT_FP8 ? 64 : fmt == WEIGHT_FP4 ? 128 : fmt == WEIGHT_BF16 ? 32 : 16;
#else
    return fmt == WEIGHT_FP8 ? 16 : fmt == WEIGHT_FP4 ? 32 : 8;
#endif
}

SIMD_INLINE int parts_of(const int fmt, const struct mat *w, unsigned flags)
{
    int n = w->n_in, step = step_of(fmt);
    if (!(flags & LIN_SEGMENTS))
        return 1;
    if (n % (KERN_SEGMENTS * step) == 0)
        return KERN_SEGMENTS;
    int parts = n / step; /* segments of fewer elements than a step: groups of lanes */
    FST_ASSERT(n % step == 0);
    FST_ASSERT(parts == 1 || parts == 2 || parts == 4);
    return parts;
}

SIMD_INLINE __m128 round4(__m128 x)
{
    __m128i u = _mm_castps_si128(x), odd = _mm_and_si128(_mm_srli_epi32(u, 16), _mm_set1_epi32(1));
    u = _mm_add_epi32(u, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
    return _mm_castsi128_ps(_mm_and_si128(u, _mm_set1_epi32((int32_t)0xffff0000u)));
}

SIMD_INLINE void store4(float *y, __m128 v, int64_t n)
{
    float f[4];
    if (n >= 4) {
        _mm_storeu_ps(y, v);
        return;
    }
    _mm_storeu_ps(f, v);
    for (int i = 0; i < n; i++)
        y[i] = f[i];
}

SIMD_INLINE void run_tile(const int fmt, const int R, const int O, const struct tile *t)
{
    const struct mat *w = t->w;
    int64_t n = w->n_in;
    int64_t row = fmt == WEIGHT_FP8    ? n
                  : fmt == WEIGHT_FP4  ? n / 2
                  : fmt == WEIGHT_BF16 ? 2 * n
                                       : 4 * n;
    int parts = parts_of(fmt, w, t->flags), len = (int)(n / parts);
    for (int64_t o = t->o0; o < t->o1; o += O) {
        const uint8_t *p[8];
        __m128 sum[KERN_SEGMENTS][2][6];
        for (int i = 0; i < O; i++)
            p[i] = (const uint8_t *)w->data + FST_MIN(o + i, t->o1 - 1) * row;
        for (int part = 0; part < parts; part++) {
            vf acc[8][6];
#pragma GCC unroll 8
            for (int i = 0; i < O; i++)
#pragma GCC unroll 6
                LIN_ROWS_OF(R)
            acc[i][r] = v_zero();
            if (fmt == WEIGHT_FP8)
                walk_fp8(R, O, t, p, o, part * len, (part + 1) * len, acc);
            else if (fmt == WEIGHT_FP4)
                walk_fp4(R, O, t, p, o, part * len, (part + 1) * len, acc);
            else if (fmt == WEIGHT_BF16)
                walk_bf16(R, O, t, p, o, part * len, (part + 1) * len, acc);
            else
                walk_f32(R, O, t, p, o, part * len, (part + 1) * len, acc);
#pragma GCC unroll 6
            LIN_ROWS_OF(R)
#pragma GCC unroll 2
            for (int i = 0; i < O; i += 4)
                sum[part][i / 4][r] =
                    v_sum4(acc[i][r], acc[i + 1][r], acc[i + 2][r], acc[i + 3][r]);
        }
        for (int i = 0; i < O && o + i < t->o1; i += 4)
            LIN_ROWS_OF(R)
            {
                for (int step = 1; step < parts; step *= 2)
                    for (int j = 0; j < parts; j += 2 * step)
                        sum[j][i / 4][r] = _mm_add_ps(sum[j][i / 4][r], sum[j + step][i / 4][r]);
                __m128 v = sum[0][i / 4][r];
                store4(t->y[r] + (o - t->o0) + i, t->flags & LIN_ROUND ? round4(v) : v,
                       t->o1 - o - i);
            }
    }
}

/* Widths that fit no vector form (small test models): floats, one output after another. */
static void run_plain(const struct tile *t, int rows)
{
    const struct mat *w = t->w;
    int64_t n = w->n_in;
    int parts = t->flags & LIN_SEGMENTS ? KERN_SEGMENTS : 1;
    FST_ASSERT(n % parts == 0);
    for (int64_t o = t->o0; o < t->o1; o++)
        for (int r = 0; r < rows; r++) {
            const float *x = (const float *)(const void *)t->x[r];
            float sum[KERN_SEGMENTS] = {0};
            for (int64_t k = 0; k < n; k++) {
                int64_t at = o * n + k;
                const uint8_t *d = w->data;
                float v;
                uint16_t h;
                if (w->fmt == WEIGHT_F32) {
                    memcpy(&v, d + at * 4, 4);
                } else if (w->fmt == WEIGHT_BF16) {
                    memcpy(&h, d + at * 2, 2);
                    v = s_float((uint32_t)h << 16);
                } else if (w->fmt == WEIGHT_FP8) {
                    v = s_float((uint32_t)(d[at] & 0x80) << 24 | (uint32_t)(d[at] & 0x7f) << 20) *
                        0x1p120f * s_e8m0(w->scale[o / 128 * div_up(n, 128) + k / 128]);
                } else {
                    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
                    int c = d[o * (n / 2) + k / 2] >> (k & 1 ? 4 : 0) & 15;
                    v = (c & 8 ? -e2m1[c & 7] : e2m1[c & 7]) *
                        s_e8m0(w->scale[o * (n / 32) + k / 32]);
                }
                float *part = &sum[k * parts / n];
                *part = fmaf(v, x[k], *part);
            }
            float v = parts == 1 ? sum[0]
                                 : ((sum[0] + sum[1]) + (sum[2] + sum[3])) +
                                       ((sum[4] + sum[5]) + (sum[6] + sum[7]));
            t->y[r][o - t->o0] = t->flags & LIN_ROUND ? s_bf16(v) : v;
        }
}

#if SIMD_WIDE
#define LIN_EACH_ROWS(X, fmt)                                                                      \
    X(fmt, 1, 8) X(fmt, 2, 8) X(fmt, 3, 4) X(fmt, 4, 4) X(fmt, 5, 4) X(fmt, 6, 4)
#else
#define LIN_EACH_ROWS(X, fmt) X(fmt, 1, 4) X(fmt, 2, 4) X(fmt, 3, 4)
#endif
#define LIN_DEFINE(fmt, R, O)                                                                      \
    static void tile_##fmt##_##R(const struct tile *t)                                             \
    {                                                                                              \
        run_tile(WEIGHT_##fmt, R, O, t);                                                           \
    }
LIN_EACH_ROWS(LIN_DEFINE, FP8)
LIN_EACH_ROWS(LIN_DEFINE, FP4)
LIN_EACH_ROWS(LIN_DEFINE, BF16)
LIN_EACH_ROWS(LIN_DEFINE, F32)

typedef void tile_fn(const struct tile *t);
#define LIN_NAME(fmt, R, O) tile_##fmt##_##R,
static tile_fn *const tile_fns[4][LIN_R] = {{LIN_EACH_ROWS(LIN_NAME, F32)},
                                            {LIN_EACH_ROWS(LIN_NAME, BF16)},
                                            {LIN_EACH_ROWS(LIN_NAME, FP8)},
                                            {LIN_EACH_ROWS(LIN_NAME, FP4)}};

void lin_part(const struct lin_job *j, int r0, int r1, int o0, int o1)
{
    struct tile t = {.w = j->w, .o0 = j->first + o0, .o1 = j->first + o1, .flags = j->flags};
    int align = j->w->fmt == WEIGHT_F32 ? 16 : j->w->fmt == WEIGHT_BF16 ? 32 : 128;
    bool plain = j->w->n_in % align != 0;
    FST_ASSERT(t.o0 % 8 == 0 || j->w->fmt != WEIGHT_FP8);
    FST_ASSERT(t.o1 <= j->w->n_out);
    FST_ASSERT(j->w->fmt >= WEIGHT_F32 && j->w->fmt <= WEIGHT_FP4);
    for (int r = r0; r < r1; r += LIN_R) {
        int n = FST_MIN(LIN_R, r1 - r);
        for (int i = 0; i < n; i++) {
            int64_t x = j->pick_x ? j->pick_x[r + i] : r + i;
            int64_t y = j->pick_y ? j->pick_y[r + i] : r + i;
            t.x[i] = j->x + x * j->ldx;
            t.y[i] = j->y + y * j->ldy + o0;
        }
        if (plain)
            run_plain(&t, n);
        else
            tile_fns[j->w->fmt - WEIGHT_F32][n - 1](&t);
    }
}

/* ---------------------------------------------------------------- many jobs */

struct spread {
    const struct lin_job *jobs;
    int n_jobs;
};

static int64_t row_tiles(const struct lin_job *j)
{
    return div_up(j->n_rows, LIN_ROW_TILE);
}

static void spread_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct spread *sp = ud;
    const struct lin_job *j = sp->jobs;
    int64_t base = 0;
    (void)worker;
    for (int64_t u = first; u < last; u++) {
        while (u - base >= row_tiles(j) * div_up(j->n_out, LIN_OUT_TILE)) {
            base += row_tiles(j) * div_up(j->n_out, LIN_OUT_TILE);
            j++;
        }
        int o0 = (int)((u - base) / row_tiles(j)) * LIN_OUT_TILE;
        int r0 = (int)((u - base) % row_tiles(j)) * LIN_ROW_TILE;
        lin_part(j, r0, FST_MIN(r0 + LIN_ROW_TILE, j->n_rows), o0,
                 FST_MIN(o0 + LIN_OUT_TILE, j->n_out));
    }
}

void lin_run(struct stream *s, const struct lin_job *jobs, int n_jobs)
{
    struct spread sp = {jobs, n_jobs};
    int64_t units = 0, work = 0;
    for (int i = 0; i < n_jobs; i++) {
        units += row_tiles(&jobs[i]) * div_up(jobs[i].n_out, LIN_OUT_TILE);
        work += (int64_t)jobs[i].n_rows * jobs[i].n_out * jobs[i].w->n_in;
    }
    if (units)
        simd_spread(s, units, work / units, spread_body, &sp);
}
