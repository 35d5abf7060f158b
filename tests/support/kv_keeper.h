/* kv_keeper.h - a store in front of another one that outlives it, is slow, loses and refuses.
 *
 * What is asked of it is asked of the inner store, which stays when the keeper is closed: so a test can end
 * and begin again over the same objects.  At odd times a get is missed, its runs filled with rubbish, or a put
 * refused. */
#ifndef TESTS_SUPPORT_KV_KEEPER_H
#define TESTS_SUPPORT_KV_KEEPER_H

#include <unistd.h>

#include "kv/store.h"
#include "support/cm.h"

struct keeper {
    struct store store;
    struct store *inner; /* borrowed */
    struct test_rng r;
    int lose, refuse; /* of a hundred */
    int slow_us;      /* at most, a call */
    int fixed_us;     /* and each of them */
    int closed, cleared, flushed, hurried;
};

static inline void keeper_slow(struct keeper *k)
{
    if (k->fixed_us)
        usleep((useconds_t)k->fixed_us);
    if (k->slow_us)
        usleep((useconds_t)test_below(&k->r, k->slow_us));
    k->store.stats = k->inner->stats;
}

static inline bool keeper_has(struct store *s, const struct store_key *key, enum store_kind kind)
{
    struct keeper *k = (struct keeper *)s;
    return k->inner->ops->has(k->inner, key, kind);
}

static inline void keeper_tails(struct store *s, const struct store_key *parent, uint64_t bits[4])
{
    struct keeper *k = (struct keeper *)s;
    k->inner->ops->tails(k->inner, parent, bits);
}

static inline void keeper_put(struct store *s, struct store_put *p, int n)
{
    struct keeper *k = (struct keeper *)s;
    for (int i = 0; i < n; i++) {
        p[i].kept = false;
        if (test_below(&k->r, 100) >= k->refuse)
            k->inner->ops->put(k->inner, &p[i], 1);
    }
    keeper_slow(k);
}

static inline void keeper_get(struct store *s, struct store_get *g, int n)
{
    struct keeper *k = (struct keeper *)s;
    k->inner->ops->get(k->inner, g, n);
    for (int i = 0; i < n; i++)
        if (test_below(&k->r, 100) < k->lose) {
            g[i].found = false;
            for (int32_t r = 0; r < g[i].n_runs; r++)
                memset(g[i].runs[r].at, 0x99, g[i].runs[r].bytes);
        }
    keeper_slow(k);
}

static inline void keeper_clear(struct store *s)
{
    struct keeper *k = (struct keeper *)s;
    k->inner->ops->clear(k->inner);
    k->cleared++;
    keeper_slow(k);
}

static inline void keeper_flush(struct store *s)
{
    ((struct keeper *)s)->flushed++;
}

static inline void keeper_close(struct store *s)
{
    ((struct keeper *)s)->closed++;
    ((struct keeper *)s)->hurried += s->hurry;
}

static inline struct store *keeper_open(struct keeper *k, struct store *inner, const char *name)
{
    static const struct store_ops ops = {.has = keeper_has,
                                         .tails = keeper_tails,
                                         .put = keeper_put,
                                         .get = keeper_get,
                                         .clear = keeper_clear,
                                         .flush = keeper_flush,
                                         .close = keeper_close};
    k->inner = inner;
    k->store = (struct store){.ops = &ops, .name = name, .stats = inner->stats};
    return &k->store;
}

#endif
