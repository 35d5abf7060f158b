/* test_spec_accept.c - acceptance by coupled draws, counting, room; losslessness on toy tables. */
#include "support/cm.h"

#include <math.h>

#include "kernels/philox.h"
#include "spec/spec.h"

static void test_accept(void **state)
{
    int32_t draft[] = {4, 5, 6}, all[] = {4, 5, 6, 7}, two[] = {4, 5, 9, 6}, none[] = {5, 5, 6, 7};
    (void)state;
    assert_int_equal(spec_accept(draft, all, 3), 3);
    assert_int_equal(spec_accept(draft, two, 3), 2);
    assert_int_equal(spec_accept(draft, none, 3), 0);
    assert_int_equal(spec_accept(draft, none, 0), 0);
}

static void test_counts(void **state)
{
    struct fst_spec_stats s = {0};
    (void)state;
    spec_count(&s, 0, 0); /* a round without drafts is no round */
    assert_int_equal(s.verify_steps, 0);
    spec_count(&s, 5, 5);
    spec_count(&s, 5, 0);
    spec_count(&s, 5, 2);
    assert_int_equal(s.verify_steps, 3);
    assert_int_equal(s.drafted, 15);
    assert_int_equal(s.accepted, 7);
    assert_int_equal(s.accepted_by_position[0], 2);
    assert_int_equal(s.accepted_by_position[1], 2);
    assert_int_equal(s.accepted_by_position[2], 1);
    assert_int_equal(s.accepted_by_position[4], 1);
    assert_true(fabs(s.accept_length - 10.0 / 3) < 1e-12); /* the bonus counts */
}

static void test_room(void **state)
{
    (void)state;
    assert_int_equal(spec_room(5, 10, 100), 5);
    assert_int_equal(spec_room(5, 94, 100), 5); /* rows 94..99 */
    assert_int_equal(spec_room(5, 95, 100), 4);
    assert_int_equal(spec_room(5, 99, 100), 0);
    assert_int_equal(spec_room(0, 1, 100), 0);
}

/* Two tokens after a fixed context, V = 8: with coupled drafts of a wrong drafter the emitted pairs
 * are those without drafts, one by one, so their distribution is the target's; the share of accepted
 * drafts is far above that of independent drafts. */
static int draw(const double *p, uint64_t seed, uint32_t pos)
{
    int best = 0;
    float top = -INFINITY;
    for (uint32_t v = 0; v < 8; v++) {
        float g = (float)log(p[v]) + philox_gumbel(seed, v, pos, 0);
        if (g > top) {
            top = g;
            best = (int)v;
        }
    }
    return best;
}

static void test_lossless(void **state)
{
    double p[8], q[8], pz = 0, qz = 0, count[8] = {0}, x2 = 0, overlap = 0;
    int n = 100000, agree = 0;
    (void)state;
    for (int v = 0; v < 8; v++) {
        pz += p[v] = exp(0.4 * v);
        qz += q[v] = exp(0.3 * v + (v & 1 ? 0.3 : 0));
    }
    for (int i = 0; i < n; i++) {
        int32_t x = draw(q, (uint64_t)i, 9), y = draw(p, (uint64_t)i, 9), bonus = 0;
        int32_t rows[2] = {y, bonus};
        int k = spec_accept(&x, rows, 1);
        agree += k;
        count[rows[0]]++;
    }
    for (int v = 0; v < 8; v++) {
        double e = n * p[v] / pz;
        x2 += (count[v] - e) * (count[v] - e) / e;
        overlap += fmin(p[v] / pz, q[v] / qz);
    }
    assert_true(x2 < 24.32); /* 7 degrees of freedom, alpha 1e-3 */
    /* Gumbel coupling accepts less than the maximal coupling (the overlap) and more than half. */
    assert_true(agree < n * overlap);
    assert_true(agree > 0.75 * n * overlap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accept), cmocka_unit_test(test_counts),
                                       cmocka_unit_test(test_room),
                                       cmocka_unit_test(test_lossless)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
