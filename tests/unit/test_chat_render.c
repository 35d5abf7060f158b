/* test_chat_render.c - prompts to the byte: vectors, official fixtures, what a server adds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "chat/chat.h"
#include "chat/protocol.h"
#include "support/vectors.h"

#define BOS PROTOCOL_BOS
#define EOS PROTOCOL_EOS
#define U   PROTOCOL_USER
#define A   PROTOCOL_ASSISTANT

static struct tokenizer *v4; /* NULL where it is not installed */

static struct json_doc *parse(const char *text)
{
    struct json_doc *d;
    if (json_parse(&d, text, strlen(text)) < 0)
        fail_msg("%.200s: %s", text, fst_error_text());
    return d;
}

/* A request with defaults; fails the test when it is refused. */
static void request(struct chat_request *r, const char *body)
{
    struct json_doc *d = parse(body);
    if (chat_request_from_json(r, json_root(d), NULL) < 0)
        fail_msg("%.200s: %s", body, fst_error_text());
    json_free(d);
}

static void expect(struct chat_request *r, const char *want, enum chat_start start)
{
    struct chat_prompt p;
    if (chat_render(&p, r) < 0)
        fail_msg("%s", fst_error_text());
    assert_string_equal(buf_str(&p.text), want);
    assert_int_equal(p.start, start);
    chat_prompt_release(&p);
    chat_request_release(r);
}

static void server(const char *body, const char *want, enum chat_start start)
{
    struct chat_request r;
    request(&r, body);
    expect(&r, want, start);
}

/* ---- vectors -------------------------------------------------------------------------------- */

static void check_ids(const struct chat_prompt *p, json_val *want, const char *id)
{
    struct tokenizer_ids ids = {0};

    if (!v4)
        return;
    assert_int_equal(chat_encode(p, v4, &ids), FST_OK);
    if (ids.n != json_count(want))
        fail_msg("%s: %zu ids, expected %zu", id, ids.n, json_count(want));
    for (size_t i = 0; i < ids.n; i++) {
        int64_t x;
        assert_true(json_int(json_at(want, i), &x));
        assert_int_equal(ids.id[i], x);
    }
    tokenizer_ids_release(&ids);
}

static void render_vector(json_val *v)
{
    size_t len;
    const char *id = json_string(json_get(v, "id"), &len), *want;
    json_val *options = json_get(v, "options"), *effort = json_get(options, "effort");
    struct chat_defaults d;
    struct chat_request r;
    struct chat_prompt p;
    bool on;

    chat_defaults_init(&d);
    d.placeholder_parts = true;
    if (text_is(json_get(options, "profile"), "official"))
        d.profile = CHAT_PROFILE_OFFICIAL;
    if (chat_request_from_json(&r, json_get(v, "messages"), &d) < 0)
        fail_msg("%s: %s", id, fst_error_text());
    r.reference = true;
    r.thinking = text_is(json_get(options, "mode"), "thinking");
    r.drop_thinking = json_bool(json_get(options, "drop"), true);
    if (effort)
        assert_true(chat_effort_parse(json_string(effort, &len), &on, &r.effort));
    if (chat_render(&p, &r) < 0)
        fail_msg("%s: %s", id, fst_error_text());
    want = json_string(json_get(v, "prompt"), &len);
    if (p.text.len != len || memcmp(p.text.data, want, len) != 0)
        fail_msg("%s:\n got %s\nwant %s", id, p.text.data, want);
    check_ids(&p, json_get(v, "token_ids"), id);
    chat_prompt_release(&p);
    chat_request_release(&r);
}

static void vectors(void **state)
{
    struct buf text = {0};
    struct json_doc *d;
    size_t at = 0;
    int n = 0;

    (void)state;
    assert_true(read_whole(CHAT_VECTORS, &text));
    while ((d = next_line(&text, &at))) {
        if (text_is(json_get(json_root(d), "kind"), "render")) {
            render_vector(json_root(d));
            n++;
        }
        json_free(d);
    }
    buf_release(&text);
    assert_int_equal(n, 23);
    if (!v4)
        print_message("SKIP render_ids: DeepSeek-V4's tokenizer.json is not here\n");
}

