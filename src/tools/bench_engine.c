/* bench_engine.c - `bench step` of a checkpoint: requests through the engine, and what they cost.
 * Names device and the model's cost by exception. */
#include <math.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tools/bench.h"

enum { BLOCKS_MAX = 64 };

struct run {
    struct bench *b;
    fst_engine *e;
    struct fst_engine_info info;
    int steps, rows;
    int64_t context;
    struct rng rng;
};

/* t rows at context n; of b->rows sequences when they are more than one each. */
static struct model_load load(const struct run *b, double t, double n)
{
    return (struct model_load){.rows = t,
                               .sequences = fmax(1, fmin(t, b->rows)),
                               .context = n,
                               .logits = t,
                               .row_bytes = b->b->row_bytes,
                               .key_bytes = b->b->key_bytes};
}

static struct model_cost step_cost(const struct run *b, double t, double logits, double n)
{
    struct model_load x = load(b, t, n);
    x.logits = logits;
    return model_cost_step(&b->b->cfg, &x);
}

static struct model_cost prompt_cost(const struct run *b, double tokens, double sequences)
{
    struct model_load x = load(b, tokens, 0);
    x.sequences = x.logits = sequences;
    return model_cost_step(&b->b->cfg, &x);
}

/* The stages of a draft are window layers; their head is the trunk's. */
static struct model_cost draft_block(const struct run *b, const char *block,
                                     const struct model_load *d)
{
    const struct model_config *c = &b->b->cfg;
    return model_cost_sum(
        model_cost_times(model_cost_block(c, d, block, MODEL_SITE_WINDOW), c->n_stages),
        model_cost_block(c, d, block, MODEL_SITE_NONE));
}

static void add_row(struct run *b, const char *name, const char *kind, int rows, int calls,
                    double us, struct model_cost c)
{
    struct bench_row *r = bench_add(b->b, name, kind);
    if (!r)
        return;
    r->rows = rows;
    r->calls = calls;
    r->context = b->context;
    r->time_us = us;
    r->c = c;
}

struct sample {
    struct fst_block_time block[BLOCKS_MAX];
    int n;
    struct fst_engine_stats st;
};

static uint64_t block_ns(const struct sample *s, const char *name, uint64_t *calls)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->block[i].name, name)) {
            *calls = s->block[i].calls;
            return s->block[i].ns;
        }
    *calls = 0;
    return 0;
}

/* Run `rows` equal requests side by side and take what they cost. */
static enum fst_status run(struct run *b, int64_t max_new, bool drafting, struct sample *out)
{
    enum { ROWS_MAX = 1024 };
    fst_request *req[ROWS_MAX] = {0};
    int32_t *ids = mem_calloc((size_t)b->context, sizeof *ids);
    struct fst_engine_stats before;
    enum fst_status rc = ids ? FST_OK : fst_error(FST_ENOMEM, "out of memory");
    fst_engine_get_stats(b->e, &before);
    fst_engine_block_times(b->e, out->block, BLOCKS_MAX, true);
    struct fst_request_opts o;
    fst_request_opts_default(&o);
    for (int i = 0; i < b->rows && rc == FST_OK; i++) {
        for (int64_t k = 0; k < b->context; k++)
            ids[k] = (int32_t)rng_below(&b->rng, (uint64_t)b->info.vocab_size);
        o.ids = ids;
        o.n_ids = (size_t)b->context;
        o.max_new_tokens = max_new;
        o.sampling.temperature = 1;
        o.sampling.has_seed = true;
        o.sampling.seed = (uint64_t)i;
        o.ignore_eos = true;
        o.no_drafting = !drafting;
        rc = fst_request_submit(b->e, &o, &req[i]);
    }
    for (int i = 0; i < b->rows; i++) {
        if (!req[i])
            continue;
        while (fst_request_wait(req[i], 0.2) == FST_ETIMEOUT)
            if (tool_interrupted(false))
                fst_request_cancel(req[i]);
        struct fst_request_view v;
        fst_request_get_view(req[i], &v);
        if (rc == FST_OK && v.finish == FST_FINISH_ERROR)
            rc = fst_error(v.status, "%s", v.error);
        if (rc == FST_OK && v.finish == FST_FINISH_ABORT)
            rc = fst_error(FST_ECANCELED, "bench: interrupted");
        fst_request_free(req[i]);
    }
    mem_free(ids);
    if (rc < 0)
        return rc;
    out->n = FST_MIN(fst_engine_block_times(b->e, out->block, BLOCKS_MAX, false), BLOCKS_MAX);
    struct fst_engine_stats after;
    fst_engine_get_stats(b->e, &after);
    out->st = after;
    out->st.steps = after.steps - before.steps;
    out->st.draft_ns = after.draft_ns - before.draft_ns;
    out->st.verify_ns = after.verify_ns - before.verify_ns;
    out->st.prefill_ns = after.prefill_ns - before.prefill_ns;
    out->st.decode_ns = after.decode_ns - before.decode_ns;
    out->st.draft_steps = after.draft_steps - before.draft_steps;
    out->st.verify_steps_n = after.verify_steps_n - before.verify_steps_n;
    out->st.prefill_steps_n = after.prefill_steps_n - before.prefill_steps_n;
    out->st.decode_steps_n = after.decode_steps_n - before.decode_steps_n;
    out->st.verify_rows = after.verify_rows - before.verify_rows;
    out->st.decode_rows = after.decode_rows - before.decode_rows;
    out->st.draft_rounds = after.draft_rounds - before.draft_rounds;
    return FST_OK;
}

