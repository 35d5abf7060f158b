/* gen.h - one generating HTTP request: prompts, engine requests, text streams, answer.
 *
 * A dialect (chat, messages, responses, completions, native) says how a body becomes prompts and
 * parameters and how the results are written; everything between is here and the same for all.
 *
 * Life: gen_run takes the exchange; the gen frees itself when it has answered or when the client is
 * gone; a kept one (keep.h) goes on without a client.  An engine handle is freed in gen_free and nowhere else; server.handles_taken and
 * handles_given must be equal when no gen is left. */
#ifndef FST_SERVER_GEN_H
#define FST_SERVER_GEN_H

#include "chat/watch.h"
#include "server/app.h"
#include "server/grammars.h"

enum { GEN_STOPS_MAX = 64, GEN_STOP_BYTES_MAX = 1024, GEN_CHOICES_MAX = 4096 };
/* Every choice holds its prompt's ids in the engine: so many bytes for one HTTP request. */
enum { GEN_COPIES_MAX = 256 << 20 };

struct field_reader; /* fields.h */

/* How to sample one prompt. */
struct gen_params {
    struct fst_sampling sampling; /* .choice is set per choice */
    int64_t max_new;              /* -1: to the end of the context */
    int64_t min_new;
    int n;
    bool ignore_eos, skip_special, no_stop_trim;
    struct chat_str stop[GEN_STOPS_MAX]; /* borrowed from the document */
    size_t n_stops;
    int32_t stop_id[FST_STOP_IDS_MAX];
    size_t n_stop_ids;
    bool logprobs;
    int top_logprobs;
    int64_t prompt_logprobs_from; /* -1: none */
    int prompt_top_logprobs;
    struct grammar_ask ask;      /* owned */
    struct fst_logit_bias *bias; /* owned; NULL */
    size_t n_bias;
    int64_t budget;  /* of thoughts, in tokens; GEN_BUDGET_* */
    bool loop_guard; /* ends what goes round in circles */
    bool rank;       /* choices are ranked: their log-probabilities are wanted (best_of) */
};
enum { GEN_BUDGET_NONE = -1, GEN_BUDGET_AUTO = -2 };
void gen_params_default(struct gen_params *p);
void gen_params_release(struct gen_params *p);
/* The fields that all endpoints share, under their names there.  openai: temperature ends at 2.
 * Any thread. */
bool gen_params_read(struct gen_params *p, const struct field_reader *r, const struct server *s,
                     bool openai);

struct gen_call {
    char *id, *name; /* owned */
    struct buf args;
    bool complete, cancelled;
};

struct gen_choice {
    struct gen *g;
    int index;              /* in the answer */
    int prompt;             /* index of its prompt */
    int k;                  /* of the prompt's n choices */
    uint64_t seed;          /* in force; the same for all choices of a prompt */
    fst_request *req;       /* owned */
    struct chat_stream *st; /* owned */
    struct chat_watch
        *watch; /* owned; NULL: nothing is to be watched.  The engine's thread feeds it */
    struct fst_request_view view; /* last seen; arrays live as long as req */
    size_t fed;
    size_t progress_seen, place_seen;
    bool began, done;
    int64_t last_token_ns;

    /* Everything so far (also while streaming: cumulative events and the end of a call need it). */
    struct buf content, reasoning;
    struct gen_call *calls; /* owned */
    size_t n_calls, cap_calls;

    /* Set when done. */
    const char *finish_reason; /* "stop", "length", "tool_calls", "abort" */
    int64_t matched_id;        /* -1 */
    int matched_stop;          /* index of the stop string; -1 */
    enum chat_watch_loop loop; /* that ended it */
    uint64_t n_tokens, n_reasoning;

    /* For the dialect's streams: text waiting for the end of this batch of tokens. */
    struct buf pending;
    enum chat_event_type pending_type;
    size_t sent_logprobs;
    size_t sent_text, sent_ids;
    int n_blocks, open_block; /* blocks begun; the kind of the one that is not ended, 0: none */
    bool has_answer;          /* one of them was text or a call */
};

