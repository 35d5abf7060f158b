/* linear.cu - matrix products of activations for Hopper: operands, then one launch for all products of
 * an input.
 *
 * The functions of kernels/gpu/linear.cuh, under which kernels/gpu/project.cu is compiled once more
 * (project.cu here).  An operand is what stream.cuh multiplies: `grid` holds a row's E4M3 codes, and
 * behind all rows their scales, one float per 128 values; `raw` holds bf16.
 *
 * A warpgroup multiplies 64 outputs by up to 64 input rows over one slice of K; K is cut into 1, 2, 4 or
 * 8 slices, by the matrix alone, so that every matrix keeps a card busy at one row.  Four slices of
 * a tile are warpgroups of one block, eight a cluster of two; their sums are added as a tree. */
#include "kernels/sm90/linear.cuh"

/* ---------------------------------------------------------------- operands */

/* A wave takes E times 128 values of a row: one at a few rows, where each waits for its own; of many rows
 * more, whose loads are under way together. */
template <int E> GPU_KERNEL void prepare_kernel(struct lin_input in)
{
    gpu_let_next();
    gpu_wait_before();
    int parts = in.n_in / LIN_BLOCK / E, unit = (int)blockIdx.x * gpu_waves() + gpu_wave();
    int row = unit / parts, b0 = unit % parts * E;
    if (row >= in.n_rows)
        return;
    int64_t from = in.pick ? in.pick[row] : row;
    const float *x = in.x + from * in.ldx + b0 * LIN_BLOCK + 4 * gpu_lane();
    struct gpu_quad v[E];
#pragma unroll
    for (int i = 0; i < E; i++)
        v[i] = gpu_load4(x + i * LIN_BLOCK);
    if (in.raw) {
        struct operand_place to =
            operand_at((uint8_t *)in.raw, in.n_rows, 2 * (int64_t)in.n_in, row);
#pragma unroll
        for (int i = 0; i < E; i++)
            operand_bf16(to, b0 + i, v[i]);
    }
    if (in.grid) {
        struct operand_place to = operand_at((uint8_t *)in.grid, in.n_rows, in.n_in, row);
#pragma unroll
        for (int i = 0; i < E; i++)
            operand_codes<false>(to, b0 + i, v[i]);
    }
}

/* Waves of a block; blocks of 128 values of a wave where even so there are waves for every place on the
 * card, 64 on each processor. */
enum { PREPARERS = 4, TOGETHER = 8, PREPARE_MANY = 132 * 64 * TOGETHER };

void lin_prepare(struct stream *s, const struct lin_input *in)
{
    int blocks = in->n_in / LIN_BLOCK;
    int64_t waves = (int64_t)in->n_rows * blocks;
    bool many = waves >= PREPARE_MANY && blocks % TOGETHER == 0;
    if (!in->x || !(in->raw || in->grid))
        return;
    if (many)
        sm90_launch(prepare_kernel<TOGETHER>, div_up(waves / TOGETHER, PREPARERS), 32 * PREPARERS,
                    0, 1, s, *in);
    else
        sm90_launch(prepare_kernel<1>, div_up(waves, PREPARERS), 32 * PREPARERS, 0, 1, s, *in);
}

void lin_leave_rows(struct stream *s, const float *x, int n_rows, int n, void *operand)
{
    struct operand_forms f = operand_forms_of(operand, n_rows, n);
    struct lin_input in = {x, NULL, n, n_rows, n, NULL, (uint16_t *)(void *)f.fp8};
    FST_ASSERT(n_rows <= OPERAND_FEW && n % OPERAND_BLOCK == 0);
    lin_prepare(s, &in);
}

/* ---------------------------------------------------------------- products */

void lin_add(struct lin_batch *b, const struct mat *w, int groups, const uint16_t *x, int n_rows,
             float *y, int64_t ldy, unsigned flags)
{
    FST_ASSERT(b->n < LIN_JOBS);
    struct lin_job j = {*w, x, y, ldy, groups * w->n_in, n_rows, w->n_out / groups, 0, flags};
    b->job[b->n++] = j;
}

