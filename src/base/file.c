/* file.c - files by way of one door, where a test can inject faults. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_uint_least64_t n_ops;
static atomic_uint_least64_t fail_at; /* absolute count; 0 off */

void file_fail_at(uint64_t n)
{
    atomic_store(&fail_at, n ? atomic_load(&n_ops) + n : 0);
}

uint64_t file_count(void)
{
    return atomic_load(&n_ops);
}

/* False with errno EIO when this operation is the one to fail. */
static bool door(void)
{
    if (atomic_fetch_add(&n_ops, 1) + 1 != atomic_load(&fail_at))
        return true;
    errno = EIO;
    return false;
}

static int door_open(const char *path, int flags)
{
    return door() ? open(path, flags | O_CLOEXEC, 0666) : -1;
}

static ssize_t door_read(int fd, void *p, size_t n)
{
    ssize_t k;

    if (!door())
        return -1;
    do {
        k = read(fd, p, n);
    } while (k < 0 && errno == EINTR);
    return k;
}

static ssize_t door_write(int fd, const void *p, size_t n)
{
    ssize_t k;

    if (!door())
        return -1;
    do {
        k = write(fd, p, n);
    } while (k < 0 && errno == EINTR);
    return k;
}

static enum fst_status failed(const char *path, const char *what)
{
    return fst_error(errno == ENOENT || errno == ENOTDIR ? FST_ENOTFOUND : FST_EIO, "%s: %s: %s",
                     path, what, strerror(errno));
}

/* Opens for reading; refuses what is no data: read() of a folder says so too late and too oddly. */
static enum fst_status open_in(int *fd, struct stat *st, const char *path)
{
    *fd = door_open(path, O_RDONLY);
    if (*fd < 0)
        return failed(path, "cannot open");
    if (!door() || fstat(*fd, st) < 0)
        return failed(path, "cannot read its size");
    if (S_ISDIR(st->st_mode))
        return fst_error(FST_EIO, "%s: is a folder, expected a file", path);
    return FST_OK;
}

enum fst_status file_read(struct buf *out, const char *path, size_t limit)
{
    size_t start = out->len;
    struct stat st = {0};
    enum fst_status rc;
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = STDIN_FILENO;

    if (limit == 0)
        limit = (size_t)1 << 30;
    if (!is_stdin) {
        rc = open_in(&fd, &st, path);
        if (rc < 0)
            goto out;
    }
    for (;;) {
        /* One byte more than the size, to see the end without a second round. */
        size_t want = 65536;
        ssize_t n;

        if (st.st_size > 0 && out->len == start)
            want = FST_MIN((size_t)st.st_size, limit) + 1;
        if (!buf_reserve(out, want)) {
            rc =
                fst_error(FST_ENOMEM, "%s: no memory for %zu bytes", path, out->len - start + want);
            goto out;
        }
        n = door_read(fd, out->data + out->len, want);
        if (n < 0) {
            rc = failed(path, "cannot read");
            goto out;
        }
        if (n == 0)
            break;
        out->len += (size_t)n;
        if (out->len - start > limit) {
            rc = fst_error(FST_EBUDGET, "%s: larger than the limit of %zu bytes", path, limit);
            goto out;
        }
    }
    rc = FST_OK;
out:
    if (rc < 0)
        out->len = start;
    if (out->data)
        out->data[out->len] = 0;
    if (!is_stdin && fd >= 0)
        close(fd);
    return rc;
}

enum fst_status file_write(const char *path, const void *data, size_t len)
{
    const unsigned char *p = data;
    char beside[PATH_MAX];
    enum fst_status rc;
    int fd = -1;

