/* stream.h - sampled ids to events: the pipeline that every API and the terminal chat share.
 *
 * id -> bytes -> whole code points -> chat parser (or nothing) -> stop strings -> events
 *
 * Feed ids one by one in the order they were sampled. When a result says `stopped`, later ids are
 * not part of the reply: text, ids, log-probabilities and completion_tokens all end at the same
 * token, the one that completed the stop string. Because a parser may have to look one token
 * ahead, that token can lie before the one just fed: n_tokens says how many count. Use: _new,
 * _feed for each id, then _finish once. */
#ifndef FST_CHAT_STREAM_H
#define FST_CHAT_STREAM_H

#include "chat/parse.h"

enum chat_stream_kind {
    CHAT_STREAM_CHAT, /* parser on; stop strings apply to content only */
    CHAT_STREAM_TEXT  /* completions, /generate: all text is CONTENT, stop strings apply to all */
};

struct chat_stream_opts {
    enum chat_stream_kind kind;
    const struct tokenizer *tokenizer; /* borrowed */
    struct chat_parser_opts parser;    /* kind CHAT; event and ud are used for both kinds.  Content
                                        * events of a stream have at = 0 */
    const struct chat_str *stops;      /* borrowed until _new returns; empty ones are refused */
    size_t n_stops;
    bool no_stop_trim; /* the matched stop string stays in the text */
    bool skip_special; /* skip_special_tokens */
};
/* Parser options as the request and its prompt say; the caller adds event, ud and call_id. */
void chat_stream_opts_init(struct chat_stream_opts *o, const struct tokenizer *t,
                           const struct chat_request *r, const struct chat_prompt *p);

struct chat_stream_result {
    bool stopped;              /* by a stop string, or because text follows a closed tool block */
    int stop_index;            /* which of opts.stops matched first; -1: none */
    uint64_t n_tokens;         /* ids that belong to the reply */
    uint64_t reasoning_tokens; /* of these, up to and including </think> */
    enum chat_finish finish;   /* valid after _finish */
};

struct chat_stream;
enum fst_status chat_stream_new(struct chat_stream **out, const struct chat_stream_opts *o);
void chat_stream_free(struct chat_stream *s); /* NULL is fine */
/* is_stop: this id ended the request (EOS or a stop id): it is counted and its text is not shown
 * (with no_stop_trim it is).  Only FST_ENOMEM.  After `stopped` ids are ignored. */
enum fst_status chat_stream_feed(struct chat_stream *s, int32_t id, bool is_stop);
/* Flushes what is held and decides the finish reason: a matched stop string is "stop", complete
 * tool calls "tool_calls" unless the end is CHAT_END_LENGTH or _ABORT. */
enum fst_status chat_stream_finish(struct chat_stream *s, enum chat_end end);
bool chat_stream_in_reasoning(const struct chat_stream *s); /* of what is certain by now */
const struct chat_stream_result *chat_stream_result(const struct chat_stream *s);
/* Whether token i (0-based, fed and counted) was sampled in reasoning. */
static inline bool chat_stream_is_reasoning(const struct chat_stream_result *r, uint64_t i)
{
    return i < r->reasoning_tokens;
}

#endif