/* Blocks of `s` less those of `base`, per step of t rows of which `heads` give logits; dt: rows of
 * the draft stages in the same step. */
static void add_blocks(struct run *b, const char *kind, const struct sample *s,
                       const struct sample *base, double steps, double t, double heads, double dt,
                       double n)
{
    for (int i = 0; i < s->n; i++) {
        uint64_t calls0 = 0, ns0 = base ? block_ns(base, s->block[i].name, &calls0) : 0;
        /* A tenth of the prompt's time is the noise between two runs: less is not measured. */
        if (s->block[i].ns <= ns0 + ns0 / 10 || s->block[i].calls <= calls0 || steps <= 0)
            continue;
        char name[40];
        snprintf(name, sizeof name, "block/%s", s->block[i].name);
        const char *block = s->block[i].name;
        bool of_draft = !strcmp(block, "draft_chain");
        bool of_trunk = !strcmp(block, "main_proj") || !strcmp(block, "draw");
        double rows = !strcmp(block, "head") ? heads : t;
        struct model_load x = load(b, rows, n), d = load(b, dt, fmin(n, b->b->cfg.window));
        struct model_cost c = {0};
        if (!of_draft)
            c = model_cost_trunk(&b->b->cfg, &x, block);
        if (dt > 0 && !of_trunk)
            c = model_cost_sum(c, draft_block(b, block, &d));
        add_row(b, name, kind, (int)lround(t),
                (int)lround((double)(s->block[i].calls - calls0) / steps),
                (double)(s->block[i].ns - ns0) * 1e-3 / steps, c);
    }
}

/* The prompts alone: of the runs with the fewest steps (requests may reach the engine one by one)
 * block by block the fastest.  What is subtracted from a run that decodes must neither hold what other
 * programs did to it nor steps that the other run had not. */
static enum fst_status run_prompt(struct run *b, bool drafting, struct sample *out)
{
    enum { RUNS = 4 };
    FST_TRY(run(b, 1, drafting, out)); /* also touches all pages */
    for (int i = 1; i < RUNS; i++) {
        struct sample s = {0};
        FST_TRY(run(b, 1, drafting, &s));
        if (s.st.prefill_steps_n < out->st.prefill_steps_n)
            *out = s;
        if (s.st.prefill_steps_n > out->st.prefill_steps_n)
            continue;
        for (int k = 0; k < out->n; k++) {
            uint64_t calls, ns = block_ns(&s, out->block[k].name, &calls);
            if (calls)
                out->block[k].ns = FST_MIN(out->block[k].ns, ns);
        }
        out->st.prefill_ns = FST_MIN(out->st.prefill_ns, s.st.prefill_ns);
        out->st.draft_ns = FST_MIN(out->st.draft_ns, s.st.draft_ns);
    }
    return FST_OK;
}

/* Prompts and decoding, in at least as many steps for the prompts as `pre`; else *out has no blocks. */
static enum fst_status run_all(struct run *b, bool drafting, const struct sample *pre,
                               struct sample *out)
{
    for (int i = 0; i < 4; i++) {
        FST_TRY(run(b, b->steps, drafting, out));
        if (out->st.prefill_steps_n >= pre->st.prefill_steps_n)
            return FST_OK;
    }
    out->n = 0;
    return FST_OK;
}

/* Rows of one step on average: requests begin and end at different steps. */
static double per_step(uint64_t rows, uint64_t steps, double most)
{
    return steps ? fmin(most, (double)rows / (double)steps) : 0;
}

