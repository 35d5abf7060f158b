/* tree_bytes.c - snapshots of the prefix tree: found, taken, restored, adopted, dropped.
 *
 * A node's snapshots are a list, read to its end: what requests leave behind on one page are the ends of
 * turns in the same 256 tokens, and the budget bounds them all.  mover.h copies their bytes. */
#include <string.h>

#include "kv/chain.h"
#include "kv/tree_int.h"

/* ------------------------------------------------------------------ find */

/* At the root the salt alone tells tenants apart; elsewhere it is the node's. */
static bool fits(const struct tree_snapshot *s, const struct tree_salt *salt)
{
    return memcmp(&s->salt, salt, sizeof *salt) == 0;
}

static bool same_tail(const struct tree *t, int32_t i, const int32_t *tail)
{
    size_t n = (size_t)(t->snapshot[i].n % KERN_PAGE);
    return memcmp(tree_tail(t, i), tail, n * sizeof *tail) == 0;
}

int32_t tree_find_snapshot(const struct tree *t, int32_t node, const struct tree_salt *salt,
                           const int32_t *tail, int64_t n_tail)
{
    for (int32_t i = t->node[node].snapshots; i; i = t->snapshot[i].next) {
        const struct tree_snapshot *s = &t->snapshot[i];
        if (s->n % KERN_PAGE == n_tail && fits(s, salt) && same_tail(t, i, tail))
            return i;
    }
    return 0;
}

int32_t tree_longest(const struct tree *t, int32_t node, const struct tree_salt *salt,
                     const int32_t *tail, int64_t n_tail)
{
    int32_t best = 0;
    for (int32_t i = t->node[node].snapshots; i; i = t->snapshot[i].next) {
        const struct tree_snapshot *s = &t->snapshot[i];
        if (s->n % KERN_PAGE <= n_tail && s->n > t->snapshot[best].n && fits(s, salt) &&
            same_tail(t, i, tail))
            best = i;
    }
    return best;
}

/* ------------------------------------------------------------------ locks */

void tree_lock_snapshot(struct tree *t, int32_t i)
{
    struct tree_snapshot *s = &t->snapshot[i];
    if (s->locks++)
        return;
    tree_list_remove(t->snapshot_use, i);
    t->n_idle_chunks -= s->n_chunks;
}

/* Not locked, and the most recently used. */
static void make_idle(struct tree *t, int32_t i)
{
    tree_list_put(t->snapshot_use, i, t->snapshot_use[0].older);
    t->n_idle_chunks += t->snapshot[i].n_chunks;
}

void tree_unlock_snapshot(struct tree *t, int32_t i)
{
    FST_ASSERT(t->snapshot[i].locks > 0);
    if (--t->snapshot[i].locks == 0)
        make_idle(t, i);
}

static void touch(struct tree *t, int32_t i)
{
    if (t->snapshot[i].locks)
        return;
    tree_list_remove(t->snapshot_use, i);
    tree_list_put(t->snapshot_use, i, t->snapshot_use[0].older);
}

/* ------------------------------------------------------------------ chunks, and the list of a node */

static struct chain_pool chunk_pool(struct tree *t)
{
    return (struct chain_pool){t->chunk_next, &t->free_chunk, &t->n_free_chunks};
}

static void put_back(struct tree *t, int32_t i)
{
    struct tree_snapshot *s = &t->snapshot[i];
    chain_give(chunk_pool(t), s->chunk, s->n_chunks);
    *s = (struct tree_snapshot){.next = t->free_snapshot};
    t->free_snapshot = i;
}

