/* choice.cuh - the topk best of a row's scores by one block, for index.cu.
 *
 * Up to HELD scores stay in registers: one count over 2048 equal steps between the least and the largest,
 * then the few of the step where the topk-th best lies against each other.  Of more scores, the best of
 * each of 2048 runs are counted first: no score below the topk-th best of those is among the best, and what
 * is left, a few per cent, is listed in order of entries and held.  A crowd in one step, or too many left:
 * choose.cuh. */
#ifndef FST_KERNELS_SM90_CHOICE_CUH
#define FST_KERNELS_SM90_CHOICE_CUH

#include "kernels/gpu/choose.cuh"
#include "kernels/sm90/mma.cuh"

enum {
    FEW_CHOOSERS = 256,
    HELD = MMA_SIZE(4 * CHOOSERS, 300), /* scores in registers without a list */
    LIST = 2048,
    RUNS = 2048
};

struct finder {
    uint32_t hist[BINS], part[CHOOSERS / 32], key[CHOOSERS];
    float least[CHOOSERS / 32], most[CHOOSERS / 32];
    int32_t entry[CHOOSERS], last; /* the last kept one */
    uint32_t value, n;
    int bin;
    uint32_t above, count; /* scores above the bin, in it */
};
/* Scores and their entries, ascending. */
struct alignas(16) listed {
    float x[LIST];
    int32_t e[LIST];
};
union choice_shared {
    struct {
        struct finder f;
        struct listed list;
    } a;
    struct chooser c;
};

/* Scores of a thread: neighbours from `first` on; what is no score is no number.  list: NULL, or their
 * entries are not their places. */
template <int QUADS> struct held {
    float x[4 * QUADS];
    int first;
    const struct listed *list;
};

template <int QUADS>
GPU_FN void load_held(const float *score, const struct listed *list, int n, struct held<QUADS> *h)
{
    h->first = (int)threadIdx.x * 4 * QUADS;
    h->list = list;
    GPU_UNROLL
    for (int i = 0; i < QUADS; i++) {
        struct gpu_quad q = {};
        if (h->first + 4 * i < n)
            q = gpu_load4(score + h->first + 4 * i);
        GPU_UNROLL
        for (int k = 0; k < 4; k++)
            h->x[4 * i + k] = q.v[k];
    }
}
template <int QUADS> GPU_FN int entry_of(const struct held<QUADS> *h, int i)
{
    return h->list ? h->list->e[h->first + i] : h->first + i;
}

/* Over the block; the histogram is empty behind it.  Steps per unit between the two, 0: not so. */
template <int THREADS>
GPU_FN float find_scale(float low, float high, struct finder *f, float *least)
{
    low = -wave_max(-low);
    high = wave_max(high);
    if (gpu_lane() == 0) {
        f->least[gpu_wave()] = low;
        f->most[gpu_wave()] = high;
    }
    for (int b = (int)threadIdx.x; b < BINS; b += THREADS)
        f->hist[b] = 0;
    f->n = 0;
    gpu_sync();
    low = -wave_max(-f->least[gpu_lane() % (THREADS / 32)]);
    high = wave_max(f->most[gpu_lane() % (THREADS / 32)]);
    *least = low;
    return high - low > 0x1p-100f && high - low < 0x1p100f ? (float)(BINS - 1) / (high - low) : 0;
}

/* Never falls as x grows; what is no number is below all.  Below `least`: negative. */
GPU_FN int step_at(float x, float least, float scale)
{
    return x == x ? FST_MIN((int)floorf((x - least) * scale), BINS - 1) : -BINS;
}

/* The step that holds the need-th best. */
template <int THREADS> GPU_FN void find_step(uint32_t need, struct finder *f)
{
    enum { MINE = BINS / THREADS };
    uint32_t all, n[MINE], mine = 0;
    int top = BINS - 1 - (int)threadIdx.x * MINE;
    for (int i = 0; i < MINE; i++)
        mine += n[i] = f->hist[top - i];
    uint32_t above = block_sum_before(mine, f->part, &all);
    for (int i = 0; i < MINE; i++) {
        if (above < need && need <= above + n[i]) {
            f->bin = top - i;
            f->above = above;
            f->count = n[i];
        }
        above += n[i];
    }
    gpu_sync();
}

/* Of the scores in the step: the need-th best is the last one kept. */
GPU_FN void find_last(uint32_t need, struct finder *f)
{
    int i = (int)threadIdx.x, n = (int)f->count;
    gpu_sync();
    if (i < n) {
        uint32_t key = f->key[i], before = 0;
        int entry = f->entry[i];
        for (int k = 0; k < n; k++)
            before += f->key[k] > key || (f->key[k] == key && f->entry[k] < entry);
        if (before == need - 1) {
            f->value = key;
            f->last = entry;
        }
    }
    gpu_sync();
}

template <int QUADS>
GPU_FN void write_held(const struct held<QUADS> *h, int n, int32_t *sel, float *margin,
                       struct finder *f)
{
    uint32_t kept = 0, all, dropped = 0;
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++) {
        uint32_t u = gpu_ordered(h->x[i]);
        if (h->first + i >= n)
            continue;
        if (u > f->value || (u == f->value && entry_of(h, i) <= f->last))
            kept |= 1u << i;
        else
            dropped = FST_MAX(dropped, u);
    }
    uint32_t at = block_sum_before((uint32_t)__builtin_popcount(kept), f->part, &all);
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++)
        if (kept >> i & 1)
            sel[at++] = entry_of(h, i);
    if (!margin)
        return;
    dropped = block_most(dropped, f->part);
    if (threadIdx.x == 0)
        *margin = unordered(f->value) - unordered(dropped);
}

