/* bench_synthetic.c - a preset's model of random weights, opened without the engine, and its steps.
 *
 * Weights and KV memory are filled on the device; a step is one model_forward over one span of each
 * request.  Looks into model, weights and KV memory by exception. */
#include <math.h>

#include "base/clock.h"
#include "base/file.h"
#include "kernels/rows.h"
#include "tools/bench_synthetic.h"

enum { VERIFY_ROWS = 6, DELAY_BYTES = 256 << 20 };

/* ------------------------------------------------------------------ cases */

static enum fst_status add_shape(struct synth *s, const char *kind, int64_t requests, int64_t width,
                                 int64_t n_logits, int64_t start)
{
    if (s->n_shapes == SHAPES_MAX)
        return fst_error(FST_EINVAL, "--rows: at most %d cases", SHAPES_MAX);
    s->shape[s->n_shapes++] = (struct shape){kind, (int)requests, (int)width, (int)n_logits, start};
    int64_t end = start + width + 8, pages = requests * div_up(end, KERN_PAGE);
    s->max_rows = (int)FST_MAX(s->max_rows, requests * width);
    s->max_requests = (int)FST_MAX(s->max_requests, requests);
    s->context_length = FST_MAX(s->context_length, end);
    s->n_pages = FST_MAX(s->n_pages, pages);
    s->max_logits = (int)FST_MAX(s->max_logits, n_logits);
    return FST_OK;
}

static enum fst_status read_shapes(struct synth *s, const struct options *o)
{
    const char *text = options_text(o, "rows");
    int64_t width = options_flag(o, "verify") ? VERIFY_ROWS : 1,
            context = options_int(o, "context", 512);
    for (const char *p = text;;) {
        char *end;
        long n = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : 0;
        if (n < 1 || n > 1024 || (*end && *end != ','))
            return fst_error(
                FST_EINVAL, "--rows: expected numbers from 1 to 1024 with commas between, got '%s'",
                text);
        FST_TRY(add_shape(s, width > 1 ? "verify" : "decode", n, width, n * width, context));
        if (!*end)
            break;
        p = end + 1;
    }
    int64_t prefill = options_int(o, "prefill", 0);
    return prefill ? add_shape(s, "prefill", 1, prefill, 1, 0) : FST_OK;
}

/* The first layers keep their kinds; a draft looks at the last of them. */
static enum fst_status cut_layers(struct model_config *c, const char *name, int n)
{
    if (n > c->n_layers)
        return fst_error(FST_EINVAL, "--layers: %s has %d layers, got %d", name, c->n_layers, n);
    c->n_layers = n ? n : c->n_layers;
    c->n_hash_layers = FST_MIN(c->n_hash_layers, c->n_layers);
    c->has_mtp = false;
    if (!c->has_dspark)
        c->n_stages = 0;
    if (c->n_stages > c->n_layers)
        return fst_error(FST_EINVAL, "--layers: the drafter of %s looks at %d layers, got %d", name,
                         c->n_stages, c->n_layers);
    for (int i = 0; i < c->n_stages && n; i++)
        c->target_layer[i] = c->n_layers - c->n_stages + i;
    return FST_OK;
}

static enum fst_status read_config(struct bench *b, const char *name)
{
    if (file_is_folder(name)) {
        FST_TRY(config_read(&b->cfg, name));
        const char *slash = strrchr(name, '/');
        snprintf(b->preset, sizeof b->preset, "%s", slash && slash[1] ? slash + 1 : name);
    } else {
        if (config_preset(&b->cfg, name) < 0 || b->cfg.v41)
            return fst_error(FST_EINVAL,
                             "--synthetic: neither a folder nor a preset: \"%s\"; known: v4-flash, "
                             "v4-pro, v4-flash-dspark, v4-pro-dspark",
                             name);
        snprintf(b->preset, sizeof b->preset, "%s", name);
    }
    return FST_OK;
}

/* The first 8 layers on a card, 4 on a processor, fewer where four fifths of the free memory hold fewer. */
static int few_layers(const struct model_config *c, const struct device *d)
{
    double free_bytes = 0.8 * (double)(d ? d->free_bytes : mem_available_bytes());
    double bytes = 4.0 * c->vocab_size * c->hidden_size; /* embedding and head */
    struct model_load all = {.rows = 1, .sequences = 1, .distinct = c->n_experts};
    int most = FST_MIN(d ? 8 : 4, c->n_layers), least = FST_MAX(1, c->has_dspark ? c->n_stages : 1);
    bytes += (least - 1) * model_cost_layer(c, &all, MODEL_SITE_WINDOW).bytes; /* stages */
    for (int n = 0; n < most; n++) {
        enum model_site site = c->compress_ratio[n] == 0   ? MODEL_SITE_WINDOW
                               : c->compress_ratio[n] == 4 ? MODEL_SITE_RATIO4
                                                           : MODEL_SITE_RATIO128;
        bytes += model_cost_layer(c, &all, site).bytes;
        if (bytes > free_bytes)
            return FST_MAX(n, least);
    }
    return most;
}

