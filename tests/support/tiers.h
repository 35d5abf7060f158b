/* tiers.h - engines with so few pages that what is known has to come back from below. */
#ifndef TESTS_SUPPORT_TIERS_H
#define TESTS_SUPPORT_TIERS_H

#include <unistd.h>

#include "support/prefixes.h"

enum { POOL = 768, SHORT = 700 }; /* three pages */

/* Room for a few; a chunk of theirs is 1 MiB on a card. */
static inline int64_t snapshots(void)
{
    return getenv("FST_TEST_DEVICE") ? 5 << 20 : 4 << 20;
}

static inline struct fst_engine_stats stats_of(fst_engine *e)
{
    struct fst_engine_stats s;
    fst_engine_get_stats(e, &s);
    return s;
}

/* Until everything that is due was copied, or has given up. */
static inline struct fst_engine_stats settled(fst_engine *e)
{
    struct fst_engine_stats s;
    int64_t waited = 0;
    do {
        usleep(1000);
        s = stats_of(e);
        assert_true(waited++ < 60000);
    } while (s.running || s.waiting || s.tier_queue);
    return s;
}

static inline fst_engine *open_tiered(struct fst_engine_opts o)
{
    o.check_memory = true;
    if (!o.context_length) {
        o.context_length = SHORT;
        o.max_total_tokens = POOL;
        o.prefix_cache_bytes = snapshots();
    }
    if (!o.kv_host_bytes)
        o.kv_host_bytes = 64 << 20;
    return open_engine(o);
}

/* Somebody else takes all pages, and others all chunks of snapshots. */
static inline void push_out(fst_engine *e, int which)
{
    struct answer a;
    settled(e);
    ask(e, stream + 1300 + 64 * (which % 4), SHORT - 150, 1, &a);
    for (int i = 0; i < 4; i++)
        ask(e, stream + 1700 + 3 * i + which % 4, 130, 2, &a);
    settled(e);
}

static const char *const host_layouts[] = {"page_first_direct", "layer_first"};

/* The first n tokens, then the same when they are gone from the tree, then some more behind them. */
static inline void check_residue(fst_engine *e, int n, const char *what)
{
    struct answer first, a;
    ask(e, stream, n, 3, &first);
    compare(&first, stream, n, 3, what);
    push_out(e, n);
    uint64_t loads = stats_of(e).loads;
    size_t cached = ask(e, stream, n, 3, &a);
    bool worth = n - 1 >= 64; /* else it is computed, unless it is still above */
    if (memcmp(&a, &first, sizeof a) != 0 || (worth && cached != (size_t)n - 1))
        fail_msg("%s, prompt of %d again: another answer, or %zu cached", what, n, cached);
    assert_int_equal(stats_of(e).loads, loads + worth);
    push_out(e, n + 1);
    cached = ask(e, stream, n + 9, 3, &a);
    compare(&a, stream, n + 9, 3, what);
    if (worth && cached < (size_t)n - 1)
        fail_msg("%s, prompt of %d after %d: %zu cached", what, n + 9, n, cached);
}

#endif
