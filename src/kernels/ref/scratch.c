/* scratch.c - the most scratch that any reference block takes within given limits. */
#include "kernels/ref/ref.h"

size_t ref_scratch_bytes(const struct kernel_limits *l, int n_threads)
{
    int64_t rows = l->n_rows, threads = n_threads;
    int64_t group = (int64_t)l->n_heads * l->head_dim / FST_MAX(1, l->groups);
    int64_t ranks = (int64_t)l->groups * l->o_rank;
    int64_t widest = FST_MAX(FST_MAX(l->dim, l->q_rank), FST_MAX(group, ranks));
    widest = FST_MAX(widest, FST_MAX((int64_t)l->n_stages * l->dim, (int64_t)l->moe_dim));
    /* What a block keeps beside a linear map: r of attn_out, gate and up and the row lists of
     * experts, in and e of mtp_in, h of head, the scores of route. */
    int64_t beside = FST_MAX(FST_MAX(ranks, 2 * (int64_t)l->moe_dim + 2),
                             FST_MAX(2 * (int64_t)l->dim, (int64_t)l->n_experts));
    int64_t linear = (int64_t)ref_linear_scratch(rows, widest, n_threads) + rows * beside * 4 + 512;
    int64_t attention = (int64_t)ref_attention_scratch(l->n_heads, l->head_dim, n_threads);
    int64_t index = round_up(l->max_entries * 5, 64) * threads;
    int64_t rank = round_up(l->markov_rank, 16);
    int64_t chain =
        4 * (round_up(l->vocab, 16) + rank * (threads + 1) + round_up(l->dim + l->markov_rank, 16));
    return (size_t)FST_MAX(FST_MAX(linear, attention), FST_MAX(index, chain));
}
