/* stall.c - the bound of prompt rows beside streams. */
#include "sched/stall.h"

#define AIM                                                                                        \
    0.9 /* of the bound: rows cost more the deeper they lie, and no two steps take the same time */

/* Of fewer rows, unless they take half as long as a step by itself, its noise hides what they add: they are only
 * believed to cost less, so that one long step does not keep prompts small for good. */
enum { TELLING_ROWS = 16 };

static void learn(double *x, double seen)
{
    double share = seen > *x ? 0.5 : 0.1;
    *x = *x > 0 ? *x + share * (seen - *x) : seen;
}

int sched_stall_rows(const struct sched_stall *s, int most)
{
    if (s->max_s <= 0)
        return most;
    if (s->row_s <= 0)
        return FST_MAX(1, most / 4);
    double rows = (AIM * s->max_s - s->plain_s) / s->row_s;
    return rows < 1 ? 1 : rows > most ? most : (int)rows;
}

void sched_stall_saw(struct sched_stall *s, int prompt_rows, int others, double seconds)
{
    if (prompt_rows == 0) {
        if (others > 0)
            learn(&s->plain_s, seconds);
        return;
    }
    double own = FST_MAX(others > 0 ? seconds - s->plain_s : seconds, 0.0),
           seen = own / prompt_rows;
    bool telling = prompt_rows >= TELLING_ROWS || own > s->plain_s / 2;
    if (telling || s->row_s <= 0 || seen < s->row_s)
        learn(&s->row_s, seen);
}
