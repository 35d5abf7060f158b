/* prop_engine_text_tiers.c - the promise again, with so few pages that what is known has to come back from
 * below: what a prompt is spared changes nothing of its answer.
 *
 * As prop_engine_text_prefix.c, but between two requests of a conversation others push it out of the tree.
 * After every step of the engine all of KV memory is accounted for. */
#include "support/disk.h"
#include "support/tiers.h"

#include <unistd.h>

static void test_residues(void **state)
{
    static const int edges[] = {2, 64, 65, 127, 128, 129, 255, 256, 257, 383, 384, 511, 512, 513};
    struct test_rng r = {.s = 3};
    int some = test_size(1, 256, 1);

    (void)state;
    for (size_t c = 0; c < FST_COUNT(cells); c += (size_t)test_size(1, 1, 8)) {
        struct fst_engine_opts o = cells[c].o;
        o.kv_host_layout = host_layouts[c % 2];
        fst_engine *e = open_tiered(o);
        cold_of(&o);
        for (size_t i = 0; i < FST_COUNT(edges); i++)
            if (some == 256 || (i + 3 * c) % FST_COUNT(edges) == 3)
                check_residue(e, edges[i], cells[c].name);
        for (int i = 0; i < some; i++) /* long: every residue of a page */
            check_residue(e, some == 256 ? 300 + i % 256 : 65 + test_below(&r, 520), cells[c].name);
        assert_int_equal(stats_of(e).loads_incomplete, 0);
        fst_engine_close(e);
    }
}

/* Conversations take turns; each finds itself below. */
static void test_turns(void **state)
{
    enum { TALKS = 3 };
    static int32_t ids[TALKS][SHORT];
    int turns = test_size(4, 8, 2);

    (void)state;
    for (size_t c = 0; c < FST_COUNT(cells); c += (size_t)test_size(2, 1, 8)) {
        struct fst_engine_opts o = cells[c].o, plain = cells[c].o;
        o.kv_host_layout = host_layouts[c % 2];
        fst_engine *e = open_tiered(o);
        plain.disable_prefix_cache = true;
        fst_engine *whole = open_engine(plain); /* which drafts like e */
        int n[TALKS], known[TALKS] = {0};
        cold_of(&o);
        for (int k = 0; k < TALKS; k++) {
            n[k] = 280 + 60 * k;
            memcpy(ids[k], stream + 300 * k, (size_t)n[k] * sizeof **ids);
        }
        for (int t = 0; t < turns * TALKS; t++) {
            int k = t % TALKS;
            struct answer a;
            settled(e);
            size_t cached = ask(e, ids[k], n[k], MAX_NEW, &a);
            struct fst_spec_stats spec = last_spec;
            compare(&a, ids[k], n[k], MAX_NEW, cells[c].name);
            ask(whole, ids[k], n[k], MAX_NEW, &a);
            if (memcmp(&spec, &last_spec, sizeof spec) != 0)
                fail_msg("%s, turn %d: %llu of %llu drafts accepted, cold %llu of %llu",
                         cells[c].name, t, (unsigned long long)spec.accepted,
                         (unsigned long long)spec.drafted, (unsigned long long)last_spec.accepted,
                         (unsigned long long)last_spec.drafted);
            if (known[k] && cached < (size_t)known[k] - 1)
                fail_msg("%s, turn %d of %d ids: %zu cached, %d known", cells[c].name, t, n[k],
                         cached, known[k]);
            memcpy(ids[k] + n[k], a.ids, a.n * sizeof **ids);
            known[k] = n[k] + (int)a.n;
            n[k] = known[k] + 9;
            memcpy(ids[k] + known[k], stream + 40 * t % 1000, 9 * sizeof **ids);
        }
        struct fst_engine_stats s = settled(e);
        print_message("%s: %llu loads, %llu tokens\n", cells[c].name, (unsigned long long)s.loads,
                      (unsigned long long)s.loaded_tokens);
        assert_true(s.loads >= (uint64_t)(turns - 1));
        assert_string_equal(s.tier[0].name, "host");
        assert_true(s.tier[0].got_bytes > 0);
        fst_engine_close(whole);
        fst_engine_close(e);
    }
}

