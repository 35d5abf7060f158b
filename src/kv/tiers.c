/* tiers.c - the engine's side of the tiers: marks of what the tree has, what is copied when, loads.
 *
 * Marks follow the tree through its watch.  A page's mark is queued behind its parent's, so that copies are
 * made from the root on: an object that stands on nothing is of no use to anybody. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "kv/tiers_int.h"

enum {
    LOOKED_AT = 64, /* marks a turn that need no copy after all */
    LOW = 4         /* write_back begins when less than 1/LOW is free */
};

void tiers_opts_default(struct tiers_opts *o)
{
    *o = (struct tiers_opts){.min_gain = 64, .key_mask = UINT64_MAX};
}

/* ------------------------------------------------------------------ marks and queue */

static bool room_of(const struct mark *m)
{
    return m->state == MARK_NONE || m->state == MARK_REFUSED;
}

static void enqueue_behind(struct tiers *x, int32_t entry, int32_t older)
{
    FST_ASSERT(x->mark[entry].state != MARK_QUEUED);
    FST_ASSERT(x->mark[entry].state != MARK_COPYING);
    x->mark[entry].state = MARK_QUEUED;
    tree_list_put(x->queue, entry, older);
    x->n_queued++;
}

static void enqueue(struct tiers *x, int32_t entry)
{
    enqueue_behind(x, entry, x->queue[0].older);
}

static void dequeue(struct tiers *x, int32_t entry)
{
    FST_ASSERT(x->mark[entry].state == MARK_QUEUED);
    tree_list_remove(x->queue, entry);
    x->n_queued--;
    x->mark[entry].state = MARK_NONE;
}

static struct store_key key_before(const struct tiers *x, int32_t node, const struct tree_salt *s)
{
    return node ? x->mark[node].key : tiers_root_key(x, s);
}

/* The pages to a node that no store has got yet, parents first. */
static void enqueue_path(struct tiers *x, int32_t node)
{
    int32_t end = x->queue[0].older;
    for (int32_t i = node; i && x->mark[i].state == MARK_NONE; i = x->tree->node[i].parent)
        enqueue_behind(x, i, end);
}

static void enqueue_snapshot(struct tiers *x, int32_t i)
{
    enqueue_path(x, x->tree->snapshot[i].node);
    if (x->mark[tiers_entry_of_snapshot(x, i)].state == MARK_NONE)
        enqueue(x, tiers_entry_of_snapshot(x, i));
}

/* Everything that no store has got yet: what was used last first, each snapshot behind its pages, then pages
 * that nobody can go on from. */
static void enqueue_all(struct tiers *x)
{
    const struct tree *t = x->tree;
    for (int32_t i = t->snapshot_use[0].older; i; i = t->snapshot_use[i].older)
        enqueue_snapshot(x, i);
    for (int32_t i = 1; i <= t->n_chunks; i++)
        if (t->snapshot[i].n && !t->snapshot[i].expected) /* locked ones, at a flush */
            enqueue_snapshot(x, i);
    for (int32_t p = 1; p <= t->kv->spec.n_pages; p++)
        if (t->kv->kept[p] != KV_NOT_KEPT)
            enqueue_path(x, p);
}

static bool copied_when_kept(const struct tiers *x)
{
    return x->o.policy == TIERS_WRITE_THROUGH && !x->clearing;
}

static bool copied_when_used(const struct tiers *x)
{
    return x->o.policy != TIERS_WRITE_BACK && !x->clearing;
}

static void on_page(void *ud, int32_t node, enum tree_event what)
{
    struct tiers *x = ud;
    struct mark *m = &x->mark[node];
    const struct tree_node *p = &x->tree->node[node];
    if (what == TREE_KEPT) {
        struct store_key before = key_before(x, p->parent, &p->salt);
        *m = (struct mark){.key = tiers_page_key(x, before, tree_ids(x->tree, node))};
        if (copied_when_kept(x))
            enqueue(x, node);
    } else if (what == TREE_USED) {
        if (room_of(m) && copied_when_used(x))
            enqueue(x, node);
        else if (m->state == MARK_REFUSED)
            m->state = MARK_NONE;
    } else {
        if (m->state == MARK_QUEUED)
            dequeue(x, node);
        *m = (struct mark){0};
    }
}

