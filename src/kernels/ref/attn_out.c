/* attn_out.c - output projection: per group to a low rank, then all groups together. */
#include "kernels/ref/ref.h"

enum fst_status attn_out_ref(const struct attn_out_args *a, struct stream *s)
{
    int n = a->n_rows, wide = a->wo_a->n_in, rank = a->wo_a->n_out / a->groups;
    int64_t ranks = a->wo_a->n_out;
    size_t one = (size_t)round_up(n * ranks * 4, 64);
    int64_t widest = FST_MAX(wide, ranks);
    ref_need(s, one + ref_linear_scratch(n, widest, pool_threads(s->pool)));
    float *r = (float *)(void *)s->scratch;
    for (int g = 0; g < a->groups; g++) { /* the input is not quantised, whatever wo_a's form */
        struct ref_linear l = {.w = a->wo_a,
                               .x = a->o + (int64_t)g * wide,
                               .y = r + g * rank,
                               .ldx = (int64_t)a->groups * wide,
                               .ldy = ranks,
                               .n_rows = n,
                               .first = g * rank,
                               .n_out = rank,
                               .flags = REF_ROUND};
        ref_linear(s, &l, s->scratch + one);
    }
    ref_linear_all(s, a->wo_b, r, n, a->y, REF_QUANT | REF_SEGMENTS, s->scratch + one);
    return FST_OK;
}
