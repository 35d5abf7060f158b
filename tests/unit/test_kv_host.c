/* The host tier at its edges: budgets, layouts, what is compared, what is refused, what a hint says. */
#include "kv/host.h"
#include "support/cm.h"

enum { PAGE = 100 };
static const int64_t parts[] = {30, 0, 70};

static struct store *open_tier(int64_t budget_bytes, enum host_layout layout)
{
    struct host_opts o = {budget_bytes, layout, parts, FST_COUNT(parts), 0, NULL};
    struct store *s;
    if (host_open(&s, &o) < 0)
        fail_msg("%s", fst_error_text());
    return s;
}

static struct store_name page(uint64_t key, uint64_t parent, const int32_t *ids)
{
    return (struct store_name){.key = {{key, key}},
                               .parent = {{parent, parent}},
                               .ids = ids,
                               .n_ids = 256,
                               .kind = STORE_PAGE,
                               .n = 256};
}

static bool put(struct store *s, struct store_name n, uint8_t *p, size_t bytes)
{
    struct store_run run = {p, bytes};
    struct store_put x = {n, &run, 1, false};
    s->ops->put(s, &x, 1);
    assert_int_equal(host_check(s), FST_OK);
    return x.kept;
}

static bool get(struct store *s, struct store_name n, uint8_t *p, size_t bytes)
{
    struct store_run run = {p, bytes};
    struct store_get x = {n, &run, 1, false};
    s->ops->get(s, &x, 1);
    assert_int_equal(host_check(s), FST_OK);
    return x.found;
}

static void refused(struct host_opts o, enum fst_status rc, const char *text)
{
    struct store *s = (struct store *)(void *)&o;
    assert_int_equal(host_open(&s, &o), rc);
    assert_null(s);
    if (!strstr(fst_error_text(), text))
        fail_msg("\"%s\" does not say \"%s\"", fst_error_text(), text);
}

static void test_options(void **state)
{
    static const int64_t negative[] = {8, -1};
    (void)state;
    refused((struct host_opts){1 << 20, 0, parts, 0, 0, NULL}, FST_EINVAL,
            "part_bytes are 0 together");
    refused((struct host_opts){1 << 20, 0, negative, 2, 0, NULL}, FST_EINVAL,
            "part_bytes[1] is -1");
    refused((struct host_opts){1 << 20, 7, parts, 3, 0, NULL}, FST_EINVAL, "layout is 7");
    refused((struct host_opts){500, 0, parts, 3, 0, NULL}, FST_EINVAL,
            "budget_bytes is 500, expected");
    refused((struct host_opts){0, 0, parts, 3, -1, NULL}, FST_EINVAL, "n_frames is -1, expected");
    refused((struct host_opts){0, 0, parts, 3, 0, NULL}, FST_EINVAL, "budget_bytes is 0, expected");
    struct host_opts so_many = {0, 0, parts, 3, 7, NULL};
    struct store *exact, *same;
    assert_int_equal(host_open(&exact, &so_many), FST_OK);
    assert_int_equal(host_frames(exact), 7);
    so_many = (struct host_opts){host_bytes(exact), 0, parts, 3, 0, NULL};
    assert_int_equal(host_open(&same, &so_many), FST_OK);
    assert_int_equal(host_frames(same), 7);
    exact->ops->close(exact);
    same->ops->close(same);
    refused((struct host_opts){(int64_t)1 << 55, 0, parts, 1, 0, NULL}, FST_ENOMEM,
            "no memory for");
    mem_fail_at(1);
    refused((struct host_opts){1 << 20, 0, parts, 3, 0, NULL}, FST_ENOMEM, "no memory for");
    mem_fail_at(0);
    uint64_t before = mem_count(); /* one piece */
    struct store *s = open_tier(1 << 20, HOST_LAYER_FIRST);
    assert_int_equal(mem_count(), before + 1);
    assert_true(host_frames(s) > 600);
    assert_true(host_frames(s) * (PAGE + 1024) < 1 << 20); /* ids are in the budget too */
    assert_false(s->lasts);
    s->ops->close(s);
}

/* Whatever the runs are cut into, a frame's parts are not seen. */
static void test_bytes(void **state)
{
    uint8_t out[350], in[350];
    int32_t ids[256] = {1, 2, 3};
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        struct store *s = open_tier(1 << 15, (enum host_layout)layout);
        for (size_t i = 0; i < sizeof out; i++)
            out[i] = (uint8_t)(i * 7 + 1);
        struct store_name n = page(5, 0, ids);
        n.kind = STORE_SNAPSHOT;
        n.n_ids = 3;
        for (size_t bytes = 0; bytes <= sizeof out; bytes += 50) { /* up to four frames */
            n.key.word[1] = bytes;
            memset(in, 0, sizeof in);
            assert_true(put(s, n, out, bytes));
            struct store_run run[] = {
                {in, bytes / 3}, {in + bytes / 3, 0}, {in + bytes / 3, bytes - bytes / 3}};
            struct store_get g = {n, run, 3, false};
            s->ops->get(s, &g, 1);
            assert_true(g.found);
            assert_memory_equal(in, out, bytes);
            assert_false(get(s, n, in, bytes + 1)); /* another size is another object */
        }
        s->ops->close(s);
    }
}

