/* Sizing: every worked number of the published accounts, and that the plan is what is allocated. */
#include <math.h>

#include "base/base.h"
#include "kernels/ref/ref.h"
#include "kernels/rows.h"
#include "kv/kv.h"
#include "support/cm.h"

static const struct sizing_record BF16 = {1024, 0, 1}, FP8 = {512, 128, 1}, PAGED = {576, 8, 576},
                                  V41_FP8 = {512, 16, 512}, V41_FP4 = {256, 32, 256},
                                  KEY_FP8 = {128, 4, 1}, KEY_FP4 = {64, 4, 1};

static struct sizing_record packed(struct sizing_record r)
{
    r.align = 1;
    return r;
}

/* V4-Flash-DSpark, 8 requests on a rank, 5 drafts, published rings. */
static struct sizing_spec flash(struct sizing_record row)
{
    struct sizing_spec s = {.rule = SIZING_PUBLISHED,
                            .n_target = 43,
                            .n_draft = 3,
                            .n_classes = 2,
                            .class = {{4, 21, true, 10240, 16, 4}, {128, 20, false, 4096, 256, 0}},
                            .window = row,
                            .draft = {1024, 0, 1},
                            .compressed = row,
                            .index = {128, 4, 1},
                            .ring = sizing_window_ring(128, 6, 0),
                            .n_slots = 9};
    assert_int_equal(sizing_check(&s), FST_OK);
    return s;
}

static struct sizing_spec v41(struct sizing_record row)
{
    struct sizing_spec s = {.rule = SIZING_PUBLISHED,
                            .n_target = 40,
                            .n_classes = 2,
                            .class = {{1, 1, true, 0, 0, 0}, {2, 3, true, 4096, 8, 0}},
                            .window = {512, 16, 512},
                            .draft = {512, 16, 512},
                            .compressed = row,
                            .index = {64, 4, 1},
                            .ring = 133,
                            .n_slots = 9};
    assert_int_equal(sizing_check(&s), FST_OK);
    return s;
}

static void near(double got, double want, double tolerance)
{
    if (fabs(got - want) > tolerance)
        fail_msg("%.6f, expected %.6f", got, want);
}

static void test_rows_and_pages(void **state)
{
    (void)state;
    assert_int_equal(sizing_record_page(&(struct sizing_record){576, 8, 1}, 1), 584);
    assert_int_equal(sizing_record_page(&PAGED, 256), 149760);
    assert_int_equal(sizing_record_page(&PAGED, 64), 37440);
    assert_int_equal(sizing_record_page(&PAGED, 2), 1728);
    assert_int_equal(sizing_record_page(&KEY_FP8, 64), 8448);
    assert_int_equal(sizing_record_page(&KEY_FP8, 64), ROWS_INDEX_FP8_PAGE);
    assert_int_equal(sizing_record_page(&KEY_FP4, 64), 4352);
    assert_int_equal(sizing_record_page(&KEY_FP4, 64), ROWS_INDEX_FP4_PAGE);
    assert_int_equal(sizing_record_page(&FP8, 1), 640);
    assert_int_equal(sizing_record_page(&FP8, 1), ROWS_FP8_BYTES + ROWS_ROPE_BYTES);
    assert_int_equal(ROWS_FP8_NOPE + 2 * ROWS_FP8_NOPE / ROWS_FP8_TILE, 462);
    assert_int_equal(sizing_record_page(&BF16, 1), 1024);
    assert_int_equal(rows_bytes(ROW_BF16, 512), 1024);
    assert_int_equal(V41_FP8.data + V41_FP8.scale, 528);
    assert_int_equal(V41_FP4.data + V41_FP4.scale, 288);
    struct sizing_record key = KEY_FP8;
    key.align = 576; /* another engine's joint page pads keys as well */
    assert_int_equal(21 * (sizing_record_page(&PAGED, 64) + sizing_record_page(&key, 64)) +
                         20 * sizing_record_page(&PAGED, 2),
                     1002240);
}

