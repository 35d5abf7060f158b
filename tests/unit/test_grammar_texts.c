/* test_grammar_texts.c - regular expressions, EBNF in both spellings, calls of tools. */
#include "support/cm.h"

#include "support/grammar.h"

#define TINY_TOKENIZER "tests/data/tiny-tokenizer.json"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;

struct row {
    const char *text;
    const char *yes[6], *no[6];
};

static void check(const struct row *r, size_t n,
                  enum fst_status (*compile)(struct grammar **out, const char *s, size_t len,
                                             const struct grammar_opts *o))
{
    for (size_t i = 0; i < n; i++) {
        struct grammar *g;

        if (compile(&g, r[i].text, strlen(r[i].text), NULL) < 0)
            fail_msg("%s: %s", r[i].text, fst_error_text());
        for (size_t k = 0; k < 6 && r[i].yes[k]; k++)
            if (!grammar_test_accepts(g, vocab, r[i].yes[k]))
                fail_msg("%s refuses \"%s\"", r[i].text, r[i].yes[k]);
        for (size_t k = 0; k < 6 && r[i].no[k]; k++)
            if (grammar_test_accepts(g, vocab, r[i].no[k]))
                fail_msg("%s accepts \"%s\"", r[i].text, r[i].no[k]);
        grammar_unref(g);
    }
}

