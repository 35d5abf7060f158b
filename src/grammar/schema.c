/* schema.c - sets of schemas to rules.
 *
 * A value must satisfy a set (a schema, with all that allOf and $ref bring in). Expanding the set's
 * alternatives (anyOf, oneOf, what schema_read.c and schema_not.c rewrote) gives leaves: lists of
 * schemas whose own keywords all hold.  Each leaf is written as one alternative of the rule, type by
 * type.  Sets that are equal share their rule, which is also how recursion ends. */
#include "grammar/schema.h"
#include "base/hash.h"

enum { LEAVES_MAX = 512, GROUPS_MAX = 256 };

/* ---- alternatives -------------------------------------------------------------------------------- */

struct expand {
    struct reader *r;
    struct leaf *leaf;
    uint32_t n_leaves, cap;
    int nest;
};

static bool has(const struct schema_list *l, const struct schema *s)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->at[i] == s)
            return true;
    return false;
}

static struct schema_list copy(struct reader *r, const struct schema_list *l)
{
    struct schema_list out = {0};
    for (uint32_t i = 0; i < l->n; i++)
        schema_add(r, &out, l->at[i]);
    return out;
}

/* Moves `todo` into `set`; groups of alternatives are collected.  False: no value satisfies it. */
static bool settle(struct reader *r, struct schema_list *set, struct schema_list *todo,
                   const struct schema_list ***group, uint32_t *n_groups, uint32_t *cap,
                   uint32_t *types)
{
    for (uint32_t i = 0; i < todo->n; i++) {
        struct schema *s = todo->at[i];

        if (s == r->anything || has(set, s))
            continue;
        *types &= s->types;
        if (s->never || !*types || !compile_work(r->c, set->n + 1))
            return false;
        schema_add(r, set, s);
        for (uint32_t k = 0; k < s->all.n; k++)
            schema_add(r, todo, s->all.at[k]);
        for (uint32_t k = 0; k < s->no.n; k++)
            schema_add(r, todo, schema_not(r, s->no.at[k]));
        for (uint32_t k = 0; k < s->n_any; k++) {
            if (!compile_grow(r->c, group, cap, *n_groups, sizeof **group))
                return false;
            (*group)[(*n_groups)++] = &s->any[k];
        }
        if (*n_groups > GROUPS_MAX) {
            compile_fail(r->c, FST_EBUDGET, "%s: too many alternatives inside each other", s->path);
            return false;
        }
    }
    todo->n = 0;
    return r->c->rc >= 0;
}

static void expand(struct expand *x, struct schema_list set, struct schema_list todo,
                   const struct schema_list **group, uint32_t n_groups, uint32_t types)
{
    struct reader *r = x->r;
    const struct schema_list **mine = NULL;
    uint32_t n = 0, cap = 0;

    for (uint32_t i = 0; i < n_groups; i++)
        if (compile_grow(r->c, &mine, &cap, n, sizeof *mine))
            mine[n++] = group[i];
    if (!settle(r, &set, &todo, &mine, &n, &cap, &types))
        return;
    if (!n) {
        if (x->n_leaves == LEAVES_MAX) {
            compile_fail(r->c, FST_EBUDGET, "%s: more than %d alternatives once all are combined",
                         set.n ? set.at[0]->path : "#", LEAVES_MAX);
            return;
        }
        if (compile_grow(r->c, &x->leaf, &x->cap, x->n_leaves, sizeof *x->leaf))
            x->leaf[x->n_leaves++] = (struct leaf){set.at, set.n, types};
        return;
    }
    if (++x->nest > GROUPS_MAX) {
        compile_fail(r->c, FST_EBUDGET, "%s: alternatives nest too deeply", set.at[0]->path);
        return;
    }
    for (uint32_t i = 0; i < mine[0]->n && r->c->rc >= 0; i++) {
        const struct schema_list *g = mine[0];
        struct schema_list next = {0};

        schema_add(r, &next, g->at[i]);
        for (uint32_t k = 0; g->one && !r->c->opts.lenient && k < g->n; k++)
            if (k != i && !schema_disjoint(r, g->at[i], g->at[k]))
                schema_add(r, &next, schema_not(r, g->at[k]));
        expand(x, copy(r, &set), next, mine + 1, n - 1, types);
    }
    x->nest--;
}

