/* KV rows and index keys to the byte; addresses; sizes beyond 2^31. */
#include <math.h>

#include "kernels/ref/ref.h"
#include "kv/kv.h"
#include "support/cm.h"

static void rows_of(struct kv *kv, enum row_format format, enum index_format index, int head_dim)
{
    struct kv_spec s = {.n_layers = 3,
                        .ratio = {0, 4, 128},
                        .head_dim = head_dim,
                        .rope_dim = 64,
                        .index_dim = 128,
                        .window = 128,
                        .block = 6,
                        .format = format,
                        .index_format = index,
                        .n_slots = 2,
                        .n_pages = 5,
                        .context_length = 1000};
    assert_int_equal(kv_init(kv, &s), FST_OK);
}

/* A row on the grid, with another scale in every tile, and rope values in bf16. */
static void some_row(float *x, uint64_t seed)
{
    struct test_rng r = {seed};
    for (int i = 0; i < 512; i++)
        x[i] = ref_bf16(((float)(test_next(&r) >> 40) / 8388608.0f - 1) * ldexpf(1, i / 64 - 3));
    ref_fp8_grid(x, 448, 64, NULL);
}

static void test_fp8_bytes(void **state)
{
    struct kv kv;
    float x[512], y[512];
    uint8_t codes[7];
    (void)state;
    rows_of(&kv, ROW_FP8, INDEX_FP4, 512);
    struct kv_layer *l = &kv.layer[1];
    some_row(x, 1);
    memcpy(y, x, sizeof y);
    ref_fp8_grid(y, 448, 64, codes);
    int64_t row = l->compressed_base + 77;
    memset(l->nope, 0xee, (size_t)(l->n_rows * 512));
    rows_store(l, row, x, 512, 64);
    const uint8_t *p = l->nope + row * 512, *rope = l->rope + row * 128;
    for (int i = 0; i < 448; i++)
        assert_true(ref_e4m3(p[i]) * ldexpf(1, codes[i / 64] - 127) == x[i]);
    for (int k = 0; k < 7; k++) { /* every code twice: one for each 32 values */
        assert_int_equal(p[448 + 2 * k], codes[k]);
        assert_int_equal(p[449 + 2 * k], codes[k]);
    }
    for (int j = 462; j < 512; j++)
        assert_int_equal(p[j], 0xee); /* not written */
    for (int j = 0; j < 64; j++) {
        uint32_t bits = ref_bits(x[448 + j]);
        assert_int_equal(rope[2 * j], bits >> 16 & 255);
        assert_int_equal(rope[2 * j + 1], bits >> 24);
    }
    assert_int_equal(p[-1], 0xee);
    assert_int_equal(p[512], 0xee);
    rows_load(l, row, y, 512, 64);
    assert_memory_equal(x, y, sizeof x);
    kv_release(&kv);
}

/* Data rows of a page first, then its scale rows: the addresses are written out here. */
static void test_paged_bytes(void **state)
{
    static const int64_t scale_at[] = {147456, 36864, 1152}, page[] = {149760, 37440, 1728};
    static const int at[] = {130, 9, 1}, which[] = {1, 3, 4}; /* row in its page, page */
    static const int per_page[] = {256, 64, 2};
    struct kv kv;
    float x[512], y[512];
    uint8_t codes[7];
    (void)state;
    rows_of(&kv, ROW_PAGED, INDEX_FP4, 512);
    some_row(x, 1);
    memcpy(y, x, sizeof y);
    ref_fp8_grid(y, 448, 64, codes);
    for (int k = 0; k < 3; k++) {
        struct kv_layer *l = &kv.layer[k];
        int64_t window = div_up(3 * 133, 256) * 149760;
        uint8_t *b = l->nope + (k ? window : 0) + which[k] * page[k];
        memset(b, 0xee, (size_t)page[k]);
        rows_store(l, (k ? l->compressed_base : 0) + which[k] * per_page[k] + at[k], x, 512, 64);
        const uint8_t *p = b + 576 * at[k], *s = b + scale_at[k] + 8 * at[k];
        for (int i = 0; i < 448; i++)
            assert_true(ref_e4m3(p[i]) * ldexpf(1, s[i / 64] - 127) == x[i]);
        for (int j = 0; j < 64; j++)
            assert_int_equal(p[449 + 2 * j] << 8 | p[448 + 2 * j], ref_bits(x[448 + j]) >> 16);
        assert_memory_equal(s, codes, 7);
        assert_int_equal(s[7], 0);
        int64_t touched = 0;
        for (int64_t i = 0; i < page[k]; i++)
            touched += i < 576 * at[k] || (i >= 576 * (at[k] + 1) && i < s - b) || i >= s - b + 8
                           ? b[i] != 0xee
                           : 0;
        assert_int_equal(touched, 0);
    }
    kv_release(&kv);
}