static const struct row regexes[] = {
    {"abc", {"abc"}, {"ab", "abcd", "xabc"}},
    {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
    {"(a|b)*abb", {"abb", "aababb"}, {"ab", "abba"}},
    {"a{2,3}b{2}c{1,}", {"aabbc", "aaabbccc"}, {"abbc", "aabc", "aaaabbc"}},
    {"x{0}y{0,0}z", {"z"}, {"xz", "yz"}},
    {"a{,2}", {"a{,2}"}, {"aa"}},
    {"a*?b+?c??", {"b", "aabbc"}, {"a"}},
    {"(?:ab)+(?P<n>c)(?<m>d)", {"abcd", "ababcd"}, {"acd"}},
    {"^a$", {"a"}, {"aa", ""}},
    {"a^b|x$y|c", {"c"}, {"ab", "xy"}},
    {"\\Aa\\z", {"a"}, {"b"}},
    {".", {"a", "\xe6\xaf\x95", "\xf0\x9f\x98\x80"}, {"\n", "", "ab", "\xff"}},
    {"(?s).", {"\n"}, {""}},
    {"[a-c\\d_-]+", {"abc", "0_-"}, {"d", ""}},
    {"[^a-z]", {"A", "\n", "\xc3\xa9"}, {"b"}},
    {"[]a]+", {"]a"}, {"["}},
    {"[[:alpha:][:^space:]]", {"a", "1"}, {" "}},
    {"[\\]\\\\^.]+", {"]\\^."}, {"a"}},
    {"\\d\\D\\w\\W\\s\\S", {"1aa \tb"}, {"aaa \tb"}},
    {"\\x41\\x{1f600}\\t\\.\\/", {"A\xf0\x9f\x98\x80\t./"}, {"B"}},
    {"\\p{L}\\pN\\P{L}",
     {"a1 ", "\xc3\xa9"
             "2-"},
     {"11 ", "a1b"}},
    {"\\p{Greek}+\\p{Script=Han}[\\p{Lu}\\p{Nd}]",
     {"\xce\xb1\xe6\xbc\xa2"
      "A"},
     {"a\xe6\xbc\xa2"
      "A"}},
    {"(?i)straSSe[a-c]", {"STRASSEB", "strasseC"}, {"strabe"}},
    {"(?i:A)b", {"ab", "Ab"}, {"aB"}},
    {"(?i)k", {"k", "K", "\xe2\x84\xaa"}, {"x"}},
    {"\\Qa.b*\\Ec", {"a.b*c"}, {"axbc"}},
    {"((((((a))))))", {"a"}, {"b"}},
    {"\xe6\xbc\xa2[\xe3\x81\x82-\xe3\x82\x93]*",
     {"\xe6\xbc\xa2\xe3\x81\x8b"},
     {"\xe6\xbc\xa2\xe3\x82\xa2"}},
};

static const struct row gbnfs[] = {
    {"root ::= \"a\" b? | c{2,3}\nb ::= [0-9]+ # digits\nc ::= \"x\" | \"y\"",
     {"a", "a12", "xy", "yyx"},
     {"x", "xxxx", "b"}},
    {"root ::= (\"a\" | \"b\")*\n  | \"\\\"\\n\\x41\\u00e9\"\n",
     {"", "abba", "\"\nA\xc3\xa9"},
     {"c"}},
    {"root ::= [^\"\\\\\\n] .",
     {"a\n", "\xe6\xbc\xa2"
             "b"},
     {"\"a", "\\a"}},
    {"root ::= e\ne ::= e \"+\" t | t\nt ::= t \"*\" f | f\nf ::= \"(\" e \")\" | [a-z]",
     {"a", "a+b*(c+d)"},
     {"a+", "(a", ""}},
    {"root ::= s\ns ::= \"(\" s \")\" s | \"\"", {"", "()", "(())()"}, {"(", ")("}},
    {"root ::= a a\na ::= b*\nb ::= \"x\"?", {"", "x", "xxx"}, {"y"}},
    {"root ::= item{0,2}\nitem ::= 'q'", {"", "qq"}, {"qqq"}},
    {"root ::= p{1000}\np ::= \"ab\" | \"cd\"", {NULL}, {"abab"}},
};

static const struct row larks[] = {
    {"start: A b+\nA: \"x\"..\"z\"\nb: /[0-9]{2}/ | \"!\" -> bang", {"x12", "y!34"}, {"a12", "x1"}},
    {"?start: sum\nsum: product | sum \"+\" product\nproduct: NUMBER | \"(\" sum \")\"\n%import "
     "common.NUMBER\n%import common.WS\n%ignore WS",
     {"1 + 2", "(1+2.5)\n", "1e5"},
     {"1 +", "+"}},
    {"start: \"Hi\"i [\",\"] NAME~1..2 \"!\"?\nNAME: LETTER+\n%import common (LETTER, DIGIT)",
     {"hI,Bob!", "HIbob"},
     {"Hi", "hi,,x"}},
    {"// comment\nstart: /a\\/b/i _x\n_x: \"1\" | (\"2\" \"3\")*",
     {"A/b1", "a/B2323", "a/b"},
     {"ab"}},
};

static const struct {
    int kind; /* 0 regex, 1 EBNF */
    const char *text;
    enum fst_status rc;
    const char *part;
} faults[] = {
    {0, "a(?!b)", FST_EUNSUPPORTED, "look-around"},
    {0, "(?<=a)b", FST_EUNSUPPORTED, "look-around"},
    {0, "(a)\\1", FST_EUNSUPPORTED, "back-references"},
    {0, "(?P<a>x)(?P=a)", FST_EUNSUPPORTED, "named back-references"},
    {0, "\\bword\\b", FST_EUNSUPPORTED, "word borders"},
    {0, "(?m)^a$", FST_EUNSUPPORTED, "flags"},
    {0, "a++", FST_EUNSUPPORTED, "possessive"},
    {0, "(?>a)", FST_EUNSUPPORTED, "atomic"},
    {0, "\\p{Klingon}", FST_EUNSUPPORTED, "no general category"},
    {0, "(a", FST_EINVAL, ") expected"},
    {0, "a)", FST_EINVAL, "unmatched )"},
    {0, "[a", FST_EINVAL, "] expected"},
    {0, "[z-a]", FST_EINVAL, "upside down"},
    {0, "*a", FST_EINVAL, "nothing to repeat"},
    {0, "a\\", FST_EINVAL, "backslash ends"},
    {0, "\\y", FST_EINVAL, "unknown escape"},
    {0, "a{3,2}", FST_EINVAL, "n > m"},
    {0, "\xff", FST_EINVAL, "no UTF-8"},
    {0, "[^\\x{0}-\\x{10ffff}]", FST_EINVAL, "no document"},
    {0, "((a{1,1000}){1,1000}){1,1000}", FST_EBUDGET, "too large"},
    {0, "(a|b)*a(a|b){20}", FST_EBUDGET, "states"},
    {1, "root ::= a", FST_EINVAL, "rule a is not defined"},
    {1, "top ::= \"a\"", FST_EINVAL, "no rule root"},
    {1, "root ::= \"a\nb ::= \"c\"", FST_EINVAL, "line 2"},
    {1, "root ::= (\"a\"", FST_EINVAL, ") expected"},
    {1, "root ::= \"a\" )", FST_EINVAL, "unmatched )"},
    {1, "root ::= \"a\"\nroot ::= \"b\"", FST_EINVAL, "defined twice"},
    {1, "root ::= a\na ::= b \"x\"\nb ::= a \"y\" | \"z\"", FST_EUNSUPPORTED, "rule"},
    {1, "root ::= \"a\" (= \"b\")", FST_EUNSUPPORTED, "look-ahead"},
    {1, "root ::= root", FST_EINVAL, "no document"},
    {1, "start: a{b}\na: \"x\"", FST_EUNSUPPORTED, "templates"},
    {1, "start: X\n%declare X", FST_EUNSUPPORTED, "%declare"},
    {1, "start: X\n%import python.NAME", FST_EUNSUPPORTED, "common"},
    {1, "start: /a(?=b)/", FST_EUNSUPPORTED, "look-around"},
    {1, "", FST_EINVAL, "no rule start"},
};

static void regex(void **state)
{
    (void)state;
    check(regexes, FST_COUNT(regexes), grammar_from_regex);
}

static void ebnf(void **state)
{
    (void)state;
    check(gbnfs, FST_COUNT(gbnfs), grammar_from_ebnf);
    check(larks, FST_COUNT(larks), grammar_from_ebnf);
}

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < FST_COUNT(faults); i++) {
        struct grammar *g;
        size_t len = strlen(faults[i].text);
        enum fst_status rc = faults[i].kind ? grammar_from_ebnf(&g, faults[i].text, len, NULL)
                                            : grammar_from_regex(&g, faults[i].text, len, NULL);

        if (g)
            fail_msg("%s: is taken", faults[i].text);
        if (rc != faults[i].rc || !strstr(fst_error_text(), faults[i].part))
            fail_msg("%s: %s %s", faults[i].text, fst_status_name(rc), fst_error_text());
    }
}

