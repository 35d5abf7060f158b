/* test_base_options.c - flags, environment, file, messages and help from one table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include <unistd.h>

#include "base/options.h"

static const struct option_def server[] = {
    {.name = "host", .type = OPTION_TEXT, .initial = "127.0.0.1", .help = "Address."},
    {.name = "port",
     .alias = "P",
     .type = OPTION_INT,
     .initial = "30000",
     .min = 0,
     .max = 65535,
     .help = "Port to listen on."},
    {.name = "api-key",
     .type = OPTION_LIST,
     .help = "A key that clients may use; may be repeated."},
    {.name = "device-memory", .type = OPTION_SIZE, .initial = "auto", .help = "Memory to use."},
    {.name = "disable-radix-cache",
     .type = OPTION_FLAG,
     .initial = "false",
     .help = "Do not reuse prefixes."},
};
static const struct option_def engine[] = {
    {.name = "model",
     .alias = "model-path m",
     .type = OPTION_TEXT,
     .arg = "DIR",
     .help = "Folder."},
    {.name = "speculative-algorithm",
     .alias = "spec",
     .type = OPTION_WORD,
     .words = "dspark mtp=eagle none",
     .help = "Drafting."},
    {.name = "mem-fraction-static",
     .type = OPTION_FLOAT,
     .initial = "0.9",
     .min = 0.1,
     .max = 1.0,
     .help = "Share of the memory."},
    {.name = "system", .alias = "sys", .type = OPTION_TEXT, .help = "System text."},
    {.name = "access-log", .type = OPTION_FLAG, .initial = "true", .help = "Lines."},
    {.name = "default-thinking",
     .type = OPTION_WORD,
     .words = "on off",
     .initial = "on",
     .env = "SGLANG_DEFAULT_THINKING",
     .help = "Think."},
    {.name = "trust-remote-code",
     .type = OPTION_FLAG,
     .help = "Python code of the checkpoint.",
     .no_use = "no Python is ever run"},
    {.name = "chunked-prefill-size", .type = OPTION_INT, .initial = "8192", .help = "Tokens."},
};
static const struct option_group groups[] = {OPTION_GROUP("Server", server),
                                             OPTION_GROUP("Engine", engine)};

static struct options *o;

static enum fst_status parse(const char *const *words, size_t n)
{
    char *argv[32] = {0};

    assert_true(n < FST_COUNT(argv));
    options_free(o);
    assert_int_equal(options_new(&o, "firesteel serve", "[options]", groups, 2), FST_OK);
    for (size_t i = 0; i < n; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    argv[0] = (char *)(uintptr_t) "firesteel";
    return options_parse(o, (int)n + 1, argv);
}
#define PARSE(...)                                                                                 \
    parse((const char *const[]){__VA_ARGS__},                                                      \
          sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void expect_error(enum fst_status rc, const char *text)
{
    assert_int_equal(rc, FST_EINVAL);
    assert_string_equal(fst_error_text(), text);
}

static void test_defaults(void **state)
{
    const char *const *list;

    (void)state;
    assert_int_equal(parse(NULL, 0), FST_OK);
    assert_string_equal(options_text(o, "host"), "127.0.0.1");
    assert_int_equal(options_int(o, "port", -1), 30000);
    assert_int_equal(options_int(o, "device-memory", -1), -1);
    assert_int_equal(options_list(o, "api-key", &list), 0);
    assert_null(options_text(o, "model"));
    assert_int_equal(options_word(o, "speculative-algorithm"), -1);
    assert_int_equal(options_word(o, "default-thinking"), 0);
    assert_true(options_float(o, "mem-fraction-static", 0) == 0.9);
    assert_false(options_flag(o, "disable-radix-cache"));
    assert_false(options_is_given(o, "port"));
    assert_string_equal(options_source(o, "port"), "default");
    assert_false(options_help_wanted(o));
}

static void test_spellings(void **state)
{
    const char *const *list;

    (void)state;
    assert_int_equal(PARSE("--model_path", "/m", "--port=0", "--disable_radix_cache", "--api-key",
                           "a,b", "--api-key=c", "--spec", "EAGLE", "-sys", "be kind", "text",
                           "--device-memory", "1.5GiB", "--", "--port"),
                     FST_OK);
    assert_string_equal(options_text(o, "model"), "/m");
    assert_string_equal(options_text(o, "system"), "be kind");
    assert_int_equal(options_int(o, "port", -1), 0);
    assert_true(options_flag(o, "disable-radix-cache"));
    assert_int_equal(options_word(o, "speculative-algorithm"), 1);
    assert_int_equal(options_int(o, "device-memory", 0), INT64_C(3) << 29);
    assert_int_equal(options_list(o, "api-key", &list), 2);
    assert_string_equal(list[0], "a,b");
    assert_string_equal(list[1], "c");
    assert_int_equal(options_args(o, &list), 2);
    assert_string_equal(list[0], "text");
    assert_string_equal(list[1], "--port");
    assert_string_equal(options_source(o, "port"), "command line");

    assert_int_equal(PARSE("-m", "/x", "-P80", "--chunked-prefill-size", "-1", "--host", "-",
                           "--disable-radix-cache", "--no-disable-radix-cache", "-"),
                     FST_OK);
    assert_string_equal(options_text(o, "model"), "/x");
    assert_int_equal(options_int(o, "port", -1), 80);
    assert_int_equal(options_int(o, "chunked-prefill-size", 0), -1);
    assert_string_equal(options_text(o, "host"), "-");
    assert_false(options_flag(o, "disable-radix-cache"));
    assert_int_equal(options_args(o, &list), 1);
    assert_int_equal(PARSE("--port", "1", "--port", "2", "--disable-radix-cache=Off"), FST_OK);
    assert_int_equal(options_int(o, "port", -1), 2);
    assert_false(options_flag(o, "disable-radix-cache"));
    assert_int_equal(PARSE("--device-memory", "AUTO"), FST_OK);
    assert_int_equal(options_int(o, "device-memory", -1), -1);
    assert_true(options_is_given(o, "device-memory"));
}

static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        int64_t size;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"4096B", 4096},
                {"512M", 512 << 20},
                {"512MiB", 512 << 20},
                {"512mb", 512000000},
                {"80GB", INT64_C(80000000000)},
                {"2T", INT64_C(2) << 40},
                {"0.5k", 512}};
    static const char *const bad[] = {"", "x", "-1", "4 k", "4kk", "1e30", "0x10", "4KBi", "nan"};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(good); i++) {
        assert_int_equal(PARSE("--device-memory", good[i].text), FST_OK);
        assert_int_equal(options_int(o, "device-memory", -1), good[i].size);
    }
    for (size_t i = 0; i < FST_COUNT(bad); i++)
        assert_int_equal(PARSE("--device-memory", bad[i]), FST_EINVAL);
}

static void test_messages(void **state)
{
    (void)state;
    expect_error(PARSE("--prot", "80"), "unknown option --prot; did you mean --port?");
    expect_error(PARSE("--speculative_algoritm", "x"),
                 "unknown option --speculative_algoritm; did you mean --speculative-algorithm?");
    expect_error(PARSE("--modelpath=x"), "unknown option --modelpath; did you mean --model-path?");
    expect_error(PARSE("--quantum"), "unknown option --quantum (see firesteel serve --help)");
    expect_error(PARSE("-x"), "unknown option -x (see firesteel serve --help)");
    expect_error(PARSE("--port", "80x"), "--port: \"80x\" is not an integer from 0 to 65535");
    expect_error(PARSE("--port", "65536"), "--port: \"65536\" is not an integer from 0 to 65535");
    expect_error(PARSE("-P", ""), "-P: \"\" is not an integer from 0 to 65535");
    expect_error(PARSE("--port"), "--port needs a value");
    expect_error(PARSE("--spec", "ngram"), "--spec: \"ngram\" is not one of dspark, mtp, none");
    expect_error(PARSE("--mem-fraction-static=2"),
                 "--mem-fraction-static: \"2\" is not a number from 0.1 to 1");
    expect_error(PARSE("--disable-radix-cache=maybe"),
                 "--disable-radix-cache: \"maybe\" is not true or false");
    expect_error(PARSE("--no-port"), "--no-port: --port takes a value");
    /* An unknown name is told before a bad file or value. */
    expect_error(PARSE("--config", "/nowhere", "--port=x", "--hots=1"),
                 "unknown option --hots; did you mean --host?");
}

