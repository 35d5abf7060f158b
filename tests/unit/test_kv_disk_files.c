/* Files of the disk tier that are not as they were written, and folders that are not as they should be: told
 * once, dropped, and missing from then on; and the same through the eyes of list, verify and prune. */
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "support/disk.h"

struct fixture {
    char dir[64];
    struct disk_opts o;
    struct store *s;
};

static void start(struct fixture *f)
{
    *f = (struct fixture){0};
    tmpdir_make(f->dir, sizeof f->dir);
    disk_opts_default(&f->o);
    f->o.dir = f->dir;
    f->o.numerics = "rows-fp8/1";
    f->o.weights = "w";
    f->o.residence_s = 0;
    disk_log_start();
    disk_ok(disk_open(&f->s, &f->o));
}

static void shut(struct fixture *f)
{
    if (f->s)
        f->s->ops->close(f->s);
    f->s = NULL;
}

static void stop(struct fixture *f)
{
    shut(f);
    disk_rm(f->dir);
    log_set_sink(NULL, NULL);
}

static void path_of(char *out, size_t size, struct fixture *f, const struct disk_obj *o)
{
    disk_file_of(out, size, f->dir, &f->o, o);
}

/* One byte of a file turns into another. */
static void flip(const char *path, off_t at)
{
    uint8_t c;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 0x40;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

static void put_word(const char *path, off_t at, uint32_t word)
{
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &word, sizeof word, at), sizeof word);
    close(fd);
}

/* ------------------------------------------------------------------ damage */

enum { BYTES = 600000 }; /* three blocks, zeros at the end */

/* What is done to the file of `o`; NULL behind the last. */
static const char *damage(int what, const char *path, uint64_t size, const char *donor)
{
    static const int at[] = {0,    3,    8,    12,   16,   24,     30,     40,     60,    70,
                             90,   130,  150,  300,  450,  511,    512,    1500,   1536,  1544,
                             1560, 3000, 4095, 4096, 4097, 270000, 300000, 600000, 604000};
    int n_at = (int)FST_COUNT(at);
    char command[800];
    if (what < n_at) {
        flip(path, at[what]);
        return "flipped";
    }
    switch (what - n_at) {
    case 0:
        flip(path, (off_t)size - 1);
        return "last byte";
    case 1:
        assert_int_equal(truncate(path, (off_t)size - DISK_ALIGN), 0);
        return "cut off";
    case 2:
        assert_int_equal(truncate(path, (off_t)size - 1), 0);
        return "cut off by one";
    case 3:
        assert_int_equal(truncate(path, 100), 0);
        return "a stub";
    case 4:
        assert_int_equal(truncate(path, 0), 0);
        return "empty";
    case 5:
        assert_int_equal(truncate(path, (off_t)size + DISK_ALIGN), 0);
        return "too long";
    case 6:
        put_word(path, 8, DISK_VERSION + 1);
        return "another version";
    case 7:
        put_word(path, 12, 0x04030201);
        return "another byte order";
    case 8: /* whole, but of another key */
        snprintf(command, sizeof command, "cp '%s' '%s'", donor, path);
        assert_int_equal(system(command), 0);
        return "another object";
    case 9:
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
        return "a folder";
    case 10: /* zeros, as a power cut leaves what was renamed and not yet written */
        assert_int_equal(truncate(path, 0), 0);
        assert_int_equal(truncate(path, (off_t)size), 0);
        return "zeros";
    }
    return NULL;
}

