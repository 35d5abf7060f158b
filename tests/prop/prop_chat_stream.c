/* Properties of replies.
 *   - Any text, cut anywhere, gives the same events (texts are made of markup and its fragments).
 *   - Complete calls have arguments that are valid JSON.
 *   - What the renderer writes as an assistant turn, the parser reads back.
 *   - Stop strings: the one complete first ends the text, however it comes in ids; text and count
 *     agree with a search by definition.
 *
 * With --lines TOKENIZER.json it is the C side of tests/api/peer_chat.py instead: JSON lines
 * {"body": ..., "official": bool} or {"parse": text, "start": n, "tools_on": bool, "stops": [...]}
 * come in, one JSON line goes out for each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/rng.h"
#include "chat/protocol.h"
#include "chat/stream.h"
#include "support/replies.h"
#include "support/vectors.h"

static struct tokenizer *tok;

/* ---- cuts ----------------------------------------------------------------------------------- */

static const char *const bits[] = {
    "\n",
    "\n\n",
    "\r\n",
    " ",
    "a",
    "text with words",
    "<",
    "</",
    "</think>",
    "<think>",
    "</thin",
    PROTOCOL_OPEN "tool_calls>",
    PROTOCOL_OPEN "tool_calls>\n",
    "\n\n" PROTOCOL_OPEN "tool_calls>\n",
    PROTOCOL_OPEN " calls>",
    PROTOCOL_OPEN "tool_cal",
    PROTOCOL_OPEN,
    PROTOCOL_END,
    PROTOCOL_OPEN "invoke name=\"f\">\n",
    PROTOCOL_OPEN "invoke name=\"g\">",
    PROTOCOL_OPEN "parameter name=\"i\" string=\"true\">",
    PROTOCOL_OPEN "parameter name=\"s\" string=\"true\">",
    PROTOCOL_OPEN "parameter name=\"s\" string=\"false\">",
    PROTOCOL_OPEN "parameter name=\"arguments\" string=\"false\">",
    PROTOCOL_OPEN "parameter name=\"",
    "12",
    "{\"s\": 1}",
    "[1,",
    "\"",
    "\\",
    "\xe6\xaf\x95",
    "\xf0\x9f\x98\x80",
    "\xf0\x9f",
    "\xff",
    "\xe2\x80\x9d",
    PROTOCOL_END "parameter>",
    PROTOCOL_END "parameter>\n",
    PROTOCOL_END "invoke>",
    PROTOCOL_END "invoke>\n",
    PROTOCOL_END "tool_calls>",
    PROTOCOL_END " calls>",
    "<|DSML|",
    "|DSML|",
    "```\n",
    "\n```",
    "~~~",
    "`",
    ">",
    "=",
    "name",
    "string=\"false\"",
};

/* Follows the grammar most of the time, so that deep states are reached. */
static size_t random_reply(struct rng *r, char *text, size_t max)
{
    static const char *const path[] = {"\n\n" PROTOCOL_OPEN "tool_calls>\n",
                                       PROTOCOL_OPEN "invoke name=\"f\">\n",
                                       PROTOCOL_OPEN "parameter name=\"i\" string=\"true\">",
                                       "12",
                                       PROTOCOL_END "parameter>\n",
                                       PROTOCOL_OPEN "parameter name=\"s\" string=\"true\">",
                                       "v<",
                                       PROTOCOL_END "parameter>\n",
                                       PROTOCOL_END "invoke>\n",
                                       PROTOCOL_END "tool_calls>"};
    size_t len = 0, step = 0, n = rng_below(r, 24);

    while (n-- > 0) {
        bool on_path = rng_below(r, 3) > 0 && step < FST_COUNT(path);
        const char *s = on_path ? path[step] : bits[rng_below(r, FST_COUNT(bits))];
        size_t k = strlen(s);
        step += on_path;
        if (rng_below(r, 24) == 0)
            k = rng_below(r, k + 1);
        if (len + k > max)
            break;
        memcpy(text + len, s, k);
        len += k;
    }
    return len;
}