/* Pages that a store has let go since they were copied, from the node to the first that it still has: they are
 * older there than here, where every use of a prompt is one of its pages. */
static void enqueue_lost(struct tiers *x, int32_t node)
{
    int32_t end = x->queue[0].older;
    for (int32_t i = node; i; i = x->tree->node[i].parent) {
        if (x->mark[i].state != MARK_KEPT || tiers_all_have(x, &x->mark[i].key, STORE_PAGE))
            return;
        enqueue_behind(x, i, end); /* before its children */
    }
}

static void on_snapshot(void *ud, int32_t i, enum tree_event what)
{
    struct tiers *x = ud;
    int32_t entry = tiers_entry_of_snapshot(x, i);
    struct mark *m = &x->mark[entry];
    const struct tree_snapshot *s = &x->tree->snapshot[i];
    if (what == TREE_KEPT) {
        struct store_key before = key_before(x, s->node, &s->salt);
        *m = (struct mark){
            .key = tiers_snapshot_key(x, before, tree_tail(x->tree, i), s->n % KERN_PAGE)};
        if (copied_when_kept(x))
            enqueue(x, entry);
    } else if (what == TREE_USED) {
        if (copied_when_used(x) && m->state != MARK_QUEUED && m->state != MARK_COPYING) {
            enqueue_lost(x, s->node);
            enqueue(x, entry); /* even if it is kept: it was used, and should not go there */
        } else if (m->state == MARK_REFUSED) {
            m->state = MARK_NONE;
        }
    } else {
        if (m->state == MARK_QUEUED)
            dequeue(x, entry);
        *m = (struct mark){0};
    }
}

/* ------------------------------------------------------------------ copies */

static void name_page(const struct tiers *x, int32_t node, struct store_name *out)
{
    const struct tree_node *p = &x->tree->node[node];
    *out = (struct store_name){.key = x->mark[node].key,
                               .ids = tree_ids(x->tree, node),
                               .n_ids = KERN_PAGE,
                               .kind = STORE_PAGE,
                               .n = (int64_t)p->depth * KERN_PAGE};
    if (p->parent)
        out->parent = x->mark[p->parent].key;
    memcpy(out->salt, p->salt.word, sizeof out->salt);
}

static void name_snapshot(const struct tiers *x, int32_t i, struct store_name *out)
{
    const struct tree_snapshot *s = &x->tree->snapshot[i];
    *out = (struct store_name){.key = x->mark[tiers_entry_of_snapshot(x, i)].key,
                               .ids = tree_tail(x->tree, i),
                               .n_ids = (int32_t)(s->n % KERN_PAGE),
                               .kind = STORE_SNAPSHOT,
                               .n = s->n};
    if (s->node)
        out->parent = x->mark[s->node].key;
    memcpy(out->salt, s->salt.word, sizeof out->salt);
}

static void add_page(struct tiers *x, struct backup *b, int32_t node)
{
    name_page(x, node, &b->name[b->n]);
    b->entry[b->n++] = node;
    b->hold.node = node;
    x->mark[node].state = MARK_COPYING;
}

static void add_snapshot(struct tiers *x, struct backup *b, int32_t i)
{
    int32_t entry = tiers_entry_of_snapshot(x, i);
    name_snapshot(x, i, &b->name[b->n]);
    b->entry[b->n++] = entry;
    b->hold = (struct tree_hold){x->tree->snapshot[i].node, i};
    x->mark[entry].state = MARK_COPYING;
}

/* No copy is needed: a page that was loaded, or that somebody has computed again. */
static bool there(struct tiers *x, int32_t node)
{
    if (!tiers_all_have(x, &x->mark[node].key, STORE_PAGE))
        return false;
    x->mark[node].state = MARK_KEPT;
    return true;
}

