/* The debug hooks: refused unless they are asked for by name, labelled, and what simulated acceptance gives. */
#include "support/engine.h"
#include "support/oracle.h"

#include "engine/debug.h"

static const char *model_dir = "models/kindling";
static char dir[64];

static void refused(struct fst_engine_opts o, const char *part)
{
    fst_engine *e;

    o.model_dir = model_dir;
    o.context_length = 256;
    o.max_running_requests = 1;
    enum fst_status rc = fst_engine_open(&e, &o);
    if (rc == FST_OK || !strstr(fst_error_text(), part))
        fail_msg("status %d: \"%s\" does not say \"%s\"", rc, fst_error_text(), part);
    assert_null(e);
}

static void test_refused(void **state)
{
    struct fst_engine_opts off[] = {{.debug_drafter = "x.json"},
                                    {.debug_reject_at = 1},
                                    {.simulate_acc_len = 3.5},
                                    {.debug_spoil = "logits@3"},
                                    {.debug_null_model = 5}};
    const char *names[] = {"--debug-drafter", "--debug-reject-at", "--simulate-acc-len",
                           "--debug-spoil", "--debug-null-model"};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(off); i++) {
        refused(off[i], names[i]);
        refused(off[i], "--debug-hooks");
        if (i >= 3)
            continue;
        off[i].debug_hooks = true;
        off[i].spec_algorithm = "none";
        refused(off[i], "drafting");
    }
#define HOOKS .debug_hooks = true
    refused((struct fst_engine_opts){HOOKS, .debug_reject_at = 6}, "[1, 5]");
    refused((struct fst_engine_opts){HOOKS, .simulate_acc_len = 0.5}, "[1, 6]");
    refused((struct fst_engine_opts){HOOKS, .simulate_acc_len = 6.5}, "[1, 6]");
    refused((struct fst_engine_opts){HOOKS, .simulate_acc_len = 2, .simulate_acc_method = "x"},
            "match-expected, multinomial");
    refused((struct fst_engine_opts){HOOKS, .debug_null_model = 5}, "--speculative-algorithm none");
    refused((struct fst_engine_opts){HOOKS, .debug_spoil = "logits"}, "kv@N");
    refused((struct fst_engine_opts){HOOKS, .debug_spoil = "kv@3x"}, "kv@N");
    refused((struct fst_engine_opts){HOOKS, .debug_drafter = "/nowhere/x.json"}, "/nowhere/x.json");
}

static void test_drafter_files(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"[]", "requests: expected an array"},
        {"{\"requests\":[{}]}", "requests[0].prompt: expected an array"},
        {"{\"requests\":[{\"prompt\":[1]}]}", "requests[0].ids"},
        {"{\"requests\":[{\"prompt\":[1],\"ids\":[2,-1]}]}", "requests[0].ids[1]"},
        {"{\"requests\":[{\"prompt\":[4096],\"ids\":[]}]}", "requests[0].prompt[0]"},
        {"{\"requests\":[{\"prompt\":[],\"ids\":[],\"accept\":3}]}", "requests[0].accept"},
        {"{\"requests\":[{\"prompt\":[],\"ids\":[],\"spoil\":[1.5]}]}", "requests[0].spoil[0]"},
        {"{", "byte"}};
    char path[128];

    (void)state;
    snprintf(path, sizeof path, "%s/bad.json", dir);
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        struct fst_engine_opts o = {HOOKS, .debug_drafter = path};
        tmpdir_write(dir, "bad.json", cases[i].text, strlen(cases[i].text));
        refused(o, cases[i].part);
        refused(o, path);
    }
}

/* Mean over 10,000 rounds: exact by the first method at every length, by the second in the middle. */
static void test_lengths(void **state)
{
    static const double want[] = {1, 1.25, 2, 3.4, 4.75, 6};

    (void)state;
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < FST_COUNT(want); i++) {
            struct debug_hooks d = {.acc_len = want[i], .multinomial = m};
            double sum = 0;
            rng_init(&d.rng, 1);
            for (int k = 0; k < 10000; k++) {
                int n = debug_draw_len(&d, 5);
                assert_in_range(n, 1, 6);
                assert_true(m || n == (int)want[i] || n == (int)want[i] + 1);
                sum += n;
            }
            if (!m || i == 3)
                assert_true(sum / 10000 > want[i] - 0.02 && sum / 10000 < want[i] + 0.02);
        }
}

