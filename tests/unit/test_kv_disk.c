/* The disk tier as a store: what is put comes back bit for bit, in every way of reading and over restarts;
 * what differs in anything does not; budgets; two servers on one folder. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "support/disk.h"

struct fixture {
    char dir[64];
    struct disk_opts o;
};

static int64_t fake_ns;
static int64_t fake_clock(void)
{
    return fake_ns;
}

static void start(struct fixture *f)
{
    tmpdir_make(f->dir, sizeof f->dir);
    disk_opts_default(&f->o);
    f->o.dir = f->dir;
    f->o.numerics = "rows-fp8/1";
    f->o.weights = "0123456789abcdef";
    f->o.residence_s = 0;
    disk_log_start();
}

static void stop(struct fixture *f)
{
    disk_rm(f->dir);
    log_set_sink(NULL, NULL);
}

static struct store *reopen(struct fixture *f, struct store *s)
{
    if (s)
        s->ops->close(s);
    disk_ok(disk_open(&s, &f->o));
    return s;
}

/* Pages behind each other, the first behind `before` (or NULL). */
static void chain(struct disk_obj *o, int n, const struct disk_obj *before, int32_t letter,
                  size_t bytes)
{
    for (int i = 0; i < n; i++)
        disk_page(&o[i], i ? &o[i - 1] : before, letter + i, bytes);
}

/* ------------------------------------------------------------------ contents */

static void test_round_trip(void **state)
{
    static const size_t size[] = {0,      1,       4095,          4096,    4097, 262144,
                                  262145, 1 << 20, (1 << 20) + 3, 3000001, 77,   100000};
    static struct disk_obj o[2 * FST_COUNT(size)];
    int n = FST_COUNT(o);
    (void)state;
    for (int way = 0; way < 12; way++) {
        struct fixture f;
        start(&f);
        f.o.ring = way % 2 == 0 ? DISK_RING_AUTO : DISK_RING_OFF;
        f.o.zstd = way >= 6;
        for (int i = 0; i < n / 2; i++) {
            disk_page(&o[2 * i], i ? &o[2 * i - 2] : NULL, i, size[i]);
            disk_obj_make(&o[2 * i + 1], &o[2 * i], STORE_SNAPSHOT, i * 23, i, 0, size[i]);
        }
        struct store *s = reopen(&f, NULL);
        assert_int_equal(disk_get(s, o, n, NULL), 0);
        disk_io_limit(way % 3 == 1 ? 3 * DISK_ALIGN
                                   : 0); /* calls that do less than they are asked */
        assert_int_equal(disk_put(s, o, n, NULL), n);
        assert_int_equal(disk_get(s, o, n, NULL), n);
        disk_io_limit(0);
        assert_int_equal(s->stats.n_put, n);
        assert_int_equal(s->stats.n_got, n);
        assert_int_equal(s->stats.n_missed, n);
        assert_int_equal(s->stats.bytes, disk_bytes_in(f.dir));
        uint64_t plain = 0;
        for (int i = 0; i < n; i++) {
            assert_true(disk_has(s, &o[i]));
            plain += disk_size_of(&o[i]);
        }
        assert_true(f.o.zstd ? s->stats.bytes < plain * 3 / 4 : s->stats.bytes == plain);
        /* What is there is not written again. */
        uint64_t written = s->stats.put_bytes;
        assert_int_equal(disk_put(s, o, n, NULL), n);
        assert_int_equal(s->stats.put_bytes, written);
        disk_set_ok(s);
        f.o.zstd = !f.o.zstd; /* read either way */
        s = reopen(&f, s);
        assert_int_equal(s->stats.n_objects, n);
        assert_int_equal(disk_get(s, o, n, NULL), n);
        assert_int_equal(s->stats.n_bad, 0);
        s->ops->close(s);
        assert_int_equal(disk_log_count(" warn "), 0);
        stop(&f);
    }
}

