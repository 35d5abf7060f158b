/* route.cu - gate products for Hopper by matrix instructions; the choice is that of kernels/gpu.
 *
 * A wave multiplies 16 experts by 8 rows at a time over a 32nd of K, which it keeps in registers from
 * before the wait on: at one row the gate's 2 MB come from memory, and only the row is waited for.  A
 * block has the four neighbouring parts of an eighth of K, for one tile of experts or, with many rows,
 * for four tiles that share the rows' loads; the eighths are added with the choice.
 *
 * Order of a product: of every 32 inputs, four a lane of the instruction's four (inputs 8q .. 8q+3 of
 * lane q) go into one sum and the other four into another, 32 after 32; the two, the four parts as a
 * tree, the eight in order. */
#include "kernels/gpu/route.cuh"
#include "kernels/sm90/mma.cuh"

enum {
    TILE = 16, /* experts */
    ROWS = 8,  /* of an instruction */
    SLICES = ROUTE_PARTS,
    WAVES = 4,  /* parts of a slice */
    STEP = 32,  /* inputs */
    FILL = 512, /* blocks with many rows */
    FEW = 32    /* rows for which a block has one tile of experts */
};

struct gate_job {
    const float *x;
    const uint16_t *gate;        /* (n, n_in) */
    float *part;                 /* (n_rows, SLICES, n) */
    int n, n_in, n_rows, groups; /* blocks that share the rows of a tile and slice */
};

/* Weights of a wave: rows g and g+8 of its 16 experts, 8 inputs of every step, up to S. */
template <int S> struct gate_words {
    struct gpu_words w[S][2];
};
/* A lane's inputs: of row g of eight, as many. */
template <int S> struct gate_rows {
    struct gpu_quad v[S][2];
};

template <int S>
GPU_FN void load_gate(struct gate_words<S> &w, const struct gate_job &j, int e0, int k0, int steps)
{
    int64_t row = e0 + gpu_lane() / 4;
    const uint16_t *p = j.gate + row * j.n_in + k0 + gpu_lane() % 4 * 8;
    GPU_UNROLL
    for (int s = 0; s < S; s++)
        GPU_UNROLL
    for (int h = 0; h < 2; h++)
        if (s < steps)
            w.w[s][h] = gpu_load16(p + (int64_t)8 * h * j.n_in + STEP * s);
}

/* Beyond the last row: that one again. */
template <int S>
GPU_FN void load_rows(struct gate_rows<S> &x, const struct gate_job &j, int64_t r0, int k0,
                      int steps)
{
    int64_t row = FST_MIN(r0 + gpu_lane() / 4, (int64_t)j.n_rows - 1);
    const float *p = j.x + row * j.n_in + k0 + gpu_lane() % 4 * 8;
    GPU_UNROLL
    for (int s = 0; s < S; s++)
        GPU_UNROLL
    for (int h = 0; h < 2; h++)
        if (s < steps)
            x.v[s][h] = gpu_load4(p + STEP * s + 4 * h);
}

/* d: of experts g, g, g+8, g+8 with rows 2q, 2q+1, 2q, 2q+1 of eight. */
template <int S>
GPU_FN void gate_products(float (&d)[4], const struct gate_words<S> &w,
                          const struct gate_rows<S> &x, int steps)
{
    float odd[4] = {0, 0, 0, 0};
    d[0] = d[1] = d[2] = d[3] = 0;
    GPU_UNROLL
    for (int s = 0; s < S; s++)
        GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        const uint32_t *w0 = w.w[s][0].w + 2 * h, *w1 = w.w[s][1].w + 2 * h;
        const float *v = x.v[s][h].v;
        const uint32_t a[4] = {w0[0], w1[0], w0[1], w1[1]};
        const uint32_t b[2] = {mma_pair(v[0], v[1]), mma_pair(v[2], v[3])};
        if (s < steps)
            mma_16x8(h ? odd : d, a, b);
    }
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        d[i] += odd[i];
}

