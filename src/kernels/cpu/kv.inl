/* kv.inl - finish the step's KV rows, pool finished groups, keep the compressors' inputs, store rows
 * in rings. */
#include "kernels/cpu/simd.h"

enum { POOL_INPUTS_MAX = 128, ENTRY_MAX = 1024, ROPE_MAX = 256 };

/* Bytes of a row, as rows_store writes them. */
static void store_row(const struct kv_layer *l, int64_t row, const float *x, int head_dim,
                      int rope_dim)
{
    FST_ASSERT(row >= 0);
    FST_ASSERT(row < l->n_rows);
    if (l->format == ROW_F32) {
        memcpy(l->nope + row * head_dim * 4, x, (size_t)head_dim * 4);
        return;
    }
    if (l->format == ROW_BF16) {
        for (int i = 0; i < head_dim; i += VL)
            v_store_bf16(l->nope + (row * head_dim + i) * 2, v_load(x + i));
        return;
    }
    FST_ASSERT(head_dim == ROWS_FP8_DIM);
    FST_ASSERT(rope_dim == ROWS_FP8_DIM - ROWS_FP8_NOPE);
    bool paged = l->format == ROW_PAGED;
    uint8_t *p = l->nope + row * ROWS_FP8_BYTES, *scale = p + ROWS_FP8_NOPE, *rope;
    if (paged)
        p = rows_paged(l, row, &scale);
    rope = paged ? p + ROWS_FP8_NOPE : l->rope + row * ROWS_ROPE_BYTES;
    for (int t = 0; t < ROWS_FP8_NOPE / ROWS_FP8_TILE; t++) {
        const float *y = x + t * ROWS_FP8_TILE;
        uint8_t code = s_scale_code(FST_MAX(v_amax(y, ROWS_FP8_TILE), 1e-4f) * (1.0f / 448.0f));
        vf down = v_set1(s_e8m0((uint8_t)(254 - code)));
        for (int i = 0; i < ROWS_FP8_TILE; i += VL)
            v_store_bytes(p + t * ROWS_FP8_TILE + i,
                          v_e4m3_code(v_e4m3_grid(v_mul(v_load(y + i), down))));
        if (paged)
            scale[t] = code;
        else
            scale[2 * t] = scale[2 * t + 1] = code;
    }
    if (paged)
        scale[ROWS_PAGED_SCALE - 1] = 0;
    for (int i = 0; i < rope_dim; i += VL)
        v_store_bf16(rope + 2 * i, v_load(x + ROWS_FP8_NOPE + i));
}

/* Code of a value on the E2M1 grid. */
SIMD_INLINE vi e2m1_code(vf x)
{
    vf a = v_abs(x), two = v_set1(2.0f);
    vf c = v_pick(v_lt(a, v_set1(4.0f)), v_add(a, two), v_fma(a, v_set1(0.5f), v_set1(4.0f)));
    c = v_pick(v_lt(a, two), v_mul(a, two), c);
    return v_or(v_to_int(c), v_and(v_srl(v_bits(x), 28), v_int1(8)));
}

/* Bytes of an index key, as rows_index_store writes them. */
static void store_key(const struct kv_layer *l, const int32_t *pages, int64_t e, const float *x,
                      int index_dim)
{
    uint8_t *page = l->index_keys +
                    pages[e / ROWS_INDEX_PAGE] * rows_index_page_bytes(l->index_format, index_dim);
    int t = (int)(e % ROWS_INDEX_PAGE);
    if (l->index_format == INDEX_F32) {
        memcpy(page + (int64_t)t * index_dim * 4, x, (size_t)index_dim * 4);
        return;
    }
    FST_ASSERT(index_dim == ROWS_INDEX_DIM);
    if (l->index_format == INDEX_FP8) {
        float scale = FST_MAX(v_amax(x, ROWS_INDEX_DIM), 1e-4f) / 448.0f;
        for (int i = 0; i < ROWS_INDEX_DIM; i += VL)
            v_store_bytes(page + t * ROWS_INDEX_DIM + i,
                          v_e4m3_code(v_e4m3_grid(v_div(v_load(x + i), v_set1(scale)))));
        memcpy(page + ROWS_INDEX_PAGE * ROWS_INDEX_DIM + 4 * t, &scale, 4);
        return;
    }
    for (int b = 0; b < ROWS_INDEX_DIM / 32; b++) {
        float y[32];
        uint8_t c[32], code = v_fp4_block(y, x + 32 * b);
        vf down = v_set1(s_e8m0((uint8_t)(254 - code)));
        for (int i = 0; i < 32; i += VL)
            v_store_bytes(c + i, e2m1_code(v_mul(v_load(y + i), down)));
        for (int i = 0; i < 16; i++)
            page[t * 64 + 16 * b + i] = (uint8_t)(c[2 * i] | c[2 * i + 1] << 4);
        page[ROWS_INDEX_PAGE * 64 + 4 * t + b] = code;
    }
}

