/* Floors of the published models: MB and GFLOP per layer, worked out apart from the code. */
#include "model/cost.h"
#include "support/cm.h"

struct want {
    enum model_op op;
    enum model_site site;
    struct {
        double mb, gflop;
    } at[4]; /* 1, 8, 32, 128 sequences of 8191 tokens, one row each */
};

static const double n_rows[] = {1, 8, 32, 128};

static const struct want flash[] = {
    {MODEL_OP_SEAMS, 2, {{3.31, 0.00197}, {4.46, 0.0157}, {8.39, 0.0629}, {24.1, 0.252}}},
    {MODEL_OP_QKV_IN, 2, {{6.3, 0.0126}, {6.35, 0.101}, {6.52, 0.403}, {7.21, 1.61}}},
    {MODEL_OP_WQ_B, 2, {{33.6, 0.0671}, {34.1, 0.537}, {35.7, 2.15}, {42.1, 8.59}}},
    {MODEL_OP_WO_A, 2, {{33.6, 0.0671}, {34.2, 0.537}, {36.2, 2.15}, {44, 8.59}}},
    {MODEL_OP_WO_B, 2, {{33.6, 0.0671}, {33.7, 0.537}, {34.1, 2.15}, {35.7, 8.59}}},
    {MODEL_OP_GATE, 2, {{2.11, 0.0021}, {2.17, 0.0168}, {2.39, 0.0671}, {3.28, 0.268}}},
    {MODEL_OP_SHARED, 2, {{25.2, 0.0503}, {25.3, 0.403}, {25.6, 1.61}, {26.7, 6.44}}},
    {MODEL_OP_ROUTED, 2, {{80.4, 0.302}, {593, 2.42}, {1825, 9.66}, {3277, 38.7}}},
    {MODEL_OP_COMPRESSOR, 2, {{16.8, 0.0168}, {16.9, 0.134}, {17.3, 0.537}, {18.9, 2.15}}},
    {MODEL_OP_INDEX_WQ_B, 2, {{8.4, 0.0168}, {8.46, 0.134}, {8.69, 0.537}, {9.57, 2.15}}},
    {MODEL_OP_INDEX_IN, 2, {{4.73, 0.00472}, {4.8, 0.0377}, {5.05, 0.151}, {6.06, 0.604}}},
    {MODEL_OP_COMPRESSOR, 3, {{8.4, 0.00839}, {8.49, 0.0671}, {8.78, 0.268}, {9.96, 1.07}}},
    {MODEL_OP_ATTENTION, 1, {{0.173, 0.0168}, {1.38, 0.134}, {5.54, 0.537}, {22.2, 2.15}}},
    {MODEL_OP_ATTENTION, 2, {{0.472, 0.0839}, {3.78, 0.671}, {15.1, 2.68}, {60.4, 10.7}}},
    {MODEL_OP_ATTENTION, 3, {{0.21, 0.0252}, {1.68, 0.201}, {6.73, 0.805}, {26.9, 3.22}}},
    {MODEL_OP_SCORES, 2, {{0.279, 0.0336}, {2.23, 0.268}, {8.91, 1.07}, {35.7, 4.29}}},
    {MODEL_OP_HEAD, 0, {{1060, 1.06}, {1063, 8.47}, {1076, 33.9}, {1126, 136}}},
};

static const struct want pro[] = {
    {MODEL_OP_SEAMS, 2, {{5.79, 0.00344}, {7.8, 0.0275}, {14.7, 0.11}, {42.2, 0.44}}},
    {MODEL_OP_QKV_IN, 2, {{14.7, 0.0294}, {14.8, 0.235}, {15, 0.94}, {16.1, 3.76}}},
    {MODEL_OP_WQ_B, 2, {{101, 0.201}, {102, 1.61}, {105, 6.44}, {118, 25.8}}},
    {MODEL_OP_WO_A, 2, {{67.3, 0.134}, {68.4, 1.07}, {72.4, 4.29}, {88.1, 17.2}}},
    {MODEL_OP_WO_B, 2, {{117, 0.235}, {118, 1.88}, {118, 7.52}, {121, 30.1}}},
    {MODEL_OP_GATE, 2, {{5.52, 0.00551}, {5.63, 0.044}, {6.01, 0.176}, {7.54, 0.705}}},
    {MODEL_OP_SHARED, 2, {{66.1, 0.132}, {66.2, 1.06}, {66.8, 4.23}, {68.8, 16.9}}},
    {MODEL_OP_ROUTED, 2, {{211, 0.793}, {1597, 6.34}, {5343, 25.4}, {11713, 101}}},
    {MODEL_OP_COMPRESSOR, 2, {{29.4, 0.0294}, {29.5, 0.235}, {30.1, 0.94}, {32.2, 3.76}}},
    {MODEL_OP_INDEX_WQ_B, 2, {{12.6, 0.0252}, {12.7, 0.201}, {12.9, 0.805}, {13.8, 3.22}}},
    {MODEL_OP_INDEX_IN, 2, {{8.27, 0.00826}, {8.39, 0.0661}, {8.79, 0.264}, {10.4, 1.06}}},
    {MODEL_OP_COMPRESSOR, 3, {{14.7, 0.0147}, {14.8, 0.117}, {15.3, 0.47}, {17, 1.88}}},
    {MODEL_OP_ATTENTION, 2, {{0.869, 0.302}, {6.96, 2.42}, {27.8, 9.66}, {111, 38.7}}},
    {MODEL_OP_ATTENTION, 3, {{0.309, 0.0503}, {2.47, 0.403}, {9.88, 1.61}, {39.5, 6.44}}},
    {MODEL_OP_SCORES, 2, {{0.279, 0.0336}, {2.23, 0.268}, {8.91, 1.07}, {35.7, 4.29}}},
    {MODEL_OP_HEAD, 0, {{1854, 1.85}, {1858, 14.8}, {1870, 59.3}, {1921, 237}}},
};

