/* step.c - the engine's thread: take requests in, draft, plan, run the model, accept, deliver.
 *
 * One turn of the loop is one step of the model.  Nothing here allocates.  The order within a turn:
 *   intake   new and cancelled requests, deadlines; what tiers have brought or copied
 *   admit    slots and pages for waiting requests, first come first served
 *   decide   who shall draft (draft.c)
 *   room     pages for this step's rows; when they run out the youngest request gives its place
 *            back and waits at the front (its tokens are kept and computed again: same result)
 *   draft    blocks, and how much of them is verified (draft.c)
 *   plan     spans of the step (sched)
 *   forward  the model
 *   verify   draws, stops, commit, injection (verify.c)
 *   deliver  publish to the readers */
#include "engine/engine_int.h"

static void count_end(fst_engine *e, enum fst_finish finish)
{
    if (finish == FST_FINISH_ABORT)
        e->stats.aborted++;
    else if (finish == FST_FINISH_ERROR)
        e->stats.failed++;
    else
        e->stats.finished++;
}

/* What statistics say of where requests are; door->lock held. */
static void publish_places(fst_engine *e)
{
    struct fst_engine_stats *s = &e->door->stats;

    s->running = e->n_running + e->n_loading;
    s->loading = e->n_loading;
    s->slots_used = e->kv.spec.n_slots - e->kv.n_free_slots - (e->audit.slot > 0);
    s->kv_tokens_used = (e->kv.spec.n_pages - e->kv.n_free_pages - e->kv.n_idle_pages) * KERN_PAGE;
    if (e->audit.slot)
        s->kv_tokens_used -= e->kv.slots[e->audit.slot].n_pages * KERN_PAGE;
    s->finished = e->stats.finished;
    s->aborted = e->stats.aborted;
    s->failed = e->stats.failed;
}

/* `change` requests entered the waiting list, which is counted at once: so is where they came from or
 * went to, since a reader in between would find them nowhere. */
static void count_waiting(fst_engine *e, int change)
{
    e->line_moved |= change != 0;
    pthread_mutex_lock(&e->door->lock);
    e->door->n_waiting += change;
    publish_places(e);
    pthread_mutex_unlock(&e->door->lock);
}

static void close_slot(fst_engine *e, fst_request *r)
{
    prefix_let_go(e, r);
    if (r->slot)
        kv_slot_close(&e->kv, r->slot);
    r->slot = 0;
}

/* Take running request i out of the engine: slot, pages, place in the list, statistics. */
static void retire(fst_engine *e, int i, enum fst_finish finish)
{
    fst_request *r = e->running[i];

    close_slot(e, r);
    count_end(e, finish);
    audit_offer(e, r, finish);
    memmove(e->running + i, e->running + i + 1,
            (size_t)(e->n_running - i - 1) * sizeof *e->running);
    e->n_running--;
}

static void end_running(fst_engine *e, int i, enum fst_finish finish, enum fst_status status,
                        const char *error)
{
    fst_request *r = e->running[i];

    if (finish != FST_FINISH_ERROR) /* a stop string, perhaps: the next turn goes on behind it */
        prefix_keep(e, r, r->n_committed, true);
    retire(e, i, finish);
    request_finish(r, finish, -1, status, error);
}

static void end_waiting(fst_engine *e, fst_request *r, enum fst_finish finish,
                        enum fst_status status, const char *error)
{
    count_end(e, finish);
    count_waiting(e, -1);
    request_finish(r, finish, -1, status, error);
}

/* ------------------------------------------------------------------ intake */

/* Is there nothing to do before somebody calls?  Who has no page for his row, or no place to begin with, may
 * have to wait for a tier. */
static bool idle(const fst_engine *e)
{
    return !e->door->kick && !e->quit && e->n_running == e->n_sitting &&
           (!e->wait_first || e->n_loading > 0 || e->short_of_pages);
}

