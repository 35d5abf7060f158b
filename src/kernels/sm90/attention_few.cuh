/* attention_few.cuh - kernels of attention.cu where rows are few: a row's pieces and dims over many blocks. */
#ifndef FST_KERNELS_SM90_ATTENTION_FEW_CUH
#define FST_KERNELS_SM90_ATTENTION_FEW_CUH

#include "kernels/sm90/attention_sums.cuh"

/* ---------------------------------------------------------------- score_kernel */

/* Scores of this warpgroup's 32 keys: under way.  Meanwhile the next tile, unless NULL, is unpacked: a
 * step of the product takes 50 clocks, bound by shared memory, and a key of the tile about 300; a
 * warpgroup that issues all steps at once waits for most of them. */
GPU_FN void start_scores(const struct attention_sm90_job *j, const uint8_t *q, const uint8_t *tile,
                         float (&s)[16], const int32_t *at, const struct raw_part raw[UNITS],
                         uint8_t *next)
{
    enum { EACH = DIM / 16 / UNITS };
    int32_t mine[UNITS];
    my_keys(at, mine);
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        s[i] = 0;
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++) {
        add_scores<EACH>(q, tile, u * EACH, s);
        if (u == UNITS - 1)
            wgmma_end();
        if (next)
            put_key(j, mine[u], &raw[u], u, next);
    }
    if (next)
        put_own_keys<UNITS>(j, at, 0, next);
}

struct score_shared {
    struct place w;
    int32_t at[2][TILE];
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
    enum { LOADERS = THREADS - SCOUTS };
    const struct place *w = &b->s->w;
    if (is_scout()) {
        struct place mine;
        struct seek k[2];
        struct early e[2];
        GPU_UNROLL
        for (int i = 0; i < 2; i++)
            e[i] = seek_early(j, j->first + block / j->groups, p + i * b->step, (int)threadIdx.x);
        find_place(j, block, &mine);
        GPU_UNROLL
        for (int i = 0; i < 2; i++)
            seek_start(j, &mine, p + i * b->step, (int)threadIdx.x, &e[i], &k[i]);
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
        load_packed<LOADERS>(j, j->first + block / j->groups, block % j->groups, b->q,
                             (int)threadIdx.x - SCOUTS);
    else
        load_queries<LOADERS / 32, 6>(j, j->first + block / j->groups, block % j->groups, b->q,
                                      gpu_wave() - SCOUTS / 32);
    gpu_sync();
    if (p >= w->n)
        return;
    fetch_tile(j, b->s->at[0], raw);
    int32_t mine[UNITS];
    my_keys(b->s->at[0], mine);
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++)
        put_key(j, mine[u], &raw[u], u, b->tile);
    put_own_keys<UNITS>(j, b->s->at[0], 0, b->tile);
    if (p + b->step < w->n)
        fetch_tile(j, b->s->at[1], raw);
    copies_wait<0>();
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
        seek_start(j, w, next + b->step, lane, NULL, &k);
    start_scores(j, b->q, b->tile + i % 2 * TILE_BYTES, s, b->s->at[(i + 1) % 2], raw,
                 next < w->n ? b->tile + (i + 1) % 2 * TILE_BYTES : NULL);
    if (next < w->n)
        shared_to_wgmma();
    if (is_scout())
        seek_page(j, w, &k);
    wgmma_wait<0>();
    wgmma_hold(s);
    if (is_scout())
        b->s->at[i % 2][lane] = seek_end(j, w, &k);
    gpu_sync();
    if (next + b->step < w->n)
        fetch_tile(j, b->s->at[i % 2], raw);
}

GPU_FN void store_weights(const struct attention_sm90_job *j, const struct place *w, int p,
                          const float top[2], const float den[2], const uint32_t a[2][4])
{
    int64_t piece = ((int64_t)w->row * j->groups + w->group) * j->pieces + p;
    struct gpu_words *to = j->weight + piece * STEPS * MMA_GROUP + (int)threadIdx.x % MMA_GROUP;
    for (int k = 0; k < 2; k++) {
        struct gpu_words x = {{a[k][0], a[k][1], a[k][2], a[k][3]}};
        to[(2 * my_half() + k) * MMA_GROUP] = x;
    }
    put_stat(j->stat + piece, top, den);
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
        float s[16], top[2], den[2];
        uint32_t a[2][4];
        one_turn(&j, w, &b, p, i, raw, s);
        find_weights(&j, piece_keys(w, p), s, top, den, a);
        store_weights(&j, w, p, top, den, a);
    }
}

/* ---------------------------------------------------------------- half_kernel */

/* As score_kernel where there are places for two blocks a piece: a block has half of its keys, which takes
 * half as long to unpack, and one warpgroup's product has the shared memory for itself.  Straight through,
 * since of all that takes time nothing comes twice. */