static void test_compared(void **state)
{
    struct store *s = open_tier(1 << 15, HOST_PAGE_FIRST_DIRECT);
    int32_t ids[256] = {0}, other[256] = {0};
    uint8_t p[PAGE] = {0};
    struct store_name n = page(5, 4, ids), m;
    (void)state;
    other[255] = 1;
    assert_true(put(s, n, p, PAGE));
    assert_true(put(s, n, p, PAGE)); /* it is there, and not written again */
    assert_int_equal(s->stats.n_put, 1);
    assert_false(get(s, (m = n, m.ids = other, m), p, PAGE));
    assert_false(get(s, (m = n, m.salt[3] = 1, m), p, PAGE));
    assert_false(get(s, (m = n, m.parent.word[1] = 1, m), p, PAGE));
    assert_false(get(s, (m = n, m.key.word[1] = 1, m), p, PAGE));
    assert_false(get(s, (m = n, m.n = 512, m), p, PAGE));
    assert_false(get(s, (m = n, m.kind = STORE_SNAPSHOT, m), p, PAGE));
    assert_true(get(s, n, p, PAGE));
    assert_int_equal(s->stats.n_missed, 6);
    assert_false(put(s, (m = n, m.salt[0] = 1, m), p, PAGE)); /* the key is taken */
    assert_int_equal(s->stats.n_refused, 1);
    assert_true(s->ops->has(s, &n.key, STORE_PAGE));
    assert_false(s->ops->has(s, &n.key, STORE_SNAPSHOT));
    s->ops->close(s);
}

static void test_tails(void **state)
{
    struct store *s = open_tier(1 << 16, HOST_PAGE_FIRST_DIRECT);
    static const int n_ids[] = {0, 1, 63, 64, 127, 128, 255};
    int32_t ids[256] = {0};
    uint8_t p[PAGE] = {0};
    (void)state;
    for (uint64_t parent = 0; parent < 3; parent++) {
        uint64_t bits[4] = {0}, want[4] = {0};
        for (size_t i = parent; i < FST_COUNT(n_ids); i++) {
            struct store_name n = page(100 * parent + i, parent, ids);
            n.kind = STORE_SNAPSHOT;
            n.n_ids = n_ids[i];
            assert_true(put(s, n, p, PAGE));
            want[n_ids[i] / 64] |= (uint64_t)1 << n_ids[i] % 64;
        }
        s->ops->tails(s, &(struct store_key){{parent, parent}}, bits);
        assert_memory_equal(bits, want, sizeof bits);
    }
    s->ops->clear(s);
    assert_int_equal(host_check(s), FST_OK);
    assert_int_equal(s->stats.n_objects, 0);
    for (uint64_t parent = 0; parent < 3; parent++) {
        uint64_t bits[4] = {0, 0, 8, 0};
        s->ops->tails(s, &(struct store_key){{parent, parent}}, bits);
        assert_true(bits[0] == 0 && bits[1] == 0 && bits[2] == 8 && bits[3] == 0);
    }
    s->ops->close(s);
}

/* A preamble that many stand on outlives them, and a path that is larger than the tier keeps its front. */
static void test_order(void **state)
{
    int32_t ids[256] = {0};
    uint8_t p[PAGE] = {0};
    struct store *s = open_tier(1 << 14, HOST_PAGE_FIRST_DIRECT);
    uint64_t n = (uint64_t)host_frames(s);
    (void)state;
    assert_true(n > 5);
    assert_true(put(s, page(1, 0, ids), p, PAGE));
    for (uint64_t i = 2; i < 20 * n; i++) {
        assert_true(put(s, page(i, 1, ids), p, PAGE));
        assert_true(get(s, page(1, 0, ids), p, PAGE));
    }
    s->ops->clear(s);
    for (uint64_t i = 1; i <= n + 3; i++)
        assert_int_equal(put(s, page(i, i - 1, ids), p, PAGE), i <= n);
    for (uint64_t i = 1; i <= n; i++)
        assert_true(get(s, page(i, i - 1, ids), p, PAGE));
    s->ops->clear(s);
    /* A parent that comes behind its children, in one call with them. */
    struct store_run run = {p, PAGE};
    struct store_put all[] = {{page(900, 0, ids), &run, 1, false},
                              {page(902, 901, ids), &run, 1, false},
                              {page(901, 900, ids), &run, 1, false}};
    s->ops->put(s, all, 3);
    assert_int_equal(host_check(s), FST_OK);
    assert_true(all[0].kept && all[1].kept && all[2].kept);
    s->ops->close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),  cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_compared), cmocka_unit_test(test_tails),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
