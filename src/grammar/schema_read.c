/* schema_read.c - keywords of JSON Schema to struct schema.
 *
 * What other keywords can say is rewritten: if/then/else and dependentX become alternatives, const an
 * enumeration of one, definitions of older drafts (dependencies, items as a list, nullable) their
 * successors.  Annotations are read over; what constrains and cannot be kept is refused by name. */
#include "grammar/schema.h"

struct schema *schema_new(struct reader *r, const char *path)
{
    struct schema *s = compile_alloc(r->c, 1, sizeof *s);

    if (!s)
        return NULL;
    s->path = path;
    s->types = T_ALL;
    s->length_max = s->items_max = s->properties_max = GRAMMAR_INF;
    return s;
}

void schema_add(struct reader *r, struct schema_list *l, struct schema *s)
{
    if (s && compile_grow(r->c, &l->at, &l->cap, l->n, sizeof(struct schema *)))
        l->at[l->n++] = s;
}

struct schema_list *schema_add_any(struct reader *r, struct schema *s)
{
    if (!compile_grow(r->c, &s->any, &s->any_cap, s->n_any, sizeof *s->any))
        return NULL;
    s->any[s->n_any] = (struct schema_list){0};
    return &s->any[s->n_any++];
}

struct property *schema_property(struct reader *r, struct schema *s, const char *name, size_t len)
{
    if (!compile_grow(r->c, &s->property, &s->property_cap, s->n_properties, sizeof *s->property))
        return NULL;
    s->property[s->n_properties] =
        (struct property){.name = name, .len = len, .schema = r->anything};
    return &s->property[s->n_properties++];
}

void schema_require(struct reader *r, struct schema *s, const char *name, size_t len)
{
    if (compile_grow(r->c, &s->required, &s->required_cap, s->n_required, sizeof *s->required))
        s->required[s->n_required++] = (struct property){.name = name, .len = len};
}

bool schema_refuse(struct reader *r, const char *path, const char *keyword, const char *why)
{
    struct compile *c = r->c;

    if (!c->opts.lenient) {
        compile_fail(c, FST_EUNSUPPORTED, "%s: %s cannot be kept: %s", path, keyword, why);
        return false;
    }
    buf_printf(&c->left_out, "%s%s: %s", c->left_out.len ? "; " : "", path, keyword);
    return true;
}

/* ---- references ---------------------------------------------------------------------------------- */

static bool text_is(json_val *v, const char **s, size_t *len)
{
    *s = json_string(v, len);
    return *s != NULL;
}

static void add_anchor(struct reader *r, const char *id, size_t len, json_val *at, json_val *base)
{
    if (compile_grow(r->c, &r->anchor, &r->anchor_cap, r->n_anchors, sizeof *r->anchor)) {
        r->anchor[r->n_anchors].id = id;
        r->anchor[r->n_anchors].len = len;
        r->anchor[r->n_anchors].at = at;
        r->anchor[r->n_anchors++].base = base;
    }
}

static bool starts_resource(json_val *v)
{
    size_t len;
    const char *s = json_string(json_get(v, "$id"), &len);
    return s && len && *s != '#';
}

