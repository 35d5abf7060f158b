/* cost.h - what a step, a draft and an injection cost in seconds: the SPS table of the DSpark paper
 * (dspark.md §4.5), keyed by (requests, rows).
 *
 * A table has points: numbers of requests.  At a point stand the seconds of a step in which each of the
 * requests has 1, 2 .. gamma + 1 rows, and of drafting blocks of 1 .. gamma tokens for all of them.
 * Between points and between rows lookups are linear; beyond, they go on as the last two do.
 *
 * Numbers come from measuring (spec_cost_set_*, then spec_cost_fill), from a file, and from every step
 * that is run (spec_cost_saw_*): an observation pulls the cells that its lookup used, and all others a
 * little, since what slows a machine down slows everything.  Pure: times are arguments. */
#ifndef FST_SPEC_COST_H
#define FST_SPEC_COST_H

#include "base/base.h"
#include "firesteel/engine.h"

enum { SPEC_COST_POINTS = 16 };

struct spec_cost {
    int gamma;
    int n;                          /* points */
    int requests[SPEC_COST_POINTS]; /* ascending; the first is 1 */
    /* Seconds; 0: not known.  step_s[p][k]: requests[p] * (1 + k) rows; draft_s[p][k]: blocks of k + 1. */
    double step_s[SPEC_COST_POINTS][FST_SPEC_MAX + 1];
    double draft_s[SPEC_COST_POINTS][FST_SPEC_MAX];
    int n_plain[SPEC_COST_POINTS], n_full[SPEC_COST_POINTS]; /* observations while not known */
    double inject_call_s, inject_row_s;
    double context_s; /* more for each row and each position in front of it */
    bool ready;       /* filled: lookups may be asked */
};

/* Points 1, 2, 4 .. max_requests; nothing is known. */
void spec_cost_init(struct spec_cost *c, int gamma, int max_requests);

/* What was measured at point p: a step with 1 + k rows each, blocks of k + 1. */
void spec_cost_set_step(struct spec_cost *c, int p, int k, double seconds);
void spec_cost_set_draft(struct spec_cost *c, int p, int k, double seconds);
/* Cells that are not known from those that are (linear in rows), and no step cheaper than one with fewer
 * rows: one inflated speed makes the planner take too many rows (dspark.md §4.5).  False, and not ready:
 * some point needs at least a plain step, a full one and a full draft. */
bool spec_cost_fill(struct spec_cost *c);

/* Seconds of a step of so many decoding requests and rows (of prefills too); row_positions: sum over rows
 * of the positions before them.  The table is ready. */
double spec_cost_step(const struct spec_cost *c, int requests, double rows, double row_positions);
double spec_cost_draft(const struct spec_cost *c, int requests, int block); /* 0 requests: 0 */
double spec_cost_inject(const struct spec_cost *c, int rows); /* one call; 0 rows: 0 */

/* Observations of this machine.  While the table is not ready they are collected: three plain steps and
 * three full rounds of one point are enough to fill it. */
void spec_cost_saw_step(struct spec_cost *c, int requests, double rows, double row_positions,
                        double seconds);
void spec_cost_saw_draft(struct spec_cost *c, int requests, int block, double seconds);
void spec_cost_saw_inject(struct spec_cost *c, int rows, double seconds);
/* Of a table that is not ready: should the next step be plain, so that it can be compared? */
bool spec_cost_wants_plain(const struct spec_cost *c, int requests);

/* Where a table holds: everything that changes its numbers. */
struct spec_machine {
    const char *build, *device, *model; /* the model with its layouts */
    int threads;
};
/* FST_EIO, FST_ENOTFOUND: no such folder. */
enum fst_status spec_cost_save(const struct spec_cost *c, const struct spec_machine *m,
                               const char *path);
/* c was initialised; on failure it is as it was.  FST_ENOTFOUND; FST_EFORMAT names the field; FST_EUNSUPPORTED:
 * measured elsewhere, the message says what differs.  Points need not be c's own. */
enum fst_status spec_cost_load(struct spec_cost *c, const struct spec_machine *m, const char *path);

#endif
