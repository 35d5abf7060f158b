/* route.cu - gate products for Hopper by matrix instructions; the choice is that of kernels/gpu.
 *
 * gate_kernel   few rows.  A wave multiplies 16 experts by 8 rows at a time over a 32nd of K, which it
 *               keeps in registers from before the wait on: at one row the gate's 2 MB come from memory,
 *               and only the row is waited for.  A block has the four neighbouring parts of an eighth of K.
 * slab_kernel   more rows: 64 experts over an eighth of K stay in shared memory, where 32 rows at a time
 *               meet them as bf16.
 * tall_kernel   many rows: 64 rows and all experts over all of K, which passes by in stages, so that x is
 *               read once and no part of a sum goes to memory.  Then a wave chooses for a row.
 *
 * Order of a product: a part is a 32nd of K; its even and its odd 32 inputs are a sum of the instruction
 * each.  Eight such sums of an eighth in order, the eighths in order.  Within 32 inputs lane q of the
 * instruction's four has inputs 8q .. 8q+7, the first four and then the others.  */
#include "kernels/gpu/route.cuh"
#include "kernels/sm90/mma.cuh"

enum {
    TILE = 16, /* experts */
    ROWS = 8,  /* of an instruction */
    SLICES = ROUTE_PARTS,
    WAVES = 4,        /* parts of a slice */
    SUMS = 2 * WAVES, /* of a slice */
    STEP = 32,        /* inputs */
    FILL = 512,       /* blocks of gate_kernel */
    FEW = 16,         /* rows that gate_kernel takes */
    WIDTH = SLICES * WAVES * STEP,
    STEPS_MAX = 8,
    GATE_THREADS = WAVES * 32
};

struct gate_job {
    const float *x;
    const uint16_t *gate;        /* (n, n_in) */
    float *part;                 /* (n_rows, SLICES, n); of tall_kernel (n_rows, n) */
    int n, n_in, n_rows, groups; /* blocks that share the rows of a tile and slice */
};

/* ---------------------------------------------------------------- few rows */

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

/* d[0], d[1]: of the even and odd steps: experts g, g, g+8, g+8 with rows 2q, 2q+1, 2q, 2q+1 of eight. */
template <int S>
GPU_FN void gate_products(float (&d)[2][4], const struct gate_words<S> &w,
                          const struct gate_rows<S> &x, int steps)
{
    GPU_UNROLL
    for (int i = 0; i < 8; i++)
        d[i / 4][i % 4] = 0;
    GPU_UNROLL
    for (int s = 0; s < S; s++)
        GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        const uint32_t *w0 = w.w[s][0].w + 2 * h, *w1 = w.w[s][1].w + 2 * h;
        const float *v = x.v[s][h].v;
        const uint32_t a[4] = {w0[0], w1[0], w0[1], w1[1]};
        const uint32_t b[2] = {mma_pair(v[0], v[1]), mma_pair(v[2], v[3])};
        if (s < steps)
            mma_16x8(d[s % 2], a, b);
    }
}

/* Up to S steps.  The next rows' loads are under way while these are added up. */
template <int S> GPU_KERNEL void GPU_BOUNDS(GATE_THREADS, 1) gate_kernel(struct gate_job j)
{
    GPU_SHARED float sums[2][SUMS][ROWS][TILE + 4];
    int part = gpu_wave(), tid = (int)threadIdx.x, tiles = j.n / TILE, block = (int)blockIdx.x;
    int slice = block % SLICES, e0 = block / SLICES % tiles * TILE, turn = 0;
    int steps = j.n_in / WIDTH, k0 = (slice * WAVES + part) * steps * STEP;
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
        float d[2][4], v[SUMS];
        int64_t next = r0 + (int64_t)j.groups * ROWS;
        gate_products<S>(d, w, x, steps);
        if (next < j.n_rows)
            load_rows<S>(x, j, next, k0, steps);
        GPU_UNROLL
        for (int i = 0; i < 8; i++)
            sums[turn][2 * part + i / 4][2 * q + i % 2][g + i / 2 % 2 * 8] = d[i / 4][i % 4];
        gpu_sync(); /* one a turn: who writes a half again has passed the barrier between */
        GPU_UNROLL
        for (int i = 0; i < SUMS; i++)
            v[i] = sums[turn][i][r][e];
        GPU_UNROLL
        for (int i = 1; i < SUMS; i++)
            v[0] += v[i];
        if (r0 + r < j.n_rows)
            j.part[((r0 + r) * SLICES + slice) * j.n + e0 + e] = v[0];
        r0 = next;
    }
}