/* Hundreds in one call, more than there are lanes; the same object twice in one call. */
static void test_many_at_once(void **state)
{
    enum { N = 300 };
    static struct disk_obj o[N + 2];
    struct fixture f;
    (void)state;
    start(&f);
    chain(o, N, NULL, 0, 20000);
    o[N] = o[N - 1];
    o[N + 1] = o[0];
    struct store *s = reopen(&f, NULL);
    assert_int_equal(disk_put(s, o, N + 2, NULL), N + 2);
    assert_int_equal(s->stats.n_put, N);
    assert_int_equal(disk_get(s, o, N + 2, NULL), N + 2);
    s->ops->close(s);
    stop(&f);
}

static void test_what_differs_is_missing(void **state)
{
    struct fixture f;
    struct disk_obj root, page, other;
    (void)state;
    start(&f);
    disk_page(&root, NULL, 5, 1000);
    disk_page(&page, &root, 7, 10000);
    struct store *s = reopen(&f, NULL);
    assert_int_equal(disk_put(s, &root, 1, NULL), 1);
    assert_int_equal(disk_put(s, &page, 1, NULL), 1);
    for (int what = 0; what < 8; what++) {
        other = page;
        other.name.ids = other.ids;
        switch (what) {
        case 0:
            other.ids[0]++;
            break;
        case 1:
            other.ids[255]++;
            break;
        case 2:
            other.name.salt[3] = 1;
            break;
        case 3:
            other.name.parent.word[1]++;
            break;
        case 4:
            other.name.n++;
            break;
        case 5:
            other.name.n_ids--;
            break;
        case 6:
            other.bytes--;
            break;
        case 7:
            other.name.parent = (struct store_key){0};
            break;
        }
        /* The same key: as if hashes had met. */
        if (what != 6) {
            assert_int_equal(disk_put(s, &other, 1, NULL), 0);
            assert_int_equal(disk_get(s, &other, 1, NULL), 0);
        } else {
            struct store_run run = {malloc(other.bytes), other.bytes};
            struct store_get g = {.name = page.name, .runs = &run, .n_runs = 1};
            s->ops->get(s, &g, 1);
            assert_false(g.found);
            free(run.at);
        }
    }
    other = page;
    other.name.kind = STORE_SNAPSHOT;
    assert_false(disk_has(s, &other));
    assert_int_equal(disk_get(s, &page, 1, NULL), 1);
    assert_int_equal(s->stats.n_bad, 0);
    s->ops->close(s);
    stop(&f);
}

/* One tenant's objects under another's salt: other keys, other files. */
static void test_salts(void **state)
{
    struct fixture f;
    struct disk_obj a, b;
    (void)state;
    start(&f);
    disk_obj_make(&a, NULL, STORE_PAGE, 256, 3, 1, 5000);
    disk_obj_make(&b, NULL, STORE_PAGE, 256, 3, 2, 5000);
    struct store *s = reopen(&f, NULL);
    assert_int_equal(disk_put(s, &a, 1, NULL), 1);
    assert_false(disk_has(s, &b));
    assert_int_equal(disk_get(s, &b, 1, NULL), 0);
    assert_int_equal(disk_get(s, &a, 1, NULL), 1);
    s->ops->close(s);
    stop(&f);
}

static void test_other_numerics(void **state)
{
    struct fixture f;
    struct disk_obj o[4];
    (void)state;
    start(&f);
    chain(o, 4, NULL, 1, 9000);
    struct store *s = reopen(&f, NULL);
    assert_int_equal(disk_put(s, o, 4, NULL), 4);
    uint64_t bytes = s->stats.bytes;
    for (int i = 0; i < 2; i++) {
        f.o.numerics = i ? "rows-fp8/1" : "rows-bf16/1";
        f.o.weights = i ? "fedcba9876543210" : "0123456789abcdef";
        s = reopen(&f, s);
        assert_int_equal(s->stats.bytes,
                         bytes + (uint64_t)i * disk_size_of(&o[0])); /* they count */
        assert_false(disk_has(s, &o[0]));
        assert_int_equal(disk_get(s, o, 4, NULL), 0);
        assert_int_equal(disk_put(s, o, 1, NULL), 1); /* the same key, beside the other file */
        assert_int_equal(disk_get(s, o, 4, NULL), 1);
    }
    f.o.numerics = "rows-fp8/1";
    f.o.weights = "0123456789abcdef";
    s = reopen(&f, s);
    assert_int_equal(disk_get(s, o, 4, NULL), 4); /* nobody touched them */
    assert_int_equal(s->stats.n_bad, 0);
    /* For room they go like all others. */
    f.o.budget_bytes = (int64_t)disk_size_of(&o[0]) * 4;
    s = reopen(&f, s);
    assert_int_equal(s->stats.bytes, f.o.budget_bytes);
    assert_int_equal(disk_get(s, o, 4, NULL), 4);
    s->ops->close(s);
    stop(&f);
}

