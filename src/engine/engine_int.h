/* engine_int.h - insides of the engine: the door shared with requests, the engine, a request.
 *
 * Two threads matter to a request: its user's and the engine's.  They meet in two places only, each
 * under a mutex: the door (queue of new requests, wake-ups, published statistics) and the request's
 * `pub` (what it has given so far).  Everything else belongs to the engine's thread. */
#ifndef FST_ENGINE_INT_H
#define FST_ENGINE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/pool.h"
#include "engine/audit.h"
#include "engine/debug.h"
#include "engine/recorder.h"
#include "engine/reject.h"
#include "engine/masks.h"
#include "engine/rules.h"
#include "engine/draft.h"
#include "firesteel/engine.h"
#include "kernels/kernels.h"
#include "kv/kv.h"
#include "kv/snapshot.h"
#include "kv/step.h"
#include "kv/tiers.h"
#include "kv/tree.h"
#include "model/model.h"
#include "sample/sample.h"
#include "sched/sched.h"
#include "spec/spec.h"
#include "weights/weights.h"

enum { ENGINE_END_IDS = FST_STOP_IDS_MAX + 1 };

/* What outlives the engine as long as a request does. */
struct door {
    pthread_mutex_t lock;
    pthread_cond_t work; /* the engine sleeps here */
    int refs;            /* engine + requests */
    bool closed, draining;
    bool reset_spec;           /* forget the speculation statistics at the next step */
    bool flush;                /* forget the prefixes before new requests are looked at */
    fst_request *first, *last; /* submitted, not yet seen by the engine */
    int n_waiting;             /* those and the engine's own waiting list */
    uint64_t request_bytes, max_request_bytes; /* arrays of living requests, and their bound */
    int max_waiting;
    bool kick; /* something to look at: cancel, quit */
    struct fst_engine_stats stats;
    uint64_t seed_state;
};

struct fst_request {
    struct door *door;
    atomic_int refs; /* user, engine */
    atomic_bool cancel;
    atomic_size_t place; /* in line, from 1; 0: out of it */
    fst_request *next;   /* queue link */
    fst_request *after;  /* a reference, until it need not be waited for any more; NULL */
    bool ended;          /* engine's thread */

    struct fst_request_opts o; /* pointers replaced by our copies */
    struct sample_params sampling;
    int32_t end_ids[ENGINE_END_IDS]; /* eos and stop ids: banned below min_new_tokens */
    int n_end_ids;
    int32_t eos_id;
    struct masks masks; /* the grammar */
    struct rules rules;
    int32_t *force_ids; /* (n_force_ids) */
    int64_t n_force_ids;
    bool watched;               /* somebody was to be asked behind each token */
    struct fst_verdict verdict; /* of the watcher, about the next token */
    int64_t n_reply;            /* tokens of the answer once it has ended; -1: all */
    int64_t n_scored;   /* prompt rows that were scored (a resumed request is not scored again) */
    bool scores_prompt; /* prompt rows give log-probabilities or go to a call-back */
    int64_t max_new;    /* after clamping */
    int64_t submit_ns, deadline_ns, admit_ns, first_ns, last_ns;

    /* Tokens: prompt, drawn ones, then room for drafts.  (n_prompt + max_new + gamma + 1) */
    int32_t *ids;
    int64_t n_prompt, n_known; /* n_known: prompt and drawn */
    float *logprobs;           /* (max_new) or NULL */
    struct sample_top *top;    /* (max_new, top_logprobs) or NULL */
    float *prompt_logprobs;    /* (n_prompt) or NULL */
    struct sample_top *prompt_top;
    void *block; /* owned: the arrays above */
    uint64_t block_bytes, counted_bytes;

