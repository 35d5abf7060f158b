/* attention.cu - heads of a row over its window, compressed entries or draft block, in three launches.
 *
 * plan_kernel    one block per row: which stored row every key of every piece is.  Spans, pages and
 *                selections are read here alone.  Also packs the step's own rows as bf16.
 * score_kernel   a block takes 8 or 16 heads of a row and every n-th piece of it: keys in shared
 *                memory as pairs of bf16, 4 heads and 4 keys per thread, a quarter of the dims each.
 * value_kernel   a block takes 8 heads and 32 dims of a row and walks over all its pieces in order,
 *                with ref's running maximum; a thread adds up 4 heads and 8 dims for 4 keys of each
 *                piece.  So one row alone keeps n_heads * head_dim / 256 blocks busy.
 *
 * Scores wait in scratch, 64 per piece and head; rows go through in as many turns as it takes.
 *
 * Order of a score: dims 8i+32k .. +7 for i = 0..3 apart, k in order, the four as a tree.  Order of an
 * output: keys 4q .. 4q+3 of all pieces in order, then q = 0 .. 15 in order.  The denominator: 4 keys
 * as a tree, pieces in order, then 16 lanes as a tree. */
#include "kernels/gpu/keys.cuh"

enum {
    TILE = KEYS_PIECE,
    QUADS = 16,  /* fours of them */
    HEADS = 8,   /* of a block */
    DIMS = 32,   /* of a block of value_kernel */
    CHUNK = 256, /* dims in shared memory at a time, at most */
    THREADS = QUADS * HEADS,
    PLANNERS = 1024, /* one per key: its page number may come over the bus */
    FILL = 1056,     /* blocks that fill a large card */
    SPREAD_MAX = 16  /* blocks that share the pieces of a row and its heads */
};

struct attention_job {
    struct rows rows;
    struct kv_layer l;
    struct attention_args a; /* its rows and l are the host's: not to be followed */
    int64_t *at;             /* (rows of the launch, pieces, TILE) as rows_fetch takes them */
    int32_t *keys;           /* (rows of the launch, pieces) keys of a piece */
    int32_t *n_pieces;       /* (rows of the launch) */
    float *score;            /* (rows of the launch, pieces, n_heads, TILE); no key: -inf */
    uint16_t *own;           /* (rows of the step, head_dim) kv as bf16 */
    int rows_now;            /* rows of the launch */
    int pieces, first;       /* pieces of a row, at most; row of the step */
    int groups, spread;
};

/* ---------------------------------------------------------------- which keys */

GPU_FN void pack_row(const struct attention_job *j, int64_t t)
{
    for (int d = 4 * (int)threadIdx.x; d < j->a.head_dim; d += 4 * (int)blockDim.x) {
        struct gpu_quad x = gpu_load4(j->a.kv + t * j->a.head_dim + d);
        rows_store_bf16((uint8_t *)(j->own + t * j->a.head_dim + d), &x);
    }
}

/* The first launch has a block for every row of the step, to pack it. */
GPU_KERNEL void plan_kernel(struct attention_job j)
{
    gpu_start();
    int row = (int)blockIdx.x, t = j.first + row;
    if (j.first == 0)
        pack_row(&j, row);
    if (row >= j.rows_now)
        return;
    const struct row_at at = rows_at(&j.rows, t);
    struct range r[2];
    keys_ranges(&j.a, j.l.ratio, &at, keys_chosen(&j.a, j.l.ratio, t), r);
    int n = range_pieces(&r[0]) + range_pieces(&r[1]);
    ROWS_CHECK(n <= j.pieces);
    for (int i = (int)threadIdx.x; i < n * TILE; i += (int)blockDim.x) {
        int p = i / TILE;
        struct range of = keys_piece(r, p);
        /* places after the last key repeat it: what is there is a number, and counts for nothing */
        j.at[(int64_t)row * j.pieces * TILE + i] =
            keys_find(&j.a, &j.rows, &j.l, &at, t, of.kind, FST_MIN(of.lo + i % TILE, of.hi));
        if (i % TILE == 0)
            j.keys[(int64_t)row * j.pieces + p] = of.hi - of.lo + 1;
    }
    if (threadIdx.x == 0)
        j.n_pieces[row] = n;
}

