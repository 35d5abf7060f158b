/* ebnf.c - terms of EBNF grammars to automata. */
#include "grammar/ebnf.h"
#include "base/utf8.h"

void ebnf_fail(struct ebnf *e, enum fst_status rc, const char *fmt, ...)
{
    char text[300];
    size_t line = 1;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < e->at && i < e->len; i++)
        line += e->s[i] == '\n';
    compile_fail(e->c, rc, "EBNF: line %zu: %s", line, text);
}

struct term *term_new(struct ebnf *e, enum term_kind kind)
{
    struct term *t = compile_alloc(e->c, 1, sizeof *t);
    if (t)
        t->kind = kind;
    return t;
}

void term_add(struct ebnf *e, struct term *t, struct term *part)
{
    if (t && part && compile_grow(e->c, &t->part, &t->cap, t->n, sizeof(struct term *)))
        t->part[t->n++] = part;
}

struct term *term_repeat(struct ebnf *e, struct term *t, uint32_t min, uint32_t max)
{
    struct term *x = t ? term_new(e, TERM_REPEAT) : NULL;

    if (!x)
        return NULL;
    if (min > max)
        ebnf_fail(e, FST_EINVAL, "a repetition of at least %u and at most %u", min, max);
    term_add(e, x, t);
    x->min = min;
    x->max = max;
    return x;
}

struct term *term_text(struct ebnf *e, const char *s, size_t len)
{
    struct term *t = term_new(e, len ? TERM_TEXT : TERM_EMPTY);

    if (!t)
        return NULL;
    t->text = s;
    t->len = len;
    return t;
}

struct term *term_regex(struct ebnf *e, const char *re, size_t len, enum regex_style style,
                        bool ignore_case, bool dot_all)
{
    struct regex_opts o = {.style = style, .ignore_case = ignore_case, .where = "EBNF"};
    struct term *t = term_new(e, TERM_LANG);

    if (!t)
        return NULL;
    if (dot_all) {
        re = compile_text(e->c, "(?s)%.*s", (int)len, re);
        len += 4;
    }
    t->lang = re ? lang_from_regex(e->c, re, len, &o) : NULL;
    return t->lang ? t : NULL;
}

struct term *term_set(struct ebnf *e, struct cp_set *set)
{
    struct regex *r = compile_alloc(e->c, 1, sizeof *r);
    struct term *t = term_new(e, TERM_LANG);

    if (!r || !t)
        return NULL;
    r->kind = REGEX_SET;
    r->set = *set;
    t->lang = lang_from_tree(e->c, r, false, "EBNF");
    return t->lang ? t : NULL;
}

uint32_t ebnf_rule(struct ebnf *e, const char *name, size_t len)
{
    if (!compile_work(e->c, e->n_rules + 1))
        return 0;
    for (uint32_t i = 0; i < e->n_rules; i++)
        if (e->rule[i].len == len && memcmp(e->rule[i].name, name, len) == 0)
            return i;
    if (!compile_grow(e->c, &e->rule, &e->cap, e->n_rules, sizeof *e->rule))
        return 0;
    e->rule[e->n_rules] = (struct ebnf_rule){.name = name, .len = len};
    e->rule[e->n_rules].rule = rule_new(e->c, compile_text(e->c, "rule %.*s", (int)len, name));
    return e->n_rules++;
}

bool ebnf_is(const struct ebnf *e, const char *text)
{
    size_t n = strlen(text);
    return e->len - e->at >= n && memcmp(e->s + e->at, text, n) == 0;
}

bool ebnf_take(struct ebnf *e, const char *text)
{
    if (!ebnf_is(e, text))
        return false;
    e->at += strlen(text);
    return true;
}

size_t ebnf_name(const struct ebnf *e, size_t at)
{
    size_t n = 0;

    for (; at + n < e->len; n++) {
        char ch = e->s[at + n];
        bool letter = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_';
        if (!letter && !(n && ((ch >= '0' && ch <= '9') || ch == '-')))
            break;
    }
    return n;
}

bool ebnf_number(struct ebnf *e, uint32_t *n)
{
    uint64_t x = 0;
    size_t at = e->at;

    for (; e->at < e->len && e->s[e->at] >= '0' && e->s[e->at] <= '9'; e->at++)
        x = FST_MIN(x * 10 + (uint64_t)(e->s[e->at] - '0'), GRAMMAR_INF);
    *n = (uint32_t)x;
    return e->at > at;
}

struct term *ebnf_alternatives(struct ebnf *e, struct term *(*sequence)(struct ebnf *e))
{
    struct term *all = term_new(e, TERM_ALT);

