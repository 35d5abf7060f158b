/* many.cu - experts of many rows for Hopper: the routed ones, FP4, and the shared one, FP8, in tiles of up to
 * 112 visits or 128 rows (tiles.cuh).
 *
 * Visits are those of experts.cu, and so are the bits.  Launches: lists; operands; gate and up of the
 * routed experts; of the shared one; hidden values to the E4M3 grid; down; down of the shared one, which
 * is a projection like others; sums (experts.cu).
 *
 * The operand of a routed visit lies where its tile is, so that a tile is one bulk copy a stage; a
 * block's scale comes with its ratio to the last one's, by which sums in the inputs' units go on. */
#include "kernels/sm90/experts.cuh"
#include "kernels/sm90/tiles.cuh"

enum {
    ROUTED_MOST = 112
}; /* visits of a routed tile: with more, w2's sums of segments find no registers */

/* ---------------------------------------------------------------- operands */

/* Bytes of a routed operand's row of n values: codes, and of each block a ratio and a scale. */
GPU_BOTH int64_t routed_bytes(int64_t n)
{
    return n + n / LIN_BLOCK * 8;
}

/* The place of a visit in an operand of n values a row; scale: of its ratios, scales n8 floats on. */
GPU_FN struct operand_place place_in(uint8_t *codes, int64_t places, int64_t n,
                                     const struct visit_place &v)
{
    struct operand_place to = operand_in_tile(codes, places, n, v.first, v.n8, v.row);
    to.scale += v.first * (n / LIN_BLOCK);
    to.s_pitch = 2 * v.n8;
    return to;
}

/* Blocks of a row that a wave takes: their loads are under way together, and a visit's place is worked out
 * once for them.  Lane b < TOGETHER has their scales' codes, and of each that of the block before. */
enum { TOGETHER = 8 };
struct coded {
    uint32_t codes[TOGETHER], code, last;
};

/* v[0]: the block before, where there is one. */
GPU_FN void code_blocks(struct coded &c, const struct gpu_quad (&v)[TOGETHER + 1], bool first)
{
    uint32_t code[TOGETHER + 1];
    int lane = gpu_lane();
#pragma unroll
    for (int b = 1; b <= TOGETHER; b++)
        code[b] = operand_quantise(&c.codes[b - 1], v[b]);
    uint32_t unused;
    code[0] = first ? code[1] : operand_quantise(&unused, v[0]);
    c.code = c.last = 0;
#pragma unroll
    for (int b = 0; b < TOGETHER; b++) {
        c.last = lane == b ? code[b] : c.last;
        c.code = lane == b ? code[b + 1] : c.code;
    }
}

/* Blocks b .. b+n-1 there; routed: with ratios.  words: operand_word's of the codes. */
template <bool ROUTED>
GPU_FN void put_blocks(const struct operand_place &to, int b, int n,
                       const uint32_t (&words)[TOGETHER], const struct coded &c)
{
    uint8_t *line = to.line + b * to.pitch + operand_word_at<ROUTED>(to.swap);
    float *scale = to.scale + (b + gpu_lane()) * to.s_pitch;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        if (i < n)
            *(uint32_t *)(void *)(line + i * to.pitch) = words[i];
    if (gpu_lane() >= n)
        return;
    if (ROUTED) {
        scale[0] = gpu_float(0x3f800000u + (c.last << 23) - (c.code << 23));
        scale[to.s_pitch / 2] = gpu_e8m0(c.code);
    } else
        scale[0] = gpu_e8m0(c.code);
}

/* Units of a kernel below: so many blocks of a row. */
GPU_BOTH int together_parts(int width)
{
    return (width / LIN_BLOCK + TOGETHER - 1) / TOGETHER;
}

