/* decode.c - ids to bytes and text, and small questions about ids. */
#include "tokenizer/vocab.h"

#include "base/utf8.h"

const struct tokenizer_specials *tokenizer_specials(const struct tokenizer *t)
{
    return &t->special;
}

int32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->n_ids;
}

bool tokenizer_is_named(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->token[id].len > 0;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->token[id].is_special;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    if (!tokenizer_is_named(t, id)) {
        *len = 0;
        return "";
    }
    *len = t->token[id].len;
    return t->blob + t->token[id].at;
}

enum fst_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                                 bool skip_special, struct buf *out)
{
    struct utf8_stream u = {0};

    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, ids[i], &len);
        if (!(skip_special && tokenizer_is_special(t, ids[i])))
            utf8_stream_feed(&u, out, bytes, len);
    }
    utf8_stream_end(&u, out);
    if (out->failed)
        return fst_error(FST_ENOMEM, "tokenizer: no memory for the text of %zu ids", n);
    return FST_OK;
}
