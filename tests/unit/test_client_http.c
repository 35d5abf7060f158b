/* test_client_http.c - the HTTP client against a server of a few lines that says what each test tells it, byte for
 * byte; event lines and the scan of their JSON; counters from a metrics page. */
#include "support/cm.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/event.h"
#include "client/load.h"
#include "client/target.h"

/* ------------------------------------------------------------------ a server */

/* One answer a request, in order; an empty one closes the connection instead. */
struct script {
    const char *const *answer;
    int n, at, accepted;
    int keep;     /* so many answers leave the connection open */
    size_t piece; /* bytes of a write; 0: all */
    int listener, port;
    pthread_t thread;
    char last[8192]; /* request */
};

/* A whole request, or false. */
static bool read_request(struct script *s, int fd)
{
    size_t n = 0, body = 0;
    const char *end = NULL;
    while (!end || n < (size_t)(end - s->last) + 4 + body) {
        ssize_t k = recv(fd, s->last + n, sizeof s->last - 1 - n, 0);
        if (k <= 0)
            return false;
        n += (size_t)k;
        s->last[n] = 0;
        end = strstr(s->last, "\r\n\r\n");
        const char *len = strstr(s->last, "Content-Length: ");
        body = len ? strtoul(len + 16, NULL, 10) : 0;
    }
    return true;
}

static void *serve(void *arg)
{
    struct script *s = arg;
    while (s->at < s->n) {
        int fd = accept(s->listener, NULL, NULL);
        if (fd < 0)
            break;
        s->accepted++;
        while (s->at < s->n && read_request(s, fd)) {
            const char *a = s->answer[s->at++];
            size_t len = strlen(a);
            for (size_t k = 0, step; k < len; k += step) {
                step = s->piece ? FST_MIN(s->piece, len - k) : len;
                if (send(fd, a + k, step, MSG_NOSIGNAL) < 0)
                    break;
                if (s->piece)
                    usleep(300);
            }
            if (s->at > s->keep || !len)
                break;
        }
        close(fd);
    }
    return NULL;
}

static void start(struct script *s, struct http **h)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    char url[64];
    s->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listener, 16), 0);
    getsockname(s->listener, (struct sockaddr *)&a, &len);
    s->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/base/", s->port);
    assert_int_equal(http_open(h, url), FST_OK);
}

static void stop(struct script *s, struct http *h)
{
    http_close(h);
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listener);
}

static enum fst_status get(struct http *h, int *status, struct buf *out)
{
    buf_reset(out);
    return http_fetch(h, "/x", "k", NULL, 5000, status, out);
}

static void test_answers(void **state)
{
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n9;x=y\r\n\r\nand on!\r\n0\r\nTrailer: 1\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\nto the end of the connection",
    };
    (void)state;
    for (size_t piece = 0; piece < 4; piece++) {
        struct script s = {.answer = answers, .n = 4, .keep = 3, .piece = piece};
        struct http *h;
        struct buf b = {0};
        int status;
        start(&s, &h);
        assert_int_equal(get(h, &status, &b), FST_OK);
        assert_int_equal(status, 200);
        assert_string_equal(buf_str(&b), "hello");
        assert_non_null(strstr(s.last, "GET /base/x HTTP/1.1\r\n"));
        assert_non_null(strstr(s.last, "\r\nAuthorization: Bearer k\r\n"));
        assert_int_equal(get(h, &status, &b), FST_OK);
        assert_int_equal(status, 404);
        assert_string_equal(buf_str(&b), "abc\r\nand on!");
        assert_int_equal(get(h, &status, &b), FST_OK);
        assert_int_equal(status, 204);
        assert_int_equal(get(h, &status, &b), FST_OK);
        assert_string_equal(buf_str(&b), "to the end of the connection");
        assert_int_equal(s.accepted, 1); /* one connection for all */
        stop(&s, h);
        buf_release(&b);
    }
}

static void test_bad_answers(void **state)
{
    static const char *const bad[] = {
        "SSH-2.0-nothing of ours\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "",
    };
    (void)state;
    for (size_t i = 0; i < FST_COUNT(bad); i++) {
        struct script s = {.answer = &bad[i], .n = 1};
        struct http *h;
        struct buf b = {0};
        int status;
        start(&s, &h);
        assert_int_equal(get(h, &status, &b), FST_EIO);
        assert_non_null(strstr(fst_error_text(), "/base: "));
        stop(&s, h);
        buf_release(&b);
    }
}

