#include "tools/bench_body.h"

#include "tools/bench_remote.h"

/* Whether this member is ours to write. */
static bool ours(const struct bench_body *o, struct buf *b, const char *name)
{
    json_val *extra = o->extra;
    for (size_t i = 0; i < json_count(extra); i++) {
        const char *key;
        json_member(extra, i, &key, NULL);
        if (!strcmp(key, name))
            return false;
    }
    if (b->data[b->len - 1] != '{')
        buf_putc(b, ',');
    buf_printf(b, "\"%s\":", name);
    return true;
}

static void put_prompt(const struct bench_body *o, struct buf *b, const struct dataset_row *row)
{
    bool ids = o->ids;
    const char *name = o->api == ANSWER_CHAT          ? "messages"
                       : o->api == ANSWER_COMPLETIONS ? "prompt"
                       : ids                          ? "input_ids"
                                                      : "text";
    if (!ours(o, b, name))
        return;
    if (o->api == ANSWER_CHAT)
        buf_puts(b, "[{\"role\":\"user\",\"content\":");
    if (ids)
        bench_remote_put_ids(b, &row->ids);
    else
        json_put_string(b, row->text, row->text_len);
    if (o->api == ANSWER_CHAT)
        buf_puts(b, "}]");
}

static void put_number(const struct bench_body *o, struct buf *b, const char *name, int64_t n)
{
    if (ours(o, b, name))
        buf_printf(b, "%lld", (long long)n);
}

static void put_word(const struct bench_body *o, struct buf *b, const char *name, const char *json)
{
    if (ours(o, b, name))
        buf_puts(b, json);
}

static void put_native(const struct bench_body *o, struct buf *b, int64_t n_tokens)
{
    bool ignore = o->ignore_eos;
    if (ours(o, b, "sampling_params"))
        buf_printf(b, "{\"temperature\":0.0,\"max_new_tokens\":%lld,\"ignore_eos\":%s}",
                   (long long)n_tokens, ignore ? "true" : "false");
    put_word(o, b, "lora_path", "null");
    put_word(o, b, "return_logprob", o->logprobs ? "true" : "false");
    put_number(o, b, "logprob_start_len", -1);
}

static void put_openai(const struct bench_body *o, struct buf *b, int64_t n_tokens)
{
    if (ours(o, b, "model"))
        json_put_string(b, o->model, strlen(o->model));
    put_word(o, b, "temperature", "0.0");
    put_number(o, b, "max_tokens", n_tokens);
    if (o->streams)
        put_word(o, b, "stream_options", "{\"include_usage\":true}");
    if (o->api == ANSWER_CHAT)
        return;
    put_number(o, b, "best_of", 1);
    put_word(o, b, "ignore_eos", o->ignore_eos ? "true" : "false");
}

void bench_body_put(struct buf *b, const struct bench_body *o, const struct dataset_row *row,
                    int64_t n_tokens, const char *salt)
{
    json_val *extra = o->extra;
    buf_putc(b, '{');
    put_prompt(o, b, row);
    if (o->api == ANSWER_GENERATE)
        put_native(o, b, n_tokens);
    else
        put_openai(o, b, n_tokens);
    put_word(o, b, "stream", o->streams ? "true" : "false");
    if (salt && ours(o, b, "cache_salt"))
        json_put_string(b, salt, strlen(salt));
    for (size_t i = 0; i < json_count(extra); i++) {
        const char *key;
        json_val *v = json_member(extra, i, &key, NULL);
        if (b->data[b->len - 1] != '{')
            buf_putc(b, ',');
        json_put_string(b, key, strlen(key));
        buf_putc(b, ':');
        json_put(b, v, JSON_COMPACT);
    }
    buf_putc(b, '}');
}
