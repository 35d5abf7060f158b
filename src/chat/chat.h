/* chat.h - messages to prompt text, model text to messages, in DeepSeek-V4's format.
 *
 * Dialect-free: HTTP handlers turn their bodies into a struct chat_request (chat_request_from_json
 * for OpenAI-style bodies, chat_request_from_messages for Anthropic's, the chat_add_* calls for
 * others), chat_render makes the prompt, and chat/stream.h turns sampled ids into events.  Format:
 * DeepSeek-V4 reference encoding (encoding_dsv4.py); texts that must be exact stand in
 * chat/protocol.h.
 *
 * Memory: a chat_request owns copies of everything put into it.  Threads: none of these objects is
 * shared; one thread at a time each. */
#ifndef FST_CHAT_H
#define FST_CHAT_H

#include "base/arena.h"
#include "base/base.h"
#include "base/hash.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

struct chat_str {
    const char *data; /* NUL-terminated, may hold NULs; NULL when absent */
    size_t len;
};

enum chat_role {
    CHAT_SYSTEM,
    CHAT_DEVELOPER,
    CHAT_USER,
    CHAT_ASSISTANT,
    CHAT_TOOL,
    CHAT_LATEST_REMINDER
};
enum chat_effort { CHAT_EFFORT_DEFAULT, CHAT_EFFORT_LOW, CHAT_EFFORT_HIGH, CHAT_EFFORT_MAX };
enum chat_profile { CHAT_PROFILE_PREVIEW, CHAT_PROFILE_OFFICIAL };
enum chat_task {
    CHAT_TASK_NONE,
    CHAT_TASK_ACTION,
    CHAT_TASK_QUERY,
    CHAT_TASK_AUTHORITY,
    CHAT_TASK_DOMAIN,
    CHAT_TASK_TITLE,
    CHAT_TASK_READ_URL
};
enum chat_tool_choice { CHAT_TOOLS_AUTO, CHAT_TOOLS_NONE, CHAT_TOOLS_REQUIRED, CHAT_TOOLS_NAMED };

struct chat_part {
    bool is_text;
    struct chat_str text; /* the text, or the part's type ("image_url") */
};

struct chat_call {
    struct chat_str id, name;
    struct chat_str arguments; /* JSON text as received; "" counts as {} */
};

/* JSON types a parameter's schema allows, for argument repair. */
enum {
    CHAT_T_STRING = 1,
    CHAT_T_INTEGER = 2,
    CHAT_T_NUMBER = 4,
    CHAT_T_BOOLEAN = 8,
    CHAT_T_NULL = 16,
    CHAT_T_ARRAY = 32,
    CHAT_T_OBJECT = 64
};
struct chat_param {
    struct chat_str name;
    unsigned types; /* 0: the schema does not say */
    bool required;
};
struct chat_tool {
    struct chat_str name;
    size_t at;            /* its place in the client's list */
    struct chat_str json; /* the function object in prompt style, as it is rendered */
    struct chat_param *params;
    size_t n_params;
    bool strict; /* the client asked for a grammar */
    bool custom; /* takes plain text, its one parameter "input" (Responses) */
};

struct chat_message {
    enum chat_role role;
    struct chat_part *parts; /* a plain string is one text part */
    size_t n_parts;
    struct chat_str reasoning;
    struct chat_call *calls;
    size_t n_calls;
    struct chat_str tool_call_id;
    struct chat_tool *tools; /* of a system or developer message (reference format) */
    size_t n_tools;
    struct chat_str response_format; /* the same; prompt-style JSON */
    enum chat_task task;
    bool wo_eos;       /* assistant: leave the end mark out */
    bool is_prefix;    /* assistant, last: the reply continues it */
    bool content_null; /* content was null or missing */
};

