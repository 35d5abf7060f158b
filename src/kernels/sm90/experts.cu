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

/* Hidden values o .. of the tile's visits.  Thread: gate and up of one value for its visits. */
template <int N>
GPU_FN void put_hidden(const struct expert_job &j, const int *visit, int n, int o0,
                       const float (&acc)[N / 2])
{
    int t = group_thread(), o = o0 + t / 32 * 8 + t / 4 % 8, routed = routed_visits(j);
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
    for (int i = group_thread(); i < v.n; i += STREAM_THREADS)
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
        operand_codes<true>(operand_row(j.h_codes, all_visits(j), j.moe_dim, v), b, x);
    else
        operand_codes<false>(operand_row(j.h_codes, all_visits(j), j.moe_dim, v), b, x);
}

/* ---------------------------------------------------------------- down */

/* Outputs o .. of the tile's visits. */
template <int N>
GPU_FN void put_sums(const struct expert_job &j, const int *visit, int n, int o,
                     const float (&acc)[N / 2])
{
    int t = group_thread();
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

void experts_sums(const struct expert_job &j, struct stream *s)
{
    sm90_launch(sum_kernel, div_up((int64_t)j.n_rows * j.dim / 4, 128), 128, 0, 1, s, j);
}

/* ---------------------------------------------------------------- from tile to tile */

/* Items are 64 weight rows of a routed tile.  A block's first one follows from its number; whoever is
 * done asks a counter for the next, since blocks do not stay abreast: with every n-th item fixed, 2,112
 * items of six rows left a tenth of the blocks with one more than the others. */
struct walk {
    int all, outs, given; /* given: items that are not the counter's */
    uint32_t share;       /* 2^32 / outs, rounded up: exact below 2^32 / outs items */
    int32_t *next;
    int *item; /* shared: of the block's i-th, at i & 3 */
};

/* Tile and output of the block's i-th item. */
GPU_FN int walk_tile(const struct walk &w, int i)
{
    return (int)__umulhi((uint32_t)w.item[i & 3], w.share);
}
GPU_FN int walk_out(const struct walk &w, int i)
{
    return w.item[i & 3] - walk_tile(w, i) * w.outs;
}

/* Tile of the i-th item, on its way to shared memory; by eight threads. */
GPU_FN void walk_ask(const struct expert_job &j, const struct walk &w, struct visit_tile *tiles,
                     int i)
{
    static_assert(sizeof *tiles == 128, "eight copies");
    int t = (int)threadIdx.x;
    if (t >= 8)
        return;
    const struct visit_tile *from = j.tile + walk_tile(w, i);
    copy16(shared_at(tiles + (i & 3)) + (uint32_t)(16 * t), (const uint8_t *)from + 16 * t);
}

/* What a thread copies next.  BLOCKS, the number of 128 values of K, is known when this is compiled, so
 * that one address serves a thread's rows of a matrix: the copies of stream.cuh, which take any width,
 * are 90 instructions a stage and warp, as many as its products. */
template <bool DOWN, int BLOCKS> struct walk_feed {
    static constexpr int pitch = BLOCKS * 64, stages = BLOCKS / 2;
    const uint8_t *w, *up, *s, *x; /* up: rows of w3 */
    const float *xs;
    bool has_x, has_xs, more; /* more: there is an item after this */
    int item, stage, asked;
};

template <bool DOWN, int BLOCKS>
GPU_FN void walk_begin(struct walk_feed<DOWN, BLOCKS> &f, const struct expert_job &j,
                       const struct walk &w, const struct visit_tile *tiles)
{
    constexpr int pitch = f.pitch, step = DOWN ? 16 : 8;
    const struct visit_tile &v = tiles[f.item & 3];
    int t = (int)threadIdx.x, warp = t / 32, lane = t % 32, r = t / 8;
    int o = walk_out(w, f.item) * (DOWN ? (int)STREAM_ROWS : (int)GATES) + warp * step;
    int64_t mine = (int64_t)(o + lane / 8) * pitch + 16 * (lane % 8);
    f.w = v.w[DOWN ? 2 : 0] + mine;
    f.up = v.w[1] + mine;
    const uint8_t *s = DOWN || lane < 8 ? v.s[DOWN ? 2 : 0] : v.s[1];
    f.s = s + (int64_t)(o + (DOWN ? lane % 16 : lane % 8)) * (BLOCKS * 4);
    const uint8_t *x = DOWN ? j.h_codes : j.x_fp4;
    const float *xs = operand_scales(x, DOWN ? all_visits(j) : j.n_rows, BLOCKS * 128);
    const int *row = DOWN ? v.visit : v.row;
    f.has_x = r % VISITS < v.n;
    f.has_xs = t < 2 * VISITS && t / 2 < v.n;
    f.x = x + (f.has_x ? row[r % VISITS] : 0) * (int64_t)(BLOCKS * 128) + r / VISITS * 128 +
          16 * (t % 8);
    f.xs = xs + (f.has_xs ? row[t / 2] : 0) * (int64_t)BLOCKS + t % 2;
}

/* One stage into slot `at` of the ring. */
template <bool DOWN, int BLOCKS>
GPU_FN void walk_copy(struct walk_feed<DOWN, BLOCKS> &f, const struct expert_job &j,
                      const struct walk &w, struct visit_tile *tiles, uint32_t ring, int to)
{
    constexpr int pitch = f.pitch;
    int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    if (!f.more)
        return;
    if (f.stage == 0) {
        walk_begin<DOWN, BLOCKS>(f, j, w, tiles);
        f.asked = t == 0 ? atomicAdd(w.next, 1) : 0;
    } else if (f.stage == 1 && t == 0) /* it was on its way for a stage */
        w.item[(f.item + 1) & 3] = w.given + f.asked;
    else if (f.stage == 3 && w.item[(f.item + 1) & 3] < w.all)
        walk_ask(j, w, tiles, f.item + 1);
    uint32_t slot = ring + (uint32_t)(to * stream_ring<VISITS>::slot);
    uint32_t scales =
        ring + (uint32_t)(stream_ring<VISITS>::all_scales + to * stream_ring<VISITS>::scales);
    uint32_t at = slot + (uint32_t)weight_piece(16 * warp + lane / 8, lane % 8), at4 = at ^ 64;
    const uint8_t *second = DOWN ? f.w + 8 * pitch : f.up;
    copy16(at, f.w);
    copy16(at4 + 4 * STREAM_LINE, f.w + 4 * pitch);
    copy16(at + 8 * STREAM_LINE, second);
    copy16(at4 + 12 * STREAM_LINE, second + 4 * pitch);
    if (lane < 16)
        copy8(scales + (uint32_t)(8 * (16 * warp + lane)), f.s);
    if (f.has_x)
        copy16(slot + stream_ring<VISITS>::weights +
                   (uint32_t)(t / 8 * STREAM_LINE + ((t % 8 ^ t / 8 % 8) << 4)),
               f.x);
    if (f.has_xs)
        copy4(scales + stream_ring<VISITS>::w_scales + (uint32_t)(4 * (t % 2 * VISITS + t / 2)),
              f.xs);
    f.w += STREAM_LINE;
    f.up += STREAM_LINE;
    f.s += 8;
    f.x += 2 * STREAM_LINE;
    f.xs += 2;
    if (++f.stage == f.stages) {
        f.stage = 0;
        f.more = w.item[++f.item & 3] < w.all;
    }
}

template <bool DOWN>
GPU_FN void walk_put(const struct expert_job &j, const struct walk &w,
                     const struct visit_tile *tiles, int i, const float (&acc)[VISITS / 2])
{
    const struct visit_tile &v = tiles[i & 3];
    int out = walk_out(w, i);
    if (DOWN)
        put_sums<VISITS>(j, v.visit, v.n, out * STREAM_ROWS, acc);
    else
        put_hidden<VISITS>(j, v.visit, v.n, out * GATES, acc);
}

/* Where a warpgroup is in its items. */
struct walk_state {
    float acc[VISITS / 2], x[VISITS / 4], pending[3][VISITS / 2];
    int item, block;
};

/* One stage out of slot `at`, the next into `to`; false: that was the last. */
template <bool DOWN, int BLOCKS>
GPU_FN bool walk_stage(struct walk_state &s, struct walk_feed<DOWN, BLOCKS> &f,
                       const struct expert_job &j, const struct walk &w, struct visit_tile *tiles,
                       const uint8_t *base, int at, int to)
{
    constexpr int slots = stream_ring<VISITS>::slots, segment = BLOCKS / KERN_SEGMENTS;
    const uint8_t *slot = base + at * stream_ring<VISITS>::slot;
    const uint8_t *scales =
        base + stream_ring<VISITS>::all_scales + at * stream_ring<VISITS>::scales;
    copies_wait<slots - 2>();
    shared_to_wgmma();
    __syncthreads();
    walk_copy<DOWN, BLOCKS>(f, j, w, tiles, shared_at(base), to);
    copies_end();
#pragma unroll
    for (int b = 0; b < 2; b++) {
        fp4_block<VISITS>(s.acc, s.x, slot, scales, b);
        if (++s.block % (DOWN ? segment : BLOCKS) == 0)
            fp4_values<VISITS>(s.acc, s.x);
        if (DOWN && s.block % segment == 0)
            stream_segment<VISITS>(s.acc, s.pending, s.block / segment - 1);
    }
    if (s.block < BLOCKS)
        return true;
    walk_put<DOWN>(j, w, tiles, s.item++, s.acc);
#pragma unroll
    for (int i = 0; i < VISITS / 2; i++)
        s.acc[i] = 0;
    s.x[0] = s.x[1] = 1; /* another tile has other columns */
    s.block = 0;
    return w.item[s.item & 3] < w.all;
}

/* The routed tiles' gate and up, or down; the first item is w.item[0].  The loop is over the stages of all
 * items, so that the ring never runs dry between two: the next item is asked for in stage 0, known in
 * stage 1, its tile asked for in stage 3 (after a barrier) and there with the first stage after it. */
template <bool DOWN, int BLOCKS>
GPU_FN void walk_routed(const struct expert_job &j, const struct walk &w, uint8_t *shared,
                        struct visit_tile *tiles)
{
    constexpr int slots = stream_ring<VISITS>::slots;
    static_assert(BLOCKS / 2 - 3 >= slots - 1 && slots == 4 && BLOCKS % KERN_SEGMENTS == 0,
                  "see above");
    uint8_t *base = shared + (-shared_at(shared) & 1023);
    struct walk_feed<DOWN, BLOCKS> f;
    struct walk_state s = {};
    s.x[0] = s.x[1] = 1;
    walk_ask(j, w, tiles, 0);
    copies_end();
    copies_wait<0>();
    __syncthreads();
    f.item = f.stage = f.asked = 0;
    f.more = true;
    for (int i = 0; i < slots - 1; i++) {
        walk_copy<DOWN, BLOCKS>(f, j, w, tiles, shared_at(base), i);
        copies_end();
    }
    for (int at = 0, to = slots - 1; walk_stage<DOWN, BLOCKS>(s, f, j, w, tiles, base, at, to);) {
        to = at;
        at = at + 1 == slots ? 0 : at + 1;
    }
    copies_wait<0>();
}

/* The first j.shared_blocks blocks begin with halves of the shared expert's tiles of S rows, which are as
 * long as routed ones. */
template <bool DOWN, int BLOCKS, int S>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS, 4)
    walk_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED struct visit_tile tiles[4];
    GPU_SHARED int row[S], visit[S], item[4];
    int outs = outputs(j, DOWN), block = (int)blockIdx.x, first = block - j.shared_blocks;
    struct visit_tile own = shared_tile(j, block / 2 / outs);
    gpu_let_next();
    if (first < 0 && DOWN)
        down<FORM_FP8, S>(j, j.shared.w2, own, block / 2 % outs * STREAM_ROWS, shared, row);
    else if (first < 0)
        hidden<FORM_FP8, S>(j, j.shared, own, block / 2 % outs * GATES, shared, row, visit);
    gpu_wait_before();
    int given = (int)gridDim.x - j.shared_blocks;
    struct walk w = {*j.n_tiles * outs, outs, given, 0xffffffffu / (uint32_t)outs + 1,
                     j.next + DOWN,     item};
    if (threadIdx.x == 0)
        item[0] = first < 0 ? given + atomicAdd(w.next, 1) : first;
    __syncthreads();
    if (item[0] < w.all)
        walk_routed<DOWN, BLOCKS>(j, w, shared, tiles);
}