static void official_fixtures(void **state)
{
    const char *dir = getenv("FST_TEST_DATA");

    (void)state;
    if (!dir) {
        print_message("SKIP official_fixtures: FST_TEST_DATA is not set\n");
        skip();
    }
    for (int i = 1; i <= 2; i++) {
        char path[4096];
        struct buf in = {0}, want = {0};
        struct json_doc *d;
        struct chat_request r;
        struct chat_prompt p;

        snprintf(path, sizeof path, "%s/encoding/test_input_%d.json", dir, i);
        assert_true(read_whole(path, &in));
        snprintf(path, sizeof path, "%s/encoding/test_output_%d.txt", dir, i);
        assert_true(read_whole(path, &want));
        d = parse(in.data);
        assert_int_equal(chat_request_from_json(&r, json_root(d), NULL), FST_OK);
        json_free(d);
        r.reference = true;
        assert_int_equal(chat_render(&p, &r), FST_OK);
        assert_int_equal(p.text.len, want.len);
        assert_string_equal(p.text.data, want.data);
        chat_prompt_release(&p);
        chat_request_release(&r);
        buf_release(&in);
        buf_release(&want);
    }
}

static void texts_have_their_size(void **state)
{
    (void)state;
    assert_int_equal(sizeof PROTOCOL_TOOLS_HEAD - 1, 890);
    assert_int_equal(sizeof PROTOCOL_TOOLS_TAIL - 1, 99);
    assert_int_equal(sizeof PROTOCOL_EFFORT_ABSOLUTE - 1, 476);
    assert_int_equal(sizeof PROTOCOL_EFFORT_BEYOND - 1, 528);
}

/* ---- what a server adds --------------------------------------------------------------------- */

#define USER(s)              "{\"role\":\"user\",\"content\":\"" s "\"}"
#define SYS(s)               "{\"role\":\"system\",\"content\":\"" s "\"}"
#define ASST(s)              "{\"role\":\"assistant\",\"content\":\"" s "\"}"
#define CHAT(messages, more) "{\"messages\":[" messages "]" more "}"
#define OFF                  ",\"thinking\":{\"type\":\"disabled\"}"
#define TOOL_F                                                                                     \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":null,"             \
    "\"description\":null,\"parameters\":{\"type\":\"object\"}}}]"
#define TOOL_TEXT                                                                                  \
    "\n\n" PROTOCOL_TOOLS_HEAD                                                                     \
    "{\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}" PROTOCOL_TOOLS_TAIL

static void open_ends(void **state)
{
    (void)state;
    server(CHAT(USER("hi"), ""), BOS U "hi" A "<think>", CHAT_START_REASONING);
    server(CHAT(USER("hi"), OFF), BOS U "hi" A "</think>", CHAT_START_CONTENT);
    server(CHAT(SYS("only"), OFF), BOS "only" A "</think>", CHAT_START_CONTENT);
    server(CHAT(SYS("only"), ""), BOS "only" A "<think>", CHAT_START_REASONING);
    server(CHAT(USER("hi") "," ASST("yes"), OFF), BOS U "hi" A "</think>yes" EOS A "</think>",
           CHAT_START_CONTENT);
    /* every assistant turn has its header */
    server(CHAT(SYS("s") "," ASST("a") "," ASST("b") "," USER("r"), ""),
           BOS "s" A "</think>a" EOS A "</think>b" EOS U "r" A "<think>", CHAT_START_REASONING);
    server(CHAT(USER("hi"), OFF ",\"add_generation_prompt\":false"), BOS U "hi",
           CHAT_START_CONTENT);
    server(CHAT(USER("q"), OFF ",\"task\":\"title\""), BOS U "q" PROTOCOL_TAG("title"),
           CHAT_START_CONTENT);
    server(CHAT(USER("q") "," USER("r"), OFF ",\"task\":\"action\""),
           BOS U "q\n\nr" A "</think>" PROTOCOL_TAG("action"), CHAT_START_CONTENT);
}

