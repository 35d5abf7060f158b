/* classes.c - sets of characters. */
#include "grammar/regex.h"

#include "classes_table.h"

void cp_set_add(struct compile *c, struct cp_set *s, uint32_t lo, uint32_t hi)
{
    if (lo > hi || !compile_grow(c, &s->range, &s->cap, s->n, sizeof *s->range))
        return;
    s->range[s->n++] = (struct cp_range){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
    const struct cp_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void cp_set_tidy(struct cp_set *s)
{
    uint32_t n = 0;

    if (s->n)
        qsort(s->range, s->n, sizeof *s->range, by_lo);
    for (uint32_t i = 0; i < s->n; i++) {
        if (n && s->range[i].lo <= s->range[n - 1].hi + 1)
            s->range[n - 1].hi = FST_MAX(s->range[n - 1].hi, s->range[i].hi);
        else
            s->range[n++] = s->range[i];
    }
    s->n = n;
}

void cp_set_invert(struct compile *c, struct cp_set *s)
{
    struct cp_set out = {0};
    uint32_t at = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        if (s->range[i].lo > at)
            cp_set_add(c, &out, at, s->range[i].lo - 1);
        at = s->range[i].hi + 1;
    }
    if (at <= LANG_CP_MAX)
        cp_set_add(c, &out, at, LANG_CP_MAX);
    *s = out;
}

static bool has(const struct cp_set *s, uint32_t n, uint32_t cp)
{
    uint32_t lo = 0, hi = n;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (s->range[mid].hi < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && s->range[lo].lo <= cp;
}

void cp_set_fold(struct compile *c, struct cp_set *s)
{
    /* two rounds: K, k and the Kelvin sign meet in k */
    for (int round = 0; round < 2; round++) {
        uint32_t n;

        cp_set_tidy(s);
        n = s->n;
        for (size_t i = 0; i < FST_COUNT(class_fold); i++) {
            uint32_t a = class_fold[i][0], b = class_fold[i][1];
            bool has_a = has(s, n, a), has_b = has(s, n, b);
            if (has_a && !has_b)
                cp_set_add(c, s, b, b);
            if (has_b && !has_a)
                cp_set_add(c, s, a, a);
        }
    }
    cp_set_tidy(s);
}

static void add_ranges(struct compile *c, struct cp_set *s, const uint32_t (*r)[2], uint32_t n,
                       bool invert)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!invert)
            cp_set_add(c, s, r[i][0], r[i][1]);
        else if (r[i][0] > at)
            cp_set_add(c, s, at, r[i][0] - 1);
        at = r[i][1] + 1;
    }
    if (invert && at <= LANG_CP_MAX)
        cp_set_add(c, s, at, LANG_CP_MAX);
}

bool cp_set_add_named(struct compile *c, struct cp_set *s, const char *name, size_t len,
                      bool invert)
{
    static const char *const prefix[] = {"Script=", "sc=", "General_Category=", "gc="};
    static const uint32_t any[][2] = {{0, LANG_CP_MAX}}, ascii[][2] = {{0, 0x7f}};

    for (size_t i = 0; i < FST_COUNT(prefix); i++) {
        size_t n = strlen(prefix[i]);
        if (len > n && memcmp(name, prefix[i], n) == 0) {
            name += n;
            len -= n;
            break;
        }
    }
    for (size_t i = 0; i < FST_COUNT(class_table); i++)
        if (strlen(class_table[i].name) == len && memcmp(class_table[i].name, name, len) == 0) {
            add_ranges(c, s, class_range + class_table[i].at, class_table[i].n, invert);
            return true;
        }
    if (len == 3 && memcmp(name, "Any", 3) == 0)
        add_ranges(c, s, any, 1, invert);
    else if (len == 5 && memcmp(name, "ASCII", 5) == 0)
        add_ranges(c, s, ascii, 1, invert);
    else
        return false;
    return true;
}

bool cp_set_add_posix(struct compile *c, struct cp_set *s, const char *name, size_t len,
                      bool invert)
{
    static const struct {
        const char *name;
        uint32_t r[4][2], n;
    } class[] = {
        {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}, 3},
        {"alpha", {{'A', 'Z'}, {'a', 'z'}}, 2},
        {"ascii", {{0, 0x7f}}, 1},
        {"blank", {{'\t', '\t'}, {' ', ' '}}, 2},
        {"cntrl", {{0, 0x1f}, {0x7f, 0x7f}}, 2},
        {"digit", {{'0', '9'}}, 1},
        {"graph", {{0x21, 0x7e}}, 1},
        {"lower", {{'a', 'z'}}, 1},
        {"print", {{0x20, 0x7e}}, 1},
        {"punct", {{0x21, 0x2f}, {0x3a, 0x40}, {0x5b, 0x60}, {0x7b, 0x7e}}, 4},
        {"space", {{'\t', '\r'}, {' ', ' '}}, 2},
        {"upper", {{'A', 'Z'}}, 1},
        {"word", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, 4},
        {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, 3},
    };

    for (size_t i = 0; i < FST_COUNT(class); i++)
        if (strlen(class[i].name) == len && memcmp(class[i].name, name, len) == 0) {
            add_ranges(c, s, class[i].r, class[i].n, invert);
            return true;
        }
    return false;
}
