/* grammar_probe.c - grammars from outside: the C side of tests/api/peer_grammar.py.
 *
 *   grammar-probe TOKENIZER.json            JSON lines in, one JSON line out for each
 *   grammar-probe TOKENIZER.json --bench    the same lines in; times of masks never asked for before
 *
 * A line: {"kind": "schema" | "json" | "regex" | "ebnf" | "tools", "schema": ..., "text": ..., and of
 *   "lenient", "closed", "space": "compact" | "any", "one_call", "start": 0..2,
 *   "accept": [texts]            are they documents?
 *   "walks": n, "seed": n        n documents by random logits under the mask
 *   "room": n                    with so many tokens at most (-1: the least, -2: least and a few)
 *   "check": n                   compare every n-th mask of a walk with what the matcher takes
 *   "masks": [ids]               masks along these ids, as hexadecimal digits of bytes}
 * The answer: {"error": text, "code": name} or {"accept": [bool], "docs": [text], "masks": [...],
 *   "least": n, "states": n, "left_out": text}. */
#include <time.h>

#include "base/json.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "support/grammar.h"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static int32_t n_ids;

static const char *text_of(json_val *v, const char *fallback, size_t *len)
{
    const char *s = json_string(v, len);
    if (!s) {
        s = fallback;
        *len = strlen(s);
    }
    return s;
}

static bool is(json_val *v, const char *text)
{
    size_t len;
    const char *s = json_string(v, &len);
    return s && len == strlen(text) && memcmp(s, text, len) == 0;
}

static enum fst_status compile(struct grammar **g, json_val *line)
{
    struct grammar_opts o = {.lenient = json_bool(json_get(line, "lenient"), false),
                             .closed = json_bool(json_get(line, "closed"), false)};
    json_val *kind = json_get(line, "kind");
    const char *text;
    size_t len;
    int64_t start = 0;

    if (is(json_get(line, "space"), "compact"))
        o.space = GRAMMAR_SPACE_COMPACT;
    if (is(json_get(line, "space"), "any"))
        o.space = GRAMMAR_SPACE_ANY;
    text = text_of(json_get(line, "text"), "", &len);
    if (is(kind, "schema"))
        return grammar_from_schema(g, json_get(line, "schema"), &o);
    if (is(kind, "json"))
        return grammar_from_json_object(g, &o);
    if (is(kind, "regex"))
        return grammar_from_regex(g, text, len, &o);
    if (is(kind, "ebnf"))
        return grammar_from_ebnf(g, text, len, &o);
    if (is(kind, "tools")) {
        struct grammar_tools_opts to = {.one_call = json_bool(json_get(line, "one_call"), false)};
        json_val *list = json_get(line, "tools");
        struct grammar_tool tool[16];
        size_t n = FST_MIN(json_count(list), FST_COUNT(tool));

        json_int(json_get(line, "start"), &start);
        to.start = (enum grammar_tools_start)start;
        for (size_t i = 0; i < n; i++) {
            json_val *x = json_at(list, i);
            tool[i] = (struct grammar_tool){.name = text_of(json_get(x, "name"), "", &len),
                                            .parameters = json_get(x, "parameters"),
                                            .any = json_bool(json_get(x, "any"), false)};
        }
        return grammar_from_tools(g, tool, n, &grammar_test_format, &to, &o);
    }
    return fst_error(FST_EINVAL, "no such kind");
}

/* One token under the mask, by random logits: a bias that lasts for a document makes some walks
 * love long tokens, others short ones or the end. */
static int32_t draw(const uint32_t *mask, struct rng *r, double love_end, int32_t eos)
{
    int32_t best = -1;
    double top = 0;

    for (int32_t w = 0; w < (n_ids + 31) / 32; w++)
        for (uint32_t bits = mask[w]; bits; bits &= bits - 1) {
            int32_t id = w * 32 + __builtin_ctz(bits);
            double x = rng_unit(r);
            if (id == eos)
                x += love_end;
            if (best < 0 || x > top) {
                best = id;
                top = x;
            }
        }
    return best;
}

/* Time of this thread: others share the machine. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct timer {
    double *us; /* of masks */
    size_t n, cap;
    double compile_us[1000];
    size_t n_compiled;
};

