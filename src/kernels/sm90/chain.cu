/* chain.cu - the Markov chain of a draft block for Hopper: one launch for all positions.
 *
 * A block a processor, all of them resident: they meet after every position at a counter in memory (launches for
 * products and for the choice took 42 us a position where the matrix takes 14).  A wave multiplies 16 rows of
 * w2 by the w1 rows of up to 32 requests; as many rows as there is room for, 23 of V4-Flash's 66 MB, stay in
 * shared memory from before the wait on.  Each block then takes the best of all blocks by itself, without a
 * second meeting.
 *
 * Nothing here may run beside another launch that waits for it in the same places: gpu_let_next comes
 * when all blocks are there, so who comes next never keeps one of them out.
 *
 * Order of a correction: 16 inputs in one product of the instruction, products ascending; within 32 inputs
 * lane q of four has 8q .. 8q+7, the first four in the first product.  It is the same for every number of
 * requests.  Draws are compared as in kernels/gpu/draw.cu. */
#include "kernels/gpu/draw.cuh"
#include "kernels/sm90/mma.cuh"

enum {
    WAVES = MMA_SIZE(16, 3),
    THREADS = 32 * WAVES,
    ROWS = 16, /* of w2, a wave's at a time */
    STEP = 32, /* inputs */
    STEPS = 8, /* at most */
    COLS = 8,  /* requests of an instruction */
    TILES = 4, /* of those at a time, at most */
    PAD = 64,  /* bytes behind a row in shared memory: two rows fill the banks */
    SHARED = MMA_SIZE(226 << 10, 24 << 10),
    BLOCKS = 264 /* more processors than any card of this kind has */
};

struct chain_job {
    struct draft_chain_args a;
    const uint16_t *w1, *w2;
    struct best *best; /* (2, requests at a time, blocks) */
    int32_t *drawn;    /* (n, gamma) */
    unsigned *arrived; /* blocks, at each meeting */
    int meetings, kept;
};

/* N requests at a time. */
template <int N> struct chain_shared {
    struct draw_params draw[N];
    uint32_t out_pos[N];
    int32_t before[N];
    struct best best[WAVES][N];
    float sum[WAVES][ROWS][N + 1];
};

GPU_FN int groups_of(const struct chain_job &j)
{
    return (j.a.vocab + ROWS - 1) / ROWS;
}
GPU_BOTH int pitch_of(int rank)
{
    return 2 * rank + PAD;
}
GPU_FN int64_t w2_at(const struct chain_job &j, int group, int row)
{
    return (int64_t)FST_MIN(group * ROWS + row, j.a.vocab - 1) * j.a.rank;
}

/* ---------------------------------------------------------------- meetings */

GPU_FN void meet(unsigned *arrived)
{
    gpu_sync();
#if defined(__CUDACC__)
    if (threadIdx.x == 0) {
        unsigned n;
        __threadfence();
        atomicAdd(arrived, 1u);
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n"
                         : "=r"(n)
                         : "l"(arrived)
                         : "memory");
        while (n < gridDim.x);
    }
#else
    FST_ASSERT(gridDim.x == 1 && *arrived == 0);
#endif
    gpu_sync();
}

/* What another block wrote: not from this processor's own cache. */
GPU_FN struct best best_of_block(const struct best *p)
{
#if defined(__CUDACC__)
    uint64_t u = __ldcg((const unsigned long long *)(const void *)p);
    return {__uint_as_float((uint32_t)u), (int32_t)(u >> 32)};
#else
    return *p;
#endif
}

/* ---------------------------------------------------------------- products */

/* The block's first groups of rows, on their way to shared memory. */
GPU_FN void keep_rows(const struct chain_job &j, uint8_t *kept)
{
    int pieces = j.a.rank / 8, pitch = pitch_of(j.a.rank), groups = groups_of(j);
    for (int i = (int)threadIdx.x; i < j.kept * ROWS * pieces; i += THREADS) {
        int row = i / pieces, piece = i % pieces;
        int group = (int)blockIdx.x + row / ROWS * (int)gridDim.x;
        if (group < groups)
            mma_copy16(kept + row * pitch + 16 * piece,
                       j.w2 + w2_at(j, group, row % ROWS) + 8 * piece);
    }
    mma_copies_end();
}

