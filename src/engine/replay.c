/* replay.c - the steps of a record, run again: the same spans in the same batches, on slots that are first
 * brought to where the record begins by a cold prefill of the ids before it. */
#include "firesteel/replay.h"

#include "engine/engine_int.h"
#include "engine/record.h"
#include "engine/rerun.h"

/* A request as the engine's own functions know it, and where it is. */
struct actor {
    fst_request r; /* zero but for what rerun_step reads */
    void *rules;   /* owned: memory of r.rules */
    int slot;
    int64_t n_committed;
};

struct replay {
    fst_engine *e;
    const struct record *rec;
    struct actor *actor; /* owned: (n_requests) */
    struct rerun_span *span;
    int32_t *span_actor;
    const struct record_span **recorded;
    struct fst_replay_report *out;
    bool same_draws; /* what rows drew depends on the rows alone */
    bool drafts;     /* the drafter's own */
};

static void close_actor(struct replay *p, struct actor *a)
{
    if (a->slot)
        kv_slot_close(&p->e->kv, a->slot);
    a->slot = a->r.slot = 0;
    a->n_committed = 0;
}

/* Slots and pages of who is not in the step go when they are wanted. */
static bool close_one(struct replay *p, const struct record_step *s)
{
    for (size_t i = 0; i < p->rec->n_requests; i++) {
        bool in = false;
        for (size_t k = 0; k < s->n_spans; k++)
            in |= s->span[k].request == (int32_t)i;
        if (p->actor[i].slot && !in) {
            close_actor(p, &p->actor[i]);
            return true;
        }
    }
    return false;
}

/* The last n_commit rows of a span that the drafter could ask for; returns how many there are now. */
static int name_rows(struct replay *p, int span, int64_t n_commit, int n)
{
    fst_engine *e = p->e;

    for (int64_t i = FST_MAX(0, n_commit - e->window); i < n_commit; i++)
        e->inject_row[n++] = e->span_first[span] + (int32_t)i;
    return n;
}

static enum fst_status inject(struct replay *p, const struct rows *rows, int n)
{
    fst_engine *e = p->e;

    if (!e->drafting || n == 0)
        return FST_OK;
    if (e->dr.behind) /* redraft knows the tokens behind them */
        return model_hold(e->model, &e->kv, rows, e->inject_row, n);
    return model_inject(e->model, &e->kv, rows, e->inject_row, n);
}

static void came_to(struct replay *p, struct actor *a, int64_t n)
{
    a->n_committed = a->r.n_committed = n;
    kv_commit(&p->e->kv, a->slot, n);
}

/* Positions up to `to`, computed from the ids alone. */
static enum fst_status bring_to(struct replay *p, struct actor *a, int64_t to)
{
    fst_engine *e = p->e;

    while (a->n_committed < to) {
        struct rows rows;
        struct rerun_span s = {
            .r = &a->r,
            .slot = a->slot,
            .pos = a->n_committed,
            .ids = a->r.ids + a->n_committed,
            .n_rows = (int)FST_MIN((int64_t)e->limits.prefill_rows, to - a->n_committed)};
        FST_TRY(rerun_step(e, &s, 1, &rows));
        FST_TRY(inject(p, &rows, name_rows(p, 0, s.n_rows, 0)));
        came_to(p, a, a->n_committed + s.n_rows);
    }
    return FST_OK;
}

static enum fst_status place(struct replay *p, const struct record_step *s, struct actor *a,
                             int64_t pos, int64_t n_rows)
{
    struct kv *kv = &p->e->kv;

    if (a->slot && a->n_committed != pos)
        close_actor(p, a);
    while (!a->slot && kv_slot_open(kv, &a->slot) < 0)
        if (!close_one(p, s))
            return FST_EBUDGET;
    if (a->r.slot != a->slot)
        draft_begin(p->e, &a->r, 0, true);
    a->r.slot = a->slot;
    while (kv_reserve(kv, a->slot, pos + n_rows) < 0)
        if (!close_one(p, s))
            return FST_EBUDGET;
    return bring_to(p, a, pos);
}

