#include "engine/audit.h"

#include "base/log.h"
#include "base/rng.h"
#include "engine/engine_int.h"
#include "engine/rerun.h"

enum fst_status audit_open(struct audit *a, const struct fst_engine_opts *o, bool simulated)
{
    if (!(o->audit_share >= 0 && o->audit_share <= 1))
        return fst_error(FST_EINVAL, "--audit-share must be in [0, 1], got %g", o->audit_share);
    if (!(o->audit_time >= 0 && o->audit_time <= 1))
        return fst_error(FST_EINVAL, "--audit-time must be in (0, 1], got %g", o->audit_time);
    a->share = simulated ? 0 : o->audit_share;
    a->time = o->audit_time > 0 ? o->audit_time : 0.01;
    a->seed = o->has_random_seed ? o->random_seed : rng_os();
    a->max_bytes = FST_MIN((uint64_t)AUDIT_QUEUE_BYTES, mem_available_bytes() / 32);
    a->open_ns = engine_now_ns();
    return FST_OK;
}

bool audit_choose(struct audit *a)
{
    uint64_t s = a->seed + atomic_fetch_add(&a->n_asked, 1);
    return a->share > 0 && (double)(rng_splitmix(&s) >> 11) * 0x1p-53 < a->share;
}

void audit_keep(fst_engine *e, fst_request *r, int64_t at, int row)
{
    if (at < r->n_audit)
        r->audit[at] = (struct audit_row){.hash = e->recorder.hash[row],
                                          .logprob = e->sample[row].logprob,
                                          .forced = e->sample[row].forced};
}

static void count_waiting(struct audit *a)
{
    a->stats.waiting = a->n;
}

void audit_offer(fst_engine *e, fst_request *r, enum fst_finish finish)
{
    struct audit *a = &e->audit;

    if (!r->n_audit || r->n_known == r->n_prompt || finish == FST_FINISH_ERROR)
        return;
    if (a->n == AUDIT_QUEUE || a->bytes + r->block_bytes > a->max_bytes) {
        a->stats.dropped++;
        return;
    }
    atomic_fetch_add(&r->refs, 1);
    a->bytes += r->block_bytes;
    a->queue[a->n++] = r;
    count_waiting(a);
}

/* The first of the queue is done with. */
static void pop(fst_engine *e)
{
    struct audit *a = &e->audit;
    fst_request *r = a->queue[0];

    if (a->slot)
        kv_slot_close(&e->kv, a->slot);
    a->slot = a->tries = 0;
    a->bytes -= r->block_bytes;
    memmove(a->queue, a->queue + 1, (size_t)(--a->n) * sizeof(a->queue[0]));
    masks_leave(&r->masks);
    request_unref(r);
    count_waiting(a);
}

void audit_yield(fst_engine *e)
{
    struct audit *a = &e->audit;

    if (!a->slot)
        return;
    kv_slot_close(&e->kv, a->slot);
    a->slot = 0;
    if (++a->tries < AUDIT_TRIES)
        return;
    a->stats.abandoned++;
    pop(e);
}

void audit_close(fst_engine *e)
{
    while (e->audit.n > 0)
        pop(e);
}

/* ------------------------------------------------------------------ comparing */

/* Rows 0 .. n-1 of the request to run: prompt and all but the last token. */
static int64_t n_rows_of(const fst_request *r)
{
    return r->n_known - 1;
}

static void mismatch(fst_engine *e, fst_request *r, int64_t at, const char *what)
{
    struct audit *a = &e->audit;
    char detail[256], path[4096];

    a->stats.mismatches++;
    a->stats.drafting_off = true;
    snprintf(detail, sizeof detail, "request %llu, token %lld (position %lld): %s differs",
             (unsigned long long)r->number, (long long)at, (long long)(r->n_prompt + at), what);
    struct recorder_why why = {.reason = "audit", .detail = detail, .audited = r};
    if (recorder_write(e, &why, path, sizeof path) < 0)
        log_error("record", "not written: %s", fst_error_text());
    log_error("audit mismatch", "%s; drafting is off until the next start%s%s", detail,
              path[0] ? "; record=" : "", path);
    pop(e);
}

/* What row i of the last draw says about token `at`; NULL: the same as it was. */
static const char *difference(const fst_engine *e, const fst_request *r, int64_t at, int i)
{
    const struct audit_row *kept = &r->audit[at];
    const struct sample_row *now = &e->sample[i];
    uint64_t hash = e->recorder.hash[i];

    if (kept->hash && hash && kept->hash != hash)
        return "hash of the logits";
    if (kept->forced ||
        reject_applies(
            e, r)) /* draws depend on the rounds, and their log-probabilities are of other ids */
        return NULL;
    if (now->id != r->ids[r->n_prompt + at])
        return "id";
    return memcmp(&kept->logprob, &now->logprob, sizeof(float)) ? "log-probability" : NULL;
}

