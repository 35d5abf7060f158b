/* disk.h - the tier on disk: a store (store.h) whose objects are files, and what `firesteel kv` asks of it.
 *
 * One folder, one server at a time.  Each object is a file that describes itself, with checksums over
 * all of it; an index (SQLite) remembers sizes and use, and is made anew from the files when it is not
 * there, damaged or of another version.  Files that were written under other numerics or weights stay
 * where they are and are never given out; they count in the budget like all others.
 *
 * The budget is of file bytes, those being written included.  What was used longest ago goes first, but
 * no page before the pages and snapshots behind it: a shared beginning outlives what goes on from it.
 * What was put or used within the residence goes for nobody: a put that would need its room is refused,
 * so that what is written now does not push out what was written a moment ago.
 *
 * Nothing is flushed for each object: a power cut leaves files that do not check out, and those are
 * dropped when they are asked for. */
#ifndef FST_KV_DISK_H
#define FST_KV_DISK_H

#include "kv/store.h"

enum { DISK_TEXT_MAX = 127 };

enum disk_ring { DISK_RING_AUTO, DISK_RING_ON, DISK_RING_OFF };

struct disk_opts {
    const char *dir; /* made if it is not there; its parent is not */
    int64_t budget_bytes;
    int64_t write_bytes_hour; /* in any hour, to the minute; 0: no limit */
    int64_t residence_s;      /* 0: what this very call has put or used stays, all else may go */
    bool zstd;                /* level 1, where it makes an object smaller; read either way */
    enum disk_ring ring;      /* io_uring */
    const char *numerics;    /* what the payload's bytes depend on, as text of 1 .. DISK_TEXT_MAX */
    const char *weights;     /* likewise */
    int64_t (*now_ns)(void); /* wall clock; NULL: the system's */
};
void disk_opts_default(struct disk_opts *o); /* 4 GiB, residence 60 s, nothing else set */

/* Buffers for what is in flight grow to 64 MiB, or two objects, and stay.
 * FST_EAGAIN: another process has the folder, and who, if it says so.  FST_EINVAL names the wrong option,
 * FST_EIO the path and the system's reason.  A folder that can be read alone is opened (one log line)
 * and keeps nothing new. */
enum fst_status disk_open(struct store **out, const struct disk_opts *o);

/* ---------------------------------------------------------------- for tools */

/* An object as its file and the index have it. */
struct disk_object {
    char path[128]; /* below the folder */
    const char *numerics, *weights;
    enum store_kind kind;
    struct store_key key, parent;
    int64_t n;                   /* positions to its end */
    int32_t n_ids;               /* its own ones */
    uint64_t bytes;              /* of the file */
    int64_t created_ns, used_ns; /* wall clock */
    uint32_t hits;
    const char *why; /* the file is no object of this version: what is wrong; else NULL */
};

/* False ends the walk. */
typedef bool disk_visit_fn(void *ud, const struct disk_object *o);

/* All objects; reads only, also beside a server. */
enum fst_status disk_list(const char *dir, disk_visit_fn *visit, void *ud);
/* Reads every file whole; visit gets each, why set where it is bad.  FST_EAGAIN beside a server, FST_ENOMEM. */
enum fst_status disk_verify(const char *dir, disk_visit_fn *visit, void *ud);

struct disk_prune {
    int64_t budget_bytes; /* what may stay; -1: all */
    int64_t max_age_s;    /* since its last use; -1: any.  Pages whose children stay, stay */
    bool others;          /* all that was written under other numerics or weights than these: */
    const char *numerics, *weights; /* both, or NULL: either one that is given counts */
    bool bad;                       /* all that disk_verify would name */
    bool dry;                       /* delete nothing */
};
/* visit (or NULL) gets what goes.  FST_EAGAIN beside a server. */
enum fst_status disk_prune(const char *dir, const struct disk_prune *p, disk_visit_fn *visit,
                           void *ud);

#endif