static void test_bytes_of_a_token(void **state)
{
    struct sizing_spec b = flash(BF16), f = flash(FP8);
    (void)state;
    near(sizing_token_bytes(&b), 6373.86, 0.005);
    near(sizing_token_bytes(&f), 4249.58, 0.005);
    near(sizing_token_bytes(&b) / sizing_token_bytes(&f), 1.4999, 1e-4);
    b.rule = f.rule = SIZING_TIGHT;
    near(sizing_token_bytes(&b), 6229, 0);
    near(sizing_token_bytes(&f), 4153, 0);
    f.index = KEY_FP4;
    near(sizing_token_bytes(&f), 3817, 0);
    f = flash(PAGED);
    f.rule = SIZING_TIGHT;
    near(sizing_token_bytes(&f), 3899.25, 0);

    /* The older account: 44 layers, unpadded rows, a tenth of all tokens keeps window and state. */
    f.compressed = packed(PAGED);
    near(sizing_token_bytes(&f) + 0.1 * (584 * 44 + 8.0 / 128 * 10240 * 21 + 4096 * 20), 15955.85,
         0.005);
    struct sizing_spec v = v41(V41_FP4);
    near(sizing_token_bytes(&v), 890, 0);
    v = v41(V41_FP8);
    near(sizing_token_bytes(&v), 1490, 0);
    v.compressed = packed(PAGED);
    near(sizing_token_bytes(&v) + 0.1 * 584 * 40, 3966, 1e-9);
    v.n_draft = 3;
    near(sizing_token_bytes(&v), 1670.75, 0);
}

/* The published run: 64 requests over 8 ranks at one budget for both formats. */
static void test_published_tokens(void **state)
{
    struct sizing_spec b = flash(BF16), f = flash(FP8);
    int64_t budget = INT64_C(229677000633), n16 = 35985664, n8 = 53978624;
    (void)state;
    assert_int_equal(n16 % SIZING_PAGE, 0);
    assert_int_equal(n8 % SIZING_PAGE, 0);
    near((double)n8 / (double)n16, 1.5, 5e-4);
    assert_int_equal(sizing_window_bytes(&b), 53932032);
    assert_int_equal(sizing_window_bytes(&f), 34167168);
    assert_int_equal(sizing_state_bytes(&f), 35266560 + 220200960);
    assert_int_equal(sizing_fixed_bytes(&b), 309399552);
    assert_int_equal(sizing_fixed_bytes(&f), 289634688);
    assert_int_equal(sizing_full_tokens(&b, budget), n16);
    assert_int_equal(sizing_full_tokens(&f, budget), n8);
    /* both ends of each interval of budgets, and its middle */
    assert_int_equal(sizing_full_tokens(&b, budget - 1), n16 - 256);
    assert_int_equal(sizing_full_tokens(&b, INT64_C(229678632341)), n16 + 256);
    assert_int_equal(sizing_full_tokens(&b, INT64_C(229677816487)), n16);
    assert_int_equal(sizing_full_tokens(&f, INT64_C(229676190985)), n8);
    assert_int_equal(sizing_full_tokens(&f, INT64_C(229676190984)), n8 - 256);
    assert_int_equal(sizing_full_tokens(&f, INT64_C(229676734931)), n8);
    assert_int_equal(sizing_full_tokens(&f, INT64_C(229677278878)), n8 + 256);
    assert_int_equal(sizing_full_tokens(&f, sizing_fixed_bytes(&f) - 1), 0);

    /* Tight: the surcharge of 4.85 GiB becomes tokens, and with it what the states' spare rows took;
     * two more rings and a null page are paid for. */
    struct sizing_spec t = f;
    t.rule = SIZING_TIGHT;
    double surcharge = (double)n8 * (sizing_token_bytes(&f) - sizing_token_bytes(&t));
    near(surcharge / 1073741824.0, 4.855, 0.0005);
    assert_int_equal(n8 * 44 / 43 / SIZING_PAGE * SIZING_PAGE, 55233792);
    assert_int_equal(sizing_window_bytes(&t) - sizing_window_bytes(&f), 2451456);
    double spare = (double)(sizing_fixed_bytes(&f) - sizing_fixed_bytes(&t));
    near((double)(sizing_full_tokens(&t, budget) - n8) * sizing_token_bytes(&t), surcharge + spare,
         2 * SIZING_PAGE * sizing_token_bytes(&f));
}

