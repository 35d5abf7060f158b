/* route.cu - which experts a row visits, in two launches: scores, choice.
 *
 * Order of a score: a lane takes 8 inputs in a row, then the 8 that lie a wave further, one after
 * the other; lanes as a tree.  Tiles of experts and rows share loads and change no sum. */
#include "kernels/gpu/gpu.h"

enum {
    EXPERTS_MAX = 512,
    K_MAX = 16,
    GROUP = 32, /* experts that are compared with each other first */
    FINALISTS = EXPERTS_MAX / GROUP * (K_MAX + 1)
};

/* ---------------------------------------------------------------- scores */

struct score_job {
    const float *x;
    struct mat gate;
    float *score; /* (n_rows, n_experts) */
    int n_rows;
};

/* sqrt(softplus(g)); far below 0 softplus is e^g, whose root keeps the range of a float. */
GPU_FN float score_of(float g)
{
    if (g < -20.0f)
        return expf(0.5f * g);
    return sqrtf(g > 20.0f ? g : log1pf(expf(g)));
}

/* A wave makes the scores of E experts for R rows; the last tiles repeat a row or an expert. */
template <int E, int R> GPU_KERNEL void score_kernel(struct score_job j)
{
    gpu_start();
    int n = j.gate.n_out, n_in = j.gate.n_in, lane = gpu_lane();
    int64_t unit = (int64_t)blockIdx.x * gpu_waves() + gpu_wave(), tiles = (n + E - 1) / E;
    int e0 = (int)(unit % tiles) * E;
    int64_t r0 = unit / tiles * R;
    if (r0 >= j.n_rows)
        return;
    const float *x[R];
    float sum[E][R], mine = 0;
    for (int r = 0; r < R; r++) {
        x[r] = j.x + FST_MIN(r0 + r, (int64_t)j.n_rows - 1) * n_in;
        for (int e = 0; e < E; e++)
            sum[e][r] = 0;
    }
    for (int i = 8 * lane; i < n_in; i += 8 * GPU_WAVE) {
        float w[E][8];
        for (int e = 0; e < E; e++)
            gpu_load8(w[e], j.gate.fmt, j.gate.data, (int64_t)FST_MIN(e0 + e, n - 1) * n_in + i);
        for (int r = 0; r < R; r++) {
            float v[8];
            gpu_load8(v, WEIGHT_F32, x[r], i);
            for (int e = 0; e < E; e++)
                for (int k = 0; k < 8; k++)
                    sum[e][r] = fmaf(w[e][k], v[k], sum[e][r]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int e = 0; e < E; e++) {
            float s = wave_sum(sum[e][r]);
            mine = lane == r * E + e ? s : mine;
        }
    int e = e0 + lane % E;
    int64_t r = r0 + lane / E;
    if (lane < E * R && e < n && r < j.n_rows)
        j.score[r * n + e] = score_of(mine);
}

template <int E, int R>
static void launch_scores(const struct score_job *j, int threads, struct stream *s)
{
    int64_t waves = div_up(j->gate.n_out, E) * div_up(j->n_rows, R);
    gpu_launch_early(score_kernel<E, R>, div_up(waves, threads / GPU_WAVE), threads, 0, s, *j);
}

/* ---------------------------------------------------------------- choice */

struct choose_job {
    struct route_args a; /* the gate is on the host: n stands for it */
    const float *score;
    int n;
};

struct finalists {
    uint32_t key[FINALISTS];
    int32_t id[FINALISTS];
};

/* Larger for the larger value; 0 is left for "nobody", a NaN comes last. */
GPU_FN uint32_t key_of(float v)
{
    return FST_MAX(gpu_ordered(v), 1u);
}

/* The k+1 best of every 32 experts: who is beaten by fewer than k+1 of them.  By rank, so that each
 * has a place of its own. */
GPU_FN void heats(const uint32_t *key, int n, int k, struct finalists *f)
{
    int e = (int)threadIdx.x, first = e / GROUP * GROUP, rank = 0;
    for (int i = first; i < FST_MIN(first + GROUP, n) && e < n; i++)
        rank += key[i] > key[e] || (key[i] == key[e] && i < e);
    if (e < n && rank <= k) {
        int at = e / GROUP * (k + 1) + rank;
        f->key[at] = key[e];
        f->id[at] = e;
    }
}

/* The k best of the finalists into `list`; edge: the k-th and the next. */
GPU_FN void final(const struct finalists *f, int n, int k, int32_t *list, int32_t *edge)
{
    int me = (int)threadIdx.x, rank = 0;
    if (me >= n || !f->key[me])
        return;
    uint32_t key = f->key[me];
    int32_t id = f->id[me];
    for (int i = 0; i < n; i++)
        rank += f->key[i] > key || (f->key[i] == key && f->id[i] < id);
    if (rank < k)
        list[rank] = id;
    if (rank == k - 1 || rank == k)
        edge[rank - k + 1] = id;
}

/* The k ids of a row into `list`, in no order. */
GPU_FN void choose(const struct choose_job *j, int64_t row, int32_t *list)
{
    GPU_SHARED uint32_t key[EXPERTS_MAX];
    GPU_SHARED struct finalists f;
    GPU_SHARED int32_t edge[2];
    const float *score = j->score + row * j->n, *bias = j->a.bias;
    int tid = (int)threadIdx.x, k = j->a.k, n = (j->n + GROUP - 1) / GROUP * (k + 1);
    if (tid < j->n)
        key[tid] = key_of(score[tid] + bias[tid]);
    for (int i = tid; i < n; i += (int)blockDim.x)
        f.key[i] = 0;
    if (tid == 0)
        edge[1] = -1;
    gpu_sync();
    heats(key, j->n, k, &f);
    gpu_sync();
    final(&f, n, k, list, edge);
    gpu_sync();
    if (j->a.margin && tid == 0) {
        float last = score[edge[0]] + bias[edge[0]];
        j->a.margin[row] = last - (edge[1] < 0 ? -INFINITY : score[edge[1]] + bias[edge[1]]);
    }
}

/* One block per row, a thread per expert. */
GPU_KERNEL void choose_kernel(struct choose_job j)
{
    gpu_start();
    GPU_SHARED int32_t list[K_MAX];
    GPU_SHARED float sorted[K_MAX]; /* scores, by ascending id */
    int tid = (int)threadIdx.x, k = j.a.k, place = 0;
    int64_t row = blockIdx.x;
    if (!j.a.tid2eid)
        choose(&j, row, list);
    else if (tid < k) {
        list[tid] = j.a.tid2eid[(int64_t)j.a.id[row] * k + tid];
        if (j.a.margin && tid == 0)
            j.a.margin[row] = INFINITY;
    }
    gpu_sync();
    if (tid < k) {
        for (int i = 0; i < k; i++)
            place += list[i] < list[tid] || (list[i] == list[tid] && i < tid);
        sorted[place] = j.score[row * j.n + list[tid]];
        j.a.expert[row * k + place] = list[tid];
    }
    gpu_sync();
    if (tid >= k)
        return;
    float sum = 0;
    for (int i = 0; i < k; i++)
        sum += sorted[i];
    j.a.weight[row * k + tid] = sorted[tid] / sum * j.a.scale; /* the bias does not weigh */
}

/* ---------------------------------------------------------------- launcher */

GPU_ENTRY(route)
{
    const struct mat *gate = a->gate;
    FST_ASSERT(gate->fmt == WEIGHT_BF16 || gate->fmt == WEIGHT_F32);
    FST_ASSERT(gate->n_in % 8 == 0);
    FST_ASSERT(gate->n_out <= EXPERTS_MAX);
    FST_ASSERT(a->k <= K_MAX && a->k <= gate->n_out);
    FST_ASSERT(a->tid2eid || a->bias);
    struct gpu_cut c = gpu_scratch(s);
    float *score = gpu_take<float>(&c, (int64_t)a->n_rows * gate->n_out);
    struct score_job scores = {a->x, *gate, score, a->n_rows};
    if (a->n_rows == 1)
        launch_scores<1, 1>(&scores, 64, s);
    else if (a->n_rows <= 32)
        launch_scores<1, 4>(&scores, 64, s);
    else
        launch_scores<4, 8>(&scores, 256, s);
    struct choose_job j = {*a, score, gate->n_out};
    gpu_launch_early(choose_kernel, a->n_rows, (int)round_up(gate->n_out, 64), 0, s, j);
    return gpu_done("route");
}

size_t gpu_route_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * l->n_experts, sizeof(float));
}
