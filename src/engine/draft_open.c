/* draft_open.c - what drafting knows before the first request: tables, calibration, measured costs. */
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/engine_int.h"

/* ------------------------------------------------------------------ measuring */

enum {
    BUDGET_MS = 2000, /* for all of it */
    REPEATS = 3,
    AT = 64,        /* positions before the rows: prompts are short at first */
    FAR_AT = 4096,  /* and of the second measurement, which gives the cost of context */
    FAR_ROOM = 1024 /* less is no second one */
};

struct probe {
    fst_engine *e;
    int slot[4096], n_slots;
    int64_t until_ns;
    double inject_s, least_inject_s; /* of the last step's rows, and of measure's */
    struct injections {              /* of few rows and of many */
        double few_s, many_s;
        int few, many;
    } inject;
    struct rng rng;
    struct sample_params greedy;
};

/* At least n slots with room for a verify block at `at`; what is free may be less. */
static int open_slots(struct probe *p, int n, int64_t at)
{
    fst_engine *e = p->e;
    while (p->n_slots < n && p->n_slots < (int)FST_COUNT(p->slot)) {
        int slot;
        if (kv_slot_open(&e->kv, &slot) < 0)
            break;
        if (kv_reserve(&e->kv, slot, at + e->gamma + 1) < 0) {
            kv_slot_close(&e->kv, slot);
            break;
        }
        p->slot[p->n_slots++] = slot;
    }
    return p->n_slots;
}

static void close_slots(struct probe *p)
{
    while (p->n_slots > 0)
        kv_slot_close(&p->e->kv, p->slot[--p->n_slots]);
}

/* All rows of a step.  Where they are held first, any ids do for the tokens behind them. */
static enum fst_status inject_rows(fst_engine *e, const struct rows *rows)
{
    if (!e->dr.behind)
        return model_inject(e->model, &e->kv, rows, e->logit_row, rows->n_rows);
    FST_TRY(model_hold(e->model, &e->kv, rows, e->logit_row, rows->n_rows));
    for (int i = 0; i < rows->n_spans; i++) {
        int first = rows->span_first[i], n = rows->span_first[i + 1] - first;
        int64_t pos = rows->pos[first];
        e->dr.held[i] = (struct model_held){rows->slot[first], pos, pos + n, rows->id + first};
    }
    return model_inject_held(e->model, &e->kv, e->dr.held, rows->n_spans);
}

/* A step of n requests with 1 + k rows each at position `at`: any tokens, since times do not depend on them
 * but for the experts they meet. */
static enum fst_status run_step(struct probe *p, int n, int k, int64_t at, double *seconds)
{
    fst_engine *e = p->e;
    int row = 0;
    float *logits;

    for (int i = 0; i < n; i++) {
        e->span_first[i] = row;
        for (int j = 0; j <= k; j++, row++) {
            e->row_slot[row] = p->slot[i];
            e->row_pos[row] = (int32_t)(at + j);
            e->row_id[row] = (int32_t)rng_below(&p->rng, (uint64_t)e->weights->config.vocab_size);
            e->row_span[row] = i;
            e->logit_row[row] = row;
            e->sample[row] = (struct sample_row){.params = &p->greedy};
        }
    }
    e->span_first[n] = row;
    struct rows rows = {.n_rows = row,
                        .n_spans = n,
                        .slot = e->row_slot,
                        .pos = e->row_pos,
                        .id = e->row_id,
                        .span = e->row_span,
                        .span_first = e->span_first,
                        .pages = e->kv.pages,
                        .page_stride = e->kv.page_stride};
    int64_t t = engine_now_ns();
    FST_TRY(model_forward(e->model, &e->kv, &rows, e->logit_row, row, &logits));
    FST_TRY(sample_rows(&e->sampler, logits, e->sample, row));
    FST_TRY(stream_sync(&e->stream));
    *seconds = (double)(engine_now_ns() - t) * 1e-9;
    /* Its rows go into the windows of the drafts that follow. */
    t = engine_now_ns();
    FST_TRY(inject_rows(e, &rows));
    FST_TRY(stream_sync(&e->stream));
    p->inject_s = (double)(engine_now_ns() - t) * 1e-9;
    return FST_OK;
}

