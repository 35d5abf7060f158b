/* bench_step.c - `bench step --synthetic`: a preset's steps on random weights, without the engine.
 *
 * A step is timed by the host's clock from the call to the wait's end.  A second pass asks the model
 * for the time of each block, by kind of layer; on a card the queue is filled while a long fill runs
 * first, so that those are times of the card and not of launches.  Looks into the model by exception. */
#include "base/clock.h"
#include "tools/bench_synthetic.h"

enum { WARM = 3, PROFILED = 5 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Steps until there are enough, or 20 s are over; s->times sorted. */
static enum fst_status timed(struct synth *s, const struct shape *h, synth_run_fn *run, int *n)
{
    int64_t end = clock_ns() + (int64_t)20e9;
    for (*n = 0; *n < s->steps && (*n < 3 || clock_ns() < end); (*n)++)
        FST_TRY(run(s, h, &s->times[*n]));
    qsort(s->times, (size_t)*n, sizeof *s->times, by_value);
    return FST_OK;
}

/* ------------------------------------------------------------------ rows of the result */

static void put(struct synth *s, const struct shape *h, const char *name, const char *site,
                int calls, double us, struct model_cost c)
{
    struct bench_row *r = bench_add(s->b, name, h->kind);
    if (!r)
        return;
    r->site = site;
    r->rows = h->requests * h->width;
    r->context = h->start;
    r->calls = calls;
    r->time_us = us;
    r->c = c;
}

/* One row for each block at each site, and one for what all of them take together. */
static void put_blocks(struct synth *s, const struct shape *h, const struct model_load *x,
                       int n_window)
{
    static const char *const sites[MODEL_SITES] = {NULL, "window", "C4", "C128"};
    const struct model_config *c = &s->b->cfg;
    const struct model_timing *t;
    int blocks = model_timings(s->model, &t);
    for (int site = 0; site < MODEL_SITES; site++) {
        int layers = site == MODEL_SITE_NONE     ? 1
                     : site == MODEL_SITE_WINDOW ? n_window
                                                 : model_cost_layers(c, (enum model_site)site);
        double sum = 0;
        for (int i = 0; i < blocks; i++) {
            char name[40];
            double us = (double)t[i].at[site].ns * 1e-3 / PROFILED;
            if (!t[i].at[site].calls)
                continue;
            sum += us;
            snprintf(name, sizeof name, "block/%s", t[i].name);
            struct model_cost one = model_cost_block(c, x, t[i].name, (enum model_site)site);
            put(s, h, name, sites[site], (int)(t[i].at[site].calls / PROFILED), us,
                model_cost_times(one, layers));
        }
        if (site && sum > 0)
            put(s, h, "layer", sites[site], layers, sum / layers,
                model_cost_layer(c, x, (enum model_site)site));
    }
}

static enum fst_status profile(struct synth *s, const struct shape *h, synth_run_fn *run, double us)
{
    double ignored;
    const struct model_timing *t;
    model_profile(s->model, true);
    model_timings_reset(s->model);
    enum fst_status rc = FST_OK;
    for (int i = 0; i < PROFILED && rc == FST_OK; i++) {
        rc = synth_busy(s, us);
        if (rc == FST_OK)
            rc = run(s, h, &ignored);
        model_timings(s->model, &t); /* empties the device's marks before the next step */
    }
    model_profile(s->model, false);
    return rc;
}

enum fst_status synth_measure(struct synth *s, const struct shape *h, synth_run_fn *run,
                              const struct model_load *x, struct model_cost whole, int n_window)
{
    double us = 0;
    int n = 0;
    for (int i = 0; i < WARM; i++)
        FST_TRY(run(s, h, &us));
    FST_TRY(timed(s, h, run, &n));
    put(s, h, "step", NULL, 1, s->times[n / 2], whole);
    if (s->b->n) {
        struct bench_row *r = &s->b->out[s->b->n - 1];
        r->p95_us = s->times[FST_MIN(n - 1, n * 95 / 100)];
        r->steps = n;
        r->distinct = x->distinct;
    }
    if (s->whole)
        return FST_OK;
    FST_TRY(profile(s, h, run, us));
    put_blocks(s, h, x, n_window);
    return FST_OK;
}

static enum fst_status measure_shape(struct synth *s, const struct shape *h)
{
    const struct model_config *c = &s->b->cfg;
    float *logits;
    FST_TRY(synth_begin(s, h));
    FST_TRY(synth_first_step(s, h, &logits));
    struct model_load x = synth_load(s, h, bench_routing_distinct(&s->routing));
    FST_TRY(synth_measure(s, h, synth_step, &x, model_cost_step(c, &x),
                          model_cost_layers(c, MODEL_SITE_WINDOW)));
    if (s->draft && h->n_logits == s->rows.n_rows)
        FST_TRY(synth_draft(s, h));
    synth_end(s, h);
    return FST_OK;
}

enum fst_status bench_synthetic(struct bench *b, const struct options *o)
{
    struct synth *s;
    FST_TRY(synth_new(&s, b, o, options_text(o, "synthetic"), SYNTH_STEPS));
    enum fst_status rc = FST_OK;
    for (int i = 0; i < s->n_shapes && rc == FST_OK; i++)
        rc = measure_shape(s, &s->shape[i]);
    synth_free(s);
    return rc;
}