void tree_remove_snapshot(struct tree *t, int32_t i)
{
    struct tree_snapshot *s = &t->snapshot[i];
    struct tree_node *node = &t->node[s->node];
    int32_t at = s->node;
    FST_ASSERT(s->n > 0);
    FST_ASSERT(s->locks == 0);
    tree_tell_snapshot(t, i, TREE_GONE);
    *(s->prev ? &t->snapshot[s->prev].next : &node->snapshots) = s->next;
    if (s->next)
        t->snapshot[s->next].prev = s->prev;
    tree_list_remove(t->snapshot_use, i);
    t->n_idle_chunks -= s->n_chunks;
    t->n_snapshots--;
    t->n_removed++;
    put_back(t, i);
    tree_settle(t, at);
}

static void hang_up(struct tree *t, int32_t i, int32_t node)
{
    struct tree_snapshot *s = &t->snapshot[i];
    s->node = node;
    s->next = t->node[node].snapshots;
    s->prev = 0;
    if (s->next)
        t->snapshot[s->next].prev = i;
    t->node[node].snapshots = i;
    t->n_snapshots++;
    make_idle(t, i);
}

/* ------------------------------------------------------------------ bytes */

static struct mover_chunks chunks_of(const struct tree *t, int32_t i)
{
    return (struct mover_chunks){t->arena, t->chunk_next, t->opts.chunk_bytes,
                                 t->snapshot[i].chunk};
}

/* ------------------------------------------------------------------ take, restore, drop */

static int32_t deepest(const struct tree *t, int64_t n)
{
    return n < KERN_PAGE ? 0 : t->path[n / KERN_PAGE - 1];
}

/* The snapshot at exactly n ids; 0: none. */
static int32_t exactly(const struct tree *t, const struct tree_salt *salt, const int32_t *ids,
                       int64_t n)
{
    struct tree_hit hit;
    tree_match(t, salt, ids, n, &hit);
    int64_t full = n - n % KERN_PAGE;
    if (hit.n_full < full)
        return 0;
    return tree_find_snapshot(t, hit.node, salt, ids + full, n - full);
}

static enum fst_status make_room(struct tree *t, int64_t bytes, int64_t n_chunks)
{
    if (n_chunks > t->n_free_chunks + t->n_idle_chunks)
        return fst_error(FST_EBUDGET, "tree: a snapshot of %lld bytes, %lld of %lld may be used",
                         (long long)bytes,
                         (long long)((t->n_free_chunks + t->n_idle_chunks) * t->opts.chunk_bytes),
                         (long long)(t->n_chunks * t->opts.chunk_bytes));
    while (n_chunks > t->n_free_chunks) {
        FST_ASSERT(t->snapshot_use[0].newer);
        tree_remove_snapshot(t, t->snapshot_use[0].newer);
        t->n_evicted_snapshots++;
    }
    return FST_OK;
}

/* One with its chunks, hanging nowhere: there is room. */
static int32_t new_snapshot(struct tree *t, int64_t n, int64_t bytes)
{
    int32_t i = t->free_snapshot, chunks = (int32_t)div_up(bytes, t->opts.chunk_bytes);
    struct tree_snapshot *s = &t->snapshot[i];
    FST_ASSERT(i > 0); /* every snapshot has a chunk, so one is left where chunks are */
    t->free_snapshot = s->next;
    *s = (struct tree_snapshot){
        .n = n, .chunk = chain_take(chunk_pool(t), chunks), .n_chunks = chunks, .bytes = bytes};
    return i;
}

/* Behind the last page of the path. */
static void add_snapshot(struct tree *t, int32_t i, const struct tree_salt *salt,
                         const int32_t *ids)
{
    int64_t n = t->snapshot[i].n, full = n - n % KERN_PAGE;
    t->snapshot[i].salt = *salt;
    memcpy(t->tails + (int64_t)i * TREE_TAIL_MAX, ids + full, (size_t)(n - full) * sizeof *ids);
    hang_up(t, i, deepest(t, n));
    tree_touch(t, deepest(t, n));
    tree_tell_snapshot(t, i, TREE_KEPT);
}

