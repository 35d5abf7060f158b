/* attention_sums.cuh - queries into shared memory, scores, weights, sums of values and what is stored of
 * them: the arithmetic of attention.cu, the same in all its kernels. */
#ifndef FST_KERNELS_SM90_ATTENTION_SUMS_CUH
#define FST_KERNELS_SM90_ATTENTION_SUMS_CUH

#include "kernels/sm90/attention.cuh"

/* ---------------------------------------------------------------- queries */

/* Thread `me` of N: its share of the row's packed queries, chunks of 8 values as they are, on their way.
 * copies_wait, and they are there. */
template <int N>
GPU_FN void load_packed(const struct attention_sm90_job *j, int64_t t, int group, uint8_t *q,
                        int me)
{
    enum { CHUNKS = DIM / 8 };
    int first = group * HEADS, heads = FST_MIN(j->a.n_heads - first, (int)HEADS);
    const struct gpu_words *x =
        (const struct gpu_words *)(const void *)j->a.q + (t * j->a.n_heads + first) * CHUNKS + me;
    GPU_ROLLED
    do {
        int h = me / CHUNKS, c = me % CHUNKS;
        uint8_t *to = q + c / 8 * BLOCK_BYTES + mma_place(h, c % 8);
        if (h < heads)
            mma_copy16(to, x);
        else
            mma_store16(to, {});
        me += N;
        x += N;
    } while (me < HEADS * CHUNKS);
    copies_end();
}

/* Wave `me` of N loads its share of the row's queries: whole heads, AT_ONCE of them under way, neighbours
 * neighbouring quads.  From one quad to the next only constants are added to addresses. */
template <int N, int AT_ONCE>
GPU_FN void load_queries(const struct attention_sm90_job *j, int64_t t, int group, uint8_t *q,
                         int me)
{
    enum { QUADS = DIM / 128 };
    int lane = mma_anew(gpu_lane()), heads = FST_MIN(j->a.n_heads - group * HEADS, (int)HEADS);
    const float *x = j->a.q + (t * j->a.n_heads + group * HEADS) * DIM + 4 * lane;
    q += lane / 16 * BLOCK_BYTES + lane % 2 * 8;
    GPU_ROLLED
    do {
        struct gpu_quad v[AT_ONCE * QUADS];
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE * QUADS; i++) {
            int h = me + i / QUADS * N;
            v[i] = {};
            if (h < heads)
                v[i] = gpu_load4(x + h * DIM + i % QUADS * 128);
        }
        GPU_UNROLL
        for (int i = 0; i < AT_ONCE * QUADS; i++) {
            int h = me + i / QUADS * N;
            uint8_t *to = q + mma_place(h, lane % 16 / 2) + i % QUADS * 2 * BLOCK_BYTES;
            struct rows_half o = {{mma_pair(v[i].v[0], v[i].v[1]), mma_pair(v[i].v[2], v[i].v[3])}};
            if (h < HEADS)
                *(struct rows_half *)(void *)to = o;
        }
        me += AT_ONCE * N;
    } while (me < HEADS);
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

/* Scores of this warpgroup's 32 keys, N k16 steps from `first` on: under way. */
template <int N>
GPU_FN void add_scores(const uint8_t *q, const uint8_t *tile, int first, float (&s)[16])
{
    mma_tile a = mma_anew(mma_tile_of(q, BLOCK_BYTES));
    mma_tile b = mma_anew(mma_tile_of(tile + my_half() * (BLOCK_BYTES / 2), BLOCK_BYTES));
    wgmma_begin();
    GPU_UNROLL
    for (int k = first; k < first + N; k++) {
        int from = k / 4 * BLOCK_BYTES + k % 4 * MMA_STEP;
        mma_ss(s, mma_ahead(a, from), mma_ahead(b, from));
    }
}

/* Weights of this half of a piece's `keys` keys against the power of two above its largest score, as A of
 * its two steps; exponents of those powers, sums of the weights. */
