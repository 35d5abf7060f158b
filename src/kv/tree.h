/* tree.h - which positions of a new prompt need not be computed: pages and snapshots that are kept.
 *
 * A node is one full page, 256 token ids behind those of its parent; its number is the page's, since a
 * page belongs to one node at most, and number 0 is the root, in front of every prompt.  Nodes are found
 * by a hash chained from the root, and believed only when parent, salt and all ids are equal.  Nothing
 * of one salt is ever found under another.
 *
 * A request cannot go on behind pages alone: window rows, compressors' inputs and the page that is not
 * full belong to its slot.  A snapshot (snapshot.h) keeps them, and hangs on the node that ends at or
 * before its position, with the ids behind, 0 to 255.  Its bytes lie in chunks of equal size in one
 * arena, which is the budget.
 *
 * What requests rely on is locked: a hold names the deepest node and the snapshot that a request has
 * restored, and locks the snapshot, the node and all nodes before it.  Locks are counted, so holds may
 * overlap.  What is not locked goes when it is needed, least recently used first:
 *   pages  leaves, with their snapshots; a leaf without snapshots first of all, since nobody can go on
 *          from it.  kv_reserve asks for it when no page is free.
 *   bytes  snapshots; their pages stay.
 * A call that ends in FST_EBUDGET has evicted nothing: it knows before what there is to evict.
 *
 * What comes back from a tier (tiers.h) is adopted: its pages as those of a slot that has committed them,
 * its snapshot as one whose bytes were expected.
 *
 * All memory is taken at tree_init.  Only the engine's thread calls this, between steps: what it copies
 * must not be written meanwhile, by a device neither, unless that is by the stream that it copies on. */
#ifndef FST_KV_TREE_H
#define FST_KV_TREE_H

#include "kv/kv.h"
#include "kv/mover.h"
#include "kv/snapshot.h"

/* Whose prefixes: a tenant's digest or number, compared whole.  Zero is a salt like any other. */
struct tree_salt {
    uint64_t word[4];
};

struct tree_opts {
    int64_t budget_bytes; /* of snapshots; less than a chunk: none can be taken */
    int64_t chunk_bytes;  /* multiple of 64, up to 2^30; half a chunk of each snapshot is lost */
    const struct kernels
        *kernels;          /* borrowed, both or neither: copy snapshots by them (mover.h), on the */
    struct stream *stream; /* steps' stream, which may be at work when the tree is called */
    uint64_t hash_mask;    /* bits of a hash that count; fewer than all are for tests */
};

struct tree_plan {
    int64_t n_chunks;
    int64_t arena_bytes; /* host memory that the device can address */
    int64_t table_bytes; /* host memory: ids of all pages and tails, nodes, snapshots */
};

struct tree_link { /* place in a list from the least to the most recently used; 0 is its head */
    int32_t newer, older;
};

struct tree_node {
    int32_t parent, n_children;
    int32_t depth; /* pages from the root, this one included */
    int32_t locks;
    int32_t snapshots; /* first of its list; 0: none */
    int32_t chain;     /* next node of the same bucket */
    uint64_t hash;
    struct tree_salt salt;
};

/* Of pages and snapshots: kept from now on, gone on from once more, about to be forgotten. */
enum tree_event { TREE_KEPT, TREE_USED, TREE_GONE };
struct tree_watch { /* called from inside the tree, which must not be called back; zero: nobody */
    void (*page)(void *ud, int32_t node, enum tree_event what);
    void (*snapshot)(void *ud, int32_t snapshot, enum tree_event what);
    void *ud;
};

struct tree_snapshot {
    int64_t n;          /* positions that it stands for; 0: not in use */
    int32_t node;       /* it hangs on, n/256 pages deep */
    int32_t next, prev; /* in the node's list, or next unused one */
    int32_t locks;
    int32_t chunk, n_chunks; /* first of its chain */
    int64_t bytes;
    bool expected; /* its bytes are still to come: it hangs nowhere */
    uint32_t note; /* the caller's (tree_note); 0 at first, also when it comes back from a tier */
    struct tree_salt salt;
};

