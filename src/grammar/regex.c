/* regex.c - the syntax of regular expressions: RE2's, and ECMA-262's for patterns in schemas.
 *
 * What a set of texts cannot say (look-around, back-references, word borders) is refused by name.
 * Greedy, lazy and named or numbered groups make no difference to which texts match. */
#include "grammar/regex.h"
#include "base/utf8.h"

struct parser {
    struct compile *c;
    const char *s;
    size_t len, at;
    const struct regex_opts *o;
    bool ignore_case, dot_all;
    int nest;
};

static struct regex *parse_alt(struct parser *p);

static void fail(struct parser *p, enum fst_status rc, const char *what)
{
    compile_fail(p->c, rc, "%s: at byte %zu: %s", p->o->where, p->at, what);
}

static bool is_next(const struct parser *p, const char *text)
{
    size_t n = strlen(text);
    return p->len - p->at >= n && memcmp(p->s + p->at, text, n) == 0;
}

static bool take(struct parser *p, const char *text)
{
    if (!is_next(p, text))
        return false;
    p->at += strlen(text);
    return true;
}

static struct regex *node(struct parser *p, enum regex_kind kind)
{
    struct regex *r = compile_alloc(p->c, 1, sizeof *r);
    if (r)
        r->kind = kind;
    return r;
}

static struct regex *join(struct parser *p, enum regex_kind kind, struct regex *a, struct regex *b)
{
    struct regex *r = a && b ? node(p, kind) : NULL;

    if (!r)
        return NULL;
    r->left = a;
    r->right = b;
    return r;
}

/* One character as it stands; false after a failure. */
static bool take_char(struct parser *p, uint32_t *cp)
{
    int n = utf8_decode(p->s + p->at, p->len - p->at, cp);

    if (n <= 0) {
        fail(p, FST_EINVAL, "no UTF-8");
        return false;
    }
    p->at += (size_t)n;
    return true;
}

static bool take_hex(struct parser *p, int n_min, int n_max, uint32_t *out)
{
    uint32_t x = 0;
    int n = 0;

    for (; n < n_max && p->at < p->len; n++, p->at++) {
        char ch = p->s[p->at];
        int d = ch >= '0' && ch <= '9'   ? ch - '0'
                : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                         : -1;
        if (d < 0)
            break;
        x = x * 16 + (uint32_t)d;
    }
    *out = x;
    if (n < n_min || x > LANG_CP_MAX) {
        fail(p, FST_EINVAL, "hexadecimal digits expected, of a code point");
        return false;
    }
    return true;
}