/* ------------------------------------------------------------------ budgets */

static void test_budget(void **state)
{
    enum { N = 12, ROOM = 5 };
    static struct disk_obj o[N], big, tail[4];
    struct fixture f;
    bool kept[N];
    (void)state;
    start(&f);
    for (int i = 0; i < N; i++)
        disk_page(&o[i], NULL, 100 * i, 30000);
    uint64_t one = disk_size_of(&o[0]);
    f.o.budget_bytes = (int64_t)one * ROOM + 100;
    struct store *s = reopen(&f, NULL);
    /* More than there is room for in one call: the first stay, nothing is written in vain. */
    assert_int_equal(disk_put(s, o, N, kept), ROOM);
    for (int i = 0; i < N; i++)
        assert_int_equal(kept[i], i < ROOM);
    assert_int_equal(s->stats.n_evicted, 0);
    assert_int_equal(s->stats.n_refused, N - ROOM);
    assert_int_equal(s->stats.put_bytes, one * ROOM);
    for (int i = 1; i < ROOM; i++)
        assert_int_equal(disk_get(s, &o[i], 1, NULL), 1);
    assert_int_equal(disk_get(s, o, 1, NULL), 1); /* used last: the second is the oldest */
    assert_int_equal(disk_put(s, &o[ROOM], 1, NULL), 1);
    assert_true(disk_has(s, &o[0]));
    assert_false(disk_has(s, &o[1]));
    assert_true(disk_has(s, &o[2]));
    assert_int_equal(disk_put(s, &o[2], 1, NULL), 1); /* there: a use as well */
    assert_int_equal(disk_put(s, &o[7], 1, NULL), 1);
    assert_true(disk_has(s, &o[2]));
    assert_false(disk_has(s, &o[3]));
    /* What can never fit pushes nobody out. */
    disk_page(&big, NULL, 77, (size_t)one * ROOM);
    uint64_t evicted = s->stats.n_evicted;
    assert_int_equal(disk_put(s, &big, 1, NULL), 0);
    assert_int_equal(s->stats.n_evicted, evicted);
    /* A page that others go on from outlives them, however long unused. */
    chain(tail, 4, &o[4], 900, 30000);
    assert_int_equal(disk_put(s, tail, 3, NULL), 3);
    assert_int_equal(disk_get(s, &tail[2], 1, NULL), 1);
    assert_int_equal(disk_put(s, &tail[3], 1, NULL), 1);
    for (int i = 0; i < 4; i++)
        assert_true(disk_has(s, &tail[i]));
    assert_true(disk_has(s, &o[4]));
    assert_int_equal(disk_put(s, &o[9], 1, NULL),
                     1); /* the last of the chain goes, not the first */
    assert_false(disk_has(s, &tail[3]));
    assert_true(disk_has(s, &o[4]));
    assert_int_equal(s->stats.bytes, disk_bytes_in(f.dir));
    assert_true(s->stats.bytes <= (uint64_t)f.o.budget_bytes);
    disk_set_ok(s);
    /* A smaller budget at the next start: the newest stay, parents before children. */
    f.o.budget_bytes = (int64_t)one * 2;
    s = reopen(&f, s);
    assert_int_equal(s->stats.n_objects, 2);
    assert_true(disk_has(s, &o[9]));
    f.o.budget_bytes = 0;
    s = reopen(&f, s);
    assert_int_equal(disk_bytes_in(f.dir), 0);
    assert_int_equal(disk_put(s, o, 1, NULL), 0);
    s->ops->close(s);
    stop(&f);
}

