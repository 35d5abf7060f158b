/* test_base_file.c - whole files in and out, mappings, and every operation failing once. */
#include "support/cm.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static char folder[64], path[128];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test-file-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(file_join(path, sizeof path, folder, "x"), FST_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails when a test left something beside path */
}

static void fill(size_t n)
{
    char *data = mem_alloc(n + 1);

    for (size_t i = 0; i < n; i++)
        data[i] = (char)(i * 7 + i / 251);
    assert_int_equal(file_write(path, data, n), FST_OK);
    mem_free(data);
}

static void test_read_and_write(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65535, 65536, 65537, 300000};

    (void)state;
    for (size_t k = 0; k < FST_COUNT(sizes); k++) {
        struct buf b = {0};
        struct file_map m;

        fill(sizes[k]);
        buf_puts(&b, "before ");
        assert_int_equal(file_read(&b, path, 0), FST_OK);
        assert_int_equal(b.len, 7 + sizes[k]);
        assert_memory_equal(b.data, "before ", 7);
        assert_int_equal(b.data[b.len], 0);
        assert_int_equal(file_map_open(&m, path), FST_OK);
        assert_int_equal(m.size, sizes[k]);
        assert_true(sizes[k] == 0 ? m.data == NULL : memcmp(m.data, b.data + 7, m.size) == 0);
        for (size_t i = 0; i < sizes[k]; i++)
            assert_int_equal(m.data[i], (unsigned char)(i * 7 + i / 251));
        file_map_release(&m);
        assert_null(m.data);
        assert_int_equal(file_read(&b, path, sizes[k] ? sizes[k] : 1), FST_OK);
        if (sizes[k] > 1) {
            size_t len = b.len;
            assert_int_equal(file_read(&b, path, sizes[k] - 1), FST_EBUDGET);
            assert_int_equal(b.len, len);
        }
        buf_release(&b);
    }
}

/* Files without a size: /proc, pipes. */
static void test_read_without_size(void **state)
{
    struct buf b = {0};

    (void)state;
    assert_int_equal(file_read(&b, "/proc/self/status", 0), FST_OK);
    assert_non_null(strstr(b.data, "Name:"));
    assert_int_equal(file_read(&b, "/proc/self/status", 10), FST_EBUDGET);
    buf_release(&b);
}

static void test_messages(void **state)
{
    struct buf b = {0};
    struct file_map m;
    char small[8];

    (void)state;
    assert_int_equal(file_read(&b, "/nowhere/at/all", 0), FST_ENOTFOUND);
    assert_string_equal(fst_error_text(),
                        "/nowhere/at/all: cannot open: No such file or directory");
    assert_int_equal(file_map_open(&m, "/nowhere"), FST_ENOTFOUND);
    assert_int_equal(file_read(&b, folder, 0), FST_EIO);
    assert_non_null(strstr(fst_error_text(), "is a folder"));
    assert_int_equal(file_map_open(&m, folder), FST_EIO);
    assert_int_equal(file_write("/nowhere/x", "", 0), FST_ENOTFOUND);
    assert_int_equal(file_join(small, sizeof small, "abc", "defg"), FST_EINVAL);
    assert_int_equal(file_join(small, sizeof small, "abc/", "def"), FST_OK);
    assert_string_equal(small, "abc/def");
    assert_int_equal(file_join(small, sizeof small, "", "def"), FST_OK);
    assert_string_equal(small, "def");
    assert_true(file_is_folder(folder));
    assert_false(file_is_folder("/nowhere"));
    assert_false(file_exists("/nowhere"));
    fill(1);
    assert_true(file_exists(path));
    assert_false(file_is_folder(path));
    buf_release(&b);
}

