/* build.c - rules under construction to the automata that matchers follow.
 *
 * 1. Which rules can be empty.  Every call of such a rule gets a way around it, and the rule itself
 *    loses its empty text.
 * 2. Subset construction, rule by rule: bytes are deterministic inside a rule; calls of the same rule
 *    are one edge.
 * 3. Shortest ways: for every state the bytes to the rule's end.  What has none is cut off.
 * 4. Left recursion (a rule that can call itself before it took a byte) is refused.
 * 5. Classes of bytes; states from which every run of safe characters goes on. */
#include <stdatomic.h>

#include "grammar/inside.h"
#include "grammar/vocab.h"
#include "base/hash.h"

struct subset {
    uint32_t at, n; /* NFA states in members, sorted */
};
struct build {
    struct compile *c;
    uint32_t root;
    uint32_t *stamp, round; /* of NFA states */
    uint32_t *list, n_list; /* a closure in the making */
    uint32_t *index;        /* rule to its number in the result, or NONE */
    uint32_t *order, n_order;
    /* of the rule at hand */
    struct subset *subset;
    uint32_t n_subsets, subset_cap;
    uint32_t *member, n_members, member_cap;
    uint32_t *slot, slot_mask; /* subset + 1 */
    /* result */
    struct state *state;
    struct span_edge *span;
    struct call_edge *call;
    struct rule *rule;
    uint32_t n_states, state_cap, n_spans, span_cap, n_calls, call_cap;
};

static bool is_bytes(const struct nfa_edge *e)
{
    return e->rule == GRAMMAR_NONE && e->lo <= e->hi;
}

static bool is_free(const struct build *b, const struct nfa_edge *e)
{
    return e->rule == GRAMMAR_NONE ? e->lo > e->hi : b->c->rule[e->rule].is_nullable;
}

/* ---- which rules, and which of them can be empty ----------------------------------------------- */

static bool find_rules(struct build *b)
{
    struct compile *c = b->c;

    b->index = compile_alloc(c, c->n_rules, sizeof *b->index);
    b->order = compile_alloc(c, c->n_rules, sizeof *b->order);
    b->stamp = compile_alloc(c, c->n_states, sizeof *b->stamp);
    b->list = compile_alloc(c, c->n_states, sizeof *b->list);
    if (!b->index || !b->order || !b->stamp || !b->list)
        return false;
    memset(b->index, 0xff, c->n_rules * sizeof *b->index);
    b->index[b->root] = 0;
    b->order[b->n_order++] = b->root;
    for (uint32_t i = 0; i < b->n_order; i++) {
        uint32_t n = 0, start = c->rule[b->order[i]].start;

        b->round++;
        b->stamp[start] = b->round;
        b->list[n++] = start;
        for (uint32_t k = 0; k < n && compile_work(c, 1); k++)
            for (uint32_t e = c->first[b->list[k]]; e != GRAMMAR_NONE; e = c->edge[e].next) {
                const struct nfa_edge *x = &c->edge[e];
                if (b->stamp[x->to] != b->round) {
                    b->stamp[x->to] = b->round;
                    b->list[n++] = x->to;
                }
                if (x->rule != GRAMMAR_NONE && b->index[x->rule] == GRAMMAR_NONE) {
                    b->index[x->rule] = b->n_order;
                    b->order[b->n_order++] = x->rule;
                }
            }
    }
    return c->rc >= 0;
}

/* All states that `list` reaches without a byte, marked with the round. */
static void spread(struct build *b)
{
    struct compile *c = b->c;

    for (uint32_t k = 0; k < b->n_list && compile_work(c, 1); k++)
        for (uint32_t e = c->first[b->list[k]]; e != GRAMMAR_NONE; e = c->edge[e].next)
            if (is_free(b, &c->edge[e]) && b->stamp[c->edge[e].to] != b->round) {
                b->stamp[c->edge[e].to] = b->round;
                b->list[b->n_list++] = c->edge[e].to;
            }
}

static void spread_from(struct build *b, uint32_t state)
{
    b->round++;
    b->n_list = 0;
    b->stamp[state] = b->round;
    b->list[b->n_list++] = state;
    spread(b);
}

static bool find_nullable(struct build *b)
{
    bool more = true;

    while (more && b->c->rc >= 0) {
        more = false;
        for (uint32_t i = b->n_order; i-- > 0 && b->c->rc >= 0;) {
            struct nfa_rule *r = &b->c->rule[b->order[i]];
            if (r->is_nullable)
                continue;
            spread_from(b, r->start);
            if (b->stamp[r->end] == b->round)
                more = r->is_nullable = true;
        }
    }
    return b->c->rc >= 0;
}

