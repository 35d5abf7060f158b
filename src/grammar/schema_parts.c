/* schema_parts.c - objects, arrays, and the parameters of tools.
 *
 * Properties come in the schema's order: between any two of them stand states that know how many
 * there were, as far as minProperties and maxProperties (or a comma) need it.  Other names follow.
 * Names that are only bound by a pattern may come twice, so of all of them only one counts for
 * minProperties; more is refused. */
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "base/utf8.h"

enum {
    PATTERNS_MAX = 4,
    GRID_MAX = 1 << 14,
    UNIQUE_MAX = 10,
    TEXT_LANG_MAX = 2048,
    TAG_NAME_MAX = 256
};

struct name {
    const char *s;
    size_t len;
    bool is_required, is_dead;
    uint32_t rule; /* of its value; tools have rule and types of their own */
    struct schema_list set;
};
struct object {
    struct reader *r;
    const struct leaf *l;
    struct name *name;
    uint32_t n_names, cap;
    uint32_t min, max;
    bool in_tags;                  /* DSML, not JSON */
    uint32_t free_rule, free_more; /* one property of another name; the same with what separates */
};

static const char *path_of(const struct leaf *l)
{
    return l->n ? l->node[0]->path : "#";
}

/* ---- names --------------------------------------------------------------------------------------- */

static struct name *find_name(struct object *o, const char *s, size_t len)
{
    for (uint32_t i = 0; i < o->n_names; i++)
        if (o->name[i].len == len && memcmp(o->name[i].s, s, len) == 0)
            return &o->name[i];
    if (!compile_work(o->r->c, o->n_names + 1) ||
        !compile_grow(o->r->c, &o->name, &o->cap, o->n_names, sizeof *o->name))
        return NULL;
    o->name[o->n_names] = (struct name){.s = s, .len = len};
    return &o->name[o->n_names++];
}

static bool is_closed(const struct object *o, const struct schema *s)
{
    bool named = o->in_tags;

    for (uint32_t i = 0; i < s->n_properties; i++)
        named |= s->property[i].name != NULL;
    return (o->r->c->opts.closed || o->in_tags) && named && !s->additional && !s->synthetic;
}

/* Is s, or does s bring in, t?  (unevaluatedX sees what its own subschemas have evaluated.) */
static bool brings(struct reader *r, const struct schema *s, const struct schema *t, int nest)
{
    if (s == t)
        return true;
    if (nest > 16 || !compile_work(r->c, 1))
        return false;
    for (uint32_t i = 0; i < s->all.n; i++)
        if (brings(r, s->all.at[i], t, nest + 1))
            return true;
    for (uint32_t i = 0; i < s->n_any; i++)
        for (uint32_t k = 0; k < s->any[i].n; k++)
            if (brings(r, s->any[i].at[k], t, nest + 1))
                return true;
    return false;
}

/* What schema s asks of the value of a property; nothing is added where it asks nothing. */
static void ask(struct object *o, const struct schema *s, const char *name, size_t len,
                struct schema_list *set)
{
    bool named = false;

    for (uint32_t i = 0; i < s->n_properties; i++) {
        const struct property *p = &s->property[i];
        if (p->name ? p->len != len || memcmp(p->name, name, len) != 0
                    : !lang_has(p->pattern, name, len))
            continue;
        named = true;
        schema_add(o->r, set, p->schema);
    }
    if (!named && s->additional)
        schema_add(o->r, set, s->additional);
    else if (!named && is_closed(o, s))
        schema_add(o->r, set, o->r->nothing);
    if (s->unevaluated_properties) {
        bool seen = named || s->additional;
        for (uint32_t i = 0; i < o->l->n && !seen; i++) {
            const struct schema *t = o->l->node[i];
            if (t == s || t->synthetic || !brings(o->r, s, t, 0))
                continue;
            seen = t->additional || t->unevaluated_properties;
            for (uint32_t k = 0; k < t->n_properties && !seen; k++)
                seen = t->property[k].name ? t->property[k].len == len &&
                                                 memcmp(t->property[k].name, name, len) == 0
                                           : lang_has(t->property[k].pattern, name, len);
        }
        if (!seen)
            schema_add(o->r, set, s->unevaluated_properties);
    }
    if (s->names && !schema_check_text(o->r, s->names, name, len, 0))
        schema_add(o->r, set, o->r->nothing);
}