    if ((size_t)snprintf(beside, sizeof beside, "%s.%ld.new", path, (long)getpid()) >=
        sizeof beside)
        return fst_error(FST_EINVAL, "%s: path too long", path);
    fd = door_open(beside, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0)
        return failed(path, "cannot create");
    while (len > 0) {
        ssize_t n = door_write(fd, p, len);
        if (n < 0) {
            rc = failed(path, "cannot write");
            goto out;
        }
        p += n;
        len -= (size_t)n;
    }
    rc = FST_OK;
    if (!door() || fsync(fd) < 0)
        rc = failed(path, "cannot flush to the disk");
    else if (!door() || rename(beside, path) < 0)
        rc = failed(path, "cannot replace");
out:
    close(fd);
    if (rc < 0)
        unlink(beside);
    return rc;
}

enum fst_status file_map_open(struct file_map *m, const char *path)
{
    struct stat st;
    enum fst_status rc;
    void *p;
    int fd;

    *m = (struct file_map){0};
    rc = open_in(&fd, &st, path);
    if (rc < 0 || st.st_size == 0)
        goto out;
    p = door() ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        rc = failed(path, "cannot map");
        goto out;
    }
    m->data = p;
    m->size = (size_t)st.st_size;
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

void file_map_release(struct file_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct file_map){0};
}

enum fst_status file_log_open(struct file_log *l, const char *path)
{
    struct stat st;
    enum fst_status rc = FST_OK;

    *l = (struct file_log){0};
    l->fd = door() ? open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (l->fd < 0)
        return failed(path, "cannot open");
    if (!door() || flock(l->fd, LOCK_EX | LOCK_NB) < 0)
        rc = errno == EWOULDBLOCK ? fst_error(FST_EAGAIN, "%s: another process has it open", path)
                                  : failed(path, "cannot lock");
    else if (!door() || fstat(l->fd, &st) < 0)
        rc = failed(path, "cannot read its size");
    if (rc < 0) {
        close(l->fd);
        return rc;
    }
    l->is_open = true;
    l->size = (uint64_t)st.st_size;
    return FST_OK;
}

enum fst_status file_log_append(struct file_log *l, const char *path, const void *data, size_t len)
{
    const char *p = data;

    for (size_t left = len; left > 0;) {
        ssize_t n = door_write(l->fd, p, left);
        if (n < 0) {
            enum fst_status rc = failed(path, "cannot write");
            /* A torn end is told by its checksum if this fails too. */
            if (ftruncate(l->fd, (off_t)l->size) < 0)
                errno = 0;
            return rc;
        }
        p += n;
        left -= (size_t)n;
    }
    l->size += len;
    return FST_OK;
}

enum fst_status file_log_cut(struct file_log *l, const char *path, uint64_t size)
{
    if (!door() || ftruncate(l->fd, (off_t)size) < 0)
        return failed(path, "cannot cut");
    l->size = size;
    return FST_OK;
}

enum fst_status file_log_rename(struct file_log *l, const char *path, const char *to)
{
    if (!door() || fsync(l->fd) < 0)
        return failed(path, "cannot flush to the disk");
    if (!door() || rename(path, to) < 0)
        return failed(to, "cannot replace");
    return FST_OK;
}

void file_log_release(struct file_log *l)
{
    if (l->is_open)
        close(l->fd);
    *l = (struct file_log){0};
}

enum fst_status file_make_folder(const char *path)
{
    if (door() && (mkdir(path, 0700) == 0 || (errno == EEXIST && file_is_folder(path))))
        return FST_OK;
    return failed(path, "cannot make the folder");
}

void file_remove(const char *path)
{
    unlink(path);
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool file_program_folder(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    out[FST_MAX(n, 0)] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

enum fst_status file_join(char *out, size_t size, const char *folder, const char *name)
{
    size_t n = strlen(folder);
    const char *slash = n == 0 || folder[n - 1] == '/' ? "" : "/";

    if ((size_t)snprintf(out, size, "%s%s%s", folder, slash, name) >= size)
        return fst_error(FST_EINVAL, "%s/%s: path longer than %zu bytes", folder, name, size - 1);
    return FST_OK;
}
