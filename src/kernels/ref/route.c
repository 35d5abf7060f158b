/* route.c - which experts a row visits, and with what weight. */
#include <math.h>

#include "kernels/ref/ref.h"

enum { EXPERTS_MAX = 512, K_MAX = 16 };

struct job {
    const struct route_args *a;
    float *row;   /* (n_threads, n_in) scratch, one line of the gate each */
    float *score; /* (n_rows, n_experts) sqrt(softplus(gate x)) */
};

static void scores_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct job *j = ud;
    const struct mat *gate = j->a->gate;
    float *row = j->row + (int64_t)worker * gate->n_in;
    for (int64_t e = first; e < last; e++) {
        ref_mat_row(gate, e, row);
        for (int64_t t = 0; t < j->a->n_rows; t++) {
            double z = ref_dot(row, j->a->x + t * gate->n_in, gate->n_in);
            j->score[t * gate->n_out + e] = (float)sqrt(z > 20 ? z : log1p(exp(z)));
        }
    }
}

/* The k largest of score + bias, ties to the lower id; ascending ids.  Returns the margin. */
static float choose(const float *score, const float *bias, int n, int k, int32_t *id)
{
    float v[EXPERTS_MAX], last = 0, next = -INFINITY;
    uint8_t kept[EXPERTS_MAX] = {0};
    FST_ASSERT(n <= EXPERTS_MAX);
    for (int e = 0; e < n; e++)
        v[e] = score[e] + bias[e];
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!kept[e] && (best < 0 || v[e] > v[best]))
                best = e;
        kept[best] = 1;
        last = v[best];
    }
    for (int e = 0, i = 0; e < n; e++) {
        if (kept[e])
            id[i++] = e;
        else
            next = fmaxf(next, v[e]);
    }
    return last - next;
}

static void sort_ids(int32_t *id, int k)
{
    for (int i = 1; i < k; i++)
        for (int j = i; j > 0 && id[j - 1] > id[j]; j--) {
            int32_t v = id[j];
            id[j] = id[j - 1];
            id[j - 1] = v;
        }
}

enum fst_status route_ref(const struct route_args *a, struct stream *s)
{
    int n = a->gate->n_out, k = a->k;
    size_t row = (size_t)round_up((int64_t)a->gate->n_in * 4 * pool_threads(s->pool), 64);
    ref_need(s, row + (size_t)a->n_rows * (size_t)n * 4);
    FST_ASSERT(k <= K_MAX);
    FST_ASSERT(k <= n);
    struct job j = {a, (float *)(void *)s->scratch, (float *)(void *)(s->scratch + row)};
    pool_run(s->pool, n, 8, scores_body, &j);
    for (int64_t t = 0; t < a->n_rows; t++) {
        const float *score = j.score + t * n;
        int32_t *id = a->expert + t * k;
        float margin = INFINITY;
        if (a->tid2eid) {
            memcpy(id, a->tid2eid + (int64_t)a->id[t] * k, (size_t)k * 4);
            sort_ids(id, k);
        } else {
            FST_ASSERT(a->bias);
            margin = choose(score, a->bias, n, k, id);
        }
        if (a->margin)
            a->margin[t] = margin;
        double sum = 0;
        for (int i = 0; i < k; i++)
            sum += (double)score[id[i]];
        for (int i = 0; i < k; i++) /* the bias chooses, it does not weigh */
            a->weight[t * k + i] = (float)((double)score[id[i]] / sum * (double)a->scale);
    }
    return FST_OK;
}
