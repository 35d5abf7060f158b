/* conn.c - one TCP connection: bytes to requests (llhttp, strict), answers to bytes.
 *
 * States: reading a request -> busy (an exchange is with its handler; further bytes wait in
 * `pending`, as they do while a client does not take its answers) -> reading the next, until close.
 * Closing after an answer lingers: the write side is
 * shut, what the client still sends is read and thrown away for a while, so that an unread body
 * does not turn our answer into a reset. */
#include <llhttp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <uv.h>

#include "server/loop.h"
#include "server/peer.h"

enum {
    PENDING_MAX = 1 << 20, /* pipelined bytes kept while they wait; above it we stop reading */
    LINGER_MS = 2000,
    STUCK_MS = 30000, /* a reader may take nothing of the last answer for so long */
    PROBE_MS = 1000,
    HEADERS_MAX = 1000 /* fields: also bounded by max_header */
};

struct conn {
    uv_tcp_t tcp;
    struct loop *loop;
    struct conn *prev, *next;
    llhttp_t parser;
    llhttp_settings_t settings;
    struct exch x;

    bool busy;       /* x is with its handler */
    bool in_process; /* conn_process is on the stack */
    bool eof;        /* the client shut its sending side */
    bool reading;
    bool closing;     /* uv_close was called */
    bool lingering;   /* answer sent, write side shut */
    bool close_after; /* close when the answer under way is out */
    bool message_started, message_done, headers_done;
    bool refused; /* a refusal was sent from a parser callback */
    bool loopback;
    uint16_t peer_port, our_port;
    char peer[INET6_ADDRSTRLEN + 8];

    struct buf url;
    size_t header_bytes;
    bool in_value;
    struct buf pending;
    char *in;             /* read buffer, owned; IN_SIZE */
    int64_t since_ms;     /* idle since, or first byte of the request */
    int64_t last_byte_ms; /* of the body */
    int64_t linger_until, probed_ms;
    size_t queued;    /* bytes in the write queue at the last tick */
    int64_t moved_ms; /* when they last were none, or other than at the tick before */
};

enum { IN_SIZE = 64 << 10 };

struct write {
    uv_write_t req;
    struct conn *c;
    char data[];
};

static void conn_process(struct conn *c);
static void finish_exchange(struct conn *c);
static void linger(struct conn *c);

static const struct http_limits *limits(const struct conn *c)
{
    return &loop_options(c->loop)->limits;
}

struct conn *conn_next(const struct conn *c)
{
    return c->next;
}

/* ------------------------------------------------------------------ request storage */

static void exch_clear(struct conn *c)
{
    struct exch *x = &c->x;
    mem_free(x->path);
    mem_free(x->headers);
    buf_release(&x->head);
    buf_release(&x->body);
    buf_release(&x->extra);
    *x = (struct exch){.conn = c, .query = "", .body.limit = limits(c)->max_body + 1};
    buf_reset(&c->url);
    c->header_bytes = 0;
    c->in_value = false;
    c->message_started = c->message_done = c->headers_done = false;
}

static void on_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    struct loop_counts *n = loop_counts_of(c->loop);
    if (c->busy) {
        c->busy = false;
        n->exchanges--;
        c->x.broken = true;
        if (!c->x.finished) {
            if (!c->x.status)
                c->x.status = 499;
            loop_options(c->loop)->finished(loop_options(c->loop)->ud, &c->x, c->peer);
            if (c->x.on_gone)
                c->x.on_gone(&c->x, c->x.ud);
        }
    }
    if (c->prev)
        c->prev->next = c->next;
    else
        *loop_conns(c->loop) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    n->connections--;
    exch_clear(c);
    buf_release(&c->url);
    buf_release(&c->pending);
    mem_free(c->in);
    mem_free(c);
}

void conn_close(struct conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    c->x.broken = true;
    uv_close((uv_handle_t *)&c->tcp, on_closed);
}

void conn_close_idle(struct conn *c)
{
    if (c->busy)
        c->x.keep_alive = false;
    else if (!c->message_started && conn_is_writing(c))
        linger(c); /* its last answer is still leaving */
    else if (!c->message_started && !c->lingering)
        conn_close(c);
}