enum fst_status tree_take(struct tree *t, int slot, const struct tree_salt *salt,
                          const int32_t *ids, int64_t n, int64_t n_written, struct tree_hold *hold)
{
    int32_t old = exactly(t, salt, ids, n);
    int64_t bytes = kv_snapshot_bytes(t->kv, n);
    FST_ASSERT(n > 0);
    FST_ASSERT(n >= t->kv->slots[slot].n_restored);
    FST_ASSERT(n_written >= n);
    FST_ASSERT(n_written - n <= kv_snapshot_slack(t->kv));
    if (!old)
        FST_TRY(make_room(t, bytes, div_up(bytes, t->opts.chunk_bytes)));
    tree_insert(t, slot, salt, ids, n, hold);
    if (old) {
        touch(t, old);
        return FST_OK;
    }
    int32_t i = new_snapshot(t, n, bytes);
    struct mover_chunks to = chunks_of(t, i);
    enum fst_status rc = mover_take(&t->mover, slot, n, &to);
    if (rc < 0)
        put_back(t, i);
    else
        add_snapshot(t, i, salt, ids);
    return rc;
}

/* Pages of the node and before it into t->path; how many of them are idle. */
static int64_t path_to(struct tree *t, int32_t node)
{
    int64_t idle = 0;
    for (int32_t i = node; i; i = t->node[i].parent) {
        t->path[t->node[i].depth - 1] = i;
        idle += t->kv->kept[i] == KV_KEPT && t->kv->page_refs[i] == 1;
    }
    return idle;
}

/* An open slot without pages holds those of the node and before it, and others up to n_positions. */
static enum fst_status share(struct tree *t, int slot, int32_t node, int64_t n_positions,
                             struct tree_hold *hold)
{
    struct kv *kv = t->kv;
    int64_t shared = t->node[node].depth, idle = path_to(t, node);
    FST_ASSERT(!hold->node && !hold->snapshot);
    FST_ASSERT(n_positions >= shared * KERN_PAGE);
    /* Idle pages of the path are taken too, and no longer there for the rest. */
    FST_TRY(kv_room(kv, idle + div_up(n_positions, KERN_PAGE) - shared));
    hold->node = node;
    tree_lock_nodes(t, node);
    kv_share(kv, slot, t->path, shared);
    enum fst_status rc = kv_reserve(kv, slot, n_positions);
    if (rc < 0) {
        kv_slot_reset(kv, slot);
        tree_unlock(t, hold);
    }
    return rc;
}

static void tell_path(struct tree *t, int32_t node)
{
    for (int32_t i = 0; i < t->node[node].depth; i++)
        tree_tell_page(t, t->path[i], TREE_USED);
}

enum fst_status tree_restore(struct tree *t, int slot, const struct tree_hit *hit,
                             int64_t n_positions, struct tree_hold *hold)
{
    const struct tree_snapshot *s = &t->snapshot[hit->snapshot];
    enum fst_status rc;
    FST_ASSERT(hit->n_removed == t->n_removed);
    FST_ASSERT(s->n == hit->n_restore);
    FST_ASSERT(s->n > 0);
    FST_ASSERT(n_positions >= s->n);
    /* What share evicts must not be the snapshot, which goes with its node, locked by then, or alone, which
     * only bytes can ask for. */
    FST_TRY(share(t, slot, s->node, n_positions, hold));
    hold->snapshot = hit->snapshot;
    tree_lock_snapshot(t, hold->snapshot);
    struct mover_chunks from = chunks_of(t, hold->snapshot);
    if ((rc = mover_put(&t->mover, slot, s->n, &from)) < 0) {
        kv_slot_reset(t->kv, slot);
        tree_unlock(t, hold);
        return rc;
    }
    kv_commit(t->kv, slot, s->n);
    t->kv->slots[slot].n_restored = s->n;
    tell_path(t, s->node);
    tree_tell_snapshot(t, hold->snapshot, TREE_USED);
    return FST_OK;
}

/* ------------------------------------------------------------------ what comes from a tier */