static bool is_never(const struct schema_list *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (set->at[i]->never)
            return true;
    return false;
}

/* False: no object satisfies the leaf. */
static bool find_names(struct object *o)
{
    const struct leaf *l = o->l;

    o->max = GRAMMAR_INF;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct schema *s = l->node[i];

        o->min = FST_MAX(o->min, s->properties_min);
        o->max = FST_MIN(o->max, s->properties_max);
        for (uint32_t k = 0; k < s->n_properties; k++)
            if (s->property[k].name)
                find_name(o, s->property[k].name, s->property[k].len);
    }
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; k < l->node[i]->n_required; k++) {
            struct name *n =
                find_name(o, l->node[i]->required[k].name, l->node[i]->required[k].len);
            if (n)
                n->is_required = true;
        }
    for (uint32_t i = 0; i < o->n_names && o->r->c->rc >= 0; i++) {
        struct name *n = &o->name[i];

        for (uint32_t k = 0; k < l->n; k++)
            ask(o, l->node[k], n->s, n->len, &n->set);
        n->is_dead = is_never(&n->set);
        if (n->is_dead && n->is_required)
            return false;
    }
    return o->r->c->rc >= 0;
}

/* All names but those of the list, and within propertyNames. */
static const struct lang *other_names(struct object *o)
{
    struct compile *c = o->r->c;
    const struct lang *out = NULL;
    struct regex *all = NULL;

    for (uint32_t i = 0; i < o->n_names && c->rc >= 0; i++) {
        struct regex *one = compile_alloc(c, 1, sizeof *one), *x;

        for (size_t at = 0; at < o->name[i].len && one;) {
            uint32_t cp;
            int n = utf8_decode(o->name[i].s + at, o->name[i].len - at, &cp);
            struct regex *set = compile_alloc(c, 1, sizeof *set);

            x = compile_alloc(c, 1, sizeof *x);
            if (n <= 0 || !set || !x)
                return NULL;
            at += (size_t)n;
            set->kind = REGEX_SET;
            cp_set_add(c, &set->set, cp, cp);
            x->kind = REGEX_CAT;
            x->left = one;
            x->right = set;
            one = x;
        }
        if (!all || !one) {
            all = one;
            continue;
        }
        x = compile_alloc(c, 1, sizeof *x);
        if (!x)
            return NULL;
        x->kind = REGEX_ALT;
        x->left = all;
        x->right = one;
        all = x;
    }
    if (all && c->rc >= 0)
        out = lang_not(c, lang_from_tree(c, all, false, "properties"));
    for (uint32_t i = 0; i < o->l->n && c->rc >= 0; i++) {
        struct schema *names = o->l->node[i]->names;
        const struct lang *x;

        if (!names)
            continue;
        x = schema_texts(o->r, &names, 1);
        out = out ? lang_and(c, out, x) : x;
    }
    return out;
}

/* ---- one property ---------------------------------------------------------------------------------- */

void schema_tag(struct compile *c, const struct grammar_tool_format *f, const char *s,
                uint32_t from, uint32_t to)
{
    size_t k = strlen(f->mark), len = strlen(s);
    const char *at = k ? strstr(s, f->mark) : NULL;
    uint32_t a, b;

    if (!at) {
        nfa_text(c, from, s, len, to);
        return;
    }
    a = nfa_state(c);
    b = nfa_state(c);
    nfa_text(c, from, s, (size_t)(at - s), a);
    nfa_bytes(c, a, GRAMMAR_MARK, GRAMMAR_MARK, b);
    schema_tag(c, f, at + k, b, to);
}

/* Texts that hold no beginning of a closing tag, spelled by ordinary tokens: up to the first character
 * beyond ASCII ("</" and the bar), which no other text needs. */
