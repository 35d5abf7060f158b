/* tiles.cu - matrix products of many activations for Hopper: lin_run where operands lie in tiles.
 *
 * A block takes 128 outputs of one group by a tile of up to 128 rows (tiles.cuh).  With few such tiles
 * a cluster's blocks divide the slices of K among themselves and add their sums at the end; with many,
 * a block goes through all slices and then on to the next tile.  Unless K is divided by four, two blocks
 * with neighbouring outputs and the same part of K share their inputs. */
#include "kernels/sm90/tiles.cuh"

enum {
    COPIES = 72, /* registers of a thread: three forms of copies need more than experts' one */
    WORKS = 216,
    CARD = 110,      /* blocks that keep a card busy */
    ROWS_AT_ONCE = 8 /* tiles of rows whose blocks run side by side, so that weights come once */
};

struct tile_batch {
    struct lin_batch b; /* job[].blocks: of clusters */
    struct tile_space space;
    int cluster, split, share; /* blocks of a cluster, that divide K at most, that share inputs */
    int parts, units;          /* of a tile of rows: blocks that divide it */
};

/* Blocks that divide job j's slices. */
GPU_BOTH int blocks_of_tile(const struct lin_job &j, int split)
{
    int n = slices(j);
    return n < split ? n : split;
}
/* Clusters' worth of tiles of outputs in a group. */
GPU_BOTH int group_parts(const struct lin_job &j, int cluster, int split)
{
    int tiles = (j.group + TILE_ROWS - 1) / TILE_ROWS, here = cluster / blocks_of_tile(j, split);
    return (tiles + here - 1) / here;
}

/* A block's share of job j: outputs o .. o+outs-1 (outs <= 0: none) of a tile of rows, slices first .. */
struct tile_part {
    int job, o, outs, rank, blocks; /* rank: among the blocks that divide K */
    int first, n_slices, values;    /* values of K in a slice */
    struct row_tile rows;           /* the block's, of `tile` */
    struct row_tile tile;
};

/* Part i of `parts` (1 or 2) of a tile of rows. */
GPU_FN struct row_tile part_of_rows(const struct row_tile &t, int i, int parts)
{
    int half = (t.n8 / 2 + 7) / 8 * 8;
    if (parts == 1)
        return t;
    return i ? row_tile{t.first + half, t.n - half, t.n8 - half} : row_tile{t.first, half, half};
}

GPU_FN struct tile_part part_of(const struct tile_batch &t, int unit, int rank)
{
    struct tile_part p;
    p.job = 0;
    while (unit >= t.b.job[p.job].blocks)
        unit -= t.b.job[p.job++].blocks;
    const struct lin_job &j = t.b.job[p.job];
    int tiles = row_tiles(j.n_rows) * t.parts, n = slices(j);
    int parts = group_parts(j, t.cluster, t.split);
    int wide = parts * (j.w.n_out / j.group), band = wide * ROWS_AT_ONCE; /* units */
    int row = unit / band * ROWS_AT_ONCE, side = min(ROWS_AT_ONCE, tiles - row);
    unit %= band;
    p.tile = row_tile_of(j.n_rows, (row + unit % side) / t.parts);
    p.rows = part_of_rows(p.tile, (row + unit % side) % t.parts, t.parts);
    unit /= side;
    p.blocks = blocks_of_tile(j, t.split);
    p.rank = rank / t.share % p.blocks;
    int tile = rank / (t.share * p.blocks) * t.share + rank % t.share; /* of the cluster's */
    int o = (unit % parts * (t.cluster / p.blocks) + tile) * TILE_ROWS;
    p.outs = min((int)TILE_ROWS, j.group - o);
    p.o = unit / parts * j.group + (p.outs > 0 ? o : 0);
    p.n_slices = n / p.blocks;
    p.first = p.rank * p.n_slices;
    p.values = j.w.n_in / n;
    return p;
}

/* ---------------------------------------------------------------- copies */

