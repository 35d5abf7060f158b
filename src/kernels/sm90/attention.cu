/* attention.cu - heads of a row over its window, compressed entries or draft block, on Hopper.
 *
 * score_kernel   a block takes 64 heads of a row and every n-th piece of its keys: S = Q K^T, weights
 *                of the piece against its own maximum, as bf16 in the order in which the next product
 *                takes them, into scratch.  Few rows: every piece has a block.
 * value_kernel   a block takes 64 heads and 64 or 256 dims of a row and goes through its pieces in
 *                order: O += P V.
 * whole_kernel   both for one row in one block, nothing in scratch: where there are rows enough.
 *
 * Two warpgroups have half of a piece's keys each for S, and half of the dims for O.  Maxima are
 * powers of two: of a piece 2^ceil(log2 e^s), of the pieces so far the largest of theirs.  So weights and sums
 * change their scale without rounding, whoever does it: all three kernels give the same bits, and
 * who takes what may depend on the batch.
 *
 * Order of a score: k16 steps of dims in order, in one sum.  Of an output: k16 steps of keys, pieces in
 * order, in one sum.  Of a denominator: 8 keys of a thread, 4 threads as a tree, halves of a piece,
 * pieces in order. */
#include "kernels/gpu/keys.cuh"
#include "kernels/sm90/mma.cuh"

enum {
    TILE = KEYS_PIECE,
    DIM = 512,
    HEADS = 64, /* of a block; absent ones are zeros */
    THREADS = 2 * MMA_GROUP,
    WAVES = THREADS / 32,
    PARTS = DIM / 16, /* 16 values each: what a lane loads of a key */
    SCOUTS = TILE,    /* threads that look for keys while the others load queries */
    UNITS = TILE / WAVES,
    BLOCK_BYTES = TILE * MMA_LINE, /* 64 rows of 64 values */
    TILE_BYTES = DIM / MMA_BLOCK * BLOCK_BYTES,
    STEPS = TILE / 16,
    WINDOW = 1024,                  /* places of keys in shared memory at a time */
    SCORE_FILL = MMA_SIZE(132, 12), /* blocks of score_kernel, one per processor */
    SLICE_FILL = 2 * SCORE_FILL,    /* of value_kernel<1>, two */
    WHOLE_FROM = MMA_SIZE(72, 16),  /* blocks of whole_kernel that keep a card busy */
    OWN_FROM = MMA_SIZE(32, 8)      /* rows from which the step's own are packed as bf16 */
};
#define NO_KEY INT32_MIN

/* Of a piece and 64 heads: the exponent of its maximum, sums of the weights of its halves. */
struct piece_stat {
    float top[HEADS], den[2][HEADS];
};

struct attention_sm90_job {
    struct rows rows;
    struct kv_layer l;
    struct attention_args a; /* its rows and l are the host's: not to be followed */
    /* by row of the launch, group of heads, piece */
    struct gpu_words *weight; /* (STEPS, MMA_GROUP) A of the second product */
    struct piece_stat *stat;
    uint16_t *own;     /* NULL, or (rows of the step, DIM) kv as bf16 */
    float scale;       /* of scores, log2 e in it */
    int first, pieces; /* row of the step; pieces of a row, at most */
    int groups, spread;
};

/* ---------------------------------------------------------------- keys */

/* Where a block is: its row, and the pieces of the row. */
struct place {
    struct row_at at;
    struct range r[2];
    int t, row, group, n; /* row of the step, of the launch; heads; pieces */
};

/* Read by every lane of the waves that call. */
GPU_FN void find_place(const struct attention_sm90_job *j, int block, struct place *w)
{
    const struct rows *r = &j->rows;
    w->row = block / j->groups;
    w->group = block % j->groups;
    w->t = j->first + w->row;
    int span = r->span[w->t];
    w->at.slot = r->slot[w->t];
    w->at.pos = r->pos[w->t];
    w->at.first = r->span_first[span];
    w->at.last = r->span_first[span + 1];
    w->at.start = w->at.pos - (w->t - w->at.first);
    keys_ranges(&j->a, j->l.ratio, &w->at, w->t, w->r);
    w->n = range_pieces(&w->r[0]) + range_pieces(&w->r[1]);
    ROWS_CHECK(w->n <= j->pieces);
}

GPU_FN int piece_keys(const struct place *w, int p)
{
    struct range of = keys_piece(w->r, p);
    return of.hi - of.lo + 1;
}

/* A key on its way: where it lies depends on its page, and that on the row's choice of entries.  Each of
 * these loads takes as long as hundreds of instructions: what others there are goes in between. */
struct seek {
    enum range_kind kind;
    int32_t x, page; /* position or entry; -1: none */
};

/* Key i of piece p. */
GPU_FN void seek_start(const struct attention_sm90_job *j, const struct place *w, int p, int i,
                       struct seek *k)
{
    struct range of = keys_piece(w->r, p);
    k->kind = of.kind;
    k->x = -1;
    if (p >= w->n || of.lo + i > of.hi)
        return;
    k->x = of.lo + i;
    if (k->kind == RANGE_SELECTED)
        k->x = j->a.sel[(int64_t)w->t * j->a.topk + k->x];
}
GPU_FN void seek_page(const struct attention_sm90_job *j, const struct place *w, struct seek *k)
{
    k->page = 0;
    if (k->kind != RANGE_POSITIONS && k->x >= 0)
        k->page = rows_pages(&j->rows, w->at.slot)[k->x >> rows_page_shift(&j->l)];
}
GPU_FN int32_t seek_end(const struct attention_sm90_job *j, const struct place *w,
                        const struct seek *k)
{
    if (k->x < 0)
        return NO_KEY;
    if (k->kind != RANGE_POSITIONS)
        return (int32_t)rows_of_page(&j->l, k->page, k->x);
    return (int32_t)keys_find(&j->a, &j->rows, &j->l, &w->at, w->t, k->kind, k->x);
}

