/* disk_put.c - objects into files: what is let in, what goes for it, and how a file comes to be.
 *
 * A file is written under a name in new/ and renamed when all its bytes have been taken.  A kill before
 * that leaves something in new/, which the next server removes; after it, an object. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "kv/disk_int.h"

#define SECOND ((int64_t)1000000000)

/* ------------------------------------------------------------------ what is let in */

static int64_t minute_of(int64_t now_ns)
{
    return now_ns / (60 * SECOND);
}

/* Bytes written in the last hour, minutes that are over it left out. */
static uint64_t written(struct disk *d, int64_t minute)
{
    uint64_t bytes = 0;
    for (int i = 0; i < DISK_MINUTES; i++)
        if (d->minute[i] > minute - DISK_MINUTES)
            bytes += d->written[i];
    return bytes;
}

static bool spend(struct disk *d, int64_t now_ns, uint64_t bytes)
{
    int64_t minute = minute_of(now_ns);
    int i = (int)(minute % DISK_MINUTES);
    if (d->o.write_bytes_hour && written(d, minute) + bytes > (uint64_t)d->o.write_bytes_hour)
        return false;
    if (d->minute[i] != minute) {
        d->minute[i] = minute;
        d->written[i] = 0;
    }
    d->written[i] += bytes;
    return true;
}

/* How much could be had by evicting, up to what is wanted: nothing goes for an object that does not fit
 * in the end.  Goes through the same entries as disk_set_victim would. */
static bool can_make_room(struct disk *d, uint64_t bytes, int64_t before_ns)
{
    const struct disk_set *s = &d->set;
    uint64_t have = (uint64_t)d->o.budget_bytes - FST_MIN(s->bytes, (uint64_t)d->o.budget_bytes);
    for (int32_t i = disk_set_next(s, 0); i && have < bytes; i = disk_set_next(s, i)) {
        if (s->entry[i].used_ns >= before_ns)
            return false;
        /* A page is as good as free when all behind it is: those were used before it, and counted. */
        if (s->entry[i].state == DISK_STORED)
            have += s->entry[i].bytes;
    }
    return have >= bytes;
}

/* Evict until so many bytes fit.  False: they do not, or a file cannot be removed. */
static bool make_room(struct disk *d, uint64_t bytes, int64_t before_ns)
{
    bool fits;
    pthread_mutex_lock(&d->lock);
    fits = can_make_room(d, bytes, before_ns);
    pthread_mutex_unlock(&d->lock);
    while (fits) {
        pthread_mutex_lock(&d->lock);
        bool enough = d->set.bytes + bytes <= (uint64_t)d->o.budget_bytes;
        int32_t victim = enough ? 0 : disk_set_victim(&d->set, before_ns);
        pthread_mutex_unlock(&d->lock);
        if (enough)
            return true;
        if (!victim)
            return false;
        d->store.stats.n_evicted++;
        fits = disk_forget(d, victim);
    }
    return false;
}

/* ------------------------------------------------------------------ files */

/* The folder of an object: made once. */
static int make_folders(struct disk *d, const char *path)
{
    char folder[DISK_PATH];
    unsigned digits = 0;
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    char *slash = strrchr(folder, '/');
    sscanf(slash + 1, "%2x", &digits);
    if (d->folder[digits & 255])
        return 0;
    *slash = 0;
    if (!d->realm_made && disk_sys_mkdir(d->dir.fd, folder) < 0)
        return -1;
    d->realm_made = true;
    *slash = '/';
    if (disk_sys_mkdir(d->dir.fd, folder) < 0)
        return -1;
    d->folder[digits & 255] = true;
    return 0;
}

static int create(struct disk *d, const char *path)
{
    int flags = O_WRONLY | O_CREAT | O_TRUNC;
    int fd = disk_sys_open(d->dir.fd, path, flags | (d->direct ? O_DIRECT : 0));
    if (fd < 0 && errno == EINVAL && d->direct) {
        d->direct = false;
        fd = disk_sys_open(d->dir.fd, path, flags);
    }
    return fd;
}

static void abandon(struct disk *d, struct disk_lane *l, const char *what, int error)
{
    if (l->fd >= 0)
        close(l->fd);
    l->busy = false;
    disk_stop(d, what, l->path, strerror(error));
    disk_sys_unlink(d->dir.fd, l->path); /* if it stays, the next server removes it */
    pthread_mutex_lock(&d->lock);
    disk_set_remove(&d->set, l->entry);
    disk_count(d);
    pthread_mutex_unlock(&d->lock);
    d->store.stats.n_refused++;
}

/* Is it there (or on its way), or one of other ids under its key? */
enum known { NEW, THERE, OTHER };
static enum known known(struct disk *d, const struct store_name *name, uint64_t hash,
                        int64_t now_ns)
{
    enum known k = NEW;
    pthread_mutex_lock(&d->lock);
    int32_t at = disk_set_find(&d->set, 0, &name->key, name->kind);
    if (at && d->set.entry[at].state > DISK_ABSENT)
        k = d->set.entry[at].name_hash == hash ? THERE : OTHER;
    /* So that it does not go for the rest of the call; nor what it goes on from, to make room for it. */
    if (k == THERE)
        disk_set_use(&d->set, at, now_ns);
    else if (k == NEW)
        disk_set_use(&d->set, disk_set_find(&d->set, 0, &name->parent, STORE_PAGE), now_ns);
    pthread_mutex_unlock(&d->lock);
    return k;
}

