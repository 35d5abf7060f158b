/* api_chat.c - POST /v1/chat/completions. */
#include "server/fields.h"
#include "server/gen.h"

/* ------------------------------------------------------------------ request */

static bool check_response_format(json_val *body, struct api_error *e)
{
    json_val *f = json_get(body, "response_format");
    if (json_is_null(f))
        return true;
    size_t len;
    const char *type = json_string(json_get(f, "type"), &len);
    char q[96];
    if (json_type_of(f) != JSON_OBJECT || !type)
        return api_fail(e, 400, "invalid_type", "response_format",
                        "response_format: expected an object with a string 'type', got %s",
                        api_quote_value(q, f));
    if (!strcmp(type, "structural_tag"))
        return api_fail(e, 400, "unsupported_parameter", "response_format",
                        "response_format.type '%s' is not supported: text, json_object and "
                        "json_schema are allowed",
                        api_quote(q, type, len));
    return true; /* chat_response_format_from_json */
}

static bool read_logprobs(struct gen *g, const struct field_reader *r)
{
    struct gen_params *p = g->params;
    int64_t top = 0;
    if (!field_bool(r, "logprobs", &p->logprobs) ||
        !field_int(r, "top_logprobs", 0, FST_TOP_LOGPROBS_MAX, &top))
        return false;
    if (top > 0 && !p->logprobs)
        return api_fail(r->e, 400, "invalid_value", "top_logprobs",
                        "top_logprobs needs logprobs: true, got top_logprobs %d", (int)top);
    p->top_logprobs = (int)top;
    return true;
}

bool gen_read_max_tokens(struct gen *g, const struct field_reader *r, const char *const *names,
                         size_t n_names)
{
    const char *used = NULL;
    for (size_t i = 0; i < n_names; i++) {
        int64_t n = 0;
        char q[96];
        json_val *v = json_get(r->object, names[i]);
        if (json_is_null(v))
            continue;
        if (!field_int(r, names[i], INT64_MIN, INT64_MAX, &n))
            return false;
        if (n <= 0)
            return api_fail(r->e, 400, "invalid_value", names[i], "%s must be positive, got %s",
                            names[i], api_quote_value(q, v));
        if (!used) {
            used = names[i];
            g->params->max_new = n;
        }
    }
    int64_t room = g->s->info.context_length - (int64_t)g->prompts[0].n;
    if (used && g->s->o.strict_max_tokens && g->params->max_new > room)
        return api_fail(r->e, 400, "invalid_value", used,
                        "%s is too large: %lld. The context has room for %lld tokens.", used,
                        (long long)g->params->max_new, (long long)room);
    int64_t limit = g->params->max_new >= 0 ? FST_MIN(g->params->max_new, room) : room;
    if (g->params->min_new > limit)
        return api_fail(r->e, 400, "invalid_value", "min_tokens",
                        "min_tokens must be at most the %lld tokens there is room for, got %lld",
                        (long long)limit, (long long)g->params->min_new);
    return true;
}

bool gen_chat_render(struct gen *g, json_val *body, enum fst_status rc)
{
    struct api_error *e = &g->err;
    if (rc == FST_OK && !remember_tenant(g->s, g->key, body, &g->tenant, e))
        return false;
    g->chat.memory = g->s->memory;
    g->chat.tenant = g->tenant;
    if (rc == FST_OK && g->chat.n_messages)
        rc = chat_render(&g->prompt, &g->chat);
    if (rc == FST_ENOMEM)
        return gen_oom(g);
    return rc == FST_OK ||
           api_fail(e, 400, g->chat.error_code ? g->chat.error_code : "invalid_value",
                    g->chat.error_param, "%s", fst_error_text());
}

