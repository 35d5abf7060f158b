/* test_spec_sts.c - calibration: what a known distortion needs is found, what does not help is refused; what
 * a request's rounds let expect; the minute's window. */
#include "support/cm.h"

#include <math.h>

#include "base/file.h"
#include "spec/sts.h"
#include "spec/track.h"
#include "support/tmpdir.h"

enum { G = 5, N = 6000 };

static double unit(struct test_rng *r)
{
    return (double)(test_next(r) >> 11) * 0x1p-53;
}

/* Rounds whose logits are the true ones times `loud` at depth: 1 is a head that is right. */
static void make_rounds(struct spec_round *x, int n, struct test_rng *r, double loud)
{
    for (int i = 0; i < n; i++) {
        int k = 0;
        bool right = true;
        for (int j = 0; j < G; j++) {
            double z = 4 * unit(r) - 1;
            x[i].logit[j] = (float)(z * (j ? loud : 1));
            right &= unit(r) < 1 / (1 + exp(-z));
            k += right;
        }
        x[i].accepted = (int8_t)k;
    }
}

static void test_fit(void **state)
{
    static struct spec_round x[N];
    struct test_rng r = {.s = 3};
    struct spec_sts s;
    struct spec_sts_report report;
    (void)state;
    make_rounds(x, N, &r, 3);
    assert_int_equal(spec_sts_fit(x, N, G, &s, &report), FST_OK);
    assert_int_equal(report.n_fitted + report.n_held_out, N);
    assert_true(fabs((double)s.temperature[0] - 1) < 0.35);
    for (int j = 1; j < G; j++) {
        assert_true((double)s.temperature[j] > 1.8);
        assert_true((double)s.temperature[j] < 5);
        assert_true(report.ece_after[j] < 0.6 * report.ece_before[j]);
    }
    /* Nothing to mend: refused, or hardly a change. */
    make_rounds(x, N, &r, 1);
    enum fst_status rc = spec_sts_fit(x, N, G, &s, &report);
    if (rc == FST_OK)
        for (int j = 0; j < G; j++)
            assert_true(fabs(log((double)s.temperature[j])) < 0.5);
    else
        assert_int_equal(rc, FST_EUNSUPPORTED);
    assert_int_equal(spec_sts_fit(x, 399, G, &s, &report), FST_EINVAL);
    assert_non_null(strstr(fst_error_text(), "400"));
}

/* What was fitted on does not hold for what was held out: every fourth round is of another kind. */
static void test_refuses(void **state)
{
    static struct spec_round x[N];
    struct test_rng r = {.s = 8};
    struct spec_sts s;
    struct spec_sts_report report;
    (void)state;
    for (int i = 0; i < N; i++)
        make_rounds(x + i, 1, &r, i % 4 == 3 ? 0.4 : 3);
    assert_int_equal(spec_sts_fit(x, N, G, &s, &report), FST_EUNSUPPORTED);
    assert_non_null(strstr(fst_error_text(), "does not help"));
}

static void test_survival(void **state)
{
    struct spec_sts s = {.gamma = 2, .temperature = {2, 1}};
    float z[3] = {2, 0, NAN};
    double a[3];
    (void)state;
    spec_survival(NULL, z, 3, a);
    assert_true(fabs(a[0] - 0.880797) < 1e-6);
    assert_true(fabs(a[1] - 0.440399) < 1e-6);
    assert_true(a[2] <= 0 && a[2] >= 0);
    spec_survival(&s, z, 2, a);
    assert_true(fabs(a[0] - 0.731059) < 1e-6);
    z[0] = INFINITY;
    z[1] = -INFINITY;
    spec_survival(NULL, z, 2, a);
    assert_true(a[0] >= 1 && a[0] <= 1 && a[1] <= 0);
}

static void refuse(const char *path, int gamma, const char *text, enum fst_status rc,
                   const char *why)
{
    struct spec_sts s = {.gamma = 77};
    if (text)
        assert_int_equal(file_write(path, text, strlen(text)), FST_OK);
    assert_int_equal(spec_sts_load(&s, gamma, path), rc);
    if (!strstr(fst_error_text(), why))
        fail_msg("'%s' does not say '%s'", fst_error_text(), why);
    assert_int_equal(s.gamma, 77);
}

