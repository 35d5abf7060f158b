/* disk_int.h - what the files of the disk tier share: the store itself.
 *
 * `lock` guards the set and the numbers in `stats`, and is never held during a system call.  All else is
 * used by one caller at a time. */
#ifndef FST_KV_DISK_INT_H
#define FST_KV_DISK_INT_H

#include <pthread.h>

#include "base/pool.h"
#include "kv/disk_dir.h"
#include "kv/disk_index.h"
#include "kv/disk_io.h"

enum {
    DISK_LANES = 32,        /* objects in flight */
    DISK_DEPTH = 64,        /* operations in flight */
    DISK_PIECE = 1 << 20,   /* of one operation */
    DISK_HANDS = 4,         /* threads that check and copy what was read: one does 4 GB/s */
    DISK_AT_ONCE = 8,       /* objects that they are given, while the others are in flight */
    DISK_MINUTES = 60,      /* of the write budget */
    DISK_PENDING_MAX = 4096 /* removed objects that the index has still to forget */
};
/* In flight together, unless two objects are more: enough for any device, and little enough that what was read is
 * still in a cache when it is checked and copied (see bench/notes.md). */
#define DISK_FLIGHT_BYTES ((uint64_t)12 << 20)
/* Of all lanes' buffers together, unless two objects are more. */
#define DISK_LANE_BYTES ((uint64_t)64 << 20)

/* One object on its way, and the buffer with its file's image. */
struct disk_lane {
    uint8_t *buf; /* (cap), aligned; kept from object to object */
    uint64_t cap, bytes;
    int fd, which; /* file; which put or get of the call */
    int32_t entry;
    int n_left, n_ops;  /* operations that are not over; all of them */
    int error;          /* errno of the first that failed; 0: none */
    bool busy, cut;     /* cut: the file ended early */
    struct disk_op *op; /* (op_cap) */
    int op_cap;
    char path[DISK_PATH]; /* being written: its name in new/ */
    const char *why;      /* read: what is wrong with it; NULL: nothing */
    bool same, taken;     /* it is what was asked for; its payload is in the runs */
};

struct disk {
    struct store store; /* first */
    struct disk_opts o;
    char *dir_path; /* owned, as are numerics and weights */
    char *numerics, *weights;
    struct disk_dir dir;
    struct disk_index *index;
    struct disk_io *io;
    struct pool *hands; /* NULL: the caller alone */
    struct disk_zip *zip;
    pthread_mutex_t lock;
    struct disk_set set; /* realm 0 is ours */
    struct disk_lane lane[DISK_LANES];
    uint64_t lane_bytes;
    bool direct;  /* O_DIRECT works here */
    bool stopped; /* nothing more is put */
    bool said_gone, said_memory, said_barred;
    bool folder[256]; /* of realm 0, by two digits: known to be there */
    bool realm_made;
    uint64_t n_made;           /* names in new/ */
    int64_t wall_ns, clock_ns; /* both clocks when it was opened */
    int64_t last_ns;           /* newest time of use handed out */
    int64_t saved_ns;
    struct disk_entry forget[DISK_PENDING_MAX];
    int n_forget, n_changes;      /* since the index was written */
    int64_t minute[DISK_MINUTES]; /* which one since 1970 */
    uint64_t written[DISK_MINUTES];
};

void disk_put_all(struct store *s, struct store_put *p, int n);
void disk_get_all(struct store *s, struct store_get *g, int n);

/* A time of use, later than all before it. */
int64_t disk_now(struct disk *d);
/* Nothing is put from now on; told once. */
void disk_stop(struct disk *d, const char *what, const char *path, const char *why);
/* Take it out of the set, and its file out of the folder.  False: the file could not be removed. */
bool disk_forget(struct disk *d, int32_t entry);
/* One that does not check out: told, dropped, counted. */
void disk_drop_bad(struct disk *d, int32_t entry, const char *why);
/* One that we may not read is missing in this run and stays where it is; told once for all of them. */
void disk_bar(struct disk *d, int32_t entry, const char *why);
/* Write the index when enough has changed, or in any case. */
void disk_save(struct disk *d, bool now);
void disk_count(struct disk *d); /* stats of what is there, under the lock */

/* A lane that is free, with room for so many bytes and its operations.  NULL: no memory (told once). */
struct disk_lane *disk_lane_take(struct disk *d, uint64_t bytes);
bool disk_lane_any(const struct disk *d); /* one is free, and more bytes may be in flight */
bool disk_lane_busy(const struct disk *d);
/* All of its bytes, to or from its file, in pieces. */
void disk_lane_start(struct disk *d, struct disk_lane *l, bool write);
/* The next lane whose operations are all over; NULL: none is yet, and `wait` is false. */
struct disk_lane *disk_lane_done(struct disk *d, bool wait);
void disk_lane_free_all(struct disk *d);

#endif
