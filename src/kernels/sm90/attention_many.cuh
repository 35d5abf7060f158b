/* attention_many.cuh - the kernel of attention.cu where rows are many: a block takes 64 heads of one row
 * after another, and nothing goes through scratch.
 *
 * Two warpgroups multiply; two others load and unpack, up to two pieces ahead and over the end of a row.
 * A piece takes 1,536 clocks for its scores (bound by shared memory: every k16 step of 32 keys reads 2 KB
 * of queries and 1 KB of keys) and 1,024 for its values; meanwhile its loaders have 1,400 instructions on
 * each of the four schedulers, its multipliers 1,100.  So none may wait for the other.  The multipliers hold
 * 128 sums a thread; setmaxnreg shares the registers out. */
#ifndef FST_KERNELS_SM90_ATTENTION_MANY_CUH
#define FST_KERNELS_SM90_ATTENTION_MANY_CUH

#include "kernels/sm90/attention_sums.cuh"

enum {
    BOTH = 2 * THREADS, /* multipliers and as many loaders */
    MULTIPLIER_REGISTERS = 192,
    LOADER_REGISTERS = 64,          /* together 256: all of a processor's, over 4 warpgroups */
    MANY_BLOCKS = MMA_SIZE(132, 5), /* one per processor */
    AHEAD = 4,                      /* keys of a wave on their way */
    PLACES = 4,                     /* rows of a block that are in work at once */
    WINDOW_PIECES = WINDOW / TILE,
    /* barriers */
    TILE_FULL = 1, /* and the next: of the two tiles */
    TILE_FREE = 3,
    QUERIES_FREE = 5,
    MULTIPLIERS = 6,
    LOADERS = 7
};

struct many_shared {
    struct place w[PLACES];
    struct ending end[PLACES];
    int32_t at[WINDOW + 2 * THREADS]; /* places of keys, and of a piece more */
    struct piece_stat stat;
    struct gpu_words weight[STEPS * MMA_GROUP];
};
enum { MANY_BYTES = 3 * TILE_BYTES + MMA_ALIGN + (int)sizeof(struct many_shared) };

struct many {
    uint8_t *q, *tile; /* two, one after another */
    struct many_shared *s;
};

/* ---------------------------------------------------------------- loaders */

/* Worked out where it is used: loaders have few registers. */
GPU_FN int loader(void)
{
    return mma_anew((int)threadIdx.x) - THREADS;
}
GPU_FN int loader_wave(void)
{
    return gpu_wave() - WAVES;
}

/* Places of the keys of pieces p .. of a row, as many as there is room for, and of the piece behind; where
 * there is no key, row 0.  Two keys of a thread at once, which hides some of the three loads that each may
 * take one after another. */
GPU_FN void find_places(const struct attention_sm90_job *j, const struct place *w, int p,
                        int32_t *at)
{
    enum { AT_ONCE = 2 };
    for (int first = loader(); first < WINDOW + TILE; first += AT_ONCE * THREADS) {
        struct seek k[AT_ONCE];
        if (p + first / TILE > w->n)
            break;
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            int key = first + i * THREADS;
            seek_start(j, w, p + key / TILE, key % TILE, NULL, &k[i]);
        }
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            seek_page(j, w, &k[i]);
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            at[first + i * THREADS] = k[i].x < 0 ? 0 : seek_end(j, w, &k[i]);
    }
}

/* The queries of an item, which is 64 heads of a row, towards the card's cache. */
GPU_FN void hint_queries(const struct attention_sm90_job *j, int item)
{
    int first = item % j->groups * HEADS, heads = FST_MIN(j->a.n_heads - first, (int)HEADS);
    int line = DIM * (j->a.packed ? 2 : 4);
    int64_t at = ((int64_t)(item / j->groups) * j->a.n_heads + first) * line;
    for (int i = loader() * MMA_LINE; i < heads * line; i += THREADS * MMA_LINE)
        gpu_prefetch((const uint8_t *)j->a.q + at + i);
}

/* The queries of a row, once the multipliers are through with those of the row before. */
GPU_FN void next_queries(const struct attention_sm90_job *j, const struct many *b,
                         const struct place *w, bool first)
{
    if (!first)
        part_sync(QUERIES_FREE, BOTH);
    if (j->a.packed)
        load_packed<THREADS>(j, w->t, w->group, b->q, loader());
    else
        load_queries<WAVES, 1>(j, w->t, w->group, b->q, loader() / 32);
    copies_wait<0>();
}

/* A lane's 16 values of the keys that it loads: where they are, of row 0 of the layer and of the step; what
 * is loaded second lies `second` further; where they go in a tile.  A wave has the keys of its number and
 * every WAVES-th, lanes of odd blocks those of the next or last wave: their chunks are crossed otherwise
 * then, and 8 neighbours meet no bank twice. */
