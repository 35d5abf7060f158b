/* index.cu - scores of the compressed entries and the choice of the best.
 *
 * score_kernel   a block keeps one row's queries and walks over a run of pieces of 32 keys: a thread
 *                holds the products of 4 heads with 4 keys.  Queries and keys lie in shared memory
 *                as pairs of bf16, which hold FP4 and E4M3 values exactly.
 * choose_kernel  one block per row, choose.cuh.
 *
 * Order of a score: dims of a product in order, heads of a group of 4 in order, groups in order; an
 * entry's place in a piece plays no part. */
#include "kernels/gpu/index.cuh"

enum {
    DIM = ROWS_INDEX_DIM,
    PAIRS = DIM / 2,
    HEADS = INDEX_HEADS,
    PIECE = 32,
    THREADS = HEADS / 4 * (PIECE / 4),
    Q_LINE = HEADS + 4, /* words between pairs, so that lanes meet no bank twice */
    K_LINE = PIECE + 4,
    FILL = 1056 /* blocks that fill a large card */
};

/* ---------------------------------------------------------------- scores */

struct score_tile {
    struct gpu_words q[PAIRS * Q_LINE / 4], k[PAIRS * K_LINE / 4];
    float weight[HEADS], part[HEADS / 4][PIECE], scale[PIECE];
    int32_t page[THREADS];
};

GPU_FN void load_queries(const struct index_job *j, int64_t t, struct score_tile *s)
{
    uint32_t *q = s->q->w;
    int h = (int)threadIdx.x % HEADS;
    for (int g = (int)threadIdx.x / HEADS; g < DIM / 4; g += THREADS / HEADS) {
        struct gpu_quad x = {};
        if (h < j->heads)
            x = gpu_load4(j->qi + (t * j->heads + h) * DIM + 4 * g);
        for (int i = 0; i < 2; i++)
            q[(2 * g + i) * Q_LINE + h] = gpu_pair(gpu_bf16(x.v[2 * i]), gpu_bf16(x.v[2 * i + 1]));
    }
    if ((int)threadIdx.x < HEADS)
        s->weight[h] = h < j->heads ? j->iw[t * j->heads + h] : 0;
}

/* Keys e0 .. e0+31, all of one page; those after the last entry are it again. */
GPU_FN void load_keys(const struct index_job *j, int32_t page, int e0, int nv, struct score_tile *s)
{
    const uint8_t *p = rows_index_page(&j->l, page);
    uint32_t *k = s->k->w, pair[16];
    int i = (int)threadIdx.x % PIECE, b = (int)threadIdx.x / PIECE;
    int at = FST_MIN(e0 + i, nv - 1) % ROWS_INDEX_PAGE;
    rows_index_load(j->l.index_format, p, at, b, pair);
    for (int w = 0; w < 16; w++)
        k[(16 * b + w) * K_LINE + i] = pair[w];
    if (b == 0)
        s->scale[i] = rows_index_scale(j->l.index_format, p, at);
}

/* This thread's share of 4 keys' scores: its 4 heads, weighted, in order. */
GPU_FN void four_heads(struct score_tile *s)
{
    int hq = (int)threadIdx.x / (PIECE / 4), kq = (int)threadIdx.x % (PIECE / 4);
    const struct gpu_words *q = s->q + hq, *k = s->k + kq;
    float dot[4][4] = {}, sum[4] = {};
    for (int p = 0; p < PAIRS; p++) {
        struct gpu_words a = q[p * (Q_LINE / 4)], b = k[p * (K_LINE / 4)];
        for (int h = 0; h < 4; h++)
            for (int e = 0; e < 4; e++) {
                dot[h][e] = fmaf(gpu_low(a.w[h]), gpu_low(b.w[e]), dot[h][e]);
                dot[h][e] = fmaf(gpu_high(a.w[h]), gpu_high(b.w[e]), dot[h][e]);
            }
    }
    for (int h = 0; h < 4; h++)
        for (int e = 0; e < 4; e++)
            sum[e] = fmaf(s->weight[4 * hq + h], fmaxf(dot[h][e], 0), sum[e]);
    for (int e = 0; e < 4; e++)
        s->part[hq][4 * kq + e] = sum[e];
}