/* ---- subsets ----------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool grow_slots(struct build *b)
{
    uint32_t n = b->slot_mask ? (b->slot_mask + 1) * 2 : 64, *slot;

    slot = compile_alloc(b->c, n, sizeof *slot);
    if (!slot)
        return false;
    for (uint32_t i = 1; i < b->n_subsets; i++) { /* 0, the start, is never met again */
        const struct subset *s = &b->subset[i];
        uint64_t h = hash64(b->member + s->at, s->n * sizeof *b->member, 0);
        while (slot[h & (n - 1)])
            h++;
        slot[h & (n - 1)] = i + 1;
    }
    b->slot = slot;
    b->slot_mask = n - 1;
    return true;
}

/* Number of the subset that `list` spreads to; NONE after a failure.  Only states with bytes, calls
 * or the end of the rule are kept. */
static uint32_t subset_of_list(struct build *b, uint32_t end)
{
    struct compile *c = b->c;
    struct subset s = {.at = b->n_members};
    uint64_t h;

    spread(b);
    qsort(b->list, b->n_list, sizeof *b->list, by_number);
    for (uint32_t i = 0; i < b->n_list; i++) {
        uint32_t q = b->list[i], e = c->first[q];
        bool keep = q == end;
        while (!keep && e != GRAMMAR_NONE) {
            keep = c->edge[e].rule != GRAMMAR_NONE || is_bytes(&c->edge[e]);
            e = c->edge[e].next;
        }
        if (!keep)
            continue;
        if (!compile_grow(c, &b->member, &b->member_cap, s.at + s.n, sizeof *b->member))
            return GRAMMAR_NONE;
        b->member[s.at + s.n++] = q;
    }
    if (!compile_work(c, b->n_list))
        return GRAMMAR_NONE;
    h = hash64(b->member + s.at, s.n * sizeof *b->member, 0);
    for (; b->n_subsets && b->slot[h & b->slot_mask]; h++) {
        uint32_t k = b->slot[h & b->slot_mask] - 1;
        const struct subset *o = &b->subset[k];
        if (o->n == s.n && memcmp(b->member + o->at, b->member + s.at, s.n * sizeof s.n) == 0)
            return k;
    }
    if (b->n_states + b->n_subsets >= GRAMMAR_STATES_MAX) {
        compile_fail(c, FST_EBUDGET, "grammar: more than %d states", GRAMMAR_STATES_MAX);
        return GRAMMAR_NONE;
    }
    if (!compile_grow(c, &b->subset, &b->subset_cap, b->n_subsets, sizeof *b->subset))
        return GRAMMAR_NONE;
    b->subset[b->n_subsets] = s;
    b->n_members += s.n;
    if (b->n_subsets++) /* the start has lost its empty text: it is a state of its own */
        b->slot[h & b->slot_mask] = b->n_subsets;
    if (b->n_subsets * 2 > b->slot_mask && !grow_slots(b))
        return GRAMMAR_NONE;
    return b->n_subsets - 1;
}

static void list_begin(struct build *b)
{
    b->round++;
    b->n_list = 0;
}

static void list_add(struct build *b, uint32_t state)
{
    if (b->stamp[state] == b->round)
        return;
    b->stamp[state] = b->round;
    b->list[b->n_list++] = state;
}

