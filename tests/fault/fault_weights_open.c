/* fault_weights_open.c - a checkpoint cut short, bent in any byte, on a machine that fails: always a
 * clear refusal, nothing kept. */
#include <fcntl.h>

#include "support/tiny_checkpoint.h"
#include "weights/io.h"
#include "weights/weights.h"

static char dir[64];

static int setup(void **state)
{
    struct hashweights_spec s = tiny_spec(INVENTORY_MTP, HASHWEIGHTS_FP4);
    (void)state;
    s.n_shards = 3;
    tmpdir_make(dir, sizeof dir);
    if (hashweights_write(dir, &s) < 0)
        fail_msg("%s", fst_error_text());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tmpdir_remove(dir);
    return 0;
}

/* Is a file of the folder still mapped? */
static bool mapped(void)
{
    char line[4096];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        found = found || strstr(line, dir);
    if (f)
        fclose(f);
    return found;
}

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Opens and inspects; a refusal must be one line of its own. */
static enum fst_status try_open(void)
{
    struct weights *w;
    struct weights_report *r;
    fst_error(FST_OK, "nothing said");
    enum fst_status rc = weights_open(&w, dir, NULL);
    if (rc < 0) {
        assert_null(w);
        assert_string_not_equal(fst_error_text(), "nothing said");
        assert_null(strchr(fst_error_text(), '\n'));
        assert_true(strlen(fst_error_text()) > 10);
        assert_false(mapped());
    }
    weights_free(w);
    enum fst_status inspected = weights_inspect(&r, dir);
    assert_true((inspected < 0) == !r);
    weights_report_free(r);
    assert_true(rc == FST_OK || inspected == FST_OK || inspected < 0);
    return rc;
}

static int open_shard(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

static const char *const shards[] = {"model-00001-of-00003.safetensors",
                                     "model-00002-of-00003.safetensors",
                                     "model-00003-of-00003.safetensors"};

static void cut_and_try(const char *name, size_t len)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(truncate(path, (off_t)len), 0);
    if (try_open() != FST_EFORMAT || !strstr(fst_error_text(), name))
        fail_msg("%s cut at %zu: %s", name, len, fst_error_text());
}

static void test_truncated(void **state)
{
    struct test_rng rng = {1};
    (void)state;
    for (int s = 0; s < 3; s++) {
        size_t len;
        char *data = tmpdir_read(dir, shards[s], &len);
        uint64_t head;
        memcpy(&head, data, 8);
        size_t n = 8 + (size_t)head;
        for (size_t cut = len - 1; cut > len - 5; cut--)
            cut_and_try(shards[s], cut);
        for (int k = test_size(60, 2000, 10); k > 0; k--) {
            /* longest first, so that the file need not be written again each time */
            cut_and_try(shards[s], n + (len - n) * (size_t)k / 2001);
        }
        for (int k = test_size(60, 2000, 10); k > 0; k--) {
            tmpdir_write(dir, shards[s], data, n);
            cut_and_try(shards[s], (size_t)test_below(&rng, (int)n));
        }
        for (size_t cut = 9; cut-- > 0;)
            cut_and_try(shards[s], cut);
        tmpdir_write(dir, shards[s], data, len);
        tmpdir_write(dir, "longer", data, len); /* one byte too many */
        int fd = open_shard(shards[s]);
        assert_int_equal(pwrite(fd, "x", 1, (off_t)len), 1);
        close(fd);
        assert_int_equal(try_open(), FST_EFORMAT);
        tmpdir_write(dir, shards[s], data, len);
        free(data);
    }
    assert_int_equal(try_open(), FST_OK);
}

