/* table.cu - the kernels for Hopper as a table: its own where they take the model's shapes, else the
 * portable ones.  The choice looks at formats and widths alone, never at rows. */
#include "kernels/sm90/linear.cuh"
#include "kernels/sm90/mma.cuh"

#define PORTABLE(entry, args)                                                                      \
    extern "C" enum fst_status entry##_gpu(const args *a, struct stream *s);
KERNELS_MAP(PORTABLE)
#undef PORTABLE

extern "C" bool kernels_fill_gpu(void *table, size_t bytes);
extern "C" size_t kernels_scratch_gpu(const struct kernel_limits *l);

bool sm90_experts(const struct experts_args *a); /* experts.cu */

static enum fst_status pick_attn_in(const struct attn_in_args *a, struct stream *s)
{
    bool ours = sm90_mat(a->wq_a, 1, false) && sm90_mat(a->wkv, 1, false) &&
                sm90_mat(a->cmp_wkv, 1, false) && sm90_mat(a->cmp_wgate, 1, false) &&
                sm90_mat(a->idx_wkv, 1, false) && sm90_mat(a->idx_wgate, 1, false) &&
                sm90_mat(a->weights_proj, 1, false);
    if (ours)
        return attn_in_sm90(a, s);
    FST_TRY(attn_in_gpu(a, s));
    if (a->qr_operand)
        lin_leave_rows(s, a->qr, a->n_rows, a->wq_a->n_out, a->qr_operand);
    return gpu_done("attn_in");
}

static bool our_q_path(const struct q_path_args *a)
{
    return sm90_mat(a->wq_b, 1, false) && sm90_mat(a->idx_wq_b, 1, false);
}
static enum fst_status pick_q_path(const struct q_path_args *a, struct stream *s)
{
    return our_q_path(a) ? q_path_sm90(a, s) : q_path_gpu(a, s);
}

static bool our_attn_out(const struct attn_out_args *a)
{
    return sm90_mat(a->wo_a, a->groups, false) && sm90_mat(a->wo_b, 1, true);
}
static enum fst_status pick_attn_out(const struct attn_out_args *a, struct stream *s)
{
    return our_attn_out(a) ? attn_out_sm90(a, s) : attn_out_gpu(a, s);
}

/* All three blocks take them so, or none. */
static bool heads_packed(const struct q_path_args *q, const struct attn_out_args *out)
{
    static_assert((int)PACK_ROWS == (int)LIN_ROWS, "attn_out's rows");
    struct lin_job wq_b = {};
    if (gpu_there(q->wq_b))
        wq_b.w = *q->wq_b; /* tiles.cu keeps sums of slices where the output goes */
    return attention_sm90_fits(q->head_dim) && our_q_path(q) && our_attn_out(out) &&
           slices(wq_b) == 1;
}

static enum fst_status pick_main_proj(const struct main_proj_args *a, struct stream *s)
{
    return sm90_mat(a->main_proj, 1, false) ? main_proj_sm90(a, s) : main_proj_gpu(a, s);
}

static enum fst_status pick_head(const struct head_args *a, struct stream *s)
{
    return sm90_mat(a->head, 1, false) ? head_sm90(a, s) : head_gpu(a, s);
}

static size_t operand_bytes(int n_rows, int width)
{
    return operand_forms_bytes(n_rows, width);
}

static bool experts_apart(const struct experts_args *a)
{
    return a->n_rows <= OPERAND_FEW && sm90_experts(a);
}

static enum fst_status pick_experts(const struct experts_args *a, struct stream *s)
{
    return sm90_experts(a) ? experts_sm90(a, s) : experts_gpu(a, s);
}

extern "C" size_t kernels_scratch_sm90(const struct kernel_limits *l)
{
    size_t most = FST_MAX(kernels_scratch_gpu(l), lin_project_scratch(l));
    most = FST_MAX(most, lin_experts_scratch(l));
    most = FST_MAX(most, attention_sm90_scratch(l));
    most = FST_MAX(most, route_sm90_scratch(l));
    most = FST_MAX(most, seam_sm90_scratch(l));
    most = FST_MAX(most, draft_chain_sm90_scratch(l));
    return FST_MAX(most, lin_head_scratch(l));
}

extern "C" bool kernels_fill_sm90(void *table, size_t bytes)
{
    struct kernels *k = (struct kernels *)table;
    if (!kernels_fill_gpu(table, bytes))
        return false;
    k->name = "sm90";
    k->scratch = kernels_scratch_sm90;
    k->attn_in = pick_attn_in;
    k->q_path = pick_q_path;
    k->attn_out = pick_attn_out;
    k->main_proj = pick_main_proj;
    k->head = pick_head;
    k->experts = pick_experts;
    k->seam =
        seam_sm90; /* seam, route, attention and draft_chain delegate by themselves, index_topk takes all */
    k->route = route_sm90;
    k->draft_chain = draft_chain_sm90;
    k->index_topk = index_topk_sm90;
    k->attention = attention_sm90;
    k->heads_packed = heads_packed;
    k->operand_rows = OPERAND_FEW;
    k->operand_bytes = operand_bytes;
    k->experts_apart = experts_apart;
    return true;
}