/* Spans of subset k; numbers of subsets become states by adding `base`. */
static void byte_edges(struct build *b, uint32_t k, uint32_t base, uint32_t end, struct state *out)
{
    struct compile *c = b->c;
    bool cut[257] = {false};
    int lo = 0;
    bool any = false;

    out->span_at = b->n_spans;
    for (uint32_t i = 0; i < b->subset[k].n; i++)
        for (uint32_t e = c->first[b->member[b->subset[k].at + i]]; e != GRAMMAR_NONE;
             e = c->edge[e].next)
            if (is_bytes(&c->edge[e])) {
                cut[c->edge[e].lo] = cut[c->edge[e].hi + 1] = true;
                any = true;
            }
    while (any && lo < 256) {
        int hi = lo;
        uint32_t to;

        while (hi < 255 && !cut[hi + 1])
            hi++;
        list_begin(b);
        for (uint32_t i = 0; i < b->subset[k].n; i++)
            for (uint32_t e = c->first[b->member[b->subset[k].at + i]]; e != GRAMMAR_NONE;
                 e = c->edge[e].next) {
                if (is_bytes(&c->edge[e]) && c->edge[e].lo <= lo && c->edge[e].hi >= lo)
                    list_add(b, c->edge[e].to);
                c->work++;
            }
        if (b->n_list) {
            struct span_edge *last = out->n_spans ? &b->span[b->n_spans - 1] : NULL;

            to = subset_of_list(b, end);
            if (to == GRAMMAR_NONE ||
                !compile_grow(c, &b->span, &b->span_cap, b->n_spans, sizeof *b->span))
                return;
            if (last && last->hi + 1 == lo && last->to == base + to) {
                b->span[b->n_spans - 1].hi = (uint8_t)hi;
            } else {
                b->span[b->n_spans++] =
                    (struct span_edge){.to = base + to, .lo = (uint8_t)lo, .hi = (uint8_t)hi};
                out->n_spans++;
            }
        }
        lo = hi + 1;
    }
}

static void call_edges(struct build *b, uint32_t k, uint32_t base, uint32_t end, struct state *out)
{
    struct compile *c = b->c;

    out->call_at = b->n_calls;
    for (uint32_t i = 0; i < b->subset[k].n; i++)
        for (uint32_t e = c->first[b->member[b->subset[k].at + i]]; e != GRAMMAR_NONE;
             e = c->edge[e].next) {
            const struct nfa_edge x = c->edge[e];
            struct call_edge *o;
            uint32_t to, j = 0;

            if (x.rule == GRAMMAR_NONE)
                continue;
            for (; j < out->n_calls; j++) {
                o = &b->call[out->call_at + j];
                if (o->rule == b->index[x.rule] && o->min == x.min && o->max == x.max)
                    break;
            }
            if (j < out->n_calls || !compile_work(c, out->n_calls))
                continue;
            list_begin(b);
            for (uint32_t m = 0; m < b->subset[k].n; m++)
                for (uint32_t f = c->first[b->member[b->subset[k].at + m]]; f != GRAMMAR_NONE;
                     f = c->edge[f].next) {
                    const struct nfa_edge *y = &c->edge[f];
                    if (y->rule == x.rule && y->min == x.min && y->max == x.max)
                        list_add(b, y->to);
                    c->work++;
                }
            to = subset_of_list(b, end);
            if (to == GRAMMAR_NONE || out->n_calls == UINT16_MAX ||
                !compile_grow(c, &b->call, &b->call_cap, b->n_calls, sizeof *b->call)) {
                compile_fail(c, FST_EBUDGET, "grammar: too many alternatives at one place");
                return;
            }
            b->call[b->n_calls++] = (struct call_edge){
                .rule = b->index[x.rule], .ret = base + to, .min = x.min, .max = x.max};
            out->n_calls++;
        }
}

static void build_rule(struct build *b, uint32_t number)
{
    struct compile *c = b->c;
    const struct nfa_rule *r = &c->rule[b->order[number]];
    uint32_t base = b->n_states;

    b->n_subsets = b->n_members = 0;
    if (b->slot)
        memset(b->slot, 0, (b->slot_mask + 1) * sizeof *b->slot);
    else if (!grow_slots(b))
        return;
    list_begin(b);
    list_add(b, r->start);
    subset_of_list(b, r->end);
    b->rule[number] = (struct rule){.start = base};
    for (uint32_t k = 0; k < b->n_subsets && c->rc >= 0; k++) {
        struct state s = {0};

        for (uint32_t i = 0; i < b->subset[k].n; i++)
            s.accept |= k && b->member[b->subset[k].at + i] == r->end; /* 0: no empty text */
        byte_edges(b, k, base, r->end, &s);
        call_edges(b, k, base, r->end, &s);
        if (!compile_grow(c, &b->state, &b->state_cap, b->n_states, sizeof *b->state))
            return;
        b->state[b->n_states++] = s;
    }
    /* a set that only a later rule of many subsets fills need not be wiped by each small one */
    if (b->slot_mask > 1023 && b->n_subsets * 8 < b->slot_mask) {
        b->slot_mask = 0;
        b->slot = NULL;
    }
}

/* ---- shortest ways ----------------------------------------------------------------------------- */

