#include "server/loop.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <uv.h>

#include "server/peer.h"

enum { LISTENERS_MAX = 16, TICK_MS = 100, BACKLOG = 1024 };

struct loop {
    uv_loop_t uv;
    uv_async_t wake;
    uv_timer_t tick, half;
    uv_work_t first_work;
    uv_signal_t sigint, sigterm;
    uv_tcp_t listener[LISTENERS_MAX];
    int n_listeners;
    unsigned stalled; /* bit i: listener i has a connection that there was no memory for */
    struct loop_opts o;
    struct conn *conns;
    struct loop_counts counts;
};

void *loop_uv(struct loop *l)
{
    return &l->uv;
}
const struct loop_opts *loop_options(const struct loop *l)
{
    return &l->o;
}
struct loop_counts *loop_counts_of(struct loop *l)
{
    return &l->counts;
}
struct conn **loop_conns(struct loop *l)
{
    return &l->conns;
}
int64_t loop_now_ms(const struct loop *l)
{
    return (int64_t)uv_now(&l->uv);
}
void loop_get_counts(const struct loop *l, struct loop_counts *out)
{
    *out = l->counts;
}
bool loop_is_writing(const struct loop *l)
{
    bool any = false;
    for (const struct conn *c = l->conns; c && !any; c = conn_next(c))
        any = conn_is_writing(c);
    return any;
}
void loop_wake(struct loop *l)
{
    uv_async_send(&l->wake);
}

static void on_wake(uv_async_t *h)
{
    struct loop *l = h->data;
    l->o.on_wake(l->o.ud);
}

static void on_signal(uv_signal_t *h, int signum)
{
    struct loop *l = h->data;
    l->o.on_signal(l->o.ud, signum);
}

/* The event loop tells of no further connection before this one is taken: what could not be taken
 * is tried again at the next tick. */
static void accept_on(struct loop *l, int i)
{
    if (conn_accept(l, &l->listener[i]))
        l->stalled &= ~(1u << i);
    else
        l->stalled |= 1u << i;
}

static void on_tick(uv_timer_t *h)
{
    struct loop *l = h->data;
    int64_t now = loop_now_ms(l);
    for (int i = 0; i < l->n_listeners && l->stalled; i++)
        if (l->stalled & 1u << i)
            accept_on(l, i);
    for (struct conn *c = l->conns, *next; c; c = next) {
        next = conn_next(c);
        conn_tick(c, now);
    }
    l->o.on_tick(l->o.ud, now);
}

/* Look at all deaf connections with one reading of the socket table; again every 100 ms while there
 * are any (closing the reading side later sends no packet). */
static void on_half(uv_timer_t *h)
{
    struct loop *l = h->data;
    bool any = false;
    for (struct conn *c = l->conns; c && !any; c = conn_next(c))
        any = conn_is_deaf(c);
    if (!any) {
        uv_timer_stop(h);
        return;
    }
    struct peer_table t;
    peer_table_read(&t);
    for (struct conn *c = l->conns, *next; c; c = next) {
        next = conn_next(c);
        if (conn_is_deaf(c))
            conn_check_peer(c, &t, loop_now_ms(l));
    }
    peer_table_release(&t);
}

void loop_check_soon(struct loop *l)
{
    /* 5 ms: several hang-ups at once share one look, and close() has let go of its socket. */
    if (!uv_is_active((uv_handle_t *)&l->half))
        uv_timer_start(&l->half, on_half, 5, TICK_MS);
    else if (uv_timer_get_due_in(&l->half) > 5)
        uv_timer_start(&l->half, on_half, 5, TICK_MS);
}

/* ------------------------------------------------------------------ helper threads */

enum { HELPERS = 4, HELPER_STACK = 8 << 20 }; /* as libuv has them */

static void wait_for_lock(void *ud)
{
    pthread_mutex_lock(ud);
    pthread_mutex_unlock(ud);
}

static void no_work(uv_work_t *req)
{
    (void)req;
}

/* libuv makes its helper threads at the first job, and aborts the process if it cannot.  They are
 * made at the start instead, after a trial that can fail in peace. */
static enum fst_status make_helpers(uv_loop_t *uv, uv_work_t *first)
{
    pthread_mutex_t hold = PTHREAD_MUTEX_INITIALIZER;
    uv_thread_t t[HELPERS];
    const uv_thread_options_t o = {UV_THREAD_HAS_STACK_SIZE, HELPER_STACK};
    int n = 0, rc = 0;
    pthread_mutex_lock(&hold);
    while (n < HELPERS && rc == 0) {
        rc = uv_thread_create_ex(&t[n], &o, wait_for_lock, &hold);
        n += rc == 0;
    }
    pthread_mutex_unlock(&hold);
    while (n > 0)
        uv_thread_join(&t[--n]);
    if (rc == 0)
        rc = uv_queue_work(uv, first, no_work, NULL);
    return rc == 0
               ? FST_OK
               : fst_error(FST_EMACHINE, "server: %d helper threads: %s", HELPERS, uv_strerror(rc));
}

enum fst_status loop_new(struct loop **out, const struct loop_opts *o)
{
    *out = NULL;
    struct loop *l = mem_calloc(1, sizeof *l);
    if (!l)
        return fst_error(FST_ENOMEM, "server: out of memory");
    l->o = *o;
    int rc = uv_loop_init(&l->uv);
    if (rc < 0) {
        mem_free(l);
        return fst_error(FST_EIO, "server: event loop: %s", uv_strerror(rc));
    }
    enum fst_status st = make_helpers(&l->uv, &l->first_work);
    if (st < 0) {
        uv_loop_close(&l->uv);
        mem_free(l);
        return st;
    }
    signal(SIGPIPE, SIG_IGN);
    uv_async_init(&l->uv, &l->wake, on_wake);
    uv_timer_init(&l->uv, &l->tick);
    uv_timer_init(&l->uv, &l->half);
    uv_signal_init(&l->uv, &l->sigint);
    uv_signal_init(&l->uv, &l->sigterm);
    l->wake.data = l->tick.data = l->half.data = l->sigint.data = l->sigterm.data = l;
    uv_timer_start(&l->tick, on_tick, TICK_MS, TICK_MS);
    uv_signal_start(&l->sigint, on_signal, SIGINT);
    uv_signal_start(&l->sigterm, on_signal, SIGTERM);
    *out = l;
    return FST_OK;
}

