/* The host tier against a plain list of objects: random puts, gets and clears of trees of pages and
 * snapshots under keys that collide, in both layouts, with few frames; after every call the tier's own check
 * and the list's view of what is there.
 *
 * The list numbers calls instead of keeping an order: what goes was used no later than anything that stays,
 * but for what the call itself has used, and nothing stands on it.  Payloads follow from names, so that a byte of another object is
 * seen wherever it comes from. */
#include "kv/host.h"
#include "support/cm.h"

enum { NAMES = 60, PARTS = 4, RUNS = 9, PAGE_BYTES = 3 + 64 + 0 + 30, BATCH = 6 };
static const int64_t parts[PARTS] = {3, 64, 0, 30};

struct name {
    struct store_name n;
    int parent; /* of the names; -1: none */
    int32_t ids[256];
    size_t bytes;
};

struct world {
    struct store *s;
    struct test_rng r;
    struct name name[NAMES];
    int there[NAMES], n_there;
    int64_t call, used[NAMES]; /* the last call that used it */
    int64_t frames;
    bool together; /* many a call; the list then trusts the tier in what went */
    int put, again, refused, evicted, got, missed, foreign;
};

static bool same_key(const struct store_key *a, const struct store_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static int at(const struct world *w, int i)
{
    for (int k = 0; k < w->n_there; k++)
        if (w->there[k] == i)
            return k;
    return -1;
}

/* Whatever has this name's key. */
static int holder(const struct world *w, int i)
{
    for (int k = 0; k < w->n_there; k++) {
        const struct store_name *n = &w->name[w->there[k]].n;
        if (n->kind == w->name[i].n.kind && same_key(&n->key, &w->name[i].n.key))
            return w->there[k];
    }
    return -1;
}

/* What stands under its parent's key. */
static int parent_of(const struct world *w, int i)
{
    static const struct store_key none;
    for (int k = 0; k < w->n_there && !same_key(&w->name[i].n.parent, &none); k++) {
        const struct store_name *n = &w->name[w->there[k]].n;
        if (n->kind == STORE_PAGE && same_key(&n->key, &w->name[i].n.parent))
            return w->there[k];
    }
    return -1;
}

static void take_out(struct world *w, int k)
{
    memmove(w->there + k, w->there + k + 1, (size_t)(--w->n_there - k) * sizeof *w->there);
}

static int frames_of(const struct world *w, int i)
{
    return FST_MAX(1, (int)div_up((int64_t)w->name[i].bytes, PAGE_BYTES));
}

static int64_t free_frames(const struct world *w)
{
    int64_t n = w->frames;
    for (int k = 0; k < w->n_there; k++)
        n -= frames_of(w, w->there[k]);
    return n;
}

/* This call uses it, and what it stands on. */
static void mark(struct world *w, int i)
{
    for (; i >= 0; i = parent_of(w, i))
        w->used[i] = w->call;
}

static bool carries(const struct world *w, int i)
{
    for (int k = 0; k < w->n_there; k++)
        if (parent_of(w, w->there[k]) == i)
            return true;
    return false;
}

static void payload(const struct world *w, int i, uint8_t *out)
{
    struct test_rng r = {(uint64_t)i * 77 + 5};
    for (size_t k = 0; k < w->name[i].bytes; k++)
        out[k] = (uint8_t)test_next(&r);
}

/* Cut `bytes` into runs. */
static int cut(struct test_rng *r, uint8_t *p, size_t bytes, struct store_run *run)
{
    int n = 0;
    while (bytes > 0) {
        size_t here = n == RUNS - 1 ? bytes : 1 + (size_t)test_below(r, (int)bytes);
        run[n++] = (struct store_run){p, here};
        p += here;
        bytes -= here;
    }
    return n;
}

/* ------------------------------------------------------------------ calls */

static bool has(const struct world *w, int i)
{
    return w->s->ops->has(w->s, &w->name[i].n.key, w->name[i].n.kind);
}

/* The one that goes before all others. */
static int64_t least_used(const struct world *w)
{
    int64_t least = INT64_MAX;
    for (int k = 0; k < w->n_there; k++)
        least = FST_MIN(least, w->used[w->there[k]]);
    return least;
}

/* The place of the least used one that has gone and carries nothing; -1: none. */
static int gone(const struct world *w)
{
    int found = -1;
    for (int k = 0; k < w->n_there; k++)
        if (!has(w, w->there[k]) && !carries(w, w->there[k]) &&
            (found < 0 || w->used[w->there[k]] < w->used[w->there[found]]))
            found = k;
    return found;
}

/* What the tier has let go since: each the least used and carrying nothing.  The number of their frames. */
static int64_t learn_evicted(struct world *w)
{
    int64_t n = 0;
    for (int k; (k = gone(w)) >= 0;) {
        int i = w->there[k];
        if (w->used[i] == w->call || w->used[i] > least_used(w))
            fail_msg("%d went, used in call %lld of %lld", i, (long long)w->used[i],
                     (long long)w->call);
        take_out(w, k);
        n += frames_of(w, i);
        w->evicted++;
    }
    for (int k = 0; k < w->n_there; k++)
        if (!has(w, w->there[k]))
            fail_msg("%d went, which carries others", w->there[k]);
    return n;
}

/* Could the tier have made room?  All that this call has not used may go. */
static int64_t may_be_free(const struct world *w)
{
    int64_t n = free_frames(w);
    for (int k = 0; k < w->n_there; k++)
        if (w->used[w->there[k]] != w->call)
            n += frames_of(w, w->there[k]);
    return n;
}

static void put_one(struct world *w, int i, struct store_put *p)
{
    int there = holder(w, i);
    w->call++;
    w->s->ops->put(w->s, p, 1);
    if (there >= 0) { /* another one of its key stays */
        assert_int_equal(p->kept, there == i);
        mark(w, there);
        w->again += there == i;
        w->foreign += there != i;
        assert_int_equal(learn_evicted(w), 0);
        return;
    }
    int parent = parent_of(w, i);
    bool stands = parent >= 0 || w->name[i].parent < 0; /* else nothing goes for it */
    mark(w, parent);
    assert_int_equal(p->kept, (stands ? may_be_free(w) : free_frames(w)) >= frames_of(w, i));
    w->refused += !p->kept;
    int64_t was_free = free_frames(w), got = learn_evicted(w);
    if (!p->kept) {
        assert_int_equal(got, 0);
        return;
    }
    assert_true(was_free + got >= frames_of(w, i));
    assert_true(got == 0 || was_free < frames_of(w, i)); /* no more than was needed */
    w->there[w->n_there++] = i;
    mark(w, i);
    w->put++;
}

/* Of a call of many the list is told the end: what is there. */
static void put_many(struct world *w, const int *which, struct store_put *p, int n)
{
    w->call++;
    w->s->ops->put(w->s, p, n);
    for (int k = 0; k < w->n_there;)
        if (has(w, w->there[k]))
            k++;
        else
            take_out(w, k);
    for (int b = 0; b < n; b++)
        if (p[b].kept && at(w, which[b]) < 0)
            w->there[w->n_there++] = which[b];
}

static void put(struct world *w)
{
    static uint8_t bytes[BATCH][4 * PAGE_BYTES];
    struct store_run run[BATCH][RUNS];
    struct store_put p[BATCH];
    int which[BATCH], n = 1 + test_below(&w->r, BATCH);
    for (int b = 0; b < n; b++) {
        int i = which[b] = test_below(&w->r, NAMES);
        payload(w, i, bytes[b]);
        p[b] = (struct store_put){w->name[i].n, run[b],
                                  cut(&w->r, bytes[b], w->name[i].bytes, run[b]), false};
    }
    if (w->together)
        put_many(w, which, p, n);
    else
        for (int b = 0; b < n; b++)
            put_one(w, which[b], &p[b]);
}

static void get(struct world *w)
{
    static uint8_t bytes[BATCH][4 * PAGE_BYTES], want[4 * PAGE_BYTES];
    struct store_run run[BATCH][RUNS];
    struct store_get g[BATCH];
    int which[BATCH], n = 1 + test_below(&w->r, BATCH);
    for (int b = 0; b < n; b++) {
        int i = which[b] = test_below(&w->r, NAMES);
        memset(bytes[b], 0x55, sizeof bytes[b]);
        g[b] = (struct store_get){w->name[i].n, run[b],
                                  cut(&w->r, bytes[b], w->name[i].bytes, run[b]), false};
    }
    w->call++;
    w->s->ops->get(w->s, g, n);
    for (int b = 0; b < n; b++) {
        assert_int_equal(g[b].found, at(w, which[b]) >= 0);
        w->got += g[b].found;
        w->missed += !g[b].found;
        if (!g[b].found)
            continue;
        mark(w, which[b]);
        payload(w, which[b], want);
        assert_memory_equal(bytes[b], want, w->name[which[b]].bytes);
    }
}

static void compare(struct world *w)
{
    static const struct store_key none;
    uint64_t bytes = 0;
    if (host_check(w->s) < 0)
        fail_msg("%s", fst_error_text());
    assert_true(free_frames(w) >= 0);
    for (int k = 0; k < w->n_there; k++) {
        const struct name *x = &w->name[w->there[k]];
        uint64_t bits[4] = {0};
        bytes += x->bytes;
        assert_true(has(w, w->there[k]));
        w->s->ops->tails(w->s, x->n.kind == STORE_SNAPSHOT ? &x->n.parent : &none, bits);
        if (x->n.kind == STORE_SNAPSHOT)
            assert_true(bits[x->n.n_ids / 64] >> x->n.n_ids % 64 & 1);
    }
    for (int i = 0; i < NAMES; i++)
        assert_int_equal(has(w, i), holder(w, i) >= 0);
    assert_int_equal(w->s->stats.n_objects, w->n_there);
    assert_int_equal(w->s->stats.bytes, bytes);
}

/* ------------------------------------------------------------------ days */

/* Trees of pages with snapshots, some of which have the key of another. */
static void make_names(struct world *w)
{
    for (int i = 0; i < NAMES; i++) {
        struct name *x = &w->name[i];
        bool page = i < 4 || test_below(&w->r, 2);
        *x = (struct name){.parent = i < 3 ? -1 : test_below(&w->r, i)};
        while (x->parent >= 0 && w->name[x->parent].n.kind != STORE_PAGE)
            x->parent--;
        const struct name *up = x->parent >= 0 ? &w->name[x->parent] : NULL;
        x->n = (struct store_name){.key = {{(uint64_t)test_below(&w->r, 3) << 60 | (uint64_t)i, 1}},
                                   .parent = up ? up->n.key : (struct store_key){{0, 0}},
                                   .salt = {(uint64_t)test_below(&w->r, 2)},
                                   .ids = x->ids,
                                   .n_ids = page ? 256 : test_below(&w->r, 256),
                                   .kind = page ? STORE_PAGE : STORE_SNAPSHOT};
        x->n.n = (up ? up->n.n : 0) + x->n.n_ids;
        x->bytes = page ? PAGE_BYTES : (size_t)test_below(&w->r, 4 * PAGE_BYTES);
        for (int k = 0; k < x->n.n_ids; k++)
            x->ids[k] = test_below(&w->r, 1000);
        if (i > 8 && test_below(&w->r, 8) == 0 && !page && !w->together)
            for (int k = 0; k < i; k++)
                if (w->name[k].n.kind == STORE_SNAPSHOT)
                    x->n.key = w->name[k].n.key;
    }
}

static void day(struct world *w, uint64_t seed, int n_steps)
{
    struct host_opts o = {
        .layout = (enum host_layout)(seed % 2), .part_bytes = parts, .n_parts = PARTS};
    w->r = (struct test_rng){seed};
    w->n_there = 0;
    w->together = seed % 5 == 0;
    make_names(w);
    o.budget_bytes = 4100 + 1400 * test_below(&w->r, 30);
    if (host_open(&w->s, &o) < 0)
        fail_msg("%s", fst_error_text());
    w->frames = host_frames(w->s);
    uint64_t allocations = mem_count();
    for (int i = 0; i < n_steps; i++) {
        int what = test_below(&w->r, 200);
        if (what == 0) {
            w->s->ops->clear(w->s);
            w->n_there = 0;
        } else if (what < 110) {
            put(w);
        } else {
            get(w);
        }
        compare(w);
    }
    assert_int_equal(mem_count(), allocations);
    w->s->ops->close(w->s);
}

static void test_random_days(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    int days = test_size(100, 3000, 10);
    (void)state;
    assert_non_null(w);
    for (int i = 0; i < days; i++)
        day(w, (uint64_t)i + 1, 300);
    print_message("%d put, %d there already, %d refused, %d evicted, %d got, %d missed, %d of "
                  "another's key\n",
                  w->put, w->again, w->refused, w->evicted, w->got, w->missed, w->foreign);
    assert_true(w->put > days && w->again > days && w->refused > days && w->evicted > days);
    assert_true(w->got > days && w->missed > days && w->foreign > days / 4);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_days)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
