/* server.h - the HTTP server: OpenAI-style and native endpoints in front of an engine.
 *
 * server_run listens at once, opens the engine on a thread of its own (GET /health says 503
 * "starting" meanwhile), serves until SIGINT or SIGTERM, lets running requests finish within the
 * grace time and returns.  A second signal ends the process at once.
 *
 * Threads: the caller's thread becomes the server thread (event loop, HTTP, JSON, detokenising);
 * large bodies are parsed, rendered and tokenised on helper threads; the engine has its own. */
#ifndef FST_SERVER_SERVER_H
#define FST_SERVER_SERVER_H

#include "base/base.h"
#include "chat/chat.h"
#include "firesteel/engine.h"
#include "grammar/grammar.h"
#include "server/http.h"

/* What is kept of calls that the model begins by itself. */
enum server_tool_grammar {
    SERVER_TOOLS_AUTO,  /* tags and names; of strict tools the schema too */
    SERVER_TOOLS_OFF,   /* as auto, but only where a tool is strict */
    SERVER_TOOLS_STRICT /* schemas of all tools, as far as they can be kept */
};

struct server_opts {
    struct fst_engine_opts engine;
    const char *tokenizer_path;    /* NULL: tokenizer.json of the model folder */
    const char *served_model_name; /* NULL: name of the model folder */
    const char *host;              /* "127.0.0.1" */
    int port;                      /* 30000; 0: any free one */
    const char *const *api_keys;   /* borrowed; none: no key is asked for */
    size_t n_api_keys;
    const char *admin_api_key; /* NULL: the normal keys also open the admin endpoints */
    bool allow_public;         /* listen on other than loopback addresses without a key */
    bool cors;
    struct http_limits limits;
    struct chat_defaults chat; /* profile is set from the checkpoint */
    /* Of calls that the model begins; blanks in JSON that must be JSON. */
    enum server_tool_grammar tool_grammar;
    enum grammar_space json_space;
    /* What is remembered of replies with calls (chat/memory.h). */
    size_t call_memory_ids;      /* 100,000 call ids; 0: nothing is remembered */
    size_t call_memory_bytes;    /* 256 MiB */
    const char *call_memory_dir; /* NULL: not kept on disk */
    int max_n;                   /* 128 choices per prompt */
    int64_t thinking_budget;     /* tokens of thoughts; -1: no limit; -2: by max_tokens (gen.h) */
    int stream_interval;         /* 1 token per event */
    double sse_keepalive_s;      /* 10; 0 off */
    int keep_max_s;       /* 900: the most that X-Firesteel-Keep may ask for; 0: nothing is kept */
    int keep_max_streams; /* 64 */
    int response_store;   /* 0: answers of /v1/responses that are kept by their id */
    double shutdown_grace_s;  /* 30 */
    double health_stall_s;    /* 30: unhealthy when work waits and no step ended for so long */
    double watchdog_s;        /* 300: and the process ends after so long; 0 off */
    double request_timeout_s; /* 0: none */
    bool skip_warmup;
    bool strict_model_name;     /* 404 for other names than the served one */
    bool strict_max_tokens;     /* 400 instead of clamping */
    bool incremental_streaming; /* /generate streams deltas instead of everything so far */
    bool enable_metrics;        /* true */
    const char *metrics_prefix; /* "sglang:" */
    int queue_full_status;      /* 503 or 429 */
    int log_requests_level;     /* 0 none, 1 one line at the end of each request, 2 also prompts */
    bool access_log;            /* one line per HTTP request */
    /* All flags as given, for /server_info: JSON members without braces, or "". */
    const char *flags_json;
};
void server_opts_default(struct server_opts *o);
/* Flags for the fields about prompts (call_memory_*, of `chat` the lines of system texts, grammars), and those
 * fields from parsed flags; texts are borrowed from o. */
struct options;
struct option_group;
extern const struct option_group server_prompt_group;
enum fst_status server_prompt_opts(struct server_opts *s, const struct options *o);

/* What a model folder says that the engine's door does not.  Any thread.
 * A whole number of its config.json; 0 when there is none: opening the engine says what is wrong. */
int64_t server_config_int(const char *model_dir, const char *key);
/* Append the ids below vocab_size that have no name.  Published checkpoints pad the vocabulary
 * (129,280 rows for 128,815 names): such a row must never be drawn, since it has no text. */
enum fst_status server_unnamed_ids(struct tokenizer_ids *out, const struct tokenizer *t,
                                   const char *model_dir);

/* FST_OK after an orderly stop.  Otherwise the message is in fst_error_text(). */
enum fst_status server_run(const struct server_opts *o);

#endif
