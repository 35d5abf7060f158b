/* test_base_log.c - lines, levels, values, the ring, and a reader that stalls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

static struct buf seen;

static void keep(void *ud, const char *lines, size_t len)
{
    (void)ud;
    assert_true(len > 0 && lines[len - 1] == '\n');
    buf_append(&seen, lines, len);
}

/* What follows the time stamp of the only line. */
static const char *after_time(void)
{
    const char *s = buf_str(&seen);
    int y, mo, d, h, mi, sec, ms, n = 0;

    assert_int_equal(
        sscanf(s, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &y, &mo, &d, &h, &mi, &sec, &ms, &n), 7);
    assert_int_equal(n, 25);
    assert_true(y >= 2024);
    return s + n;
}

static void test_line(void **state)
{
    (void)state;
    buf_reset(&seen);
    log_info("kv match", "len=%d why=%s", 20480, "system_text_changed");
    assert_string_equal(after_time(), "info kv match len=20480 why=system_text_changed\n");
    buf_reset(&seen);
    log_error("gone", "");
    assert_string_equal(after_time(), "error gone\n");
}

static int calls;
static int counted(void)
{
    return ++calls;
}

static void test_levels(void **state)
{
    (void)state;
    buf_reset(&seen);
    log_debug("x", "n=%d", counted());
    assert_int_equal(seen.len, 0);
    assert_int_equal(calls, 0);
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("x", "n=%d", counted());
    assert_string_equal(after_time(), "debug x n=1\n");
    log_set_level(LOG_LEVEL_ERROR);
    buf_reset(&seen);
    log_warn("x", "");
    assert_int_equal(seen.len, 0);
    assert_true(log_on(LOG_LEVEL_ERROR));
    assert_false(log_on(LOG_LEVEL_WARN));
    log_set_level(LOG_LEVEL_INFO);
}

/* A value from outside cannot begin a line of its own; long lines are cut between characters. */
static void test_hostile_lines(void **state)
{
    char long_text[3 * LOG_LINE_MAX];

    (void)state;
    buf_reset(&seen);
    log_info("x", "v=%s", "a\n2026-01-01T00:00:00.000Z error forged\x1b[31m\x7f");
    assert_string_equal(after_time(),
                        "info x v=a\\x0a2026-01-01T00:00:00.000Z error forged\\x1b[31m\\x7f\n");
    for (size_t i = 0; i + 3 < sizeof long_text; i += 3)
        memcpy(long_text + i, "\xe2\x82\xac", 4);
    for (int shift = 0; shift < 3; shift++) {
        buf_reset(&seen);
        log_info("x", "v=%.*s%s", shift, "abc", long_text);
        assert_true(seen.len <= LOG_LINE_MAX);
        assert_true(seen.len > LOG_LINE_MAX - 8);
        assert_memory_equal(seen.data + seen.len - 7, "\xe2\x82\xac...\n", 7);
    }
    memset(long_text, 1, sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    buf_reset(&seen);
    log_info("x", "v=%s", long_text);
    assert_true(seen.len <= LOG_LINE_MAX);
}

static void test_value(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"", "\"\""},
        {"two words", "\"two words\""},
        {"a=b", "\"a=b\""},
        {"say \"x\" \\", "\"say \\\"x\\\" \\\\\""},
        {"a\nb", "\"a\\x0ab\""},
        {"0123456789012345678901234567890", "01234567890123456789012345..."},
        {"0123456789 1234567890123456789", "\"0123456789 1234567890123..."},
        {"\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2"
         "\x82"
         "\xac\xe2\x82\xac",
         "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2"
         "\x82"
         "\xac\xe2\x82\xac"},
    };
    char out[32];

    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        log_value(out, sizeof out, cases[i].in, strlen(cases[i].in));
        assert_true(strlen(out) < sizeof out);
        if (strncmp(out, cases[i].out, 24) != 0)
            fail_msg("%s: got %s", cases[i].in, out);
        if (strlen(cases[i].out) < 24)
            assert_string_equal(out, cases[i].out);
    }
}

static void *chatter(void *arg)
{
    for (int i = 0; i < 300; i++)
        log_info("chatter", "who=%d i=%d", *(int *)arg, i);
    return NULL;
}

/* Several threads: every line arrives whole, each thread's in order. */
static void test_ring(void **state)
{
    pthread_t threads[4];
    int who[4], next[4] = {0}, n = 0;
    char *save = NULL;

    (void)state;
    buf_reset(&seen);
    assert_int_equal(log_start(), FST_OK);
    for (int i = 0; i < 4; i++) {
        who[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, chatter, &who[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    log_stop();
    for (char *line = strtok_r(seen.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        int w, i;
        assert_int_equal(sscanf(line + 25, "info chatter who=%d i=%d", &w, &i), 2);
        assert_true(w >= 0 && w < 4);
        assert_int_equal(i, next[w]);
        next[w]++;
        n++;
    }
    assert_int_equal(n, 1200);
}

/* stderr is a pipe that nobody reads: callers go on, lines are dropped and counted, log_stop ends. */
static void test_stalled_reader(void **state)
{
    int fds[2], before = dup(STDERR_FILENO);
    char *all = mem_alloc(1 << 20);
    size_t got = 0;
    ssize_t n;
    int64_t t;

    (void)state;
    log_set_sink(NULL, NULL);
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    assert_int_equal(log_start(), FST_OK);
    t = clock_ns();
    for (int i = 0; i < 20000; i++)
        log_info("flood", "i=%d", i);
    assert_true(clock_ns() - t < INT64_C(20000000000));
    /* the reader comes back */
    for (int i = 0; i < 400000 && got < (1 << 20); i += 4096) {
        n = read(fds[0], all + got, 4096);
        assert_true(n > 0);
        got += (size_t)n;
        if (memmem(all, got, "log dropped lines=", 18))
            break;
    }
    assert_non_null(memmem(all, got, "info flood i=0\n", 15));
    assert_non_null(memmem(all, got, "warn log dropped lines=", 23));
    /* and goes for good */
    for (int i = 0; i < 2000; i++)
        log_info("flood", "i=%d", i);
    t = clock_ns();
    log_stop();
    assert_true(clock_ns() - t < INT64_C(10000000000));
    dup2(before, STDERR_FILENO);
    close(before);
    close(fds[0]);
    close(fds[1]);
    mem_free(all);
    log_set_sink(keep, NULL);
}

static void test_start_without_memory(void **state)
{
    (void)state;
    mem_fail_at(1);
    assert_int_equal(log_start(), FST_ENOMEM);
    mem_fail_at(0);
    buf_reset(&seen);
    log_info("still", "here=1");
    assert_string_equal(after_time(), "info still here=1\n");
    log_stop(); /* not started: nothing happens */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_hostile_lines),
        cmocka_unit_test(test_value),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_stalled_reader),
        cmocka_unit_test(test_start_without_memory),
    };
    int rc;

    log_set_sink(keep, NULL);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    buf_release(&seen);
    return rc;
}
