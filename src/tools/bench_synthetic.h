/* bench_synthetic.h - a preset's model of random weights, opened without the engine: its steps and drafts,
 * for `bench step --synthetic` (bench_step.c) and `bench kernels` (bench_kernels.c).
 * Looks into model, weights and KV memory by exception. */
#ifndef FST_TOOLS_BENCH_SYNTHETIC_H
#define FST_TOOLS_BENCH_SYNTHETIC_H

#include "base/pool.h"
#include "tools/bench.h"
#include "tools/bench_routing.h"
#include "weights/weights.h"

enum { SHAPES_MAX = 16 };

/* One case: so many requests with so many rows each. */
struct shape {
    const char *kind;
    int requests, width, n_logits; /* rows that give logits: the last so many */
    int64_t start;                 /* position of a request's first row */
};

/* Whole steps, recorded by the model as in a server; or the table's entries apart: few layers when nobody
 * says how many, and nothing is recorded. */
enum synth_use { SYNTH_STEPS, SYNTH_ENTRIES };

struct draft_arrays;
struct synth {
    enum synth_use use;
    struct bench *b;
    const struct device *device;
    struct pool *pool;
    struct stream stream;
    struct kernels kernels;
    struct weights *weights;
    struct kv kv;
    struct model *model;
    struct bench_routing routing;
    struct shape shape[SHAPES_MAX];
    int n_shapes, max_rows, max_requests, max_logits, steps;
    bool whole;                            /* no times of blocks */
    int64_t context_length, n_pages, turn; /* turn: steps so far */
    int32_t *ints;                         /* shared: the arrays of rows, and picks */
    size_t int_bytes;
    struct rows rows;
    int32_t *slot, *pos, *id, *span, *span_first, *pick;
    void *delay; /* device memory that is filled to keep the card busy; NULL: none */
    double *times;
    struct draft_arrays *draft; /* shared; NULL: no drafter */
    size_t draft_bytes;
};

/* Read the flags --layers, --rows, --prefill and so on, open everything, measure the ceilings.  preset: or
 * a folder with a config.json. */
enum fst_status synth_new(struct synth **out, struct bench *b, const struct options *o,
                          const char *preset, enum synth_use use);
void synth_free(struct synth *s); /* NULL is fine */

/* Around everything with one shape: slots, s->rows, s->pick. */
enum fst_status synth_begin(struct synth *s, const struct shape *h);
void synth_end(struct synth *s, const struct shape *h);

/* Something that is timed: does it once, *us by the host's clock. */
typedef enum fst_status synth_run_fn(struct synth *s, const struct shape *h, double *us);
/* A step; the first one of a shape is looked at: its logits must be numbers, what it routes is counted. */
enum fst_status synth_step(struct synth *s, const struct shape *h, double *us);
enum fst_status synth_first_step(struct synth *s, const struct shape *h, float **logits);
struct model_load synth_load(const struct synth *s, const struct shape *h, double distinct);
/* Keep the card busy for about so long, while the host fills the queue; nothing on a processor. */
enum fst_status synth_busy(struct synth *s, double us);

/* Median and 95th percentile of many runs, then (not with s->whole) the times of blocks: rows of kind h->kind, a first one
 * "step" with `whole`.  In the load `x`, window layers count n_window times. */
enum fst_status synth_measure(struct synth *s, const struct shape *h, synth_run_fn *run,
                              const struct model_load *x, struct model_cost whole, int n_window);

/* With a drafter: arrays for its batches; then what follows on a step of the shape. */
enum fst_status synth_draft_open(struct synth *s);
void synth_draft_close(struct synth *s);
enum fst_status synth_draft(struct synth *s, const struct shape *h);
/* Its parts: the shape and the load of the drafts behind a step of h; one round, behind a step: s->rows go into
 * the windows, then the drafts. */
struct shape synth_draft_shape(const struct synth *s, const struct shape *h);
struct model_load synth_draft_load(const struct synth *s, const struct shape *h);
enum fst_status synth_draft_round(struct synth *s, const struct shape *h, double *us);

#endif