static void cuts_do_not_matter(void **state)
{
    static const char schema[] = "{\"properties\":{\"i\":{\"type\":\"integer\"},\"s\":{\"type\":"
                                 "\"string\"}},\"required\":[\"s\"]}";
    struct chat_request r;
    struct json_doc *d;
    struct rng rng;
    char text[2048];
    int n_complete = 0;

    (void)state;
    rng_init(&rng, 3);
    assert_int_equal(json_parse(&d, schema, sizeof schema - 1), FST_OK);
    chat_request_init(&r, NULL);
    chat_add_tool(&r, "f", NULL, json_root(d), false);
    json_free(d);
    for (int round = 0, n_rounds = test_rounds(60000); round < n_rounds; round++) {
        struct chat_parser_opts o = {.start = (enum chat_start)rng_below(&rng, 4),
                                     .start_name = {"f", 1},
                                     .tools_on = rng_below(&rng, 8) > 0,
                                     .tools = r.tools,
                                     .n_tools = r.n_tools,
                                     .coerce_args = rng_below(&rng, 4) > 0,
                                     .one_call = rng_below(&rng, 8) == 0,
                                     .keep_leading = rng_below(&rng, 4) == 0,
                                     .keep_think = rng_below(&rng, 4) == 0};
        enum chat_end end = (enum chat_end)rng_below(&rng, 3);
        size_t len = random_reply(&rng, text, sizeof text), cuts[2048], n = 0;
        struct reply whole, cut;

        for (size_t at = 0; at < len; at += 1 + rng_below(&rng, round % 2 ? 3 : 20))
            cuts[n++] = at;
        reply_init(&whole);
        reply_init(&cut);
        assert_int_equal(reply_parse(&whole, &o, text, len, NULL, 0, end), FST_OK);
        assert_int_equal(reply_parse(&cut, &o, text, len, cuts, n, end), FST_OK);
        if (!whole.is_valid || !cut.is_valid || whole.finish != cut.finish ||
            strcmp(buf_str(&whole.trace), buf_str(&cut.trace)) != 0)
            fail_msg("round %d: %.*s\nwhole:%s\ncut:%s", round, (int)len, text,
                     buf_str(&whole.trace), buf_str(&cut.trace));
        for (int i = 0; i < whole.n_calls && i < REPLY_CALLS_MAX; i++)
            if (whole.complete[i]) {
                if (json_parse(&d, whole.args[i].data, whole.args[i].len) < 0)
                    fail_msg("%s: %s", whole.args[i].data, fst_error_text());
                assert_int_equal(json_type_of(json_root(d)), JSON_OBJECT);
                json_free(d);
                n_complete++;
            }
        reply_release(&whole);
        reply_release(&cut);
    }
    assert_true(n_complete > 5000);
    chat_request_release(&r);
}

/* ---- render and parse ----------------------------------------------------------------------- */

static void put_random_json(struct rng *r, struct buf *b, int depth)
{
    static const char *const atoms[] = {"null",  "true",         "1",   "-2.5",
                                        "\"x\"", "\"<\\n\\\"\"", "1e20"};

    if (depth == 0 || rng_below(r, 2))
        buf_puts(b, atoms[rng_below(r, FST_COUNT(atoms))]);
    else if (rng_below(r, 2)) {
        buf_puts(b, "[");
        put_random_json(r, b, depth - 1);
        buf_puts(b, "]");
    } else {
        buf_puts(b, "{\"k\": ");
        put_random_json(r, b, depth - 1);
        buf_puts(b, "}");
    }
}

static void put_random_string(struct rng *r, struct buf *b)
{
    static const char *const parts[] = {
        "word ", "\n",           "<", "</", "\"", "\\", "\xe6\xaf\x95", "\xf0\x9f\x98\x80", "&amp;",
        "\t",    "</parameter>", "7"};
    struct buf s = {0};

    for (uint64_t n = rng_below(r, 6); n > 0; n--)
        buf_puts(&s, parts[rng_below(r, FST_COUNT(parts))]);
    json_put_string(b, buf_str(&s), s.len);
    buf_release(&s);
}