/* Pages of one path from the head of the queue, or one snapshot. */
static void from_queue(struct tiers *x, struct backup *b)
{
    for (int looked = 0; b->n < TIERS_BATCH && looked < LOOKED_AT; looked++) {
        int32_t entry = x->queue[0].newer;
        if (!entry)
            return;
        if (!tiers_is_page(x, entry)) {
            if (b->n == 0) {
                dequeue(x, entry);
                add_snapshot(x, b, entry - (int32_t)x->tree->kv->spec.n_pages);
            }
            return;
        }
        if (b->n > 0 && x->tree->node[entry].parent != b->entry[b->n - 1])
            return;
        dequeue(x, entry);
        if (!there(x, entry))
            add_page(x, b, entry);
        else if (b->n > 0)
            return; /* what follows stands on another one */
    }
}

/* The first pages of the path to a node that are not copied yet. */
static void from_path(struct tiers *x, struct backup *b, int32_t node)
{
    int32_t top[TIERS_BATCH];
    int n = 0;
    for (int32_t i = node; i; i = x->tree->node[i].parent)
        if (x->mark[i].state == MARK_NONE && !there(x, i))
            top[n++ % TIERS_BATCH] = i;
    for (int k = 0; k < TIERS_BATCH && k < n; k++)
        add_page(x, b, top[(n - 1 - k) % TIERS_BATCH]);
}

static void from_snapshot(struct tiers *x, struct backup *b, int32_t i)
{
    if (x->mark[tiers_entry_of_snapshot(x, i)].state != MARK_NONE)
        return;
    from_path(x, b, x->tree->snapshot[i].node);
    if (b->n == 0)
        add_snapshot(x, b, i);
}

/* Of what is the next to go, if little is left. */
static void from_the_oldest(struct tiers *x, struct backup *b)
{
    const struct tree *t = x->tree;
    const struct kv *kv = t->kv;
    int looked = 0;
    if (kv->n_free_pages * LOW < kv->spec.n_pages)
        for (int32_t i = t->node_use[0].newer; i && b->n == 0 && looked++ < LOOKED_AT;
             i = t->node_use[i].newer) {
            from_path(x, b, i);
            for (int32_t s = t->node[i].snapshots; s && b->n == 0; s = t->snapshot[s].next)
                from_snapshot(x, b, s);
        }
    looked = 0;
    if (t->n_free_chunks * LOW < t->n_chunks)
        for (int32_t i = t->snapshot_use[0].newer; i && b->n == 0 && looked++ < LOOKED_AT;
             i = t->snapshot_use[i].newer)
            from_snapshot(x, b, i);
}

/* On a card, what a job reads has been computed when it begins, and who had what it writes to is done. */
static enum fst_status order(struct tiers *x)
{
    return x->far.kv ? stream_after(x->far.stream, x->tree->opts.stream) : FST_OK;
}

static bool post(struct tiers *x, struct backup *b)
{
    if (b->n == 0)
        return false;
    if (order(x) < 0 || mover_sent(&x->tree->mover) < 0) { /* the steps will say so too */
        for (int i = 0; i < b->n; i++)
            x->mark[b->entry[i]].state = MARK_REFUSED;
        return false;
    }
    tree_lock_nodes(x->tree, b->hold.node);
    if (b->hold.snapshot)
        tree_lock_snapshot(x->tree, b->hold.snapshot);
    x->n_copying++;
    x->n_posted++;
    pthread_mutex_lock(&x->lock);
    b->state = JOB_POSTED;
    pthread_cond_signal(&x->work);
    pthread_mutex_unlock(&x->lock);
    return true;
}

/* The jobs in the order in which the worker takes them, until all are posted or nothing is due. */
void tiers_post(struct tiers *x)
{
    while (!x->clearing && x->n_copying < TIERS_JOBS) {
        struct backup *b = &x->backup[x->post_at];
        b->n = 0;
        b->hold = (struct tree_hold){0};
        from_queue(x, b);
        if (b->n == 0 && x->o.policy == TIERS_WRITE_BACK && !x->draining)
            from_the_oldest(x, b);
        if (!post(x, b))
            return;
        x->post_at = (x->post_at + 1) % TIERS_JOBS;
    }
}