static int32_t enter(struct disk *d, const struct store_name *name, uint64_t hash, uint64_t bytes,
                     int64_t now_ns)
{
    struct disk_entry e = {.key = name->key,
                           .parent = name->parent,
                           .name_hash = hash,
                           .used_ns = now_ns,
                           .created_ns = now_ns,
                           .n = name->n,
                           .bytes = bytes,
                           .n_ids = name->n_ids,
                           .kind = (uint8_t)name->kind,
                           .state = DISK_WRITING,
                           .dirty = true};
    pthread_mutex_lock(&d->lock);
    int32_t at = disk_set_add(&d->set, &e);
    disk_count(d);
    pthread_mutex_unlock(&d->lock);
    return at;
}

struct call {
    struct disk *d;
    struct store_put *p;
    int64_t now_ns, before_ns; /* of this call; what was used before may go */
};

static uint64_t sum(const struct store_put *p)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < p->n_runs; i++)
        bytes += p->runs[i].bytes;
    return bytes;
}

/* Size known, room made, entry made, file open: what is left is to write it. */
static void begin(struct call *c, int i)
{
    struct disk *d = c->d;
    struct store_put *p = &c->p[i];
    uint64_t payload = sum(p), hash = disk_name_hash(&p->name);
    enum known k = known(d, &p->name, hash, c->now_ns);
    if (k == THERE)
        return;
    bool fits = k == NEW && !d->stopped && payload <= DISK_PAYLOAD_MAX && p->name.n_ids >= 0 &&
                p->name.n_ids <= DISK_IDS_MAX;
    uint64_t bytes = fits ? disk_file_bytes(p->name.n_ids, payload) : 0;
    fits = fits && bytes <= (uint64_t)d->o.budget_bytes;
    /* Asked twice: a lane is not taken for what is refused, and what it becomes in it may be smaller. */
    struct disk_lane *l = fits ? disk_lane_take(d, bytes) : NULL;
    if (!l) {
        d->store.stats.n_refused++;
        return;
    }
    if (d->o.zstd)
        bytes = disk_file_make(l->buf, p, payload, d->numerics, d->weights, c->now_ns, d->zip);
    l->bytes = bytes;
    l->which = i;
    bool spent = spend(d, c->now_ns, bytes);
    if (!spent || !make_room(d, bytes, c->before_ns) ||
        !(l->entry = enter(d, &p->name, hash, bytes, c->now_ns))) {
        if (spent)
            d->written[minute_of(c->now_ns) % DISK_MINUTES] -= bytes;
        l->busy = false;
        d->store.stats.n_refused++;
        return;
    }
    if (!d->o.zstd)
        disk_file_make(l->buf, p, payload, d->numerics, d->weights, c->now_ns, NULL);
    snprintf(l->path, sizeof l->path, "new/%llu", (unsigned long long)d->n_made++);
    l->fd = create(d, l->path);
    if (l->fd < 0)
        abandon(d, l, "create", errno);
    else if (disk_sys_allocate(l->fd, bytes) < 0)
        abandon(d, l, "allocate", errno);
    else
        disk_lane_start(d, l, true);
}

static void end(struct call *c, struct disk_lane *l)
{
    struct disk *d = c->d;
    struct store_put *p = &c->p[l->which];
    char path[DISK_PATH];
    if (l->error || l->cut) {
        abandon(d, l, "write", l->error ? l->error : EIO);
        return;
    }
    close(l->fd);
    l->fd = -1;
    disk_path(path, d->set.realm[0].name, &p->name.key, p->name.kind);
    if (make_folders(d, path) < 0) {
        abandon(d, l, "make-folder", errno);
    } else if (disk_sys_rename(d->dir.fd, l->path, d->dir.fd, path) < 0) {
        abandon(d, l, "rename", errno);
    } else {
        l->busy = false;
        pthread_mutex_lock(&d->lock);
        d->set.entry[l->entry].state = DISK_STORED;
        d->n_changes++;
        d->store.stats.n_put++;
        d->store.stats.put_bytes += l->bytes;
        pthread_mutex_unlock(&d->lock);
    }
}

void disk_put_all(struct store *s, struct store_put *p, int n)
{
    struct disk *d = (struct disk *)(void *)s;
    struct call c = {.d = d, .p = p, .now_ns = disk_now(d)};
    c.before_ns = c.now_ns - d->o.residence_s * SECOND;
    for (int i = 0; i < n; i++)
        p[i].kept = false;
    for (int i = 0; i < n || disk_lane_busy(d);) {
        if (i < n && disk_lane_any(d))
            begin(&c, i++);
        else
            end(&c, disk_lane_done(d, true));
    }
    /* The last one first: those before it then lie behind it in the order of use. */
    int64_t now = disk_now(d);
    pthread_mutex_lock(&d->lock);
    for (int i = n; i-- > 0;) {
        int32_t at = disk_set_find(&d->set, 0, &p[i].name.key, p[i].name.kind);
        if (!at || d->set.entry[at].state != DISK_STORED ||
            d->set.entry[at].name_hash != disk_name_hash(&p[i].name))
            continue;
        p[i].kept = true;
        disk_set_use(&d->set, at, now);
        d->n_changes++;
    }
    pthread_mutex_unlock(&d->lock);
    disk_save(d, false);
}
