/* disk.h - for tests of the disk tier: objects whose bytes follow from their names, a folder of the
 * test's own, and the log. */
#ifndef TESTS_SUPPORT_DISK_H
#define TESTS_SUPPORT_DISK_H

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "kv/disk_int.h"
#include "support/cm.h"
#include "support/tmpdir.h"

static inline void disk_ok(enum fst_status rc)
{
    if (rc < 0)
        fail_msg("%s: %s", fst_status_name(rc), fst_error_text());
}

/* ---------------------------------------------------------------- folders */

static inline int disk_rm_(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    remove(path);
    return 0;
}

static inline void disk_rm(const char *path)
{
    nftw(path, disk_rm_, 16, FTW_DEPTH | FTW_PHYS);
}

/* Bytes of all files below objects/ and new/, as a stranger counts them. */
static uint64_t disk_seen_bytes;
static inline int disk_sum_(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)ftw;
    if (type == FTW_F && (strstr(path, "/objects/") || strstr(path, "/new/")))
        disk_seen_bytes += (uint64_t)st->st_size;
    return 0;
}
static inline uint64_t disk_bytes_in(const char *dir)
{
    disk_seen_bytes = 0;
    nftw(dir, disk_sum_, 16, FTW_PHYS);
    return disk_seen_bytes;
}

/* ---------------------------------------------------------------- log */

static struct {
    char text[1 << 16];
    size_t len;
} disk_log;

static inline void disk_log_sink(void *ud, const char *lines, size_t len)
{
    (void)ud;
    len = FST_MIN(len, sizeof disk_log.text - 1 - disk_log.len);
    memcpy(disk_log.text + disk_log.len, lines, len);
    disk_log.len += len;
    disk_log.text[disk_log.len] = 0;
}

static inline void disk_log_start(void)
{
    disk_log.len = 0;
    disk_log.text[0] = 0;
    log_set_sink(disk_log_sink, NULL);
}

/* Lines with this in them. */
static inline int disk_log_count(const char *what)
{
    int n = 0;
    for (const char *p = disk_log.text; (p = strstr(p, what)); p++)
        n++;
    return n;
}

/* ---------------------------------------------------------------- objects */

struct disk_obj {
    struct store_name name;
    int32_t ids[256];
    size_t bytes;
};

static inline struct store_key disk_key(const struct store_name *n)
{
    struct hash128 seed = {n->parent.word[0], n->parent.word[1]};
    uint64_t extra[5] = {n->salt[0], n->salt[1], n->salt[2], n->salt[3], (uint64_t)n->kind};
    seed = hash128(extra, sizeof extra, seed);
    struct hash128 h = hash128(n->ids, (size_t)n->n_ids * sizeof *n->ids, seed);
    return (struct store_key){{h.hi, h.lo}};
}

/* Behind parent (NULL: the root), under its salt. */
static inline void disk_obj_make(struct disk_obj *o, const struct disk_obj *parent,
                                 enum store_kind kind, int32_t n_ids, int32_t letter, uint64_t salt,
                                 size_t bytes)
{
    *o = (struct disk_obj){.bytes = bytes};
    o->name = (struct store_name){.ids = o->ids, .n_ids = n_ids, .kind = kind, .salt = {salt}};
    o->name.n = n_ids + (parent ? parent->name.n : 0);
    if (parent)
        o->name.parent = parent->name.key;
    for (int i = 0; i < n_ids; i++)
        o->ids[i] = letter + i % 3;
    o->name.key = disk_key(&o->name);
}

static inline void disk_page(struct disk_obj *o, const struct disk_obj *parent, int32_t letter,
                             size_t bytes)
{
    disk_obj_make(o, parent, STORE_PAGE, 256, letter, 0, bytes);
}

/* The payload's bytes; they belong to the name, size included. */
static inline void disk_fill(const struct disk_obj *o, uint8_t *to)
{
    struct store_name name = o->name;
    name.ids = o->ids; /* wherever the object was copied to */
    uint64_t seed = disk_name_hash(&name) ^ o->name.key.word[0] ^ o->bytes;
    struct test_rng r = {seed};
    for (size_t i = 0; i < o->bytes; i += 8) {
        /* Half of it repeats, so that zstd has something to do. */
        uint64_t x = i / 64 % 2 ? seed : test_next(&r);
        memcpy(to + i, &x, FST_MIN((size_t)8, o->bytes - i));
    }
}

