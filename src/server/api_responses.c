/* api_responses.c - POST /v1/responses, GET /v1/responses/{id}, POST /v1/responses/{id}/cancel. */
#include "server/fields.h"
#include "server/keep.h"
#include "server/responses.h"

/* ------------------------------------------------------------------ request */

static bool read_reasoning(struct response *r, json_val *body, struct api_error *e)
{
    static const char *const words[] = {"auto", "concise", "detailed"};
    json_val *o = json_get(body, "reasoning");
    struct field_reader top = {body, "", e}, in = {o, "reasoning.", e};
    const char *summary = NULL;
    size_t len = 0;
    char q[96];
    if (!json_is_null(o) && json_type_of(o) != JSON_OBJECT)
        return field_type_error(&top, "reasoning", "an object");
    if (!field_str(&in, "generate_summary", &summary, &len) ||
        !field_str(&in, "summary", &summary, &len))
        return false;
    for (size_t i = 0; summary && i < FST_COUNT(words); i++)
        if (!strcmp(summary, words[i]))
            r->summary = true;
    if (summary && !r->summary)
        return api_fail(e, 400, "invalid_value", "reasoning.summary",
                        "reasoning.summary must be auto, concise or detailed, got '%s'",
                        api_quote(q, summary, len));
    return true;
}

/* What the answer says again of the request, as it was received or what it stands for. */
static void put_echo(struct buf *b, json_val *body)
{
    static const struct {
        const char *name, *value;
    } members[] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"previous_response_id", "null"},
        {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"service_tier", "\"default\""},
        {"temperature", "1.0"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_p", "1.0"},
        {"truncation", "\"disabled\""},
        {"user", "null"},
    };
    for (size_t i = 0; i < FST_COUNT(members); i++) {
        json_val *v = json_get(body, members[i].name);
        buf_printf(b, ",\"%s\":", members[i].name);
        if (json_is_null(v))
            buf_puts(b, members[i].value);
        else
            json_put(b, v, JSON_COMPACT);
    }
}

/* The conversation before the input into r->before; *doc: the same, parsed, with its array in *list. */
static bool read_previous(struct gen *g, json_val *body, struct json_doc **doc, json_val **list)
{
    struct response *r = g->ud;
    struct field_reader fr = {body, "", &g->err};
    const char *id = NULL;
    struct buf text = {0};
    if (!field_str(&fr, "previous_response_id", &id, NULL))
        return false;
    if (!id)
        return true;
    char q[96];
    if (!response_store_get(g->s->responses, id, g->key, NULL, &r->before))
        return r->before.failed
                   ? gen_oom(g)
                   : api_fail(&g->err, 400, "previous_response_not_found", "previous_response_id",
                              "previous_response_id: no response of id '%s' is kept%s; replay the "
                              "full input",
                              api_quote(q, id, strlen(id)),
                              g->s->responses ? "" : " (--response-store 0)");
    buf_putc(&text, '[');
    buf_append(&text, r->before.data, r->before.len);
    buf_putc(&text, ']');
    bool ok = !text.failed && json_parse(doc, text.data, text.len) == FST_OK;
    buf_release(&text);
    if (!ok)
        return gen_oom(g);
    *list = json_root(*doc);
    return true;
}

/* What the input adds to the conversation, for the store. */
static void add_input(struct buf *b, json_val *input)
{
    size_t len;
    const char *s = json_string(input, &len);
    if (s && len) {
        buf_puts(b,
                 b->len ? ",{\"role\":\"user\",\"content\":" : "{\"role\":\"user\",\"content\":");
        json_put_string_safe(b, s, len);
        buf_putc(b, '}');
    }
    for (size_t i = 0; i < json_count(input); i++) {
        if (b->len)
            buf_putc(b, ',');
        json_put(b, json_at(input, i), JSON_COMPACT);
    }
}

