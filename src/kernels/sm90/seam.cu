/* seam.cu - a seam for Hopper: the control products by matrix instructions.
 *
 * write_kernel  few rows, first of two launches: a block takes a piece of 64 columns of some rows, a wave
 *               16 columns of it in all four streams.  seam.cuh has the second.
 * whole_kernel  many rows: a cluster of eight blocks shares all columns of some rows, whose values stay in
 *               registers from the moment they are written back until the next input is made of them: x is
 *               read once.  A block's share of `fn` stays in its shared memory for all rows.
 * comb_kernel   behind it: post and comb of a row by one thread.
 *
 * A row's values are bf16; a weight is the sum of two, which leaves 2^-18 of it.  Both halves lie in one
 * operand of an instruction: 8 control values, high in rows 0 .. 7, low in rows 8 .. 15; 8 rows of x are
 * its columns.  A lane has 4 neighbouring columns of one row, and makes them itself.
 *
 * Order of a control product: 16 columns, streams in order, in one sum of the instruction; high and low;
 * then a binary tree over the columns in order (seam.cuh).  The sum of squares: a lane's 16 values, the
 * same tree, then four lanes as a tree.  No order depends on the kernel. */
#include "kernels/sm90/operand.cuh"

/* Columns d .. of a row of the next input as operands, by all lanes of a wave; and experts' counters. */
#define SEAM_LEAVES
GPU_FN void seam_leave(const struct seam_args *a, int64_t row, int d, const struct gpu_quad &v)
{
    struct operand_forms f = operand_forms_of(a->operand, a->n_rows, a->dim);
    operand_leave(f, a->n_rows, a->dim, row, d / OPERAND_BLOCK, v);
    if (row == 0 && d == 0)
        f.next[0] = f.next[1] = 0;
}

#include "kernels/gpu/seam.cuh"
#include "kernels/sm90/mma.cuh"
#include "kernels/sm90/visits.cuh"

enum {
    STRIP = 16,               /* columns of a wave's sum */
    STRIPS = 4,               /* of a piece */
    PIECE = STRIP * STRIPS,   /* columns */
    TILE = 8,                 /* rows of an instruction */
    GROUPS = KERN_MIX / 8,    /* of control values, one instruction each */
    WORDS = KERN_HC * GROUPS, /* 16-byte words of weights that a lane has of a strip */
    WRITERS = 32 * STRIPS,    /* threads of write_kernel */
    BLOCKS = 4,               /* of write_kernel on a processor: registers */
    RANKS = 8,                /* blocks of whole_kernel's clusters */
    FILL = 132 * BLOCKS
};

/* ---------------------------------------------------------------- strips */

/* Four columns of a row in all streams; y: of the sublayer. */
struct strip {
    struct gpu_quad x[KERN_HC], y;
};
/* Post and comb of a row. */
struct controls {
    struct gpu_quad v[1 + KERN_HC];
};

template <bool PARTS = false>
GPU_FN void load_strip(struct strip *p, const struct seam_args *a, int64_t t, int d)
{
    const float *x = a->x + t * KERN_HC * a->dim + d;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        p->x[k] = gpu_load4(x + (int64_t)k * a->dim);
    if (!PARTS && a->y)
        p->y = gpu_load4(a->y + t * a->dim + d);
}

GPU_FN void load_controls(struct controls *c, const struct seam_args *a, int64_t t)
{
    GPU_UNROLL
    for (int i = 0; i < 1 + KERN_HC; i++)
        c->v[i] = gpu_load4(a->mix + t * KERN_MIX + 4 + 4 * i);
}

/* The four values of a stream. */
GPU_FN struct gpu_quad unpack(const uint32_t (&v)[2])
{
    struct gpu_quad q = {{gpu_low(v[0]), gpu_high(v[0]), gpu_low(v[1]), gpu_high(v[1])}};
    return q;
}