/* A server that closes kept connections: the request goes out again, once. */
static void test_kept_connection_closed(void **state)
{
    static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    static const char *const answers[] = {ok, "", ok, "", ""};
    struct script s = {.answer = answers, .n = 5, .keep = 5};
    struct http *h;
    struct buf b = {0};
    int status;
    (void)state;
    start(&s, &h);
    assert_int_equal(get(h, &status, &b), FST_OK);
    assert_int_equal(get(h, &status, &b), FST_OK); /* "" to the kept one, then anew */
    assert_string_equal(buf_str(&b), "ok");
    assert_int_equal(s.accepted, 2);
    assert_int_equal(get(h, &status, &b), FST_EIO); /* twice in a row is an error */
    stop(&s, h);
    buf_release(&b);
}

static void test_urls(void **state)
{
    static const char *const bad[] = {
        "https://x",    "http://",    "",    "http://h:",
        "http://h:1 2", "http://a b", ":80", "http://127.0.0.1:123456789"};
    struct http *h;
    (void)state;
    for (size_t i = 0; i < FST_COUNT(bad); i++) {
        assert_int_equal(http_open(&h, bad[i]), FST_EINVAL);
        assert_null(h);
    }
    assert_int_equal(http_open(&h, "127.0.0.1:5/v2//"), FST_OK);
    assert_string_equal(http_url(h), "http://127.0.0.1:5/v2");
    assert_true(http_is_local(h));
    http_close(h);
    assert_int_equal(http_open(&h, "http://[::1]:8080"), FST_OK);
    assert_true(http_is_local(h));
    http_close(h);
}

static void test_nobody_there(void **state)
{
    struct http *h;
    struct buf b = {0};
    int status;
    (void)state;
    assert_int_equal(http_open(&h, "http://127.0.0.1:1"), FST_OK);
    assert_int_equal(get(h, &status, &b), FST_EIO);
    assert_non_null(strstr(fst_error_text(), "Connection refused"));
    http_close(h);
    buf_release(&b);
}

/* At most so many at once; all come back; one that takes too long does not hold the others. */
static void test_load(void **state)
{
    static const char event[] =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        "1c\r\ndata: {\"choices\":[{\"text\":\"a\r\n"
        "2b\r\n\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    static const char slow[] = "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n";
    const char *answers[] = {event, event, event, slow, event};
    struct script s = {.answer = answers, .n = 5, .keep = 5};
    struct http *h;
    struct load_item item[5];
    struct answer a[5];
    double duration;
    struct load_cost cost;
    struct load_opts o = {.api = ANSWER_COMPLETIONS,
                          .path = "/v1/completions",
                          .streams = true,
                          .max_concurrency = 1,
                          .timeout_s = 0.3};
    (void)state;
    for (int i = 0; i < 5; i++)
        item[i] = (struct load_item){"{}", 2, 10, 1};
    start(&s, &h);
    assert_int_equal(load_run(h, &o, item, 5, a, &duration, &cost), FST_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(answer_ok(&a[i]), i != 3);
        if (i != 3)
            assert_int_equal(a[i].first_ns > a[i].start_ns, true);
        if (i)
            assert_true(a[i].start_ns >= (a[i - 1].last_ns ? a[i - 1].last_ns : 0));
    }
    assert_non_null(strstr(a[3].error, "--timeout"));
    assert_true(duration >= 0.3 && duration < 5);
    for (int i = 0; i < 5; i++)
        answer_release(&a[i]);
    stop(&s, h);
}

/* ------------------------------------------------------------------ events */

static bool collect(void *ud, const char *data, size_t len)
{
    struct buf *b = ud;
    buf_append(b, data, len);
    buf_putc(b, '|');
    return true;
}