/* One compressor of a layer: the attention's, or the indexer's. */
struct compressor {
    const float *in; /* (n_rows, 2*width): kv | score without ape */
    float *state;    /* (n_slots, state_ring, 2*width): kv | score with ape */
    const float *ape, *norm;
    int dim, width; /* of an entry; of one half input row */
    bool index;
};

struct kv_job {
    const struct kv_write_args *a;
    struct compressor c[2];
    int n_compressors;
};

/* One input of a group: score = score[j] + ape[j]; ape NULL: already added. */
struct pool_input {
    const float *kv, *score, *ape;
};

static void input_at(const struct kv_write_args *a, const struct compressor *c, int t, int64_t q,
                     struct pool_input *in)
{
    const struct rows *r = a->rows;
    const struct kv_layer *l = a->l;
    int first = r->span_first[r->span[t]];
    if (q >= r->pos[first]) {
        in->kv = c->in + (first + q - r->pos[first]) * 2 * c->width;
        in->ape = c->ape + q % l->ratio * c->width;
    } else {
        in->kv =
            c->state + ((int64_t)r->slot[t] * l->state_ring + q % l->state_ring) * 2 * c->width;
        in->ape = NULL;
    }
    in->score = in->kv + c->width;
}

SIMD_INLINE vf score_at(const struct pool_input *in, int64_t j)
{
    vf s = v_load(in->score + j);
    return in->ape ? v_add(s, v_load(in->ape + j)) : s;
}

/* Softmax over the group's inputs in order of position, channel by channel.  With overlap (ratio 4)
 * the previous group enters with its first half of channels, the current one with its second; inputs
 * before position 0 weigh nothing and are left out. */
static void pool_group(const struct kv_write_args *a, const struct compressor *c, int t, float *y)
{
    struct pool_input in[POOL_INPUTS_MAX];
    int ratio = a->l->ratio, n = ratio == 4 ? 8 : ratio;
    int64_t pos = a->rows->pos[t];
    int first = pos + 1 < n ? (int)(n - pos - 1) : 0;
    FST_ASSERT(n <= POOL_INPUTS_MAX);
    for (int i = first; i < n; i++) {
        int64_t shift = ratio == 4 && i >= 4 ? c->dim : 0;
        input_at(a, c, t, pos + 1 - n + i, &in[i]);
        in[i].kv += shift;
        in[i].score += shift;
        if (in[i].ape)
            in[i].ape += shift;
    }
    for (int j = 0; j < c->dim; j += VL) {
        vf top = score_at(&in[first], j), sum = v_zero(), out = v_zero();
        for (int i = first + 1; i < n; i++)
            top = v_max(top, score_at(&in[i], j));
        for (int i = first; i < n; i++) {
            vf w = v_exp(v_sub(score_at(&in[i], j), top));
            sum = v_add(sum, w);
            out = v_fma(w, v_load(in[i].kv + j), out);
        }
        v_store(y + j, v_bf16(v_div(out, sum)));
    }
}

static void row_grid(float *x, int nope)
{
    for (int i = 0; i < nope; i += ROWS_FP8_TILE)
        v_fp8_block(x + i, x + i, ROWS_FP8_TILE);
}

/* cos and sin of the group's first position: the step's own row where the span has it. */
static const float *entry_cs(const struct kv_write_args *a, int t, float *own)
{
    int first = a->rows->span_first[a->rows->span[t]], back = a->l->ratio - 1;
    if (t - back >= first)
        return a->cs + (int64_t)(t - back) * a->rope_dim;
    for (int i = 0; i < a->rope_dim / 2; i++) {
        float angle = (float)(a->rows->pos[t] - back) * a->freq[i];
        own[2 * i] = cosf(angle);
        own[2 * i + 1] = sinf(angle);
    }
    return own;
}

static void write_entry(const struct kv_write_args *a, const struct compressor *c, int t,
                        const float *cs)
{
    const struct kv_layer *l = a->l;
    const int32_t *pages = a->rows->pages + (int64_t)a->rows->slot[t] * a->rows->page_stride;
    int32_t pos = a->rows->pos[t];
    float y[ENTRY_MAX];
    FST_ASSERT(c->dim <= ENTRY_MAX);
    pool_group(a, c, t, y);
    v_rmsnorm(y, y, c->norm, c->dim, a->norm_eps);
    v_rotate(y + c->dim - a->rope_dim, a->rope_dim, cs, 1.0f);
    if (!c->index) {
        row_grid(y, c->dim - a->rope_dim);
        store_row(l, rows_entry(l, pages, pos / l->ratio), y, c->dim, a->rope_dim);
        return;
    }
    v_hadamard(y, c->dim);
    store_key(l, pages, pos / 4, y, c->dim);
}

