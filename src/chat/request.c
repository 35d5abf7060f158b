/* request.c - a chat request as plain structs in one arena. */
#include "chat/request.h"

#include <strings.h>

void chat_defaults_init(struct chat_defaults *d)
{
    *d = (struct chat_defaults){.thinking = true, .drop_billing_line = true, .coerce_args = true};
}

void chat_request_init(struct chat_request *r, const struct chat_defaults *d)
{
    *r = (struct chat_request){.parallel_calls = true,
                               .generation_prompt = true,
                               .drop_thinking = true,
                               .add_bos = true,
                               .separate_reasoning = true};
    if (d)
        r->d = *d;
    else
        chat_defaults_init(&r->d);
    r->thinking = r->d.thinking;
    r->effort = r->d.effort;
    arena_init(&r->arena, 16384, 0);
}

void chat_request_release(struct chat_request *r)
{
    arena_release(&r->arena);
    *r = (struct chat_request){0};
}

struct chat_str chat_copy(struct chat_request *r, const char *s, size_t len)
{
    struct chat_str c = {arena_strndup(&r->arena, s, len), len};

    if (!c.data) {
        r->failed = true;
        c.len = 0;
    }
    return c;
}

struct chat_str chat_copy_json(struct chat_request *r, json_val *v)
{
    struct buf b = {0};
    struct chat_str c = {0};

    json_put(&b, v, JSON_PYTHON);
    if (b.failed)
        r->failed = true;
    else
        c = chat_copy(r, b.data, b.len);
    buf_release(&b);
    return c;
}

void *chat_grow(struct chat_request *r, void *array, size_t n, size_t size)
{
    void *p;

    if (n != 0 && (n < 4 || (n & (n - 1)) != 0))
        return array; /* capacities are 4, 8, 16, ... */
    p = arena_calloc(&r->arena, n ? 2 * n : 4, size);
    if (!p)
        r->failed = true;
    else if (n)
        memcpy(p, array, n * size);
    return p;
}

struct chat_message *chat_add_message(struct chat_request *r, enum chat_role role)
{
    struct chat_message *m = chat_grow(r, r->messages, r->n_messages, sizeof *m);

    if (!m)
        return NULL;
    r->messages = m;
    m += r->n_messages++;
    *m = (struct chat_message){.role = role};
    return m;
}

static void add_part(struct chat_request *r, struct chat_message *m, bool is_text, const char *text,
                     size_t len)
{
    struct chat_part *p;

    if (!m)
        return;
    p = chat_grow(r, m->parts, m->n_parts, sizeof *p);
    if (!p)
        return;
    m->parts = p;
    p[m->n_parts++] = (struct chat_part){is_text, chat_copy(r, text, len)};
}

void chat_add_text(struct chat_request *r, struct chat_message *m, const char *text, size_t len)
{
    add_part(r, m, true, text, len);
}

void chat_add_other(struct chat_request *r, struct chat_message *m, const char *type)
{
    add_part(r, m, false, type, strlen(type));
}

void chat_set_reasoning(struct chat_request *r, struct chat_message *m, const char *text,
                        size_t len)
{
    if (m)
        m->reasoning = chat_copy(r, text, len);
}

void chat_set_tool_call_id(struct chat_request *r, struct chat_message *m, const char *id)
{
    if (m)
        m->tool_call_id = chat_copy(r, id, strlen(id));
}

void chat_add_call(struct chat_request *r, struct chat_message *m, const char *id, const char *name,
                   const char *arguments, size_t arguments_len)
{
    struct chat_call *c;

    if (!m)
        return;
    c = chat_grow(r, m->calls, m->n_calls, sizeof *c);
    if (!c)
        return;
    m->calls = c;
    c += m->n_calls++;
    *c = (struct chat_call){.name = chat_copy(r, name, strlen(name)),
                            .arguments = chat_copy(r, arguments, arguments_len)};
    if (id)
        c->id = chat_copy(r, id, strlen(id));
}

void chat_set_response_format(struct chat_request *r, json_val *schema)
{
    static const char object[] = "{\"type\": \"json_object\"}";

    r->response_is_schema = schema != NULL;
    r->response_format =
        schema ? chat_copy_json(r, schema) : chat_copy(r, object, sizeof object - 1);
}

bool chat_json_is(json_val *v, const char *s)
{
    size_t len;
    const char *p = json_string(v, &len);

    return p && len == strlen(s) && memcmp(p, s, len) == 0;
}

/* ---- refusals ------------------------------------------------------------------------------- */