static const struct lang *plain_text(struct reader *r)
{
    struct compile *c = r->c;
    struct regex_opts o = {.style = REGEX_RE2, .is_search = true, .where = "tag"};
    const char *end = r->format->tag_end;
    size_t n = 0;
    uint32_t cp = 0;

    while (!r->plain && end[n] && cp < 0x80) {
        int k = utf8_decode(end + n, strlen(end + n), &cp);
        n += (size_t)FST_MAX(k, 1);
    }
    if (!r->plain) {
        char *re = compile_text(c, "\\Q%.*s", (int)n, end);
        r->plain = re ? lang_not(c, lang_from_regex(c, re, strlen(re), &o)) : NULL;
    }
    return r->plain;
}

/* Raw text of many characters: counted in pieces of at most 6 that hold no beginning of a closing tag,
 * so that the length is kept and the states are few.  Five '<' in a row are not written. */
static void put_long_text(struct reader *r, uint32_t min, uint32_t max, uint32_t from, uint32_t to)
{
    static const char re[] = "[^<]|<{1,4}[^/<]|<{1,4}/[^<\\x{ff5c}]";
    struct regex_opts o = {.style = REGEX_RE2, .where = "text"};
    struct compile *c = r->c;
    uint32_t rule = rule_new(c, "text");

    if (c->rc < 0)
        return;
    text_lang(c, TEXT_RAW, lang_from_regex(c, re, sizeof re - 1, &o), c->rule[rule].start,
              c->rule[rule].end);
    nfa_call(c, from, rule, min, max < GRAMMAR_INF ? max / 6 : max, to);
}

/* Behind the name of a parameter: raw text if the value is a string, JSON if it is none. */
static void put_parameter(struct reader *r, const struct schema_list *set, uint32_t from,
                          uint32_t to)
{
    struct compile *c = r->c;
    const struct grammar_tool_format *f = r->format;
    uint32_t text = nfa_state(c), json = nfa_state(c), end = nfa_state(c), n;
    struct leaf *l = schema_leaves(r, set->at, set->n, &n);
    struct leaf any = {.types = T_ALL};

    if (c->rc < 0)
        return;
    schema_tag(c, f, f->param_text, from, text);
    schema_tag(c, f, f->param_json, from, json);
    schema_tag(c, f, f->param_close, end, to);
    if (!set->n) {
        l = &any;
        n = 1;
    }
    for (uint32_t i = 0; i < n && c->rc >= 0; i++) {
        json_val **values;
        uint32_t n_values, min, max;
        const struct lang *t;

        if (schema_values(r, &l[i], &values, &n_values)) {
            for (uint32_t k = 0; k < n_values; k++) {
                size_t len;
                const char *s = json_string(values[k], &len);
                if (!s)
                    schema_put_value(r, values[k], json, end);
                else if (plain_text(r) && lang_has(r->plain, s, len))
                    nfa_text(c, text, s, len, end);
            }
            continue;
        }
        if (l[i].types & ~(uint32_t)T_STRING)
            schema_leaf(r, &l[i], l[i].types & ~(uint32_t)T_STRING, json, end);
        if (!(l[i].types & T_STRING))
            continue;
        t = schema_text(r, &l[i], &min, &max);
        if (!t && c->rc >= 0 && strncmp(r->format->tag_end, "</\xef\xbd\x9c", 5) == 0 &&
            (min > TEXT_LANG_MAX || (max > TEXT_LANG_MAX && max < GRAMMAR_INF)) && min <= max / 6) {
            put_long_text(r, min, max, text, end);
            continue;
        }
        if (!t && c->rc >= 0 && (min || max < GRAMMAR_INF))
            t = lang_length(c, min, max);
        t = t ? lang_and(c, t, plain_text(r)) : plain_text(r);
        if (t)
            text_lang(c, TEXT_RAW, t, text, end);
    }
}