/* ---------------------------------------------------------------- operands in shared memory */

/* Place of 16 bytes c of row r in rows of `pitch` bytes: of two neighbouring rows, four lanes each read four
 * neighbours at once. */
GPU_FN int place(int r, int c, int pitch)
{
    return r * pitch + ((c ^ (r & 1) << 2) << 4);
}

/* Eight inputs of a row as bf16. */
struct octet {
    struct gpu_quad v[2];
};
GPU_FN void load_octet(struct octet *o, const struct gate_job &j, int64_t row, int k)
{
    *o = {};
    if (row >= j.n_rows)
        return;
    o->v[0] = gpu_load4(j.x + row * j.n_in + k);
    o->v[1] = gpu_load4(j.x + row * j.n_in + k + 4);
}
GPU_FN void store_octet(uint8_t *to, const struct octet &o)
{
    struct gpu_words w;
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        w.w[i] = mma_pair(o.v[i / 2].v[i % 2 * 2], o.v[i / 2].v[i % 2 * 2 + 1]);
    mma_store16(to, w);
}

/* d += 16*M experts times 8*N rows over the 32 inputs of chunks c .. c+3. */
template <int M, int N>
GPU_FN void step_products(float (&d)[M][N][4], const uint8_t *gate, const uint8_t *x, int c,
                          int pitch)
{
    int g = gpu_lane() / 4;
    struct gpu_words b[N];
    c += gpu_lane() % 4;
    GPU_UNROLL
    for (int n = 0; n < N; n++)
        b[n] = gpu_load16(x + place(8 * n + g, c, pitch));
    GPU_UNROLL
    for (int m = 0; m < M; m++) {
        struct gpu_words w0 = gpu_load16(gate + place(16 * m + g, c, pitch));
        struct gpu_words w1 = gpu_load16(gate + place(16 * m + g + 8, c, pitch));
        GPU_UNROLL
        for (int h = 0; h < 2; h++) {
            const uint32_t a[4] = {w0.w[2 * h], w1.w[2 * h], w0.w[2 * h + 1], w1.w[2 * h + 1]};
            GPU_UNROLL
            for (int n = 0; n < N; n++) {
                const uint32_t two[2] = {b[n].w[2 * h], b[n].w[2 * h + 1]};
                mma_16x8(d[m][n], a, two);
            }
        }
    }
}

template <int M, int N> GPU_FN void zero(float (&d)[M][N][4])
{
    GPU_UNROLL
    for (int i = 0; i < M * N * 4; i++)
        d[i / 4 / N][i / 4 % N][i % 4] = 0;
}
template <int M, int N> GPU_FN void add(float (&sum)[M][N][4], const float (&d)[M][N][4])
{
    GPU_UNROLL
    for (int i = 0; i < M * N * 4; i++)
        sum[i / 4 / N][i / 4 % N][i % 4] += d[i / 4 / N][i / 4 % N][i % 4];
}

/* Sums of experts e0 .. and rows r0 .. to where row r's lie, `ld` apart. */
template <int M, int N>
GPU_FN void store_sums(float *to, int64_t ld, const float (&d)[M][N][4], int e0, int64_t r0,
                       int n_rows)
{
    int g = gpu_lane() / 4, q = gpu_lane() % 4;
    GPU_UNROLL
    for (int i = 0; i < M * N * 4; i++) {
        int64_t row = r0 + i / 4 % N * 8 + 2 * q + i % 2;
        if (row < n_rows)
            to[row * ld + e0 + i / 4 / N * 16 + i / 2 % 2 * 8 + g] = d[i / 4 / N][i / 4 % N][i % 4];
    }
}

enum { THREADS = 256 };

/* ---------------------------------------------------------------- more rows */

