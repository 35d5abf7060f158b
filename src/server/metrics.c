#include "server/metrics.h"

#include <unistd.h>

#include "base/clock.h"
#include "server/app.h"
#include "server/grammars.h"
#include "server/keep.h"

static const double ttft_bounds[] = {.1, .2, .4, .6, .8, 1,  2,   4,   6,
                                     8,  10, 20, 40, 60, 80, 100, 200, 400};
static const double itl_bounds[] = {.002, .004, .006, .008, .01, .015, .02, .025,
                                    .03,  .035, .04,  .06,  .08, .1,   .2,  .4,
                                    .6,   .8,   1,    2,    4,   6,    8};
static const double e2e_bounds[] = {.1, .2, .4, .6, .8,  1,   2,   4,   6,    8,    10,
                                    20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400};
static const double grammar_bounds[] = {.0002, .0005, .001, .002, .005, .01, .02,
                                        .05,   .1,    .2,   .5,   1,    2,   5};
static const double queue_bounds[] = {0,   .001, .005, .01,  .02,  .05,  .1,   .2,   .5,   1,
                                      2,   3,    4,    5,    10,   15,   20,   30,   40,   50,
                                      60,  70,   80,   90,   100,  200,  300,  400,  500,  600,
                                      700, 800,  900,  1000, 1200, 1400, 1600, 1800, 2000, 3000};
static const double token_bounds[] = {1,     2,      5,      10,     20,     50,    100,
                                      200,   500,    1000,   2000,   5000,   10000, 20000,
                                      50000, 100000, 200000, 500000, 1000000};

void histogram_observe(struct histogram *h, double x, uint64_t times)
{
    int i = 0;
    while (i < h->n && x > h->bounds[i])
        i++;
    h->count[i] += times;
    h->sum += x * (double)times;
}

static void use(struct histogram *h, const double *bounds, size_t n)
{
    FST_ASSERT(n <= METRICS_BUCKETS_MAX);
    h->bounds = bounds;
    h->n = (int)n;
}

void metrics_init(struct metrics *m)
{
    *m = (struct metrics){0};
    use(&m->ttft, ttft_bounds, FST_COUNT(ttft_bounds));
    use(&m->itl, itl_bounds, FST_COUNT(itl_bounds));
    use(&m->e2e, e2e_bounds, FST_COUNT(e2e_bounds));
    use(&m->queue, queue_bounds, FST_COUNT(queue_bounds));
    use(&m->prompt_len, token_bounds, FST_COUNT(token_bounds));
    use(&m->uncached_len, token_bounds, FST_COUNT(token_bounds));
    use(&m->generation_len, token_bounds, FST_COUNT(token_bounds));
    use(&m->grammar, grammar_bounds, FST_COUNT(grammar_bounds));
}

/* ------------------------------------------------------------------ text */

struct page {
    struct buf *b;
    const char *prefix;
    char label[640]; /* model_name="..." */
};

static void head(struct page *p, const char *name, const char *type, const char *help)
{
    buf_printf(p->b, "# HELP %s%s %s\n# TYPE %s%s %s\n", p->prefix, name, help, p->prefix, name,
               type);
}

static void value(struct page *p, const char *name, const char *more, double x)
{
    buf_printf(p->b, "%s%s{%s%s%s} %.17g\n", p->prefix, name, p->label, more[0] ? "," : "", more,
               x);
}

static void gauge(struct page *p, const char *name, const char *help, double x)
{
    head(p, name, "gauge", help);
    value(p, name, "", x);
}

static void counter(struct page *p, const char *name, const char *help, double x)
{
    head(p, name, "counter", help);
    value(p, name, "", x);
}

