/* prop_base_utf8.c - UTF-8 against the set of all encodings, and streams cut anywhere. */
#include "support/cm.h"

#include "base/rng.h"
#include "base/utf8.h"

/* Which strings of 1..4 bytes begin a character, by way of encoding every character. */
static unsigned char *begins; /* bitmap over (length 2 or 3, bytes) */

static bool prefix_of_some(const unsigned char *s, size_t n)
{
    size_t at =
        n == 2 ? (size_t)s[0] << 8 | s[1] : 65536 + ((size_t)s[0] << 16 | (size_t)s[1] << 8 | s[2]);
    return begins[at / 8] >> at % 8 & 1;
}

static void mark(const unsigned char *s, size_t n)
{
    size_t at =
        n == 2 ? (size_t)s[0] << 8 | s[1] : 65536 + ((size_t)s[0] << 16 | (size_t)s[1] << 8 | s[2]);
    begins[at / 8] |= (unsigned char)(1 << at % 8);
}

static int setup(void **state)
{
    (void)state;
    begins = mem_calloc(1, (65536 + (1 << 24)) / 8);
    assert_non_null(begins);
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        char s[4];
        int n;
        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        n = utf8_encode(cp, s);
        if (n >= 2)
            mark((unsigned char *)s, 2);
        if (n >= 3)
            mark((unsigned char *)s, 3);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mem_free(begins);
    return 0;
}

static void test_every_character(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        uint32_t back = 0;
        char s[4];
        int n;

        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        n = utf8_encode(cp, s);
        assert_int_equal(n, cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_decode(s, (size_t)n, &back), n);
        assert_int_equal(back, cp);
        for (int k = 1; k < n; k++)
            assert_int_equal(utf8_decode(s, (size_t)k, &back), 0);
    }
}

/* Bytes from a small set of interesting ones, or a piece of valid text. */
static size_t random_bytes(struct rng *r, char *out, size_t max)
{
    static const unsigned char edges[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                          0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec,
                                          0xed, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
    size_t n = 0;

    while (n + 4 <= max && rng_below(r, 16) != 0) {
        uint32_t cp = (uint32_t)rng_below(r, 0x110000) >> rng_below(r, 12);
        if (rng_below(r, 2) && (cp < 0xd800 || cp > 0xdfff))
            n += (size_t)utf8_encode(cp, out + n);
        else
            out[n++] = (char)edges[rng_below(r, sizeof edges)];
    }
    return n;
}

/* Maximal subparts by definition: the longest run that begins some character, else one byte. */
static void reference_lossy(struct buf *out, const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;

    for (size_t i = 0; i < len;) {
        size_t want = p[i] < 0x80 ? 1 : p[i] < 0xe0 ? 2 : p[i] < 0xf0 ? 3 : 4, n = 1;
        bool good = p[i] < 0x80;

        if (p[i] >= 0xc2 && p[i] <= 0xf4) {
            while (n < want && i + n < len && (p[i + n] & 0xc0) == 0x80 &&
                   (n >= 3 || prefix_of_some(p + i, n + 1)))
                n++;
            good = n == want;
        }
        if (good)
            buf_append(out, s + i, n);
        else
            buf_puts(out, "\xef\xbf\xbd");
        i += n;
    }
}

static void test_lossy_and_streams(void **state)
{
    struct buf whole = {0}, expected = {0}, pieces = {0};
    struct rng r;
    char text[64];

    (void)state;
    rng_init(&r, 42);
    for (int round = 0; round < test_size(100000, 30000000, 5000); round++) {
        size_t len = random_bytes(&r, text, sizeof text), at = 0;
        struct utf8_stream u = {0};

        buf_reset(&whole);
        buf_reset(&expected);
        buf_reset(&pieces);
        utf8_append_lossy(&whole, text, len);
        reference_lossy(&expected, text, len);
        assert_int_equal(whole.len, expected.len);
        assert_memory_equal(buf_str(&whole), buf_str(&expected), whole.len);
        assert_true(utf8_valid(buf_str(&whole), whole.len));
        assert_int_equal(utf8_valid(text, len),
                         whole.len == len && memcmp(buf_str(&whole), text, len) == 0);
        while (at < len) {
            size_t n = 1 + (size_t)rng_below(&r, FST_MIN(len - at, 5));
            utf8_stream_feed(&u, &pieces, text + at, n);
            at += n;
            assert_true(u.n_held <= 3);
            assert_true(utf8_valid(buf_str(&pieces), pieces.len));
        }
        utf8_stream_end(&u, &pieces);
        assert_int_equal(pieces.len, whole.len);
        assert_memory_equal(buf_str(&pieces), buf_str(&whole), whole.len);
    }
    buf_release(&whole);
    buf_release(&expected);
    buf_release(&pieces);
}

/* Emoji of several code points, scripts and flags, one byte at a time: nothing is replaced. */
static void test_bytes_of_text(void **state)
{
    static const char text[] = "👩🏽‍🚀 赴 ñ नमस्ते 🇮🇹 ﷽";
    struct utf8_stream u = {0};
    struct buf b = {0};

    (void)state;
    for (size_t i = 0; i < sizeof text - 1; i++) {
        utf8_stream_feed(&u, &b, text + i, 1);
        assert_true(utf8_valid(buf_str(&b), b.len));
    }
    utf8_stream_end(&u, &b);
    assert_string_equal(b.data, text);
    assert_int_equal(utf8_count(b.data, b.len), 20);
    buf_reset(&b);
    utf8_stream_feed(&u, &b, "\xf0\x9f\x98", 3); /* the stream ends inside a character */
    assert_int_equal(b.len, 0);
    utf8_stream_end(&u, &b);
    assert_string_equal(b.data, "\xef\xbf\xbd");
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_character),
        cmocka_unit_test(test_lossy_and_streams),
        cmocka_unit_test(test_bytes_of_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
