/* attention.inl - heads of a row over tiles of 64 keys.
 *
 * A unit is (row, HEADS heads).  Keys are decoded into a tile that serves as K and V for all heads:
 * on AVX-512 in bf16, once row-major for the scores and once with pairs of rows interleaved for
 * dpbf16 over rows; on AVX2 in floats.  Tiles of the window and of ratio-128 entries are anchored
 * at absolute positions, so neighbouring rows of a span (a verify block, a prefill chunk) use the
 * same ones: each worker keeps the last few.  What a row may not see gets weight 0, which changes no
 * sum; selected entries (ratio 4) are gathered per row.
 *
 * Tile: 64 rows of head_dim; row-major 64 KiB, interleaved 64 KiB: with the queries and outputs of 8
 * heads it stays in a 2 MiB L2. */
#include "kernels/cpu/simd.h"

enum {
    TILE = 64,
    HEADS = 8,
    WINDOW_TILES = 4,
    ENTRY_TILES = 2,
    CACHED = WINDOW_TILES + ENTRY_TILES
};

#if SIMD_WIDE
typedef uint16_t kval;
enum { PAIR = 2 };
#else
typedef float kval;
enum { PAIR = 1 };
#endif

struct keys {
    kval *k; /* (TILE, head_dim) */
    kval *v; /* (TILE/PAIR, head_dim, PAIR), dims of 32 as unpack leaves them; AVX2: k itself */
};

/* Which tile a cache slot holds: span, first position or entry, kind; span -1: nothing. */
struct tag {
    int span, kind;
    int64_t first;
};

struct worker {
    struct tag tag[CACHED];
    struct keys keys[CACHED + 1]; /* the last: gathered */
    kval *q;                      /* (HEADS, head_dim) */
    float *acc;                   /* (HEADS, head_dim), dims as in v */
    float *score;                 /* (HEADS, TILE) */
    kval *p;                      /* (HEADS, TILE) */
    float top[HEADS], den[HEADS], shrink[HEADS];
};

struct attn_job {
    const struct attention_args *a;
    uint8_t *scratch;
    size_t worker_bytes;
    int heads; /* per unit */
};

size_t SIMD_NAME(attention_worker)(int head_dim);

size_t SIMD_NAME(attention_worker)(int head_dim)
{
    size_t tile = (size_t)TILE * (size_t)head_dim * sizeof(kval);
    size_t heads = HEADS * (size_t)head_dim;
    return sizeof(struct worker) + 64 + (CACHED + 1) * tile * PAIR + heads * sizeof(kval) +
           heads * 4 + HEADS * TILE * (4 + sizeof(kval)) + 64;
}

static struct worker *worker_at(const struct attn_job *j, int worker)
{
    return (struct worker *)(void *)(j->scratch + (size_t)worker * j->worker_bytes);
}

static void worker_start(const struct attn_job *j, int worker)
{
    struct worker *w = worker_at(j, worker);
    int64_t dim = j->a->head_dim, tile = TILE * dim;
    uint8_t *p = (uint8_t *)w + round_up(sizeof *w, 64);
    for (int i = 0; i <= CACHED; i++) {
        w->keys[i].k = (kval *)(void *)p;
        p += tile * (int64_t)sizeof(kval);
        w->keys[i].v = PAIR == 2 ? (kval *)(void *)p : w->keys[i].k;
        p += PAIR == 2 ? tile * (int64_t)sizeof(kval) : 0;
    }
    for (int i = 0; i < CACHED; i++)
        w->tag[i].span = -1;
    w->acc = (float *)(void *)p;
    w->score = w->acc + HEADS * dim;
    w->q = (kval *)(void *)(w->score + HEADS * TILE);
    w->p = w->q + HEADS * dim;
}

/* ---------------------------------------------------------------- rows to keys */

