/* bench_serve.c - `bench serve`: SGLang's bench_serving against any server, with its flags, its rules for prompts,
 * its definitions of the figures and its output (src/client/report.h), once for each --max-concurrency. */
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "client/dataset.h"
#include "client/report.h"
#include "tools/bench_body.h"
#include "tools/bench_remote.h"

/* In the order of enum backend's words below. */
#define BACKENDS                                                                                   \
    "sglang native sglang-oai openai vllm sglang-oai-chat openai-chat vllm-chat llama-server"
static const struct {
    const char *name;
    enum answer_api api;
} backends[] = {{"sglang", ANSWER_GENERATE},        {"native", ANSWER_GENERATE},
                {"sglang-oai", ANSWER_COMPLETIONS}, {"openai", ANSWER_COMPLETIONS},
                {"vllm", ANSWER_COMPLETIONS},       {"sglang-oai-chat", ANSWER_CHAT},
                {"openai-chat", ANSWER_CHAT},       {"vllm-chat", ANSWER_CHAT},
                {"llama-server", ANSWER_CHAT}};
#define DATASETS "sharegpt random random-ids custom generated-shared-prefix"
static const char *const datasets[] = {"sharegpt", "random", "random-ids", "custom",
                                       "generated-shared-prefix"};

#define LENGTH .min = 1, .max = 1e7, .arg = "N"
static const struct option_def defs[] = {
    {.name = "backend",
     .type = OPTION_WORD,
     .initial = "sglang",
     .words = BACKENDS,
     .help = "sglang, native: /generate; sglang-oai, openai, vllm: /v1/completions; with -chat and "
             "llama-server: /v1/chat/completions"},
    {.name = "dataset-name",
     .alias = "dataset",
     .type = OPTION_WORD,
     .words = DATASETS,
     .help = "sharegpt and custom need --dataset-path; random without it takes the bundled prose. "
             "sharegpt with --dataset-path and random without it when not given"},
    {.name = "dataset-path",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help =
         "ShareGPT's JSON, or a line each {\"conversations\": [{\"value\"}, ...]} or {\"prompt\", "
         "\"output_len\"}"},
    {.name = "num-prompts",
     .alias = "num-prompt n",
     .type = OPTION_TEXT,
     .arg = "N",
     .initial = "1000",
     .help = "requests; 4c: four for each of --max-concurrency"},
    {.name = "random-input-len",
     .alias = "random-input",
     .type = OPTION_INT,
     .initial = "1024",
     LENGTH,
     .help = "prompt tokens"},
    {.name = "random-output-len",
     .alias = "random-output",
     .type = OPTION_INT,
     .initial = "1024",
     LENGTH,
     .help = "tokens to generate"},
    {.name = "random-range-ratio",
     .alias = "random-range",
     .type = OPTION_FLOAT,
     .initial = "0",
     .min = 0,
     .max = 1,
     .help = "lengths are drawn from this share of them on; 1: exact lengths, 0: from 1 on"},
    {.name = "sharegpt-output-len",
     .type = OPTION_INT,
     LENGTH,
     .help = "instead of the file's answers' lengths"},
    {.name = "sharegpt-context-len",
     .type = OPTION_INT,
     LENGTH,
     .help = "leave out conversations that are longer"},
    {.name = "gsp-num-groups",
     .type = OPTION_INT,
     .initial = "64",
     .min = 1,
     .max = 1e5,
     .help = "generated-shared-prefix: groups, each with a common beginning"},
    {.name = "gsp-prompts-per-group",
     .type = OPTION_INT,
     .initial = "16",
     .min = 1,
     .max = 1e5,
     .help = "prompts of a group; both together replace --num-prompts"},
    {.name = "gsp-system-prompt-len",
     .type = OPTION_INT,
     .initial = "2048",
     LENGTH,
     .help = "tokens of the common beginning"},
    {.name = "gsp-question-len",
     .type = OPTION_INT,
     .initial = "128",
     LENGTH,
     .help = "tokens behind it"},
    {.name = "gsp-output-len",
     .type = OPTION_INT,
     .initial = "256",
     LENGTH,
     .help = "tokens to generate"},
    {.name = "request-rate",
     .type = OPTION_TEXT,
     .initial = "inf",
     .arg = "R",
     .help = "requests per second, Poisson arrivals; inf: all at once"},
    {.name = "max-concurrency",
     .type = OPTION_TEXT,
     .arg = "N[,N...]",
     .help = "requests under way at once; a list: a run each; no limit when not given"},
    {.name = "seed",
     .type = OPTION_INT,
     .initial = "42",
     .min = 0,
     .max = 4294967295.0,
     .help = "of lengths, prompts and arrivals, as numpy and Python draw them"},
    {.name = "warmup-requests",
     .type = OPTION_TEXT,
     .arg = "N",
     .initial = "1",
     .help = "first prompt, 32 tokens at most, so often; 2c: twice for each of --max-concurrency"},
    {.name = "flush-cache", .type = OPTION_FLAG, .help = "POST /flush_cache before each run"},
    {.name = "cold",
     .type = OPTION_FLAG,
     .help = "a fresh cache_salt for each run: nothing that the server keeps from before is used"},
    {.name = "disable-ignore-eos", .type = OPTION_FLAG, .help = "replies may end by themselves"},
    {.name = "disable-stream", .type = OPTION_FLAG, .help = "one answer without a stream"},
    {.name = "tokenize-prompt",
     .type = OPTION_FLAG,
     .help = "send ids: the server sees exactly the lengths that were drawn (not with chat)"},
    {.name = "apply-chat-template",
     .type = OPTION_FLAG,
     .help = "prompts are rendered as a user's message (not with chat, which does so itself)"},
    {.name = "return-logprob", .type = OPTION_FLAG, .help = "of /generate"},
    {.name = "extra-request-body",
     .type = OPTION_TEXT,
     .arg = "JSON",
     .help = "an object whose members go into every request, over what would be there"},
    {.name = "timeout",
     .type = OPTION_FLOAT,
     .initial = "21600",
     .min = 0,
     .max = 1e7,
     .arg = "SECONDS",
     .help = "of one request; 0: none"},
    {.name = "output-file",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help =
         "one JSON line a run is appended; {backend}_{MMDD}_{N}_{in}_{out}.jsonl when not given, "
         "none: nowhere"},
    {.name = "output-details", .type = OPTION_FLAG, .help = "with lengths, times and texts of all"},
    {.name = "tag", .type = OPTION_TEXT, .arg = "TEXT", .help = "into that line"},
    {.name = "profile", .type = OPTION_FLAG, .help = "POST /start_profile before a run"},
    {.name = "profile-num-steps", .type = OPTION_INT, LENGTH, .help = "of --profile"},
    {.name = "compare",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "a file of --output-file: its last run with the same settings beside this one"},
    {.name = "against",
     .type = OPTION_WORD,
     .words = "published",
     .help = "what others published at this concurrency, with their hardware's name"},
};

