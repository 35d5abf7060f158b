#include "client/report.h"

#include <math.h>

#include "client/data.h"

enum { WIDTH = 50 };

static void centred(struct buf *b, const char *title, char fill)
{
    int n = (int)strlen(title), left = (WIDTH - n) / 2;
    for (int i = 0; i < left; i++)
        buf_putc(b, fill);
    buf_puts(b, title);
    for (int i = left + n; i < WIDTH; i++)
        buf_putc(b, fill);
    buf_putc(b, '\n');
}

static void row_text(struct buf *b, const char *name, const char *value)
{
    buf_printf(b, "%-40s %-10s\n", name, value);
}

static void row_count(struct buf *b, const char *name, int64_t n)
{
    buf_printf(b, "%-40s %-10lld\n", name, (long long)n);
}

static void row(struct buf *b, const char *name, double x)
{
    buf_printf(b, "%-40s %-10.2f\n", name, x);
}

/* "inf", or the number as Python writes it. */
static void put_rate(struct buf *b, double rate)
{
    if (rate > 0)
        json_put_double(b, rate);
    else
        buf_puts(b, "inf");
}

static void section(struct buf *b, const char *title, const char *what, const struct spread *s,
                    bool with_max)
{
    static const char *const name[] = {"Mean", "Median", "P90", "P95", "P99", "Max"};
    const double x[] = {s->mean, s->median, s->p90, s->p95, s->p99, s->max};
    char label[64];
    centred(b, title, '-');
    for (size_t i = 0; i < FST_COUNT(name) - !with_max; i++) {
        snprintf(label, sizeof label, "%s %s (ms):", name[i], what);
        row(b, label, 1e3 * x[i]);
    }
}

void report_print(struct buf *b, const struct report *r)
{
    const struct figures *f = &r->f;
    struct buf rate = {0};
    char cap[24] = "not set";

    if (r->max_concurrency)
        snprintf(cap, sizeof cap, "%zu", r->max_concurrency);
    put_rate(&rate, r->request_rate);
    centred(b, " Serving Benchmark Result ", '=');
    row_text(b, "Backend:", r->backend);
    row_text(b, "Traffic request rate:", buf_str(&rate));
    row_text(b, "Max request concurrency:", cap);
    row_count(b, "Successful requests:", (int64_t)f->completed);
    row(b, "Benchmark duration (s):", f->duration_s);
    row_count(b, "Total input tokens:", f->input_tokens);
    row_count(b, "Total input text tokens:", f->input_tokens);
    row_count(b, "Total generated tokens:", f->output_tokens);
    if (f->retokenized >= 0)
        row_count(b, "Total generated tokens (retokenized):", f->retokenized);
    row(b, "Request throughput (req/s):", f->request_s);
    row(b, "Input token throughput (tok/s):", f->input_s);
    row(b, "Output token throughput (tok/s):", f->output_s);
    row(b, "Peak output token throughput (tok/s):", f->peak_output_s);
    row_count(b, "Peak concurrent requests:", f->peak_requests);
    row(b, "Total token throughput (tok/s):", f->total_s);
    row(b, "Concurrency:", f->concurrency);
    if (r->accept_length > 0)
        row(b, "Accept length:", r->accept_length);
    section(b, "End-to-End Latency", "E2E Latency", &f->e2e_s, false);
    section(b, "Time to First Token", "TTFT", &f->ttft_s, false);
    section(b, "Time per Output Token (excl. 1st token)", "TPOT", &f->tpot_s, false);
    section(b, "Inter-Token Latency", "ITL", &f->itl_s, true);
    for (int i = 0; i < WIDTH; i++)
        buf_putc(b, '=');
    buf_putc(b, '\n');
    buf_release(&rate);
}

bool report_check_ok(const struct report_check *c)
{
    return !c->known || fabs(c->ours - c->theirs) <= c->within;
}

