/* linear.cuh - operands of stream.cuh, and which matrices its kernels take. */
#ifndef FST_KERNELS_SM90_LINEAR_CUH
#define FST_KERNELS_SM90_LINEAR_CUH

#define KERNELS_SM90
#define GPU_NAME(entry) entry##_sm90
#include "kernels/gpu/linear.cuh"
#include "kernels/sm90/stream.cuh"

/* Behind the codes of an operand with n_rows rows of n values. */
GPU_FN const float *operand_scales(const uint8_t *codes, int64_t n_rows, int64_t n)
{
    return (const float *)(const void *)(codes + n_rows * n);
}

/* Block b (128 values) of an operand row of bf16; lane l has values 4l .. 4l+3. */
GPU_FN void operand_bf16(uint16_t *row, int b, const struct gpu_quad &v)
{
    int lane = gpu_lane(), q = lane / 4 % 4, step = lane % 4;
    uint32_t *out = (uint32_t *)(void *)(row + b * 128 + lane / 16 * 64);
    out[8 * step + q] = gpu_pair(v.v[0], v.v[1]);
    out[8 * step + 4 + q] = gpu_pair(v.v[2], v.v[3]);
}

/* Block b of row `row` of an operand of codes, for weights in FP8 or FP4 (stream.cuh); all lanes call. */
template <bool FP4>
GPU_FN void operand_codes(uint8_t *codes, int64_t n_rows, int64_t n, int64_t row, int b,
                          const struct gpu_quad &v)
{
    int lane = gpu_lane();
    float top = fmaxf(fmaxf(fabsf(v.v[0]), fabsf(v.v[1])), fmaxf(fabsf(v.v[2]), fabsf(v.v[3])));
    uint32_t code = gpu_fp8_code(wave_max(top)), c[4];
    float down = gpu_e8m0(254 - code);
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = gpu_e4m3_encode(v.v[i] * down);
    uint8_t *out = codes + row * n + b * LIN_BLOCK;
    if (FP4) {
        uint16_t *at = (uint16_t *)(void *)(out + 32 * (lane / 8) + 2 * (lane % 8));
        at[0] = (uint16_t)(c[0] | c[2] << 8);
        at[8] = (uint16_t)(c[1] | c[3] << 8);
    } else {
        int q = lane / 8, step = lane / 2 % 4, half = lane % 2;
        ((uint32_t *)(void *)out)[(2 * step + half) * 4 + q] =
            c[0] | c[1] << 8 | c[2] << 16 | c[3] << 24;
    }
    if (lane == 0)
        ((float *)(void *)(codes + n_rows * n))[row * (n / LIN_BLOCK) + b] = gpu_e8m0(code);
}

/* Whether a product with m may run here: a question of the model, never of the rows. */
bool sm90_mat(const struct mat *m, int groups, bool segments);

#endif
