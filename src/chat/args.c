/* args.c - see args.h.
 *
 * Repairs (on unless switched off), each for something models do:
 *   - the schema wants a number, boolean, array, ... and the value came as text: if the text parses
 *     as what is wanted, it is put in unquoted;
 *   - one parameter "arguments", "input", ... that the tool does not have, holding an object: the
 *     object is the arguments;
 *   - no parameter elements but a JSON object between the tags: the same;
 *   - no parameter elements but bare text, and the tool has one parameter it can be for. */
#include "chat/args.h"

#include "chat/request.h"

static const char *const wrappers[] = {"arguments", "input", "args", "parameters", "params"};

void args_release(struct args *a)
{
    buf_release(&a->out);
    buf_release(&a->key);
    buf_release(&a->value);
    buf_release(&a->scratch);
    buf_release(&a->body);
}

bool args_failed(const struct args *a)
{
    return a->failed || a->out.failed || a->key.failed || a->value.failed || a->scratch.failed ||
           a->body.failed;
}

void args_begin(struct args *a, const struct chat_tool *tool, bool repair)
{
    a->tool = tool;
    a->repair = repair;
    a->is_open = false;
    a->n_members = 0;
    a->n_params = 0;
    buf_reset(&a->body);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void trim(const char **s, size_t *len)
{
    while (*len && is_space(**s)) {
        ++*s;
        --*len;
    }
    while (*len && is_space((*s)[*len - 1]))
        --*len;
}

/* The document of a JSON text, or NULL when it is none. */
static struct json_doc *parsed(struct args *a, const char *s, size_t len)
{
    struct json_doc *doc = NULL;

    if (len && (unsigned char)s[0] == 0xef)
        return NULL; /* a byte order mark: readable, but not fit to be copied */
    if (len && json_parse(&doc, s, len) == FST_ENOMEM)
        a->failed = true;
    return doc;
}

static bool is_wrapper(const struct args *a, const char *key, size_t len)
{
    if (!a->repair || !a->tool || chat_find_param(a->tool, key, len))
        return false;
    for (size_t i = 0; i < FST_COUNT(wrappers); i++)
        if (strlen(wrappers[i]) == len && memcmp(wrappers[i], key, len) == 0)
            return true;
    return false;
}

static void put_key(struct args *a, const char *key, size_t len)
{
    buf_puts(&a->out, a->is_open ? (a->n_members ? ", " : "") : "{");
    a->is_open = true;
    a->n_members++;
    json_put_string(&a->out, key, len);
    buf_puts(&a->out, ": ");
}

/* An object's members without its braces.  Spelled as they came. */
static void put_members(struct args *a, const char *s, size_t len, json_val *object)
{
    FST_ASSERT(len >= 2 && s[0] == '{' && s[len - 1] == '}');
    s++;
    len -= 2;
    trim(&s, &len);
    buf_puts(&a->out, a->is_open ? (a->n_members && len ? ", " : "") : "{");
    a->is_open = true;
    buf_append(&a->out, s, len);
    a->n_members += (int)FST_MIN(json_count(object), 1u << 20);
}

void args_param(struct args *a, const char *key, size_t len, bool is_json)
{
    const struct chat_param *p = a->tool ? chat_find_param(a->tool, key, len) : NULL;

    buf_reset(&a->key);
    buf_append(&a->key, key, len);
    buf_reset(&a->value);
    buf_reset(&a->body);
    a->is_json = is_json;
    a->types = p ? p->types : 0;
    a->may_be_wrapper = a->n_params == 0 && is_wrapper(a, key, len);
    a->is_buffered =
        is_json || a->may_be_wrapper || (a->repair && a->types && !(a->types & CHAT_T_STRING));
    a->n_params++;
    if (!a->is_buffered) {
        put_key(a, key, len);
        buf_putc(&a->out, '"');
    }
}

void args_text(struct args *a, const char *s, size_t len)
{
    if (a->is_buffered) {
        buf_append(&a->value, s, len);
        return;
    }
    buf_reset(&a->scratch);
    json_put_string(&a->scratch, s, len);
    if (!a->scratch.failed)
        buf_append(&a->out, a->scratch.data + 1, a->scratch.len - 2);
}

void args_param_end(struct args *a)
{
    const char *s = buf_str(&a->value);
    size_t len = a->value.len;
    struct json_doc *doc;
    bool as_json;

    if (!a->is_buffered) {
        buf_putc(&a->out, '"');
        return;
    }
    trim(&s, &len);
    doc = parsed(a, s, len);
    if (doc && a->may_be_wrapper && json_type_of(json_root(doc)) == JSON_OBJECT) {
        put_members(a, s, len, json_root(doc));
        json_free(doc);
        return;
    }
    as_json = doc && (a->is_json || (a->repair && (chat_types_of(json_root(doc)) & a->types)));
    put_key(a, buf_str(&a->key), a->key.len);
    if (as_json)
        buf_append(&a->out, s, len);
    else
        json_put_string(&a->out, buf_str(&a->value), a->value.len);
    json_free(doc);
}

void args_body(struct args *a, const char *s, size_t len)
{
    if (a->repair && a->n_params == 0)
        buf_append(&a->body, s, len);
}

/* The parameter that bare text must be for: the only one, or the only required one. */
static const struct chat_param *only_param(const struct chat_tool *t)
{
    const struct chat_param *only = NULL;

    if (t->n_params == 1)
        return &t->params[0];
    for (size_t i = 0; i < t->n_params; i++)
        if (t->params[i].required) {
            if (only)
                return NULL;
            only = &t->params[i];
        }
    return only;
}

static void put_scalar(struct args *a, const char *s, size_t len, json_val *v)
{
    const struct chat_param *p = a->tool ? only_param(a->tool) : NULL;
    const char *text;
    size_t text_len;

    if (!p || memchr(s, '<', len))
        return;
    put_key(a, p->name.data, p->name.len);
    if (v && (text = json_string(v, &text_len)) && (!p->types || p->types & CHAT_T_STRING))
        json_put_string(&a->out, text, text_len);
    else if (v && (chat_types_of(v) & p->types))
        buf_append(&a->out, s, len);
    else
        json_put_string(&a->out, s, len);
}

/* What stood between the tags of a call without parameters. */
static void put_body(struct args *a)
{
    const char *s = buf_str(&a->body), *key;
    size_t len = a->body.len, key_len;
    struct json_doc *doc;
    json_val *root, *inner;

    trim(&s, &len);
    if (!len)
        return;
    doc = parsed(a, s, len);
    root = doc ? json_root(doc) : NULL;
    if (root && json_type_of(root) == JSON_OBJECT) {
        inner = json_count(root) == 1 ? json_member(root, 0, &key, &key_len) : NULL;
        if (inner && json_type_of(inner) == JSON_OBJECT && is_wrapper(a, key, key_len)) {
            buf_reset(&a->scratch);
            json_put(&a->scratch, inner, JSON_COMPACT);
            if (!a->scratch.failed)
                put_members(a, a->scratch.data, a->scratch.len, inner);
        } else
            put_members(a, s, len, root);
    } else
        put_scalar(a, s, len, root);
    json_free(doc);
}

void args_end(struct args *a)
{
    if (a->n_params == 0 && a->repair)
        put_body(a);
    buf_puts(&a->out, a->is_open ? "}" : "{}");
}
