/* sched.h - which rows the next step computes.  Pure logic: no threads, no clock, no memory.
 *
 * A request is, to the scheduler, a number of known tokens and a number of committed positions.
 * The tokens between are still to be computed: one of them (the anchor) for a request that decodes,
 * many for one that prefills, prompts and resumed requests alike.
 *
 * Policy: every decoding request gets its row (or verify block) in every step, so no prefill
 * starves a stream; what is left of the row budget goes to prefills in the order of admission.
 * While anything decodes, prefill rows are bounded by prefill_rows_while_decoding, which bounds the
 * gap between two tokens of a running stream (stall.h).  Nothing here changes a result: chunk borders and
 * neighbours never do (docs/house.md, determinism). */
#ifndef FST_SCHED_H
#define FST_SCHED_H

#include "base/base.h"
#include "kv/step.h"
#include "sched/stall.h"

struct sched_limits {
    int max_rows;     /* rows of one step */
    int prefill_rows; /* prefill rows of one step */
    int prefill_rows_while_decoding;
    int max_logits; /* rows of one step that give logits */
};

struct sched_item {
    int32_t slot;
    int64_t n_known;     /* prompt and drawn tokens */
    int64_t n_committed; /* positions with final KV; < n_known */
    int n_draft;         /* drafts to verify behind the anchor; 0 while prefilling */
    int64_t n_stop;      /* most rows of a prefill: something is kept behind them; 0: any number */
    bool decoding;       /* has drawn a token and only the anchor is open */
    bool wants_logits;   /* the last known token's logits are needed */
    bool wants_all_logits; /* every row's logits (prompt scoring) */
};

/* Spans for the items (in order of admission) into span[0..n-1]; out->n_spans may be less than n
 * when the budget ends.  All decoding items are always served: the caller keeps
 * max_rows >= sum of their rows, max_logits likewise. */
void sched_plan(const struct sched_limits *lim, const struct sched_item *item, int n,
                struct step_span *span, struct step *out);

#endif
