/* The tiers at their edges: what is copied when, what is not copied twice, what a load is worth, whose
 * prefixes are found, what is written at the end. */
#include "base/clock.h"
#include "kv/host.h"
#include "kv/tiers.h"
#include "kv/tiers_far.h"
#include "support/kv_contents.h"
#include "support/far.h"
#include "support/kv_keeper.h"

enum { PAGES = 12 };
static const struct tree_salt alice = {{1}}, bob = {{0, 0, 0, 1}};

struct fixture {
    struct kv kv;
    struct tree t;
    struct tiers *x;
    struct store *inner;
    struct keeper keeper;
    int woken;
};

static void wake(void *ud)
{
    __atomic_add_fetch((int *)ud, 1, __ATOMIC_RELAXED);
}

static void start_again(struct fixture *f, enum tiers_policy policy, bool lasts)
{
    struct kv_spec spec = contents_spec(3, PAGES);
    struct tree_opts o;
    struct tiers_opts x;
    struct store *s;
    tree_opts_default(&o);
    o.budget_bytes = 1 << 17;
    o.chunk_bytes = 256;
    tiers_opts_default(&x);
    x.policy = policy;
    x.wake = wake;
    x.wake_ud = &f->woken;
    assert_int_equal(kv_init(&f->kv, &spec), FST_OK);
    assert_int_equal(tree_init(&f->t, &f->kv, &o), FST_OK);
    s = keeper_open(&f->keeper, f->inner, "host");
    s->lasts = lasts;
    if (tiers_open(&f->x, &f->t, &s, 1, &x) < 0)
        fail_msg("%s", fst_error_text());
}

static void start(struct fixture *f, enum tiers_policy policy, bool lasts)
{
    struct kv_spec spec = contents_spec(3, PAGES);
    int64_t parts[3];
    *f = (struct fixture){0};
    assert_int_equal(kv_init(&f->kv, &spec), FST_OK);
    kv_page_bytes(&f->kv, parts);
    kv_release(&f->kv);
    struct host_opts h = {1 << 20, HOST_PAGE_FIRST_DIRECT, parts, 3, 0, NULL};
    assert_int_equal(host_open(&f->inner, &h), FST_OK);
    start_again(f, policy, lasts);
}

static void check(struct fixture *f)
{
    if (tree_check(&f->t) < 0 || tiers_check(f->x) < 0)
        fail_msg("%s", fst_error_text());
}

static void stop(struct fixture *f)
{
    check(f);
    tiers_close(f->x);
    tree_release(&f->t);
    kv_release(&f->kv);
}

static void forget(struct fixture *f)
{
    stop(f);
    assert_int_equal(host_check(f->inner), FST_OK);
    f->inner->ops->close(f->inner);
}

static void counting(int32_t *ids)
{
    for (int i = 0; i < CONTEXT; i++)
        ids[i] = 3 * i;
}

/* A request that goes on from what is known, computes up to n ids, and leaves a snapshot.  Positions that it
 * was spared. */
static int64_t run(struct fixture *f, const struct tree_salt *salt, const int32_t *ids, int n)
{
    struct tree_hold hold = {0};
    struct tree_hit hit;
    int slot;
    assert_int_equal(kv_slot_open(&f->kv, &slot), FST_OK);
    tree_match(&f->t, salt, ids, n, &hit);
    if (tiers_load(f->x, slot, salt, ids, n, &hit, &hold) == FST_OK) {
        tiers_wait(f->x);
        assert_false(tiers_loading(f->x, slot));
        assert_true(tiers_end(f->x, slot));
        check(f);
        tree_match(&f->t, salt, ids, n, &hit);
    }
    if (hit.n_restore)
        assert_int_equal(tree_restore(&f->t, slot, &hit, n, &hold), FST_OK);
    else
        assert_int_equal(kv_reserve(&f->kv, slot, n), FST_OK);
    kv_commit(&f->kv, slot, n);
    assert_int_equal(tree_take(&f->t, slot, salt, ids, n, n, &hold), FST_OK);
    tree_unlock(&f->t, &hold);
    kv_slot_close(&f->kv, slot);
    tiers_wait(f->x);
    check(f);
    return hit.n_restore;
}

static uint64_t objects(struct fixture *f)
{
    return f->inner->stats.n_objects;
}

