/* debug.h - hooks that make the engine wrong or untypical on purpose, for tests and measurements.
 *
 *   --debug-drafter FILE   known continuations are proposed, spoiled at chosen places
 *   --debug-reject-at K    draft K of every round is another token, and never accepted
 *   --simulate-acc-len A   every round accepts so many drafts, right or wrong (dspark.md 6.1)
 *   --debug-spoil WHAT     a fault for the audit to find: one row of logits, or one row of KV
 *   --debug-null-model US  nothing is computed: a step takes so many microseconds, and every draw is the same id, to
 *                          time all that is not the model
 *
 * and of a request, ids that are given out whatever is drawn (force_ids), and a token behind which it loses its place
 * as if pages had run out (retract_at).
 *
 * All of them are refused without --debug-hooks, and with it `label` goes into every answer, log line and
 * result, so that nobody takes what comes out for the model's.  The first two change no token: they try
 * what happens behind an acceptance or a rejection.
 *
 * The drafter's file is one JSON object
 *
 *     {"requests": [{"prompt": [ids], "ids": [ids], "accept": [k, k, ...], "spoil": [p, p, ...]}, ...]}
 *
 * `ids` is what the request with this prompt gives without drafting, its first token included.  Round i of a request
 * proposes it with the draft behind the first accept[i] replaced by another token (all rounds after the last entry:
 * nothing is replaced), and at output positions in `spoil` another token whatever the round.  Beyond `ids`, and
 * for other prompts, the drafter's own tokens are proposed.
 *
 * Engine thread only, but for open and close. */
#ifndef FST_ENGINE_DEBUG_H
#define FST_ENGINE_DEBUG_H

#include "base/base.h"
#include "base/rng.h"
#include "firesteel/engine.h"

struct fst_request;
struct fst_engine;
struct sample_row;

enum debug_spoil { DEBUG_SPOIL_NOTHING, DEBUG_SPOIL_LOGITS, DEBUG_SPOIL_KV };

struct debug_known; /* one request of the drafter's file */

/* Zero: no hooks. */
struct debug_hooks {
    bool on;
    struct debug_known *known; /* owned: (n_known) */
    size_t n_known;
    int32_t *ids; /* owned: what `known` points into */
    int vocab;
    int reject_at;  /* 1-based; 0: off */
    double acc_len; /* 0: off */
    bool multinomial;
    struct rng rng;
    int step_len; /* tokens of this step's rounds, drawn once for all of them */
    enum debug_spoil spoil;
    int64_t spoil_at;
    double null_us;     /* of a step without the model; 0: it computes */
    float *null_logits; /* owned: (max_running, vocab) */
    char label[256];    /* "debug-hooks simulate-acc-len=3.4 ..." */
};

/* Of a request. */
struct debug_request {
    const struct debug_known *known; /* borrowed; NULL: not in the file */
    bool looked_up;
    size_t n_rounds;
    bool retracted;
};

/* Check the options and read the drafter's file.  FST_EINVAL names the flag; FST_EFORMAT the file and the
 * field.  gamma: drafts of a round, 0 without drafting; on_card: kernels' memory is not the host's. */
enum fst_status debug_open(struct debug_hooks *d, const struct fst_engine_opts *o, int gamma,
                           int vocab, bool on_card);
void debug_close(struct debug_hooks *d);

/* Tokens per round in this step, by the method of --simulate-acc-len (in 1..gamma+1). */
int debug_draw_len(struct debug_hooks *d, int gamma);

/* Before a step. */
void debug_step(struct fst_engine *e);
/* Has r, which runs, come to where it shall lose its place?  True once. */
bool debug_retracts(const struct fst_engine *e, struct fst_request *r);
/* Instead of the forward pass, with --debug-null-model: n rows of logits.  FST_EUNSUPPORTED for more rows than requests may
 * run (log-probabilities of prompts). */
enum fst_status debug_forward(struct fst_engine *e, int n, float **logits);
/* Behind the drafter: what is proposed for r (ids behind its known ones), in place. */
void debug_draft(struct fst_engine *e, struct fst_request *r);
/* Before logits (n, vocab) of rows with output positions out_pos.. are looked at. */
void debug_logits(const struct fst_engine *e, float *logits, int64_t out_pos, int n);
/* Whether draft i of n_draft stands, after its row was drawn.  When acceptance is simulated, the draft becomes what
 * the row has drawn (its log-probability stays the target's). */
void debug_accept(const struct fst_engine *e, int32_t draft, struct sample_row *row, int i,
                  int n_draft, bool *stands);
/* Behind the commit of r, whose positions from n_before on are new. */
void debug_commit(const struct fst_engine *e, const struct fst_request *r, int64_t n_before);

#endif