/* Key, what stands between, value. */
static void put_property(struct object *o, const struct name *n, uint32_t from, uint32_t to)
{
    struct compile *c = o->r->c;
    uint32_t key = nfa_state(c), value = nfa_state(c);

    if (o->in_tags) {
        schema_tag(c, o->r->format, o->r->format->param_open, from, key);
        nfa_text(c, key, n->s, n->len, value);
        put_parameter(o->r, &n->set, value, to);
        return;
    }
    json_text(c, from, n->s, n->len, key);
    json_mark(c, ':', GAP_COLON, key, value);
    nfa_call(c, value, schema_rule(o->r, n->set.at, n->set.n), 1, 1, to);
}

static void put_separator(struct object *o, uint32_t from, uint32_t to)
{
    if (o->in_tags)
        nfa_bytes(o->r->c, from, '\n', '\n', to);
    else
        json_mark(o->r->c, ',', GAP_COMMA, from, to);
}

/* ---- properties of other names --------------------------------------------------------------------- */

/* Names of `lang` (NULL: all), with values of `set`. */
static void put_free(struct object *o, const struct lang *lang, const struct schema_list *set)
{
    struct compile *c = o->r->c;
    uint32_t from, to, key = nfa_state(c), value = nfa_state(c), a = nfa_state(c), b = nfa_state(c);

    if (o->free_rule == GRAMMAR_NONE)
        o->free_rule = rule_new(c, "other properties");
    if (c->rc < 0)
        return;
    from = c->rule[o->free_rule].start;
    to = c->rule[o->free_rule].end;
    if (o->in_tags) {
        static const char re[] = "[^\"<>\\x00-\\x1f]{1,64}";
        struct regex_opts ro = {.style = REGEX_RE2, .where = "name"};
        const struct lang *plain = lang_from_regex(c, re, sizeof re - 1, &ro);

        schema_tag(c, o->r->format, o->r->format->param_open, from, key);
        text_lang(c, TEXT_RAW, lang ? lang_and(c, lang, plain) : plain, key, value);
        put_parameter(o->r, set, value, to);
        return;
    }
    if (lang) {
        nfa_bytes(c, from, '"', '"', a);
        text_lang(c, TEXT_JSON, lang, a, b);
        nfa_bytes(c, b, '"', '"', key);
    } else {
        nfa_call(c, from, json_string_rule(c), 1, 1, key);
    }
    json_mark(c, ':', GAP_COLON, key, value);
    nfa_call(c, value, schema_rule(o->r, set->at, set->n), 1, 1, to);
}

/* One class of names for each set of patterns that they match. */
static void find_free(struct object *o)
{
    struct compile *c = o->r->c;
    const struct leaf *l = o->l;
    const struct lang *pattern[PATTERNS_MAX] = {NULL}, *others;
    uint32_t n = 0;

    o->free_rule = o->free_more = GRAMMAR_NONE;
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; k < l->node[i]->n_properties; k++) {
            const struct lang *p = l->node[i]->property[k].pattern;
            if (!p)
                continue;
            if (n == PATTERNS_MAX) {
                compile_fail(c, FST_EBUDGET, "%s: more than %d patternProperties at once",
                             path_of(l), PATTERNS_MAX);
                return;
            }
            pattern[n++] = p;
        }
    others = NULL;
    for (uint32_t mask = 0; mask < 1u << n && c->rc >= 0; mask++) {
        struct schema_list set = {0};
        const struct lang *names;
        uint32_t at = 0;

        for (uint32_t i = 0; i < l->n; i++) {
            const struct schema *s = l->node[i];
            bool matched = false, seen;

            for (uint32_t k = 0; k < s->n_properties; k++)
                if (s->property[k].pattern && mask >> at++ & 1) {
                    schema_add(o->r, &set, s->property[k].schema);
                    matched = true;
                }
            seen = matched || s->additional;
            if (!matched && s->additional)
                schema_add(o->r, &set, s->additional);
            else if (!matched && is_closed(o, s))
                schema_add(o->r, &set, o->r->nothing);
            if (s->unevaluated_properties && !seen) {
                uint32_t bit = 0;
                for (uint32_t j = 0; j < l->n; j++) {
                    const struct schema *t = l->node[j];
                    bool mine = t != s && !t->synthetic && brings(o->r, s, t, 0);
                    seen |= mine && (t->additional || t->unevaluated_properties);
                    for (uint32_t k = 0; k < t->n_properties; k++)
                        if (t->property[k].pattern)
                            seen |= (mask >> bit++ & 1) && mine;
                }
                if (!seen)
                    schema_add(o->r, &set, s->unevaluated_properties);
            }
        }
        if (is_never(&set))
            continue;
        if (!others) {
            others = other_names(o);
            if (!others && n && c->rc >= 0)
                others = lang_all(c);
        }
        names = others;
        for (uint32_t k = 0; k < n && c->rc >= 0; k++)
            names = lang_and(c, names, mask >> k & 1 ? pattern[k] : lang_not(c, pattern[k]));
        if (c->rc >= 0 && (!names || !lang_is_empty(names)))
            put_free(o, names, &set);
    }
    if (o->free_rule == GRAMMAR_NONE || c->rc < 0)
        return;
    o->free_more = rule_new(c, "other properties");
    if (c->rc >= 0) {
        uint32_t a = nfa_state(c);
        put_separator(o, c->rule[o->free_more].start, a);
        nfa_call(c, a, o->free_rule, 1, 1, c->rule[o->free_more].end);
    }
}