void report_print_more(struct buf *b, const struct report *r)
{
    const struct figures *f = &r->f;
    if (r->simulated)
        buf_puts(b, "SIMULATED ACCEPTANCE: text is garbage, and the speed is not the model's\n");
    if (r->window_accept_length > 0)
        buf_printf(b, "accept length of this run: %.3f\n", r->window_accept_length);
    if (f->cached_tokens >= 0 && f->prompt_tokens > 0)
        buf_printf(b, "prompt tokens from a cache: %lld of %lld (%.1f %%)\n",
                   (long long)f->cached_tokens, (long long)f->prompt_tokens,
                   100 * (double)f->cached_tokens / (double)f->prompt_tokens);
    if (f->thought_s.n)
        buf_printf(b, "thinking %s; first byte, thought, text after %.2f, %.2f, %.2f ms (mean)\n",
                   r->thinking, 1e3 * f->head_s.mean, 1e3 * f->thought_s.mean,
                   1e3 * f->text_s.mean);
    if (f->failed)
        buf_printf(b, "failed requests: %zu\n", f->failed);
    for (int i = 0; i < REPORT_CHECKS && r->check[i].name; i++) {
        const struct report_check *c = &r->check[i];
        if (!c->known)
            buf_printf(b, "check %s: %.6g here, the server does not say\n", c->name, c->ours);
        else
            buf_printf(b, "check %s: %.6g here, %.6g by the server: %s\n", c->name, c->ours,
                       c->theirs, report_check_ok(c) ? "equal" : "DIFFERENT");
    }
    buf_printf(b, "client: %.1f %% of a core, %.0f events/s\n", 100 * r->client_cpu_share,
               f->duration_s > 0 ? (double)f->n_events / f->duration_s : 0.0);
    buf_printf(b, "command: %s\n", r->command);
}

/* ------------------------------------------------------------------ JSON */

static void key(struct buf *b, const char *name)
{
    if (b->len && b->data[b->len - 1] != '{')
        buf_putc(b, ',');
    json_put_string(b, name, strlen(name));
    buf_putc(b, ':');
}

static void put_text(struct buf *b, const char *name, const char *v)
{
    key(b, name);
    if (v)
        json_put_string(b, v, strlen(v));
    else
        buf_puts(b, "null");
}

static void put(struct buf *b, const char *name, double x)
{
    key(b, name);
    json_put_double(b, x);
}

static void put_int(struct buf *b, const char *name, int64_t n)
{
    key(b, name);
    buf_printf(b, "%lld", (long long)n);
}

/* Not known, or not set, is null. */
static void put_int_or_null(struct buf *b, const char *name, int64_t n, bool known)
{
    key(b, name);
    if (known)
        buf_printf(b, "%lld", (long long)n);
    else
        buf_puts(b, "null");
}

static void put_flag(struct buf *b, const char *name, bool yes)
{
    key(b, name);
    buf_puts(b, yes ? "true" : "false");
}

static void put_raw(struct buf *b, const char *name, const char *json)
{
    key(b, name);
    buf_puts(b, json ? json : "null");
}

static void put_spread(struct buf *b, const char *what, const struct spread *s, bool with_max)
{
    static const char *const name[] = {"mean", "median", "std", "p90", "p95", "p99", "max"};
    const double x[] = {s->mean, s->median, s->std, s->p90, s->p95, s->p99, s->max};
    char label[64];
    for (size_t i = 0; i < FST_COUNT(name) - !with_max; i++) {
        snprintf(label, sizeof label, "%s_%s_ms", name[i], what);
        put(b, label, 1e3 * x[i]);
    }
}

