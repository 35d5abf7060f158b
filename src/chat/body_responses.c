/* body_responses.c - a body of OpenAI's Responses API to a chat_request.
 *
 * Its conversation is a list of items: messages, thoughts, calls and their results, each by itself.  A
 * turn of the model is put together again from those that follow each other: thoughts, then text, then
 * calls.  Fields of sampling and streaming belong to the server and are not looked at. */
#include "chat/request.h"

struct reader {
    struct chat_request *r;
    struct chat_message *turn; /* the model's, still open; NULL: none */
};

static const char *member_str(json_val *o, const char *key, size_t *len)
{
    return json_string(json_get(o, key), len);
}

static enum fst_status need_str(struct chat_request *r, json_val *o, const char *key,
                                const char *path, const char **out, size_t *len)
{
    char sub[160];
    if ((*out = member_str(o, key, len)))
        return FST_OK;
    snprintf(sub, sizeof sub, "%s.%s", path, key);
    return chat_wrong_type(r, sub, "string", json_get(o, key));
}

/* ---- the model's turns ---------------------------------------------------------------------- */

enum piece { PIECE_THOUGHT, PIECE_TEXT, PIECE_CALL };

/* The open turn if a piece of that kind may follow what it has, else a new one. */
static struct chat_message *turn_for(struct reader *rd, enum piece p)
{
    const struct chat_message *t = rd->turn;
    bool fits = t && (p == PIECE_CALL || (!t->n_parts && !t->n_calls));
    if (!fits) {
        rd->turn = chat_add_message(rd->r, CHAT_ASSISTANT);
        if (rd->turn)
            rd->turn->content_null = true;
    }
    return rd->turn;
}

static struct chat_message *other_message(struct reader *rd, enum chat_role role)
{
    rd->turn = NULL;
    return chat_add_message(rd->r, role);
}

/* Texts of an array of {"text"} joined by empty lines, behind what is there. */
static void join_texts(struct buf *b, json_val *list)
{
    for (size_t i = 0; i < json_count(list); i++) {
        size_t len;
        const char *s = member_str(json_at(list, i), "text", &len);
        if (!s)
            continue;
        if (b->len)
            buf_puts(b, "\n\n");
        buf_append(b, s, len);
    }
}

/* The thoughts themselves where they are there, else their summary. */
static enum fst_status read_thought(struct reader *rd, json_val *v)
{
    struct chat_message *m = turn_for(rd, PIECE_THOUGHT);
    struct buf b = {0};
    if (!m)
        return FST_OK; /* remembered in r->failed */
    buf_append(&b, m->reasoning.data, m->reasoning.len);
    size_t before = b.len;
    join_texts(&b, json_get(v, "content"));
    if (b.len == before)
        join_texts(&b, json_get(v, "summary"));
    if (b.failed)
        rd->r->failed = true;
    else if (b.len)
        chat_set_reasoning(rd->r, m, b.data, b.len);
    buf_release(&b);
    return FST_OK;
}

static enum fst_status read_role(struct chat_request *r, json_val *v, const char *path,
                                 enum chat_role *role)
{
    static const enum chat_role roles[] = {CHAT_USER, CHAT_ASSISTANT, CHAT_SYSTEM, CHAT_DEVELOPER};
    char sub[64], word[68];
    json_val *name = json_get(v, "role");
    snprintf(sub, sizeof sub, "%s.role", path);
    if (json_type_of(name) != JSON_STRING)
        return chat_wrong_type(r, sub, "string", name);
    for (size_t i = 0; i < FST_COUNT(roles); i++)
        if (chat_json_is(name, chat_role_name(roles[i]))) {
            *role = roles[i];
            return FST_OK;
        }
    return chat_refuse(r, sub, "invalid_value",
                       "Unknown role: %s (expected user, assistant, system or developer)",
                       chat_shown(name, word));
}

static enum fst_status read_message(struct reader *rd, json_val *v, const char *path)
{
    struct chat_message *m;
    enum chat_role role = CHAT_USER;
    json_val *content = json_get(v, "content");
    char sub[64];
    size_t len = 0;
    const char *s = json_string(content, &len);

