/* test_engine_rules.c - bias, penalties and masks against a plain reference; standing anywhere; a forced retraction
 * changes nothing. */
#include "support/engine.h"

#include <math.h>

#include "engine/rules.h"
#include "sample/sample.h"

enum { VOCAB = 97, N_PROMPT = 40, N_NEW = 60 };

/* ------------------------------------------------------------------ a grammar of the test */

/* Behind id i the ids i+1 .. i+k are legal (modulo VOCAB), where k is the room, 1 to 9. */
struct toy {
    int32_t last;
    int n_taken, n_resets;
};

static int width(int64_t room)
{
    return (int)FST_MIN(FST_MAX(room, 1), 9);
}

static enum fst_status toy_mask(void *ud, int64_t room, uint32_t *words)
{
    const struct toy *t = ud;
    memset(words, 0, (size_t)div_up(VOCAB, 32) * sizeof *words);
    for (int k = 1; k <= width(room); k++) {
        int v = (t->last + k) % VOCAB;
        words[v / 32] |= UINT32_C(1) << v % 32;
    }
    return FST_OK;
}

static enum fst_status toy_take(void *ud, int32_t id)
{
    struct toy *t = ud;
    t->last = id;
    t->n_taken++;
    return FST_OK;
}

static void toy_reset(void *ud)
{
    struct toy *t = ud;
    *t = (struct toy){.n_resets = t->n_resets + 1};
}

/* ------------------------------------------------------------------ the reference */

static void reference(const struct fst_request_opts *o, bool masked, const int32_t *ids, int n,
                      float *l)
{
    const struct fst_sampling *s = &o->sampling;

    for (size_t i = 0; i < o->n_logit_bias; i++)
        l[o->logit_bias[i].id] = l[o->logit_bias[i].id] + o->logit_bias[i].bias;
    for (int v = 0; v < VOCAB; v++) {
        int in_answer = 0, anywhere = 0;
        for (int i = 0; i < n; i++) {
            anywhere += ids[i] == v;
            in_answer += i >= N_PROMPT && ids[i] == v;
        }
        if (anywhere && l[v] > 0)
            l[v] = l[v] / s->repetition_penalty;
        else if (anywhere)
            l[v] = l[v] * s->repetition_penalty;
        if (in_answer) {
            l[v] = l[v] - s->frequency_penalty * (float)in_answer;
            l[v] = l[v] - s->presence_penalty;
        }
        int from = n > N_PROMPT ? ids[n - 1] : 0;
        int ahead = (v - from + VOCAB - 1) % VOCAB + 1;
        if (masked && ahead > width(N_PROMPT + N_NEW - n))
            l[v] = -INFINITY;
    }
}