static bool one_of(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

/* All $id (base NULL) and anchors (base: the resource they are of), where schemas stand. */
static void find_anchors(struct reader *r, json_val *v, json_val *base, bool is_map)
{
    static const char *const key[] = {"$anchor", "$dynamicAnchor"};
    static const char *const maps[] = {
        "$defs",       "definitions", "properties", "patternProperties", "dependentSchemas",
        "dependencies"};
    static const char *const subs[] = {"allOf",
                                       "anyOf",
                                       "oneOf",
                                       "prefixItems",
                                       "items",
                                       "contains",
                                       "not",
                                       "if",
                                       "then",
                                       "else",
                                       "propertyNames",
                                       "additionalItems",
                                       "additionalProperties",
                                       "unevaluatedItems",
                                       "unevaluatedProperties"};
    const char *s;
    size_t len;

    if (r->c->rc < 0)
        return;
    for (size_t i = 0; json_type_of(v) == JSON_ARRAY && i < json_count(v); i++)
        find_anchors(r, json_at(v, i), base, false);
    if (json_type_of(v) != JSON_OBJECT)
        return;
    if (!is_map && starts_resource(v)) {
        base = v;
        text_is(json_get(v, "$id"), &s, &len);
        len -= s[len - 1] == '#';
        add_anchor(r, s, len, v, NULL);
    }
    for (size_t i = 0; !is_map && i < 2; i++)
        if (text_is(json_get(v, key[i]), &s, &len))
            add_anchor(r, s, len, v, base);
    for (size_t i = 0; i < json_count(v); i++) {
        json_val *x = json_member(v, i, &s, &len);

        if (is_map || one_of(s, subs, FST_COUNT(subs)))
            find_anchors(r, x, base, false);
        else if (one_of(s, maps, FST_COUNT(maps)))
            find_anchors(r, x, base, true);
    }
}

static int hex_digit(char ch)
{
    return ch >= '0' && ch <= '9'   ? ch - '0'
           : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
           : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                    : -1;
}

/* One step of a JSON pointer, "%25" and "~1" read back. */
static json_val *step_into(struct reader *r, json_val *v, const char *s, size_t len)
{
    char *key = compile_alloc(r->c, len + 1, 1);
    size_t n = 0;

    if (!key)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '%' && i + 2 < len && hex_digit(s[i + 1]) >= 0 && hex_digit(s[i + 2]) >= 0) {
            key[n++] = (char)(hex_digit(s[i + 1]) * 16 + hex_digit(s[i + 2]));
            i += 2;
        } else {
            key[n++] = s[i];
        }
    }
    len = n;
    n = 0;
    for (size_t i = 0; i < len; i++) {
        if (key[i] == '~' && i + 1 < len && (key[i + 1] == '0' || key[i + 1] == '1'))
            key[n++] = key[++i] == '0' ? '~' : '/';
        else
            key[n++] = key[i];
    }
    key[n] = 0;
    if (json_type_of(v) == JSON_ARRAY) {
        char *end;
        unsigned long i = strtoul(key, &end, 10);
        return n && !*end ? json_at(v, i) : NULL;
    }
    return json_get(v, key);
}

static struct schema *resolve(struct reader *r, const char *ref, size_t len, json_val *base,
                              const char *path)
{
    const char *hash = memchr(ref, '#', len), *f = hash ? hash + 1 : ref + len;
    size_t n_uri = hash ? (size_t)(hash - ref) : len, n_f = len - (size_t)(f - ref);
    json_val *at = n_uri ? NULL : base;

    for (uint32_t i = 0; i < r->n_anchors && !at; i++) {
        size_t n = r->anchor[i].len;
        const char *id = r->anchor[i].id;
        /* the same URI, or the relative one of a resource here */
        if (!r->anchor[i].base && n >= n_uri && memcmp(id + n - n_uri, ref, n_uri) == 0 &&
            (n == n_uri || id[n - n_uri - 1] == '/'))
            at = r->anchor[i].at;
    }
    if (!at) {
        compile_fail(r->c, FST_EUNSUPPORTED, "%s: $ref %.*s leads out of the schema", path,
                     (int)FST_MIN(len, 80), ref);
        return r->nothing;
    }
    base = at;
    if (n_f && *f != '/') {
        for (uint32_t i = 0; i < r->n_anchors; i++)
            if (r->anchor[i].base == base && r->anchor[i].len == n_f &&
                memcmp(r->anchor[i].id, f, n_f) == 0)
                return schema_read(r, r->anchor[i].at, base, path);
        at = NULL;
    }
    while (at && n_f) {
        const char *end = memchr(f + 1, '/', n_f - 1);
        size_t n = end ? (size_t)(end - f) : n_f;

        at = step_into(r, at, f + 1, n - 1);
        if (at && starts_resource(at))
            base = at;
        f += n;
        n_f -= n;
    }
    if (!at) {
        compile_fail(r->c, FST_EINVAL, "%s: $ref %.*s: there is no such place", path,
                     (int)FST_MIN(len, 80), ref);
        return r->nothing;
    }
    return schema_read(r, at, base, compile_text(r->c, "%.*s", (int)FST_MIN(len, 200), ref));
}

