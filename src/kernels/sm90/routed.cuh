/* routed.cuh - FP4 weights by many visits: a block multiplies 128 or 192 weight rows by up to 112 visits.
 *
 * The ring is that of tiles.cuh.  One warpgroup copies: weights as the checkpoint stores them, 16 bytes a
 * thread; inputs and the ratios of their scales as bulk copies; the tile's visits with its last stage.  Two or three
 * warpgroups multiply 64 weight rows each: each more is a warp more for every scheduler, and unpacking codes and
 * adding up products are what bounds these sums, not the matrix unit.
 *
 * A sum is that of walk.cuh: a step is 32 values with one scale per weight row, whose products are added by
 * themselves; every 128 values the sum goes from the units of one block's inputs to those of the next.
 * Visits of a tile are multiplied in two parts, one after the other, so that while a part's products
 * are added up those of the next are under way. */
#ifndef FST_KERNELS_SM90_ROUTED_CUH
#define FST_KERNELS_SM90_ROUTED_CUH

#include "kernels/sm90/experts.cuh"
#include "kernels/sm90/tiles.cuh"

enum {
    PARTS = 2,
    STEPS = 4,        /* of a stage */
    ROUTED_LINE = 64, /* bytes of a weight row and stage */
    ROUTED_COPIERS =
        STREAM_THREADS + 1 /* arrivals at a full slot: copies of each lane, bulk copies */
};

/* Warpgroups that multiply: w2's tree of segments takes registers and shared memory of a third. */
template <bool DOWN> struct routed_form {
    static constexpr int groups = DOWN ? 2 : 3, rows = groups * STREAM_ROWS,
                         threads = (groups + 1) * STREAM_THREADS;
    /* registers of a thread of the copying warpgroup, one that multiplies: 65,536 in all */
    static constexpr int copies = DOWN ? 56 : 32, works = DOWN ? 224 : 160;
    /* a slot: weights, inputs; its scales: of weights, of inputs, visits */
    static constexpr int slot = rows * ROUTED_LINE + ROUTED_MOST * STREAM_LINE;
    static constexpr int inputs = rows * 4, visits = inputs + ROUTED_MOST * 8,
                         scales = visits + ROUTED_MOST * 8;
};

/* group_of() as a value that the compiler knows to be a warp's: in a branch on it descriptors may stay in
 * uniform registers. */
GPU_FN int routed_group(void)
{
    return __shfl_sync(0xffffffffu, group_of(), 0);
}

/* ---------------------------------------------------------------- copies */

/* Place of 16 bytes of a weight row.  Two rows fill the banks, and four pairs keep the same piece at four
 * places. */
GPU_FN int routed_piece(int row, int piece)
{
    return row * ROUTED_LINE + ((piece ^ (row >> 1 & 3)) << 4);
}

/* Rows of a block are taken in eights: gate and up in turn, or w2's in order. */
template <bool DOWN> struct routed_source {
    const uint8_t *w[2],
        *s; /* a thread's piece of its rows of its warp's first eights; its scales */
    const uint8_t *x;
    const float *xs;
    const struct routed_visit *visit;
    int64_t pitch, s_pitch;
    int eights, n, n8, stages; /* eights: that there are, a multiple of 2 */
};

template <bool DOWN>
GPU_FN struct routed_source<DOWN> routed_source_of(const struct expert_job &j,
                                                   const struct visit_tile &v, int out) {
    constexpr int rows = routed_form<DOWN>::rows, first = DOWN ? 2 : 0, second = DOWN ? 2 : 1;
    int k = DOWN ? j.moe_dim : j.dim, lane = gpu_lane(), warp = gpu_wave() % 4;
    int o = out * (DOWN ? rows : rows / 2), left = (DOWN ? j.dim : 2 * j.moe_dim) - out * rows;
    const uint8_t *codes = DOWN ? j.h_codes : j.x_fp4;
    struct routed_source<DOWN> t;
    t.pitch = k / 2;
    t.s_pitch = k / 32;
    int64_t row = (o + (DOWN ? 16 : 8) * warp + lane / 4) * t.pitch + 16 * (lane % 4);
    t.w[0] = v.w[first] + row;
    t.w[1] = v.w[second] + row + (DOWN ? 8 * t.pitch : 0);
    /* scales: a thread and 128 are two rows' numbers in the block */
    int me = group_thread(), s_row = DOWN ? me : me / 16 * 8 + me % 8;
    t.s = (!DOWN && me & 8 ? v.s[second] : v.s[first]) + (o + s_row) * t.s_pitch;
    t.x = codes + (int64_t)v.place * k;
    t.xs = operand_scales(codes, j.places, k) + 2 * (int64_t)v.place * (k / LIN_BLOCK);
    t.visit = j.visit + v.first;
    t.eights = min(rows, left) / 8;
    t.n = v.n;
    t.n8 = (v.n + 7) / 8 * 8;
    t.stages = k / LIN_BLOCK;
    return t;
}