static void end_backup(struct tiers *x, struct backup *b)
{
    for (int i = 0; i < b->n; i++) {
        FST_ASSERT(x->mark[b->entry[i]].state == MARK_COPYING);
        x->mark[b->entry[i]].state = x->clearing  ? MARK_NONE
                                     : b->kept[i] ? MARK_KEPT
                                                  : MARK_REFUSED;
    }
    tree_unlock(x->tree, &b->hold);
    pthread_mutex_lock(&x->lock);
    b->state = JOB_FREE;
    pthread_mutex_unlock(&x->lock);
    x->n_copying--;
    x->n_posted--;
}

void tiers_poll(struct tiers *x)
{
    bool done[TIERS_JOBS];
    if (!x->n_copying && !x->clearing)
        return;
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < TIERS_JOBS; i++)
        done[i] = x->backup[i].state == JOB_DONE;
    bool cleared = !x->clear;
    pthread_mutex_unlock(&x->lock);
    for (int i = 0; i < TIERS_JOBS; i++)
        if (done[i])
            end_backup(x, &x->backup[i]);
    if (!x->clearing || !cleared || x->n_copying)
        return;
    x->clearing = false;
    if (copied_when_kept(
            x)) /* what requests rely on has stayed in the tree, and others stand on it */
        enqueue_all(x);
}

bool tiers_copying(const struct tiers *x)
{
    return x->n_copying > 0;
}

void tiers_clear(struct tiers *x)
{
    while (x->queue[0].newer)
        dequeue(x, x->queue[0].newer);
    for (int32_t i = 1; i <= x->n_entries; i++)
        if (x->mark[i].state != MARK_COPYING)
            x->mark[i].state = MARK_NONE;
    x->clearing = true;
    pthread_mutex_lock(&x->lock);
    x->clear = true;
    pthread_cond_signal(&x->work);
    pthread_mutex_unlock(&x->lock);
}

/* ------------------------------------------------------------------ loads */

/* Pages of its own and chunks for what is to come. */
static enum fst_status prepare(struct tiers *x, int slot, struct load *l, int64_t n_ids,
                               const struct tree_hit *hit)
{
    struct tree *t = x->tree;
    int64_t full = l->n - l->n % KERN_PAGE, shared = FST_MIN(hit->n_full, full);
    FST_TRY(tree_share(t, slot, hit, shared, n_ids, l->hold));
    if (tree_expect(t, l->n, &l->snapshot) < 0) {
        kv_slot_reset(t->kv, slot);
        tree_unlock(t, l->hold);
        return FST_EAGAIN;
    }
    l->first = shared / KERN_PAGE;
    l->end = full / KERN_PAGE;
    l->pages = t->kv->pages + (int64_t)slot * t->kv->page_stride;
    memcpy(l->keys, x->keys, (size_t)(l->end + 1) * sizeof *l->keys);
    return FST_OK;
}

enum fst_status tiers_load(struct tiers *x, int slot, const struct tree_salt *salt,
                           const int32_t *ids, int64_t n_ids, const struct tree_hit *hit,
                           struct tree_hold *hold)
{
    struct load *l = &x->load[slot];
    FST_ASSERT(l->state == JOB_FREE);
    if (x->clearing || !x->tree->n_chunks)
        return FST_EAGAIN;
    l->n = tiers_find(x, salt, ids, n_ids, hit, hit->n_restore + x->o.min_gain, &l->key);
    if (!l->n)
        return FST_EAGAIN;
    if (order(x) < 0)
        return FST_EAGAIN;
    l->gain = l->n - hit->n_restore;
    l->salt = *salt;
    l->ids = ids;
    l->hold = hold;
    l->came = 0;
    l->snapshot_came = false;
    l->next = NULL;
    atomic_store(&l->stop, LOAD_ON);
    FST_TRY(prepare(x, slot, l, n_ids, hit));
    x->n_loads++;
    x->n_posted++;
    pthread_mutex_lock(&x->lock);
    l->state = JOB_POSTED;
    if (x->last_load)
        x->last_load->next = l;
    else
        x->first_load = l;
    x->last_load = l;
    pthread_cond_signal(&x->work);
    pthread_mutex_unlock(&x->lock);
    return FST_OK;
}

bool tiers_loading(struct tiers *x, int slot)
{
    pthread_mutex_lock(&x->lock);
    bool loading = x->load[slot].state == JOB_POSTED;
    pthread_mutex_unlock(&x->lock);
    return loading;
}

