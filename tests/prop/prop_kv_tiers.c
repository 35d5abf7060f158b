/* The tree over its tiers against a flat list of prefixes: random requests under few pages and chunks, whose
 * pages and snapshots are copied to one or two stores, evicted, and loaded back; loads that are stopped,
 * objects that are missed, refused and evicted below, stores that are cleared, and ends of the process with
 * new beginnings over what the stores have.
 *
 * The list holds the ids of every snapshot that was ever taken.  What a request goes on from must be one of
 * them, byte by byte (kv_contents.h); on days on which nothing can be lost it must be the longest of those
 * that were copied, if that is worth a load. */
#include "kv/host.h"
#include "kv/snapshot.h"
#include "kv/tiers.h"
#include "support/kv_contents.h"
#include "support/kv_keeper.h"

enum { SLOTS = 4, PAGES = 22, CHUNK = 512, CHUNKS = 60, SALTS = 2, KNOWN = 200, GAIN = 64 };

static const struct tree_salt salts[SALTS] = {{{0, 0, 0, 0}}, {{0, 0, 0, 1}}};

struct known {
    bool sure; /* every store has it */
    int salt, n;
    int32_t ids[CONTEXT];
};

struct request {
    bool open, loading;
    int salt, n_ids, n, written, attempts,
        due; /* due: positions that must be there after the load */
    int32_t ids[CONTEXT];
    uint64_t h[CONTEXT];
    struct tree_hold hold;
};

struct seen {
    int loads, whole, stopped, restored, short_of_pages, cleared, restarts, due, taken;
};

struct world {
    struct kv kv;
    struct tree t;
    struct tiers *x;
    struct tiers_opts o;
    struct store *inner[TIERS_MAX];
    struct keeper keeper[TIERS_MAX];
    int n_stores;
    bool exact; /* nothing is lost, and all copies are waited for */
    bool lasts;
    struct test_rng r;
    struct known known[KNOWN];
    int n_known;
    struct request request[SLOTS + 1];
    struct seen seen;
};

/* ------------------------------------------------------------------ the list */

static bool begins(const struct known *k, int salt, const int32_t *ids, int n)
{
    return k->n && k->salt == salt && k->n <= n &&
           memcmp(k->ids, ids, (size_t)k->n * sizeof *ids) == 0;
}

static int longest(const struct world *w, const struct request *q, bool sure)
{
    int n = 0;
    for (int i = 0; i < KNOWN; i++)
        if ((w->known[i].sure || !sure) && begins(&w->known[i], q->salt, q->ids, q->n_ids - 1))
            n = FST_MAX(n, w->known[i].n);
    return n;
}

static void learn(struct world *w, const struct request *q, int n)
{
    struct known *k = NULL;
    for (int i = 0; i < KNOWN && !k; i++)
        if (w->known[i].n == n && begins(&w->known[i], q->salt, q->ids, n))
            k = &w->known[i];
    if (!k) {
        k = &w->known[w->n_known++ % KNOWN];
        *k = (struct known){.salt = q->salt, .n = n};
        memcpy(k->ids, q->ids, (size_t)n * sizeof *k->ids);
    }
    if (w->exact && w->o.policy == TIERS_WRITE_THROUGH) {
        tiers_wait(w->x);
        k->sure = true;
    }
}

/* What the tree has will be in stores that last. */
static void learn_end(struct world *w)
{
    for (int i = 0; i < KNOWN; i++) {
        struct known *k = &w->known[i];
        struct tree_hit hit;
        if (!k->n)
            continue;
        tree_match(&w->t, &salts[k->salt], k->ids, k->n + 1, &hit); /* the last id is not read */
        k->sure |= hit.n_restore == k->n;
    }
}

/* ------------------------------------------------------------------ requests */

static void add_ids(struct world *w, struct request *q, int n_ids)
{
    int letter = 0;
    for (int i = q->n_ids; i < n_ids; i++) {
        if (i % 256 == 0 || i == q->n_ids)
            letter = test_below(&w->r, 3) ? 0 : test_below(&w->r, LETTERS);
        q->ids[i] = token(letter, i % 256);
        q->h[i] = mix(i ? q->h[i - 1] : (uint64_t)q->salt, (uint64_t)q->ids[i]);
    }
    q->n_ids = n_ids;
}

