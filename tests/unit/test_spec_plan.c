/* test_spec_plan.c - prefixes by survival against brute force, Algorithm 1 and where it stops short, the
 * two roles of the asynchronous form, and who drafts. */
#include "support/cm.h"

#include <math.h>

#include "spec/plan.h"

enum { R_MAX = 4, G_MAX = 5 };

struct table {
    double survive[R_MAX][G_MAX], seconds[R_MAX * G_MAX + 1];
    struct spec_ask ask[R_MAX];
    int n, gamma;
};

static void fill_asks(struct table *t)
{
    for (int i = 0; i < t->n; i++)
        t->ask[i] = (struct spec_ask){.survive = t->survive[i], .n_max = t->gamma, .n = -1};
}

/* dspark.md §4.2: c1 = (.9 .9 .8 .5 .4), c2 = (.6 .5 .5 .3 .2), steps a second at 2..12 rows. */
static void example(struct table *t)
{
    static const double c[2][5] = {{.9, .9, .8, .5, .4}, {.6, .5, .5, .3, .2}};
    static const double sps[] = {100, 99, 98, 97, 96, 80, 79, 78, 77, 76, 75};
    *t = (struct table){.n = 2, .gamma = 5};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 5; j++)
            t->survive[i][j] = (j ? t->survive[i][j - 1] : 1) * c[i][j];
    for (size_t k = 0; k < FST_COUNT(sps); k++)
        t->seconds[k] = 1 / sps[k];
    fill_asks(t);
}

static void test_example(void **state)
{
    struct table t;
    struct spec_found f;
    (void)state;
    example(&t);
    f = spec_plan_early_stop(t.ask, 2, 2, t.seconds, 11);
    assert_int_equal(f.extra, 4);
    assert_int_equal(t.ask[0].n, 3);
    assert_int_equal(t.ask[1].n, 1);
    assert_true(fabs(f.objective - 475.968) < 1e-3);
    f = spec_plan_best(t.ask, 2, 2, t.seconds, 11); /* the hump behind the cliff is lower: 451 */
    assert_int_equal(f.extra, 4);
    assert_int_equal(t.ask[0].n, 3);
    assert_true(fabs(spec_plan_objective(t.ask, 2, 2, t.seconds, 11) - f.objective) < 1e-9);
    for (int k = 5; k < 11; k++) /* a second hump that is higher fools Algorithm 1 alone */
        t.seconds[k] = 1 / 86.0;
    f = spec_plan_early_stop(t.ask, 2, 2, t.seconds, 11);
    assert_int_equal(f.extra, 4);
    f = spec_plan_best(t.ask, 2, 2, t.seconds, 11);
    assert_int_equal(f.extra, 10);
    assert_int_equal(t.ask[0].n, 5);
    assert_int_equal(t.ask[1].n, 5);
}

static void test_edges(void **state)
{
    static const double flat[11] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const double steep[11] = {1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9};
    struct table t;
    struct spec_found f;
    (void)state;
    example(&t);
    assert_int_equal(spec_plan_best(t.ask, 2, 2, flat, 11).extra, 10); /* flat: verify all */
    assert_int_equal(spec_plan_best(t.ask, 2, 2, steep, 11).extra, 0);
    assert_int_equal(t.ask[0].n, 0);
    assert_int_equal(spec_plan_best(t.ask, 2, 2, flat, 4).extra, 3);  /* the table ends */
    assert_int_equal(spec_plan_best(t.ask, 0, 2, flat, 11).extra, 0); /* nobody drafts */
    t.survive[1][3] = 0.9e-6; /* below 1e-6: no candidate, nor what is behind it */
    t.survive[1][4] = 0;
    assert_int_equal(spec_plan_best(t.ask, 2, 2, flat, 11).extra, 8);
    assert_int_equal(t.ask[1].n, 3);
    t.survive[0][0] = NAN; /* of no use, and no harm */
    f = spec_plan_best(t.ask, 2, 2, flat, 11);
    assert_int_equal(t.ask[0].n, 0);
    assert_true(isfinite(f.objective));
    /* Ties: by position, then by order. */
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 5; j++)
            t.survive[i][j] = 0.5;
    spec_plan_spend(t.ask, 2, 3);
    assert_int_equal(t.ask[0].n, 2);
    assert_int_equal(t.ask[1].n, 1);
    spec_plan_spend(t.ask, 2, 0);
    assert_int_equal(t.ask[0].n + t.ask[1].n, 0);
    spec_plan_spend(t.ask, 2, 99);
    assert_int_equal(t.ask[0].n + t.ask[1].n, 10);
}