/* TILES tiles of experts a block; up to S steps.  The next rows' loads are under way while these are added
 * up. */
template <int TILES, int S>
GPU_KERNEL void GPU_BOUNDS(TILES *WAVES * 32, 1) gate_kernel(struct gate_job j)
{
    GPU_SHARED float sums[2][TILES][WAVES][ROWS][TILE + 4];
    int tile = gpu_wave() / WAVES, part = gpu_wave() % WAVES, tid = (int)threadIdx.x % MMA_GROUP;
    int tiles = j.n / (TILE * TILES), block = (int)blockIdx.x, turn = 0;
    int slice = block % SLICES, e0 = (block / SLICES % tiles * TILES + tile) * TILE;
    int steps = j.n_in / (SLICES * WAVES * STEP), k0 = (slice * WAVES + part) * steps * STEP;
    int g = gpu_lane() / 4, q = gpu_lane() % 4, e = tid % TILE, r = tid / TILE;
    int64_t r0 = (int64_t)(block / SLICES / tiles) * ROWS;
    struct gate_words<S> w = {
    };
    struct gate_rows<S> x = {
    };
    gpu_let_next();
    load_gate<S>(w, j, e0, k0, steps);
    gpu_wait_before();
    load_rows<S>(x, j, r0, k0, steps);
    for (; r0 < j.n_rows; turn ^= 1) {
        float d[4], v[WAVES];
        int64_t next = r0 + (int64_t)j.groups * ROWS;
        gate_products<S>(d, w, x, steps);
        if (next < j.n_rows)
            load_rows<S>(x, j, next, k0, steps);
        for (int i = 0; i < 4; i++)
            sums[turn][tile][part][2 * q + i % 2][g + i / 2 * 8] = d[i];
        gpu_sync(); /* one a turn: who writes a half again has passed the barrier between */
        for (int i = 0; i < WAVES; i++)
            v[i] = sums[turn][tile][i][r][e];
        if (r0 + r < j.n_rows)
            j.part[((r0 + r) * SLICES + slice) * j.n + e0 + e] = (v[0] + v[1]) + (v[2] + v[3]);
        r0 = next;
    }
}

enum { WIDTH = SLICES * WAVES * STEP, STEPS_MAX = 8 };

static bool fits(const struct mat *m)
{
    return m->fmt == WEIGHT_BF16 && m->n_out % (4 * TILE) == 0 && m->n_in % WIDTH == 0 &&
           m->n_in <= WIDTH * STEPS_MAX;
}

template <int TILES> static void launch_gate(struct gate_job j, struct stream *s)
{
    int64_t tiles = (int64_t)j.n / (TILE * TILES) * SLICES, most = FILL / TILES / tiles;
    void (*kernel)(struct gate_job) =
        j.n_in <= 4 * WIDTH ? gate_kernel<TILES, 4> : gate_kernel<TILES, STEPS_MAX>;
    j.groups = (int)FST_MIN(div_up(j.n_rows, ROWS), FST_MAX(most, (int64_t)1));
    gpu_launch_early(kernel, tiles * j.groups, TILES * WAVES * 32, 0, s, j);
}

SM90_ENTRY(route)
{
    if (!fits(a->gate))
        return GPU_NAME(route)(a, s);
    struct gpu_cut c = gpu_scratch(s);
    const struct mat *m = a->gate;
    float *part = gpu_take<float>(&c, (int64_t)a->n_rows * SLICES * m->n_out);
    struct gate_job j = {a->x, (const uint16_t *)m->data, part, m->n_out, m->n_in, a->n_rows, 0};
    if (a->n_rows <= FEW)
        launch_gate<1>(j, s);
    else
        launch_gate<4>(j, s);
    route_choose(a, part, SLICES, s);
    return gpu_done("route");
}

size_t route_sm90_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * l->n_experts * SLICES, sizeof(float));
}
