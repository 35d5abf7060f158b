/* io.c - open, read and map files, every call through one door that tests can close. */
#include "weights/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic uint64_t n_calls, fail_at;

void weights_io_fail_at(uint64_t n)
{
    atomic_store(&n_calls, 0);
    atomic_store(&fail_at, n);
}

/* True when this call is the one a test wants to fail; errno then says EIO. */
static bool told_to_fail(void)
{
    uint64_t n = atomic_fetch_add(&n_calls, 1) + 1;
    if (n != atomic_load(&fail_at))
        return false;
    errno = EIO;
    return true;
}

/* Open for reading and say how long it is. */
static enum fst_status file_open(int *fd, int64_t *bytes, const char *path)
{
    struct stat st;
    *fd = told_to_fail() ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return fst_error(errno == ENOENT || errno == ENOTDIR ? FST_ENOTFOUND : FST_EIO,
                         "%s: cannot open: %s", path, strerror(errno));
    if (told_to_fail() || fstat(*fd, &st) < 0) {
        enum fst_status rc = fst_error(FST_EIO, "%s: cannot stat: %s", path, strerror(errno));
        close(*fd);
        return rc;
    }
    if (!S_ISREG(st.st_mode)) {
        close(*fd);
        return fst_error(FST_EFORMAT, "%s: not a regular file", path);
    }
    *bytes = st.st_size;
    return FST_OK;
}

enum fst_status weights_map_init(struct weights_map *m, const char *path)
{
    int fd;
    int64_t bytes;
    enum fst_status rc = FST_OK;

    *m = (struct weights_map){0};
    FST_TRY(file_open(&fd, &bytes, path));
    if (bytes > 0) {
        void *p =
            told_to_fail() ? MAP_FAILED : mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            rc = fst_error(FST_EIO, "%s: cannot map %" PRId64 " bytes: %s", path, bytes,
                           strerror(errno));
        } else {
            madvise(p, (size_t)bytes, MADV_DONTDUMP);
            m->data = p;
            m->bytes = bytes;
            m->fd = fd;
        }
    }
    if (!m->data)
        close(fd);
    return rc;
}

void weights_map_release(struct weights_map *m)
{
    if (m->data) {
        munmap((void *)(uintptr_t)m->data, (size_t)m->bytes);
        close(m->fd);
    }
    *m = (struct weights_map){0};
}

enum fst_status weights_map_read(const struct weights_map *m, const char *path, void *to,
                                 int64_t from, int64_t bytes)
{
    uint8_t *at = to;
    while (bytes > 0) {
        ssize_t n = told_to_fail() ? -1 : pread(m->fd, at, (size_t)bytes, from);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fst_error(FST_EIO, "%s: cannot read %" PRId64 " bytes at %" PRId64 ": %s", path,
                             bytes, from, n ? strerror(errno) : "the file has become shorter");
        at += n;
        from += n;
        bytes -= n;
    }
    return FST_OK;
}

void weights_map_populate(const struct weights_map *m)
{
    if (m->data)
        madvise((void *)(uintptr_t)m->data, (size_t)m->bytes, MADV_WILLNEED);
}

enum fst_status weights_file_read(char **out, size_t *len, const char *path, int64_t limit)
{
    int fd;
    int64_t bytes;
    char *text = NULL;
    size_t have = 0;
    enum fst_status rc = FST_OK;

    *out = NULL;
    *len = 0;
    FST_TRY(file_open(&fd, &bytes, path));
    if (bytes > limit) {
        rc = fst_error(FST_EFORMAT, "%s: %" PRId64 " bytes; at most %" PRId64 " expected", path,
                       bytes, limit);
        goto out;
    }
    text = mem_alloc((size_t)bytes + 1);
    if (!text) {
        rc = fst_error(FST_ENOMEM, "%s: no memory for %" PRId64 " bytes", path, bytes);
        goto out;
    }
    while (have < (size_t)bytes) {
        ssize_t n = told_to_fail() ? -1 : read(fd, text + have, (size_t)bytes - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = fst_error(FST_EIO, "%s: cannot read: %s", path, strerror(errno));
            goto out;
        }
        if (n == 0)
            break; /* became shorter meanwhile: what is there is judged by the parser */
        have += (size_t)n;
    }
    text[have] = '\0';
    *out = text;
    *len = have;
    text = NULL;
out:
    mem_free(text);
    close(fd);
    return rc;
}

char *weights_path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *p = mem_alloc(n);
    if (!p) {
        fst_error(FST_ENOMEM, "%s: no memory for a path", dir);
        return NULL;
    }
    snprintf(p, n, "%s%s%s", dir, dir[0] && dir[strlen(dir) - 1] == '/' ? "" : "/", name);
    return p;
}
