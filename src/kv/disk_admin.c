/* disk_admin.c - list, verify, prune: the folder as a tool sees it.
 *
 * Tools believe the files: every head is read, and the index gives times of use and hits alone. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "kv/disk_int.h"

struct admin {
    struct disk_dir dir;
    struct disk_index *index;
    struct disk_set set; /* what the index says: DISK_CLAIMED; what prune has seen: DISK_STORED */
    uint8_t *buf;        /* (cap), aligned */
    uint64_t cap;
    bool whole; /* read files, not heads alone */
    disk_visit_fn *visit;
    void *ud;
    const struct disk_prune *prune;
    enum fst_status rc;
};

static enum fst_status start(struct admin *a, const char *dir, enum disk_access access)
{
    FST_TRY(disk_dir_open(&a->dir, dir, access));
    enum fst_status rc = disk_set_init(&a->set);
    a->cap = DISK_HEAD_ROOM;
    a->buf = mem_aligned(DISK_ALIGN, a->cap);
    if (rc == FST_OK && !a->buf)
        rc = fst_error(FST_ENOMEM, "%s: no memory to read its files", dir);
    if (rc == FST_OK) {
        a->index = disk_index_open(dir, true);
        disk_index_load(a->index, &a->set);
    }
    return rc;
}

static void finish(struct admin *a)
{
    disk_index_close(a->index);
    disk_set_release(&a->set);
    mem_free(a->buf);
    disk_dir_release(&a->dir);
}