/* Slices side by side in a block, as many as there are up to four; the others are blocks of its
 * cluster. */
enum { GROUPS_MAX = 4 };
GPU_BOTH int slices_here(int n)
{
    return n < GROUPS_MAX ? n : (int)GROUPS_MAX;
}

/* A warpgroup's part of job j: 64 outputs from o, input rows from `row`, slice `slice` of n. */
struct lin_part {
    int o, row, slice, n;
};

/* Of group `group` of block `block` of the job. */
template <int N> GPU_FN struct lin_part lin_part_of(const struct lin_job &j, int block, int group)
{
    struct lin_part p;
    int tiles = (j.n_rows + N - 1) / N;
    p.n = slices(j);
    int here = slices_here(p.n), blocks = p.n / here;
    p.slice = block % blocks * here + group % here;
    block = block / blocks * (blockDim.x / STREAM_THREADS / here) + group / here;
    p.o = block / tiles * STREAM_ROWS;
    p.row = block % tiles * N;
    return p;
}

template <int N>
GPU_FN struct stream_tile lin_tile(const struct lin_job &j, const struct lin_part &p, bool wide)
{
    struct stream_tile t = {};
    int k = j.w.n_in, values = k / p.n, first = p.slice * values, left = j.w.n_out - p.o - 1;
    int bytes = j.w.fmt == WEIGHT_BF16 ? 2 : 1; /* of a value */
    int group = p.o / j.group * k;              /* values of an input row before its group's */
    t.pitch = (int64_t)k * bytes;
    t.w[0] = (const uint8_t *)j.w.data + p.o * t.pitch + (int64_t)first * bytes;
    t.w[1] = t.w[0] + (left >= 8 ? 8 * t.pitch : 0);
    t.last[0] = left;
    t.last[1] = left >= 8 ? left - 8 : 0;
    t.step = 16;
    if (j.w.fmt == WEIGHT_FP8)
        t.s[0] = t.s[1] = j.w.scale + (int64_t)(p.o / 128) * (k / 128) + first / 128;
    bool coded = j.w.fmt == WEIGHT_FP8 && !wide;
    t.x = (const uint8_t *)j.x + (int64_t)(group + first) * (coded ? 1 : 2);
    t.x_pitch = (int64_t)j.ldx * (coded ? 1 : 2);
    t.xs = operand_scales((const uint8_t *)j.x, j.n_rows, j.ldx) + first / 128;
    t.xs_pitch = j.ldx / 128;
    t.n = min(N, j.n_rows - p.row);
    t.values = values;
    return t;
}

/* One slice alone: straight from the registers. */
template <int N>
GPU_FN void lin_put_sums(const struct lin_job &j, const struct lin_part &p,
                         const float (&acc)[N / 2])
{
    int t = group_thread(), o = p.o + t / 32 * 16 + t / 4 % 8, row = p.row + 2 * (t % 4);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        lin_store(j, row + i / 4 * 8 + i % 2, o + i / 2 % 2 * 8, acc[i]);
}

/* This block's sums to its shared memory, as [row][output]; the pitch keeps banks apart. */
enum { SUM_PITCH = STREAM_ROWS + 4 };
template <int N> GPU_FN void lin_share(float *sums, const float (&acc)[N / 2])
{
    int t = group_thread(), o = t / 32 * 16 + t / 4 % 8, row = 2 * (t % 4);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sums[(row + i / 4 * 8 + i % 2) * SUM_PITCH + o + i / 2 % 2 * 8] = acc[i];
}

/* The slices' sums as a tree; the groups of a tile share its values.  `shared`: the block's, `bytes` a
 * group. */
