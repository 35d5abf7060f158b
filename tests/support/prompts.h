/* prompts.h - mixed prompts for end-to-end tests, from a seed: arithmetic, tools, needles in long
 * text, several turns, raw text, random ids.  Encoded with the bundled model's tokenizer. */
#ifndef TESTS_SUPPORT_PROMPTS_H
#define TESTS_SUPPORT_PROMPTS_H

#include "chat/chat.h"
#include "support/cm.h"

enum { PROMPT_KINDS = 7 };

static const char *const prompt_names[] = {"Mira", "Tom",  "Ada",   "Jonas", "Lena",
                                           "Omar", "Yuki", "Pavel", "Rosa",  "Nils"};
static const char *const prompt_things[] = {"apples", "stamps",  "marbles", "books",   "candles",
                                            "shells", "pencils", "coins",   "tickets", "buttons"};
static const char *const prompt_words[] = {"silver",  "narrow", "quiet",  "amber",  "northern",
                                           "lantern", "harbor", "meadow", "engine", "compass"};

static inline const char *prompt_pick(struct test_rng *r, const char *const *list)
{
    return list[test_below(r, 10)];
}

static inline void prompt_filler(struct test_rng *r, struct buf *b, int lines)
{
    for (int i = 0; i < lines; i++)
        buf_printf(b, "Line %04d: the %s %s carries %d crates of %s. ", i,
                   prompt_pick(r, prompt_words), prompt_pick(r, prompt_words),
                   test_below(r, 90) + 9, prompt_pick(r, prompt_things));
}

/* The body of an OpenAI-style request (messages and tools) of one kind; kinds 0..4. */
static inline void prompt_body(struct test_rng *r, int kind, struct buf *b)
{
    const char *who = prompt_pick(r, prompt_names), *what = prompt_pick(r, prompt_things);
    int a = test_below(r, 60) + 5, c = test_below(r, 40) + 2, d = test_below(r, 8) + 2;

    switch (kind) {
    case 0:
        buf_printf(b,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"%s has %d %s and buys %d boxes "
                   "of %d %s. How many %s does %s have?\"}],\"thinking\":{\"type\":\"enabled\"}}",
                   who, a, what, d, c, what, what, who);
        break;
    case 1:
        buf_printf(b,
                   "{\"messages\":[{\"role\":\"system\",\"content\":\"You are a helpful "
                   "assistant.\"},{\"role\":\"user\",\"content\":\"What is %d + %d?\"}],"
                   "\"thinking\":{\"type\":\"disabled\"}}",
                   a, c);
        break;
    case 2:
        buf_printf(b,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in %s "
                   "Town?\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
                   "\"get_weather\",\"description\":\"Get weather\",\"parameters\":{\"type\":"
                   "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":"
                   "\"integer\"}},\"required\":[\"city\"]}}}],\"thinking\":{\"type\":\"%s\"}}",
                   who, test_below(r, 2) ? "enabled" : "disabled");
        break;
    case 3: {
        int lines = 8 + test_below(r, 70), at = test_below(r, lines);
        buf_puts(b, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
        prompt_filler(r, b, at);
        buf_printf(b, "The access code for %s %s is %07d. ", prompt_words[1], prompt_words[6],
                   test_below(r, 9999999));
        prompt_filler(r, b, lines - at);
        buf_printf(b,
                   "What is the access code for %s %s?\"}],\"thinking\":{\"type\":\"disabled\"}}",
                   prompt_words[1], prompt_words[6]);
        break;
    }
    default:
        buf_printf(b,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello, I am %s.\"},{\"role\":"
                   "\"assistant\",\"content\":\"Hello %s, how can I help?\",\"reasoning_content\":"
                   "\"A greeting.\"},{\"role\":\"user\",\"content\":\"Tell me a short story about "
                   "%s.\"}]}",
                   who, who, what);
    }
}

/* Prompt i of a seeded list; appends ids. */
static inline void prompt_make(const struct tokenizer *t, uint64_t seed, int i,
                               struct tokenizer_ids *out)
{
    struct test_rng r = {.s = seed * 1000003 + (uint64_t)i};
    int kind = i % PROMPT_KINDS;
    struct buf b = {0};

    if (kind == 5) {
        buf_printf(&b, "Once upon a time %s found %d %s near the %s", prompt_pick(&r, prompt_names),
                   test_below(&r, 50), prompt_pick(&r, prompt_things),
                   prompt_pick(&r, prompt_words));
        assert_int_equal(tokenizer_encode_text(t, buf_str(&b), b.len, true, out), FST_OK);
    } else if (kind == 6) {
        int n = 1 + test_below(&r, 300);
        for (int k = 0; k < n; k++)
            assert_int_equal(tokenizer_ids_push(out, test_below(&r, tokenizer_vocab_size(t))),
                             FST_OK);
    } else {
        struct json_doc *doc;
        struct chat_request req;
        struct chat_prompt p = {0};
        prompt_body(&r, kind, &b);
        if (json_parse(&doc, buf_str(&b), b.len) < 0 ||
            chat_request_from_json(&req, json_root(doc), NULL) < 0 || chat_render(&p, &req) < 0 ||
            chat_encode(&p, t, out) < 0)
            fail_msg("prompt %d: %s", i, fst_error_text());
        chat_prompt_release(&p);
        chat_request_release(&req);
        json_free(doc);
    }
    buf_release(&b);
}

#endif