struct route {
    const uint8_t *layer, *own;
    int line, second, first, to[2]; /* bytes of a row of the layer; the lane's first key */
};

GPU_FN struct route find_route(const struct attention_sm90_job *j, int part)
{
    struct sources s = find_sources(j, part);
    int odd = part / 4 & 1, key = loader_wave() ^ odd, block = part / 4 * BLOCK_BYTES;
    return {s.layer.p,
            s.own.p - s.own.line, /* its rows are numbered from -1 down */
            s.layer.line,
            s.layer.second,
            key,
            {block + mma_place(key, part % 4 * 2), block + mma_place(key, part % 4 * 2 + 1)}};
}

/* As fetch and put, with less to work out for a key: the loaders' instructions are what a piece takes. */
GPU_FN struct raw_part fetch_key(const struct route *r, int32_t at)
{
    bool mine = at < 0;
    const uint8_t *p = mine ? r->own : r->layer;
    struct raw_part x;
    p += (int64_t)at * (mine ? -2 * DIM : r->line);
    x.a = gpu_load16(p);
    x.b = gpu_load16(p + (mine ? 16 : r->second));
    return x;
}
GPU_FN void put_key(const struct route *r, const struct raw_part *raw, bool codes, int part,
                    uint8_t *to)
{
    struct gpu_words out[2] = {raw->a, raw->b};
    if (codes)
        mma_unpack(raw->a, find_scale(raw, part), out);
    mma_store16(to + r->to[0], out[0]);
    mma_store16(to + r->to[1], out[1]);
}

/* Rows of a tile beyond its keys: nothing, whatever was loaded for them. */
GPU_FN void clear_keys(const struct route *r, int keys, uint8_t *tile)
{
    GPU_ROLLED
    for (int u = 0; u < UNITS; u++)
        if (r->first + u * WAVES >= keys) {
            mma_store16(tile + r->to[0] + u * WAVES * MMA_LINE, {});
            mma_store16(tile + r->to[1] + u * WAVES * MMA_LINE, {});
        }
}

/* Pieces p .. last-1 of a row, whose keys' places are known: tiles t .. of the block. */
GPU_FN void load_pieces(const struct attention_sm90_job *j, const struct many *b,
                        const struct place *w, int p, int last, int t)
{
    int part = mma_anew(gpu_lane());
    struct route r = find_route(j, part);
    const int32_t *at = b->s->at + r.first;
    bool codes = has_codes(j, part);
    struct raw_part raw[AHEAD];
    GPU_UNROLL
    for (int u = 0; u < AHEAD; u++)
        raw[u] = fetch_key(&r, at[u * WAVES]);
    for (; p < last; p++, t++, at += TILE) {
        uint8_t *tile = b->tile + t % 2 * TILE_BYTES;
        int keys = piece_keys(w, p);
        if (t >= 2)
            part_sync(TILE_FREE + t % 2, BOTH);
        GPU_UNROLL
        for (int u = 0; u < UNITS; u++) {
            put_key(&r, &raw[u % AHEAD], codes && at[u * WAVES] >= 0, part,
                    tile + u * WAVES * MMA_LINE);
            raw[u % AHEAD] = fetch_key(&r, at[(u + AHEAD) * WAVES]);
        }
        if (keys < TILE)
            clear_keys(&r, keys, tile);
        if (p == 0)
            next_queries(j, b, w, t == 0);
        shared_to_wgmma();
        part_arrive(TILE_FULL + t % 2, BOTH);
    }
}

/* They are up to two pieces ahead of what is multiplied, and a row more of what is stored: so the place
 * that is overwritten is of a row that is over. */
GPU_FN void load_rows(const struct attention_sm90_job *j, const struct many *b)
{
    int row = 0, t = 0, step = (int)gridDim.x;
    for (int i = (int)blockIdx.x; i < j->rows.n_rows * j->groups; i += step, row++) {
        struct place *w = &b->s->w[row % PLACES];
        if (loader() < 32) {
            struct place mine;
            find_place(j, i, &mine);
            mine.n = FST_MAX(1, mine.n); /* a row without keys has an empty piece: its sums are 0 */
            if (gpu_lane() == 0)
                *w = mine;
        } else
            load_ending(j, i / j->groups, i % j->groups, &b->s->end[row % PLACES], loader() - 32);
        if (i + step < j->rows.n_rows * j->groups)
            hint_queries(j, i + step);
        part_sync(LOADERS, THREADS);
        for (int p = 0; p < w->n; p += WINDOW_PIECES) {
            int last = FST_MIN(w->n, p + WINDOW_PIECES);
            find_places(j, w, p, b->s->at);
            part_sync(LOADERS, THREADS);
            load_pieces(j, b, w, p, last, t);
            t += last - p;
            part_sync(LOADERS, THREADS); /* nobody is in the places any more */
        }
    }
}