static void continued(void **state)
{
    struct chat_request r;
    struct chat_prompt p;

    (void)state;
    server(CHAT(USER("Count") "," ASST("1, 2,"), OFF ",\"continue_final_message\":true"),
           BOS U "Count" A "</think>1, 2,", CHAT_START_CONTENT);
    server(
        CHAT(USER("Count") ",{\"role\":\"assistant\",\"content\":\"1, 2,\",\"prefix\":true}", ""),
        BOS U "Count" A "<think></think>1, 2,", CHAT_START_CONTENT);
    server(CHAT(USER("Q") ",{\"role\":\"assistant\",\"content\":\"A\",\"reasoning_content\":\"T\","
                          "\"prefix\":true}",
                ""),
           BOS U "Q" A "<think>T</think>A", CHAT_START_CONTENT);
    server(
        CHAT(USER("Q") ",{\"role\":\"assistant\",\"reasoning\":\"half a th\",\"prefix\":true}", ""),
        BOS U "Q" A "<think>half a th", CHAT_START_REASONING);
    /* an assistant prefix that already closed its thinking */
    server(CHAT(USER("Q") "," ASST("</think>The answer is"), ",\"continue_final_message\":true"),
           BOS U "Q" A "<think></think>The answer is", CHAT_START_CONTENT);
    server(
        CHAT(USER("Q") "," ASST("<think>T</think>The answer"), ",\"continue_final_message\":true"),
        BOS U "Q" A "<think>T</think>The answer", CHAT_START_CONTENT);
    request(&r, CHAT(USER("Q") "," ASST("so"), ",\"continue_final_message\":true"));
    assert_int_equal(chat_render(&p, &r), FST_OK);
    assert_true(p.continued);
    chat_prompt_release(&p);
    chat_request_release(&r);
}

static void system_and_developer(void **state)
{
    (void)state;
    server(
        CHAT(SYS("a") "," SYS("b") ",{\"role\":\"Developer\",\"content\":\"c\"}," USER("q"), OFF),
        BOS "a\n\nb\n\nc" U "q" A "</think>", CHAT_START_CONTENT);
    server(CHAT(USER("q") "," SYS("later"), OFF), BOS U "q\n\nlater" A "</think>",
           CHAT_START_CONTENT);
    server(CHAT(USER("q") "," ASST("a") ",{\"role\":\"developer\",\"content\":\"d\"}", ""),
           BOS U "q" A "</think>a" EOS U "d" A "<think>", CHAT_START_REASONING);
}

static void tools(void **state)
{
    (void)state;
    server(CHAT(USER("q"), TOOL_F), BOS TOOL_TEXT U "q" A "<think>", CHAT_START_REASONING);
    server(CHAT(SYS("s") "," USER("q"), TOOL_F OFF), BOS "s" TOOL_TEXT U "q" A "</think>",
           CHAT_START_CONTENT);
    server(CHAT(USER("q"), TOOL_F OFF ",\"tool_choice\":\"none\""), BOS U "q" A "</think>",
           CHAT_START_CONTENT);
    server(CHAT(USER("q"), TOOL_F ",\"tool_choice\":\"required\""), BOS TOOL_TEXT U "q" A "<think>",
           CHAT_START_REASONING);
    server(CHAT(USER("q"), TOOL_F OFF ",\"tool_choice\":\"required\""),
           BOS TOOL_TEXT U "q" A "</think>\n\n" PROTOCOL_CALLS_OPEN, CHAT_START_BLOCK);
    server(CHAT(USER("q"), TOOL_F OFF ",\"tool_choice\":{\"type\":\"function\",\"function\":"
                                      "{\"name\":\"f\"}}"),
           BOS TOOL_TEXT U "q" A "</think>\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_OPEN
                           "invoke name=\"f\">\n",
           CHAT_START_CALL);
    /* thoughts of earlier turns stay with tools, and a missing one is an empty one */
    server(CHAT(USER("q") ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"T\"}"
                          "," USER("r") "," ASST("b") "," USER("s"),
                TOOL_F),
           BOS TOOL_TEXT U "q" A "<think>T</think>a" EOS U "r" A "<think></think>b" EOS U "s" A
                           "<think>",
           CHAT_START_REASONING);
    server(CHAT(USER("q"), OFF ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
                               "{\"name\":\"n\",\"schema\":{\"type\":\"array\"}}}"),
           BOS "\n\n" PROTOCOL_RESPONSE_FORMAT "{\"type\": \"array\"}" U "q" A "</think>",
           CHAT_START_CONTENT);
}