static void dynamic_ref(struct reader *r, struct schema *s, json_val *v, json_val *base)
{
    size_t len;
    const char *ref = json_string(v, &len);
    int n = 0;

    if (!ref)
        return;
    for (uint32_t i = 0; i < r->n_anchors && len; i++)
        n += r->anchor[i].base && r->anchor[i].len == len - 1 &&
             memcmp(r->anchor[i].id, ref + 1, len - 1) == 0;
    if (n == 1 && *ref == '#') /* nothing that could be meant instead */
        schema_add(r, &s->all, resolve(r, ref, len, base, s->path));
    else
        schema_refuse(r, s->path, "$dynamicRef", "its anchor is not the only one of its name");
}

/* ---- keywords ------------------------------------------------------------------------------------- */

struct keyword {
    struct reader *r;
    struct schema *s;
    json_val *v, *base, *all; /* value; resource; the whole schema */
    const char *name;
    const char *path; /* of the value */
};

static void wrong(const struct keyword *k, const char *want)
{
    compile_fail(k->r->c, FST_EINVAL, "%s: %s must be %s", k->s->path, k->name, want);
}

static bool count_of(const struct keyword *k, uint32_t *out)
{
    int64_t n;

    if (!json_int(k->v, &n) || n < 0) {
        wrong(k, "a whole number, 0 or more");
        return false;
    }
    *out = (uint32_t)FST_MIN(n, GRAMMAR_INF);
    return true;
}

static struct schema *sub(const struct keyword *k, json_val *v, const char *key, size_t len)
{
    return schema_read(k->r, v, k->base,
                       key ? compile_text(k->r->c, "%s/%.*s", k->path, (int)FST_MIN(len, 200), key)
                           : k->path);
}

static void read_type(const struct keyword *k)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } type[] = {{"null", T_NULL},     {"boolean", T_BOOLEAN}, {"integer", T_INTEGER},
                {"number", T_NUMBER}, {"string", T_STRING},   {"array", T_ARRAY},
                {"object", T_OBJECT}};
    bool list = json_type_of(k->v) == JSON_ARRAY;
    uint32_t bits = 0;

    for (size_t i = 0; i < (list ? json_count(k->v) : 1); i++) {
        size_t len, t = 0;
        const char *s = json_string(list ? json_at(k->v, i) : k->v, &len);

        while (s && t < FST_COUNT(type) &&
               (strlen(type[t].name) != len || memcmp(s, type[t].name, len) != 0))
            t++;
        if (!s || t == FST_COUNT(type)) {
            wrong(k, "of null, boolean, integer, number, string, array, object, or a list of them");
            return;
        }
        bits |= type[t].bits;
    }
    k->s->types &= bits;
}

static void read_values(const struct keyword *k)
{
    bool is_const = strcmp(k->name, "const") == 0;
    size_t n = is_const ? 1 : json_count(k->v);
    struct schema *s = k->s;

    if (!is_const && json_type_of(k->v) != JSON_ARRAY) {
        wrong(k, "a list");
        return;
    }
    if (s->has_values) { /* enum beside const */
        struct schema *t = schema_new(k->r, s->path);
        schema_add(k->r, &s->all, t);
        s = t;
    }
    if (!s)
        return;
    s->values = compile_alloc(k->r->c, n + 1, sizeof(json_val *));
    for (size_t i = 0; i < n && s->values; i++)
        s->values[i] = is_const ? k->v : json_at(k->v, i);
    s->n_values = (uint32_t)n;
    s->has_values = true;
}