    do
        term_add(e, all, sequence(e));
    while (e->c->rc >= 0 && ebnf_take(e, "|"));
    return e->c->rc < 0 ? NULL : all;
}

static bool hex(struct ebnf *e, int digits, uint32_t *cp)
{
    *cp = 0;
    for (int i = 0; i < digits; i++, e->at++) {
        char ch = e->at < e->len ? e->s[e->at] : 0;
        int d = ch >= '0' && ch <= '9'   ? ch - '0'
                : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                         : -1;
        if (d < 0) {
            ebnf_fail(e, FST_EINVAL, "%d hexadecimal digits expected", digits);
            return false;
        }
        *cp = *cp * 16 + (uint32_t)d;
    }
    if (*cp > LANG_CP_MAX || (*cp >= 0xd800 && *cp < 0xe000)) {
        ebnf_fail(e, FST_EINVAL, "U+%04X is no character", (unsigned)*cp);
        return false;
    }
    return true;
}

struct term *ebnf_quoted(struct ebnf *e)
{
    static const char from[] = "nrtfvb0\\\"'/[]-", to[] = "\n\r\t\f\v\b\0\\\"'/[]-";
    char quote = e->s[e->at++], *out;
    size_t n = 0, end = e->at;

    while (end < e->len && e->s[end] != quote)
        end += e->s[end] == '\\' ? 2 : 1;
    out = compile_alloc(e->c, FST_MIN(end, e->len) - e->at + 1, 1);

    while (out && e->at < e->len && e->s[e->at] != quote) {
        const char *known;
        uint32_t cp;
        int digits;

        if (e->s[e->at] != '\\') {
            int k = utf8_decode(e->s + e->at, e->len - e->at, &cp);
            if (k <= 0) {
                ebnf_fail(e, FST_EINVAL, "no UTF-8");
                return NULL;
            }
            memcpy(out + n, e->s + e->at, (size_t)k);
            n += (size_t)k;
            e->at += (size_t)k;
            continue;
        }
        if (++e->at >= e->len)
            break;
        known = e->s[e->at] ? strchr(from, e->s[e->at]) : NULL;
        digits = e->s[e->at] == 'x' ? 2 : e->s[e->at] == 'u' ? 4 : e->s[e->at] == 'U' ? 8 : 0;
        e->at++;
        if (known) {
            out[n++] = to[known - from];
        } else if (digits) {
            if (!hex(e, digits, &cp))
                return NULL;
            n += (size_t)utf8_encode(cp, out + n); /* never longer than the escape */
        } else {
            ebnf_fail(e, FST_EINVAL, "unknown escape \\%c", e->s[e->at - 1]);
            return NULL;
        }
    }
    if (out && (e->at >= e->len || e->s[e->at] != quote)) {
        ebnf_fail(e, FST_EINVAL, "a text without its closing quote");
        return NULL;
    }
    e->at++;
    return out ? term_text(e, out, n) : NULL;
}

/* ---- to automata ------------------------------------------------------------------------------------ */

static void put_term(struct ebnf *e, const struct term *t, uint32_t from, uint32_t to,
                     bool in_rule);

static void put_ignored(struct ebnf *e, uint32_t from, uint32_t to)
{
    struct compile *c = e->c;
    uint32_t rule = rule_new(c, "ignored text");

    if (c->rc < 0)
        return;
    put_term(e, e->ignored, c->rule[rule].start, c->rule[rule].end, false);
    nfa_call(c, from, rule, 0, 4, to); /* a few: a comment between blanks */
}

static void put_repeat(struct ebnf *e, const struct term *t, uint32_t from, uint32_t to,
                       bool in_rule)
{
    struct compile *c = e->c;
    uint32_t a = nfa_state(c), b = nfa_state(c), rule;

    if (t->min <= 1 && (t->max == GRAMMAR_INF || t->max == 1)) {
        nfa_eps(c, from, a);
        put_term(e, t->part[0], a, b, in_rule);
        nfa_eps(c, b, to);
        if (t->max == GRAMMAR_INF)
            nfa_eps(c, b, a);
        if (!t->min)
            nfa_eps(c, from, to);
        return;
    }
    rule = rule_new(c, "repeated part");
    if (c->rc < 0)
        return;
    put_term(e, t->part[0], c->rule[rule].start, c->rule[rule].end, in_rule);
    if (t->max)
        nfa_call(c, from, rule, t->min, t->max, to);
    else
        nfa_eps(c, from, to);
}