static void histogram(struct page *p, const char *name, const char *help, const struct histogram *h)
{
    char series[96], le[48];
    uint64_t sum = 0;
    head(p, name, "histogram", help);
    snprintf(series, sizeof series, "%s_bucket", name);
    for (int i = 0; i < h->n; i++) {
        sum += h->count[i];
        snprintf(le, sizeof le, "le=\"%g\"", h->bounds[i]);
        value(p, series, le, (double)sum);
    }
    sum += h->count[h->n];
    value(p, series, "le=\"+Inf\"", (double)sum);
    snprintf(series, sizeof series, "%s_sum", name);
    value(p, series, "", h->sum);
    snprintf(series, sizeof series, "%s_count", name);
    value(p, series, "", (double)sum);
}

static double resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long size = 0, resident = 0;
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static void make_label(struct page *p, const char *model)
{
    size_t n = 0;
    n += (size_t)snprintf(p->label, sizeof p->label, "model_name=\"");
    for (const char *s = model; *s && n + 4 < sizeof p->label; s++) {
        if (*s == '"' || *s == '\\')
            p->label[n++] = '\\';
        p->label[n++] = *s == '\n' ? ' ' : *s;
    }
    snprintf(p->label + n, sizeof p->label - n, "\"");
}

/* What is kept below the prefixes: a line of each for each tier. */
static void put_tiers(struct page *p, const struct fst_engine_stats *st)
{
#define FIELD(field) offsetof(struct fst_tier_stats, field)
    static const struct {
        const char *name, *kind, *help;
        size_t at; /* a uint64_t of struct fst_tier_stats */
    } rows[] = {
        {"tier_objects", "gauge", "Pages and snapshots in a tier.", FIELD(objects)},
        {"tier_bytes", "gauge", "Bytes of what is in a tier.", FIELD(bytes)},
        {"tier_written_total", "counter", "Objects written to a tier.", FIELD(n_put)},
        {"tier_written_bytes_total", "counter", "Bytes written to a tier.", FIELD(put_bytes)},
        {"tier_read_total", "counter", "Objects read from a tier.", FIELD(n_got)},
        {"tier_read_bytes_total", "counter", "Bytes read from a tier.", FIELD(got_bytes)},
        {"tier_missed_total", "counter", "Objects asked for and not there.", FIELD(n_missed)},
        {"tier_evicted_total", "counter", "Objects that made room for others.", FIELD(n_evicted)},
        {"tier_refused_total", "counter", "Objects without room.", FIELD(n_refused)},
        {"tier_bad_total", "counter", "Objects that did not check out.", FIELD(n_bad)},
    };
#undef FIELD
    if (st->n_tiers == 0)
        return;
    gauge(p, "num_loading_reqs", "Requests that wait for a tier.", st->loading);
    gauge(p, "tier_queue", "Objects that wait to be written to tiers.", (double)st->tier_queue);
    counter(p, "tier_loads_total", "Loads from tiers.", (double)st->loads);
    counter(p, "tier_loads_incomplete_total", "Loads that did not find all they were for.",
            (double)st->loads_incomplete);
    counter(p, "tier_loaded_tokens_total", "Prompt tokens that came from tiers.",
            (double)st->loaded_tokens);
    for (size_t r = 0; r < FST_COUNT(rows); r++) {
        head(p, rows[r].name, rows[r].kind, rows[r].help);
        for (int i = 0; i < st->n_tiers; i++) {
            char label[32];
            uint64_t x;
            memcpy(&x, (const char *)&st->tier[i] + rows[r].at, sizeof x);
            snprintf(label, sizeof label, "tier=\"%s\"", st->tier[i].name);
            value(p, rows[r].name, label, (double)x);
        }
    }
}

static void put_grammars(struct page *p, const struct server *s)
{
    size_t bytes = 0, n = s->grammars ? grammars_kept(s->grammars, &bytes) : 0;

    gauge(p, "num_grammar_queue_reqs", "Requests whose grammar is being compiled.", s->n_compiling);
    counter(p, "num_grammar_cache_hit_total", "Grammars that were asked for and kept.",
            (double)s->m.grammars_found);
    counter(p, "num_grammar_aborted_total", "Grammars that could not be compiled.",
            (double)s->m.grammars_failed);
    gauge(p, "grammars_kept", "Compiled grammars.", (double)n);
    gauge(p, "grammars_bytes", "Memory of compiled grammars, what they learn included.",
          (double)bytes);
}

