/* project_alone.cu - attn_in and q_path without their products, for small_kernels.cu: what is left are
 * the norms and the heads. */
#define KERNELS_SM90
#define GPU_NAME(entry) entry##_alone
#include "kernels/gpu/project.cu"

void lin_add(struct lin_batch *b, const struct mat *w, int groups, const uint16_t *x, int n_rows,
             float *y, int64_t ldy, unsigned flags)
{
    (void)b, (void)w, (void)groups, (void)x, (void)n_rows, (void)y, (void)ldy, (void)flags;
}
void lin_prepare(struct stream *s, const struct lin_input *in)
{
    (void)s, (void)in;
}
void lin_run(struct stream *s, struct lin_batch *b)
{
    (void)s, (void)b;
}
