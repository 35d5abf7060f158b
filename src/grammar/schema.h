/* schema.h - JSON schemas inside this folder: read once into struct schema, then every set of them
 * that must hold for one value becomes a rule.
 *
 *   schema_read.c   keywords and references to struct schema; if, oneOf, dependentX are rewritten here
 *   schema_not.c    the opposite of a schema
 *   schema_check.c  does a value satisfy a schema (enum and const beside other keywords)
 *   schema.c        alternatives, strings, enumerations; the rules' list
 *   schema_parts.c  objects and arrays
 *   numbers.c, formats.c, json_rules.c   what these stand on */
#ifndef FST_GRAMMAR_SCHEMA_H
#define FST_GRAMMAR_SCHEMA_H

#include "grammar/inside.h"

enum {
    T_NULL = 1,
    T_BOOLEAN = 2,
    T_INTEGER = 4,  /* numbers without fraction */
    T_FRACTION = 8, /* the others */
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_NUMBER = T_INTEGER | T_FRACTION,
    T_ALL = 127
};

enum limit_kind {
    LIMIT_MIN,
    LIMIT_MAX,
    LIMIT_ABOVE,
    LIMIT_BELOW,
    LIMIT_MULTIPLE,
    LIMIT_NO_MULTIPLE
};
struct limit {
    enum limit_kind kind;
    const char *number; /* as spelled; NUL-terminated */
};
struct schema_list {
    struct schema **at;
    uint32_t n, cap;
    bool one; /* of alternatives: exactly one holds */
};
struct property {
    const char *name;
    size_t len;
    const struct lang *pattern; /* of names; then name is NULL */
    struct schema *schema;
};
struct contains {
    struct schema *schema;
    uint32_t min, max, from; /* counted from this item on */
};
struct schema {
    const char *path;
    bool never;     /* false */
    bool synthetic; /* made here; evaluates nothing for unevaluatedX */
    uint32_t types;
    struct schema *opposite; /* made by schema_not */
    struct schema_list all;  /* all of these too: allOf, $ref */
    struct schema_list no;   /* none of these */
    struct schema_list *any; /* of each list one */
    uint32_t n_any, any_cap;
    json_val **values; /* enum, const */
    uint32_t n_values;
    bool has_values;
    json_val **not_values;
    uint32_t n_not_values;
    uint32_t length_min, length_max;
    const struct lang **text;
    uint32_t n_text, text_cap;
    struct limit *limit;
    uint32_t n_limits, limit_cap;
    struct schema_list prefix;
    struct schema *items; /* NULL: anything */
    struct schema *unevaluated_items, *unevaluated_properties;
    uint32_t items_min, items_max;
    struct contains *contains;
    uint32_t n_contains, contains_cap;
    bool unique;
    struct property *property; /* named ones and patterns, in order */
    uint32_t n_properties, property_cap;
    struct schema *additional; /* NULL: anything */
    struct schema *names;      /* NULL: any */
    struct property *required; /* name, len */
    uint32_t n_required, required_cap;
    uint32_t properties_min, properties_max;
};

struct rule_key {
    struct schema **set; /* sorted by address */
    uint32_t n, rule;
    struct schema **order; /* the same as the schema had them */
};
struct reader {
    struct compile *c;
    json_val *root;
    struct { /* what was read, by value; open addressing */
        json_val *v;
        struct schema *s;
    } * seen;
    uint32_t seen_mask, n_seen;
    struct schema *anything, *nothing;
    struct rule_key *key; /* rules, in the order in which they are filled */
    uint32_t n_keys, key_cap, *key_slot, key_mask;
    int nest;
    const struct grammar_tool_format *format; /* of tools, else NULL */
    const struct lang *plain;                 /* texts without a closing tag; made once */
    struct {                                  /* where $id and anchors are */
        const char *id;
        size_t len;
        json_val *at, *base;
    } * anchor;
    uint32_t n_anchors, anchor_cap;
};

/* One alternative of a set of schemas: all of these hold, each by its own keywords alone. */
struct leaf {
    struct schema **node;
    uint32_t n;
    uint32_t types;
};

