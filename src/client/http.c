#include "client/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <llhttp.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum { READ_BYTES = 256 << 10, EVENTS = 256, IDLE_MAX = 4096 };

struct http_conn {
    struct http *h;
    struct http_conn *prev, *next; /* of all, or of the idle ones */
    struct http_call *call;        /* borrowed; NULL: idle */
    int fd;
    bool connecting, wants_write, answered, over, keep;
    bool dead; /* freed at the end of the turn: events of it may still be in hand */
    int64_t t_ns;
    llhttp_t parser;
};

struct http {
    char url[600], host[256], prefix[256];
    struct sockaddr_storage addr;
    socklen_t addr_len;
    int epoll;
    struct http_conn *busy, *idle, *dead;
    int n_idle;
    llhttp_settings_t settings;
    struct http_counts counts;
    char *read; /* owned: (READ_BYTES) */
};

/* ------------------------------------------------------------------ address */

static enum fst_status resolve(struct http *h, const char *name, const char *port)
{
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int e = getaddrinfo(name, port, &hint, &found);
    if (e)
        return fst_error(FST_EIO, "%s: %s", h->url, gai_strerror(e));
    memcpy(&h->addr, found->ai_addr, found->ai_addrlen);
    h->addr_len = found->ai_addrlen;
    freeaddrinfo(found);
    return FST_OK;
}

static enum fst_status read_url(struct http *h, const char *url)
{
    char name[256], port[8] = "80";
    const char *p = url;
    size_t n = strlen(url);

    while (n && url[n - 1] == '/')
        n--;
    if (!strncmp(p, "https://", 8))
        return fst_error(FST_EINVAL, "%s: https is not built; put a local proxy in between", url);
    if (!strncmp(p, "http://", 7))
        p += 7;
    size_t left = n - FST_MIN((size_t)(p - url), n), host = strcspn(p, "/");
    host = FST_MIN(host, left);
    bool six = host && p[0] == '[';
    size_t name_len = six ? strcspn(p, "]") + 1 : strcspn(p, ":/");
    name_len = FST_MIN(name_len, host);
    size_t port_len = name_len < host ? host - name_len - 1 : 0;
    bool fits = host && name_len && name_len < sizeof name && port_len < sizeof port &&
                (name_len == host || (p[name_len] == ':' && port_len)) &&
                left - host < sizeof h->prefix && n + 8 < sizeof h->url;
    if (!fits || strcspn(url, " \r\n\t") != strlen(url))
        return fst_error(FST_EINVAL, "\"%.64s\": expected a URL like http://127.0.0.1:30000", url);
    snprintf(name, sizeof name, "%.*s", (int)(name_len - 2 * (size_t)six), p + six);
    if (port_len)
        snprintf(port, sizeof port, "%.*s", (int)port_len, p + name_len + 1);
    snprintf(h->host, sizeof h->host, "%.*s", (int)host, p);
    snprintf(h->prefix, sizeof h->prefix, "%.*s", (int)(left - host), p + host);
    snprintf(h->url, sizeof h->url, "http://%s%s", h->host, h->prefix);
    return resolve(h, name, port);
}

bool http_is_local(const struct http *h)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)&h->addr;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&h->addr;
    if (h->addr.ss_family == AF_INET)
        return ntohl(four->sin_addr.s_addr) >> 24 == 127 || !four->sin_addr.s_addr;
    return h->addr.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

const char *http_url(const struct http *h)
{
    return h->url;
}

void http_get_counts(const struct http *h, struct http_counts *out)
{
    *out = h->counts;
}

/* ------------------------------------------------------------------ connections */

static void unlink_conn(struct http_conn *c)
{
    struct http_conn **head = c->call ? &c->h->busy : &c->h->idle;
    if (c->prev)
        c->prev->next = c->next;
    else
        *head = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->prev = c->next = NULL;
    c->h->n_idle -= !c->call;
}

static void link_conn(struct http_conn *c)
{
    struct http_conn **head = c->call ? &c->h->busy : &c->h->idle;
    c->next = *head;
    if (c->next)
        c->next->prev = c;
    *head = c;
    c->h->n_idle += !c->call;
}

/* Out of the lists already. */
static void destroy(struct http_conn *c)
{
    close(c->fd);
    c->dead = true;
    c->next = c->h->dead;
    c->h->dead = c;
}

static void bury(struct http *h)
{
    while (h->dead) {
        struct http_conn *c = h->dead;
        h->dead = c->next;
        mem_free(c);
    }
}

static void watch(struct http_conn *c, bool write)
{
    struct epoll_event ev = {.events = EPOLLIN | (write ? EPOLLOUT : 0u), .data.ptr = c};
    if (write == c->wants_write)
        return;
    c->wants_write = write;
    epoll_ctl(c->h->epoll, EPOLL_CTL_MOD, c->fd, &ev);
}