static uint32_t plus(uint32_t a, uint32_t b)
{
    return a >= GRAMMAR_INF || b >= GRAMMAR_INF - a ? GRAMMAR_INF : a + b;
}

static uint32_t times(uint32_t n, uint32_t a)
{
    uint64_t x = (uint64_t)n * a;
    return x >= GRAMMAR_INF ? GRAMMAR_INF : (uint32_t)x;
}

static bool find_least(struct build *b)
{
    struct compile *c = b->c;
    bool more = true;

    for (uint32_t i = 0; i < b->n_states; i++)
        b->state[i].least = b->state[i].accept ? 0 : GRAMMAR_INF; /* step_kind: STEP_END */
    while (more) {
        more = false;
        if (!compile_work(c, b->n_states / 4 + 1))
            return false;
        for (uint32_t i = b->n_states; i-- > 0;) {
            struct state *s = &b->state[i];

            if (!s->least)
                continue;
            for (uint32_t k = s->span_at; k < s->span_at + s->n_spans; k++) {
                uint32_t n = plus(1, b->state[b->span[k].to].least);
                if (n < s->least) {
                    s->least = n;
                    s->step = k;
                    s->step_kind = STEP_BYTE;
                    more = true;
                }
            }
            for (uint32_t k = s->call_at; k < s->call_at + s->n_calls; k++) {
                const struct call_edge *e = &b->call[k];
                uint32_t n = plus(times(e->min, b->state[b->rule[e->rule].start].least),
                                  b->state[e->ret].least);
                if (n < s->least) {
                    s->least = n;
                    s->step = k;
                    s->step_kind = STEP_CALL;
                    more = true;
                }
            }
        }
    }
    return true;
}

/* Cuts off what leads nowhere; steps are indices, so they move along. */
static void cut_dead(struct build *b)
{
    uint32_t n_spans = 0, n_calls = 0;

    for (uint32_t i = 0; i < b->n_states; i++) {
        struct state *s = &b->state[i];
        uint32_t span = s->span_at, call = s->call_at, ns = s->n_spans, nc = s->n_calls;
        bool dead = s->least >= GRAMMAR_INF;

        s->span_at = n_spans;
        s->call_at = n_calls;
        s->n_spans = s->n_calls = 0;
        for (uint32_t k = span; k < span + ns; k++) {
            if (dead || b->state[b->span[k].to].least >= GRAMMAR_INF)
                continue;
            if (s->step_kind == STEP_BYTE && s->step == k)
                s->step = n_spans;
            b->span[n_spans++] = b->span[k];
            s->n_spans++;
        }
        for (uint32_t k = call; k < call + nc; k++) {
            const struct call_edge *e = &b->call[k];
            if (dead || b->state[e->ret].least >= GRAMMAR_INF ||
                times(e->min, b->state[b->rule[e->rule].start].least) >= GRAMMAR_INF)
                continue;
            if (s->step_kind == STEP_CALL && s->step == k)
                s->step = n_calls;
            b->call[n_calls++] = *e;
            s->n_calls++;
        }
    }
    b->n_spans = n_spans;
    b->n_calls = n_calls;
    for (uint32_t k = 0; k < b->n_calls; k++) {
        struct call_edge *e = &b->call[k];
        const struct state *ret = &b->state[e->ret];
        e->is_tail = e->max == 1 && ret->accept && !ret->n_spans && !ret->n_calls;
    }
}

/* How many calls the shortest way opens; the same rounds as find_least, now along its steps. */
static bool find_depth(struct build *b)
{
    bool more = true;

    while (more) {
        more = false;
        if (!compile_work(b->c, b->n_states / 4 + 1))
            return false;
        for (uint32_t i = b->n_states; i-- > 0;) {
            struct state *s = &b->state[i];
            uint32_t d = 0;

            if (s->least >= GRAMMAR_INF || s->step_kind == STEP_END)
                continue;
            if (s->step_kind == STEP_BYTE) {
                d = b->state[b->span[s->step].to].depth;
            } else {
                const struct call_edge *e = &b->call[s->step];
                d = b->state[b->rule[e->rule].start].depth + !e->is_tail;
                d = FST_MAX(d, b->state[e->ret].depth);
            }
            if (d > s->depth) {
                s->depth = (uint16_t)FST_MIN(d, UINT16_MAX);
                more = true;
            }
        }
    }
    return true;
}

/* ---- left recursion ---------------------------------------------------------------------------- */

