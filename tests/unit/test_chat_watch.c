/* test_chat_watch.c - loops by their definition, budgets, and ends that equal those of a reader's stream. */
#include "support/cm.h"

#include <time.h>

#include "chat/loops.h"
#include "chat/protocol.h"
#include "chat/watch.h"
#include "support/replies.h"
#include "support/vectors.h"

static struct tokenizer *tok;

/* ------------------------------------------------------------------ loops */

static int chars(const char *s, int n)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += ((unsigned char)s[i] & 0xC0) != 0x80;
    return k;
}

/* By definition: some stretch comes back to back often enough at the end of s[0..n). */
static bool is_round(const char *s, int n)
{
    for (int d = 1; d <= LOOPS_PERIOD_MAX && 3 * d < n; d++) {
        int len = d;
        while (len < n && s[n - 1 - len] == s[n - 1 - len + d])
            len++;
        int unit = chars(s + n - d, d);
        if (len > d && chars(s + n - len, len) >= 3 * (unit > 200 ? unit : 200) + 200)
            return true;
    }
    return false;
}

/* Bytes of the text until the loop is found; 0: never. */
static int found(const char *s, int n, int piece)
{
    static struct loops l;
    memset(&l, 0, sizeof l);
    for (int i = 0; i < n; i += piece)
        if (loops_text(&l, s + i, (size_t)FST_MIN(piece, n - i)))
            return i + FST_MIN(piece, n - i);
    return 0;
}

static void test_loops_by_definition(void **state)
{
    static char s[20000];
    static const char *const alphabet[] = {"ab", "a b\nc", "\xe6\xaf\x95 x", "01-,\n"};
    struct test_rng r = {.s = 3};
    int n_round = 0;

    (void)state;
    for (int round = 0; round < test_size(60, 2000, 10); round++) {
        const char *letters = alphabet[round % 4];
        int kind = round % 4 == 2 ? 2 : 0, n = 0, unit, times = 1 + test_below(&r, 6);
        int lead = test_below(&r, 500);
        /* something, a stretch some times over, something else */
        while (n < lead)
            s[n++] = (char)('A' + test_below(&r, 26));
        unit = round % 3 ? 1 + test_below(&r, 60) : 150 + test_below(&r, 600);
        int from = n;
        while (n - from < unit) {
            if (kind == 2 && test_below(&r, 2)) {
                memcpy(s + n, letters, 3);
                n += 3;
            } else
                s[n++] = letters[kind == 2 ? 4 : test_below(&r, (int)strlen(letters))];
        }
        unit = n - from;
        if (unit < 100)
            times = 700 / unit + test_below(&r, 400 / unit + 2);
        for (int k = 1; k < times && n + unit < 18000; k++, n += unit)
            memcpy(s + n, s + from, (size_t)unit);
        for (int k = 0; k < 300; k++)
            s[n++] = (char)('A' + test_below(&r, 26));
        int first = 0;
        for (int at = 1; at <= n && !first; at++)
            if (is_round(s, at))
                first = at;
        int got = found(s, n, 1);
        if ((got == 0) != (first == 0) && !(first && first + 16 > from + unit * times))
            fail_msg("round %d: found at %d, by definition at %d", round, got, first);
        if (got && (got < first || got > first + 16))
            fail_msg("round %d: found at %d, by definition at %d", round, got, first);
        n_round += got > 0;
        for (int piece = 2; got && piece < 9; piece += 3)
            assert_in_range(found(s, n, piece), got, got + piece - 1);
    }
    assert_true(n_round > 3);
}

static void test_no_loops(void **state)
{
    static char s[60000];
    struct loops l = {0};
    int n = 0;

    (void)state;
    /* A table, a list of numbers, a file with the same boilerplate a hundred times over: no loops. */
    for (int i = 0; i < 400; i++)
        n += snprintf(s + n, sizeof s - (size_t)n,
                      "| row %d | the same words in each row of it |\n", i);
    for (int i = 0; i < 100; i++)
        n += snprintf(
            s + n, sizeof s - (size_t)n,
            "static void test_case_%d(void **state)\n{\n    (void)state;\n    open_the_thing();"
            "\n    use_it(3, 4);\n    assert_true(it_worked());\n    close_the_thing();\n"
            "    assert_int_equal(n_open(), 0);\n    assert_int_equal(n_left(), 0);\n}\n\n",
            i);
    memset(s + n, '-', 799);
    n += 799;
    assert_false(loops_text(&l, s, (size_t)n));
    assert_true(loops_text(&l, "----------------", 16));
    loops_reset_text(&l);
    assert_false(loops_text(&l, s + n - 799, 799));

    /* Three paragraphs are none, the fourth is one; so with the same call. */
    char paragraph[320];
    memset(&l, 0, sizeof l);
    for (int i = 0; i < 320; i++)
        paragraph[i] = (char)('a' + i * i % 23);
    for (int i = 0; i < 3; i++)
        assert_false(loops_text(&l, paragraph, sizeof paragraph));
    assert_true(loops_text(&l, paragraph, sizeof paragraph));

    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 40; k++) {
            char other[8];
            snprintf(other, sizeof other, "%d", k);
            loops_call_begin(&l, "f");
            loops_call_args(&l, "{", 1);
            loops_call_args(&l, other, strlen(other));
            assert_false(loops_call_end(&l));
        }
    loops_call_begin(&l, "f");
    loops_call_args(&l, "{7", 2);
    assert_true(loops_call_end(&l));
    loops_call_begin(&l, "g");
    loops_call_args(&l, "{7", 2);
    assert_false(loops_call_end(&l));
}

