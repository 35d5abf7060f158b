/* test_grammar_schema.c - each keyword: what is accepted, what is not, what is refused and how. */
#include "support/cm.h"

#include "support/grammar.h"
#define TINY_TOKENIZER "tests/data/tiny-tokenizer.json"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;

struct row {
    const char *schema;
    const char *yes[7], *no[7];
};
static const struct row rows[] = {
    {"{}",
     {"null", "1", "\"a\"", "[1, 2]", "{\"a\": {}}", "-1.5e10"},
     {"", "nul", "[1,]", "01", "{a:1}"}},
    {"true", {"{}"}, {"{"}},
    {"{\"type\":\"integer\"}",
     {"0", "-1", "123456789012345678901"},
     {"-0", "1.5", "01", "1e3", "\"1\""}},
    {"{\"type\":\"number\"}", {"0", "-0.5", "1e-9"}, {".5", "1.", "+1", "true"}},
    {"{\"type\":[\"boolean\",\"null\"]}", {"true", "false", "null"}, {"0", "\"true\""}},
    {"{\"type\":\"string\",\"nullable\":true}", {"\"a\"", "null"}, {"1"}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"\\u00e9\\n\\/\"", "\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\""},
     {"\"\\ud83d\"", "\"\\udc00\"", "\"\n\"", "\"\\x\"", "\"\xff\"", "\"\xed\xa0\x80\""}},
    {"{\"enum\":[1,\"a\",null,{\"b\":[true]}]}",
     {"1", "\"a\"", "null", "{\"b\":[true]}", "{\"b\": [true]}"},
     {"2", "\"b\"", "{}"}},
    {"{\"const\":\"\\\"x\\\"\"}", {"\"\\\"x\\\"\""}, {"\"x\""}},
    {"{\"enum\":[1,2,30,\"x\"],\"type\":\"integer\",\"minimum\":2}", {"2", "30"}, {"1", "\"x\""}},
    {"{\"enum\":[\"a\",\"b\"],\"const\":\"b\"}", {"\"b\""}, {"\"a\""}},
    /* numbers */
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":345}",
     {"-12", "-9", "0", "99", "345", "344"},
     {"-13", "346", "1000", "-100"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":10}",
     {"1", "9"},
     {"0", "10", "-1"}},
    {"{\"type\":\"number\",\"minimum\":0.5,\"maximum\":2.25}",
     {"0.5", "0.50", "1", "2.25", "2.2499", "0.5001"},
     {"0.49", "2.26", "0", "3", "1e0", "-1"}},
    {"{\"type\":\"number\",\"exclusiveMaximum\":-1.5}",
     {"-1.51", "-2", "-100.25"},
     {"-1.5", "-1.50", "-1", "0"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0}", {"0.001", "7"}, {"0", "0.0", "-0", "-1"}},
    {"{\"type\":\"number\",\"maximum\":1e3}", {"1000", "-5", "999.9"}, {"1000.1", "1001"}},
    {"{\"type\":\"integer\",\"minimum\":9007199254740993}",
     {"9007199254740993"},
     {"9007199254740992"}},
    {"{\"type\":\"integer\",\"multipleOf\":25}", {"0", "25", "-75", "1000"}, {"1", "26"}},
    {"{\"type\":\"number\",\"multipleOf\":0.25}",
     {"0", "0.25", "1.5", "-2.75", "3"},
     {"0.3", "1.125", "0.26"}},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":100,\"maximum\":120}",
     {"105", "112", "119"},
     {"98", "100", "126"}},
    /* strings */
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"",
      "\"\xe6\xaf\x95"
      "bc\"",
      "\"\\n\\u0041\""},
     {"\"a\"", "\"abcd\""}},
    {"{\"type\":\"string\",\"maxLength\":0}", {"\"\""}, {"\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a+$\"}", {"\"a\"", "\"aaa\""}, {"\"\"", "\"ab\""}},
    {"{\"type\":\"string\",\"pattern\":\"b\",\"maxLength\":3}",
     {"\"b\"", "\"abc\""},
     {"\"a\"", "\"abcd\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a\\\"\\\\\\\\$\"}", {"\"a\\\"\\\\\""}, {"\"a\""}},
    {"{\"allOf\":[{\"pattern\":\"^[a-m]*$\"},{\"pattern\":\"^[k-z]*$\"}],\"type\":\"string\"}",
     {"\"kml\"", "\"\""},
     {"\"a\"", "\"z\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-01-01T00:00:00Z\"", "\"2024-01-01T23:59:59.5+01:30\""},
     {"\"2024-01-01\"", "\"2024-01-01T24:00:00Z\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"2eb8aa08-aa98-11ea-b4aa-73b441d16380\""},
     {"\"2eb8aa08aa98-11ea-b4aa-73b441d16380\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"127.0.0.1\"", "\"255.255.255.255\""},
     {"\"256.1.1.1\"", "\"01.1.1.1\"", "\"1.1.1\""}},
    {"{\"type\":\"string\",\"format\":\"ipv6\"}",
     {"\"::1\"", "\"::\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\""},
     {"\"1::2::3\"", "\"1:2:3\"", "\"12345::\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}",
     {"\"a.b+c@d.example\""},
     {"\"a@b@c\"", "\"a..b@c\"", "\"@c\""}},
    {"{\"type\":\"string\",\"format\":\"uri\"}",
     {"\"https://a.b/c?d=e#f\"", "\"mailto:x@y.z\""},
     {"\"//a.b\"", "\"a b:c\""}},
    {"{\"type\":\"string\",\"format\":\"duration\"}",
     {"\"P1Y2M3DT4H5M6S\"", "\"PT1M\"", "\"P4W\""},
     {"\"P\"", "\"P1YT\"", "\"P1Y1W\""}},
    /* objects */
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
     "\"boolean\"}},"
     "\"required\":[\"b\"],\"additionalProperties\":false}",
     {"{\"a\":1,\"b\":true}", "{\"b\": false}", "{\"a\": 1, \"b\": true}"},
     {"{}", "{\"a\":1}", "{\"b\":true,\"a\":1}", "{\"b\":true,\"c\":1}", "{\"b\":1}",
      "{ \"b\":true}", "{\"b\":true,}"}},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"}}}",
     {"{\"a\":1,\"x\":[]}", "{\"x\":\"y\"}", "{}", "17", "\"s\"", "{\"aa\":null}"},
     {"{\"a\":\"s\"}", "{\"x\":1,\"a\":\"s\"}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,"
     "\"maxProperties\":2}",
     {"{\"x\":1}", "{\"x\":1,\"y\":2}"},
     {"{}", "{\"x\":1,\"y\":2,\"z\":3}", "{\"x\":\"s\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"additionalProperties\":"
     "false,"
     "\"minProperties\":2,\"maxProperties\":2}",
     {"{\"a\":1,\"b\":1}", "{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}"},
     {"{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}", "{}"}},
    {"{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"y$\":{"
     "\"minimum\":5}},\"additionalProperties\":false}",
     {"{\"xa\":1}", "{\"xy\":5}", "{\"ay\":\"s\"}", "{}"},
     {"{\"b\":1}", "{\"xy\":4}", "{\"xa\":\"s\"}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-c]{1,2}$\"}}",
     {"{\"ab\":1}", "{}"},
     {"{\"d\":1}", "{\"abc\":1}"}},
    {"{\"type\":\"object\",\"required\":[\"k\"]}",
     {"{\"k\":null}", "{\"k\":1,\"z\":2}"},
     {"{}", "{\"z\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":true,\"c\":true},\"dependentRequired\":"
     "{\"a\":[\"c\"]},\"additionalProperties\":false}",
     {"{\"a\":1,\"c\":1}", "{\"b\":1}", "{}"},
     {"{\"a\":1}", "{\"a\":1,\"b\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"q\\\"\xc3\xa9\":{\"const\":1}},"
     "\"additionalProperties\":false}",
     {"{\"q\\\"\xc3\xa9\":1}"},
     {"{\"q\":1}"}},
    /* arrays */
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
     {"[1,2]", "[1, 2, 3]"},
     {"[]", "[1]", "[1,2,3,4]", "[1,\"a\"]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":{\"const\":3}}",
     {"[]", "[1]", "[1,2]", "[1,2,3,3]"},
     {"[2]", "[1,3]", "[1,2,1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false,"
     "\"minItems\":2}",
     {"[1,2]"},
     {"[1]", "[1,2,3]"}},
    {"{\"type\":\"array\",\"contains\":{\"const\":1},\"minContains\":2,\"maxContains\":2,\"items\":"
     "{\"enum\":[1,2]}}",
     {"[1,1]", "[2,1,2,1]"},
     {"[1]", "[1,1,1]", "[]", "[2,2]"}},
    {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\",\"c\"]}}",
     {"[]", "[\"a\"]", "[\"c\",\"a\",\"b\"]"},
     {"[\"a\",\"a\"]", "[\"d\"]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":100000}",
     {"[]", "[1,2,3]"},
     {"[1,]"}},
    /* putting together */
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}",
     {"5", "\"a\""},
     {"\"ab\"", "null"}},
    {"{\"oneOf\":[{\"type\":\"integer\",\"multipleOf\":2},{\"type\":\"integer\",\"multipleOf\":3}]"
     "}",
     {"2", "3", "9"},
     {"6", "0", "1"}},
    {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},"
     "\"required\":[\"k\"],\"type\":\"object\"},"
     "{\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"],\"type\":\"object\"}]}",
     {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\",\"x\":\"s\"}"},
     {"{\"k\":\"a\",\"x\":\"s\"}", "{}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}},\"required\":[\"a\"]},{\"properties\":{"
     "\"a\":{\"maximum\":5}}}],\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
     "\"additionalProperties\":false}",
     {"{\"a\":3}", "{\"a\":5}"},
     {"{\"a\":2}", "{\"a\":6}", "{}"}},
    {"{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"bc\"]}}",
     {"\"b\"", "\"\"", "\"abc\""},
     {"\"a\"", "\"bc\"", "1"}},
    {"{\"not\":{\"type\":\"object\"}}", {"1", "[]"}, {"{}"}},
    {"{\"type\":\"integer\",\"not\":{\"minimum\":3,\"maximum\":5}}", {"2", "6"}, {"3", "4", "5"}},
    {"{\"type\":\"object\",\"properties\":{\"t\":{\"enum\":[1,2]},\"v\":{\"type\":[\"string\","
     "\"integer\"]}},\"required\":[\"t\",\"v\"],\"additionalProperties\":false,"
     "\"if\":{\"properties\":{\"t\":{\"const\":1}}},\"then\":{\"properties\":{\"v\":{\"type\":"
     "\"string\"}}},\"else\":{\"properties\":{\"v\":{\"type\":\"integer\"}}}}",
     {"{\"t\":1,\"v\":\"s\"}", "{\"t\":2,\"v\":3}"},
     {"{\"t\":1,\"v\":3}", "{\"t\":2,\"v\":\"s\"}"}},
    {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"array\",\"items\":{"
     "\"$ref\":\"#/$defs/n\"}}},\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}",
     {"{}", "{\"c\":[]}", "{\"c\":[{\"c\":[{}]},{}]}"},
     {"{\"c\":[1]}", "{\"d\":1}"}},
    {"{\"properties\":{\"a~b/c\":{\"type\":\"integer\"},\"x\":{\"$ref\":\"#/properties/"
     "a~0b~1c\"}},\"type\":\"object\"}",
     {"{\"x\":1}"},
     {"{\"x\":\"s\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":"
     "\"null\"}]}},\"required\":[\"next\"],\"unevaluatedProperties\":false}",
     {"{\"next\":null}", "{\"next\":{\"next\":null}}"},
     {"{}", "{\"next\":1}", "{\"next\":null,\"x\":1}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":true}}],\"properties\":{\"b\":true},"
     "\"unevaluatedProperties\":false,\"type\":\"object\"}",
     {"{\"b\":1,\"a\":1}", "{}"},
     {"{\"c\":1}"}},
};

static void keywords(void **state)
{
    (void)state;
    for (size_t i = 0; i < FST_COUNT(rows); i++) {
        struct grammar *g;

        if (grammar_test_schema(&g, rows[i].schema, NULL) < 0)
            fail_msg("%s: %s", rows[i].schema, fst_error_text());
        for (size_t k = 0; k < 7 && rows[i].yes[k]; k++)
            if (!grammar_test_accepts(g, vocab, rows[i].yes[k]))
                fail_msg("%s refuses %s", rows[i].schema, rows[i].yes[k]);
        for (size_t k = 0; k < 7 && rows[i].no[k]; k++)
            if (grammar_test_accepts(g, vocab, rows[i].no[k]))
                fail_msg("%s accepts %s", rows[i].schema, rows[i].no[k]);
        assert_string_equal(grammar_left_out(g), "");
        grammar_unref(g);
    }
}

static const struct {
    const char *schema;
    enum fst_status rc;
    const char *text; /* part of the message */
} faults[] = {
    {"17", FST_EINVAL, "#: a schema must be an object"},
    {"{\"type\":\"text\"}", FST_EINVAL, "#: type must be"},
    {"{\"properties\":{\"a\":{\"minLength\":-1}}}", FST_EINVAL, "#/properties/a: minLength"},
    {"{\"enum\":1}", FST_EINVAL, "enum must be a list"},
    {"{\"anyOf\":[]}", FST_EINVAL, "anyOf must be"},
    {"{\"required\":[1]}", FST_EINVAL, "required must be"},
    {"{\"$ref\":\"#/$defs/x\"}", FST_EINVAL, "#/$defs/x: there is no such place"},
    {"{\"$ref\":\"other.json\"}", FST_EUNSUPPORTED, "leads out of the schema"},
    {"{\"$ref\":\"#\"}", FST_OK, ""}, /* says nothing */
    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", FST_OK, ""},
    {"false", FST_EINVAL, "no document"},
    {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", FST_EINVAL, "no document"},
    {"{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", FST_EINVAL,
     "no document"},
    {"{\"pattern\":\"(?=a)\"}", FST_EUNSUPPORTED, "#/pattern: at byte 1: look-around"},
    {"{\"pattern\":\"(a)\\\\1\"}", FST_EUNSUPPORTED, "back-references"},
    {"{\"pattern\":\"a{2,1}\"}", FST_EINVAL, "n > m"},
    {"{\"pattern\":\"(\"}", FST_EINVAL, ") expected"},
    {"{\"format\":\"idn-email\"}", FST_EUNSUPPORTED, "#: format cannot be kept"},
    {"{\"items\":{\"uniqueItems\":true}}", FST_EUNSUPPORTED, "#/items: uniqueItems"},
    {"{\"type\":\"object\",\"minProperties\":3}", FST_EUNSUPPORTED, "#: minProperties"},
    {"{\"not\":{\"additionalProperties\":{\"type\":\"null\"}}}", FST_EUNSUPPORTED,
     "additionalProperties cannot be kept: under not"},
    {"{\"$recursiveRef\":\"#\"}", FST_EUNSUPPORTED, "$recursiveRef"},
    {"{\"multipleOf\":0}", FST_EINVAL, "multipleOf must be above 0"},
    {"{\"type\":\"integer\",\"multipleOf\":1234567}", FST_EBUDGET, "multipleOf"},
    {"{\"pattern\":\"^(.{1,500}a){1,500}$\"}", FST_EBUDGET, "too large"},
    {"{\"pattern\":\"(a|b)*a(a|b){20}$\"}", FST_EBUDGET, "states"},
    {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":1000000}", FST_EBUDGET, "states"},
};

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < FST_COUNT(faults); i++) {
        struct grammar *g;
        enum fst_status rc = grammar_test_schema(&g, faults[i].schema, NULL);

        if (rc != faults[i].rc || (rc < 0 && !strstr(fst_error_text(), faults[i].text)))
            fail_msg("%s: %s %s", faults[i].schema, fst_status_name(rc), fst_error_text());
        grammar_unref(g);
    }
}

static void lenient(void **state)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true},"
        "\"b\":{\"type\":\"string\",\"pattern\":\"a(?!b)\"},\"c\":{\"type\":\"string\",\"format\":"
        "\"int32\"}}}";
    struct grammar_opts o = {.lenient = true};
    struct grammar *g;

    (void)state;
    assert_int_equal(grammar_test_schema(&g, schema, NULL), FST_EUNSUPPORTED);
    assert_int_equal(grammar_test_schema(&g, schema, &o), FST_OK);
    assert_non_null(strstr(grammar_left_out(g), "#/properties/a: uniqueItems"));
    assert_non_null(strstr(grammar_left_out(g), "#/properties/b/pattern: pattern"));
    assert_non_null(strstr(grammar_left_out(g), "#/properties/c: format int32"));
    assert_true(grammar_test_accepts(g, vocab, "{\"a\":[1,1]}"));
    grammar_unref(g);
}

