/* tree.c - nodes of the prefix tree: found, made, locked, evicted.
 *
 * Order of use.  Whenever a node is used, those before it are too, and enter the list behind it: in the
 * list every node comes before its parent.  Locks cover whole paths as well.  So the least recently used
 * node is a leaf, and evicting takes no search. */
#include <string.h>

#include "base/hash.h"
#include "kv/tree_int.h"

void tree_opts_default(struct tree_opts *o)
{
    *o = (struct tree_opts){.chunk_bytes = 65536, .hash_mask = UINT64_MAX};
}

static enum fst_status wrong(const char *field, int64_t value, const char *expected)
{
    return fst_error(FST_EINVAL, "tree: %s is %lld, expected %s", field, (long long)value,
                     expected);
}

/* At least as many as nodes: a chain has one or two. */
static int64_t buckets(int64_t n_pages)
{
    int64_t n = 1;
    while (n < n_pages)
        n *= 2;
    return n;
}

enum fst_status tree_plan(const struct kv_spec *spec, const struct tree_opts *o,
                          struct tree_plan *out)
{
    if (o->chunk_bytes < 64 || o->chunk_bytes > 1 << 30 || o->chunk_bytes % 64)
        return wrong("chunk_bytes", o->chunk_bytes, "a multiple of 64 up to 2^30");
    if (o->budget_bytes < 0 || o->budget_bytes / o->chunk_bytes > 1 << 30)
        return wrong("budget_bytes", o->budget_bytes, "0 to 2^30 chunks");
    int64_t pages = spec->n_pages + 1, chunks = o->budget_bytes / o->chunk_bytes;
    int64_t id = (int64_t)sizeof(int32_t), link = (int64_t)sizeof(struct tree_link);
    *out = (struct tree_plan){.n_chunks = chunks, .arena_bytes = chunks * o->chunk_bytes};
    out->table_bytes =
        pages * ((int64_t)sizeof(struct tree_node) + link + KERN_PAGE * id) +
        (chunks + 1) * ((int64_t)sizeof(struct tree_snapshot) + link + TREE_TAIL_MAX * id + id) +
        id * buckets(spec->n_pages) + id * div_up(spec->context_length, KERN_PAGE);
    return FST_OK;
}

static void reclaim(void *ud, int64_t n)
{
    struct tree *t = ud;
    while (t->kv->n_free_pages < n && tree_evict(t))
        continue;
}

/* n elements of `size` bytes off *at; the widest come first, so that none is misaligned. */
static void *carve(uint8_t **at, int64_t n, size_t size)
{
    uint8_t *p = *at;
    *at += n * (int64_t)size;
    return p;
}

static void place_tables(struct tree *t, const struct tree_plan *p)
{
    int64_t pages = t->kv->spec.n_pages + 1, chunks = p->n_chunks + 1;
    uint8_t *at = t->tables;
    t->node = carve(&at, pages, sizeof *t->node);
    t->snapshot = carve(&at, chunks, sizeof *t->snapshot);
    t->node_use = carve(&at, pages, sizeof *t->node_use);
    t->snapshot_use = carve(&at, chunks, sizeof *t->snapshot_use);
    t->ids = carve(&at, pages, KERN_PAGE * sizeof *t->ids);
    t->tails = carve(&at, chunks, TREE_TAIL_MAX * sizeof *t->tails);
    t->chunk_next = carve(&at, chunks, sizeof *t->chunk_next);
    t->bucket = carve(&at, t->n_buckets, sizeof *t->bucket);
    t->path = carve(&at, t->kv->page_stride, sizeof *t->path);
    FST_ASSERT(at == (uint8_t *)t->tables + p->table_bytes);
}

enum fst_status tree_init(struct tree *t, struct kv *kv, const struct tree_opts *o)
{
    struct tree_plan p;
    *t = (struct tree){.kv = kv, .opts = *o};
    FST_ASSERT(!kv->reclaim);
    FST_TRY(tree_plan(&kv->spec, o, &p));
    t->n_chunks = p.n_chunks;
    t->n_buckets = buckets(kv->spec.n_pages);
    t->tables = mem_calloc(1, (size_t)p.table_bytes);
    if (p.arena_bytes)
        t->arena = device_alloc_shared(kv->spec.device, (size_t)p.arena_bytes);
    if (!t->tables || (p.arena_bytes && !t->arena)) {
        tree_release(t);
        return fst_error(FST_ENOMEM, "tree: %lld bytes for %lld pages and %lld for snapshots",
                         (long long)p.table_bytes, (long long)kv->spec.n_pages,
                         (long long)p.arena_bytes);
    }
    place_tables(t, &p);
    for (int64_t i = p.n_chunks; i > 0; i--) { /* the lowest number is used first */
        t->snapshot[i].next = t->free_snapshot;
        t->chunk_next[i] = t->free_chunk;
        t->free_snapshot = t->free_chunk = (int32_t)i;
    }
    t->n_free_chunks = p.n_chunks;
    kv->reclaim = reclaim;
    kv->reclaim_ud = t;
    enum fst_status rc = mover_init(&t->mover, kv, o->kernels, o->stream);
    if (rc < 0)
        tree_release(t);
    return rc;
}

