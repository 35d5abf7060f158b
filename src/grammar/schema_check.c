/* schema_check.c - does a value satisfy a schema: for values that the schema itself names (enum,
 * const) and for names of properties.  Numbers are compared as doubles. */
#include <math.h>

#include "grammar/schema.h"
#include "base/number.h"
#include "base/utf8.h"

static uint32_t type_of(json_val *v)
{
    double x;

    switch (json_type_of(v)) {
    case JSON_NULL:
        return T_NULL;
    case JSON_FALSE:
    case JSON_TRUE:
        return T_BOOLEAN;
    case JSON_NUMBER:
        return json_real(v, &x) && floor(x) == x ? T_INTEGER : T_FRACTION;
    case JSON_STRING:
        return T_STRING;
    case JSON_ARRAY:
        return T_ARRAY;
    default:
        return T_OBJECT;
    }
}

static bool check_number(const struct schema *s, double x)
{
    for (uint32_t i = 0; i < s->n_limits; i++) {
        double n = number_parse(s->limit[i].number, NULL), k = floor(x / n + 0.5);
        bool ok = true;

        switch (s->limit[i].kind) {
        case LIMIT_MIN:
            ok = x >= n;
            break;
        case LIMIT_MAX:
            ok = x <= n;
            break;
        case LIMIT_ABOVE:
            ok = x > n;
            break;
        case LIMIT_BELOW:
            ok = x < n;
            break;
        case LIMIT_MULTIPLE:
        case LIMIT_NO_MULTIPLE:
            ok = (fabs(x - k * n) <= 1e-9 * fabs(n)) == (s->limit[i].kind == LIMIT_MULTIPLE);
            break;
        }
        if (!ok)
            return false;
    }
    return true;
}

static bool check_length(const struct schema *s, const char *text, size_t len)
{
    size_t n = utf8_count(text, len);

    if (n < s->length_min || n > s->length_max)
        return false;
    for (uint32_t i = 0; i < s->n_text; i++)
        if (s->text[i] && !lang_has(s->text[i], text, len))
            return false;
    return true;
}

static bool check_array(struct reader *r, const struct schema *s, json_val *v, int nest)
{
    size_t n = json_count(v);

    if (n < s->items_min || n > s->items_max)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct schema *x = i < s->prefix.n ? s->prefix.at[i] : s->items;
        if (x && !schema_check(r, x, json_at(v, i), nest))
            return false;
        for (size_t k = 0; s->unique && k < i; k++)
            if (json_same(json_at(v, i), json_at(v, k)))
                return false;
    }
    for (uint32_t k = 0; k < s->n_contains; k++) {
        uint32_t found = 0;
        for (size_t i = s->contains[k].from; i < n; i++)
            found += schema_check(r, s->contains[k].schema, json_at(v, i), nest);
        if (found < s->contains[k].min || found > s->contains[k].max)
            return false;
    }
    return true;
}

static bool check_object(struct reader *r, const struct schema *s, json_val *v, int nest)
{
    size_t n = json_count(v), len;
    const char *name;

    if (n < s->properties_min || n > s->properties_max)
        return false;
    for (uint32_t i = 0; i < s->n_required; i++)
        if (!json_get(v, s->required[i].name))
            return false;
    for (size_t i = 0; i < n; i++) {
        json_val *x = json_member(v, i, &name, &len);
        bool named = false;

        for (uint32_t k = 0; k < s->n_properties; k++) {
            const struct property *p = &s->property[k];
            if (p->name ? p->len != len || memcmp(p->name, name, len) != 0
                        : !lang_has(p->pattern, name, len))
                continue;
            named = true;
            if (!schema_check(r, p->schema, x, nest))
                return false;
        }
        if (!named && s->additional && !schema_check(r, s->additional, x, nest))
            return false;
        if (s->names && !schema_check_text(r, s->names, name, len, nest))
            return false;
    }
    return true;
}

/* Everything but what depends on the kind of value. */
static bool check_rest(struct reader *r, const struct schema *s, json_val *v, const char *text,
                       size_t len, int nest)
{
#define HOLDS(x) (v ? schema_check(r, x, v, nest) : schema_check_text(r, x, text, len, nest))
    for (uint32_t i = 0; i < s->all.n; i++)
        if (!HOLDS(s->all.at[i]))
            return false;
    for (uint32_t i = 0; i < s->no.n; i++)
        if (HOLDS(s->no.at[i]))
            return false;
    for (uint32_t i = 0; i < s->n_any; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < s->any[i].n; k++)
            n += HOLDS(s->any[i].at[k]);
        if (!n || (n > 1 && s->any[i].one && !r->c->opts.lenient))
            return false;
    }
#undef HOLDS
    return true;
}

static bool too_deep(struct reader *r, const struct schema *s, int nest)
{
    if (nest > GRAMMAR_NEST_MAX)
        compile_fail(r->c, FST_EBUDGET, "%s: schemas nest too deeply", s->path);
    return !compile_work(r->c, 4);
}

bool schema_check(struct reader *r, const struct schema *s, json_val *v, int nest)
{
    bool found = !s->has_values;

    for (uint32_t i = 0; i < s->n_values && !found && compile_work(r->c, 1); i++)
        found = json_same(s->values[i], v);
    return found && schema_check_listed(r, s, v, nest);
}

bool schema_check_listed(struct reader *r, const struct schema *s, json_val *v, int nest)
{
    uint32_t type = type_of(v);
    size_t len = 0;
    const char *text = json_string(v, &len);
    double x = 0;

    if (too_deep(r, s, ++nest) || s->never || !(s->types & type))
        return false;
    for (uint32_t i = 0; i < s->n_not_values; i++)
        if (json_same(s->not_values[i], v))
            return false;
    if ((type & T_NUMBER) && s->n_limits && (!json_real(v, &x) || !check_number(s, x)))
        return false;
    if (type == T_STRING && !check_length(s, text, len))
        return false;
    if (type == T_ARRAY && !check_array(r, s, v, nest))
        return false;
    if (type == T_OBJECT && !check_object(r, s, v, nest))
        return false;
    return check_rest(r, s, v, NULL, 0, nest);
}

bool schema_check_text(struct reader *r, const struct schema *s, const char *text, size_t len,
                       int nest)
{
    bool found = !s->has_values;

    if (too_deep(r, s, ++nest) || s->never || !(s->types & T_STRING))
        return false;
    for (uint32_t i = 0; i < s->n_values + s->n_not_values; i++) {
        bool no = i >= s->n_values;
        size_t n;
        const char *t = json_string(no ? s->not_values[i - s->n_values] : s->values[i], &n);
        bool same = t && n == len && memcmp(t, text, len) == 0;

        if (no && same)
            return false;
        found |= !no && same;
    }
    return found && check_length(s, text, len) && check_rest(r, s, NULL, text, len, nest);
}
