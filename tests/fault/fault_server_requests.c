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
#include "support/tmpdir.h"

enum { N_MAX = 4000 };

static int port;
static char text[1 << 16];       /* request, then answer */
static const char *headers = ""; /* of requests, each with CR LF */
static enum fst_status ended;
static char dir[64]; /* of the scripted model, and of what is remembered of its calls */

static void *serve(void *ud)
{
    struct server_opts o;
    (void)ud;
    server_opts_default(&o);
    o.engine.model_dir = o.call_memory_dir = dir;
    o.port = port;
    o.skip_warmup = true;
    o.log_requests_level = 0;
    o.response_store = 2;
    o.keep_max_streams = 1 << 20;
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
                       "%s\r\n%s",
                       path, strlen(body), headers, body);
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

/* The body, '#' in it being n: a text that was not kept. */
static const char *numbered(const char *body, uint64_t n)
{
    static char out[2048];
    const char *hole = strchr(body, '#');
    if (!hole)
        return body;
    int len = snprintf(out, sizeof out, "%.*s%llu%s", (int)(hole - body), body,
                       (unsigned long long)n, hole + 1);
    assert_true(len > 0 && len < (int)sizeof out);
    return out;
}

static void every_allocation(const char *path, const char *form)
{
    int refused = 0, lost = 0, fine = 0;
    assert_int_equal(ask(path, numbered(form, N_MAX)), 200);
    for (uint64_t n = 1;; n++) {
        const char *body = numbered(form, n);
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
    assert_int_equal(ask(path, numbered(form, N_MAX)), 200); /* as if nothing had been */
}

static pthread_t start(void)
{
    pthread_t t;
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
    return t;
}

static void stop(pthread_t t)
{
    kill(getpid(), SIGTERM);
    pthread_join(t, NULL);
    assert_int_equal(ended, FST_OK);
}

static int setup(void **state)
{
    size_t len;
    char *tokenizer = tmpdir_read("models/kindling", "tokenizer.json", &len);
    (void)state;
    tmpdir_make(dir, sizeof dir);
    tmpdir_write(dir, "tokenizer.json", tokenizer, len);
    free(tokenizer);
    log_set_level(LOG_LEVEL_ERROR);
    port = 20000 + (int)(getpid() % 20000);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tmpdir_remove(dir);
    return 0;
}

static void script(const char *json)
{
    tmpdir_write(dir, "script.json", json, strlen(json));
}

#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

/* The same as a stream of blocks. */
static void blocks(void **state)
{
    pthread_t t = start();
    (void)state;
    script("{\"text\":\"t</think>x\\n\\n<｜DSML｜tool_calls>\\n<｜DSML｜invoke name=\\\"f\\\">\\n"
           "<｜DSML｜parameter name=\\\"n\\\" string=\\\"false\\\">1</｜DSML｜parameter>\\n"
           "</｜DSML｜invoke>\\n</｜DSML｜tool_calls>\"}");
    every_allocation("/v1/messages",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,"
                     "\"return_progress\":true,\"thinking\":{\"type\":\"adaptive\"},\"tools\":[{"
                     "\"name\":\"f\",\"input_schema\":{}}]}");
    assert_non_null(strstr(text, "event: message_stop"));
    stop(t);
}

/* A reply with a call, sent back after a restart: what was remembered is in the file. */
static void calls(void **state)
{
    static const char reply[] = "{\"text\":\"t</think>\\n\\n<｜DSML｜tool_calls>\\n<｜DSML｜invoke "
                                "name=\\\"f\\\">\\n<｜DSML｜parameter name=\\\"n\\\" "
                                "string=\\\"false\\\">1.50</｜DSML｜parameter>\\n</｜DSML｜invoke>"
                                "\\n</｜DSML｜tool_calls>\"}";
    static const char ask_body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]," TOOLS "}";
    char back[1000], id[64];
    pthread_t t = start();
    (void)state;
    script(reply);
    every_allocation("/v1/chat/completions", ask_body);
    const char *at = strstr(text, "\"call_");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"%40[a-z0-9_]", id), 1);
    snprintf(back, sizeof back,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
             "\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\","
             "\"arguments\":\"{\\\"n\\\":1.5}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\","
             "\"content\":\"r\"}]," TOOLS "}",
             id, id);
    every_allocation("/apply-template", back);
    assert_non_null(strstr(text, "<think>t</think>"));
    assert_non_null(strstr(text, ">1.50<"));
    stop(t);
    t = start();
    assert_int_equal(ask("/apply-template", back), 200);
    assert_non_null(strstr(text, "<think>t</think>"));
    assert_non_null(strstr(text, ">1.50<"));
    stop(t);
}

