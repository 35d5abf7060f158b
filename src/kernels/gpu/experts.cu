/* experts.cu - the routed experts of the rows and the shared one.
 *
 * A visit is one expert's work on one row: v = t*k + slot for the routed ones, n_rows*k + t for the
 * shared one.  Visits of one expert go through its weights in tiles of up to LIN_TILE; a tile is
 * written at the place of its first visit, other places stay empty.  Who shares a tile changes
 * no bits: each visit's output is kept apart, and a row's are added in ascending expert order, the
 * shared one last.  EXPERT_ROWS rows at a time bound the scratch for that. */
#include "kernels/gpu/linear.cuh"

enum { EXPERT_ROWS = 256 };

struct expert_tile {
    struct expert_mats m;
    int n; /* visits; 0: empty */
    int32_t visit[LIN_TILE];
};

struct expert_job {
    struct expert_mats shared;
    const struct expert_mats *experts;
    struct lin_input in; /* both operands */
    const int32_t *expert;
    const float *weight;
    struct expert_tile *tile;
    uint16_t *h; /* (visits, moe_dim) operands of w2 */
    float *z;    /* (visits, dim) */
    float *y;
    int n_rows, k, dim, moe_dim;
    float limit;
};

GPU_BOTH int64_t routed_visits(const struct expert_job &j)
{
    return (int64_t)j.n_rows * j.k;
}
/* Visits of a tile, at most: a step of one row runs kernels that know no other. */
GPU_BOTH int tile_visits(const struct expert_job &j)
{
    return j.n_rows == 1 ? 1 : LIN_TILE;
}
GPU_BOTH int64_t all_tiles(const struct expert_job &j)
{
    return routed_visits(j) + (j.n_rows + LIN_TILE - 1) / LIN_TILE;
}

/* ---------------------------------------------------------------- tiles */

/* The tile that begins with visit v: empty unless v is the first, ninth, .. of its expert. */
GPU_FN void list_routed(const struct expert_job &j, int v)
{
    struct expert_tile *t = j.tile + v;
    int e = j.expert[v], before = 0, n = 0, last = (int)routed_visits(j);
    for (int u = 0; u < v; u++)
        before += j.expert[u] == e;
    if (before % tile_visits(j) == 0) {
        t->m = j.experts[e];
        for (int u = v; u < last && n < tile_visits(j); u++)
            if (j.expert[u] == e)
                t->visit[n++] = u;
    }
    t->n = n;
}

GPU_FN void list_shared(const struct expert_job &j, int i)
{
    struct expert_tile *t = j.tile + routed_visits(j) + i;
    int row = i * LIN_TILE, left = j.n_rows - row;
    t->m = j.shared;
    t->n = left < LIN_TILE ? left : LIN_TILE;
    for (int r = 0; r < t->n; r++)
        t->visit[r] = (int)routed_visits(j) + row + r;
}

GPU_BOTH int64_t list_blocks(const struct expert_job &j)
{
    return (all_tiles(j) + LIN_THREADS - 1) / LIN_THREADS;
}

/* Tiles, a thread each, and the operands of x. */
GPU_KERNEL void start_kernel(struct expert_job j)
{
    gpu_start();
    int block = (int)blockIdx.x, lists = (int)list_blocks(j);
    int i = block * LIN_THREADS + (int)threadIdx.x, routed = (int)routed_visits(j);
    if (block >= lists)
        lin_prepare_part(j.in, block - lists);
    else if (i < routed)
        list_routed(j, i);
    else if (i < all_tiles(j))
        list_shared(j, i - routed);
}

/* ---------------------------------------------------------------- gate and up */

/* Hidden value o of a tile's visits. */
template <int R> GPU_FN void hidden(const struct expert_job &j, const struct expert_tile &t, int o)
{
    int at[R], routed = (int)routed_visits(j), i = gpu_lane() / 2;
    struct lin_pair w;
    lin_put(&w, 0, t.m.w1, o);
    lin_put(&w, 1, t.m.w3, o);
    GPU_UNROLL
    for (int r = 0; r < R; r++) {
        int v = t.visit[r < t.n ? r : t.n - 1];
        at[r] = (v < routed ? v / j.k : v - routed) * j.dim;
    }
    float a = lin_sums<R>(w, lin_coded(t.m.w1.fmt) ? j.in.grid : j.in.raw, at, false);
    float b = wave_xor(a, 1);
    if (gpu_lane() % 2 || i >= t.n)
        return;
    int v = t.visit[i];
    float weight = v < routed ? j.weight[v] : 1.0f;
    a = fminf(gpu_bf16(a), j.limit);
    b = fmaxf(-j.limit, fminf(gpu_bf16(b), j.limit));
    j.h[(int64_t)v * j.moe_dim + o] = gpu_bf16_bits(weight * (a * gpu_sigmoid(a) * b));
}

