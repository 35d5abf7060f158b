/* masks.c - the mask of a place: a walk over the trie of the vocabulary, and what spares most of it.
 *
 * 1. Where every run of safe characters is legal (inside a string), the tokens made of them are a
 *    ready mask and only the rest is walked: 5,700 of 274,000 nodes for DeepSeek-V4's vocabulary.
 * 2. Elsewhere, characters of most kinds lead to the same next place, whichever they are (or nowhere):
 *    along that chain whole groups of tokens are taken or left by what they are made of, and the walk
 *    skips the subtrees that hold such tokens alone. */
#include "grammar/space.h"

enum {
    CHAIN_MAX = 16, /* characters; longer tokens are few */
    SKIP_MIN = 2    /* nodes of a subtree that are worth a look at its kinds */
};

struct walk {
    struct space *s;
    uint32_t path[VOCAB_TOKEN_MAX + 2]; /* place before each byte */
    uint32_t room;                      /* tokens left after this one; MATCHER_NO_LIMIT: any */
    uint32_t peak;
    uint32_t *mask;
    /* the chain from path[0] on: `run` characters of all_to lead along it (CHAIN_MAX + 1: any number);
     * tokens of more are known only if is_closed: none is legal */
    uint64_t all_to, none_to;
    uint32_t run;
    bool is_closed;
    bool may[CHAIN_MAX + 2];            /* tokens of so many characters leave room enough */
    uint8_t pure[VOCAB_TOKEN_MAX + 2];  /* only characters of all_to before each byte */
    uint8_t chars[VOCAB_TOKEN_MAX + 2]; /* and how many */
};

static bool fits(struct walk *w, uint32_t place)
{
    struct space *s = w->s;
    uint32_t bytes = s->now.place[place].least;

    if (bytes <= w->room)
        return true;
    if (bytes < GRAMMAR_INF && bytes / s->v->longest > w->room)
        return false;
    return space_tokens(s, place) <= w->room;
}

static void set(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= 1u << (id % 32);
}

static void allow(struct walk *w, int32_t id, uint32_t place)
{
    const int32_t *same = w->s->v->same;

    if (w->room == MATCHER_NO_LIMIT)
        w->peak = FST_MAX(w->peak, w->s->now.place[place].least);
    else if (!fits(w, place))
        return;
    for (; id >= 0; id = same[id])
        set(w->mask, id);
}

/* Are all tokens below this node known by their kinds? */
static inline bool is_known(const struct walk *w, const struct trie_sort *x, uint32_t depth)
{
    return x->is_whole && w->pure[depth] && !(x->kinds & ~(w->all_to | w->none_to)) &&
           (w->is_closed || w->run > CHAIN_MAX || w->chars[depth] + x->n_chars <= w->run);
}

/* Every token of the trie that goes on from path[0]. */
static enum fst_status walk_trie(struct walk *w, const struct trie *t, bool by_kinds)
{
    struct space *s = w->s;
    const struct trie_node *node = t->node;
    const uint8_t *class_of = s->g->class_of;
    const uint32_t n_classes = s->g->n_classes;

    w->pure[0] = by_kinds;
    w->chars[0] = 0;
    for (uint32_t i = 0; i < t->n;) {
        const struct trie_node x = node[i];
        uint32_t to;

        if (by_kinds) {
            bool starts = (x.byte & 0xc0) != 0x80;

            if (x.skip - i >= SKIP_MIN && is_known(w, &t->sort[i], x.depth)) {
                i = x.skip;
                continue;
            }
            w->chars[x.depth + 1] = (uint8_t)(w->chars[x.depth] + starts);
            w->pure[x.depth + 1] = w->pure[x.depth];
            if (starts && w->pure[x.depth]) {
                int kind = vocab_kind(x.byte);
                w->pure[x.depth + 1] = kind >= 0 && w->all_to >> kind & 1;
            }
        }
        to = s->row[(size_t)w->path[x.depth] * n_classes + class_of[x.byte]];
        if (to == PLACE_UNKNOWN) {
            to = space_step(s, w->path[x.depth], x.byte);
            if (to == PLACE_UNKNOWN) {
                if (!space_collect(s, w->path, x.depth + 1u))
                    return fst_error(FST_EBUDGET, "grammar: one position does not fit the memory");
                continue; /* the same node again */
            }
        }
        if (to == PLACE_DEAD) {
            i = x.skip;
            continue;
        }
        w->path[x.depth + 1] = to;
        if (x.id >= 0)
            allow(w, x.id, to);
        i++;
    }
    return FST_OK;
}

/* ---- inside strings -------------------------------------------------------------------------------- */

/* How many safe characters any text of which is legal here, 0: none; *exact: and none of more. */
static uint32_t safe_run(const struct space *s, uint32_t place, bool *exact, uint32_t *cost)
{
    const struct grammar *g = s->g;
    const struct place *p = &s->now.place[place];
    uint32_t best = 0, n_safe = 0;

    *exact = false;
    for (uint32_t i = 0; i < p->n_ways; i++) {
        const struct way *w = &s->now.way[p->way_at + i];
        const struct state *q = &g->state[w->state];
        uint32_t run = q->run;
        bool is_exact = q->run_exact;

        if (!q->has_safe)
            continue;
        n_safe++;
        if (run == RUN_ANY)
            run = GRAMMAR_INF;
        if (w->open) { /* the start of a character that a call counts */
            const struct open_call *o = &s->now.open[w->open];
            const struct call_edge *e = &g->call[o->call];
            const struct rule *r = &g->rule[e->rule];

            if (r->is_char && w->state == r->start) {
                const struct state *ret = &g->state[e->ret];
                run = e->max == GRAMMAR_INF ? GRAMMAR_INF : e->max - o->count + 1;
                is_exact = !ret->has_safe && !ret->n_calls && !ret->accept;
            }
        }
        if (run > best) {
            best = run;
            *exact = is_exact;
            *cost = q->least + s->now.open[w->open].least;
        }
    }
    *exact = best == GRAMMAR_INF || (*exact && n_safe == 1);
    return best;
}