static void some_prompt(struct world *w, struct request *q)
{
    const struct known *k = &w->known[test_below(&w->r, KNOWN)];
    *q = (struct request){.salt = test_below(&w->r, 4) == 0};
    if (k->n && test_below(&w->r, 3)) {
        q->salt = k->salt;
        for (int i = 0; i < k->n; i++)
            q->h[i] = mix(i ? q->h[i - 1] : (uint64_t)q->salt, (uint64_t)(q->ids[i] = k->ids[i]));
        q->n_ids = k->n;
    }
    int n = q->n_ids + (q->n_ids ? test_below(&w->r, 300) : some_length(&w->r));
    add_ids(w, q, FST_MAX(q->n_ids, FST_MIN(FST_MAX(1, n), CONTEXT - 30)));
}

static void go_on(struct world *w, int slot, const struct tree_hit *hit)
{
    struct request *q = &w->request[slot];
    q->loading = false;
    enum fst_status rc = hit->n_restore ? tree_restore(&w->t, slot, hit, q->n_ids, &q->hold)
                                        : kv_reserve(&w->kv, slot, q->n_ids);
    if (rc < 0) {
        assert_int_equal(rc, FST_EBUDGET);
        w->seen.short_of_pages++;
        kv_slot_close(&w->kv, slot);
        q->open = false;
        return;
    }
    q->n = q->written = (int)hit->n_restore;
    w->seen.restored += q->n > 0;
    assert_true(q->n == 0 || longest(w, q, false) >= q->n || w->n_known > KNOWN);
    compare_rows(&w->kv, slot, q->n, q->h);
}

/* A slot that is open and empty: from the stores, the tree, or from the beginning. */
static void place(struct world *w, int slot)
{
    struct request *q = &w->request[slot];
    struct tree_hit hit;
    tree_match(&w->t, &salts[q->salt], q->ids, q->n_ids, &hit);
    int sure = w->exact ? longest(w, q, true) : 0;
    bool due = sure >= hit.n_restore + GAIN, tried = q->attempts++ < 3;
    enum fst_status rc = FST_EAGAIN;
    if (tried)
        rc = tiers_load(w->x, slot, &salts[q->salt], q->ids, q->n_ids, &hit, &q->hold);
    if (rc == FST_OK) {
        q->loading = true;
        q->due = due ? sure : 0;
        w->seen.loads++;
        w->seen.due += due;
        return;
    }
    assert_int_equal(q->hold.node, 0);
    assert_int_equal(w->kv.slots[slot].n_pages, 0);
    if (rc == FST_EBUDGET) {
        w->seen.short_of_pages++;
        kv_slot_close(&w->kv, slot);
        q->open = false;
        return;
    }
    assert_int_equal(rc, FST_EAGAIN);
    if (due && tried) { /* there must have been no chunks for it, or too few */
        int64_t need = div_up(kv_snapshot_bytes(&w->kv, sure), CHUNK);
        assert_true(need > w->t.n_free_chunks + w->t.n_idle_chunks);
    }
    tree_match(&w->t, &salts[q->salt], q->ids, q->n_ids, &hit);
    go_on(w, slot, &hit);
}

static void admit(struct world *w)
{
    struct request q;
    int slot;
    if (kv_slot_open(&w->kv, &slot) < 0)
        return;
    some_prompt(w, &q);
    q.open = true;
    w->request[slot] = q;
    place(w, slot);
}

static void end_load(struct world *w, int slot)
{
    struct request *q = &w->request[slot];
    bool whole = tiers_end(w->x, slot);
    w->seen.whole += whole;
    assert_int_equal(q->hold.node, 0);
    assert_int_equal(w->kv.slots[slot].n_pages, 0);
    if (q->due) {
        struct tree_hit hit;
        tree_match(&w->t, &salts[q->salt], q->ids, q->n_ids, &hit);
        assert_true(whole && hit.n_restore >= q->due);
        q->due = 0;
    }
    place(w, slot);
}

