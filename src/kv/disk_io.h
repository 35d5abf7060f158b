/* disk_io.h - the disk tier's way to the system: many reads and writes in flight, and every call through
 * one door that a test can close.
 *
 * Reads and writes go through io_uring; where the kernel or a container refuses that, through a few
 * threads, and without those one after the other.  What an operation does is the same.  One thread at a
 * time, but for the door. */
#ifndef FST_KV_DISK_IO_H
#define FST_KV_DISK_IO_H

#include <sys/stat.h>

#include "base/base.h"
#include "kv/disk.h"

/* Bytes of a file to or from memory.  The caller's until disk_io_take gives it back. */
struct disk_op {
    int fd;
    bool write;
    uint8_t *at;
    size_t bytes;
    uint64_t offset;
    void *ud;
    int64_t done; /* out: bytes, fewer where the file ends; or the negative errno */
    struct disk_op *next;
};

struct disk_io;
/* depth: operations in flight; more may be submitted and wait.  FST_EMACHINE when ring is ON and
 * refused, FST_ENOMEM. */
enum fst_status disk_io_new(struct disk_io **out, enum disk_ring ring, int depth);
void disk_io_free(struct disk_io *io);              /* NULL is fine; nothing is in flight */
const char *disk_io_name(const struct disk_io *io); /* "io_uring", "threads", "plain" */
void disk_io_submit(struct disk_io *io, struct disk_op *op);
/* One that is over; waits for it if `wait`.  NULL: none is, or nothing was submitted that has not been given back. */
struct disk_op *disk_io_take(struct disk_io *io, bool wait);

/* System calls, as they are: -1 and errno.  All files are closed on exec. */
int disk_sys_open(int dir, const char *path, int flags);
int disk_sys_mkdir(int dir, const char *path); /* one that is there is fine */
int disk_sys_rename(int from_dir, const char *from, int to_dir, const char *to);
int disk_sys_unlink(int dir, const char *path);
int disk_sys_stat_at(int dir, const char *path, struct stat *st);
int disk_sys_allocate(int fd, uint64_t bytes); /* where the file system can; blocks of its own */
int disk_sys_lock(int fd);                     /* alone; EWOULDBLOCK: somebody else */
int disk_sys_sync(int fd);                     /* the whole file system of fd */
int64_t disk_sys_read(int fd, void *to, size_t bytes,
                      uint64_t offset); /* all of it, or to the end */

/* Tests: let the n-th operation from now (1-based) fail with this errno, and with `sticky` all behind it
 * that write; n 0: off. */
void disk_io_fail_at(uint64_t n, int error, bool sticky);
uint64_t disk_io_count(void);
/* Tests: every file takes so long to open. */
void disk_io_delay(int us);
/* Tests: no call of an operation moves more than so many bytes, as calls may; 0: as many as it likes. */
void disk_io_limit(size_t bytes);

#endif
