/* prop_engine_text_grammar.c - grammars in the engine: on the bundled model, with thoughts in front and without, alone
 * and in batches, drafting on and off, with prompts in small chunks, with places lost and as n choices.
 *   - An answer that ended (not "length") is a document of its grammar, behind what its gate says.
 *   - With room for the shortest document it always ends.
 *   - Ids and log-probabilities are the same in every cell.
 *   - Nothing is allocated while it runs. */
#include "support/engine.h"
#include "support/grammar.h"
#include "support/prompts.h"

#include "chat/gate.h"

enum { N_CASES = 9, N_WAYS = 4, MAX_NEW = 96 };

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static struct gate_rules *rules;

/* Where the prompt leaves off: content; in thoughts; in thoughts where the model would end its turn; in thoughts with
 * calls to come by themselves. */
enum way { CONTENT, THOUGHTS, ENDING, BY_ITSELF };

static const struct {
    enum { SCHEMA, REGEX, EBNF, TOOLS } kind;
    const char *text;
} cases[N_CASES] = {
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"answer\":{\"type\":\"string\",\"maxLength\":12},"
     "\"count\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":999},\"valid\":{\"type\":"
     "\"boolean\"}},\"required\":[\"answer\",\"count\",\"valid\"],\"additionalProperties\":false}"},
    {SCHEMA, "{\"type\":\"object\"}"},
    {SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",null,7]},\"minItems\":2,"
             "\"maxItems\":6}"},
    {SCHEMA, "{\"$ref\":\"#/$defs/"
             "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":"
             "\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
             "n\"},{\"type\":\"null\"}]}},\"required\":"
             "[\"v\",\"next\"],\"additionalProperties\":false}}}"},
    {SCHEMA, "{\"type\":\"string\",\"format\":\"date-time\"}"},
    {REGEX, "(yes|no|maybe), because [a-z]{2,8}( [a-z]{2,8}){0,3}\\."},
    {EBNF, "root ::= sum\nsum ::= num | \"(\" sum \" + \" sum \")\"\nnum ::= [0-9] [0-9]?"},
    {TOOLS, "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":9},"
            "\"days\":{"
            "\"type\":\"integer\",\"minimum\":1,\"maximum\":9}},\"required\":[\"city\",\"days\"]}"},
    {TOOLS, NULL},
};

static struct tokenizer_ids prompts[N_WAYS];
static struct chat_prompt shapes[N_WAYS];
static struct grammar *grammars[N_CASES];
static fst_grammar *compiled[N_CASES];
static uint64_t n_documents, n_cut, n_free, n_accepted, n_cells;

/* ------------------------------------------------------------------ material */

static enum fst_gate_event feed(const void *r, void *state, int32_t id)
{
    return (enum fst_gate_event)gate_feed(r, state, id);
}

static bool bar(const void *r, const void *state, uint32_t *mask)
{
    return gate_bar(r, state, mask);
}

static void make_prompt(enum way way)
{
    static const char *const body[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in "
        "Paris?\"}],\"think\":false}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 17 + 25?\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Give me one about "
        "Paris.\"}],\"response_for"
        "mat\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"$defs\":{"
        "\"expr\":{"
        "\"type\":\"object\",\"properties\":{\"label\":{\"type\":\"string\",\"maxLength\":50},"
        "\"children"
        "\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
        "expr\"},\"maxItems\":2},\"weight\":{\"type\""
        ":\"number\"}},\"required\":[\"label\"],\"additionalProperties\":false}},\"$ref\":\"#/"
        "$defs/"
        "expr\"}}}}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in Oslo "
        "Town?\"}],\"tools\":[{"
        "\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Get "
        "weather\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
        "\"days\":{"
        "\"type\":\"integer\"}},\"required\":[\"city\"]}}}]}"};
    struct json_doc *doc;
    struct chat_request req;

    if (json_parse(&doc, body[way], strlen(body[way])) < 0 ||
        chat_request_from_json(&req, json_root(doc), NULL) < 0 ||
        chat_render(&shapes[way], &req) < 0 || chat_encode(&shapes[way], tok, &prompts[way]) < 0)
        fail_msg("%s", fst_error_text());
    static const char *const thought[] = {"I",   " call", " read", "_",       "m",
                                          "at",  "\",",   " \"",   "w",       "ug",
                                          "\",", " \"",   "S",     "aturday", "\"]"};
    for (size_t i = 0; way == ENDING && i < FST_COUNT(thought); i++)
        assert_int_equal(
            tokenizer_encode_text(tok, thought[i], strlen(thought[i]), false, &prompts[way]),
            FST_OK);
    chat_request_release(&req);
    json_free(doc);
}

