/* rerun.h - rows of known ids through the model once more, and what is drawn behind them: for the audit
 * and for replay.  Engine thread, or a thread that has the engine for itself. */
#ifndef FST_ENGINE_RERUN_H
#define FST_ENGINE_RERUN_H

#include "base/base.h"

struct fst_engine;
struct fst_request;
struct rows;

struct rerun_span {
    struct fst_request *r; /* borrowed: whose sampling it is; its rules go along */
    int slot;
    int64_t pos;          /* of the first row; pages are there */
    const int32_t *ids;   /* (n_rows) */
    int n_rows, n_logits; /* the last n_logits rows give logits; */
    int n_ruled; /* of these the first so many stand behind ids of r, and are drawn by its rules */
};

/* One forward pass, and a draw for each row with logits: e->sample[i] and e->recorder.hash[i], i counting those
 * rows over the spans.  rows: as the model saw them, for model_inject. */
enum fst_status rerun_step(struct fst_engine *e, const struct rerun_span *span, int n,
                           struct rows *rows);

#endif
