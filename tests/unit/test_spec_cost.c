/* test_spec_cost.c - the table of costs: filling, lookups, refinement, files of this machine and of others. */
#include "support/cm.h"

#include <math.h>

#include "base/file.h"
#include "spec/cost.h"
#include "support/tmpdir.h"

static const struct spec_machine here = {
    .build = "b1", .device = "cpu avx2 X", .model = "m1 rows=fp8", .threads = 2};

static double truth_step(double requests, double rows)
{
    return 1e-3 + 2e-5 * requests + 1e-4 * rows;
}

static void set_point(struct spec_cost *c, int p, bool all)
{
    for (int k = 0; k <= c->gamma; k++)
        if (all || k == 0 || k == c->gamma)
            spec_cost_set_step(c, p, k, truth_step(c->requests[p], c->requests[p] * (1.0 + k)));
    for (int k = 0; k < c->gamma; k++)
        if (all || k == c->gamma - 1)
            spec_cost_set_draft(c, p, k, 5e-4 + 1e-5 * c->requests[p] * (1 + k));
}

static void test_points(void **state)
{
    struct spec_cost c;
    (void)state;
    spec_cost_init(&c, 5, 1);
    assert_int_equal(c.n, 1);
    spec_cost_init(&c, 5, 48);
    assert_int_equal(c.n, 7);
    assert_int_equal(c.requests[5], 32);
    assert_int_equal(c.requests[6], 48);
    spec_cost_init(&c, 8, 4096);
    assert_int_equal(c.requests[c.n - 1], 4096);
    assert_false(spec_cost_fill(&c)); /* nothing is known */
    assert_false(c.ready);
}

static void test_lookup(void **state)
{
    struct spec_cost c;
    (void)state;
    spec_cost_init(&c, 5, 16);
    for (int p = 0; p < c.n; p++)
        set_point(&c, p, p % 2);
    assert_true(spec_cost_fill(&c));
    for (int r = 1; r <= 16;
         r++) /* the truth is linear, and so are lookups; beyond the table too */
        for (int rows = r; rows <= 20 * r; rows++)
            assert_true(fabs(spec_cost_step(&c, r, rows, 0) - truth_step(r, rows)) < 1e-9);
    assert_true(fabs(spec_cost_draft(&c, 3, 5) - (5e-4 + 1e-5 * 15)) < 1e-9);
    assert_true(spec_cost_draft(&c, 0, 5) <= 0);
    c.context_s = 1e-9;
    assert_true(fabs(spec_cost_step(&c, 1, 1, 1e6) - truth_step(1, 1) - 1e-3) < 1e-9);
}

/* Points without a measurement, and one that is out of line. */
static void test_fill(void **state)
{
    struct spec_cost c;
    (void)state;
    spec_cost_init(&c, 5, 64);
    set_point(&c, 1, true);
    c.step_s[1][3] = 1e-5; /* an inflated speed would make the planner open up */
    assert_true(spec_cost_fill(&c));
    for (int p = 0; p < c.n; p++)
        for (int k = 0; k <= 5; k++) {
            assert_true(c.step_s[p][k] > 0);
            if (k)
                assert_true(c.step_s[p][k] >= c.step_s[p][k - 1]);
            if (p)
                assert_true(c.step_s[p][k] >= c.step_s[p - 1][k]);
        }
    assert_true(spec_cost_draft(&c, 64, 5) > spec_cost_draft(&c, 2, 5));
}

/* Without a measurement at the start: three plain steps and three full rounds. */
static void test_learn(void **state)
{
    struct spec_cost c;
    (void)state;
    spec_cost_init(&c, 5, 8);
    for (int i = 0; i < 3; i++) {
        assert_true(spec_cost_wants_plain(&c, 1));
        spec_cost_saw_step(&c, 1, 1, 0, 1e-3 + 1e-4 * i);
    }
    assert_false(spec_cost_wants_plain(&c, 1));
    for (int i = 0; i < 3; i++) {
        assert_false(c.ready);
        spec_cost_saw_draft(&c, 1, 5, 7e-4);
        spec_cost_saw_step(&c, 1, 6, 0, 2e-3);
    }
    assert_true(c.ready);
    assert_true(fabs(spec_cost_step(&c, 1, 1, 0) - 1e-3) < 1e-9);
    assert_true(fabs(spec_cost_draft(&c, 1, 5) - 7e-4) < 1e-9);
}

