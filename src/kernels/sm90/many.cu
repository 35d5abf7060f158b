/* many.cu - experts of many rows for Hopper: the routed ones, FP4, in tiles of up to 112 visits (routed.cuh), and
 * the shared one, FP8, in tiles of up to 128 rows (tiles.cuh).
 *
 * Visits are those of experts.cu, and so are the bits.  Launches: lists; operands; gate and up of the
 * routed experts; of the shared one; hidden values to the E4M3 grid; down; down of the shared one, which
 * is a projection like others; sums (experts.cu).
 *
 * The operand of a routed visit lies where its tile is, so that a tile is one bulk copy a stage; a
 * block's scale comes with its ratio to the last one's, by which sums in the inputs' units go on. */
#include "kernels/sm90/routed.cuh"

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

/* Blocks' worth of hidden values, or of outputs. */
template <bool DOWN> GPU_BOTH int outs_of(const struct expert_job &j)
{
    constexpr int rows = routed_form<DOWN>::rows;
    return ((DOWN ? j.dim : 2 * j.moe_dim) + rows - 1) / rows;
}

/* Hidden values of a tile's visits, from o on.  A thread has gate and up of one value for its columns. */
template <int W>
GPU_FN void put_routed(const struct expert_job &j, const struct tile_ring &r, int n, int o,
                       const float (&acc)[PARTS][W / 2])
{
#pragma unroll
    for (int c = 0; c < PARTS * W / 8; c++) {
        int4 v = visits_of_columns<false>(r, c);
        const float *sum = &acc[c / (W / 8)][c % (W / 8) * 4];
        int column = 8 * c + 2 * (group_thread() % 4);
        if (column < n)
            j.h[(int64_t)v.x * j.moe_dim + o] =
                hidden_value(sum[0], sum[2], __int_as_float(v.y), j.limit);
        if (column + 1 < n)
            j.h[(int64_t)v.z * j.moe_dim + o] =
                hidden_value(sum[1], sum[3], __int_as_float(v.w), j.limit);
    }
}

/* Outputs o and o+8 of a tile's visits. */
template <int W>
GPU_FN void put_outputs(const struct expert_job &j, const struct tile_ring &r, int n, int o,
                        const float (&acc)[PARTS][W / 2])
{
#pragma unroll
    for (int c = 0; c < PARTS * W / 8; c++) {
        int4 v = visits_of_columns<true>(r, c);
        const float *sum = &acc[c / (W / 8)][c % (W / 8) * 4];
        int column = 8 * c + 2 * (group_thread() % 4);
        float *z = j.z + (int64_t)v.x * j.dim + o, *y = j.z + (int64_t)v.z * j.dim + o;
        if (column < n) {
            z[0] = sum[0];
            z[8] = sum[2];
        }
        if (column + 1 < n) {
            y[0] = sum[1];
            y[8] = sum[3];
        }
    }
}

/* A tile of up to PARTS*W visits. */
template <bool DOWN, int W>
GPU_FN void sum_routed(const struct expert_job &j, const struct visit_tile &v, int out,
                       struct tile_ring r)
{
    constexpr int rows = routed_form<DOWN>::rows, half = W / 2;
    int n8 = (v.n + 7) / 8 * 8, blocks = (DOWN ? j.moe_dim : j.dim) / LIN_BLOCK;
    int row = out * rows + routed_group() * STREAM_ROWS; /* this warpgroup's first one */
    if (row >= (DOWN ? j.dim : 2 * j.moe_dim)) {
        routed_nothing(r, blocks);
        return;
    }
    row += group_thread() / 32 * 16;
    float acc[PARTS][half];
    if (!DOWN) {
        routed_sum<DOWN, W>(acc, r, blocks, n8);
        put_routed<W>(j, r, v.n, row / 2 + group_thread() / 4 % 8, acc);
    } else {
        struct tile_out none = {};
        routed_pairs<W>(acc, r, blocks / KERN_SEGMENTS, n8, [&](int k) {
            tile_join<PARTS * W>(*(float(*)[PARTS * half]) acc, r, k, KERN_SEGMENTS / 2, none);
        });
        put_outputs<W>(j, r, v.n, row + group_thread() / 4 % 8, acc);
    }
    ring_release(r);
}

/* Which outputs of its tile unit u is: another block's turn comes to the last ones, which are few, each time. */
GPU_FN int out_of(int u, int outs)
{
    return (u + u / outs) % outs;
}

