/* Every system call and every allocation of the disk tier fails once, and from one call on all that write:
 * no wrong byte is given out, nothing is kept that is not there, the budget holds, and the next server
 * finds a folder that works. */
#include <errno.h>

#include "support/disk.h"

enum { N = 8, ROOM = 6 };

struct fixture {
    char dir[64];
    struct disk_opts o;
    struct disk_obj obj[N];
    bool kept[N];
    int n_kept, n_found; /* over a whole run */
};

static void start(struct fixture *f, enum disk_ring ring, bool zstd)
{
    *f = (struct fixture){0};
    tmpdir_make(f->dir, sizeof f->dir);
    disk_opts_default(&f->o);
    f->o.dir = f->dir;
    f->o.numerics = "rows-fp8/1";
    f->o.weights = "w";
    f->o.residence_s = 0;
    f->o.ring = ring;
    f->o.zstd = zstd;
    disk_log_start();
    for (int i = 0; i < N; i++) /* two chains, and one object of more than one piece */
        disk_page(&f->obj[i], i % 4 ? &f->obj[i - 1] : NULL, 10 * i,
                  i == 2 ? DISK_PIECE + 5000 : 20000);
    f->o.budget_bytes = (int64_t)(disk_size_of(&f->obj[2]) + (ROOM - 1) * disk_size_of(&f->obj[0]));
}

static void stop(struct fixture *f)
{
    disk_rm(f->dir);
    log_set_sink(NULL, NULL);
}

/* What a server does: some objects, then more than fit, reading in between. */
static enum fst_status serve(struct fixture *f)
{
    struct store *s;
    bool found[N];
    FST_TRY(disk_open(&s, &f->o));
    for (int round = 0; round < 2; round++) {
        int from = round ? 4 : 0;
        f->n_kept += disk_put(s, f->obj + from, 4, f->kept + from);
        f->n_found += disk_get(s, f->obj, N, found);
        enum fst_status rc = disk_set_check(&((struct disk *)(void *)s)->set);
        if (rc != FST_ENOMEM) /* the check's own memory may be what is refused */
            disk_ok(rc);
        for (int i = 0; i < N; i++)
            assert_true(!found[i] || disk_has(s, &f->obj[i]));
        assert_true(s->stats.bytes <= (uint64_t)f->o.budget_bytes);
        if (disk_bytes_in(f->dir) > (uint64_t)f->o.budget_bytes)
            fail_msg("%llu bytes on disk, %llu in the set: %s",
                     (unsigned long long)disk_bytes_in(f->dir), (unsigned long long)s->stats.bytes,
                     disk_log.text);
    }
    s->ops->flush(s);
    s->ops->close(s);
    return FST_OK;
}

/* Afterwards, with nothing failing: all can be put and read again. */
static void recover(struct fixture *f)
{
    struct store *s;
    disk_ok(disk_open(&s, &f->o));
    disk_get(s, f->obj, N, NULL);
    assert_int_equal(s->stats.n_bad, 0); /* nothing half written got a name */
    assert_int_equal(s->stats.bytes, disk_bytes_in(f->dir));
    assert_int_equal(disk_put(s, f->obj, 4, NULL), 4);
    assert_int_equal(disk_get(s, f->obj, 4, NULL), 4);
    assert_true(s->stats.bytes <= (uint64_t)f->o.budget_bytes);
    s->ops->close(s);
}

static void test_calls(void **state)
{
    static const int errors[] = {EIO, ENOSPC, EMFILE, ENOMEM, EROFS, EACCES};
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        struct fixture f;
        uint64_t n, most = 1;
        int failed_opens = 0, fewer = 0;
        start(&f, mode % 2 ? DISK_RING_OFF : DISK_RING_AUTO, mode >= 2);
        uint64_t before = disk_io_count();
        disk_ok(serve(&f));
        disk_ok(serve(&f)); /* the second opens a folder with objects and an index */
        most = disk_io_count() - before;
        int all_kept = f.n_kept, all_found = f.n_found;
        assert_true(most > 60);
        stop(&f);
        for (n = 1; n <= most; n += (uint64_t)test_size(3, 1, 7)) {
            start(&f, mode % 2 ? DISK_RING_OFF : DISK_RING_AUTO, mode >= 2);
            disk_io_fail_at(n, errors[n % FST_COUNT(errors)], n / 2 % 2 == 0);
            enum fst_status rc = serve(&f);
            if (rc == FST_OK)
                rc = serve(&f);
            disk_io_fail_at(0, 0, false);
            if (rc < 0) {
                failed_opens++;
                assert_true(strstr(fst_error_text(), f.dir) != NULL);
            } else {
                fewer += f.n_kept < all_kept || f.n_found < all_found;
            }
            /* A file that does not check out: nothing half written has a name, nobody reads it by half. */
            static const char *const damage[] = {"no object of", "checksum", "cut off",
                                                 "too short"};
            for (size_t i = 0; i < FST_COUNT(damage); i++)
                assert_int_equal(disk_log_count(damage[i]), 0);
            /* Said once, whatever it was. */
            assert_true(disk_log_count("disk off") <= 2);
            assert_true(disk_log_count("disk gone") <= 2);
            recover(&f);
            stop(&f);
        }
        print_message("%s%s: %d calls, %d refused to open, %d kept or found less\n",
                      mode % 2 ? "threads" : "io_uring", mode >= 2 ? " zstd" : "", (int)most,
                      failed_opens, fewer);
        assert_true(failed_opens > 0 && fewer > 5); /* they do fail */
    }
}