enum {
    SLAB_EXPERTS = 64,
    SLAB_ROWS = 32,
    SLAB_FILL = 264, /* blocks: two on each processor */
    SLAB_OCTETS = 8  /* of a thread, under way at once */
};
static size_t slab_bytes(int n_in)
{
    return (size_t)(SLAB_EXPERTS + SLAB_ROWS) * (size_t)(n_in / SLICES) * 2;
}

/* 32 rows of the slice: eight threads a row. */
GPU_FN void slab_rows(uint8_t *x, const struct gate_job &j, int64_t r0, int slice)
{
    int wide = j.n_in / SLICES, r = (int)threadIdx.x / 8;
    for (int c0 = (int)threadIdx.x % 8; c0 < wide / 8; c0 += 8 * SLAB_OCTETS) {
        struct octet o[SLAB_OCTETS];
        GPU_UNROLL
        for (int k = 0; k < SLAB_OCTETS; k++)
            if (c0 + 8 * k < wide / 8)
                load_octet(&o[k], j, r0 + r, slice * wide + (c0 + 8 * k) * 8);
        GPU_UNROLL
        for (int k = 0; k < SLAB_OCTETS; k++)
            if (c0 + 8 * k < wide / 8)
                store_octet(x + place(r, c0 + 8 * k, 2 * wide), o[k]);
    }
}

/* Waves: four tiles of experts, two of 16 rows. */
GPU_KERNEL void GPU_BOUNDS(THREADS, 2) slab_kernel(struct gate_job j)
{
    GPU_DYNAMIC(uint8_t, gate);
    int wide = j.n_in / SLICES, pitch = 2 * wide, steps = j.n_in / WIDTH;
    int tiles = j.n / SLAB_EXPERTS, block = (int)blockIdx.x, slice = block % SLICES;
    int e0 = block / SLICES % tiles * SLAB_EXPERTS, wave = gpu_wave();
    uint8_t *x = gate + SLAB_EXPERTS * pitch;
    const uint8_t *my_gate = gate + wave % 4 * TILE * pitch, *my_x = x + wave / 4 * 16 * pitch;
    gpu_let_next();
    for (int e = (int)threadIdx.x / 8; e < SLAB_EXPERTS; e += THREADS / 8)
        for (int c = (int)threadIdx.x % 8; c < wide / 8; c += 8)
            mma_copy16(gate + place(e, c, pitch),
                       j.gate + (int64_t)(e0 + e) * j.n_in + slice * wide + c * 8);
    mma_copies_end();
    gpu_wait_before();
    for (int64_t r0 = (int64_t)(block / SLICES / tiles) * SLAB_ROWS; r0 < j.n_rows;
         r0 += (int64_t)j.groups * SLAB_ROWS) {
        float sum[1][2][4];
        slab_rows(x, j, r0, slice);
        mma_copies_wait<0>();
        gpu_sync();
        for (int part = 0; part < WAVES; part++) {
            float even[1][2][4], odd[1][2][4];
            int c = part * steps * (STEP / 8);
            zero(even);
            zero(odd);
            for (int s = 0; s < steps; s += 2, c += 2 * STEP / 8) {
                step_products(even, my_gate, my_x, c, pitch);
                if (s + 1 < steps)
                    step_products(odd, my_gate, my_x, c + STEP / 8, pitch);
            }
            if (part == 0)
                zero(sum);
            add(sum, even);
            add(sum, odd);
        }
        store_sums(j.part + slice * j.n, (int64_t)SLICES * j.n, sum, e0 + wave % 4 * TILE,
                   r0 + wave / 4 * 16, j.n_rows);
        gpu_sync(); /* the next rows take the place of these */
    }
}

/* ---------------------------------------------------------------- many rows */