/* Nothing of one salt is found under another below the tree either; and what is flushed is gone there too. */
static void test_salt(void **state)
{
    fst_engine *e = open_tiered((struct fst_engine_opts){0});
    struct answer a;

    (void)state;
    assert_int_equal(collect(submit(e, stream, 300, 3, 1), &a), 0);
    push_out(e, 0);
    assert_int_equal(collect(submit(e, stream, 300, 3, 2), &a), 0);
    push_out(e, 1);
    assert_int_equal(collect(submit(e, stream, 300, 3, 1), &a), 299);
    push_out(e, 0);
    assert_int_equal(collect(submit(e, stream, 300, 3, 2), &a), 299);
    push_out(e, 1);
    fst_engine_flush_prefixes(e);
    assert_int_equal(collect(submit(e, stream, 300, 3, 2), &a), 0);
    struct fst_engine_stats s = settled(e);
    push_out(e, 2);
    assert_int_equal(collect(submit(e, stream, 300, 3, 2), &a), 299);
    assert_true(stats_of(e).loads > s.loads);
    /* At any moment of its copies. */
    for (int i = 0; i < test_size(20, 200, 3); i++) {
        ask(e, stream, 600, 1, &a);
        usleep((useconds_t)(100 * (i % 7)));
        fst_engine_flush_prefixes(e);
        assert_int_equal(ask(e, stream, 600, 1, &a), 0);
        fst_engine_flush_prefixes(e);
    }
    fst_engine_close(e);
}

/* When it is copied: at the second use, or when few pages are left. */
static void test_policies(void **state)
{
    static const char *const policies[] = {"write_through_selective", "write_back"};

    (void)state;
    cold_of(&(struct fst_engine_opts){0});
    for (int p = 0; p < 2; p++) {
        fst_engine *e = open_tiered((struct fst_engine_opts){.kv_write_policy = policies[p]});
        struct answer a;
        ask(e, stream, 300, 3, &a);
        assert_int_equal(settled(e).tier[0].n_put, 0);
        assert_int_equal(ask(e, stream, 310, 3, &a), 299);
        if (p == 0)
            assert_true(settled(e).tier[0].n_put > 0);
        /* Few chunks are left, so all goes there bit by bit: a page and four snapshots. */
        for (int waited = 0; p == 1 && stats_of(e).tier[0].n_put < 5; waited++) {
            assert_true(waited < 60000);
            usleep(1000);
        }
        push_out(e, p);
        size_t cached = ask(e, stream, 320, 3, &a);
        compare(&a, stream, 320, 3, policies[p]);
        assert_true(cached >= 299);
        assert_true(stats_of(e).loads > 0);
        fst_engine_close(e);
    }
}

/* Many at once, few pages, a small tier, some cancelled while they wait for it. */
static void test_pressure(void **state)
{
    struct test_rng r = {.s = 9};
    int rounds = test_size(5, 200, 1);

    (void)state;
    cold_of(&(struct fst_engine_opts){0});
    for (int p = test_size(0, 0, 1); p < 2; p++) {
        fst_engine *e =
            open_tiered((struct fst_engine_opts){.context_length = 1024,
                                                 .max_total_tokens = 2048 + 1024 * p,
                                                 .max_running_requests = CROWD,
                                                 .prefix_cache_bytes = 8 << 20,
                                                 .kv_host_bytes = p ? 64 << 20 : 6 << 20,
                                                 .kv_write_policy = p ? NULL : "write_back"});
        for (int round = 0; round < rounds; round++)
            crowd(e, &r);
        struct fst_engine_stats s = settled(e);
        assert_int_equal(s.slots_used, 0);
        assert_int_equal(s.loading, 0);
        assert_int_equal(s.kv_tokens_used, 0);
        printf("%llu of %llu prompt tokens cached, %llu loaded, %llu loads (%llu not whole), %llu "
               "times a request lost its place\n",
               (unsigned long long)s.cached_tokens, (unsigned long long)s.prompt_tokens,
               (unsigned long long)s.loaded_tokens, (unsigned long long)s.loads,
               (unsigned long long)s.loads_incomplete, (unsigned long long)s.retracted);
        if (p && rounds > 1)
            assert_true(s.loads > 0);
        fst_engine_close(e);
    }
}

