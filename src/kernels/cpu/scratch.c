/* scratch.c - the most scratch that any AVX2 or AVX-512 block takes within given limits. */
#include "kernels/cpu/cpu.h"

size_t attention_worker_avx2(int head_dim);
size_t attention_worker_avx512(int head_dim);
size_t index_scratch_avx2(int64_t n_rows, int64_t max_entries, int heads, int n_threads);
size_t index_scratch_avx512(int64_t n_rows, int64_t max_entries, int heads, int n_threads);

/* Prepared rows of one layout. */
static int64_t prepared(int64_t n_rows, int64_t n_in)
{
    return n_rows * (4 * n_in + 64) + 64;
}

size_t cpu_scratch_bytes(const struct kernel_limits *l, int n_threads)
{
    int64_t rows = l->n_rows, dim = l->dim, moe = l->moe_dim;
    int64_t block = FST_MIN(rows, 256); /* EXPERT_ROWS, OUT_ROWS */
    int64_t visits = block * (l->k + 1), ranks = (int64_t)l->groups * l->o_rank;
    int64_t heads = (int64_t)l->n_heads * l->head_dim;
    int64_t chunks = div_up(l->vocab, 2048); /* CHUNK of draw.inl */
    /* attn_in: FP8 and BF16 layouts; q_path */
    int64_t most = FST_MAX(2 * prepared(rows, dim), prepared(rows, l->q_rank));
    /* attn_out */
    most = FST_MAX(most, prepared(block, heads) + 64 * (int64_t)(block + 1) * l->groups +
                             prepared(block, ranks) + block * ranks * 4);
    /* main_proj; head, route, seam; mtp_in: e, five normed rows, five prepared */
    most = FST_MAX(most, prepared(rows, (int64_t)l->n_stages * dim));
    most = FST_MAX(most, rows * 4 * (dim + l->n_experts + KERN_MIX) + prepared(rows, dim) + 256);
    most = FST_MAX(most, rows * dim * 4 * 6 + 5 * prepared(rows, dim) + 256);
    /* experts: lists, gate and up, hidden rows, partial outputs; inputs in two layouts */
    most = FST_MAX(most, visits * (12 + moe * 12 + 128 + dim * 4) + prepared(block, dim) * 2 +
                             (int64_t)(l->n_experts + 1) * 512 + 1024);
    /* draw, draft_chain */
    most = FST_MAX(most, rows * chunks * 32 + (int64_t)n_threads * 48 * 2048 * 4 +
                             prepared(rows, l->markov_rank) + prepared(2, dim + l->markov_rank));
    size_t worker =
        FST_MAX(attention_worker_avx2(l->head_dim), attention_worker_avx512(l->head_dim));
    most = FST_MAX(most, (int64_t)(worker + 128) * n_threads);
    size_t index = FST_MAX(index_scratch_avx2(rows, l->max_entries, l->index_heads, n_threads),
                           index_scratch_avx512(rows, l->max_entries, l->index_heads, n_threads));
    return FST_MAX((size_t)most, index) + 4096;
}
