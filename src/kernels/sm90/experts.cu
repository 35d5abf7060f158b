/* experts.cu - the routed experts of the rows, FP4, and the shared one, FP8, for Hopper.
 *
 * A visit is one expert's work on one row: v = t*k + slot for the routed ones, n_rows*k + t for the
 * shared one.  Launches: lists and operands; gate and up; hidden values to the E4M3 grid; down; sums.
 * A warpgroup multiplies 64 weight rows by up to N visits of one expert (S of the shared one), so that an
 * expert's weights are read once; with few visits it goes from tile to tile and asks for the next one's
 * weights while it still works on the last.  Who shares a tile changes no bits: each visit's output is kept
 * apart, and a row's are added in ascending expert order, the shared one last. */
#include "kernels/sm90/experts.cuh"

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

/* Visits of tile v to shared memory: the shared expert's are all rows in order. */
GPU_FN void visits_of(const struct expert_job &j, const struct visit_tile &v, int *visit)
{
    for (int i = (int)threadIdx.x; i < v.n; i += STREAM_THREADS)
        visit[i] = v.expert < 0 ? v.first + i : j.list[v.first + i];
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
    visits_of(j, v, visit);
    for (int i = (int)threadIdx.x; i < v.n; i += STREAM_THREADS)
        row[i] = visit[i] < routed ? visit[i] / j.k : visit[i] - routed;
    stream_sum<F, N, false>(acc, t, shared);
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
    int tile = (int)blockIdx.x / outs, o = (int)blockIdx.x % outs * GATES;
    gpu_let_next();
    if (SHARED) {
        hidden<FORM_FP8, N>(j, j.shared, shared_tile(j, tile), o, shared, row, visit);
        return;
    }
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
        operand_codes<true>(j.h_codes, all_visits(j), j.moe_dim, v, b, x);
    else
        operand_codes<false>(j.h_codes, all_visits(j), j.moe_dim, v, b, x);
}

/* ---------------------------------------------------------------- down */

/* Outputs o .. of the tile's visits. */
template <int N>
GPU_FN void put_sums(const struct expert_job &j, const int *visit, int n, int o,
                     const float (&acc)[N / 2])
{
    int t = (int)threadIdx.x;
    o += t / 32 * 16 + t / 4 % 8;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int c = i / 4 * 8 + 2 * (t % 4) + i % 2, at = o + i / 2 % 2 * 8;
        if (c < n && at < j.dim)
            j.z[(int64_t)visit[c] * j.dim + at] = acc[i];
    }
}

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
    visits_of(j, v, row);
    stream_sum<F, N, true>(acc, t, shared);
    put_sums<N>(j, row, v.n, o, acc);
}

template <int N, bool SHARED>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS, N <= 16 ? 4 : 2)
    down_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED int row[N];
    int outs = outputs(j, true);
    int tile = (int)blockIdx.x / outs, o = (int)blockIdx.x % outs * STREAM_ROWS;
    gpu_let_next();
    if (SHARED) {
        down<FORM_FP8, N>(j, j.shared.w2, shared_tile(j, tile), o, shared, row);
        return;
    }
    gpu_wait_before();
    if (tile < *j.n_tiles)
        down<FORM_FP4, N>(j, j.experts[j.tile[tile].expert].w2, j.tile[tile], o, shared, row);
}

/* Four values of y a thread: experts ascending, the shared one last; their loads are under way together. */
enum { SUM_LOADS = 6 };
GPU_KERNEL void sum_kernel(const __grid_constant__ struct expert_job j)
{
    gpu_let_next();
    gpu_wait_before();
    int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x), t = i / j.dim, d = i % j.dim;
    if (t >= j.n_rows)
        return;
    struct gpu_quad sum = gpu_load4(j.z + t * j.k * j.dim + d);
    for (int s0 = 1; s0 <= j.k; s0 += SUM_LOADS) {
        struct gpu_quad z[SUM_LOADS] = {};
#pragma unroll
        for (int s = s0; s < s0 + SUM_LOADS; s++) {
            int64_t v = s < j.k ? t * j.k + s : routed_visits(j) + t;
            if (s <= j.k)
                z[s - s0] = gpu_load4(j.z + v * j.dim + d);
        }
#pragma unroll
        for (int c = 0; c < 4 * SUM_LOADS; c++)
            if (s0 + c / 4 <= j.k)
                sum.v[c % 4] += z[c / 4].v[c % 4];
    }
    gpu_store4(j.y + i, sum);
}

/* ---------------------------------------------------------------- from tile to tile */

/* A warpgroup's items: 64 weight rows of a routed tile, every `step`-th from `first`. */
struct walk {
    int first, step, n, outs;
};

GPU_FN int walk_item(const struct walk &w, int i)
{
    return w.first + i * w.step;
}

