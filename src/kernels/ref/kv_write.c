/* kv_write.c - finish the step's KV rows, pool finished groups, keep the compressors' inputs. */
#include <math.h>

#include "kernels/ref/ref.h"

/* One compressor of a layer: the attention's, or the indexer's (index true). */
struct compressor {
    const struct kv_write_args *a;
    const float *in; /* (n_rows, 2*width) of the step: kv | score without ape */
    float *state;    /* (n_slots, state_ring, 2*width): kv | score with ape */
    const float *ape, *norm;
    int dim, width; /* of an entry; of one input row: dim, or 2*dim with overlap */
    bool index;
    enum precision p;
};

/* Channel j of the group input at position q: its value, and its score (-inf before position 0). */
static void group_input(const struct compressor *c, int t, int64_t q, int j, double *kv,
                        double *score)
{
    const struct rows *r = c->a->rows;
    const struct kv_layer *l = c->a->l;
    int first = r->span_first[r->span[t]];
    int64_t start = r->pos[first];
    if (q < 0) { /* before the request: masked here, whatever the state holds */
        *kv = 0;
        *score = -INFINITY;
    } else if (q >= start) {
        const float *in = c->in + (first + q - start) * 2 * c->width;
        *kv = (double)in[j];
        *score = (double)(in[c->width + j] + c->ape[q % l->ratio * c->width + j]);
    } else {
        const float *in =
            c->state + ((int64_t)r->slot[t] * l->state_ring + q % l->state_ring) * 2 * c->width;
        *kv = (double)in[j];
        *score = (double)in[c->width + j];
    }
}

/* Softmax over the group's inputs, channel by channel.  With overlap (ratio 4) the previous group
 * enters with its first half of channels, the current one with its second half. */
static void pool_group(const struct compressor *c, int t, float *y)
{
    int ratio = c->a->l->ratio, n = ratio == 4 ? 8 : ratio;
    int64_t pos = c->a->rows->pos[t];
    double kv[128], score[128];
    for (int j = 0; j < c->dim; j++) {
        double top = -INFINITY, sum = 0, out = 0;
        for (int i = 0; i < n; i++) {
            int channel = ratio == 4 && i >= 4 ? c->dim + j : j;
            group_input(c, t, pos + 1 - n + i, channel, &kv[i], &score[i]);
            top = fmax(top, score[i]);
        }
        for (int i = 0; i < n; i++) {
            double w = exp(score[i] - top);
            sum += w;
            out += w * kv[i];
        }
        y[j] = ref_round((float)(out / sum), c->p);
    }
}

static void row_grid(float *x, int head_dim, int rope_dim, enum precision p)
{
    if (p == PRECISION_NATIVE)
        ref_fp8_grid(x, head_dim - rope_dim, ROWS_FP8_TILE, NULL);
}

static void write_entry(const struct compressor *c, int t)
{
    const struct kv_write_args *a = c->a;
    const struct kv_layer *l = a->l;
    const int32_t *pages = a->rows->pages + (int64_t)a->rows->slot[t] * a->rows->page_stride;
    int32_t pos = a->rows->pos[t];
    float y[1024], cs[256];
    FST_ASSERT(c->dim <= 1024);
    FST_ASSERT(a->rope_dim <= 256);
    pool_group(c, t, y);
    ref_rmsnorm(y, y, c->norm, c->dim, a->norm_eps, c->p);
    ref_rope_cs(cs, a->freq, a->rope_dim, pos + 1 - l->ratio); /* the group's first position */
    ref_rotate(y, c->dim, a->rope_dim, cs, 1.0f, c->p);
    if (!c->index) {
        row_grid(y, c->dim, a->rope_dim, c->p);
        rows_store(l, rows_entry(l, pages, pos / l->ratio), y, c->dim, a->rope_dim);
        return;
    }
    ref_hadamard(y, c->dim, c->p);
    if (l->index_format == INDEX_FP4)
        ref_fp4_grid(y, c->dim, NULL);
    rows_index_store(l, pages, pos / 4, y, c->dim);
}

static void pool_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct compressor *c = ud;
    (void)worker;
    for (int64_t t = first; t < last; t++)
        if ((c->a->rows->pos[t] + 1) % c->a->l->ratio == 0)
            write_entry(c, (int)t);
}

/* Only the last state_ring positions of a span: two positions of one span never share a row. */
static void keep_inputs(const struct compressor *c)
{
    const struct rows *r = c->a->rows;
    const struct kv_layer *l = c->a->l;
    for (int t = 0; t < r->n_rows; t++) {
        if (r->span_first[r->span[t] + 1] - t > l->state_ring)
            continue;
        const float *in = c->in + (int64_t)t * 2 * c->width;
        float *row = c->state + ((int64_t)r->slot[t] * l->state_ring + r->pos[t] % l->state_ring) *
                                    2 * c->width;
        const float *ape = c->ape + (int64_t)(r->pos[t] % l->ratio) * c->width;
        memcpy(row, in, (size_t)c->width * 4);
        for (int j = 0; j < c->width; j++)
            row[c->width + j] = in[c->width + j] + ape[j];
    }
}

struct finish_job {
    const struct kv_write_args *a;
    enum precision p;
};

static void finish_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct finish_job *j = ud;
    const struct kv_write_args *a = j->a;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        float *kv = a->kv + t * a->head_dim;
        ref_rotate(kv, a->head_dim, a->rope_dim, a->cs + t * a->rope_dim, 1.0f, j->p);
        row_grid(kv, a->head_dim, a->rope_dim, j->p);
    }
}

enum fst_status kv_write_ref(const struct kv_write_args *a, struct stream *s)
{
    int n = a->rows->n_rows, ratio = a->l->ratio;
    struct finish_job j = {a, s->precision};
    pool_run(s->pool, n, 16, finish_body, &j);
    if (ratio == 0)
        return FST_OK;
    FST_ASSERT(a->cmp);
    int c = ratio == 4 ? 2 : 1;
    struct compressor attn = {a,           a->cmp,          a->l->state, a->ape,      a->cmp_norm,
                              a->head_dim, c * a->head_dim, false,       s->precision};
    struct compressor index = {a,           a->idx,       a->l->index_state, a->idx_ape,
                               a->idx_norm, a->index_dim, 2 * a->index_dim,  true,
                               s->precision};
    pool_run(s->pool, n, 4, pool_body, &attn);
    if (ratio == 4) {
        FST_ASSERT(a->idx);
        pool_run(s->pool, n, 4, pool_body, &index);
        keep_inputs(&index);
    }
    keep_inputs(&attn);
    return FST_OK;
}

enum fst_status ring_store_ref(const struct ring_store_args *a, struct stream *s)
{
    const struct rows *r = a->rows;
    (void)s;
    for (int t = 0; t < r->n_rows; t++)
        if (r->span_first[r->span[t] + 1] - t <= a->l->ring)
            rows_store(a->l, rows_window(a->l, r->slot[t], r->pos[t]),
                       a->kv + (int64_t)t * a->head_dim, a->head_dim, a->rope_dim);
    return FST_OK;
}
