/* route.c - one table of endpoints; what every request meets before its handler. */
#include "server/app.h"

enum { R_GET = 1, R_POST = 2, R_PUT = 4 };
enum {
    F_OPEN = 1,      /* no key asked for */
    F_ADMIN = 2,     /* the admin key, when there is one */
    F_NATIVE = 4,    /* native error shape */
    F_ENGINE = 8,    /* needs the engine: 503 while starting and when shutting down */
    F_ANTHROPIC = 16 /* Anthropic's error shape */
};

struct route {
    const char *path;
    unsigned verbs, flags;
    void (*handler)(struct server *s, struct exch *x);
};

static const struct route routes[] = {
    {"/", R_GET, F_OPEN, api_page},
    {"/health", R_GET, F_OPEN, api_health},
    {"/v1/health", R_GET, F_OPEN, api_health},
    {"/health_generate", R_GET, F_OPEN | F_ENGINE, api_health_generate},
    {"/metrics", R_GET, F_OPEN, api_metrics},
    {"/v1/models", R_GET, 0, api_models},
    {"/models", R_GET, 0, api_models},
    {"/v1/chat/completions", R_POST, F_ENGINE, api_chat},
    {"/chat/completions", R_POST, F_ENGINE, api_chat},
    {"/v1/messages", R_POST, F_ENGINE | F_ANTHROPIC, api_messages},
    {"/anthropic/v1/messages", R_POST, F_ENGINE | F_ANTHROPIC, api_messages},
    {"/v1/messages/count_tokens", R_POST, F_ENGINE | F_ANTHROPIC, api_count_tokens},
    {"/anthropic/v1/messages/count_tokens", R_POST, F_ENGINE | F_ANTHROPIC, api_count_tokens},
    {"/v1/completions", R_POST, F_ENGINE, api_completions},
    {"/completions", R_POST, F_ENGINE, api_completions},
    {"/generate", R_POST | R_PUT, F_ENGINE | F_NATIVE, api_generate},
    {"/tokenize", R_POST, F_ENGINE, api_tokenize},
    {"/v1/tokenize", R_POST, F_ENGINE, api_tokenize},
    {"/detokenize", R_POST, F_ENGINE, api_detokenize},
    {"/v1/detokenize", R_POST, F_ENGINE, api_detokenize},
    {"/apply-template", R_POST, F_ENGINE, api_apply_template},
    {"/v1/responses", R_POST, F_ENGINE, api_responses},
    {"/parse_function_call", R_POST, F_ENGINE, api_parse_calls},
    {"/separate_reasoning", R_POST, F_ENGINE, api_separate_reasoning},
    {"/server_info", R_GET, 0, api_server_info},
    {"/get_server_info", R_GET, 0, api_server_info},
    {"/model_info", R_GET, 0, api_model_info},
    {"/get_model_info", R_GET, 0, api_model_info},
    {"/get_load", R_GET, 0, api_load},
    {"/v1/loads", R_GET, 0, api_load},
    {"/abort_request", R_POST, F_ADMIN, api_abort},
    {"/set_internal_state", R_POST, F_ADMIN | F_ENGINE, api_internal_state},
    {"/flush_cache", R_GET | R_POST, F_ADMIN | F_ENGINE, api_flush_cache},
};

static void allow_header(struct exch *x, unsigned verbs)
{
    char allow[64];
    snprintf(allow, sizeof allow, "%s%s%sOPTIONS", verbs & R_GET ? "GET, HEAD, " : "",
             verbs & R_POST ? "POST, " : "", verbs & R_PUT ? "PUT, " : "");
    exch_add_header(x, "Allow", allow);
}

static unsigned verb_bit(enum http_verb v)
{
    switch (v) {
    case VERB_GET:
    case VERB_HEAD:
        return R_GET;
    case VERB_POST:
        return R_POST;
    case VERB_PUT:
        return R_PUT;
    default:
        return 0;
    }
}

/* Names below these paths. */
static const struct route below[] = {
    {"/v1/models/", R_GET, 0, api_models},
    {"/v1/responses/", R_GET, 0, api_responses_get},
    {"/v1/streams/", R_GET, 0, api_streams},
};
static const struct route cancel = {"/v1/responses/{id}/cancel", R_POST, 0, api_responses_cancel};

static const struct route *find(const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    for (size_t i = 0; i < FST_COUNT(routes); i++)
        if (strlen(routes[i].path) == len && !memcmp(routes[i].path, path, len))
            return &routes[i];
    for (size_t i = 0; i < FST_COUNT(below); i++) {
        size_t n = strlen(below[i].path);
        if (len > n && !memcmp(below[i].path, path, n))
            return i == 1 && len > n + 7 && !memcmp(path + len - 7, "/cancel", 7) ? &cancel
                                                                                  : &below[i];
    }
    return NULL;
}

enum api_shape route_shape(const char *path)
{
    const struct route *r = path ? find(path) : NULL;
    if (r)
        return r->flags & F_NATIVE      ? SHAPE_NATIVE
               : r->flags & F_ANTHROPIC ? SHAPE_ANTHROPIC
                                        : SHAPE_OPENAI;
    /* What that API has and this server has not: /v1/messages/batches, ... */
    return path && (!strncmp(path, "/v1/messages/", 13) || !strncmp(path, "/anthropic/", 11))
               ? SHAPE_ANTHROPIC
               : SHAPE_OPENAI;
}

void route_dispatch(struct server *s, struct exch *x)
{
    struct api_error e = {0};
    s->m.http_requests++;
    const struct route *r = find(x->path);
    if (s->o.cors) {
        exch_add_header(x, "Access-Control-Allow-Origin", "*");
        exch_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        exch_add_header(x, "Access-Control-Allow-Headers", "*");
        exch_add_header(x, "Access-Control-Expose-Headers", "*");
    }
    if (s->info.debug_hooks)
        exch_add_header(x, "X-Firesteel-Debug", s->info.debug_hooks);
    if (x->verb == VERB_OPTIONS) {
        if (r)
            allow_header(x, r->verbs);
        exch_reply(x, 204, NULL, "", 0);
        return;
    }
    enum api_shape shape = route_shape(x->path);
    if (shape == SHAPE_ANTHROPIC)
        exch_add_header(x, "request-id", x->request_id); /* where its clients look for it */
    bool open = r && (r->flags & F_OPEN);
    if (!open && !auth_check(s, x, r && (r->flags & F_ADMIN), &e)) {
        api_send_error(x, &e, shape);
        return;
    }
    if (!r) {
        char q[96];
        api_fail(&e, 404, "unknown_endpoint", NULL, "unknown endpoint %s %s", x->verb_name,
                 api_quote(q, x->path, strlen(x->path)));
        api_send_error(x, &e, shape);
        return;
    }
    if (!(verb_bit(x->verb) & r->verbs)) {
        allow_header(x, r->verbs);
        api_fail(&e, 405, "method_not_allowed", NULL, "%s does not take %s", r->path, x->verb_name);
        api_send_error(x, &e, shape);
        return;
    }
    if (r->flags & F_ENGINE) {
        if (s->state == SERVER_DRAINING || s->state == SERVER_FAILED)
            api_fail(&e, 503, "shutting_down", NULL, "server shutting down");
        else if (s->state == SERVER_STARTING)
            api_fail(&e, 503, "starting", NULL, "Loading model");
        if (e.status) {
            api_send_error(x, &e, shape);
            return;
        }
    }
    r->handler(s, x);
}