enum { CAPS_MAX = 32 };

struct job {
    size_t cap[CAPS_MAX], n_caps; /* --max-concurrency */
    struct bench_remote b;
    const struct options *o;
    enum answer_api api;
    struct bench_body shape; /* of requests */
    struct mt19937 numpy, python;
    struct dataset d;
    struct json_doc *extra; /* NULL: none */
    struct json_doc **old;  /* owned: records of --compare, last first */
    size_t n_old;
    struct load_item *item; /* owned: (d.n) */
    struct buf *body;       /* owned: (d.n) */
    size_t n_items;
    char salt[40];
    struct report r;
    struct buf text, jsonl, info, command, file_name, extra_text;
};

/* "16" or "4c". */
static enum fst_status read_count(size_t *out, const char *flag, const char *text, size_t c)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    bool per = *end == 'c' && !end[1];
    if (end == text || (*end && !per) || n > 10000000 || text[0] == '-')
        return fst_error(FST_EINVAL, "--%s: expected a number, or one with c behind, got '%s'",
                         flag, text);
    if (per && !c)
        return fst_error(FST_EINVAL, "--%s %s needs --max-concurrency", flag, text);
    *out = per ? n * c : n;
    return FST_OK;
}

static enum fst_status read_rate(double *out, const char *text)
{
    char *end;
    double x = strtod(text, &end);
    if (!strcmp(text, "inf"))
        x = 0;
    else if (end == text || *end || !(x > 0) || x > 1e6)
        return fst_error(FST_EINVAL, "--request-rate: expected inf or a number above 0, got '%s'",
                         text);
    *out = x;
    return FST_OK;
}

