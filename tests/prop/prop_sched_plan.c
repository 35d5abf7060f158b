/* prop_sched_plan.c - invariants of the step planner over random queues, and no starvation. */
#include "support/cm.h"

#include "sched/sched.h"

enum { N = 12 };

static void test_invariants(void **state)
{
    int rounds = test_size(20000, 1000000, 2000);
    struct test_rng r = {.s = 1};

    (void)state;
    for (int k = 0; k < rounds; k++) {
        struct sched_item item[N];
        struct step_span span[N];
        struct step step;
        int n = 1 + test_below(&r, N), decoding_rows = 0, prefill_rows = 0, logits = 0,
            seen[N + 1] = {0};
        bool any = false;
        struct sched_limits lim = {.prefill_rows = 1 + test_below(&r, 100)};
        lim.prefill_rows_while_decoding = 1 + test_below(&r, lim.prefill_rows);
        lim.max_rows = lim.prefill_rows + N * 6;
        lim.max_logits = N * 6 + 1 + test_below(&r, 8);
        for (int i = 0; i < n; i++) {
            item[i] = (struct sched_item){.slot = i + 1, .decoding = test_below(&r, 2)};
            item[i].n_committed = test_below(&r, 500);
            item[i].n_known = item[i].n_committed + 1;
            if (item[i].decoding)
                item[i].n_draft = test_below(&r, 6);
            else
                item[i].n_known += test_below(&r, 300);
            item[i].wants_logits = item[i].decoding || test_below(&r, 4);
            item[i].wants_all_logits = !item[i].decoding && test_below(&r, 6) == 0;
        }
        sched_plan(&lim, item, n, span, &step);
        for (int s = 0; s < step.n_spans; s++) {
            const struct step_span *p = &step.span[s];
            const struct sched_item *it = &item[p->slot - 1];
            bool ends = it->n_committed + p->n_rows == it->n_known;
            assert_int_equal(seen[p->slot]++, 0); /* one span per slot */
            assert_true(p->n_rows >= 1);
            if (it->decoding) {
                any = true;
                assert_int_equal(prefill_rows, 0); /* decoding spans come first */
                assert_int_equal(p->n_rows, 1 + it->n_draft);
                assert_int_equal(p->logits, STEP_LOGITS_ALL);
                decoding_rows += p->n_rows;
                logits += p->n_rows;
            } else {
                prefill_rows += p->n_rows;
                assert_int_equal(p->kind, STEP_PREFILL);
                assert_true(it->n_committed + p->n_rows <= it->n_known);
                if (it->wants_all_logits)
                    assert_int_equal(p->logits, STEP_LOGITS_ALL);
                else
                    assert_int_equal(p->logits, ends && it->wants_logits ? STEP_LOGITS_LAST
                                                                         : STEP_LOGITS_NONE);
                logits += p->logits == STEP_LOGITS_ALL    ? p->n_rows
                          : p->logits == STEP_LOGITS_LAST ? 1
                                                          : 0;
            }
        }
        for (int i = 0; i < n; i++) /* nobody who decodes waits */
            if (item[i].decoding)
                assert_int_equal(seen[i + 1], 1);
        assert_int_equal(step.n_rows, decoding_rows + prefill_rows);
        assert_true(prefill_rows <= (any ? lim.prefill_rows_while_decoding : lim.prefill_rows));
        assert_true(logits <= lim.max_logits);
        assert_true(step.n_spans > 0); /* every step makes progress */
    }
}

/* First come, first served: the first prefilling request gets rows in every step it can. */
static void test_order(void **state)
{
    struct sched_limits lim = {
        .max_rows = 80, .prefill_rows = 32, .prefill_rows_while_decoding = 8, .max_logits = 20};
    struct sched_item item[3] = {{.slot = 1, .n_known = 100, .wants_logits = true},
                                 {.slot = 2, .n_known = 6, .wants_logits = true},
                                 {.slot = 3, .n_known = 100, .n_committed = 99, .decoding = true}};
    struct step_span span[3];
    struct step step;

    (void)state;
    sched_plan(&lim, item, 2, span, &step);
    assert_int_equal(step.n_spans, 1);
    assert_int_equal(step.span[0].slot, 1);
    assert_int_equal(step.span[0].n_rows, 32);
    item[0].n_committed = 96;
    sched_plan(&lim, item, 3, span, &step);
    assert_int_equal(step.n_spans, 3);
    assert_int_equal(step.span[0].slot, 3);
    assert_int_equal(step.span[1].slot, 1);
    assert_int_equal(step.span[1].n_rows, 4);
    assert_int_equal(step.span[2].slot, 2);
    assert_int_equal(step.span[2].n_rows, 4); /* 8 while somebody decodes */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_invariants),
                                       cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
