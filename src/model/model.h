/* model.h - a loaded DeepSeek-V4 and its forward passes.
 *
 * struct model owns weights (mapped), workspace and the kernel table; it borrows the KV memory and
 * the stream.  One thread (the engine's) uses it at a time.  Nothing is allocated after model_open, but
 * for what a card's driver needs for recorded steps.
 *
 * Where kernels run is the stream's device: weights must be there (weights_upload), KV too (kv_spec),
 * and the arrays of a draft batch in shared memory (device.h); arrays of rows and picks are the host's.
 * Calls return when the device is done, model_forward with logits as it says there.  A device that can
 * record launches replays calls that come a third time with the same numbers of rows, spans and logits;
 * results are the same bits.  The kv of all calls is one, which outlives the model or at least is not
 * used again after it is released.
 *
 * A step: model_forward() runs rows through the target, leaves logits of the picked rows and, when
 * a drafter is there, what it reads of the target: captured hidden rows (DSpark), or the streams (MTP);
 * after the verifier has decided, model_inject() puts the committed rows into the drafter's windows;
 * model_draft() proposes the next block.
 *
 * MTP (DeepSeek's MTPBlock, then drafts from its own streams): position i reads the target's streams there
 * and token i + 1, and predicts token i + 2.  So behind n committed positions and the anchor, the token at
 * n, the first draft comes out of position n - 1, and its row of the window is not known before the anchor
 * is.  Rows enter the window through model_hold and model_inject_held alone, up to position n - 2; the
 * streams of the last positions lie in kv->carry, where a snapshot takes those of position n - 1. */
#ifndef FST_MODEL_H
#define FST_MODEL_H

#include "base/base.h"
#include "kernels/kernels.h"
#include "kv/kv.h"
#include "weights/config.h"

struct model;
struct weights;

struct model_opts {
    const struct kernels *kernels; /* borrowed, outlives the model */
    struct stream *stream;         /* borrowed; scratch is sized by model_scratch_bytes */
    int max_rows;                  /* rows of one step */
    int max_logits;                /* rows of one step that give logits */
    int max_requests;              /* requests of one draft batch */
    int64_t context_length;
    bool drafting;              /* workspace and windows for the checkpoint's drafter */
    _Atomic int64_t *heartbeat; /* borrowed, may be NULL: set to CLOCK_MONOTONIC ns before each
                                      block, so that a watchdog sees life inside a long step */
    bool profile;               /* keep model_timings */
    bool disable_graphs;        /* launch kernel by kernel, also where a step could be recorded */
};

/* Take ownership of nothing but memory: weights are borrowed and outlive the model.  FST_ENOMEM;
 * FST_EINVAL when drafting is asked of weights without a draft. */
enum fst_status model_open(struct model **out, const struct weights *w, const struct model_opts *o);
void model_free(struct model *m);
size_t model_scratch_bytes(const struct weights *w, const struct model_opts *o, int n_threads);
/* Bytes that model_open will allocate for these options. */
size_t model_work_bytes(const struct weights *w, const struct model_opts *o);
const struct model_config *model_config_of(const struct model *m);
/* Drafts of a round, at most: the block of a DSpark checkpoint, as many steps of an MTP block; 0: no
 * drafter.  One block that is applied again and again guesses worse each time (dspark.md section 8). */
enum { MODEL_MTP_STEPS = 3 };
static inline int model_drafts_max(const struct model_config *c)
{
    return c->has_dspark ? c->gamma : c->has_mtp ? MODEL_MTP_STEPS : 0;
}

/* Layer classes and sizes of this model for kv_init (target layers, then stages if drafting);
 * format, slots, pages, block and lag are left for the caller. */
void model_kv_spec(const struct weights *w, bool drafting, struct kv_spec *spec);