/* Tiles of a width.  (All widths in one kernel: the sums spill.)  The widest ones' kernel waits for the kernel in
 * front and only then lets the next start, so what it waited for is over when the others start: they wait at
 * their end, in the name of who comes behind, and fill the processors that the one before leaves. */
template <bool DOWN, int WIDTH>
GPU_KERNEL void __launch_bounds__(routed_form<DOWN>::threads, 1)
    routed_kernel(const __grid_constant__ struct many_job m)
{
    constexpr int groups = routed_form<DOWN>::groups, W = routed_most(WIDTH) / PARTS;
    constexpr bool first = WIDTH + 1 == ROUTED_WIDTHS;
    GPU_DYNAMIC(uint8_t, shared);
    const struct expert_job &j = m.j;
    struct tile_ring r = ring_of(shared, m.space, 1);
    ring_start(r, ROUTED_COPIERS, groups * STREAM_THREADS / 32);
    if (first)
        gpu_wait_before();
    gpu_let_next();
    const struct visit_tile *tile = j.tile;
#pragma unroll
    for (int w = WIDTH + 1; w < ROUTED_WIDTHS; w++)
        tile += j.n_tiles[w];
    int outs = outs_of<DOWN>(j), all = j.n_tiles[WIDTH] * outs;
    if (routed_group() == groups) {
        registers_fewer<routed_form<DOWN>::copies>();
        for (int u = (int)blockIdx.x; u < all; u += (int)gridDim.x)
            feed_routed<DOWN>(routed_source_of<DOWN>(j, tile[u / outs], out_of(u, outs)), r);
        copies_wait<0>();
    } else {
        registers_more<routed_form<DOWN>::works>();
        int done = 0, blocks = (DOWN ? j.moe_dim : j.dim) / LIN_BLOCK;
        for (int u = (int)blockIdx.x; u < all; u += (int)gridDim.x, done += blocks) {
            ring_go(r, done);
            sum_routed<DOWN, W>(j, tile[u / outs], out_of(u, outs), r);
        }
    }
    if (!first)
        gpu_wait_before();
}

/* ---------------------------------------------------------------- the shared expert */

/* 64 hidden values of rows; a thread has gate and up of one value for its columns. */
template <int N>
GPU_FN void put_shared(const struct expert_job &j, const struct row_tile &rows, int out,
                       const float (&acc)[N / 2])
{
    int t = group_thread(), o = out * 64 + group_of() * 32 + t / 32 * 8 + t / 4 % 8;
    if (o >= j.moe_dim)
        return;
    uint16_t *h = j.h + (int64_t)(routed_visits(j) + rows.first) * j.moe_dim + o;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        if (!(i & 2) && sum_row(i) < rows.n)
            h[(int64_t)sum_row(i) * j.moe_dim] = hidden_value(acc[i], acc[i + 2], 1.0f, j.limit);
}

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
            put_shared<TILE_INPUTS>(j, rows, out, acc);
        }
    }
    cluster_sync(); /* nobody leaves while the other sends it inputs */
}

/* ---------------------------------------------------------------- launches */

template <bool DOWN, int WIDTH>
static void routed_width_of(const struct many_job &m, int64_t blocks, struct stream *s)
{
    sm90_launch(routed_kernel<DOWN, WIDTH>, blocks, routed_form<DOWN>::threads,
                tile_bytes(&m.space), 1, s, m);
}

template <bool DOWN> static void routed(const struct expert_job &j, struct stream *s)
{
    struct many_job m = {j, {}, 1, 0};
    m.space = tile_space_of(ROUTED_MOST, routed_form<DOWN>::slot, routed_form<DOWN>::scales,
                            DOWN ? 2 : 0);
    int64_t blocks = FST_MIN(routed_tiles(j) * outs_of<DOWN>(j), j.processors);
    static_assert(ROUTED_WIDTHS == 5, "a launch each");
    FST_ASSERT(routed_tiles(j) < 1024); /* tiles_before */
    routed_width_of<DOWN, 4>(m, blocks, s);
    routed_width_of<DOWN, 3>(m, blocks, s);
    routed_width_of<DOWN, 2>(m, blocks, s);
    routed_width_of<DOWN, 1>(m, blocks, s);
    routed_width_of<DOWN, 0>(m, blocks, s);
}

static void gate_and_up(const struct expert_job &j, struct stream *s)
{
    int outs = (int)div_up(j.moe_dim, 64);
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
    j->n_tiles = gpu_take<int32_t>(c, ROUTED_WIDTHS);
    j->visit = gpu_take<struct routed_visit>(c, routed_visits(*j));
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
