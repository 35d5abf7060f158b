/* attention.cuh - what the kernels of attention.cu share: sizes, the job, and the keys of a row: where they
 * lie, how they are loaded and unpacked into a tile. */
#ifndef FST_KERNELS_SM90_ATTENTION_CUH
#define FST_KERNELS_SM90_ATTENTION_CUH

#include "kernels/gpu/keys.cuh"
#include "kernels/sm90/mma.cuh"
#include "kernels/sm90/operand.cuh"

enum {
    TILE = KEYS_PIECE,
    DIM = 512,
    HEADS = 64, /* of a block; absent ones are zeros */
    THREADS = 2 * MMA_GROUP,
    WAVES = THREADS / 32,
    SCOUTS = TILE, /* threads that look for keys while the others load queries */
    UNITS = TILE / WAVES,
    BLOCK_BYTES = TILE * MMA_LINE, /* 64 rows of 64 values */
    TILE_BYTES = DIM / MMA_BLOCK * BLOCK_BYTES,
    STEPS = TILE / 16,
    WINDOW = 1024,                  /* places of keys in shared memory at a time */
    SCORE_FILL = MMA_SIZE(132, 12), /* blocks of score_kernel, one per processor */
    WHOLE_FROM = MMA_SIZE(40, 16)   /* rows and groups of heads from which whole_kernel is faster */
};
#define NO_KEY INT32_MIN

/* Rows of ROW_PAGED, whose addresses take more to work out, have kernels of their own (attention_paged.cu). */
#ifndef ATTENTION_PAGED
#define ATTENTION_PAGED false
#endif
#define PAGED ATTENTION_PAGED

struct attention_sm90_job {
    struct rows rows;
    struct kv_layer l;
    struct attention_args a; /* its rows and l are the host's: not to be followed */
    /* by row of the launch, group of heads, piece */
    struct gpu_words *weight; /* (STEPS, MMA_GROUP) A of the second product */
    struct piece_stat *stat;  /* attention_sums.cuh */
    uint8_t *values;          /* NULL, or by row, piece: TILE_BYTES, the piece's tile */
    uint16_t *own;            /* whole_kernel's: (rows of the step, DIM) kv as bf16 */
    float scale;              /* of scores, log2 e in it */
    int first, pieces;        /* row of the step; pieces of a row, at most */
    int groups, spread;
};

/* ---------------------------------------------------------------- keys */

/* Where a block is: its row, and the pieces of the row. */
struct place {
    struct row_at at;
    struct range r[2];
    int t, row, group, n; /* row of the step, of the launch; heads; pieces */
};

/* The row of the step that item `block` of the launch is about, which copies wrote before the first launch of
 * the step: they may be read before the kernel in front is done.  Read by every lane of the waves that call.
 * All loads go out at once, but where spans must be looked up. */
