/* bench_routing.h - what the routers of a step choose, counted or replaced.
 * Stands between the model and the kernel `route`, by exception. */
#ifndef FST_TOOLS_BENCH_ROUTING_H
#define FST_TOOLS_BENCH_ROUTING_H

#include "base/rng.h"
#include "kernels/kernels.h"
#include "weights/config.h"

struct bench_routing {
    struct kernels kernels; /* the real ones, filled by the caller */
    const struct device *device;
    int n_layers, n_experts, k, max_rows;
    bool replaces, counts; /* replaces: when there is a table */
    int layer;             /* whose router comes next */
    int32_t *host;         /* owned: (max_rows, k) of one layer */
    int32_t *table;        /* owned, device memory: (n_layers, rows, k); NULL: not replaced */
    int64_t sum, n;        /* different experts, over layers that were counted */
    struct rng rng;
};

/* *out: the same kernels, with a route that looks here.  One at a time. */
void bench_routing_wrap(struct bench_routing *r, struct kernels *out, const struct model_config *c);
enum fst_status bench_routing_open(struct bench_routing *r, const struct device *d, int max_rows,
                                   bool correlated);
void bench_routing_close(struct bench_routing *r);
/* Draw what replaces the choices of this many requests of `width` rows each. */
enum fst_status bench_routing_draw(struct bench_routing *r, int requests, int width);
void bench_routing_begin(struct bench_routing *r); /* a step */
void bench_routing_replace(struct bench_routing *r, bool on);
void bench_routing_count(struct bench_routing *r, bool on);
double bench_routing_distinct(const struct bench_routing *r); /* per layer; 0: none counted */

#endif
