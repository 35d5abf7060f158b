/* choose.cuh - the best of many scores, ties to the lower entry: the k-th best by radix search, 11, 11
 * and 10 bits of it at a time, then one pass in order of entries. */
#ifndef FST_KERNELS_GPU_CHOOSE_CUH
#define FST_KERNELS_GPU_CHOOSE_CUH

#include "kernels/gpu/gpu.h"

enum {
    CHOOSERS = 1024, /* threads of a block, at most */
    DIGIT = 11,
    BINS = 1 << DIGIT,
    AHEAD = 4,  /* loads under way per thread */
    COPIES = 4, /* of the histogram: scores crowd into few bins, and lanes would wait for another */
    COPY = BINS + 1
};

struct chooser {
    uint32_t hist[COPIES * COPY], part[CHOOSERS / 32];
    int bin;
    uint32_t above, count; /* scores above the bin, in it */
};

/* The score that gpu_ordered gave u for. */
GPU_FN float unordered(uint32_t u)
{
    return gpu_float(u & 0x80000000u ? u ^ 0x80000000u : ~u);
}

/* Scores e .. e+3; past the end any others. */
GPU_FN struct gpu_quad four_scores(const float *score, int e, int nv)
{
    return gpu_load4(score + (e < nv ? e : 0));
}

/* Below, THREADS are those of the block. */

/* Count the digit at `shift` of the scores that agree with `value` in the bits of `mask`. */
template <int THREADS>
GPU_FN void count_digits(const float *score, int nv, uint32_t value, uint32_t mask, int shift,
                         struct chooser *c)
{
    uint32_t *hist = c->hist + threadIdx.x % COPIES * COPY;
    for (int b = (int)threadIdx.x; b < COPIES * COPY; b += THREADS)
        c->hist[b] = 0;
    gpu_sync();
    for (int first = 4 * (int)threadIdx.x; first < nv; first += 4 * THREADS * AHEAD) {
        struct gpu_quad x[AHEAD];
        for (int k = 0; k < AHEAD; k++)
            x[k] = four_scores(score, first + 4 * THREADS * k, nv);
        for (int k = 0; k < 4 * AHEAD; k++) {
            int e = first + 4 * THREADS * (k / 4) + k % 4;
            uint32_t u = gpu_ordered(x[k / 4].v[k % 4]);
            if (e < nv && ((u ^ value) & mask) == 0)
                atomicAdd(hist + (u >> shift & (BINS - 1)), 1u);
        }
    }
    gpu_sync();
}

GPU_FN uint32_t in_bin(const struct chooser *c, int b)
{
    uint32_t n = 0;
    for (int i = 0; i < COPIES; i++)
        n += c->hist[i * COPY + b];
    return n;
}

/* The bin that holds the need-th best of those counted. */
template <int THREADS> GPU_FN void find_bin(uint32_t need, struct chooser *c)
{
    uint32_t all, n[BINS / THREADS], mine = 0;
    int top = BINS - 1 - (int)threadIdx.x * (BINS / THREADS);
    for (int i = 0; i < BINS / THREADS; i++)
        mine += n[i] = in_bin(c, top - i);
    uint32_t above = block_sum_before(mine, c->part, &all);
    for (int i = 0; i < BINS / THREADS; i++) {
        if (above < need && need <= above + n[i]) {
            c->bin = top - i;
            c->above = above;
            c->count = n[i];
        }
        above += n[i];
    }
    gpu_sync();
}

/* The scores above `value` and the first `ties` equal to it, in order of entries. */
template <int THREADS>
GPU_FN void write_choice(const float *score, int nv, uint32_t value, uint32_t ties, int32_t *sel,
                         struct chooser *c)
{
    uint32_t above = 0, equal = 0, all;
    struct gpu_quad next = four_scores(score, 4 * (int)threadIdx.x, nv);
    for (int first = 0; first < nv; first += 4 * THREADS) {
        int e = first + 4 * (int)threadIdx.x;
        struct gpu_quad x = next;
        uint32_t u[4], n = 0; /* above it in the low half, equal in the high one */
        next = four_scores(score, e + 4 * THREADS, nv);
        for (int i = 0; i < 4; i++) {
            u[i] = gpu_ordered(x.v[i]);
            if (e + i < nv)
                n += u[i] > value ? 1u : u[i] == value ? 1u << 16 : 0;
        }
        n = block_sum_before(n, c->part, &all);
        uint32_t a = above + (n & 0xffff), q = equal + (n >> 16);
        for (int i = 0; i < 4 && e + i < nv; i++) {
            if (u[i] > value || (u[i] == value && q < ties))
                sel[a + FST_MIN(q, ties)] = e + i;
            a += u[i] > value;
            q += u[i] == value;
        }
        above += all & 0xffff;
        equal += all >> 16;
    }
}

GPU_FN uint32_t wave_most(uint32_t best)
{
    for (int m = 1; m < GPU_WAVE; m *= 2) {
        uint32_t other = gpu_shfl_xor(best, m);
        best = FST_MAX(best, other);
    }
    return best;
}
/* Largest over the block, in every thread. */
GPU_FN uint32_t block_most(uint32_t best, uint32_t *part)
{
    best = wave_most(best);
    gpu_sync();
    if (gpu_lane() == 0)
        part[gpu_wave()] = best;
    gpu_sync();
    return wave_most(gpu_lane() < gpu_waves() ? part[gpu_lane()] : 0);
}

/* Best score below `value`, in every thread. */
template <int THREADS>
GPU_FN uint32_t best_below(const float *score, int nv, uint32_t value, struct chooser *c)
{
    uint32_t best = 0;
    for (int e = (int)threadIdx.x; e < nv; e += THREADS) {
        uint32_t u = gpu_ordered(score[e]);
        best = u < value ? FST_MAX(best, u) : best;
    }
    return block_most(best, c->part);
}

/* The topk best of nv > topk scores, ascending; *margin, unless NULL: of index_topk_args.  All threads
 * of the block call. */
template <int THREADS = CHOOSERS>
GPU_FN void choose(const float *score, int nv, int topk, int32_t *sel, float *margin,
                   struct chooser *c)
{
    uint32_t value = 0, mask = 0, need = (uint32_t)topk;
    for (int shift = 32 - DIGIT; shift > -DIGIT; shift -= DIGIT) {
        int at = FST_MAX(shift, 0);
        count_digits<THREADS>(score, nv, value, mask, at, c);
        find_bin<THREADS>(need, c);
        uint32_t digit = (uint32_t)(BINS - 1) << at;
        value |= (uint32_t)c->bin << at & ~mask;
        mask |= digit;
        need -= c->above;
    }
    write_choice<THREADS>(score, nv, value, need, sel, c);
    if (!margin)
        return;
    uint32_t dropped = c->count > need ? value : best_below<THREADS>(score, nv, value, c);
    if (threadIdx.x == 0)
        *margin = unordered(value) - unordered(dropped);
}

#endif