static bool render(struct gen *g, json_val *body)
{
    struct response *r = g->ud;
    struct json_doc *doc = NULL;
    json_val *before = NULL;
    if (!read_previous(g, body, &doc, &before))
        return false;
    g->has_chat = true;
    enum fst_status rc = chat_request_from_responses(&g->chat, body, before, &g->s->chat);
    bool ok = gen_chat_render(g, body, rc);
    json_free(doc);
    if (r->store && ok)
        add_input(&r->before, json_get(body, "input"));
    if (!ok || !gen_alloc_prompts(g, 1))
        return false;
    if (chat_encode(&g->prompt, g->s->tok, &g->prompts[0]) < 0)
        return gen_oom(g);
    return gen_check_prompt(g, 0, "input");
}

static bool read_background(struct gen *g, const struct field_reader *r)
{
    struct response *o = g->ud;
    if (!field_bool(r, "background", &o->background))
        return false;
    return !o->background || g->keep_s || keep_set(g, g->s->o.keep_max_s, "background");
}

static bool prepare(struct gen *g)
{
    static const char *const limits[] = {"max_output_tokens", "max_completion_tokens",
                                         "max_tokens"};
    json_val *body = json_root(g->doc);
    struct field_reader r = {body, "", &g->err};
    struct response *o = mem_calloc(1, sizeof *o);
    g->ud = o;
    g->kind = CHAT_STREAM_CHAT;
    g->params = mem_calloc(1, sizeof *g->params);
    if (!g->params || !o)
        return gen_oom(g);
    g->n_params = 1;
    gen_params_default(g->params);
    o->store = g->s->responses != NULL;
    if (!gen_set_model(g, body) || !fields_check(body, ON_RESPONSES, "", &g->err) ||
        !read_reasoning(o, body, &g->err) || !field_bool(&r, "store", &o->store) ||
        !gen_params_read(g->params, &r, g->s, true) || !field_bool(&r, "stream", &g->stream) ||
        !field_bool(&r, "return_progress", &g->progress) ||
        !field_bool(&r, "timings_per_token", &g->timings) || !gen_read_cache(g, &r) ||
        !gen_read_budget(g, &r) || !gen_read_guard(g, &r) || !read_background(g, &r) ||
        !render(g, body) || !gen_read_max_tokens(g, &r, limits, FST_COUNT(limits)))
        return false;
    o->store &= g->s->responses != NULL;
    put_echo(&o->echo, body);
    return !o->echo.failed || gen_oom(g);
}

/* ------------------------------------------------------------------ answer */

static void keep_response(struct gen *g)
{
    struct response *r = g->ud;
    struct buf answer = {0};
    if (!r->store || r->stored || g->err.status)
        return;
    r->stored = true;
    response_put(g, &answer, NULL);
    if (r->before.len)
        buf_putc(&r->before, ',');
    response_put_items(g, &r->before);
    response_store_put(g->s->responses, g->id, g->key, &answer, &r->before);
    buf_release(&answer);
}

static void finish(struct gen *g)
{
    struct buf b = {0};
    if (g->stream) {
        response_end(g, NULL);
        keep_response(g);
        gen_end(g);
        return;
    }
    response_put(g, &b, NULL);
    keep_response(g);
    gen_reply(g, &b);
    buf_release(&b);
}

static bool accepted(struct gen *g)
{
    const struct response *r = g->ud;
    if (g->stream) {
        response_created(g);
        return true;
    }
    if (!r->background)
        return false;
    struct buf b = {0};
    response_put(g, &b, "queued"); /* also when the engine was quicker */
    gen_reply_early(g, &b);
    buf_release(&b);
    return true;
}

static void failed(struct gen *g, struct buf *out)
{
    if (out)
        response_put(g, out, "failed");
    else
        response_end(g, "failed");
}

static void release(struct gen *g)
{
    struct response *r = g->ud;
    buf_release(&r->echo);
    buf_release(&r->before);
    mem_free(r->items);
    mem_free(r);
}

static const struct gen_dialect dialect = {
    .name = "responses",
    .shape = SHAPE_OPENAI,
    .comments = true,
    .id_prefix = "resp_",
    .prepare = prepare,
    .event = response_event,
    .batch = response_batch,
    .progress = response_progress,
    .choice_end = response_choice_end,
    .finish = finish,
    .accepted = accepted,
    .failed = failed,
    .release = release,
};