static void test_write_through(void **state)
{
    struct fixture f;
    struct tiers_stats s;
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids);
    start(&f, TIERS_WRITE_THROUGH, false);
    assert_int_equal(run(&f, &alice, ids, 600), 0);
    assert_int_equal(objects(&f), 3); /* two pages and the snapshot */
    assert_int_equal(run(&f, &alice, ids, 700), 600);
    assert_int_equal(objects(&f), 4);
    tree_flush(&f.t);
    assert_int_equal(run(&f, &alice, ids, 800), 700);
    assert_int_equal(objects(&f), 6);          /* the third page is full now */
    assert_int_equal(f.inner->stats.n_put, 6); /* nothing was written twice */
    tiers_get_stats(f.x, &s);
    assert_int_equal(s.n_loads, 1);
    assert_int_equal(s.n_incomplete, 0);
    assert_int_equal(s.loaded_tokens, 700);
    assert_int_equal(s.store[0].n_got, 3);
    assert_string_equal(s.name[0], "host");
    assert_true(f.woken > 0);
    forget(&f);
}

/* Fewer than 64 tokens more than the tree has are computed. */
static void test_threshold(void **state)
{
    struct fixture f;
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids);
    start(&f, TIERS_WRITE_THROUGH, false);
    run(&f, &alice, ids, 400);
    run(&f, &alice, ids, 463);
    run(&f, &alice, ids, 464);
    assert_true(tree_drop(&f.t, &alice, ids, 463));
    assert_true(tree_drop(&f.t, &alice, ids, 464));
    assert_int_equal(run(&f, &alice, ids, 464), 400); /* 463 are there, 63 more */
    assert_true(tree_drop(&f.t, &alice, ids, 464));
    assert_int_equal(run(&f, &alice, ids, 465), 464);
    forget(&f);

    start(&f, TIERS_WRITE_THROUGH, false);
    run(&f, &alice, ids, 63);
    run(&f, &bob, ids, 64);
    tree_flush(&f.t);
    assert_int_equal(run(&f, &alice, ids, 500), 0);
    assert_int_equal(run(&f, &bob, ids, 500), 64);
    forget(&f);
}

static void test_selective(void **state)
{
    struct fixture f;
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids);
    start(&f, TIERS_WRITE_SELECTIVE, false);
    run(&f, &alice, ids, 600);
    assert_int_equal(objects(&f), 0);
    assert_int_equal(run(&f, &alice, ids, 900), 600);
    assert_int_equal(objects(&f), 3); /* what it went on from, not what it left */
    tree_flush(&f.t);
    assert_int_equal(run(&f, &alice, ids, 900), 600);
    forget(&f);
}

static void test_write_back(void **state)
{
    struct fixture f;
    int32_t ids[CONTEXT], other[CONTEXT];
    (void)state;
    counting(ids);
    counting(other);
    other[0]++;
    start(&f, TIERS_WRITE_BACK, false);
    run(&f, &alice, ids, 1300); /* 5 pages of 12 */
    assert_int_equal(objects(&f), 0);
    run(&f, &alice, other, 1300);
    assert_true(objects(&f) > 0); /* 2 are left */
    tree_flush(&f.t);
    assert_int_equal(run(&f, &alice, ids, 1301), 1300);
    forget(&f);
}

/* What one may go on from is found under the same salt alone, in the tree as below it. */
static void test_salts(void **state)
{
    struct fixture f;
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids);
    start(&f, TIERS_WRITE_THROUGH, false);
    assert_int_equal(run(&f, &alice, ids, 900), 0);
    assert_int_equal(run(&f, &alice, ids, 200), 0);
    tree_flush(&f.t);
    assert_int_equal(run(&f, &bob, ids, 901), 0);
    assert_int_equal(run(&f, &bob, ids, 201), 0);
    assert_int_equal(run(&f, &alice, ids, 901), 900);
    tree_flush(&f.t);
    assert_int_equal(run(&f, &alice, ids, 201), 200);
    forget(&f);
}

static void test_clear(void **state)
{
    struct fixture f;
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids);
    start(&f, TIERS_WRITE_THROUGH, false);
    run(&f, &alice, ids, 900);
    tree_flush(&f.t);
    tiers_clear(f.x);
    check(&f);
    assert_int_equal(run(&f, &alice, ids, 901), 0); /* even if the worker has not begun */
    assert_int_equal(f.keeper.cleared, 1);
    tree_flush(&f.t);
    tiers_clear(f.x);
    tiers_wait(f.x);
    assert_int_equal(objects(&f), 0);
    run(&f, &alice, ids, 902);
    tree_flush(&f.t);
    assert_int_equal(run(&f, &alice, ids, 903), 902); /* and it goes on as before */
    forget(&f);
}

