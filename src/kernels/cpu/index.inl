/* index.inl - scores of the compressed entries and the choice of the best.
 *
 * A page of 64 keys is decoded to a transposed tile (a dim, or on AVX-512 a pair of dims, for 64
 * entries) and used for all heads of a few neighbouring rows: entries sit in lanes, so a score needs
 * no horizontal sum, and an entry's bits depend on nothing but its key and the row's query.  FP4
 * values with their power-of-two scales are bf16 values, so the products are exact.
 * Choice: a radix search for the k-th best score, then one pass in order of entries. */
#include "kernels/cpu/simd.h"
#include "kernels/ref/ref.h"

enum { PAGE = ROWS_INDEX_PAGE, DIM = ROWS_INDEX_DIM, GROUP = 8, UNIT_PAGES = 4 };
/* Floats of scores held at once (16 MiB): bounds the rows of a block. */
#define INDEX_SCORES (4 << 20)

int64_t SIMD_NAME(index_rows)(int64_t n_rows, int64_t max_entries);
size_t SIMD_NAME(index_scratch)(int64_t n_rows, int64_t max_entries, int heads, int n_threads);

/* Rows of a block. */
int64_t SIMD_NAME(index_rows)(int64_t n_rows, int64_t max_entries)
{
    return FST_MAX(1, FST_MIN(n_rows, INDEX_SCORES / FST_MAX(max_entries, 1)));
}

#if SIMD_WIDE
typedef uint32_t tile_t; /* two bf16 */
enum { STEPS = DIM / 2, HEAD_BLOCK = 4, VECTORS = 4 };
#else
typedef float tile_t;
enum { STEPS = DIM, HEAD_BLOCK = 2, VECTORS = 4 };
#endif
enum { TILE_ELEMS = STEPS * PAGE };

size_t SIMD_NAME(index_scratch)(int64_t n_rows, int64_t max_entries, int heads, int n_threads)
{
    int64_t rows = SIMD_NAME(index_rows)(n_rows, max_entries), ld = round_up(max_entries, PAGE);
    return (size_t)(rows * (ld * 4 + (int64_t)heads * DIM * 4 + 16) +
                    n_threads * (TILE_ELEMS * (int64_t)sizeof(tile_t) + PAGE * 4) + 1024);
}

/* Rows t0 .. t0+n-1 of one span. */
struct group {
    int32_t t0, n;
};

struct index_job {
    const struct index_topk_args *a;
    const struct group *groups;
    int64_t units_per_group;
    float *score; /* (rows of the block, ld) */
    int64_t ld, t0;
    tile_t *q; /* (rows of the block, heads, STEPS) */
    uint8_t *tiles;
    int64_t tile_bytes;
};

static int64_t visible(const struct index_topk_args *a, int64_t t)
{
    return ((int64_t)a->rows->pos[t] + 1) / 4;
}

/* ---------------------------------------------------------------- tiles */

#if SIMD_WIDE
static void transpose16(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < 16; h += 8) {
            t[h + i] = _mm512_shuffle_i32x4(r[h + i], r[h + 4 + i], 0x88);
            t[h + 4 + i] = _mm512_shuffle_i32x4(r[h + i], r[h + 4 + i], 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    }
}

