/* attention_few.cuh - kernels of attention.cu where rows are few: a row's pieces and dims over many blocks. */
#ifndef FST_KERNELS_SM90_ATTENTION_FEW_CUH
#define FST_KERNELS_SM90_ATTENTION_FEW_CUH

#include "kernels/sm90/attention_sums.cuh"

/* ---------------------------------------------------------------- score_kernel */

/* Scores of this warpgroup's 32 keys: under way.  Meanwhile the next tile, unless NULL, is unpacked: a
 * step of the product takes 50 clocks, bound by shared memory, and a key of the tile about 300; a
 * warpgroup that issues all steps at once waits for most of them. */
GPU_FN void start_scores(const struct attention_sm90_job *j, const uint8_t *q, const uint8_t *tile,
                         float (&s)[16], const int32_t *at, const struct raw_part (&raw)[UNITS],
                         uint8_t *next)
{
    enum { EACH = 2 * DIM / 16 / UNITS };
    int32_t mine[UNITS];
    my_keys(at, mine);
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        s[i] = 0;
    GPU_UNROLL
    for (int u = 0; u < UNITS; u += 2) {
        add_scores<EACH>(q, tile, u / 2 * EACH, s);
        if (u == UNITS - 2)
            wgmma_end();
        struct raw_part two[2] = {raw[u], raw[u + 1]};
        int32_t places[2] = {mine[u], mine[u + 1]};
        if (next)
            put_wave_keys(j, places, two, u, next);
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
                       struct raw_part (&raw)[UNITS])
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
    put_wave_keys(j, mine, raw, 0, b->tile);
    put_own_keys<UNITS>(j, b->s->at[0], 0, b->tile);
    if (p + b->step < w->n)
        fetch_tile(j, b->s->at[1], raw);
    copies_wait<0>();
    shared_to_wgmma();
    gpu_sync();
}

