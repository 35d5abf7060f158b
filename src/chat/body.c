/* body.c - an OpenAI-style chat body to a chat_request.
 *
 * Every refusal names the JSON path, what was expected and what was there. Fields that are not
 * about the conversation (sampling, streaming, ...) belong to the server and are not looked at. */
#include <strings.h>

#include "chat/request.h"
#include "chat/tags.h"

/* ---- content -------------------------------------------------------------------------------- */

static enum fst_status read_part(struct chat_request *r, struct chat_message *m, json_val *v,
                                 const char *path)
{
    static const char *const text_types[] = {"text", "input_text", "output_text"};
    json_val *type = json_get(v, "type");
    char sub[192];
    const char *s;
    size_t len;

    if ((s = json_string(v, &len))) {
        chat_add_text(r, m, s, len);
        return FST_OK;
    }
    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, path, "object", v);
    snprintf(sub, sizeof sub, "%s.type", path);
    if (!json_string(type, &len))
        return chat_wrong_type(r, sub, "string", type);
    for (size_t i = 0; i < FST_COUNT(text_types); i++)
        if (chat_json_is(type, text_types[i])) {
            snprintf(sub, sizeof sub, "%s.text", path);
            if (!(s = json_string(json_get(v, "text"), &len)))
                return chat_wrong_type(r, sub, "string", json_get(v, "text"));
            chat_add_text(r, m, s, len);
            return FST_OK;
        }
    /* what assistants said before, in the parts that clients keep it in */
    if (m->role == CHAT_ASSISTANT && chat_json_is(type, "refusal") &&
        (s = json_string(json_get(v, "refusal"), &len))) {
        chat_add_text(r, m, s, len);
        return FST_OK;
    }
    if (m->role == CHAT_ASSISTANT && chat_json_is(type, "thinking") &&
        (s = json_string(json_get(v, "thinking"), &len))) {
        chat_set_reasoning(r, m, s, len);
        return FST_OK;
    }
    return chat_other_part(r, m, path, type);
}

enum fst_status chat_read_content(struct chat_request *r, struct chat_message *m, json_val *v,
                                  const char *path)
{
    size_t len;
    const char *s = json_string(v, &len);
    char sub[160];

    if (s) {
        chat_add_text(r, m, s, len);
        return FST_OK;
    }
    if (json_type_of(v) == JSON_ARRAY) {
        for (size_t i = 0; i < json_count(v); i++) {
            snprintf(sub, sizeof sub, "%s[%zu]", path, i);
            FST_TRY(read_part(r, m, json_at(v, i), sub));
        }
        return FST_OK;
    }
    /* A turn of calls has no text, a tool may say nothing; a user who says nothing is a mistake. */
    if (json_is_null(v) && m->role != CHAT_USER && m->role != CHAT_DEVELOPER) {
        m->content_null = true;
        return FST_OK;
    }
    return chat_wrong_type(r, path, "string or array", v);
}

/* ---- tools and calls ------------------------------------------------------------------------ */

static enum fst_status read_call(struct chat_request *r, struct chat_message *m, json_val *v,
                                 const char *path)
{
    json_val *f = json_get(v, "function"), *id = json_get(v, "id"), *name, *args;
    char sub[192];
    const char *n, *a, *i = NULL;
    size_t len, a_len;

    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, path, "object", v);
    snprintf(sub, sizeof sub, "%s.id", path);
    if (json_is_null(id))
        id = json_get(f, "id");
    if (!json_is_null(id) && !(i = json_string(id, &len)))
        return chat_wrong_type(r, sub, "string", id);
    snprintf(sub, sizeof sub, "%s.function", path);
    if (json_type_of(f) != JSON_OBJECT)
        return chat_wrong_type(r, sub, "object", f);
    name = json_get(f, "name");
    snprintf(sub, sizeof sub, "%s.function.name", path);
    if (!(n = json_string(name, &len)))
        return chat_wrong_type(r, sub, "string", name);
    args = json_get(f, "arguments");
    if ((a = json_string(args, &a_len)))
        chat_add_call(r, m, i, n, a, a_len);
    else if (json_is_null(args))
        chat_add_call(r, m, i, n, "", 0);
    else {
        struct chat_str text = chat_copy_json(r, args);
        if (text.data)
            chat_add_call(r, m, i, n, text.data, text.len);
    }
    return FST_OK;
}

