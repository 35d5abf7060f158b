/* rope.c - rotary frequency tables. */
#include "weights/rope.h"

#include <math.h>

/* Bits of the reference's float tables as PyTorch computes them on a CPU; a correctly rounded
 * power differs from them by up to 2 ulp, which at position 10^6 is a visible angle. */
static const uint32_t main_10000[WEIGHTS_ROPE_PAIRS] = {
    0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887, 0x3e088d77,
    0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f, 0x3c91ad39, 0x3c5a7bf2,
    0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38, 0x3b1b690d, 0x3ae91528, 0x3aaec98e,
    0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725, 0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472};

static const uint32_t yarn_160000[WEIGHTS_ROPE_PAIRS] = {
    0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4, 0x3d94e963,
    0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88, 0x3bad3d5e, 0x3b6e4237,
    0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af, 0x39305978, 0x38be904d, 0x383e9b5f,
    0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8, 0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d};

/* Equality of configured numbers, not of computed ones. */
static bool same(double a, double b)
{
    return !(a < b) && !(a > b);
}

static bool published_yarn(const struct model_config *c)
{
    return same(c->compress_rope_theta, 160000) && same(c->yarn_factor, 16) &&
           c->yarn_original_positions == 65536 && same(c->yarn_beta_fast, 32) &&
           same(c->yarn_beta_slow, 1);
}

/* Pair (a real number) that makes `turns` full turns within the original positions. */
static double yarn_pair(const struct model_config *c, double turns)
{
    return c->rope_dim * log(c->yarn_original_positions / (turns * 2 * M_PI)) /
           (2 * log(c->compress_rope_theta));
}

/* YaRN: pairs below `low` keep their frequency, above `high` they are divided by the factor, in
 * between the two are blended linearly. */
static void yarn_apply(float *f, const struct model_config *c)
{
    int half = c->rope_dim / 2;
    double low = fmax(floor(yarn_pair(c, c->yarn_beta_fast)), 0);
    double high = fmin(ceil(yarn_pair(c, c->yarn_beta_slow)), c->rope_dim - 1);
    for (int i = 0; i < half; i++) {
        double ramp = fmin(fmax((i - low) / fmax(high - low, .001), 0), 1);
        float smooth = (float)(1 - ramp);
        f[i] = f[i] / (float)c->yarn_factor * (1 - smooth) + f[i] * smooth;
    }
}

void weights_rope_table_computed(float f[WEIGHTS_ROPE_PAIRS], const struct model_config *c,
                                 bool compressed)
{
    float base = (float)(compressed ? c->compress_rope_theta : c->rope_theta);
    FST_ASSERT(c->rope_dim > 0 && c->rope_dim <= 2 * WEIGHTS_ROPE_PAIRS);
    memset(f, 0, WEIGHTS_ROPE_PAIRS * sizeof *f);
    for (int i = 0; i < c->rope_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)c->rope_dim;
        /* float power, correctly rounded, so that every libm (and numpy) gives the same bits. */
        f[i] = 1 / (float)pow((double)base, (double)exponent);
    }
    if (compressed && !same(c->yarn_factor, 1))
        yarn_apply(f, c);
}

void weights_rope_table(float f[WEIGHTS_ROPE_PAIRS], const struct model_config *c, bool compressed)
{
    if (c->rope_dim == 64 && (compressed ? published_yarn(c) : same(c->rope_theta, 10000)))
        memcpy(f, compressed ? yarn_160000 : main_10000, sizeof main_10000);
    else
        weights_rope_table_computed(f, c, compressed);
}
