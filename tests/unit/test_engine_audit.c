/* The audit finds what must not be and nothing else, gets out of the way, keeps to its share of time; what the
 * recorder writes is run again bit for bit. */
#include "support/engine.h"
#include "support/tmpdir.h"

#include "base/base.h"
#include "firesteel/replay.h"

#include <time.h>

/* Rounds that a row of one output position may be in: behind every rejected draft it comes again. */
enum { TIMES = 6 };

static const char *model_dir = "models/kindling";
static char dir[64];

static fst_engine *open_audited(struct fst_engine_opts o)
{
    o.audit_share = 1;
    if (o.audit_time == 0)
        o.audit_time = 1;
    if (o.record_dir == NULL)
        o.record_dir = dir;
    return engine_of_test(o, model_dir, 4096, 4);
}

static struct fst_verdict on_token(void *ud, int64_t n, int32_t id, enum fst_finish ends)
{
    (void)ud;
    (void)id;
    (void)ends;
    return (struct fst_verdict){.force = n % 5 == 4 ? 700 : -1};
}

static fst_request *submit(fst_engine *e, int i, int64_t max_new)
{
    static const struct fst_logit_bias bias[] = {{3, 2.5f}, {700, -100}, {701, 5}};
    static int32_t prompt[300];
    struct test_rng rng = {.s = (uint64_t)i};
    struct fst_request_opts o;
    fst_request *r;
    int n = 3 + 37 * i % 280; /* 3 ids: i = 0 */

    for (int k = 0; k < n; k++)
        prompt[k] = 2 + test_below(&rng, 4000);
    fst_request_opts_default(&o);
    o.ids = prompt;
    o.n_ids = (size_t)n;
    o.max_new_tokens = max_new;
    o.ignore_eos = i % 2 == 0;
    o.min_new_tokens = i % 5 == 0 ? 9 : 0;
    o.sampling.temperature = (float)(i % 3) * 0.5f;
    o.sampling.top_p = i % 4 == 1 ? 0.8f : 1.0f;
    o.sampling.has_seed = true;
    o.sampling.seed = (uint64_t)i + ((uint64_t)7 << 60);
    if (i % 4 >= 2) {
        o.sampling.presence_penalty = 0.75f;
        o.sampling.frequency_penalty = 0.25f;
        o.sampling.repetition_penalty = 1.5f;
        o.logit_bias = bias;
        o.n_logit_bias = FST_COUNT(bias);
    }
    if (i % 4 == 3) /* what it does not draw is not compared; all else is */
        o.on_token = on_token;
    if (fst_request_submit(e, &o, &r) < 0)
        fail_msg("%s", fst_error_text());
    return r;
}

static void run_to_end(fst_request *r, struct fst_request_view *v)
{
    engine_finished(r, v);
    fst_request_free(r);
}

static void pause_ms(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* Until so many have been looked at. */
static struct fst_audit_stats audited(fst_engine *e, uint64_t n)
{
    struct fst_engine_stats s = {0};
    for (int i = 0; i < 60000; i++) {
        fst_engine_get_stats(e, &s);
        if (s.audit.equal + s.audit.mismatches + s.audit.abandoned >= n)
            return s.audit;
        pause_ms(10);
    }
    fail_msg("%llu equal, %llu mismatches, %llu abandoned after ten minutes, not %llu",
             (unsigned long long)s.audit.equal, (unsigned long long)s.audit.mismatches,
             (unsigned long long)s.audit.abandoned, (unsigned long long)n);
    return s.audit;
}

/* Names in the folder, sorted. */
static int records(char name[][128], int most)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.' && n < most)
            snprintf(name[n++], 128, "%.127s", e->d_name);
    if (d)
        closedir(d);
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (strcmp(name[k], name[i]) < 0) {
                char t[128];
                memcpy(t, name[i], 128);
                memcpy(name[i], name[k], 128);
                memcpy(name[k], t, 128);
            }
    return n;
}

static void remove_records(void)
{
    char name[64][128], path[256];
    int n = records(name, 64);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%.63s/%.127s", dir, name[i]);
        unlink(path);
    }
}

static int clean(void **state)
{
    (void)state;
    remove_records();
    return 0;
}

