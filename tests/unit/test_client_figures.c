/* test_client_figures.c - recorded answers with known times (tests/data/bench-trace.json): every figure is what its
 * definition gives, however the bytes are cut; texts; what is no good answer. */
#include "support/cm.h"

#include <math.h>

#include "client/report.h"
#include "support/vectors.h"

static struct json_doc *trace;

static int open_trace(void **state)
{
    struct buf b = {0};
    (void)state;
    bool ok = read_whole("tests/data/bench-trace.json", &b) &&
              json_parse(&trace, buf_str(&b), b.len) == FST_OK;
    buf_release(&b);
    return ok ? 0 : -1;
}

static int close_trace(void **state)
{
    (void)state;
    json_free(trace);
    return 0;
}

static int64_t integer(json_val *o, const char *key)
{
    int64_t n = 0;
    assert_true(json_int(json_get(o, key), &n));
    return n;
}

/* Bytes are spelled as the code points of the same number. */
static void bytes_of(struct buf *out, json_val *v)
{
    size_t n;
    const char *s = json_string(v, &n);
    assert_non_null(s);
    buf_reset(out);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= 0xc2) {
            buf_putc(out, (char)(((unsigned)s[i] << 6) | (s[i + 1] & 0x3f)));
            i++;
        } else {
            buf_putc(out, s[i]);
        }
}

static enum answer_api api_of(json_val *q)
{
    const char *s = json_string(json_get(q, "api"), NULL);
    return !strcmp(s, "generate") ? ANSWER_GENERATE
           : s[1] == 'o'          ? ANSWER_COMPLETIONS
                                  : ANSWER_CHAT;
}

/* Feed one request; pieces: the most bytes at once, 0: as they came. */
static void play(struct answer *a, json_val *q, struct test_rng *cut)
{
    json_val *reads = json_get(q, "reads");
    struct buf b = {0};
    assert_int_equal(
        answer_init(a, api_of(q), true, integer(q, "prompt_len"), integer(q, "wanted_len")),
        FST_OK);
    a->start_ns = integer(q, "start");
    for (size_t k = 0; k < json_count(reads); k++) {
        int64_t t;
        assert_true(json_int(json_at(json_at(reads, k), 0), &t));
        bytes_of(&b, json_at(json_at(reads, k), 1));
        if (!k)
            answer_head(a, (int)integer(q, "status"), t);
        for (size_t at = 0, n; at < b.len; at += n) {
            n = cut ? 1 + (size_t)test_below(cut, 9) : b.len;
            n = FST_MIN(n, b.len - at);
            answer_bytes(a, b.data + at, n, t);
        }
    }
    answer_end(a, NULL, integer(q, "end"));
    buf_release(&b);
}

static void near(double got, json_val *o, const char *key)
{
    double want = 0;
    assert_true(json_real(json_get(o, key), &want));
    if (fabs(got - want) > 1e-9 * fmax(1, fabs(want)))
        fail_msg("%s: got %.12g, the definition gives %.12g", key, got, want);
}

static void same_spread(const struct spread *s, json_val *f, const char *name)
{
    json_val *o = json_get(f, name);
    near(s->mean, o, "mean");
    near(s->median, o, "median");
    near(s->std, o, "std");
    near(s->p90, o, "p90");
    near(s->p95, o, "p95");
    near(s->p99, o, "p99");
    near(s->max, o, "max");
    near((double)s->n, o, "n");
}