static enum fst_status run_draft(struct probe *p, int n, int block, int64_t at, double *seconds)
{
    fst_engine *e = p->e;

    for (int i = 0; i < n; i++) {
        e->draft_slot[i] = p->slot[i];
        e->draft_committed[i] = at;
        e->draft_anchor[i] = (int32_t)rng_below(&p->rng, (uint64_t)e->weights->config.vocab_size);
        e->draft_draw[i] = (struct draw_params){.temperature = 1, .seed = (uint64_t)i};
        e->draft_out_pos[i] = 0;
    }
    e->draft.n = n;
    e->draft.gamma = block;
    e->draft.conf = e->dr.wants_conf ? e->draft_conf : NULL;
    int64_t t = engine_now_ns();
    FST_TRY(model_draft(e->model, &e->kv, &e->draft));
    *seconds = (double)(engine_now_ns() - t) * 1e-9;
    return FST_OK;
}

/* What is for the call, what for a row. */
static void set_inject(struct spec_cost *c, const struct injections *i)
{
    if (i->many > i->few && i->many_s > i->few_s)
        c->inject_row_s = (i->many_s - i->few_s) / (i->many - i->few);
    else
        c->inject_row_s = i->many_s / FST_MAX(i->many, 1) / 2;
    c->inject_call_s = FST_MAX(i->few_s - i->few * c->inject_row_s, 0.1 * i->few_s);
}

/* The least of a few runs, the first of which is thrown away where there is time: it meets cold memory. */
static enum fst_status measure(struct probe *p, int n, int k, int block, int64_t at, double *least)
{
    int64_t enough = engine_now_ns() + (int64_t)BUDGET_MS * 1000000 / 20;
    *least = 0;
    for (int i = 0; i < 1 + REPEATS; i++) {
        double s;
        FST_TRY(block ? run_draft(p, n, block, at, &s) : run_step(p, n, k, at, &s));
        if (*least <= 0 || s < *least)
            *least = s;
        if (!block && (i == 0 || p->inject_s < p->least_inject_s))
            p->least_inject_s = p->inject_s;
        if (engine_now_ns() > enough)
            break;
    }
    return FST_OK;
}

/* Is there time for a cell of which one run may take so long? */
static bool time_for(const struct probe *p, double seconds)
{
    return (double)engine_now_ns() + seconds * 1e9 < (double)p->until_ns;
}

/* The three cells that a point needs.  Points ascend, so the next takes about twice as long as the last. */
static enum fst_status measure_corners(struct probe *p, int point, double *expect, bool *done)
{
    struct spec_cost *c = &p->e->dr.cost;
    int n = c->requests[point], gamma = p->e->gamma;
    double plain, full, draft;

    *done = false;
    if (!time_for(p, *expect) || open_slots(p, n, AT) < n)
        return FST_OK;
    FST_TRY(measure(p, n, 0, 0, AT, &plain));
    FST_TRY(measure(p, n, 0, gamma, AT, &draft));
    FST_TRY(measure(p, n, gamma, 0, AT, &full));
    p->inject.many = n * (gamma + 1);
    p->inject.many_s = p->least_inject_s;
    if (point == 0) {
        p->inject.few = p->inject.many;
        p->inject.few_s = p->least_inject_s;
    }
    spec_cost_set_step(c, point, 0, plain);
    spec_cost_set_step(c, point, gamma, full);
    spec_cost_set_draft(c, point, gamma - 1, draft);
    *expect = 2 * (plain + full + draft);
    *done = true;
    return FST_OK;
}

static enum fst_status measure_rest(struct probe *p, int point)
{
    struct spec_cost *c = &p->e->dr.cost;
    int n = c->requests[point];
    double s;

    for (int k = 1; k < p->e->gamma; k++) {
        if (!time_for(p, c->step_s[point][p->e->gamma]))
            return FST_OK;
        FST_TRY(measure(p, n, k, 0, AT, &s));
        spec_cost_set_step(c, point, k, s);
        FST_TRY(measure(p, n, 0, k, AT, &s));
        spec_cost_set_draft(c, point, k - 1, s);
    }
    return FST_OK;
}

/* What a position in front costs a row. */
static enum fst_status measure_context(struct probe *p)
{
    fst_engine *e = p->e;
    int64_t at = FST_MIN((int64_t)FAR_AT, e->context_length - e->gamma - 1);
    double near, far;

