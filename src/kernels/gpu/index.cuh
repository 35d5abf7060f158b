/* index.cuh - what the index kernels here and those of kernels/sm90 share: their launches, the scratch
 * between scores and choice, rows that see no more entries than they may keep. */
#ifndef FST_KERNELS_GPU_INDEX_CUH
#define FST_KERNELS_GPU_INDEX_CUH

#include "kernels/gpu/choose.cuh"
#include "kernels/gpu/rows.cuh"

enum { INDEX_HEADS = 64 }; /* of a row, at most; absent ones weigh nothing */
/* Bytes of scores held at once: bounds the rows of a launch. */
#define INDEX_SCORES ((int64_t)64 << 20)

struct index_job {
    struct rows rows;
    struct kv_layer l;
    const float *qi, *iw;
    int32_t *sel, *n_sel;
    float *scores, *margin; /* NULL, or as in index_topk_args */
    int64_t max_entries;
    float *score; /* (rows of the launch, ld); NULL: every row keeps all it sees */
    int64_t ld;
    int first, n;    /* row of the step; rows of the launch */
    int tall, parts; /* rows of a block that scores, at most; blocks that share their keys */
    int heads, topk;
};

/* Entries that a row at this position sees. */
GPU_FN int index_seen(int64_t pos)
{
    return (int)((pos + 1) / 4);
}

/* Row t of the step, which sees nv entries: n_sel, and where there is nothing to choose the rest too;
 * else false.  All threads of the block call. */
GPU_FN bool index_keeps_all(const struct index_job *j, int64_t t, int nv)
{
    bool all = nv <= j->topk;
    ROWS_CHECK(nv <= j->max_entries);
    if (threadIdx.x == 0) {
        j->n_sel[t] = FST_MIN(nv, j->topk);
        if (j->margin && all)
            j->margin[t] = INFINITY;
    }
    for (int e = (int)threadIdx.x; e < nv && all; e += (int)blockDim.x)
        j->sel[t * j->topk + e] = e;
    return all;
}

/* ---------------------------------------------------------------- launchers */

static inline int64_t index_line(int64_t max_entries)
{
    return round_up(FST_MAX(max_entries, 1), 4);
}
/* Rows of a launch. */
static inline int64_t index_rows(int64_t n_rows, int64_t max_entries)
{
    return FST_MAX(1, FST_MIN(n_rows, INDEX_SCORES / (4 * index_line(max_entries))));
}

static inline struct index_job index_start(const struct index_topk_args *a)
{
    FST_ASSERT(a->l->ratio == 4);
    FST_ASSERT(a->l->index_format == INDEX_FP4 || a->l->index_format == INDEX_FP8);
    FST_ASSERT(a->index_dim == ROWS_INDEX_DIM);
    FST_ASSERT(a->index_heads <= INDEX_HEADS);
    FST_ASSERT(a->topk > 0);
    FST_ASSERT(a->max_entries < INT32_MAX / 2);
    struct index_job j = {};
    j.rows = *a->rows;
    j.l = *a->l;
    j.qi = a->qi;
    j.iw = a->iw;
    j.sel = a->sel;
    j.n_sel = a->n_sel;
    j.scores = a->scores;
    j.margin = a->margin;
    j.max_entries = a->max_entries;
    j.ld = index_line(a->max_entries);
    j.heads = a->index_heads;
    j.topk = a->topk;
    return j;
}

#endif