GPU_KERNEL void GPU_BOUNDS(THREADS, 1) half_kernel(struct attention_sm90_job j)
{
    enum { KEYS = TILE / 2, LOADERS = THREADS - KEYS, MINE = UNITS / 2 };
    gpu_wait_before();
    gpu_let_next(); /* as in score_kernel */
    GPU_DYNAMIC(uint8_t, bytes);
    struct turns b = take_shared(bytes, j.spread);
    const struct place *w = &b.s->w;
    int me = (int)threadIdx.x, row = (int)blockIdx.x / j.spread, t = j.first + row / j.groups;
    int p = (int)blockIdx.x % j.spread / 2, half = (int)blockIdx.x % 2, first = half * KEYS;
    if (me < KEYS) {
        struct place mine;
        struct seek k;
        struct early e = seek_early(&j, t, p, first + me);
        find_place(&j, row, &mine);
        seek_start(&j, &mine, p, first + me, &e, &k);
        seek_page(&j, &mine, &k);
        b.s->at[0][first + me] = seek_end(&j, &mine, &k);
        if (me == 0)
            b.s->w = mine;
    } else if (j.a.packed)
        load_packed<LOADERS>(&j, t, row % j.groups, b.q, me - KEYS);
    else
        load_queries<LOADERS / 32, 4>(&j, t, row % j.groups, b.q, (me - KEYS) / 32);
    gpu_sync();
    if (p >= w->n)
        return;
    struct raw_part raw[MINE];
    struct sources from = find_sources(&j, gpu_lane());
    const int32_t *at = b.s->at[0] + gpu_wave() + first;
    GPU_UNROLL
    for (int u = 0; u < MINE; u++)
        raw[u] = fetch(&from, at[u * WAVES]);
    GPU_UNROLL
    for (int u = 0; u < MINE; u++)
        put_key(&j, at[u * WAVES], &raw[u], u + half * MINE, b.tile);
    put_own_keys<MINE>(&j, b.s->at[0], half * MINE, b.tile);
    copies_wait<0>();
    shared_to_wgmma();
    gpu_sync();
    if (my_half() != half)
        return;
    float s[16], top[2], den[2];
    uint32_t a[2][4];
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        s[i] = 0;
    add_scores<DIM / 16>(b.q, b.tile, 0, s);
    wgmma_end();
    wgmma_wait<0>();
    wgmma_hold(s);
    find_weights(&j, piece_keys(w, p), s, top, den, a);
    store_weights(&j, w, p, top, den, a);
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
    struct ending end;
    int32_t at[WINDOW];
};
enum { VALUE_BYTES = 2 * 4 * BLOCK_BYTES + MMA_ALIGN + (int)sizeof(struct value_shared) };

/* Places of the keys of pieces p .. of the row, as many as there is room for.  A thread's keys step by step, not
 * one after another, which were eight trips to the card's memory instead of two. */
GPU_FN void find_window(const struct attention_sm90_job *j, int p, struct value_shared *s)
{
    gpu_sync();
    enum { EACH = WINDOW / THREADS };
    struct seek k[EACH];
    GPU_UNROLL
    for (int i = 0; i < EACH; i++) {
        int key = (int)threadIdx.x + i * THREADS;
        seek_start(j, &s->w, p + key / TILE, key % TILE, NULL, &k[i]);
    }
    GPU_UNROLL
    for (int i = 0; i < EACH; i++)
        seek_page(j, &s->w, &k[i]);
    GPU_UNROLL
    for (int i = 0; i < EACH; i++)
        s->at[(int)threadIdx.x + i * THREADS] = seek_end(j, &s->w, &k[i]);
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
    put_own<V::LOADS>(j, at + key, slice * V::LINE + mine, tile + mine / 4 * V::BYTES, key,
                      V::ROWS);
}

/* Of a piece, what score_kernel left for this thread. */
struct weighed {
    struct gpu_words a[STEPS];
    struct halves stat;
};

GPU_FN void fetch_weights(const struct attention_sm90_job *j, const struct place *w, int p,
                          struct weighed *x)
{
    int64_t piece = ((int64_t)w->row * j->groups + w->group) * j->pieces + p;
    const struct gpu_words *from = j->weight + piece * STEPS * MMA_GROUP;
    if (p >= w->n)
        return;
    GPU_UNROLL
    for (int k = 0; k < STEPS; k++)
        x->a[k] = gpu_load16(from + k * MMA_GROUP + (int)threadIdx.x % MMA_GROUP);
    get_stat(j->stat + piece, &x->stat);
}

/* Pieces p .. of a stage, whose weights x has; then x has those of the next stage.  All of a stage are relative
 * to the largest maximum up to its end, which are powers of two, so that nothing waits for the sums within a
 * stage: a product takes 128 clocks, and 280 more until one sees it.  Pieces beyond the last have rows and
 * weights of zeros: behind a condition the compiler would let every product wait for the one before. */