    if (at < FAR_ROOM || !time_for(p, 4 * e->dr.cost.step_s[0][e->gamma]))
        return FST_OK;
    close_slots(p);
    if (open_slots(p, 1, at) < 1)
        return FST_OK;
    FST_TRY(measure(p, 1, e->gamma, 0, AT, &near));
    FST_TRY(measure(p, 1, e->gamma, 0, at, &far));
    if (far > near)
        e->dr.cost.context_s = (far - near) / ((double)(e->gamma + 1) * (double)(at - AT));
    return FST_OK;
}

static enum fst_status measure_all(fst_engine *e)
{
    struct spec_cost *c = &e->dr.cost;
    struct probe *p = mem_calloc(1, sizeof *p);
    int64_t start = engine_now_ns();
    enum fst_status rc = FST_OK;
    double expect = 0;
    int n = 0;

    if (!p)
        return fst_error(FST_ENOMEM, "engine: no memory");
    p->e = e;
    p->until_ns = start + (int64_t)BUDGET_MS * 1000000;
    rng_init(&p->rng, 5);
    if (AT + e->gamma + 1 <= e->context_length)
        for (bool more = true; n < c->n && more && rc == FST_OK; n += more)
            rc = measure_corners(p, n, &expect, &more);
    for (int i = 0; i < n && rc == FST_OK; i++)
        rc = measure_rest(p, i);
    if (rc == FST_OK)
        rc = measure_context(p);
    close_slots(p);
    set_inject(c, &p->inject);
    mem_free(p);
    FST_TRY(rc);
    e->info.cost_measured = n > 0 && spec_cost_fill(c);
    if (e->info.cost_measured)
        log_info("cost",
                 "points=%d of=%d ms=%.0f step_1_us=%.0f verify_1_us=%.0f draft_1_us=%.0f "
                 "inject_us=%.0f inject_row_us=%.2f context_ns=%.3f",
                 n, c->n, (double)(engine_now_ns() - start) * 1e-6, c->step_s[0][0] * 1e6,
                 c->step_s[0][e->gamma] * 1e6, c->draft_s[0][e->gamma - 1] * 1e6,
                 c->inject_call_s * 1e6, c->inject_row_s * 1e6, c->context_s * 1e9);
    return FST_OK;
}

/* ------------------------------------------------------------------ files */

/* Of the host's processor, "" where the system does not say. */
static void processor(char *out, size_t size)
{
    struct buf b = {0};
    const char *at = NULL;
    out[0] = 0;
    if (file_read(&b, "/proc/cpuinfo", 1 << 24) == FST_OK)
        at = strstr(buf_str(&b), "model name");
    if (at && (at = strchr(at, ':'))) {
        at += 1 + (at[1] == ' ');
        snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
    }
    buf_release(&b);
}

struct machine_text {
    char build[32], device[512], model[160];
};

static struct spec_machine this_machine(const fst_engine *e, struct machine_text *t)
{
    char cpu[160] = "";
    if (!e->device)
        processor(cpu, sizeof cpu);
    snprintf(t->build, sizeof t->build, "%016llx",
             (unsigned long long)engine_build_digest(e->device));
    snprintf(t->device, sizeof t->device, "%s %s %.255s", e->info.device, e->kernels.name,
             e->device ? e->device->card : cpu);
    snprintf(t->model, sizeof t->model, "%016llx rows=%s keys=%s precision=%s",
             (unsigned long long)weights_digest(e->weights), e->info.kv_layout, e->info.index_keys,
             e->info.precision);
    return (struct spec_machine){.build = t->build,
                                 .device = t->device,
                                 .model = t->model,
                                 .threads = pool_threads(e->pool)};
}

static enum fst_status open_cost(fst_engine *e, const struct fst_engine_opts *o)
{
    struct drafter *d = &e->dr;

