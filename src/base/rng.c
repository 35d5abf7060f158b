/* rng.c - xoshiro256**, splitmix64, getrandom. */
#include "base/rng.h"

#include <errno.h>
#include <math.h>
#include <sys/random.h>

uint64_t rng_splitmix(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void rng_init(struct rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        r->s[i] = rng_splitmix(&seed);
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t rng_u64(struct rng *r)
{
    uint64_t *s = r->s;
    uint64_t out = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    uint64_t reject, x;

    FST_ASSERT(n >= 1);
    reject = (0 - n) % n; /* 2^64 mod n: so many low values would come too often */
    do {
        x = rng_u64(r);
    } while (x < reject);
    return x % n;
}

int64_t rng_range(struct rng *r, int64_t lo, int64_t hi)
{
    uint64_t span = (uint64_t)hi - (uint64_t)lo;

    FST_ASSERT(lo <= hi);
    if (span == UINT64_MAX)
        return (int64_t)rng_u64(r);
    return (int64_t)((uint64_t)lo + rng_below(r, span + 1));
}

double rng_unit(struct rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

double rng_normal(struct rng *r)
{
    double x, y, s;

    do {
        x = 2 * rng_unit(r) - 1;
        y = 2 * rng_unit(r) - 1;
        s = x * x + y * y;
    } while (s >= 1 || s == 0);
    return x * sqrt(-2 * log(s) / s);
}

void rng_bytes(struct rng *r, void *out, size_t len)
{
    unsigned char *p = out;

    while (len > 0) {
        uint64_t x = rng_u64(r);
        size_t n = FST_MIN(len, sizeof x);
        memcpy(p, &x, n);
        p += n;
        len -= n;
    }
}

uint64_t rng_os(void)
{
    uint64_t x = 0;
    ssize_t n;

    do {
        n = getrandom(&x, sizeof x, 0);
    } while (n < 0 && errno == EINTR);
    FST_ASSERT(n == (ssize_t)sizeof x); /* 8 bytes are never cut short */
    return x;
}