/* Is the mask what the matcher takes, token by token? */
static bool is_exact(struct matcher *m, uint32_t room, const uint32_t *mask)
{
    bool enough = room != MATCHER_NO_LIMIT && matcher_least_tokens(m) <= room;

    for (int32_t id = 0; id < n_ids; id++) {
        bool ok = matcher_advance(m, id) == FST_OK;
        if (ok) {
            if (enough && id != tokenizer_specials(tok)->eos)
                ok = room && matcher_least_tokens(m) <= room - 1;
            matcher_rollback(m, 1);
        }
        if (ok != grammar_test_bit(mask, id))
            return false;
    }
    return true;
}

/* A document, or NULL and why.  `room` tokens at most (UINT32_MAX: any, but pressed to an end). */
static const char *walk(struct matcher *m, uint32_t room, struct rng *r, struct buf *out,
                        struct timer *timer, int64_t check)
{
    uint32_t *mask = mem_alloc(matcher_mask_words(m) * sizeof *mask);
    int32_t eos = tokenizer_specials(tok)->eos;
    const char *why = NULL;
    double love_end = rng_below(r, 2) ? 1.0 : 0.0;
    uint32_t limit = room == UINT32_MAX ? 40 + (uint32_t)rng_below(r, 200) : 0;

    buf_reset(out);
    for (uint32_t n = 0;; n++) {
        struct matcher_stats before = matcher_stats(m), after;
        uint64_t t0, t1;
        uint32_t left = room == UINT32_MAX ? UINT32_MAX : room - n;
        int32_t id;
        const char *s;
        size_t len;

        /* a walk without room is pressed to an end after a while, from what is then the least */
        if (room == UINT32_MAX && n == limit) {
            uint32_t least = matcher_least_tokens(m);
            room = n + least + (uint32_t)rng_below(r, 8);
            left = room - n;
        }
        t0 = cpu_ns();
        if (matcher_mask(m, left, mask) < 0) {
            why = "matcher_mask failed";
            break;
        }
        t1 = cpu_ns();
        after = matcher_stats(m);
        if (timer && after.masks_cached == before.masks_cached && timer->n < timer->cap)
            timer->us[timer->n++] = (double)(t1 - t0) / 1000;
        if (check && n % (uint64_t)check == 0 && !is_exact(m, left, mask)) {
            why = "the mask is not what the matcher takes";
            break;
        }
        if (!left && !matcher_is_accepting(m)) {
            why = "out of room";
            break;
        }
        id = draw(mask, r, love_end, eos);
        if (id < 0) {
            why = "empty mask";
            break;
        }
        if (matcher_advance(m, id) < 0) {
            why = "a token of the mask was refused";
            break;
        }
        if (id == eos)
            break;
        s = tokenizer_bytes(tok, id, &len);
        buf_append(out, s, len);
        if (left != UINT32_MAX && matcher_least_tokens(m) > left - 1) {
            why = "a token of the mask left too little room";
            break;
        }
    }
    mem_free(mask);
    return why;
}

static void put_masks(struct buf *out, struct matcher *m, json_val *ids)
{
    size_t words = matcher_mask_words(m);
    uint32_t *mask = mem_alloc(words * sizeof *mask);

    buf_puts(out, ",\"masks\":[");
    for (size_t i = 0; i <= json_count(ids); i++) {
        int64_t id = -1;

        if (matcher_mask(m, MATCHER_NO_LIMIT, mask) < 0)
            break;
        buf_puts(out, i ? ",\"" : "\"");
        for (size_t w = 0; w < words; w++)
            for (int b = 0; b < 4; b++)
                buf_printf(out, "%02x", (unsigned)(mask[w] >> (8 * b) & 0xff));
        buf_puts(out, "\"");
        if (i < json_count(ids) &&
            (!json_int(json_at(ids, i), &id) || matcher_advance(m, (int32_t)id) < 0))
            break;
    }
    buf_puts(out, "]");
    mem_free(mask);
}

