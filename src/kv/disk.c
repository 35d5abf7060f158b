/* disk.c - the disk tier as a store: opened with what the folder has, asked, flushed, closed.
 *
 * Its parts: disk_put.c, disk_get.c (objects in and out), disk_lane.c (those in flight), disk_file.c (what a file
 * looks like), disk_set.c (which there are), disk_index.c (remembered between runs), disk_dir.c (the
 * folder), disk_io.c (the system). */
#include "kv/disk.h"

#include <errno.h>
#include <limits.h>

#include "base/clock.h"
#include "base/log.h"
#include "kv/disk_int.h"

enum { SAVE_CHANGES = 4096, SAVE_S = 30, RESIDENCE_MAX_S = 1000000000 };
#define SECOND ((int64_t)1000000000)

void disk_opts_default(struct disk_opts *o)
{
    *o = (struct disk_opts){.budget_bytes = (int64_t)4 << 30, .residence_s = 60};
}

/* ------------------------------------------------------------------ small things */

int64_t disk_now(struct disk *d)
{
    /* The wall clock, but it does not jump while we run: what is old would become young. */
    int64_t now = d->o.now_ns ? d->o.now_ns() : d->wall_ns + (clock_ns() - d->clock_ns);
    d->last_ns = FST_MAX(now, d->last_ns + 1);
    return d->last_ns;
}

void disk_count(struct disk *d)
{
    d->store.stats.n_objects = d->set.n_objects;
    d->store.stats.bytes = d->set.bytes;
}

void disk_stop(struct disk *d, const char *what, const char *path, const char *why)
{
    char dir[PATH_MAX], text[256];
    if (!d->stopped)
        log_warn("disk off", "dir=%s what=%s file=%s why=%s effect=nothing_more_is_kept",
                 log_value(dir, sizeof dir, d->dir_path, strlen(d->dir_path)), what, path,
                 log_value(text, sizeof text, why, strlen(why)));
    d->stopped = true;
}

bool disk_forget(struct disk *d, int32_t entry)
{
    char path[DISK_PATH];
    pthread_mutex_lock(&d->lock);
    struct disk_entry e = d->set.entry[entry];
    disk_path(path, d->set.realm[e.realm].name, &e.key, (enum store_kind)e.kind);
    disk_set_remove(&d->set, entry);
    disk_count(d);
    pthread_mutex_unlock(&d->lock);
    if (d->n_forget < DISK_PENDING_MAX) /* a row without a file does no harm */
        d->forget[d->n_forget++] = e;
    d->n_changes++;
    if (d->dir.read_only || disk_sys_unlink(d->dir.fd, path) == 0 || errno == ENOENT ||
        errno == ENOTDIR)
        return true;
    /* It takes room that the budget does not see. */
    disk_stop(d, "remove", path, strerror(errno));
    return false;
}

void disk_drop_bad(struct disk *d, int32_t entry, const char *why)
{
    char path[DISK_PATH], dir[PATH_MAX], text[256];
    pthread_mutex_lock(&d->lock);
    const struct disk_entry *e = &d->set.entry[entry];
    disk_path(path, d->set.realm[e->realm].name, &e->key, (enum store_kind)e->kind);
    pthread_mutex_unlock(&d->lock);
    log_warn("disk bad", "dir=%s file=%s why=%s effect=dropped",
             log_value(dir, sizeof dir, d->dir_path, strlen(d->dir_path)), path,
             log_value(text, sizeof text, why, strlen(why)));
    d->store.stats.n_bad++;
    disk_forget(d, entry);
}

void disk_bar(struct disk *d, int32_t entry, const char *why)
{
    char path[DISK_PATH], dir[PATH_MAX], text[256];
    pthread_mutex_lock(&d->lock);
    struct disk_entry *e = &d->set.entry[entry];
    e->barred = true;
    disk_path(path, d->set.realm[e->realm].name, &e->key, (enum store_kind)e->kind);
    pthread_mutex_unlock(&d->lock);
    if (!d->said_barred)
        log_warn("disk unreadable", "dir=%s file=%s why=%s effect=missing_until_the_next_start",
                 log_value(dir, sizeof dir, d->dir_path, strlen(d->dir_path)), path,
                 log_value(text, sizeof text, why, strlen(why)));
    d->said_barred = true;
}

