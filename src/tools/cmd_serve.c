/* cmd_serve.c - flags of the HTTP server. */
#include <limits.h>

#include "base/file.h"
#include "base/log.h"
#include "server/server.h"
#include "tools/tool.h"

static const struct option_def defs[] = {
    {.name = "host", .type = OPTION_TEXT, .initial = "127.0.0.1", .help = "address to listen on"},
    {.name = "port",
     .type = OPTION_INT,
     .initial = "30000",
     .min = 0,
     .max = 65535,
     .help = "0 takes a free one"},
    {.name = "api-key",
     .type = OPTION_LIST,
     .arg = "KEY",
     .help = "clients must send it (Authorization: Bearer, or x-api-key); may be repeated"},
    {.name = "api-key-file", .type = OPTION_TEXT, .arg = "FILE", .help = "keys, one a line"},
    {.name = "admin-api-key",
     .type = OPTION_TEXT,
     .arg = "KEY",
     .help = "for /abort_request, /flush_cache and /set_internal_state"},
    {.name = "allow-public",
     .type = OPTION_FLAG,
     .help = "listen on a public address without an API key"},
    {.name = "cors", .type = OPTION_FLAG, .help = "let web pages of any origin call the server"},
    {.name = "served-model-name",
     .type = OPTION_TEXT,
     .arg = "NAME",
     .help = "name in answers and lists; the folder's when not given"},
    {.name = "max-connections",
     .type = OPTION_INT,
     .initial = "4096",
     .min = 1,
     .max = 100000,
     .help = "more are answered 503"},
    {.name = "max-body-mb",
     .type = OPTION_INT,
     .initial = "64",
     .min = 1,
     .max = 1023,
     .help = "largest request body in MiB"},
    {.name = "timeout-keep-alive",
     .type = OPTION_FLOAT,
     .initial = "5",
     .min = 0.1,
     .max = 86400,
     .env = "SGLANG_TIMEOUT_KEEP_ALIVE",
     .arg = "SECONDS",
     .help = "idle connections live so long"},
    {.name = "request-timeout",
     .type = OPTION_FLOAT,
     .initial = "0",
     .min = 0,
     .max = 1e6,
     .env = "SGLANG_REQ_WAITING_TIMEOUT",
     .arg = "SECONDS",
     .help = "0: none"},
    {.name = "shutdown-grace",
     .type = OPTION_FLOAT,
     .initial = "30",
     .min = 0,
     .max = 86400,
     .arg = "SECONDS",
     .help = "running requests may finish within it, then what is kept is written to disk"},
    {.name = "queue-full-status",
     .type = OPTION_WORD,
     .initial = "503",
     .words = "503 429",
     .help = "status of a request that finds the queue full"},
    {.name = "skip-server-warmup", .type = OPTION_FLAG, .help = "no generation before ready"},
    {.name = "watchdog-timeout",
     .type = OPTION_FLOAT,
     .initial = "300",
     .min = 0,
     .max = 1e6,
     .arg = "SECONDS",
     .help = "exit when work waits and no block of a step ends for so long; 0: never"},
    {.name = "health-timeout",
     .type = OPTION_FLOAT,
     .initial = "30",
     .min = 0.1,
     .max = 1e6,
     .env = "SGLANG_HEALTH_CHECK_TIMEOUT",
     .arg = "SECONDS",
     .help = "/health says 503 when work waits and no block of a step ends for so long"},
};
static const struct option_def answer_defs[] = {
    {.name = "default-thinking",
     .type = OPTION_WORD,
     .initial = "on",
     .words = "off=false=0=no=n on=true=1=yes=y",
     .env = "SGLANG_DEFAULT_THINKING",
     .help = "when a request does not say"},
    {.name = "default-reasoning-effort",
     .type = OPTION_TEXT,
     .arg = "E",
     .env = "SGLANG_DSV4_REASONING_EFFORT",
     .help = "low, high or max; no effort text when not given"},
    {.name = "thinking-budget",
     .type = OPTION_TEXT,
     .initial = "off",
     .arg = "N|auto|off",
     .help = "tokens of thoughts, when a request does not say; auto: what leaves a quarter of "
             "max_tokens for the answer"},
    {.name = "max-n",
     .type = OPTION_INT,
     .initial = "128",
     .min = 1,
     .max = 1024,
     .help = "choices per prompt"},
    {.name = "stream-interval",
     .type = OPTION_INT,
     .initial = "1",
     .min = 1,
     .max = 4096,
     .help = "tokens per stream event"},
    {.name = "incremental-streaming-output",
     .type = OPTION_FLAG,
     .help = "/generate streams what is new instead of everything so far"},
    {.name = "sse-keepalive-interval",
     .type = OPTION_FLOAT,
     .initial = "10",
     .min = 0,
     .max = 86400,
     .arg = "SECONDS",
     .help = "comment, or ping, in quiet streams (not on /generate); 0 off"},
    {.name = "keep-max-s",
     .type = OPTION_INT,
     .initial = "900",
     .min = 0,
     .max = 86400,
     .arg = "SECONDS",
     .help = "the longest that an answer may outlive its connection (X-Firesteel-Keep); 0: never"},
    {.name = "keep-max-streams",
     .type = OPTION_INT,
     .initial = "64",
     .min = 1,
     .max = 100000,
     .help = "answers kept so, each up to 8 MiB of events"},
    {.name = "response-store",
     .type = OPTION_INT,
     .initial = "0",
     .min = 0,
     .max = 1e6,
     .help = "answers of /v1/responses kept for previous_response_id; 0: none"},
    {.name = "strict-model-name", .type = OPTION_FLAG, .help = "404 for other model names"},
    {.name = "strict-max-tokens", .type = OPTION_FLAG, .help = "400 instead of clamping"},
    {.name = "unsupported-content",
     .type = OPTION_WORD,
     .initial = "error",
     .words = "error placeholder",
     .help = "what image parts become"},
};
static const struct option_def log_defs[] = {
    {.name = "enable-metrics", .type = OPTION_FLAG, .initial = "true", .help = "GET /metrics"},
    {.name = "metrics-prefix",
     .type = OPTION_TEXT,
     .initial = "sglang:",
     .arg = "TEXT",
     .help = "of metric names"},
    {.name = "log-requests", .type = OPTION_FLAG, .initial = "true", .help = "a line per request"},
    {.name = "log-requests-level",
     .type = OPTION_INT,
     .initial = "1",
     .min = 0,
     .max = 3,
     .help = "2 also logs the start of prompts"},
    {.name = "access-log", .type = OPTION_FLAG, .help = "a line per HTTP request"},
    {.name = "enable-cache-report",
     .type = OPTION_FLAG,
     .no_use = "cached tokens are always reported"},
    {.name = "trust-remote-code", .type = OPTION_FLAG, .no_use = "no code comes with a checkpoint"},
    {.name = "enable-deterministic-inference", .type = OPTION_FLAG, .no_use = "results never vary"},
    {.name = "dtype", .type = OPTION_TEXT, .no_use = "the checkpoint decides"},
    {.name = "quantization", .type = OPTION_TEXT, .no_use = "the checkpoint decides"},
    {.name = "mem-fraction-static", .type = OPTION_FLOAT, .no_use = "there is no device memory"},
    {.name = "skip-tokenizer-init", .type = OPTION_FLAG, .no_use = "the server works with text"},
    {.name = "reasoning-parser", .type = OPTION_TEXT, .no_use = "the parser belongs to the model"},
    {.name = "tool-call-parser", .type = OPTION_TEXT, .no_use = "the parser belongs to the model"},
};

