/* hash.h - fast hashes for tables and prefix chains (XXH3 of xxHash; hash.c alone includes it).
 *
 * Not for secrets: whoever may choose the input can find collisions, so compare what was hashed
 * where a wrong match would matter. */
#ifndef FST_HASH_H
#define FST_HASH_H

#include "base/base.h"

struct hash128 {
    uint64_t lo, hi;
};

uint64_t hash64(const void *data, size_t len, uint64_t seed);
/* A chain is hash128(next block, ..., seed = the hash before it). */
struct hash128 hash128(const void *data, size_t len, struct hash128 seed);
static inline bool hash128_equal(struct hash128 a, struct hash128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

#endif