static void renders_read_back(void **state)
{
    struct rng rng;

    (void)state;
    rng_init(&rng, 5);
    for (int round = 0, n_rounds = test_rounds(3000); round < n_rounds; round++) {
        struct buf args[3] = {{0}}, want = {0};
        struct chat_request r;
        struct chat_message *m;
        struct chat_prompt with, without;
        struct chat_parser_opts o = {.tools_on = true, .coerce_args = true};
        struct reply reply;
        int n_calls = (int)rng_below(&rng, 4);
        const char *text, *thought = round % 3 ? "some\nthought" : "";
        const char *content = round % 5 ? "content `x` < y" : "";
        size_t len;

        chat_request_init(&r, NULL);
        r.reference = true;
        r.drop_thinking = false;
        r.thinking = round & 1;
        m = chat_add_message(&r, CHAT_USER);
        chat_add_text(&r, m, "q", 1);
        assert_int_equal(chat_render(&without, &r), FST_OK);
        m = chat_add_message(&r, CHAT_ASSISTANT);
        chat_set_reasoning(&r, m, thought, strlen(thought));
        chat_add_text(&r, m, content, strlen(content));
        for (int i = 0; i < n_calls; i++) {
            buf_puts(&args[i], "{");
            for (int k = 0, n = (int)rng_below(&rng, 4); k < n; k++) {
                buf_printf(&args[i], "%s\"p%d\": ", k ? ", " : "", k);
                if (rng_below(&rng, 2))
                    put_random_string(&rng, &args[i]);
                else
                    put_random_json(&rng, &args[i], 3);
            }
            buf_puts(&args[i], "}");
            chat_add_call(&r, m, "id", "f", args[i].data, args[i].len);
        }
        m->wo_eos = true;
        assert_int_equal(chat_render(&with, &r), FST_OK);
        /* the reply is what the second prompt has more */
        assert_memory_equal(with.text.data, without.text.data, without.text.len);
        text = with.text.data + without.text.len;
        len = with.text.len - without.text.len;
        o.start = without.start;
        reply_init(&reply);
        assert_int_equal(reply_parse(&reply, &o, text, len, NULL, 0, CHAT_END_STOP), FST_OK);
        assert_string_equal(buf_str(&reply.reasoning), r.thinking ? thought : "");
        assert_string_equal(buf_str(&reply.content), content);
        assert_int_equal(reply.n_calls, n_calls);
        for (int i = 0; i < n_calls; i++) {
            struct json_doc *d;
            assert_int_equal(json_parse(&d, args[i].data, args[i].len), FST_OK);
            buf_reset(&want);
            json_put(&want, json_root(d), JSON_PYTHON);
            json_free(d);
            assert_string_equal(buf_str(&reply.args[i]), buf_str(&want));
        }
        assert_int_equal(reply.finish, n_calls ? CHAT_FINISH_TOOL_CALLS : CHAT_FINISH_STOP);
        reply_release(&reply);
        chat_prompt_release(&with);
        chat_prompt_release(&without);
        chat_request_release(&r);
        for (int i = 0; i < 3; i++)
            buf_release(&args[i]);
        buf_release(&want);
    }
}

/* ---- stop strings --------------------------------------------------------------------------- */

/* End of the first stop string to be complete; of those that end there the longest. */
static size_t first_stop(const char *text, size_t len, const struct chat_str *stops, size_t n,
                         size_t *start, int *index)
{
    for (size_t end = 1; end <= len; end++) {
        *index = -1;
        for (size_t i = 0; i < n; i++)
            if (stops[i].len <= end &&
                memcmp(text + end - stops[i].len, stops[i].data, stops[i].len) == 0 &&
                (*index < 0 || stops[i].len > stops[*index].len))
                *index = (int)i;
        if (*index >= 0) {
            *start = end - stops[*index].len;
            return end;
        }
    }
    return 0;
}