struct disk_call { /* memory of one put or get */
    struct store_run *run;
    uint8_t **data;
};

enum { DISK_RUNS = 3 };

/* Three runs of uneven sizes, some of which may be empty. */
static inline void disk_cut(struct store_run *run, uint8_t *data, size_t bytes)
{
    size_t a = bytes / 3, b = bytes / 7;
    run[0] = (struct store_run){data, a};
    run[1] = (struct store_run){data + a, b};
    run[2] = (struct store_run){data + a + b, bytes - a - b};
}

/* Puts n objects in one call; how many are there then.  kept (or NULL): which. */
static inline int disk_put(struct store *s, const struct disk_obj *o, int n, bool *kept)
{
    struct store_put *p = calloc((size_t)n + 1, sizeof *p);
    struct store_run *run = calloc((size_t)n * DISK_RUNS + 1, sizeof *run);
    uint8_t **data = calloc((size_t)n + 1, sizeof *data);
    int there = 0;
    assert_true(p && run && data);
    for (int i = 0; i < n; i++) {
        data[i] = malloc(o[i].bytes + 1);
        assert_non_null(data[i]);
        disk_fill(&o[i], data[i]);
        disk_cut(run + i * DISK_RUNS, data[i], o[i].bytes);
        p[i] = (struct store_put){
            .name = o[i].name, .runs = run + i * DISK_RUNS, .n_runs = DISK_RUNS, .kept = true};
        p[i].name.ids = o[i].ids;
    }
    s->ops->put(s, p, n);
    for (int i = 0; i < n; i++) {
        there += p[i].kept;
        if (kept)
            kept[i] = p[i].kept;
        free(data[i]);
    }
    free(data);
    free(run);
    free(p);
    return there;
}

/* Gets n objects in one call; how many were found, every byte compared. */
static inline int disk_get(struct store *s, const struct disk_obj *o, int n, bool *found)
{
    struct store_get *g = calloc((size_t)n + 1, sizeof *g);
    struct store_run *run = calloc((size_t)n * DISK_RUNS + 1, sizeof *run);
    uint8_t **data = calloc((size_t)n + 1, sizeof *data), *want;
    int there = 0;
    assert_true(g && run && data);
    for (int i = 0; i < n; i++) {
        data[i] = malloc(o[i].bytes + 1);
        assert_non_null(data[i]);
        memset(data[i], 0xA5, o[i].bytes + 1);
        disk_cut(run + i * DISK_RUNS, data[i], o[i].bytes);
        g[i] = (struct store_get){
            .name = o[i].name, .runs = run + i * DISK_RUNS, .n_runs = DISK_RUNS, .found = true};
        g[i].name.ids = o[i].ids;
    }
    s->ops->get(s, g, n);
    for (int i = 0; i < n; i++) {
        there += g[i].found;
        if (found)
            found[i] = g[i].found;
        if (g[i].found) {
            want = malloc(o[i].bytes + 1);
            assert_non_null(want);
            disk_fill(&o[i], want);
            assert_memory_equal(data[i], want, o[i].bytes);
            free(want);
        }
        assert_int_equal(data[i][o[i].bytes], 0xA5);
        free(data[i]);
    }
    free(data);
    free(run);
    free(g);
    return there;
}

static inline bool disk_has(struct store *s, const struct disk_obj *o)
{
    return s->ops->has(s, &o->name.key, o->name.kind);
}

/* Where its file is, or would be. */
static inline void disk_file_of(char *out, size_t size, const char *dir, const struct disk_opts *o,
                                const struct disk_obj *x)
{
    char realm[17], path[DISK_PATH];
    disk_realm_name(realm, o->numerics, o->weights);
    disk_path(path, realm, &x->name.key, x->name.kind);
    snprintf(out, size, "%s/%s", dir, path);
}

static inline uint64_t disk_size_of(const struct disk_obj *o)
{
    return disk_file_bytes(o->name.n_ids, o->bytes);
}

static inline void disk_set_ok(struct store *s)
{
    disk_ok(disk_set_check(&((struct disk *)(void *)s)->set));
}

#endif
