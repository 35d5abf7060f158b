/* bench_frontier.c - `bench frontier`: one long text, read further and further (benchmarks.md 9).  At each context size a
 * request reads what is new since the last (the prefix cache has the rest), and a second one generates behind it. */
#include "base/file.h"
#include "base/progress.h"
#include "client/dataset.h"
#include "tools/bench_remote.h"

static const struct option_def defs[] = {
    {.name = "start",
     .type = OPTION_INT,
     .initial = "1024",
     .min = 2,
     .max = 1e7,
     .help = "first context"},
    {.name = "max",
     .type = OPTION_INT,
     .min = 2,
     .max = 1e7,
     .help = "last context; what the server takes when not given"},
    {.name = "step-mul",
     .type = OPTION_FLOAT,
     .initial = "2",
     .min = 1.01,
     .max = 100,
     .help = "each context is so many times the one before"},
    {.name = "step-incr",
     .type = OPTION_INT,
     .min = 1,
     .max = 1e7,
     .help = "or so many tokens longer"},
    {.name = "gen-tokens",
     .type = OPTION_INT,
     .initial = "64",
     .min = 2,
     .max = 1e6,
     .help = "generated at each context, greedy, without an end"},
    {.name = "text-file",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help =
         "what is read, from its beginning again when it ends; the bundled prose when not given"},
    {.name = "csv", .type = OPTION_TEXT, .arg = "FILE", .help = "the rows as CSV"},
};

struct job {
    struct bench_remote b;
    struct tokenizer_ids ids;
    char salt[40];
    int64_t n_gen;
    double bytes_per_token; /* of KV; 0: the server does not say */
    struct buf text, csv;
};

/* Contexts that the server takes, and what KV costs there. */
static int64_t ask_server(struct job *j)
{
    struct json_doc *doc = target_get(&j->b.t, "/server_info");
    json_val *info = target_root(doc), *state = json_at(json_get(info, "internal_states"), 0);
    json_val *memory = json_get(state, "memory_usage");
    int64_t context = 0;
    double gib = 0, tokens = 0;
    if (!json_int(json_get(info, "context_length"), &context))
        context = 0;
    if (json_real(json_get(memory, "kvcache"), &gib) &&
        json_real(json_get(memory, "token_capacity"), &tokens) && tokens > 0)
        j->bytes_per_token = gib * 1073741824.0 / tokens;
    json_free(doc);
    return context;
}

static enum fst_status read_text(struct job *j, size_t n)
{
    const char *path = options_text(j->b.o, "text-file");
    struct buf b = {0};
    if (!path)
        return dataset_prose(&j->ids, j->b.tok, n);
    enum fst_status rc = file_read(&b, path, 0);
    if (rc == FST_OK)
        rc = tokenizer_encode_text(j->b.tok, buf_str(&b), b.len, false, &j->ids);
    size_t own = j->ids.n;
    buf_release(&b);
    if (rc == FST_OK && !own)
        rc = fst_error(FST_EFORMAT, "%s: no text", path);
    for (size_t i = 0; rc == FST_OK && j->ids.n < n; i++)
        rc = tokenizer_ids_push(&j->ids, j->ids.id[i % own]);
    return rc;
}

/* One request on the first n ids. */
static enum fst_status ask(struct job *j, int64_t n, int64_t tokens, struct answer *a)
{
    struct buf body = {0};
    struct tokenizer_ids part = {.id = j->ids.id, .n = (size_t)n};
    *a = (struct answer){0};
    bench_remote_generate(&body, &part, tokens, j->salt);
    enum fst_status rc =
        body.failed ? fst_error(FST_ENOMEM, "no memory for a request")
                    : bench_remote_call(&j->b, ANSWER_GENERATE, buf_str(&body), n, tokens, a);
    buf_release(&body);
    return rc;
}

struct point {
    int64_t ctx, cached;
    double prefill_tok_s, decode_tok_s, ttft_ms, accept_length, kv_bytes;
};

static void put_number(struct buf *b, double x, bool known)
{
    if (known)
        json_put_double(b, x);
    else
        buf_puts(b, "null");
}

