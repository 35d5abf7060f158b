/* seam.cu - between two sublayers, in two launches.
 *
 * write_kernel  a block takes a piece of 32 columns of a few rows: writes the sublayer back into the
 *               four streams and leaves the piece's share of the 24 control products and of the sum
 *               of squares in scratch.  The rows of a block share one load of `fn`.
 * mix_kernel    the rest (seam.cuh).
 *
 * What belongs to the model is loaded before the wait for the kernel in front: it comes from memory, the
 * activations from the second-level cache.
 *
 * Order of a control product: 16 products per lane (streams in order, 4 columns each), 8 lanes of a
 * piece as a tree, pieces as in seam.cuh. */
#include "kernels/gpu/seam.cuh"

enum {
    COLUMNS = 32, /* of a piece */
    SLICES = 8,   /* lanes that share a sum */
    WRITERS = KERN_MIX * SLICES,
    ROWS = WRITERS / COLUMNS, /* that are written at a time */
    SPLIT = 4,                /* blocks that share few rows of a piece */
    BLOCKS = 6,               /* write_kernel's on a processor: registers */
    RESIDENT = 132 * BLOCKS
};

/* ---------------------------------------------------------------- first launch: write, products */

/* A column of a row, and this lane's share of the row's mix: post, comb in the row's first 20 lanes. */
struct column {
    float x[KERN_HC], y, mix;
};

GPU_FN void load_column(struct column *c, const struct seam_args *a, int64_t t, int d)
{
    const float *x = a->x + t * KERN_HC * a->dim + d;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        c->x[k] = x[(int64_t)k * a->dim];
    if (!a->y)
        return;
    c->y = a->y[t * a->dim + d];
    c->mix = a->mix[t * KERN_MIX + FST_MIN(4 + d % COLUMNS, KERN_MIX - 1)];
}

/* v[k] = bf16(post[k]*bf16(y) + sum_j comb[j][k]*x[j]), j ascending; all lanes of the wave call. */
GPU_FN void expand(float v[KERN_HC], const struct column *c)
{
    int first = gpu_lane() / COLUMNS * COLUMNS;
    float y = gpu_bf16(c->y);
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++) {
        float s = gpu_float(gpu_shfl(gpu_bits(c->mix), first + k)) * y;
        GPU_UNROLL
        for (int j = 0; j < KERN_HC; j++)
            s = fmaf(gpu_float(gpu_shfl(gpu_bits(c->mix), first + 4 + 4 * j + k)), c->x[j], s);
        v[k] = gpu_bf16(s);
    }
}

/* Column d of row t in all streams: written back (there), captured, handed to the products in v. */
GPU_FN void write_column(const struct column *c, const struct seam_args *a, int64_t t, int d,
                         bool there, float v[KERN_HC])
{
    float *x = a->x + t * KERN_HC * a->dim + d;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        v[k] = c->x[k];
    if (a->y)
        expand(v, c);
    if (there && a->y)
        GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        x[(int64_t)k * a->dim] = v[k];
    if (there && a->capture)
        a->capture[t * a->capture_ld + d] = gpu_bf16(((v[0] + v[1]) + (v[2] + v[3])) * 0.25f);
}

/* The squares of a row's piece, summed over its 32 threads: adjacent lanes of one wave. */
GPU_FN float square_sum(const float v[KERN_HC])
{
    float s = v[0] * v[0];
    for (int k = 1; k < KERN_HC; k++)
        s = fmaf(v[k], v[k], s);
    return wave_sum(s, COLUMNS);
}

/* The piece's share of this thread's output for one row, in all lanes of the slices. */
GPU_FN float piece_sum(const struct gpu_quad x[KERN_HC][COLUMNS / 4],
                       const struct gpu_quad fn[KERN_HC], int slice)
{
    float s = 0;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++) {
        struct gpu_quad q = x[k][slice];
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            s = fmaf(fn[k].v[i], q.v[i], s);
    }
    return wave_sum(s, SLICES);
}