/* At once. */
GPU_FN int32_t find_key(const struct attention_sm90_job *j, const struct place *w, int p, int i)
{
    struct seek k;
    seek_start(j, w, p, i, &k);
    seek_page(j, w, &k);
    return seek_end(j, w, &k);
}

GPU_FN bool is_scout(void)
{
    return (int)threadIdx.x < SCOUTS;
}

/* What a lane loads of a key: 16 codes and all scales of the row, or 16 values as bf16. */
struct raw_part {
    struct gpu_words a, b;
};

GPU_FN bool has_codes(const struct attention_sm90_job *j, int32_t at, int part)
{
    return at >= 0 && j->l.format == ROW_FP8 && part < ROWS_FP8_NOPE / 16;
}
/* No row of the layer, nor one of the step packed as bf16. */
GPU_FN bool has_none(const struct attention_sm90_job *j, int32_t at)
{
    return at < 0 && (at == NO_KEY || !j->own);
}

/* Where a lane's 16 values of the rows of the layer, or of the step, are: of row 0, what it loads first and
 * from there on second; bytes of a row. */
struct source {
    const uint8_t *p;
    int second, line;
};
struct sources {
    struct source layer, own;
};

GPU_FN struct sources find_sources(const struct attention_sm90_job *j, int part)
{
    struct sources s;
    const uint8_t *own = (const uint8_t *)j->own;
    s.own = {own ? own + 32 * part : own, 16, 2 * DIM};
    s.layer = {j->l.nope + 32 * part, 16, 2 * DIM};
    if (has_codes(j, 0, part))
        s.layer = {j->l.nope + 16 * part, ROWS_FP8_NOPE - 16 * part, ROWS_FP8_BYTES};
    else if (j->l.format == ROW_FP8)
        s.layer = {j->l.rope + 32 * part - 2 * ROWS_FP8_NOPE, 16, ROWS_ROPE_BYTES};
    return s;
}

/* 16 values of a key as they lie in memory; anything where there are none.  No branches, and what is
 * loaded is not looked at: lanes of a wave that load the same register behind a branch wait for each
 * other's loads. */
GPU_FN struct raw_part fetch(const struct sources *s, int32_t at)
{
    bool mine = at < 0 && at != NO_KEY && s->own.p;
    int row = at >= 0 ? at : mine ? -1 - at : 0;
    const uint8_t *p = mine ? s->own.p : s->layer.p;
    int second = mine ? s->own.second : s->layer.second;
    struct raw_part r;
    p += (int64_t)row * (mine ? s->own.line : s->layer.line);
    r.a = gpu_load16(p);
    r.b = gpu_load16(p + second);
    return r;
}

/* Towards the card's cache: a row of the layer that will be wanted soon. */
GPU_FN void hint_row(const struct attention_sm90_job *j, int32_t at)
{
    bool fp8 = j->l.format == ROW_FP8;
    int line = fp8 ? ROWS_FP8_BYTES : 2 * DIM;
    if (at < 0)
        return;
    for (int i = 0; i < line; i += MMA_LINE)
        gpu_prefetch(j->l.nope + (int64_t)at * line + i);
    if (fp8)
        gpu_prefetch(j->l.rope + (int64_t)at * ROWS_ROPE_BYTES);
}

GPU_FN void round_own(const float *x, struct gpu_words out[2])
{
    for (int i = 0; i < 4; i++) {
        struct gpu_quad v = gpu_load4(x + 4 * i);
        out[i / 2].w[i % 2 * 2] = mma_pair(v.v[0], v.v[1]);
        out[i / 2].w[i % 2 * 2 + 1] = mma_pair(v.v[2], v.v[3]);
    }
}

/* Code of the scale of 16 codes. */
GPU_FN uint32_t scale_code(const struct raw_part *r, int part)
{
    const uint32_t *w = r->b.w;
    uint32_t pair = part < 16 ? (part < 8 ? w[0] : w[1]) : part < 24 ? w[2] : w[3];
    return pair >> (part / 4 % 2 * 16) & 255;
}

/* The same 16 values into row `key` of a block.  Lanes of odd blocks write their second chunk first, so that 8
 * neighbours meet no bank twice. */
GPU_FN void put(const struct attention_sm90_job *j, const struct raw_part *r, int32_t at, int part,
                uint8_t *block, int key, int swap)
{
    struct gpu_words out[2] = {r->a, r->b};
    if (has_codes(j, at, part))
        mma_unpack(r->a, scale_code(r, part), out);
    else if (has_none(j, at)) {
        out[0] = out[1] = {};
        if (at != NO_KEY)
            round_own(j->a.kv + (int64_t)(-1 - at) * DIM + 16 * part, out);
    }
    int c = part % 4 * 2;
    mma_store16(block + mma_place(key, c + swap), swap ? out[1] : out[0]);
    mma_store16(block + mma_place(key, c + 1 - swap), swap ? out[0] : out[1]);
}

/* A wave loads whole keys: wave w has w, w+8, .. */
GPU_FN void my_keys(const int32_t *at, int32_t mine[UNITS])
{
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++)
        mine[u] = at[gpu_wave() + u * WAVES];
}
GPU_FN void fetch_tile(const struct attention_sm90_job *j, const int32_t *at,
                       struct raw_part raw[UNITS])
{
    int32_t mine[UNITS];
    struct sources s = find_sources(j, gpu_lane());
    my_keys(at, mine);
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++)
        raw[u] = fetch(&s, mine[u]);
}
/* The wave's u-th key. */
GPU_FN void put_key(const struct attention_sm90_job *j, int32_t at, const struct raw_part *raw,
                    int u, uint8_t *tile)
{
    int part = gpu_lane(), key = gpu_wave() + u * WAVES;
    put(j, raw, at, part, tile + part / 4 * BLOCK_BYTES, key, part / 4 & 1);
}

