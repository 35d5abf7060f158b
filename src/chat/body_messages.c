/* body_messages.c - a body of Anthropic's Messages API to a chat_request.
 *
 * Blocks become what the format has: text, thoughts and calls of the assistant, results as tool messages
 * between a user's texts.  Consecutive messages of one role are one turn, and a last one of the
 * assistant is continued, both as that API defines it.  What Claude Code adds to its blocks
 * (cache_control, signatures, citations) says nothing to a model and is not looked at.
 *
 * Every refusal names the JSON path, what was expected and what was there. */
#include <strings.h>

#include "chat/request.h"

enum { PATH_MAX_BYTES = 160 };

/* The message that a block of this role joins: the last one, if it is of the role. */
static struct chat_message *current(struct chat_request *r, enum chat_role role)
{
    struct chat_message *last = r->n_messages ? &r->messages[r->n_messages - 1] : NULL;

    return last && last->role == role ? last : chat_add_message(r, role);
}

/* A member that must be there as a string. */
static enum fst_status get_string(struct chat_request *r, json_val *o, const char *key,
                                  const char *base, const char **s, size_t *len)
{
    char path[PATH_MAX_BYTES + 32];

    if ((*s = json_string(json_get(o, key), len)))
        return FST_OK;
    snprintf(path, sizeof path, "%s.%s", base, key);
    return chat_wrong_type(r, path, "string", json_get(o, key));
}

/* Content as a string or as text blocks, with what is no text refused or given a placeholder. */
static enum fst_status read_texts(struct chat_request *r, struct chat_message *m, json_val *v,
                                  const char *path)
{
    char sub[PATH_MAX_BYTES], type_path[PATH_MAX_BYTES + 8];
    size_t len;
    const char *s = json_string(v, &len);

    if (s) {
        chat_add_text(r, m, s, len);
        return FST_OK;
    }
    if (json_type_of(v) != JSON_ARRAY)
        return chat_wrong_type(r, path, "string or array", v);
    for (size_t i = 0; i < json_count(v); i++) {
        json_val *block = json_at(v, i), *type = json_get(block, "type");
        snprintf(sub, sizeof sub, "%s[%zu]", path, i);
        if (json_type_of(block) != JSON_OBJECT)
            return chat_wrong_type(r, sub, "object", block);
        if (!json_string(type, &len)) {
            snprintf(type_path, sizeof type_path, "%s.type", sub);
            return chat_wrong_type(r, type_path, "string", type);
        }
        bool is_name = chat_json_is(type, "tool_reference"); /* a tool that a search found */
        if (!is_name && !chat_json_is(type, "text")) {
            FST_TRY(chat_other_part(r, m, sub, type));
            continue;
        }
        FST_TRY(get_string(r, block, is_name ? "tool_name" : "text", sub, &s, &len));
        chat_add_text(r, m, s, len);
    }
    return FST_OK;
}

/* ---- blocks of messages --------------------------------------------------------------------- */

/* The format has no mark for a failed call: its text says so, unless it does already. */
static void mark_error(struct chat_request *r, struct chat_message *m)
{
    static const char word[] = "Error";
    struct chat_str *text = m && m->n_parts ? &m->parts[0].text : NULL;
    struct buf b = {0};

    if (!text) {
        chat_add_text(r, m, word, sizeof word - 1);
        return;
    }
    if (!m->parts[0].is_text || strncasecmp(text->data, word, sizeof word - 1) == 0)
        return;
    buf_printf(&b, "%s: ", word);
    buf_append(&b, text->data, text->len);
    if (b.failed)
        r->failed = true;
    else
        *text = chat_copy(r, b.data, b.len);
    buf_release(&b);
}

static enum fst_status read_result(struct chat_request *r, json_val *v, const char *path)
{
    struct chat_message *m = chat_add_message(r, CHAT_TOOL);
    char sub[PATH_MAX_BYTES];
    const char *id;
    size_t len;
    bool is_error = false;

