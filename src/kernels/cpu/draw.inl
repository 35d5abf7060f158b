/* draw.inl - tokens from logits, and the Markov chain of a draft block.
 *
 * The vocabulary goes in chunks of fixed size; each gives its best value and lowest id, its maximum
 * and its sum of exponentials, combined in order, so that threads change no bit.  The noise is
 * philox.h's, lane by lane. */
#include "kernels/cpu/linear.h"

enum { CHUNK = 2048, CHAIN_ROWS = 48 };

/* What a chunk of one row says. */
struct found {
    float best, top;
    int32_t id;
    bool nan;
    double sum; /* of exp(logit - top) */
};

/* ---------------------------------------------------------------- noise */

SIMD_INLINE void mul32(vi a, uint32_t m, vi *hi, vi *lo)
{
#if SIMD_WIDE
    vi k = _mm512_set1_epi32((int32_t)m), even = _mm512_mul_epu32(a, k);
    vi odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), k);
    *lo = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *hi = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#else
    vi k = _mm256_set1_epi32((int32_t)m), even = _mm256_mul_epu32(a, k);
    vi odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), k);
    *lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#endif
}

/* philox_gumbel of tokens v. */
SIMD_INLINE vf gumbel(uint64_t seed, vi v, uint32_t out_pos, uint32_t choice)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    vi c0 = v, c1 = v_int1((int32_t)out_pos), c2 = v_int1((int32_t)choice), c3 = v_int1(0);
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        vi ah, al, bh, bl;
        mul32(c0, PHILOX_M0, &ah, &al);
        mul32(c2, PHILOX_M1, &bh, &bl);
        c0 = v_xor(v_xor(bh, c1), v_int1((int32_t)k0));
        c2 = v_xor(v_xor(ah, c3), v_int1((int32_t)k1));
        c1 = bl;
        c3 = al;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    vm high = v_negative(c0);
    vi w = v_xor(c0, v_sra(c0, 31)); /* the complement when the top bit is set */
    vf t = v_mul(v_add(v_from_int(w), v_set1(0.5f)), v_set1(0x1p-32f));
    vf y = v_sub(v_set1(1.0f), t);
    vf lost = v_div(v_sub(t, v_sub(v_set1(1.0f), y)), y);
    vf e = v_sub(v_pick(high, lost, v_zero()), v_log(v_pick(high, y, t)));
    return v_sub(v_zero(), v_log(e));
}

/* ---------------------------------------------------------------- one chunk */

SIMD_INLINE vf load_part(const float *p, int n, float rest)
{
    float x[VL];
    if (n >= VL)
        return v_load(p);
    for (int i = 0; i < VL; i++)
        x[i] = i < n ? p[i] : rest;
    return v_load(x);
}

/* Best of the n logits of tokens first.. by value, lowest id; entries that are no numbers never win. */
static void chunk_best(const float *logits, int first, int n, const struct draw_params *d,
                       uint32_t out_pos, struct found *f)
{
    vf best = v_set1(-INFINITY), temperature = v_set1(d->temperature);
    vi id = v_int1(0);
    for (int v = 0; v < n; v += VL) {
        vf x = load_part(logits + v, n - v, -INFINITY);
        vi ids = v_iadd(v_lanes(), v_int1(first + v));
        if (d->temperature > 0)
            x = v_add(v_div(x, temperature), gumbel(d->seed, ids, out_pos, d->choice));
        vm better = v_gt(x, best);
        best = v_pick(better, x, best);
        id = v_ipick(better, ids, id);
    }
    float b[VL];
    int32_t i[VL];
    v_store(b, best);
    v_istore(i, id);
    f->best = -INFINITY;
    f->id = 0;
    for (int k = 0; k < VL; k++)
        if (b[k] > f->best || (b[k] == f->best && f->best > -INFINITY && i[k] < f->id)) {
            f->best = b[k];
            f->id = i[k];
        }
}

