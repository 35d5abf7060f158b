/* lang.c - sets of texts as deterministic automata over characters: what patterns, formats, lengths
 * and numbers are put together from before they are written as bytes. */
#include "grammar/regex.h"
#include "base/hash.h"
#include "base/utf8.h"

struct lang *lang_new(struct compile *c)
{
    return compile_alloc(c, 1, sizeof(struct lang));
}

uint32_t lang_state(struct compile *c, struct lang *l, bool accept)
{
    if (!l || c->rc < 0)
        return 0;
    if (l->n_states >= GRAMMAR_LANG_MAX) {
        compile_fail(c, FST_EBUDGET, "grammar: a pattern needs more than %d states",
                     GRAMMAR_LANG_MAX);
        return 0;
    }
    if (!compile_grow(c, &l->state, &l->state_cap, l->n_states, sizeof *l->state))
        return 0;
    l->state[l->n_states] = (struct lang_state){.accept = accept};
    return l->n_states++;
}

void lang_span(struct compile *c, struct lang *l, uint32_t from, uint32_t lo, uint32_t hi,
               uint32_t to)
{
    struct lang_state *s;
    struct lang_span *last;

    if (!l || c->rc < 0 || lo > hi || !compile_work(c, 1))
        return;
    s = &l->state[from];
    if (!s->n)
        s->at = l->n_spans;
    FST_ASSERT(s->at + s->n == l->n_spans);
    last = s->n ? &l->span[l->n_spans - 1] : NULL;
    if (last && last->to == to && last->hi + 1 == lo) {
        last->hi = hi;
        return;
    }
    if (!compile_grow(c, &l->span, &l->span_cap, l->n_spans, sizeof *l->span))
        return;
    l->span[l->n_spans++] = (struct lang_span){lo, hi, to};
    s->n++;
}

/* ---- from a tree -------------------------------------------------------------------------------- */

enum step { STEP_SPLIT, STEP_SET, STEP_BEGIN, STEP_STOP, STEP_MATCH };
struct thread { /* Thompson's states: at most two ways on */
    enum step step;
    const struct cp_set *set;
    uint32_t a, b; /* GRAMMAR_NONE: none */
};
struct fragment {
    uint32_t start, end; /* end: a split with free ways */
};
struct machine {
    struct compile *c;
    const char *where;
    struct thread *t;
    uint32_t n, cap;
    /* subset construction */
    uint32_t *stamp, round, *list, n_list;
    uint32_t *member, n_members, member_cap;
    struct {
        uint32_t at, n;
    } * subset;
    uint32_t subset_cap, n_subsets;
    uint32_t *slot, slot_mask;
    struct lang_span *edge; /* of one subset */
    uint32_t n_edges, edge_cap;
};

static uint32_t thread(struct machine *m, enum step step)
{
    if (m->n >= 8u * GRAMMAR_LANG_MAX) {
        compile_fail(m->c, FST_EBUDGET,
                     "%s: the expression is too large once its counts are written "
                     "out (more than %d states)",
                     m->where, 8 * GRAMMAR_LANG_MAX);
        return 0;
    }
    if (!compile_grow(m->c, &m->t, &m->cap, m->n, sizeof *m->t))
        return 0;
    m->t[m->n] = (struct thread){.step = step, .a = GRAMMAR_NONE, .b = GRAMMAR_NONE};
    return m->n++;
}

static struct fragment assemble(struct machine *m, const struct regex *r, int nest)
{
    struct fragment f = {0, 0}, x, y;

