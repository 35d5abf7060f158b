/* tiles.cuh - many input rows: a block multiplies 128 weight rows by up to 128 input rows.
 *
 * One warpgroup of a block copies, two multiply 64 weight rows each by the same inputs; they meet at
 * barriers in shared memory, a full and an empty one for each slot of a ring.  A stage is 128 values of K
 * (64 in BF16).  Weights come as the checkpoint stores them, 16 bytes a thread and copy, and go through
 * registers; inputs come as one bulk copy, for which their operand lies in tiles (linear.cuh): a stage's
 * rows side by side, as the matrix unit wants them.  So no copy of a thread is read by the matrix unit,
 * and none needs a fence between the two kinds of memory accesses.
 *
 * Two blocks of a cluster that multiply other weights by the same inputs copy half of them each, to
 * both: 128 by 128 FP8 values are 32 KB in 512 clocks, more than the second-level cache gives.
 *
 * Products, their order and the order of the sums after them are those of stream.cuh, so a row has
 * the bits that the kernels for few rows give it.  Here a block may go through several slices of K, one
 * after the other; what waits in the tree of their sums lies in shared memory, or the last of it
 * where the output goes. */
#ifndef FST_KERNELS_SM90_TILES_CUH
#define FST_KERNELS_SM90_TILES_CUH

#include "kernels/sm90/linear.cuh"

enum {
    TILE_ROWS = 128,    /* weight rows of a block */
    TILE_THREADS = 384, /* two warpgroups that multiply, one that copies */
    TILE_WORKERS = 256,
    TILE_COPIES = 56, /* registers of a thread that copies, */
    TILE_WORKS = 224  /* that multiplies: 65,536 in all */
};

/* Values of K in a stage; lines of 128 bytes and floats of an input row. */
template <int F> struct tile_form {
    static constexpr int values = F == FORM_BF16 ? 64 : 128;
    static constexpr int lines = F == FORM_WIDE ? 2 : 1;
    static constexpr int scales = F == FORM_FP8;
};

/* ---------------------------------------------------------------- barriers */

GPU_FN void barrier_start(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(arrivals) : "memory");
}
/* Between that, by one thread, and a barrier of the cluster. */
GPU_FN void barriers_started(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
GPU_FN void barrier_wait(uint32_t bar, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}\n" ::"r"(bar),
                 "r"(phase)
                 : "memory");
}
GPU_FN void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
/* At this block's place in block `rank` of the cluster.  Without .cluster: that is a fence over all memory,
 * and what must be over before, reads into registers and products, is. */
GPU_FN void barrier_arrive_at(uint32_t bar, int rank)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}
/* Arrives, and `bytes` more are to come. */
GPU_FN void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes)
                 : "memory");
}
/* Arrives when this thread's copies so far have. */
GPU_FN void barrier_copies(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(bar) : "memory");
}
/* Bytes in a row, a multiple of 16; with a mask to the same place of those blocks of the cluster, whose
 * barriers at that place count them. */
GPU_FN void copy_bulk(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t bar, uint32_t mask)
{
    if (!mask)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];\n" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(bar)
                     : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1], %2, [%3], %4;\n" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(bar), "h"((uint16_t)mask)
                     : "memory");
}
template <int N> GPU_FN void registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}
template <int N> GPU_FN void registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}
/* The threads that multiply, among themselves. */
GPU_FN void workers_sync(void)
{
    asm volatile("bar.sync 1, 256;\n" ::: "memory");
}
GPU_FN int cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    return (int)rank;
}

/* ---------------------------------------------------------------- the ring */

/* How a block's shared memory is divided: slots, their scales, barriers, levels of the tree. */
struct tile_space {
    int slots, slot, scales; /* number; bytes of weights and inputs, of scales, of each */
    int levels, level;       /* number, bytes */
};
enum { TILE_SHARED = 227 << 10, TILE_SLOTS = 8 };

template <int F, int N> GPU_BOTH constexpr int tile_slot(void)
{
    return TILE_ROWS * STREAM_LINE + tile_form<F>::lines * N * STREAM_LINE;
}
template <int F, int N> GPU_BOTH constexpr int tile_scales(void)
{
    return tile_form<F>::scales * N * 4;
}
GPU_BOTH int tile_barriers_at(const struct tile_space &s)
{
    return s.slots * (s.slot + s.scales);
}
GPU_BOTH int tile_levels_at(const struct tile_space &s)
{
    return tile_barriers_at(s) + 16 * TILE_SLOTS;
}
static inline size_t tile_bytes(const struct tile_space *s)
{
    return 1024 + (size_t)tile_levels_at(*s) + (size_t)(s->levels * s->level);
}
/* As many slots as there is room for. */
static inline struct tile_space tile_space_of(int n, int slot, int scales, int levels)
{
    struct tile_space s = {TILE_SLOTS, slot, scales, levels, TILE_ROWS * n * 4};
    while (s.slots > 2 && tile_bytes(&s) > TILE_SHARED)
        s.slots--;
    FST_ASSERT(tile_bytes(&s) <= TILE_SHARED);
    return s;
}

