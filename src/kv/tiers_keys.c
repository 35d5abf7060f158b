/* tiers_keys.c - keys of pages and snapshots, and what the stores have of a prompt. */
#include <string.h>

#include "kv/tiers_int.h"

/* Zero is the parent of what has none, and no key. */
static struct store_key key_of(const struct tiers *x, struct hash128 h)
{
    struct store_key k = {{h.lo & x->o.key_mask, h.hi & x->o.key_mask}};
    if (!k.word[0] && !k.word[1])
        k.word[1] = 1;
    return k;
}

static struct hash128 seed_of(struct store_key k)
{
    return (struct hash128){k.word[0], k.word[1]};
}

struct store_key tiers_root_key(const struct tiers *x, const struct tree_salt *salt)
{
    return key_of(x, hash128(salt, sizeof *salt, (struct hash128){0, 0}));
}

struct store_key tiers_page_key(const struct tiers *x, struct store_key before, const int32_t *ids)
{
    return key_of(x, hash128(ids, KERN_PAGE * sizeof *ids, seed_of(before)));
}

struct store_key tiers_snapshot_key(const struct tiers *x, struct store_key before,
                                    const int32_t *tail, int64_t n_tail)
{
    return key_of(x, hash128(tail, (size_t)n_tail * sizeof *tail, seed_of(before)));
}

bool tiers_any_has(const struct tiers *x, const struct store_key *key, enum store_kind kind)
{
    for (int i = 0; i < x->n_stores; i++)
        if (x->store[i]->ops->has(x->store[i], key, kind))
            return true;
    return false;
}

bool tiers_all_have(const struct tiers *x, const struct store_key *key, enum store_kind kind)
{
    for (int i = 0; i < x->n_stores; i++)
        if (!x->store[i]->ops->has(x->store[i], key, kind))
            return false;
    return true;
}

/* Keys of the pages of ids as far as the tree or a store has them; how many. */
static int64_t walk(struct tiers *x, const struct tree_salt *salt, const int32_t *ids,
                    int64_t n_ids, const struct tree_hit *hit)
{
    const struct tree *t = x->tree;
    int64_t known = hit->n_full / KERN_PAGE;
    x->keys[0] = tiers_root_key(x, salt);
    for (int32_t i = hit->node; i; i = t->node[i].parent)
        x->keys[t->node[i].depth] = x->mark[i].key;
    for (int64_t i = known; i < n_ids / KERN_PAGE; i++) {
        x->keys[i + 1] = tiers_page_key(x, x->keys[i], ids + i * KERN_PAGE);
        if (!tiers_any_has(x, &x->keys[i + 1], STORE_PAGE))
            return i;
    }
    return FST_MAX(known, n_ids / KERN_PAGE);
}

/* The longest one behind page i, of n_min to n_max positions. */
static int64_t longest(struct tiers *x, int64_t i, const int32_t *ids, int64_t n_min, int64_t n_max,
                       struct store_key *key)
{
    static const struct store_key none;
    uint64_t bits[4] = {0};
    int64_t at = i * KERN_PAGE;
    for (int s = 0; s < x->n_stores; s++)
        x->store[s]->ops->tails(x->store[s], i ? &x->keys[i] : &none, bits);
    for (int64_t tail = FST_MIN(n_max - at, KERN_PAGE - 1); tail >= 0 && at + tail >= n_min;
         tail--) {
        if (!(bits[tail / 64] >> tail % 64 & 1))
            continue;
        *key = tiers_snapshot_key(x, x->keys[i], ids + at, tail);
        if (tiers_any_has(x, key, STORE_SNAPSHOT))
            return at + tail;
    }
    return 0;
}

int64_t tiers_find(struct tiers *x, const struct tree_salt *salt, const int32_t *ids, int64_t n_ids,
                   const struct tree_hit *hit, int64_t n_min, struct store_key *key)
{
    int64_t n_max = n_ids - 1, n = 0;
    n_min = FST_MAX(n_min, 1);
    if (n_min > n_max)
        return 0;
    for (int64_t i = walk(x, salt, ids, n_ids, hit);
         !n && i >= 0 && i * KERN_PAGE + KERN_PAGE > n_min; i--)
        n = longest(x, i, ids, n_min, n_max, key);
    return n;
}
