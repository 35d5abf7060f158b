/* disk_set.h - which objects the folder has, in memory: found by key, in the order of their use, each under
 * its parent.
 *
 * An object whose parent is not there hangs on a stand-in, so that the parent knows its children when
 * it comes.  Use goes from an object to the root: what all go on from was used when they were.
 * Entries are numbered from 1 and stay where they are until they are removed; 0 is none.  No lock: its
 * owner has one. */
#ifndef FST_KV_DISK_SET_H
#define FST_KV_DISK_SET_H

#include "kv/disk_file.h"

enum { DISK_TAILS = 256 }; /* a snapshot has fewer ids than that */

enum disk_state {
    DISK_FREE,
    DISK_ABSENT,  /* a stand-in: no file, children alone */
    DISK_CLAIMED, /* the index says so; the file has not been seen yet */
    DISK_WRITING,
    DISK_STORED
};

struct disk_entry {
    struct store_key key, parent;
    uint64_t name_hash; /* 0: not known */
    int64_t used_ns, created_ns, n;
    uint64_t bytes; /* of the file */
    uint32_t hits;
    int32_t n_ids, n_children;
    int32_t parent_idx, chain;    /* next of the bucket, or next free */
    int32_t newer, older;         /* by use; not of stand-ins */
    int32_t tails;                /* of a page: the first of the snapshots whose parent it is */
    int32_t tail_next, tail_prev; /* of a snapshot: its place in that list */
    uint16_t realm;
    uint8_t kind, state;
    bool dirty;  /* the index has something else */
    bool barred; /* the system does not let us read it: missing until the next start */
};

/* What was written under the same numerics, weights and version. */
struct disk_realm {
    char name[17];
    char numerics[DISK_TEXT_MAX + 1], weights[DISK_TEXT_MAX + 1]; /* empty: not known yet */
};

struct disk_set {
    struct disk_entry *entry; /* (cap) */
    int32_t *bucket;          /* (n_buckets), a power of two */
    int32_t cap, n_buckets, free;
    struct disk_realm *realm; /* (n_realms) */
    int32_t n_realms;
    uint64_t n_objects, bytes; /* of all but stand-ins */
    /* Snapshots without a parent, by their ids: those of all short prompts, too many for a list. */
    int32_t root_tails[DISK_TAILS];
};

enum fst_status disk_set_init(struct disk_set *s);
void disk_set_release(struct disk_set *s); /* a zero set is fine */

/* The realm of that name, made when it is not there; -1: no memory, or more than 1000. */
int disk_set_realm(struct disk_set *s, const char *name);
/* 0: there is none.  A stand-in counts. */
int32_t disk_set_find(const struct disk_set *s, int realm, const struct store_key *key,
                      enum store_kind kind);
/* Adds what is not there but as a stand-in; e gives key, parent, realm, kind, state, sizes and times.  The
 * newest in the order of use.  0: no memory. */
int32_t disk_set_add(struct disk_set *s, const struct disk_entry *e);
void disk_set_remove(struct disk_set *s, int32_t at);
/* Sets a bit for the number of ids of each snapshot with this parent (zero: none, of any realm). */
void disk_set_tails(const struct disk_set *s, int realm, const struct store_key *parent,
                    uint64_t bits[4]);
void disk_set_resize(struct disk_set *s, int32_t at, uint64_t bytes);
/* Used now, and all before it.  now_ns: not before any earlier use. */
void disk_set_use(struct disk_set *s, int32_t at, int64_t now_ns);
/* The object to go next: used before `before_ns`, without children, the longest unused.  0: none. */
int32_t disk_set_victim(const struct disk_set *s, int64_t before_ns);
/* Put all in order by used_ns, after many were added in no order.  FST_ENOMEM: they stay as they are. */
enum fst_status disk_set_sort(struct disk_set *s);
/* The next in the order of use, from the one used longest ago (behind 0); 0 behind the last. */
static inline int32_t disk_set_next(const struct disk_set *s, int32_t at)
{
    return s->entry[at].newer;
}
/* Links, counts and order contradict each other: FST_EINTERNAL with the first contradiction. */
enum fst_status disk_set_check(const struct disk_set *s);

#endif
