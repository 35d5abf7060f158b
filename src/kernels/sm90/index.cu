/* index.cu - scores of the compressed entries and the choice of the best, on Hopper.
 *
 * score_kernel   a warpgroup takes a page of 64 keys: they go from memory into the registers of the
 *                product's A, unpacked, and meet the queries of up to ROWS rows of one span, 64 heads
 *                each, in shared memory.  FP4, E4M3 and scales that are powers of two are exact in
 *                bf16.
 * choose_kernel  one block per row (choice.cuh).
 *
 * A thread has two keys and, of each, dims 32c .. 32c+31 (c = lane % 4): 16 bytes of FP4 codes and their
 * scale.  Step s of k takes dims 8(s/2) + 2(s%2) + {0, 4, 1, 5} of it; queries are laid out alike.
 *
 * Order of a score: dims by steps, in one sum; heads 2c and 2c+1 of every 8 in order, then four threads
 * as a tree; an entry's place in a page plays no part. */
#include "kernels/gpu/index.cuh"
#include "kernels/sm90/choice.cuh"
#include "kernels/sm90/mma.cuh"

enum {
    DIM = ROWS_INDEX_DIM,
    HEADS = INDEX_HEADS,
    PAGE = ROWS_INDEX_PAGE,
    ROWS = 6, /* of a span, that share the keys */
    GROUPS = 2,
    THREADS = GROUPS * MMA_GROUP,
    STEPS = DIM / 16,
    BLOCK_BYTES = HEADS * MMA_LINE,
    QUERY_BYTES = DIM / MMA_BLOCK * BLOCK_BYTES,
    AHEAD_PAGES = MMA_SIZE(THREADS, 4), /* page numbers read at once */
    FILL = MMA_SIZE(264, 3),            /* blocks that fill a card: two on each processor */
    MANY_ROWS = MMA_SIZE(300, 12)       /* more than a block of CHOOSERS on each */
};

/* ---------------------------------------------------------------- queries */

struct score_shared {
    float weight[ROWS][HEADS];
    int32_t page[AHEAD_PAGES];
};
static size_t score_bytes(int rows)
{
    return (size_t)(rows * QUERY_BYTES + MMA_ALIGN) + sizeof(struct score_shared);
}

/* Where the pair of dims d, d+4 of a query goes; d % 8 < 4. */
GPU_FN int query_place(int head, int d)
{
    int c = d / 32, step = d % 32 / 8 * 2 + d % 4 / 2;
    int k = 16 * step + d % 2 * 8 + 2 * c;
    return k / MMA_BLOCK * BLOCK_BYTES + mma_place(head, k % MMA_BLOCK / 8) + k % 8 * 2;
}

/* Eight dims of a head; of a row, a thread has the same ones of every STEP-th head. */
struct oct {
    struct gpu_quad a, b;
};
enum {
    OCTS = HEADS * DIM / 8 / THREADS,
    STEP = HEADS / OCTS /* a multiple of 8: places of chunks stay the same */
};
GPU_FN int my_head(void)
{
    return (int)threadIdx.x / (DIM / 8);
}
GPU_FN int my_dim(void)
{
    return (int)threadIdx.x % (DIM / 8) * 8;
}

GPU_FN void fetch_query(const struct index_job *j, int64_t t, struct oct x[OCTS])
{
    const float *from = j->qi + (t * j->heads + my_head()) * DIM + my_dim();
    GPU_UNROLL
    for (int i = 0; i < OCTS; i++) {
        x[i] = {};
        if (my_head() + i * STEP < j->heads) {
            x[i].a = gpu_load4(from + i * STEP * DIM);
            x[i].b = gpu_load4(from + i * STEP * DIM + 4);
        }
    }
}
GPU_FN void put_query(const struct oct x[OCTS], uint8_t *q)
{
    GPU_UNROLL
    for (int k = 0; k < 4; k++) {
        uint8_t *to = q + query_place(my_head(), my_dim() + k);
        GPU_UNROLL
        for (int i = 0; i < OCTS; i++)
            *(uint32_t *)(void *)(to + i * STEP * MMA_LINE) = mma_pair(x[i].a.v[k], x[i].b.v[k]);
    }
}

