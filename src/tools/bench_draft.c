/* bench_draft.c - the drafter's part of a synthetic model's steps: after a step, the rows of all its
 * requests go into the drafter's windows, and a block is drafted for each.
 * Looks into model, weights and KV memory by exception. */
#include <math.h>

#include "base/clock.h"
#include "tools/bench_synthetic.h"

/* Of one request; arrays of these members begin at multiples of the number of requests. */
struct draft_arrays {
    int64_t *n_committed;
    struct draw_params *draw;
    int32_t *slot, *anchor, *ids;
    uint32_t *out_pos;
    float *conf;
};

enum fst_status synth_draft_open(struct synth *s)
{
    const struct model_config *c = &s->b->cfg;
    size_t n = (size_t)s->max_requests, gamma = (size_t)c->gamma;
    size_t one = sizeof(int64_t) + sizeof(struct draw_params) + (3 + 2 * gamma) * sizeof(int32_t);
    if (!c->n_stages)
        return FST_OK;
    s->draft_bytes = sizeof(struct draft_arrays) + n * one;
    s->draft = device_alloc_shared(s->device, s->draft_bytes);
    if (!s->draft)
        return fst_error(FST_ENOMEM, "bench: %zu bytes for drafts", s->draft_bytes);
    struct draft_arrays *a = s->draft;
    a->n_committed = (int64_t *)(void *)(a + 1);
    a->draw = (struct draw_params *)(void *)(a->n_committed + n);
    a->slot = (int32_t *)(void *)(a->draw + n);
    a->anchor = a->slot + n;
    a->out_pos = (uint32_t *)(void *)(a->anchor + n);
    a->ids = (int32_t *)(void *)(a->out_pos + n);
    a->conf = (float *)(void *)(a->ids + n * gamma);
    return FST_OK;
}

void synth_draft_close(struct synth *s)
{
    if (s->draft)
        device_free_shared(s->device, s->draft, s->draft_bytes);
    s->draft = NULL;
}

/* The step that ran last is what is drafted on: s->rows, s->pick. */
enum fst_status synth_draft_round(struct synth *s, const struct shape *h, double *us)
{
    struct draft_arrays *a = s->draft;
    struct draft_batch d = {.n = h->requests,
                            .gamma = s->b->cfg.gamma,
                            .slot = a->slot,
                            .n_committed = a->n_committed,
                            .anchor = a->anchor,
                            .draw = a->draw,
                            .out_pos = a->out_pos,
                            .ids = a->ids,
                            .conf = a->conf};
    for (int i = 0; i < h->requests; i++) {
        int last = s->rows.span_first[i + 1] - 1;
        a->slot[i] = s->rows.slot[last];
        a->n_committed[i] = s->rows.pos[last] + 1;
        a->anchor[i] = s->rows.id[last];
        a->draw[i] = (struct draw_params){.temperature = 1, .seed = (uint64_t)i};
        a->out_pos[i] = 0;
    }
    bench_routing_begin(&s->routing);
    int64_t start = clock_ns();
    FST_TRY(model_inject(s->model, &s->kv, &s->rows, s->pick, s->rows.n_rows));
    FST_TRY(model_draft(s->model, &s->kv, &d));
    *us = (double)(clock_ns() - start) * 1e-3;
    return tool_interrupted(false) ? fst_error(FST_ECANCELED, "bench: interrupted") : FST_OK;
}

struct shape synth_draft_shape(const struct synth *s, const struct shape *h)
{
    struct shape d = *h;
    d.kind = "draft";
    d.width = s->b->cfg.gamma;
    return d;
}

struct model_load synth_draft_load(const struct synth *s, const struct shape *h)
{
    const struct model_config *c = &s->b->cfg;
    return (struct model_load){.rows = (double)h->requests * c->gamma,
                               .sequences = h->requests,
                               .context = fmin((double)h->start, c->window),
                               .logits = (double)h->requests * c->gamma,
                               .row_bytes = s->b->row_bytes,
                               .key_bytes = s->b->key_bytes};
}

enum fst_status synth_draft(struct synth *s, const struct shape *h)
{
    const struct model_config *c = &s->b->cfg;
    struct shape d = synth_draft_shape(s, h);
    struct model_load x = synth_draft_load(s, h), injected = x;
    injected.rows = s->rows.n_rows;
    struct model_cost whole = model_cost_sum(
        model_cost_draft(c, &x), model_cost_op(c, &injected, MODEL_OP_MAIN_PROJ, MODEL_SITE_NONE));
    bench_routing_replace(&s->routing, false); /* its table is of other rows */
    enum fst_status rc = synth_measure(s, &d, synth_draft_round, &x, whole, c->n_stages);
    bench_routing_replace(&s->routing, true);
    return rc;
}
