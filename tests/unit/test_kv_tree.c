/* The prefix tree at its edges: where pages end, what one token changes, locks, what goes first, what is
 * refused, what the check finds, and memory that only the device reaches. */
#include "kernels/rows.h"
#include "kv/snapshot.h"
#include "kv/tree.h"
#include "support/cm.h"
#include "support/far.h"

enum { PAGES = 12, CONTEXT = 256 * 8 };

static const struct tree_salt nobody = {{0}}, alice = {{1}}, bob = {{0, 0, 0, 1}};

struct fixture {
    struct kv kv;
    struct tree t;
};

static struct kv_spec small(void)
{
    return (struct kv_spec){.n_layers = 3,
                            .ratio = {4, 128, 0},
                            .head_dim = 4,
                            .rope_dim = 2,
                            .index_dim = 2,
                            .window = 8,
                            .block = 3,
                            .format = ROW_F32,
                            .index_format = INDEX_F32,
                            .n_slots = 3,
                            .n_pages = PAGES,
                            .context_length = CONTEXT};
}

static void start(struct fixture *f, int64_t budget_bytes)
{
    struct kv_spec spec = small();
    struct tree_opts o;
    tree_opts_default(&o);
    o.budget_bytes = budget_bytes;
    o.chunk_bytes = 256;
    assert_int_equal(kv_init(&f->kv, &spec), FST_OK);
    assert_int_equal(tree_init(&f->t, &f->kv, &o), FST_OK);
}

static void check(struct fixture *f)
{
    if (tree_check(&f->t) < 0)
        fail_msg("%s", fst_error_text());
}

static void stop(struct fixture *f)
{
    check(f);
    tree_release(&f->t);
    assert_int_equal(kv_check(&f->kv), FST_OK);
    kv_release(&f->kv);
}

/* n ids that agree with any other such up to the shorter one's end. */
static void counting(int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[i] = 3 * i;
}

/* A request that has computed n positions; its slot. */
static int ran(struct fixture *f, int n)
{
    int slot;
    assert_int_equal(kv_slot_open(&f->kv, &slot), FST_OK);
    assert_int_equal(kv_reserve(&f->kv, slot, n), FST_OK);
    kv_commit(&f->kv, slot, n);
    return slot;
}

/* It ends, and leaves a snapshot behind. */
static void leave(struct fixture *f, const struct tree_salt *salt, const int32_t *ids, int n)
{
    int slot = ran(f, n);
    assert_int_equal(tree_take(&f->t, slot, salt, ids, n, n, NULL), FST_OK);
    kv_slot_close(&f->kv, slot);
    check(f);
}

static int64_t restorable(struct fixture *f, const struct tree_salt *salt, const int32_t *ids,
                          int n)
{
    struct tree_hit hit;
    tree_match(&f->t, salt, ids, n, &hit);
    assert_int_equal(hit.n_restore, hit.snapshot ? f->t.snapshot[hit.snapshot].n : 0);
    assert_true(hit.n_restore < n || n == 0);
    return hit.n_restore;
}

static int64_t full(struct fixture *f, const struct tree_salt *salt, const int32_t *ids, int n)
{
    struct tree_hit hit;
    tree_match(&f->t, salt, ids, n, &hit);
    assert_int_equal(hit.n_full % 256, 0);
    return hit.n_full;
}

static int64_t common(struct fixture *f, const struct tree_salt *salt, const int32_t *ids, int n,
                      bool *differs)
{
    struct tree_hit hit;
    tree_match(&f->t, salt, ids, n, &hit);
    return tree_common(&f->t, salt, ids, n, &hit, differs);
}

static int restored(struct fixture *f, const struct tree_salt *salt, const int32_t *ids, int n,
                    int64_t at, struct tree_hold *hold)
{
    struct tree_hit hit;
    int slot;
    tree_match(&f->t, salt, ids, n, &hit);
    assert_int_equal(hit.n_restore, at);
    assert_int_equal(kv_slot_open(&f->kv, &slot), FST_OK);
    assert_int_equal(tree_restore(&f->t, slot, &hit, n, hold), FST_OK);
    assert_int_equal(f->kv.slots[slot].n_committed, at);
    check(f);
    return slot;
}

/* ------------------------------------------------------------------ what is found */