    /* engine's thread */
    int slot; /* 0: none */
    int64_t n_committed;
    int n_draft;
    bool due;              /* the readers have not been told of the last step */
    bool counted_prompt;   /* prompt tokens are in the statistics (a resumed request is once) */
    struct tree_hold hold; /* what it was restored from, and has kept since */
    int64_t n_cached;      /* prompt tokens that came from the cache, the first time */
    struct fst_prefix_report prefix;
    int64_t n_kept; /* its last snapshot's positions, restored or taken */
    int64_t n_fork; /* where its prompt leaves the pages of others; 0: nowhere */
    int n_loads;    /* times that a tier was asked since it was admitted */
    int load_turns; /* that the load has had */
    bool hastened;  /* it took too long; what has come counts */
    int64_t load_end_ns;
    bool sits;         /* no page for its row: not in this step */
    int64_t n_written; /* positions that its rings have seen, of rejected drafts too */
    struct fst_spec_stats spec;
    struct debug_request debug;
    int draft_at;    /* of the last draft batch: its place there */
    uint64_t number; /* among those that were recorded; 0: none yet */
    int32_t held;    /* the recorder's: where it is held, plus one */
    struct audit_row
        *audit; /* (n_audit) of the tokens that the audit compares; 0 of them: not chosen */
    int64_t n_audit;
    /* drafting (draft.h) */
    int n_cap;    /* how many of n_draft may be accepted */
    bool drafted; /* in this step */
    uint8_t skip; /* enum fst_spec_skip, where n_draft is 0 */
    int64_t
        n_injected; /* positions whose rows are in the drafter's window; from there on they are held */
    bool aside;     /* of those, some since it did not draft */
    int64_t window_from; /* the window has none of the positions before; 0: all of them */
    struct spec_track track;
    float confidence[FST_SPEC_MAX]; /* logits of this step's drafts */

    pthread_mutex_t pub_lock;
    pthread_cond_t changed;
    struct {
        size_t n, n_prefilled, n_cached;
        struct fst_prefix_report prefix;
        enum fst_finish finish;
        int32_t matched_id;
        enum fst_status status;
        char error[256];
        struct fst_spec_stats spec;
        double queue_s, prefill_s, decode_s;
    } pub;
};

/* How a request leaves a step; finish NONE: it goes on. */
struct engine_outcome {
    enum fst_finish finish;
    int32_t matched;
    enum fst_status status;
    const char *error;
};

struct fst_engine {
    struct door *door;
    pthread_t thread;
    bool thread_started;
    bool quit; /* under door->lock */

    char *model_dir;
    struct fst_engine_info info;
    struct weights *weights;
    struct kernels kernels;
    struct pool *pool;
    const struct device *device; /* NULL: the host */
    struct stream stream;
    struct kv kv;
    struct tree tree; /* where `prefix` says that there is one */
    bool prefix;
    struct tiers *tiers;       /* below the tree; NULL: none */
    struct stream tier_stream; /* of a card: the tiers' own */
    int load_policy;           /* enum load_policy, prefix.c */
    bool flushing;     /* a flush waits for copies; until then nothing is known of any prompt */
    char *kv_disk_dir; /* owned */
    bool check_memory;
    struct model *model;
    struct sampler sampler;
    struct sched_limits limits;
    struct sched_stall stall;
    bool drafting;
    int gamma, window;
    struct debug_hooks debug;
    bool rejection; /* accept by rejection sampling above temperature 0 */
    float *
        draft_logits; /* owned: (max_running, gamma, vocab) of the last draft batch, for it; NULL */
    struct recorder recorder;
    struct audit audit;
    int32_t *masked_ids; /* owned: (n_masked_ids) of the options */
    int64_t n_masked_ids;
    int64_t context_length;

    /* engine's thread */
    fst_request **running;      /* (max_running), in order of admission */
    int n_running, max_running; /* max_running: with those that are loading */
    fst_request **loading;      /* (max_running) in a slot that a tier fills */
    int n_loading;
    int n_sitting;                       /* of those that run */
    bool short_of_pages;                 /* in this turn; what tiers have locked comes back */
    fst_request *wait_first, *wait_last; /* admitted as soon as there is room */
    bool line_moved;                     /* who waits may stand elsewhere than he was told */
    struct sched_item *items;            /* (max_running) */
    struct step_span *spans;
    fst_request **span_request; /* request of each span */
    int32_t *slot_request;      /* (n_slots + 1) index into running */
    int32_t *row_slot, *row_pos, *row_id, *row_span, *span_first; /* (max_rows), (spans + 1) */
    int32_t *logit_row, *inject_row, *hold_row;
    int n_inject, n_hold;           /* of the step */
    int *span_logit;                /* first logits row of each span */
    int64_t *span_before;           /* its request's n_committed before the step */
    struct engine_outcome *outcome; /* of each span */
    struct sample_row *sample;      /* (max_logits) */
    struct sample_top *tops;        /* (max_logits, FST_TOP_LOGPROBS_MAX) */
    struct draft_batch draft;
    struct drafter dr;
    void (*on_spec_round)(void *ud, const struct fst_spec_round *round);
    void *on_spec_round_ud;
    int32_t *draft_slot, *draft_anchor, *draft_ids;
    float *draft_conf;
    int64_t *draft_committed;
    struct draw_params *draft_draw;
    uint32_t *draft_out_pos;
    void *block; /* owned, shared memory: the arrays above */
    size_t block_bytes;
    struct fst_engine_stats stats; /* copied to the door after each step */
    _Atomic int64_t heartbeat;     /* of the model, inside a step */
    int64_t step_draft_ns;         /* drafting and injection of this step */
    /* of the last step: */
    bool injecting;    /* the device still injects */
    bool paused;       /* there was nothing to do before it */
    bool drew;         /* it ended with draws */
    int64_t window_ns; /* decode window of 40 steps */
    uint64_t window_tokens;
    int window_steps;
};