/* Requests of all kinds, alone and together, on each layout: everything is as it was. */
static void test_equal(void **state)
{
    static const char *const layouts[] = {"unified-fp8", "unified-bf16", "paged"};
    enum { N = 12 };
    char name[4][128];

    (void)state;
    for (size_t l = 0; l < (size_t)test_size(3, 3, 1); l++) {
        fst_engine *e = open_audited((struct fst_engine_opts){.kv_layout = layouts[l]});
        struct fst_request_view v;
        fst_request *r[N];
        int n = test_size(N, N, 4);
        for (int i = 0; i < n; i++)
            r[i] = submit(e, i, 60);
        for (int i = 0; i < n; i++)
            run_to_end(r[i], &v);
        struct fst_audit_stats a = audited(e, (uint64_t)n);
        assert_int_equal(a.equal, n);
        assert_int_equal(a.mismatches, 0);
        assert_int_equal(a.waiting, 0);
        assert_false(a.drafting_off);
        assert_true(a.tokens > 0);
        struct fst_engine_stats s;
        fst_engine_get_stats(e, &s);
        assert_int_equal(s.slots_used, 0);
        assert_int_equal(s.records, 0);
        fst_engine_close(e);
    }
    assert_int_equal(records(name, 4), 0);
}

static void replay(const char *name, struct fst_replay_report *r)
{
    char path[256];
    snprintf(path, sizeof path, "%.63s/%.127s", dir, name);
    if (fst_replay(path, &(struct fst_replay_opts){.threads = 1}, r) < 0)
        fail_msg("%s", fst_error_text());
}