static void read_limit(const struct keyword *k)
{
    static const char *const name[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                       "multipleOf"};
    struct schema *s = k->s;
    size_t len, i = 0;
    const char *text = json_number_text(k->v, &len);

    while (strcmp(name[i], k->name) != 0)
        i++;
    if (!text) {
        wrong(k, "a number");
    } else if (compile_grow(k->r->c, &s->limit, &s->limit_cap, s->n_limits, sizeof *s->limit)) {
        s->limit[s->n_limits++] = (struct limit){
            (enum limit_kind)i, compile_text(k->r->c, "%.*s", (int)FST_MIN(len, 1000), text)};
    }
}

static void add_text(struct reader *r, struct schema *s, const struct lang *l)
{
    if (l && compile_grow(r->c, &s->text, &s->text_cap, s->n_text, sizeof *s->text))
        s->text[s->n_text++] = l;
}

static const struct lang *pattern(const struct keyword *k, const char *s, size_t len)
{
    struct compile *c = k->r->c;
    struct regex_opts o = {.style = REGEX_ECMA, .is_search = true, .where = k->path};
    const struct lang *l = lang_from_regex(c, s, len, &o);

    if (l || c->rc != FST_EUNSUPPORTED || !c->opts.lenient)
        return l;
    c->rc = FST_OK; /* the expression cannot be kept; the schema can without it */
    schema_refuse(k->r, k->path, k->name, "");
    return NULL;
}

static void read_text(const struct keyword *k)
{
    size_t len;
    const char *s = json_string(k->v, &len);
    bool known = true;
    const struct lang *l;

    if (!s) {
        wrong(k, "a string");
        return;
    }
    if (strcmp(k->name, "pattern") == 0) {
        add_text(k->r, k->s, pattern(k, s, len));
        return;
    }
    l = format_lang(k->r->c, s, len, k->path, &known);
    if (l)
        add_text(k->r, k->s, l);
    else if (known)
        schema_refuse(k->r, k->s->path, "format",
                      compile_text(k->r->c, "%.*s is no set that is written here", (int)len, s));
    else /* an annotation, by the standard; said all the same */
        buf_printf(&k->r->c->left_out, "%s%s: format %.*s", k->r->c->left_out.len ? "; " : "",
                   k->s->path, (int)FST_MIN(len, 60), s);
}

static void read_list(const struct keyword *k)
{
    struct schema_list list = {0}, *l;

    if (json_type_of(k->v) != JSON_ARRAY || !json_count(k->v)) {
        wrong(k, "a list of schemas");
        return;
    }
    for (size_t i = 0; i < json_count(k->v) && k->r->c->rc >= 0; i++) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        schema_add(k->r, &list, sub(k, json_at(k->v, i), key, strlen(key)));
    }
    if (strcmp(k->name, "allOf") == 0) {
        for (uint32_t i = 0; i < list.n; i++)
            schema_add(k->r, &k->s->all, list.at[i]);
    } else if (strcmp(k->name, "prefixItems") == 0) {
        k->s->prefix = list;
    } else if ((l = schema_add_any(k->r, k->s))) {
        list.one = strcmp(k->name, "oneOf") == 0 && list.n > 1;
        *l = list;
    }
}

static void read_items(const struct keyword *k)
{
    json_val *more = json_get(k->all, "additionalItems");

    if (json_type_of(k->v) != JSON_ARRAY) {
        k->s->items = sub(k, k->v, NULL, 0);
        return;
    }
    /* drafts before 2020-12: a list, and additionalItems for the rest */
    for (size_t i = 0; i < json_count(k->v) && k->r->c->rc >= 0; i++) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        schema_add(k->r, &k->s->prefix, sub(k, json_at(k->v, i), key, strlen(key)));
    }
    if (more)
        k->s->items = sub(k, more, NULL, 0);
}

