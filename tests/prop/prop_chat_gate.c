/* A gate opens where the parser passes: random replies, made of markup and its fragments in random tokens, go
 * through both.
 *   - OPEN: the parser has just left the thoughts, and nothing is content yet.
 *   - BLOCK: with the rest of the tag the parser is in a block; with anything else it is not yet.
 *   - FOUL: the parser is in content or in a block with text of that id, or in a block that was spelled.
 *   - SHUT to the end: it is where it was.
 * And what gate_bar bars is what would be foul. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/rng.h"
#include "chat/gate.h"
#include "chat/protocol.h"
#include "support/replies.h"

static struct tokenizer *tok;
static struct gate_rules *rules;

static const char *const bits[] = {"\n",
                                   "\n\n",
                                   "\r\n",
                                   " ",
                                   "a",
                                   "words, and more",
                                   "<",
                                   "</",
                                   "</think>",
                                   "</thin",
                                   "k>",
                                   "k>x",
                                   ">\n\n",
                                   "<div>",
                                   "```",
                                   "```\n",
                                   "\n```\n",
                                   "~~~~\n",
                                   PROTOCOL_OPEN,
                                   PROTOCOL_OPEN "tool_calls>",
                                   "\n" PROTOCOL_OPEN "tool_calls>\n",
                                   PROTOCOL_OPEN " calls>",
                                   PROTOCOL_OPEN "tool_cal",
                                   "<|DSML|function_calls>",
                                   "<|DSML",
                                   "|",
                                   "\xef\xbd\x9c",
                                   "tool_calls",
                                   ">",
                                   PROTOCOL_END,
                                   "\xe6\xaf\x95"};

struct both {
    struct chat_parser *p;
    struct reply reply;
    struct gate gate;
    struct chat_prompt prompt;
};

static void start(struct both *b, bool thoughts, bool of_content, bool tools_on, bool continued)
{
    struct chat_parser_opts o = {.start = thoughts ? CHAT_START_REASONING : CHAT_START_CONTENT,
                                 .tools_on = tools_on,
                                 .keep_leading = continued,
                                 .call_id = reply_call_id,
                                 .event = reply_event};

    memset(b, 0, sizeof *b);
    reply_init(&b->reply);
    o.ud = &b->reply;
    b->prompt =
        (struct chat_prompt){.start = o.start, .tools_on = tools_on, .continued = continued};
    assert_int_equal(chat_parser_new(&b->p, &o), FST_OK);
    gate_init(&b->gate, &b->prompt, of_content);
}

static void feed(struct both *b, const char *s, size_t len)
{
    assert_int_equal(chat_parse_feed(b->p, s, len), FST_OK);
}

/* Does a call that begins now count?  Only inside of a block. */
static bool in_block(struct both *b)
{
    static const char call[] = PROTOCOL_INVOKE_OPEN "f\">\n";
    int before = b->reply.n_calls;

    feed(b, call, sizeof call - 1);
    assert_int_equal(chat_parse_end(b->p, CHAT_END_LENGTH, NULL), FST_OK);
    return b->reply.n_calls > before;
}

/* Which ids a mask bars, by gate_bar and by trying. */
static void check_bar(const struct gate *g)
{
    uint32_t mask[1 << 13];
    int32_t n = tokenizer_vocab_size(tok);

    assert_true(n <= (int32_t)sizeof mask * 8);
    memset(mask, 0xff, sizeof mask);
    bool any = gate_bar(rules, g, mask), foul = false;
    for (int32_t id = 0; id < n; id++) {
        struct gate next = *g;
        bool is = gate_feed(rules, &next, id) == GATE_FOUL;
        foul |= is;
        if (is == (mask[id / 32] >> (id % 32) & 1))
            fail_msg("id %d: %s", id, is ? "foul and not barred" : "barred and not foul");
    }
    assert_int_equal(any, foul);
}

static void one(struct rng *r, uint64_t n_seen[4])
{
    struct both b;
    bool thoughts = rng_below(r, 2), of_content = thoughts && rng_below(r, 2);
    bool tools_on = !of_content || rng_below(r, 2);
    enum gate_event e = GATE_SHUT;
    struct tokenizer_ids ids = {0};
    size_t len;

    start(&b, thoughts, of_content, tools_on, rng_below(r, 4) == 0);
    for (uint64_t k = 1 + rng_below(r, 14); k; k--) {
        const char *s = bits[rng_below(r, FST_COUNT(bits))];
        size_t n = strlen(s), cut = rng_below(r, 3) ? n : rng_below(r, n + 1);
        bool special = rng_below(r, 4) != 0;
        assert_int_equal(tokenizer_encode_text(tok, s, cut, special, &ids), FST_OK);
        assert_int_equal(tokenizer_encode_text(tok, s + cut, n - cut, special, &ids), FST_OK);
    }
    for (size_t i = 0; i < ids.n && e == GATE_SHUT; i++) {
        const char *s = tokenizer_bytes(tok, ids.id[i], &len);
        if (rng_below(r, 16) == 0)
            check_bar(&b.gate);
        e = gate_feed(rules, &b.gate, ids.id[i]);
        feed(&b, s, len);
    }
    n_seen[e]++;
    bool reasons = chat_parser_in_reasoning(b.p);
    switch (e) {
    case GATE_OPEN:
        assert_true(thoughts);
        assert_false(reasons);
        assert_int_equal(b.reply.content.len, 0);
        assert_false(in_block(&b));
        break;
    case GATE_BLOCK:
        feed(&b, "tool_calls>\n", 12);
        assert_true(in_block(&b));
        break;
    case GATE_FOUL:
        feed(&b, "x", 1); /* what the parser holds back */
        assert_false(chat_parser_in_reasoning(b.p));
        break;
    case GATE_SHUT:
        if (of_content) {
            feed(&b, "x", 1);
            assert_true(chat_parser_in_reasoning(b.p));
        }
        assert_false(in_block(&b));
        break;
    }
    chat_parser_free(b.p);
    reply_release(&b.reply);
    tokenizer_ids_release(&ids);
}

static void random_replies(void **state)
{
    uint64_t n_seen[4] = {0};
    struct rng r;

    (void)state;
    rng_init(&r, 11);
    for (int i = 0; i < 20000; i++)
        one(&r, n_seen);
    for (int i = 0; i < 4; i++)
        if (n_seen[i] < 500)
            fail_msg("event %d came %llu times", i, (unsigned long long)n_seen[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_replies)};
    if (tokenizer_load(&tok, "tests/data/tiny-tokenizer.json") < 0 ||
        gate_rules_new(&rules, tok) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    gate_rules_free(rules);
    tokenizer_free(tok);
    return rc;
}
