/* draw.cu - tokens from logits, and the Markov chain of a draft block.
 *
 * The vocabulary goes in pieces of fixed width, a block each; a second, small launch joins them.
 * Values are compared in fp32 as philox.h makes them; ties go to the lower id, so a winner does not
 * depend on the order of comparing.  Order of a sum of exponentials: 4 tokens per thread, lanes as a
 * tree, waves in order; pieces i, i+256, .. per thread and a tree of threads, in double.  Order of a
 * correction w2 . w1[prev]: 8 inputs in a row per lane, then those 64 further; 8 lanes as a tree. */
#include "kernels/gpu/draw.cuh"

enum {
    THREADS = 256,
    EACH = 4, /* tokens of a piece per thread */
    PIECE = THREADS * EACH,
    CHAIN_PIECE = THREADS,
    WAVES = THREADS / GPU_WAVE,
    LANES = 8,           /* that share a product */
    SHARED_W1 = 64 << 10 /* bytes of w1 rows in a block */
};

/* Of the block, in every thread; part: WAVES of them, shared. */
GPU_FN struct best block_best(struct best b, struct best *part)
{
    b = wave_best(b);
    gpu_sync();
    if (gpu_lane() == 0)
        part[gpu_wave()] = b;
    gpu_sync();
    b = part[0];
    for (int w = 1; w < WAVES; w++)
        b = better(b, part[w]);
    return b;
}

/* ---------------------------------------------------------------- draw */

/* What a piece of one row says. */
struct found {
    struct best best;
    float top, sum; /* of exp(logit - top) */
    int32_t nan;
};

struct draw_job {
    struct draw_args a;
    struct found *found; /* (n, pieces) */
    int pieces;
};

/* A thread per row and masked id. */
GPU_KERNEL void mask_kernel(struct draw_job j)
{
    gpu_start();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / j.a.n_masked;
    if (row < j.a.n)
        j.a.logits[row * j.a.vocab + j.a.masked[i % j.a.n_masked]] = -INFINITY;
}

GPU_KERNEL void piece_kernel(struct draw_job j)
{
    gpu_start();
    GPU_SHARED float waves[WAVES];
    GPU_SHARED struct best bests[WAVES];
    GPU_SHARED struct draw_params d;
    GPU_SHARED uint32_t out_pos;
    int tid = (int)threadIdx.x, first = (int)blockIdx.x % j.pieces * PIECE;
    int64_t row = (int)blockIdx.x / j.pieces;
    const float *logits = j.a.logits + row * j.a.vocab;
    float l[EACH], top = -INFINITY, nan = 0, sum = 0;
    if (tid == 0) { /* perhaps over the bus */
        d = j.a.draw[row];
        out_pos = j.a.out_pos[row] + j.a.ahead;
    }
    for (int i = 0; i < EACH; i++) {
        int v = first + tid + i * THREADS;
        l[i] = v < j.a.vocab ? logits[v] : -INFINITY;
        top = fmaxf(top, l[i]);
        nan = isnan(l[i]) ? 1 : nan;
    }
    top = block_max(top, waves);
    nan = block_max(nan, waves);
    for (int i = 0; i < EACH && top > -INFINITY; i++)
        sum += expf(l[i] - top);
    sum = block_sum(sum, waves);
    struct best b = {-INFINITY, 0};
    for (int i = 0; i < EACH; i++)
        if (first + tid + i * THREADS < j.a.vocab)
            enter(&b, l[i], first + tid + i * THREADS, &d, out_pos);
    b = block_best(b, bests);
    if (tid == 0) {
        struct found f = {b, top, sum, nan > 0};
        j.found[blockIdx.x] = f;
    }
}

/* Sum over the block in every thread; part: THREADS doubles, shared. */
GPU_FN double tree_sum(double v, double *part)
{
    part[threadIdx.x] = v;
    for (int h = THREADS / 2; h; h /= 2) {
        gpu_sync();
        if ((int)threadIdx.x < h)
            part[threadIdx.x] += part[threadIdx.x + (unsigned)h];
    }
    gpu_sync();
    return part[0];
}

