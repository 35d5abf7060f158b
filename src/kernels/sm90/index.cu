/* index.cu - scores of the compressed entries and the choice of the best, on Hopper.
 *
 * score_kernel   a warpgroup takes a page of 64 keys: they go from memory into the registers of the
 *                product's A, unpacked, and meet the queries of up to ROWS rows of one span, 64 heads
 *                each, in shared memory.  FP4, E4M3 and scales that are powers of two are exact in
 *                bf16.
 * choose_kernel  one block per row.  Scores that fit in its registers: one count over 2048 equal
 *                steps between the least and the largest score, then the few of the step where the
 *                k-th best lies against each other.  More of them, or a crowd in that step:
 *                choose.cuh.
 *
 * A thread has two keys and, of each, dims 32c .. 32c+31 (c = lane % 4): 16 bytes of FP4 codes and their
 * scale.  Step s of k takes dims 8(s/2) + 2(s%2) + {0, 4, 1, 5} of it; queries are laid out alike.
 *
 * Order of a score: dims by steps, in one sum; heads 2c and 2c+1 of every 8 in order, then four threads
 * as a tree; an entry's place in a page plays no part. */
#include "kernels/gpu/index.cuh"
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
    FILL = MMA_SIZE(264, 3)             /* blocks that fill a card: two on each processor */
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

/* Queries and weights of rows t .. t+n-1.  All loads of a row are under way at once: one oct after another,
 * six rows took 14,000 clocks. */
GPU_FN void load_queries(const struct index_job *j, int64_t t, int n, uint8_t *q,
                         struct score_shared *s)
{
    for (int i = (int)threadIdx.x; i < n * HEADS; i += THREADS) {
        int h = i % HEADS;
        s->weight[i / HEADS][h] = h < j->heads ? j->iw[(t + i / HEADS) * j->heads + h] : 0;
    }
    for (int row = 0; row < n; row++) {
        struct oct x[OCTS];
        fetch_query(j, t + row, x);
        put_query(x, q + row * QUERY_BYTES);
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
    int t = j.first + (int)blockIdx.x / j.parts * j.tall;
    int end = FST_MIN(t + j.tall, j.first + j.n);
    while (t < end) {
        const struct row_at at = rows_at(&j.rows, t);
        struct run r = {t, FST_MIN(end, at.last) - t, at.pos, q, s};
        score_run(&j, &at, &r, (int)blockIdx.x % j.parts, q, s);
        t += r.n;
    }
}

/* ---------------------------------------------------------------- choice */

enum {
    SOME = CHOOSERS,                   /* of the crowd in a step, at most */
    FEW = MMA_SIZE(4 * CHOOSERS, 300), /* scores of choose_held<1>, of choose_held<5> */
    MANY = MMA_SIZE(20 * CHOOSERS, 500)
};

struct finder {
    uint32_t hist[BINS], part[CHOOSERS / 32], key[SOME];
    float least[CHOOSERS / 32], most[CHOOSERS / 32];
    int32_t entry[SOME], last; /* the last kept one */
    uint32_t value, n;
    int bin;
    uint32_t above, count; /* scores above the bin, in it */
};
union choice_shared {
    struct finder f;
    struct chooser c;
};

/* Scores of a thread: neighbours; what is no entry is no number. */
template <int QUADS> struct held {
    float x[4 * QUADS];
    int first;
};

template <int QUADS> GPU_FN void load_held(const float *score, int nv, struct held<QUADS> *h)
{
    h->first = (int)threadIdx.x * 4 * QUADS;
    GPU_UNROLL
    for (int i = 0; i < QUADS; i++) {
        struct gpu_quad q = {};
        if (h->first + 4 * i < nv)
            q = gpu_load4(score + h->first + 4 * i);
        GPU_UNROLL
        for (int k = 0; k < 4; k++)
            h->x[4 * i + k] = q.v[k];
    }
}

/* Least and largest score; steps per unit between them, 0: not so. */
template <int QUADS>
GPU_FN float find_scale(const struct held<QUADS> *h, int nv, struct finder *f, float *least)
{
    float low = INFINITY, high = -INFINITY;
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++)
        if (h->first + i < nv) {
            low = fminf(low, h->x[i]);
            high = fmaxf(high, h->x[i]);
        }
    low = -wave_max(-low);
    high = wave_max(high);
    if (gpu_lane() == 0) {
        f->least[gpu_wave()] = low;
        f->most[gpu_wave()] = high;
    }
    for (int b = (int)threadIdx.x; b < BINS; b += CHOOSERS)
        f->hist[b] = 0;
    f->n = 0;
    gpu_sync();
    low = -wave_max(-f->least[gpu_lane() % (CHOOSERS / 32)]);
    high = wave_max(f->most[gpu_lane() % (CHOOSERS / 32)]);
    *least = low;
    return high - low > 0x1p-100f && high - low < 0x1p100f ? (float)(BINS - 1) / (high - low) : 0;
}

/* Never falls as x grows; what is no number is below all. */
GPU_FN int step_at(float x, float least, float scale)
{
    return x == x ? FST_MIN((int)((x - least) * scale), BINS - 1) : 0;
}