static void calls_in_history(void **state)
{
    (void)state;
    /* arguments that are no object, empty ones, a call of the old "function" kind */
    server(
        CHAT(USER("q") ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
                       "{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{bad\"}},"
                       "{\"id\":\"2\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}},"
                       "{\"id\":\"3\",\"function\":{\"name\":\"h\",\"arguments\":{\"x\":1e16}}}]},"
                       "{\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":\"two\"},"
                       "{\"role\":\"function\",\"name\":\"1\",\"content\":\"one\"}",
             OFF),
        BOS U
        "q" A "</think>\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_INVOKE_OPEN "f\">\n" PROTOCOL_PARAM_OPEN
        "arguments\" string=\"true\">{bad" PROTOCOL_PARAM_CLOSE PROTOCOL_INVOKE_END
        "\n" PROTOCOL_INVOKE_OPEN "g\">\n" PROTOCOL_INVOKE_END "\n" PROTOCOL_INVOKE_OPEN
        "h\">\n" PROTOCOL_PARAM_OPEN
        "x\" string=\"false\">1e+16" PROTOCOL_PARAM_CLOSE PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE
            EOS U "<tool_result>one</tool_result>\n\n<tool_result>two</tool_result>" A "</think>",
        CHAT_START_CONTENT);
}

/* Results whose ids no call has keep their order, before those of later calls; of equal ids the
 * last call counts; texts between results stay where they are. */
static void order_of_results(void **state)
{
#define RESULT(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
#define FCALL(id)        "{\"id\":\"" id "\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"
#define DONE(text)       "<tool_result>" text "</tool_result>"
    struct chat_request r;
    struct chat_prompt p;

    (void)state;
    request(
        &r,
        CHAT(
            USER("q") ",{\"role\":\"assistant\",\"tool_calls\":[" FCALL("a") "," FCALL("b") "," FCALL("c") "," FCALL(
                "a") "]}," RESULT("a",
                                  "A") "," RESULT("x",
                                                  "X") "," USER("text") "," RESULT("c",
                                                                                   "C") "," RESULT("y",
                                                                                                   "Y") "," RESULT("b",
                                                                                                                   "B"),
            OFF));
    assert_int_equal(chat_render(&p, &r), FST_OK);
    assert_non_null(strstr(p.text.data, U DONE("X") "\n\n" DONE("Y") "\n\ntext\n\n" DONE(
                                            "B") "\n\n" DONE("C") "\n\n" DONE("A") A));
    chat_prompt_release(&p);
    chat_request_release(&r);
}

static void content_arrays(void **state)
{
    struct chat_request r;
    struct json_doc *d;
    struct chat_defaults def;
    const char *body = CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                            "{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}",
                            OFF);

    (void)state;
    server(CHAT("{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"]},"
                "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"c\"},"
                "{\"type\":\"input_text\",\"text\":\"d\"}]}",
                OFF),
           BOS "ab" U "c\n\nd" A "</think>", CHAT_START_CONTENT);
    server(CHAT(USER("q") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
                          "\"thinking\":\"T\",\"signature\":\"\"},{\"type\":\"refusal\","
                          "\"refusal\":\"no\"}]}," USER("r"),
                ",\"drop_thinking\":false"),
           BOS U "q" A "<think>T</think>no" EOS U "r" A "<think>", CHAT_START_REASONING);
    d = parse(body);
    assert_int_equal(chat_request_from_json(&r, json_root(d), NULL), FST_EINVAL);
    assert_string_equal(r.error_code, "unsupported_content");
    assert_string_equal(r.error_param, "messages[0].content[1]");
    assert_non_null(strstr(fst_error_text(), "This model does not support image input"));
    chat_request_release(&r);
    chat_defaults_init(&def);
    def.placeholder_parts = true;
    assert_int_equal(chat_request_from_json(&r, json_root(d), &def), FST_OK);
    expect(&r, BOS U "a\n\n[Unsupported image_url]" A "</think>", CHAT_START_CONTENT);
    json_free(d);
}

/* ---- thinking and effort -------------------------------------------------------------------- */