/* ---------------------------------------------------------------- queries */

/* The same of packed queries: chunks of 8 values as they are. */
GPU_FN void load_packed(const struct attention_sm90_job *j, int64_t t, int group, uint8_t *q)
{
    enum { AT_ONCE = 8, CHUNKS = DIM / 8, LOADERS = THREADS - SCOUTS };
    int heads = FST_MIN(j->a.n_heads - group * HEADS, (int)HEADS);
    const uint8_t *x = (const uint8_t *)j->a.q + (t * j->a.n_heads + group * HEADS) * DIM * 2;
    for (int first = (int)threadIdx.x - SCOUTS; first < HEADS * CHUNKS;
         first += AT_ONCE * LOADERS) {
        struct gpu_words v[AT_ONCE];
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            int at = first + i * LOADERS;
            v[i] = {};
            if (at < heads * CHUNKS)
                v[i] = gpu_load16(x + at * 16);
        }
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            int at = first + i * LOADERS, h = at / CHUNKS, c = at % CHUNKS;
            if (h < HEADS)
                mma_store16(q + c / 8 * BLOCK_BYTES + mma_place(h, c % 8), v[i]);
        }
    }
}

/* The waves that do not look for keys load the row's queries: a wave takes whole heads, AT_ONCE of them
 * under way, neighbours neighbouring quads.  From one quad to the next only constants are added to
 * addresses: there are 85 quads a thread. */
GPU_FN void load_queries(const struct attention_sm90_job *j, int64_t t, int group, uint8_t *q)
{
    enum { AT_ONCE = 6, QUADS = DIM / 128, LOADERS = WAVES - SCOUTS / 32 };
    int lane = gpu_lane(), heads = FST_MIN(j->a.n_heads - group * HEADS, (int)HEADS);
    const float *x = j->a.q + (t * j->a.n_heads + group * HEADS) * DIM + 4 * lane;
    q += lane / 16 * BLOCK_BYTES + lane % 2 * 8;
    for (int first = gpu_wave() - SCOUTS / 32; first < HEADS; first += AT_ONCE * LOADERS) {
        struct gpu_quad v[AT_ONCE * QUADS];
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE * QUADS; i++) {
            int h = first + i / QUADS * LOADERS;
            v[i] = {};
            if (h < heads)
                v[i] = gpu_load4(x + h * DIM + i % QUADS * 128);
        }
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE * QUADS; i++) {
            int h = first + i / QUADS * LOADERS;
            uint8_t *to = q + mma_place(h, lane % 16 / 2) + i % QUADS * 2 * BLOCK_BYTES;
            struct rows_half o = {{mma_pair(v[i].v[0], v[i].v[1]), mma_pair(v[i].v[2], v[i].v[3])}};
            if (h < HEADS)
                *(struct rows_half *)(void *)to = o;
        }
    }
}

/* ---------------------------------------------------------------- scores and weights */

GPU_FN int group_wave(void) /* of the warpgroup */
{
    return gpu_wave() % 4;
}
GPU_FN int my_half(void)
{
    return gpu_wave() / 4;
}
GPU_FN int my_head(void) /* and the one 8 further */
{
    return 16 * group_wave() + gpu_lane() / 4;
}

/* Scores of this warpgroup's 32 keys: under way.  Meanwhile the next tile, unless NULL, is unpacked: a
 * step of the product takes 50 clocks, bound by shared memory, and a key of the tile about 300; a
 * warpgroup that issues all steps at once waits for most of them. */
GPU_FN void start_scores(const struct attention_sm90_job *j, const uint8_t *q, const uint8_t *tile,
                         float (&s)[16], const int32_t *at, const struct raw_part raw[UNITS],
                         uint8_t *next)
{
    enum { EACH = DIM / 16 / UNITS };
    mma_tile a = mma_tile_of(q, BLOCK_BYTES);
    mma_tile b = mma_tile_of(tile + my_half() * (BLOCK_BYTES / 2), BLOCK_BYTES);
    int32_t mine[UNITS];
    my_keys(at, mine);
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        s[i] = 0;
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++) {
        wgmma_begin();
        GPU_UNROLL
        for (int k = u * EACH; k < (u + 1) * EACH; k++) {
            int from = k / 4 * BLOCK_BYTES + k % 4 * MMA_STEP;
            mma_ss(s, mma_ahead(a, from), mma_ahead(b, from));
        }
        if (u == UNITS - 1)
            wgmma_end();
        if (next)
            put_key(j, mine[u], &raw[u], u, next);
    }
}

/* Scores in units of log2, keys that are none at -inf; the largest of this half, for the other. */
GPU_FN void find_tops(const struct attention_sm90_job *j, int keys, float (&s)[16],
                      float top[2][HEADS])
{
    float most[2] = {-INFINITY, -INFINITY};
    GPU_UNROLL
    for (int i = 0; i < 16; i++) {
        int key = 32 * my_half() + i / 4 * 8 + gpu_lane() % 4 * 2 + i % 2;
        s[i] = key < keys ? s[i] * j->scale : -INFINITY;
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
    }
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        most[r] = wave_max(most[r], 4);
        if (gpu_lane() % 4 == 0)
            top[my_half()][my_head() + 8 * r] = most[r];
    }
}

