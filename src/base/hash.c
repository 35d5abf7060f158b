/* hash.c - XXH3. */
#include "base/hash.h"

#include <xxhash.h>

uint64_t hash64(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}

struct hash128 hash128(const void *data, size_t len, struct hash128 seed)
{
    /* XXH3 takes 64 bits of seed: the other half of the chain is mixed in behind it. */
    XXH128_hash_t h = XXH3_128bits_withSeed(data, len, seed.lo);
    uint64_t both[3] = {h.low64, h.high64, seed.hi};

    h = XXH3_128bits(both, sizeof both);
    return (struct hash128){.lo = h.low64, .hi = h.high64};
}
