/* replies.h - collects parser events: a message, and a trace that must not depend on cuts. */
#ifndef FST_TEST_REPLIES_H
#define FST_TEST_REPLIES_H

#include "base/utf8.h"
#include "chat/parse.h"

enum { REPLY_CALLS_MAX = 64 };

struct reply {
    struct buf reasoning, content;
    struct buf name[REPLY_CALLS_MAX], args[REPLY_CALLS_MAX];
    bool complete[REPLY_CALLS_MAX];
    int n_calls;
    enum chat_finish finish;
    struct buf trace; /* event kinds and texts, equal neighbours merged */
    enum chat_event_type last;
    int last_index;
    bool is_valid; /* UTF-8 in every event, indices in order */
    int n_events;
};

static inline void reply_init(struct reply *r)
{
    memset(r, 0, sizeof *r);
    r->is_valid = true;
    r->last_index = -1;
}

static inline void reply_release(struct reply *r)
{
    buf_release(&r->reasoning);
    buf_release(&r->content);
    buf_release(&r->trace);
    for (int i = 0; i < REPLY_CALLS_MAX; i++) {
        buf_release(&r->name[i]);
        buf_release(&r->args[i]);
    }
}

static inline void reply_event(void *ud, const struct chat_event *e)
{
    struct reply *r = ud;
    int i = e->index;
    bool is_text = e->type == CHAT_EVENT_REASONING || e->type == CHAT_EVENT_CONTENT;

    if (e->type == CHAT_EVENT_CALL_BEGIN) {
        r->is_valid &= i == r->n_calls;
        r->n_calls++;
    }
    if (!is_text)
        r->is_valid &= i == r->n_calls - 1;
    if (i >= REPLY_CALLS_MAX)
        return;
    if (e->text)
        r->is_valid &= utf8_valid(e->text, e->len) && e->len > 0;
    r->n_events++;
    if (e->type != r->last || e->index != r->last_index || e->type == CHAT_EVENT_CALL_BEGIN)
        buf_printf(&r->trace, "\n[%d %d%s]", (int)e->type, e->index, e->raw ? " raw" : "");
    r->last = e->type;
    r->last_index = e->index;
    if (e->text)
        buf_append(&r->trace, e->text, e->len);
    switch (e->type) {
    case CHAT_EVENT_REASONING:
        buf_append(&r->reasoning, e->text, e->len);
        break;
    case CHAT_EVENT_CONTENT:
        buf_append(&r->content, e->text, e->len);
        break;
    case CHAT_EVENT_CALL_BEGIN:
        buf_puts(&r->name[i], e->name);
        buf_puts(&r->trace, e->name);
        r->is_valid &= e->id[0] != 0;
        break;
    case CHAT_EVENT_CALL_ARGS:
        buf_append(&r->args[i], e->text, e->len);
        break;
    case CHAT_EVENT_CALL_END:
        r->complete[i] = true;
        break;
    case CHAT_EVENT_CALL_CANCEL:
        r->is_valid &= !r->complete[i];
        break;
    }
}

static inline void reply_call_id(void *ud, int index, char out[CHAT_CALL_ID_MAX])
{
    (void)ud;
    snprintf(out, CHAT_CALL_ID_MAX, "call_%d", index);
}

/* Parses text cut at cuts[0..n_cuts) (ascending offsets) into r, which must be init'ed. */
static inline enum fst_status reply_parse(struct reply *r, const struct chat_parser_opts *opts,
                                          const char *text, size_t len, const size_t *cuts,
                                          size_t n_cuts, enum chat_end end)
{
    struct chat_parser_opts o = *opts;
    struct chat_parser *p;
    enum fst_status rc;
    size_t at = 0;

    o.event = reply_event;
    o.ud = r;
    o.call_id = reply_call_id;
    rc = chat_parser_new(&p, &o);
    for (size_t i = 0; rc == FST_OK && i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : len;
        rc = chat_parse_feed(p, text + at, to - at);
        at = to;
    }
    if (rc == FST_OK)
        rc = chat_parse_end(p, end, &r->finish);
    chat_parser_free(p);
    return rc;
}

#endif
