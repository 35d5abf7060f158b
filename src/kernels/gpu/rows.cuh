/* rows.cuh - KV rows and index keys on a card: where they lie, and how lanes write and read them.
 *
 * Addresses and bytes are those of rows.h and ref/rows.c, without its assertions (the emulation has
 * them).  A row is written by lanes that hold 4 neighbouring values each: a tile of 64 values is 16
 * neighbouring lanes of one wave.  It is read 16 values at a time, as pairs of bf16 in a word (low
 * half first): every stored format is exact in bf16, and so are the step's own rows. */
#ifndef FST_KERNELS_GPU_ROWS_CUH
#define FST_KERNELS_GPU_ROWS_CUH

#include "kernels/gpu/gpu.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ROWS_CHECK(cond) ((void)0)
#else
#define ROWS_CHECK(cond) FST_ASSERT(cond)
#endif

GPU_FN int rows_div_up(int n, int by)
{
    return (n + by - 1) / by;
}

/* ---------------------------------------------------------------- rows of a step */

struct row_at {
    int slot, pos;
    int first, last; /* rows of its span: first .. last-1 */
    int start;       /* position of row `first` */
};

/* Row t of the step.  All threads of the block call; the arrays, which may be across a bus, are read
 * by one.  Where the counts alone say where a span begins and ends, nothing waits for its number. */
GPU_FN struct row_at rows_at(const struct rows *r, int t)
{
    GPU_SHARED struct row_at at;
    gpu_sync();
    if (threadIdx.x == 0) {
        bool single = r->n_spans == r->n_rows, one = r->n_spans == 1;
        at.slot = r->slot[t];
        at.pos = r->pos[t];
        if (single || one) {
            at.first = single ? t : 0;
            at.last = single ? t + 1 : r->n_rows;
        } else {
            int span = r->span[t];
            at.first = r->span_first[span];
            at.last = r->span_first[span + 1];
        }
        at.start = at.pos - (t - at.first);
    }
    gpu_sync();
    return at;
}

GPU_FN const int32_t *rows_pages(const struct rows *r, int slot)
{
    return r->pages + (int64_t)slot * r->page_stride;
}

/* ---------------------------------------------------------------- addresses */

GPU_FN int64_t rows_ring(const struct kv_layer *l, int slot, int pos)
{
    int64_t row = (int64_t)slot * l->ring + pos % l->ring;
    ROWS_CHECK(pos >= 0);
    ROWS_CHECK(row < l->compressed_base);
    return row;
}

/* A page holds 64 entries of ratio 4, 2 of ratio 128. */
GPU_FN int rows_page_shift(const struct kv_layer *l)
{
    return l->ratio == 4 ? 6 : 1;
}
/* Compressed entry e, which is in that page. */
GPU_FN int64_t rows_of_page(const struct kv_layer *l, int32_t page, int e)
{
    int shift = rows_page_shift(l);
    int64_t row = l->compressed_base + ((int64_t)page << shift) + (e & ((1 << shift) - 1));
    ROWS_CHECK(e >= 0);
    ROWS_CHECK(row < l->n_rows);
    return row;
}
/* Compressed entry e; pages: the slot's. */
GPU_FN int64_t rows_compressed(const struct kv_layer *l, const int32_t *pages, int e)
{
    return rows_of_page(l, pages[e >> rows_page_shift(l)], e);
}

/* rows_paged_page of 1 << shift rows. */
GPU_FN int64_t rows_paged_bytes(int shift)
{
    int64_t bytes = (int64_t)(ROWS_PAGED_DATA + ROWS_PAGED_SCALE) << shift;
    return (bytes + ROWS_PAGED_DATA - 1) / ROWS_PAGED_DATA * ROWS_PAGED_DATA;
}
/* Where the data of a PAGED row lies, and where its scales do (rows_paged). */
GPU_FN uint8_t *rows_place(const struct kv_layer *l, int64_t row, uint8_t **scale)
{
    const int window = 8; /* shift of ROWS_PAGED_WINDOW */
    bool ring = row < l->compressed_base;
    int shift = ring ? window : rows_page_shift(l);
    uint8_t *page = l->nope;
    if (!ring) {
        page += (l->compressed_base + ROWS_PAGED_WINDOW - 1) / ROWS_PAGED_WINDOW *
                rows_paged_bytes(window);
        row -= l->compressed_base;
    }
    page += (row >> shift) * rows_paged_bytes(shift);
    int64_t i = row & (((int64_t)1 << shift) - 1);
    *scale = page + ((int64_t)ROWS_PAGED_DATA << shift) + i * ROWS_PAGED_SCALE;
    return page + i * ROWS_PAGED_DATA;
}

