/* app.h - what the files of this folder share: the server's state, errors, routes.
 * Everything here belongs to the server thread unless it says otherwise. */
#ifndef FST_SERVER_APP_H
#define FST_SERVER_APP_H

#include <pthread.h>

#include "base/json.h"
#include "base/rng.h"
#include "chat/memory.h"
#include "server/http.h"
#include "server/loop.h"
#include "server/metrics.h"
#include "server/server.h"
#include "tokenizer/tokenizer.h"

enum server_state { SERVER_STARTING, SERVER_READY, SERVER_DRAINING, SERVER_FAILED };

struct gen;
struct response_store;
struct grammars;
struct gate_rules;

struct server {
    struct server_opts o;
    struct loop *loop;
    enum server_state state;
    fst_engine *engine;         /* set when READY; constant afterwards */
    struct tokenizer *tok;      /* the same; read by helper threads */
    struct chat_memory *memory; /* set when READY unless it is off; locks itself */
    bool saving, unsaved;       /* a helper thread writes it; there is more to write */
    struct grammars *grammars;  /* the same; locks itself */
    struct gate_rules *gates;   /* the same; constant */
    struct fst_engine_info info;
    struct chat_defaults chat;
    char model_name[256];
    char model_dir[4096];
    int64_t created; /* wall clock, s */
    int64_t start_ns, ready_ns;
    int port;
    struct gen *gens; /* running generations */
    int n_gens;
    struct response_store *responses; /* NULL: none is kept */
    struct keep *keeps;               /* answers that outlive their connections (keep.h) */
    int n_keeps;
    int n_compiling;                       /* of these, whose grammar is being compiled */
    uint64_t handles_taken, handles_given; /* engine requests submitted, freed */
    struct metrics m;
    struct rng seeds; /* of prompts that bring none */
    struct hash128
        salt; /* of this process or its folder (secret.c): nobody outside can make two keys alike */
    int64_t drain_deadline_ms;
    int64_t stop_ns; /* when it was told to stop; 0: not yet */
    bool cancelled_all;
    int64_t last_log_ns;
    uint64_t last_log_steps;
    enum fst_status end_status;

    pthread_t loader;
    /* The loading thread's, until it raises `stage`; then the server thread takes everything over. */
    struct {
        _Atomic int stage; /* LOAD_* */
        fst_engine *engine;
        struct tokenizer *tok;
        struct chat_memory *memory;
        struct grammars *grammars;
        struct gate_rules *gates;
        struct fst_engine_info info;
        struct hash128 salt;
        enum chat_profile profile;
        enum fst_status rc;
        char message[1024];
        _Atomic uint64_t done, total;
        const char *_Atomic what; /* "tokenizer", "checkpoint", "warm-up" */
    } load;
};

/* ------------------------------------------------------------------ errors */

struct api_error {
    int status;              /* 0: none */
    const char *type, *code; /* static; code NULL: null */
    char param[160];         /* "": null */
    char message[1400];
    int64_t n_prompt, n_ctx; /* for context_length_exceeded */
};
/* Record an error (the first stays) and return false.  type NULL: by status.  param may be NULL. */
bool api_fail(struct api_error *e, int status, const char *code, const char *param, const char *fmt,
              ...) __attribute__((format(printf, 5, 6)));
/* From an engine or chat status; FST_EINVAL is 400. */
bool api_fail_status(struct api_error *e, enum fst_status rc, const char *param);
const char *api_error_type(int status);

enum api_shape {
    SHAPE_OPENAI,   /* {"object":"error","message":...,"error":{message,type,param,code}} */
    SHAPE_NATIVE,   /* {"error":{message,type,code:status}} */
    SHAPE_ANTHROPIC /* {"type":"error","error":{type,message},"request_id":...} */
};
/* request_id: of the exchange, for SHAPE_ANTHROPIC. */
void api_error_json(struct buf *out, const struct api_error *e, enum api_shape shape,
                    const char *request_id);
/* What goes into a stream whose head is already out: {"error":{...,"code":status}}, or Anthropic's shape. */
void api_error_stream_json(struct buf *out, const struct api_error *e, enum api_shape shape,
                           const char *request_id);
void api_send_error(struct exch *x, const struct api_error *e, enum api_shape shape);
void api_send(struct exch *x, int status, const struct buf *json);

/* `s` cut to 64 bytes at a code point, for messages that quote what was received. */
const char *api_quote(char out[96], const char *s, size_t len);
/* A JSON value as text cut the same way. */
const char *api_quote_value(char out[96], json_val *v);

/* prefix + 24 random letters and digits. */
void api_random_id(char out[64], const char *prefix);

/* ------------------------------------------------------------------ kept prompts */

/* secret.c: the folder's own, made at the first time.  FST_EIO, FST_EFORMAT, FST_EAGAIN name the file. */
enum fst_status secret_of_folder(const char *dir, struct hash128 *out);

/* ------------------------------------------------------------------ remembered calls */

/* Whose turns a request may have back: those of its key and its "cache_salt".  False for a salt that
 * is no text.  Any thread. */
bool remember_tenant(const struct server *s, const char *key, json_val *body, struct hash128 *out,
                     struct api_error *e);

/* ------------------------------------------------------------------ routing */

void route_dispatch(struct server *s, struct exch *x);
/* Of errors at this path; NULL: not known yet. */
enum api_shape route_shape(const char *path);
/* True when the request may pass, else the error is filled in. */
bool auth_check(const struct server *s, const struct exch *x, bool admin, struct api_error *e);
/* The key that let this request in, "" when none is asked for. */
const char *auth_key(const struct server *s, const struct exch *x);
bool auth_equal(const char *a, const char *b); /* time depends on the length of b alone */

void api_chat(struct server *s, struct exch *x);
void api_messages(struct server *s, struct exch *x);
void api_count_tokens(struct server *s, struct exch *x);
void api_completions(struct server *s, struct exch *x);
void api_generate(struct server *s, struct exch *x);
void api_tokenize(struct server *s, struct exch *x);
void api_detokenize(struct server *s, struct exch *x);
void api_apply_template(struct server *s, struct exch *x);
void api_parse_calls(struct server *s, struct exch *x);
void api_separate_reasoning(struct server *s, struct exch *x);
void api_page(struct server *s, struct exch *x);
void api_health(struct server *s, struct exch *x);
void api_health_generate(struct server *s, struct exch *x);
void api_models(struct server *s, struct exch *x);
void api_model_info(struct server *s, struct exch *x);
void api_server_info(struct server *s, struct exch *x);
void api_responses(struct server *s, struct exch *x);
void api_responses_get(struct server *s, struct exch *x);
void api_responses_cancel(struct server *s, struct exch *x);
void api_streams(struct server *s, struct exch *x);
void api_load(struct server *s, struct exch *x);
void api_metrics(struct server *s, struct exch *x);
void api_abort(struct server *s, struct exch *x);
void api_internal_state(struct server *s, struct exch *x);
void api_flush_cache(struct server *s, struct exch *x);

/* Seconds since the engine's last sign of life (a block of a step) while work waits; 0 when idle. */
double server_stalled_s(const struct server *s);
struct fst_engine_stats server_stats(const struct server *s); /* zeros before READY */

#endif