void tiers_stop(struct tiers *x, int slot)
{
    atomic_store(&x->load[slot].stop, LOAD_STOPPED);
}

void tiers_hasten(struct tiers *x, int slot)
{
    int on = LOAD_ON;
    (void)atomic_compare_exchange_strong(&x->load[slot].stop, &on, LOAD_HASTENED);
}

int64_t tiers_gain(struct tiers *x, int slot)
{
    return x->load[slot].gain;
}

void tiers_await(struct tiers *x, int slot)
{
    pthread_mutex_lock(&x->lock);
    while (x->load[slot].state == JOB_POSTED)
        pthread_cond_wait(&x->done, &x->lock);
    pthread_mutex_unlock(&x->lock);
}

bool tiers_end(struct tiers *x, int slot)
{
    struct load *l = &x->load[slot];
    struct tree *t = x->tree;
    bool all = l->snapshot_came && l->came == l->end - l->first;
    FST_ASSERT(l->state == JOB_DONE);
    kv_commit(t->kv, slot, (l->first + l->came) * KERN_PAGE);
    if (all) {
        tree_adopt(t, l->snapshot, slot, &l->salt, l->ids, l->hold);
        x->loaded_tokens += (uint64_t)l->gain;
    } else { /* what came is whole, and may be what a shorter snapshot stands on */
        tree_insert(t, slot, &l->salt, l->ids, (l->first + l->came) * KERN_PAGE, l->hold);
        tree_forgo(t, l->snapshot);
        x->n_incomplete++;
    }
    log_debug("prefix", "load n=%lld more=%lld pages=%lld of=%lld whole=%d", (long long)l->n,
              (long long)l->gain, (long long)l->came, (long long)(l->end - l->first), all);
    kv_slot_reset(t->kv, slot);
    tree_unlock(t, l->hold);
    l->state = JOB_FREE;
    x->n_posted--;
    return all;
}

/* ------------------------------------------------------------------ open, close */

/* The widest elements first, so that none is misaligned; with block NULL the size is counted. */
static size_t place(struct tiers *x, uint8_t *block)
{
    const struct kv *kv = x->tree->kv;
    size_t slots = (size_t)kv->spec.n_slots + 1, stride = (size_t)kv->page_stride + 1;
    size_t entries = (size_t)x->n_entries + 1, at = 0;
#define CARVE(field, n)                                                                            \
    x->field = block ? (void *)(block + at) : NULL;                                                \
    at += (size_t)round_up((int64_t)((n) * sizeof *x->field), 64)
    CARVE(load, slots);
    CARVE(mark, entries);
    CARVE(queue, entries);
    CARVE(runs, (size_t)x->n_runs);
    CARVE(keys, stride * (slots + 1));
#undef CARVE
    for (size_t i = 0; block && i < slots; i++)
        x->load[i].keys = x->keys + stride * (i + 1);
    return at;
}

static enum fst_status count_run(void *ud, uint8_t *at, size_t bytes)
{
    (void)at;
    (void)bytes;
    ++*(int64_t *)ud;
    return FST_OK;
}

static enum fst_status start(struct tiers *x)
{
    const struct kv *kv = x->tree->kv;
    int64_t largest = kv_snapshot_bytes(kv, round_up(kv->spec.window, KERN_PAGE) + KERN_PAGE - 1);
    x->n_entries = (int32_t)(kv->spec.n_pages + x->tree->n_chunks);
    (void)kv_page_runs(kv, 0, count_run, &x->page_runs);
    x->n_runs = FST_MAX(TIERS_BATCH * x->page_runs, div_up(largest, x->tree->opts.chunk_bytes));
    size_t bytes = place(x, NULL);
    x->block = mem_calloc(1, bytes);
    if (!x->block)
        return fst_error(FST_ENOMEM, "tiers: no memory for %zu bytes of tables", bytes);
    place(x, x->block);
    if (kv->spec.device)
        FST_TRY(tiers_far_init(&x->far, kv, x->tree->opts.kernels, x->o.stream, TIERS_BATCH));
    if (pthread_create(&x->thread, NULL, tiers_thread, x) != 0)
        return fst_error(FST_EMACHINE, "tiers: cannot start a thread");
    x->thread_started = true;
    return FST_OK;
}

