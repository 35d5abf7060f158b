/* test_client_numpy.c - draws against numpy and Python (tests/data/numpy-random.json), prompts of a benchmark. */
#include "support/cm.h"

#include "client/dataset.h"
#include "support/tmpdir.h"
#include "support/vectors.h"

static struct json_doc *vectors;

static int open_vectors(void **state)
{
    struct buf b = {0};
    (void)state;
    bool ok = read_whole("tests/data/numpy-random.json", &b) &&
              json_parse(&vectors, buf_str(&b), b.len) == FST_OK;
    buf_release(&b);
    return ok ? 0 : -1;
}

static int close_vectors(void **state)
{
    (void)state;
    json_free(vectors);
    return 0;
}

static int64_t integer(json_val *o, const char *key)
{
    int64_t n = 0;
    assert_true(json_int(json_get(o, key), &n));
    return n;
}

static double real(json_val *v)
{
    double x = 0;
    assert_true(json_real(v, &x));
    return x;
}

static json_val *each(const char *name, size_t i)
{
    json_val *list = json_get(json_root(vectors), name);
    assert_true(json_count(list) > 0);
    return json_at(list, i);
}

static void test_randint(void **state)
{
    (void)state;
    json_val *v;
    for (size_t i = 0; (v = each("randint", i)); i++) {
        struct mt19937 m;
        int64_t want;
        json_val *values = json_get(v, "values");
        numpy_seed(&m, (uint32_t)integer(v, "seed"));
        for (size_t k = 0; k < json_count(values); k++) {
            assert_true(json_int(json_at(values, k), &want));
            assert_int_equal(numpy_randint(&m, integer(v, "low"), integer(v, "high")), want);
        }
        /* As many draws were made, not only the same results. */
        assert_int_equal(numpy_randint(&m, 0, INT64_C(1) << 32), integer(v, "then"));
    }
}

static void test_exponential(void **state)
{
    (void)state;
    json_val *v;
    for (size_t i = 0; (v = each("exponential", i)); i++) {
        struct mt19937 m;
        json_val *values = json_get(v, "values");
        numpy_seed(&m, (uint32_t)integer(v, "seed"));
        for (size_t k = 0; k < json_count(values); k++) {
            double x = numpy_exponential(&m, real(json_get(v, "scale")));
            assert_true(x == real(json_at(values, k)));
        }
    }
}

static void test_shuffle(void **state)
{
    (void)state;
    json_val *v;
    for (size_t i = 0; (v = each("shuffle", i)); i++) {
        struct mt19937 m;
        uint32_t order[128];
        size_t n = (size_t)integer(v, "n");
        int64_t want;
        for (size_t k = 0; k < n; k++)
            order[k] = (uint32_t)k;
        python_seed(&m, (uint64_t)integer(v, "seed"));
        python_shuffle(&m, order, n);
        for (size_t k = 0; k < n; k++) {
            assert_true(json_int(json_at(json_get(v, "order"), k), &want));
            assert_int_equal(order[k], want);
        }
    }
    v = each("choices", 0);
    struct mt19937 m;
    python_seed(&m, (uint64_t)integer(v, "seed"));
    for (size_t k = 0; k < json_count(json_get(v, "values")); k++) {
        int64_t want;
        assert_true(json_int(json_at(json_get(v, "values"), k), &want));
        assert_int_equal((int64_t)(mt19937_unit(&m) * (double)integer(v, "n")), want);
    }
}

static struct tokenizer *tok;

static struct dataset_opts opts(struct mt19937 *numpy, struct mt19937 *python)
{
    numpy_seed(numpy, 42);
    python_seed(python, 42);
    return (struct dataset_opts){.tok = tok, .numpy = numpy, .python = python};
}