/* Scores of piece p, turn i.  Ends behind a barrier, with the next tile in place. */
GPU_FN void one_turn(const struct attention_sm90_job *j, const struct place *w,
                     const struct turns *b, int p, int i, struct raw_part (&raw)[UNITS],
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

/* ---------------------------------------------------------------- piece_kernel */

/* As score_kernel where there are places for a block a piece (HALVES 2), or two of half of its keys each, which
 * are unpacked in half the time, and whose product has the shared memory for itself.  Straight through,
 * since of all that takes time nothing comes twice.
 *
 * What is waited for is trips to the card's memory, 0.4 to 0.8 us each, and there are two behind the kernel in
 * front: the row's choice, and the rows.  Position and slot are read and the slot's page table is in shared
 * memory before; a wave looks up its own keys, a lane each, so that no barrier stands between. */
enum {
    SLICES = DIM / MMA_BLOCK,
    PAGES = 1024, /* of a slot, in shared memory; those beyond are read when they are needed */
    QUERY_LINE = 2 * DIM + 16 /* bytes of a head: 8 rows of a fragment meet no bank twice */
};
struct piece_shared {
    uint8_t q[HEADS * QUERY_LINE];
    uint64_t arrived;
    int32_t pages[PAGES];
};
enum { PIECE_BYTES = TILE_BYTES + MMA_ALIGN + (int)sizeof(struct piece_shared) };

/* Part `part` of 2 of the row's queries, heads one after another: on their way, where they are packed.  A wave's
 * copies are issued one after another, 80 ns each. */
GPU_FN void start_heads(const struct attention_sm90_job *j, const struct place *w, int part,
                        struct piece_shared *s)
{
    enum { EACH = HEADS / WAVES / 2 };
    int first = w->group * HEADS, heads = FST_MIN(j->a.n_heads - first, (int)HEADS);
    int head = (gpu_wave() * 2 + part) * EACH + gpu_lane();
    int64_t at = ((int64_t)w->t * j->a.n_heads + first + head) * DIM * 2;
    if (part == 0 && threadIdx.x == 0)
        mma_expect(&s->arrived, heads * 2 * DIM);
    if (gpu_lane() < EACH && head < heads)
        mma_bulk(s->q + head * QUERY_LINE, (const uint8_t *)(const void *)j->a.q + at, 2 * DIM,
                 &s->arrived);
}
GPU_FN void load_heads(const struct attention_sm90_job *j, const struct place *w,
                       struct piece_shared *s) /* floats */
{
    int first = w->group * HEADS, heads = FST_MIN(j->a.n_heads - first, (int)HEADS);
    const float *x = j->a.q + ((int64_t)w->t * j->a.n_heads + first) * DIM;
    for (int i = (int)threadIdx.x * 4; i < heads * DIM; i += THREADS * 4) {
        struct gpu_quad v = gpu_load4(x + i);
        struct rows_half o = {{mma_pair(v.v[0], v.v[1]), mma_pair(v.v[2], v.v[3])}};
        *(struct rows_half *)(void *)(s->q + i / DIM * QUERY_LINE + i % DIM * 2) = o;
    }
}

GPU_FN void load_pages(const struct attention_sm90_job *j, const struct place *w, int32_t *pages)
{
    int n = FST_MIN(w->at.pos / KERN_PAGE + 1, (int)PAGES);
    for (int i = (int)threadIdx.x; j->l.ratio && i < n; i += THREADS)
        pages[i] = rows_pages(&j->rows, w->at.slot)[i];
}

/* Where compressed entry x lies. */
GPU_FN int32_t find_entry(const struct attention_sm90_job *j, const struct place *w, int x,
                          const int32_t *pages)
{
    int page = x >> rows_page_shift(&j->l);
    return (int32_t)rows_of_page(
        &j->l, page < PAGES ? pages[page] : rows_pages(&j->rows, w->at.slot)[page], x);
}
/* Where key i of piece p lies, unless it is chosen: then anything. */
GPU_FN int32_t find_key(const struct attention_sm90_job *j, const struct place *w, int p, int i,
                        const int32_t *pages)
{
    struct range of = keys_piece(w->r, p);
    int x = of.lo + i;
    if (of.kind == RANGE_SELECTED || p >= w->n || x > of.hi)
        return NO_KEY;
    if (of.kind == RANGE_ENTRIES)
        return find_entry(j, w, x, pages);
    return (int32_t)keys_find(&j->a, &j->rows, &j->l, &w->at, w->t, of.kind, x);
}

/* Scores of 32 keys against heads in registers, as add_scores.  A product waits for the one before it, with heads in
 * shared memory for 60 clocks. */
GPU_FN void scores_of(const uint32_t (&q)[DIM / 16][4], const uint8_t *tile, float (&s)[16])
{
    mma_tile b = mma_anew(mma_tile_of(tile + my_half() * (BLOCK_BYTES / 2), BLOCK_BYTES));
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        s[i] = 0;
    wgmma_begin();
    GPU_UNROLL
    for (int k = 0; k < DIM / 16; k++)
        mma_rs<0>(s, q[k], mma_ahead(b, k / 4 * BLOCK_BYTES + k % 4 * MMA_STEP));
    wgmma_end();
    wgmma_wait<0>();
    wgmma_hold(s);
}

/* `keys` keys of a tile from the first-th on, for slice_kernel. */
GPU_FN void keep_tile(const struct attention_sm90_job *j, const struct place *w, int p, int first,
                      int keys, const uint8_t *tile)
{
    uint8_t *to = j->values + ((int64_t)w->row * j->pieces + p) * TILE_BYTES + first * MMA_LINE;
    shared_to_wgmma();
    GPU_UNROLL
    for (int i = 0; i < SLICES; i++)
        mma_bulk_back(to + i * BLOCK_BYTES, tile + first * MMA_LINE + i * BLOCK_BYTES,
                      keys * MMA_LINE);
}

template <int HALVES>
GPU_KERNEL void GPU_BOUNDS(THREADS, 1) piece_kernel(struct attention_sm90_job j)
{
    enum { KEYS = TILE / 2 * HALVES, MINE = KEYS / WAVES };
    GPU_DYNAMIC(uint8_t, bytes);
    uint8_t *tile = mma_aligned(bytes);
    struct piece_shared *s = (struct piece_shared *)(void *)(tile + TILE_BYTES);
    int share = (int)blockIdx.x % j.spread, first = 0, row = (int)blockIdx.x / j.spread;
    int p = share / (3 - HALVES), step = j.spread / (3 - HALVES), chosen = 0;
    bool teller = (int)threadIdx.x == (HALVES == 1 && share % 2 == 0 ? MMA_GROUP : 0);
    if (HALVES == 1)
        first = share % 2 * KEYS;
    /* this lane's key of those that its wave unpacks */
    int part = gpu_lane(), i = first + gpu_wave() + part % MINE * WAVES;
    struct place w;
    struct source from = find_source(&j, part);
    uint32_t q[DIM / 16][4];
    place_row(&j, row, &w);
    load_pages(&j, &w, s->pages);
    if (threadIdx.x == 0)
        mma_copy_barriers(&s->arrived, 1);
    place_pieces(&j, &w, 0);
    gpu_sync();
    bool choice = w.r[1].kind == RANGE_SELECTED, before = true;
    int some = range_pieces(&w.r[0]), x = (p - some) * TILE + i;
    int32_t entry = 0, at = find_key(&j, &w, p, i, s->pages);
    gpu_wait_before();
    gpu_let_next(); /* behind the wait: the next kernel reads keys before its own */
    if (choice) {
        chosen = j.a.n_sel[w.t];
        if (x >= 0 && x < j.a.topk)
            entry = j.a.sel[(int64_t)w.t * j.a.topk + x];
    }
    if (j.a.packed)
        start_heads(&j, &w, 0, s); /* while the choice comes; the rest while rows come */
    if (choice)
        place_pieces(&j, &w, chosen);
    GPU_ROLLED
    for (; p < w.n; p += step) {
        struct raw_part raw[MINE];
        int32_t mine[MINE];
        if (choice && x >= 0)
            at = x < chosen ? find_entry(&j, &w, entry, s->pages) : NO_KEY;
        GPU_UNROLL
        for (int u = 0; u < MINE; u++)
            mine[u] = (int32_t)gpu_shfl((uint32_t)at, u);
        GPU_UNROLL
        for (int u = 0; u < MINE; u++)
            raw[u] = fetch(&from, mine[u]);
        if (before) {
            before = false;
            if (j.a.packed) {
                start_heads(&j, &w, 1, s);
                mma_copied_all(&s->arrived, 0);
            } else {
                load_heads(&j, &w, s);
                gpu_sync();
            }
            GPU_UNROLL
            for (int k = 0; k < DIM / 16; k++)
                mma_fragment(s->q + group_wave() * 16 * QUERY_LINE + k * 32, QUERY_LINE, q[k]);
        }
        put_wave_keys(&j, mine, raw, first / WAVES, tile);
        GPU_ROLLED
        for (int u = 0; u < MINE; u++)
            put_own_part(&j, (int32_t)gpu_shfl((uint32_t)at, u), part,
                         tile + part / 4 * BLOCK_BYTES, first + gpu_wave() + u * WAVES);
        gpu_sync();
        if (teller && j.values && w.group == 0)
            keep_tile(&j, &w, p, first, KEYS, tile);
        if (HALVES == 2 || my_half() == share % 2) {
            shared_to_wgmma(); /* here: it waits for all loads of a thread */
            float e[16], top[2], den[2];
            uint32_t a[2][4];
            scores_of(q, tile, e);
            find_weights(&j, piece_keys(&w, p), e, top, den, a);
            store_weights(&j, &w, p, top, den, a);
        }
        if (p + step >= w.n)
            break;
        x += step * TILE;
        if (choice && x >= 0 && x < chosen)
            entry = j.a.sel[(int64_t)w.t * j.a.topk + x];
        at = find_key(&j, &w, p + step, i, s->pages);
        mma_back_read();
        gpu_sync(); /* nobody reads the tile any more */
    }
    mma_back_read();
    mma_back_done();
    if (!before || !j.a.packed)
        return;
    start_heads(&j, &w, 1, s);
    mma_copied_all(&s->arrived, 0); /* a block with nothing to do may not leave copies behind */
}

/* ---------------------------------------------------------------- value_kernel */

/* Stages of 64*PIECES keys and 64*BLOCKS dims. */
template <int BLOCKS> struct value_shape {
    enum {
        PIECES = 4 / BLOCKS,
        KEYS = PIECES * TILE,
        LINE = BLOCKS * 4, /* lanes of a key */
        LOADS = KEYS * LINE / THREADS,
        ROWS = THREADS / LINE,
        BYTES = KEYS * MMA_LINE, /* of a block of dims */
        SUMS = 64 * BLOCKS / 4
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
    struct source s = find_source(j, part);
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
                      const struct raw_part (&raw)[value_shape<BLOCKS>::LOADS], uint8_t *tile)
{
    using V = value_shape<BLOCKS>;
    int mine = (int)threadIdx.x % V::LINE, key = (int)threadIdx.x / V::LINE;
    int32_t places[V::LOADS];
    GPU_UNROLL
    for (int u = 0; u < V::LOADS; u++)
        places[u] = at[key + u * V::ROWS];
    put_keys(j, raw, places, slice * V::LINE + mine, tile + mine / 4 * V::BYTES, key,
             V::ROWS * MMA_LINE, mine / 4 & 1);
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
                       struct raw_part (&raw)[value_shape<BLOCKS>::LOADS], uint8_t *tile)
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
                         int slice, struct raw_part (&raw)[value_shape<BLOCKS>::LOADS],
                         uint8_t *tile)
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
        add_stage<BLOCKS>(&j, w, p, now + half * 2 * V::BYTES, x, &g, o);
    }
    store_weighed(&j, w, &g, slice * 64 * BLOCKS + half * 128, o, &s->end);
}

