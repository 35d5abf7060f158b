/* fuzz_tokenizer_load.c - any tokenizer.json: refused with a reason, or it encodes. */
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "the <think> 123 \xe6\x97\xa5\xff";
    struct tokenizer *t;
    struct tokenizer_ids ids = {0};

    if (tokenizer_parse(&t, (const char *)data, size, "t") < 0) {
        FST_ASSERT(!t);
        FST_ASSERT(fst_error_text()[0] != 0);
        return 0;
    }
    FST_ASSERT(tokenizer_encode_text(t, text, sizeof text - 1, true, &ids) == FST_OK);
    FST_ASSERT(ids.n > 0);
    tokenizer_ids_release(&ids);
    tokenizer_free(t);
    return 0;
}
