/* inside.h - the compiled automaton and how it is built; for the files of this folder only.
 *
 * A grammar is a set of rules.  Each rule is a deterministic automaton over bytes whose states may
 * also have call edges: "rule R, min..max times, then state S".  A position in a document is a set
 * of (state, stack of open calls); space.c makes these sets, each once, while documents are written.
 *
 * While compiling, everything is in one arena and the first failure sticks in compile.rc: functions
 * do nothing after it, so that callers look once.  No rule matches the empty text: where one could,
 * the edge that calls it has a way around it (build.c). */
#ifndef FST_GRAMMAR_INSIDE_H
#define FST_GRAMMAR_INSIDE_H

#include "base/arena.h"
#include "grammar/grammar.h"

#define GRAMMAR_NONE UINT32_MAX
enum {
    GRAMMAR_INF = 0x3fffffff,        /* lengths and counts: no bound, or not reachable */
    GRAMMAR_MARK = 0xff,             /* the byte that stands for the mark token; in no UTF-8 */
    GRAMMAR_NFA_MAX = 1 << 20,       /* states of all rules before determinisation */
    GRAMMAR_STATES_MAX = 1 << 18,    /* after */
    GRAMMAR_RULES_MAX = 1 << 16,     /* rules */
    GRAMMAR_LANG_MAX = 1 << 15,      /* states of one regular language over characters */
    GRAMMAR_NEST_MAX = 128,          /* nesting of schemas, groups, parentheses while compiling */
    GRAMMAR_WORK_MAX = 40 * 1000000, /* steps of one compilation: about a second */
    GRAMMAR_WAYS_MAX = 256           /* (state, stack) pairs of one position */
};

/* ---- compiled -------------------------------------------------------------------------------- */

struct span_edge { /* bytes lo..hi lead to state `to` */
    uint32_t to;
    uint8_t lo, hi;
};
struct call_edge {
    uint32_t rule, ret; /* called; state after it */
    uint32_t min, max;  /* times, max GRAMMAR_INF: any; min >= 1 */
    uint8_t is_tail;    /* max 1 and nothing follows ret: needs no stack */
};
struct state {
    uint32_t span_at, call_at;
    uint16_t n_spans, n_calls;
    bool accept;
    uint8_t run; /* safe characters (vocab.h): all texts of so many go on; RUN_ANY: of any number */
    bool run_exact; /* and none of more does */
    bool has_safe;  /* a safe character can begin here */
    uint16_t depth; /* calls that the shortest way from here opens */
    uint32_t least; /* bytes of the shortest way from here to the rule's end */
    uint32_t step;  /* its first step: index of a span or a call, by step_kind */
    uint8_t step_kind;
};
enum { STEP_END, STEP_BYTE, STEP_CALL, RUN_ANY = 255 };
struct rule {
    uint32_t start;
    bool is_char; /* every safe character alone is a text of the rule */
};

struct grammar {
    _Atomic uint32_t refs;
    struct arena mem;
    struct rule *rule;
    struct state *state;
    struct span_edge *span;
    struct call_edge *call;
    uint32_t n_rules, n_states, n_spans, n_calls;
    uint32_t root; /* rule */
    bool accepts_empty;
    uint32_t depth_max;
    uint32_t n_classes;
    uint8_t class_of[256]; /* bytes that no rule tells apart */
    uint8_t byte_of[256];  /* one byte of each class */
    char *left_out;
};

