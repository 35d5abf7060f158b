/* tags.h - tool markup in a text that is still arriving.
 *
 * Each matcher looks at s[0..n), which starts at a '<', and says yes (with the length), no, or that
 * more text has to come.  Spellings that models were seen to write are taken as well: one or two
 * bars, fullwidth or ASCII, one side missing, a space behind the mark (V4.1), other quotes. */
#ifndef FST_CHAT_TAGS_H
#define FST_CHAT_TAGS_H

#include "base/base.h"

enum tag_match { TAG_NO, TAG_YES, TAG_MORE };

enum {
    TAG_NAME_MAX = 256, /* longer ones are no tag: what waits for more text stays small */
    TAG_ATTRS_MAX = 128
};

/* The mark of an element as it was spelled; its end must be spelled so, or as it should be. */
struct tag_mark {
    char text[20];
    unsigned len; /* 0: none, a plain tag */
};

struct tag_open {
    struct tag_mark mark;
    const char *name; /* value of name="..." */
    size_t name_len;
    bool is_json; /* string="false" */
};

enum tag_name { TAG_PARAMETER, TAG_INVOKE, TAG_CALLS };

/* s is exactly `text` so far. */
enum tag_match tag_literal(const char *s, size_t n, const char *text);
/* "<|DSML|tool_calls>", "<|DSML| calls>", "<|DSML|function_calls>". */
enum tag_match tag_calls_open(const char *s, size_t n, size_t *len);
/* "<|DSML|invoke name="f">", "<|DSML|parameter name="k" string="true">"; which: one of the two. */
enum tag_match tag_named(const char *s, size_t n, enum tag_name which, struct tag_open *t,
                         size_t *len);
/* "</|DSML|parameter>" and so on.  mark NULL: any mark will do. */
enum tag_match tag_close(const char *s, size_t n, const struct tag_mark *mark, enum tag_name *which,
                         size_t *len);

#endif