/* Lengths of both sides, and the waits that are drawn behind them. */
static void test_lengths(void **state)
{
    (void)state;
    json_val *v;
    for (size_t i = 0; (v = each("dataset", i)); i++) {
        struct mt19937 numpy, python;
        struct dataset d;
        struct dataset_opts o = opts(&numpy, &python);
        int64_t want;
        o.kind = DATASET_RANDOM;
        o.n = (size_t)integer(v, "n");
        o.input_len = integer(v, "input_len");
        o.output_len = integer(v, "output_len");
        o.range_ratio = real(json_get(v, "ratio"));
        assert_int_equal(dataset_make(&d, &o), FST_OK);
        assert_int_equal(d.n, o.n);
        for (size_t k = 0; k < d.n; k++) {
            assert_true(json_int(json_at(json_get(v, "input_lens"), k), &want));
            assert_int_equal(d.row[k].prompt_len, want);
            assert_int_equal(d.row[k].ids.n, want);
            assert_true(json_int(json_at(json_get(v, "output_lens"), k), &want));
            assert_int_equal(d.row[k].output_len, want);
        }
        for (size_t k = 0; k < json_count(json_get(v, "waits")); k++)
            assert_true(numpy_exponential(&numpy, 1 / real(json_get(v, "rate"))) ==
                        real(json_at(json_get(v, "waits"), k)));
        dataset_release(&d);
    }
}

/* No two prompts begin alike: a prefix cache must not make a random run easier than it is. */
static void test_prose_starts(void **state)
{
    struct mt19937 numpy, python;
    struct dataset d, again;
    struct dataset_opts o = opts(&numpy, &python);
    (void)state;
    o.kind = DATASET_RANDOM;
    o.n = 200;
    o.input_len = o.output_len = 40;
    o.range_ratio = 1;
    assert_int_equal(dataset_make(&d, &o), FST_OK);
    for (size_t i = 0; i < d.n; i++)
        for (size_t k = 0; k < i; k++)
            assert_true(memcmp(d.row[i].ids.id, d.row[k].ids.id, 8 * sizeof(int32_t)) != 0);
    o = opts(&numpy, &python);
    o.kind = DATASET_RANDOM;
    o.n = 200;
    o.input_len = o.output_len = 40;
    o.range_ratio = 1;
    assert_int_equal(dataset_make(&again, &o), FST_OK);
    for (size_t i = 0; i < d.n; i++)
        assert_string_equal(d.row[i].text, again.row[i].text);
    dataset_release(&d);
    dataset_release(&again);
}

static void test_random_ids(void **state)
{
    struct mt19937 numpy, python, m;
    struct dataset d;
    struct dataset_opts o = opts(&numpy, &python);
    int64_t vocab = dataset_ordinary_ids(tok);
    (void)state;
    o.kind = DATASET_RANDOM_IDS;
    o.n = 3;
    o.input_len = 50;
    o.output_len = 7;
    o.range_ratio = 1;
    assert_int_equal(dataset_make(&d, &o), FST_OK);
    numpy_seed(&m, 42); /* ratio 1 draws no lengths */
    for (size_t i = 0; i < 3; i++) {
        int64_t offset = numpy_randint(&m, 0, vocab);
        for (size_t j = 0; j < 50; j++)
            assert_int_equal(d.row[i].ids.id[j], (offset + (int64_t)(i + j)) % vocab);
    }
    dataset_release(&d);
    assert_true(vocab > 100 && tokenizer_is_special(tok, (int32_t)vocab));
    for (int32_t id = 10; id < vocab; id++)
        assert_false(tokenizer_is_special(tok, id));
}

/* The single-stream protocol's prompt for vocabularies of 128000 ordinary ids, as it is published here. */
static void test_decode_prompt(void **state)
{
    struct buf b = {0};
    struct json_doc *doc = NULL;
    struct mt19937 m;
    struct tokenizer_ids ids = {0};
    int64_t want;
    (void)state;
    assert_true(read_whole("bench/decode-prompt.json", &b));
    assert_int_equal(json_parse(&doc, buf_str(&b), b.len), FST_OK);
    assert_int_equal(json_count(json_root(doc)), 4096);
    numpy_seed(&m, 42);
    for (size_t i = 0; i < 4096; i++) {
        assert_true(json_int(json_at(json_root(doc), i), &want));
        assert_int_equal(numpy_randint(&m, 0, 128000), want);
    }
    assert_int_equal(dataset_decode_prompt(&ids, tok, 100), FST_OK);
    numpy_seed(&m, 42);
    for (size_t i = 0; i < 100; i++) /* of a smaller vocabulary */
        assert_int_equal(numpy_randint(&m, 0, dataset_ordinary_ids(tok)), ids.id[i]);
    tokenizer_ids_release(&ids);
    json_free(doc);
    buf_release(&b);
}