static void test_residues(void **state)
{
    static const int residue[] = {0, 1, 127, 128, 255};
    (void)state;
    for (int page = 0; page < 3; page++)
        for (size_t i = 0; i < FST_COUNT(residue); i++) {
            struct fixture f;
            int32_t ids[CONTEXT], n = 256 * page + residue[i];
            if (n == 0)
                continue;
            counting(ids, CONTEXT);
            start(&f, 1 << 16);
            leave(&f, &nobody, ids, n);
            assert_int_equal(f.t.n_nodes, page);
            assert_int_equal(restorable(&f, &nobody, ids, n + 1), n);
            assert_int_equal(restorable(&f, &nobody, ids, CONTEXT), n);
            assert_int_equal(restorable(&f, &nobody, ids, n), 0); /* one has to be computed */
            assert_int_equal(full(&f, &nobody, ids, n), 256 * page);
            assert_int_equal(full(&f, &nobody, ids, CONTEXT), 256 * page);
            /* other tokens in the first place, in the last one, and in the first of the tail */
            int place[] = {0, n - 1, FST_MIN(256 * page, n - 1)};
            for (int k = 0; k < 3; k++) {
                ids[place[k]]++;
                assert_int_equal(restorable(&f, &nobody, ids, n + 1), 0);
                assert_int_equal(full(&f, &nobody, ids, n + 1), place[k] / 256 * 256);
                ids[place[k]]--;
            }
            ids[n]++; /* the first that the snapshot knows nothing about */
            assert_int_equal(restorable(&f, &nobody, ids, n + 1), n);
            stop(&f);
        }
}

static uint32_t noted(struct fixture *f, const int32_t *ids, int n)
{
    struct tree_hit hit;
    tree_match(&f->t, &nobody, ids, n + 1, &hit);
    assert_int_equal(hit.n_restore, n);
    return f->t.snapshot[hit.snapshot].note;
}

/* What was noted when a snapshot's bytes were taken stays as long as these; nobody else's is touched. */
static void test_notes(void **state)
{
    struct fixture f;
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 1 << 16);
    leave(&f, &nobody, ids, 40);
    leave(&f, &nobody, ids, 300);
    assert_int_equal(noted(&f, ids, 40), 0);
    tree_note(&f.t, &nobody, ids, 40, 1);
    tree_note(&f.t, &nobody, ids, 41, 5); /* there is none */
    assert_int_equal(noted(&f, ids, 40), 1);
    assert_int_equal(noted(&f, ids, 300), 0);
    leave(&f, &nobody, ids, 40); /* taken again: the bytes stay, and so does what is said of them */
    tree_note(&f.t, &nobody, ids, 40, 2);
    assert_int_equal(noted(&f, ids, 40), 1);
    assert_true(tree_drop(&f.t, &nobody, ids, 40));
    leave(&f, &nobody, ids, 40);
    assert_int_equal(noted(&f, ids, 40), 0);
    stop(&f);
}

static void test_longest(void **state)
{
    static const int at[] = {300, 100, 512, 700, 256, 511, 513, 5};
    struct fixture f;
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 1 << 18);
    for (size_t i = 0; i < FST_COUNT(at); i++)
        leave(&f, &nobody, ids, at[i]);
    for (int n = 0; n < 900; n++) {
        int best = 0;
        for (size_t i = 0; i < FST_COUNT(at); i++)
            best = at[i] < n ? FST_MAX(best, at[i]) : best;
        assert_int_equal(restorable(&f, &nobody, ids, n), best);
    }
    ids[600]++; /* on another way from here on */
    assert_int_equal(restorable(&f, &nobody, ids, 900), 513);
    ids[512]++;
    assert_int_equal(restorable(&f, &nobody, ids, 900), 512);
    ids[255]++;
    assert_int_equal(restorable(&f, &nobody, ids, 900), 100);
    stop(&f);
}

static void test_nothing(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 1 << 16);
    assert_int_equal(restorable(&f, &nobody, NULL, 0), 0);
    assert_int_equal(restorable(&f, &nobody, ids, 600), 0);
    int slot = ran(&f, 255);
    assert_int_equal(tree_insert(&f.t, slot, &nobody, NULL, 0, &hold), 0);
    assert_int_equal(tree_insert(&f.t, slot, &nobody, ids, 255, &hold), 0);
    assert_int_equal(f.t.n_nodes, 0);
    assert_int_equal(hold.node, 0);
    tree_unlock(&f.t, &hold);
    assert_false(tree_evict(&f.t));
    assert_false(tree_drop(&f.t, &nobody, ids, 255));
    kv_slot_close(&f.kv, slot);
    leave(&f, &nobody, ids, 20); /* shorter than a page: the root's */
    assert_int_equal(restorable(&f, &nobody, NULL, 0), 0);
    assert_int_equal(restorable(&f, &nobody, ids, 21), 20);
    assert_int_equal(restorable(&f, &nobody, ids, 600), 20);
    assert_false(tree_drop(&f.t, &nobody, ids, 19));
    assert_true(tree_drop(&f.t, &nobody, ids, 20));
    assert_int_equal(restorable(&f, &nobody, ids, 21), 0);
    stop(&f);
}

static void test_salts(void **state)
{
    static const int at[] = {20, 256, 700};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(at); i++) {
        struct fixture f;
        int32_t ids[CONTEXT];
        counting(ids, CONTEXT);
        start(&f, 1 << 16);
        leave(&f, &alice, ids, at[i]);
        assert_int_equal(restorable(&f, &alice, ids, 900), at[i]);
        assert_int_equal(restorable(&f, &bob, ids, 900), 0);
        assert_int_equal(restorable(&f, &nobody, ids, 900), 0);
        assert_int_equal(full(&f, &bob, ids, 900), 0);
        leave(&f, &bob, ids, at[i]); /* pages of their own */
        assert_int_equal(f.t.n_nodes, 2 * (at[i] / 256));
        assert_int_equal(f.t.n_snapshots, 2);
        assert_true(tree_drop(&f.t, &alice, ids, at[i]));
        assert_int_equal(restorable(&f, &alice, ids, 900), 0);
        assert_int_equal(restorable(&f, &bob, ids, 900), at[i]);
        stop(&f);
    }
}

