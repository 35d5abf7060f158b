/* tools.c - tool declarations: their text in the prompt and the types of their parameters. */
#include "chat/request.h"

static const struct {
    const char *name;
    unsigned bit;
} type_names[] = {
    {"string", CHAT_T_STRING},   {"integer", CHAT_T_INTEGER}, {"number", CHAT_T_NUMBER},
    {"boolean", CHAT_T_BOOLEAN}, {"null", CHAT_T_NULL},       {"array", CHAT_T_ARRAY},
    {"object", CHAT_T_OBJECT},
};

unsigned chat_types_of(json_val *v)
{
    int64_t i;

    switch (json_type_of(v)) {
    case JSON_NULL:
        return CHAT_T_NULL;
    case JSON_FALSE:
    case JSON_TRUE:
        return CHAT_T_BOOLEAN;
    case JSON_NUMBER:
        return CHAT_T_NUMBER | (json_int(v, &i) ? CHAT_T_INTEGER : 0);
    case JSON_STRING:
        return CHAT_T_STRING;
    case JSON_ARRAY:
        return CHAT_T_ARRAY;
    default:
        return CHAT_T_OBJECT;
    }
}

static unsigned named_type(json_val *v)
{
    for (size_t i = 0; i < FST_COUNT(type_names); i++)
        if (chat_json_is(v, type_names[i].name))
            return type_names[i].bit;
    return 0;
}

/* Types that a schema allows; 0 when it does not say in the few ways looked at ("type", "enum",
 * "const", one level of alternatives). */
static unsigned schema_types(json_val *schema, int depth)
{
    static const char *const either[] = {"anyOf", "oneOf", "allOf"};
    json_val *type = json_get(schema, "type"), *list = json_get(schema, "enum");
    unsigned bits = 0;

    if (json_type_of(type) == JSON_STRING)
        return named_type(type);
    if (json_type_of(type) == JSON_ARRAY) {
        for (size_t i = 0; i < json_count(type); i++)
            bits |= named_type(json_at(type, i));
        return bits;
    }
    for (size_t i = 0; i < json_count(list); i++)
        bits |= chat_types_of(json_at(list, i));
    if (bits)
        return bits;
    if (json_get(schema, "const"))
        return chat_types_of(json_get(schema, "const"));
    for (size_t k = 0; depth > 0 && k < FST_COUNT(either); k++) {
        list = json_get(schema, either[k]);
        for (size_t i = 0; i < json_count(list); i++) {
            unsigned more = schema_types(json_at(list, i), depth - 1);
            if (!more)
                return 0; /* an alternative that may be anything */
            bits |= more;
        }
    }
    return bits;
}

enum { PARAMS_MAX = 4096, REQUIRED_MAX = 1024 }; /* beyond these a schema gives no hints */

static void read_params(struct chat_request *r, struct chat_tool *t, json_val *parameters)
{
    json_val *props = json_get(parameters, "properties");
    json_val *required = json_get(parameters, "required");
    size_t n = json_type_of(props) == JSON_OBJECT ? json_count(props) : 0;

    n = FST_MIN(n, PARAMS_MAX);
    if (n == 0)
        return;
    t->params = arena_calloc(&r->arena, n, sizeof *t->params);
    if (!t->params) {
        r->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const char *key;
        size_t len;
        json_val *schema = json_member(props, i, &key, &len);

        t->params[i] = (struct chat_param){chat_copy(r, key, len), schema_types(schema, 2), false};
        for (size_t k = 0; k < FST_MIN(json_count(required), REQUIRED_MAX); k++)
            t->params[i].required |= chat_json_is(json_at(required, k), key);
    }
    t->n_params = n;
}

/* {"name": ..., ...} as received, without "strict" and members that are null. */
static struct chat_str function_text(struct chat_request *r, json_val *function)
{
    struct buf b = {0};
    struct chat_str text = {0};
    bool first = true;

    buf_putc(&b, '{');
    for (size_t i = 0; i < json_count(function); i++) {
        const char *key;
        size_t len;
        json_val *v = json_member(function, i, &key, &len);

        if (json_is_null(v) || strcmp(key, "strict") == 0)
            continue;
        if (!first)
            buf_puts(&b, ", ");
        first = false;
        json_put_string(&b, key, len);
        buf_puts(&b, ": ");
        json_put(&b, v, JSON_PYTHON);
    }
    buf_putc(&b, '}');
    if (b.failed)
        r->failed = true;
    else
        text = chat_copy(r, b.data, b.len);
    buf_release(&b);
    return text;
}

bool chat_tool_from_json(struct chat_request *r, struct chat_tool *t, json_val *function)
{
    size_t len;
    const char *name = json_string(json_get(function, "name"), &len);

    if (!name)
        return false;
    *t = (struct chat_tool){.name = chat_copy(r, name, len),
                            .json = function_text(r, function),
                            .strict = json_bool(json_get(function, "strict"), false)};
    read_params(r, t, json_get(function, "parameters"));
    return true;
}

static struct chat_tool *next_tool(struct chat_request *r)
{
    struct chat_tool *t = chat_grow(r, r->tools, r->n_tools, sizeof *t);

    if (!t)
        return NULL;
    r->tools = t;
    return t + r->n_tools;
}

void chat_add_tool_json(struct chat_request *r, json_val *function)
{
    struct chat_tool *t = next_tool(r);

    if (t && chat_tool_from_json(r, t, function))
        r->n_tools++;
}

void chat_add_tool(struct chat_request *r, const char *name, json_val *description,
                   json_val *parameters, bool strict)
{
    struct chat_tool *t = next_tool(r);
    struct buf b = {0};

    if (!t)
        return;
    buf_puts(&b, "{\"name\": ");
    json_put_string(&b, name, strlen(name));
    if (!json_is_null(description)) {
        buf_puts(&b, ", \"description\": ");
        json_put(&b, description, JSON_PYTHON);
    }
    if (!json_is_null(parameters)) {
        buf_puts(&b, ", \"parameters\": ");
        json_put(&b, parameters, JSON_PYTHON);
    }
    buf_putc(&b, '}');
    if (b.failed)
        r->failed = true;
    else {
        *t = (struct chat_tool){.name = chat_copy(r, name, strlen(name)),
                                .json = chat_copy(r, b.data, b.len),
                                .strict = strict};
        read_params(r, t, parameters);
        r->n_tools++;
    }
    buf_release(&b);
}

const struct chat_tool *chat_find_tool(const struct chat_tool *tools, size_t n, const char *name,
                                       size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (tools[i].name.len == len && memcmp(tools[i].name.data, name, len) == 0)
            return &tools[i];
    return NULL;
}

const struct chat_param *chat_find_param(const struct chat_tool *t, const char *name, size_t len)
{
    for (size_t i = 0; i < t->n_params; i++)
        if (t->params[i].name.len == len && memcmp(t->params[i].name.data, name, len) == 0)
            return &t->params[i];
    return NULL;
}
