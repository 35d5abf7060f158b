/* io.h - files of a checkpoint folder: whole small files and read-only mappings.
 *
 * Own to this folder because tests let any single system call fail (weights_io_fail_at).
 * Messages name the path and the system's reason. */
#ifndef FST_WEIGHTS_IO_H
#define FST_WEIGHTS_IO_H

#include "base/base.h"

/* A whole file as a read-only mapping.  Zero is "nothing mapped". */
struct weights_map {
    const uint8_t *data; /* NULL when bytes is 0 */
    int64_t bytes;
    int fd; /* of the file, while data is there */
};

/* FST_ENOTFOUND when there is no such file, FST_EIO otherwise; FST_EFORMAT when it is no regular
 * file.  The mapping is left out of core dumps: 150 GiB of weights are no part of a crash. */
enum fst_status weights_map_init(struct weights_map *m, const char *path);
void weights_map_release(struct weights_map *m);
/* Bytes from..from+bytes-1 of the file into memory, without touching the mapping: many threads may read
 * at once.  path is for the message.  FST_EIO, also when the file has become shorter. */
enum fst_status weights_map_read(const struct weights_map *m, const char *path, void *to,
                                 int64_t from, int64_t bytes);
/* Ask for read-ahead of everything; advice only. */
void weights_map_populate(const struct weights_map *m);

/* Read a file of at most `limit` bytes; *out is owned (mem_free), NUL-terminated. */
enum fst_status weights_file_read(char **out, size_t *len, const char *path, int64_t limit);
/* "dir/name", owned; NULL when memory failed (message stored). */
char *weights_path_join(const char *dir, const char *name);

/* Tests: let the n-th open, fstat, read or mmap from now fail once (1-based); 0 switches off. */
void weights_io_fail_at(uint64_t n);

#endif
