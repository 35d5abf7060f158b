/* chain.h - pieces of equal size, numbered from 1, as chains through one array: those of an object, and those that
 * are free. */
#ifndef FST_KV_CHAIN_H
#define FST_KV_CHAIN_H

#include "base/base.h"

struct chain_pool {
    int32_t *next; /* borrowed; (pieces + 1): the one behind, 0 at an end */
    int32_t *free; /* borrowed: first of those that are */
    int64_t *n_free;
};

/* The first n pieces of the chain that begins with `first`. */
static inline void chain_give(struct chain_pool p, int32_t first, int32_t n)
{
    int32_t last = first;
    for (int32_t i = 1; i < n; i++)
        last = p.next[last];
    p.next[last] = *p.free;
    *p.free = first;
    *p.n_free += n;
}

/* A chain of n >= 1 of those that are free; its first. */
static inline int32_t chain_take(struct chain_pool p, int32_t n)
{
    int32_t first = *p.free, last = first;
    FST_ASSERT(n > 0);
    FST_ASSERT(n <= *p.n_free);
    for (int32_t i = 1; i < n; i++)
        last = p.next[last];
    *p.free = p.next[last];
    p.next[last] = 0;
    *p.n_free -= n;
    return first;
}

#endif
