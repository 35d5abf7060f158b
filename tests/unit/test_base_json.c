/* test_base_json.c - JSON in: values, spelling, faults by byte; JSON out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include <math.h>

#include "base/json.h"

static struct json_doc *parse_n(const char *text, size_t len)
{
    struct json_doc *d;
    if (json_parse(&d, text, len) < 0)
        fail_msg("%.100s: %s", text, fst_error_text());
    return d;
}

static struct json_doc *parse(const char *text)
{
    return parse_n(text, strlen(text));
}

static void test_values(void **state)
{
    (void)state;
    struct json_doc *d = parse("\xef\xbb\xbf {\"a\": [1, -2, 1.0, 1.5, 1e2], \"b\": {\"c\": null, "
                               "\"d\": true, \"e\": false}, \"s\": \"x\\u0000\\ud83d\\ude00\"} ");
    json_val *r = json_root(d);
    json_val *a = json_get(r, "a"), *b = json_get(r, "b");
    const char *s;
    size_t n;
    int64_t i;
    double x;

    assert_int_equal(json_type_of(r), JSON_OBJECT);
    assert_int_equal(json_count(r), 3);
    assert_int_equal(json_count(a), 5);
    assert_true(json_int(json_at(a, 0), &i) && i == 1);
    assert_true(json_int(json_at(a, 1), &i) && i == -2);
    assert_true(json_int(json_at(a, 2), &i) && i == 1);
    assert_false(json_int(json_at(a, 3), &i));
    assert_false(json_int(json_at(a, 4), &i));
    assert_true(json_real(json_at(a, 4), &x) && x == 100);
    assert_null(json_at(a, 5));
    assert_null(json_get(a, "a"));
    assert_null(json_get(r, "nothing"));
    assert_true(json_is_null(json_get(b, "c")));
    assert_true(json_is_null(json_get(b, "nothing")));
    assert_true(json_bool(json_get(b, "d"), false));
    assert_false(json_bool(json_get(b, "e"), true));
    assert_true(json_bool(json_get(b, "c"), true));
    s = json_string(json_get(r, "s"), &n);
    assert_int_equal(n, 6);
    assert_memory_equal(s, "x\0\xf0\x9f\x98\x80", 6);
    assert_null(json_string(a, &n));
    assert_string_equal(json_type_name(json_type_of(json_get(b, "e"))), "boolean");
    json_free(d);
    json_free(NULL);
}

static void test_number_spelling(void **state)
{
    static const char *const spelled[] = {"0",
                                          "-0",
                                          "1.10",
                                          "1e999",
                                          "-1E+05",
                                          "18446744073709551616",
                                          "9223372036854775807",
                                          "123456789012345678901234567890.000",
                                          "1e-400",
                                          "0.1e1"};
    struct buf text = {0}, out = {0};
    struct json_doc *d;
    int64_t i;
    double x;
    size_t n;

    (void)state;
    for (size_t k = 0; k < FST_COUNT(spelled); k++)
        buf_printf(&text, "%c%s", k ? ',' : '[', spelled[k]);
    buf_putc(&text, ']');
    d = parse(buf_str(&text));
    for (size_t k = 0; k < FST_COUNT(spelled); k++) {
        assert_string_equal(json_number_text(json_at(json_root(d), k), &n), spelled[k]);
        assert_int_equal(n, strlen(spelled[k]));
    }
    assert_false(json_int(json_at(json_root(d), 5), &i));
    assert_true(json_int(json_at(json_root(d), 6), &i) && i == INT64_MAX);
    assert_true(json_real(json_at(json_root(d), 3), &x) && isinf(x));
    json_put(&out, json_root(d), JSON_COMPACT);
    assert_string_equal(buf_str(&out), buf_str(&text));
    json_free(d);
    d = parse("[-9223372036854775808, -9223372036854775809]");
    assert_true(json_int(json_at(json_root(d), 0), &i) && i == INT64_MIN);
    assert_false(json_int(json_at(json_root(d), 1), &i));
    json_free(d);
    d = parse("7");
    assert_true(json_int(json_root(d), &i) && i == 7);
    json_free(d);
    buf_release(&text);
    buf_release(&out);
}

/* The last of equal keys wins, at the first one's place; in small and in hashed objects. */
static void test_duplicate_keys(void **state)
{
    struct buf text = {0};
    const char *key;
    int64_t i;
    size_t n;

    (void)state;
    for (int filler = 0; filler <= 300; filler += 100) {
        struct json_doc *d;
        buf_reset(&text);
        buf_puts(&text, "{\"a\":1,\"b\":2");
        for (int k = 0; k < filler; k++)
            buf_printf(&text, ",\"k%d\":%d", k, k);
        buf_puts(&text, ",\"a\":3}");
        d = parse(buf_str(&text));
        assert_int_equal(json_count(json_root(d)), 2 + filler);
        assert_true(json_int(json_member(json_root(d), 0, &key, &n), &i) && i == 3);
        assert_string_equal(key, "a");
        assert_int_equal(n, 1);
        assert_true(json_int(json_get(json_root(d), "a"), &i) && i == 3);
        for (int k = 0; k < filler; k++) {
            char name[16];
            snprintf(name, sizeof name, "k%d", k);
            assert_true(json_int(json_get(json_root(d), name), &i) && i == k);
        }
        assert_null(json_get(json_root(d), "k"));
        json_free(d);
    }
    buf_release(&text);
}