static void test_lines(void **state)
{
    static const char text[] = ": comment\n\ndata: one\r\ndata:two\ndata:\nevent: x\nid: 7\n\n"
                               "data:  three \n\ndatum: no\ndata: last";
    (void)state;
    for (size_t step = 1; step < sizeof text; step++) {
        struct event_lines l = {0};
        struct buf b = {0};
        for (size_t at = 0; at < sizeof text - 1; at += step)
            assert_int_equal(
                event_lines_feed(&l, text + at, FST_MIN(step, sizeof text - 1 - at), collect, &b),
                FST_OK);
        assert_string_equal(buf_str(&b), "one|two| three |");
        event_lines_end(&l, collect, &b);
        assert_string_equal(buf_str(&b), "one|two| three |last|");
        event_lines_release(&l);
        buf_release(&b);
    }
}

static void test_scan(void **state)
{
    struct event e;
    static const char chat[] =
        " {\"x\":[1,{\"text\":\"no\"}],\"choices\":[{\"delta\":{\"content\":\"a\\\"b\","
        "\"reasoning\":"
        "\"t\",\"tool_calls\":[{}]},\"finish_reason\":\"stop\"},{\"delta\":{\"content\":\"second\"}"
        "}],"
        "\"usage\":{\"completion_tokens\":12,\"prompt_tokens\":3,\"prompt_tokens_details\":"
        "{\"cached_tokens\":2}}} ";
    static const char *const bad[] = {
        "",    "[]",        "{",           "{\"a\":}",    "{\"a\" 1}", "{\"a\":1,}",
        "{}x", "{\"a\":\"", "{\"a\":\"\\", "{\"a\":nul}", "null"};
    (void)state;
    assert_true(event_scan(&e, chat, sizeof chat - 1));
    assert_memory_equal(e.text.at, "a\\\"b", 4);
    assert_int_equal(e.text.len, 4);
    assert_memory_equal(e.reasoning.at, "t", 1);
    assert_true(e.has_calls && e.finished && !e.is_error);
    assert_int_equal(e.completion_tokens, 12);
    assert_int_equal(e.prompt_tokens, 3);
    assert_int_equal(e.cached_tokens, 2);
    static const char nulls[] = "{\"choices\":[{\"delta\":{\"content\":null,\"tool_calls\":[]},"
                                "\"finish_reason\":null}],\"usage\":null,\"error\":null}";
    assert_true(event_scan(&e, nulls, sizeof nulls - 1));
    assert_true(!e.text.len && !e.has_calls && !e.finished && !e.is_error);
    assert_int_equal(e.completion_tokens, -1);
    for (size_t i = 0; i < FST_COUNT(bad); i++)
        assert_false(event_scan(&e, bad[i], strlen(bad[i])));
}

static void test_metrics_page(void **state)
{
    static const char ours[] =
        "# HELP sglang:generation_tokens_total x\n"
        "sglang:generation_tokens_total{model_name=\"a}\\\"b\"} 123\n"
        "sglang:num_requests_total{model_name=\"m\",is_streaming=\"true\"} 4\n"
        "sglang:num_requests_total{model_name=\"m\",is_streaming=\"false\"} 3\n"
        "sglang:time_to_first_token_seconds_bucket{le=\"0.1\"} 9\n"
        "sglang:time_to_first_token_seconds_sum{model_name=\"m\"} 1.5\n"
        "sglang:time_to_first_token_seconds_count{model_name=\"m\"} 7\n";
    static const char vllm[] = "vllm:generation_tokens_total{engine=\"0\"} 1.25e3\n"
                               "vllm:request_success_total{finished_reason=\"stop\"} 2.0\n"
                               "vllm:request_success_total{finished_reason=\"length\"} 5.0";
    struct target_counts c = {0};
    (void)state;
    target_parse_metrics(&c, ours, sizeof ours - 1);
    assert_true(c.has_tokens && c.has_requests && c.has_ttft);
    assert_true(c.generation_tokens == 123 && c.requests == 7);
    assert_true(c.ttft_sum_s == 1.5 && c.ttft_count == 7);
    c = (struct target_counts){0};
    target_parse_metrics(&c, vllm, sizeof vllm - 1);
    assert_true(c.generation_tokens == 1250 && c.requests == 7 && !c.has_ttft);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_bad_answers),
        cmocka_unit_test(test_kept_connection_closed),
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_scan),
        cmocka_unit_test(test_metrics_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
