/* main.c - `firesteel COMMAND ...`: one table of commands. */
#include "base/log.h"
#include "server/fields.h"
#include "tools/tool.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};
static int cmd_version(int argc, char **argv);
static int cmd_help(int argc, char **argv);

static const struct command commands[] = {
    {"serve", cmd_serve, "HTTP server: the APIs of OpenAI and Anthropic, native /generate"},
    {"chat", cmd_chat, "chat in the terminal"},
    {"generate", cmd_generate, "one completion of a prompt, of ids or of messages"},
    {"score", cmd_score, "log-probabilities of a given sequence"},
    {"tokenize", cmd_tokenize, "text to ids"},
    {"detokenize", cmd_detokenize, "ids to text"},
    {"render", cmd_render, "messages to prompt text"},
    {"inspect", cmd_inspect, "what a checkpoint holds, and whether it is whole"},
    {"plan", cmd_plan, "what fits: weights, KV tokens and requests, before anything is loaded"},
    {"doctor", cmd_doctor, "check machine, kernels, model folder and port"},
    {"bench", cmd_bench,
     "a server under load; a step of the model, each kernel alone, the prefix tree"},
    {"plot", cmd_plot, "charts of what benches wrote"},
    {"calibrate", cmd_calibrate, "fit the confidence head of a checkpoint to its own rounds"},
    {"kv", cmd_kv, "list, verify or prune what is kept of prompts on disk"},
    {"replay", cmd_replay, "run a record of the engine's last steps again"},
    {"version", cmd_version, "version and build"},
    {"help", cmd_help, "this text; `help fields`: request fields of the server"},
};

static void put_usage(struct buf *b)
{
    buf_printf(b,
               "firesteel %s - serves DeepSeek-V4\n\n"
               "usage: firesteel COMMAND [options]      firesteel COMMAND --help\n\n",
               FST_VERSION);
    for (size_t i = 0; i < FST_COUNT(commands); i++)
        buf_printf(b, "  %-12s%s\n", commands[i].name, commands[i].help);
    buf_puts(b, "\nWithout --model (or FIRESTEEL_MODEL) the bundled model is used.\n"
                "first steps: firesteel chat          firesteel serve\n");
}

static int print(const struct buf *b, FILE *f)
{
    return fwrite(buf_str(b), 1, b->len, f) == b->len && fflush(f) == 0 ? 0 : 1;
}

#if defined(__x86_64__)
#define ISA "x86-64"
#elif defined(__aarch64__)
#define ISA "aarch64"
#else
#define ISA "other"
#endif

static int cmd_version(int argc, char **argv)
{
    struct buf b = {0};
    int rc;
    struct options *o =
        tool_parse("firesteel version", "[options]", &tool_json_group, 1, argc, argv, &rc);
    if (!o)
        return rc;
    if (options_flag(o, "json"))
        buf_printf(&b, "{\"version\":\"%s\",\"compiler\":\"%s\",\"isa\":\"%s\"}\n", FST_VERSION,
                   __VERSION__, ISA);
    else
        buf_printf(&b, "firesteel %s (compiler %s, %s)\n", FST_VERSION, __VERSION__, ISA);
    rc = print(&b, stdout);
    buf_release(&b);
    options_free(o);
    return rc;
}

static int cmd_help(int argc, char **argv)
{
    struct buf b = {0};
    int rc = 0;
    if (argc > 2) {
        fprintf(stderr, "firesteel help: unexpected word \"%s\"\n", argv[2]);
        rc = 2;
    } else if (argc > 1 && !strcmp(argv[1], "fields")) {
        fields_markdown(&b);
    } else if (argc > 1 && strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0) {
        for (size_t i = 0; i < FST_COUNT(commands); i++)
            if (!strcmp(commands[i].name, argv[1]) && commands[i].run != cmd_help) {
                char help[] = "--help";
                char *args[] = {argv[1], help, NULL};
                return commands[i].run(2, args);
            }
        fprintf(stderr, "firesteel help: unknown command %s\n", argv[1]);
        rc = 2;
    } else {
        put_usage(&b);
    }
    if (rc == 0)
        rc = print(&b, stdout);
    buf_release(&b);
    return rc;
}

/* What the command printed with printf() has arrived, or this says that it has not. */
static int finish(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "firesteel: standard output could not be written\n");
    return status ? status : 1;
}

int main(int argc, char **argv)
{
    struct buf b = {0};
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--version") || !strcmp(name, "-V"))
        name = "version";
    if (!strcmp(name, "--help") || !strcmp(name, "-h"))
        name = "help";
    for (size_t i = 0; i < FST_COUNT(commands); i++)
        if (!strcmp(commands[i].name, name))
            return finish(commands[i].run(argc - 1, argv + 1));
    if (name[0]) {
        const char *names[FST_COUNT(commands)];
        for (size_t i = 0; i < FST_COUNT(commands); i++)
            names[i] = commands[i].name;
        const char *near = options_nearest(name, names, FST_COUNT(commands));
        fprintf(stderr, "firesteel: unknown command %s%s%s (see firesteel help)\n", name,
                near ? "; did you mean " : "", near ? near : "");
        return 2;
    }
    put_usage(&b);
    print(&b, stderr);
    buf_release(&b);
    return 2;
}
