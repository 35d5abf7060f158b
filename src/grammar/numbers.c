/* numbers.c - decimal numbers within limits, as sets of texts.
 *
 * A limit is followed digit by digit: at every place the number read so far is below, equal to or
 * above the limit's digits, and a longer number is a larger one.  multipleOf keeps the remainder.
 * Exact for limits of any length; texts have no exponent, no leading zeros and no "-0" for 0. */
#include "grammar/schema.h"

struct decimal {
    bool negative;
    const char *whole; /* no leading zeros, "0" for none */
    const char *part;  /* no trailing zeros */
    size_t n_whole, n_part;
};
enum { DIGITS_MAX = 400, MULTIPLE_MAX = 1 << 13 };
enum { BELOW = 1, EQUAL = 2, ABOVE = 4 };

static bool is_zero(const struct decimal *d)
{
    return !d->n_part && d->n_whole == 1 && d->whole[0] == '0';
}

/* A JSON number's text with its exponent worked in. */
static bool read_decimal(struct reader *r, const char *path, const char *s, struct decimal *d)
{
    struct compile *c = r->c;
    char *digits = compile_alloc(c, strlen(s) + 2 * DIGITS_MAX + 2, 1);
    size_t n = 0, point = 0;
    long exponent = 0;
    bool has_point = false;

    if (!digits)
        return false;
    *d = (struct decimal){.negative = *s == '-'};
    for (s += *s == '-'; *s && *s != 'e' && *s != 'E'; s++) {
        if (*s == '.') {
            has_point = true;
            point = n;
        } else {
            digits[n++] = *s;
        }
    }
    if (!has_point)
        point = n;
    if (*s)
        exponent = strtol(s + 1, NULL, 10);
    if (exponent > DIGITS_MAX || exponent < -DIGITS_MAX || n > DIGITS_MAX) {
        compile_fail(c, FST_EBUDGET, "%s: a number of more than %d digits", path, DIGITS_MAX);
        return false;
    }
    for (; exponent > 0; exponent--, point++)
        if (point == n)
            digits[n++] = '0';
    for (; exponent < 0; exponent++) {
        if (point) {
            point--;
        } else {
            memmove(digits + 1, digits, n++);
            digits[0] = '0';
        }
    }
    d->part = digits + point;
    d->n_part = n - point;
    while (d->n_part && d->part[d->n_part - 1] == '0')
        d->n_part--;
    d->whole = digits;
    d->n_whole = point;
    while (d->n_whole > 1 && *d->whole == '0') {
        d->whole++;
        d->n_whole--;
    }
    if (!d->n_whole) {
        d->whole = "0";
        d->n_whole = 1;
    }
    if (is_zero(d))
        d->negative = false;
    return true;
}

