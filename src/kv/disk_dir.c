/* disk_dir.c - the folder of the disk tier. */
#include "kv/disk_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "kv/disk_io.h"

static enum fst_status failed(const struct disk_dir *d, const char *what)
{
    return fst_error(FST_EIO, "%s: %s: %s", d->path, what, strerror(errno));
}

/* Alone, or who else.  A folder that cannot be written needs no lock: nobody writes to it. */
static enum fst_status lock(struct disk_dir *d)
{
    char text[32];
    d->lock = disk_sys_open(d->fd, "lock", O_RDWR | O_CREAT);
    if (d->lock < 0) {
        if (errno != EROFS && errno != EACCES && errno != EPERM)
            return failed(d, "cannot open its lock");
        d->read_only = true;
        return FST_OK;
    }
    if (disk_sys_lock(d->lock) == 0) {
        int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        if (ftruncate(d->lock, 0) < 0 || pwrite(d->lock, text, (size_t)n, 0) != n)
            errno = 0; /* it is locked all the same; who by is a help to people */
        return FST_OK;
    }
    if (errno != EWOULDBLOCK)
        return failed(d, "cannot lock it");
    ssize_t n = pread(d->lock, text, sizeof text - 1, 0);
    text[FST_MAX(n, 0)] = 0;
    text[strspn(text, "0123456789")] = 0;
    return fst_error(FST_EAGAIN, "%s: another process has it%s%s%s", d->path,
                     text[0] ? " (process " : "", text, text[0] ? ")" : "");
}

enum fst_status disk_dir_open(struct disk_dir *d, const char *path, enum disk_access access)
{
    enum fst_status rc = FST_OK;
    *d = (struct disk_dir){.path = path, .fd = -1, .lock = -1, .read_only = access == DISK_LOOK};
    if (access == DISK_USE && disk_sys_mkdir(AT_FDCWD, path) < 0 && errno != EROFS &&
        errno != EACCES && errno != EPERM)
        return errno == EEXIST || errno == ENOTDIR
                   ? fst_error(FST_EIO, "%s: is a file, expected a folder", path)
                   : failed(d, "cannot make the folder");
    d->fd = disk_sys_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
    if (d->fd < 0)
        return errno == ENOTDIR  ? fst_error(FST_EIO, "%s: is a file, expected a folder", path)
               : errno == ENOENT ? fst_error(FST_ENOTFOUND, "%s: no such folder", path)
                                 : failed(d, "cannot open");
    struct stat st;
    if (access != DISK_USE && disk_sys_stat_at(d->fd, "objects", &st) < 0 && errno == ENOENT) {
        disk_dir_release(d); /* some other folder: nothing is made in it, a lock neither */
        return fst_error(FST_ENOTFOUND, "%s: keeps no prompts: it has no folder objects", path);
    }
    if (access == DISK_LOOK)
        return FST_OK;
    rc = lock(d);
    if (rc == FST_OK && !d->read_only && access == DISK_USE &&
        (disk_sys_mkdir(d->fd, "objects") < 0 || disk_sys_mkdir(d->fd, "new") < 0)) {
        if (errno == EROFS || errno == EACCES || errno == EPERM)
            d->read_only = true;
        else
            rc = failed(d, "cannot make its folders objects and new");
    }
    if (rc < 0)
        disk_dir_release(d);
    return rc;
}

void disk_dir_release(struct disk_dir *d)
{
    if (d->lock >= 0)
        close(d->lock);
    if (d->fd >= 0)
        close(d->fd);
    d->fd = d->lock = -1;
}

/* ------------------------------------------------------------------ walk */

/* The folder `name`, or NULL. */
static DIR *enter(int at, const char *name)
{
    int fd = disk_sys_open(at, name, O_RDONLY | O_DIRECTORY);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !dir)
        close(fd);
    return dir;
}

/* Its next entry; NULL at the end, or (error set) when it cannot be read on. */
static struct dirent *next_of(DIR *dir, int *error)
{
    errno = 0;
    struct dirent *e = readdir(dir);
    if (!e && errno)
        *error = errno;
    return e;
}

