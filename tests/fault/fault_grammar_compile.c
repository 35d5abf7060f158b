/* Every allocation of compiling, of a vocabulary and of a matcher fails once: FST_ENOMEM, no leak. */
#include "support/cm.h"

#include "support/grammar.h"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;

static const char schema[] =
    "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#/$defs/"
    "n\"}}}},\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\",\"pattern\":\"^[a-z]+\\\\p{Lu}$\",\"not\":{\"const\":\"aB\"}},"
    "\"d\":{\"format\":\"date\"},"
    "\"n\":{\"type\":\"number\",\"minimum\":1.5,\"maximum\":20},\"m\":{\"type\":\"integer\","
    "\"multipleOf\":4},"
    "\"e\":{\"enum\":[1,\"x\",[{\"a\":null}]]},\"l\":{\"type\":\"array\",\"items\":{\"enum\":[1,2,"
    "3]},\"uniqueItems\":true},"
    "\"c\":{\"type\":\"array\",\"contains\":{\"type\":\"null\"},\"maxItems\":3},\"r\":{\"$ref\":\"#"
    "/$defs/n\"},"
    "\"i\":{\"if\":{\"type\":\"string\"},\"then\":{\"maxLength\":3},\"else\":{\"type\":\"null\"}}},"
    "\"patternProperties\":{\"^x\":{\"type\":\"null\"}},\"dependentRequired\":{\"s\":[\"d\"]},"
    "\"oneOf\":[{\"required\":[\"s\"]},{\"required\":[\"n\"]}]}";
static const char lark[] = "start: A b~2..3 [\"x\"i]\nA: /[a-z]+/ | \"q\"..\"s\"\nb: b \"+\" A | "
                           "A\n%import common.WS\n%ignore WS";
static const char gbnf[] = "root ::= (\"a\" | b){2,9}\nb ::= b [0-9] | \"z\" .";
static const char regex[] = "(?i)(a|bc){2,5}[^\\d\\p{Greek}]*$";

static enum fst_status one(struct grammar **g, int kind, json_val *v)
{
    struct grammar_tool t[2] = {{.name = "f", .parameters = v}, {.name = "g", .any = true}};
    struct grammar_tools_opts o = {0};

    switch (kind) {
    case 0:
        return grammar_from_schema(g, v, NULL);
    case 1:
        return grammar_from_ebnf(g, lark, sizeof lark - 1, NULL);
    case 2:
        return grammar_from_ebnf(g, gbnf, sizeof gbnf - 1, NULL);
    case 3:
        return grammar_from_regex(g, regex, sizeof regex - 1, NULL);
    case 4:
        return grammar_from_json_object(g, NULL);
    default:
        return grammar_from_tools(g, t, 2, &grammar_test_format, &o, NULL);
    }
}

static void compiling(void **state)
{
    struct json_doc *d;
    int all = 0;

    (void)state;
    assert_int_equal(json_parse(&d, schema, sizeof schema - 1), FST_OK);
    for (int kind = 0; kind < 6; kind++) {
        uint64_t n = 0, used;

        do {
            struct grammar *g = NULL;
            struct matcher *m = NULL, *f = NULL;
            uint64_t before = mem_count();
            enum fst_status rc;

            mem_fail_at(++n);
            rc = one(&g, kind, json_root(d));
            if (rc == FST_OK)
                rc = matcher_new(&m, g, vocab, NULL);
            if (rc == FST_OK)
                rc = matcher_fork(&f, m);
            mem_fail_at(0);
            used = mem_count() - before;
            if (rc != (used < n ? FST_OK : FST_ENOMEM))
                fail_msg("kind %d allocation %d: %s %s", kind, (int)n, fst_status_name(rc),
                         fst_error_text());
            matcher_free(f);
            matcher_free(m);
            grammar_unref(g);
            all++;
        } while (used >= n);
    }
    assert_true(all > 300);
    json_free(d);
}

static void vocabulary(void **state)
{
    uint64_t n = 0, used;

    (void)state;
    do {
        struct grammar_vocab *v;
        uint64_t before = mem_count();
        enum fst_status rc;

        mem_fail_at(++n);
        rc = grammar_vocab_new(&v, tok, tokenizer_vocab_size(tok), tokenizer_specials(tok)->eos,
                               PROTOCOL_MARK);
        mem_fail_at(0);
        used = mem_count() - before;
        assert_int_equal(rc, used < n ? FST_OK : FST_ENOMEM);
        grammar_vocab_free(v);
    } while (used >= n);
    assert_true(n > 3);
}

/* Little memory: a refusal that says so, whatever the limit. */
static void budgets(void **state)
{
    struct json_doc *d;

    (void)state;
    assert_int_equal(json_parse(&d, schema, sizeof schema - 1), FST_OK);
    for (size_t kib = 1; kib < 1 << 14; kib = kib * 5 / 4 + 1) {
        struct grammar_opts o = {.memory_max_bytes = kib << 10};
        struct grammar *g;
        enum fst_status rc = grammar_from_schema(&g, json_root(d), &o);

        if (rc != FST_OK)
            assert_int_equal(rc, FST_EBUDGET);
        grammar_unref(g);
    }
    json_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(compiling), cmocka_unit_test(vocabulary),
                                       cmocka_unit_test(budgets)};
    int rc;

    if (!grammar_test_open(&tok, &vocab))
        return 1;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    grammar_test_close(tok, vocab);
    return rc;
}