/* Closed while requests wait for a tier, and opened without one. */
static void test_ends(void **state)
{
    struct fst_engine_info info;
    struct answer a;
    (void)state;
    for (int i = 0; i < test_size(3, 60, 1); i++) {
        fst_engine *e = open_tiered((struct fst_engine_opts){0});
        fst_request *r;
        ask(e, stream, 600, 2, &a);
        push_out(e, i);
        r = submit(e, stream, 600, 2, 0);
        usleep((useconds_t)(150 * i));
        fst_engine_close(e);
        fst_request_free(r);
    }
    fst_engine *e = open_tiered((struct fst_engine_opts){.kv_host_bytes = INT64_C(1) << 55});
    fst_engine_get_info(e, &info);
    assert_int_equal(info.kv_host_bytes, 0);
    ask(e, stream, 300, 2, &a);
    assert_int_equal(ask(e, stream, 300, 2, &a), 299); /* the tree is there */
    assert_int_equal(stats_of(e).n_tiers, 0);
    fst_engine_close(e);
    e = open_tiered((struct fst_engine_opts){.disable_prefix_cache = true});
    fst_engine_get_info(e, &info);
    assert_int_equal(info.kv_host_bytes, 0);
    fst_engine_close(e);
    struct fst_engine_opts o = {.model_dir = model_dir, .kv_host_bytes = 1};
    assert_int_equal(fst_engine_open(&e, &o), FST_EINVAL);
    assert_non_null(strstr(fst_error_text(), "budget_bytes is 1, expected"));
    o = (struct fst_engine_opts){.model_dir = model_dir, .kv_write_policy = "never"};
    assert_int_equal(fst_engine_open(&e, &o), FST_EINVAL);
    assert_non_null(strstr(fst_error_text(), "write_through, write_through_selective, write_back"));
}

/* Cut, or bytes changed, in every file of objects. */
static int damage(const char *dir, bool cut)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d))) {
        char path[1200];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.' || stat(path, &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode)) {
            n += damage(path, cut);
            continue;
        }
        if (strstr(e->d_name, ".page") == NULL && strstr(e->d_name, ".snapshot") == NULL)
            continue;
        n++;
        if (cut) {
            assert_int_equal(truncate(path, st.st_size / 2), 0);
            continue;
        }
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        fseek(f, (long)st.st_size - 100, SEEK_SET);
        fputs("poisoned", f);
        fclose(f);
    }
    if (d)
        closedir(d);
    return n;
}

static void remove_all(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char path[1200];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || lstat(path, &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode))
            remove_all(path);
        else
            unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

/* Two conversations, an end, a new beginning: both go on where they were.  With all files damaged, or under
 * another layout, they are computed, and the start after the next finds them again. */
static void test_disk(void **state)
{
    char dir[64];
    struct answer a;
    static int32_t ids[2][SHORT];
    int known[2];

    (void)state;
    tmpdir_make(dir, sizeof dir);
    cold_of(&(struct fst_engine_opts){0});
    for (int policy = 0; policy < test_size(2, 3, 1); policy++) {
        static const char *const policies[] = {"write_through", "write_back",
                                               "write_through_selective"};
        /* Room for both, so that write_back loses nothing before the end. */
        struct fst_engine_opts o = {.context_length = SHORT,
                                    .max_total_tokens = 4 * POOL,
                                    .kv_disk_dir = dir,
                                    .kv_write_policy = policies[policy],
                                    .kv_host_bytes = policy ? 8 << 20 : 64 << 20};
        fst_engine *e = open_tiered(o);
        assert_int_equal(settled(e).n_tiers, 2);
        fst_engine_flush_prefixes(e); /* of the policy before */
        for (int k = 0; k < 2; k++) {
            int n = 280 + 40 * k;
            memcpy(ids[k], stream + 400 * k, SHORT * sizeof **ids);
            ask(e, ids[k], n, MAX_NEW, &a);
            memcpy(ids[k] + n, a.ids, a.n * sizeof **ids);
            known[k] = n + (int)a.n;
        }
        for (int round = 0; round < 7; round++) {
            settled(e);
            fst_engine_close(e);
            if (round == 1 || round == 4)
                assert_true(damage(dir, round == 4) > 4);
            e = open_tiered(o);
            assert_int_equal(stats_of(e).n_tiers, 2);
            for (int k = 1; k >= 0; k--) {
                size_t cached = ask(e, ids[k], known[k] + 30, 4, &a);
                compare(&a, ids[k], known[k] + 30, 4, policies[policy]);
                /* Bad snapshots are dropped first, bad pages when a good one stands on them. */
                if (round % 3 == 0 && cached < (size_t)known[k] - 1)
                    fail_msg("%s, start %d: %zu cached of %d", policies[policy], round, cached,
                             known[k]);
                if (round % 3 == 1)
                    assert_int_equal(cached, 0);
            }
            struct fst_engine_stats s = settled(e);
            assert_string_equal(s.tier[1].name, "disk");
            if (round % 3 == 0)
                assert_true(s.tier[1].n_got > 0 && s.tier[1].n_bad == 0);
            if (round % 3 == 1)
                assert_true(s.tier[1].n_bad > 0);
        }
        /* A second server on the folder goes on without it; so does one of other rows, once it may. */
        struct fst_engine_opts other = o;
        other.kv_host_bytes = 0;
        other.check_memory = true;
        fst_engine *second = open_engine(other);
        assert_int_equal(stats_of(second).n_tiers, 0);
        fst_engine_close(second);
        fst_engine_close(e);
        other.kv_layout = "unified-bf16";
        second = open_engine(other);
        assert_int_equal(ask(second, ids[0], known[0], 2, &a), 0);
        assert_int_equal(settled(second).n_tiers, 1);
        fst_engine_close(second);
    }
    remove_all(dir);
}