/* Rules whose left calls are all known not to come back are taken away until nothing changes. */
static bool check_left(struct build *b)
{
    struct compile *c = b->c;
    bool *done = compile_alloc(c, b->n_order, sizeof *done);
    bool more = true;

    if (!done)
        return false;
    while (more) {
        more = false;
        for (uint32_t i = b->n_order; i-- > 0;) {
            const struct state *s = &b->state[b->rule[i].start];
            bool ok = !done[i];

            for (uint32_t k = s->call_at; ok && k < s->call_at + s->n_calls; k++)
                ok = done[b->call[k].rule];
            if (ok)
                more = done[i] = true;
        }
        if (!compile_work(c, b->n_order))
            return false;
    }
    for (uint32_t i = 0; i < b->n_order; i++)
        if (!done[i]) { /* n steps from there are within a circle */
            uint32_t at = i;

            for (uint32_t n = 0; n < b->n_order; n++) {
                uint32_t k = b->state[b->rule[at].start].call_at;
                while (done[b->call[k].rule])
                    k++;
                at = b->call[k].rule;
            }
            compile_fail(c, FST_EUNSUPPORTED,
                         "grammar: %s can begin with itself (left recursion through other rules)",
                         c->rule[b->order[at]].name);
            return false;
        }
    return true;
}

/* ---- safe characters and classes ---------------------------------------------------------------- */

/* Calls ok() with the state behind each safe character; false when one has no such state, or its
 * bytes behind the first do not all go the same way, or when ok() says so. */
static bool each_safe(const struct grammar *g, const struct state *s,
                      bool (*ok)(const struct state *s, const struct state *t, int *ud), int *ud)
{
    for (int lead = 0; lead < 256; lead++) {
        int n = vocab_safe_lead(lead), lo, hi;
        const struct state *t;
        const struct span_edge *e;

        if (!n)
            continue;
        e = grammar_span(g, s, (uint8_t)lead);
        if (!e)
            return false;
        vocab_second_byte(lead, &lo, &hi);
        t = &g->state[e->to];
        for (int k = 1; k < n; k++) {
            int from = k == 1 ? lo : 0x80, to = k == 1 ? hi : 0xbf;
            e = grammar_span(g, t, (uint8_t)from);
            if (!e || e->hi < to)
                return false;
            t = &g->state[e->to];
        }
        if (!ok(s, t, ud))
            return false;
    }
    return true;
}

static bool shortest_run(const struct state *s, const struct state *t, int *run)
{
    *run = FST_MIN(*run, t->run);
    return t->least <= s->least; /* so that a run never makes the way to the end longer */
}

static bool same_run(const struct state *s, const struct state *t, int *ud)
{
    (void)ud;
    return t->run + 1 == s->run && t->run_exact;
}

static bool is_end(const struct state *s, const struct state *t, int *ud)
{
    (void)s;
    (void)ud;
    return t->accept;
}

static bool find_safe(struct build *b, struct grammar *g)
{
    bool more = true;

    for (uint32_t i = 0; i < g->n_states; i++) {
        struct state *s = &g->state[i];
        for (uint32_t k = s->span_at; k < s->span_at + s->n_spans && !s->has_safe; k++)
            for (int byte = g->span[k].lo; byte <= g->span[k].hi && !s->has_safe; byte++)
                s->has_safe = vocab_safe_lead(byte) > 0;
        s->run = s->has_safe ? RUN_ANY : 0;
        s->run_exact = !s->has_safe && !s->n_calls && !s->accept;
    }
    while (more) {
        more = false;
        for (uint32_t i = g->n_states; i-- > 0;) { /* backwards: chains end in a round or two */
            struct state *s = &g->state[i];
            int run = RUN_ANY;

            if (!compile_work(b->c, s->run ? 64 : 1))
                return false;
            if (!s->run)
                continue;
            if (!each_safe(g, s, shortest_run, &run))
                run = -1;
            run = run == RUN_ANY ? RUN_ANY : FST_MIN(run + 1, RUN_ANY - 1);
            if (run < s->run) {
                s->run = (uint8_t)run;
                more = true;
            }
        }
    }
    for (more = true; more;) {
        more = false;
        for (uint32_t i = g->n_states; i-- > 0;) {
            struct state *s = &g->state[i];

            if (s->run_exact || !s->run || s->run == RUN_ANY || s->accept || s->n_calls)
                continue;
            if (!compile_work(b->c, 64))
                return false;
            if (each_safe(g, s, same_run, NULL))
                more = s->run_exact = true;
        }
    }
    for (uint32_t i = 0; i < g->n_rules; i++) {
        g->rule[i].is_char = each_safe(g, &g->state[g->rule[i].start], is_end, NULL);
        if (!compile_work(b->c, 16))
            return false;
    }
    return true;
}