/* Does a ring keep what a verify step of `block` rows needs, however many of them were accepted?
 * Written first: a window reads its own rows from the ring; a state reads them from the batch. */
static bool window_ring_keeps(int ring, int block)
{
    for (int accepted = 1; accepted <= block; accepted++) {
        int owner[512] = {0}, start = 300;
        for (int p = 0; p < start; p++)
            owner[p % ring] = p;
        for (int step = 0; step < 200; step++, start += accepted) {
            for (int j = 0; j < block; j++)
                owner[(start + j) % ring] = start + j;
            for (int q = start; q < start + block; q++)
                for (int p = q - 127; p <= q; p++)
                    if (owner[p % ring] != p)
                        return false;
        }
    }
    return true;
}

static bool state_ring_keeps(int ring, int span, int ratio, int block)
{
    for (int accepted = 1; accepted <= block; accepted++)
        for (int phase = 0; phase < ratio; phase++) {
            int owner[512] = {0}, start = 4 * span + phase;
            for (int p = 0; p < start; p++)
                owner[p % ring] = p;
            for (int step = 0; step < 64; step++, start += accepted) {
                for (int q = start; q < start + block; q++)
                    for (int p = q - span + 1; (q + 1) % ratio == 0 && p < start; p++)
                        if (owner[p % ring] != p)
                            return false;
                for (int j = 0; j < block; j++)
                    owner[(start + j) % ring] = start + j;
            }
        }
    return true;
}

static void test_rings(void **state)
{
    static const int block[] = {1, 2, 4, 6, 8}, ring[] = {128, 129, 131, 133, 135};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(block); i++) {
        assert_int_equal(sizing_window_ring(128, block[i], 0), ring[i]);
        assert_true(window_ring_keeps(ring[i], block[i]));
        if (block[i] > 1)
            assert_false(window_ring_keeps(ring[i] - 1, block[i]));
    }
    assert_int_equal(sizing_state_block_max(16, 8), 10);
    assert_true(state_ring_keeps(16, 8, 4, 10));
    assert_false(state_ring_keeps(16, 8, 4, 11));
    assert_int_equal(sizing_state_block_max(256, 128), 130);
    assert_true(state_ring_keeps(8, 8, 4, 1));
    struct sizing_spec v = v41(V41_FP4);
    assert_int_equal(v.class[1].state_ring * v.class[1].state_bytes, 32768);
}

/* V4-Flash with fp8 rows: 4.35 MB where a page ends, 10.8 MB elsewhere, 16.9 MB at worst. */
static void test_snapshots(void **state)
{
    struct sizing_spec f = flash(FP8), v = v41(V41_FP4);
    struct sizing_snapshot page = sizing_snapshot_at(&f, 128, 256), mean, worst;
    (void)state;
    assert_int_equal(page.window, 128 * (43 * 640 + 3 * 1024));
    assert_int_equal(page.state, 4 * 5120 * 21);
    assert_int_equal(page.page, 0);
    assert_int_equal(page.total, 4345856);
    assert_int_equal(sizing_snapshot_at(&f, 128, 1024).total, page.total);
    struct sizing_snapshot x = sizing_snapshot_at(&f, 128, 256 + 131);
    assert_int_equal(x.state, (4 + 3) * 10240 * 21 + 3 * 4096 * 20);
    assert_int_equal(x.page, 32 * (640 + 132) * 21 + 640 * 20);
    sizing_snapshot_elsewhere(&f, 128, &mean, &worst);
    near((double)mean.total * 1e-6, 10.8, 0.05);
    near((double)worst.total * 1e-6, 16.9, 0.05);
    assert_int_equal(worst.total, sizing_snapshot_at(&f, 128, 511).total);
    assert_int_equal(worst.total, worst.window + worst.state + worst.page);
    /* V4.1: windows alone where a page ends, half a pair elsewhere */
    /* MTP: the streams after the last position, and of every ring row of a slot */
    struct sizing_spec m = f;
    m.carry_bytes = 65536;
    assert_int_equal(sizing_snapshot_at(&m, 128, 300).total,
                     sizing_snapshot_at(&f, 128, 300).total + 65536);
    assert_int_equal(sizing_state_bytes(&m) - sizing_state_bytes(&f), 9 * 133 * 65536);
    v.n_draft = 3;
    assert_int_equal(sizing_snapshot_at(&v, 128, 512).total, 128 * 43 * 528);
    assert_int_equal(sizing_snapshot_at(&v, 128, 513).state, 3 * 4096);
    assert_int_equal(sizing_snapshot_at(&v, 128, 513).page, 288 + 68);
}

