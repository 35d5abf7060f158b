/* tiers_int.h - what the two sides of the tiers share: marks, jobs, keys.
 *
 * The engine's thread owns marks, queue and the tree.  A job belongs to it until it is posted and again when
 * it is done; in between it is the worker's, with all that it points to.  `lock` guards states of jobs and
 * the copy of the stores' counters. */
#ifndef FST_KV_TIERS_INT_H
#define FST_KV_TIERS_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "kv/tiers.h"
#include "kv/tiers_far.h"
#include "kv/tree_int.h"

enum {
    TIERS_BATCH = 8, /* pages a job: what is locked at once, and how long a load may be held up */
    TIERS_JOBS = 2   /* one being copied, one waiting */
};

/* Of a page or snapshot of the tree, seen from the stores. */
enum mark_state {
    MARK_NONE,
    MARK_QUEUED,
    MARK_COPYING,
    MARK_KEPT,   /* every store has it or had it */
    MARK_REFUSED /* not tried again before it is used */
};

struct mark {
    struct store_key key;
    uint8_t state; /* enum mark_state */
};

enum job_state { JOB_FREE, JOB_POSTED, JOB_DONE };

struct backup {
    enum job_state state;
    int n;
    int32_t entry[TIERS_BATCH]; /* marks */
    struct store_name name[TIERS_BATCH];
    bool kept[TIERS_BATCH]; /* out */
    struct tree_hold hold;
};

enum load_stop { LOAD_ON, LOAD_HASTENED, LOAD_STOPPED };

struct load {
    enum job_state state;
    struct load *next; /* posted behind it */
    atomic_int stop;   /* enum load_stop */
    struct tree_salt salt;
    const int32_t *ids;     /* borrowed */
    struct tree_hold *hold; /* borrowed, the engine's */
    const int32_t *pages;   /* of the slot */
    struct store_key *keys; /* (page_stride + 1) of the root and of the pages */
    struct store_key key;   /* of the snapshot */
    int64_t first, end;     /* pages to be read */
    int64_t n, gain;        /* the snapshot's positions; more than what the tree had */
    int32_t snapshot;       /* expected by the tree */
    int64_t came;           /* out: pages first .. first+came-1 are there */
    bool snapshot_came;     /* out */
};

struct tiers {
    struct tree *tree;
    struct tiers_opts o;
    struct store *store[TIERS_MAX];
    int n_stores;

    /* the engine's thread */
    int32_t n_entries;          /* pages, then snapshots */
    struct mark *mark;          /* (n_entries + 1) */
    struct tree_link *queue;    /* (n_entries + 1) marks that are QUEUED, in order; 0 is the head */
    struct store_key *keys;     /* (page_stride + 1) scratch */
    struct load *load;          /* (n_slots + 1) */
    int64_t n_queued, n_posted; /* n_posted: jobs that were not seen done */
    int n_copying;              /* of these, backups */
    int post_at;                /* the next of `backup` to be posted */
    bool clearing, draining;
    uint64_t n_loads, n_incomplete, loaded_tokens;

    pthread_t thread;
    bool thread_started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    /* under the lock */
    bool quit, clear, hurry; /* hurry: posted copies are given up */
    struct load *first_load, *last_load;
    struct backup backup[TIERS_JOBS];
    int next_backup; /* the older of the posted ones */
    struct store_stats stats[TIERS_MAX];

    /* the worker */
    struct tiers_far far;   /* where KV memory is a card's */
    struct store_run *runs; /* (n_runs) of a batch of pages, or of a snapshot */
    int64_t n_runs, page_runs;
    int64_t unsafe_ns; /* since then something is put that was not flushed; 0: nothing */
    void *block;       /* owned: the arrays above */
};

static inline bool tiers_is_page(const struct tiers *x, int32_t entry)
{
    return entry <= x->tree->kv->spec.n_pages;
}

static inline int32_t tiers_entry_of_snapshot(const struct tiers *x, int32_t snapshot)
{
    return (int32_t)x->tree->kv->spec.n_pages + snapshot;
}

/* tiers_keys.c */
struct store_key tiers_root_key(const struct tiers *x, const struct tree_salt *salt);
struct store_key tiers_page_key(const struct tiers *x, struct store_key before, const int32_t *ids);
struct store_key tiers_snapshot_key(const struct tiers *x, struct store_key before,
                                    const int32_t *tail, int64_t n_tail);
/* Has any store, have all stores this object? */
bool tiers_any_has(const struct tiers *x, const struct store_key *key, enum store_kind kind);
bool tiers_all_have(const struct tiers *x, const struct store_key *key, enum store_kind kind);
/* The longest snapshot in the stores that ids can go on from, at least n_min positions; 0: none.  Its key,
 * and in x->keys those of the pages before it. */
int64_t tiers_find(struct tiers *x, const struct tree_salt *salt, const int32_t *ids, int64_t n_ids,
                   const struct tree_hit *hit, int64_t n_min, struct store_key *key);

/* tiers_worker.c */
void *tiers_thread(void *tiers);

#endif