/* 20 chats take turns, room for three, one shared beginning of 20 pages: it is there every time. */
static void test_shared_beginning(void **state)
{
    enum { SHARED = 20, OWN = 10, CHATS = 20 };
    static struct disk_obj shared[SHARED + 1], chat[CHATS][OWN + 1];
    struct fixture f;
    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        start(&f);
        chain(shared, SHARED, NULL, 0, 8000);
        disk_obj_make(&shared[SHARED], &shared[SHARED - 1], STORE_SNAPSHOT, 9, 1, 0, 50000);
        for (int c = 0; c < CHATS; c++) {
            chain(chat[c], OWN, &shared[SHARED - 1], 1000 * (c + 1), 8000);
            disk_obj_make(&chat[c][OWN], &chat[c][OWN - 1], STORE_SNAPSHOT, 100, c, 0, 50000);
        }
        uint64_t own = OWN * disk_size_of(&chat[0][0]) + disk_size_of(&chat[0][OWN]);
        uint64_t all = SHARED * disk_size_of(&shared[0]) + disk_size_of(&shared[SHARED]);
        f.o.budget_bytes = (int64_t)(all + 3 * own);
        f.o.now_ns = fake_clock;
        f.o.residence_s = mode == 2 ? 60 : 0;
        fake_ns = 1000000000;
        struct store *s = reopen(&f, NULL);
        assert_int_equal(disk_put(s, shared, SHARED + 1, NULL), SHARED + 1);
        for (int turn = 0; turn < 6 * CHATS; turn++) {
            struct disk_obj *c = chat[turn % CHATS];
            fake_ns += 1000000000;
            /* The beginning is looked for; in mode 1 by its end alone, as by one who has the rest. */
            int from = mode == 1 ? SHARED - 1 : 0;
            assert_int_equal(disk_get(s, shared + from, SHARED + 1 - from, NULL),
                             SHARED + 1 - from);
            if (disk_get(s, c, OWN + 1, NULL) < OWN + 1)
                disk_put(s, c, OWN + 1, NULL);
            assert_true(s->stats.bytes <= (uint64_t)f.o.budget_bytes);
            if (turn == 50)
                s = reopen(&f, s);
        }
        assert_int_equal(disk_get(s, shared, SHARED + 1, NULL), SHARED + 1);
        assert_int_equal(disk_bytes_in(f.dir), s->stats.bytes);
        assert_true(mode == 2 || s->stats.n_evicted > 100);
        disk_set_ok(s);
        s->ops->close(s);
        stop(&f);
    }
}

/* Room for little more than one: what was just written stays, and the rest is not written for nothing. */
static void test_no_thrash(void **state)
{
    struct fixture f;
    struct disk_obj o[5];
    (void)state;
    start(&f);
    for (int i = 0; i < 5; i++)
        disk_obj_make(&o[i], NULL, STORE_SNAPSHOT, 200, 10 * i, 0, 300000);
    f.o.budget_bytes = (int64_t)(disk_size_of(&o[0]) * 11 / 10);
    f.o.residence_s = 60;
    f.o.now_ns = fake_clock;
    fake_ns = 5000000000;
    struct store *s = reopen(&f, NULL);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(disk_put(s, &o[i], 1, NULL), i == 0);
        assert_int_equal(disk_put(s, &o[i], 1, NULL), i == 0); /* from another path: not again */
        fake_ns += 1000000000;
    }
    assert_int_equal(s->stats.put_bytes, s->stats.bytes);
    fake_ns += 61000000000;
    assert_int_equal(disk_put(s, &o[4], 1, NULL), 1); /* now it is old enough */
    assert_false(disk_has(s, &o[0]));
    /* Also across a restart. */
    s = reopen(&f, s);
    assert_int_equal(disk_put(s, &o[3], 1, NULL), 0);
    assert_true(disk_has(s, &o[4]));
    s->ops->close(s);
    stop(&f);
}

