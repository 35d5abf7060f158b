/* linear.cuh - operands of stream.cuh, and which matrices its kernels take. */
#ifndef FST_KERNELS_SM90_LINEAR_CUH
#define FST_KERNELS_SM90_LINEAR_CUH

#define KERNELS_SM90
#define GPU_NAME(entry) entry##_sm90
#include "kernels/gpu/linear.cuh"
#include "kernels/sm90/operand.cuh"
#include "kernels/sm90/stream.cuh"

/* Behind the codes of an operand with n_rows rows of n values. */
GPU_FN const float *operand_scales(const uint8_t *codes, int64_t n_rows, int64_t n)
{
    return (const float *)(const void *)(codes + n_rows * n);
}

/* Value d of row i of a raw operand of n_rows rows of n_in values. */
GPU_FN uint16_t *lin_raw_place(uint16_t *x, int n_rows, int n_in, int i, int d)
{
    struct operand_place to = operand_at((uint8_t *)(void *)x, n_rows, 2 * (int64_t)n_in, i);
    int piece = d / 4 % 4 * 2 + d % 4 / 2, at = d / 16 % 4 * 2 + d % 2; /* stream.cuh says why */
    uint8_t *line = to.line + d / 64 * to.pitch;
    return (uint16_t *)(void *)(line + ((piece ^ to.swap) << 4)) + at;
}

/* What somebody left as operands of in's rows (operand.cuh); NULL: nothing.  raw: bf16 too. */
static inline void lin_take(struct lin_input *in, const void *operand, bool raw)
{
    if (!operand)
        return;
    FST_ASSERT(in->n_rows <= OPERAND_FEW && in->n_in % OPERAND_BLOCK == 0);
    struct operand_forms f = operand_forms_of((void *)(uintptr_t)operand, in->n_rows, in->n_in);
    in->x = NULL;
    in->grid = (uint16_t *)(void *)f.fp8;
    in->raw = raw ? (uint16_t *)(void *)f.raw : NULL;
}

/* Block b of row `row` of n_rows rows of n values, as q_path takes it from attn_in. */
GPU_FN void lin_leave(void *operand, int n_rows, int n, int64_t row, int b,
                      const struct gpu_quad &v)
{
    struct operand_forms f = operand_forms_of(operand, n_rows, n);
    operand_codes<false>(operand_row(f.fp8, n_rows, n, row), b, v);
}

/* Whether the product itself can leave its rows so (linear.cu). */
bool lin_leaves_codes(const struct mat *w, int n_rows);
/* The same as lin_leave for whole rows, in a launch of its own (linear.cu). */
void lin_leave_rows(struct stream *s, const float *x, int n_rows, int n, void *operand);

/* ---------------------------------------------------------------- products */

/* Slices of K, by the matrix alone: tiles of about 64 KB where there are too few to fill a card. */
GPU_BOTH int slices(const struct lin_job &j)
{
    int64_t line = (int64_t)j.w.n_in * (j.w.fmt == WEIGHT_BF16 ? 2 : 1);
    int tiles = (j.w.n_out + STREAM_ROWS - 1) / STREAM_ROWS;
    if (j.flags & LIN_SEGMENTS)
        return KERN_SEGMENTS;
    int n = 1;
    while (n < 8 && tiles < 264 && line * STREAM_ROWS / n > 64 << 10 &&
           j.w.n_in % (2 * n * 128) == 0)
        n *= 2;
    return n;
}

GPU_FN void lin_store(const struct lin_job &j, int row, int o, float v)
{
    if (row >= j.n_rows || o >= j.w.n_out)
        return;
    if (j.flags & LIN_PACK)
        ((uint16_t *)(void *)j.y)[row * j.ldy + o] = gpu_bf16_bits(v);
    else
        j.y[row * j.ldy + o] = j.flags & LIN_ROUND ? gpu_bf16(v) : v;
}

/* lin_run for batches whose operands all lie in tiles (tiles.cu). */
void sm90_run_tiles(struct stream *s, struct lin_batch *b);

/* Whether a product with m may run here: a question of the model, never of the rows. */
bool sm90_mat(const struct mat *m, int groups, bool segments);

#endif