static int dataset_of(const struct options *o)
{
    int named = options_word(o, "dataset-name");
    return named >= 0 ? named : options_text(o, "dataset-path") ? DATASET_SHAREGPT : DATASET_RANDOM;
}

/* ------------------------------------------------------------------ a run */

static struct load_opts load_opts(struct job *j, const char *what)
{
    return (struct load_opts){.api = j->api,
                              .path = load_path(j->api),
                              .key = j->b.t.key,
                              .streams = !options_flag(j->o, "disable-stream"),
                              .max_concurrency = j->r.max_concurrency,
                              .timeout_s = options_float(j->o, "timeout", 0),
                              .what = what,
                              .interrupted = bench_remote_interrupted};
}

static const struct answer *first_bad(const struct answer *rec, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!answer_ok(&rec[i]))
            return &rec[i];
    return NULL;
}

static const char *why(const struct answer *bad)
{
    return bad->error ? bad->error : "no memory";
}

static void release_records(struct answer *rec, size_t n)
{
    for (size_t i = 0; rec && i < n; i++)
        answer_release(&rec[i]);
    mem_free(rec);
}

/* Copies of the first prompt; all must come back. */
static enum fst_status warm_up(struct job *j, size_t n)
{
    enum { TOKENS_MAX = 32 };
    const struct dataset_row *row = &j->d.row[0];
    struct load_item *item = mem_calloc(n + 1, sizeof *item);
    struct answer *rec = mem_calloc(n + 1, sizeof *rec);
    struct load_opts o = load_opts(j, "warming up");
    int64_t tokens = FST_MIN(row->output_len, (int64_t)TOKENS_MAX);
    struct buf body = {0};
    char salt[40];
    double s;
    enum fst_status rc = item && rec ? FST_OK : fst_error(FST_ENOMEM, "no memory");

    bench_remote_salt(salt); /* what the warm-up computed is not for the run */
    bench_body_put(&body, &j->shape, row, tokens, j->r.cold ? salt : NULL);
    for (size_t i = 0; item && i < n; i++)
        item[i] = (struct load_item){buf_str(&body), body.len, row->prompt_len, tokens};
    if (rc == FST_OK && n)
        rc = load_run(j->b.t.http, &o, item, n, rec, &s, NULL);
    const struct answer *bad = rc == FST_OK ? first_bad(rec, n) : NULL;
    if (bad)
        rc = fst_error(answer_fault(bad), "%s%s: warm-up failed: %s", http_url(j->b.t.http), o.path,
                       why(bad));
    release_records(rec, n);
    mem_free(item);
    buf_release(&body);
    return rc;
}

static void release_items(struct job *j)
{
    for (size_t i = 0; j->body && i < j->n_items; i++)
        buf_release(&j->body[i]);
    mem_free(j->body);
    mem_free(j->item);
    j->body = NULL;
    j->item = NULL;
}

static enum fst_status make_items(struct job *j)
{
    release_items(j);
    j->item = mem_calloc(j->d.n + 1, sizeof *j->item);
    j->body = mem_calloc(j->d.n + 1, sizeof *j->body);
    j->n_items = j->d.n;
    bench_remote_salt(j->salt);
    for (size_t i = 0; j->item && j->body && i < j->d.n; i++) {
        const struct dataset_row *row = &j->d.row[i];
        struct buf *b = &j->body[i];
        bench_body_put(b, &j->shape, row, row->output_len, j->r.cold ? j->salt : NULL);
        if (b->failed)
            return fst_error(FST_ENOMEM, "no memory for the requests");
        j->item[i] = (struct load_item){buf_str(b), b->len, row->prompt_len, row->output_len};
    }
    return j->item && j->body ? FST_OK : fst_error(FST_ENOMEM, "no memory for the requests");
}

