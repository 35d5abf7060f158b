/* fuzz_client_wire.c - bytes of a server over a real socket: nothing may crash or leak, and every call ends.
 *
 * The first byte says in how many pieces the rest is sent and how many calls are made one after the other. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int listener = -1;
static char url[64];
static int heads, ends;

static void on_head(void *ud, int status, int64_t t_ns)
{
    (void)ud, (void)t_ns;
    FST_ASSERT(status >= 200);
    heads++;
}

static void on_body(void *ud, const char *bytes, size_t len, int64_t t_ns)
{
    struct buf *b = ud;
    FST_ASSERT(t_ns > 0);
    buf_append(b, bytes, len);
}

static void on_done(void *ud, enum fst_status rc, const char *why, int64_t t_ns)
{
    (void)ud, (void)t_ns;
    FST_ASSERT(rc == FST_OK || *why);
    ends++;
}

static void open_listener(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof a) < 0 ||
        listen(listener, 16) < 0)
        abort();
    getsockname(listener, (struct sockaddr *)&a, &len);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(a.sin_port));
}

/* Take the request and answer it with the bytes, then close. */
static void answer(int fd, struct http *h, const char *data, size_t size, size_t pieces)
{
    char sink[4096];
    for (size_t i = 0; i < pieces; i++) {
        size_t from = size * i / pieces, to = size * (i + 1) / pieces;
        if (to > from && send(fd, data + from, to - from, MSG_NOSIGNAL) < 0)
            break;
        http_turn(h, 0);
        while (recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0)
            ;
    }
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < 10; i++)
        http_turn(h, 0);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http *h;
    struct buf body = {0}, req = {0};
    if (!size)
        return 0;
    if (listener < 0)
        open_listener();
    if (http_open(&h, url) < 0)
        abort();
    int calls = 1 + data[0] % 3;
    size_t pieces = 1 + (data[0] >> 3) % 8;
    http_request(&req, h, "GET", "/", NULL, NULL, 0);
    heads = ends = 0;
    for (int i = 0; i < calls; i++) {
        struct http_call c = {.bytes = buf_str(&req),
                              .len = req.len,
                              .ud = &body,
                              .on_head = on_head,
                              .on_body = on_body,
                              .on_done = on_done};
        int fd, spins = 0;
        http_submit(h, &c);
        while (ends == i && spins++ < 200000) {
            http_turn(h, 0);
            fd = accept(listener, NULL, NULL);
            if (fd >= 0)
                answer(fd, h, (const char *)data + 1, size - 1, pieces);
        }
        FST_ASSERT(ends == i + 1);
        FST_ASSERT(!c.conn);
    }
    FST_ASSERT(heads <= ends);
    http_close(h);
    buf_release(&body);
    buf_release(&req);
    return 0;
}