template <bool DOWN>
GPU_FN void feed_routed(struct routed_source<DOWN> t, struct tile_ring &r)
{
    constexpr int rows = routed_form<DOWN>::rows, pairs = rows / 16 / 4; /* of eights, of a warp */
    int lane = gpu_lane(), me = group_thread(), e0 = 2 * (me / 32);
    uint32_t own = (uint32_t)routed_piece(8 * e0 + lane / 4, lane % 4);
    uint32_t x_bytes = (uint32_t)(t.n8 * STREAM_LINE), bytes = (uint32_t)(8 * t.n8);
    int64_t step = (DOWN ? 64 : 32) * t.pitch, s_step = (DOWN ? 128 : 64) * t.s_pitch;
    for (int i = 0; i < t.stages; i++) {
        barrier_wait(ring_empty(r), r.phase ^ 1);
        uint32_t to = shared_at(ring_slot(r)), bar = ring_full(r);
        uint32_t scales = shared_at(ring_scales(r));
        if (me == 0) {
            barrier_expect(bar, x_bytes + bytes);
            copy_bulk(to + rows * ROUTED_LINE, t.x + (int64_t)i * x_bytes, x_bytes, bar, 0);
            copy_bulk(scales + routed_form<DOWN>::inputs,
                      (const uint8_t *)t.xs + (int64_t)i * bytes, bytes, bar, 0);
        }
#pragma unroll
        for (int k = 0; k < pairs; k++)
            if (e0 + 8 * k < t.eights) {
                uint32_t at = to + own + (uint32_t)(k * 64 * ROUTED_LINE);
                copy16(at, t.w[0] + k * step);
                copy16(at + 8 * ROUTED_LINE, t.w[1] + k * step);
            }
#pragma unroll
        for (int k = 0; k < (rows + 127) / 128; k++)
            if (me + 128 * k < 8 * t.eights)
                copy4(scales + (uint32_t)(4 * (me + 128 * k)), t.s + k * s_step);
        if (i + 1 == t.stages && me < t.n)
            copy8(scales + (uint32_t)(routed_form<DOWN>::visits + 8 * me), t.visit + me);
        barrier_copies(bar);
        t.w[0] += ROUTED_LINE;
        t.w[1] += ROUTED_LINE;
        t.s += 4;
        ring_next(r);
    }
}

/* ---------------------------------------------------------------- sums */

/* What a warpgroup reads of a slot: this thread's weights, asked for a step ahead; inputs. */
struct routed_slot {
    const uint8_t *words, *xs; /* xs: of its columns: ratios, then scales */
    uint64_t x;                /* for wgmma_rows */
    uint32_t scale[2];         /* of the stage's steps, of both weight rows */
};

template <bool DOWN> GPU_FN const uint8_t *routed_factors(const struct tile_ring &r)
{
    return ring_scales(r) + routed_form<DOWN>::inputs + 8 * (group_thread() % 4);
}
template <bool DOWN> GPU_FN struct routed_slot routed_slot_of(const struct tile_ring &r)
{
    constexpr int rows = routed_form<DOWN>::rows;
    int row = group_of() * STREAM_ROWS + weight_row();
    const uint8_t *ws = ring_scales(r) + 4 * row;
    struct routed_slot s;
    s.words = ring_slot(r) + group_of() * STREAM_ROWS * ROUTED_LINE + 4 * (group_thread() % 4);
    s.xs = routed_factors<DOWN>(r);
    s.x = wgmma_rows(shared_at(ring_slot(r)) + rows * ROUTED_LINE);
    s.scale[0] = *(const uint32_t *)(const void *)ws;
    s.scale[1] = *(const uint32_t *)(const void *)(ws + 32);
    return s;
}
GPU_FN void routed_ask(uint32_t (&raw)[2], const struct routed_slot &s, int step)
{
    const uint8_t *w = s.words + routed_piece(weight_row(), step);
    raw[0] = *(const uint32_t *)(const void *)w;
    raw[1] = *(const uint32_t *)(const void *)(w + 8 * ROUTED_LINE);
}
GPU_FN float step_scale(uint32_t scales, int step)
{
    return gpu_float(step == 3 ? (scales & 0xff000000u) >> 1
                               : (scales & 0xffu << 8 * step) << (23 - 8 * step));
}

