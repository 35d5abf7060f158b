/* test_chat_replay.c - prompts with runs of sampled ids in them, and system texts whose lines change. */
#include "support/cm.h"

#include "chat/memory.h"
#include "chat/noise.h"
#include "chat/protocol.h"
#include "support/vectors.h"

static struct tokenizer *tok;
static struct chat_memory *memory;
static struct hash128 tenant;

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"}}}}}]"
#define CALL                                                                                       \
    "\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_INVOKE_OPEN "f" PROTOCOL_INVOKE_GO PROTOCOL_PARAM_OPEN     \
    "s" PROTOCOL_PARAM_TEXT "a b" PROTOCOL_PARAM_CLOSE "\n" PROTOCOL_PARAM_OPEN                    \
    "n" PROTOCOL_PARAM_JSON "1.50" PROTOCOL_PARAM_CLOSE PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE
#define MESSAGE                                                                                    \
    "{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"id\":\"call_0\",\"type\":"       \
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":1.5,\\\"s\\\":\\\"a "    \
    "b\\\"}\"}}]}"
#define RESULT "{\"role\":\"tool\",\"tool_call_id\":\"call_0\",\"content\":\"r\"}"

static int setup(void **state)
{
    struct chat_memory_opts o;

    (void)state;
    chat_memory_opts_default(&o);
    o.tokenizer = tok;
    if (chat_memory_new(&memory, &o) < 0)
        return 1;
    tenant = chat_memory_tenant(memory, NULL, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    chat_memory_free(memory);
    return 0;
}

static void encode(const char *text, bool special, struct tokenizer_ids *out)
{
    assert_int_equal(tokenizer_encode_text(tok, text, strlen(text), special, out), FST_OK);
}

/* Ids that spell the text byte by byte, which no encoder would give. */
static void sample(const char *text, struct tokenizer_ids *out)
{
    static const char *const marks[] = {PROTOCOL_END_THINK, PROTOCOL_MARK, PROTOCOL_EOS};

    while (*text) {
        char one[64] = {*text, 0};
        bool special = false;
        for (size_t i = 0; i < FST_COUNT(marks); i++)
            if (strncmp(text, marks[i], strlen(marks[i])) == 0) {
                snprintf(one, sizeof one, "%s", marks[i]);
                special = true;
            }
        assert_int_equal(tokenizer_encode_text(tok, one, strlen(one), special, out), FST_OK);
        text += strlen(one);
    }
}

/* What the prompt of a body becomes; with: the memory is asked. */
static void prompt_ids(const char *body, bool with, struct tokenizer_ids *ids, struct buf *text)
{
    struct json_doc *d;
    struct chat_request r;
    struct chat_prompt p;

    if (json_parse(&d, body, strlen(body)) < 0 ||
        chat_request_from_json(&r, json_root(d), NULL) < 0)
        fail_msg("%s: %s", body, fst_error_text());
    json_free(d);
    r.memory = with ? memory : NULL;
    r.tenant = tenant;
    assert_int_equal(chat_render(&p, &r), FST_OK);
    assert_int_equal(chat_encode(&p, tok, ids), FST_OK);
    if (text)
        buf_append(text, p.text.data, p.text.len);
    chat_prompt_release(&p);
    chat_request_release(&r);
}

/* Remembers `text` as the reply to body; the ids before and of it. */
static void reply(const char *text, enum chat_start start, struct tokenizer_ids *ids)
{
    static const char arguments[] = "{\"s\": \"a b\", \"n\": 1.50}";
    struct chat_call call = {{"call_0", 6}, {"f", 1}, {arguments, sizeof arguments - 1}};
    struct chat_turn t = {
        .tenant = tenant, .start = start, .content = {"c", 1}, .calls = &call, .n_calls = 1};

    sample(text, ids);
    t.ids = ids->id;
    t.n_ids = ids->n;
    for (size_t i = 0; i < ids->n && start == CHAT_START_REASONING && !t.n_thought; i++)
        if (ids->id[i] == tokenizer_specials(tok)->end_think)
            t.n_thought = i + 1;
    assert_int_equal(chat_memory_add(memory, &t), FST_OK);
}

static void ids_equal(const struct tokenizer_ids *got, size_t from,
                      const struct tokenizer_ids *want)
{
    assert_true(from + want->n <= got->n);
    for (size_t i = 0; i < want->n; i++)
        if (got->id[from + i] != want->id[i])
            fail_msg("id %zu of %zu: %d, expected %d", i, want->n, got->id[from + i], want->id[i]);
}

static void run_between_texts(void **state)
{
    static const char text[] = "t\n" PROTOCOL_END_THINK "c" CALL PROTOCOL_EOS;
    struct tokenizer_ids before = {0}, sampled = {0}, after = {0}, got = {0}, plain = {0};
    struct buf shown = {0};

    (void)state;
    prompt_ids("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]," TOOLS "}", true, &before,
               NULL);
    reply(text, CHAT_START_REASONING, &sampled);
    prompt_ids("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}," MESSAGE "," RESULT "]," TOOLS
               "}",
               true, &got, &shown);
    ids_equal(&got, 0, &before);
    ids_equal(&got, before.n, &sampled);
    encode(PROTOCOL_USER "<tool_result>r</tool_result>" PROTOCOL_ASSISTANT PROTOCOL_THINK, true,
           &after);
    ids_equal(&got, before.n + sampled.n, &after);
    assert_int_equal(got.n, before.n + sampled.n + after.n);
    assert_non_null(strstr(buf_str(&shown), PROTOCOL_THINK "t\n" PROTOCOL_END_THINK "c" CALL));
    prompt_ids("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}," MESSAGE "," RESULT "]," TOOLS
               "}",
               false, &plain, NULL);
    assert_int_not_equal(plain.n, got.n);
    tokenizer_ids_release(&before);
    tokenizer_ids_release(&sampled);
    tokenizer_ids_release(&after);
    tokenizer_ids_release(&got);
    tokenizer_ids_release(&plain);
    buf_release(&shown);
}

/* What stands around a run, for every way its turn may have begun and may be sent back. */
static void headers(void **state)
{
    static const struct {
        enum chat_start start;
        const char *sampled;
        bool tools, thinking,
            later; /* of the request that sends it back; later: a user turn follows */
        const char *before, *run; /* text up to the run; the run's text, NULL: rendered as sent */
    } rows[] = {
        {CHAT_START_REASONING, "t" PROTOCOL_END_THINK "c" CALL, true, true, false, PROTOCOL_THINK,
         "t" PROTOCOL_END_THINK "c" CALL},
        {CHAT_START_REASONING, "t" PROTOCOL_END_THINK "c" CALL, true, true, true, PROTOCOL_THINK,
         "t" PROTOCOL_END_THINK "c" CALL},
        /* no tools: thoughts before the last user turn go, those behind it stay */
        {CHAT_START_REASONING, "t" PROTOCOL_END_THINK "\nc" CALL, false, true, true,
         PROTOCOL_END_THINK, "\nc" CALL},
        {CHAT_START_REASONING, "t" PROTOCOL_END_THINK "c" CALL, false, true, false,
         PROTOCOL_END_THINK, "c" CALL}, /* a tool result is a user turn */
        {CHAT_START_REASONING, "t" PROTOCOL_END_THINK "c" CALL, true, false, false,
         PROTOCOL_END_THINK, "c" CALL},
        {CHAT_START_CONTENT, "c" CALL, true, false, false, PROTOCOL_END_THINK, "c" CALL},
        {CHAT_START_CONTENT, "c" CALL, true, true, false, PROTOCOL_THINK PROTOCOL_END_THINK,
         "c" CALL},
        /* thoughts that never ended */
        {CHAT_START_REASONING, "t" CALL, true, true, false, PROTOCOL_THINK, "t" CALL},
        {CHAT_START_REASONING, "t" CALL, true, false, false, PROTOCOL_END_THINK, NULL},
        {CHAT_START_BLOCK, "more", true, true, false,
         PROTOCOL_THINK PROTOCOL_END_THINK "\n\n" PROTOCOL_CALLS_OPEN, "more"},
        {CHAT_START_BLOCK, "more", true, false, false,
         PROTOCOL_END_THINK "\n\n" PROTOCOL_CALLS_OPEN, "more"},
        {CHAT_START_CALL, "more", true, true, false,
         PROTOCOL_THINK PROTOCOL_END_THINK "\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_INVOKE_OPEN
                                           "f" PROTOCOL_INVOKE_GO,
         "more"},
    };

    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        struct tokenizer_ids sampled = {0}, ids = {0}, want = {0};
        struct buf body = {0}, shown = {0}, start = {0}, text = {0};
        size_t skipped = 0;
        const char *at;

        buf_printf(&text, "%s" PROTOCOL_EOS, rows[i].sampled);
        reply(text.data, rows[i].start, &sampled);
        buf_printf(
            &body,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},%s,%s%s],\"thinking\":%s%s}",
            MESSAGE, RESULT, rows[i].later ? ",{\"role\":\"user\",\"content\":\"u\"}" : "",
            rows[i].thinking ? "{\"type\":\"enabled\"}" : "{\"type\":\"disabled\"}",
            rows[i].tools ? "," TOOLS : "");
        prompt_ids(body.data, true, &ids, &shown);
        buf_printf(&start, PROTOCOL_USER "q" PROTOCOL_ASSISTANT "%s%s", rows[i].before,
                   rows[i].run ? rows[i].run : "c\n\n" PROTOCOL_CALLS_OPEN);
        if (rows[i].run)
            buf_puts(&start, PROTOCOL_EOS PROTOCOL_USER);
        at = strstr(shown.data, start.data);
        if (!at)
            fail_msg("row %zu: %s\nin %s", i, start.data, shown.data);
        if (rows[i].run) { /* its ids are the sampled ones, or their end */
            buf_reset(&start);
            buf_append(&start, shown.data, (size_t)(at - shown.data));
            buf_printf(&start, PROTOCOL_USER "q" PROTOCOL_ASSISTANT "%s", rows[i].before);
            encode(start.data, true, &want);
            while (strlen(rows[i].sampled) > strlen(rows[i].run) &&
                   sampled.id[skipped++] != tokenizer_specials(tok)->end_think)
                ;
            ids_equal(&ids, 0, &want);
            sampled.n -= skipped;
            memmove(sampled.id, sampled.id + skipped, sampled.n * sizeof *sampled.id);
            ids_equal(&ids, want.n, &sampled);
        }
        buf_release(&body);
        buf_release(&shown);
        buf_release(&start);
        buf_release(&text);
        tokenizer_ids_release(&sampled);
        tokenizer_ids_release(&ids);
        tokenizer_ids_release(&want);
    }
}

