/* engine.c - open and close an engine: options to sizes, one memory plan, the step thread. */
#include <strings.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/engine_int.h"
#include "kernels/self_test.h"
#include "model/plan.h"

/* A checkpoint of at most so many bytes is read whole at open, in search of what is no number: 10 ms
 * for the bundled model, cached.  Of a larger one `inspect --values` looks at every byte. */
#define ENGINE_VALUES_BYTES ((int64_t)2 << 30)

/* ------------------------------------------------------------------ options */

enum fst_status engine_word(const char *flag, const char *given, const char *fallback,
                            const char *const *words, int n, int *out)
{
    const char *w = given ? given : fallback;
    struct buf list = {0};
    enum fst_status rc;

    for (int i = 0; i < n; i++)
        if (strcasecmp(w, words[i]) == 0) {
            *out = i;
            return FST_OK;
        }
    for (int i = 0; i < n; i++)
        buf_printf(&list, "%s%s", i ? ", " : "", words[i]);
    rc = fst_error(FST_EINVAL, "%s: unknown value \"%.64s\"; known: %s", flag, w, buf_str(&list));
    buf_release(&list);
    return rc;
}

static enum fst_status pick_drafting(fst_engine *e, const struct fst_engine_opts *o,
                                     const struct model_config *c)
{
    static const char *const algorithms[] = {"none", "dspark", "mtp", "eagle"};
    static const char *const modes[] = {"auto", "static", "cap", "compact"};
    struct model_drafting_ask ask = {.block_size = o->spec_block_size,
                                     .num_steps = o->spec_num_steps};
    int algorithm, mode;

    FST_TRY(engine_word("--speculative-algorithm", o->spec_algorithm, "none", algorithms,
                        FST_COUNT(algorithms), &algorithm));
    if (o->spec_algorithm)
        ask.algorithm = algorithms[algorithm];
    FST_TRY(engine_word("--verify-mode", o->verify_mode, "auto", modes, FST_COUNT(modes), &mode));
    FST_TRY(model_plan_drafting(c, &ask, &e->info.spec_algorithm, &e->gamma));
    e->drafting = e->gamma > 0;
    e->dr.behind = e->drafting && c->has_mtp;
    e->info.verify_mode = modes[mode];
    e->dr.mode = (enum draft_mode)mode;
    return FST_OK;
}

/* The words of the options, as numbers. */
struct choices {
    int layout, key, precision, chunk;
};

/* Context, slots and pages from the options and the memory there is. */
static enum fst_status size_memory(fst_engine *e, const struct fst_engine_opts *o,
                                   const struct choices *ch, struct model_plan *p)
{
    static const enum row_format format[] = {ROW_FP8, ROW_BF16, ROW_PAGED};
    const struct model_config *c = &e->weights->config;
    struct model_plan_ask a = {.kernels = &e->kernels,
                               .device = e->device,
                               .n_threads = pool_threads(e->pool),
                               .card = e->device != NULL,
                               .memory_bytes = e->device ? (double)e->device->free_bytes
                                                         : (double)mem_available_bytes(),
                               .weights_bytes = (double)e->weights->bytes,
                               .drafting = e->drafting,
                               .gamma = e->gamma,
                               .format = ch->precision ? ROW_F32 : format[ch->layout],
                               .index_format = ch->precision ? INDEX_F32
                                               : ch->key     ? INDEX_FP8
                                                             : INDEX_FP4,
                               .requests = o->max_running_requests,
                               .chunk = ch->chunk,
                               .context_length = o->context_length,
                               .total_tokens = o->max_total_tokens};

    FST_TRY(model_plan(e->weights, &a, p));
    if (p->context_length < c->max_positions && !o->context_length)
        log_info("context", "length=%lld of=%lld why=kv_memory", (long long)p->context_length,
                 (long long)c->max_positions);
    e->max_running = p->requests;
    e->context_length = p->context_length;
    e->limits = (struct sched_limits){.max_rows = p->max_rows,
                                      .prefill_rows = ch->chunk,
                                      .prefill_rows_while_decoding = ch->chunk,
                                      .max_logits = p->max_logits};
    e->stall.max_s = o->max_stall_s ? FST_MAX(o->max_stall_s, 0.0) : 0.25;
    e->info.context_length = p->context_length;
    e->info.max_total_tokens = p->tokens;
    e->info.kv_bytes =
        (uint64_t)(p->bytes.window_bytes + p->bytes.compressed_bytes + p->bytes.index_bytes);
    e->info.state_bytes = (uint64_t)p->bytes.state_bytes;
    return FST_OK;
}