static void test_environment(void **state)
{
    const char *const *list;

    (void)state;
    setenv("FIRESTEEL_PORT", "81", 1);
    setenv("FIRESTEEL_API_KEY", "a,b,c", 1);
    setenv("FIRESTEEL_HOST", "", 1); /* as if it were not there */
    setenv("SGLANG_DEFAULT_THINKING", "off", 1);
    assert_int_equal(parse(NULL, 0), FST_OK);
    assert_int_equal(options_int(o, "port", -1), 81);
    assert_string_equal(options_source(o, "port"), "FIRESTEEL_PORT");
    assert_string_equal(options_text(o, "host"), "127.0.0.1");
    assert_int_equal(options_list(o, "api-key", &list), 3);
    assert_string_equal(list[2], "c");
    assert_int_equal(options_word(o, "default-thinking"), 1);
    setenv("FIRESTEEL_DEFAULT_THINKING", "on", 1); /* our own name wins over the honoured one */
    assert_int_equal(PARSE("--port", "82", "--api-key", "z"), FST_OK);
    assert_int_equal(options_int(o, "port", -1), 82);
    assert_int_equal(options_list(o, "api-key", &list), 1);
    assert_string_equal(list[0], "z");
    assert_int_equal(options_word(o, "default-thinking"), 0);
    setenv("FIRESTEEL_PORT", "eighty", 1);
    expect_error(parse(NULL, 0), "FIRESTEEL_PORT: \"eighty\" is not an integer from 0 to 65535");
    unsetenv("FIRESTEEL_PORT");
    unsetenv("FIRESTEEL_API_KEY");
    unsetenv("FIRESTEEL_HOST");
    unsetenv("FIRESTEEL_DEFAULT_THINKING");
    unsetenv("SGLANG_DEFAULT_THINKING");
}

