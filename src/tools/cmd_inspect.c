/* cmd_inspect.c - what a checkpoint holds.  Names weights/ by exception: it is about its insides. */
#include "tools/tool.h"
#include "weights/weights.h"

static const struct option_def defs[] = {
    {.name = "preset",
     .type = OPTION_TEXT,
     .arg = "NAME",
     .help = "a published shape without any files: " CONFIG_PRESETS},
    {.name = "values",
     .type = OPTION_FLAG,
     .help = "also read every value and look for what is no number"},
};

/* All values of a folder that is whole by its headers. */
static enum fst_status check_values(const char *dir)
{
    struct weights *w;
    FST_TRY(weights_open(&w, dir, NULL));
    enum fst_status rc = weights_check_values(w);
    weights_free(w);
    return rc;
}

static void put_names(struct buf *b, const char *key, char *const *names, int64_t n)
{
    buf_printf(b, ",\"%s\":[", key);
    for (int64_t i = 0; i < n; i++) {
        if (i)
            buf_putc(b, ',');
        json_put_string(b, names[i], strlen(names[i]));
    }
    buf_putc(b, ']');
}

static int print_json(const struct weights_report *r, bool whole)
{
    struct buf b = {0};
    buf_printf(&b, "{\"tensors\":%lld,\"bytes\":%lld,\"by_class\":{", (long long)r->tensors,
               (long long)r->bytes);
    const char *sep = "";
    for (int c = 0; c < WEIGHTS_CLASSES; c++) {
        if (!r->by_class[c].tensors)
            continue;
        buf_printf(&b, "%s\"%s\":{\"tensors\":%lld,\"bytes\":%lld}", sep,
                   weights_class_name((enum weights_class)c), (long long)r->by_class[c].tensors,
                   (long long)r->by_class[c].bytes);
        sep = ",";
    }
    buf_putc(&b, '}');
    put_names(&b, "missing", r->missing, r->n_missing);
    put_names(&b, "unknown", r->unknown, r->n_unknown);
    put_names(&b, "wrong", r->wrong, r->n_wrong);
    const struct model_config *c = &r->config;
    buf_printf(
        &b,
        ",\"whole\":%s,\"model_type\":\"%s\",\"layers\":%d,\"hidden_size\":%d,"
        "\"experts\":%d,\"vocab_size\":%d,\"draft_stages\":%d,\"draft\":\"%s\",\"gamma\":%d}",
        whole ? "true" : "false", c->model_type, c->n_layers, c->hidden_size, c->n_experts,
        c->vocab_size, c->n_stages,
        c->has_dspark ? "dspark"
        : c->has_mtp  ? "mtp"
                      : "none",
        c->gamma);
    int status = tool_print_json(&b);
    buf_release(&b);
    return status;
}

static void print_text(const struct weights_report *r, bool whole)
{
    const struct model_config *c = &r->config;
    printf("%s: %d layers, hidden %d, %d experts, vocabulary %d, draft %s\n", c->model_type,
           c->n_layers, c->hidden_size, c->n_experts, c->vocab_size,
           c->has_dspark ? "dspark"
           : c->has_mtp  ? "mtp"
                         : "none");
    printf("%lld tensors, %.3f GB\n", (long long)r->tensors, (double)r->bytes * 1e-9);
    for (int k = 0; k < WEIGHTS_CLASSES; k++)
        if (r->by_class[k].tensors)
            printf("  %-18s%8lld tensors %14.3f MB\n", weights_class_name((enum weights_class)k),
                   (long long)r->by_class[k].tensors, (double)r->by_class[k].bytes * 1e-6);
    for (int64_t i = 0; i < r->n_missing; i++)
        printf("missing: %s\n", r->missing[i]);
    for (int64_t i = 0; i < r->n_unknown; i++)
        printf("unknown: %s\n", r->unknown[i]);
    for (int64_t i = 0; i < r->n_wrong; i++)
        printf("wrong: %s\n", r->wrong[i]);
    printf("%s\n", whole ? "whole" : "NOT WHOLE");
}

int cmd_inspect(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Checkpoint", defs), tool_model_group};
    int status;
    struct options *o =
        tool_parse_words("firesteel inspect", "[DIR] [options]", groups, 2, argc, argv, &status);
    if (!o)
        return status;
    struct weights_report *r = NULL;
    const char *const *args;
    size_t n = options_args(o, &args);
    const char *preset = options_text(o, "preset");
    /* A --model of the environment or of a file is a default, which a folder on the line replaces. */
    bool named =
        options_is_given(o, "model") && !strcmp(options_source(o, "model"), "command line");
    const char *dir = NULL;
    enum fst_status rc;
    if (n + (preset != NULL) + named > 1) {
        rc = fst_error(FST_EINVAL, "inspect: give one DIR or --preset NAME");
    } else if (preset) {
        rc = weights_inspect_preset(&r, preset);
    } else {
        dir = n ? args[0] : tool_model_dir(o);
        rc = dir ? weights_inspect(&r, dir) : FST_EMACHINE;
    }
    if (rc == FST_OK && options_flag(o, "values")) {
        if (!dir)
            rc = fst_error(FST_EINVAL, "--values needs a folder: a preset has no values");
        else if (!r->n_missing && !r->n_unknown && !r->n_wrong)
            rc = check_values(dir);
    }
    if (rc < 0) {
        status = tool_fail(rc == FST_ENOTFOUND && preset ? FST_EINVAL : rc);
    } else {
        bool whole = !r->n_missing && !r->n_unknown && !r->n_wrong;
        status = 0;
        if (options_flag(o, "json"))
            status = print_json(r, whole);
        else
            print_text(r, whole);
        if (!whole)
            status = 1;
    }
    weights_report_free(r);
    options_free(o);
    return status;
}