/* v[k]: stream k of the strip: bf16(post[k]*bf16(y) + sum_j comb[j][k]*x[j]), j ascending, or as it is. */
GPU_FN void expand(uint32_t (&v)[KERN_HC][2], const struct strip *p, const struct controls *c,
                   bool with_y)
{
    GPU_UNROLL
    for (int i = 0; i < 4; i += 2) {
        uint32_t y = mma_pair(p->y.v[i], p->y.v[i + 1]);
        GPU_UNROLL
        for (int k = 0; k < KERN_HC; k++) {
            float low = c->v[0].v[k] * gpu_low(y), high = c->v[0].v[k] * gpu_high(y);
            GPU_UNROLL
            for (int s = 0; s < KERN_HC; s++) {
                low = fmaf(c->v[1 + s].v[k], p->x[s].v[i], low);
                high = fmaf(c->v[1 + s].v[k], p->x[s].v[i + 1], high);
            }
            v[k][i / 2] = with_y ? mma_pair(low, high) : mma_pair(p->x[k].v[i], p->x[k].v[i + 1]);
        }
    }
}

/* The strip back to memory, captured. */
GPU_FN void store_strip(const uint32_t (&v)[KERN_HC][2], const struct seam_args *a, int64_t t,
                        int d)
{
    float *x = a->x + t * KERN_HC * a->dim + d;
    struct gpu_quad q[KERN_HC], mean;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++) {
        q[k] = unpack(v[k]);
        if (a->y)
            gpu_store4(x + (int64_t)k * a->dim, q[k]);
    }
    if (!a->capture)
        return;
    for (int i = 0; i < 4; i++)
        mean.v[i] = gpu_bf16(((q[0].v[i] + q[1].v[i]) + (q[2].v[i] + q[3].v[i])) * 0.25f);
    gpu_store4(a->capture + t * a->capture_ld + d, mean);
}

GPU_FN float square_sum(const uint32_t (&v)[KERN_HC][2])
{
    float s = 0;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++) {
        struct gpu_quad q = unpack(v[k]);
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            s = fmaf(q.v[i], q.v[i], s);
    }
    return s;
}

/* ---------------------------------------------------------------- products */

/* Four weights as the lane's share of an instruction: high, low, high, low. */
GPU_FN struct gpu_words split(const struct gpu_quad &f)
{
    struct gpu_words w;
    GPU_UNROLL
    for (int i = 0; i < 4; i += 2) {
        w.w[i] = mma_pair(f.v[i], f.v[i + 1]);
        w.w[i + 1] = mma_pair(f.v[i] - gpu_low(w.w[i]), f.v[i + 1] - gpu_high(w.w[i]));
    }
    return w;
}

/* Control value 8*group + g of stream k, columns d .. d+3. */
GPU_FN struct gpu_quad load_weights(const struct seam_args *a, int k, int group, int d)
{
    int64_t row = (int64_t)(8 * group + gpu_lane() / 4) * KERN_HC + k;
    return gpu_load4(a->fn + row * a->dim + d);
}

/* sum[2*i + r]: control value 8*i + g of row 2q + r of the tile.  Words lie `step` apart. */
GPU_FN void strip_products(float (&sum)[2 * GROUPS], const uint32_t (&v)[KERN_HC][2],
                           const struct gpu_words *w, int step)
{
    float d[GROUPS][4] = {};
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        GPU_UNROLL
    for (int i = 0; i < GROUPS; i++) {
        const struct gpu_words f = w[(k * GROUPS + i) * step];
        const uint32_t f4[4] = {f.w[0], f.w[1], f.w[2], f.w[3]};
        mma_16x8(d[i], f4, v[k]);
    }
    GPU_UNROLL
    for (int i = 0; i < GROUPS; i++) {
        sum[2 * i] = d[i][0] + d[i][2];
        sum[2 * i + 1] = d[i][1] + d[i][3];
    }
}

/* A wave's sums of eight rows: 24 products, four parts of the sum of squares. */
typedef float tile_sums[TILE][SEAM_PITCH];

