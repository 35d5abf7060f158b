/* Every allocation of kv_init and kv_check fails once: a status, nothing lost, nothing half made. */
#include "kv/kv.h"
#include "support/cm.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_init), cmocka_unit_test(test_check)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