enum {
    TALL_EXPERTS = 256,
    TALL_ROWS = 64,
    TALL_WAVE =
        32, /* experts of a wave, by 32 rows: 16 waves, of which some multiply while others load */
    TALL_ACROSS = TALL_EXPERTS / TALL_WAVE,
    TALL_THREADS = 32 * 2 * TALL_ACROSS,
    TALL_SUMS = TALL_WAVE * (TALL_ROWS / 2) / 32, /* of a thread */
    TALL_SLOTS = 3,
    TALL_STAGES = 2 * SLICES * WAVES,
    TALL_AHEAD = 5, /* stages between a line's way to the second-level cache and its load */
    LINE = 128
};
struct alignas(128) tall_shared {
    uint8_t gate[TALL_SLOTS][TALL_EXPERTS * LINE], x[TALL_SLOTS][TALL_ROWS * LINE];
    float sum[TALL_SUMS][TALL_THREADS]; /* each thread's own */
};

/* A stage is the even or the odd C steps of a part: first input of step i. */
template <int C> GPU_FN int stage_at(int stage, int i)
{
    return stage / 2 * 2 * C * STEP + (stage % 2 + 2 * i) * STEP;
}

template <int C>
GPU_FN void copy_gate(struct tall_shared *s, const struct gate_job &j, int e0, int stage)
{
    enum { CHUNKS = 4 * C };
    if (stage < TALL_STAGES)
        GPU_UNROLL
    for (int k = 0; k < TALL_EXPERTS * CHUNKS / TALL_THREADS; k++) {
        int i = (int)threadIdx.x + k * TALL_THREADS, e = i / CHUNKS, c = i % CHUNKS;
        mma_copy16(s->gate[stage % TALL_SLOTS] + place(e, c, LINE),
                   j.gate + (int64_t)(e0 + e) * j.n_in + stage_at<C>(stage, c / 4) + c % 4 * 8);
    }
    mma_copies_end(); /* of nothing as well: groups are counted */
}

/* A thread's part of the rows' inputs. */
template <int C>
GPU_FN void load_tall(struct octet *o, const struct gate_job &j, int64_t r0, int stage)
{
    int i = (int)threadIdx.x, c = i % (4 * C);
    static_assert(TALL_ROWS * 4 * C <= TALL_THREADS, "one octet a thread");
    if (stage < TALL_STAGES && i < TALL_ROWS * 4 * C)
        load_octet(o, j, r0 + i / (4 * C), stage_at<C>(stage, c / 4) + c % 4 * 8);
}
template <int C> GPU_FN void store_tall(struct tall_shared *s, const struct octet &o, int stage)
{
    int i = (int)threadIdx.x;
    if (i < TALL_ROWS * 4 * C)
        store_octet(s->x[stage % TALL_SLOTS] + place(i / (4 * C), i % (4 * C), LINE), o);
}
template <int C> GPU_FN void expect_tall(const struct gate_job &j, int64_t r0, int stage)
{
    int tid = (int)threadIdx.x;
    int64_t row = r0 + tid / C;
    if (tid < TALL_ROWS * C && row < j.n_rows && stage < TALL_STAGES)
        gpu_prefetch(j.x + row * j.n_in + stage_at<C>(stage, tid % C));
}

/* C: steps of a sum.  Waves: eight times 32 experts, twice 32 rows. */
template <int C> GPU_KERNEL void GPU_BOUNDS(TALL_THREADS, 1) tall_kernel(struct gate_job j)
{
    GPU_DYNAMIC(struct tall_shared, s);
    enum { M = TALL_WAVE / TILE, N = TALL_ROWS / 2 / ROWS };
    int tiles = j.n / TALL_EXPERTS, e0 = (int)blockIdx.x % tiles * TALL_EXPERTS,
        tid = (int)threadIdx.x;
    int my_e = gpu_wave() % TALL_ACROSS * TALL_WAVE;
    int my_r = gpu_wave() / TALL_ACROSS * (TALL_ROWS / 2);
    int64_t r0 = (int64_t)((int)blockIdx.x / tiles) * TALL_ROWS;
    float sum[M][N][4];
    struct octet o = {};
    gpu_let_next();
    copy_gate<C>(s, j, e0, 0);
    copy_gate<C>(s, j, e0, 1);
    gpu_wait_before();
    for (int i = 2; i < TALL_AHEAD; i++)
        expect_tall<C>(j, r0, i);
    load_tall<C>(&o, j, r0, 0);
    store_tall<C>(s, o, 0);
    load_tall<C>(&o, j, r0, 1);
    for (int stage = 0; stage < TALL_STAGES; stage++) {
        float d[M][N][4];
        mma_copies_wait<1>();
        gpu_sync(); /* this stage has arrived; nobody reads the one before */
        copy_gate<C>(s, j, e0, stage + 2);
        if (stage + 1 < TALL_STAGES)
            store_tall<C>(s, o, stage + 1);
        load_tall<C>(&o, j, r0, stage + 2);
        expect_tall<C>(j, r0, stage + TALL_AHEAD);
        zero(d);
        GPU_UNROLL
        for (int i = 0; i < C; i++)
            step_products(d, s->gate[stage % TALL_SLOTS] + my_e * LINE,
                          s->x[stage % TALL_SLOTS] + my_r * LINE, 4 * i, LINE);
        if (stage % SUMS == 0)
            zero(sum);
        add(sum, d);
        if (stage % SUMS != SUMS - 1)
            continue;
        GPU_UNROLL
        for (int i = 0; i < M * N * 4; i++) {
            float *all = &s->sum[i][tid], *one = &sum[i / 4 / N][i / 4 % N][i % 4];
            *all = *one = stage < SUMS ? *one : *all + *one;
        }
    }
    store_sums(j.part, j.n, sum, e0 + my_e, r0 + my_r, j.n_rows);
}