static void read_properties(const struct keyword *k)
{
    bool patterns = strcmp(k->name, "patternProperties") == 0;

    if (json_type_of(k->v) != JSON_OBJECT) {
        wrong(k, "an object");
        return;
    }
    for (size_t i = 0; i < json_count(k->v) && k->r->c->rc >= 0; i++) {
        const char *name;
        size_t len;
        json_val *v = json_member(k->v, i, &name, &len);
        const struct lang *l = patterns ? pattern(k, name, len) : NULL;
        struct schema *x = sub(k, v, name, len);
        struct property *p;

        if (patterns && !l)
            continue;
        p = schema_property(k->r, k->s, patterns ? NULL : name, len);
        if (!p)
            return;
        p->pattern = l;
        p->schema = x;
    }
}

static bool require_names(const struct keyword *k, struct schema *s, json_val *list)
{
    if (json_type_of(list) != JSON_ARRAY) {
        wrong(k, "a list of names");
        return false;
    }
    for (size_t i = 0; i < json_count(list); i++) {
        size_t len;
        const char *name = json_string(json_at(list, i), &len);
        if (!name) {
            wrong(k, "a list of names");
            return false;
        }
        schema_require(k->r, s, name, len);
    }
    return true;
}

/* dependentRequired, dependentSchemas, dependencies: without the property, or with what it needs. */
static void read_dependent(const struct keyword *k)
{
    if (json_type_of(k->v) != JSON_OBJECT) {
        wrong(k, "an object");
        return;
    }
    for (size_t i = 0; i < json_count(k->v) && k->r->c->rc >= 0; i++) {
        const char *name;
        size_t len;
        json_val *v = json_member(k->v, i, &name, &len);
        bool names = json_type_of(v) == JSON_ARRAY;
        struct schema *without = schema_new(k->r, k->s->path), *with;
        struct property *p;
        struct schema_list list = {0}, *l;

        if (!without)
            return;
        without->synthetic = true;
        p = schema_property(k->r, without, name, len);
        if (!p)
            return;
        p->schema = k->r->nothing;
        if (names) {
            with = schema_new(k->r, k->s->path);
            if (!with || !require_names(k, with, v))
                return;
            with->synthetic = true;
        } else {
            with = schema_new(k->r, k->s->path);
            if (!with)
                return;
            with->synthetic = true;
            schema_require(k->r, with, name, len); /* or its properties would count as seen */
            schema_add(k->r, &with->all, sub(k, v, name, len));
        }
        schema_add(k->r, &list, without);
        schema_add(k->r, &list, with);
        l = schema_add_any(k->r, k->s);
        if (l)
            *l = list;
    }
}

static void read_if(const struct keyword *k)
{
    struct reader *r = k->r;
    json_val *v_then = json_get(k->all, "then"), *v_else = json_get(k->all, "else");
    struct schema *cond, *yes, *no;
    struct schema_list list = {0}, *l;

    if (!v_then && !v_else)
        return;
    cond = sub(k, k->v, NULL, 0);
    yes = schema_new(r, k->s->path);
    no = schema_new(r, k->s->path);
    if (!yes || !no)
        return;
    schema_add(r, &yes->all, cond);
    schema_add(r, &no->no, cond);
    if (v_then)
        schema_add(r, &yes->all, schema_read(r, v_then, k->base, k->path));
    if (v_else)
        schema_add(r, &no->all, schema_read(r, v_else, k->base, k->path));
    schema_add(r, &list, yes);
    schema_add(r, &list, no);
    l = schema_add_any(r, k->s);
    if (l)
        *l = list;
}