struct gen;
struct gen_dialect {
    const char *name;
    enum api_shape shape;
    bool comments; /* keep-alive comments are understood */
    const char *id_prefix;
    const char *call_prefix; /* of call ids; NULL: "call_" */
    /* Read the body.  Runs on a helper thread for large ones: touches g alone, and of the server
     * only what is constant once it is ready. */
    bool (*prepare)(struct gen *g);
    void (*event)(struct gen_choice *c, const struct chat_event *e); /* streams only */
    void (*batch)(struct gen_choice *c);    /* streams only: a batch of tokens has been fed */
    void (*progress)(struct gen_choice *c); /* streams only: more of the prompt is read; or NULL */
    void (*choice_end)(struct gen_choice *c); /* streams only */
    /* All choices are done: write what is left; ends the exchange.  For a kept stream twice: first
     * with g->stream false, the whole answer for gen_reply. */
    void (*finish)(struct gen *g);
    /* The rest may be NULL. */
    /* A kept answer, which the engine has now: say so at once, or false: the head alone is sent. */
    bool (*accepted)(struct gen *g);
    /* The answer fails with g->err behind its head.  out NULL: the last event of a stream, which then
     * ends in order; else the whole answer.  NULL: the error alone. */
    void (*failed)(struct gen *g, struct buf *out);
    void (*release)(struct gen *g); /* frees ud */
    /* Streams: something that says no more than that the server is alive; NULL: a comment, if those
     * are understood. */
    void (*keep_alive)(struct gen *g);
};

struct gen {
    struct server *s;
    struct exch *x; /* NULL: the client is gone */
    const struct gen_dialect *d;
    struct gen *prev, *next;
    bool working, answered, aborted;
    struct keep *keep; /* borrowed: what outlives the connection; NULL: nothing does */
    int keep_s;        /* so long without a reader; 0: not kept */
    void *ud;          /* the dialect's */
    bool compiling;    /* of what a helper thread works on */

    struct buf body;
    struct json_doc *doc; /* until the requests are submitted */
    struct api_error err;

    char id[64];
    char *key;   /* owned: of the sender (auth_key) */
    char *rid;   /* owned; NULL: none */
    char *model; /* owned */
    int64_t created;
    int64_t start_ns, first_ns;

    struct tokenizer_ids *prompts; /* owned */
    size_t n_prompts;
    struct gen_params *params; /* owned; one, or one per prompt */
    size_t n_params;
    bool has_chat;
    struct hash128 tenant; /* of the call memory */
    struct hash128 salt;   /* of cached prompts; zero: none was given */
    struct chat_request chat;
    struct chat_prompt prompt;
    enum chat_stream_kind kind;

    struct tokenizer_ids force; /* owned: debug.force_ids */
    int64_t retract_at;         /* debug.retract_at */
    int n_best;                 /* of each prompt's choices so many are answered with; 0: all */
    bool stream, include_usage, continuous_usage, progress, timings, report_cache;
    bool echo, list, return_ids, text_in_logprobs, whole_reasoning;
    struct buf *echo_text; /* owned; (n_prompts) with echo */

    struct gen_choice *choices; /* owned */
    int n_choices, n_done;
};

void gen_run(struct server *s, struct exch *x, const struct gen_dialect *d);
/* Look at every running request (after a wake-up of the engine). */
void gen_update_all(struct server *s);
/* Cancel the requests of that name (rid or response id); NULL: all.  Returns how many gens. */
int gen_abort(struct server *s, const char *rid);

const struct gen_params *gen_params_of(const struct gen_choice *c);
/* The view that holds the prompt's log-probabilities: they are computed once, by the first choice of
 * the prompt. */
const struct fst_request_view *gen_prompt_view(const struct gen_choice *c);
/* For prepare: room for n prompts; a prompt checked against the context. */
bool gen_alloc_prompts(struct gen *g, size_t n);
bool gen_check_prompt(struct gen *g, size_t i, const char *param);
/* Ids of a JSON array appended to out. */
bool gen_read_ids(struct gen *g, json_val *array, const char *param, struct tokenizer_ids *out);
bool gen_set_model(struct gen *g, json_val *body);
bool gen_oom(struct gen *g);

/* api_chat.c: what dialects with messages share.  From the request in g->chat (rc: of reading it) to the
 * text of its prompt, remembered turns in place. */
bool gen_chat_render(struct gen *g, json_val *body, enum fst_status rc);
/* The first of these fields that is there is max_new; checked against the room of prompt 0. */
bool gen_read_max_tokens(struct gen *g, const struct field_reader *r, const char *const *names,
                         size_t n);