static void test_refine(void **state)
{
    struct spec_cost c;
    double was, other;
    (void)state;
    spec_cost_init(&c, 5, 16);
    for (int p = 0; p < c.n; p++)
        set_point(&c, p, true);
    assert_true(spec_cost_fill(&c));
    was = spec_cost_step(&c, 3, 10, 0);
    other = spec_cost_step(&c, 16, 16, 0);
    for (int i = 0; i < 300; i++)
        spec_cost_saw_step(&c, 3, 10, 0, 1.5 * was);
    assert_true(fabs(spec_cost_step(&c, 3, 10, 0) / was - 1.5) < 0.02);
    assert_true(spec_cost_step(&c, 16, 16, 0) > 1.02 * other); /* what slows one slows all */
    assert_true(spec_cost_step(&c, 16, 16, 0) < 1.4 * other);  /* but not as much */
    /* One outlier moves little. */
    was = spec_cost_step(&c, 3, 10, 0);
    spec_cost_saw_step(&c, 3, 10, 0, 1000 * was);
    assert_true(spec_cost_step(&c, 3, 10, 0) < 1.15 * was);
    for (int i = 0; i < 300; i++)
        spec_cost_saw_draft(&c, 4, 5, 3e-3);
    assert_true(fabs(spec_cost_draft(&c, 4, 5) - 3e-3) < 1e-4);
    for (int i = 0; i < 2000; i++) {
        spec_cost_saw_inject(&c, 1, 1e-4 + 1e-5);
        spec_cost_saw_inject(&c, 128, 1e-4 + 128e-5);
    }
    assert_true(fabs(spec_cost_inject(&c, 128) - 138e-5) < 2e-4);
    /* Nonsense is not learned. */
    was = spec_cost_step(&c, 3, 10, 0);
    spec_cost_saw_step(&c, 3, 10, 0, -1);
    spec_cost_saw_step(&c, 3, 10, 0, (double)NAN);
    spec_cost_saw_step(&c, 3, 2, 0, 1);
    spec_cost_saw_step(&c, 0, 0, 0, 1);
    assert_true(fabs(spec_cost_step(&c, 3, 10, 0) - was) <= 0);
}

static void refuse(struct spec_cost *c, const struct spec_machine *m, const char *path,
                   enum fst_status rc, const char *text)
{
    struct spec_cost was = *c;
    assert_int_equal(spec_cost_load(c, m, path), rc);
    if (!strstr(fst_error_text(), text))
        fail_msg("'%s' does not say '%s'", fst_error_text(), text);
    assert_memory_equal(&was, c, sizeof was);
}

static void test_files(void **state)
{
    struct spec_machine there = here;
    struct spec_cost c, back;
    char dir[256], path[300];
    (void)state;
    tmpdir_make(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/cost.json", dir);
    spec_cost_init(&c, 5, 16);
    spec_cost_init(&back, 5, 4);
    for (int p = 0; p < c.n; p++)
        set_point(&c, p, true);
    assert_true(spec_cost_fill(&c));
    c.context_s = 3e-10;
    spec_cost_saw_inject(&c, 3, 1e-4);
    refuse(&back, &here, path, FST_ENOTFOUND, path);
    assert_int_equal(spec_cost_save(&c, &here, path), FST_OK);
    assert_int_equal(spec_cost_load(&back, &here, path), FST_OK);
    assert_true(back.ready);
    assert_memory_equal(c.step_s, back.step_s, sizeof c.step_s);
    assert_memory_equal(c.draft_s, back.draft_s, sizeof c.draft_s);
    assert_memory_equal(c.requests, back.requests, sizeof c.requests);
    assert_true(fabs(back.context_s - c.context_s) <= 0);
    there.build = "b2";
    refuse(&back, &there, path, FST_EUNSUPPORTED, "build is \"b1\" there, \"b2\" here");
    there = here;
    there.device = "cuda";
    refuse(&back, &there, path, FST_EUNSUPPORTED, "device is");
    there = here;
    there.model = "m2";
    refuse(&back, &there, path, FST_EUNSUPPORTED, "model is");
    there = here;
    there.threads = 3;
    refuse(&back, &there, path, FST_EUNSUPPORTED, "threads is 2 there, 3 here");
    spec_cost_init(&back, 4, 4);
    refuse(&back, &here, path, FST_EUNSUPPORTED, "gamma is 5 there, 4 here");
    spec_cost_init(&back, 5, 4);
    static const char *const bad[][2] = {
        {"{", "Invalid JSON"},
        {"[]", "\"format\" must be a string"},
        {"{\"format\":\"x\"}", "format is \"x\" there"},
    };
    for (size_t i = 0; i < FST_COUNT(bad); i++) {
        assert_int_equal(file_write(path, bad[i][0], strlen(bad[i][0])), FST_OK);
        refuse(&back, &here, path, i == 2 ? FST_EUNSUPPORTED : FST_EFORMAT, bad[i][1]);
    }
    /* A number that is none, in a file that is otherwise right. */
    struct buf b = {0};
    assert_int_equal(spec_cost_save(&c, &here, path), FST_OK);
    assert_int_equal(file_read(&b, path, 0), FST_OK);
    char *at = strstr(buf_str(&b), "\"step_seconds\": [");
    assert_non_null(at);
    at[strlen("\"step_seconds\": [")] = '-';
    assert_int_equal(file_write(path, b.data, b.len), FST_OK);
    assert_true(spec_cost_load(&back, &here, path) < 0);
    buf_release(&b);
    assert_true(spec_cost_save(&c, &here, "/nowhere/cost.json") < 0);
    tmpdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_points), cmocka_unit_test(test_lookup), cmocka_unit_test(test_fill),
        cmocka_unit_test(test_learn),  cmocka_unit_test(test_refine), cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