/* ---------------------------------------------------------------- slice_kernel */

/* As value_kernel for 64 dims and values that are unpacked: weights and values of up to ROUND pieces go to shared memory
 * all at once; rows with more pieces make several rounds.
 *
 * Values are piece_kernel's tiles.  To look keys up and unpack them once more took 5.8 us, 2.5 of them behind the end of
 * piece_kernel: a value is 4 instructions a pair, three of them on a unit that starts one in two clocks.
 * Weights and values of a piece are 8 KB each, and a processor takes 64 bytes a clock.  The largest of all
 * maxima is found first, from the pieces' stats by the second warpgroup while weights are on their way, and
 * nothing is scaled in between. */
enum {
    ROUND = 12,
    TRIO = 3, /* pieces whose products are under way together */
    FACTORS_READY = 1
};
struct slice_shared {
    struct ending end;
    uint64_t arrived[ROUND / TRIO];
    uint32_t factor[ROUND][2][HEADS]; /* of a half piece's weights, twice as bf16 */
    float shrink[HEADS], over[HEADS];
};
enum { SLICE_BYTES = 2 * ROUND * BLOCK_BYTES + MMA_ALIGN + (int)sizeof(struct slice_shared) };

/* Thread `me` of two for a head, which have a half of every piece: pieces p .. come in.  top, den: of the pieces
 * before. */
