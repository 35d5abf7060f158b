#include "tools/chat_turns.h"

static void release(struct turn *t)
{
    buf_release(&t->text);
    buf_release(&t->reasoning);
    for (size_t i = 0; i < t->n_calls; i++) {
        mem_free(t->calls[i].id);
        mem_free(t->calls[i].name);
        buf_release(&t->calls[i].args);
    }
    mem_free(t->calls);
    mem_free(t->call_id);
}

bool turns_add(struct turns *t, enum chat_role role, const char *text, const char *call_id)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 16;
        struct turn *more = mem_realloc(t->turn, cap * sizeof *more);
        if (!more)
            return false;
        t->turn = more;
        t->cap = cap;
    }
    struct turn *new = &t->turn[t->n];
    *new = (struct turn){.role = role, .call_id = call_id ? mem_strdup(call_id) : NULL};
    buf_puts(&new->text, text);
    if (new->text.failed || (call_id && !new->call_id)) {
        release(new);
        return false;
    }
    t->n++;
    return true;
}

void turns_drop(struct turns *t, size_t to)
{
    while (t->n > to)
        release(&t->turn[--t->n]);
}

void turns_release(struct turns *t)
{
    turns_drop(t, 0);
    mem_free(t->turn);
    *t = (struct turns){0};
}

static bool begin_call(struct turn *t, const struct chat_event *e)
{
    struct turn_call *more = mem_realloc(t->calls, (t->n_calls + 1) * sizeof *more);
    if (!more)
        return false;
    t->calls = more;
    struct turn_call *c = &more[t->n_calls++];
    *c = (struct turn_call){.id = mem_strdup(e->id), .name = mem_strdup(e->name)};
    return c->id && c->name;
}

bool turns_event(struct turns *t, const struct chat_event *e)
{
    struct turn *last = &t->turn[t->n - 1];
    struct turn_call *call = last->n_calls ? &last->calls[last->n_calls - 1] : NULL;
    switch (e->type) {
    case CHAT_EVENT_REASONING:
        buf_append(&last->reasoning, e->text, e->len);
        return !last->reasoning.failed;
    case CHAT_EVENT_CONTENT:
        buf_append(&last->text, e->text, e->len);
        return !last->text.failed;
    case CHAT_EVENT_CALL_BEGIN:
        return begin_call(last, e);
    case CHAT_EVENT_CALL_ARGS:
        buf_append(&call->args, e->text, e->len);
        return !call->args.failed;
    case CHAT_EVENT_CALL_END:
        return true;
    case CHAT_EVENT_CALL_CANCEL: /* it was cut off: nobody can answer it */
        mem_free(call->id);
        mem_free(call->name);
        buf_release(&call->args);
        last->n_calls--;
        return true;
    }
    return true;
}

const struct turn_call *turns_pending(const struct turns *t)
{
    size_t results = 0;
    while (results < t->n && t->turn[t->n - 1 - results].role == CHAT_TOOL)
        results++;
    if (results == t->n)
        return NULL;
    const struct turn *caller = &t->turn[t->n - 1 - results];
    return results < caller->n_calls ? &caller->calls[results] : NULL;
}

void turns_put(const struct turns *t, struct chat_request *r)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct turn *turn = &t->turn[i];
        struct chat_message *m = chat_add_message(r, turn->role);
        chat_add_text(r, m, buf_str(&turn->text), turn->text.len);
        if (turn->reasoning.len)
            chat_set_reasoning(r, m, turn->reasoning.data, turn->reasoning.len);
        if (turn->call_id)
            chat_set_tool_call_id(r, m, turn->call_id);
        for (size_t k = 0; k < turn->n_calls; k++) {
            const struct turn_call *c = &turn->calls[k];
            chat_add_call(r, m, c->id, c->name, buf_str(&c->args), c->args.len);
        }
    }
}

static void put_member(struct buf *out, const char *key, const char *text, size_t len)
{
    buf_printf(out, ",\"%s\":", key);
    json_put_string(out, text, len);
}

static void put_turn(const struct turn *t, struct buf *out)
{
    buf_printf(out, "{\"role\":\"%s\"", chat_role_name(t->role));
    put_member(out, "content", buf_str(&t->text), t->text.len);
    if (t->reasoning.len)
        put_member(out, "reasoning_content", t->reasoning.data, t->reasoning.len);
    if (t->call_id)
        put_member(out, "tool_call_id", t->call_id, strlen(t->call_id));
    for (size_t k = 0; k < t->n_calls; k++) {
        const struct turn_call *c = &t->calls[k];
        buf_puts(out, k ? "," : ",\"tool_calls\":[");
        buf_puts(out, "{\"type\":\"function\"");
        put_member(out, "id", c->id, strlen(c->id));
        buf_puts(out, ",\"function\":{\"name\":");
        json_put_string(out, c->name, strlen(c->name));
        put_member(out, "arguments", buf_str(&c->args), c->args.len);
        buf_puts(out, "}}");
    }
    buf_puts(out, t->n_calls ? "]}" : "}");
}

void turns_json(const struct turns *t, const char *system, json_val *tools, bool thinking,
                struct buf *out)
{
    const char *sep = "";
    buf_puts(out, "{\"messages\":[");
    if (system && system[0]) {
        buf_puts(out, "{\"role\":\"system\"");
        put_member(out, "content", system, strlen(system));
        buf_putc(out, '}');
        sep = ",\n";
    }
    for (size_t i = 0; i < t->n; i++) {
        buf_puts(out, sep);
        put_turn(&t->turn[i], out);
        sep = ",\n";
    }
    buf_printf(out, "],\"enable_thinking\":%s", thinking ? "true" : "false");
    if (json_count(tools)) {
        buf_puts(out, ",\"tools\":");
        json_put(out, tools, JSON_COMPACT);
    }
    buf_puts(out, "}\n");
}
