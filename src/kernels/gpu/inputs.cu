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

enum { EMBEDDERS = 256, QUADS = 2, PART = 4 * EMBEDDERS * QUADS };

/* Four values of the table from `at` on. */
GPU_FN struct gpu_quad table_quad(const struct mat *m, int64_t at)
{
    struct alignas(8) half {
        uint32_t w[2];
    };
    if (m->fmt == WEIGHT_F32)
        return gpu_load4((const float *)m->data + at);
    struct half p = gpu_load_as<struct half>((const uint16_t *)m->data + at);
    return {{gpu_low(p.w[0]), gpu_high(p.w[0]), gpu_low(p.w[1]), gpu_high(p.w[1])}};
}

/* A block per row and PART columns.  A thread's stores are 16 bytes next to its neighbour's: whole lines. */
GPU_KERNEL void embed_kernel(struct embed_job j)
{
    gpu_start();
    int parts = (j.dim + PART - 1) / PART,
        d = (int)blockIdx.x % parts * PART + 4 * (int)threadIdx.x;
    int64_t t = blockIdx.x / parts, row = j.id[t];
    float *x = j.x + t * KERN_HC * j.dim;
    struct gpu_quad v[QUADS];
    GPU_UNROLL
    for (int i = 0; i < QUADS; i++)
        if (d + 4 * i * EMBEDDERS < j.dim)
            v[i] = table_quad(&j.table, row * j.dim + d + 4 * i * EMBEDDERS);
    GPU_UNROLL
    for (int i = 0; i < QUADS; i++)
        for (int k = 0; k < KERN_HC; k++)
            if (d + 4 * i * EMBEDDERS < j.dim)
                gpu_store4(x + (int64_t)k * j.dim + d + 4 * i * EMBEDDERS, v[i]);
}

GPU_ENTRY(embed)
{
    FST_ASSERT(a->table->n_in == a->dim && a->dim % 4 == 0);
    FST_ASSERT(a->table->fmt == WEIGHT_F32 || a->table->fmt == WEIGHT_BF16);
    struct embed_job j = {a->x, *a->table, a->id, a->dim};
    gpu_launch_early(embed_kernel, a->n_rows * div_up(a->dim, PART), EMBEDDERS, 0, s, j);
    return gpu_done("embed");
}