GPU_FN void weigh_round(const struct attention_sm90_job *j, const struct place *w, int p, int me,
                        struct slice_shared *s, float *top, float *den)
{
    const struct piece_stat *x = j->stat + ((int64_t)w->row * j->groups + w->group) * j->pieces + p;
    int head = me / 2, half = me % 2;
    float tops[ROUND], dens[ROUND], most = *top;
    GPU_UNROLL
    for (int i = 0; i < ROUND; i++) {
        tops[i] = -INFINITY;
        dens[i] = 0;
        if (p + i < w->n) {
            tops[i] = x[i].top[half][head];
            dens[i] = x[i].den[half][head];
        }
    }
    GPU_UNROLL
    for (int i = 0; i < ROUND; i++)
        most = fmaxf(most, tops[i]);
    most = wave_max(most, 2);
    float shrink = power(*top - most), sum = *den * shrink;
    GPU_UNROLL
    for (int i = 0; i < ROUND; i++) {
        float f = power(tops[i] - most);
        s->factor[i][half][head] = gpu_pair(f, f);
        sum += wave_sum(dens[i] * f, 2);
    }
    *top = most;
    *den = sum;
    if (half)
        return;
    s->shrink[head] = shrink;
    s->over[head] = find_over(s->end.sink[head], sum, most);
}

/* Weights of the pieces p .., in the order in which threads take them, and their values: on their way, the first trio
 * first.  A thread takes 170 clocks to issue a copy, so each of four waves has one of a trio. */
