/* experts.cu - the routed experts of the rows, FP4, and the shared one, FP8, for Hopper.
 *
 * A visit is one expert's work on one row: v = t*k + slot for the routed ones, n_rows*k + t for the
 * shared one.  Launches: lists and operands; gate and up; hidden values to the E4M3 grid; down; sums.
 * A block multiplies 64 weight rows by up to N visits of one expert (S of the shared one), so that an
 * expert's weights are read once.  Who shares a tile changes no bits: each visit's output is kept
 * apart, and a row's are added in ascending expert order, the shared one last. */
#include "kernels/sm90/linear.cuh"

enum {
    EXPERT_ROWS = 1024, /* rows at a time: bounds the scratch for the visits' outputs */
    EXPERTS_MAX = 512,
    LIST_THREADS = 1024,
    GATES = STREAM_ROWS / 2 /* hidden values of a block: their gate and up rows are its tile */
};

/* Up to N visits of one expert, or S of the shared one: list[first .. first+n-1]. */
struct visit_tile {
    int32_t expert, first, n;
};

struct expert_job {
    struct expert_mats shared;
    const struct expert_mats *experts;
    struct lin_input in;
    const int32_t *expert;
    const float *weight;
    struct visit_tile *tile; /* shared ones first */
    int32_t *n_tiles;
    int32_t *list;
    uint16_t *h;      /* (visits, moe_dim) bf16 */
    uint8_t *h_codes; /* operand of w2 */
    float *z;         /* (visits, dim) */
    float *y;
    int n_rows, k, dim, moe_dim, n_experts, per_tile, per_shared;
    int first_tile; /* of a launch */
    float limit;
};

GPU_BOTH int routed_visits(const struct expert_job &j)
{
    return j.n_rows * j.k;
}
GPU_BOTH int all_visits(const struct expert_job &j)
{
    return j.n_rows * (j.k + 1);
}
GPU_BOTH int shared_tiles(const struct expert_job &j)
{
    return (j.n_rows + j.per_shared - 1) / j.per_shared;
}
/* Routed tiles, at most. */
static int64_t routed_tiles(const struct expert_job &j)
{
    int64_t v = routed_visits(j);
    return FST_MIN(v, j.n_experts + v / j.per_tile);
}

/* ---------------------------------------------------------------- lists and operands */

struct visit_lists {
    int count[EXPERTS_MAX], start[EXPERTS_MAX], tiles[EXPERTS_MAX], wave[LIST_THREADS / 32];
};

/* x[i] of all threads to the sum of those before i; returns the sum of all. */
GPU_FN int sum_before(int *x, int *wave)
{
    int v = *x, lane = gpu_lane(), sum = v, all = 0;
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        int up = __shfl_up_sync(0xffffffffu, sum, m);
        sum += lane >= m ? up : 0;
    }
    __syncthreads();
    if (lane == 31)
        wave[gpu_wave()] = sum;
    __syncthreads();
    for (int w = 0; w < LIST_THREADS / 32; w++) {
        sum += w < gpu_wave() ? wave[w] : 0;
        all += wave[w];
    }
    *x = sum - v;
    return all;
}

/* The visits of each expert side by side, and tiles of them.  Their order within an expert is of no
 * account. */
GPU_FN void make_lists(const struct expert_job &j, struct visit_lists &l)
{
    int t = (int)threadIdx.x, routed = routed_visits(j), shared = shared_tiles(j);
    if (t < EXPERTS_MAX)
        l.count[t] = 0;
    __syncthreads();
    for (int v = t; v < routed; v += LIST_THREADS)
        atomicAdd(&l.count[j.expert[v]], 1);
    __syncthreads();
    int n = t < j.n_experts ? l.count[t] : 0, tiles = (n + j.per_tile - 1) / j.per_tile;
    int start = n, first = tiles;
    sum_before(&start, l.wave);
    int all = sum_before(&first, l.wave);
    if (t < j.n_experts) {
        l.start[t] = start;
        for (int i = 0; i < tiles; i++) {
            struct visit_tile x = {t, start + i * j.per_tile, min(j.per_tile, n - i * j.per_tile)};
            j.tile[shared + first + i] = x;
        }
    }
    if (t == 0)
        *j.n_tiles = shared + all;
    for (int i = t; i < shared; i += LIST_THREADS) {
        struct visit_tile x = {-1, routed + i * j.per_shared,
                               min(j.per_shared, j.n_rows - i * j.per_shared)};
        j.tile[i] = x;
    }
    __syncthreads();
    for (int v = t; v < routed; v += LIST_THREADS)
        j.list[atomicAdd(&l.start[j.expert[v]], 1)] = v;
    for (int i = t; i < j.n_rows; i += LIST_THREADS)
        j.list[routed + i] = routed + i;
}

