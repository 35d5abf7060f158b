/* utf8.h - UTF-8: decoding, whole texts, and pieces that arrive one after the other.
 *
 * Valid means RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.  Broken input is
 * replaced as Python's bytes.decode("utf-8", errors="replace") does: one U+FFFD for each longest
 * run of bytes that could have begun a character (Unicode 15, section 3.9, maximal subparts). */
#ifndef FST_UTF8_H
#define FST_UTF8_H

#include "base/base.h"

/* jansson's archive exports an internal function of this name: ours is linked under another. */
#define utf8_encode fst_utf8_encode

#define UTF8_REPLACEMENT "\xef\xbf\xbd"

/* First character of s[0..n).  n >= 1.  Returns its length 1..4 and sets *cp; or -k when the first k
 * bytes can begin no character (k 1..3); or 0 when s is a proper prefix of a character and more
 * bytes are needed. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes cp (a Unicode scalar value) to out, returns 1..4.  No NUL is added. */
int utf8_encode(uint32_t cp, char out[4]);

/* Length of the longest valid start of s; len when all is valid. */
size_t utf8_valid_prefix(const char *s, size_t len);
static inline bool utf8_valid(const char *s, size_t len)
{
    return utf8_valid_prefix(s, len) == len;
}
/* Number of code points of a valid text. */
size_t utf8_count(const char *s, size_t len);
/* Append s, with broken parts replaced. */
void utf8_append_lossy(struct buf *out, const char *s, size_t len);

/* Text in pieces (tokens of a stream).  Zero is a valid start.  feed appends everything that is
 * certain and keeps at most 3 bytes of an unfinished character; end replaces what is kept.  Any
 * way of cutting a text gives the same bytes as utf8_append_lossy. */
struct utf8_stream {
    char held[4];
    int n_held;
};
void utf8_stream_feed(struct utf8_stream *u, struct buf *out, const char *s, size_t len);
void utf8_stream_end(struct utf8_stream *u, struct buf *out);

#endif
