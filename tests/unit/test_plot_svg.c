/* test_plot_svg.c - ticks at round values, places along an axis, what a chart refuses, text that could be markup. */
#include "support/cm.h"

#include <math.h>

#include "plot/plot.h"
#include "plot/scale.h"

static void test_linear(void **state)
{
    static const struct {
        double lo, hi, from, to;
        int ticks;
    } cases[] = {
        {3, 97, 0, 100, 6},           {0, 1, 0, 1, 6},         {0, 0, 0, 1, 6}, {-5, 5, -6, 6, 7},
        {0.001, 0.0042, 0, 0.005, 6}, {2866, 2866, 0, 3000, 7}};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        struct scale s;
        scale_init(&s, false, cases[i].lo, cases[i].hi, 0, 100);
        assert_true(fabs(s.from - cases[i].from) < 1e-12);
        assert_true(fabs(s.to - cases[i].to) < 1e-12);
        assert_int_equal(s.n_ticks, cases[i].ticks);
        assert_true(s.tick[0] >= s.from && s.tick[s.n_ticks - 1] <= s.to + 1e-9);
        assert_true(scale_place(&s, s.from) == 0);
        assert_true(fabs(scale_place(&s, s.to) - 100) < 1e-9);
    }
}

static void test_log(void **state)
{
    struct scale s;
    (void)state;
    scale_init(&s, true, 1, 256, 10, 80);
    assert_int_equal(s.n_ticks, 9);
    for (int i = 0; i < 9; i++) {
        assert_true(fabs(s.tick[i] - (double)(1 << i)) < 1e-9);
        assert_true(fabs(scale_place(&s, s.tick[i]) - (10 + 10 * i)) < 1e-9);
    }
    scale_init(&s, true, 3e-3, 7e8, 0, 1); /* powers of ten, not more than fit */
    assert_true(s.from <= 3e-3 && s.to >= 7e8 && s.n_ticks <= SCALE_TICKS_MAX);
    scale_init(&s, true, 5, 5, 0, 1);
    assert_true(s.from <= 5 && s.to >= 5 && s.from < s.to);
}

static void test_tick_text(void **state)
{
    static const struct {
        double x;
        const char *text;
    } cases[] = {{0, "0"},      {0.25, "0.25"},  {1024, "1024"}, {16384, "16.38k"},
                 {5e5, "500k"}, {2.5e6, "2.5M"}, {3e9, "3G"},    {-20000, "-20k"}};
    char text[32];
    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        scale_text(text, cases[i].x);
        assert_string_equal(text, cases[i].text);
    }
}

static void test_chart(void **state)
{
    double x[] = {1, 2, 4}, y[] = {10, NAN, 30};
    struct plot_series s = {"a < b & \"c\"", x, y, 3};
    struct plot p = {.kind = PLOT_LINES,
                     .title = "<title>",
                     .caption = "$ firesteel bench \001 serve",
                     .x = {"n", true},
                     .y = {"ms", false},
                     .series = &s,
                     .n_series = 1};
    struct buf b = {0};
    (void)state;
    assert_int_equal(plot_svg(&b, &p), FST_OK);
    assert_non_null(strstr(buf_str(&b), "a &lt; b &amp; &quot;c&quot;"));
    assert_non_null(strstr(buf_str(&b), "<title>&lt;title&gt;</title>"));
    assert_null(strstr(buf_str(&b), "\001"));
    assert_null(strstr(buf_str(&b), "nan"));
    assert_non_null(strstr(buf_str(&b), "prefers-color-scheme:dark"));
    buf_reset(&b);
    y[0] = INFINITY;
    assert_int_equal(plot_svg(&b, &p), FST_EINVAL);
    y[0] = 10;
    x[0] = 0; /* on a logarithmic axis */
    assert_int_equal(plot_svg(&b, &p), FST_EINVAL);
    s.n = 0;
    assert_int_equal(plot_svg(&b, &p), FST_EINVAL);
    p.n_series = 0;
    assert_int_equal(plot_svg(&b, &p), FST_EINVAL);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_tick_text),
        cmocka_unit_test(test_chart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