static void test_arithmetic(void **state)
{
    static uint64_t memory[2048];
    struct fst_logit_bias bias[3];
    struct test_rng r = {.s = 5};
    int32_t ids[N_PROMPT + N_NEW];

    (void)state;
    for (int round = 0; round < test_size(400, 4000, 100); round++) {
        struct fst_request_opts o;
        struct toy toy = {0};
        struct rules_mask mask = {
            .mask = toy_mask, .take = toy_take, .reset = toy_reset, .ud = &toy};
        bool masked = round % 3 == 0;
        struct rules rules;
        float l[VOCAB], want[VOCAB];

        fst_request_opts_default(&o);
        assert_false(rules_wanted(&o, NULL));
        if (round & 1)
            o.sampling.presence_penalty = (float)test_below(&r, 4001) / 1000 - 2;
        if (round & 2)
            o.sampling.frequency_penalty = (float)test_below(&r, 4001) / 1000 - 2;
        if (round & 4)
            o.sampling.repetition_penalty = (float)(1 + test_below(&r, 2000)) / 1000;
        if (round & 8) {
            for (int i = 0; i < 3; i++)
                bias[i] = (struct fst_logit_bias){30 * i + test_below(&r, 30),
                                                  (float)test_below(&r, 201) - 100};
            o.logit_bias = bias;
            o.n_logit_bias = 3;
        }
        for (int i = 0; i < N_PROMPT + N_NEW; i++)
            ids[i] = test_below(&r, round % 5 ? VOCAB : 7);
        if (!rules_wanted(&o, masked ? &mask : NULL))
            continue;
        size_t bytes = rules_bytes(&o, masked ? &mask : NULL, VOCAB, N_PROMPT, N_NEW);
        assert_true(bytes <= sizeof memory);
        memset(memory, 0xa5, sizeof memory);
        rules_init(&rules, &o, masked ? &mask : NULL, VOCAB, N_PROMPT, N_NEW, memory);
        memset(bias, 0, sizeof bias[0]); /* it was copied */
        if (o.n_logit_bias)
            bias[0] = rules.bias[0];
        for (int step = 0; step < 12; step++) {
            /* on by some, and back now and then, as an audit does */
            int n = step % 4 == 3 ? test_below(&r, N_NEW)
                                  : FST_MAX((int)rules.at - N_PROMPT, 0) + test_below(&r, 6);
            n = N_PROMPT + FST_MIN(n, N_NEW - 1);
            assert_int_equal(rules_to(&rules, ids, n), FST_OK);
            for (int v = 0; v < VOCAB; v++)
                l[v] = want[v] = (float)test_below(&r, 20001) / 1000 - 10;
            reference(&o, masked, ids, n, want);
            assert_int_equal(rules_adjust(&rules, l), FST_OK);
            for (int v = 0; v < VOCAB; v++)
                if (l[v] != want[v])
                    fail_msg("round %d, %d ids, id %d: %.9g instead of %.9g", round, n, v,
                             (double)l[v], (double)want[v]);
            if (masked)
                assert_int_equal(toy.n_taken, n - N_PROMPT);
        }
        for (size_t i = bytes; i < sizeof memory; i++)
            assert_int_equal(((uint8_t *)memory)[i], 0xa5);
    }
}

/* ------------------------------------------------------------------ in an engine */

static fst_engine *engine;

struct watched {
    int64_t n_seen;
    int32_t force;
};

/* Forces one id behind the 9th token, and ends behind the 20th: its last two do not belong to it. */
static struct fst_verdict on_token(void *ud, int64_t n, int32_t id, enum fst_finish ends)
{
    struct watched *w = ud;
    struct fst_verdict v = {.force = n == 9 ? w->force : -1, .stop = n == 20, .keep = n - 2};

    assert_int_equal(id < 0, n == 0);
    assert_int_equal(ends, FST_FINISH_NONE);
    assert_int_equal(n, w->n_seen);
    w->n_seen++;
    return v;
}

static const int32_t prompt[] = {0, 70, 71, 72, 90, 91, 70, 71};

static void options(struct fst_request_opts *o, int option)
{
    static const struct fst_logit_bias bias[] = {{70, 8}, {71, -100}, {1, -4}};
    static const int32_t forced[] = {80, 81, 82, 80, 81, 82};

    fst_request_opts_default(o);
    o->ids = prompt;
    o->n_ids = FST_COUNT(prompt);
    o->max_new_tokens = 24;
    o->logprobs = true;
    o->sampling.temperature = option & 1 ? 1 : 0;
    o->sampling.has_seed = true;
    o->sampling.seed = 7;
    o->ignore_eos = true;
    if (option & 2) {
        o->sampling.presence_penalty = 1.5f;
        o->sampling.frequency_penalty = 1;
        o->sampling.repetition_penalty = 1.75f;
    }
    if (option & 4) {
        o->logit_bias = bias;
        o->n_logit_bias = FST_COUNT(bias);
    }
    if (option & 8) {
        o->force_ids = forced;
        o->n_force_ids = FST_COUNT(forced);
    }
    o->top_logprobs = 2;
    if (option == 7)
        o->sampling.top_p = 0.9f;
}