struct leaf *schema_leaves(struct reader *r, struct schema *const *set, uint32_t n, uint32_t *n_out)
{
    struct expand x = {.r = r};
    struct schema_list todo = {0};

    for (uint32_t i = 0; i < n; i++)
        schema_add(r, &todo, set[i]);
    expand(&x, (struct schema_list){0}, todo, NULL, 0, T_ALL);
    *n_out = r->c->rc < 0 ? 0 : x.n_leaves;
    return x.leaf;
}

/* ---- what cannot both hold ------------------------------------------------------------------------ */

/* Schemas that hold where s does, without alternatives; at most `max`. */
static uint32_t certain(struct schema *s, struct schema **out, uint32_t n, uint32_t max)
{
    for (uint32_t i = 0; i < n; i++)
        if (out[i] == s)
            return n;
    if (n == max)
        return n;
    out[n++] = s;
    for (uint32_t i = 0; i < s->all.n; i++)
        n = certain(s->all.at[i], out, n, max);
    for (uint32_t i = 0; i < s->n_any; i++) /* a list of one is no alternative */
        if (s->any[i].n == 1)
            n = certain(s->any[i].at[0], out, n, max);
    return n;
}

static bool disjoint(struct reader *r, struct schema *a, struct schema *b, int nest)
{
    struct schema *x[32], *y[32];
    uint32_t nx = certain(a, x, 0, 32), ny = certain(b, y, 0, 32), tx = T_ALL, ty = T_ALL;

    if (!compile_work(r->c, nx * ny + 1) || nest > 4)
        return false;
    for (uint32_t i = 0; i < nx; i++)
        tx &= x[i]->never ? 0 : x[i]->types;
    for (uint32_t i = 0; i < ny; i++)
        ty &= y[i]->never ? 0 : y[i]->types;
    if (!(tx & ty))
        return true;
    for (uint32_t i = 0; i < nx; i++) /* each value that one names, the other refuses */
        if (x[i]->has_values) {
            bool any = false;
            for (uint32_t k = 0; k < x[i]->n_values && !any; k++)
                any = schema_check(r, b, x[i]->values[k], 0);
            if (!any)
                return true;
        }
    for (uint32_t i = 0; i < ny; i++)
        if (y[i]->has_values) {
            bool any = false;
            for (uint32_t k = 0; k < y[i]->n_values && !any; k++)
                any = schema_check(r, a, y[i]->values[k], 0);
            if (!any)
                return true;
        }
    if ((tx & ty) != T_OBJECT)
        return false;
    /* objects: a property that one requires and the other has otherwise, or not at all */
    for (int turn = 0; turn < 2; turn++) {
        struct schema **p = turn ? y : x, **q = turn ? x : y;
        uint32_t np = turn ? ny : nx, nq = turn ? nx : ny;

        for (uint32_t i = 0; i < np; i++)
            for (uint32_t k = 0; k < p[i]->n_required; k++) {
                const struct property *need = &p[i]->required[k];
                struct schema *mine = NULL;

                for (uint32_t j = 0; j < np && !mine; j++)
                    for (uint32_t m = 0; m < p[j]->n_properties && !mine; m++)
                        if (p[j]->property[m].name && p[j]->property[m].len == need->len &&
                            memcmp(p[j]->property[m].name, need->name, need->len) == 0)
                            mine = p[j]->property[m].schema;
                for (uint32_t j = 0; j < nq; j++) {
                    bool named = false;
                    for (uint32_t m = 0; m < q[j]->n_properties; m++) {
                        const struct property *o = &q[j]->property[m];
                        if (o->name
                                ? o->len != need->len || memcmp(o->name, need->name, o->len) != 0
                                : !lang_has(o->pattern, need->name, need->len))
                            continue;
                        named = true;
                        if (o->schema->never ||
                            (mine && o->name && disjoint(r, mine, o->schema, nest + 1)))
                            return true;
                    }
                    if (!named && q[j]->additional && q[j]->additional->never)
                        return true;
                }
            }
    }
    return false;
}

bool schema_disjoint(struct reader *r, struct schema *a, struct schema *b)
{
    return disjoint(r, a, b, 0);
}

