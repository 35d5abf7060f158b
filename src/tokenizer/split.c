/* split.c - DeepSeek's three isolated splits as a hand-written scanner.
 *
 * tokenizer.json gives them as regular expressions, each applied inside the pieces of the one
 * before (load.c compares the texts):
 *   1. \p{N}{1,3}
 *   2. [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+
 *   3. at each position the first that matches of
 *      a. one ASCII punctuation, [A-Za-z]+
 *      b. [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
 *      c. one space or none, [\p{P}\p{S}]+[\r\n]*
 *      d. \s*[\r\n]+
 *      e. \s+(?!\S)
 *      f. \s+
 * What no alternative matches stays together as one piece.  A segment here is a piece after splits
 * 1 and 2; its edges are the edges of the string for split 3 (so "a  1" has the piece "  " where
 * "a  b" has " ").  Everything is linear: whitespace is looked through at most twice. */
#include "tokenizer/split.h"

#include "base/utf8.h"
#include "unicode_table.h"

enum {
    WORD = SPLIT_LETTER | SPLIT_MARK,
    PS = SPLIT_PUNCT | SPLIT_SYMBOL,
    NO_CHAR = 0x7fffffff /* a byte that is no UTF-8: in no class */
};

unsigned split_class(uint32_t cp)
{
    return cp <= 0x10ffff ? unicode_class[unicode_block[cp >> 8]][cp & 255] : 0;
}

struct ch {
    uint32_t cp;
    unsigned cls;
    unsigned len; /* bytes; 0 at the end */
};

/* The loops below take ASCII without a call: look() was a fifth of encoding's time. */
static inline unsigned ascii_class(const char *text, size_t pos)
{
    return unicode_class[0][(unsigned char)text[pos] & 0x7f];
}

static inline bool is_ascii(const char *text, size_t pos)
{
    return (unsigned char)text[pos] < 0x80;
}

static struct ch look(const char *text, size_t pos, size_t end)
{
    struct ch c = {NO_CHAR, 0, 0};
    unsigned char b;
    int k;

    if (pos >= end)
        return c;
    b = (unsigned char)text[pos];
    if (b < 0x80) {
        c = (struct ch){b, unicode_class[0][b], 1};
        return c;
    }
    k = utf8_decode(text + pos, end - pos, &c.cp);
    if (k <= 0) {
        c.cp = NO_CHAR;
        c.len = 1;
        return c;
    }
    c.len = (unsigned)k;
    c.cls = split_class(c.cp);
    return c;
}

static bool is_cjk(uint32_t cp)
{
    return (cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff);
}

static bool is_newline(uint32_t cp)
{
    return cp == '\r' || cp == '\n';
}

static bool is_ascii_letter(uint32_t cp)
{
    return (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z');
}

/* End of the run of characters with any of the class bits. */
static size_t run_of(const char *text, size_t pos, size_t end, unsigned bits)
{
    for (;;) {
        struct ch c;
        while (pos < end && is_ascii(text, pos) && ascii_class(text, pos) & bits)
            pos++;
        if (pos == end || is_ascii(text, pos))
            return pos;
        c = look(text, pos, end);
        if (!(c.cls & bits))
            return pos;
        pos += c.len;
    }
}

/* Splits 1 and 2: the end of the segment that starts at pos. */
static size_t segment(const char *text, size_t pos, size_t len)
{
    struct ch c = look(text, pos, len);

    if (c.cls & SPLIT_NUMBER) {
        for (int n = 0; n < 3 && c.cls & SPLIT_NUMBER; n++) {
            pos += c.len;
            c = look(text, pos, len);
        }
        return pos;
    }
    if (is_cjk(c.cp)) {
        for (; is_cjk(c.cp) && !(c.cls & SPLIT_NUMBER); c = look(text, pos, len))
            pos += c.len;
        return pos;
    }
    for (;;) {
        while (pos < len && is_ascii(text, pos) && !(ascii_class(text, pos) & SPLIT_NUMBER))
            pos++;
        if (pos == len || is_ascii(text, pos))
            return pos;
        c = look(text, pos, len);
        if (is_cjk(c.cp) || c.cls & SPLIT_NUMBER)
            return pos;
        pos += c.len;
    }
}

/* Alternatives d, e and f at whitespace. */
static size_t match_space(const char *text, size_t pos, size_t end)
{
    size_t after_newline = 0, last = pos, at = pos;
    struct ch c;

    for (c = look(text, at, end); c.cls & SPLIT_SPACE; c = look(text, at, end)) {
        last = at;
        at += c.len;
        if (is_newline(c.cp))
            after_newline = at;
    }
    if (after_newline)
        return after_newline;
    /* One character is given back where text follows, if that leaves any. */
    return at < end && last > pos ? last : at;
}

/* End of split 3's match at pos; pos when nothing matches. */
static size_t match(const char *text, size_t pos, size_t end)
{
    struct ch c = look(text, pos, end), next;
    size_t at;

    if (c.cp < 0x80 && c.cls & PS && is_ascii_letter(look(text, pos + 1, end).cp)) {
        for (at = pos + 1; at < end && is_ascii_letter((unsigned char)text[at]);)
            at++;
        return at;
    }
    if (c.cls & WORD)
        return run_of(text, pos, end, WORD);
    if (c.cls & PS) {
        at = run_of(text, pos, end, PS);
        while (at < end && is_newline((unsigned char)text[at]))
            at++;
        return at;
    }
    next = look(text, pos + c.len, end);
    if (!is_newline(c.cp) && next.cls & WORD)
        return run_of(text, pos + c.len, end, WORD);
    if (c.cp == ' ' && next.cls & PS) {
        at = run_of(text, pos + 1, end, PS);
        while (at < end && is_newline((unsigned char)text[at]))
            at++;
        return at;
    }
    if (c.cls & SPLIT_SPACE)
        return match_space(text, pos, end);
    return pos;
}

void split_init(struct split *s, const char *text, size_t len)
{
    *s = (struct split){.text = text, .len = len};
}

bool split_next(struct split *s, const char **piece, size_t *n)
{
    size_t start = s->pos, end;

    if (start >= s->len)
        return false;
    if (start >= s->segment_end)
        s->segment_end = segment(s->text, start, s->len);
    end = match(s->text, start, s->segment_end);
    if (end == start) /* a gap reaches to the next match */
        do
            end += look(s->text, end, s->segment_end).len;
        while (end < s->segment_end && match(s->text, end, s->segment_end) == end);
    FST_ASSERT(end > start && end <= s->segment_end);
    s->pos = end;
    *piece = s->text + start;
    *n = end - start;
    return true;
}