static bool render(struct gen *g, json_val *body)
{
    struct api_error *e = &g->err;
    json_val *ids = json_get(body, "input_ids");
    json_val *messages = json_get(body, "messages");
    if (json_is_null(ids) || !json_is_null(messages)) {
        if (json_is_null(messages) ||
            (json_type_of(messages) == JSON_ARRAY && !json_count(messages)))
            return api_fail(e, 400, "invalid_value", "messages", "Messages cannot be empty.");
    }
    g->has_chat = true;
    enum fst_status rc = FST_OK;
    chat_request_init(&g->chat, &g->s->chat);
    if (json_is_null(messages)) /* ids alone: an assistant's turn of unknown shape */
        rc = chat_response_format_from_json(&g->chat, json_get(body, "response_format"));
    else
        rc = chat_request_from_json(&g->chat, body, &g->s->chat);
    if (!gen_chat_render(g, body, rc) || !gen_alloc_prompts(g, 1))
        return false;
    if (!json_is_null(ids)) {
        if (json_type_of(ids) != JSON_ARRAY)
            return field_type_error(&(struct field_reader){body, "", e}, "input_ids",
                                    "an array of integers");
        struct tokenizer_ids *p = &g->prompts[0];
        if (!gen_read_ids(g, ids, "input_ids", p))
            return false;
        if (json_is_null(messages) && p->n &&
            p->id[p->n - 1] == tokenizer_specials(g->s->tok)->think)
            g->prompt.start = CHAT_START_REASONING;
        return gen_check_prompt(g, 0, "input_ids");
    }
    if (chat_encode(&g->prompt, g->s->tok, &g->prompts[0]) < 0)
        return gen_oom(g);
    return gen_check_prompt(g, 0, "messages");
}

static bool prepare(struct gen *g)
{
    static const char *const limits[] = {"max_completion_tokens", "max_tokens"};
    json_val *body = json_root(g->doc);
    struct field_reader r = {body, "", &g->err};
    g->kind = CHAT_STREAM_CHAT;
    g->params = mem_calloc(1, sizeof *g->params);
    if (!g->params)
        return gen_oom(g);
    g->n_params = 1;
    gen_params_default(g->params);
    bool whole = true;
    if (!gen_set_model(g, body) || !fields_check(body, ON_CHAT, "", &g->err) ||
        !check_response_format(body, &g->err) || !gen_params_read(g->params, &r, g->s, true) ||
        !read_logprobs(g, &r) || !gen_read_stream(g, &r) || !gen_read_cache(g, &r) ||
        !gen_read_budget(g, &r) || !gen_read_guard(g, &r) ||
        !field_bool(&r, "stream_reasoning", &whole) || !render(g, body) ||
        !gen_read_max_tokens(g, &r, limits, FST_COUNT(limits)))
        return false;
    g->whole_reasoning = !whole;
    return true;
}

/* ------------------------------------------------------------------ log-probabilities */