/* ------------------------------------------------------------------ pages with several owners */

static void test_shared_and_swapped(void **state)
{
    struct fixture f;
    struct tree_hold a = {0}, b = {0};
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 1 << 16);
    int one = ran(&f, 600), two = ran(&f, 600); /* side by side: each has its own */
    assert_int_equal(f.kv.n_free_pages, PAGES - 6);
    assert_int_equal(tree_insert(&f.t, one, &nobody, ids, 600, &a), 2);
    assert_int_equal(f.kv.n_free_pages, PAGES - 6);
    assert_int_equal(tree_insert(&f.t, two, &nobody, ids, 600, &b), 0);
    assert_int_equal(f.kv.n_free_pages, PAGES - 4);
    const int32_t *p = f.kv.pages + one * f.kv.page_stride;
    const int32_t *q = f.kv.pages + two * f.kv.page_stride;
    assert_memory_equal(p, q, 2 * sizeof *p);
    assert_int_not_equal(p[2], q[2]);
    assert_int_equal(f.kv.page_refs[p[0]], 3);
    check(&f);
    kv_slot_close(&f.kv, one);
    assert_int_equal(tree_insert(&f.t, two, &nobody, ids, 600, &b), 0); /* once more */
    check(&f);
    tree_unlock(&f.t, &a);
    tree_unlock(&f.t, &b);
    assert_int_equal(f.kv.n_idle_pages, 0); /* two still holds them */
    kv_slot_close(&f.kv, two);
    assert_int_equal(f.kv.n_idle_pages, 2);
    assert_int_equal(f.kv.n_free_pages, PAGES - 2);
    stop(&f);
}

/* A slot goes on behind pages that the tree has let go of meanwhile; they are its own then. */
static void test_evicted_under_a_slot(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 1 << 16);
    leave(&f, &nobody, ids, 512);
    int slot = restored(&f, &nobody, ids, 700, 512, &hold);
    assert_false(tree_evict(&f.t)); /* it relies on them */
    tree_unlock(&f.t, &hold);
    assert_true(tree_evict(&f.t));
    assert_true(tree_evict(&f.t));
    assert_false(tree_evict(&f.t));
    check(&f);
    assert_int_equal(f.kv.n_free_pages, PAGES - 3);
    kv_commit(&f.kv, slot, 700);
    assert_int_equal(tree_insert(&f.t, slot, &nobody, ids, 700, NULL), 2);
    kv_slot_close(&f.kv, slot);
    stop(&f);
}

/* ------------------------------------------------------------------ locks, order, refusals */

static void test_locks_nest(void **state)
{
    struct fixture f;
    struct tree_hold a = {0}, b = {0};
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 1 << 16);
    leave(&f, &nobody, ids, 600);
    int one = restored(&f, &nobody, ids, 700, 600, &a);
    int two = restored(&f, &nobody, ids, 700, 600, &b);
    kv_slot_close(&f.kv, one);
    tree_unlock(&f.t, &a);
    assert_int_equal(a.node, 0);
    assert_int_equal(a.snapshot, 0);
    check(&f);
    assert_false(tree_evict(&f.t));
    assert_false(tree_drop(&f.t, &nobody, ids, 600));
    tree_flush(&f.t);
    assert_int_equal(restorable(&f, &nobody, ids, 700), 600);
    kv_slot_close(&f.kv, two);
    assert_false(tree_evict(&f.t)); /* the hold counts, not the slot */
    tree_unlock(&f.t, &b);
    check(&f);
    assert_true(tree_drop(&f.t, &nobody, ids, 600));
    assert_true(tree_evict(&f.t));
    assert_true(tree_evict(&f.t));
    assert_false(tree_evict(&f.t));
    stop(&f);
}

/* The hold follows a request to the pages it fills, and never back. */
static void test_hold_moves(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 1 << 16);
    leave(&f, &nobody, ids, 300);
    int slot = restored(&f, &nobody, ids, 900, 300, &hold);
    int32_t first = hold.node;
    kv_commit(&f.kv, slot, 900);
    assert_int_equal(tree_insert(&f.t, slot, &nobody, ids, 900, &hold), 2);
    assert_int_equal(f.t.node[hold.node].depth, 3);
    assert_int_equal(f.t.node[first].locks, 1);
    assert_int_equal(tree_insert(&f.t, slot, &nobody, ids, 512, &hold), 0);
    assert_int_equal(f.t.node[hold.node].depth, 3);
    check(&f);
    kv_slot_close(&f.kv, slot);
    assert_false(tree_evict(&f.t));
    tree_unlock(&f.t, &hold);
    assert_int_equal(f.t.node[first].locks, 0);
    assert_int_equal(f.t.snapshot_use[0].newer != 0, true);
    stop(&f);
}

