/* split.h - the pre-tokeniser: where a text is cut before bytes are merged. */
#ifndef FST_TOKENIZER_SPLIT_H
#define FST_TOKENIZER_SPLIT_H

#include "base/base.h"

/* Class bits of a code point (Unicode general category by its first letter, White_Space). */
enum {
    SPLIT_LETTER = 1,
    SPLIT_MARK = 2,
    SPLIT_NUMBER = 4,
    SPLIT_PUNCT = 8,
    SPLIT_SYMBOL = 16,
    SPLIT_SPACE = 32
};
unsigned split_class(uint32_t cp); /* 0 above U+10FFFF and for what is in no class */

/* Walks the pieces of one text (a run between added tokens):
 *     struct split s; split_init(&s, text, len);
 *     while (split_next(&s, &piece, &n)) ...
 * Pieces are never empty and their concatenation is the text. */
struct split {
    const char *text;
    size_t len;
    size_t pos;         /* start of the next piece */
    size_t segment_end; /* the edge that look-ahead stops at */
};
void split_init(struct split *s, const char *text, size_t len);
bool split_next(struct split *s, const char **piece, size_t *n);

#endif