/* Blocks of one tile are neighbours; a wave makes one hidden value of the tile's visits.  M: most
 * visits of a tile; 1 takes fewer registers, so that more waves are there. */
template <int M>
GPU_KERNEL void GPU_BOUNDS(LIN_THREADS, M == 1 ? 3 : 2) hidden_kernel(struct expert_job j)
{
    gpu_start();
    int outs = (j.moe_dim + gpu_waves() - 1) / gpu_waves();
    const struct expert_tile &t = j.tile[(int)blockIdx.x / outs];
    int n = t.n, o = (int)blockIdx.x % outs * gpu_waves() + gpu_wave();
    if (n == 0 || o >= j.moe_dim)
        return;
    if (M == 1 || n == 1)
        hidden<1>(j, t, o);
    else if (n == 2)
        hidden < M<2 ? M : 2>(j, t, o);
    else if (n <= 4)
        hidden < M<4 ? M : 4>(j, t, o);
    else
        hidden<M>(j, t, o);
}

/* Hidden values to the E4M3 grid where w2 is coded: a wave per visit and 128 values, in place. */
GPU_KERNEL void grid_kernel(struct expert_job j)
{
    gpu_start();
    int blocks = (j.moe_dim + LIN_BLOCK - 1) / LIN_BLOCK;
    int64_t unit = (int64_t)blockIdx.x * gpu_waves() + gpu_wave(), v = unit / blocks;
    int64_t routed = routed_visits(j);
    if (v >= routed + j.n_rows)
        return;
    if (!lin_coded(v < routed ? j.experts[j.expert[v]].w2.fmt : j.shared.w2.fmt))
        return;
    float x[LIN_LANE_VALUES];
    int first = (int)(unit % blocks) * LIN_BLOCK + gpu_lane();
    uint16_t *h = j.h + v * j.moe_dim;
    GPU_UNROLL
    for (int i = 0; i < LIN_LANE_VALUES; i++) {
        int d = first + i * GPU_WAVE;
        x[i] = d < j.moe_dim ? gpu_from_bf16(h[d]) : 0;
    }
    lin_grid(x);
    GPU_UNROLL
    for (int i = 0; i < LIN_LANE_VALUES; i++)
        if (first + i * GPU_WAVE < j.moe_dim)
            h[first + i * GPU_WAVE] = gpu_bf16_bits(x[i]);
}

/* ---------------------------------------------------------------- down */

/* Outputs o and o+1 of a tile's visits, each visit's kept apart. */
template <int R> GPU_FN void down(const struct expert_job &j, const struct expert_tile &t, int o)
{
    int at[R], i = gpu_lane();
    struct lin_pair w;
    bool pair = o + 1 < j.dim;
    lin_put(&w, 0, t.m.w2, o);
    lin_put(&w, 1, t.m.w2, pair ? o + 1 : o);
    GPU_UNROLL
    for (int r = 0; r < R; r++)
        at[r] = t.visit[r < t.n ? r : t.n - 1] * j.moe_dim;
    float v = lin_sums<R>(w, j.h, at, true);
    if (i / 2 < t.n && (pair || i % 2 == 0))
        j.z[(int64_t)t.visit[i / 2] * j.dim + o + i % 2] = v;
}

template <int M>
GPU_KERNEL void GPU_BOUNDS(LIN_THREADS, M == 1 ? 3 : 2) down_kernel(struct expert_job j)
{
    gpu_start();
    int outs = (j.dim + 2 * gpu_waves() - 1) / (2 * gpu_waves());
    const struct expert_tile &t = j.tile[(int)blockIdx.x / outs];
    int n = t.n, o = 2 * ((int)blockIdx.x % outs * gpu_waves() + gpu_wave());
    if (n == 0 || o >= j.dim)
        return;
    if (M == 1 || n == 1)
        down<1>(j, t, o);
    else if (n == 2)
        down < M<2 ? M : 2>(j, t, o);
    else if (n <= 4)
        down < M<4 ? M : 4>(j, t, o);
    else
        down<M>(j, t, o);
}