/* ---- the object ------------------------------------------------------------------------------------ */

/* State behind i properties of the list, k of which (or of all, counted up to `cap`) were there. */
struct grid {
    uint32_t *at, *key; /* key: before a name that will be the k-th */
    uint32_t n, cap;
};

/* A name that stands between quotes as it is: what reads tags ends it at the next one, and takes no
 * control characters and no more bytes. */
static bool is_tag_name(const struct name *n)
{
    for (size_t i = 0; i < n->len; i++)
        if ((unsigned char)n->s[i] < 0x20 || n->s[i] == '"')
            return false;
    return n->len <= TAG_NAME_MAX;
}

/* Parameters that cannot be written are refused, or left out. */
static bool drop_unwritable(struct object *o)
{
    for (uint32_t i = 0; i < o->n_names; i++) {
        if (o->name[i].is_dead || is_tag_name(&o->name[i]))
            continue;
        if (!schema_refuse(
                o->r, path_of(o->l), "properties",
                "a parameter's name has at most 256 bytes, no quotes and no control characters"))
            return false;
        o->name[i].is_dead = true;
        o->name[i].is_required = false;
    }
    return true;
}

static void put_properties(struct object *o, uint32_t from, uint32_t to)
{
    struct compile *c = o->r->c;
    uint32_t cap = o->max < GRAMMAR_INF ? FST_MAX(o->min, o->max) : FST_MAX(o->min, 1),
             possible = 0;
    struct grid g = {.n = o->n_names};

    if (o->in_tags && !drop_unwritable(o))
        return;
    for (uint32_t i = 0; i < o->n_names; i++)
        possible += !o->name[i].is_dead;
    if (o->min > possible + (o->free_rule != GRAMMAR_NONE)) {
        if (o->free_rule != GRAMMAR_NONE &&
            !schema_refuse(o->r, path_of(o->l), "minProperties",
                           "names that are not listed may come twice"))
            return;
        o->min = o->free_rule != GRAMMAR_NONE ? possible + 1 : o->min;
    }
    cap = FST_MIN(cap, possible + 2);
    if ((uint64_t)(o->n_names + 1) * (cap + 1) > GRID_MAX) {
        compile_fail(c, FST_EBUDGET, "%s: too many properties to count", path_of(o->l));
        return;
    }
    g.cap = cap + 1;
    g.at = compile_alloc(c, (size_t)(g.n + 1) * g.cap, sizeof *g.at);
    g.key = compile_alloc(c, (size_t)(g.n + 1) * g.cap, sizeof *g.key);
    if (!g.at || !g.key)
        return;
    for (uint32_t i = 0; i < (g.n + 1) * g.cap; i++) {
        g.at[i] = nfa_state(c);
        g.key[i] = nfa_state(c);
    }
    nfa_eps(c, from, g.at[0]);
    for (uint32_t i = 0; i < g.n && c->rc >= 0; i++) {
        const struct name *n = &o->name[i];

        for (uint32_t k = 0; k < g.cap; k++) {
            uint32_t at = g.at[i * g.cap + k], next = FST_MIN(k + 1, cap);

            if (!n->is_required)
                nfa_eps(c, at, g.at[(i + 1) * g.cap + k]);
            if (n->is_dead || k >= o->max)
                continue;
            if (k)
                put_separator(o, at, g.key[i * g.cap + next]);
            else
                nfa_eps(c, at, g.key[i * g.cap + next]);
        }
        for (uint32_t k = 1; k < g.cap && !n->is_dead; k++)
            put_property(o, n, g.key[i * g.cap + k], g.at[(i + 1) * g.cap + k]);
    }
    for (uint32_t k = 0; k < g.cap && c->rc >= 0; k++) {
        uint32_t at = g.at[g.n * g.cap + k], more;

        if (k >= o->min)
            nfa_eps(c, at, to);
        if (o->free_rule == GRAMMAR_NONE || k + 1 < o->min || k >= o->max)
            continue;
        more = nfa_state(c);
        nfa_call(c, at, k ? o->free_more : o->free_rule, 1, 1, more);
        nfa_call(c, more, o->free_more, 0, o->max < GRAMMAR_INF ? o->max - k - 1 : GRAMMAR_INF, to);
    }
}