enum fst_status tree_rewind(struct tree *t, int slot, const struct tree_salt *salt,
                            const int32_t *ids, int64_t n, int64_t n_positions,
                            struct tree_hold *hold, int64_t *at)
{
    struct tree_hit hit;
    FST_ASSERT(n_positions >= n);
    tree_unlock(t, hold);
    kv_slot_reset(t->kv, slot);
    tree_match(t, salt, ids, n + 1, &hit);
    *at = 0;
    if (!hit.n_restore)
        return kv_reserve(t->kv, slot, n_positions);
    FST_TRY(tree_restore(t, slot, &hit, n_positions, hold));
    *at = hit.n_restore;
    return FST_OK;
}

enum fst_status tree_share(struct tree *t, int slot, const struct tree_hit *hit, int64_t n_full,
                           int64_t n_positions, struct tree_hold *hold)
{
    int32_t node = hit->node;
    FST_ASSERT(hit->n_removed == t->n_removed);
    FST_ASSERT(n_full <= hit->n_full);
    FST_ASSERT(n_full % KERN_PAGE == 0);
    while (t->node[node].depth * KERN_PAGE > n_full)
        node = t->node[node].parent;
    FST_TRY(share(t, slot, node, n_positions, hold));
    kv_commit(t->kv, slot, n_full);
    return FST_OK;
}

enum fst_status tree_expect(struct tree *t, int64_t n, int32_t *snapshot)
{
    int64_t bytes = kv_snapshot_bytes(t->kv, n);
    FST_ASSERT(n > 0);
    FST_TRY(mover_settle(&t->mover)); /* into chunks that are given away here */
    FST_TRY(make_room(t, bytes, div_up(bytes, t->opts.chunk_bytes)));
    *snapshot = new_snapshot(t, n, bytes);
    t->snapshot[*snapshot].expected = true;
    t->n_expected++;
    return FST_OK;
}

void tree_forgo(struct tree *t, int32_t snapshot)
{
    FST_ASSERT(t->snapshot[snapshot].expected);
    t->n_expected--;
    put_back(t, snapshot);
}

void tree_adopt(struct tree *t, int32_t snapshot, int slot, const struct tree_salt *salt,
                const int32_t *ids, struct tree_hold *hold)
{
    struct tree_snapshot *s = &t->snapshot[snapshot];
    FST_ASSERT(s->expected);
    if (exactly(t, salt, ids, s->n)) {
        tree_insert(t, slot, salt, ids, s->n - s->n % KERN_PAGE, hold);
        tree_forgo(t, snapshot);
        return;
    }
    tree_insert(t, slot, salt, ids, s->n - s->n % KERN_PAGE, hold);
    s->expected = false;
    t->n_expected--;
    add_snapshot(t, snapshot, salt, ids);
}

enum fst_status tree_snapshot_runs(const struct tree *t, int32_t snapshot, kv_run_fn *f, void *ud)
{
    const struct tree_snapshot *s = &t->snapshot[snapshot];
    int64_t left = s->bytes, size = t->opts.chunk_bytes;
    for (int32_t i = s->chunk; left > 0; i = t->chunk_next[i], left -= size)
        FST_TRY(f(ud, t->arena + (int64_t)(i - 1) * size, (size_t)FST_MIN(left, size)));
    return FST_OK;
}

void tree_note(struct tree *t, const struct tree_salt *salt, const int32_t *ids, int64_t n,
               uint32_t note)
{
    int32_t i = exactly(t, salt, ids, n);
    FST_ASSERT(note);
    if (i && !t->snapshot[i].note)
        t->snapshot[i].note = note;
}

bool tree_drop(struct tree *t, const struct tree_salt *salt, const int32_t *ids, int64_t n)
{
    int32_t i = exactly(t, salt, ids, n);
    if (!i || t->snapshot[i].locks)
        return false;
    tree_remove_snapshot(t, i);
    return true;
}
