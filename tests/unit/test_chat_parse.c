/* test_chat_parse.c - replies to messages: every vector at every cut, and faults people met. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/rng.h"
#include "chat/protocol.h"
#include "chat/request.h"
#include "support/replies.h"
#include "support/vectors.h"

#define OPEN                 PROTOCOL_OPEN
#define CLOSE                PROTOCOL_END
#define CALLS                OPEN "tool_calls>\n"
#define END                  "\n" CLOSE "tool_calls>"
#define INVOKE(name, params) OPEN "invoke name=\"" name "\">\n" params "\n" CLOSE "invoke>"
#define STR(key, value)      OPEN "parameter name=\"" key "\" string=\"true\">" value CLOSE "parameter>"
#define JSN(key, value)      OPEN "parameter name=\"" key "\" string=\"false\">" value CLOSE "parameter>"

static const struct chat_parser_opts content_on = {
    .start = CHAT_START_CONTENT, .tools_on = true, .coerce_args = true};
static const struct chat_parser_opts thinking_on = {
    .start = CHAT_START_REASONING, .tools_on = true, .coerce_args = true};

/* The same text in one piece, at every two-way cut, byte by byte and at random cuts. */
static void at_every_cut(const struct chat_parser_opts *o, const char *text, size_t len,
                         enum chat_end end, struct reply *whole)
{
    static uint64_t seed = 1;
    struct rng rng;
    size_t *cuts = mem_alloc((len + 1) * sizeof *cuts);

    rng_init(&rng, seed++);
    reply_init(whole);
    assert_int_equal(reply_parse(whole, o, text, len, NULL, 0, end), FST_OK);
    assert_true(whole->is_valid);
    for (size_t k = 0; k < len + 40; k++) {
        struct reply cut;
        size_t n = 0;

        if (k < len)
            cuts[n++] = k;
        else if (k == len)
            for (n = 0; n < len; n++)
                cuts[n] = n;
        else
            for (size_t at = rng_below(&rng, 8); at < len; at += 1 + rng_below(&rng, 12))
                cuts[n++] = at;
        reply_init(&cut);
        assert_int_equal(reply_parse(&cut, o, text, len, cuts, n, end), FST_OK);
        if (!cut.is_valid || cut.finish != whole->finish ||
            strcmp(buf_str(&cut.trace), buf_str(&whole->trace)) != 0)
            fail_msg("cut %zu:\n%s\nwhole:\n%s", k, buf_str(&cut.trace), buf_str(&whole->trace));
        reply_release(&cut);
    }
    mem_free(cuts);
}

/* want: reasoning, content, name, args, name, args, ..., NULL ("" for null).  Only complete calls
 * count. */
static void expect(const struct chat_parser_opts *o, const char *text, enum chat_end end,
                   enum chat_finish finish, const char *const *want)
{
    struct reply r;
    int n = 0;

