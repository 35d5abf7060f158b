/* check.c - are pages, slots, nodes and snapshots accounted for: free, or held as often as counted? */
#include <string.h>

#include "kv/kv.h"
#include "kv/tree_int.h"

static enum fst_status mark(uint8_t *seen, int64_t limit, int64_t v, const char *what,
                            const char *where, int64_t slot)
{
    if (v < 1 || v > limit)
        return fst_error(FST_EINTERNAL, "kv: %s %lld (%s %lld) is outside 1..%lld", what,
                         (long long)v, where, (long long)slot, (long long)limit);
    if (seen[v]++)
        return fst_error(FST_EINTERNAL, "kv: %s %lld is there twice, again in %s %lld", what,
                         (long long)v, where, (long long)slot);
    return FST_OK;
}

static enum fst_status check_slot(const struct kv *kv, int i, int32_t *held)
{
    const struct kv_slot *s = &kv->slots[i];
    const int32_t *pages = kv->pages + (int64_t)i * kv->page_stride;
    if (s->n_pages < 0 || s->n_pages > kv->page_stride)
        return fst_error(FST_EINTERNAL, "kv: slot %d holds %lld pages, table has %d", i,
                         (long long)s->n_pages, kv->page_stride);
    if (!s->used && (s->n_pages || s->n_committed))
        return fst_error(FST_EINTERNAL, "kv: closed slot %d holds %lld pages", i,
                         (long long)s->n_pages);
    if (s->n_committed < 0 || s->n_committed > KERN_PAGE * s->n_pages)
        return fst_error(FST_EINTERNAL, "kv: slot %d committed %lld positions on %lld pages", i,
                         (long long)s->n_committed, (long long)s->n_pages);
    if (s->n_restored < 0 || s->n_restored > s->n_committed)
        return fst_error(FST_EINTERNAL, "kv: slot %d restored %lld positions, committed %lld", i,
                         (long long)s->n_restored, (long long)s->n_committed);
    for (int j = 0; j < kv->page_stride; j++) {
        if (j < s->n_pages && (pages[j] < 1 || pages[j] > kv->spec.n_pages))
            return fst_error(FST_EINTERNAL, "kv: page %d (slot %d) is outside 1..%lld", pages[j], i,
                             (long long)kv->spec.n_pages);
        if (j < s->n_pages)
            held[pages[j]]++;
        else if (pages[j])
            return fst_error(FST_EINTERNAL, "kv: slot %d names page %d beyond its %lld", i,
                             pages[j], (long long)s->n_pages);
    }
    return FST_OK;
}

static enum fst_status check_page(const struct kv *kv, int64_t p, bool is_free, int32_t held)
{
    if (is_free && held)
        return fst_error(FST_EINTERNAL, "kv: page %lld is free and held", (long long)p);
    if (!is_free && !held)
        return fst_error(FST_EINTERNAL, "kv: page %lld is neither free nor held", (long long)p);
    if (held != kv->page_refs[p])
        return fst_error(FST_EINTERNAL, "kv: page %lld is held %d times, counted %d times",
                         (long long)p, held, kv->page_refs[p]);
    return FST_OK;
}

static enum fst_status check_pages(const struct kv *kv, uint8_t *seen, int32_t *held)
{
    int64_t idle = 0;
    if (kv->n_free_pages < 0 || kv->n_free_pages > kv->spec.n_pages)
        return fst_error(FST_EINTERNAL, "kv: %lld free pages of %lld", (long long)kv->n_free_pages,
                         (long long)kv->spec.n_pages);
    for (int64_t i = 0; i < kv->n_free_pages; i++)
        FST_TRY(mark(seen, kv->spec.n_pages, kv->free_pages[i], "page", "free list at", i));
    for (int i = 0; i <= kv->spec.n_slots; i++)
        FST_TRY(check_slot(kv, i, held));
    for (int64_t p = 1; p <= kv->spec.n_pages; p++) {
        idle += kv->kept[p] == KV_KEPT && held[p] == 0;
        FST_TRY(check_page(kv, p, seen[p], held[p] + (kv->kept[p] != KV_NOT_KEPT)));
    }
    if (idle != kv->n_idle_pages)
        return fst_error(FST_EINTERNAL, "kv: %lld idle pages, counted %lld", (long long)idle,
                         (long long)kv->n_idle_pages);
    return FST_OK;
}