    if (m->c->rc < 0)
        return f;
    if (r->kind == REGEX_CAT) { /* long lists lean to the left */
        const struct regex *left = r;
        uint32_t count = 0;
        const struct regex **part;

        for (; left->kind == REGEX_CAT; left = left->left)
            count++;
        part = compile_alloc(m->c, count + 1, sizeof(void *));
        if (!part)
            return f;
        left = r;
        for (uint32_t i = count; i > 0; i--, left = left->left)
            part[i] = left->right;
        part[0] = left;
        f = assemble(m, part[0], nest + 1);
        for (uint32_t i = 1; i <= count && m->c->rc >= 0; i++) {
            x = assemble(m, part[i], nest + 1);
            if (m->c->rc < 0)
                return f;
            m->t[f.end].a = x.start;
            f.end = x.end;
        }
        return f;
    }
    if (nest > 4 * GRAMMAR_NEST_MAX) {
        compile_fail(m->c, FST_EBUDGET, "%s: nests too deeply", m->where);
        return f;
    }
    switch (r->kind) {
    case REGEX_ALT:
        f.start = thread(m, STEP_SPLIT);
        f.end = thread(m, STEP_SPLIT);
        { /* alternatives lean to the left too: a loop instead of recursion */
            uint32_t at = f.start;
            for (;; r = r->left) {
                const struct regex *one = r->kind == REGEX_ALT ? r->right : r;
                x = assemble(m, one, nest + 1);
                if (m->c->rc < 0)
                    return f;
                m->t[x.end].a = f.end;
                m->t[at].a = x.start;
                if (r->kind != REGEX_ALT)
                    break;
                y.start = thread(m, STEP_SPLIT);
                if (m->c->rc < 0)
                    return f;
                m->t[at].b = y.start;
                at = y.start;
            }
        }
        return f;
    case REGEX_REPEAT:
        f.start = f.end = thread(m, STEP_SPLIT);
        for (uint32_t i = 0; i < r->min; i++) {
            x = assemble(m, r->left, nest + 1);
            if (!compile_work(m->c, 1))
                return f;
            m->t[f.end].a = x.start;
            f.end = x.end;
        }
        if (r->max == GRAMMAR_INF) {
            x = assemble(m, r->left, nest + 1);
            y.start = thread(m, STEP_SPLIT);
            y.end = thread(m, STEP_SPLIT);
            if (m->c->rc < 0)
                return f;
            m->t[f.end].a = y.start;
            m->t[y.start].a = x.start;
            m->t[y.start].b = y.end;
            m->t[x.end].a = y.start;
            f.end = y.end;
            return f;
        }
        y.end = thread(m, STEP_SPLIT);
        for (uint32_t i = r->min; i < r->max; i++) { /* each may be the last */
            x = assemble(m, r->left, nest + 1);
            y.start = thread(m, STEP_SPLIT);
            if (!compile_work(m->c, 1))
                return f;
            m->t[f.end].a = y.start;
            m->t[y.start].a = x.start;
            m->t[y.start].b = y.end;
            f.end = x.end;
        }
        if (m->c->rc >= 0) {
            m->t[f.end].a = y.end;
            f.end = y.end;
        }
        return f;
    case REGEX_SET:
        f.start = thread(m, STEP_SET);
        break;
    case REGEX_BEGIN:
        f.start = thread(m, STEP_BEGIN);
        break;
    case REGEX_END:
        f.start = thread(m, STEP_STOP);
        break;
    default:
        f.start = f.end = thread(m, STEP_SPLIT);
        return f;
    }
    f.end = thread(m, STEP_SPLIT);
    if (m->c->rc < 0)
        return f;
    m->t[f.start].set = &r->set;
    m->t[f.start].a = f.end;
    return f;
}

static void list_add(struct machine *m, uint32_t t)
{
    if (t == GRAMMAR_NONE || m->stamp[t] == m->round)
        return;
    m->stamp[t] = m->round;
    m->list[m->n_list++] = t;
}