/* Inputs of V4-Flash's and V4-Pro's experts, in blocks. */
template <bool DOWN, int S> static void (*walk_of(int width))(struct expert_job)
{
    switch (width / LIN_BLOCK) {
    case 16:
        return DOWN ? walk_kernel<DOWN, 16, S> : NULL;
    case 24:
        return DOWN ? walk_kernel<DOWN, 24, S> : NULL;
    case 32:
        return DOWN ? NULL : walk_kernel<DOWN, 32, S>;
    case 56:
        return DOWN ? NULL : walk_kernel<DOWN, 56, S>;
    default:
        return NULL;
    }
}

/* ---------------------------------------------------------------- launcher */

template <int N>
static void launch(void (*kernel)(struct expert_job), const struct expert_job &j, int64_t blocks,
                   int cluster, struct stream *s)
{
    sm90_launch(kernel, round_up(blocks, cluster), STREAM_THREADS, stream_ring<N>::bytes, cluster,
                s, j);
}

/* Rows of the shared expert in tiles of S, the routed visits by warpgroups that walk. */
template <int S, bool DOWN> static void walk(struct expert_job j, struct stream *s)
{
    int64_t shared = 2 * outputs(j, DOWN) * shared_tiles(j);
    int64_t routed = outputs(j, DOWN) * routed_tiles(j), places = 4 * (int64_t)j.processors;
    /* wider tiles have blocks of their own, and so has w2's tree of sums with more than 8 rows */
    constexpr int first = S <= 8 || (S <= 32 && !DOWN) ? S : VISITS;
    void (*kernel)(struct expert_job) = walk_of<DOWN, first>(DOWN ? j.moe_dim : j.dim);
    if (S == first) {
        j.shared_blocks = (int)shared;
        launch<S>(kernel, j, FST_MAX(shared, FST_MIN(shared + routed, places)), 2, s);
        return;
    }
    launch<S>(DOWN ? down_kernel<S, true> : hidden_kernel<S, true>, j, shared, 2, s);
    launch<VISITS>(kernel, j, FST_MIN(routed, places), 2, s);
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
    bool walks = N == VISITS && walk_of<false, VISITS>(j.dim) && walk_of<true, VISITS>(j.moe_dim) &&
                 j.dim % STREAM_ROWS == 0;
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
    experts_sums(j, s);
}