static void thinking_flags(void **state)
{
    static const struct {
        const char *more;
        bool on;
        enum chat_effort effort;
    } rows[] = {
        {"", true, CHAT_EFFORT_DEFAULT},
        {",\"model\":\"deepseek-chat\"", false, CHAT_EFFORT_DEFAULT},
        {",\"model\":\"deepseek-chat\",\"reasoning_effort\":\"high\"", true, CHAT_EFFORT_HIGH},
        {",\"reasoning_effort\":\"none\"", false, CHAT_EFFORT_DEFAULT},
        {",\"reasoning_effort\":\"minimal\"", true, CHAT_EFFORT_LOW},
        {",\"reasoning_effort\":\"medium\"", true, CHAT_EFFORT_HIGH},
        {",\"reasoning_effort\":\"xhigh\"", true, CHAT_EFFORT_HIGH},
        {",\"reasoning_effort\":\"ULTRA\"", true, CHAT_EFFORT_MAX},
        {",\"reasoning_effort\":0.33", true, CHAT_EFFORT_LOW},
        {",\"reasoning_effort\":0.34", true, CHAT_EFFORT_HIGH},
        {",\"reasoning_effort\":1", true, CHAT_EFFORT_MAX},
        {",\"reasoning_effort\":null", true, CHAT_EFFORT_DEFAULT},
        {",\"reasoning\":{\"effort\":\"low\"}", true, CHAT_EFFORT_LOW},
        {",\"reasoning_effort\":\"max\",\"reasoning\":{\"effort\":\"low\"}", true, CHAT_EFFORT_MAX},
        {",\"output_config\":{\"effort\":\"max\"}", true, CHAT_EFFORT_MAX},
        {",\"reasoning_effort\":\"high\",\"think\":false", false, CHAT_EFFORT_HIGH},
        {",\"reasoning\":{\"enabled\":false}", false, CHAT_EFFORT_DEFAULT},
        {",\"think\":false,\"thinking\":{\"type\":\"enabled\"}", true, CHAT_EFFORT_DEFAULT},
        {",\"thinking\":{\"type\":\"adaptive\"}", true, CHAT_EFFORT_DEFAULT},
        {",\"thinking\":{\"type\":\"enabled\"},\"chat_template_kwargs\":{\"thinking\":false}",
         false, CHAT_EFFORT_DEFAULT},
        {",\"chat_template_kwargs\":{\"enable_thinking\":false,\"reasoning_effort\":\"low\"},"
         "\"reasoning_effort\":\"max\"",
         false, CHAT_EFFORT_LOW},
    };

    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        struct chat_request r;
        char body[512];
        snprintf(body, sizeof body, CHAT(USER("q"), "%s"), rows[i].more);
        request(&r, body);
        if (r.thinking != rows[i].on || r.effort != rows[i].effort)
            fail_msg("%s: thinking %d effort %s", rows[i].more, r.thinking,
                     chat_effort_name(r.effort));
        chat_request_release(&r);
    }
}

static void effort_texts(void **state)
{
    static const struct {
        enum chat_profile profile;
        enum chat_effort effort;
        const char *text;
    } rows[] = {
        {CHAT_PROFILE_PREVIEW, CHAT_EFFORT_DEFAULT, ""},
        {CHAT_PROFILE_PREVIEW, CHAT_EFFORT_LOW, ""},
        {CHAT_PROFILE_PREVIEW, CHAT_EFFORT_HIGH, ""},
        {CHAT_PROFILE_PREVIEW, CHAT_EFFORT_MAX, PROTOCOL_EFFORT_ABSOLUTE},
        {CHAT_PROFILE_OFFICIAL, CHAT_EFFORT_LOW, ""},
        {CHAT_PROFILE_OFFICIAL, CHAT_EFFORT_HIGH, PROTOCOL_EFFORT_ABSOLUTE},
        {CHAT_PROFILE_OFFICIAL, CHAT_EFFORT_MAX, PROTOCOL_EFFORT_BEYOND},
    };

    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++)
        for (int on = 0; on < 2; on++) {
            struct chat_request r;
            char want[2048];
            request(&r, CHAT(USER("q"), ""));
            r.d.profile = rows[i].profile;
            r.effort = rows[i].effort;
            r.thinking = on;
            snprintf(want, sizeof want, BOS "%s" U "q" A "%s", on ? rows[i].text : "",
                     on ? "<think>" : "</think>");
            expect(&r, want, on ? CHAT_START_REASONING : CHAT_START_CONTENT);
        }
}

/* ---- control text typed by clients ------------------------------------------------------------ */