/* With no time to write anything at the end, what is there the next time is whole; with some, all is. */
static void test_end_in_time(void **state)
{
    char dir[64];
    struct answer a;
    (void)state;
    tmpdir_make(dir, sizeof dir);
    cold_of(&(struct fst_engine_opts){0});
    struct fst_engine_opts o = {.context_length = SHORT,
                                .max_total_tokens = 4 * POOL,
                                .kv_disk_dir = dir,
                                .kv_write_policy = "write_back"};
    for (int round = 0; round < 3; round++) {
        fst_engine *e = open_tiered(o);
        assert_int_equal(ask(e, stream, 600, 3, &a), round == 2 ? 599 : 0);
        compare(&a, stream, 600, 3, "the end in time");
        disk_log_start();
        fst_engine_close_within(e, round ? 60 : 0);
        log_set_sink(NULL, NULL);
        assert_int_equal(disk_log_count("not all that is kept was written in time"), !round);
    }
    remove_all(dir);
}

static void refused(struct fst_engine_opts o, const char *what)
{
    fst_engine *e;
    o.model_dir = model_dir;
    assert_int_equal(fst_engine_open(&e, &o), FST_EINVAL);
    if (!strstr(fst_error_text(), what))
        fail_msg("\"%s\", expected %s", fst_error_text(), what);
}

/* A disk on which every file takes 0.2 s to open, with a prompt of ten pages and one of eight in front of it.
 * How many objects are read, and what of the prompt need not be computed; with host memory none is. */
static void test_load_policies(void **state)
{
    enum { LONG = 2590, FRONT = 2100, OPEN_MS = 200 };
    static const struct {
        const char *policy;
        uint64_t most_read;
        size_t cached;
    } want[] = {{"wait_complete", 11, LONG - 1}, /* 1 + 8 + 2 */
                {"timeout", 10, FRONT}, /* ended behind 8 pages, after 1.8 s; and its snapshot */
                {"best_effort", 1, 0}};
    char dir[64];
    struct answer a;

    (void)state;
    tmpdir_make(dir, sizeof dir);
    cold_of(&(struct fst_engine_opts){0});
    struct fst_engine_opts o = {.kv_disk_dir = dir, .kv_load_policy = "wait_complete"};
    fst_engine *e = open_engine(o);
    ask(e, stream, FRONT, 1, &a);
    ask(e, stream, LONG, 1, &a);
    settled(e);
    fst_engine_close(e);
    for (size_t i = 0; i < FST_COUNT(want); i++) {
        o.kv_load_policy = want[i].policy;
        o.kv_host_bytes = 0;
        e = open_engine(o);
        disk_io_delay(OPEN_MS * 1000);
        size_t cached = ask(e, stream, LONG, 3, &a);
        disk_io_delay(0);
        compare(&a, stream, LONG, 3, want[i].policy);
        struct fst_engine_stats s = settled(e);
        if (cached != want[i].cached || s.tier[0].n_got > want[i].most_read)
            fail_msg("%s: %zu cached, expected %zu; %llu read, expected %llu at most",
                     want[i].policy, cached, want[i].cached, (unsigned long long)s.tier[0].n_got,
                     (unsigned long long)want[i].most_read);
        assert_int_equal(s.loads_incomplete, i == 0 ? 0 : 1);
        fst_engine_close(e);
    }
    o.kv_load_policy = "best_effort"; /* nobody loses by waiting while others fill all steps */
    o.chunked_prefill_size = 7;
    e = open_engine(o);
    disk_io_delay(OPEN_MS * 100);
    fst_request *other = submit(e, stream + 7, LONG, 1, 0);
    assert_int_equal(ask(e, stream, LONG, 3, &a), LONG - 1);
    disk_io_delay(0);
    compare(&a, stream, LONG, 3, "best_effort, full steps");
    collect(other, &a);
    fst_engine_close(e);
    o.chunked_prefill_size = 0; /* nor with memory */
    o.kv_host_bytes = 256 << 20;
    o.max_total_tokens = CONTEXT;
    o.context_length = CONTEXT;
    e = open_engine(o);
    ask(e, stream, LONG, 3, &a); /* into memory too, perhaps */
    settled(e);
    ask(e, stream + 7, LONG, 1, &a); /* and out of the tree */
    settled(e);
    disk_io_delay(OPEN_MS * 1000);
    assert_int_equal(ask(e, stream, LONG, 3, &a), LONG - 1);
    disk_io_delay(0);
    compare(&a, stream, LONG, 3, "best_effort, memory");
    fst_engine_close(e);
    refused((struct fst_engine_opts){.kv_load_policy = "never"},
            "wait_complete, best_effort, timeout");
    remove_all(dir);
}