static struct model_load decode(double rows)
{
    return (struct model_load){.rows = rows,
                               .sequences = rows,
                               .context = 8191,
                               .logits = rows,
                               .row_bytes = 584,
                               .key_bytes = 132};
}

/* The figures have three digits; those of steps leave out activations, 3 % of them. */
static void near(const char *what, int op, double rows, double got, double want)
{
    double off = strcmp(what, "GB") ? 0.01 : 0.03;
    if (got < want * (1 - off) || got > want * (1 + off))
        fail_msg("op %d, %g rows: %g %s, expected %g", op, rows, got, what, want);
}

static void check(const char *preset, const struct want *w, size_t n)
{
    struct model_config c;
    assert_int_equal(config_preset(&c, preset), FST_OK);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++) {
            struct model_load x = decode(n_rows[k]);
            struct model_cost got = model_cost_op(&c, &x, w[i].op, w[i].site);
            near("MB", (int)w[i].op, n_rows[k], got.bytes * 1e-6, w[i].at[k].mb);
            near("GFLOP", (int)w[i].op, n_rows[k], (got.fp8 + got.bf16) * 1e-9, w[i].at[k].gflop);
        }
}

static void test_ops(void **state)
{
    (void)state;
    check("v4-flash", flash, FST_COUNT(flash));
    check("v4-pro", pro, FST_COUNT(pro));
}

/* Whole steps, GB: all layers with the head; blocks and layers are two ways to the same sum. */
static void test_steps(void **state)
{
    static const struct {
        const char *preset;
        double gb[4];
    } want[] = {{"v4-flash", {11.23, 33.3, 86.5, 149.9}}, {"v4-pro", {39.7, 124.4, 353, 743}}};
    static const char *const names[] = {
#define NAME(entry, args) #entry,
        KERNELS_MAP(NAME)
#undef NAME
    };
    (void)state;
    for (size_t i = 0; i < FST_COUNT(want); i++)
        for (int k = 0; k < 4; k++) {
            struct model_config c;
            struct model_load x = decode(n_rows[k]);
            assert_int_equal(config_preset(&c, want[i].preset), FST_OK);
            struct model_cost got = model_cost_step(&c, &x), sum = {0};
            near("GB", (int)i, n_rows[k], got.bytes * 1e-9, want[i].gb[k]);
            for (size_t j = 0; j < FST_COUNT(names); j++)
                if (strcmp(names[j], "main_proj") && strcmp(names[j], "draft_chain") &&
                    strcmp(names[j], "draw") && strcmp(names[j], "copy_pieces"))
                    sum = model_cost_sum(sum, model_cost_trunk(&c, &x, names[j]));
            near("bytes by block", (int)i, n_rows[k], sum.bytes / got.bytes, 1);
            near("operations by block", (int)i, n_rows[k],
                 (sum.fp8 + sum.bf16) / (got.fp8 + got.bf16), 1);
        }
}

/* One sequence of many rows: keys are read once, each row's work counts. */
static void test_prefill(void **state)
{
    struct model_config c;
    struct model_load x = decode(1);
    (void)state;
    assert_int_equal(config_preset(&c, "v4-flash"), FST_OK);
    x.rows = 8192;
    x.context = 0;
    struct model_cost a = model_cost_op(&c, &x, MODEL_OP_ATTENTION, MODEL_SITE_RATIO4);
    near("MB of attention", 0, 8192, a.bytes * 1e-6, 811);
    near("GFLOP of attention", 0, 8192, a.bf16 * 1e-9, 615);
    near("GFLOP of experts", 0, 8192,
         model_cost_op(&c, &x, MODEL_OP_ROUTED, MODEL_SITE_RATIO4).fp8 * 1e-9, 2474);
    x.rows = 6; /* a verify block: 20 experts that somebody counted */
    x.context = 8192;
    x.distinct = 20;
    near("MB of experts", 0, 6,
         model_cost_op(&c, &x, MODEL_OP_ROUTED, MODEL_SITE_RATIO4).bytes * 1e-6,
         20 * 13.369 + 6 * 0.147);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ops), cmocka_unit_test(test_steps),
                                       cmocka_unit_test(test_prefill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
