/* cost.c - lookups and refinement of the table of costs. */
#include <math.h>

#include "spec/cost.h"

/* An observation moves the cells that it belongs to by PULL of what was wrong, all others by SHARE of
 * that; what is more than TRUST times off (another process had the core) counts as so much. */
static const double PULL = 0.1, SHARE = 0.3, TRUST = 2.0;
enum { LEARN = 3 }; /* observations of a kind before a table is filled from them */

void spec_cost_init(struct spec_cost *c, int gamma, int max_requests)
{
    FST_ASSERT(gamma >= 0);
    FST_ASSERT(gamma <= FST_SPEC_MAX);
    *c = (struct spec_cost){.gamma = gamma};
    for (int r = 1; c->n < SPEC_COST_POINTS - 1 && r < max_requests; r *= 2)
        c->requests[c->n++] = r;
    c->requests[c->n++] = FST_MAX(max_requests, 1);
}

void spec_cost_set_step(struct spec_cost *c, int p, int k, double seconds)
{
    FST_ASSERT(p >= 0);
    FST_ASSERT(p < c->n);
    FST_ASSERT(k >= 0);
    FST_ASSERT(k <= c->gamma);
    c->step_s[p][k] = seconds;
}

void spec_cost_set_draft(struct spec_cost *c, int p, int k, double seconds)
{
    FST_ASSERT(p >= 0);
    FST_ASSERT(p < c->n);
    FST_ASSERT(k >= 0);
    FST_ASSERT(k < c->gamma);
    c->draft_s[p][k] = seconds;
}

/* ------------------------------------------------------------------ fill */

/* What is missing between two known cells of a line lies between them; behind the last it goes on as the
 * last two do, in front of the first as the first does.  n_known is at least 1. */
static void fill_line(double *x, int n)
{
    int last = -1, before = -1;
    for (int i = 0; i < n; i++) {
        if (x[i] <= 0)
            continue;
        for (int j = last + 1; j < i; j++)
            x[j] = last < 0 ? x[i] : x[last] + (x[i] - x[last]) * (j - last) / (i - last);
        before = last;
        last = i;
    }
    for (int j = last + 1; j < n; j++) {
        double slope = before < 0 ? 0 : (x[last] - x[before]) / (last - before);
        x[j] = x[last] + FST_MAX(slope, 0) * (j - last);
    }
}

static bool known(const struct spec_cost *c, int p)
{
    return c->step_s[p][0] > 0 && c->step_s[p][c->gamma] > 0 && c->draft_s[p][c->gamma - 1] > 0;
}

/* A point of which nothing is known: as its neighbour, and for each row more or less what a row costs
 * there. */
static void fill_point(struct spec_cost *c, int p, int from)
{
    double row_s = (c->step_s[from][c->gamma] - c->step_s[from][0]) /
                   ((double)c->requests[from] * FST_MAX(c->gamma, 1));
    double more = c->requests[p] - c->requests[from];
    double least = (double)c->requests[p] / FST_MAX(c->requests[from], 1);
    for (int k = 0; k <= c->gamma; k++)
        c->step_s[p][k] = FST_MAX(c->step_s[from][k] + row_s * more * (1 + k),
                                  c->step_s[from][k] * FST_MIN(least, 1));
    for (int k = 0; k < c->gamma; k++) {
        double each = c->draft_s[from][c->gamma - 1] / ((double)c->requests[from] * c->gamma);
        /* Half of a draft's time is taken to grow with its rows. */
        c->draft_s[p][k] = FST_MAX(c->draft_s[from][k] + 0.5 * each * more * (k + 1),
                                   c->draft_s[from][k] * FST_MIN(least, 1));
    }
}

bool spec_cost_fill(struct spec_cost *c)
{
    int first = -1;
    bool was[SPEC_COST_POINTS];
    if (c->gamma == 0)
        return false;
    for (int p = 0; p < c->n; p++) {
        was[p] = known(c, p);
        if (was[p] && first < 0)
            first = p;
        if (was[p]) {
            fill_line(c->step_s[p], c->gamma + 1);
            fill_line(c->draft_s[p], c->gamma);
        }
    }
    if (first < 0)
        return false;
    for (int p = first - 1; p >= 0; p--)
        fill_point(c, p, p + 1);
    for (int p = first + 1; p < c->n; p++)
        if (!was[p])
            fill_point(c, p, p - 1);
    for (int p = 0; p < c->n; p++)
        for (int k = 0; k <= c->gamma; k++) {
            double least = k ? c->step_s[p][k - 1] : 0;
            if (p)
                least = FST_MAX(least, c->step_s[p - 1][k]);
            c->step_s[p][k] = FST_MAX(c->step_s[p][k], least);
        }
    return c->ready = true;
}

/* ------------------------------------------------------------------ lookups */

/* Two neighbours of a line of places and how much of the second, which may be beyond 0..1. */
struct between {
    int a, b;
    double w;
};

static struct between find_point(const struct spec_cost *c, int requests)
{
    int p = 0;
    if (c->n == 1)
        return (struct between){0, 0, 0};
    while (p < c->n - 2 && c->requests[p + 1] < requests)
        p++;
    return (struct between){
        p, p + 1, (double)(requests - c->requests[p]) / (c->requests[p + 1] - c->requests[p])};
}