    at_every_cut(o, text, strlen(text), end, &r);
    assert_string_equal(buf_str(&r.reasoning), want[0]);
    assert_string_equal(buf_str(&r.content), want[1]);
    want += 2;
    for (int i = 0; i < r.n_calls; i++) {
        struct json_doc *d;
        if (!r.complete[i])
            continue;
        assert_non_null(want[2 * n]);
        assert_string_equal(buf_str(&r.name[i]), want[2 * n]);
        assert_string_equal(buf_str(&r.args[i]), want[2 * n + 1]);
        assert_int_equal(json_parse(&d, r.args[i].data, r.args[i].len), FST_OK);
        json_free(d);
        n++;
    }
    assert_null(want[2 * n]);
    assert_int_equal(r.finish, finish);
    reply_release(&r);
}
#define EXPECT(o, text, end, finish, ...)                                                          \
    expect(o, text, CHAT_END_##end, CHAT_FINISH_##finish, (const char *const[]){__VA_ARGS__, NULL})

/* ---- vectors -------------------------------------------------------------------------------- */

static const char *text_or_empty(json_val *v)
{
    size_t n;
    const char *s = json_string(v, &n);
    return s ? s : "";
}

static void vectors(void **state)
{
    struct buf file = {0};
    struct json_doc *d;
    size_t at = 0, len;
    int n = 0;

    (void)state;
    assert_true(read_whole(CHAT_VECTORS, &file));
    while ((d = next_line(&file, &at))) {
        json_val *v = json_root(d), *m = json_get(v, "message"), *calls = json_get(m, "tool_calls");
        struct chat_parser_opts o = content_on;
        struct reply r;
        const char *text, *finish;

        if (!text_is(json_get(v, "kind"), "parse")) {
            json_free(d);
            continue;
        }
        if (text_is(json_get(v, "start"), "reason"))
            o.start = CHAT_START_REASONING;
        o.tools_on = json_bool(json_get(v, "tools_on"), false);
        text = json_string(json_get(v, "text"), &len);
        at_every_cut(&o, text, len,
                     text_is(json_get(v, "end"), "length") ? CHAT_END_LENGTH : CHAT_END_STOP, &r);
        finish = chat_finish_name(r.finish);
        if (!text_is(json_get(m, "finish_reason"), finish) ||
            strcmp(buf_str(&r.reasoning), text_or_empty(json_get(m, "reasoning_content"))) != 0 ||
            strcmp(buf_str(&r.content), text_or_empty(json_get(m, "content"))) != 0)
            fail_msg("%s: %s %s", text_or_empty(json_get(v, "id")), finish, buf_str(&r.trace));
        for (int i = 0, k = 0; i < r.n_calls; i++) {
            if (!r.complete[i])
                continue;
            assert_true(text_is(json_get(json_at(calls, (size_t)k), "name"), buf_str(&r.name[i])));
            assert_true(
                text_is(json_get(json_at(calls, (size_t)k), "arguments"), buf_str(&r.args[i])));
            k++;
            if (i == r.n_calls - 1)
                assert_int_equal(k, json_count(calls));
        }
        if (r.n_calls == 0)
            assert_int_equal(json_count(calls), 0);
        reply_release(&r);
        json_free(d);
        n++;
    }
    buf_release(&file);
    assert_int_equal(n, 16);
}

/* ---- states and ends ------------------------------------------------------------------------ */

static void started_in_a_block(void **state)
{
    struct chat_parser_opts o = content_on;

    (void)state;
    o.start = CHAT_START_BLOCK;
    EXPECT(&o, INVOKE("f", JSN("x", "1")) END, STOP, TOOL_CALLS, "", "", "f", "{\"x\": 1}");
    EXPECT(&o, "I would rather not.", STOP, STOP, "", "I would rather not.");
    o.start = CHAT_START_CALL;
    o.start_name = (struct chat_str){"g", 1};
    EXPECT(&o, STR("x", "1") "\n" CLOSE "invoke>" END, STOP, TOOL_CALLS, "", "", "g",
           "{\"x\": \"1\"}");
    EXPECT(&o, "\n" CLOSE "invoke>" END, STOP, TOOL_CALLS, "", "", "g", "{}");
    EXPECT(&o, "", LENGTH, LENGTH, "", "");
}

static void newlines(void **state)
{
    struct chat_parser_opts o = content_on;

    (void)state;
    EXPECT(&content_on, "\n\r\n a\n\nb\n", STOP, STOP, "", " a\n\nb\n");
    EXPECT(&thinking_on, "\n\nT\n\n</think>\n\nC\n", STOP, STOP, "T", "C\n");
    EXPECT(&thinking_on, "T\n\nU\n", LENGTH, LENGTH, "T\n\nU\n", "");
    EXPECT(&content_on, "</think>\n\nGood morning", STOP, STOP, "", "Good morning");
    EXPECT(&content_on, "a\n\n</think>b", STOP, STOP, "", "a\n\nb");
    /* a continued text keeps what it begins with */
    o.keep_leading = true;
    EXPECT(&o, "\n\n3, 4", STOP, STOP, "", "\n\n3, 4");
    o.start = CHAT_START_REASONING;
    EXPECT(&o, "\nand so</think>\n\nyes", STOP, STOP, "\nand so", "yes");
}

static void thoughts_kept_in_content(void **state)
{
    struct chat_parser_opts o = thinking_on;

    (void)state;
    o.keep_think = true;
    EXPECT(&o, "\nT\n</think>\n\nC", STOP, STOP, "\nT\n</think>", "\n\nC");
}

static void ends_inside_a_block(void **state)
{
    const char *one = "Ok.\n\n" CALLS INVOKE("a", JSN("x", "1")) "\n";
    char text[1024];

    (void)state;
    snprintf(text, sizeof text, "%s" OPEN "invoke name=\"b\">\n" OPEN "parameter name=\"y", one);
    EXPECT(&content_on, text, STOP, TOOL_CALLS, "", "Ok.", "a", "{\"x\": 1}");
    EXPECT(&content_on, text, LENGTH, LENGTH, "", "Ok.", "a", "{\"x\": 1}");
    EXPECT(&content_on, text, ABORT, ABORT, "", "Ok.", "a", "{\"x\": 1}");
    EXPECT(&content_on, "Ok.\n\n" CALLS "gibberish", LENGTH, LENGTH, "", "Ok.");
    EXPECT(&content_on, "Ok.\n\n" CALLS "gibberish", STOP, STOP, "", "Ok.\n\n" CALLS "gibberish");
    EXPECT(&content_on, "Ok.\n\n" CALLS CLOSE "tool_calls>x", STOP, STOP, "",
           "Ok.\n\n" CALLS CLOSE "tool_calls>x");
    EXPECT(&thinking_on, "T\n\n" CALLS, STOP, STOP, "T", CALLS);
}

static void partial_calls_are_cancelled(void **state)
{
    struct reply r;
    const char *text =
        "\n\n" CALLS OPEN "invoke name=\"f\">\n" OPEN "parameter name=\"s\" string=\"true\">abc";

    (void)state;
    at_every_cut(&content_on, text, strlen(text), CHAT_END_LENGTH, &r);
    assert_string_equal(buf_str(&r.trace), "\n[2 0]f\n[3 0]{\"s\": \"abc\n[5 0]");
    reply_release(&r);
}

static void one_call_only(void **state)
{
    struct chat_parser_opts o = content_on;

    (void)state;
    o.one_call = true;
    EXPECT(&o, CALLS INVOKE("a", "") "\n" INVOKE("b", "") END, STOP, TOOL_CALLS, "", "", "a", "{}");
}

/* ---- faults that people met ------------------------------------------------------------------ */

/* Markup without </think>: no markup in the thoughts, the call arrives. */
static void call_out_of_thoughts(void **state)
{
    (void)state;
    EXPECT(&thinking_on, "plan\n\n" CALLS INVOKE("f", STR("a", "b")) END, STOP, TOOL_CALLS, "plan",
           "", "f", "{\"a\": \"b\"}");
    EXPECT(&thinking_on, CALLS INVOKE("f", "") END, STOP, TOOL_CALLS, "", "", "f", "{}");
    EXPECT(&thinking_on, "T</think>" CALLS INVOKE("f", "") END, STOP, TOOL_CALLS, "T", "", "f",
           "{}");
    /* mentioned in the middle of a line it is a thought */
    EXPECT(&thinking_on, "I need " CALLS "yes</think>ok", STOP, STOP, "I need " CALLS "yes", "ok");
}

static void stray_text_between_tags(void **state)
{
    (void)state;
    EXPECT(&content_on,
           "\n\n" CALLS "  <!-- a < b --> \n\n" OPEN "invoke  name = \"f\" >\n\t" OPEN
           "parameter name=\"x\"  string=\"false\" > 1 " CLOSE
           "parameter>  <x> </y>\n\n" STR("y", "2") CLOSE "parameter>" CLOSE "invoke>"
                                                          " \n" CLOSE "tool_calls>",
           STOP, TOOL_CALLS, "", "", "f", "{\"x\": 1, \"y\": \"2\"}");
    /* a call that was never closed, and a value closed by what is around it */
    EXPECT(&content_on,
           CALLS OPEN "invoke name=\"f\">" STR("x", "1") OPEN
           "invoke name=\"g\">" OPEN "parameter name=\"y\" string=\"true\">2" CLOSE "invoke>" END,
           STOP, TOOL_CALLS, "", "", "f", "{\"x\": \"1\"}", "g", "{\"y\": \"2\"}");
}

static void lenient_spellings(void **state)
{
#define BLOCK(o, c, quote)                                                                         \
    "x\n\n<" o "tool_calls>\n<" o "invoke name=" quote "f" quote ">\n<" o "parameter name=" quote  \
    "k" quote " string=" quote "false" quote ">[1]</" c "parameter>\n</" c "invoke>\n</" c         \
    "tool_calls>"
    static const char *const texts[] = {
        BLOCK("|DSML|", "|DSML|", "\""),
        BLOCK("DSML" PROTOCOL_BAR, "DSML" PROTOCOL_BAR, "\""),
        BLOCK("DSML" PROTOCOL_BAR, PROTOCOL_MARK, "\""),
        BLOCK("||DSML||", "||DSML||", "\""),
        BLOCK(PROTOCOL_BAR PROTOCOL_MARK PROTOCOL_BAR, PROTOCOL_MARK, "\""),
        BLOCK(PROTOCOL_MARK " ", PROTOCOL_MARK " ", "\""),
        BLOCK(PROTOCOL_MARK, PROTOCOL_MARK, "'"),
        BLOCK(PROTOCOL_MARK, PROTOCOL_MARK, "\xe2\x80\x9d"),
        "x\n\n" OPEN "function_calls>\n" INVOKE("f", JSN("k", "[1]")) "\n" CLOSE "function_calls>",
    };

    (void)state;
    for (size_t i = 0; i < FST_COUNT(texts); i++)
        EXPECT(&content_on, texts[i], STOP, TOOL_CALLS, "", "x", "f", "{\"k\": [1]}");
    /* control characters make no name */
    EXPECT(&content_on, CALLS OPEN "invoke name=\"f\x01\">" INVOKE("g", "") END, STOP, TOOL_CALLS,
           "", "", "g", "{}");
    /* without any mark it is text */
    EXPECT(&content_on, "<tool_calls><invoke name=\"f\">", STOP, STOP, "",
           "<tool_calls><invoke name=\"f\">");
}

/* Values keep every byte; only their own end tag ends them. */
static void values_are_exact(void **state)
{
    static const char *const values[] = {
        CLOSE "para",
        "</parameter>",
        "]]>",
        "<|",
        "a\\b\\\\n",
        "line\r\nline\r\n",
        "\xf0\x9f\x98\x80 \xe6\xaf\x95",
        "2>&1 <",
        "</",
        "<tool",
        "&amp; &lt;",
        "  spaces  \n",
        "</|DSML|parameter>",
        CLOSE "parameter",
        CLOSE " parameterx>",
        OPEN "parameter name=\"x\" string=\"true\">",
        "</think>",
        "\x01\x1f\x7f\"\t\b\f",
    };

    (void)state;
    for (size_t i = 0; i < FST_COUNT(values); i++) {
        char text[512];
        struct reply r;
        struct json_doc *d;
        size_t len;
        const char *s;

        snprintf(text, sizeof text,
                 CALLS OPEN "invoke name=\"f\">\n" OPEN
                            "parameter name=\"v\" string=\"true\">%s" CLOSE "parameter>\n" CLOSE
                            "invoke>" END,
                 values[i]);
        at_every_cut(&content_on, text, strlen(text), CHAT_END_STOP, &r);
        assert_int_equal(r.n_calls, 1);
        assert_int_equal(json_parse(&d, r.args[0].data, r.args[0].len), FST_OK);
        s = json_string(json_get(json_root(d), "v"), &len);
        assert_int_equal(len, strlen(values[i]));
        assert_memory_equal(s, values[i], len);
        json_free(d);
        reply_release(&r);
    }
}

static void long_values_arrive_in_pieces(void **state)
{
    struct buf text = {0};
    struct reply r;
    size_t cuts[2000], n = 0;

    (void)state;
    buf_puts(&text,
             CALLS OPEN "invoke name=\"w\">\n" OPEN "parameter name=\"content\" string=\"true\">");
    for (int i = 0; i < 20000; i++)
        buf_putc(&text, "line \"x\"\n"[i % 9]);
    buf_puts(&text, CLOSE "parameter>\n" CLOSE "invoke>" END);
    for (size_t at = 0; at < text.len && n < FST_COUNT(cuts); at += 12)
        cuts[n++] = at;
    reply_init(&r);
    assert_int_equal(reply_parse(&r, &content_on, text.data, text.len, cuts, n, CHAT_END_STOP),
                     FST_OK);
    assert_true(r.n_events > 1500);
    assert_true(r.complete[0]);
    reply_release(&r);
    buf_release(&text);
}

static void fences(void **state)
{
    (void)state;
    EXPECT(&content_on, "Like so:\n```\n" CALLS INVOKE("f", "") END "\n```\nDone.", STOP, STOP, "",
           "Like so:\n```\n" CALLS INVOKE("f", "") END "\n```\nDone.");
    EXPECT(&content_on, "```c\nint x;\n```\n\n" CALLS INVOKE("f", "") END, STOP, TOOL_CALLS, "",
           "```c\nint x;\n```", "f", "{}");
    EXPECT(&content_on, "~~~~\n```\n~~~\n" CALLS "\n~~~~\n" CALLS INVOKE("f", "") END, STOP,
           TOOL_CALLS, "", "~~~~\n```\n~~~\n" CALLS "\n~~~~", "f", "{}");
    EXPECT(&content_on, "```x``` is no fence\n" CALLS INVOKE("f", "") END, STOP, TOOL_CALLS, "",
           "```x``` is no fence", "f", "{}");
    EXPECT(&content_on, "Use " CALLS, STOP, STOP, "", "Use " CALLS);
    EXPECT(&content_on, OPEN "tool_callsX>", STOP, STOP, "", OPEN "tool_callsX>");
}

/* ---- argument repair ------------------------------------------------------------------------ */

struct tools {
    struct chat_request r;
    struct chat_parser_opts o;
};

static void tools_init(struct tools *t, const char *properties)
{
    struct buf b = {0};
    struct json_doc *d;

    buf_printf(&b, "{\"type\":\"object\",\"properties\":%s,\"required\":[\"path\"]}", properties);
    assert_int_equal(json_parse(&d, b.data, b.len), FST_OK);
    chat_request_init(&t->r, NULL);
    chat_add_tool(&t->r, "f", NULL, json_root(d), false);
    json_free(d);
    buf_release(&b);
    t->o = content_on;
    t->o.tools = t->r.tools;
    t->o.n_tools = t->r.n_tools;
}

static void one(struct tools *t, const char *inside, const char *args)
{
    char text[1024];

    snprintf(text, sizeof text, CALLS OPEN "invoke name=\"f\">\n%s\n" CLOSE "invoke>" END, inside);
    EXPECT(&t->o, text, STOP, TOOL_CALLS, "", "", "f", args);
}

static void coercion(void **state)
{
    struct tools t;

    (void)state;
    tools_init(&t, "{\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":"
                   "\"boolean\"},\"a\":{\"type\":\"array\"},\"o\":{\"type\":[\"object\",\"null\"]},"
                   "\"s\":{\"type\":\"string\"},\"e\":{\"enum\":[1,2]},\"u\":{},"
                   "\"m\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}}");
    one(&t, STR("i", "5") STR("n", "1.5") STR("b", " true ") STR("a", "[1, 2]"),
        "{\"i\": 5, \"n\": 1.5, \"b\": true, \"a\": [1, 2]}");
    one(&t, STR("i", "1.5"), "{\"i\": \"1.5\"}");
    one(&t, STR("i", "five"), "{\"i\": \"five\"}");
    one(&t, STR("b", "1"), "{\"b\": \"1\"}");
    one(&t, STR("o", "{\"k\":1}") STR("u", "5"), "{\"o\": {\"k\":1}, \"u\": \"5\"}");
    one(&t, STR("o", "null") STR("e", "2"), "{\"o\": null, \"e\": 2}");
    one(&t, STR("s", "5") STR("m", "5"), "{\"s\": \"5\", \"m\": \"5\"}");
    one(&t, JSN("s", "5") JSN("i", "NaN"), "{\"s\": 5, \"i\": \"NaN\"}");
    one(&t, JSN("i", "[1"), "{\"i\": \"[1\"}");
    t.o.coerce_args = false;
    one(&t, STR("i", "5"), "{\"i\": \"5\"}");
    chat_request_release(&t.r);
}

static void wrappers(void **state)
{
    struct tools t;

    (void)state;
    tools_init(&t, "{\"path\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}");
    one(&t, "{\"path\": \"/x\", \"n\": 1}", "{\"path\": \"/x\", \"n\": 1}");
    one(&t, "{\"arguments\": {\"path\": \"<b>\"}}", "{\"path\":\"<b>\"}");
    one(&t, JSN("arguments", "{\"path\": \"/x\"}"), "{\"path\": \"/x\"}");
    one(&t, STR("input", "{\"path\": \"/x\"}") JSN("n", "2"), "{\"path\": \"/x\", \"n\": 2}");
    one(&t, STR("input", "{ }") JSN("n", "2"), "{\"n\": 2}");
    one(&t, JSN("n", "2") JSN("input", "{\"path\": 1}"), "{\"n\": 2, \"input\": {\"path\": 1}}");
    one(&t, STR("arguments", "no object"), "{\"arguments\": \"no object\"}");
    one(&t, "/etc/passwd", "{\"path\": \"/etc/passwd\"}");
    one(&t, "\"/etc/x\"", "{\"path\": \"/etc/x\"}");
    one(&t, "<x>", "{}");
    one(&t, "", "{}");
    chat_request_release(&t.r);
    /* a tool whose own parameter has such a name */
    tools_init(&t, "{\"arguments\":{\"type\":\"object\"}}");
    one(&t, JSN("arguments", "{\"path\": 1}"), "{\"arguments\": {\"path\": 1}}");
    one(&t, STR("arguments", "{\"path\": 1}"), "{\"arguments\": {\"path\": 1}}");
    one(&t, "{\"arguments\": {\"path\": 1}}", "{\"arguments\": {\"path\": 1}}");
    chat_request_release(&t.r);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static void broken_utf8(void **state)
{
    struct reply r;
    const char text[] = "a\xff\xe6\xaf\x95\xf0\x9f\n" CALLS INVOKE("f", STR("k", "\xc3(\xe6"));

    (void)state;
    at_every_cut(&content_on, text, sizeof text - 1, CHAT_END_STOP, &r);
    assert_string_equal(buf_str(&r.content), "a\xef\xbf\xbd\xe6\xaf\x95\xef\xbf\xbd");
    assert_string_equal(buf_str(&r.args[0]), "{\"k\": \"\xef\xbf\xbd(\xef\xbf\xbd\"}");
    reply_release(&r);
}

static void ids(void **state)
{
    char a[CHAT_CALL_ID_MAX], b[CHAT_CALL_ID_MAX];
    char prefix[] = "toolu_";

    (void)state;
    chat_call_id_random(NULL, 0, a);
    chat_call_id_random(NULL, 0, b);
    assert_int_equal(strlen(a), 29);
    assert_int_equal(strspn(a + 5, "abcdefghijklmnopqrstuvwxyz0123456789"), 24);
    assert_string_not_equal(a, b);
    chat_call_id_random(prefix, 0, a);
    assert_memory_equal(a, "toolu_", 6);
    assert_int_equal(strlen(a), 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(started_in_a_block),
        cmocka_unit_test(newlines),
        cmocka_unit_test(thoughts_kept_in_content),
        cmocka_unit_test(ends_inside_a_block),
        cmocka_unit_test(partial_calls_are_cancelled),
        cmocka_unit_test(one_call_only),
        cmocka_unit_test(call_out_of_thoughts),
        cmocka_unit_test(stray_text_between_tags),
        cmocka_unit_test(lenient_spellings),
        cmocka_unit_test(values_are_exact),
        cmocka_unit_test(long_values_arrive_in_pieces),
        cmocka_unit_test(fences),
        cmocka_unit_test(coercion),
        cmocka_unit_test(wrappers),
        cmocka_unit_test(broken_utf8),
        cmocka_unit_test(ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