/* Finished requests that were computed again. */
static void put_audit(struct page *p, const struct fst_engine_stats *st)
{
    const struct fst_audit_stats *a = &st->audit;
    const struct {
        const char *label;
        uint64_t n;
    } rows[] = {{"result=\"equal\"", a->equal},
                {"result=\"mismatch\"", a->mismatches},
                {"result=\"abandoned\"", a->abandoned},
                {"result=\"dropped\"", a->dropped}};
    head(p, "audit_requests_total", "counter", "Chosen requests by what came of it.");
    for (size_t i = 0; i < FST_COUNT(rows); i++)
        value(p, "audit_requests_total", rows[i].label, (double)rows[i].n);
    gauge(p, "audit_queue", "Chosen requests that wait for idle time.", a->waiting);
    counter(p, "audit_tokens_total", "Tokens that were computed again.", (double)a->tokens);
    counter(p, "audit_seconds_total", "Time that took.", (double)a->ns * 1e-9);
    gauge(p, "spec_drafting_off", "1 since an audit found a difference.", a->drafting_off);
    counter(p, "crash_dumps_total", "Records of the last steps that were written.",
            (double)st->records);
}

/* ------------------------------------------------------------------ speculation */

const char *const metrics_spec_skip[FST_SPEC_SKIPS] = {"cost",  "confidence", "measure", "window",
                                                       "pages", "context",    "request", "audit"};
const char *const metrics_spec_band[FST_SPEC_BANDS] = {"0", "0-0.45", "0.45-0.8", "0.8-1.2",
                                                       "1.2-"};

static void labelled(struct page *p, const char *name, const char *label, const char *word,
                     double x)
{
    char text[64];
    snprintf(text, sizeof text, "%s=\"%s\"", label, word);
    value(p, name, text, x);
}