struct bad {
    const char *text;
    size_t at;
    const char *says;
};

static void test_faults(void **state)
{
    static const struct bad bad[] = {
        {"", 0, "expected a value, found end of text"},
        {"  ", 2, "end of text"},
        {"{", 1, "a key or '}'"},
        {"{\"a\" 1}", 5, "expected ':', found '1'"},
        {"{\"a\":1,}", 7, "a key"},
        {"[1,]", 3, "a value"},
        {"[1 2]", 3, "',' or ']', found '2'"},
        {"[1}", 2, "',' or ']', found '}'"},
        {"{\"a\":1]", 6, "',' or '}'"},
        {"1 2", 2, "end of text"},
        {"nul", 0, "a value, found 'n'"},
        {"NaN", 0, "a value"},
        {"01", 0, "leading zero"},
        {"-", 1, "a digit"},
        {"[1.]", 3, "a digit"},
        {"[1e+]", 4, "a digit"},
        {"\"abc", 0, "string without an end"},
        {"[\"a\nb\"]", 3, "control character 0x0a"},
        {"\"\\x\"", 1, "unknown escape"},
        {"\"\\u12g4\"", 1, "four hexadecimal"},
        {"\"\\ud800x\"", 1, "high surrogate"},
        {"\"\\ud800\\u0041\"", 1, "high surrogate"},
        {"\"\\udc00\"", 1, "low surrogate"},
        {"\"\xff\"", 1, "invalid UTF-8"},
        {"\"\xed\xa0\x80\"", 1, "invalid UTF-8"},
        {"\xef\xbb\xbf[", 4, "a value"},
        {"\xef\xbb\xbf\xef\xbb\xbf[]", 3, "found byte 0xef"},
        {"[1] \x01", 4, "found byte 0x01"},
    };
    struct json_doc *d;

    (void)state;
    for (size_t i = 0; i < FST_COUNT(bad); i++) {
        char start[64];
        assert_int_equal(json_parse(&d, bad[i].text, strlen(bad[i].text)), FST_EFORMAT);
        assert_null(d);
        snprintf(start, sizeof start, "Invalid JSON at byte %zu: ", bad[i].at);
        if (strncmp(fst_error_text(), start, strlen(start)) != 0 ||
            !strstr(fst_error_text(), bad[i].says))
            fail_msg("%s: got \"%s\"", bad[i].text, fst_error_text());
    }
    assert_int_equal(json_parse(&d, "[1,\0 2]", 7), FST_EFORMAT);
    assert_non_null(strstr(fst_error_text(), "found byte 0x00"));
    assert_int_equal(json_parse(&d, "\"\\", 2), FST_EFORMAT);
}

