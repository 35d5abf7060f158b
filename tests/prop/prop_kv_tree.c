/* The prefix tree against a plain list of prefixes: random requests that share beginnings, under hashes
 * that collide, few pages and few bytes; after every operation the tree's own check and the model's view.
 *
 * The model knows no links, hashes or lists by use: a prefix is its salt and all its ids, use is a number,
 * and what is to be evicted is searched for.  Rows that a slot holds are computed from all ids up to their
 * position, so that a byte of another prefix is seen wherever it comes from. */
#include "kv/snapshot.h"
#include "kv/tree.h"
#include "support/kv_contents.h"

enum { SLOTS = 5, PAGES = 22, CHUNK = 512, CHUNKS = 36, SALTS = 3 };

static const struct tree_salt salts[SALTS] = {{{0, 0, 0, 0}}, {{1, 0, 0, 0}}, {{0, 0, 0, 1}}};

struct prefix { /* of a node: n is a multiple of 256; of a snapshot: any */
    bool live;
    int salt, n, locks, chunks;
    int32_t page;
    int64_t use;
    int32_t ids[CONTEXT];
};

struct request {
    bool open;
    int salt, n_ids, n, written; /* committed positions, and those that the rings have seen */
    int32_t ids[CONTEXT];
    uint64_t h[CONTEXT]; /* of all ids up to a position */
    int n_pages;
    int32_t page[CONTEXT / 256 + 1];
    struct tree_hold hold;
    struct prefix *node, *snapshot; /* what the hold locks */
};

struct seen { /* what a run has met, so that it cannot be empty without being noticed */
    int evicted_pages, evicted_snapshots, page_budget, byte_budget, restored, at_root, at_end,
        shared, swapped, taken, again, dropped, behind;
};

struct world {
    struct kv kv;
    struct tree t;
    struct test_rng r;
    struct prefix node[PAGES], snapshot[CHUNKS];
    struct request request[SLOTS + 1];
    int n_chunks;
    int64_t newest, oldest;
    struct seen seen;
};

/* ------------------------------------------------------------------ the model */

static bool begins(const struct prefix *p, int salt, const int32_t *ids, int n)
{
    return p->live && p->salt == salt && p->n <= n &&
           memcmp(p->ids, ids, (size_t)p->n * sizeof *ids) == 0;
}

static struct prefix *find(struct prefix *of, int count, int salt, const int32_t *ids, int n)
{
    for (int i = 0; i < count; i++)
        if (of[i].n == n && begins(&of[i], salt, ids, n))
            return &of[i];
    return NULL;
}

static struct prefix *find_node(struct world *w, int salt, const int32_t *ids, int n)
{
    return find(w->node, PAGES, salt, ids, n);
}

/* One that has to be there. */
static struct prefix *known(struct world *w, int salt, const int32_t *ids, int n)
{
    struct prefix *x = find_node(w, salt, ids, n);
    if (!x) {
        fail_msg("the model has lost a prefix of %d ids", n);
        abort();
    }
    return x;
}

static struct prefix *find_snapshot(struct world *w, int salt, const int32_t *ids, int n)
{
    return find(w->snapshot, CHUNKS, salt, ids, n);
}

static bool is_leaf(struct world *w, const struct prefix *x)
{
    for (int i = 0; i < PAGES; i++)
        if (w->node[i].n > x->n && w->node[i].live &&
            begins(x, w->node[i].salt, w->node[i].ids, x->n))
            return false;
    return true;
}

static bool hangs_on(const struct prefix *s, const struct prefix *x)
{
    return s->live && s->n / 256 * 256 == x->n && begins(x, s->salt, s->ids, s->n);
}

/* A leaf from which nobody can go on. */
static bool bare(struct world *w, const struct prefix *x)
{
    for (int i = 0; i < CHUNKS; i++)
        if (hangs_on(&w->snapshot[i], x))
            return false;
    return is_leaf(w, x);
}

static void use(struct world *w, struct prefix *x)
{
    x->use = bare(w, x) ? --w->oldest : ++w->newest;
}