/* Queries and weights of rows t .. t+n-1.  All loads of a row are under way at once, and those of the next:
 * one oct after another, six rows took 14,000 clocks. */
GPU_FN void load_queries(const struct index_job *j, int64_t t, int n, uint8_t *q,
                         struct score_shared *s)
{
    struct oct x[OCTS], next[OCTS] = {};
    fetch_query(j, t, x);
    for (int i = (int)threadIdx.x; i < n * HEADS; i += THREADS) {
        int h = i % HEADS;
        s->weight[i / HEADS][h] = h < j->heads ? j->iw[(t + i / HEADS) * j->heads + h] : 0;
    }
    GPU_ROLLED
    for (int row = 0; row < n; row++) {
        if (row + 1 < n)
            fetch_query(j, t + row + 1, next);
        put_query(x, q + row * QUERY_BYTES);
        GPU_UNROLL
        for (int i = 0; i < OCTS; i++)
            x[i] = next[i];
    }
}

/* ---------------------------------------------------------------- keys */

/* A thread's quarter of two keys as they lie in memory; scale: of the quarter (FP4), of the key. */
struct raw_keys {
    struct gpu_words a[2], b[2];
    uint32_t code[2];
    float scale[2];
};

GPU_FN void fetch_keys(const struct index_job *j, int32_t page, struct raw_keys *raw)
{
    const uint8_t *p = rows_index_page(&j->l, page);
    int key = gpu_wave() % 4 * 16 + gpu_lane() / 4, c = gpu_lane() % 4;
    GPU_UNROLL
    for (int i = 0; i < 2; i++, key += 8) {
        raw->scale[i] = 1;
        if (j->l.index_format == INDEX_FP4) {
            raw->a[i] = gpu_load16(p + key * 64 + 16 * c);
            raw->code[i] = p[PAGE * 64 + 4 * key + c];
            continue;
        }
        raw->a[i] = gpu_load16(p + key * DIM + 32 * c);
        raw->b[i] = gpu_load16(p + key * DIM + 32 * c + 16);
        raw->scale[i] = rows_index_scale(INDEX_FP8, p, key);
    }
}

/* Four pairs (d, d+4) of 8 E2M1 codes times 2^(code - 127): moved into bf16 they are 2^-126 of their
 * value.  Two steps, as in mma_codes. */
GPU_FN void unpack_fp4(uint32_t u, uint32_t scale, uint32_t pair[4])
{
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t sign = u << (12 - 4 * i) & 0x80008000u;
        uint32_t x = i < 2 ? u << (6 - 4 * i) : u >> (4 * i - 6);
        pair[i] = mma_times(mma_times(sign | (x & 0x01c001c0u), 0x5f805f80u), scale);
    }
}

/* The registers of A: key i of the thread is rows i and i + 2 of them. */
GPU_FN void unpack_keys(enum index_format format, const struct raw_keys *raw,
                        uint32_t (&a)[STEPS][4])
{
    GPU_UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t scale = FST_MIN(raw->code[i] + 62, 254u) * 0x00800080u;
        GPU_UNROLL
        for (int w = 0; w < 4; w++) {
            uint32_t pair[4];
            if (format == INDEX_FP4)
                unpack_fp4(raw->a[i].w[w], scale, pair);
            else {
                const uint32_t *u = w < 2 ? raw->a[i].w + 2 * w : raw->b[i].w + 2 * w - 4;
                GPU_UNROLL
                for (int k = 0; k < 4; k++)
                    pair[k] = mma_codes(mma_bytes(u[0], u[1], 0x4000u + (uint32_t)k * 0x1010u),
                                        mma_code_scale(127 * 0x10001));
            }
            GPU_UNROLL
            for (int k = 0; k < 4; k++)
                a[2 * w + k / 2][k % 2 * 2 + i] = pair[k];
        }
    }
}

/* ---------------------------------------------------------------- scores */

/* Rows t .. t+n-1 of a span, and their queries. */
struct run {
    int t, n, pos; /* pos: of row t */
    const uint8_t *q;
    const struct score_shared *s;
};

