/* philox.h - the noise of a draw, the same bits in every kernel.
 *
 * Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) makes a word
 * from (seed; token, output position, choice); philox_noise turns it into Gumbel noise -log(-log u),
 * u = (word + 0.5) * 2^-32.  Vector versions mirror philox_log and philox_noise operation by
 * operation: single fp32 additions, multiplications and one division, nothing fused. */
#ifndef FST_KERNELS_PHILOX_H
#define FST_KERNELS_PHILOX_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

#ifndef PHILOX_FN /* kernels/gpu says more: these functions run there too */
#define PHILOX_FN static inline
#endif

enum { PHILOX_ROUNDS = 10 };

/* Word 0 of the block with counter {c0, c1, c2, 0} and the key's low and high word. */
PHILOX_FN uint32_t philox_word(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), c3 = 0;
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t a = (uint64_t)PHILOX_M0 * c0, b = (uint64_t)PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    return c0;
}

/* log(1+f) = f - f^2/2 + f^3 P(f) on [sqrt(1/2)-1, sqrt(2)-1]: weighted least-squares fit, 5.9e-9
 * relative before fp32 rounding.  Highest power first. */
#define PHILOX_LOG_TERMS 8
#define PHILOX_LOG_P                                                                               \
    {                                                                                              \
        -7.634429837e-02f, 1.276155034e-01f, -1.316019507e-01f, 1.420176247e-01f,                  \
            -1.662335648e-01f, 2.000122667e-01f, -2.500082106e-01f, 3.333333171e-01f               \
    }
#define PHILOX_SQRT_HALF 0x3f3504f3 /* bits of sqrt(1/2): the mantissa is taken from there up */
#define PHILOX_LN2_HIGH  0.693359375f
#define PHILOX_LN2_LOW   -2.12194440e-4f

/* log x for normal x > 0. */
PHILOX_FN float philox_log(float x)
{
    const float c[PHILOX_LOG_TERMS] = PHILOX_LOG_P;
    int32_t u, e;
    float f;
    memcpy(&u, &x, 4);
    e = (u - PHILOX_SQRT_HALF) >> 23;
    u -= (int32_t)((uint32_t)e << 23);
    memcpy(&f, &u, 4);
    f = f - 1.0f;
    float p = c[0], z = f * f, k = (float)e;
    for (int i = 1; i < PHILOX_LOG_TERMS; i++)
        p = p * f + c[i];
    p = (p * f) * z;
    p = p + k * PHILOX_LN2_LOW;
    p = p - z * 0.5f;
    p = p + f;
    return p + k * PHILOX_LN2_HIGH;
}

/* -log(-log u).  Near u = 1 the inner logarithm is log(1-t) with t = 1-u taken from the complement of
 * the word, so that both tails keep 24 bits. */
PHILOX_FN float philox_noise(uint32_t word)
{
    bool high = word >> 31;
    float t = ((float)(int32_t)(high ? ~word : word) + 0.5f) * 0x1p-32f;
    float y = 1.0f - t;
    float lost = (t - (1.0f - y)) / y; /* 1-t = y - (what the subtraction rounded away) */
    float e = (high ? lost : 0.0f) - philox_log(high ? y : t);
    return 0.0f - philox_log(e);
}

/* Noise of token v at output position `out_pos`. */
PHILOX_FN float philox_gumbel(uint64_t seed, uint32_t v, uint32_t out_pos, uint32_t choice)
{
    return philox_noise(philox_word(seed, v, out_pos, choice));
}

#endif