bool conn_is_writing(const struct conn *c)
{
    return !c->closing && uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp) > 0;
}

/* ------------------------------------------------------------------ writing */

/* The client does not take its answers: no further request of it is begun until it does. */
static bool is_backed_up(const struct conn *c)
{
    return uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp) >= limits(c)->max_queue;
}

static void on_written(uv_write_t *req, int status)
{
    struct write *w = (struct write *)req;
    struct conn *c = w->c;
    mem_free(w);
    if (status < 0 && status != UV_ECANCELED)
        conn_close(c);
    else if (!c->closing && !c->busy && c->pending.len &&
             uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) <= limits(c)->max_queue / 2)
        conn_process(c); /* not for each answer that leaves: what waits is moved each time */
}

/* Give bytes to the socket; what it does not take now is queued, up to max_queue. */
static void conn_write(struct conn *c, const char *data, size_t len)
{
    if (c->closing || c->x.broken || !len)
        return;
    uv_stream_t *s = (uv_stream_t *)&c->tcp;
    size_t queued = uv_stream_get_write_queue_size(s);
    if (!queued) {
        uv_buf_t b = uv_buf_init((char *)(uintptr_t)data, (unsigned)FST_MIN(len, (size_t)1 << 30));
        int n = uv_try_write(s, &b, 1);
        if (n < 0 && n != UV_EAGAIN) {
            conn_close(c);
            return;
        }
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
        if (!len)
            return;
    }
    /* One answer alone may be larger than the cap (its size is the request's own doing); a stream
     * that piles up is not. */
    if (c->x.streaming && queued + len > limits(c)->max_queue) {
        conn_close(c);
        return;
    }
    struct write *w = mem_alloc(sizeof *w + len);
    if (!w) {
        conn_close(c);
        return;
    }
    w->c = c;
    memcpy(w->data, data, len);
    uv_buf_t b = uv_buf_init(w->data, (unsigned)len);
    if (uv_write(&w->req, s, &b, 1, on_written) < 0) {
        mem_free(w);
        conn_close(c);
    }
}

static void on_shut(uv_shutdown_t *req, int status)
{
    struct conn *c = req->data;
    mem_free(req);
    if (status < 0 || c->eof) /* both sides are shut and everything is written */
        conn_close(c);
}

static void start_reading(struct conn *c);

/* The last answer is written: shut our side, throw away what comes, close when the client does. */
static void linger(struct conn *c)
{
    if (c->closing || c->lingering)
        return;
    c->lingering = true;
    c->linger_until = loop_now_ms(c->loop) + LINGER_MS;
    buf_reset(&c->pending);
    uv_shutdown_t *req = mem_alloc(sizeof *req);
    if (!req) {
        conn_close(c);
        return;
    }
    req->data = c;
    if (uv_shutdown(req, (uv_stream_t *)&c->tcp, on_shut) < 0) {
        mem_free(req);
        conn_close(c);
        return;
    }
    if (!c->eof)
        start_reading(c);
}

/* ------------------------------------------------------------------ answers */

static void put_head(struct exch *x, struct buf *b, int status, const char *type, int64_t length)
{
    buf_printf(b, "HTTP/1.1 %d %s\r\nServer: firesteel/%s\r\nX-Request-Id: %s\r\n", status,
               http_reason(status), FST_VERSION, x->request_id);
    if (type)
        buf_printf(b, "Content-Type: %s\r\n", type);
    if (length >= 0 && status != 204)
        buf_printf(b, "Content-Length: %lld\r\n", (long long)length);
    else if (length < 0 && x->minor > 0)
        buf_puts(b, "Transfer-Encoding: chunked\r\n");
    if (!x->keep_alive)
        buf_puts(b, "Connection: close\r\n");
    else if (x->minor == 0)
        buf_puts(b, "Connection: keep-alive\r\n");
    if (x->extra.len)
        buf_append(b, x->extra.data, x->extra.len);
    buf_puts(b, "\r\n");
}

