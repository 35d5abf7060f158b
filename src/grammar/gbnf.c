/* gbnf.c - llama.cpp's way of writing grammars: name ::= "text" [a-z] other ( ... ) * + ? {m,n} |
 *
 * A line end is a blank like any other; a rule ends where the next one begins. */
#include "grammar/ebnf.h"

static void blanks(struct ebnf *e)
{
    while (e->at < e->len) {
        char ch = e->s[e->at];
        if (ch == '#')
            while (e->at < e->len && e->s[e->at] != '\n')
                e->at++;
        else if (ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r' || ch == ';')
            e->at++;
        else
            break;
    }
}

/* Does a rule begin here?  Leaves `at` where it is. */
static bool is_head(struct ebnf *e, size_t *name_len)
{
    size_t at = e->at, n = ebnf_name(e, at);
    bool head;

    if (!n)
        return false;
    e->at = at + n;
    blanks(e);
    head = ebnf_is(e, "::=");
    e->at = at;
    *name_len = n;
    return head;
}

static struct term *sequence(struct ebnf *e);

static struct term *atom(struct ebnf *e)
{
    struct cp_set set = {0};
    struct term *t;
    size_t n;

    if (ebnf_is(e, "\"") || ebnf_is(e, "'"))
        return ebnf_quoted(e);
    if (ebnf_take(e, "[")) {
        struct regex_opts o = {.style = REGEX_ECMA, .where = "EBNF"};
        return regex_class(e->c, e->s, e->len, &e->at, &o, &set) ? term_set(e, &set) : NULL;
    }
    if (ebnf_take(e, ".")) {
        cp_set_add(e->c, &set, 0, LANG_CP_MAX);
        return term_set(e, &set);
    }
    if (ebnf_take(e, "(")) {
        if (ebnf_is(e, "=") || ebnf_is(e, "?")) {
            ebnf_fail(e, FST_EUNSUPPORTED, "look-ahead is not supported");
            return NULL;
        }
        if (++e->nest > GRAMMAR_NEST_MAX) {
            ebnf_fail(e, FST_EBUDGET, "parentheses nest too deeply");
            return NULL;
        }
        t = ebnf_alternatives(e, sequence);
        e->nest--;
        blanks(e);
        if (t && !ebnf_take(e, ")")) {
            ebnf_fail(e, FST_EINVAL, ") expected");
            return NULL;
        }
        return t;
    }
    n = ebnf_name(e, e->at);
    if (!n) {
        ebnf_fail(e, FST_EINVAL, "a text, a class, a rule's name or ( expected");
        return NULL;
    }
    t = term_new(e, TERM_RULE);
    if (!t)
        return NULL;
    t->rule = ebnf_rule(e, e->s + e->at, n);
    e->at += n;
    return t;
}

/* "{m}", "{m,}", "{m,n}", "{,n}" */
static struct term *counted(struct ebnf *e, struct term *t)
{
    uint32_t min = 0, max = GRAMMAR_INF;
    bool has_min;

    blanks(e);
    has_min = ebnf_number(e, &min);
    blanks(e);
    if (ebnf_take(e, ",")) {
        blanks(e);
        if (!ebnf_number(e, &max))
            max = GRAMMAR_INF;
        blanks(e);
    } else if (has_min) {
        max = min;
    }
    if (!ebnf_take(e, "}")) {
        ebnf_fail(e, FST_EINVAL, "} expected");
        return NULL;
    }
    return term_repeat(e, t, min, max);
}

static struct term *sequence(struct ebnf *e)
{
    struct term *all = term_new(e, TERM_SEQ);
    size_t n;

    for (blanks(e); e->c->rc >= 0 && e->at < e->len; blanks(e)) {
        struct term *t;

        if (ebnf_is(e, "|") || ebnf_is(e, ")") || is_head(e, &n))
            break;
        t = atom(e);
        for (;;) {
            size_t at = e->at;
            blanks(e);
            if (ebnf_take(e, "*"))
                t = term_repeat(e, t, 0, GRAMMAR_INF);
            else if (ebnf_take(e, "+"))
                t = term_repeat(e, t, 1, GRAMMAR_INF);
            else if (ebnf_take(e, "?"))
                t = term_repeat(e, t, 0, 1);
            else if (ebnf_take(e, "{"))
                t = counted(e, t);
            else {
                e->at = at;
                break;
            }
            if (!t)
                return NULL;
        }
        if (!t)
            return NULL;
        term_add(e, all, t);
    }
    return e->c->rc < 0 ? NULL : all;
}

void gbnf_read(struct ebnf *e)
{
    size_t n;

    for (blanks(e); e->c->rc >= 0 && e->at < e->len; blanks(e)) {
        uint32_t rule;
        struct term *body;

        if (!is_head(e, &n)) {
            ebnf_fail(e, FST_EINVAL, "a rule (name ::= ...) expected");
            return;
        }
        rule = ebnf_rule(e, e->s + e->at, n);
        e->at += n;
        blanks(e);
        ebnf_take(e, "::=");
        if (e->c->rc >= 0 && e->rule[rule].body) {
            ebnf_fail(e, FST_EINVAL, "rule %.*s is defined twice", (int)FST_MIN(n, 100),
                      e->rule[rule].name);
            return;
        }
        body = ebnf_alternatives(e, sequence);
        if (body)
            e->rule[rule].body = body;
        if (e->c->rc >= 0 && ebnf_is(e, ")"))
            ebnf_fail(e, FST_EINVAL, "unmatched )");
    }
}