static enum fst_status check_slots(const struct kv *kv, uint8_t *seen)
{
    if (kv->slots[0].used)
        return fst_error(FST_EINTERNAL, "kv: the null slot is open");
    if (kv->n_free_slots < 0 || kv->n_free_slots > kv->spec.n_slots)
        return fst_error(FST_EINTERNAL, "kv: %d free slots of %d", kv->n_free_slots,
                         kv->spec.n_slots);
    for (int i = 0; i < kv->n_free_slots; i++)
        FST_TRY(mark(seen, kv->spec.n_slots, kv->free_slots[i], "slot", "free list at", i));
    for (int i = 1; i <= kv->spec.n_slots; i++)
        if (kv->slots[i].used == (bool)seen[i])
            return fst_error(FST_EINTERNAL, "kv: slot %d is %s", i,
                             seen[i] ? "free and open" : "neither free nor open");
    return FST_OK;
}

enum fst_status kv_check(const struct kv *kv)
{
    int64_t n = FST_MAX(kv->spec.n_pages, kv->spec.n_slots) + 1;
    int32_t *held = mem_calloc((size_t)n, sizeof *held + 1);
    if (!held)
        return fst_error(FST_ENOMEM, "kv: %lld bytes for the check", (long long)n * 5);
    uint8_t *seen = (uint8_t *)(held + n);
    enum fst_status rc = check_pages(kv, seen, held);
    memset(seen, 0, (size_t)n);
    if (!rc)
        rc = check_slots(kv, seen);
    mem_free(held);
    return rc;
}

/* ------------------------------------------------------------------ the prefix tree */

struct tree_view { /* what check_* find, to be compared with the tree's own counts */
    const struct tree *t;
    int32_t *children;     /* (n_pages + 1) */
    int32_t *locks;        /* (n_pages + 1) of the children together */
    int32_t *used;         /* (n_pages + 1) place in the list of nodes, from 1; 0: not there */
    int32_t *snapshot_use; /* (n_chunks + 1) the same of snapshots */
    uint8_t *in_bucket;    /* (n_pages + 1) */
    uint8_t *hung;         /* (n_chunks + 1) in a node's list */
    uint8_t *owned;        /* (n_chunks + 1) chunks of snapshots, and free ones */
};

static enum fst_status fault(const char *what, int64_t i)
{
    return fst_error(FST_EINTERNAL, "tree: %s (%lld)", what, (long long)i);
}

static enum fst_status counted(const char *what, int64_t have, int64_t counter)
{
    if (have == counter)
        return FST_OK;
    return fst_error(FST_EINTERNAL, "tree: %lld %s, counted %lld", (long long)have, what,
                     (long long)counter);
}

/* Both directions of a list of 1..limit, and the place of each. */
static enum fst_status check_use(const struct tree_link *l, int64_t limit, int32_t *place,
                                 const char *what)
{
    int32_t n = 0;
    for (int32_t i = l[0].newer, before = 0; i; before = i, i = l[i].newer) {
        if (i < 1 || i > limit || place[i])
            return fault(what, i);
        if (l[i].older != before)
            return fault(what, i);
        place[i] = ++n;
        if (l[i].newer == 0 && l[0].older != i)
            return fault(what, i);
    }
    return n == 0 && l[0].older ? fault(what, 0) : FST_OK;
}

static bool in_tree(const struct tree *t, int32_t node)
{
    return node == 0 || t->kv->kept[node] != KV_NOT_KEPT;
}

static enum fst_status check_buckets(struct tree_view *v)
{
    const struct tree *t = v->t;
    for (int64_t b = 0; b < t->n_buckets; b++)
        for (int32_t i = t->bucket[b]; i; i = t->node[i].chain) {
            if (i < 1 || i > t->kv->spec.n_pages || !in_tree(t, i))
                return fault("a bucket names a page that is no node", i);
            if (v->in_bucket[i]++)
                return fault("a node is in two places of the buckets", i);
            if ((int64_t)(t->node[i].hash & (uint64_t)(t->n_buckets - 1)) != b)
                return fault("a node is in the wrong bucket", i);
        }
    return FST_OK;
}