static void test_files(void **state)
{
    struct spec_sts s = {.gamma = 3, .temperature = {1, 1.5f, 2.25f}}, back;
    struct spec_sts_report report = {.n_fitted = 300,
                                     .n_held_out = 100,
                                     .ece_before = {.03, .05, .08},
                                     .ece_after = {.01, .01, .02}};
    char dir[256], path[300];
    (void)state;
    tmpdir_make(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/sts.json", dir);
    refuse(path, 3, NULL, FST_ENOTFOUND, path);
    assert_int_equal(spec_sts_save(&s, &report, "some \"prompts\"", path), FST_OK);
    assert_int_equal(spec_sts_load(&back, 3, path), FST_OK);
    assert_memory_equal(back.temperature, s.temperature, sizeof s.temperature);
    refuse(path, 5, NULL, FST_EUNSUPPORTED, "holds 3 numbers, a block has 5 drafts");
    refuse(path, 1, "{\"temperatures\":[0],\"ece_before\":[1],\"ece_after\":[0]}", FST_EFORMAT,
           "\"temperatures\"[0] must be a positive number");
    refuse(path, 1, "{\"temperatures\":[1],\"ece_before\":[0.1],\"ece_after\":[0.1]}",
           FST_EUNSUPPORTED, "does not help");
    refuse(path, 1, "{\"temperatures\":[1]}", FST_EFORMAT, "\"ece_before\"");
    refuse(path, 1, "{\"temperatures\":1}", FST_EFORMAT, "\"temperatures\" must be an array");
    refuse(path, 1, "x", FST_EFORMAT, "Invalid JSON");
    tmpdir_remove(dir);
}

/* ------------------------------------------------------------------ track */

static void test_expect(void **state)
{
    struct spec_track t = {0}, other = {0};
    struct spec_band band = {0};
    double s[G], first;
    (void)state;
    spec_track_expect(&t, &band, G, s);
    first = s[0];
    assert_true(first > 0.7 && first < 0.9); /* nothing is known: worth trying */
    for (int j = 1; j < G; j++)
        assert_true(s[j] < s[j - 1]);
    for (int i = 0; i < 400; i++)
        spec_track_saw(&t, &band, 5, 2); /* two are right, always */
    spec_track_expect(&t, &band, G, s);
    assert_true(s[1] > 0.9 && s[2] < 0.1);
    assert_int_equal(band.rounds, 400);
    assert_int_equal(band.accepted, 800);
    spec_track_expect(&other, &band, G, s); /* a new request of the same kind */
    assert_true(s[1] > 0.85 && s[2] < 0.15);
    for (int i = 0; i < 100; i++)
        spec_track_saw(&other, &band, 1, 0); /* it is another: never right */
    spec_track_expect(&other, &band, G, s);
    assert_true(s[0] < 0.2);
    spec_track_expect(&t, &band, G, s); /* the first one stays what it was */
    assert_true(s[0] > 0.85);
    for (int i = 0; i < 3000; i++)
        spec_track_skipped(&other);
    spec_track_expect(&other, &band, G, s); /* long ago: as its kind again */
    assert_true(s[0] > 0.4);
    spec_track_saw(&t, &band, 0, 0); /* no round */
    assert_int_equal(band.rounds, 500);
}

static void test_bands(void **state)
{
    (void)state;
    assert_int_equal(spec_band_of(0), FST_SPEC_GREEDY);
    assert_int_equal(spec_band_of(0.2f), FST_SPEC_COOL);
    assert_int_equal(spec_band_of(0.6f), FST_SPEC_MILD);
    assert_int_equal(spec_band_of(1), FST_SPEC_WARM);
    assert_int_equal(spec_band_of(1.5f), FST_SPEC_HOT);
}

static void test_window(void **state)
{
    struct spec_window w = {0};
    (void)state;
    assert_true(spec_window_length(&w, 1000) <= 0);
    for (int64_t s = 1000; s < 1030; s++)
        spec_window_saw(&w, s, 4);
    assert_true(fabs(spec_window_length(&w, 1030) - 5) < 1e-9);
    for (int64_t s = 1070; s < 1080; s++)
        spec_window_saw(&w, s, 0);
    assert_true(fabs(spec_window_length(&w, 1080) - (9 * 5.0 + 10) / 19) < 1e-9); /* 1021 .. */
    assert_true(fabs(spec_window_length(&w, 1120) - 1) < 1e-9);
    assert_true(spec_window_length(&w, 2000) <= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit),      cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_survival), cmocka_unit_test(test_files),
        cmocka_unit_test(test_expect),   cmocka_unit_test(test_bands),
        cmocka_unit_test(test_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
