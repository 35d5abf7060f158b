/* index_topk.c - scores of the compressed entries and the choice of the best. */
#include <math.h>

#include "kernels/ref/ref.h"

struct job {
    const struct index_topk_args *a;
    uint8_t *scratch;
    size_t worker_bytes;
};

static void score_row(const struct index_topk_args *a, int64_t t, int64_t nv, float *score)
{
    const struct rows *r = a->rows;
    const int32_t *pages = r->pages + (int64_t)r->slot[t] * r->page_stride;
    float key[1024];
    FST_ASSERT(a->index_dim <= 1024);
    for (int64_t e = 0; e < nv; e++) {
        double sum = 0;
        rows_index_load(a->l, pages, e, key, a->index_dim);
        for (int h = 0; h < a->index_heads; h++) {
            const float *q = a->qi + (t * a->index_heads + h) * a->index_dim;
            double dot = ref_dot(q, key, a->index_dim);
            if (dot > 0) /* relu before the weight, which may be negative */
                sum += (double)a->iw[t * a->index_heads + h] * dot;
        }
        score[e] = (float)sum;
    }
}

/* Is entry a better than entry b: higher score, or the lower entry of two equal ones. */
static bool better(const float *score, int32_t a, int32_t b)
{
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* Heap with the worst kept entry on top. */
static void sift_down(const float *score, int32_t *heap, int n, int i)
{
    for (;;) {
        int c = 2 * i + 1;
        if (c >= n)
            return;
        if (c + 1 < n && better(score, heap[c], heap[c + 1]))
            c++;
        if (!better(score, heap[i], heap[c]))
            return;
        int32_t v = heap[i];
        heap[i] = heap[c];
        heap[c] = v;
        i = c;
    }
}

/* The k best of nv > k into sel, ascending; returns worst kept minus best dropped. */
static float choose(const float *score, int64_t nv, int k, int32_t *sel, uint8_t *kept)
{
    float dropped = -INFINITY;
    for (int i = 0; i < k; i++)
        sel[i] = i;
    for (int i = k / 2 - 1; i >= 0; i--)
        sift_down(score, sel, k, i);
    for (int32_t e = k; e < nv; e++) {
        int32_t out = e;
        if (better(score, e, sel[0])) {
            out = sel[0];
            sel[0] = e;
            sift_down(score, sel, k, 0);
        }
        dropped = fmaxf(dropped, score[out]);
    }
    float margin = score[sel[0]] - dropped;
    memset(kept, 0, (size_t)nv);
    for (int i = 0; i < k; i++)
        kept[sel[i]] = 1;
    for (int32_t e = 0, i = 0; e < nv; e++)
        if (kept[e])
            sel[i++] = e;
    return margin;
}

static void rows_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct job *j = ud;
    const struct index_topk_args *a = j->a;
    uint8_t *mine = j->scratch + (size_t)worker * j->worker_bytes;
    for (int64_t t = first; t < last; t++) {
        int64_t nv = ((int64_t)a->rows->pos[t] + 1) / 4;
        int32_t *sel = a->sel + t * a->topk;
        float *score = a->scores ? a->scores + t * a->max_entries : (float *)(void *)mine;
        FST_ASSERT(nv <= a->max_entries);
        a->n_sel[t] = (int32_t)FST_MIN(nv, a->topk);
        if (a->margin)
            a->margin[t] = INFINITY;
        if (nv > a->topk || a->scores)
            score_row(a, t, nv, score);
        if (nv <= a->topk) {
            for (int32_t e = 0; e < nv; e++)
                sel[e] = e;
            continue;
        }
        float margin = choose(score, nv, a->topk, sel, mine + a->max_entries * 4);
        if (a->margin)
            a->margin[t] = margin;
    }
}

enum fst_status index_topk_ref(const struct index_topk_args *a, struct stream *s)
{
    struct job j = {a, s->scratch, (size_t)round_up(a->max_entries * 5, 64)};
    ref_need(s, j.worker_bytes * (size_t)pool_threads(s->pool));
    pool_run(s->pool, a->rows->n_rows, 1, rows_body, &j);
    return FST_OK;
}
