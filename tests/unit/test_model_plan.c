/* The plan of memory: published accounts, what the engine chooses, and that every refusal names what fits. */
#include <math.h>

#include "model/plan.h"
#include "support/cm.h"
#include "weights/weights.h"

static const double GIB = 1073741824.0;
static const struct device card = {.name = "card"};
static struct kernels plain;

static struct weights *shape(const char *preset)
{
    struct model_config c;
    struct weights *w;
    assert_int_equal(config_preset(&c, preset), FST_OK);
    assert_int_equal(weights_shape(&w, &c), FST_OK);
    return w;
}

/* A card with so many bytes beside the weights, and the drafter the preset has. */
static struct model_plan_ask ask(const struct weights *w, double bytes)
{
    struct model_plan_ask a = {.kernels = &plain,
                               .device = &card,
                               .n_threads = 1,
                               .card = true,
                               .memory_bytes = bytes,
                               .share = 1,
                               .format = ROW_FP8,
                               .chunk = MODEL_PLAN_CHUNK};
    kernels_init(&plain, 0);
    struct model_drafting_ask bundled = {0};
    const char *name;
    assert_int_equal(model_plan_drafting(&w->config, &bundled, &name, &a.gamma), FST_OK);
    a.drafting = a.gamma > 0;
    return a;
}

static void near(double got, double want, double tolerance)
{
    if (fabs(got - want) > tolerance)
        fail_msg("%.4f, expected %.4f", got, want);
}

/* 64 requests on eight cards, one budget for both rows: the tokens that were published. */
static void test_published(void **state)
{
    static const struct {
        enum row_format format;
        int64_t tokens, fixed;
        double token;
    } cases[] = {{ROW_BF16, 35985664, 309399552, 6373.86}, {ROW_FP8, 53978624, 289634688, 4249.58}};
    struct weights *w = shape("v4-flash-dspark");
    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        struct model_plan_ask a = ask(w, 229677000633.0);
        struct model_plan p;
        a.rule = SIZING_PUBLISHED;
        a.format = cases[i].format;
        a.index_format = INDEX_FP8;
        a.n_cards = 8;
        a.requests = 64;
        assert_int_equal(model_plan(w, &a, &p), FST_OK);
        assert_int_equal(p.requests_per_card, 8);
        assert_int_equal(p.kv.n_slots, 8);
        assert_int_equal(p.fit_tokens, cases[i].tokens);
        assert_int_equal(sizing_fixed_bytes(&p.sizing), cases[i].fixed);
        near(sizing_token_bytes(&p.sizing), cases[i].token, 0.005);
        assert_int_equal(p.bytes.table_bytes + (int64_t)p.work_bytes, 0);
    }
    weights_free(w);
}

static void test_bytes_of_a_token(void **state)
{
    static const struct {
        const char *preset;
        enum sizing_rule rule;
        enum row_format format;
        enum index_format key;
        bool own;
        double bytes;
    } cases[] = {{"v4-flash-dspark", SIZING_TIGHT, ROW_FP8, INDEX_FP4, false, 3817},
                 {"v4-flash-dspark", SIZING_TIGHT, ROW_FP8, INDEX_FP8, false, 4153},
                 {"v4-flash", SIZING_TIGHT, ROW_BF16, INDEX_FP8, false, 6229},
                 {"v4-flash", SIZING_PUBLISHED, ROW_BF16, INDEX_FP8, false, 6373.86},
                 {"v4-pro-dspark", SIZING_TIGHT, ROW_FP8, INDEX_FP8, false, 5945},
                 {"v4-pro-dspark", SIZING_PUBLISHED, ROW_FP8, INDEX_FP8, false, 6042.46},
                 {"v4-pro-dspark", SIZING_PUBLISHED, ROW_BF16, INDEX_FP8, false, 9064.20},
                 {"v4.1-flash", SIZING_TIGHT, ROW_FP8, INDEX_FP4, true, 890},
                 {"v4.1-flash", SIZING_TIGHT, ROW_FP8, INDEX_FP4, false, 1770}};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        struct weights *w = shape(cases[i].preset);
        struct model_plan_ask a = ask(w, 64 * GIB);
        struct model_plan p;
        a.rule = cases[i].rule;
        a.format = cases[i].format;
        a.index_format = cases[i].key;
        a.own_rows = cases[i].own;
        assert_int_equal(model_plan(w, &a, &p), FST_OK);
        near(p.bytes.bytes_per_full_token, cases[i].bytes, 0.005);
        weights_free(w);
    }
}