/* One side's place in the ring. */
struct tile_ring {
    uint8_t *base;
    struct tile_space space;
    int at, share,
        first; /* share: blocks of the cluster, from `first` on, that share their inputs */
    uint32_t phase;
};

/* share: 1 or 2, a divisor of the cluster. */
GPU_FN struct tile_ring ring_of(uint8_t *shared, const struct tile_space &space, int share)
{
    int rank = cluster_rank();
    struct tile_ring r = {shared + (-shared_at(shared) & 1023), space, 0, share,
                          share == 1 ? rank : rank & ~1,        0};
    return r;
}
GPU_FN uint8_t *ring_slot(const struct tile_ring &r)
{
    return r.base + r.at * r.space.slot;
}
GPU_FN uint8_t *ring_scales(const struct tile_ring &r)
{
    return r.base + r.space.slots * r.space.slot + r.at * r.space.scales;
}
GPU_FN uint32_t ring_full(const struct tile_ring &r)
{
    return shared_at(r.base) + (uint32_t)(tile_barriers_at(r.space) + 8 * r.at);
}
GPU_FN uint32_t ring_empty(const struct tile_ring &r)
{
    return ring_full(r) + 8 * TILE_SLOTS;
}
GPU_FN void ring_next(struct tile_ring &r)
{
    if (++r.at == r.space.slots) {
        r.at = 0;
        r.phase ^= 1;
    }
}
/* By all threads of the cluster, before anything else; arrivals at a full slot, and of a block's warps at an
 * empty one. */
GPU_FN void ring_start(const struct tile_ring &r, int copiers = STREAM_THREADS + 1,
                       int workers = TILE_WORKERS / 32)
{
    uint32_t bars = ring_full(r);
    if (threadIdx.x == 0) {
        for (int i = 0; i < r.space.slots; i++) {
            barrier_start(bars + (uint32_t)(8 * i), copiers);
            barrier_start(bars + (uint32_t)(8 * (TILE_SLOTS + i)), r.share * workers);
        }
        barriers_started();
    }
    __syncwarp();
    cluster_sync();
}
GPU_FN void ring_wait(const struct tile_ring &r)
{
    barrier_wait(ring_full(r), r.phase);
}
/* A warp is done with the slot. */
GPU_FN void ring_release(struct tile_ring &r)
{
    __syncwarp();
    if (r.share == 1 && gpu_lane() == 0)
        barrier_arrive(ring_empty(r));
    else if (r.share > 1 && gpu_lane() < r.share)
        barrier_arrive_at(ring_empty(r), r.first + gpu_lane());
    ring_next(r);
}

/* ---------------------------------------------------------------- copies */

/* What a block multiplies, from its first stage.  Weight rows: of every 16, 8 of w[0] and 8 of w[1]. */
struct tile_source {
    const uint8_t *w[2];
    int64_t pitch;     /* bytes of a weight row */
    int step, last[2]; /* as of stream_tile */
    const uint8_t *x;  /* operand in tiles */
    const float *xs;
    int n, rows, stages; /* input rows, of so many side by side in the operand; multiples of 8 */
};

/* What a thread copies of the weights next. */
enum { TILE_ACROSS = STREAM_LINE / 16, TILE_DOWN = STREAM_THREADS / TILE_ACROSS };
struct tile_feed {
    static constexpr int pieces = TILE_ROWS / TILE_DOWN;
    const uint8_t *w;
    uint32_t from[pieces], to;
};

GPU_FN struct tile_feed feed_of(const struct tile_source &t)
{
    struct tile_feed f;
    int piece = group_thread() % TILE_ACROSS, row = group_thread() / TILE_ACROSS;
    bool up = row & 8;
    f.w = (up ? t.w[1] : t.w[0]) + 16 * piece;
#pragma unroll
    for (int k = 0; k < f.pieces; k++) {
        int r = row + k * TILE_DOWN;
        f.from[k] = (uint32_t)(min(r / 16 * t.step + r % 8, up ? t.last[1] : t.last[0]) *
                               (uint32_t)t.pitch);
    }
    f.to = (uint32_t)weight_piece(row, piece);
    return f;
}

GPU_FN void feed_stage(struct tile_feed &f, const struct tile_ring &r)
{
    uint32_t to = shared_at(ring_slot(r)) + f.to;
#pragma unroll
    for (int k = 0; k < f.pieces; k++)
        copy16(to + (uint32_t)(k * TILE_DOWN * STREAM_LINE), f.w + f.from[k]);
    f.w += STREAM_LINE;
    barrier_copies(ring_full(r));
}

