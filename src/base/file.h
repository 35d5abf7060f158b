/* file.h - whole files in, whole files out, files as memory.
 *
 * Messages name the file.  A missing file is FST_ENOTFOUND, one above a limit FST_EBUDGET, the rest
 * FST_EIO.  Every open, read, write and mapping of this header goes through one counter, so that a
 * test can let the n-th fail: file_fail_at(n), 1-based, counted from now, once; 0 off. */
#ifndef FST_FILE_H
#define FST_FILE_H

#include "base/base.h"

/* Appends all of the file to out.  limit 0: 1 GiB.  "-" is standard input. */
enum fst_status file_read(struct buf *out, const char *path, size_t limit);
/* Replaces path by these bytes: written beside it, flushed to the disk, renamed.  After a failure
 * the old file is as it was. */
enum fst_status file_write(const char *path, const void *data, size_t len);

/* A file as read-only memory.  Zero is a valid start.  An empty file has data NULL. */
struct file_map {
    const unsigned char *data; /* (size); owned */
    size_t size;
};
enum fst_status file_map_open(struct file_map *m, const char *path);
void file_map_release(struct file_map *m);

/* A file that grows at its end and belongs to one process at a time: records that outlive it.  Zero
 * is a valid start.  The file is for its owner's eyes alone (mode 0600). */
struct file_log {
    bool is_open;
    int fd;        /* owned */
    uint64_t size; /* bytes in it */
};
/* Opens or makes it.  FST_EAGAIN when another process has it open. */
enum fst_status file_log_open(struct file_log *l, const char *path);
/* All or nothing: after a failure the file is cut back to its size before. */
enum fst_status file_log_append(struct file_log *l, const char *path, const void *data, size_t len);
enum fst_status file_log_cut(struct file_log *l, const char *path, uint64_t size);
/* Flushes it to the disk and gives it the name `to`, replacing what has that name. */
enum fst_status file_log_rename(struct file_log *l, const char *path, const char *to);
void file_log_release(struct file_log *l);

/* Makes the folder if it is not there; not those above it. */
enum fst_status file_make_folder(const char *path);
void file_remove(const char *path); /* as far as that goes */
bool file_exists(const char *path);
bool file_is_folder(const char *path);
/* The folder of the running program; false when the system does not say. */
bool file_program_folder(char *out, size_t size);
/* folder + "/" + name in a buffer of size bytes (PATH_MAX is right); FST_EINVAL if it does not fit. */
enum fst_status file_join(char *out, size_t size, const char *folder, const char *name);

void file_fail_at(uint64_t n);
uint64_t file_count(void); /* operations so far */

#endif
