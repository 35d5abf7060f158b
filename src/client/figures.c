#include "client/figures.h"

#include <math.h>
#include <stdlib.h>

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double spread_percentile(const double *x, size_t n, double p)
{
    double rank = (double)(n - 1) * p;
    size_t below = (size_t)rank;
    if (below + 1 >= n)
        return x[n - 1];
    return x[below] + (x[below + 1] - x[below]) * (rank - (double)below);
}

void spread_of(struct spread *s, double *x, size_t n)
{
    double sum = 0, square = 0;
    *s = (struct spread){.n = n};
    if (!n)
        return;
    qsort(x, n, sizeof *x, by_size);
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    s->mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        square += (x[i] - s->mean) * (x[i] - s->mean);
    s->std = sqrt(square / (double)n);
    s->median = spread_percentile(x, n, 0.5);
    s->p90 = spread_percentile(x, n, 0.9);
    s->p95 = spread_percentile(x, n, 0.95);
    s->p99 = spread_percentile(x, n, 0.99);
    s->max = x[n - 1];
}

static double seconds(int64_t from, int64_t to)
{
    return (double)(to - from) * 1e-9;
}

static double tpot_s(const struct answer *r)
{
    return (answer_latency_s(r) - answer_ttft_s(r)) / (double)(answer_output_len(r) - 1);
}

/* One sample of each request that came to its end and for which `has` holds. */
#define OF_REQUESTS(to, has, sample)                                                               \
    do {                                                                                           \
        size_t n_x = 0;                                                                            \
        for (const struct answer *q = r; q < r + n; q++)                                           \
            if (answer_ok(q) && (has))                                                             \
                x[n_x++] = (sample);                                                               \
        spread_of(to, x, n_x);                                                                     \
    } while (0)

static void sums(struct figures *f, const struct answer *r, size_t n)
{
    double latency = 0;
    for (size_t i = 0; i < n; i++) {
        if (!answer_ok(&r[i])) {
            f->failed++;
            continue;
        }
        f->completed++;
        f->input_tokens += r[i].prompt_len;
        f->output_tokens += answer_output_len(&r[i]);
        f->n_events += r[i].n_events;
        latency += answer_latency_s(&r[i]);
        bool said = f->prompt_tokens >= 0 && r[i].prompt_tokens >= 0;
        f->prompt_tokens = said ? f->prompt_tokens + r[i].prompt_tokens : -1;
        said = f->cached_tokens >= 0 && r[i].cached_tokens >= 0;
        f->cached_tokens = said ? f->cached_tokens + r[i].cached_tokens : -1;
    }
    if (f->duration_s <= 0)
        return;
    double d = f->duration_s;
    f->request_s = (double)f->completed / d;
    f->input_s = (double)f->input_tokens / d;
    f->output_s = (double)f->output_tokens / d;
    f->total_s = f->input_s + f->output_s;
    f->concurrency = latency / d;
}

static enum fst_status gaps(struct figures *f, const struct answer *r, size_t n)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; answer_ok(&r[i]) && k < r[i].n_gaps; k++)
            total += (size_t)r[i].gap[k].n_tokens;
    double *x = mem_alloc(FST_MAX(total, (size_t)1) * sizeof *x);
    if (!x)
        return fst_error(FST_ENOMEM, "no memory for %zu gaps", total);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; answer_ok(&r[i]) && k < r[i].n_gaps; k++)
            for (int64_t j = 0; j < r[i].gap[k].n_tokens; j++)
                x[at++] = r[i].gap[k].s / (double)r[i].gap[k].n_tokens;
    spread_of(&f->itl_s, x, total);
    mem_free(x);
    return FST_OK;
}

/* Token times are rebuilt: the first at s + TTFT, then gap by gap. */
static enum fst_status peaks(struct figures *f, const struct answer *r, size_t n)
{
    int64_t start = INT64_MAX, end = 0;
    for (size_t i = 0; i < n; i++)
        if (answer_ok(&r[i])) {
            start = FST_MIN(start, r[i].start_ns);
            end = FST_MAX(end, r[i].last_ns);
        }
    if (!end)
        return FST_OK;
    size_t buckets = (size_t)seconds(start, end) + 2;
    int64_t *tokens = mem_calloc(2 * buckets, sizeof *tokens), *requests = tokens + buckets;
    if (!tokens)
        return fst_error(FST_ENOMEM, "no memory for %zu seconds", buckets);
    for (size_t i = 0; i < n; i++) {
        if (!answer_ok(&r[i]))
            continue;
        double at = seconds(start, r[i].start_ns) + answer_ttft_s(&r[i]);
        tokens[FST_MIN((size_t)at, buckets - 1)]++;
        for (size_t k = 0; k < r[i].n_gaps; k++)
            for (int64_t j = 0; j < r[i].gap[k].n_tokens; j++) {
                at += r[i].gap[k].s / (double)r[i].gap[k].n_tokens;
                tokens[FST_MIN((size_t)at, buckets - 1)]++;
            }
        size_t last = (size_t)seconds(start, r[i].last_ns);
        for (size_t b = (size_t)seconds(start, r[i].start_ns); b <= last; b++)
            requests[b]++;
    }
    for (size_t b = 0; b < buckets; b++) {
        f->peak_output_s = fmax(f->peak_output_s, (double)tokens[b]);
        f->peak_requests = FST_MAX(f->peak_requests, requests[b]);
    }
    mem_free(tokens);
    return FST_OK;
}

enum fst_status figures_compute(struct figures *f, const struct answer *r, size_t n,
                                double duration_s)
{
    *f = (struct figures){.duration_s = duration_s, .retokenized = -1};
    double *x = mem_alloc((n + 1) * sizeof *x);
    if (!x)
        return fst_error(FST_ENOMEM, "no memory for %zu requests", n);
    sums(f, r, n);
    OF_REQUESTS(&f->e2e_s, true, answer_latency_s(q));
    OF_REQUESTS(&f->ttft_s, true, answer_ttft_s(q));
    OF_REQUESTS(&f->tpot_s, answer_output_len(q) > 1, tpot_s(q));
    OF_REQUESTS(&f->head_s, q->head_ns != 0, seconds(q->start_ns, q->head_ns));
    OF_REQUESTS(&f->text_s, q->first_text_ns != 0, seconds(q->start_ns, q->first_text_ns));
    OF_REQUESTS(&f->thought_s, q->first_thought_ns != 0, seconds(q->start_ns, q->first_thought_ns));
    mem_free(x);
    FST_TRY(gaps(f, r, n));
    return peaks(f, r, n);
}