/* All formats give the same floats back; bf16 rows are little-endian bf16 in order. */
static void test_formats_agree(void **state)
{
    static const enum row_format format[] = {ROW_FP8, ROW_BF16, ROW_F32, ROW_PAGED};
    (void)state;
    for (int f = 0; f < 4; f++) {
        struct kv kv;
        float x[512], y[512];
        rows_of(&kv, format[f], INDEX_FP4, 512);
        for (uint64_t seed = 0; seed < 50; seed++) {
            some_row(x, seed);
            rows_store(&kv.layer[0], (int64_t)seed, x, 512, 64);
            rows_load(&kv.layer[0], (int64_t)seed, y, 512, 64);
            assert_memory_equal(x, y, sizeof x);
        }
        if (format[f] == ROW_BF16) {
            const uint8_t *p = kv.layer[0].nope + 49 * 1024;
            assert_int_equal(p[1] << 8 | p[0], ref_bits(x[0]) >> 16);
            assert_int_equal(p[1023] << 8 | p[1022], ref_bits(x[511]) >> 16);
        }
        kv_release(&kv);
    }
}

static void test_index_fp4_bytes(void **state)
{
    struct kv kv;
    float x[512], y[512];
    uint8_t codes[4];
    int32_t pages[4] = {3, 1, 0, 0};
    (void)state;
    rows_of(&kv, ROW_FP8, INDEX_FP4, 512);
    some_row(y, 3);
    memcpy(x, y, 128 * sizeof *x);
    ref_fp4_grid(x, 128, codes);
    rows_index_store(&kv.layer[1], pages, 64 + 9, x, 128); /* second page of the slot: page 1 */
    const uint8_t *page = kv.layer[1].index_keys + 1 * 4352;
    for (int i = 0; i < 64; i++) { /* even value in the low nibble */
        float s = ldexpf(1, page[4096 + 4 * 9 + i / 16] - 127);
        assert_true(ref_e2m1(page[64 * 9 + i] & 15) * s == x[2 * i]);
        assert_true(ref_e2m1(page[64 * 9 + i] >> 4) * s == x[2 * i + 1]);
    }
    rows_index_load(&kv.layer[1], pages, 64 + 9, y, 128);
    assert_memory_equal(x, y, 128 * sizeof *x);
    kv_release(&kv);
}

static void test_index_fp8_bytes(void **state)
{
    struct kv kv;
    float x[512], y[512], scale;
    int32_t pages[4] = {2, 0, 0, 0};
    (void)state;
    rows_of(&kv, ROW_BF16, INDEX_FP8, 512);
    some_row(x, 4);
    x[5] = 3.3125f; /* the largest of a key whose scale is no power of two */
    for (int i = 0; i < 128; i++)
        x[i] = i == 5 ? x[i] : x[i] / 4;
    rows_index_store(&kv.layer[1], pages, 63, x, 128);
    const uint8_t *page = kv.layer[1].index_keys + 2 * 8448;
    memcpy(&scale, page + 8192 + 4 * 63, 4);
    assert_true(scale == 3.3125f / 448.0f);
    assert_int_equal(page[128 * 63 + 5], 126); /* 448 */
    rows_index_load(&kv.layer[1], pages, 63, y, 128);
    for (int i = 0; i < 128; i++)
        assert_true(fabsf(x[i] - y[i]) <= fabsf(x[i]) / 16 + scale / 1024);
    kv_release(&kv);
}

/* Where things are: kernels.h's formulas, written out again. */
static void test_addresses(void **state)
{
    struct kv kv;
    int a, b;
    float x[512], y[512];
    (void)state;
    rows_of(&kv, ROW_BF16, INDEX_FP4, 512);
    assert_int_equal(kv.ring, 133);
    assert_int_equal(kv_slot_open(&kv, &a), FST_OK);
    assert_int_equal(kv_slot_open(&kv, &b), FST_OK);
    assert_int_equal(kv_reserve(&kv, a, 300), FST_OK);
    assert_int_equal(kv_reserve(&kv, b, 10), FST_OK);
    assert_int_equal(a, 1);
    assert_int_equal(b, 2);
    assert_int_equal(kv.pages[1 * 4 + 0], 1);
    assert_int_equal(kv.pages[1 * 4 + 1], 2);
    assert_int_equal(kv.pages[2 * 4 + 0], 3);
    const struct kv_layer *l4 = &kv.layer[1], *l128 = &kv.layer[2];
    assert_int_equal(l4->compressed_base, 3 * 133);
    assert_int_equal(l4->n_rows, 3 * 133 + 6 * 64);
    assert_int_equal(l128->n_rows, 3 * 133 + 6 * 2);
    assert_int_equal(kv.layer[0].n_rows, 3 * 133);
    assert_int_equal(rows_window(l4, 2, 134), 2 * 133 + 1);
    const int32_t *pages = kv.pages + 4;
    assert_int_equal(rows_entry(l4, pages, 63), 3 * 133 + 1 * 64 + 63);
    assert_int_equal(rows_entry(l4, pages, 64), 3 * 133 + 2 * 64);
    assert_int_equal(rows_entry(l128, pages, 1), 3 * 133 + 1 * 2 + 1);
    assert_int_equal(rows_entry(l128, pages, 2), 3 * 133 + 2 * 2);
    some_row(x, 9);
    rows_store(l128, rows_entry(l128, pages, 1), x, 512, 64);
    kv_read_entry(&kv, 2, a, 1, y);
    assert_memory_equal(x, y, sizeof x);
    rows_store(l4, rows_window(l4, 2, 134), x, 512, 64);
    kv_read_window(&kv, 1, b, 134, y);
    assert_memory_equal(x, y, sizeof x);
    kv_release(&kv);
}