static void write_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct kv_job *j = ud;
    const struct kv_write_args *a = j->a;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        float *kv = a->kv + t * a->head_dim, own[ROPE_MAX];
        int nope = a->head_dim - a->rope_dim;
        v_rotate(kv + nope, a->rope_dim, a->cs + t * a->rope_dim, 1.0f);
        row_grid(kv, nope);
        if (!a->l->ratio || (a->rows->pos[t] + 1) % a->l->ratio)
            continue;
        const float *cs = entry_cs(a, (int)t, own);
        for (int i = 0; i < j->n_compressors; i++)
            write_entry(a, &j->c[i], (int)t, cs);
    }
}

/* Only the last state_ring positions of a span: two positions of one span never share a row. */
static void keep_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct kv_job *j = ud;
    const struct rows *r = j->a->rows;
    const struct kv_layer *l = j->a->l;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        if (r->span_first[r->span[t] + 1] - t > l->state_ring)
            continue;
        for (int i = 0; i < j->n_compressors; i++) {
            const struct compressor *c = &j->c[i];
            const float *in = c->in + t * 2 * c->width;
            const float *ape = c->ape + (int64_t)(r->pos[t] % l->ratio) * c->width;
            float *row =
                c->state +
                ((int64_t)r->slot[t] * l->state_ring + r->pos[t] % l->state_ring) * 2 * c->width;
            memcpy(row, in, (size_t)c->width * 4);
            for (int d = 0; d < c->width; d += VL)
                v_store(row + c->width + d, v_add(v_load(in + c->width + d), v_load(ape + d)));
        }
    }
}

enum fst_status SIMD_NAME(kv_write)(const struct kv_write_args *a, struct stream *s)
{
    int n = a->rows->n_rows, ratio = a->l->ratio, c = ratio == 4 ? 2 : 1;
    struct kv_job j = {.a = a};
    int64_t entries = 0, work = 20 * a->head_dim, width = 0;
    FST_ASSERT((a->head_dim - a->rope_dim) % ROWS_FP8_TILE == 0);
    FST_ASSERT(a->rope_dim <= ROPE_MAX);
    if (ratio) {
        FST_ASSERT(a->cmp);
        j.c[j.n_compressors++] = (struct compressor){
            a->cmp, a->l->state, a->ape, a->cmp_norm, a->head_dim, c * a->head_dim, false};
        width += 2 * c * a->head_dim;
        for (int t = 0; t < n; t++)
            entries += (a->rows->pos[t] + 1) % ratio == 0;
        work += entries * 2 * FST_MAX(ratio, 8) * a->head_dim * 4 / FST_MAX(n, 1);
    }
    if (ratio == 4) {
        FST_ASSERT(a->idx);
        FST_ASSERT(a->index_dim % 32 == 0);
        j.c[j.n_compressors++] =
            (struct compressor){a->idx,       a->l->index_state, a->idx_ape, a->idx_norm,
                                a->index_dim, 2 * a->index_dim,  true};
        width += 4 * a->index_dim;
    }
    simd_spread(s, n, work, write_body, &j);
    if (ratio)
        simd_spread(s, n, width, keep_body, &j);
    return FST_OK;
}

static void copy_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct copy_piece *piece = ud;
    (void)worker;
    for (int64_t i = first; i < last; i++)
        memcpy(piece[i].to, piece[i].from, (size_t)piece[i].bytes);
}

/* A piece's work is taken for that of a long one: a snapshot has some hundred, most of its bytes in a few. */
enum fst_status SIMD_NAME(copy_pieces)(const struct copy_pieces_args *a, struct stream *s)
{
    struct copy_piece *piece;
    memcpy(&piece, &a->piece, sizeof piece); /* a pool's argument is not const */
    simd_spread(s, a->n, COPY_PIECE_MAX / 8, copy_body, piece);
    return FST_OK;
}

static void ring_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct ring_store_args *a = ud;
    const struct rows *r = a->rows;
    (void)worker;
    for (int64_t t = first; t < last; t++)
        if (r->span_first[r->span[t] + 1] - t <= a->l->ring)
            store_row(a->l, rows_window(a->l, r->slot[t], r->pos[t]), a->kv + t * a->head_dim,
                      a->head_dim, a->rope_dim);
}

enum fst_status SIMD_NAME(ring_store)(const struct ring_store_args *a, struct stream *s)
{
    struct ring_store_args copy = *a;
    simd_spread(s, a->rows->n_rows, 8 * a->head_dim, ring_body, &copy);
    return FST_OK;
}
