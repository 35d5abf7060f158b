/* fuzz_chat_messages.c - any JSON as a body of the Messages API: refused with a reason, or rendered, with
 * the marks of every byte. */
#include "chat/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_doc *d;
    struct chat_request r;
    struct chat_prompt p;
    struct chat_defaults o;

    if (size < 1 || json_parse(&d, (const char *)data + 1, size - 1) < 0)
        return 0;
    chat_defaults_init(&o);
    o.placeholder_parts = data[0] & 1;
    o.escape_dsml = data[0] & 2;
    if (chat_request_from_messages(&r, json_root(d), &o) == FST_OK) {
        FST_ASSERT(r.n_messages > 0);
        FST_ASSERT(chat_render(&p, &r) == FST_OK);
        FST_ASSERT(p.text.len > 0);
        FST_ASSERT(p.allowed.len == (p.text.len + 7) / 8);
        chat_prompt_release(&p);
    } else {
        FST_ASSERT(r.error_param[0] != 0);
        FST_ASSERT(r.error_code != NULL);
        FST_ASSERT(fst_error_text()[0] != 0);
    }
    chat_request_release(&r);
    json_free(d);
    return 0;
}