static void find_classes(struct grammar *g)
{
    bool cut[257] = {false};

    for (uint32_t k = 0; k < g->n_spans; k++)
        cut[g->span[k].lo] = cut[g->span[k].hi + 1] = true;
    for (int i = 0; i < 256; i++) {
        if (i && cut[i])
            g->n_classes++;
        g->class_of[i] = (uint8_t)g->n_classes;
        g->byte_of[g->n_classes] = (uint8_t)i;
    }
    g->n_classes++;
}

/* ---- the result --------------------------------------------------------------------------------- */

static enum fst_status copy_out(struct grammar **out, struct build *b)
{
    struct compile *c = b->c;
    struct grammar *g = mem_calloc(1, sizeof *g);
    size_t left = strlen(buf_str(&c->left_out));

    if (!g)
        return fst_error(FST_ENOMEM, "grammar: out of memory");
    arena_init(&g->mem, 4096, 0);
    g->refs = 1;
    g->n_rules = b->n_order;
    g->n_states = b->n_states;
    g->n_spans = b->n_spans;
    g->n_calls = b->n_calls;
    g->accepts_empty = c->rule[b->root].is_nullable;
    g->depth_max = (uint32_t)c->opts.depth_max;
    g->rule = arena_calloc(&g->mem, g->n_rules, sizeof *g->rule);
    g->state = arena_calloc(&g->mem, g->n_states, sizeof *g->state);
    g->span = arena_calloc(&g->mem, g->n_spans, sizeof *g->span);
    g->call = arena_calloc(&g->mem, g->n_calls, sizeof *g->call);
    g->left_out = arena_strndup(&g->mem, buf_str(&c->left_out), left);
    if (!g->rule || !g->state || !g->span || !g->call || !g->left_out) {
        grammar_unref(g);
        return fst_error(FST_ENOMEM, "grammar: out of memory");
    }
    memcpy(g->rule, b->rule, g->n_rules * sizeof *g->rule);
    memcpy(g->state, b->state, g->n_states * sizeof *g->state);
    if (g->n_spans)
        memcpy(g->span, b->span, g->n_spans * sizeof *g->span);
    if (g->n_calls)
        memcpy(g->call, b->call, g->n_calls * sizeof *g->call);
    find_classes(g);
    if (!find_safe(b, g)) {
        grammar_unref(g);
        return c->rc;
    }
    *out = g;
    return FST_OK;
}

enum fst_status grammar_build(struct grammar **out, struct compile *c, uint32_t root)
{
    struct build b = {.c = c, .root = root};
    const struct state *s;

    *out = NULL;
    if (c->rc < 0 || !find_rules(&b) || !find_nullable(&b))
        return c->rc;
    b.rule = compile_alloc(c, b.n_order, sizeof *b.rule);
    compile_grow(c, &b.member, &b.member_cap, 0,
                 sizeof *b.member); /* an empty subset has an address */
    for (uint32_t i = 0; b.rule && i < b.n_order && c->rc >= 0; i++)
        build_rule(&b, i);
    if (c->rc < 0 || !find_least(&b))
        return c->rc;
    s = &b.state[b.rule[0].start];
    if (s->least >= GRAMMAR_INF && !c->rule[root].is_nullable)
        return compile_fail(c, FST_EINVAL, "grammar: no document at all is allowed");
    cut_dead(&b);
    if (!check_left(&b) || !find_depth(&b))
        return c->rc;
    if (s->depth >= c->opts.depth_max)
        return compile_fail(c, FST_EBUDGET,
                            "grammar: the shortest document nests %d rules deep, at most %d",
                            s->depth, c->opts.depth_max);
    return copy_out(out, &b);
}

struct grammar *grammar_ref(struct grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) > 1)
        return;
    arena_release(&g->mem);
    mem_free(g);
}

const char *grammar_left_out(const struct grammar *g)
{
    return g->left_out;
}

size_t grammar_bytes(const struct grammar *g)
{
    return sizeof *g + g->mem.held;
}

uint32_t grammar_states(const struct grammar *g)
{
    return g->n_states;
}
