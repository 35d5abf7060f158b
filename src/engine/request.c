/* request.c - submit, look at, cancel and free a request; publish what it has given.
 *
 * All memory of a request is taken at submit: its arrays have room for everything it may draw, so
 * that the step loop never allocates and a slow reader costs nothing. */
#include <math.h>

#include "engine/engine_int.h"

void fst_request_opts_default(struct fst_request_opts *o)
{
    *o = (struct fst_request_opts){
        .max_new_tokens = -1,
        .sampling = {.temperature = 1.0f, .top_p = 1.0f, .top_k = -1, .repetition_penalty = 1.0f},
        .prompt_logprobs_from = -1,
    };
}

static enum fst_status validate_rules(const fst_engine *e, const struct fst_request_opts *o)
{
    const struct fst_sampling *s = &o->sampling;
    const struct {
        const char *name;
        float x;
    } penalties[] = {{"presence_penalty", s->presence_penalty},
                     {"frequency_penalty", s->frequency_penalty}};
    int vocab = e->info.vocab_size;

    for (size_t i = 0; i < FST_COUNT(penalties); i++)
        if (!(penalties[i].x >= -2 && penalties[i].x <= 2))
            return fst_error(FST_EINVAL, "%s must be in [-2, 2], got %g", penalties[i].name,
                             (double)penalties[i].x);
    if (!(s->repetition_penalty >= 0 && s->repetition_penalty <= 2))
        return fst_error(FST_EINVAL, "repetition_penalty must be in (0, 2], got %g",
                         (double)s->repetition_penalty);
    if (o->n_logit_bias > (size_t)vocab)
        return fst_error(FST_EINVAL, "logit_bias holds %zu ids, the vocabulary has %d",
                         o->n_logit_bias, vocab);
    for (size_t i = 0; i < o->n_logit_bias; i++) {
        const struct fst_logit_bias *b = &o->logit_bias[i];
        if (b->id < 0 || b->id >= vocab)
            return fst_error(FST_EINVAL,
                             "logit_bias holds id %d, out of range: the vocabulary has %d tokens",
                             b->id, vocab);
        if (!(b->bias >= -100 && b->bias <= 100))
            return fst_error(FST_EINVAL, "logit_bias of id %d must be in [-100, 100], got %g",
                             b->id, (double)b->bias);
    }
    if ((o->n_force_ids || o->debug_retract_at) && !e->debug.on)
        return fst_error(FST_EINVAL, "debug.%s needs --debug-hooks",
                         o->n_force_ids ? "force_ids" : "retract_at");
    if (o->debug_retract_at < 0)
        return fst_error(FST_EINVAL, "debug.retract_at must be 0 or more, got %lld",
                         (long long)o->debug_retract_at);
    for (size_t i = 0; i < o->n_force_ids; i++)
        if (o->force_ids[i] < 0 || o->force_ids[i] >= vocab)
            return fst_error(FST_EINVAL,
                             "debug.force_ids[%zu] is %d, out of range: the vocabulary has %d "
                             "tokens",
                             i, o->force_ids[i], vocab);
    return FST_OK;
}

static enum fst_status validate(const fst_engine *e, const struct fst_request_opts *o)
{
    const struct fst_sampling *s = &o->sampling;
    int vocab = e->info.vocab_size;

