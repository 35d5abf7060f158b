/* lists.cu - which visits go through an expert's weights together. */
#include "kernels/sm90/experts.cuh"

enum { LIST_THREADS = 1024, FEW_VISITS = 64 };

struct visit_lists {
    int count[EXPERTS_MAX], start[EXPERTS_MAX];
    /* many rows: first in the list, first row in the operand, visits, as float bits 1/share; visits of a
     * tile */
    int4 of[EXPERTS_MAX];
    int share[EXPERTS_MAX];
    uint32_t wave[LIST_THREADS / 32];
};

GPU_FN void name_tile(const struct expert_job &j, struct visit_tile *x, int expert, int first,
                      int n)
{
    x->expert = expert;
    x->first = first;
    x->n = n;
    const struct expert_mats *m = j.experts + expert;
    x->w[0] = (const uint8_t *)m->w1.data;
    x->w[1] = (const uint8_t *)m->w3.data;
    x->w[2] = (const uint8_t *)m->w2.data;
    x->s[0] = m->w1.scale;
    x->s[1] = m->w3.scale;
    x->s[2] = m->w2.scale;
}

/* The visits of each expert side by side, and tiles of them.  Their order within an expert is of no
 * account. */
GPU_FN void list_many(const struct expert_job &j, struct visit_lists &l)
{
    int t = (int)threadIdx.x, routed = routed_visits(j);
    if (t < EXPERTS_MAX)
        l.count[t] = 0;
    __syncthreads();
    for (int v = t; v < routed; v += LIST_THREADS)
        atomicAdd(&l.count[j.expert[v]], 1);
    __syncthreads();
    int n = t < j.n_experts ? l.count[t] : 0, tiles = (n + j.per_tile - 1) / j.per_tile;
    uint32_t sum;
    int start = (int)block_sum_before((uint32_t)n, l.wave, &sum);
    int first = (int)block_sum_before((uint32_t)tiles, l.wave, &sum), all = (int)sum;
    if (t < j.n_experts)
        l.start[t] = start;
    for (int i = 0; i < tiles; i++)
        name_tile(j, j.tile + first + i, t, start + i * j.per_tile,
                  min(j.per_tile, n - i * j.per_tile));
    if (t == 0) {
        *j.n_tiles = all;
        j.next[0] = j.next[1] = 0;
    }
    __syncthreads();
    for (int v = t; v < routed; v += LIST_THREADS)
        j.list[atomicAdd(&l.start[j.expert[v]], 1)] = v;
    __syncthreads();
    for (int i = t; i < all * VISITS && j.per_tile <= VISITS; i += LIST_THREADS) {
        struct visit_tile *x = j.tile + i / VISITS;
        if (i % VISITS < x->n) {
            int v = j.list[x->first + i % VISITS];
            x->visit[i % VISITS] = v;
            x->row[i % VISITS] = v / j.k;
        }
    }
}

/* Many rows: an expert's n visits as `tiles` tiles, all but the last one of so many. */
GPU_FN int tile_share(int n, int tiles)
{
    return (n + tiles - 1) / tiles;
}
GPU_FN int eights(int n)
{
    return (n + 7) / 8 * 8;
}

/* Experts of visits v, v + LIST_THREADS, ..: loads that are under way together; -1 behind the last one. */
enum { LIST_LOADS = 8 };
GPU_FN void load_experts(int (&e)[LIST_LOADS], const struct expert_job &j, int v)
{
#pragma unroll
    for (int i = 0; i < LIST_LOADS; i++) {
        int at = v + i * LIST_THREADS;
        e[i] = at < routed_visits(j) ? j.expert[at] : -1;
    }
}

/* Where visit v goes, whose number in the list of its expert is `at`: l as list_places leaves it.  The
 * quotient in floats is exact: halves are far from whole numbers against 2^-24 of 2^15. */
GPU_FN void place_visit(const struct expert_job &j, const struct visit_lists &l, int e, int v,
                        int at)
{
    const int4 x = l.of[e];
    int tile = (int)(((float)at + 0.5f) * __int_as_float(x.w)), share = l.share[e];
    j.visit[x.x + at] = {v, j.weight[v]};
    j.place[v] = {x.y + tile * eights(share), (int16_t)(at - tile * share),
                  (int16_t)eights(min(share, x.z - tile * share))};
}

/* Tiles in front of this thread's, of width `width`: those of wider ones and of experts before it.  Counts of
 * three widths are added up in one word, ten bits each. */
