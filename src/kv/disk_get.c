/* disk_get.c - objects out of their files: many in flight, each checked before a byte of it is given out. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "base/log.h"
#include "kv/disk_int.h"

static uint64_t sum(const struct store_run *runs, int32_t n)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < n; i++)
        bytes += runs[i].bytes;
    return bytes;
}

/* Without O_DIRECT where the file system does not have it. */
static int open_file(struct disk *d, const char *path)
{
    int fd = disk_sys_open(d->dir.fd, path, O_RDONLY | (d->direct ? O_DIRECT : 0));
    if (fd < 0 && errno == EINVAL && d->direct) {
        d->direct = false;
        fd = disk_sys_open(d->dir.fd, path, O_RDONLY);
    }
    return fd;
}

/* What opening or reading says about the file, or about us. */
static void failed(struct disk *d, int32_t entry, int error)
{
    char dir[PATH_MAX];
    switch (error) {
    case ENOMEM:
    case EMFILE:
    case ENFILE: /* the file may be fine: missing this time */
        if (!d->said_memory)
            log_warn("disk memory", "why=%s",
                     error == ENOMEM ? "no_memory" : "too_many_open_files");
        d->said_memory = true;
        break;
    case ENOENT:
    case ENOTDIR: /* with its folder there may be thousands: one line for all */
        if (!d->said_gone)
            log_warn("disk gone", "dir=%s why=files_were_removed_from_outside",
                     log_value(dir, sizeof dir, d->dir_path, strlen(d->dir_path)));
        d->said_gone = true;
        disk_forget(d, entry);
        break;
    case EACCES:
    case EPERM: /* whoever made it so can undo it */
        disk_bar(d, entry, strerror(error));
        break;
    default:
        disk_drop_bad(d, entry, strerror(error));
    }
}

static void begin(struct disk *d, struct store_get *g, int i)
{
    char path[DISK_PATH];
    pthread_mutex_lock(&d->lock);
    int32_t at = disk_set_find(&d->set, 0, &g[i].name.key, g[i].name.kind);
    bool there = at && d->set.entry[at].state == DISK_STORED && !d->set.entry[at].barred;
    uint64_t bytes = there ? d->set.entry[at].bytes : 0;
    pthread_mutex_unlock(&d->lock);
    if (!there)
        return;
    if (bytes % DISK_ALIGN || bytes == 0 ||
        bytes > disk_file_bytes(DISK_IDS_MAX, DISK_PAYLOAD_MAX)) {
        disk_drop_bad(d, at, "a size that no object has");
        return;
    }
    struct disk_lane *l = disk_lane_take(d, bytes);
    if (!l)
        return;
    l->entry = at;
    l->which = i;
    disk_path(path, d->set.realm[0].name, &g[i].name.key, g[i].name.kind);
    l->fd = open_file(d, path);
    if (l->fd < 0) {
        l->busy = false;
        failed(d, at, errno);
        return;
    }
    disk_lane_start(d, l, false);
}

static bool same_name(const struct store_name *a, const struct store_name *b)
{
    return memcmp(&a->key, &b->key, sizeof a->key) == 0 &&
           memcmp(&a->parent, &b->parent, sizeof a->parent) == 0 &&
           memcmp(a->salt, b->salt, sizeof a->salt) == 0 && a->kind == b->kind && a->n == b->n &&
           a->n_ids == b->n_ids &&
           (a->n_ids == 0 || memcmp(a->ids, b->ids, (size_t)a->n_ids * sizeof *a->ids) == 0);
}

/* The same key in one call may have dropped it meanwhile. */
static bool still_there(struct disk *d, const struct disk_lane *l, const struct store_get *g)
{
    pthread_mutex_lock(&d->lock);
    int32_t at = disk_set_find(&d->set, 0, &g->name.key, g->name.kind);
    bool there = at == l->entry && d->set.entry[at].state == DISK_STORED;
    pthread_mutex_unlock(&d->lock);
    return there;
}