#if SIMD_WIDE
/* 32 codes to bf16, times the scale of code `shift`+127-8 (see linear.inl); plain otherwise. */
SIMD_INLINE void put_fp8(kval *k, const uint8_t *p, uint8_t scale)
{
    __m512i c = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
    __mmask32 low = _mm512_testn_epi16_mask(c, _mm512_set1_epi16(0x78));
    if (__builtin_expect(low != 0 || scale < 64 || scale > 190, 0)) {
        vf s = v_set1(s_e8m0(scale));
        v_store_bf16(k, v_mul(v_load_e4m3(p), s));
        v_store_bf16(k + 16, v_mul(v_load_e4m3(p + 16), s));
        return;
    }
    c = _mm512_ternarylogic_epi32(_mm512_slli_epi16(c, 4), _mm512_set1_epi16((short)0x87f0),
                                  _mm512_set1_epi16(0x3800), 0xea);
    v_istore(k, _mm512_add_epi16(c, _mm512_set1_epi16((short)((scale - 119) * 128))));
}
SIMD_INLINE void put_bf16(kval *k, const uint8_t *p, int n)
{
    memcpy(k, p, (size_t)n * 2);
}
SIMD_INLINE void put_floats(kval *k, const float *x, int n)
{
    for (int i = 0; i < n; i += VL)
        v_store_bf16(k + i, v_load(x + i));
}
#else
SIMD_INLINE void put_fp8(kval *k, const uint8_t *p, uint8_t scale)
{
    vf s = v_set1(s_e8m0(scale));
    for (int i = 0; i < 32; i += VL)
        v_store(k + i, v_mul(v_load_e4m3(p + i), s));
}
SIMD_INLINE void put_bf16(kval *k, const uint8_t *p, int n)
{
    for (int i = 0; i < n; i += VL)
        v_store(k + i, v_load_bf16(p + 2 * i));
}
SIMD_INLINE void put_floats(kval *k, const float *x, int n)
{
    memcpy(k, x, (size_t)n * 4);
}
#endif

static void load_key(const struct kv_layer *l, int64_t row, kval *k, int head_dim, int rope_dim)
{
    FST_ASSERT(row >= 0);
    FST_ASSERT(row < l->n_rows);
    if (l->format == ROW_F32) {
        put_floats(k, (const float *)(const void *)(l->nope + row * head_dim * 4), head_dim);
        return;
    }
    if (l->format == ROW_BF16) {
        put_bf16(k, l->nope + row * head_dim * 2, head_dim);
        return;
    }
    if (l->format == ROW_PAGED) {
        uint8_t *scale;
        const uint8_t *q = rows_paged(l, row, &scale);
        for (int i = 0; i < ROWS_FP8_NOPE; i += 32)
            put_fp8(k + i, q + i, scale[i / ROWS_FP8_TILE]);
        put_bf16(k + ROWS_FP8_NOPE, q + ROWS_FP8_NOPE, rope_dim);
        return;
    }
    const uint8_t *p = l->nope + row * ROWS_FP8_BYTES;
    for (int i = 0; i < ROWS_FP8_NOPE; i += 32)
        put_fp8(k + i, p + i, p[ROWS_FP8_NOPE + 2 * (i / ROWS_FP8_TILE)]);
    put_bf16(k + ROWS_FP8_NOPE, l->rope + row * ROWS_ROPE_BYTES, rope_dim);
}

/* Rows first .. last-1 of the tile are keys; the others that share a four or a pair with them are
 * zero. */
static void tile_finish(const struct keys *t, int first, int last, int dim)
{
    for (int i = first & ~3; i < ((last + 3) & ~3); i++)
        if (i < first || i >= last)
            memset(t->k + (int64_t)i * dim, 0, (size_t)dim * sizeof(kval));
#if SIMD_WIDE
    for (int i = first / 2; i < (last + 1) / 2; i++) {
        const kval *a = t->k + (int64_t)2 * i * dim, *b = a + dim;
        kval *v = t->v + (int64_t)2 * i * dim;
        for (int d = 0; d < dim; d += 32) {
            __m512i x = _mm512_loadu_si512(a + d), y = _mm512_loadu_si512(b + d);
            v_istore(v + 2 * d, _mm512_unpacklo_epi16(x, y));
            v_istore(v + 2 * d + 32, _mm512_unpackhi_epi16(x, y));
        }
    }
#endif
}

