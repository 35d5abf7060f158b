/* tiers_worker.c - the tiers' own thread: copies to stores, loads from them.
 *
 * Loads go first, since requests wait for them, and are read batch by batch, so that one that is stopped ends
 * soon.  The snapshot is read before the pages: without it they are for nothing. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "kv/tiers_int.h"

enum {
    FLUSH_NS = 1000000000
}; /* what was put is made safe when nothing else is to do for so long */

/* ------------------------------------------------------------------ runs */

struct runs {
    struct store_run *at;
    int64_t n, room;
};

static enum fst_status add_run(void *ud, uint8_t *at, size_t bytes)
{
    struct runs *r = ud;
    FST_ASSERT(r->n < r->room);
    r->at[r->n++] = (struct store_run){at, bytes};
    return FST_OK;
}

/* Of page i of a batch, for a store. */
static struct runs page_runs(const struct tiers *x, int i, int32_t page, const struct store *s)
{
    struct runs r = {x->runs + i * x->page_runs, 0, x->page_runs};
    if (x->far.kv)
        (void)add_run(&r, tiers_far_place(&x->far, i, !s->far), (size_t)x->far.page_bytes);
    else
        (void)kv_page_runs(x->tree->kv, page, add_run, &r);
    return r;
}

static struct runs snapshot_runs(const struct tiers *x, int32_t snapshot)
{
    struct runs r = {x->runs, 0, x->n_runs};
    (void)tree_snapshot_runs(x->tree, snapshot, add_run, &r);
    return r;
}

/* ------------------------------------------------------------------ copies */

static void put_to(struct tiers *x, struct backup *b, struct store *s)
{
    struct store_put put[TIERS_BATCH];
    int which[TIERS_BATCH], n = 0;
    for (int i = 0; i < b->n; i++) {
        bool page = b->name[i].kind == STORE_PAGE;
        /* A snapshot is put again to be the last used one; it is not written again. */
        if (page && s->ops->has(s, &b->name[i].key, STORE_PAGE))
            continue;
        struct runs r = page ? page_runs(x, i, b->entry[i], s) : snapshot_runs(x, b->hold.snapshot);
        which[n] = i;
        put[n++] = (struct store_put){b->name[i], r.at, (int32_t)r.n, false};
    }
    if (n > 0)
        s->ops->put(s, put, n);
    for (int k = 0; k < n; k++)
        b->kept[which[k]] &= put[k].kept;
    if (n > 0 && s->lasts && !x->unsafe_ns)
        x->unsafe_ns = clock_ns();
}

/* On a card: pages to where the store reads them. */
static bool bring(struct tiers *x, const struct backup *b, const struct store *s, bool *gathered)
{
    if (!x->far.kv || b->name[0].kind != STORE_PAGE)
        return true;
    if (!*gathered &&
        (tiers_far_turn(&x->far) < 0 || tiers_far_gather(&x->far, b->entry, b->n) < 0))
        return false;
    *gathered = true;
    return s->far || tiers_far_near(&x->far, b->n) == FST_OK;
}

static void do_backup(struct tiers *x, struct backup *b)
{
    bool gathered = false;
    for (int s = 0; s < x->n_stores; s++) {
        if (x->draining && !x->store[s]->lasts)
            continue;
        if (bring(x, b, x->store[s], &gathered))
            put_to(x, b, x->store[s]);
        else
            memset(b->kept, false, sizeof b->kept);
    }
}

/* ------------------------------------------------------------------ loads */

/* Those that are not found in one store are asked of the next; in haste no disk is. */
static void get_from_any(struct tiers *x, const struct load *l, struct store_get *g, int n,
                         bool *from_near)
{
    struct store_get ask[TIERS_BATCH];
    int which[TIERS_BATCH];
    for (int s = 0; s < x->n_stores; s++) {
        struct store *store = x->store[s];
        int k = 0;
        if (store->lasts && atomic_load(&l->stop) != LOAD_ON)
            continue;
        for (int i = 0; i < n; i++)
            if (!g[i].found && store->ops->has(store, &g[i].name.key, g[i].name.kind)) {
                which[k] = i;
                ask[k] = g[i];
                if (g[i].name.kind == STORE_PAGE)
                    ask[k].runs = page_runs(x, i, l->pages[g[i].name.n / KERN_PAGE - 1], store).at;
                k++;
            }
        if (k > 0)
            store->ops->get(store, ask, k);
        for (int i = 0; i < k; i++) {
            g[which[i]].found = ask[i].found;
            from_near[which[i]] = !store->far;
        }
    }
}

static struct store_name name_of(const struct load *l, int64_t page)
{
    struct store_name n = {.key = l->keys[page + 1],
                           .ids = l->ids + page * KERN_PAGE,
                           .n_ids = KERN_PAGE,
                           .kind = STORE_PAGE,
                           .n = (page + 1) * KERN_PAGE};
    if (page > 0)
        n.parent = l->keys[page];
    memcpy(n.salt, l->salt.word, sizeof n.salt);
    return n;
}