/* Lines of a file as keys; they live in `text`. */
static enum fst_status read_keys(const char *path, struct buf *text, const char **keys, size_t cap,
                                 size_t *n)
{
    FST_TRY(file_read(text, path, 1 << 20));
    for (char *p = text->data; p && *p;) {
        char *end = p + strcspn(p, "\r\n");
        bool last = !*end;
        *end = 0;
        if (*p && *p != '#') {
            if (*n == cap)
                return fst_error(FST_EINVAL, "%s: more than %zu keys", path, cap);
            keys[(*n)++] = p;
        }
        if (last)
            break;
        p = end + 1;
    }
    return FST_OK;
}

static void put_flag(struct buf *b, const char *name, const char *value, bool quote)
{
    if (b->len)
        buf_putc(b, ',');
    buf_printf(b, "\"%s\":", name);
    if (quote && value)
        json_put_string_safe(b, value, strlen(value));
    else
        buf_puts(b, value ? value : "null");
}

static void put_number(struct buf *b, const char *name, double x)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", x);
    put_flag(b, name, text, false);
}

/* The server's own flags for /server_info; those of the engine come from the engine itself. */
static void put_flags(struct buf *b, const struct options *o, const struct server_opts *s)
{
    put_flag(b, "host", s->host, true);
    put_number(b, "port", s->port);
    put_flag(b, "api_key", s->n_api_keys ? "true" : "false", false);
    put_flag(b, "cors", s->cors ? "true" : "false", false);
    put_number(b, "max_connections", s->limits.max_connections);
    put_number(b, "max_body_mb", (double)options_int(o, "max-body-mb", 64));
    put_number(b, "timeout_keep_alive", s->limits.keep_alive_ms / 1e3);
    put_number(b, "request_timeout", s->request_timeout_s);
    put_number(b, "shutdown_grace", s->shutdown_grace_s);
    put_number(b, "sse_keepalive_interval", s->sse_keepalive_s);
    put_number(b, "stream_interval", s->stream_interval);
    put_number(b, "keep_max_s", s->keep_max_s);
    put_number(b, "keep_max_streams", s->keep_max_streams);
    put_number(b, "response_store", s->response_store);
    put_number(b, "max_n", s->max_n);
    put_flag(b, "thinking_budget", options_text(o, "thinking-budget"), true);
    put_number(b, "watchdog_timeout", s->watchdog_s);
    put_flag(b, "default_thinking", s->chat.thinking ? "true" : "false", false);
    put_flag(b, "enable_metrics", s->enable_metrics ? "true" : "false", false);
}