static void settle(struct world *w, struct prefix *x)
{
    if (x && !x->locks && bare(w, x))
        x->use = --w->oldest;
}

static void use_path(struct world *w, int salt, const int32_t *ids, int n)
{
    for (int k = n / 256; k > 0; k--) {
        struct prefix *x = known(w, salt, ids, 256 * k);
        if (x->locks)
            return;
        use(w, x);
    }
}

static void lock_path(struct world *w, struct prefix *x, int by)
{
    for (int n = x ? x->n : 0; n > 0; n -= 256) {
        struct prefix *p = known(w, x->salt, x->ids, n);
        p->locks += by;
        assert_true(p->locks >= 0);
        if (by < 0 && p->locks == 0)
            use(w, p);
    }
}

static int owners(struct world *w, int32_t page)
{
    int n = 0;
    for (int s = 1; s <= SLOTS; s++)
        for (int i = 0; i < w->request[s].n_pages; i++)
            n += w->request[s].page[i] == page;
    for (int i = 0; i < PAGES; i++)
        n += w->node[i].live && w->node[i].page == page;
    return n;
}

static int free_pages(struct world *w)
{
    int n = 0;
    for (int32_t p = 1; p <= PAGES; p++)
        n += owners(w, p) == 0;
    return n;
}

static int idle_pages(struct world *w)
{
    int n = 0;
    for (int i = 0; i < PAGES; i++)
        n += w->node[i].live && !w->node[i].locks && owners(w, w->node[i].page) == 1;
    return n;
}

static int chunks_of(struct world *w, bool unlocked_only)
{
    int n = 0;
    for (int i = 0; i < CHUNKS; i++)
        if (w->snapshot[i].live && !(unlocked_only && w->snapshot[i].locks))
            n += w->snapshot[i].chunks;
    return n;
}

static struct prefix *least_used(struct prefix *of, int count)
{
    struct prefix *x = NULL;
    for (int i = 0; i < count; i++)
        if (of[i].live && !of[i].locks && (!x || of[i].use < x->use))
            x = &of[i];
    return x;
}

static void remove_snapshot(struct world *w, struct prefix *s)
{
    s->live = false;
    settle(w, find_node(w, s->salt, s->ids, s->n / 256 * 256));
}

static bool evict_node(struct world *w)
{
    struct prefix *x = least_used(w->node, PAGES);
    if (!x)
        return false;
    assert_true(is_leaf(w, x));
    for (int i = 0; i < CHUNKS; i++)
        if (hangs_on(&w->snapshot[i], x)) {
            assert_int_equal(w->snapshot[i].locks, 0);
            w->snapshot[i].live = false;
        }
    x->live = false;
    settle(w, find_node(w, x->salt, x->ids, x->n - 256));
    w->seen.evicted_pages++;
    return true;
}

/* Does a slot get so many pages?  Evicts for them. */
static bool room_for(struct world *w, int more)
{
    if (more > free_pages(w) + idle_pages(w)) {
        w->seen.page_budget++;
        return false;
    }
    while (more > free_pages(w))
        assert_true(evict_node(w));
    return true;
}

/* The slot's new pages are whatever was free. */
static void learn_pages(struct world *w, int slot)
{
    struct request *q = &w->request[slot];
    for (int i = q->n_pages; i < w->kv.slots[slot].n_pages; i++) {
        int32_t page = w->kv.pages[slot * w->kv.page_stride + i];
        assert_int_equal(owners(w, page), 0);
        q->page[q->n_pages++] = page;
    }
}

static void model_insert(struct world *w, int slot, int n, bool held)
{
    struct request *q = &w->request[slot];
    struct prefix *last = NULL;
    for (int k = 0; k < n / 256; k++) {
        struct prefix *x = find_node(w, q->salt, q->ids, 256 * (k + 1));
        if (x && q->page[k] != x->page) {
            q->page[k] = x->page;
            w->seen.swapped++;
        }
        if (!x) {
            for (x = w->node; x->live; x++)
                assert_true(x < w->node + PAGES - 1);
            *x = (struct prefix){
                .live = true, .salt = q->salt, .n = 256 * (k + 1), .page = q->page[k]};
            memcpy(x->ids, q->ids, sizeof x->ids);
        }
        last = x;
    }
    use_path(w, q->salt, q->ids, n);
    if (held && last && last->n > (q->node ? q->node->n : 0)) {
        lock_path(w, last, 1);
        lock_path(w, q->node, -1);
        q->node = last;
    }
}

