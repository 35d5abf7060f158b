/* route.cuh - the choice of experts from gate products that lie in parts of K: route's second launch.
 *
 * The parts of a product are added in order, then score, choice and weights.  The chosen scores are added
 * by descending choice value, or in the order of the table. */
#ifndef FST_KERNELS_GPU_ROUTE_CUH
#define FST_KERNELS_GPU_ROUTE_CUH

#include "kernels/gpu/gpu.h"

enum {
    ROUTE_EXPERTS = 512,
    ROUTE_K = 16,
    ROUTE_PARTS = 8,
    ROUTE_GROUP = 32, /* experts that are compared with each other first */
    ROUTE_FINAL = ROUTE_EXPERTS / ROUTE_GROUP * (ROUTE_K + 1) + 4
};

struct choose_job {
    struct route_args a; /* the gate is on the host: n stands for it */
    const float *part;   /* (n_rows, parts, n) */
    int n, parts;
};

/* sqrt(softplus(g)); far below 0 softplus is e^g, whose root keeps the range of a float. */
GPU_FN float score_of(float g)
{
    if (g < -20.0f)
        return expf(0.5f * g);
    return sqrtf(g > 20.0f ? g : log1pf(expf(g)));
}

/* Gate product of expert e. */
GPU_FN float gate_sum(const struct choose_job *j, int64_t row, int e)
{
    const float *part = j->part + row * j->parts * j->n + e;
    float v[ROUTE_PARTS], sum;
    GPU_UNROLL
    for (int i = 0; i < ROUTE_PARTS; i++)
        v[i] = i < j->parts ? part[i * j->n] : 0;
    sum = v[0];
    GPU_UNROLL
    for (int i = 1; i < ROUTE_PARTS; i++)
        sum += v[i];
    return sum;
}

/* Larger for the larger value; 0 is left for "nobody", a NaN comes last. */
GPU_FN uint32_t key_of(float v)
{
    return FST_MAX(gpu_ordered(v), 1u);
}

/* Finalists in one word: the larger key, then the lower id. */
struct alignas(16) finalists {
    uint64_t v[ROUTE_FINAL];
};
GPU_FN int32_t id_of(uint64_t finalist)
{
    return (int32_t) ~(uint32_t)finalist;
}

/* The k+1 best of every 32 experts: who is beaten by fewer than k+1 of them.  By rank, so that each
 * has a place of its own. */
GPU_FN void heats(const uint32_t *key, int n, int k, struct finalists *f)
{
    int e = (int)threadIdx.x, first = e / ROUTE_GROUP * ROUTE_GROUP, rank = 0;
    uint32_t mine = key[e];
    GPU_UNROLL
    for (int i = 0; i < ROUTE_GROUP; i += 4) {
        struct gpu_words q = gpu_load16(key + first + i);
        GPU_UNROLL
        for (int m = 0; m < 4; m++) /* a lower id beats an equal key */
            rank += q.w[m] > mine - (first + i + m < e);
    }
    if (e < n && rank <= k)
        f->v[e / ROUTE_GROUP * (k + 1) + rank] = (uint64_t)mine << 32 | (uint32_t)~e;
}

/* The k best of n finalists (with as many zeros behind them as fill a quad) into `list`; edge: the k-th
 * and the next. */
GPU_FN void final(const struct finalists *f, int n, int k, int32_t *list, int32_t *edge)
{
    int me = (int)threadIdx.x, rank = 0;
    if (me >= n || !f->v[me])
        return;
    uint64_t mine = f->v[me];
    for (int i = 0; i < n; i += 4)
        GPU_UNROLL
    for (int m = 0; m < 4; m++)
        rank += f->v[i + m] > mine;
    if (rank < k)
        list[rank] = id_of(mine);
    if (rank == k - 1 || rank == k)
        edge[rank - k + 1] = id_of(mine);
}

/* The k ids of a row into `list`, best first.  value: score plus bias of this thread's expert. */
GPU_FN void choose(const struct choose_job *j, int64_t row, const float *score, float value,
                   int32_t *list)
{
    GPU_SHARED struct alignas(16) {
        uint32_t v[ROUTE_EXPERTS];
    } key;
    GPU_SHARED struct finalists f;
    GPU_SHARED int32_t edge[2];
    const float *bias = j->a.bias;
    int tid = (int)threadIdx.x, k = j->a.k;
    int n = (j->n + ROUTE_GROUP - 1) / ROUTE_GROUP * (k + 1);
    key.v[tid] = tid < j->n ? key_of(value) : 0;
    for (int i = tid; i < n + 4; i += (int)blockDim.x)
        f.v[i] = 0;
    if (tid == 0)
        edge[1] = -1;
    gpu_sync();
    heats(key.v, j->n, k, &f);
    gpu_sync();
    final(&f, n, k, list, edge);
    gpu_sync();
    if (j->a.margin && tid == 0) {
        float last = score[edge[0]] + bias[edge[0]];
        j->a.margin[row] = last - (edge[1] < 0 ? -INFINITY : score[edge[1]] + bias[edge[1]]);
    }
}

/* One block per row, a thread per expert, at least k. */
GPU_KERNEL void choose_kernel(struct choose_job j)
{
    GPU_SHARED int32_t list[ROUTE_K];
    GPU_SHARED float score[ROUTE_EXPERTS];
    int tid = (int)threadIdx.x, k = j.a.k, place = 0, e = FST_MIN(tid, j.n - 1);
    int64_t row = blockIdx.x;
    bool hashed = j.a.tid2eid != NULL;
    gpu_let_next();
    float bias = hashed ? 0 : j.a.bias[e], sum = 0;
    gpu_wait_before();
    if (hashed && tid < k) {
        list[tid] = j.a.tid2eid[(int64_t)j.a.id[row] * k + tid];
        if (j.a.margin && tid == 0)
            j.a.margin[row] = INFINITY;
    }
    score[tid] = score_of(gate_sum(&j, row, e));
    if (hashed)
        gpu_sync();
    else
        choose(&j, row, score, score[tid] + bias, list);
    if (tid >= k)
        return;
    for (int i = 0; i < k; i++) {
        place += list[i] < list[tid] || (list[i] == list[tid] && i < tid);
        sum += score[list[i]]; /* the bias does not weigh */
    }
    j.a.expert[row * k + place] = list[tid];
    j.a.weight[row * k + place] = score[list[tid]] / sum * j.a.scale;
}

static void route_choose(const struct route_args *a, const float *part, int parts, struct stream *s)
{
    struct choose_job j = {*a, part, a->gate->n_out, parts};
    FST_ASSERT(a->k <= ROUTE_K && a->k <= j.n);
    FST_ASSERT(j.n <= ROUTE_EXPERTS);
    FST_ASSERT(a->tid2eid || a->bias);
    gpu_launch_early(choose_kernel, a->n_rows, (int)round_up(j.n, 64), 0, s, j);
}

#endif