/* ---------------------------------------------------------------- one tile for some heads */

#if SIMD_WIDE
enum { DOT = 32 };
SIMD_INLINE vf key_dot(vf acc, const kval *a, const kval *b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_loadu_si512(a), (__m512bh)_mm512_loadu_si512(b));
}
enum { BLOCK_HEADS = 4, BLOCK_KEYS = 4 };
#else
enum { DOT = 8 };
SIMD_INLINE vf key_dot(vf acc, const kval *a, const kval *b)
{
    return v_fma(v_load(a), v_load(b), acc);
}
enum { BLOCK_HEADS = 2, BLOCK_KEYS = 4 };
#endif

/* score[h][i] = q[h] . k[i] for keys first..last-1 (in fours). */
static void scores(const struct worker *w, const struct keys *t, int heads, int first, int last,
                   int dim)
{
    for (int h0 = 0; h0 < heads; h0 += BLOCK_HEADS)
        for (int i = first & ~3; i < last; i += BLOCK_KEYS) {
            vf s[BLOCK_HEADS][BLOCK_KEYS];
            const kval *q = w->q + (int64_t)h0 * dim, *k = t->k + (int64_t)i * dim;
#pragma GCC unroll 4
            for (int h = 0; h < BLOCK_HEADS; h++)
#pragma GCC unroll 4
                for (int n = 0; n < BLOCK_KEYS; n++)
                    s[h][n] = v_zero();
            for (int64_t d = 0; d < dim; d += DOT)
#pragma GCC unroll 4
                for (int h = 0; h < BLOCK_HEADS; h++)
#pragma GCC unroll 4
                    for (int n = 0; n < BLOCK_KEYS; n++)
                        s[h][n] = key_dot(s[h][n], q + h * dim + d, k + n * dim + d);
#pragma GCC unroll 4
            for (int h = 0; h < BLOCK_HEADS; h++)
                _mm_storeu_ps(w->score + (h0 + h) * TILE + i,
                              v_sum4(s[h][0], s[h][1], s[h][2], s[h][3]));
        }
}

/* Scores to weights: new maximum, how much the old sums shrink, weights rounded to bf16. */
static void weights(struct worker *w, int heads, int first, int last, float scale)
{
    for (int h = 0; h < heads; h++) {
        float *s = w->score + h * TILE;
        vf top = v_set1(w->top[h]), sum = v_zero(), x[TILE / VL];
        for (int i = 0; i < TILE / VL; i++) {
            /* lanes from first to last, the rest at -inf */
            x[i] = v_mul(v_load(s + i * VL), v_set1(scale));
            x[i] = v_pick(v_below(i * VL, last), x[i], v_set1(-INFINITY));
            x[i] = v_pick(v_below(i * VL, first), v_set1(-INFINITY), x[i]);
            top = v_max(top, x[i]);
        }
        float m = v_hmax(top);
        for (int i = 0; i < TILE / VL; i++) {
            vf e = v_exp(v_sub(x[i], v_set1(m)));
            sum = v_add(sum, e);
#if SIMD_WIDE
            v_store_bf16(w->p + h * TILE + i * VL, v_bf16(e));
#else
            v_store(w->p + h * TILE + i * VL, v_bf16(e));
#endif
        }
        float old[VL] = {0};
        old[0] = w->top[h] - m;
        v_store(old, v_exp(v_load(old)));
        w->shrink[h] = old[0];
        w->den[h] = w->den[h] * old[0] + v_sum(sum);
        w->top[h] = m;
    }
}