/* ---------------------------------------------------------------- scores */

/* Queries of the block's heads as pairs of bf16, (heads, head_dim/2). */
GPU_FN void load_queries(const struct attention_job *j, int64_t t, int group, uint32_t *q)
{
    int dim = j->a.head_dim, heads = (int)blockDim.x / QUADS;
    for (int i = (int)threadIdx.x; i < heads * dim / 4; i += (int)blockDim.x) {
        int h = FST_MIN(group * heads + i / (dim / 4), j->a.n_heads - 1);
        struct gpu_quad x =
            gpu_load4(j->a.q + (t * j->a.n_heads + h) * dim + (int64_t)i % (dim / 4) * 4);
        q[2 * i] = gpu_pair(gpu_bf16(x.v[0]), gpu_bf16(x.v[1]));
        q[2 * i + 1] = gpu_pair(gpu_bf16(x.v[2]), gpu_bf16(x.v[3]));
    }
}

/* Dims d .. d+chunk-1 of the piece's keys, (TILE, line) in fours of pairs; UNITS loads at once. */
template <int UNITS, bool PAGED>
GPU_FN void load_tile(const struct attention_job *j, const int64_t *at, int d, int chunk, int line,
                      struct gpu_words *tile)
{
    int parts = chunk / 16, n = TILE * parts;
    for (int first = (int)threadIdx.x; first < n; first += UNITS * (int)blockDim.x) {
        struct rows_raw raw[UNITS];
        int64_t row[UNITS];
        for (int u = 0; u < UNITS; u++)
            row[u] = at[FST_MIN(first + u * (int)blockDim.x, n - 1) / parts];
        for (int u = 0; u < UNITS; u++) {
            int i = FST_MIN(first + u * (int)blockDim.x, n - 1);
            raw[u] = rows_fetch<PAGED>(&j->l, j->own, j->a.head_dim, row[u], d + i % parts * 16);
        }
        for (int u = 0; u < UNITS; u++) {
            int i = first + u * (int)blockDim.x;
            if (i < n)
                rows_unpack(&raw[u], tile + i / parts * line + i % parts * 2);
        }
    }
}

/* dot += the thread's quarter of the chunk's products. */
GPU_FN void products(const struct gpu_words *q, const struct gpu_words *tile, int q_line, int line,
                     int chunk, float dot[4][4])
{
    for (int o = (int)threadIdx.x % 4; o < chunk / 8; o += 4) {
        struct gpu_words a[4], b[4];
        for (int i = 0; i < 4; i++) {
            a[i] = q[i * q_line + o];
            b[i] = tile[i * line + o];
        }
        for (int w = 0; w < 4; w++)
            for (int h = 0; h < 4; h++)
                for (int k = 0; k < 4; k++) {
                    dot[h][k] = fmaf(gpu_low(a[h].w[w]), gpu_low(b[k].w[w]), dot[h][k]);
                    dot[h][k] = fmaf(gpu_high(a[h].w[w]), gpu_high(b[k].w[w]), dot[h][k]);
                }
    }
}

/* Add up the quarters; the lane of quarter h keeps and stores head h of its four. */
GPU_FN void store_scores(const struct attention_job *j, const float dot[4][4], int head, int quad,
                         int keys, float *score)
{
    int quarter = (int)threadIdx.x % 4;
    struct gpu_quad mine = {};
    for (int h = 0; h < 4; h++)
        for (int k = 0; k < 4; k++) {
            float v = dot[h][k];
            v += wave_xor(v, 1);
            v += wave_xor(v, 2);
            mine.v[k] = h == quarter ? v : mine.v[k];
        }
    for (int k = 0; k < 4; k++)
        mine.v[k] = 4 * quad + k < keys ? mine.v[k] * j->a.scale : -INFINITY;
    if (head + quarter < j->a.n_heads)
        gpu_store4(score + (int64_t)(head + quarter) * TILE + 4 * quad, mine);
}

