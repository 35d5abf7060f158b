/* Every allocation of loading and of encoding fails once: a status, no leak, no half result. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/file.h"
#include "support/vectors.h"

static void load(void **state)
{
    struct buf file = {0};
    uint64_t n = 0, used;

    (void)state;
    assert_true(read_whole(TINY_TOKENIZER, &file));
    do {
        struct tokenizer *t = NULL;
        uint64_t before = mem_count();
        enum fst_status rc;

        mem_fail_at(++n);
        rc = tokenizer_parse(&t, file.data, file.len, "t");
        mem_fail_at(0);
        used = mem_count() - before;
        assert_int_equal(rc, used < n ? FST_OK : FST_ENOMEM);
        assert_int_equal(t == NULL, rc < 0);
        tokenizer_free(t);
    } while (used >= n);
    assert_true(n > 100);
    buf_release(&file);
}

static void load_from_a_file(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 40; n++) {
        struct tokenizer *t = NULL;
        enum fst_status rc;

        mem_fail_at(n);
        rc = tokenizer_load(&t, TINY_TOKENIZER);
        mem_fail_at(0);
        assert_int_equal(rc, FST_ENOMEM);
        assert_null(t);
    }
}

static void file_operations(void **state)
{
    uint64_t n = 0, used;

    (void)state;
    do {
        struct tokenizer *t = NULL;
        uint64_t before = file_count();
        enum fst_status rc;

        file_fail_at(++n);
        rc = tokenizer_load(&t, TINY_TOKENIZER);
        file_fail_at(0);
        used = file_count() - before;
        assert_int_equal(rc, used < n ? FST_OK : FST_EIO);
        assert_int_equal(t == NULL, rc < 0);
        tokenizer_free(t);
    } while (used >= n);
    assert_true(n > 1);
}

static void encode_and_decode(void **state)
{
    static const char text[] = "the <think> and a long piece "
                               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa "
                               "1234567890 1234567890 1234567890 1234567890 1234567890 1234567890";
    struct tokenizer *t;
    uint64_t n = 0, used;

    (void)state;
    assert_int_equal(tokenizer_load(&t, TINY_TOKENIZER), FST_OK);
    do {
        struct tokenizer_ids ids = {0};
        struct buf out = {0};
        uint64_t before = mem_count();
        enum fst_status rc;

        mem_fail_at(++n);
        rc = tokenizer_encode_text(t, text, sizeof text - 1, true, &ids);
        if (rc == FST_OK)
            rc = tokenizer_decode(t, ids.id, ids.n, false, &out);
        mem_fail_at(0);
        used = mem_count() - before;
        assert_int_equal(rc, used < n ? FST_OK : FST_ENOMEM);
        if (rc == FST_OK)
            assert_string_equal(buf_str(&out), text);
        tokenizer_ids_release(&ids);
        buf_release(&out);
    } while (used >= n);
    assert_true(n > 4);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(load), cmocka_unit_test(load_from_a_file),
                                       cmocka_unit_test(file_operations),
                                       cmocka_unit_test(encode_and_decode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