GPU_FN uint8_t *rows_index_page(const struct kv_layer *l, int32_t page)
{
    return l->index_keys + (int64_t)page * (l->index_format == INDEX_FP4 ? ROWS_INDEX_FP4_PAGE
                                                                         : ROWS_INDEX_FP8_PAGE);
}

/* ---------------------------------------------------------------- rows, written */

/* Largest magnitude among the values of 16 neighbouring lanes; all lanes of the wave call. */
GPU_FN float rows_tile_amax(const struct gpu_quad *x)
{
    float a = fmaxf(fmaxf(fabsf(x->v[0]), fabsf(x->v[1])), fmaxf(fabsf(x->v[2]), fabsf(x->v[3])));
    return wave_max(a, ROWS_FP8_TILE / 4);
}

/* Pairs of values turned by cs (cos, sin, cos, sin), bf16: in double, as in ref. */
GPU_FN void rows_rotate(struct gpu_quad *x, const float *cs)
{
    for (int i = 0; i < 4; i += 2) {
        double c = (double)cs[i], s = (double)cs[i + 1];
        double a = (double)x->v[i], b = (double)x->v[i + 1];
        x->v[i] = gpu_bf16((float)(a * c - b * s));
        x->v[i + 1] = gpu_bf16((float)(a * s + b * c));
    }
}

/* Values at d .. d+3 of a normed row, finished: rope dims (from `nope` on) rotated, the others on the
 * FP8 grid.  All lanes of the wave call; cs: cos, sin, cos, sin of these dims, read from `nope` on. */
GPU_FN void rows_finish(struct gpu_quad *x, int d, int nope, int dim, const float *cs)
{
    uint32_t code = gpu_fp8_code(rows_tile_amax(x));
    if (d >= dim)
        return;
    if (d >= nope) {
        rows_rotate(x, cs);
        return;
    }
    for (int i = 0; i < 4; i++)
        x->v[i] = gpu_fp8_round(x->v[i], code);
}

struct alignas(8) rows_half {
    uint32_t w[2];
};

GPU_FN void rows_store_bf16(uint8_t *p, const struct gpu_quad *x)
{
    struct rows_half h;
    for (int i = 0; i < 2; i++)
        h.w[i] = gpu_bf16_bits(x->v[2 * i]) | (uint32_t)gpu_bf16_bits(x->v[2 * i + 1]) << 16;
    *(struct rows_half *)(void *)p = h;
}

/* Store the values at d .. d+3 of a row that is on the grid.  All lanes of the wave call, those at
 * d >= dim for nothing. */
GPU_FN void rows_store4(const struct kv_layer *l, int64_t row, int d, int dim,
                        const struct gpu_quad *x)
{
    uint32_t code = gpu_fp8_code(rows_tile_amax(x)), codes = 0;
    ROWS_CHECK(row >= 0);
    ROWS_CHECK(row < l->n_rows);
    if (d >= dim)
        return;
    if (l->format == ROW_BF16) {
        rows_store_bf16(l->nope + (row * dim + d) * 2, x);
        return;
    }
    bool paged = l->format == ROW_PAGED;
    uint8_t *scale = NULL, *p = l->nope + row * ROWS_FP8_BYTES;
    if (paged)
        p = rows_place(l, row, &scale);
    if (d >= ROWS_FP8_NOPE) {
        rows_store_bf16((paged ? p + ROWS_FP8_NOPE : l->rope + row * ROWS_ROPE_BYTES) +
                            2 * (d - ROWS_FP8_NOPE),
                        x);
        return;
    }
    for (int i = 0; i < 4; i++)
        codes |= gpu_e4m3_encode(x->v[i] * gpu_e8m0(254 - code)) << (8 * i);
    *(uint32_t *)(void *)(p + d) = codes;
    if (d % ROWS_FP8_TILE)
        return;
    if (!paged)
        *(uint16_t *)(void *)(p + ROWS_FP8_NOPE + d / ROWS_FP8_TILE * 2) =
            (uint16_t)(code | code << 8);
    else
        scale[d / ROWS_FP8_TILE] = (uint8_t)code;
    if (paged && d == ROWS_FP8_NOPE - ROWS_FP8_TILE)
        scale[ROWS_PAGED_SCALE - 1] = 0;
}