void schema_object(struct reader *r, const struct leaf *l, uint32_t from, uint32_t to)
{
    struct compile *c = r->c;
    struct object o = {.r = r, .l = l};
    uint32_t a, b, d;

    if (!find_names(&o))
        return;
    find_free(&o);
    if (!o.n_names && !o.min && o.max == GRAMMAR_INF && o.free_rule != GRAMMAR_NONE && !l->n) {
        nfa_call(c, from, json_object_rule(c), 1, 1, to);
        return;
    }
    a = nfa_state(c);
    b = nfa_state(c);
    d = nfa_state(c);
    nfa_bytes(c, from, '{', '{', a);
    json_gap(c, GAP_INSIDE, false, a, b);
    a = nfa_state(c);
    put_properties(&o, b, a);
    json_gap(c, GAP_INSIDE, true, a, d);
    nfa_bytes(c, d, '}', '}', to);
}

void schema_params(struct reader *r, const struct leaf *l, uint32_t from, uint32_t to)
{
    struct object o = {.r = r, .l = l, .in_tags = true};

    if (!find_names(&o))
        return;
    find_free(&o);
    put_properties(&o, from, to);
}

/* ---- arrays ------------------------------------------------------------------------------------------ */

struct array {
    struct reader *r;
    const struct leaf *l;
    uint32_t n_prefix, min, max;
    const struct contains *contains;
    bool unique;
};

/* What item i must satisfy; i == n_prefix: all behind. */
static void ask_item(struct array *a, uint32_t i, struct schema_list *set)
{
    for (uint32_t k = 0; k < a->l->n; k++) {
        const struct schema *s = a->l->node[k];

        if (i < s->prefix.n)
            schema_add(a->r, set, s->prefix.at[i]);
        else if (s->items)
            schema_add(a->r, set, s->items);
        if (s->unevaluated_items && i >= s->prefix.n && !s->items) {
            bool seen = false;
            for (uint32_t j = 0; j < a->l->n; j++) {
                const struct schema *t = a->l->node[j];
                if (t == s || t->synthetic || !brings(a->r, s, t, 0))
                    continue;
                seen |= i < t->prefix.n || t->items || t->unevaluated_items;
            }
            if (!seen)
                schema_add(a->r, set, s->unevaluated_items);
        }
    }
}