/* ---------------------------------------------------------------- the choice for many rows */

enum {
    CHOICE_WAVES = 8,
    CHOICE_EACH = 8, /* experts of a lane */
    CHOICE_EXPERTS = 32 * CHOICE_EACH
};

/* The largest below `limit` over the wave. */
GPU_FN uint64_t best_below(const uint64_t (&v)[CHOICE_EACH], uint64_t limit)
{
    uint64_t best = 0;
    GPU_UNROLL
    for (int i = 0; i < CHOICE_EACH; i++)
        best = v[i] < limit && v[i] > best ? v[i] : best;
    for (int m = 1; m < GPU_WAVE; m *= 2) {
        uint32_t high = gpu_shfl_xor((uint32_t)(best >> 32), m);
        uint64_t other = (uint64_t)high << 32 | gpu_shfl_xor((uint32_t)best, m);
        best = other > best ? other : best;
    }
    return best;
}

/* choose_kernel of route.cuh with a wave for a row: the same scores, ids and order of their sum. */
GPU_KERNEL void GPU_BOUNDS(CHOICE_WAVES * 32, 4) choose_rows_kernel(struct choose_job j)
{
    GPU_SHARED float shared_score[CHOICE_WAVES][CHOICE_EXPERTS];
    GPU_SHARED int32_t shared_list[CHOICE_WAVES][ROUTE_K + 1];
    int lane = gpu_lane(), k = j.a.k, place = 0;
    float *score = shared_score[gpu_wave()], bias[CHOICE_EACH], sum = 0;
    int32_t *list = shared_list[gpu_wave()];
    int64_t row = (int64_t)blockIdx.x * CHOICE_WAVES + gpu_wave();
    bool hashed = j.a.tid2eid != NULL;
    uint64_t v[CHOICE_EACH], limit = ~(uint64_t)0;
    gpu_let_next();
    GPU_UNROLL
    for (int i = 0; i < CHOICE_EACH; i++)
        bias[i] = hashed || 32 * i + lane >= j.n ? 0 : j.a.bias[32 * i + lane];
    gpu_wait_before();
    if (row >= j.a.n_rows) /* whole waves; no barrier follows */
        return;
    GPU_UNROLL
    for (int i = 0; i < CHOICE_EACH; i++) {
        int e = 32 * i + lane;
        v[i] = 0;
        if (e >= j.n)
            continue;
        float one = score_of(gate_sum(&j, row, e));
        score[e] = one;
        v[i] = (uint64_t)key_of(one + bias[i]) << 32 | (uint32_t)~e;
    }
    if (hashed && lane < k)
        list[lane] = j.a.tid2eid[(int64_t)j.a.id[row] * k + lane];
    for (int i = 0; i <= k && !hashed; i++) {
        limit = best_below(v, limit);
        if (lane == 0)
            list[i] = limit ? id_of(limit) : -1;
    }
    wave_order();
    if (j.a.margin && lane == 0) {
        float last = hashed ? INFINITY : score[list[k - 1]] + j.a.bias[list[k - 1]];
        float next = hashed ? 0 : list[k] < 0 ? -INFINITY : score[list[k]] + j.a.bias[list[k]];
        j.a.margin[row] = last - next;
    }
    if (lane >= k)
        return;
    for (int i = 0; i < k; i++) {
        place += list[i] < list[lane] || (list[i] == list[lane] && i < lane);
        sum += score[list[i]]; /* the bias does not weigh */
    }
    j.a.expert[row * k + place] = list[lane];
    j.a.weight[row * k + place] = score[list[lane]] / sum * j.a.scale;
}

