/* test_chat_stream.c - ids to events: stop strings, counts, ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "chat/protocol.h"
#include "chat/stream.h"
#include "support/replies.h"
#include "support/vectors.h"

static struct tokenizer *tok;

#define CALL                                                                                       \
    PROTOCOL_CALLS_OPEN PROTOCOL_INVOKE_OPEN                                                       \
        "f" PROTOCOL_INVOKE_GO PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE

struct run {
    struct chat_stream_opts o;
    const char *stops[8];
    struct reply reply;
    struct chat_stream_result result;
    uint64_t n_ids; /* that the text has */
};

static void init(struct run *x, enum chat_stream_kind kind)
{
    *x = (struct run){.o = {.kind = kind, .tokenizer = tok, .skip_special = true}};
    x->o.parser.start = CHAT_START_CONTENT;
    x->o.parser.tools_on = true;
    x->o.parser.call_id = reply_call_id;
}

/* Feeds text (byte by byte as ids when `bytes`), then EOS if `eos`, then ends. */
static void feed(struct run *x, const char *text, bool bytes, bool eos, enum chat_end end)
{
    struct chat_str list[8];
    struct tokenizer_ids ids = {0};
    struct chat_stream *s;

    reply_init(&x->reply);
    for (x->o.n_stops = 0; x->stops[x->o.n_stops]; x->o.n_stops++)
        list[x->o.n_stops] =
            (struct chat_str){x->stops[x->o.n_stops], strlen(x->stops[x->o.n_stops])};
    x->o.stops = list;
    x->o.parser.event = reply_event;
    x->o.parser.ud = &x->reply;
    assert_int_equal(chat_stream_new(&s, &x->o), FST_OK);
    for (size_t i = 0; bytes && text[i]; i++)
        assert_int_equal(tokenizer_encode_text(tok, text + i, 1, false, &ids), FST_OK);
    if (!bytes)
        assert_int_equal(tokenizer_encode_text(tok, text, strlen(text), true, &ids), FST_OK);
    x->n_ids = ids.n;
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(chat_stream_feed(s, ids.id[i], false), FST_OK);
    if (eos)
        assert_int_equal(chat_stream_feed(s, tokenizer_specials(tok)->eos, true), FST_OK);
    assert_int_equal(chat_stream_finish(s, end), FST_OK);
    x->result = *chat_stream_result(s);
    assert_true(x->reply.is_valid);
    chat_stream_free(s);
    tokenizer_ids_release(&ids);
}

static void want(struct run *x, const char *content, enum chat_finish finish)
{
    assert_string_equal(buf_str(&x->reply.content), content);
    assert_int_equal(x->result.finish, finish);
    reply_release(&x->reply);
}

static void plain_ends(void **state)
{
    struct run x;

    (void)state;
    init(&x, CHAT_STREAM_CHAT);
    feed(&x, "Hello", false, true, CHAT_END_STOP);
    assert_int_equal(x.result.n_tokens, x.n_ids + 1); /* EOS counts and is not seen */
    assert_int_equal(x.result.stop_index, -1);
    want(&x, "Hello", CHAT_FINISH_STOP);
    feed(&x, "Hello", false, false, CHAT_END_LENGTH);
    assert_int_equal(x.result.n_tokens, x.n_ids);
    want(&x, "Hello", CHAT_FINISH_LENGTH);
    feed(&x, "Hello\n\n" CALL, false, true, CHAT_END_STOP);
    assert_int_equal(x.reply.n_calls, 1);
    want(&x, "Hello", CHAT_FINISH_TOOL_CALLS);
    feed(&x, "Hello\n\n" CALL, false, false, CHAT_END_LENGTH);
    want(&x, "Hello", CHAT_FINISH_LENGTH);
    feed(&x, "Hello", false, false, CHAT_END_ABORT);
    want(&x, "Hello", CHAT_FINISH_ABORT);
}

static void text_after_calls_ends_the_reply(void **state)
{
    struct run x;

    (void)state;
    init(&x, CHAT_STREAM_CHAT);
    feed(&x, CALL "and more", true, false, CHAT_END_LENGTH);
    assert_true(x.result.stopped);
    assert_int_equal(x.result.n_tokens, strlen(CALL));
    want(&x, "", CHAT_FINISH_TOOL_CALLS);
    feed(&x, CALL, true, true, CHAT_END_STOP);
    assert_false(x.result.stopped);
    assert_int_equal(x.result.n_tokens, strlen(CALL) + 1);
    want(&x, "", CHAT_FINISH_TOOL_CALLS);
}