/* ------------------------------------------------------------------ watching */

struct watched {
    int32_t ids[4096];
    int n;
    bool stopped;
    uint64_t keep;
    enum chat_watch_loop loop;
    int n_forced;
};

/* Gives out the ids, and what is forced instead of them. */
static struct watched watch(struct chat_watch_opts *o, const struct tokenizer_ids *ids, bool eos)
{
    static struct watched w;
    struct chat_watch *c;
    struct chat_watch_verdict v;

    o->stream.tokenizer = tok;
    memset(&w, 0, sizeof w);
    assert_int_equal(chat_watch_new(&c, o), FST_OK);
    v = chat_watch_feed(c, -1, CHAT_WATCH_GOES_ON);
    for (size_t i = 0; !v.stop && i < ids->n;) {
        int32_t id = v.force >= 0 ? v.force : ids->id[i];
        bool last = v.force < 0 && ++i == ids->n;
        w.n_forced += v.force >= 0;
        w.ids[w.n++] = id;
        v = chat_watch_feed(c, id,
                            !last ? CHAT_WATCH_GOES_ON
                            : eos ? CHAT_WATCH_STOP_ID
                                  : CHAT_WATCH_LENGTH);
    }
    w.stopped = v.stop;
    w.keep = v.keep;
    w.loop = chat_watch_loop(c);
    assert_int_equal(chat_watch_closed(c), w.n_forced > 0);
    chat_watch_free(c);
    return w;
}

static struct tokenizer_ids ids_of(const char *text)
{
    struct tokenizer_ids ids = {0};
    assert_int_equal(tokenizer_encode_text(tok, text, strlen(text), true, &ids), FST_OK);
    return ids;
}

static void test_budget(void **state)
{
    int32_t close = tokenizer_specials(tok)->end_think;
    struct tokenizer_ids ids = ids_of("one two three four five six seven</think>eight");

    (void)state;
    for (int64_t budget = -1; budget < (int64_t)ids.n + 2; budget++) {
        struct chat_watch_opts o = {.stream = {.kind = CHAT_STREAM_CHAT}, .budget = budget};
        int own = 0;
        while (ids.id[own] != close)
            own++;
        o.stream.parser.start = CHAT_START_REASONING;
        struct watched w = watch(&o, &ids, false);
        int at = budget >= 0 && budget < own ? (int)budget : own;
        assert_int_equal(w.ids[at], close);
        for (int i = 0; i < at; i++)
            assert_int_equal(w.ids[i], ids.id[i]);
        /* Where the model closes at the same place nothing shows. */
        assert_int_equal(w.n_forced, budget >= 0 && budget <= own);
        o.stream.parser.start = CHAT_START_CONTENT; /* nothing is thought: nothing is forced */
        w = watch(&o, &ids, false);
        assert_int_equal(w.n_forced, 0);
    }
    tokenizer_ids_release(&ids);
}

#define CALL(arg)                                                                                  \
    PROTOCOL_INVOKE_OPEN "f" PROTOCOL_INVOKE_GO PROTOCOL_PARAM_OPEN                                \
                         "x" PROTOCOL_PARAM_JSON arg PROTOCOL_PARAM_CLOSE PROTOCOL_INVOKE_END "\n"

static void test_guard(void **state)
{
    struct chat_watch_opts o = {.stream = {.kind = CHAT_STREAM_CHAT}, .budget = -1, .loops = true};
    struct buf text = {0};

    (void)state;
    for (int i = 0; i < 400; i++)
        buf_puts(&text, "round and ");
    struct tokenizer_ids ids = ids_of(buf_str(&text));
    struct watched w = watch(&o, &ids, false);
    assert_true(w.stopped);
    assert_int_equal(w.keep, w.n);
    assert_int_equal(w.loop, CHAT_LOOP_TEXT);
    assert_true(w.n < 400);
    /* In thoughts it closes them; what goes round again behind that ends. */
    o.stream.parser.start = CHAT_START_REASONING;
    w = watch(&o, &ids, false);
    assert_int_equal(w.n_forced, 1);
    assert_true(w.stopped);
    assert_int_equal(w.loop, CHAT_LOOP_TEXT);
    o.loops = false;
    w = watch(&o, &ids, false);
    assert_int_equal(w.n_forced, 0);
    assert_false(w.stopped);
    tokenizer_ids_release(&ids);

    /* The same call four times, beside others. */
    o.loops = true;
    o.stream.parser.start = CHAT_START_CONTENT;
    o.stream.parser.tools_on = true;
    ids = ids_of("Look."
                 "\n\n" PROTOCOL_CALLS_OPEN CALL("1") CALL("2") CALL("1") CALL("1") CALL("3")
                     CALL("1") CALL("4") PROTOCOL_CALLS_CLOSE);
    w = watch(&o, &ids, false);
    assert_true(w.stopped);
    assert_int_equal(w.loop, CHAT_LOOP_CALLS);
    assert_true(w.n < (int)ids.n);
    tokenizer_ids_release(&ids);
    ids = ids_of("Look."
                 "\n\n" PROTOCOL_CALLS_OPEN CALL("1") CALL("2") CALL("1") CALL("1") CALL("3")
                     CALL("4") PROTOCOL_CALLS_CLOSE);
    w = watch(&o, &ids, false);
    assert_false(w.stopped);
    tokenizer_ids_release(&ids);
    buf_release(&text);
}

