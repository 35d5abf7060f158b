#include "client/answer.h"

enum { GAPS_AHEAD = 1 << 16, ERROR_BODY_MAX = 64 << 10, BODY_MAX = 256 << 20 };

enum fst_status answer_init(struct answer *r, enum answer_api api, bool streams, int64_t prompt_len,
                            int64_t wanted_len)
{
    *r = (struct answer){.api = api,
                         .streams = streams,
                         .prompt_len = prompt_len,
                         .wanted_len = wanted_len,
                         .completion_tokens = -1,
                         .prompt_tokens = -1,
                         .cached_tokens = -1};
    r->cap_gaps = (size_t)FST_MIN(FST_MAX(wanted_len, (int64_t)1), (int64_t)GAPS_AHEAD);
    r->gap = mem_alloc(r->cap_gaps * sizeof *r->gap);
    /* About five bytes a token. */
    if (!r->gap || !buf_reserve(&r->text, 5 * r->cap_gaps))
        return fst_error(FST_ENOMEM, "no memory for %lld tokens", (long long)wanted_len);
    return FST_OK;
}

void answer_release(struct answer *r)
{
    mem_free(r->gap);
    mem_free(r->error);
    buf_release(&r->text);
    buf_release(&r->body);
    event_lines_release(&r->lines);
    *r = (struct answer){0};
}

static void fail(struct answer *r, const char *why)
{
    if (!r->failed)
        r->error = mem_strdup(why);
    r->failed = true;
}

static void add_gap(struct answer *r, double s, int64_t n_tokens)
{
    if (r->n_gaps == r->cap_gaps) {
        size_t cap = 2 * r->cap_gaps;
        struct answer_gap *more = mem_realloc(r->gap, cap * sizeof *more);
        if (!more) {
            fail(r, "no memory");
            return;
        }
        r->gap = more;
        r->cap_gaps = cap;
    }
    r->gap[r->n_gaps++] = (struct answer_gap){s, n_tokens, (uint32_t)r->text.len};
}

/* Events of /generate hold everything so far, or with incremental streaming what is new. */
static bool holds_all(const struct answer *r, const struct event *e)
{
    return e->text.len >= r->text.len &&
           (!r->text.len || !memcmp(e->text.at, r->text.data, r->text.len));
}

/* Something was generated at t. */
static void on_text(struct answer *r, const struct event *e, int64_t t_ns)
{
    bool thought = e->reasoning.len > 0;
    if (thought && !r->first_thought_ns)
        r->first_thought_ns = t_ns;
    if (e->text.len && !r->first_text_ns)
        r->first_text_ns = t_ns;
    if (r->api == ANSWER_GENERATE && holds_all(r, e))
        buf_reset(&r->text);
    buf_append(&r->text, e->reasoning.at, e->reasoning.len);
    buf_append(&r->text, e->text.at, e->text.len);
    int64_t n = 1;
    if (r->api == ANSWER_GENERATE && e->completion_tokens >= 0) {
        n = e->completion_tokens - r->seen_tokens;
        r->seen_tokens = e->completion_tokens;
    }
    if (!r->first_ns) {
        r->first_ns = t_ns;
        r->first_to = (uint32_t)r->text.len;
        r->first_tokens = n;
    } else if (n <= 0) {
        return; /* nothing new: its time belongs to the next gap */
    } else {
        add_gap(r, (double)(t_ns - r->last_gen_ns) * 1e-9, n);
    }
    r->last_gen_ns = t_ns;
}

static bool take_event(struct answer *r, const char *data, size_t len, int64_t t_ns)
{
    struct event e;
    if (!event_scan(&e, data, len)) {
        fail(r, "an event that is no JSON object");
        return false;
    }
    if (e.is_error) {
        buf_append(&r->body, data, FST_MIN(len, (size_t)ERROR_BODY_MAX));
        fail(r, buf_str(&r->body));
        return false;
    }
    r->n_events++;
    r->last_ns = t_ns;
    r->finished |= e.finished;
    if (e.text.len || e.reasoning.len || e.has_calls)
        on_text(r, &e, t_ns);
    if (e.completion_tokens >= 0)
        r->completion_tokens = e.completion_tokens;
    if (e.prompt_tokens >= 0)
        r->prompt_tokens = e.prompt_tokens;
    if (e.cached_tokens >= 0)
        r->cached_tokens = e.cached_tokens;
    return true;
}

struct at {
    struct answer *r;
    int64_t t_ns;
};

static bool on_line(void *ud, const char *data, size_t len)
{
    struct at *a = ud;
    if (len == 6 && !memcmp(data, "[DONE]", 6)) {
        a->r->done_seen = true;
        return false;
    }
    return take_event(a->r, data, len, a->t_ns);
}

void answer_head(struct answer *r, int status, int64_t t_ns)
{
    r->status = status;
    r->head_ns = t_ns;
}

void answer_bytes(struct answer *r, const char *bytes, size_t n, int64_t t_ns)
{
    struct at a = {r, t_ns};
    bool plain = !r->streams || r->status != 200;
    size_t limit = r->status == 200 ? BODY_MAX : ERROR_BODY_MAX;

    if (plain) {
        if (r->body.len < limit)
            buf_append(&r->body, bytes, FST_MIN(n, limit - r->body.len));
    } else if (!r->done_seen && !r->failed &&
               event_lines_feed(&r->lines, bytes, n, on_line, &a) < 0) {
        fail(r, fst_error_text());
    }
}

void answer_end(struct answer *r, const char *why, int64_t t_ns)
{
    struct at a = {r, t_ns};
    char text[64];

    if (why) {
        fail(r, why);
    } else if (r->status != 200) {
        snprintf(text, sizeof text, "status %d: ", r->status);
        struct buf b = {0};
        buf_puts(&b, text);
        buf_append(&b, buf_str(&r->body), r->body.len);
        fail(r, buf_str(&b));
        buf_release(&b);
    } else if (!r->streams) {
        take_event(r, buf_str(&r->body), r->body.len, t_ns);
        if (answer_ok(r)) /* without a stream the first token comes with the last */
            r->first_ns = r->last_ns;
    } else if (!r->done_seen && !r->failed) {
        event_lines_end(&r->lines, on_line, &a);
        if (!r->done_seen && !r->finished)
            fail(r, "the stream ended before its reply did");
    }
    if (!r->failed && !r->last_ns)
        fail(r, "a stream without events");
    if (r->text.failed)
        fail(r, "no memory");
}