/* ------------------------------------------------------------------ memory */

static enum fst_status fill(struct synth *s, void *p, int64_t bytes, struct device_fill f)
{
    f.seed = ++s->turn;
    return bytes ? stream_fill(&s->stream, p, (size_t)bytes, &f) : FST_OK;
}

/* KV rows of order 1, index keys likewise: scores differ, and a top-k has something to choose. */
static enum fst_status fill_kv_layer(struct synth *s, const struct kv_layer *l)
{
    const struct model_config *c = &s->b->cfg;
    int64_t slots = s->kv.spec.n_slots + 1,
            state = (int64_t)l->state_ring * (l->ratio == 4 ? 4 : 2);
    struct device_fill bf16 = {.kind = FILL_BF16, .spread = 1.7f};
    struct device_fill f32 = {.kind = FILL_F32, .spread = 1};
    struct device_fill row = {.kind = FILL_ROW_FP8, .code = 120, .n_codes = 2};
    struct device_fill fp4 = {.kind = FILL_KEY_FP4, .code = 125, .n_codes = 2};
    struct device_fill fp8 = {.kind = FILL_KEY_FP8, .mean = 0.01f, .spread = 0.002f};
    FST_TRY(fill(s, l->nope, l->n_rows * rows_bytes(l->format, c->head_dim),
                 l->format == ROW_FP8 ? row : bf16));
    if (l->format == ROW_FP8)
        FST_TRY(fill(s, l->rope, l->n_rows * ROWS_ROPE_BYTES, bf16));
    FST_TRY(fill(s, l->state, slots * state * c->head_dim * 4, f32));
    if (l->ratio != 4)
        return FST_OK;
    FST_TRY(fill(s, l->index_state, slots * l->state_ring * 4 * c->index_dim * 4, f32));
    return fill(s, l->index_keys,
                (s->kv.spec.n_pages + 1) * rows_index_page_bytes(l->index_format, c->index_dim),
                l->index_format == INDEX_FP4 ? fp4 : fp8);
}

static enum fst_status open_kv(struct synth *s, const struct options *o)
{
    struct bench *b = s->b;
    bool bf16 = options_word(o, "kv-layout") == 1, fp8_keys = options_word(o, "index-keys") == 1;
    if (options_word(o, "kv-layout") > 1)
        return fst_error(FST_EUNSUPPORTED, "--kv-layout paged is not built");
    struct kv_spec spec = {.device = s->device,
                           .block = s->weights->n_stages ? FST_MAX(VERIFY_ROWS, s->b->cfg.gamma + 1)
                                    : options_flag(o, "verify") ? VERIFY_ROWS
                                                                : 1,
                           .format = bf16 ? ROW_BF16 : ROW_FP8,
                           .index_format = fp8_keys ? INDEX_FP8 : INDEX_FP4,
                           .n_slots = s->max_requests,
                           .n_pages = s->n_pages,
                           .context_length = s->context_length};
    b->row_bytes = bf16 ? 1024 : 640;
    b->key_bytes = fp8_keys ? 132 : 68;
    snprintf(b->layout, sizeof b->layout, "%s", bf16 ? "unified-bf16" : "unified-fp8");
    model_kv_spec(s->weights, s->weights->n_stages > 0, &spec);
    FST_TRY(kv_init(&s->kv, &spec));
    for (int i = 0; i < spec.n_layers; i++)
        FST_TRY(fill_kv_layer(s, &s->kv.layer[i]));
    return stream_sync(&s->stream);
}

static enum fst_status open_rows(struct synth *s)
{
    s->int_bytes = ((size_t)s->max_rows * 6 + 1) * sizeof *s->ints;
    s->ints = device_alloc_shared(s->device, s->int_bytes);
    s->times = mem_calloc((size_t)s->steps, sizeof *s->times);
    if (!s->ints || !s->times)
        return fst_error(FST_ENOMEM, "bench: %zu bytes for the rows of a step", s->int_bytes);
    s->slot = s->ints;
    s->pos = s->slot + s->max_rows;
    s->id = s->pos + s->max_rows;
    s->span = s->id + s->max_rows;
    s->pick = s->span + s->max_rows;
    s->span_first = s->pick + s->max_rows;
    s->rows = (struct rows){.slot = s->slot,
                            .pos = s->pos,
                            .id = s->id,
                            .span = s->span,
                            .span_first = s->span_first,
                            .pages = s->kv.pages,
                            .page_stride = s->kv.page_stride};
    return FST_OK;
}