template <int F>
GPU_FN void feed_part(const struct lin_job &j, const struct tile_part &p, struct tile_ring &r,
                      bool first)
{
    constexpr int values = tile_form<F>::values, bytes = F == FORM_BF16 ? 2 : 1;
    constexpr int in = F == FORM_FP8 ? 1 : 2; /* bytes of an input value */
    int k = j.w.n_in, from = p.first * p.values, left = (p.outs > 0 ? p.outs : j.group) - 1;
    struct tile_source t = {};
    t.pitch = (int64_t)k * bytes;
    t.w[0] = (const uint8_t *)j.w.data + p.o * t.pitch + (int64_t)from * bytes;
    t.w[1] = t.w[0] + (left >= 8 ? 8 * t.pitch : 0);
    t.last[0] = min(left, (int)TILE_ROWS - 1);
    t.last[1] = left >= 8 ? t.last[0] - 8 : 0;
    t.step = 16;
    t.n = p.rows.n8;
    t.stages = p.n_slices * p.values / values;
    int64_t at = p.o / j.group * (int64_t)k + from; /* value of an input row */
    const uint8_t *x = (const uint8_t *)j.x;
    int r0 = p.rows.first - p.tile.first;
    t.rows = p.tile.n8;
    t.x = x + p.tile.first * ((int64_t)j.ldx * in) + at * in * t.rows + r0 * STREAM_LINE;
    if (F == FORM_FP8)
        t.xs = operand_scales(x, operand_rows(j.n_rows), j.ldx) +
               p.tile.first * (int64_t)(j.ldx / LIN_BLOCK) + at / LIN_BLOCK * t.rows + r0;
    feed_all<F>(t, r, first);
}

GPU_FN void feed_job(const struct lin_job &j, const struct tile_part &p, struct tile_ring &r,
                     bool first)
{
    if (j.w.fmt == WEIGHT_BF16)
        feed_part<FORM_BF16>(j, p, r, first);
    else if (j.flags & LIN_WIDE)
        feed_part<FORM_WIDE>(j, p, r, first);
    else
        feed_part<FORM_FP8>(j, p, r, first);
}

/* ---------------------------------------------------------------- sums */

GPU_FN struct tile_out part_out(const struct lin_job &j, const struct tile_part &p)
{
    int64_t at = p.rows.first * j.ldy + p.o;
    float *y = j.flags & LIN_PACK ? (float *)(void *)((uint16_t *)(void *)j.y + at) : j.y + at;
    struct tile_out out = {y, j.ldy, p.rows.n, p.outs};
    return out;
}

/* This block's slices of a part. */
template <int N>
GPU_FN void sums_of(float (&acc)[N / 2], const struct lin_job &j, const struct tile_part &p,
                    struct tile_ring &r)
{
    struct tile_out out = part_out(j, p);
    if (p.blocks > 1)
        out.y = NULL;
    int o = p.o + (p.outs > group_of() * STREAM_ROWS ? group_of() * STREAM_ROWS : 0);
    const uint8_t *s = j.w.scale;
    int n = p.rows.n8;
    if (j.w.fmt == WEIGHT_BF16) {
        tile_sums<FORM_BF16, N>(acc, r, p.n_slices, p.values / 64, NULL, NULL, n, out);
        return;
    }
    s += (int64_t)(o / 128) * (j.w.n_in / 128) + p.first * p.values / 128;
    if (j.flags & LIN_WIDE)
        tile_sums<FORM_WIDE, N>(acc, r, p.n_slices, p.values / 128, s, NULL, n, out);
    else
        tile_sums<FORM_FP8, N>(acc, r, p.n_slices, p.values / 128, s, NULL, n, out);
}

template <int N>
GPU_FN void put_part(const struct lin_job &j, const struct tile_part &p, const float (&acc)[N / 2])
{
    bool round = j.flags & LIN_ROUND;
    if (j.flags & LIN_PACK) {
        struct tile_out out = part_out(j, p);
        uint16_t *y = (uint16_t *)(void *)out.y;
        each_place<N>(out, [&](int i, int64_t at) { y[at] = gpu_bf16_bits(acc[i]); });
        return;
    }
    each_sum<N>(part_out(j, p), [&](int i, float &y) { y = round ? gpu_bf16(acc[i]) : acc[i]; });
}

