/* attention_many.cuh - the kernel of attention.cu where rows are many: a block takes 64 heads of one row
 * after another, and nothing goes through scratch.
 *
 * Two warpgroups multiply; two others load and unpack, up to two pieces ahead and over the end of a row.
 * A piece takes 1,536 clocks for its scores (bound by shared memory: every k16 step of 32 keys reads 2 KB
 * of queries and 1 KB of keys) and 1,024 for its values; between the two the matrix units rest for about
 * 600, while weights are found.  Meanwhile its loaders have some 800 instructions on each of the four
 * schedulers, most of them on a unit that takes one in two clocks; they begin with a tile when it is free,
 * with its codes in registers, and have 2,100 clocks.  The multipliers hold 128 sums a thread; setmaxnreg
 * shares the registers out. */
#ifndef FST_KERNELS_SM90_ATTENTION_MANY_CUH
#define FST_KERNELS_SM90_ATTENTION_MANY_CUH

#include "kernels/sm90/attention_sums.cuh"

enum {
    BOTH = 2 * THREADS, /* multipliers and as many loaders */
    MULTIPLIER_REGISTERS = 192,
    LOADER_REGISTERS = 64,          /* together 256: all of a processor's, over 4 warpgroups */
    MANY_BLOCKS = MMA_SIZE(132, 5), /* one per processor */
    HINTED = 3,                     /* pieces from its hint to where a key is loaded */
    PLACES = 8,                     /* rows of a block that are in work at once, 5, and more */
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
    int32_t at[WINDOW]; /* places of keys */
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

/* Places of the keys of pieces p .. of a row, as many as there is room for.  Several keys of a thread at
 * once, which hides most of the three loads that each may take one after another. */
GPU_FN void find_places(const struct attention_sm90_job *j, const struct place *w, int p,
                        int32_t *at)
{
    enum { AT_ONCE = 3 };
    for (int first = loader(); first < WINDOW; first += AT_ONCE * THREADS) {
        struct seek k[AT_ONCE];
        if (p + first / TILE >= w->n)
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
            if (first + i * THREADS < WINDOW)
                at[first + i * THREADS] = seek_end(j, w, &k[i]);
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

/* The queries of an item: on their way.  Before, the multipliers must be through with those of the last one. */
GPU_FN void start_queries(const struct attention_sm90_job *j, const struct many *b, int item)
{
    if (j->a.packed)
        load_packed<THREADS>(j, item / j->groups, item % j->groups, b->q, loader());
    else
        load_queries<WAVES, 2>(j, item / j->groups, item % j->groups, b->q, loader() / 32);
}

/* What a lane does for a tile.  Codes go through registers, all of a tile at once: what a wave waits for is
 * then one trip to the card's memory a tile, and no other.  (With four keys under way, each loaded where
 * one had been unpacked, the compiler counted all loads together and a tile took three trips.)  The wave has
 * the keys of its number and every WAVES-th, lanes of odd blocks those of the next or last wave: their
 * chunks are crossed otherwise then, and 8 neighbours meet no bank twice. */
struct route {
    int first,
        to; /* the lane's first key; where the first chunk of it goes in a tile, the second beside it */
};
GPU_FN struct route find_route(int part)
{
    int key = loader_wave() ^ (part / 4 & 1);
    return {key, part / 4 * BLOCK_BYTES + mma_place(key, part % 4 * 2)};
}

struct codes {
    struct gpu_words c[UNITS];
    uint32_t even,
        odd; /* scales of key lane/4, of blocks 2(lane%4) and the next, whose keys are crossed */
    uint32_t there; /* bit u: key u of the lane has codes */
};

/* The scale of 64 values of a row, twice. */
GPU_FN uint32_t scale_of(const struct attention_sm90_job *j, int32_t at, int block)
{
    uint8_t *scale;
    if (!PAGED)
        return *(const uint16_t *)(const void *)(coded_row(j, at) + ROWS_FP8_NOPE + block * 2);
    (void)rows_place(&j->l, FST_MAX(at, 0), &scale);
    return scale[block] * 0x0101u;
}
/* The codes of a tile whose keys are at `at`: on their way.  Of other rows anything. */
GPU_FN void fetch_codes(const struct attention_sm90_job *j, const int32_t *at, struct codes *x)
{
    int part = mma_anew(gpu_lane()), first = find_route(part).first, wave = loader_wave();
    x->there = 0;
    if (!is_coded(j))
        return;
    int32_t even = at[wave + part / 4 * WAVES], odd = at[(wave ^ 1) + part / 4 * WAVES];
    x->even = scale_of(j, even, part % 4 * 2);
    x->odd = scale_of(j, odd, part % 4 * 2 + 1);
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++) {
        int32_t mine = at[first + u * WAVES];
        x->c[u] = gpu_load16(coded_row(j, mine) + 16 * part);
        x->there |= mine >= 0 && part < ROWS_FP8_NOPE / 16 ? 1u << u : 0;
    }
}

/* What lies as bf16 goes straight into the tile: rope dims, and whole rows if any of the tile may be such or
 * is none, which is zeros. */
GPU_FN void copy_plain(const struct attention_sm90_job *j, const int32_t *at, bool any,
                       uint8_t *tile)
{
    bool coded = is_coded(j);
    int lane = mma_anew(gpu_lane()), wave = loader_wave();
    GPU_UNROLL
    for (int i = 0; i < UNITS / 4; i++) {
        int key = wave + (lane / 8 + 4 * i) * WAVES, c = lane % 8;
        int32_t x = at[key];
        if (coded && x >= 0)
            mma_copy16(tile + ROWS_FP8_NOPE / MMA_BLOCK * BLOCK_BYTES + mma_place(key, c),
                       rope_row(j, x) + 16 * c);
    }
    GPU_ROLLED
    for (int key = wave; any && key < TILE; key += WAVES) {
        int32_t x = at[key];
        const uint8_t *p = x < 0 ? (const uint8_t *)j->own + (int64_t)(-1 - x) * DIM * 2
                                 : j->l.nope + (int64_t)x * DIM * 2;
        if (coded && x >= 0)
            continue;
        GPU_UNROLL
        for (int i = 0; i < 2; i++) {
            int c = lane + 32 * i;
            uint8_t *to = tile + c / 8 * BLOCK_BYTES + mma_place(key, c % 8);
            if (x == NO_KEY)
                mma_store16(to, {});
            else
                mma_copy16(to, p + 16 * c);
        }
    }
    copies_end();
}

GPU_FN void put_codes(const struct codes *x, uint8_t *tile)
{
    int part = mma_anew(gpu_lane());
    uint8_t *to = tile + find_route(part).to, *beside = tile + (find_route(part).to ^ 16);
    uint32_t scales = mma_bytes(x->even, x->odd, 0x5410);
    int crossed = part / 4 & 1;
    /* of wave w, keys w + 8u and (w ^ 1) + 8u: neighbouring halves of a word of lane 4u .. 4u+3 */
    uint32_t next = gpu_shfl(scales, part / 8);
    uint32_t rest = 0; /* bit u: of key u */
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++) {
        uint32_t both = mma_bytes(next, 0, crossed ? 0x4242 : 0x4040);
        struct gpu_words out[2];
        if (u + 1 < UNITS)
            next = gpu_shfl(scales, 4 * (u + 1) + part / 8);
        mma_unpack_by(x->c[u], mma_scale(both), out);
        rest |= mma_has_rest(both) ? 1u << u : 0;
        if (x->there >> u & 1) {
            mma_store16(to + u * WAVES * MMA_LINE, out[0]);
            mma_store16(beside + u * WAVES * MMA_LINE, out[1]);
        }
    }
    rest &= x->there;
    if (!wave_any(rest))
        return;
    GPU_ROLLED
    for (int u = 0; u < UNITS; u++) {
        uint32_t both = mma_bytes(gpu_shfl(scales, 4 * u + part / 8), 0, crossed ? 0x4242 : 0x4040);
        for (int i = 0; i < 2 && (rest >> u & 1); i++) {
            uint8_t *p = (i ? beside : to) + u * WAVES * MMA_LINE;
            struct gpu_words w = mma_load16(p);
            mma_rest(both, &w);
            mma_store16(p, w);
        }
    }
}

/* Rows that a later piece loads, towards the card's cache: a trip to its memory takes 1,500 clocks. */
GPU_FN void hint_piece(const struct attention_sm90_job *j, const int32_t *at)
{
    enum { EACH = THREADS / TILE };
    int32_t x = at[loader() / EACH];
    int line = loader() % EACH;
    if (!is_coded(j) || x < 0)
        return;
    gpu_prefetch(coded_row(j, x) + line * (ROWS_FP8_BYTES / EACH));
    if (line == 0)
        gpu_prefetch(rope_row(j, x) + (PAGED ? ROWS_ROPE_BYTES - 1 : 0));
    if (line == 1)
        hint_scale(j, x);
}

/* Where item i of the block is, and what the end of its row needs. */
GPU_FN void find_row(const struct attention_sm90_job *j, const struct many *b, int i, int row)
{
    if (loader() < 32) {
        struct place mine;
        find_place(j, i, &mine);
        mine.n = FST_MAX(1, mine.n); /* a row without keys has an empty piece: its sums are 0 */
        if (gpu_lane() == 0)
            b->s->w[row % PLACES] = mine;
    } else
        load_ending(j, i / j->groups, i % j->groups, &b->s->end[row % PLACES], loader() - 32);
}

/* Pieces p .. last-1 of row `row` of the block, whose keys' places are known: tiles t .. of the block.
 * next: the item after it, to be looked up while the first codes are on their way; -1: none. */
GPU_FN void load_pieces(const struct attention_sm90_job *j, const struct many *b,
                        const struct place *w, int p, int last, int t, int row, int next)
{
    const int32_t *at = b->s->at;
    struct codes x;
    fetch_codes(j, at, &x);
    for (int i = 1; i <= FST_MIN((int)HINTED, last - p - 1); i++)
        hint_piece(j, at + i * TILE);
    if (p == 0 && next >= 0) {
        hint_queries(j, next);
        find_row(j, b, next, row + 1);
    }
    for (; p < last; p++, t++, at += TILE) {
        uint8_t *tile = b->tile + t % 2 * TILE_BYTES;
        struct range of = keys_piece(w->r, p);
        bool any = of.kind == RANGE_POSITIONS || !is_coded(j) || of.hi - of.lo + 1 < TILE;
        if (t >= 2)
            part_sync(TILE_FREE + t % 2, BOTH);
        copy_plain(j, at, any, tile);
        put_codes(&x, tile);
        if (p == 0 && row > 0) {
            part_sync(QUERIES_FREE, BOTH);
            start_queries(j, b, w->t * j->groups + w->group);
        }
        copies_wait<0>();
        /* Before the scores start: while products have both operands in shared memory, a load from there takes a
         * microsecond. */
        if (p + 1 < last)
            fetch_codes(j, at + TILE, &x);
        if (p + 1 + HINTED < last)
            hint_piece(j, at + (1 + HINTED) * TILE);
        part_arrive(TILE_FULL + t % 2, BOTH);
    }
}

/* They are up to two pieces ahead of what is multiplied, and a row more of what is stored; the row after that
 * is looked up already: of rows of one piece, five are in work. */
GPU_FN void load_rows(const struct attention_sm90_job *j, const struct many *b)
{
    int row = 0, t = 0, step = (int)gridDim.x, items = j->rows.n_rows * j->groups;
    start_queries(j, b, (int)blockIdx.x); /* they come while keys are looked up: 2 us */
    find_row(j, b, (int)blockIdx.x, 0);
    for (int i = (int)blockIdx.x; i < items; i += step, row++) {
        const struct place *w = &b->s->w[row % PLACES];
        part_sync(LOADERS, THREADS);
        for (int p = 0; p < w->n; p += WINDOW_PIECES) {
            int last = FST_MIN(w->n, p + WINDOW_PIECES);
            find_places(j, w, p, b->s->at);
            part_sync(LOADERS, THREADS);
            load_pieces(j, b, w, p, last, t, row, i + step < items ? i + step : -1);
            t += last - p;
            if (last < w->n)
                part_sync(LOADERS, THREADS); /* nobody is in the places any more */
        }
    }
}

/* ---------------------------------------------------------------- multipliers */

/* Scores of the block's piece t: under way. */
GPU_FN void start_scores(const struct many *b, int t, float (&s)[16])
{
    part_sync(TILE_FULL + t % 2, BOTH);
    shared_to_wgmma(); /* here: it waits for all loads and prefetches of a thread, and a loader has many */
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
    get_stat(&b->s->stat, &both);
    GPU_UNROLL
    for (int k = 0; k < STEPS; k++) { /* word by word, 8 neighbours meet 4 times in a bank */
        struct gpu_words x = gpu_load16(weight + k * MMA_GROUP);
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            a[k][i] = x.w[i];
    }
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
        int keys = piece_keys(w, p);
        wgmma_wait<0>();
        wgmma_hold(s);
        if (p == w->n - 1)
            part_arrive(QUERIES_FREE, BOTH);
        next_weights(j, b, keys, s, &g, a, o);
        start_values(a, b->tile + t % 2 * TILE_BYTES + my_half() * 4 * BLOCK_BYTES, BLOCK_BYTES, o);
        wgmma_wait<0>();
        wgmma_hold(o);
        part_arrive(TILE_FREE + t % 2, BOTH);
        if (p + 1 < w->n)
            start_scores(b, t + 1, s);
    }
    wgmma_wait<0>(); /* for the compiler, which does not see that nothing is under way */
    wgmma_hold(o);
    store_weighed(j, w, &g, my_half() * 256, o, e);
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
