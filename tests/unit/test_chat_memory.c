/* test_chat_memory.c - turns under their call ids: bounds, tenants, what counts as sent back unchanged,
 * and a file that is never trusted. */
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/cm.h"
#include "support/tmpdir.h"

#include "base/file.h"
#include "base/log.h"
#include "chat/memory.h"
#include "support/vectors.h"

static struct tokenizer *tok;
static char dir[256];
static int n_warnings;

static void count_warnings(void *ud, const char *lines, size_t len)
{
    (void)ud;
    n_warnings += memmem(lines, len, " warn ", 6) != NULL;
}

static int setup(void **state)
{
    (void)state;
    tmpdir_make(dir, sizeof dir);
    n_warnings = 0;
    log_set_sink(count_warnings, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    log_set_sink(NULL, NULL);
    chmod(dir, 0700);
    tmpdir_remove(dir);
    return 0;
}

static struct chat_str str(const char *s)
{
    return (struct chat_str){s, strlen(s)};
}

static struct chat_memory *memory(size_t max_ids, size_t max_bytes, const char *where)
{
    struct chat_memory_opts o;
    struct chat_memory *m;

    chat_memory_opts_default(&o);
    o.tokenizer = tok;
    o.dir = where;
    if (max_ids)
        o.max_ids = max_ids;
    if (max_bytes)
        o.max_bytes = max_bytes;
    assert_int_equal(chat_memory_new(&m, &o), FST_OK);
    return m;
}

/* A turn of one call (two when id2 is given) with some ids that depend on the id. */
static enum fst_status add(struct chat_memory *m, struct hash128 tenant, const char *id,
                           const char *id2)
{
    struct chat_call calls[2] = {{str(id), str("f"), str("{\"a\": 1}")},
                                 {str(id2 ? id2 : ""), str("g"), str("{}")}};
    struct tokenizer_ids ids = {0};
    struct chat_turn t = {.tenant = tenant,
                          .start = CHAT_START_REASONING,
                          .content = str("said"),
                          .reasoning = str("thought"),
                          .calls = calls,
                          .n_calls = id2 ? 2 : 1};
    enum fst_status rc;

    assert_int_equal(tokenizer_encode_text(tok, "t</think>", 9, true, &ids), FST_OK);
    t.n_thought = ids.n;
    assert_int_equal(tokenizer_encode_text(tok, id, strlen(id), false, &ids), FST_OK);
    assert_int_equal(tokenizer_ids_push(&ids, tokenizer_specials(tok)->eos), FST_OK);
    t.ids = ids.id;
    t.n_ids = ids.n;
    rc = chat_memory_add(m, &t);
    tokenizer_ids_release(&ids);
    return rc;
}

static bool knows(struct chat_memory *m, struct hash128 tenant, const char *id)
{
    const struct chat_turn *t = chat_memory_find(m, tenant, str(id));
    struct buf text = {0};
    bool found = t != NULL;

    if (t) { /* it is whole */
        assert_int_equal(chat_memory_text(m, t->ids, t->n_ids, &text), FST_OK);
        assert_memory_equal(text.data, "t</think>", 9);
        assert_string_equal(t->content.data, "said");
        assert_string_equal(t->reasoning.data, "thought");
        assert_string_equal(t->calls[0].arguments.data, "{\"a\": 1}");
        assert_int_equal(t->start, CHAT_START_REASONING);
        assert_int_equal(t->ids[t->n_thought - 1], tokenizer_specials(tok)->end_think);
        assert_int_equal(t->ids[t->n_ids - 1], tokenizer_specials(tok)->eos);
    }
    buf_release(&text);
    chat_turn_unref(t);
    return found;
}

static struct chat_memory_stats stats(struct chat_memory *m)
{
    struct chat_memory_stats s;

    chat_memory_get_stats(m, &s);
    return s;
}

/* ---- the table ------------------------------------------------------------------------------ */

static void bounds(void **state)
{
    struct chat_memory *m = memory(3, 0, NULL);
    struct hash128 a = chat_memory_tenant(m, NULL, NULL);
    size_t one;

    (void)state;
    assert_int_equal(add(m, a, "1", NULL), FST_OK);
    one = stats(m).n_bytes;
    assert_int_equal(add(m, a, "2", NULL), FST_OK);
    assert_int_equal(add(m, a, "3", NULL), FST_OK);
    assert_true(knows(m, a, "1")); /* used: 2 is the oldest now */
    assert_int_equal(add(m, a, "4", NULL), FST_OK);
    assert_false(knows(m, a, "2"));
    assert_true(knows(m, a, "1") && knows(m, a, "3") && knows(m, a, "4"));
    /* a turn of two calls takes two places, and leaves with both ids */
    assert_int_equal(add(m, a, "5", "6"), FST_OK);
    assert_true(knows(m, a, "6") && knows(m, a, "5") && knows(m, a, "4"));
    assert_false(knows(m, a, "1") || knows(m, a, "3"));
    assert_int_equal(stats(m).n_ids, 3);
    assert_int_equal(stats(m).n_turns, 2);
    assert_int_equal(add(m, a, "7", NULL), FST_OK);
    assert_int_equal(add(m, a, "8", NULL), FST_OK);
    assert_false(knows(m, a, "5") || knows(m, a, "6"));
    /* the same id again: the later turn is the one */
    assert_int_equal(add(m, a, "8", NULL), FST_OK);
    assert_int_equal(stats(m).n_ids, 3);
    chat_memory_free(m);

    m = memory(0, 2 * one + one / 2, NULL);
    for (int i = 0; i < 5; i++)
        assert_int_equal(add(m, a, i % 2 ? "x" : "y", NULL), FST_OK);
    assert_int_equal(stats(m).n_turns, 2);
    assert_int_equal(add(m, a, "z", NULL), FST_OK);
    assert_int_equal(stats(m).n_turns, 2);
    assert_true(stats(m).n_bytes <= 2 * one + one / 2);
    chat_memory_free(m);

    m = memory(0, one / 2, NULL);
    assert_int_equal(add(m, a, "1", NULL), FST_EBUDGET);
    assert_int_equal(stats(m).n_turns, 0);
    chat_memory_free(m);
    m = memory(1, 0, NULL);
    assert_int_equal(add(m, a, "1", "2"), FST_EBUDGET);
    assert_false(knows(m, a, "1"));
    chat_memory_free(m);
}

static void evicted_while_read(void **state)
{
    struct chat_memory *m = memory(1, 0, NULL);
    struct hash128 a = chat_memory_tenant(m, NULL, NULL);
    const struct chat_turn *t;

    (void)state;
    assert_int_equal(add(m, a, "1", NULL), FST_OK);
    t = chat_memory_find(m, a, str("1"));
    assert_int_equal(add(m, a, "2", NULL), FST_OK);
    assert_false(knows(m, a, "1"));
    assert_string_equal(t->calls[0].id.data, "1");
    chat_memory_free(m);
    assert_string_equal(t->content.data, "said"); /* even then */
    chat_turn_unref(t);
}

static void tenants(void **state)
{
    struct chat_memory *m = memory(0, 0, NULL);
    const struct hash128 t[] = {
        chat_memory_tenant(m, NULL, NULL), chat_memory_tenant(m, "k", NULL),
        chat_memory_tenant(m, "l", NULL),  chat_memory_tenant(m, "k", "s"),
        chat_memory_tenant(m, NULL, "k"),  chat_memory_tenant(m, "ks", NULL),
    };

    (void)state;
    assert_true(hash128_equal(t[1], chat_memory_tenant(m, "k", "")));
    for (size_t i = 0; i < FST_COUNT(t); i++) {
        assert_int_equal(add(m, t[i], "1", NULL), FST_OK);
        for (size_t k = 0; k < FST_COUNT(t); k++)
            assert_int_equal(knows(m, t[k], "1"), k <= i);
    }
    chat_memory_free(m);
}

static void ids_that_no_turn_may_hold(void **state)
{
    struct chat_memory *m = memory(0, 0, NULL);
    const struct tokenizer_specials *s = tokenizer_specials(tok);
    struct chat_call call = {str("1"), str("f"), str("{}")};
    const int32_t rows[][3] = {
        {s->user, 5, s->eos},      {5, s->eos, s->eos}, {5, s->assistant, s->eos},
        {s->bos, 5, s->eos},       {5, 6, 7},           {-1, 5, s->eos},
        {5, INT32_MAX - 1, s->eos}};
    const int32_t fine[] = {s->think, s->dsml, s->end_think, s->eos};
    struct chat_turn t = {.calls = &call, .n_calls = 1, .ids = fine, .n_ids = 4};

    (void)state;
    assert_int_equal(chat_memory_add(m, &t), FST_OK);
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        t.ids = rows[i];
        t.n_ids = 3;
        assert_int_equal(chat_memory_add(m, &t), FST_EINVAL);
    }
    t.n_ids = 0;
    assert_int_equal(chat_memory_add(m, &t), FST_EINVAL);
    t.n_calls = 0;
    assert_int_equal(chat_memory_add(m, &t), FST_EINVAL);
    chat_memory_free(m);
}