/* A wave for some blocks of a row: x for the shared expert and for the row's k routed visits. */
GPU_KERNEL void spread_kernel(const __grid_constant__ struct expert_job j)
{
    int unit = (int)blockIdx.x * gpu_waves() + gpu_wave(), parts = together_parts(j.dim);
    int row = unit / parts, b = unit % parts * TOGETHER, lane = gpu_lane();
    gpu_let_next();
    gpu_wait_before();
    if (row >= j.n_rows)
        return;
    int n = min((int)TOGETHER, j.dim / LIN_BLOCK - b);
    const float *x = j.in.x + (int64_t)row * j.dim + 4 * lane;
    struct gpu_quad v[TOGETHER + 1];
    struct visit_place mine = {};
    struct coded c;
    if (lane < j.k) /* all places at once, one in a lane */
        mine = j.place[row * j.k + lane];
#pragma unroll
    for (int i = 0; i <= TOGETHER; i++)
        v[i] = gpu_load4(x + max(0, b + min(i, n) - 1) * LIN_BLOCK);
    code_blocks(c, v, b == 0);
    put_blocks<false>(operand_at((uint8_t *)j.in.grid, j.n_rows, j.dim, row), b, n, c.codes, c);
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        c.codes[i] = operand_word<true>(c.codes[i]);
    for (int s = 0; s < j.k; s++) {
        struct visit_place at = {__shfl_sync(0xffffffffu, mine.first, s),
                                 (int16_t)__shfl_sync(0xffffffffu, mine.row, s),
                                 (int16_t)__shfl_sync(0xffffffffu, mine.n8, s)};
        put_blocks<true>(place_in(j.x_fp4, j.places, j.dim, at), b, n, c.codes, c);
    }
}

/* A wave for some blocks of a visit: hidden values as operand of w2. */
GPU_KERNEL void codes_kernel(const __grid_constant__ struct expert_job j)
{
    int unit = (int)blockIdx.x * gpu_waves() + gpu_wave(), parts = together_parts(j.moe_dim);
    int visit = unit / parts, b = unit % parts * TOGETHER, lane = gpu_lane();
    gpu_let_next();
    gpu_wait_before();
    if (visit >= all_visits(j))
        return;
    int n = min((int)TOGETHER, j.moe_dim / LIN_BLOCK - b);
    const uint16_t *h = j.h + (int64_t)visit * j.moe_dim + 4 * lane;
    uint2 p[TOGETHER + 1];
    struct gpu_quad v[TOGETHER + 1];
    struct coded c;
#pragma unroll
    for (int i = 0; i <= TOGETHER; i++)
        p[i] = *(const uint2 *)(const void *)(h + max(0, b + min(i, n) - 1) * LIN_BLOCK);
#pragma unroll
    for (int i = 0; i <= TOGETHER; i++)
        v[i] = {{gpu_low(p[i].x), gpu_high(p[i].x), gpu_low(p[i].y), gpu_high(p[i].y)}};
    code_blocks(c, v, b == 0);
    if (visit >= routed_visits(j)) {
        put_blocks<false>(operand_at(j.h_shared, j.n_rows, j.moe_dim, visit - routed_visits(j)), b,
                          n, c.codes, c);
        return;
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        c.codes[i] = operand_word<true>(c.codes[i]);
    put_blocks<true>(place_in(j.h_codes, j.places, j.moe_dim, j.place[visit]), b, n, c.codes, c);
}

/* ---------------------------------------------------------------- routed experts */

struct many_job {
    struct expert_job j;
    struct tile_space space;
    int cast, units; /* of the shared expert: blocks that share inputs; clusters' worth of tiles */
};

/* 64 hidden values of a tile, gate and up, or 128 outputs. */
template <bool DOWN> GPU_BOTH int outs_of(const struct expert_job &j)
{
    return DOWN ? (j.dim + TILE_ROWS - 1) / TILE_ROWS : (j.moe_dim + 63) / 64;
}

template <bool DOWN>
GPU_FN void feed_routed(const struct expert_job &j, const struct visit_tile &v, int out,
                        struct tile_ring &r)
{
    int k = DOWN ? j.moe_dim : j.dim, o = out * (DOWN ? (int)TILE_ROWS : 64);
    int left = (DOWN ? j.dim : j.moe_dim) - o - 1, second = DOWN && left >= 8 ? 8 : 0;
    const uint8_t *codes = DOWN ? j.h_codes : j.x_fp4;
    struct tile_source t = {};
    t.pitch = k / 2;
    t.s_pitch = k / 32;
    t.w[0] = v.w[DOWN ? 2 : 0] + o * t.pitch;
    t.s[0] = v.s[DOWN ? 2 : 0] + (int64_t)o * t.s_pitch;
    t.w[1] = v.w[DOWN ? 2 : 1] + (o + second) * t.pitch;
    t.s[1] = v.s[DOWN ? 2 : 1] + (int64_t)(o + second) * t.s_pitch;
    t.last[0] = left;
    t.last[1] = left - second;
    t.step = DOWN ? 16 : 8;
    t.x = codes + (int64_t)v.place * k;
    t.xs = operand_scales(codes, j.places, k) + 2 * (int64_t)v.place * (k / LIN_BLOCK);
    t.rows = t.n = (v.n + 7) / 8 * 8;
    t.stages = k / LIN_BLOCK;
    feed_all<FORM_FP4>(t, r, false);
}

/* Hidden values of a tile's visits: column c's is list[first + c], or with no list first + c.  A thread has
 * gate and up of one value for its columns. */
template <int N>
GPU_FN void put_hidden_many(const struct expert_job &j, const int32_t *list, int first, int n,
                            int out, const float (&acc)[N / 2])
{
    int t = group_thread(), o = out * 64 + group_of() * 32 + t / 32 * 8 + t / 4 % 8;
    if (o >= j.moe_dim)
        return;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int c = sum_row(i);
        if (i & 2 || c >= n)
            continue;
        int v = list ? list[first + c] : first + c;
        float weight = list ? j.weight[v] : 1.0f;
        float a = fminf(gpu_bf16(acc[i]), j.limit);
        float b = fmaxf(-j.limit, fminf(gpu_bf16(acc[i + 2]), j.limit));
        j.h[(int64_t)v * j.moe_dim + o] = gpu_bf16_bits(weight * (a * gpu_sigmoid(a) * b));
    }
}

