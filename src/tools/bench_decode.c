/* bench_decode.c - `bench decode`: the single-stream protocol (benchmarks.md 5): 4096 random ids from seed 42 in, 1024
 * tokens out without an end, one request at a time; one run to warm up, then six.  Throughput is of the tokens
 * between the first and the last event over the time between them; of the runs the median, and the range. */
#include "client/dataset.h"
#include "client/figures.h"
#include "client/report.h"
#include "tools/bench_remote.h"

enum { RUNS_MAX = 1000 };

static const struct option_def defs[] = {
    {.name = "input-len",
     .type = OPTION_INT,
     .initial = "4096",
     .min = 1,
     .max = 1e7,
     .help = "random ids of RandomState(42), below the special ones of the vocabulary's end"},
    {.name = "output-len",
     .type = OPTION_INT,
     .initial = "1024",
     .min = 2,
     .max = 1e7,
     .help = "tokens of each run"},
    {.name = "ids",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "prompt: a JSON array of ids, instead of random ones"},
    {.name = "runs",
     .type = OPTION_INT,
     .initial = "6",
     .min = 1,
     .max = RUNS_MAX,
     .help = "measured"},
    {.name = "warmup-runs",
     .type = OPTION_INT,
     .initial = "1",
     .min = 0,
     .max = RUNS_MAX,
     .help = "before them, not counted"},
    {.name = "against",
     .type = OPTION_WORD,
     .words = "published",
     .help = "what others published by this protocol, with their hardware's name"},
};

struct job {
    struct bench_remote b;
    struct tokenizer_ids ids;
    int64_t n_out;
    double rate[RUNS_MAX], ttft_s[RUNS_MAX], accept_length;
    int n;
    struct buf text;
};

static enum fst_status one(struct job *j, bool counts)
{
    struct answer a;
    struct buf body = {0};
    char salt[40];
    bench_remote_salt(salt); /* each run reads its whole prompt */
    bench_remote_generate(&body, &j->ids, j->n_out, salt);
    enum fst_status rc = body.failed ? fst_error(FST_ENOMEM, "no memory for a request") : FST_OK;
    a = (struct answer){0};
    if (rc == FST_OK)
        rc = bench_remote_call(&j->b, ANSWER_GENERATE, buf_str(&body), (int64_t)j->ids.n, j->n_out,
                               &a);
    int64_t tokens = a.seen_tokens - a.first_tokens, ns = a.last_gen_ns - a.first_ns;
    if (rc == FST_OK && (tokens <= 0 || ns <= 0))
        rc = fst_error(FST_EFORMAT,
                       "%s/generate: %lld tokens behind the first event; a rate needs a stream of "
                       "several",
                       http_url(j->b.t.http), (long long)FST_MAX(tokens, (int64_t)0));
    if (rc == FST_OK && counts) {
        j->rate[j->n] = (double)tokens / ((double)ns * 1e-9);
        j->ttft_s[j->n++] = answer_ttft_s(&a);
    }
    answer_release(&a);
    buf_release(&body);
    return rc;
}

static void add_row(struct job *j, const struct target_counts *before,
                    const struct target_counts *after)
{
    struct buf row = {0};
    struct spread rate, ttft;
    buf_printf(&row, "\"prompt_tokens\":%zu,\"output_tokens\":%lld,\"runs\":%d,\"rates_tok_s\":[",
               j->ids.n, (long long)j->n_out, j->n);
    for (int i = 0; i < j->n; i++)
        buf_printf(&row, "%s%.3f", i ? "," : "", j->rate[i]);
    spread_of(&ttft, j->ttft_s, (size_t)j->n);
    spread_of(&rate, j->rate, (size_t)j->n); /* sorts */
    buf_printf(&row,
               "],\"median_tok_s\":%.3f,\"min_tok_s\":%.3f,\"max_tok_s\":%.3f,\"time_us\":%.3f,"
               "\"median_ttft_ms\":%.3f,\"simulated_acceptance\":%s,",
               rate.median, j->rate[0], rate.max, 1e6 / rate.median, 1e3 * ttft.median,
               j->b.simulated ? "true" : "false");
    bench_remote_put_spec(&row, before, after);
    j->accept_length = bench_remote_accept_length(before, after);
    bench_remote_row(&j->b, "decode", buf_str(&row));
    if (j->b.simulated)
        buf_puts(&j->text,
                 "SIMULATED ACCEPTANCE: text is garbage, and the speed is not the model's\n");
    buf_printf(&j->text,
               "%zu tokens in, %lld out, %d runs of one launch\n"
               "output tok/s: median %.2f, from %.2f to %.2f\nTTFT ms: median %.2f, from %.2f to "
               "%.2f\n",
               j->ids.n, (long long)j->n_out, j->n, rate.median, j->rate[0], rate.max,
               1e3 * ttft.median, 1e3 * j->ttft_s[0], 1e3 * ttft.max);
    if (j->accept_length > 0)
        buf_printf(&j->text, "accept length: %.3f\n", j->accept_length);
    buf_printf(&j->text, "on %s\ncommand: %s\n", j->b.card, buf_str(&j->b.command));
    buf_release(&row);
}

static enum fst_status measure(struct job *j)
{
    const struct options *o = j->b.o;
    struct target_counts before, after;
    int64_t warm = options_int(o, "warmup-runs", 1), runs = options_int(o, "runs", 6);
    if (options_text(o, "ids"))
        FST_TRY(tool_read_ids(&j->ids, options_text(o, "ids")));
    else
        FST_TRY(dataset_decode_prompt(&j->ids, j->b.tok, (size_t)options_int(o, "input-len", 0)));
    j->n_out = options_int(o, "output-len", 1024);
    for (int64_t i = 0; i < warm; i++)
        FST_TRY(one(j, false));
    target_count(&j->b.t, &before);
    for (int64_t i = 0; i < runs; i++)
        FST_TRY(one(j, true));
    target_count(&j->b.t, &after);
    add_row(j, &before, &after);
    struct report r = {.dataset = "random ids",
                       .max_concurrency = 1,
                       .window_accept_length = j->accept_length,
                       .f = {.output_s = j->rate[j->n / 2]}};
    return options_is_given(o, "against") ? report_against_published(&j->text, &r, "decode")
                                          : FST_OK;
}

int bench_decode(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Bench decode", defs), bench_remote_group};
    int status;
    struct options *o = tool_parse("firesteel bench decode", "[options]", groups, FST_COUNT(groups),
                                   argc, argv, &status);
    if (!o)
        return status;
    struct job *j = mem_calloc(1, sizeof *j);
    tool_catch_interrupt();
    enum fst_status rc = j ? bench_remote_open(&j->b, o, NULL, !options_text(o, "ids"), argc, argv)
                           : fst_error(FST_ENOMEM, "no memory");
    if (rc == FST_OK)
        rc = measure(j);
    status = rc < 0 ? tool_fail(rc) : bench_remote_finish(&j->b, &j->text);
    if (j) {
        tokenizer_ids_release(&j->ids);
        buf_release(&j->text);
        bench_remote_release(&j->b);
    }
    mem_free(j);
    options_free(o);
    return status;
}