/* A new process over the same objects; where they last, what the tree had at the end is among them. */
static void test_restart(void **state)
{
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids);
    for (int policy = 0; policy < 3; policy++)
        for (int lasts = 0; lasts < 2; lasts++) {
            struct fixture f;
            start(&f, (enum tiers_policy)policy, lasts);
            run(&f, &alice, ids, 700);
            stop(&f);
            assert_int_equal(f.keeper.closed, 1);
            start_again(&f, (enum tiers_policy)policy, lasts);
            bool there = policy == TIERS_WRITE_THROUGH || lasts;
            assert_int_equal(run(&f, &alice, ids, 800), there ? 700 : 0);
            forget(&f);
        }
}

/* With so long to write as a third of it takes, it ends in time, and what was used last is there. */
static void test_end_in_time(void **state)
{
    enum { TALKS = 4, ENDS = 5, CALL_MS = 50, CALLS = TALKS * (1 + ENDS) };
    static int32_t ids[TALKS][CONTEXT];
    (void)state;
    for (int late = 0; late < 3; late++) {
        struct fixture f;
        start(&f, TIERS_WRITE_BACK, true);
        for (int k = 0; k < TALKS; k++) {
            counting(ids[k]);
            ids[k][0] = k + 1;
            for (int i = 1; i <= ENDS; i++)
                run(&f, &alice, ids[k], 512 + 10 * i);
        }
        assert_int_equal(objects(&f), 0);
        f.keeper.fixed_us = 1000 * CALL_MS;
        check(&f);
        int64_t begin = clock_ns();
        if (late == 0)
            tiers_close(f.x);
        else
            tiers_close_by(f.x, begin + (late == 1 ? 300000000 : -1));
        int64_t ms = (clock_ns() - begin) / 1000000;
        assert_int_equal(f.keeper.hurried, late > 0);
        assert_int_equal(f.keeper.closed, 1);
        tree_release(&f.t);
        kv_release(&f.kv);
        int64_t n = (int64_t)objects(&f);
        if (late == 0) /* two pages at once, snapshots one by one */
            assert_true(ms >= CALLS * CALL_MS && n == TALKS * (2 + ENDS));
        else if (late == 1)
            assert_true(ms < CALLS * CALL_MS && n >= 3 && n < TALKS * (2 + ENDS));
        else
            assert_true(ms < 300 && n <= 2);
        f.keeper.fixed_us = 0;
        start_again(&f, TIERS_WRITE_BACK, true);
        if (late < 2)
            assert_int_equal(run(&f, &alice, ids[TALKS - 1], 600), 512 + 10 * ENDS);
        if (late == 0)
            assert_int_equal(run(&f, &alice, ids[0], 600), 512 + 10 * ENDS);
        forget(&f);
    }
}

/* A path of which the middle is missing: its front is used as far as a snapshot stands on it. */
static void test_missing(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    struct tree_hit hit;
    int32_t ids[CONTEXT];
    int slot;
    (void)state;
    counting(ids);
    start(&f, TIERS_WRITE_THROUGH, false);
    run(&f, &alice, ids, 300);
    run(&f, &alice, ids, 1300);
    tree_flush(&f.t);
    f.keeper.lose = 100; /* everything is named and nothing is given */
    assert_int_equal(kv_slot_open(&f.kv, &slot), FST_OK);
    tree_match(&f.t, &alice, ids, 1400, &hit);
    assert_int_equal(tiers_load(f.x, slot, &alice, ids, 1400, &hit, &hold), FST_OK);
    assert_int_equal(f.kv.slots[slot].n_pages, 6);
    check(&f);
    tiers_wait(f.x);
    assert_false(tiers_end(f.x, slot));
    check(&f);
    assert_int_equal(f.kv.slots[slot].n_pages, 0);
    assert_int_equal(f.t.n_nodes, 0);
    assert_int_equal(f.t.n_expected, 0);
    /* Stopped before it began, or at any time. */
    f.keeper.lose = 0;
    for (int i = 0; i < 20; i++) {
        f.keeper.slow_us = 50 * (i % 5);
        tree_match(&f.t, &alice, ids, 1400, &hit);
        if (tiers_load(f.x, slot, &alice, ids, 1400, &hit, &hold) < 0)
            break;
        usleep((useconds_t)(20 * i));
        tiers_stop(f.x, slot);
        tiers_wait(f.x);
        tiers_end(f.x, slot);
        check(&f);
        tree_flush(&f.t);
    }
    kv_slot_close(&f.kv, slot);
    assert_int_equal(run(&f, &alice, ids, 1400), 1300);
    forget(&f);
}