static void test_simulated(void **state)
{
    static const double want[] = {1, 3.4, 6};
    int32_t prompt[] = {0, 70, 71, 72};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(want); i++) {
        struct fst_engine_opts o = {HOOKS, .simulate_acc_len = want[i]};
        fst_engine *e = engine_of_test(o, model_dir, 4096, 2);
        struct fst_engine_info info;
        struct fst_request_opts ro;
        struct fst_request_view v;
        fst_request *r;
        int n = test_size(1000, 4000, 300);

        fst_engine_get_info(e, &info);
        assert_non_null(strstr(info.debug_hooks, "simulate-acc-len="));
        assert_string_equal(info.verify_mode, "static");
        fst_request_opts_default(&ro);
        ro.ids = prompt;
        ro.n_ids = FST_COUNT(prompt);
        ro.max_new_tokens = n;
        ro.ignore_eos = true;
        ro.logprobs = true;
        if (fst_request_submit(e, &ro, &r) < 0)
            fail_msg("%s", fst_error_text());
        engine_finished(r, &v);
        assert_int_equal(v.n, n);
        if (!(v.spec.accept_length > want[i] - 0.15 && v.spec.accept_length < want[i] + 0.15))
            fail_msg("accept length %g instead of %g", v.spec.accept_length, want[i]);
        fst_request_free(r);
        fst_engine_close(e);
    }
}

static void test_null_model(void **state)
{
    int32_t prompt[] = {0, 70, 71, 72};
    struct fst_engine_opts o = {HOOKS, .debug_null_model = 5, .spec_algorithm = "none"};
    fst_engine *e = engine_of_test(o, model_dir, 4096, 2);
    struct fst_engine_info info;
    struct fst_request_opts ro;
    struct fst_request_view v;
    fst_request *r;

    (void)state;
    fst_engine_get_info(e, &info);
    assert_string_equal(info.debug_hooks, "debug-hooks null-model=5");
    fst_request_opts_default(&ro);
    ro.ids = prompt;
    ro.n_ids = FST_COUNT(prompt);
    ro.max_new_tokens = 100;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(fst_request_submit(e, &ro, &r), FST_OK);
        engine_finished(r, &v);
        assert_int_equal(v.n, 100);
        for (size_t i = 0; i < v.n; i++)
            assert_int_equal(v.ids[i], info.vocab_size / 2);
        fst_request_free(r);
    }
    ro.prompt_logprobs_from = 0; /* a row of each prompt token, which it has not */
    assert_int_equal(fst_request_submit(e, &ro, &r), FST_OK);
    while (fst_request_wait(r, 0.1) == FST_ETIMEOUT)
        ;
    fst_request_get_view(r, &v);
    assert_int_equal(v.finish, FST_FINISH_ERROR);
    fst_request_free(r);
    fst_engine_close(e);
}

/* Without hooks there is no label, and with them there is one even if none is used. */
static void test_label(void **state)
{
    struct fst_engine_info info;
    fst_engine *e;

    (void)state;
    e = engine_of_test((struct fst_engine_opts){0}, model_dir, 256, 1);
    fst_engine_get_info(e, &info);
    assert_null(info.debug_hooks);
    fst_engine_close(e);
    e = engine_of_test((struct fst_engine_opts){HOOKS, .spec_algorithm = "none"}, model_dir, 256,
                       1);
    fst_engine_get_info(e, &info);
    assert_string_equal(info.debug_hooks, "debug-hooks");
    fst_engine_close(e);
}

static int load(void **state)
{
    (void)state;
    tmpdir_make(dir, sizeof dir);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    tmpdir_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_drafter_files),
        cmocka_unit_test(test_lengths),    cmocka_unit_test(test_simulated),
        cmocka_unit_test(test_null_model), cmocka_unit_test(test_label)};
    return cmocka_run_group_tests(tests, load, unload);
}
