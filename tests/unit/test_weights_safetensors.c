/* test_weights_safetensors.c - headers that are right, headers that lie, files cut short. */
#include "support/tmpdir.h"

#include <time.h>

#include "weights/safetensors.h"

static enum fst_status scan(struct st_header *h, const char *json, int64_t data_bytes)
{
    return st_header_init(h, json, strlen(json), data_bytes, "x.safetensors");
}

static void test_reads(void **state)
{
    struct st_header h;
    (void)state;
    assert_int_equal(scan(&h,
                          " { \"__metadata__\" : {\"format\":\"pt\", \"a\\u00e9\":\"\"},\n"
                          "\"b\":{\"shape\":[2,3],\"dtype\":\"BF16\",\"data_offsets\":[8,20]},"
                          "\"\\u0061/\\\"\\ud83d\\ude00\":{\"dtype\":\"I64\",\"shape\":[],"
                          "\"data_offsets\":[0,8]},\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],"
                          "\"data_offsets\":[8,8]}}   ",
                          20),
                     FST_OK);
    assert_int_equal(h.n_tensors, 3);
    assert_string_equal(h.tensors[0].name, "b");
    assert_int_equal(h.tensors[0].dtype, ST_BF16);
    assert_int_equal(h.tensors[0].n_dims, 2);
    assert_int_equal(h.tensors[0].shape[1], 3);
    assert_int_equal(h.tensors[0].begin, 8);
    assert_int_equal(h.tensors[0].end, 20);
    assert_string_equal(h.tensors[1].name, "a/\"\xf0\x9f\x98\x80");
    assert_int_equal(h.tensors[1].n_dims, 0);
    st_header_release(&h);
    assert_int_equal(scan(&h, "{}", 0), FST_OK);
    assert_int_equal(h.n_tensors, 0);
    st_header_release(&h);
}

static void test_every_dtype(void **state)
{
    char json[200];
    struct st_header h;
    (void)state;
    for (int t = 0; t < ST_DTYPES; t++) {
        int bytes = st_dtype_bytes(t) * 6;
        snprintf(json, sizeof json,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[3,2],\"data_offsets\":[0,%d]}}",
                 st_dtype_name(t), bytes);
        assert_int_equal(scan(&h, json, bytes), FST_OK);
        st_header_release(&h);
        assert_int_equal(scan(&h, json, bytes + 1), FST_EFORMAT);
    }
}