/* ------------------------------------------------------------------ memory of the step loop */

/* X(field, count): arrays of the engine's thread. */
#define ENGINE_ARRAYS(X)                                                                           \
    X(running, n_req)                                                                              \
    X(loading, n_req)                                                                              \
    X(items, n_req)                                                                                \
    X(spans, n_req)                                                                                \
    X(span_request, n_req)                                                                         \
    X(slot_request, n_req + 1)                                                                     \
    X(row_slot, n_rows)                                                                            \
    X(row_pos, n_rows)                                                                             \
    X(row_id, n_rows)                                                                              \
    X(row_span, n_rows)                                                                            \
    X(span_first, n_req + 1)                                                                       \
    X(logit_row, n_rows)                                                                           \
    X(inject_row, n_rows)                                                                          \
    X(hold_row, n_rows)                                                                            \
    X(span_logit, n_req)                                                                           \
    X(span_before, n_req)                                                                          \
    X(outcome, n_req)                                                                              \
    X(sample, n_logits)                                                                            \
    X(tops, n_logits *FST_TOP_LOGPROBS_MAX)                                                        \
    X(draft_slot, n_req)                                                                           \
    X(draft_anchor, n_req)                                                                         \
    X(draft_ids, n_req *KERN_GAMMA_MAX)                                                            \
    X(draft_conf, n_req *KERN_GAMMA_MAX)                                                           \
    X(draft_committed, n_req)                                                                      \
    X(draft_draw, n_req)                                                                           \
    X(draft_out_pos, n_req)

static enum fst_status step_arrays(fst_engine *e)
{
    size_t n_req = (size_t)e->max_running, n_rows = (size_t)e->limits.max_rows;
    size_t n_logits = (size_t)e->limits.max_logits, bytes = 0;
    uint8_t *p;

#define ADD(field, count) bytes += (size_t)round_up((int64_t)((count) * sizeof *e->field), 64);
    ENGINE_ARRAYS(ADD)
#undef ADD
    e->block = device_alloc_shared(e->device, bytes);
    e->block_bytes = bytes;
    if (!e->block)
        return fst_error(FST_ENOMEM, "engine: no memory for %zu bytes", bytes);
    p = e->block;
#define CARVE(field, count)                                                                        \
    e->field = (void *)p;                                                                          \
    p += (size_t)round_up((int64_t)((count) * sizeof *e->field), 64);
    ENGINE_ARRAYS(CARVE)
#undef CARVE
    e->draft = (struct draft_batch){.gamma = e->gamma,
                                    .slot = e->draft_slot,
                                    .n_committed = e->draft_committed,
                                    .anchor = e->draft_anchor,
                                    .draw = e->draft_draw,
                                    .out_pos = e->draft_out_pos,
                                    .ids = e->draft_ids};
    e->info.workspace_bytes += bytes;
    return FST_OK;
}

/* ------------------------------------------------------------------ open, close */

static enum fst_status read_choices(fst_engine *e, const struct fst_engine_opts *o,
                                    struct choices *c)
{
    static const char *const layouts[] = {"unified-fp8", "unified-bf16", "paged"};
    static const char *const keys[] = {"fp4", "fp8"};
    static const char *const precisions[] = {"native", "reference"};
    static const char *const devices[] = {"cpu", "cuda", "hip"};
    int device;