static uint8_t code_of(float amax)
{
    return ref_scale_code(fmaxf(amax, 1e-4f) / 448);
}

static void test_scale_codes(void **state)
{
    static const float amax[] = {0, 1e-4f, 0.01f, 1, 3.5f, 448, 449, 896};
    static const uint8_t code[] = {105, 105, 112, 119, 120, 127, 128, 128};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(amax); i++)
        assert_int_equal(code_of(amax[i]), code[i]);
    for (uint32_t h = 0x3400; h < 0x4480; h++) {
        uint32_t bits = h << 16;
        float v;
        memcpy(&v, &bits, sizeof v);
        assert_int_equal(ref_scale_code(v / 448), ref_scale_code(v * (1.0f / 448)));
    }
}

static void test_wrong_fields(void **state)
{
    struct sizing_spec s = flash(FP8);
    (void)state;
#define WRONG(field, value, name)                                                                  \
    do {                                                                                           \
        struct sizing_spec bad = s;                                                                \
        bad.field = value;                                                                         \
        assert_int_equal(sizing_check(&bad), FST_EINVAL);                                          \
        assert_non_null(strstr(fst_error_text(), name));                                           \
    } while (0)
    WRONG(n_target, 0, "n_target");
    WRONG(n_draft, -1, "n_draft");
    WRONG(n_classes, 5, "n_classes");
    WRONG(ring, 0, "ring");
    WRONG(carry_bytes, -1, "carry_bytes");
    WRONG(n_slots, 0, "n_slots");
    WRONG(class[1].ratio, 3, "class.ratio");
    WRONG(class[1].state_ring, -1, "class.state_ring");
    WRONG(class[0].overlap, 257, "class.overlap");
    WRONG(index.align, 0, "index");
    WRONG(window.data, 0, "window");
#undef WRONG
}

/* What kv_plan says is what kv_init takes, to the byte. */
static void test_plan_is_what_is_allocated(void **state)
{
    static const enum row_format row[] = {ROW_FP8, ROW_BF16, ROW_F32, ROW_PAGED};
    static const enum index_format key[] = {INDEX_FP4, INDEX_FP8, INDEX_F32};
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct kv_spec s = {.n_layers = 6,
                            .ratio = {0, 4, 128, 4, 0, 0},
                            .head_dim = 512,
                            .rope_dim = 64,
                            .index_dim = 128,
                            .window = 128,
                            .carry_floats = i % 3 * 40,
                            .block = 1 + i % 6,
                            .lag = i % 2,
                            .format = row[i % 4],
                            .index_format = key[i / 4],
                            .n_slots = 1 + i,
                            .n_pages = 3 + 2 * i,
                            .context_length = 700 + 100 * i};
        struct kv_plan p;
        struct kv kv;
        int64_t bytes = 0;
        assert_int_equal(kv_plan(&s, &p), FST_OK);
        assert_int_equal(kv_init(&kv, &s), FST_OK);
        for (int b = 0; b < kv.n_blocks; b++)
            bytes += (int64_t)kv.blocks[b].bytes;
        assert_int_equal(bytes, p.total_bytes);
        /* That budget holds these pages and no more, and a byte less holds one page less. */
        int64_t tokens = s.n_pages * SIZING_PAGE;
        assert_int_equal(kv_tokens_within(&s, p.total_bytes), tokens);
        assert_int_equal(kv_tokens_within(&s, p.total_bytes - 1), tokens - SIZING_PAGE);
        kv_release(&kv);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_pages),   cmocka_unit_test(test_bytes_of_a_token),
        cmocka_unit_test(test_published_tokens), cmocka_unit_test(test_rings),
        cmocka_unit_test(test_snapshots),        cmocka_unit_test(test_scale_codes),
        cmocka_unit_test(test_wrong_fields),     cmocka_unit_test(test_plan_is_what_is_allocated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
