/* text.c - characters as the bytes of a document: plain UTF-8, or inside a JSON string. */
#include "grammar/inside.h"
#include "base/utf8.h"

enum { SHARE_FROM = 64 }; /* states: below it, more of them make masks faster (build.c, runs) */

/* lo..hi have the same number of UTF-8 bytes, n.  The shared first bytes make one path; ranges that
 * differ in an early byte are cut where the bytes behind it are not free. */
static void utf8_paths(struct compile *c, uint32_t from, uint32_t lo, uint32_t hi, int n,
                       uint32_t to)
{
    char a[4], b[4];

    if (c->rc < 0)
        return;
    for (int k = 1; k < n; k++) {
        uint32_t low = ((uint32_t)1 << (6 * k)) - 1; /* of the last k bytes */
        if ((lo & ~low) == (hi & ~low))
            continue;
        if (lo & low) {
            utf8_paths(c, from, lo, lo | low, n, to);
            utf8_paths(c, from, (lo | low) + 1, hi, n, to);
            return;
        }
        if ((hi & low) != low) {
            utf8_paths(c, from, lo, (hi & ~low) - 1, n, to);
            utf8_paths(c, from, hi & ~low, hi, n, to);
            return;
        }
    }
    utf8_encode(lo, a);
    utf8_encode(hi, b);
    for (int i = 0; i < n; i++) {
        uint32_t next = i + 1 == n ? to : nfa_state(c);
        nfa_bytes(c, from, (uint8_t)a[i], (uint8_t)b[i], next);
        from = next;
    }
}

static void utf8_range(struct compile *c, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    static const struct {
        uint32_t lo, hi;
        int n;
    } part[] = {{0, 0x7f, 1},
                {0x80, 0x7ff, 2},
                {0x800, 0xd7ff, 3},
                {0xe000, 0xffff, 3},
                {0x10000, LANG_CP_MAX, 4}};

    for (size_t i = 0; i < FST_COUNT(part); i++)
        if (lo <= part[i].hi && hi >= part[i].lo)
            utf8_paths(c, from, FST_MAX(lo, part[i].lo), FST_MIN(hi, part[i].hi), part[i].n, to);
}

void text_range(struct compile *c, enum text_style style, uint32_t from, uint32_t lo, uint32_t hi,
                uint32_t to)
{
    static const char plain[] = "\"\\";
    static const struct {
        uint8_t cp;
        char letter;
    } brief[] = {{8, 'b'}, {9, 't'}, {10, 'n'}, {12, 'f'}, {13, 'r'}};

    if (style == TEXT_RAW) {
        utf8_range(c, from, lo, hi, to);
        return;
    }
    for (uint32_t cp = lo; cp <= FST_MIN(hi, 0x1f); cp++) {
        char s[8];
        size_t i = 0;

        while (i < FST_COUNT(brief) && brief[i].cp != cp)
            i++;
        if (i < FST_COUNT(brief))
            snprintf(s, sizeof s, "\\%c", brief[i].letter);
        else
            snprintf(s, sizeof s, "\\u%04x", (unsigned)cp);
        nfa_text(c, from, s, strlen(s), to);
    }
    for (size_t i = 0; i < 2; i++)
        if (lo <= (uint8_t)plain[i] && hi >= (uint8_t)plain[i]) {
            char s[2] = {'\\', plain[i]};
            nfa_text(c, from, s, 2, to);
        }
    {
        static const uint32_t gap[][2] = {
            {0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, LANG_CP_MAX}};
        for (size_t i = 0; i < FST_COUNT(gap); i++)
            if (lo <= gap[i][1] && hi >= gap[i][0])
                utf8_range(c, from, FST_MAX(lo, gap[i][0]), FST_MIN(hi, gap[i][1]), to);
    }
}

/* All characters of 2, 3 or 4 bytes that a long chain of states takes alike: calls of one rule each
 * instead of a dozen states at every place. */
static void shared_ranges(struct compile *c, enum text_style style, uint32_t from, uint32_t lo,
                          uint32_t hi, uint32_t to)
{
    static const uint32_t part[3][2] = {{0x80, 0x7ff}, {0x800, 0xffff}, {0x10000, LANG_CP_MAX}};

    for (int k = 0; k < 3; k++) {
        if (lo > part[k][0] || hi < part[k][1])
            continue;
        if (c->utf8[k] == GRAMMAR_NONE) {
            c->utf8[k] = rule_new(c, "character");
            if (c->rc >= 0)
                utf8_range(c, c->rule[c->utf8[k]].start, part[k][0], part[k][1],
                           c->rule[c->utf8[k]].end);
        }
        nfa_call(c, from, c->utf8[k], 1, 1, to);
        if (lo < part[k][0])
            text_range(c, style, from, lo, part[k][0] - 1, to);
        lo = part[k][1] + 1;
    }
    if (lo <= hi)
        text_range(c, style, from, lo, hi, to);
}

void text_lang(struct compile *c, enum text_style style, const struct lang *l, uint32_t from,
               uint32_t to)
{
    uint32_t *at;

    if (!l || !l->n_states)
        return;
    at = compile_alloc(c, l->n_states, sizeof *at);
    if (!at)
        return;
    for (uint32_t i = 0; i < l->n_states; i++)
        at[i] = nfa_state(c);
    nfa_eps(c, from, at[0]);
    for (uint32_t i = 0; i < l->n_states && compile_work(c, 1 + l->state[i].n); i++) {
        const struct lang_state *s = &l->state[i];
        for (uint32_t k = 0; k < s->n; k++) {
            const struct lang_span *p = &l->span[s->at + k];
            if (l->n_states > SHARE_FROM)
                shared_ranges(c, style, at[i], p->lo, p->hi, at[p->to]);
            else
                text_range(c, style, at[i], p->lo, p->hi, at[p->to]);
        }
        if (s->accept)
            nfa_eps(c, at[i], to);
    }
}