/* What two runs must have in common to be compared. */
static void put_settings(struct buf *b, const struct report *r)
{
    put_text(b, "backend", r->backend);
    put_text(b, "dataset_name", r->dataset);
    struct buf rate = {0};
    put_rate(&rate, r->request_rate);
    if (r->request_rate > 0)
        put(b, "request_rate", r->request_rate);
    else
        put_text(b, "request_rate", "inf");
    buf_release(&rate);
    put_int_or_null(b, "max_concurrency", (int64_t)r->max_concurrency, r->max_concurrency);
    put_int_or_null(b, "sharegpt_output_len", r->sharegpt_output_len, r->sharegpt_output_len);
    put_int(b, "random_input_len", r->input_len);
    put_int(b, "random_output_len", r->output_len);
    put(b, "random_range_ratio", r->range_ratio);
    put_int(b, "num_prompts", (int64_t)r->n_prompts);
    put_flag(b, "stream", r->streams);
    put_flag(b, "cold", r->cold);
    put_flag(b, "flush_cache", r->flushed);
    put_text(b, "thinking", r->thinking);
    put_raw(b, "extra_request_body", r->extra_body);
}

static void put_figures(struct buf *b, const struct report *r)
{
    const struct figures *f = &r->f;
    put(b, "duration", f->duration_s);
    put_int(b, "completed", (int64_t)f->completed);
    put_int(b, "failed", (int64_t)f->failed);
    put_int(b, "total_input_tokens", f->input_tokens);
    put_int(b, "total_input_text_tokens", f->input_tokens);
    put_int(b, "total_output_tokens", f->output_tokens);
    put_int_or_null(b, "total_output_tokens_retokenized", f->retokenized, f->retokenized >= 0);
    put(b, "request_throughput", f->request_s);
    put(b, "input_throughput", f->input_s);
    put(b, "output_throughput", f->output_s);
    put(b, "total_throughput", f->total_s);
    put_spread(b, "e2e_latency", &f->e2e_s, false);
    put_spread(b, "ttft", &f->ttft_s, false);
    put_spread(b, "tpot", &f->tpot_s, false);
    put_spread(b, "itl", &f->itl_s, true);
    put(b, "concurrency", f->concurrency);
    key(b, "accept_length");
    if (r->accept_length > 0)
        json_put_double(b, r->accept_length);
    else
        buf_puts(b, "null");
    put(b, "max_output_tokens_per_s", f->peak_output_s);
    put_int(b, "max_concurrent_requests", f->peak_requests);
}

static void put_more(struct buf *b, const struct report *r)
{
    const struct figures *f = &r->f;
    put_int_or_null(b, "prompt_tokens", f->prompt_tokens, f->prompt_tokens >= 0);
    put_int_or_null(b, "cached_tokens", f->cached_tokens, f->cached_tokens >= 0);
    key(b, "window_accept_length");
    if (r->window_accept_length > 0)
        json_put_double(b, r->window_accept_length);
    else
        buf_puts(b, "null");
    key(b, "accepted_by_position");
    buf_putc(b, '[');
    for (int i = 0; i < r->n_positions; i++) {
        buf_puts(b, i ? "," : "");
        json_put_double(b, r->accepted_by_position[i]);
    }
    buf_putc(b, ']');
    put_flag(b, "simulated_acceptance", r->simulated);
    put(b, "mean_first_byte_ms", 1e3 * f->head_s.mean);
    put(b, "mean_first_reasoning_ms", 1e3 * f->thought_s.mean);
    put(b, "mean_first_content_ms", 1e3 * f->text_s.mean);
    key(b, "checks");
    buf_putc(b, '{');
    for (int i = 0; i < REPORT_CHECKS && r->check[i].name; i++) {
        const struct report_check *c = &r->check[i];
        key(b, c->name);
        buf_puts(b, "{\"client\":");
        json_put_double(b, c->ours);
        buf_puts(b, ",\"server\":");
        if (c->known)
            json_put_double(b, c->theirs);
        else
            buf_puts(b, "null");
        buf_printf(b, ",\"ok\":%s}", !c->known ? "null" : report_check_ok(c) ? "true" : "false");
    }
    buf_putc(b, '}');
    put(b, "client_cpu_share", r->client_cpu_share);
    put(b, "client_events_per_s", f->duration_s > 0 ? (double)f->n_events / f->duration_s : 0);
    put_text(b, "client", "firesteel " FST_VERSION);
    put_text(b, "base_url", r->base_url);
    put_text(b, "model", r->model);
    put_int(b, "warmup_requests", (int64_t)r->n_warmup);
    put_text(b, "command", r->command);
}

