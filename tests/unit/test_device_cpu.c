/* Device memory: alignment, zeros, failure. */
#include "device/device.h"
#include "support/cm.h"

static void test_memory(void **state)
{
    static const size_t size[] = {0, 1, 63, 64, 4097, (2 << 20) - 1, 2 << 20, (5 << 20) + 3};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(size); i++) {
        uint8_t *p = device_alloc(NULL, size[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (size[i] >= 2 << 20 ? 2 << 20 : 64), 0);
        for (size_t j = 0; j < size[i]; j++)
            if (p[j])
                fail_msg("byte %zu of %zu is %d", j, size[i], p[j]);
        memset(p, 0xa5, size[i]);
        device_free(NULL, p, size[i]);
    }
    assert_null(device_alloc(NULL, SIZE_MAX));
    assert_null(device_alloc(NULL, SIZE_MAX / 2));
    device_free(NULL, NULL, 0);
}

static void test_stream(void **state)
{
    struct stream s;
    (void)state;
    mem_fail_at(1);
    assert_int_equal(stream_init(&s, NULL, NULL, PRECISION_NATIVE, 1000), FST_ENOMEM);
    mem_fail_at(0);
    assert_null(s.scratch);
    assert_int_equal(s.scratch_bytes, 0);
    stream_release(&s);
    assert_int_equal(stream_init(&s, NULL, NULL, PRECISION_REFERENCE, 1000), FST_OK);
    assert_int_equal(s.precision, PRECISION_REFERENCE);
    assert_int_equal((uintptr_t)s.scratch % 64, 0);
    stream_release(&s);
    assert_int_equal(stream_init(&s, NULL, NULL, PRECISION_NATIVE, 0), FST_OK);
    stream_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_stream)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
