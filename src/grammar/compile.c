/* compile.c - one compilation: its arena, its first failure, its automata under construction. */
#include "grammar/inside.h"

enum { ARENA_BLOCK = 1 << 16, MEMORY_DEFAULT = 64 << 20, DEPTH_DEFAULT = 256, DEPTH_MAX = 1024 };

void compile_init(struct compile *c, const struct grammar_opts *opts)
{
    *c = (struct compile){.opts = opts ? *opts : (struct grammar_opts){0}};
    if (!c->opts.memory_max_bytes)
        c->opts.memory_max_bytes = MEMORY_DEFAULT;
    if (c->opts.depth_max <= 0)
        c->opts.depth_max = DEPTH_DEFAULT;
    c->opts.depth_max = FST_MIN(c->opts.depth_max, DEPTH_MAX);
    if (c->opts.space_max <= 0)
        c->opts.space_max = 64;
    arena_init(&c->mem, ARENA_BLOCK, c->opts.memory_max_bytes);
    c->left_out.limit = 1 << 16;
    c->json_string = c->json_char = c->json_value = c->json_object = c->json_array = GRAMMAR_NONE;
    c->json_number = c->json_gap = GRAMMAR_NONE;
    c->utf8[0] = c->utf8[1] = c->utf8[2] = GRAMMAR_NONE;
}

void compile_release(struct compile *c)
{
    arena_release(&c->mem);
    buf_release(&c->left_out);
}

enum fst_status compile_fail(struct compile *c, enum fst_status rc, const char *fmt, ...)
{
    va_list ap;

    if (c->rc < 0)
        return c->rc;
    va_start(ap, fmt);
    c->rc = fst_verror(rc, fmt, ap);
    va_end(ap);
    return c->rc;
}

bool compile_work(struct compile *c, uint64_t n)
{
    c->work += n;
    if (c->work > GRAMMAR_WORK_MAX)
        compile_fail(c, FST_EBUDGET, "grammar: compiling takes too long (more than %d steps)",
                     GRAMMAR_WORK_MAX);
    return c->rc >= 0;
}

void *compile_alloc(struct compile *c, size_t n, size_t size)
{
    void *p;

    if (c->rc < 0)
        return NULL;
    p = arena_calloc(&c->mem, n, size);
    if (p)
        return p;
    if (n > c->opts.memory_max_bytes / FST_MAX(size, 1) ||
        c->mem.held + n * size + ARENA_BLOCK > c->opts.memory_max_bytes)
        compile_fail(c, FST_EBUDGET, "grammar: compiling takes more than %zu MiB of memory",
                     c->opts.memory_max_bytes >> 20);
    else
        compile_fail(c, FST_ENOMEM, "grammar: out of memory");
    return NULL;
}

bool compile_grow(struct compile *c, void *p, uint32_t *cap, uint32_t n, size_t size)
{
    uint32_t want = *cap ? *cap * 2 : 16;
    void *old, *more;

    if (c->rc < 0)
        return false;
    if (n < *cap)
        return true;
    more = compile_alloc(c, want, size);
    if (!more)
        return false;
    memcpy(&old, p, sizeof old);
    if (n)
        memcpy(more, old, n * size);
    memcpy(p, &more, sizeof more);
    *cap = want;
    return true;
}

char *compile_text(struct compile *c, const char *fmt, ...)
{
    va_list ap;
    char *s;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    s = n < 0 ? NULL : compile_alloc(c, (size_t)n + 1, 1);
    if (!s)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(s, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return s;
}

/* ---- automata under construction -------------------------------------------------------------- */

uint32_t nfa_state(struct compile *c)
{
    if (c->n_states >= GRAMMAR_NFA_MAX) {
        compile_fail(c, FST_EBUDGET, "grammar: more than %d states", GRAMMAR_NFA_MAX);
        return 0;
    }
    if (!compile_grow(c, &c->first, &c->state_cap, c->n_states, sizeof *c->first))
        return 0;
    c->first[c->n_states] = GRAMMAR_NONE;
    return c->n_states++;
}

static void add_edge(struct compile *c, uint32_t from, struct nfa_edge e)
{
    if (c->n_edges >= 4u * GRAMMAR_NFA_MAX) {
        compile_fail(c, FST_EBUDGET, "grammar: more than %d edges", 4 * GRAMMAR_NFA_MAX);
        return;
    }
    if (!compile_grow(c, &c->edge, &c->edge_cap, c->n_edges, sizeof *c->edge))
        return;
    e.next = c->first[from];
    c->first[from] = c->n_edges;
    c->edge[c->n_edges++] = e;
}

void nfa_eps(struct compile *c, uint32_t from, uint32_t to)
{
    add_edge(c, from, (struct nfa_edge){.to = to, .rule = GRAMMAR_NONE, .lo = 1, .hi = 0});
}

void nfa_bytes(struct compile *c, uint32_t from, int lo, int hi, uint32_t to)
{
    add_edge(
        c, from,
        (struct nfa_edge){.to = to, .rule = GRAMMAR_NONE, .lo = (uint8_t)lo, .hi = (uint8_t)hi});
}

void nfa_text(struct compile *c, uint32_t from, const char *s, size_t len, uint32_t to)
{
    if (!len)
        nfa_eps(c, from, to);
    for (size_t i = 0; i < len && c->rc >= 0; i++) {
        uint32_t next = i + 1 == len ? to : nfa_state(c);
        nfa_bytes(c, from, (uint8_t)s[i], (uint8_t)s[i], next);
        from = next;
    }
}

void nfa_call(struct compile *c, uint32_t from, uint32_t rule, uint32_t min, uint32_t max,
              uint32_t to)
{
    if (!min)
        nfa_eps(c, from, to);
    if (max)
        add_edge(
            c, from,
            (struct nfa_edge){
                .to = to, .rule = rule, .min = FST_MAX(min, 1), .max = FST_MIN(max, GRAMMAR_INF)});
}

uint32_t rule_new(struct compile *c, const char *name)
{
    struct nfa_rule r = {.name = name};

    if (c->n_rules >= GRAMMAR_RULES_MAX) {
        compile_fail(c, FST_EBUDGET, "grammar: more than %d rules", GRAMMAR_RULES_MAX);
        return 0;
    }
    r.start = nfa_state(c);
    r.end = nfa_state(c);
    if (!compile_grow(c, &c->rule, &c->rule_cap, c->n_rules, sizeof *c->rule))
        return 0;
    c->rule[c->n_rules] = r;
    return c->n_rules++;
}