/* Rows of w1 of the tokens before, 32 inputs of eight requests a lane at a time. */
GPU_FN void load_words(const struct chain_job &j, uint8_t *words, const int32_t *before, int n)
{
    int pitch = pitch_of(j.a.rank);
    for (int r = gpu_wave(); r < n; r += WAVES)
        for (int i = gpu_lane(); i < j.a.rank / 8; i += GPU_WAVE)
            mma_store16(words + r * pitch + 16 * i,
                        gpu_load16(j.w1 + (int64_t)before[r] * j.a.rank + 8 * i));
}

/* A lane's rows g and g+8 of a group, 8 inputs of every step. */
template <int LOADS> struct chain_words {
    struct gpu_words w[LOADS][2];
};
/* Steps from s0 on, of rows in memory or kept. */
template <int LOADS>
GPU_FN void load_group(struct chain_words<LOADS> &a, const uint16_t *const (&p)[2], int s0,
                       int steps)
{
    GPU_UNROLL
    for (int s = 0; s < LOADS; s++)
        GPU_UNROLL
    for (int h = 0; h < 2; h++)
        if (s0 + s < steps)
            a.w[s][h] = gpu_load16(p[h] + STEP * (s0 + s));
}
template <int LOADS>
GPU_FN void load_kept(struct chain_words<LOADS> &a, const uint8_t *kept, int pitch, int s0,
                      int steps)
{
    const uint8_t *p = kept + gpu_lane() / 4 * pitch + gpu_lane() % 4 * 16;
    GPU_UNROLL
    for (int s = 0; s < LOADS; s++)
        GPU_UNROLL
    for (int h = 0; h < 2; h++)
        if (s0 + s < steps)
            a.w[s][h] = mma_load16(p + 8 * h * pitch + 2 * STEP * (s0 + s));
}

template <int T, int LOADS>
GPU_FN void multiply(float (&d)[T][4], const struct chain_words<LOADS> &a, const uint8_t *words,
                     int pitch, int s0, int steps)
{
    const uint8_t *p = words + gpu_lane() / 4 * pitch + gpu_lane() % 4 * 16;
    GPU_UNROLL
    for (int s = 0; s < LOADS; s++)
        if (s0 + s < steps)
            GPU_UNROLL
    for (int t = 0; t < T; t++) {
        struct gpu_words b = mma_load16(p + COLS * t * pitch + 2 * STEP * (s0 + s));
        GPU_UNROLL
        for (int h = 0; h < 4; h += 2) {
            uint32_t x[4] = {a.w[s][0].w[h], a.w[s][1].w[h], a.w[s][0].w[h + 1],
                             a.w[s][1].w[h + 1]};
            uint32_t y[2] = {b.w[h], b.w[h + 1]};
            mma_16x8(d[t], x, y);
        }
    }
}

/* ---------------------------------------------------------------- a position */

/* Lane l looks at row l%16 of a group for requests l/16, l/16 + 2, .. */
template <int N> struct chain_lane {
    struct best best[N / 2];
};

/* A group in the race of n requests from r0 on. */
template <int T>
GPU_FN void race_group(const struct chain_job &j, struct chain_shared<COLS * T> &s,
                       chain_lane<COLS * T> &lane, const uint8_t *kept, const uint8_t *words,
                       int group, int r0, int n, int k)
{
    int row = gpu_lane() % ROWS, first = gpu_lane() / ROWS, v = group * ROWS + row;
    int g = gpu_lane() / 4, q = gpu_lane() % 4, steps = j.a.rank / STEP, pitch = pitch_of(j.a.rank);
    const uint16_t *p[2] = {j.w2 + w2_at(j, group, g) + 8 * q,
                            j.w2 + w2_at(j, group, g + 8) + 8 * q};
    float base[COLS * T / 2], d[T][4] = {};
    int64_t at = ((int64_t)(r0 + first) * j.a.gamma + k) * j.a.vocab + v;
    int64_t step = (int64_t)2 * j.a.gamma * j.a.vocab;
    GPU_UNROLL
    for (int i = 0; i < COLS * T / 2; i++)
        base[i] = first + 2 * i < n && v < j.a.vocab ? j.a.base[at + i * step] : 0;
    constexpr int loads = T == 1 ? STEPS : T == 2 ? STEPS / 2 : STEPS / 4; /* under way together */
    GPU_UNROLL
    for (int s0 = 0; s0 < STEPS; s0 += loads) {
        struct chain_words<loads> a;
        if (s0 >= steps)
            break;
        if (kept)
            load_kept(a, kept, pitch, s0, steps);
        else
            load_group(a, p, s0, steps);
        multiply<T, loads>(d, a, words, pitch, s0, steps);
    }
    float(*sum)[COLS * T + 1] = s.sum[gpu_wave()];
    GPU_UNROLL
    for (int t = 0; t < T; t++)
        GPU_UNROLL
    for (int i = 0; i < 4; i++)
        sum[g + i / 2 * 8][COLS * t + 2 * q + i % 2] = d[t][i];
    wave_order();
    GPU_UNROLL
    for (int i = 0; i < COLS * T / 2; i++) {
        int r = first + 2 * i;
        if (r >= n || v >= j.a.vocab)
            continue;
        float logit = base[i] + sum[row][r];
        if (j.a.corrected)
            j.a.corrected[at + i * step] = logit;
        if (k + 1 < j.a.gamma)
            gpu_prefetch(j.a.base + at + i * step + j.a.vocab);
        enter(&lane.best[i], logit, v, &s.draw[r], s.out_pos[r] + (uint32_t)k);
    }
    wave_order();
}