template <int UNITS, bool PAGED> GPU_KERNEL void score_kernel(struct attention_job j)
{
    gpu_start();
    GPU_DYNAMIC(struct gpu_words, q);
    int dim = j.a.head_dim, chunk = FST_MIN(dim, CHUNK), heads = (int)blockDim.x / QUADS;
    int q_line = dim / 8, line = chunk / 8 + 1; /* one more: lanes meet no bank twice */
    struct gpu_words *tile = q + heads * q_line;
    int row = (int)blockIdx.x / j.spread / j.groups, group = (int)blockIdx.x / j.spread % j.groups;
    int quad = (int)threadIdx.x / 4 % QUADS, four = (int)threadIdx.x / TILE;
    int n = j.n_pieces[row];
    if ((int)blockIdx.x % j.spread >= n)
        return;
    load_queries(&j, j.first + row, group, q->w);
    for (int p = (int)blockIdx.x % j.spread; p < n; p += j.spread) {
        int64_t piece = (int64_t)row * j.pieces + p;
        float dot[4][4] = {};
        for (int d = 0; d < dim; d += chunk) {
            gpu_sync();
            load_tile<UNITS, PAGED>(&j, j.at + piece * TILE, d, chunk, line, tile);
            gpu_sync();
            products(q + 4 * four * q_line + d / 8, tile + 4 * quad * line, q_line, line, chunk,
                     dot);
        }
        store_scores(&j, dot, group * heads + 4 * four, quad, j.keys[piece],
                     j.score + piece * j.a.n_heads * TILE);
    }
}

/* ---------------------------------------------------------------- values */

enum { V_LINE = DIMS / 8 + 1, W_LINE = TILE + 4 };

struct value_tile {
    struct gpu_words v[TILE * V_LINE];     /* (TILE, DIMS) pairs */
    struct gpu_quad w[HEADS * W_LINE / 4]; /* (HEADS, TILE) weights */
    float shrink[HEADS];                   /* of the old sums, by the piece */
};
union value_shared {
    struct value_tile t;
    struct gpu_quad sum[QUADS * HEADS * DIMS / 4]; /* at the end */
};

/* A thread weighs 4 keys for one head. */
struct weigher {
    float top, den;
    int head, quad; /* of the block */
};

GPU_FN void weigh(struct weigher *g, struct gpu_quad s, struct value_tile *t)
{
    float top = fmaxf(fmaxf(s.v[0], s.v[1]), fmaxf(s.v[2], s.v[3]));
    top = fmaxf(g->top, wave_max(top, QUADS));
    float shrink = expf(g->top - top); /* 0 at the first piece */
    for (int k = 0; k < 4; k++)
        s.v[k] = expf(s.v[k] - top);
    g->den = fmaf(g->den, shrink, (s.v[0] + s.v[1]) + (s.v[2] + s.v[3]));
    g->top = top;
    for (int k = 0; k < 4; k++)
        s.v[k] = gpu_bf16(s.v[k]);
    t->w[g->head * (W_LINE / 4) + g->quad] = s;
    if (g->quad == 0)
        t->shrink[g->head] = shrink;
}

/* acc = acc*shrink + 4 keys, 4 heads, 8 dims; four: of heads, oct: of dims. */
GPU_FN void add_values(const struct value_tile *t, int quad, int four, int oct, float acc[4][8])
{
    struct gpu_quad w[4];
    for (int h = 0; h < 4; h++) {
        float shrink = t->shrink[4 * four + h];
        w[h] = t->w[(4 * four + h) * (W_LINE / 4) + quad];
        if (shrink != 1)
            for (int d = 0; d < 8; d++)
                acc[h][d] *= shrink;
    }
    for (int k = 0; k < 4; k++) {
        struct gpu_words v = t->v[(4 * quad + k) * V_LINE + oct];
        for (int h = 0; h < 4; h++)
            for (int i = 0; i < 4; i++) {
                acc[h][2 * i] = fmaf(w[h].v[k], gpu_low(v.w[i]), acc[h][2 * i]);
                acc[h][2 * i + 1] = fmaf(w[h].v[k], gpu_high(v.w[i]), acc[h][2 * i + 1]);
            }
    }
}

