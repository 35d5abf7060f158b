/* parse.h - the model's text as events: thoughts, content, tool calls.
 *
 * A state machine over UTF-8 bytes after DeepSeek's deepseek-recipe stream parser, with the repairs
 * that clients of other servers asked for.  The concatenation of events does not depend on how the
 * text is cut; no event ends inside a code point if the input does not.  Most callers want
 * chat/stream.h, which feeds this. */
#ifndef FST_CHAT_PARSE_H
#define FST_CHAT_PARSE_H

#include "chat/chat.h"

enum chat_event_type {
    CHAT_EVENT_REASONING,
    CHAT_EVENT_CONTENT,
    CHAT_EVENT_CALL_BEGIN, /* index, id, name */
    CHAT_EVENT_CALL_ARGS,  /* index, text: a fragment of the arguments' JSON */
    CHAT_EVENT_CALL_END,   /* index: the arguments are whole and valid JSON */
    CHAT_EVENT_CALL_CANCEL /* index: the text ended inside this call; a message leaves it out */
};

struct chat_event {
    enum chat_event_type type;
    int index;             /* of the call, from 0 */
    const char *id, *name; /* CALL_BEGIN; NUL-terminated, valid during the callback */
    const char *text; /* REASONING, CONTENT, CALL_ARGS: not terminated, valid during the callback */
    size_t len;
    uint64_t at; /* REASONING, CONTENT: offset of text in all bytes fed */
    bool raw;    /* CONTENT: a block without a complete call, given back as it was written;
                            * a stream that already announced the call may leave it out */
};
typedef void chat_event_fn(void *ud, const struct chat_event *e);

/* Writes a NUL-terminated id for call `index`. */
enum { CHAT_CALL_ID_MAX = 64 };
typedef void chat_call_id_fn(void *ud, int index, char out[CHAT_CALL_ID_MAX]);
/* The usual one: prefix + 24 random letters and digits.  ud: the prefix, NULL means "call_". */
void chat_call_id_random(void *ud, int index, char out[CHAT_CALL_ID_MAX]);

struct chat_parser_opts {
    enum chat_start start;
    struct chat_str start_name;    /* for CHAT_START_CALL */
    bool tools_on;                 /* false: tool markup is plain content */
    const struct chat_tool *tools; /* borrowed; their schemas guide argument repair */
    size_t n_tools;
    bool coerce_args;
    bool one_call;     /* parallel_tool_calls false: the first complete call ends the block */
    bool keep_leading; /* the reply continues a text: newlines at its start belong to it */
    bool keep_think; /* separate_reasoning false: </think> and newlines stay in REASONING events */
    chat_call_id_fn *call_id; /* NULL: chat_call_id_random */
    void *call_id_ud;
    chat_event_fn *event;
    void *ud;
};

enum chat_end {
    CHAT_END_STOP,   /* the model ended its turn, or a stop string or id was met */
    CHAT_END_LENGTH, /* out of tokens */
    CHAT_END_ABORT
};
enum chat_finish {
    CHAT_FINISH_STOP,
    CHAT_FINISH_LENGTH,
    CHAT_FINISH_TOOL_CALLS,
    CHAT_FINISH_ABORT
};
const char *chat_finish_name(enum chat_finish f); /* "stop", "length", "tool_calls", "abort" */

struct chat_parser;
enum fst_status chat_parser_new(struct chat_parser **out, const struct chat_parser_opts *o);
void chat_parser_free(struct chat_parser *p); /* NULL is fine */
/* Only FST_ENOMEM; the parser is then to be freed. */
enum fst_status chat_parse_feed(struct chat_parser *p, const char *bytes, size_t len);
/* Gives out what was held back.  *finish may be NULL. */
enum fst_status chat_parse_end(struct chat_parser *p, enum chat_end end, enum chat_finish *finish);
bool chat_parser_in_reasoning(const struct chat_parser *p);
bool chat_parser_done(
    const struct chat_parser *p); /* the tool block is closed; the rest is ignored */

#endif
