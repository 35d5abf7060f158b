/* keys.cuh - which keys a row attends to, piece by piece (kernels.h, attention). */
#ifndef FST_KERNELS_GPU_KEYS_CUH
#define FST_KERNELS_GPU_KEYS_CUH

#include "kernels/gpu/rows.cuh"

enum { KEYS_PIECE = 64, KEYS_BLOCK_ROWS_MAX = KEYS_PIECE /* of a draft block */ };
/* Bytes of scratch that attention holds at once: bounds the rows of a launch. */
#define KEYS_SCRATCH ((int64_t)64 << 20)

/* Keys lo .. hi of one kind; pieces start at multiples of KEYS_PIECE. */
enum range_kind { RANGE_POSITIONS, RANGE_ENTRIES, RANGE_SELECTED };
struct range {
    enum range_kind kind;
    int lo, hi;
};

GPU_FN int range_pieces(const struct range *r)
{
    return r->hi < r->lo ? 0 : r->hi / KEYS_PIECE - r->lo / KEYS_PIECE + 1;
}

/* Entries chosen for row t, 0 where none are.  a's own rows and l are the host's: not followed. */
GPU_FN int keys_chosen(const struct attention_args *a, int ratio, int t)
{
    return a->mode == ATTN_CAUSAL && ratio == 4 ? a->n_sel[t] : 0;
}

/* The row's two ranges. */
GPU_FN void keys_ranges(const struct attention_args *a, int ratio, const struct row_at *at,
                        int chosen, struct range r[2])
{
    int end = a->mode == ATTN_BLOCK ? at->start : at->pos + 1; /* of the window */
    r[0] = {RANGE_POSITIONS, FST_MAX(0, end - a->window), end - 1};
    r[1] = {RANGE_ENTRIES, 0, -1};
    if (a->mode == ATTN_BLOCK)
        r[1] = {RANGE_POSITIONS, at->start, at->start + at->last - at->first - 1};
    else if (ratio == 128)
        r[1].hi = (at->pos + 1) / 128 - 1;
    else if (ratio == 4)
        r[1] = {RANGE_SELECTED, 0, chosen - 1};
}

/* Keys of piece p of both ranges. */
GPU_FN struct range keys_piece(const struct range r[2], int p)
{
    int some = range_pieces(&r[0]);
    struct range of = p < some ? r[0] : r[1];
    int start = (of.lo / KEYS_PIECE + p - (p < some ? 0 : some)) * KEYS_PIECE;
    of.lo = FST_MAX(of.lo, start);
    of.hi = FST_MIN(of.hi, start + KEYS_PIECE - 1);
    return of;
}

/* Where key x lies: a row of the layer's area; -1-t: row t of the step. */
GPU_FN int64_t keys_find(const struct attention_args *a, const struct rows *r,
                         const struct kv_layer *l, const struct row_at *at, int t,
                         enum range_kind kind, int x)
{
    if (kind == RANGE_POSITIONS)
        return x >= at->start ? -1 - ((int64_t)at->first + x - at->start)
                              : rows_ring(l, at->slot, x);
    int e = kind == RANGE_SELECTED ? a->sel[(int64_t)t * a->topk + x] : x;
    return rows_compressed(l, rows_pages(r, at->slot), e);
}

/* What every launch of attention has. */
static inline void keys_check(const struct attention_args *a)
{
    FST_ASSERT(a->l->format != ROW_F32);
    FST_ASSERT(a->l->format == ROW_BF16 ||
               (a->head_dim == ROWS_FP8_DIM && a->head_dim - a->rope_dim == ROWS_FP8_NOPE));
    FST_ASSERT(a->rope_dim % 2 == 0);
    FST_ASSERT(a->window > 0);
    FST_ASSERT(a->l->ratio == 0 || a->l->ratio == 4 || a->l->ratio == 128);
    if (a->mode == ATTN_BLOCK) {
        FST_ASSERT(a->l->ratio == 0);
        FST_ASSERT(a->rows->n_rows <= (int64_t)a->rows->n_spans * KEYS_BLOCK_ROWS_MAX);
    }
}

static inline int64_t keys_window_pieces(int window)
{
    return (window + KEYS_PIECE - 2) / KEYS_PIECE + 1;
}

/* Pieces of a row, at most: of a launch; within the limits. */
static inline int64_t keys_most_pieces(const struct attention_args *a)
{
    int64_t more = a->mode == ATTN_BLOCK ? 2 : 0;
    if (a->mode == ATTN_CAUSAL && a->l->ratio)
        more = div_up(a->l->ratio == 4 ? a->topk : a->rows->page_stride * 2, KEYS_PIECE);
    return keys_window_pieces(a->window) + more;
}
/* A page table has room for the whole context: 2 entries of ratio 128 in a page. */
static inline int64_t keys_limit_pieces(const struct kernel_limits *l)
{
    int64_t entries = 2 * (div_up(4 * l->max_entries, KERN_PAGE) + 1);
    return keys_window_pieces(l->window) +
           FST_MAX(2, div_up(FST_MAX(entries, l->topk), KEYS_PIECE));
}

#endif
