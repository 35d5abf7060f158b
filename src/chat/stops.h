/* stops.h - stop strings in a text that arrives in pieces.
 *
 * The stop string that is complete first ends the text; of those complete at the same byte the one
 * that began first.  So neither the order of the list nor the cuts of the text matter, and nothing
 * has to be read beyond the byte that completes a stop string. */
#ifndef FST_CHAT_STOPS_H
#define FST_CHAT_STOPS_H

#include "chat/chat.h"

struct stops_one {
    char *text;
    uint32_t *back; /* length of the longest border of each start of text */
    uint32_t len, matched;
};

struct stops {
    struct stops_one *one; /* owned */
    size_t n;
};
/* Copies.  An empty stop string is FST_EINVAL. */
enum fst_status stops_init(struct stops *s, const struct chat_str *list, size_t n);
void stops_release(struct stops *s);
void stops_reset(struct stops *s); /* nothing seen yet */
/* Takes text up to the byte that completes a stop string: true, with its index and *used bytes of
 * text taken; else false with all of it taken. */
bool stops_feed(struct stops *s, const char *text, size_t len, size_t *used, int *index);
/* Bytes at the end of what was taken that may begin a stop string. */
size_t stops_held(const struct stops *s);

#endif
