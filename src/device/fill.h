/* fill.h - what a fill writes: random values in the stored formats, the same bytes on every device.
 *
 * Memory is filled 16 bytes at a time; group g of a fill depends on the fill and on g alone, by a
 * counter through splitmix64's finaliser (Steele et al., "Fast Splittable Pseudorandom Number
 * Generators", OOPSLA 2014).  All arithmetic is exact or a single rounding: no fused operation. */
#ifndef FST_DEVICE_FILL_H
#define FST_DEVICE_FILL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef FILL_FN /* kernels/gpu says more: these functions run there too */
#define FILL_FN static inline
#endif

enum fill_kind {
    FILL_F32,     /* floats, mean + spread * (-1 .. 1) */
    FILL_BF16,    /* the same, rounded */
    FILL_E4M3,    /* every code but the two that are no numbers: root mean square 100 */
    FILL_E2M1,    /* every code, two per byte: root mean square 2.9 */
    FILL_E8M0,    /* code .. code + n_codes - 1 */
    FILL_IDS,     /* int32: rows of `k` different ids below n */
    FILL_ROW_FP8, /* nope rows of 512 bytes: 448 E4M3, 7 E8M0 codes each twice, 50 zeros */
    FILL_KEY_FP4, /* pages of 64 index keys, 4352 bytes: E2M1, then E8M0 */
    FILL_KEY_FP8  /* pages of 64 index keys, 8448 bytes: E4M3, then float scales mean, spread */
};

struct device_fill {
    enum fill_kind kind;
    int code, n_codes; /* E8M0, also inside rows and keys; code + n_codes <= 255 */
    int k, n;          /* IDS: 1 <= k <= n */
    float mean, spread;
    uint64_t seed;
};

FILL_FN uint64_t fill_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

FILL_FN uint64_t fill_word(uint64_t seed, uint64_t i)
{
    return fill_mix(fill_mix(seed + 0x9e3779b97f4a7c15u) + i * 0x9e3779b97f4a7c15u);
}

FILL_FN uint32_t fill_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

FILL_FN float fill_value(const struct device_fill *f, int16_t r)
{
    float x = f->spread * ((float)r * 0x1p-15f);
    return f->mean + x;
}

/* Nearest bf16, ties to even. */
FILL_FN uint32_t fill_bf16(float x)
{
    uint32_t u = fill_bits(x);
    return (u + ((u >> 16) & 1) + 0x7fff) >> 16;
}

/* Four E4M3 codes: 0x7f and 0xff lose the top bit of their exponent. */
FILL_FN uint32_t fill_e4m3(uint32_t r)
{
    return r ^ (((r & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) >> 1;
}

FILL_FN uint32_t fill_code(const struct device_fill *f, uint32_t r8)
{
    return (uint32_t)f->code + ((r8 & 255) * (uint32_t)f->n_codes >> 8);
}

FILL_FN uint32_t fill_codes(const struct device_fill *f, uint32_t r)
{
    return fill_code(f, r) | fill_code(f, r >> 8) << 8 | fill_code(f, r >> 16) << 16 |
           fill_code(f, r >> 24) << 24;
}

/* Choice c of row t: steps from a random start that do not come round within k. */
FILL_FN uint32_t fill_id(const struct device_fill *f, uint64_t i)
{
    uint64_t h = fill_word(f->seed, i / (uint64_t)f->k);
    uint32_t n = (uint32_t)f->n, c = (uint32_t)(i % (uint64_t)f->k);
    uint32_t step = 1 + (uint32_t)(h >> 32) % (n / (uint32_t)f->k);
    return (uint32_t)((uint32_t)h % n + c * step) % n;
}

/* Where a group lies in a row or page of so many groups. */
FILL_FN enum fill_kind fill_part(const struct device_fill *f, uint64_t group, bool *zero)
{
    *zero = false;
    switch (f->kind) {
    case FILL_ROW_FP8:
        *zero = group % 32 > 28;
        return group % 32 < 28 ? FILL_E4M3 : FILL_ROW_FP8;
    case FILL_KEY_FP4:
        return group % 272 < 256 ? FILL_E2M1 : FILL_E8M0;
    case FILL_KEY_FP8:
        return group % 528 < 512 ? FILL_E4M3 : FILL_F32;
    default:
        return f->kind;
    }
}

/* Word j (0..3) of a group, from the random word r. */
FILL_FN uint32_t fill_as(const struct device_fill *f, enum fill_kind kind, uint32_t r,
                         uint64_t group, int j)
{
    switch (kind) {
    case FILL_F32:
        return fill_bits(fill_value(f, (int16_t)r));
    case FILL_BF16:
        return fill_bf16(fill_value(f, (int16_t)r)) | fill_bf16(fill_value(f, (int16_t)(r >> 16)))
                                                          << 16;
    case FILL_E4M3:
        return fill_e4m3(r);
    case FILL_E8M0:
        return fill_codes(f, r);
    case FILL_IDS:
        return fill_id(f, 4 * group + (uint64_t)j);
    case FILL_ROW_FP8: /* tiles 2j and 2j + 1; there are 7 */
        return fill_code(f, r) * 0x101 | (j < 3 ? fill_code(f, r >> 8) * 0x1010000u : 0);
    default:
        return r;
    }
}

FILL_FN void fill_group(const struct device_fill *f, uint64_t group, uint32_t w[4])
{
    bool zero;
    enum fill_kind kind = fill_part(f, group, &zero);
    uint64_t a = fill_word(f->seed, 2 * group), b = fill_word(f->seed, 2 * group + 1);
    uint32_t r[4] = {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)};
    for (int j = 0; j < 4; j++)
        w[j] = zero ? 0 : fill_as(f, kind, r[j], group, j);
}

#endif