static void test_refuses(void **state)
{
#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"
#define ONE "{" T("a", "U8", "4", "0,4") "}"
    static const struct {
        const char *json;
        int64_t data;
        const char *what; /* in the message */
    } cases[] = {
        {"", 0, "expected '{'"},
        {"[]", 0, "expected '{'"},
        {"{", 0, "expected '\"'"},
        {"{\"a", 0, "unterminated"},
        {"{\"a\"", 0, "expected ':'"},
        {ONE "x", 4, "behind"},
        {"{" T("a", "U8", "4", "0,4") ",}", 4, "expected '\"'"},
        {ONE, 5, "5 bytes of data"},
        {ONE, 3, "truncated"},
        {"{" T("a", "U8", "4", "0,5") "}", 5, "tensor \"a\": 5 bytes"},
        {"{" T("a", "F32", "4", "0,4") "}", 4, "need 16"},
        {"{" T("a", "U8", "4", "1,5") "}", 5, "belong to no tensor"},
        {"{" T("a", "U8", "4", "5,1") "}", 5, "backwards"},
        {"{" T("a", "U8", "4", "0,4") "," T("b", "U8", "4", "2,6") "}", 6, "\"b\" overlaps"},
        {"{" T("a", "U8", "4", "0,4") "," T("b", "U8", "2", "6,8") "}", 8,
         "\"b\" begins at byte 6"},
        {"{" T("a", "U8", "4", "0,4") "," T("a", "U8", "2", "4,6") "}", 6, "\"a\" twice"},
        {"{" T("a", "U8", "4", "0,4") "," T("\\u0061", "U8", "2", "4,6") "}", 6, "\"a\" twice"},
        {"{" T("a", "F7", "4", "0,4") "}", 4, "unknown dtype \"F7\""},
        {"{" T("a", "U8", "-4", "0,4") "}", 4, "non-negative integer"},
        {"{" T("a", "U8", "4.0", "0,4") "}", 4, "non-negative integer"},
        {"{" T("a", "U8", "4e0", "0,4") "}", 4, "non-negative integer"},
        {"{" T("a", "U8", "04", "0,4") "}", 4, "non-negative integer"},
        {"{" T("a", "U8", "4", "0,99999999999999999999") "}", 4, "too large"},
        {"{" T("a", "U8", "4", "0,9223372036854775808") "}", 4, "too large"},
        {"{" T("a", "F64", "4611686018427387904,4", "0,4") "}", 4, "beyond 2^63"},
        {"{" T("a", "U8", "1,1,1,1,4", "0,4") "}", 4, "too many entries"},
        {"{" T("a", "U8", "4", "0") "}", 4, "two entries"},
        {"{" T("a", "U8", "4", "0,4,4") "}", 4, "too many entries"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, "missing"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 4, "a key twice"},
        {"{\"a\":{\"dtyp\":\"U8\"}}", 4, "a key other than"},
        {"{\"a\":{}}", 4, "expected '\"'"},
        {"{\"a\":7}", 4, "expected '{'"},
        {"{\"a\\u0000\":{}}", 4, "bad escape"},
        {"{\"a\\ud800\":{}}", 4, "bad escape"},
        {"{\"a\\ud800\\u0041\":{}}", 4, "bad escape"},
        {"{\"a\\udc00\":{}}", 4, "bad escape"},
        {"{\"a\\x41\":{}}", 4, "bad escape"},
        {"{\"a\\u00g0\":{}}", 4, "bad escape"},
        {"{\"a\\", 4, "bad escape"},
        {"{\"a\\u00", 4, "bad escape"},
        {"{\"a\n\":{}}", 4, "control character"},
        {"{\"\xff\":{}}", 4, "not UTF-8"},
        {"{\"\xc0\xaf\":{}}", 4, "not UTF-8"},
        {"{\"\xed\xa0\x80\":{}}", 4, "not UTF-8"},
        {"{\"\xf4\x90\x80\x80\":{}}", 4, "not UTF-8"},
        {"{\"\xe2\x82\":{}}", 4, "not UTF-8"},
        {"{\"__metadata__\":[]}", 0, "expected '{'"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "expected '\"'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct st_header h;
        enum fst_status rc = scan(&h, cases[i].json, cases[i].data);
        if (rc != FST_EFORMAT || !strstr(fst_error_text(), cases[i].what) ||
            !strstr(fst_error_text(), "x.safetensors"))
            fail_msg("%s: %s: %s", cases[i].json, fst_status_name(rc),
                     rc ? fst_error_text() : "accepted");
        assert_null(h.tensors);
    }
}

/* Whole files: lengths that lie. */
static void test_files(void **state)
{
    char dir[64], path[128], file[256];
    struct safetensors s;
    (void)state;
    tmpdir_make(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/a", dir);
    size_t n = strlen(ONE), all = 8 + n + 4;
    uint64_t len = n;
    memcpy(file, &len, 8);
    memcpy(file + 8, ONE, n);
    memcpy(file + 8 + n, "data", 4);
    tmpdir_write(dir, "a", file, all);
    assert_int_equal(safetensors_init(&s, path), FST_OK);
    assert_memory_equal(s.data + s.header.tensors[0].begin, "data", 4);
    safetensors_release(&s);
    for (size_t cut = 0; cut < all; cut++) {
        tmpdir_write(dir, "a", file, cut);
        assert_int_equal(safetensors_init(&s, path), FST_EFORMAT);
        assert_non_null(strstr(fst_error_text(), path));
    }
    static const uint64_t lengths[] = {0, 1, UINT64_MAX, INT64_MAX, ST_HEADER_MAX + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(file, &lengths[i], 8);
        tmpdir_write(dir, "a", file, all);
        assert_int_equal(safetensors_init(&s, path), FST_EFORMAT);
    }
    unlink(path);
    assert_int_equal(safetensors_init(&s, path), FST_ENOTFOUND);
    assert_int_equal(safetensors_init(&s, dir), FST_EFORMAT); /* a folder */
    tmpdir_remove(dir);
}

/* A header as large as those of single-file conversions: 96,085 tensors in 12 MB. */
static void test_large_header(void **state)
{
    enum { N = 96085 };
    struct buf b = {0};
    struct st_header h;
    struct timespec t0, t1;
    (void)state;
    buf_putc(&b, '{');
    for (int i = 0; i < N; i++)
        buf_printf(&b,
                   "%s\"layers.%d.ffn.experts.%d.w%d.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":"
                   "[2048,  4096],  \"data_offsets\":[%lld,%lld]}",
                   i ? "," : "", i / 1536, i / 3, i % 3, i * 8388608LL, (i + 1) * 8388608LL);
    buf_putc(&b, '}');
    assert_false(b.failed);
    clock_gettime(CLOCK_MONOTONIC, &t0);
    assert_int_equal(st_header_init(&h, b.data, b.len, N * 8388608LL, "x"), FST_OK);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    double s = (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
    printf("%zu bytes of header, %d tensors: %.3f s\n", b.len, N, s);
    assert_int_equal(h.n_tensors, N);
    assert_true(s < test_size(1, 1, 30)); /* measured 0.06 s */
    st_header_release(&h);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_refuses),      cmocka_unit_test(test_files),
        cmocka_unit_test(test_large_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
