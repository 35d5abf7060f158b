/* bench_agent.c - `bench agent`: a conversation with tools, turn by turn, over the chat route.  After each reply comes what
 * tools would say to its calls, some tokens of prose, or, without a call, the user's next wish; what a server computes
 * of the growing prompt, and how long the first token takes, is the row of a turn.
 *
 * A server that keeps prefixes computes what is new and little more: `recomputed` within `new` + 256 (a page). */
#include "base/clock.h"
#include "client/dataset.h"
#include "tools/bench_remote.h"

enum { SLACK_TOKENS = 256, CALLS_MAX = 64 };

static const struct option_def defs[] = {
    {.name = "turns",
     .type = OPTION_INT,
     .initial = "20",
     .min = 1,
     .max = 10000,
     .help = "replies"},
    {.name = "tool-tokens",
     .type = OPTION_INT,
     .initial = "200",
     .min = 1,
     .max = 1e6,
     .help = "tokens of prose in a tool's result"},
    {.name = "system-tokens",
     .type = OPTION_INT,
     .initial = "400",
     .min = 1,
     .max = 1e6,
     .help = "tokens of prose in the system message"},
    {.name = "output-len",
     .type = OPTION_INT,
     .initial = "128",
     .min = 1,
     .max = 1e6,
     .help = "tokens of a reply at most"},
    {.name = "thinking",
     .type = OPTION_WORD,
     .words = "off on",
     .help = "as the server likes when not given"},
};

static const char tools_json[] = "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                                 "\"description\":\"Get the weather of a "
                                 "city.\",\"parameters\":{\"type\":\"object\",\"required\":["
                                 "\"city\"],\"properties\":{\"city\":{\"type\":"
                                 "\"string\",\"description\":\"The "
                                 "city.\"},\"days\":{\"type\":\"integer\",\"description\":\"The "
                                 "days.\"}}}}},{\"type\":\"function\",\"function\":{\"name\":"
                                 "\"read_file\",\"description\":\"Read a "
                                 "file.\",\"parameters\":{\"type\":\"object\",\"required\":["
                                 "\"path\"],\"properties\":{\"path\":{\"type\":"
                                 "\"string\",\"description\":\"The path.\"}}}}}]";
static const char system_text[] =
    "You are a helpful agent. Call a tool when one is needed, and answer in a few words.\n";
static const char *const asks[] = {
    "What is the weather in Rome for 3 days?", "Read the file notes.txt.",
    "What is the weather in Oslo for 2 days?", "Read the file plan.md."};

struct call {
    char *id; /* owned; NULL: none was sent */
    struct buf name, arguments;
};

/* One reply as it comes. */
struct reply {
    struct event_lines lines;
    struct buf content, reasoning, error;
    struct call call[CALLS_MAX];
    size_t n_calls;
    int status;
    bool over, failed;
    int64_t start_ns, first_ns, last_ns, now_ns;
    int64_t prompt_tokens, cached_tokens, completion_tokens; /* -1: not said */
    double prefill_ms, decode_ms;                            /* by the server; -1 */
};

struct job {
    struct bench_remote b;
    struct tokenizer_ids prose;
    struct buf messages, text;
    char salt[40];
    size_t at;     /* in the prose */
    int64_t known; /* tokens of prompt and reply of the turn before */
    int n_over;    /* turns that recomputed more than they may */
};

static void reply_release(struct reply *r)
{
    event_lines_release(&r->lines);
    buf_release(&r->content);
    buf_release(&r->reasoning);
    buf_release(&r->error);
    for (size_t i = 0; i < r->n_calls; i++) {
        mem_free(r->call[i].id);
        buf_release(&r->call[i].name);
        buf_release(&r->call[i].arguments);
    }
}

/* ------------------------------------------------------------------ reading */

static bool append(struct buf *b, json_val *v)
{
    size_t n;
    const char *s = json_string(v, &n);
    if (s && n)
        buf_append(b, s, n);
    return s && n;
}