/* ---- rules ---------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (struct schema *const *)a,
              y = (uintptr_t) * (struct schema *const *)b;
    return (x > y) - (x < y);
}

static bool grow_keys(struct reader *r)
{
    uint32_t n = r->key_mask ? (r->key_mask + 1) * 2 : 64;
    uint32_t *slot = compile_alloc(r->c, n, sizeof *slot);

    if (!slot)
        return false;
    for (uint32_t i = 0; i < r->n_keys; i++) {
        uint64_t h = hash64(r->key[i].set, r->key[i].n * sizeof(struct schema *), 0);
        while (slot[h & (n - 1)])
            h++;
        slot[h & (n - 1)] = i + 1;
    }
    r->key_slot = slot;
    r->key_mask = n - 1;
    return true;
}

uint32_t schema_rule(struct reader *r, struct schema *const *set, uint32_t n)
{
    struct compile *c = r->c;
    struct schema_list order = {0}, sorted;
    uint64_t h;
    uint32_t rule;

    for (uint32_t i = 0; i < n; i++)
        if (set[i] && set[i] != r->anything && !has(&order, set[i]))
            schema_add(r, &order, set[i]);
    if (!order.n || c->rc < 0)
        return json_value_rule(c);
    sorted = copy(r, &order);
    if (c->rc < 0 || (!r->key_slot && !grow_keys(r)))
        return 0;
    qsort(sorted.at, sorted.n, sizeof *sorted.at, by_address);
    h = hash64(sorted.at, sorted.n * sizeof *sorted.at, 0);
    for (; r->key_slot[h & r->key_mask]; h++) {
        const struct rule_key *k = &r->key[r->key_slot[h & r->key_mask] - 1];
        if (k->n == sorted.n && memcmp(k->set, sorted.at, sorted.n * sizeof *sorted.at) == 0)
            return k->rule;
    }
    rule = rule_new(c, order.at[0]->path);
    if (!compile_grow(c, &r->key, &r->key_cap, r->n_keys, sizeof *r->key))
        return 0;
    r->key[r->n_keys] =
        (struct rule_key){.set = sorted.at, .n = sorted.n, .rule = rule, .order = order.at};
    r->key_slot[h & r->key_mask] = ++r->n_keys;
    if (r->n_keys * 2 > r->key_mask && !grow_keys(r))
        return 0;
    return rule;
}

void schema_fill(struct reader *r)
{
    struct compile *c = r->c;

    for (uint32_t i = 0; i < r->n_keys && c->rc >= 0; i++) {
        uint32_t n, rule = r->key[i].rule;
        struct leaf *l = schema_leaves(r, r->key[i].order, r->key[i].n, &n);

        for (uint32_t k = 0; k < n && c->rc >= 0; k++)
            schema_leaf(r, &l[k], l[k].types, c->rule[rule].start, c->rule[rule].end);
    }
}

/* ---- enumerations ----------------------------------------------------------------------------------- */

bool schema_values(struct reader *r, const struct leaf *l, json_val ***out, uint32_t *n)
{
    const struct schema *first = NULL;

    *n = 0;
    for (uint32_t i = 0; i < l->n && !first; i++)
        if (l->node[i]->has_values)
            first = l->node[i];
    if (!first)
        return false;
    *out = compile_alloc(r->c, first->n_values + 1, sizeof(json_val *));
    for (uint32_t i = 0; i < first->n_values && *out && r->c->rc >= 0; i++) {
        bool ok = true;

        for (uint32_t k = 0; k < l->n && ok; k++)
            ok = l->node[k] == first ? schema_check_listed(r, first, first->values[i], 0)
                                     : schema_check(r, l->node[k], first->values[i], 0);
        if (ok)
            (*out)[(*n)++] = first->values[i];
    }
    return true;
}