void exch_reply(struct exch *x, int status, const char *type, const char *body, size_t len)
{
    FST_ASSERT(!x->finished);
    FST_ASSERT(!x->streaming);
    struct conn *c = x->conn;
    struct buf b = {0};
    if (c->eof && !c->pending.len)
        x->keep_alive = false;
    put_head(x, &b, status, type, (int64_t)len);
    if (x->verb != VERB_HEAD)
        buf_append(&b, body, len);
    if (b.failed)
        conn_close(c);
    else
        conn_write(c, b.data, b.len);
    x->status = status;
    x->bytes_out = b.len;
    buf_release(&b);
    finish_exchange(c);
}

void exch_stream_begin(struct exch *x, int status, const char *type)
{
    FST_ASSERT(!x->status);
    if (x->minor == 0)
        x->keep_alive = false;
    struct buf b = {0};
    put_head(x, &b, status, type, -1);
    x->status = status;
    x->streaming = true;
    x->last_write_ms = loop_now_ms(x->conn->loop);
    if (b.failed)
        conn_close(x->conn);
    else
        conn_write(x->conn, b.data, b.len);
    buf_release(&b);
}

void exch_stream_write(struct exch *x, const char *data, size_t len)
{
    FST_ASSERT(x->streaming && !x->finished);
    if (!len || x->verb == VERB_HEAD)
        return;
    x->last_write_ms = loop_now_ms(x->conn->loop);
    x->bytes_out += len;
    if (x->minor == 0) {
        conn_write(x->conn, data, len);
        return;
    }
    struct buf b = {0};
    buf_printf(&b, "%zx\r\n", len);
    buf_append(&b, data, len);
    buf_puts(&b, "\r\n");
    if (b.failed)
        conn_close(x->conn);
    else
        conn_write(x->conn, b.data, b.len);
    buf_release(&b);
}

void exch_stream_end(struct exch *x)
{
    FST_ASSERT(x->streaming && !x->finished);
    if (x->minor > 0 && x->verb != VERB_HEAD)
        conn_write(x->conn, "0\r\n\r\n", 5);
    finish_exchange(x->conn);
}

void exch_stream_break(struct exch *x)
{
    FST_ASSERT(x->streaming && !x->finished);
    x->keep_alive = false;
    finish_exchange(x->conn);
}

static void finish_exchange(struct conn *c)
{
    struct exch *x = &c->x;
    x->finished = true;
    x->on_gone = NULL;
    x->on_tick = NULL;
    loop_options(c->loop)->finished(loop_options(c->loop)->ud, x, c->peer);
    if (c->closing)
        return; /* on_closed tidies up */
    if (c->busy) {
        c->busy = false;
        loop_counts_of(c->loop)->exchanges--;
    }
    bool keep = x->keep_alive && !c->close_after;
    exch_clear(c);
    c->since_ms = loop_now_ms(c->loop);
    if (!keep) {
        linger(c);
        return;
    }
    if (!c->in_process)
        conn_process(c);
}

/* A refusal of something that is no request (yet). */
static void refuse(struct conn *c, int status, const char *why)
{
    struct exch *x = &c->x;
    if (c->closing || c->lingering)
        return;
    if (!x->request_id[0])
        memcpy(x->request_id, "-", 2);
    if (!x->verb_name[0])
        memcpy(x->verb_name, "-", 2);
    loop_counts_of(c->loop)->refused++;
    struct buf b = {0};
    loop_options(c->loop)->refuse(loop_options(c->loop)->ud, x, status, why, &b);
    x->keep_alive = false;
    c->close_after = true;
    c->refused = true;
    if (status == 503)
        exch_add_header(x, "Retry-After", "1");
    exch_reply(x, status, "application/json", buf_str(&b), b.len);
    buf_release(&b);
}

/* ------------------------------------------------------------------ llhttp callbacks */

static struct conn *of(llhttp_t *p)
{
    return p->data;
}

static bool count_header(struct conn *c, size_t n)
{
    c->header_bytes += n;
    return c->header_bytes <= limits(c)->max_header;
}

