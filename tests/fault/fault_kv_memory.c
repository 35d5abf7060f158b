/* Every allocation of kv_init, tree_init, tiers_open and the checks fails once: a status, nothing lost, nothing half
 * made; behind them nobody allocates. */
#include "kv/host.h"
#include "kv/tiers.h"
#include "support/kv_contents.h"

static void test_init(void **state)
{
    struct kv_spec spec = {.n_layers = 4,
                           .ratio = {0, 4, 128, 0},
                           .head_dim = 512,
                           .rope_dim = 64,
                           .index_dim = 128,
                           .window = 8,
                           .block = 6,
                           .format = ROW_FP8,
                           .index_format = INDEX_FP4,
                           .n_slots = 2,
                           .n_pages = 3,
                           .context_length = 700};
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kv kv;
        mem_fail_at(n);
        enum fst_status rc = kv_init(&kv, &spec);
        mem_fail_at(0);
        if (rc == FST_OK) {
            assert_true(n == 4 * 2 + 2 + 2 + 6 + 1); /* rows, states, index, tables; then none */
            kv_release(&kv);
            break;
        }
        assert_int_equal(rc, FST_ENOMEM);
        assert_int_equal(kv.n_blocks, 0);
        assert_null(kv.pages);
        kv_release(&kv); /* harmless */
    }
}

static void test_check(void **state)
{
    struct kv_spec spec = {.n_layers = 1,
                           .head_dim = 64,
                           .rope_dim = 32,
                           .window = 4,
                           .block = 1,
                           .format = ROW_F32,
                           .n_slots = 2,
                           .n_pages = 3,
                           .context_length = 700};
    struct kv kv;
    (void)state;
    assert_int_equal(kv_init(&kv, &spec), FST_OK);
    mem_fail_at(1);
    assert_int_equal(kv_check(&kv), FST_ENOMEM);
    mem_fail_at(0);
    assert_int_equal(kv_check(&kv), FST_OK);
    uint64_t before = mem_count();
    int slot;
    assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
    assert_int_equal(kv_reserve(&kv, slot, 500), FST_OK);
    kv_commit(&kv, slot, 500);
    kv_slot_close(&kv, slot);
    assert_true(mem_count() == before); /* the step path allocates nothing */
    kv_release(&kv);
}

static void test_tree(void **state)
{
    struct kv_spec spec = {.n_layers = 2,
                           .ratio = {4, 128},
                           .head_dim = 64,
                           .rope_dim = 32,
                           .index_dim = 32,
                           .window = 4,
                           .block = 1,
                           .format = ROW_F32,
                           .index_format = INDEX_F32,
                           .n_slots = 2,
                           .n_pages = 8,
                           .context_length = 1000};
    static const struct tree_salt salt = {{1}};
    int32_t ids[1000] = {0};
    struct tree_opts o;
    struct tree t = {0};
    struct kv kv;
    (void)state;
    assert_int_equal(kv_init(&kv, &spec), FST_OK);
    tree_opts_default(&o);
    o.budget_bytes = 8 << 20;
    for (uint64_t n = 1;; n++) {
        mem_fail_at(n);
        enum fst_status rc = tree_init(&t, &kv, &o);
        mem_fail_at(0);
        if (rc == FST_OK) {
            assert_true(n == 2 + 1); /* tables, arena; then none */
            break;
        }
        assert_int_equal(rc, FST_ENOMEM);
        assert_null(t.tables);
        assert_null(t.arena);
        assert_null(kv.reclaim); /* and the memory works without a tree */
        tree_release(&t);        /* harmless */
    }
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fail_at(n);
        assert_int_equal(tree_check(&t), FST_ENOMEM);
        mem_fail_at(0);
    }
    assert_int_equal(tree_check(&t), FST_OK);
    uint64_t before = mem_count();
    for (int i = 0; i < 20; i++) { /* other ids each time: pages and bytes run short */
        struct tree_hold hold = {0};
        struct tree_hit hit;
        int slot, other;
        ids[0] = i;
        assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
        assert_int_equal(kv_reserve(&kv, slot, 900), FST_OK);
        kv_commit(&kv, slot, 900);
        assert_int_equal(tree_take(&t, slot, &salt, ids, 900, 900, &hold), FST_OK);
        tree_match(&t, &salt, ids, 901, &hit);
        assert_int_equal(kv_slot_open(&kv, &other), FST_OK);
        struct tree_hold second = {0};
        assert_int_equal(tree_restore(&t, other, &hit, 901, &second), FST_OK);
        kv_slot_close(&kv, other);
        kv_slot_close(&kv, slot);
        tree_unlock(&t, &second);
        tree_unlock(&t, &hold);
    }
    assert_true(t.n_evicted_pages > 0);
    assert_true(mem_count() == before);
    tree_release(&t);
    kv_release(&kv);
}

/* With a tier: nobody goes on without his memory, stores are closed, and copies and loads allocate nothing. */
static void test_tiers(void **state)
{
    struct kv_spec spec = contents_spec(2, 8);
    static const struct tree_salt salt = {{1}};
    int64_t parts[3], before = 0;
    int32_t ids[1000] = {0};
    struct tree_opts o;
    struct tiers_opts xo;
    struct tiers *x;
    struct tree t = {0};
    struct kv kv;
    (void)state;
    assert_int_equal(kv_init(&kv, &spec), FST_OK);
    tree_opts_default(&o);
    tiers_opts_default(&xo);
    o.budget_bytes = 1 << 20;
    assert_int_equal(tree_init(&t, &kv, &o), FST_OK);
    kv_page_bytes(&kv, parts);
    for (uint64_t n = 1;; n++) {
        struct store *host;
        struct host_opts ho = {1 << 20, HOST_LAYER_FIRST, parts, 3, 0, NULL};
        assert_int_equal(host_open(&host, &ho), FST_OK); /* closed by tiers_open */
        mem_fail_at(n);
        enum fst_status rc = tiers_open(&x, &t, &host, 1, &xo);
        mem_fail_at(0);
        if (rc == FST_OK) {
            assert_true(n == 2 + 1); /* itself, tables; then none */
            break;
        }
        assert_int_equal(rc, FST_ENOMEM);
        assert_null(x);
        assert_null(t.watch.page); /* and the tree works without tiers */
    }
    before = (int64_t)mem_count();
    for (int i = 0; i < 20; i++) {
        struct tree_hold hold = {0};
        struct tree_hit hit;
        int slot;
        ids[0] = i % 7;
        assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
        tree_match(&t, &salt, ids, 901, &hit);
        if (tiers_load(x, slot, &salt, ids, 901, &hit, &hold) == FST_OK) {
            tiers_wait(x);
            assert_true(tiers_end(x, slot));
            tree_match(&t, &salt, ids, 901, &hit);
            assert_int_equal(tree_restore(&t, slot, &hit, 901, &hold), FST_OK);
        } else {
            assert_true(i < 7);
            assert_int_equal(kv_reserve(&kv, slot, 901), FST_OK);
        }
        kv_commit(&kv, slot, 900);
        assert_int_equal(tree_take(&t, slot, &salt, ids, 900, 900, &hold), FST_OK);
        kv_slot_close(&kv, slot);
        tree_unlock(&t, &hold);
        tiers_wait(x);
    }
    assert_true((int64_t)mem_count() == before);
    tiers_close(x);
    tree_release(&t);
    kv_release(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_init), cmocka_unit_test(test_check),
                                       cmocka_unit_test(test_tree), cmocka_unit_test(test_tiers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