GPU_FN int tiles_before(const struct expert_job &j, struct visit_lists &l, int tiles, int width)
{
    int before = 0, wider = 0;
    for (int w0 = 0; w0 < ROUTED_WIDTHS; w0 += 3) {
        bool mine = width / 3 == w0 / 3;
        uint32_t all, own = mine ? (uint32_t)tiles << 10 * (width - w0) : 0;
        uint32_t sum = block_sum_before(own, l.wave, &all);
        if (mine)
            before = (int)(sum >> 10 * (width - w0) & 1023);
        for (int w = w0; w < min((int)ROUTED_WIDTHS, w0 + 3); w++) {
            int n = (int)(all >> 10 * (w - w0) & 1023);
            if (threadIdx.x == 0)
                j.n_tiles[w] = n;
            wider += w > width ? n : 0;
        }
    }
    return wider + before;
}

/* list_many with tiles cut evenly, so that 130 visits do not take 256 visits' time, and the visits' places
 * in operands: the tiles' rows one after the other, each filled up to eights. */
GPU_FN void list_places(const struct expert_job &j, struct visit_lists &l)
{
    int t = (int)threadIdx.x, routed = routed_visits(j), e[LIST_LOADS];
    if (t < EXPERTS_MAX)
        l.count[t] = l.start[t] = 0;
    __syncthreads();
    for (int v = t; v < routed; v += LIST_LOADS * LIST_THREADS) {
        load_experts(e, j, v);
#pragma unroll
        for (int i = 0; i < LIST_LOADS; i++)
            if (e[i] >= 0)
                atomicAdd(&l.count[e[i]], 1);
    }
    __syncthreads();
    int n = t < j.n_experts ? l.count[t] : 0, tiles = (n + j.per_tile - 1) / j.per_tile;
    int share = tiles ? tile_share(n, tiles) : 0;
    int rows = tiles ? (tiles - 1) * eights(share) + eights(n - (tiles - 1) * share) : 0;
    uint32_t sum;
    int start = (int)block_sum_before((uint32_t)n, l.wave, &sum);
    int place = (int)block_sum_before((uint32_t)rows, l.wave, &sum);
    int first = tiles_before(j, l, tiles, routed_width(max(share, 1)));
    if (t < j.n_experts) {
        l.of[t] = make_int4(start, place, n, __float_as_int(1.0f / (float)max(share, 1)));
        l.share[t] = share;
    }
    for (int i = 0; i < tiles; i++) {
        struct visit_tile *x = j.tile + first + i;
        name_tile(j, x, t, start + i * share, min(share, n - i * share));
        x->place = place + i * eights(share);
    }
    __syncthreads();
    for (int v = t; v < routed; v += LIST_LOADS * LIST_THREADS) {
        int at[LIST_LOADS];
        load_experts(e, j, v);
#pragma unroll
        for (int i = 0; i < LIST_LOADS; i++)
            at[i] = e[i] < 0 ? 0 : atomicAdd(&l.start[e[i]], 1);
#pragma unroll
        for (int i = 0; i < LIST_LOADS; i++)
            if (e[i] >= 0)
                place_visit(j, l, e[i], v + i * LIST_THREADS, at[i]);
    }
}

/* list_few one visit after the other: for rows that name an expert twice, so that it has more visits than there
 * are rows. */
GPU_FN void list_slowly(const struct expert_job &j, const int *expert)
{
    int routed = routed_visits(j), tiles = 0;
    for (int v = 0; v < routed; v++) {
        bool listed = false;
        for (int u = 0; u < v; u++)
            listed = listed || expert[u] == expert[v];
        int at = 0;
        for (int u = v; u < routed && !listed; u++) {
            if (expert[u] != expert[v])
                continue;
            if (at % VISITS == 0)
                name_tile(j, j.tile + tiles++, expert[v], 0, 0);
            struct visit_tile *x = j.tile + tiles - 1;
            x->visit[at % VISITS] = u;
            x->row[at % VISITS] = u / j.k;
            x->n = at++ % VISITS + 1;
        }
    }
    *j.n_tiles = tiles;
    j.next[0] = j.next[1] = 0;
}