    FST_TRY(prefix_check_opts(o));
    FST_TRY(engine_word("--device", o->device, "cpu", devices, FST_COUNT(devices), &device));
    FST_TRY(device_open(&e->device, devices[device]));
    FST_TRY(engine_word("--kv-layout", o->kv_layout, "unified-fp8", layouts, FST_COUNT(layouts),
                        &c->layout));
    FST_TRY(engine_word("--index-keys", o->index_keys, "fp4", keys, FST_COUNT(keys), &c->key));
    FST_TRY(engine_word("--precision", o->precision, "native", precisions, FST_COUNT(precisions),
                        &c->precision));
    c->chunk = o->chunked_prefill_size ? o->chunked_prefill_size : MODEL_PLAN_CHUNK;
    if (c->chunk < 1 || c->chunk > 65536)
        return fst_error(FST_EINVAL, "--chunked-prefill-size must be in [1, 65536], got %d",
                         c->chunk);
    if (o->threads < 0 || o->threads > 256)
        return fst_error(FST_EINVAL, "--threads must be in [0, 256], got %d", o->threads);
    if (o->max_queued_requests < 0)
        return fst_error(FST_EINVAL, "--max-queued-requests must be positive, got %d",
                         o->max_queued_requests);
    e->info.device = devices[device];
    e->info.kv_layout = c->precision ? "unified-f32" : layouts[c->layout];
    e->info.index_keys = c->precision ? "f32" : keys[c->key];
    e->info.precision = precisions[c->precision];
    e->info.chunked_prefill_size = c->chunk;
    e->info.max_queued_requests = o->max_queued_requests ? o->max_queued_requests : 1024;
    return FST_OK;
}

static void fill_info(fst_engine *e)
{
    const struct model_config *c = &e->weights->config;

    snprintf(e->info.model_type, sizeof e->info.model_type, "%s", c->model_type);
    e->info.kernels = e->kernels.name;
    e->info.debug_hooks = e->debug.on ? e->debug.label : NULL;
    e->info.vocab_size = c->vocab_size;
    e->info.eos_id = c->eos_id;
    e->info.bos_id = c->bos_id;
    e->info.gamma = e->gamma;
    e->info.threads = pool_threads(e->pool);
    e->info.max_running_requests = e->max_running;
    e->info.weight_bytes = (uint64_t)e->weights->bytes;
    e->info.n_tensors = (uint64_t)e->weights->n_tensors;
    e->stats.slots_total = e->kv.spec.n_slots;
    e->stats.kv_tokens_total = e->kv.spec.n_pages * KERN_PAGE;
}

static enum fst_status pick_kernels(fst_engine *e, const struct fst_engine_opts *o,
                                    const struct choices *c)
{
    enum precision precision = (enum precision)c->precision;

    if (e->device) {
        FST_TRY(kernels_of_device(&e->kernels, e->device, o->kernels, precision));
        return FST_OK;
    }
    return kernels_select(&e->kernels,
                          precision == PRECISION_REFERENCE && !o->kernels ? "ref" : o->kernels,
                          precision);
}

/* A machine that computes something else is found before it serves anybody. */
static enum fst_status self_test(const fst_engine *e, enum precision precision)
{
    struct self_test t = {.seed = (uint64_t)engine_now_ns()};
    int64_t start = engine_now_ns();

    if (precision != PRECISION_NATIVE)
        return FST_OK;
    FST_TRY(kernels_self_test(&e->kernels, e->device, 0, &t));
    log_debug("self-test", "kernels=%s worst_nmse=%.1e block=\"%s\" ms=%.1f", e->kernels.name,
              t.worst, t.where, (double)(engine_now_ns() - start) * 1e-6);
    return FST_OK;
}

static enum fst_status keep_masked_ids(fst_engine *e, const struct fst_engine_opts *o)
{
    size_t bytes = o->n_masked_ids * sizeof *e->masked_ids;

    e->masked_ids = mem_alloc(bytes);
    if (!e->masked_ids)
        return fst_error(FST_ENOMEM, "engine: no memory");
    if (bytes)
        memcpy(e->masked_ids, o->masked_ids, bytes);
    e->n_masked_ids = (int64_t)o->n_masked_ids;
    return FST_OK;
}

