/* numpy.h - the random numbers of numpy's legacy generator and of Python's `random`, bit for bit, so that a
 * benchmark with the same seed sends what other people's clients send.
 *
 * Both stand on MT19937 (Matsumoto and Nishimura 1998).  numpy: RandomState.seed, randint (32-bit masked
 * rejection), exponential (-log(1 - u)), numpy/random/src/{mt19937,distributions,legacy}.  Python:
 * random.seed(int), random(), shuffle, choices, Lib/random.py. */
#ifndef FST_CLIENT_NUMPY_H
#define FST_CLIENT_NUMPY_H

#include "base/base.h"

struct mt19937 {
    uint32_t key[624];
    int at;
};

/* numpy.random.seed(seed), RandomState(seed). */
void numpy_seed(struct mt19937 *m, uint32_t seed);
/* random.seed(seed) of a non-negative integer. */
void python_seed(struct mt19937 *m, uint64_t seed);

uint32_t mt19937_u32(struct mt19937 *m);
/* [0, 1), 53 bits: numpy's random_sample(), Python's random(). */
double mt19937_unit(struct mt19937 *m);

/* One element of numpy.random.randint(low, high): low <= x < high, a range of at most 2^32.  A range of one
 * value draws nothing, as there. */
int64_t numpy_randint(struct mt19937 *m, int64_t low, int64_t high);
double numpy_exponential(struct mt19937 *m, double scale);

/* random.randrange(n), 1 <= n < 2^32. */
uint32_t python_below(struct mt19937 *m, uint32_t n);
/* random.shuffle: order becomes what a list of `order` becomes. */
void python_shuffle(struct mt19937 *m, uint32_t *order, size_t n);

#endif
