#include "client/event.h"

#include <string.h>

#include "base/json.h"

/* ------------------------------------------------------------------ lines */

static bool take_line(const char *line, size_t n, event_fn *fn, void *ud)
{
    if (n && line[n - 1] == '\r')
        n--;
    if (n < 5 || memcmp(line, "data:", 5) != 0)
        return true;
    size_t from = n > 5 && line[5] == ' ' ? 6 : 5;
    return from == n || fn(ud, line + from, n - from);
}

enum fst_status event_lines_feed(struct event_lines *l, const char *bytes, size_t n, event_fn *fn,
                                 void *ud)
{
    l->part.limit = EVENT_LINE_MAX;
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t len = end ? (size_t)(end - bytes) : n;
        bool whole = end && !l->part.len;
        if (!whole)
            buf_append(&l->part, bytes, len);
        if (l->part.failed)
            return fst_error(FST_EBUDGET, "event stream: a line of more than %d bytes",
                             EVENT_LINE_MAX);
        if (!end)
            return FST_OK;
        bool go = whole ? take_line(bytes, len, fn, ud)
                        : take_line(buf_str(&l->part), l->part.len, fn, ud);
        buf_reset(&l->part);
        if (!go)
            return FST_OK;
        bytes += len + 1;
        n -= len + 1;
    }
    return FST_OK;
}

enum fst_status event_lines_end(struct event_lines *l, event_fn *fn, void *ud)
{
    if (l->part.len)
        take_line(buf_str(&l->part), l->part.len, fn, ud);
    buf_reset(&l->part);
    return FST_OK;
}

void event_lines_release(struct event_lines *l)
{
    buf_release(&l->part);
}

/* ------------------------------------------------------------------ JSON */

/* Where in an event a value stands; a leaf's value is what is asked for. */
enum place {
    P_SKIP,
    P_ROOT,
    P_CHOICES,
    P_CHOICE,
    P_DELTA,
    P_META,
    P_USAGE,
    P_DETAILS,
    P_TEXT,
    P_REASONING,
    P_CALLS,
    P_FINISH,
    P_ERROR,
    P_COMPLETION,
    P_PROMPT,
    P_CACHED
};

static const struct {
    enum place in, to;
    const char *key;
} paths[] = {
    {P_ROOT, P_CHOICES, "choices"},
    {P_ROOT, P_TEXT, "text"},
    {P_ROOT, P_META, "meta_info"},
    {P_ROOT, P_USAGE, "usage"},
    {P_ROOT, P_ERROR, "error"},
    {P_CHOICE, P_DELTA, "delta"},
    {P_CHOICE, P_DELTA, "message"},
    {P_CHOICE, P_TEXT, "text"},
    {P_CHOICE, P_FINISH, "finish_reason"},
    {P_DELTA, P_TEXT, "content"},
    {P_DELTA, P_REASONING, "reasoning_content"},
    {P_DELTA, P_REASONING, "reasoning"},
    {P_DELTA, P_CALLS, "tool_calls"},
    {P_META, P_FINISH, "finish_reason"},
    {P_META, P_COMPLETION, "completion_tokens"},
    {P_META, P_PROMPT, "prompt_tokens"},
    {P_META, P_CACHED, "cached_tokens"},
    {P_USAGE, P_COMPLETION, "completion_tokens"},
    {P_USAGE, P_PROMPT, "prompt_tokens"},
    {P_USAGE, P_DETAILS, "prompt_tokens_details"},
    {P_DETAILS, P_CACHED, "cached_tokens"},
};

struct scan {
    const char *p, *end;
    struct event *e;
    int depth;
};

static void blanks(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
}