static void add_row(struct job *j, const struct point *p)
{
    struct buf row = {0};
    bool has_spec = p->accept_length > 0, has_kv = p->kv_bytes > 0;
    buf_printf(&row,
               "\"ctx\":%lld,\"cached_tokens\":%lld,\"gen_tokens\":%lld,\"prefill_tok_s\":%.3f,"
               "\"decode_tok_s\":%.3f,\"time_us\":%.3f,\"ttft_ms\":%.3f,\"kv_bytes\":",
               (long long)p->ctx, (long long)p->cached, (long long)j->n_gen, p->prefill_tok_s,
               p->decode_tok_s, 1e6 / p->decode_tok_s, p->ttft_ms);
    put_number(&row, p->kv_bytes, has_kv);
    buf_puts(&row, ",\"accept_length\":");
    put_number(&row, p->accept_length, has_spec);
    bench_remote_row(&j->b, "frontier", buf_str(&row));
    buf_release(&row);
    if (!j->csv.len) {
        buf_puts(&j->csv, "ctx,prefill_tok_s,decode_tok_s,kv_bytes,accept_len,ttft_ms\n");
        buf_printf(&j->text, "%10s %14s %12s %14s %10s %10s\n", "ctx", "prefill tok/s",
                   "decode tok/s", "KV MB", "accept", "TTFT ms");
    }
    char accept[32] = ""; /* without a round there is none */
    if (has_spec)
        snprintf(accept, sizeof accept, "%.3f", p->accept_length);
    buf_printf(&j->csv, "%lld,%.2f,%.2f,%.0f,%s,%.3f\n", (long long)p->ctx, p->prefill_tok_s,
               p->decode_tok_s, p->kv_bytes, accept, p->ttft_ms);
    buf_printf(&j->text, "%10lld %14.1f %12.1f %14.3f %10s %10.2f\n", (long long)p->ctx,
               p->prefill_tok_s, p->decode_tok_s, p->kv_bytes * 1e-6, has_spec ? accept : "-",
               p->ttft_ms);
}

static enum fst_status one_context(struct job *j, int64_t n)
{
    struct answer read, gen = {0};
    struct target_counts before, after;
    struct point p = {.ctx = n, .kv_bytes = j->bytes_per_token * (double)n};
    enum fst_status rc = ask(j, n, 0, &read);
    if (rc == FST_OK) {
        target_count(&j->b.t, &before);
        rc = ask(j, n, j->n_gen, &gen);
        target_count(&j->b.t, &after);
    }
    int64_t tokens = gen.seen_tokens - gen.first_tokens, ns = gen.last_gen_ns - gen.first_ns;
    if (rc == FST_OK && (tokens <= 0 || ns <= 0))
        rc = fst_error(FST_EFORMAT, "%s/generate: no stream of several events at context %lld",
                       http_url(j->b.t.http), (long long)n);
    if (rc == FST_OK) {
        p.cached = FST_MAX(read.cached_tokens, (int64_t)0);
        p.prefill_tok_s = (double)(n - p.cached) / answer_latency_s(&read);
        p.decode_tok_s = (double)tokens / ((double)ns * 1e-9);
        p.ttft_ms = 1e3 * answer_ttft_s(&gen);
        p.accept_length = bench_remote_accept_length(&before, &after);
        add_row(j, &p);
    }
    answer_release(&read);
    answer_release(&gen);
    return rc;
}

static enum fst_status walk(struct job *j)
{
    const struct options *o = j->b.o;
    int64_t start = options_int(o, "start", 1024), incr = options_int(o, "step-incr", 0);
    int64_t context = ask_server(j), most = options_int(o, "max", 0);
    double mul = options_float(o, "step-mul", 2);
    j->n_gen = options_int(o, "gen-tokens", 64);
    if (!most && !context)
        return fst_error(FST_EINVAL, "--max is needed: the server does not say how much it takes");
    most = most ? most : context - j->n_gen - 1;
    if (context && most + j->n_gen > context)
        return fst_error(FST_EINVAL,
                         "--max %lld with %lld generated tokens: the server takes %lld together",
                         (long long)most, (long long)j->n_gen, (long long)context);
    if (start > most)
        return fst_error(FST_EINVAL, "--start %lld is above the last context, %lld",
                         (long long)start, (long long)most);
    FST_TRY(read_text(j, (size_t)most));
    bench_remote_salt(j->salt);
    struct progress progress;
    progress_start(&progress, "contexts", PROGRESS_TOKENS, most);
    enum fst_status rc = FST_OK;
    for (int64_t n = start, was = 0; rc == FST_OK; was = n) {
        rc = one_context(j, n);
        progress_add(&progress, n - was);
        if (n == most)
            break;
        int64_t next = incr ? n + incr : FST_MAX((int64_t)((double)n * mul), n + 1);
        n = FST_MIN(next, most);
    }
    progress_end(&progress);
    return rc;
}

int bench_frontier(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Bench frontier", defs), bench_remote_group};
    int status;
    struct options *o = tool_parse("firesteel bench frontier", "[options]", groups,
                                   FST_COUNT(groups), argc, argv, &status);
    if (!o)
        return status;
    struct job j = {0};
    tool_catch_interrupt();
    enum fst_status rc = bench_remote_open(&j.b, o, NULL, true, argc, argv);
    if (rc == FST_OK)
        rc = walk(&j);
    if (rc == FST_OK && options_text(o, "csv"))
        rc = file_write(options_text(o, "csv"), buf_str(&j.csv), j.csv.len);
    buf_printf(&j.text, "on %s\ncommand: %s\n", j.b.card, buf_str(&j.b.command));
    status = rc < 0 ? tool_fail(rc) : bench_remote_finish(&j.b, &j.text);
    tokenizer_ids_release(&j.ids);
    buf_release(&j.text);
    buf_release(&j.csv);
    bench_remote_release(&j.b);
    options_free(o);
    return status;
}