/* ---- tools ----------------------------------------------------------------------------------------- */

#define CALLS(x)   "\n\n" PROTOCOL_CALLS_OPEN x PROTOCOL_CALLS_CLOSE
#define CALL(n, x) PROTOCOL_INVOKE_OPEN n PROTOCOL_INVOKE_GO x PROTOCOL_INVOKE_END
#define TEXT(k, v) PROTOCOL_PARAM_OPEN k PROTOCOL_PARAM_TEXT v PROTOCOL_PARAM_CLOSE
#define JSON(k, v) PROTOCOL_PARAM_OPEN k PROTOCOL_PARAM_JSON v PROTOCOL_PARAM_CLOSE

static const char weather[] = "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","
                              "\"minLength\":1,\"maxLength\":20},"
                              "\"unit\":{\"enum\":[\"C\",\"F\",1]},\"days\":{\"type\":\"integer\","
                              "\"minimum\":1,\"maximum\":7},"
                              "\"note\":{\"type\":[\"string\",\"null\"]},\"zip\":{\"type\":"
                              "\"string\",\"pattern\":\"^[0-9]{5}$\"},"
                              "\"o\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                              "\"string\"}},\"required\":[\"a\"],\"additionalProperties\":false}},"
                              "\"required\":[\"city\",\"unit\"]}";

static struct grammar *tools(const struct grammar_tools_opts *o, bool any)
{
    struct grammar_tool t[2] = {{.name = "weather", .any = any}, {.name = "ping"}};
    struct json_doc *d;
    struct grammar *g;

    assert_int_equal(json_parse(&d, weather, sizeof weather - 1), FST_OK);
    t[0].parameters = json_root(d);
    if (grammar_from_tools(&g, t, 2, &grammar_test_format, o, NULL) < 0)
        fail_msg("%s", fst_error_text());
    json_free(d);
    return g;
}

static void check_tools(struct grammar *g, const char *const *yes, const char *const *no)
{
    for (; *yes; yes++)
        if (!grammar_test_accepts(g, vocab, *yes))
            fail_msg("refuses %s", *yes);
    for (; *no; no++)
        if (grammar_test_accepts(g, vocab, *no))
            fail_msg("accepts %s", *no);
    grammar_unref(g);
}