static void test_write_budget(void **state)
{
    enum { N = 80 };
    static struct disk_obj o[N];
    struct fixture f;
    int kept = 0;
    (void)state;
    start(&f);
    for (int i = 0; i < N; i++)
        disk_page(&o[i], NULL, 100 * i, 30000);
    uint64_t one = disk_size_of(&o[0]);
    f.o.write_bytes_hour = (int64_t)one * 10;
    f.o.now_ns = fake_clock;
    fake_ns = 1234 * 60000000000;
    struct store *s = reopen(&f, NULL);
    for (int i = 0; i < 30; i++) { /* half a minute apart: 15 minutes */
        kept += disk_put(s, &o[i], 1, NULL);
        fake_ns += 30000000000;
    }
    assert_int_equal(kept, 10);
    assert_int_equal(s->stats.n_refused, 20);
    assert_int_equal(disk_put(s, o, 1, NULL), 1); /* what is there costs nothing */
    s = reopen(&f, s);                            /* a restart is no new hour */
    assert_int_equal(disk_put(s, &o[40], 1, NULL), 0);
    fake_ns += 45 * 60000000000; /* an hour after the first two */
    assert_int_equal(disk_put(s, &o[40], 5, NULL), 2);
    fake_ns += 2 * 3600000000000;
    assert_int_equal(disk_put(s, &o[45], 30, NULL), 10);
    s->ops->close(s);
    stop(&f);
}

/* ------------------------------------------------------------------ restarts */

static void test_index(void **state)
{
    static const char other[] =
        "SQLite format 3 is not what this is, though it is long enough to hope";
    enum { N = 6 };
    struct disk_obj o[N];
    char path[200];
    (void)state;
    for (int what = 0; what < 6; what++) {
        struct fixture f;
        start(&f);
        snprintf(path, sizeof path, "%s/index", f.dir);
        f.o.now_ns = fake_clock;
        fake_ns = clock_wall_ns();
        for (int i = 0; i < N; i++)
            disk_page(&o[i], NULL, 10 * i, 30000);
        struct store *s = reopen(&f, NULL);
        for (int i = 0; i < N; i++) {
            fake_ns += 1000000000;
            assert_int_equal(disk_put(s, &o[i], 1, NULL), 1);
        }
        assert_int_equal(disk_get(s, &o[1], 1, NULL), 1);
        assert_int_equal(disk_get(s, &o[1], 1, NULL), 1);
        s->ops->close(s);
        if (what == 1)
            assert_int_equal(unlink(path), 0);
        if (what == 2)
            tmpdir_write(f.dir, "index", other, sizeof other);
        if (what == 3) { /* a page in the middle of it */
            size_t len;
            char *all = tmpdir_read(f.dir, "index", &len);
            memset(all + 4096, 0x5A, len - 4096);
            tmpdir_write(f.dir, "index", all, len);
            free(all);
        }
        if (what == 4) { /* of another version: SQLite's user_version, 4 bytes at 60 */
            size_t len;
            char *all = tmpdir_read(f.dir, "index", &len);
            all[63] = 9;
            tmpdir_write(f.dir, "index", all, len);
            free(all);
        }
        if (what == 5) { /* it says more than there is, and less */
            char file[300];
            disk_file_of(file, sizeof file, f.dir, &f.o, &o[0]);
            assert_int_equal(unlink(file), 0);
        }
        s = reopen(&f, NULL);
        assert_int_equal(s->stats.n_objects, N - (what == 5));
        assert_int_equal(disk_log_count("made-anew"), what >= 2 && what <= 4);
        struct disk *d = (struct disk *)(void *)s;
        int32_t at = disk_set_find(&d->set, 0, &o[1].name.key, STORE_PAGE);
        assert_int_equal(d->set.entry[at].hits, what == 0 || what == 5 ? 2 : 0);
        int32_t last = d->set.entry[0].older; /* the order of use as well */
        if (what == 0 || what == 5)
            assert_int_equal(last, at);
        assert_int_equal(disk_get(s, o, N, NULL), N - (what == 5));
        disk_set_ok(s);
        s->ops->close(s);
        s = reopen(&f, NULL); /* and it is an index again */
        d = (struct disk *)(void *)s;
        at = disk_set_find(&d->set, 0, &o[1].name.key, STORE_PAGE);
        assert_int_equal(d->set.entry[at].hits, what == 0 || what == 5 ? 3 : 1);
        s->ops->close(s);
        stop(&f);
    }
}

/* Times of files that were found without an index: a parent is older than what goes on from it, and stays
 * longer all the same. */