/* Lanes that were read, to be looked at by many hands. */
struct batch {
    struct disk *d;
    struct store_get *g;
    struct disk_lane *lane[DISK_AT_ONCE];
    int n;
};

/* Is it whole, and what was asked for?  Then its payload goes where it is wanted; one that zstd has made
 * small waits for end(), since there is one state to decompress with. */
static void examine(void *ud, int64_t first, int64_t last, int worker)
{
    struct batch *b = ud;
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        struct disk_lane *l = b->lane[i];
        const struct store_get *g = &b->g[l->which];
        const struct disk_head *h = (const struct disk_head *)(const void *)l->buf;
        struct store_name name;
        l->why = NULL;
        l->same = l->taken = false;
        if (l->error)
            continue;
        l->why = l->cut ? "the file is cut off" : disk_file_check(l->buf, l->bytes);
        if (l->why)
            continue;
        disk_head_name(h, &name);
        if (strcmp(h->numerics, b->d->numerics) != 0 || strcmp(h->weights, b->d->weights) != 0)
            l->why = "written under other numerics or weights";
        else if (memcmp(&name.key, &g->name.key, sizeof name.key) != 0 || name.kind != g->name.kind)
            l->why = "the object of another key";
        if (l->why)
            continue;
        /* Whole, but of other ids under the same key, or of another size: not what was asked for. */
        l->same = same_name(&name, &g->name) && h->payload_bytes == sum(g->runs, g->n_runs);
        l->taken = l->same && !h->zstd && disk_file_take(l->buf, g->runs, g->n_runs, NULL);
    }
}

static void end(struct disk *d, struct store_get *g, struct disk_lane *l)
{
    g += l->which;
    close(l->fd);
    l->busy = false;
    if (!still_there(d, l, g))
        return;
    if (l->error) {
        failed(d, l->entry, l->error);
    } else if (l->why) {
        disk_drop_bad(d, l->entry, l->why);
    } else if (l->same) {
        if (!l->taken && !disk_file_take(l->buf, g->runs, g->n_runs, d->zip)) {
            disk_drop_bad(d, l->entry, "it does not decompress");
            return;
        }
        g->found = true;
        d->store.stats.n_got++;
        d->store.stats.got_bytes += sum(g->runs, g->n_runs);
    }
}

/* Those that have been read by now, one at least. */
static void end_some(struct disk *d, struct store_get *g)
{
    struct batch b = {.d = d, .g = g};
    struct disk_lane *l = disk_lane_done(d, true);
    for (; l && b.n < DISK_AT_ONCE; l = b.n < DISK_AT_ONCE ? disk_lane_done(d, false) : NULL)
        b.lane[b.n++] = l;
    if (b.n == 1)
        examine(&b, 0, 1, 0);
    else
        pool_run(d->hands, b.n, 1, examine, &b);
    for (int i = 0; i < b.n; i++)
        end(d, g, b.lane[i]);
}

void disk_get_all(struct store *s, struct store_get *g, int n)
{
    struct disk *d = (struct disk *)(void *)s;
    for (int i = 0; i < n; i++)
        g[i].found = false;
    for (int i = 0; i < n || disk_lane_busy(d);) {
        if (i < n && disk_lane_any(d))
            begin(d, g, i++);
        else
            end_some(d, g);
    }
    /* The last one first: those before it then lie behind it in the order of use. */
    int64_t now = disk_now(d);
    pthread_mutex_lock(&d->lock);
    for (int i = n; i-- > 0;) {
        int32_t at = g[i].found ? disk_set_find(&d->set, 0, &g[i].name.key, g[i].name.kind) : 0;
        d->store.stats.n_missed += !g[i].found;
        if (!at || d->set.entry[at].state != DISK_STORED)
            continue;
        disk_set_use(&d->set, at, now);
        d->set.entry[at].hits++;
        d->set.entry[at].dirty = true;
        d->n_changes++;
    }
    pthread_mutex_unlock(&d->lock);
    disk_save(d, false);
}
