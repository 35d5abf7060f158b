/* event.h - lines of an event stream, and what a benchmark wants to know of the JSON in one.
 *
 * Line rule (benchmarks.md 1.2): every line that begins with "data:" is one event, whose text begins behind
 * one optional blank; comments (":"), other fields and empty lines are passed over.
 *
 * event_scan walks the JSON once without a tree: with 20,000 events a second a tree each would be a good part
 * of a core.  It knows the three shapes: /generate ("text", "meta_info"), completions ("choices[0].text") and
 * chat ("choices[0].delta" or ".message"), and of all "usage".  Strings stay as they are spelled (escapes and
 * all), borrowed from the input: joined, they are still a JSON string's inside. */
#ifndef FST_CLIENT_EVENT_H
#define FST_CLIENT_EVENT_H

#include "base/base.h"

enum { EVENT_LINE_MAX = 64 << 20 };

struct event_lines {
    struct buf part; /* of a line whose end has not come */
};
/* For each event in the bytes; false ends the feed. */
typedef bool event_fn(void *ud, const char *data, size_t len);
/* FST_EBUDGET: a line above EVENT_LINE_MAX, or no memory. */
enum fst_status event_lines_feed(struct event_lines *l, const char *bytes, size_t n, event_fn *fn,
                                 void *ud);
/* The stream is over: a last line without its end counts. */
enum fst_status event_lines_end(struct event_lines *l, event_fn *fn, void *ud);
void event_lines_release(struct event_lines *l);

struct event_str {
    const char *at; /* borrowed; NULL: absent or null */
    size_t len;
};
struct event {
    struct event_str text, reasoning; /* as spelled; deltas, of /generate everything so far */
    bool has_calls;                   /* tool calls, not none */
    bool finished;                    /* finish_reason is there and not null */
    bool is_error;                    /* an "error" that is not null */
    int64_t completion_tokens, prompt_tokens, cached_tokens; /* -1: not said */
};
/* False: not a JSON object. */
bool event_scan(struct event *e, const char *json, size_t len);

/* The text that a string's inside stands for, appended to out; false when it is no such thing. */
bool event_unescape(struct buf *out, const char *raw, size_t len);

#endif