GPU_FN void place_row(const struct attention_sm90_job *j, int block, struct place *w)
{
    const struct rows *r = &j->rows;
    bool single = r->n_spans == r->n_rows, one = r->n_spans == 1;
    w->row = block / j->groups;
    w->group = block % j->groups;
    w->t = j->first + w->row;
    w->at.slot = r->slot[w->t];
    w->at.pos = r->pos[w->t];
    w->at.first = single ? w->t : 0;
    w->at.last = single ? w->t + 1 : r->n_rows;
    if (!single && !one) {
        int span = r->span[w->t];
        w->at.first = r->span_first[span];
        w->at.last = r->span_first[span + 1];
    }
    w->at.start = w->at.pos - (w->t - w->at.first);
}
/* Its pieces; `chosen` entries are chosen for it. */
GPU_FN void place_pieces(const struct attention_sm90_job *j, struct place *w, int chosen)
{
    keys_ranges(&j->a, j->l.ratio, &w->at, chosen, w->r);
    w->n = range_pieces(&w->r[0]) + range_pieces(&w->r[1]);
    ROWS_CHECK(w->n <= j->pieces);
}
GPU_FN void find_place(const struct attention_sm90_job *j, int block, struct place *w)
{
    int chosen = keys_chosen(&j->a, j->l.ratio, j->first + block / j->groups);
    place_row(j, block, w);
    place_pieces(j, w, chosen);
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

/* The chosen entry that key i of piece p of row t is when the window has two pieces, and three, as it has
 * but at the start of a sequence: so it is read together with the row's position, not after it. */
struct early {
    int32_t entry[2];
};
GPU_FN struct early seek_early(const struct attention_sm90_job *j, int t, int p, int i)
{
    struct early e = {};
    GPU_UNROLL
    for (int k = 0; k < 2; k++) {
        int x = (p - 2 - k) * TILE + i;
        if (j->a.mode == ATTN_CAUSAL && j->l.ratio == 4 && x >= 0 && x < j->a.topk)
            e.entry[k] = j->a.sel[(int64_t)t * j->a.topk + x];
    }
    return e;
}

/* Key i of piece p; early: NULL, or of this key. */
GPU_FN void seek_start(const struct attention_sm90_job *j, const struct place *w, int p, int i,
                       const struct early *early, struct seek *k)
{
    struct range of = keys_piece(w->r, p);
    int some = range_pieces(&w->r[0]);
    k->kind = of.kind;
    k->x = -1;
    if (p >= w->n || of.lo + i > of.hi)
        return;
    k->x = of.lo + i;
    if (k->kind != RANGE_SELECTED)
        return;
    if (early && (some == 2 || some == 3))
        k->x = some == 2 ? early->entry[0] : early->entry[1];
    else
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

GPU_FN bool is_scout(void)
{
    return (int)threadIdx.x < SCOUTS;
}

/* What a lane loads of a key: 16 codes and all scales of the row, or 16 values as bf16. */
struct raw_part {
    struct gpu_words a, b;
};

/* Whether rows of the layer have codes, and whether the 16 values are such. */
GPU_FN bool is_coded(const struct attention_sm90_job *j)
{
    return PAGED || j->l.format == ROW_FP8;
}
GPU_FN bool has_codes(const struct attention_sm90_job *j, int part)
{
    return is_coded(j) && part < ROWS_FP8_NOPE / 16;
}

/* Codes of row `at` of a layer that has such. */
GPU_FN const uint8_t *coded_row(const struct attention_sm90_job *j, int32_t at)
{
    uint8_t *scale;
    if (PAGED)
        return rows_place(&j->l, FST_MAX(at, 0), &scale);
    return j->l.nope + (int64_t)FST_MAX(at, 0) * ROWS_FP8_BYTES;
}
/* Its rope dims, bf16. */
GPU_FN const uint8_t *rope_row(const struct attention_sm90_job *j, int32_t at)
{
    return PAGED ? coded_row(j, at) + ROWS_FP8_NOPE : j->l.rope + (int64_t)at * ROWS_ROPE_BYTES;
}

/* Where a lane's 16 values of the rows of the layer are: of row 0, what it loads first and from there on second;
 * bytes of a row.  Of paged rows the lane's part. */
struct source {
    const uint8_t *p;
    int second, line;
    const struct attention_sm90_job *j;
    int part;
};

GPU_FN struct source find_source(const struct attention_sm90_job *j, int part)
{
    if (PAGED)
        return {NULL, 0, 0, j, part};
    if (has_codes(j, part))
        return {j->l.nope + 16 * part, ROWS_FP8_NOPE - 16 * part, ROWS_FP8_BYTES, j, part};
    if (j->l.format == ROW_FP8)
        return {j->l.rope + 32 * part - 2 * ROWS_FP8_NOPE, 16, ROWS_ROPE_BYTES, j, part};
    return {j->l.nope + 32 * part, 16, 2 * DIM, j, part};
}

/* As fetch.  Scales are 8 bytes, 8 from the next row's, behind which a page has room. */
GPU_FN struct raw_part fetch_paged(const struct source *from, int32_t at)
{
    bool codes = from->part < ROWS_FP8_NOPE / 16;
    uint8_t *scale;
    const uint8_t *p = rows_place(&from->j->l, FST_MAX(at, 0), &scale);
    const uint8_t *first = p + (codes ? 16 : 32) * from->part - (codes ? 0 : ROWS_FP8_NOPE);
    const uint8_t *second = codes ? scale : first + 16;
    struct rows_half low = gpu_load_as<struct rows_half>(second);
    struct rows_half high = gpu_load_as<struct rows_half>(second + 8);
    return {gpu_load16(first), {{low.w[0], low.w[1], high.w[0], high.w[1]}}};
}

/* 16 values of a key of the layer as they lie in memory; of others anything.  No branches, and what is loaded is
 * not looked at: lanes of a wave that load the same register behind a branch wait for each other's loads. */
GPU_FN struct raw_part fetch(const struct source *from, int32_t at)
{
    if (PAGED)
        return fetch_paged(from, at);
    const uint8_t *p = from->p + (int64_t)FST_MAX(at, 0) * from->line;
    return {gpu_load16(p), gpu_load16(p + from->second)};
}

/* Towards the card's cache: a row of the layer that will be wanted soon; a paged one's scales. */
GPU_FN void hint_scale(const struct attention_sm90_job *j, int32_t at)
{
    uint8_t *scale;
    if (!PAGED)
        return;
    (void)rows_place(&j->l, at, &scale);
    gpu_prefetch(scale);
}
GPU_FN void hint_row(const struct attention_sm90_job *j, int32_t at)
{
    bool coded = is_coded(j);
    int line = coded ? ROWS_FP8_BYTES : 2 * DIM;
    const uint8_t *p = coded ? coded_row(j, at) : j->l.nope + (int64_t)at * line;
    if (at < 0)
        return;
    for (int i = 0; i < line; i += MMA_LINE)
        gpu_prefetch(p + i);
    if (coded)
        gpu_prefetch(rope_row(j, at) + (PAGED ? ROWS_ROPE_BYTES - 1 : 0)); /* the row's end */
    hint_scale(j, at);
}

GPU_FN void round_own(const float *x, struct gpu_words out[2])
{
    for (int i = 0; i < 4; i++) {
        struct gpu_quad v = gpu_load4(x + 4 * i);
        out[i / 2].w[i % 2 * 2] = mma_pair(v.v[0], v.v[1]);
        out[i / 2].w[i % 2 * 2 + 1] = mma_pair(v.v[2], v.v[3]);
    }
}

/* The scale of a lane's 16 codes, as mma_unpack takes it: the row's are twice a byte, of paged rows once, one for
 * 4 lanes. */
GPU_FN uint32_t find_scale(const struct raw_part *r, int part)
{
    if (PAGED)
        return mma_bytes(r->b.w[0], r->b.w[1], (uint32_t)(part / 4) * 0x1111u) & 0x00ff00ffu;
    uint32_t u = part & 16 ? r->b.w[2] : r->b.w[0], v = part & 16 ? r->b.w[3] : r->b.w[1];
    uint32_t both = mma_bytes(u, v, (uint32_t)(part / 4 % 4) * 0x2222u);
    return both & 0x00ff00ffu;
}

/* The same 16 values of N keys into rows of a tile, those of the first key to row `key` of a block, the others
 * `stride` bytes further each, a multiple of 8 rows; unless put_own_part has to.  Lanes of odd blocks write their
 * second chunk first, so that 8 neighbours meet no bank twice. */
template <int N>
GPU_FN void put_keys(const struct attention_sm90_job *j, const struct raw_part (&raw)[N],
                     const int32_t (&at)[N], int part, uint8_t *block, int key, int stride,
                     int swap)
{
    int c = part % 4 * 2;
    uint8_t *first = block + mma_place(key, c + swap),
            *second = block + mma_place(key, c + 1 - swap);
    uint32_t codes[N];
    bool coded = has_codes(j, part), rare = false;
    GPU_UNROLL
    for (int u = 0; u < N; u++) {
        struct gpu_words out[2];
        codes[u] = find_scale(&raw[u], part) & (coded && at[u] >= 0 ? ~0u : 0);
        rare |= at[u] == NO_KEY || mma_has_rest(codes[u]);
        mma_unpack_by(raw[u].a, mma_scale(codes[u]), out);
        /* bit by bit: of a choice between two stores the compiler makes a branch */
        uint32_t take = coded && at[u] >= 0 ? ~0u : 0;
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            out[0].w[i] = (out[0].w[i] & take) | (raw[u].a.w[i] & ~take);
            out[1].w[i] = (out[1].w[i] & take) | (raw[u].b.w[i] & ~take);
        }
        mma_store16(first + u * stride, swap ? out[1] : out[0]);
        mma_store16(second + u * stride, swap ? out[0] : out[1]);
    }
    if (!rare)
        return;
    GPU_UNROLL
    for (int u = 0; u < N; u++)
        for (int i = 0; i < 2 && (at[u] == NO_KEY || mma_has_rest(codes[u])); i++) {
            uint8_t *p = (i ? second : first) + u * stride;
            struct gpu_words x = {};
            if (at[u] != NO_KEY) {
                x = mma_load16(p);
                mma_rest(codes[u], &x);
            }
            mma_store16(p, x);
        }
}

/* A lane's 16 values of a key of the step: over what put_keys left in their place. */
GPU_FN void put_own_part(const struct attention_sm90_job *j, int32_t at, int part, uint8_t *block,
                         int key)
{
    struct gpu_words out[2];
    if (at >= 0 || at == NO_KEY)
        return;
    round_own(j->a.kv + (int64_t)(-1 - at) * DIM + 16 * part, out);
    for (int i = 0; i < 2; i++)
        mma_store16(block + mma_place(key, part % 4 * 2 + i), out[i]);
}
/* N keys of a lane, `step` apart in `at` and in the tile.  One after another: there are few of the step, and the
 * code of the others is half as long without them. */
template <int N>
GPU_FN void put_own(const struct attention_sm90_job *j, const int32_t *at, int part, uint8_t *block,
                    int key, int step)
{
    GPU_ROLLED
    for (int u = 0; u < N; u++)
        put_own_part(j, at[u * step], part, block, key + u * step);
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
    struct source s = find_source(j, gpu_lane());
    my_keys(at, mine);
    GPU_UNROLL
    for (int u = 0; u < UNITS; u++)
        raw[u] = fetch(&s, mine[u]);
}
/* Those of the wave's N keys from the first-th on that are of the step. */
template <int N>
GPU_FN void put_own_keys(const struct attention_sm90_job *j, const int32_t *at, int first,
                         uint8_t *tile)
{
    int part = gpu_lane(), key = gpu_wave() + first * WAVES;
    put_own<N>(j, at + key, part, tile + part / 4 * BLOCK_BYTES, key, WAVES);
}
/* The wave's keys from the first-th on, unless they are of the step. */
template <int N>
GPU_FN void put_wave_keys(const struct attention_sm90_job *j, const int32_t (&at)[N],
                          const struct raw_part (&raw)[N], int first, uint8_t *tile)
{
    int part = gpu_lane(), key = gpu_wave() + first * WAVES;
    put_keys(j, raw, at, part, tile + part / 4 * BLOCK_BYTES, key, WAVES * MMA_LINE, part / 4 & 1);
}

#endif
