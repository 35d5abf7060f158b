/* simd.h - one vocabulary of vectors for the AVX2 and the AVX-512 files.
 *
 * VL floats to a vector.  Horizontal sums are "inner first": the four lanes of each 128-bit group
 * (0+2)+(1+3), then neighbouring groups, then pairs of groups; v_sum and v_sum4 add in the same
 * order, so an output's bits do not depend on how many are reduced together.
 * Operands of dot products (vd) are DL bf16 values (AVX-512, dpbf16) or VL floats (AVX2). */
#ifndef FST_KERNELS_SIMD_H
#define FST_KERNELS_SIMD_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/cpu/cpu.h"
#include "kernels/philox.h"
#include "kernels/rows.h"

#define SIMD_INLINE static inline __attribute__((always_inline, unused))

#ifdef __AVX512BF16__
#define SIMD_WIDE    1
#define SIMD_NAME(x) x##_avx512
#else
#define SIMD_WIDE    0
#define SIMD_NAME(x) x##_avx2
#endif

/* ---------------------------------------------------------------- floats */

#if SIMD_WIDE

enum { VL = 16 };
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

SIMD_INLINE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
SIMD_INLINE void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
SIMD_INLINE vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}
SIMD_INLINE vf v_zero(void)
{
    return _mm512_setzero_ps();
}
SIMD_INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
SIMD_INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
SIMD_INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
SIMD_INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
SIMD_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
SIMD_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
SIMD_INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
SIMD_INLINE vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
SIMD_INLINE vf v_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
SIMD_INLINE vf v_rint(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SIMD_INLINE vi v_bits(vf a)
{
    return _mm512_castps_si512(a);
}
SIMD_INLINE vf v_float(vi a)
{
    return _mm512_castsi512_ps(a);
}
SIMD_INLINE vi v_int1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
SIMD_INLINE vi v_iload(const void *p)
{
    return _mm512_loadu_si512(p);
}
SIMD_INLINE void v_istore(void *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
SIMD_INLINE vi v_iadd(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
SIMD_INLINE vi v_isub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
SIMD_INLINE vi v_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
SIMD_INLINE vi v_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
SIMD_INLINE vi v_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
#define v_sll(a, n) _mm512_slli_epi32(a, n)
#define v_srl(a, n) _mm512_srli_epi32(a, n)
#define v_sra(a, n) _mm512_srai_epi32(a, n)
SIMD_INLINE vi v_to_int(vf a)
{
    return _mm512_cvtps_epi32(a);
}
SIMD_INLINE vf v_from_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
/* a where m, else b */
SIMD_INLINE vf v_pick(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}
SIMD_INLINE vi v_ipick(vm m, vi a, vi b)
{
    return _mm512_mask_blend_epi32(m, b, a);
}
SIMD_INLINE vm v_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
SIMD_INLINE vm v_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
SIMD_INLINE vm v_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
SIMD_INLINE vm v_negative(vi a)
{
    return _mm512_movepi32_mask(a);
}
SIMD_INLINE bool v_any(vm m)
{
    return m != 0;
}
/* Lanes i with first + i < n. */
SIMD_INLINE vm v_below(int first, int n)
{
    return _mm512_cmplt_epi32_mask(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm512_set1_epi32(n - first));
}
SIMD_INLINE vi v_lanes(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
/* Sums of the 128-bit groups: neighbours, then pairs. */
SIMD_INLINE __m128 v_groups(vf v)
{
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, _MM_SHUFFLE(2, 3, 0, 1)));
    __m256 w = _mm512_castps512_ps256(v), x = _mm512_extractf32x8_ps(v, 1);
    return _mm_add_ps(_mm256_castps256_ps128(w), _mm256_castps256_ps128(x));
}
SIMD_INLINE __m128 v_sum4(vf a, vf b, vf c, vf d)
{
    vf ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    vf cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    return v_groups(
        _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee)));
}
SIMD_INLINE float v_hmax(vf v)
{
    return _mm512_reduce_max_ps(v);
}

#else

enum { VL = 8 };
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