/* The call ends here; what becomes of its connection was decided. */
static void done(struct http_call *call, enum fst_status rc, const char *why, int64_t t_ns)
{
    call->conn = NULL;
    if (rc < 0)
        fst_error(rc, "%s", why);
    call->on_done(call->ud, rc, why, t_ns);
}

/* The connection broke under its call. */
static void broken(struct http_conn *c, const char *what)
{
    struct http *h = c->h;
    struct http_call *call = c->call;
    bool again = call && !c->answered && !call->fresh;
    char why[640];

    unlink_conn(c);
    destroy(c);
    if (!call)
        return;
    call->conn = NULL;
    if (again) { /* a kept connection that the server had closed */
        call->fresh = true;
        http_submit(h, call);
        return;
    }
    snprintf(why, sizeof why, "%s: %s", h->url, what);
    done(call, FST_EIO, why, clock_ns());
}

static void send_more(struct http_conn *c)
{
    struct http_call *call = c->call;
    while (call->sent < call->len) {
        ssize_t n = send(c->fd, call->bytes + call->sent, call->len - call->sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            /* An answer may lie there already (a refusal): reading tells. */
            call->sent = call->len;
            break;
        }
        call->sent += (size_t)n;
    }
    watch(c, call->sent < call->len);
}

static struct http_conn *new_conn(struct http *h, const char **why)
{
    int one = 1;
    struct http_conn *c = mem_calloc(1, sizeof *c);
    *why = "no memory";
    if (!c)
        return NULL;
    c->h = h;
    c->fd = socket(h->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        goto failed;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (const struct sockaddr *)&h->addr, h->addr_len) < 0 && errno != EINPROGRESS)
        goto failed;
    c->connecting = c->wants_write = true;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, c->fd, &ev) < 0)
        goto failed;
    h->counts.connections++;
    return c;
failed:
    *why = strerror(errno);
    if (c->fd >= 0)
        close(c->fd);
    mem_free(c);
    return NULL;
}

/* ------------------------------------------------------------------ answers */

static int on_headers(llhttp_t *p)
{
    struct http_conn *c = p->data;
    if (p->status_code < 200)
        return 0;
    c->call->status = p->status_code;
    if (c->call->on_head)
        c->call->on_head(c->call->ud, p->status_code, c->t_ns);
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t len)
{
    struct http_conn *c = p->data;
    if (c->call->on_body)
        c->call->on_body(c->call->ud, at, len, c->t_ns);
    return 0;
}

static int on_complete(llhttp_t *p)
{
    struct http_conn *c = p->data;
    if (p->status_code < 200)
        return 0; /* 100 Continue: the answer follows */
    c->over = true;
    c->keep = llhttp_should_keep_alive(p) != 0;
    return HPE_PAUSED;
}

/* The answer is whole: the connection waits for the next call, or is closed. */
static void finish(struct http_conn *c, bool clean)
{
    struct http_call *call = c->call;
    int64_t t = c->t_ns;
    bool keep = c->keep && clean && call->sent == call->len && c->h->n_idle < IDLE_MAX;

    unlink_conn(c);
    c->call = NULL;
    if (keep)
        link_conn(c);
    else
        destroy(c);
    done(call, FST_OK, "", t);
}

static void take(struct http_conn *c, size_t n)
{
    enum llhttp_errno e = llhttp_execute(&c->parser, c->h->read, n);
    char what[200];

    c->answered = true;
    if (c->over) {
        finish(c, llhttp_get_error_pos(&c->parser) == c->h->read + n);
    } else if (e != HPE_OK) {
        const char *reason = llhttp_get_error_reason(&c->parser);
        snprintf(what, sizeof what, "not an HTTP answer: %s", reason ? reason : "");
        broken(c, what);
    }
}

static void on_readable(struct http_conn *c)
{
    ssize_t n = recv(c->fd, c->h->read, READ_BYTES, 0);
    c->t_ns = clock_ns();
    c->h->counts.reads++;
    if (n > 0) {
        c->h->counts.bytes += (uint64_t)n;
        if (c->call)
            take(c, (size_t)n);
        else
            broken(c, ""); /* nobody asked */
    } else if (n == 0) {
        if (c->call && c->answered)
            llhttp_finish(&c->parser); /* an answer may end with its connection */
        if (c->call && c->over)
            finish(c, false);
        else
            broken(c, c->answered ? "the answer ends in its middle"
                                  : "the connection was closed before the answer");
    } else if (errno != EAGAIN && errno != EINTR) {
        broken(c, strerror(errno));
    }
}

static void on_event(struct http_conn *c, uint32_t events)
{
    if (c->connecting) {
        int e = 0;
        socklen_t len = sizeof e;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len);
        if (e) {
            broken(c, strerror(e));
            return;
        }
        c->connecting = false;
    }
    if ((events & EPOLLOUT) && c->call)
        send_more(c);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        on_readable(c);
}