static void put_list(struct buf *b, const char *name, const struct answer *rec, size_t n,
                     void (*one)(struct buf *b, const struct answer *r))
{
    key(b, name);
    buf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        buf_puts(b, i ? "," : "");
        one(b, &rec[i]);
    }
    buf_putc(b, ']');
}

static void one_input(struct buf *b, const struct answer *r)
{
    buf_printf(b, "%lld", (long long)r->prompt_len);
}

static void one_output(struct buf *b, const struct answer *r)
{
    buf_printf(b, "%lld", answer_ok(r) ? (long long)answer_output_len(r) : 0);
}

static void one_ttft(struct buf *b, const struct answer *r)
{
    json_put_double(b, answer_ok(r) ? answer_ttft_s(r) : 0);
}

static void one_itl(struct buf *b, const struct answer *r)
{
    buf_putc(b, '[');
    for (size_t k = 0, all = 0; answer_ok(r) && k < r->n_gaps; k++)
        for (int64_t j = 0; j < r->gap[k].n_tokens; j++) {
            buf_puts(b, all++ ? "," : "");
            json_put_double(b, r->gap[k].s / (double)r->gap[k].n_tokens);
        }
    buf_putc(b, ']');
}

static void one_text(struct buf *b, const struct answer *r)
{
    buf_putc(b, '"');
    buf_append(b, buf_str(&r->text), r->text.len); /* as spelled in the events */
    buf_putc(b, '"');
}

static void one_error(struct buf *b, const struct answer *r)
{
    const char *why = r->failed && r->error ? r->error : "";
    json_put_string(b, why, strlen(why));
}

void report_put_json(struct buf *b, const struct report *r, const struct answer *rec, size_t n)
{
    buf_putc(b, '{');
    put_text(b, "tag", r->tag);
    put_settings(b, r);
    put_raw(b, "server_info", r->server_info);
    put_figures(b, r);
    put_more(b, r);
    if (rec) {
        put_list(b, "input_lens", rec, n, one_input);
        put_list(b, "output_lens", rec, n, one_output);
        put_list(b, "ttfts", rec, n, one_ttft);
        put_list(b, "itls", rec, n, one_itl);
        put_list(b, "generated_texts", rec, n, one_text);
        put_list(b, "errors", rec, n, one_error);
    }
    buf_putc(b, '}');
}

/* ------------------------------------------------------------------ comparing */

/* The first setting in which old differs from r; false: none does. */
static bool differs(const struct report *r, json_val *old, char *what, size_t size)
{
    struct buf b = {0}, was = {0}, is = {0};
    struct json_doc *doc = NULL;
    const char *name;
    bool yes = false;
    buf_putc(&b, '{');
    put_settings(&b, r);
    buf_putc(&b, '}');
    if (json_parse(&doc, buf_str(&b), b.len) == FST_OK)
        for (size_t i = 0; !yes && i < json_count(json_root(doc)); i++) {
            json_val *v = json_member(json_root(doc), i, &name, NULL);
            json_val *o = json_get(old, name);
            yes = json_is_null(v) != json_is_null(o) || (!json_is_null(v) && !json_same(v, o));
            if (!yes)
                continue;
            json_put(&is, v, JSON_COMPACT);
            if (o)
                json_put(&was, o, JSON_COMPACT);
            snprintf(what, size, "%s was %.80s and is %.80s", name, o ? buf_str(&was) : "not said",
                     buf_str(&is));
        }
    json_free(doc);
    buf_release(&b);
    buf_release(&was);
    buf_release(&is);
    return yes;
}

enum fst_status report_find(json_val **out, const struct report *r, struct json_doc *const *docs,
                            size_t n, const char *path)
{
    char what[256] = "the file has no record";
    *out = NULL;
    for (size_t i = 0; i < n && !*out; i++)
        if (!differs(r, json_root(docs[i]), what, sizeof what))
            *out = json_root(docs[i]);
    return *out ? FST_OK
                : fst_error(FST_EINVAL, "--compare %s: no run with these settings: %s", path, what);
}

