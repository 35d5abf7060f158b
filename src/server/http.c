#include "server/http.h"

void http_limits_default(struct http_limits *l)
{
    *l = (struct http_limits){
        .max_header = 64 << 10,
        .max_body = (size_t)64 << 20,
        .max_queue = (size_t)16 << 20,
        .max_connections = 4096,
        .keep_alive_ms = 5000,
        .header_ms = 20000,
        .body_ms = 300000,
        .body_idle_ms = 30000,
    };
}

const char *exch_header(const struct exch *x, const char *name)
{
    for (size_t i = 0; i < x->n_headers; i++)
        if (!strcmp(x->head.data + x->headers[i].name, name))
            return x->head.data + x->headers[i].value;
    return NULL;
}

bool exch_query(const struct exch *x, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name);
    for (const char *p = x->query; *p;) {
        size_t len = strcspn(p, "&");
        if (len >= n && !memcmp(p, name, n) && (len == n || p[n] == '=')) {
            const char *v = p + n + (len > n);
            size_t vn = len - n - (len > n);
            if (vn >= cap || !http_decode_path(out, v, vn))
                out[0] = 0;
            return true;
        }
        p += len;
        if (*p)
            p++;
    }
    return false;
}

void exch_add_header(struct exch *x, const char *name, const char *value)
{
    FST_ASSERT(!x->status);
    buf_puts(&x->extra, name);
    buf_puts(&x->extra, ": ");
    for (; *value; value++) /* never let a value break the head */
        buf_putc(&x->extra, (unsigned char)*value < 0x20 ? ' ' : *value);
    buf_puts(&x->extra, "\r\n");
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool http_decode_path(char *dst, const char *src, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = src[i];
        if (c == '%') {
            int hi = i + 2 < len ? hex_digit(src[i + 1]) : -1;
            int lo = i + 2 < len ? hex_digit(src[i + 2]) : -1;
            if (hi < 0 || lo < 0)
                return false;
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        if (!c)
            return false;
        *dst++ = c;
    }
    *dst = 0;
    return true;
}

const char *http_reason(int status)
{
    switch (status) {
    case 100:
        return "Continue";
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 413:
        return "Content Too Large";
    case 417:
        return "Expectation Failed";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 499:
        return "Client Closed Request";
    case 500:
        return "Internal Server Error";
    case 503:
        return "Service Unavailable";
    default:
        return "Unknown";
    }
}