static char config_path[64];

static enum fst_status parse_config(const char *text)
{
    FILE *f = fopen(config_path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return PARSE("--config", config_path);
}

static void test_config(void **state)
{
    const char *const *list;
    char expected[128];

    (void)state;
    snprintf(config_path, sizeof config_path, "/tmp/test-options-%d.yaml", (int)getpid());
    assert_int_equal(parse_config("# comment\n---\n\nport: 82 # more\nhost: \"a # \\\"b\\\"\"\n"
                                  "system: 'it''s'\r\nmodel: /a b/c#d\ndisable_radix_cache: yes\n"
                                  "api-key:\n  - one\n  - \"two\"\n# between\n- three\n"
                                  "spec: MTP\n"),
                     FST_OK);
    assert_int_equal(options_int(o, "port", -1), 82);
    assert_string_equal(options_text(o, "host"), "a # \"b\"");
    assert_string_equal(options_text(o, "system"), "it's");
    assert_string_equal(options_text(o, "model"), "/a b/c#d");
    assert_true(options_flag(o, "disable-radix-cache"));
    assert_int_equal(options_list(o, "api-key", &list), 3);
    assert_string_equal(list[0], "one");
    assert_string_equal(list[1], "two");
    assert_string_equal(list[2], "three");
    assert_int_equal(options_word(o, "speculative-algorithm"), 1);
    snprintf(expected, sizeof expected, "%s:4", config_path);
    assert_string_equal(options_source(o, "port"), expected);

    assert_int_equal(parse_config("api-key: [x, 'y, z' , \"]\"] # keys\nport: 1"), FST_OK);
    assert_int_equal(options_list(o, "api-key", &list), 3);
    assert_string_equal(list[1], "y, z");
    assert_string_equal(list[2], "]");
    assert_int_equal(parse_config("api-key: [x, y]\nport: 1"), FST_OK);
    assert_int_equal(options_list(o, "api-key", &list), 2);
    assert_string_equal(list[0], "x");
    assert_string_equal(list[1], "y");
    assert_int_equal(parse_config("api-key: []\n"), FST_OK);
    assert_int_equal(options_list(o, "api-key", &list), 0);
    assert_int_equal(parse_config(""), FST_OK);
    setenv("FIRESTEEL_PORT", "83", 1);
    assert_int_equal(parse_config("port: 82\n"), FST_OK);
    assert_int_equal(options_int(o, "port", -1), 83);
    unsetenv("FIRESTEEL_PORT");
}

static void test_config_faults(void **state)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"port: 1\nprot: 82\n", ":2: unknown option prot; did you mean port?"},
        {"\nport: x\n", ":2: port: \"x\" is not an integer from 0 to 65535"},
        {"server:\n  port: 1\n", ":1: unknown option server (see firesteel serve --help)"},
        {"  port: 1\n", ":1: nested values are not known here; expected `name: value`"},
        {"port 1\n", ":1: expected `name: value`"},
        {"port:1\n", ":1: expected `name: value`"},
        {"host: \"a\n", ":1: a quote is not closed"},
        {"host: \"a\" b\n", ":1: text after a closing quote"},
        {"host: \"\\q\"\n", ":1: only \\\" \\\\ \\n \\t are known in quotes"},
        {"- a\n", ":1: \"- item\" without the name of a list above it"},
        {"port: 1\n- a\n", ":2: \"- item\" without the name of a list above it"},
        {"api-key: [a, b\n", ":1: a list [a, b] must close on its line"},
        {"api-key: [a] b\n", ":1: text after a list"},
        {"config: x\n", ":1: help and config cannot be set in a file"},
    };

    (void)state;
    for (size_t i = 0; i < FST_COUNT(bad); i++) {
        char expected[256];
        snprintf(expected, sizeof expected, "%s%s", config_path, bad[i].message);
        expect_error(parse_config(bad[i].text), expected);
    }
    remove(config_path);
    assert_int_equal(PARSE("--config", config_path), FST_ENOTFOUND);
}