static void spread(struct machine *m, bool at_begin, bool at_end)
{
    for (uint32_t i = 0; i < m->n_list; i++) {
        const struct thread *t = &m->t[m->list[i]];
        if (t->step == STEP_SPLIT || (t->step == STEP_BEGIN && at_begin) ||
            (t->step == STEP_STOP && at_end)) {
            list_add(m, t->a);
            list_add(m, t->b);
        }
    }
    compile_work(m->c, m->n_list);
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool grow_slots(struct machine *m)
{
    uint32_t n = m->slot_mask ? (m->slot_mask + 1) * 2 : 64;
    uint32_t *slot = compile_alloc(m->c, n, sizeof *slot);

    if (!slot)
        return false;
    for (uint32_t i = 1; i < m->n_subsets; i++) { /* 0, the start, is never met again */
        uint64_t h = hash64(m->member + m->subset[i].at, m->subset[i].n * sizeof *m->member, 0);
        while (slot[h & (n - 1)])
            h++;
        slot[h & (n - 1)] = i;
    }
    m->slot = slot;
    m->slot_mask = n - 1;
    return true;
}

/* The state of what `list` spreads to; a new one is added to l. */
static uint32_t subset_of_list(struct machine *m, struct lang *l, bool at_begin)
{
    uint32_t at = m->n_members, n = 0, match = m->n - 1;
    uint64_t h;
    bool accept;

    spread(m, at_begin, false);
    qsort(m->list, m->n_list, sizeof *m->list, by_number);
    for (uint32_t i = 0; i < m->n_list; i++) {
        enum step s = m->t[m->list[i]].step;
        if (s == STEP_SPLIT || s == STEP_BEGIN)
            continue;
        if (!compile_grow(m->c, &m->member, &m->member_cap, at + n, sizeof *m->member))
            return GRAMMAR_NONE;
        m->member[at + n++] = m->list[i];
    }
    h = hash64(m->member + at, n * sizeof *m->member, 0);
    for (; !at_begin && m->slot[h & m->slot_mask]; h++) {
        uint32_t k = m->slot[h & m->slot_mask];
        if (m->subset[k].n == n &&
            memcmp(m->member + m->subset[k].at, m->member + at, n * sizeof n) == 0)
            return k;
    }
    if (!compile_grow(m->c, &m->subset, &m->subset_cap, m->n_subsets, sizeof *m->subset))
        return GRAMMAR_NONE;
    m->subset[m->n_subsets].at = at;
    m->subset[m->n_subsets].n = n;
    m->n_members += n;
    spread(m, at_begin, true);
    accept = m->stamp[match] == m->round;
    lang_state(m->c, l, accept);
    if (!at_begin)
        m->slot[h & m->slot_mask] = m->n_subsets;
    m->n_subsets++;
    if (m->c->rc < 0 || (m->n_subsets * 2 > m->slot_mask && !grow_slots(m)))
        return GRAMMAR_NONE;
    return m->n_subsets - 1;
}

static int by_lo(const void *a, const void *b)
{
    const struct lang_span *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void add_spans(struct machine *m, struct lang *l, uint32_t k)
{
    uint32_t first = 0, at = 0;

    m->n_edges = 0;
    for (uint32_t i = 0; i < m->subset[k].n; i++) {
        const struct thread *t = &m->t[m->member[m->subset[k].at + i]];
        if (t->step != STEP_SET)
            continue;
        for (uint32_t j = 0; j < t->set->n; j++) {
            if (!compile_grow(m->c, &m->edge, &m->edge_cap, m->n_edges, sizeof *m->edge))
                return;
            m->edge[m->n_edges++] =
                (struct lang_span){t->set->range[j].lo, t->set->range[j].hi, t->a};
        }
    }
    if (m->n_edges)
        qsort(m->edge, m->n_edges, sizeof *m->edge, by_lo);
    /* sweep: `at` is where the next piece begins; edges below `first` have ended */
    while (first < m->n_edges && m->c->rc >= 0) {
        uint32_t end = LANG_CP_MAX + 1, to;

        if (m->edge[first].hi < at) {
            first++;
            continue;
        }
        at = FST_MAX(at, m->edge[first].lo);
        m->round++;
        m->n_list = 0;
        for (uint32_t i = first; i < m->n_edges && m->edge[i].lo < end; i++) {
            const struct lang_span *e = &m->edge[i];
            m->c->work++;
            if (e->hi < at)
                continue;
            if (e->lo > at) {
                end = FST_MIN(end, e->lo);
            } else {
                end = FST_MIN(end, e->hi + 1);
                list_add(m, e->to);
            }
        }
        if (m->n_list) {
            to = subset_of_list(m, l, false);
            if (to == GRAMMAR_NONE)
                return;
            lang_span(m->c, l, k, at, end - 1, to);
        }
        at = end;
    }
}

struct lang *lang_from_tree(struct compile *c, const struct regex *tree, bool is_search,
                            const char *where)
{
    struct machine m = {.c = c, .where = where};
    struct lang *l = lang_new(c);
    static const struct cp_range every[] = {{0, LANG_CP_MAX}};
    struct cp_set any = {.range = NULL};
    struct fragment f;
    uint32_t match, before, after;

    cp_set_add(c, &any, every[0].lo, every[0].hi);
    before = thread(&m, STEP_SPLIT); /* a search skips characters in front and behind */
    after = thread(&m, STEP_SET);
    if (!l || c->rc < 0)
        return NULL;
    m.t[after].set = &any;
    m.t[after].a = before;
    f = assemble(&m, tree, 0);
    if (c->rc < 0)
        return NULL;
    m.t[before].a = f.start;
    m.t[before].b = is_search ? after : GRAMMAR_NONE;
    if (is_search) {
        uint32_t loop = thread(&m, STEP_SPLIT), skip = thread(&m, STEP_SET);
        if (c->rc < 0)
            return NULL;
        m.t[f.end].a = loop;
        m.t[skip].set = &any;
        m.t[skip].a = loop;
        m.t[loop].a = skip;
        match = thread(&m, STEP_MATCH);
        if (c->rc < 0)
            return NULL;
        m.t[loop].b = match;
    } else {
        match = thread(&m, STEP_MATCH);
        if (c->rc < 0)
            return NULL;
        m.t[f.end].a = match;
    }
    m.stamp = compile_alloc(c, m.n, sizeof *m.stamp);
    m.list = compile_alloc(c, m.n, sizeof *m.list);
    if (!m.stamp || !m.list || !compile_grow(c, &m.member, &m.member_cap, 0, sizeof *m.member) ||
        !grow_slots(&m))
        return NULL;
    m.round = 1;
    m.n_list = 0;
    list_add(&m, before);
    if (subset_of_list(&m, l, true) == GRAMMAR_NONE)
        return NULL;
    for (uint32_t k = 0; k < l->n_states && c->rc >= 0; k++)
        add_spans(&m, l, k);
    return c->rc < 0 ? NULL : l;
}

struct lang *lang_from_regex(struct compile *c, const char *re, size_t len,
                             const struct regex_opts *opts)
{
    const struct regex *tree = regex_parse(c, re, len, opts);
    return tree ? lang_from_tree(c, tree, opts->is_search, opts->where) : NULL;
}

/* ---- putting together ---------------------------------------------------------------------------- */

struct pairs { /* states of two langs at once; GRAMMAR_NONE: that one can no longer match */
    uint32_t (*pair)[2];
    uint32_t n, cap;
    uint32_t *slot, slot_mask;
};

static uint32_t find_pair(struct compile *c, struct pairs *p, struct lang *l, uint32_t a,
                          uint32_t b, bool accept)
{
    uint32_t key[2] = {a, b};
    uint64_t h = hash64(key, sizeof key, 0);

    for (; p->slot[h & p->slot_mask]; h++) {
        uint32_t k = p->slot[h & p->slot_mask] - 1;
        if (p->pair[k][0] == a && p->pair[k][1] == b)
            return k;
    }
    if (!compile_grow(c, &p->pair, &p->cap, p->n, sizeof *p->pair))
        return 0;
    p->pair[p->n][0] = a;
    p->pair[p->n][1] = b;
    p->slot[h & p->slot_mask] = ++p->n;
    lang_state(c, l, accept);
    return p->n - 1;
}

static struct lang *combine(struct compile *c, const struct lang *a, const struct lang *b,
                            bool is_or)
{
    struct lang *l = a && b ? lang_new(c) : NULL;
    struct pairs p = {.slot_mask = 2 * GRAMMAR_LANG_MAX - 1};

    if (!l || !a->n_states || !b->n_states)
        return is_or && l ? (struct lang *)(uintptr_t)(a->n_states ? a : b) : l;
    p.slot = compile_alloc(c, p.slot_mask + 1, sizeof *p.slot);
    if (!p.slot)
        return NULL;
#define ACCEPTS(x, y)                                                                              \
    (is_or ? ((x) != GRAMMAR_NONE && a->state[x].accept) ||                                        \
                 ((y) != GRAMMAR_NONE && b->state[y].accept)                                       \
           : a->state[x].accept && b->state[y].accept)
    find_pair(c, &p, l, 0, 0, ACCEPTS(0, 0));
    for (uint32_t k = 0; k < l->n_states && c->rc >= 0; k++) {
        uint32_t x = p.pair[k][0], y = p.pair[k][1], at = 0, i = 0, j = 0;
        uint32_t nx = x == GRAMMAR_NONE ? 0 : a->state[x].n,
                 ny = y == GRAMMAR_NONE ? 0 : b->state[y].n;
        const struct lang_span *sx = nx ? a->span + a->state[x].at : NULL,
                               *sy = ny ? b->span + b->state[y].at : NULL;

        while ((i < nx || j < ny) && c->rc >= 0) {
            bool in_x, in_y;
            uint32_t end = LANG_CP_MAX + 1, tx, ty;

            if (i < nx && sx[i].hi < at) {
                i++;
                continue;
            }
            if (j < ny && sy[j].hi < at) {
                j++;
                continue;
            }
            in_x = i < nx && sx[i].lo <= at;
            in_y = j < ny && sy[j].lo <= at;
            if (i < nx)
                end = FST_MIN(end, in_x ? sx[i].hi + 1 : sx[i].lo);
            if (j < ny)
                end = FST_MIN(end, in_y ? sy[j].hi + 1 : sy[j].lo);
            tx = in_x ? sx[i].to : GRAMMAR_NONE;
            ty = in_y ? sy[j].to : GRAMMAR_NONE;
            if (is_or ? in_x || in_y : in_x && in_y)
                lang_span(c, l, k, at, end - 1, find_pair(c, &p, l, tx, ty, ACCEPTS(tx, ty)));
            at = end;
        }
    }
#undef ACCEPTS
    return c->rc < 0 ? NULL : l;
}

struct lang *lang_and(struct compile *c, const struct lang *a, const struct lang *b)
{
    return combine(c, a, b, false);
}

struct lang *lang_or(struct compile *c, const struct lang *a, const struct lang *b)
{
    return combine(c, a, b, true);
}

struct lang *lang_not(struct compile *c, const struct lang *a)
{
    struct lang *l = a ? lang_new(c) : NULL;
    uint32_t sink;

    if (!l)
        return NULL;
    for (uint32_t i = 0; i < a->n_states; i++)
        lang_state(c, l, !a->state[i].accept);
    sink = lang_state(c, l, true);
    for (uint32_t i = 0; i < a->n_states && c->rc >= 0; i++) {
        uint32_t at = 0;
        for (uint32_t k = 0; k < a->state[i].n; k++) {
            const struct lang_span *s = &a->span[a->state[i].at + k];
            if (s->lo > at)
                lang_span(c, l, i, at, s->lo - 1, sink);
            lang_span(c, l, i, s->lo, s->hi, s->to);
            at = s->hi + 1;
        }
        if (at <= LANG_CP_MAX)
            lang_span(c, l, i, at, LANG_CP_MAX, sink);
    }
    lang_span(c, l, sink, 0, LANG_CP_MAX, sink);
    return c->rc < 0 ? NULL : l;
}

struct lang *lang_length(struct compile *c, uint32_t min, uint32_t max)
{
    struct lang *l = lang_new(c);
    uint32_t n = max >= GRAMMAR_INF ? min : max;

    if (!l || min > max)
        return l;
    for (uint32_t i = 0; i <= n && c->rc >= 0; i++)
        lang_state(c, l, i >= min);
    for (uint32_t i = 0; i <= n && c->rc >= 0; i++)
        if (i < n || max >= GRAMMAR_INF)
            lang_span(c, l, i, 0, LANG_CP_MAX, FST_MIN(i + 1, n));
    return c->rc < 0 ? NULL : l;
}

struct lang *lang_all(struct compile *c)
{
    return lang_length(c, 0, GRAMMAR_INF);
}

struct lang *lang_literal(struct compile *c, const char *s, size_t len)
{
    struct lang *l = lang_new(c);
    uint32_t at = lang_state(c, l, !len);

    for (size_t i = 0; i < len && c->rc >= 0;) {
        uint32_t cp, to;
        int n = utf8_decode(s + i, len - i, &cp);

        FST_ASSERT(n > 0); /* texts come from JSON */
        i += (size_t)n;
        to = lang_state(c, l, i == len);
        lang_span(c, l, at, cp, cp, to);
        at = to;
    }
    return c->rc < 0 ? NULL : l;
}

bool lang_is_empty(const struct lang *a)
{
    /* every state was reached when it was made */
    for (uint32_t i = 0; i < a->n_states; i++)
        if (a->state[i].accept)
            return false;
    return true;
}

bool lang_has(const struct lang *a, const char *s, size_t len)
{
    uint32_t at = 0;

    if (!a->n_states)
        return false;
    for (size_t i = 0; i < len;) {
        const struct lang_state *q = &a->state[at];
        uint32_t cp, k = 0;
        int n = utf8_decode(s + i, len - i, &cp);

        if (n <= 0)
            return false;
        while (k < q->n && a->span[q->at + k].hi < cp)
            k++;
        if (k == q->n || a->span[q->at + k].lo > cp)
            return false;
        at = a->span[q->at + k].to;
        i += (size_t)n;
    }
    return a->state[at].accept;
}
