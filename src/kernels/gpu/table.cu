/* table.cu - the portable kernels as a table. */
#include "kernels/gpu/gpu.h"

#define GPU_FILL(entry, args) k->entry = GPU_NAME(entry);

extern "C" bool GPU_NAME(kernels_fill)(void *table, size_t bytes)
{
    struct kernels *k = (struct kernels *)table;
    if (bytes != sizeof *k)
        return false;
    k->flags = KERN_GPU;
    k->name = "gpu";
    k->scratch = GPU_NAME(kernels_scratch);
    KERNELS_MAP(GPU_FILL)
    return true;
}

extern "C" size_t GPU_NAME(kernels_scratch)(const struct kernel_limits *l)
{
    size_t most = gpu_linear_scratch(l);
    most = FST_MAX(most, gpu_kv_scratch(l));
    most = FST_MAX(most, gpu_index_scratch(l));
    most = FST_MAX(most, gpu_attention_scratch(l));
    most = FST_MAX(most, gpu_seam_scratch(l));
    most = FST_MAX(most, gpu_route_scratch(l));
    return FST_MAX(most, gpu_draw_scratch(l));
}

#if defined(__CUDACC__) && defined(FST_TIMELINE)
#include <stdio.h>
#include <stdlib.h>

static struct timeline_note *ring;
enum { TIMELINE_NOTES = TIMELINE_PROCESSORS * TIMELINE_PLACES };

static void timeline_write(void)
{
    const char *us = getenv("FIRESTEEL_TIMELINE_US");
    uint64_t newest = 0, span = 1000 * (us ? strtoull(us, NULL, 10) : 1000);
    FILE *f = fopen(getenv("FIRESTEEL_TIMELINE"), "we");
    struct timeline_note *n = (struct timeline_note *)malloc(TIMELINE_NOTES * sizeof *n);
    if (!f || !n || cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(n, ring, TIMELINE_NOTES * sizeof *n, cudaMemcpyDeviceToHost) != cudaSuccess) {
        fprintf(stderr, "timeline: nothing written\n");
        return;
    }
    for (int i = 0; i < TIMELINE_NOTES; i++)
        newest = FST_MAX(newest, n[i].end);
    fprintf(f, "begin_ns end_ns processor grid block threads wave shared mark\n");
    for (int i = 0; i < TIMELINE_NOTES; i++)
        if (n[i].end && newest - n[i].end < span)
            fprintf(f, "%lld %lld %d %u %u %d %d %d %d\n",
                    (long long)(n[i].begin - (newest - span)),
                    (long long)(n[i].end - (newest - span)), i / TIMELINE_PLACES, n[i].grid,
                    n[i].block, n[i].threads, n[i].wave, n[i].shared * 256, n[i].mark);
    fclose(f);
    free(n);
}

extern "C" struct timeline_note *timeline_ring(void)
{
    if (!ring && getenv("FIRESTEEL_TIMELINE") &&
        cudaMalloc((void **)&ring, TIMELINE_NOTES * sizeof *ring) == cudaSuccess &&
        cudaMemset(ring, 0, TIMELINE_NOTES * sizeof *ring) == cudaSuccess)
        (void)atexit(timeline_write);
    return ring;
}
#endif