/* Server-wide choices; zero is not the default, chat_defaults_init is. */
struct chat_defaults {
    enum chat_profile profile; /* from the checkpoint: chat_profile_detect */
    bool thinking;             /* true */
    enum chat_effort effort;   /* CHAT_EFFORT_DEFAULT: no effort text */
    bool placeholder_parts;    /* false: image parts are refused; true: "[Unsupported image_url]" */
    bool special_in_content;   /* false; true: control text typed by users becomes control tokens */
    bool escape_dsml; /* false; true: "</DSML" and "</tool_result>" in payloads lose their '<' */
    bool
        drop_billing_line; /* true: "x-anthropic-billing-header: ..." at the front of the system text,
                             * which changes with every request, is left out */
    bool move_date_lines; /* false; true: lines of the system text that state date or time stand
                             * behind the last user turn's text instead */
    bool coerce_args; /* true: string arguments become what the schema asks for, if they parse */
};
void chat_defaults_init(struct chat_defaults *d);
/* Which effort texts a checkpoint was trained with: searched for in its encoding/encoding_dsv4.py
 * and config.json (key dsv4_reasoning_effort_profile); preview when neither says. */
enum chat_profile chat_profile_detect(const char *model_dir);

struct chat_request {
    struct chat_message *messages;
    size_t n_messages;
    struct chat_tool *tools; /* request-level */
    size_t n_tools;
    enum chat_tool_choice tool_choice;
    struct chat_str tool_name;       /* for CHAT_TOOLS_NAMED */
    bool parallel_calls;             /* true */
    struct chat_str response_format; /* prompt-style JSON: {"type": "json_object"} or the schema */
    bool response_is_schema;         /* the latter */
    bool response_strict;            /* every keyword of it must hold */
    const char *
        response_param; /* static: where its schema stood; NULL: response_format.json_schema.schema */
    enum chat_task task;
    bool thinking;
    enum chat_effort effort;
    bool continue_final;     /* the last assistant message is continued */
    bool generation_prompt;  /* true: the prompt ends where the assistant speaks */
    bool drop_thinking;      /* true */
    bool add_bos;            /* true */
    bool separate_reasoning; /* true; false: thoughts stay in the content, with their tag */
    bool reference;          /* exactly the reference encoder, nothing of what a server adds */
    struct chat_defaults d;
    /* Turns as the model wrote them, which chat_render puts back where the request sends them
     * unchanged in meaning (memory.h), and whose they must be.  Borrowed; NULL: none. */
    struct chat_memory *memory;
    struct hash128 tenant;

    /* What a refusal was about, for error bodies: "messages[2].content", "invalid_type". */
    char error_param[160];
    const char *error_code; /* static; NULL when none */
    bool failed;            /* an allocation failed in chat_add_*: chat_render says FST_ENOMEM */
    struct arena arena;     /* owned: all text and arrays */
};

/* d NULL: chat_defaults_init's. */
void chat_request_init(struct chat_request *r, const struct chat_defaults *d);
void chat_request_release(struct chat_request *r);

/* OpenAI-style body: messages, tools, tool_choice, response_format, thinking and effort fields of
 * every spelling, task, continue_final_message, add_generation_prompt, separate_reasoning, ...;
 * sampling fields are not looked at. A bare array is taken as the messages. Initialises r, which
 * the caller releases also after a failure. FST_EINVAL with "messages[2].content: expected string
 * or array, got number" and error_param/error_code set; FST_ENOMEM. Nothing is borrowed from the
 * document. */
enum fst_status chat_request_from_json(struct chat_request *r, json_val *body,
                                       const struct chat_defaults *d);

/* The same for a body of Anthropic's Messages API: system, messages with their blocks, tools,
 * tool_choice, thinking, output_config.effort.  Thinking is off unless the body turns it on. */
enum fst_status chat_request_from_messages(struct chat_request *r, json_val *body,
                                           const struct chat_defaults *d);

/* The same for a body of OpenAI's Responses API: instructions, input, tools, tool_choice, text.format,
 * reasoning.effort.  before: items of the conversation that stand before the input, or NULL. */
enum fst_status chat_request_from_responses(struct chat_request *r, json_val *body,
                                            json_val *before, const struct chat_defaults *d);