/* What goes first: a leaf from which nobody goes on, then the least recently used. */
static void test_order(void **state)
{
    struct fixture f;
    int32_t a[CONTEXT], b[CONTEXT], c[CONTEXT];
    (void)state;
    counting(a, CONTEXT);
    counting(b, CONTEXT);
    counting(c, CONTEXT);
    b[256] = 1; /* a and b part after a page, c at once */
    c[0] = 1;
    start(&f, 1 << 16);
    leave(&f, &nobody, a, 600);
    leave(&f, &nobody, c, 260);
    leave(&f, &nobody, b, 600);
    int slot = ran(&f, 1100); /* a once more, and further, without a snapshot there */
    assert_int_equal(tree_insert(&f.t, slot, &nobody, a, 1100, NULL), 2);
    kv_slot_close(&f.kv, slot);
    assert_int_equal(f.t.n_nodes, 6);
    struct tree_hold hold = {0};
    slot = restored(&f, &nobody, c, 300, 260, &hold); /* so c is used again */
    kv_slot_close(&f.kv, slot);
    tree_unlock(&f.t, &hold);
    assert_true(tree_evict(&f.t)); /* the page that ends at 1024, then the one at 768 */
    assert_int_equal(full(&f, &nobody, a, 1100), 768);
    assert_true(tree_evict(&f.t));
    assert_int_equal(full(&f, &nobody, a, 1100), 512);
    assert_int_equal(restorable(&f, &nobody, a, 1100), 600);
    assert_true(tree_evict(&f.t)); /* b, older than a's second life */
    assert_int_equal(restorable(&f, &nobody, b, 900), 0);
    assert_int_equal(full(&f, &nobody, b, 900), 256);
    assert_int_equal(restorable(&f, &nobody, a, 900), 600);
    assert_true(tree_evict(&f.t)); /* a's last page, then the first, which is no use by now */
    assert_int_equal(full(&f, &nobody, a, 900), 256);
    assert_true(tree_evict(&f.t));
    assert_int_equal(full(&f, &nobody, a, 900), 0);
    assert_int_equal(restorable(&f, &nobody, c, 300), 260);
    stop(&f);
}

/* A beginning that all chats share outlives them, though the budget holds three. */
static void test_shared_beginning_stays(void **state)
{
    struct fixture f;
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 0);
    int64_t bytes = kv_snapshot_bytes(&f.kv, 300) + 2 * kv_snapshot_bytes(&f.kv, 380) + 3 * 256;
    stop(&f);
    start(&f, bytes);
    leave(&f, &nobody, ids, 300);
    for (int turn = 0; turn < 60; turn++) {
        struct tree_hold hold = {0};
        ids[300] = 1000000 + turn % 20;
        int64_t at = restorable(&f, &nobody, ids, 381);
        assert_int_equal(at, 300); /* that chat's own has long gone */
        int slot = restored(&f, &nobody, ids, 381, at, &hold);
        kv_commit(&f.kv, slot, 380);
        assert_int_equal(tree_take(&f.t, slot, &nobody, ids, 380, 380, &hold), FST_OK);
        tree_unlock(&f.t, &hold);
        kv_slot_close(&f.kv, slot);
        assert_int_equal(restorable(&f, &nobody, ids, 381), 380);
        check(&f);
    }
    assert_int_equal(f.t.n_evicted_snapshots, 58);
    stop(&f);
}

static void test_no_page(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0}, none = {0};
    struct tree_hit hit;
    int32_t ids[CONTEXT], other[CONTEXT];
    int slot, third;
    (void)state;
    counting(ids, CONTEXT);
    counting(other, CONTEXT);
    other[0] = 1;
    start(&f, 1 << 16);
    leave(&f, &nobody, other, 512);                          /* two pages, idle */
    leave(&f, &nobody, ids, 1000);                           /* three more */
    slot = restored(&f, &nobody, ids, 256 * 8, 1000, &hold); /* those locked, and five */
    assert_int_equal(f.kv.n_free_pages, PAGES - 2 - 8);
    assert_int_equal(f.kv.n_idle_pages, 2);
    assert_int_equal(kv_slot_open(&f.kv, &third), FST_OK);
    assert_int_equal(kv_reserve(&f.kv, third, 256 * 5), FST_EBUDGET);
    assert_int_equal(f.t.n_nodes, 5); /* nothing was evicted for it */
    tree_match(&f.t, &nobody, other, 600, &hit);
    assert_int_equal(hit.n_restore, 512); /* two of its own, two beside are there, three not */
    assert_int_equal(tree_restore(&f.t, third, &hit, 256 * 5, &none), FST_EBUDGET);
    assert_int_equal(none.node, 0);
    assert_int_equal(f.kv.slots[third].n_pages, 0);
    assert_int_equal(f.t.n_nodes, 5);
    assert_int_equal(tree_restore(&f.t, third, &hit, CONTEXT + 1, &none), FST_EBUDGET);
    check(&f);
    assert_int_equal(tree_restore(&f.t, third, &hit, 256 * 4, &none), FST_OK);
    tree_unlock(&f.t, &none);
    kv_slot_close(&f.kv, third);
    assert_int_equal(kv_slot_open(&f.kv, &third), FST_OK);
    assert_int_equal(kv_reserve(&f.kv, third, 256 * 4), FST_OK); /* both have gone */
    assert_int_equal(f.t.n_nodes, 3);
    check(&f);
    tree_unlock(&f.t, &hold);
    kv_slot_close(&f.kv, slot);
    kv_slot_close(&f.kv, third);
    tree_match(&f.t, &nobody, ids, 1001, &hit);
    assert_int_equal(kv_slot_open(&f.kv, &slot), FST_OK);
    assert_int_equal(tree_restore(&f.t, slot, &hit, CONTEXT + 1, &hold), FST_EINVAL);
    assert_int_equal(f.kv.slots[slot].n_pages, 0);
    assert_int_equal(hold.snapshot, 0);
    stop(&f);
}