/* Every header byte, all of it when long, a seeded sample otherwise. */
static void test_bent_header(void **state)
{
    struct test_rng rng = {2};
    int n_ok = 0, n_refused = 0, rounds = test_size(1500, 0, 150);
    (void)state;
    for (int s = 0; s < 3; s++) {
        uint64_t head;
        size_t len;
        char *data = tmpdir_read(dir, shards[s], &len);
        memcpy(&head, data, 8);
        int n = 8 + (int)head, fd = open_shard(shards[s]);
        for (int i = 0; i < (rounds ? rounds / 3 : n * 8); i++) {
            int at = rounds ? test_below(&rng, n) : i / 8;
            int bit = rounds ? test_below(&rng, 8) : i % 8;
            char bent = (char)(data[at] ^ (1 << bit));
            assert_int_equal(pwrite(fd, &bent, 1, at), 1);
            if (try_open() == FST_OK) {
                /* Only in the metadata text and between tokens may a change pass. */
                assert_true(at >= 8 && at < 8 + 40);
                n_ok++;
            } else {
                n_refused++;
            }
            assert_int_equal(pwrite(fd, &data[at], 1, at), 1);
        }
        close(fd);
        free(data);
    }
    printf("%d bent headers refused, %d harmless\n", n_refused, n_ok);
    assert_true(n_refused > 10 * n_ok);
    assert_int_equal(try_open(), FST_OK);
}

static void test_bent_texts(void **state)
{
    static const char *const files[] = {"config.json", "model.safetensors.index.json"};
    struct test_rng rng = {3};
    (void)state;
    for (int f = 0; f < 2; f++) {
        size_t len;
        char *data = tmpdir_read(dir, files[f], &len);
        for (int i = 0; i < test_size(400, 20000, 50); i++) {
            size_t at = (size_t)test_below(&rng, (int)len), cut = len;
            char was = data[at];
            data[at] = (char)(was ^ (1 << test_below(&rng, 8)));
            if (i % 7 == 0)
                cut = at;
            tmpdir_write(dir, files[f], data, cut);
            try_open();
            data[at] = was;
        }
        tmpdir_write(dir, files[f], data, len);
        free(data);
    }
    assert_int_equal(try_open(), FST_OK);
}

/* The n-th allocation fails, for every n. */
static void test_no_memory(void **state)
{
    struct weights *w;
    struct weights_report *r;
    (void)state;
    int fds = open_files();
    for (int inspecting = 0; inspecting < 2; inspecting++) {
        uint64_t before = mem_count();
        try_open();
        uint64_t total = mem_count() - before; /* of both calls: more than enough */
        int n_failed = 0, n_done = 0;
        for (uint64_t n = 1; n <= total; n++) {
            mem_fail_at(n);
            enum fst_status rc =
                inspecting ? weights_inspect(&r, dir) : weights_open(&w, dir, NULL);
            mem_fail_at(0);
            if (rc == FST_OK && inspecting)
                weights_report_free(r);
            else if (rc == FST_OK)
                weights_free(w);
            n_done += rc == FST_OK;
            n_failed += rc == FST_ENOMEM;
            if (rc != FST_OK && rc != FST_ENOMEM)
                fail_msg("allocation %d: %s: %s", (int)n, fst_status_name(rc), fst_error_text());
            assert_false(mapped());
            assert_int_equal(open_files(), fds);
        }
        printf("%s: %d allocations failed one by one\n", inspecting ? "inspect" : "open", n_failed);
        assert_true(n_failed > 20);
        assert_true(n_done > 0);
    }
}

static void test_failing_calls(void **state)
{
    struct weights *w;
    enum fst_status rc = FST_EIO;
    uint64_t n = 0;
    (void)state;
    int fds = open_files();
    while (rc != FST_OK) {
        weights_io_fail_at(++n);
        rc = weights_open(&w, dir, NULL);
        if (rc == FST_OK)
            break;
        assert_int_equal(rc, FST_EIO);
        assert_non_null(strstr(fst_error_text(), dir));
        assert_false(mapped());
        assert_int_equal(open_files(), fds);
        assert_true(n < 1000);
    }
    weights_io_fail_at(0);
    /* config and index: open, stat, read each; three shards: open, stat, map each. */
    assert_int_equal(n - 1, 2 * 3 + 3 * 3);
    weights_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated),     cmocka_unit_test(test_bent_header),
        cmocka_unit_test(test_bent_texts),    cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_failing_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