/* V4-Flash's published classes: 21 layers of ratio 4, 20 of 128, 2 of 0, three draft stages. */
static void test_plan_flash(void **state)
{
    struct kv_spec s = {.n_layers = 46,
                        .head_dim = 512,
                        .rope_dim = 64,
                        .index_dim = 128,
                        .window = 128,
                        .block = 6,
                        .lag = 1,
                        .format = ROW_FP8,
                        .index_format = INDEX_FP4,
                        .n_slots = 256,
                        .n_pages = 40000,
                        .context_length = 1 << 20};
    struct kv_plan p;
    (void)state;
    for (int l = 0; l < 43; l++)
        s.ratio[l] = l < 2 ? 0 : l % 2 ? 128 : 4;
    assert_int_equal(kv_plan(&s, &p), FST_OK);
    /* 21*(640/4 + 68/4) + 20*640/128 */
    assert_true(p.bytes_per_full_token > 3816.9 && p.bytes_per_full_token < 3817.1);
    assert_true(p.compressed_bytes == 40001LL * (21 * 64 + 20 * 2) * 640);
    assert_true(p.index_bytes == 40001LL * 21 * 4352);
    assert_true(p.window_bytes == 257LL * 139 * 46 * 640);
    /* states: ratio 4 attention 32*2048*4 and indexer 32*512*4, ratio 128 256*1024*4 */
    int64_t states = 21 * (32 * 2048 + 32 * 512) * 4 + 20 * 256 * 1024 * 4;
    assert_true(p.state_bytes == 257 * states);
    assert_true(p.bytes_per_slot == 139LL * 46 * 640 + states);
    assert_true(p.total_bytes == p.window_bytes + p.compressed_bytes + p.index_bytes +
                                     p.state_bytes + p.table_bytes);
}

static void test_plan_refuses(void **state)
{
    const struct kv_spec good = {.n_layers = 2,
                                 .ratio = {4, 128},
                                 .head_dim = 512,
                                 .rope_dim = 64,
                                 .index_dim = 128,
                                 .window = 128,
                                 .block = 6,
                                 .format = ROW_FP8,
                                 .index_format = INDEX_FP8,
                                 .n_slots = 1,
                                 .n_pages = 1,
                                 .context_length = 256};
    struct kv_plan p;
    struct kv_spec s;
    struct kv kv;
    (void)state;
    assert_int_equal(kv_plan(&good, &p), FST_OK);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        s = good;                                                                                  \
        s.field = value;                                                                           \
        assert_int_equal(kv_plan(&s, &p), FST_EINVAL);                                             \
        assert_non_null(strstr(fst_error_text(), #field));                                         \
        assert_int_equal(kv_init(&kv, &s), FST_EINVAL);                                            \
        assert_int_equal(kv.n_blocks, 0);                                                          \
    } while (0)
    REFUSED(n_layers, 0);
    REFUSED(n_layers, KV_LAYERS_MAX + 1);
    REFUSED(n_slots, 0);
    REFUSED(n_pages, 0);
    REFUSED(context_length, 0);
    REFUSED(window, 0);
    REFUSED(lag, -1);
    REFUSED(block, 0);
    REFUSED(block, 27);
    REFUSED(head_dim, 128);
    REFUSED(rope_dim, 63);
    REFUSED(rope_dim, 32);
    REFUSED(index_dim, 64);
    s = good;
    s.ratio[1] = 8;
    assert_int_equal(kv_plan(&s, &p), FST_EINVAL);
    assert_non_null(strstr(fst_error_text(), "ratio"));
#undef REFUSED
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8_bytes),       cmocka_unit_test(test_paged_bytes),
        cmocka_unit_test(test_formats_agree),   cmocka_unit_test(test_index_fp4_bytes),
        cmocka_unit_test(test_index_fp8_bytes), cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_plan_flash),      cmocka_unit_test(test_plan_refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