/* Weights of this half against the piece's power of two, as A of its two steps; their sums. */
GPU_FN void find_weights(const float top[2][HEADS], const float (&s)[16], float most[2],
                         float den[2], uint32_t a[2][4])
{
    float e[16];
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        int h = my_head() + 8 * r;
        most[r] = ceilf(fmaxf(fmaxf(top[0][h], top[1][h]), -0x1p30f));
        den[r] = 0;
    }
    GPU_UNROLL
    for (int i = 0; i < 16; i++) {
        e[i] = exp2f(s[i] - most[i / 2 % 2]);
        den[i / 2 % 2] += e[i];
    }
    GPU_UNROLL
    for (int r = 0; r < 2; r++)
        den[r] = wave_sum(den[r], 4);
    GPU_UNROLL
    for (int i = 0; i < 8; i++)
        a[i / 4][i % 4] = mma_pair(e[2 * i], e[2 * i + 1]);
}

/* ---------------------------------------------------------------- values */

/* What a thread knows of its two heads: the exponent that its sums are relative to, the denominators. */
struct weigher {
    float top[2], den[2];
};

/* 2^k; k <= 0, or no number. */
GPU_FN float power(float k)
{
    return gpu_float((uint32_t)((int)fmaxf(k, -127) + 127) << 23);
}

/* A piece comes in: factors for the sums so far, and for its weights. */
GPU_FN void weigh(struct weigher *g, const float top[2], const float den[2], float shrink[2],
                  uint32_t factor[2])
{
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        float most = fmaxf(g->top[r], top[r]), f = power(top[r] - most);
        shrink[r] = power(g->top[r] - most); /* 0 at the first piece */
        factor[r] = gpu_pair(f, f);
        g->den[r] = fmaf(g->den[r], shrink[r], den[r] * f);
        g->top[r] = most;
    }
}

template <int N> GPU_FN void shrink_sums(float (&o)[N], const float shrink[2])
{
    if (shrink[0] == 1 && shrink[1] == 1)
        return;
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        o[i] *= shrink[i / 2 % 2];
}

GPU_FN void scale_weights(uint32_t (&a)[STEPS][4], const uint32_t factor[2])
{
    GPU_UNROLL
    for (int i = 0; i < 4 * STEPS; i++)
        a[i / 4][i % 4] = mma_times(a[i / 4][i % 4], factor[i % 2]);
}

/* o += the piece's weights times its rows: under way.  block_bytes: between blocks of 64 dims. */
template <int N>
GPU_FN void start_values(const uint32_t (&a)[STEPS][4], const uint8_t *rows, int block_bytes,
                         float (&o)[N])
{
    mma_tile b = mma_tile_of(rows, (uint32_t)block_bytes);
    wgmma_begin();
    GPU_UNROLL
    for (int k = 0; k < STEPS; k++)
        mma_rs<1>(o, a[k], mma_ahead(b, k * 16 * MMA_LINE));
    wgmma_end();
}

/* Rope dims are among the last TURNS blocks of 8 of the last sums; of those, cosine and sine of this
 * thread's pairs.  The same for all heads, so they are read once, before the first is needed. */
enum { TURNS = 8 };
struct turn {
    float c, s;
};

GPU_FN void load_turns(const struct attention_sm90_job *j, int64_t t, int d, struct turn x[TURNS])
{
    int nope = DIM - j->a.rope_dim;
    GPU_UNROLL
    for (int i = 0; i < TURNS; i++) {
        const float *cs = j->a.cs + t * j->a.rope_dim + d + 8 * i - nope;
        x[i] = {1, 0};
        if (d + 8 * i >= nope)
            x[i] = {cs[0], cs[1]};
    }
}

/* A pair of neighbouring dims, over the denominator; rotated back.  A division per value, and turns read
 * where they were needed, took 30 % of the time of 128 rows. */
GPU_FN struct rows_half find_pair(float a, float b, float over)
{
    struct rows_half h = {{gpu_bits(gpu_bf16(a * over)), gpu_bits(gpu_bf16(b * over))}};
    return h;
}
GPU_FN struct rows_half find_turned(float a, float b, float over, bool rope, struct turn w)
{
    float x = gpu_bf16(a * over), y = gpu_bf16(b * over);
    a = gpu_bf16(x * w.c + y * w.s);
    b = gpu_bf16(y * w.c - x * w.s);
    struct rows_half h = {{gpu_bits(rope ? a : x), gpu_bits(rope ? b : y)}};
    return h;
}

/* One over the denominator, the sink in it. */
GPU_FN float find_over(const struct attention_sm90_job *j, const struct weigher *g, int head, int r)
{
    float sink = head < j->a.n_heads ? j->a.sink[head] : 0;
    return 1 / (g->den[r] + exp2f(sink * 1.44269504f - g->top[r]));
}