    FST_TRY(get_string(r, v, "tool_use_id", path, &id, &len));
    chat_set_tool_call_id(r, m, id);
    snprintf(sub, sizeof sub, "%s.content", path);
    if (!json_is_null(json_get(v, "content")))
        FST_TRY(read_texts(r, m, json_get(v, "content"), sub));
    snprintf(sub, sizeof sub, "%s.is_error", path);
    FST_TRY(chat_get_bool(r, v, "is_error", sub, &is_error));
    if (is_error && !r->failed)
        mark_error(r, m);
    return FST_OK;
}

static enum fst_status read_call(struct chat_request *r, json_val *v, const char *path)
{
    json_val *input = json_get(v, "input");
    const char *id, *name;
    size_t len;
    struct chat_str args = {"", 0};

    FST_TRY(get_string(r, v, "id", path, &id, &len));
    FST_TRY(get_string(r, v, "name", path, &name, &len));
    /* A call that was cut off may come back as the text that there was of it. */
    if (json_type_of(input) == JSON_STRING)
        args.data = json_string(input, &args.len);
    else if (!json_is_null(input))
        args = chat_copy_json(r, input);
    if (args.data)
        chat_add_call(r, current(r, CHAT_ASSISTANT), id, name, args.data, args.len);
    return FST_OK;
}

static enum fst_status read_thought(struct chat_request *r, json_val *v, const char *path)
{
    struct chat_message *m = current(r, CHAT_ASSISTANT);
    struct buf b = {0};
    const char *s;
    size_t len;

    FST_TRY(get_string(r, v, "thinking", path, &s, &len));
    if (!m || !m->reasoning.len) {
        chat_set_reasoning(r, m, s, len);
        return FST_OK;
    }
    buf_append(&b, m->reasoning.data, m->reasoning.len);
    buf_puts(&b, "\n\n");
    buf_append(&b, s, len);
    if (b.failed)
        r->failed = true;
    else
        chat_set_reasoning(r, m, b.data, b.len);
    buf_release(&b);
    return FST_OK;
}

static enum fst_status read_block(struct chat_request *r, enum chat_role role, json_val *v,
                                  const char *path)
{
    json_val *type = json_get(v, "type");
    char sub[PATH_MAX_BYTES];
    const char *s;
    size_t len;
    enum chat_role owner;

    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, path, "object", v);
    snprintf(sub, sizeof sub, "%s.type", path);
    if (!json_string(type, &len))
        return chat_wrong_type(r, sub, "string", type);
    if (chat_json_is(type, "text")) {
        FST_TRY(get_string(r, v, "text", path, &s, &len));
        chat_add_text(r, current(r, role), s, len);
        return FST_OK;
    }
    if (chat_json_is(type, "tool_result"))
        owner = CHAT_USER;
    else if (chat_json_is(type, "tool_use") || chat_json_is(type, "thinking") ||
             chat_json_is(type, "redacted_thinking"))
        owner = CHAT_ASSISTANT;
    else
        return chat_other_part(r, current(r, role), path, type);
    if (role != owner)
        return chat_refuse(r, sub, "invalid_value", "'%s' belongs into messages of role %s, got %s",
                           json_string(type, &len), chat_role_name(owner), chat_role_name(role));
    if (owner == CHAT_USER)
        return read_result(r, v, path);
    if (chat_json_is(type, "tool_use"))
        return read_call(r, v, path);
    return chat_json_is(type, "thinking") ? read_thought(r, v, path) : FST_OK;
}

static enum fst_status read_message(struct chat_request *r, json_val *v, size_t i)
{
    json_val *content = json_get(v, "content"), *role_name = json_get(v, "role");
    char base[40], path[96], word[68];
    enum chat_role role;
    size_t len;