/* An MTP block has one ring of 131 rows, and beside each row the streams after it: 64 KiB. */
static void test_mtp(void **state)
{
    struct weights *w = shape("v4-flash");
    struct model_plan_ask a = ask(w, 64 * GIB);
    struct model_plan p, none;
    (void)state;
    a.requests = 3;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    assert_int_equal(p.kv.n_layers, 44);
    assert_int_equal(p.kv.block, 4);
    assert_int_equal(p.kv.carry_floats, 4 * 4096);
    a.drafting = false;
    a.gamma = 0;
    assert_int_equal(model_plan(w, &a, &none), FST_OK);
    assert_int_equal(p.bytes.state_bytes - none.bytes.state_bytes, 4 * 131 * 65536);
    assert_int_equal(p.bytes.window_bytes, 4 * 131 * 640 * 44);
    assert_int_equal(sizing_snapshot_at(&p.sizing, 128, 256).total -
                         sizing_snapshot_at(&none.sizing, 128, 256).total,
                     128 * 640 + 65536);
    /* as published: the draft's rows in the target's format */
    a = ask(w, 64 * GIB);
    a.rule = SIZING_PUBLISHED;
    a.index_format = INDEX_FP8;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    assert_int_equal(p.sizing.draft.data, p.sizing.window.data);
    assert_int_equal(p.sizing.carry_bytes, 0);
    weights_free(w);
}

/* V4.1: rings of 133 rows of 528 bytes in 40 layers and 3 stages; 8 inputs of 4 KB in three layers. */
static void test_v41(void **state)
{
    struct weights *w = shape("v4.1-flash");
    struct model_plan_ask a = ask(w, 8 * GIB);
    struct model_plan p;
    (void)state;
    a.own_rows = true;
    a.requests = 3;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    assert_int_equal(p.bytes.window_bytes, 4 * 133 * 528 * 43);
    assert_int_equal(p.bytes.state_bytes, 4 * 8 * 4096 * 3);
    assert_int_equal(p.bytes.bytes_per_slot, 133 * 528 * 43 + 8 * 4096 * 3);
    weights_free(w);
}