static enum fst_status measure_drafting(struct run *b, double mid)
{
    struct sample pre = {0}, spec = {0};
    /* The prompt's injection into the drafter is no part of a round. */
    FST_TRY(run_prompt(b, true, &pre));
    FST_TRY(run_all(b, true, &pre, &spec));
    const struct fst_engine_stats *st = &spec.st;
    if (!st->verify_steps_n || !st->draft_steps)
        return FST_OK;
    double gamma = b->info.gamma, width = gamma + 1, steps = (double)st->verify_steps_n;
    double batches = (double)st->draft_steps;
    double vt = per_step(st->verify_rows, st->verify_steps_n, b->rows * width);
    double requests = per_step(st->draft_rounds, st->draft_steps, b->rows), dt = gamma * requests;
    add_row(b, "step", "verify", (int)lround(vt), 1, (double)st->verify_ns * 1e-3 / steps,
            step_cost(b, vt, vt, mid));
    struct model_load d = load(b, dt, fmin(mid, b->b->cfg.window)), q = load(b, requests, mid);
    struct model_cost draft =
        model_cost_sum(model_cost_draft(&b->b->cfg, &d),
                       model_cost_op(&b->b->cfg, &q, MODEL_OP_MAIN_PROJ, MODEL_SITE_NONE));
    double draft_ns = (double)st->draft_ns - (double)FST_MIN(pre.st.draft_ns, st->draft_ns);
    add_row(b, "step", "draft", (int)lround(dt), 1, draft_ns * 1e-3 / batches, draft);
    add_blocks(b, "round", &spec, &pre, steps, vt, vt, dt, mid);
    return FST_OK;
}

static enum fst_status measure(struct run *b)
{
    struct sample pre = {0}, dec = {0};
    double rows = b->rows, ctx = (double)b->context, mid = ctx + b->steps / 2.0;
    FST_TRY(run_prompt(b, false, &pre));
    double tokens = rows * ctx;
    add_row(b, "step", "prefill", (int)tokens, 1, (double)pre.st.prefill_ns * 1e-3,
            prompt_cost(b, tokens, rows));
    add_blocks(b, "prefill", &pre, NULL, 1, tokens, rows, 0, ctx / 2);
    FST_TRY(run_all(b, false, &pre, &dec));
    double n_dec = (double)dec.st.decode_steps_n;
    double t = per_step(dec.st.decode_rows, dec.st.decode_steps_n, rows);
    if (n_dec > 0)
        add_row(b, "step", "decode", (int)lround(t), 1, (double)dec.st.decode_ns * 1e-3 / n_dec,
                step_cost(b, t, t, mid));
    add_blocks(b, "decode", &dec, &pre, n_dec, t, t, 0, mid);
    return b->info.gamma > 0 ? measure_drafting(b, mid) : FST_OK;
}

static enum fst_status ceilings(const struct run *r, struct bench *b)
{
    const struct device *d;
    FST_TRY(device_open(&d, r->info.device)); /* the engine's own */
    if (d)
        return bench_measure_card(b, d);
    bench_host_names(b);
    bench_measure_host(&b->m, r->info.weight_bytes, b->kernels, b->threads);
    return b->m.read_bytes_s > 0 && b->m.bf16_s > 0
               ? FST_OK
               : fst_error(FST_EMACHINE, "bench: the machine's ceilings could not be measured");
}

static enum fst_status measure_model(struct run *r, struct bench *b)
{
    fst_engine_get_info(r->e, &r->info);
    b->threads = r->info.threads;
    b->weight_bytes = (int64_t)r->info.weight_bytes;
    b->row_bytes = strcmp(r->info.kv_layout, "unified-bf16") ? 640 : 1024;
    snprintf(b->preset, sizeof b->preset, "%s", b->cfg.model_type);
    snprintf(b->layout, sizeof b->layout, "%s", r->info.kv_layout);
    snprintf(b->kernels, sizeof b->kernels, "%s", r->info.kernels);
    FST_TRY(ceilings(r, b));
    rng_init(&r->rng, 1);
    FST_TRY(measure(r));
    /* Once more: other programs may have been in the way the first time. */
    return ceilings(r, b);
}

enum fst_status bench_engine(struct bench *b, const struct options *o)
{
    struct fst_engine_opts eo;
    struct run r = {.b = b};
    uint64_t rows = 0;
    if (tool_seed(&rows, "--rows", options_text(o, "rows")) < 0 || rows < 1 || rows > 1024)
        return fst_error(FST_EINVAL,
                         "--rows: expected a number from 1 to 1024, got '%s' (lists go "
                         "with --synthetic)",
                         options_text(o, "rows"));
    FST_TRY(tool_engine_opts(o, &eo));
    FST_TRY(config_read(&b->cfg, eo.model_dir));
    b->key_bytes = !strcmp(eo.index_keys, "fp8") ? 132 : 68;
    r.steps = (int)options_int(o, "steps", 64);
    r.rows = (int)rows;
    r.context = options_int(o, "context", 512);
    if (!eo.max_running_requests || eo.max_running_requests < r.rows)
        eo.max_running_requests = FST_MAX(r.rows, 1);
    eo.profile = true;
    if (!options_is_given(o, "verify-mode"))
        eo.verify_mode = "static"; /* what is timed shall not depend on what pays here */
    FST_TRY(tool_engine_open(&r.e, &eo, NULL));
    enum fst_status rc = measure_model(&r, b);
    fst_engine_close(r.e);
    return rc;
}