GPU_FN void find_weights(const struct attention_sm90_job *j, int keys, float (&s)[16], float top[2],
                         float den[2], uint32_t a[2][4])
{
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        top[r] = -0x1p30f;
        den[r] = 0;
    }
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        s[i] *= j->scale;
    if (keys < TILE) { /* of few pieces: the others shall not choose 16 times */
        int mine = mma_anew(keys - 32 * my_half() - gpu_lane() % 4 * 2);
        GPU_UNROLL
        for (int i = 0; i < 16; i++)
            s[i] = i / 4 * 8 + i % 2 < mine ? s[i] : -INFINITY;
    }
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    GPU_UNROLL
    for (int r = 0; r < 2; r++)
        top[r] = ceilf(wave_max(top[r], 4));
    GPU_UNROLL
    for (int i = 0; i < 16; i++) {
        s[i] = mma_exp2(s[i] - top[i / 2 % 2]);
        den[i / 2 % 2] += s[i];
    }
    GPU_UNROLL
    for (int r = 0; r < 2; r++)
        den[r] = wave_sum(den[r], 4);
    GPU_UNROLL
    for (int i = 0; i < 8; i++)
        a[i / 4][i % 4] = mma_pair(s[2 * i], s[2 * i + 1]);
}

/* ---------------------------------------------------------------- values */

/* What a thread knows of its two heads: the exponent that its sums are relative to, the denominators. */
struct weigher {
    float top[2], den[2];
};
/* Of a piece and 64 heads, by half: exponents, sums of the weights; and of a thread's two heads. */
struct piece_stat {
    float top[2][HEADS], den[2][HEADS];
};
struct halves {
    float top[2][2], den[2][2];
};

GPU_FN void put_stat(struct piece_stat *x, const float top[2], const float den[2])
{
    GPU_UNROLL
    for (int r = 0; r < 2 && gpu_lane() % 4 == 0; r++) {
        x->top[my_half()][my_head() + 8 * r] = top[r];
        x->den[my_half()][my_head() + 8 * r] = den[r];
    }
}
GPU_FN void get_stat(const struct piece_stat *x, struct halves *h)
{
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        h->top[i / 2][i % 2] = x->top[i / 2][my_head() + 8 * (i % 2)];
        h->den[i / 2][i % 2] = x->den[i / 2][my_head() + 8 * (i % 2)];
    }
}

/* 2^k; k <= 0, or no number. */
GPU_FN float power(float k)
{
    return gpu_float((uint32_t)((int)fmaxf(k, -127) + 127) << 23);
}

