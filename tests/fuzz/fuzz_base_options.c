/* fuzz_base_options.c - any bytes as a configuration file, and as a command line. */
#include <unistd.h>

#include "base/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct option_def defs[] = {
    {.name = "host", .alias = "H", .type = OPTION_TEXT, .initial = "127.0.0.1", .help = "Address."},
    {.name = "port", .type = OPTION_INT, .initial = "1", .min = 0, .max = 65535, .help = "Port."},
    {.name = "key", .type = OPTION_LIST, .help = "Keys."},
    {.name = "memory", .type = OPTION_SIZE, .initial = "auto", .help = "Memory."},
    {.name = "share", .type = OPTION_FLOAT, .initial = "0.9", .help = "Share."},
    {.name = "quiet", .type = OPTION_FLAG, .help = "Say less.", .no_use = "it is quiet"},
    {.name = "spec", .type = OPTION_WORD, .words = "dspark mtp=eagle none", .help = "Drafting."},
};
static const struct option_group groups[] = {OPTION_GROUP("All", defs)};

static void parse(int argc, char **argv)
{
    struct options *o;
    const char *const *list;
    enum fst_status rc;

    FST_ASSERT(options_new(&o, "x", "", groups, 1) == FST_OK);
    rc = options_parse(o, argc, argv);
    if (rc == FST_OK && !options_help_wanted(o)) {
        int64_t port = options_int(o, "port", 0);
        FST_ASSERT(port >= 0 && port <= 65535);
        FST_ASSERT(options_list(o, "key", &list) <= 256);
        FST_ASSERT(options_int(o, "memory", 0) >= 0);
        FST_ASSERT(options_word(o, "spec") <= 2);
    } else if (rc < 0) {
        FST_ASSERT(fst_error_text()[0] != 0);
    }
    options_free(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64], program[] = "x", config[] = "--config";
    char *argv[64] = {program, config, path}, *text = mem_alloc(size + 1);
    int argc = 1;
    FILE *file;

    if (!path[0])
        snprintf(path, sizeof path, "/tmp/fuzz-options-%d.yaml", (int)getpid());
    FST_ASSERT(text != NULL);
    file = fopen(path, "wb"); /* file_write would wait for the disk, ten thousand times */
    FST_ASSERT(file != NULL);
    FST_ASSERT(fwrite(data, 1, size, file) == size);
    FST_ASSERT(fclose(file) == 0);
    parse(3, argv);
    unlink(path);
    /* the same bytes as words */
    memcpy(text, data, size);
    text[size] = 0;
    for (char *s = text, *save; argc < 60 && (s = strtok_r(s, "\n", &save)) != NULL; s = NULL)
        if (!strstr(s, "config"))
            argv[argc++] = s;
    argv[argc] = NULL;
    parse(argc, argv);
    mem_free(text);
    return 0;
}
