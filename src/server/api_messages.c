/* api_messages.c - POST /v1/messages: Anthropic's Messages API.
 *
 * A stream is a message_start, then blocks one after another - thinking, text, tool_use - each with a
 * start, deltas and a stop, then message_delta and message_stop.  Blocks of thinking come only to
 * those who turned thinking on. */
#include "server/fields.h"
#include "server/gen.h"

enum { NO_BLOCK, THINKING_BLOCK, TEXT_BLOCK, CALL_BLOCK };

/* Clients keep it and send it back; nothing is checked by it. */
#define SIGNATURE "ZmlyZXN0ZWVs"

/* ------------------------------------------------------------------ request */

static bool render(struct gen *g, json_val *body)
{
    g->has_chat = true;
    enum fst_status rc = chat_request_from_messages(&g->chat, body, &g->s->chat);
    if (!gen_chat_render(g, body, rc) || !gen_alloc_prompts(g, 1))
        return false;
    if (chat_encode(&g->prompt, g->s->tok, &g->prompts[0]) < 0)
        return gen_oom(g);
    return gen_check_prompt(g, 0, "messages");
}

static bool prepare(struct gen *g)
{
    static const char *const limit = "max_tokens";
    json_val *body = json_root(g->doc);
    struct field_reader r = {body, "", &g->err};
    g->kind = CHAT_STREAM_CHAT;
    g->params = mem_calloc(1, sizeof *g->params);
    if (!g->params)
        return gen_oom(g);
    g->n_params = 1;
    gen_params_default(g->params);
    return gen_set_model(g, body) && fields_check(body, ON_MESSAGES, "", &g->err) &&
           gen_params_read(g->params, &r, g->s, true) &&
           gen_read_stops(g->params, &r, "stop_sequences") && gen_read_budget(g, &r) &&
           gen_read_guard(g, &r) && gen_read_stream(g, &r) && gen_read_cache(g, &r) &&
           render(g, body) && gen_read_max_tokens(g, &r, &limit, 1);
}

/* ------------------------------------------------------------------ pieces */

static void put_usage(const struct gen_choice *c, struct buf *b, uint64_t n_output)
{
    size_t cached = c->view.n_cached;
    buf_printf(b,
               "\"usage\":{\"input_tokens\":%zu,\"cache_read_input_tokens\":%zu,"
               "\"cache_creation_input_tokens\":0,\"output_tokens\":%llu}",
               c->g->prompts[0].n - cached, cached, (unsigned long long)n_output);
}

/* "stop_reason":..,"stop_sequence":.. */
static void put_stop(const struct gen_choice *c, struct buf *b)
{
    const char *reason = "end_turn";
    switch (chat_stream_result(c->st)->finish) {
    case CHAT_FINISH_LENGTH:
        reason = "max_tokens";
        break;
    case CHAT_FINISH_TOOL_CALLS:
        reason = "tool_use";
        break;
    case CHAT_FINISH_ABORT:
        reason = "abort";
        break;
    case CHAT_FINISH_STOP:
        if (c->matched_stop >= 0)
            reason = "stop_sequence";
        break;
    }
    buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (c->matched_stop >= 0)
        gen_put_matched(c, b);
    else
        buf_puts(b, "null");
}