    if (o->n_ids == 0)
        return fst_error(FST_EINVAL, "prompt must hold at least one token");
    if ((int64_t)o->n_ids >= e->context_length &&
        !(o->max_new_tokens == 0 && (int64_t)o->n_ids == e->context_length))
        return fst_error(FST_EINVAL,
                         "The input (%zu tokens) is longer than the model's context length "
                         "(%lld tokens).",
                         o->n_ids, (long long)e->context_length);
    for (size_t i = 0; i < o->n_ids; i++)
        if (o->ids[i] < 0 || o->ids[i] >= vocab)
            return fst_error(FST_EINVAL,
                             "input_ids[%zu] is %d, out of range: the vocabulary has %d tokens", i,
                             o->ids[i], vocab);
    if (o->max_new_tokens < -1)
        return fst_error(FST_EINVAL, "max_new_tokens must be -1 or more, got %lld",
                         (long long)o->max_new_tokens);
    if (o->min_new_tokens < 0)
        return fst_error(FST_EINVAL, "min_new_tokens must be 0 or more, got %lld",
                         (long long)o->min_new_tokens);
    if (!isfinite(s->temperature) || s->temperature < 0)
        return fst_error(FST_EINVAL, "temperature must be finite and not negative, got %g",
                         (double)s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return fst_error(FST_EINVAL, "top_p must be in (0, 1], got %g", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return fst_error(FST_EINVAL, "min_p must be in [0, 1], got %g", (double)s->min_p);
    if (s->top_k < -1)
        return fst_error(FST_EINVAL, "top_k must be -1, 0 or more, got %d", s->top_k);
    if (o->n_stop_ids > FST_STOP_IDS_MAX)
        return fst_error(FST_EINVAL, "stop_token_ids holds %zu ids, at most %d are allowed",
                         o->n_stop_ids, FST_STOP_IDS_MAX);
    for (size_t i = 0; i < o->n_stop_ids; i++)
        if (o->stop_ids[i] < 0 || o->stop_ids[i] >= vocab)
            return fst_error(FST_EINVAL,
                             "stop_token_ids[%zu] is %d, out of range: the vocabulary has %d "
                             "tokens",
                             i, o->stop_ids[i], vocab);
    if (o->top_logprobs < 0 || o->top_logprobs > FST_TOP_LOGPROBS_MAX)
        return fst_error(FST_EINVAL, "top_logprobs must be in [0, %d], got %d",
                         FST_TOP_LOGPROBS_MAX, o->top_logprobs);
    if (o->prompt_top_logprobs < 0 || o->prompt_top_logprobs > FST_TOP_LOGPROBS_MAX)
        return fst_error(FST_EINVAL, "prompt_top_logprobs must be in [0, %d], got %d",
                         FST_TOP_LOGPROBS_MAX, o->prompt_top_logprobs);
    if (!(o->timeout_s >= 0))
        return fst_error(FST_EINVAL, "timeout must not be negative, got %g", o->timeout_s);
    return validate_rules(e, o);
}

/* Carve n elements of `size` bytes off *p, on 16-byte lines. */
static void *carve(uint8_t **p, size_t n, size_t size)
{
    uint8_t *at = *p;
    *p += (size_t)round_up((int64_t)(n * size), 16);
    return at;
}

static enum fst_status request_arrays(fst_request *r, int gamma, int vocab)
{
    size_t n_new = (size_t)r->max_new, n_prompt = (size_t)r->n_prompt;
    size_t n_ids = n_prompt + n_new + (size_t)gamma + 1;
    size_t n_top = (size_t)r->o.top_logprobs, n_ptop = (size_t)r->o.prompt_top_logprobs;
    bool scored = r->o.prompt_logprobs_from >= 0;
    const struct rules_mask mask = masks_rules(&r->masks);
    size_t rules =
        rules_wanted(&r->o, &mask) ? rules_bytes(&r->o, &mask, vocab, r->n_prompt, r->max_new) : 0;
    size_t bytes = n_ids * sizeof *r->ids + (r->o.logprobs ? n_new * sizeof(float) : 0) +
                   n_new * n_top * sizeof *r->top + (scored ? n_prompt * sizeof(float) : 0) +
                   (scored ? n_prompt * n_ptop * sizeof *r->prompt_top : 0) +
                   (size_t)r->n_audit * sizeof *r->audit + rules +
                   r->o.n_force_ids * sizeof *r->force_ids + 8 * 16;
    uint8_t *p;

    r->block_bytes = bytes;
    r->block = mem_alloc(bytes);
    if (!r->block)
        return fst_error(FST_ENOMEM, "request: no memory for %zu bytes", bytes);
    p = r->block;
    r->ids = carve(&p, n_ids, sizeof *r->ids);
    if (r->o.logprobs)
        r->logprobs = carve(&p, n_new, sizeof *r->logprobs);
    if (r->n_audit)
        r->audit = carve(&p, (size_t)r->n_audit, sizeof *r->audit);
    if (n_top)
        r->top = carve(&p, n_new * n_top, sizeof *r->top);
    if (scored) {
        r->prompt_logprobs = carve(&p, n_prompt, sizeof *r->prompt_logprobs);
        for (size_t i = 0; i < n_prompt; i++)
            r->prompt_logprobs[i] = NAN;
        if (n_ptop) {
            r->prompt_top = carve(&p, n_prompt * n_ptop, sizeof *r->prompt_top);
            for (size_t i = 0; i < n_prompt * n_ptop; i++)
                r->prompt_top[i] = (struct sample_top){.id = -1, .logprob = -INFINITY};
        }
    }
    memcpy(r->ids, r->o.ids, n_prompt * sizeof *r->ids);
    r->o.ids = NULL;
    if (r->o.n_force_ids) {
        r->n_force_ids = (int64_t)r->o.n_force_ids;
        r->force_ids = carve(&p, r->o.n_force_ids, sizeof *r->force_ids);
        memcpy(r->force_ids, r->o.force_ids, r->o.n_force_ids * sizeof *r->force_ids);
    }
    if (rules) {
        rules_init(&r->rules, &r->o, &mask, vocab, r->n_prompt, r->max_new, carve(&p, rules, 1));
        FST_TRY(rules_to(&r->rules, r->ids, r->n_prompt));
    }
    r->o.logit_bias = NULL;
    r->o.grammar = NULL;
    r->o.gate = NULL;
    r->o.grammar_text = NULL;
    r->o.force_ids = NULL;
    return FST_OK;
}

static uint64_t next_seed(struct door *d)
{
    uint64_t z = d->seed_state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void request_destroy(fst_request *r)
{
    pthread_mutex_lock(&r->door->lock);
    r->door->request_bytes -= r->counted_bytes;
    pthread_mutex_unlock(&r->door->lock);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->pub_lock);
    masks_release(&r->masks);
    mem_free(r->block);
    if (r->after)
        request_unref(r->after);
    door_unref(r->door);
    mem_free(r);
}

enum fst_status fst_request_submit(fst_engine *e, const struct fst_request_opts *o,
                                   fst_request **out)
{
    struct door *d = e->door;
    enum fst_status rc;
    fst_request *r;
    int64_t room;

    *out = NULL;
    FST_TRY(validate(e, o));
    r = mem_calloc(1, sizeof *r);
    if (!r)
        return fst_error(FST_ENOMEM, "request: no memory");
    pthread_mutex_init(&r->pub_lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    door_ref(d);
    r->door = d;
    atomic_init(&r->refs, 2);
    atomic_init(&r->cancel, false);
    atomic_init(&r->place, 0);
    r->o = *o;
    r->n_prompt = r->n_known = (int64_t)o->n_ids;
    room = e->context_length - r->n_prompt;
    r->max_new = o->max_new_tokens < 0 ? room : FST_MIN(o->max_new_tokens, room);
    r->eos_id = o->ignore_eos ? -1 : e->info.eos_id;
    r->end_ids[r->n_end_ids++] = e->info.eos_id;
    for (size_t i = 0; i < o->n_stop_ids; i++)
        r->end_ids[r->n_end_ids++] = o->stop_ids[i];
    r->o.stop_ids = NULL;
    if ((r->after = o->after))
        atomic_fetch_add(&r->after->refs, 1);
    r->o.after = NULL;
    r->scores_prompt = o->prompt_logprobs_from >= 0 || o->on_prompt_logits != NULL;
    r->pub.matched_id = -1;
    r->submit_ns = engine_now_ns();
    r->deadline_ns = o->timeout_s > 0 ? r->submit_ns + (int64_t)(o->timeout_s * 1e9) : INT64_MAX;
    if (r->max_new > 0 && audit_choose(&e->audit))
        r->n_audit = FST_MIN(r->max_new, (int64_t)AUDIT_ROWS_MAX);
    r->n_reply = -1;
    r->verdict.force = -1;
    r->watched = o->on_token != NULL;
    if ((rc = masks_init(&r->masks, o, e->info.vocab_size)) < 0 ||
        (rc = request_arrays(r, e->gamma, e->info.vocab_size)) < 0) {
        request_destroy(r);
        return rc;
    }

    pthread_mutex_lock(&d->lock);
    r->sampling = (struct sample_params){
        .temperature = o->sampling.temperature < 1e-5f ? 0.0f : o->sampling.temperature,
        .top_p = o->sampling.top_p,
        .min_p = o->sampling.min_p,
        .top_k = o->sampling.top_k,
        .choice = o->sampling.choice,
        .seed = o->sampling.has_seed ? o->sampling.seed : next_seed(d)};
    if (d->closed || d->draining)
        rc = fst_error(FST_ESHUTDOWN, "server shutting down");
    else if (d->n_waiting >= d->max_waiting)
        rc = fst_error(FST_EFULL, "The request queue is full.");
    else if (d->n_waiting > 0 && d->request_bytes + r->block_bytes > d->max_request_bytes)
        rc = fst_error(FST_EFULL, "The request queue is full (%llu MiB of requests).",
                       (unsigned long long)(d->request_bytes >> 20));
    else {
        d->request_bytes += r->counted_bytes = r->block_bytes;
        if (d->last)
            d->last->next = r;
        else
            d->first = r;
        d->last = r;
        d->n_waiting++;
        atomic_store(&r->place, (size_t)d->n_waiting);
        d->stats.requests++;
        d->kick = true;
        pthread_cond_signal(&d->work);
    }
    pthread_mutex_unlock(&d->lock);
    if (rc < 0)
        request_destroy(r);
    else
        *out = r;
    return rc;
}

void request_unref(fst_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1)
        request_destroy(r);
}

void fst_request_cancel(fst_request *r)
{
    atomic_store(&r->cancel, true);
    door_kick(r->door);
}

void fst_request_free(fst_request *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->pub_lock);
    r->o.on_change = NULL; /* no call-back into a user who is gone */
    r->o.on_prompt_logits = NULL;
    r->o.on_token = NULL;
    pthread_mutex_unlock(&r->pub_lock);
    fst_request_cancel(r);
    request_unref(r);
}

/* Copy the engine's side to `pub`.  pub_lock held. */
static void publish_locked(fst_request *r)
{
    r->pub.n = (size_t)(r->n_known - r->n_prompt);
    r->pub.n_cached = (size_t)r->n_cached;
    r->pub.prefix = r->prefix;
    r->pub.n_prefilled = FST_MAX(r->pub.n_prefilled, (size_t)FST_MIN(r->n_committed, r->n_prompt));
    r->pub.spec = r->spec;
    if (r->admit_ns) {
        int64_t first = r->first_ns ? r->first_ns : engine_now_ns();
        r->pub.queue_s = (double)(r->admit_ns - r->submit_ns) * 1e-9;
        r->pub.prefill_s = (double)(first - r->admit_ns) * 1e-9;
        r->pub.decode_s = r->first_ns ? (double)(r->last_ns - r->first_ns) * 1e-9 : 0.0;
    }
    pthread_cond_broadcast(&r->changed);
}

/* The call-back runs under pub_lock, so that fst_request_free cannot return while it runs; it must
 * not look at the view itself. */
static void notify_unlock(fst_request *r)
{
    if (r->o.on_change)
        r->o.on_change(r->o.on_change_ud);
    pthread_mutex_unlock(&r->pub_lock);
}

void request_publish(fst_request *r)
{
    pthread_mutex_lock(&r->pub_lock);
    publish_locked(r);
    notify_unlock(r);
}

/* Finish and the last tokens appear together. */
void request_finish(fst_request *r, enum fst_finish finish, int32_t matched_id,
                    enum fst_status status, const char *error)
{
    r->ended = true;
    pthread_mutex_lock(&r->pub_lock);
    r->pub.finish = finish;
    r->pub.matched_id = matched_id;
    r->pub.status = status;
    snprintf(r->pub.error, sizeof r->pub.error, "%s", error);
    publish_locked(r);
    notify_unlock(r);
    masks_leave(&r->masks);
    request_unref(r);
}

_Static_assert(sizeof(struct sample_top) == sizeof(struct fst_top_logprob), "the same pair");

void fst_request_get_view(const fst_request *cr, struct fst_request_view *v)
{
    fst_request *r = (fst_request *)(uintptr_t)cr; /* the lock is not part of what const promises */

    pthread_mutex_lock(&r->pub_lock);
    *v = (struct fst_request_view){
        .ids = r->ids + r->n_prompt,
        .logprobs = r->logprobs,
        .top = (const struct fst_top_logprob *)(const void *)r->top,
        .n = r->pub.n,
        .finish = r->pub.finish,
        .matched_id = r->pub.matched_id,
        .status = r->pub.status,
        .error = r->pub.error,
        .n_prompt = (size_t)r->n_prompt,
        .n_cached = r->pub.n_cached,
        .prefix = r->pub.prefix,
        .n_prefilled = r->pub.n_prefilled,
        .queue_place = r->pub.finish == FST_FINISH_NONE ? atomic_load(&r->place) : 0,
        .prompt_logprobs = r->prompt_logprobs,
        .prompt_top = (const struct fst_top_logprob *)(const void *)r->prompt_top,
        .seed = r->sampling.seed,
        .spec = r->pub.spec,
        .queue_s = r->pub.queue_s,
        .prefill_s = r->pub.prefill_s,
        .decode_s = r->pub.decode_s,
    };
    pthread_mutex_unlock(&r->pub_lock);
}

enum fst_status fst_request_wait(fst_request *r, double timeout_s)
{
    struct timespec until;
    bool done;

    clock_gettime(CLOCK_REALTIME, &until);
    if (timeout_s > 1e9)
        timeout_s = 1e9;
    until.tv_sec += (time_t)timeout_s;
    until.tv_nsec += (long)((timeout_s - (double)(time_t)timeout_s) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&r->pub_lock);
    while (r->pub.finish == FST_FINISH_NONE &&
           pthread_cond_timedwait(&r->changed, &r->pub_lock, &until) == 0)
        ;
    done = r->pub.finish != FST_FINISH_NONE;
    pthread_mutex_unlock(&r->pub_lock);
    return done ? FST_OK : fst_error(FST_ETIMEOUT, "request did not end in time");
}
