/* experts.cu - the routed experts of the rows, FP4, and the shared one, FP8, for Hopper.
 *
 * A visit is one expert's work on one row: v = t*k + slot for the routed ones, n_rows*k + t for the
 * shared one.  Launches: lists and operands (up to eight rows whose operands the seam left: none); gate and
 * up; hidden values to the E4M3 grid (with few rows down does that); down; sums.
 * A warpgroup multiplies 64 weight rows by up to N visits of one expert (S of the shared one), so that an
 * expert's weights are read once; with few visits it goes from tile to tile (walk.cuh).  Who shares a tile
 * changes no bits: each visit's output is kept apart, and a row's are added in ascending expert order, the
 * shared one last. */
#include "kernels/sm90/walk.cuh"

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

/* The shared expert's products: two blocks of a cluster take half of K each.  Whole, its tiles are twice
 * as long as a routed one, and few: 23 us of gate and up of one row were spent waiting for them.  The
 * first of the two gets the sum and true. */
template <int N, int SEGMENTS>
GPU_FN bool half_sum(float (&acc)[N / 2], struct stream_tile t, uint8_t *shared)
{
    int half = (int)blockIdx.x % 2, values = t.values / 2, thread = group_thread();
    float *sums = (float *)(void *)shared;
    t.values = values;
    for (int h = 0; h < 2; h++) {
        t.w[h] += half * values;
        t.s[h] += half * (values / LIN_BLOCK);
    }
    t.x += half * values;
    t.xs += half * (values / LIN_BLOCK);
    stream_sum<FORM_FP8, N, SEGMENTS>(acc, t, shared);
#pragma unroll
    for (int i = 0; i < N / 2 && half; i++)
        sums[i * STREAM_THREADS + thread] = acc[i];
    cluster_sync();
#pragma unroll
    for (int i = 0; i < N / 2 && !half; i++)
        acc[i] += cluster_load(shared_at(sums + i * STREAM_THREADS + thread), 1);
    cluster_sync(); /* nobody leaves while the other reads */
    return !half;
}

/* Visits of tile v to shared memory: the shared expert's are all rows in order; of routed tiles no list but
 * list_many has them side by side. */
GPU_FN void visits_of(const struct visit_tile &v, int *visit)
{
    for (int i = group_thread(); i < v.n; i += STREAM_THREADS)
        visit[i] = v.expert < 0 ? v.first + i : v.visit[i];
}

/* Tile i of the shared expert. */
GPU_FN struct visit_tile shared_tile(const struct expert_job &j, int i)
{
    struct visit_tile v = {};
    int row = i * j.per_shared;
    v.expert = -1;
    v.first = routed_visits(j) + row;
    v.n = min(j.per_shared, j.n_rows - row);
    return v;
}

template <int F, int N>
GPU_FN void hidden(const struct expert_job &j, const struct expert_mats &m,
                   const struct visit_tile &v, int o, uint8_t *shared, int *row, int *visit)
{
    float acc[N / 2];
    const uint8_t *x = F == FORM_FP4 ? j.x_fp4 : (const uint8_t *)j.in.grid;
    struct stream_tile t = expert_input(x, j.n_rows, j.dim, v.n);
    int routed = routed_visits(j);
    expert_half(&t, 0, m.w1, o, j.moe_dim - o - 1);
    expert_half(&t, 1, m.w3, o, j.moe_dim - o - 1);
    t.step = 8;
    t.row = row;
    visits_of(v, visit);
    for (int i = group_thread(); i < v.n; i += STREAM_THREADS)
        row[i] = visit[i] < routed ? visit[i] / j.k : visit[i] - routed;
    if (F == FORM_FP8) {
        if (!half_sum<N, 0>(acc, t, shared))
            return;
    } else
        stream_sum<F, N, 0>(acc, t, shared);
    put_hidden<N>(j, visit, v.n, o, acc);
}

/* Tiles of the shared expert (SHARED), or all routed ones. */
template <int N, bool SHARED>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS, N <= 16 ? 4 : 2)
    hidden_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED int row[N], visit[N];
    int outs = outputs(j, false);
    int block = (int)blockIdx.x / (SHARED ? 2 : 1), tile = block / outs, o = block % outs * GATES;
    if (SHARED) {
        gpu_wait_before();
        gpu_let_next(); /* behind the wait: walk_kernel reads lists and inputs before its own */
        hidden<FORM_FP8, N>(j, j.shared, shared_tile(j, tile), o, shared, row, visit);
        return;
    }
    gpu_let_next();
    gpu_wait_before();
    if (tile < *j.n_tiles)
        hidden<FORM_FP4, N>(j, j.experts[j.tile[tile].expert], j.tile[tile], o, shared, row, visit);
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
    if (v < routed_visits(j))
        operand_codes<true>(operand_row(j.h_codes, all_visits(j), j.moe_dim, v), b, x);
    else
        operand_codes<false>(operand_row(j.h_codes, all_visits(j), j.moe_dim, v), b, x);
}