    FST_TRY(read_role(rd->r, v, path, &role));
    bool empty = (s && !len) || (json_type_of(content) == JSON_ARRAY && !json_count(content));
    if (empty && (role == CHAT_SYSTEM || role == CHAT_DEVELOPER))
        return FST_OK; /* agents send instructions that are switched off like this */
    m = role == CHAT_ASSISTANT ? turn_for(rd, PIECE_TEXT) : other_message(rd, role);
    if (!m)
        return FST_OK;
    snprintf(sub, sizeof sub, "%s.content", path);
    FST_TRY(chat_read_content(rd->r, m, content, sub));
    m->content_null = m->content_null && !m->n_parts;
    return FST_OK;
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* {"input": text}: the arguments of a tool that takes plain text. */
static void add_custom_call(struct chat_request *r, struct chat_message *m, const char *id,
                            const char *name, const char *input, size_t len)
{
    struct buf b = {0};
    buf_puts(&b, "{\"input\": ");
    json_put_string(&b, input, len);
    buf_putc(&b, '}');
    if (b.failed)
        r->failed = true;
    else
        chat_add_call(r, m, id, name, b.data, b.len);
    buf_release(&b);
}

/* A call of a tool that clients have built in ("local_shell_call"): named after its type, with the
 * member that says what to do. */
static enum fst_status read_builtin_call(struct reader *rd, json_val *v, const char *id,
                                         const char *type, size_t name_len)
{
    static const char *const members[] = {"arguments", "action", "operation", "input"};
    struct chat_message *m = turn_for(rd, PIECE_CALL);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)FST_MIN(name_len, sizeof name - 1), type);
    for (size_t i = 0; m && i < FST_COUNT(members); i++) {
        json_val *a = json_get(v, members[i]);
        size_t len;
        const char *s = json_string(a, &len);
        if (json_is_null(a))
            continue;
        struct chat_str text = {s, len};
        if (!s)
            text = chat_copy_json(rd->r, a);
        if (text.data)
            chat_add_call(rd->r, m, id, name, text.data, text.len);
        return FST_OK;
    }
    chat_add_call(rd->r, m, id, name, "", 0);
    return FST_OK;
}

static enum fst_status read_call(struct reader *rd, json_val *v, const char *path, const char *type,
                                 size_t name_len)
{
    const char *id, *name, *text;
    size_t len;
    struct chat_message *m;

    FST_TRY(need_str(rd->r, v, "call_id", path, &id, &len));
    bool custom = !strcmp(type, "custom_tool_call");
    if (!custom && strcmp(type, "function_call") != 0)
        return read_builtin_call(rd, v, id, type, name_len);
    FST_TRY(need_str(rd->r, v, "name", path, &name, &len));
    FST_TRY(need_str(rd->r, v, custom ? "input" : "arguments", path, &text, &len));
    m = turn_for(rd, PIECE_CALL);
    if (custom)
        add_custom_call(rd->r, m, id, name, text, len);
    else
        chat_add_call(rd->r, m, id, name, text, len);
    return FST_OK;
}

/* Looked for from the end: its call is nearly always in the turn before. */
static bool has_call(const struct chat_request *r, const char *id, size_t len)
{
    for (size_t i = r->n_messages; i-- > 0;)
        for (size_t k = 0; k < r->messages[i].n_calls; k++) {
            const struct chat_str *c = &r->messages[i].calls[k].id;
            if (c->len == len && memcmp(c->data, id, len) == 0)
                return true;
        }
    return false;
}

static enum fst_status read_result(struct reader *rd, json_val *v, const char *path)
{
    struct chat_request *r = rd->r;
    struct chat_message *m;
    char sub[64], word[68];
    const char *id;
    size_t len;
    json_val *output = json_get(v, "output");

    FST_TRY(need_str(r, v, "call_id", path, &id, &len));
    snprintf(sub, sizeof sub, "%s.call_id", path);
    if (!r->failed && !has_call(r, id, len))
        return chat_refuse(r, sub, "unknown_call_id",
                           "no call of id '%s' comes before this result; replay the full input",
                           chat_shown(json_get(v, "call_id"), word));
    if (!(m = other_message(rd, CHAT_TOOL)))
        return FST_OK;
    chat_set_tool_call_id(r, m, id);
    snprintf(sub, sizeof sub, "%s.output", path);
    if (json_type_of(output) == JSON_OBJECT) { /* of tools with results of a shape of their own */
        struct chat_str text = chat_copy_json(r, output);
        if (text.data)
            chat_add_text(r, m, text.data, text.len);
        return FST_OK;
    }
    return chat_read_content(r, m, output, sub);
}

/* ---- items ---------------------------------------------------------------------------------- */

static size_t ends_with(const char *s, size_t len, const char *tail)
{
    size_t n = strlen(tail);
    return len > n && memcmp(s + len - n, tail, n) == 0 ? len - n : 0;
}