/* A place to compute in, if nobody misses it. */
static bool place(fst_engine *e, const fst_request *r)
{
    struct audit *a = &e->audit;
    int64_t need = div_up(n_rows_of(r), KERN_PAGE);

    if (need > e->kv.n_free_pages + e->kv.spec.n_pages / 8 || kv_room(&e->kv, need) < 0 ||
        kv_slot_open(&e->kv, &a->slot) < 0)
        return false;
    FST_ASSERT(kv_reserve(&e->kv, a->slot, n_rows_of(r)) == FST_OK);
    a->n_done = 0;
    return true;
}

/* How many rows a slice takes. */
static int slice_rows(const fst_engine *e, int64_t left)
{
    const struct audit *a = &e->audit;
    double rows = a->row_ns > 0 ? AUDIT_SLICE_NS / a->row_ns : 1;
    int most = FST_MIN(e->limits.max_rows, e->limits.max_logits);

    return (int)FST_MIN((double)FST_MIN((int64_t)most, left), FST_MAX(rows, 1));
}

static void slice(fst_engine *e)
{
    struct audit *a = &e->audit;
    fst_request *r = a->queue[0];
    struct rows rows;

    if (!a->slot && !place(e, r)) {
        a->stats.abandoned++;
        pop(e);
        return;
    }
    int64_t start = engine_now_ns(), first_out = r->n_prompt - 1;
    int n = slice_rows(e, n_rows_of(r) - a->n_done);
    int n_logits = (int)FST_MIN((int64_t)n, FST_MAX(a->n_done + n - first_out, 0));
    struct rerun_span span = {.r = r,
                              .slot = a->slot,
                              .pos = a->n_done,
                              .ids = r->ids + a->n_done,
                              .n_rows = n,
                              .n_logits = n_logits,
                              .n_ruled = n_logits};
    if (rerun_step(e, &span, 1, &rows) < 0) {
        log_error("audit", "%s", fst_error_text());
        a->stats.abandoned++;
        pop(e);
        return;
    }
    a->n_done += n;
    kv_commit(&e->kv, a->slot, a->n_done);
    double row_ns = (double)(engine_now_ns() - start) / n;
    a->row_ns = a->row_ns > 0 ? 0.75 * a->row_ns + 0.25 * row_ns : row_ns;
    a->stats.tokens += (uint64_t)n;
    for (int i = 0; i < n_logits; i++) {
        int64_t at = a->n_done - n_logits + i - first_out;
        const char *what = at < r->n_audit ? difference(e, r, at, i) : NULL;
        if (what) {
            mismatch(e, r, at, what);
            return;
        }
    }
    if (a->n_done < n_rows_of(r) && a->n_done - first_out < r->n_audit)
        return;
    a->stats.equal++;
    pop(e);
}

/* ------------------------------------------------------------------ time */

/* What may be spent now; negative: so much too much was. */
static int64_t allowance(struct audit *a, int64_t now)
{
    int64_t may = (int64_t)(a->time * (double)(now - a->open_ns)) - a->spent_base_ns - a->spent_ns;

    if (may > AUDIT_BURST_NS)
        a->spent_base_ns += may - AUDIT_BURST_NS;
    return FST_MIN(may, (int64_t)AUDIT_BURST_NS);
}

static void wait_until(struct door *d, int64_t ns)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    ns = FST_MIN(FST_MAX(ns, 1000000), 1000000000) + until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(&d->work, &d->lock, &until);
}

bool audit_idle(fst_engine *e)
{
    struct audit *a = &e->audit;
    int64_t start = engine_now_ns(), may = allowance(a, start);

    if (a->n == 0 || e->n_running > 0 || e->n_loading > 0 || e->wait_first)
        return false;
    if (may < 0) {
        wait_until(e->door, (int64_t)((double)-may / a->time));
        return true;
    }
    pthread_mutex_unlock(&e->door->lock);
    slice(e);
    a->spent_ns += engine_now_ns() - start;
    a->stats.ns += (uint64_t)(engine_now_ns() - start);
    e->stats.audit = a->stats;
    pthread_mutex_lock(&e->door->lock);
    e->door->stats.audit = e->stats.audit;
    e->door->stats.records = e->stats.records;
    return true;
}