void schema_put_value(struct reader *r, json_val *v, uint32_t from, uint32_t to)
{
    struct compile *c = r->c;
    bool is_object = json_type_of(v) == JSON_OBJECT;
    size_t n = json_count(v), len;
    const char *s;
    uint32_t at;

    if (!compile_work(c, 1))
        return;
    switch (json_type_of(v)) {
    case JSON_NULL:
        nfa_text(c, from, "null", 4, to);
        return;
    case JSON_TRUE:
        nfa_text(c, from, "true", 4, to);
        return;
    case JSON_FALSE:
        nfa_text(c, from, "false", 5, to);
        return;
    case JSON_NUMBER:
        s = json_number_text(v, &len);
        nfa_text(c, from, s, len, to);
        return;
    case JSON_STRING:
        s = json_string(v, &len);
        json_text(c, from, s, len, to);
        return;
    default:
        break;
    }
    at = nfa_state(c);
    nfa_text(c, from, is_object ? "{" : "[", 1, at);
    for (size_t i = 0; i < n && c->rc >= 0; i++) {
        uint32_t next = nfa_state(c), key, colon;
        json_val *x = json_at(v, i);

        if (i)
            json_mark(c, ',', GAP_COMMA, at, next);
        else
            json_gap(c, GAP_INSIDE, false, at, next);
        at = next;
        if (is_object) {
            x = json_member(v, i, &s, &len);
            key = nfa_state(c);
            colon = nfa_state(c);
            json_text(c, at, s, len, key);
            json_mark(c, ':', GAP_COLON, key, colon);
            at = colon;
        }
        next = nfa_state(c);
        schema_put_value(r, x, at, next);
        at = next;
    }
    {
        uint32_t end = nfa_state(c);
        json_gap(c, GAP_INSIDE, true, at, end);
        nfa_text(c, end, is_object ? "}" : "]", 1, to);
    }
}

/* ---- strings and numbers ------------------------------------------------------------------------------ */

const struct lang *schema_text(struct reader *r, const struct leaf *l, uint32_t *min, uint32_t *max)
{
    struct compile *c = r->c;
    const struct lang *out = NULL;

    *min = 0;
    *max = GRAMMAR_INF;
    for (uint32_t i = 0; i < l->n && c->rc >= 0; i++) {
        const struct schema *s = l->node[i];

        *min = FST_MAX(*min, s->length_min);
        *max = FST_MIN(*max, s->length_max);
        for (uint32_t k = 0; k < s->n_text; k++)
            if (s->text[k])
                out = out ? lang_and(c, out, s->text[k]) : s->text[k];
        for (uint32_t k = 0; k < s->n_not_values && c->rc >= 0; k++) {
            size_t len;
            const char *t = json_string(s->not_values[k], &len);
            const struct lang *x = t ? lang_not(c, lang_literal(c, t, len)) : NULL;
            if (x)
                out = out ? lang_and(c, out, x) : x;
        }
        if (s->has_values) { /* only where a set of texts is asked for */
            struct lang *x = lang_new(c);
            lang_state(c, x, false);
            for (uint32_t k = 0; k < s->n_values && c->rc >= 0; k++) {
                size_t len;
                const char *t = json_string(s->values[k], &len);
                if (t)
                    x = lang_or(c, x, lang_literal(c, t, len));
            }
            out = out ? lang_and(c, out, x) : x;
        }
    }
    if (*min > *max && c->rc >= 0) {
        struct lang *x = lang_new(c);
        lang_state(c, x, false);
        return c->rc < 0 ? NULL : x;
    }
    if (out && c->rc >= 0 && (*min || *max < GRAMMAR_INF))
        out = lang_and(c, out, lang_length(c, *min, *max));
    return c->rc < 0 ? NULL : out;
}

const struct lang *schema_texts(struct reader *r, struct schema *const *set, uint32_t n)
{
    struct compile *c = r->c;
    uint32_t n_leaves;
    struct leaf *l = schema_leaves(r, set, n, &n_leaves);
    struct lang *none = lang_new(c);
    const struct lang *out = none;

    lang_state(c, none, false);
    for (uint32_t i = 0; i < n_leaves && c->rc >= 0; i++) {
        uint32_t min, max;
        const struct lang *x;

        if (!(l[i].types & T_STRING))
            continue;
        x = schema_text(r, &l[i], &min, &max);
        if (!x)
            x = lang_length(c, min, max);
        out = lang_or(c, out, x);
    }
    return c->rc < 0 ? NULL : out;
}