/* A piece comes in: factors for the sums so far, and for the weights of its halves. */
GPU_FN void weigh(struct weigher *g, const struct halves *x, float shrink[2], uint32_t factor[2][2])
{
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        float most = fmaxf(g->top[r], fmaxf(x->top[0][r], x->top[1][r]));
        float f0 = power(x->top[0][r] - most), f1 = power(x->top[1][r] - most);
        shrink[r] = power(g->top[r] - most); /* 0 at the first piece */
        factor[0][r] = gpu_pair(f0, f0);
        factor[1][r] = gpu_pair(f1, f1);
        g->den[r] = fmaf(g->den[r], shrink[r], x->den[0][r] * f0 + x->den[1][r] * f1);
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

GPU_FN void scale_weights(uint32_t (&a)[STEPS][4], const uint32_t factor[2][2])
{
    GPU_UNROLL
    for (int i = 0; i < 4 * STEPS; i++)
        a[i / 4][i % 4] = mma_times(a[i / 4][i % 4], factor[i / 8][i % 2]);
}

/* o += the piece's weights times its rows: under way.  block_bytes: between blocks of 64 dims.  128 dims an
 * instruction at most: one of 256 has more registers than a thread may have where blocks are of 512. */
template <int N>
GPU_FN void start_values(const uint32_t (&a)[STEPS][4], const uint8_t *rows, int block_bytes,
                         float (&o)[N])
{
    enum { EACH = N < 64 ? N : 64 };
    mma_tile b = mma_anew(mma_tile_of(rows, (uint32_t)block_bytes));
    wgmma_begin();
    GPU_UNROLL
    for (int k = 0; k < STEPS; k++)
        GPU_UNROLL
    for (int i = 0; i < N; i += EACH)
        mma_rs<1>(*(float(*)[EACH])(o + i), a[k],
                  mma_ahead(b, k * 16 * MMA_LINE + i / 32 * block_bytes));
    wgmma_end();
}

/* What the end of a row needs, in shared memory long before: cosines and sines of its rope dims, sinks of its
 * heads.  Read from the card when they were needed, together with a division per value, they took 30 % of
 * the time of 128 rows. */
enum { TURNS = 8 };
struct ending {
    float cs[8 * TURNS], sink[HEADS];
};

/* Thread `me` of at least HEADS. */
GPU_FN void load_ending(const struct attention_sm90_job *j, int64_t t, int group, struct ending *e,
                        int me)
{
    int head = group * HEADS + me;
    if (me < j->a.rope_dim)
        e->cs[me] = j->a.cs[t * j->a.rope_dim + me];
    if (me < HEADS)
        e->sink[me] = head < j->a.n_heads ? j->a.sink[head] * 1.44269504f : 0;
}

/* Rope dims are among the last TURNS blocks of 8 of the last sums; of those, cosine and sine of this
 * thread's pairs. */
struct turn {
    float c, s;
};

GPU_FN void load_turns(const struct attention_sm90_job *j, const struct ending *e, int d,
                       struct turn x[TURNS])
{
    int nope = DIM - j->a.rope_dim;
    GPU_UNROLL
    for (int i = 0; i < TURNS; i++) {
        int at = d + 8 * i - nope;
        x[i] = {1, 0};
        if (at >= 0)
            x[i] = {e->cs[at], e->cs[at + 1]};
    }
}

/* A pair of neighbouring dims, over the denominator, as bf16; rotated back. */
GPU_FN uint32_t find_pair(float a, float b, float over)
{
    return mma_pair(a * over, b * over);
}
GPU_FN uint32_t find_turned(float a, float b, float over, bool rope, struct turn w)
{
    uint32_t pair = find_pair(a, b, over);
    float x = gpu_low(pair), y = gpu_high(pair);
    return rope ? mma_pair(x * w.c + y * w.s, y * w.c - x * w.s) : pair;
}

/* One over the denominator, the sink in it. */
GPU_FN float find_over(float sink, float den, float top)
{
    return 1 / (den + exp2f(sink - top));
}

/* Where this thread's sums of N dims from d0 on go, and the turns of the last of them. */
struct output {
    int head, d, rope; /* the first pair's head and dim; dims from there on are rotated back */
    int swap;
    int64_t at, pitch;
    uint8_t *line; /* packed: of head and d0 */
    struct turn turn[TURNS];
};
GPU_FN struct output find_output(const struct attention_sm90_job *j, const struct place *w, int d0,
                                 int n, const struct ending *e)
{
    struct output x;
    x.head = w->group * HEADS + my_head();
    x.d = d0 + gpu_lane() % 4 * 2;
    x.rope = DIM - j->a.rope_dim;
    x.at = ((int64_t)w->t * j->a.n_heads + x.head) * DIM + x.d;
    struct operand_place to =
        packed_heads(j->a.o, j->rows.n_rows, (int64_t)j->a.n_heads * DIM, w->t);
    x.swap = to.swap;
    x.pitch = to.pitch;
    x.line = to.line + (x.head * DIM + d0) / MMA_BLOCK * to.pitch;
    load_turns(j, e, x.d + n - 8 * TURNS, x.turn);
    return x;
}

/* The sums, over their denominators. */
template <int N>
GPU_FN void store_output(const struct attention_sm90_job *j, const struct output *x,
                         const float over[2], const float (&o)[N])
{
    enum { PIECES = N / 4, PLAIN = PIECES - TURNS, EACH = MMA_BLOCK / 8 };
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        uint8_t *line = x->line + r * 8 * (DIM / MMA_BLOCK) * x->pitch;
        if (x->head + 8 * r >= j->a.n_heads)
            continue;
        GPU_UNROLL
        for (int i = 0; i < PIECES / 4; i++) {
            struct gpu_words p;
            GPU_UNROLL
            for (int q = 0; q < 4; q++) {
                int k = i / 2 * EACH + 2 * q + i % 2; /* packed, every second pair are neighbours */
                float a = o[4 * k + 2 * r], b = o[4 * k + 2 * r + 1];
                p.w[q] = k < PLAIN ? find_pair(a, b, over[r])
                                   : find_turned(a, b, over[r], x->d + 8 * k >= x->rope,
                                                 x->turn[k % TURNS]);
                struct rows_half h = {{gpu_bits(gpu_low(p.w[q])), gpu_bits(gpu_high(p.w[q]))}};
                if (!j->a.packed)
                    *(struct rows_half *)(void *)(j->a.o + x->at + r * 8 * DIM + 8 * k) = h;
            }
            if (j->a.packed)
                mma_store16(
                    line + i / 2 * x->pitch + (((i % 2 * 4 + gpu_lane() % 4) ^ x->swap) << 4), p);
        }
    }
}
template <int N>
GPU_FN void store_weighed(const struct attention_sm90_job *j, const struct place *w,
                          const struct weigher *g, int d0, const float (&o)[N],
                          const struct ending *e)
{
    struct output x = find_output(j, w, d0, 2 * N, e);
    float over[2];
    for (int r = 0; r < 2; r++)
        over[r] = find_over(e->sink[my_head() + 8 * r], g->den[r], g->top[r]);
    store_output(j, &x, over, o);
}

#endif
