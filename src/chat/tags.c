/* tags.c - see tags.h. */
#include "chat/tags.h"

#include "chat/protocol.h"

enum { BARS_MAX = 2, SPACES_MAX = 8 };

/* Each of these moves *i behind what it matched. */

static enum tag_match literal_at(const char *s, size_t n, size_t *i, const char *text)
{
    size_t len = strlen(text), have = FST_MIN(n - *i, len);

    if (memcmp(s + *i, text, have) != 0)
        return TAG_NO;
    if (have < len)
        return TAG_MORE;
    *i += len;
    return TAG_YES;
}

/* Up to BARS_MAX bars; MORE when the text ends where another could follow. */
static enum tag_match bars_at(const char *s, size_t n, size_t *i, int *count)
{
    for (*count = 0; *count < BARS_MAX; ++*count) {
        enum tag_match m;
        if (*i == n)
            return TAG_MORE;
        if (s[*i] == '|') {
            ++*i;
            continue;
        }
        m = literal_at(s, n, i, PROTOCOL_BAR);
        if (m == TAG_MORE)
            return m;
        if (m == TAG_NO)
            break;
    }
    return TAG_YES;
}

static enum tag_match mark_at(const char *s, size_t n, size_t *i, struct tag_mark *mark)
{
    size_t start = *i;
    int before, after;
    enum tag_match m;

    if ((m = bars_at(s, n, i, &before)) != TAG_YES)
        return m;
    if ((m = literal_at(s, n, i, "DSML")) != TAG_YES)
        return m;
    if ((m = bars_at(s, n, i, &after)) != TAG_YES)
        return m;
    if (before + after == 0)
        return TAG_NO;
    mark->len = (unsigned)(*i - start);
    FST_ASSERT(mark->len <= sizeof mark->text);
    memcpy(mark->text, s + start, mark->len);
    return TAG_YES;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static enum tag_match spaces_at(const char *s, size_t n, size_t *i, int min)
{
    int k = 0;

    while (*i < n && is_space(s[*i]) && k < SPACES_MAX) {
        ++*i;
        k++;
    }
    if (*i == n)
        return TAG_MORE;
    return k >= min ? TAG_YES : TAG_NO;
}

static enum tag_match word_at(const char *s, size_t n, size_t *i, const char *const *words,
                              size_t n_words, size_t *which)
{
    bool more = false;

    for (size_t k = 0; k < n_words; k++) {
        enum tag_match m = literal_at(s, n, i, words[k]);
        if (m == TAG_YES) {
            *which = k;
            return m;
        }
        more |= m == TAG_MORE;
    }
    return more ? TAG_MORE : TAG_NO;
}

enum tag_match tag_literal(const char *s, size_t n, const char *text)
{
    size_t i = 0;

    return literal_at(s, n, &i, text);
}

static const char *const calls_words[] = {"tool_calls", "calls", "function_calls"};

enum tag_match tag_calls_open(const char *s, size_t n, size_t *len)
{
    struct tag_mark mark;
    size_t i = 0, which;
    enum tag_match m;

    if ((m = literal_at(s, n, &i, "<")) != TAG_YES)
        return m;
    if ((m = mark_at(s, n, &i, &mark)) != TAG_YES)
        return m;
    if ((m = spaces_at(s, n, &i, 0)) != TAG_YES)
        return m;
    if ((m = word_at(s, n, &i, calls_words, FST_COUNT(calls_words), &which)) != TAG_YES)
        return m;
    if ((m = spaces_at(s, n, &i, 0)) != TAG_YES)
        return m;
    if ((m = literal_at(s, n, &i, ">")) != TAG_YES)
        return m;
    *len = i;
    return TAG_YES;
}

/* A quote: straight, single, or typographic.  *kind: what may end the text it opens. */
static enum tag_match quote_at(const char *s, size_t n, size_t *i, size_t *kind)
{
    static const char *const quotes[] = {"\"", "'", "\xe2\x80\x9c", "\xe2\x80\x9d"};

    return word_at(s, n, i, quotes, FST_COUNT(quotes), kind);
}

/* Finds the end of a quoted value that starts at *i; moves *i behind the closing quote. */
static enum tag_match value_at(const char *s, size_t n, size_t *i, size_t kind, size_t *value_len)
{
    size_t start = *i;