enum fst_status tiers_open(struct tiers **out, struct tree *tree, struct store *const *stores,
                           int n, const struct tiers_opts *o)
{
    struct tiers *x = mem_calloc(1, sizeof *x);
    enum fst_status rc = FST_OK;
    *out = NULL;
    FST_ASSERT(n >= 0);
    FST_ASSERT(n <= TIERS_MAX);
    FST_ASSERT(!tree->watch.page);
    FST_ASSERT(!tree->n_nodes && !tree->n_snapshots);
    if (!x) {
        for (int i = 0; i < n; i++)
            stores[i]->ops->close(stores[i]);
        return fst_error(FST_ENOMEM, "tiers: no memory");
    }
    x->tree = tree;
    x->o = *o;
    for (int i = 0; i < n; i++)
        x->store[x->n_stores++] = stores[i];
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->work, NULL);
    pthread_cond_init(&x->done, NULL);
    if (o->min_gain < 1)
        rc = fst_error(FST_EINVAL, "tiers: min_gain is %lld, expected 1 or more",
                       (long long)o->min_gain);
    else if (tree->kv->spec.device && (!o->stream || !tree->opts.kernels))
        rc = fst_error(FST_EINVAL, "tiers: stream and the tree's kernels are expected for %s",
                       tree->kv->spec.device->name);
    if (rc < 0 || (rc = start(x)) < 0) {
        tiers_close(x);
        return rc;
    }
    tree->watch = (struct tree_watch){on_page, on_snapshot, x};
    *out = x;
    return FST_OK;
}

/* Something is done, or it is that late; false then.  The lock is held. */
static bool wait_done(struct tiers *x, int64_t end_ns)
{
    struct timespec t;
    int64_t left = end_ns - clock_ns();
    if (end_ns == INT64_MAX) {
        pthread_cond_wait(&x->done, &x->lock);
        return true;
    }
    if (left <= 0)
        return false;
    clock_gettime(CLOCK_REALTIME, &t);
    left = FST_MIN(left, INT64_C(1000000000)) + t.tv_nsec; /* looked at again each second */
    t.tv_sec += (time_t)(left / 1000000000);
    t.tv_nsec = (long)(left % 1000000000);
    (void)pthread_cond_timedwait(&x->done, &x->lock, &t);
    return true;
}

/* False: it is that late, and there is still something to do. */
static bool wait_by(struct tiers *x, int64_t end_ns)
{
    for (bool in_time = true;;) {
        bool busy;
        tiers_poll(x);
        tiers_post(x);
        pthread_mutex_lock(&x->lock);
        busy = x->clear || x->first_load;
        for (int i = 0; i < TIERS_JOBS; i++)
            busy |= x->backup[i].state != JOB_FREE;
        for (int i = 0; i <= x->tree->kv->spec.n_slots; i++)
            busy |= x->load[i].state == JOB_POSTED;
        bool done = false; /* what is done already is seen in the next round */
        for (int i = 0; i < TIERS_JOBS; i++)
            done |= x->backup[i].state == JOB_DONE;
        if (busy && !done)
            in_time = wait_done(x, end_ns);
        pthread_mutex_unlock(&x->lock);
        if (!busy && !x->clearing)
            return true;
        if (!in_time || (end_ns != INT64_MAX && clock_ns() >= end_ns))
            return false;
    }
}

void tiers_wait(struct tiers *x)
{
    (void)wait_by(x, INT64_MAX);
}

/* What is queued is not copied any more; what is posted, only if that has begun. */
static void give_up(struct tiers *x)
{
    int64_t left = x->n_queued;
    while (x->queue[0].newer)
        dequeue(x, x->queue[0].newer);
    for (int i = 0; i < x->n_stores; i++)
        x->store[i]->hurry = true;
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < TIERS_JOBS; i++)
        left += x->backup[i].state == JOB_POSTED ? x->backup[i].n : 0;
    x->hurry = true;
    pthread_mutex_unlock(&x->lock);
    log_warn("tiers", "not all that is kept was written in time left=%lld", (long long)left);
}