/* ---------------------------------------------------------------- rows, read */

/* 16 values of a row as they lie in memory, so that the loads of many may be under way at once. */
struct rows_raw {
    struct gpu_words a, b; /* E4M3 codes in a (and again in b); or 16 bf16 */
    uint32_t scale;        /* E8M0 code of the codes; ROWS_PLAIN: bf16 */
};
enum { ROWS_PLAIN = 256 };

/* Of PAGED rows; the layers of a launch are of one format, and others are spared these addresses. */
GPU_FN struct rows_raw rows_fetch_paged(const struct kv_layer *l, const uint16_t *own, int dim,
                                        int64_t at, int d)
{
    bool mine = at < 0, codes = !mine && d < ROWS_FP8_NOPE;
    uint8_t *scale;
    const uint8_t *row = rows_place(l, mine ? 0 : at, &scale);
    const uint8_t *p = row + (codes ? d : ROWS_FP8_NOPE + 2 * (d - ROWS_FP8_NOPE));
    ROWS_CHECK(at < l->n_rows);
    if (mine)
        p = (const uint8_t *)own + ((-1 - at) * dim + d) * 2;
    struct rows_raw r;
    r.a = gpu_load16(p);
    r.b = gpu_load16(p + (codes ? 0 : 16));
    r.scale = codes ? scale[d / ROWS_FP8_TILE] : (uint32_t)ROWS_PLAIN;
    return r;
}

/* Values d .. d+15 of a row of attention: of the layer's area, or of row -1-at of the step, which
 * `own` holds as bf16.  No branches: the loads of several calls go out together. */
template <bool PAGED>
GPU_FN struct rows_raw rows_fetch(const struct kv_layer *l, const uint16_t *own, int dim,
                                  int64_t at, int d)
{
    if (PAGED)
        return rows_fetch_paged(l, own, dim, at, d);
    bool mine = at < 0, fp8 = !mine && l->format == ROW_FP8, codes = fp8 && d < ROWS_FP8_NOPE;
    int line = codes ? ROWS_FP8_BYTES : fp8 ? ROWS_ROPE_BYTES : 2 * dim;
    int place = codes ? d : fp8 ? 2 * (d - ROWS_FP8_NOPE) : 2 * d;
    const uint8_t *p = mine ? (const uint8_t *)own : fp8 && !codes ? l->rope : l->nope;
    ROWS_CHECK(at < l->n_rows);
    p += (mine ? -1 - at : at) * line + place;
    const uint8_t *scale = p + (codes ? ROWS_FP8_NOPE + d / ROWS_FP8_TILE * 2 - d : 0);
    struct rows_raw r;
    r.a = gpu_load16(p);
    r.b = gpu_load16(p + (codes ? 0 : 16));
    r.scale = *scale;
    r.scale = codes ? r.scale : (uint32_t)ROWS_PLAIN;
    return r;
}

/* Four E4M3 codes times s as two pairs. */
GPU_FN void rows_codes(uint32_t codes, float s, uint32_t pair[2])
{
    pair[0] = gpu_pair(gpu_e4m3(codes & 255) * s, gpu_e4m3(codes >> 8 & 255) * s);
    pair[1] = gpu_pair(gpu_e4m3(codes >> 16 & 255) * s, gpu_e4m3(codes >> 24) * s);
}

/* The 16 values as 8 pairs. */
GPU_FN void rows_unpack(const struct rows_raw *r, struct gpu_words out[2])
{
    if (r->scale == ROWS_PLAIN) {
        out[0] = r->a;
        out[1] = r->b;
        return;
    }
    float s = gpu_e8m0(r->scale);
    for (int i = 0; i < 4; i++)
        rows_codes(r->a.w[i], s, out[i / 2].w + i % 2 * 2);
}

