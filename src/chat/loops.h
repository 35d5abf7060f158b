/* loops.h - does a reply go round in circles?
 *
 *   text   the same 200 characters four times: a stretch of `c` characters that comes back to back until
 *          3 * max(c, 200) + 200 of them have gone by (800 for a word that repeats, 3,200 for a page of 1,000).
 *          Copies are exact, and no longer than LOOPS_PERIOD_MAX bytes: a list that grows is no loop.
 *   calls  the same tool with the same arguments four times in one reply, whatever is in between.
 *
 * Thresholds: what agents were seen to get stuck in (200 characters or one call, four times over).
 * A byte costs one step of a rolling hash; nothing is allocated. */
#ifndef FST_CHAT_LOOPS_H
#define FST_CHAT_LOOPS_H

#include "base/base.h"

enum {
    LOOPS_TIMES = 4,
    LOOPS_CHARS = 200,
    LOOPS_PERIOD_MAX = 4096,
    LOOPS_RING = 8192, /* holds a period and the window before it */
    LOOPS_PLACES = 1024,
    LOOPS_CALLS = 64 /* calls that are remembered, the last ones */
};

/* Zero is a valid start. */
struct loops {
    uint8_t ring[LOOPS_RING];     /* the last bytes, by number modulo size */
    uint64_t n;                   /* bytes so far */
    uint64_t hash;                /* of the last LOOPS_CHARS bytes; */
    uint64_t out;                 /* what the byte before them counts in it */
    uint64_t place[LOOPS_PLACES]; /* by hash: n behind such a window, of every 8th one; 0: none */
    uint64_t period;              /* bytes; 0: nothing repeats */
    uint64_t period_chars, chars; /* in a period; in all that has it */
    /* calls */
    uint64_t call; /* hash of the one that is open */
    struct {
        uint64_t hash;
        int count;
    } seen[LOOPS_CALLS];
    uint64_t n_calls; /* different ones */
};

void loops_reset_text(struct loops *l);
/* Text in any pieces.  True where it has gone round. */
bool loops_text(struct loops *l, const char *text, size_t len);
void loops_call_begin(struct loops *l, const char *name);
void loops_call_args(struct loops *l, const char *text, size_t len);
bool loops_call_end(struct loops *l); /* true: this one came four times */

#endif