/* list_many for at most 64 visits of at most 8 rows, by one wave, two visits a lane. */
GPU_FN void list_few(const struct expert_job &j, int *expert, int *tile_of)
{
    int routed = routed_visits(j), lane = gpu_lane(), tile[2] = {}, at[2] = {};
    int halves = routed <= 32 ? 1 : 2;
    uint32_t firsts[2] = {};
    for (int h = 0; h < 2; h++)
        expert[lane + 32 * h] = lane + 32 * h < routed ? j.expert[lane + 32 * h] : -1;
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int v = lane + 32 * h, e = expert[v], n = 0;
        if (h >= halves)
            break;
        tile[h] = v; /* its expert's first visit, for now */
#pragma unroll 8
        for (int u = routed - 1; u >= 0; u--) {
            bool same = expert[u] == e;
            n += same;
            at[h] += same && u < v;
            tile[h] = same ? u : tile[h];
        }
        bool first = v < routed && tile[h] == v;
        firsts[h] = __ballot_sync(0xffffffffu, first);
        int before = __popc(firsts[h] & ((1u << lane) - 1)) + (h ? __popc(firsts[0]) : 0);
        if (first) {
            tile_of[v] = before;
            name_tile(j, j.tile + before, e, 0, n);
        }
    }
    __syncwarp();
    if (__any_sync(0xffffffffu, at[0] >= VISITS || at[1] >= VISITS)) {
        if (lane == 0)
            list_slowly(j, expert);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int v = lane + 32 * h;
        if (v >= routed)
            continue;
        struct visit_tile *x = j.tile + tile_of[tile[h]];
        x->visit[at[h]] = v;
        x->row[at[h]] = v / j.k;
    }
    if (lane == 0) {
        *j.n_tiles = __popc(firsts[0]) + __popc(firsts[1]);
        j.next[0] = j.next[1] = 0;
    }
}

/* Blocks after the first: x as operand of both kinds of weights. */
GPU_FN void operand_of_x(const struct expert_job &j)
{
    int blocks = j.dim / LIN_BLOCK, unit = ((int)blockIdx.x - 1) * gpu_waves() + gpu_wave();
    int row = unit / blocks, b = unit % blocks;
    if (row >= j.n_rows)
        return;
    struct gpu_quad v = gpu_load4(j.in.x + (int64_t)row * j.dim + b * LIN_BLOCK + 4 * gpu_lane());
    operand_codes<false>(operand_row((uint8_t *)j.in.grid, j.n_rows, j.dim, row), b, v);
    operand_codes<true>(operand_row(j.x_fp4, j.n_rows, j.dim, row), b, v);
}

GPU_KERNEL void __launch_bounds__(LIST_THREADS, 1)
    list_many_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_SHARED struct visit_lists l;
    gpu_let_next();
    if (blockIdx.x == 0)
        expect_experts(j);
    gpu_wait_before();
    if (blockIdx.x) {
        operand_of_x(j);
        return;
    }
    list_many(j, l);
}

GPU_KERNEL void __launch_bounds__(LIST_THREADS, 1)
    list_places_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_SHARED struct visit_lists l;
    gpu_let_next();
    expect_experts(j);
    gpu_wait_before();
    list_places(j, l);
}

GPU_KERNEL void list_few_kernel(const __grid_constant__ struct expert_job j)
{
    GPU_SHARED int expert[FEW_VISITS], tile_of[FEW_VISITS];
    gpu_let_next();
    if (blockIdx.x == 0)
        expect_experts(j);
    gpu_wait_before();
    if (blockIdx.x) {
        operand_of_x(j);
        return;
    }
    if (gpu_wave() == 0)
        list_few(j, expert, tile_of);
}

/* No lists.  The next kernel starts when all blocks are past the wait: the choice of experts is over then,
 * which it reads before its own wait. */
GPU_KERNEL void operand_kernel(const __grid_constant__ struct expert_job j)
{
    if (blockIdx.x == 0)
        expect_experts(j);
    gpu_wait_before();
    gpu_let_next();
    if (blockIdx.x)
        operand_of_x(j);
    else if (threadIdx.x == 0)
        j.next[0] = j.next[1] = 0;
}

void experts_lists(const struct expert_job &j, struct stream *s)
{
    int64_t waves = j.left ? 0 : (int64_t)j.n_rows * (j.dim / LIN_BLOCK);
    if (j.few)
        sm90_launch(operand_kernel, 1 + div_up(waves, 4), 128, 0, 1, s, j);
    else if (routed_visits(j) <= FEW_VISITS && j.n_rows <= VISITS && j.per_tile >= VISITS)
        sm90_launch(list_few_kernel, 1 + div_up(waves, 4), 128, 0, 1, s, j);
    else
        sm90_launch(list_many_kernel, 1 + div_up(waves, LIST_THREADS / 32), LIST_THREADS, 0, 1, s,
                    j);
}

void experts_places(const struct expert_job &j, struct stream *s)
{
    sm90_launch(list_places_kernel, 1, LIST_THREADS, 0, 1, s, j);
}
