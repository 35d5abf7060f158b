/* seam.cu - between two sublayers, in two launches.
 *
 * write_kernel  a block takes a piece of 32 columns of a few rows: writes the sublayer back into the
 *               four streams and leaves the piece's share of the 24 control products and of the sum
 *               of squares in scratch.  The rows of a block share one load of `fn`.
 * mix_kernel    two blocks per row add up the pieces: one makes the next sublayer's input, the other
 *               post and comb, whose many dependent steps take about as long.
 *
 * What belongs to the model is loaded before the wait for the kernel in front: it comes from memory, the
 * activations from the second-level cache.
 *
 * Order of a control product: 16 products per lane (streams in order, 4 columns each), 8 lanes of a
 * piece as a tree; pieces p, p + wave, .. per lane, ascending; lanes of the wave as a tree. */
#include "kernels/gpu/linear.cuh"

enum {
    COLUMNS = 32, /* of a piece */
    SLICES = 8,   /* lanes that share a sum */
    WRITERS = KERN_MIX * SLICES,
    ROWS = WRITERS / COLUMNS, /* that are written at a time */
    SQUARES = KERN_MIX / 4,   /* quad of a piece's sums that has the sum of squares, first */
    PITCH = KERN_MIX + 4,     /* floats of a piece's sums: pre, post, comb, squares */
    SPLIT = 4,                /* blocks that share few rows of a piece */
    BLOCKS = 6,               /* write_kernel's on a processor: registers */
    RESIDENT = 132 * BLOCKS,
    MIXERS = 512, /* threads of mix_kernel that share a row's input, of ordinary widths */
    MIXERS_WIDE = 1024,
    ITEMS_WIDE = 12 /* quads of it that a thread has, at most */
};

struct seam_job {
    struct seam_args a;
    float *part; /* (n_rows, pieces, PITCH) */
    int pieces, tile;
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
    float *part = j.part + (first * j.pieces + piece) * PITCH;
    int64_t next_part = (int64_t)j.pieces * PITCH; /* of the next row */
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
        if (mine < rows && column == 0)
            part[(r0 + mine) * next_part + 4 * SQUARES] = square;
        gpu_sync(); /* one for a tile: who writes a half again has passed the barrier between */
        for (int r = 0; r < rows; r++) {
            float s = piece_sum(shared[half][r], fn, slice);
            if (slice == 0)
                part[(r0 + r) * next_part + output] = s;
        }
    }
}

/* ---------------------------------------------------------------- second launch: mix, input */

/* Sums 4*quad .. of a row, by one wave: sum 4*quad + i in the lanes that are i modulo 4. */
GPU_FN float add_pieces(const struct seam_job *j, int64_t row, int quad)
{
    const float *part = j->part + row * j->pieces * PITCH + 4 * quad;
    float sum[4] = {0, 0, 0, 0};
    for (int p0 = 0; p0 < j->pieces; p0 += 4 * GPU_WAVE) {
        struct gpu_quad q[4] = {};
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            int p = p0 + i * GPU_WAVE + gpu_lane();
            if (p < j->pieces)
                q[i] = gpu_load4(part + (int64_t)p * PITCH);
        }
        GPU_UNROLL
        for (int i = 0; i < 16; i++)
            sum[i % 4] += q[i / 4].v[i % 4];
    }
    return lin_fold<4>(sum, 1);
}

/* Sums 4*first .. of `quads` quads of a row into `sum` (shared), then four more, the first of them that of
 * the squares.  A wave per four. */
GPU_FN void add_row(const struct seam_job *j, int64_t row, int first, int quads, float *sum)
{
    for (int i = gpu_wave(); i <= quads; i += gpu_waves()) {
        float s = add_pieces(j, row, i == quads ? (int)SQUARES : first + i);
        if (gpu_lane() < 4)
            sum[4 * i + gpu_lane()] = s;
    }
    gpu_sync();
}

/* Scale and base of a control value. */
struct terms {
    float scale, base;
};
GPU_FN struct terms load_terms(const struct seam_args *a, int i)
{
    struct terms c = {a->scale[i < 4 ? 0 : i < 8 ? 1 : 2], a->base[i]};
    return c;
}
GPU_FN float control(const struct seam_args *a, struct terms c, float sum, float squares)
{
    float rho = 1.0f / sqrtf(squares / (float)(KERN_HC * a->dim) + a->norm_eps);
    return sum * rho * c.scale + c.base;
}

/* c[k] = 1/(sum_i m_ik r_i + eps/c[k]), for columns or (rows) the other way round; g: the inverses.
 * Returns the largest change of g over g. */
GPU_FN float sinkhorn_half(const float m[KERN_HC][KERN_HC], bool rows, const float r[KERN_HC],
                           float c[KERN_HC], float g[KERN_HC], float eps)
{
    float change = 0;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++) {
        float v[KERN_HC];
        GPU_UNROLL
        for (int i = 0; i < KERN_HC; i++)
            v[i] = rows ? m[k][i] : m[i][k];
        float low = fmaf(v[1], r[1], fmaf(v[0], r[0], eps * g[k]));
        float sum = low + fmaf(v[3], r[3], v[2] * r[2]);
        c[k] = gpu_inverse(sum);
        change = fmaxf(change, fabsf(sum - g[k]) * c[k]);
        g[k] = sum;
    }
    return change;
}

/* The normalised matrix is r[j]*m[j][k]*c[k] all the way: a round changes eight factors and leaves the
 * sixteen values alone.  Rounds end early when they change nothing any more that a float shows: 2^-21
 * of a factor, of which the rounds left out, each smaller than the one before, are at most 16. */