static void what_matches(void **state)
{
    static const struct {
        const char *message; /* as a client sends it */
        bool matches;
    } rows[] = {
        {"\"content\":\"said\",\"tool_calls\":[%C]", true},
        {"\"content\":\" said\\n\",\"tool_calls\":[%C]", true},
        {"\"content\":[{\"type\":\"text\",\"text\":\"sa\"},{\"type\":\"text\",\"text\":\"id\"}],"
         "\"tool_calls\":[%C]",
         true},
        {"\"content\":\"said\",\"reasoning\":\"other\",\"tool_calls\":[%C]", true},
        {"\"content\":\"Said\",\"tool_calls\":[%C]", false},
        {"\"content\":null,\"tool_calls\":[%C]", false},
        {"\"content\":\"said\",\"tool_calls\":[%C,%C]", false},
        {"\"content\":\"said\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
         "\"arguments\":{\"x\":[],\"a\":1.0}}}]",
         true},
        {"\"content\":\"said\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
         "\"arguments\":{\"x\":[],\"a\":2}}}]",
         false},
        {"\"content\":\"said\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"no JSON\"}}]",
         false},
        {"\"content\":\"said\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"g\","
         "\"arguments\":{\"a\":1,\"x\":[]}}}]",
         false},
        {"\"content\":\"said\",\"tool_calls\":[{\"id\":\"2\",\"function\":{\"name\":\"f\","
         "\"arguments\":{\"a\":1,\"x\":[]}}}]",
         false},
    };
    static const char call[] = "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                               "\"arguments\":\"{\\\"\\\\u0061\\\":1e0 , \\\"x\\\":[]}\"}}";
    struct chat_call have = {str("1"), str("f"), str("{\"a\": 1, \"x\": []}")};
    struct chat_turn t = {.content = str("said"), .calls = &have, .n_calls = 1};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        struct buf b = {0};
        struct json_doc *d;
        struct chat_request r;
        bool matches;

        buf_puts(&b, "[{\"role\":\"assistant\",");
        for (const char *s = rows[i].message; *s; s++)
            if (s[0] == '%' && s[1] == 'C') {
                buf_puts(&b, call);
                s++;
            } else
                buf_putc(&b, *s);
        buf_puts(&b, "}]");
        assert_int_equal(json_parse(&d, b.data, b.len), FST_OK);
        assert_int_equal(chat_request_from_json(&r, json_root(d), NULL), FST_OK);
        assert_int_equal(chat_turn_matches(&t, &r.messages[0], &matches), FST_OK);
        if (matches != rows[i].matches)
            fail_msg("%s", b.data);
        chat_request_release(&r);
        json_free(d);
        buf_release(&b);
    }
}

