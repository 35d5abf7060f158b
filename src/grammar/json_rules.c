/* json_rules.c - JSON itself as rules, with the blanks that the options allow.
 *
 * Blanks are bounded everywhere, since a model that likes one blank after the other would never end:
 * one after ':' and ',', or a few (opts.space_max) in every gap. */
#include "grammar/schema.h"

static uint32_t gap_rule(struct compile *c)
{
    static const char blank[] = " \t\n\r";

    if (c->json_gap == GRAMMAR_NONE) {
        c->json_gap = rule_new(c, "blanks");
        for (size_t i = 0; i < 4 && c->rc >= 0; i++)
            nfa_bytes(c, c->rule[c->json_gap].start, blank[i], blank[i], c->rule[c->json_gap].end);
    }
    return c->json_gap;
}

void json_gap(struct compile *c, enum json_gap kind, bool before, uint32_t from, uint32_t to)
{
    if (c->opts.space == GRAMMAR_SPACE_ANY) {
        nfa_call(c, from, gap_rule(c), 0, (uint32_t)c->opts.space_max, to);
        return;
    }
    nfa_eps(c, from, to);
    if (c->opts.space == GRAMMAR_SPACE_ONE && kind != GAP_INSIDE && !before)
        nfa_bytes(c, from, ' ', ' ', to);
}

void json_mark(struct compile *c, char mark, enum json_gap kind, uint32_t from, uint32_t to)
{
    uint32_t a = nfa_state(c), b = nfa_state(c);

    json_gap(c, kind, true, from, a);
    nfa_bytes(c, a, mark, mark, b);
    json_gap(c, kind, false, b, to);
}

void json_text(struct compile *c, uint32_t from, const char *s, size_t len, uint32_t to)
{
    struct buf b = {0};

    json_put_string(&b, s, len);
    if (b.failed)
        compile_fail(c, FST_ENOMEM, "grammar: out of memory");
    else
        nfa_text(c, from, b.data, b.len, to);
    buf_release(&b);
}

static void hex(struct compile *c, uint32_t from, const char *digits, uint32_t to)
{
    for (; *digits; digits++) {
        nfa_bytes(c, from, *digits, *digits, to);
        if (*digits >= 'a')
            nfa_bytes(c, from, *digits - 32, *digits - 32, to);
    }
}

uint32_t json_char_rule(struct compile *c)
{
    static const char any[] = "0123456789abcdef";
    uint32_t from, to, esc, u, two, one, d, high, low[5], last;

    if (c->json_char != GRAMMAR_NONE)
        return c->json_char;
    c->json_char = rule_new(c, "character");
    if (c->rc < 0)
        return c->json_char;
    from = c->rule[c->json_char].start;
    to = c->rule[c->json_char].end;
    esc = nfa_state(c);
    u = nfa_state(c);
    two = nfa_state(c);
    one = nfa_state(c);
    last = nfa_state(c);
    text_range(c, TEXT_JSON, from, 0x20, '"' - 1, to);
    text_range(c, TEXT_JSON, from, '"' + 1, '\\' - 1, to);
    text_range(c, TEXT_JSON, from, '\\' + 1, LANG_CP_MAX, to);
    nfa_bytes(c, from, '\\', '\\', esc);
    for (const char *s = "\"\\/bfnrt"; *s; s++)
        nfa_bytes(c, esc, *s, *s, to);
    nfa_bytes(c, esc, 'u', 'u', u);
    /* \uXXXX, but the halves of a pair only as a pair */
    hex(c, u, "0123456789abcef", two);
    hex(c, two, any, one);
    d = nfa_state(c);
    hex(c, u, "d", d);
    hex(c, d, "01234567", one);
    hex(c, one, any, last);
    hex(c, last, any, to);
    high = nfa_state(c);
    hex(c, d, "89ab", high);
    for (int i = 0; i < 5; i++)
        low[i] = nfa_state(c);
    {
        uint32_t high2 = nfa_state(c), bar = nfa_state(c);
        hex(c, high, any, high2);
        hex(c, high2, any, bar);
        nfa_text(c, bar, "\\u", 2, low[0]);
    }
    hex(c, low[0], "d", low[1]);
    hex(c, low[1], "cdef", low[2]);
    hex(c, low[2], any, low[3]);
    hex(c, low[3], any, to);
    return c->json_char;
}