/* The step that holds the topk-th best. */
GPU_FN void find_step(uint32_t need, struct finder *f)
{
    enum { MINE = BINS / CHOOSERS };
    uint32_t all, n[MINE], mine = 0;
    int top = BINS - 1 - (int)threadIdx.x * MINE;
    for (int i = 0; i < MINE; i++)
        mine += n[i] = f->hist[top - i];
    uint32_t above = block_sum_before(mine, f->part, &all);
    for (int i = 0; i < MINE; i++) {
        if (above < need && need <= above + n[i]) {
            f->bin = top - i;
            f->above = above;
            f->count = n[i];
        }
        above += n[i];
    }
    gpu_sync();
}

/* Of the scores in the step: the need-th best is the last one kept. */
GPU_FN void find_last(uint32_t need, struct finder *f)
{
    int i = (int)threadIdx.x, n = (int)f->count;
    gpu_sync();
    if (i < n) {
        uint32_t key = f->key[i], before = 0;
        int entry = f->entry[i];
        for (int k = 0; k < n; k++)
            before += f->key[k] > key || (f->key[k] == key && f->entry[k] < entry);
        if (before == need - 1) {
            f->value = key;
            f->last = entry;
        }
    }
    gpu_sync();
}

template <int QUADS>
GPU_FN void write_held(const struct held<QUADS> *h, int nv, int32_t *sel, float *margin,
                       struct finder *f)
{
    uint32_t kept = 0, all, dropped = 0;
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++) {
        uint32_t u = gpu_ordered(h->x[i]);
        int e = h->first + i;
        if (e < nv && (u > f->value || (u == f->value && e <= f->last)))
            kept |= 1u << i;
        else if (e < nv)
            dropped = FST_MAX(dropped, u);
    }
    uint32_t at = block_sum_before((uint32_t)__builtin_popcount(kept), f->part, &all);
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++)
        if (kept >> i & 1)
            sel[at++] = h->first + i;
    if (!margin)
        return;
    dropped = block_most(dropped, f->part);
    if (threadIdx.x == 0)
        *margin = unordered(f->value) - unordered(dropped);
}

/* False: too many in the step, or no steps; nothing is written. */
template <int QUADS>
GPU_FN bool choose_held(const float *score, int nv, int topk, int32_t *sel, float *margin,
                        struct finder *f)
{
    struct held<QUADS> h;
    float least;
    load_held(score, nv, &h);
    float scale = find_scale(&h, nv, f, &least);
    if (scale == 0)
        return false;
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++)
        if (h.first + i < nv)
            atomicAdd(f->hist + step_at(h.x[i], least, scale), 1u);
    gpu_sync();
    find_step((uint32_t)topk, f);
    if (f->count > SOME)
        return false;
    GPU_UNROLL
    for (int i = 0; i < 4 * QUADS; i++)
        if (h.first + i < nv && step_at(h.x[i], least, scale) == f->bin) {
            uint32_t at = atomicAdd(&f->n, 1u); /* in any order: find_last knows none */
            f->key[at] = gpu_ordered(h.x[i]);
            f->entry[at] = h.first + i;
        }
    find_last((uint32_t)topk - f->above, f);
    write_held(&h, nv, sel, margin, f);
    return true;
}

MMA_APART void choose_crowd(const float *score, int nv, int topk, int32_t *sel, float *margin,
                            struct chooser *c)
{
    gpu_sync();
    choose(score, nv, topk, sel, margin, c);
}

GPU_FN void choose_any(const float *score, int nv, int topk, int32_t *sel, float *margin,
                       union choice_shared *s)
{
    bool done = false;
    if (nv <= FEW)
        done = choose_held<1>(score, nv, topk, sel, margin, &s->f);
    else if (nv <= MANY)
        done = choose_held<5>(score, nv, topk, sel, margin, &s->f);
    if (!done)
        choose_crowd(score, nv, topk, sel, margin, &s->c);
}

GPU_KERNEL void GPU_BOUNDS(CHOOSERS, 1) choose_kernel(struct index_job j)
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
        choose_any(j.score + row * j.ld, nv, j.topk, j.sel + (int64_t)t * j.topk,
                   j.margin ? j.margin + t : NULL, &s);
}

/* ---------------------------------------------------------------- launcher */

SM90_ENTRY(index_topk)
{
    int n = a->rows->n_rows;
    struct index_job j = index_start(a);
    if (n == 0)
        return FST_OK;
    if (a->max_entries <= a->topk && !a->scores) { /* every row takes all it sees */
        gpu_launch_early(choose_kernel, n, CHOOSERS, 0, s, j);
        return gpu_done("index_topk");
    }
    struct gpu_cut cut = gpu_scratch(s);
    int64_t rows = index_rows(n, a->max_entries), pages = div_up(a->max_entries, PAGE);
    j.score = gpu_take<float>(&cut, rows * j.ld);
    j.tall = (int)FST_MIN((int64_t)ROWS, div_up(n, a->rows->n_spans));
    for (j.first = 0; j.first < n; j.first += (int)rows) {
        j.n = (int)FST_MIN(rows, n - j.first);
        int64_t groups = div_up(j.n, j.tall);
        j.parts = (int)FST_MAX(1, FST_MIN(pages, FILL / groups));
        gpu_launch_early(score_kernel, groups * j.parts, THREADS, score_bytes(j.tall), s, j);
        gpu_launch_early(choose_kernel, j.n, CHOOSERS, 0, s, j);
    }
    return gpu_done("index_topk");
}
