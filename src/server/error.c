#include "base/rng.h"
#include "base/utf8.h"
#include "server/app.h"

const char *api_error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
    case 405:
        return "not_found_error";
    case 413:
    case 431:
        return "request_too_large";
    case 429:
        return "overloaded_error";
    case 503:
        return "unavailable_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

bool api_fail(struct api_error *e, int status, const char *code, const char *param, const char *fmt,
              ...)
{
    if (e->status)
        return false;
    e->status = status;
    e->type = api_error_type(status);
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return false;
}

bool api_fail_status(struct api_error *e, enum fst_status rc, const char *param)
{
    const char *m = fst_error_text();
    switch (rc) {
    case FST_EINVAL:
    case FST_EUNSUPPORTED:
        return api_fail(e, 400, "invalid_value", param, "%s", m);
    case FST_EFULL:
        api_fail(e, 503, "queue_full", NULL, "The request queue is full.");
        e->type = "overloaded_error";
        return false;
    case FST_ESHUTDOWN:
        return api_fail(e, 503, "shutting_down", NULL, "server shutting down");
    case FST_ETIMEOUT:
        return api_fail(e, 503, "timeout", NULL, "Request waiting timeout reached.");
    default:
        return api_fail(e, 500, "internal_error", NULL, "%s", m[0] ? m : fst_status_text(rc));
    }
}

static void put_member(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, "\"%s\":", key);
    if (value && value[0])
        json_put_string(out, value, strlen(value));
    else
        buf_puts(out, "null");
}

/* Anthropic's name of an error, which follows from the status alone. */
static const char *anthropic_type(int status)
{
    switch (status) {
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : api_error_type(status);
    }
}

void api_error_json(struct buf *out, const struct api_error *e, enum api_shape shape,
                    const char *request_id)
{
    if (shape == SHAPE_ANTHROPIC) {
        buf_puts(out, "{\"type\":\"error\",\"error\":{");
        put_member(out, "type", anthropic_type(e->status));
        buf_putc(out, ',');
        put_member(out, "message", e->message);
        buf_puts(out, "},");
        put_member(out, "request_id", request_id);
        buf_putc(out, '}');
        return;
    }
    if (shape == SHAPE_NATIVE) {
        buf_puts(out, "{\"error\":{");
        put_member(out, "message", e->message);
        buf_putc(out, ',');
        put_member(out, "type", e->type);
        if (e->param[0]) {
            buf_putc(out, ',');
            put_member(out, "param", e->param);
        }
        buf_printf(out, ",\"code\":%d", e->status);
    } else {
        buf_puts(out, "{\"object\":\"error\",");
        put_member(out, "message", e->message);
        buf_puts(out, ",\"error\":{");
        put_member(out, "message", e->message);
        buf_putc(out, ',');
        put_member(out, "type", e->type);
        buf_putc(out, ',');
        put_member(out, "param", e->param);
        buf_putc(out, ',');
        put_member(out, "code", e->code);
    }
    if (e->n_ctx)
        buf_printf(out, ",\"n_prompt_tokens\":%lld,\"n_ctx\":%lld", (long long)e->n_prompt,
                   (long long)e->n_ctx);
    buf_puts(out, "}}");
}

void api_error_stream_json(struct buf *out, const struct api_error *e, enum api_shape shape,
                           const char *request_id)
{
    if (shape == SHAPE_ANTHROPIC) {
        api_error_json(out, e, shape, request_id);
        return;
    }
    buf_puts(out, "{\"error\":{");
    put_member(out, "message", e->message);
    buf_putc(out, ',');
    put_member(out, "type", e->type);
    buf_putc(out, ',');
    put_member(out, "param", e->param);
    buf_printf(out, ",\"code\":%d}}", e->status);
}

void api_send(struct exch *x, int status, const struct buf *json)
{
    if (json->failed) {
        static const char text[] = "{\"error\":{\"message\":\"out of memory\",\"type\":"
                                   "\"server_error\",\"param\":null,\"code\":null}}";
        exch_reply(x, 500, "application/json", text, sizeof text - 1);
        return;
    }
    exch_reply(x, status, "application/json", buf_str(json), json->len);
}

void api_send_error(struct exch *x, const struct api_error *e, enum api_shape shape)
{
    struct buf b = {0};
    FST_ASSERT(e->status >= 400);
    if (e->status == 503 || e->status == 429)
        exch_add_header(x, "Retry-After", "1");
    if (e->status == 401)
        exch_add_header(x, "WWW-Authenticate", "Bearer");
    api_error_json(&b, e, shape, x->request_id);
    api_send(x, e->status, &b);
    buf_release(&b);
}

const char *api_quote(char out[96], const char *s, size_t len)
{
    size_t n = FST_MIN(len, (size_t)64);
    n = utf8_valid_prefix(s, n);
    for (size_t i = 0; i < n; i++)
        out[i] = s[i] ? s[i] : ' ';
    snprintf(out + n, 96 - n, "%s", n < len ? "..." : "");
    return out;
}

const char *api_quote_value(char out[96], json_val *v)
{
    struct buf b = {0};
    json_put(&b, v, JSON_COMPACT);
    api_quote(out, buf_str(&b), b.len);
    buf_release(&b);
    return out;
}

void api_random_id(char out[64], const char *prefix)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = strlen(prefix);
    FST_ASSERT(n < 32);
    memcpy(out, prefix, n);
    uint64_t r = 0;
    for (size_t i = 0; i < 24; i++) {
        if (i % 12 == 0)
            r = rng_os();
        out[n + i] = set[r % 36];
        r /= 36;
    }
    out[n + 24] = 0;
}
