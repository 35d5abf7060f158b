/* emulate_sm90.cc - the portable table with the entries of kernels/sm90 that the emulation can run. */
#define GPU_WAVE 32
#include "kernels/sm90/mma.cuh"
#include "kernels/sm90/operand.cuh"

static size_t scratch(const struct kernel_limits *l)
{
    size_t most = FST_MAX(attention_sm90_scratch(l), route_sm90_scratch(l));
    most = FST_MAX(most, seam_sm90_scratch(l));
    most = FST_MAX(most, draft_chain_sm90_scratch(l));
    return FST_MAX(GPU_NAME(kernels_scratch)(l), most);
}

/* The projections are the portable ones, which take floats: packed for attention alone. */
static bool heads_packed(const struct q_path_args *q, const struct attn_out_args *out)
{
    return attention_sm90_fits(q->head_dim) && !q->wq_b && !out->wo_a;
}

/* The seam leaves them; nobody here takes them. */
static size_t operand_bytes(int n_rows, int width)
{
    return operand_forms_bytes(n_rows, width);
}

extern "C" bool kernels_fill_sm90_emulated(void *table, size_t bytes);
extern "C" bool kernels_fill_sm90_emulated(void *table, size_t bytes)
{
    struct kernels *k = (struct kernels *)table;
    if (!GPU_NAME(kernels_fill)(table, bytes))
        return false;
    k->attention = attention_sm90;
    k->index_topk = index_topk_sm90;
    k->route = route_sm90;
    k->draft_chain = draft_chain_sm90;
    k->seam = seam_sm90;
    k->scratch = scratch;
    k->heads_packed = heads_packed;
    k->operand_rows = OPERAND_FEW;
    k->operand_bytes = operand_bytes;
    return true;
}