static void check_case(json_val *c, struct test_rng *cut)
{
    json_val *qs = json_get(c, "requests"), *f = json_get(c, "figures");
    size_t n = json_count(qs);
    struct answer *a = mem_calloc(n, sizeof *a);
    struct figures g;
    double duration = 0;

    assert_non_null(a);
    assert_true(json_real(json_get(c, "duration"), &duration));
    for (size_t i = 0; i < n; i++) {
        struct buf text = {0};
        const char *want = json_string(json_get(json_at(qs, i), "text"), NULL);
        play(&a[i], json_at(qs, i), cut);
        assert_true(answer_ok(&a[i]) == (json_get(json_at(qs, i), "means") != NULL));
        if (answer_ok(&a[i])) {
            assert_true(event_unescape(&text, buf_str(&a[i].text), a[i].text.len));
            assert_string_equal(buf_str(&text), want);
        } else {
            assert_non_null(a[i].error);
        }
        buf_release(&text);
    }
    assert_int_equal(figures_compute(&g, a, n, duration), FST_OK);
    near((double)g.completed, f, "completed");
    near((double)g.failed, f, "failed");
    near((double)g.input_tokens, f, "input_tokens");
    near((double)g.output_tokens, f, "output_tokens");
    near((double)g.prompt_tokens, f, "prompt_tokens");
    near((double)g.cached_tokens, f, "cached_tokens");
    near(g.request_s, f, "request_s");
    near(g.input_s, f, "input_s");
    near(g.output_s, f, "output_s");
    near(g.total_s, f, "total_s");
    near(g.concurrency, f, "concurrency");
    near(g.peak_output_s, f, "peak_output_s");
    near((double)g.peak_requests, f, "peak_requests");
    same_spread(&g.e2e_s, f, "e2e");
    same_spread(&g.ttft_s, f, "ttft");
    same_spread(&g.tpot_s, f, "tpot");
    same_spread(&g.itl_s, f, "itl");
    /* Identities of the definitions. */
    assert_true(fabs(g.concurrency * duration - (double)g.completed * g.e2e_s.mean) < 1e-6);
    assert_true(fabs(g.total_s - g.input_s - g.output_s) < 1e-6);
    for (size_t i = 0; i < n; i++)
        answer_release(&a[i]);
    mem_free(a);
}

static void test_definitions(void **state)
{
    (void)state;
    assert_int_equal(json_count(json_root(trace)), 3);
    for (size_t i = 0; i < 3; i++)
        check_case(json_at(json_root(trace), i), NULL);
}

static void test_any_cut(void **state)
{
    struct test_rng cut = {11};
    (void)state;
    for (int round = 0; round < test_size(4, 40, 1); round++)
        for (size_t i = 0; i < 3; i++)
            check_case(json_at(json_root(trace), i), &cut);
}

/* /generate with incremental streaming: text is what is new, tokens are all so far. */
static void test_incremental(void **state)
{
    static const char stream[] =
        "data: {\"text\":\"one\",\"meta_info\":{\"completion_tokens\":1}}\n\n"
        "data: {\"text\":\" two three\",\"meta_info\":{\"completion_tokens\":3}}\n\n"
        "data: {\"text\":\" one\",\"meta_info\":{\"completion_tokens\":4,\"finish_reason\":{}}}\n\n"
        "data: [DONE]\n\n";
    struct answer a;
    (void)state;
    assert_int_equal(answer_init(&a, ANSWER_GENERATE, true, 1, 4), FST_OK);
    answer_head(&a, 200, 1);
    answer_bytes(&a, stream, sizeof stream - 1, 5);
    answer_end(&a, NULL, 6);
    assert_true(answer_ok(&a));
    assert_string_equal(buf_str(&a.text), "one two three one");
    assert_int_equal(a.n_gaps, 2);
    assert_int_equal(a.gap[0].n_tokens, 2);
    assert_int_equal(answer_output_len(&a), 4);
    answer_release(&a);
}

