/* cm.h - cmocka and what it needs before it; the size of this run. */
#ifndef TESTS_SUPPORT_CM_H
#define TESTS_SUPPORT_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* FST_TEST_SIZE: "ci" (default), "long", "san" (under sanitizers: 1 %). */
static inline int test_size(int ci, int longer, int san)
{
    const char *s = getenv("FST_TEST_SIZE");
    if (s && strcmp(s, "long") == 0)
        return longer;
    if (s && strcmp(s, "san") == 0)
        return san;
    return ci;
}

struct test_rng {
    uint64_t s;
};

static inline uint64_t test_next(struct test_rng *r)
{
    uint64_t z = r->s += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Uniform in 0 .. n-1. */
static inline int test_below(struct test_rng *r, int n)
{
    return (int)((test_next(r) >> 33) % (uint64_t)n);
}

#endif