static void reasoning_is_counted(void **state)
{
    struct run x;

    (void)state;
    init(&x, CHAT_STREAM_CHAT);
    x.o.parser.start = CHAT_START_REASONING;
    feed(&x, "abc</think>de", true, true, CHAT_END_STOP);
    assert_int_equal(x.result.reasoning_tokens, strlen("abc</think>"));
    assert_true(chat_stream_is_reasoning(&x.result, 10));
    assert_false(chat_stream_is_reasoning(&x.result, 11));
    assert_string_equal(buf_str(&x.reply.reasoning), "abc");
    want(&x, "de", CHAT_FINISH_STOP);
    feed(&x, "<think>ab", false, false, CHAT_END_LENGTH);
    assert_int_equal(x.result.reasoning_tokens, x.result.n_tokens);
    want(&x, "", CHAT_FINISH_LENGTH);
    x.o.parser.keep_think = true;
    feed(&x, "abc</think>\n\nde", true, true, CHAT_END_STOP);
    want(&x, "abc</think>\n\nde", CHAT_FINISH_STOP);
}

/* Text, ids and counts end at the id that completes the stop string. */
static void stop_strings(void **state)
{
    struct run x;

    (void)state;
    init(&x, CHAT_STREAM_TEXT);
    x.stops[0] = " ha ha";
    for (int bytes = 0; bytes < 2; bytes++) {
        feed(&x, "ha ha ha ha ha", bytes, false, CHAT_END_LENGTH);
        assert_true(x.result.stopped);
        assert_int_equal(x.result.stop_index, 0);
        if (bytes)
            assert_int_equal(x.result.n_tokens, 8);
        want(&x, "ha", CHAT_FINISH_STOP);
    }
    x.o.no_stop_trim = true;
    feed(&x, "ha ha ha ha ha", true, false, CHAT_END_LENGTH);
    want(&x, "ha ha ha", CHAT_FINISH_STOP);
    x.o.no_stop_trim = false;

    /* the list's order does not matter */
    init(&x, CHAT_STREAM_TEXT);
    x.stops[0] = "z";
    x.stops[1] = "is";
    x.stops[2] = ",";
    feed(&x, "Music, a song", false, true, CHAT_END_STOP);
    assert_int_equal(x.result.stop_index, -1 + 3);
    want(&x, "Music", CHAT_FINISH_STOP);
    x.stops[0] = ",";
    x.stops[2] = "z";
    feed(&x, "Music, a song", false, true, CHAT_END_STOP);
    assert_int_equal(x.result.stop_index, 0);
    want(&x, "Music", CHAT_FINISH_STOP);
    /* of two that end together the longer */
    x.stops[0] = "c,";
    x.stops[1] = "sic,";
    feed(&x, "Music, a song", false, true, CHAT_END_STOP);
    assert_int_equal(x.result.stop_index, 1);
    want(&x, "Mu", CHAT_FINISH_STOP);

    /* a start that does not go on is text, at the end too */
    init(&x, CHAT_STREAM_TEXT);
    x.stops[0] = "END";
    feed(&x, "abcEN and EN", true, true, CHAT_END_STOP);
    assert_int_equal(x.result.stop_index, -1);
    want(&x, "abcEN and EN", CHAT_FINISH_STOP);
}

static void stop_strings_in_chat(void **state)
{
    struct run x;

    (void)state;
    init(&x, CHAT_STREAM_CHAT);
    x.stops[0] = "END";
    feed(&x, "abcEND tail", true, true, CHAT_END_STOP);
    assert_int_equal(x.result.n_tokens, 6);
    want(&x, "abc", CHAT_FINISH_STOP);

    /* thoughts are not searched */
    x.o.parser.start = CHAT_START_REASONING;
    x.stops[0] = "9.8";
    feed(&x, "9.11 or 9.8?</think>It is 9.8, yes", false, true, CHAT_END_STOP);
    assert_string_equal(buf_str(&x.reply.reasoning), "9.11 or 9.8?");
    assert_int_equal(x.result.stop_index, 0);
    want(&x, "It is ", CHAT_FINISH_STOP);

    /* nor are calls, nor the newlines before them */
    x.o.parser.start = CHAT_START_CONTENT;
    x.stops[0] = "\n\n";
    x.stops[1] = "invoke";
    feed(&x, "Ok.\n\n" CALL, true, true, CHAT_END_STOP);
    assert_int_equal(x.reply.n_calls, 1);
    want(&x, "Ok.", CHAT_FINISH_TOOL_CALLS);
    /* ... but when text follows them, the count goes back to the id that completed the string */
    feed(&x, "Ok.\n\nMore", true, true, CHAT_END_STOP);
    assert_int_equal(x.result.n_tokens, 5);
    want(&x, "Ok.", CHAT_FINISH_STOP);
    feed(&x, "Ok.\n\n", true, false, CHAT_END_LENGTH);
    assert_int_equal(x.result.n_tokens, 5);
    assert_true(x.result.stopped);
    want(&x, "Ok.", CHAT_FINISH_STOP);
    /* content before a call that might have begun a stop string comes before the call */
    x.stops[0] = "!?";
    x.stops[1] = NULL;
    feed(&x, "Go!\n\n" CALL, true, true, CHAT_END_STOP);
    assert_non_null(strstr(buf_str(&x.reply.trace), "Go!\n[2 0]f"));
    want(&x, "Go!", CHAT_FINISH_TOOL_CALLS);
}