static void answer(json_val *line, struct buf *out, struct timer *timer)
{
    struct grammar *g = NULL;
    struct matcher *m = NULL;
    uint64_t t0 = cpu_ns();
    enum fst_status rc = compile(&g, line);
    json_val *list = json_get(line, "accept");
    struct buf doc = {0};
    int64_t walks = 0, seed = 1, room = INT64_MAX, check = 0;
    struct rng r;

    if (timer && timer->n_compiled < FST_COUNT(timer->compile_us))
        timer->compile_us[timer->n_compiled++] = (double)(cpu_ns() - t0) / 1000;
    if (rc == FST_OK)
        rc = matcher_new(&m, g, vocab, NULL);
    if (rc < 0) {
        buf_puts(out, "{\"error\":");
        json_put_string(out, fst_error_text(), strlen(fst_error_text()));
        buf_printf(out, ",\"code\":\"%s\"}", fst_status_name(rc));
        grammar_unref(g);
        return;
    }
    buf_puts(out, "{\"accept\":[");
    for (size_t i = 0; i < json_count(list); i++) {
        size_t len = 0;
        const char *s = text_of(json_at(list, i), "", &len);
        char *marked = grammar_test_mark(s, &len);

        matcher_reset(m);
        buf_printf(out, "%s%s", i ? "," : "",
                   matcher_advance_text(m, marked, len) == len && matcher_is_accepting(m)
                       ? "true"
                       : "false");
        free(marked);
    }
    matcher_reset(m);
    buf_printf(out, "],\"least\":%u,\"states\":%u,\"left_out\":", matcher_least_tokens(m),
               grammar_states(g));
    json_put_string(out, grammar_left_out(g), strlen(grammar_left_out(g)));
    json_int(json_get(line, "walks"), &walks);
    json_int(json_get(line, "seed"), &seed);
    json_int(json_get(line, "room"), &room);
    json_int(json_get(line, "check"), &check);
    rng_init(&r, (uint64_t)seed);
    buf_puts(out, ",\"docs\":[");
    for (int64_t i = 0; i < walks; i++) {
        uint32_t most = room == INT64_MAX ? UINT32_MAX : (uint32_t)room;
        const char *why;

        matcher_reset(m);
        if (room < 0)
            most = matcher_least_tokens(m) + (room == -2 ? (uint32_t)rng_below(&r, 12) : 0);
        why = walk(m, most, &r, &doc, timer, check);
        buf_puts(out, i ? "," : "");
        if (why)
            buf_printf(out, "{\"fault\":\"%s\",\"text\":", why);
        json_put_string(out, buf_str(&doc), doc.len);
        if (why)
            buf_puts(out, "}");
    }
    buf_puts(out, "]");
    if (json_get(line, "masks")) {
        matcher_reset(m);
        put_masks(out, m, json_get(line, "masks"));
    }
    buf_printf(out, ",\"cut\":%llu}", (unsigned long long)matcher_stats(m).cut);
    buf_release(&doc);
    matcher_free(m);
    grammar_unref(g);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static struct timer timer = {.cap = 1 << 20};
    bool bench = argc > 2 && strcmp(argv[2], "--bench") == 0;
    struct buf out = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    uint64_t t0;

    if (argc < 2 || tokenizer_load(&tok, argv[1]) < 0) {
        fprintf(stderr, "%s\n", argc < 2 ? "needs a tokenizer.json" : fst_error_text());
        return 1;
    }
    n_ids = (int32_t)round_up(tokenizer_vocab_size(tok), 64);
    t0 = cpu_ns();
    if (grammar_vocab_new(&vocab, tok, n_ids, tokenizer_specials(tok)->eos,
                          grammar_test_format.mark) < 0)
        return 1;
    if (bench)
        printf("vocabulary of %d ids: %.0f ms\n", n_ids, (double)(cpu_ns() - t0) / 1e6);
    timer.us = mem_alloc(timer.cap * sizeof *timer.us);
    while ((len = getline(&line, &cap, stdin)) > 0) {
        struct json_doc *d;

        buf_reset(&out);
        if (json_parse(&d, line, (size_t)len) < 0) {
            fprintf(stderr, "%s\n", fst_error_text());
            return 1;
        }
        answer(json_root(d), &out, bench ? &timer : NULL);
        json_free(d);
        if (!bench) {
            printf("%s\n", buf_str(&out));
            fflush(stdout);
        }
    }
    if (bench && timer.n) {
        qsort(timer.compile_us, timer.n_compiled, sizeof *timer.compile_us, by_value);
        printf("%zu compiled: median %.0f us, p90 %.0f, highest %.0f\n", timer.n_compiled,
               timer.compile_us[timer.n_compiled / 2], timer.compile_us[timer.n_compiled * 9 / 10],
               timer.compile_us[timer.n_compiled - 1]);
        qsort(timer.us, timer.n, sizeof *timer.us, by_value);
        printf("%zu masks never asked for before: median %.1f us, p90 %.1f, p99 %.1f, p99.9 %.1f, "
               "highest %.1f\n",
               timer.n, timer.us[timer.n / 2], timer.us[timer.n * 9 / 10],
               timer.us[timer.n * 99 / 100], timer.us[timer.n * 999 / 1000], timer.us[timer.n - 1]);
    }
    free(line);
    mem_free(timer.us);
    buf_release(&out);
    grammar_vocab_free(vocab);
    tokenizer_free(tok);
    return 0;
}