GPU_FN void put_sums(tile_sums &to, const float (&sum)[2 * GROUPS], float square)
{
    int g = gpu_lane() / 4, q = gpu_lane() % 4;
    GPU_UNROLL
    for (int i = 0; i < 2 * GROUPS; i++)
        to[2 * q + i % 2][i / 2 * 8 + g] = sum[i];
    to[g][KERN_MIX + q] = square;
}

/* ---------------------------------------------------------------- few rows */

/* The loads of the next rows are under way while the products of these are made.  PARTS: y comes in parts, of
 * rows for which one turn does; with 128 registers a part was added before the next ones were asked for.  With
 * 152 a block still finds room where one of w2's (walk.cuh) ends. */
template <bool PARTS>
GPU_KERNEL void GPU_BOUNDS(WRITERS, PARTS ? BLOCKS - 1 : BLOCKS) write_kernel(struct seam_job j)
{
    GPU_SHARED tile_sums sums[2][STRIPS];
    const struct seam_args *a = &j.a;
    int piece = (int)blockIdx.x % j.pieces, tid = (int)threadIdx.x, half = 0;
    int d = piece * PIECE + gpu_wave() * STRIP + gpu_lane() % 4 * 4;
    int64_t r0 = (int64_t)((int)blockIdx.x / j.pieces) * TILE, mine = r0 + gpu_lane() / 4;
    int64_t step = (int64_t)j.tile * TILE;
    struct gpu_words w[WORDS];
    struct strip p = {};
    struct controls c = {};
    gpu_let_next();
    if (a->fn)
        GPU_UNROLL
    for (int i = 0; i < WORDS; i++)
        w[i] = split(load_weights(a, i / GROUPS, i % GROUPS, d));
    gpu_wait_before();
    if (mine < a->n_rows) {
        load_strip<PARTS>(&p, a, mine, d);
        if (a->y)
            load_controls(&c, a, mine);
        if (PARTS)
            p.y = visits_sum(a->y, a->n_rows, a->parts, a->dim, mine, d);
    }
    for (; r0 < a->n_rows; r0 += step, half ^= 1) {
        uint32_t v[KERN_HC][2];
        float sum[2 * GROUPS];
        expand(v, &p, &c, a->y != NULL);
        if (mine < a->n_rows)
            store_strip(v, a, mine, d);
        mine += step;
        if (!PARTS && mine < a->n_rows) {
            load_strip<PARTS>(&p, a, mine, d);
            if (a->y)
                load_controls(&c, a, mine);
        }
        if (!a->fn)
            continue;
        strip_products(sum, v, w, 1);
        put_sums(sums[half][gpu_wave()], sum, square_sum(v));
        gpu_sync(); /* one a tile: who writes a half again has passed the barrier between */
        int row = tid / (SEAM_PITCH / 4), quad = tid % (SEAM_PITCH / 4) * 4;
        if (row >= TILE || r0 + row >= a->n_rows)
            continue;
        struct gpu_quad q[STRIPS];
        for (int i = 0; i < STRIPS; i++)
            q[i] = gpu_load4(sums[half][i][row] + quad);
        for (int i = 0; i < 4; i++)
            q[0].v[i] = (q[0].v[i] + q[1].v[i]) + (q[2].v[i] + q[3].v[i]);
        gpu_store4(j.part + ((r0 + row) * j.pieces + piece) * SEAM_PITCH + quad, q[0]);
    }
}

/* ---------------------------------------------------------------- many rows */

#if defined(__CUDACC__)

/* A tile's rows pass through three turns of a block: they are written back and multiplied while those of
 * the tile before become the input and those before these are normed.  So what the blocks of a cluster
 * tell each other, sums and then squares, has a whole turn to arrive in, and nobody stands at a barrier
 * of the cluster, which waits for all stores to memory as well.  A tile's loads are issued a turn ahead.
 *
 * A slot's barrier counts the bytes that the cluster sends for a tile.  Nobody sends a tile's sums before
 * all waves of all blocks have read those of the tile three before (it has the squares of the one after
 * that), nor its squares before they have read those of four before. */