/* One thread per value of y: experts ascending, the shared one last. */
GPU_KERNEL void sum_kernel(struct expert_job j)
{
    gpu_start();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = i / j.dim, d = i % j.dim;
    if (t >= j.n_rows)
        return;
    float sum = j.z[t * j.k * j.dim + d];
    for (int s = 1; s < j.k; s++)
        sum += j.z[(t * j.k + s) * j.dim + d];
    j.y[i] = sum + j.z[(routed_visits(j) + t) * j.dim + d];
}

/* ---------------------------------------------------------------- launcher */

static void check_mat(const struct mat *m, int n_out, int n_in)
{
    FST_ASSERT(lin_coded(m->fmt) || m->fmt == WEIGHT_BF16 || m->fmt == WEIGHT_F32);
    FST_ASSERT(m->n_out == n_out && m->n_in == n_in);
}

static void experts_rows(const struct experts_args *a, struct stream *s, int64_t t0, int n)
{
    struct gpu_cut c = gpu_scratch(s);
    int64_t visits = (int64_t)n * (a->k + 1), dim = a->dim, moe = a->moe_dim;
    struct expert_job j = {};
    struct lin_input in = {a->x + t0 * dim,
                           NULL,
                           dim,
                           n,
                           a->dim,
                           gpu_take<uint16_t>(&c, n * dim),
                           gpu_take<uint16_t>(&c, n * dim)};
    j.shared = *a->shared;
    j.experts = a->experts;
    j.in = in;
    j.expert = a->expert + t0 * a->k;
    j.weight = a->weight + t0 * a->k;
    j.n_rows = n;
    j.k = a->k;
    j.dim = a->dim;
    j.moe_dim = a->moe_dim;
    j.limit = a->limit;
    j.y = a->y + t0 * dim;
    j.tile = gpu_take<struct expert_tile>(&c, visits);
    j.h = gpu_take<uint16_t>(&c, visits * moe);
    j.z = gpu_take<float>(&c, visits * dim);
    FST_ASSERT(visits * moe <= INT32_MAX && n * dim <= INT32_MAX);
    int waves = LIN_THREADS / GPU_WAVE;
    int64_t gates = all_tiles(j) * div_up(moe, waves),
            downs = all_tiles(j) * div_up(dim, 2 * waves);
    int64_t grids = div_up(visits * div_up(moe, LIN_BLOCK), waves);
    gpu_launch_early(start_kernel, list_blocks(j) + lin_prepare_blocks(&j.in), LIN_THREADS, 0, s,
                     j);
    gpu_launch_early(n == 1 ? hidden_kernel<1> : hidden_kernel<LIN_TILE>, gates, LIN_THREADS, 0, s,
                     j);
    gpu_launch_early(grid_kernel, grids, LIN_THREADS, 0, s, j);
    gpu_launch_early(n == 1 ? down_kernel<1> : down_kernel<LIN_TILE>, downs, LIN_THREADS, 0, s, j);
    gpu_launch_early(sum_kernel, div_up(n * dim, 256), 256, 0, s, j);
}

GPU_ENTRY(experts)
{
    FST_ASSERT(a->k >= 1);
    FST_ASSERT(a->moe_dim % KERN_SEGMENTS == 0);
    check_mat(&a->shared->w1, a->moe_dim, a->dim);
    check_mat(&a->shared->w3, a->moe_dim, a->dim);
    check_mat(&a->shared->w2, a->dim, a->moe_dim);
    /* one operand serves gate and up; the routed experts' mats lie where only the device reads */
    FST_ASSERT(lin_coded(a->shared->w1.fmt) == lin_coded(a->shared->w3.fmt));
    for (int t0 = 0; t0 < a->n_rows; t0 += EXPERT_ROWS)
        experts_rows(a, s, t0, FST_MIN(a->n_rows - t0, EXPERT_ROWS));
    return gpu_done("experts");
}

size_t lin_experts_scratch(const struct kernel_limits *l)
{
    int64_t n = FST_MIN(l->n_rows, EXPERT_ROWS), visits = n * (l->k + 1);
    return 2 * gpu_piece(n * l->dim, 2) + gpu_piece(visits, sizeof(struct expert_tile)) +
           gpu_piece(visits * l->moe_dim, 2) + gpu_piece(visits * l->dim, 4);
}
