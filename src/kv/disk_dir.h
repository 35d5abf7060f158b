/* disk_dir.h - the tier's folder: opened, locked, walked.
 *
 *     lock       held by one server or tool (flock), with its process id inside
 *     index      the index (disk_index.h)
 *     new/       what is being written
 *     objects/   REALM/XX/KEY.page or KEY.snapshot
 *
 * Nothing else is touched, whatever lies there. */
#ifndef FST_KV_DISK_DIR_H
#define FST_KV_DISK_DIR_H

#include "kv/disk_set.h"

struct disk_dir {
    const char *path; /* borrowed */
    int fd, lock;     /* -1: none */
    bool read_only;   /* nothing can be written there, or nothing may */
};

enum disk_access {
    DISK_LOOK, /* no lock, nothing is written */
    DISK_TOOL, /* alone, and it has to be there */
    DISK_USE   /* alone; made when it is not there.  What cannot be written is opened read_only */
};
/* A zero disk_dir is not one: release only what was opened. */
enum fst_status disk_dir_open(struct disk_dir *d, const char *path, enum disk_access access);
void disk_dir_release(struct disk_dir *d);

struct disk_found {
    char realm[17], path[DISK_PATH];
    struct store_key key;
    enum store_kind kind;
    uint64_t bytes;
    int64_t changed_ns; /* the file's own time */
};
/* False ends the walk. */
typedef bool disk_found_fn(void *ud, const struct disk_found *f);
/* Every file of objects/ whose name is an object's.  FST_EIO when a folder cannot be read. */
enum fst_status disk_dir_walk(const struct disk_dir *d, disk_found_fn *f, void *ud);
/* Remove what is in new/.  False and errno: something stays. */
bool disk_dir_clean(const struct disk_dir *d);
/* Head of an object's file into `at`, of DISK_ALIGN bytes or more in `room`; NULL, or what is wrong.  error: the
 * errno when the system says so, 0 when the bytes do. */
const char *disk_dir_head(const struct disk_dir *d, const char *path, uint8_t *at, size_t room,
                          uint64_t file_bytes, int *error);

#endif