static void test_help_and_notices(void **state)
{
    struct buf text = {0};

    (void)state;
    assert_int_equal(PARSE("--help", "--nonsense"), FST_OK);
    assert_true(options_help_wanted(o));
    options_help(o, &text);
    assert_non_null(strstr(buf_str(&text), "Usage: firesteel serve [options]\n\nServer:\n"));
    assert_non_null(strstr(buf_str(&text), "  -P, --port N "));
    assert_non_null(strstr(buf_str(&text), "Port to listen on. [30000]\n"));
    assert_non_null(strstr(buf_str(&text), "Lines. [on; --no-access-log]\n"));
    assert_null(strstr(buf_str(&text), "prefixes. ["));
    assert_non_null(strstr(buf_str(&text), "  -m, --model, --model-path DIR"));
    assert_non_null(strstr(buf_str(&text), "--speculative-algorithm, --spec dspark|mtp|none\n"));
    assert_non_null(strstr(buf_str(&text), "\nGeneral:\n  -h, --help "));
    for (const char *line = buf_str(&text), *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        assert_true(end - line <= 100);
    }
    buf_release(&text);
    assert_int_equal(PARSE("--trust-remote-code", "--trust-remote-code"), FST_OK);
    assert_string_equal(options_notice(o, 0),
                        "--trust-remote-code has no effect here: no Python is ever run");
    assert_null(options_notice(o, 1));
}

static void test_nearest(void **state)
{
    static const char *const commands[] = {"serve", "chat", "generate", "score"};

    (void)state;
    assert_string_equal(options_nearest("server", commands, 4), "serve");
    assert_string_equal(options_nearest("genrate", commands, 4), "generate");
    assert_string_equal(options_nearest("caht", commands, 4), "chat");
    assert_null(options_nearest("train", commands, 4));
    assert_null(options_nearest("x", NULL, 0));
}

static void test_out_of_memory(void **state)
{
    static char *argv[] = {NULL, NULL, NULL, NULL, NULL, NULL};
    uint64_t needed = 0;

    (void)state;
    argv[0] = argv[1] = argv[3] = (char *)(uintptr_t) "--api-key";
    argv[2] = argv[4] = (char *)(uintptr_t) "value";
    for (uint64_t n = 1; n <= needed + 1; n++) {
        struct options *p = NULL;
        uint64_t before;
        enum fst_status rc;

        mem_fail_at(n == 1 ? 0 : n - 1);
        before = mem_count();
        rc = options_new(&p, "x", "", groups, 2);
        if (rc == FST_OK)
            rc = options_parse(p, 5, argv);
        mem_fail_at(0);
        if (n == 1) {
            needed = mem_count() - before;
            assert_int_equal(rc, FST_OK);
        } else {
            assert_int_equal(rc, FST_ENOMEM);
        }
        options_free(p);
    }
    assert_true(needed >= 2);
}

static int release(void **state)
{
    (void)state;
    options_free(o);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),      cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_sizes),         cmocka_unit_test(test_messages),
        cmocka_unit_test(test_environment),   cmocka_unit_test(test_config),
        cmocka_unit_test(test_config_faults), cmocka_unit_test(test_help_and_notices),
        cmocka_unit_test(test_nearest),       cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