/* What bench_serving prints for benchmarks.md's example: layout to the byte. */
static void test_block(void **state)
{
    static const char *const lines[] = {
        "============ Serving Benchmark Result ============\n"
        "Backend:                                 sglang    \n"
        "Traffic request rate:                    inf       \n"
        "Max request concurrency:                 256       \n"
        "Successful requests:                     1024      \n"
        "Benchmark duration (s):                  235.40    \n"
        "Total input tokens:                      8388608   \n"
        "Total input text tokens:                 8388608   \n"
        "Total generated tokens:                  1048576   \n"
        "Total generated tokens (retokenized):    1000000   \n",
        "\n----------------End-to-End Latency----------------\n"
        "Mean E2E Latency (ms):                   55876.00  \n",
        "\n---------------Time to First Token----------------\nMean TTFT (ms):",
        "\n-----Time per Output Token (excl. 1st token)------\nMean TPOT (ms):",
        "\n---------------Inter-Token Latency----------------\nMean ITL (ms):",
        "\nMax ITL (ms):                            0.00      \n"
        "==================================================\n",
        "\nConcurrency:                             243.06    \n"
        "Accept length:                           3.70      \n"};
    struct report r = {.backend = "sglang",
                       .max_concurrency = 256,
                       .accept_length = 3.701,
                       .f = {.completed = 1024,
                             .duration_s = 235.4,
                             .input_tokens = 8388608,
                             .output_tokens = 1048576,
                             .retokenized = 1000000,
                             .concurrency = 243.06,
                             .e2e_s = {.mean = 55.876}}};
    struct buf b = {0};
    (void)state;
    report_print(&b, &r);
    for (size_t i = 0; i < FST_COUNT(lines); i++)
        if (!strstr(buf_str(&b), lines[i]))
            fail_msg("not found:\n%s\nin\n%s", lines[i], buf_str(&b));
    buf_release(&b);
}

static void test_compare(void **state)
{
    struct report r = {.backend = "sglang",
                       .dataset = "random",
                       .thinking = "no chat",
                       .max_concurrency = 8,
                       .input_len = 100,
                       .n_prompts = 5,
                       .f = {.retokenized = -1, .output_s = 200}};
    struct buf b = {0}, text = {0};
    struct json_doc *doc = NULL;
    json_val *old;
    (void)state;
    report_put_json(&b, &r, NULL, 0);
    assert_int_equal(json_parse(&doc, buf_str(&b), b.len), FST_OK);
    assert_int_equal(report_find(&old, &r, &doc, 1, "x.jsonl"), FST_OK);
    r.f.output_s = 250;
    report_compare(&text, &r, old);
    assert_non_null(strstr(buf_str(&text), "200.00       250.00     +25.0%  better"));
    r.max_concurrency = 16; /* another case */
    assert_int_equal(report_find(&old, &r, &doc, 1, "x.jsonl"), FST_EINVAL);
    assert_non_null(strstr(fst_error_text(), "max_concurrency was 8 and is 16"));
    r.max_concurrency = 8;
    r.extra_body = "{\"temperature\":1}";
    assert_int_equal(report_find(&old, &r, &doc, 1, "x.jsonl"), FST_EINVAL);
    json_free(doc);
    buf_release(&b);
    buf_release(&text);
}

static void test_published(void **state)
{
    struct report r = {.max_concurrency = 256, .dataset = "random", .window_accept_length = 2.5};
    struct buf b = {0};
    (void)state;
    assert_int_equal(report_against_published(&b, &r, "serve"), FST_OK);
    assert_non_null(strstr(buf_str(&b), "MI355X"));
    assert_non_null(strstr(buf_str(&b), "40089.16   7607.62     47.18"));
    assert_non_null(strstr(buf_str(&b), "never a like-for-like"));
    assert_non_null(strstr(buf_str(&b), "2.50 of random"));
    assert_null(strstr(buf_str(&b), "643.97")); /* of concurrency 1 */
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definitions), cmocka_unit_test(test_any_cut),
        cmocka_unit_test(test_incremental), cmocka_unit_test(test_block),
        cmocka_unit_test(test_compare),     cmocka_unit_test(test_published),
    };
    return cmocka_run_group_tests(tests, open_trace, close_trace);
}