static const char talks[] =
    "[{\"conversations\":[{\"value\":\"one two three\"},{\"value\":\"four five six seven\"}]},"
    "{\"conversations\":[{\"value\":\"alone and never answered\"}]},"
    "{\"conversations\":[{\"value\":\"\"},{\"value\":\"nothing was asked here\"}]},"
    "{\"conversations\":[{\"value\":\"and what else is there\"},{\"value\":\"much more than "
    "that\"}]}]";

static void test_sharegpt(void **state)
{
    struct mt19937 numpy, python;
    struct dataset d;
    struct dataset_opts o = opts(&numpy, &python);
    struct tokenizer_ids ids = {0};
    char dir[256], path[300];
    (void)state;
    tmpdir_make(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/talks.json", dir);
    tmpdir_write(dir, "talks.json", talks, sizeof talks - 1);
    o.kind = DATASET_SHAREGPT;
    o.n = 10;
    assert_int_equal(dataset_make(&d, &o), FST_EINVAL); /* a file is needed */
    o.path = path;
    assert_int_equal(dataset_make(&d, &o), FST_OK);
    assert_int_equal(d.n, 2); /* one turn, and nothing asked: left out */
    bool first = !strcmp(d.row[0].text, "one two three");
    const struct dataset_row *row = &d.row[first ? 0 : 1];
    assert_string_equal(row->text, "one two three");
    assert_int_equal(tokenizer_encode_text(tok, "four five six seven", 19, false, &ids), FST_OK);
    assert_int_equal(row->output_len, ids.n);
    assert_int_equal(row->prompt_len, row->ids.n);
    dataset_release(&d);
    o.sharegpt_output_len = 77;
    o.sharegpt_context_len = 78;
    assert_int_equal(dataset_make(&d, &o), FST_EFORMAT); /* all too long */
    o.sharegpt_context_len = 0;
    assert_int_equal(dataset_make(&d, &o), FST_OK);
    assert_int_equal(d.row[0].output_len, 77);
    dataset_release(&d);
    /* random: asked texts, repeated to their length */
    o.kind = DATASET_RANDOM;
    o.n = 2;
    o.input_len = 30;
    o.output_len = 5;
    o.range_ratio = 1;
    assert_int_equal(dataset_make(&d, &o), FST_OK);
    assert_int_equal(d.n, 2);
    assert_int_equal(d.row[1].ids.n, 30);
    dataset_release(&d);
    tokenizer_ids_release(&ids);
    tmpdir_remove(dir);
}

static void test_shared_prefix(void **state)
{
    struct mt19937 numpy, python;
    struct dataset d;
    struct dataset_opts o = opts(&numpy, &python);
    size_t alike = 0;
    (void)state;
    o.kind = DATASET_SHARED_PREFIX;
    o.n_groups = 3;
    o.per_group = 4;
    o.prefix_len = 60;
    o.question_len = 10;
    o.shared_output_len = 9;
    assert_int_equal(dataset_make(&d, &o), FST_OK);
    assert_int_equal(d.n, 12);
    for (size_t i = 0; i < d.n; i++)
        for (size_t k = 0; k < i; k++)
            alike += !strncmp(d.row[i].text, d.row[k].text, 60);
    assert_int_equal(alike, 3 * (4 * 3 / 2));
    dataset_release(&d);
}

static int open_tokenizer(void **state)
{
    return open_vectors(state) || tokenizer_load(&tok, "models/kindling/tokenizer.json") != FST_OK;
}

static int close_tokenizer(void **state)
{
    tokenizer_free(tok);
    return close_vectors(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_randint),       cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_shuffle),       cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_prose_starts),  cmocka_unit_test(test_random_ids),
        cmocka_unit_test(test_decode_prompt), cmocka_unit_test(test_sharegpt),
        cmocka_unit_test(test_shared_prefix),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