static inline int64_t engine_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* door.c */
struct door *door_new(int max_waiting, uint64_t max_request_bytes, uint64_t seed);
void door_ref(struct door *d);
void door_unref(struct door *d);
void door_kick(struct door *d);

/* request.c, called by the engine's thread */
void request_publish(fst_request *r);
void request_finish(fst_request *r, enum fst_finish finish, int32_t matched_id,
                    enum fst_status status, const char *error);
void request_unref(fst_request *r);

/* Has drawn a token, and only the anchor is open. */
static inline bool request_decoding(const fst_request *r)
{
    return r->n_known > r->n_prompt && r->n_known - r->n_committed == 1;
}

/* prefix.c: of the program, a card's module and the card. */
uint64_t engine_build_digest(const struct device *d);

/* verify.c: what a step's rows have given. */
enum fst_status verify_step(fst_engine *e, const struct step *step, const struct rows *rows,
                            float *logits, struct engine_outcome *outcome);
/* Does it need the logits of its prompt's rows? */
static inline bool request_scores_rows(const fst_request *r)
{
    return r->scores_prompt && r->n_committed < r->n_prompt;
}

/* engine.c: the option's number among the words; FST_EINVAL lists them. */
enum fst_status engine_word(const char *flag, const char *given, const char *fallback,
                            const char *const *words, int n, int *out);

/* engine.c: everything but the door and the thread; *out is to be closed even after a failure. */
enum fst_status engine_prepare(fst_engine **out, const struct fst_engine_opts *o);

/* prefix.c, called by the engine's thread but for open and close */
/* Flags of tiers that say nothing together; FST_EINVAL names one. */
enum fst_status prefix_check_opts(const struct fst_engine_opts *o);
enum fst_status prefix_open(fst_engine *e, const struct fst_engine_opts *o);
void prefix_close(fst_engine *e, int64_t end_ns); /* tiers_close_by */
/* Pages of an open slot for the request's tokens, and what is known of them.  FST_EBUDGET: not enough.
 * FST_EAGAIN: a tier knows more, and fills the slot; prefix_loaded says when it has, prefix_end_load ends it,
 * and then the empty slot has to be placed again. */
enum fst_status prefix_place(fst_engine *e, fst_request *r, int slot);
/* How many positions behind n_committed prefill may compute in this step; 0: any number. */
int64_t prefix_stop(const fst_engine *e, const fst_request *r);
/* After a step that took n_committed on from n_before (injection done); ends: the request leaves. */
void prefix_keep(fst_engine *e, fst_request *r, int64_t n_before, bool ends);
void prefix_let_go(fst_engine *e, fst_request *r);
void prefix_flush(fst_engine *e);
bool prefix_loaded(fst_engine *e, const fst_request *r);
void prefix_stop_load(fst_engine *e, const fst_request *r); /* soon */
/* It is not over yet; wanted: a step would have room for the request's rows. */
void prefix_wait_load(fst_engine *e, fst_request *r, bool wanted);
void prefix_await_load(fst_engine *e, const fst_request *r); /* waits: for the end of the engine */
void prefix_end_load(fst_engine *e, const fst_request *r);
void prefix_poll(fst_engine *e); /* at the beginning of a turn: locks of copies that are done */
void prefix_post(fst_engine *e); /* at its end: copies that are due */
/* Are pages locked that come back by themselves? */
bool prefix_busy(const fst_engine *e);
void prefix_stats(fst_engine *e);

/* step.c */
void *engine_thread(void *engine);
/* Row `index` of the next draw is token out_pos of r. */
void step_sample_row(fst_engine *e, const fst_request *r, int index, uint32_t out_pos);
/* Draws row `index` by r's rules, which stand in front of it; raw: its logits.  *target: those that it was drawn
 * from, until the next call. */
enum fst_status step_draw_by_rules(fst_engine *e, fst_request *r, int index, float *raw,
                                   float **target);
/* Behind any draw of row `index`: an eos that may not be yet is drawn again.  So rows in front of a grammar need no
 * mask of their own, and it is the same draw with one. */
enum fst_status step_draw_on(fst_engine *e, fst_request *r, int index, float *raw, float **target);

#endif
