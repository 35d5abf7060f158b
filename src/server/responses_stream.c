/* responses_stream.c - output items, whole answers and the events of a stream of /v1/responses. */
#include "server/responses.h"

static struct response *of(const struct gen *g)
{
    return g->ud;
}

/* ------------------------------------------------------------------ items */

static struct response_item *add_item(struct gen *g, enum response_kind kind)
{
    static const char *const prefix[] = {"rs_", "msg_", "fc_"};
    struct response *r = of(g);
    if (r->n_items == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 4;
        struct response_item *more = mem_realloc(r->items, cap * sizeof *more);
        if (!more) {
            gen_oom(g);
            return NULL;
        }
        r->items = more;
        r->cap = cap;
    }
    struct response_item *it = &r->items[r->n_items++];
    *it = (struct response_item){.kind = kind, .open = true};
    api_random_id(it->id, prefix[kind]);
    return it;
}

/* The answer ended in its thoughts. */
static bool in_thought(const struct gen_choice *c)
{
    size_t n = (size_t)c->n_reasoning;
    bool closed =
        n && n <= c->view.n && c->view.ids[n - 1] == tokenizer_specials(c->g->s->tok)->end_think;
    return !closed && !c->content.len && !c->n_calls;
}

/* The items of an answer that was no stream. */
static void collect(struct gen_choice *c)
{
    struct gen *g = c->g;
    struct response *r = of(g);
    struct response_item *it;
    bool cut = strcmp(c->finish_reason, "length") == 0 || strcmp(c->finish_reason, "abort") == 0;
    bool whole = false;
    for (size_t i = 0; i < c->n_calls; i++)
        whole |= c->calls[i].complete;
    bool message = c->content.len || (!whole && !cut);
    if (r->summary && c->reasoning.len && (it = add_item(g, RESPONSE_REASONING))) {
        it->to = c->reasoning.len;
        it->cut = in_thought(c);
    }
    if (message && (it = add_item(g, RESPONSE_MESSAGE))) {
        it->to = c->content.len;
        it->cut = cut && !whole;
    }
    for (size_t i = 0; i < c->n_calls; i++)
        if (c->calls[i].complete && (it = add_item(g, RESPONSE_CALL)))
            it->call = (int)i;
    for (size_t i = 0; i < r->n_items; i++)
        r->items[i].open = false;
}

/* Whether this call is of a tool that takes plain text. */
static bool is_custom(const struct gen *g, const struct gen_call *k)
{
    for (size_t i = 0; i < g->chat.n_tools; i++)
        if (g->chat.tools[i].custom && !strcmp(g->chat.tools[i].name.data, k->name))
            return true;
    return false;
}

/* The text of {"input": text}; the arguments as they are when the model gave others. */
static void put_input(struct buf *b, const struct gen_call *k)
{
    struct json_doc *doc = NULL;
    size_t len = 0;
    const char *s = NULL;
    if (k->complete && json_parse(&doc, buf_str(&k->args), k->args.len) == FST_OK)
        s = json_string(json_get(json_root(doc), "input"), &len);
    if (s)
        json_put_string_safe(b, s, len);
    else
        json_put_string_safe(b, buf_str(&k->args), k->complete ? k->args.len : 0);
    json_free(doc);
}

static void put_text_of(struct buf *b, const struct gen_choice *c, const struct response_item *it)
{
    const struct buf *from = it->kind == RESPONSE_REASONING ? &c->reasoning : &c->content;
    json_put_string_safe(b, buf_str(from) + it->from, it->to - it->from);
}

static void put_part(struct buf *b, const struct gen_choice *c, const struct response_item *it)
{
    buf_puts(b, it->kind == RESPONSE_REASONING ? "{\"type\":\"summary_text\",\"text\":"
                                               : "{\"type\":\"output_text\",\"text\":");
    put_text_of(b, c, it);
    buf_puts(b, it->kind == RESPONSE_REASONING ? "}" : ",\"annotations\":[]}");
}

