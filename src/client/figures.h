/* figures.h - the figures of a run: benchmarks.md section 2, the definitions of SGLang's bench_serving.
 *
 * s_i is when sending request i began, t its events' times.  TTFT_i: first event with something generated.
 * E2E latency_i: last event but [DONE].  TPOT_i = (latency_i - TTFT_i) / (output_len_i - 1), of requests with more
 * than one token.  ITL samples: a gap between two events with text, divided by its tokens and counted once for
 * each.  Percentiles: linear between ranks, rank (n-1)p.  Peaks: buckets of one second from the first s_i. */
#ifndef FST_CLIENT_FIGURES_H
#define FST_CLIENT_FIGURES_H

#include "client/answer.h"

struct spread {
    double mean, median, std, p90, p95, p99, max;
    size_t n; /* samples; 0: all is 0 */
};
/* Sorts x. */
void spread_of(struct spread *s, double *x, size_t n);
/* Of sorted x, 0 <= p <= 1. */
double spread_percentile(const double *x, size_t n, double p);

struct figures {
    size_t completed, failed;
    double duration_s;
    int64_t input_tokens, output_tokens, retokenized; /* retokenized -1: not counted */
    int64_t prompt_tokens, cached_tokens;             /* as reported; -1: not by all */
    double request_s, input_s, output_s, total_s;     /* per second */
    double peak_output_s;
    int64_t peak_requests;
    double concurrency;
    struct spread e2e_s, ttft_s, tpot_s, itl_s;
    struct spread head_s, text_s,
        thought_s; /* of the head, of text, of thoughts, where there were any */
    int64_t n_events;
};

/* FST_ENOMEM.  retokenized is left to the caller. */
enum fst_status figures_compute(struct figures *f, const struct answer *r, size_t n,
                                double duration_s);

#endif