/* Prompts as the chat template renders a user's message. */
static enum fst_status render_prompts(struct job *j)
{
    struct chat_defaults d;
    chat_defaults_init(&d);
    for (size_t i = 0; i < j->d.n; i++) {
        struct dataset_row *row = &j->d.row[i];
        struct chat_request r;
        struct chat_prompt p = {0};
        chat_request_init(&r, &d);
        struct chat_message *m = chat_add_message(&r, CHAT_USER);
        if (m)
            chat_add_text(&r, m, row->text, row->text_len);
        enum fst_status rc = chat_render(&p, &r);
        mem_free(row->text);
        row->text_len = p.text.len;
        row->text = buf_detach(&p.text);
        row->ids.n = 0;
        if (rc == FST_OK && row->text)
            rc = tokenizer_encode_text(j->b.tok, row->text, row->text_len, true, &row->ids);
        row->prompt_len = (int64_t)row->ids.n;
        chat_prompt_release(&p);
        chat_request_release(&r);
        if (!row->text && rc == FST_OK)
            rc = fst_error(FST_ENOMEM, "no memory for the prompts");
        FST_TRY(rc);
    }
    return FST_OK;
}

static enum fst_status make_dataset(struct job *j)
{
    const struct options *o = j->o;
    struct dataset_opts d = {
        .kind = (enum dataset_kind)dataset_of(o),
        .path = options_text(o, "dataset-path"),
        .tok = j->b.tok,
        .n = j->r.n_prompts,
        .input_len = j->r.input_len,
        .output_len = j->r.output_len,
        .range_ratio = j->r.range_ratio,
        .sharegpt_output_len = j->r.sharegpt_output_len,
        .sharegpt_context_len = options_int(o, "sharegpt-context-len", 0),
        .n_groups = options_int(o, "gsp-num-groups", 64),
        .per_group = options_int(o, "gsp-prompts-per-group", 16),
        .prefix_len = options_int(o, "gsp-system-prompt-len", 2048),
        .question_len = options_int(o, "gsp-question-len", 128),
        .shared_output_len = options_int(o, "gsp-output-len", 256),
        .numpy = &j->numpy,
        .python = &j->python,
    };
    dataset_release(&j->d);
    numpy_seed(&j->numpy, (uint32_t)options_int(o, "seed", 42));
    python_seed(&j->python, (uint64_t)options_int(o, "seed", 42));
    FST_TRY(dataset_make(&j->d, &d));
    if (d.kind != DATASET_SHARED_PREFIX && j->d.n < j->r.n_prompts)
        fprintf(stderr, "firesteel: note: %s has %zu usable conversations, %zu were asked for\n",
                d.path, j->d.n, j->r.n_prompts);
    if (!j->d.n)
        return fst_error(FST_EINVAL, "--num-prompts: expected at least 1");
    j->r.n_prompts = j->d.n;
    return options_flag(o, "apply-chat-template") ? render_prompts(j) : FST_OK;
}

/* Ids of n spelled bytes of text; -1: they are no text. */
static int64_t count_tokens(struct job *j, const char *raw, size_t n)
{
    struct buf b = {0};
    struct tokenizer_ids ids = {0};
    int64_t count = -1;
    if (event_unescape(&b, raw, n) &&
        tokenizer_encode_text(j->b.tok, buf_str(&b), b.len, true, &ids) == FST_OK)
        count = (int64_t)ids.n;
    tokenizer_ids_release(&ids);
    buf_release(&b);
    return count;
}

/* Tokens of all texts.  Where drafting brings several in an event and the route does not say how many, its gap is
 * split by what its text is made of. */
static int64_t retokenize(struct job *j, struct answer *rec, size_t n)
{
    int64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        struct answer *r = &rec[i];
        if (!answer_ok(r))
            continue;
        int64_t all = count_tokens(j, buf_str(&r->text), r->text.len);
        total += FST_MAX(all, (int64_t)0);
        if (j->api == ANSWER_GENERATE || !(j->r.accept_length > 0))
            continue;
        uint32_t from = r->first_to;
        for (size_t k = 0; k < r->n_gaps; k++) {
            uint32_t to = r->gap[k].text_to;
            int64_t tokens = count_tokens(j, buf_str(&r->text) + from, to - from);
            r->gap[k].n_tokens = FST_MAX(tokens, (int64_t)1);
            from = to;
        }
    }
    return total;
}

