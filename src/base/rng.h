/* rng.h - random numbers for tests, seeds and request ids.
 *
 * xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64: the same seed gives the same
 * numbers on every machine.  Not for secrets (rng_os is the kernel's generator), and not for
 * sampling tokens: that noise is counted, not drawn in order (sample/). */
#ifndef FST_RNG_H
#define FST_RNG_H

#include "base/base.h"

struct rng {
    uint64_t s[4];
};

void rng_init(struct rng *r, uint64_t seed);
uint64_t rng_u64(struct rng *r);
/* Uniform in 0..n-1 without bias; n >= 1. */
uint64_t rng_below(struct rng *r, uint64_t n);
/* Uniform in lo..hi, both included. */
int64_t rng_range(struct rng *r, int64_t lo, int64_t hi);
/* [0, 1), 53 bits. */
double rng_unit(struct rng *r);
/* Normal, mean 0 and deviation 1 (polar method). */
double rng_normal(struct rng *r);
void rng_bytes(struct rng *r, void *out, size_t len);

/* One step of splitmix64: also a good 64-bit mixer for hashes of small integers. */
uint64_t rng_splitmix(uint64_t *state);
/* 64 bits from the kernel. */
uint64_t rng_os(void);

#endif
