/* prop_engine_text_far.c - tiers below KV memory that the host cannot touch: answers are those of an engine that
 * computes everything.
 *
 * The engine's device is support/far.h's, a double of a card: memory that is unmapped but while its kernels and
 * copies run, work that is done no sooner than somebody waits for its queue.  A copy to a tier that begins before
 * its page is computed, or a load into pages whose last owner is still at work, gives other answers here. */
#include "support/disk.h"
#include "support/far.h"
#include "support/tiers.h"

/* Instead of what loads a card's module. */
enum fst_status device_open(const struct device **out, const char *name)
{
    *out = strcmp(name, "cpu") == 0 ? NULL : &far_device;
    return FST_OK;
}

/* Host memory in both layouts, host memory and disk, disk alone. */
enum { TIERS = 4 };
static fst_engine *open_case(int i, const char *dir, struct fst_engine_opts o)
{
    o.context_length = SHORT;
    o.max_total_tokens = POOL;
    o.prefix_cache_bytes = snapshots();
    o.check_memory = true;
    o.kv_host_layout = host_layouts[i == 1];
    if (i < 3)
        o.kv_host_bytes = 64 << 20;
    if (i >= 2)
        o.kv_disk_dir = dir;
    return open_engine(o);
}

static void test_residues(void **state)
{
    static const int edges[] = {65, 255, 256, 257, 383, 512, 513};
    int n = test_size(2, (int)FST_COUNT(edges), 1);
    char dir[64];

    (void)state;
    for (int i = 0; i < TIERS; i++) {
        size_t c = i < 3 ? (size_t)i + (i > 0) : 0; /* with drafts: fp8 rows, bf16, paged */
        tmpdir_make(dir, sizeof dir);
        fst_engine *e = open_case(i, dir, cells[c].o);
        cold_of(&cells[c].o);
        struct fst_engine_stats s = stats_of(e);
        assert_int_equal(s.n_tiers, i == 2 ? 2 : 1);
        for (int k = 0; k < n; k++)
            check_residue(e, edges[(3 * i + k) % (int)FST_COUNT(edges)], cells[c].name);
        s = settled(e);
        assert_int_equal(s.loads_incomplete, 0);
        assert_true(s.tier[0].n_got > 0);
        fst_engine_close(e);
        disk_rm(dir);
    }
}

/* From one server to the next, over a folder; written at the end, or as soon as it is kept. */
static void test_restart(void **state)
{
    static const char *const policies[] = {"write_back", "write_through"};
    char dir[64];
    struct answer a;

    (void)state;
    cold_of(&(struct fst_engine_opts){0});
    for (int i = 0; i < 2; i++) {
        tmpdir_make(dir, sizeof dir);
        struct fst_engine_opts o = {.kv_write_policy = policies[i]};
        for (int round = 0; round < 3; round++) {
            fst_engine *e = open_case(2 + i, dir, o);
            assert_int_equal(ask(e, stream, 600, 4, &a), round ? 599 : 0);
            compare(&a, stream, 600, 4, policies[i]);
            fst_engine_close(e);
        }
        disk_rm(dir);
    }
}

/* Many at once, few pages: loads into pages that others have just left, copies of pages that are just full. */
static void test_pressure(void **state)
{
    struct test_rng r = {.s = 11};
    int rounds = test_size(2, 60, 1);

    (void)state;
    cold_of(&(struct fst_engine_opts){0});
    fst_engine *e = open_tiered((struct fst_engine_opts){.context_length = 1024,
                                                         .max_total_tokens = 2048,
                                                         .max_running_requests = CROWD,
                                                         .prefix_cache_bytes = 12 << 20});
    for (int round = 0; round < rounds; round++)
        crowd(e, &r);
    struct fst_engine_stats s = settled(e);
    assert_int_equal(s.kv_tokens_used, 0);
    print_message("%llu loads (%llu not whole), %llu of %llu prompt tokens cached\n",
                  (unsigned long long)s.loads, (unsigned long long)s.loads_incomplete,
                  (unsigned long long)s.cached_tokens, (unsigned long long)s.prompt_tokens);
    fst_engine_close(e);
}

static int leave(void **state)
{
    unload(state);
    if (far_state.n) /* all of it was given back */
        print_error("%d pieces of the device's memory are left\n", far_state.n);
    return far_state.n ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residues),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_pressure),
    };
    setenv("FST_TEST_DEVICE", "cuda", 1);
    return cmocka_run_group_tests(tests, load, leave);
}