/* Outputs of a tile's visits. */
template <int N>
GPU_FN void put_outputs(const struct expert_job &j, const struct visit_tile &v, int out,
                        const float (&acc)[N / 2])
{
    int o = out * TILE_ROWS + sum_out(0);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        if (i & 2 || sum_row(i) >= v.n)
            continue;
        float *z = j.z + (int64_t)j.list[v.first + sum_row(i)] * j.dim + o;
        if (o < j.dim)
            z[0] = acc[i];
        if (o + 8 < j.dim)
            z[8] = acc[i + 2];
    }
}

/* A tile of up to 2*H visits. */
template <bool DOWN, int H>
GPU_FN void sum_routed(const struct expert_job &j, const struct visit_tile &v, int out,
                       struct tile_ring &r)
{
    int n8 = (v.n + 7) / 8 * 8, blocks = (DOWN ? j.moe_dim : j.dim) / LIN_BLOCK;
    float acc[H], pair[H];
    if (!DOWN) {
        tile_fp4<H>(acc, r, blocks, n8);
        put_hidden_many<2 * H>(j, j.list, v.first, v.n, out, acc);
        return;
    }
    struct tile_out none = {};
    for (int k = 0; k < KERN_SEGMENTS / 2; k++) {
        tile_fp4<H>(pair, r, blocks / KERN_SEGMENTS, n8);
        tile_fp4<H>(acc, r, blocks / KERN_SEGMENTS, n8);
#pragma unroll
        for (int i = 0; i < H; i++)
            acc[i] = pair[i] + acc[i];
        tile_join<2 * H>(acc, r, k, KERN_SEGMENTS / 2, none);
    }
    put_outputs<2 * H>(j, v, out, acc);
}