static bool take_calls(struct reply *r, json_val *calls)
{
    for (size_t i = 0; i < json_count(calls); i++) {
        json_val *c = json_at(calls, i), *f = json_get(c, "function");
        int64_t at = (int64_t)i;
        if (json_get(c, "index") && !json_int(json_get(c, "index"), &at))
            continue;
        if (at < 0 || at >= CALLS_MAX)
            continue;
        r->n_calls = FST_MAX(r->n_calls, (size_t)at + 1);
        const char *id = json_string(json_get(c, "id"), NULL);
        if (id && *id && !r->call[at].id)
            r->call[at].id = mem_strdup(id);
        append(&r->call[at].name, json_get(f, "name"));
        append(&r->call[at].arguments, json_get(f, "arguments"));
    }
    return json_count(calls) > 0;
}

static void take_count(json_val *v, int64_t *out)
{
    int64_t n;
    if (json_int(v, &n))
        *out = n;
}

static bool on_event_line(void *ud, const char *data, size_t len)
{
    struct reply *r = ud;
    struct json_doc *doc = NULL;
    if (len == 6 && !memcmp(data, "[DONE]", 6))
        return false;
    if (json_parse(&doc, data, len) < 0) {
        r->failed = true;
        buf_puts(&r->error, fst_error_text());
        return false;
    }
    json_val *root = json_root(doc),
             *delta = json_get(json_at(json_get(root, "choices"), 0), "delta");
    json_val *usage = json_get(root, "usage"), *timings = json_get(root, "timings");
    if (!json_is_null(json_get(root, "error"))) {
        r->failed = true;
        buf_append(&r->error, data, len);
    }
    json_val *thought = json_get(delta, "reasoning_content");
    bool some = append(&r->content, json_get(delta, "content"));
    some |= append(&r->reasoning, thought ? thought : json_get(delta, "reasoning"));
    some |= take_calls(r, json_get(delta, "tool_calls"));
    if (some && !r->first_ns)
        r->first_ns = r->now_ns;
    r->last_ns = r->now_ns;
    take_count(json_get(usage, "prompt_tokens"), &r->prompt_tokens);
    take_count(json_get(usage, "completion_tokens"), &r->completion_tokens);
    take_count(json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens"),
               &r->cached_tokens);
    if (timings && (!json_real(json_get(timings, "prompt_ms"), &r->prefill_ms) ||
                    !json_real(json_get(timings, "predicted_ms"), &r->decode_ms)))
        r->prefill_ms = r->decode_ms = -1;
    json_free(doc);
    return !r->failed;
}

static void on_head(void *ud, int status, int64_t t_ns)
{
    struct reply *r = ud;
    (void)t_ns;
    r->status = status;
}

static void on_body(void *ud, const char *data, size_t len, int64_t t_ns)
{
    struct reply *r = ud;
    r->now_ns = t_ns;
    if (r->status != 200)
        buf_append(&r->error, data, len);
    else if (!r->failed && event_lines_feed(&r->lines, data, len, on_event_line, r) < 0)
        r->failed = true;
}

static void on_done(void *ud, enum fst_status rc, const char *why, int64_t t_ns)
{
    struct reply *r = ud;
    (void)t_ns;
    r->over = true;
    if (rc < 0) {
        r->failed = true;
        buf_puts(&r->error, why);
    }
    r->failed |= r->status != 200 || !r->first_ns;
}

/* ------------------------------------------------------------------ writing */

/* `before`, then n tokens of prose, as a JSON string. */
static void put_prose(struct job *j, struct buf *b, const char *before, int64_t n)
{
    struct tokenizer_ids part = {0};
    struct buf text = {0};
    buf_puts(&text, before);
    for (int64_t i = 0; i < n && tokenizer_ids_push(&part, j->prose.id[j->at]) == FST_OK; i++)
        j->at = (j->at + 1) % j->prose.n;
    if (tokenizer_decode(j->b.tok, part.id, part.n, false, &text) < 0)
        b->failed = true;
    json_put_string(b, buf_str(&text), text.len);
    tokenizer_ids_release(&part);
    buf_release(&text);
}

static void add_user(struct job *j, size_t turn)
{
    const char *ask = asks[turn % FST_COUNT(asks)];
    buf_puts(&j->messages, ",{\"role\":\"user\",\"content\":");
    json_put_string(&j->messages, ask, strlen(ask));
    buf_putc(&j->messages, '}');
}

