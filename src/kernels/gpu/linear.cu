/* linear.cu - matrix products: operands in bf16, then one launch for all products of an input. */
#include "kernels/gpu/linear.cuh"

/* ---------------------------------------------------------------- operands */

GPU_KERNEL void prepare_kernel(struct lin_input in)
{
    gpu_start();
    lin_prepare_part(in, (int)blockIdx.x);
}

void lin_prepare(struct stream *s, const struct lin_input *in)
{
    if (in->raw || in->grid)
        gpu_launch_early(prepare_kernel, lin_prepare_blocks(in), LIN_THREADS, 0, s, *in);
}

/* ---------------------------------------------------------------- products */

void lin_add(struct lin_batch *b, const struct mat *w, int groups, const uint16_t *x, int n_rows,
             float *y, int64_t ldy, unsigned flags)
{
    FST_ASSERT(b->n < LIN_JOBS);
    FST_ASSERT(lin_coded(w->fmt) || w->fmt == WEIGHT_BF16 || w->fmt == WEIGHT_F32);
    FST_ASSERT(w->fmt != WEIGHT_FP4 || w->n_in % 32 == 0);
    FST_ASSERT(!(flags & LIN_SEGMENTS) || w->n_in % KERN_SEGMENTS == 0);
    /* a wave's two outputs read the same inputs */
    FST_ASSERT(groups == 1 || w->n_out % (2 * groups) == 0);
    FST_ASSERT((int64_t)n_rows * groups * w->n_in <= INT32_MAX);
    struct lin_job j = {*w, x, y, ldy, groups * w->n_in, n_rows, w->n_out / groups, 0, flags};
    b->job[b->n++] = j;
}

/* Outputs o and o+1 of rows row .. row+R-1. */
template <int R> GPU_FN void product(const struct lin_job &j, int row, int o)
{
    struct lin_pair w;
    int at[R], next = o + 1 < j.w.n_out ? o + 1 : o;
    lin_put(&w, 0, j.w, o);
    lin_put(&w, 1, j.w, next);
    GPU_UNROLL
    for (int r = 0; r < R; r++)
        at[r] = (row + r < j.n_rows ? row + r : j.n_rows - 1) * j.ldx + o / j.group * j.w.n_in;
    float v = lin_sums<R>(w, j.x, at, j.flags & LIN_SEGMENTS);
    int i = gpu_lane(), out = o + i % 2;
    row += i / 2;
    if (i < 2 * R && row < j.n_rows && out < j.w.n_out)
        j.y[row * j.ldy + out] = j.flags & LIN_ROUND ? gpu_bf16(v) : v;
}

/* Row tiles of the same outputs are neighbours: their weights come from memory once. */
template <int R> GPU_KERNEL void GPU_BOUNDS(LIN_THREADS, 2) product_kernel(struct lin_batch b)
{
    gpu_start();
    int block = (int)blockIdx.x, i = 0;
    while (block >= b.job[i].blocks)
        block -= b.job[i++].blocks;
    const struct lin_job &j = b.job[i];
    int tiles = (j.n_rows + R - 1) / R, o = 2 * (block / tiles * gpu_waves() + gpu_wave());
    if (o < j.w.n_out)
        product<R>(j, block % tiles * R, o);
}

/* Blocks of all jobs when a block makes `outs` outputs of `rows` rows. */
static int64_t share_out(struct lin_batch *b, int outs, int rows)
{
    int64_t grid = 0;
    for (int i = 0; i < b->n; i++) {
        struct lin_job *j = &b->job[i];
        int64_t blocks = div_up(j->w.n_out, outs) * div_up(j->n_rows, rows);
        FST_ASSERT(blocks <= INT32_MAX);
        j->blocks = (int)blocks;
        grid += blocks;
    }
    return grid;
}

/* Small blocks where there is little to do, so that all of a card does it. */
template <int R> static void run(struct stream *s, struct lin_batch *b)
{
    int threads = R < LIN_TILE ? LIN_THREADS / 2 : LIN_THREADS;
    int64_t grid = share_out(b, 2 * threads / GPU_WAVE, R);
    while (grid < LIN_FILL && threads > GPU_WAVE) {
        threads /= 2;
        grid = share_out(b, 2 * threads / GPU_WAVE, R);
    }
    gpu_launch_early(product_kernel<R>, grid, threads, 0, s, *b);
}

void lin_run(struct stream *s, struct lin_batch *b)
{
    int rows = 0;
    for (int i = 0; i < b->n; i++)
        rows = FST_MAX(rows, b->job[i].n_rows);
    if (rows <= 1)
        run<1>(s, b);
    else if (rows <= 2)
        run<2>(s, b);
    else if (rows <= 4)
        run<4>(s, b);
    else
        run<LIN_TILE>(s, b);
}

void lin_make(struct stream *s, const struct lin_input *in, struct lin_batch *b)
{
    lin_prepare(s, in);
    lin_run(s, b);
}

size_t gpu_linear_scratch(const struct kernel_limits *l)
{
    size_t most = FST_MAX(lin_project_scratch(l), lin_experts_scratch(l));
    return FST_MAX(most, lin_head_scratch(l));
}