/* ---------------------------------------------------------------- down */

template <int F, int N>
GPU_FN void down(const struct expert_job &j, const struct mat &w2, const struct visit_tile &v,
                 int o, uint8_t *shared, int *row)
{
    float acc[N / 2];
    struct stream_tile t = expert_input(j.h_codes, all_visits(j), j.moe_dim, v.n);
    int left = j.dim - o - 1, second = left >= 8 ? 8 : 0;
    expert_half(&t, 0, w2, o, left);
    expert_half(&t, 1, w2, o + second, left - second);
    t.step = 16;
    t.row = row;
    visits_of(v, row);
    if (F == FORM_FP8) {
        if (!half_sum<N, KERN_SEGMENTS / 2>(acc, t, shared))
            return;
    } else
        stream_sum<F, N, KERN_SEGMENTS>(acc, t, shared);
    put_sums<N>(j, row, v.n, o, acc);
}

template <int N, bool SHARED>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS, N <= 16 ? 4 : 2)
    down_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED int row[N];
    int outs = outputs(j, true);
    int block = (int)blockIdx.x / (SHARED ? 2 : 1), tile = block / outs,
        o = block % outs * STREAM_ROWS;
    if (SHARED) {
        gpu_wait_before();
        gpu_let_next(); /* the same */
        down<FORM_FP8, N>(j, j.shared.w2, shared_tile(j, tile), o, shared, row);
        return;
    }
    gpu_let_next();
    gpu_wait_before();
    if (tile < *j.n_tiles)
        down<FORM_FP4, N>(j, j.experts[j.tile[tile].expert].w2, j.tile[tile], o, shared, row);
}

/* Four values of y a thread. */
GPU_KERNEL void sum_kernel(const __grid_constant__ struct expert_job j)
{
    gpu_let_next();
    gpu_wait_before();
    int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x), t = i / j.dim;
    if (t < j.n_rows)
        gpu_store4(j.y + i, visits_sum(j.z, j.n_rows, j.k, j.dim, t, (int)(i - t * j.dim)));
}

void experts_sums(const struct expert_job &j, struct stream *s)
{
    sm90_launch(sum_kernel, div_up((int64_t)j.n_rows * j.dim / 4, 128), 128, 0, 1, s, j);
}

/* ---------------------------------------------------------------- from tile to tile */

/* With operands that were left for it gate and up follows the choice of experts, and its clerks wait for
 * that.  Only then may down start, which reads the choice before its own wait. */
GPU_FN void clerk_chosen(bool follows)
{
    if (!follows)
        return;
    gpu_wait_before();
    gpu_let_next();
}

/* The first j.shared_blocks blocks begin with halves of the shared expert's tiles of S rows, which are as
 * long as routed ones.  S: WALK_FEW, with lists that blocks make themselves; 0: no such blocks, since a
 * kernel for wider tiles runs in front.  What that one waited for is over when this one starts, nor does
 * either write what the other reads or writes: so this one waits for it only at the end, in the name of
 * the next, and both run at once. */