static void chunk_sum(const float *logits, int n, struct found *f)
{
    vf top = v_set1(-INFINITY);
    bool nan = false;
    for (int v = 0; v < n; v += VL) {
        vf x = load_part(logits + v, n - v, -INFINITY);
        nan |= v_any(v_nan(x));
        top = v_max(top, x);
    }
    f->nan = nan;
    f->top = v_hmax(top);
    f->sum = 0;
    if (nan || f->top == -INFINITY)
        return;
    __m256d lane[VL / 4];
    for (int i = 0; i < VL / 4; i++)
        lane[i] = _mm256_setzero_pd();
    for (int v = 0; v < n; v += VL) {
        float e[VL];
        v_store(e, v_exp(v_sub(load_part(logits + v, n - v, -INFINITY), v_set1(f->top))));
        for (int i = 0; i < VL / 4; i++)
            lane[i] = _mm256_add_pd(lane[i], _mm256_cvtps_pd(_mm_loadu_ps(e + 4 * i)));
    }
    for (int i = 0; i < VL / 4; i++) {
        double d[4];
        _mm256_storeu_pd(d, lane[i]);
        f->sum += (d[0] + d[1]) + (d[2] + d[3]);
    }
}

static void join_best(const struct found *f, int64_t n, float *best, int32_t *id)
{
    *best = -INFINITY;
    *id = 0;
    for (int64_t i = 0; i < n; i++)
        if (f[i].best > *best) {
            *best = f[i].best;
            *id = f[i].id;
        }
}

/* ---------------------------------------------------------------- draw */

struct draw_job {
    const struct draw_args *a;
    struct found *found; /* (n, chunks) */
    int64_t chunks;
};

static void draw_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct draw_job *j = ud;
    const struct draw_args *a = j->a;
    (void)worker;
    for (int64_t u = first; u < last; u++) {
        int64_t i = u / j->chunks;
        int v0 = (int)(u % j->chunks) * CHUNK, n = FST_MIN(CHUNK, a->vocab - v0);
        const float *l = a->logits + i * a->vocab + v0;
        chunk_sum(l, n, &j->found[u]);
        chunk_best(l, v0, n, &a->draw[i], a->out_pos[i] + a->ahead, &j->found[u]);
    }
}

enum fst_status SIMD_NAME(draw)(const struct draw_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    struct draw_job j = {.a = a, .chunks = div_up(a->vocab, CHUNK)};
    j.found = cut_take(&c, a->n * j.chunks * (int64_t)sizeof *j.found);
    for (int64_t i = 0; i < a->n; i++)
        for (int k = 0; k < a->n_masked; k++)
            a->logits[i * a->vocab + a->masked[k]] = -INFINITY;
    simd_spread(s, a->n * j.chunks, (int64_t)CHUNK * 40, draw_body, &j);
    for (int i = 0; i < a->n; i++) {
        const struct found *f = j.found + i * j.chunks;
        float best, top = -INFINITY;
        double sum = 0;
        bool nan = false;
        join_best(f, j.chunks, &best, &a->id[i]);
        for (int64_t k = 0; k < j.chunks; k++) {
            nan |= f[k].nan;
            top = FST_MAX(top, f[k].top);
        }
        for (int64_t k = 0; k < j.chunks; k++)
            if (f[k].sum > 0)
                sum += f[k].sum * exp((double)(f[k].top - top));
        if (nan && !a->drafts)
            a->id[i] = -1;
        if (a->lse)
            a->lse[i] = nan ? NAN : (float)((double)top + log(sum));
        if (a->logit)
            a->logit[i] = nan ? NAN : a->logits[(int64_t)i * a->vocab + a->id[i]];
    }
    return FST_OK;
}

/* ---------------------------------------------------------------- draft chain */

struct chain_job {
    const struct draft_chain_args *a;
    struct lin_job w2;
    struct found *found; /* (n, chunks) */
    float *own;          /* (workers, CHAIN_ROWS, CHUNK): corrected logits that nobody asked for */
    int64_t chunks;
    int k;
};