static void make_grammar(int i)
{
    struct grammar_tool t[] = {{.name = "get_weather"}, {.name = "ping"}};
    struct grammar_tools_opts to = {.one_call = i == N_CASES - 1};
    const char *text = cases[i].text;
    struct json_doc *doc = NULL;
    enum fst_status rc;

    if (text && (cases[i].kind == SCHEMA || cases[i].kind == TOOLS))
        assert_int_equal(json_parse(&doc, text, strlen(text)), FST_OK);
    if (doc)
        t[0].parameters = json_root(doc);
    else
        t[0].any = true;
    if (cases[i].kind == SCHEMA)
        rc = grammar_from_schema(&grammars[i], json_root(doc), NULL);
    else if (cases[i].kind == TOOLS)
        rc = grammar_from_tools(&grammars[i], t, 2, &grammar_test_format, &to, NULL);
    else
        rc = (cases[i].kind == REGEX ? grammar_from_regex : grammar_from_ebnf)(&grammars[i], text,
                                                                               strlen(text), NULL);
    if (rc < 0 || fst_grammar_new(&compiled[i], grammars[i], vocab) < 0)
        fail_msg("case %d: %s", i, fst_error_text());
    json_free(doc);
}

/* ------------------------------------------------------------------ requests */

struct ask {
    int at;       /* of cases */
    enum way way; /* BY_ITSELF: tools only */
    int variant;
    int64_t max_new;
};

static void options(const struct ask *a, struct fst_request_opts *o, struct fst_gate *gate)
{
    static struct fst_logit_bias bias[] = {{5, 3}, {9, -50}, {0, 12}};
    struct gate first;

    fst_request_opts_default(o);
    o->ids = prompts[a->way].id;
    o->n_ids = prompts[a->way].n;
    o->max_new_tokens = a->max_new;
    o->logprobs = true;
    o->sampling.has_seed = true;
    o->sampling.seed = (uint64_t)(a->variant * 100 + a->at);
    o->sampling.temperature = a->variant % 3 ? 1.0f : 0.0f;
    o->sampling.top_p = a->variant % 4 == 1 ? 0.9f : 1.0f;
    o->sampling.top_k = a->variant % 5 == 2 ? 40 : -1;
    if (a->variant % 4 == 2)
        o->sampling.frequency_penalty = 0.5f;
    if (a->variant % 6 == 5) {
        o->logit_bias = bias;
        o->n_logit_bias = FST_COUNT(bias);
    }
    if (a->variant % 6 == 1) { /* an end wherever there may be one */
        bias[2].id = tokenizer_specials(tok)->eos;
        o->logit_bias = bias + 2;
        o->n_logit_bias = 1;
    }
    o->ignore_eos = a->variant % 7 == 3;
    o->min_new_tokens = a->variant % 7 == 4 ? 40 : 0;
    o->grammar = compiled[a->at];
    if (a->way == CONTENT)
        return;
    gate_init(&first, &shapes[a->way], a->way != BY_ITSELF || a->variant % 2);
    first.tools_on = cases[a->at].kind == TOOLS;
    *gate =
        (struct fst_gate){.feed = feed,
                          .bar = bar,
                          .rules = rules,
                          .open_id = first.of_content ? tokenizer_specials(tok)->end_think : -1};
    memcpy(gate->state, &first, sizeof first);
    o->gate = gate;
    if (cases[a->at].kind == TOOLS) {
        o->grammar_text = "\n\n<\xff";
        o->n_grammar_text = 4;
    }
}

struct answer {
    size_t n;
    int32_t ids[MAX_NEW];
    float logprobs[MAX_NEW];
    enum fst_finish finish;
    int32_t matched;
};

static fst_request *submit(fst_engine *e, const struct fst_request_opts *o)
{
    fst_request *r;

    if (fst_request_submit(e, o, &r) < 0)
        fail_msg("%s", fst_error_text());
    return r;
}