template <bool DOWN>
GPU_KERNEL void __launch_bounds__(TILE_THREADS, 1)
    routed_kernel(const __grid_constant__ struct many_job m)
{
    GPU_DYNAMIC(uint8_t, shared);
    const struct expert_job &j = m.j;
    struct tile_ring r = ring_of(shared, m.space, 1);
    gpu_let_next();
    ring_start(r);
    gpu_wait_before();
    int outs = outs_of<DOWN>(j), all = *j.n_tiles * outs;
    if (group_of() == 2) {
        registers_fewer<TILE_COPIES>();
        for (int u = (int)blockIdx.x; u < all; u += (int)gridDim.x)
            feed_routed<DOWN>(j, j.tile[u / outs], u % outs, r);
        copies_wait<0>();
        return;
    }
    registers_more<TILE_WORKS>();
    for (int u = (int)blockIdx.x; u < all; u += (int)gridDim.x) {
        const struct visit_tile &v = j.tile[u / outs];
        if (v.n <= 32)
            sum_routed<DOWN, 16>(j, v, u % outs, r);
        else if (v.n <= 64)
            sum_routed<DOWN, 32>(j, v, u % outs, r);
        else if (v.n <= 96)
            sum_routed<DOWN, 48>(j, v, u % outs, r);
        else
            sum_routed<DOWN, ROUTED_MOST / 2>(j, v, u % outs, r);
    }
}

/* ---------------------------------------------------------------- the shared expert */

/* Gate and up; K in two halves.  Neighbouring blocks share their inputs. */
GPU_KERNEL void __launch_bounds__(TILE_THREADS, 1)
    shared_kernel(const __grid_constant__ struct many_job m)
{
    GPU_DYNAMIC(uint8_t, shared);
    const struct expert_job &j = m.j;
    const struct mat &w1 = j.shared.w1, &w3 = j.shared.w3;
    struct tile_ring r = ring_of(shared, m.space, m.cast);
    int rank = cluster_rank(), cluster = (int)blockIdx.x / m.cast, k = j.dim;
    int step = (int)gridDim.x / m.cast, tiles = row_tiles(j.n_rows);
    gpu_let_next();
    ring_start(r);
    if (group_of() == 2) {
        registers_fewer<TILE_COPIES>();
        for (int u = cluster; u < m.units; u += step) {
            struct row_tile rows = row_tile_of(j.n_rows, u % tiles);
            int o = (u / tiles * m.cast + rank) * 64;
            struct tile_source t = {};
            t.pitch = k;
            t.w[0] = (const uint8_t *)w1.data + (int64_t)o * k;
            t.w[1] = (const uint8_t *)w3.data + (int64_t)o * k;
            t.last[0] = t.last[1] = j.moe_dim - o - 1;
            t.step = 8;
            t.x = (const uint8_t *)j.in.grid + (int64_t)rows.first * k;
            t.xs = operand_scales((const uint8_t *)j.in.grid, operand_rows(j.n_rows), k) +
                   rows.first * (int64_t)(k / LIN_BLOCK);
            t.rows = t.n = rows.n8;
            t.stages = k / LIN_BLOCK;
            feed_all<FORM_FP8>(t, r, u == cluster);
        }
    } else {
        registers_more<TILE_WORKS>();
        gpu_wait_before();
        struct tile_out none = {};
        for (int u = cluster; u < m.units; u += step) {
            struct row_tile rows = row_tile_of(j.n_rows, u % tiles);
            int out = u / tiles * m.cast + rank;
            int64_t s = (int64_t)(out * 64 / LIN_BLOCK) * (k / LIN_BLOCK);
            float acc[TILE_INPUTS / 2];
            tile_sums<FORM_FP8, TILE_INPUTS, true>(acc, r, 2, k / LIN_BLOCK / 2, w1.scale + s,
                                                   w3.scale + s, rows.n8, none);
            put_hidden_many<TILE_INPUTS>(j, NULL, routed_visits(j) + rows.first, rows.n, out, acc);
        }
    }
    cluster_sync(); /* nobody leaves while the other sends it inputs */
}

/* ---------------------------------------------------------------- launches */