/* Dims d, d+1 of a head: over the denominator, bf16, rotated back. */
GPU_FN void store_output(const struct attention_job *j, int64_t t, int head, int d, float a,
                         float b, float total)
{
    int nope = j->a.head_dim - j->a.rope_dim;
    float *o = j->a.o + (t * j->a.n_heads + head) * j->a.head_dim + d;
    a = gpu_bf16(a / total);
    b = gpu_bf16(b / total);
    if (d >= nope) {
        const float *cs = j->a.cs + t * j->a.rope_dim + d - nope;
        float c = cs[0], s = cs[1], x = a, y = b;
        a = gpu_bf16(x * c + y * s);
        b = gpu_bf16(y * c - x * s);
    }
    o[0] = a;
    o[1] = b;
}

template <bool PAGED> GPU_KERNEL void value_kernel(struct attention_job j)
{
    gpu_start();
    GPU_SHARED union value_shared s;
    int me = (int)threadIdx.x, slices = j.a.head_dim / DIMS;
    int row = (int)blockIdx.x / slices / j.groups, group = (int)blockIdx.x / slices % j.groups;
    int d0 = (int)blockIdx.x % slices * DIMS, n = j.n_pieces[row];
    /* what a thread does: weighs, loads 16 values of a key, adds up */
    struct weigher g = {-INFINITY, 0, me / QUADS, me % QUADS};
    int head = FST_MIN(group * HEADS + g.head, j.a.n_heads - 1);
    int key = me / 2, part = me % 2, quad = me / HEADS, four = me / 4 % 2, oct = me % 4;
    const int64_t *at = j.at + (int64_t)row * j.pieces * TILE + key;
    int64_t step = (int64_t)j.a.n_heads * TILE;
    const float *score =
        j.score + (int64_t)row * j.pieces * step + (int64_t)head * TILE + 4 * g.quad;
    float acc[4][8] = {};
    /* the next piece is under way while one is added up, and the place of the one after it */
    int64_t next = at[FST_MIN(1, n - 1) * TILE];
    struct rows_raw raw = rows_fetch<PAGED>(&j.l, j.own, j.a.head_dim, at[0], d0 + 16 * part);
    struct gpu_quad scores = gpu_load4(score);
    for (int p = 0; p < n; p++) {
        gpu_sync();
        weigh(&g, scores, &s.t);
        rows_unpack(&raw, s.t.v + key * V_LINE + 2 * part);
        gpu_sync();
        if (p + 1 < n) {
            raw = rows_fetch<PAGED>(&j.l, j.own, j.a.head_dim, next, d0 + 16 * part);
            scores = gpu_load4(score + (p + 1) * step);
            next = at[FST_MIN(p + 2, n - 1) * TILE];
        }
        add_values(&s.t, quad, four, oct, acc);
    }
    float den = wave_sum(g.den, QUADS);
    den += expf(j.a.sink[head] - g.top);
    gpu_sync();
    for (int h = 0; h < 4; h++)
        for (int i = 0; i < 2; i++) {
            struct gpu_quad x;
            for (int d = 0; d < 4; d++)
                x.v[d] = acc[h][4 * i + d];
            s.sum[((quad * HEADS + 4 * four + h) * DIMS + 8 * oct) / 4 + i] = x;
        }
    gpu_sync();
    /* a pair of dims of the head whose denominator the thread has */
    const float *sum = s.sum->v + g.head * DIMS + 2 * g.quad;
    float a = 0, b = 0;
    for (int q = 0; q < QUADS; q++) {
        a += sum[q * HEADS * DIMS];
        b += sum[q * HEADS * DIMS + 1];
    }
    if (group * HEADS + g.head < j.a.n_heads)
        store_output(&j, j.first + row, head, d0 + 2 * g.quad, a, b, den);
}