/* What is left after the workspace, and no page more; the pool takes what was asked, or its default. */
static void test_tight(void **state)
{
    struct weights *w = shape("v4-flash-dspark");
    struct model_plan_ask a = ask(w, 30 * GIB);
    struct model_plan p;
    (void)state;
    a.weights_bytes = 10 * GIB;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    near(p.budget_bytes, 20 * GIB, 0);
    assert_int_equal(p.requests, MODEL_PLAN_REQUESTS);
    assert_int_equal(p.max_rows, 512 + 16 * 6);
    assert_int_equal(p.max_logits, 16 * 6 + 64);
    int64_t other = (int64_t)(p.work_bytes + p.scratch_bytes);
    assert_true(p.work_bytes > 0 && p.scratch_bytes > 0);
    assert_int_equal(p.context_length, 1048576);
    assert_int_equal(p.tokens, 1048576);
    assert_int_equal(p.fit_tokens, kv_tokens_within(&p.kv, (int64_t)(20 * GIB) - other));
    struct kv_plan k;
    assert_int_equal(kv_plan(&p.kv, &k), FST_OK);
    assert_int_equal(k.total_bytes, p.bytes.total_bytes);
    p.kv.n_pages = p.fit_tokens / 256;
    assert_int_equal(kv_plan(&p.kv, &k), FST_OK);
    assert_true((double)(k.total_bytes + other) <= p.budget_bytes);
    p.kv.n_pages++;
    assert_int_equal(kv_plan(&p.kv, &k), FST_OK);
    assert_true((double)(k.total_bytes + other) > p.budget_bytes);

    a.context_length = 1000;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    assert_int_equal(p.tokens, 16 * 1024); /* no more than all can have */
    a.requests = 1000;
    assert_int_equal(model_plan(w, &a, &p), FST_EBUDGET); /* rings and states of 1000 */
    a.requests = 400;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    assert_int_equal(p.tokens, MODEL_PLAN_POOL_TOKENS);
    a.total_tokens = 5000;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    assert_int_equal(p.tokens, 5120);

    /* The host: half of what is there, or what mapped weights leave, and an eighth in any case. */
    a = ask(w, 64 * GIB);
    a.card = false;
    a.device = NULL;
    a.weights_bytes = 10 * GIB;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    near(p.budget_bytes, 32 * GIB, 0);
    a.weights_bytes = 50 * GIB;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    near(p.budget_bytes, 14 * GIB, 0);
    a.weights_bytes = 500 * GIB;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    near(p.budget_bytes, 8 * GIB, 0);
    near(p.available_bytes, 64 * GIB, 0);
    weights_free(w);
}

static void refused(const struct weights *w, const struct model_plan_ask *a, enum fst_status rc,
                    const char *text)
{
    struct model_plan p;
    assert_int_equal(model_plan(w, a, &p), rc);
    if (!strstr(fst_error_text(), text))
        fail_msg("\"%s\" does not say \"%s\"", fst_error_text(), text);
}

/* The number after a word of the message. */
static long long number_after(const char *word)
{
    const char *at = strstr(fst_error_text(), word);
    assert_non_null(at);
    return strtoll(at + strlen(word), NULL, 10);
}

/* Each refusal names the nearest that fits: it does, and one more does not. */
static void test_nearest(void **state)
{
    struct weights *w = shape("v4-flash-dspark");
    struct model_plan_ask a = ask(w, 12 * GIB);
    struct model_plan p;
    (void)state;
    a.requests = 4096;
    refused(w, &a, FST_EBUDGET, "--max-running-requests 4096: with prefill chunks of 512");
    a.requests = (int)number_after("at most ");
    assert_true(a.requests > 16);
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    a.requests++;
    assert_int_equal(model_plan(w, &a, &p), FST_EBUDGET);

    a = ask(w, 12 * GIB);
    a.chunk = 65536;
    refused(w, &a, FST_EBUDGET, " would with --chunked-prefill-size ");
    a.chunk = (int)number_after("--chunked-prefill-size ");
    a.requests = 1;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    a.memory_bytes = 1e6;
    refused(w, &a, FST_EBUDGET, "not even one fits");

    a = ask(w, 12 * GIB);
    a.requests = 64;
    a.context_length = 1048576;
    a.at_once = true;
    refused(w, &a, FST_EBUDGET, "--max-running-requests 64 at --context-length 1048576 does not");
    int fit = (int)number_after("fit: ");
    a.context_length = number_after("of length ");
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    assert_int_equal(p.tokens, 64 * a.context_length);
    a.context_length = 1048576;
    assert_int_equal(fit, model_plan_requests(w, &a, 1048576));
    a.requests = fit;
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    a.requests = fit + 1;
    assert_int_equal(model_plan(w, &a, &p), FST_EBUDGET);
    a.requests = 4;
    a.total_tokens = 3 * 1048576;
    refused(w, &a, FST_EBUDGET, "4 at --context-length 1048576 does not fit: ");

    a = ask(w, 3 * GIB);
    a.context_length = 1048576;
    refused(w, &a, FST_EBUDGET, "--context-length 1048576 does not fit: there is room for ");
    a.context_length = number_after("room for ");
    assert_int_equal(model_plan(w, &a, &p), FST_OK);

    a = ask(w, 12 * GIB);
    a.n_cards = 3;
    a.total_tokens = INT64_C(1) << 36;
    refused(w, &a, FST_EBUDGET, "--max-total-tokens 68719476736 for 16 requests needs ");
    a.total_tokens = number_after("at most ");
    assert_int_equal(model_plan(w, &a, &p), FST_OK);
    assert_int_equal(p.tokens * 3, a.total_tokens);
    weights_free(w);
}

