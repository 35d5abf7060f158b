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

/* A block as E4M3 codes, four of a lane in a word, and the code of its scale; all lanes call.  Lane l has
 * values 4l .. 4l+3.  Magnitudes are compared as integers, which the card does for a whole wave at once. */
GPU_FN uint32_t operand_quantise(uint32_t *codes, const struct gpu_quad &v)
{
    float top = fmaxf(fmaxf(fabsf(v.v[0]), fabsf(v.v[1])), fmaxf(fabsf(v.v[2]), fabsf(v.v[3])));
    uint32_t code = gpu_fp8_code(gpu_float(__reduce_max_sync(0xffffffffu, gpu_bits(top))));
    float down = gpu_e8m0(254 - code);
    *codes = e4m3_pair(v.v[0] * down, v.v[1] * down) | e4m3_pair(v.v[2] * down, v.v[3] * down)
                                                           << 16;
    return code;
}

/* What the lane stores of a block's line, and where: for weights in FP8 its own codes; in FP4 (stream.cuh)
 * even and odd values lie apart, two neighbouring lanes have a word of each. */
template <bool FP4> GPU_FN uint32_t operand_word(uint32_t codes)
{
    if (!FP4)
        return codes;
    bool odd = gpu_lane() & 1;
    uint32_t kept = __byte_perm(codes, 0, odd ? 0x4431 : 0x4420);
    uint32_t other = __shfl_xor_sync(0xffffffffu, __byte_perm(codes, 0, odd ? 0x4420 : 0x4431), 1);
    return odd ? other | kept << 16 : kept | other << 16;
}
template <bool FP4> GPU_FN int operand_word_at(int swap)
{
    int lane = gpu_lane();
    return FP4 ? 16 * ((lane / 8 * 2 + lane % 2) ^ swap) + lane % 8 / 2 * 4
               : 16 * (lane % 8 ^ swap) + lane / 8 * 4;
}

/* Block b of an operand row of codes; all lanes call. */
template <bool FP4>
GPU_FN void operand_codes(const struct operand_place &to, int b, const struct gpu_quad &v)
{
    uint32_t codes, code = operand_quantise(&codes, v);
    *(uint32_t *)(void *)(to.line + b * to.pitch + operand_word_at<FP4>(to.swap)) =
        operand_word<FP4>(codes);
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
