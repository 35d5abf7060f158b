/* cmd_replay.c - `firesteel replay FILE`: a record of the engine, run again. */
#include "firesteel/replay.h"
#include "tools/tool.h"

static const struct option_def defs[] = {
    {.name = "model",
     .alias = "m",
     .type = OPTION_TEXT,
     .arg = "DIR",
     .help = "the record's when not given"},
    {.name = "device",
     .type = OPTION_WORD,
     .words = "cpu cuda hip",
     .help = "the record's when not given; another one rounds otherwise"},
    {.name = "kernels", .type = OPTION_TEXT, .arg = "NAME", .help = "the record's when not given"},
    {.name = "threads",
     .type = OPTION_INT,
     .min = 1,
     .max = 256,
     .help = "one per core when not given"},
};

static void put_text(struct buf *b, const char *key, const char *text)
{
    buf_printf(b, ",\"%s\":", key);
    if (text[0])
        json_put_string(b, text, strlen(text));
    else
        buf_puts(b, "null");
}

static int print_json(const char *path, const struct fst_replay_report *r, bool equal)
{
    struct buf b = {0};

    buf_puts(&b, "{\"file\":");
    json_put_string(&b, path, strlen(path));
    buf_printf(&b, ",\"equal\":%s", equal ? "true" : "false");
    put_text(&b, "reason", r->reason);
    put_text(&b, "detail", r->detail);
    put_text(&b, "time", r->time);
    put_text(&b, "debug_hooks", r->debug_hooks);
    buf_printf(&b,
               ",\"steps\":%llu,\"spans\":%llu,\"spans_left_out\":%llu,\"rows\":%llu,"
               "\"hashes\":%llu,\"drafts\":%llu,\"differing\":%llu",
               (unsigned long long)r->steps, (unsigned long long)r->spans,
               (unsigned long long)r->left_out, (unsigned long long)r->rows,
               (unsigned long long)r->hashes, (unsigned long long)r->drafts,
               (unsigned long long)r->differing);
    put_text(&b, "first_difference", r->first);
    buf_printf(&b, ",\"audited\":{\"requests\":%llu,\"rows\":%llu,\"differing\":%llu",
               (unsigned long long)r->audited_requests, (unsigned long long)r->audited_rows,
               (unsigned long long)r->audited_differing);
    put_text(&b, "first_difference", r->audited_first);
    buf_puts(&b, "}}");
    int status = tool_print_json(&b);
    buf_release(&b);
    return status;
}

static int print_text(const char *path, const struct fst_replay_report *r, bool equal)
{
    printf("%s: %s, %s\n", path, r->time, r->reason);
    if (r->detail[0])
        printf("  %s\n", r->detail);
    if (r->debug_hooks[0])
        printf("  made with %s\n", r->debug_hooks);
    printf("steps: %llu with %llu rows (%llu hashes, %llu drafts): %s\n",
           (unsigned long long)r->steps, (unsigned long long)r->rows, (unsigned long long)r->hashes,
           (unsigned long long)r->drafts, r->differing ? "differ" : "equal");
    if (r->differing)
        printf("  %llu differ, first: %s\n", (unsigned long long)r->differing, r->first);
    if (r->left_out)
        printf("  %llu spans left out: the ids of their requests are not in the record\n",
               (unsigned long long)r->left_out);
    if (r->audited_requests)
        printf("audited: %llu rows as a cold prefill: %s\n", (unsigned long long)r->audited_rows,
               r->audited_differing ? "differ" : "equal");
    if (r->audited_differing)
        printf("  %llu differ, first: %s\n", (unsigned long long)r->audited_differing,
               r->audited_first);
    printf("%s\n", equal ? "equal" : "differs");
    return 0;
}

int cmd_replay(int argc, char **argv)
{
    static const char *const devices[] = {"cpu", "cuda", "hip"};
    const struct option_group groups[] = {OPTION_GROUP("Replay", defs), tool_json_group};
    int status;
    struct options *o = tool_parse_words("firesteel replay", "FILE [options]", groups,
                                         FST_COUNT(groups), argc, argv, &status);
    if (!o)
        return status;
    const char *const *args;
    size_t n = options_args(o, &args);
    int device = options_word(o, "device");
    struct fst_replay_opts ro = {.model_dir = options_text(o, "model"),
                                 .device = device < 0 ? NULL : devices[device],
                                 .kernels = options_text(o, "kernels"),
                                 .threads = (int)options_int(o, "threads", 0)};
    struct fst_replay_report r;
    enum fst_status rc = n == 1
                             ? fst_replay(args[0], &ro, &r)
                             : fst_error(FST_EINVAL, "replay: expected one FILE, got %zu words", n);
    if (rc < 0) {
        status = tool_fail(rc);
    } else {
        bool equal = !r.differing && !r.audited_differing;
        status = options_flag(o, "json") ? print_json(args[0], &r, equal)
                                         : print_text(args[0], &r, equal);
        if (status == 0 && !equal)
            status = 1;
    }
    options_free(o);
    return status;
}