static enum fst_status open_weights(struct synth *s)
{
    struct stream filling = {0};
    int64_t start = clock_ns();
    FST_TRY(stream_init(&filling, s->device, s->pool, PRECISION_NATIVE, 0));
    enum fst_status rc = weights_synthetic(&s->weights, &s->b->cfg, &filling, 1);
    stream_release(&filling);
    s->b->weight_bytes = rc == FST_OK ? s->weights->bytes : 0;
    s->b->fill_s = clock_seconds(clock_ns() - start);
    return rc;
}

static enum fst_status open_all(struct synth *s, const struct options *o)
{
    struct kernels *k = &s->routing.kernels;
    FST_TRY(pool_new(&s->pool, s->device ? 1 : (int)options_int(o, "threads", 0)));
    if (s->device)
        FST_TRY(kernels_of_device(k, s->device, options_text(o, "kernels"), PRECISION_NATIVE));
    else
        FST_TRY(kernels_select(k, options_text(o, "kernels"), PRECISION_NATIVE));
    FST_TRY(open_weights(s));
    bench_routing_wrap(&s->routing, &s->kernels, &s->b->cfg);
    struct model_opts mo = {.kernels = &s->kernels,
                            .stream = &s->stream,
                            .max_rows = s->max_rows,
                            .max_logits = s->max_logits,
                            .max_requests = s->max_requests,
                            .context_length = s->context_length,
                            .drafting = s->weights->n_stages > 0,
                            .disable_graphs = s->use == SYNTH_ENTRIES};
    FST_TRY(stream_init(&s->stream, s->device, s->pool, PRECISION_NATIVE,
                        model_scratch_bytes(s->weights, &mo, pool_threads(s->pool))));
    FST_TRY(model_open(&s->model, s->weights, &mo));
    FST_TRY(open_kv(s, o));
    FST_TRY(open_rows(s));
    FST_TRY(synth_draft_open(s));
    if (s->device && s->device->mark)
        s->delay = device_alloc(s->device, DELAY_BYTES);
    return bench_routing_open(&s->routing, s->device, s->max_rows, options_word(o, "routing") == 1);
}

/* ------------------------------------------------------------------ steps */

/* Slots 1 .. requests with pages up to the last row's position; kv is otherwise empty. */
static enum fst_status take_slots(struct synth *s, const struct shape *h)
{
    for (int i = 0; i < h->requests; i++) {
        int slot;
        FST_TRY(kv_slot_open(&s->kv, &slot));
        FST_TRY(kv_reserve(&s->kv, slot, h->start + h->width + 8));
        s->slot[i] = slot; /* of row i, laid out below */
    }
    s->rows.n_spans = h->requests;
    s->rows.n_rows = h->requests * h->width;
    for (int i = s->rows.n_rows - 1; i >= 0; i--) { /* from behind: slot[] is read and written */
        s->slot[i] = s->slot[i / h->width];
        s->span[i] = i / h->width;
    }
    for (int i = 0; i <= h->requests; i++)
        s->span_first[i] = i * h->width;
    return FST_OK;
}

void synth_end(struct synth *s, const struct shape *h)
{
    for (int i = h->requests - 1; i >= 0; i--)
        kv_slot_close(&s->kv, s->slot[(int64_t)i * h->width]);
}

/* New tokens each step; positions go round by four, so that one row in four completes an entry of
 * ratio 4 whatever the number of rows. */
static void set_rows(struct synth *s, const struct shape *h)
{
    uint64_t vocab = (uint64_t)s->b->cfg.vocab_size;
    int64_t turn = s->turn++;
    for (int i = 0; i < s->rows.n_rows; i++) {
        int64_t shift = h->start ? (turn + i / h->width) % 4 : 0;
        s->pos[i] = (int32_t)(h->start + shift + i % h->width);
        s->id[i] = (int32_t)(fill_word(7, (uint64_t)turn << 24 | (uint64_t)i) % vocab);
    }
}

enum fst_status synth_begin(struct synth *s, const struct shape *h)
{
    FST_TRY(take_slots(s, h));
    for (int i = 0; i < h->n_logits; i++)
        s->pick[i] = s->rows.n_rows - h->n_logits + i;
    return bench_routing_draw(&s->routing, h->requests, h->width);
}