/* False: too many in the step, or no steps; nothing is written. */
template <int QUADS, int THREADS>
GPU_FN bool choose_held(const float *score, const struct listed *list, int n, int topk,
                        int32_t *sel, float *margin, struct finder *f)
{
    struct held<QUADS> h;
    float least, low = INFINITY, high = -INFINITY;
    load_held(score, list, n, &h);
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++)
        if (h.first + i < n) {
            low = fminf(low, h.x[i]);
            high = fmaxf(high, h.x[i]);
        }
    float scale = find_scale<THREADS>(low, high, f, &least);
    if (scale == 0)
        return false;
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++)
        if (h.first + i < n)
            atomicAdd(f->hist + FST_MAX(step_at(h.x[i], least, scale), 0), 1u);
    gpu_sync();
    find_step<THREADS>((uint32_t)topk, f);
    if (f->count > THREADS)
        return false;
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++)
        if (h.first + i < n && FST_MAX(step_at(h.x[i], least, scale), 0) == f->bin) {
            uint32_t at = atomicAdd(&f->n, 1u); /* in any order: find_last knows none */
            f->key[at] = gpu_ordered(h.x[i]);
            f->entry[at] = entry_of(&h, i);
        }
    find_last((uint32_t)topk - f->above, f);
    write_held(&h, n, sel, margin, f);
    return true;
}

/* Quads at .. of a thread's own, those below end. */
template <int N>
GPU_FN void load_quads(struct gpu_quad (&q)[N], const float *score, int at, int end)
{
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        if (at + i < end)
            q[i] = gpu_load4(score + 4 * (at + i));
}

/* What may be among the topk + 1 best, listed; how many, 0: not so. */
template <int THREADS>
GPU_FN int list_best(const float *score, int nv, int topk, struct finder *f, struct listed *list)
{
    enum { MINE = RUNS / THREADS, BATCH = MINE < 4 ? 4 : MINE };
    int each = (nv + 4 * THREADS - 1) / (4 * THREADS), n = 0;
    int first = (int)threadIdx.x * each, end = FST_MIN((nv + 3) / 4, first + each);
    float best[MINE], low = INFINITY, high = -INFINITY, least;
    uint32_t all, mine = 0;
    struct gpu_quad q[BATCH];
    GPU_UNROLL
    for (int i = 0; i < MINE; i++)
        best[i] = -INFINITY;
    for (int at = first; at < end; at += BATCH) {
        load_quads(q, score, at, end);
        GPU_UNROLL
        for (int i = 0; i < 4 * BATCH; i++)
            if (at + i / 4 < end && 4 * at + i < nv)
                best[i / 4 % MINE] = fmaxf(best[i / 4 % MINE], q[i / 4].v[i % 4]);
    }
    GPU_UNROLL
    for (int i = 0; i < MINE; i++)
        if (best[i] > -INFINITY) {
            low = fminf(low, best[i]);
            high = fmaxf(high, best[i]);
            mine++;
        }
    float scale = find_scale<THREADS>(low, high, f, &least);
    (void)block_sum_before(mine, f->part, &all);
    if (scale == 0 || all <= (uint32_t)topk)
        return 0;
    GPU_UNROLL
    for (int i = 0; i < MINE; i++)
        if (best[i] > -INFINITY)
            atomicAdd(f->hist + FST_MAX(step_at(best[i], least, scale), 0), 1u);
    gpu_sync();
    find_step<THREADS>((uint32_t)topk + 1, f);
    int lowest = f->bin;
    for (int at = first; at < end; at += BATCH) {
        if (each > BATCH) /* else they are still there */
            load_quads(q, score, at, end);
        GPU_UNROLL
        for (int i = 0; i < 4 * BATCH; i++)
            n += at + i / 4 < end && 4 * at + i < nv &&
                 step_at(q[i / 4].v[i % 4], least, scale) >= lowest;
    }
    uint32_t place = block_sum_before((uint32_t)n, f->part, &all);
    if (all > LIST)
        return 0;
    for (int at = first; at < end && n; at += BATCH) {
        if (each > BATCH)
            load_quads(q, score, at, end);
        GPU_UNROLL
        for (int i = 0; i < 4 * BATCH; i++)
            if (at + i / 4 < end && 4 * at + i < nv &&
                step_at(q[i / 4].v[i % 4], least, scale) >= lowest) {
                list->x[place] = q[i / 4].v[i % 4];
                list->e[place++] = 4 * at + i;
            }
    }
    gpu_sync();
    return (int)all;
}

template <int THREADS>
MMA_APART void choose_crowd(const float *score, int nv, int topk, int32_t *sel, float *margin,
                            struct chooser *c)
{
    gpu_sync();
    choose<THREADS>(score, nv, topk, sel, margin, c);
}

/* The topk best of nv > topk scores, ascending, and their margin unless NULL.  LISTS: also more than HELD
 * without a crowd, which takes registers. */
template <int THREADS, bool LISTS>
GPU_FN void choose_any(const float *score, int nv, int topk, int32_t *sel, float *margin,
                       union choice_shared *s)
{
    bool done = false;
    if (nv <= HELD) {
        done =
            choose_held<CHOOSERS / THREADS, THREADS>(score, NULL, nv, topk, sel, margin, &s->a.f);
    } else if (LISTS) {
        int n = list_best<THREADS>(score, nv, topk, &s->a.f, &s->a.list);
        if (n)
            done = choose_held < LIST / 4 < THREADS ? 1 : LIST / 4 / THREADS,
            THREADS > (s->a.list.x, &s->a.list, n, topk, sel, margin, &s->a.f);
    }
    if (!done)
        choose_crowd<THREADS>(score, nv, topk, sel, margin, &s->c);
}

#endif
