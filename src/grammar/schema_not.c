/* schema_not.c - the opposite of a schema: one of its keywords does not hold. */
#include "grammar/schema.h"

/* A new alternative for values of these types. */
static struct schema *alternative(struct reader *r, struct schema *out, uint32_t types)
{
    struct schema *s = schema_new(r, out->path);

    if (!s)
        return NULL;
    s->synthetic = true;
    s->types = types;
    schema_add(r, &out->any[0], s);
    return r->c->rc < 0 ? NULL : s;
}

static void add_limit(struct reader *r, struct schema *s, enum limit_kind kind, const char *number)
{
    if (s && compile_grow(r->c, &s->limit, &s->limit_cap, s->n_limits, sizeof *s->limit))
        s->limit[s->n_limits++] = (struct limit){kind, number};
}

static void not_numbers(struct reader *r, const struct schema *s, struct schema *out)
{
    static const enum limit_kind other[] = {LIMIT_BELOW, LIMIT_ABOVE,       LIMIT_MAX,
                                            LIMIT_MIN,   LIMIT_NO_MULTIPLE, LIMIT_MULTIPLE};

    for (uint32_t i = 0; i < s->n_limits; i++)
        add_limit(r, alternative(r, out, T_NUMBER), other[s->limit[i].kind], s->limit[i].number);
}

static void not_strings(struct reader *r, const struct schema *s, struct schema *out)
{
    struct schema *x;

    if (s->length_min && (x = alternative(r, out, T_STRING)))
        x->length_max = s->length_min - 1;
    if (s->length_max < GRAMMAR_INF && (x = alternative(r, out, T_STRING)))
        x->length_min = s->length_max + 1;
    for (uint32_t i = 0; i < s->n_text; i++)
        if ((x = alternative(r, out, T_STRING)) &&
            compile_grow(r->c, &x->text, &x->text_cap, x->n_text, sizeof *x->text))
            x->text[x->n_text++] = lang_not(r->c, s->text[i]);
}

static void add_contains(struct reader *r, struct schema *s, struct contains k)
{
    if (s && compile_grow(r->c, &s->contains, &s->contains_cap, s->n_contains, sizeof k))
        s->contains[s->n_contains++] = k;
}

static void not_arrays(struct reader *r, const struct schema *s, struct schema *out)
{
    struct schema *x;

    for (uint32_t i = 0; i < s->prefix.n; i++)
        if ((x = alternative(r, out, T_ARRAY))) {
            x->items_min = i + 1;
            for (uint32_t k = 0; k < i; k++)
                schema_add(r, &x->prefix, r->anything);
            schema_add(r, &x->prefix, schema_not(r, s->prefix.at[i]));
        }
    if (s->items)
        add_contains(r, alternative(r, out, T_ARRAY),
                     (struct contains){schema_not(r, s->items), 1, GRAMMAR_INF, s->prefix.n});
    if (s->items_min && (x = alternative(r, out, T_ARRAY)))
        x->items_max = s->items_min - 1;
    if (s->items_max < GRAMMAR_INF && (x = alternative(r, out, T_ARRAY)))
        x->items_min = s->items_max + 1;
    for (uint32_t i = 0; i < s->n_contains; i++) {
        struct contains k = s->contains[i];
        if (k.min)
            add_contains(r, alternative(r, out, T_ARRAY),
                         (struct contains){k.schema, 0, k.min - 1, k.from});
        if (k.max < GRAMMAR_INF)
            add_contains(r, alternative(r, out, T_ARRAY),
                         (struct contains){k.schema, k.max + 1, GRAMMAR_INF, k.from});
    }
    if (s->unique || s->unevaluated_items)
        schema_refuse(r, s->path, s->unique ? "uniqueItems" : "unevaluatedItems", "under not");
}

static void not_objects(struct reader *r, const struct schema *s, struct schema *out)
{
    struct schema *x;

    for (uint32_t i = 0; i < s->n_properties; i++) {
        const struct property *p = &s->property[i];
        if (!p->name) {
            schema_refuse(r, s->path, "patternProperties", "under not");
            continue;
        }
        if ((x = alternative(r, out, T_OBJECT))) {
            struct property *q = schema_property(r, x, p->name, p->len);
            schema_require(r, x, p->name, p->len);
            if (q)
                q->schema = schema_not(r, p->schema);
        }
    }
    for (uint32_t i = 0; i < s->n_required; i++)
        if ((x = alternative(r, out, T_OBJECT))) {
            struct property *q = schema_property(r, x, s->required[i].name, s->required[i].len);
            if (q)
                q->schema = r->nothing;
        }
    if (s->properties_min && (x = alternative(r, out, T_OBJECT)))
        x->properties_max = s->properties_min - 1;
    if (s->properties_max < GRAMMAR_INF && (x = alternative(r, out, T_OBJECT)))
        x->properties_min = s->properties_max + 1;
    if (s->additional)
        schema_refuse(r, s->path, "additionalProperties", "under not");
    if (s->names)
        schema_refuse(r, s->path, "propertyNames", "under not");
    if (s->unevaluated_properties)
        schema_refuse(r, s->path, "unevaluatedProperties", "under not");
}

struct schema *schema_not(struct reader *r, struct schema *s)
{
    struct schema *out, *x;

    if (!s || r->c->rc < 0)
        return r->nothing;
    if (s == r->anything || s == r->nothing)
        return s == r->anything ? r->nothing : r->anything;
    if (s->opposite)
        return s->opposite;
    if (s->never)
        return r->anything;
    if (++r->nest > GRAMMAR_NEST_MAX) {
        compile_fail(r->c, FST_EBUDGET, "%s: schemas nest too deeply", s->path);
        return r->nothing;
    }
    out = schema_new(r, s->path);
    if (!out || !schema_add_any(r, out))
        return r->nothing;
    out->synthetic = true;
    s->opposite = out; /* found by those that refer to themselves */
    out->opposite = s;
    if (s->types != T_ALL)
        alternative(r, out, T_ALL & ~s->types);
    if (s->has_values && (x = alternative(r, out, T_ALL))) {
        x->not_values = s->values;
        x->n_not_values = s->n_values;
    }
    if (s->n_not_values && (x = alternative(r, out, T_ALL))) {
        x->has_values = true;
        x->values = s->not_values;
        x->n_values = s->n_not_values;
    }
    not_numbers(r, s, out);
    not_strings(r, s, out);
    not_arrays(r, s, out);
    not_objects(r, s, out);
    for (uint32_t i = 0; i < s->all.n; i++)
        schema_add(r, &out->any[0], schema_not(r, s->all.at[i]));
    for (uint32_t i = 0; i < s->no.n; i++)
        schema_add(r, &out->any[0], s->no.at[i]);
    for (uint32_t i = 0; i < s->n_any; i++) {
        const struct schema_list *l = &s->any[i];

        if ((x = alternative(r, out, T_ALL)))
            for (uint32_t k = 0; k < l->n; k++)
                schema_add(r, &x->all, schema_not(r, l->at[k]));
        for (uint32_t k = 0; l->one && !r->c->opts.lenient && k < l->n;
             k++) /* or two of them hold */
            for (uint32_t j = 0; j < k; j++)
                if (!schema_disjoint(r, l->at[j], l->at[k]) && (x = alternative(r, out, T_ALL))) {
                    schema_add(r, &x->all, l->at[j]);
                    schema_add(r, &x->all, l->at[k]);
                }
    }
    r->nest--;
    return out;
}