static struct between find_rows(int n, double k)
{
    int a = (int)FST_MAX(0, FST_MIN(floor(k), n - 2));
    if (n == 1)
        return (struct between){0, 0, 0};
    return (struct between){a, a + 1, FST_MAX(k - a, 0)};
}

static double mix(struct between x, double a, double b)
{
    return a + (b - a) * x.w;
}

double spec_cost_step(const struct spec_cost *c, int requests, double rows, double row_positions)
{
    FST_ASSERT(c->ready);
    FST_ASSERT(requests > 0);
    struct between p = find_point(c, requests),
                   k = find_rows(c->gamma + 1, rows / (double)requests - 1);
    double s = mix(p, mix(k, c->step_s[p.a][k.a], c->step_s[p.a][k.b]),
                   mix(k, c->step_s[p.b][k.a], c->step_s[p.b][k.b]));
    return FST_MAX(s, 1e-9) + c->context_s * row_positions;
}

double spec_cost_draft(const struct spec_cost *c, int requests, int block)
{
    FST_ASSERT(c->ready);
    if (requests <= 0 || block <= 0)
        return 0;
    struct between p = find_point(c, requests);
    int k = FST_MIN(block, c->gamma) - 1;
    return FST_MAX(mix(p, c->draft_s[p.a][k], c->draft_s[p.b][k]), 1e-9);
}

double spec_cost_inject(const struct spec_cost *c, int rows)
{
    return rows > 0 ? c->inject_call_s + c->inject_row_s * rows : 0;
}

/* ------------------------------------------------------------------ observations */

/* By how much all cells change: `part` of the relative error. */
static void scale(struct spec_cost *c, double part)
{
    for (int p = 0; p < c->n; p++) {
        for (int k = 0; k <= c->gamma; k++)
            c->step_s[p][k] *= 1 + part;
        for (int k = 0; k < c->gamma; k++)
            c->draft_s[p][k] *= 1 + part;
    }
}

static double error_of(double expected, double seconds)
{
    double e = seconds / expected - 1;
    return FST_MAX(1 / TRUST - 1, FST_MIN(e, TRUST - 1));
}

/* The weights of a lookup that lies inside; beyond the ends the end has it all. */
static double weight(struct between x, int second)
{
    double w = FST_MAX(0, FST_MIN(x.w, 1));
    return second ? w : 1 - w;
}

static int nearest(const struct spec_cost *c, int requests)
{
    struct between p = find_point(c, requests);
    return p.w > 0.5 ? p.b : p.a;
}

static void least(double *x, double seconds)
{
    *x = *x > 0 ? FST_MIN(*x, seconds) : seconds;
}

static void learn_step(struct spec_cost *c, int requests, double rows, double seconds)
{
    int p = nearest(c, requests);
    if (rows <= requests) {
        least(&c->step_s[p][0], seconds);
        c->n_plain[p]++;
    } else if (rows == (double)requests * (c->gamma + 1)) {
        least(&c->step_s[p][c->gamma], seconds);
        c->n_full[p]++;
    }
    if (c->n_plain[p] >= LEARN && c->n_full[p] >= LEARN)
        spec_cost_fill(c);
}

void spec_cost_saw_step(struct spec_cost *c, int requests, double rows, double row_positions,
                        double seconds)
{
    if (requests <= 0 || rows < requests || !(seconds > 0) || c->gamma == 0)
        return;
    if (!c->ready) {
        learn_step(c, requests, rows, seconds);
        return;
    }
    double e = error_of(spec_cost_step(c, requests, rows, row_positions), seconds) * PULL;
    struct between p = find_point(c, requests),
                   k = find_rows(c->gamma + 1, rows / (double)requests - 1);
    scale(c, e * SHARE);
    e *= 1 - SHARE;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            c->step_s[i ? p.b : p.a][j ? k.b : k.a] *= 1 + e * weight(p, i) * weight(k, j);
}

void spec_cost_saw_draft(struct spec_cost *c, int requests, int block, double seconds)
{
    if (requests <= 0 || block <= 0 || block > c->gamma || !(seconds > 0))
        return;
    if (!c->ready) {
        if (block == c->gamma)
            least(&c->draft_s[nearest(c, requests)][block - 1], seconds);
        return;
    }
    double e = error_of(spec_cost_draft(c, requests, block), seconds) * PULL;
    struct between p = find_point(c, requests);
    scale(c, e * SHARE);
    e *= 1 - SHARE;
    for (int i = 0; i < 2; i++)
        c->draft_s[i ? p.b : p.a][block - 1] *= 1 + e * weight(p, i);
}

void spec_cost_saw_inject(struct spec_cost *c, int rows, double seconds)
{
    if (rows <= 0 || !(seconds > 0))
        return;
    double was = spec_cost_inject(c, rows);
    if (was <= 0) { /* the first: half of it is taken for the call */
        c->inject_call_s = seconds / 2;
        c->inject_row_s = seconds / 2 / rows;
        return;
    }
    double e = error_of(was, seconds) * PULL;
    c->inject_call_s *= 1 + e * c->inject_call_s / was;
    c->inject_row_s *= 1 + e * c->inject_row_s * rows / was;
}

bool spec_cost_wants_plain(const struct spec_cost *c, int requests)
{
    return !c->ready && c->n_plain[nearest(c, requests)] < LEARN;
}
