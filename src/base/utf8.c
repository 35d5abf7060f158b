/* utf8.c - UTF-8 as RFC 3629 has it (table 3-7 of the Unicode standard). */
#include "base/utf8.h"

/* Length of a character by its first byte and the bounds of its second; 0 for a byte that begins
 * none. */
static int lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c >= 0xc2 && c <= 0xdf)
        return 2;
    if (c >= 0xe0 && c <= 0xef) {
        if (c == 0xe0)
            *lo = 0xa0;
        if (c == 0xed)
            *hi = 0x9f; /* no surrogates */
        return 3;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if (c == 0xf0)
            *lo = 0x90;
        if (c == 0xf4)
            *hi = 0x8f; /* up to U+10FFFF */
        return 4;
    }
    return 0;
}

int utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned char lo, hi;
    uint32_t c = p[0];
    int len;

    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    len = lead(p[0], &lo, &hi);
    if (len == 0)
        return -1;
    c &= 0x7fu >> len;
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -i;
        c = c << 6 | (p[i] & 0x3f);
        lo = 0x80;
        hi = 0xbf;
    }
    *cp = c;
    return len;
}

int utf8_encode(uint32_t cp, char out[4])
{
    FST_ASSERT(cp <= 0x10ffff);
    FST_ASSERT(cp < 0xd800 || cp > 0xdfff);
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t utf8_valid_prefix(const char *s, size_t len)
{
    size_t i = 0;
    uint32_t cp;

    while (i < len) {
        int k = utf8_decode(s + i, len - i, &cp);
        if (k <= 0)
            break;
        i += (size_t)k;
    }
    return i;
}

size_t utf8_count(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

/* Appends what is certain of s; returns how many bytes at its end are an unfinished character. */
static size_t append_certain(struct buf *out, const char *s, size_t len)
{
    size_t i = 0;
    uint32_t cp;

    while (i < len) {
        size_t good = utf8_valid_prefix(s + i, len - i);
        int k;

        buf_append(out, s + i, good);
        i += good;
        if (i == len)
            break;
        k = utf8_decode(s + i, len - i, &cp);
        if (k == 0)
            return len - i;
        buf_puts(out, UTF8_REPLACEMENT);
        i += (size_t)-k;
    }
    return 0;
}

void utf8_append_lossy(struct buf *out, const char *s, size_t len)
{
    if (append_certain(out, s, len) > 0)
        buf_puts(out, UTF8_REPLACEMENT);
}

void utf8_stream_feed(struct utf8_stream *u, struct buf *out, const char *s, size_t len)
{
    size_t rest;

    /* Byte by byte while something is held: at most three times per character. */
    while (u->n_held > 0 && len > 0) {
        FST_ASSERT(u->n_held < 4);
        u->held[u->n_held++] = *s++;
        len--;
        rest = append_certain(out, u->held, (size_t)u->n_held);
        memmove(u->held, u->held + u->n_held - rest, rest);
        u->n_held = (int)rest;
    }
    rest = append_certain(out, s, len);
    if (rest > 0) {
        memcpy(u->held, s + len - rest, rest);
        u->n_held = (int)rest;
    }
}

void utf8_stream_end(struct utf8_stream *u, struct buf *out)
{
    if (u->n_held > 0)
        buf_puts(out, UTF8_REPLACEMENT);
    u->n_held = 0;
}