/* Tile of item i, on its way to shared memory; by eight threads. */
GPU_FN void walk_ask(const struct expert_job &j, const struct walk &w, struct visit_tile *tiles,
                     int i)
{
    static_assert(sizeof *tiles == 128, "eight copies");
    int t = group_thread();
    if (i >= w.n || t >= 8)
        return;
    const struct visit_tile *from = j.tile + walk_item(w, i) / w.outs;
    copy16(shared_at(tiles + i % 4) + (uint32_t)(16 * t), (const uint8_t *)from + 16 * t);
}

template <bool DOWN>
GPU_FN struct stream_tile walk_tile(const struct expert_job &j, const struct walk &w,
                                    const struct visit_tile *tiles, int i)
{
    const struct visit_tile &v = tiles[i % 4];
    int width = DOWN ? j.moe_dim : j.dim, out = walk_item(w, i) % w.outs;
    int o = out * (DOWN ? (int)STREAM_ROWS : (int)GATES), left = (DOWN ? j.dim : j.moe_dim) - o - 1;
    int second = DOWN && left >= 8 ? 8 : 0;
    struct stream_tile t =
        expert_input(DOWN ? j.h_codes : j.x_fp4, DOWN ? all_visits(j) : j.n_rows, width, v.n);
    t.pitch = width / 2;
    t.s_pitch = width / 32;
    t.w[0] = v.w[DOWN ? 2 : 0] + o * t.pitch;
    t.w[1] = v.w[DOWN ? 2 : 1] + (o + second) * t.pitch;
    t.s[0] = v.s[DOWN ? 2 : 0] + (int64_t)o * t.s_pitch;
    t.s[1] = v.s[DOWN ? 2 : 1] + (int64_t)(o + second) * t.s_pitch;
    t.last[0] = left;
    t.last[1] = left - second;
    t.step = DOWN ? 16 : 8;
    t.row = DOWN ? v.visit : v.row;
    return t;
}

template <bool DOWN>
GPU_FN void walk_put(const struct expert_job &j, const struct walk &w,
                     const struct visit_tile *tiles, int i, const float (&acc)[VISITS / 2])
{
    const struct visit_tile &v = tiles[i % 4];
    int out = walk_item(w, i) % w.outs;
    if (DOWN)
        put_sums<VISITS>(j, v.visit, v.n, out * STREAM_ROWS, acc);
    else
        put_hidden<VISITS>(j, v.visit, v.n, out * GATES, acc);
}

/* Copies stage `fed` of all items; its item and stage there. */
struct walk_feed {
    struct stream_feed<FORM_FP4, VISITS> feed;
    int item, stage;
};
template <bool DOWN>
GPU_FN void walk_copy(struct walk_feed &f, const struct expert_job &j, const struct walk &w,
                      struct visit_tile *tiles, uint32_t ring, int slot)
{
    int width = DOWN ? j.moe_dim : j.dim;
    if (f.item >= w.n)
        return;
    if (f.stage == 0) {
        struct stream_tile t = walk_tile<DOWN>(j, w, tiles, f.item);
        feed_weights<FORM_FP4, VISITS>(f.feed, t);
        feed_inputs<FORM_FP4, VISITS>(f.feed, t);
        walk_ask(j, w, tiles, f.item + 1);
    }
    copy_weights<FORM_FP4, VISITS>(f.feed, ring, slot);
    copy_inputs<FORM_FP4, VISITS>(f.feed, ring, slot, width / LIN_BLOCK - 2 * f.stage);
    if (++f.stage == (width + 255) / 256) {
        f.stage = 0;
        f.item++;
    }
}

/* The routed tiles' gate and up, or down, by worker `worker` of so many warpgroups.  The loop is over
 * the stages of all its items, so that the ring never runs dry between two.  A tile's words arrive with
 * the stages of the tile before: an item has four or more, and the ring is no longer than five. */
