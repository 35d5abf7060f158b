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

/* Rows with rules are the host's copies: the answers are those of an engine whose rows are its own. */
static struct fst_verdict on_token(void *ud, int64_t n, int32_t id, enum fst_finish ends)
{
    (void)ud;
    (void)id;
    (void)ends;
    return (struct fst_verdict){.force = n == 7 ? 80 : -1, .stop = n == 30, .keep = n};
}

static void test_rules(void **state)
{
    enum { N = 6, NEW = 40 };
    static const struct fst_logit_bias bias[] = {{70, 4}, {71, -100}, {1, -4}};
    static int32_t ids[2][N][NEW];
    static float logprobs[2][N][NEW];
    size_t n[2][N] = {{0}};

    (void)state;
    for (int side = 0; side < 2; side++) {
        struct fst_engine_opts eo = {.model_dir = model_dir,
                                     .device = side ? "cuda" : "cpu",
                                     .context_length = 512,
                                     .verify_mode = "static",
                                     .max_running_requests = N};
        fst_request *r[N];
        struct fst_request_view v;
        fst_engine *e;
        if (fst_engine_open(&e, &eo) < 0)
            fail_msg("%s", fst_error_text());
        for (int i = 0; i < N; i++) {
            struct fst_request_opts o;
            fst_request_opts_default(&o);
            o.ids = stream + 20 * i;
            o.n_ids = (size_t)(30 + 40 * i);
            o.max_new_tokens = NEW;
            o.logprobs = true;
            o.sampling.temperature = i % 2 ? 0.9f : 0;
            o.sampling.has_seed = true;
            o.sampling.seed = 3;
            o.sampling.top_p = i == 3 ? 0.9f : 1;
            o.min_new_tokens = i == 4 ? 9 : 0;
            o.sampling.presence_penalty = 1;
            o.sampling.frequency_penalty = 0.5f;
            o.sampling.repetition_penalty = i == 5 ? 1 : 1.3f;
            o.logit_bias = bias;
            o.n_logit_bias = i % 3 ? FST_COUNT(bias) : 0;
            o.on_token = i > 2 ? on_token : NULL;
            if (fst_request_submit(e, &o, &r[i]) < 0)
                fail_msg("%s", fst_error_text());
        }
        for (int i = 0; i < N; i++) {
            engine_finished(r[i], &v);
            n[side][i] = v.n;
            memcpy(ids[side][i], v.ids, v.n * sizeof *v.ids);
            memcpy(logprobs[side][i], v.logprobs, v.n * sizeof *v.logprobs);
            fst_request_free(r[i]);
        }
        fst_engine_close(e);
    }
    assert_memory_equal(n[0], n[1], sizeof n[0]);
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    assert_memory_equal(logprobs[0], logprobs[1], sizeof logprobs[0]);
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
        cmocka_unit_test(test_rules),
    };
    setenv("FST_TEST_DEVICE", "cuda", 1);
    return cmocka_run_group_tests(tests, load, leave);
}
