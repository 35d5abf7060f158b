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
#include "kernels/gpu/seam.cuh"
#include "kernels/sm90/mma.cuh"

enum {
    STRIP = 16,               /* columns of a wave's sum */
    STRIPS = 4,               /* of a piece */
    PIECE = STRIP * STRIPS,   /* columns */
    TILE = 8,                 /* rows of an instruction */
    GROUPS = KERN_MIX / 8,    /* of control values, one instruction each */
    WORDS = KERN_HC * GROUPS, /* 16-byte words of weights that a lane has of a strip */
    WRITERS = 32 * STRIPS,    /* threads of write_kernel */
    BLOCKS = 4,               /* of write_kernel on a processor: registers */
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

GPU_FN void load_strip(struct strip *p, const struct seam_args *a, int64_t t, int d)
{
    const float *x = a->x + t * KERN_HC * a->dim + d;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        p->x[k] = gpu_load4(x + (int64_t)k * a->dim);
    if (a->y)
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

/* The loads of the next rows are under way while the products of these are made. */
GPU_KERNEL void GPU_BOUNDS(WRITERS, BLOCKS) write_kernel(struct seam_job j)
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
        load_strip(&p, a, mine, d);
        if (a->y)
            load_controls(&c, a, mine);
    }
    for (; r0 < a->n_rows; r0 += step, half ^= 1) {
        uint32_t v[KERN_HC][2];
        float sum[2 * GROUPS];
        expand(v, &p, &c, a->y != NULL);
        if (mine < a->n_rows)
            store_strip(v, a, mine, d);
        mine += step;
        if (mine < a->n_rows) {
            load_strip(&p, a, mine, d);
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

enum {
    RANKS = 8, /* blocks of a cluster */
    WAVES = 8, /* a piece each */
    WHOLE = 32 * WAVES,
    SHARE = PIECE * WAVES, /* columns of a block */
    WHOLE_DIM = SHARE * RANKS,
    AHEAD = 2 /* tiles between a row's way to the second-level cache and its load */
};

/* T: tiles of a turn. */
template <int T> struct alignas(16) whole_shared {
    struct gpu_words weights[WAVES][STRIPS][WORDS][32];
    tile_sums sums[2][WAVES];
    float all[T * TILE][SEAM_PITCH]; /* over the block; the cluster reads it */
    struct gpu_quad mix[2][T * TILE][KERN_MIX / 4];
    float pre[T * TILE][KERN_HC];
    float squares[WAVES][T * TILE];
    float square[T * TILE]; /* over the block; the cluster reads it */
    float scale[T * TILE];
};

GPU_FN struct gpu_quad cluster_load4(const float *p, int rank)
{
    uint32_t there;
    struct gpu_quad q;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
                 : "=r"(there)
                 : "r"(shared_at(p)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(q.v[0]), "=f"(q.v[1]), "=f"(q.v[2]), "=f"(q.v[3])
                 : "r"(there)
                 : "memory");
    return q;
}

/* Four sums over the ranks, which are eight neighbouring lanes. */
GPU_FN void rank_sum(struct gpu_quad *q)
{
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        q->v[i] = wave_sum(q->v[i], RANKS);
}

/* Mix of the rows from r0 on: a quad for each of the first threads. */
template <int T> GPU_FN void load_mix(struct gpu_quad *q, const struct seam_args *a, int64_t r0)
{
    int64_t row = r0 + (int)threadIdx.x / (KERN_MIX / 4);
    if ((int)threadIdx.x < T * TILE * (KERN_MIX / 4) && row < a->n_rows && a->y)
        *q = gpu_load4(a->mix + row * KERN_MIX + (int)threadIdx.x % (KERN_MIX / 4) * 4);
}
template <int T> GPU_FN void put_mix(struct whole_shared<T> *s, int turn, const struct gpu_quad &q)
{
    if ((int)threadIdx.x < T * TILE * (KERN_MIX / 4))
        s->mix[turn][(int)threadIdx.x / (KERN_MIX / 4)][(int)threadIdx.x % (KERN_MIX / 4)] = q;
}

/* A row's strip on its way to the second-level cache: every other strip takes the lines of two. */
GPU_FN void expect_strip(const struct seam_args *a, int64_t t, int d)
{
    if (gpu_lane() % 4 || t >= a->n_rows)
        return;
    const float *x = a->x + t * KERN_HC * a->dim + d;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        gpu_prefetch(x + (int64_t)k * a->dim);
    if (a->y)
        gpu_prefetch(a->y + t * a->dim + d);
}

/* What the rows of a turn come to over the block, value by value. */
template <int T> GPU_FN void add_waves(struct whole_shared<T> *s, int tile)
{
    int tid = (int)threadIdx.x, row = tid / SEAM_PITCH, i = tid % SEAM_PITCH;
    float v[WAVES];
    if (row >= TILE)
        return;
    GPU_UNROLL
    for (int w = 0; w < WAVES; w++)
        v[w] = s->sums[tile & 1][w][row][i];
    s->all[tile * TILE + row][i] =
        ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/* Pre of all rows of the turn; the sums of this rank's share of the rows for comb_kernel. */
template <int T>
GPU_FN void finish_sums(const struct seam_job *j, struct whole_shared<T> *s, int64_t r0, int rank,
                        struct terms of)
{
    enum { QUADS = SEAM_PITCH / 4, SUMS = T * QUADS * RANKS };
    const struct seam_args *a = &j->a;
    int other = (int)threadIdx.x % RANKS;
    for (int i = (int)threadIdx.x; i < T * TILE * RANKS; i += WHOLE) {
        int row = i / RANKS;
        struct gpu_quad sum = cluster_load4(s->all[row], other);
        struct gpu_quad squares = cluster_load4(s->all[row] + KERN_MIX, other);
        rank_sum(&sum);
        rank_sum(&squares);
        float mine =
            other % 2 ? (other & 2 ? sum.v[3] : sum.v[1]) : (other & 2 ? sum.v[2] : sum.v[0]);
        if (other < KERN_HC)
            s->pre[row][other] = seam_sigmoid(control(a, of, mine, squares.v)) + a->hc_eps;
    }
    for (int i = (int)threadIdx.x; i < (SUMS + 31) / 32 * 32; i += WHOLE) {
        int row = rank * T + i / RANKS / QUADS, quad = i / RANKS % QUADS * 4;
        struct gpu_quad sum = {};
        if (i < SUMS)
            sum = cluster_load4(s->all[row] + quad, other);
        rank_sum(&sum);
        if (i < SUMS && other == 0 && r0 + row < a->n_rows)
            gpu_store4(j->part + (r0 + row) * SEAM_PITCH + quad, sum);
    }
}

/* The factor of the norm for all rows of the turn, from squares over the waves. */
template <int T> GPU_FN void finish_squares(const struct seam_args *a, struct whole_shared<T> *s)
{
    int tid = (int)threadIdx.x;
    gpu_sync();
    if (tid < T * TILE) {
        float v[WAVES];
        GPU_UNROLL
        for (int w = 0; w < WAVES; w++)
            v[w] = s->squares[w][tid];
        s->square[tid] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
    cluster_sync();
    for (int i = tid; i < T * TILE * RANKS; i += WHOLE) {
        float all = wave_sum(cluster_load(shared_at(s->square + i / RANKS), i % RANKS), RANKS);
        if (i % RANKS == 0)
            s->scale[i / RANKS] = seam_norm(all, a->dim, a->norm_eps);
    }
    gpu_sync();
}

template <int T> GPU_KERNEL void GPU_BOUNDS(WHOLE, 1) whole_kernel(struct seam_job j)
{
    GPU_DYNAMIC(struct whole_shared<T>, s);
    const struct seam_args *a = &j.a;
    int rank = (int)blockIdx.x % RANKS, clusters = (int)gridDim.x / RANKS, turn = 0;
    int wave = gpu_wave(), lane = gpu_lane(), g = lane / 4;
    int d = rank * SHARE + wave * PIECE + lane % 4 * 4;
    int64_t r0 = (int64_t)((int)blockIdx.x / RANKS) * T * TILE, step = (int64_t)clusters * T * TILE;
    struct terms of = load_terms(a, lane % KERN_HC);
    struct strip p = {};
    struct gpu_quad mix = {};
    gpu_let_next();
    for (int c = 0; c < STRIPS; c++) /* a lane's own: no barrier */
        GPU_UNROLL
    for (int i = 0; i < WORDS; i++)
        s->weights[wave][c][i][lane] =
            split(load_weights(a, i / GROUPS, i % GROUPS, d + c * STRIP));
    gpu_wait_before();
    load_mix<T>(&mix, a, r0);
    if (r0 + g < a->n_rows)
        load_strip(&p, a, r0 + g, d);
    put_mix(s, 0, mix);
    gpu_sync();
    for (; r0 < a->n_rows; r0 += step, turn ^= 1) {
        uint32_t v[T][STRIPS][KERN_HC][2];
        GPU_UNROLL
        for (int t = 0; t < T; t++) {
            int64_t row = r0 + t * TILE + g;
            int64_t far = t + AHEAD < T ? row + AHEAD * TILE : row + step + (AHEAD - T) * TILE;
            float sum[2][2 * GROUPS], square[2];
            struct controls m;
            GPU_UNROLL
            for (int i = 0; i < 1 + KERN_HC; i++)
                m.v[i] = s->mix[turn][t * TILE + g][1 + i];
            GPU_UNROLL
            for (int c = 0; c < STRIPS; c++) {
                int64_t next = c + 1 < STRIPS ? row : t + 1 < T ? row + TILE : r0 + step + g;
                float one[2 * GROUPS], mine;
                expand(v[t][c], &p, &m, a->y != NULL);
                if (row < a->n_rows)
                    store_strip(v[t][c], a, row, d + c * STRIP);
                if (next < a->n_rows)
                    load_strip(&p, a, next, d + (c + 1) % STRIPS * STRIP);
                if (c % 2 == 0)
                    expect_strip(a, far, d + c * STRIP);
                strip_products(one, v[t][c], &s->weights[wave][c][0][lane], 32);
                mine = square_sum(v[t][c]);
                square[c / 2] = c % 2 ? square[c / 2] + mine : mine;
                GPU_UNROLL
                for (int i = 0; i < 2 * GROUPS; i++)
                    sum[c / 2][i] = c % 2 ? sum[c / 2][i] + one[i] : one[i];
            }
            GPU_UNROLL
            for (int i = 0; i < 2 * GROUPS; i++)
                sum[0][i] += sum[1][i];
            put_sums(s->sums[t & 1][wave], sum[0], square[0] + square[1]);
            gpu_sync();
            add_waves(s, t);
        }
        load_mix<T>(&mix, a, r0 + step);
        cluster_sync();
        finish_sums(&j, s, r0, rank, of);
        put_mix(s, turn ^ 1, mix);
        gpu_sync();
        GPU_UNROLL
        for (int t = 0; t < T; t++) {
            float square[STRIPS];
            struct gpu_quad pre = gpu_load4(s->pre[t * TILE + g]);
            GPU_UNROLL
            for (int c = 0; c < STRIPS; c++) {
                struct gpu_quad x[KERN_HC];
                GPU_UNROLL
                for (int k = 0; k < KERN_HC; k++)
                    x[k] = unpack(v[t][c][k]);
                square[c] = wave_sum(collapse(x, pre.v), 4);
                v[t][c][0][0] = gpu_pair(x[0].v[0], x[0].v[1]);
                v[t][c][0][1] = gpu_pair(x[0].v[2], x[0].v[3]);
            }
            if (lane % 4 == 0)
                s->squares[wave][t * TILE + g] = (square[0] + square[1]) + (square[2] + square[3]);
        }
        finish_squares(a, s);
        GPU_UNROLL
        for (int c = 0; c < STRIPS; c++) {
            struct gpu_quad norm = gpu_load4(a->norm + d + c * STRIP);
            GPU_UNROLL
            for (int t = 0; t < T; t++) {
                int64_t row = r0 + t * TILE + g;
                float r = s->scale[t * TILE + g];
                struct gpu_quad u = unpack(v[t][c][0]);
                for (int i = 0; i < 4; i++)
                    u.v[i] = gpu_bf16(u.v[i] * r * norm.v[i]);
                if (row < a->n_rows)
                    gpu_store4(a->out + row * a->dim + d + c * STRIP, u);
            }
        }
    }
    cluster_sync(); /* others may still be reading */
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

enum { COMBERS = 64 };

/* A thread has a row: pre again, post, comb. */
GPU_KERNEL void comb_kernel(struct seam_job j)
{
    gpu_start();
    const struct seam_args *a = &j.a;
    int64_t row = (int64_t)blockIdx.x * COMBERS + threadIdx.x;
    if (row >= a->n_rows)
        return;
    struct gpu_quad sum[SEAM_PITCH / 4];
    float *mix = a->mix + row * KERN_MIX, m[KERN_HC][KERN_HC];
    GPU_UNROLL
    for (int i = 0; i < SEAM_PITCH / 4; i++)
        sum[i] = gpu_load4(j.part + row * SEAM_PITCH + 4 * i);
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
template <int T> static int clusters_at_once(void)
{
    static thread_local int n;
    void (*kernel)(struct seam_job) = whole_kernel<T>;
    cudaLaunchAttribute how = {};
    cudaLaunchConfig_t c = {};
    if (n)
        return n;
    gpu_allow_shared((const void *)kernel, sizeof(struct whole_shared<T>));
    how.id = cudaLaunchAttributeClusterDimension;
    how.val.clusterDim = {RANKS, 1, 1};
    c.gridDim = dim3(RANKS);
    c.blockDim = dim3(WHOLE);
    c.dynamicSmemBytes = sizeof(struct whole_shared<T>);
    c.attrs = &how;
    c.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&n, kernel, &c) != cudaSuccess || n < 1) {
        (void)cudaGetLastError();
        n = 16;
    }
    return n;
}

template <int T> static void launch_whole(struct stream *s, const struct seam_job *j)
{
    int64_t clusters = FST_MIN(div_up(j->a.n_rows, T * TILE), (int64_t)clusters_at_once<T>());
    sm90_launch(whole_kernel<T>, clusters * RANKS, WHOLE, sizeof(struct whole_shared<T>), RANKS, s,
                *j);
    gpu_launch_early(comb_kernel, div_up(j->a.n_rows, COMBERS), COMBERS, 0, s, *j);
}

/* Rows from which one pass over them outweighs a block's 196 KB of weights. */
enum { MANY = 512 };

static bool whole(const struct seam_args *a)
{
    return a->fn && a->dim == WHOLE_DIM && a->n_rows >= MANY;
}
static void run_whole(struct stream *s, const struct seam_job *j)
{
    launch_whole<4>(s, j);
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
    if (whole(a)) {
        j.part = gpu_take<float>(&c, (int64_t)a->n_rows * SEAM_PITCH);
        run_whole(s, &j);
        return gpu_done("seam");
    }
    int64_t groups = FST_MAX((int64_t)1, (int64_t)FILL / j.pieces);
    j.tile = (int)FST_MIN(div_up(a->n_rows, TILE), groups);
    if (a->fn)
        j.part = gpu_take<float>(&c, (int64_t)a->n_rows * j.pieces * SEAM_PITCH);
    if (a->fn || a->y || a->capture)
        gpu_launch_early(write_kernel, (int64_t)j.tile * j.pieces, WRITERS, 0, s, j);
    if (a->fn)
        seam_mix(s, &j);
    return gpu_done("seam");
}

size_t seam_sm90_scratch(const struct kernel_limits *l)
{
    return gpu_piece((int64_t)l->n_rows * div_up(l->dim, PIECE) * SEAM_PITCH, sizeof(float));
}