enum fst_status synth_first_step(struct synth *s, const struct shape *h, float **out)
{
    float *logits, *seen;
    int64_t n = (int64_t)h->n_logits * s->b->cfg.vocab_size, bad = 0;
    set_rows(s, h);
    bench_routing_begin(&s->routing);
    bench_routing_count(&s->routing, true);
    FST_TRY(model_forward(s->model, &s->kv, &s->rows, s->pick, h->n_logits, &logits));
    FST_TRY(stream_sync(&s->stream));
    bench_routing_count(&s->routing, false);
    if (!(seen = mem_alloc((size_t)n * sizeof *seen)))
        return fst_error(FST_ENOMEM, "bench: no memory for %lld logits", (long long)n);
    enum fst_status rc = device_copy(s->device, seen, logits, (size_t)n * sizeof *seen);
    while (rc == FST_OK && bad < n && isfinite(seen[bad]))
        bad++;
    if (rc == FST_OK && bad < n)
        rc = fst_error(FST_EINTERNAL, "bench: logit %lld of a step of %d rows is %g",
                       (long long)bad, s->rows.n_rows, (double)seen[bad]);
    mem_free(seen);
    *out = logits;
    return rc;
}

enum fst_status synth_step(struct synth *s, const struct shape *h, double *us)
{
    float *logits;
    set_rows(s, h);
    bench_routing_begin(&s->routing);
    int64_t start = clock_ns();
    FST_TRY(model_forward(s->model, &s->kv, &s->rows, s->pick, h->n_logits, &logits));
    FST_TRY(stream_sync(&s->stream));
    *us = (double)(clock_ns() - start) * 1e-3;
    return tool_interrupted(false) ? fst_error(FST_ECANCELED, "bench: interrupted") : FST_OK;
}

enum fst_status synth_busy(struct synth *s, double us)
{
    struct device_fill f = {.kind = FILL_E2M1};
    int n = s->delay ? (int)(fmin(us, 20000) * 4.5e6 / DELAY_BYTES) + 1 : 0;
    for (int i = 0; i < n; i++)
        FST_TRY(stream_fill(&s->stream, s->delay, DELAY_BYTES, &f));
    return FST_OK;
}

struct model_load synth_load(const struct synth *s, const struct shape *h, double distinct)
{
    return (struct model_load){.rows = (double)h->requests * h->width,
                               .sequences = h->requests,
                               .context = (double)h->start,
                               .logits = h->n_logits,
                               .distinct = distinct,
                               .row_bytes = s->b->row_bytes,
                               .key_bytes = s->b->key_bytes};
}

/* ------------------------------------------------------------------ the machine */

static enum fst_status ceilings(struct synth *s)
{
    struct bench *b = s->b;
    snprintf(b->kernels, sizeof b->kernels, "%s", s->routing.kernels.name);
    b->threads = pool_threads(s->pool);
    if (s->device)
        return bench_measure_card(b, s->device);
    bench_host_names(b);
    bench_measure_host(&b->m, (uint64_t)b->weight_bytes, b->kernels, b->threads);
    return FST_OK;
}

static enum fst_status open_model(struct synth *s, const struct options *o, const char *preset)
{
    static const char *const devices[] = {"cpu", "cuda", "hip"};
    static const char *const routings[] = {"independent", "correlated"};
    struct bench *b = s->b;
    int layers = (int)options_int(o, "layers", 0);
    bool few = s->use == SYNTH_ENTRIES && !options_is_given(o, "layers");
    b->routing = routings[options_word(o, "routing")];
    FST_TRY(read_config(b, preset));
    if (!few)
        FST_TRY(cut_layers(&b->cfg, b->preset, layers));
    FST_TRY(read_shapes(s, o));
    FST_TRY(device_open(&s->device, devices[options_word(o, "device")]));
    if (few)
        FST_TRY(cut_layers(&b->cfg, b->preset, few_layers(&b->cfg, s->device)));
    FST_TRY(open_all(s, o));
    return ceilings(s);
}

enum fst_status synth_new(struct synth **out, struct bench *b, const struct options *o,
                          const char *preset, enum synth_use use)
{
    struct synth *s = mem_calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return fst_error(FST_ENOMEM, "bench: no memory");
    s->b = b;
    s->use = use;
    s->steps = (int)options_int(o, "steps", 64);
    s->whole = options_flag(o, "whole");
    enum fst_status rc = open_model(s, o, preset);
    if (rc == FST_OK)
        return FST_OK;
    synth_free(s);
    *out = NULL;
    return rc;
}

void synth_free(struct synth *s)
{
    if (!s)
        return;
    bench_routing_close(&s->routing);
    device_free(s->device, s->delay, DELAY_BYTES);
    if (s->ints)
        device_free_shared(s->device, s->ints, s->int_bytes);
    synth_draft_close(s);
    mem_free(s->times);
    model_free(s->model);
    kv_release(&s->kv);
    stream_release(&s->stream);
    weights_free(s->weights);
    pool_free(s->pool);
    mem_free(s);
}