SIMD_INLINE vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
SIMD_INLINE void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
SIMD_INLINE vf v_set1(float x)
{
    return _mm256_set1_ps(x);
}
SIMD_INLINE vf v_zero(void)
{
    return _mm256_setzero_ps();
}
SIMD_INLINE vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
SIMD_INLINE vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
SIMD_INLINE vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
SIMD_INLINE vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
SIMD_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
SIMD_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
SIMD_INLINE vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
SIMD_INLINE vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
SIMD_INLINE vf v_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}
SIMD_INLINE vf v_rint(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SIMD_INLINE vi v_bits(vf a)
{
    return _mm256_castps_si256(a);
}
SIMD_INLINE vf v_float(vi a)
{
    return _mm256_castsi256_ps(a);
}
SIMD_INLINE vi v_int1(int32_t x)
{
    return _mm256_set1_epi32(x);
}
SIMD_INLINE vi v_iload(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
SIMD_INLINE void v_istore(void *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
SIMD_INLINE vi v_iadd(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
SIMD_INLINE vi v_isub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
SIMD_INLINE vi v_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
SIMD_INLINE vi v_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
SIMD_INLINE vi v_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
#define v_sll(a, n) _mm256_slli_epi32(a, n)
#define v_srl(a, n) _mm256_srli_epi32(a, n)
#define v_sra(a, n) _mm256_srai_epi32(a, n)
SIMD_INLINE vi v_to_int(vf a)
{
    return _mm256_cvtps_epi32(a);
}
SIMD_INLINE vf v_from_int(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
SIMD_INLINE vf v_pick(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
}
SIMD_INLINE vi v_ipick(vm m, vi a, vi b)
{
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(b), _mm256_castsi256_ps(a), m));
}
SIMD_INLINE vm v_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
SIMD_INLINE vm v_gt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}
SIMD_INLINE vm v_nan(vf a)
{
    return _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
}
SIMD_INLINE vm v_negative(vi a)
{
    return _mm256_castsi256_ps(a);
}
SIMD_INLINE bool v_any(vm m)
{
    return _mm256_movemask_ps(m) != 0;
}
SIMD_INLINE vm v_below(int first, int n)
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - first),
                                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
SIMD_INLINE vi v_lanes(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}
SIMD_INLINE __m128 v_groups(vf v)
{
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}
SIMD_INLINE __m128 v_sum4(vf a, vf b, vf c, vf d)
{
    vf ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    vf cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    return v_groups(
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee)));
}
SIMD_INLINE float v_hmax(vf v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

#endif

/* ---------------------------------------------------------------- common */

SIMD_INLINE float v_sum(vf v)
{
    return _mm_cvtss_f32(v_sum4(v, v, v, v));
}
SIMD_INLINE vf v_abs(vf x)
{
    return v_float(v_and(v_bits(x), v_int1(0x7fffffff)));
}
/* Nearest bf16, ties to even. */
SIMD_INLINE vf v_bf16(vf x)
{
    vi u = v_bits(x);
    u = v_iadd(u, v_iadd(v_and(v_srl(u, 16), v_int1(1)), v_int1(0x7fff)));
    return v_float(v_and(u, v_int1((int32_t)0xffff0000u)));
}
SIMD_INLINE float s_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
SIMD_INLINE uint32_t s_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
SIMD_INLINE float s_bf16(float x)
{
    uint32_t u = s_bits(x);
    return s_float((u + ((u >> 16) & 1) + 0x7fff) & 0xffff0000u);
}
/* E8M0: 2^(b-127). */
SIMD_INLINE float s_e8m0(uint8_t b)
{
    return s_float(b ? (uint32_t)b << 23 : 0x00400000u);
}
/* E8M0 code of the power of two at or above t. */
SIMD_INLINE uint8_t s_scale_code(float t)
{
    uint32_t u = s_bits(t);
    return (uint8_t)(((u >> 23) & 255) + ((u & 0x7fffff) != 0));
}

/* VL floats on the bf16 grid to 2*VL bytes and back. */
SIMD_INLINE void v_store_bf16(void *p, vf x)
{
#if SIMD_WIDE
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(v_srl(v_bits(x), 16)));
#else
    vi u = v_srl(v_bits(x), 16);
    u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(u));