/* Until somebody calls; who waits for a tier has a deadline to be looked at. */
static void sleep_until_called(fst_engine *e)
{
    enum { TIER_WAIT_NS = 20000000 };
    struct door *d = e->door;
    struct timespec until;

    if (!e->n_loading && !e->n_sitting && !e->wait_first) {
        pthread_cond_wait(&d->work, &d->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TIER_WAIT_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    d->kick |= pthread_cond_timedwait(&d->work, &d->lock, &until) != 0;
}

/* Move new requests to the waiting list; sleep while there is nothing at all to do. */
static bool intake(fst_engine *e)
{
    struct door *d = e->door;
    fst_request *first, *last;
    bool quit, flush;

    pthread_mutex_lock(&d->lock);
    while (idle(e)) {
        if (!audit_idle(e))
            sleep_until_called(e);
        e->paused = true;
        e->dr.turn_ns = 0;
    }
    d->kick = false;
    first = d->first;
    last = d->last;
    d->first = d->last = NULL;
    quit = e->quit;
    flush = d->flush;
    d->flush = false;
    pthread_mutex_unlock(&d->lock);
    if (flush)
        prefix_flush(e);
    if (first) {
        e->line_moved = true; /* they were told where they stood when they came */
        if (e->wait_last)
            e->wait_last->next = first;
        else
            e->wait_first = first;
        e->wait_last = last;
    }
    if (e->wait_first)
        audit_yield(e);
    return !quit;
}

static void drop_ended(fst_engine *e)
{
    int64_t now = engine_now_ns();
    fst_request **link = &e->wait_first;

    e->wait_last = NULL;
    while (*link) {
        fst_request *r = *link;
        bool gone = atomic_load(&r->cancel);
        if (!gone && now < r->deadline_ns) {
            e->wait_last = r;
            link = &r->next;
            continue;
        }
        *link = r->next;
        r->next = NULL;
        if (gone)
            end_waiting(e, r, FST_FINISH_ABORT, FST_ECANCELED, "");
        else
            end_waiting(e, r, FST_FINISH_ERROR, FST_ETIMEOUT, "Request waiting timeout reached.");
    }
    for (int i = 0; i < e->n_loading; i++) /* they end when the tier has let go of their slots */
        if (atomic_load(&e->loading[i]->cancel) || now >= e->loading[i]->deadline_ns)
            prefix_stop_load(e, e->loading[i]);
    for (int i = e->n_running - 1; i >= 0; i--) {
        if (atomic_load(&e->running[i]->cancel))
            end_running(e, i, FST_FINISH_ABORT, FST_ECANCELED, "");
        else if (now >= e->running[i]->deadline_ns)
            end_running(e, i, FST_FINISH_ERROR, FST_ETIMEOUT, "request timeout reached");
    }
}

/* ------------------------------------------------------------------ admit, room */

static bool decoding(const fst_request *r)
{
    return r->n_known > r->n_prompt && r->n_known - r->n_committed == 1;
}

/* In a slot, with its pages. */
static void set_running(fst_engine *e, fst_request *r)
{
    r->n_written = r->n_committed;
    r->n_draft = 0;
    r->sits = false;
    e->running[e->n_running++] = r;
}

static void back_to_line(fst_engine *e, fst_request *r)
{
    close_slot(e, r);
    r->n_committed = 0;
    r->n_loads = 0;
    r->hastened = false;
    r->next = e->wait_first;
    e->wait_first = r;
    if (!e->wait_last)
        e->wait_last = r;
    count_waiting(e, 1);
}

static void end_loading(fst_engine *e, fst_request *r, enum fst_finish finish,
                        enum fst_status status, const char *error)
{
    close_slot(e, r);
    count_end(e, finish);
    count_waiting(e, 0);
    request_finish(r, finish, -1, status, error);
}

/* Does a step have room for more rows of prompts than those that run fill it with? */
static bool has_row(const fst_engine *e)
{
    int64_t left = e->limits.prefill_rows;

    for (int i = 0; i < e->n_running; i++)
        if (decoding(e->running[i]))
            left = FST_MIN(left, e->limits.prefill_rows_while_decoding);
    for (int i = 0; i < e->n_running; i++)
        if (!decoding(e->running[i]))
            left -= e->running[i]->n_known - e->running[i]->n_committed;
    return left > 0;
}

/* Who has what a tier had for him runs, or asks for less, or leaves. */
static void end_loads(fst_engine *e)
{
    int n = e->n_loading;
    bool wanted = n > 0 && has_row(e);

    e->n_loading = 0;
    for (int i = 0; i < n; i++) {
        fst_request *r = e->loading[i];
        if (!prefix_loaded(e, r)) {
            prefix_wait_load(e, r, wanted);
            e->loading[e->n_loading++] = r;
            continue;
        }
        prefix_end_load(e, r);
        if (atomic_load(&r->cancel)) {
            end_loading(e, r, FST_FINISH_ABORT, FST_ECANCELED, "");
            continue;
        }
        if (engine_now_ns() >= r->deadline_ns) {
            end_loading(e, r, FST_FINISH_ERROR, FST_ETIMEOUT, "request timeout reached");
            continue;
        }
        enum fst_status rc = prefix_place(e, r, r->slot);
        if (rc == FST_EAGAIN)
            e->loading[e->n_loading++] = r;
        else if (rc == FST_OK)
            set_running(e, r);
        else
            back_to_line(e, r);
    }
}

/* Does r wait for another one's prompt?  It will find that kept, if anything is. */
static bool held_back(const fst_engine *e, fst_request *r)
{
    fst_request *a = r->after;

    if (!a)
        return false;
    if (e->prefix && !a->ended && a->n_known == a->n_prompt)
        return true;
    r->after = NULL;
    request_unref(a);
    return false;
}

/* The first in line who is not held back, and who is before him; NULL. */
static fst_request *first_in_line(fst_engine *e, fst_request **before)
{
    *before = NULL;
    for (fst_request *r = e->wait_first; r; r = r->next) {
        if (!held_back(e, r))
            return r;
        *before = r;
    }
    return NULL;
}

static void admit(fst_engine *e)
{
    fst_request *r, *before;

    while (e->n_running + e->n_loading < e->max_running && (r = first_in_line(e, &before))) {
        int slot, n = e->n_running + e->n_loading;
        /* One spare page for each running request, so that an admission does not at once push
         * somebody out again. */
        int64_t need = div_up(r->n_known, KERN_PAGE) + n;
        enum fst_status rc;

        if (n > 0 && kv_room(&e->kv, need) < 0)
            return;
        if (kv_slot_open(&e->kv, &slot) < 0)
            return;
        rc = prefix_place(e, r, slot);
        if (rc < 0 && rc != FST_EAGAIN) {
            kv_slot_close(&e->kv, slot);
            /* submit clamps to what one request can hold */
            FST_ASSERT(e->n_running > 0 || prefix_busy(e));
            e->short_of_pages |= e->n_running == 0;
            return;
        }
        *(before ? &before->next : &e->wait_first) = r->next;
        if (e->wait_last == r)
            e->wait_last = before;
        r->next = NULL;
        r->slot = slot;
        if (!r->admit_ns)
            r->admit_ns = engine_now_ns();
        if (rc == FST_EAGAIN)
            e->loading[e->n_loading++] = r;
        else
            set_running(e, r);
        count_waiting(e, -1);
    }
}

/* Tell those that are still in line where they stand. */
static void number_line(fst_engine *e)
{
    size_t place = 0;

    if (!e->line_moved)
        return;
    e->line_moved = false;
    for (fst_request *r = e->wait_first; r; r = r->next)
        atomic_store(&r->place, ++place);
    for (int i = 0; i < e->n_running; i++)
        atomic_store(&e->running[i]->place, 0);
    for (int i = 0; i < e->n_loading; i++)
        atomic_store(&e->loading[i]->place, 0);
}

/* Running request i goes back to the front of the line. */
static void retract(fst_engine *e, int i)
{
    fst_request *r = e->running[i];

    memmove(e->running + i, e->running + i + 1, (size_t)(--e->n_running - i) * sizeof *e->running);
    if (r->due)
        request_publish(r);
    r->due = false;
    e->stats.retracted++;
    /* What it has computed stays as long as its pages are not needed, or goes to a tier. */
    prefix_keep(e, r, r->n_committed, true);
    back_to_line(e, r);
}

static void make_room(fst_engine *e)
{
    for (int i = e->n_running - 1; i >= 0; i--)
        if (debug_retracts(e, e->running[i]))
            retract(e, i);
    e->n_sitting = 0;
    for (int i = 0; i < e->n_running; i++) {
        fst_request *r = e->running[i];
        r->sits = false;
        /* Drafts are a luxury, the anchor is not: nobody loses his place for a draft.  The oldest
         * request always fits, but for what tiers have locked, so one that goes itself had others before
         * it; what is locked comes back soon, and is waited for rather than a place lost. */
        while (kv_reserve(&e->kv, r->slot, r->n_known + r->n_draft) < 0) {
            bool last = e->n_running - 1 == i;
            e->short_of_pages = true;
            if (r->n_draft > 0) {
                r->n_draft = 0;
                r->skip = FST_SPEC_SKIP_PAGES;
                continue;
            }
            if (last && prefix_busy(e)) {
                r->sits = true;
                e->n_sitting++;
                break;
            }
            FST_ASSERT(!last || i > 0);
            retract(e, e->n_running - 1); /* the youngest */
            if (last)
                break;
        }
    }
}

/* ------------------------------------------------------------------ plan and forward */

static void plan(fst_engine *e, struct step *step)
{
    int n = 0;

    for (int i = 0; i < e->n_running; i++) {
        fst_request *r = e->running[i];
        if (r->sits)
            continue;
        e->items[n++] = (struct sched_item){.slot = r->slot,
                                            .n_known = r->n_known,
                                            .n_committed = r->n_committed,
                                            .n_draft = r->n_draft,
                                            .n_stop = prefix_stop(e, r),
                                            .decoding = request_decoding(r),
                                            .wants_logits = r->max_new > 0,
                                            .wants_all_logits = request_scores_rows(r)};
        e->slot_request[r->slot] = i;
    }
    sched_plan(&e->limits, e->items, n, e->spans, step);
}

/* Resolve the step's rows from slot state: ids, positions; and the rows that give logits. */
static int resolve(fst_engine *e, const struct step *step, struct rows *rows)
{
    int row = 0, n_logits = 0;

    for (int s = 0; s < step->n_spans; s++) {
        const struct step_span *span = &step->span[s];
        const fst_request *r = e->running[e->slot_request[span->slot]];
        e->span_request[s] = e->running[e->slot_request[span->slot]];
        e->span_first[s] = row;
        e->span_before[s] = r->n_committed;
        e->span_logit[s] = n_logits;
        for (int i = 0; i < span->n_rows; i++, row++) {
            int64_t pos = r->n_committed + span->offset + i;
            e->row_slot[row] = span->slot;
            e->row_pos[row] = (int32_t)pos;
            e->row_id[row] = r->ids[pos];
            e->row_span[row] = s;
            if (span->logits == STEP_LOGITS_ALL ||
                (span->logits == STEP_LOGITS_LAST && i == span->n_rows - 1))
                e->logit_row[n_logits++] = row;
        }
    }
    e->span_first[step->n_spans] = row;
    FST_ASSERT(row == step->n_rows);
    *rows = (struct rows){.n_rows = row,
                          .n_spans = step->n_spans,
                          .slot = e->row_slot,
                          .pos = e->row_pos,
                          .id = e->row_id,
                          .span = e->row_span,
                          .span_first = e->span_first,
                          .pages = e->kv.pages,
                          .page_stride = e->kv.page_stride};
    return n_logits;
}

/* ------------------------------------------------------------------ deliver */

static void copy_stats(fst_engine *e)
{
    struct door *d = e->door;

    pthread_mutex_lock(&d->lock);
    if (d->reset_spec) {
        d->reset_spec = false;
        draft_reset_stats(e);
    }
    prefix_stats(e);
    e->stats.audit = e->audit.stats;
    e->stats.requests = d->stats.requests;
    e->stats.waiting = d->n_waiting;
    d->stats = e->stats;
    publish_places(e);
    pthread_mutex_unlock(&d->lock);
}

static void count_step(fst_engine *e, int64_t start_ns, const struct step *step)
{
    int64_t now = engine_now_ns();
    uint64_t took = (uint64_t)(now - start_ns);
    bool prefill = false, verify = false, decode = false, ended = false;
    int prompt_rows = 0;
    struct model_graphs graphs = model_graphs_of(e->model);

    for (int s = 0; s < step->n_spans; s++) {
        prefill |= step->span[s].kind == STEP_PREFILL;
        prompt_rows += step->span[s].kind == STEP_PREFILL ? step->span[s].n_rows : 0;
        verify |= step->span[s].kind == STEP_VERIFY;
        decode |= step->span[s].kind != STEP_PREFILL;
        ended |= e->outcome[s].finish != FST_FINISH_NONE;
    }
    draft_learn(e, step, now, ended);
    sched_stall_saw(&e->stall, prompt_rows, step->n_rows - prompt_rows, (double)took * 1e-9);
    e->stats.steps++;
    e->stats.graphs = graphs.held;
    e->stats.graph_launches = graphs.replayed;
    e->stats.step_ns += took;
    e->stats.draft_ns += (uint64_t)e->step_draft_ns;
    took -= FST_MIN(took, (uint64_t)e->step_draft_ns);
    if (prefill) {
        e->stats.prefill_ns += took;
        e->stats.prefill_steps_n++;
    } else if (verify) {
        e->stats.verify_ns += took;
        e->stats.verify_steps_n++;
    } else {
        e->stats.decode_ns += took;
        e->stats.decode_steps_n++;
    }
    e->stats.last_step_ns = now;
    if (!decode)
        return;
    if (e->window_steps == 0)
        e->window_ns = start_ns;
    if (++e->window_steps == 40) {
        e->stats.last_decode_tok_s =
            (double)e->window_tokens / ((double)(now - e->window_ns) * 1e-9);
        e->window_steps = 0;
        e->window_tokens = 0;
    }
}

/* How long the device waited for this step, if the one before ended with a draw. */
static void count_gap(fst_engine *e)
{
    bool odd = e->sampler.odd, drew = e->sampler.drew;
    double us = 0;

    if (drew && e->drew && !e->paused && !e->drafting &&
        stream_between(&e->stream, DEVICE_MARK_END + !odd, DEVICE_MARK_BEGIN, &us) == FST_OK &&
        us > 0) {
        e->stats.gap_ns += (uint64_t)(us * 1e3);
        e->stats.gaps++;
    }
    e->drew = drew;
    e->paused = e->sampler.drew = false;
    e->sampler.odd = !odd;
}

/* New tokens of running requests to their readers: while the device works, since waking a reader takes
 * the host a few microseconds each. */
static void publish_running(fst_engine *e)
{
    for (int i = 0; i < e->n_running; i++) {
        if (e->running[i]->due)
            request_publish(e->running[i]);
        e->running[i]->due = false;
    }
}

/* Slots and statistics first, readers last: who sees the end of his request finds its slot free and
 * its tokens counted.  Who goes on is told later. */
static void deliver(fst_engine *e, const struct step *step, const struct engine_outcome *outcome)
{
    for (int s = 0; s < step->n_spans; s++)
        for (int i = 0; outcome[s].finish != FST_FINISH_NONE && i < e->n_running; i++)
            if (e->running[i] == e->span_request[s]) {
                retire(e, i, outcome[s].finish);
                break;
            }
    copy_stats(e);
    for (int s = 0; s < step->n_spans; s++) {
        fst_request *r = e->span_request[s];
        r->due = outcome[s].finish == FST_FINISH_NONE;
        if (!r->due)
            request_finish(r, outcome[s].finish, outcome[s].matched, outcome[s].status,
                           outcome[s].error);
    }
    if (!e->device || e->injecting)
        publish_running(e);
}

/* A fault of the model itself: nobody's request can go on. */
static void fail_all(fst_engine *e, enum fst_status rc)
{
    char text[256];

    snprintf(text, sizeof text, "%s", fst_error_text());
    while (e->n_running > 0)
        end_running(e, e->n_running - 1, FST_FINISH_ERROR, rc, text);
}

static void one_step(fst_engine *e)
{
    int64_t start = engine_now_ns();
    struct step step = {0};
    struct rows rows;
    float *logits = NULL;
    int n_logits;
    enum fst_status rc;

    e->step_draft_ns = 0;
    debug_step(e);
    recorder_begin(e);
    e->limits.prefill_rows_while_decoding = sched_stall_rows(&e->stall, e->limits.prefill_rows);
    draft_decide(e);
    make_room(e);
    if (e->n_running == e->n_sitting) {
        copy_stats(e);
        return;
    }
    if ((rc = draft_run(e)) < 0)
        goto fault;
    plan(e, &step);
    n_logits = resolve(e, &step, &rows);
    rc = e->debug.null_us > 0
             ? debug_forward(e, n_logits, &logits)
             : model_forward(e->model, &e->kv, &rows, e->logit_row, n_logits, &logits);
    if (rc < 0)
        goto fault;
    publish_running(e);
    if ((rc = verify_step(e, &step, &rows, logits, e->outcome)) < 0)
        goto fault;
    count_gap(e);
    count_step(e, start, &step);
    deliver(e, &step, e->outcome);
    return;
fault:
    /* What a card reports stays with its context: every later call fails alike. */
    e->stats.lost |= e->device && rc == FST_EINTERNAL;
    fail_all(e, rc);
    copy_stats(e);
}

void *engine_thread(void *arg)
{
    fst_engine *e = arg;

    while (intake(e)) {
        e->short_of_pages = false;
        e->n_sitting = 0;
        prefix_poll(e);
        drop_ended(e);
        end_loads(e);
        admit(e);
        number_line(e);
        if (e->n_running > 0)
            one_step(e);
        else
            copy_stats(e);
        prefix_post(e);
    }
    for (int i = 0; i < e->n_loading; i++)
        prefix_stop_load(e, e->loading[i]);
    while (e->n_loading > 0) {
        fst_request *r = e->loading[--e->n_loading];
        prefix_await_load(e, r);
        prefix_end_load(e, r);
        end_loading(e, r, FST_FINISH_ABORT, FST_ESHUTDOWN, "");
    }
    while (e->n_running > 0)
        end_running(e, e->n_running - 1, FST_FINISH_ABORT, FST_ESHUTDOWN, "");
    while (e->wait_first) {
        fst_request *r = e->wait_first;
        e->wait_first = r->next;
        end_waiting(e, r, FST_FINISH_ABORT, FST_ESHUTDOWN, "");
    }
    copy_stats(e);
    return NULL;
}