/* One row of logits, or of KV, is wrong: it is found, written down, and nothing is drafted any more. */
static void test_mismatch(void **state)
{
    static const char *const spoils[] = {"logits@20", "kv@70"};
    char name[4][128], path[256];
    struct stat st;

    (void)state;
    for (size_t i = 0; i < FST_COUNT(spoils); i++) {
        fst_engine *e =
            open_audited((struct fst_engine_opts){.debug_hooks = true, .debug_spoil = spoils[i]});
        struct fst_request_view v;
        struct fst_replay_report r;
        run_to_end(submit(e, 2, 60), &v); /* 77 prompt ids */
        assert_true(v.spec.verify_steps > 0);
        struct fst_audit_stats a = audited(e, 1);
        assert_int_equal(a.mismatches, 1);
        assert_true(a.drafting_off);
        run_to_end(submit(e, 4, 30), &v);
        assert_int_equal(v.spec.verify_steps, 0);
        fst_engine_close(e);

        assert_int_equal(records(name, 4), 1);
        snprintf(path, sizeof path, "%.63s/%.127s", dir, name[0]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        replay(name[0], &r);
        assert_string_equal(r.reason, "audit");
        assert_non_null(strstr(r.detail, "differs"));
        if (i == 0) { /* one row, and this run of the same steps does not have it */
            assert_non_null(strstr(r.detail, "token 20 "));
            assert_in_range(r.differing, 1, TIMES);
            assert_non_null(strstr(r.first, "position 96:"));
            assert_int_equal(r.audited_differing, 1);
            assert_non_null(strstr(r.audited_first, "token 20:"));
        } else { /* all rows that saw it */
            assert_true(r.differing > 1);
            assert_true(r.audited_differing > 1);
        }
        assert_int_equal(r.audited_requests, 1);
        remove_records();
    }
}

/* A record of sound steps is equal in every row, hash and draft: prompts in chunks, batches that change, prefixes
 * from the cache, places lost and found again.  What triggers it is a fault in another request. */
static void test_replay_equal(void **state)
{
    struct fst_engine_opts o[] = {
        {.chunked_prefill_size = 7, .verify_mode = "compact"},
        {.kv_layout = "unified-bf16", .max_running_requests = 3, .verify_mode = "static"},
        {.kv_layout = "paged", .chunked_prefill_size = 64, .verify_mode = "cap"},
        {.spec_algorithm = "none"},
        {.spec_algorithm = "mtp", .chunked_prefill_size = 9, .verify_mode = "static"},
        {.context_length = 512, .max_total_tokens = 1024, .index_keys = "fp8"},
    };
    char name[4][128];

    (void)state;
    for (size_t k = 0; k < FST_COUNT(o); k++) {
        struct fst_request_view v;
        struct fst_replay_report rep;
        fst_request *r[8];
        int n = test_size(8, 8, 3);
        if (test_size(0, 0, 1) && k % 3 != 0)
            continue;
        o[k].debug_hooks = true;
        o[k].debug_spoil = "logits@90"; /* beyond what all but the last one give */
        fst_engine *e = open_audited(o[k]);
        for (int i = 0; i < n; i++)
            r[i] = submit(e, i, 40 + i);
        for (int i = 0; i < n; i++)
            run_to_end(r[i], &v);
        run_to_end(submit(e, 1, 41), &v); /* again: from the cache */
        run_to_end(submit(e, 0, 120), &v);
        assert_int_equal(v.n, 120);
        audited(e, (uint64_t)n + 2);
        fst_engine_close(e);
        assert_int_equal(records(name, 4), 1);
        replay(name[0], &rep);
        if (rep.differing < 1 || rep.differing > TIMES ||
            !strstr(rep.first, "position 92: hash of the logits"))
            fail_msg("%zu: %llu rows differ, first: %s", k, (unsigned long long)rep.differing,
                     rep.first);
        assert_int_equal(rep.left_out, 0);
        assert_true(rep.rows > (uint64_t)test_size(300, 300, 100));
        assert_int_equal(rep.hashes, rep.rows);
        if (k < 5) /* auto drafts when it pays */
            assert_true(k == 3 ? rep.drafts == 0 : rep.drafts > (uint64_t)test_size(100, 100, 20));
        remove_records();
    }
}

/* So many files, the newest ones. */
static void test_files(void **state)
{
    fst_engine *e = open_audited((struct fst_engine_opts){
        .debug_hooks = true, .debug_spoil = "logits@3", .record_files = 2});
    char name[8][128], first[128];
    struct fst_request_view v;
    struct fst_engine_stats s;

    (void)state;
    for (int i = 0; i < 5; i++) {
        run_to_end(submit(e, i, 9), &v);
        audited(e, (uint64_t)i + 1);
        if (i == 0) {
            assert_int_equal(records(name, 8), 1);
            memcpy(first, name[0], sizeof first);
        }
        pause_ms(3);
    }
    fst_engine_get_stats(e, &s);
    assert_int_equal(s.records, 5);
    assert_int_equal(s.audit.mismatches, 5);
    assert_int_equal(records(name, 8), 2);
    assert_string_not_equal(name[0], first);
    fst_engine_close(e);
    remove_records();
}

/* A long audit is under way: who comes is served at once and as always, and the audit ends later. */
static void test_yields(void **state)
{
    fst_engine *e = open_audited((struct fst_engine_opts){.audit_time = 1});
    struct fst_request_view v;
    struct timespec t0, t1;
    int n = test_size(4, 4, 1);

    (void)state;
    run_to_end(submit(e, 6, test_size(1500, 1500, 150)), &v);
    for (int i = 0; i < n; i++) {
        pause_ms(30);
        clock_gettime(CLOCK_MONOTONIC, &t0);
        fst_request *r = submit(e, 10, 1);
        engine_finished(r, &v);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        assert_true(v.queue_s < 0.5); /* a slice is 2 ms; machines of tests are busy */
        fst_request_free(r);
    }
    struct fst_audit_stats a = audited(e, 1 + (uint64_t)n);
    assert_int_equal(a.mismatches, 0);
    assert_true(a.equal >= (uint64_t)n);
    fst_engine_close(e);
}

/* No more than its share of time, and a slice. */
static void test_share_of_time(void **state)
{
    fst_engine *e = open_audited((struct fst_engine_opts){.audit_time = 0.02, .threads = 1});
    struct fst_request_view v;
    struct fst_engine_stats s;
    struct timespec t0, t1;

    (void)state;
    clock_gettime(CLOCK_MONOTONIC, &t0); /* later than the engine's own start: the bound is below */
    run_to_end(submit(e, 6, test_size(800, 800, 60)), &v);
    for (int i = 0; i < 20; i++) {
        pause_ms(100);
        fst_engine_get_stats(e, &s);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        double wall = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
        if ((double)s.audit.ns * 1e-9 > 0.02 * (wall + 1) + 0.1)
            fail_msg("%.3f s of %.3f s", (double)s.audit.ns * 1e-9, wall);
    }
    assert_true(s.audit.tokens > 0);
    fst_engine_close(e);
}

/* Nothing is compared where it could not be, and nobody by chance when nobody is to be. */
static void test_off(void **state)
{
    struct fst_engine_opts o[] = {{.audit_share = 0},
                                  {.audit_share = 1, .debug_hooks = true, .simulate_acc_len = 2}};
    struct fst_request_view v;
    struct fst_engine_stats s;

    (void)state;
    for (size_t i = 0; i < FST_COUNT(o); i++) {
        fst_engine *e = engine_of_test(o[i], model_dir, 1024, 2);
        run_to_end(submit(e, 2, 20), &v);
        pause_ms(50);
        fst_engine_get_stats(e, &s);
        assert_int_equal(s.audit.equal + s.audit.mismatches + s.audit.tokens, 0);
        assert_int_equal(s.audit.waiting, 0);
        fst_engine_close(e);
    }
    struct fst_engine_opts bad = {.model_dir = model_dir, .audit_share = 1.5};
    fst_engine *e;
    assert_true(fst_engine_open(&e, &bad) < 0);
    assert_non_null(strstr(fst_error_text(), "--audit-share"));
    bad = (struct fst_engine_opts){.model_dir = model_dir, .record_dir = "/nowhere/at/all"};
    assert_true(fst_engine_open(&e, &bad) < 0);
    assert_non_null(strstr(fst_error_text(), "--crash-dump-folder"));
}

/* What is no record, or not all of one, is refused by file, line and field. */
static void test_bad_records(void **state)
{
    fst_engine *e =
        open_audited((struct fst_engine_opts){.debug_hooks = true, .debug_spoil = "logits@3"});
    char name[4][128], path[256];
    struct fst_request_view v;
    struct fst_replay_report r;
    struct fst_replay_opts o = {0};
    size_t len;

    (void)state;
    run_to_end(submit(e, 2, 9), &v);
    audited(e, 1);
    fst_engine_close(e);
    assert_int_equal(records(name, 4), 1);
    char *text = tmpdir_read(dir, name[0], &len);
    remove_records();
    snprintf(path, sizeof path, "%s/bad.jsonl", dir);
    for (size_t cut = 0; cut < len - 1; cut += 1 + len / 40) { /* torn anywhere */
        tmpdir_write(dir, "bad.jsonl", text, cut);
        assert_int_equal(fst_replay(path, &o, &r), FST_EFORMAT);
        assert_non_null(strstr(fst_error_text(), path));
    }
    static const char *const swap[][3] = {
        {"\"redacted\":false", "\"redacted\":true ", "redacted record"},
        {"\"record\":2", "\"record\":7", "version 7"},
        {"\"weights\":\"", "\"weights\":\"f", "weights"},
        {"\"n_prompt\":", "\"n_prompt\":-", "line 2: n_prompt"},
        {"\"spans\":[", "\"spams\":[", "spans: expected an array"},
    };
    for (size_t i = 0; i < FST_COUNT(swap); i++) {
        struct buf b = {0};
        const char *at = strstr(text, swap[i][0]);
        assert_non_null(at);
        buf_append(&b, text, (size_t)(at - text));
        buf_puts(&b, swap[i][1]);
        buf_puts(&b, at + strlen(swap[i][0]));
        tmpdir_write(dir, "bad.jsonl", b.data, b.len);
        buf_release(&b);
        assert_true(fst_replay(path, &o, &r) < 0);
        if (!strstr(fst_error_text(), swap[i][2]))
            fail_msg("\"%s\" does not say \"%s\"", fst_error_text(), swap[i][2]);
    }
    free(text);
    remove_records();
}

/* More steps than the ring holds: the last ones are kept, and run again from where they begin. */
static void test_last_steps(void **state)
{
    fst_engine *e = open_audited((struct fst_engine_opts){.debug_hooks = true,
                                                          .debug_spoil = "logits@60",
                                                          .spec_algorithm = "none",
                                                          .context_length = 8192});
    char name[4][128];
    struct fst_request_view v;
    struct fst_replay_report rep;

    (void)state;
    if (test_size(0, 0, 1)) /* minutes under sanitizers */
        skip();
    run_to_end(submit(e, 2, 4300), &v);
    audited(e, 1);
    fst_engine_close(e);
    assert_int_equal(records(name, 4), 1);
    replay(name[0], &rep);
    assert_int_equal(rep.steps, 4096);
    assert_int_equal(rep.rows, 4096);
    assert_int_equal(rep.differing, 0); /* the spoiled one is long gone */
    assert_int_equal(rep.audited_differing, 1);
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
#define ONE(f) cmocka_unit_test_setup(f, clean)
    const struct CMUnitTest tests[] = {
        ONE(test_equal), ONE(test_mismatch),    ONE(test_replay_equal),
        ONE(test_files), ONE(test_yields),      ONE(test_share_of_time),
        ONE(test_off),   ONE(test_bad_records), ONE(test_last_steps)};
    return cmocka_run_group_tests(tests, load, unload);
}