static void test_no_bytes(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 255); /* not one chunk */
    int slot = ran(&f, 600);
    assert_int_equal(tree_take(&f.t, slot, &nobody, ids, 600, 600, NULL), FST_EBUDGET);
    assert_int_equal(f.t.n_nodes, 0);
    kv_slot_close(&f.kv, slot);
    stop(&f);

    start(&f, 0);
    int64_t one = round_up(kv_snapshot_bytes(&f.kv, 600), 256);
    stop(&f);
    start(&f, one);
    leave(&f, &nobody, ids, 600);
    slot = restored(&f, &nobody, ids, 900, 600, &hold);
    kv_commit(&f.kv, slot, 900);
    assert_int_equal(tree_take(&f.t, slot, &nobody, ids, 512 + 256, 768, &hold), FST_EBUDGET);
    assert_int_equal(f.t.n_nodes, 2); /* not even its pages */
    assert_int_equal(tree_take(&f.t, slot, &nobody, ids, 600, 602, &hold), FST_OK); /* there */
    tree_unlock(&f.t, &hold);
    assert_int_equal(tree_take(&f.t, slot, &nobody, ids, 895, 897, &hold),
                     FST_EBUDGET); /* larger */
    assert_int_equal(restorable(&f, &nobody, ids, 900), 600);
    assert_int_equal(tree_take(&f.t, slot, &nobody, ids, 768, 770, &hold), FST_OK);
    assert_int_equal(restorable(&f, &nobody, ids, 900), 768); /* the other one had to go */
    assert_int_equal(f.t.n_snapshots, 1);
    tree_unlock(&f.t, &hold);
    kv_slot_close(&f.kv, slot);
    stop(&f);
}

static int told[2][3]; /* pages and snapshots, by event */
static void tell_page(void *ud, int32_t node, enum tree_event what)
{
    assert_true(ud == &told && node > 0);
    told[0][what]++;
}
static void tell_snapshot(void *ud, int32_t snapshot, enum tree_event what)
{
    assert_true(ud == &told && snapshot > 0);
    told[1][what]++;
}

static enum fst_status fill_run(void *ud, uint8_t *at, size_t bytes)
{
    memset(at, 0x3c, bytes);
    *(int64_t *)ud += (int64_t)bytes;
    return FST_OK;
}

/* A slot goes on behind pages that are there, gets the next ones from elsewhere, and gives them to the tree
 * with a snapshot that had been expected. */
