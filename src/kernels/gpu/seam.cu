/* seam.cu - between two sublayers, in two launches.
 *
 * write_kernel  a block takes a piece of 32 columns of a few rows: writes the sublayer back into the
 *               four streams and leaves the piece's share of the 24 control products and of the sum
 *               of squares in scratch.  The rows of a block share one load of `fn`.
 * mix_kernel    two blocks per row add up the pieces: one makes the next sublayer's input, the other
 *               post and comb, whose many dependent steps nobody in this launch waits for.
 *
 * Order of a control product: 16 products per lane (streams in order, 4 columns each), 8 lanes of a
 * piece as a tree; 4 pieces in a row per lane, then those 32 further; 8 lanes as a tree. */
#include "kernels/gpu/gpu.h"

enum {
    COLUMNS = 32, /* of a piece */
    SLICES = 8,   /* lanes that share a sum */
    WRITERS = KERN_MIX * SLICES,
    ROWS = WRITERS / COLUMNS, /* that are written at a time */
    TILE_MAX = 4 * ROWS,
    SUMS = KERN_MIX + 1, /* the products, then the sum of squares */
    FILL = 264           /* blocks that keep a large card busy */
};

struct seam_job {
    struct seam_args a;
    float *part; /* (n_rows, SUMS, pieces) */
    int pieces, tile;
};

/* ---------------------------------------------------------------- first launch: write, products */

/* x[k] = bf16(post[k]*bf16(y) + sum_j comb[j][k]*x[j]), j ascending. */
GPU_FN void expand(float x[KERN_HC], float y, const float *mix)
{
    struct gpu_quad post = gpu_load4(mix + 4), comb[KERN_HC];
    float in[KERN_HC];
    for (int j = 0; j < KERN_HC; j++) {
        comb[j] = gpu_load4(mix + 8 + 4 * j);
        in[j] = x[j];
    }
    y = gpu_bf16(y);
    for (int k = 0; k < KERN_HC; k++) {
        float s = post.v[k] * y;
        for (int j = 0; j < KERN_HC; j++)
            s = fmaf(comb[j].v[k], in[j], s);
        x[k] = gpu_bf16(s);
    }
}