/* ------------------------------------------------------------------ comparing */

static void differ(char first[512], uint64_t *count, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void differ(char first[512], uint64_t *count, const char *fmt, ...)
{
    va_list ap;

    if ((*count)++)
        return;
    va_start(ap, fmt);
    vsnprintf(first, 512, fmt, ap);
    va_end(ap);
}

static void compare_row(struct replay *p, const struct record_step *s, const struct record_span *x,
                        int i, int at)
{
    struct fst_replay_report *o = p->out;
    const struct record_drawn *was = &x->drawn[i];
    const struct sample_row *now = &p->e->sample[at];
    uint64_t hash = p->e->recorder.hash[at];
    long long step = (long long)s->number, pos = (long long)(x->pos + x->n_rows - x->n_drawn + i);
    unsigned long long request = (unsigned long long)p->rec->request[x->request].number;

    o->rows++;
    if (was->hash && hash) {
        o->hashes++;
        if (was->hash != hash) {
            differ(o->first, &o->differing,
                   "step %lld, request %llu, position %lld: hash of the logits was %016llx, is "
                   "%016llx",
                   step, request, pos, (unsigned long long)was->hash, (unsigned long long)hash);
            return;
        }
    }
    if (was->forced || (!p->same_draws && x->verify))
        return;
    if (was->id != now->id)
        differ(o->first, &o->differing,
               "step %lld, request %llu, position %lld: token %d was drawn, now %d", step, request,
               pos, was->id, now->id);
    else if (memcmp(&was->logprob, &now->logprob, sizeof(float)) != 0)
        differ(o->first, &o->differing,
               "step %lld, request %llu, position %lld: log-probability was %.9g, is %.9g", step,
               request, pos, (double)was->logprob, (double)now->logprob);
}

/* The drafter proposes what it did. */
static enum fst_status redraft(struct replay *p, const struct record_step *s, int n)
{
    fst_engine *e = p->e;
    struct draft_batch *b = &e->draft;

    b->n = 0;
    b->gamma = (int)s->block;
    b->conf = NULL;
    for (int i = 0; i < n; i++) {
        struct actor *a = &p->actor[p->span_actor[i]];
        if (!p->recorded[i]->verify)
            continue;
        e->dr.who[b->n] = &a->r;
        e->draft_slot[b->n] = a->slot;
        e->draft_committed[b->n] = p->recorded[i]->pos;
        e->draft_anchor[b->n] = p->recorded[i]->ids[0];
        e->draft_draw[b->n] = sample_draw_params(&a->r.sampling);
        e->draft_out_pos[b->n++] = (uint32_t)(p->recorded[i]->pos + 1 - a->r.n_prompt);
    }
    if (b->n == 0 || b->gamma == 0)
        return FST_OK;
    if (e->dr.behind)
        FST_TRY(draft_catch_up(e, b->n));
    FST_TRY(model_draft(e->model, &e->kv, b));
    for (int i = 0, k = 0; i < n; i++) {
        const struct record_span *x = p->recorded[i];
        if (!x->verify)
            continue;
        for (int64_t j = 1; j < FST_MIN(x->n_rows, s->block + 1); j++) {
            int32_t now = e->draft_ids[(int64_t)k * b->gamma + j - 1];
            p->out->drafts++;
            if (now != x->ids[j])
                differ(p->out->first, &p->out->differing,
                       "step %lld, request %llu, position %lld: draft %d was proposed, now %d",
                       (long long)s->number, (unsigned long long)p->rec->request[x->request].number,
                       (long long)(x->pos + j), x->ids[j], now);
        }
        k++;
    }
    return FST_OK;
}

static enum fst_status run_step(struct replay *p, const struct record_step *s)
{
    fst_engine *e = p->e;
    struct rows rows;
    int n = 0, n_inject = 0;
    int64_t n_rows = 0, n_logits = 0;

    for (size_t i = 0; i < s->n_spans; i++) {
        const struct record_span *x = &s->span[i];
        if (x->request < 0 || !x->ids) {
            p->out->left_out++;
            continue;
        }
        struct actor *a = &p->actor[x->request];
        n_rows += x->n_rows;
        n_logits += x->n_drawn;
        if (n >= e->max_running || n_rows > e->limits.max_rows || n_logits > e->limits.max_logits)
            return fst_error(FST_EBUDGET, "step %lld is larger than this engine's",
                             (long long)s->number);
        if (place(p, s, a, x->pos, x->n_rows) < 0)
            return fst_error(FST_EBUDGET, "step %lld: no room for position %lld of request %llu",
                             (long long)s->number, (long long)x->pos,
                             (unsigned long long)p->rec->request[x->request].number);
        p->span_actor[n] = x->request;
        p->recorded[n] = x;
        p->span[n++] = (struct rerun_span){.r = &a->r,
                                           .slot = a->slot,
                                           .pos = x->pos,
                                           .ids = x->ids,
                                           .n_rows = (int)x->n_rows,
                                           .n_logits = (int)x->n_drawn,
                                           .n_ruled = (int)FST_MIN(x->n_drawn, x->n_commit)};
    }
    if (n == 0)
        return FST_OK;
    if (p->drafts)
        FST_TRY(redraft(p, s, n));
    FST_TRY(rerun_step(e, p->span, n, &rows));
    p->out->steps++;
    p->out->spans += (uint64_t)n;
    for (int i = 0; i < n; i++) {
        const struct record_span *x = p->recorded[i];
        struct actor *a = &p->actor[p->span_actor[i]];
        for (int k = 0; k < x->n_drawn; k++)
            compare_row(p, s, x, k, e->span_logit[i] + k);
        came_to(p, a, x->pos + x->n_commit);
        n_inject = name_rows(p, i, x->n_commit, n_inject);
    }
    return inject(p, &rows, n_inject);
}

/* Requests that are not in later steps leave. */
static void close_ended(struct replay *p, uint64_t step)
{
    for (size_t i = 0; i < p->rec->n_requests; i++)
        if (p->actor[i].slot && p->rec->request[i].last_step <= step)
            close_actor(p, &p->actor[i]);
}

/* ------------------------------------------------------------------ what was audited */

static void compare_audited(struct replay *p, const struct record_request *q, int64_t at, int i)
{
    struct fst_replay_report *o = p->out;
    const struct record_drawn *was = &q->audited[at];
    const struct sample_row *now = &p->e->sample[i];
    uint64_t hash = p->e->recorder.hash[i];
    unsigned long long request = (unsigned long long)q->number;

    o->audited_rows++;
    if (was->hash && hash && was->hash != hash)
        differ(o->audited_first, &o->audited_differing,
               "request %llu, token %lld: hash of the logits was %016llx, is %016llx", request,
               (long long)at, (unsigned long long)was->hash, (unsigned long long)hash);
    else if (was->forced || !p->same_draws)
        return;
    else if (now->id != q->ids[q->n_prompt + at])
        differ(o->audited_first, &o->audited_differing,
               "request %llu, token %lld: %d was drawn, now %d", request, (long long)at,
               q->ids[q->n_prompt + at], now->id);
    else if (memcmp(&was->logprob, &now->logprob, sizeof(float)) != 0)
        differ(o->audited_first, &o->audited_differing,
               "request %llu, token %lld: log-probability was %.9g, is %.9g", request,
               (long long)at, (double)was->logprob, (double)now->logprob);
}

static enum fst_status run_audited(struct replay *p, size_t index)
{
    static const struct record_step nobody = {0};
    const struct record_request *q = &p->rec->request[index];
    struct actor *a = &p->actor[index];
    fst_engine *e = p->e;
    int64_t first_out = q->n_prompt - 1, last = first_out + q->n_audited; /* rows below it */
    int most = FST_MIN(e->limits.prefill_rows, e->limits.max_logits);

    if (!q->audited)
        return FST_OK;
    p->out->audited_requests++;
    close_actor(p, a);
    if (place(p, &nobody, a, 0, last) < 0)
        return fst_error(FST_EBUDGET, "no room for request %llu", (unsigned long long)q->number);
    while (a->n_committed < last) {
        struct rows rows;
        int n = (int)FST_MIN((int64_t)most, last - a->n_committed);
        int n_logits =
            (int)FST_MIN((int64_t)n, FST_MAX((int64_t)0, a->n_committed + n - first_out));
        struct rerun_span s = {.r = &a->r,
                               .slot = a->slot,
                               .pos = a->n_committed,
                               .ids = q->ids + a->n_committed,
                               .n_rows = n,
                               .n_logits = n_logits,
                               .n_ruled = n_logits};
        FST_TRY(rerun_step(e, &s, 1, &rows));
        came_to(p, a, a->n_committed + n);
        for (int i = 0; i < n_logits; i++)
            compare_audited(p, q, a->n_committed - n_logits + i - first_out, i);
    }
    close_actor(p, a);
    return FST_OK;
}

/* ------------------------------------------------------------------ the whole of it */

static enum fst_status make_rules(struct replay *p, struct actor *a, const struct record_request *q)
{
    struct fst_request_opts o = {.sampling = {.presence_penalty = q->presence,
                                              .frequency_penalty = q->frequency,
                                              .repetition_penalty = q->repetition},
                                 .logit_bias = q->bias,
                                 .n_logit_bias = (size_t)q->n_bias};
    int vocab = p->e->info.vocab_size;

    for (int64_t i = 0; i < q->n_bias; i++)
        if (q->bias[i].id >= vocab)
            return fst_error(FST_EFORMAT, "request %llu of the record: id %d is out of range",
                             (unsigned long long)q->number, q->bias[i].id);
    if (!rules_wanted(&o, NULL))
        return FST_OK;
    a->rules = mem_alloc(rules_bytes(&o, NULL, vocab, q->n_prompt, q->n_ids - q->n_prompt));
    if (!a->rules)
        return fst_error(FST_ENOMEM, "replay: no memory");
    rules_init(&a->r.rules, &o, NULL, vocab, q->n_prompt, q->n_ids - q->n_prompt, a->rules);
    return FST_OK;
}

static enum fst_status make_actors(struct replay *p)
{
    const struct record *rec = p->rec;
    size_t n = (size_t)p->e->max_running;

    p->actor = mem_calloc(rec->n_requests + 1, sizeof *p->actor);
    p->span = mem_calloc(n, sizeof *p->span);
    p->span_actor = mem_calloc(n, sizeof *p->span_actor);
    p->recorded = mem_calloc(n, sizeof *p->recorded);
    if (!p->actor || !p->span || !p->span_actor || !p->recorded)
        return fst_error(FST_ENOMEM, "replay: no memory");
    for (size_t i = 0; i < rec->n_requests; i++) {
        const struct record_request *q = &rec->request[i];
        fst_request *r = &p->actor[i].r;
        if (q->n_end_ids > ENGINE_END_IDS || q->n_ids > p->e->context_length)
            return fst_error(FST_EFORMAT, "request %llu of the record is larger than its engine",
                             (unsigned long long)q->number);
        for (int64_t k = 0; k < q->n_ids; k++)
            if (q->ids[k] >= p->e->info.vocab_size)
                return fst_error(FST_EFORMAT, "request %llu of the record: id %d is out of range",
                                 (unsigned long long)q->number, q->ids[k]);
        r->ids = q->ids;
        r->n_prompt = q->n_prompt;
        r->sampling = q->sampling;
        r->o.min_new_tokens = q->min_new;
        memcpy(r->end_ids, q->end_ids, (size_t)q->n_end_ids * sizeof *r->end_ids);
        r->n_end_ids = (int)q->n_end_ids;
        FST_TRY(make_rules(p, &p->actor[i], q));
    }
    return FST_OK;
}

static enum fst_status open_engine(struct replay *p, const struct fst_replay_opts *o)
{
    const struct record *rec = p->rec;
    struct fst_engine_opts eo = {.model_dir = o->model_dir ? o->model_dir : rec->model,
                                 .device = o->device ? o->device : rec->device,
                                 .kernels = o->kernels ? o->kernels : rec->kernels,
                                 .precision = rec->precision,
                                 .index_keys = rec->index_keys,
                                 .spec_algorithm = rec->algorithm,
                                 .threads = o->threads,
                                 .max_running_requests = (int)rec->max_running,
                                 .context_length = rec->context_length,
                                 .max_total_tokens = rec->max_total_tokens,
                                 .chunked_prefill_size = (int)rec->chunk,
                                 .disable_prefix_cache = true,
                                 .masked_ids = rec->masked_ids,
                                 .n_masked_ids = (size_t)rec->n_masked_ids};

    *(strcmp(rec->algorithm, "mtp") ? &eo.spec_block_size : &eo.spec_num_steps) = (int)rec->gamma;
    if (strcmp(rec->precision, "reference") != 0)
        eo.kv_layout = rec->kv_layout;
    else
        eo.index_keys = NULL;
    for (int64_t i = 0; i < rec->n_masked_ids; i++)
        if (rec->masked_ids[i] >= INT32_MAX / 2)
            return fst_error(FST_EFORMAT, "masked_ids[%lld] of the record is out of range",
                             (long long)i);
    FST_TRY(engine_prepare(&p->e, &eo));
    if (weights_digest(p->e->weights) != rec->weights)
        return fst_error(FST_EINVAL,
                         "%s holds other weights than the record was made with (%016llx, not "
                         "%016llx)",
                         eo.model_dir, (unsigned long long)weights_digest(p->e->weights),
                         (unsigned long long)rec->weights);
    return make_actors(p);
}

static enum fst_status run(struct replay *p, const struct fst_replay_opts *o)
{
    const struct record *rec = p->rec;
    struct fst_replay_report *out = p->out;

    snprintf(out->reason, sizeof out->reason, "%s", rec->reason);
    snprintf(out->detail, sizeof out->detail, "%s", rec->detail);
    snprintf(out->time, sizeof out->time, "%s", rec->time);
    snprintf(out->debug_hooks, sizeof out->debug_hooks, "%s", rec->debug_hooks);
    p->same_draws = !strcmp(rec->accept, "coupled") && !strstr(rec->debug_hooks, "simulate");
    FST_TRY(open_engine(p, o));
    p->drafts = p->e->drafting && !strstr(rec->debug_hooks, "drafter") &&
                !strstr(rec->debug_hooks, "reject-at");
    for (size_t i = 0; i < rec->n_steps; i++) {
        FST_TRY(run_step(p, &rec->step[i]));
        close_ended(p, i);
    }
    for (size_t i = 0; i < rec->n_requests; i++)
        FST_TRY(run_audited(p, i));
    return FST_OK;
}

enum fst_status fst_replay(const char *path, const struct fst_replay_opts *o,
                           struct fst_replay_report *out)
{
    struct record rec;
    struct replay p = {.rec = &rec, .out = out};

    *out = (struct fst_replay_report){0};
    FST_TRY(record_read(&rec, path));
    enum fst_status rc = run(&p, o);
    fst_engine_close(p.e);
    for (size_t i = 0; p.actor && i < rec.n_requests; i++)
        mem_free(p.actor[i].rules);
    mem_free(p.actor);
    mem_free(p.span);
    mem_free(p.span_actor);
    mem_free(p.recorded);
    record_release(&rec);
    return rc;
}