/* Texts before, between and behind runs are encoded with their own marks, wherever a byte they start. */
static void marks_survive_the_cuts(void **state)
{
    struct tokenizer_ids sampled = {0};

    (void)state;
    reply("t" PROTOCOL_END_THINK "c" CALL PROTOCOL_EOS, CHAT_START_REASONING, &sampled);
    for (int pad = 0; pad < 9; pad++) {
        struct tokenizer_ids ids = {0}, typed = {0};
        struct buf body = {0};

        buf_printf(&body,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"%.*s\"}," MESSAGE ","
                   "{\"role\":\"tool\",\"tool_call_id\":\"call_0\",\"content\":\"" PROTOCOL_USER
                   "%.*s\"}]," TOOLS "}",
                   pad, "xxxxxxxxx", pad, "yyyyyyyyy");
        prompt_ids(body.data, true, &ids, NULL);
        encode(PROTOCOL_USER, false, &typed); /* the client's is plain text */
        assert_true(typed.n > 1);
        for (size_t i = 0, users = 0; i < ids.n; i++) {
            users += ids.id[i] == tokenizer_specials(tok)->user;
            assert_true(users <= 2);
            if (i + 1 == ids.n)
                assert_int_equal(users, 2);
        }
        tokenizer_ids_release(&ids);
        tokenizer_ids_release(&typed);
        buf_release(&body);
    }
    tokenizer_ids_release(&sampled);
}