/* The lagged form: a budget of older confidences, spent by the live ones. */
static void test_roles(void **state)
{
    struct table old, live;
    (void)state;
    example(&old);
    example(&live);
    for (int j = 0; j < 5; j++) /* meanwhile the other request has become the better one */
        live.survive[0][j] = 0.1 / (1 + j);
    int k = spec_plan_budget(old.ask, 2, 2, old.seconds, 11);
    assert_int_equal(k, 4);
    spec_plan_spend(live.ask, 2, k);
    assert_int_equal(live.ask[1].n, 3);
    assert_int_equal(live.ask[0].n, 1);
    for (int j = 0; j < 5; j++) /* a new tenant: all are taken to survive */
        old.survive[1][j] = 1;
    assert_true(spec_plan_budget(old.ask, 2, 2, old.seconds, 11) >= 4);
}

static void random_table(struct table *t, struct test_rng *r, bool cliffs)
{
    *t = (struct table){.n = 1 + test_below(r, R_MAX), .gamma = 1 + test_below(r, G_MAX)};
    double s = 1e-3 * (1 + test_below(r, 20));
    for (int i = 0; i < t->n; i++)
        for (int j = 0; j < t->gamma; j++)
            t->survive[i][j] = (j ? t->survive[i][j - 1] : 1) * (test_below(r, 1001) / 1000.0);
    for (int k = 0; k <= R_MAX * G_MAX; k++) {
        t->seconds[k] = s;
        if (!cliffs)
            s += 1e-4 * test_below(r, 10);
        else if (test_below(r, 4) == 0) /* a tier: flat up to the next one */
            s *= 1.05 + 0.05 * test_below(r, 8);
    }
    fill_asks(t);
}

static double brute_force(const struct table *t)
{
    int len[R_MAX] = {0};
    double best = 0;
    for (;;) {
        double tokens = t->n;
        int extra = 0;
        for (int i = 0; i < t->n; i++)
            for (int j = 0; j < len[i]; j++, extra++)
                tokens += t->survive[i][j] >= SPEC_SURVIVAL_MIN ? t->survive[i][j] : 0;
        best = fmax(best, tokens / t->seconds[extra]);
        int i = 0;
        while (i < t->n && ++len[i] > t->gamma)
            len[i++] = 0;
        if (i == t->n)
            return best;
    }
}

static void test_brute_force(void **state)
{
    int rounds = test_size(4000, 200000, 200);
    struct test_rng r = {.s = 11};
    (void)state;
    for (int cliffs = 0; cliffs < 2; cliffs++) {
        double worst = 1, worst_early = 1, sum_early = 0;
        int n_short = 0;
        for (int k = 0; k < rounds; k++) {
            struct table t;
            random_table(&t, &r, cliffs);
            double best = brute_force(&t);
            struct spec_found f = spec_plan_best(t.ask, t.n, t.n, t.seconds, R_MAX * G_MAX + 1);
            double got = spec_plan_objective(t.ask, t.n, t.n, t.seconds, R_MAX * G_MAX + 1);
            assert_true(fabs(got - f.objective) < 1e-9 * got);
            worst = fmin(worst, got / best);
            f = spec_plan_early_stop(t.ask, t.n, t.n, t.seconds, R_MAX * G_MAX + 1);
            worst_early = fmin(worst_early, f.objective / best);
            sum_early += f.objective / best;
            n_short += f.objective < 0.999999 * best;
        }
        printf(
            "%s: optimum %.6f of brute force; early stop %.4f on average, %.4f at worst, short in "
            "%.1f %% of %d tables\n",
            cliffs ? "tables with cliffs" : "smooth tables", worst, sum_early / rounds, worst_early,
            100.0 * n_short / rounds, rounds);
        assert_true(worst > 0.999999);
    }
}

/* ------------------------------------------------------------------ who drafts */