    snprintf(base, sizeof base, "messages[%zu]", i);
    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, base, "object", v);
    snprintf(path, sizeof path, "%s.role", base);
    if (!json_string(role_name, &len))
        return chat_wrong_type(r, path, "string", role_name);
    if (chat_json_is(role_name, "user"))
        role = CHAT_USER;
    else if (chat_json_is(role_name, "assistant"))
        role = CHAT_ASSISTANT;
    else if (chat_json_is(role_name, "system"))
        role = CHAT_SYSTEM;
    else
        return chat_refuse(r, path, "invalid_value",
                           "Unknown role: %s (expected user, assistant or system)",
                           chat_shown(role_name, word));
    snprintf(path, sizeof path, "%s.content", base);
    if (role == CHAT_SYSTEM)
        return read_texts(r, chat_add_message(r, role), content, path);
    if (json_type_of(content) != JSON_ARRAY)
        return read_texts(r, current(r, role), content, path);
    if (!json_count(content))
        (void)current(r, role); /* a turn in which nothing is said */
    for (size_t k = 0; k < json_count(content); k++) {
        snprintf(path, sizeof path, "%s.content[%zu]", base, k);
        FST_TRY(read_block(r, role, json_at(content, k), path));
    }
    return FST_OK;
}

/* ---- tools ---------------------------------------------------------------------------------- */

static enum fst_status read_tool(struct chat_request *r, json_val *v, const char *path)
{
    json_val *type = json_get(v, "type"), *schema = json_get(v, "input_schema");
    json_val *about = json_get(v, "description");
    char sub[PATH_MAX_BYTES];
    const char *name;
    size_t len;
    bool strict = false;

    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, path, "object", v);
    snprintf(sub, sizeof sub, "%s.type", path);
    if (!json_is_null(type) && !json_string(type, &len))
        return chat_wrong_type(r, sub, "string", type);
    if (!json_is_null(type) && !chat_json_is(type, "custom"))
        return FST_OK; /* one that Anthropic's servers run (web_search_20250305): not there */
    snprintf(sub, sizeof sub, "%s.name", path);
    FST_TRY(chat_check_tool_name(r, json_get(v, "name"), sub));
    name = json_string(json_get(v, "name"), &len);
    snprintf(sub, sizeof sub, "%s.description", path);
    if (!json_is_null(about) && !json_string(about, &len))
        return chat_wrong_type(r, sub, "string", about);
    snprintf(sub, sizeof sub, "%s.input_schema", path);
    if (json_type_of(schema) != JSON_OBJECT)
        return chat_wrong_type(r, sub, "object", schema);
    snprintf(sub, sizeof sub, "%s.strict", path);
    FST_TRY(chat_get_bool(r, v, "strict", sub, &strict));
    chat_add_tool(r, name, about, schema, strict);
    return FST_OK;
}

static enum fst_status read_tool_choice(struct chat_request *r, json_val *v)
{
    json_val *type = json_get(v, "type");
    bool one = false;
    char word[68];
    const char *s;
    size_t len;

    if (json_is_null(v))
        return FST_OK;
    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, "tool_choice", "object", v);
    if (!json_string(type, &len))
        return chat_wrong_type(r, "tool_choice.type", "string", type);
    if (chat_json_is(type, "auto"))
        r->tool_choice = CHAT_TOOLS_AUTO;
    else if (chat_json_is(type, "any"))
        r->tool_choice = CHAT_TOOLS_REQUIRED;
    else if (chat_json_is(type, "none"))
        r->tool_choice = CHAT_TOOLS_NONE;
    else if (chat_json_is(type, "tool")) {
        FST_TRY(get_string(r, v, "name", "tool_choice", &s, &len));
        r->tool_choice = CHAT_TOOLS_NAMED;
        r->tool_name = chat_copy(r, s, len);
    } else
        return chat_refuse(r, "tool_choice.type", "invalid_value",
                           "expected auto, any, tool or none, got '%s'", chat_shown(type, word));
    FST_TRY(chat_get_bool(r, v, "disable_parallel_tool_use",
                          "tool_choice.disable_parallel_tool_use", &one));
    r->parallel_calls = !one;
    return FST_OK;
}

/* ---- the rest ------------------------------------------------------------------------------- */

/* Off unless it is asked for, whatever the server's default: that is what clients of this API mean
 * by leaving it out, and they have no place for thoughts then. */
static enum fst_status read_thinking(struct chat_request *r, json_val *body)
{
    json_val *think = json_get(body, "thinking"), *type = json_get(think, "type");
    json_val *config = json_get(body, "output_config");
    static const char *const on[] = {"enabled", "adaptive", "between_tools"};
    bool by_effort, seen;
    char word[68];
    size_t len;

