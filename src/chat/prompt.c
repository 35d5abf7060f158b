/* prompt.c - a rendered prompt to ids: stretches of text, and runs of ids as they were sampled. */
#include "chat/memory.h"

void chat_prompt_release(struct chat_prompt *p)
{
    for (size_t i = 0; i < p->n_runs; i++)
        chat_turn_unref(p->runs[i].turn);
    mem_free(p->runs);
    buf_release(&p->text);
    buf_release(&p->allowed);
    *p = (struct chat_prompt){0};
}

/* Bytes from..to of the text, as a text of their own. */
static enum fst_status encode_part(const struct chat_prompt *p, size_t from, size_t to,
                                   const struct tokenizer *t, struct tokenizer_ids *out)
{
    const uint8_t *all = (const uint8_t *)p->allowed.data;
    size_t len = to - from;
    uint8_t *bits;
    enum fst_status rc;

    if (from % 8 == 0)
        return tokenizer_encode(t, buf_str(&p->text) + from, len, all ? all + from / 8 : NULL, out);
    bits = mem_calloc(len / 8 + 1, 1);
    if (!bits)
        return fst_error(FST_ENOMEM, "no memory for a prompt");
    for (size_t i = 0; i < len; i++)
        bits[i >> 3] |= (uint8_t)(((all[(from + i) >> 3] >> ((from + i) & 7)) & 1u) << (i & 7));
    rc = tokenizer_encode(t, p->text.data + from, len, bits, out);
    mem_free(bits);
    return rc;
}

enum fst_status chat_encode(const struct chat_prompt *p, const struct tokenizer *t,
                            struct tokenizer_ids *out)
{
    size_t at = 0;

    for (size_t i = 0; i < p->n_runs; i++) {
        const struct chat_run *run = &p->runs[i];
        FST_TRY(encode_part(p, at, run->from, t, out));
        for (size_t k = 0; k < run->n_ids; k++)
            FST_TRY(tokenizer_ids_push(out, run->ids[k]));
        at = run->to;
    }
    return encode_part(p, at, p->text.len, t, out);
}