static void put_call(struct buf *b, const struct gen_choice *c, const struct response_item *it,
                     const char *status)
{
    const struct gen_call *k = &c->calls[it->call];
    bool custom = is_custom(c->g, k);
    buf_printf(b, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\",\"name\":", it->id,
               custom ? "custom_tool_call" : "function_call", status);
    json_put_string_safe(b, k->name, strlen(k->name));
    buf_puts(b, ",\"call_id\":");
    json_put_string_safe(b, k->id, strlen(k->id));
    buf_puts(b, custom ? ",\"input\":" : ",\"arguments\":");
    if (custom)
        put_input(b, k);
    else
        json_put_string_safe(b, buf_str(&k->args), it->open ? 0 : k->args.len);
    buf_putc(b, '}');
}

static void put_item(struct buf *b, const struct gen_choice *c, const struct response_item *it)
{
    const char *status = it->open ? "in_progress" : it->cut ? "incomplete" : "completed";
    switch (it->kind) {
    case RESPONSE_REASONING:
        buf_printf(b, "{\"id\":\"%s\",\"type\":\"reasoning\",\"status\":\"%s\",\"summary\":[",
                   it->id, status);
        if (!it->open)
            put_part(b, c, it);
        buf_puts(b, "]}");
        break;
    case RESPONSE_MESSAGE:
        buf_printf(b,
                   "{\"id\":\"%s\",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\","
                   "\"content\":[",
                   it->id, status);
        if (!it->open)
            put_part(b, c, it);
        buf_puts(b, "]}");
        break;
    case RESPONSE_CALL:
        put_call(b, c, it, status);
        break;
    }
}

void response_put_items(struct gen *g, struct buf *b)
{
    const struct gen_choice *c = &g->choices[0];
    const struct response *r = of(g);
    const char *sep = "";
    if (c->reasoning.len) {
        buf_puts(b, "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":"
                    "\"reasoning_text\",\"text\":");
        json_put_string_safe(b, c->reasoning.data, c->reasoning.len);
        buf_puts(b, "}]}");
        sep = ",";
    }
    for (size_t i = 0; i < r->n_items; i++) {
        if (r->items[i].kind == RESPONSE_REASONING)
            continue;
        buf_puts(b, sep);
        put_item(b, c, &r->items[i]);
        sep = ",";
    }
}

/* ------------------------------------------------------------------ the answer */

static const char *status_of(const struct gen_choice *c)
{
    if (!c->done)
        return "in_progress";
    return !strcmp(c->finish_reason, "length")  ? "incomplete"
           : !strcmp(c->finish_reason, "abort") ? "cancelled"
                                                : "completed";
}

static void put_usage(const struct gen_choice *c, struct buf *b)
{
    const struct chat_stream_result *t = chat_stream_result(c->st);
    unsigned long long in = c->view.n_prompt, cached = c->view.n_cached, out = t->n_tokens;
    bool caches = c->g->s->info.prefix_cache_bytes > 0;
    buf_printf(b,
               ",\"usage\":{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu,"
               "\"cache_write_tokens\":%llu},\"output_tokens\":%llu,\"output_tokens_details\":{"
               "\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
               in, cached, caches ? in - cached : 0, out, (unsigned long long)t->reasoning_tokens,
               in + out);
}

static void put_head(const struct gen *g, struct buf *b, const char *status)
{
    buf_printf(b,
               "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\","
               "\"model\":",
               g->id, (long long)g->created, status);
    json_put_string_safe(b, g->model, strlen(g->model));
    buf_puts(b, ",\"output\":[");
}

