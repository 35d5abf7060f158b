/* attention.cu - heads of a row over its window, compressed entries or draft block, on Hopper.
 *
 * Few rows (attention_few.cuh):
 *   piece_kernel  a block takes 64 heads of a row and a piece of its keys, or half of one: S = Q K^T, weights of
 *                 the piece as bf16 in the order in which the next product takes them, and the unpacked keys,
 *                 into scratch.
 *   slice_kernel  a block takes 64 heads and 64 dims of a row and goes through its pieces in order: O += P V.
 *   score_kernel, value_kernel   the same where a row may have too many pieces for their keys to be kept:
 *                 values are unpacked once more, for 256 dims.
 * Many (attention_many.cuh):
 *   whole_kernel  a block takes 64 heads of one row after another; nothing in scratch.
 *
 * Two warpgroups have half of a piece's keys each for S, and half of the dims for O.  Maxima are powers of
 * two: of half a piece 2^ceil(log2 e^s), of what came so far the largest of theirs.  So weights and sums
 * change their scale without rounding, whoever does it: all kernels give the same bits, and who takes what
 * may depend on the batch.
 *
 * Order of a score: k16 steps of dims in order, in one sum.  Of an output: k16 steps of keys, pieces in
 * order, in one sum.  Of a denominator: 8 keys of a thread, 4 threads as a tree, halves of a piece,
 * pieces in order. */
#include "kernels/sm90/attention_few.cuh"
#include "kernels/sm90/attention_many.cuh"

/* ---------------------------------------------------------------- launcher */

GPU_KERNEL void pack_kernel(struct attention_sm90_job j)
{
    gpu_start();
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 16;
    struct gpu_words out[2];
    if (at >= (int64_t)j.rows.n_rows * DIM)
        return;
    round_own(j.a.kv + at, out);
    mma_store16((uint8_t *)(j.own + at), out[0]);
    mma_store16((uint8_t *)(j.own + at + 8), out[1]);
}

static bool takes_many(int64_t n_rows, int64_t groups)
{
    return n_rows * groups >= WHOLE_FROM;
}

static enum fst_status launch_all(const struct attention_args *a, struct stream *s)
{
    int64_t n = a->rows->n_rows;
    struct gpu_cut cut = gpu_scratch(s);
    struct attention_sm90_job j = {};
    keys_check(a);
    FST_ASSERT((a->l->format == ROW_PAGED) == PAGED);
    FST_ASSERT(a->l->n_rows < INT32_MAX);
    FST_ASSERT(a->rope_dim <= 8 * TURNS);
    if (n == 0)
        return FST_OK;
    j.rows = *a->rows;
    j.l = *a->l;
    j.a = *a;
    j.scale = a->scale * 1.44269504f;
    j.groups = (int)div_up(a->n_heads, HEADS);
    j.pieces = (int)keys_most_pieces(a);
    if (takes_many(n, j.groups)) { /* whole_kernel knows the step's own rows as bf16 alone */
        j.own = gpu_take<uint16_t>(&cut, n * DIM);
        gpu_launch_early(pack_kernel, div_up(n * DIM, 16 * THREADS), THREADS, 0, s, j);
        launch_many(&j, s);
    } else
        launch_few(&j, &cut, s);
    return gpu_done("attention");
}

#if ATTENTION_PAGED
extern "C" enum fst_status attention_sm90_paged(const struct attention_args *a, struct stream *s)
{
    return launch_all(a, s);
}
#else
extern "C" enum fst_status attention_sm90_paged(const struct attention_args *a, struct stream *s);

extern "C" bool attention_sm90_fits(int head_dim)
{
    return head_dim == DIM;
}

size_t attention_sm90_scratch(const struct kernel_limits *l)
{
    if (!attention_sm90_fits(l->head_dim))
        return gpu_attention_scratch(l);
    int64_t groups = div_up(l->n_heads, HEADS), row = row_bytes(keys_limit_pieces(l), groups);
    int64_t rows = FST_MAX(1, FST_MIN(l->n_rows, KEYS_SCRATCH / row));
    int64_t own = takes_many(l->n_rows, groups) ? 2 * (int64_t)l->n_rows * DIM : 0;
    int64_t few = FST_MIN(l->n_rows, (int)WHOLE_FROM);
    int64_t kept = FST_MIN((int64_t)KEPT_TILES, few * keys_limit_pieces(l)) * TILE_BYTES;
    return (size_t)(rows * row + own + kept + ROUNDING);
}

SM90_ENTRY(attention)
{
    if (!attention_sm90_fits(a->head_dim))
        return GPU_NAME(attention)(a, s);
    return a->l->format == ROW_PAGED ? attention_sm90_paged(a, s) : launch_all(a, s);
}
#endif