void disk_save(struct disk *d, bool now)
{
    int64_t at = d->last_ns;
    if (!d->index || d->dir.read_only || d->n_changes == 0)
        return;
    if (!now && d->n_changes < SAVE_CHANGES && at - d->saved_ns < SAVE_S * SECOND)
        return;
    disk_index_begin(d->index, &d->set);
    for (int i = 0; i < d->n_forget; i++)
        disk_index_remove(d->index, &d->set, &d->forget[i]);
    /* The set changes under this thread alone; others only look. */
    for (int32_t i = disk_set_next(&d->set, 0); i; i = disk_set_next(&d->set, i))
        if (d->set.entry[i].dirty && d->set.entry[i].state == DISK_STORED)
            disk_index_put(d->index, &d->set, &d->set.entry[i]);
    if (disk_index_end(d->index))
        for (int32_t i = disk_set_next(&d->set, 0); i; i = disk_set_next(&d->set, i))
            d->set.entry[i].dirty = false;
    d->n_forget = d->n_changes = 0;
    d->saved_ns = at;
}

/* ------------------------------------------------------------------ what is there */

/* A file that the index does not know: its head says what it is.  One of ours whose head is no good goes. */
static void learn(struct disk *d, const struct disk_found *f, int realm, uint8_t *head)
{
    struct disk_entry e = {.key = f->key,
                           .used_ns = f->changed_ns,
                           .created_ns = f->changed_ns,
                           .bytes = f->bytes,
                           .realm = (uint16_t)realm,
                           .kind = (uint8_t)f->kind,
                           .state = DISK_STORED};
    const struct disk_head *h = (const struct disk_head *)(const void *)head;
    struct disk_realm *r = &d->set.realm[realm];
    struct store_name name;
    int error;
    const char *why = disk_dir_head(&d->dir, f->path, head, DISK_HEAD_ROOM, f->bytes, &error);
    if (!why && (h->key[0] != f->key.word[0] || h->key[1] != f->key.word[1] || h->kind != f->kind))
        why = "the object of another key";
    if (!why) {
        disk_head_name(h, &name);
        e.parent = name.parent;
        e.name_hash = disk_name_hash(&name);
        e.n = name.n;
        e.n_ids = name.n_ids;
        e.created_ns = h->created_ns;
        if (!r->numerics[0]) {
            memcpy(r->numerics, h->numerics, sizeof r->numerics);
            memcpy(r->weights, h->weights, sizeof r->weights);
        }
    }
    e.dirty = !error; /* the index is not told of what was not seen */
    int32_t at = disk_set_add(&d->set, &e);
    d->n_changes++;
    if (!at)
        d->said_memory = true;
    else if (error == EACCES || error == EPERM)
        disk_bar(d, at, strerror(error));
    else if (why && realm == 0 && error != EMFILE && error != ENFILE && error != ENOMEM)
        disk_drop_bad(d, at, why); /* else it may be fine: who asks for it will see */
}

struct scan {
    struct disk *d;
    uint8_t *head; /* (DISK_HEAD_ROOM) */
    uint64_t n_new;
    bool too_many; /* realms */
};

static bool on_found(void *ud, const struct disk_found *f)
{
    struct scan *s = ud;
    struct disk *d = s->d;
    int realm = disk_set_realm(&d->set, f->realm);
    if (realm < 0) {
        s->too_many = true;
        return false;
    }
    int32_t at = disk_set_find(&d->set, realm, &f->key, f->kind);
    if (at && d->set.entry[at].state == DISK_CLAIMED) {
        d->set.entry[at].state = DISK_STORED;
        disk_set_resize(&d->set, at, f->bytes);
    } else if (!at || d->set.entry[at].state == DISK_ABSENT) {
        learn(d, f, realm, s->head);
        s->n_new++;
    }
    return !d->said_memory;
}

/* Times that lie ahead are of a clock that was wrong; what was written in the last hour counts in its budget. */
static void set_clock(struct disk *d)
{
    int64_t now = disk_now(d), minute = now / (60 * SECOND);
    for (int32_t i = disk_set_next(&d->set, 0); i; i = disk_set_next(&d->set, i)) {
        struct disk_entry *e = &d->set.entry[i];
        e->used_ns = FST_MIN(e->used_ns, now);
        e->created_ns = FST_MIN(e->created_ns, now);
        int64_t m = e->created_ns / (60 * SECOND);
        if (m <= minute - DISK_MINUTES)
            continue;
        d->minute[m % DISK_MINUTES] = m;
        d->written[m % DISK_MINUTES] += e->bytes;
    }
}