static enum fst_status read_calls(struct chat_request *r, struct chat_message *m, json_val *v,
                                  const char *path)
{
    char sub[160];

    if (json_is_null(v))
        return FST_OK;
    if (json_type_of(v) != JSON_ARRAY)
        return chat_wrong_type(r, path, "array", v);
    for (size_t i = 0; i < json_count(v); i++) {
        snprintf(sub, sizeof sub, "%s[%zu]", path, i);
        FST_TRY(read_call(r, m, json_at(v, i), sub));
    }
    return FST_OK;
}

/* One element of a "tools" array, checked; its function object goes to *function. */
static enum fst_status check_tool(struct chat_request *r, json_val *v, const char *path, size_t i,
                                  json_val **function)
{
    json_val *type = json_get(v, "type"), *params;
    char sub[192], word[68];

    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, path, "object", v);
    if (!json_is_null(type) && !chat_json_is(type, "function")) {
        snprintf(sub, sizeof sub, "%s.type", path);
        return chat_refuse(r, sub, "unsupported_tool", "only \"function\" is supported, got '%s'",
                           chat_shown(type, word));
    }
    snprintf(sub, sizeof sub, "%s.function", path);
    *function = json_get(v, "function");
    if (json_type_of(*function) != JSON_OBJECT)
        return chat_wrong_type(r, sub, "object", *function);
    snprintf(sub, sizeof sub, "%s.function.name", path);
    FST_TRY(chat_check_tool_name(r, json_get(*function, "name"), sub));
    params = json_get(*function, "parameters");
    snprintf(sub, sizeof sub, "%s.function.parameters", path);
    if (!json_is_null(params) && json_type_of(params) != JSON_OBJECT)
        return chat_refuse(
            r, sub, "invalid_type",
            "Tool %zu function has invalid 'parameters' schema: expected object, got %s", i,
            json_type_name(json_type_of(params)));
    return FST_OK;
}

static enum fst_status check_tool_list(struct chat_request *r, json_val *v, const char *path)
{
    if (json_type_of(v) != JSON_ARRAY)
        return chat_wrong_type(r, path, "array", v);
    if (json_count(v) > CHAT_TOOLS_MAX)
        return chat_refuse(r, path, "invalid_value", "at most %d tools, got %zu", CHAT_TOOLS_MAX,
                           json_count(v));
    return FST_OK;
}

enum fst_status chat_read_tools(struct chat_request *r, json_val *v, chat_tool_reader *read)
{
    char path[40];

    if (json_is_null(v))
        return FST_OK;
    FST_TRY(check_tool_list(r, v, "tools"));
    for (size_t i = 0; i < json_count(v); i++) {
        snprintf(path, sizeof path, "tools[%zu]", i);
        size_t before = r->n_tools;
        FST_TRY(read(r, json_at(v, i), path));
        if (r->n_tools > before)
            r->tools[before].at = i;
    }
    return FST_OK;
}

static enum fst_status read_tools(struct chat_request *r, json_val *v, const char *path,
                                  struct chat_message *m)
{
    char sub[160];
    size_t n = json_count(v);

    if (json_is_null(v))
        return FST_OK;
    FST_TRY(check_tool_list(r, v, path));
    if (m && n) {
        m->tools = arena_calloc(&r->arena, n, sizeof *m->tools);
        if (!m->tools) {
            r->failed = true;
            return FST_OK;
        }
    }
    for (size_t i = 0; i < n; i++) {
        json_val *function = NULL;
        snprintf(sub, sizeof sub, "%s[%zu]", path, i);
        FST_TRY(check_tool(r, json_at(v, i), sub, i, &function));
        if (m)
            m->n_tools += chat_tool_from_json(r, &m->tools[m->n_tools], function);
        else
            chat_add_tool_json(r, function);
        if (!m && r->n_tools)
            r->tools[r->n_tools - 1].at = i;
    }
    return FST_OK;
}