uint32_t json_string_rule(struct compile *c)
{
    uint32_t a, b;

    if (c->json_string != GRAMMAR_NONE)
        return c->json_string;
    c->json_string = rule_new(c, "string");
    a = nfa_state(c);
    b = nfa_state(c);
    if (c->rc < 0)
        return c->json_string;
    nfa_bytes(c, c->rule[c->json_string].start, '"', '"', a);
    nfa_call(c, a, json_char_rule(c), 0, GRAMMAR_INF, b);
    nfa_bytes(c, b, '"', '"', c->rule[c->json_string].end);
    return c->json_string;
}

uint32_t json_number_rule(struct compile *c)
{
    static const char re[] = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]{1,3})?";
    struct regex_opts o = {.style = REGEX_RE2, .where = "number"};

    if (c->json_number != GRAMMAR_NONE)
        return c->json_number;
    c->json_number = rule_new(c, "number");
    if (c->rc >= 0)
        text_lang(c, TEXT_RAW, lang_from_regex(c, re, sizeof re - 1, &o),
                  c->rule[c->json_number].start, c->rule[c->json_number].end);
    return c->json_number;
}

/* open (element (, element)*)? close */
static uint32_t bracket_rule(struct compile *c, uint32_t *rule, const char *name, bool is_object)
{
    uint32_t a, b, again, end, value = GRAMMAR_NONE;

    if (*rule != GRAMMAR_NONE)
        return *rule;
    *rule = rule_new(c, name);
    value = json_value_rule(c);
    a = nfa_state(c);
    b = nfa_state(c);
    again = nfa_state(c);
    end = nfa_state(c);
    if (c->rc < 0)
        return *rule;
    nfa_bytes(c, c->rule[*rule].start, is_object ? '{' : '[', is_object ? '{' : '[', a);
    json_gap(c, GAP_INSIDE, false, a, end);
    json_gap(c, GAP_INSIDE, false, a, again);
    if (is_object) {
        uint32_t key = nfa_state(c), colon = nfa_state(c);
        nfa_call(c, again, json_string_rule(c), 1, 1, key);
        json_mark(c, ':', GAP_COLON, key, colon);
        nfa_call(c, colon, value, 1, 1, b);
    } else {
        nfa_call(c, again, value, 1, 1, b);
    }
    json_mark(c, ',', GAP_COMMA, b, again);
    json_gap(c, GAP_INSIDE, true, b, end);
    nfa_bytes(c, end, is_object ? '}' : ']', is_object ? '}' : ']', c->rule[*rule].end);
    return *rule;
}

uint32_t json_object_rule(struct compile *c)
{
    return bracket_rule(c, &c->json_object, "object", true);
}

uint32_t json_array_rule(struct compile *c)
{
    return bracket_rule(c, &c->json_array, "array", false);
}

uint32_t json_value_rule(struct compile *c)
{
    uint32_t from, to;

    if (c->json_value != GRAMMAR_NONE)
        return c->json_value;
    c->json_value = rule_new(c, "value");
    if (c->rc < 0)
        return c->json_value;
    from = c->rule[c->json_value].start;
    to = c->rule[c->json_value].end;
    nfa_text(c, from, "null", 4, to);
    nfa_text(c, from, "true", 4, to);
    nfa_text(c, from, "false", 5, to);
    nfa_call(c, from, json_string_rule(c), 1, 1, to);
    nfa_call(c, from, json_number_rule(c), 1, 1, to);
    nfa_call(c, from, json_object_rule(c), 1, 1, to);
    nfa_call(c, from, json_array_rule(c), 1, 1, to);
    return c->json_value;
}

enum fst_status grammar_from_json_object(struct grammar **out, const struct grammar_opts *opts)
{
    struct compile c;
    uint32_t root;
    enum fst_status rc;

    *out = NULL;
    compile_init(&c, opts);
    root = json_object_rule(&c);
    rc = c.rc < 0 ? c.rc : grammar_build(out, &c, root);
    compile_release(&c);
    return rc;
}