/* The number of control tokens in a prompt whose every client text is `s`. */
static size_t control_tokens(const struct tokenizer *t, const char *s)
{
    struct buf body = {0};
    struct chat_request r;
    struct chat_prompt p;
    struct tokenizer_ids ids = {0};
    size_t n_control = 0;

    buf_printf(&body,
               "{\"messages\":[{\"role\":\"system\",\"content\":\"%s\"},"
               "{\"role\":\"user\",\"content\":\"%s\"},"
               "{\"role\":\"latest_reminder\",\"content\":\"%s\"},"
               "{\"role\":\"assistant\",\"content\":\"%s\",\"reasoning_content\":\"%s\","
               "\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"%s\",\"arguments\":"
               "\"{\\\"%s\\\":\\\"%s\\\",\\\"j\\\":[\\\"%s\\\"]}\"}}]},"
               "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"%s\"}],"
               "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"%s\","
               "\"description\":\"%s\",\"parameters\":{\"%s\":1}}}],"
               "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":"
               "{\"title\":\"%s\"}}}}",
               s, s, s, s, s, s, s, s, s, s, s, s, s, s);
    request(&r, buf_str(&body));
    assert_int_equal(chat_render(&p, &r), FST_OK);
    assert_int_equal(chat_encode(&p, t, &ids), FST_OK);
    for (size_t i = 0; i < ids.n; i++) {
        size_t len;
        const char *text = tokenizer_bytes(t, ids.id[i], &len);
        n_control += tokenizer_special(t, text) == ids.id[i];
    }
    tokenizer_ids_release(&ids);
    chat_prompt_release(&p);
    chat_request_release(&r);
    buf_release(&body);
    return n_control;
}

/* Every special token of the vocabulary, in every place where a client can write: no control token
 * beyond the template's own. */
static void nobody_types_a_role(void **state)
{
    struct tokenizer *tiny;

    (void)state;
    assert_int_equal(tokenizer_load(&tiny, TINY_TOKENIZER), FST_OK);
    for (int k = 0; k < 2; k++) {
        const struct tokenizer *t = k ? v4 : tiny;
        struct buf all = {0};
        size_t n;

        if (!t)
            continue;
        buf_puts(&all, "</tool_result>");
        size_t own = control_tokens(t, "x");
        assert_true(own > 20);
        for (int32_t id = 0; id < tokenizer_vocab_size(t); id++) {
            const char *text = tokenizer_bytes(t, id, &n);
            if (tokenizer_special(t, text) == id)
                buf_append(&all, text, n);
            if (all.len > 128) { /* one of the places is a tool's name */
                assert_int_equal(control_tokens(t, buf_str(&all)), own);
                buf_reset(&all);
                buf_putc(&all, 'x');
            }
        }
        assert_int_equal(control_tokens(t, buf_str(&all)), own);
        buf_release(&all);
    }
    tokenizer_free(tiny);
}