/* \d \w \s and their opposites. */
static bool short_class(struct parser *p, char letter, struct cp_set *out)
{
    static const uint32_t ecma_space[][2] = {
        {9, 13},          {32, 32},         {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    struct cp_set s = {0};
    char low = (char)(letter | 0x20);

    if (low == 'd') {
        cp_set_add(p->c, &s, '0', '9');
    } else if (low == 'w') {
        cp_set_add_posix(p->c, &s, "word", 4, false);
    } else if (low != 's') {
        return false;
    } else if (p->o->style == REGEX_ECMA) {
        for (size_t i = 0; i < FST_COUNT(ecma_space); i++)
            cp_set_add(p->c, &s, ecma_space[i][0], ecma_space[i][1]);
    } else {
        cp_set_add(p->c, &s, '\t', '\n');
        cp_set_add(p->c, &s, '\f', '\r');
        cp_set_add(p->c, &s, ' ', ' ');
    }
    cp_set_tidy(&s);
    if (letter != low)
        cp_set_invert(p->c, &s);
    for (uint32_t i = 0; i < s.n; i++)
        cp_set_add(p->c, out, s.range[i].lo, s.range[i].hi);
    return true;
}

static bool property(struct parser *p, bool invert, struct cp_set *out)
{
    const char *name = p->s + p->at, *end;
    size_t len = 1;

    if (take(p, "{")) {
        name = p->s + p->at;
        end = memchr(name, '}', p->len - p->at);
        if (!end) {
            fail(p, FST_EINVAL, "} expected");
            return false;
        }
        len = (size_t)(end - name);
        p->at += len + 1;
        if (len && *name == '^') {
            invert = !invert;
            name++;
            len--;
        }
    } else if (p->at < p->len) {
        p->at++;
    } else {
        len = 0;
    }
    if (cp_set_add_named(p->c, out, name, len, invert))
        return true;
    compile_fail(p->c, FST_EUNSUPPORTED, "%s: \\p{%.*s} is no general category or script",
                 p->o->where, (int)FST_MIN(len, 40), name);
    return false;
}

/* Behind a backslash: a character (true, *cp) or a class (true, *is_class, added to out). */
static bool escape(struct parser *p, bool in_class, uint32_t *cp, bool *is_class,
                   struct cp_set *out)
{
    static const char from[] = "tnrfv", to[] = "\t\n\r\f\v";
    const char *known;
    char ch;

    *is_class = false;
    if (p->at == p->len) {
        fail(p, FST_EINVAL, "a backslash ends the expression");
        return false;
    }
    ch = p->s[p->at];
    known = ch ? strchr(from, ch) : NULL;
    if (known) {
        p->at++;
        *cp = (uint8_t)to[known - from];
        return true;
    }
    if (ch && strchr("dwsDWS", ch)) {
        p->at++;
        *is_class = true;
        return short_class(p, ch, out);
    }
    if (ch == 'p' || ch == 'P') {
        p->at++;
        *is_class = true;
        return property(p, ch == 'P', out);
    }
    if (take(p, "x{") || take(p, "u{")) {
        if (!take_hex(p, 1, 6, cp))
            return false;
        if (take(p, "}"))
            return true;
        fail(p, FST_EINVAL, "} expected");
        return false;
    }
    if (take(p, "x"))
        return take_hex(p, 2, 2, cp);
    if (take(p, "u")) {
        uint32_t low;
        size_t at;
        if (!take_hex(p, 4, 4, cp))
            return false;
        at = p->at;
        if (*cp >= 0xd800 && *cp < 0xdc00 && take(p, "\\u") && take_hex(p, 4, 4, &low)) {
            if (low >= 0xdc00 && low < 0xe000)
                *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
            else
                p->at = at;
        }
        return p->c->rc >= 0;
    }
    if (ch == 'a' && p->o->style == REGEX_RE2) {
        p->at++;
        *cp = 7;
        return true;
    }
    if (ch == 'c' && p->len - p->at >= 2 && ((p->s[p->at + 1] | 0x20) >= 'a') &&
        ((p->s[p->at + 1] | 0x20) <= 'z')) {
        *cp = (uint32_t)(p->s[p->at + 1] & 0x1f);
        p->at += 2;
        return true;
    }
    if (ch == '0') {
        p->at++;
        *cp = 0;
        return true;
    }
    if (ch == 'b' && in_class) {
        p->at++;
        *cp = 8;
        return true;
    }
    if (ch >= '1' && ch <= '9') {
        fail(p, FST_EUNSUPPORTED, "back-references are not supported");
        return false;
    }
    if (ch == 'b' || ch == 'B') {
        fail(p, FST_EUNSUPPORTED, "word borders (\\b, \\B) are not supported");
        return false;
    }
    if (ch == 'k') {
        fail(p, FST_EUNSUPPORTED, "named back-references are not supported");
        return false;
    }
    if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')) {
        fail(p, FST_EINVAL, "unknown escape");
        return false;
    }
    return take_char(p, cp);
}

static bool class_item(struct parser *p, uint32_t *cp, bool *is_class, struct cp_set *out)
{
    *is_class = false;
    if (p->o->style == REGEX_RE2 && take(p, "[:")) {
        const char *name = p->s + p->at;
        bool invert = take(p, "^");
        size_t n = 0;

        name += invert;
        while (p->at + n < p->len && name[n] >= 'a' && name[n] <= 'z')
            n++;
        *is_class = true;
        if (!cp_set_add_posix(p->c, out, name, n, invert)) {
            fail(p, FST_EINVAL, "unknown class [:...:]");
            return false;
        }
        p->at += n;
        if (take(p, ":]"))
            return true;
        fail(p, FST_EINVAL, ":] expected");
        return false;
    }
    if (take(p, "\\"))
        return escape(p, true, cp, is_class, out);
    return take_char(p, cp);
}

static bool parse_class(struct parser *p, struct cp_set *out)
{
    bool invert = take(p, "^"), first = true;

    for (;; first = false) {
        uint32_t lo = 0, hi = 0;
        bool is_class;

        if (p->at >= p->len) {
            fail(p, FST_EINVAL, "] expected");
            return false;
        }
        /* "[]a]" holds a bracket in RE2's syntax; in ECMA's the class ends */
        if (!(first && p->o->style == REGEX_RE2) && take(p, "]"))
            break;
        if (!class_item(p, &lo, &is_class, out))
            return false;
        if (is_class)
            continue;
        hi = lo;
        if (is_next(p, "-") && !is_next(p, "-]")) {
            size_t at = p->at++;
            if (p->at >= p->len || !class_item(p, &hi, &is_class, out))
                return false;
            if (is_class) { /* [a-\d]: the line stands for itself */
                cp_set_add(p->c, out, '-', '-');
                hi = lo;
            } else if (hi < lo) {
                p->at = at;
                fail(p, FST_EINVAL, "the range is upside down");
                return false;
            }
        }
        cp_set_add(p->c, out, lo, hi);
    }
    cp_set_tidy(out);
    if (p->ignore_case)
        cp_set_fold(p->c, out);
    if (invert)
        cp_set_invert(p->c, out);
    return compile_work(p->c, out->n);
}

bool regex_class(struct compile *c, const char *re, size_t len, size_t *at,
                 const struct regex_opts *o, struct cp_set *out)
{
    struct parser p = {.c = c, .s = re, .len = len, .at = *at, .o = o};
    bool ok;

    p.ignore_case = o->ignore_case;
    ok = parse_class(&p, out);
    *at = p.at;
    return ok;
}

static struct regex *one_char(struct parser *p, uint32_t cp)
{
    struct regex *r = node(p, REGEX_SET);

    if (!r)
        return NULL;
    cp_set_add(p->c, &r->set, cp, cp);
    if (p->ignore_case)
        cp_set_fold(p->c, &r->set);
    return r;
}

static struct regex *dot(struct parser *p)
{
    struct regex *r = node(p, REGEX_SET);

    if (!r)
        return NULL;
    if (!p->dot_all) {
        cp_set_add(p->c, &r->set, '\n', '\n');
        if (p->o->style == REGEX_ECMA) {
            cp_set_add(p->c, &r->set, '\r', '\r');
            cp_set_add(p->c, &r->set, 0x2028, 0x2029);
        }
    }
    cp_set_invert(p->c, &r->set);
    return r;
}

/* Behind "(?": flags up to ':' or ')'; false after a failure.  *scoped: a group follows. */
static bool flags(struct parser *p, bool *scoped)
{
    bool on = true;

    for (; p->at < p->len; p->at++) {
        char ch = p->s[p->at];
        if (ch == ':' || ch == ')') {
            *scoped = ch == ':';
            p->at++;
            return true;
        }
        if (ch == '-')
            on = false;
        else if (ch == 'i')
            p->ignore_case = on;
        else if (ch == 's')
            p->dot_all = on;
        else if (ch == 'U')
            continue; /* greediness: the same texts */
        else {
            fail(p, ch == 'm' || ch == 'x' ? FST_EUNSUPPORTED : FST_EINVAL,
                 "of flags only i, s and U are supported");
            return false;
        }
    }
    fail(p, FST_EINVAL, ") expected");
    return false;
}

static struct regex *group(struct parser *p)
{
    bool ignore_case = p->ignore_case, dot_all = p->dot_all, scoped = true;
    struct regex *r;

    if (is_next(p, "?=") || is_next(p, "?!") || is_next(p, "?<=") || is_next(p, "?<!")) {
        fail(p, FST_EUNSUPPORTED, "look-around is not supported");
        return NULL;
    }
    if (is_next(p, "?>") || is_next(p, "?(") || is_next(p, "?#") || is_next(p, "?|")) {
        fail(p, FST_EUNSUPPORTED, "atomic, conditional and comment groups are not supported");
        return NULL;
    }
    if (take(p, "?P<") || take(p, "?<")) {
        const char *end = memchr(p->s + p->at, '>', p->len - p->at);
        if (!end) {
            fail(p, FST_EINVAL, "> expected");
            return NULL;
        }
        p->at = (size_t)(end - p->s) + 1;
    } else if (take(p, "?P")) {
        fail(p, FST_EUNSUPPORTED, "named back-references are not supported");
        return NULL;
    } else if (take(p, "?") && !flags(p, &scoped)) {
        return NULL;
    }
    if (!scoped) /* flags for the rest of the group around */
        return node(p, REGEX_EMPTY);
    if (++p->nest > GRAMMAR_NEST_MAX) {
        fail(p, FST_EBUDGET, "groups nest too deeply");
        return NULL;
    }
    r = parse_alt(p);
    p->nest--;
    p->ignore_case = ignore_case;
    p->dot_all = dot_all;
    if (r && !take(p, ")")) {
        fail(p, FST_EINVAL, ") expected");
        return NULL;
    }
    return r;
}

static struct regex *quoted(struct parser *p)
{
    struct regex *r = node(p, REGEX_EMPTY);

    while (r && p->at < p->len && !take(p, "\\E")) {
        uint32_t cp;
        if (!take_char(p, &cp))
            return NULL;
        r = join(p, REGEX_CAT, r, one_char(p, cp));
    }
    return r;
}

static struct regex *atom(struct parser *p)
{
    uint32_t cp = 0;
    bool is_class;
    struct regex *r;

    if (take(p, "("))
        return group(p);
    if (take(p, "."))
        return dot(p);
    if (take(p, "^"))
        return node(p, REGEX_BEGIN);
    if (take(p, "$"))
        return node(p, REGEX_END);
    if (take(p, "[")) {
        r = node(p, REGEX_SET);
        return r && parse_class(p, &r->set) ? r : NULL;
    }
    if (is_next(p, "*") || is_next(p, "+") || is_next(p, "?")) {
        fail(p, FST_EINVAL, "nothing to repeat");
        return NULL;
    }
    if (p->o->style == REGEX_RE2) {
        if (take(p, "\\Q"))
            return quoted(p);
        if (take(p, "\\A"))
            return node(p, REGEX_BEGIN);
        if (take(p, "\\z") || take(p, "\\Z"))
            return node(p, REGEX_END);
    }
    if (take(p, "\\")) {
        struct cp_set set = {0};
        if (!escape(p, false, &cp, &is_class, &set))
            return NULL;
        if (!is_class)
            return one_char(p, cp);
        r = node(p, REGEX_SET);
        if (!r)
            return NULL;
        cp_set_tidy(&set);
        if (p->ignore_case)
            cp_set_fold(p->c, &set);
        r->set = set;
        return r;
    }
    return take_char(p, &cp) ? one_char(p, cp) : NULL;
}

/* "{n}", "{n,}", "{n,m}" at p->at; false: no such thing there, and nothing is taken. */
static bool counts(struct parser *p, uint32_t *min, uint32_t *max)
{
    size_t at = p->at + 1;
    uint64_t n[2] = {0, GRAMMAR_INF};
    int k = 0;
    bool digits = false;

    for (; at < p->len && p->s[at] != '}'; at++) {
        char ch = p->s[at];
        if (ch == ',' && k == 0 && digits) {
            k = 1;
            digits = false;
        } else if (ch >= '0' && ch <= '9') {
            n[k] = (digits ? n[k] * 10 : 0) + (uint64_t)(ch - '0');
            n[k] = FST_MIN(n[k], GRAMMAR_INF);
            digits = true;
        } else {
            return false;
        }
    }
    if (at >= p->len || (k == 0 && !digits))
        return false;
    if (k == 0)
        n[1] = n[0];
    *min = (uint32_t)n[0];
    *max = (uint32_t)n[1];
    p->at = at + 1;
    return true;
}

static struct regex *repeat(struct parser *p)
{
    struct regex *r = atom(p);

    while (r) {
        uint32_t min, max;
        struct regex *x;

        if (take(p, "*")) {
            min = 0;
            max = GRAMMAR_INF;
        } else if (take(p, "+")) {
            min = 1;
            max = GRAMMAR_INF;
        } else if (take(p, "?")) {
            min = 0;
            max = 1;
        } else if (!is_next(p, "{") || !counts(p, &min, &max)) {
            return r;
        }
        if (min > max) {
            fail(p, FST_EINVAL, "{n,m} with n > m");
            return NULL;
        }
        if (is_next(p, "+") && p->o->style == REGEX_RE2) {
            fail(p, FST_EUNSUPPORTED, "possessive repetition is not supported");
            return NULL;
        }
        take(p, "?"); /* lazy: the same texts */
        x = node(p, REGEX_REPEAT);
        if (!x)
            return NULL;
        x->left = r;
        x->min = min;
        x->max = max;
        r = x;
    }
    return r;
}

static struct regex *parse_alt(struct parser *p)
{
    struct regex *all = NULL;

    do {
        struct regex *one = node(p, REGEX_EMPTY);
        while (one && p->at < p->len && !is_next(p, "|") && !is_next(p, ")"))
            one = join(p, REGEX_CAT, one, repeat(p));
        if (!one)
            return NULL;
        all = all ? join(p, REGEX_ALT, all, one) : one;
    } while (all && take(p, "|"));
    return all;
}

struct regex *regex_parse(struct compile *c, const char *re, size_t len, const struct regex_opts *o)
{
    struct parser p = {.c = c, .s = re, .len = len, .o = o};
    struct regex *r;

    if (len > 1 << 16) {
        compile_fail(c, FST_EBUDGET, "%s: longer than 65536 bytes", o->where);
        return NULL;
    }
    p.ignore_case = o->ignore_case;
    r = parse_alt(&p);
    if (r && p.at < len) {
        fail(&p, FST_EINVAL, "unmatched )");
        return NULL;
    }
    return c->rc < 0 ? NULL : r;
}

enum fst_status grammar_from_regex(struct grammar **out, const char *re, size_t len,
                                   const struct grammar_opts *opts)
{
    struct regex_opts o = {.style = REGEX_RE2, .where = "regex"};
    struct compile c;
    struct lang *l;
    uint32_t root;
    enum fst_status rc;

    *out = NULL;
    compile_init(&c, opts);
    root = rule_new(&c, "regex");
    l = lang_from_regex(&c, re, len, &o);
    if (c.rc >= 0)
        text_lang(&c, TEXT_RAW, l, c.rule[root].start, c.rule[root].end);
    rc = c.rc < 0 ? c.rc : grammar_build(out, &c, root);
    compile_release(&c);
    return rc;
}