enum {
    WAVES = 16,
    HERE = 2, /* strips of a wave */
    WHOLE = 32 * WAVES,
    SHARE = STRIP * HERE * WAVES, /* columns of a block */
    WHOLE_DIM = SHARE * RANKS,
    SLOTS = 4,
    REDUCERS = TILE * (SEAM_PITCH / 4), /* threads, from the first on */
    SQUARERS = 64,                      /* from this one on as many */
    MIX_LOADERS = TILE * (KERN_MIX / 4)
};

struct alignas(16) whole_shared {
    struct gpu_words weights[WAVES][HERE][WORDS][32];
    tile_sums sums[WAVES];
    struct gpu_quad mix[2][TILE][KERN_MIX / 4];
    struct gpu_quad norm[SHARE / 4];
    struct gpu_quad pre[SLOTS][RANKS][TILE][2]; /* sent: sums of pre and of the squares of x */
    float square[SLOTS][TILE][RANKS];           /* sent: squares of the input */
    float squares[TILE][WAVES];
    uint64_t pre_here[SLOTS], square_here[SLOTS];
};
enum { PRE_BYTES = RANKS * TILE * 2 * 16, SQUARE_BYTES = TILE * RANKS * 4 };

GPU_FN void slot_start(uint64_t *bar)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(shared_at(bar)) : "memory");
}
GPU_FN void slot_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_at(bar)),
                 "r"(bytes)
                 : "memory");
}
GPU_FN void slot_wait(uint64_t *bar, int phase)
{
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}\n" ::"r"(shared_at(bar)),
                 "r"(phase)
                 : "memory");
}
/* To that place of this block in block `rank`, whose barrier counts it. */
GPU_FN void send4(const void *to, const struct gpu_quad &q, uint64_t *bar, int rank)
{
    asm volatile("{\n.reg .b32 there, bar;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 bar, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], "
                 "{%3, %4, %5, %6}, [bar];\n}\n" ::"r"(shared_at(to)),
                 "r"(shared_at(bar)), "r"(rank), "f"(q.v[0]), "f"(q.v[1]), "f"(q.v[2]), "f"(q.v[3])
                 : "memory");
}
GPU_FN void send1(const void *to, float v, uint64_t *bar, int rank)
{
    asm volatile("{\n.reg .b32 there, bar;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 bar, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [bar];\n"
                 "}\n" ::"r"(shared_at(to)),
                 "r"(shared_at(bar)), "r"(rank), "f"(v)
                 : "memory");
}

/* v[0 .. N-1] as a tree over neighbours. */
template <int N> GPU_FN float tree(const float *v)
{
    float s[N];
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        s[i] = v[i];
    GPU_UNROLL
    for (int n = N / 2; n; n /= 2)
        GPU_UNROLL
    for (int i = 0; i < N / 2; i++)
        if (i < n)
            s[i] = s[2 * i] + s[2 * i + 1];
    return s[0];
}

/* What the rows of tile n, from r0 on, come to over the block: to the cluster what all of it needs of
 * them, to memory for comb_kernel all of it. */
GPU_FN void send_sums(const struct seam_job *j, struct whole_shared *s, int n, int64_t r0, int rank)
{
    int tid = (int)threadIdx.x, row = tid / (SEAM_PITCH / 4), quad = tid % (SEAM_PITCH / 4);
    if (tid >= REDUCERS)
        return;
    float v[4][WAVES];
    struct gpu_quad sum;
    GPU_UNROLL
    for (int w = 0; w < WAVES; w++) {
        struct gpu_quad q = gpu_load4(s->sums[w][row] + 4 * quad);
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            v[i][w] = q.v[i];
    }
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        sum.v[i] = tree<WAVES>(v[i]);
    if (quad == 0 || quad == SEAM_SQUARES)
        for (int i = 0; i < RANKS; i++)
            send4(&s->pre[n % SLOTS][rank][row][quad != 0], sum, &s->pre_here[n % SLOTS], i);
    if (r0 + row < j->a.n_rows)
        gpu_store4(j->part + ((r0 + row) * RANKS + rank) * SEAM_PITCH + 4 * quad, sum);
}