static void test_no_room(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    struct tree_hit hit;
    int32_t ids[CONTEXT];
    int slot, other;
    (void)state;
    counting(ids);
    start(&f, TIERS_WRITE_THROUGH, false);
    run(&f, &alice, ids, 1300);
    tree_flush(&f.t);
    assert_int_equal(kv_slot_open(&f.kv, &other), FST_OK);
    assert_int_equal(kv_reserve(&f.kv, other, 256 * 6), FST_OK);
    kv_slot_open(&f.kv, &slot);
    tree_match(&f.t, &alice, ids, 1400, &hit);
    assert_int_equal(tiers_load(f.x, slot, &alice, ids, 256 * 6 + 40, &hit, &hold), FST_EBUDGET);
    int32_t all[600];
    int n = 0; /* and pages, but no chunks */
    while (tree_expect(&f.t, 1, &all[n]) == FST_OK)
        n++;
    assert_int_equal(tiers_load(f.x, slot, &alice, ids, 1400, &hit, &hold), FST_EAGAIN);
    assert_int_equal(f.kv.slots[slot].n_pages, 0);
    assert_int_equal(hold.node, 0);
    while (n > 0)
        tree_forgo(&f.t, all[--n]);
    kv_slot_close(&f.kv, slot);
    kv_slot_close(&f.kv, other);
    forget(&f);
}

static void test_options(void **state)
{
    struct fixture f;
    struct tiers_opts o;
    struct tiers *x;
    struct store *s;
    (void)state;
    start(&f, TIERS_WRITE_THROUGH, false);
    tiers_close(f.x);
    tiers_opts_default(&o);
    o.min_gain = 0;
    s = keeper_open(&f.keeper, f.inner, "host");
    assert_int_equal(tiers_open(&x, &f.t, &s, 1, &o), FST_EINVAL);
    assert_null(x);
    assert_non_null(strstr(fst_error_text(), "min_gain is 0, expected 1 or more"));
    assert_int_equal(f.keeper.closed, 2);
    tiers_close(NULL);
    f.x = NULL;
    tree_release(&f.t);
    kv_release(&f.kv);
    f.inner->ops->close(f.inner);
}

/* ------------------------------------------------------------------ on a card */

struct pattern {
    struct stream *s;
    uint32_t seed;
    uint8_t *bytes; /* (1 << 16) that the queue still reads */
    size_t at;
    bool check;
};

/* The run is written by what the stream has still to do, or is what was written. */
static enum fst_status pattern_run(void *ud, uint8_t *run, size_t bytes)
{
    struct pattern *p = ud;
    uint8_t *want = p->bytes + p->at, got[4096];
    p->at += bytes;
    assert_true(p->at <= 1 << 16 && bytes <= sizeof got);
    for (size_t i = 0; i < bytes; i++)
        want[i] = (uint8_t)mix(p->seed, p->at + i);
    if (!p->check)
        return stream_copy(p->s, run, want, bytes);
    assert_int_equal(device_copy(&far_device, got, run, bytes), FST_OK);
    assert_memory_equal(got, want, bytes);
    return FST_OK;
}

static void pattern(struct kv *kv, struct stream *s, int slot, int64_t page, uint32_t seed,
                    uint8_t *bytes, bool check)
{
    struct pattern p = {s, seed, bytes, 0, check};
    int32_t at = kv->pages[(int64_t)slot * kv->page_stride + page];
    assert_int_equal(kv_page_runs(kv, at, pattern_run, &p), FST_OK);
}

/* A page whose kernels have still to run is copied when they have; one that is loaded is written when those of
 * the page's last owner have.  Into far stores, which copy from and to the card themselves, and others. */
