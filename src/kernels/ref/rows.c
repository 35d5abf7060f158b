/* rows.c - KV rows and index keys to bytes and back. */
#include <math.h>

#include "kernels/ref/ref.h"

static void put_bf16(uint8_t *p, const float *x, int n)
{
    for (int i = 0; i < n; i++) {
        uint16_t h = (uint16_t)(ref_bits(ref_bf16(x[i])) >> 16);
        memcpy(p + 2 * i, &h, 2);
    }
}

static void get_bf16(float *x, const uint8_t *p, int n)
{
    for (int i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        x[i] = ref_float((uint32_t)h << 16);
    }
}

int64_t rows_bytes(enum row_format format, int head_dim)
{
    switch (format) {
    case ROW_BF16:
        return 2 * (int64_t)head_dim;
    case ROW_FP8:
        return ROWS_FP8_BYTES;
    case ROW_PAGED:
        return ROWS_PAGED_DATA + ROWS_PAGED_SCALE;
    case ROW_F32:
        return 4 * (int64_t)head_dim;
    }
    FST_ASSERT(!"row format");
    return 0;
}

int64_t rows_index_page_bytes(enum index_format format, int index_dim)
{
    switch (format) {
    case INDEX_FP4:
        return ROWS_INDEX_FP4_PAGE;
    case INDEX_FP8:
        return ROWS_INDEX_FP8_PAGE;
    case INDEX_F32:
        return (int64_t)ROWS_INDEX_PAGE * index_dim * 4;
    }
    FST_ASSERT(!"index format");
    return 0;
}

void rows_store(const struct kv_layer *l, int64_t row, const float *x, int head_dim, int rope_dim)
{
    FST_ASSERT(row >= 0);
    FST_ASSERT(row < l->n_rows);
    uint8_t *p = l->nope + row * rows_bytes(l->format, head_dim);
    if (l->format == ROW_F32) {
        memcpy(p, x, (size_t)head_dim * 4);
        return;
    }
    if (l->format == ROW_BF16) {
        put_bf16(p, x, head_dim);
        return;
    }
    FST_ASSERT(head_dim == ROWS_FP8_DIM);
    FST_ASSERT(rope_dim == ROWS_FP8_DIM - ROWS_FP8_NOPE);
    bool paged = l->format == ROW_PAGED;
    uint8_t *scale = p + ROWS_FP8_NOPE, *rope;
    if (paged)
        p = rows_paged(l, row, &scale);
    rope = paged ? p + ROWS_FP8_NOPE : l->rope + row * ROWS_ROPE_BYTES;
    for (int t = 0; t < ROWS_FP8_NOPE / ROWS_FP8_TILE; t++) {
        float y[ROWS_FP8_TILE];
        uint8_t code;
        memcpy(y, x + t * ROWS_FP8_TILE, sizeof y);
        ref_fp8_grid(y, ROWS_FP8_TILE, ROWS_FP8_TILE, &code);
        float down = ref_e8m0((uint8_t)(254 - code));
        for (int i = 0; i < ROWS_FP8_TILE; i++)
            p[t * ROWS_FP8_TILE + i] = ref_e4m3_encode(x[t * ROWS_FP8_TILE + i] * down);
        if (paged)
            scale[t] = code;
        else
            scale[2 * t] = scale[2 * t + 1] = code;
    }
    if (paged)
        scale[ROWS_PAGED_SCALE - 1] = 0;
    put_bf16(rope, x + ROWS_FP8_NOPE, rope_dim);
}