static enum fst_status read_item(struct reader *rd, json_val *v, const char *path)
{
    json_val *type_val = json_get(v, "type");
    char sub[64], word[68];
    size_t len = 0, n;
    const char *type = json_string(type_val, &len);

    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(rd->r, path, "object", v);
    snprintf(sub, sizeof sub, "%s.type", path);
    if (!type && !json_is_null(type_val))
        return chat_wrong_type(rd->r, sub, "string", type_val);
    if (!type || !strcmp(type, "message"))
        return read_message(rd, v, path);
    if (!strcmp(type, "reasoning"))
        return read_thought(rd, v);
    if (ends_with(type, len, "_output"))
        return read_result(rd, v, path);
    if ((n = ends_with(type, len, "_call"))) {
        /* Without a name for its result it was run where it was made: nothing to go on from. */
        bool done = json_is_null(json_get(v, "call_id")) && strcmp(type, "function_call") != 0 &&
                    strcmp(type, "custom_tool_call") != 0;
        return done ? FST_OK : read_call(rd, v, path, type, n);
    }
    if (!strcmp(type, "item_reference"))
        return chat_refuse(rd->r, sub, "unsupported_content",
                           "items are not kept by their id; replay the item itself");
    return chat_refuse(rd->r, sub, "invalid_value",
                       "expected message, reasoning, a call or its output, got '%s'",
                       chat_shown(type_val, word));
}

static enum fst_status read_items(struct reader *rd, json_val *list, const char *name)
{
    char path[48];
    for (size_t i = 0; i < json_count(list); i++) {
        snprintf(path, sizeof path, "%s[%zu]", name, i);
        FST_TRY(read_item(rd, json_at(list, i), path));
    }
    return FST_OK;
}

static enum fst_status read_input(struct reader *rd, json_val *body, json_val *before)
{
    struct chat_request *r = rd->r;
    json_val *instructions = json_get(body, "instructions"), *input = json_get(body, "input");
    struct chat_message *m;
    size_t len;
    const char *s;

    if (!json_is_null(instructions)) {
        if (!(s = json_string(instructions, &len)))
            return chat_wrong_type(r, "instructions", "string", instructions);
        if (len && (m = other_message(rd, CHAT_SYSTEM)))
            chat_add_text(r, m, s, len);
    }
    FST_TRY(read_items(rd, before, "previous_response_id"));
    if ((s = json_string(input, &len))) {
        if (len && (m = other_message(rd, CHAT_USER)))
            chat_add_text(r, m, s, len);
    } else if (json_type_of(input) == JSON_ARRAY) {
        FST_TRY(read_items(rd, input, "input"));
    } else if (!json_is_null(input)) {
        return chat_wrong_type(r, "input", "string or array", input);
    }
    if (!r->failed && r->n_messages == 0)
        return chat_refuse(r, "input", "invalid_value", "the conversation is empty");
    return FST_OK;
}

/* ---- tools ---------------------------------------------------------------------------------- */

static const char custom_parameters[] =
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"input\": {\"type\": \"string\", "
    "\"description\": \"The text that the tool takes.\"}}, \"required\": [\"input\"]}}";

/* A tool that takes plain text, as a function of one string; its grammar is told in words. */
static enum fst_status add_custom_tool(struct chat_request *r, json_val *tool)
{
    json_val *format = json_get(tool, "format");
    struct buf about = {0}, b = {0};
    struct json_doc *doc = NULL;
    size_t len, name_len;
    const char *s, *name = member_str(tool, "name", &name_len);

    if ((s = member_str(tool, "description", &len)))
        buf_append(&about, s, len);
    if (chat_json_is(json_get(format, "type"), "grammar") &&
        (s = member_str(format, "definition", &len))) {
        size_t n;
        const char *syntax = member_str(format, "syntax", &n);
        buf_printf(&about, "%sThe input follows this %.32s grammar:\n", about.len ? "\n\n" : "",
                   syntax ? syntax : "");
        buf_append(&about, s, len);
    }
    buf_puts(&b, "{\"name\": ");
    json_put_string(&b, name, name_len);
    buf_puts(&b, ", \"description\": ");
    json_put_string(&b, buf_str(&about), about.len);
    buf_printf(&b, ", %s", custom_parameters);
    size_t n = r->n_tools;
    if (about.failed || b.failed || json_parse(&doc, b.data, b.len) < 0)
        r->failed = true;
    else
        chat_add_tool_json(r, json_root(doc));
    if (r->n_tools > n)
        r->tools[n].custom = true;
    json_free(doc);
    buf_release(&about);
    buf_release(&b);
    return FST_OK;
}