/* ---- the file ------------------------------------------------------------------------------- */

static void file_name(char *out, size_t size)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    assert_non_null(d);
    out[0] = 0;
    while ((e = readdir(d)))
        if (strncmp(e->d_name, "calls-", 6) == 0) {
            assert_int_equal(out[0], 0); /* one, and no leavings */
            snprintf(out, size, "%s", e->d_name);
        }
    closedir(d);
    assert_true(out[0] != 0);
}

static void round_trip(void **state)
{
    struct chat_memory *m = memory(0, 0, dir);
    struct hash128 a = chat_memory_tenant(m, "k", "s"), other;
    char name[300], path[600];
    struct stat st;

    (void)state;
    assert_int_equal(add(m, a, "1", NULL), FST_OK);
    assert_int_equal(add(m, a, "2", "3"), FST_OK);
    chat_memory_save(m);
    assert_int_equal(add(m, a, "4", NULL), FST_OK);
    chat_memory_free(m); /* saves */
    file_name(name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    for (int i = 0; i < 3; i++) {
        m = memory(0, 0, dir);
        other = chat_memory_tenant(m, "k", "s");
        assert_true(hash128_equal(a, other));
        assert_true(knows(m, a, "1") && knows(m, a, "2") && knows(m, a, "3") && knows(m, a, "4"));
        assert_false(knows(m, chat_memory_tenant(m, "l", "s"), "1"));
        assert_int_equal(stats(m).n_ids, 4);
        chat_memory_free(m);
    }
    /* a smaller memory keeps the last ones */
    m = memory(2, 0, dir);
    assert_true(knows(m, a, "4"));
    assert_false(knows(m, a, "1") || knows(m, a, "2"));
    chat_memory_free(m);
    assert_int_equal(n_warnings, 0);
}

static void compaction(void **state)
{
    struct chat_memory *m = memory(4, 0, dir);
    struct hash128 a = chat_memory_tenant(m, NULL, NULL);
    uint64_t most = 0;
    char id[16];

    (void)state;
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "%02d", i);
        assert_int_equal(add(m, a, id, NULL), FST_OK);
        chat_memory_save(m);
        if (i == 3)
            most = stats(m).file_bytes;
        if (i > 3)
            assert_true(stats(m).file_bytes <= 2 * most + 64);
    }
    chat_memory_free(m);
    m = memory(4, 0, dir);
    assert_true(knows(m, a, "96") && knows(m, a, "99"));
    assert_false(knows(m, a, "95"));
    chat_memory_free(m);
    assert_int_equal(n_warnings, 0);
}

