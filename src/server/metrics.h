/* metrics.h - the server's own counters and histograms, and their Prometheus text.
 * Counts are of what clients were given (usage), so that they can be compared with a client's own. */
#ifndef FST_SERVER_METRICS_H
#define FST_SERVER_METRICS_H

#include "base/base.h"
#include "firesteel/engine.h"

enum { METRICS_BUCKETS_MAX = 40 };

struct histogram {
    const double *bounds; /* static, ascending */
    int n;
    uint64_t count[METRICS_BUCKETS_MAX + 1]; /* not cumulative; last: above all bounds */
    double sum;
};
void histogram_observe(struct histogram *h, double x, uint64_t times);

struct metrics {
    uint64_t http_requests;
    uint64_t responses[600]; /* by status */
    uint64_t requests_stream, requests_plain, aborted, resumed;
    uint64_t prompt_tokens, cached_tokens, generation_tokens;
    uint64_t grammars_found, grammars_failed; /* asked for and kept; that did not compile */
    struct histogram ttft, itl, e2e, queue, prompt_len, uncached_len, generation_len, grammar;
};
void metrics_init(struct metrics *m);

struct server;
/* Words of the engine's enums in labels and members. */
extern const char *const metrics_spec_skip[FST_SPEC_SKIPS]; /* "cost", "confidence", .. */
extern const char *const metrics_spec_band[FST_SPEC_BANDS]; /* "0", "0-0.45", .. */

void metrics_write(const struct server *s, struct buf *out);

#endif