/* Numbers without sign that compare with d's digits as `want` says (a set of BELOW, EQUAL, ABOVE). */
static struct lang *magnitudes(struct compile *c, const struct decimal *d, int want)
{
    struct lang *l = lang_new(c);
    uint32_t n = (uint32_t)d->n_whole, m = (uint32_t)d->n_part;
    /* states: start, zero; (digits read 1..n) x 3; longer; then for the part behind the point: without
     * a digit yet below, above, and equal at 0..m; with digits below, above */
    uint32_t start = 0, zero = 1, whole = 2, longer = whole + 3 * n, none = longer + 1,
             some = none + 2, equal = some + 2;
    static const int order[3] = {BELOW, EQUAL, ABOVE};

#define WHOLE(k, o) (whole + 3 * ((k)-1) + (uint32_t)(o))
    for (uint32_t i = 0; i <= equal + m + 1 && c->rc >= 0; i++)
        lang_state(c, l, false);
    if (c->rc < 0)
        return NULL;
        /* comparison of a whole number that ended, and where its point leads */
#define ENDED(k, o) ((k) < n ? BELOW : (k) > n ? ABOVE : order[o])
#define POINT(cmp)  ((cmp) == BELOW ? none : (cmp) == ABOVE ? none + 1 : equal)
    for (int digit = '0'; digit <= '9'; digit++) {
        int o = digit < d->whole[0] ? 0 : digit == d->whole[0] ? 1 : 2;
        lang_span(c, l, start, (uint32_t)digit, (uint32_t)digit, digit == '0' ? zero : WHOLE(1, o));
    }
    {
        int cmp = n == 1 && d->whole[0] == '0' ? EQUAL : BELOW;
        int with_part = cmp == EQUAL && m ? BELOW : cmp;
        l->state[zero].accept = want & with_part;
        lang_span(c, l, zero, '.', '.', POINT(cmp));
    }
    for (uint32_t k = 1; k <= n; k++)
        for (int o = 0; o < 3; o++) {
            int cmp = ENDED(k, o);
            l->state[WHOLE(k, o)].accept = want & (cmp == EQUAL && m ? BELOW : cmp);
            lang_span(c, l, WHOLE(k, o), '.', '.', POINT(cmp));
            for (int digit = '0'; digit <= '9'; digit++) {
                int p = o != 1 || k == n       ? o
                        : digit < d->whole[k]  ? 0
                        : digit == d->whole[k] ? 1
                                               : 2;
                lang_span(c, l, WHOLE(k, o), (uint32_t)digit, (uint32_t)digit,
                          k == n ? longer : WHOLE(k + 1, p));
            }
        }
    l->state[longer].accept = want & ABOVE;
    lang_span(c, l, longer, '.', '.', none + 1);
    lang_span(c, l, longer, '0', '9', longer);
    lang_span(c, l, none, '0', '9', some);
    lang_span(c, l, none + 1, '0', '9', some + 1);
    lang_span(c, l, some, '0', '9', some);
    lang_span(c, l, some + 1, '0', '9', some + 1);
    l->state[some].accept = want & BELOW;
    l->state[some + 1].accept = want & ABOVE;
    /* equal + j: j digits behind the point are those of the limit; equal + m + 1: and more zeros */
    for (uint32_t j = 0; j <= m + 1; j++) {
        char limit = j < m ? d->part[j] : '0';
        uint32_t next = equal + FST_MIN(j + 1, m + 1);

        l->state[equal + j].accept = j && (want & (j < m ? BELOW : EQUAL));
        if (limit > '0')
            lang_span(c, l, equal + j, '0', (uint32_t)limit - 1, some);
        lang_span(c, l, equal + j, (uint32_t)limit, (uint32_t)limit, next);
        if (limit < '9')
            lang_span(c, l, equal + j, (uint32_t)limit + 1, '9', some + 1);
    }
#undef WHOLE
#undef ENDED
#undef POINT
    return c->rc < 0 ? NULL : l;
}

/* "-" and a text of l. */
static struct lang *negated(struct compile *c, const struct lang *l)
{
    struct lang *out = l ? lang_new(c) : NULL;

    if (!out)
        return NULL;
    lang_state(c, out, false);
    for (uint32_t i = 0; i < l->n_states; i++)
        lang_state(c, out, l->state[i].accept);
    lang_span(c, out, 0, '-', '-', 1);
    for (uint32_t i = 0; i < l->n_states && c->rc >= 0; i++)
        for (uint32_t k = 0; k < l->state[i].n; k++) {
            const struct lang_span *s = &l->span[l->state[i].at + k];
            lang_span(c, out, i + 1, s->lo, s->hi, s->to + 1);
        }
    return c->rc < 0 ? NULL : out;
}

static const struct lang *regex(struct compile *c, const char *re)
{
    struct regex_opts o = {.style = REGEX_RE2, .where = "number"};
    return lang_from_regex(c, re, strlen(re), &o);
}

static const struct lang *bounded(struct compile *c, const struct decimal *d, enum limit_kind kind)
{
    bool strict = kind == LIMIT_ABOVE || kind == LIMIT_BELOW;
    bool up = kind == LIMIT_MIN || kind == LIMIT_ABOVE;
    int eq = strict ? 0 : EQUAL;
    static const struct decimal zero = {.whole = "0", .n_whole = 1, .part = ""};

    if (up == !d->negative) {
        /* at least a positive number, or at most a negative one: that sign, further from zero */
        const struct lang *l = magnitudes(c, d, ABOVE | eq);
        return up ? l : negated(c, l);
    }
    {
        /* the other way: nearer to zero on this sign, and all of the other */
        const struct lang *near = magnitudes(c, d, BELOW | eq);
        const struct lang *far = magnitudes(c, &zero, ABOVE | (up || !is_zero(d) ? EQUAL : 0));
        if (up)
            return lang_or(c, negated(c, near), far);
        return lang_or(c, near, negated(c, far));
    }
}