/* Two turns in a file; returns its bytes (owned). */
static char *small_file(char *name, size_t size, size_t *len, struct hash128 *tenant)
{
    struct chat_memory *m = memory(0, 0, dir);

    *tenant = chat_memory_tenant(m, NULL, NULL);
    assert_int_equal(add(m, *tenant, "1", NULL), FST_OK);
    assert_int_equal(add(m, *tenant, "2", NULL), FST_OK);
    chat_memory_free(m);
    file_name(name, size);
    return tmpdir_read(dir, name, len);
}

static void torn_tail(void **state)
{
    char name[300], *bytes;
    struct hash128 a;
    size_t len;

    (void)state;
    bytes = small_file(name, sizeof name, &len, &a);
    for (size_t n = 0; n < len; n++) {
        struct chat_memory *m;
        size_t second = 64 + (len - 64) / 2;

        n_warnings = 0;
        tmpdir_write(dir, name, bytes, n);
        m = memory(0, 0, dir);
        assert_int_equal(knows(m, a, "1"), n >= second);
        assert_false(knows(m, a, "2"));
        assert_int_equal(n_warnings, n != 0 && n != 64 && n != second);
        /* it goes on from there */
        assert_int_equal(add(m, a, "3", NULL), FST_OK);
        chat_memory_free(m);
        n_warnings = 0;
        m = memory(0, 0, dir);
        assert_true(knows(m, a, "3"));
        assert_int_equal(n_warnings, 0);
        assert_int_equal(knows(m, a, "1"), n >= second);
        chat_memory_free(m);
    }
    free(bytes);
}

static void corrupt_byte(void **state)
{
    char name[300], *bytes;
    struct hash128 a;
    size_t len;

    (void)state;
    bytes = small_file(name, sizeof name, &len, &a);
    for (size_t i = 0; i < len; i++)
        for (int bit = 0; bit < 8; bit += 3) {
            size_t second = 64 + (len - 64) / 2;
            struct chat_memory *m;

            n_warnings = 0;
            bytes[i] ^= (char)(1 << bit);
            tmpdir_write(dir, name, bytes, len);
            bytes[i] ^= (char)(1 << bit);
            m = memory(0, 0, dir);
            assert_int_equal(n_warnings, 1);
            assert_int_equal(knows(m, a, "1"), i >= second);
            assert_int_equal(knows(m, a, "2"), i >= 64 && i < second);
            chat_memory_free(m);
            n_warnings = 0;
            m = memory(0, 0, dir); /* what was damaged is gone, with the warning */
            assert_int_equal(n_warnings, 0);
            chat_memory_free(m);
        }
    free(bytes);
}

static void other_version(void **state)
{
    char name[300], *bytes;
    struct hash128 a;
    struct chat_memory *m;
    uint64_t sum;
    size_t len;

    (void)state;
    bytes = small_file(name, sizeof name, &len, &a);
    bytes[8] = 2; /* the version, under a checksum of its own */
    sum = hash64(bytes, 56, 2);
    memcpy(bytes + 56, &sum, sizeof sum);
    tmpdir_write(dir, name, bytes, len);
    m = memory(0, 0, dir);
    assert_int_equal(stats(m).n_turns, 0);
    assert_int_equal(n_warnings, 1);
    chat_memory_free(m);
    free(bytes);
}