static void put_string(struct reader *r, const struct leaf *l, uint32_t from, uint32_t to)
{
    struct compile *c = r->c;
    uint32_t min, max, a, b;
    const struct lang *t = schema_text(r, l, &min, &max);

    if (!t && !min && max == GRAMMAR_INF) {
        nfa_call(c, from, json_string_rule(c), 1, 1, to);
        return;
    }
    a = nfa_state(c);
    b = nfa_state(c);
    nfa_bytes(c, from, '"', '"', a);
    if (t)
        text_lang(c, TEXT_JSON, t, a, b);
    else
        nfa_call(c, a, json_char_rule(c), min, max, b);
    nfa_bytes(c, b, '"', '"', to);
}

static void put_number(struct reader *r, const struct leaf *l, uint32_t types, uint32_t from,
                       uint32_t to)
{
    struct compile *c = r->c;
    struct limit *limit = NULL;
    const char **not = NULL, *path = l->n ? l->node[0]->path : "#";
    uint32_t n = 0, cap = 0, n_not = 0, not_cap = 0;

    for (uint32_t i = 0; i < l->n; i++) {
        const struct schema *s = l->node[i];
        for (uint32_t k = 0; k < s->n_limits; k++)
            if (compile_grow(c, &limit, &cap, n, sizeof *limit)) {
                limit[n++] = s->limit[k];
                path = s->path;
            }
        for (uint32_t k = 0; k < s->n_not_values; k++) {
            size_t len;
            const char *t = json_number_text(s->not_values[k], &len);
            if (t && compile_grow(c, &not, &not_cap, n_not, sizeof *not ))
                not [n_not++] = compile_text(c, "%.*s", (int)FST_MIN(len, 1000), t);
        }
    }
    if (types == T_NUMBER && !n && !n_not)
        nfa_call(c, from, json_number_rule(c), 1, 1, to);
    else
        text_lang(c, TEXT_RAW, numbers_lang(r, path, types, limit, n, not, n_not), from, to);
}

/* Is this value one that a leaf's not_values rules out?  Containers cannot be ruled out. */
static bool is_ruled_out(struct reader *r, const struct leaf *l, enum json_type type)
{
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; k < l->node[i]->n_not_values; k++) {
            enum json_type t = json_type_of(l->node[i]->not_values[k]);
            if (t == type && (t == JSON_ARRAY || t == JSON_OBJECT))
                schema_refuse(r, l->node[i]->path, "not", "of a certain array or object");
            else if (t == type)
                return true;
        }
    return false;
}

void schema_leaf(struct reader *r, const struct leaf *l, uint32_t types, uint32_t from, uint32_t to)
{
    struct compile *c = r->c;
    json_val **values;
    uint32_t n;

    if (c->rc < 0)
        return;
    if (schema_values(r, l, &values, &n)) {
        for (uint32_t i = 0; i < n && c->rc >= 0; i++)
            schema_put_value(r, values[i], from, to);
        return;
    }
    if ((types & T_NULL) && !is_ruled_out(r, l, JSON_NULL))
        nfa_text(c, from, "null", 4, to);
    if ((types & T_BOOLEAN) && !is_ruled_out(r, l, JSON_TRUE))
        nfa_text(c, from, "true", 4, to);
    if ((types & T_BOOLEAN) && !is_ruled_out(r, l, JSON_FALSE))
        nfa_text(c, from, "false", 5, to);
    if (types & T_NUMBER)
        put_number(r, l, types & T_NUMBER, from, to);
    if (types & T_STRING)
        put_string(r, l, from, to);
    if ((types & T_ARRAY) && !is_ruled_out(r, l, JSON_ARRAY))
        schema_array(r, l, from, to);
    if ((types & T_OBJECT) && !is_ruled_out(r, l, JSON_OBJECT))
        schema_object(r, l, from, to);
}

enum fst_status grammar_from_schema(struct grammar **out, json_val *schema,
                                    const struct grammar_opts *opts)
{
    struct compile c;
    struct reader r;
    enum fst_status rc;
    uint32_t root = 0;

    *out = NULL;
    compile_init(&c, opts);
    if (reader_init(&r, &c, schema)) {
        struct schema *s = schema_read(&r, schema, schema, "#");
        if (c.rc >= 0)
            root = schema_rule(&r, &s, 1);
        schema_fill(&r);
    }
    if (c.rc >= 0 && c.left_out.failed)
        compile_fail(&c, FST_ENOMEM, "grammar: out of memory");
    rc = c.rc < 0 ? c.rc : grammar_build(out, &c, root);
    compile_release(&c);
    return rc;
}