/* The squares of tile n's input over the block. */
GPU_FN void send_squares(struct whole_shared *s, int n, int rank)
{
    int t = (int)threadIdx.x - SQUARERS, row = t / RANKS;
    if (t < 0 || t >= TILE * RANKS)
        return;
    send1(&s->square[n % SLOTS][row][rank], tree<WAVES>(s->squares[row]),
          &s->square_here[n % SLOTS], t % RANKS);
}

/* Pre of the lane's row of tile n, by every wave for itself. */
GPU_FN struct gpu_quad find_pre(const struct seam_args *a, struct whole_shared *s, int n,
                                struct terms of)
{
    int g = gpu_lane() / 4, q = gpu_lane() % 4;
    float sum[RANKS], square[RANKS], squares[4] = {};
    struct gpu_quad pre;
    slot_wait(&s->pre_here[n % SLOTS], n / SLOTS & 1);
    if (threadIdx.x == 0)
        slot_expect(&s->pre_here[n % SLOTS], PRE_BYTES);
    GPU_UNROLL
    for (int i = 0; i < RANKS; i++) {
        sum[i] = s->pre[n % SLOTS][i][g][0].v[q];
        square[i] = s->pre[n % SLOTS][i][g][1].v[q];
    }
    squares[0] = wave_sum(tree<RANKS>(square), 4);
    float mine = seam_sigmoid(control(a, of, tree<RANKS>(sum), squares)) + a->hc_eps;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        pre.v[k] = gpu_float(gpu_shfl(gpu_bits(mine), 4 * g + k));
    return pre;
}

/* The factor of the norm of the lane's row of tile n. */
GPU_FN float find_factor(const struct seam_args *a, struct whole_shared *s, int n)
{
    slot_wait(&s->square_here[n % SLOTS], n / SLOTS & 1);
    if (threadIdx.x == 0)
        slot_expect(&s->square_here[n % SLOTS], SQUARE_BYTES);
    const float *two = s->square[n % SLOTS][gpu_lane() / 4] + gpu_lane() % 4 * 2;
    return seam_norm(wave_sum(two[0] + two[1], 4), a->dim, a->norm_eps);
}

/* A block's own of the model. */
GPU_FN void start_whole(const struct seam_args *a, struct whole_shared *s, int d, int first)
{
    int wave = gpu_wave(), lane = gpu_lane(), tid = (int)threadIdx.x;
    struct gpu_quad w[WORDS];
    GPU_UNROLL
    for (int c = 0; c < HERE; c++) { /* a lane's own: no barrier */
        GPU_UNROLL
        for (int i = 0; i < WORDS; i++)
            w[i] = load_weights(a, i / GROUPS, i % GROUPS, d + c * STRIP);
        GPU_UNROLL
        for (int i = 0; i < WORDS; i++)
            s->weights[wave][c][i][lane] = split(w[i]);
    }
    if (tid < SHARE / 4)
        s->norm[tid] = gpu_load4(a->norm + first + 4 * tid);
    if (tid < SLOTS) {
        slot_start(&s->pre_here[tid]);
        slot_start(&s->square_here[tid]);
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        slot_expect(&s->pre_here[tid], PRE_BYTES);
        slot_expect(&s->square_here[tid], SQUARE_BYTES);
    }
    cluster_sync(); /* nobody sends before the barriers are there */
}