    spec_cost_init(&d->cost, e->gamma, e->max_running);
    if (o->cost_path) {
        struct machine_text text;
        struct spec_machine m = this_machine(e, &text);
        d->cost_path = mem_strdup(o->cost_path);
        if (!d->cost_path)
            return fst_error(FST_ENOMEM, "engine: no memory");
        enum fst_status rc = spec_cost_load(&d->cost, &m, o->cost_path);
        e->info.cost_measured = rc == FST_OK;
        if (rc == FST_OK)
            log_info("cost", "table=%s points=%d", o->cost_path, d->cost.n);
        else if (rc == FST_ENOTFOUND)
            log_info("cost", "table=%s why=\"not there yet, written at the end\"", o->cost_path);
        else
            log_info("cost", "ignored=%s why=\"%s\"", o->cost_path, fst_error_text());
    }
    if (!e->info.cost_measured && o->measure_cost && d->mode != DRAFT_STATIC)
        return measure_all(e);
    return FST_OK;
}

/* The file beside the model is a help; one that was asked for must do. */
static enum fst_status open_sts(fst_engine *e, const struct fst_engine_opts *o)
{
    struct drafter *d = &e->dr;
    int gamma = e->weights->config.gamma;

    if (!d->wants_conf)
        return FST_OK;
    if (o->sts_path)
        snprintf(d->sts_path, sizeof d->sts_path, "%s", o->sts_path);
    else if (file_join(d->sts_path, sizeof d->sts_path, e->model_dir, "dspark-sts.json") < 0 ||
             !file_exists(d->sts_path))
        return FST_OK;
    enum fst_status rc = spec_sts_load(&d->sts, gamma, d->sts_path);
    if (rc < 0 && o->sts_path)
        return rc;
    if (rc < 0)
        log_warn("calibration", "off why=\"%s\"", fst_error_text());
    d->has_sts = rc == FST_OK;
    e->info.sts_path = d->has_sts ? d->sts_path : NULL;
    return FST_OK;
}

/* ------------------------------------------------------------------ open, close */

static enum fst_status take_memory(fst_engine *e)
{
    struct drafter *d = &e->dr;
    size_t n = (size_t)e->max_running, one = FST_SPEC_MAX * sizeof(double);
    size_t bytes =
        n * (sizeof *d->ask + sizeof *d->wish + sizeof *d->who + sizeof *d->held + 3 * one) +
        sizeof(double);
    uint8_t *p = d->block_memory = mem_calloc(1, bytes);
    if (!p)
        return fst_error(FST_ENOMEM, "engine: no memory for %zu bytes", bytes);
    /* all of them are multiples of 8 bytes */
    d->survive = (void *)p;
    d->expect = d->survive + n * FST_SPEC_MAX;
    d->seconds = d->expect + n * FST_SPEC_MAX;
    d->held = (void *)(d->seconds + n * FST_SPEC_MAX + 1);
    d->ask = (void *)(d->held + n);
    d->wish = (void *)(d->ask + n);
    d->who = (void *)(d->wish + n);
    return FST_OK;
}

_Static_assert(sizeof(struct spec_ask) % 8 == 0 && sizeof(struct spec_wish) % 8 == 0 &&
                   sizeof(struct model_held) % 8 == 0,
               "arrays lie behind each other");

enum fst_status draft_open(fst_engine *e, const struct fst_engine_opts *o)
{
    struct drafter *d = &e->dr;
    bool head = e->weights->config.confidence_head;

    if (!e->drafting)
        return FST_OK;
    if (!head && o->sts_path)
        return fst_error(FST_EUNSUPPORTED,
                         "--speculative-dspark-confidence-sts-path %s: this checkpoint has no "
                         "confidence head to calibrate",
                         o->sts_path);
    e->on_spec_round = o->on_spec_round;
    e->on_spec_round_ud = o->on_spec_round_ud;
    d->wants_conf = head && (d->mode != DRAFT_STATIC || o->on_spec_round);
    d->pays = true; /* until something is known */
    FST_TRY(take_memory(e));
    FST_TRY(open_sts(e, o));
    return open_cost(e, o);
}

void draft_close(fst_engine *e)
{
    struct drafter *d = &e->dr;

    if (d->cost_path && d->cost.ready && e->thread_started) {
        struct machine_text text;
        struct spec_machine m = this_machine(e, &text);
        if (spec_cost_save(&d->cost, &m, d->cost_path) < 0)
            log_warn("cost", "not written: %s", fst_error_text());
    }
    mem_free(d->cost_path);
    mem_free(d->block_memory);
}