static void tile_fp4(const uint8_t *page, tile_t *tile)
{
    const __m512i table = _mm512_set_epi16(
        (short)0xc0c0, (short)0xc080, (short)0xc040, (short)0xc000, (short)0xbfc0, (short)0xbf80,
        (short)0xbf00, (short)0x8000, 0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0,
        (short)0xc0c0, (short)0xc080, (short)0xc040, (short)0xc000, (short)0xbfc0, (short)0xbf80,
        (short)0xbf00, (short)0x8000, 0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0);
    for (int e = 0; e < PAGE; e += 16) {
        __m512i r[16], codes = _mm512_loadu_si512(page + PAGE * 64 + 4 * e);
        for (int i = 0; i < 16; i++)
            r[i] = _mm512_loadu_si512(page + 64 * (e + i));
        transpose16(r);
        for (int j = 0; j < 16; j++) {
            /* the block's scale as an exponent, for both values of a lane */
            __m512i s = _mm512_and_si512(_mm512_srlv_epi32(codes, v_int1(j / 4 * 8)), v_int1(255));
            s = _mm512_slli_epi16(_mm512_sub_epi16(s, v_int1(127)), 7);
            s = _mm512_or_si512(_mm512_slli_epi32(s, 16), _mm512_and_si512(s, v_int1(0xffff)));
            for (int b = 0; b < 4; b++) {
                __m512i t = _mm512_srlv_epi32(r[j], v_int1(8 * b));
                t = _mm512_mask_blend_epi16(0xaaaaaaaau, t, _mm512_slli_epi32(t, 12));
                t = _mm512_permutexvar_epi16(t, table);
                __mmask32 there = _mm512_test_epi16_mask(t, _mm512_set1_epi16(0x7fff));
                v_istore(tile + (4 * j + b) * PAGE + e, _mm512_mask_add_epi16(t, there, t, s));
            }
        }
    }
}

static void tile_fp8(const uint8_t *page, tile_t *tile)
{
    for (int e = 0; e < PAGE; e += 16)
        for (int half = 0; half < 2; half++) {
            __m512i r[16], lo[16], hi[16];
            for (int i = 0; i < 16; i++)
                r[i] = _mm512_loadu_si512(page + DIM * (e + i) + 64 * half);
            transpose16(r);
            /* a dword holds dims 4j..4j+3 of an entry */
            for (int j = 0; j < 16; j++) {
                uint8_t c[64];
                uint16_t w[64];
                v_istore(c, r[j]);
                for (int i = 0; i < 64; i += 16)
                    v_store_bf16(w + i, v_load_e4m3(c + i));
                __m512i a = _mm512_loadu_si512(w), b = _mm512_loadu_si512(w + 32);
                __m512i even =
                    _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                lo[j] = _mm512_permutex2var_epi32(a, even, b);
                hi[j] = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, v_int1(1)), b);
            }
            for (int j = 0; j < 16; j++) {
                v_istore(tile + (32 * half + 2 * j) * PAGE + e, lo[j]);
                v_istore(tile + (32 * half + 2 * j + 1) * PAGE + e, hi[j]);
            }
        }
}

static void put_query(tile_t *q, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        v_store_bf16((uint8_t *)q + 2 * i, v_load(x + i));
}

SIMD_INLINE vf tile_dot(vf acc, const tile_t *k, tile_t q)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)v_iload(k), (__m512bh)v_int1((int32_t)q));
}
#else
static void tile_fp4(const uint8_t *page, tile_t *tile)
{
    static const float value[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (int e = 0; e < PAGE; e++)
        for (int b = 0; b < DIM / 32; b++) {
            float s = s_e8m0(page[PAGE * 64 + 4 * e + b]);
            for (int i = 0; i < 16; i++) {
                uint8_t c = page[64 * e + 16 * b + i];
                tile[(32 * b + 2 * i) * PAGE + e] = value[c & 15] * s;
                tile[(32 * b + 2 * i + 1) * PAGE + e] = value[c >> 4] * s;
            }
        }
}

static void tile_fp8(const uint8_t *page, tile_t *tile)
{
    for (int e = 0; e < PAGE; e++) {
        float x[DIM];
        for (int i = 0; i < DIM; i += VL)
            v_store(x + i, v_load_e4m3(page + DIM * e + i));
        for (int i = 0; i < DIM; i++)
            tile[i * PAGE + e] = x[i];
    }
}

static void put_query(tile_t *q, const float *x, int64_t n)
{
    memcpy(q, x, (size_t)n * 4);
}

SIMD_INLINE vf tile_dot(vf acc, const tile_t *k, tile_t q)
{
    return v_fma(v_load(k), v_set1(q), acc);
}
#endif

/* score[0..63] of one row: sum over heads, in order, of w[h] * max(0, q[h] . k). */
static void score_tile(const tile_t *tile, const tile_t *q, const float *w, int heads, float *score)
{
    for (int e = 0; e < PAGE; e += VECTORS * VL) {
        vf sum[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            sum[v] = v_zero();
        for (int h0 = 0; h0 < heads; h0 += HEAD_BLOCK) {
            vf acc[HEAD_BLOCK][VECTORS];
            const tile_t *qh[HEAD_BLOCK];
#pragma GCC unroll 4
            for (int h = 0; h < HEAD_BLOCK; h++) {
                qh[h] = q + (int64_t)FST_MIN(h0 + h, heads - 1) * STEPS;
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++)
                    acc[h][v] = v_zero();
            }
            for (int i = 0; i < STEPS; i++) {
                const tile_t *k = tile + (int64_t)i * PAGE + e;
#pragma GCC unroll 4
                for (int h = 0; h < HEAD_BLOCK; h++)
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; v++)
                        acc[h][v] = tile_dot(acc[h][v], k + v * VL, qh[h][i]);
            }
#pragma GCC unroll 4
            for (int h = 0; h < HEAD_BLOCK; h++)
                if (h0 + h < heads)
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; v++)
                        sum[v] = v_fma(v_set1(w[h0 + h]), v_max(acc[h][v], v_zero()), sum[v]);
        }
        for (int v = 0; v < VECTORS; v++)
            v_store(score + e + v * VL, sum[v]);
    }
}

