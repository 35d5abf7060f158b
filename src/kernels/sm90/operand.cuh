/* operand.cuh - where the inputs of Hopper's products lie: no instructions of its own, for the emulation too. */
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