/* Stage i's inputs, by one thread.  Blocks that share them copy half of them each. */
template <int F>
GPU_FN void feed_shared(const struct tile_source &t, int i, const struct tile_ring &r)
{
    uint32_t all = (uint32_t)(tile_form<F>::lines * t.n * STREAM_LINE), bar = ring_full(r);
    uint32_t scales = (uint32_t)(tile_form<F>::scales * t.n * 4), mine = all, first = 0, mask = 0;
    bool second = r.share > 1 && cluster_rank() != r.first;
    if (r.share > 1) {
        mine = all / 2;
        first = second ? mine : 0;
        mask = 3u << r.first;
    }
    uint32_t to = shared_at(ring_slot(r)) + TILE_ROWS * STREAM_LINE;
    barrier_expect(bar, all + scales);
    if (t.n == t.rows)
        copy_bulk(to + first, t.x + (int64_t)i * all + first, mine, bar, mask);
    else /* a part of a tile, which nobody shares */
        for (int l = 0; l < tile_form<F>::lines; l++)
            copy_bulk(to + (uint32_t)(l * t.n * STREAM_LINE),
                      t.x + (int64_t)(i * tile_form<F>::lines + l) * t.rows * STREAM_LINE,
                      (uint32_t)(t.n * STREAM_LINE), bar, 0);
    if (tile_form<F>::scales && !second)
        copy_bulk(shared_at(ring_scales(r)),
                  (const uint8_t *)t.xs + (int64_t)i * (tile_form<F>::scales * t.rows * 4), scales,
                  bar, mask);
}

/* All stages of a source.  `first`: it is the block's first one; weights are then asked for before
 * the wait for the kernel ahead, which nobody here has waited for yet. */
template <int F> GPU_FN void feed_all(const struct tile_source &t, struct tile_ring &r, bool first)
{
    struct tile_feed f = feed_of(t);
    int i = 0;
    if (first) {
        struct tile_ring ahead = r;
        for (; i < min(t.stages, r.space.slots); i++) {
            feed_stage(f, ahead);
            ring_next(ahead);
        }
        gpu_wait_before();
        for (int k = 0; k < i; k++) {
            if (group_thread() == 0)
                feed_shared<F>(t, k, r);
            ring_next(r);
        }
    }
    for (; i < t.stages; i++) {
        barrier_wait(ring_empty(r), r.phase ^ 1);
        feed_stage(f, r);
        if (group_thread() == 0)
            feed_shared<F>(t, i, r);
        ring_next(r);
    }
}

/* ---------------------------------------------------------------- sums */

/* This warpgroup's weights of a slot, and line `line` of its inputs. */
GPU_FN const uint8_t *tile_weights(const struct tile_ring &r)
{
    return ring_slot(r) + group_of() * STREAM_ROWS * STREAM_LINE;
}
template <int F> GPU_FN uint32_t tile_inputs(const struct tile_ring &r, int line, int n)
{
    return shared_at(ring_slot(r)) + (uint32_t)(TILE_ROWS * STREAM_LINE + line * n * STREAM_LINE);
}

/* acc += the products of the next `stages` stages, with n input rows in the slots; s: scales of FP8
 * weights, one a stage, and up: those of the other half of the rows, with TWO. */
template <int F, int N, bool TWO>
GPU_FN void tile_sum(float (&acc)[N / 2], struct tile_ring &r, int stages, const uint8_t *s,
                     const uint8_t *up, int n)
{
    float d[N / 2], x[N / 4];
    uint32_t a[4][4], b[4][4], code = 0, code_up = 0;
    if (F != FORM_BF16)
        code = __ldg(s++);
    if (TWO)
        code_up = __ldg(up++);
    for (int left = stages; left > 0; left--) {
        float f = gpu_e8m0(code), f_up = TWO ? gpu_e8m0(code_up) : f;
        if (F != FORM_BF16 && left > 1)
            code = __ldg(s++);
        if (TWO && left > 1)
            code_up = __ldg(up++);
        ring_wait(r);
        if (F == FORM_WIDE)
            wide_steps(a, tile_weights(r), 0);
        else
            plain_steps(a, tile_weights(r));
        wgmma_begin();
        if (F == FORM_BF16)
            multiply<false, N>(acc, a, tile_inputs<F>(r, 0, n), true);
        else
            multiply<F == FORM_FP8, N>(d, a, tile_inputs<F>(r, 0, n), false);
        if (F == FORM_WIDE) {
            wide_steps(b, tile_weights(r), 1);
            wgmma_begin();
            multiply<false, N>(d, b, tile_inputs<F>(r, 1, n), true);
        }
        wgmma_end();
        if (F == FORM_FP8) {
            const uint8_t *xs = ring_scales(r) + 8 * (group_thread() % 4);
#pragma unroll
            for (int c = 0; c < N / 8; c++) {
                float2 v = *(const float2 *)(const void *)(xs + 32 * c);
                x[2 * c] = TWO ? v.x : v.x * f;
                x[2 * c + 1] = TWO ? v.y : v.y * f;
            }
        }
        wgmma_wait<0>();
        if (F == FORM_BF16) {
            wgmma_hold(acc);
            ring_release(r);
            continue;
        }
        wgmma_hold(d);
        ring_release(r);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float scale = F == FORM_FP8 ? x[i / 4 * 2 + i % 2] : f;
            if (TWO)
                scale *= i & 2 ? f_up : f;
            acc[i] = fmaf(d[i], scale, acc[i]);
        }
    }
}