GPU_FN void copy_round(const struct attention_sm90_job *j, const struct place *w, int p, int slice,
                       struct slice_shared *s, uint8_t *weights, uint8_t *values)
{
    int64_t row = (int64_t)w->row * j->pieces + p;
    int64_t piece = ((int64_t)w->row * j->groups + w->group) * j->pieces + p;
    const struct gpu_words *weight = j->weight + piece * STEPS * MMA_GROUP;
    int mine = gpu_wave() - 1; /* the piece of a trio whose values are this wave's; -1: weights */
    const uint8_t *value = j->values + (row + mine) * TILE_BYTES + slice * BLOCK_BYTES;
    if (gpu_lane() != 0)
        return;
    GPU_ROLLED
    for (int i = 0; i < ROUND && p + i < w->n; i += TRIO) {
        uint64_t *arrived = s->arrived + i / TRIO;
        int n = FST_MIN((int)TRIO, w->n - p - i);
        if (mine < 0) {
            mma_expect(arrived, n * 2 * BLOCK_BYTES);
            mma_bulk(weights + i * BLOCK_BYTES, weight + i * STEPS * MMA_GROUP, n * BLOCK_BYTES,
                     arrived);
        } else if (mine < n)
            mma_bulk(values + (i + mine) * BLOCK_BYTES, value + i * TILE_BYTES, BLOCK_BYTES,
                     arrived);
    }
}
/* Values of pieces that would be the n-th and on of a round, where products read them. */
GPU_FN void clear_rest(int n, uint8_t *values)
{
    int end = FST_MIN((FST_MAX(n, 1) + TRIO - 1) / TRIO * TRIO, (int)ROUND) * BLOCK_BYTES;
    for (int i = FST_MIN(n, (int)ROUND) * BLOCK_BYTES + (int)threadIdx.x * 16; i < end;
         i += THREADS * 16)
        mma_store16(values + i, {});
    shared_to_wgmma();
}

/* Products of pieces i .. i+TRIO-1 of the n in this round: under way. */
GPU_FN void start_trio(const struct slice_shared *s, int i, int n, const uint8_t *weights,
                       const uint8_t *values, float (&o)[32])
{
    uint32_t a[TRIO][STEPS][4];
    weights += (i * STEPS * MMA_GROUP + (int)threadIdx.x % MMA_GROUP) * 16;
    GPU_UNROLL
    for (int q = 0; q < TRIO; q++) {
        uint32_t factor[2][2];
        GPU_UNROLL
        for (int k = 0; k < 4; k++)
            factor[k / 2][k % 2] = s->factor[i + q][k / 2][my_head() + 8 * (k % 2)];
        GPU_UNROLL
        for (int k = 0; k < STEPS; k++) {
            struct gpu_words x = mma_load16(weights + (q * STEPS + k) * MMA_GROUP * 16);
            GPU_UNROLL
            for (int m = 0; m < 4; m++)
                a[q][k][m] = i + q < n ? x.w[m] : 0;
        }
        scale_weights(a[q], factor);
    }
    GPU_UNROLL
    for (int q = 0; q < TRIO; q++)
        start_values(a[q], values + (i + q) * BLOCK_BYTES, BLOCK_BYTES, o);
}

/* Trios from piece I of the round on.  One inside the other: side by side the compiler lets every product wait. */
template <int I> struct trios {
    GPU_FN void start(struct slice_shared *s, int n, int phase, const uint8_t *weights,
                      const uint8_t *values, float (&o)[32])
    {
        if (I < n)
            mma_copied(s->arrived + I / TRIO, phase);
        if (I >= 2 * TRIO)
            wgmma_wait<TRIO>(); /* registers of the last but one */
        start_trio(s, I, n, weights, values, o);
        if (I + TRIO < n)
            trios<I + TRIO>::start(s, n, phase, weights, values, o);
    }
};
template <> struct trios<ROUND> {
    GPU_FN void start(struct slice_shared *, int, int, const uint8_t *, const uint8_t *,
                      float (&)[32])
    {
    }
};