/* ask.c: what the fields of a body ask the reply to be; all dialects. */
bool gen_read_grammar(struct gen_params *p, const struct field_reader *r);
/* The same of a chat's tools and response format, after its prompt; joins what a field asked. */
bool gen_ask_chat(struct gen *g);
/* Takes what is kept; false: something has to be compiled, by gen_compile on a helper thread. */
bool gen_find_grammars(struct gen *g);
void gen_compile(struct gen *g);
/* What of the request's options follows from it; `text` is owned by the caller and lives until submit. */
bool gen_put_grammar(const struct gen_choice *c, struct fst_request_opts *ro, struct fst_gate *gate,
                     struct buf *text);
void gen_count_grammars(struct gen *g); /* in the metrics */

/* remember.c: keeps what the model wrote when the reply of this choice has calls. */
void remember_choice(const struct gen_choice *c);

/* The whole answer of one that is no stream, to its reader and to what is kept. */
void gen_reply(struct gen *g, const struct buf *json);
/* For `accepted`: answer now and go on without a reader. */
void gen_reply_early(struct gen *g, const struct buf *json);
/* Another reader takes over; the one before is let go. */
void gen_attach(struct gen *g, struct exch *x);
void gen_drop(struct gen *g); /* cancel and free a kept one */
/* Head of a stream; token NULL: not kept. */
void gen_stream_head(struct exch *x, const char *token);

/* For streams: the head if it is not out yet, then one event. */
void gen_send_event(struct gen *g, const struct buf *json);
void gen_send_named(struct gen *g, const char *type, const struct buf *json); /* "event: type" */
void gen_end(struct gen *g);       /* of a stream and its exchange, if somebody reads */
void gen_send_done(struct gen *g); /* "data: [DONE]" before it */

/* Of chat, completions and messages: stream, stream_options, return_progress, timings_per_token. */
bool gen_read_stream(struct gen *g, const struct field_reader *r);

/* Stop strings of a field, appended to those there are. */
bool gen_read_stops(struct gen_params *p, const struct field_reader *r, const char *name);

/* Shared pieces of answers. */
/* {"id","object","created","model","choices":[ */
void gen_put_head(const struct gen *g, struct buf *b, const char *object);
/* What follows a choice in a chunk, the braces closed; last: it ends the choice. */
void gen_put_chunk_tail(const struct gen_choice *c, struct buf *b, bool last);
void gen_put_progress(const struct gen_choice *c, struct buf *b); /* with the comma before it */
void gen_put_progress_object(const struct gen_choice *c, struct buf *b);
/* Usage to the end of a plain answer; then it is sent. */
void gen_answer(struct gen *g, struct buf *b);
/* The end of a stream: the usage chunk if it is wanted, and [DONE]. */
void gen_end_stream(struct gen *g, const char *object);
void gen_put_usage(const struct gen *g, struct buf *b);
void gen_put_choice_usage(const struct gen_choice *c, struct buf *b);
void gen_put_timings(const struct gen *g, struct buf *b);
/* Of dialects whose replies begin with thoughts: the budget of these, in any of its spellings (the server's where
 * none is given), and loop_guard (on by default).  A budget leaves room for an answer: max_tokens less
 * max(64, max_tokens / 4) at most, which is also what `auto` means. */
bool gen_read_budget(struct gen *g, const struct field_reader *r);
bool gen_read_guard(struct gen *g, const struct field_reader *r);
/* ,"finish_details":{..} of a reply that a loop ended; nothing otherwise. */
void gen_put_finish_details(const struct gen_choice *c, struct buf *b);
/* cache_salt, debug, and what of `firesteel` is asked for; all dialects. */
bool gen_read_cache(struct gen *g, const struct field_reader *r);
/* ,"firesteel":{..} with what was asked for; nothing otherwise. */
void gen_put_firesteel(const struct gen_choice *c, struct buf *b);
void gen_put_matched(const struct gen_choice *c, struct buf *b);
void gen_put_token_text(const struct server *s, struct buf *b, int32_t id); /* quoted, lossy */
double gen_put_logprob(struct buf *b, float x);                             /* -inf: -9999.0 */

#endif