static void score_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct index_job *j = ud;
    const struct index_topk_args *a = j->a;
    const struct rows *r = a->rows;
    tile_t *tile = (tile_t *)(void *)(j->tiles + worker * j->tile_bytes);
    int64_t page_bytes = rows_index_page_bytes(a->l->index_format, DIM);
    for (int64_t u = first; u < last; u++) {
        const struct group *g = &j->groups[u / j->units_per_group];
        const int32_t *pages = r->pages + (int64_t)r->slot[g->t0] * r->page_stride;
        int64_t p0 = u % j->units_per_group * UNIT_PAGES;
        int64_t p1 = FST_MIN(p0 + UNIT_PAGES, div_up(visible(a, g->t0 + g->n - 1), PAGE));
        for (int64_t p = p0; p < p1; p++) {
            const uint8_t *page = a->l->index_keys + pages[p] * page_bytes;
            if (a->l->index_format == INDEX_FP4)
                tile_fp4(page, tile);
            else
                tile_fp8(page, tile);
            for (int64_t t = g->t0; t < g->t0 + g->n; t++) {
                float *score = j->score + (t - j->t0) * j->ld + p * PAGE;
                if (visible(a, t) <= p * PAGE || (visible(a, t) <= a->topk && !a->scores))
                    continue;
                score_tile(tile, j->q + (t - j->t0) * a->index_heads * STEPS,
                           a->iw + t * a->index_heads, a->index_heads, score);
                if (a->l->index_format == INDEX_FP8) {
                    const float *s = (const float *)(const void *)(page + PAGE * DIM);
                    for (int i = 0; i < PAGE; i += VL)
                        v_store(score + i, v_mul(v_load(score + i), v_load(s + i)));
                }
            }
        }
    }
}

/* ---------------------------------------------------------------- choice */

/* Scores as unsigned numbers of the same order; -0 counts as +0. */
static inline uint32_t ordered(float x)
{
    uint32_t u = s_bits(x + 0.0f);
    return u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}

/* The k best of n > k, ties to the lower entry, ascending; returns worst kept minus best dropped. */
static float choose(const float *score, int64_t n, int k, int32_t *sel, bool want_margin)
{
    uint32_t prefix = 0, mask = 0;
    int left = k; /* of those that share the prefix, so many belong to the best */
    static const int shift[3] = {21, 10, 0}, bits[3] = {11, 11, 10};
    for (int pass = 0; pass < 3; pass++) {
        uint32_t count[2048] = {0}, low = (1u << bits[pass]) - 1;
        for (int64_t e = 0; e < n; e++) {
            uint32_t u = ordered(score[e]);
            if ((u & mask) == prefix)
                count[u >> shift[pass] & low]++;
        }
        int digit = (int)low;
        while ((int)count[digit] < left)
            left -= (int)count[digit--];
        prefix |= (uint32_t)digit << shift[pass];
        mask |= low << shift[pass];
    }
    int i = 0, ties = left;
    for (int64_t e = 0; e < n && i < k; e++) {
        uint32_t u = ordered(score[e]);
        if (u > prefix || (u == prefix && ties-- > 0))
            sel[i++] = (int32_t)e;
    }
    if (!want_margin)
        return 0;
    float kept = INFINITY, dropped = -INFINITY;
    for (int64_t e = 0, m = 0; e < n; e++) {
        if (m < k && sel[m] == e) {
            kept = FST_MIN(kept, score[e]);
            m++;
        } else {
            dropped = FST_MAX(dropped, score[e]);
        }
    }
    return kept - dropped;
}

