/* test_weights_rope.c - published tables bit for bit, others against double arithmetic. */
#include <math.h>

#include "support/cm.h"
#include "weights/rope.h"

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Entries of the published table that a correctly rounded power gets wrong, and the two ends. */
static void test_published_bits(void **state)
{
    struct model_config c;
    float f[WEIGHTS_ROPE_PAIRS], g[WEIGHTS_ROPE_PAIRS];
    int off = 0;
    (void)state;
    assert_int_equal(config_preset(&c, "v4-flash"), FST_OK);
    weights_rope_table(f, &c, false);
    assert_int_equal(bits_of(f[0]), 0x3f800000);
    assert_int_equal(bits_of(f[1]), 0x3f3ff911);
    assert_int_equal(bits_of(f[16]), 0x3c23d70a);
    assert_int_equal(bits_of(f[31]), 0x390bd472);
    weights_rope_table(g, &c, true);
    assert_int_equal(bits_of(g[1]), 0x3f300a3a);
    assert_int_equal(bits_of(g[15]), 0x3b6e4237);
    assert_int_equal(bits_of(g[16]), 0x3b147ae1);
    assert_int_equal(bits_of(g[24]), 0x37a3d70c);
    assert_int_equal(bits_of(g[31]), 0x35187c4d);
    for (int k = 0; k < 2; k++) {
        float computed[WEIGHTS_ROPE_PAIRS];
        const float *fixed = k ? g : f;
        weights_rope_table_computed(computed, &c, k);
        for (int i = 0; i < WEIGHTS_ROPE_PAIRS; i++) {
            int d = abs((int)(bits_of(fixed[i]) - bits_of(computed[i])));
            assert_true(d <= 2);
            off += d > 0;
        }
    }
    assert_true(off > 0 && off < 32); /* why the bits are stored at all */
}

static void test_other_bases(void **state)
{
    static const double bases[] = {500, 40000, 1e6, 123456.75};
    static const int dims[] = {2, 16, 32, 64};
    (void)state;
    for (size_t b = 0; b < sizeof bases / sizeof *bases; b++) {
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            struct model_config c;
            float f[WEIGHTS_ROPE_PAIRS];
            assert_int_equal(config_preset(&c, "v4-flash"), FST_OK);
            c.rope_theta = c.compress_rope_theta = bases[b];
            c.rope_dim = dims[d];
            c.yarn_factor = 8;
            c.yarn_original_positions = 4096;
            weights_rope_table(f, &c, false);
            for (int i = 0; i < WEIGHTS_ROPE_PAIRS; i++) {
                double want = i < dims[d] / 2 ? pow(bases[b], -2.0 * i / dims[d]) : 0;
                assert_true(fabs((double)f[i] - want) <= 2e-7 * want);
            }
            weights_rope_table(f, &c, true);
            for (int i = 0; i < dims[d] / 2; i++) { /* between the plain frequency and an eighth */
                double plain = pow(bases[b], -2.0 * i / dims[d]);
                assert_true((double)f[i] <= plain * (1 + 2e-7));
                assert_true((double)f[i] >= plain / 8 * (1 - 2e-7));
            }
            c.yarn_factor = 1;
            float same[WEIGHTS_ROPE_PAIRS], plain[WEIGHTS_ROPE_PAIRS];
            weights_rope_table(same, &c, true);
            weights_rope_table(plain, &c, false);
            assert_memory_equal(same, plain, sizeof same);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_bits),
        cmocka_unit_test(test_other_bases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