#endif
}
SIMD_INLINE vf v_load_bf16(const void *p)
{
#if SIMD_WIDE
    return v_float(v_sll(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
#else
    return v_float(v_sll(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
#endif
}
/* VL E4M3 codes to floats: through fp16, which has room for every code, times 2^8. */
SIMD_INLINE vf v_load_e4m3(const uint8_t *p)
{
#if SIMD_WIDE
    __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    w = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xbf80));
    return v_mul(_mm512_cvtph_ps(w), v_set1(256.0f));
#else
    __m128i w = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
    w = _mm_and_si128(_mm_slli_epi16(w, 7), _mm_set1_epi16((short)0xbf80));
    return v_mul(_mm256_cvtph_ps(w), v_set1(256.0f));
#endif
}
/* Low bytes of the lanes to VL bytes. */
SIMD_INLINE void v_store_bytes(uint8_t *p, vi x)
{
#if SIMD_WIDE
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
#else
    x = _mm256_shuffle_epi8(x, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1,
                                                -1, -1, -1, -1));
    int32_t lo = _mm256_extract_epi32(x, 0), hi = _mm256_extract_epi32(x, 4);
    memcpy(p, &lo, 4);
    memcpy(p + 4, &hi, 4);
#endif
}

/* Nearest E4M3 value, ties to even, of |x| <= 448 (more saturates).  Normal values keep three bits
 * of mantissa; below 2^-6 the grid is multiples of 2^-9, reached by adding 1.5*2^14. */
SIMD_INLINE vf v_e4m3_grid(vf x)
{
    vi sign = v_and(v_bits(x), v_int1((int32_t)0x80000000u));
    vf a = v_min(v_abs(x), v_set1(448.0f)), magic = v_set1(0x1.8p14f);
    vi u = v_bits(a);
    u = v_iadd(u, v_iadd(v_and(v_srl(u, 20), v_int1(1)), v_int1(0x7ffff)));
    u = v_and(u, v_int1((int32_t)0xfff00000u));
    vf small = v_sub(v_add(a, magic), magic);
    return v_float(v_or(v_bits(v_pick(v_lt(a, v_set1(0x1p-6f)), small, v_float(u))), sign));
}
/* Code of a value on the grid. */
SIMD_INLINE vi v_e4m3_code(vf x)
{
    vi sign = v_and(v_srl(v_bits(x), 24), v_int1(0x80));
    vf a = v_abs(x);
    vi normal = v_isub(v_srl(v_bits(a), 20), v_int1(120 << 3));
    vi small = v_to_int(v_mul(a, v_set1(512.0f)));
    return v_or(v_ipick(v_lt(a, v_set1(0x1p-6f)), small, normal), sign);
}
/* Nearest E2M1 value, ties to the even code: steps of 1/2 below 2, 1 below 4, 2 up to 6. */
SIMD_INLINE vf v_e2m1_grid(vf x)
{
    vi sign = v_and(v_bits(x), v_int1((int32_t)0x80000000u));
    vf a = v_min(v_abs(x), v_set1(6.0f));
    vf magic = v_pick(v_lt(a, v_set1(4.0f)), v_set1(0x1.8p23f), v_set1(0x1.8p24f));
    magic = v_pick(v_lt(a, v_set1(2.0f)), v_set1(0x1.8p22f), magic);
    return v_float(v_or(v_bits(v_sub(v_add(a, magic), magic)), sign));
}
SIMD_INLINE float v_amax(const float *x, int n)
{
    vf m = v_zero();
    for (int i = 0; i < n; i += VL)
        m = v_max(m, v_abs(v_load(x + i)));
    return v_hmax(m);
}
/* One block to the E4M3 grid with its power-of-two scale; returns the scale's code. */
SIMD_INLINE uint8_t v_fp8_block(float *out, const float *x, int n)
{
    uint8_t code = s_scale_code(FST_MAX(v_amax(x, n), 1e-4f) * (1.0f / 448.0f));
    vf up = v_set1(s_e8m0(code)), down = v_set1(s_e8m0((uint8_t)(254 - code)));
    for (int i = 0; i < n; i += VL)
        v_store(out + i, v_mul(v_e4m3_grid(v_mul(v_load(x + i), down)), up));
    return code;
}
SIMD_INLINE uint8_t v_fp4_block(float *out, const float *x)
{
    uint8_t code = s_scale_code(FST_MAX(v_amax(x, 32), 6 * 0x1p-126f) * (1.0f / 6.0f));
    vf up = v_set1(s_e8m0(code)), down = v_set1(s_e8m0((uint8_t)(254 - code)));
    for (int i = 0; i < 32; i += VL)
        v_store(out + i, v_mul(v_e2m1_grid(v_mul(v_load(x + i), down)), up));
    return code;
}

/* e^x: 2^k * (1 + r + r^2 Q(r)), |r| <= ln2/2; Q by weighted least squares, 3.3e-9 relative before
 * fp32 rounding.  0 below -87 (no denormals: they cost 150 cycles each), inf above 89; NaN stays. */
SIMD_INLINE vf v_exp(vf x)
{
    vf c = v_max(v_min(x, v_set1(89.0f)), v_set1(-88.0f));
    vf k = v_rint(v_mul(c, v_set1(1.44269504f)));
    vf r = v_fnma(k, v_set1(0.693359375f), c);
    r = v_fnma(k, v_set1(-2.12194440e-4f), r);
    vf q = v_fma(v_set1(1.381314237e-03f), r, v_set1(8.369419044e-03f));
    q = v_fma(q, r, v_set1(4.166845683e-02f));
    q = v_fma(q, r, v_set1(1.666651479e-01f));
    q = v_fma(q, r, v_set1(4.999999305e-01f));
    vf y = v_add(v_fma(q, v_mul(r, r), r), v_set1(1.0f));
    /* in two steps: 2^k alone is no float at the ends */
    vi h = v_sra(v_to_int(k), 1), l = v_isub(v_to_int(k), h);
    y = v_mul(y, v_float(v_sll(v_iadd(h, v_int1(127)), 23)));
    y = v_mul(y, v_float(v_sll(v_iadd(l, v_int1(127)), 23)));
    y = v_pick(v_lt(x, v_set1(-87.0f)), v_zero(), y);
    return v_pick(v_nan(x), x, y);
}
SIMD_INLINE vf v_sigmoid(vf x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}
/* philox_log, lane by lane the same operations. */
SIMD_INLINE vf v_log(vf x)
{
    vi u = v_bits(x), e = v_sra(v_isub(u, v_int1(PHILOX_SQRT_HALF)), 23);
    vf f = v_sub(v_float(v_isub(u, v_sll(e, 23))), v_set1(1.0f));
    static const float c[PHILOX_LOG_TERMS] = PHILOX_LOG_P;
    vf p = v_set1(c[0]), z = v_mul(f, f), k = v_from_int(e);
    for (int i = 1; i < PHILOX_LOG_TERMS; i++)
        p = v_add(v_mul(p, f), v_set1(c[i]));
    p = v_mul(v_mul(p, f), z);
    p = v_add(p, v_mul(k, v_set1(PHILOX_LN2_LOW)));
    p = v_sub(p, v_mul(z, v_set1(0.5f)));
    p = v_add(p, f);
    return v_add(p, v_mul(k, v_set1(PHILOX_LN2_HIGH)));
}
/* log(1 + e^x), x above 20 as it is. */
SIMD_INLINE vf v_softplus(vf x)
{
    vf e = v_exp(v_min(x, v_set1(20.0f))), one = v_set1(1.0f), y = v_add(one, e);
    vf s = v_add(v_log(y), v_div(v_sub(e, v_sub(y, one)), y));
    return v_pick(v_gt(x, v_set1(20.0f)), x, s);
}

/* sqrt(softplus(x)); far below 0 softplus is e^x, whose root keeps the range of a float. */
SIMD_INLINE vf v_sqrt_softplus(vf x)
{
    vf far = v_exp(v_mul(x, v_set1(0.5f)));
    return v_pick(v_lt(x, v_set1(-17.0f)), far, v_sqrt(v_softplus(x)));
}

/* 1/sqrt(mean(x^2) + eps) of n values: four running sums, one tree. */
SIMD_INLINE float v_rms_factor(const float *x, int64_t n, float eps)
{
    vf s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t i = 0;
    float odd = 0;
    for (; i + 4 * VL <= n; i += 4 * VL)
        for (int j = 0; j < 4; j++) {
            vf v = v_load(x + i + j * VL);
            s[j] = v_fma(v, v, s[j]);
        }
    for (; i + VL <= n; i += VL) {
        vf v = v_load(x + i);
        s[0] = v_fma(v, v, s[0]);
    }
    for (; i < n; i++)
        odd += x[i] * x[i];
    float sum = v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3]))) + odd;
    return 1.0f / sqrtf(sum / (float)n + eps);
}
/* out = bf16(x * factor * w); w NULL: 1.  out may be x. */
SIMD_INLINE void v_scale_row(float *out, const float *x, const float *w, int n, float factor)
{
    int i = 0;
    vf f = v_set1(factor);
    for (; i + VL <= n; i += VL) {
        vf v = v_mul(v_load(x + i), f);
        v_store(out + i, v_bf16(w ? v_mul(v, v_load(w + i)) : v));
    }
    for (; i < n; i++)
        out[i] = s_bf16(w ? x[i] * factor * w[i] : x[i] * factor);
}
SIMD_INLINE void v_rmsnorm(float *out, const float *x, const float *w, int n, float eps)
{
    v_scale_row(out, x, w, n, v_rms_factor(x, n, eps));
}
/* Rotate n pairs in place by cs (cos, sin); sign -1 rotates back; out on the bf16 grid. */
SIMD_INLINE void v_rotate(float *x, int rope_dim, const float *cs, float sign)
{
    int i = 0;
    for (; i + VL <= rope_dim; i += VL) {
        vf v = v_load(x + i), t = v_load(cs + i);
#if SIMD_WIDE
        vf swap = _mm512_permute_ps(v, 0xb1), c = _mm512_moveldup_ps(t);
        vf s = v_mul(_mm512_movehdup_ps(t), v_set1(sign));
        vf y = _mm512_fmaddsub_ps(v, c, v_mul(swap, s));
#else
        vf swap = _mm256_permute_ps(v, 0xb1), c = _mm256_moveldup_ps(t);
        vf s = v_mul(_mm256_movehdup_ps(t), v_set1(sign));
        vf y = _mm256_fmaddsub_ps(v, c, v_mul(swap, s));
#endif
        v_store(x + i, v_bf16(y));
    }
    for (; i < rope_dim; i += 2) {
        float a = x[i], b = x[i + 1], c = cs[i], s = sign * cs[i + 1];
        x[i] = s_bf16(a * c - b * s);
        x[i + 1] = s_bf16(a * s + b * c);
    }
}
/* Walsh-Hadamard in Sylvester order times n^-1/2, bf16 out; n a power of two, 16..1024. */
SIMD_INLINE void v_hadamard(float *x, int n)
{
    const __m256 odd = _mm256_setr_ps(0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f);
    const __m256 pair = _mm256_setr_ps(0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f);
    const __m256 half = _mm256_setr_ps(0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f);
    for (int i = 0; i < n; i += 8) { /* strides 1, 2, 4: the partner plus or minus itself */
        __m256 v = _mm256_loadu_ps(x + i);
        v = _mm256_add_ps(_mm256_permute_ps(v, 0xb1), _mm256_xor_ps(v, odd));
        v = _mm256_add_ps(_mm256_permute_ps(v, 0x4e), _mm256_xor_ps(v, pair));
        v = _mm256_add_ps(_mm256_permute2f128_ps(v, v, 1), _mm256_xor_ps(v, half));
        _mm256_storeu_ps(x + i, v);
    }
    for (int h = 8; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j += 8) {
                __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + h);
                _mm256_storeu_ps(x + j, _mm256_add_ps(a, b));
                _mm256_storeu_ps(x + j + h, _mm256_sub_ps(a, b));
            }
    vf scale = v_set1(1.0f / sqrtf((float)n));
    for (int i = 0; i < n; i += VL)
        v_store(x + i, v_bf16(v_mul(v_load(x + i), scale)));
}