#if SIMD_WIDE
SIMD_INLINE void weigh_pair(vf acc[HEADS][2], const kval *v, const kval *p, int i, __mmask32 keep)
{
    __m512i lo = _mm512_maskz_loadu_epi16(keep, v), hi = _mm512_maskz_loadu_epi16(keep, v + 32);
#pragma GCC unroll 8
    for (int h = 0; h < HEADS; h++) {
        int32_t two;
        memcpy(&two, p + h * TILE + 2 * i, 4);
        __m512bh b = (__m512bh)_mm512_set1_epi32(two);
        acc[h][0] = _mm512_dpbf16_ps(acc[h][0], (__m512bh)lo, b);
        acc[h][1] = _mm512_dpbf16_ps(acc[h][1], (__m512bh)hi, b);
    }
}

/* acc = acc*shrink + sum over keys of p * v.  A key outside first..last that shares a pair with one
 * inside is masked: it may hold anything. */
static void weigh(const struct worker *w, const struct keys *t, int first, int last, int dim)
{
    int i0 = first / 2, i1 = (last + 1) / 2;
    for (int d = 0; d < dim; d += 32) {
        vf acc[HEADS][2];
        float *a = w->acc + d;
        const kval *v = t->v + 2 * (int64_t)d;
#pragma GCC unroll 8
        for (int h = 0; h < HEADS; h++) {
            vf s = v_set1(w->shrink[h]);
            acc[h][0] = v_mul(v_load(a + (int64_t)h * dim), s);
            acc[h][1] = v_mul(v_load(a + (int64_t)h * dim + 16), s);
        }
        for (int i = i0; i < i1; i++) {
            __mmask32 keep = 0xffffffffu;
            if (2 * i < first)
                keep &= 0xaaaaaaaau;
            if (2 * i + 1 >= last)
                keep &= 0x55555555u;
            weigh_pair(acc, v + (int64_t)2 * i * dim, w->p, i, keep);
        }
#pragma GCC unroll 8
        for (int h = 0; h < HEADS; h++) {
            v_store(a + (int64_t)h * dim, acc[h][0]);
            v_store(a + (int64_t)h * dim + 16, acc[h][1]);
        }
    }
}

/* 32 sums from the order of unpacklo, unpackhi to the order of dims. */
SIMD_INLINE void in_order(const float *a, vf out[2])
{
    vf lo = v_load(a), hi = v_load(a + 16);
    out[0] = _mm512_permutex2var_ps(
        lo, _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23), hi);
    out[1] = _mm512_permutex2var_ps(
        lo, _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31), hi);
}
enum { OUT_STEP = 2 };
#else
static void weigh(const struct worker *w, const struct keys *t, int first, int last, int dim)
{
    for (int d = 0; d < dim; d += VL) {
        vf acc[HEADS];
        float *a = w->acc + d;
#pragma GCC unroll 8
        for (int h = 0; h < HEADS; h++)
            acc[h] = v_mul(v_load(a + (int64_t)h * dim), v_set1(w->shrink[h]));
        for (int i = first; i < last; i++) {
            vf v = v_load(t->k + (int64_t)i * dim + d);
#pragma GCC unroll 8
            for (int h = 0; h < HEADS; h++)
                acc[h] = v_fma(v_set1(w->p[h * TILE + i]), v, acc[h]);
        }
#pragma GCC unroll 8
        for (int h = 0; h < HEADS; h++)
            v_store(a + (int64_t)h * dim, acc[h]);
    }
}
SIMD_INLINE void in_order(const float *a, vf out[1])
{
    out[0] = v_load(a);
}
enum { OUT_STEP = 1 };
#endif