static enum fst_status check_parent(struct tree_view *v, int32_t i)
{
    const struct tree *t = v->t;
    const struct tree_node *x = &t->node[i];
    if (x->parent < 0 || x->parent > t->kv->spec.n_pages || !in_tree(t, x->parent))
        return fault("a node has no parent", i);
    const struct tree_node *up = &t->node[x->parent];
    uint64_t before = x->parent ? up->hash : tree_hash_salt(t, &x->salt);
    if (x->depth != up->depth + 1)
        return fault("a node is not one page deeper than its parent", i);
    if (x->parent && memcmp(&x->salt, &up->salt, sizeof x->salt) != 0)
        return fault("a node has another salt than its parent", i);
    if (x->hash != tree_hash_page(t, before, tree_ids(t, i)))
        return fault("a node's hash is not that of its ids", i);
    if (tree_child(t, x->parent, before, &x->salt, tree_ids(t, i)) != i)
        return fault("a lookup finds another node, or none", i);
    v->children[x->parent]++;
    v->locks[x->parent] += x->locks;
    return FST_OK;
}

static enum fst_status check_node(const struct tree_view *v, int32_t i)
{
    const struct tree *t = v->t;
    const struct tree_node *x = &t->node[i];
    FST_TRY(counted("children", v->children[i], x->n_children));
    if (i == 0)
        return FST_OK;
    if (x->locks < v->locks[i])
        return fault("a node is locked less often than those behind it", i);
    if ((x->locks > 0) != (t->kv->kept[i] == KV_PINNED))
        return fault("a node's page is pinned without a lock, or not with one", i);
    if ((x->locks == 0) != (v->used[i] > 0))
        return fault("a node is locked and evicted, or neither", i);
    if (x->locks == 0 && x->parent && !t->node[x->parent].locks && v->used[x->parent] < v->used[i])
        return fault("a node would be evicted after its parent", i);
    return FST_OK;
}

static enum fst_status check_nodes(struct tree_view *v)
{
    const struct tree *t = v->t;
    int64_t n = 0;
    FST_TRY(check_use(t->node_use, t->kv->spec.n_pages, v->used, "the order of nodes is torn"));
    FST_TRY(check_buckets(v));
    for (int32_t i = 1; i <= t->kv->spec.n_pages; i++) {
        if (in_tree(t, i))
            FST_TRY(check_parent(v, i));
        else if (v->used[i])
            return fault("a page that is no node would be evicted", i);
        n += in_tree(t, i);
    }
    for (int32_t i = 0; i <= t->kv->spec.n_pages; i++)
        if (in_tree(t, i))
            FST_TRY(check_node(v, i));
    return counted("nodes", n, t->n_nodes);
}

static enum fst_status check_chunks(struct tree_view *v, int32_t first, int64_t n, int32_t whose)
{
    const struct tree *t = v->t;
    int32_t i = first;
    for (int64_t k = 0; k < n; k++, i = t->chunk_next[i]) {
        if (i < 1 || i > t->n_chunks)
            return fault("a chain of chunks is too short", whose);
        if (v->owned[i]++)
            return fault("a chunk is there twice", i);
    }
    return i ? fault("a chain of chunks is too long", whose) : FST_OK;
}