template <int N>
GPU_FN void lin_join(const struct lin_job &j, const struct lin_part &p, const uint8_t *shared,
                     int bytes)
{
    int here = slices_here(p.n), blocks = p.n / here, rows = min(N, j.n_rows - p.row);
    int first = group_of() / here * here; /* group of slice 0 of a block */
    int rank = p.slice / here, block0 = (int)blockIdx.x % 2 - rank;
    for (int i = p.slice * STREAM_THREADS + group_thread(); i < rows * STREAM_ROWS;
         i += p.n * STREAM_THREADS) {
        int row = i / STREAM_ROWS, o = i % STREAM_ROWS;
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint8_t *group = shared + (first + k % GROUPS_MAX) * bytes;
            const float *sum = (const float *)(const void *)group + row * SUM_PITCH + o;
            v[k] = 0;
            if (k < p.n)
                v[k] = blocks == 1 ? *sum : cluster_load(shared_at(sum), block0 + k / GROUPS_MAX);
        }
        float low = (v[0] + v[1]) + (v[2] + v[3]), high = (v[4] + v[5]) + (v[6] + v[7]);
        lin_store(j, p.row + row, p.o + o, low + high);
    }
}

/* The same with four slices as the next product's operand: the two blocks of a cluster have the 128 outputs
 * that share a scale, 16 lanes a row's 64 of a block.  All threads of both call. */
template <int N>
GPU_FN void lin_join_codes(const struct lin_job &j, const struct lin_part &p, const uint8_t *shared,
                           int bytes)
{
    static_assert(N * STREAM_ROWS / 4 <= GROUPS_MAX * STREAM_THREADS, "a quad a thread");
    GPU_SHARED uint32_t tops[N];
    int row = (int)threadIdx.x / 16, o = (int)threadIdx.x % 16 * 4;
    int quad = (p.o % OPERAND_BLOCK + o) / 4; /* of the 128 */
    bool there = row < j.n_rows;
    struct gpu_quad v = {};
    if (there) {
        struct gpu_quad s[GROUPS_MAX];
#pragma unroll
        for (int k = 0; k < GROUPS_MAX; k++)
            s[k] =
                gpu_load4((const float *)(const void *)(shared + k * bytes) + row * SUM_PITCH + o);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = (s[0].v[i] + s[1].v[i]) + (s[2].v[i] + s[3].v[i]);
            v.v[i] = gpu_bf16(sum + 0.0f); /* lin_join's other half */
        }
    }
    float most = fmaxf(fmaxf(fabsf(v.v[0]), fabsf(v.v[1])), fmaxf(fabsf(v.v[2]), fabsf(v.v[3])));
    uint32_t top = gpu_bits(most);
#pragma unroll
    for (int m = 1; m < 16; m *= 2)
        top = max(top, gpu_shfl_xor(top, m));
    if (there && o == 0)
        tops[row] = top;
    __syncwarp();
    cluster_sync();
    if (there) {
        top = max(top, gpu_bits(cluster_load(shared_at(&tops[row]), (int)blockIdx.x % 2 ^ 1)));
        uint32_t code = gpu_fp8_code(gpu_float(top));
        float down = gpu_e8m0(254 - code);
        struct operand_place to = operand_row((uint8_t *)j.y, j.n_rows, j.w.n_out, row);
        int block = p.o / OPERAND_BLOCK;
        *(uint32_t *)(void *)(to.line + block * to.pitch + operand_word_at<false>(0, quad)) =
            e4m3_pair(v.v[0] * down, v.v[1] * down) | e4m3_pair(v.v[2] * down, v.v[3] * down) << 16;
        if (quad == 0)
            to.scale[block] = gpu_e8m0(code);
    }
    __syncwarp(); /* the cluster's barriers are for whole warps */
}

template <int N>
GPU_FN void lin_sums(float (&acc)[N / 2], const struct lin_job &j, const struct stream_tile &t,
                     uint8_t *shared)
{
    if (j.w.fmt == WEIGHT_BF16)
        stream_sum<FORM_BF16, N, 0>(acc, t, shared);
    else if (j.flags & LIN_WIDE)
        stream_sum<FORM_WIDE, N, 0>(acc, t, shared);
    else
        stream_sum<FORM_FP8, N, 0>(acc, t, shared);
}

