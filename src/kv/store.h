/* store.h - a tier below the prefix tree: objects under keys, in host memory or on disk.
 *
 * An object is what a request can be given back without computing it: a full page of all layers, or a
 * snapshot (snapshot.h).  Its key is chained: that of a page hashes the key of the page before, the
 * salt at the root, and the page's own 256 ids; that of a snapshot hashes the key of the page before it
 * and the ids behind.  A key alone is not believed: an object carries its parent's key, its salt and its
 * ids, and who gets it compares them.
 *
 * An object is whole or not there.  What does not check out is dropped, told once in the log, and from
 * then on missing; no call fails because of a bad object.  A store that can't go on (disk full, directory
 * gone, memory refused) says so once and keeps nothing more; what it has stays readable if it can be.
 *
 * Which snapshots stand behind a page can't be guessed from its key, since they have 0 to 255 ids of their
 * own: `tails` says of which lengths there are any.  Behind the root there are those of all salts.
 *
 * Threads: `has` and `tails` from any thread, also during the other calls, and fast: the engine's thread
 * asks them for every page of a prompt.  The others from one thread at a time, the tiers' own and never the
 * engine's, since they wait for copies or a disk. */
#ifndef FST_KV_STORE_H
#define FST_KV_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

struct store_key {
    uint64_t word[2]; /* XXH3-128 */
};

enum store_kind { STORE_PAGE = 1, STORE_SNAPSHOT = 2 };

/* What an object is, apart from its payload. */
struct store_name {
    struct store_key key,
        parent; /* parent: zero for the first page's and for a snapshot without one */
    uint64_t salt[4];
    const int32_t *ids; /* own ones: 256 of a page, 0 to 255 of a snapshot */
    int32_t n_ids;
    enum store_kind kind;
    int64_t n; /* positions from the beginning to the object's end */
};

/* A run of the payload, in host memory, or in a device's where the store says that it can (far). */
struct store_run {
    uint8_t *at;
    size_t bytes;
};

struct store_put {
    struct store_name name;
    const struct store_run *runs; /* joined they are the payload */
    int32_t n_runs;
    bool kept; /* out: it is there now, or was before */
};

struct store_get {
    struct store_name name; /* what is expected; an object that differs in anything is missing */
    const struct store_run *runs; /* where the payload goes; their sum is its size */
    int32_t n_runs;
    bool found; /* out; false: runs may hold anything */
};

struct store;
struct store_ops {
    /* Is there an object of this key and kind?  A hint: it may be gone when it is asked for. */
    bool (*has)(struct store *s, const struct store_key *key, enum store_kind kind);
    /* Sets bit n % 64 of word n / 64 where there is a snapshot of n own ids whose parent is this key (zero:
     * without one), and clears none.  A hint: bits too many are fine, of what was dropped or belongs to
     * another key of the same bucket; a bit too few hides a snapshot. */
    void (*tails)(struct store *s, const struct store_key *parent, uint64_t bits[4]);
    /* Many at once, so that a disk may work on all of them.  Never fails as a whole.  What a far store gets is
     * on its way along its stream: who reads it himself waits for that. */
    void (*put)(struct store *s, struct store_put *p, int n);
    void (*get)(struct store *s, struct store_get *g, int n);
    void (*clear)(struct store *s); /* forgets all objects */
    /* What was put before is as safe as the store makes it. */
    void (*flush)(struct store *s);
    void (*close)(struct store *s); /* flushes, unless in a hurry, and frees s */
};

struct store_stats { /* since it was opened, but for what is there now */
    uint64_t n_objects, bytes;
    uint64_t n_put, put_bytes, n_got, got_bytes, n_missed, n_evicted, n_bad;
    uint64_t n_refused; /* not put: no room, or the write budget of this hour is spent */
};

/* First member of every store. */
struct store {
    const struct store_ops *ops;
    const char *name; /* "host", "disk" */
    bool lasts;       /* what it has outlives the process */
    bool far;         /* runs may lie in a device's memory */
    bool hurry;       /* set by the caller: close does not wait until it is safe */
    struct store_stats stats;
};

#endif