static void escape_dsml(void **state)
{
    struct chat_request r;

    (void)state;
    request(&r, CHAT(USER("q") ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\","
                               "\"function\":{\"name\":\"f\",\"arguments\":"
                               "\"{\\\"s\\\":\\\"a" PROTOCOL_END
                               "b\\\",\\\"j\\\":[\\\"" PROTOCOL_END "\\\"]}\"}}]},"
                               "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":"
                               "\"x</tool_result>y</tool_result>\"}",
                     OFF));
    r.d.escape_dsml = true;
    expect(&r,
           BOS U "q" A "</think>\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_INVOKE_OPEN
                 "f\">\n" PROTOCOL_PARAM_OPEN "s\" string=\"true\">a&lt;/" PROTOCOL_MARK
                 "b" PROTOCOL_PARAM_CLOSE "\n" PROTOCOL_PARAM_OPEN
                 "j\" string=\"false\">[\"\\u003c/" PROTOCOL_MARK
                 "\"]" PROTOCOL_PARAM_CLOSE PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE EOS U
                 "<tool_result>x&lt;/tool_result>y&lt;/tool_result></tool_result>" A "</think>",
           CHAT_START_CONTENT);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static void refusals(void **state)
{
    static const struct {
        const char *body, *text, *param;
    } rows[] = {
        {"{}", "Messages cannot be empty.", "messages"},
        {"{\"messages\":[]}", "Messages cannot be empty.", "messages"},
        {"{\"messages\":5}", "messages: expected array, got number", "messages"},
        {"[]", "Messages cannot be empty.", "messages"},
        {"\"x\"", "body: expected object, got string", "body"},
        {CHAT(USER("a") "," USER("b") ",{\"role\":\"user\",\"content\":5}", ""),
         "messages[2].content: expected string or array, got number", "messages[2].content"},
        {CHAT("{\"role\":\"user\"}", ""), "messages[0].content: expected string or array, got null",
         "messages[0].content"},
        {CHAT("3", ""), "messages[0]: expected object, got number", "messages[0]"},
        {CHAT("{\"content\":\"x\"}", ""), "messages[0].role: expected string, got null",
         "messages[0].role"},
        {CHAT("{\"role\":\"robot\",\"content\":\"x\"}", ""),
         "messages[0].role: Unknown role: robot (expected system, developer, user, assistant, "
         "tool, function or latest_reminder)",
         "messages[0].role"},
        {CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}", ""),
         "messages[0].content[0].text: expected string, got null", "messages[0].content[0].text"},
        {CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}", ""),
         "messages[0].content[0]: This model does not support audio input",
         "messages[0].content[0]"},
        {CHAT("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}", ""),
         "messages[0].tool_calls[0].function.name: expected string, got null",
         "messages[0].tool_calls[0].function.name"},
        {CHAT("{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":[]}", ""),
         "messages[0].reasoning: expected string, got array", "messages[0].reasoning"},
        {CHAT(USER("x"), ",\"tools\":{}"), "tools: expected array, got object", "tools"},
        {CHAT(USER("x"), ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                         "\"parameters\":[]}}]"),
         "tools[0].function.parameters: Tool 0 function has invalid 'parameters' schema: expected "
         "object, got array",
         "tools[0].function.parameters"},
        {CHAT(USER("x"), ",\"tools\":[{\"type\":\"web_search\"}]"),
         "tools[0].type: only \"function\" is supported, got 'web_search'", "tools[0].type"},
        {CHAT(USER("x"), ",\"tool_choice\":\"required\""),
         "Tools cannot be empty if tool choice is set to required.", "tool_choice"},
        {CHAT(USER("x"), TOOL_F ",\"tool_choice\":{\"type\":\"function\",\"function\":"
                                "{\"name\":\"x\"}}"),
         "Tool 'x' not found in tools list.", "tool_choice"},
        {CHAT(USER("x"), ",\"tool_choice\":\"maybe\""),
         "tool_choice: expected auto, none, required or a function, got 'maybe'", "tool_choice"},
        {CHAT(USER("x"), ",\"reasoning_effort\":\"much\""),
         "reasoning_effort: expected none, minimal, low, medium, high, xhigh, max or a number from "
         "0 to 1, got 'much'",
         "reasoning_effort"},
        {CHAT(USER("x"), ",\"reasoning_effort\":1.5"),
         "reasoning_effort: expected none, minimal, low, medium, high, xhigh, max or a number from "
         "0 to 1, got '1.5'",
         "reasoning_effort"},
        {CHAT(USER("x"), ",\"think\":1"), "think: expected boolean, got number", "think"},
        {CHAT(USER("x"), ",\"thinking\":{\"type\":\"on\"}"),
         "thinking.type: expected enabled, disabled or adaptive, got 'on'", "thinking.type"},
        {CHAT(USER("x"), ",\"response_format\":{\"type\":\"json_schema\"}"),
         "schema_ is required for json_schema response format request.",
         "response_format.json_schema.schema"},
        {CHAT(USER("x"), ",\"response_format\":{\"type\":\"xml\"}"),
         "response_format.type: expected text, json_object, json_schema or structural_tag, got "
         "'xml'",
         "response_format.type"},
        {CHAT(USER("x"), ",\"task\":\"dance\""),
         "task: expected action, query, authority, domain, title or read_url, got 'dance'", "task"},
        {CHAT(USER("x"), ",\"continue_final_message\":true"),
         "continue_final_message: the last message must be the assistant's, got user",
         "continue_final_message"},
    };

    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        struct json_doc *d = parse(rows[i].body);
        struct chat_request r;
        assert_int_equal(chat_request_from_json(&r, json_root(d), NULL), FST_EINVAL);
        assert_string_equal(fst_error_text(), rows[i].text);
        assert_string_equal(r.error_param, rows[i].param);
        assert_non_null(r.error_code);
        chat_request_release(&r);
        json_free(d);
    }
}