static void collect(fst_request *r, struct answer *a)
{
    struct fst_request_view v;

    engine_finished(r, &v);
    *a = (struct answer){.n = v.n, .finish = v.finish, .matched = v.matched_id};
    memcpy(a->ids, v.ids, v.n * sizeof *v.ids);
    memcpy(a->logprobs, v.logprobs, v.n * sizeof *v.logprobs);
    n_accepted += v.spec.accepted;
    fst_request_free(r);
}

static void same(const struct answer *got, const struct answer *want, const struct ask *k,
                 const char *cell)
{
    size_t i = 0;

    n_cells++;
    if (memcmp(got, want, sizeof *got) == 0)
        return;
    while (i < got->n && i < want->n && got->ids[i] == want->ids[i])
        i++;
    fail_msg("case %d, way %d, variant %d, %s: %zu tokens, finish %d instead of %zu, %d; the first "
             "%zu agree",
             k->at, (int)k->way, k->variant, cell, got->n, got->finish, want->n, want->finish, i);
}

/* Follows the answer with a matcher and a gate of its own. */
static void check(const struct ask *k, const struct fst_request_opts *o, const struct answer *a)
{
    struct matcher *m;
    struct fst_gate gate = {0};
    bool on = !o->gate;
    int32_t eos = tokenizer_specials(tok)->eos;
    uint32_t least;
    struct buf text = {0};

    assert_int_equal(matcher_new(&m, grammars[k->at], vocab, NULL), FST_OK);
    least = matcher_least_tokens(m);
    if (o->gate)
        gate = *o->gate;
    for (size_t i = 0; i < a->n; i++) {
        size_t len;
        const char *s = tokenizer_bytes(tok, a->ids[i], &len);
        if (on) {
            if (matcher_advance(m, a->ids[i]) < 0)
                fail_msg("case %d, way %d, variant %d: token %zu of %zu, \"%s\", is not legal",
                         k->at, (int)k->way, k->variant, i, a->n, s);
            if (a->ids[i] != eos)
                buf_append(&text, s, len);
            continue;
        }
        enum fst_gate_event event = gate.feed(gate.rules, gate.state, a->ids[i]);
        assert_int_not_equal(event, FST_GATE_FOUL);
        if (event == FST_GATE_BLOCK)
            assert_int_equal(matcher_advance_text(m, o->grammar_text, o->n_grammar_text),
                             o->n_grammar_text);
        on = event != FST_GATE_SHUT;
    }
    bool bound = !o->gate || o->gate->open_id >= 0; /* a document must come */
    if (a->finish == FST_FINISH_STOP && (on || bound)) {
        assert_true(on);
        assert_true(matcher_is_accepting(m) || matcher_is_over(m));
        n_documents++;
    } else if (a->finish == FST_FINISH_LENGTH) {
        n_cut++;
        if (bound && k->max_new >= (int64_t)least + (o->gate != NULL))
            fail_msg("case %d, way %d, variant %d: %lld tokens do not do, %u should", k->at,
                     (int)k->way, k->variant, (long long)k->max_new, least);
    } else {
        n_free++;
    }
    if (a->finish == FST_FINISH_STOP && on && cases[k->at].kind == SCHEMA) {
        struct json_doc *d;
        if (json_parse(&d, buf_str(&text), text.len) < 0)
            fail_msg("no JSON: %s: %s", buf_str(&text), fst_error_text());
        json_free(d);
    }
    buf_release(&text);
    matcher_free(m);
}

/* ------------------------------------------------------------------ cells */

static struct ask draw_ask(struct test_rng *r)
{
    struct ask a = {.at = test_below(r, N_CASES), .variant = test_below(r, 420)};
    struct matcher *m;

    a.way = (enum way)test_below(r, cases[a.at].kind == TOOLS ? N_WAYS : N_WAYS - 1);
    assert_int_equal(matcher_new(&m, grammars[a.at], vocab, NULL), FST_OK);
    uint32_t least = matcher_least_tokens(m);
    matcher_free(m);
    /* Often no more than what the shortest document takes, or less. */
    a.max_new = test_below(r, 3) ? MAX_NEW : FST_MAX(1, (int64_t)least + test_below(r, 6) - 1);
    a.max_new = FST_MIN(a.max_new, MAX_NEW);
    return a;
}