static enum fst_status read_tool_choice(struct chat_request *r, json_val *v)
{
    json_val *type = json_type_of(v) == JSON_OBJECT ? json_get(v, "type") : v;
    json_val *name = json_get(json_get(v, "function"), "name");
    char word[68];
    const char *s;
    size_t len;

    if (json_is_null(v))
        return FST_OK;
    if (json_type_of(v) != JSON_STRING && json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, "tool_choice", "string or object", v);
    if (chat_json_is(type, "auto"))
        r->tool_choice = CHAT_TOOLS_AUTO;
    else if (chat_json_is(type, "none"))
        r->tool_choice = CHAT_TOOLS_NONE;
    else if (chat_json_is(type, "required"))
        r->tool_choice = CHAT_TOOLS_REQUIRED;
    else if (chat_json_is(type, "function")) {
        if (json_is_null(name))
            name = json_get(v, "name");
        if (!(s = json_string(name, &len)))
            return chat_wrong_type(r, "tool_choice.function.name", "string", name);
        r->tool_choice = CHAT_TOOLS_NAMED;
        r->tool_name = chat_copy(r, s, len);
    } else
        return chat_refuse(r, "tool_choice", "invalid_value",
                           "expected auto, none, required or a function, got '%s'",
                           chat_shown(type, word));
    return FST_OK;
}

enum fst_status chat_check_tool_name(struct chat_request *r, json_val *name, const char *path)
{
    size_t len;
    const char *s = json_string(name, &len);

    if (!s)
        return chat_wrong_type(r, path, "string", name);
    if (!len)
        return chat_refuse(r, path, "invalid_value", "a tool must have a name");
    if (len > TAG_NAME_MAX)
        return chat_refuse(r, path, "invalid_value", "at most %d bytes, got %zu", TAG_NAME_MAX,
                           len);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == '"')
            return chat_refuse(r, path, "invalid_value",
                               "a name has no quotes and no control characters, got 0x%02x at byte "
                               "%zu",
                               (unsigned)(unsigned char)s[i], i);
    return FST_OK;
}

enum fst_status chat_check_tools(struct chat_request *r)
{
    if (r->failed)
        return fst_error(FST_ENOMEM, "no memory for a chat request");
    snprintf(r->error_param, sizeof r->error_param, "tool_choice");
    r->error_code = "invalid_value";
    if (r->tool_choice == CHAT_TOOLS_REQUIRED && r->n_tools == 0)
        return fst_error(FST_EINVAL, "Tools cannot be empty if tool choice is set to required.");
    if (r->tool_choice == CHAT_TOOLS_NAMED &&
        !chat_find_tool(r->tools, r->n_tools, r->tool_name.data, r->tool_name.len))
        return fst_error(FST_EINVAL, "Tool '%.64s' not found in tools list.", r->tool_name.data);
    r->error_param[0] = 0;
    r->error_code = NULL;
    return FST_OK;
}