/* The calls that other dialects use build what JSON builds. */
static void built_by_hand(void **state)
{
    struct chat_request r;
    struct chat_message *m;
    struct json_doc *d = parse("{\"type\":\"object\"}");

    (void)state;
    chat_request_init(&r, NULL);
    r.thinking = false;
    m = chat_add_message(&r, CHAT_USER);
    chat_add_text(&r, m, "q", 1);
    m = chat_add_message(&r, CHAT_ASSISTANT);
    chat_set_reasoning(&r, m, "T", 1);
    chat_add_call(&r, m, "c1", "f", "{}", 2);
    m = chat_add_message(&r, CHAT_TOOL);
    chat_set_tool_call_id(&r, m, "c1");
    chat_add_text(&r, m, "r", 1);
    chat_add_tool(&r, "f", NULL, json_root(d), false);
    assert_int_equal(chat_check_tools(&r), FST_OK);
    expect(&r,
           BOS TOOL_TEXT U "q" A "</think>\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_INVOKE_OPEN
                           "f\">\n" PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE EOS U
                           "<tool_result>r</tool_result>" A "</think>",
           CHAT_START_CONTENT);
    json_free(d);
}

static void profiles(void **state)
{
    static const struct {
        const char *encoder, *config;
        enum chat_profile want;
    } rows[] = {
        {NULL, NULL, CHAT_PROFILE_PREVIEW},
        {"REASONING_EFFORT_MAX = (\n", "{}", CHAT_PROFILE_PREVIEW},
        {"DEFAULT_REASONING_EFFORT: str = \"low\"\nREASONING_EFFORT_PROMPTS = {", "{}",
         CHAT_PROFILE_OFFICIAL},
        {"DEFAULT_REASONING_EFFORT = None\nx = \"low\"\nREASONING_EFFORT_PROMPTS = {", "{}",
         CHAT_PROFILE_PREVIEW},
        {"DEFAULT_REASONING_EFFORT = 'low'\nREASONING_EFFORT_PROMPTS = {",
         "{\"dsv4_reasoning_effort_profile\":\"preview\"}", CHAT_PROFILE_PREVIEW},
        {NULL, "{\"dsv4_reasoning_effort_profile\":\"official\"}", CHAT_PROFILE_OFFICIAL},
    };
    char dir[] = "/tmp/fst-profile-XXXXXX", path[256];

    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        char command[512];
        const char *const name[2] = {"encoding/encoding_dsv4.py", "config.json"};
        const char *const text[2] = {rows[i].encoder, rows[i].config};
        snprintf(command, sizeof command, "mkdir -p %s/encoding", dir);
        assert_int_equal(system(command), 0);
        for (int k = 0; k < 2; k++) {
            FILE *f;
            snprintf(path, sizeof path, "%s/%s", dir, name[k]);
            remove(path);
            if (!text[k])
                continue;
            f = fopen(path, "w");
            assert_non_null(f);
            fputs(text[k], f);
            fclose(f);
        }
        assert_int_equal(chat_profile_detect(dir), rows[i].want);
        snprintf(command, sizeof command, "rm -r %s", dir);
        assert_int_equal(system(command), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(official_fixtures),
        cmocka_unit_test(texts_have_their_size),
        cmocka_unit_test(open_ends),
        cmocka_unit_test(continued),
        cmocka_unit_test(system_and_developer),
        cmocka_unit_test(tools),
        cmocka_unit_test(calls_in_history),
        cmocka_unit_test(order_of_results),
        cmocka_unit_test(content_arrays),
        cmocka_unit_test(thinking_flags),
        cmocka_unit_test(effort_texts),
        cmocka_unit_test(nobody_types_a_role),
        cmocka_unit_test(escape_dsml),
        cmocka_unit_test(refusals),
        cmocka_unit_test(built_by_hand),
        cmocka_unit_test(profiles),
    };
    const char *path = v4_tokenizer_path();
    int rc;

    if (path && tokenizer_load(&v4, path) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_free(v4);
    return rc;
}