GPU_FN void store_scores(const struct index_job *j, int row, int e0, int nv,
                         const struct score_tile *s)
{
    int i = (int)threadIdx.x;
    float sum = 0;
    if (i >= PIECE || e0 + i >= nv)
        return;
    for (int g = 0; g < HEADS / 4; g++)
        sum += s->part[g][i];
    sum *= s->scale[i];
    j->score[row * j->ld + e0 + i] = sum;
    if (j->scores)
        j->scores[(j->first + row) * j->max_entries + e0 + i] = sum;
}

/* Every block of a row takes a run of its pieces, as many as the others. */
GPU_KERNEL void score_kernel(struct index_job j)
{
    gpu_start();
    GPU_SHARED struct score_tile s;
    int row = (int)blockIdx.x / j.parts, run = (int)blockIdx.x % j.parts, t = j.first + row;
    const struct row_at at = rows_at(&j.rows, t);
    const int32_t *pages = rows_pages(&j.rows, at.slot);
    int nv = index_seen(at.pos), pieces = rows_div_up(nv, PIECE);
    int share = 2 * rows_div_up(pieces, 2 * j.parts); /* whole pages */
    int p0 = run * share, p1 = FST_MIN(p0 + share, pieces);
    ROWS_CHECK(nv <= j.max_entries);
    if (p0 >= p1 || (nv <= j.topk && !j.scores))
        return;
    load_queries(&j, t, &s);
    for (int p = p0; p < p1; p++) {
        int ahead = (p - p0) / 2 % THREADS; /* place among the pages last read */
        gpu_sync();
        if ((p - p0) % (2 * THREADS) == 0) {
            if (p / 2 + (int)threadIdx.x < rows_div_up(p1, 2))
                s.page[threadIdx.x] = pages[p / 2 + (int)threadIdx.x];
            gpu_sync();
        }
        load_keys(&j, s.page[ahead], p * PIECE, nv, &s);
        gpu_sync();
        four_heads(&s);
        gpu_sync();
        store_scores(&j, row, p * PIECE, nv, &s);
    }
}

/* ---------------------------------------------------------------- choice */

GPU_KERNEL void choose_kernel(struct index_job j)
{
    gpu_start();
    GPU_SHARED struct chooser c;
    int row = (int)blockIdx.x, t = j.first + row;
    const struct row_at at = rows_at(&j.rows, t);
    int nv = index_seen(at.pos);
    if (!index_keeps_all(&j, t, nv))
        choose(j.score + row * j.ld, nv, j.topk, j.sel + (int64_t)t * j.topk,
               j.margin ? j.margin + t : NULL, &c);
}

/* ---------------------------------------------------------------- launcher */

/* kernels/sm90 takes the same. */
size_t gpu_index_scratch(const struct kernel_limits *l)
{
    return gpu_piece(index_rows(l->n_rows, l->max_entries) * index_line(l->max_entries),
                     sizeof(float));
}

GPU_ENTRY(index_topk)
{
    int n = a->rows->n_rows;
    struct index_job j = index_start(a);
    if (a->max_entries <= a->topk && !a->scores) { /* every row takes all it sees */
        gpu_launch_early(choose_kernel, n, CHOOSERS, 0, s, j);
        return gpu_done("index_topk");
    }
    struct gpu_cut cut = gpu_scratch(s);
    int64_t rows = index_rows(n, a->max_entries), pages = div_up(a->max_entries, 2 * PIECE);
    j.score = gpu_take<float>(&cut, rows * j.ld);
    j.tall = 1;
    for (j.first = 0; j.first < n; j.first += (int)rows) {
        j.n = (int)FST_MIN(rows, n - j.first);
        j.parts = (int)FST_MAX(1, FST_MIN(pages, FILL / j.n));
        gpu_launch_early(score_kernel, (int64_t)j.n * j.parts, THREADS, 0, s, j);
        gpu_launch_early(choose_kernel, j.n, CHOOSERS, 0, s, j);
    }
    return gpu_done("index_topk");
}