static void ignore(void *ud, const struct chat_event *e)
{
    (void)ud;
    (void)e;
}

/* A reader's stream that is fed the ids that were given out ends at the same one. */
static void test_same_end(void **state)
{
    static const char *const texts[] = {"a b\n\n\nc</think>d e\n\nf", "</think>one\n\n\n\n",
                                        "x</think>a\n\n" PROTOCOL_CALLS_OPEN CALL("1")
                                            PROTOCOL_CALLS_CLOSE "and more",
                                        "b\na</think>b\na stop here, stop"};
    static const struct chat_str stops[] = {
        {"\n", 1}, {"\n\n", 2}, {"b", 1}, {"stop", 4}, {"e\n", 2}};

    (void)state;
    for (size_t t = 0; t < FST_COUNT(texts); t++)
        for (size_t k = 0; k <= FST_COUNT(stops); k++)
            for (int kind = 0; kind < 4; kind++) {
                struct tokenizer_ids ids = ids_of(texts[t]);
                struct chat_watch_opts o = {.budget = -1};
                struct chat_stream *s;
                o.stream.kind = kind & 1 ? CHAT_STREAM_TEXT : CHAT_STREAM_CHAT;
                o.stream.parser.start = CHAT_START_REASONING;
                o.stream.parser.tools_on = true;
                o.stream.stops = &stops[k % FST_COUNT(stops)];
                o.stream.n_stops = k < FST_COUNT(stops);
                if (kind & 2)
                    assert_int_equal(tokenizer_ids_push(&ids, tokenizer_specials(tok)->eos),
                                     FST_OK);
                struct watched w = watch(&o, &ids, kind & 2);
                o.stream.parser.event = ignore;
                assert_int_equal(chat_stream_new(&s, &o.stream), FST_OK);
                for (int i = 0; i < w.n; i++)
                    assert_int_equal(
                        chat_stream_feed(s, w.ids[i], (kind & 2) && (size_t)i + 1 == ids.n),
                        FST_OK);
                if (!w.stopped || (size_t)w.n == ids.n)
                    assert_int_equal(chat_stream_finish(s, CHAT_END_STOP), FST_OK);
                const struct chat_stream_result *r = chat_stream_result(s);
                assert_int_equal(r->stopped, w.stopped);
                if (w.stopped)
                    assert_int_equal(r->n_tokens, w.keep);
                else
                    assert_int_equal(w.n, ids.n);
                chat_stream_free(s);
                tokenizer_ids_release(&ids);
            }
}

/* Thoughts and content take no memory: the thread that samples must not wait for any. */
static void test_no_allocation(void **state)
{
    struct chat_watch_opts o = {
        .stream = {.kind = CHAT_STREAM_CHAT, .tokenizer = tok}, .budget = -1, .loops = true};
    struct chat_str stop = {"never to be seen", 16};
    struct tokenizer_ids ids =
        ids_of("some text < and\n\nlines </thi and `code`, never to b 毕 \n");
    struct chat_watch *w;

    (void)state;
    o.stream.parser.start = CHAT_START_REASONING;
    o.stream.parser.tools_on = true;
    o.stream.stops = &stop;
    o.stream.n_stops = 1;
    assert_int_equal(chat_watch_new(&w, &o), FST_OK);
    uint64_t before = mem_count();
    struct test_rng r = {.s = 9};
    for (int i = 0; i < 20000; i++) {
        int32_t id =
            i == 9000 ? tokenizer_specials(tok)->end_think : ids.id[test_below(&r, (int)ids.n)];
        struct chat_watch_verdict v = chat_watch_feed(w, id, CHAT_WATCH_GOES_ON);
        assert_false(v.stop);
    }
    assert_int_equal(mem_count(), before);
    chat_watch_free(w);
    tokenizer_ids_release(&ids);
}

static int load(void **state)
{
    (void)state;
    return tokenizer_load(&tok, "models/kindling/tokenizer.json") == FST_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loops_by_definition),
                                       cmocka_unit_test(test_no_loops),
                                       cmocka_unit_test(test_budget),
                                       cmocka_unit_test(test_guard),
                                       cmocka_unit_test(test_same_end),
                                       cmocka_unit_test(test_no_allocation)};
    return cmocka_run_group_tests(tests, load, unload);
}