/* Addresses from this offset on are worked out here, not kept in registers from before a loop. */
GPU_FN int64_t offset_here(int64_t i)
{
    asm volatile("" : "+l"(i));
    return i;
}

/* Where this thread's outputs go: input row c (of n) and weight row o (of outs) at y[c*ld + o]. */
struct tile_out {
    float *y;
    int64_t ld;
    int n, outs;
};
/* use(i, place) for each of the thread's sums that has one. */
template <int N, typename F> GPU_FN void each_place(const struct tile_out &out, F &&use)
{
    int q2 = 2 * (group_thread() % 4), o = group_of() * STREAM_ROWS + weight_row();
    int64_t at = offset_here(q2 * out.ld + o);
    bool first = o < out.outs, second = o + 8 < out.outs;
#pragma unroll
    for (int c = 0; c < N / 8; c++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            bool there = c * 8 + q2 + e < out.n;
            if (there && first)
                use(4 * c + e, at);
            if (there && second)
                use(4 * c + 2 + e, at + 8);
            at += e ? 7 * out.ld : out.ld;
        }
        at = offset_here(at);
    }
}

template <int N, typename F> GPU_FN void each_sum(const struct tile_out &out, F &&use)
{
    each_place<N>(out, [&](int i, int64_t at) { use(i, out.y[at]); });
}

/* Row and output of sum i. */
GPU_FN int sum_row(int i)
{
    return i / 4 * 8 + i % 2 + 2 * (group_thread() % 4);
}
GPU_FN int sum_out(int i)
{
    return group_of() * STREAM_ROWS + weight_row() + i / 2 % 2 * 8;
}

/* The part of a level that is this thread's. */
GPU_FN float4 *level_place(const struct tile_ring &r, int level)
{
    uint8_t *at = r.base + tile_levels_at(r.space) + level * r.space.level + 16 * threadIdx.x;
    return (float4 *)(void *)at;
}

/* Slice k of `slices` (1, 2, 4 or 8) is done: into the tree, by the bits of k; after the last one acc is
 * the sum.  What is left at the top waits in `out` (y NULL: in shared memory too). */
template <int N>
GPU_FN void tile_join(float (&acc)[N / 2], const struct tile_ring &r, int k, int slices,
                      const struct tile_out &out)
{
    int level = 0;
    for (; k >> level & 1; level++) {
        if (2 << level == slices && out.y) {
            each_sum<N>(out, [&](int i, float &y) { acc[i] = y + acc[i]; });
            continue;
        }
        const float4 *at = level_place(r, level);
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            float4 v = at[i * TILE_WORKERS];
            acc[4 * i] = v.x + acc[4 * i];
            acc[4 * i + 1] = v.y + acc[4 * i + 1];
            acc[4 * i + 2] = v.z + acc[4 * i + 2];
            acc[4 * i + 3] = v.w + acc[4 * i + 3];
        }
    }
    if (k + 1 == slices)
        return;
    if (2 << level == slices && out.y) {
        each_sum<N>(out, [&](int i, float &y) { y = acc[i]; });
        return;
    }
    float4 *at = level_place(r, level);
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        at[i * TILE_WORKERS] =
            make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
}
/* Levels of it in shared memory. */
GPU_BOTH int tile_levels(int slices, bool top_in_output)
{
    int levels = slices >= 8 ? 3 : slices >= 4 ? 2 : slices >= 2 ? 1 : 0;
    return levels - (top_in_output && levels > 0);
}

/* `slices` sums of `stages` stages each, as a tree. */
template <int F, int N, bool TWO = false>
GPU_FN void tile_sums(float (&acc)[N / 2], struct tile_ring &r, int slices, int stages,
                      const uint8_t *s, const uint8_t *up, int n, const struct tile_out &out)
{
    for (int k = 0; k < slices; k++) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] = 0;
        tile_sum<F, N, TWO>(acc, r, stages, s + (F == FORM_BF16 ? 0 : k * stages),
                            up + (TWO ? k * stages : 0), n);
        tile_join<N>(acc, r, k, slices, out);
    }
}

#endif
