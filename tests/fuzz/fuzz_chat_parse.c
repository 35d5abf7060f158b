/* fuzz_chat_parse.c - any reply: the same events however it is cut, whole code points, and arguments
 * that are JSON objects.  Byte 0 chooses options, byte 1 how the rest is cut. */
#include "base/json.h"
#include "base/rng.h"
#include "chat/chat.h"
#include "support/replies.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct chat_request request;

static void declare(void)
{
    static const char schema[] = "{\"properties\":{\"i\":{\"type\":\"integer\"},\"s\":{\"type\":"
                                 "\"string\"},\"o\":{\"type\":\"object\"}},\"required\":[\"s\"]}";
    struct json_doc *d;

    if (request.n_tools)
        return;
    FST_ASSERT(json_parse(&d, schema, sizeof schema - 1) == FST_OK);
    chat_request_init(&request, NULL);
    chat_add_tool(&request, "f", NULL, json_root(d), false);
    json_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chat_parser_opts o = {.start_name = {"f", 1}};
    struct reply whole, cut;
    struct rng rng;
    const char *text = (const char *)data + 2;
    size_t n = 0, *cuts;
    enum chat_end end;

    if (size < 2)
        return 0;
    declare();
    size -= 2;
    o.start = (enum chat_start)(data[0] & 3);
    o.tools_on = !(data[0] & 4);
    o.coerce_args = !(data[0] & 8);
    o.keep_think = data[0] & 16;
    o.one_call = data[0] & 32;
    o.tools = request.tools;
    o.n_tools = request.n_tools;
    end = (enum chat_end)((data[0] >> 6) % 3);
    cuts = mem_alloc((size + 1) * sizeof *cuts);
    FST_ASSERT(cuts);
    rng_init(&rng, data[1]);
    for (size_t at = 0; at < size; at += 1 + rng_below(&rng, 1 + data[1] % 32))
        cuts[n++] = at;
    reply_init(&whole);
    reply_init(&cut);
    FST_ASSERT(reply_parse(&whole, &o, text, size, NULL, 0, end) == FST_OK);
    FST_ASSERT(reply_parse(&cut, &o, text, size, cuts, n, end) == FST_OK);
    FST_ASSERT(whole.is_valid);
    FST_ASSERT(cut.is_valid);
    FST_ASSERT(whole.finish == cut.finish);
    FST_ASSERT(strcmp(buf_str(&whole.trace), buf_str(&cut.trace)) == 0);
    for (int i = 0; i < whole.n_calls && i < REPLY_CALLS_MAX; i++) {
        struct json_doc *d;
        if (!whole.complete[i])
            continue;
        FST_ASSERT(json_parse(&d, whole.args[i].data, whole.args[i].len) == FST_OK);
        FST_ASSERT(json_type_of(json_root(d)) == JSON_OBJECT);
        json_free(d);
    }
    reply_release(&whole);
    reply_release(&cut);
    mem_free(cuts);
    return 0;
}
