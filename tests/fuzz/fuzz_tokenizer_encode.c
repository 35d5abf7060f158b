/* fuzz_tokenizer_encode.c - any bytes, with any marks: ids whose bytes are the text again. */
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *t;
    size_t len = size - size / 9, at = 0; /* the text, then one bit of marks per byte */
    const char *text = (const char *)data;
    uint8_t *marks;
    struct tokenizer_ids ids = {0}, plain = {0};

    if (!t && tokenizer_load(&t, "tests/data/tiny-tokenizer.json") < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        abort();
    }
    marks = mem_calloc(1, len / 8 + 1);
    FST_ASSERT(marks);
    memcpy(marks, data + len, size - len);
    FST_ASSERT(tokenizer_encode(t, text, len, marks, &ids) == FST_OK);
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *s = tokenizer_bytes(t, ids.id[i], &n);
        FST_ASSERT(n > 0);
        FST_ASSERT(n <= len - at);
        FST_ASSERT(memcmp(s, text + at, n) == 0);
        if (tokenizer_special(t, s) == ids.id[i])
            for (size_t k = at; k < at + n; k++)
                FST_ASSERT(marks[k >> 3] >> (k & 7) & 1);
        at += n;
    }
    FST_ASSERT(at == len);
    FST_ASSERT(tokenizer_encode(t, text, len, NULL, &plain) == FST_OK);
    for (size_t i = 0; i < plain.n; i++) {
        size_t n;
        const char *s = tokenizer_bytes(t, plain.id[i], &n);
        FST_ASSERT(tokenizer_special(t, s) != plain.id[i]);
    }
    tokenizer_ids_release(&ids);
    tokenizer_ids_release(&plain);
    mem_free(marks);
    return 0;
}