/* Factors of this thread's columns of part p, from s.xs or behind it. */
template <int W> GPU_FN void part_factors(float (&x)[W / 4], const uint8_t *xs, int p)
{
#pragma unroll
    for (int c = 0; c < W / 8; c++) {
        float2 v = *(const float2 *)(const void *)(xs + 32 * (p * (W / 8) + c));
        x[2 * c] = v.x;
        x[2 * c + 1] = v.y;
    }
}

/* A part's sums from products d of a step: f, of both weight rows. */
template <int W> GPU_FN void part_step(float (&acc)[W / 2], float (&d)[W / 2], const float (&f)[2])
{
#pragma unroll
    for (int i = 0; i < W / 2; i++)
        acc[i] = fmaf(d[i], f[i / 2 % 2], acc[i]);
}
/* Of a block's first step: fresh: of a new sum. */
template <int W>
GPU_FN void part_first(float (&acc)[W / 2], float (&d)[W / 2], const float (&f)[2],
                       const float (&x)[W / 4], bool fresh)
{
    if (fresh) {
#pragma unroll
        for (int i = 0; i < W / 2; i++)
            acc[i] = fmaf(d[i], f[i / 2 % 2], 0.0f);
        return;
    }
#pragma unroll
    for (int i = 0; i < W / 2; i++)
        acc[i] = fmaf(d[i], f[i / 2 % 2], acc[i] * x[i / 4 * 2 + i % 2]);
}
/* A sum is over: from units to values. */
template <int W> GPU_FN void parts_values(float (&acc)[PARTS][W / 2], const uint8_t *xs, int n8)
{
    float x[W / 4];
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        part_factors<W>(x, xs + 4 * n8, p);
#pragma unroll
        for (int i = 0; i < W / 2; i++)
            acc[p][i] *= x[i / 4 * 2 + i % 2] * FP4_GAIN;
    }
}

/* What goes from stage to stage. */
struct routed_state {
    struct tile_ring ahead; /* what is read */
    struct routed_slot now;
    uint32_t raw[2];
    float f[2];
};

template <bool DOWN> GPU_FN void routed_begin(struct routed_state &s, const struct tile_ring &r)
{
    s.ahead = r;
    s.f[0] = s.f[1] = 0;
    ring_wait(s.ahead);
    s.now = routed_slot_of<DOWN>(s.ahead);
    routed_ask(s.raw, s.now, 0);
}

/* The products of a stage, a sum's first one (fresh) or not; `more`: another one follows, whose weights are asked
 * for.  Leaves the slot, the first of s.now, to the caller. */
template <bool DOWN, int W>
GPU_FN void routed_stage(float (&acc)[PARTS][W / 2], struct routed_state &s, bool fresh, bool more)
{
    float d[2][W / 2], x[W / 4], before[2];
    uint32_t a[2][4];
    struct routed_slot next = s.now;
    part_factors<W>(x, s.now.xs, 0);
#pragma unroll
    for (int i = 0; i < STEPS * PARTS; i++) {
        int j = i / PARTS, p = i % PARTS;
        if (p == 0) {
            before[0] = s.f[0];
            before[1] = s.f[1];
            s.f[0] = step_scale(s.now.scale[0], j);
            s.f[1] = step_scale(s.now.scale[1], j);
            fp4_to_fp8(&a[j & 1][0], &a[j & 1][2], s.raw[0]);
            fp4_to_fp8(&a[j & 1][1], &a[j & 1][3], s.raw[1]);
        }
        wgmma_begin();
        wgmma<W>::fp8(d[i & 1], a[j & 1], s.now.x + (uint64_t)(p * (W * STREAM_LINE >> 4) + 2 * j),
                      0);
        wgmma_end();
        if (p == 0 && j + 1 < STEPS) {
            routed_ask(s.raw, s.now, j + 1);
        } else if (p == 0 && more) {
            ring_next(s.ahead);
            ring_wait(s.ahead);
            next = routed_slot_of<DOWN>(s.ahead);
            routed_ask(s.raw, next, 0);
        }
        if (i == 0)
            continue;
        if (i > 1 && i <= PARTS)
            part_factors<W>(x, s.now.xs, i - 1);
        wgmma_wait<1>();
        wgmma_hold(d[~i & 1]);
        if (i <= PARTS)
            part_first<W>(acc[i - 1], d[~i & 1], i == PARTS ? before : s.f, x, fresh);
        else
            part_step<W>(acc[(i - 1) % PARTS], d[~i & 1], p == 0 ? before : s.f);
    }
    wgmma_wait<0>();
    wgmma_hold(d[1]);
    part_step<W>(acc[PARTS - 1], d[1], s.f);
    s.now = next;
}