static void stops_by_definition(void **state)
{
    struct rng rng;
    int n_hits = 0;

    (void)state;
    rng_init(&rng, 17);
    for (int round = 0, n_rounds = test_rounds(20000); round < n_rounds; round++) {
        char text[64], words[4][8];
        struct chat_str stops[4];
        size_t len = rng_below(&rng, 40), n = 1 + rng_below(&rng, 4), start = len, end;
        bool chat = rng_below(&rng, 2), bytes = rng_below(&rng, 2);
        struct chat_stream_opts o = {.kind = chat ? CHAT_STREAM_CHAT : CHAT_STREAM_TEXT,
                                     .tokenizer = tok};
        struct tokenizer_ids ids = {0};
        struct chat_stream *s;
        struct reply reply;
        size_t seen = 0, n_want = 0;
        int index = -1;

        text[0] = 'x'; /* a chat's content does not begin with newlines */
        for (size_t i = 1; i < len; i++)
            text[i] = "ab\n"[rng_below(&rng, 3)];
        for (size_t i = 0; i < n; i++) {
            stops[i] = (struct chat_str){words[i], 1 + rng_below(&rng, 5)};
            for (size_t k = 0; k < stops[i].len; k++)
                words[i][k] = "ab\n"[rng_below(&rng, 3)];
        }
        end = first_stop(text, len, stops, n, &start, &index);
        o.stops = stops;
        o.n_stops = n;
        o.parser.tools_on = rng_below(&rng, 2);
        o.parser.event = reply_event;
        o.parser.ud = &reply;
        reply_init(&reply);
        for (size_t i = 0; bytes && i < len; i++)
            assert_int_equal(tokenizer_encode_text(tok, text + i, 1, false, &ids), FST_OK);
        if (!bytes)
            assert_int_equal(tokenizer_encode_text(tok, text, len, false, &ids), FST_OK);
        /* the id that completes it */
        for (size_t i = 0; i < ids.n && (!end || seen < end); i++) {
            size_t k;
            tokenizer_bytes(tok, ids.id[i], &k);
            seen += k;
            n_want = i + 1;
        }
        assert_int_equal(chat_stream_new(&s, &o), FST_OK);
        for (size_t i = 0; i < ids.n; i++)
            assert_int_equal(chat_stream_feed(s, ids.id[i], false), FST_OK);
        assert_int_equal(chat_stream_finish(s, CHAT_END_LENGTH), FST_OK);
        assert_int_equal(chat_stream_result(s)->stop_index, index);
        assert_int_equal(chat_stream_result(s)->stopped, end > 0);
        assert_int_equal(chat_stream_result(s)->n_tokens, n_want);
        assert_int_equal(chat_stream_result(s)->finish,
                         end ? CHAT_FINISH_STOP : CHAT_FINISH_LENGTH);
        assert_int_equal(reply.content.len, end ? start : len);
        if (reply.content.len)
            assert_memory_equal(reply.content.data, text, reply.content.len);
        n_hits += end > 0;
        chat_stream_free(s);
        reply_release(&reply);
        tokenizer_ids_release(&ids);
    }
    assert_true(n_hits > 5000);
}

/* ---- the C side of the peer test ------------------------------------------------------------ */

