/* test_base_base.c - counted memory, buffers, statuses, small maths. */
#include "support/cm.h"

#include "base/base.h"

static void test_memory(void **state)
{
    uint64_t before = mem_count();
    char *p, *q;

    (void)state;
    p = mem_alloc(0);
    q = mem_calloc(0, 8);
    assert_non_null(p);
    assert_non_null(q);
    assert_ptr_not_equal(p, q);
    mem_free(p);
    mem_free(q);
    assert_null(mem_calloc(SIZE_MAX / 2, 3));
    p = mem_aligned(4096, 1);
    assert_int_equal((uintptr_t)p % 4096, 0);
    mem_free(p);
    p = mem_strdup("text");
    assert_string_equal(p, "text");
    p = mem_realloc(p, 100);
    assert_string_equal(p, "text");
    mem_free(p);
    mem_free(NULL);
    assert_int_equal(mem_count() - before, 6);
}

static void test_fail_at(void **state)
{
    void *p;

    (void)state;
    mem_fail_at(2);
    p = mem_alloc(1);
    assert_non_null(p);
    mem_free(p);
    assert_null(mem_strdup("x"));
    p = mem_alloc(1); /* once only */
    assert_non_null(p);
    mem_free(p);
    mem_fail_at(1);
    mem_fail_at(0);
    p = mem_aligned(64, 1);
    assert_non_null(p);
    mem_free(p);
    for (int kind = 0; kind < 4; kind++) {
        mem_fail_at(1);
        p = kind == 0   ? mem_alloc(1)
            : kind == 1 ? mem_calloc(1, 1)
            : kind == 2 ? mem_realloc(NULL, 1)
                        : mem_aligned(64, 1);
        assert_null(p);
    }
    mem_fail_at(0);
}

static void test_buf(void **state)
{
    struct buf b = {0};
    char *p;

    (void)state;
    assert_string_equal(buf_str(&b), "");
    buf_puts(&b, "ab");
    buf_putc(&b, 'c');
    buf_append(&b, "d\0e", 3);
    assert_int_equal(b.len, 6);
    assert_memory_equal(b.data, "abcd\0e\0", 7);
    buf_reset(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 300; i++)
        buf_printf(&b, "%03d ", i);
    assert_int_equal(b.len, 1200);
    assert_memory_equal(b.data + 4 * 123, "123 ", 4);
    p = buf_detach(&b);
    assert_int_equal(strlen(p), 1200);
    mem_free(p);
    assert_int_equal(b.len, 0);
    assert_null(b.data);
    p = buf_detach(&b); /* nothing was appended: an empty text, owned */
    assert_string_equal(p, "");
    mem_free(p);
    buf_release(&b);
}

static void test_buf_limit(void **state)
{
    struct buf b = {.limit = 10};

    (void)state;
    buf_puts(&b, "0123456789");
    assert_false(b.failed);
    assert_int_equal(b.len, 10);
    buf_putc(&b, 'x');
    assert_true(b.failed);
    assert_string_equal(b.data, "0123456789");
    buf_reset(&b);
    buf_printf(&b, "%s", "0123456789x");
    assert_true(b.failed);
    assert_int_equal(b.len, 0);
    buf_puts(&b, "a"); /* fails for good */
    assert_int_equal(b.len, 0);
    assert_null(buf_detach(&b));
    assert_int_equal(b.limit, 10);
    assert_false(buf_reserve(&b, SIZE_MAX));
    buf_release(&b);
}

static void test_buf_without_memory(void **state)
{
    struct buf b = {0};

    (void)state;
    buf_puts(&b, "kept");
    mem_fail_at(1);
    for (int i = 0; i < 100; i++)
        buf_puts(&b, "0123456789");
    mem_fail_at(0);
    assert_true(b.failed);
    assert_memory_equal(b.data, "kept0123456789", 14);
    assert_int_equal(b.data[b.len], 0);
    buf_release(&b);
    assert_false(b.failed);
}

static void test_status(void **state)
{
    (void)state;
    assert_string_equal(fst_status_name(FST_EFORMAT), "EFORMAT");
    assert_string_equal(fst_status_text(FST_OK), "ok");
    assert_string_equal(fst_status_name((enum fst_status) - 99), "E?");
    assert_int_equal(fst_error(FST_EIO, "%s: tensor %d", "file", 7), FST_EIO);
    assert_string_equal(fst_error_text(), "file: tensor 7");
    for (int i = 0; i < 3; i++)
        fst_error(FST_EIO, "%2000s", "x");
    assert_int_equal(strlen(fst_error_text()), 1023);
    assert_int_equal(fst_exit_status(FST_OK), 0);
    assert_int_equal(fst_exit_status(FST_EFORMAT), 1);
    assert_int_equal(fst_exit_status(FST_EINVAL), 2);
    assert_int_equal(fst_exit_status(FST_EMACHINE), 3);
    assert_int_equal(fst_exit_status(FST_ENOMEM), 3);
}

static void test_maths(void **state)
{
    (void)state;
    assert_int_equal(div_up(0, 4), 0);
    assert_int_equal(div_up(1, 4), 1);
    assert_int_equal(div_up(8, 4), 2);
    assert_int_equal(round_up(9, 4), 12);
    assert_int_equal(round_up(INT64_C(1) << 40, 256), INT64_C(1) << 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_fail_at),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_buf_limit),
        cmocka_unit_test(test_buf_without_memory),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_maths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
