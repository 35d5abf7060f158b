/* charts.h - charts of result files and of `bench serve`'s lines. */
#ifndef FST_TOOLS_CHARTS_H
#define FST_TOOLS_CHARTS_H

#include "base/json.h"

/* In the order of enum chart_kind. */
#define CHART_WORDS "throughput latency accept floor frontier agent http runs"
enum chart_kind {
    CHART_THROUGHPUT,
    CHART_LATENCY,
    CHART_ACCEPT,
    CHART_FLOOR,
    CHART_FRONTIER,
    CHART_AGENT,
    CHART_HTTP,
    CHART_RUNS
};

/* What suits these rows; -1: nothing. */
int charts_kind_of(json_val *const *row, size_t n);
/* rows: objects of result files or lines of --output-file.  caption: what made them.  FST_EINVAL when no row has what the
 * chart shows, naming it. */
enum fst_status charts_draw(struct buf *svg, enum chart_kind kind, json_val *const *row, size_t n,
                            const char *caption);

#endif
