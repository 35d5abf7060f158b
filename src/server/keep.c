#include "server/keep.h"

#include "server/gen.h"

/* ------------------------------------------------------------------ life */

static void keep_free(struct keep *k)
{
    struct server *s = k->s;
    if (k->prev)
        k->prev->next = k->next;
    else
        s->keeps = k->next;
    if (k->next)
        k->next->prev = k->prev;
    s->n_keeps--;
    mem_free(k->key);
    mem_free(k->ends);
    buf_release(&k->log);
    buf_release(&k->answer);
    mem_free(k);
}

bool keep_set(struct gen *g, int64_t seconds, const char *param)
{
    int max = g->s->o.keep_max_s;
    if (!max)
        return api_fail(&g->err, 400, "unsupported_parameter", param,
                        "%s: this server keeps no answers (--keep-max-s 0)", param);
    if (seconds < 0 || seconds > max)
        return api_fail(&g->err, 400, "invalid_value", param,
                        "%s must be in [0, %d] seconds, got %lld", param, max, (long long)seconds);
    g->keep_s = (int)seconds;
    return true;
}

bool keep_read(struct gen *g)
{
    const char *text = exch_header(g->x, "x-firesteel-keep");
    char q[96];
    if (!text || !g->d->batch) /* no dialect that answers clients */
        return true;
    size_t n = strlen(text);
    if (!n || n > 9 || strspn(text, "0123456789") != n)
        return api_fail(&g->err, 400, "invalid_value", "X-Firesteel-Keep",
                        "X-Firesteel-Keep: expected whole seconds, got '%s'",
                        api_quote(q, text, n));
    return keep_set(g, strtol(text, NULL, 10), "X-Firesteel-Keep");
}

/* Room for one more: the ended one whose time is up first gives way. */
static bool make_room(struct server *s)
{
    struct keep *old = NULL;
    if (s->n_keeps < s->o.keep_max_streams)
        return true;
    for (struct keep *k = s->keeps; k; k = k->next)
        if (!k->g && (!old || k->until_ms < old->until_ms))
            old = k;
    if (old)
        keep_free(old);
    return old != NULL;
}

bool keep_open(struct gen *g)
{
    struct server *s = g->s;
    if (!make_room(s))
        return api_fail(&g->err, 503, "keep_full", "X-Firesteel-Keep",
                        "%d kept answers are being made, no more are allowed", s->n_keeps);
    struct keep *k = mem_calloc(1, sizeof *k);
    if (!k || !(k->key = mem_strdup(g->key))) {
        mem_free(k);
        return gen_oom(g);
    }
    k->s = s;
    k->g = g;
    k->stream = g->stream;
    k->keep_ms = 1000 * g->keep_s;
    k->first = 1;
    snprintf(k->id, sizeof k->id, "%s", g->id);
    snprintf(k->token, sizeof k->token, "%016llx%016llx", (unsigned long long)rng_os(),
             (unsigned long long)rng_os());
    k->next = s->keeps;
    if (k->next)
        k->next->prev = k;
    s->keeps = k;
    s->n_keeps++;
    keep_touch(k);
    g->keep = k;
    return true;
}

void keep_touch(struct keep *k)
{
    k->until_ms = loop_now_ms(k->s->loop) + k->keep_ms;
}

void keep_without_gen(struct keep *k)
{
    k->g = NULL;
    if (!k->status)
        keep_free(k);
    else
        keep_touch(k);
}

void keep_tick(struct server *s, int64_t now_ms)
{
    for (struct keep *k = s->keeps, *next; k; k = next) {
        next = k->next;
        if (now_ms < k->until_ms || (k->g && k->g->x))
            continue;
        if (k->g)
            gen_drop(k->g); /* k goes with it */
        else
            keep_free(k);
    }
}

void keep_free_all(struct server *s)
{
    while (s->keeps) {
        if (s->keeps->g)
            gen_drop(s->keeps->g);
        else
            keep_free(s->keeps);
    }
}

/* ------------------------------------------------------------------ what is kept */

uint64_t keep_next(const struct keep *k)
{
    return k->first + k->n;
}

/* The oldest events go until at most so many bytes are left. */
static void shrink(struct keep *k, size_t bytes)
{
    size_t d = 0;
    while (d < k->n && k->log.len - (d ? k->ends[d - 1] : 0) > bytes)
        d++;
    if (!d)
        return;
    size_t gone = k->ends[d - 1];
    memmove(k->log.data, k->log.data + gone, k->log.len - gone);
    k->log.len -= gone;
    k->n -= d;
    k->first += d;
    for (size_t i = 0; i < k->n; i++)
        k->ends[i] = k->ends[i + d] - gone;
}

void keep_event(struct keep *k, const struct buf *event)
{
    if (k->log.len + event->len > KEEP_LOG_MAX) /* to the half: what is left is moved each time */
        shrink(k, event->len > KEEP_LOG_MAX / 2 ? 0 : KEEP_LOG_MAX / 2);
    if (k->n == k->cap) {
        size_t cap = k->cap ? 2 * k->cap : 64;
        size_t *ends = mem_realloc(k->ends, cap * sizeof *ends);
        if (ends) {
            k->ends = ends;
            k->cap = cap;
        }
    }
    if (k->n < k->cap)
        buf_append(&k->log, event->data, event->len);
    if (k->n == k->cap || k->log.failed || event->len > KEEP_LOG_MAX) {
        /* No memory: a reader is told that these events are gone. */
        k->first += k->n + 1;
        k->n = 0;
        buf_release(&k->log);
        return;
    }
    k->ends[k->n++] = k->log.len;
}