static bool find_items(struct array *a)
{
    a->max = GRAMMAR_INF;
    for (uint32_t i = 0; i < a->l->n; i++) {
        const struct schema *s = a->l->node[i];

        a->n_prefix = FST_MAX(a->n_prefix, s->prefix.n);
        a->min = FST_MAX(a->min, s->items_min);
        a->max = FST_MIN(a->max, s->items_max);
        a->unique |= s->unique;
        for (uint32_t k = 0; k < s->n_contains; k++) {
            if (a->contains)
                schema_refuse(a->r, s->path, "contains", "beside another one");
            a->contains = &s->contains[k];
        }
        if (s->n_contains && s->unevaluated_items)
            schema_refuse(a->r, s->path, "unevaluatedItems", "beside contains");
    }
    return a->r->c->rc >= 0 && a->min <= a->max;
}

static uint32_t item_rule(struct array *a, const struct schema_list *set, const struct schema *also)
{
    struct schema_list all = {0};

    for (uint32_t i = 0; i < set->n; i++)
        schema_add(a->r, &all, set->at[i]);
    if (also) {
        struct schema *x = a->contains->schema;
        schema_add(a->r, &all, also == x ? x : schema_not(a->r, x));
    }
    return schema_rule(a->r, all.at, all.n);
}

/* Every item is of a short list of values: which of them were there is the state. */
static bool put_unique(struct array *a, uint32_t from, uint32_t to)
{
    struct reader *r = a->r;
    struct compile *c = r->c;
    struct schema_list set = {0};
    struct leaf *l;
    json_val *value[UNIQUE_MAX];
    uint32_t n_leaves, n = 0, *at;

    ask_item(a, a->n_prefix, &set);
    l = schema_leaves(r, set.at, set.n, &n_leaves);
    for (uint32_t i = 0; i < n_leaves; i++) {
        json_val **v;
        uint32_t k;

        if (!schema_values(r, &l[i], &v, &k) || n + k > UNIQUE_MAX)
            return false;
        for (uint32_t j = 0; j < k; j++) {
            bool known = false;
            for (uint32_t m = 0; m < n; m++)
                known |= json_same(value[m], v[j]);
            if (!known)
                value[n++] = v[j];
        }
    }
    if (!n_leaves || a->n_prefix || a->contains)
        return false;
    at = compile_alloc(c, (size_t)1 << n, sizeof *at);
    if (!at)
        return true;
    for (uint32_t i = 0; i < 1u << n; i++)
        at[i] = nfa_state(c);
    nfa_eps(c, from, at[0]);
    for (uint32_t i = 0; i < 1u << n && c->rc >= 0; i++) {
        uint32_t count = (uint32_t)__builtin_popcount(i), next = at[i];

        if (count >= a->min && count <= a->max)
            nfa_eps(c, at[i], to);
        if (count >= a->max)
            continue;
        if (i) {
            next = nfa_state(c);
            json_mark(c, ',', GAP_COMMA, at[i], next);
        }
        for (uint32_t k = 0; k < n; k++)
            if (!(i >> k & 1))
                schema_put_value(r, value[k], next, at[i | 1u << k]);
    }
    return true;
}