void rows_load(const struct kv_layer *l, int64_t row, float *x, int head_dim, int rope_dim)
{
    FST_ASSERT(row >= 0);
    FST_ASSERT(row < l->n_rows);
    const uint8_t *p = l->nope + row * rows_bytes(l->format, head_dim);
    if (l->format == ROW_F32) {
        memcpy(x, p, (size_t)head_dim * 4);
        return;
    }
    if (l->format == ROW_BF16) {
        get_bf16(x, p, head_dim);
        return;
    }
    FST_ASSERT(head_dim == ROWS_FP8_DIM);
    if (l->format == ROW_PAGED) {
        uint8_t *scale;
        p = rows_paged(l, row, &scale);
        for (int i = 0; i < ROWS_FP8_NOPE; i++)
            x[i] = ref_e4m3(p[i]) * ref_e8m0(scale[i / ROWS_FP8_TILE]);
        get_bf16(x + ROWS_FP8_NOPE, p + ROWS_FP8_NOPE, rope_dim);
        return;
    }
    for (int i = 0; i < ROWS_FP8_NOPE; i++)
        x[i] = ref_e4m3(p[i]) * ref_e8m0(p[ROWS_FP8_NOPE + 2 * (i / ROWS_FP8_TILE)]);
    get_bf16(x + ROWS_FP8_NOPE, l->rope + row * ROWS_ROPE_BYTES, rope_dim);
}

static uint8_t *index_page(const struct kv_layer *l, const int32_t *pages, int64_t e, int index_dim)
{
    FST_ASSERT(l->ratio == 4);
    FST_ASSERT(l->index_format == INDEX_F32 || index_dim == ROWS_INDEX_DIM);
    return l->index_keys +
           (int64_t)pages[e / ROWS_INDEX_PAGE] * rows_index_page_bytes(l->index_format, index_dim);
}

void rows_index_store(const struct kv_layer *l, const int32_t *pages, int64_t e, const float *x,
                      int index_dim)
{
    uint8_t *page = index_page(l, pages, e, index_dim);
    int t = (int)(e % ROWS_INDEX_PAGE);
    if (l->index_format == INDEX_F32) {
        memcpy(page + (int64_t)t * index_dim * 4, x, (size_t)index_dim * 4);
        return;
    }
    if (l->index_format == INDEX_FP8) {
        float top = 1e-4f;
        for (int i = 0; i < ROWS_INDEX_DIM; i++)
            top = fmaxf(top, fabsf(x[i]));
        float scale = top / 448.0f;
        for (int i = 0; i < ROWS_INDEX_DIM; i++)
            page[t * ROWS_INDEX_DIM + i] = ref_e4m3_encode(x[i] / scale);
        memcpy(page + ROWS_INDEX_PAGE * ROWS_INDEX_DIM + 4 * t, &scale, 4);
        return;
    }
    float y[ROWS_INDEX_DIM];
    uint8_t codes[ROWS_INDEX_DIM / 32];
    memcpy(y, x, sizeof y);
    ref_fp4_grid(y, ROWS_INDEX_DIM, codes);
    for (int i = 0; i < ROWS_INDEX_DIM; i += 2) {
        float up = ref_e8m0(codes[i / 32]);
        page[t * 64 + i / 2] =
            (uint8_t)(ref_e2m1_encode(x[i] / up) | ref_e2m1_encode(x[i + 1] / up) << 4);
    }
    memcpy(page + ROWS_INDEX_PAGE * 64 + 4 * t, codes, sizeof codes);
}

void rows_index_load(const struct kv_layer *l, const int32_t *pages, int64_t e, float *x,
                     int index_dim)
{
    const uint8_t *page = index_page(l, pages, e, index_dim);
    int t = (int)(e % ROWS_INDEX_PAGE);
    if (l->index_format == INDEX_F32) {
        memcpy(x, page + (int64_t)t * index_dim * 4, (size_t)index_dim * 4);
        return;
    }
    if (l->index_format == INDEX_FP8) {
        float scale;
        memcpy(&scale, page + ROWS_INDEX_PAGE * ROWS_INDEX_DIM + 4 * t, 4);
        for (int i = 0; i < ROWS_INDEX_DIM; i++)
            x[i] = ref_e4m3(page[t * ROWS_INDEX_DIM + i]) * scale;
        return;
    }
    for (int i = 0; i < ROWS_INDEX_DIM; i++) {
        uint8_t b = page[t * 64 + i / 2];
        x[i] = ref_e2m1(i & 1 ? b >> 4 : b & 15) *
               ref_e8m0(page[ROWS_INDEX_PAGE * 64 + 4 * t + i / 32]);
    }
}