void keep_answer(struct keep *k, int status, const struct buf *json)
{
    buf_release(&k->answer);
    k->answer = (struct buf){0};
    buf_append(&k->answer, json->data, json->len);
    k->answer.failed |= json->failed;
    k->status = status;
}

uint64_t keep_bytes(const struct server *s)
{
    uint64_t n = 0;
    for (const struct keep *k = s->keeps; k; k = k->next)
        n += k->log.len + k->answer.len;
    return n;
}

/* ------------------------------------------------------------------ GET /v1/streams/TOKEN */

struct keep *keep_find(const struct server *s, const char *id, const char *key)
{
    for (struct keep *k = s->keeps; k; k = k->next)
        if (!strcmp(k->id, id) && auth_equal(key, k->key))
            return k;
    return NULL;
}

static struct keep *by_token(const struct server *s, const char *token, size_t len, const char *key)
{
    char text[33];
    if (len != sizeof text - 1)
        return NULL;
    memcpy(text, token, len);
    text[len] = 0;
    for (struct keep *k = s->keeps; k; k = k->next)
        if (auth_equal(text, k->token) && auth_equal(key, k->key))
            return k;
    return NULL;
}

/* Its gen still makes events.  One that has answered may be ending a reader's exchange just now, and
 * with it begin the next request of that connection. */
static bool is_live(const struct keep *k)
{
    return k->g && !k->g->answered;
}

void keep_send(struct keep *k, struct exch *x, uint64_t after)
{
    struct api_error e = {0};
    if (!k->stream)
        api_fail(&e, 400, "no_stream", NULL,
                 "this request is no stream: its answer is at /v1/streams/%s/result", k->token);
    else if (after + 1 < k->first)
        api_fail(&e, 410, "events_gone", "after",
                 "events up to %llu are no longer kept, events after %llu are asked for; the whole "
                 "answer is at /v1/streams/%s/result",
                 (unsigned long long)(k->first - 1), (unsigned long long)after, k->token);
    if (e.status) {
        api_send_error(x, &e, SHAPE_OPENAI);
        return;
    }
    k->s->m.resumed++;
    if (is_live(k))
        gen_attach(k->g, x);
    keep_touch(k);
    gen_stream_head(x, k->token);
    size_t skip = (size_t)FST_MIN(after + 1 - k->first, (uint64_t)k->n);
    size_t from = skip ? k->ends[skip - 1] : 0;
    if (k->log.len > from)
        exch_stream_write(x, k->log.data + from, k->log.len - from);
    if (is_live(k))
        return;
    if (k->failed)
        exch_stream_break(x);
    else
        exch_stream_end(x);
}

static void send_result(struct keep *k, struct exch *x)
{
    keep_touch(k);
    if (!k->status) {
        struct buf b = {0};
        buf_printf(&b, "{\"id\":\"%s\",\"status\":\"in_progress\"}", k->id);
        exch_add_header(x, "Retry-After", "1");
        api_send(x, 202, &b);
        buf_release(&b);
    } else if (k->answer.failed) {
        struct api_error e = {0};
        api_fail(&e, 500, "out_of_memory", NULL, "the answer could not be kept: out of memory");
        api_send_error(x, &e, SHAPE_OPENAI);
    } else {
        api_send(x, k->status, &k->answer);
    }
}

/* ?after=N, or what an EventSource sends when it connects again. */
static bool read_after(struct exch *x, uint64_t *out, struct api_error *e)
{
    char text[24] = "", q[96];
    const char *from = "after";
    if (!exch_query(x, "after", text, sizeof text)) {
        const char *h = exch_header(x, "last-event-id");
        snprintf(text, sizeof text, "%s", h ? h : "0");
        from = "Last-Event-ID";
    }
    size_t n = strlen(text);
    if (!n || n > 18 || strspn(text, "0123456789") != n)
        return api_fail(e, 400, "invalid_value", from,
                        "%s: expected the number of an event, got '%s'", from,
                        api_quote(q, text, n));
    *out = strtoull(text, NULL, 10);
    return true;
}

void api_streams(struct server *s, struct exch *x)
{
    struct api_error e = {0};
    const char *token = x->path + strlen("/v1/streams/");
    size_t n = strcspn(token, "/");
    const char *rest = token + n;
    bool result = !strcmp(rest, "/result");
    struct keep *k = !*rest || result ? by_token(s, token, n, auth_key(s, x)) : NULL;
    uint64_t after = 0;
    if (!k)
        api_fail(&e, 404, "stream_not_found", NULL,
                 "no kept answer of this token and API key: it never was, or its time is over");
    else if (!result)
        read_after(x, &after, &e);
    if (e.status)
        api_send_error(x, &e, SHAPE_OPENAI);
    else if (x->verb == VERB_HEAD) /* looks, and takes the stream from nobody */
        exch_reply(x, 200, NULL, "", 0);
    else if (result)
        send_result(k, x);
    else
        keep_send(k, x, after);
}
