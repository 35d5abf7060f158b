/* Finding a device's module: what is missing is said, with the path. */
#include <unistd.h>

#include "device/device.h"
#include "support/cm.h"

static void test_cpu(void **state)
{
    const struct device *d = (void *)&state;
    (void)state;
    assert_int_equal(device_open(&d, "cpu"), FST_OK);
    assert_null(d);
}

static void test_missing(void **state)
{
    const struct device *d;
    (void)state;
    assert_int_equal(setenv("FIRESTEEL_MODULES", "/nowhere/at/all", 1), 0);
    assert_int_equal(device_open(&d, "cuda"), FST_EMACHINE);
    assert_null(d);
    assert_non_null(strstr(fst_error_text(), "/nowhere/at/all/libfiresteel_cuda.so"));
    assert_int_equal(unsetenv("FIRESTEEL_MODULES"), 0);
}

/* A file that is no library, and one that is no module of ours. */
static void test_foreign(void **state)
{
    const struct device *d;
    char dir[64] = "/tmp/fst-module-XXXXXX", path[128];
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/libfiresteel_hip.so", dir);
    assert_int_equal(setenv("FIRESTEEL_MODULES", dir, 1), 0);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("no library", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(device_open(&d, "hip"), FST_EMACHINE);
    assert_non_null(strstr(fst_error_text(), path));
    assert_int_equal(unlink(path), 0);
    static const char *const any[] = {"/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/libm.so.6",
                                      "/lib64/libm.so.6"};
    for (size_t i = 0; i < FST_COUNT(any); i++)
        if (access(any[i], R_OK) == 0) {
            assert_int_equal(symlink(any[i], path), 0);
            assert_int_equal(device_open(&d, "hip"), FST_EMACHINE);
            assert_non_null(strstr(fst_error_text(), "another build"));
            assert_int_equal(unlink(path), 0);
            break;
        }
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(unsetenv("FIRESTEEL_MODULES"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu), cmocka_unit_test(test_missing),
                                       cmocka_unit_test(test_foreign)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