/* ---- system texts --------------------------------------------------------------------------- */

static void rendered(const char *messages, bool billing, bool dates, bool reference,
                     struct buf *out)
{
    struct json_doc *d;
    struct chat_defaults def;
    struct chat_request r;
    struct chat_prompt p;

    chat_defaults_init(&def);
    def.drop_billing_line = billing;
    def.move_date_lines = dates;
    def.thinking = false;
    if (json_parse(&d, messages, strlen(messages)) < 0 ||
        chat_request_from_json(&r, json_root(d), &def) < 0)
        fail_msg("%s: %s", messages, fst_error_text());
    json_free(d);
    r.reference = reference;
    assert_int_equal(chat_render(&p, &r), FST_OK);
    buf_reset(out);
    buf_append(out, p.text.data, p.text.len);
    chat_prompt_release(&p);
    chat_request_release(&r);
}

#define BILLING "x-anthropic-billing-header: cc_version=1; cch=aaaaa;"
#define HI      "{\"role\":\"user\",\"content\":\"hi\"}"
#define END     PROTOCOL_USER "hi" PROTOCOL_ASSISTANT PROTOCOL_END_THINK

static void billing_lines(void **state)
{
    static const struct {
        const char *messages, *system; /* what is left of the system text */
    } rows[] = {
        {"[{\"role\":\"system\",\"content\":\"" BILLING "\\nYou help.\"}," HI "]", "You help."},
        {"[{\"role\":\"system\",\"content\":\"" BILLING "\\r\\n\\r\\nYou help.\"}," HI "]",
         "You help."},
        {"[{\"role\":\"system\",\"content\":\"X-Anthropic-Billing-Header: a\\n" BILLING
         "\\nYou help.\"}," HI "]",
         "You help."},
        {"[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"" BILLING
         "\"},{\"type\":\"text\",\"text\":\"You help.\"}]}," HI "]",
         "You help."},
        {"[{\"role\":\"system\",\"content\":\"" BILLING "\"},{\"role\":\"system\",\"content\":"
         "\"You help.\"}," HI "]",
         "You help."},
        {"[{\"role\":\"system\",\"content\":\"" BILLING "\"}," HI "]", ""},
        /* not at the front: somebody's text */
        {"[{\"role\":\"system\",\"content\":\"You help.\\n" BILLING "\"}," HI "]",
         "You help.\n" BILLING},
        {"[{\"role\":\"system\",\"content\":\"You "
         "help.\"},{\"role\":\"system\",\"content\":\"" BILLING "\"}," HI "]",
         "You help.\n\n" BILLING},
        {"[{\"role\":\"system\",\"content\":\"x-anthropic-billing\\nYou help.\"}," HI "]",
         "x-anthropic-billing\nYou help."},
    };
    struct buf text = {0}, want = {0};

    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        buf_reset(&want);
        buf_printf(&want, PROTOCOL_BOS "%s" END, rows[i].system);
        rendered(rows[i].messages, true, false, false, &text);
        assert_string_equal(text.data, want.data);
    }
    /* only where it is meant: not with the switch off, not as the reference encoder, not for users */
    for (int i = 0; i < 2; i++) {
        rendered(rows[0].messages, i == 1, false, i == 1, &text);
        assert_non_null(strstr(text.data, PROTOCOL_BOS BILLING "\nYou help."));
    }
    rendered("[{\"role\":\"user\",\"content\":\"" BILLING "\\nhi\"}]", true, false, false, &text);
    assert_non_null(strstr(text.data, PROTOCOL_USER BILLING "\nhi"));
    buf_release(&text);
    buf_release(&want);
}