/* Damaged beneath a running server, and between two runs; with the index and without. */
static void test_damage(void **state)
{
    char path[300], donor[300], index[100];
    (void)state;
    for (int mode = 0; mode < 3; mode++)
        for (int what = 0;; what++) {
            struct fixture f;
            struct disk_obj o, next, other;
            start(&f);
            disk_page(&o, NULL, 5, BYTES);
            disk_page(&next, &o, 6, 5000);
            disk_page(&other, NULL, 8, BYTES);
            assert_int_equal(disk_put(f.s, &o, 1, NULL), 1);
            assert_int_equal(disk_put(f.s, &next, 1, NULL), 1);
            assert_int_equal(disk_put(f.s, &other, 1, NULL), 1);
            path_of(path, sizeof path, &f, &o);
            path_of(donor, sizeof donor, &f, &other);
            if (mode)
                shut(&f);
            const char *name = damage(what, path, disk_size_of(&o), donor);
            if (!name) {
                stop(&f);
                assert_true(what > 30);
                break;
            }
            if (mode == 0 && strcmp(name, "too long") == 0) {
                /* What it knows the file to be is whole. */
                assert_int_equal(disk_get(f.s, &o, 1, NULL), 1);
                stop(&f);
                continue;
            }
            if (mode == 2) {
                snprintf(index, sizeof index, "%s/index", f.dir);
                assert_int_equal(unlink(index), 0);
            }
            if (mode)
                disk_ok(disk_open(&f.s, &f.o));
            for (int round = 0; round < 3; round++)
                if (disk_get(f.s, &o, 1, NULL) != 0)
                    fail_msg("%s (%d, mode %d): given out", name, what, mode);
            assert_false(disk_has(f.s, &o));
            /* A folder is no file: a scan does not see it. */
            bool folder = strcmp(name, "a folder") == 0, seen = !folder || mode == 0;
            if (disk_log_count("disk bad") != seen)
                fail_msg("%s (%d, mode %d): told %d times\n%s", name, what, mode,
                         disk_log_count("disk bad"), disk_log.text);
            assert_int_equal(f.s->stats.n_bad, seen);
            if (seen)
                assert_non_null(strstr(disk_log.text, path + strlen(f.dir) + 1));
            if (strncmp(name, "another", 7) == 0) /* it says what it is */
                assert_non_null(strstr(disk_log.text,
                                       strcmp(name, "another version") == 0  ? "another version"
                                       : strcmp(name, "another object") == 0 ? "another key"
                                                                             : "other byte order"));
            assert_int_equal(disk_get(f.s, &next, 1, NULL), 1);
            assert_int_equal(disk_get(f.s, &other, 1, NULL), 1);
            disk_set_ok(f.s);
            if (!folder) { /* and it can be kept again */
                assert_int_equal(disk_put(f.s, &o, 1, NULL), 1);
                assert_int_equal(disk_get(f.s, &o, 1, NULL), 1);
                assert_int_equal(f.s->stats.bytes, disk_bytes_in(f.dir));
            }
            stop(&f);
        }
}

/* Written by another model under our name: a file that is whole, and not ours. */
static void test_smuggled(void **state)
{
    struct fixture f;
    struct disk_obj o;
    char path[300], theirs[300], command[700];
    (void)state;
    start(&f);
    disk_page(&o, NULL, 5, 5000);
    assert_int_equal(disk_put(f.s, &o, 1, NULL), 1);
    path_of(path, sizeof path, &f, &o);
    shut(&f);
    f.o.weights = "older";
    disk_ok(disk_open(&f.s, &f.o));
    assert_int_equal(disk_put(f.s, &o, 1, NULL), 1);
    path_of(theirs, sizeof theirs, &f, &o);
    assert_string_not_equal(path, theirs);
    shut(&f);
    snprintf(command, sizeof command, "cp '%s' '%s'", theirs, path);
    assert_int_equal(system(command), 0);
    f.o.weights = "w";
    disk_ok(disk_open(&f.s, &f.o));
    assert_int_equal(disk_get(f.s, &o, 1, NULL), 0);
    assert_int_equal(disk_log_count("written under other numerics or weights"), 1);
    assert_int_equal(disk_get(f.s, &o, 1, NULL), 0);
    assert_int_equal(disk_log_count("disk bad"), 1);
    assert_int_equal(access(theirs, F_OK), 0);
    stop(&f);
}

/* ------------------------------------------------------------------ folders */