/* This block's sums where its ring was, as [row][output]; the pitch keeps banks apart. */
enum { SHARE_PITCH = TILE_ROWS + 4 };
template <int N> GPU_FN void share_sums(float *sums, const float (&acc)[N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sums[sum_row(i) * SHARE_PITCH + sum_out(i)] = acc[i];
}

/* Four neighbouring outputs. */
GPU_FN void store_four(const struct lin_job &j, const struct tile_part &p, int row, int o, float4 v)
{
    float *y = j.y + (p.rows.first + row) * j.ldy + p.o + o;
    bool round = j.flags & LIN_ROUND;
    const float f[4] = {v.x, v.y, v.z, v.w};
    if (!(j.flags & LIN_PACK) && o + 4 <= p.outs && ((uintptr_t)y & 15) == 0) {
        *(float4 *)(void *)y =
            round ? make_float4(gpu_bf16(v.x), gpu_bf16(v.y), gpu_bf16(v.z), gpu_bf16(v.w)) : v;
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (o + k < p.outs)
            lin_store(j, p.rows.first + row, p.o + o + k, f[k]);
}

/* The sums of the two blocks that divide K; each takes half of the values, the other one's of several places
 * on their way together. */
GPU_FN void join_sums(const struct lin_job &j, const struct tile_part &p, const float *sums,
                      int rank)
{
    enum { AT_ONCE = 4, STEP = 2 * TILE_WORKERS };
    int block0 = rank - p.rank, all = p.rows.n * (TILE_ROWS / 4);
    for (int i0 = p.rank * TILE_WORKERS + (int)threadIdx.x; i0 < all; i0 += AT_ONCE * STEP) {
        float4 v[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int at = min(i0 + i * STEP, all - 1);
            const float *mine =
                sums + at / (TILE_ROWS / 4) * SHARE_PITCH + at % (TILE_ROWS / 4) * 4;
            v[i][0] = cluster_load4(shared_at(mine), block0);
            v[i][1] = cluster_load4(shared_at(mine), block0 + 1);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int at = i0 + i * STEP;
            float4 a = v[i][0], b = v[i][1];
            if (at < all)
                store_four(j, p, at / (TILE_ROWS / 4), at % (TILE_ROWS / 4) * 4,
                           make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w));
        }
    }
}

template <int N>
GPU_KERNEL void __launch_bounds__(TILE_THREADS, 1)
    tiles_kernel(const __grid_constant__ struct tile_batch t)
{
    GPU_DYNAMIC(uint8_t, shared);
    bool dividing = t.split > 1;
    int rank = cluster_rank(), cluster = (int)blockIdx.x / t.cluster;
    int step = (int)gridDim.x / t.cluster;
    struct tile_ring r = ring_of(shared, t.space, t.share);
    gpu_let_next();
    ring_start(r);
    if (group_of() == 2) {
        registers_fewer<COPIES>();
        for (int u = cluster; u < t.units; u += step) {
            struct tile_part p = part_of(t, u, rank);
            feed_job(t.b.job[p.job], p, r, u == cluster);
        }
        if (dividing)
            cluster_sync();
    } else {
        registers_more<WORKS>();
        float acc[N / 2];
        gpu_wait_before();
        for (int u = cluster; u < t.units; u += step) {
            struct tile_part p = part_of(t, u, rank);
            const struct lin_job &j = t.b.job[p.job];
            sums_of<N>(acc, j, p, r);
            if (p.blocks == 1)
                put_part<N>(j, p, acc);
            if (!dividing)
                continue;
            workers_sync(); /* the ring is empty */
            float *sums = (float *)(void *)r.base;
            if (p.blocks > 1)
                share_sums<N>(sums, acc);
            cluster_sync();
            if (p.blocks > 1)
                join_sums(j, p, sums, rank);
        }
    }
    cluster_sync(); /* nobody leaves while others read its sums or send it inputs */
}

/* ---------------------------------------------------------------- launch */

template <int N> static int64_t slot_of(const struct lin_job *j)
{
    if (j->w.fmt == WEIGHT_BF16)
        return tile_slot<FORM_BF16, N>();
    return j->flags & LIN_WIDE ? tile_slot<FORM_WIDE, N>() : tile_slot<FORM_FP8, N>();
}

static int64_t tiles_of(const struct lin_job *j)
{
    return div_up(j->group, TILE_ROWS) * (j->w.n_out / j->group) * row_tiles(j->n_rows);
}

/* Bytes of weights that a block of the job reads in a go. */
static int64_t work_of(const struct lin_job *j, int split)
{
    int64_t line = (int64_t)j->w.n_in * (j->w.fmt == WEIGHT_BF16 ? 2 : 1);
    return line / blocks_of_tile(*j, split);
}

/* The jobs with longest blocks first: short ones fill the gaps at the end. */
static void sort_jobs(struct lin_batch *b, int split)
{
    for (int i = 1; i < b->n; i++)
        for (int k = i; k > 0 && work_of(&b->job[k - 1], split) < work_of(&b->job[k], split); k--) {
            struct lin_job j = b->job[k];
            b->job[k] = b->job[k - 1];
            b->job[k - 1] = j;
        }
}

/* Blocks of the batch when so many divide K. */
static int64_t blocks_of(const struct lin_batch *b, int split)
{
    int64_t blocks = 0;
    for (int i = 0; i < b->n; i++)
        blocks += tiles_of(&b->job[i]) * blocks_of_tile(b->job[i], split);
    return blocks;
}

/* Rows of the widest tile. */
static int tile_width(const struct lin_batch *b)
{
    int rows = 0;
    for (int i = 0; i < b->n; i++)
        rows = FST_MAX(rows, row_tile_rows(b->job[i].n_rows));
    return rows;
}

template <int N>
static void launch(struct stream *s, const struct lin_batch *b, int split, int parts)
{
    struct tile_batch t = {*b, {}, 2, split, split == 1 ? 2 : 1, parts, 0};
    int64_t slot = 0;
    int levels = 0;
    t.cluster = t.split * t.share;
    sort_jobs(&t.b, t.split);
    for (int i = 0; i < b->n; i++) {
        struct lin_job *j = &t.b.job[i];
        FST_ASSERT(!(j->flags & LIN_PACK) || slices(*j) == 1); /* sums wait where the output goes */
        int here = blocks_of_tile(*j, t.split), local = slices(*j) / here;
        j->blocks = group_parts(*j, t.cluster, t.split) * (j->w.n_out / j->group) *
                    row_tiles(j->n_rows) * parts;
        t.units += j->blocks;
        slot = FST_MAX(slot, slot_of<N>(j));
        levels = FST_MAX(levels, tile_levels(local, here == 1));
    }
    t.space = tile_space_of(N, (int)slot, tile_scales<FORM_FP8, N>(), levels);
    FST_ASSERT(t.split == 1 || t.space.slots * t.space.slot >= N * SHARE_PITCH * 4);
    int64_t clusters = t.units;
    if (t.split == 1)
        clusters = FST_MIN(clusters, FST_MAX(1, s->device->multiprocessors / t.cluster));
    sm90_launch(tiles_kernel<N>, clusters * t.cluster, TILE_THREADS, tile_bytes(&t.space),
                t.cluster, s, t);
}

/* Few tiles: K is divided by two blocks, a cluster; if that does not do, wide tiles of rows by two as well.
 * Clusters of four do not fit: with 32 of them a second round of some cost as much as the first (128
 * rows of wo_a 59 us). */
void sm90_run_tiles(struct stream *s, struct lin_batch *b)
{
    int rows = tile_width(b), split = blocks_of(b, 1) < CARD ? 2 : 1;
    int parts = blocks_of(b, split) < CARD && rows >= 16 ? 2 : 1;
    if (parts == 2)
        rows = (rows / 2 + 7) / 8 * 8;
    if (rows <= 64)
        launch<64>(s, b, split, parts);
    else if (rows <= 96)
        launch<96>(s, b, split, parts);
    else
        launch<128>(s, b, split, parts);
}
