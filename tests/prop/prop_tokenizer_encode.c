/* Properties of encoding with the small tokenizer: decode undoes encode for every byte string,
 * heap and scan merge alike and as the definition says, marked ranges behave, long pieces are fast.
 *
 * With --lines TOKENIZER.json it is the C side of tests/api/peer_tokenizer.py instead: JSON lines
 * {"text": ..., "special": bool} come in, lines of ids go out.  --speed TOKENIZER.json FILE prints
 * MB per second of processor time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "support/vectors.h"
#include "tokenizer/split.h"
#include "tokenizer/vocab.h"

static struct tokenizer *tiny;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* others may share the core */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Text with words, runs, broken bytes and special tokens. */
static size_t random_text(struct rng *r, char *text, size_t max)
{
    static const char *const bits[] = {"the ",
                                       "def ",
                                       "json",
                                       "    ",
                                       "\n\n",
                                       "日本",
                                       "語カ",
                                       "你好",
                                       "é",
                                       "e\xcc\x81",
                                       "😀",
                                       "👍🏽",
                                       "123",
                                       "4567",
                                       "<think>",
                                       "</think>",
                                       "<｜User｜>",
                                       "｜DSML｜",
                                       "<｜",
                                       "\xff",
                                       "\xe4\xb8",
                                       "\xf0\x9f",
                                       "(self",
                                       "...",
                                       " return",
                                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                       "<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<",
                                       "Привет",
                                       "\r\n",
                                       "\t",
                                       "\xc2\x85"};
    size_t len = 0, n = rng_below(r, 30);

    while (n-- > 0) {
        const char *s = bits[rng_below(r, FST_COUNT(bits))];
        size_t k = strlen(s);
        if (rng_below(r, 6) == 0) {
            char any[4];
            k = 1 + rng_below(r, 4);
            rng_bytes(r, any, k);
            if (len + k > max)
                break;
            memcpy(text + len, any, k);
        } else {
            if (len + k > max)
                break;
            memcpy(text + len, s, k);
        }
        len += k;
    }
    return len;
}

static void raw_bytes(const struct tokenizer_ids *ids, struct buf *out)
{
    for (size_t i = 0; i < ids->n; i++) {
        size_t n;
        const char *s = tokenizer_bytes(tiny, ids->id[i], &n);
        buf_append(out, s, n);
    }
}

static void decode_undoes_encode(void **state)
{
    struct rng r;
    char text[2048];

    (void)state;
    rng_init(&r, 7);
    for (int round = 0, n_rounds = test_rounds(20000); round < n_rounds; round++) {
        struct tokenizer_ids ids = {0};
        struct buf back = {0}, lossy = {0}, want = {0};
        size_t len = random_text(&r, text, sizeof text);

        assert_int_equal(tokenizer_encode_text(tiny, text, len, round & 1, &ids), FST_OK);
        raw_bytes(&ids, &back);
        assert_int_equal(back.len, len);
        if (len)
            assert_memory_equal(back.data, text, len);
        assert_int_equal(tokenizer_decode(tiny, ids.id, ids.n, false, &lossy), FST_OK);
        utf8_append_lossy(&want, text, len);
        assert_int_equal(lossy.len, want.len);
        assert_string_equal(buf_str(&lossy), buf_str(&want));
        tokenizer_ids_release(&ids);
        buf_release(&back);
        buf_release(&lossy);
        buf_release(&want);
    }
}