/* A hostile client sends brackets: no stack is used for them, and the text is left at level 257. */
static void test_depth(void **state)
{
    static const size_t deep[] = {1, 100, 256, 257, 1000, 10000, 1000000};
    struct buf text = {0};
    struct json_doc *d;

    (void)state;
    for (size_t i = 0; i < FST_COUNT(deep); i++) {
        for (int object = 0; object < 2; object++) {
            const char *open = object ? "{\"a\":" : "[";
            buf_reset(&text);
            for (size_t k = 0; k < deep[i]; k++)
                buf_puts(&text, open);
            buf_puts(&text, "1");
            for (size_t k = 0; k < deep[i]; k++)
                buf_putc(&text, object ? '}' : ']');
            if (deep[i] <= 256) {
                struct buf out = {0};
                d = parse(buf_str(&text));
                json_put(&out, json_root(d), JSON_COMPACT);
                assert_string_equal(buf_str(&out), buf_str(&text));
                buf_release(&out);
                json_free(d);
            } else {
                assert_int_equal(json_parse(&d, text.data, text.len), FST_EFORMAT);
                assert_non_null(strstr(fst_error_text(), "nested deeper than 256"));
            }
        }
    }
    buf_release(&text);
}

static void test_put_string(void **state)
{
    static const char text[] = "\x00\x01\b\t\n\v\f\r\x1f \"\\/\x7f\xc2\x85\xe2\x80\xa8\xe2\x80\xa9"
                               "\xe2\x82\xac\xf0\x9f\x98\x80";
    struct buf b = {0};

    (void)state;
    json_put_string(&b, text, sizeof text - 1);
    assert_string_equal(buf_str(&b),
                        "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f \\\"\\\\/\x7f\xc2\x85"
                        "\xe2\x80\xa8\xe2\x80\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
    buf_reset(&b);
    json_put_string_safe(&b, text + 14, sizeof text - 15);
    assert_string_equal(buf_str(&b), "\"\\u0085\\u2028\\u2029\xe2\x82\xac\xf0\x9f\x98\x80\"");
    buf_reset(&b);
    json_put_string(&b, "a\xe2\x82z\xff\xe2", 6);
    assert_string_equal(buf_str(&b), "\"a\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_release(&b);
}

/* Expected texts are Python's repr. */
static void test_put_double(void **state)
{
    static const struct {
        double x;
        const char *text;
    } cases[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {1e15, "1000000000000000.0"},
        {123456789012345680.0, "1.2345678901234568e+17"},
        {1e16, "1e+16"},
        {1e22, "1e+22"},
        {0.0001, "0.0001"},
        {0.00001, "1e-05"},
        {1.25e-7, "1.25e-07"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {0x1p-44, "5.684341886080802e-14"},
        {9007199254740993.0, "9007199254740992.0"},
        {100.25, "100.25"},
    };
    struct buf b = {0};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        buf_reset(&b);
        json_put_double(&b, cases[i].x);
        assert_string_equal(buf_str(&b), cases[i].text);
    }
    buf_reset(&b);
    json_put_double(&b, (double)NAN);
    json_put_double(&b, -(double)INFINITY);
    assert_string_equal(buf_str(&b), "nullnull");
    buf_release(&b);
}

static void test_styles(void **state)
{
    struct json_doc *d =
        parse("{\"b\" : [1.10,2,{}, [], -0, 1e999, 1e16],\"a\":\"\\u00e9\\u2028\"}");
    struct buf b = {0};

    (void)state;
    json_put(&b, json_root(d), JSON_PYTHON);
    assert_string_equal(buf_str(&b), "{\"b\": [1.1, 2, {}, [], 0, Infinity, 1e+16], "
                                     "\"a\": \"\xc3\xa9\xe2\x80\xa8\"}");
    buf_reset(&b);
    json_put(&b, json_root(d), JSON_COMPACT);
    assert_string_equal(buf_str(&b), "{\"b\":[1.10,2,{},[],-0,1e999,1e16],"
                                     "\"a\":\"\xc3\xa9\xe2\x80\xa8\"}");
    buf_release(&b);
    json_free(d);
}

/* Whatever allocation fails, the answer is FST_ENOMEM and nothing leaks (ASan sees to that). */
static void test_out_of_memory(void **state)
{
    struct buf text = {0};
    uint64_t before, needed;
    struct json_doc *d;
    enum fst_status rc;

    (void)state;
    buf_puts(&text, "{\"list\":[1,2.5,\"text with \\u20ac\",null,true,{\"x\":{}}]");
    for (int i = 0; i < 20; i++)
        buf_printf(&text, ",\"member %d\":\"value %d%*s\"", i, i, 10 * i, "grows");
    buf_putc(&text, '}');
    before = mem_count();
    d = parse(buf_str(&text));
    needed = mem_count() - before;
    json_free(d);
    assert_true(needed > 40);
    for (uint64_t n = 1; n <= needed; n++) {
        mem_fail_at(n);
        rc = json_parse(&d, text.data, text.len);
        mem_fail_at(0);
        assert_int_equal(rc, FST_ENOMEM);
        assert_null(d);
    }
    d = parse(buf_str(&text));
    json_free(d);
    buf_release(&text);
}

/* What a client's JSON writer may do to arguments, and what it may not. */
static void test_equal(void **state)
{
    static const struct {
        const char *a, *b;
        bool equal;
    } rows[] = {
        {"{\"a\":1,\"b\":[1,2]}", "{ \"b\" : [1, 2],\"a\":1 }", true},
        {"{\"a\":1}", "{\"a\":1,\"b\":null}", false},
        {"{\"a\":1,\"b\":2}", "{\"a\":1,\"c\":2}", false},
        {"[1,2]", "[2,1]", false},
        {"[1,2]", "[1,2,3]", false},
        {"\"\\u00e9\\n\\/\"", "\"\xc3\xa9\\u000a/\"", true},
        {"\"\xc3\xa9\"", "\"e\xcc\x81\"", false}, /* no normal form is taken */
        {"\"1\"", "1", false},
        {"true", "1", false},
        {"null", "false", false},
        {"null", "null", true},
        {"{}", "[]", false},
        {"1", "1.0", true},
        {"1", "10e-1", true},
        {"100", "1e2", true},
        {"100", "1E+2", true},
        {"1.50", "1.5", true},
        {"0.00150", "15e-4", true},
        {"-0", "0", true},
        {"-0.0e7", "0", true},
        {"-1", "1", false},
        {"1", "10", false},
        {"101", "11", false},
        {"0.1", "0.10000000000000001", true}, /* the same double */
        {"0.1", "0.1000000000000001", false},
        {"9007199254740993", "9007199254740992", false},
        {"12345678901234567890123", "12345678901234567890123", true},
        {"12345678901234567890123", "12345678901234567890124", false},
        {"12345678901234567890123", "1.2345678901234568e22", true}, /* through a double */
        {"1e400", "2e400", false},
        {"1e400", "10e399", true},
        {"1e99999999999999999999", "1e99999999999999999998", true}, /* both beyond any number */
        {"1e-99999999999999999999", "0", true},                     /* as a double */
        {"{\"a\":{\"b\":[{\"c\":1e0}]}}", "{\"a\":{\"b\":[{\"c\":1}]}}", true},
        {"{\"a\":1,\"a\":2}", "{\"a\":2}", true}, /* the last counts */
    };

    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        struct json_doc *a = parse(rows[i].a), *b = parse(rows[i].b);
        if (json_same(json_root(a), json_root(b)) != rows[i].equal ||
            json_same(json_root(b), json_root(a)) != rows[i].equal)
            fail_msg("%s and %s", rows[i].a, rows[i].b);
        assert_true(json_same(json_root(a), json_root(a)));
        json_free(a);
        json_free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),         cmocka_unit_test(test_number_spelling),
        cmocka_unit_test(test_duplicate_keys), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_depth),          cmocka_unit_test(test_put_string),
        cmocka_unit_test(test_put_double),     cmocka_unit_test(test_styles),
        cmocka_unit_test(test_out_of_memory),  cmocka_unit_test(test_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