void response_put(struct gen *g, struct buf *b, const char *status)
{
    struct response *r = of(g);
    struct gen_choice *c = &g->choices[0];
    if (!status)
        status = status_of(c);
    if (c->done && !r->n_items)
        collect(c);
    put_head(g, b, status);
    for (size_t i = 0; c->done && i < r->n_items; i++) {
        buf_puts(b, i ? "," : "");
        put_item(b, c, &r->items[i]);
    }
    buf_putc(b, ']');
    if (g->err.status) {
        const char *code = g->err.status < 500 && g->err.code ? g->err.code : "server_error";
        buf_printf(b, ",\"error\":{\"code\":\"%s\",\"message\":", code);
        json_put_string_safe(b, g->err.message, strlen(g->err.message));
        buf_putc(b, '}');
    } else {
        buf_puts(b, ",\"error\":null");
    }
    bool length = c->done && !strcmp(c->finish_reason, "length");
    buf_printf(b, ",\"incomplete_details\":%s",
               length                         ? "{\"reason\":\"max_output_tokens\"}"
               : !strcmp(status, "cancelled") ? "{\"reason\":\"cancelled\"}"
                                              : "null");
    buf_append(b, r->echo.data, r->echo.len);
    buf_printf(b, ",\"background\":%s,\"store\":%s", r->background ? "true" : "false",
               r->store ? "true" : "false");
    if (c->done)
        put_usage(c, b);
    else
        buf_puts(b, ",\"usage\":null");
    if (c->done) {
        buf_printf(b, ",\"seed\":%llu", (unsigned long long)c->view.seed);
        if (g->timings || g->progress) {
            buf_puts(b, ",\"timings\":");
            gen_put_timings(g, b);
        }
        gen_put_finish_details(c, b);
        gen_put_firesteel(c, b);
    }
    buf_putc(b, '}');
}

/* ------------------------------------------------------------------ events */

static void begin(const struct gen *g, struct buf *b, const char *type)
{
    buf_printf(b, "{\"type\":\"%s\",\"sequence_number\":%llu", type,
               (unsigned long long)of(g)->sequence);
}

static void send(struct gen *g, struct buf *b, const char *type)
{
    buf_putc(b, '}');
    gen_send_named(g, type, b);
    of(g)->sequence++;
    buf_release(b);
}

/* One whose only news is the answer's state. */
static void send_state(struct gen *g, const char *type, const struct gen_choice *progress_of)
{
    struct buf b = {0};
    begin(g, &b, type);
    buf_puts(&b, ",\"response\":");
    put_head(g, &b, "in_progress");
    buf_puts(&b, "]}");
    if (progress_of) {
        buf_puts(&b, ",\"prompt_progress\":");
        gen_put_progress_object(progress_of, &b);
    }
    send(g, &b, type);
}

void response_created(struct gen *g)
{
    if (of(g)->created)
        return;
    of(g)->created = true;
    send_state(g, "response.created", NULL);
    send_state(g, "response.in_progress", NULL);
}

void response_progress(struct gen_choice *c)
{
    response_created(c->g);
    send_state(c->g, "response.in_progress", c);
}

static struct response_item *last_item(const struct gen *g)
{
    struct response *r = of(g);
    FST_ASSERT(r->n_items > 0);
    return &r->items[r->n_items - 1];
}

static bool is_open(const struct gen *g, enum response_kind kind)
{
    return of(g)->n_items && last_item(g)->open && last_item(g)->kind == kind;
}

static void send_item(struct gen_choice *c, const char *type)
{
    struct gen *g = c->g;
    struct buf b = {0};
    begin(g, &b, type);
    buf_printf(&b, ",\"output_index\":%zu,\"item\":", of(g)->n_items - 1);
    put_item(&b, c, last_item(g));
    send(g, &b, type);
}

/* An event about the last item, up to the member that differs. */
static void begin_in_item(struct gen *g, struct buf *b, const char *type)
{
    static const char *const index[] = {",\"summary_index\":0", ",\"content_index\":0", ""};
    const struct response_item *it = last_item(g);
    begin(g, b, type);
    buf_printf(b, ",\"item_id\":\"%s\",\"output_index\":%zu%s", it->id, of(g)->n_items - 1,
               index[it->kind]);
}

