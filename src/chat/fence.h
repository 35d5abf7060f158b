/* fence.h - is this line inside a Markdown code fence?  Tool markup quoted there is no call. */
#ifndef FST_CHAT_FENCE_H
#define FST_CHAT_FENCE_H

#include "base/base.h"

/* Zero is a valid start.  After CommonMark: up to 3 spaces, then 3 or more ` or ~; a backtick fence
 * has no backtick in the rest of its line; the end is at least as long and stands alone. */
struct fence {
    char open; /* ` or ~ inside a fence, else 0 */
    int open_len;
    int where; /* in the current line: see fence.c */
    int indent, run;
    char run_char;
};
void fence_feed(struct fence *f, const char *s, size_t len);
static inline bool fence_inside(const struct fence *f)
{
    return f->open != 0;
}

#endif