static void test_order(void **state)
{
    enum { N = 40 };
    struct disk_set s;
    int32_t at[N];
    (void)state;
    disk_ok(disk_set_init(&s));
    assert_int_equal(disk_set_realm(&s, "0123456789abcdef"), 0);
    for (int i = 0; i < N; i++) { /* a chain, its beginning added last */
        int k = N - i;
        at[k - 1] =
            disk_set_add(&s, &(struct disk_entry){.key = {{(uint64_t)k, 7}},
                                                  .parent = {{(uint64_t)k - 1, k > 1 ? 7 : 0}},
                                                  .used_ns = k == 20 ? 1000 : k,
                                                  .n = 256 * k,
                                                  .bytes = 1,
                                                  .kind = STORE_PAGE,
                                                  .state = DISK_STORED});
        assert_true(at[k - 1]);
    }
    disk_ok(disk_set_check(&s));
    disk_ok(disk_set_sort(&s));
    disk_ok(disk_set_check(&s));
    int32_t next = 0;
    for (int k = N; k >= 1; k--) {
        next = disk_set_next(&s, next);
        assert_int_equal(next, at[k - 1]);
        assert_true(s.entry[next].used_ns >= (k <= 20 ? 1000 : N));
    }
    for (int k = N; k > 20; k--) {
        assert_int_equal(disk_set_victim(&s, 1000), at[k - 1]);
        disk_set_remove(&s, at[k - 1]);
    }
    assert_int_equal(disk_set_victim(&s, 1000), 0); /* the rest was used then */
    assert_int_equal(disk_set_victim(&s, 1001), at[19]);
    disk_ok(disk_set_check(&s));
    disk_set_release(&s);
}

/* Tails as they are asked for, after restarts with the index and without, and when objects have gone. */
static void test_tails(void **state)
{
    static const int n_ids[] = {0, 1, 63, 64, 127, 128, 255};
    enum { PARENTS = 3, TAILS = FST_COUNT(n_ids) };
    static struct disk_obj page[PARENTS], o[PARENTS][TAILS];
    struct fixture f;
    char path[300];
    (void)state;
    start(&f);
    chain(page, PARENTS, NULL, 1, 100);
    struct store *s = reopen(&f, NULL);
    assert_true(s->lasts);
    for (int p = 0; p < PARENTS; p++) /* the snapshots first: their parent is a stand-in then */
        for (int i = 0; i < TAILS; i++)
            disk_obj_make(&o[p][i], p ? &page[p] : NULL, STORE_SNAPSHOT, n_ids[i], 9 + p, 0, 50);
    for (int p = 0; p < PARENTS; p++)
        assert_int_equal(disk_put(s, o[p] + p, TAILS - p, NULL), TAILS - p);
    assert_int_equal(disk_put(s, page, PARENTS, NULL), PARENTS);
    for (int round = 0; round < 5; round++) {
        if (round == 2) { /* the files say it too */
            s->ops->close(s);
            s = NULL;
            snprintf(path, sizeof path, "%s/index", f.dir);
            assert_int_equal(unlink(path), 0);
        }
        if (round == 3) { /* one of them is damaged: dropped when it is asked for */
            disk_file_of(path, sizeof path, f.dir, &f.o, &o[1][3]);
            assert_int_equal(truncate(path, 10), 0);
            assert_int_equal(disk_get(s, &o[1][3], 1, NULL), 0);
        }
        if (round == 4)
            s->ops->clear(s);
        s = reopen(&f, s);
        disk_set_ok(s);
        for (int p = 0; p < PARENTS; p++) {
            uint64_t bits[4] = {0}, want[4] = {0};
            for (int i = p; i < TAILS && round < 4; i++)
                if (round < 3 || p != 1 || i != 3)
                    want[n_ids[i] / 64] |= (uint64_t)1 << n_ids[i] % 64;
            s->ops->tails(s, &o[p][0].name.parent, bits);
            assert_memory_equal(bits, want, sizeof bits);
        }
    }
    assert_int_equal(s->stats.n_objects, 0);
    assert_int_equal(disk_get(s, page, PARENTS, NULL), 0);
    assert_int_equal(disk_put(s, page, PARENTS, NULL), PARENTS); /* and it goes on */
    s->ops->close(s);
    stop(&f);
}