static void test_folder_gone(void **state)
{
    enum { N = 20 };
    static struct disk_obj o[N], more;
    struct fixture f;
    (void)state;
    start(&f);
    for (int i = 0; i < N; i++)
        disk_page(&o[i], NULL, i * 5, 5000);
    disk_page(&more, NULL, 999, 5000);
    assert_int_equal(disk_put(f.s, o, N, NULL), N);
    disk_rm(f.dir);
    assert_int_equal(disk_get(f.s, o, N, NULL), 0);
    assert_int_equal(disk_put(f.s, &more, 1, NULL), 0);
    assert_int_equal(disk_put(f.s, &more, 1, NULL), 0);
    assert_int_equal(disk_get(f.s, o, N, NULL), 0);
    assert_int_equal(disk_log_count("disk gone"), 1);
    assert_int_equal(disk_log_count("disk off"), 1);
    assert_int_equal(disk_log_count("disk bad"), 0);
    assert_int_equal(f.s->stats.n_objects, 0);
    stop(&f);
}

static void test_no_folder(void **state)
{
    struct fixture f;
    struct store *s;
    char path[100];
    (void)state;
    start(&f);
    tmpdir_write(f.dir, "file", "x", 1);
    for (int i = 0; i < 3; i++) {
        static const char *const name[] = {"file", "file/below", "none/below"};
        static const char *const why[] = {"is a file, expected a folder", "expected a folder",
                                          "No such file or directory"};
        snprintf(path, sizeof path, "%s/%s", f.dir, name[i]);
        f.o.dir = path;
        assert_true(disk_open(&s, &f.o) < 0);
        assert_null(s);
        assert_non_null(strstr(fst_error_text(), path));
        assert_non_null(strstr(fst_error_text(), why[i]));
        assert_null(strchr(fst_error_text(), '\n'));
    }
    snprintf(path, sizeof path, "%s/made", f.dir);
    f.o.dir = path;
    disk_ok(disk_open(&s, &f.o));
    s->ops->close(s);
    f.o.dir = f.dir;
    stop(&f);
}

static int chmod_all_(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)ftw;
    /* What was written is for its owner alone: somebody else is to read it here. */
    chmod(path, type == FTW_F           ? (st->st_mode & S_IWUSR ? 0444 : 0600)
                : st->st_mode & S_IWUSR ? 0555
                                        : 0700);
    return 0;
}

/* A folder without the right to write: what is there is read, nothing is put, one line.  In a process without
 * root's rights, which see no such thing. */