static void allow_safe(struct walk *w, uint32_t run)
{
    const struct grammar_vocab *v = w->s->v;

    memcpy(w->mask, v->safe[run == GRAMMAR_INF ? 0 : FST_MIN(run, VOCAB_SAFE_STEPS)],
           v->words * sizeof *w->mask);
    if (run == GRAMMAR_INF || run <= VOCAB_SAFE_STEPS)
        return;
    for (size_t i = 0; i < v->n_longer && (uint32_t)v->longer[i].n_chars <= run; i++)
        set(w->mask, v->longer[i].id);
}

/* ---- by kinds of characters -------------------------------------------------------------------------- */

/* Follows the chain from path[0].  False: it is no use, or memory is full. */
static bool find_chain(struct walk *w)
{
    struct space *s = w->s;
    uint32_t place = w->path[0], peak = 0;
    uint64_t all, some, none;

    if (!space_kinds(s, place))
        return false;
    all = w->all_to = s->now.place[place].all_to;
    some = s->now.place[place].some_to;
    none = w->none_to = s->now.place[place].none_to;
    w->is_closed = false;
    if (!all)
        return false;
    for (w->run = 0; w->run < CHAIN_MAX; w->run++) {
        const struct place *p = &s->now.place[place];
        uint32_t to;

        if (!p->has_kinds && !space_kinds(s, place))
            return false;
        if (p->all_to != all || p->none_to != none || p->some_to != some) {
            /* the end of a counted part: nothing that was legal or illegal is legal now */
            w->is_closed = !((all | some | none) & ~p->none_to);
            break;
        }
        to = p->to;
        peak = FST_MAX(peak, s->now.place[to].least);
        w->may[w->run + 1] = w->room == MATCHER_NO_LIMIT || fits(w, to);
        if (to == place) {
            for (uint32_t k = w->run + 2; k <= CHAIN_MAX + 1; k++)
                w->may[k] = w->may[w->run + 1];
            w->run = CHAIN_MAX + 1;
            break;
        }
        place = to;
    }
    if (!w->run)
        return false;
    w->peak = FST_MAX(w->peak, peak);
    return true;
}

static void allow_groups(struct walk *w)
{
    const struct grammar_vocab *v = w->s->v;

    for (size_t k = 0; k < v->n_groups; k++) {
        const struct vocab_group *g = &v->group[k];

        if (g->kinds & ~w->all_to)
            continue;
        for (uint32_t i = g->first; i < g->first + g->n; i++) {
            uint32_t n = (uint32_t)v->sorted[i].n_chars;

            if (w->run <= CHAIN_MAX && n > w->run)
                break;
            if (w->may[FST_MIN(n, CHAIN_MAX + 1)])
                set(w->mask, v->sorted[i].id);
        }
    }
}

/* With little room: every run of safe characters leads to one place, *to, and around in it. */
static bool safe_loop(struct space *s, uint32_t place, uint32_t *to)
{
    static const uint64_t unsafe = (uint64_t)1 << 3 | (uint64_t)1 << 10 | (uint64_t)1 << 11 |
                                   (uint64_t)1 << 12; /* controls, quote, backslash, '<' */

    if (!space_kinds(s, place))
        return false;
    *to = s->now.place[place].to;
    if (~s->now.place[place].all_to & ~unsafe || !space_kinds(s, *to))
        return false;
    return s->now.place[*to].to == *to && !(~s->now.place[*to].all_to & ~unsafe);
}

enum fst_status space_mask(struct space *s, uint32_t place, uint32_t room, uint32_t *mask,
                           uint32_t *peak)
{
    const struct grammar_vocab *v = s->v;
    struct walk w;
    bool exact, by_kinds = false;
    uint32_t cost = 0, run = 0, to = 0;
    enum fst_status rc;

    w.s = s;
    w.path[0] = place;
    w.room = room;
    w.mask = mask;
    w.peak = 0;
    run = safe_run(s, place, &exact, &cost);
    if (run && exact && cost <= room) { /* a run never makes the way to the end longer */
        allow_safe(&w, run);
        w.peak = cost;
        rc = walk_trie(&w, &v->rest, false);
    } else if (run == GRAMMAR_INF && safe_loop(s, place, &to)) {
        if (fits(&w, to))
            allow_safe(&w, run);
        else
            memset(mask, 0, v->words * sizeof *mask);
        rc = walk_trie(&w, &v->rest, false);
    } else {
        memset(mask, 0, v->words * sizeof *mask);
        by_kinds = find_chain(&w);
        if (by_kinds)
            allow_groups(&w);
        rc = walk_trie(&w, &v->all, by_kinds);
    }
    *peak = w.peak;
    return rc;
}