/* The sum of `blocks` stages; n8 visits in the slots.  Leaves the last slot to the caller. */
template <bool DOWN, int W>
GPU_FN void routed_sum(float (&acc)[PARTS][W / 2], struct tile_ring &r, int blocks, int n8)
{
    struct routed_state s;
    routed_begin<DOWN>(s, r);
    for (int b = 0; b < blocks; b++) {
        routed_stage<DOWN, W>(acc, s, b == 0, b + 1 < blocks);
        if (b + 1 < blocks)
            ring_release(r);
    }
    parts_values<W>(acc, routed_factors<DOWN>(r), n8);
}

/* A segment of w2's sums, with its values; `more`: another one follows.  Leaves its last slot to the caller. */
template <int W>
GPU_FN void routed_segment(float (&acc)[PARTS][W / 2], struct routed_state &s, struct tile_ring &r,
                           int blocks, int n8, bool more)
{
    for (int b = 0; b < blocks; b++) {
        const uint8_t *xs = s.now.xs;
        routed_stage<true, W>(acc, s, b == 0, more || b + 1 < blocks);
        if (b + 1 < blocks)
            ring_release(r);
        else
            parts_values<W>(acc, xs, n8);
    }
}

/* w2's: segments of `blocks` stages, in pairs, so that no sum moves from register to register; over(k): pair k
 * is over, and its sum in acc.  Leaves the last slot to the caller. */
template <int W, typename F>
GPU_FN void routed_pairs(float (&acc)[PARTS][W / 2], struct tile_ring &r, int blocks, int n8,
                         F &&over)
{
    float first[PARTS][W / 2];
    struct routed_state s;
    routed_begin<true>(s, r);
    for (int k = 0; k < KERN_SEGMENTS / 2; k++) {
        bool more = k + 1 < KERN_SEGMENTS / 2;
        routed_segment<W>(first, s, r, blocks, n8, true);
        ring_release(r);
        routed_segment<W>(acc, s, r, blocks, n8, more);
#pragma unroll
        for (int i = 0; i < PARTS * W / 2; i++)
            acc[i / (W / 2)][i % (W / 2)] =
                first[i / (W / 2)][i % (W / 2)] + acc[i / (W / 2)][i % (W / 2)];
        over(k);
        if (more)
            ring_release(r);
    }
}

/* The ring's place behind so many stages: for all warpgroups the same in the compiler's eyes too, whichever way
 * they went before; descriptors then stay in uniform registers. */
GPU_FN void ring_go(struct tile_ring &r, int stages)
{
    r.at = stages % r.space.slots;
    r.phase = stages / r.space.slots & 1;
}

/* A warpgroup whose weight rows are not there. */
GPU_FN void routed_nothing(struct tile_ring &r, int blocks)
{
    for (int b = 0; b < blocks; b++) {
        ring_wait(r);
        ring_release(r);
    }
}

/* The tile's visits, from its last slot: two neighbouring columns of this thread's, 8*c + 2q and the next. */
template <bool DOWN> GPU_FN int4 visits_of_columns(const struct tile_ring &r, int c)
{
    const uint8_t *v = ring_scales(r) + routed_form<DOWN>::visits + 16 * (group_thread() % 4);
    return *(const int4 *)(const void *)(v + 64 * c);
}

#endif
