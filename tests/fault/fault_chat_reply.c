/* Every allocation between a body and its reply's last event fails once: FST_ENOMEM and no leak. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "chat/memory.h"
#include "chat/protocol.h"
#include "chat/stream.h"
#include "base/log.h"
#include "support/replies.h"
#include "support/tmpdir.h"
#include "support/vectors.h"

static struct tokenizer *tok;

static const char body[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"developer\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"d\"},\"e\"]},{\"role\":\"user\",\"content\":\"q\"},"
    "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"t\",\"tool_calls\":["
    "{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1.5],\\\"b\\\":"
    "\\\"c\\\"}\"}},"
    "{\"id\":\"2\",\"function\":{\"name\":\"f\",\"arguments\":{\"z\":1}}},"
    "{\"id\":\"3\",\"function\":{\"name\":\"f\",\"arguments\":\"[\"}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":\"r2\"},"
    "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r1\"},"
    "{\"role\":\"latest_reminder\",\"content\":\"today\"},"
    "{\"role\":\"assistant\",\"content\":\"<think>u</think>v\",\"prefix\":true}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"x\","
    "\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"s\":{\"type\":\"string\"}}"
    ","
    "\"required\":[\"s\"]}}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
    ","
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"
    "\"object\"}}}}";

static void render(void **state)
{
    struct json_doc *d;
    uint64_t n = 0, used;

    (void)state;
    assert_int_equal(json_parse(&d, body, sizeof body - 1), FST_OK);
    do {
        struct chat_request r;
        struct chat_prompt p = {.start = CHAT_START_CONTENT};
        struct tokenizer_ids ids = {0};
        uint64_t before = mem_count();
        enum fst_status rc;

        mem_fail_at(++n);
        rc = chat_request_from_json(&r, json_root(d), NULL);
        if (rc == FST_OK)
            rc = chat_render(&p, &r);
        if (rc == FST_OK)
            rc = chat_encode(&p, tok, &ids);
        mem_fail_at(0);
        used = mem_count() - before;
        if (rc != (used < n ? FST_OK : FST_ENOMEM))
            fail_msg("allocation %d: %s", (int)n, fst_error_text());
        tokenizer_ids_release(&ids);
        chat_prompt_release(&p);
        chat_request_release(&r);
    } while (used >= n);
    assert_true(n > 20);
    json_free(d);
}

/* A turn that is remembered and found again: what fails is said, and the memory stays whole. */
static void remembered(void **state)
{
    static const char sent[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"x-anthropic-billing-header: 1\\nTime: "
        "12\\ns\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":"
        "[{\"type\":\"text\",\"text\":\"c\"}],\"tool_calls\":[{\"id\":\"1\",\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{ \\\"a\\\":1}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]}";
    struct chat_call call = {{"1", 1}, {"f", 1}, {"{\"a\": 1.0}", 10}};
    struct chat_defaults def;
    struct json_doc *d;
    uint64_t n = 0, used;
    char dir[64], pattern[80], *bytes = NULL;
    const char *name = NULL;
    size_t len = 0;
    glob_t found;

    (void)state;
    tmpdir_make(dir, sizeof dir);
    log_set_level(LOG_LEVEL_ERROR);
    chat_defaults_init(&def);
    def.move_date_lines = true;
    assert_int_equal(json_parse(&d, sent, sizeof sent - 1), FST_OK);
    do {
        struct chat_memory_opts o;
        struct chat_memory *m;
        struct chat_request r;
        struct chat_prompt p = {0};
        struct tokenizer_ids ids = {0}, sampled = {0};
        struct chat_turn t = {.content = {"c", 1}, .calls = &call, .n_calls = 1};
        uint64_t before = mem_count();
        enum fst_status rc;

        chat_request_init(&r, NULL);
        chat_memory_opts_default(&o);
        o.tokenizer = tok;
        o.max_ids = 1;
        o.dir = dir;
        mem_fail_at(++n);
        rc = chat_memory_new(&m, &o);
        if (rc == FST_OK)
            rc = tokenizer_encode_text(tok, "c, sampled", 10, false, &sampled);
        if (rc == FST_OK)
            rc = chat_turn_close(tok, &sampled);
        t.ids = sampled.id;
        t.n_ids = sampled.n;
        for (int i = 0; rc == FST_OK && i < 3; i++) { /* the third makes the file compact */
            rc = chat_memory_add(m, &t);
            if (rc == FST_OK)
                chat_memory_save(m); /* may fail, and then goes on without the file */
        }
        if (rc == FST_OK)
            rc = chat_request_from_json(&r, json_root(d), &def);
        r.memory = m;
        if (rc == FST_OK)
            rc = chat_render(&p, &r);
        if (rc == FST_OK)
            rc = chat_encode(&p, tok, &ids);
        mem_fail_at(0);
        used = mem_count() - before;
        if (rc != FST_OK && rc != FST_ENOMEM)
            fail_msg("allocation %d: %s", (int)n, fst_error_text());
        if (used < n)
            assert_int_equal(rc, FST_OK);
        if (rc == FST_OK)
            assert_int_equal(p.n_runs, 1);
        tokenizer_ids_release(&ids);
        tokenizer_ids_release(&sampled);
        chat_prompt_release(&p);
        chat_request_release(&r);
        chat_memory_free(m);
        if (rc == FST_OK && !bytes) {
            snprintf(pattern, sizeof pattern, "%s/calls-*", dir);
            assert_int_equal(glob(pattern, 0, NULL, &found), 0);
            name = strrchr(found.gl_pathv[0], '/') + 1;
            bytes = tmpdir_read(dir, name, &len);
            n = 0;
        }
        if (bytes) /* the same for each: what is read counts too */
            tmpdir_write(dir, name, bytes, len);
    } while (used >= n && n < 1000);
    assert_true(n < 1000);
    globfree(&found);
    free(bytes);
    assert_true(n > 40);
    log_set_level(LOG_LEVEL_INFO);
    tmpdir_remove(dir);
    json_free(d);
}

static void build_by_hand(void **state)
{
    struct json_doc *d;
    uint64_t n = 0, used;

    (void)state;
    assert_int_equal(json_parse(&d, "{\"properties\":{\"a\":{}}}", 23), FST_OK);
    do {
        struct chat_request r;
        struct chat_message *m;
        uint64_t before = mem_count();

        mem_fail_at(++n);
        chat_request_init(&r, NULL);
        for (int i = 0; i < 9; i++) {
            m = chat_add_message(&r, i % 2 ? CHAT_ASSISTANT : CHAT_USER);
            chat_add_text(&r, m, "q", 1);
            chat_add_other(&r, m, "image_url");
            chat_set_reasoning(&r, m, "t", 1);
            chat_add_call(&r, m, "id", "f", "{}", 2);
            chat_set_tool_call_id(&r, m, "id");
            chat_add_tool(&r, "f", json_root(d), json_root(d), true);
        }
        chat_set_response_format(&r, json_root(d));
        mem_fail_at(0);
        used = mem_count() - before;
        assert_int_equal(r.failed, used >= n);
        assert_int_equal(chat_check_tools(&r), r.failed ? FST_ENOMEM : FST_OK);
        chat_request_release(&r);
    } while (used >= n);
    json_free(d);
}

static void stream(void **state)
{
    static const char text[] =
        "thought</think>\n\nSome {content} and END\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_INVOKE_OPEN
        "f" PROTOCOL_INVOKE_GO PROTOCOL_PARAM_OPEN "n" PROTOCOL_PARAM_TEXT
        "5" PROTOCOL_PARAM_CLOSE PROTOCOL_PARAM_OPEN "s" PROTOCOL_PARAM_TEXT
        "text" PROTOCOL_PARAM_CLOSE PROTOCOL_INVOKE_END PROTOCOL_INVOKE_OPEN
        "f\">{\"arguments\": {\"s\": 1}}" PROTOCOL_INVOKE_END PROTOCOL_INVOKE_OPEN
        "f\">bare" PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE;
    struct chat_str stops[2] = {{"ENDE", 4}, {"never", 5}};
    struct tokenizer_ids ids = {0};
    struct chat_request r;
    struct json_doc *d;
    uint64_t n = 0, used;

    (void)state;
    assert_int_equal(json_parse(&d, body, sizeof body - 1), FST_OK);
    assert_int_equal(chat_request_from_json(&r, json_root(d), NULL), FST_OK);
    json_free(d);
    assert_int_equal(tokenizer_encode_text(tok, text, sizeof text - 1, true, &ids), FST_OK);
    do {
        struct chat_stream_opts o = {
            .kind = CHAT_STREAM_CHAT, .tokenizer = tok, .stops = stops, .n_stops = 2};
        struct chat_stream *s;
        struct reply reply;
        uint64_t before;
        enum fst_status rc;

        o.parser = (struct chat_parser_opts){.start = CHAT_START_REASONING,
                                             .tools_on = true,
                                             .tools = r.tools,
                                             .n_tools = r.n_tools,
                                             .coerce_args = true,
                                             .event = reply_event,
                                             .ud = &reply};
        reply_init(&reply);
        /* the collector's own memory must not be the one that fails */
        assert_true(buf_reserve(&reply.trace, 8192));
        assert_true(buf_reserve(&reply.reasoning, 1024));
        assert_true(buf_reserve(&reply.content, 1024));
        for (int i = 0; i < 4; i++) {
            assert_true(buf_reserve(&reply.name[i], 100));
            assert_true(buf_reserve(&reply.args[i], 1000));
        }
        before = mem_count();
        mem_fail_at(++n);
        rc = chat_stream_new(&s, &o);
        for (size_t i = 0; rc == FST_OK && i < ids.n; i++)
            rc = chat_stream_feed(s, ids.id[i], false);
        if (rc == FST_OK)
            rc = chat_stream_finish(s, CHAT_END_STOP);
        mem_fail_at(0);
        used = mem_count() - before;
        if (rc != (used < n ? FST_OK : FST_ENOMEM))
            fail_msg("allocation %d: %d %s", (int)n, (int)rc, fst_error_text());
        if (rc == FST_OK) {
            assert_int_equal(reply.n_calls, 3);
            assert_string_equal(buf_str(&reply.args[2]), "{\"s\": \"bare\"}");
        }
        chat_stream_free(s);
        reply_release(&reply);
    } while (used >= n);
    assert_true(n > 20);
    tokenizer_ids_release(&ids);
    chat_request_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(render), cmocka_unit_test(remembered),
                                       cmocka_unit_test(build_by_hand), cmocka_unit_test(stream)};
    int rc;

    if (tokenizer_load(&tok, TINY_TOKENIZER) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_free(tok);
    return rc;
}