/* ---------------------------------------------------------------- scratch, spreading work */

/* A launch's scratch, handed out from the front in multiples of 64 bytes. */
struct cut {
    uint8_t *p;
    size_t left;
};
SIMD_INLINE struct cut cut_start(const struct stream *s)
{
    return (struct cut){s->scratch, s->scratch_bytes};
}
SIMD_INLINE void *cut_take(struct cut *c, int64_t bytes)
{
    uint8_t *p = c->p;
    size_t n = (size_t)round_up(bytes, 64);
    FST_ASSERT(n <= c->left);
    c->p += n;
    c->left -= n;
    return p;
}

/* Below this many multiply-adds (5 us) handing work to other threads costs more than it saves. */
#define SIMD_INLINE_WORK 200000

/* Run body over n units of about `work` multiply-adds each; small loops stay on this thread. */
SIMD_INLINE void simd_spread(struct stream *s, int64_t n, int64_t work, pool_body_fn *body,
                             void *ud)
{
    int64_t threads = pool_threads(s->pool);
    if (n <= 0)
        return;
    if (threads == 1 || n == 1 || n * work < SIMD_INLINE_WORK) {
        body(ud, 0, n, 0);
        return;
    }
    int64_t chunk = n / (threads * 4), least = 50000 / FST_MAX(work, 1);
    pool_run(s->pool, n, FST_MAX(FST_MIN(FST_MAX(chunk, least), div_up(n, threads)), 1), body, ud);
}

#endif