static void put_spec(struct page *p, const struct fst_engine_stats *st,
                     const struct fst_engine_info *in)
{
    /* a pass for each draft; no name while a model loads */
    bool chain = in->spec_algorithm && strcmp(in->spec_algorithm, "mtp") == 0;
    const struct fst_spec_stats *spec = &st->spec;
    double rounds = (double)spec->verify_steps;

    gauge(p, "spec_accept_length", "Tokens per verification, the bonus included.",
          spec->accept_length);
    gauge(p, "spec_accept_length_window", "The same, of the last 60 s; 0 without verifications.",
          st->spec_window_accept_length);
    gauge(p, "spec_accept_rate", "Accepted over verified draft tokens.",
          spec->drafted ? (double)spec->accepted / (double)spec->drafted : 0);
    gauge(p, "spec_verify_length", "Rows per verification, the anchor's included.",
          rounds > 0 ? 1 + (double)spec->drafted / rounds : 0);
    gauge(p, "spec_num_draft_tokens", "Draft tokens per round, at most.", in->gamma);
    gauge(p, "spec_num_steps", "Draft passes per round, at most.",
          chain ? in->gamma : in->gamma > 0);
    gauge(p, "spec_draft_share", "Share of the steps' time that went to drafting and injection.",
          st->step_ns ? (double)st->draft_ns / (double)st->step_ns : 0);
    counter(p, "spec_verify_calls_total", "Verifications, one for each request and round.", rounds);
    counter(p, "spec_drafted_tokens_total", "Draft tokens, verified or not.",
            (double)st->spec_drafted);
    counter(p, "spec_verified_tokens_total", "Verified draft tokens.", (double)spec->drafted);
    counter(p, "spec_accepted_tokens_total", "Accepted draft tokens.", (double)spec->accepted);
    counter(p, "spec_trimmed_tokens_total",
            "Draft tokens that were right beyond the planned length (verify mode cap).",
            (double)st->spec_trimmed);
    head(p, "spec_accepted_by_position_total", "counter", "Rounds that accepted so many drafts.");
    for (int k = 0; k < in->gamma && k < FST_SPEC_MAX; k++) {
        char word[16];
        snprintf(word, sizeof word, "%d", k + 1);
        labelled(p, "spec_accepted_by_position_total", "position", word,
                 (double)spec->accepted_by_position[k]);
    }
    head(p, "spec_skipped_total", "counter",
         "Steps of requests that decoded without a verified draft.");
    for (int i = 0; i < FST_SPEC_SKIPS; i++)
        labelled(p, "spec_skipped_total", "reason", metrics_spec_skip[i],
                 (double)st->spec_skipped[i]);
    head(p, "spec_verify_calls_by_temperature_total", "counter",
         "Verifications by the request's temperature.");
    for (int i = 0; i < FST_SPEC_BANDS; i++)
        labelled(p, "spec_verify_calls_by_temperature_total", "temperature", metrics_spec_band[i],
                 (double)st->spec_band[i].verify_steps);
    head(p, "spec_accepted_tokens_by_temperature_total", "counter",
         "Accepted draft tokens by the request's temperature.");
    for (int i = 0; i < FST_SPEC_BANDS; i++)
        labelled(p, "spec_accepted_tokens_by_temperature_total", "temperature",
                 metrics_spec_band[i], (double)st->spec_band[i].accepted);
    counter(p, "spec_held_rows_total", "Rows kept aside for a drafter that is not asked.",
            (double)st->held_rows);
    counter(p, "spec_resumed_rows_total", "Of these, rows that went into its window later.",
            (double)st->resumed_rows);
}

