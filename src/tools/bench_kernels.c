/* bench_kernels.c - `bench kernels`: each entry of the kernel table alone, on a preset's random weights.
 *
 * A step of each case runs once; what it launches is kept (bench_calls.c) and played entry by entry, apart
 * for each kind of layer.  A row is one launch: where a layer has two (seam), the mean of both.  Bytes and
 * operations are those of `bench step` for the same block, by its launches.  Row 0 of a decode case completes an
 * entry of ratio 4, as one in four does.  `draw` is what the sampler launches on the step's logits.
 * Looks into model, kernels and KV memory by exception. */
#include "tools/bench_calls.h"
#include "tools/bench_synthetic.h"

struct kernels_bench {
    struct synth *s;
    struct calls calls;
    uint32_t picked;  /* entries, as bits */
    bool named, rest; /* named: somebody picked */
    void *draws;      /* owned, shared memory: arguments and results of draw */
    size_t draws_bytes;
};

/* What a case is and was measured by. */
struct group_case {
    const struct shape *h;
    struct model_load x;
    int n_window;
};

/* ------------------------------------------------------------------ entries */

static enum fst_status unknown(const char *name, size_t len)
{
    char known[400] = "";
    for (int e = 0; e < CALL_ENTRIES; e++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", e ? ", " : "", calls_entry_name(e));
    }
    return fst_error(FST_EINVAL, "--entries: no entry of the kernel table: \"%.*s\"; known: %s",
                     (int)len, name, known);
}

static enum fst_status pick(struct kernels_bench *k, const char *names)
{
    k->named = names;
    k->picked = names ? 0 : ~0u;
    while (names) {
        size_t len = strcspn(names, ",");
        int e = 0;
        while (e < CALL_ENTRIES && (strlen(calls_entry_name(e)) != len ||
                                    strncmp(calls_entry_name(e), names, len) != 0))
            e++;
        if (e == CALL_ENTRIES)
            return unknown(names, len);
        k->picked |= 1u << e;
        names = names[len] ? names + len + 1 : NULL;
    }
    return FST_OK;
}

/* An entry that was named and that nothing here launches. */
static enum fst_status check_picked(const struct kernels_bench *k)
{
    uint32_t met = k->s->draft ? 1u << CALL_main_proj | 1u << CALL_draft_chain : 0;
    for (int i = 0; i < k->calls.n; i++)
        met |= 1u << k->calls.call[i].entry;
    for (int e = 0; e < CALL_ENTRIES && k->named; e++)
        if (k->picked & ~met & 1u << e)
            return fst_error(FST_EINVAL, "--entries: no step of %s (%d layers) launches %s",
                             k->s->b->preset, k->s->b->cfg.n_layers, calls_entry_name(e));
    return FST_OK;
}

/* ------------------------------------------------------------------ draw */

static enum fst_status open_draws(struct kernels_bench *k)
{
    size_t n = (size_t)k->s->max_logits;
    k->draws_bytes = n * (sizeof(struct draw_params) + 3 * sizeof(int32_t));
    k->draws = device_alloc_shared(k->s->device, k->draws_bytes);
    return k->draws ? FST_OK : fst_error(FST_ENOMEM, "bench: %zu bytes for draws", k->draws_bytes);
}

static enum fst_status draw(struct kernels_bench *k, const struct shape *h, float *logits)
{
    size_t n = (size_t)k->s->max_logits;
    struct draw_params *p = k->draws;
    uint32_t *out_pos = (uint32_t *)(void *)(p + n);
    for (int i = 0; i < h->n_logits; i++)
        p[i] = (struct draw_params){.temperature = 1, .seed = (uint64_t)i};
    struct draw_args a = {.logits = logits,
                          .draw = p,
                          .out_pos = out_pos,
                          .id = (int32_t *)(void *)(out_pos + n),
                          .lse = (float *)(void *)(out_pos + 2 * n),
                          .n = h->n_logits,
                          .vocab = k->s->b->cfg.vocab_size};
    return k->s->kernels.draw(&a, &k->s->stream);
}

/* ------------------------------------------------------------------ rows of the result */

/* Of the injection's part of attn_in: wkv alone. */
static struct model_cost inject_cost(const struct model_config *c, double rows)
{
    double out = c->head_dim, in = c->hidden_size;
    return (struct model_cost){.bytes = out * in + rows * (in + 2 * out),
                               .fp8 = 2 * rows * out * in};
}

/* Of all launches of an entry at a site. */
static struct model_cost cost_of(const struct kernels_bench *k, const struct group_case *g,
                                 int entry, int site, double distinct)
{
    const struct model_config *c = &k->s->b->cfg;
    const char *name = calls_entry_name(entry);
    struct model_load x = g->x;
    x.distinct = distinct;
    if (entry == CALL_draw)
        x.rows = x.logits;
    if (site == MODEL_SITE_NONE)
        return model_cost_block(c, &x, name, MODEL_SITE_NONE);
    if (site != CALL_SITE_INJECT)
        return model_cost_times(
            model_cost_block(c, &x, name, (enum model_site)site),
            site == MODEL_SITE_WINDOW ? g->n_window : model_cost_layers(c, (enum model_site)site));
    x.rows = k->s->rows.n_rows;
    if (entry == CALL_attn_in)
        return model_cost_times(inject_cost(c, x.rows), c->n_stages);
    if (entry == CALL_main_proj || entry == CALL_rope)
        return model_cost_block(c, &x, name, MODEL_SITE_NONE);
    return model_cost_times(model_cost_block(c, &x, name, MODEL_SITE_WINDOW), c->n_stages);
}