static enum fst_status read_budget(const char *text, int64_t *out)
{
    char *end = NULL;
    long long n = strtoll(text, &end, 10);

    if (!strcasecmp(text, "off") || !strcasecmp(text, "auto")) {
        *out = !strcasecmp(text, "off") ? -1 : -2;
        return FST_OK;
    }
    if (text[0] < '0' || text[0] > '9' || *end || n == LLONG_MAX)
        return fst_error(FST_EINVAL, "--thinking-budget: expected a number, auto or off, got %s",
                         text);
    *out = n;
    return FST_OK;
}

static enum fst_status fill(const struct options *o, struct server_opts *s)
{
    FST_TRY(tool_engine_opts(o, &s->engine));
    FST_TRY(tool_audit_opts(o, &s->engine));
    s->engine.measure_cost = true;
    s->tokenizer_path = options_text(o, "tokenizer");
    s->served_model_name = options_text(o, "served-model-name");
    s->host = options_text(o, "host");
    s->port = (int)options_int(o, "port", 30000);
    s->admin_api_key = options_text(o, "admin-api-key");
    s->allow_public = options_flag(o, "allow-public");
    s->cors = options_flag(o, "cors");
    s->limits.max_connections = (int)options_int(o, "max-connections", 4096);
    s->limits.max_body = (size_t)options_int(o, "max-body-mb", 64) << 20;
    s->limits.keep_alive_ms = (int)(1e3 * options_float(o, "timeout-keep-alive", 5));
    s->request_timeout_s = options_float(o, "request-timeout", 0);
    s->shutdown_grace_s = options_float(o, "shutdown-grace", 30);
    s->skip_warmup = options_flag(o, "skip-server-warmup");
    s->watchdog_s = options_float(o, "watchdog-timeout", 300);
    s->health_stall_s = options_float(o, "health-timeout", 30);
    s->queue_full_status = options_word(o, "queue-full-status") == 1 ? 429 : 503;
    s->max_n = (int)options_int(o, "max-n", 128);
    FST_TRY(read_budget(options_text(o, "thinking-budget"), &s->thinking_budget));
    s->stream_interval = (int)options_int(o, "stream-interval", 1);
    s->incremental_streaming = options_flag(o, "incremental-streaming-output");
    s->sse_keepalive_s = options_float(o, "sse-keepalive-interval", 10);
    s->keep_max_s = (int)options_int(o, "keep-max-s", 900);
    s->keep_max_streams = (int)options_int(o, "keep-max-streams", 64);
    s->response_store = (int)options_int(o, "response-store", 0);
    s->strict_model_name = options_flag(o, "strict-model-name");
    s->strict_max_tokens = options_flag(o, "strict-max-tokens");
    s->enable_metrics = options_flag(o, "enable-metrics");
    s->metrics_prefix = options_text(o, "metrics-prefix");
    s->access_log = options_flag(o, "access-log");
    s->log_requests_level =
        options_flag(o, "log-requests") ? (int)options_int(o, "log-requests-level", 1) : 0;
    FST_TRY(server_prompt_opts(s, o));
    s->chat.thinking = options_word(o, "default-thinking") != 0;
    s->chat.placeholder_parts = options_word(o, "unsupported-content") == 1;
    const char *effort = options_text(o, "default-reasoning-effort");
    bool thinking = s->chat.thinking;
    if (effort && effort[0] && !chat_effort_parse(effort, &thinking, &s->chat.effort))
        return fst_error(FST_EINVAL, "--default-reasoning-effort %s: low, high and max are known",
                         effort);
    return FST_OK;
}

int cmd_serve(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Server", defs),
                                          OPTION_GROUP("Answers", answer_defs),
                                          server_prompt_group,
                                          OPTION_GROUP("Logs and metrics", log_defs),
                                          tool_folder_group,
                                          tool_engine_group,
                                          tool_audit_group};
    enum { KEYS_MAX = 1024 };
    static const char *keys[KEYS_MAX];
    int status;
    struct options *o =
        tool_parse("firesteel serve", "[options]", groups, FST_COUNT(groups), argc, argv, &status);
    if (!o)
        return status;
    struct server_opts s;
    struct buf flags = {0}, key_text = {0};
    server_opts_default(&s);
    enum fst_status rc = fill(o, &s);
    const char *const *list;
    size_t n = options_list(o, "api-key", &list);
    for (size_t i = 0; i < n && i < KEYS_MAX; i++)
        if (list[i][0])
            keys[s.n_api_keys++] = list[i];
    if (rc == FST_OK && options_text(o, "api-key-file"))
        rc = read_keys(options_text(o, "api-key-file"), &key_text, keys, KEYS_MAX, &s.n_api_keys);
    s.api_keys = keys;
    put_flags(&flags, o, &s);
    s.flags_json = buf_str(&flags);
    if (rc == FST_OK) {
        log_start();
        rc = server_run(&s);
        log_stop();
    }
    status = rc < 0 ? tool_fail(rc) : 0;
    buf_release(&flags);
    buf_release(&key_text);
    options_free(o);
    return status;
}
