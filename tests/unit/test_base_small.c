/* test_base_small.c - arena, random numbers, clock, numbers, hashes, the progress line. */
#include "support/cm.h"

#include <locale.h>
#include <math.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/number.h"
#include "base/progress.h"
#include "base/rng.h"

static void test_arena(void **state)
{
    struct arena a;
    uint64_t before;
    char *p, *q;

    (void)state;
    arena_init(&a, 1000, 0);
    for (int round = 0; round < 3; round++) {
        before = mem_count();
        for (int i = 0; i < 200; i++) {
            size_t size = (size_t)(i * 37 % 300);
            p = arena_alloc(&a, size);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t k = 0; k < size; k++)
                assert_int_equal(p[k], 0);
            memset(p, 0xee, size);
        }
        p = arena_alloc(&a, 5000); /* larger than a block */
        memset(p, 1, 5000);
        if (round > 0)
            assert_int_equal(mem_count(), before); /* the blocks are kept */
        q = arena_strndup(&a, "text beyond", 4);
        assert_string_equal(q, "text");
        arena_reset(&a);
    }
    assert_null(arena_calloc(&a, SIZE_MAX / 2, 3));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 40));
    arena_release(&a);
    assert_int_equal(a.held, 0);
}

static void test_arena_limit(void **state)
{
    struct arena a;
    int n = 0;

    (void)state;
    arena_init(&a, 1000, 2500);
    while (arena_alloc(&a, 100))
        n++;
    assert_in_range(n, 20, 22); /* 112 bytes each; 8 to a block, and the rest in pieces */
    assert_true(a.held <= 2500);
    arena_reset(&a);
    assert_null(arena_alloc(&a, 2501));
    mem_fail_at(1);
    arena_release(&a);
    assert_null(arena_alloc(&a, 1));
    mem_fail_at(0);
    assert_non_null(arena_alloc(&a, 1));
    arena_release(&a);
}

/* Published first outputs: splitmix64 of seed 1234567 (Vigna's C code). */
static void test_rng(void **state)
{
    static const uint64_t expected[] = {UINT64_C(6457827717110365317),
                                        UINT64_C(3203168211198807973),
                                        UINT64_C(9817491932198370423)};
    uint64_t s = 1234567, seen = 0;
    struct rng r, again;
    double sum = 0, squares = 0;
    char bytes[13] = {0};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(expected); i++)
        assert_true(rng_splitmix(&s) == expected[i]);
    rng_init(&r, 7);
    rng_init(&again, 7);
    for (int i = 0; i < 10; i++)
        assert_true(rng_u64(&r) == rng_u64(&again));
    for (int i = 0; i < 2000; i++) {
        uint64_t x = rng_below(&r, 10);
        int64_t y = rng_range(&r, -3, 3);
        double u = rng_unit(&r);
        assert_true(x < 10);
        assert_true(y >= -3 && y <= 3);
        assert_true(u >= 0 && u < 1);
        seen |= UINT64_C(1) << x | UINT64_C(1) << (y + 20);
    }
    assert_int_equal(seen, 0x3ff | 0x7f << 17);
    assert_int_equal(rng_below(&r, 1), 0);
    assert_int_equal(rng_range(&r, 5, 5), 5);
    rng_range(&r, INT64_MIN, INT64_MAX);
    for (int i = 0; i < 20000; i++) {
        double x = rng_normal(&r);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / 20000) < 0.03);
    assert_true(fabs(squares / 20000 - 1) < 0.04);
    rng_bytes(&r, bytes, 12);
    assert_int_equal(bytes[12], 0);
    assert_true(rng_os() != rng_os());
}

/* xoshiro256** from the state {1, 2, 3, 4}: its authors' first outputs. */
static void test_xoshiro(void **state)
{
    static const uint64_t expected[] = {11520, 0, 1509978240, UINT64_C(1215971899390074240)};
    struct rng r = {{1, 2, 3, 4}};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(expected); i++)
        assert_true(rng_u64(&r) == expected[i]);
}

static void test_clock(void **state)
{
    static const struct {
        int64_t ns;
        const char *text;
    } cases[] = {
        {0, "1970-01-01T00:00:00.000Z"},
        {-1, "1969-12-31T23:59:59.999Z"},
        {INT64_C(951782400123999999), "2000-02-29T00:00:00.123Z"},
        {INT64_C(1796000000) * 1000000000, "2026-11-30T00:53:20.000Z"},
        {INT64_C(4107542399999999999), "2100-02-28T23:59:59.999Z"},
    };
    char text[CLOCK_ISO_SIZE];
    int64_t t = clock_ns();

    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        clock_iso(text, cases[i].ns);
        assert_string_equal(text, cases[i].text);
    }
    usleep(2000);
    assert_true(clock_ns() - t >= 2000000);
    assert_true(clock_wall_ns() > INT64_C(1700000000) * 1000000000);
}

