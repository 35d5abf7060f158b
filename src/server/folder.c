/* folder.c - the little that the server itself reads of a model folder. */
#include "base/file.h"
#include "base/json.h"
#include "server/server.h"

int64_t server_config_int(const char *model_dir, const char *key)
{
    char path[4096];
    struct buf text = {0};
    struct json_doc *doc = NULL;
    int64_t x = 0;
    if (file_join(path, sizeof path, model_dir, "config.json") == FST_OK && file_exists(path) &&
        file_read(&text, path, 0) == FST_OK && json_parse(&doc, buf_str(&text), text.len) == FST_OK)
        json_int(json_get(json_root(doc), key), &x);
    json_free(doc);
    buf_release(&text);
    return x;
}

enum fst_status server_unnamed_ids(struct tokenizer_ids *out, const struct tokenizer *t,
                                   const char *model_dir)
{
    enum { ROWS_MAX = 1 << 22 }; /* no vocabulary has more: such a file is the engine's to refuse */
    int64_t rows = server_config_int(model_dir, "vocab_size");
    enum fst_status rc = FST_OK;
    for (int32_t id = 0; rows <= ROWS_MAX && id < rows && rc == FST_OK; id++)
        if (!tokenizer_is_named(t, id))
            rc = tokenizer_ids_push(out, id);
    return rc;
}
