/* self_test.h - do the kernels of a table compute what ref computes, on this machine, now? */
#ifndef FST_KERNELS_SELF_TEST_H
#define FST_KERNELS_SELF_TEST_H

#include "kernels/kernels.h"

struct self_test {
    uint64_t seed; /* in: of the numbers */
    int64_t rounds;
    double worst;   /* NMSE */
    char where[32]; /* block of the worst */
};

/* Rounds of random numbers through the blocks of a small layer (seam, attn_in, q_path, kv_write,
 * attention, attn_out, route, experts), the head and the draw, by `k` on `d` (NULL: the host) and by ref; at
 * least one round, more until `seconds` are over.  FST_EINTERNAL names the block that differs by more
 * than 1e-3 (NMSE), or what the device reported; FST_ENOMEM. */
enum fst_status kernels_self_test(const struct kernels *k, const struct device *d, double seconds,
                                  struct self_test *t);

#endif
