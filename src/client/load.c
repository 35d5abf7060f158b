#include "client/load.h"

#include <time.h>

#include "base/clock.h"
#include "base/progress.h"

struct run;
struct flight {
    struct run *run;
    struct answer *record;
    struct http_call call;
    struct buf bytes;    /* of the request */
    struct flight *next; /* of the free ones */
    bool busy;
};

struct run {
    struct http *h;
    const struct load_opts *o;
    struct flight *flight; /* owned: (n_flights) */
    size_t n_flights, n_busy, n_done;
    struct flight *free;
    int64_t last_end_ns, tokens;
    struct progress progress;
    char what[96];
};

const char *load_path(enum answer_api api)
{
    static const char *const path[] = {"/generate", "/v1/completions", "/v1/chat/completions"};
    return path[api];
}

static double thread_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------ callbacks */

static void on_head(void *ud, int status, int64_t t_ns)
{
    struct flight *f = ud;
    answer_head(f->record, status, t_ns);
}

static void on_body(void *ud, const char *data, size_t len, int64_t t_ns)
{
    struct flight *f = ud;
    answer_bytes(f->record, data, len, t_ns);
}

static void show(struct run *r)
{
    double s = clock_seconds(clock_ns() - r->progress.start_ns);
    if (!r->o->what)
        return;
    snprintf(r->what, sizeof r->what, "%.40s  %zu under way  %.0f tok/s", r->o->what, r->n_busy,
             s > 0 ? (double)r->tokens / s : 0.0);
    progress_add(&r->progress, 1);
}

static void on_done(void *ud, enum fst_status rc, const char *why, int64_t t_ns)
{
    struct flight *f = ud;
    struct run *r = f->run;
    answer_end(f->record, rc < 0 ? why : NULL, t_ns);
    if (answer_ok(f->record))
        r->tokens += answer_output_len(f->record);
    f->busy = false;
    f->next = r->free;
    r->free = f;
    r->n_busy--;
    r->n_done++;
    r->last_end_ns = clock_ns();
    show(r);
}

/* ------------------------------------------------------------------ the run */

static enum fst_status start(struct run *r, const struct load_item *item, struct answer *record)
{
    struct flight *f = r->free;
    FST_ASSERT(f);
    buf_reset(&f->bytes);
    http_request(&f->bytes, r->h, "POST", r->o->path, r->o->key, item->body, item->len);
    if (f->bytes.failed)
        return fst_error(FST_ENOMEM, "no memory for a request");
    r->free = f->next;
    f->record = record;
    f->busy = true;
    f->call = (struct http_call){.bytes = buf_str(&f->bytes),
                                 .len = f->bytes.len,
                                 .ud = f,
                                 .on_head = on_head,
                                 .on_body = on_body,
                                 .on_done = on_done};
    r->n_busy++;
    record->start_ns = clock_ns();
    http_submit(r->h, &f->call);
    return FST_OK;
}

/* Requests that take longer than they may. */
static void end_late(struct run *r, int64_t now)
{
    int64_t most = (int64_t)(r->o->timeout_s * 1e9);
    for (size_t i = 0; most > 0 && i < r->n_flights; i++) {
        struct flight *f = &r->flight[i];
        if (f->busy && now - f->record->start_ns > most) {
            http_drop(r->h, &f->call);
            on_done(f, FST_ETIMEOUT, "no whole answer within --timeout", now);
        }
    }
}

static enum fst_status go(struct run *r, const struct load_item *item, size_t n, struct answer *out,
                          int64_t begin)
{
    enum { TURN_MS = 100 };
    size_t started = 0;
    int64_t due = begin, checked = begin;

    while (r->n_done < n) {
        int64_t now = clock_ns();
        while (started < n && now >= due && r->free) {
            FST_TRY(start(r, &item[started], &out[started]));
            started++;
            if (r->o->rate > 0)
                due += (int64_t)(1e9 * numpy_exponential(r->o->random, 1 / r->o->rate));
        }
        int64_t wait = TURN_MS;
        if (started < n && r->free)
            wait = FST_MIN(FST_MAX(div_up(due - now, 1000000), (int64_t)0), wait);
        http_turn(r->h, (int)wait);
        if (now - checked > INT64_C(100000000)) {
            end_late(r, now);
            checked = now;
        }
        if (r->o->interrupted && r->o->interrupted())
            return fst_error(FST_ECANCELED, "interrupted after %zu of %zu requests", r->n_done, n);
    }
    return FST_OK;
}

static enum fst_status prepare(struct run *r, const struct load_item *item, size_t n,
                               struct answer *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (struct answer){0};
    for (size_t i = 0; i < n; i++)
        FST_TRY(
            answer_init(&out[i], r->o->api, r->o->streams, item[i].prompt_len, item[i].wanted_len));
    r->n_flights = r->o->max_concurrency ? FST_MIN(r->o->max_concurrency, n) : n;
    r->flight = mem_calloc(r->n_flights + 1, sizeof *r->flight);
    if (!r->flight)
        return fst_error(FST_ENOMEM, "no memory for %zu requests at once", r->n_flights);
    for (size_t i = r->n_flights; i-- > 0;) {
        r->flight[i].run = r;
        r->flight[i].next = r->free;
        r->free = &r->flight[i];
    }
    return FST_OK;
}

enum fst_status load_run(struct http *h, const struct load_opts *o, const struct load_item *item,
                         size_t n, struct answer *out, double *duration_s, struct load_cost *cost)
{
    struct run r = {.h = h, .o = o};
    struct http_counts before, after;

    *duration_s = 0;
    enum fst_status rc = prepare(&r, item, n, out);
    if (rc == FST_OK) {
        if (o->what) {
            snprintf(r.what, sizeof r.what, "%.40s", o->what);
            progress_start(&r.progress, r.what, PROGRESS_ITEMS, (int64_t)n);
        }
        http_get_counts(h, &before);
        double cpu = thread_cpu_s();
        int64_t begin = clock_ns();
        rc = go(&r, item, n, out, begin);
        *duration_s = clock_seconds((n ? r.last_end_ns : begin) - begin);
        http_get_counts(h, &after);
        if (cost)
            *cost = (struct load_cost){.wall_s = *duration_s,
                                       .cpu_s = thread_cpu_s() - cpu,
                                       .reads = after.reads - before.reads,
                                       .bytes = after.bytes - before.bytes,
                                       .connections = after.connections - before.connections};
        if (o->what)
            progress_end(&r.progress);
    }
    for (size_t i = 0; r.flight && i < r.n_flights; i++) {
        if (r.flight[i].busy)
            http_drop(h, &r.flight[i].call);
        buf_release(&r.flight[i].bytes);
    }
    mem_free(r.flight);
    return rc;
}
