/* draw.c - tokens from logits: Gumbel noise by counter, the Markov chain of a draft block. */
#include <math.h>

#include "kernels/philox.h"
#include "kernels/ref/ref.h"

/* Lowest id with the largest logit/temperature + noise; entries that are no numbers never win. */
static int32_t pick(const float *logit, int vocab, const struct draw_params *d, uint32_t out_pos)
{
    double best = -INFINITY;
    int32_t id = 0;
    for (int32_t v = 0; v < vocab; v++) {
        double x = (double)logit[v];
        if (d->temperature > 0) /* the noise's bits are philox.h's in every kernel */
            x = x / (double)d->temperature +
                (double)philox_gumbel(d->seed, (uint32_t)v, out_pos, d->choice);
        if (x > best) {
            best = x;
            id = v;
        }
    }
    return id;
}

enum fst_status draw_ref(const struct draw_args *a, struct stream *s)
{
    (void)s;
    for (int i = 0; i < a->n; i++) {
        float *l = a->logits + (int64_t)i * a->vocab;
        double top = -INFINITY, sum = 0;
        bool nan = false;
        for (int k = 0; k < a->n_masked; k++)
            l[a->masked[k]] = -INFINITY;
        for (int v = 0; v < a->vocab; v++) {
            nan = nan || isnan(l[v]);
            top = fmax(top, (double)l[v]);
        }
        for (int v = 0; v < a->vocab; v++)
            sum += exp((double)l[v] - top);
        a->id[i] =
            nan && !a->drafts ? -1 : pick(l, a->vocab, &a->draw[i], a->out_pos[i] + a->ahead);
        if (a->lse)
            a->lse[i] = nan ? NAN : (float)(top + log(sum));
        if (a->logit)
            a->logit[i] = nan ? NAN : l[a->id[i]];
    }
    return FST_OK;
}

struct job {
    const struct draft_chain_args *a;
    const float *base, *w1;
    float *out, *row;
    size_t row_floats;
};

static void chain_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct job *j = ud;
    float *row = j->row + (size_t)worker * j->row_floats;
    for (int64_t v = first; v < last; v++) {
        ref_mat_row(j->a->w2, v, row);
        j->out[v] = (float)((double)j->base[v] + ref_dot(row, j->w1, j->a->rank));
    }
}

enum fst_status draft_chain_ref(const struct draft_chain_args *a, struct stream *s)
{
    int threads = pool_threads(s->pool);
    size_t vocab = (size_t)round_up(a->vocab, 16), rank = (size_t)round_up(a->rank, 16);
    size_t wide = (size_t)round_up(a->dim + a->rank, 16);
    ref_need(s, 4 * (vocab + rank * (size_t)(threads + 1) + wide));
    float *out = (float *)(void *)s->scratch, *w1 = out + vocab, *conf = w1 + rank;
    struct job j = {.a = a, .w1 = w1, .row = conf + wide, .row_floats = rank};
    if (ref_mat_there(a->conf_proj))
        ref_mat_row(a->conf_proj, 0, conf);
    for (int r = 0; r < a->n; r++) {
        int32_t prev = a->anchor[r];
        for (int k = 0; k < a->gamma; k++) {
            int64_t at = (int64_t)r * a->gamma + k;
            ref_mat_row(a->w1, prev, w1);
            j.base = a->base + at * a->vocab;
            j.out = a->corrected ? a->corrected + at * a->vocab : out;
            pool_run(s->pool, a->vocab, 64, chain_body, &j);
            if (ref_mat_there(a->conf_proj))
                a->conf[at] = (float)(ref_dot(conf, a->y + at * a->dim, a->dim) +
                                      ref_dot(conf + a->dim, w1, a->rank));
            prev = pick(j.out, a->vocab, &a->draw[r], a->out_pos[r] + (uint32_t)k);
            a->id[at] = prev;
        }
    }
    return FST_OK;
}