    for (; *i - start <= TAG_NAME_MAX; ++*i) {
        size_t at = *i, end_kind;
        enum tag_match m;
        if (*i == n)
            return TAG_MORE;
        if ((unsigned char)s[*i] < 0x20)
            return TAG_NO; /* no name has control characters */
        m = quote_at(s, n, i, &end_kind);
        if (m == TAG_MORE)
            return m;
        if (m == TAG_YES && (end_kind == kind || (end_kind >= 2 && kind >= 2))) {
            *value_len = at - start;
            return TAG_YES;
        }
        *i = at;
    }
    return TAG_NO;
}

/* string="false" anywhere in the attributes, with whatever quotes. */
static bool says_json(const char *s, size_t n)
{
    const char *at = memmem(s, n, "string", 6), *no;

    if (!at)
        return false;
    n -= (size_t)(at - s);
    no = memmem(at, n, "false", 5);
    return no && !memmem(at, (size_t)(no - at), "true", 4);
}

enum tag_match tag_named(const char *s, size_t n, enum tag_name which, struct tag_open *t,
                         size_t *len)
{
    size_t i = 0, kind, attrs;
    enum tag_match m;

    *t = (struct tag_open){0};
    if ((m = literal_at(s, n, &i, "<")) != TAG_YES)
        return m;
    if (i == n)
        return TAG_MORE;
    if (!is_space(s[i]) && s[i] != 'i' && s[i] != 'p' &&
        (m = mark_at(s, n, &i, &t->mark)) != TAG_YES)
        return m;
    if ((m = spaces_at(s, n, &i, 0)) != TAG_YES)
        return m;
    if ((m = literal_at(s, n, &i, which == TAG_INVOKE ? "invoke" : "parameter")) != TAG_YES)
        return m;
    if ((m = spaces_at(s, n, &i, 1)) != TAG_YES)
        return m;
    if ((m = literal_at(s, n, &i, "name")) != TAG_YES)
        return m;
    if ((m = spaces_at(s, n, &i, 0)) != TAG_YES)
        return m;
    if ((m = literal_at(s, n, &i, "=")) != TAG_YES)
        return m;
    if ((m = spaces_at(s, n, &i, 0)) != TAG_YES)
        return m;
    if ((m = quote_at(s, n, &i, &kind)) != TAG_YES)
        return m;
    t->name = s + i;
    if ((m = value_at(s, n, &i, kind, &t->name_len)) != TAG_YES)
        return m;
    for (attrs = i; i < n && s[i] != '>' && i - attrs <= TAG_ATTRS_MAX;)
        i++;
    if (i - attrs > TAG_ATTRS_MAX)
        return TAG_NO;
    if (i == n)
        return TAG_MORE;
    t->is_json = says_json(s + attrs, i - attrs);
    *len = i + 1;
    return TAG_YES;
}

enum tag_match tag_close(const char *s, size_t n, const struct tag_mark *mark, enum tag_name *which,
                         size_t *len)
{
    static const char *const words[] = {"parameter", "invoke", "tool_calls", "calls",
                                        "function_calls"};
    struct tag_mark found = {.len = 0};
    size_t i = 0, word;
    enum tag_match m;

    if ((m = literal_at(s, n, &i, "</")) != TAG_YES)
        return m;
    if (i == n)
        return TAG_MORE;
    m = mark_at(s, n, &i, &found);
    if (m == TAG_MORE)
        return m;
    if (m == TAG_NO) {
        if (mark && mark->len)
            return TAG_NO;
        i = 2;
        found.len = 0;
    } else if (mark &&
               !(found.len == mark->len && memcmp(found.text, mark->text, found.len) == 0) &&
               !(found.len == strlen(PROTOCOL_MARK) &&
                 memcmp(found.text, PROTOCOL_MARK, found.len) == 0))
        return TAG_NO;
    if ((m = spaces_at(s, n, &i, 0)) != TAG_YES)
        return m;
    if ((m = word_at(s, n, &i, words, FST_COUNT(words), &word)) != TAG_YES)
        return m;
    if ((m = spaces_at(s, n, &i, 0)) != TAG_YES)
        return m;
    if ((m = literal_at(s, n, &i, ">")) != TAG_YES)
        return m;
    *which = word == 0 ? TAG_PARAMETER : word == 1 ? TAG_INVOKE : TAG_CALLS;
    *len = i;
    return TAG_YES;
}