/* ---------------------------------------------------------------- index keys */

/* One step of a Hadamard transform in Sylvester order: values h apart, of which a lane has four in a row. */
GPU_FN void rows_hadamard(float (&y)[4], int h)
{
    float x[4];
    bool upper = h >= 4 && gpu_lane() & (h / 4);
    float own = upper ? -1.0f : 1.0f; /* times y: exact, and one instruction with the sum */
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        x[i] = h < 4 ? y[i ^ (h % 4)] : wave_xor(y[i], h / 4);
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        y[i] = h >= 4 ? fmaf(own, y[i], x[i]) : i & h ? x[i] - y[i] : y[i] + x[i];
}

GPU_FN float rows_largest(const float (&x)[4])
{
    return fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
}

/* Values 4i .. 4i+3 of the key of entry e, held by lane i of 32; there: of those that store.  Put on the
 * grid, then coded from there, as in ref: a block whose largest value rounds down may get another scale. */
GPU_FN void rows_index_store4(uint8_t *page, int e, int i, float (&x)[4], bool there)
{
    int t = e % ROWS_INDEX_PAGE;
    uint32_t code = gpu_fp4_code(wave_max(rows_largest(x), 8)), codes = 0;
    for (int k = 0; k < 4; k++)
        x[k] = gpu_fp4_round(x[k], code);
    code = gpu_fp4_code(wave_max(rows_largest(x), 8));
    for (int k = 0; k < 4; k++)
        codes |= gpu_e2m1_encode(x[k] / gpu_e8m0(code)) << (4 * k);
    if (!there)
        return;
    *(uint16_t *)(void *)(page + t * 64 + 2 * i) = (uint16_t)codes;
    if (i % 8 == 0)
        page[ROWS_INDEX_PAGE * 64 + 4 * t + i / 8] = (uint8_t)code;
}

/* The same in FP8. */
GPU_FN void rows_index_store8(uint8_t *page, int e, int i, const float (&x)[4], bool there)
{
    int t = e % ROWS_INDEX_PAGE;
    float scale = fmaxf(wave_max(rows_largest(x), 32), 1e-4f) / 448.0f;
    uint32_t codes = 0;
    for (int k = 0; k < 4; k++)
        codes |= gpu_e4m3_encode(x[k] / scale) << (8 * k);
    if (!there)
        return;
    *(uint32_t *)(void *)(page + t * ROWS_INDEX_DIM + 4 * i) = codes;
    if (i == 0)
        *(float *)(void *)(page + ROWS_INDEX_PAGE * ROWS_INDEX_DIM + 4 * t) = scale;
}

/* Block b (32 values) of the key at place t of a page, as 16 pairs; FP8: without the key's scale. */
GPU_FN void rows_index_load(enum index_format format, const uint8_t *page, int t, int b,
                            uint32_t pair[16])
{
    if (format == INDEX_FP8) {
        for (int i = 0; i < 2; i++) {
            struct gpu_words c = gpu_load16(page + t * ROWS_INDEX_DIM + 32 * b + 16 * i);
            for (int w = 0; w < 4; w++)
                rows_codes(c.w[w], 1, pair + 8 * i + 2 * w);
        }
        return;
    }
    struct gpu_words c = gpu_load16(page + t * 64 + 16 * b);
    float s = gpu_e8m0(page[ROWS_INDEX_PAGE * 64 + 4 * t + b]);
    for (int w = 0; w < 4; w++)
        for (int i = 0; i < 4; i++) {
            uint32_t byte = c.w[w] >> (8 * i);
            pair[4 * w + i] = gpu_pair(gpu_e2m1(byte & 15) * s, gpu_e2m1(byte >> 4 & 15) * s);
        }
}

/* The scale of a key: 1 where its blocks have theirs. */
GPU_FN float rows_index_scale(enum index_format format, const uint8_t *page, int t)
{
    if (format == INDEX_FP4)
        return 1;
    return *(const float *)(const void *)(page + ROWS_INDEX_PAGE * ROWS_INDEX_DIM + 4 * t);
}

#endif
