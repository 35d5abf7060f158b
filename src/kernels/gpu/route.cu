/* route.cu - which experts a row visits, in two launches: gate products, choice (route.cuh).
 *
 * Order of a product: a lane takes 8 inputs in a row, then the 8 that lie a wave further, one after
 * the other; lanes as a tree.  Tiles of experts and rows share loads and change no sum. */
#include "kernels/gpu/route.cuh"

struct gate_job {
    const float *x;
    struct mat gate;
    float *product; /* (n_rows, n_experts) */
    int n_rows;
};

/* Eight weights. */
template <int FMT> struct gate_words {
    struct gpu_words w[FMT == WEIGHT_F32 ? 2 : 1];
};

/* Batch `first` of the lane's weights: U times eight of E experts. */
template <int FMT, int E, int U>
GPU_FN void load_gate(struct gate_words<FMT> (&w)[U][E], const struct mat &gate, int e0, int first)
{
    const uint8_t *data = (const uint8_t *)gate.data;
    GPU_UNROLL
    for (int u = 0; u < U; u++)
        GPU_UNROLL
    for (int e = 0; e < E; e++) {
        int i = first + 8 * (u * GPU_WAVE + gpu_lane());
        int64_t at = (int64_t)FST_MIN(e0 + e, gate.n_out - 1) * gate.n_in + i;
        if (i < gate.n_in)
            for (int h = 0; h < (int)(sizeof w[u][e] / 16); h++)
                w[u][e].w[h] = gpu_load16(data + at * (int)(sizeof w[u][e] / 8) + 16 * h);
    }
}

template <int FMT> GPU_FN float gate_value(const struct gate_words<FMT> &w, int k)
{
    if (FMT == WEIGHT_F32)
        return gpu_float(w.w[k / 4 % (int)(sizeof w / 16)].w[k % 4]);
    return k % 2 ? gpu_high(w.w[0].w[k / 2]) : gpu_low(w.w[0].w[k / 2]);
}

/* A wave makes the products of E experts for R rows; the last tiles repeat a row or an expert. */
template <int FMT, int E, int R, int U> GPU_KERNEL void gate_kernel(struct gate_job j)
{
    int n = j.gate.n_out, n_in = j.gate.n_in, lane = gpu_lane();
    int64_t unit = (int64_t)blockIdx.x * gpu_waves() + gpu_wave(), tiles = (n + E - 1) / E;
    int e0 = (int)(unit % tiles) * E;
    int64_t r0 = unit / tiles * R;
    struct gate_words<FMT> w[U][E];
    const float *x[R];
    float sum[E][R] = {}, mine = 0;
    gpu_let_next();
    load_gate<FMT, E, U>(w, j.gate, e0, 0);
    gpu_wait_before();
    if (r0 >= j.n_rows)
        return;
    for (int r = 0; r < R; r++)
        x[r] = j.x + FST_MIN(r0 + r, (int64_t)j.n_rows - 1) * n_in;
    for (int first = 0; first < n_in; first += 8 * U * GPU_WAVE) {
        if (first)
            load_gate<FMT, E, U>(w, j.gate, e0, first);
        GPU_UNROLL
        for (int u = 0; u < U; u++) {
            int i = first + 8 * (u * GPU_WAVE + lane);
            if (i >= n_in)
                continue;
            GPU_UNROLL
            for (int r = 0; r < R; r++) {
                float v[8];
                gpu_load8(v, WEIGHT_F32, x[r], i);
                GPU_UNROLL
                for (int e = 0; e < E; e++)
                    for (int k = 0; k < 8; k++)
                        sum[e][r] = fmaf(gate_value<FMT>(w[u][e], k), v[k], sum[e][r]);
            }
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
        j.product[r * n + e] = mine;
}

template <int E, int R, int U>
static void launch_gate(const struct gate_job *j, int threads, struct stream *s)
{
    int64_t waves = div_up(j->gate.n_out, E) * div_up(j->n_rows, R);
    void (*kernel)(struct gate_job) = j->gate.fmt == WEIGHT_F32 ? gate_kernel<WEIGHT_F32, E, R, U>
                                                                : gate_kernel<WEIGHT_BF16, E, R, U>;
    gpu_launch_early(kernel, div_up(waves, threads / GPU_WAVE), threads, 0, s, *j);
}

GPU_ENTRY(route)
{
    const struct mat *gate = a->gate;
    FST_ASSERT(gate->fmt == WEIGHT_BF16 || gate->fmt == WEIGHT_F32);
    FST_ASSERT(gate->n_in % 8 == 0);
    struct gpu_cut c = gpu_scratch(s);
    float *product = gpu_take<float>(&c, (int64_t)a->n_rows * gate->n_out);
    struct gate_job j = {a->x, *gate, product, a->n_rows};
    if (a->n_rows == 1)
        launch_gate<1, 1, 8>(&j, 64, s);
    else if (a->n_rows <= 32)
        launch_gate<1, 4, 4>(&j, 64, s);
    else
        launch_gate<4, 8, 1>(&j, 256, s);
    route_choose(a, product, 1, s);
    return gpu_done("route");
}

size_t gpu_route_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * l->n_experts, sizeof(float));
}