GPU_FN void sinkhorn(float m[KERN_HC][KERN_HC], int iters, float eps)
{
    const float still = 0x1p-21f;
    float r[KERN_HC] = {1, 1, 1, 1}, c[KERN_HC] = {1, 1, 1, 1};
    float rg[KERN_HC] = {1, 1, 1, 1}, cg[KERN_HC] = {1, 1, 1, 1}, change = 1;
    for (int it = 0; it < iters && (it % 4 != 0 || change > still); it++) {
        if (it)
            sinkhorn_half(m, true, c, r, rg, eps);
        change = sinkhorn_half(m, false, r, c, cg, eps);
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

/* Post and comb of a row.  After the sums one wave goes on, all lanes of it alike. */
GPU_FN void comb_block(const struct seam_job *j, int64_t row)
{
    GPU_SHARED float sum[KERN_MIX];
    const struct seam_args *a = &j->a;
    float *mix = a->mix + row * KERN_MIX, m[KERN_HC][KERN_HC];
    int lane = gpu_lane(), i = 4 + lane % 20; /* lanes 0..3: post; 4..19: comb; the rest repeats */
    struct terms of = load_terms(a, i);
    gpu_wait_before();
    add_row(j, row, 1, KERN_MIX / 4 - 1, sum);
    if (gpu_wave())
        return;
    float z = control(a, of, sum[i - 4], sum[KERN_MIX - 4]), e = soft_entry(z, a->hc_eps);
    if (lane < 4)
        mix[i] = 2 * gpu_sigmoid(z);
    GPU_UNROLL
    for (int k = 0; k < 16; k++)
        m[k / 4][k % 4] = gpu_float(gpu_shfl(gpu_bits(e), 4 + k));
    sinkhorn(m, a->iters, a->hc_eps);
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++) {
        struct gpu_quad q = {{m[k][0], m[k][1], m[k][2], m[k][3]}};
        if (lane == k)
            gpu_store4(mix + 8 + 4 * k, q);
    }
}

/* u of four columns in place of stream 0; returns the sum of its squares. */
GPU_FN float collapse(struct gpu_quad x[KERN_HC], const float pre[KERN_HC])
{
    float squares = 0;
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        float s = pre[0] * x[0].v[i];
        for (int k = 1; k < KERN_HC; k++)
            s = fmaf(pre[k], x[k].v[i], s);
        x[0].v[i] = gpu_bf16(s);
        squares = fmaf(x[0].v[i], x[0].v[i], squares);
    }
    return squares;
}

/* Pre and the normed input of a row; thread t has quads t, t + threads, .. of it. */
template <int N> GPU_FN void input_block(const struct seam_job *j, int64_t row)
{
    GPU_SHARED float sum[8], pre[KERN_HC], waves[1024 / 32];
    const struct seam_args *a = &j->a;
    const float *x = a->x + row * KERN_HC * a->dim;
    int tid = (int)threadIdx.x, step = 4 * (int)blockDim.x;
    struct terms of = load_terms(a, tid % KERN_HC);
    struct gpu_quad in[N][KERN_HC] = {}, norm[N] = {};
    float squares = 0;
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        if (4 * tid + i * step < a->dim)
            norm[i] = gpu_load4(a->norm + 4 * tid + i * step);
    gpu_wait_before();
    GPU_UNROLL
    for (int i = 0; i < N; i++) /* under way while the sums are made */
        for (int k = 0; k < KERN_HC; k++)
            if (4 * tid + i * step < a->dim)
                in[i][k] = gpu_load4(x + (int64_t)k * a->dim + 4 * tid + i * step);
    add_row(j, row, 0, 1, sum);
    if (tid < KERN_HC) {
        pre[tid] = gpu_sigmoid(control(a, of, sum[tid], sum[4])) + a->hc_eps;
        a->mix[row * KERN_MIX + tid] = pre[tid];
    }
    gpu_sync();
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        squares += collapse(in[i], pre);
    squares = block_sum(squares, waves);
    float r = 1.0f / sqrtf(squares / (float)a->dim + a->norm_eps);
    GPU_UNROLL
    for (int i = 0; i < N; i++) {
        for (int m = 0; m < 4; m++)
            in[i][0].v[m] = gpu_bf16(in[i][0].v[m] * r * norm[i].v[m]);
        if (4 * tid + i * step < a->dim)
            gpu_store4(a->out + row * a->dim + 4 * tid + i * step, in[i][0]);
    }
}

template <int N>
GPU_KERNEL void GPU_BOUNDS((int)(N == ITEMS_WIDE ? MIXERS_WIDE : MIXERS), 1)
    mix_kernel(struct seam_job j)
{
    gpu_let_next();
    int64_t row = blockIdx.x / 2;
    if (blockIdx.x % 2)
        input_block<N>(&j, row);
    else
        comb_block(&j, row);
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

template <int N> static void launch_mix(struct stream *s, const struct seam_job *j)
{
    int64_t threads = round_up(div_up(j->a.dim / 4, N), 64);
    gpu_launch_early(mix_kernel<N>, 2 * (int64_t)j->a.n_rows, (int)FST_MAX((int64_t)256, threads),
                     0, s, *j);
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
        j.part = gpu_take<float>(&c, (int64_t)a->n_rows * j.pieces * PITCH);
    if (a->fn || a->y || a->capture)
        gpu_launch_early(write_kernel, div_up(a->n_rows, j.tile) * j.pieces, WRITERS, 0, s, j);
    if (a->fn && a->dim <= 4 * MIXERS * 2)
        launch_mix<2>(s, &j);
    else if (a->fn && a->dim <= 4 * MIXERS * 4)
        launch_mix<4>(s, &j);
    else if (a->fn)
        launch_mix<ITEMS_WIDE>(s, &j);
    return gpu_done("seam");
}

size_t gpu_seam_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * div_up(l->dim, COLUMNS) * PITCH, sizeof(float));
}