static void fill_spec(struct job *j, const struct target_counts *a, const struct target_counts *z)
{
    struct json_doc *doc = NULL;
    double rounds = z->verify_steps - a->verify_steps;
    j->r.accept_length = j->r.window_accept_length = 0;
    j->r.n_positions = 0;
    if (json_parse(&doc, buf_str(&j->info), j->info.len) == FST_OK) {
        json_val *state = json_at(json_get(json_root(doc), "internal_states"), 0);
        if (!json_real(json_get(state, "avg_spec_accept_length"), &j->r.accept_length))
            j->r.accept_length = 0;
    }
    json_free(doc);
    if (!a->has_spec || !z->has_spec || rounds <= 0)
        return;
    j->r.window_accept_length = (z->accepted - a->accepted + rounds) / rounds;
    j->r.n_positions = z->n_positions;
    for (int i = 0; i < z->n_positions; i++)
        j->r.accepted_by_position[i] = (z->by_position[i] - a->by_position[i]) / rounds;
}

static void fill_checks(struct job *j, const struct target_counts *a, const struct target_counts *z)
{
    const struct figures *f = &j->r.f;
    double n = z->ttft_count - a->ttft_count;
    j->r.check[0] = (struct report_check){"completion tokens", (double)f->output_tokens,
                                          z->generation_tokens - a->generation_tokens, 0,
                                          a->has_tokens && z->has_tokens};
    j->r.check[1] =
        (struct report_check){"requests", (double)(f->completed + f->failed),
                              z->requests - a->requests, 0, a->has_requests && z->has_requests};
    /* Loopback, parsing and a turn of either loop lie between the two clocks: 2 ms. */
    j->r.check[2] = (struct report_check){"mean TTFT (s)", f->ttft_s.mean,
                                          n > 0 ? (z->ttft_sum_s - a->ttft_sum_s) / n : 0, 0.002,
                                          a->has_ttft && z->has_ttft && n > 0};
}

static void fetch_info(struct job *j)
{
    int status;
    buf_reset(&j->info);
    if (http_fetch(j->b.t.http, "/server_info", j->b.t.key, NULL, 10000, &status, &j->info) < 0 ||
        status != 200)
        buf_reset(&j->info);
    struct json_doc *doc = NULL;
    if (j->info.len && json_parse(&doc, buf_str(&j->info), j->info.len) < 0)
        buf_reset(&j->info);
    json_free(doc);
    j->r.server_info = j->info.len ? buf_str(&j->info) : NULL;
}