static bool is_hex(const char *s, size_t n)
{
    return strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

struct walk {
    const struct disk_dir *d;
    disk_found_fn *f;
    void *ud;
    struct disk_found found;
    bool ended;
    int error; /* errno of something that could not be read; 0: none */
};

static void walk_folder(struct walk *w, DIR *dir, const char *digits)
{
    struct dirent *e;
    struct stat st;
    while (!w->ended && (e = next_of(dir, &w->error))) {
        struct disk_found *f = &w->found;
        if (!disk_path_parse(e->d_name, &f->key, &f->kind))
            continue;
        disk_path(f->path, f->realm, &f->key, f->kind);
        /* One in a folder that is not its own would be looked for elsewhere. */
        if (strncmp(f->path + sizeof "objects/" - 1 + 17, digits, 2) != 0)
            continue;
        if (disk_sys_stat_at(dirfd(dir), e->d_name, &st) < 0) {
            w->error = errno == ENOENT ? w->error : errno;
            continue;
        }
        if (!S_ISREG(st.st_mode))
            continue;
        f->bytes = (uint64_t)st.st_size;
        f->changed_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        w->ended = !w->f(w->ud, f);
    }
}

static void walk_realm(struct walk *w, DIR *dir)
{
    struct dirent *e;
    while (!w->ended && (e = next_of(dir, &w->error))) {
        if (!is_hex(e->d_name, 2))
            continue;
        DIR *folder = enter(dirfd(dir), e->d_name);
        if (folder) {
            walk_folder(w, folder, e->d_name);
            closedir(folder);
        } else if (errno != ENOENT) {
            w->error = errno;
        }
    }
}

enum fst_status disk_dir_walk(const struct disk_dir *d, disk_found_fn *f, void *ud)
{
    struct walk w = {.d = d, .f = f, .ud = ud};
    struct dirent *e;
    DIR *dir = enter(d->fd, "objects");
    if (!dir)
        return errno == ENOENT ? FST_OK : failed(d, "cannot read its folder objects");
    while (!w.ended && (e = next_of(dir, &w.error))) {
        if (!is_hex(e->d_name, 16))
            continue;
        DIR *realm = enter(dirfd(dir), e->d_name);
        if (!realm) {
            w.error = errno == ENOENT ? w.error : errno;
            continue;
        }
        memcpy(w.found.realm, e->d_name, sizeof w.found.realm);
        walk_realm(&w, realm);
        closedir(realm);
    }
    closedir(dir);
    errno = w.error;
    return w.error ? failed(d, "cannot read all of its objects") : FST_OK;
}

bool disk_dir_clean(const struct disk_dir *d)
{
    struct dirent *e;
    int error = 0;
    DIR *dir = enter(d->fd, "new");
    if (!dir)
        return false;
    while ((e = next_of(dir, &error)))
        if (e->d_name[0] != '.' && disk_sys_unlink(dirfd(dir), e->d_name) < 0)
            error = errno;
    closedir(dir);
    errno = error;
    return error == 0;
}

const char *disk_dir_head(const struct disk_dir *d, const char *path, uint8_t *at, size_t room,
                          uint64_t file_bytes, int *error)
{
    int fd = disk_sys_open(d->fd, path, O_RDONLY);
    *error = fd < 0 ? errno : 0;
    if (fd < 0)
        return "cannot be opened";
    int64_t n = disk_sys_read(fd, at, DISK_ALIGN, 0);
    if (n == DISK_ALIGN) {
        /* One that is larger says so itself, and is believed when all of it checks out. */
        uint32_t bytes = ((const struct disk_head *)(const void *)at)->head_bytes;
        if (bytes > DISK_ALIGN && bytes <= room)
            n = disk_sys_read(fd, at, bytes, 0);
    }
    *error = n < 0 ? errno : 0;
    close(fd);
    return n < 0 ? "cannot be read" : disk_head_check(at, (uint64_t)n, file_bytes);
}