static enum fst_status open_model(fst_engine *e, const struct fst_engine_opts *o)
{
    const struct model_config *c;
    struct choices ch;
    struct model_plan plan;
    struct model_opts mo;
    size_t scratch;

    FST_TRY(read_choices(e, o, &ch));
    FST_TRY(pick_kernels(e, o, &ch));
    FST_TRY(self_test(e, (enum precision)ch.precision));
    FST_TRY(weights_open(&e->weights, o->model_dir, NULL));
    if (e->weights->bytes <= ENGINE_VALUES_BYTES)
        FST_TRY(weights_check_values(e->weights));
    c = &e->weights->config;
    FST_TRY(pick_drafting(e, o, c));
    FST_TRY(debug_open(&e->debug, o, e->gamma, c->vocab_size, e->device != NULL));
    FST_TRY(reject_open(e, o));
    if (e->debug.acc_len > 0 ||
        (e->dr.mode == DRAFT_AUTO && (e->debug.known || e->debug.reject_at))) {
        e->info.verify_mode = "static"; /* every round drafts, and all of it is verified */
        e->dr.mode = DRAFT_STATIC;
    }
    FST_TRY(pool_new(&e->pool, o->threads));
    if (e->device)
        FST_TRY(weights_upload(
            e->weights, e->device,
            &(struct weights_upload_opts){.on_load = o->on_load, .on_load_ud = o->on_load_ud}));

    e->window = c->window;
    FST_TRY(size_memory(e, o, &ch, &plan));
    mo = (struct model_opts){.kernels = &e->kernels,
                             .stream = &e->stream,
                             .max_rows = plan.max_rows,
                             .max_logits = plan.max_logits,
                             .max_requests = plan.requests,
                             .context_length = plan.kv.context_length,
                             .drafting = e->drafting,
                             .heartbeat = &e->heartbeat,
                             .profile = o->profile,
                             .disable_graphs = o->disable_cuda_graph};

    FST_TRY(kv_init(&e->kv, &plan.kv));
    scratch = model_scratch_bytes(e->weights, &mo, pool_threads(e->pool));
    FST_TRY(stream_init(&e->stream, e->device, e->pool, (enum precision)ch.precision, scratch));
    FST_TRY(prefix_open(e, o));
    FST_TRY(model_open(&e->model, e->weights, &mo));
    FST_TRY(sample_init(&e->sampler, &e->kernels, &e->stream, c->vocab_size, e->limits.max_logits,
                        o->masked_ids, (int)o->n_masked_ids));
    FST_TRY(step_arrays(e));
    FST_TRY(recorder_open(&e->recorder, o, e->limits.max_logits, e->max_running));
    FST_TRY(audit_open(&e->audit, o, e->debug.acc_len > 0 || e->debug.null_us > 0));
    FST_TRY(keep_masked_ids(e, o));
    FST_TRY(draft_open(e, o));
    e->info.workspace_bytes += scratch + plan.work_bytes;
    fill_info(e);
    FST_TRY(reject_arrays(e));
    return FST_OK;
}

static uint64_t random_seed(const struct fst_engine_opts *o)
{
    uint64_t seed = o->random_seed;

    if (!o->has_random_seed && getentropy(&seed, sizeof seed) != 0)
        seed = (uint64_t)engine_now_ns();
    return seed;
}

enum fst_status engine_prepare(fst_engine **out, const struct fst_engine_opts *o)
{
    fst_engine *e;

    *out = NULL;
    if (!o->model_dir)
        return fst_error(FST_EINVAL, "--model: the folder of a checkpoint is required");
    e = mem_calloc(1, sizeof *e);
    if (!e || !(e->model_dir = mem_strdup(o->model_dir))) {
        mem_free(e);
        return fst_error(FST_ENOMEM, "engine: no memory");
    }
    *out = e;
    e->info.model_dir = e->model_dir;
    return open_model(e, o);
}

enum fst_status fst_engine_open(fst_engine **out, const struct fst_engine_opts *o)
{
    int64_t start = engine_now_ns();
    fst_engine *e;
    enum fst_status rc;

