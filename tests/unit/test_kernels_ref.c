/* The plain functions under the reference blocks: number formats, norms, rotations, Sinkhorn. */
#include <math.h>

#include "kernels/ref/ref.h"
#include "support/cm.h"

static float uniform(struct test_rng *r)
{
    return (float)(test_next(r) >> 40) / 8388608.0f - 1.0f;
}

/* All 254 codes of E4M3, subnormals too, against the definition; encoding gives the code back. */
static void test_e4m3_codes(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        int e = c >> 3 & 15, m = c & 7;
        if ((c & 127) == 127)
            continue;
        double v = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m, -9);
        float got = ref_e4m3((uint8_t)c);
        assert_true((double)got == (c & 128 ? -v : v));
        assert_int_equal(ref_e4m3_encode(got), c);
    }
}

/* Nearest code by search, ties to the even one, for values around every midpoint. */
static void test_e4m3_rounding(void **state)
{
    (void)state;
    for (int c = 0; c < 126; c++) {
        float lo = ref_e4m3((uint8_t)c), hi = ref_e4m3((uint8_t)(c + 1)), mid = (lo + hi) / 2;
        assert_int_equal(ref_e4m3_encode(mid), c + (c & 1));
        assert_int_equal(ref_e4m3_encode(nextafterf(mid, 0)), c);
        assert_int_equal(ref_e4m3_encode(nextafterf(mid, 500)), c + 1);
        assert_int_equal(ref_e4m3_encode(-mid), 128 + c + (c & 1));
    }
    assert_int_equal(ref_e4m3_encode(1e30f), 126);
    assert_int_equal(ref_e4m3_encode(-463.9f), 254);
}

static void test_e2m1(void **state)
{
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    (void)state;
    for (int c = 0; c < 8; c++) {
        assert_true(ref_e2m1((uint8_t)c) == value[c]);
        assert_true(ref_e2m1((uint8_t)(c | 8)) == -value[c]);
        assert_int_equal(ref_e2m1_encode(value[c]), c);
        if (c == 7)
            continue;
        float mid = (value[c] + value[c + 1]) / 2;
        assert_int_equal(ref_e2m1_encode(mid), c + (c & 1));
        assert_int_equal(ref_e2m1_encode(nextafterf(mid, 0)), c);
        assert_int_equal(ref_e2m1_encode(nextafterf(mid, 9)), c + 1);
    }
    assert_int_equal(ref_e2m1_encode(100), 7);
    assert_int_equal(ref_e2m1_encode(-5.0f), 8 | 6);
}

static void test_bf16(void **state)
{
    (void)state;
    assert_true(ref_bf16(1.0f) == 1.0f);
    assert_true(ref_bf16(ref_float(0x3f808000)) == 1.0f);                  /* tie, to even: down */
    assert_true(ref_bf16(ref_float(0x3f818000)) == ref_float(0x3f820000)); /* tie, to even: up */
    assert_true(ref_bf16(ref_float(0x3f808001)) == ref_float(0x3f810000));
    assert_true(ref_bf16(-0.0f) == 0 && signbit(ref_bf16(-0.0f)));
}

/* Scales are powers of two, rounded up on the bits (a mantissa that stays would be 25 % off). */
static void test_scale_codes(void **state)
{
    static const struct {
        float t;
        int code;
    } v[] = {{1.0f, 127},          {1.5f, 128},           {0.75f, 127},
             {3.1e-5f, 113},       {448.0f, 136},         {0x1p-126f, 1},
             {0x1.000002p0f, 128}, {0x1.fffffep-1f, 127}, {0x1p-14f, 113}};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(v); i++)
        assert_int_equal(ref_scale_code(v[i].t), v[i].code);
    assert_true(ref_e8m0(0) == 0x1p-127f);
    for (int b = 1; b < 255; b++)
        assert_true((double)ref_e8m0((uint8_t)b) == ldexp(1, b - 127));
}

/* Tile scales of KV rows by their largest value. */
static void test_tile_codes(void **state)
{
    static const struct {
        float a;
        int code;
    } v[] = {{0, 105},    {1e-4f, 105}, {0.01f, 112}, {1.0f, 119},
             {3.5f, 120}, {448, 127},   {449, 128},   {896, 128}};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(v); i++) {
        float x[64] = {0};
        uint8_t code;
        x[17] = -v[i].a;
        ref_fp8_grid(x, 64, 64, &code);
        assert_int_equal(code, v[i].code);
    }
}