template <int BLOCKS>
GPU_FN void add_stage(const struct attention_sm90_job *j, const struct place *w, int p,
                      const uint8_t *rows, struct weighed *x, struct weigher *g,
                      float (&o)[value_shape<BLOCKS>::SUMS])
{
    using V = value_shape<BLOCKS>;
    uint32_t a[V::PIECES][STEPS][4];
    float before[2] = {g->top[0], g->top[1]}, shrink[2];
    GPU_UNROLL
    for (int i = 0; i < V::PIECES; i++) {
        uint32_t unused[2][2];
        if (p + i < w->n)
            weigh(g, &x[i].stat, shrink, unused);
    }
    GPU_UNROLL
    for (int i = 0; i < V::PIECES; i++) {
        uint32_t factor[2][2];
        GPU_UNROLL
        for (int k = 0; k < 4; k++) {
            bool there = p + i < w->n;
            float f = there ? power(x[i].stat.top[k / 2][k % 2] - g->top[k % 2]) : 0;
            factor[k / 2][k % 2] = gpu_pair(f, f);
        }
        GPU_UNROLL
        for (int k = 0; k < 4 * STEPS; k++)
            a[i][k / 4][k % 4] = x[i].a[k / 4].w[k % 4];
        scale_weights(a[i], factor);
    }
    GPU_UNROLL
    for (int r = 0; r < 2; r++)
        shrink[r] = power(before[r] - g->top[r]);
    shrink_sums(o, shrink);
    GPU_UNROLL
    for (int i = 0; i < V::PIECES; i++)
        start_values(a[i], rows + i * BLOCK_BYTES, V::BYTES, o);
    GPU_UNROLL
    for (int i = 0; i < V::PIECES; i++)
        fetch_weights(j, w, p + i + V::PIECES, &x[i]);
    wgmma_wait<0>();
    wgmma_hold(o);
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
    } else
        load_ending(j, j->first + block / j->groups, block % j->groups, &s->end,
                    (int)threadIdx.x - 32);
    using V = value_shape<BLOCKS>;
    struct raw_part more[V::LOADS]; /* both at once: there are registers for it yet */
    find_window(j, 0, s);
    const int32_t *at = s->at, *then = at + V::KEYS;
    fetch_stage<BLOCKS>(j, at, slice, raw);
    fetch_stage<BLOCKS>(j, then, slice, more);
    put_stage<BLOCKS>(j, at, slice, raw, tile);
    put_stage<BLOCKS>(j, then, slice, more, tile + 4 * BLOCK_BYTES);
    shared_to_wgmma();
    if (2 * V::PIECES < s->w.n)
        fetch_stage<BLOCKS>(j, then + V::KEYS, slice, raw);
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
        store_output(&j, w, &g, slice * 64 * BLOCKS + half * 128, o, &s->end);
}

/* ---------------------------------------------------------------- launcher */

/* Scratch of a row of a launch. */
static int64_t row_bytes(int64_t pieces, int64_t groups)
{
    return pieces * groups * (STEPS * MMA_GROUP * 16 + (int64_t)sizeof(struct piece_stat));
}
enum { ROUNDING = 3 * 256 };

static void launch_few(struct attention_sm90_job *j, struct gpu_cut *cut, struct stream *s)
{
    int64_t n = j->rows.n_rows, row = row_bytes(j->pieces, j->groups);
    int64_t rows = FST_MIN(n, ((int64_t)cut->left - ROUNDING) / row);
    FST_ASSERT(rows > 0);
    int64_t pieces = rows * j->pieces;
    j->weight = gpu_take<struct gpu_words>(cut, pieces * j->groups * STEPS * MMA_GROUP);
    j->stat = gpu_take<struct piece_stat>(cut, pieces * j->groups);
    for (j->first = 0; j->first < n; j->first += (int)rows) {
        int64_t blocks = FST_MIN(rows, n - j->first) * j->groups;
        bool halves = blocks * j->pieces * 2 <= SCORE_FILL;
        j->spread =
            halves ? 2 * j->pieces : (int)FST_MAX(1, FST_MIN(j->pieces, SCORE_FILL / blocks));
        gpu_launch_early(halves ? half_kernel : score_kernel, blocks * j->spread, THREADS,
                         SCORE_BYTES, s, *j);
        if (blocks * 8 <= SLICE_FILL)
            gpu_launch_early(value_kernel<1>, blocks * 8, THREADS, VALUE_BYTES, s, *j);
        else
            gpu_launch_early(value_kernel<4>, blocks * 2, THREADS, VALUE_BYTES, s, *j);
    }
}

#endif
