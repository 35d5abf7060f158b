/* disk_index.c - the only file that knows SQLite.
 *
 * Keys are stored as 16 bytes, high word first, so that `select hex(key)` is the file's name. */
#include "kv/disk_index.h"

#include <limits.h>
#include <sqlite3.h>

#include "base/file.h"
#include "base/log.h"

enum { VERSION = 1, WAIT_MS = 2000, KEY = 16 };

struct disk_index {
    sqlite3 *db;
    sqlite3_stmt *put, *put_realm, *remove; /* NULL when read-only */
    bool failed;                            /* nothing more is asked of it */
    char path[PATH_MAX];
};

static const char schema[] =
    "create table object (realm text not null, kind int not null, key blob not null,"
    " parent blob not null, name int not null, n int not null, n_ids int not null,"
    " bytes int not null, created int not null, used int not null, hits int not null,"
    " primary key (realm, kind, key)) without rowid;"
    "create table realm (name text primary key, numerics text not null, weights text not null)"
    " without rowid;"
    "pragma user_version = 1;";
_Static_assert(VERSION == 1, "the schema sets it");

static void say(struct disk_index *x, const char *what)
{
    char path[PATH_MAX], why[256];
    const char *text = x->db ? sqlite3_errmsg(x->db) : "no memory";
    if (!x->failed)
        log_warn("disk index", "file=%s what=%s why=%s",
                 log_value(path, sizeof path, x->path, strlen(x->path)), what,
                 log_value(why, sizeof why, text, strlen(text)));
    x->failed = true;
}

static int one_int(struct disk_index *x, const char *sql)
{
    sqlite3_stmt *q;
    int value = -1;
    if (sqlite3_prepare_v2(x->db, sql, -1, &q, NULL) != SQLITE_OK)
        return -1;
    if (sqlite3_step(q) == SQLITE_ROW)
        value = sqlite3_column_int(q, 0);
    return sqlite3_finalize(q) == SQLITE_OK ? value : -1;
}

static bool prepare(struct disk_index *x)
{
    return sqlite3_prepare_v2(x->db, "insert or replace into object values (?,?,?,?,?,?,?,?,?,?,?)",
                              -1, &x->put, NULL) == SQLITE_OK &&
           sqlite3_prepare_v2(x->db, "insert or replace into realm values (?,?,?)", -1,
                              &x->put_realm, NULL) == SQLITE_OK &&
           sqlite3_prepare_v2(x->db, "delete from object where realm=? and kind=? and key=?", -1,
                              &x->remove, NULL) == SQLITE_OK;
}