/* "response.output_text." and the like; tail: "delta", "done". */
static const char *text_type(char out[64], const struct response_item *it, const char *tail)
{
    snprintf(out, 64, "response.%s.%s",
             it->kind == RESPONSE_REASONING ? "reasoning_summary_text" : "output_text", tail);
    return out;
}

static void send_part(struct gen_choice *c, const char *tail)
{
    struct gen *g = c->g;
    const struct response_item *it = last_item(g);
    struct buf b = {0};
    char type[64];
    snprintf(type, sizeof type, "response.%s_part.%s",
             it->kind == RESPONSE_REASONING ? "reasoning_summary" : "content", tail);
    begin_in_item(g, &b, type);
    buf_puts(&b, ",\"part\":");
    put_part(&b, c, it);
    send(g, &b, type);
}

static void flush(struct gen_choice *c)
{
    struct gen *g = c->g;
    struct buf b = {0};
    char type[64];
    if (!c->pending.len)
        return;
    text_type(type, last_item(g), "delta");
    begin_in_item(g, &b, type);
    buf_puts(&b, ",\"delta\":");
    json_put_string_safe(&b, c->pending.data, c->pending.len);
    send(g, &b, type);
    buf_reset(&c->pending);
}

/* The open text item is whole, or the answer ends inside it. */
static void close_text(struct gen_choice *c, bool cut)
{
    struct gen *g = c->g;
    struct buf b = {0};
    char type[64];
    if (!is_open(g, RESPONSE_REASONING) && !is_open(g, RESPONSE_MESSAGE))
        return;
    struct response_item *it = last_item(g);
    flush(c);
    text_type(type, it, "done");
    begin_in_item(g, &b, type);
    buf_puts(&b, ",\"text\":");
    put_text_of(&b, c, it);
    send(g, &b, type);
    send_part(c, "done");
    it->open = false;
    it->cut = cut;
    send_item(c, "response.output_item.done");
}

static void open_text(struct gen_choice *c, enum response_kind kind)
{
    if (is_open(c->g, kind))
        return;
    close_text(c, false);
    if (!add_item(c->g, kind))
        return;
    send_item(c, "response.output_item.added");
    send_part(c, "added");
}

static void send_arguments(struct gen_choice *c, const char *type, const char *text, size_t len)
{
    struct gen *g = c->g;
    struct buf b = {0};
    begin_in_item(g, &b, type);
    buf_puts(&b, text ? ",\"delta\":" : ",\"arguments\":");
    if (text) {
        json_put_string_safe(&b, text, len);
    } else {
        const struct buf *args = &c->calls[last_item(g)->call].args;
        json_put_string_safe(&b, buf_str(args), args->len);
    }
    send(g, &b, type);
}

/* More of the text of a tool that takes plain text, out of arguments that are still growing: they are
 * {"input": "..."} as the parser writes it, and no event of it ends inside an escape.  Arguments of
 * another shape have no deltas. */
static void send_input_delta(struct gen_choice *c)
{
    static const char head[] = "{\"input\": \"";
    static const char type[] = "response.custom_tool_call_input.delta";
    struct response_item *it = last_item(c->g);
    const struct buf *args = &c->calls[it->call].args;
    struct buf piece = {0}, b = {0};
    struct json_doc *doc = NULL;
    size_t to, len = 0;
    if (args->len < sizeof head || memcmp(args->data, head, sizeof head - 1) != 0)
        return;
    it->from = FST_MAX(it->from, sizeof head - 1);
    for (to = it->from; to < args->len && args->data[to] != '"'; to++)
        to += args->data[to] == '\\';
    to = FST_MIN(to, args->len);
    if (to == it->from)
        return;
    buf_putc(&piece, '"');
    buf_append(&piece, args->data + it->from, to - it->from);
    buf_putc(&piece, '"');
    if (piece.failed || json_parse(&doc, piece.data, piece.len) < 0) {
        gen_oom(c->g);
    } else {
        const char *s = json_string(json_root(doc), &len);
        begin_in_item(c->g, &b, type);
        buf_puts(&b, ",\"delta\":");
        json_put_string_safe(&b, s, len);
        send(c->g, &b, type);
    }
    it->from = to;
    json_free(doc);
    buf_release(&piece);
}