/* The wave's best, then the block's, where all blocks see it. */
template <int N>
GPU_FN void leave_best(struct chain_shared<N> &s, const chain_lane<N> &lane, struct best *out,
                       int n)
{
    GPU_UNROLL
    for (int i = 0; i < N / 2; i++) {
        struct best b = wave_best(lane.best[i], ROWS);
        if (gpu_lane() % ROWS == 0)
            s.best[gpu_wave()][gpu_lane() / ROWS + 2 * i] = b;
    }
    gpu_sync();
    int r = (int)threadIdx.x;
    if (r >= n)
        return;
    struct best b = s.best[0][r];
    for (int w = 1; w < WAVES; w++)
        b = better(b, s.best[w][r]);
    out[r * (int)gridDim.x + (int)blockIdx.x] = b;
}

/* The tokens of position k, from all blocks' best. */
template <int N>
GPU_FN void take_best(const struct chain_job &j, struct chain_shared<N> &s, const struct best *in,
                      int r0, int n, int k)
{
    for (int r = gpu_wave(); r < n; r += WAVES) {
        struct best b = {-INFINITY, 0}, all[(BLOCKS + GPU_WAVE - 1) / GPU_WAVE];
        int i = gpu_lane(), blocks = (int)gridDim.x;
        GPU_UNROLL
        for (struct best &one : all) { /* under way together */
            one = b;
            if (i < blocks)
                one = best_of_block(in + r * blocks + i);
            i += GPU_WAVE;
        }
        GPU_UNROLL
        for (struct best &one : all)
            b = better(b, one);
        b = wave_best(b);
        if (gpu_lane() == 0)
            s.before[r] = winner(b);
        if (gpu_lane() == 0 && blockIdx.x == 0) {
            int64_t at = (int64_t)(r0 + r) * j.a.gamma + k;
            j.drawn[at] = j.a.id[at] = winner(b);
        }
    }
}

template <int T> GPU_KERNEL void GPU_BOUNDS(THREADS, 1) chain_kernel(struct chain_job j)
{
    constexpr int N = COLS * T;
    GPU_DYNAMIC(uint8_t, shared);
    int pitch = pitch_of(j.a.rank), groups = groups_of(j), blocks = (int)gridDim.x, meeting = 0;
    uint8_t *kept = shared, *words = shared + j.kept * ROWS * pitch;
    struct chain_shared<N> &s = *(struct chain_shared<N> *)(void *)(words + N * pitch);
    keep_rows(j, kept);
    gpu_wait_before();
    gpu_let_next();
    for (int r0 = 0; r0 < j.a.n; r0 += N) {
        int n = FST_MIN(N, j.a.n - r0), tid = (int)threadIdx.x;
        gpu_sync();    /* before[] of the requests in front is read */
        if (tid < n) { /* perhaps over the bus */
            s.draw[tid] = j.a.draw[r0 + tid];
            s.out_pos[tid] = j.a.out_pos[r0 + tid];
            s.before[tid] = j.a.anchor[r0 + tid];
        }
        mma_copies_wait<0>();
        for (int k = 0; k < j.a.gamma; k++, meeting++) {
            struct best *best = j.best + (int64_t)(meeting & 1) * (COLS * TILES) * blocks;
            chain_lane<N> lane;
            gpu_sync();
            load_words(j, words, s.before, n);
            GPU_UNROLL
            for (int i = 0; i < N / 2; i++)
                lane.best[i] = {-INFINITY, 0};
            gpu_sync();
            GPU_ROLLED
            for (int i = gpu_wave(), g = (int)blockIdx.x + i * blocks; g < groups;
                 i += WAVES, g += WAVES * blocks)
                race_group<T>(j, s, lane, i < j.kept ? kept + i * ROWS * pitch : NULL, words, g, r0,
                              n, k);
            leave_best<N>(s, lane, best, n);
            meet(j.arrived + meeting);
            take_best<N>(j, s, best, r0, n, k);
        }
    }
}