/* "Repeat the lowest-ranked adjacent pair, leftmost on a tie", word by word. */
static size_t merge_by_definition(const char *s, size_t len, int32_t *id)
{
    size_t n = len;

    for (size_t i = 0; i < n; i++)
        id[i] = tiny->byte_id[(unsigned char)s[i]];
    for (;;) {
        const struct vocab_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const struct vocab_merge *m = vocab_find_merge(tiny, id[i], id[i + 1]);
            if (m && (!best || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (!best)
            return n;
        id[at] = best->result;
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
        n--;
    }
}

static void merging_is_the_definition(void **state)
{
    static const char alphabet[] = "aaeeetthhs  in\nr<=(";
    struct rng r;
    char piece[512];
    int32_t want[512];

    (void)state;
    rng_init(&r, 11);
    for (int round = 0, n_rounds = test_rounds(20000); round < n_rounds; round++) {
        size_t len = 1 + rng_below(&r, round % 4 ? 48 : 400);
        struct tokenizer_ids got = {0};
        size_t n;

        for (size_t i = 0; i < len; i++)
            piece[i] = rng_below(&r, 20) ? alphabet[rng_below(&r, sizeof alphabet - 1)]
                                         : (char)rng_below(&r, 256);
        n = merge_by_definition(piece, len, want);
        assert_int_equal(bpe_merge(tiny, piece, len, &got), FST_OK);
        assert_int_equal(got.n, n);
        assert_memory_equal(got.id, want, n * sizeof *want);
        tokenizer_ids_release(&got);
    }
}

/* A text of alternating marked and unmarked parts: marked special tokens are found, unmarked ones
 * are plain, and without any special text the marks change nothing. */
static void marks(void **state)
{
    struct rng r;
    char text[1024];

    (void)state;
    rng_init(&r, 13);
    for (int round = 0, n_rounds = test_rounds(20000); round < n_rounds; round++) {
        uint8_t allowed[128] = {0};
        size_t len = 0;
        int expected = 0;
        struct tokenizer_ids with = {0}, plain = {0};
        int n_parts = (int)rng_below(&r, 8);

        for (int part = 0; part < n_parts; part++) {
            static const char *const bits[] = {"<think>", "</think>", "hello world",
                                               "  ",      "1234",     "<｜User｜>",
                                               "<thin",   "k>",       "日本語"};
            const char *s = bits[rng_below(&r, FST_COUNT(bits))];
            bool mark = rng_below(&r, 2), special = s[0] == '<' && s[strlen(s) - 1] == '>';
            for (size_t i = 0; s[i]; i++) {
                if (mark)
                    allowed[len >> 3] |= (uint8_t)(1u << (len & 7));
                text[len++] = s[i];
            }
            /* "<thin" + "k>" both marked make one, too */
            if (mark && special)
                expected++;
            else if (mark && len >= 7 && memcmp(text + len - 7, "<think>", 7) == 0) {
                bool all = true;
                for (size_t i = len - 7; i < len; i++)
                    all = all && (allowed[i >> 3] >> (i & 7) & 1);
                expected += all;
            }
        }
        assert_int_equal(tokenizer_encode(tiny, text, len, allowed, &with), FST_OK);
        for (size_t i = 0; i < with.n; i++)
            expected -= tiny->token[with.id[i]].is_added;
        assert_int_equal(expected, 0);
        memset(allowed, 0, sizeof allowed);
        with.n = 0;
        assert_int_equal(tokenizer_encode(tiny, text, len, allowed, &with), FST_OK);
        assert_int_equal(tokenizer_encode(tiny, text, len, NULL, &plain), FST_OK);
        assert_int_equal(with.n, plain.n);
        if (plain.n)
            assert_memory_equal(with.id, plain.id, plain.n * sizeof *plain.id);
        tokenizer_ids_release(&with);
        tokenizer_ids_release(&plain);
    }
}

/* Pieces of 1 MiB: a quadratic merge would need minutes. */
static void long_pieces(void **state)
{
    static const char *const units[] = {"a", "ab", "the", "=", " ", "\n", "日", "!?", "é", "\xff"};
    size_t size = 1 << 20;
    char *text = mem_alloc(size);

    (void)state;
    for (size_t u = 0; u < FST_COUNT(units); u++) {
        struct tokenizer_ids ids = {0};
        struct buf back = {0};
        double t0 = now_s();

        for (size_t i = 0, k = strlen(units[u]); i < size; i++)
            text[i] = units[u][i % k];
        assert_int_equal(tokenizer_encode_text(tiny, text, size, true, &ids), FST_OK);
        assert_true(now_s() - t0 < 20);
        raw_bytes(&ids, &back);
        assert_int_equal(back.len, size);
        assert_memory_equal(back.data, text, size);
        tokenizer_ids_release(&ids);
        buf_release(&back);
    }
    mem_free(text);
}

static int lines_mode(const char *path)
{
    struct tokenizer *t;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    if (tokenizer_load(&t, path) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct json_doc *d;
        struct tokenizer_ids ids = {0};
        size_t len;
        const char *text;
        if (json_parse(&d, line, (size_t)n) < 0) {
            fprintf(stderr, "%s\n", fst_error_text());
            return 1;
        }
        text = json_string(json_get(json_root(d), "text"), &len);
        if (!text ||
            tokenizer_encode_text(t, text, len, json_bool(json_get(json_root(d), "special"), false),
                                  &ids) < 0)
            return 1;
        for (size_t i = 0; i < ids.n; i++)
            printf("%s%d", i ? " " : "", (int)ids.id[i]);
        putchar('\n');
        tokenizer_ids_release(&ids);
        json_free(d);
    }
    free(line);
    tokenizer_free(t);
    return 0;
}

static int speed_mode(const char *path, const char *file)
{
    struct tokenizer *t;
    struct buf text = {0};
    struct tokenizer_ids ids = {0};
    double t0 = now_s(), best = 1e9;

    if (tokenizer_load(&t, path) < 0 || !read_whole(file, &text))
        return 1;
    printf("load %.3f s\n", now_s() - t0);
    for (int i = 0; i < 5; i++) {
        ids.n = 0;
        t0 = now_s();
        if (tokenizer_encode_text(t, text.data, text.len, true, &ids) < 0)
            return 1;
        best = FST_MIN(best, now_s() - t0);
    }
    printf("%zu bytes, %zu ids, %.1f MB/s of CPU time\n", text.len, ids.n,
           (double)text.len / best / 1e6);
    tokenizer_ids_release(&ids);
    buf_release(&text);
    tokenizer_free(t);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decode_undoes_encode),
                                       cmocka_unit_test(merging_is_the_definition),
                                       cmocka_unit_test(marks), cmocka_unit_test(long_pieces)};
    int rc;

    if (argc == 3 && strcmp(argv[1], "--lines") == 0)
        return lines_mode(argv[2]);
    if (argc == 4 && strcmp(argv[1], "--speed") == 0)
        return speed_mode(argv[2], argv[3]);
    if (tokenizer_load(&tiny, TINY_TOKENIZER) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_free(tiny);
    return rc;
}
