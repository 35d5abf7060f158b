/* json_same.c - whether two JSON values mean the same. */
#include <math.h>

#include "base/json.h"
#include "base/number.h"

/* A decimal number as digits without zeros at either end, times a power of ten. */
struct decimal {
    bool negative, plain; /* plain: spelled as an integer */
    const char *text;     /* from the first to the last digit that is not zero; borrowed */
    size_t n;             /* bytes of text, a point among them or not */
    size_t n_digits;
    int64_t exponent;
};

static struct decimal decimal_read(const char *s, size_t len)
{
    const int64_t power_max = (int64_t)1 << 40; /* no double and no text here reaches so far */
    struct decimal d = {.plain = true};
    int64_t n_behind = 0, power = 0; /* digits behind the point */
    size_t i = 0, last = 0, zeros = 0;

    if (s[0] == '-') {
        d.negative = true;
        i++;
    }
    for (; i < len && (s[i] | 0x20) != 'e'; i++) {
        if (s[i] == '.') {
            d.plain = false;
            continue;
        }
        n_behind += !d.plain;
        if (s[i] == '0') {
            zeros += d.n_digits > 0;
            continue;
        }
        if (!d.n_digits)
            d.text = s + i;
        d.n_digits += zeros + 1;
        zeros = 0;
        last = i;
    }
    if (i < len) {
        bool minus = s[++i] == '-';
        d.plain = false;
        for (i += minus || s[i] == '+'; i < len; i++)
            power = FST_MIN(power * 10 + (s[i] - '0'), power_max);
        power = minus ? -power : power;
    }
    if (!d.n_digits)
        return (struct decimal){.plain = d.plain}; /* zero, whatever its sign and exponent */
    d.n = (size_t)(s + last + 1 - d.text);
    d.exponent = power - n_behind + (int64_t)zeros;
    return d;
}

static bool digits_equal(const struct decimal *a, const struct decimal *b)
{
    size_t i = 0, k = 0;

    if (a->n_digits != b->n_digits)
        return false;
    while (i < a->n && k < b->n) {
        if (a->text[i] == '.')
            i++;
        if (b->text[k] == '.')
            k++;
        if (a->text[i++] != b->text[k++])
            return false;
    }
    return true;
}

static bool numbers_equal(json_val *a, json_val *b)
{
    size_t n, m;
    const char *s = json_number_text(a, &n), *t = json_number_text(b, &m);
    struct decimal x = decimal_read(s, n), y = decimal_read(t, m);
    double p, q;

    if (x.negative == y.negative && x.exponent == y.exponent && digits_equal(&x, &y))
        return true;
    if (x.plain && y.plain)
        return false;
    p = number_parse(s, NULL);
    q = number_parse(t, NULL);
    return isfinite(p) && p == q;
}

bool json_same(json_val *a, json_val *b)
{
    size_t n = json_count(a), len, len_b;

    if (json_type_of(a) != json_type_of(b) || n != json_count(b))
        return false;
    switch (json_type_of(a)) {
    case JSON_NUMBER:
        return numbers_equal(a, b);
    case JSON_STRING: {
        const char *s = json_string(a, &len), *t = json_string(b, &len_b);
        return len == len_b && memcmp(s, t, len) == 0;
    }
    case JSON_ARRAY:
        for (size_t i = 0; i < n; i++)
            if (!json_same(json_at(a, i), json_at(b, i)))
                return false;
        return true;
    case JSON_OBJECT:
        for (size_t i = 0; i < n; i++) {
            const char *key;
            json_val *v = json_member(a, i, &key, &len),
                     *w = json_get(b, key); /* no key has a NUL */
            if (!w || !json_same(v, w))
                return false;
        }
        return true;
    default:
        return true;
    }
}