/* A machine: a + b * rows for a step, and as much again for each row of a draft. */
static void machine(struct spec_cost *c, double call_s, double row_s, double draft_call_s,
                    double draft_row_s)
{
    spec_cost_init(c, 5, 64);
    for (int p = 0; p < c->n; p++) {
        for (int k = 0; k <= 5; k++)
            spec_cost_set_step(c, p, k, call_s + row_s * c->requests[p] * (1 + k));
        for (int k = 0; k < 5; k++)
            spec_cost_set_draft(c, p, k, draft_call_s + draft_row_s * c->requests[p] * (1 + k));
    }
    assert_true(spec_cost_fill(c));
}

static void test_drafting(void **state)
{
    static double good[5] = {.9, .8, .7, .6, .5}, bad[5] = {.2, .04, .01, .002, .0004};
    struct spec_wish w[64];
    struct spec_load load = {.n_decoding = 1, .margin = 1.02};
    struct spec_cost c;
    (void)state;
    for (int i = 0; i < 64; i++)
        w[i] = (struct spec_wish){.expect = good, .n_max = 5};
    machine(&c, 10e-3, 0.1e-3, 1e-3, 0.05e-3); /* bound by weights: rows are cheap */
    struct spec_drafting d = spec_plan_drafting(&c, w, 1, &load);
    assert_int_equal(d.block, 5);
    assert_true(d.best_tok_s > 3 * d.plain_tok_s);
    assert_true(fabs(d.tokens / d.seconds - d.best_tok_s) < 1e-6);
    machine(&c, 0.1e-3, 1e-3, 0.1e-3, 1e-3); /* bound by arithmetic: every row costs */
    d = spec_plan_drafting(&c, w, 1, &load);
    assert_int_equal(d.block, 0);
    assert_false(w[0].drafts);
    d = spec_plan_try(&c, w, 1, &load, 1); /* the least bad, to find out */
    assert_int_equal(d.n_drafting, 1);
    assert_true(w[0].drafts);
    assert_true(d.best_tok_s < d.plain_tok_s);

    /* Of many the good ones, and of a block what pays: rows cost more the more there are. */
    machine(&c, 5e-3, 0.2e-3, 0.5e-3, 0.02e-3);
    load.n_decoding = 8;
    for (int i = 0; i < 8; i++)
        w[i] = (struct spec_wish){.expect = i % 2 ? good : bad, .n_max = i == 3 ? 0 : 5};
    d = spec_plan_drafting(&c, w, 8, &load);
    assert_int_equal(d.n_drafting, 3);
    for (int i = 0; i < 8; i++)
        assert_int_equal(w[i].drafts, i % 2 && i != 3);
    /* Taking it up again costs: worth less, and nothing if it costs too much. */
    w[1].resume_s = 1;
    d = spec_plan_drafting(&c, w, 8, &load);
    assert_false(w[1].drafts && d.block);
    /* Beside a prefill a row costs what it costs there, not the prefill. */
    load.prefill_rows = 500;
    for (int i = 0; i < 8; i++)
        w[i].resume_s = 0;
    d = spec_plan_drafting(&c, w, 8, &load);
    assert_int_equal(d.n_drafting, 3);
    /* Long contexts make rows dear. */
    c.context_s = 1e-6;
    load.positions = 8 * 60000.0;
    for (int i = 0; i < 8; i++)
        w[i].positions = 60000;
    int block = d.block;
    d = spec_plan_drafting(&c, w, 8, &load);
    assert_true(d.block < block || d.n_drafting < 3);
    load.n_decoding = 0;
    assert_int_equal(spec_plan_drafting(&c, w, 0, &load).block, 0);
}

static void test_seconds(void **state)
{
    struct spec_cost c;
    struct spec_load load = {.n_decoding = 4};
    double s[21], beside[21];
    (void)state;
    machine(&c, 10e-3, 0.1e-3, 1e-3, 0.05e-3);
    spec_plan_seconds(&c, &load, 0.002, s, 21);
    for (int k = 0; k < 21; k++)
        assert_true(fabs(s[k] - (0.002 + 10e-3 + 0.1e-3 * (4 + k))) < 1e-9);
    load.prefill_rows = 300;
    spec_plan_seconds(&c, &load, 0.002, beside, 21);
    for (int k = 0; k < 21; k++)
        assert_true(fabs(s[k] - beside[k]) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example),  cmocka_unit_test(test_edges),
        cmocka_unit_test(test_roles),    cmocka_unit_test(test_brute_force),
        cmocka_unit_test(test_drafting), cmocka_unit_test(test_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
