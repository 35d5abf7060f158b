/* tiers.h - what the prefix tree may let go is copied to stores below it, and brought back when asked for.
 *
 * Stores (store.h) stand in the order in which they are asked: host memory, then a disk.  One thread of its
 * own copies and waits; the engine's thread posts work and looks whether it is done, and never waits.
 *
 *   copies  of pages and snapshots of the tree, read where they lie and locked meanwhile, a few at a time:
 *           what is not locked can go any moment, copied or not.  An object that a store has is not written
 *           again.  When: as soon as it is kept (write_through), when it is gone on from for the first time
 *           (write_selective), or when a quarter of the pages or chunks is left and it is among the next to
 *           go (write_back).
 *   loads   for a request that waits in an open slot: the longest snapshot of its ids in any store, if that
 *           is `min_gain` tokens more than the tree has, and the pages before it that the tree lacks.  They
 *           are read into pages of the slot and chunks of the tree; when all are there the tree adopts them
 *           and the request goes on as after any hit.  Of an incomplete load the pages up to the first
 *           missing one are kept, for a shorter snapshot to stand on.
 *
 * On a card.  Pages go through a piece of its memory, gathered or scattered by one launch each batch, and from
 * there to where a store wants them: a far one copies them itself, for others they pass through host memory.
 * The worker's launches and copies are on a stream of its own, which is ordered behind the steps' when a job is
 * posted: what is copied has been computed, and who had the pages of a load before is done with them.
 *
 * Keys.  The root's hashes the salt, a page's its parent's key and its ids, a snapshot's the key of the page
 * before it and the ids behind, so nothing of one salt is found under another. */
#ifndef FST_KV_TIERS_H
#define FST_KV_TIERS_H

#include "kv/store.h"
#include "kv/tree.h"

enum { TIERS_MAX = 2 };

enum tiers_policy { TIERS_WRITE_THROUGH, TIERS_WRITE_SELECTIVE, TIERS_WRITE_BACK };

struct tiers_opts {
    enum tiers_policy policy;
    int64_t min_gain;       /* tokens; fewer are computed sooner than loaded */
    uint64_t key_mask;      /* bits of a key that count; fewer than all are for tests */
    struct stream *stream;  /* of a card's KV memory: borrowed, the tiers' own; else NULL */
    void (*wake)(void *ud); /* something is done: from the tiers' thread, NULL: nobody waits */
    void *wake_ud;
};

struct tiers;

void tiers_opts_default(struct tiers_opts *o); /* write_through, 64 tokens, all bits */
/* Takes the stores, whatever it returns, and the tree's watch.  FST_EINVAL, FST_ENOMEM, FST_EMACHINE: no
 * thread. */
enum fst_status tiers_open(struct tiers **out, struct tree *tree, struct store *const *stores,
                           int n, const struct tiers_opts *o);
/* Writes what the tree still has to stores that last, what was used last first; closes all; before
 * tree_release.  No load is under way.  NULL is fine. */
void tiers_close(struct tiers *x);
/* The same, but what is not written by then (clock_ns) is not: calls of stores that have begun come to their
 * end, and one line says how much was left. */
void tiers_close_by(struct tiers *x, int64_t end_ns);

/* The engine's thread, all of these. */

/* What is done: its locks are gone. */
void tiers_poll(struct tiers *x);
/* Start to copy what is due.  Not when pages are short: what is copied is locked. */
void tiers_post(struct tiers *x);
/* Is any page or chunk locked for a copy? */
bool tiers_copying(const struct tiers *x);

/* Is there more in the stores than what tree_match has found of ids?  FST_OK: it is under way to the slot,
 * which was open and without pages and has some for n_ids now; ids and hold stay where they are until
 * tiers_end.  FST_EAGAIN: no (or no chunks for it); FST_EBUDGET: not enough pages.  After these the slot is
 * as it was, the hit may be stale. */
enum fst_status tiers_load(struct tiers *x, int slot, const struct tree_salt *salt,
                           const int32_t *ids, int64_t n_ids, const struct tree_hit *hit,
                           struct tree_hold *hold);
bool tiers_loading(struct tiers *x, int slot); /* false: tiers_end may be called, and has to be */
void tiers_stop(struct tiers *x, int slot);    /* it ends soon, with what has come */
void tiers_hasten(struct tiers *x,
                  int slot); /* the same, but for what stores in memory have of the rest */
int64_t tiers_gain(struct tiers *x, int slot); /* what it is for: tokens more than the tree had */
void tiers_await(struct tiers *x, int slot);   /* waits until it has ended */
/* The tree adopts what has come; slot and hold are empty.  True: all of it has. */
bool tiers_end(struct tiers *x, int slot);
/* Until nothing is posted and no load is under way any more (tests, shutdown). */
void tiers_wait(struct tiers *x);
/* Forget everything in all stores.  Nothing is found from now on; copies go on when it is done. */
void tiers_clear(struct tiers *x);

struct tiers_stats {
    uint64_t n_loads, n_incomplete; /* loads that were begun; of these without all they were for */
    uint64_t loaded_tokens;         /* beyond what the tree had, of complete ones */
    int64_t n_queued;               /* what waits to be copied or is being copied */
    int n_stores;
    const char *name[TIERS_MAX];
    struct store_stats store[TIERS_MAX];
};
void tiers_get_stats(struct tiers *x, struct tiers_stats *out);
/* Every mark is of something that the tree has, under the key of its ids; every queue whole.
 * FST_EINTERNAL with the first contradiction. */
enum fst_status tiers_check(const struct tiers *x);

#endif