void api_responses(struct server *s, struct exch *x)
{
    gen_run(s, x, &dialect);
}

/* ------------------------------------------------------------------ by id */

static struct gen *running(const struct server *s, const char *id, const char *key)
{
    for (struct gen *g = s->gens; g; g = g->next)
        if (g->d == &dialect && g->n_choices && !g->answered && !strcmp(g->id, id) &&
            auth_equal(key, g->key))
            return g;
    return NULL;
}

static void not_found(struct exch *x, const char *id)
{
    struct api_error e = {0};
    char q[96];
    api_fail(&e, 404, "response_not_found", "response_id",
             "Response with id '%s' not found: it is neither being made nor kept "
             "(--response-store, background)",
             api_quote(q, id, strlen(id)));
    api_send_error(x, &e, SHAPE_OPENAI);
}

static void send_answer(struct exch *x, const struct buf *b)
{
    if (!b->failed) {
        api_send(x, 200, b);
        return;
    }
    struct api_error e = {0};
    api_fail(&e, 503, "out_of_memory", NULL, "out of memory for this answer");
    api_send_error(x, &e, SHAPE_OPENAI);
}

/* An answer that is whole: kept for its reader, or stored. */
static void send_whole(struct server *s, struct exch *x, const char *id)
{
    const struct keep *k = keep_find(s, id, auth_key(s, x));
    struct buf b = {0};
    if (k && k->status)
        buf_append(&b, k->answer.data, k->answer.len);
    if ((k && k->status) || response_store_get(s->responses, id, auth_key(s, x), &b, NULL))
        send_answer(x, &b);
    else
        not_found(x, id);
    buf_release(&b);
}

/* ?starting_after=K: the events behind sequence number K, which are numbered from 0. */
static void send_events(struct keep *k, struct exch *x)
{
    char text[24], q[96];
    uint64_t after = 0;
    if (exch_query(x, "starting_after", text, sizeof text)) {
        size_t n = strlen(text);
        if (!n || n > 18 || strspn(text, "0123456789") != n) {
            struct api_error e = {0};
            api_fail(&e, 400, "invalid_value", "starting_after",
                     "starting_after: expected the sequence number of an event, got '%s'",
                     api_quote(q, text, n));
            api_send_error(x, &e, SHAPE_OPENAI);
            return;
        }
        after = strtoull(text, NULL, 10) + 1;
    }
    keep_send(k, x, after);
}

void api_responses_get(struct server *s, struct exch *x)
{
    const char *id = x->path + strlen("/v1/responses/");
    struct gen *g = running(s, id, auth_key(s, x));
    struct keep *k = keep_find(s, id, auth_key(s, x));
    char stream[8] = "";
    exch_query(x, "stream", stream, sizeof stream);
    if (k && !strcmp(stream, "true") && x->verb != VERB_HEAD) {
        send_events(k, x);
        return;
    }
    if (!g) {
        send_whole(s, x, id);
        return;
    }
    struct buf b = {0};
    struct gen_choice *c = &g->choices[0];
    fst_request_get_view(c->req, &c->view);
    if (k)
        keep_touch(k);
    response_put(g, &b, c->view.queue_place ? "queued" : NULL);
    send_answer(x, &b);
    buf_release(&b);
}

void api_responses_cancel(struct server *s, struct exch *x)
{
    size_t prefix = strlen("/v1/responses/"), n = strlen(x->path) - prefix - strlen("/cancel");
    char id[64] = "";
    if (n < sizeof id) {
        memcpy(id, x->path + prefix, n);
        id[n] = 0;
    }
    struct gen *g = running(s, id, auth_key(s, x));
    if (!g) {
        send_whole(s, x, id);
        return;
    }
    struct buf b = {0};
    gen_abort(s, g->id);
    response_put(g, &b, "cancelled");
    send_answer(x, &b);
    buf_release(&b);
}