static void test_adopted(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    struct tree_hit hit;
    int32_t ids[CONTEXT], coming, other;
    int64_t bytes = 0;
    int slot;
    (void)state;
    memset(told, 0, sizeof told);
    counting(ids, CONTEXT);
    start(&f, 1 << 16);
    f.t.watch = (struct tree_watch){tell_page, tell_snapshot, &told};
    leave(&f, &alice, ids, 3 * 256);
    tree_match(&f.t, &alice, ids, CONTEXT, &hit);
    assert_int_equal(hit.n_full, 3 * 256);
    assert_int_equal(kv_slot_open(&f.kv, &slot), FST_OK);
    assert_int_equal(tree_share(&f.t, slot, &hit, 512, (PAGES + 3) * 256, &hold), FST_EBUDGET);
    assert_int_equal(hold.node, 0);
    assert_int_equal(tree_share(&f.t, slot, &hit, 512, 5 * 256, &hold), FST_OK); /* not all of it */
    assert_int_equal(f.kv.slots[slot].n_committed, 512);
    assert_int_equal(f.t.node[hold.node].depth, 2);
    assert_int_equal(tree_expect(&f.t, 1000, &coming), FST_OK);
    assert_int_equal(tree_expect(&f.t, 900, &other), FST_OK);
    check(&f);
    assert_int_equal(restorable(&f, &alice, ids, CONTEXT), 3 * 256); /* nobody finds it yet */
    tree_forgo(&f.t, other);
    check(&f);
    assert_int_equal(tree_snapshot_runs(&f.t, coming, fill_run, &bytes), FST_OK);
    assert_int_equal(bytes, kv_snapshot_bytes(&f.kv, 1000));
    kv_commit(&f.kv, slot, 3 * 256);
    tree_adopt(&f.t, coming, slot, &alice, ids, &hold);
    check(&f);
    assert_int_equal(f.t.node[hold.node].depth, 3);
    assert_int_equal(restorable(&f, &alice, ids, CONTEXT), 1000);
    assert_int_equal(restorable(&f, &nobody, ids, CONTEXT), 0);
    assert_int_equal(tree_expect(&f.t, 1000, &coming), FST_OK); /* somebody else was faster */
    tree_adopt(&f.t, coming, slot, &alice, ids, &hold);
    assert_int_equal(f.t.n_snapshots, 2);
    assert_int_equal(f.t.n_expected, 0);
    tree_unlock(&f.t, &hold);
    kv_slot_close(&f.kv, slot);
    slot = restored(&f, &alice, ids, CONTEXT, 1000, &hold);
    tree_unlock(&f.t, &hold);
    kv_slot_close(&f.kv, slot);
    tree_flush(&f.t);
    assert_int_equal(told[0][TREE_KEPT], 3);
    assert_int_equal(told[0][TREE_USED], 1 + 3); /* the third came twice, then all were shared */
    assert_int_equal(told[0][TREE_GONE], 3);
    assert_int_equal(told[1][TREE_KEPT], 2);
    assert_int_equal(told[1][TREE_USED], 1);
    assert_int_equal(told[1][TREE_GONE], 2);
    assert_int_equal(tree_expect(&f.t, 900, &coming), FST_OK);
    f.t.snapshot[coming].expected = false; /* the check looks at these too */
    assert_int_equal(tree_check(&f.t), FST_EINTERNAL);
    f.t.snapshot[coming].expected = true;
    tree_forgo(&f.t, coming);
    stop(&f);

    start(&f, 255); /* not one chunk */
    assert_int_equal(tree_expect(&f.t, 900, &coming), FST_EBUDGET);
    stop(&f);
}