/* Times fl(1/448) gives the code of the division for every bf16 largest value. */
static void test_reciprocal(void **state)
{
    (void)state;
    for (uint32_t h = 0x3400; h < 0x4480; h++) { /* 2^-23 .. 2^10 */
        float a = ref_float(h << 16);
        assert_int_equal(ref_scale_code(a * (1.0f / 448.0f)), ref_scale_code(a / 448.0f));
    }
}

/* On the grid once, on the grid for good: rows may be stored and quantised again. */
static void test_grids_are_stable(void **state)
{
    struct test_rng r = {1};
    (void)state;
    for (int it = 0; it < 2000; it++) {
        float x[128], y[128];
        float size = ldexpf(1, test_below(&r, 60) - 40);
        for (int i = 0; i < 128; i++)
            x[i] = ref_bf16(uniform(&r) * size);
        memcpy(y, x, sizeof y);
        ref_fp8_grid(x, 128, 64, NULL);
        for (int i = 0; i < 128; i++) /* half a step of E4M3 is 1/16 of the value or 2^-10 scales */
            assert_true(fabsf(x[i] - y[i]) <= fmaxf(fabsf(y[i]) / 16, fmaxf(size, 1e-4f) / 448));
        memcpy(y, x, sizeof y);
        ref_fp8_grid(x, 128, 64, NULL);
        assert_memory_equal(x, y, sizeof x);
        ref_fp4_grid(x, 128, NULL);
        memcpy(y, x, sizeof y);
        ref_fp4_grid(x, 128, NULL);
        assert_memory_equal(x, y, sizeof x);
    }
}

static void test_hadamard(void **state)
{
    struct test_rng r = {2};
    float x[128], y[128];
    (void)state;
    for (int i = 0; i < 128; i++) { /* column i of the Sylvester matrix */
        memset(x, 0, sizeof x);
        x[i] = 1;
        ref_hadamard(x, 128, PRECISION_REFERENCE);
        for (int j = 0; j < 128; j++) {
            float h = __builtin_popcount((unsigned)(i & j)) & 1 ? -1.0f : 1.0f;
            assert_true(fabsf(x[j] - h * 0.08838834764f) < 1e-8f);
        }
    }
    /* Orthogonal: on both sides of a product it changes nothing, on one side everything. */
    double plain, both, one;
    float kx[128], ky[128];
    for (int i = 0; i < 128; i++) {
        x[i] = kx[i] = uniform(&r);
        y[i] = ky[i] = uniform(&r);
    }
    plain = ref_dot(x, y, 128);
    ref_hadamard(x, 128, PRECISION_REFERENCE);
    ref_hadamard(y, 128, PRECISION_REFERENCE);
    both = ref_dot(x, y, 128);
    one = ref_dot(x, ky, 128);
    assert_true(fabs(plain - both) < 1e-5);
    assert_true(fabs(plain - one) > 1e-2);
}

static void test_rotation(void **state)
{
    static const int32_t pos[] = {0, 1, 127, 128, 4096, 65535, 999999};
    struct test_rng r = {3};
    float cs[64], x[512], y[512], freq[32];
    (void)state;
    for (int i = 0; i < 32; i++)
        freq[i] = powf(10000, -(float)i / 32);
    for (size_t k = 0; k < FST_COUNT(pos); k++) {
        ref_rope_cs(cs, freq, 64, pos[k]);
        for (int i = 0; i < 32; i++) { /* the angle is one fp32 product, not a double one */
            float angle = (float)pos[k] * freq[i];
            assert_true(fabs((double)cs[2 * i] - cos((double)angle)) < 1e-7);
            assert_true(fabs((double)cs[2 * i + 1] - sin((double)angle)) < 1e-7);
        }
        for (int i = 0; i < 512; i++)
            x[i] = y[i] = uniform(&r);
        ref_rotate(x, 512, 64, cs, 1, PRECISION_REFERENCE);
        assert_memory_equal(x, y, 448 * sizeof *x); /* the trailing dims alone */
        ref_rotate(x, 512, 64, cs, -1, PRECISION_REFERENCE);
        for (int i = 448; i < 512; i++)
            assert_true(fabsf(x[i] - y[i]) < 1e-6f);
    }
    /* Neighbours are a pair: (1, 0) at position 1 turns to (cos 1, sin 1) in dims 448 and 449. */
    memset(x, 0, sizeof x);
    x[448] = 1;
    ref_rope_cs(cs, freq, 64, 1);
    ref_rotate(x, 512, 64, cs, 1, PRECISION_REFERENCE);
    assert_true(fabs((double)x[448] - cos(1)) < 1e-7 && fabs((double)x[449] - sin(1)) < 1e-7);
}

