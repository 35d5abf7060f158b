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
    return {codes + row * n, scales + row * (n / LIN_BLOCK), STREAM_LINE, 1, 0};
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
GPU_BOTH struct row_tile row_tile(int n_rows, int t)
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
    return {codes + first * n + r * STREAM_LINE, scales + first * (n / LIN_BLOCK) + r,
            (int64_t)n8 * STREAM_LINE, n8, r & 7};
}

/* Row `row` of an operand of n_rows rows of n bytes, wherever it lies. */
GPU_FN struct operand_place operand_at(uint8_t *codes, int n_rows, int64_t n, int row)
{
    if (n_rows < MANY)
        return operand_row(codes, n_rows, n, row);
    struct row_tile t = row_tile(n_rows, row / row_tile_rows(n_rows));
    return operand_in_tile(codes, operand_rows(n_rows), n, t.first, t.n8, row - t.first);
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
    if (row < j.n_rows && o < j.w.n_out)
        j.y[row * j.ldy + o] = j.flags & LIN_ROUND ? gpu_bf16(v) : v;
}

/* lin_run for batches whose operands all lie in tiles (tiles.cu). */
void sm90_run_tiles(struct stream *s, struct lin_batch *b);

/* Whether a product with m may run here: a question of the model, never of the rows. */
bool sm90_mat(const struct mat *m, int groups, bool segments);

#endif