static void options(void **state)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"}}}";
    struct grammar_opts compact = {.space = GRAMMAR_SPACE_COMPACT},
                        any = {.space = GRAMMAR_SPACE_ANY, .space_max = 3},
                        closed = {.closed = true}, shallow = {.depth_max = 6};
    struct grammar *g;

    (void)state;
    assert_int_equal(grammar_test_schema(&g, schema, &compact), FST_OK);
    assert_true(grammar_test_accepts(g, vocab, "{\"a\":[1,2],\"b\":1}"));
    assert_false(grammar_test_accepts(g, vocab, "{\"a\": [1,2]}"));
    assert_false(grammar_test_accepts(g, vocab, "{\"a\":[1, 2]}"));
    grammar_unref(g);
    assert_int_equal(grammar_test_schema(&g, schema, &any), FST_OK);
    assert_true(grammar_test_accepts(g, vocab, "{\n  \"a\" : [\n\n1\t,2 ]\n}"));
    assert_false(grammar_test_accepts(g, vocab, "{\n   \"a\":[]}"));
    grammar_unref(g);
    assert_int_equal(grammar_test_schema(&g, schema, &closed), FST_OK);
    assert_true(grammar_test_accepts(g, vocab, "{\"a\":[{\"z\":1}]}"));
    assert_false(grammar_test_accepts(g, vocab, "{\"b\":1}"));
    grammar_unref(g);
    assert_int_equal(grammar_test_schema(&g, schema, &shallow), FST_OK);
    assert_true(grammar_test_accepts(g, vocab, "{\"a\":[[1]]}"));
    assert_false(grammar_test_accepts(g, vocab, "{\"a\":[[[[[[[[1]]]]]]]]}"));
    grammar_unref(g);
}