/* Span of a byte at a state, or NULL. */
static inline const struct span_edge *grammar_span(const struct grammar *g, const struct state *s,
                                                   uint8_t byte)
{
    const struct span_edge *e = g->span + s->span_at;
    uint32_t lo = 0, hi = s->n_spans;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (e[mid].hi < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n_spans && e[lo].lo <= byte ? &e[lo] : NULL;
}

/* ---- compiling ------------------------------------------------------------------------------- */

struct nfa_edge {
    uint32_t to, next; /* next edge of the same state, GRAMMAR_NONE: last */
    uint32_t rule;     /* GRAMMAR_NONE: bytes, or nothing where lo > hi */
    uint32_t min, max;
    uint8_t lo, hi;
};
struct nfa_rule {
    uint32_t start, end; /* states; nothing leads into start, nothing out of end */
    const char *name;    /* for messages; borrowed from the arena or static */
    bool is_nullable;
};

struct compile {
    struct arena mem;
    struct grammar_opts opts; /* defaults filled in */
    enum fst_status rc;       /* the first failure; its text is fst_error_text() */
    uint64_t work;
    struct nfa_edge *edge;
    uint32_t *first; /* of each state */
    struct nfa_rule *rule;
    uint32_t n_edges, edge_cap, n_states, state_cap, n_rules, rule_cap;
    struct buf left_out;
    /* rules that many parts share, GRAMMAR_NONE until asked for */
    uint32_t json_string, json_char, json_value, json_object, json_array, json_number, json_gap;
    uint32_t utf8[3]; /* any character of 2, 3, 4 bytes */
};

void compile_init(struct compile *c, const struct grammar_opts *opts);
void compile_release(struct compile *c);
/* NULL only after a failure, which is then in c->rc.  Zeroed. */
void *compile_alloc(struct compile *c, size_t n, size_t size);
/* Room for one more: the array at *p of elements of `size`, *cap of them, n in use. */
bool compile_grow(struct compile *c, void *p, uint32_t *cap, uint32_t n, size_t size);
char *compile_text(struct compile *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The first failure wins; returns c->rc. */
enum fst_status compile_fail(struct compile *c, enum fst_status rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Counts n steps of work; false when there were too many or something failed before. */
bool compile_work(struct compile *c, uint64_t n);

uint32_t rule_new(struct compile *c, const char *name);
uint32_t nfa_state(struct compile *c);
void nfa_eps(struct compile *c, uint32_t from, uint32_t to);
void nfa_bytes(struct compile *c, uint32_t from, int lo, int hi, uint32_t to);
void nfa_text(struct compile *c, uint32_t from, const char *s, size_t len, uint32_t to);
/* min may be 0: then there is also a way around. */
void nfa_call(struct compile *c, uint32_t from, uint32_t rule, uint32_t min, uint32_t max,
              uint32_t to);

/* All rules to automata (build.c).  The compile is spent either way. */
enum fst_status grammar_build(struct grammar **out, struct compile *c, uint32_t root);

/* ---- regular languages over characters (lang.c) ----------------------------------------------- */

struct lang_span {
    uint32_t lo, hi; /* code points, both included */
    uint32_t to;
};
struct lang_state {
    uint32_t at, n; /* spans, sorted, disjoint */
    bool accept;
};
struct lang { /* deterministic; state 0 is the start; no span: no text */
    struct lang_state *state;
    struct lang_span *span;
    uint32_t n_states, n_spans;
    uint32_t state_cap, span_cap;
};
enum { LANG_CP_MAX = 0x10ffff };

enum regex_style { REGEX_RE2, REGEX_ECMA };
struct regex_opts {
    enum regex_style style;
    bool is_search; /* a match anywhere in the text will do */
    bool ignore_case;
    const char *where; /* for messages: "regex", or the path of a keyword */
};
/* Failure: NULL, with the reason in c->rc. */
struct lang *lang_from_regex(struct compile *c, const char *re, size_t len,
                             const struct regex_opts *opts);
struct lang *lang_and(struct compile *c, const struct lang *a, const struct lang *b);
struct lang *lang_or(struct compile *c, const struct lang *a, const struct lang *b);
struct lang *lang_not(struct compile *c, const struct lang *a); /* all texts but those of a */
struct lang *lang_length(struct compile *c, uint32_t min, uint32_t max);
struct lang *lang_literal(struct compile *c, const char *s, size_t len);
struct lang *lang_all(struct compile *c); /* every text */
bool lang_is_empty(const struct lang *a); /* no text at all */
bool lang_has(const struct lang *a, const char *s, size_t len);
/* Parts that build a lang: states and spans in order, at first without spans. */
struct lang *lang_new(struct compile *c);
uint32_t lang_state(struct compile *c, struct lang *l, bool accept);
void lang_span(struct compile *c, struct lang *l, uint32_t from, uint32_t lo, uint32_t hi,
               uint32_t to);

/* ---- writing characters as bytes (text.c) ------------------------------------------------------ */

enum text_style { TEXT_RAW, TEXT_JSON };
/* One character of lo..hi, as UTF-8 (surrogates are left out) or as inside a JSON string. */
void text_range(struct compile *c, enum text_style style, uint32_t from, uint32_t lo, uint32_t hi,
                uint32_t to);
void text_lang(struct compile *c, enum text_style style, const struct lang *l, uint32_t from,
               uint32_t to);

#endif
