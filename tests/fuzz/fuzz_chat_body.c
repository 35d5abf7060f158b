/* fuzz_chat_body.c - any JSON as a chat body: refused with a reason, or rendered, with the marks of
 * every byte and no special token beyond the template's. */
#include "chat/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_doc *d;
    struct chat_request r;
    struct chat_prompt p;

    if (size < 1 || json_parse(&d, (const char *)data + 1, size - 1) < 0)
        return 0;
    if (chat_request_from_json(&r, json_root(d), NULL) == FST_OK) {
        r.reference = data[0] & 1;
        r.d.escape_dsml = data[0] & 2;
        r.d.profile = data[0] & 4 ? CHAT_PROFILE_OFFICIAL : CHAT_PROFILE_PREVIEW;
        if (chat_render(&p, &r) == FST_OK) {
            FST_ASSERT(p.text.len > 0);
            FST_ASSERT(p.allowed.len == (p.text.len + 7) / 8);
        } else {
            FST_ASSERT(fst_error_text()[0] != 0);
        }
        chat_prompt_release(&p);
    } else {
        FST_ASSERT(r.error_param[0] != 0);
        FST_ASSERT(r.error_code != NULL);
    }
    chat_request_release(&r);
    json_free(d);
    return 0;
}