static void put_head(const struct gen *g, struct buf *b)
{
    buf_printf(b, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    json_put_string_safe(b, g->model, strlen(g->model));
    buf_puts(b, ",\"content\":[");
}

/* ------------------------------------------------------------------ stream */

static void send(struct gen *g, const char *type, struct buf *json)
{
    gen_send_named(g, type, json);
    buf_release(json);
}

static void send_ping(struct gen *g)
{
    struct buf b = {0};
    buf_puts(&b, "{\"type\":\"ping\"}");
    send(g, "ping", &b);
}

static void begin(struct gen_choice *c)
{
    struct buf b = {0};
    if (c->began)
        return;
    c->began = true;
    buf_puts(&b, "{\"type\":\"message_start\",\"message\":");
    put_head(c->g, &b);
    buf_puts(&b, "],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(c, &b, 0);
    buf_puts(&b, "}}");
    send(c->g, "message_start", &b);
    send_ping(c->g);
}

/* One delta of the open block: `member` and its text as a JSON string. */
static void send_delta(struct gen_choice *c, const char *type, const char *member, const char *text,
                       size_t len)
{
    struct buf b = {0};
    buf_printf(&b,
               "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":",
               c->n_blocks - 1, type, member);
    json_put_string_safe(&b, text, len);
    buf_puts(&b, "}}");
    send(c->g, "content_block_delta", &b);
}

static void flush(struct gen_choice *c)
{
    if (!c->pending.len)
        return;
    if (c->pending_type == CHAT_EVENT_REASONING)
        send_delta(c, "thinking_delta", "thinking", c->pending.data, c->pending.len);
    else
        send_delta(c, "text_delta", "text", c->pending.data, c->pending.len);
    buf_reset(&c->pending);
}

static void close_block(struct gen_choice *c)
{
    struct buf b = {0};
    flush(c);
    if (c->open_block == NO_BLOCK)
        return;
    if (c->open_block == THINKING_BLOCK)
        send_delta(c, "signature_delta", "signature", SIGNATURE, sizeof SIGNATURE - 1);
    c->open_block = NO_BLOCK;
    buf_printf(&b, "{\"type\":\"content_block_stop\",\"index\":%d}", c->n_blocks - 1);
    send(c->g, "content_block_stop", &b);
}

/* e: of a call. */
static void open_block(struct gen_choice *c, int kind, const struct chat_event *e)
{
    struct buf b = {0};
    close_block(c);
    buf_printf(&b, "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":{",
               c->n_blocks++);
    c->open_block = kind;
    c->has_answer |= kind != THINKING_BLOCK;
    if (kind == THINKING_BLOCK) {
        buf_puts(&b, "\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}");
    } else if (kind == TEXT_BLOCK) {
        buf_puts(&b, "\"type\":\"text\",\"text\":\"\"}}");
    } else {
        buf_puts(&b, "\"type\":\"tool_use\",\"id\":");
        json_put_string_safe(&b, e->id, strlen(e->id));
        buf_puts(&b, ",\"name\":");
        json_put_string_safe(&b, e->name, strlen(e->name));
        buf_puts(&b, ",\"input\":{}}}");
    }
    send(c->g, "content_block_start", &b);
}

static void on_text(struct gen_choice *c, const struct chat_event *e)
{
    bool thought = e->type == CHAT_EVENT_REASONING;
    int kind = thought ? THINKING_BLOCK : TEXT_BLOCK;
    if (thought && !c->g->chat.thinking)
        return;
    if (e->raw && c->n_calls) /* the call was announced: its text is not given a second time */
        return;
    if (c->open_block != kind)
        open_block(c, kind, NULL);
    c->pending_type = e->type;
    buf_append(&c->pending, e->text, e->len);
    if (c->pending.failed)
        gen_oom(c->g);
}

static void on_event(struct gen_choice *c, const struct chat_event *e)
{
    begin(c);
    switch (e->type) {
    case CHAT_EVENT_REASONING:
    case CHAT_EVENT_CONTENT:
        on_text(c, e);
        break;
    case CHAT_EVENT_CALL_BEGIN:
        open_block(c, CALL_BLOCK, e);
        break;
    case CHAT_EVENT_CALL_ARGS:
        send_delta(c, "input_json_delta", "partial_json", e->text, e->len);
        break;
    case CHAT_EVENT_CALL_END:
    case CHAT_EVENT_CALL_CANCEL:
        close_block(c);
        break;
    }
}

static void on_batch(struct gen_choice *c)
{
    begin(c);
    flush(c);
}

static void on_choice_end(struct gen_choice *c)
{
    struct buf b = {0};
    begin(c);
    close_block(c);
    if (!c->has_answer) { /* a message is never without one */
        open_block(c, TEXT_BLOCK, NULL);
        close_block(c);
    }
    buf_puts(&b, "{\"type\":\"message_delta\",\"delta\":{");
    put_stop(c, &b);
    buf_puts(&b, "},");
    put_usage(c, &b, c->n_tokens);
    gen_put_finish_details(c, &b);
    gen_put_firesteel(c, &b);
    buf_putc(&b, '}');
    send(c->g, "message_delta", &b);
    buf_puts(&b, "{\"type\":\"message_stop\"}");
    send(c->g, "message_stop", &b);
}

static void on_progress(struct gen_choice *c)
{
    struct buf b = {0};
    begin(c);
    buf_puts(&b, "{\"type\":\"ping\",\"prompt_progress\":");
    gen_put_progress_object(c, &b);
    buf_putc(&b, '}');
    send(c->g, "ping", &b);
}

/* Some clients take nothing before message_start; what it says of the cache is then what is known. */
static void keep_alive(struct gen *g)
{
    if (g->choices[0].began)
        send_ping(g);
    else
        begin(&g->choices[0]);
}

/* ------------------------------------------------------------------ answer */

static void put_content(const struct gen_choice *c, struct buf *b)
{
    const char *sep = "";
    size_t calls = 0;
    if (c->g->chat.thinking && c->reasoning.len) {
        buf_puts(b, "{\"type\":\"thinking\",\"thinking\":");
        json_put_string_safe(b, c->reasoning.data, c->reasoning.len);
        buf_puts(b, ",\"signature\":\"" SIGNATURE "\"}");
        sep = ",";
    }
    for (size_t i = 0; i < c->n_calls; i++)
        calls += c->calls[i].complete;
    if (c->content.len || !calls) {
        buf_printf(b, "%s{\"type\":\"text\",\"text\":", sep);
        json_put_string_safe(b, buf_str(&c->content), c->content.len);
        buf_putc(b, '}');
        sep = ",";
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        const struct gen_call *k = &c->calls[i];
        if (!k->complete)
            continue;
        buf_printf(b, "%s{\"type\":\"tool_use\",\"id\":", sep);
        json_put_string_safe(b, k->id, strlen(k->id));
        buf_puts(b, ",\"name\":");
        json_put_string_safe(b, k->name, strlen(k->name));
        buf_puts(b, ",\"input\":");
        buf_append(b, k->args.data, k->args.len); /* an object, for the call is complete */
        buf_putc(b, '}');
        sep = ",";
    }
}

static void finish(struct gen *g)
{
    const struct gen_choice *c = &g->choices[0];
    struct buf b = {0};
    if (g->stream) {
        gen_end(g);
        return;
    }
    put_head(g, &b);
    put_content(c, &b);
    buf_puts(&b, "],");
    put_stop(c, &b);
    buf_putc(&b, ',');
    put_usage(c, &b, c->n_tokens);
    gen_put_finish_details(c, &b);
    gen_put_firesteel(c, &b);
    buf_putc(&b, '}');
    gen_reply(g, &b);
    buf_release(&b);
}

static const struct gen_dialect dialect = {
    .name = "messages",
    .shape = SHAPE_ANTHROPIC,
    .id_prefix = "msg_",
    .call_prefix = "toolu_",
    .prepare = prepare,
    .event = on_event,
    .batch = on_batch,
    .progress = on_progress,
    .choice_end = on_choice_end,
    .keep_alive = keep_alive,
    .finish = finish,
};

void api_messages(struct server *s, struct exch *x)
{
    gen_run(s, x, &dialect);
}
