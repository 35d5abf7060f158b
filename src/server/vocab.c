#include "server/vocab.h"

#include "base/file.h"
#include "base/json.h"

/* More rows than any vocabulary has: such a file is for the engine to refuse. */
enum { ROWS_MAX = 1 << 22 };

enum fst_status vocab_unnamed(struct tokenizer_ids *out, const struct tokenizer *t,
                              const char *model_dir)
{
    char path[4096];
    struct buf text = {0};
    struct json_doc *doc = NULL;
    int64_t rows = 0;
    FST_TRY(file_join(path, sizeof path, model_dir, "config.json"));
    if (file_exists(path) && file_read(&text, path, 0) == FST_OK &&
        json_parse(&doc, buf_str(&text), text.len) == FST_OK &&
        (!json_int(json_get(json_root(doc), "vocab_size"), &rows) || rows > ROWS_MAX))
        rows = 0;
    json_free(doc);
    buf_release(&text);
    enum fst_status rc = FST_OK;
    for (int32_t id = 0; id < rows && rc == FST_OK; id++)
        if (!tokenizer_is_named(t, id))
            rc = tokenizer_ids_push(out, id);
    return rc;
}
