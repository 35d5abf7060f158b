/* sse_source.c - a server that does nothing but stream events, to see what a client costs.
 *
 *   sse-source EVENTS RATE     events of each reply; all replies together send RATE a second (0: no limit)
 *
 * Prints its port.  Every POST is answered by EVENTS completion chunks of one token, each one write and one HTTP
 * chunk, as a server that streams tokens sends them. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNS = 512 };

struct conn {
    int fd;
    char in[65536];
    size_t n;
    long left; /* events */
};
static struct conn conn[CONNS];
static int n_conns;
static char event[512];
static size_t event_len;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool put(int fd, const char *s, size_t n)
{
    while (n) {
        ssize_t k = send(fd, s, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        s += k;
        n -= (size_t)k;
    }
    return true;
}

static bool say(int fd, const char *s)
{
    return put(fd, s, strlen(s));
}

static void answer_get(int fd)
{
    static const char body[] = "{\"object\":\"list\",\"data\":[{\"id\":\"source\"}]}";
    char head[256];
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", sizeof body - 1,
             body);
    say(fd, head);
}

/* False: the connection is over. */
static bool on_read(struct conn *c, long events)
{
    ssize_t k = recv(c->fd, c->in + c->n, sizeof c->in - 1 - c->n, 0);
    if (k <= 0)
        return false;
    c->n += (size_t)k;
    c->in[c->n] = 0;
    char *end = strstr(c->in, "\r\n\r\n"), *len = strstr(c->in, "Content-Length: ");
    size_t body = len ? strtoul(len + 16, NULL, 10) : 0;
    if (!end || c->n < (size_t)(end - c->in) + 4 + body)
        return c->n < sizeof c->in - 1;
    bool models = strstr(c->in, "/v1/models") != NULL;
    c->n = 0;
    if (!strncmp(c->in, "GET", 3)) {
        if (models)
            answer_get(c->fd);
        else
            say(c->fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        return true;
    }
    c->left = events;
    return say(c->fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                      "Transfer-Encoding: chunked\r\n\r\n");
}

/* Up to n events over all replies, one each in turn; those sent. */
static long send_events(long n)
{
    static const char done[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    long sent = 0;
    bool any = true;
    while (sent < n && any) {
        any = false;
        for (int i = 0; i < n_conns && sent < n; i++) {
            struct conn *c = &conn[i];
            if (c->left <= 0)
                continue;
            any = true;
            sent++;
            if (!put(c->fd, event, event_len) || (--c->left == 0 && !say(c->fd, done)))
                c->left = 0;
        }
    }
    return sent;
}

static void make_event(void)
{
    static const char data[] =
        "data: "
        "{\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1796000000,"
        "\"model\":\"source\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,"
        "\"finish_reason\":null,\"matched_stop\":null}],\"usage\":null}\n\n";
    event_len = (size_t)snprintf(event, sizeof event, "%zx\r\n%s\r\n", sizeof data - 1, data);
}

static void turn(int listener, long events, int wait_ms)
{
    struct pollfd p[CONNS + 1] = {{.fd = listener, .events = POLLIN}};
    int one = 1, n = n_conns;
    for (int i = 0; i < n; i++)
        p[i + 1] = (struct pollfd){.fd = conn[i].fd, .events = POLLIN};
    if (poll(p, (nfds_t)n + 1, wait_ms) <= 0)
        return;
    for (int i = n; i-- > 0;)
        if (p[i + 1].revents && !on_read(&conn[i], events)) {
            close(conn[i].fd);
            conn[i] = conn[--n_conns];
        }
    if (p[0].revents && n_conns < CONNS) {
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            conn[n_conns++] = (struct conn){.fd = fd};
        }
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    if (argc != 3)
        return 2;
    long events = strtol(argv[1], NULL, 10);
    double rate = strtod(argv[2], NULL), since = now();
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) < 0 || listen(listener, CONNS) < 0)
        return 1;
    getsockname(listener, (struct sockaddr *)&a, &len);
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    make_event();
    while (getppid() != 1) { /* until the test is gone */
        double t = now();
        /* A millisecond behind is caught up, more is let go. */
        long due = rate > 0 ? (long)((t - since) * rate) : 4096;
        if (due > 0)
            since = rate > 0 ? since + (double)due / rate : t;
        if (rate > 0 && due > (long)(rate * 0.05))
            due = (long)(rate * 0.05);
        long sent = send_events(due);
        turn(listener, events, sent ? (rate > 0) : 1);
    }
    return 0;
}