/* Scratch of j for few rows. */
static void cut(struct gpu_cut *c, struct expert_job *j)
{
    int64_t visits = all_visits(*j), moe = j->moe_dim, all = (int64_t)j->n_rows * j->dim;
    j->in.grid = gpu_take<uint16_t>(c, all);
    j->x_fp4 = (uint8_t *)gpu_take<uint16_t>(c, all);
    j->tile = gpu_take<struct visit_tile>(c, visits);
    j->n_tiles = gpu_take<int32_t>(c, 3);
    j->next = j->n_tiles + 1;
    j->list = gpu_take<int32_t>(c, visits);
    j->h = gpu_take<uint16_t>(c, visits * moe);
    j->h_codes = (uint8_t *)gpu_take<uint16_t>(c, visits * moe);
    j->z = gpu_take<float>(c, visits * j->dim);
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
    j.y = a->y + t0 * a->dim;
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
    cut(&c, &j);
    if (n <= 8)
        run<8, 8>(j, s);
    else if (n <= 32)
        run<8, 32>(j, s);
    else
        run<8, 64>(j, s);
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
    cut(&c, &j);
    size_t few = SIZE_MAX - c.left;
    j.n_rows = n;
    return n < EXPERTS_MANY ? few : FST_MAX(few, experts_many_scratch(j));
}