static void send_input_done(struct gen_choice *c)
{
    static const char type[] = "response.custom_tool_call_input.done";
    struct buf b = {0};
    begin_in_item(c->g, &b, type);
    buf_puts(&b, ",\"input\":");
    put_input(&b, &c->calls[last_item(c->g)->call]);
    send(c->g, &b, type);
}

static void end_call(struct gen_choice *c)
{
    struct response_item *it = last_item(c->g);
    if (is_custom(c->g, &c->calls[it->call])) {
        send_input_done(c);
    } else {
        send_arguments(c, "response.function_call_arguments.done", NULL, 0);
    }
    it->open = false;
    send_item(c, "response.output_item.done");
}

static void add_text(struct gen_choice *c, enum response_kind kind, const struct chat_event *e)
{
    open_text(c, kind);
    if (c->g->err.status)
        return;
    struct response_item *it = last_item(c->g);
    it->to = kind == RESPONSE_REASONING ? c->reasoning.len : c->content.len;
    buf_append(&c->pending, e->text, e->len);
    if (c->pending.failed)
        gen_oom(c->g);
}

void response_event(struct gen_choice *c, const struct chat_event *e)
{
    struct response *r = of(c->g);
    struct response_item *it;
    response_created(c->g);
    switch (e->type) {
    case CHAT_EVENT_REASONING:
        if (r->summary)
            add_text(c, RESPONSE_REASONING, e);
        break;
    case CHAT_EVENT_CONTENT:
        if (!e->raw || !c->n_calls) /* an announced call is not given a second time as text */
            add_text(c, RESPONSE_MESSAGE, e);
        break;
    case CHAT_EVENT_CALL_BEGIN:
        close_text(c, false);
        if (!(it = add_item(c->g, RESPONSE_CALL)))
            break;
        it->call = e->index;
        send_item(c, "response.output_item.added");
        break;
    case CHAT_EVENT_CALL_ARGS:
        it = last_item(c->g);
        if (is_custom(c->g, &c->calls[it->call]))
            send_input_delta(c);
        else
            send_arguments(c, "response.function_call_arguments.delta", e->text, e->len);
        break;
    case CHAT_EVENT_CALL_END:
        end_call(c);
        break;
    case CHAT_EVENT_CALL_CANCEL:
        /* Not "done": clients run what is.  Nothing but dropped text comes behind it. */
        r->n_items--;
        break;
    }
}

void response_batch(struct gen_choice *c)
{
    response_created(c->g);
    flush(c);
}

void response_choice_end(struct gen_choice *c)
{
    struct response *r = of(c->g);
    bool completed = !strcmp(status_of(c), "completed");
    response_created(c->g);
    close_text(c, is_open(c->g, RESPONSE_REASONING) ? in_thought(c) : !completed);
    if (completed && (!r->n_items || last_item(c->g)->kind == RESPONSE_REASONING)) {
        open_text(c, RESPONSE_MESSAGE);
        close_text(c, false);
    }
}

void response_end(struct gen *g, const char *status)
{
    const struct gen_choice *c = &g->choices[0];
    struct buf b = {0};
    response_created(g);
    if (!status)
        status = status_of(c);
    const char *type = !strcmp(status, "completed") ? "response.completed"
                       : !strcmp(status, "failed")  ? "response.failed"
                                                    : "response.incomplete";
    begin(g, &b, type);
    buf_puts(&b, ",\"response\":");
    response_put(g, &b, status);
    send(g, &b, type);
}