/* Refusals from callbacks are given after llhttp_execute returned: here only the reason. */
static int stop_with(struct conn *c, int status)
{
    c->x.status = -status;
    return HPE_USER;
}

static int cb_begin(llhttp_t *p)
{
    struct conn *c = of(p);
    c->message_started = true;
    c->since_ms = c->last_byte_ms = loop_now_ms(c->loop);
    return 0;
}

static int cb_url(llhttp_t *p, const char *at, size_t n)
{
    struct conn *c = of(p);
    if (!count_header(c, n))
        return stop_with(c, 431);
    buf_append(&c->url, at, n);
    return 0;
}

static int cb_field(llhttp_t *p, const char *at, size_t n)
{
    struct conn *c = of(p);
    struct exch *x = &c->x;
    if (!count_header(c, n + 2))
        return stop_with(c, 431);
    if (c->headers_done)
        return 0; /* trailers are read over */
    if (c->in_value || !x->n_headers) {
        if (x->n_headers == HEADERS_MAX)
            return stop_with(c, 431);
        if (!(x->n_headers & (x->n_headers + 1))) { /* grow at 0, 1, 3, 7, ... */
            struct http_header *h = mem_realloc(x->headers, (2 * x->n_headers + 1) * sizeof *h);
            if (!h)
                return stop_with(c, 503);
            x->headers = h;
        }
        if (x->head.len)
            buf_putc(&x->head, 0);
        x->headers[x->n_headers++] = (struct http_header){x->head.len, 0};
        c->in_value = false;
    }
    for (size_t i = 0; i < n; i++)
        buf_putc(&x->head, (char)(at[i] >= 'A' && at[i] <= 'Z' ? at[i] + 32 : at[i]));
    return 0;
}

static int cb_value(llhttp_t *p, const char *at, size_t n)
{
    struct conn *c = of(p);
    struct exch *x = &c->x;
    if (!count_header(c, n + 2))
        return stop_with(c, 431);
    if (c->headers_done)
        return 0;
    if (!c->in_value) {
        buf_putc(&x->head, 0);
        x->headers[x->n_headers - 1].value = x->head.len;
        c->in_value = true;
    }
    buf_append(&x->head, at, n);
    return 0;
}

/* A header without any value byte gets no cb_value: point it at an empty string. */
static int cb_value_done(llhttp_t *p)
{
    struct conn *c = of(p);
    struct exch *x = &c->x;
    if (!c->headers_done && !c->in_value && x->n_headers) {
        buf_putc(&x->head, 0);
        x->headers[x->n_headers - 1].value = x->head.len;
        c->in_value = true;
    }
    return 0;
}

static void make_request_id(struct exch *x)
{
    const char *theirs = exch_header(x, "x-request-id");
    size_t n = theirs ? strlen(theirs) : 0;
    if (n && n < sizeof x->request_id) {
        for (size_t i = 0; i <= n; i++)
            x->request_id[i] = theirs[i] && ((unsigned char)theirs[i] <= 0x20 || theirs[i] == 0x7f)
                                   ? '_'
                                   : theirs[i];
        return;
    }
    unsigned char r[12];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r)
        memset(r, 0, sizeof r);
    memcpy(x->request_id, "req_", 4);
    for (size_t i = 0; i < sizeof r; i++)
        snprintf(x->request_id + 4 + 2 * i, 3, "%02x", r[i]);
}

/* Path and query of "/a%20b?c", of "http://host/a?c" and of "*". */
static bool split_url(struct conn *c)
{
    struct exch *x = &c->x;
    const char *u = buf_str(&c->url);
    size_t n = c->url.len;
    if (n > 7 && (!strncasecmp(u, "http://", 7) || (n > 8 && !strncasecmp(u, "https://", 8)))) {
        const char *host = strstr(u, "//") + 2;
        size_t skip = (size_t)(host - u) + strcspn(host, "/?");
        u += skip;
        n -= skip;
    }
    size_t path_len = strcspn(u, "?#");
    x->path = mem_alloc(path_len + 2);
    if (!x->path)
        return false;
    if (!path_len)
        memcpy(x->path, "/", 2);
    else if (!http_decode_path(x->path, u, path_len))
        return false;
    x->query = u[path_len] == '?' ? u + path_len + 1 : "";
    return true;
}