static void test_far(void **state)
{
    enum { PART = 1 << 16 };
    static uint8_t bytes[8][PART];
    (void)state;
    for (int near = 0; near < 2; near++)
        for (int layout = 0; layout < 2; layout++) {
            struct kv_spec spec = contents_spec(2, 4);
            struct kv kv;
            struct tree t;
            struct tree_opts to;
            struct tiers_opts xo;
            struct tiers *x;
            struct kernels k = {0};
            struct stream steps, side;
            struct keeper keeper = {0};
            struct store *s;
            struct tree_hold hold = {0};
            struct tree_hit hit;
            int64_t parts[3];
            int32_t ids[CONTEXT];
            int slot, other;
            spec.device = &far_device;
            counting(ids);
            assert_true(far_kernels(&k, sizeof k, true));
            assert_int_equal(stream_init(&steps, &far_device, NULL, PRECISION_REFERENCE, 0),
                             FST_OK);
            assert_int_equal(stream_init(&side, &far_device, NULL, PRECISION_REFERENCE, 0), FST_OK);
            assert_int_equal(kv_init(&kv, &spec), FST_OK);
            tree_opts_default(&to);
            to.budget_bytes = 1 << 17;
            to.chunk_bytes = 256;
            to.kernels = &k;
            to.stream = &steps;
            assert_int_equal(tree_init(&t, &kv, &to), FST_OK);
            kv_page_bytes(&kv, parts);
            struct host_opts h = {1 << 20, (enum host_layout)layout, parts, 3,
                                  0,       near ? NULL : &side};
            struct store *store;
            assert_int_equal(host_open(&store, &h), FST_OK);
            assert_int_equal(store->far, !near);
            tiers_opts_default(&xo);
            x = NULL;
            s = keeper_open(&keeper, store, "host");
            assert_int_equal(tiers_open(&x, &t, &s, 1, &xo), FST_EINVAL);
            assert_non_null(strstr(fst_error_text(), "are expected for far"));
            xo.stream = &side;
            far_state.fail_alloc = 1;
            s = keeper_open(&keeper, store, "host");
            assert_int_equal(tiers_open(&x, &t, &s, 1, &xo), FST_ENOMEM);
            assert_null(x);
            assert_int_equal(tiers_open(&x, &t, &store, 1, &xo), FST_OK);

            assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
            assert_int_equal(kv_reserve(&kv, slot, 600), FST_OK);
            for (int i = 0; i < 2; i++) /* nobody waits for this one */
                pattern(&kv, &steps, slot, i, 7 + (uint32_t)i, bytes[i], false);
            kv_commit(&kv, slot, 600);
            assert_int_equal(tree_insert(&t, slot, &alice, ids, 600, &hold), 2);
            tiers_wait(x);
            assert_int_equal(store->stats.n_objects, 2);
            assert_int_equal(tree_take(&t, slot, &alice, ids, 600, 600, &hold), FST_OK);
            tiers_wait(x);
            assert_int_equal(store->stats.n_objects, 3);
            tree_unlock(&t, &hold);
            kv_slot_close(&kv, slot);
            tree_flush(&t);
            assert_int_equal(kv.n_free_pages, 4);

            assert_int_equal(kv_slot_open(&kv, &other), FST_OK);
            assert_int_equal(kv_reserve(&kv, other, 1024), FST_OK);
            for (int i = 0; i < 4; i++)
                pattern(&kv, &steps, other, i, 100, bytes[2 + i], false);
            kv_slot_close(&kv, other); /* and is gone before that has run */
            assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
            tree_match(&t, &alice, ids, 610, &hit);
            assert_int_equal(tiers_load(x, slot, &alice, ids, 610, &hit, &hold), FST_OK);
            tiers_wait(x);
            assert_true(tiers_end(x, slot));
            assert_int_equal(stream_sync(&steps), FST_OK);
            tree_match(&t, &alice, ids, 610, &hit);
            assert_int_equal(hit.n_restore, 600);
            assert_int_equal(tree_restore(&t, slot, &hit, 610, &hold), FST_OK);
            assert_int_equal(stream_sync(&steps), FST_OK);
            for (int i = 0; i < 2; i++)
                pattern(&kv, &steps, slot, i, 7 + (uint32_t)i, bytes[i], true);
            tree_unlock(&t, &hold);
            kv_slot_reset(&kv, slot);
            tree_flush(&t);
            tree_match(&t, &alice, ids, 610, &hit);
            far_state.fail_copy = 1; /* what the device could not bring is not believed */
            assert_int_equal(tiers_load(x, slot, &alice, ids, 610, &hit, &hold), FST_OK);
            tiers_wait(x);
            assert_false(tiers_end(x, slot));
            assert_int_equal(t.n_snapshots, 0);
            assert_int_equal(far_state.fail_copy, 0);
            kv_slot_close(&kv, slot);
            tiers_close(x);
            tree_release(&t);
            kv_release(&kv);
            stream_release(&side);
            stream_release(&steps);
            assert_int_equal(far_state.n, 0);
        }
}

