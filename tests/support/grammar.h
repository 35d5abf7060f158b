/* grammar.h - DeepSeek-V4's tool format for tests of src/grammar. */
#ifndef TESTS_SUPPORT_GRAMMAR_H
#define TESTS_SUPPORT_GRAMMAR_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/protocol.h"
#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

static const struct grammar_tool_format grammar_test_format = PROTOCOL_TOOL_FORMAT;

/* The tiny tokenizer and its vocabulary; false: stderr says why not. */
static inline bool grammar_test_open(struct tokenizer **tok, struct grammar_vocab **vocab)
{
    bool ok = tokenizer_load(tok, "tests/data/tiny-tokenizer.json") == FST_OK &&
              grammar_vocab_new(vocab, *tok, tokenizer_vocab_size(*tok),
                                tokenizer_specials(*tok)->eos, PROTOCOL_MARK) == FST_OK;
    if (!ok)
        fprintf(stderr, "%s\n", fst_error_text());
    return ok;
}
static inline void grammar_test_close(struct tokenizer *tok, struct grammar_vocab *vocab)
{
    grammar_vocab_free(vocab);
    tokenizer_free(tok);
}

/* A copy of s with the mark of each tag as its token: the byte 0xff.  In "</X" and "<X" only, as the
 * tokenizer of a prompt would find it. */
static inline char *grammar_test_mark(const char *s, size_t *len)
{
    size_t n = 0, k = strlen(PROTOCOL_MARK);
    char *out = malloc(*len + 1);

    for (size_t i = 0; i < *len;) {
        if (*len - i >= k && memcmp(s + i, PROTOCOL_MARK, k) == 0) {
            out[n++] = (char)0xff;
            i += k;
        } else {
            out[n++] = s[i++];
        }
    }
    out[n] = 0;
    *len = n;
    return out;
}

/* Is `text` a document?  Bytes, with the tokens of v standing by. */
static inline bool grammar_test_accepts(struct grammar *g, const struct grammar_vocab *v,
                                        const char *text)
{
    struct matcher *m;
    size_t len = strlen(text);
    char *marked = grammar_test_mark(text, &len);
    bool ok;

    FST_ASSERT(matcher_new(&m, g, v, NULL) == FST_OK);
    ok = matcher_advance_text(m, marked, len) == len && matcher_is_accepting(m);
    free(marked);
    matcher_free(m);
    return ok;
}

static inline enum fst_status grammar_test_schema(struct grammar **g, const char *text,
                                                  const struct grammar_opts *o)
{
    struct json_doc *d;
    enum fst_status rc;

    *g = NULL;
    rc = json_parse(&d, text, strlen(text));
    if (rc < 0)
        return rc;
    rc = grammar_from_schema(g, json_root(d), o);
    json_free(d);
    return rc;
}

static inline bool grammar_test_bit(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

#endif