/* Items one by one, counted up to `last`; and those that `contains` counts. */
static void put_counted(struct array *a, uint32_t from, uint32_t to)
{
    struct reader *r = a->r;
    struct compile *c = r->c;
    const struct contains *k = a->contains;
    uint32_t last = FST_MAX(FST_MAX(a->n_prefix, a->min), 1), cap, *at, width;

    if (a->max < GRAMMAR_INF)
        last = FST_MAX(last, a->max);
    last = FST_MAX(last, k->from + 1);
    cap = k->max < GRAMMAR_INF ? FST_MAX(k->min, k->max) : k->min;
    if ((uint64_t)(last + 1) * (cap + 1) > GRID_MAX) {
        compile_fail(c, FST_EBUDGET, "%s: too many items to count for contains", path_of(a->l));
        return;
    }
    width = cap + 1;
    at = compile_alloc(c, (size_t)(last + 1) * width, sizeof *at);
    if (!at)
        return;
    for (uint32_t i = 0; i < (last + 1) * width; i++)
        at[i] = nfa_state(c);
    nfa_eps(c, from, at[0]);
    for (uint32_t i = 0; i <= last && c->rc >= 0; i++) {
        struct schema_list set = {0};
        uint32_t to_row = FST_MIN(i + 1, last), yes, no;
        bool counts = i >= k->from;

        if (i == last && a->max < GRAMMAR_INF && i >= a->max)
            to_row = GRAMMAR_NONE;
        ask_item(a, FST_MIN(i, a->n_prefix), &set);
        yes = counts ? item_rule(a, &set, k->schema) : 0;
        no = item_rule(a, &set, counts && k->max < GRAMMAR_INF ? r->nothing : NULL);
        for (uint32_t n = 0; n <= cap && c->rc >= 0; n++) {
            uint32_t here = at[i * width + n], next = here;

            if (i >= a->min && n >= k->min)
                nfa_eps(c, here, to);
            if (to_row == GRAMMAR_NONE || i >= a->max || is_never(&set))
                continue;
            if (i) {
                next = nfa_state(c);
                json_mark(c, ',', GAP_COMMA, here, next);
            }
            if (counts && (k->max == GRAMMAR_INF || n < k->max))
                nfa_call(c, next, yes, 1, 1, at[to_row * width + FST_MIN(n + 1, cap)]);
            nfa_call(c, next, no, 1, 1, at[to_row * width + n]);
        }
    }
}

/* Items without `contains`: the prefix one by one, the rest as a counted call. */
static void put_items(struct array *a, uint32_t from, uint32_t to)
{
    struct reader *r = a->r;
    struct compile *c = r->c;
    struct schema_list rest = {0};
    uint32_t at = from, more, b, item;

    for (uint32_t i = 0; i < a->n_prefix && c->rc >= 0; i++) {
        struct schema_list set = {0};
        uint32_t next = nfa_state(c), value = i ? nfa_state(c) : at;

        if (i >= a->min)
            nfa_eps(c, at, to);
        ask_item(a, i, &set);
        if (i >= a->max || is_never(&set))
            return;
        if (i)
            json_mark(c, ',', GAP_COMMA, at, value);
        nfa_call(c, value, schema_rule(r, set.at, set.n), 1, 1, next);
        at = next;
    }
    if (a->n_prefix >= a->min)
        nfa_eps(c, at, to);
    ask_item(a, a->n_prefix, &rest);
    if (a->max <= a->n_prefix || is_never(&rest) || c->rc < 0)
        return;
    item = schema_rule(r, rest.at, rest.n);
    more = rule_new(c, path_of(a->l));
    b = nfa_state(c);
    if (c->rc < 0)
        return;
    json_mark(c, ',', GAP_COMMA, c->rule[more].start, b);
    nfa_call(c, b, item, 1, 1, c->rule[more].end);
    {
        uint32_t done = a->n_prefix, min, max;

        if (!done) {
            b = nfa_state(c);
            nfa_call(c, at, item, 1, 1, b);
            at = b;
            done = 1;
        }
        min = a->min > done ? a->min - done : 0;
        max = a->max < GRAMMAR_INF ? a->max - done : GRAMMAR_INF;
        nfa_call(c, at, more, min, max, to);
    }
}

void schema_array(struct reader *r, const struct leaf *l, uint32_t from, uint32_t to)
{
    struct compile *c = r->c;
    struct array a = {.r = r, .l = l};
    uint32_t open, in, out, end;

    if (!find_items(&a))
        return;
    open = nfa_state(c);
    in = nfa_state(c);
    out = nfa_state(c);
    end = nfa_state(c);
    nfa_bytes(c, from, '[', '[', open);
    json_gap(c, GAP_INSIDE, false, open, in);
    if (a.unique && a.max > 1 && !put_unique(&a, in, out)) {
        if (!schema_refuse(r, path_of(l), "uniqueItems",
                           "only for items of an enumeration of at most 10 values"))
            return;
        a.unique = false;
    }
    if (!a.unique || a.max <= 1) {
        if (a.contains)
            put_counted(&a, in, out);
        else
            put_items(&a, in, out);
    }
    json_gap(c, GAP_INSIDE, true, out, end);
    nfa_bytes(c, end, ']', ']', to);
}