static void line_render(json_val *v, struct buf *out)
{
    struct chat_defaults def;
    struct chat_request r;
    struct chat_prompt p = {.n_wrapped = 0};
    struct tokenizer_ids ids = {0};
    enum fst_status rc;

    chat_defaults_init(&def);
    if (json_bool(json_get(v, "official"), false))
        def.profile = CHAT_PROFILE_OFFICIAL;
    rc = chat_request_from_json(&r, json_get(v, "body"), &def);
    if (rc == FST_OK)
        rc = chat_render(&p, &r);
    if (rc == FST_OK)
        rc = chat_encode(&p, tok, &ids);
    if (rc < 0) {
        buf_puts(out, "{\"error\":");
        json_put_string(out, fst_error_text(), strlen(fst_error_text()));
    } else {
        buf_printf(out, "{\"start\":%d,\"prompt\":", (int)p.start);
        json_put_string(out, buf_str(&p.text), p.text.len);
        buf_puts(out, ",\"ids\":[");
        for (size_t i = 0; i < ids.n; i++)
            buf_printf(out, "%s%d", i ? "," : "", (int)ids.id[i]);
        buf_putc(out, ']');
    }
    buf_puts(out, "}");
    tokenizer_ids_release(&ids);
    chat_prompt_release(&p);
    chat_request_release(&r);
}

static void line_parse(json_val *v, struct buf *out)
{
    struct chat_stream_opts o = {.kind = CHAT_STREAM_CHAT, .tokenizer = tok};
    struct chat_str stops[4] = {{NULL, 0}};
    struct tokenizer_ids ids = {0};
    struct chat_stream *s;
    struct reply reply;
    size_t len;
    const char *text = json_string(json_get(v, "parse"), &len), *comma = "";
    int64_t start = 0;

    json_int(json_get(v, "start"), &start);
    o.parser.start = (enum chat_start)start;
    o.parser.tools_on = json_bool(json_get(v, "tools_on"), false);
    o.parser.event = reply_event;
    o.parser.ud = &reply;
    for (size_t i = 0; i < FST_MIN(json_count(json_get(v, "stops")), FST_COUNT(stops)); i++)
        stops[o.n_stops++].data = json_string(json_at(json_get(v, "stops"), i), &stops[i].len);
    o.stops = stops;
    reply_init(&reply);
    if (tokenizer_encode_text(tok, text, len, true, &ids) < 0 || chat_stream_new(&s, &o) < 0)
        abort();
    for (size_t i = 0; i < ids.n; i++)
        if (chat_stream_feed(s, ids.id[i], false) < 0)
            abort();
    if (chat_stream_finish(s, CHAT_END_STOP) < 0)
        abort();
    buf_puts(out, "{\"reasoning\":");
    json_put_string(out, buf_str(&reply.reasoning), reply.reasoning.len);
    buf_puts(out, ",\"content\":");
    json_put_string(out, buf_str(&reply.content), reply.content.len);
    buf_puts(out, ",\"calls\":[");
    for (int i = 0; i < reply.n_calls; i++) {
        if (!reply.complete[i])
            continue;
        buf_printf(out, "%s[", comma);
        comma = ",";
        json_put_string(out, buf_str(&reply.name[i]), reply.name[i].len);
        buf_putc(out, ',');
        json_put_string(out, buf_str(&reply.args[i]), reply.args[i].len);
        buf_putc(out, ']');
    }
    buf_printf(out, "],\"finish\":\"%s\"}", chat_finish_name(chat_stream_result(s)->finish));
    chat_stream_free(s);
    reply_release(&reply);
    tokenizer_ids_release(&ids);
}

static int lines_mode(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct buf out = {0};
        struct json_doc *d;

        if (json_parse(&d, line, (size_t)n) < 0) {
            fprintf(stderr, "%s\n", fst_error_text());
            return 1;
        }
        if (json_get(json_root(d), "body"))
            line_render(json_root(d), &out);
        else
            line_parse(json_root(d), &out);
        puts(buf_str(&out));
        buf_release(&out);
        json_free(d);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_do_not_matter),
        cmocka_unit_test(renders_read_back),
        cmocka_unit_test(stops_by_definition),
    };
    int rc;

    bool lines = argc == 3 && strcmp(argv[1], "--lines") == 0;

    if (tokenizer_load(&tok, lines ? argv[2] : TINY_TOKENIZER) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    rc = lines ? lines_mode() : cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_free(tok);
    return rc;
}