GPU_KERNEL void GPU_BOUNDS(THREADS, 1) slice_kernel(struct attention_sm90_job j)
{
    gpu_let_next();
    GPU_DYNAMIC(uint8_t, bytes);
    uint8_t *values = mma_aligned(bytes), *weights = values + ROUND * BLOCK_BYTES;
    struct slice_shared *s = (struct slice_shared *)(void *)(weights + ROUND * BLOCK_BYTES);
    struct place w;
    int slice = (int)blockIdx.x % SLICES, me = (int)threadIdx.x, p = 0;
    float o[32] = {}, top = -INFINITY, den = 0;
    struct output out = {};
    find_place(&j, (int)blockIdx.x / SLICES, &w); /* before the wait: as value_kernel */
    load_ending(&j, w.t, w.group, &s->end, me);
    if (me == 0)
        mma_copy_barriers(s->arrived, ROUND / TRIO);
    clear_rest(w.n, values);
    gpu_sync();
    gpu_wait_before();
    GPU_ROLLED
    for (;;) {
        int n = w.n - p, phase = p / ROUND % 2;
        if (me >= MMA_GROUP) {
            weigh_round(&j, &w, p, me - MMA_GROUP, s, &top, &den);
            part_arrive(FACTORS_READY, THREADS);
        } else {
            copy_round(&j, &w, p, slice, s, weights, values);
            if (p == 0) /* while they come */
                out = find_output(&j, &w, slice * MMA_BLOCK, MMA_BLOCK, &s->end);
            part_sync(FACTORS_READY, THREADS);
            float shrink[2] = {s->shrink[my_head()], s->shrink[my_head() + 8]};
            shrink_sums(o, shrink);
            trios<0>::start(s, n, phase, weights, values, o);
            wgmma_wait<0>();
            wgmma_hold(o);
        }
        p += ROUND;
        if (p >= w.n)
            break;
        gpu_sync(); /* nobody reads the round's weights and values any more */
        clear_rest(w.n - p, values);
        gpu_sync();
    }
    if (me < MMA_GROUP) {
        float over[2] = {s->over[my_head()], s->over[my_head() + 8]};
        store_output(&j, &out, over, o);
    }
}

/* ---------------------------------------------------------------- launcher */

/* Scratch of a row of a launch. */
static int64_t row_bytes(int64_t pieces, int64_t groups)
{
    return pieces * groups * (STEPS * MMA_GROUP * 16 + (int64_t)sizeof(struct piece_stat));
}
enum { ROUNDING = 4 * 256, KEPT_TILES = MMA_SIZE(1024, 48) };
/* Scratch of slice_kernel's values: of `rows` rows; 0: they may have too many pieces. */
static int64_t kept_bytes(int64_t rows, int64_t pieces)
{
    return rows * pieces <= KEPT_TILES ? rows * pieces * TILE_BYTES : 0;
}

/* Which kernel finds the scores of so many rows and groups of heads, and its blocks a row and group: places for
 * slice_kernel beside it are worth more than a block for each half piece. */
typedef void (*score_fn)(struct attention_sm90_job);
struct score_how {
    score_fn kernel;
    int spread, bytes;
};
static struct score_how choose_scores(int64_t blocks, int pieces, bool kept)
{
    int64_t places = SCORE_FILL / blocks;
    int spread = (int)FST_MAX(1, FST_MIN((int64_t)pieces, places));
    if (!kept)
        return {score_kernel, spread, SCORE_BYTES};
    if (2 * pieces <= places)
        return {piece_kernel<1>, 2 * pieces, PIECE_BYTES};
    return {piece_kernel<2>, spread, PIECE_BYTES};
}

static void launch_few(struct attention_sm90_job *j, struct gpu_cut *cut, struct stream *s)
{
    int64_t n = j->rows.n_rows, row = row_bytes(j->pieces, j->groups);
    int64_t kept = kept_bytes(n, j->pieces);
    if (kept)
        j->values = gpu_take<uint8_t>(cut, kept);
    int64_t rows = FST_MIN(n, ((int64_t)cut->left - ROUNDING) / row), pieces = rows * j->pieces;
    FST_ASSERT(kept ? rows == n : rows > 0);
    j->weight = gpu_take<struct gpu_words>(cut, pieces * j->groups * STEPS * MMA_GROUP);
    j->stat = gpu_take<struct piece_stat>(cut, pieces * j->groups);
    for (j->first = 0; j->first < n; j->first += (int)rows) {
        int64_t blocks = FST_MIN(rows, n - j->first) * j->groups;
        struct score_how how = choose_scores(blocks, j->pieces, kept);
        j->spread = how.spread;
        gpu_launch_early(how.kernel, blocks * j->spread, THREADS, (size_t)how.bytes, s, *j);
        if (kept)
            gpu_launch_early(slice_kernel, blocks * SLICES, THREADS, SLICE_BYTES, s, *j);
        else
            gpu_launch_early(value_kernel<4>, blocks * 2, THREADS, VALUE_BYTES, s, *j);
    }
}

#endif