static void calls(void **state)
{
    static const char *const yes[] = {
        CALLS(CALL("ping", "")),
        CALLS(CALL("ping", "") "\n" CALL("ping", "")),
        CALLS(CALL("weather", TEXT("city", "Paris \"x\"\n<b>") "\n" TEXT("unit", "C"))),
        CALLS(CALL("weather", TEXT("city", "P") "\n" JSON("unit", "1") "\n" JSON(
                                  "days", "7") "\n" JSON("note", "null"))),
        CALLS(CALL("weather",
                   TEXT("city", "P") "\n" TEXT("unit", "F") "\n" TEXT("note", "null") "\n" TEXT(
                       "zip", "01234") "\n" JSON("o", "{\"a\": \"b\"}"))),
        CALLS(CALL("weather", TEXT("city", "</") "\n" TEXT("unit", "F"))),
        NULL};
    static const char *const no[] = {
        "",
        "\n\n" PROTOCOL_CALLS_OPEN PROTOCOL_CALLS_CLOSE,
        CALLS(CALL("pong", "")),
        CALLS(CALL("ping", TEXT("a", "b"))),
        CALLS(CALL("weather", "")),
        CALLS(CALL("weather", TEXT("city", "") "\n" TEXT("unit", "C"))),
        CALLS(CALL("weather", TEXT("city", "P") "\n" TEXT("unit", "K"))),
        CALLS(CALL("weather", TEXT("unit", "C") "\n" TEXT("city", "P"))),
        CALLS(CALL("weather", JSON("city", "\"P\"") "\n" TEXT("unit", "C"))),
        CALLS(CALL("weather", TEXT("city", "P") "\n" TEXT("unit", "C") "\n" TEXT("days", "3"))),
        CALLS(CALL("weather", TEXT("city", "P") "\n" TEXT("unit", "C") "\n" JSON("days", "8"))),
        CALLS(CALL("weather", TEXT("city", "P") "\n" TEXT("unit", "C") "\n" TEXT("other", "8"))),
        CALLS(CALL("weather", TEXT("city", "P") "\n" TEXT("unit", "C") "\n" TEXT("zip", "123"))),
        NULL};
    struct grammar_tools_opts o = {0};

    (void)state;
    check_tools(tools(&o, false), yes, no);
}

static void calls_from_inside(void **state)
{
    static const char *const yes[] = {
        TEXT("city", "P") "\n" TEXT("unit", "C") PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE, NULL};
    static const char *const no[] = {PROTOCOL_INVOKE_END PROTOCOL_CALLS_CLOSE,
                                     TEXT("city", "P") "\n" TEXT("unit", "C") PROTOCOL_INVOKE_END
                                     "\n" CALL("ping", "") PROTOCOL_CALLS_CLOSE,
                                     NULL};
    static const char *const block_yes[] = {CALL("ping", "") PROTOCOL_CALLS_CLOSE, NULL};
    static const char *const block_no[] = {
        CALL("ping", "") "\n" CALL("ping", "") PROTOCOL_CALLS_CLOSE, NULL};
    static const char *const any_yes[] = {
        CALL("weather", TEXT("x", "y") "\n" JSON("z", "[1]")) "\n" CALL("ping", "")
            PROTOCOL_CALLS_CLOSE,
        CALL("weather", "") PROTOCOL_CALLS_CLOSE, NULL};
    static const char *const any_no[] = {CALL("weather", JSON("x", "y")) PROTOCOL_CALLS_CLOSE,
                                         NULL};
    struct grammar_tools_opts named = {.start = GRAMMAR_TOOLS_INVOKE, .one_call = true},
                              block = {.start = GRAMMAR_TOOLS_BLOCK, .one_call = true},
                              any = {.start = GRAMMAR_TOOLS_BLOCK};

    (void)state;
    check_tools(tools(&named, false), yes, no);
    check_tools(tools(&block, false), block_yes, block_no);
    check_tools(tools(&any, true), any_yes, any_no);
}

