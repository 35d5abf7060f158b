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