/* The loads of the next rows are under way while the products of these are made. */
GPU_KERNEL void GPU_BOUNDS(WRITERS, BLOCKS) write_kernel(struct seam_job j)
{
    GPU_SHARED struct gpu_quad shared[2][ROWS][KERN_HC][COLUMNS / 4];
    const struct seam_args *a = &j.a;
    int tid = (int)threadIdx.x, output = tid / SLICES, slice = tid % SLICES;
    int mine = tid / COLUMNS, column = tid % COLUMNS;
    int piece = (int)blockIdx.x % j.pieces, d0 = piece * COLUMNS;
    int64_t first = (int64_t)((int)blockIdx.x / j.pieces) * j.tile;
    int n = (int)FST_MIN((int64_t)j.tile, a->n_rows - first);
    float *part = j.part + (first * j.pieces + piece) * SEAM_PITCH;
    int64_t next_part = (int64_t)j.pieces * SEAM_PITCH; /* of the next row */
    struct gpu_quad fn[KERN_HC];
    struct column c = {};
    gpu_let_next();
    for (int k = 0; k < KERN_HC && a->fn; k++)
        fn[k] = gpu_load4(a->fn + (int64_t)(KERN_HC * output + k) * a->dim + d0 + 4 * slice);
    gpu_wait_before();
    if (mine < n)
        load_column(&c, a, first + mine, d0 + column);
    for (int r0 = 0, half = 0; r0 < n; r0 += ROWS, half ^= 1) {
        float v[KERN_HC];
        int rows = FST_MIN((int)ROWS, n - r0);
        write_column(&c, a, first + r0 + mine, d0 + column, mine < rows, v);
        if (r0 + ROWS + mine < n)
            load_column(&c, a, first + r0 + ROWS + mine, d0 + column);
        if (!a->fn)
            continue;
        for (int k = 0; k < KERN_HC; k++)
            shared[half][mine][k][column / 4].v[column % 4] = v[k];
        float square = square_sum(v);
        if (mine < rows && column < 4) /* one of four, the others 0 */
            part[(r0 + mine) * next_part + 4 * SEAM_SQUARES + column] = column ? 0 : square;
        gpu_sync(); /* one for a tile: who writes a half again has passed the barrier between */
        for (int r = 0; r < rows; r++) {
            float s = piece_sum(shared[half][r], fn, slice);
            if (slice == 0)
                part[(r0 + r) * next_part + output] = s;
        }
    }
}

/* ---------------------------------------------------------------- launcher */

/* Rows of a block of write_kernel: a few blocks share the rows while one turn does for each; then as
 * many rows as keep all blocks on the card at once. */
static int tile_of(int n_rows, int pieces)
{
    int64_t most = FST_MAX((int64_t)1, (int64_t)RESIDENT / pieces);
    int64_t tile = FST_MIN(div_up(n_rows, SPLIT), (int64_t)ROWS);
    if (div_up(n_rows, tile) > most)
        tile = round_up(div_up(n_rows, most), ROWS);
    return (int)tile;
}

GPU_ENTRY(seam)
{
    FST_ASSERT(a->dim % (4 * COLUMNS) == 0);
    FST_ASSERT(a->dim <= 4 * MIXERS_WIDE * ITEMS_WIDE);
    struct gpu_cut c = gpu_scratch(s);
    struct seam_job j = {*a, NULL, a->dim / COLUMNS, 1};
    if (a->n_rows <= 0)
        return FST_OK;
    j.tile = tile_of(a->n_rows, j.pieces);
    if (a->fn)
        j.part = gpu_take<float>(&c, (int64_t)a->n_rows * j.pieces * SEAM_PITCH);
    if (a->fn || a->y || a->capture)
        gpu_launch_early(write_kernel, div_up(a->n_rows, j.tile) * j.pieces, WRITERS, 0, s, j);
    if (a->fn)
        seam_mix(s, &j);
    return gpu_done("seam");
}

size_t gpu_seam_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * div_up(l->dim, COLUMNS) * SEAM_PITCH, sizeof(float));
}