template <bool DOWN> static void routed(const struct expert_job &j, struct stream *s)
{
    struct many_job m = {j, {}, 1, 0};
    m.space = tile_space_of(ROUTED_MOST, tile_slot<FORM_FP4, ROUTED_MOST>(),
                            tile_scales<FORM_FP4, ROUTED_MOST>(), DOWN ? 2 : 0);
    int64_t most = routed_tiles(j) * outs_of<DOWN>(j);
    sm90_launch(routed_kernel<DOWN>, FST_MIN(most, j.processors), TILE_THREADS,
                tile_bytes(&m.space), 1, s, m);
}

static void gate_and_up(const struct expert_job &j, struct stream *s)
{
    int outs = outs_of<false>(j);
    struct many_job m = {j, {}, outs % 2 ? 1 : 2, 0};
    m.units = outs / m.cast * row_tiles(j.n_rows);
    m.space = tile_space_of(TILE_INPUTS, tile_slot<FORM_FP8, TILE_INPUTS>(),
                            tile_scales<FORM_FP8, TILE_INPUTS>(), 1);
    int clusters = FST_MIN(m.units, FST_MAX(1, j.processors / m.cast));
    sm90_launch(shared_kernel, (int64_t)clusters * m.cast, TILE_THREADS, tile_bytes(&m.space),
                m.cast, s, m);
}

static void down_shared(const struct expert_job &j, struct stream *s)
{
    struct lin_batch b = {};
    lin_add(&b, &j.shared.w2, 1, (const uint16_t *)j.h_shared, j.n_rows,
            j.z + (int64_t)routed_visits(j) * j.dim, j.dim, LIN_SEGMENTS);
    sm90_run_tiles(s, &b);
}

/* Scratch of j; what is dead before w2's outputs are written lies where they go. */
static void cut(struct gpu_cut *c, struct expert_job *j)
{
    int64_t visits = all_visits(*j), rows = operand_rows(j->n_rows);
    size_t x = gpu_piece(j->places, (size_t)routed_bytes(j->dim));
    size_t h = gpu_piece(visits * j->moe_dim, 2), z = gpu_piece(visits * j->dim, 4);
    j->in.grid = (uint16_t *)gpu_take<uint8_t>(c, rows * routed_bytes(j->dim));
    j->tile = gpu_take<struct visit_tile>(c, routed_tiles(*j));
    j->n_tiles = gpu_take<int32_t>(c, 1);
    j->list = gpu_take<int32_t>(c, visits);
    j->place = gpu_take<struct visit_place>(c, visits);
    j->h_codes = gpu_take<uint8_t>(c, j->places * routed_bytes(j->moe_dim));
    j->h_shared = gpu_take<uint8_t>(c, rows * routed_bytes(j->moe_dim));
    j->x_fp4 = gpu_take<uint8_t>(c, (int64_t)FST_MAX(z, x + h));
    j->z = (float *)(void *)j->x_fp4;
    j->h = (uint16_t *)(void *)(j->x_fp4 + x);
}

size_t experts_many_scratch(const struct expert_job &j)
{
    struct expert_job own = j;
    struct gpu_cut c = {NULL, SIZE_MAX};
    own.per_tile = ROUTED_MOST;
    own.places = routed_places(own);
    cut(&c, &own);
    return SIZE_MAX - c.left;
}

void experts_many(struct expert_job j, struct stream *s)
{
    struct gpu_cut c = gpu_scratch(s);
    FST_ASSERT(j.k <= GPU_WAVE);
    j.per_tile = ROUTED_MOST;
    j.places = routed_places(j);
    cut(&c, &j);
    experts_places(j, s);
    sm90_launch(spread_kernel, div_up((int64_t)j.n_rows * together_parts(j.dim), 4), 128, 0, 1, s,
                j);
    routed<false>(j, s);
    gate_and_up(j, s);
    sm90_launch(codes_kernel, div_up((int64_t)all_visits(j) * together_parts(j.moe_dim), 4), 128, 0,
                1, s, j);
    routed<true>(j, s);
    down_shared(j, s);
    experts_sums(j, s);
}
