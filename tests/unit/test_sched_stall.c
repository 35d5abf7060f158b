/* test_sched_stall.c - steps of machines of any speed stay within the bound, and no narrower than they need. */
#include <math.h>

#include "support/cm.h"

#include "sched/stall.h"

struct machine {
    double fixed_s, decode_s, row_s; /* of a step, of each row that decodes, of a row of a prompt */
};

static double step(const struct machine *m, struct test_rng *r, int rows, int others)
{
    double noise = 1 + 0.1 * ((double)test_below(r, 2001) / 1000 - 1);
    return (m->fixed_s + m->decode_s * others + m->row_s * rows) * noise;
}

/* A prompt of so many rows beside `others`; the longest step behind the first three. */
static double read_prompt(struct sched_stall *s, const struct machine *m, struct test_rng *r,
                          int64_t rows, int others, int most, int *steps)
{
    double worst = 0;
    for (*steps = 0; rows > 0; ++*steps) {
        int n = (int)FST_MIN((int64_t)sched_stall_rows(s, most), rows);
        assert_in_range(n, 1, most);
        double took = step(m, r, n, others);
        sched_stall_saw(s, n, others, took);
        if (*steps > 2)
            worst = fmax(worst, took);
        rows -= n;
    }
    return worst;
}

static void test_machines(void **state)
{
    struct test_rng r = {.s = 3};
    (void)state;
    for (int k = 0; k < 500; k++) {
        struct sched_stall s = {.max_s = 0.05 * (1 + test_below(&r, 10))};
        int others = 1 + test_below(&r, 16), most = 64 << test_below(&r, 8), steps;
        struct machine m = {.fixed_s = 1e-3 * (1 + test_below(&r, 20)), .decode_s = 1e-4};
        m.row_s = 1e-6 * (5 + test_below(&r, 2000));
        for (int i = 0; i < 20; i++)
            sched_stall_saw(&s, 0, others, step(&m, &r, 0, others));
        double worst = read_prompt(&s, &m, &r, 40 * (int64_t)most, others, most, &steps);
        /* 10 % of noise on either side, and one row always goes */
        assert_true(worst <= 1.15 * s.max_s || sched_stall_rows(&s, most) == 1);
        double fit = (0.9 * s.max_s - m.fixed_s - m.decode_s * others) / m.row_s;
        assert_true(steps <= 3 * (40 * most / fmin(fmax(fit, 1), most)) + 8);
        m.row_s *= 4; /* something else uses the machine */
        worst = read_prompt(&s, &m, &r, 40 * (int64_t)most, others, most, &steps);
        assert_true(worst <= 1.6 * s.max_s || sched_stall_rows(&s, most) == 1);
    }
}

/* The machine was away for some seconds: prompts are slow for a while, not for good. */
static void test_spike(void **state)
{
    struct sched_stall s = {.max_s = 0.25};
    struct machine m = {.fixed_s = 5e-3, .decode_s = 1e-4, .row_s = 4e-4};
    struct test_rng r = {.s = 5};
    int steps;
    (void)state;
    for (int i = 0; i < 20; i++)
        sched_stall_saw(&s, 0, 4, step(&m, &r, 0, 4));
    read_prompt(&s, &m, &r, 8000, 4, 512, &steps);
    sched_stall_saw(&s, 512, 4, 100);
    assert_int_equal(sched_stall_rows(&s, 512), 2);
    read_prompt(&s, &m, &r, 20000, 4, 512, &steps);
    assert_true(sched_stall_rows(&s, 512) > 400);
    assert_in_range(steps, 40, 120);
}

static void test_unknown(void **state)
{
    struct sched_stall s = {.max_s = 0.25}, any = {0};
    (void)state;
    assert_int_equal(sched_stall_rows(&s, 512), 128);
    assert_int_equal(sched_stall_rows(&s, 1), 1);
    assert_int_equal(sched_stall_rows(&any, 512), 512);
    sched_stall_saw(&s, 512, 0, 0.512); /* nobody waited: its rows tell all the same */
    assert_int_equal(sched_stall_rows(&s, 512), 225);
    sched_stall_saw(&s, 0, 1, 0.02);
    sched_stall_saw(&s, 2, 1, 0.025); /* too few to tell */
    assert_int_equal(sched_stall_rows(&s, 512), 205);
    for (int i = 0; i < 10; i++) /* steps alone are too long: prompts still go on */
        sched_stall_saw(&s, 0, 1, 0.3);
    assert_int_equal(sched_stall_rows(&s, 512), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_machines),
                                       cmocka_unit_test(test_spike),
                                       cmocka_unit_test(test_unknown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