/* A program that speaks German still reads and writes points. */
static void test_number_locale(void **state)
{
    struct buf b = {0};
    locale_t german = newlocale(LC_ALL_MASK, "de_DE.UTF-8", (locale_t)0), before = (locale_t)0;
    char *end;

    (void)state;
    if (german != (locale_t)0)
        before = uselocale(german);
    assert_true(number_parse("1.5x", &end) == 1.5);
    assert_string_equal(end, "x");
    number_put(&b, 1.5);
    assert_string_equal(b.data, "1.5");
    if (german != (locale_t)0) {
        uselocale(before);
        freelocale(german);
    }
    buf_reset(&b);
    number_put(&b, (double)NAN);
    number_put(&b, -(double)INFINITY);
    assert_string_equal(b.data, "nan-inf");
    buf_release(&b);
}

/* The shortest text reads back, and no shorter one does. */
static void test_number_shortest(void **state)
{
    struct rng r;

    (void)state;
    rng_init(&r, 1);
    for (int i = 0; i < test_size(20000, 20000000, 2000); i++) {
        struct buf b = {0};
        char shorter[40];
        uint64_t bits = rng_u64(&r);
        double x;
        int digits = 0;

        if (i % 3 == 0)
            bits &= UINT64_C(0xfff) << 52; /* powers of two */
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x) || x == 0)
            continue;
        number_put(&b, x);
        assert_true(number_parse(b.data, NULL) == x);
        for (const char *p = b.data; *p && *p != 'e'; p++)
            digits += *p >= '0' && *p <= '9' && (digits > 0 || *p != '0');
        while (digits > 1 && i % 3 == 1) { /* drop digits: must no longer be the same number */
            snprintf(shorter, sizeof shorter, "%.*e", digits - 2, x);
            if (strcmp(b.data + strlen(b.data) - 2, ".0") != 0)
                assert_true(number_parse(shorter, NULL) != x);
            break;
        }
        buf_release(&b);
    }
}

static void test_hash(void **state)
{
    struct hash128 a, b, zero = {0, 0};

    (void)state;
    /* XXH3's own value for the empty input, seed 0. */
    assert_true(hash64("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(hash64("abc", 3, 0) != hash64("abc", 3, 1));
    a = hash128("abc", 3, zero);
    b = hash128("abc", 3, zero);
    assert_true(hash128_equal(a, b));
    b = hash128("abd", 3, zero);
    assert_false(hash128_equal(a, b));
    b = hash128("abc", 3, (struct hash128){0, 1}); /* both halves of the chain count */
    assert_false(hash128_equal(a, b));
    b = hash128("abc", 3, (struct hash128){1, 0});
    assert_false(hash128_equal(a, b));
}

static const char *render(enum progress_unit unit, int64_t total, int64_t done, double seconds,
                          int width, bool color)
{
    static struct buf b;
    struct progress p = {.what = "loading", .unit = unit, .total = total};

    buf_reset(&b);
    progress_render(&b, &p, done, (int64_t)(seconds * 1e9), width, color);
    return buf_str(&b);
}

static void test_progress(void **state)
{
    const int64_t gb = 1000000000;

    (void)state;
    assert_string_equal(render(PROGRESS_BYTES, 8 * gb, 2 * gb, 1, 80, false),
                        "loading  \xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88"
                        "\xe2\x96\x88                     25%  2.0 of 8.0 GB  2.00 GB/s  3 s left");
    assert_string_equal(render(PROGRESS_BYTES, 8 * gb, 8 * gb, 4, 40, false),
                        "loading  100%  8.0 of 8.0 GB  2.00 GB/s");
    assert_string_equal(render(PROGRESS_BYTES, 0, 2 * gb, 2, 80, false),
                        "loading  2.0 GB  1.00 GB/s");
    assert_string_equal(render(PROGRESS_TOKENS, 0, 100, 2, 80, false), "loading  100 tokens  50/s");
    assert_string_equal(render(PROGRESS_ITEMS, 7200, 1, 1, 46, false),
                        "loading    0%  1 of 7200  1.0/s  2.0 h left");
    assert_string_equal(render(PROGRESS_BYTES, 8 * gb, gb, 1, 12, false), "loading");
    assert_string_equal(render(PROGRESS_BYTES, 8 * gb, gb, 1, 3, false), "loa");
    assert_non_null(strstr(render(PROGRESS_BYTES, 8 * gb, gb, 1, 80, true), "\x1b[36m"));
    assert_null(strstr(render(PROGRESS_BYTES, 8 * gb, gb, 0, 80, false), "\x1b"));
    for (int width = 1; width < 120; width++) { /* never wider than the terminal */
        const char *s = render(PROGRESS_BYTES, 8 * gb, 3 * gb, 1.5, width, false);
        int columns = 0;
        for (; *s; s++)
            columns += ((unsigned char)*s & 0xc0) != 0x80;
        assert_true(columns <= width);
    }
}

/* stderr of a test is no terminal: not one byte. */
static void test_progress_quiet(void **state)
{
    struct progress p;
    int fds[2], before = dup(STDERR_FILENO);
    char byte;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    progress_start(&p, "x", PROGRESS_ITEMS, 100);
    usleep(110000);
    for (int i = 0; i < 100; i++)
        progress_add(&p, 1);
    progress_end(&p);
    dup2(before, STDERR_FILENO);
    close(before);
    close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 0);
    close(fds[0]);
    assert_int_equal(p.done, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_limit),
        cmocka_unit_test(test_rng),
        cmocka_unit_test(test_xoshiro),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_number_locale),
        cmocka_unit_test(test_number_shortest),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_progress_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
