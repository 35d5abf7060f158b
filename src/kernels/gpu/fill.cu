/* fill.cu - random contents for memory (device/fill.h): 16 bytes a thread, as fast as memory takes them. */
#include "kernels/gpu/gpu.h"

enum { FILL_THREADS = 256 };

struct fill_job {
    struct device_fill f;
    uint8_t *p;
    int64_t groups;
};

GPU_KERNEL void fill_kernel(struct fill_job a)
{
    int64_t g = (int64_t)blockIdx.x * FILL_THREADS + (int64_t)threadIdx.x;
    struct gpu_words q;
    if (g >= a.groups)
        return;
    fill_group(&a.f, (uint64_t)g, q.w);
    *(struct gpu_words *)(void *)(a.p + 16 * g) = q;
}

extern "C" enum fst_status GPU_NAME(memory_fill)(void *queue, void *p, size_t bytes,
                                                 const struct device_fill *f)
{
    struct stream s = {};
    s.queue = queue;
    struct fill_job a = {*f, (uint8_t *)p, (int64_t)(bytes / 16)};
    gpu_launch(fill_kernel, div_up(a.groups, FILL_THREADS), FILL_THREADS, 0, &s, a);
    return gpu_done("fill");
}