static bool load_snapshot(struct tiers *x, const struct load *l)
{
    struct runs r = snapshot_runs(x, l->snapshot);
    int64_t page = l->n / KERN_PAGE;
    struct store_get g = {.runs = r.at, .n_runs = (int32_t)r.n};
    g.name = (struct store_name){.key = l->key,
                                 .ids = l->ids + page * KERN_PAGE,
                                 .n_ids = (int32_t)(l->n % KERN_PAGE),
                                 .kind = STORE_SNAPSHOT,
                                 .n = l->n};
    if (page > 0)
        g.name.parent = l->keys[page];
    memcpy(g.name.salt, l->salt.word, sizeof g.name.salt);
    bool near;
    get_from_any(x, l, &g, 1, &near);
    return g.found;
}

/* The next pages of the load; false: one of them is missing. */
static bool load_pages(struct tiers *x, struct load *l, int n)
{
    struct store_get g[TIERS_BATCH];
    bool found[TIERS_BATCH], near[TIERS_BATCH] = {0};
    int64_t first = l->first + l->came;
    int32_t n_runs = (int32_t)(x->far.kv ? 1 : x->page_runs);
    if (x->far.kv && tiers_far_turn(&x->far) < 0)
        return false;
    for (int i = 0; i < n; i++)
        g[i] = (struct store_get){name_of(l, first + i), NULL, n_runs, false};
    get_from_any(x, l, g, n, near);
    for (int i = 0; i < n; i++)
        found[i] = g[i].found;
    if (x->far.kv && tiers_far_scatter(&x->far, l->pages + first, n, found, near) < 0)
        return false;
    for (int i = 0; i < n; i++, l->came++)
        if (!found[i])
            return false;
    return true;
}

static void do_load(struct tiers *x, struct load *l)
{
    l->snapshot_came = atomic_load(&l->stop) != LOAD_STOPPED && load_snapshot(x, l);
    for (bool ok = l->snapshot_came; ok && atomic_load(&l->stop) != LOAD_STOPPED;) {
        int64_t left = l->end - l->first - l->came;
        ok = left > 0 && load_pages(x, l, (int)FST_MIN(left, TIERS_BATCH));
    }
    if (x->far.kv &&
        stream_sync(x->far.stream) < 0) { /* nothing came from a card that has failed */
        l->snapshot_came = false;
        l->came = 0;
    }
}

/* ------------------------------------------------------------------ the thread; the lock is held */

static void publish(struct tiers *x)
{
    for (int s = 0; s < x->n_stores; s++)
        x->stats[s] = x->store[s]->stats;
}

static void finish(struct tiers *x, enum job_state *state)
{
    pthread_mutex_lock(&x->lock);
    *state = JOB_DONE;
    publish(x);
    pthread_cond_broadcast(&x->done);
}

static void next_load(struct tiers *x)
{
    struct load *l = x->first_load;
    x->first_load = l->next;
    if (!x->first_load)
        x->last_load = NULL;
    pthread_mutex_unlock(&x->lock);
    do_load(x, l);
    finish(x, &l->state);
}

static void next_backup(struct tiers *x)
{
    struct backup *b = &x->backup[x->next_backup];
    x->next_backup = (x->next_backup + 1) % TIERS_JOBS;
    bool given_up = x->hurry;
    pthread_mutex_unlock(&x->lock);
    memset(b->kept, !given_up, sizeof b->kept);
    if (!given_up)
        do_backup(x, b);
    finish(x, &b->state);
}

static void clear(struct tiers *x)
{
    pthread_mutex_unlock(&x->lock);
    for (int s = 0; s < x->n_stores; s++)
        x->store[s]->ops->clear(x->store[s]);
    pthread_mutex_lock(&x->lock);
    x->clear = false;
    publish(x);
    pthread_cond_broadcast(&x->done);
}

static void flush(struct tiers *x)
{
    pthread_mutex_unlock(&x->lock);
    for (int s = 0; s < x->n_stores; s++)
        x->store[s]->ops->flush(x->store[s]);
    x->unsafe_ns = 0;
    pthread_mutex_lock(&x->lock);
    publish(x);
}

/* Until there is something to do, or it is time to flush. */
static void rest(struct tiers *x)
{
    struct timespec until;
    if (x->unsafe_ns && clock_ns() - x->unsafe_ns >= FLUSH_NS) {
        flush(x);
        return;
    }
    if (!x->unsafe_ns) {
        pthread_cond_wait(&x->work, &x->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    (void)pthread_cond_timedwait(&x->work, &x->lock, &until);
}

void *tiers_thread(void *arg)
{
    struct tiers *x = arg;
    pthread_mutex_lock(&x->lock);
    for (;;) {
        if (x->first_load)
            next_load(x);
        else if (x->backup[x->next_backup].state == JOB_POSTED)
            next_backup(x);
        else if (x->clear)
            clear(x);
        else if (x->quit)
            break;
        else {
            rest(x);
            continue;
        }
        pthread_mutex_unlock(&x->lock);
        if (x->o.wake)
            x->o.wake(x->o.wake_ud);
        pthread_mutex_lock(&x->lock);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}
