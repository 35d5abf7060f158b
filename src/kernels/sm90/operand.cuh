/* operand.cuh - how the inputs of Hopper's products are written and where they lie, for the emulation too. */
#ifndef FST_KERNELS_SM90_OPERAND_CUH
#define FST_KERNELS_SM90_OPERAND_CUH

#include "kernels/gpu/gpu.h"

enum {
    OPERAND_LINE = 128, /* bytes: 128 codes or 64 bf16 values */
    OPERAND_BLOCK = 128 /* values that share a scale */
};

/* Where an operand row lies: its lines of 128 bytes, and the scales of its blocks; piece p of a line
 * (16 bytes) stands at p ^ swap. */
struct operand_place {
    uint8_t *line;
    float *scale;
    int64_t pitch; /* bytes from line to line */
    int s_pitch, swap;
};

/* Operands of few rows: row after row, scales behind all of them. */
GPU_FN struct operand_place operand_row(uint8_t *codes, int64_t n_rows, int64_t n, int64_t row)
{
    float *scales = (float *)(void *)(codes + n_rows * n);
    return {codes + row * n, scales + row * (n / OPERAND_BLOCK), OPERAND_LINE, 1, 0};
}

/* ---------------------------------------------------------------- operands in tiles */

/* From MANY rows on products are made by tiles.cuh, whose operands lie in tiles: of up to TILE_INPUTS
 * rows, all but the last one of `rows`, a multiple of 8.  Line k of a tile is that of its first row, of its
 * second one and so on, eight rows at a time whole, with pieces swapped as the matrix unit wants them. */
enum { MANY = 33, TILE_INPUTS = 128 };

/* Tile t: rows first .. first+n-1, n8: n up to a multiple of 8. */
struct row_tile {
    int first, n, n8;
};
GPU_BOTH int row_tiles(int n_rows)
{
    return (n_rows + TILE_INPUTS - 1) / TILE_INPUTS;
}
GPU_BOTH int row_tile_rows(int n_rows)
{
    int tiles = row_tiles(n_rows);
    return ((n_rows + tiles - 1) / tiles + 7) / 8 * 8;
}
GPU_BOTH struct row_tile row_tile_of(int n_rows, int t)
{
    int rows = row_tile_rows(n_rows), first = t * rows;
    int n = n_rows - first < rows ? n_rows - first : rows;
    return {first, n, (n + 7) / 8 * 8};
}
/* Rows for which there is room in an operand of n_rows. */
GPU_BOTH int64_t operand_rows(int64_t n_rows)
{
    return (n_rows + 7) / 8 * 8;
}

/* Row r of a tile whose rows begin with row `first` of the operand, `all` rows of n bytes. */
GPU_FN struct operand_place operand_in_tile(uint8_t *codes, int64_t all, int64_t n, int64_t first,
                                            int n8, int r)
{
    float *scales = (float *)(void *)(codes + all * n);
    return {codes + first * n + r * OPERAND_LINE, scales + first * (n / OPERAND_BLOCK) + r,
            (int64_t)n8 * OPERAND_LINE, n8, r & 7};
}

/* Row `row` of an operand of n_rows rows of n bytes, wherever it lies. */
GPU_FN struct operand_place operand_at(uint8_t *codes, int n_rows, int64_t n, int row)
{
    if (n_rows < MANY)
        return operand_row(codes, n_rows, n, row);
    struct row_tile t = row_tile_of(n_rows, row / row_tile_rows(n_rows));
    return operand_in_tile(codes, operand_rows(n_rows), n, t.first, t.n8, row - t.first);
}

/* ---------------------------------------------------------------- values as operands */

/* Two values as E4M3, as gpu_e4m3_encode has them. */
GPU_FN uint32_t e4m3_pair(float low, float high)
{
#if defined(__CUDACC__)
    uint16_t p;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(p) : "f"(high), "f"(low));
    return p;
#else
    return gpu_e4m3_encode(low) | gpu_e4m3_encode(high) << 8;
#endif
}

/* The largest over the wave. */
GPU_FN uint32_t operand_largest(uint32_t v)
{
#if defined(__CUDACC__)
    return __reduce_max_sync(0xffffffffu, v);
#else
    for (int m = 1; m < GPU_WAVE; m *= 2) {
        uint32_t other = gpu_shfl_xor(v, m);
        v = FST_MAX(v, other);
    }
    return v;
#endif
}