/* Column d of row t in all streams: written back, captured, handed to the products in v. */
GPU_FN void write_column(const struct seam_args *a, int64_t t, int d, float v[KERN_HC])
{
    float *x = a->x + t * KERN_HC * a->dim + d;
    for (int k = 0; k < KERN_HC; k++)
        v[k] = x[(int64_t)k * a->dim];
    if (a->y) {
        expand(v, a->y[t * a->dim + d], a->mix + t * KERN_MIX);
        for (int k = 0; k < KERN_HC; k++)
            x[(int64_t)k * a->dim] = v[k];
    }
    if (a->capture)
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

GPU_KERNEL void write_kernel(struct seam_job j)
{
    gpu_start();
    GPU_SHARED struct gpu_quad shared[ROWS][KERN_HC][COLUMNS / 4];
    const struct seam_args *a = &j.a;
    int tid = (int)threadIdx.x, output = tid / SLICES, slice = tid % SLICES;
    int mine = tid / COLUMNS, column = tid % COLUMNS;
    int piece = (int)blockIdx.x % j.pieces, d0 = piece * COLUMNS;
    int64_t first = (int64_t)((int)blockIdx.x / j.pieces) * j.tile;
    int n = (int)FST_MIN((int64_t)j.tile, a->n_rows - first);
    struct gpu_quad fn[KERN_HC];
    for (int k = 0; k < KERN_HC && a->fn; k++)
        fn[k] = gpu_load4(a->fn + (int64_t)(KERN_HC * output + k) * a->dim + d0 + 4 * slice);
    for (int r0 = 0; r0 < n; r0 += ROWS) {
        float v[KERN_HC] = {0, 0, 0, 0};
        int rows = FST_MIN((int)ROWS, n - r0);
        float *part = j.part + (first + r0) * SUMS * j.pieces + piece;
        gpu_sync(); /* the tile before is used up */
        if (mine < rows)
            write_column(a, first + r0 + mine, d0 + column, v);
        if (!a->fn)
            continue;
        for (int k = 0; k < KERN_HC; k++)
            shared[mine][k][column / 4].v[column % 4] = v[k];
        float square = square_sum(v);
        if (mine < rows && column == 0)
            part[((int64_t)mine * SUMS + KERN_MIX) * j.pieces] = square;
        gpu_sync();
        for (int r = 0; r < rows; r++) {
            float s = 0;
            for (int k = 0; k < KERN_HC; k++) {
                struct gpu_quad x = shared[r][k][slice];
                for (int i = 0; i < 4; i++)
                    s = fmaf(fn[k].v[i], x.v[i], s);
            }
            s = wave_sum(s, SLICES);
            if (slice == 0)
                part[((int64_t)r * SUMS + output) * j.pieces] = s;
        }
    }
}

/* ---------------------------------------------------------------- second launch: mix, input */

/* The row's sums first .. first+n-2 and, last of the n, the one of squares, into `sum` (shared). */
GPU_FN void add_pieces(const struct seam_job *j, int64_t row, int first, int n, float *sum)
{
    int i = (int)threadIdx.x / SLICES, slice = (int)threadIdx.x % SLICES;
    int at = i == n - 1 ? (int)KERN_MIX : first + i;
    const float *part = j->part + (row * SUMS + at) * j->pieces;
    float s = 0;
    for (int p = 4 * slice; p < j->pieces && i < n; p += 4 * SLICES) {
        struct gpu_quad q = gpu_load4(part + p);
        for (int m = 0; m < 4; m++)
            s += q.v[m];
    }
    s = wave_sum(s, SLICES);
    if (slice == 0 && i < n)
        sum[i] = s;
    gpu_sync();
}

GPU_FN float control(const struct seam_args *a, float sum, float squares, int i)
{
    float rho = 1.0f / sqrtf(squares / (float)(KERN_HC * a->dim) + a->norm_eps);
    return sum * rho * a->scale[i < 4 ? 0 : i < 8 ? 1 : 2] + a->base[i];
}

/* 4x4 in one thread.  The normalised matrix is r[j]*m[j][k]*c[k] all the way: a round changes eight
 * factors and leaves the sixteen values alone. */
GPU_FN void sinkhorn(float m[KERN_HC][KERN_HC], int iters, float eps)
{
    float r[KERN_HC] = {1, 1, 1, 1}, c[KERN_HC] = {1, 1, 1, 1};
    for (int it = 0; it < iters; it++) {
        for (int i = 0; it && i < KERN_HC; i++) {
            float s = fmaf(m[i][0], c[0], m[i][1] * c[1]) + fmaf(m[i][2], c[2], m[i][3] * c[3]);
            r[i] = gpu_quotient(r[i], fmaf(r[i], s, eps));
        }
        for (int k = 0; k < KERN_HC; k++) {
            float s = fmaf(m[0][k], r[0], m[1][k] * r[1]) + fmaf(m[2][k], r[2], m[3][k] * r[3]);
            c[k] = gpu_quotient(c[k], fmaf(c[k], s, eps));
        }
    }
    for (int i = 0; i < KERN_HC; i++)
        for (int k = 0; k < KERN_HC; k++)
            m[i][k] = r[i] * m[i][k] * c[k];
}

/* Row i/4 of the softmax, entry i%4, plus eps: four adjacent lanes per row. */
GPU_FN float soft_entry(float z, float eps)
{
    float top = fmaxf(z, wave_xor(z, 1));
    top = fmaxf(top, wave_xor(top, 2));
    float e = expf(z - top), s = e + wave_xor(e, 1);
    s = s + wave_xor(s, 2);
    return e / s + eps;
}

/* Post and comb of a row. */
GPU_FN void comb_block(const struct seam_job *j, int64_t row)
{
    GPU_SHARED float sum[SUMS - 4], entry[16];
    const struct seam_args *a = &j->a;
    float *mix = a->mix + row * KERN_MIX, m[KERN_HC][KERN_HC];
    int tid = (int)threadIdx.x;
    add_pieces(j, row, 4, SUMS - 4, sum);
    if (gpu_wave() == 0) {
        int i = 4 + tid % 20; /* lanes 0..3: post; 4..19: comb; the rest repeats */
        float z = control(a, sum[i - 4], sum[SUMS - 5], i), e = soft_entry(z, a->hc_eps);
        if (tid < 4)
            mix[i] = 2 * gpu_sigmoid(z);
        else if (tid < 20)
            entry[tid - 4] = e;
    }
    gpu_sync();
    if (tid)
        return;
    for (int i = 0; i < 16; i++)
        m[i / 4][i % 4] = entry[i];
    sinkhorn(m, a->iters, a->hc_eps);
    for (int i = 0; i < 16; i++)
        mix[8 + i] = m[i / 4][i % 4];
}

GPU_FN void load_columns(struct gpu_quad x[KERN_HC], const float *row, int dim, int d)
{
    for (int k = 0; k < KERN_HC && d < dim; k++)
        x[k] = gpu_load4(row + (int64_t)k * dim + d);
}

/* u of four columns into `u`; returns the sum of its squares. */
GPU_FN float collapse(float *u, const struct gpu_quad x[KERN_HC], const float *pre)
{
    struct gpu_quad q;
    float squares = 0;
    for (int i = 0; i < 4; i++) {
        float s = pre[0] * x[0].v[i];
        for (int k = 1; k < KERN_HC; k++)
            s = fmaf(pre[k], x[k].v[i], s);
        q.v[i] = gpu_bf16(s);
        squares = fmaf(q.v[i], q.v[i], squares);
    }
    gpu_store4(u, q);
    return squares;
}

/* Pre and the normed input of a row. */
GPU_FN void input_block(const struct seam_job *j, int64_t row, float *u)
{
    GPU_SHARED float sum[5], pre[KERN_HC], waves[1024 / GPU_WAVE];
    const struct seam_args *a = &j->a;
    const float *x = a->x + row * KERN_HC * a->dim;
    float *out = a->out + row * a->dim, squares = 0;
    int tid = (int)threadIdx.x, step = 4 * (int)blockDim.x;
    struct gpu_quad in[KERN_HC];
    load_columns(in, x, a->dim, 4 * tid); /* under way while the sums are made */
    add_pieces(j, row, 0, 5, sum);
    if (tid < KERN_HC) {
        pre[tid] = gpu_sigmoid(control(a, sum[tid], sum[4], tid)) + a->hc_eps;
        a->mix[row * KERN_MIX + tid] = pre[tid];
    }
    gpu_sync();
    for (int d = 4 * tid; d < a->dim; d += step) {
        squares += collapse(u + d, in, pre);
        load_columns(in, x, a->dim, d + step);
    }
    squares = block_sum(squares, waves);
    float r = 1.0f / sqrtf(squares / (float)a->dim + a->norm_eps);
    for (int d = 4 * tid; d < a->dim; d += step) {
        struct gpu_quad q = gpu_load4(u + d), w = gpu_load4(a->norm + d);
        for (int i = 0; i < 4; i++)
            q.v[i] = gpu_bf16(q.v[i] * r * w.v[i]);
        gpu_store4(out + d, q);
    }
}

GPU_KERNEL void mix_kernel(struct seam_job j)
{
    gpu_start();
    GPU_DYNAMIC(float, u); /* (dim) */
    int64_t row = blockIdx.x / 2;
    if (blockIdx.x % 2)
        comb_block(&j, row);
    else
        input_block(&j, row, u);
}

/* ---------------------------------------------------------------- launcher */

GPU_ENTRY(seam)
{
    FST_ASSERT(a->dim % (4 * COLUMNS) == 0);
    FST_ASSERT(a->dim <= 48 << 10); /* a row's input in shared memory */
    struct gpu_cut c = gpu_scratch(s);
    struct seam_job j = {*a, NULL, a->dim / COLUMNS, 1};
    int64_t units = (int64_t)a->n_rows * j.pieces;
    j.tile = (int)FST_MAX((int64_t)1, FST_MIN(units / FILL, (int64_t)TILE_MAX));
    if (a->fn)
        j.part = gpu_take<float>(&c, units * SUMS);
    if (a->fn || a->y || a->capture)
        gpu_launch_early(write_kernel, div_up(a->n_rows, j.tile) * j.pieces, WRITERS, 0, s, j);
    if (a->fn) {
        int threads = (int)FST_MAX((int64_t)256, FST_MIN(round_up(a->dim / 4, 64), (int64_t)1024));
        gpu_launch_early(mix_kernel, 2 * (int64_t)a->n_rows, threads, (size_t)a->dim * 4, s, j);
    }
    return gpu_done("seam");
}

size_t gpu_seam_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * div_up(l->dim, COLUMNS) * SUMS, sizeof(float));
}