    r->thinking = false;
    if (!json_is_null(config) && json_type_of(config) != JSON_OBJECT)
        return chat_wrong_type(r, "output_config", "object", config);
    FST_TRY(
        chat_read_effort(r, json_get(config, "effort"), "output_config.effort", &by_effort, &seen));
    if (json_is_null(think))
        return FST_OK;
    if (json_type_of(think) != JSON_OBJECT)
        return chat_wrong_type(r, "thinking", "object", think);
    if (!json_string(type, &len))
        return chat_wrong_type(r, "thinking.type", "string", type);
    for (size_t i = 0; i < FST_COUNT(on); i++)
        r->thinking |= chat_json_is(type, on[i]);
    if (!r->thinking && !chat_json_is(type, "disabled"))
        return chat_refuse(r, "thinking.type", "invalid_value",
                           "expected enabled, disabled, adaptive or between_tools, got '%s'",
                           chat_shown(type, word));
    return FST_OK;
}

/* output_config.format, and the name it had before.  Of its schema every keyword counts. */
static enum fst_status read_format(struct chat_request *r, json_val *body)
{
    json_val *now = json_get(json_get(body, "output_config"), "format");
    json_val *v = json_is_null(now) ? json_get(body, "output_format") : now;
    const char *path = json_is_null(now) ? "output_format" : "output_config.format";
    json_val *type = json_get(v, "type"), *schema = json_get(v, "schema");
    char sub[40], word[68];

    if (json_is_null(v))
        return FST_OK;
    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, path, "object", v);
    snprintf(sub, sizeof sub, "%s.type", path);
    if (json_type_of(type) != JSON_STRING)
        return chat_wrong_type(r, sub, "string", type);
    if (!chat_json_is(type, "json_schema"))
        return chat_refuse(r, sub, "invalid_value", "expected json_schema, got '%s'",
                           chat_shown(type, word));
    snprintf(sub, sizeof sub, "%s.schema", path);
    if (json_type_of(schema) != JSON_OBJECT)
        return chat_wrong_type(r, sub, "object", schema);
    chat_set_response_format(r, schema);
    r->response_strict = true;
    r->response_param = json_is_null(now) ? "output_format.schema" : "output_config.format.schema";
    return FST_OK;
}

static enum fst_status read_body(struct chat_request *r, json_val *body)
{
    json_val *messages = json_get(body, "messages"), *system = json_get(body, "system");
    const struct chat_message *last;

    if (json_type_of(body) != JSON_OBJECT)
        return chat_wrong_type(r, "body", "object", body);
    if (!json_is_null(messages) && json_type_of(messages) != JSON_ARRAY)
        return chat_wrong_type(r, "messages", "array", messages);
    if (!json_count(messages)) {
        snprintf(r->error_param, sizeof r->error_param, "messages");
        r->error_code = "invalid_value";
        return fst_error(FST_EINVAL, "Messages cannot be empty.");
    }
    if (!json_is_null(system))
        FST_TRY(read_texts(r, chat_add_message(r, CHAT_SYSTEM), system, "system"));
    for (size_t i = 0; i < json_count(messages); i++)
        FST_TRY(read_message(r, json_at(messages, i), i));
    FST_TRY(chat_read_tools(r, json_get(body, "tools"), read_tool));
    FST_TRY(read_tool_choice(r, json_get(body, "tool_choice")));
    FST_TRY(chat_check_tools(r));
    FST_TRY(read_thinking(r, body));
    FST_TRY(read_format(r, body));
    if (r->failed || !r->n_messages)
        return FST_OK; /* the caller says so */
    last = &r->messages[r->n_messages - 1];
    r->continue_final = last->role == CHAT_ASSISTANT && last->n_calls == 0;
    return FST_OK;
}

enum fst_status chat_request_from_messages(struct chat_request *r, json_val *body,
                                           const struct chat_defaults *d)
{
    chat_request_init(r, d);
    FST_TRY(read_body(r, body));
    return r->failed ? fst_error(FST_ENOMEM, "no memory for a chat request") : FST_OK;
}
