/* Slots and pages against a plain model: who owns which page, checked after every operation. */
#include "kv/kv.h"
#include "support/cm.h"

enum { SLOTS = 7, PAGES = 23, CONTEXT = 256 * 9 };

struct model {
    bool used[SLOTS + 1], held[PAGES + 1];
    int64_t n_pages[SLOTS + 1], committed[SLOTS + 1];
    int free_pages, free_slots;
};

/* kv_check, and the model's view: the pages of a slot are its own, nobody else's, and never move. */
static void compare(const struct kv *kv, const struct model *m)
{
    bool seen[PAGES + 1] = {true};
    if (kv_check(kv) < 0)
        fail_msg("%s", fst_error_text());
    assert_int_equal(kv->n_free_pages, m->free_pages);
    assert_int_equal(kv->n_free_slots, m->free_slots);
    for (int s = 1; s <= SLOTS; s++) {
        assert_int_equal(kv->slots[s].used, m->used[s]);
        assert_int_equal(kv->slots[s].n_pages, m->n_pages[s]);
        assert_int_equal(kv->slots[s].n_committed, m->committed[s]);
        for (int i = 0; i < kv->page_stride; i++) {
            int page = kv->pages[s * kv->page_stride + i];
            if (i >= m->n_pages[s]) {
                assert_int_equal(page, 0);
                continue;
            }
            assert_true(page > 0 && page <= PAGES);
            assert_false(seen[page]);
            seen[page] = true;
        }
    }
}

static void step(struct kv *kv, struct model *m, struct test_rng *r)
{
    int s = 1 + test_below(r, SLOTS), got;
    switch (test_below(r, 4)) {
    case 0: {
        enum fst_status rc = kv_slot_open(kv, &got);
        if (m->free_slots == 0) {
            assert_int_equal(rc, FST_EBUDGET);
            break;
        }
        assert_int_equal(rc, FST_OK);
        assert_true(got >= 1 && got <= SLOTS && !m->used[got]);
        m->used[got] = true;
        m->free_slots--;
        break;
    }
    case 1: {
        if (!m->used[s])
            break;
        int64_t n = test_below(r, CONTEXT + 40), pages = div_up(n, 256);
        int64_t more = FST_MAX(0, pages - m->n_pages[s]);
        enum fst_status rc = kv_reserve(kv, s, n);
        if (n > CONTEXT) {
            assert_int_equal(rc, FST_EINVAL);
        } else if (more > m->free_pages) {
            assert_int_equal(rc, FST_EBUDGET);
        } else {
            assert_int_equal(rc, FST_OK);
            m->n_pages[s] += more;
            m->free_pages -= (int)more;
        }
        break;
    }
    case 2:
        if (!m->used[s] || m->n_pages[s] * 256 == m->committed[s])
            break;
        m->committed[s] += test_below(r, (int)(m->n_pages[s] * 256 - m->committed[s]) + 1);
        kv_commit(kv, s, m->committed[s]);
        break;
    default:
        if (!m->used[s] || test_below(r, 3))
            break;
        kv_slot_close(kv, s);
        m->used[s] = false;
        m->free_slots++;
        m->free_pages += (int)m->n_pages[s];
        m->n_pages[s] = m->committed[s] = 0;
        break;
    }
}

static void test_random_days(void **state)
{
    struct kv_spec spec = {.n_layers = 1,
                           .ratio = {128},
                           .head_dim = 64,
                           .rope_dim = 32,
                           .window = 4,
                           .block = 1,
                           .format = ROW_F32,
                           .n_slots = SLOTS,
                           .n_pages = PAGES,
                           .context_length = CONTEXT};
    (void)state;
    for (uint64_t seed = 1; seed <= (uint64_t)test_size(60, 2000, 6); seed++) {
        struct kv kv;
        struct model m = {.free_pages = PAGES, .free_slots = SLOTS};
        struct test_rng r = {seed};
        assert_int_equal(kv_init(&kv, &spec), FST_OK);
        for (int i = 0; i < 400; i++) {
            step(&kv, &m, &r);
            compare(&kv, &m);
        }
        kv_release(&kv);
    }
}

/* kv_check must find what it is there for. */
static void test_check_finds(void **state)
{
    struct kv_spec spec = {.n_layers = 1,
                           .ratio = {128},
                           .head_dim = 64,
                           .rope_dim = 32,
                           .window = 4,
                           .block = 1,
                           .format = ROW_F32,
                           .n_slots = 2,
                           .n_pages = 4,
                           .context_length = 1024};
    struct kv kv;
    int slot;
    (void)state;
    assert_int_equal(kv_init(&kv, &spec), FST_OK);
    assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
    assert_int_equal(kv_reserve(&kv, slot, 300), FST_OK);
    assert_int_equal(kv_check(&kv), FST_OK);
    int32_t *pages = kv.pages + slot * kv.page_stride;
    int32_t keep = pages[1];
#define FOUND(what, change, undo)                                                                  \
    do {                                                                                           \
        change;                                                                                    \
        assert_int_equal(kv_check(&kv), FST_EINTERNAL);                                            \
        assert_non_null(strstr(fst_error_text(), what));                                           \
        undo;                                                                                      \
        assert_int_equal(kv_check(&kv), FST_OK);                                                   \
    } while (0)
    FOUND("held 2 times, counted 1", pages[1] = pages[0], pages[1] = keep);
    FOUND("there twice", kv.free_pages[0] = kv.free_pages[1], kv.free_pages[0] = 4);
    FOUND("free and held", kv.free_pages[0] = keep, kv.free_pages[0] = 4);
    FOUND("counted 2", kv.page_refs[keep]++, kv.page_refs[keep]--);
    FOUND("counted 1", kv.kept[keep] = KV_KEPT, kv.kept[keep] = KV_NOT_KEPT);
    FOUND("idle pages", kv.n_idle_pages++, kv.n_idle_pages--);
    FOUND("outside", pages[1] = 5, pages[1] = keep);
    FOUND("outside", pages[1] = 0, pages[1] = keep);
    FOUND("beyond", pages[2] = 3, pages[2] = 0);
    FOUND("neither free nor held", kv.n_free_pages--, kv.n_free_pages++);
    FOUND("committed", kv.slots[slot].n_committed = 513, kv.slots[slot].n_committed = 0);
    FOUND("restored", kv.slots[slot].n_restored = 1, kv.slots[slot].n_restored = 0);
    FOUND("null slot", kv.slots[0].used = true, kv.slots[0].used = false);
    FOUND("neither free nor open", kv.n_free_slots--, kv.n_free_slots++);
#undef FOUND
    kv_release(&kv);
}

/* A new tenant is told apart, and starts empty. */
static void test_generations(void **state)
{
    struct kv_spec spec = {.n_layers = 1,
                           .ratio = {0},
                           .head_dim = 64,
                           .rope_dim = 32,
                           .window = 4,
                           .block = 1,
                           .format = ROW_F32,
                           .n_slots = 1,
                           .n_pages = 4,
                           .context_length = 1024};
    struct kv kv;
    int slot;
    (void)state;
    assert_int_equal(kv_init(&kv, &spec), FST_OK);
    for (uint32_t i = 1; i < 5; i++) {
        assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
        assert_int_equal(kv.slots[slot].generation, i);
        assert_int_equal(kv.slots[slot].n_committed, 0);
        assert_int_equal(kv_reserve(&kv, slot, 700), FST_OK);
        kv_commit(&kv, slot, 700);
        kv_slot_close(&kv, slot);
    }
    kv_release(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_days),
                                       cmocka_unit_test(test_check_finds),
                                       cmocka_unit_test(test_generations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