static const struct lang *equal(struct compile *c, const struct decimal *d)
{
    struct lang *l = magnitudes(c, d, EQUAL);

    if (is_zero(d))
        return lang_or(c, l, negated(c, l));
    return d->negative ? negated(c, l) : l;
}

/* Multiples of d, at most as many digits behind the point as d has. */
static const struct lang *multiples(struct reader *r, const char *path, const struct decimal *d)
{
    struct compile *c = r->c;
    uint32_t m = 0, k = (uint32_t)d->n_part;
    struct lang *l = lang_new(c);

    for (size_t i = 0; i < d->n_whole + d->n_part; i++) {
        char digit = i < d->n_whole ? d->whole[i] : d->part[i - d->n_whole];
        m = m * 10 + (uint32_t)(digit - '0');
        if (m > MULTIPLE_MAX)
            break;
    }
    if (!m || m * (k + 1) > MULTIPLE_MAX || d->n_whole > 5) {
        compile_fail(c, m ? FST_EBUDGET : FST_EINVAL, "%s: multipleOf %s", path,
                     m ? "has too many digits" : "must be above 0");
        return NULL;
    }
    /* 0 start, 1 zero; 2 + rem: whole; then (digits behind the point 1..k) x rem; the point itself */
    uint32_t point = 2 + m, part = point + m, scale = 1;
    for (uint32_t i = 0; i < part + k * m && c->rc >= 0; i++)
        lang_state(c, l, false);
    for (uint32_t i = 0; i < k; i++)
        scale = scale * 10 % m;
    if (c->rc < 0)
        return NULL;
    l->state[1].accept = true;
    lang_span(c, l, 0, '0', '0', 1);
    for (uint32_t digit = 1; digit <= 9; digit++)
        lang_span(c, l, 0, '0' + digit, '0' + digit, 2 + digit % m);
    if (k)
        lang_span(c, l, 1, '.', '.', point);
    for (uint32_t rem = 0; rem < m; rem++) {
        l->state[2 + rem].accept = rem * (uint64_t)scale % m == 0;
        if (k)
            lang_span(c, l, 2 + rem, '.', '.', point + rem);
        for (uint32_t digit = 0; digit <= 9; digit++)
            lang_span(c, l, 2 + rem, '0' + digit, '0' + digit, 2 + (rem * 10 + digit) % m);
    }
    for (uint32_t j = 0, left = scale; j <= k && k; j++) {
        uint32_t at = j ? part + (j - 1) * m : point;
        for (uint32_t rem = 0; rem < m; rem++) {
            if (j)
                l->state[at + rem].accept = rem * (uint64_t)left % m == 0;
            for (uint32_t digit = 0; j < k && digit <= 9; digit++)
                lang_span(c, l, at + rem, '0' + digit, '0' + digit,
                          part + j * m + (rem * 10 + digit) % m);
        }
        left = 1;
        for (uint32_t i = j + 1; i < k; i++)
            left = left * 10 % m;
    }
    return c->rc < 0 ? NULL : lang_or(c, l, negated(c, l));
}

const struct lang *numbers_lang(struct reader *r, const char *path, uint32_t types,
                                const struct limit *limit, uint32_t n, const char *const * not,
                                uint32_t n_not)
{
    struct compile *c = r->c;
    const struct lang *l =
        regex(c, types & T_INTEGER
                     ? types & T_FRACTION ? "-?(0|[1-9][0-9]*)(\\.[0-9]+)?" : "0|-?[1-9][0-9]*"
                     : "-?(0|[1-9][0-9]*)\\.[0-9]*[1-9][0-9]*");

    for (uint32_t i = 0; i < n && l; i++) {
        struct decimal d;
        const struct lang *x;

        if (!read_decimal(r, path, limit[i].number, &d))
            return NULL;
        if (limit[i].kind == LIMIT_MULTIPLE)
            x = multiples(r, path, &d);
        else if (limit[i].kind == LIMIT_NO_MULTIPLE)
            x = lang_not(c, multiples(r, path, &d));
        else
            x = bounded(c, &d, limit[i].kind);
        l = x ? lang_and(c, l, x) : NULL;
    }
    for (uint32_t i = 0; i < n_not && l; i++) {
        struct decimal d;
        if (!read_decimal(r, path, not [i], &d))
            return NULL;
        l = lang_and(c, l, lang_not(c, equal(c, &d)));
    }
    return c->rc < 0 ? NULL : l;
}
