/* prop_base_json.c - random documents survive, damaged ones are named by byte. */
#include "support/cm.h"

#include "base/json.h"
#include "base/rng.h"

static void put_space(struct buf *b, struct rng *r)
{
    for (uint64_t n = rng_below(r, 8); n > 5; n--)
        buf_putc(b, " \n\t\r"[rng_below(r, 4)]);
}

static void put_text(struct buf *b, struct rng *r, bool key)
{
    static const char *const parts[] = {
        "a",       "key",  " ",      "\\n",  "\\\"", "\\\\",
        "\\u00e9", "é",    "漢",     "😀",    "\\/",  "\\ud83d\\ude00",
        "\\u2028", "\x7f", "{[,:]}", "12e5", "true"};
    buf_putc(b, '"');
    for (uint64_t n = rng_below(r, 6); n > 0; n--)
        buf_puts(b, parts[rng_below(r, FST_COUNT(parts))]);
    if (!key && rng_below(r, 20) == 0)
        buf_puts(b, "\\u0000");
    buf_putc(b, '"');
}

static void put_random_number(struct buf *b, struct rng *r)
{
    if (rng_below(r, 2))
        buf_putc(b, '-');
    if (rng_below(r, 3) == 0)
        buf_putc(b, '0');
    else
        for (uint64_t n = 1 + rng_below(r, 25), i = 0; i < n; i++)
            buf_putc(b, (char)('0' + (i == 0 ? 1 + rng_below(r, 9) : rng_below(r, 10))));
    if (rng_below(r, 3) == 0)
        buf_printf(b, ".%llu", (unsigned long long)rng_u64(r) >> rng_below(r, 64));
    if (rng_below(r, 4) == 0)
        buf_printf(b, "%c%s%d", rng_below(r, 2) ? 'e' : 'E', rng_below(r, 2) ? "+" : "",
                   (int)rng_range(r, 0, 400));
}

static void put_random(struct buf *b, struct rng *r, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    uint64_t n;

    put_space(b, r);
    switch (rng_below(r, depth > 0 ? 7 : 4)) {
    case 0:
        buf_puts(b, words[rng_below(r, 3)]);
        break;
    case 1:
    case 2:
        put_random_number(b, r);
        break;
    case 3:
        put_text(b, r, false);
        break;
    case 4:
    case 5:
        n = rng_below(r, 20) == 0 ? 40 : rng_below(r, 5);
        buf_putc(b, '{');
        for (uint64_t i = 0; i < n; i++) {
            buf_puts(b, i ? "," : "");
            put_space(b, r);
            put_text(b, r, true);
            put_space(b, r);
            buf_putc(b, ':');
            put_random(b, r, depth - 1);
        }
        put_space(b, r);
        buf_putc(b, '}');
        break;
    default:
        n = rng_below(r, 5);
        buf_putc(b, '[');
        for (uint64_t i = 0; i < n; i++) {
            buf_puts(b, i ? "," : "");
            put_random(b, r, depth - 1);
        }
        put_space(b, r);
        buf_putc(b, ']');
        break;
    }
    put_space(b, r);
}

/* Every member is found by its key, and is the one at its place. */
static void check_lookup(json_val *v)
{
    for (size_t i = 0; i < json_count(v); i++) {
        const char *key = NULL;
        size_t len;
        json_val *m =
            json_type_of(v) == JSON_OBJECT ? json_member(v, i, &key, &len) : json_at(v, i);

        assert_non_null(m);
        if (key)
            assert_ptr_equal(json_get(v, key), m);
        check_lookup(m);
    }
}

/* text -> values -> compact text -> values -> the same compact text. */
static void test_round_trip(void **state)
{
    struct rng r;

    (void)state;
    rng_init(&r, 1);
    for (int round = 0; round < test_size(20000, 5000000, 1000); round++) {
        struct buf text = {0}, once = {0}, twice = {0};
        struct json_doc *d;

        put_random(&text, &r, 5);
        if (json_parse(&d, text.data, text.len) < 0)
            fail_msg("%s: %s", text.data, fst_error_text());
        check_lookup(json_root(d));
        json_put(&once, json_root(d), JSON_COMPACT);
        json_free(d);
        if (json_parse(&d, once.data, once.len) < 0)
            fail_msg("%s: %s", once.data, fst_error_text());
        json_put(&twice, json_root(d), JSON_COMPACT);
        json_free(d);
        assert_string_equal(once.data, twice.data);
        buf_release(&text);
        buf_release(&once);
        buf_release(&twice);
    }
}

/* A cut or changed text is either fine or refused with a byte inside it; jansson is never the one
 * that refuses. */
static void test_damage(void **state)
{
    struct rng r;
    int refused = 0;

    (void)state;
    rng_init(&r, 2);
    for (int round = 0; round < test_size(50000, 20000000, 2000); round++) {
        struct buf text = {0};
        struct json_doc *d;
        size_t at;

        put_random(&text, &r, 4);
        for (uint64_t n = 1 + rng_below(&r, 3); n > 0; n--) {
            size_t where = (size_t)rng_below(&r, text.len);
            if (rng_below(&r, 3) == 0)
                text.len = where + 1;
            else
                text.data[where] = rng_below(&r, 2)
                                       ? "{}[]\",:\\u0e-.+tn \xc3\xe2\xff"[rng_below(&r, 21)]
                                       : (char)rng_below(&r, 256);
        }
        switch (json_parse(&d, text.data, text.len)) {
        case FST_OK:
            json_free(d);
            break;
        case FST_EFORMAT:
            refused++;
            assert_int_equal(sscanf(fst_error_text(), "Invalid JSON at byte %zu: ", &at), 1);
            assert_true(at <= text.len);
            break;
        default:
            fail_msg("%s", fst_error_text());
        }
        buf_release(&text);
    }
    assert_true(refused > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