static const struct {
    const char *key, *label;
    bool more_is_better;
} compared[] = {
    {"request_throughput", "Request throughput (req/s)", true},
    {"output_throughput", "Output token throughput (tok/s)", true},
    {"total_throughput", "Total token throughput (tok/s)", true},
    {"mean_e2e_latency_ms", "Mean E2E Latency (ms)", false},
    {"p99_e2e_latency_ms", "P99 E2E Latency (ms)", false},
    {"mean_ttft_ms", "Mean TTFT (ms)", false},
    {"p99_ttft_ms", "P99 TTFT (ms)", false},
    {"mean_tpot_ms", "Mean TPOT (ms)", false},
    {"mean_itl_ms", "Mean ITL (ms)", false},
    {"p99_itl_ms", "P99 ITL (ms)", false},
    {"window_accept_length", "Accept length of the run", true},
};

/* r as JSON, to look figures up by name. */
static struct json_doc *as_doc(const struct report *r)
{
    struct buf b = {0};
    struct json_doc *doc = NULL;
    struct report own = *r;
    own.accept_length = r->window_accept_length; /* of this run, not of the server's life */
    report_put_json(&b, &own, NULL, 0);
    if (b.failed || json_parse(&doc, buf_str(&b), b.len) < 0)
        doc = NULL;
    buf_release(&b);
    return doc;
}

void report_compare(struct buf *b, const struct report *r, json_val *old)
{
    struct json_doc *doc = as_doc(r);
    double was, is;
    buf_printf(b, "%-34s %12s %12s %10s\n", "", "before", "now", "change");
    for (size_t i = 0; doc && i < FST_COUNT(compared); i++) {
        if (!json_real(json_get(old, compared[i].key), &was) ||
            !json_real(json_get(json_root(doc), compared[i].key), &is))
            continue;
        double change = was > 0 ? 100 * (is / was - 1) : 0;
        const char *word = fabs(change) < 0.05                          ? ""
                           : (change > 0) == compared[i].more_is_better ? "  better"
                                                                        : "  worse";
        buf_printf(b, "%-34s %12.2f %12.2f %+9.1f%%%s\n", compared[i].label, was, is, change, word);
    }
    json_free(doc);
}

/* ------------------------------------------------------------------ published runs */

enum { COLUMNS_MAX = 12 };

/* Figures that published rows have, and their heads. */
static const struct {
    const char *key, *label;
} columns[] = {{"total_throughput", "total tok/s"}, {"output_throughput", "output tok/s"},
               {"mean_ttft_ms", "TTFT ms"},         {"mean_tpot_ms", "TPOT ms"},
               {"mean_itl_ms", "ITL ms"},           {"accept_length", "accept length"}};

/* A table being printed: its columns, the rows that stand beside this run, their labels. */
struct sheet {
    const char *key[COLUMNS_MAX], *label[COLUMNS_MAX];
    size_t n_columns;
    int width; /* of the labels */
};

static const char *text_of(json_val *o, const char *key_)
{
    const char *s = json_string(json_get(o, key_), NULL);
    return s ? s : "";
}

/* What tells the rows of a table from each other. */
static void put_label(struct buf *b, json_val *row_)
{
    static const struct {
        const char *key, *before;
    } words[] = {{"model", ""},   {"hardware", ""}, {"layout", ""},
                 {"kv", "KV "},   {"drafting", ""}, {"monokernels", "monokernels "},
                 {"dataset", ""}, {"by", ""}};
    size_t from = b->len;
    for (size_t i = 0; i < FST_COUNT(words); i++) {
        const char *v = text_of(row_, words[i].key);
        if (*v)
            buf_printf(b, "%s%s%s", b->len > from ? ", " : "", words[i].before, v);
    }
}