static void end(struct world *w, int slot)
{
    struct request *q = &w->request[slot];
    compare_rows(&w->kv, slot, q->n, q->h);
    tree_unlock(&w->t, &q->hold);
    kv_slot_close(&w->kv, slot);
    q->open = false;
}

static void advance(struct world *w, int slot)
{
    struct request *q = &w->request[slot];
    if (q->n == q->n_ids) {
        int more = 1 + test_below(&w->r, 40);
        if (q->n_ids + more > CONTEXT - 4 || kv_reserve(&w->kv, slot, q->n_ids + more) < 0)
            return;
        add_ids(w, q, q->n_ids + more);
    }
    int to = test_below(&w->r, 3) ? q->n_ids : q->n + 1 + test_below(&w->r, q->n_ids - q->n);
    for (; q->n < to; q->n++)
        compute(&w->kv, slot, q->n, q->h[q->n]);
    q->written = q->n;
    kv_commit(&w->kv, slot, q->n);
}

static void take(struct world *w, int slot)
{
    struct request *q = &w->request[slot];
    int slack = (int)kv_snapshot_slack(&w->kv);
    int n = q->n - test_below(&w->r, slack - (q->written - q->n) + 1);
    if (n < FST_MAX(1, w->kv.slots[slot].n_restored))
        return;
    enum fst_status rc = tree_take(&w->t, slot, &salts[q->salt], q->ids, n, q->written, &q->hold);
    if (rc == FST_EBUDGET)
        return;
    assert_int_equal(rc, FST_OK);
    w->seen.taken++;
    learn(w, q, n);
}

/* ------------------------------------------------------------------ the process */

static void begin(struct world *w)
{
    struct kv_spec spec = contents_spec(SLOTS, PAGES);
    struct tree_opts o = {
        .budget_bytes = CHUNK * CHUNKS, .chunk_bytes = CHUNK, .hash_mask = UINT64_MAX};
    struct store *stores[TIERS_MAX];
    assert_int_equal(kv_init(&w->kv, &spec), FST_OK);
    assert_int_equal(tree_init(&w->t, &w->kv, &o), FST_OK);
    for (int i = 0; i < w->n_stores; i++) {
        stores[i] = keeper_open(&w->keeper[i], w->inner[i], i ? "below" : "host");
        stores[i]->lasts = w->lasts;
    }
    if (tiers_open(&w->x, &w->t, stores, w->n_stores, &w->o) < 0)
        fail_msg("%s", fst_error_text());
}

static void finish(struct world *w)
{
    for (int slot = 1; slot <= SLOTS; slot++) {
        struct request *q = &w->request[slot];
        if (q->open && q->loading) {
            tiers_stop(w->x, slot);
            tiers_wait(w->x);
            tiers_end(w->x, slot);
            kv_slot_close(&w->kv, slot);
            q->open = false;
        } else if (q->open) {
            end(w, slot);
        }
    }
    if (w->lasts && w->exact)
        learn_end(w);
    tiers_close(w->x);
    if (tree_check(&w->t) < 0)
        fail_msg("%s", fst_error_text());
    assert_int_equal(w->kv.n_free_pages + w->kv.n_idle_pages, PAGES);
    assert_int_equal(w->t.n_free_chunks + w->t.n_idle_chunks, CHUNKS);
    tree_release(&w->t);
    kv_release(&w->kv);
    for (int i = 0; i < w->n_stores; i++)
        if (host_check(w->inner[i]) < 0)
            fail_msg("%s", fst_error_text());
}

static void clear(struct world *w)
{
    tree_flush(&w->t);
    tiers_clear(w->x);
    for (int i = 0; i < KNOWN; i++)
        w->known[i].sure = false;
    if (w->exact)
        tiers_wait(w->x);
    w->seen.cleared++;
}

/* ------------------------------------------------------------------ days */

static void compare(struct world *w)
{
    struct tiers_stats s;
    if (tree_check(&w->t) < 0 || tiers_check(w->x) < 0)
        fail_msg("%s", fst_error_text());
    tiers_get_stats(w->x, &s);
    assert_int_equal(s.n_stores, w->n_stores);
    if (w->exact)
        assert_int_equal(s.store[0].n_refused, 0);
}