static void model_unlock(struct world *w, struct request *q)
{
    if (q->snapshot && --q->snapshot->locks == 0)
        q->snapshot->use = ++w->newest;
    lock_path(w, q->node, -1);
    q->node = q->snapshot = NULL;
}

/* ------------------------------------------------------------------ contents */

static void compare_contents(struct world *w, int slot)
{
    compare_rows(&w->kv, slot, w->request[slot].n, w->request[slot].h);
}

/* ------------------------------------------------------------------ requests */

static void add_ids(struct test_rng *r, struct request *q, int n_ids)
{
    int letter = 0;
    for (int i = q->n_ids; i < n_ids; i++) {
        if (i % 256 == 0 || i == q->n_ids)
            letter = test_below(r, 3) ? 0 : test_below(r, LETTERS);
        q->ids[i] = token(letter, i % 256);
        q->h[i] = mix(i ? q->h[i - 1] : (uint64_t)q->salt, (uint64_t)q->ids[i]);
    }
    q->n_ids = n_ids;
}

static void some_prompt(struct world *w, struct request *q)
{
    *q = (struct request){.salt = test_below(&w->r, 4) ? 0 : test_below(&w->r, SALTS)};
    add_ids(&w->r, q, FST_MAX(1, some_length(&w->r)));
    /* Half of them go on from something known, be it a token that is one too many or too few. */
    struct prefix *s = &w->snapshot[test_below(&w->r, CHUNKS)];
    if (!s->live || test_below(&w->r, 2))
        return;
    int old = FST_MAX(1, s->n - test_below(&w->r, 2)), n = FST_MAX(q->n_ids, old);
    q->salt = s->salt;
    for (int i = 0; i < old; i++)
        q->h[i] = mix(i ? q->h[i - 1] : (uint64_t)q->salt, (uint64_t)(q->ids[i] = s->ids[i]));
    q->n_ids = old;
    add_ids(&w->r, q, FST_MIN(n + test_below(&w->r, 3), CONTEXT - 30));
}

static void check_match(struct world *w, int salt, const int32_t *ids, int n_ids,
                        struct tree_hit *hit, struct prefix **snapshot)
{
    int full = 0;
    *snapshot = NULL;
    tree_match(&w->t, &salts[salt], ids, n_ids, hit);
    while (full + 256 <= n_ids && find_node(w, salt, ids, full + 256))
        full += 256;
    for (int i = 0; i < CHUNKS; i++)
        if (begins(&w->snapshot[i], salt, ids, n_ids - 1) &&
            (!*snapshot || w->snapshot[i].n > (*snapshot)->n))
            *snapshot = &w->snapshot[i];
    assert_int_equal(hit->n_full, full);
    assert_int_equal(hit->n_restore, *snapshot ? (*snapshot)->n : 0);
    assert_int_equal(hit->snapshot != 0, *snapshot != NULL);
}