static void put_line(struct buf *b, const struct sheet *s, const char *label, json_val *row_)
{
    double x;
    buf_printf(b, "  %-*s", s->width, label);
    for (size_t i = 0; i < s->n_columns; i++) {
        int w = FST_MAX((int)strlen(s->label[i]), 8);
        if (json_real(json_get(row_, s->key[i]), &x))
            buf_printf(b, "  %*.2f", w, x);
        else
            buf_printf(b, "  %*s", w, "-");
    }
    buf_putc(b, '\n');
}

/* Serving figures stand beside ours at the same concurrency alone. */
static bool is_beside(json_val *row_, const struct report *r)
{
    int64_t c;
    return !json_int(json_get(row_, "max_concurrency"), &c) || (size_t)c == r->max_concurrency;
}

static void find_columns(struct sheet *s, json_val *t, const struct report *r)
{
    json_val *named = json_get(t, "columns"), *rows = json_get(t, "rows");
    for (size_t i = 0; i < json_count(named) && i < COLUMNS_MAX; i++)
        s->key[i] = s->label[i] = json_string(json_at(named, i), NULL);
    s->n_columns = FST_MIN(json_count(named), (size_t)COLUMNS_MAX);
    for (size_t i = 0; !named && i < FST_COUNT(columns); i++)
        for (size_t k = 0; k < json_count(rows); k++)
            if (is_beside(json_at(rows, k), r) && json_get(json_at(rows, k), columns[i].key)) {
                s->key[s->n_columns] = columns[i].key;
                s->label[s->n_columns++] = columns[i].label;
                break;
            }
}

static void put_table(struct buf *b, json_val *t, const struct report *r, json_val *ours)
{
    static const char mine[] = "this run, other hardware and prompts";
    json_val *rows = json_get(t, "rows");
    struct sheet s = {.width = (int)sizeof mine - 1};
    struct buf label = {0};

    find_columns(&s, t, r);
    if (!s.n_columns)
        return;
    for (size_t k = 0; k < json_count(rows); k++) {
        buf_reset(&label);
        put_label(&label, json_at(rows, k));
        if (is_beside(json_at(rows, k), r))
            s.width = FST_MAX(s.width, (int)label.len);
    }
    buf_printf(b, "\n%s\n  %s; %s; from %s\n  %-*s", text_of(t, "name"), text_of(t, "hardware"),
               text_of(t, "server"), text_of(t, "source"), s.width, "");
    for (size_t i = 0; i < s.n_columns; i++)
        buf_printf(b, "  %8s", s.label[i]);
    buf_putc(b, '\n');
    for (size_t k = 0; k < json_count(rows); k++) {
        buf_reset(&label);
        put_label(&label, json_at(rows, k));
        if (is_beside(json_at(rows, k), r))
            put_line(b, &s, buf_str(&label), json_at(rows, k));
    }
    if (json_get(t, "columns"))
        buf_printf(b, "  %-*s  %8.2f of %s\n", s.width, mine, r->window_accept_length, r->dataset);
    else
        put_line(b, &s, mine, ours);
    buf_release(&label);
}

enum fst_status report_against_published(struct buf *b, const struct report *r, const char *kind)
{
    struct json_doc *doc = NULL, *ours = as_doc(r);
    size_t len;
    const char *text = client_published(&len);
    enum fst_status rc = ours ? json_parse(&doc, text, len) : fst_error(FST_ENOMEM, "no memory");
    if (rc == FST_OK) {
        json_val *tables = json_get(json_root(doc), "tables");
        const char *note = json_string(json_get(json_root(doc), "note"), NULL);
        buf_printf(b, "%s\n", note ? note : "");
        for (size_t i = 0; i < json_count(tables); i++) {
            const char *k = json_string(json_get(json_at(tables, i), "kind"), NULL);
            bool accept = k && !strcmp(k, "accept") && r->window_accept_length > 0;
            if (k && (!strcmp(k, kind) || accept))
                put_table(b, json_at(tables, i), r, json_root(ours));
        }
    }
    json_free(doc);
    json_free(ours);
    return rc;
}