/* One block per row. */
GPU_KERNEL void join_kernel(struct draw_job j)
{
    gpu_start();
    GPU_SHARED float waves[WAVES];
    GPU_SHARED struct best bests[WAVES];
    GPU_SHARED double part[THREADS];
    int tid = (int)threadIdx.x;
    const struct found *f = j.found + (int64_t)blockIdx.x * j.pieces;
    struct best b = {-INFINITY, 0};
    float top = -INFINITY, nan = 0;
    double sum = 0;
    for (int i = tid; i < j.pieces; i += THREADS) {
        b = better(b, f[i].best);
        top = fmaxf(top, f[i].top);
        nan = f[i].nan ? 1 : nan;
    }
    b = block_best(b, bests);
    top = block_max(top, waves);
    nan = block_max(nan, waves);
    for (int i = tid; i < j.pieces; i += THREADS)
        if (f[i].sum > 0)
            sum += (double)f[i].sum * exp((double)f[i].top - (double)top);
    sum = tree_sum(sum, part);
    if (tid)
        return;
    int32_t id = nan > 0 && !j.a.drafts ? -1 : winner(b);
    j.a.id[blockIdx.x] = id;
    if (j.a.logit)
        j.a.logit[blockIdx.x] = nan > 0 ? NAN : j.a.logits[(int64_t)blockIdx.x * j.a.vocab + id];
    if (j.a.lse)
        j.a.lse[blockIdx.x] = nan > 0 ? NAN : (float)((double)top + log(sum));
}

GPU_ENTRY(draw)
{
    struct gpu_cut c = gpu_scratch(s);
    struct draw_job j = {*a, NULL, (int)div_up(a->vocab, PIECE)};
    int64_t blocks = (int64_t)a->n * j.pieces;
    j.found = gpu_take<struct found>(&c, blocks);
    if (a->n_masked)
        gpu_launch_early(mask_kernel, div_up((int64_t)a->n * a->n_masked, THREADS), THREADS, 0, s,
                         j);
    gpu_launch_early(piece_kernel, blocks, THREADS, 0, s, j);
    gpu_launch_early(join_kernel, a->n, THREADS, 0, s, j);
    return gpu_done("draw");
}

/* ---------------------------------------------------------------- draft chain */

struct chain_job {
    struct draft_chain_args a; /* its matrices lie on the host: */
    struct mat w1, w2, conf_proj;
    struct best *best; /* (n, pieces) */
    int32_t *drawn;    /* (n, gamma): the ids, to be read again */
    int pieces, k;
};

/* The token before draft k of request r. */
GPU_FN int32_t token_before(const struct chain_job *j, int64_t r, int k)
{
    return k ? j->drawn[r * j->a.gamma + k - 1] : j->a.anchor[r];
}

/* Row `token` of w1 as floats: the first four of every 8, then the last four of every 8, so that
 * neighbouring lanes read neighbouring quads. */
GPU_FN void table_row(struct gpu_quad *out, const struct mat *w1, int64_t token)
{
    int eights = w1->n_in / 8;
    for (int i = (int)threadIdx.x; i < eights; i += THREADS) {
        float v[8];
        gpu_load8(v, w1->fmt, w1->data, token * w1->n_in + 8 * i);
        for (int k = 0; k < 4; k++) {
            out[i].v[k] = v[k];
            out[eights + i].v[k] = v[4 + k];
        }
    }
}

/* Rows v, v+step, .. of w2 (past the end: the last) times each of the R rows in `w1`, in all 8 lanes
 * of the group.  T rows at a time keep the memory busy and share what is read of w1. */