struct tree {
    struct kv *kv; /* borrowed; its pages are kept until tree_release */
    struct tree_opts opts;
    struct tree_watch watch;
    int64_t n_chunks, n_buckets;
    struct tree_node *node;         /* (n_pages + 1); in use where kv->kept says so, and the root */
    struct tree_snapshot *snapshot; /* (n_chunks + 1) */
    struct tree_link *node_use, *snapshot_use; /* as many; those that are in use and not locked */
    int32_t *ids;                              /* (n_pages + 1, 256) */
    int32_t *tails;                            /* (n_chunks + 1, 255) */
    int32_t *bucket;                           /* (n_buckets) first node, a power of two */
    int32_t *chunk_next;                       /* (n_chunks + 1) */
    int32_t *path;  /* (page_stride) scratch: pages of a node and those before it */
    uint8_t *arena; /* (n_chunks, chunk_bytes), shared memory */
    struct kv_mover mover;
    void *tables; /* owned: what the arrays above but the arena lie in */
    int32_t free_snapshot, free_chunk;
    int64_t n_free_chunks;
    int64_t n_idle_chunks; /* of snapshots that nobody has locked: as good as free */
    int64_t n_nodes, n_snapshots, n_expected;
    uint64_t n_evicted_pages, n_evicted_snapshots; /* since tree_init, tree_drop's not counted */
    uint64_t n_removed;                            /* nodes and snapshots: tells a stale hit */
};

/* What a lookup has found.  To be used before anything is evicted or dropped. */
struct tree_hit {
    int32_t node;      /* deepest of the walk; 0: the root */
    int64_t n_full;    /* ids on full pages, 256 times its depth */
    int32_t snapshot;  /* longest that can be restored; 0: none */
    int64_t n_restore; /* its positions, at most one less than the ids; 0: none */
    uint64_t n_removed;
};

/* What a request relies on.  Zero: nothing. */
struct tree_hold {
    int32_t node, snapshot;
};

void tree_opts_default(struct tree_opts *o); /* no budget, 64 KiB, all bits */
/* FST_EINVAL names the wrong field.  spec has passed kv_plan. */
enum fst_status tree_plan(const struct kv_spec *spec, const struct tree_opts *o,
                          struct tree_plan *out);
/* Makes kv_reserve reclaim pages of this tree; one tree for a kv.  FST_EINVAL, FST_ENOMEM. */
enum fst_status tree_init(struct tree *t, struct kv *kv, const struct tree_opts *o);
/* Lets go of all pages, whatever is locked; before kv_release.  A zero tree is fine. */
void tree_release(struct tree *t);

/* Walk the longest path of full pages of ids, and find the longest snapshot on it whose own ids go on
 * like these, at most n_ids-1 (the last one has to be computed).  Changes nothing, no order of use
 * either. */
void tree_match(const struct tree *t, const struct tree_salt *salt, const int32_t *ids,
                int64_t n_ids, struct tree_hit *out);

/* How many ids anything that is kept begins with, after tree_match of them: at least what was found.
 * *differs: something goes on there with another id; else all of it ends.  Looks at every node and snapshot. */
int64_t tree_common(const struct tree *t, const struct tree_salt *salt, const int32_t *ids,
                    int64_t n_ids, const struct tree_hit *hit, bool *differs);

/* Keep the full pages of a slot that has committed all n_ids positions, ids being its tokens.  Where
 * the tree has a page already, the slot takes that one and gives its own back.  The hold moves to the
 * last page, if there is one (hold may be NULL: nothing gets locked); it was empty or belongs to the same
 * tokens.  A slot's pages are kept under one salt.  Returns the number of pages that are new to the tree. */
int64_t tree_insert(struct tree *t, int slot, const struct tree_salt *salt, const int32_t *ids,
                    int64_t n_ids, struct tree_hold *hold);