/* ---------------------------------------------------------------- multipliers */

/* Scores of the block's piece t: under way. */
GPU_FN void start_scores(const struct many *b, int t, float (&s)[16])
{
    part_sync(TILE_FULL + t % 2, BOTH);
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        s[i] = 0;
    add_scores<DIM / 16>(b->q, b->tile + t % 2 * TILE_BYTES, 0, s);
    wgmma_end();
}

/* Scores of a piece are done: its weights, those of both halves in both warpgroups, against the largest
 * maximum so far, and the sums of the pieces before relative to it.  What is shared may be overwritten
 * behind the next TILE_FULL, which is a barrier of the multipliers too. */
GPU_FN void next_weights(const struct attention_sm90_job *j, const struct many *b, int keys,
                         float (&s)[16], struct weigher *g, uint32_t (&a)[STEPS][4],
                         float (&o)[128])
{
    struct gpu_words *weight = b->s->weight + (int)threadIdx.x % MMA_GROUP;
    float top[2], den[2], shrink[2];
    uint32_t mine[2][4], factor[2][2];
    struct halves both;
    find_weights(j, keys, s, top, den, mine);
    for (int k = 0; k < 2; k++)
        weight[(2 * my_half() + k) * MMA_GROUP] = {
            {mine[k][0], mine[k][1], mine[k][2], mine[k][3]}};
    put_stat(&b->s->stat, top, den);
    part_sync(MULTIPLIERS, THREADS);
    GPU_UNROLL
    for (int i = 0; i < 4 * STEPS; i++)
        a[i / 4][i % 4] = weight[i / 4 * MMA_GROUP].w[i % 4];
    get_stat(&b->s->stat, &both);
    weigh(g, &both, shrink, factor);
    scale_weights(a, factor);
    shrink_sums(o, shrink);
}

/* A row, pieces t .. of the block.  The scores of a piece are issued right behind the product of the weights
 * before, so that the matrix units rest only while weights are found. */
GPU_FN int multiply_row(const struct attention_sm90_job *j, const struct many *b,
                        const struct place *w, const struct ending *e, int t)
{
    struct weigher g = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[128] = {}, s[16];
    start_scores(b, t, s);
    for (int p = 0; p < w->n; p++, t++) {
        uint32_t a[STEPS][4];
        wgmma_wait<0>();
        wgmma_hold(s);
        if (p == w->n - 1)
            part_arrive(QUERIES_FREE, BOTH);
        next_weights(j, b, piece_keys(w, p), s, &g, a, o);
        start_values(a, b->tile + t % 2 * TILE_BYTES + my_half() * 4 * BLOCK_BYTES, BLOCK_BYTES, o);
        if (p + 1 < w->n) {
            start_scores(b, t + 1, s);
            wgmma_wait<1>();
        } else
            wgmma_wait<0>();
        wgmma_hold(o);
        part_arrive(TILE_FREE + t % 2, BOTH);
    }
    wgmma_wait<0>(); /* for the compiler, which does not see that nothing is under way */
    wgmma_hold(o);
    store_output(j, w, &g, my_half() * 256, o, e);
    return t;
}

GPU_KERNEL void GPU_BOUNDS(BOTH, 1) whole_kernel(struct attention_sm90_job j)
{
    gpu_start();
    GPU_DYNAMIC(uint8_t, bytes);
    struct many b;
    b.q = mma_aligned(bytes);
    b.tile = b.q + TILE_BYTES;
    b.s = (struct many_shared *)(void *)(b.tile + 2 * TILE_BYTES);
    if ((int)threadIdx.x >= THREADS) {
        fewer_registers<LOADER_REGISTERS>();
        load_rows(&j, &b);
        return;
    }
    more_registers<MULTIPLIER_REGISTERS>();
    int t = 0, row = 0;
    for (int i = (int)blockIdx.x; i < j.rows.n_rows * j.groups; i += (int)gridDim.x) {
        t = multiply_row(&j, &b, &b.s->w[row % PLACES], &b.s->end[row % PLACES], t);
        row++;
    }
}

static void launch_many(struct attention_sm90_job *j, struct stream *s)
{
    int64_t items = (int64_t)j->rows.n_rows * j->groups;
    gpu_launch_early(whole_kernel, FST_MIN(items, (int64_t)MANY_BLOCKS), BOTH, MANY_BYTES, s, *j);
}

#endif