static int cb_headers_done(llhttp_t *p)
{
    struct conn *c = of(p);
    struct exch *x = &c->x;
    if (c->url.failed || x->head.failed)
        return stop_with(c, 503);
    buf_putc(&x->head, 0);
    c->headers_done = true;
    x->minor = p->http_minor;
    x->keep_alive = llhttp_should_keep_alive(p) != 0;
    if (p->http_major != 1)
        return stop_with(c, 400);
    /* One coding is known, and HTTP/1.0 has none: whoever passed such a request on may have seen
     * another end of it. */
    const char *coding = exch_header(x, "transfer-encoding");
    if (coding && (x->minor == 0 || strcasecmp(coding, "chunked") != 0))
        return stop_with(c, 400);
    switch (p->method) {
    case HTTP_GET:
        x->verb = VERB_GET;
        break;
    case HTTP_HEAD:
        x->verb = VERB_HEAD;
        break;
    case HTTP_POST:
        x->verb = VERB_POST;
        break;
    case HTTP_PUT:
        x->verb = VERB_PUT;
        break;
    case HTTP_DELETE:
        x->verb = VERB_DELETE;
        break;
    case HTTP_OPTIONS:
        x->verb = VERB_OPTIONS;
        break;
    default:
        x->verb = VERB_OTHER;
        break;
    }
    snprintf(x->verb_name, sizeof x->verb_name, "%s", llhttp_method_name(p->method));
    make_request_id(x);
    if (!split_url(c))
        return stop_with(c, x->path ? 400 : 503);
    p->upgrade = 0; /* no other protocol is spoken here: an Upgrade header is not followed */
    if ((p->flags & F_CONTENT_LENGTH) && p->content_length > limits(c)->max_body)
        return stop_with(c, 413);
    const char *expect = exch_header(x, "expect");
    if (expect) {
        if (strcasecmp(expect, "100-continue") != 0)
            return stop_with(c, 417);
        if (x->minor > 0 && ((p->flags & F_CHUNKED) || p->content_length))
            conn_write(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    if ((p->flags & F_CONTENT_LENGTH) && p->content_length &&
        p->content_length <= (uint64_t)1 << 20)
        (void)buf_reserve(&x->body, (size_t)p->content_length);
    return 0;
}

static int cb_chunk(llhttp_t *p)
{
    struct conn *c = of(p);
    size_t max = limits(c)->max_body;
    return p->content_length > max - FST_MIN(max, c->x.body.len) ? stop_with(c, 413) : 0;
}

static int cb_extension(llhttp_t *p, const char *at, size_t n)
{
    (void)at;
    struct conn *c = of(p);
    return count_header(c, n) ? 0 : stop_with(c, 431);
}

static int cb_body(llhttp_t *p, const char *at, size_t n)
{
    struct conn *c = of(p);
    struct exch *x = &c->x;
    c->last_byte_ms = loop_now_ms(c->loop);
    if (x->body.len + n > limits(c)->max_body)
        return stop_with(c, 413);
    buf_append(&x->body, at, n);
    return x->body.failed ? stop_with(c, 503) : 0;
}

static int cb_done(llhttp_t *p)
{
    of(p)->message_done = true;
    return HPE_PAUSED;
}

/* ------------------------------------------------------------------ the state machine */

/* Enough is pipelined.  A hang-up is not read any more: it is looked for in other ways (while
 * answers wait for their reader, the writing of them finds it). */
static void pause_reading(struct conn *c)
{
    uv_read_stop((uv_stream_t *)&c->tcp);
    c->reading = false;
    loop_check_soon(c->loop);
}

/* Parse `pending` and dispatch, one request after the other, until a handler is busy. */
static void conn_process(struct conn *c)
{
    FST_ASSERT(!c->in_process);
    c->in_process = true;
    size_t used = 0;
    while (!c->busy && !c->closing && !c->lingering && used < c->pending.len && !is_backed_up(c)) {
        const char *data = c->pending.data + used;
        size_t len = c->pending.len - used;
        enum llhttp_errno rc = llhttp_execute(&c->parser, data, len);
        if (rc == HPE_OK) {
            used += len;
            break;
        }
        if (rc == HPE_PAUSED && c->message_done) {
            used += (size_t)(llhttp_get_error_pos(&c->parser) - data);
            llhttp_resume(&c->parser);
            c->busy = true;
            c->x.start_ms = c->x.last_write_ms = loop_now_ms(c->loop);
            struct loop_counts *n = loop_counts_of(c->loop);
            n->exchanges++;
            n->requests++;
            loop_options(c->loop)->dispatch(loop_options(c->loop)->ud, &c->x);
            continue;
        }
        used = c->pending.len;
        bool ours = c->x.status < 0; /* a callback's reason, not the parser's */
        int status = ours ? -c->x.status : 400;
        c->x.status = 0;
        if (rc == HPE_CLOSED_CONNECTION) {
            linger(c);
        } else {
            const char *why = ours ? "" : llhttp_get_error_reason(&c->parser);
            refuse(c, status, why ? why : "");
        }
    }
    if (!c->closing) {
        if (used >= c->pending.len) {
            buf_reset(&c->pending);
        } else if (used) {
            memmove(c->pending.data, c->pending.data + used, c->pending.len - used);
            c->pending.len -= used;
        }
        if (c->pending.len > PENDING_MAX && c->reading) {
            pause_reading(c);
        } else if (!c->busy && !c->eof && !c->reading && c->pending.len <= PENDING_MAX) {
            start_reading(c);
        }
        /* The client sends no more and everything it asked for is answered. */
        if (c->eof && !c->busy && !c->lingering && !c->pending.len)
            linger(c);
    }
    c->in_process = false;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    (void)suggested;
    struct conn *c = h->data;
    if (!c->in)
        c->in = mem_alloc(IN_SIZE);
    *b = uv_buf_init(c->in, c->in ? IN_SIZE : 0);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct conn *c = s->data;
    if (n == 0)
        return;
    if (n == UV_EOF) {
        c->eof = true;
        c->reading = false;
        if (c->lingering) {
            conn_close(c);
        } else if (c->busy) {
            loop_check_soon(c->loop);
        } else if (c->message_started) {
            conn_close(c); /* gone in the middle of a request */
        } else if (!c->pending.len) {
            linger(c);
        }
        return;
    }
    if (n < 0) {
        conn_close(c);
        return;
    }
    if (c->lingering)
        return;
    buf_append(&c->pending, b->base, (size_t)n);
    if (c->pending.failed) {
        conn_close(c);
        return;
    }
    if (c->busy || is_backed_up(c)) {
        if (c->pending.len > PENDING_MAX)
            pause_reading(c);
        return;
    }
    conn_process(c);
}

static void start_reading(struct conn *c)
{
    if (c->reading || c->closing)
        return;
    if (uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) < 0)
        conn_close(c);
    else
        c->reading = true;
}

static uint16_t port_of(const struct sockaddr_storage *a)
{
    return ntohs(a->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)a)->sin6_port
                                          : ((const struct sockaddr_in *)a)->sin_port);
}