static void put_term(struct ebnf *e, const struct term *t, uint32_t from, uint32_t to, bool in_rule)
{
    struct compile *c = e->c;
    bool terminal = t->kind == TERM_TEXT || t->kind == TERM_LANG ||
                    (t->kind == TERM_RULE && e->rule[t->rule].is_terminal);

    if (!compile_work(c, 1))
        return;
    if (in_rule && terminal && e->ignored) {
        uint32_t a = nfa_state(c);
        put_ignored(e, from, a);
        from = a;
    }
    switch (t->kind) {
    case TERM_EMPTY:
        nfa_eps(c, from, to);
        break;
    case TERM_TEXT:
        nfa_text(c, from, t->text, t->len, to);
        break;
    case TERM_LANG:
        text_lang(c, TEXT_RAW, t->lang, from, to);
        break;
    case TERM_RULE:
        nfa_call(c, from, e->rule[t->rule].rule, 1, 1, to);
        break;
    case TERM_SEQ:
        for (uint32_t i = 0; i < t->n; i++) {
            uint32_t next = i + 1 == t->n ? to : nfa_state(c);
            put_term(e, t->part[i], from, next, in_rule);
            from = next;
        }
        if (!t->n)
            nfa_eps(c, from, to);
        break;
    case TERM_ALT:
        for (uint32_t i = 0; i < t->n; i++)
            put_term(e, t->part[i], from, to, in_rule);
        break;
    case TERM_REPEAT:
        put_repeat(e, t, from, to, in_rule);
        break;
    }
}

/* a: a x | a y | b   is   b (x | y)* */
static void put_rule(struct ebnf *e, uint32_t i)
{
    struct compile *c = e->c;
    struct ebnf_rule *r = &e->rule[i];
    uint32_t from = c->rule[r->rule].start, to = c->rule[r->rule].end, middle = nfa_state(c);
    struct term one = {.kind = TERM_ALT, .part = &r->body, .n = 1};
    const struct term *body = r->body->kind == TERM_ALT ? r->body : &one;

    nfa_eps(c, middle, to);
    for (uint32_t k = 0; k < body->n && c->rc >= 0; k++) {
        const struct term *t = body->part[k];
        struct term rest;

        if (t->kind == TERM_RULE && t->rule == i)
            continue; /* a: a */
        if (t->kind == TERM_SEQ && t->n && t->part[0]->kind == TERM_RULE && t->part[0]->rule == i) {
            rest = *t;
            rest.part++;
            rest.n--;
            put_term(e, &rest, middle, middle, !r->is_terminal);
        } else {
            put_term(e, t, from, middle, !r->is_terminal);
        }
    }
}

enum fst_status grammar_from_ebnf(struct grammar **out, const char *text, size_t len,
                                  const struct grammar_opts *opts)
{
    struct compile c;
    struct ebnf e = {.c = &c, .s = text, .len = len};
    bool is_gbnf = memmem(text, len, "::=", 3) != NULL;
    const char *first = is_gbnf ? "root" : "start";
    uint32_t root = GRAMMAR_NONE, top;
    enum fst_status rc;

    *out = NULL;
    compile_init(&c, opts);
    if (len > 1 << 20)
        compile_fail(&c, FST_EBUDGET, "EBNF: longer than 1 MiB");
    else if (is_gbnf)
        gbnf_read(&e);
    else
        lark_read(&e);
    for (uint32_t i = 0; i < e.n_rules && c.rc >= 0; i++) {
        if (e.rule[i].len == strlen(first) && memcmp(e.rule[i].name, first, e.rule[i].len) == 0)
            root = i;
        if (!e.rule[i].body)
            compile_fail(&c, FST_EINVAL, "EBNF: rule %.*s is not defined",
                         (int)FST_MIN(e.rule[i].len, 100), e.rule[i].name);
        else
            put_rule(&e, i);
    }
    if (c.rc >= 0 && root == GRAMMAR_NONE)
        compile_fail(&c, FST_EINVAL, "EBNF: there is no rule %s", first);
    top = rule_new(&c, "grammar");
    if (c.rc >= 0) {
        uint32_t a = nfa_state(&c);
        nfa_call(&c, c.rule[top].start, e.rule[root].rule, 1, 1, a);
        if (e.ignored)
            put_ignored(&e, a, c.rule[top].end);
        else
            nfa_eps(&c, a, c.rule[top].end);
    }
    rc = c.rc < 0 ? c.rc : grammar_build(out, &c, top);
    compile_release(&c);
    return rc;
}