/* ---------------------------------------------------------------- launches */

GPU_KERNEL void start_kernel(struct chain_job j)
{
    gpu_start();
    for (int i = (int)threadIdx.x; i < j.meetings; i += THREADS)
        j.arrived[i] = 0;
}

template <int T> static void launch(struct chain_job j, struct stream *s, int64_t blocks)
{
    constexpr int N = COLS * T;
    int pitch = pitch_of(j.a.rank), groups = (int)div_up(j.a.vocab, ROWS);
    int room = SHARED - (int)sizeof(struct chain_shared<N>) - N * pitch;
    j.kept = (int)FST_MIN(FST_MAX(0, room / (ROWS * pitch)), div_up(groups, blocks));
    FST_ASSERT(blocks <= BLOCKS);
    gpu_launch_early(chain_kernel<T>, blocks, THREADS,
                     (size_t)((j.kept * ROWS + N) * pitch) + sizeof(struct chain_shared<N>), s, j);
}

static bool ours(const struct draft_chain_args *a)
{
    return a->w1->fmt == WEIGHT_BF16 && a->w2->fmt == WEIGHT_BF16 && a->rank % STEP == 0 &&
           a->rank <= STEP * STEPS;
}

static int meetings_of(int n, int gamma)
{
    return (int)div_up(n, COLS) * gamma;
}

SM90_ENTRY(draft_chain)
{
    if (!ours(a))
        return GPU_NAME(draft_chain)(a, s);
    FST_ASSERT(a->w1->n_in == a->rank && a->w2->n_in == a->rank);
    FST_ASSERT(a->w1->n_out == a->vocab && a->w2->n_out == a->vocab);
    FST_ASSERT(a->gamma <= KERN_GAMMA_MAX);
    int64_t blocks = FST_MIN(MMA_SIZE(s->device->multiprocessors, 1), div_up(a->vocab, ROWS));
    struct gpu_cut c = gpu_scratch(s);
    struct chain_job j = {*a,
                          (const uint16_t *)a->w1->data,
                          (const uint16_t *)a->w2->data,
                          NULL,
                          NULL,
                          NULL,
                          meetings_of(a->n, a->gamma),
                          0};
    j.best = gpu_take<struct best>(&c, 2 * (COLS * TILES) * blocks);
    j.drawn = gpu_take<int32_t>(&c, (int64_t)a->n * a->gamma);
    j.arrived = gpu_take<unsigned>(&c, j.meetings);
    gpu_launch_early(start_kernel, 1, THREADS, 0, s, j);
    if (a->n <= COLS)
        launch<1>(j, s, blocks);
    else if (a->n <= 2 * COLS)
        launch<2>(j, s, blocks);
    else
        launch<TILES>(j, s, blocks);
    if (gpu_there(a->conf_proj))
        GPU_NAME(draft_confidence)(a, j.drawn, s);
    return gpu_done("draft_chain");
}

size_t draft_chain_sm90_scratch(const struct kernel_limits *l)
{
    return gpu_piece(2 * (COLS * TILES) * BLOCKS, sizeof(struct best)) +
           gpu_piece((int64_t)l->n_rows * KERN_GAMMA_MAX, sizeof(int32_t)) +
           gpu_piece(meetings_of(l->n_rows, KERN_GAMMA_MAX), sizeof(unsigned));
}