static void test_read_only(void **state)
{
    struct fixture f;
    struct disk_obj o[2];
    char path[300];
    (void)state;
    start(&f);
    disk_page(&o[0], NULL, 5, 5000);
    disk_page(&o[1], NULL, 9, 5000);
    struct disk_obj bad;
    disk_page(&bad, NULL, 12, 5000);
    assert_int_equal(disk_put(f.s, &o[0], 1, NULL), 1);
    assert_int_equal(disk_put(f.s, &bad, 1, NULL), 1);
    path_of(path, sizeof path, &f, &bad);
    flip(path, 5000);
    shut(&f);
    nftw(f.dir, chmod_all_, 16, FTW_DEPTH | FTW_PHYS);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int rc = 0;
        if (getuid() == 0 && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
            _exit(9);
        if (disk_open(&f.s, &f.o) < 0)
            _exit(1);
        rc |= (disk_get(f.s, o, 2, NULL) != 1) << 1;
        rc |= (disk_put(f.s, &o[1], 1, NULL) != 0) << 2;
        rc |= (disk_put(f.s, &o[0], 1, NULL) != 1) << 3; /* there */
        rc |= (disk_get(f.s, &bad, 1, NULL) != 0 || disk_has(f.s, &bad)) << 4;
        f.s->ops->flush(f.s);
        f.s->ops->close(f.s);
        rc |= (disk_log_count("disk read-only") != 1) << 5;
        rc |= (disk_log_count(" warn ") != 2) << 6; /* that, and the bad one */
        _exit(rc);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(access(path, F_OK), 0);
    nftw(f.dir, chmod_all_, 16, FTW_PHYS);
    stop(&f);
}

/* ------------------------------------------------------------------ tools */

struct seen {
    int n, n_bad, n_ours;
    uint64_t bytes;
    uint32_t hits;
    char bad[128], last[128];
};

static bool look(void *ud, const struct disk_object *o)
{
    struct seen *s = ud;
    s->n++;
    s->bytes += o->bytes;
    s->hits += o->hits;
    s->n_bad += o->why != NULL;
    s->n_ours += strcmp(o->numerics, "rows-fp8/1") == 0 && strcmp(o->weights, "w") == 0;
    if (o->why)
        snprintf(s->bad, sizeof s->bad, "%s", o->path);
    snprintf(s->last, sizeof s->last, "%s", o->path);
    return true;
}

static void test_tools(void **state)
{
    enum { N = 6 };
    struct disk_obj o[N], theirs;
    struct fixture f;
    struct seen all = {0}, seen;
    struct disk_prune p = {.budget_bytes = -1, .max_age_s = -1};
    char path[300];
    (void)state;
    start(&f);
    for (int i = 0; i < N; i++) /* two chains of three */
        disk_page(&o[i], i % 3 ? &o[i - 1] : NULL, 10 * i, 30000);
    disk_page(&theirs, NULL, 1, 9000);
    assert_int_equal(disk_put(f.s, o, 3, NULL), 3);
    assert_int_equal(disk_put(f.s, o + 3, 3, NULL), 3);
    assert_int_equal(disk_get(f.s, o, 3, NULL), 3);
    f.s->ops->flush(f.s);
    /* Beside a server: list looks; the others do not run. */
    disk_ok(disk_list(f.dir, look, &all));
    assert_int_equal(all.n, N);
    assert_int_equal(all.n_ours, N);
    assert_int_equal(all.hits, 3);
    assert_int_equal(all.bytes, f.s->stats.bytes);
    assert_int_equal(disk_verify(f.dir, look, &all), FST_EAGAIN);
    assert_int_equal(disk_prune(f.dir, &p, look, &all), FST_EAGAIN);
    assert_int_equal(all.n, N);
    shut(&f);
    f.o.weights = "older";
    disk_ok(disk_open(&f.s, &f.o));
    assert_int_equal(disk_put(f.s, &theirs, 1, NULL), 1);
    shut(&f);
    f.o.weights = "w";
    seen = (struct seen){0};
    disk_ok(disk_verify(f.dir, look, &seen));
    assert_int_equal(seen.n, N + 1);
    assert_int_equal(seen.n_ours, N);
    assert_int_equal(seen.n_bad, 0);
    path_of(path, sizeof path, &f, &o[5]);
    flip(path, 20000); /* in the payload: a list does not read that */
    seen = (struct seen){0};
    disk_ok(disk_list(f.dir, look, &seen));
    assert_int_equal(seen.n_bad, 0);
    disk_ok(disk_verify(f.dir, look, &seen));
    assert_int_equal(seen.n_bad, 1);
    assert_non_null(strstr(path, seen.bad));
    /* Nothing asked for, nothing gone. */
    seen = (struct seen){0};
    disk_ok(disk_prune(f.dir, &p, look, &seen));
    assert_int_equal(seen.n, 0);
    p.bad = p.dry = true;
    disk_ok(disk_prune(f.dir, &p, look, &seen));
    assert_int_equal(seen.n, 1);
    assert_int_equal(access(path, F_OK), 0);
    p.dry = false;
    disk_ok(disk_prune(f.dir, &p, look, &seen));
    assert_int_equal(seen.n, 2);
    assert_int_not_equal(access(path, F_OK), 0);
    p.bad = false;
    p.others = true;
    assert_int_equal(disk_prune(f.dir, &p, look, &seen), FST_EINVAL);
    p.numerics = "rows-fp8/1";
    p.weights = "w";
    seen = (struct seen){0};
    disk_ok(disk_prune(f.dir, &p, look, &seen));
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.bytes, disk_size_of(&theirs));
    p.others = false;
    /* To a budget: what was used longest ago first, ends before beginnings. */
    p.budget_bytes = (int64_t)(3 * disk_size_of(&o[0]));
    seen = (struct seen){0};
    disk_ok(disk_prune(f.dir, &p, look, &seen));
    assert_int_equal(seen.n, 2);
    disk_ok(disk_open(&f.s, &f.o));
    assert_int_equal(disk_get(f.s, o, N, NULL), 3);
    assert_true(disk_has(f.s, &o[0]) && disk_has(f.s, &o[1]) && disk_has(f.s, &o[2]));
    shut(&f);
    p.budget_bytes = 0;
    p.dry = true;
    seen = (struct seen){0};
    disk_ok(disk_prune(f.dir, &p, look, &seen));
    assert_int_equal(seen.n, 3);
    p.budget_bytes = -1;
    p.dry = false;
    p.max_age_s = 3600; /* nothing is that old */
    seen = (struct seen){0};
    disk_ok(disk_prune(f.dir, &p, look, &seen));
    assert_int_equal(seen.n, 0);
    p.max_age_s = 0;
    disk_ok(disk_prune(f.dir, &p, NULL, NULL));
    assert_int_equal(disk_bytes_in(f.dir), 0);
    seen = (struct seen){0};
    disk_ok(disk_list(f.dir, look, &seen));
    assert_int_equal(seen.n, 0);
    snprintf(path, sizeof path, "%s/none", f.dir);
    assert_int_equal(disk_list(path, look, &seen), FST_ENOTFOUND);
    assert_int_equal(disk_verify(path, look, &seen), FST_ENOTFOUND);
    assert_int_not_equal(access(path, F_OK), 0); /* and it was not made */
    stop(&f);
}