struct answer {
    size_t n;
    int32_t ids[24];
    float logprobs[24];
    struct fst_top_logprob top[48];
    enum fst_finish finish;
};

static void run(struct fst_request_opts *o, struct answer *a)
{
    struct fst_request_view v;
    fst_request *r;

    if (fst_request_submit(engine, o, &r) < 0)
        fail_msg("%s", fst_error_text());
    engine_finished(r, &v);
    *a = (struct answer){.n = v.n, .finish = v.finish};
    memcpy(a->ids, v.ids, v.n * sizeof *v.ids);
    memcpy(a->logprobs, v.logprobs, v.n * sizeof *v.logprobs);
    memcpy(a->top, v.top, 2 * v.n * sizeof *v.top);
    fst_request_free(r);
}

static void test_retraction(void **state)
{
    struct fst_engine_stats before, after;
    int n_retracted = 0;

    (void)state;
    fst_engine_get_stats(engine, &before);
    for (int option = 0; option < 16; option++) {
        struct fst_request_opts o;
        struct answer want, got;
        options(&o, option);
        run(&o, &want);
        assert_int_equal(want.n, 24);
        for (int at = 1; at < 24; at++) {
            o.debug_retract_at = at;
            o.no_drafting = at % 2;
            o.cache_salt[0] = (uint64_t)(at / 3 % 3); /* others' prefixes, or none */
            run(&o, &got);
            n_retracted++;
            if (memcmp(&got, &want, sizeof got) != 0)
                fail_msg("option %d: a retraction behind %d changes the answer", option, at);
        }
    }
    fst_engine_get_stats(engine, &after);
    /* Behind the last token of a block that ends the answer there is nothing to take away. */
    assert_true(after.retracted - before.retracted > (uint64_t)n_retracted * 3 / 4);
}

/* An option that does nothing would pass everything else. */
static void test_effect(void **state)
{
    struct fst_request_opts o;
    struct answer plain, got;

    (void)state;
    options(&o, 0);
    run(&o, &plain);
    for (int option = 2; option < 16; option *= 2) {
        options(&o, option);
        run(&o, &got);
        assert_memory_not_equal(got.ids, plain.ids, sizeof got.ids);
        if (option == 4)
            for (size_t i = 0; i < got.n; i++)
                assert_int_not_equal(got.ids[i], 71);
    }
    assert_int_equal(got.ids[0], 80);
    assert_int_equal(got.ids[5], 82);
    /* Reported log-probabilities are of the raw logits: a bias shows in the draw, not in them. */
    options(&o, 4);
    run(&o, &got);
    size_t same = 0;
    while (same < got.n && got.ids[same] == plain.ids[same])
        same++;
    assert_memory_equal(got.top, plain.top, 2 * sizeof *got.top);
    assert_memory_equal(got.logprobs, plain.logprobs, same * sizeof *got.logprobs);
}

static void test_watcher(void **state)
{
    struct answer first;

    (void)state;
    for (int round = 0; round < 8; round++) {
        struct watched w = {.force = 77};
        struct fst_request_opts o;
        struct answer got;
        options(&o, round & 1 ? 3 : 1);
        o.no_drafting = round & 2;
        o.debug_retract_at = round & 4 ? 6 + round : 0;
        o.on_token = on_token;
        o.on_token_ud = &w;
        run(&o, &got);
        assert_int_equal(got.finish, FST_FINISH_WATCH);
        assert_int_equal(got.n, 20);
        assert_int_equal(got.ids[9], 77);
        assert_int_equal(w.n_seen, 21);
        if (round > 1)
            continue;
        first = got;
        /* What is kept ends at the cut: 8 of the prompt, 18 of the answer, and one to be computed again. */
        struct fst_request_view v;
        fst_request *r;
        int32_t ids[64];
        memcpy(ids, prompt, sizeof prompt);
        memcpy(ids + FST_COUNT(prompt), first.ids, first.n * sizeof *ids);
        o.ids = ids;
        o.n_ids = FST_COUNT(prompt) + first.n;
        o.on_token = NULL;
        o.max_new_tokens = 1;
        assert_int_equal(fst_request_submit(engine, &o, &r), FST_OK);
        engine_finished(r, &v);
        assert_true(v.n_cached <= FST_COUNT(prompt) + 18);
        assert_true(v.n_cached >= FST_COUNT(prompt));
        fst_request_free(r);
    }
}