/* ---- messages ------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    enum chat_task task;
} tasks[] = {
    {"action", CHAT_TASK_ACTION}, {"query", CHAT_TASK_QUERY}, {"authority", CHAT_TASK_AUTHORITY},
    {"domain", CHAT_TASK_DOMAIN}, {"title", CHAT_TASK_TITLE}, {"read_url", CHAT_TASK_READ_URL},
};

static enum fst_status read_task(struct chat_request *r, json_val *v, const char *path,
                                 enum chat_task *out)
{
    char word[68];

    if (json_is_null(v))
        return FST_OK;
    if (json_type_of(v) != JSON_STRING)
        return chat_wrong_type(r, path, "string", v);
    for (size_t i = 0; i < FST_COUNT(tasks); i++)
        if (chat_json_is(v, tasks[i].word)) {
            *out = tasks[i].task;
            return FST_OK;
        }
    return chat_refuse(r, path, "invalid_value",
                       "expected action, query, authority, domain, title or read_url, got '%s'",
                       chat_shown(v, word));
}

static enum fst_status read_role(struct chat_request *r, json_val *v, const char *path,
                                 enum chat_role *role, bool *is_function)
{
    size_t len;
    const char *s = json_string(v, &len);
    char word[68];

    if (!s)
        return chat_wrong_type(r, path, "string", v);
    *is_function = strcasecmp(s, "function") == 0;
    *role = CHAT_TOOL;
    if (*is_function)
        return FST_OK;
    for (int i = CHAT_SYSTEM; i <= CHAT_LATEST_REMINDER; i++)
        if (strcasecmp(s, chat_role_name((enum chat_role)i)) == 0) {
            *role = (enum chat_role)i;
            return FST_OK;
        }
    return chat_refuse(
        r, path, "invalid_value",
        "Unknown role: %s (expected system, developer, user, assistant, tool, function "
        "or latest_reminder)",
        chat_shown(v, word));
}

static bool is_falsy(json_val *v)
{
    enum json_type t = json_type_of(v);

    return t == JSON_NULL || t == JSON_FALSE ||
           ((t == JSON_OBJECT || t == JSON_ARRAY) && json_count(v) == 0);
}

static enum fst_status read_reasoning(struct chat_request *r, struct chat_message *m, json_val *v,
                                      const char *base)
{
    const char *key =
        json_is_null(json_get(v, "reasoning_content")) ? "reasoning" : "reasoning_content";
    json_val *text = json_get(v, key);
    char path[96];
    const char *s;
    size_t len;

    if (json_is_null(text))
        return FST_OK;
    snprintf(path, sizeof path, "%s.%s", base, key);
    if (!(s = json_string(text, &len)))
        return chat_wrong_type(r, path, "string", text);
    chat_set_reasoning(r, m, s, len);
    return FST_OK;
}

static enum fst_status read_message(struct chat_request *r, json_val *v, size_t i)
{
    struct chat_message *m;
    enum chat_role role;
    bool is_function;
    json_val *id;
    char base[40], path[96];
    const char *s;
    size_t len;

    snprintf(base, sizeof base, "messages[%zu]", i);
    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, base, "object", v);
    snprintf(path, sizeof path, "%s.role", base);
    FST_TRY(read_role(r, json_get(v, "role"), path, &role, &is_function));
    m = chat_add_message(r, role);
    if (!m)
        return FST_OK; /* remembered in r->failed */
    snprintf(path, sizeof path, "%s.content", base);
    FST_TRY(chat_read_content(r, m, json_get(v, "content"), path));
    snprintf(path, sizeof path, "%s.task", base);
    FST_TRY(read_task(r, json_get(v, "task"), path, &m->task));
    if (role == CHAT_ASSISTANT) {
        FST_TRY(read_reasoning(r, m, v, base));
        snprintf(path, sizeof path, "%s.tool_calls", base);
        FST_TRY(read_calls(r, m, json_get(v, "tool_calls"), path));
        snprintf(path, sizeof path, "%s.wo_eos", base);
        FST_TRY(chat_get_bool(r, v, "wo_eos", path, &m->wo_eos));
        snprintf(path, sizeof path, "%s.prefix", base);
        FST_TRY(chat_get_bool(r, v, "prefix", path, &m->is_prefix));
    }
    if (role == CHAT_TOOL) {
        id = json_get(v, is_function ? "name" : "tool_call_id");
        snprintf(path, sizeof path, "%s.%s", base, is_function ? "name" : "tool_call_id");
        if (!json_is_null(id)) {
            if (!(s = json_string(id, &len)))
                return chat_wrong_type(r, path, "string", id);
            m->tool_call_id = chat_copy(r, s, len);
        }
    }
    if (role == CHAT_SYSTEM || role == CHAT_DEVELOPER) {
        snprintf(path, sizeof path, "%s.tools", base);
        FST_TRY(read_tools(r, json_get(v, "tools"), path, m));
        if (!is_falsy(json_get(v, "response_format")))
            m->response_format = chat_copy_json(r, json_get(v, "response_format"));
    }
    return FST_OK;
}