static void requests(void **state)
{
    pthread_t t = start();
    (void)state;
    script("{\"text\":\"ok\"}");
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
    every_allocation(
        "/v1/messages",
        "{\"system\":[{\"type\":\"text\",\"text\":\"s\"}],\"messages\":[{\"role\":\"user\","
        "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c\",\"content\":\"r\","
        "\"is_error\":true}]}],\"stop_sequences\":[\"zz\"],\"tools\":[{\"name\":\"f\","
        "\"input_schema\":{\"type\":\"object\"}}],\"thinking\":{\"type\":\"adaptive\"}}");
    every_allocation("/v1/messages/count_tokens",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    every_allocation("/v1/chat/completions",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":"
                     "\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{"
                     "\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[#]}}}}}],"
                     "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{"
                     "\"type\":\"string\",\"maxLength\":3}}}}");
    every_allocation("/generate",
                     "{\"text\":\"a\",\"sampling_params\":{\"regex\":\"a{#}\",\"n\":2}}");
    every_allocation("/parse_function_call", "{\"text\":\"x\"," TOOLS "}");
    every_allocation("/separate_reasoning", "{\"text\":\"x</think>y\"}");
    every_allocation("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    every_allocation("/abort_request", "{\"rid\":\"x\"}");
    every_allocation("/detokenize", "{\"tokens\":[[5,6,7],[8]]}");
    stop(t);
}

#define ITEMS                                                                                      \
    "{\"role\":\"user\",\"content\":\"q\"},{\"type\":\"reasoning\",\"summary\":[{\"text\":\"t\"}]" \
    "},"                                                                                           \
    "{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"p\",\"input\":\"i\"},"            \
    "{\"type\":\"custom_tool_call_output\",\"call_id\":\"c\",\"output\":\"o\"}"
#define RESPONSE_TOOLS                                                                             \
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"custom\",\"name\":\"p\","       \
    "\"format\":"                                                                                  \
    "{\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"d\"}}]"

/* With a store behind them, and with answers that outlive their connections. */
static void responses(void **state)
{
    char body[400], id[64];
    pthread_t t = start();
    (void)state;
    script("{\"text\":\"t</think>ok\\n\\n<｜DSML｜tool_calls>\\n<｜DSML｜invoke name=\\\"p\\\">\\n"
           "<｜DSML｜parameter name=\\\"input\\\" string=\\\"true\\\">x</｜DSML｜parameter>\\n"
           "</｜DSML｜invoke>\\n</｜DSML｜tool_calls>\"}");
    every_allocation("/v1/responses", "{\"instructions\":\"s\",\"input\":[" ITEMS "],"
                                      "\"reasoning\":{\"summary\":\"auto\"}," RESPONSE_TOOLS "}");
    every_allocation("/v1/responses", "{\"input\":\"hi\",\"stream\":true,\"return_progress\":true,"
                                      "\"reasoning\":{\"summary\":\"auto\"}," RESPONSE_TOOLS "}");
    assert_int_equal(ask("/v1/responses", "{\"input\":[" ITEMS "]," RESPONSE_TOOLS "}"), 200);
    const char *at = strstr(text, "\"resp_");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"%40[a-z0-9_]", id), 1);
    snprintf(body, sizeof body, "{\"input\":\"x\",\"store\":false,\"previous_response_id\":\"%s\"}",
             id);
    every_allocation("/v1/responses", body);
    headers = "X-Firesteel-Keep: 1\r\n";
    every_allocation("/v1/responses", "{\"input\":\"hi\",\"stream\":true}");
    every_allocation("/v1/chat/completions",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true}");
    every_allocation("/generate", "{\"text\":\"a b\"}");
    headers = "";
    every_allocation("/v1/responses", "{\"input\":\"hi\",\"background\":true}");
    stop(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(requests, setup, teardown),
        cmocka_unit_test_setup_teardown(calls, setup, teardown),
        cmocka_unit_test_setup_teardown(blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(responses, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