static void choose_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct index_job *j = ud;
    const struct index_topk_args *a = j->a;
    (void)worker;
    for (int64_t t = j->t0 + first; t < j->t0 + last; t++) {
        int64_t nv = visible(a, t);
        int32_t *sel = a->sel + t * a->topk;
        const float *score = j->score + (t - j->t0) * j->ld;
        float margin = INFINITY;
        a->n_sel[t] = (int32_t)FST_MIN(nv, a->topk);
        if (a->scores)
            memcpy(a->scores + t * a->max_entries, score, (size_t)nv * 4);
        if (nv > a->topk)
            margin = choose(score, nv, a->topk, sel, a->margin != NULL);
        else
            for (int32_t e = 0; e < nv; e++)
                sel[e] = e;
        if (a->margin)
            a->margin[t] = margin;
    }
}

/* Rows t0 .. t0+n-1: groups of one span, GROUP rows at most. */
static int64_t make_groups(const struct index_topk_args *a, int64_t t0, int64_t n, struct group *g)
{
    int64_t n_groups = 0;
    for (int64_t t = t0; t < t0 + n; t++) {
        struct group *last = &g[n_groups - 1];
        if (n_groups && a->rows->span[t] == a->rows->span[last->t0] && last->n < GROUP)
            last->n++;
        else
            g[n_groups++] = (struct group){(int32_t)t, 1};
    }
    return n_groups;
}

enum fst_status SIMD_NAME(index_topk)(const struct index_topk_args *a, struct stream *s)
{
    if (a->l->index_format == INDEX_F32 || a->index_dim != DIM)
        return index_topk_ref(a, s);
    struct cut c = cut_start(s);
    int64_t n = a->rows->n_rows, block = SIMD_NAME(index_rows)(n, a->max_entries);
    int64_t per_row = (int64_t)a->index_heads * STEPS;
    struct index_job j = {.a = a, .ld = round_up(a->max_entries, PAGE)};
    j.tile_bytes = TILE_ELEMS * (int64_t)sizeof(tile_t);
    struct group *groups = cut_take(&c, block * (int64_t)sizeof *groups);
    j.groups = groups;
    j.score = cut_take(&c, block * j.ld * 4);
    j.q = cut_take(&c, block * per_row * (int64_t)sizeof(tile_t));
    j.tiles = cut_take(&c, j.tile_bytes * pool_threads(s->pool));
    for (j.t0 = 0; j.t0 < n; j.t0 += block) {
        int64_t rows = FST_MIN(block, n - j.t0), most = 0;
        for (int64_t t = j.t0; t < j.t0 + rows; t++) {
            int64_t nv = visible(a, t);
            FST_ASSERT(nv <= a->max_entries);
            if (nv > a->topk || a->scores)
                most = FST_MAX(most, nv);
        }
        if (most) {
            put_query(j.q, a->qi + j.t0 * a->index_heads * DIM, rows * a->index_heads * DIM);
            j.units_per_group = div_up(most, UNIT_PAGES * PAGE);
            int64_t n_groups = make_groups(a, j.t0, rows, groups);
            simd_spread(s, n_groups * j.units_per_group,
                        (int64_t)UNIT_PAGES * PAGE * DIM * a->index_heads * rows / n_groups,
                        score_body, &j);
        }
        simd_spread(s, rows, most * 8 + 64, choose_body, &j);
    }
    return FST_OK;
}