/* What the system does not let us read, for once or for long, is missing, stays where it is, and is told once;
 * in a folder whose name has to be quoted. */
static void test_unreadable(void **state)
{
    struct fixture f;
    struct disk_obj o[3];
    char dir[100], index[120], path[400], quoted[160];
    struct stat st;
    (void)state;
    start(&f);
    shut(&f);
    snprintf(dir, sizeof dir, "%s/a b=c", f.dir);
    snprintf(index, sizeof index, "%s/index", dir);
    snprintf(quoted, sizeof quoted, "dir=\"%s\"", dir);
    f.o.dir = dir;
    disk_ok(disk_open(&f.s, &f.o));
    disk_page(&o[0], NULL, 5, 9000);
    disk_page(&o[1], &o[0], 6, 9000);
    disk_page(&o[2], &o[1], 7, 9000);
    assert_int_equal(disk_put(f.s, o, 3, NULL), 3);
    for (int i = 1; i >= 0; i--) {
        disk_io_fail_at(1, EACCES, false);
        assert_int_equal(disk_get(f.s, &o[i], 1, NULL), 0);
        disk_io_fail_at(0, 0, false);
        assert_false(disk_has(f.s, &o[i]));
        assert_int_equal(disk_get(f.s, &o[i], 1, NULL), 0); /* not asked for again */
        disk_file_of(path, sizeof path, dir, &f.o, &o[i]);
        assert_int_equal(stat(path, &st), 0);
    }
    assert_int_equal(disk_get(f.s, &o[2], 1, NULL), 1);
    assert_int_equal(f.s->stats.n_bad, 0);
    assert_int_equal(f.s->stats.n_objects, 3);
    assert_int_equal(disk_log_count("disk unreadable"), 1);
    assert_int_equal(disk_log_count("disk bad"), 0);
    disk_file_of(path, sizeof path, dir, &f.o, &o[2]);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(disk_get(f.s, &o[2], 1, NULL), 0);
    assert_int_equal(disk_put(f.s, &o[2], 1, NULL), 1);
    assert_int_equal(disk_log_count("disk gone"), 1);
    assert_int_equal(disk_log_count(quoted), 3); /* and when it was opened */
    shut(&f);
    /* At any call of a start that has to look at every file: all is there at the next one. */
    bool over = false;
    for (uint64_t n = 1; !over; n++) {
        assert_true(unlink(index) == 0 || errno == ENOENT);
        uint64_t before = disk_io_count();
        disk_io_fail_at(n, EACCES, false);
        enum fst_status rc = disk_open(&f.s, &f.o);
        disk_io_fail_at(0, 0, false);
        over = disk_io_count() - before < n;
        if (rc == FST_OK)
            assert_int_equal(f.s->stats.n_bad, 0);
        shut(&f);
        disk_ok(disk_open(&f.s, &f.o));
        assert_int_equal(disk_get(f.s, o, 3, NULL), 3);
        shut(&f);
    }
    assert_true(disk_log_count("disk unreadable") > 1);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damage),      cmocka_unit_test(test_smuggled),
        cmocka_unit_test(test_folder_gone), cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_read_only),   cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_tools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