/* ---------------------------------------------------------------- launcher */

/* Scratch of a row of a launch; of the step's own rows; what rounding the pieces up may take. */
static int64_t row_bytes(int64_t pieces, int n_heads)
{
    return 4 + pieces * (4 + 8 * TILE + 4 * (int64_t)TILE * n_heads);
}
static int64_t own_bytes(int64_t n_rows, int head_dim)
{
    return 2 * n_rows * head_dim;
}
enum { ROUNDING = 5 * 256 };

size_t gpu_attention_scratch(const struct kernel_limits *l)
{
    int64_t row = row_bytes(keys_limit_pieces(l), l->n_heads);
    int64_t rows = FST_MAX(1, FST_MIN(l->n_rows, KEYS_SCRATCH / row));
    return (size_t)(rows * row + own_bytes(l->n_rows, l->head_dim) + ROUNDING);
}

/* Rows first .. first+n-1. */
template <bool PAGED> static void launch_rows(struct attention_job *j, int64_t n, struct stream *s)
{
    int heads = n * j->a.n_heads >= 2 * HEADS * FILL ? 2 * HEADS : HEADS;
    int dim = j->a.head_dim, line = FST_MIN(dim, CHUNK) / 8 + 1;
    size_t shared = (size_t)(heads * (dim / 8) + TILE * line) * sizeof(struct gpu_words);
    j->rows_now = (int)n;
    gpu_launch_early(plan_kernel, j->first ? n : j->rows.n_rows, PLANNERS, 0, s, *j);
    j->groups = (int)div_up(j->a.n_heads, heads);
    j->spread = (int)FST_MAX(1, FST_MIN(FST_MIN(j->pieces, SPREAD_MAX), FILL / (n * j->groups)));
    /* TILE * CHUNK / 16 loads of 16 values, in one turn of all threads */
    gpu_launch_early(heads == HEADS ? score_kernel<8, PAGED> : score_kernel<4, PAGED>,
                     n * j->groups * j->spread, heads * QUADS, shared, s, *j);
    j->groups = (int)div_up(j->a.n_heads, HEADS);
    gpu_launch_early(value_kernel<PAGED>, n * j->groups * (dim / DIMS), THREADS, 0, s, *j);
}

GPU_ENTRY(attention)
{
    int64_t n = a->rows->n_rows, pieces = keys_most_pieces(a), row = row_bytes(pieces, a->n_heads);
    struct gpu_cut cut = gpu_scratch(s);
    struct attention_job j = {};
    keys_check(a);
    FST_ASSERT(a->head_dim % DIMS == 0);
    FST_ASSERT(a->head_dim % FST_MIN(a->head_dim, CHUNK) == 0);
    if (n == 0)
        return FST_OK;
    int64_t left = (int64_t)cut.left - own_bytes(n, a->head_dim) - ROUNDING;
    int64_t rows = FST_MIN(n, left / row);
    FST_ASSERT(rows > 0);
    j.rows = *a->rows;
    j.l = *a->l;
    j.a = *a;
    j.pieces = (int)pieces;
    j.own = gpu_take<uint16_t>(&cut, n * a->head_dim);
    j.at = gpu_take<int64_t>(&cut, rows * pieces * TILE);
    j.keys = gpu_take<int32_t>(&cut, rows * pieces);
    j.n_pieces = gpu_take<int32_t>(&cut, rows);
    j.score = gpu_take<float>(&cut, rows * pieces * a->n_heads * TILE);
    for (j.first = 0; j.first < n; j.first += (int)rows)
        if (a->l->format == ROW_PAGED)
            launch_rows<true>(&j, FST_MIN(rows, n - j.first), s);
        else
            launch_rows<false>(&j, FST_MIN(rows, n - j.first), s);
    return gpu_done("attention");
}