static enum fst_status before_run(struct job *j)
{
    char body[64] = "{}";
    int64_t steps = options_int(j->o, "profile-num-steps", 0);
    if (j->r.flushed)
        FST_TRY(target_post(&j->b.t, "/flush_cache", "{}"));
    for (int i = 0; i < 10 && !bench_remote_interrupted(); i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* the protocol's second */
    if (steps)
        snprintf(body, sizeof body, "{\"num_steps\":%lld}", (long long)steps);
    return options_flag(j->o, "profile") ? target_post(&j->b.t, "/start_profile", body) : FST_OK;
}

static enum fst_status measure(struct job *j, struct answer *rec)
{
    char what[48] = "serving";
    struct target_counts before, after;
    struct load_cost cost;
    double s;
    if (j->r.max_concurrency)
        snprintf(what, sizeof what, "serving c=%zu", j->r.max_concurrency);
    struct load_opts o = load_opts(j, what);
    o.rate = j->r.request_rate;
    o.random = &j->numpy;
    target_count(&j->b.t, &before);
    FST_TRY(load_run(j->b.t.http, &o, j->item, j->d.n, rec, &s, &cost));
    target_count(&j->b.t, &after);
    fetch_info(j);
    if (options_flag(j->o, "profile") && !options_is_given(j->o, "profile-num-steps"))
        FST_TRY(target_post(&j->b.t, "/stop_profile", "{}"));
    fill_spec(j, &before, &after);
    int64_t again = retokenize(j, rec, j->d.n);
    FST_TRY(figures_compute(&j->r.f, rec, j->d.n, s));
    j->r.f.retokenized = again;
    j->r.client_cpu_share = cost.wall_s > 0 ? cost.cpu_s / cost.wall_s : 0;
    fill_checks(j, &before, &after);
    const struct answer *bad = first_bad(rec, j->d.n);
    if (bad && !j->r.f.completed)
        return fst_error(answer_fault(bad), "all %zu requests failed; the first: %s", j->d.n,
                         why(bad));
    if (bad)
        fprintf(stderr, "firesteel: %zu requests failed; the first: %.400s\n", j->r.f.failed,
                why(bad));
    return FST_OK;
}

/* Records of --compare, the last first. */
static enum fst_status read_old(struct job *j)
{
    const char *path = options_text(j->o, "compare");
    struct buf b = {0};
    if (!path)
        return FST_OK;
    enum fst_status rc = file_read(&b, path, 0);
    for (size_t end = b.len; rc == FST_OK && end > 0;) {
        size_t at = end;
        while (at > 0 && b.data[at - 1] != '\n')
            at--;
        if (end > at) {
            struct json_doc **more = mem_realloc(j->old, (j->n_old + 1) * sizeof *more);
            if (!more) {
                rc = fst_error(FST_ENOMEM, "no memory");
                break;
            }
            j->old = more;
            rc = json_parse(&j->old[j->n_old], b.data + at, end - at);
            j->n_old += rc == FST_OK;
        }
        end = at ? at - 1 : 0;
    }
    buf_release(&b);
    return rc;
}

static enum fst_status write_line(struct job *j, const struct answer *rec)
{
    const char *path = options_text(j->o, "output-file");
    struct buf *line = &j->jsonl;
    time_t now = time(NULL);
    struct tm tm;
    buf_reset(line);
    report_put_json(line, &j->r, options_flag(j->o, "output-details") ? rec : NULL, j->d.n);
    buf_putc(line, '\n');
    if (line->failed)
        return fst_error(FST_ENOMEM, "no memory for the result");
    if (path && !strcmp(path, "none"))
        return FST_OK;
    if (!path) {
        localtime_r(&now, &tm);
        buf_reset(&j->file_name);
        buf_printf(&j->file_name, "%s_%02d%02d_%zu_%lld_%lld.jsonl", j->r.backend, tm.tm_mon + 1,
                   tm.tm_mday, j->r.n_prompts, (long long)j->r.input_len,
                   (long long)j->r.output_len);
        path = buf_str(&j->file_name);
    }
    FILE *f = fopen(path, "ae");
    bool ok = f && fwrite(buf_str(line), 1, line->len, f) == line->len;
    ok = f && fclose(f) == 0 && ok;
    return ok ? FST_OK : fst_error(FST_EIO, "%s: cannot be written", path);
}

/* A row of the result file: the record without what a server says of itself. */
static void add_row(struct job *j)
{
    struct buf row = {0};
    const char *info = j->r.server_info;
    j->r.server_info = NULL;
    report_put_json(&row, &j->r, NULL, 0);
    j->r.server_info = info;
    if (row.failed) {
        j->b.rows.failed = true; /* said when they are written */
    } else {
        row.data[row.len - 1] = 0; /* its brace */
        bench_remote_row(&j->b, "serve", row.data + 1);
    }
    buf_release(&row);
}

/* One --max-concurrency; 0: no limit. */
static enum fst_status one_run(struct job *j, size_t c, int argc, char **argv)
{
    size_t n_warm;
    json_val *old = NULL;
    j->r.max_concurrency = c;
    FST_TRY(read_count(&j->r.n_prompts, "num-prompts", options_text(j->o, "num-prompts"), c));
    FST_TRY(read_count(&n_warm, "warmup-requests", options_text(j->o, "warmup-requests"), c));
    j->r.n_warmup = n_warm;
    buf_reset(&j->command);
    buf_puts(&j->command, "firesteel bench");
    struct buf rest = {0};
    bench_file_command(&rest, argc, argv, " max-concurrency compare out svg output-file tag ");
    buf_puts(&j->command, buf_str(&rest) + strlen("firesteel"));
    buf_release(&rest);
    if (c)
        buf_printf(&j->command, " --max-concurrency %zu", c);
    j->r.command = buf_str(&j->command);
    FST_TRY(make_dataset(j));
    if (j->n_old || options_text(j->o, "compare"))
        FST_TRY(report_find(&old, &j->r, j->old, j->n_old, options_text(j->o, "compare")));
    FST_TRY(make_items(j));
    FST_TRY(warm_up(j, n_warm));
    FST_TRY(before_run(j));
    struct answer *rec = mem_calloc(j->d.n + 1, sizeof *rec);
    enum fst_status rc = rec ? measure(j, rec) : fst_error(FST_ENOMEM, "no memory");
    if (rc == FST_OK) {
        report_print(&j->text, &j->r);
        report_print_more(&j->text, &j->r);
        if (old)
            report_compare(&j->text, &j->r, old);
        if (options_is_given(j->o, "against"))
            rc = report_against_published(&j->text, &j->r, "serve");
        buf_putc(&j->text, '\n');
        add_row(j);
        if (!options_flag(j->o, "json")) { /* each run as it ends */
            fwrite(buf_str(&j->text), 1, j->text.len, stdout);
            fflush(stdout);
        }
        buf_reset(&j->text);
    }
    if (rc == FST_OK)
        rc = write_line(j, rec);
    release_records(rec, j->d.n);
    return rc;
}

/* ------------------------------------------------------------------ options */

static enum fst_status read_extra(struct job *j)
{
    const char *text = options_text(j->o, "extra-request-body");
    char why[300];
    if (!text)
        return FST_OK;
    enum fst_status rc = json_parse(&j->extra, text, strlen(text));
    snprintf(why, sizeof why, "%s", rc < 0 ? fst_error_text() : "expected an object");
    if (rc < 0 || json_type_of(json_root(j->extra)) != JSON_OBJECT)
        return fst_error(FST_EINVAL, "--extra-request-body: %s", why);
    json_put(&j->extra_text, json_root(j->extra), JSON_COMPACT);
    j->r.extra_body = buf_str(&j->extra_text);
    return FST_OK;
}

static const char *thinking_of(const struct job *j)
{
    static const char *const names[] = {"thinking", "enable_thinking"};
    json_val *extra = target_root(j->extra), *kw = json_get(extra, "chat_template_kwargs");
    if (j->api != ANSWER_CHAT)
        return "no chat";
    for (size_t i = 0; i < FST_COUNT(names); i++) {
        json_val *v = json_get(kw, names[i]);
        v = v ? v : json_get(extra, names[i]);
        const char *type = json_string(json_get(v, "type"), NULL);
        if (type)
            return strcmp(type, "disabled") ? "on" : "off";
        if (json_type_of(v) == JSON_TRUE || json_type_of(v) == JSON_FALSE)
            return json_bool(v, false) ? "on" : "off";
    }
    return "as the server likes";
}

/* --max-concurrency; one 0 without it. */
static enum fst_status read_caps(struct job *j)
{
    const char *text = options_text(j->o, "max-concurrency"), *p = text;
    j->n_caps = !text;
    while (p) {
        char *end;
        unsigned long c = strtoul(p, &end, 10);
        if (*p < '0' || *p > '9' || (*end && *end != ',') || !c || c > 100000 ||
            j->n_caps == CAPS_MAX)
            return fst_error(FST_EINVAL,
                             "--max-concurrency: expected up to %d numbers from 1 to 100000 with "
                             "commas between, got '%s'",
                             CAPS_MAX, text);
        j->cap[j->n_caps++] = c;
        p = *end ? end + 1 : NULL;
    }
    return FST_OK;
}

/* What is wrong is said before a server is asked. */
static enum fst_status check_options(struct job *j)
{
    bool chat = j->api == ANSWER_CHAT;
    static const char *const not_chat[] = {"tokenize-prompt", "apply-chat-template"};
    for (size_t i = 0; i < FST_COUNT(not_chat); i++)
        if (chat && options_flag(j->o, not_chat[i]))
            return fst_error(FST_EINVAL,
                             "--%s does not go with the chat route, which takes messages",
                             not_chat[i]);
    if (options_flag(j->o, "return-logprob") && j->api != ANSWER_GENERATE)
        return fst_error(FST_EINVAL, "--return-logprob goes with --backend sglang");
    FST_TRY(read_rate(&j->r.request_rate, options_text(j->o, "request-rate")));
    FST_TRY(read_caps(j));
    for (size_t i = 0, n; i < j->n_caps; i++) {
        FST_TRY(read_count(&n, "num-prompts", options_text(j->o, "num-prompts"), j->cap[i]));
        FST_TRY(
            read_count(&n, "warmup-requests", options_text(j->o, "warmup-requests"), j->cap[i]));
    }
    if (dataset_of(j->o) != DATASET_RANDOM && dataset_of(j->o) != DATASET_RANDOM_IDS &&
        dataset_of(j->o) != DATASET_SHARED_PREFIX && !options_text(j->o, "dataset-path"))
        return fst_error(FST_EINVAL, "--dataset-name %s needs --dataset-path FILE",
                         datasets[dataset_of(j->o)]);
    return read_extra(j);
}

static void fill_report(struct job *j)
{
    const struct options *o = j->o;
    j->r.tag = options_text(o, "tag");
    j->r.backend = backends[options_word(o, "backend")].name;
    j->r.dataset = datasets[dataset_of(o)];
    j->r.sharegpt_output_len = options_int(o, "sharegpt-output-len", 0);
    j->r.input_len = options_int(o, "random-input-len", 1024);
    j->r.output_len = options_int(o, "random-output-len", 1024);
    j->r.range_ratio = options_float(o, "random-range-ratio", 0);
    j->r.cold = options_flag(o, "cold");
    j->r.flushed = options_flag(o, "flush-cache");
    j->r.streams = !options_flag(o, "disable-stream");
    j->r.thinking = thinking_of(j);
}

static enum fst_status all_runs(struct job *j, int argc, char **argv)
{
    FST_TRY(read_old(j));
    for (size_t i = 0; i < j->n_caps; i++)
        FST_TRY(one_run(j, j->cap[i], argc, argv));
    return FST_OK;
}

static void job_release(struct job *j)
{
    release_items(j);
    dataset_release(&j->d);
    json_free(j->extra);
    for (size_t i = 0; i < j->n_old; i++)
        json_free(j->old[i]);
    mem_free(j->old);
    buf_release(&j->text);
    buf_release(&j->jsonl);
    buf_release(&j->info);
    buf_release(&j->command);
    buf_release(&j->file_name);
    buf_release(&j->extra_text);
    bench_remote_release(&j->b);
}

int bench_serve(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Bench serve", defs), bench_remote_group};
    int status;
    struct options *o = tool_parse("firesteel bench serve", "[options]", groups, FST_COUNT(groups),
                                   argc, argv, &status);
    if (!o)
        return status;
    struct job j = {.o = o, .api = backends[options_word(o, "backend")].api};
    tool_catch_interrupt();
    enum fst_status rc = check_options(&j);
    if (rc == FST_OK) {
        fill_report(&j);
        rc = bench_remote_open(&j.b, o, NULL, true, argc, argv);
    }
    if (rc == FST_OK) {
        j.shape = (struct bench_body){.api = j.api,
                                      .model = j.b.model,
                                      .extra = target_root(j.extra),
                                      .ids = options_flag(o, "tokenize-prompt"),
                                      .streams = j.r.streams,
                                      .ignore_eos = !options_flag(o, "disable-ignore-eos"),
                                      .logprobs = options_flag(o, "return-logprob")};
        j.r.base_url = http_url(j.b.t.http);
        j.r.model = j.b.model;
        j.r.simulated = j.b.simulated;
        rc = all_runs(&j, argc, argv);
    }
    /* A run that failed or was interrupted leaves those before it. */
    if (rc < 0)
        status = tool_fail(rc);
    if (rc == FST_OK || j.b.rows.len) {
        int written = bench_remote_finish(&j.b, &j.text);
        status = rc < 0 ? status : written;
    }
    job_release(&j);
    options_free(o);
    return status;
}