/* This thread's keys e and e+8 for row i of the run. */
GPU_FN void store_scores(const struct index_job *j, const struct run *r, int i, int e,
                         const float (&d)[32], const float scale[2])
{
    int c = gpu_lane() % 4, row = r->t + i - j->first;
    int nv = index_seen((int64_t)r->pos + i);
    float sum[2] = {};
    GPU_UNROLL
    for (int k = 0; k < 32; k++) {
        float weight = r->s->weight[i][k / 4 * 8 + 2 * c + k % 2];
        sum[k / 2 % 2] = fmaf(weight, fmaxf(d[k], 0), sum[k / 2 % 2]);
    }
    GPU_UNROLL
    for (int k = 0; k < 2; k++)
        sum[k] = wave_sum(sum[k], 4) * scale[k];
    float mine = c ? sum[1] : sum[0]; /* c 0 and 1 store */
    e += 8 * c;
    if (c >= 2 || e >= nv)
        return;
    j->score[row * j->ld + e] = mine;
    if (j->scores)
        j->scores[(int64_t)(r->t + i) * j->max_entries + e] = mine;
}

GPU_FN void score_page(const struct index_job *j, const struct run *r, int e,
                       const uint32_t (&a)[STEPS][4], const float scale[2])
{
    for (int i = 0; i < r->n; i++) {
        mma_tile q = mma_tile_of(r->q + i * QUERY_BYTES, BLOCK_BYTES);
        float d[32];
        GPU_UNROLL
        for (int k = 0; k < 32; k++)
            d[k] = 0;
        wgmma_begin();
        GPU_UNROLL
        for (int k = 0; k < STEPS; k++)
            mma_rs<0>(d, a[k], mma_ahead(q, k / 4 * BLOCK_BYTES + k % 4 * MMA_STEP));
        wgmma_end();
        wgmma_wait<0>();
        wgmma_hold(d);
        store_scores(j, r, i, e, d, scale);
    }
}

/* Pages p .. last-1 of those whose numbers are in shared memory, p's first: every GROUPS-th. */
GPU_FN void score_pages(const struct index_job *j, const struct run *r, int p, int last)
{
    int lane_key = gpu_wave() % 4 * 16 + gpu_lane() / 4, mine = (int)threadIdx.x / MMA_GROUP;
    struct raw_keys raw;
    if (p + mine >= last)
        return;
    fetch_keys(j, r->s->page[mine], &raw);
    for (int i = mine; p + i < last; i += GROUPS) {
        uint32_t a[STEPS][4];
        float scale[2] = {raw.scale[0], raw.scale[1]};
        unpack_keys(j->l.index_format, &raw, a);
        if (p + i + GROUPS < last)
            fetch_keys(j, r->s->page[i + GROUPS], &raw);
        score_page(j, r, (p + i) * PAGE + lane_key, a, scale);
    }
}

/* Numbers of pages p .. last-1, as many as there is room for. */
GPU_FN void read_pages(const struct index_job *j, const struct row_at *at, int p, int last,
                       struct score_shared *s)
{
    gpu_sync(); /* others may be reading */
    if ((int)threadIdx.x < FST_MIN(AHEAD_PAGES, last - p))
        s->page[threadIdx.x] = rows_pages(&j->rows, at->slot)[p + (int)threadIdx.x];
}

/* This block's share of a run's pages. */
GPU_FN void score_run(const struct index_job *j, const struct row_at *at, struct run *r, int part,
                      uint8_t *q, struct score_shared *s)
{
    int nv = index_seen((int64_t)r->pos + r->n - 1), pages = rows_div_up(nv, PAGE);
    int share = rows_div_up(pages, j->parts), last = FST_MIN(pages, (part + 1) * share);
    int p = part * share;
    ROWS_CHECK(nv <= j->max_entries);
    if (p >= last || (nv <= j->topk && !j->scores))
        return;
    read_pages(j, at, p, last, s);
    load_queries(j, r->t, r->n, q, s);
    shared_to_wgmma();
    gpu_sync();
    for (;;) {
        score_pages(j, r, p, FST_MIN(last, p + AHEAD_PAGES));
        p += AHEAD_PAGES;
        if (p >= last)
            break;
        read_pages(j, at, p, last, s);
        gpu_sync();
    }
}