template <bool DOWN>
GPU_FN void walk_routed(const struct expert_job &j, int worker, int workers, uint8_t *shared,
                        struct visit_tile *tiles)
{
    constexpr int slots = stream_ring<VISITS>::slots;
    uint8_t *base = shared + (-shared_at(shared) & 1023);
    uint32_t ring = shared_at(base);
    int outs = outputs(j, DOWN);
    int all = *j.n_tiles * outs, blocks = (DOWN ? j.moe_dim : j.dim) / LIN_BLOCK;
    int segment = blocks / KERN_SEGMENTS, in_segment = 0, done = 0;
    struct walk w = {worker, workers, (all - worker + workers - 1) / workers, outs};
    struct walk_feed f;
    float acc[VISITS / 2] = {}, pending[3][VISITS / 2];
    static_assert(slots <= 5, "a tile's words are there when its first stage is");
    if (worker >= all)
        return;
    walk_ask(j, w, tiles, 0);
    copies_end();
    copies_wait<0>();
    group_sync();
    f.item = f.stage = 0;
    for (int i = 0; i < slots - 1; i++) {
        walk_copy<DOWN>(f, j, w, tiles, ring, i);
        copies_end();
    }
    int at = 0, fill = slots - 1, block = 0;
    for (int item = 0; item < w.n;) {
        const uint8_t *slot = base + at * stream_ring<VISITS>::slot;
        const uint8_t *scales =
            base + stream_ring<VISITS>::all_scales + at * stream_ring<VISITS>::scales;
        copies_wait<slots - 2>();
        shared_to_wgmma();
        group_sync();
        walk_copy<DOWN>(f, j, w, tiles, ring, fill);
        copies_end();
#pragma unroll
        for (int b = 0; b < 2; b++, block++) {
            if (block >= blocks)
                break;
            stream_fp4<VISITS>(acc, slot, scales, b);
            if (DOWN && ++in_segment == segment) {
                stream_segment<VISITS>(acc, pending, done++);
                in_segment = 0;
            }
        }
        fill = at;
        at = at + 1 == slots ? 0 : at + 1;
        if (block < blocks)
            continue;
        walk_put<DOWN>(j, w, tiles, item++, acc);
        for (int i = 0; i < VISITS / 2; i++)
            acc[i] = 0;
        block = done = 0;
    }
    copies_wait<0>();
}

/* `first` blocks for the shared expert's outputs, the others walk.  Nothing before the lists are there. */
template <bool DOWN>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS, 4)
    walk_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED struct visit_tile tiles[4];
    GPU_SHARED int row[VISITS], visit[VISITS];
    int block = (int)blockIdx.x, first = j.shared_blocks;
    gpu_let_next();
    if (block >= first) {
        gpu_wait_before();
        walk_routed<DOWN>(j, block - first, (int)gridDim.x - first, shared, tiles);
    } else if (DOWN)
        down<FORM_FP8, VISITS>(j, j.shared.w2, shared_tile(j, 0), block * STREAM_ROWS, shared, row);
    else
        hidden<FORM_FP8, VISITS>(j, j.shared, shared_tile(j, 0), block * GATES, shared, row, visit);
}

/* ---------------------------------------------------------------- launcher */

template <int N>
static void launch(void (*kernel)(struct expert_job), const struct expert_job &j, int64_t blocks,
                   struct stream *s)
{
    sm90_launch(kernel, blocks, STREAM_THREADS, stream_ring<N>::bytes, 1, s, j);
}

/* Rows of the shared expert in tiles of S, the routed visits by warpgroups that walk. */
template <int S, bool DOWN> static void walk(struct expert_job j, struct stream *s)
{
    int64_t shared = outputs(j, DOWN), routed = shared;
    int64_t places = 4 * (int64_t)j.processors;
    routed *= routed_tiles(j);
    if (S == VISITS) { /* in one launch */
        j.shared_blocks = (int)shared;
        launch<VISITS>(walk_kernel<DOWN>, j, shared + FST_MIN(routed, places - shared), s);
        return;
    }
    shared *= shared_tiles(j);
    if (DOWN)
        launch<S>(down_kernel<S, true>, j, shared, s);
    else
        launch<S>(hidden_kernel<S, true>, j, shared, s);
    launch<VISITS>(walk_kernel<DOWN>, j, FST_MIN(routed, places), s);
}

/* Tiles of N visits, a block each. */
template <int N, int S, bool DOWN> static void tiles(const struct expert_job &j, struct stream *s)
{
    int64_t outs = outputs(j, DOWN);
    launch<S>(DOWN ? down_kernel<S, true> : hidden_kernel<S, true>, j, outs * shared_tiles(j), s);
    launch<N>(DOWN ? down_kernel<N, false> : hidden_kernel<N, false>, j, outs * routed_tiles(j), s);
}

template <int N, int S> static void run(struct expert_job j, struct stream *s)
{
    int64_t h = div_up((int64_t)all_visits(j) * (j.moe_dim / LIN_BLOCK), 4);
    bool walks = N == VISITS && FST_MIN(j.dim, j.moe_dim) >= 1024; /* see walk_routed */
    j.per_tile = N;
    j.per_shared = S;
    experts_lists(j, s);
    if (walks)
        walk<S, false>(j, s);
    else
        tiles<N, S, false>(j, s);
    sm90_launch(grid_kernel, h, 128, 0, 1, s, j);
    if (walks)
        walk<S, true>(j, s);
    else
        tiles<N, S, true>(j, s);
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
    j.x_fp4 = (uint8_t *)gpu_take<uint16_t>(&c, n * dim);
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
    j.processors = s->device->multiprocessors;
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
    return 2 * gpu_piece(n * l->dim, 2) + gpu_piece(visits, sizeof(struct visit_tile)) +
           gpu_piece(1, 4) + gpu_piece(visits, 4) + 2 * gpu_piece(visits * l->moe_dim, 2) +
           gpu_piece(visits * l->dim, 4);
}