/* GROUPS warpgroups; clusters of two blocks with more than one. */
template <int N, int GROUPS>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS *GROUPS, N <= 16       ? 4 / GROUPS
                                                          : GROUPS == 1 ? 3
                                                                        : 1)
    product_kernel(const __grid_constant__ struct lin_batch b)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED int row_of[GROUPS][N];
    int block = (int)blockIdx.x, i = 0;
    gpu_let_next();
    while (block >= b.job[i].blocks)
        block -= b.job[i++].blocks;
    const struct lin_job &j = b.job[i];
    struct lin_part p = lin_part_of<N>(j, block, group_of());
    uint8_t *own = shared + group_of() * group_bytes<N>();
    float acc[N / 2];
    bool mine = p.o < j.w.n_out; /* a job's last blocks may be wider than it */
    if (mine) {
        struct stream_tile t = lin_tile<N>(j, p, j.flags & LIN_WIDE);
        t.row = row_of[group_of()];
        for (int r = group_thread(); r < N; r += STREAM_THREADS)
            row_of[group_of()][r] = p.row + r;
        lin_sums<N>(acc, j, t, own);
        if (p.n == 1)
            lin_put_sums<N>(j, p, acc);
        else
            lin_share<N>((float *)(void *)own, acc);
    } else
        gpu_wait_before();
    if (GROUPS == 1)
        return;
    cluster_sync();
    if (j.flags & LIN_CODES)
        lin_join_codes<N>(j, p, shared, (int)group_bytes<N>());
    else if (mine && p.n > 1)
        lin_join<N>(j, p, shared, (int)group_bytes<N>());
    cluster_sync(); /* nobody leaves while others read its sums */
}

template <int N, int GROUPS> static void launch(struct stream *s, struct lin_batch *b)
{
    int64_t grid = 0;
    for (int i = 0; i < b->n; i++) {
        struct lin_job *j = &b->job[i];
        int64_t parts = div_up(j->w.n_out, STREAM_ROWS) * div_up(j->n_rows, N) * slices(*j);
        int64_t blocks = GROUPS == 1 ? parts : round_up(div_up(parts, GROUPS), 2);
        FST_ASSERT(blocks <= INT32_MAX);
        j->blocks = (int)blocks;
        grid += blocks;
    }
    sm90_launch(product_kernel<N, GROUPS>, grid, STREAM_THREADS * GROUPS, GROUPS * group_bytes<N>(),
                GROUPS == 1 ? 1 : 2, s, *b);
}

template <int N> static void run(struct stream *s, struct lin_batch *b)
{
    bool sliced = false;
    for (int i = 0; i < b->n; i++)
        sliced = sliced || slices(b->job[i]) > 1;
    if (sliced)
        launch<N, GROUPS_MAX>(s, b);
    else
        launch<N, 1>(s, b);
}

void lin_run(struct stream *s, struct lin_batch *b)
{
    int rows = b->n ? b->job[0].n_rows : 0;
    for (int i = 0; i < b->n; i++) /* an operand's layout, and so the kernel, is chosen by them */
        FST_ASSERT(b->job[i].n_rows == rows);
    if (rows >= MANY)
        sm90_run_tiles(s, b);
    else if (rows <= 8)
        run<8>(s, b);
    else if (rows <= 16)
        run<16>(s, b);
    else
        run<32>(s, b);
}

void lin_make(struct stream *s, const struct lin_input *in, struct lin_batch *b)
{
    lin_prepare(s, in);
    lin_run(s, b);
}

bool lin_leaves_codes(const struct mat *w, int n_rows)
{
    struct lin_job j = {};
    j.w = *w;
    return n_rows <= OPERAND_FEW && w->n_out % OPERAND_BLOCK == 0 && slices(j) == GROUPS_MAX;
}

/* ---------------------------------------------------------------- what is fast here */

bool sm90_mat(const struct mat *m, int groups, bool segments)
{
    if (!gpu_there(m))
        return true;
    bool form = m->fmt == WEIGHT_FP8 || m->fmt == WEIGHT_BF16;
    int slices = segments ? (int)KERN_SEGMENTS : 1;
    return form && m->n_in % (128 * slices) == 0 && m->n_out % groups == 0 &&
           (groups == 1 || m->n_out / groups % STREAM_ROWS == 0);
}