/* The reply as a message, and what comes back from its calls. */
static void add_reply(struct job *j, const struct reply *r, size_t turn)
{
    struct buf *m = &j->messages;
    buf_puts(m, ",{\"role\":\"assistant\",\"content\":");
    json_put_string(m, buf_str(&r->content), r->content.len);
    if (r->reasoning.len) {
        buf_puts(m, ",\"reasoning_content\":");
        json_put_string(m, buf_str(&r->reasoning), r->reasoning.len);
    }
    for (size_t i = 0; i < r->n_calls; i++) {
        const struct call *c = &r->call[i];
        const char *id = c->id ? c->id : "call";
        buf_puts(m, i ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
        json_put_string(m, id, strlen(id));
        buf_puts(m, ",\"type\":\"function\",\"function\":{\"name\":");
        json_put_string(m, buf_str(&c->name), c->name.len);
        buf_puts(m, ",\"arguments\":");
        json_put_string(m, buf_str(&c->arguments), c->arguments.len);
        buf_puts(m, i + 1 == r->n_calls ? "}}]" : "}}");
    }
    buf_putc(m, '}');
    for (size_t i = 0; i < r->n_calls; i++) {
        const char *id = r->call[i].id ? r->call[i].id : "call";
        buf_puts(m, ",{\"role\":\"tool\",\"tool_call_id\":");
        json_put_string(m, id, strlen(id));
        buf_puts(m, ",\"content\":");
        put_prose(j, m, "", options_int(j->b.o, "tool-tokens", 200));
        buf_putc(m, '}');
    }
    if (!r->n_calls)
        add_user(j, turn + 1);
}

static void put_body(struct job *j, struct buf *b)
{
    static const char *const words[] = {"false", "true"};
    int thinking = options_word(j->b.o, "thinking");
    buf_puts(b, "{\"model\":");
    json_put_string(b, j->b.model, strlen(j->b.model));
    buf_printf(b, ",\"messages\":[%s],\"tools\":%s,\"temperature\":0.0,\"max_tokens\":%lld,",
               buf_str(&j->messages), tools_json,
               (long long)options_int(j->b.o, "output-len", 128));
    if (thinking >= 0)
        buf_printf(b, "\"chat_template_kwargs\":{\"thinking\":%s,\"enable_thinking\":%s},",
                   words[thinking], words[thinking]);
    buf_printf(b,
               "\"stream\":true,\"stream_options\":{\"include_usage\":true},"
               "\"timings_per_token\":true,\"cache_salt\":\"%s\"}",
               j->salt);
}

/* ------------------------------------------------------------------ a turn */

static void put_known(struct buf *b, const char *name, double x, bool known)
{
    buf_printf(b, ",\"%s\":", name);
    if (known)
        buf_printf(b, "%.3f", x);
    else
        buf_puts(b, "null");
}

static void add_row(struct job *j, const struct reply *r, size_t turn)
{
    struct buf row = {0};
    double ttft = (double)(r->first_ns - r->start_ns) * 1e-6;
    double decode = (double)(r->last_ns - r->first_ns) * 1e-6;
    bool counted = r->prompt_tokens >= 0 && r->cached_tokens >= 0;
    int64_t fresh = r->prompt_tokens - j->known, again = r->prompt_tokens - r->cached_tokens;
    bool over = counted && again > fresh + SLACK_TOKENS;
    j->n_over += over;
    buf_printf(&row, "\"turn\":%zu,\"calls\":%zu,\"ttft_ms\":%.3f,\"decode_ms\":%.3f", turn + 1,
               r->n_calls, ttft, decode);
    put_known(&row, "prompt_tokens", (double)r->prompt_tokens, counted);
    put_known(&row, "cached_tokens", (double)r->cached_tokens, counted);
    put_known(&row, "new_tokens", (double)fresh, counted);
    put_known(&row, "recomputed_tokens", (double)again, counted);
    put_known(&row, "completion_tokens", (double)r->completion_tokens, r->completion_tokens >= 0);
    put_known(&row, "server_prefill_ms", r->prefill_ms, r->prefill_ms >= 0);
    put_known(&row, "server_decode_ms", r->decode_ms, r->decode_ms >= 0);
    put_known(&row, "queue_and_wire_ms", ttft - r->prefill_ms, r->prefill_ms >= 0);
    buf_printf(&row, ",\"within\":%s", !counted ? "null" : over ? "false" : "true");
    bench_remote_row(&j->b, "agent", buf_str(&row));
    buf_release(&row);
    if (!turn)
        buf_printf(&j->text, "%5s %6s %9s %9s %9s %11s %9s %10s %10s\n", "turn", "calls", "prompt",
                   "cached", "new", "recomputed", "TTFT ms", "prefill ms", "decode ms");
    buf_printf(&j->text, "%5zu %6zu %9lld %9lld %9lld %11lld %9.2f %10.2f %10.2f%s\n", turn + 1,
               r->n_calls, (long long)r->prompt_tokens, (long long)r->cached_tokens,
               (long long)fresh, (long long)again, ttft, r->prefill_ms, decode,
               over ? "  more than new + 256" : "");
    j->known = r->prompt_tokens + FST_MAX(r->completion_tokens, (int64_t)0);
}

static enum fst_status one_turn(struct job *j, size_t turn)
{
    struct reply r = {.prompt_tokens = -1,
                      .cached_tokens = -1,
                      .completion_tokens = -1,
                      .prefill_ms = -1,
                      .decode_ms = -1};
    struct buf body = {0}, req = {0};
    enum fst_status rc = FST_OK;
    put_body(j, &body);
    http_request(&req, j->b.t.http, "POST", load_path(ANSWER_CHAT), j->b.t.key, buf_str(&body),
                 body.len);
    struct http_call call = {.bytes = buf_str(&req),
                             .len = req.len,
                             .ud = &r,
                             .on_head = on_head,
                             .on_body = on_body,
                             .on_done = on_done};
    if (j->messages.failed || body.failed || req.failed) {
        rc = fst_error(FST_ENOMEM, "no memory for the conversation");
    } else {
        r.start_ns = clock_ns();
        http_submit(j->b.t.http, &call);
        while (!r.over && !bench_remote_interrupted())
            http_turn(j->b.t.http, 100);
        if (!r.over) {
            http_drop(j->b.t.http, &call);
            rc = fst_error(FST_ECANCELED, "interrupted in turn %zu", turn + 1);
        } else if (r.failed) {
            rc = fst_error(r.status ? FST_EFORMAT : FST_EIO, "turn %zu: status %d: %.400s",
                           turn + 1, r.status, r.error.len ? buf_str(&r.error) : "an empty reply");
        }
    }
    if (rc == FST_OK) {
        add_row(j, &r, turn);
        add_reply(j, &r, turn);
    }
    reply_release(&r);
    buf_release(&body);
    buf_release(&req);
    return rc;
}

static enum fst_status converse(struct job *j)
{
    int64_t turns = options_int(j->b.o, "turns", 20);
    FST_TRY(dataset_prose(&j->prose, j->b.tok, 1 << 16));
    bench_remote_salt(j->salt);
    j->messages.limit = (size_t)256 << 20;
    buf_puts(&j->messages, "{\"role\":\"system\",\"content\":");
    put_prose(j, &j->messages, system_text, options_int(j->b.o, "system-tokens", 400));
    buf_putc(&j->messages, '}');
    add_user(j, 0);
    for (int64_t i = 0; i < turns; i++)
        FST_TRY(one_turn(j, (size_t)i));
    return FST_OK;
}

int bench_agent(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Bench agent", defs), bench_remote_group};
    int status;
    struct options *o = tool_parse("firesteel bench agent", "[options]", groups, FST_COUNT(groups),
                                   argc, argv, &status);
    if (!o)
        return status;
    struct job j = {0};
    tool_catch_interrupt();
    enum fst_status rc = bench_remote_open(&j.b, o, NULL, true, argc, argv);
    if (rc == FST_OK)
        rc = converse(&j);
    if (j.n_over)
        buf_printf(&j.text, "%d turns computed more than their new tokens and %d\n", j.n_over,
                   SLACK_TOKENS);
    buf_printf(&j.text, "on %s\ncommand: %s\n", j.b.card, buf_str(&j.b.command));
    if (rc < 0)
        status = tool_fail(rc);
    if (rc == FST_OK || j.b.rows.len) {
        int written = bench_remote_finish(&j.b, &j.text);
        status = rc < 0 ? status : written;
    }
    tokenizer_ids_release(&j.prose);
    buf_release(&j.messages);
    buf_release(&j.text);
    bench_remote_release(&j.b);
    options_free(o);
    return status;
}