static void date_lines(void **state)
{
    static const char *const dates[] = {"Today's date: 2026-01-31", "  - Current time: 12:01",
                                        "Today is Friday, 3 July",  "# Date: 3/7",
                                        "current date and time: 1", "The current date is 2 May."};
    static const char *const others[] = {"Dates are written as 2026-01-31",
                                         "Today's date is unknown",
                                         "update: 3",
                                         "",
                                         "timeouts: 5",
                                         "Knowledge cutoff: 2024-06"};
    static const char talk[] =
        "[{\"role\":\"system\",\"content\":\"You help.\\nToday's date: 2026-01-3%d\\nBe brief.\\n"
        "Time: 1%d:00\"}," HI ",{\"role\":\"assistant\",\"content\":\"yes\"},"
        "{\"role\":\"user\",\"content\":\"go\"}]";
    struct buf a = {0}, b = {0};
    char body[1000];

    (void)state;
    for (size_t i = 0; i < FST_COUNT(dates); i++)
        assert_true(noise_is_date(dates[i], strlen(dates[i])));
    for (size_t i = 0; i < FST_COUNT(others); i++)
        assert_false(noise_is_date(others[i], strlen(others[i])));
    snprintf(body, sizeof body, talk, 0, 0);
    rendered(body, true, true, false, &a);
    assert_string_equal(
        a.data, PROTOCOL_BOS
        "You help.\nBe brief.\n" PROTOCOL_USER "hi" PROTOCOL_ASSISTANT PROTOCOL_END_THINK
        "yes" PROTOCOL_EOS PROTOCOL_USER
        "go\n\nToday's date: 2026-01-30\nTime: 10:00" PROTOCOL_ASSISTANT PROTOCOL_END_THINK);
    snprintf(body, sizeof body, talk, 1, 2);
    rendered(body, true, true, false, &b); /* up to the last user turn it is one text */
    assert_memory_equal(a.data, b.data, (size_t)(strstr(a.data, "go\n\n") - a.data));
    rendered(body, true, false, false, &b); /* kept by default */
    assert_non_null(strstr(b.data, "You help.\nToday's date: 2026-01-31\nBe brief.\nTime: 12:00"));
    /* nobody to move it to */
    rendered("[{\"role\":\"system\",\"content\":\"Time: 12:00\"}]", true, true, false, &b);
    assert_non_null(strstr(b.data, PROTOCOL_BOS "Time: 12:00"));
    buf_release(&a);
    buf_release(&b);
}