/* What the tree has at the end, to stores that last. */
static void drain(struct tiers *x, int64_t end_ns)
{
    bool lasts = false;
    for (int i = 0; i < x->n_stores; i++)
        lasts |= x->store[i]->lasts;
    if (!lasts)
        return;
    log_info("tiers", "what is kept is written before the end pages=%lld snapshots=%lld",
             (long long)x->tree->n_nodes, (long long)x->tree->n_snapshots);
    bool all = wait_by(x, end_ns);
    x->draining = true;
    enqueue_all(x);
    if (!all || !wait_by(x, end_ns))
        give_up(x);
}

void tiers_close(struct tiers *x)
{
    tiers_close_by(x, INT64_MAX);
}

void tiers_close_by(struct tiers *x, int64_t end_ns)
{
    if (!x)
        return;
    if (x->thread_started) {
        drain(x, end_ns);
        pthread_mutex_lock(&x->lock);
        x->quit = true;
        pthread_cond_signal(&x->work);
        pthread_mutex_unlock(&x->lock);
        pthread_join(x->thread, NULL);
        for (int i = 0; i < TIERS_JOBS; i++)
            if (x->backup[i].state == JOB_DONE)
                end_backup(x, &x->backup[i]);
        FST_ASSERT(x->n_posted == 0);
        x->tree->watch = (struct tree_watch){0};
    }
    for (int i = 0; i < x->n_stores; i++)
        x->store[i]->ops->close(x->store[i]);
    tiers_far_release(&x->far);
    pthread_cond_destroy(&x->done);
    pthread_cond_destroy(&x->work);
    pthread_mutex_destroy(&x->lock);
    mem_free(x->block);
    mem_free(x);
}

/* ------------------------------------------------------------------ looking in */

void tiers_get_stats(struct tiers *x, struct tiers_stats *out)
{
    *out = (struct tiers_stats){.n_loads = x->n_loads,
                                .n_incomplete = x->n_incomplete,
                                .loaded_tokens = x->loaded_tokens,
                                .n_queued = x->n_queued + x->n_copying,
                                .n_stores = x->n_stores};
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < x->n_stores; i++) {
        out->name[i] = x->store[i]->name;
        out->store[i] = x->stats[i];
    }
    pthread_mutex_unlock(&x->lock);
}

static enum fst_status fault(const char *what, int64_t i)
{
    return fst_error(FST_EINTERNAL, "tiers: %s (%lld)", what, (long long)i);
}

static bool same(struct store_key a, struct store_key b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static enum fst_status check_mark(const struct tiers *x, int32_t entry)
{
    const struct tree *t = x->tree;
    const struct mark *m = &x->mark[entry];
    int32_t i = entry - (int32_t)t->kv->spec.n_pages;
    bool page = tiers_is_page(x, entry);
    const struct tree_snapshot *s = page ? NULL : &t->snapshot[i];
    struct store_key want;
    if (page ? t->kv->kept[entry] == KV_NOT_KEPT : !s->n || s->expected)
        return m->state == MARK_NONE ? FST_OK : fault("a mark is of nothing", entry);
    if (page)
        want = tiers_page_key(x, key_before(x, t->node[entry].parent, &t->node[entry].salt),
                              tree_ids(t, entry));
    else
        want = tiers_snapshot_key(x, key_before(x, s->node, &s->salt), tree_tail(t, i),
                                  s->n % KERN_PAGE);
    return same(m->key, want) ? FST_OK : fault("a mark has the key of something else", entry);
}

enum fst_status tiers_check(const struct tiers *x)
{
    int64_t queued = 0, in_queue = 0;
    for (int32_t i = 1; i <= x->n_entries; i++) {
        FST_TRY(check_mark(x, i));
        queued += x->mark[i].state == MARK_QUEUED;
    }
    for (int32_t i = x->queue[0].newer; i && in_queue <= queued; i = x->queue[i].newer) {
        in_queue++;
        if (x->mark[i].state != MARK_QUEUED || x->queue[x->queue[i].newer].older != i)
            return fault("the queue is torn", i);
    }
    if (queued != in_queue || queued != x->n_queued)
        return fault("marks are queued and in no queue, or otherwise", queued - in_queue);
    return FST_OK;
}