static enum fst_status check_snapshot(struct tree_view *v, int32_t i)
{
    const struct tree *t = v->t;
    const struct tree_snapshot *s = &t->snapshot[i];
    const struct tree_node *node = &t->node[s->node];
    if (s->n / KERN_PAGE != node->depth || (s->node == 0 && s->n == 0))
        return fault("a snapshot hangs on a node of another depth", i);
    if (s->node && memcmp(&s->salt, &node->salt, sizeof s->salt) != 0)
        return fault("a snapshot has another salt than its node", i);
    if (tree_find_snapshot(t, s->node, &s->salt, tree_tail(t, i), s->n % KERN_PAGE) != i)
        return fault("a lookup finds another snapshot", i);
    if (s->bytes != kv_snapshot_bytes(t->kv, s->n))
        return fault("a snapshot has the size of another position", i);
    if (s->n_chunks != div_up(s->bytes, t->opts.chunk_bytes))
        return fault("a snapshot has more or fewer chunks than it needs", i);
    if (s->locks > 0 && s->node && node->locks == 0)
        return fault("a snapshot is locked, its node is not", i);
    if ((s->locks == 0) != (v->snapshot_use[i] > 0))
        return fault("a snapshot is locked and evicted, or neither", i);
    return check_chunks(v, s->chunk, s->n_chunks, i);
}

/* Every snapshot hangs on a node, once. */
static enum fst_status check_hung(struct tree_view *v)
{
    const struct tree *t = v->t;
    for (int32_t i = 0; i <= t->kv->spec.n_pages; i++)
        for (int32_t s = t->node[i].snapshots, before = 0; s; before = s, s = t->snapshot[s].next) {
            if (s < 1 || s > t->n_chunks || !in_tree(t, i) || v->hung[s]++)
                return fault("a node's list of snapshots is torn", i);
            if (t->snapshot[s].node != i || t->snapshot[s].prev != before)
                return fault("a snapshot hangs on another node", s);
        }
    return FST_OK;
}

static enum fst_status check_snapshots(struct tree_view *v)
{
    const struct tree *t = v->t;
    int64_t n = 0, idle = 0, expected = 0;
    FST_TRY(
        check_use(t->snapshot_use, t->n_chunks, v->snapshot_use, "the order of snapshots is torn"));
    FST_TRY(check_hung(v));
    for (int32_t i = 1; i <= t->n_chunks; i++) {
        const struct tree_snapshot *s = &t->snapshot[i];
        if ((s->n > 0) != v->hung[i] + s->expected)
            return fault("a snapshot hangs on no node, or one that is expected does", i);
        if (!v->hung[i] && v->snapshot_use[i])
            return fault("a snapshot that is none would be evicted", i);
        if (s->expected)
            FST_TRY(check_chunks(v, s->chunk, s->n_chunks, i));
        expected += s->expected;
        if (!v->hung[i])
            continue;
        FST_TRY(check_snapshot(v, i));
        n++;
        idle += s->locks ? 0 : s->n_chunks;
    }
    FST_TRY(check_chunks(v, t->free_chunk, t->n_free_chunks, 0));
    for (int32_t i = 1; i <= t->n_chunks; i++)
        if (!v->owned[i])
            return fault("a chunk is neither free nor a snapshot's", i);
    int32_t unused = t->free_snapshot;
    for (int64_t k = n + expected; k < t->n_chunks; k++, unused = t->snapshot[unused].next)
        if (unused < 1 || unused > t->n_chunks || v->hung[unused]++)
            return fault("the list of unused snapshots is torn", unused);
    FST_TRY(counted("expected snapshots", expected, t->n_expected));
    FST_TRY(counted("idle chunks", idle, t->n_idle_chunks));
    return counted("snapshots", n, t->n_snapshots);
}

enum fst_status tree_check(const struct tree *t)
{
    size_t pages = (size_t)t->kv->spec.n_pages + 1, chunks = (size_t)t->n_chunks + 1;
    FST_TRY(kv_check(t->kv));
    int32_t *block = mem_calloc(1, (3 * pages + chunks) * sizeof *block + pages + 2 * chunks);
    if (!block)
        return fst_error(FST_ENOMEM, "tree: no memory for the check of %lld pages",
                         (long long)pages);
    struct tree_view v = {.t = t, .children = block};
    v.locks = v.children + pages;
    v.used = v.locks + pages;
    v.snapshot_use = v.used + pages;
    v.in_bucket = (uint8_t *)(v.snapshot_use + chunks);
    v.hung = v.in_bucket + pages;
    v.owned = v.hung + chunks;
    enum fst_status rc = check_nodes(&v);
    if (!rc)
        rc = check_snapshots(&v);
    mem_free(block);
    return rc;
}