    *out = NULL;
    if ((rc = engine_prepare(&e, o)) < 0)
        goto out;
    e->door = door_new(e->info.max_queued_requests, mem_available_bytes() / 4, random_seed(o));
    if (!e->door) {
        rc = fst_error(FST_ENOMEM, "engine: no memory");
        goto out;
    }
    e->info.load_s = (double)(engine_now_ns() - start) * 1e-9;
    e->door->stats = e->stats;
    if (pthread_create(&e->thread, NULL, engine_thread, e) != 0) {
        rc = fst_error(FST_EMACHINE, "engine: cannot start a thread");
        goto out;
    }
    e->thread_started = true;
    if (e->debug.on)
        log_warn("debug hooks", "active=\"%s\" results=not_the_models", e->debug.label);
    if (o->on_load)
        o->on_load(o->on_load_ud, e->info.weight_bytes, e->info.weight_bytes);
    *out = e;
    return FST_OK;
out:
    fst_engine_close(e);
    return rc;
}

void fst_engine_drain(fst_engine *e)
{
    pthread_mutex_lock(&e->door->lock);
    e->door->draining = true;
    pthread_mutex_unlock(&e->door->lock);
}

static void close_by(fst_engine *e, int64_t end_ns)
{
    if (!e)
        return;
    if (e->thread_started) {
        struct door *d = e->door;
        pthread_mutex_lock(&d->lock);
        d->closed = true;
        e->quit = true;
        d->kick = true;
        pthread_cond_signal(&d->work);
        pthread_mutex_unlock(&d->lock);
        pthread_join(e->thread, NULL);
    }
    audit_close(e);
    recorder_close(&e->recorder);
    draft_close(e);
    sample_release(&e->sampler);
    model_free(e->model);
    prefix_close(e, end_ns);
    stream_release(&e->stream);
    pool_free(e->pool);
    kv_release(&e->kv);
    weights_free(e->weights);
    device_free_shared(e->device, e->block, e->block_bytes);
    debug_close(&e->debug);
    mem_free(e->draft_logits);
    mem_free(e->masked_ids);
    mem_free(e->model_dir);
    door_unref(e->door);
    mem_free(e);
}

void fst_engine_close(fst_engine *e)
{
    close_by(e, INT64_MAX);
}

void fst_engine_close_within(fst_engine *e, double seconds)
{
    close_by(e, engine_now_ns() + (int64_t)(1e9 * FST_MIN(FST_MAX(seconds, 0), 1e9)));
}

/* ------------------------------------------------------------------ looking in */

void fst_engine_get_info(const fst_engine *e, struct fst_engine_info *out)
{
    *out = e->info;
}

void fst_engine_get_stats(const fst_engine *e, struct fst_engine_stats *out)
{
    pthread_mutex_lock(&e->door->lock);
    *out = e->door->stats;
    out->waiting = e->door->n_waiting;
    pthread_mutex_unlock(&e->door->lock);
    out->heartbeat_ns = atomic_load(&e->heartbeat);
    out->now_ns = engine_now_ns();
}

void fst_engine_reset_spec_stats(fst_engine *e)
{
    pthread_mutex_lock(&e->door->lock);
    e->door->reset_spec = true;
    e->door->kick = true;
    e->door->stats.spec = (struct fst_spec_stats){0};
    pthread_cond_signal(&e->door->work);
    pthread_mutex_unlock(&e->door->lock);
}

void fst_engine_flush_prefixes(fst_engine *e)
{
    pthread_mutex_lock(&e->door->lock);
    e->door->flush = e->door->kick = true;
    pthread_cond_signal(&e->door->work);
    pthread_mutex_unlock(&e->door->lock);
}

int fst_engine_block_times(fst_engine *e, struct fst_block_time *out, int n, bool reset)
{
    const struct model_timing *t;
    int have = model_timings(e->model, &t);

    for (int i = 0; i < have && i < n; i++)
        out[i] = (struct fst_block_time){
            .name = t[i].name, .ns = (uint64_t)t[i].ns, .calls = (uint64_t)t[i].calls};
    if (reset)
        model_timings_reset(e->model);
    return have;
}