/* Whatever fails while a file is replaced, the old one is whole and nothing is left beside it. */
static void test_write_faults(void **state)
{
    uint64_t before, needed;
    struct buf b = {0};

    (void)state;
    assert_int_equal(file_write(path, "old", 3), FST_OK);
    before = file_count();
    assert_int_equal(file_write(path, "old", 3), FST_OK);
    needed = file_count() - before;
    assert_int_equal(needed, 4); /* open, write, flush, rename */
    for (uint64_t n = 1; n <= needed; n++) {
        file_fail_at(n);
        assert_int_equal(file_write(path, "newer", 5), FST_EIO);
        file_fail_at(0);
        buf_reset(&b);
        assert_int_equal(file_read(&b, path, 0), FST_OK);
        assert_string_equal(b.data, "old");
        unlink(path);
        assert_int_equal(rmdir(folder), 0); /* empty: nothing beside it */
        assert_int_equal(mkdir(folder, 0700), 0);
        assert_int_equal(file_write(path, "old", 3), FST_OK);
    }
    buf_release(&b);
}

static void test_read_faults(void **state)
{
    struct buf b = {0};
    struct file_map m;

    (void)state;
    fill(1000);
    for (uint64_t n = 1; n <= 4; n++) { /* open, size, read, read to the end */
        file_fail_at(n);
        assert_int_equal(file_read(&b, path, 0), FST_EIO);
        assert_int_equal(b.len, 0);
        assert_non_null(strstr(fst_error_text(), path));
    }
    file_fail_at(5);
    assert_int_equal(file_read(&b, path, 0), FST_OK);
    file_fail_at(0);
    for (uint64_t n = 1; n <= 3; n++) { /* open, size, mmap */
        file_fail_at(n);
        assert_int_equal(file_map_open(&m, path), FST_EIO);
        assert_null(m.data);
    }
    file_fail_at(0);
    buf_release(&b);
    mem_fail_at(1);
    assert_int_equal(file_read(&b, path, 0), FST_ENOMEM);
    mem_fail_at(0);
    buf_release(&b);
}

static void test_log(void **state)
{
    struct file_log l, second;
    struct buf b = {0};
    char moved[200];
    struct stat st;

    (void)state;
    snprintf(moved, sizeof moved, "%s/y", folder);
    assert_int_equal(file_log_open(&l, path), FST_OK);
    assert_int_equal(l.size, 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(file_log_open(&second, path), FST_EAGAIN);
    assert_false(second.is_open);
    assert_int_equal(file_log_append(&l, path, "one", 3), FST_OK);
    file_fail_at(1);
    assert_int_equal(file_log_append(&l, path, "two", 3), FST_EIO);
    file_fail_at(0);
    assert_int_equal(l.size, 3);
    assert_int_equal(file_log_append(&l, path, "three", 5), FST_OK);
    file_log_release(&l);
    assert_int_equal(file_log_open(&l, path), FST_OK);
    assert_int_equal(l.size, 8);
    assert_int_equal(file_log_cut(&l, path, 3), FST_OK);
    assert_int_equal(file_log_append(&l, path, "!", 1), FST_OK);
    assert_int_equal(file_log_rename(&l, path, moved), FST_OK);
    assert_int_equal(file_log_append(&l, moved, "?", 1), FST_OK); /* the same file */
    file_log_release(&l);
    assert_int_equal(file_read(&b, moved, 0), FST_OK);
    assert_string_equal(buf_str(&b), "one!?");
    assert_false(file_exists(path));
    buf_release(&b);
    for (uint64_t n = 1; n <= 3; n++) { /* open, lock, size */
        file_fail_at(n);
        assert_int_equal(file_log_open(&l, moved), FST_EIO);
        file_fail_at(0);
    }
    assert_int_equal(file_make_folder(folder), FST_OK);
    assert_int_equal(file_make_folder(moved), FST_EIO); /* a file */
    file_remove(moved);
    assert_int_equal(file_make_folder(moved), FST_OK);
    assert_true(file_is_folder(moved));
    assert_int_equal(rmdir(moved), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read_and_write, setup, teardown),
        cmocka_unit_test(test_read_without_size),
        cmocka_unit_test_setup_teardown(test_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_faults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_faults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