/* A chunk of the vocabulary for all requests: the weights are read once per CHAIN_ROWS. */
static void chain_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct chain_job *j = ud;
    const struct draft_chain_args *a = j->a;
    for (int64_t u = first; u < last; u++) {
        int v0 = (int)u * CHUNK, n = FST_MIN(CHUNK, a->vocab - v0);
        for (int r0 = 0; r0 < a->n; r0 += CHAIN_ROWS) {
            int rows = FST_MIN(CHAIN_ROWS, a->n - r0);
            struct lin_job w2 = j->w2;
            w2.first = v0;
            w2.x += r0 * w2.ldx;
            w2.y = j->own + (int64_t)worker * CHAIN_ROWS * CHUNK;
            w2.ldy = CHUNK;
            if (a->corrected) {
                w2.ldy = (int64_t)a->gamma * a->vocab;
                w2.y = a->corrected + r0 * w2.ldy + (int64_t)j->k * a->vocab + v0;
            }
            lin_part(&w2, 0, rows, 0, n);
            for (int64_t i = 0; i < rows; i++) {
                float *l = w2.y + i * w2.ldy;
                int64_t r = r0 + i;
                const float *base = a->base + (r * a->gamma + j->k) * a->vocab + v0;
                int v = 0;
                for (; v + VL <= n; v += VL)
                    v_store(l + v, v_add(v_load(base + v), v_load(l + v)));
                for (; v < n; v++)
                    l[v] = base[v] + l[v];
                chunk_best(l, v0, n, &a->draw[r], a->out_pos[r] + (uint32_t)j->k,
                           &j->found[r * j->chunks + u]);
            }
        }
    }
}

/* conf_proj . [y; w1[prev]] through the same prepared form as any row. */
static void confidence(const struct draft_chain_args *a, int64_t at, const float *w1, float *x,
                       uint8_t *row)
{
    const struct mat *m = a->conf_proj;
    memcpy(x, a->y + at * a->dim, (size_t)a->dim * 4);
    memcpy(x + a->dim, w1, (size_t)a->rank * 4);
    lin_prepare(lin_layout_of(m), false, x, m->n_in, row);
    struct lin_job j = {.w = m, .x = row, .y = &a->conf[at], .ldy = 1, .n_rows = 1, .n_out = 1};
    lin_part(&j, 0, 1, 0, 1);
}

enum fst_status SIMD_NAME(draft_chain)(const struct draft_chain_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    int64_t wide = a->dim + a->rank, bytes = lin_row_bytes_max(a->rank);
    struct chain_job j = {.a = a, .chunks = div_up(a->vocab, CHUNK)};
    enum lin_layout layout = lin_layout_of(a->w2);
    float *x = cut_take(&c, wide * 4), *w1 = cut_take(&c, (int64_t)a->rank * 4);
    uint8_t *wide_row = cut_take(&c, lin_row_bytes_max(wide));
    uint8_t *rows = cut_take(&c, a->n * bytes);
    j.found = cut_take(&c, a->n * j.chunks * (int64_t)sizeof *j.found);
    j.own = cut_take(&c, (int64_t)CHAIN_ROWS * CHUNK * 4 * pool_threads(s->pool));
    for (j.k = 0; j.k < a->gamma; j.k++) {
        for (int64_t r = 0; r < a->n; r++) {
            int64_t at = r * a->gamma + j.k;
            lin_table_row(a->w1, j.k ? a->id[at - 1] : a->anchor[r], w1);
            lin_prepare(layout, false, w1, a->rank, rows + r * bytes);
            if (lin_there(a->conf_proj))
                confidence(a, at, w1, x, wide_row);
        }
        j.w2 = (struct lin_job){.w = a->w2, .x = rows, .ldx = bytes, .n_rows = a->n};
        simd_spread(s, j.chunks, (int64_t)CHUNK * a->n * (a->rank + 40), chain_body, &j);
        for (int64_t r = 0; r < a->n; r++) {
            float best;
            join_best(j.found + r * j.chunks, j.chunks, &best, &a->id[r * a->gamma + j.k]);
        }
    }
    return FST_OK;
}