static void forget_claims(struct disk *d)
{
    int32_t next;
    for (int32_t i = disk_set_next(&d->set, 0); i; i = next) {
        next = disk_set_next(&d->set, i);
        if (d->set.entry[i].state != DISK_CLAIMED)
            continue;
        if (d->n_forget < DISK_PENDING_MAX)
            d->forget[d->n_forget++] = d->set.entry[i];
        d->n_changes++;
        disk_set_remove(&d->set, i);
    }
}

static enum fst_status load(struct disk *d)
{
    struct scan s = {.d = d};
    char name[17];
    disk_realm_name(name, d->numerics, d->weights);
    if (disk_set_realm(&d->set, name) != 0)
        return fst_error(FST_ENOMEM, "disk tier: no memory for its table");
    memcpy(d->set.realm[0].numerics, d->numerics, strlen(d->numerics));
    memcpy(d->set.realm[0].weights, d->weights, strlen(d->weights));
    s.head = mem_aligned(DISK_ALIGN, DISK_HEAD_ROOM);
    if (!s.head)
        return fst_error(FST_ENOMEM, "disk tier: no memory to read heads");
    d->index = disk_index_open(d->dir_path, d->dir.read_only);
    disk_index_load(d->index, &d->set);
    enum fst_status rc = disk_dir_walk(&d->dir, on_found, &s);
    mem_free(s.head);
    FST_TRY(rc);
    if (s.too_many)
        return fst_error(FST_EBUDGET,
                         "%s: objects of too many models; firesteel kv prune --others removes them",
                         d->dir_path);
    if (d->said_memory)
        return fst_error(FST_ENOMEM, "%s: no memory for a table of all objects", d->dir_path);
    forget_claims(d);
    set_clock(d);
    FST_TRY(disk_set_sort(&d->set));
    /* The budget may have been larger. */
    while (!d->dir.read_only && d->set.bytes > (uint64_t)d->o.budget_bytes) {
        int32_t victim = disk_set_victim(&d->set, INT64_MAX);
        if (!victim)
            break;
        d->store.stats.n_evicted++;
        if (!disk_forget(d, victim))
            break;
    }
    disk_count(d);
    char dir[PATH_MAX];
    log_info("disk tier",
             "dir=%s objects=%llu bytes=%llu new=%llu realms=%d io=%s index=%s write=%s",
             log_value(dir, sizeof dir, d->dir_path, strlen(d->dir_path)),
             (unsigned long long)d->set.n_objects, (unsigned long long)d->set.bytes,
             (unsigned long long)s.n_new, d->set.n_realms, disk_io_name(d->io),
             d->index ? "yes" : "no", d->dir.read_only ? "no" : "yes");
    return FST_OK;
}

/* ------------------------------------------------------------------ the store */

static bool has(struct store *s, const struct store_key *key, enum store_kind kind)
{
    struct disk *d = (struct disk *)(void *)s;
    pthread_mutex_lock(&d->lock);
    int32_t at = disk_set_find(&d->set, 0, key, kind);
    bool there = at && d->set.entry[at].state == DISK_STORED && !d->set.entry[at].barred;
    pthread_mutex_unlock(&d->lock);
    return there;
}

static void tails(struct store *s, const struct store_key *parent, uint64_t bits[4])
{
    struct disk *d = (struct disk *)(void *)s;
    pthread_mutex_lock(&d->lock);
    disk_set_tails(&d->set, 0, parent, bits);
    pthread_mutex_unlock(&d->lock);
}

/* Ours; those of other numerics or weights are not what anybody is given here. */
static void clear(struct store *s)
{
    struct disk *d = (struct disk *)(void *)s;
    int32_t next;
    for (int32_t i = disk_set_next(&d->set, 0); i; i = next) {
        next = disk_set_next(&d->set, i);
        if (d->set.entry[i].realm == 0 && d->set.entry[i].state == DISK_STORED)
            disk_forget(d, i);
    }
    disk_save(d, true);
}