static void close_handle(uv_handle_t *h, void *ud)
{
    (void)ud;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

void loop_close_all(struct loop *l)
{
    for (struct conn *c = l->conns; c; c = conn_next(c))
        conn_close(c);
    for (int i = 0; i < l->n_listeners; i++)
        close_handle((uv_handle_t *)&l->listener[i], NULL);
    uv_timer_stop(&l->tick);
    uv_timer_stop(&l->half);
    while (l->conns || l->counts.jobs > 0)
        uv_run(&l->uv, UV_RUN_ONCE);
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    loop_close_all(l);
    uv_walk(&l->uv, close_handle, NULL);
    uv_run(&l->uv, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&l->uv);
    FST_ASSERT(rc == 0);
    mem_free(l);
}

static void on_connection(uv_stream_t *s, int status)
{
    struct loop *l = s->data;
    if (status == 0)
        accept_on(l, (int)((uv_tcp_t *)s - l->listener));
}

static enum fst_status listen_on(struct loop *l, const struct addrinfo *a, const char *host,
                                 int port)
{
    if (l->n_listeners == LISTENERS_MAX)
        return fst_error(FST_EINVAL, "--host %s: more than %d addresses", host, LISTENERS_MAX);
    uv_tcp_t *t = &l->listener[l->n_listeners];
    int rc = uv_tcp_init(&l->uv, t);
    if (rc < 0)
        return fst_error(FST_EIO, "server: socket: %s", uv_strerror(rc));
    l->n_listeners++;
    t->data = l;
    struct sockaddr_storage sa;
    memcpy(&sa, a->ai_addr, a->ai_addrlen);
    if (a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)&sa)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)&sa)->sin_port = htons((uint16_t)port);
    rc = uv_tcp_bind(t, (struct sockaddr *)&sa, 0);
    if (rc == 0)
        rc = uv_listen((uv_stream_t *)t, BACKLOG, on_connection);
    if (rc < 0) {
        uv_close((uv_handle_t *)t, NULL);
        return fst_error(FST_EIO, "cannot listen on %s port %d: %s", host, port, uv_strerror(rc));
    }
    return FST_OK;
}

enum fst_status loop_listen(struct loop *l, const char *host, int port, int *bound)
{
    /* localhost means loopback (RFC 6761), also on a machine whose /etc/hosts does not say so. */
    bool local = strcmp(host, "localhost") == 0;
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = local ? 0 : AI_PASSIVE};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(local ? NULL : host, "0", &hints, &list);
    if (rc != 0)
        return fst_error(FST_EINVAL, "--host %s: %s", host, gai_strerror(rc));
    enum fst_status st = FST_ENOTFOUND;
    int n = 0;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        enum fst_status one = listen_on(l, a, host, port);
        if (one == FST_OK) {
            n++;
            if (port == 0) { /* the other addresses take the port that the first one got */
                struct sockaddr_storage sa = {0};
                int len = sizeof sa;
                uv_tcp_getsockname(&l->listener[l->n_listeners - 1], (struct sockaddr *)&sa, &len);
                port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                                      : ((struct sockaddr_in *)&sa)->sin_port);
            }
        }
        st = one;
    }
    freeaddrinfo(list);
    if (!n) /* a host without IPv6 is no reason to give up as long as one address works */
        return st == FST_ENOTFOUND ? fst_error(FST_EINVAL, "--host %s: no address", host) : st;
    *bound = port;
    return FST_OK;
}

void loop_run(struct loop *l)
{
    uv_run(&l->uv, UV_RUN_DEFAULT);
}

void loop_turn(struct loop *l)
{
    uv_run(&l->uv, UV_RUN_NOWAIT);
}

void loop_stop(struct loop *l)
{
    uv_stop(&l->uv);
}

void loop_close_idle(struct loop *l)
{
    for (struct conn *c = l->conns, *next; c; c = next) {
        next = conn_next(c);
        conn_close_idle(c);
    }
}

struct work {
    uv_work_t req;
    struct loop *loop;
    void (*work)(void *ud), (*done)(void *ud);
    void *ud;
};

static void run_work(uv_work_t *req)
{
    struct work *w = (struct work *)req;
    w->work(w->ud);
}

static void work_done(uv_work_t *req, int status)
{
    (void)status;
    struct work *w = (struct work *)req;
    void (*done)(void *) = w->done;
    void *ud = w->ud;
    w->loop->counts.jobs--;
    mem_free(w);
    done(ud);
}

enum fst_status loop_work(struct loop *l, void (*work)(void *ud), void (*done)(void *ud), void *ud)
{
    struct work *w = mem_calloc(1, sizeof *w);
    if (!w)
        return fst_error(FST_ENOMEM, "server: out of memory");
    w->loop = l;
    w->work = work;
    w->done = done;
    w->ud = ud;
    int rc = uv_queue_work(&l->uv, &w->req, run_work, work_done);
    if (rc < 0) {
        mem_free(w);
        return fst_error(FST_EINTERNAL, "server: helper thread: %s", uv_strerror(rc));
    }
    l->counts.jobs++;
    return FST_OK;
}