/* One forward for any mix of spans (prefill chunks, decode rows, verify blocks) of many requests:
 * rows->n_rows <= max_rows.  Writes KV of every row (kv must hold pages for all positions).
 * logit_row: (n_logits) rows, ascending, whose logits are wanted; logits: (n_logits, vocab), device
 * memory, owned by the model, valid until the next call.  With n_logits > 0 the call only enqueues: what
 * the caller enqueues behind it may read them, he himself after a stream_sync.  Captured rows
 * (n_rows, S*D) stay inside for model_inject, the streams (n_rows, 4, D) for model_hold.  A token
 * id outside the vocabulary is FST_EINVAL (nothing was written then); everything else that is wrong
 * with rows is our own mistake: an assertion.  rows->pages must be kv's table. */
enum fst_status model_forward(struct model *m, struct kv *kv, const struct rows *rows,
                              const int32_t *logit_row, int n_logits, float **logits);

/* Project the captured rows named by `row` (indices into the last model_forward's rows, ascending,
 * n <= max_rows; those of one span adjacent) and store them in the stages' windows at the rows'
 * positions.  Only the last `window` positions of each slot need to be named.  Enqueues.  DSpark alone. */
enum fst_status model_inject(struct model *m, struct kv *kv, const struct rows *rows,
                             const int32_t *row, int n);

/* Keep the rows named by `row` (as for model_inject) instead of injecting them, each in its slot's own
 * ring of model_held_rows: who does not draft pays a copy, and what is behind the drafter's window
 * is never computed.  MTP: the streams go to kv->carry.  Enqueues. */
enum fst_status model_hold(struct model *m, struct kv *kv, const struct rows *rows,
                           const int32_t *row, int n);
int model_held_rows(const struct model *m, const struct kv *kv);

/* Store the held rows of positions from .. to-1 of each slot in the stages' windows, as model_inject would
 * have: the same bits.  to - from <= model_held_rows, and all of them were held by the slot's tenant.
 * Enqueues, or waits, as many rows as a step may have at a time. */
struct model_held {
    int32_t slot;
    int64_t from, to;
    const int32_t *next; /* MTP: (to - from) the tokens at positions from+1 .. to */
};
enum fst_status model_inject_held(struct model *m, struct kv *kv, const struct model_held *held,
                                  int n);

/* Draft gamma tokens for n requests.  slot[i], n_committed[i] (= position of the anchor),
 * anchor[i]; draw and out_pos as in draft_chain.  ids: (n, gamma); conf: (n, gamma) logits of the
 * confidence head or NULL (MTP has none); logits: (n, gamma, vocab) that ids were drawn from, on the host
 * alone, or NULL.  Stage windows must hold positions max(0, n-window)..n-1.  MTP: ..n-2, position n-1 must
 * be held, and rows n-1 .. n+gamma-2 of its window are written, the first of them for good. */
struct draft_batch {
    int n, gamma;
    const int32_t *slot;
    const int64_t *n_committed;
    const int32_t *anchor;
    const struct draw_params *draw;
    const uint32_t *out_pos;
    int32_t *ids;
    float *conf;
    float *logits;
};
enum fst_status model_draft(struct model *m, struct kv *kv, const struct draft_batch *b);

/* At most so many recorded calls are held, of at most so many rows. */
enum { MODEL_GRAPHS_MAX = 64, MODEL_GRAPH_ROWS_MAX = 256 };
/* Recorded calls that are held, and how often one was launched. */
struct model_graphs {
    int held;
    uint64_t replayed;
};
struct model_graphs model_graphs_of(const struct model *m);

/* Names of the blocks and the time spent in each since the last reset (ns), for bench step; also apart
 * by where in the model: outside of layers, in those without compressed entries (the draft's too), of
 * ratio 4, of ratio 128.  On a device with marks it is the device's own time, and nothing waits. */
enum model_site {
    MODEL_SITE_NONE,
    MODEL_SITE_WINDOW,
    MODEL_SITE_RATIO4,
    MODEL_SITE_RATIO128,
    MODEL_SITES
};
struct model_timing {
    const char *name;
    int64_t ns, calls;
    struct {
        int64_t ns, calls;
    } at[MODEL_SITES];
};
int model_timings(struct model *m, const struct model_timing **out);
void model_timings_reset(struct model *m);
/* Switch opts.profile. */
void model_profile(struct model *m, bool on);
/* Where the block belongs that a call enqueues now: for a kernel table that looks at its launches. */
enum model_site model_site_now(const struct model *m);

#endif