static void put_entry(const struct gen *g, struct buf *b, int32_t id, float logprob)
{
    size_t len;
    const char *bytes = tokenizer_bytes(g->s->tok, id, &len);
    buf_puts(b, "{\"token\":");
    gen_put_token_text(g->s, b, id);
    buf_puts(b, ",\"logprob\":");
    gen_put_logprob(b, logprob);
    buf_puts(b, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
        buf_printf(b, "%s%u", i ? "," : "", (unsigned char)bytes[i]);
    buf_putc(b, ']');
}

static void put_entries(const struct gen_choice *c, struct buf *b, size_t from, size_t to)
{
    const struct gen_params *p = gen_params_of(c);
    const struct fst_request_view *v = &c->view;
    for (size_t i = from; i < to; i++) {
        if (i > from)
            buf_putc(b, ',');
        put_entry(c->g, b, v->ids[i], v->logprobs[i]);
        buf_puts(b, ",\"top_logprobs\":[");
        for (int k = 0; k < p->top_logprobs; k++) {
            const struct fst_top_logprob *t = &v->top[i * (size_t)p->top_logprobs + (size_t)k];
            if (t->id < 0)
                break;
            if (k)
                buf_putc(b, ',');
            put_entry(c->g, b, t->id, t->logprob);
            buf_putc(b, '}');
        }
        buf_puts(b, "]}");
    }
}

/* Tokens from..to-1; those sampled in reasoning also in a list of their own. */
static void put_logprobs(const struct gen_choice *c, struct buf *b, size_t from, size_t to)
{
    if (!gen_params_of(c)->logprobs) {
        buf_puts(b, "null");
        return;
    }
    buf_puts(b, "{\"content\":[");
    put_entries(c, b, from, to);
    buf_putc(b, ']');
    size_t r = (size_t)chat_stream_result(c->st)->reasoning_tokens;
    if (c->g->chat.separate_reasoning && r > from) {
        buf_puts(b, ",\"reasoning_content\":[");
        put_entries(c, b, from, FST_MIN(r, to));
        buf_putc(b, ']');
    }
    buf_puts(b, ",\"refusal\":null}");
}

/* ------------------------------------------------------------------ stream */

static const char object[] = "chat.completion.chunk";

/* One chunk of choice c: `delta` is the inside of its object. */
static void send_delta(struct gen_choice *c, const char *delta, size_t len, const char *finish,
                       size_t logprobs_to)
{
    struct gen *g = c->g;
    struct buf b = {0};
    gen_put_head(g, &b, object);
    buf_printf(&b, "{\"index\":%d,\"delta\":{", c->index);
    buf_append(&b, delta, len);
    buf_puts(&b, "},\"logprobs\":");
    if (logprobs_to > c->sent_logprobs) {
        put_logprobs(c, &b, c->sent_logprobs, logprobs_to);
        c->sent_logprobs = logprobs_to;
    } else {
        buf_puts(&b, "null");
    }
    if (finish) {
        buf_printf(&b, ",\"finish_reason\":\"%s\",\"matched_stop\":", finish);
        gen_put_matched(c, &b);
        gen_put_finish_details(c, &b);
    } else {
        buf_puts(&b, ",\"finish_reason\":null");
    }
    buf_putc(&b, '}');
    gen_put_chunk_tail(c, &b, finish != NULL);
    gen_send_event(g, &b);
    buf_release(&b);
}

static void begin(struct gen_choice *c)
{
    static const char role[] = "\"role\":\"assistant\",\"content\":\"\"";
    if (c->began)
        return;
    c->began = true;
    send_delta(c, role, sizeof role - 1, NULL, 0);
}

/* Log-probabilities that are certain to belong to the reply: the parser may look one token ahead
 * and then leave the last one out. */
static size_t certain(const struct gen_choice *c)
{
    if (!gen_params_of(c)->logprobs)
        return 0;
    const struct chat_stream_result *r = chat_stream_result(c->st);
    size_t n = (size_t)r->n_tokens;
    return c->done ? n : n > 0 ? n - 1 : 0;
}

static void flush(struct gen_choice *c)
{
    if (!c->pending.len)
        return;
    struct buf d = {0};
    buf_puts(&d, c->pending_type == CHAT_EVENT_REASONING ? "\"content\":null,\"reasoning_content\":"
                                                         : "\"content\":");
    json_put_string_safe(&d, c->pending.data, c->pending.len);
    if (d.failed)
        gen_oom(c->g);
    else
        send_delta(c, d.data, d.len, NULL, certain(c));
    buf_release(&d);
    buf_reset(&c->pending);
}

static void on_event(struct gen_choice *c, const struct chat_event *e)
{
    struct buf d = {0};
    begin(c);
    switch (e->type) {
    case CHAT_EVENT_REASONING:
    case CHAT_EVENT_CONTENT:
        if (e->raw && c->n_calls) /* the call was announced: its text is not given a second time */
            return;
        if (c->pending.len && c->pending_type != e->type)
            flush(c);
        c->pending_type = e->type;
        buf_append(&c->pending, e->text, e->len);
        if (c->pending.failed)
            gen_oom(c->g);
        return;
    case CHAT_EVENT_CALL_BEGIN:
        flush(c);
        buf_printf(&d, "\"tool_calls\":[{\"index\":%d,\"id\":", e->index);
        json_put_string_safe(&d, e->id, strlen(e->id));
        buf_puts(&d, ",\"type\":\"function\",\"function\":{\"name\":");
        json_put_string_safe(&d, e->name, strlen(e->name));
        buf_puts(&d, ",\"arguments\":\"\"}}]");
        break;
    case CHAT_EVENT_CALL_ARGS:
        flush(c);
        buf_printf(&d, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", e->index);
        json_put_string_safe(&d, e->text, e->len);
        buf_puts(&d, "}}]");
        break;
    case CHAT_EVENT_CALL_END:
    case CHAT_EVENT_CALL_CANCEL:
        return;
    }
    if (d.failed)
        gen_oom(c->g);
    else
        send_delta(c, d.data, d.len, NULL, certain(c));
    buf_release(&d);
}

static void on_batch(struct gen_choice *c)
{
    begin(c);
    /* stream_reasoning false: thoughts wait until something else comes. */
    if (c->g->whole_reasoning && c->pending_type == CHAT_EVENT_REASONING)
        return;
    flush(c);
}

static void on_choice_end(struct gen_choice *c)
{
    begin(c);
    flush(c);
    send_delta(c, "", 0, c->finish_reason, certain(c));
}

static void on_progress(struct gen_choice *c)
{
    struct gen *g = c->g;
    struct buf b = {0};
    gen_put_head(g, &b, object);
    buf_printf(&b, "{\"index\":%d,\"delta\":{},\"finish_reason\":null}]", c->index);
    gen_put_progress(c, &b);
    gen_send_event(g, &b);
    buf_release(&b);
}

/* ------------------------------------------------------------------ answer */

static void put_message(const struct gen_choice *c, struct buf *b)
{
    size_t calls = 0;
    for (size_t i = 0; i < c->n_calls; i++)
        calls += c->calls[i].complete;
    buf_puts(b, "{\"role\":\"assistant\",\"content\":");
    if (!c->content.len && calls)
        buf_puts(b, "null");
    else
        json_put_string_safe(b, buf_str(&c->content), c->content.len);
    buf_puts(b, ",\"reasoning_content\":");
    if (c->reasoning.len)
        json_put_string_safe(b, c->reasoning.data, c->reasoning.len);
    else
        buf_puts(b, "null");
    if (calls) {
        int at = 0;
        buf_puts(b, ",\"tool_calls\":[");
        for (size_t i = 0; i < c->n_calls; i++) {
            const struct gen_call *k = &c->calls[i];
            if (!k->complete)
                continue;
            buf_printf(b, "%s{\"index\":%d,\"id\":", at ? "," : "", at);
            json_put_string_safe(b, k->id, strlen(k->id));
            buf_puts(b, ",\"type\":\"function\",\"function\":{\"name\":");
            json_put_string_safe(b, k->name, strlen(k->name));
            buf_puts(b, ",\"arguments\":");
            json_put_string_safe(b, buf_str(&k->args), k->args.len);
            buf_puts(b, "}}");
            at++;
        }
        buf_putc(b, ']');
    }
    buf_putc(b, '}');
}

static void finish(struct gen *g)
{
    if (g->stream) {
        gen_end_stream(g, object);
        return;
    }
    struct buf b = {0};
    gen_put_head(g, &b, "chat.completion");
    for (int i = 0; i < g->n_choices; i++) {
        const struct gen_choice *c = &g->choices[i];
        buf_printf(&b, "%s{\"index\":%d,\"message\":", i ? "," : "", c->index);
        put_message(c, &b);
        buf_puts(&b, ",\"logprobs\":");
        put_logprobs(c, &b, 0, (size_t)c->n_tokens);
        buf_printf(&b, ",\"finish_reason\":\"%s\",\"matched_stop\":", c->finish_reason);
        gen_put_matched(c, &b);
        gen_put_finish_details(c, &b);
        buf_putc(&b, '}');
    }
    gen_answer(g, &b);
    buf_release(&b);
}

static const struct gen_dialect dialect = {
    .name = "chat",
    .shape = SHAPE_OPENAI,
    .comments = true,
    .id_prefix = "chatcmpl-",
    .prepare = prepare,
    .event = on_event,
    .batch = on_batch,
    .progress = on_progress,
    .choice_end = on_choice_end,
    .finish = finish,
};

void api_chat(struct server *s, struct exch *x)
{
    gen_run(s, x, &dialect);
}