enum fst_status chat_refuse(struct chat_request *r, const char *path, const char *code,
                            const char *fmt, ...)
{
    char text[512];
    va_list ap;

    snprintf(r->error_param, sizeof r->error_param, "%s", path);
    r->error_code = code;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fst_error(FST_EINVAL, "%s: %s", path, text);
}

enum fst_status chat_wrong_type(struct chat_request *r, const char *path, const char *expected,
                                json_val *v)
{
    return chat_refuse(r, path, "invalid_type", "expected %s, got %s", expected,
                       json_type_name(json_type_of(v)));
}

const char *chat_shown(json_val *v, char out[68])
{
    size_t len = 0;
    const char *s = json_string(v, &len);

    if (len > 64)
        for (len = 64; len > 0 && ((unsigned char)s[len] & 0xc0) == 0x80;)
            len--;
    snprintf(out, 68, "%.*s", (int)len, s ? s : "");
    return out;
}

enum fst_status chat_get_bool(struct chat_request *r, json_val *o, const char *key,
                              const char *path, bool *out)
{
    json_val *v = json_get(o, key);
    enum json_type t = json_type_of(v);

    if (t == JSON_NULL)
        return FST_OK;
    if (t != JSON_TRUE && t != JSON_FALSE)
        return chat_wrong_type(r, path, "boolean", v);
    *out = t == JSON_TRUE;
    return FST_OK;
}

enum fst_status chat_other_part(struct chat_request *r, struct chat_message *m, const char *path,
                                json_val *type)
{
    static const char *const kinds[] = {"image", "audio", "document", "file"};
    char word[68];

    chat_shown(type, word);
    if (r->d.placeholder_parts) {
        chat_add_other(r, m, word);
        return FST_OK;
    }
    for (size_t i = 0; i < FST_COUNT(kinds); i++)
        if (strstr(word, kinds[i]))
            return chat_refuse(r, path, "unsupported_content",
                               "This model does not support %s input", kinds[i]);
    return chat_refuse(r, path, "unsupported_content", "This model does not support '%s' input",
                       word);
}

enum fst_status chat_read_effort(struct chat_request *r, json_val *v, const char *path,
                                 bool *thinking, bool *seen)
{
    char word[68];
    const char *s;
    size_t len;
    double x;

    *seen = false;
    if (json_is_null(v))
        return FST_OK;
    if (!(s = json_string(v, &len)) && !json_real(v, &x))
        return chat_wrong_type(r, path, "string or number", v);
    if (s ? !chat_effort_parse(s, thinking, &r->effort)
          : !chat_effort_number(x, thinking, &r->effort))
        return chat_refuse(
            r, path, "invalid_value",
            "expected none, minimal, low, medium, high, xhigh, max or a number from 0 to "
            "1, got '%s'",
            s ? chat_shown(v, word) : json_number_text(v, &len));
    *seen = true;
    return FST_OK;
}

/* ---- words ---------------------------------------------------------------------------------- */

static const char *const effort_names[] = {"default", "low", "high", "max"};
static const char *const role_names[] = {"system",    "developer", "user",
                                         "assistant", "tool",      "latest_reminder"};

const char *chat_effort_name(enum chat_effort e)
{
    return effort_names[e];
}

const char *chat_role_name(enum chat_role r)
{
    return role_names[r];
}

bool chat_effort_parse(const char *s, bool *thinking, enum chat_effort *out)
{
    static const struct {
        const char *word;
        enum chat_effort effort;
    } words[] = {
        {"minimal", CHAT_EFFORT_LOW}, {"low", CHAT_EFFORT_LOW},    {"medium", CHAT_EFFORT_HIGH},
        {"high", CHAT_EFFORT_HIGH},   {"xhigh", CHAT_EFFORT_HIGH}, {"max", CHAT_EFFORT_MAX},
        {"ultra", CHAT_EFFORT_MAX},
    };

    if (strcasecmp(s, "none") == 0 || strcasecmp(s, "off") == 0) {
        *thinking = false;
        *out = CHAT_EFFORT_DEFAULT;
        return true;
    }
    for (size_t i = 0; i < FST_COUNT(words); i++)
        if (strcasecmp(s, words[i].word) == 0) {
            *thinking = true;
            *out = words[i].effort;
            return true;
        }
    return false;
}

bool chat_effort_number(double x, bool *thinking, enum chat_effort *out)
{
    if (!(x >= 0 && x <= 1))
        return false;
    *thinking = true;
    *out = x < 0.34 ? CHAT_EFFORT_LOW : x < 0.84 ? CHAT_EFFORT_HIGH : CHAT_EFFORT_MAX;
    return true;
}