static void restore(struct world *w, int slot, const struct tree_hit *hit, struct prefix *s)
{
    struct request *q = &w->request[slot];
    int shared = s->n / 256;
    struct prefix *node = find_node(w, q->salt, q->ids, 256 * shared);
    int64_t was_newest = w->newest, was_oldest = w->oldest;
    enum fst_status rc = tree_restore(&w->t, slot, hit, q->n_ids, &q->hold);
    int64_t uses[CONTEXT / 256] = {0};
    for (int k = 1; k <= shared; k++)
        uses[k - 1] = known(w, q->salt, q->ids, 256 * k)->use;
    /* The model locks first: what is idle on the way there is not free for the rest. */
    lock_path(w, node, 1);
    if (!room_for(w, (int)div_up(q->n_ids, 256) - shared)) {
        assert_int_equal(rc, FST_EBUDGET);
        lock_path(w, node, -1);
        w->newest = was_newest; /* and nothing has been used */
        w->oldest = was_oldest;
        for (int k = 1; k <= shared; k++)
            known(w, q->salt, q->ids, 256 * k)->use = uses[k - 1];
        assert_int_equal(q->hold.node, 0);
        assert_int_equal(q->hold.snapshot, 0);
        kv_slot_close(&w->kv, slot);
        q->open = false;
        return;
    }
    assert_int_equal(rc, FST_OK);
    s->locks++;
    q->node = node;
    q->snapshot = s;
    for (int k = 0; k < shared; k++)
        q->page[q->n_pages++] = known(w, q->salt, q->ids, 256 * (k + 1))->page;
    learn_pages(w, slot);
    q->n = q->written = s->n;
    assert_int_equal(w->kv.slots[slot].n_committed, s->n);
    compare_contents(w, slot);
    w->seen.restored++;
    w->seen.at_root += shared == 0;
    w->seen.at_end += s->n % 256 == 0;
    w->seen.shared += shared;
}

static void admit(struct world *w)
{
    int slot;
    struct request q;
    struct tree_hit hit;
    struct prefix *s;
    some_prompt(w, &q);
    check_match(w, q.salt, q.ids, q.n_ids, &hit, &s);
    if (w->kv.n_free_slots == 0)
        return;
    assert_int_equal(kv_slot_open(&w->kv, &slot), FST_OK);
    q.open = true;
    w->request[slot] = q;
    if (s && test_below(&w->r, 8)) {
        restore(w, slot, &hit, s);
        return;
    }
    enum fst_status rc = kv_reserve(&w->kv, slot, q.n_ids);
    if (room_for(w, (int)div_up(q.n_ids, 256))) {
        assert_int_equal(rc, FST_OK);
        learn_pages(w, slot);
        return;
    }
    assert_int_equal(rc, FST_EBUDGET);
    kv_slot_close(&w->kv, slot);
    w->request[slot].open = false;
}

/* Some positions more, and behind them those of rejected drafts. */
static void advance(struct world *w, int slot)
{
    struct request *q = &w->request[slot];
    if (q->n == q->n_ids) {
        int more = 1 + test_below(&w->r, 20);
        if (q->n_ids + more > CONTEXT - 4)
            return;
        int need = (int)div_up(q->n_ids + more, 256) - q->n_pages;
        enum fst_status rc = kv_reserve(&w->kv, slot, q->n_ids + more);
        if (!room_for(w, FST_MAX(0, need))) {
            assert_int_equal(rc, FST_EBUDGET);
            return;
        }
        assert_int_equal(rc, FST_OK);
        learn_pages(w, slot);
        add_ids(&w->r, q, q->n_ids + more);
    }
    int to = test_below(&w->r, 3) ? q->n_ids : q->n + 1 + test_below(&w->r, q->n_ids - q->n);
    if (test_below(&w->r, 4) == 0)
        to = (int)FST_MIN(to, round_up(q->n + 1, 256));
    int rejected = test_below(&w->r, (int)kv_snapshot_slack(&w->kv) + 1);
    rejected = FST_MIN(rejected, 256 * q->n_pages - to);
    for (; q->n < to; q->n++)
        compute(&w->kv, slot, q->n, q->h[q->n]);
    for (int i = 0; i < rejected; i++)
        compute(&w->kv, slot, to + i, test_next(&w->r));
    q->written = FST_MAX(q->written, to + rejected);
    kv_commit(&w->kv, slot, q->n);
}

static void insert(struct world *w, int slot, bool held)
{
    struct request *q = &w->request[slot];
    int n = test_below(&w->r, 4) ? q->n : test_below(&w->r, q->n + 1), before = (int)w->t.n_nodes;
    int64_t n_new = tree_insert(&w->t, slot, &salts[q->salt], q->ids, n, held ? &q->hold : NULL);
    assert_int_equal(n_new, w->t.n_nodes - before);
    model_insert(w, slot, n, held);
}