GPU_KERNEL void __launch_bounds__(LIST_THREADS, 1)
    list_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_SHARED struct visit_lists l;
    gpu_let_next();
    gpu_wait_before();
    if (blockIdx.x == 0) {
        make_lists(j, l);
        return;
    }
    int blocks = j.dim / LIN_BLOCK, unit = ((int)blockIdx.x - 1) * gpu_waves() + gpu_wave();
    int row = unit / blocks, b = unit % blocks;
    if (row < j.n_rows)
        operand_codes((uint8_t *)j.in.grid, j.n_rows, j.dim, row, b,
                      gpu_load4(j.in.x + (int64_t)row * j.dim + b * LIN_BLOCK + 4 * gpu_lane()));
}

/* ---------------------------------------------------------------- gate and up */

GPU_FN struct stream_tile expert_input(const uint8_t *x, int64_t rows, int width, int n)
{
    struct stream_tile t = {};
    t.x = x;
    t.x_pitch = width;
    t.xs = operand_scales(x, rows, width);
    t.xs_pitch = width / LIN_BLOCK;
    t.values = width;
    t.n = n;
    return t;
}

/* Half `h` of tile t: rows from o of matrix m. */
GPU_FN void expert_half(struct stream_tile *t, int h, const struct mat &m, int o, int left)
{
    bool fp4 = m.fmt == WEIGHT_FP4;
    t->pitch = fp4 ? m.n_in / 2 : m.n_in;
    t->s_pitch = m.n_in / 32;
    t->w[h] = (const uint8_t *)m.data + o * t->pitch;
    t->s[h] = m.scale + (fp4 ? (int64_t)o * t->s_pitch
                             : (int64_t)(o / LIN_BLOCK) * ((m.n_in + LIN_BLOCK - 1) / LIN_BLOCK));
    t->last[h] = left;
}

/* Hidden values o .. of the tile's visits.  Thread: gate and up of one value for its visits. */
template <int N>
GPU_FN void put_hidden(const struct expert_job &j, const int *visit, int n, int o0,
                       const float (&acc)[N / 2])
{
    int t = (int)threadIdx.x, o = o0 + t / 32 * 8 + t / 4 % 8, routed = routed_visits(j);
    if (o >= j.moe_dim)
        return;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int c = i / 4 * 8 + 2 * (t % 4) + i % 2;
        if (i & 2 || c >= n)
            continue;
        int v = visit[c];
        float weight = v < routed ? j.weight[v] : 1.0f;
        float a = fminf(gpu_bf16(acc[i]), j.limit);
        float b = fmaxf(-j.limit, fminf(gpu_bf16(acc[i + 2]), j.limit));
        j.h[(int64_t)v * j.moe_dim + o] = gpu_bf16_bits(weight * (a * gpu_sigmoid(a) * b));
    }
}

template <int F, int N>
GPU_FN void hidden(const struct expert_job &j, const struct expert_mats &m,
                   const struct visit_tile &v, int o, uint8_t *shared, int *row, int *visit)
{
    float acc[N / 2];
    struct stream_tile t = expert_input((const uint8_t *)j.in.grid, j.n_rows, j.dim, v.n);
    int routed = routed_visits(j);
    expert_half(&t, 0, m.w1, o, j.moe_dim - o - 1);
    expert_half(&t, 1, m.w3, o, j.moe_dim - o - 1);
    t.step = 8;
    t.row = row;
    for (int i = (int)threadIdx.x; i < v.n; i += STREAM_THREADS) {
        visit[i] = j.list[v.first + i];
        row[i] = visit[i] < routed ? visit[i] / j.k : visit[i] - routed;
    }
    stream_sum<F, N, false>(acc, t, shared);
    put_hidden<N>(j, visit, v.n, o, acc);
}

/* N or S of 0: the tiles are all shared ones, or all routed. */
template <int N, int S>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS, N <= 8 && S <= 8 ? 4 : 2)
    hidden_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED int row[S > N ? S : N], visit[S > N ? S : N];
    int outs = (j.moe_dim + GATES - 1) / GATES;
    int tile = j.first_tile + (int)blockIdx.x / outs, o = (int)blockIdx.x % outs * GATES;
    gpu_let_next();
    gpu_wait_before();
    if (tile >= *j.n_tiles)
        return;
    struct visit_tile v = j.tile[tile];
    if constexpr (S > 0)
        if (v.expert < 0)
            hidden<FORM_FP8, S>(j, j.shared, v, o, shared, row, visit);
    if constexpr (N > 0)
        if (v.expert >= 0)
            hidden<FORM_FP4, N>(j, j.experts[v.expert], v, o, shared, row, visit);
}