/* ---------------------------------------------------------------- launcher */

static bool fits(const struct mat *m)
{
    return m->fmt == WEIGHT_BF16 && m->n_out % SLAB_EXPERTS == 0 && m->n_in % WIDTH == 0 &&
           m->n_in <= WIDTH * STEPS_MAX;
}

/* Rows from which a block for each 64 of them, however few blocks, takes less time than slabs. */
enum { MANY = MMA_SIZE(3072, 64) };

static bool tall(const struct route_args *a)
{
    const struct mat *m = a->gate;
    return a->n_rows >= MANY && m->n_out == TALL_EXPERTS &&
           (m->n_in == 2 * WIDTH || m->n_in == 4 * WIDTH);
}

static void run_tall(const struct route_args *a, const struct gate_job *j, struct stream *s)
{
    struct choose_job c = {*a, j->part, j->n, 1};
    FST_ASSERT(a->k <= ROUTE_K);
    FST_ASSERT(a->tid2eid || a->bias);
    gpu_launch_early(j->n_in == 2 * WIDTH ? tall_kernel<1> : tall_kernel<2>,
                     div_up(j->n_rows, TALL_ROWS) * (j->n / TALL_EXPERTS), TALL_THREADS,
                     sizeof(struct tall_shared), s, *j);
    gpu_launch_early(choose_rows_kernel, div_up(j->n_rows, CHOICE_WAVES), CHOICE_WAVES * 32, 0, s,
                     c);
}

static void run_few(struct gate_job *j, struct stream *s)
{
    int64_t blocks = (int64_t)j->n / TILE * SLICES, most = FST_MAX(FILL / blocks, (int64_t)1);
    void (*kernel)(struct gate_job) =
        j->n_in <= 4 * WIDTH ? gate_kernel<4> : gate_kernel<STEPS_MAX>;
    j->groups = (int)FST_MIN(div_up(j->n_rows, ROWS), most);
    gpu_launch_early(kernel, blocks * j->groups, GATE_THREADS, 0, s, *j);
}

static void run_slabs(struct gate_job *j, struct stream *s)
{
    int64_t blocks = (int64_t)j->n / SLAB_EXPERTS * SLICES;
    int64_t most = FST_MAX(SLAB_FILL / blocks, (int64_t)1);
    j->groups = (int)FST_MIN(div_up(j->n_rows, SLAB_ROWS), most);
    gpu_launch_early(slab_kernel, blocks * j->groups, THREADS, slab_bytes(j->n_in), s, *j);
}

SM90_ENTRY(route)
{
    if (!fits(a->gate))
        return GPU_NAME(route)(a, s);
    struct gpu_cut c = gpu_scratch(s);
    const struct mat *m = a->gate;
    bool whole = tall(a);
    float *part = gpu_take<float>(&c, (int64_t)a->n_rows * (whole ? 1 : SLICES) * m->n_out);
    struct gate_job j = {a->x, (const uint16_t *)m->data, part, m->n_out, m->n_in, a->n_rows, 0};
    if (a->n_rows <= 0)
        return FST_OK;
    if (whole)
        run_tall(a, &j, s);
    else if (a->n_rows <= FEW)
        run_few(&j, s);
    else
        run_slabs(&j, s);
    if (!whole)
        route_choose(a, part, SLICES, s);
    return gpu_done("route");
}

size_t route_sm90_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * l->n_experts * SLICES, sizeof(float));
}