template <int N>
GPU_FN void store_output(const struct attention_sm90_job *j, const struct place *w,
                         const struct weigher *g, int d0, const float (&o)[N])
{
    enum { PIECES = N / 4, PLAIN = PIECES - TURNS, EACH = MMA_BLOCK / 8 };
    int head = w->group * HEADS + my_head(), d = d0 + gpu_lane() % 4 * 2;
    struct turn turn[TURNS];
    load_turns(j, w->t, d + 8 * PLAIN, turn);
    float over[2] = {find_over(j, g, head, 0), find_over(j, g, head + 8, 1)};
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        int64_t at = ((int64_t)w->t * j->a.n_heads + head + 8 * r) * DIM;
        struct rows_half h[PIECES];
        if (head + 8 * r >= j->a.n_heads)
            continue;
        GPU_UNROLL
        for (int k = 0; k < PIECES; k++)
            h[k] = k < PLAIN ? find_pair(o[4 * k + 2 * r], o[4 * k + 2 * r + 1], over[r])
                             : find_turned(o[4 * k + 2 * r], o[4 * k + 2 * r + 1], over[r],
                                           d + 8 * k >= DIM - j->a.rope_dim, turn[k % TURNS]);
        if (!j->a.packed) {
            GPU_UNROLL
            for (int k = 0; k < PIECES; k++)
                *(struct rows_half *)(void *)(j->a.o + at + d + 8 * k) = h[k];
            continue;
        }
        /* of 64 dims a thread has 8 pairs; packed, every second of them are neighbours */
        uint8_t *to = (uint8_t *)j->a.o + 2 * (at + d0) + gpu_lane() % 4 * 16;
        GPU_UNROLL
        for (int i = 0; i < PIECES / 4; i++) {
            struct gpu_words p;
            GPU_UNROLL
            for (int q = 0; q < 4; q++) {
                const struct rows_half &x = h[i / 2 * EACH + 2 * q + i % 2];
                p.w[q] = gpu_pair(gpu_float(x.w[0]), gpu_float(x.w[1]));
            }
            mma_store16(to + i * 64, p);
        }
    }
}

/* ---------------------------------------------------------------- score_kernel */

struct score_shared {
    struct place w;
    int32_t at[2][TILE];
    float top[2][2][HEADS]; /* by turn, half */
};
enum { SCORE_BYTES = 3 * TILE_BYTES + MMA_ALIGN + (int)sizeof(struct score_shared) };

/* A turn of a block: scores of piece p, whose tile is there; meanwhile the tile of the next one is
 * unpacked, and then the loads of the one after it go out. */
struct turns {
    uint8_t *q, *tile; /* two, one after another */
    struct score_shared *s;
    int step; /* between pieces of the block */
};

GPU_FN struct turns take_shared(uint8_t *bytes, int step)
{
    struct turns b;
    b.q = mma_aligned(bytes);
    b.tile = b.q + TILE_BYTES;
    b.s = (struct score_shared *)(void *)(b.tile + 2 * TILE_BYTES);
    b.step = step;
    return b;
}

/* Where the block is, its queries, the tile of its first piece p, and the loads of the next one under
 * way.  p may be beyond the row's pieces: then nothing else is there. */
GPU_FN void first_turn(const struct attention_sm90_job *j, int block, const struct turns *b, int p,
                       struct raw_part raw[UNITS])
{
    const struct place *w = &b->s->w;
    if (is_scout()) {
        struct place mine;
        struct seek k[2];
        find_place(j, block, &mine);
        GPU_UNROLL
        for (int i = 0; i < 2; i++)
            seek_start(j, &mine, p + i * b->step, (int)threadIdx.x, &k[i]);
        GPU_UNROLL
        for (int i = 0; i < 2; i++)
            seek_page(j, &mine, &k[i]);
        GPU_UNROLL
        for (int i = 0; i < 2; i++) {
            int32_t at = seek_end(j, &mine, &k[i]);
            b->s->at[i][threadIdx.x] = at;
            hint_row(j, at); /* the queries are not there yet */
        }
        if (threadIdx.x == 0)
            b->s->w = mine;
    } else if (j->a.packed)
        load_packed(j, j->first + block / j->groups, block % j->groups, b->q);
    else
        load_queries(j, j->first + block / j->groups, block % j->groups, b->q);
    gpu_sync();
    if (p >= w->n)
        return;
    fetch_tile(j, b->s->at[0], raw);
    int32_t mine[UNITS];
    my_keys(b->s->at[0], mine);
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++)
        put_key(j, mine[u], &raw[u], u, b->tile);
    if (p + b->step < w->n)
        fetch_tile(j, b->s->at[1], raw);
    shared_to_wgmma();
    gpu_sync();
}

/* Scores of piece p, turn i.  Ends behind a barrier, with the next tile in place. */
GPU_FN void one_turn(const struct attention_sm90_job *j, const struct place *w,
                     const struct turns *b, int p, int i, struct raw_part raw[UNITS],
                     float (&s)[16])
{
    int next = p + b->step, lane = (int)threadIdx.x;
    struct seek k = {};
    if (is_scout())
        seek_start(j, w, next + b->step, lane, &k);
    start_scores(j, b->q, b->tile + i % 2 * TILE_BYTES, s, b->s->at[(i + 1) % 2], raw,
                 next < w->n ? b->tile + (i + 1) % 2 * TILE_BYTES : NULL);
    if (next < w->n)
        shared_to_wgmma();
    if (is_scout())
        seek_page(j, w, &k);
    wgmma_wait<0>();
    wgmma_hold(s);
    find_tops(j, piece_keys(w, p), s, b->s->top[i % 2]);
    if (is_scout())
        b->s->at[i % 2][lane] = seek_end(j, w, &k);
    gpu_sync();
    if (next + b->step < w->n)
        fetch_tile(j, b->s->at[i % 2], raw);
}

GPU_FN void store_weights(const struct attention_sm90_job *j, const struct place *w, int p,
                          const float most[2], const float den[2], const uint32_t a[2][4])
{
    int64_t piece = ((int64_t)w->row * j->groups + w->group) * j->pieces + p;
    struct gpu_words *to = j->weight + piece * STEPS * MMA_GROUP + (int)threadIdx.x % MMA_GROUP;
    struct piece_stat *stat = j->stat + piece;
    for (int k = 0; k < 2; k++) {
        struct gpu_words x = {{a[k][0], a[k][1], a[k][2], a[k][3]}};
        to[(2 * my_half() + k) * MMA_GROUP] = x;
    }
    GPU_UNROLL
    for (int r = 0; r < 2 && gpu_lane() % 4 == 0; r++) {
        stat->top[my_head() + 8 * r] = most[r]; /* both halves the same */
        stat->den[my_half()][my_head() + 8 * r] = den[r];
    }
}