template <bool DOWN, int BLOCKS, int S, bool ONCE>
GPU_KERNEL void __launch_bounds__(WALK_THREADS, 4)
    walk_kernel(const __grid_constant__ struct expert_job j)
{
    constexpr bool few = S == WALK_FEW, wide = S > WALK_FEW;
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED struct walk_shared h;
    GPU_SHARED struct walk_list list;
    GPU_SHARED int row[wide ? S : 1], visit[wide ? S : 1];
    struct walk_memory &m = *(struct walk_memory *)(void *)(shared + (-shared_at(shared) & 1023));
    bool clerk = gpu_wave() == WALK_WARPS;
    int outs = outputs(j, DOWN), block = (int)blockIdx.x, first = block - j.shared_blocks;
    int chunk = 0, given = (int)gridDim.x - j.shared_blocks;
    bool alone = few && first >= 0; /* its own list, and no tile of the shared expert before */
    bool follows = few && !DOWN && j.left;
    if (!follows)
        gpu_let_next();
    else if (first == 0)
        expect_experts(j);
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) {
            turns_init(&h.full[i], 1);
            turns_init(&h.empty[i], WALK_WARPS);
        }
    if (alone && clerk) {
        clerk_chosen(follows);
        list_here(j, list);
        struct walk w = {list.n * outs, outs, given, j.next + DOWN};
        plan_item<DOWN, few>(j, w, list, h.plan[0], first);
    }
    __syncthreads();
    if (few && first < 0) {
        if (clerk)
            clerk_chosen(follows);
        chunk = walk_half<DOWN, BLOCKS>(j, m, h, list);
    } else if (wide && first < 0) {
        struct visit_tile own = shared_tile(j, block / 2 / outs);
        if (!clerk) {
            hidden<FORM_FP8, wide ? S : VISITS>(j, j.shared, own, block / 2 % outs * GATES, shared,
                                                row, visit);
        } else { /* half_sum's */
            cluster_sync();
            cluster_sync();
        }
        __syncthreads();
    }
    if (wide)
        gpu_wait_before();
    struct walk w = {(few ? list.n : *j.n_tiles) * outs, outs, given, j.next + DOWN};
    if (!alone) {
        if (clerk) {
            int item = first < 0 ? w.all : first;
            if (first < 0 && given < w.all && gpu_lane() == 0)
                item = given + atomicAdd(w.next, 1);
            plan_item<DOWN, few>(j, w, list, h.plan[0], __shfl_sync(0xffffffffu, item, 0));
        }
        __syncthreads();
    }
    if (clerk) {
        if (few)
            gpu_wait_before();
        clerk_walk<DOWN, BLOCKS, few>(j, w, list, m, h, chunk);
    } else
        walk_routed<DOWN, BLOCKS, S, ONCE>(j, m, h, chunk);
    if (S == 0)
        gpu_wait_before();
}

/* Inputs of V4-Flash's and V4-Pro's experts, in blocks. */
template <bool DOWN, int S, bool ONCE = false> static void (*walk_of(int width))(struct expert_job)
{
    constexpr int flash = DOWN ? 16 : 32, pro = DOWN ? 24 : 56;
    int blocks = width / LIN_BLOCK;
    return blocks == flash ? walk_kernel<DOWN, flash, S, ONCE>
           : blocks == pro ? walk_kernel<DOWN, pro, S, ONCE>
                           : NULL;
}

/* ---------------------------------------------------------------- launcher */

template <int N>
static void launch(void (*kernel)(struct expert_job), const struct expert_job &j, int64_t blocks,
                   int cluster, struct stream *s)
{
    sm90_launch(kernel, round_up(blocks, cluster), STREAM_THREADS, stream_ring<N>::bytes, cluster,
                s, j);
}

template <int S>
static void launch_walk(void (*kernel)(struct expert_job), const struct expert_job &j,
                        int64_t blocks, struct stream *s)
{
    size_t ring = S > WALK_FEW ? stream_ring<S>::bytes : 0;
    sm90_launch(kernel, round_up(blocks, 2), WALK_THREADS, FST_MAX((size_t)WALK_BYTES, ring), 2, s,
                j);
}

/* Rows of the shared expert in tiles of S, the routed visits by blocks that walk. */
template <int S, bool DOWN> static void walk(struct expert_job j, struct stream *s)
{
    int64_t shared = 2 * outputs(j, DOWN) * shared_tiles(j);
    int64_t routed = outputs(j, DOWN) * routed_tiles(j), places = 4 * (int64_t)j.processors;
    /* wider tiles have blocks of their own, and so has w2's tree of sums with more than 8 rows */
    constexpr int first = S == WALK_FEW || (S <= 32 && !DOWN) ? S : 0;
    constexpr bool once = DOWN && S == WALK_FEW;
    int width = DOWN ? j.moe_dim : j.dim;
    void (*kernel)(struct expert_job) = walk_of<DOWN, first>(width);
    if (once && shared + routed <= places)
        kernel = walk_of<DOWN, first, once>(width);
    if (S == first) {
        j.shared_blocks = (int)shared;
        launch_walk<first>(kernel, j, FST_MAX(shared, FST_MIN(shared + routed, places)), s);
        return;
    }
    launch<S>(DOWN ? down_kernel<S, true> : hidden_kernel<S, true>, j, shared, 2, s);
    launch_walk<first>(kernel, j, FST_MIN(routed, places), s);
}

/* Tiles of N visits, a block each. */
template <int N, int S, bool DOWN> static void tiles(const struct expert_job &j, struct stream *s)
{
    int64_t outs = outputs(j, DOWN);
    launch<S>(DOWN ? down_kernel<S, true> : hidden_kernel<S, true>, j, 2 * outs * shared_tiles(j),
              2, s);
    launch<N>(DOWN ? down_kernel<N, false> : hidden_kernel<N, false>, j, outs * routed_tiles(j), 1,
              s);
}