void metrics_write(const struct server *s, struct buf *out)
{
    struct page p = {.b = out, .prefix = s->o.metrics_prefix};
    const struct metrics *m = &s->m;
    struct fst_engine_stats st = server_stats(s);
    make_label(&p, s->model_name);
    double total = (double)st.kv_tokens_total, used = (double)st.kv_tokens_used;

    gauge(&p, "num_running_reqs", "Requests that are being computed.", st.running);
    gauge(&p, "num_queue_reqs", "Requests that wait for a slot.", st.waiting);
    gauge(&p, "max_total_num_tokens", "KV tokens of the pool.", total);
    gauge(&p, "num_used_tokens", "KV tokens in use, by whole pages.", used);
    gauge(&p, "kv_used_tokens", "KV tokens in use, by whole pages.", used);
    gauge(&p, "kv_available_tokens", "KV tokens free.", total - used);
    gauge(&p, "kv_evictable_tokens", "KV tokens kept for reuse only.", 0);
    gauge(&p, "token_usage", "Share of the KV pool in use.", total > 0 ? used / total : 0);
    gauge(&p, "slots_used", "Request slots in use.", st.slots_used);
    gauge(&p, "slots_total", "Request slots.", st.slots_total);
    gauge(&p, "gen_throughput", "Generated tokens per second over the last decode window.",
          st.last_decode_tok_s);
    gauge(&p, "cache_hit_rate", "Share of prompt tokens that came from a cache.",
          m->prompt_tokens ? (double)m->cached_tokens / (double)m->prompt_tokens : 0);
    gauge(&p, "utilization", "Running requests over the most that may run.",
          st.slots_total ? (double)st.running / st.slots_total : 0);
    gauge(&p, "startup_time_seconds", "From start to ready.",
          s->ready_ns ? clock_seconds(s->ready_ns - s->start_ns) : 0);
    gauge(&p, "process_resident_memory_bytes", "Resident memory of the process.", resident_bytes());

    put_grammars(&p, s);
    put_tiers(&p, &st);
    put_audit(&p, &st);
    put_spec(&p, &st, &s->info);

    counter(&p, "prompt_tokens_total", "Prompt tokens of finished requests.",
            (double)m->prompt_tokens);
    counter(&p, "generation_tokens_total", "Completion tokens of finished requests.",
            (double)m->generation_tokens);
    head(&p, "cached_tokens_total", "counter", "Prompt tokens that came from a cache.");
    value(&p, "cached_tokens_total", "cache_source=\"total\"", (double)m->cached_tokens);
    head(&p, "num_requests_total", "counter", "Generating requests that were accepted.");
    value(&p, "num_requests_total", "is_streaming=\"true\"", (double)m->requests_stream);
    value(&p, "num_requests_total", "is_streaming=\"false\"", (double)m->requests_plain);
    counter(&p, "num_aborted_requests_total", "Requests that were aborted or whose client left.",
            (double)m->aborted);
    counter(&p, "num_resumed_streams_total", "Kept streams that were read on.", (double)m->resumed);
    gauge(&p, "num_kept_streams", "Answers that outlive their connections, made or being made.",
          (double)s->n_keeps);
    gauge(&p, "kept_stream_bytes", "Bytes of their events and answers.", (double)keep_bytes(s));
    counter(
        &p, "num_retracted_requests_total",
        "Times that a request lost its place to others; it goes on later, with the same result.",
        (double)st.retracted);
    counter(&p, "engine_steps_total", "Forward passes.", (double)st.steps);
    counter(&p, "engine_graph_launches_total", "Recorded steps, drafts and injections on a card.",
            (double)st.graph_launches);
    counter(&p, "engine_step_gap_seconds_total",
            "Time that a card waited between steps that follow each other without drafts.",
            (double)st.gap_ns * 1e-9);
    counter(&p, "engine_step_gaps_total", "Such waits.", (double)st.gaps);
    counter(&p, "engine_requests_total", "Requests given to the engine, one for each choice.",
            (double)st.requests);
    counter(&p, "http_requests_total", "HTTP requests.", (double)m->http_requests);
    head(&p, "http_responses_total", "counter", "HTTP responses by status.");
    for (int i = 0; i < (int)FST_COUNT(m->responses); i++)
        if (m->responses[i]) {
            char label[32];
            snprintf(label, sizeof label, "status_code=\"%d\"", i);
            value(&p, "http_responses_total", label, (double)m->responses[i]);
        }

    histogram(&p, "time_to_first_token_seconds", "From arrival to the first token.", &m->ttft);
    histogram(&p, "inter_token_latency_seconds", "Between tokens of one choice.", &m->itl);
    histogram(&p, "e2e_request_latency_seconds", "From arrival to the end.", &m->e2e);
    histogram(&p, "queue_time_seconds", "Waiting for a slot.", &m->queue);
    histogram(&p, "prompt_tokens_histogram", "Prompt tokens.", &m->prompt_len);
    histogram(&p, "uncached_prompt_tokens_histogram", "Prompt tokens that were computed.",
              &m->uncached_len);
    histogram(&p, "grammar_compilation_time_seconds", "Compiling a grammar that was not kept.",
              &m->grammar);
    histogram(&p, "generation_tokens_histogram", "Completion tokens of a choice.",
              &m->generation_len);
}

void api_metrics(struct server *s, struct exch *x)
{
    if (!s->o.enable_metrics) {
        struct api_error e = {0};
        api_fail(&e, 404, "unknown_endpoint", NULL, "metrics are switched off");
        api_send_error(x, &e, SHAPE_OPENAI);
        return;
    }
    struct buf b = {0};
    metrics_write(s, &b);
    exch_reply(x, b.failed ? 500 : 200, "text/plain; version=0.0.4; charset=utf-8", buf_str(&b),
               b.failed ? 0 : b.len);
    buf_release(&b);
}
