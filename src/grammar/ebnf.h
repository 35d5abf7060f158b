/* ebnf.h - a grammar as rules of terms, whichever way it was written; for the files of this folder
 * only.  gbnf.c and lark.c read; ebnf.c turns it into automata. */
#ifndef FST_GRAMMAR_EBNF_H
#define FST_GRAMMAR_EBNF_H

#include "grammar/regex.h"

enum term_kind { TERM_EMPTY, TERM_TEXT, TERM_LANG, TERM_RULE, TERM_SEQ, TERM_ALT, TERM_REPEAT };
struct term {
    enum term_kind kind;
    const char *text; /* TEXT */
    size_t len;
    const struct lang *lang;
    uint32_t rule;      /* RULE: number in ebnf.rule */
    struct term **part; /* SEQ, ALT; REPEAT: one */
    uint32_t n, cap;
    uint32_t min, max;
};
struct ebnf_rule {
    const char *name;
    size_t len;
    struct term *body; /* NULL: mentioned, not defined yet */
    uint32_t rule;     /* of the compile */
    bool is_terminal;  /* Lark: nothing is ignored inside */
};
struct ebnf {
    struct compile *c;
    const char *s;
    size_t len, at;
    struct ebnf_rule *rule;
    uint32_t n_rules, cap;
    int nest;
    struct term *ignored; /* Lark: what may stand between terminals, or NULL */
};

void ebnf_fail(struct ebnf *e, enum fst_status rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
struct term *term_new(struct ebnf *e, enum term_kind kind);
/* Adds to a SEQ or ALT. */
void term_add(struct ebnf *e, struct term *t, struct term *part);
struct term *term_repeat(struct ebnf *e, struct term *t, uint32_t min, uint32_t max);
struct term *term_text(struct ebnf *e, const char *s, size_t len);
struct term *term_regex(struct ebnf *e, const char *re, size_t len, enum regex_style style,
                        bool ignore_case, bool dot_all);
struct term *term_set(struct ebnf *e, struct cp_set *set);
/* Number of the rule of this name, new if need be. */
uint32_t ebnf_rule(struct ebnf *e, const char *name, size_t len);
/* A quoted text with escapes from the opening quote on; NULL after a failure. */
struct term *ebnf_quoted(struct ebnf *e);
bool ebnf_is(const struct ebnf *e, const char *text);
bool ebnf_take(struct ebnf *e, const char *text);
/* Length of a name at `at`, 0: none. */
size_t ebnf_name(const struct ebnf *e, size_t at);
/* Digits; false: none there. */
bool ebnf_number(struct ebnf *e, uint32_t *n);
/* Sequences with | between them, each read by `sequence` with the blanks behind it; NULL after a failure. */
struct term *ebnf_alternatives(struct ebnf *e, struct term *(*sequence)(struct ebnf *e));

void gbnf_read(struct ebnf *e);
void lark_read(struct ebnf *e);

#endif