GPU_KERNEL void GPU_BOUNDS(THREADS, 1) score_kernel(struct attention_sm90_job j)
{
    gpu_wait_before();
    gpu_let_next(); /* behind the wait: value_kernel reads keys before its own */
    GPU_DYNAMIC(uint8_t, bytes);
    int p = (int)blockIdx.x % j.spread;
    struct turns b = take_shared(bytes, j.spread);
    struct raw_part raw[UNITS];
    const struct place *w = &b.s->w;
    first_turn(&j, (int)blockIdx.x / j.spread, &b, p, raw);
    for (int i = 0; p < w->n; p += j.spread, i++) {
        float s[16], most[2], den[2];
        uint32_t a[2][4];
        one_turn(&j, w, &b, p, i, raw, s);
        find_weights(b.s->top[i % 2], s, most, den, a);
        store_weights(&j, w, p, most, den, a);
    }
}

/* ---------------------------------------------------------------- value_kernel */

/* Stages of 64*PIECES keys and 64*BLOCKS dims; BLOCKS 1: one warpgroup multiplies, both load. */
template <int BLOCKS> struct value_shape {
    enum {
        PIECES = 4 / BLOCKS,
        KEYS = PIECES * TILE,
        LINE = BLOCKS * 4, /* lanes of a key */
        LOADS = KEYS * LINE / THREADS,
        ROWS = THREADS / LINE,
        BYTES = KEYS * MMA_LINE, /* of a block of dims */
        GROUPS = BLOCKS == 1 ? 1 : 2,
        SUMS = 64 * BLOCKS / GROUPS / 2
    };
};

struct value_shared {
    struct place w;
    int32_t at[WINDOW];
};
enum { VALUE_BYTES = 2 * 4 * BLOCK_BYTES + MMA_ALIGN + (int)sizeof(struct value_shared) };

/* Places of the keys of pieces p .. of the row, as many as there is room for. */
GPU_FN void find_window(const struct attention_sm90_job *j, int p, struct value_shared *s)
{
    gpu_sync();
    GPU_UNROLL
    for (int i = 0; i < WINDOW / THREADS; i++) {
        int key = (int)threadIdx.x + i * THREADS;
        s->at[key] = find_key(j, &s->w, p + key / TILE, key % TILE);
    }
    gpu_sync();
}

template <int BLOCKS>
GPU_FN void fetch_stage(const struct attention_sm90_job *j, const int32_t *at, int slice,
                        struct raw_part *raw)
{
    using V = value_shape<BLOCKS>;
    int part = slice * V::LINE + (int)threadIdx.x % V::LINE, key = (int)threadIdx.x / V::LINE;
    struct sources s = find_sources(j, part);
    int32_t mine[V::LOADS];
    GPU_UNROLL
    for (int u = 0; u < V::LOADS; u++)
        mine[u] = at[key + u * V::ROWS];
    GPU_UNROLL
    for (int u = 0; u < V::LOADS; u++)
        raw[u] = fetch(&s, mine[u]);
}
template <int BLOCKS>
GPU_FN void put_stage(const struct attention_sm90_job *j, const int32_t *at, int slice,
                      const struct raw_part *raw, uint8_t *tile)
{
    using V = value_shape<BLOCKS>;
    int mine = (int)threadIdx.x % V::LINE, key = (int)threadIdx.x / V::LINE;
    GPU_UNROLL
    for (int u = 0; u < V::LOADS; u++)
        put(j, &raw[u], at[key + u * V::ROWS], slice * V::LINE + mine, tile + mine / 4 * V::BYTES,
            key + u * V::ROWS, mine / 4 & 1);
}

/* Of a piece, what score_kernel left for this thread. */
struct weighed {
    struct gpu_words a[STEPS];
    float top[2], den[2][2];
};

GPU_FN void fetch_weights(const struct attention_sm90_job *j, const struct place *w, int p,
                          struct weighed *x)
{
    int64_t piece = ((int64_t)w->row * j->groups + w->group) * j->pieces + p;
    const struct gpu_words *from = j->weight + piece * STEPS * MMA_GROUP;
    const struct piece_stat *stat = j->stat + piece;
    if (p >= w->n)
        return;
    GPU_UNROLL
    for (int k = 0; k < STEPS; k++)
        x->a[k] = gpu_load16(from + k * MMA_GROUP + (int)threadIdx.x % MMA_GROUP);
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        x->top[r] = stat->top[my_head() + 8 * r];
        x->den[0][r] = stat->den[0][my_head() + 8 * r];
        x->den[1][r] = stat->den[1][my_head() + 8 * r];
    }
}

/* A piece as its product takes it. */
struct ready {
    uint32_t a[STEPS][4];
    float shrink[2];
};

GPU_FN void prepare(const struct weighed *x, struct weigher *g, struct ready *r)
{
    uint32_t factor[2];
    float den[2];
    GPU_UNROLL
    for (int i = 0; i < 4 * STEPS; i++)
        r->a[i / 4][i % 4] = x->a[i / 4].w[i % 4];
    GPU_UNROLL
    for (int k = 0; k < 2; k++)
        den[k] = x->den[0][k] + x->den[1][k];
    weigh(g, x->top, den, r->shrink, factor);
    scale_weights(r->a, factor);
}

/* Pieces p .. of a stage, whose weights x has; then x has those of the next stage.  A piece is made ready
 * while the product of the one before runs. */
