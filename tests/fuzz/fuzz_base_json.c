/* fuzz_base_json.c - any bytes: refused with a byte inside them, or written and read back equal. */
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(json_val *v)
{
    int64_t i;
    double x;

    json_int(v, &i);
    json_real(v, &x);
    for (size_t k = 0; k < json_count(v); k++) {
        const char *key;
        size_t len;

        if (json_type_of(v) == JSON_OBJECT) {
            json_val *m = json_member(v, k, &key, &len);
            FST_ASSERT(json_get(v, key) == m);
            walk(m);
        } else {
            walk(json_at(v, k));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf first = {0}, second = {0}, python = {0};
    struct json_doc *d;
    size_t at;

    if (json_parse(&d, (const char *)data, size) < 0) {
        FST_ASSERT(sscanf(fst_error_text(), "Invalid JSON at byte %zu: ", &at) == 1);
        FST_ASSERT(at <= size);
        return 0;
    }
    walk(json_root(d));
    json_put(&first, json_root(d), JSON_COMPACT);
    json_put(&python, json_root(d), JSON_PYTHON);
    json_free(d);
    FST_ASSERT(json_parse(&d, first.data, first.len) == FST_OK);
    json_put(&second, json_root(d), JSON_COMPACT);
    json_free(d);
    FST_ASSERT(first.len == second.len);
    FST_ASSERT(memcmp(first.data, second.data, first.len) == 0);
    buf_release(&first);
    buf_release(&second);
    buf_release(&python);
    return 0;
}