/* For other dialects.  All copy; a failed allocation is remembered in r->failed and the call then
 * does nothing or returns NULL, which the others accept.  A message pointer is valid until the next
 * chat_add_message. */
struct chat_message *chat_add_message(struct chat_request *r, enum chat_role role);
void chat_add_text(struct chat_request *r, struct chat_message *m, const char *text, size_t len);
void chat_add_other(struct chat_request *r, struct chat_message *m, const char *type);
void chat_set_reasoning(struct chat_request *r, struct chat_message *m, const char *text,
                        size_t len);
void chat_set_tool_call_id(struct chat_request *r, struct chat_message *m, const char *id);
void chat_add_call(struct chat_request *r, struct chat_message *m, const char *id, const char *name,
                   const char *arguments, size_t arguments_len);
/* description and parameters may be absent (NULL). */
void chat_add_tool(struct chat_request *r, const char *name, json_val *description,
                   json_val *parameters, bool strict);
/* The function object of an OpenAI tool, kept as received without "strict" and null members. */
void chat_add_tool_json(struct chat_request *r, json_val *function);
/* schema NULL: json_object. */
void chat_set_response_format(struct chat_request *r, json_val *schema);
/* Single fields of an OpenAI-style body, where the request was made in another way. */
enum fst_status chat_response_format_from_json(struct chat_request *r, json_val *v);
enum fst_status chat_tools_from_json(struct chat_request *r, json_val *v);
/* tool_choice against the tools: FST_EINVAL when required or named without such a tool. */
enum fst_status chat_check_tools(struct chat_request *r);
/* name: of a tool, found at `path`.  FST_EINVAL where the format has no way to write it. */
enum fst_status chat_check_tool_name(struct chat_request *r, json_val *name, const char *path);

/* "none" "off" -> *thinking false; minimal low | medium high xhigh | max ultra; false if unknown.
 * Numbers: chat_effort_number (below 0.34 low, below 0.84 high, else max). */
bool chat_effort_parse(const char *s, bool *thinking, enum chat_effort *out);
bool chat_effort_number(double x, bool *thinking, enum chat_effort *out);
const char *chat_effort_name(enum chat_effort e);
const char *chat_role_name(enum chat_role r);

/* Where the model's text begins. */
enum chat_start {
    CHAT_START_CONTENT,
    CHAT_START_REASONING, /* inside <think> */
    CHAT_START_BLOCK,     /* inside a tool_calls block */
    CHAT_START_CALL       /* inside an invoke of start_name */
};

/* A stretch of the prompt that is ids as they were sampled. */
struct chat_run {
    size_t from, to;    /* its text, in bytes: what the ids decode to, for people */
    const int32_t *ids; /* of the turn */
    size_t n_ids;
    const struct chat_turn *turn; /* a reference */
};

struct chat_prompt {
    struct buf text;
    struct buf allowed;    /* bitmap, see tokenizer_encode: where added tokens may be found */
    struct chat_run *runs; /* (n_runs), in the order of the text; owned */
    size_t n_runs;
    enum chat_start start;
    struct chat_str start_name; /* borrowed from the request */
    bool tools_on;              /* the reply may hold tool calls */
    bool continued;             /* the reply goes on in the middle of a text */
    int n_wrapped;              /* calls whose arguments were no JSON object: worth a log line */
};
/* Initialises p, which the caller releases also after a failure.  FST_EINVAL for what cannot be
 * rendered (developer message without content, task without a user). */
enum fst_status chat_render(struct chat_prompt *p, struct chat_request *r);
void chat_prompt_release(struct chat_prompt *p);
/* The text between runs is encoded, each stretch as one text; runs are their ids.  A run is bordered by
 * what the template wrote when the ids were sampled, so the stretches are cut as they were then. */
enum fst_status chat_encode(const struct chat_prompt *p, const struct tokenizer *t,
                            struct tokenizer_ids *out);

#endif