/* A system message in the middle is a user turn there: what stood before it stands still. */
static void late_system_messages(void **state)
{
    static const char talk[] = "{\"role\":\"system\",\"content\":\"s\"}," HI
                               ",{\"role\":\"assistant\",\"content\":\"yes\"}";
    struct buf before = {0}, after = {0};
    char body[1000];

    (void)state;
    snprintf(body, sizeof body, "{\"messages\":[%s]," TOOLS ",\"add_generation_prompt\":false}",
             talk);
    rendered(body, true, false, false, &before);
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body,
                 "{\"messages\":[%s,{\"role\":\"%s\",\"content\":\"mind the gap\"},"
                 "{\"role\":\"user\",\"content\":\"go\"}]," TOOLS "}",
                 talk, i ? "developer" : "system");
        rendered(body, true, false, false, &after);
        assert_true(after.len > before.len);
        assert_memory_equal(after.data, before.data, before.len);
        assert_string_equal(after.data + before.len, PROTOCOL_USER
                            "mind the gap\n\ngo" PROTOCOL_ASSISTANT PROTOCOL_END_THINK);
    }
    buf_release(&before);
    buf_release(&after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(run_between_texts, setup, teardown),
        cmocka_unit_test_setup_teardown(headers, setup, teardown),
        cmocka_unit_test_setup_teardown(marks_survive_the_cuts, setup, teardown),
        cmocka_unit_test(billing_lines),
        cmocka_unit_test(date_lines),
        cmocka_unit_test(late_system_messages),
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