static void test_wrong(void **state)
{
    struct weights *w = shape("v4-flash-dspark"), *bare = shape("v4-flash");
    struct model_plan_ask a = ask(w, 12 * GIB);
    const char *name;
    int gamma;
    (void)state;
    a.context_length = 1048577;
    refused(w, &a, FST_EINVAL, "--context-length must be in [1, 1048576], got 1048577");
    a = ask(w, 12 * GIB);
    a.requests = 4097;
    refused(w, &a, FST_EINVAL, "--max-running-requests must be in [1, 4096], got 4097");
    a = ask(w, 12 * GIB);
    a.total_tokens = -1;
    refused(w, &a, FST_EINVAL, "--max-total-tokens must be in [1, ");
    struct model_config none = bare->config;
    none.has_mtp = false;
    static const struct {
        int which; /* DSpark, MTP, neither */
        struct model_drafting_ask ask;
        const char *text;
    } cases[] = {
        {0, {.algorithm = "mtp"}, "use dspark or none"},
        {0, {.algorithm = "eagle"}, "--speculative-algorithm eagle: this checkpoint bundles"},
        {1,
         {.algorithm = "dspark"},
         "no DSpark drafter (no dspark_* key in its config.json); use mtp"},
        {2, {.algorithm = "dspark"}, "no DSpark drafter"},
        {2, {.algorithm = "eagle"}, "no MTP block (no tensor mtp.0.e_proj.weight)"},
        {0, {.block_size = 6}, "--speculative-dspark-block-size must be in [1, 5]"},
        {0, {.algorithm = "none", .block_size = -1}, "got -1"},
        {1, {.num_steps = 4}, "--speculative-num-steps must be in [1, 3]"},
        {0, {.num_steps = 2}, "--speculative-num-steps is not for drafting with dspark"},
        {1, {.block_size = 2}, "--speculative-dspark-block-size is not for drafting with mtp"}};
    const struct model_config *configs[] = {&w->config, &bare->config, &none};
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        assert_int_equal(model_plan_drafting(configs[cases[i].which], &cases[i].ask, &name, &gamma),
                         FST_EINVAL);
        if (!strstr(fst_error_text(), cases[i].text))
            fail_msg("%s, expected %s", fst_error_text(), cases[i].text);
    }
    static const struct {
        int which;
        struct model_drafting_ask ask;
        const char *algorithm;
        int gamma;
    } right[] = {{0, {0}, "dspark", 5},
                 {0, {.block_size = 3}, "dspark", 3},
                 {0, {.algorithm = "none", .block_size = 3}, "none", 0},
                 {1, {0}, "mtp", 3},
                 {1, {.algorithm = "eagle", .num_steps = 1}, "mtp", 1},
                 {1, {.algorithm = "none"}, "none", 0},
                 {2, {0}, "none", 0}};
    for (size_t i = 0; i < FST_COUNT(right); i++) {
        assert_int_equal(model_plan_drafting(configs[right[i].which], &right[i].ask, &name, &gamma),
                         FST_OK);
        assert_string_equal(name, right[i].algorithm);
        assert_int_equal(gamma, right[i].gamma);
    }
    weights_free(w);
    weights_free(bare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published), cmocka_unit_test(test_bytes_of_a_token),
        cmocka_unit_test(test_mtp),       cmocka_unit_test(test_v41),
        cmocka_unit_test(test_tight),     cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
