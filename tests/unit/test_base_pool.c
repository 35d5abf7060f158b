/* test_base_pool.c - every index exactly once, whatever the chunk, the threads and the timing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <unistd.h>

#include "base/pool.h"

struct marks {
    unsigned char *seen; /* (n) */
    int64_t chunk, n;
    int n_threads;
    _Atomic int64_t calls;
    _Atomic int bad;
    _Atomic uint64_t workers; /* bit per worker id seen */
};

static void mark(void *ud, int64_t first, int64_t last, int worker)
{
    struct marks *m = ud;

    /* asserts of cmocka jump, which other threads must not */
    if (first % m->chunk != 0 || last > m->n || last - first > m->chunk || last <= first)
        m->bad++;
    if (last != m->n && last - first != m->chunk)
        m->bad++;
    if (worker < 0 || worker >= m->n_threads)
        m->bad++;
    for (int64_t i = first; i < last; i++)
        m->seen[i]++;
    atomic_fetch_or(&m->workers, UINT64_C(1) << worker);
    m->calls++;
}

static void check_run(struct pool *p, int n_threads, int64_t n, int64_t chunk)
{
    struct marks m = {.n = n, .chunk = chunk, .n_threads = n_threads};

    m.seen = mem_calloc((size_t)n + 1, 1);
    assert_non_null(m.seen);
    pool_run(p, n, chunk, mark, &m);
    assert_int_equal(m.bad, 0);
    assert_int_equal(m.calls, div_up(n, chunk));
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(m.seen[i], 1);
    mem_free(m.seen);
}

static void test_each_index_once(void **state)
{
    static const int threads[] = {1, 2, 3, 8};
    static const int64_t sizes[] = {0, 1, 2, 7, 64, 1000};
    static const int64_t chunks[] = {1, 3, 64, 5000};
    struct pool *p;

    (void)state;
    for (size_t t = 0; t < FST_COUNT(threads); t++) {
        assert_int_equal(pool_new(&p, threads[t]), FST_OK);
        assert_int_equal(pool_threads(p), threads[t]);
        for (int round = 0; round < 20; round++)
            for (size_t s = 0; s < FST_COUNT(sizes); s++)
                for (size_t c = 0; c < FST_COUNT(chunks); c++)
                    check_run(p, threads[t], sizes[s], chunks[c]);
        pool_free(p);
    }
    check_run(NULL, 1, 100, 7);
    assert_int_equal(pool_threads(NULL), 1);
    pool_free(NULL);
}

/* Short loops in a row, with pauses on both sides of the 50 us after which threads sleep. */
static void test_sleep_and_wake(void **state)
{
    struct pool *p;

    (void)state;
    assert_int_equal(pool_new(&p, 4), FST_OK);
    for (int i = 0; i < 300; i++) {
        check_run(p, 4, 16, 1);
        if (i % 3 == 1)
            usleep(30 + (unsigned)i % 50);
        if (i % 30 == 2)
            usleep(2000);
    }
    usleep(2000);
    pool_free(p);
}

static void nap(void *ud, int64_t first, int64_t last, int worker)
{
    _Atomic uint64_t *workers = ud;
    (void)first;
    (void)last;
    atomic_fetch_or(workers, UINT64_C(1) << worker);
    usleep(20000);
}

/* Two bodies that sleep take two threads: the loop is shared, not run by the caller alone; and the
 * caller, which has nothing left to claim, waits for the other beyond its spin. */
static void test_work_is_shared(void **state)
{
    _Atomic uint64_t workers = 0;
    struct pool *p;

    (void)state;
    assert_int_equal(pool_new(&p, 2), FST_OK);
    for (int i = 0; i < 50 && workers != 3; i++)
        pool_run(p, 2, 1, nap, &workers);
    assert_int_equal(workers, 3);
    pool_free(p);
}

static void test_bad_counts(void **state)
{
    struct pool *p;

    (void)state;
    assert_int_equal(pool_new(&p, -1), FST_EINVAL);
    assert_null(p);
    assert_int_equal(pool_new(&p, 257), FST_EINVAL);
    assert_non_null(strstr(fst_error_text(), "257"));
    assert_int_equal(pool_new(&p, 0), FST_OK);
    assert_true(pool_threads(p) >= 1);
    pool_free(p);
    mem_fail_at(1);
    assert_int_equal(pool_new(&p, 2), FST_ENOMEM);
    mem_fail_at(0);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_index_once),
        cmocka_unit_test(test_sleep_and_wake),
        cmocka_unit_test(test_work_is_shared),
        cmocka_unit_test(test_bad_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
