/* fuzz_chat_responses.c - any JSON as a body of the Responses API, its items also as those of a
 * conversation before it: refused with a reason, or rendered. */
#include "chat/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_doc *d;
    struct chat_request r;
    struct chat_prompt p;

    if (size < 1 || json_parse(&d, (const char *)data + 1, size - 1) < 0)
        return 0;
    json_val *before = data[0] & 1 ? json_get(json_root(d), "input") : NULL;
    if (chat_request_from_responses(&r, json_root(d), before, NULL) == FST_OK) {
        FST_ASSERT(r.n_messages > 0);
        if (chat_render(&p, &r) == FST_OK)
            FST_ASSERT(p.text.len > 0);
        else
            FST_ASSERT(fst_error_text()[0] != 0);
        chat_prompt_release(&p);
    } else {
        FST_ASSERT(r.error_param[0] != 0);
        FST_ASSERT(r.error_code != NULL);
    }
    chat_request_release(&r);
    json_free(d);
    return 0;
}