/* Hidden values as operand of w2: a wave per visit and 128 values. */
GPU_KERNEL void grid_kernel(const __grid_constant__ struct expert_job j)
{
    int blocks = j.moe_dim / LIN_BLOCK, unit = (int)blockIdx.x * gpu_waves() + gpu_wave();
    int v = unit / blocks, b = unit % blocks;
    gpu_let_next();
    gpu_wait_before();
    if (v >= all_visits(j))
        return;
    const uint16_t *h = j.h + (int64_t)v * j.moe_dim + b * LIN_BLOCK + 4 * gpu_lane();
    uint2 p = *(const uint2 *)(const void *)h;
    struct gpu_quad x = {{gpu_low(p.x), gpu_high(p.x), gpu_low(p.y), gpu_high(p.y)}};
    operand_codes(j.h_codes, all_visits(j), j.moe_dim, v, b, x);
}

/* ---------------------------------------------------------------- down */

template <int F, int N>
GPU_FN void down(const struct expert_job &j, const struct mat &w2, const struct visit_tile &v,
                 int o, uint8_t *shared, int *row)
{
    float acc[N / 2];
    struct stream_tile t = expert_input(j.h_codes, all_visits(j), j.moe_dim, v.n);
    int left = j.dim - o - 1, second = left >= 8 ? 8 : 0, tid = (int)threadIdx.x;
    expert_half(&t, 0, w2, o, left);
    expert_half(&t, 1, w2, o + second, left - second);
    t.step = 16;
    t.row = row;
    for (int i = tid; i < v.n; i += STREAM_THREADS)
        row[i] = j.list[v.first + i];
    stream_sum<F, N, true>(acc, t, shared);
    o += tid / 32 * 16 + tid / 4 % 8;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int c = i / 4 * 8 + 2 * (tid % 4) + i % 2, at = o + i / 2 % 2 * 8;
        if (c < v.n && at < j.dim)
            j.z[(int64_t)row[c] * j.dim + at] = acc[i];
    }
}

template <int N, int S>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS, N <= 8 && S <= 8 ? 4 : 2)
    down_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED int row[S > N ? S : N];
    int outs = (j.dim + STREAM_ROWS - 1) / STREAM_ROWS;
    int tile = j.first_tile + (int)blockIdx.x / outs, o = (int)blockIdx.x % outs * STREAM_ROWS;
    gpu_let_next();
    gpu_wait_before();
    if (tile >= *j.n_tiles)
        return;
    struct visit_tile v = j.tile[tile];
    if constexpr (S > 0)
        if (v.expert < 0)
            down<FORM_FP8, S>(j, j.shared.w2, v, o, shared, row);
    if constexpr (N > 0)
        if (v.expert >= 0)
            down<FORM_FP4, N>(j, j.experts[v.expert].w2, v, o, shared, row);
}

/* Four values of y a thread: experts ascending, the shared one last. */
GPU_KERNEL void sum_kernel(const __grid_constant__ struct expert_job j)
{
    gpu_let_next();
    gpu_wait_before();
    int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x), t = i / j.dim, d = i % j.dim;
    if (t >= j.n_rows)
        return;
    struct gpu_quad sum = gpu_load4(j.z + t * j.k * j.dim + d);
    for (int s = 1; s <= j.k; s++) {
        int64_t v = s < j.k ? t * j.k + s : routed_visits(j) + t;
        struct gpu_quad z = gpu_load4(j.z + v * j.dim + d);
        for (int c = 0; c < 4; c++)
            sum.v[c] += z.v[c];
    }
    gpu_store4(j.y + i, sum);
}

/* ---------------------------------------------------------------- launcher */

/* One launch of `kernel` over n tiles from `first`, `per` of their outputs a block. */
template <int N, int S>
static void launch(void (*kernel)(struct expert_job), struct expert_job j, int64_t first, int64_t n,
                   int64_t blocks, struct stream *s)
{
    constexpr size_t a = N ? stream_ring < N ? N : 8 > ::bytes : 0,
                     b = S ? stream_ring < S ? S : 8 > ::bytes : 0;
    j.first_tile = (int)first;
    sm90_launch(kernel, n * blocks, STREAM_THREADS, FST_MAX(a, b), 1, s, j);
}