static void learn_addresses(struct conn *c)
{
    struct sockaddr_storage a = {0};
    int len = sizeof a;
    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&a, &len) == 0) {
        c->peer_port = port_of(&a);
        if (a.ss_family == AF_INET6) {
            const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&a;
            uv_ip6_name(in6, c->peer, sizeof c->peer);
            c->loopback =
                IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr) ||
                (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr) && in6->sin6_addr.s6_addr[12] == 127);
        } else {
            const struct sockaddr_in *in = (const struct sockaddr_in *)&a;
            uv_ip4_name(in, c->peer, sizeof c->peer);
            c->loopback = (ntohl(in->sin_addr.s_addr) >> 24) == 127;
        }
    }
    len = sizeof a;
    if (uv_tcp_getsockname(&c->tcp, (struct sockaddr *)&a, &len) == 0)
        c->our_port = port_of(&a);
}

bool conn_accept(struct loop *l, void *listener)
{
    struct conn *c = mem_calloc(1, sizeof *c);
    if (!c)
        return false;
    c->loop = l;
    c->url.limit = limits(c)->max_header + 1;
    c->pending.limit = (size_t)PENDING_MAX + 2 * IN_SIZE;
    c->x.conn = c;
    uv_tcp_init(loop_uv(l), &c->tcp);
    c->tcp.data = c;
    c->next = *loop_conns(l);
    if (c->next)
        c->next->prev = c;
    *loop_conns(l) = c;
    struct loop_counts *n = loop_counts_of(l);
    n->connections++;
    n->accepted++;
    exch_clear(c);
    c->since_ms = loop_now_ms(l);
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) < 0) {
        conn_close(c);
        return true;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    uv_tcp_keepalive(&c->tcp, 1, 60);
    learn_addresses(c);
    llhttp_settings_init(&c->settings);
    c->settings.on_message_begin = cb_begin;
    c->settings.on_url = cb_url;
    c->settings.on_header_field = cb_field;
    c->settings.on_header_value = cb_value;
    c->settings.on_header_value_complete = cb_value_done;
    c->settings.on_headers_complete = cb_headers_done;
    c->settings.on_chunk_header = cb_chunk;
    c->settings.on_chunk_extension_name = cb_extension;
    c->settings.on_chunk_extension_value = cb_extension;
    c->settings.on_body = cb_body;
    c->settings.on_message_complete = cb_done;
    llhttp_init(&c->parser, HTTP_REQUEST, &c->settings);
    c->parser.data = c;
    start_reading(c);
    if (n->connections > limits(c)->max_connections)
        refuse(c, 503, "too many connections");
    return true;
}

