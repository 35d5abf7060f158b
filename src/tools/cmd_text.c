/* cmd_text.c - tokenize, detokenize, render: text work without an engine. */
#include "base/file.h"
#include "tools/tool.h"

/* The words of the line joined by blanks, or all of stdin. */
static enum fst_status input(const struct options *o, struct buf *b)
{
    const char *const *args;
    size_t n = options_args(o, &args);
    if (!n)
        return file_read(b, "-", 0);
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_putc(b, ' ');
        buf_puts(b, args[i]);
    }
    return b->failed ? fst_error(FST_ENOMEM, "out of memory") : FST_OK;
}

static void put_ids(struct buf *b, const struct tokenizer_ids *ids, const char *sep)
{
    buf_putc(b, '[');
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(b, "%s%d", i ? sep : "", ids->id[i]);
    buf_putc(b, ']');
}

int cmd_tokenize(int argc, char **argv)
{
    static const struct option_def defs[] = {
        {.name = "parse-special",
         .type = OPTION_FLAG,
         .initial = "true",
         .help = "control tokens written in the text become control tokens"},
    };
    const struct option_group groups[] = {OPTION_GROUP("Text", defs), tool_model_group};
    int status;
    struct options *o =
        tool_parse_words("firesteel tokenize", "[options] [TEXT]", groups, 2, argc, argv, &status);
    if (!o)
        return status;
    struct tokenizer *t = NULL;
    struct tokenizer_ids ids = {0};
    struct buf text = {0}, out = {0};
    enum fst_status rc = tool_tokenizer(&t, o);
    if (rc == FST_OK)
        rc = input(o, &text);
    if (rc == FST_OK)
        rc = tokenizer_encode_text(t, buf_str(&text), text.len, options_flag(o, "parse-special"),
                                   &ids);
    if (rc == FST_OK && options_flag(o, "json")) {
        buf_puts(&out, "{\"ids\":");
        put_ids(&out, &ids, ",");
        buf_printf(&out, ",\"count\":%zu}", ids.n);
    } else if (rc == FST_OK) {
        put_ids(&out, &ids, ", ");
    }
    status = rc < 0 ? tool_fail(rc) : tool_print_json(&out);
    buf_release(&text);
    buf_release(&out);
    tokenizer_ids_release(&ids);
    tokenizer_free(t);
    options_free(o);
    return status;
}

int cmd_detokenize(int argc, char **argv)
{
    static const struct option_def defs[] = {
        {.name = "skip-special-tokens", .type = OPTION_FLAG, .help = "leave control tokens out"},
    };
    const struct option_group groups[] = {OPTION_GROUP("Text", defs), tool_model_group};
    int status;
    struct options *o =
        tool_parse_words("firesteel detokenize", "[options] [IDS]", groups, 2, argc, argv, &status);
    if (!o)
        return status;
    struct tokenizer *t = NULL;
    struct tokenizer_ids ids = {0};
    struct buf in = {0}, text = {0}, out = {0};
    enum fst_status rc = tool_tokenizer(&t, o);
    if (rc == FST_OK)
        rc = input(o, &in);
    if (rc == FST_OK)
        rc = tool_parse_ids(&ids, buf_str(&in), in.len, "ids");
    if (rc == FST_OK)
        rc = tokenizer_decode(t, ids.id, ids.n, options_flag(o, "skip-special-tokens"), &text);
    if (rc < 0) {
        status = tool_fail(rc);
    } else if (options_flag(o, "json")) {
        buf_puts(&out, "{\"text\":");
        json_put_string(&out, buf_str(&text), text.len);
        buf_putc(&out, '}');
        status = tool_print_json(&out);
    } else { /* byte-exact, nothing added */
        status = fwrite(buf_str(&text), 1, text.len, stdout) == text.len && !fflush(stdout) ? 0 : 1;
    }
    buf_release(&in);
    buf_release(&text);
    buf_release(&out);
    tokenizer_ids_release(&ids);
    tokenizer_free(t);
    options_free(o);
    return status;
}

int cmd_render(int argc, char **argv)
{
    static const struct option_def defs[] = {
        {.name = "messages",
         .type = OPTION_TEXT,
         .arg = "FILE",
         .help = "JSON: a list of messages, or an object with messages, tools, ...; - is stdin"},
        {.name = "thinking", .type = OPTION_WORD, .words = "off on", .help = "over the file's own"},
        {.name = "reasoning-effort",
         .type = OPTION_TEXT,
         .arg = "E",
         .help = "none, low, high, max (and minimal, medium, xhigh, ultra)"},
        {.name = "server",
         .type = OPTION_FLAG,
         .help = "what the server adds too: a reply always begins at the end"},
    };
    static const char *const on_off[] = {"off", "on"};
    const struct option_group groups[] = {OPTION_GROUP("Messages", defs), tool_model_group};
    int status;
    struct options *o = tool_parse_words("firesteel render", "--messages FILE [options]", groups, 2,
                                         argc, argv, &status);
    if (!o)
        return status;
    const char *path = options_text(o, "messages");
    const char *const *args;
    size_t n = options_args(o, &args);
    if (n)
        path = n == 1 && !path ? args[0] : NULL;
    if (!path) {
        fprintf(stderr, "firesteel render: give exactly one --messages FILE\n");
        options_free(o);
        return 2;
    }
    int th = options_word(o, "thinking");
    struct chat_request r;
    struct chat_prompt p;
    /* The folder decides the effort texts; rendering works without any. */
    const char *dir = tool_model_dir(o);
    enum fst_status rc = !dir && options_text(o, "model") ? FST_EMACHINE : FST_OK;
    if (rc < 0)
        chat_request_init(&r, NULL), p = (struct chat_prompt){0};
    else
        rc = tool_render(&r, &p, path, th < 0 ? NULL : on_off[th],
                         options_text(o, "reasoning-effort"), dir, !options_flag(o, "server"));
    if (rc < 0) {
        status = tool_fail(rc);
    } else if (options_flag(o, "json")) {
        struct buf out = {0};
        buf_puts(&out, "{\"text\":");
        json_put_string(&out, buf_str(&p.text), p.text.len);
        buf_putc(&out, '}');
        status = tool_print_json(&out);
        buf_release(&out);
    } else {
        status = fwrite(buf_str(&p.text), 1, p.text.len, stdout) == p.text.len && !fflush(stdout)
                     ? 0
                     : 1;
    }
    chat_prompt_release(&p);
    chat_request_release(&r);
    options_free(o);
    return status;
}