GPU_KERNEL void GPU_BOUNDS(WHOLE, 1) whole_kernel(struct seam_job j)
{
    GPU_DYNAMIC(struct whole_shared, s);
    const struct seam_args *a = &j.a;
    int rank = (int)blockIdx.x % RANKS, clusters = (int)gridDim.x / RANKS, tid = (int)threadIdx.x;
    int wave = gpu_wave(), lane = gpu_lane(), g = lane / 4;
    int d = rank * SHARE + wave * STRIP * HERE + lane % 4 * 4;
    int first = (int)blockIdx.x / RANKS; /* tile */
    int tiles = ((a->n_rows + TILE - 1) / TILE - first + clusters - 1) / clusters;
    int step = clusters * TILE, r0 = first * TILE; /* of tile n */
    struct terms of = load_terms(a, lane % KERN_HC);
    struct strip p[HERE] = {};
    uint32_t before[HERE][KERN_HC][2] = {}, u[HERE][2] = {};
    gpu_let_next();
    start_whole(a, s, d, rank * SHARE);
    gpu_wait_before();
    GPU_UNROLL
    for (int c = 0; c < HERE; c++)
        if (r0 + g < a->n_rows)
            load_strip(&p[c], a, r0 + g, d + c * STRIP);
    if (tid < MIX_LOADERS && r0 + tid / (KERN_MIX / 4) < a->n_rows && a->y)
        s->mix[0][0][tid] = gpu_load4(a->mix + r0 * (int64_t)KERN_MIX + 4 * tid);
    gpu_sync();
    for (int n = 0; n < tiles + 2; n++, r0 += step) {
        uint32_t v[HERE][KERN_HC][2], next[HERE][2];
        float sum[2 * GROUPS], square = 0;
        struct gpu_quad mix = {};
        bool there = n < tiles, more = tid < MIX_LOADERS && n + 1 < tiles && a->y &&
                                       r0 + step + tid / (KERN_MIX / 4) < a->n_rows;
        if (more)
            mix = gpu_load4(a->mix + (r0 + step) * (int64_t)KERN_MIX + 4 * tid);
        if (there)
            GPU_UNROLL
        for (int c = 0; c < HERE; c++) {
            struct controls m;
            float one[2 * GROUPS], mine;
            GPU_UNROLL
            for (int i = 0; i < 1 + KERN_HC; i++)
                m.v[i] = s->mix[n & 1][g][1 + i];
            expand(v[c], &p[c], &m, a->y != NULL);
            if (n + 1 < tiles && r0 + step + g < a->n_rows)
                load_strip(&p[c], a, r0 + step + g, d + c * STRIP);
            if (r0 + g < a->n_rows)
                store_strip(v[c], a, r0 + g, d + c * STRIP);
            strip_products(one, v[c], &s->weights[wave][c][0][lane], 32);
            mine = square_sum(v[c]);
            square = c ? square + mine : mine;
            GPU_UNROLL
            for (int i = 0; i < 2 * GROUPS; i++)
                sum[i] = c ? sum[i] + one[i] : one[i];
        }
        gpu_sync(); /* the sums of the tile before have been read */
        if (more)
            s->mix[(n + 1) & 1][0][tid] = mix;
        if (n && n <= tiles) {
            struct gpu_quad pre = find_pre(a, s, n - 1, of);
            float squares[HERE];
            GPU_UNROLL
            for (int c = 0; c < HERE; c++) {
                struct gpu_quad x[KERN_HC];
                GPU_UNROLL
                for (int k = 0; k < KERN_HC; k++)
                    x[k] = unpack(before[c][k]);
                squares[c] = wave_sum(collapse(x, pre.v), 4);
                next[c][0] = gpu_pair(x[0].v[0], x[0].v[1]);
                next[c][1] = gpu_pair(x[0].v[2], x[0].v[3]);
            }
            if (lane % 4 == 0)
                s->squares[g][wave] = squares[0] + squares[1];
        }
        if (there)
            put_sums(s->sums[wave], sum, square);
        gpu_sync();
        if (there)
            send_sums(&j, s, n, r0, rank);
        if (n && n <= tiles)
            send_squares(s, n - 1, rank);
        if (n > 1) {
            float r = find_factor(a, s, n - 2);
            int row = r0 - 2 * step + g;
            GPU_UNROLL
            for (int c = 0; c < HERE; c++) {
                struct gpu_quad x = unpack(u[c]);
                struct gpu_quad norm = s->norm[(wave * STRIP * HERE + c * STRIP) / 4 + lane % 4];
                GPU_UNROLL
                for (int i = 0; i < 4; i++)
                    x.v[i] = gpu_bf16(x.v[i] * r * norm.v[i]);
                if (row < a->n_rows)
                    gpu_store4(a->out + row * (int64_t)a->dim + d + c * STRIP, x);
            }
        }
        GPU_UNROLL
        for (int i = 0; i < HERE * KERN_HC * 2; i++)
            before[i / 8][i / 2 % 4][i % 2] = v[i / 8][i / 2 % 4][i % 2];
        GPU_UNROLL
        for (int i = 0; i < HERE * 2; i++)
            u[i / 2][i % 2] = next[i / 2][i % 2];
    }
    cluster_sync(); /* nobody leaves while others send to it */
}