static void test_plan(void **state)
{
    struct kv_spec spec = small();
    struct tree_opts o;
    struct tree_plan p;
    (void)state;
    tree_opts_default(&o);
    assert_int_equal(tree_plan(&spec, &o, &p), FST_OK);
    assert_int_equal(p.arena_bytes, 0);
    o.budget_bytes = 10 * 65536 + 65535;
    assert_int_equal(tree_plan(&spec, &o, &p), FST_OK);
    assert_int_equal(p.n_chunks, 10);
    assert_int_equal(p.arena_bytes, 10 * 65536);
    assert_true(p.table_bytes > 13 * 1024 + 11 * 255 * 4);
    assert_true(p.table_bytes < 13 * 1024 + 11 * 255 * 4 + 13 * 100 + 11 * 100 + 32 * 4);
#define WRONG(field, value)                                                                        \
    do {                                                                                           \
        struct tree_opts bad = o;                                                                  \
        bad.field = value;                                                                         \
        assert_int_equal(tree_plan(&spec, &bad, &p), FST_EINVAL);                                  \
        assert_non_null(strstr(fst_error_text(), #field));                                         \
    } while (0)
    WRONG(chunk_bytes, 0);
    WRONG(chunk_bytes, 96);
    WRONG(chunk_bytes, (1 << 30) + 64);
    WRONG(budget_bytes, -1);
    WRONG(budget_bytes, INT64_MAX);
#undef WRONG
}

/* ------------------------------------------------------------------ the check, and a device */

static void test_check_finds(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    int32_t ids[CONTEXT];
    (void)state;
    counting(ids, CONTEXT);
    start(&f, 1 << 16);
    struct tree *t = &f.t;
    leave(&f, &nobody, ids, 700);
    leave(&f, &alice, ids, 300);
    leave(&f, &nobody, ids, 900);
    leave(&f, &nobody, ids, 10);
    int slot = restored(&f, &nobody, ids, 1000, 900, &hold);
    kv_slot_close(&f.kv, slot);
    int32_t c = hold.node, b = t->node[c].parent, a = t->node[b].parent, s = hold.snapshot;
    int32_t leaf = t->node_use[0].newer, loose = t->snapshot_use[0].newer;
    assert_true(a && b && c && s && leaf && loose);
#define FOUND(what, field, value)                                                                  \
    do {                                                                                           \
        __typeof__(field) keep_ = field;                                                           \
        field = (value);                                                                           \
        assert_int_equal(tree_check(t), FST_EINTERNAL);                                            \
        if (!strstr(fst_error_text(), what))                                                       \
            fail_msg("%s: %s", what, fst_error_text());                                            \
        field = keep_;                                                                             \
        check(&f);                                                                                 \
    } while (0)
    FOUND("has no parent", t->node[c].parent, PAGES + 1);
    FOUND("has no parent", t->node[c].parent, f.kv.free_pages[0]);
    FOUND("one page deeper", t->node[c].parent, a);
    FOUND("one page deeper", t->node[b].depth, 3);
    FOUND("another salt than its parent", t->node[b].salt.word[1], 1);
    FOUND("not that of its ids", t->ids[b * 256 + 255], 1);
    FOUND("wrong bucket", t->node[b].hash, t->node[b].hash + 1);
    FOUND("children", t->node[b].n_children, 2);
    FOUND("children", t->node[0].n_children, 1);
    FOUND("another node, or none", t->bucket[t->node[leaf].hash & 15], t->node[leaf].chain);
    FOUND("is no node", t->bucket[t->node[leaf].hash & 15], f.kv.free_pages[0]);
    FOUND("locked less often", t->node[b].locks, 0);
    FOUND("without a lock, or not with one", t->node[leaf].locks, 1);
    FOUND("order of nodes is torn", t->node_use[leaf].older, c);
    FOUND("order of nodes is torn", t->node_use[0].older, c);
    FOUND("nodes, counted", t->n_nodes, 7);
    FOUND("snapshots is torn", t->node[c].snapshots, t->node[0].snapshots + 100000);
    FOUND("hangs on no node", t->node[c].snapshots, 0);
    FOUND("on another node", t->snapshot[s].node, b);
    FOUND("of another depth", t->snapshot[s].n, 700);
    FOUND("size of another position", t->snapshot[s].n, t->snapshot[s].n + 1);
    FOUND("another salt than its node", t->snapshot[s].salt.word[3], 9);
    FOUND("more or fewer chunks", t->snapshot[s].n_chunks, 1);
    FOUND("locked and evicted", t->snapshot[loose].locks, 1);
    FOUND("order of snapshots is torn", t->snapshot_use[loose].older, s);
    FOUND("is there twice", t->snapshot[s].chunk, t->snapshot[loose].chunk);
    FOUND("too long", t->n_free_chunks, t->n_free_chunks - 1);
    FOUND("too short", t->n_free_chunks, t->n_free_chunks + 1);
    FOUND("unused snapshots is torn", t->free_snapshot, s);
    FOUND("idle chunks", t->n_idle_chunks, 0);
    FOUND("snapshots, counted", t->n_snapshots, 3);
    FOUND("held", f.kv.page_refs[a], 2); /* kv_check's */
#undef FOUND
    tree_unlock(t, &hold);
    stop(&f);
}

/* Rows are the device's: the host reaches them by copies alone, and a copy that fails leaves nothing. */
static void test_far(void **state)
{
    struct fixture f;
    struct kv_spec spec = small();
    struct tree_opts o = {.budget_bytes = 1 << 14, .chunk_bytes = 256, .hash_mask = ~0ull};
    struct tree_hold hold = {0};
    struct tree_hit hit;
    int32_t ids[CONTEXT];
    float row[4], back[4];
    int slot;
    (void)state;
    counting(ids, CONTEXT);
    spec.device = &far_device;
    assert_int_equal(kv_init(&f.kv, &spec), FST_OK);
    assert_int_equal(tree_init(&f.t, &f.kv, &o), FST_OK);
    const struct kv_layer *l = &f.kv.layer[2];
    slot = ran(&f, 300);
    for (int pos = 292; pos < 300; pos++) {
        for (int d = 0; d < 4; d++)
            row[d] = (float)(10 * pos + d);
        uint8_t *at = l->nope + rows_window(l, slot, pos) * (int64_t)sizeof row;
        assert_int_equal(device_copy(&far_device, at, row, sizeof row), FST_OK);
    }
    far_state.fail_copy = 3;
    assert_int_equal(tree_take(&f.t, slot, &nobody, ids, 300, 300, NULL), FST_EINTERNAL);
    assert_int_equal(f.t.n_snapshots, 0);
    assert_int_equal(f.t.n_free_chunks, f.t.n_chunks);
    check(&f);
    assert_int_equal(tree_take(&f.t, slot, &nobody, ids, 300, 300, NULL), FST_OK);
    tree_match(&f.t, &nobody, ids, 301, &hit);
    int to;
    assert_int_equal(kv_slot_open(&f.kv, &to), FST_OK);
    far_state.fail_copy = 3;
    assert_int_equal(tree_restore(&f.t, to, &hit, 301, &hold), FST_EINTERNAL);
    assert_int_equal(hold.snapshot, 0);
    assert_int_equal(f.kv.slots[to].n_pages, 0);
    check(&f);
    assert_int_equal(tree_restore(&f.t, to, &hit, 301, &hold), FST_OK);
    for (int pos = 292; pos < 300; pos++) {
        const uint8_t *at = l->nope + rows_window(l, to, pos) * (int64_t)sizeof row;
        assert_int_equal(device_copy(&far_device, back, at, sizeof back), FST_OK);
        for (int d = 0; d < 4; d++)
            assert_true(back[d] == (float)(10 * pos + d));
    }
    stop(&f); /* with locks, and slots that hold its pages */
}

/* How far a prompt goes along with what is kept, and whether that goes on: page, tail, both ends. */
static void test_common(void **state)
{
    struct fixture f;
    int32_t ids[600], kept[600];
    bool differs;
    (void)state;
    start(&f, 1 << 20);
    counting(kept, 600);
    assert_int_equal(common(&f, &nobody, kept, 600, &differs), 0);
    assert_false(differs);
    leave(&f, &nobody, kept, 550); /* two pages and a tail of 38 */
    static const struct {
        int n, changed, want;
        bool differs;
    } cases[] = {
        {600, -1, 550, false}, {550, -1, 550, false}, {551, -1, 550, false},  {530, -1, 530, false},
        {530, 520, 520, true}, {600, 549, 549, true}, {600, 550, 550, false}, {600, 512, 512, true},
        {512, -1, 512, false}, {600, 511, 511, true}, {600, 300, 300, true},  {600, 256, 256, true},
        {300, -1, 300, false}, {600, 255, 255, true}, {600, 0, 0, true},      {1, -1, 1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        counting(ids, 600);
        if (cases[i].changed >= 0)
            ids[cases[i].changed]++;
        assert_int_equal(common(&f, &nobody, ids, cases[i].n, &differs), cases[i].want);
        assert_int_equal(differs, cases[i].differs);
        assert_int_equal(common(&f, &alice, ids, cases[i].n, &differs), 0);
    }
    /* two that differ from each other: the longer one counts */
    counting(ids, 600);
    ids[530]++;
    leave(&f, &nobody, ids, 540);
    assert_int_equal(common(&f, &nobody, ids, 600, &differs), 540);
    assert_false(differs);
    ids[535]++;
    assert_int_equal(common(&f, &nobody, ids, 600, &differs), 535);
    assert_true(differs);
    stop(&f);
}

/* Back to where a snapshot stands, from anywhere behind it; and what is refused leaves nothing held. */
static void test_rewind(void **state)
{
    struct fixture f;
    struct tree_hold hold = {0};
    int32_t ids[700];
    int64_t at;
    int slot, other;
    (void)state;
    start(&f, 1 << 20);
    counting(ids, 700);
    leave(&f, &nobody, ids, 100);
    leave(&f, &nobody, ids, 300);
    leave(&f, &nobody, ids, 512);
    slot = ran(&f, 600);
    tree_insert(&f.t, slot, &nobody, ids, 600, &hold);
    static const int cases[][2] = {{599, 512}, {512, 512}, {511, 300}, {300, 300}, {299, 100},
                                   {100, 100}, {99, 0},    {0, 0},     {600, 512}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(tree_rewind(&f.t, slot, &nobody, ids, cases[i][0], 620, &hold, &at),
                         FST_OK);
        assert_int_equal(at, cases[i][1]);
        assert_int_equal(f.kv.slots[slot].n_committed, at);
        assert_int_equal(f.kv.slots[slot].n_pages, 3);
        assert_int_equal(hold.snapshot != 0, at > 0);
        check(&f);
    }
    assert_int_equal(tree_rewind(&f.t, slot, &alice, ids, 600, 620, &hold, &at), FST_OK);
    assert_int_equal(at, 0);
    /* with all pages in other hands */
    assert_int_equal(tree_rewind(&f.t, slot, &nobody, ids, 550, 620, &hold, &at), FST_OK);
    assert_int_equal(kv_slot_open(&f.kv, &other), FST_OK);
    assert_int_equal(kv_reserve(&f.kv, other, CONTEXT), FST_OK);
    assert_int_equal(kv_slot_open(&f.kv, &other), FST_OK);
    assert_int_equal(kv_reserve(&f.kv, other, 256 * (PAGES - 3) - CONTEXT), FST_OK);
    assert_int_equal(tree_rewind(&f.t, slot, &nobody, ids, 550, 256 * 4, &hold, &at), FST_EBUDGET);
    assert_int_equal(at, 0);
    assert_int_equal(f.kv.slots[slot].n_pages, 0);
    assert_int_equal(hold.node, 0);
    check(&f);
    assert_int_equal(tree_rewind(&f.t, slot, &nobody, ids, 550, 620, &hold, &at), FST_OK);
    assert_int_equal(at, 512);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residues),
        cmocka_unit_test(test_longest),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_common),
        cmocka_unit_test(test_rewind),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_shared_and_swapped),
        cmocka_unit_test(test_evicted_under_a_slot),
        cmocka_unit_test(test_locks_nest),
        cmocka_unit_test(test_hold_moves),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_shared_beginning_stays),
        cmocka_unit_test(test_no_page),
        cmocka_unit_test(test_no_bytes),
        cmocka_unit_test(test_adopted),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_check_finds),
        cmocka_unit_test(test_far),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