/* tree_insert of n ids, and a snapshot at n >= 1 unless there is one; evicts others for its bytes.
 * n_written: positions that the slot's rings have seen, n + kv_snapshot_slack at most.  A slot that was
 * restored has no snapshot to give before that position.
 * FST_EBUDGET: all that may be evicted does not give the bytes (nothing changes).  FST_EINTERNAL when the
 * device cannot copy: pages are kept, the snapshot is not. */
enum fst_status tree_take(struct tree *t, int slot, const struct tree_salt *salt,
                          const int32_t *ids, int64_t n, int64_t n_written, struct tree_hold *hold);

/* An open slot without pages goes on at hit->n_restore, which is not 0: it shares the full pages, gets
 * pages of its own for the positions behind, n_positions in all, holds a copy of the snapshot's bytes,
 * and has committed n_restore.  The hold was empty.  FST_EBUDGET: not enough pages (nothing changes);
 * FST_EINVAL: n_positions is beyond context_length; FST_EINTERNAL: the device cannot copy (the slot is
 * empty, the hold too). */
enum fst_status tree_restore(struct tree *t, int slot, const struct tree_hit *hit,
                             int64_t n_positions, struct tree_hold *hold);

/* A slot goes back to position n or before: it gives up its pages and its hold, and goes on from the longest
 * snapshot of at most n of its ids, of which n+1 are there; *at: where, 0 without one.  It gets pages for
 * n_positions.  Refusals as of tree_restore, after which slot and hold are empty. */
enum fst_status tree_rewind(struct tree *t, int slot, const struct tree_salt *salt,
                            const int32_t *ids, int64_t n, int64_t n_positions,
                            struct tree_hold *hold, int64_t *at);

/* An open slot without pages shares the first n_full / 256 pages of the walk, gets pages of its own for the
 * rest of n_positions, and has committed n_full, at most hit->n_full: what a request needs whose next pages
 * come from a tier.  Refusals as of tree_restore. */
enum fst_status tree_share(struct tree *t, int slot, const struct tree_hit *hit, int64_t n_full,
                           int64_t n_positions, struct tree_hold *hold);
/* Bytes for a snapshot at n that somebody else will fill; evicts others for them.  It is found by nobody
 * until it is adopted.  FST_EBUDGET as of tree_take (nothing changes). */
enum fst_status tree_expect(struct tree *t, int64_t n, int32_t *snapshot);
/* Its bytes are there: tree_insert of the full pages before n, which the slot has committed, and the snapshot
 * hangs behind them; one that is there already stays instead, being the same. */
void tree_adopt(struct tree *t, int32_t snapshot, int slot, const struct tree_salt *salt,
                const int32_t *ids, struct tree_hold *hold);
void tree_forgo(struct tree *t, int32_t snapshot); /* its bytes will not come */
/* The runs of a snapshot's bytes, in the order of kv_snapshot_runs.  Any thread, while it is locked or
 * expected; on a card the bytes are there after mover_settle. */
enum fst_status tree_snapshot_runs(const struct tree *t, int32_t snapshot, kv_run_fn *f, void *ud);

/* Let go; the hold is empty then. */
void tree_unlock(struct tree *t, struct tree_hold *hold);

/* Leave a note, not 0, at the snapshot at exactly n ids, if there is one without: what was noted when its bytes
 * were taken stays.  A hit's snapshot has it. */
void tree_note(struct tree *t, const struct tree_salt *salt, const int32_t *ids, int64_t n,
               uint32_t note);

/* Forget the snapshot at exactly n ids.  False: there is none, or it is locked. */
bool tree_drop(struct tree *t, const struct tree_salt *salt, const int32_t *ids, int64_t n);
/* Evict the next leaf with its snapshots.  False: everything is locked, or nothing is there. */
bool tree_evict(struct tree *t);
/* Evict all that is not locked. */
void tree_flush(struct tree *t);

/* kv_check, and of the tree: every page a node's or not kept, no node without its parent, none that a
 * lookup misses or finds twice, no snapshot without its node, every chunk free or a snapshot's, all
 * counters and orders of use.  FST_EINTERNAL with the first contradiction, FST_ENOMEM. */
enum fst_status tree_check(const struct tree *t);

#endif