/* Row i/4 of the softmax in one thread: as soft_entry. */
GPU_FN void soft_row(float m[KERN_HC], float eps)
{
    float top = fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3]));
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        m[k] = expf(m[k] - top);
    float s = gpu_inverse((m[0] + m[1]) + (m[2] + m[3]));
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        m[k] = fmaf(m[k], s, eps);
}

enum { COMB_ROWS = 32, COMB_QUADS = SEAM_PITCH / 4, COMBERS = COMB_ROWS * COMB_QUADS };

/* A thread adds up four sums of a row over the cluster's blocks, whose loads are under way together; then
 * one has a row: pre again, post, comb. */
GPU_KERNEL void comb_kernel(struct seam_job j)
{
    GPU_SHARED struct gpu_quad sums[COMBERS];
    gpu_start();
    const struct seam_args *a = &j.a;
    int64_t row0 = (int64_t)blockIdx.x * COMB_ROWS, mine = row0 + (int)threadIdx.x / COMB_QUADS;
    float v[4][RANKS];
    struct gpu_quad sum[COMB_QUADS];
    GPU_UNROLL
    for (int r = 0; r < RANKS; r++) {
        struct gpu_quad q = {};
        if (mine < a->n_rows)
            q = gpu_load4(j.part + (mine * RANKS + r) * SEAM_PITCH +
                          4 * ((int)threadIdx.x % COMB_QUADS));
        GPU_UNROLL
        for (int k = 0; k < 4; k++)
            v[k][r] = q.v[k];
    }
    GPU_UNROLL
    for (int k = 0; k < 4; k++)
        sum[0].v[k] = tree<RANKS>(v[k]);
    sums[threadIdx.x] = sum[0];
    gpu_sync();
    int64_t row = row0 + threadIdx.x;
    if ((int)threadIdx.x >= COMB_ROWS || row >= a->n_rows)
        return;
    float *mix = a->mix + row * KERN_MIX, m[KERN_HC][KERN_HC];
    GPU_UNROLL
    for (int i = 0; i < COMB_QUADS; i++)
        sum[i] = sums[(int)threadIdx.x * COMB_QUADS + i];
    GPU_UNROLL
    for (int i = 0; i < KERN_MIX; i++) {
        float z = control(a, load_terms(a, i), sum[i / 4].v[i % 4], sum[SEAM_SQUARES].v);
        if (i < 8)
            sum[i / 4].v[i % 4] = i < 4 ? seam_sigmoid(z) + a->hc_eps : 2 * seam_sigmoid(z);
        else
            m[i / 4 - 2][i % 4] = z;
    }
    GPU_UNROLL
    for (int i = 0; i < KERN_HC; i++)
        soft_row(m[i], a->hc_eps);
    sinkhorn(m, a->iters, a->hc_eps);
    gpu_store4(mix, sum[0]);
    gpu_store4(mix + 4, sum[1]);
    GPU_UNROLL
    for (int i = 0; i < KERN_HC; i++)
        gpu_store4(mix + 8 + 4 * i, {{m[i][0], m[i][1], m[i][2], m[i][3]}});
}