GPU_KERNEL void GPU_BOUNDS(THREADS, 2) score_kernel(struct index_job j)
{
    gpu_wait_before();
    gpu_let_next(); /* behind the wait: choose_kernel reads rows before its own */
    GPU_DYNAMIC(uint8_t, bytes);
    uint8_t *q = mma_aligned(bytes);
    struct score_shared *s = (struct score_shared *)(void *)(q + j.tall * QUERY_BYTES);
    /* a span's last rows see most: first */
    int groups = (int)gridDim.x / j.parts, group = groups - 1 - (int)blockIdx.x / j.parts;
    int t = j.first + group * j.tall;
    int end = FST_MIN(t + j.tall, j.first + j.n);
    while (t < end) {
        const struct row_at at = rows_at(&j.rows, t);
        struct run r = {t, FST_MIN(end, at.last) - t, at.pos, q, s};
        score_run(&j, &at, &r, (int)blockIdx.x % j.parts, q, s);
        t += r.n;
    }
}

/* ---------------------------------------------------------------- choice */

/* Few rows: many threads a row; many: few, and two or four rows on a processor. */
template <int T, bool LISTS>
GPU_KERNEL void GPU_BOUNDS(T, T == CHOOSERS ? 1
                              : LISTS       ? 2
                                            : 4) choose_kernel(struct index_job j)
{
    gpu_let_next();
    if (!j.score)
        gpu_wait_before();
    GPU_SHARED union choice_shared s;
    int row = (int)blockIdx.x, t = j.first + row;
    const struct row_at at = rows_at(&j.rows, t);
    int nv = index_seen(at.pos);
    if (j.score)
        gpu_wait_before();
    if (!index_keeps_all(&j, t, nv))
        choose_any<T, LISTS>(j.score + row * j.ld, nv, j.topk, j.sel + (int64_t)t * j.topk,
                             j.margin ? j.margin + t : NULL, &s);
}

/* ---------------------------------------------------------------- launcher */

static void launch_choice(const struct index_job *j, int64_t n, struct stream *s)
{
    bool few = n < MANY_ROWS;
    gpu_launch_early(few                      ? choose_kernel<CHOOSERS, true>
                     : j->max_entries <= HELD ? choose_kernel<FEW_CHOOSERS, false>
                                              : choose_kernel<FEW_CHOOSERS, true>,
                     n, few ? (int)CHOOSERS : (int)FEW_CHOOSERS, 0, s, *j);
}

/* Rows that share a block's keys.  Every block loads the queries of its rows, 1.7 us for each on all blocks
 * together, and unpacks its pages, 0.14 us each: the sum is least near tall^2 = n*pages/1570. */
static int tall_of(int64_t n, int64_t n_spans, int64_t pages)
{
    int64_t most = FST_MIN((int64_t)ROWS, div_up(n, n_spans)), tall = 1;
    while (tall < most && (MMA_SIZE(false, true) || tall * tall * 1570 < n * pages))
        tall++;
    return (int)tall;
}

SM90_ENTRY(index_topk)
{
    int n = a->rows->n_rows;
    struct index_job j = index_start(a);
    if (n == 0)
        return FST_OK;
    if (a->max_entries <= a->topk && !a->scores) { /* every row takes all it sees */
        launch_choice(&j, n, s);
        return gpu_done("index_topk");
    }
    struct gpu_cut cut = gpu_scratch(s);
    int64_t rows = index_rows(n, a->max_entries), pages = div_up(a->max_entries, PAGE);
    j.score = gpu_take<float>(&cut, rows * j.ld);
    j.tall = tall_of(n, a->rows->n_spans, pages);
    for (j.first = 0; j.first < n; j.first += (int)rows) {
        j.n = (int)FST_MIN(rows, n - j.first);
        int64_t groups = div_up(j.n, j.tall);
        j.parts = (int)FST_MAX(1, FST_MIN(pages, FILL / groups));
        gpu_launch_early(score_kernel, groups * j.parts, THREADS, score_bytes(j.tall), s, j);
        launch_choice(&j, j.n, s);
    }
    return gpu_done("index_topk");
}