static enum fst_status busy(void *ud, double us)
{
    return synth_busy(ud, us);
}

static enum fst_status measure_entry(struct kernels_bench *k, const struct group_case *g, int entry,
                                     int site)
{
    static const char *const sites[CALL_SITES] = {NULL, "window", "C4", "C128", "inject"};
    struct bench *b = k->s->b;
    struct played p = {0};
    double distinct = 0;
    char name[40];
    int n = calls_count(&k->calls, entry, site);
    if (!n)
        return FST_OK;
    if (entry == CALL_experts)
        FST_TRY(calls_distinct(&k->calls, site, &distinct));
    FST_TRY(calls_play(&k->calls, entry, site, k->rest, busy, k->s, &p));
    snprintf(name, sizeof name, "kernel/%s", calls_entry_name(entry));
    struct bench_row *r = bench_add(b, name, g->h->kind);
    if (!r)
        return fst_error(FST_ENOMEM, "bench: no memory for results");
    r->site = sites[site];
    r->rows = site == CALL_SITE_INJECT ? k->s->rows.n_rows : g->h->requests * g->h->width;
    r->context = g->h->start;
    r->calls = p.launches;
    r->sets = p.sets;
    r->time_us = p.median_us;
    r->best_us = p.best_us;
    r->distinct = distinct;
    r->c = model_cost_times(cost_of(k, g, entry, site, distinct), 1.0 / n);
    return tool_interrupted(false) ? fst_error(FST_ECANCELED, "bench: interrupted") : FST_OK;
}

static enum fst_status measure_entries(struct kernels_bench *k, const struct group_case *g)
{
    for (int e = 0; e < CALL_ENTRIES; e++)
        for (int site = 0; site < CALL_SITES; site++)
            if (k->picked & 1u << e)
                FST_TRY(measure_entry(k, g, e, site));
    return FST_OK;
}

/* ------------------------------------------------------------------ cases */

/* Behind the step of h, whose own launches are not played any more: their rows' places are taken. */
static enum fst_status measure_draft(struct kernels_bench *k, const struct shape *h)
{
    struct shape d = synth_draft_shape(k->s, h);
    struct group_case g = {&d, synth_draft_load(k->s, h), k->s->b->cfg.n_stages};
    double us;
    bench_routing_replace(&k->s->routing, false); /* its table is of other rows */
    calls_begin(&k->calls);
    enum fst_status rc = synth_draft_round(k->s, &d, &us);
    calls_end(&k->calls);
    bench_routing_replace(&k->s->routing, true);
    return rc == FST_OK ? measure_entries(k, &g) : rc;
}

static enum fst_status measure_shape(struct kernels_bench *k, const struct shape *h)
{
    struct synth *s = k->s;
    struct group_case g = {h, synth_load(s, h, 0),
                           model_cost_layers(&s->b->cfg, MODEL_SITE_WINDOW)};
    float *logits;
    FST_TRY(synth_begin(s, h));
    while ((h->start + s->turn + 1) % 4)
        s->turn++;
    calls_begin(&k->calls);
    enum fst_status rc = synth_first_step(s, h, &logits);
    if (rc == FST_OK)
        rc = draw(k, h, logits);
    calls_end(&k->calls);
    if (rc == FST_OK)
        rc = check_picked(k);
    if (rc == FST_OK)
        rc = measure_entries(k, &g);
    if (rc == FST_OK && s->draft && h->n_logits == s->rows.n_rows)
        rc = measure_draft(k, h);
    synth_end(s, h);
    return rc;
}

enum fst_status bench_kernels(struct bench *b, const struct options *o)
{
    struct kernels_bench k = {.rest = options_flag(o, "rest")};
    const char *preset = options_text(o, "synthetic");
    FST_TRY(pick(&k, options_text(o, "entries")));
    FST_TRY(synth_new(&k.s, b, o, preset ? preset : "v4-flash", SYNTH_ENTRIES));
    enum fst_status rc = open_draws(&k);
    if (rc == FST_OK)
        rc = calls_open(&k.calls, &k.s->kernels, &k.s->routing.kernels, k.s->model, &k.s->stream);
    for (int i = 0; i < k.s->n_shapes && rc == FST_OK; i++)
        rc = measure_shape(&k, &k.s->shape[i]);
    calls_close(&k.calls);
    if (k.draws)
        device_free_shared(k.s->device, k.draws, k.draws_bytes);
    synth_free(k.s);
    return rc;
}