static void take(struct world *w, int slot, bool held)
{
    struct request *q = &w->request[slot];
    int slack = (int)kv_snapshot_slack(&w->kv);
    int n = q->n - test_below(&w->r, slack - (q->written - q->n) + 1);
    if (n < FST_MAX(1, w->kv.slots[slot].n_restored))
        return;
    int chunks = (int)div_up(kv_snapshot_bytes(&w->kv, n), CHUNK);
    struct prefix *s = find_snapshot(w, q->salt, q->ids, n);
    enum fst_status rc =
        tree_take(&w->t, slot, &salts[q->salt], q->ids, n, q->written, held ? &q->hold : NULL);
    if (!s && chunks > w->n_chunks - chunks_of(w, false) + chunks_of(w, true)) {
        assert_int_equal(rc, FST_EBUDGET);
        w->seen.byte_budget++;
        return;
    }
    assert_int_equal(rc, FST_OK);
    while (!s && chunks > w->n_chunks - chunks_of(w, false)) {
        remove_snapshot(w, least_used(w->snapshot, CHUNKS));
        w->seen.evicted_snapshots++;
    }
    model_insert(w, slot, n, held);
    w->seen.again += s != NULL;
    w->seen.taken += !s;
    w->seen.behind += q->written > n;
    if (s) {
        if (!s->locks)
            s->use = ++w->newest;
        return;
    }
    for (s = w->snapshot; s->live; s++)
        assert_true(s < w->snapshot + CHUNKS - 1);
    *s = (struct prefix){
        .live = true, .salt = q->salt, .n = n, .chunks = chunks, .use = ++w->newest};
    memcpy(s->ids, q->ids, sizeof s->ids);
    use_path(w, q->salt, q->ids, n);
}

static void end(struct world *w, int slot)
{
    struct request *q = &w->request[slot];
    compare_contents(w, slot);
    tree_unlock(&w->t, &q->hold);
    model_unlock(w, q);
    kv_slot_close(&w->kv, slot);
    *q = (struct request){0};
}

static void drop(struct world *w)
{
    struct prefix *s = &w->snapshot[test_below(&w->r, CHUNKS)];
    int n = s->n - !test_below(&w->r, 4);
    if (!s->live || n < 1)
        return;
    struct prefix *at = find_snapshot(w, s->salt, s->ids, n);
    bool may = at && !at->locks;
    assert_int_equal(tree_drop(&w->t, &salts[s->salt], s->ids, n), may);
    if (may)
        remove_snapshot(w, at);
    w->seen.dropped += may;
}

static void flush(struct world *w)
{
    struct prefix *s;
    tree_flush(&w->t);
    while ((s = least_used(w->snapshot, CHUNKS)))
        remove_snapshot(w, s);
    while (evict_node(w))
        continue;
}

/* ------------------------------------------------------------------ days */

static void compare(struct world *w)
{
    int nodes = 0, snapshots = 0;
    struct tree_hit hit;
    struct prefix *s;
    if (tree_check(&w->t) < 0)
        fail_msg("%s", fst_error_text());
    assert_int_equal(w->kv.n_free_pages, free_pages(w));
    assert_int_equal(w->kv.n_idle_pages, idle_pages(w));
    assert_int_equal(w->t.n_free_chunks, w->n_chunks - chunks_of(w, false));
    assert_int_equal(w->t.n_idle_chunks, chunks_of(w, true));
    for (int i = 0; i < PAGES; i++) {
        struct prefix *x = &w->node[i];
        if (!x->live)
            continue;
        nodes++;
        check_match(w, x->salt, x->ids, x->n, &hit, &s);
        assert_int_equal(hit.node, x->page);
        assert_int_equal(w->t.node[x->page].locks, x->locks);
        assert_int_equal(w->kv.page_refs[x->page], owners(w, x->page));
    }
    for (int i = 0; i < CHUNKS; i++) {
        struct prefix *x = &w->snapshot[i];
        if (!x->live)
            continue;
        snapshots++;
        check_match(w, x->salt, x->ids, x->n + 1, &hit, &s);
        assert_ptr_equal(s, x);
        assert_int_equal(w->t.snapshot[hit.snapshot].locks, x->locks);
    }
    assert_int_equal(w->t.n_nodes, nodes);
    assert_int_equal(w->t.n_snapshots, snapshots);
    for (int slot = 1; slot <= SLOTS; slot++) {
        const struct request *q = &w->request[slot];
        assert_int_equal(w->kv.slots[slot].used, q->open);
        assert_int_equal(w->kv.slots[slot].n_pages, q->open ? q->n_pages : 0);
        for (int i = 0; q->open && i < q->n_pages; i++)
            assert_int_equal(w->kv.pages[slot * w->kv.page_stride + i], q->page[i]);
    }
}