static void read_contains(const struct keyword *k)
{
    struct schema *s = k->s;
    struct contains x = {sub(k, k->v, NULL, 0), 1, GRAMMAR_INF, 0};
    struct keyword bound = *k;

    bound.name = "minContains";
    bound.v = json_get(k->all, bound.name);
    if (bound.v && !count_of(&bound, &x.min))
        return;
    bound.name = "maxContains";
    bound.v = json_get(k->all, bound.name);
    if (bound.v && !count_of(&bound, &x.max))
        return;
    if ((x.min || x.max < GRAMMAR_INF) &&
        compile_grow(k->r->c, &s->contains, &s->contains_cap, s->n_contains, sizeof x))
        s->contains[s->n_contains++] = x;
}

static void read_count(const struct keyword *k)
{
    static const struct {
        const char *name;
        size_t at;
    } field[] = {{"minLength", offsetof(struct schema, length_min)},
                 {"maxLength", offsetof(struct schema, length_max)},
                 {"minItems", offsetof(struct schema, items_min)},
                 {"maxItems", offsetof(struct schema, items_max)},
                 {"minProperties", offsetof(struct schema, properties_min)},
                 {"maxProperties", offsetof(struct schema, properties_max)}};
    uint32_t n;

    for (size_t i = 0; i < FST_COUNT(field); i++)
        if (strcmp(field[i].name, k->name) == 0 && count_of(k, &n))
            memcpy((char *)k->s + field[i].at, &n, sizeof n);
}

static void read_one(const struct keyword *k)
{
    struct reader *r = k->r;
    struct schema *s = k->s;
    size_t len;
    const char *text;

    if (strcmp(k->name, "$ref") == 0) {
        if (!text_is(k->v, &text, &len))
            wrong(k, "a string");
        else
            schema_add(r, &s->all, resolve(r, text, len, k->base, s->path));
    } else if (strcmp(k->name, "$dynamicRef") == 0) {
        dynamic_ref(r, s, k->v, k->base);
    } else if (strcmp(k->name, "not") == 0) {
        schema_add(r, &s->no, sub(k, k->v, NULL, 0));
    } else if (strcmp(k->name, "additionalProperties") == 0) {
        s->additional = sub(k, k->v, NULL, 0);
    } else if (strcmp(k->name, "propertyNames") == 0) {
        s->names = sub(k, k->v, NULL, 0);
    } else if (strcmp(k->name, "unevaluatedProperties") == 0) {
        s->unevaluated_properties = sub(k, k->v, NULL, 0);
    } else if (strcmp(k->name, "unevaluatedItems") == 0) {
        s->unevaluated_items = sub(k, k->v, NULL, 0);
    } else if (strcmp(k->name, "required") == 0) {
        require_names(k, s, k->v);
    } else if (strcmp(k->name, "uniqueItems") == 0) {
        s->unique = json_bool(k->v, false);
    } else if (strcmp(k->name, "nullable") == 0) {
        if (json_bool(k->v, false) && s->types != T_ALL)
            s->types |= T_NULL;
    } else {
        schema_refuse(r, s->path, k->name, "it belongs to another draft");
    }
}

static const struct {
    const char *name;
    void (*read)(const struct keyword *k);
} keywords[] = {
    {"type", read_type},
    {"enum", read_values},
    {"const", read_values},
    {"minimum", read_limit},
    {"maximum", read_limit},
    {"exclusiveMinimum", read_limit},
    {"exclusiveMaximum", read_limit},
    {"multipleOf", read_limit},
    {"minLength", read_count},
    {"maxLength", read_count},
    {"minItems", read_count},
    {"maxItems", read_count},
    {"minProperties", read_count},
    {"maxProperties", read_count},
    {"pattern", read_text},
    {"format", read_text},
    {"allOf", read_list},
    {"anyOf", read_list},
    {"oneOf", read_list},
    {"prefixItems", read_list},
    {"items", read_items},
    {"properties", read_properties},
    {"patternProperties", read_properties},
    {"dependentRequired", read_dependent},
    {"dependentSchemas", read_dependent},
    {"dependencies", read_dependent},
    {"if", read_if},
    {"contains", read_contains},
    {"$ref", read_one},
    {"$dynamicRef", read_one},
    {"not", read_one},
    {"additionalProperties", read_one},
    {"propertyNames", read_one},
    {"unevaluatedProperties", read_one},
    {"unevaluatedItems", read_one},
    {"required", read_one},
    {"uniqueItems", read_one},
    {"nullable", read_one},
    {"$recursiveRef", read_one},
    {"extends", read_one},
    {"disallow", read_one},
    {"divisibleBy", read_one},
};