/* Who goes on from another one's prompt waits for it, whatever becomes of that one. */
static void test_after(void **state)
{
    static int32_t ids[300];
    struct fst_request_view v;
    fst_request *first, *second;

    (void)state;
    for (int cancelled = 0; cancelled < 2; cancelled++)
        for (int round = 0; round < 20; round++) {
            struct fst_request_opts o;
            options(&o, 1);
            for (int i = 0; i < 300; i++)
                ids[i] = 100 + (i * 7 + round * 13 + cancelled) % 1000;
            o.ids = ids;
            o.n_ids = 300;
            o.max_new_tokens = 3;
            assert_int_equal(fst_request_submit(engine, &o, &first), FST_OK);
            o.after = first;
            o.sampling.choice = 1;
            assert_int_equal(fst_request_submit(engine, &o, &second), FST_OK);
            if (cancelled)
                fst_request_free(first);
            engine_finished(second, &v);
            assert_int_equal(v.n, 3);
            if (!cancelled) {
                assert_int_equal(v.n_cached, 299);
                fst_request_free(first);
            }
            fst_request_free(second);
        }
}

static void refused(const struct fst_request_opts *o, const char *part)
{
    fst_request *r;
    enum fst_status rc = fst_request_submit(engine, o, &r);

    if (rc != FST_EINVAL || !strstr(fst_error_text(), part))
        fail_msg("status %d: \"%s\" does not say \"%s\"", rc, fst_error_text(), part);
}

static void test_refused(void **state)
{
    struct fst_logit_bias bias = {-1, 0};
    struct fst_request_opts o;

    (void)state;
    options(&o, 0);
    o.sampling.presence_penalty = -2.1f;
    refused(&o, "presence_penalty must be in [-2, 2], got -2.1");
    o.sampling.presence_penalty = NAN;
    refused(&o, "presence_penalty");
    options(&o, 0);
    o.sampling.frequency_penalty = 3;
    refused(&o, "frequency_penalty must be in [-2, 2], got 3");
    options(&o, 0);
    o.sampling.repetition_penalty = 2.5f;
    refused(&o, "repetition_penalty must be in (0, 2], got 2.5");
    options(&o, 0);
    o.logit_bias = &bias;
    o.n_logit_bias = 1;
    refused(&o, "id -1, out of range");
    bias = (struct fst_logit_bias){1, 101};
    refused(&o, "logit_bias of id 1 must be in [-100, 100], got 101");
    options(&o, 0);
    o.debug_retract_at = -1;
    refused(&o, "debug.retract_at must be 0 or more");
    options(&o, 8);
    o.force_ids = &(int32_t){1 << 20};
    o.n_force_ids = 1;
    refused(&o, "debug.force_ids[0] is 1048576, out of range");

    fst_engine *hooked = engine;
    engine = engine_of_test((struct fst_engine_opts){.spec_algorithm = "none"}, "models/kindling",
                            256, 1);
    refused(&o, "debug.force_ids needs --debug-hooks");
    options(&o, 0);
    o.debug_retract_at = 3;
    refused(&o, "debug.retract_at needs --debug-hooks");
    fst_engine_close(engine);
    engine = hooked;
}

static int open_engine(void **state)
{
    (void)state;
    engine = engine_of_test((struct fst_engine_opts){.debug_hooks = true, .verify_mode = "static"},
                            "models/kindling", 512, 4);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    fst_engine_close(engine);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic), cmocka_unit_test(test_retraction),
        cmocka_unit_test(test_effect),     cmocka_unit_test(test_watcher),
        cmocka_unit_test(test_after),      cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