/* Rows and columns sum to 1 for random, equal and nearly one-hot inputs; 20 rounds. */
static void test_sinkhorn(void **state)
{
    struct test_rng r = {4};
    (void)state;
    for (int it = 0; it < 500; it++) {
        double a[16], scale = it < 100 ? 1 : it < 200 ? 2 : 0.25;
        for (int i = 0; i < 16; i++)
            a[i] = it == 0 ? 0.5 : (double)uniform(&r) * scale;
        if (it >= 300)
            a[(it % 4) * 4 + (it / 4) % 4] += 3; /* one large entry */
        ref_sinkhorn(a, 20, 1e-6);
        for (int i = 0; i < 4; i++) {
            double row = a[4 * i] + a[4 * i + 1] + a[4 * i + 2] + a[4 * i + 3];
            double col = a[i] + a[4 + i] + a[8 + i] + a[12 + i];
            if (!(fabs(row - 1) < 1e-3))
                fail_msg("case %d: row sum %g", it, row);
            assert_true(fabs(col - 1) < 1e-5); /* it ends on a column step */
        }
    }
    double shift[16], base[16]; /* row-wise shifts fall out: the softmax subtracts the maximum */
    for (int i = 0; i < 16; i++) {
        base[i] = (double)uniform(&r);
        shift[i] = base[i] + 1000 * (i / 4);
    }
    ref_sinkhorn(base, 20, 1e-6);
    ref_sinkhorn(shift, 20, 1e-6);
    for (int i = 0; i < 16; i++)
        assert_true(fabs(base[i] - shift[i]) < 1e-9);
}

static void test_dot_order(void **state)
{
    struct test_rng r = {5};
    float a[300], b[300];
    (void)state;
    for (int n = 0; n <= 300; n++) {
        double want = 0;
        for (int i = 0; i < n; i++) {
            a[i] = uniform(&r);
            b[i] = uniform(&r);
            want += (double)a[i] * (double)b[i];
        }
        assert_true(fabs(ref_dot(a, b, n) - want) < 1e-12);
    }
}

/* Both kinds of expert clamp alike, before the product: gate from above, up on both sides. */
static void test_clamps(void **state)
{
    enum { D = 128 };
    static float id[D * D], x[D], y[D];
    int32_t expert[1] = {0};
    float weight[1] = {1};
    (void)state;
    for (int i = 0; i < D; i++) {
        id[i * D + i] = 1;
        x[i] = i % 4 == 0 ? 30.0f : i % 4 == 1 ? -30.0f : (float)(i % 7) - 3;
    }
    struct mat m = {.fmt = WEIGHT_F32, .n_out = D, .n_in = D, .data = id};
    static float zeros[D * D];
    struct mat none = m;
    none.data = zeros;
    struct expert_mats on = {m, m, m}, off = {none, none, none};
    struct stream s;
    assert_int_equal(stream_init(&s, NULL, NULL, PRECISION_REFERENCE, 1 << 20), FST_OK);
    for (int shared = 0; shared < 2; shared++) {
        struct experts_args a = {.x = x,
                                 .expert = expert,
                                 .weight = weight,
                                 .experts = shared ? &off : &on,
                                 .shared = shared ? &on : &off,
                                 .y = y,
                                 .n_rows = 1,
                                 .k = 1,
                                 .n_experts = 1,
                                 .dim = D,
                                 .moe_dim = D,
                                 .limit = 10};
        assert_int_equal(experts_ref(&a, &s), FST_OK);
        for (int i = 0; i < D; i++) {
            double g = fmin((double)x[i], 10), u = fmax(-10, fmin((double)x[i], 10));
            assert_true(fabs((double)y[i] - g / (1 + exp(-g)) * u) < 1e-4);
        }
    }
    stream_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3_codes),  cmocka_unit_test(test_e4m3_rounding),
        cmocka_unit_test(test_e2m1),        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_scale_codes), cmocka_unit_test(test_tile_codes),
        cmocka_unit_test(test_reciprocal),  cmocka_unit_test(test_grids_are_stable),
        cmocka_unit_test(test_hadamard),    cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_sinkhorn),    cmocka_unit_test(test_dot_order),
        cmocka_unit_test(test_clamps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