/* Few rows: all tiles in one launch.  Else the shared expert's many rows have their own, wider tiles,
 * and would cost the others their place on a processor. */
template <int N, int S> static void run(struct expert_job j, struct stream *s)
{
    j.per_tile = N;
    j.per_shared = S;
    int64_t shared = shared_tiles(j), routed = routed_tiles(j), all = shared + routed;
    int64_t gates = div_up(j.moe_dim, GATES), outs = div_up(j.dim, STREAM_ROWS);
    int64_t x = div_up((int64_t)j.n_rows * (j.dim / LIN_BLOCK), LIST_THREADS / 32);
    int64_t h = div_up((int64_t)all_visits(j) * (j.moe_dim / LIN_BLOCK), 4);
    sm90_launch(list_kernel, 1 + x, LIST_THREADS, 0, 1, s, j);
    if (S <= 8)
        launch<N, S>(hidden_kernel<N, S>, j, 0, all, gates, s);
    else {
        launch<0, S>(hidden_kernel<0, S>, j, 0, shared, gates, s);
        launch<N, 0>(hidden_kernel<N, 0>, j, shared, routed, gates, s);
    }
    sm90_launch(grid_kernel, h, 128, 0, 1, s, j);
    if (S <= 8)
        launch<N, S>(down_kernel<N, S>, j, 0, all, outs, s);
    else {
        launch<0, S>(down_kernel<0, S>, j, 0, shared, outs, s);
        launch<N, 0>(down_kernel<N, 0>, j, shared, routed, outs, s);
    }
    sm90_launch(sum_kernel, div_up((int64_t)j.n_rows * j.dim / 4, 128), 128, 0, 1, s, j);
}

static void experts_rows(const struct experts_args *a, struct stream *s, int64_t t0, int n)
{
    struct gpu_cut c = gpu_scratch(s);
    int64_t visits = (int64_t)n * (a->k + 1), dim = a->dim, moe = a->moe_dim;
    struct expert_job j = {};
    j.shared = *a->shared;
    j.experts = a->experts;
    j.in.x = a->x + t0 * dim;
    j.in.grid = gpu_take<uint16_t>(&c, n * dim);
    j.expert = a->expert + t0 * a->k;
    j.weight = a->weight + t0 * a->k;
    j.tile = gpu_take<struct visit_tile>(&c, visits);
    j.n_tiles = gpu_take<int32_t>(&c, 1);
    j.list = gpu_take<int32_t>(&c, visits);
    j.h = gpu_take<uint16_t>(&c, visits * moe);
    j.h_codes = (uint8_t *)gpu_take<uint16_t>(&c, visits * moe);
    j.z = gpu_take<float>(&c, visits * dim);
    j.y = a->y + t0 * dim;
    j.n_rows = n;
    j.k = a->k;
    j.dim = a->dim;
    j.moe_dim = a->moe_dim;
    j.n_experts = a->n_experts;
    j.limit = a->limit;
    if (n <= 8)
        run<8, 8>(j, s);
    else if (n <= 16)
        run<8, 16>(j, s);
    else if (n <= 32)
        run<8, 32>(j, s);
    else if (n <= 256)
        run<8, 64>(j, s);
    else
        run<32, 64>(j, s);
}

GPU_ENTRY(experts)
{
    for (int t0 = 0; t0 < a->n_rows; t0 += EXPERT_ROWS)
        experts_rows(a, s, t0, FST_MIN(a->n_rows - t0, EXPERT_ROWS));
    return gpu_done("experts");
}

bool sm90_experts(const struct experts_args *a)
{
    const struct expert_mats *m = a->shared;
    return a->routed == WEIGHT_FP4 && m->w1.fmt == WEIGHT_FP8 && m->w3.fmt == WEIGHT_FP8 &&
           m->w2.fmt == WEIGHT_FP8 && a->dim % LIN_BLOCK == 0 &&
           a->moe_dim % (LIN_BLOCK * KERN_SEGMENTS) == 0 && a->n_experts <= EXPERTS_MAX;
}

size_t lin_experts_scratch(const struct kernel_limits *l)
{
    int64_t n = FST_MIN(l->n_rows, EXPERT_ROWS), visits = n * (l->k + 1);
    return gpu_piece(n * l->dim, 2) + gpu_piece(visits, sizeof(struct visit_tile)) +
           gpu_piece(1, 4) + gpu_piece(visits, 4) + 2 * gpu_piece(visits * l->moe_dim, 2) +
           gpu_piece(visits * l->dim, 4);
}