static void any_object(void **state)
{
    struct grammar *g;

    (void)state;
    assert_int_equal(grammar_from_json_object(&g, NULL), FST_OK);
    assert_true(grammar_test_accepts(g, vocab, "{\"a\": [1, {\"b\": null}], \"c\": \"d\"}"));
    assert_false(grammar_test_accepts(g, vocab, "[1]"));
    assert_false(grammar_test_accepts(g, vocab, "{\"a\":1"));
    grammar_unref(g);
}

/* Deep and wide schemas end in a grammar or a clear refusal. */
static void hostile(void **state)
{
    struct buf b = {0};
    struct grammar *g;
    enum fst_status rc;

    (void)state;
    for (int i = 0; i < 120; i++)
        buf_puts(&b, "{\"not\":");
    buf_puts(&b, "{\"type\":\"null\"}");
    for (int i = 0; i < 120; i++)
        buf_puts(&b, "}");
    rc = grammar_test_schema(&g, buf_str(&b), NULL);
    assert_true(rc == FST_OK || rc == FST_EBUDGET);
    grammar_unref(g);
    buf_reset(&b);
    buf_puts(&b, "{\"allOf\":["); /* 2^20 combinations */
    for (int i = 0; i < 20; i++)
        buf_printf(&b, "%s{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%d}]}", i ? "," : "", i,
                   i + 1);
    buf_puts(&b, "]}");
    rc = grammar_test_schema(&g, buf_str(&b), NULL);
    assert_int_equal(rc, FST_EBUDGET);
    buf_reset(&b);
    buf_puts(&b, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 2000; i++)
        buf_printf(&b, "%s\"p%d\":{\"type\":\"string\"}", i ? "," : "", i);
    buf_puts(&b, "}}");
    rc = grammar_test_schema(&g, buf_str(&b), NULL);
    assert_true(rc == FST_OK || rc == FST_EBUDGET);
    if (rc == FST_OK)
        assert_true(grammar_test_accepts(g, vocab, "{\"p7\":\"x\",\"p1999\":\"\",\"q\":1}"));
    grammar_unref(g);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keywords),   cmocka_unit_test(refusals),
                                       cmocka_unit_test(lenient),    cmocka_unit_test(options),
                                       cmocka_unit_test(any_object), cmocka_unit_test(hostile)};
    int rc;

    if (!grammar_test_open(&tok, &vocab))
        return 1;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    grammar_test_close(tok, vocab);
    return rc;
}