static enum fst_status read_messages(struct chat_request *r, json_val *v)
{
    if (!json_is_null(v) && json_type_of(v) != JSON_ARRAY)
        return chat_wrong_type(r, "messages", "array", v);
    if (json_count(v) == 0) {
        snprintf(r->error_param, sizeof r->error_param, "messages");
        r->error_code = "invalid_value";
        return fst_error(FST_EINVAL, "Messages cannot be empty.");
    }
    for (size_t i = 0; i < json_count(v); i++)
        FST_TRY(read_message(r, json_at(v, i), i));
    return FST_OK;
}

/* ---- thinking and effort -------------------------------------------------------------------- */

enum fst_status chat_read_thinking(struct chat_request *r, json_val *body)
{
    json_val *kwargs = json_get(body, "chat_template_kwargs"), *think = json_get(body, "thinking");
    json_val *reasoning = json_get(body, "reasoning"), *type = json_get(think, "type");
    const struct {
        json_val *v;
        const char *path;
    } efforts[] = {
        {json_get(kwargs, "reasoning_effort"), "chat_template_kwargs.reasoning_effort"},
        {json_get(body, "reasoning_effort"), "reasoning_effort"},
        {json_get(reasoning, "effort"), "reasoning.effort"},
        {json_get(json_get(body, "output_config"), "effort"), "output_config.effort"},
    };
    const struct {
        json_val *object;
        const char *key, *path;
    } bools[] = {
        /* lowest first; later ones overrule */
        {reasoning, "enabled", "reasoning.enabled"},
        {body, "think", "think"},
        {body, "enable_thinking", "enable_thinking"},
        {NULL, NULL, NULL}, /* thinking.type */
        {kwargs, "enable_thinking", "chat_template_kwargs.enable_thinking"},
        {kwargs, "thinking", "chat_template_kwargs.thinking"},
    };
    bool by_effort = true, seen = false;
    char word[68];

    if (chat_json_is(json_get(body, "model"), "deepseek-chat"))
        r->thinking = false;
    else if (chat_json_is(json_get(body, "model"), "deepseek-reasoner"))
        r->thinking = true;
    for (size_t i = 0; i < FST_COUNT(efforts) && !seen; i++)
        FST_TRY(chat_read_effort(r, efforts[i].v, efforts[i].path, &by_effort, &seen));
    if (seen)
        r->thinking = by_effort;
    for (size_t i = 0; i < FST_COUNT(bools); i++) {
        if (bools[i].key) {
            FST_TRY(chat_get_bool(r, bools[i].object, bools[i].key, bools[i].path, &r->thinking));
            continue;
        }
        if (json_type_of(think) == JSON_TRUE || json_type_of(think) == JSON_FALSE) {
            r->thinking = json_bool(think, false);
            continue;
        }
        if (!json_is_null(think) && json_type_of(think) != JSON_OBJECT)
            return chat_wrong_type(r, "thinking", "object", think);
        if (json_is_null(type))
            continue;
        if (chat_json_is(type, "enabled") || chat_json_is(type, "adaptive") ||
            chat_json_is(type, "auto"))
            r->thinking = true;
        else if (chat_json_is(type, "disabled"))
            r->thinking = false;
        else if (json_type_of(type) == JSON_STRING)
            return chat_refuse(r, "thinking.type", "invalid_value",
                               "expected enabled, disabled or adaptive, got '%s'",
                               chat_shown(type, word));
        else
            return chat_wrong_type(r, "thinking.type", "string", type);
    }
    return FST_OK;
}

enum fst_status chat_response_format_from_json(struct chat_request *r, json_val *v)
{
    json_val *type = json_get(v, "type"), *schema;
    char word[68];