void conn_tick(struct conn *c, int64_t now)
{
    const struct http_limits *lim = limits(c);
    if (c->closing)
        return;
    size_t queued = uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp);
    bool moved = queued != c->queued; /* a slow reader, but one that takes something */
    c->queued = queued;
    if (moved || !queued)
        c->moved_ms = now;
    if (c->lingering) {
        if (moved)
            c->linger_until = now + LINGER_MS;
        if (now >= c->linger_until + (queued ? STUCK_MS : 0))
            conn_close(c);
    } else if (c->busy) {
        if (c->x.on_tick)
            c->x.on_tick(&c->x, c->x.ud, now);
    } else if (c->message_started && !c->headers_done) {
        if (now - c->since_ms > lim->header_ms)
            refuse(c, 408, "headers took too long");
    } else if (c->message_started) {
        if (now - c->since_ms > lim->body_ms || now - c->last_byte_ms > lim->body_idle_ms)
            refuse(c, 408, "body took too long");
    } else if (queued) { /* an answer that is still leaving is not idle */
        if (now - c->moved_ms > STUCK_MS)
            conn_close(c);
    } else if (now - c->since_ms > lim->keep_alive_ms) {
        linger(c);
    }
}

bool conn_is_deaf(const struct conn *c)
{
    return c->busy && !c->closing && !c->reading;
}

void conn_check_peer(struct conn *c, const struct peer_table *t, int64_t now)
{
    uv_os_fd_t fd;
    struct tcp_info info;
    socklen_t len = sizeof info;
    if (uv_fileno((uv_handle_t *)&c->tcp, &fd) == 0 &&
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_CLOSE) {
        conn_close(c); /* a reset came in after the FIN */
        return;
    }
    enum peer_state s = c->loopback ? peer_lookup(t, c->peer_port, c->our_port) : PEER_UNKNOWN;
    if (s == PEER_GONE) {
        conn_close(c);
    } else if (s == PEER_UNKNOWN && !c->x.status && c->x.minor > 0 &&
               now - c->probed_ms >= PROBE_MS) {
        c->probed_ms = now;
        conn_write(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
}
