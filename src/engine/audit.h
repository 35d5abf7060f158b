/* audit.h - finished requests are computed again while there is nothing else to do, and compared.
 *
 * A share of the requests is chosen at submit, by chance.  Of each token of these a hash of its raw logits and its
 * log-probability are kept (recorder.h says of which rows).  Once they have ended they wait in a short queue; an
 * idle engine runs their ids as a cold prefill: no cache, no drafts, chunks of another size.  By the
 * determinism rule ids, bits of log-probabilities and hashes are the same; where they are not, something that
 * must not matter did: a stale row, a draft that was accepted wrongly, memory that lost a bit.
 *
 * After the first mismatch one record is written for each (recorder.h), the counter is up, and nothing is
 * drafted until the engine ends.
 *
 * The work is done in slices of AUDIT_SLICE_NS and stops for good at whatever comes in: it begins again
 * later, AUDIT_TRIES times.  It takes no more than audit_time of the time since the engine was opened, and no pages
 * that others would miss.
 *
 * Engine thread only, but for audit_choose. */
#ifndef FST_ENGINE_AUDIT_H
#define FST_ENGINE_AUDIT_H

#include <stdatomic.h>

#include "base/base.h"
#include "firesteel/engine.h"

struct fst_engine;
struct fst_request;

enum {
    AUDIT_QUEUE = 64,
    AUDIT_QUEUE_BYTES = 64 << 20, /* of requests that wait */
    AUDIT_ROWS_MAX = 65536,       /* tokens of a request that are compared */
    AUDIT_SLICE_NS = 2000000,
    AUDIT_BURST_NS = 1000000000, /* what may be saved up of the share of time */
    AUDIT_TRIES = 8
};

/* Of a token that was given out. */
struct audit_row {
    uint64_t hash; /* 0: not kept */
    float logprob;
    bool forced; /* not drawn */
};

struct audit {
    double share, time;
    _Atomic uint64_t n_asked; /* requests that were asked about, for the choice */
    uint64_t seed;
    struct fst_request *queue[AUDIT_QUEUE]; /* references, owned; first come first served */
    int n;
    uint64_t bytes, max_bytes;
    /* The first of the queue, while it is computed: */
    int slot; /* 0: it is not */
    int tries;
    int64_t n_done;
    double row_ns; /* what a row takes, lately */
    int64_t open_ns, spent_ns,
        spent_base_ns; /* base: what was saved up beyond the burst is forgotten */
    struct fst_audit_stats stats;
};

/* FST_EINVAL names the flag.  simulated: acceptance is, so nothing can be compared. */
enum fst_status audit_open(struct audit *a, const struct fst_engine_opts *o, bool simulated);
void audit_close(struct fst_engine *e);

/* Is the next request to be compared?  Any thread. */
bool audit_choose(struct audit *a);
/* A token of sample row `row` has become token `at` of r. */
void audit_keep(struct fst_engine *e, struct fst_request *r, int64_t at, int row);
/* r has ended. */
void audit_offer(struct fst_engine *e, struct fst_request *r, enum fst_finish finish);
/* There is nothing to do, door->lock held: false if there is nothing to compare either.  Else a slice of it
 * was computed (without the lock), or some time has passed until the share of time allows one. */
bool audit_idle(struct fst_engine *e);
/* Somebody came: let go of slot and pages. */
void audit_yield(struct fst_engine *e);

#endif