static void test_leftovers(void **state)
{
    struct fixture f;
    struct disk_obj o;
    char path[300];
    (void)state;
    start(&f);
    disk_page(&o, NULL, 1, 5000);
    struct store *s = reopen(&f, NULL);
    assert_int_equal(disk_put(s, &o, 1, NULL), 1);
    s->ops->close(s);
    snprintf(path, sizeof path, "%s/new", f.dir);
    tmpdir_write(path, "17", "half", 4);
    tmpdir_write(f.dir, "mine.txt", "not yours", 9);
    snprintf(path, sizeof path, "%s/objects", f.dir);
    tmpdir_write(path, "mine.txt", "not yours", 9);
    f.o.budget_bytes = 0;
    s = reopen(&f, NULL);
    s->ops->close(s);
    snprintf(path, sizeof path, "%s/new/17", f.dir);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/mine.txt", f.dir);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/objects/mine.txt", f.dir);
    assert_int_equal(access(path, F_OK), 0);
    stop(&f);
}

static void test_two_servers(void **state)
{
    struct fixture f;
    struct store *s, *other;
    char pid[32];
    (void)state;
    start(&f);
    s = reopen(&f, NULL);
    assert_int_equal(disk_open(&other, &f.o), FST_EAGAIN);
    assert_null(other);
    snprintf(pid, sizeof pid, "(process %ld)", (long)getpid());
    assert_non_null(strstr(fst_error_text(), f.dir));
    assert_non_null(strstr(fst_error_text(), pid));
    s = reopen(&f, s);
    s->ops->close(s);
    stop(&f);
}

/* ------------------------------------------------------------------ threads */

struct asker {
    struct store *s;
    const struct disk_obj *o;
    int n;
    atomic_bool over;
    uint64_t asked;
};

static void *ask(void *ud)
{
    struct asker *a = ud;
    while (!atomic_load(&a->over))
        for (int i = 0; i < a->n; i++)
            a->asked += disk_has(a->s, &a->o[i]);
    return NULL;
}

static void test_has_meanwhile(void **state)
{
    enum { N = 40 };
    static struct disk_obj o[N];
    struct fixture f;
    pthread_t thread;
    (void)state;
    start(&f);
    chain(o, N, NULL, 1, 9000);
    f.o.budget_bytes = (int64_t)disk_size_of(&o[0]) * N / 2;
    f.o.ring = DISK_RING_OFF; /* whose threads a sanitizer sees */
    struct store *s = reopen(&f, NULL);
    struct asker a = {.s = s, .o = o, .n = N};
    assert_int_equal(pthread_create(&thread, NULL, ask, &a), 0);
    for (int round = 0; round < 10; round++) {
        disk_put(s, o + round % 7, N - 7, NULL);
        disk_get(s, o, N, NULL);
        disk_put(s, o + N / 2, 10, NULL);
        s->ops->flush(s);
    }
    atomic_store(&a.over, true);
    pthread_join(thread, NULL);
    disk_set_ok(s);
    s->ops->close(s);
    stop(&f);
}

static void test_options(void **state)
{
    struct fixture f;
    struct store *s;
    char long_text[200];
    (void)state;
    start(&f);
    memset(long_text, 'x', sizeof long_text);
    long_text[128] = 0;
    for (int what = 0; what < 7; what++) {
        struct disk_opts o = f.o;
        const char *named[] = {"dir",      "budget",  "write budget", "residence",
                               "numerics", "weights", "numerics"};
        switch (what) {
        case 0:
            o.dir = "";
            break;
        case 1:
            o.budget_bytes = -1;
            break;
        case 2:
            o.write_bytes_hour = -1;
            break;
        case 3:
            o.residence_s = -1;
            break;
        case 4:
            o.numerics = NULL;
            break;
        case 5:
            o.weights = "";
            break;
        case 6:
            o.numerics = long_text;
            break;
        }
        assert_int_equal(disk_open(&s, &o), FST_EINVAL);
        assert_non_null(strstr(fst_error_text(), named[what]));
    }
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_what_differs_is_missing),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_other_numerics),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_shared_beginning),
        cmocka_unit_test(test_no_thrash),
        cmocka_unit_test(test_write_budget),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_tails),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_two_servers),
        cmocka_unit_test(test_has_meanwhile),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
