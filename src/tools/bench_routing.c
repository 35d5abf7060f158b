/* bench_routing.c - counts the experts that a step's rows meet, and lets rows of a request share them.
 * Stands between the model and the kernel `route`, by exception. */
#include "tools/bench_routing.h"

#include <math.h>
#include <string.h>

static struct bench_routing *active;

static void count(struct bench_routing *r, int n)
{
    uint8_t met[CONFIG_EXPERTS_MAX] = {0};
    for (int i = 0; i < n; i++) {
        FST_ASSERT(r->host[i] >= 0 && r->host[i] < r->n_experts);
        r->sum += !met[r->host[i]];
        met[r->host[i]] = 1;
    }
    r->n++;
}

static enum fst_status routed(const struct route_args *a, struct stream *s)
{
    struct bench_routing *r = active;
    size_t n = (size_t)a->n_rows * (size_t)a->k, bytes = n * sizeof *a->expert;
    FST_TRY(r->kernels.route(a, s));
    if (r->table && r->replaces) {
        FST_ASSERT(r->layer < r->n_layers);
        FST_TRY(stream_copy(s, a->expert, r->table + (size_t)r->layer * n, bytes));
    }
    r->layer++;
    if (!r->counts)
        return FST_OK;
    FST_TRY(stream_sync(s));
    FST_TRY(device_copy(s->device, r->host, a->expert, bytes));
    count(r, (int)n);
    return FST_OK;
}

void bench_routing_wrap(struct bench_routing *r, struct kernels *out, const struct model_config *c)
{
    active = r;
    *out = r->kernels;
    out->route = routed;
    r->n_layers = c->n_layers;
    r->n_experts = c->n_experts;
    r->k = c->n_experts_per_token;
    rng_init(&r->rng, 1);
}

enum fst_status bench_routing_open(struct bench_routing *r, const struct device *d, int max_rows,
                                   bool correlated)
{
    size_t one = (size_t)max_rows * (size_t)r->k * sizeof *r->host;
    r->device = d;
    r->replaces = true;
    r->max_rows = max_rows;
    r->host = mem_alloc(one);
    if (r->host && correlated)
        r->table = device_alloc(d, one * (size_t)r->n_layers);
    return r->host && (r->table || !correlated)
               ? FST_OK
               : fst_error(FST_ENOMEM, "bench: %zu bytes for the experts of rows", one);
}

void bench_routing_close(struct bench_routing *r)
{
    mem_free(r->host);
    device_free(r->device, r->table,
                (size_t)r->max_rows * (size_t)r->k * (size_t)r->n_layers * sizeof *r->table);
    r->host = r->table = NULL;
}

/* Different experts that t rows of one sequence meet, 6 each: measured on a V4-Flash pruned to 160
 * experts up to 5 rows, beyond that the power law that goes through them. */
static double expected(double t)
{
    static const double measured[] = {6.00, 9.67, 12.58, 15.16, 17.53};
    return t <= 5 ? measured[(int)t - 1] : 6 * pow(t, 2.0 / 3);
}

static int any_but(struct bench_routing *r, const uint8_t *taken)
{
    int e;
    do
        e = (int)rng_below(&r->rng, (uint64_t)r->n_experts);
    while (taken[e]);
    return e;
}

/* Row t (from 0) of a sequence: some new experts, the rest out of those `met` before. */
static void draw_row(struct bench_routing *r, int t, uint8_t *met, int *n_met, int32_t *out)
{
    uint8_t mine[CONFIG_EXPERTS_MAX] = {0}, taken[CONFIG_EXPERTS_MAX];
    double want = fmin(expected(t + 1.0) * r->k / 6, r->n_experts) - *n_met;
    int n_new = (int)floor(fmax(want, 0) + rng_unit(&r->rng)), k = 0;
    n_new = FST_MIN(FST_MIN(n_new, r->k), r->n_experts - *n_met);
    n_new = FST_MAX(n_new, r->k - *n_met);
    for (int i = 0; i < r->k; i++) {
        /* old ones: all that are not met are taken, and so are this row's own */
        for (int e = 0; e < r->n_experts; e++)
            taken[e] = mine[e] || (i < n_new ? met[e] : !met[e]);
        mine[any_but(r, taken)] = 1;
    }
    for (int e = 0; e < r->n_experts; e++) {
        *n_met += mine[e] && !met[e];
        met[e] |= mine[e];
        if (mine[e])
            out[k++] = e;
    }
    FST_ASSERT(k == r->k);
}

enum fst_status bench_routing_draw(struct bench_routing *r, int requests, int width)
{
    size_t n = (size_t)requests * (size_t)width * (size_t)r->k;
    r->sum = r->n = 0;
    for (int l = 0; r->table && l < r->n_layers; l++) {
        for (int q = 0; q < requests; q++) {
            uint8_t met[CONFIG_EXPERTS_MAX] = {0};
            int n_met = 0;
            for (int t = 0; t < width; t++)
                draw_row(r, t, met, &n_met, r->host + ((int64_t)q * width + t) * r->k);
        }
        FST_TRY(device_copy(r->device, r->table + (size_t)l * n, r->host, n * sizeof *r->host));
    }
    return FST_OK;
}

void bench_routing_begin(struct bench_routing *r)
{
    r->layer = 0;
}

void bench_routing_replace(struct bench_routing *r, bool on)
{
    r->replaces = on;
}

void bench_routing_count(struct bench_routing *r, bool on)
{
    r->counts = on;
}

double bench_routing_distinct(const struct bench_routing *r)
{
    return r->n ? (double)r->sum / (double)r->n : 0;
}
