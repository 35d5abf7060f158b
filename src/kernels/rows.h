/* rows.h - where a KV row and an index key lie, and how they are spelled in bytes.
 *
 * Formats and addresses are kernels.h's; the byte encoders here are the plain ones that every
 * faster writer must agree with to the byte.  All offsets are 64-bit: one layer of a real pool
 * passes 2^31 bytes.  Implemented in ref/rows.c; thread-safe, allocates nothing. */
#ifndef FST_KERNELS_ROWS_H
#define FST_KERNELS_ROWS_H

#include "kernels/kernels.h"

enum {
    ROWS_FP8_DIM = 512, /* FP8 rows exist for head_dim 512, rope_dim 64 alone */
    ROWS_FP8_NOPE = 448,
    ROWS_FP8_TILE = 64,    /* values per scale, in every precision of the row grid */
    ROWS_FP8_BYTES = 512,  /* nope row */
    ROWS_ROPE_BYTES = 128, /* rope row */
    ROWS_PAGED_DATA = 576,
    ROWS_PAGED_SCALE = 8,
    ROWS_PAGED_WINDOW = 256, /* window rows per page */
    ROWS_INDEX_DIM = 128,    /* FP4 and FP8 index keys */
    ROWS_INDEX_PAGE = 64,    /* keys per page */
    ROWS_INDEX_FP4_PAGE = 4352,
    ROWS_INDEX_FP8_PAGE = 8448
};

/* Row number of position pos in the ring of `slot`. */
static inline int64_t rows_window(const struct kv_layer *l, int slot, int64_t pos)
{
    FST_ASSERT(slot >= 0);
    FST_ASSERT(pos >= 0);
    int64_t row = (int64_t)slot * l->ring + pos % l->ring;
    FST_ASSERT(row < l->compressed_base);
    return row;
}

/* Row number of compressed entry e; pages: the slot's row of the page table. */
static inline int64_t rows_entry(const struct kv_layer *l, const int32_t *pages, int64_t e)
{
    int per_page = KERN_PAGE / l->ratio;
    int64_t row = l->compressed_base + (int64_t)pages[e / per_page] * per_page + e % per_page;
    FST_ASSERT(row < l->n_rows);
    return row;
}

/* Bytes of a PAGED page of so many rows. */
static inline int64_t rows_paged_page(int n_rows)
{
    return round_up((int64_t)n_rows * (ROWS_PAGED_DATA + ROWS_PAGED_SCALE), ROWS_PAGED_DATA);
}

/* Where the data of a PAGED row lies, and where its scales do. */
static inline uint8_t *rows_paged(const struct kv_layer *l, int64_t row, uint8_t **scale)
{
    uint8_t *page = l->nope;
    int per_page = ROWS_PAGED_WINDOW;
    if (row >= l->compressed_base) {
        page += div_up(l->compressed_base, per_page) * rows_paged_page(per_page);
        row -= l->compressed_base;
        per_page = KERN_PAGE / l->ratio;
    }
    page += row / per_page * rows_paged_page(per_page);
    *scale = page + per_page * ROWS_PAGED_DATA + row % per_page * ROWS_PAGED_SCALE;
    return page + row % per_page * ROWS_PAGED_DATA;
}

/* Bytes of one row of the first area (nope); of PAGED without what pads its pages. */
int64_t rows_bytes(enum row_format format, int head_dim);
/* Bytes of a page of 64 index keys. */
int64_t rows_index_page_bytes(enum index_format format, int index_dim);

/* x (head_dim) already on the row grid: storing and loading gives the same floats back. */
void rows_store(const struct kv_layer *l, int64_t row, const float *x, int head_dim, int rope_dim);
void rows_load(const struct kv_layer *l, int64_t row, float *x, int head_dim, int rope_dim);

/* Index key of entry e (ratio 4).  FP4: x already on the FP4 grid in blocks of 32.  FP8: x on the
 * bf16 grid, one fp32 scale max(|x|, 1e-4)/448 per key. */
void rows_index_store(const struct kv_layer *l, const int32_t *pages, int64_t e, const float *x,
                      int index_dim);
void rows_index_load(const struct kv_layer *l, const int32_t *pages, int64_t e, float *x,
                     int index_dim);

#endif