/* Bytes 0 and 2 of a word, or 1 and 3, as its lower half. */
GPU_FN uint32_t operand_half(uint32_t codes, bool odd)
{
#if defined(__CUDACC__)
    return __byte_perm(codes, 0, odd ? 0x4431 : 0x4420);
#else
    codes >>= odd ? 8 : 0;
    return (codes & 0xff) | (codes >> 8 & 0xff00);
#endif
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
    uint32_t code = gpu_fp8_code(gpu_float(operand_largest(gpu_bits(top))));
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
    uint32_t kept = operand_half(codes, odd), other = gpu_shfl_xor(operand_half(codes, !odd), 1);
    return odd ? other | kept << 16 : kept | other << 16;
}
template <bool FP4> GPU_FN int operand_word_at(int swap, int lane = gpu_lane())
{
    return FP4 ? 16 * ((lane / 8 * 2 + lane % 2) ^ swap) + lane % 8 / 2 * 4
               : 16 * (lane % 8 ^ swap) + lane / 8 * 4;
}

/* Block b of an operand row from its codes and the code of its scale; all lanes call. */
template <bool FP4>
GPU_FN void operand_store(const struct operand_place &to, int b, uint32_t codes, uint32_t code)
{
    *(uint32_t *)(void *)(to.line + b * to.pitch + operand_word_at<FP4>(to.swap)) =
        operand_word<FP4>(codes);
    if (gpu_lane() == 0)
        to.scale[b * to.s_pitch] = gpu_e8m0(code);
}
/* From its values. */
template <bool FP4>
GPU_FN void operand_codes(const struct operand_place &to, int b, const struct gpu_quad &v)
{
    uint32_t codes, code = operand_quantise(&codes, v);
    operand_store<FP4>(to, b, codes, code);
}

/* ---------------------------------------------------------------- operands from entry to entry */

/* What operand_bytes (kernels.h) is for: rows one after the other, in the forms that weights ask for. */
enum { OPERAND_FEW = MANY - 1 };
struct operand_forms {
    uint8_t *fp8, *fp4; /* codes, each with its scales behind; qr's: fp8 alone */
    uint8_t *raw;       /* bf16 */
    int32_t *next;      /* two zeros: experts count their items here */
};
GPU_BOTH int64_t operand_codes_bytes(int n_rows, int n)
{
    int64_t all = (int64_t)n_rows * n;
    return (all + all / OPERAND_BLOCK * 4 + 255) / 256 * 256;
}
GPU_BOTH struct operand_forms operand_forms_of(void *p, int n_rows, int n)
{
    uint8_t *fp8 = (uint8_t *)p, *fp4 = fp8 + operand_codes_bytes(n_rows, n);
    uint8_t *raw = fp4 + operand_codes_bytes(n_rows, n);
    return {fp8, fp4, raw, (int32_t *)(void *)(raw + 2 * (int64_t)n_rows * n)};
}
static inline size_t operand_forms_bytes(int n_rows, int n)
{
    int64_t bytes = 2 * operand_codes_bytes(n_rows, n) + 2 * (int64_t)n_rows * n + 8;
    return n % OPERAND_BLOCK ? 0 : (size_t)bytes;
}

/* Block b of row `row` in all forms; all lanes call. */
GPU_FN void operand_leave(const struct operand_forms &f, int n_rows, int n, int64_t row, int b,
                          const struct gpu_quad &v)
{
    uint32_t codes, code = operand_quantise(&codes, v);
    operand_store<false>(operand_row(f.fp8, n_rows, n, row), b, codes, code);
    operand_store<true>(operand_row(f.fp4, n_rows, n, row), b, codes, code);
    operand_bf16(operand_row(f.raw, n_rows, 2 * (int64_t)n, row), b, v);
}

/* ---------------------------------------------------------------- packed heads */

/* Rows that attn_out takes at a time, so that they are an operand of their own: LIN_ROWS. */
enum { PACK_ROWS = 4096 };

/* Row t of packed heads (kernels.h, heads_packed) with `wide` values, of a step of n_rows rows: wo_a's operand. */
GPU_FN struct operand_place packed_heads(float *o, int n_rows, int64_t wide, int t)
{
    int first = t / PACK_ROWS * PACK_ROWS, left = n_rows - first;
    uint8_t *codes = (uint8_t *)(void *)o + first * wide * 2;
    return operand_at(codes, left < PACK_ROWS ? left : (int)PACK_ROWS, wide * 2, t - first);
}

#endif