/* More pages than are on their way at once (TIERS_FAR_LANES batches of 8): each comes back where it was. */
static void test_far_many(void **state)
{
    enum { MANY = 12 * TIERS_FAR_LANES + 1, PART = 1 << 16, N = MANY * KERN_PAGE };
    static uint8_t bytes[MANY][PART];
    static int32_t ids[N + 1];
    (void)state;
    for (int i = 0; i <= N; i++)
        ids[i] = i % 100;
    for (int near = 0; near < 2; near++) {
        struct kv_spec spec = contents_spec(2, MANY + 2);
        struct kv kv;
        struct tree t;
        struct tree_opts to;
        struct tiers_opts xo;
        struct tiers *x;
        struct kernels k = {0};
        struct stream steps, side;
        struct store *store;
        struct tree_hold hold = {0};
        struct tree_hit hit;
        int64_t parts[3];
        int slot;
        spec.device = &far_device;
        spec.context_length = N + KERN_PAGE;
        assert_true(far_kernels(&k, sizeof k, true));
        assert_int_equal(stream_init(&steps, &far_device, NULL, PRECISION_REFERENCE, 0), FST_OK);
        assert_int_equal(stream_init(&side, &far_device, NULL, PRECISION_REFERENCE, 0), FST_OK);
        assert_int_equal(kv_init(&kv, &spec), FST_OK);
        tree_opts_default(&to);
        to.budget_bytes = 1 << 17;
        to.chunk_bytes = 256;
        to.kernels = &k;
        to.stream = &steps;
        assert_int_equal(tree_init(&t, &kv, &to), FST_OK);
        kv_page_bytes(&kv, parts);
        struct host_opts h = {64 << 20, HOST_PAGE_FIRST_DIRECT, parts, 3, 0, near ? NULL : &side};
        assert_int_equal(host_open(&store, &h), FST_OK);
        tiers_opts_default(&xo);
        xo.stream = &side;
        assert_int_equal(tiers_open(&x, &t, &store, 1, &xo), FST_OK);
        assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
        assert_int_equal(kv_reserve(&kv, slot, N), FST_OK);
        for (int i = 0; i < MANY; i++)
            pattern(&kv, &steps, slot, i, 7 + (uint32_t)i, bytes[i], false);
        kv_commit(&kv, slot, N);
        assert_int_equal(tree_take(&t, slot, &alice, ids, N, N, NULL), FST_OK);
        for (int i = 0; i < MANY; i++)
            tiers_wait(x);
        assert_int_equal(store->stats.n_objects, MANY + 1);
        kv_slot_close(&kv, slot);
        tree_flush(&t);
        assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
        assert_int_equal(kv_reserve(&kv, slot, N), FST_OK);
        for (int i = 0; i < MANY; i++) /* somebody else's, in all of them */
            pattern(&kv, &steps, slot, i, 1000 + (uint32_t)i, bytes[i], false);
        assert_int_equal(stream_sync(&steps), FST_OK);
        kv_slot_reset(&kv, slot);
        tree_match(&t, &alice, ids, N + 1, &hit);
        assert_int_equal(tiers_load(x, slot, &alice, ids, N + 1, &hit, &hold), FST_OK);
        tiers_await(x, slot);
        assert_true(tiers_end(x, slot));
        tree_match(&t, &alice, ids, N + 1, &hit);
        assert_int_equal(hit.n_restore, N);
        assert_int_equal(tree_restore(&t, slot, &hit, N + 1, &hold), FST_OK);
        assert_int_equal(stream_sync(&steps), FST_OK);
        for (int i = 0; i < MANY; i++)
            pattern(&kv, &steps, slot, i, 7 + (uint32_t)i, bytes[i], true);
        tree_unlock(&t, &hold);
        kv_slot_close(&kv, slot);
        tiers_close(x);
        tree_release(&t);
        kv_release(&kv);
        stream_release(&side);
        stream_release(&steps);
        assert_int_equal(far_state.n, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_through), cmocka_unit_test(test_threshold),
        cmocka_unit_test(test_selective),     cmocka_unit_test(test_write_back),
        cmocka_unit_test(test_salts),         cmocka_unit_test(test_clear),
        cmocka_unit_test(test_restart),       cmocka_unit_test(test_missing),
        cmocka_unit_test(test_no_room),       cmocka_unit_test(test_options),
        cmocka_unit_test(test_end_in_time),   cmocka_unit_test(test_far),
        cmocka_unit_test(test_far_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
