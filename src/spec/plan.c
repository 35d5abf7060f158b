/* plan.c - prefixes by survival, and who drafts. */
#include "spec/plan.h"

/* ------------------------------------------------------------------ candidates in order */

/* A heap of requests by their next candidate; ask[i].heap is the request at place i. */
struct queue {
    struct spec_ask *ask;
    int n;
};

static double next_of(const struct spec_ask *a)
{
    return a->n < a->n_max ? a->survive[a->n] : 0;
}

static bool before(const struct queue *q, int a, int b)
{
    const struct spec_ask *x = &q->ask[a], *y = &q->ask[b];
    double u = next_of(x), v = next_of(y);
    if (u > v || u < v)
        return u > v;
    return x->n != y->n ? x->n < y->n : a < b;
}

static void sift(struct queue *q, int at)
{
    int moved = q->ask[at].heap;
    for (;;) {
        int child = 2 * at + 1;
        if (child >= q->n)
            break;
        if (child + 1 < q->n && before(q, q->ask[child + 1].heap, q->ask[child].heap))
            child++;
        if (!before(q, q->ask[child].heap, moved))
            break;
        q->ask[at].heap = q->ask[child].heap;
        at = child;
    }
    q->ask[at].heap = moved;
}

static struct queue start(struct spec_ask *ask, int n)
{
    struct queue q = {ask, n};
    for (int i = 0; i < n; i++) {
        ask[i].n = 0;
        ask[i].heap = i;
    }
    for (int i = n / 2 - 1; i >= 0; i--)
        sift(&q, i);
    return q;
}

/* The best candidate's survival, taken; 0: there is none. */
static double pop(struct queue *q)
{
    if (q->n == 0)
        return 0;
    struct spec_ask *a = &q->ask[q->ask[0].heap];
    double s = next_of(a);
    if (!(s >= SPEC_SURVIVAL_MIN))
        return 0;
    a->n++;
    sift(q, 0);
    return s;
}

/* ------------------------------------------------------------------ how many */

static struct spec_found find(struct spec_ask *ask, int n, double base, const double *seconds,
                              int n_seconds, bool early)
{
    struct queue q = start(ask, n);
    struct spec_found best = {0, base, base / seconds[0]};
    double tokens = base, s;
    for (int k = 1; k < n_seconds && (s = pop(&q)) > 0; k++) {
        tokens += s;
        double objective = tokens / seconds[k];
        if (objective > best.objective)
            best = (struct spec_found){k, tokens, objective};
        else if (early)
            break;
    }
    return best;
}

void spec_plan_spend(struct spec_ask *ask, int n, int budget)
{
    struct queue q = start(ask, n);
    while (budget > 0 && pop(&q) > 0)
        budget--;
}

struct spec_found spec_plan_best(struct spec_ask *ask, int n, double base, const double *seconds,
                                 int n_seconds)
{
    struct spec_found best = find(ask, n, base, seconds, n_seconds, false);
    spec_plan_spend(ask, n, best.extra);
    return best;
}

struct spec_found spec_plan_early_stop(struct spec_ask *ask, int n, double base,
                                       const double *seconds, int n_seconds)
{
    struct spec_found best = find(ask, n, base, seconds, n_seconds, true);
    spec_plan_spend(ask, n, best.extra);
    return best;
}

int spec_plan_budget(struct spec_ask *ask, int n, double base, const double *seconds, int n_seconds)
{
    return find(ask, n, base, seconds, n_seconds, false).extra;
}

double spec_plan_objective(const struct spec_ask *ask, int n, double base, const double *seconds,
                           int n_seconds)
{
    double tokens = base;
    int extra = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < ask[i].n; j++, extra++)
            tokens += ask[i].survive[j];
    FST_ASSERT(extra < n_seconds);
    return tokens / seconds[extra];
}

/* ------------------------------------------------------------------ who drafts */

static double gain(const struct spec_wish *w, int block)
{
    double s = 0;
    for (int j = 0; j < block && j < w->n_max; j++)
        s += w->expect[j];
    return s;
}

/* wish[i].heap becomes the order of gain; n is a few dozen, and the order hardly changes. */
static void by_gain(struct spec_wish *wish, int n, int gamma)
{
    int n_can = 0;
    for (int i = 0; i < n; i++)
        wish[i].drafts = false;
    for (int i = 0; i < n; i++) {
        double g = wish[i].gain = gain(&wish[i], gamma);
        int at = n_can;
        if (wish[i].n_max <= 0)
            continue;
        for (; at > 0 && wish[wish[at - 1].heap].gain < g; at--)
            wish[at].heap = wish[at - 1].heap;
        wish[at].heap = i;
        n_can++;
    }
    for (int i = n_can; i < n; i++)
        wish[i].heap = -1;
}

static double marginal_s(const struct spec_cost *c, const struct spec_load *l, double extra,
                         double positions)
{
    int r = l->n_decoding;
    double rows = r + l->prefill_rows, plain = spec_cost_step(c, r, r, l->positions);
    if (extra <= 0)
        return plain;
    return plain + FST_MAX(0, spec_cost_step(c, r, rows + extra, positions) -
                                  spec_cost_step(c, r, rows, 0));
}

static struct spec_drafting choose(const struct spec_cost *c, struct spec_wish *wish, int n,
                                   const struct spec_load *l, double margin, int n_most)
{
    struct spec_drafting d = {0};
    double base = l->n_decoding;
    if (base <= 0)
        return d;
    by_gain(wish, n, c->gamma);
    d.plain_tok_s = d.best_tok_s = base / marginal_s(c, l, 0, 0);
    double least = d.plain_tok_s * margin;
    for (int block = 1; block <= c->gamma; block++) {
        double tokens = base, resume = 0, positions = 0;
        int extra = 0;
        for (int m = 1; m <= n && m <= n_most && wish[m - 1].heap >= 0; m++) {
            const struct spec_wish *w = &wish[wish[m - 1].heap];
            tokens += gain(w, block);
            resume += w->resume_s;
            extra += FST_MIN(block, w->n_max);
            positions += w->positions * FST_MIN(block, w->n_max);
            double s = marginal_s(c, l, extra, positions) + spec_cost_draft(c, m, block) + resume +
                       spec_cost_inject(c, m + (int)(tokens - base));
            if (tokens / s > least) {
                least = d.best_tok_s = tokens / s;
                d.tokens = tokens;
                d.seconds = s;
                d.block = block;
                d.n_drafting = m;
            }
        }
    }
    for (int i = 0; i < d.n_drafting; i++)
        wish[wish[i].heap].drafts = true;
    return d;
}

struct spec_drafting spec_plan_drafting(const struct spec_cost *c, struct spec_wish *wish, int n,
                                        const struct spec_load *load)
{
    return choose(c, wish, n, load, load->margin, n);
}

struct spec_drafting spec_plan_try(const struct spec_cost *c, struct spec_wish *wish, int n,
                                   const struct spec_load *load, int n_most)
{
    return choose(c, wish, n, load, 0, n_most);
}

void spec_plan_seconds(const struct spec_cost *c, const struct spec_load *load, double draft_s,
                       double *seconds, int n)
{
    double positions = load->n_decoding > 0 ? load->positions / load->n_decoding : 0;
    for (int k = 0; k < n; k++)
        seconds[k] = draft_s + marginal_s(c, load, k, positions * k);
}
