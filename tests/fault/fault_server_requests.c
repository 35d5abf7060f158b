/* The server in this process over the scripted engine, with the N-th allocation failing for every N:
 * each request gets a whole answer (of any status), a broken stream or a closed connection; nothing
 * crashes, and at the end every engine handle is back (server_run asserts it). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include "api/fake_engine.c"
#include "base/log.h"
#include "server/server.h"

enum { N_MAX = 4000 };

static int port;
static char text[1 << 16]; /* request, then answer */
static enum fst_status ended;

static void *serve(void *ud)
{
    struct server_opts o;
    (void)ud;
    server_opts_default(&o);
    o.engine.model_dir = "models/kindling";
    o.port = port;
    o.skip_warmup = true;
    o.log_requests_level = 0;
    ended = server_run(&o);
    return NULL;
}

static int open_client(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Send one request, read until the server closes; the status, or 0 without an answer. */
static int ask(const char *path, const char *body)
{
    int fd = open_client(), status = 0;
    size_t n = 0;
    ssize_t got;
    assert_true(fd >= 0);
    int len = snprintf(text, sizeof text,
                       "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n"
                       "\r\n%s",
                       path, strlen(body), body);
    assert_int_equal(send(fd, text, (size_t)len, MSG_NOSIGNAL), len);
    while (n < sizeof text - 1 && (got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0)
        n += (size_t)got;
    assert_true(n < sizeof text - 1);
    close(fd);
    text[n] = 0;
    if (!n)
        return 0;
    assert_int_equal(sscanf(text, "HTTP/1.1 %d ", &status), 1);
    return status;
}

static void every_allocation(const char *path, const char *body)
{
    int refused = 0, lost = 0, fine = 0;
    assert_int_equal(ask(path, body), 200);
    for (uint64_t n = 1;; n++) {
        assert_true(n < N_MAX);
        uint64_t before = mem_count();
        mem_fail_at(n);
        int status = ask(path, body);
        uint64_t used = mem_count() - before;
        mem_fail_at(0);
        if (status != 0 && status != 200 && status != 500 && status != 503)
            print_message("%s: allocation %d: status %d: %s\n", path, (int)n, status, text);
        assert_true(status == 0 || status == 200 || status == 500 || status == 503);
        refused += status >= 500;
        lost += status == 0;
        fine += status == 200;
        if (used + 1 < n)
            break; /* the request needs fewer: none failed (a failed one is not counted) */
    }
    print_message("%s: %d refused, %d closed, %d answered\n", path, refused, lost, fine);
    assert_true(refused > 5);
    assert_int_equal(ask(path, body), 200); /* as if nothing had been */
}

static void requests(void **state)
{
    pthread_t t;
    (void)state;
    log_set_level(LOG_LEVEL_ERROR);
    port = 20000 + (int)(getpid() % 20000);
    assert_int_equal(pthread_create(&t, NULL, serve, NULL), 0);
    int up = 0;
    for (int i = 0; i < 2000 && up != 200; i++) {
        int fd = open_client();
        if (fd >= 0) {
            close(fd);
            up = ask("/tokenize", "{\"prompt\":\"x\"}");
        }
        usleep(5000);
    }
    assert_int_equal(up, 200);
    every_allocation("/v1/chat/completions",
                     "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
                     "\"content\":\"hi\"}],\"stop\":[\"zz\"],\"n\":2,\"logprobs\":true,"
                     "\"top_logprobs\":2,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
                     "\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                     "\"string\"}}}}}]}");
    every_allocation("/v1/chat/completions",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,"
                     "\"stream_options\":{\"include_usage\":true},\"return_progress\":true}");
    every_allocation("/v1/completions",
                     "{\"prompt\":[\"a b\",\"c\"],\"echo\":true,\"logprobs\":2,\"stream\":true}");
    every_allocation("/generate", "{\"text\":[\"a b\",\"c\"],\"return_logprob\":true,"
                                  "\"logprob_start_len\":0,\"rid\":\"r\"}");
    every_allocation("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    every_allocation("/abort_request", "{\"rid\":\"x\"}");
    every_allocation("/detokenize", "{\"tokens\":[[5,6,7],[8]]}");
    kill(getpid(), SIGTERM);
    pthread_join(t, NULL);
    assert_int_equal(ended, FST_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
