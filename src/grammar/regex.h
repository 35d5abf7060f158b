/* regex.h - a regular expression as a tree, and sets of characters; for the files of this folder only. */
#ifndef FST_GRAMMAR_REGEX_H
#define FST_GRAMMAR_REGEX_H

#include "grammar/inside.h"

struct cp_range {
    uint32_t lo, hi;
};
struct cp_set { /* sorted and disjoint after cp_set_tidy */
    struct cp_range *range;
    uint32_t n, cap;
};
void cp_set_add(struct compile *c, struct cp_set *s, uint32_t lo, uint32_t hi);
void cp_set_tidy(struct cp_set *s);
void cp_set_invert(struct compile *c, struct cp_set *s); /* of a tidy set; tidy */
void cp_set_fold(struct compile *c, struct cp_set *s);   /* adds what differs in case alone; tidy */
/* Adds (or what is outside of) a class of \p{...}; false: there is no such name. */
bool cp_set_add_named(struct compile *c, struct cp_set *s, const char *name, size_t len,
                      bool invert);
/* [:alpha:] and so on. */
bool cp_set_add_posix(struct compile *c, struct cp_set *s, const char *name, size_t len,
                      bool invert);

enum regex_kind {
    REGEX_EMPTY,
    REGEX_SET,
    REGEX_CAT,
    REGEX_ALT,
    REGEX_REPEAT,
    REGEX_BEGIN,
    REGEX_END
};
struct regex {
    enum regex_kind kind;
    struct cp_set set;
    struct regex *left, *right; /* CAT, ALT; REPEAT: left */
    uint32_t min, max;          /* GRAMMAR_INF: any */
};
/* NULL after a failure. */
struct regex *regex_parse(struct compile *c, const char *re, size_t len,
                          const struct regex_opts *o);
struct lang *lang_from_tree(struct compile *c, const struct regex *tree, bool is_search,
                            const char *where);
/* Character class of "[...]" at *at (behind the bracket); used by the EBNF front ends too. */
bool regex_class(struct compile *c, const char *re, size_t len, size_t *at,
                 const struct regex_opts *o, struct cp_set *out);

#endif