template <int BLOCKS>
GPU_FN void add_stage(const struct attention_sm90_job *j, const struct place *w, int p,
                      const uint8_t *rows, struct weighed *x, struct weigher *g,
                      float (&o)[value_shape<BLOCKS>::SUMS])
{
    using V = value_shape<BLOCKS>;
    struct ready r;
    prepare(&x[0], g, &r);
    GPU_UNROLL
    for (int i = 0; i < V::PIECES; i++) {
        struct ready next = {};
        if (p + i >= w->n)
            break;
        shrink_sums(o, r.shrink);
        start_values(r.a, rows + i * BLOCK_BYTES, V::BYTES, o);
        if (i + 1 < V::PIECES && p + i + 1 < w->n)
            prepare(&x[(i + 1) % V::PIECES], g, &next);
        fetch_weights(j, w, p + i + V::PIECES, &x[i]);
        wgmma_wait<0>();
        wgmma_hold(o);
        r = next;
    }
}

/* The stage at piece p, which is loaded, into its tile; then the loads of the next one go out. */
template <int BLOCKS>
GPU_FN void next_stage(const struct attention_sm90_job *j, struct value_shared *s, int p, int slice,
                       struct raw_part *raw, uint8_t *tile)
{
    using V = value_shape<BLOCKS>;
    int next = p + V::PIECES;
    if (p >= s->w.n)
        return;
    put_stage<BLOCKS>(j, s->at + p * TILE % WINDOW, slice, raw,
                      tile + p / V::PIECES % 2 * 4 * BLOCK_BYTES);
    shared_to_wgmma();
    if (next >= s->w.n)
        return;
    if (next * TILE % WINDOW == 0)
        find_window(j, next, s);
    fetch_stage<BLOCKS>(j, s->at + next * TILE % WINDOW, slice, raw);
}

/* Where the block is; two stages in their tiles, the loads of a third under way. */
template <int BLOCKS>
GPU_FN void first_stages(const struct attention_sm90_job *j, struct value_shared *s, int block,
                         int slice, struct raw_part *raw, uint8_t *tile)
{
    if (gpu_wave() == 0) {
        struct place mine;
        find_place(j, block, &mine);
        if (threadIdx.x == 0)
            s->w = mine;
    }
    find_window(j, 0, s);
    fetch_stage<BLOCKS>(j, s->at, slice, raw);
    next_stage<BLOCKS>(j, s, 0, slice, raw, tile);
    next_stage<BLOCKS>(j, s, value_shape<BLOCKS>::PIECES, slice, raw, tile);
}

/* All that needs no weights is done while score_kernel runs: that one waited for all that keys depend on,
 * and then let this one start. */
template <int BLOCKS>
GPU_KERNEL void GPU_BOUNDS(THREADS, 1) value_kernel(struct attention_sm90_job j)
{
    gpu_let_next();
    using V = value_shape<BLOCKS>;
    GPU_DYNAMIC(uint8_t, bytes);
    uint8_t *tile = mma_aligned(bytes);
    struct value_shared *s = (struct value_shared *)(void *)(tile + 8 * BLOCK_BYTES);
    const struct place *w = &s->w;
    int slices = DIM / 64 / BLOCKS, slice = (int)blockIdx.x % slices, half = my_half();
    struct weigher g = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[V::SUMS] = {};
    struct raw_part raw[V::LOADS];
    struct weighed x[V::PIECES] = {};
    first_stages<BLOCKS>(&j, s, (int)blockIdx.x / slices, slice, raw, tile);
    gpu_wait_before();
    GPU_UNROLL
    for (int i = 0; i < V::PIECES; i++)
        fetch_weights(&j, w, i, &x[i]);
    gpu_sync();
    for (int p = 0; p < w->n; p += V::PIECES) {
        uint8_t *now = tile + p / V::PIECES % 2 * 4 * BLOCK_BYTES;
        if (p == 2 * V::PIECES)
            gpu_sync(); /* its tile is free; those of later stages are since the stage before */
        if (p >= 2 * V::PIECES) {
            next_stage<BLOCKS>(&j, s, p, slice, raw, tile);
            gpu_sync();
        }
        if (half < V::GROUPS)
            add_stage<BLOCKS>(&j, w, p, now + half * 2 * V::BYTES, x, &g, o);
    }
    if (half < V::GROUPS)
        store_output(&j, w, &g, slice * 64 * BLOCKS + half * 128, o);
}

/* ---------------------------------------------------------------- whole_kernel */

struct whole_shared {
    struct score_shared s;
    float den[2][HEADS];
    struct gpu_words weight[STEPS * MMA_GROUP];
};
enum { WHOLE_BYTES = 3 * TILE_BYTES + MMA_ALIGN + (int)sizeof(struct whole_shared) };

/* Weights and sums of both halves to both warpgroups. */
GPU_FN void share_weights(struct whole_shared *x, float den[2], const uint32_t mine[2][4],
                          uint32_t (&a)[STEPS][4])
{
    int me = (int)threadIdx.x % MMA_GROUP;
    for (int k = 0; k < 2; k++) {
        struct gpu_words p = {{mine[k][0], mine[k][1], mine[k][2], mine[k][3]}};
        x->weight[(2 * my_half() + k) * MMA_GROUP + me] = p;
    }
    GPU_UNROLL
    for (int r = 0; r < 2 && gpu_lane() % 4 == 0; r++)
        x->den[my_half()][my_head() + 8 * r] = den[r];
    gpu_sync();
    GPU_UNROLL
    for (int k = 0; k < STEPS; k++) {
        struct gpu_words p = x->weight[k * MMA_GROUP + me];
        for (int i = 0; i < 4; i++)
            a[k][i] = p.w[i];
    }
    GPU_UNROLL
    for (int r = 0; r < 2; r++)
        den[r] = x->den[0][my_head() + 8 * r] + x->den[1][my_head() + 8 * r];
}

