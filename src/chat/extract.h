/* extract.h - the JSON in a reply that was asked to be JSON, without the prose and fence around
 * it.
 *
 * After DeepSeek's deepseek-recipe: text before the first '{' or '[' is left out; if a line
 * "```json" or "```" stood there, the JSON ends before the next "\n```". */
#ifndef FST_CHAT_EXTRACT_H
#define FST_CHAT_EXTRACT_H

#include "base/base.h"

/* A slice of the text; at: its offset, in the count that feed's `at` goes by. */
typedef void extract_fn(void *ud, const char *text, size_t len, uint64_t at);

struct extract {
    int where;          /* zero is a valid start */
    struct buf skipped; /* before the JSON; given back if there is none */
    unsigned matched;   /* of "\n```" */
    uint64_t end;       /* offset behind what was fed */
};
void extract_release(struct extract *x);
void extract_feed(struct extract *x, const char *text, size_t len, uint64_t at, extract_fn *emit,
                  void *ud);
/* What was held back, or all of the text if no JSON came. */
void extract_end(struct extract *x, extract_fn *emit, void *ud);

#endif