static void test_allocations(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        struct fixture f;
        int failed_opens = 0, fewer = 0;
        start(&f, mode ? DISK_RING_OFF : DISK_RING_AUTO, mode);
        uint64_t before = mem_count();
        disk_ok(serve(&f));
        disk_ok(serve(&f));
        uint64_t most = mem_count() - before;
        int all_kept = f.n_kept, all_found = f.n_found;
        stop(&f);
        for (uint64_t n = 1; n <= most; n++) {
            start(&f, mode ? DISK_RING_OFF : DISK_RING_AUTO, mode);
            mem_fail_at(n);
            enum fst_status rc = serve(&f);
            if (rc == FST_OK)
                rc = serve(&f);
            mem_fail_at(0);
            if (rc < 0) {
                failed_opens++;
                assert_int_equal(rc, FST_ENOMEM);
            } else {
                fewer += f.n_kept < all_kept || f.n_found < all_found;
            }
            recover(&f);
            stop(&f);
        }
        print_message("%d allocations, %d refused to open, %d kept or found less\n", (int)most,
                      failed_opens, fewer);
        assert_true(failed_opens > 8 && fewer > 3);
    }
}

/* Full in the middle of the day: one line, nothing new, and what is there is still given out. */
static void test_disk_full(void **state)
{
    struct fixture f;
    struct store *s;
    (void)state;
    start(&f, DISK_RING_AUTO, false);
    disk_ok(disk_open(&s, &f.o));
    assert_int_equal(disk_put(s, f.obj, 3, NULL), 3);
    disk_io_fail_at(1, ENOSPC, true);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(disk_put(s, f.obj + 3, 3, NULL), 0);
        assert_int_equal(disk_get(s, f.obj, N, NULL), 3);
    }
    disk_io_fail_at(0, 0, false);
    assert_int_equal(disk_log_count("disk off"), 1);
    assert_int_equal(disk_log_count("No space left on device"), 1);
    assert_int_equal(disk_log_count("\n"), 2);            /* that and the opening */
    assert_int_equal(disk_put(s, f.obj + 3, 1, NULL), 0); /* until somebody has looked */
    assert_int_equal(s->stats.n_objects, 3);
    s->ops->close(s);
    recover(&f);
    stop(&f);
}

/* No index to be had: a folder lies where it should be. */
static void test_no_index(void **state)
{
    struct fixture f;
    struct store *s;
    char path[100];
    (void)state;
    start(&f, DISK_RING_AUTO, false);
    snprintf(path, sizeof path, "%s/index", f.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    disk_ok(serve(&f));
    assert_int_equal(f.n_kept, 8);
    assert_int_equal(disk_log_count("goes-on-without"), 1);
    disk_ok(disk_open(&s, &f.o));
    assert_int_equal(s->stats.n_objects, ROOM); /* from the files */
    s->ops->close(s);
    stop(&f);
}

/* The same when the kernel gives neither a ring nor threads. */
static void test_plain(void **state)
{
    struct fixture f;
    struct store *s;
    (void)state;
    start(&f, DISK_RING_OFF, false);
    disk_ok(disk_open(&s, &f.o)); /* counts the calls up to the first thread's */
    s->ops->close(s);
    for (uint64_t n = 1;; n++) {
        disk_io_fail_at(n, EAGAIN, false);
        enum fst_status rc = disk_open(&s, &f.o);
        disk_io_fail_at(0, 0, false);
        if (rc < 0)
            continue;
        bool plain = strcmp(disk_io_name(((struct disk *)(void *)s)->io), "plain") == 0;
        if (plain) {
            assert_int_equal(disk_put(s, f.obj, 4, NULL), 4);
            assert_int_equal(disk_get(s, f.obj, 4, NULL), 4);
        }
        s->ops->close(s);
        if (plain)
            break;
        assert_true(n < 50);
    }
    /* A ring that is refused is an error for who insists on one, and nothing otherwise. */
    int refused = 0, replaced = 0;
    for (uint64_t n = 1; n < 12; n++) {
        for (int insist = 0; insist < 2; insist++) {
            f.o.ring = insist ? DISK_RING_ON : DISK_RING_AUTO;
            disk_io_fail_at(n, EPERM, false);
            enum fst_status rc = disk_open(&s, &f.o);
            disk_io_fail_at(0, 0, false);
            if (rc == FST_EMACHINE) {
                refused++;
                assert_non_null(strstr(fst_error_text(), "io_uring"));
            }
            if (rc < 0)
                continue;
            replaced += strcmp(disk_io_name(((struct disk *)(void *)s)->io), "threads") == 0;
            s->ops->close(s);
        }
    }
    assert_true(refused >= 1 && replaced >= 1);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls), cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_disk_full), cmocka_unit_test(test_no_index),
        cmocka_unit_test(test_plain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