static void step(struct world *w)
{
    int slot = 1 + test_below(&w->r, SLOTS), what = test_below(&w->r, 400);
    struct request *q = &w->request[slot];
    tiers_poll(w->x);
    for (int i = 1; i <= SLOTS; i++)
        if (w->request[i].open && w->request[i].loading && !tiers_loading(w->x, i))
            end_load(w, i);
    if (what == 0 && test_below(&w->r, 3) == 0) {
        clear(w);
    } else if (what == 1) {
        finish(w);
        begin(w);
        w->seen.restarts++;
    } else if (what < 8) {
        tree_flush(&w->t);
    } else if (what < 40) {
        tree_evict(&w->t);
    } else if (!q->open) {
        admit(w);
    } else if (q->loading) {
        if (what < 60 && !q->due) {
            tiers_stop(w->x, slot);
            w->seen.stopped++;
        }
    } else if (what < 200) {
        advance(w, slot);
    } else if (what < 320) {
        take(w, slot);
    } else {
        end(w, slot);
    }
    if (what % 3)
        tiers_post(w->x);
    if (w->exact)
        tiers_wait(w->x);
}

static void day(struct world *w, uint64_t seed, int n_steps)
{
    static const uint64_t masks[] = {UINT64_MAX, UINT64_MAX, 0xff, UINT64_MAX};
    struct seen seen = w->seen;
    struct host_opts h = {.layout = (enum host_layout)(seed % 2)};
    int64_t parts[3];
    struct kv kv;
    *w = (struct world){.r = {seed}, .seen = seen, .exact = seed % 2, .n_stores = 1 + seed % 3 / 2};
    w->lasts = test_below(&w->r, 2);
    tiers_opts_default(&w->o);
    w->o.policy = (enum tiers_policy)test_below(&w->r, 3);
    w->o.min_gain = GAIN;
    w->o.key_mask = w->exact ? UINT64_MAX : masks[test_below(&w->r, 4)];
    struct kv_spec spec = contents_spec(1, 1);
    assert_int_equal(kv_init(&kv, &spec), FST_OK);
    kv_page_bytes(&kv, parts);
    kv_release(&kv);
    h.part_bytes = parts;
    h.n_parts = 3;
    for (int i = 0; i < w->n_stores; i++) {
        h.budget_bytes = w->exact ? 16 << 20 : (4 + test_below(&w->r, 80)) * 3000;
        if (host_open(&w->inner[i], &h) < 0)
            fail_msg("%s", fst_error_text());
        w->keeper[i] = (struct keeper){.r = {seed + 99}};
        if (!w->exact && test_below(&w->r, 2))
            w->keeper[i].lose = w->keeper[i].refuse = test_below(&w->r, 40);
        if (!w->exact && test_below(&w->r, 2))
            w->keeper[i].slow_us = 200;
    }
    begin(w);
    for (int i = 0; i < n_steps; i++) {
        step(w);
        compare(w);
    }
    finish(w);
    for (int i = 0; i < w->n_stores; i++)
        w->inner[i]->ops->close(w->inner[i]);
}

static void test_random_days(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    int days = test_size(60, 2000, 8); /* long: a million operations */
    (void)state;
    assert_non_null(w);
    for (int i = 0; i < days; i++)
        day(w, (uint64_t)i + 1, 500);
    const struct seen *s = &w->seen;
    print_message(
        "%d taken, %d restored, %d loads, %d whole, %d due, %d stopped, %d times no pages, "
        "%d cleared, %d restarts\n",
        s->taken, s->restored, s->loads, s->whole, s->due, s->stopped, s->short_of_pages,
        s->cleared, s->restarts);
    int least = days / 10; /* all of it happens */
    assert_true(s->taken > least && s->restored > least && s->whole > least && s->due > least);
    assert_true(s->cleared > least && s->restarts > least);
    /* How often depends on how fast the other thread is: in eight days perhaps never. */
    assert_true(days < 60 || (s->loads > s->whole && s->stopped > 0 && s->short_of_pages > 0));
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_days)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