/* ---- one schema ------------------------------------------------------------------------------------ */

static bool grow_seen(struct reader *r)
{
    uint32_t n = r->seen_mask ? (r->seen_mask + 1) * 2 : 64, old = r->seen_mask;
    void *before = r->seen;
    __typeof__(r->seen) from = before, to = compile_alloc(r->c, n, sizeof *to);

    if (!to)
        return false;
    for (uint32_t i = 0; from && i <= old; i++) {
        uintptr_t h = (uintptr_t)from[i].v / 16;
        if (!from[i].v)
            continue;
        while (to[h & (n - 1)].v)
            h++;
        to[h & (n - 1)] = from[i];
    }
    r->seen = to;
    r->seen_mask = n - 1;
    return true;
}

bool reader_init(struct reader *r, struct compile *c, json_val *root)
{
    *r = (struct reader){.c = c, .root = root};
    r->anything = schema_new(r, "#");
    r->nothing = schema_new(r, "#");
    if (!r->anything || !r->nothing || !grow_seen(r))
        return false;
    r->nothing->never = true;
    r->nothing->types = 0;
    find_anchors(r, root, root, false);
    return c->rc >= 0;
}

struct schema *schema_read(struct reader *r, json_val *v, json_val *base, const char *path)
{
    struct schema *s;
    uintptr_t h = (uintptr_t)v / 16;

    if (r->c->rc < 0)
        return r->nothing;
    if (json_type_of(v) == JSON_TRUE || json_type_of(v) == JSON_FALSE)
        return json_bool(v, false) ? r->anything : r->nothing;
    if (json_type_of(v) != JSON_OBJECT) {
        compile_fail(r->c, FST_EINVAL, "%s: a schema must be an object or a boolean", path);
        return r->nothing;
    }
    for (; r->seen[h & r->seen_mask].v; h++)
        if (r->seen[h & r->seen_mask].v == v)
            return r->seen[h & r->seen_mask].s;
    if (++r->nest > GRAMMAR_NEST_MAX) {
        compile_fail(r->c, FST_EBUDGET, "%s: schemas nest too deeply", path);
        return r->nothing;
    }
    s = schema_new(r, path);
    if (!s)
        return r->nothing;
    r->seen[h & r->seen_mask].v = v;
    r->seen[h & r->seen_mask].s = s;
    if (++r->n_seen * 2 > r->seen_mask && !grow_seen(r))
        return r->nothing;
    if (starts_resource(v))
        base = v;
    for (size_t i = 0; i < json_count(v) && r->c->rc >= 0; i++) {
        struct keyword k = {.r = r, .s = s, .base = base, .all = v};
        size_t len, w = 0;

        k.v = json_member(v, i, &k.name, &len);
        while (w < FST_COUNT(keywords) && strcmp(keywords[w].name, k.name) != 0)
            w++;
        if (w == FST_COUNT(keywords) || !compile_work(r->c, 10))
            continue; /* annotations, and names that assert nothing */
        k.path = compile_text(r->c, "%s/%s", path, k.name);
        if (k.path)
            keywords[w].read(&k);
    }
    r->nest--;
    if (json_bool(json_get(v, "nullable"), false) && s->types != T_ALL)
        s->types |= T_NULL; /* whatever order they came in */
    return s;
}
