/* lark.c - Lark's way of writing grammars: rule: "text" TERMINAL /regex/ [ ... ] ~ 2..3 -> alias
 *
 * Texts are matched without a lexer: where Lark takes the longest terminal, here every way counts.
 * %ignore may stand before each terminal of a rule, up to four times. */
#include "grammar/ebnf.h"
#include "base/utf8.h"

static void blanks(struct ebnf *e)
{
    while (e->at < e->len) {
        char ch = e->s[e->at];
        if (ebnf_is(e, "//") || ch == '#')
            while (e->at < e->len && e->s[e->at] != '\n')
                e->at++;
        else if (ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r')
            e->at++;
        else
            break;
    }
}

/* A rule's head "?name.2:" or a directive begins here. */
static bool is_head(struct ebnf *e)
{
    size_t at = e->at, n;
    uint32_t priority;
    bool head = false;

    if (ebnf_is(e, "%"))
        return true;
    while (ebnf_take(e, "?") || ebnf_take(e, "!"))
        ;
    n = ebnf_name(e, e->at);
    if (n) {
        e->at += n;
        if (ebnf_take(e, "."))
            ebnf_number(e, &priority);
        blanks(e);
        head = ebnf_is(e, ":") || ebnf_is(e, "{");
    }
    e->at = at;
    return head;
}

static struct term *sequence(struct ebnf *e);

/* "/.../flags" */
static struct term *regex(struct ebnf *e)
{
    size_t from = ++e->at, len;
    bool in_class = false, ignore_case = false, dot_all = false;

    for (; e->at < e->len && (in_class || e->s[e->at] != '/'); e->at++) {
        if (e->s[e->at] == '\\')
            e->at++;
        else if (e->s[e->at] == '[')
            in_class = true;
        else if (e->s[e->at] == ']')
            in_class = false;
    }
    if (e->at >= e->len) {
        ebnf_fail(e, FST_EINVAL, "an expression without its closing /");
        return NULL;
    }
    len = e->at - from;
    for (e->at++; e->at < e->len && e->s[e->at] >= 'a' && e->s[e->at] <= 'z'; e->at++) {
        char flag = e->s[e->at];
        if (flag == 'i')
            ignore_case = true;
        else if (flag == 's')
            dot_all = true;
        else if (flag != 'u' && flag != 'l') {
            ebnf_fail(e, FST_EUNSUPPORTED, "flag %c of an expression is not supported", flag);
            return NULL;
        }
    }
    return term_regex(e, e->s + from, len, REGEX_RE2, ignore_case, dot_all);
}

/* A text, "..."i, or a range "a".."z". */
static struct term *text(struct ebnf *e)
{
    struct term *t = ebnf_quoted(e), *u;
    struct cp_set set = {0};

    if (!t)
        return NULL;
    if (ebnf_take(e, "..")) {
        uint32_t lo = 0, hi = 0;
        u = ebnf_is(e, "\"") ? ebnf_quoted(e) : NULL;
        if (!u || !t->len || utf8_decode(t->text, t->len, &lo) != (int)t->len || !u->len ||
            utf8_decode(u->text, u->len, &hi) != (int)u->len || lo > hi) {
            ebnf_fail(e, FST_EINVAL, "a range is written \"a\"..\"z\"");
            return NULL;
        }
        cp_set_add(e->c, &set, lo, hi);
        return term_set(e, &set);
    }
    if (ebnf_is(e, "i") && !ebnf_name(e, e->at + 1)) {
        struct term *all = term_new(e, TERM_SEQ);
        e->at++;
        for (size_t i = 0; i < t->len && all;) {
            uint32_t cp = 0;
            struct cp_set one = {0};
            i += (size_t)FST_MAX(utf8_decode(t->text + i, t->len - i, &cp), 1);
            cp_set_add(e->c, &one, cp, cp);
            cp_set_fold(e->c, &one);
            term_add(e, all, term_set(e, &one));
        }
        /* one terminal: nothing is ignored inside */
        if (all && all->n) {
            const char *name = compile_text(e->c, "text at %zu", e->at);
            uint32_t rule = name ? ebnf_rule(e, name, strlen(name)) : 0;
            if (e->c->rc < 0)
                return NULL;
            e->rule[rule].body = all;
            e->rule[rule].is_terminal = true;
            u = term_new(e, TERM_RULE);
            if (u)
                u->rule = rule;
            return u;
        }
    }
    return t;
}

static struct term *atom(struct ebnf *e)
{
    struct term *t;
    size_t n;
    bool optional = ebnf_is(e, "[");

    if (ebnf_is(e, "\""))
        return text(e);
    if (ebnf_is(e, "/"))
        return regex(e);
    if (ebnf_take(e, "(") || ebnf_take(e, "[")) {
        if (++e->nest > GRAMMAR_NEST_MAX) {
            ebnf_fail(e, FST_EBUDGET, "parentheses nest too deeply");
            return NULL;
        }
        t = ebnf_alternatives(e, sequence);
        e->nest--;
        blanks(e);
        if (t && !ebnf_take(e, optional ? "]" : ")")) {
            ebnf_fail(e, FST_EINVAL, "%s expected", optional ? "]" : ")");
            return NULL;
        }
        return optional ? term_repeat(e, t, 0, 1) : t;
    }
    n = ebnf_name(e, e->at);
    if (!n) {
        ebnf_fail(e, FST_EINVAL, "a text, an expression, a name or ( expected");
        return NULL;
    }
    if (e->at + n < e->len && e->s[e->at + n] == '{') {
        ebnf_fail(e, FST_EUNSUPPORTED, "templates are not supported");
        return NULL;
    }
    t = term_new(e, TERM_RULE);
    if (!t)
        return NULL;
    t->rule = ebnf_rule(e, e->s + e->at, n);
    e->at += n;
    return t;
}

static struct term *suffixes(struct ebnf *e, struct term *t)
{
    while (t) {
        size_t at = e->at;
        uint32_t min, max;

        if (ebnf_take(e, "*")) {
            t = term_repeat(e, t, 0, GRAMMAR_INF);
            continue;
        }
        if (ebnf_take(e, "+")) {
            t = term_repeat(e, t, 1, GRAMMAR_INF);
            continue;
        }
        if (ebnf_is(e, "?") && !is_head(e)) {
            e->at++;
            t = term_repeat(e, t, 0, 1);
            continue;
        }
        blanks(e);
        if (!ebnf_take(e, "~")) {
            e->at = at;
            return t;
        }
        blanks(e);
        if (!ebnf_number(e, &min)) {
            ebnf_fail(e, FST_EINVAL, "a number expected behind ~");
            return NULL;
        }
        max = min;
        if (ebnf_take(e, "..") && !ebnf_number(e, &max))
            max = GRAMMAR_INF;
        t = term_repeat(e, t, min, max);
    }
    return t;
}

static struct term *sequence(struct ebnf *e)
{
    struct term *all = term_new(e, TERM_SEQ);

    for (blanks(e); e->c->rc >= 0 && e->at < e->len; blanks(e)) {
        struct term *t;

        if (ebnf_take(e, "->")) {
            blanks(e);
            e->at += ebnf_name(e, e->at);
            continue;
        }
        if (ebnf_is(e, "|") || ebnf_is(e, ")") || ebnf_is(e, "]") || is_head(e))
            break;
        t = suffixes(e, atom(e));
        if (!t)
            return NULL;
        term_add(e, all, t);
    }
    return e->c->rc < 0 ? NULL : all;
}

/* Terminals of Lark's own library, as expressions. */
static const struct {
    const char *name, *re;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[Ee][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[Ee][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT",
     "[+-]?(?:[0-9]+[Ee][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[Ee][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+|[0-9]+[Ee][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[Ee][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER",
     "[+-]?(?:[0-9]+|[0-9]+[Ee][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[Ee][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z_0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

static void import_one(struct ebnf *e, const char *name, size_t len, const char *as, size_t as_len)
{
    for (size_t i = 0; i < FST_COUNT(common); i++)
        if (strlen(common[i].name) == len && memcmp(common[i].name, name, len) == 0) {
            uint32_t rule = ebnf_rule(e, as, as_len);
            struct term *t =
                term_regex(e, common[i].re, strlen(common[i].re), REGEX_RE2, false, false);
            if (!t || e->c->rc < 0)
                return;
            e->rule[rule].body = t;
            e->rule[rule].is_terminal = true;
            return;
        }
    ebnf_fail(e, FST_EUNSUPPORTED, "common.%.*s is not known", (int)FST_MIN(len, 60), name);
}

/* Behind "%import": "common.NAME", "common.NAME -> OTHER", "common (A, B)". */
static void import(struct ebnf *e)
{
    blanks(e);
    if (!ebnf_take(e, "common")) {
        ebnf_fail(e, FST_EUNSUPPORTED, "only common can be imported from");
        return;
    }
    if (ebnf_take(e, ".")) {
        const char *name = e->s + e->at, *as = name;
        size_t len = ebnf_name(e, e->at), as_len = len;

        e->at += len;
        blanks(e);
        if (ebnf_take(e, "->")) {
            blanks(e);
            as = e->s + e->at;
            as_len = ebnf_name(e, e->at);
            e->at += as_len;
        }
        import_one(e, name, len, as, as_len);
        return;
    }
    blanks(e);
    if (!ebnf_take(e, "(")) {
        ebnf_fail(e, FST_EINVAL, "%%import common.NAME expected");
        return;
    }
    for (blanks(e); e->c->rc >= 0 && !ebnf_take(e, ")"); blanks(e)) {
        size_t len = ebnf_name(e, e->at);
        if (!len) {
            ebnf_fail(e, FST_EINVAL, "a name expected");
            return;
        }
        import_one(e, e->s + e->at, len, e->s + e->at, len);
        e->at += len;
        blanks(e);
        ebnf_take(e, ",");
    }
}

static void directive(struct ebnf *e)
{
    if (ebnf_take(e, "%import")) {
        import(e);
    } else if (ebnf_take(e, "%ignore")) {
        if (!e->ignored)
            e->ignored = term_new(e, TERM_ALT);
        term_add(e, e->ignored, ebnf_alternatives(e, sequence));
    } else {
        size_t n = ebnf_name(e, e->at + 1);
        ebnf_fail(e, FST_EUNSUPPORTED, "%%%.*s is not supported", (int)FST_MIN(n, 40),
                  e->s + e->at + 1);
    }
}

void lark_read(struct ebnf *e)
{
    for (blanks(e); e->c->rc >= 0 && e->at < e->len; blanks(e)) {
        uint32_t rule, priority;
        struct term *body;
        size_t n;

        if (ebnf_is(e, "%")) {
            directive(e);
            continue;
        }
        if (!is_head(e)) {
            ebnf_fail(e, FST_EINVAL, "a rule (name: ...) expected");
            return;
        }
        while (ebnf_take(e, "?") || ebnf_take(e, "!"))
            ;
        n = ebnf_name(e, e->at);
        rule = ebnf_rule(e, e->s + e->at, n);
        if (e->c->rc < 0)
            return;
        if (e->rule[rule].body) {
            ebnf_fail(e, FST_EINVAL, "%.*s is defined twice", (int)FST_MIN(n, 100),
                      e->rule[rule].name);
            return;
        }
        e->rule[rule].is_terminal = e->s[e->at + (e->s[e->at] == '_' && n > 1)] >= 'A' &&
                                    e->s[e->at + (e->s[e->at] == '_' && n > 1)] <= 'Z';
        e->at += n;
        if (ebnf_take(e, "."))
            ebnf_number(e, &priority);
        blanks(e);
        if (!ebnf_take(e, ":")) {
            ebnf_fail(e, FST_EUNSUPPORTED, "templates are not supported");
            return;
        }
        body = ebnf_alternatives(e, sequence);
        if (body)
            e->rule[rule].body = body;
        if (e->c->rc >= 0 && (ebnf_is(e, ")") || ebnf_is(e, "]")))
            ebnf_fail(e, FST_EINVAL, "unmatched %c", e->s[e->at]);
    }
}