template <int T, int R>
GPU_FN void correct(float sum[T][R], const struct mat *w2, int64_t v, int step,
                    const struct gpu_quad *w1)
{
    int eights = w2->n_in / 8;
    int64_t row[T];
    for (int t = 0; t < T; t++) {
        row[t] = FST_MIN(v + t * step, (int64_t)w2->n_out - 1) * w2->n_in;
        for (int r = 0; r < R; r++)
            sum[t][r] = 0;
    }
    for (int i = gpu_lane() % LANES; i < eights; i += LANES) {
        float w[T][8];
        for (int t = 0; t < T; t++)
            gpu_load8(w[t], w2->fmt, w2->data, row[t] + 8 * i);
        for (int r = 0; r < R; r++) {
            struct gpu_quad a = w1[2 * r * eights + i], b = w1[(2 * r + 1) * eights + i];
            for (int t = 0; t < T; t++) {
                for (int k = 0; k < 4; k++)
                    sum[t][r] = fmaf(w[t][k], a.v[k], sum[t][r]);
                for (int k = 0; k < 4; k++)
                    sum[t][r] = fmaf(w[t][4 + k], b.v[k], sum[t][r]);
            }
        }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            sum[t][r] = wave_sum(sum[t][r], LANES);
}

/* A piece of the vocabulary at step k for R requests: the weights are read once. */
template <int R> GPU_KERNEL void chain_kernel(struct chain_job j)
{
    gpu_start();
    GPU_DYNAMIC(struct gpu_quad, w1); /* (R, rank/4) */
    GPU_SHARED struct draw_params d[R];
    GPU_SHARED uint32_t out_pos[R];
    GPU_SHARED int32_t before[R];
    GPU_SHARED float l[R][CHAIN_PIECE];
    GPU_SHARED struct best bests[WAVES];
    int tid = (int)threadIdx.x, tiles = (j.a.n + R - 1) / R;
    int piece = (int)blockIdx.x / tiles, v0 = piece * CHAIN_PIECE; /* tiles adjoin */
    int64_t r0 = (int64_t)((int)blockIdx.x % tiles) * R;
    int rows = (int)FST_MIN((int64_t)R, j.a.n - r0), v = v0 + tid;
    if (tid < R) { /* perhaps over the bus; past the end: any request */
        int64_t r = r0 + FST_MIN(tid, rows - 1);
        d[tid] = j.a.draw[r];
        out_pos[tid] = j.a.out_pos[r] + (uint32_t)j.k;
        before[tid] = token_before(&j, r, j.k);
    }
    gpu_sync();
    for (int r = 0; r < R; r++)
        table_row(w1 + r * (j.a.rank / 4), &j.w1, before[r]);
    gpu_sync();
    const int T = R > 4 ? 2 : 4, groups = THREADS / LANES;
    for (int t0 = tid / LANES; t0 < CHAIN_PIECE; t0 += groups * T) {
        float sum[T][R];
        correct<T, R>(sum, &j.w2, v0 + t0, groups, w1);
        for (int i = 0; i < T * R && tid % LANES == 0; i++)
            l[i % R][t0 + i / R * groups] = sum[i / R][i % R];
    }
    gpu_sync();
    for (int r = 0; r < rows; r++) {
        int64_t at = ((r0 + r) * j.a.gamma + j.k) * j.a.vocab + v;
        struct best b = {-INFINITY, 0};
        if (v < j.a.vocab) {
            float logit = j.a.base[at] + l[r][tid];
            if (j.a.corrected)
                j.a.corrected[at] = logit;
            enter(&b, logit, v, &d[r], out_pos[r]);
        }
        b = block_best(b, bests);
        if (tid == 0)
            j.best[(r0 + r) * j.pieces + piece] = b;
    }
}

/* One block per request. */
GPU_KERNEL void pick_kernel(struct chain_job j)
{
    gpu_start();
    GPU_SHARED struct best bests[WAVES];
    struct best b = {-INFINITY, 0};
    int64_t r = blockIdx.x, at = r * j.a.gamma + j.k;
    for (int i = (int)threadIdx.x; i < j.pieces; i += THREADS)
        b = better(b, j.best[r * j.pieces + i]);
    b = block_best(b, bests);
    if (threadIdx.x == 0)
        j.drawn[at] = j.a.id[at] = winner(b);
}

/* conf_proj . [y; w1[before]], a block per draft, when all are drawn. */
GPU_KERNEL void confidence_kernel(struct chain_job j)
{
    gpu_start();
    GPU_SHARED float waves[WAVES];
    GPU_SHARED int32_t before;
    int64_t at = blockIdx.x;
    float sum = 0;
    if (threadIdx.x == 0)
        before = token_before(&j, at / j.a.gamma, (int)(at % j.a.gamma));
    gpu_sync();
    for (int i = 8 * (int)threadIdx.x; i < j.a.dim + j.a.rank; i += 8 * THREADS) {
        float w[8], x[8];
        gpu_load8(w, j.conf_proj.fmt, j.conf_proj.data, i);
        if (i < j.a.dim)
            gpu_load8(x, WEIGHT_F32, j.a.y, at * j.a.dim + i);
        else
            gpu_load8(x, j.w1.fmt, j.w1.data, (int64_t)before * j.a.rank + i - j.a.dim);
        for (int k = 0; k < 8; k++)
            sum = fmaf(w[k], x[k], sum);
    }
    sum = block_sum(sum, waves);
    if (threadIdx.x == 0)
        j.a.conf[at] = sum;
}

static void assert_plain(const struct mat *m)
{
    FST_ASSERT(m->fmt == WEIGHT_BF16 || m->fmt == WEIGHT_F32);
    FST_ASSERT(m->n_in % 8 == 0);
}

extern "C" void GPU_NAME(draft_confidence)(const struct draft_chain_args *a, int32_t *drawn,
                                           struct stream *s)
{
    struct chain_job j = {*a, *a->w1, {}, *a->conf_proj, NULL, drawn, 0, 0};
    assert_plain(a->conf_proj);
    FST_ASSERT(a->dim % 8 == 0);
    gpu_launch_early(confidence_kernel, (int64_t)a->n * a->gamma, THREADS, 0, s, j);
}

template <int R> static void launch_step(const struct chain_job *j, struct stream *s)
{
    size_t shared = (size_t)R * (size_t)j->a.rank * 4;
    gpu_launch_early(chain_kernel<R>, div_up(j->a.n, R) * j->pieces, THREADS, shared, s, *j);
    gpu_launch_early(pick_kernel, j->a.n, THREADS, 0, s, *j);
}

GPU_ENTRY(draft_chain)
{
    assert_plain(a->w1);
    assert_plain(a->w2);
    FST_ASSERT(a->w1->n_in == a->rank && a->w2->n_in == a->rank);
    FST_ASSERT(a->w1->n_out == a->vocab && a->w2->n_out == a->vocab);
    FST_ASSERT(a->gamma <= KERN_GAMMA_MAX);
    FST_ASSERT(a->rank > 0 && a->rank * 4 <= SHARED_W1);
    struct gpu_cut c = gpu_scratch(s);
    struct chain_job j = {*a, *a->w1, *a->w2, {}, NULL, NULL, 0, 0};
    j.pieces = (int)div_up(a->vocab, CHAIN_PIECE);
    j.best = gpu_take<struct best>(&c, (int64_t)a->n * j.pieces);
    j.drawn = gpu_take<int32_t>(&c, (int64_t)a->n * a->gamma);
    int most = SHARED_W1 / (a->rank * 4), rows = FST_MIN(a->n, most);
    for (j.k = 0; j.k < a->gamma; j.k++) {
        if (rows >= 8)
            launch_step<8>(&j, s);
        else if (rows >= 3 && most >= 4)
            launch_step<4>(&j, s);
        else if (rows >= 2)
            launch_step<2>(&j, s);
        else
            launch_step<1>(&j, s);
    }
    if (gpu_there(a->conf_proj))
        GPU_NAME(draft_confidence)(a, j.drawn, s);
    return gpu_done("draft_chain");
}

/* ---------------------------------------------------------------- scratch */

size_t gpu_draw_scratch(const struct kernel_limits *l)
{
    int64_t n = l->n_rows;
    size_t draw = gpu_piece(n * div_up(l->vocab, PIECE), sizeof(struct found));
    size_t chain = gpu_piece(n * div_up(l->vocab, CHAIN_PIECE), sizeof(struct best)) +
                   gpu_piece(n * KERN_GAMMA_MAX, sizeof(int32_t));
    return FST_MAX(draw, chain);
}