/* An answer of a schema may stand instead of calls. */
static void calls_or_an_answer(void **state)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                                 "\"integer\"}},\"required\":[\"a\"],\"additionalProperties\":"
                                 "false}";
    static const char *const yes[] = {CALLS(CALL("ping", "")), "{\"a\": 1}", NULL};
    static const char *const no[] = {"", "{}", "\n\n{\"a\": 1}",
                                     "{\"a\": 1}" CALLS(CALL("ping", "")), NULL};
    struct grammar_tools_opts o = {0};
    struct json_doc *d;

    (void)state;
    assert_int_equal(json_parse(&d, schema, sizeof schema - 1), FST_OK);
    o.answer = json_root(d);
    check_tools(tools(&o, false), yes, no);
    json_free(d);
}

/* What cannot be kept is left out of the schemas that say so, and refused in the others. */
static void lenient_tools(void **state)
{
    static const char open[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\","
                               "\"uniqueItems\":true}}}";
    static const char *const yes[] = {CALLS(CALL("f", JSON("a", "[1, 1]"))), NULL};
    static const char *const no[] = {CALLS(CALL("f", JSON("a", "1"))), NULL};
    const struct grammar_tools_opts o = {0};
    struct grammar_tool t[2] = {{.name = "f", .lenient = true}, {.name = "g"}};
    struct json_doc *d;
    struct grammar *g;

    (void)state;
    assert_int_equal(json_parse(&d, open, sizeof open - 1), FST_OK);
    t[0].parameters = t[1].parameters = json_root(d);
    assert_int_equal(grammar_from_tools(&g, t, 2, &grammar_test_format, &o, NULL),
                     FST_EUNSUPPORTED);
    assert_non_null(strstr(fst_error_text(), "tool g: "));
    assert_int_equal(grammar_from_tools(&g, t, 1, &grammar_test_format, &o, NULL), FST_OK);
    assert_non_null(strstr(grammar_left_out(g), "uniqueItems"));
    check_tools(g, yes, no);
    json_free(d);
}

/* Tags are made of the marker's own token alone; its text spelled otherwise makes none and closes none. */
static void marker(void **state)
{
    struct grammar_tools_opts o = {0};
    struct grammar *g = tools(&o, false);
    struct matcher *m;
    static const char open[] = PROTOCOL_CALLS_OPEN, end[] = PROTOCOL_END "parameter>";
    static const char inside[] =
        "tool_calls>\n" PROTOCOL_INVOKE_OPEN "weather" PROTOCOL_INVOKE_GO PROTOCOL_PARAM_OPEN
        "city" PROTOCOL_PARAM_TEXT "x";
    uint32_t *mask;
    int32_t dsml = tokenizer_specials(tok)->dsml;
    size_t len = sizeof inside - 1;
    char *text;

    (void)state;
    assert_true(dsml >= 0);
    assert_int_equal(matcher_new(&m, g, vocab, NULL), FST_OK);
    mask = mem_alloc(matcher_mask_words(m) * sizeof *mask);
    assert_int_equal(matcher_advance_text(m, "\n\n<", 3), 3);
    assert_int_equal(matcher_mask(m, MATCHER_NO_LIMIT, mask), FST_OK);
    for (int32_t id = 0; id < tokenizer_vocab_size(tok); id++)
        assert_int_equal(grammar_test_bit(mask, id), id == dsml);
    assert_int_equal(matcher_advance_text(m, open + 1, sizeof open - 2), 0);
    assert_int_equal(matcher_advance(m, dsml), FST_OK);
    text = grammar_test_mark(inside, &len);
    assert_int_equal(matcher_advance_text(m, text, len), len);
    free(text);
    /* "</" and then the bar in bytes is no text of a value */
    assert_int_equal(matcher_advance_text(m, end, sizeof end - 1), 4);
    mem_free(mask);
    matcher_free(m);
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(regex),
                                       cmocka_unit_test(ebnf),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(calls),
                                       cmocka_unit_test(calls_from_inside),
                                       cmocka_unit_test(calls_or_an_answer),
                                       cmocka_unit_test(lenient_tools),
                                       cmocka_unit_test(marker)};
    int rc;

    if (!grammar_test_open(&tok, &vocab))
        return 1;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    grammar_test_close(tok, vocab);
    return rc;
}