static void step(struct world *w)
{
    int slot = 1 + test_below(&w->r, SLOTS), what = test_below(&w->r, 64);
    bool held = test_below(&w->r, 2);
    struct request *q = &w->request[slot];
    if (what == 0)
        flush(w);
    else if (what < 3)
        assert_int_equal(tree_evict(&w->t), evict_node(w));
    else if (what < 7)
        drop(w);
    else if (!q->open)
        admit(w);
    else if (what < 28)
        advance(w, slot);
    else if (what < 36)
        insert(w, slot, held);
    else if (what < 52)
        take(w, slot, held);
    else if (what < 54) {
        tree_unlock(&w->t, &q->hold);
        model_unlock(w, q);
    } else if (what < 56)
        compare_contents(w, slot);
    else
        end(w, slot);
}

static void day(struct world *w, uint64_t seed, uint64_t hash_mask, int n_steps)
{
    struct kv_spec spec = contents_spec(SLOTS, PAGES);
    struct seen seen = w->seen;
    *w = (struct world){.r = {seed}, .n_chunks = CHUNKS / (1 + (int)(seed % 3)), .seen = seen};
    struct tree_opts o = {.budget_bytes = CHUNK * w->n_chunks + CHUNK - 1,
                          .chunk_bytes = CHUNK,
                          .hash_mask = hash_mask};
    struct stream stream = {.precision = PRECISION_NATIVE};
    struct kernels kernels;
    kernels_init(&kernels, 0);
    if (seed % 2) { /* else run by run */
        o.kernels = &kernels;
        o.stream = &stream;
    }
    assert_int_equal(kv_init(&w->kv, &spec), FST_OK);
    assert_int_equal(tree_init(&w->t, &w->kv, &o), FST_OK);
    for (int i = 0; i < n_steps; i++) {
        step(w);
        compare(w);
    }
    for (int slot = 1; slot <= SLOTS; slot++)
        if (w->request[slot].open)
            end(w, slot);
    flush(w);
    compare(w);
    assert_int_equal(w->kv.n_free_pages, PAGES);
    assert_int_equal(w->t.n_free_chunks, w->n_chunks);
    tree_release(&w->t);
    assert_int_equal(kv_check(&w->kv), FST_OK);
    kv_release(&w->kv);
}

static void test_random_days(void **state)
{
    static const uint64_t mask[] = {UINT64_MAX, 0, 1, 7};
    struct world *w = calloc(1, sizeof *w);
    int days = test_size(96, 1000, 12);
    (void)state;
    assert_non_null(w);
    for (int i = 0; i < days; i++)
        day(w, (uint64_t)i + 1, mask[i % 4], 1000);
    const struct seen *s = &w->seen;
    print_message(
        "%d pages and %d snapshots evicted, refused %d for pages and %d for bytes; "
        "%d restored (%d at the root, %d where a page ends, %d pages shared), %d swapped, "
        "%d taken (%d behind), %d there already, %d dropped\n",
        s->evicted_pages, s->evicted_snapshots, s->page_budget, s->byte_budget, s->restored,
        s->at_root, s->at_end, s->shared, s->swapped, s->taken, s->behind, s->again, s->dropped);
    int least = days / 4; /* all of it happens, and often */
    assert_true(s->evicted_pages > least && s->evicted_snapshots > least);
    assert_true(s->page_budget > least && s->byte_budget > least);
    assert_true(s->restored > least && s->at_root > least && s->at_end > least);
    assert_true(s->shared > least && s->swapped > least && s->taken > least);
    assert_true(s->again > least && s->dropped > least && s->behind > least);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_days)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
