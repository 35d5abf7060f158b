/* tokens.c - how few tokens the shortest text from a place to the end of its document needs.
 *
 * The way to go on is fixed for each state (state.step), so that what is behind a step of it is the
 * way from where the step leads: after the first token of the best cut, the rest of the cut is a cut
 * of the way from there.  That is why a mask that keeps to `tokens - 1` never ends in a dead end. */
#include "grammar/space.h"

/* How many times a call is passed over from its time number `count` on: whole ones that lie before the
 * bytes that are written.  A billion of them is one step. */
static uint32_t pass_over(const struct grammar *g, const struct call_edge *e, uint32_t count,
                          uint32_t *skip)
{
    uint32_t bytes = g->state[g->rule[e->rule].start].least;
    uint32_t n = count > e->min ? 0 : FST_MIN(e->min - count + 1, *skip / bytes);

    *skip -= n * bytes;
    return n;
}

/* Writes the last SPACE_TEXT_MAX bytes of the shortest text of a way; their number. */
static uint32_t write_text(struct space *s, const struct way *w)
{
    const struct grammar *g = s->g;
    uint32_t state = w->state, open = w->open, n_frames = 0, n = 0, skip;
    uint32_t least = g->state[state].least + s->now.open[open].least;

    skip = least > SPACE_TEXT_MAX ? least - SPACE_TEXT_MAX : 0;
    for (;;) {
        const struct state *q = &g->state[state];
        uint32_t call, count;

        if (q->step_kind == STEP_BYTE) {
            if (skip)
                skip--;
            else
                s->text[n++] = g->span[q->step].lo;
            state = g->span[q->step].to;
            continue;
        }
        if (q->step_kind == STEP_CALL) {
            call = q->step;
            count = 1;
            if (g->call[call].is_tail) {
                state = g->rule[g->call[call].rule].start;
                continue;
            }
        } else { /* the end of a rule: once more, or what follows the call */
            if (n_frames) {
                n_frames--;
                call = s->frame_call[n_frames];
                count = s->frame_count[n_frames] + 1;
            } else if (open) {
                call = s->now.open[open].call;
                count = s->now.open[open].count + 1;
                open = s->now.open[open].parent;
            } else {
                return n;
            }
        }
        count += pass_over(g, &g->call[call], count, &skip);
        if (count > g->call[call].min) {
            state = g->call[call].ret;
            continue;
        }
        FST_ASSERT(n_frames < g->depth_max + 2);
        s->frame_call[n_frames] = call;
        s->frame_count[n_frames++] = count;
        state = g->rule[g->call[call].rule].start;
    }
}

/* Fewest tokens that spell text[0..n). */
static uint32_t cut_text(struct space *s, uint32_t n)
{
    const struct trie *t = &s->v->all;

    s->cost[n] = 0;
    for (uint32_t i = n; i-- > 0;) {
        uint32_t best = GRAMMAR_INF, at = t->root[s->text[i]], end = t->root[s->text[i] + 1];

        for (uint32_t k = i; at < end;) {
            const struct trie_node *x = &t->node[at];
            if (x->byte != s->text[k]) {
                at = x->skip;
                continue;
            }
            k++;
            if (x->id >= 0 && s->cost[k] + 1 < best)
                best = s->cost[k] + 1;
            if (k == n)
                break;
            end = x->skip;
            at++;
        }
        s->cost[i] = best;
    }
    return s->cost[0];
}

uint32_t space_tokens(struct space *s, uint32_t place)
{
    struct place *p = &s->now.place[place];
    uint32_t best = GRAMMAR_INF;

    if (p->tokens != GRAMMAR_NONE)
        return p->tokens;
    if (p->accept) {
        p->tokens = 0;
        return 0;
    }
    for (uint32_t i = 0; i < p->n_ways; i++) {
        const struct way *w = &s->now.way[p->way_at + i];
        uint64_t bytes = (uint64_t)s->g->state[w->state].least + s->now.open[w->open].least;
        uint32_t more = bytes > SPACE_TEXT_MAX ? (uint32_t)bytes - SPACE_TEXT_MAX : 0;

        if (bytes >= GRAMMAR_INF || bytes / s->v->longest >= best)
            continue; /* cannot be fewer */
        /* what is in front of the part that is looked at counts a token a byte */
        best = FST_MIN(best, more + cut_text(s, write_text(s, w)));
    }
    p->tokens = best;
    return best;
}