static void test_cells(void **state)
{
    fst_engine *e = engine_of_test(
        (struct fst_engine_opts){.verify_mode = "static", .debug_hooks = true, .threads = 1},
        "models/kindling", 1024, 8);
    fst_engine *small = engine_of_test(
        (struct fst_engine_opts){.chunked_prefill_size = 7, .max_total_tokens = 1280, .threads = 2},
        "models/kindling", 1024, 8);
    struct test_rng r = {.s = 31};

    (void)state;
    for (int round = 0; round < test_size(10, 1500, 1); round++) {
        enum { BATCH = 6 };
        struct ask asks[BATCH];
        struct answer want[BATCH], got;
        struct fst_request_opts o[BATCH];
        struct fst_gate gate[BATCH];
        fst_request *req[BATCH];
        for (int i = 0; i < BATCH; i++) {
            asks[i] = draw_ask(&r);
            options(&asks[i], &o[i], &gate[i]);
            o[i].no_drafting = true;
            req[i] = submit(e, &o[i]);
            uint64_t before = mem_count();
            assert_int_equal(fst_request_wait(req[i], 600), FST_OK);
            assert_int_equal(mem_count(), before);
            collect(req[i], &want[i]);
            check(&asks[i], &o[i], &want[i]);
            o[i].no_drafting = false;
            collect(submit(e, &o[i]), &got);
            same(&got, &want[i], &asks[i], "drafting");
            o[i].debug_retract_at = 1 + test_below(&r, (int)FST_MAX((size_t)1, want[i].n));
            collect(submit(e, &o[i]), &got);
            same(&got, &want[i], &asks[i], "retraction");
            o[i].debug_retract_at = 0;
        }
        for (int i = 0; i < BATCH; i++)
            req[i] = submit(e, &o[i]);
        for (int i = 0; i < BATCH; i++) {
            collect(req[i], &got);
            same(&got, &want[i], &asks[i], "batch");
        }
        for (int i = 0; i < BATCH; i++)
            req[i] = submit(small, &o[i]);
        for (int i = 0; i < BATCH; i++) {
            collect(req[i], &got);
            same(&got, &want[i], &asks[i], "chunks and few pages");
        }
        /* Choices: each as if alone. */
        for (int i = 0; i < BATCH; i++) {
            o[i] = o[0];
            o[i].gate = o[0].gate ? &gate[0] : NULL;
            o[i].sampling.choice = (uint32_t)i;
            req[i] = submit(e, &o[i]);
        }
        for (int i = 0; i < BATCH; i++) {
            collect(req[i], &got);
            check(&asks[0], &o[i], &got);
            if (i == 0)
                same(&got, &want[0], &asks[0], "choice");
        }
    }
    printf("%llu documents, %llu cut, %llu free; %llu cells, %llu drafts accepted\n",
           (unsigned long long)n_documents, (unsigned long long)n_cut, (unsigned long long)n_free,
           (unsigned long long)n_cells, (unsigned long long)n_accepted);
    assert_true(n_documents > 0 && n_accepted > 0);
    assert_true(n_cut > 0 || test_size(0, 0, 1));
    fst_engine_close(small);
    fst_engine_close(e);
}

/* Where the model would end its turn in its thoughts, and has no other token in its kept set. */
static void test_ending(void **state)
{
    fst_engine *e = engine_of_test((struct fst_engine_opts){.verify_mode = "static"},
                                   "models/kindling", 1024, 2);
    int n_ends = 0;

    (void)state;
    for (int i = 0; i < 24; i++) {
        struct ask k = {.at = 0, .way = ENDING, .variant = 12 + i, .max_new = MAX_NEW};
        struct fst_request_opts o;
        struct fst_gate gate;
        struct answer free_text, want, got;
        options(&k, &o, &gate);
        o.sampling.temperature = 1;
        o.sampling.top_p = i % 4 == 1 ? 0.9f : 1;
        o.sampling.top_k = i % 4 == 2 ? 1 : -1;
        o.sampling.min_p = i % 4 == 3 ? 0.2f : 0;
        o.sampling.frequency_penalty = 0;
        o.ignore_eos = false;
        o.min_new_tokens = 0;
        o.n_logit_bias = 0;
        o.no_drafting = true;
        collect(submit(e, &o), &want);
        check(&k, &o, &want);
        assert_int_equal(want.finish, FST_FINISH_STOP);
        o.no_drafting = false;
        collect(submit(e, &o), &got);
        same(&got, &want, &k, "drafting");
        o.grammar = NULL;
        collect(submit(e, &o), &free_text);
        n_ends += free_text.n == 1;
    }
    printf("%d ends at once without a grammar\n", n_ends);
    assert_true(n_ends > 12);
    fst_engine_close(e);
}

