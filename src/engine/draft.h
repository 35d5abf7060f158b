/* draft.h - who drafts in a step, how long, and what of it is verified; the engine's side of spec/plan.h.
 *
 * The mode decides what may be left out:
 *   static   everybody drafts whole blocks, all of which are verified
 *   cap      as static; acceptance ends where the plan would have ended the block
 *   compact  everybody drafts whole blocks; the plan says how much of each is verified
 *   auto     who drafts and how long a block is chosen first, by what a request's own rounds and those of
 *            its temperature let expect and by the table of costs; then as compact
 *
 * A request that does not draft keeps its captured rows in the model's rings (model_hold); they are
 * injected when it drafts, or when a snapshot is taken that a drafting request shall go on from.  In auto,
 * as long as nobody's drafting pays, snapshots are taken without: who goes on from one drafts once he has
 * `window` positions of his own.  With an MTP block (model.h) all rows are held, whoever drafts, and
 * injected before the next draft but for the last, which is a draft's first step: its streams stay held.
 *
 * Without a confidence head, which an MTP block never has, the plan of lengths goes by what a request's own
 * rounds and those of its temperature let expect.
 *
 * Nothing here changes a result: what is emitted are the target's own draws. */
#ifndef FST_ENGINE_DRAFT_H
#define FST_ENGINE_DRAFT_H

#include "model/model.h"
#include "spec/cost.h"
#include "spec/plan.h"
#include "spec/sts.h"
#include "spec/track.h"

enum draft_mode { DRAFT_AUTO, DRAFT_STATIC, DRAFT_CAP, DRAFT_COMPACT };

/* Places where a test puts itself between drafter, planner and verifier.  Set before an engine is opened; called
 * from its thread.  NULL: not there. */
struct draft_seams {
    /* Other drafts for positions n_known .. of this request; ids: all it knows. */
    void (*drafts)(void *ud, const int32_t *ids, int64_t n_prompt, int64_t n_known, int32_t *draft,
                   int n);
    /* Another length, 0 .. ask->n_max, than the plan's; draft: (n_max) what was drafted. */
    void (*length)(void *ud, const int32_t *draft, struct spec_ask *ask);
    /* To see what was planned; seconds NULL: no table yet, everything is verified. */
    void (*planned)(void *ud, const struct spec_ask *ask, int n, double base, const double *seconds,
                    int n_seconds);
    /* Whether a request drafts: instead of what auto would choose.  Returns the block's length, 0: not. */
    int (*drafting)(void *ud, int64_t n_committed, int gamma);
    void *ud;
};
extern struct draft_seams draft_seams;

struct drafter {
    enum draft_mode mode;
    struct spec_cost cost;
    struct spec_sts sts;
    bool has_sts, wants_conf;
    struct spec_band band[FST_SPEC_BANDS];
    struct spec_window window;
    int behind; /* 1: the window ends a position before what is committed (MTP); 0 */
    /* of the step */
    int block; /* drafts of each who drafts */
    struct spec_load load;
    double resume_s; /* what taking up drafting costs in it */
    int caught_up;   /* held rows that went into windows before its drafts */
    /* of the steps before */
    bool pays;         /* drafting was chosen */
    double credit_s;   /* time that may be spent on finding out */
    int64_t turn_ns;   /* end of the last step; 0: there was a pause */
    int turn_decoding; /* its decoding requests; 0: it is no measure for the next */
    /* scratch; (max_running), survive and expect with FST_SPEC_MAX each */
    struct spec_ask *ask;
    struct spec_wish *wish;
    struct fst_request **who;
    double *survive, *expect;
    double *seconds; /* (max_running * gamma + 1) */
    struct model_held *held;
    void *block_memory; /* owned: the arrays above */
    char *cost_path;    /* owned; NULL */
    char sts_path[4096];
};

struct fst_engine;
struct fst_request;
struct fst_engine_opts;
struct step;

/* draft_open.c: tables, calibration, memory; after the model.  Measures the costs if that was asked for. */
enum fst_status draft_open(struct fst_engine *e, const struct fst_engine_opts *o);
void draft_close(struct fst_engine *e);

/* Before pages are reserved: sets n_draft of all running requests to what they shall draft. */
void draft_decide(struct fst_engine *e);
/* Draft; n_draft becomes what is verified, n_cap how much of that may be accepted. */
enum fst_status draft_run(struct fst_engine *e);
/* n drafts were verified and the first `right` of them equal the draws: how many are accepted.  Counts. */
int draft_verified(struct fst_engine *e, struct fst_request *r, int n, int right);
/* A step without drafts of a request that decodes. */
void draft_skipped(struct fst_engine *e, struct fst_request *r);
/* n committed rows of a step, the first at row `first` and position n_committed - n: to be injected now, or
 * held.  draft_end_step does both. */
void draft_rows(struct fst_engine *e, struct fst_request *r, int first, int n, bool prefill);
enum fst_status draft_end_step(struct fst_engine *e, const struct rows *rows);
/* What the step cost; draft_ns: of it for drafting and injection. */
void draft_learn(struct fst_engine *e, const struct step *step, int64_t end_ns, bool ended);

/* Counts begin anew; door->lock held. */
void draft_reset_stats(struct fst_engine *e);

/* Before a snapshot: held rows into the window, if drafting is to go on from it.  False: the window is not whole. */
bool draft_settle(struct fst_engine *e, struct fst_request *r);
/* A request begins at position n: 0, or a snapshot's, which had the drafter's window or not. */
void draft_begin(const struct fst_engine *e, struct fst_request *r, int64_t n, bool whole);
/* Held rows of the first n of dr.who into their windows. */
enum fst_status draft_catch_up(struct fst_engine *e, int n);

#endif
