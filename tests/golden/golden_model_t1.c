/* Golden of the tiny model T1, 300 tokens, fp32: logits, argmax of every position, MTP block.
 *
 * The figures agree to 2.3e-5 with DeepSeek-V4's reference inference code (model.py) and with
 * transformers 5.17 on the same weights. */
#include "support/rig.h"

enum { T = 300 };

static const struct {
    int p, id, argmax;
    double max, first[4], norm;
    int mtp_argmax;
    double mtp_norm;
} golden[] = {
    {0, 388, 361, 4.32671, {-0.41502, -1.16985, 0.61945, -1.65895}, 32.26293, 150, 31.81069},
    {1, 149, 245, 4.47322, {-0.21246, -2.11871, -0.6318, -2.3125}, 33.68423, 489, 32.71399},
    {3, 77, 428, 3.87311, {-0.84648, -0.77509, -4.34069, -1.77191}, 34.64177, 62, 33.98508},
    {4, 112, 465, 4.39878, {-0.39255, 1.35779, -4.76668, -0.16857}, 34.84158, 91, 33.45181},
    {7, 50, 143, 4.02902, {2.16609, -0.93029, -1.70935, 0.07056}, 34.20182, 62, 33.77173},
    {15, 57, 320, 4.67455, {1.05204, 0.1147, -1.93395, 0.24121}, 33.67944, 269, 35.38550},
    {16, 233, 334, 4.51677, {1.1666, -0.23517, -1.85781, 1.16282}, 34.51894, 321, 33.76363},
    {35, 475, 36, 5.34971, {-0.78643, 0.65683, 3.4198, -0.30255}, 33.54957, 466, 32.99071},
    {36, 93, 501, 4.30226, {0.08118, 0.45963, 2.34173, 0.23912}, 33.95601, 240, 33.92067},
    {127, 291, 7, 5.41791, {0.74197, -0.72173, -0.9442, -1.68662}, 35.03110, 453, 31.58937},
    {128, 279, 373, 5.06515, {1.94128, -0.98204, 2.4182, -1.58503}, 34.54916, 343, 34.47791},
    {255, 219, 334, 4.52300, {1.11497, 0.2006, -1.06892, 1.50717}, 33.89800, 70, 34.28497},
    {256, 171, 190, 4.09808, {-3.55759, -1.47461, 0.11519, 1.68341}, 33.63245, 62, 32.16591},
    {299, 453, 273, 4.52803, {0.65563, 0.4102, -0.69925, 1.51229}, 34.32163, 392, 33.63455},
};

static int setup(void **state)
{
    struct hashweights_spec spec = hashweights_t1();
    *state = rig_weights(&spec);
    return 0;
}

static int teardown(void **state)
{
    weights_free(*state);
    return 0;
}

static void open_t1(struct rig *r, struct weights *w)
{
    struct rig_opts o = {.w = w,
                         .precision = PRECISION_REFERENCE,
                         .format = ROW_F32,
                         .index_format = INDEX_F32,
                         .max_rows = T,
                         .n_slots = 1,
                         .context = 512,
                         .threads = 2,
                         .drafting = true};
    rig_open(r, &o);
}

static void near(double a, double b, double tolerance, int p, const char *what)
{
    if (!(fabs(a - b) <= tolerance))
        fail_msg("position %d: %s is %.6f, expected %.6f", p, what, a, b);
}

static void test_trunk(void **state)
{
    struct rig r;
    int32_t ids[T + 1];
    uint32_t best[T];
    open_t1(&r, *state);
    hashweights_tokens(ids, T + 1, 512, 0);
    float *logits = rig_run(&r, rig_slot(&r), 0, ids, T);
    for (int p = 0; p < T; p++)
        best[p] = (uint32_t)rig_argmax(logits + p * 512, 512);
    for (size_t i = 0; i < FST_COUNT(golden); i++) {
        int p = golden[i].p;
        const float *y = logits + p * 512;
        assert_int_equal(ids[p], golden[i].id);
        assert_int_equal(best[p], golden[i].argmax);
        near((double)y[best[p]], golden[i].max, 1e-4, p, "the largest logit");
        for (int j = 0; j < 4; j++)
            near((double)y[j], golden[i].first[j], 1e-4, p, "one of the first logits");
        near(rig_norm(y, 512), golden[i].norm, 1e-4, p, "the norm");
    }
    assert_true(hashweights_fnv1a64(best, sizeof best) == 0xc463fa06603f59f2);
    rig_close(&r);
}

static void test_mtp(void **state)
{
    struct rig r;
    int32_t ids[T + 1];
    float *logits = rig_floats((int64_t)T * 512);
    open_t1(&r, *state);
    hashweights_tokens(ids, T + 1, 512, 0);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, ids, T);
    rig_mtp(&r, slot, ids, T, logits);
    for (size_t i = 0; i < FST_COUNT(golden); i++) {
        const float *y = logits + golden[i].p * 512;
        assert_int_equal(rig_argmax(y, 512), golden[i].mtp_argmax);
        near(rig_norm(y, 512), golden[i].mtp_norm, 1e-4, golden[i].p, "the MTP norm");
    }
    free(logits);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trunk), cmocka_unit_test(test_mtp)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