/* Keys first..last-1 of a tile. */
static void attend(struct worker *w, const struct attention_args *a, const struct keys *t,
                   int heads, int first, int last)
{
    scores(w, t, heads, first, last, a->head_dim);
    weights(w, heads, first, last, a->scale);
    weigh(w, t, first, last, a->head_dim);
}

/* ---------------------------------------------------------------- which keys */

enum tile_kind { KIND_WINDOW, KIND_BLOCK, KIND_ENTRIES };

/* The worker's tile (kind, first) of row t's span: positions or entries first..first+63, those of
 * lo..hi that the span can see. */
static const struct keys *anchored(struct worker *w, const struct attention_args *a, int64_t t,
                                   enum tile_kind kind, int64_t first, int64_t lo, int64_t hi)
{
    const struct rows *r = a->rows;
    int span = r->span[t], row0 = r->span_first[span], dim = a->head_dim;
    int slot = kind == KIND_ENTRIES ? WINDOW_TILES + (int)(first / TILE % ENTRY_TILES)
                                    : (int)(first / TILE % WINDOW_TILES);
    struct tag *tag = &w->tag[slot];
    const struct keys *keys = &w->keys[slot];
    if (tag->span == span && tag->kind == (int)kind && tag->first == first)
        return keys;
    *tag = (struct tag){span, kind, first};
    lo = FST_MAX(lo, first);
    hi = FST_MIN(hi, first + TILE - 1);
    for (int64_t q = lo; q <= hi; q++) {
        kval *k = keys->k + (q - first) * dim;
        if (kind == KIND_ENTRIES)
            load_key(a->l, rows_entry(a->l, r->pages + (int64_t)r->slot[t] * r->page_stride, q), k,
                     dim, a->rope_dim);
        else if (q >= r->pos[row0])
            put_floats(k, a->kv + (row0 + q - r->pos[row0]) * dim, dim);
        else
            load_key(a->l, rows_window(a->l, r->slot[t], q), k, dim, a->rope_dim);
    }
    tile_finish(keys, (int)(lo - first), (int)(hi - first) + 1, dim);
    return keys;
}

/* Row t sees lo..hi; its span sees span_lo..span_hi of the same kind. */
static void walk(struct worker *w, const struct attention_args *a, int64_t t, int heads,
                 enum tile_kind kind, int64_t lo, int64_t hi, int64_t span_lo, int64_t span_hi)
{
    for (int64_t first = lo / TILE * TILE; first <= hi; first += TILE) {
        const struct keys *k = anchored(w, a, t, kind, first, span_lo, span_hi);
        int i0 = (int)(FST_MAX(lo, first) - first),
            i1 = (int)(FST_MIN(hi, first + TILE - 1) - first);
        attend(w, a, k, heads, i0, i1 + 1);
    }
}

static void walk_selected(struct worker *w, const struct attention_args *a, int64_t t, int heads)
{
    const struct rows *r = a->rows;
    const int32_t *pages = r->pages + (int64_t)r->slot[t] * r->page_stride;
    const int32_t *sel = a->sel + t * a->topk;
    const struct keys *k = &w->keys[CACHED];
    int dim = a->head_dim;
    for (int i = 0; i < a->n_sel[t]; i += TILE) {
        int n = FST_MIN(TILE, a->n_sel[t] - i);
        for (int e = 0; e < n; e++)
            load_key(a->l, rows_entry(a->l, pages, sel[i + e]), k->k + (int64_t)e * dim, dim,
                     a->rope_dim);
        tile_finish(k, 0, n, dim);
        attend(w, a, k, heads, 0, n);
    }
}