/* False: this file is not an index that can be used. */
static bool open_db(struct disk_index *x, bool read_only)
{
    int flags = read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    if (sqlite3_open_v2(x->path, &x->db, flags | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return false;
    sqlite3_busy_timeout(x->db, WAIT_MS);
    int version = one_int(x, "pragma user_version");
    if (version == 0 && !read_only && one_int(x, "select count(*) from sqlite_schema") == 0) {
        if (sqlite3_exec(x->db, schema, NULL, NULL, NULL) != SQLITE_OK)
            return false;
        version = VERSION;
    }
    /* No waiting for the disk: what a power cut damages is made anew. */
    return version == VERSION &&
           (read_only || (prepare(x) && sqlite3_exec(x->db, "pragma synchronous = off", NULL, NULL,
                                                     NULL) == SQLITE_OK));
}

static void close_db(struct disk_index *x)
{
    sqlite3_finalize(x->put);
    sqlite3_finalize(x->put_realm);
    sqlite3_finalize(x->remove);
    sqlite3_close(x->db);
    x->put = x->put_realm = x->remove = NULL;
    x->db = NULL;
}

/* Whatever lies there makes way for an empty one.  False: there is none to be had. */
static bool make_anew(struct disk_index *x)
{
    char journal[PATH_MAX + 16];
    say(x, "made-anew");
    close_db(x);
    file_remove(x->path);
    snprintf(journal, sizeof journal, "%s-journal", x->path);
    file_remove(journal);
    x->failed = false;
    if (open_db(x, false))
        return true;
    say(x, "goes-on-without");
    return false;
}

struct disk_index *disk_index_open(const char *dir, bool read_only)
{
    struct disk_index *x = mem_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    if (file_join(x->path, sizeof x->path, dir, "index") < 0) {
        mem_free(x);
        return NULL;
    }
    if (open_db(x, read_only) || (!read_only && make_anew(x)))
        return x;
    disk_index_close(x);
    return NULL;
}

void disk_index_close(struct disk_index *x)
{
    if (!x)
        return;
    close_db(x);
    mem_free(x);
}

/* ------------------------------------------------------------------ rows */

static void key_bytes(uint8_t out[KEY], const struct store_key *key)
{
    for (int i = 0; i < KEY; i++)
        out[i] = (uint8_t)(key->word[i / 8] >> (56 - 8 * (i % 8)));
}

static bool key_column(sqlite3_stmt *q, int column, struct store_key *key)
{
    const uint8_t *p = sqlite3_column_blob(q, column);
    *key = (struct store_key){0};
    if (!p || sqlite3_column_bytes(q, column) != KEY)
        return false;
    for (int i = 0; i < KEY; i++)
        key->word[i / 8] = key->word[i / 8] << 8 | p[i];
    return true;
}

static const char *text_column(sqlite3_stmt *q, int column)
{
    const char *s = (const char *)sqlite3_column_text(q, column);
    return s ? s : "";
}

/* One row; what cannot be right is left to the scan. */
static void load_object(struct disk_set *s, sqlite3_stmt *q)
{
    struct disk_entry e = {.state = DISK_CLAIMED,
                           .name_hash = (uint64_t)sqlite3_column_int64(q, 4),
                           .n = sqlite3_column_int64(q, 5),
                           .n_ids = sqlite3_column_int(q, 6),
                           .created_ns = sqlite3_column_int64(q, 8),
                           .used_ns = sqlite3_column_int64(q, 9),
                           .hits = (uint32_t)sqlite3_column_int64(q, 10)};
    int kind = sqlite3_column_int(q, 1), realm = disk_set_realm(s, text_column(q, 0));
    if (realm < 0 || (kind != STORE_PAGE && kind != STORE_SNAPSHOT) || !key_column(q, 2, &e.key) ||
        !key_column(q, 3, &e.parent) || e.n < 0 || e.n_ids < 0 || e.n_ids > DISK_IDS_MAX ||
        e.used_ns < 0)
        return;
    e.kind = (uint8_t)kind;
    e.realm = (uint16_t)realm;
    int32_t at = disk_set_find(s, realm, &e.key, (enum store_kind)kind);
    if (!at || s->entry[at].state == DISK_ABSENT)
        disk_set_add(s, &e);
}

static void load_realm(struct disk_set *s, sqlite3_stmt *q)
{
    int i = disk_set_realm(s, text_column(q, 0));
    if (i < 0)
        return;
    snprintf(s->realm[i].numerics, sizeof s->realm[i].numerics, "%s", text_column(q, 1));
    snprintf(s->realm[i].weights, sizeof s->realm[i].weights, "%s", text_column(q, 2));
}

static bool each(struct disk_index *x, const char *sql, struct disk_set *s,
                 void (*f)(struct disk_set *s, sqlite3_stmt *q))
{
    sqlite3_stmt *q;
    int rc;
    if (sqlite3_prepare_v2(x->db, sql, -1, &q, NULL) != SQLITE_OK)
        return false;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW)
        f(s, q);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE;
}

bool disk_index_load(struct disk_index *x, struct disk_set *s)
{
    if (!x)
        return true;
    if (each(x, "select * from realm", s, load_realm) &&
        each(x, "select * from object", s, load_object))
        return true;
    if (x->put)
        make_anew(x);
    return false;
}

/* ------------------------------------------------------------------ changes */

static bool usable(const struct disk_index *x)
{
    return x && !x->failed && x->put;
}

static void done(struct disk_index *x, sqlite3_stmt *q)
{
    if (sqlite3_step(q) != SQLITE_DONE)
        say(x, "no-longer-kept");
    sqlite3_reset(q);
}

void disk_index_begin(struct disk_index *x, const struct disk_set *s)
{
    if (usable(x) && sqlite3_exec(x->db, "begin immediate", NULL, NULL, NULL) != SQLITE_OK)
        say(x, "no-longer-kept");
    for (int i = 0; i < s->n_realms && usable(x); i++) {
        const struct disk_realm *r = &s->realm[i];
        if (!r->numerics[0])
            continue;
        sqlite3_bind_text(x->put_realm, 1, r->name, -1, SQLITE_STATIC);
        sqlite3_bind_text(x->put_realm, 2, r->numerics, -1, SQLITE_STATIC);
        sqlite3_bind_text(x->put_realm, 3, r->weights, -1, SQLITE_STATIC);
        done(x, x->put_realm);
    }
}

void disk_index_put(struct disk_index *x, const struct disk_set *s, const struct disk_entry *e)
{
    const struct disk_realm *r = &s->realm[e->realm];
    uint8_t key[KEY], parent[KEY];
    if (!usable(x) || e->name_hash == 0) /* a file that nobody could read is looked at again */
        return;
    key_bytes(key, &e->key);
    key_bytes(parent, &e->parent);
    sqlite3_bind_text(x->put, 1, r->name, -1, SQLITE_STATIC);
    sqlite3_bind_int(x->put, 2, e->kind);
    sqlite3_bind_blob(x->put, 3, key, KEY, SQLITE_STATIC);
    sqlite3_bind_blob(x->put, 4, parent, KEY, SQLITE_STATIC);
    sqlite3_bind_int64(x->put, 5, (sqlite3_int64)e->name_hash);
    sqlite3_bind_int64(x->put, 6, e->n);
    sqlite3_bind_int(x->put, 7, e->n_ids);
    sqlite3_bind_int64(x->put, 8, (sqlite3_int64)e->bytes);
    sqlite3_bind_int64(x->put, 9, e->created_ns);
    sqlite3_bind_int64(x->put, 10, e->used_ns);
    sqlite3_bind_int64(x->put, 11, e->hits);
    done(x, x->put);
}

void disk_index_remove(struct disk_index *x, const struct disk_set *s, const struct disk_entry *e)
{
    uint8_t key[KEY];
    if (!usable(x))
        return;
    key_bytes(key, &e->key);
    sqlite3_bind_text(x->remove, 1, s->realm[e->realm].name, -1, SQLITE_STATIC);
    sqlite3_bind_int(x->remove, 2, e->kind);
    sqlite3_bind_blob(x->remove, 3, key, KEY, SQLITE_STATIC);
    done(x, x->remove);
}

bool disk_index_end(struct disk_index *x)
{
    if (usable(x) && sqlite3_exec(x->db, "commit", NULL, NULL, NULL) == SQLITE_OK)
        return true;
    if (x && x->db && !sqlite3_get_autocommit(x->db))
        sqlite3_exec(x->db, "rollback", NULL, NULL, NULL);
    if (usable(x))
        say(x, "no-longer-kept");
    return false;
}
