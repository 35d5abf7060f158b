/* attention.c - one row's heads over its window, compressed entries or draft block. */
#include <math.h>

#include "kernels/ref/ref.h"

enum { TILE = 64 };

/* The walk of one row over its keys: running maximum, unnormalised output, all heads. */
struct walk {
    const struct attention_args *a;
    enum precision p;
    int64_t t;         /* row */
    int n;             /* keys gathered so far, at most TILE */
    float *keys;       /* (TILE, head_dim) */
    double *top, *den; /* (n_heads) */
    double *out;       /* (n_heads, head_dim) */
};

static void flush(struct walk *w)
{
    const struct attention_args *a = w->a;
    int dim = a->head_dim;
    for (int h = 0; w->n && h < a->n_heads; h++) {
        const float *q = a->q + (w->t * a->n_heads + h) * dim;
        double score[TILE], top = w->top[h], *out = w->out + (int64_t)h * dim;
        for (int i = 0; i < w->n; i++) {
            score[i] = ref_dot(q, w->keys + (int64_t)i * dim, dim) * (double)a->scale;
            top = fmax(top, score[i]);
        }
        double shrink = exp(w->top[h] - top); /* 0 at the first block */
        w->top[h] = top;
        w->den[h] *= shrink;
        for (int d = 0; d < dim; d++)
            out[d] *= shrink;
        for (int i = 0; i < w->n; i++) {
            double e = exp(score[i] - top), v = (double)ref_round((float)e, w->p);
            const float *key = w->keys + (int64_t)i * dim;
            w->den[h] += e;
            for (int d = 0; d < dim; d++)
                out[d] += v * (double)key[d];
        }
    }
    w->n = 0;
}

static float *next_key(struct walk *w)
{
    FST_ASSERT(w->n < TILE);
    return w->keys + (int64_t)w->n++ * w->a->head_dim;
}

/* Positions lo .. hi, in pieces that start at multiples of 64; those >= start are rows of kv. */
static void window(struct walk *w, int64_t lo, int64_t hi, int64_t start, int first_row)
{
    const struct attention_args *a = w->a;
    for (int64_t q = lo; q <= hi; q++) {
        if (q % TILE == 0)
            flush(w);
        float *key = next_key(w);
        if (q >= start)
            memcpy(key, a->kv + (first_row + q - start) * a->head_dim, (size_t)a->head_dim * 4);
        else
            rows_load(a->l, rows_window(a->l, a->rows->slot[w->t], q), key, a->head_dim,
                      a->rope_dim);
    }
    flush(w);
}

static void entries(struct walk *w, int64_t n, const int32_t *sel)
{
    const struct attention_args *a = w->a;
    const int32_t *pages = a->rows->pages + (int64_t)a->rows->slot[w->t] * a->rows->page_stride;
    for (int64_t i = 0; i < n; i++) {
        if (w->n == TILE)
            flush(w);
        rows_load(a->l, rows_entry(a->l, pages, sel ? sel[i] : i), next_key(w), a->head_dim,
                  a->rope_dim);
    }
    flush(w);
}

static void attend(struct walk *w)
{
    const struct attention_args *a = w->a;
    const struct rows *r = a->rows;
    int span = r->span[w->t], first = r->span_first[span];
    int64_t pos = r->pos[w->t], start = r->pos[first];
    if (a->mode == ATTN_BLOCK) { /* the window ends before the block; every block row is seen */
        window(w, FST_MAX(0, start - a->window), start - 1, start, first);
        window(w, start, start + r->span_first[span + 1] - first - 1, start, first);
        return;
    }
    window(w, FST_MAX(0, pos - a->window + 1), pos, start, first);
    if (a->l->ratio == 128)
        entries(w, (pos + 1) / 128, NULL);
    else if (a->l->ratio == 4)
        entries(w, a->n_sel[w->t], a->sel + w->t * a->topk);
}

struct job {
    const struct attention_args *a;
    enum precision p;
    uint8_t *scratch;
    size_t worker_bytes;
};

static void rows_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct job *j = ud;
    const struct attention_args *a = j->a;
    double *mine = (double *)(void *)(j->scratch + (size_t)worker * j->worker_bytes);
    struct walk w = {.a = a,
                     .p = j->p,
                     .top = mine,
                     .den = mine + a->n_heads,
                     .out = mine + 2 * (int64_t)a->n_heads};
    int64_t heads = (int64_t)a->n_heads * a->head_dim;
    w.keys = (float *)(w.out + heads);
    for (w.t = first; w.t < last; w.t++) {
        for (int h = 0; h < a->n_heads; h++) {
            w.top[h] = -INFINITY;
            w.den[h] = 0;
        }
        memset(w.out, 0, (size_t)heads * sizeof *w.out);
        attend(&w);
        for (int h = 0; h < a->n_heads; h++) {
            float *o = a->o + w.t * heads + (int64_t)h * a->head_dim;
            double den = w.den[h] + exp((double)a->sink[h] - w.top[h]);
            for (int d = 0; d < a->head_dim; d++)
                o[d] = ref_round((float)(w.out[(int64_t)h * a->head_dim + d] / den), j->p);
            ref_rotate(o, a->head_dim, a->rope_dim, a->cs + w.t * a->rope_dim, -1.0f, j->p);
        }
    }
}

static size_t worker_bytes(int n_heads, int head_dim)
{
    size_t heads = (size_t)n_heads;
    return (size_t)round_up(
        (int64_t)(8 * (2 * heads + heads * (size_t)head_dim) + 4 * TILE * (size_t)head_dim), 64);
}

enum fst_status attention_ref(const struct attention_args *a, struct stream *s)
{
    struct job j = {a, s->precision, s->scratch, worker_bytes(a->n_heads, a->head_dim)};
    ref_need(s, j.worker_bytes * (size_t)pool_threads(s->pool));
    FST_ASSERT(a->mode != ATTN_BLOCK || a->l->ratio == 0);
    pool_run(s->pool, a->rows->n_rows, 1, rows_body, &j);
    return FST_OK;
}

size_t ref_attention_scratch(int n_heads, int head_dim, int n_threads)
{
    return worker_bytes(n_heads, head_dim) * (size_t)n_threads;
}