bool reader_init(struct reader *r, struct compile *c, json_val *root);
struct schema *schema_read(struct reader *r, json_val *v, json_val *base, const char *path);
struct schema *schema_new(struct reader *r, const char *path);
void schema_add(struct reader *r, struct schema_list *l, struct schema *s);
struct schema_list *schema_add_any(struct reader *r, struct schema *s);
struct property *schema_property(struct reader *r, struct schema *s, const char *name, size_t len);
void schema_require(struct reader *r, struct schema *s, const char *name, size_t len);
/* A keyword that cannot be kept: a failure, or with opts.lenient a note and true. */
bool schema_refuse(struct reader *r, const char *path, const char *keyword, const char *why);
struct schema *schema_not(struct reader *r, struct schema *s);
/* No value satisfies both, for a reason that is easy to see: types, enumerations, a property that
 * both require. */
bool schema_disjoint(struct reader *r, struct schema *a, struct schema *b);
bool schema_check(struct reader *r, const struct schema *s, json_val *v, int nest);
/* The same for a value that is known to be one of s->values. */
bool schema_check_listed(struct reader *r, const struct schema *s, json_val *v, int nest);
bool schema_check_text(struct reader *r, const struct schema *s, const char *text, size_t len,
                       int nest);

/* The rule of values for which all of the set hold. */
uint32_t schema_rule(struct reader *r, struct schema *const *set, uint32_t n);
/* Alternatives of a set; at most `max`.  False after a failure. */
struct leaf *schema_leaves(struct reader *r, struct schema *const *set, uint32_t n,
                           uint32_t *n_out);
/* One alternative, restricted to `types`, between two states. */
void schema_leaf(struct reader *r, const struct leaf *l, uint32_t types, uint32_t from,
                 uint32_t to);
/* Texts of the strings of a leaf: NULL for all of them (or after a failure); lengths are left out
 * and returned where there is no other bound (*min, *max). */
const struct lang *schema_text(struct reader *r, const struct leaf *l, uint32_t *min,
                               uint32_t *max);
/* Texts of the strings of a set, lengths included. */
const struct lang *schema_texts(struct reader *r, struct schema *const *set, uint32_t n);
/* The values of a leaf's enumeration that all of it allows; false: there is none. */
bool schema_values(struct reader *r, const struct leaf *l, json_val ***out, uint32_t *n);
void schema_put_value(struct reader *r, json_val *v, uint32_t from, uint32_t to);
/* Fills the rules that were asked for, until none is left. */
void schema_fill(struct reader *r);

/* schema_parts.c */
void schema_object(struct reader *r, const struct leaf *l, uint32_t from, uint32_t to);
void schema_array(struct reader *r, const struct leaf *l, uint32_t from, uint32_t to);
/* The parameters of a tool: an object in DSML. */
void schema_params(struct reader *r, const struct leaf *l, uint32_t from, uint32_t to);
/* A text of the format, the mark in it as its token. */
void schema_tag(struct compile *c, const struct grammar_tool_format *f, const char *s,
                uint32_t from, uint32_t to);

/* numbers.c: decimals (no exponent) for which all limits hold, and that are none of not[]. */
const struct lang *numbers_lang(struct reader *r, const char *path, uint32_t types,
                                const struct limit *limit, uint32_t n, const char *const * not,
                                uint32_t n_not);
/* formats.c: NULL with *known false: no such format (or after a failure). */
const struct lang *format_lang(struct compile *c, const char *name, size_t len, const char *path,
                               bool *known);

/* json_rules.c */
enum json_gap { GAP_INSIDE, GAP_COMMA, GAP_COLON }; /* inside: next to brackets */
void json_gap(struct compile *c, enum json_gap kind, bool before, uint32_t from, uint32_t to);
void json_mark(struct compile *c, char mark, enum json_gap kind, uint32_t from, uint32_t to);
uint32_t json_string_rule(struct compile *c);
uint32_t json_char_rule(struct compile *c);
uint32_t json_value_rule(struct compile *c);
uint32_t json_object_rule(struct compile *c);
uint32_t json_array_rule(struct compile *c);
uint32_t json_number_rule(struct compile *c);
void json_text(struct compile *c, uint32_t from, const char *s, size_t len, uint32_t to);

#endif