void tree_release(struct tree *t)
{
    struct kv *kv = t->kv;
    if (kv && kv->reclaim_ud == t) {
        for (int32_t p = 1; p <= kv->spec.n_pages; p++) {
            if (kv->kept[p] == KV_PINNED)
                kv_pin(kv, p, false);
            if (kv->kept[p] == KV_KEPT)
                kv_unkeep(kv, p);
        }
        kv->reclaim = NULL;
        kv->reclaim_ud = NULL;
    }
    mover_release(&t->mover);
    if (t->arena)
        device_free_shared(kv->spec.device, t->arena, (size_t)(t->n_chunks * t->opts.chunk_bytes));
    mem_free(t->tables);
    *t = (struct tree){0};
}

/* ------------------------------------------------------------------ look up */

uint64_t tree_hash_salt(const struct tree *t, const struct tree_salt *salt)
{
    return hash64(salt, sizeof *salt, 0) & t->opts.hash_mask;
}

uint64_t tree_hash_page(const struct tree *t, uint64_t before, const int32_t *ids)
{
    return hash64(ids, KERN_PAGE * sizeof *ids, before) & t->opts.hash_mask;
}

static bool same_salt(const struct tree_salt *a, const struct tree_salt *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static int32_t *bucket_of(const struct tree *t, uint64_t hash)
{
    return t->bucket + (hash & (uint64_t)(t->n_buckets - 1));
}

int32_t tree_child(const struct tree *t, int32_t parent, uint64_t before,
                   const struct tree_salt *salt, const int32_t *ids)
{
    uint64_t hash = tree_hash_page(t, before, ids);
    for (int32_t i = *bucket_of(t, hash); i; i = t->node[i].chain) {
        const struct tree_node *x = &t->node[i];
        if (x->hash == hash && x->parent == parent && same_salt(&x->salt, salt) &&
            memcmp(tree_ids(t, i), ids, KERN_PAGE * sizeof *ids) == 0)
            return i;
    }
    return 0;
}

void tree_match(const struct tree *t, const struct tree_salt *salt, const int32_t *ids,
                int64_t n_ids, struct tree_hit *out)
{
    uint64_t hash = tree_hash_salt(t, salt);
    int64_t at = 0;
    *out = (struct tree_hit){.n_removed = t->n_removed};
    for (;;) {
        int32_t found = tree_longest(t, out->node, salt, ids + at, n_ids - 1 - at);
        if (found) {
            out->snapshot = found;
            out->n_restore = t->snapshot[found].n;
        }
        if (n_ids - at < KERN_PAGE)
            break;
        int32_t next = tree_child(t, out->node, hash, salt, ids + at);
        if (!next)
            break;
        out->node = next;
        hash = t->node[next].hash;
        at += KERN_PAGE;
    }
    out->n_full = at;
}

/* How many ids of `rest` some kept ones begin with; the most so far in *best. */
static void compare(const int32_t *rest, int64_t n_rest, const int32_t *kept, int64_t n_kept,
                    int64_t *best, bool *differs)
{
    int64_t n = FST_MIN(n_rest, n_kept), same = 0;
    while (same < n && rest[same] == kept[same])
        same++;
    if (same > *best)
        *differs = false;
    if (same >= *best)
        *differs |= same < n;
    *best = FST_MAX(*best, same);
}

int64_t tree_common(const struct tree *t, const struct tree_salt *salt, const int32_t *ids,
                    int64_t n_ids, const struct tree_hit *hit, bool *differs)
{
    const int32_t *rest = ids + hit->n_full;
    int64_t best = 0, n_rest = n_ids - hit->n_full;
    FST_ASSERT(hit->n_removed == t->n_removed);
    *differs = false;
    for (int32_t i = 1; i <= t->kv->spec.n_pages; i++)
        if (t->kv->kept[i] && t->node[i].parent == hit->node && same_salt(&t->node[i].salt, salt))
            compare(rest, n_rest, tree_ids(t, i), KERN_PAGE, &best, differs);
    for (int32_t i = t->node[hit->node].snapshots; i; i = t->snapshot[i].next)
        if (same_salt(&t->snapshot[i].salt, salt))
            compare(rest, n_rest, tree_tail(t, i), t->snapshot[i].n % KERN_PAGE, &best, differs);
    return hit->n_full + best;
}

/* ------------------------------------------------------------------ order of use */

/* Where a node that is not locked belongs: nobody can go on from a leaf without snapshots. */
static int32_t place(const struct tree *t, int32_t i)
{
    bool bare = !t->node[i].n_children && !t->node[i].snapshots;
    return bare ? 0 : t->node_use[0].older;
}

void tree_touch(struct tree *t, int32_t node)
{
    for (int32_t i = node; i; i = t->node[i].parent) {
        if (t->node[i].locks)
            return; /* so are those before it */
        tree_list_remove(t->node_use, i);
        tree_list_put(t->node_use, i, place(t, i));
    }
}

void tree_settle(struct tree *t, int32_t node)
{
    if (!node || t->node[node].locks || t->node[node].n_children || t->node[node].snapshots)
        return;
    tree_list_remove(t->node_use, node);
    tree_list_put(t->node_use, node, 0);
}

void tree_lock_nodes(struct tree *t, int32_t node)
{
    for (int32_t i = node; i; i = t->node[i].parent) {
        if (t->node[i].locks++)
            continue;
        tree_list_remove(t->node_use, i);
        kv_pin(t->kv, i, true);
    }
}

void tree_unlock_nodes(struct tree *t, int32_t node)
{
    for (int32_t i = node; i; i = t->node[i].parent) {
        FST_ASSERT(t->node[i].locks > 0);
        if (--t->node[i].locks)
            continue;
        kv_pin(t->kv, i, false);
        tree_list_put(t->node_use, i, place(t, i));
    }
}

void tree_unlock(struct tree *t, struct tree_hold *hold)
{
    if (hold->snapshot)
        tree_unlock_snapshot(t, hold->snapshot);
    tree_unlock_nodes(t, hold->node);
    *hold = (struct tree_hold){0};
}

/* ------------------------------------------------------------------ insert */

static int32_t add_node(struct tree *t, int32_t page, int32_t parent, uint64_t before,
                        const struct tree_salt *salt, const int32_t *ids)
{
    struct tree_node *x = &t->node[page];
    uint64_t hash = tree_hash_page(t, before, ids);
    int32_t *first = bucket_of(t, hash);
    kv_keep(t->kv, page);
    *x = (struct tree_node){.parent = parent,
                            .depth = t->node[parent].depth + 1,
                            .chain = *first,
                            .hash = hash,
                            .salt = *salt};
    memcpy(t->ids + (int64_t)page * KERN_PAGE, ids, KERN_PAGE * sizeof *ids);
    *first = page;
    t->node[parent].n_children++;
    t->n_nodes++;
    tree_list_put(t->node_use, page, t->node_use[0].older);
    tree_tell_page(t, page, TREE_KEPT);
    return page;
}

/* The hold goes from a node on the path to its end. */
static void move_hold(struct tree *t, struct tree_hold *hold, int32_t node)
{
    int32_t old = hold->node;
    if (t->node[node].depth <= t->node[old].depth)
        return;
    FST_ASSERT(!old || t->path[t->node[old].depth - 1] == old);
    tree_lock_nodes(t, node);
    tree_unlock_nodes(t, old);
    hold->node = node;
}

int64_t tree_insert(struct tree *t, int slot, const struct tree_salt *salt, const int32_t *ids,
                    int64_t n_ids, struct tree_hold *hold)
{
    struct kv *kv = t->kv;
    const int32_t *pages = kv->pages + (int64_t)slot * kv->page_stride;
    uint64_t hash = tree_hash_salt(t, salt);
    int32_t node = 0;
    int64_t n_new = 0;
    FST_ASSERT(kv->slots[slot].used);
    FST_ASSERT(n_ids <= kv->slots[slot].n_committed);
    for (int64_t i = 0; i < n_ids / KERN_PAGE; i++) {
        const int32_t *at = ids + i * KERN_PAGE;
        int32_t next = tree_child(t, node, hash, salt, at);
        if (next && next != pages[i]) {
            kv_swap(kv, slot, i, next);
            tree_tell_page(t, next, TREE_USED);
        }
        n_new += !next;
        node = next ? next : add_node(t, pages[i], node, hash, salt, at);
        hash = t->node[node].hash;
        t->path[i] = node;
    }
    tree_touch(t, node);
    if (hold)
        move_hold(t, hold, node);
    return n_new;
}

/* ------------------------------------------------------------------ evict */

static void remove_node(struct tree *t, int32_t i)
{
    struct tree_node *x = &t->node[i];
    int32_t parent = x->parent, *link = bucket_of(t, x->hash);
    FST_ASSERT(x->n_children == 0);
    FST_ASSERT(x->locks == 0);
    while (x->snapshots) {
        tree_remove_snapshot(t, x->snapshots);
        t->n_evicted_snapshots++;
    }
    tree_tell_page(t, i, TREE_GONE);
    while (*link != i)
        link = &t->node[*link].chain;
    *link = x->chain;
    tree_list_remove(t->node_use, i);
    kv_unkeep(t->kv, i);
    *x = (struct tree_node){0};
    t->n_nodes--;
    t->n_evicted_pages++;
    t->n_removed++;
    t->node[parent].n_children--;
    tree_settle(t, parent);
}

bool tree_evict(struct tree *t)
{
    int32_t i = t->node_use[0].newer;
    if (!i)
        return false;
    remove_node(t, i);
    return true;
}

void tree_flush(struct tree *t)
{
    while (t->snapshot_use[0].newer) {
        tree_remove_snapshot(t, t->snapshot_use[0].newer);
        t->n_evicted_snapshots++;
    }
    while (tree_evict(t))
        continue;
}