static bool take(struct scan *s, char c)
{
    blanks(s);
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

/* Behind the quote that opens it; *out is its inside. */
static bool string(struct scan *s, struct event_str *out)
{
    out->at = s->p;
    while (s->p < s->end && *s->p != '"') {
        if (*s->p == '\\' && ++s->p == s->end)
            return false;
        s->p++;
    }
    if (s->p == s->end)
        return false;
    out->len = (size_t)(s->p++ - out->at);
    return true;
}

static enum place place_of(enum place in, struct event_str key)
{
    if (in == P_SKIP)
        return P_SKIP;
    for (size_t i = 0; i < FST_COUNT(paths); i++)
        if (paths[i].in == in && strlen(paths[i].key) == key.len &&
            !memcmp(paths[i].key, key.at, key.len))
            return paths[i].to;
    return P_SKIP;
}

static bool value(struct scan *s, enum place at);

static bool object(struct scan *s, enum place at)
{
    struct event_str key;
    if (take(s, '}'))
        return true;
    do
        if (!take(s, '"') || !string(s, &key) || !take(s, ':') || !value(s, place_of(at, key)))
            return false;
    while (take(s, ','));
    return take(s, '}');
}

static bool array(struct scan *s, enum place at)
{
    /* Of choices the first alone: a benchmark asks for one. */
    enum place inside = at == P_CHOICES ? P_CHOICE : P_SKIP;
    if (take(s, ']'))
        return true;
    if (at == P_CALLS)
        s->e->has_calls = true;
    do {
        if (!value(s, inside))
            return false;
        inside = P_SKIP;
    } while (take(s, ','));
    return take(s, ']');
}

static void number(struct scan *s, enum place at)
{
    int64_t n = 0;
    bool whole = true;
    for (; s->p < s->end && strchr("+-.eE0123456789", *s->p) && *s->p; s->p++) {
        if (*s->p < '0' || *s->p > '9' || n > INT64_MAX / 10 - 9)
            whole = false;
        else
            n = 10 * n + (*s->p - '0');
    }
    if (!whole)
        return;
    if (at == P_COMPLETION)
        s->e->completion_tokens = n;
    else if (at == P_PROMPT)
        s->e->prompt_tokens = n;
    else if (at == P_CACHED)
        s->e->cached_tokens = n;
}

static bool word(struct scan *s, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, w, n) != 0)
        return false;
    s->p += n;
    return true;
}

static bool value(struct scan *s, enum place at)
{
    enum { DEPTH_MAX = 256 };
    struct event_str str;
    bool ok;

    blanks(s);
    if (s->p == s->end)
        return false;
    char c = *s->p;
    if (c == 'n')
        return word(s, "null");
    s->e->finished |= at == P_FINISH;
    s->e->is_error |= at == P_ERROR;
    switch (c) {
    case 't':
        return word(s, "true");
    case 'f':
        return word(s, "false");
    case '"':
        s->p++;
        if (!string(s, &str))
            return false;
        if (at == P_TEXT)
            s->e->text = str;
        else if (at == P_REASONING)
            s->e->reasoning = str;
        return true;
    case '{':
    case '[':
        s->p++;
        if (++s->depth > DEPTH_MAX)
            return false;
        ok = c == '{' ? object(s, at) : array(s, at);
        s->depth--;
        return ok;
    default:
        if (c != '-' && (c < '0' || c > '9'))
            return false;
        number(s, at);
        return true;
    }
}

bool event_scan(struct event *e, const char *json, size_t len)
{
    struct scan s = {.p = json, .end = json + len, .e = e};
    *e = (struct event){.completion_tokens = -1, .prompt_tokens = -1, .cached_tokens = -1};
    blanks(&s);
    if (s.p == s.end || *s.p != '{' || !value(&s, P_ROOT))
        return false;
    blanks(&s);
    return s.p == s.end;
}

bool event_unescape(struct buf *out, const char *raw, size_t len)
{
    struct json_doc *doc = NULL;
    struct buf b = {0};
    size_t n;

    if (!memchr(raw, '\\', len)) {
        buf_append(out, raw, len);
        return !out->failed;
    }
    buf_puts(&b, "[\"");
    buf_append(&b, raw, len);
    buf_puts(&b, "\"]");
    bool ok = !b.failed && json_parse(&doc, buf_str(&b), b.len) == FST_OK &&
              json_count(json_root(doc)) == 1;
    const char *text = ok ? json_string(json_at(json_root(doc), 0), &n) : NULL;
    if (text)
        buf_append(out, text, n);
    json_free(doc);
    buf_release(&b);
    return text && !out->failed;
}