template <int N, int S> static void run(struct expert_job j, struct stream *s)
{
    int64_t h = div_up((int64_t)all_visits(j) * (j.moe_dim / LIN_BLOCK), 4);
    bool walks = N == VISITS && walk_of<false, 0>(j.dim) && walk_of<true, 0>(j.moe_dim) &&
                 j.dim % STREAM_ROWS == 0 && j.moe_dim % GATES == 0;
    j.per_tile = N;
    j.per_shared = S;
    j.few = walks && S == WALK_FEW;
    if (!j.few || !j.left)
        experts_lists(j, s);
    if (walks)
        walk<S, false>(j, s);
    else
        tiles<N, S, false>(j, s);
    if (!j.few)
        sm90_launch(grid_kernel, h, 128, 0, 1, s, j);
    if (walks)
        walk<S, true>(j, s);
    else
        tiles<N, S, true>(j, s);
    if (j.y)
        experts_sums(j, s);
}

/* Scratch of j for few rows.  operand: of experts_args; apart: where the visits' outputs go, or NULL. */
static void cut(struct gpu_cut *c, struct expert_job *j, void *operand, float *apart)
{
    int64_t visits = all_visits(*j), moe = j->moe_dim, all = (int64_t)j->n_rows * j->dim;
    struct operand_forms left = {};
    if (operand)
        left = operand_forms_of(operand, j->n_rows, j->dim);
    j->left = operand;
    j->in.grid = operand ? (uint16_t *)(void *)left.fp8 : gpu_take<uint16_t>(c, all);
    j->x_fp4 = operand ? left.fp4 : (uint8_t *)gpu_take<uint16_t>(c, all);
    j->tile = gpu_take<struct visit_tile>(c, visits);
    j->n_tiles = gpu_take<int32_t>(c, 3);
    j->next = operand ? left.next : j->n_tiles + 1;
    j->list = gpu_take<int32_t>(c, visits);
    j->h = gpu_take<uint16_t>(c, visits * moe);
    j->h_codes = (uint8_t *)gpu_take<uint16_t>(c, visits * moe);
    j->z = apart ? apart : gpu_take<float>(c, visits * j->dim);
}

static void experts_rows(const struct experts_args *a, struct stream *s, int64_t t0, int n)
{
    struct gpu_cut c = gpu_scratch(s);
    struct expert_job j = {};
    j.shared = *a->shared;
    j.experts = a->experts;
    j.in.x = a->x + t0 * a->dim;
    j.expert = a->expert + t0 * a->k;
    j.weight = a->weight + t0 * a->k;
    j.y = a->apart ? NULL : a->y + t0 * a->dim;
    j.n_rows = n;
    j.k = a->k;
    j.dim = a->dim;
    j.moe_dim = a->moe_dim;
    j.n_experts = a->n_experts;
    j.limit = a->limit;
    j.processors = s->device->multiprocessors;
    if (n >= EXPERTS_MANY) {
        experts_many(j, s);
        return;
    }
    cut(&c, &j, a->operand, a->apart ? a->y : NULL);
    if (n <= WALK_FEW && n * a->k <= WALK_VISITS)
        run<8, WALK_FEW>(j, s);
    else if (n <= 32)
        run<8, 32>(j, s);
    else
        run<8, 64>(j, s);
}

GPU_ENTRY(experts)
{
    FST_ASSERT(!(a->operand || a->apart) || a->n_rows <= OPERAND_FEW);
    for (int t0 = 0; t0 < a->n_rows; t0 += EXPERT_ROWS)
        experts_rows(a, s, t0, FST_MIN(a->n_rows - t0, EXPERT_ROWS));
    return gpu_done("experts");
}

bool sm90_experts(const struct experts_args *a)
{
    const struct expert_mats *m = a->shared;
    return a->routed == WEIGHT_FP4 && m->w1.fmt == WEIGHT_FP8 && m->w3.fmt == WEIGHT_FP8 &&
           m->w2.fmt == WEIGHT_FP8 && a->dim % (2 * LIN_BLOCK) == 0 &&
           a->moe_dim % (LIN_BLOCK * KERN_SEGMENTS) == 0 && a->n_experts <= EXPERTS_MAX;
}

size_t lin_experts_scratch(const struct kernel_limits *l)
{
    int n = FST_MIN(l->n_rows, EXPERT_ROWS);
    struct gpu_cut c = {NULL, SIZE_MAX};
    struct expert_job j = {};
    j.k = l->k;
    j.dim = l->dim;
    j.moe_dim = l->moe_dim;
    j.n_experts = l->n_experts;
    j.n_rows = FST_MIN(n, EXPERTS_MANY - 1);
    cut(&c, &j, NULL, NULL);
    size_t few = SIZE_MAX - c.left;
    j.n_rows = n;
    return n < EXPERTS_MANY ? few : FST_MAX(few, experts_many_scratch(j));
}