static void flush(struct store *s)
{
    struct disk *d = (struct disk *)(void *)s;
    disk_save(d, true);
    if (!d->dir.read_only && disk_sys_sync(d->dir.fd) < 0)
        disk_stop(d, "flush", "-", strerror(errno));
}

static void release(struct disk *d)
{
    disk_lane_free_all(d);
    disk_io_free(d->io);
    pool_free(d->hands);
    disk_index_close(d->index);
    disk_set_release(&d->set);
    disk_zip_free(d->zip);
    disk_dir_release(&d->dir);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->dir_path);
    mem_free(d->numerics);
    mem_free(d->weights);
    mem_free(d);
}

static void close_store(struct store *s)
{
    if (s->hurry) /* what is half on the disk at a power cut does not check out */
        disk_save((struct disk *)(void *)s, true);
    else
        flush(s);
    release((struct disk *)(void *)s);
}

static const struct store_ops ops = {.has = has,
                                     .tails = tails,
                                     .put = disk_put_all,
                                     .get = disk_get_all,
                                     .clear = clear,
                                     .flush = flush,
                                     .close = close_store};

static enum fst_status check_opts(const struct disk_opts *o)
{
    const char *const text[] = {o->numerics, o->weights};
    if (!o->dir || !o->dir[0] || strlen(o->dir) > PATH_MAX - 256)
        return fst_error(FST_EINVAL, "disk tier: dir must be a path, of at most %d bytes",
                         PATH_MAX - 256);
    if (o->budget_bytes < 0 || o->write_bytes_hour < 0 || o->residence_s < 0 ||
        o->residence_s > RESIDENCE_MAX_S)
        return fst_error(FST_EINVAL,
                         "disk tier: budget, write budget and residence must not be negative, and "
                         "the residence at most %d s",
                         RESIDENCE_MAX_S);
    for (size_t i = 0; i < FST_COUNT(text); i++)
        if (!text[i] || !text[i][0] || strlen(text[i]) > DISK_TEXT_MAX)
            return fst_error(FST_EINVAL, "disk tier: %s must be a text of 1 to %d bytes",
                             i ? "weights" : "numerics", DISK_TEXT_MAX);
    return FST_OK;
}

static enum fst_status open_all(struct disk *d, const struct disk_opts *o)
{
    char dir[PATH_MAX];
    d->dir_path = mem_strdup(o->dir);
    d->numerics = mem_strdup(o->numerics);
    d->weights = mem_strdup(o->weights);
    d->zip = disk_zip_new();
    if (!d->dir_path || !d->numerics || !d->weights || !d->zip)
        return fst_error(FST_ENOMEM, "disk tier: no memory");
    FST_TRY(disk_set_init(&d->set));
    FST_TRY(disk_dir_open(&d->dir, d->dir_path, DISK_USE));
    FST_TRY(disk_io_new(&d->io, o->ring, DISK_DEPTH));
    int cores = pool_cores();
    if (cores > 1 && pool_new(&d->hands, FST_MIN(cores, DISK_HANDS)) < 0)
        d->hands = NULL; /* slower, no more than that */
    if (d->dir.read_only) {
        d->stopped = true;
        log_warn("disk read-only",
                 "dir=%s why=nothing_can_be_written_there effect=nothing_new_is_kept",
                 log_value(dir, sizeof dir, d->dir_path, strlen(d->dir_path)));
    } else if (!disk_dir_clean(&d->dir)) { /* what the budget does not see */
        disk_stop(d, "remove", "new", strerror(errno));
    }
    return load(d);
}

enum fst_status disk_open(struct store **out, const struct disk_opts *o)
{
    *out = NULL;
    FST_TRY(check_opts(o));
    struct disk *d = mem_calloc(1, sizeof *d);
    if (!d)
        return fst_error(FST_ENOMEM, "disk tier: no memory");
    d->store = (struct store){.ops = &ops, .name = "disk", .lasts = true};
    d->o = *o;
    d->o.dir = d->o.numerics = d->o.weights = NULL; /* the caller's */
    d->direct = true;
    d->dir.fd = d->dir.lock = -1;
    d->wall_ns = clock_wall_ns();
    d->clock_ns = clock_ns();
    pthread_mutex_init(&d->lock, NULL);
    enum fst_status rc = open_all(d, o);
    d->saved_ns = d->last_ns;
    if (rc < 0)
        release(d);
    else
        *out = &d->store;
    return rc;
}
