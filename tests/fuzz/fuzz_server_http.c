/* fuzz_server_http.c - bytes of a client over a real socket: nothing may crash, leak or hang, every
 * request must be answered in order, and every connection must end.
 *
 * The first byte says in how many pieces the rest is sent and how the handler answers. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/loop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct loop *loop;
static int port;
static uint8_t mode;
static struct exch *late; /* answered in a later turn */

static void forget(struct exch *x, void *ud)
{
    (void)ud;
    FST_ASSERT(x == late);
    late = NULL;
}

static void answer(struct exch *x)
{
    if (mode & 1) {
        exch_stream_begin(x, 200, "text/event-stream");
        exch_stream_write(x, "data: 1\n\n", 9);
        exch_stream_write(x, x->path, strlen(x->path));
        if (mode & 2)
            exch_stream_break(x);
        else
            exch_stream_end(x);
    } else {
        exch_add_header(x, "X-Echo", x->path);
        exch_reply(x, 200, "text/plain", buf_str(&x->body), x->body.len);
    }
}

static void dispatch(void *ud, struct exch *x)
{
    char value[32];
    (void)ud;
    FST_ASSERT(x->path && x->query);
    FST_ASSERT(x->request_id[0]);
    for (size_t i = 0; i < x->n_headers; i++) {
        size_t name = strlen(x->head.data + x->headers[i].name);
        FST_ASSERT(x->headers[i].name + name < x->head.len);
        FST_ASSERT(exch_header(x, x->head.data + x->headers[i].name));
    }
    (void)exch_query(x, "a", value, sizeof value);
    if (mode & 4) {
        FST_ASSERT(!late);
        late = x;
        x->on_gone = forget;
    } else {
        answer(x);
    }
}

static void refuse(void *ud, const struct exch *x, int status, const char *why, struct buf *out)
{
    (void)ud, (void)x;
    FST_ASSERT(status >= 400 && status <= 599);
    buf_puts(out, why);
}

static void finished(void *ud, const struct exch *x, const char *peer)
{
    (void)ud, (void)peer;
    FST_ASSERT(x->status != 0);
}

static void nothing(void *ud)
{
    (void)ud;
}
static void tick(void *ud, int64_t now_ms)
{
    (void)ud, (void)now_ms;
}
static void on_signal(void *ud, int signum)
{
    (void)ud;
    _exit(128 + signum);
}

static void open_loop(void)
{
    struct loop_opts o = {.dispatch = dispatch,
                          .refuse = refuse,
                          .finished = finished,
                          .on_wake = nothing,
                          .on_tick = tick,
                          .on_signal = on_signal};
    http_limits_default(&o.limits);
    o.limits.max_body = 4096;
    o.limits.max_header = 2048;
    if (loop_new(&loop, &o) < 0 || loop_listen(loop, "127.0.0.1", 0, &port) < 0)
        abort();
}

static void turn(int fd, char *sink, size_t n)
{
    loop_turn(loop);
    if (late) {
        struct exch *x = late;
        late = NULL;
        x->on_gone = NULL;
        answer(x);
    }
    while (recv(fd, sink, n, MSG_DONTWAIT) > 0)
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char sink[4096];
    struct loop_counts c;
    if (!size)
        return 0;
    if (!loop)
        open_loop();
    mode = data[0];
    size_t pieces = 1 + (mode >> 3) % 8;
    data++;
    size--;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        abort();
    for (size_t i = 0; i < pieces; i++) {
        size_t from = size * i / pieces, to = size * (i + 1) / pieces;
        if (to > from && send(fd, data + from, to - from, MSG_NOSIGNAL) < 0)
            break; /* refused already */
        turn(fd, sink, sizeof sink);
    }
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < 50; i++)
        turn(fd, sink, sizeof sink);
    close(fd);
    int turns = 0;
    do {
        turn(-1, sink, sizeof sink);
        loop_get_counts(loop, &c);
        FST_ASSERT(++turns < 5000000); /* a connection that never ends: some seconds */
    } while (c.connections > 0);
    FST_ASSERT(c.exchanges == 0);
    return 0;
}
