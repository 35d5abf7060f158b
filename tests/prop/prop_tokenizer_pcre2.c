/* Pre-tokeniser against PCRE2: the regular expressions of tokenizer.json, applied one inside the
 * other, must cut every text where the hand-written scanner does.  \s is written \p{White_Space},
 * which is what it means in the tokenizers library.  Code points that came after Unicode 14 are left
 * out: PCRE2 10.42 does not know them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "support/vectors.h"
#include "tokenizer/split.h"

enum { TEXT_MAX = 4096, ROUNDS = 40000 };

static pcre2_code *regex[3];
static pcre2_match_data *data[3];
static uint8_t *known; /* bit per code point: assigned up to Unicode 14 */

static const char *const patterns[3] = {
    "\\p{N}{1,3}",
    "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\p{White_Space}*[\r\n]+|\\p{White_Space}+(?!\\P{White_Space})"
    "|\\p{White_Space}+",
};

static int setup(void **state)
{
    FILE *f = fopen("/usr/share/unicode/DerivedAge.txt", "r");
    char line[512];

    (void)state;
    for (int i = 0; i < 3; i++) {
        int code;
        PCRE2_SIZE at;
        regex[i] = pcre2_compile((PCRE2_SPTR)patterns[i], PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (!regex[i])
            return -1;
        pcre2_jit_compile(regex[i], PCRE2_JIT_COMPLETE);
        data[i] = pcre2_match_data_create_from_pattern(regex[i], NULL);
    }
    known = mem_calloc(1, 0x110000 / 8);
    while (f && fgets(line, sizeof line, f)) {
        unsigned long first, last;
        double age;
        char *end;
        first = last = strtoul(line, &end, 16);
        if (end == line)
            continue;
        if (strncmp(end, "..", 2) == 0)
            last = strtoul(end + 2, &end, 16);
        if (sscanf(end, " ; %lf", &age) == 1 && age <= 14.0)
            for (unsigned long cp = first; cp <= last; cp++)
                known[cp >> 3] |= (uint8_t)(1u << (cp & 7));
    }
    if (f)
        fclose(f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        pcre2_match_data_free(data[i]);
        pcre2_code_free(regex[i]);
    }
    mem_free(known);
    return 0;
}

/* Ends of pieces, by pattern `level` and those after it. */
static size_t cut(int level, const char *text, size_t from, size_t to, size_t *ends, size_t n)
{
    size_t at = from, gap = from;

    if (level == 3) {
        ends[n] = to;
        return n + 1;
    }
    while (at < to) {
        /* The piece alone is the subject, so that its edges are the edges of the string. */
        int rc = pcre2_match(regex[level], (PCRE2_SPTR)text + from, to - from, at - from,
                             PCRE2_NO_UTF_CHECK, data[level], NULL);
        size_t first, last;
        if (rc < 0)
            break;
        first = from + pcre2_get_ovector_pointer(data[level])[0];
        last = from + pcre2_get_ovector_pointer(data[level])[1];
        assert_true(last > first);
        if (first > gap)
            n = cut(level + 1, text, gap, first, ends, n);
        n = cut(level + 1, text, first, last, ends, n);
        at = gap = last;
    }
    if (gap < to)
        n = cut(level + 1, text, gap, to, ends, n);
    return n;
}

static void print_text(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        print_message("%02x", (unsigned char)text[i]);
    print_message("\n");
}

static void compare(const char *text, size_t len)
{
    static size_t ends[TEXT_MAX + 1];
    size_t n = len ? cut(0, text, 0, len, ends, 0) : 0, i = 0, piece_len, at = 0;
    struct split s;
    const char *piece;

    split_init(&s, text, len);
    while (split_next(&s, &piece, &piece_len)) {
        at += piece_len;
        if (i >= n || at != ends[i] || piece + piece_len != text + at) {
            print_text(text, len);
            fail_msg("piece %zu ends at %zu, expected %zu", i, at, i < n ? ends[i] : len);
        }
        i++;
    }
    assert_int_equal(i, n);
    assert_int_equal(at, len);
}

/* One code point; most come from the few that the expressions name. */
static uint32_t draw(struct rng *r)
{
    static const uint32_t some[] = {
        ' ',     ' ',    ' ',    ' ',     '\n',     '\n',   '\r',   '\t',   0x0b,   0x85,
        0xa0,    0x1680, 0x2003, 0x2028,  0x2029,   0x202f, 0x205f, 0x3000, 0x200b, 0xfeff,
        0x180e,  0,      0x7f,   0x1f,    'a',      'Z',    'e',    0x301,  0x20dd, 0x93e,
        '1',     '2',    '9',    0xb2,    0xbd,     0x2167, 0xff11, 0x3007, 0x0661, 0x10107,
        '.',     ',',    '-',    '_',     '<',      '|',    '$',    '+',    0x20ac, 0xa9,
        0x2014,  0xff5c, 0x3001, 0x4e00,  0x9fa5,   0x9fa6, 0x3040, 0x3042, 0x3097, 0x3099,
        0x309b,  0x309f, 0x30a0, 0x30a2,  0x30fb,   0x30ff, 0x3400, 0xac00, 0x5d0,  0x1f600,
        0x1f3fd, 0x200d, 0xfe0f, 0xe0001, 0x10fffd, 0xe000,
    };

    switch (rng_below(r, 8)) {
    case 0:
        return (uint32_t)rng_below(r, 0x80);
    case 1:
        return (uint32_t)rng_below(r, 0x3400);
    case 2:
        return (uint32_t)rng_below(r, 0x20000);
    case 3:
        return (uint32_t)rng_below(r, 0x110000);
    default:
        return some[rng_below(r, FST_COUNT(some))];
    }
}

static void random_texts(void **state)
{
    struct rng r;
    static char text[TEXT_MAX + 8];

    (void)state;
    rng_init(&r, 20261129);
    for (int round = 0, n_rounds = test_rounds(ROUNDS); round < n_rounds; round++) {
        size_t n = rng_below(&r, round % 100 ? 12 : 700), len = 0;
        while (n > 0) {
            uint32_t cp = draw(&r);
            size_t repeat = rng_below(&r, 8) ? 1 : 1 + rng_below(&r, 5);
            if ((cp >= 0xd800 && cp < 0xe000) || !(known[cp >> 3] >> (cp & 7) & 1))
                continue;
            for (; repeat > 0 && len + 4 < TEXT_MAX; repeat--)
                len += (size_t)utf8_encode(cp, text + len);
            n--;
        }
        compare(text, len);
    }
}

/* Every code point alone and beside the five kinds of neighbour that decide its piece. */
static void every_code_point(void **state)
{
    static const char *const around[][2] = {{"", ""},
                                            {"", "a"},
                                            {" ", ""},
                                            {"a", "."},
                                            {" ", "\n"},
                                            {"1", " x"},
                                            {"\xe4\xb8\x80", "  "}};
    char text[32];
    int n = 0;

    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if ((cp >= 0xd800 && cp < 0xe000) || !(known[cp >> 3] >> (cp & 7) & 1))
            continue;
        for (size_t i = 0; i < FST_COUNT(around); i++) {
            size_t a = strlen(around[i][0]), b = strlen(around[i][1]), len = a;
            memcpy(text, around[i][0], a);
            len += (size_t)utf8_encode(cp, text + len);
            memcpy(text + len, around[i][1], b);
            compare(text, len + b);
        }
        n++;
    }
    assert_true(n > 280000); /* Unicode 14 has 284,278 without the surrogates */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_texts),
        cmocka_unit_test(every_code_point),
    };
    FILE *f = fopen("/usr/share/unicode/DerivedAge.txt", "r");

    if (!f) {
        puts("SKIP prop_tokenizer_pcre2: no /usr/share/unicode/DerivedAge.txt (unicode-data)");
        return 0;
    }
    fclose(f);
    return cmocka_run_group_tests(tests, setup, teardown);
}