/* What cannot be meant is refused by name, or said once. */
static void test_flags(void **state)
{
    struct fst_engine_info info;
    struct answer a;
    (void)state;
    refused((struct fst_engine_opts){.kv_disk_dir = ""}, "--kv-disk-dir is empty");
    refused((struct fst_engine_opts){.kv_disk_bytes = 1}, "--kv-disk-mb needs --kv-disk-dir");
    refused((struct fst_engine_opts){.kv_disk_write_bytes_hour = 1},
            "--kv-disk-write-mb-hour needs --kv-disk-dir");
    refused((struct fst_engine_opts){.kv_disk_zstd = true}, "--kv-disk-zstd needs --kv-disk-dir");
    refused((struct fst_engine_opts){.kv_host_bytes = -1, .kv_host_ratio = -1},
            "--hicache-ratio must be");
    struct fst_engine_opts o = {
        .context_length = SHORT, .max_total_tokens = POOL, .prefix_cache_bytes = snapshots()};
    o.kv_host_bytes = -1;
    for (int pages = 6; pages <= 600; pages *= 10) { /* there are three */
        o.kv_host_ratio = pages / 3.0 + 0.01;
        fst_engine *e = open_tiered(o);
        for (int i = 0; i < 3; i++)
            push_out(e, i);
        struct fst_engine_stats s = settled(e);
        assert_true(s.tier[0].objects > 0 && s.tier[0].objects <= (uint64_t)pages);
        assert_int_equal(s.tier[0].n_evicted + s.tier[0].n_refused > 0, pages < 600);
        fst_engine_close(e);
    }
    o.kv_host_ratio = 0.3;
    o.max_running_requests = 1;
    refused(o, "--hicache-ratio 0.3 of 3 pages is none");
    for (int64_t mib = 0; mib <= 4; mib += mib ? 3 : 1) {
        fst_engine *e;
        disk_log_start();
        e = open_engine((struct fst_engine_opts){.prefix_cache_bytes = mib ? mib << 20 : 1});
        log_set_sink(NULL, NULL);
        fst_engine_get_info(e, &info);
        ask(e, stream, 255, 2, &a);
        size_t cached = ask(e, stream, 255, 2, &a);
        assert_int_equal(disk_log_count("prefix cache flag=--prefix-cache-mb"), mib < 2);
        assert_int_equal(disk_log_count("effect=prefixes_are_not_kept"), mib == 0);
        assert_int_equal(disk_log_count("effect=most_prefixes_are_not_kept"), mib == 1);
        assert_int_equal(cached, mib < 2 ? 0 : 254);
        fst_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residues), cmocka_unit_test(test_turns),
        cmocka_unit_test(test_salt),     cmocka_unit_test(test_policies),
        cmocka_unit_test(test_pressure), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_disk),     cmocka_unit_test(test_end_in_time),
        cmocka_unit_test(test_flags),    cmocka_unit_test(test_load_policies),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