    if (json_is_null(v))
        return FST_OK;
    if (json_type_of(v) != JSON_OBJECT)
        return chat_wrong_type(r, "response_format", "object", v);
    if (json_type_of(type) != JSON_STRING)
        return chat_wrong_type(r, "response_format.type", "string", type);
    if (chat_json_is(type, "text") || chat_json_is(type, "structural_tag"))
        return FST_OK; /* the second is the grammar's alone */
    if (chat_json_is(type, "json_object")) {
        chat_set_response_format(r, NULL);
        return FST_OK;
    }
    if (!chat_json_is(type, "json_schema"))
        return chat_refuse(r, "response_format.type", "invalid_value",
                           "expected text, json_object, json_schema or structural_tag, got '%s'",
                           chat_shown(type, word));
    schema = json_get(json_get(v, "json_schema"), "schema");
    if (json_is_null(schema)) {
        snprintf(r->error_param, sizeof r->error_param, "response_format.json_schema.schema");
        r->error_code = "invalid_value";
        return fst_error(FST_EINVAL,
                         "schema_ is required for json_schema response format request.");
    }
    if (json_type_of(schema) != JSON_OBJECT && json_type_of(schema) != JSON_TRUE)
        return chat_wrong_type(r, "response_format.json_schema.schema", "object", schema);
    chat_set_response_format(r, schema);
    return chat_get_bool(r, json_get(v, "json_schema"), "strict",
                         "response_format.json_schema.strict", &r->response_strict);
}

static enum fst_status read_body(struct chat_request *r, json_val *body)
{
    const struct chat_message *last;

    if (json_type_of(body) == JSON_ARRAY) {
        FST_TRY(read_messages(r, body));
        r->continue_final = !r->failed && r->messages[r->n_messages - 1].is_prefix;
        return FST_OK;
    }
    if (json_type_of(body) != JSON_OBJECT)
        return chat_wrong_type(r, "body", "object", body);
    FST_TRY(read_messages(r, json_get(body, "messages")));
    FST_TRY(read_tools(r, json_get(body, "tools"), "tools", NULL));
    FST_TRY(read_tool_choice(r, json_get(body, "tool_choice")));
    FST_TRY(chat_check_tools(r));
    FST_TRY(chat_response_format_from_json(r, json_get(body, "response_format")));
    FST_TRY(chat_read_thinking(r, body));
    FST_TRY(read_task(r, json_get(body, "task"), "task", &r->task));
    FST_TRY(
        chat_get_bool(r, body, "parallel_tool_calls", "parallel_tool_calls", &r->parallel_calls));
    FST_TRY(
        chat_get_bool(r, body, "separate_reasoning", "separate_reasoning", &r->separate_reasoning));
    FST_TRY(chat_get_bool(r, body, "drop_thinking", "drop_thinking", &r->drop_thinking));
    FST_TRY(chat_get_bool(r, body, "add_generation_prompt", "add_generation_prompt",
                          &r->generation_prompt));
    FST_TRY(chat_get_bool(r, body, "continue_final_message", "continue_final_message",
                          &r->continue_final));
    if (r->failed)
        return FST_OK; /* the caller says so */
    last = &r->messages[r->n_messages - 1];
    if (r->continue_final && last->role != CHAT_ASSISTANT)
        return chat_refuse(r, "continue_final_message", "invalid_value",
                           "the last message must be the assistant's, got %s",
                           chat_role_name(last->role));
    r->continue_final |= last->is_prefix;
    return FST_OK;
}

enum fst_status chat_tools_from_json(struct chat_request *r, json_val *v)
{
    FST_TRY(read_tools(r, v, "tools", NULL));
    return r->failed ? fst_error(FST_ENOMEM, "no memory for a chat request") : FST_OK;
}

enum fst_status chat_request_from_json(struct chat_request *r, json_val *body,
                                       const struct chat_defaults *d)
{
    chat_request_init(r, d);
    FST_TRY(read_body(r, body));
    return r->failed ? fst_error(FST_ENOMEM, "no memory for a chat request") : FST_OK;
}
