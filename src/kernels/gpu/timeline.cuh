/* timeline.cuh - when a card's blocks were where: only in a build for measuring (cmake -DFST_TIMELINE=ON).
 *
 * gpu_wait_before notes for every wave when it began to wait for the kernel ahead and when that was over
 * (mark 0), gpu_mark(1 .. 15) when a wave came by.  The card's clock ticks every 32 ns and is the same for
 * all its processors.  Notes are stores that nobody waits for, into a ring of each processor that holds some
 * milliseconds; two that fall on one place leave one, so some waves are missing.
 *
 * With FIRESTEEL_TIMELINE=FILE what is left is written when the process ends: a line per note of the last
 * FIRESTEEL_TIMELINE_US (1000) microseconds.  bench/anchors/timeline.py makes a table of it.  Included by gpu.h. */
#ifndef FST_KERNELS_GPU_TIMELINE_CUH
#define FST_KERNELS_GPU_TIMELINE_CUH

#include "kernels/gpu/gpu.h"

#if defined(__CUDACC__)
enum { TIMELINE_PLACES = 1 << 16, TIMELINE_PROCESSORS = 256 };

struct alignas(16) timeline_note {
    uint64_t begin, end; /* ns */
    uint32_t grid, block;
    uint16_t threads, wave, shared, mark; /* shared: dynamic, in units of 256 bytes */
};

/* Of this translation unit, set by its first launch; NULL: nothing is noted. */
static __device__ struct timeline_note *timeline_notes;

GPU_FN uint64_t timeline_now(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

GPU_FN void timeline_put(uint64_t begin, uint64_t end, int mark)
{
    uint32_t processor, shared;
    if (threadIdx.x % 32 || !timeline_notes)
        return;
    asm volatile("mov.u32 %0, %smid;" : "=r"(processor));
    asm volatile("mov.u32 %0, %dynamic_smem_size;" : "=r"(shared));
    uint32_t wave = threadIdx.x / 32;
    uint32_t place = ((uint32_t)(end >> 6) + wave * 977 + (uint32_t)mark * 3331) % TIMELINE_PLACES;
    struct timeline_note n = {begin,
                              end,
                              gridDim.x,
                              blockIdx.x,
                              (uint16_t)blockDim.x,
                              (uint16_t)wave,
                              (uint16_t)(shared >> 8),
                              (uint16_t)mark};
    timeline_notes[(size_t)(processor % TIMELINE_PROCESSORS) * TIMELINE_PLACES + place] = n;
}

GPU_FN void gpu_mark(int mark)
{
    uint64_t now = timeline_now();
    timeline_put(now, now, mark);
}

/* The ring (table.cu); NULL when nobody asked for it. */
extern "C" struct timeline_note *timeline_ring(void);

/* Before the first launch of a translation unit, which is never part of a recording. */
static inline void timeline_start(void)
{
    static bool started;
    if (started)
        return;
    started = true;
    struct timeline_note *ring = timeline_ring();
    (void)cudaMemcpyToSymbol(timeline_notes, &ring, sizeof ring);
}
#endif

#endif
