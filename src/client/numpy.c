#include "client/numpy.h"

#include <math.h>

enum { N = 624, M = 397 };

static void seed_words(struct mt19937 *m, uint32_t seed)
{
    m->key[0] = seed;
    for (uint32_t i = 1; i < N; i++)
        m->key[i] = UINT32_C(1812433253) * (m->key[i - 1] ^ (m->key[i - 1] >> 30)) + i;
    m->at = N;
}

void numpy_seed(struct mt19937 *m, uint32_t seed)
{
    seed_words(m, seed);
}

/* init_by_array of the reference code, with the words of the seed, lowest first. */
void python_seed(struct mt19937 *m, uint64_t seed)
{
    uint32_t word[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t n = word[1] ? 2 : 1, i = 1, j = 0;

    seed_words(m, 19650218);
    for (int k = 0; k < N; k++) {
        uint32_t prev = m->key[i - 1];
        m->key[i] = (m->key[i] ^ ((prev ^ (prev >> 30)) * UINT32_C(1664525))) + word[j] + j;
        if (++i == N) {
            m->key[0] = m->key[N - 1];
            i = 1;
        }
        j = (j + 1) % n;
    }
    for (int k = 0; k < N - 1; k++) {
        uint32_t prev = m->key[i - 1];
        m->key[i] = (m->key[i] ^ ((prev ^ (prev >> 30)) * UINT32_C(1566083941))) - i;
        if (++i == N) {
            m->key[0] = m->key[N - 1];
            i = 1;
        }
    }
    m->key[0] = UINT32_C(0x80000000);
    m->at = N;
}

static void refill(struct mt19937 *m)
{
    for (int i = 0; i < N; i++) {
        uint32_t y =
            (m->key[i] & UINT32_C(0x80000000)) | (m->key[(i + 1) % N] & UINT32_C(0x7fffffff));
        m->key[i] = m->key[(i + M) % N] ^ (y >> 1) ^ (y & 1 ? UINT32_C(0x9908b0df) : 0);
    }
    m->at = 0;
}

uint32_t mt19937_u32(struct mt19937 *m)
{
    if (m->at >= N)
        refill(m);
    uint32_t y = m->key[m->at++];
    y ^= y >> 11;
    y ^= (y << 7) & UINT32_C(0x9d2c5680);
    y ^= (y << 15) & UINT32_C(0xefc60000);
    return y ^ (y >> 18);
}

double mt19937_unit(struct mt19937 *m)
{
    uint32_t a = mt19937_u32(m) >> 5, b = mt19937_u32(m) >> 6;
    return ((double)a * 67108864.0 + (double)b) / 9007199254740992.0;
}

int64_t numpy_randint(struct mt19937 *m, int64_t low, int64_t high)
{
    FST_ASSERT(low < high);
    uint64_t range = (uint64_t)high - (uint64_t)low - 1, mask = range;
    FST_ASSERT(range <= UINT32_MAX);
    if (range == 0)
        return low;
    for (int shift = 1; shift < 32; shift *= 2)
        mask |= mask >> shift;
    uint32_t x;
    do
        x = mt19937_u32(m) & (uint32_t)mask;
    while (x > range);
    return low + (int64_t)x;
}

double numpy_exponential(struct mt19937 *m, double scale)
{
    return scale * -log(1.0 - mt19937_unit(m));
}

uint32_t python_below(struct mt19937 *m, uint32_t n)
{
    FST_ASSERT(n >= 1);
    int bits = 32 - __builtin_clz(n);
    uint32_t x;
    do
        x = mt19937_u32(m) >> (32 - bits);
    while (x >= n);
    return x;
}

void python_shuffle(struct mt19937 *m, uint32_t *order, size_t n)
{
    for (size_t i = n; i-- > 1;) {
        size_t j = python_below(m, (uint32_t)(i + 1));
        uint32_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}
