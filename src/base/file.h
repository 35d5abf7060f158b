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

bool file_exists(const char *path);
bool file_is_folder(const char *path);
/* The folder of the running program; false when the system does not say. */
bool file_program_folder(char *out, size_t size);
/* folder + "/" + name in a buffer of size bytes (PATH_MAX is right); FST_EINVAL if it does not fit. */
enum fst_status file_join(char *out, size_t size, const char *folder, const char *name);

void file_fail_at(uint64_t n);
uint64_t file_count(void); /* operations so far */

#endif