static enum fst_status read_tool(struct chat_request *r, json_val *v, const char *path)
{
    json_val *type = json_get(v, "type"), *f = v, *params;
    bool custom = chat_json_is(type, "custom");
    char sub[64];

    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, path, "object", v);
    if (json_type_of(type) != JSON_STRING) {
        snprintf(sub, sizeof sub, "%s.type", path);
        return chat_wrong_type(r, sub, "string", type);
    }
    if (!custom && !chat_json_is(type, "function"))
        return FST_OK; /* built into a service: there is nothing here that could run it */
    if (json_type_of(json_get(v, "function")) == JSON_OBJECT)
        f = json_get(v, "function"); /* as chat has it */
    snprintf(sub, sizeof sub, "%s.name", path);
    FST_TRY(chat_check_tool_name(r, json_get(f, "name"), sub));
    if (custom)
        return add_custom_tool(r, f);
    params = json_get(f, "parameters");
    snprintf(sub, sizeof sub, "%s.parameters", path);
    if (!json_is_null(params) && json_type_of(params) != JSON_OBJECT)
        return chat_wrong_type(r, sub, "object", params);
    size_t n = 0;
    chat_add_tool(r, member_str(f, "name", &n), json_get(f, "description"), params,
                  json_bool(json_get(f, "strict"), false));
    return FST_OK;
}

static enum fst_status read_tool_choice(struct chat_request *r, json_val *v)
{
    json_val *type = json_type_of(v) == JSON_OBJECT ? json_get(v, "type") : v;
    char word[68];
    const char *name;
    size_t len;

    if (json_is_null(v) || chat_json_is(v, "auto"))
        return FST_OK;
    if (json_type_of(v) != JSON_STRING && json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, "tool_choice", "string or object", v);
    if (chat_json_is(v, "none")) {
        r->tool_choice = CHAT_TOOLS_NONE;
    } else if (chat_json_is(v, "required")) {
        r->tool_choice = CHAT_TOOLS_REQUIRED;
    } else if (chat_json_is(type, "function") || chat_json_is(type, "custom")) {
        FST_TRY(need_str(r, v, "name", "tool_choice", &name, &len));
        r->tool_choice = CHAT_TOOLS_NAMED;
        r->tool_name = chat_copy(r, name, len);
    } else {
        return chat_refuse(r, "tool_choice", "invalid_value",
                           "expected auto, none, required, or a function or custom tool, got '%s'",
                           chat_shown(type, word));
    }
    return FST_OK;
}

/* ---- the body ------------------------------------------------------------------------------- */

static enum fst_status read_format(struct chat_request *r, json_val *text)
{
    json_val *format = json_get(text, "format"), *type = json_get(format, "type"), *schema;
    char word[68];

    if (!json_is_null(text) && json_type_of(text) != JSON_OBJECT)
        return chat_wrong_type(r, "text", "object", text);
    if (json_is_null(format) || chat_json_is(type, "text"))
        return FST_OK;
    if (json_type_of(format) != JSON_OBJECT)
        return chat_wrong_type(r, "text.format", "object", format);
    if (json_type_of(type) != JSON_STRING)
        return chat_wrong_type(r, "text.format.type", "string", type);
    r->response_param = "text.format";
    if (chat_json_is(type, "json_object")) {
        chat_set_response_format(r, NULL);
        return FST_OK;
    }
    if (!chat_json_is(type, "json_schema"))
        return chat_refuse(r, "text.format.type", "invalid_value",
                           "expected text, json_object or json_schema, got '%s'",
                           chat_shown(type, word));
    schema = json_get(format, "schema");
    if (json_type_of(schema) != JSON_OBJECT && json_type_of(schema) != JSON_TRUE)
        return chat_wrong_type(r, "text.format.schema", "object", schema);
    r->response_param = "text.format.schema";
    chat_set_response_format(r, schema);
    return chat_get_bool(r, format, "strict", "text.format.strict", &r->response_strict);
}

enum fst_status chat_request_from_responses(struct chat_request *r, json_val *body,
                                            json_val *before, const struct chat_defaults *d)
{
    struct reader rd = {.r = r};
    chat_request_init(r, d);
    FST_TRY(read_input(&rd, body, before));
    FST_TRY(chat_read_tools(r, json_get(body, "tools"), read_tool));
    FST_TRY(read_tool_choice(r, json_get(body, "tool_choice")));
    FST_TRY(chat_check_tools(r));
    FST_TRY(read_format(r, json_get(body, "text")));
    FST_TRY(chat_read_thinking(r, body));
    FST_TRY(
        chat_get_bool(r, body, "parallel_tool_calls", "parallel_tool_calls", &r->parallel_calls));
    return r->failed ? fst_error(FST_ENOMEM, "no memory for a chat request") : FST_OK;
}