/* The whole file into buf; NULL, or what is wrong. */
static const char *read_whole(struct admin *a, const struct disk_found *f)
{
    if (f->bytes > disk_file_bytes(DISK_IDS_MAX, DISK_PAYLOAD_MAX))
        return "larger than any object";
    if (f->bytes > a->cap) {
        mem_free(a->buf);
        a->cap = f->bytes;
        a->buf = mem_aligned(DISK_ALIGN, a->cap);
        if (!a->buf) {
            a->cap = 0;
            a->rc = fst_error(FST_ENOMEM, "%s/%s: no memory to read %llu bytes", a->dir.path,
                              f->path, (unsigned long long)f->bytes);
            return "no memory to read it";
        }
    }
    int fd = disk_sys_open(a->dir.fd, f->path, O_RDONLY);
    if (fd < 0)
        return "cannot be opened";
    int64_t n = disk_sys_read(fd, a->buf, f->bytes, 0);
    /* Nobody reads it again soon: let it not push out what somebody does. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (n < 0)
        return "cannot be read";
    return (uint64_t)n < f->bytes ? "the file is cut off" : disk_file_check(a->buf, f->bytes);
}

/* What a file is; o->why where it is nothing that could be given out. */
static void describe(struct admin *a, const struct disk_found *f, struct disk_object *o)
{
    const struct disk_head *h;
    char realm[17];
    int error;
    *o = (struct disk_object){.numerics = "",
                              .weights = "",
                              .kind = f->kind,
                              .key = f->key,
                              .bytes = f->bytes,
                              .created_ns = f->changed_ns,
                              .used_ns = f->changed_ns};
    snprintf(o->path, sizeof o->path, "%s", f->path);
    o->why = a->whole ? read_whole(a, f)
                      : disk_dir_head(&a->dir, f->path, a->buf, DISK_HEAD_ROOM, f->bytes, &error);
    if (a->rc < 0)
        return;
    h = (const struct disk_head *)(const void *)a->buf;
    if (!o->why) {
        disk_realm_name(realm, h->numerics, h->weights);
        if (h->key[0] != f->key.word[0] || h->key[1] != f->key.word[1] || h->kind != f->kind)
            o->why = "the object of another key";
        else if (strcmp(realm, f->realm) != 0)
            o->why = "written under other numerics or weights than its folder";
    }
    if (!o->why) {
        o->numerics = h->numerics;
        o->weights = h->weights;
        o->parent = (struct store_key){{h->parent[0], h->parent[1]}};
        o->n = h->n;
        o->n_ids = h->n_ids;
        o->created_ns = h->created_ns;
    }
    int r = disk_set_realm(&a->set, f->realm);
    int32_t at = r < 0 ? 0 : disk_set_find(&a->set, r, &f->key, f->kind);
    if (at && a->set.entry[at].state == DISK_CLAIMED) {
        o->used_ns = a->set.entry[at].used_ns;
        o->hits = a->set.entry[at].hits;
    }
}

/* ------------------------------------------------------------------ list, verify */

static bool on_object(void *ud, const struct disk_found *f)
{
    struct admin *a = ud;
    struct disk_object o;
    struct stat st;
    describe(a, f, &o);
    if (a->rc < 0)
        return false;
    /* A server may have removed it since its name was read. */
    if (o.why && disk_sys_stat_at(a->dir.fd, f->path, &st) < 0)
        return true;
    return a->visit(a->ud, &o);
}

static enum fst_status walk_all(struct admin *a, const char *dir, enum disk_access access)
{
    enum fst_status rc = start(a, dir, access);
    if (rc == FST_OK)
        rc = disk_dir_walk(&a->dir, on_object, a);
    if (rc == FST_OK)
        rc = a->rc;
    finish(a);
    return rc;
}

enum fst_status disk_list(const char *dir, disk_visit_fn *visit, void *ud)
{
    struct admin a = {.dir = {.fd = -1, .lock = -1}, .visit = visit, .ud = ud};
    return walk_all(&a, dir, DISK_LOOK);
}

enum fst_status disk_verify(const char *dir, disk_visit_fn *visit, void *ud)
{
    struct admin a = {.dir = {.fd = -1, .lock = -1}, .visit = visit, .ud = ud, .whole = true};
    return walk_all(&a, dir, DISK_TOOL);
}

/* ------------------------------------------------------------------ prune */

/* Gone, or as if: false when the caller has seen enough, or the file stays. */
static bool discard(struct admin *a, const struct disk_object *o)
{
    if (!a->prune->dry && disk_sys_unlink(a->dir.fd, o->path) < 0 && errno != ENOENT) {
        a->rc = fst_error(FST_EIO, "%s/%s: cannot be removed: %s", a->dir.path, o->path,
                          strerror(errno));
        return false;
    }
    return !a->visit || a->visit(a->ud, o);
}

static bool is_other(const struct disk_prune *p, const char *numerics, const char *weights)
{
    return (p->numerics && strcmp(p->numerics, numerics) != 0) ||
           (p->weights && strcmp(p->weights, weights) != 0);
}

/* What goes at once goes; the rest becomes an entry. */
static bool on_candidate(void *ud, const struct disk_found *f)
{
    struct admin *a = ud;
    struct disk_object o;
    describe(a, f, &o);
    if (a->rc < 0)
        return false;
    if (o.why ? a->prune->bad : a->prune->others && is_other(a->prune, o.numerics, o.weights))
        return discard(a, &o);
    int realm = disk_set_realm(&a->set, f->realm);
    int32_t at = realm < 0 ? 0 : disk_set_find(&a->set, realm, &f->key, f->kind);
    if (at && a->set.entry[at].state != DISK_ABSENT)
        disk_set_remove(&a->set, at);
    at = realm < 0 ? 0
                   : disk_set_add(&a->set, &(struct disk_entry){.key = o.key,
                                                                .parent = o.parent,
                                                                .used_ns = o.used_ns,
                                                                .created_ns = o.created_ns,
                                                                .n = o.n,
                                                                .bytes = o.bytes,
                                                                .hits = o.hits,
                                                                .n_ids = o.n_ids,
                                                                .realm = (uint16_t)realm,
                                                                .kind = (uint8_t)o.kind,
                                                                .state = DISK_STORED});
    if (!at)
        a->rc = fst_error(FST_ENOMEM, "%s: no memory for a table of all objects", a->dir.path);
    else if (o.numerics[0]) {
        struct disk_realm *r = &a->set.realm[realm];
        snprintf(r->numerics, sizeof r->numerics, "%s", o.numerics);
        snprintf(r->weights, sizeof r->weights, "%s", o.weights);
    }
    return at != 0;
}

/* What the index alone has would keep its parents from going. */
static void drop_claims(struct disk_set *s)
{
    int32_t next;
    for (int32_t i = s->entry ? disk_set_next(s, 0) : 0; i; i = next) {
        next = disk_set_next(s, i);
        if (s->entry[i].state == DISK_CLAIMED)
            disk_set_remove(s, i);
    }
}

static bool evict(struct admin *a, int64_t before_ns)
{
    int32_t at = disk_set_victim(&a->set, before_ns);
    if (!at)
        return false;
    const struct disk_entry *e = &a->set.entry[at];
    const struct disk_realm *r = &a->set.realm[e->realm];
    struct disk_object o = {.numerics = r->numerics,
                            .weights = r->weights,
                            .kind = (enum store_kind)e->kind,
                            .key = e->key,
                            .parent = e->parent,
                            .n = e->n,
                            .n_ids = e->n_ids,
                            .bytes = e->bytes,
                            .created_ns = e->created_ns,
                            .used_ns = e->used_ns,
                            .hits = e->hits};
    char path[DISK_PATH];
    disk_path(path, r->name, &e->key, (enum store_kind)e->kind);
    snprintf(o.path, sizeof o.path, "%s", path);
    bool more = discard(a, &o);
    if (a->rc == FST_OK)
        disk_set_remove(&a->set, at);
    return more;
}

enum fst_status disk_prune(const char *dir, const struct disk_prune *p, disk_visit_fn *visit,
                           void *ud)
{
    struct admin a = {
        .dir = {.fd = -1, .lock = -1}, .visit = visit, .ud = ud, .whole = p->bad, .prune = p};
    if (p->others && !p->numerics && !p->weights)
        return fst_error(FST_EINVAL, "prune of others: numerics or weights must say than which");
    enum fst_status rc = start(&a, dir, p->dry ? DISK_LOOK : DISK_TOOL);
    if (rc == FST_OK)
        rc = disk_dir_walk(&a.dir, on_candidate, &a);
    drop_claims(&a.set);
    if (rc == FST_OK && a.rc == FST_OK)
        rc = disk_set_sort(&a.set);
    if (rc == FST_OK && a.rc == FST_OK && p->max_age_s >= 0) {
        int64_t age = FST_MIN(p->max_age_s, INT64_MAX / 2000000000) * 1000000000;
        while (evict(&a, clock_wall_ns() - age))
            continue;
    }
    while (rc == FST_OK && a.rc == FST_OK && p->budget_bytes >= 0 &&
           a.set.bytes > (uint64_t)p->budget_bytes && evict(&a, INT64_MAX))
        continue;
    finish(&a);
    return rc < 0 ? rc : a.rc;
}
