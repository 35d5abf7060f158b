/* head.cu - collapse of the streams, last norm, logits. */
#include "kernels/gpu/linear.cuh"

enum { COLLAPSE_THREADS = 1024 };

struct collapse_job {
    const float *x;
    const int32_t *row;
    const float *fn, *base, *scale, *norm;
    float *y;
    uint16_t *h; /* the head's operand */
    int n, dim;
    float hc_eps, norm_eps;
};

/* One block per picked row: weights of the streams, their sum, its norm. */
GPU_KERNEL void collapse_kernel(struct collapse_job j)
{
    gpu_start();
    GPU_SHARED float part[COLLAPSE_THREADS / GPU_WAVE];
    int64_t i = blockIdx.x, wide = (int64_t)KERN_HC * j.dim;
    const float *x = j.x + lin_once(j.row + i) * wide;
    float sum = 0, z[KERN_HC] = {};
    for (int64_t d = threadIdx.x; d < wide; d += COLLAPSE_THREADS) {
        float v = x[d];
        sum = fmaf(v, v, sum);
        for (int k = 0; k < KERN_HC; k++)
            z[k] = fmaf(j.fn[k * wide + d], v, z[k]);
    }
    float rho = 1.0f / sqrtf(block_sum(sum, part) / (float)wide + j.norm_eps);
    for (int k = 0; k < KERN_HC; k++)
        z[k] = gpu_sigmoid(block_sum(z[k], part) * rho * j.scale[0] + j.base[k]) + j.hc_eps;
    float *y = j.y + i * j.dim;
    sum = 0;
    for (int d = (int)threadIdx.x; d < j.dim; d += COLLAPSE_THREADS) {
        float v = z[0] * x[d];
        for (int k = 1; k < KERN_HC; k++)
            v = fmaf(z[k], x[k * j.dim + d], v);
        y[d] = v = gpu_bf16(v);
        sum = fmaf(v, v, sum);
    }
    float r = 1.0f / sqrtf(block_sum(sum, part) / (float)j.dim + j.norm_eps);
    for (int d = (int)threadIdx.x; d < j.dim; d += COLLAPSE_THREADS)
        *lin_raw_place(j.h, j.n, j.dim, (int)i, d) = gpu_bf16_bits(y[d] * r * j.norm[d]);
}

GPU_ENTRY(head)
{
    FST_ASSERT(a->head->n_in == a->dim);
    for (int t0 = 0; t0 < a->n; t0 += LIN_ROWS) {
        struct gpu_cut c = gpu_scratch(s);
        int n = FST_MIN(a->n - t0, LIN_ROWS);
        int64_t vocab = a->head->n_out;
        struct collapse_job j = {a->x,
                                 a->row + t0,
                                 a->fn,
                                 a->base,
                                 a->scale,
                                 a->norm,
                                 a->y + (int64_t)t0 * a->dim,
                                 gpu_take<uint16_t>(&c, lin_operand_rows(n) * a->dim),
                                 n,
                                 a->dim,
                                 a->hc_eps,
                                 a->norm_eps};
        struct lin_batch b = {};
        gpu_launch_early(collapse_kernel, n, COLLAPSE_THREADS, 0, s, j);
        lin_add(&b, a->head, 1, j.h, n, a->logits + t0 * vocab, vocab, 0); /* never quantised */
        lin_run(s, &b);
    }
    return gpu_done("head");
}

size_t lin_head_scratch(const struct kernel_limits *l)
{
    return gpu_piece(lin_operand_rows(FST_MIN(l->n_rows, LIN_ROWS)) * l->dim, 2);
}