static void folder_that_cannot_be_used(void **state)
{
    char path[600];
    struct chat_memory *m, *second;
    struct hash128 a;

    (void)state;
    snprintf(path, sizeof path, "%s/no/such", dir);
    m = memory(0, 0, path);
    a = chat_memory_tenant(m, NULL, NULL);
    assert_int_equal(n_warnings, 1);
    assert_false(stats(m).on_disk);
    assert_int_equal(add(m, a, "1", NULL), FST_OK);
    chat_memory_save(m);
    assert_true(knows(m, a, "1"));
    chat_memory_free(m);
    assert_int_equal(n_warnings, 1);

    /* one that has the file open keeps it */
    n_warnings = 0;
    m = memory(0, 0, dir);
    assert_true(stats(m).on_disk);
    second = memory(0, 0, dir);
    assert_false(stats(second).on_disk);
    assert_int_equal(n_warnings, 1);
    chat_memory_free(second);
    chat_memory_free(m);

    /* nobody may write here, not even root */
    n_warnings = 0;
    m = memory(0, 0, "/proc");
    assert_int_equal(n_warnings, 1);
    assert_false(stats(m).on_disk);
    assert_int_equal(add(m, a, "1", NULL), FST_OK);
    chat_memory_free(m);
    assert_int_equal(n_warnings, 1);

    n_warnings = 0;
    chmod(dir, 0500);
    m = memory(0, 0, dir);
    assert_int_equal(stats(m).on_disk, geteuid() == 0); /* root may write into it */
    assert_int_equal(n_warnings, geteuid() != 0);
    chat_memory_free(m);
}

/* Every operation on the file fails once (a full disk): one warning, and the memory goes on. */
static void every_operation(void **state)
{
    uint64_t used, n = 0;

    (void)state;
    do {
        uint64_t before = file_count();
        struct chat_memory *m;
        struct hash128 a;

        n_warnings = 0;
        file_fail_at(++n);
        m = memory(2, 0, dir);
        a = chat_memory_tenant(m, NULL, NULL);
        for (int i = 0; i < 8; i++) {
            char id[2] = {(char)('a' + i), 0};
            assert_int_equal(add(m, a, id, NULL), FST_OK);
            chat_memory_save(m);
            assert_true(knows(m, a, id));
        }
        chat_memory_free(m);
        used = file_count() - before;
        file_fail_at(0);
        assert_int_equal(n_warnings, used >= n);
        n_warnings = 0;
        m = memory(2, 0, dir); /* whatever is there can be used */
        a = chat_memory_tenant(m, NULL, NULL);
        assert_true(stats(m).on_disk);
        assert_true(n_warnings <= 1);
        if (used < n)
            assert_true(knows(m, a, "g") && knows(m, a, "h"));
        chat_memory_free(m);
    } while (used >= n);
    assert_true(n > 20);
}

/* Threads that add, look up and save at once, with room for few: what is found is whole. */
static struct chat_memory *shared;

static void *busy(void *ud)
{
    struct test_rng rng = {(uint64_t)(uintptr_t)ud};
    struct hash128 a = chat_memory_tenant(shared, NULL, NULL);
    size_t n_found = 0;

    for (int i = 0; i < 400; i++) {
        char id[2] = {(char)('a' + test_below(&rng, 12)), 0};
        if (test_below(&rng, 3) == 0 && add(shared, a, id, NULL) < 0)
            return NULL;
        n_found += knows(shared, a, id);
        if (i % 40 == 0)
            chat_memory_save(shared);
    }
    return n_found ? ud : NULL;
}

static void many_threads(void **state)
{
    pthread_t t[4];

    (void)state;
    shared = memory(6, 0, dir);
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, busy, (void *)(i + 1)), 0);
    for (uintptr_t i = 0; i < 4; i++) {
        void *ok;
        assert_int_equal(pthread_join(t[i], &ok), 0);
        assert_ptr_equal(ok, (void *)(i + 1));
    }
    assert_true(stats(shared).n_ids <= 6 && stats(shared).on_disk);
    chat_memory_free(shared);
    shared = memory(6, 0, dir);
    assert_int_equal(stats(shared).n_ids, 6);
    assert_int_equal(n_warnings, 0);
    chat_memory_free(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds),
        cmocka_unit_test(evicted_while_read),
        cmocka_unit_test(tenants),
        cmocka_unit_test(ids_that_no_turn_may_hold),
        cmocka_unit_test(what_matches),
        cmocka_unit_test_setup_teardown(round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(compaction, setup, teardown),
        cmocka_unit_test_setup_teardown(torn_tail, setup, teardown),
        cmocka_unit_test_setup_teardown(corrupt_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(other_version, setup, teardown),
        cmocka_unit_test_setup_teardown(folder_that_cannot_be_used, setup, teardown),
        cmocka_unit_test_setup_teardown(every_operation, setup, teardown),
        cmocka_unit_test_setup_teardown(many_threads, setup, teardown),
    };
    int rc;

    if (tokenizer_load(&tok, TINY_TOKENIZER) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_free(tok);
    return rc;
}