GPU_KERNEL void GPU_BOUNDS(THREADS, 1) whole_kernel(struct attention_sm90_job j)
{
    gpu_start();
    GPU_DYNAMIC(uint8_t, bytes);
    struct turns b = take_shared(bytes, 1);
    struct whole_shared *x = (struct whole_shared *)(void *)b.s;
    struct raw_part raw[UNITS];
    const struct place *w = &b.s->w;
    struct weigher g = {{-INFINITY, -INFINITY}, {0, 0}};
    first_turn(&j, (int)blockIdx.x, &b, 0, raw);
    float o[128] = {};
    for (int p = 0; p < w->n; p++) {
        float s[16], most[2], den[2], shrink[2];
        uint32_t mine[2][4], a[STEPS][4], factor[2];
        one_turn(&j, w, &b, p, p, raw, s);
        find_weights(b.s->top[p % 2], s, most, den, mine);
        share_weights(x, den, mine, a);
        weigh(&g, most, den, shrink, factor);
        scale_weights(a, factor);
        shrink_sums(o, shrink);
        start_values(a, b.tile + p % 2 * TILE_BYTES + my_half() * 4 * BLOCK_BYTES, BLOCK_BYTES, o);
        wgmma_wait<0>();
        wgmma_hold(o);
        gpu_sync(); /* the tile is free */
    }
    store_output(&j, w, &g, my_half() * 256, o);
}

/* ---------------------------------------------------------------- launcher */

GPU_KERNEL void pack_kernel(struct attention_sm90_job j)
{
    gpu_start();
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 16;
    struct gpu_words out[2];
    if (at >= (int64_t)j.rows.n_rows * DIM)
        return;
    round_own(j.a.kv + at, out);
    mma_store16((uint8_t *)(j.own + at), out[0]);
    mma_store16((uint8_t *)(j.own + at + 8), out[1]);
}

/* Scratch of a row of a launch of score_kernel; of the step's own rows. */
static int64_t row_bytes(int64_t pieces, int64_t groups)
{
    return pieces * groups * (STEPS * MMA_GROUP * 16 + (int64_t)sizeof(struct piece_stat));
}
static int64_t own_bytes(int64_t n_rows)
{
    return n_rows < OWN_FROM ? 0 : 2 * n_rows * DIM;
}
enum { ROUNDING = 3 * 256 };

extern "C" bool attention_sm90_fits(int head_dim)
{
    return head_dim == DIM;
}

size_t attention_sm90_scratch(const struct kernel_limits *l)
{
    if (!attention_sm90_fits(l->head_dim))
        return gpu_attention_scratch(l);
    int64_t groups = div_up(l->n_heads, HEADS), row = row_bytes(keys_limit_pieces(l), groups);
    int64_t rows = FST_MAX(1, FST_MIN(l->n_rows, KEYS_SCRATCH / row));
    return (size_t)(rows * row + own_bytes(l->n_rows) + ROUNDING);
}

/* Rows of a launch: few, score_kernel and value_kernel through scratch. */
static void launch_split(struct attention_sm90_job *j, struct gpu_cut *cut, struct stream *s)
{
    int64_t n = j->rows.n_rows, row = row_bytes(j->pieces, j->groups);
    int64_t rows = FST_MIN(n, ((int64_t)cut->left - ROUNDING) / row);
    FST_ASSERT(rows > 0);
    int64_t pieces = rows * j->pieces;
    j->weight = gpu_take<struct gpu_words>(cut, pieces * j->groups * STEPS * MMA_GROUP);
    j->stat = gpu_take<struct piece_stat>(cut, pieces * j->groups);
    for (j->first = 0; j->first < n; j->first += (int)rows) {
        int64_t blocks = FST_MIN(rows, n - j->first) * j->groups;
        j->spread = (int)FST_MAX(1, FST_MIN(j->pieces, SCORE_FILL / blocks));
        gpu_launch_early(score_kernel, blocks * j->spread, THREADS, SCORE_BYTES, s, *j);
        if (blocks * 8 <= SLICE_FILL)
            gpu_launch_early(value_kernel<1>, blocks * 8, THREADS, VALUE_BYTES, s, *j);
        else
            gpu_launch_early(value_kernel<4>, blocks * 2, THREADS, VALUE_BYTES, s, *j);
    }
}

SM90_ENTRY(attention)
{
    if (!attention_sm90_fits(a->head_dim))
        return GPU_NAME(attention)(a, s);
    int64_t n = a->rows->n_rows;
    struct gpu_cut cut = gpu_scratch(s);
    struct attention_sm90_job j = {};
    keys_check(a);
    FST_ASSERT(a->l->n_rows < INT32_MAX);
    FST_ASSERT(a->rope_dim <= 8 * TURNS);
    if (n == 0)
        return FST_OK;
    j.rows = *a->rows;
    j.l = *a->l;
    j.a = *a;
    j.scale = a->scale * 1.44269504f;
    j.groups = (int)div_up(a->n_heads, HEADS);
    j.pieces = (int)keys_most_pieces(a);
    if (n >= OWN_FROM) {
        j.own = gpu_take<uint16_t>(&cut, n * DIM);
        gpu_launch_early(pack_kernel, div_up(n * DIM, 16 * THREADS), THREADS, 0, s, j);
    }
    if (n * j.groups >= WHOLE_FROM)
        gpu_launch_early(whole_kernel, n * j.groups, THREADS, WHOLE_BYTES, s, j);
    else
        launch_split(&j, &cut, s);
    return gpu_done("attention");
}