/* Clusters that the card holds at once. */
static int clusters_at_once(void)
{
    static thread_local int n;
    cudaLaunchAttribute how = {};
    cudaLaunchConfig_t c = {};
    if (n)
        return n;
    gpu_allow_shared((const void *)whole_kernel, sizeof(struct whole_shared));
    how.id = cudaLaunchAttributeClusterDimension;
    how.val.clusterDim = {RANKS, 1, 1};
    c.gridDim = dim3(RANKS);
    c.blockDim = dim3(WHOLE);
    c.dynamicSmemBytes = sizeof(struct whole_shared);
    c.attrs = &how;
    c.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&n, whole_kernel, &c) != cudaSuccess || n < 1) {
        (void)cudaGetLastError();
        n = 16;
    }
    return n;
}

/* Rows from which one pass over them outweighs a block's 196 KB of weights and two turns without a tile. */
enum { WHOLE_ROWS = 1024 };

static bool whole(const struct seam_args *a)
{
    return a->fn && a->dim == WHOLE_DIM && a->n_rows >= WHOLE_ROWS;
}
static void run_whole(struct stream *s, const struct seam_job *j)
{
    int64_t clusters = FST_MIN(div_up(j->a.n_rows, TILE), (int64_t)clusters_at_once());
    sm90_launch(whole_kernel, clusters * RANKS, WHOLE, sizeof(struct whole_shared), RANKS, s, *j);
    gpu_launch_early(comb_kernel, div_up(j->a.n_rows, COMB_ROWS), COMBERS, 0, s, *j);
}

#else /* the emulation has no clusters */
static bool whole(const struct seam_args *a)
{
    (void)a;
    return false;
}
static void run_whole(struct stream *s, const struct seam_job *j)
{
    (void)s;
    (void)j;
}
#endif

/* ---------------------------------------------------------------- launcher */

SM90_ENTRY(seam)
{
    if (a->dim % PIECE || a->dim > 4 * MIXERS_WIDE * ITEMS_WIDE)
        return GPU_NAME(seam)(a, s);
    struct gpu_cut c = gpu_scratch(s);
    struct seam_job j = {*a, NULL, a->dim / PIECE, 1};
    if (a->n_rows <= 0)
        return FST_OK;
    FST_ASSERT(!a->operand || (a->n_rows <= OPERAND_FEW && a->dim % OPERAND_BLOCK == 0));
    if (whole(a)) {
        j.part = gpu_take<float>(&c, (int64_t)a->n_rows * RANKS * SEAM_PITCH);
        run_whole(s, &j);
        return gpu_done("seam");
    }
    int64_t groups = FST_MAX((int64_t)1, (int64_t)FILL / j.pieces);
    j.tile = (int)FST_MIN(div_up(a->n_rows, TILE), groups);
    FST_ASSERT(!a->parts || (a->y && j.tile * TILE >= a->n_rows));
    if (a->fn)
        j.part = gpu_take<float>(&c, (int64_t)a->n_rows * j.pieces * SEAM_PITCH);
    if (a->fn || a->y || a->capture)
        gpu_launch_early(a->parts ? write_kernel<true> : write_kernel<false>,
                         (int64_t)j.tile * j.pieces, WRITERS, 0, s, j);
    if (a->fn)
        seam_mix(s, &j);
    return gpu_done("seam");
}

size_t seam_sm90_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * div_up(l->dim, PIECE) * SEAM_PITCH, sizeof(float));
}
