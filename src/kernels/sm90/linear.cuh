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

/* Block b (128 values) of an operand row of bf16; lane l has values 4l .. 4l+3. */
GPU_FN void operand_bf16(const struct operand_place &to, int b, const struct gpu_quad &v)
{
    int lane = gpu_lane(), q = lane / 4 % 4, piece = lane % 4 * 2;
    uint32_t *out = (uint32_t *)(void *)(to.line + (2 * b + lane / 16) * to.pitch);
    out[(piece ^ to.swap) * 4 + q] = gpu_pair(v.v[0], v.v[1]);
    out[((piece + 1) ^ to.swap) * 4 + q] = gpu_pair(v.v[2], v.v[3]);
}

/* A block as E4M3 codes, and its scale's; all lanes call.  Lane l has values 4l .. 4l+3. */
GPU_FN uint32_t operand_quantise(uint32_t (&c)[4], const struct gpu_quad &v)
{
    float top = fmaxf(fmaxf(fabsf(v.v[0]), fabsf(v.v[1])), fmaxf(fabsf(v.v[2]), fabsf(v.v[3])));
    uint32_t code = gpu_fp8_code(wave_max(top));
    float down = gpu_e8m0(254 - code);
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = gpu_e4m3_encode(v.v[i] * down);
    return code;
}

/* Those codes into a line, for weights in FP8 or FP4 (stream.cuh). */
template <bool FP4> GPU_FN void operand_line(uint8_t *line, int swap, const uint32_t (&c)[4])
{
    int lane = gpu_lane();
    if (FP4) {
        int piece = lane / 8 * 2, at = lane % 8 * 2;
        *(uint16_t *)(void *)(line + 16 * (piece ^ swap) + at) = (uint16_t)(c[0] | c[2] << 8);
        *(uint16_t *)(void *)(line + 16 * ((piece + 1) ^ swap) + at) = (uint16_t)(c[1] | c[3] << 8);
    } else {
        int q = lane / 8, piece = lane % 8;
        ((uint32_t *)(void *)line)[(piece ^ swap) * 4 + q] =
            c[0] | c[1] << 8 | c[2] << 16 | c[3] << 24;
    }
}

/* Block b of an operand row of codes; all lanes call. */
template <bool FP4>
GPU_FN void operand_codes(const struct operand_place &to, int b, const struct gpu_quad &v)
{
    uint32_t c[4], code = operand_quantise(c, v);
    operand_line<FP4>(to.line + b * to.pitch, to.swap, c);
    if (gpu_lane() == 0)
        to.scale[b * to.s_pitch] = gpu_e8m0(code);
}

/* Value d of row i of a raw operand of n_rows rows of n_in values. */
GPU_FN uint16_t *lin_raw_place(uint16_t *x, int n_rows, int n_in, int i, int d)
{
    struct operand_place to = operand_at((uint8_t *)(void *)x, n_rows, 2 * (int64_t)n_in, i);
    int piece = d / 4 % 4 * 2 + d % 4 / 2, at = d / 16 % 4 * 2 + d % 2; /* stream.cuh says why */
    uint8_t *line = to.line + d / 64 * to.pitch;
    return (uint16_t *)(void *)(line + ((piece ^ to.swap) << 4)) + at;
}

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
