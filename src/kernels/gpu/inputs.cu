/* inputs.cu - what enters a forward: rope tables and embeddings. */
#include "kernels/gpu/gpu.h"

struct rope_job {
    struct rope_args a;
};

/* One thread per pair. */
GPU_KERNEL void rope_kernel(struct rope_job j)
{
    gpu_start();
    int half = j.a.rope_dim / 2;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (int64_t)j.a.n * half)
        return;
    gpu_angle(j.a.cs + 2 * i, j.a.freq[i % half], j.a.pos[i / half]);
}

GPU_ENTRY(rope)
{
    struct rope_job j = {*a};
    gpu_launch_early(rope_kernel, div_up((int64_t)a->n * (a->rope_dim / 2), 128), 128, 0, s, j);
    return gpu_done("rope");
}

struct embed_job {
    float *x;
    struct mat table;
    const int32_t *id;
    int dim;
};

/* One block per row. */
GPU_KERNEL void embed_kernel(struct embed_job j)
{
    gpu_start();
    int64_t row = j.id[blockIdx.x];
    float *x = j.x + (int64_t)blockIdx.x * KERN_HC * j.dim;
    for (int d = (int)threadIdx.x; d < j.dim; d += (int)blockDim.x) {
        float v = gpu_load1(j.table.fmt, j.table.data, row * j.dim + d);
        for (int k = 0; k < KERN_HC; k++)
            x[(int64_t)k * j.dim + d] = v;
    }
}

GPU_ENTRY(embed)
{
    FST_ASSERT(a->table->n_in == a->dim);
    FST_ASSERT(a->table->fmt == WEIGHT_F32 || a->table->fmt == WEIGHT_BF16);
    struct embed_job j = {a->x, *a->table, a->id, a->dim};
    gpu_launch_early(embed_kernel, a->n_rows, 256, 0, s, j);
    return gpu_done("embed");
}