static void code_points_stay_whole(void **state)
{
    struct run x;
    const char *text = "\xf0\x9f\x91\xa9\xf0\x9f\x8f\xbd\xe2\x80\x8d\xf0\x9f\x9a\x80 \xe8\xb5\xb4 "
                       "\xc3\xb1 \xef\xb7\xbd";

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        init(&x, kind ? CHAT_STREAM_TEXT : CHAT_STREAM_CHAT);
        feed(&x, text, true, true, CHAT_END_STOP);
        want(&x, text, CHAT_FINISH_STOP);
        /* cut inside a character */
        feed(&x, "a\xf0\x9f\x91", true, false, CHAT_END_LENGTH);
        want(&x, "a\xef\xbf\xbd", CHAT_FINISH_LENGTH);
        x.stops[0] = "\xe8\xb5\xb4";
        feed(&x, text, true, true, CHAT_END_STOP);
        assert_int_equal(x.result.n_tokens, 19);
        want(&x, "\xf0\x9f\x91\xa9\xf0\x9f\x8f\xbd\xe2\x80\x8d\xf0\x9f\x9a\x80 ", CHAT_FINISH_STOP);
    }
}

static void special_tokens(void **state)
{
    struct run x;
    const char *text = "a" PROTOCOL_BOS "b" PROTOCOL_USER "c";

    (void)state;
    init(&x, CHAT_STREAM_TEXT);
    feed(&x, text, false, true, CHAT_END_STOP);
    want(&x, "ab" PROTOCOL_USER "c", CHAT_FINISH_STOP); /* <|User|> is not flagged special */
    x.o.skip_special = false;
    feed(&x, text, false, true, CHAT_END_STOP);
    want(&x, "a" PROTOCOL_BOS "b" PROTOCOL_USER "c", CHAT_FINISH_STOP);
    x.o.no_stop_trim = true;
    feed(&x, "a", false, true, CHAT_END_STOP);
    want(&x, "a" PROTOCOL_EOS, CHAT_FINISH_STOP);
}

static void from_a_request(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"parallel_tool_calls\":false,"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
        "\"properties\":{\"n\":{\"type\":\"integer\"}}}}}]}";
    struct json_doc *d;
    struct chat_request r;
    struct chat_prompt p;
    struct run x = {.n_ids = 0};

    (void)state;
    assert_int_equal(json_parse(&d, body, sizeof body - 1), FST_OK);
    assert_int_equal(chat_request_from_json(&r, json_root(d), NULL), FST_OK);
    json_free(d);
    assert_int_equal(chat_render(&p, &r), FST_OK);
    chat_stream_opts_init(&x.o, tok, &r, &p);
    x.o.parser.call_id = reply_call_id;
    feed(&x,
         "T</think>\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_INVOKE_OPEN
         "f" PROTOCOL_INVOKE_GO PROTOCOL_PARAM_OPEN "n" PROTOCOL_PARAM_TEXT
         "5" PROTOCOL_PARAM_CLOSE PROTOCOL_INVOKE_END "\n" PROTOCOL_INVOKE_OPEN
         "f" PROTOCOL_INVOKE_GO PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE,
         false, true, CHAT_END_STOP);
    assert_string_equal(buf_str(&x.reply.reasoning), "T");
    assert_int_equal(x.reply.n_calls, 1);
    assert_string_equal(buf_str(&x.reply.args[0]), "{\"n\": 5}");
    want(&x, "", CHAT_FINISH_TOOL_CALLS);
    chat_prompt_release(&p);
    chat_request_release(&r);
}

static void empty_stop_is_refused(void **state)
{
    struct chat_stream_opts o = {.tokenizer = tok, .n_stops = 2};
    struct chat_str list[2] = {{"a", 1}, {"", 0}};
    struct chat_stream *s;

    (void)state;
    o.stops = list;
    o.parser.event = reply_event;
    assert_int_equal(chat_stream_new(&s, &o), FST_EINVAL);
    assert_string_equal(fst_error_text(), "stop[1]: a stop string must not be empty");
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_ends),
        cmocka_unit_test(text_after_calls_ends_the_reply),
        cmocka_unit_test(reasoning_is_counted),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(stop_strings_in_chat),
        cmocka_unit_test(code_points_stay_whole),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(from_a_request),
        cmocka_unit_test(empty_stop_is_refused),
    };
    int rc;

    if (tokenizer_load(&tok, TINY_TOKENIZER) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_free(tok);
    return rc;
}