void http_turn(struct http *h, int timeout_ms)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(h->epoll, ev, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        struct http_conn *c = ev[i].data.ptr;
        if (!c->dead)
            on_event(c, ev[i].events);
    }
    bury(h);
}

/* ------------------------------------------------------------------ calls */

void http_submit(struct http *h, struct http_call *call)
{
    const char *why = "";
    struct http_conn *c = call->fresh ? NULL : h->idle;

    call->sent = 0;
    call->status = 0;
    if (c) {
        unlink_conn(c);
    } else {
        c = new_conn(h, &why);
        call->fresh = true;
    }
    if (!c) {
        char text[640];
        snprintf(text, sizeof text, "%s: %s", h->url, why);
        done(call, FST_EIO, text, clock_ns());
        return;
    }
    c->call = call;
    call->conn = c;
    c->answered = c->over = c->keep = false;
    llhttp_init(&c->parser, HTTP_RESPONSE, &h->settings);
    c->parser.data = c;
    link_conn(c);
    if (!c->connecting)
        send_more(c);
}

void http_drop(struct http *h, struct http_call *call)
{
    struct http_conn *c = call->conn;
    (void)h;
    if (!c)
        return;
    unlink_conn(c);
    destroy(c);
    call->conn = NULL;
}

void http_request(struct buf *out, const struct http *h, const char *method, const char *path,
                  const char *key, const char *body, size_t len)
{
    buf_printf(out, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: firesteel/%s\r\nAccept: */*\r\n",
               method, h->prefix, path, h->host, FST_VERSION);
    if (key)
        buf_printf(out, "Authorization: Bearer %s\r\n", key);
    if (body)
        buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", len);
    buf_puts(out, "\r\n");
    if (body)
        buf_append(out, body, len);
}

enum fst_status http_open(struct http **out, const char *url)
{
    struct http *h = mem_calloc(1, sizeof *h);
    *out = NULL;
    if (!h || !(h->read = mem_alloc(READ_BYTES))) {
        mem_free(h);
        return fst_error(FST_ENOMEM, "no memory for an HTTP client");
    }
    llhttp_settings_init(&h->settings);
    h->settings.on_headers_complete = on_headers;
    h->settings.on_body = on_body;
    h->settings.on_message_complete = on_complete;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    enum fst_status rc = h->epoll < 0 ? fst_error(FST_EIO, "epoll: %s", strerror(errno)) : FST_OK;
    if (rc == FST_OK)
        rc = read_url(h, url);
    if (rc < 0)
        http_close(h);
    else
        *out = h;
    return rc;
}

void http_close(struct http *h)
{
    struct http_conn *c;
    if (!h)
        return;
    while ((c = h->busy) || (c = h->idle)) {
        if (c->call)
            c->call->conn = NULL;
        unlink_conn(c);
        destroy(c);
    }
    bury(h);
    if (h->epoll >= 0)
        close(h->epoll);
    mem_free(h->read);
    mem_free(h);
}

/* ------------------------------------------------------------------ one answer */

struct fetch {
    struct buf *out;
    bool done;
    enum fst_status rc;
};

static void fetch_body(void *ud, const char *data, size_t len, int64_t t_ns)
{
    struct fetch *f = ud;
    (void)t_ns;
    buf_append(f->out, data, len);
}

static void fetch_done(void *ud, enum fst_status rc, const char *why, int64_t t_ns)
{
    struct fetch *f = ud;
    (void)why, (void)t_ns;
    f->done = true;
    f->rc = rc;
}

enum fst_status http_fetch(struct http *h, const char *path, const char *key, const char *body,
                           int timeout_ms, int *status, struct buf *out)
{
    struct buf req = {0};
    struct fetch f = {.out = out};
    struct http_call call = {.on_body = fetch_body, .on_done = fetch_done, .ud = &f};
    int64_t end = clock_ns() + (int64_t)timeout_ms * 1000000;

    http_request(&req, h, body ? "POST" : "GET", path, key, body, body ? strlen(body) : 0);
    call.bytes = buf_str(&req);
    call.len = req.len;
    if (req.failed) {
        buf_release(&req);
        return fst_error(FST_ENOMEM, "no memory for a request");
    }
    http_submit(h, &call);
    while (!f.done) {
        int64_t left = end - clock_ns();
        if (left <= 0) {
            http_drop(h, &call);
            f.rc = fst_error(FST_ETIMEOUT, "%s%s: no answer within %.1f s", h->url, path,
                             timeout_ms * 1e-3);
            break;
        }
        http_turn(h, (int)div_up(left, 1000000));
    }
    *status = call.status;
    buf_release(&req);
    if (f.rc == FST_OK && out->failed)
        return fst_error(FST_ENOMEM, "%s%s: no memory for the answer", h->url, path);
    return f.rc;
}