/* A request may be freed, cancelled or refused at any time; the grammar outlives none of its users. */
static void test_lives(void **state)
{
    fst_engine *e = engine_of_test((struct fst_engine_opts){0}, "models/kindling", 512, 2);
    struct ask a = {.at = 1, .way = THOUGHTS, .max_new = MAX_NEW};
    struct test_rng r = {.s = 77};

    (void)state;
    for (int round = 0; round < 30; round++) {
        struct fst_request_opts o;
        struct fst_gate gate;
        fst_grammar *mine;
        fst_request *req[4];
        options(&a, &o, &gate);
        assert_int_equal(fst_grammar_new(&mine, grammars[a.at], vocab), FST_OK);
        assert_true(fst_grammar_bytes(mine) > grammar_bytes(grammars[a.at]));
        o.grammar = mine;
        for (int i = 0; i < 4; i++)
            req[i] = submit(e, &o);
        fst_grammar_free(mine); /* the requests have it */
        if (test_below(&r, 2))
            fst_request_wait(req[0], 0.001 * test_below(&r, 20));
        for (int i = 0; i < 4; i++)
            fst_request_free(req[i]);
    }
    fst_engine_close(e);
}

/* Of another vocabulary, and a text that is none of its documents'. */
static void test_refused(void **state)
{
    fst_engine *e = engine_of_test((struct fst_engine_opts){0}, "models/kindling", 512, 2);
    struct ask a = {.at = 0, .way = CONTENT, .max_new = 8};
    struct grammar_vocab *other;
    struct fst_request_opts o;
    struct fst_request_view v;
    fst_grammar *wrong;
    fst_request *req;

    (void)state;
    options(&a, &o, NULL);
    assert_int_equal(
        grammar_vocab_new(&other, tok, tokenizer_vocab_size(tok) - 64, 1, PROTOCOL_MARK), FST_OK);
    assert_int_equal(fst_grammar_new(&wrong, grammars[0], other), FST_OK);
    o.grammar = wrong;
    assert_int_equal(fst_request_submit(e, &o, &req), FST_EINVAL);
    assert_non_null(strstr(fst_error_text(), "another vocabulary"));
    fst_grammar_free(wrong);
    grammar_vocab_free(other);
    options(&a, &o, NULL);
    o.grammar_text = "[";
    o.n_grammar_text = 1;
    req = submit(e, &o);
    assert_int_equal(fst_request_wait(req, 600), FST_OK);
    fst_request_get_view(req, &v);
    assert_int_equal(v.finish, FST_FINISH_ERROR);
    assert_int_equal(v.status, FST_EINVAL);
    fst_request_free(req);
    fst_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ending), cmocka_unit_test(test_cells),
                                       cmocka_unit_test(test_lives),
                                       cmocka_unit_test(test_refused)};
    int rc = 1;

    if (tokenizer_load(&tok, "models/kindling/tokenizer.json") < 0 ||
        grammar_vocab_new(&vocab, tok, tokenizer_vocab_size(tok), tokenizer_specials(tok)->eos,
                          PROTOCOL_MARK) < 0 ||
        gate_rules_new(&rules, tok) < 0) {
        fprintf(stderr, "%s\n", fst_error_text());
        return 1;
    }
    for (int i = 0; i < N_WAYS; i++)
        make_prompt((enum way)i);
    for (int i = 0; i < N_CASES; i++)
        make_grammar(i);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < N_CASES; i++) {
        fst_grammar_free(compiled[i]);
        grammar_unref(grammars[i]);
    }
    for (int i = 0; i < N_WAYS; i++) {
        chat_prompt_release(&shapes[i]);
        tokenizer_ids_release(&prompts[i]);
    }
    gate_rules_free(rules);
    grammar_vocab_free(vocab);
    tokenizer_free(tok);
    return rc;
}