static void attend_row(struct worker *w, const struct attention_args *a, int64_t t, int heads)
{
    const struct rows *r = a->rows;
    int span = r->span[t], row0 = r->span_first[span], n = r->span_first[span + 1] - row0;
    int64_t pos = r->pos[t], start = r->pos[row0], end = start + n - 1;
    if (a->mode == ATTN_BLOCK) { /* the window ends before the block; every block row is seen */
        int64_t lo = FST_MAX(0, start - a->window);
        walk(w, a, t, heads, KIND_WINDOW, lo, start - 1, lo, start - 1);
        walk(w, a, t, heads, KIND_BLOCK, start, end, start, end);
        return;
    }
    walk(w, a, t, heads, KIND_WINDOW, FST_MAX(0, pos - a->window + 1), pos,
         FST_MAX(0, start - a->window + 1), end);
    if (a->l->ratio == 128)
        walk(w, a, t, heads, KIND_ENTRIES, 0, (pos + 1) / 128 - 1, 0, (end + 1) / 128 - 1);
    else if (a->l->ratio == 4)
        walk_selected(w, a, t, heads);
}

static void finish_row(const struct worker *w, const struct attention_args *a, int64_t t, int h0,
                       int heads)
{
    int dim = a->head_dim;
    for (int h = 0; h < heads; h++) {
        float *o = a->o + (t * a->n_heads + h0 + h) * dim, e[VL] = {0};
        const float *acc = w->acc + (int64_t)h * dim;
        e[0] = a->sink[h0 + h] - w->top[h];
        v_store(e, v_exp(v_load(e)));
        vf den = v_set1(w->den[h] + e[0]);
        for (int d = 0; d < dim; d += OUT_STEP * VL) {
            vf x[OUT_STEP];
            in_order(acc + d, x);
            for (int i = 0; i < OUT_STEP; i++)
                v_store(o + d + i * VL, v_bf16(v_div(x[i], den)));
        }
        v_rotate(o + dim - a->rope_dim, a->rope_dim, a->cs + t * a->rope_dim, -1.0f);
    }
}

static void attention_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct attn_job *j = ud;
    const struct attention_args *a = j->a;
    struct worker *w = worker_at(j, worker);
    int64_t dim = a->head_dim, n = a->rows->n_rows;
    for (int64_t u = first; u < last; u++) {
        int64_t t = u % n;
        int h0 = (int)(u / n) * j->heads, heads = FST_MIN(j->heads, a->n_heads - h0);
        /* heads past the last one compute on zeros */
        memset(w->q, 0, (size_t)(HEADS * dim) * sizeof(kval));
        memset(w->acc, 0, (size_t)(HEADS * dim) * 4);
        memset(w->p, 0, HEADS * TILE * sizeof(kval));
        put_floats(w->q, a->q + (t * a->n_heads + h0) * dim, (int)(heads * dim));
        for (int h = 0; h < HEADS; h++) {
            w->top[h] = -INFINITY;
            w->den[h] = w->shrink[h] = 0;
        }
        attend_row(w, a, t, heads);
        finish_row(w, a, t, h0, heads);
    }
}

enum fst_status SIMD_NAME(attention)(const struct attention_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    int threads = pool_threads(s->pool);
    struct attn_job j = {.a = a, .heads = HEADS};
    FST_ASSERT(a->mode != ATTN_BLOCK || a->l->ratio == 0);
    FST_ASSERT(a->head_dim % (DOT * PAIR) == 0 || !SIMD_WIDE);
    FST_ASSERT(a->head_dim % 32 == 0 && a->rope_dim % VL == 0);
    j.worker_bytes = (size_t)round_up((int64_t)SIMD_NAME(attention_worker)(a->head_dim), 64);
    j.scratch = cut_take(&c, (int64_t)j.worker_bytes * threads);
    for (int i = 0; i < threads; i++)
        worker_start(&j, i);
    /* fewer units than threads: half the heads each, at the price of decoding the keys twice */
    if (a->rows->n_rows * div_up(a->n_heads, HEADS) < threads)
        j.heads = HEADS / 2;
    simd_spread(s, (int64_t)a->rows->n_rows * div_up(a->n_heads, j.heads),
                (int64_t)j.heads * a->head_dim * 512, attention_body, &j);
    return FST_OK;
}
