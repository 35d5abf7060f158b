/* prop_engine_text_rounds.c - drafting on and off give the same bits, whatever is accepted where.
 *
 * The drafter is an oracle: it knows what comes and is wrong at chosen places, so every round accepts as many
 * drafts as it is told to.  Tried are all of (position mod 128) x (accepted 0..5), and all three rounds in a
 * row, for each KV layout; the long run tries all of (position mod 128) x (three rounds in a row).  The same
 * behind an MTP block, whose rounds accept 0..3.  The prompts are random ids, sampled at temperature 1 with a seed and greedily. */
#include "support/engine.h"
#include "support/oracle.h"
#include "support/prompts.h"

enum { CONTEXT = 8192, N_TOP = 2, ROUNDS_MAX = 1024, TOKENS_MAX = 6 * ROUNDS_MAX };

static const char *model_dir = "models/kindling", *algorithm = "dspark";
static int gamma_of = 5;
static const char *const layouts[] = {"unified-fp8", "unified-bf16", "paged"};
static struct tokenizer *tok;
static char dir[64];

struct answer {
    int32_t ids[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    struct fst_top_logprob top[TOKENS_MAX * N_TOP];
    size_t n, n_prompt;
    enum fst_finish finish;
    int32_t matched;
    struct fst_spec_stats spec;
};

/* A request, and what its rounds accept. */
struct walk {
    int32_t prompt[2 * ORACLE_MOD + 128];
    size_t n_prompt;
    uint8_t accept[ROUNDS_MAX];
    int n_rounds;
    int64_t n_new; /* tokens that these rounds and the prompt's last row give */
    int temperature;
    uint64_t seed;
    struct answer want;
};

static void walk_init(struct walk *w, int start, const uint8_t *accept, int n, int temperature,
                      struct test_rng *r)
{
    w->n_prompt = (size_t)(ORACLE_MOD + start % ORACLE_MOD);
    for (size_t i = 0; i < w->n_prompt; i++)
        w->prompt[i] = test_below(r, tokenizer_vocab_size(tok));
    assert_true(n <= ROUNDS_MAX);
    memcpy(w->accept, accept, (size_t)n);
    w->n_rounds = n;
    w->n_new = 1;
    for (int i = 0; i < n; i++)
        w->n_new += accept[i] + 1;
    w->temperature = temperature;
    w->seed = test_next(r) >> 11;
}

static void submit(fst_engine *e, const struct walk *w, int64_t max_new, int32_t stop_id,
                   fst_request **out)
{
    struct fst_request_opts o;

    fst_request_opts_default(&o);
    o.ids = w->prompt;
    o.n_ids = w->n_prompt;
    o.max_new_tokens = max_new;
    o.ignore_eos = true;
    o.stop_ids = &stop_id;
    o.n_stop_ids = stop_id >= 0;
    o.sampling.temperature = (float)w->temperature;
    o.sampling.has_seed = true;
    o.sampling.seed = w->seed;
    o.logprobs = true;
    o.top_logprobs = N_TOP;
    if (fst_request_submit(e, &o, out) < 0)
        fail_msg("%s", fst_error_text());
}

static void collect(fst_request *r, struct answer *a)
{
    struct fst_request_view v;

    engine_finished(r, &v);
    memset(a, 0, sizeof *a);
    assert_true(v.n <= TOKENS_MAX);
    a->n = v.n;
    a->n_prompt = v.n_prompt;
    a->finish = v.finish;
    a->matched = v.matched_id;
    a->spec = v.spec;
    memcpy(a->ids, v.ids, v.n * sizeof *v.ids);
    memcpy(a->logprobs, v.logprobs, v.n * sizeof *v.logprobs);
    memcpy(a->top, v.top, v.n * N_TOP * sizeof *v.top);
    fst_request_free(r);
}

static void same_text(const struct answer *a, const struct answer *b)
{
    struct buf x = {0}, y = {0};
    assert_int_equal(tokenizer_decode(tok, a->ids, a->n, true, &x), FST_OK);
    assert_int_equal(tokenizer_decode(tok, b->ids, b->n, true, &y), FST_OK);
    assert_string_equal(buf_str(&x), buf_str(&y));
    buf_release(&x);
    buf_release(&y);
}

/* ids, log-probabilities, alternatives, text, finish and counts of the first n tokens. */
static void compare(const struct answer *got, const struct walk *w, size_t n, const char *where)
{
    const struct answer *want = &w->want;

    for (size_t i = 0, at = 0, round = 0; i < got->n && i < n; i++) {
        if (i == at + 1) {
            at += (round < (size_t)w->n_rounds ? w->accept[round] : 0) + 1u;
            round++;
        }
        if (got->ids[i] != want->ids[i] || memcmp(&got->logprobs[i], &want->logprobs[i], 4) != 0)
            fail_msg("%s: token %zu (round %zu, position %zu) is %d (%.9g), without drafts %d "
                     "(%.9g)",
                     where, i, round, w->n_prompt + i, got->ids[i], (double)got->logprobs[i],
                     want->ids[i], (double)want->logprobs[i]);
    }
    if (got->n != n || got->n_prompt != want->n_prompt ||
        memcmp(got->top, want->top, n * N_TOP * sizeof *got->top) != 0)
        fail_msg("%s: %zu tokens instead of %zu, or alternatives differ", where, got->n, n);
    if (n == want->n)
        same_text(got, want);
}

/* What the walks give without drafting: one engine, all at once. */
static void make_wants(struct walk *w, int n)
{
    fst_engine *e =
        engine_of_test((struct fst_engine_opts){.spec_algorithm = "none"}, model_dir, CONTEXT, 8);
    fst_request *r[64];

    assert_true(n <= 64);
    for (int i = 0; i < n; i++)
        submit(e, &w[i], w[i].n_new, -1, &r[i]);
    for (int i = 0; i < n; i++)
        collect(r[i], &w[i].want);
    fst_engine_close(e);
}

static void write_oracle(const struct walk *w, int n, char path[128])
{
    struct buf b = {0};

    for (int i = 0; i < n; i++)
        oracle_add(&b, w[i].prompt, w[i].n_prompt, w[i].want.ids, w[i].want.n, w[i].accept,
                   w[i].n_rounds);
    oracle_write(&b, dir, "oracle.json");
    buf_release(&b);
    snprintf(path, 128, "%s/oracle.json", dir);
}

static struct fst_engine_opts with_oracle(const char *path)
{
    return (struct fst_engine_opts){.spec_algorithm = algorithm,
                                    .verify_mode = "static",
                                    .debug_hooks = true,
                                    .debug_drafter = path};
}

/* The rounds were what they were meant to be: else equal bits would prove little. */
static void check_rounds(const struct answer *a, const struct walk *w)
{
    uint64_t accepted = 0, at_least[FST_SPEC_MAX] = {0};

    for (int i = 0; i < w->n_rounds; i++) {
        accepted += w->accept[i];
        for (int k = 0; k < w->accept[i]; k++)
            at_least[k]++;
    }
    assert_int_equal(a->spec.verify_steps, w->n_rounds);
    assert_int_equal(a->spec.accepted, accepted);
    assert_memory_equal(a->spec.accepted_by_position, at_least, sizeof at_least);
}

static void run_walks(const struct walk *w, int n, const char *layout)
{
    static struct answer got;
    char path[128], where[96];
    fst_request *r[64];

    write_oracle(w, n, path);
    struct fst_engine_opts o = with_oracle(path);
    o.kv_layout = layout;
    fst_engine *e = engine_of_test(o, model_dir, CONTEXT, 8);
    for (int i = 0; i < n; i++)
        submit(e, &w[i], w[i].n_new, -1, &r[i]);
    for (int i = 0; i < n; i++) {
        snprintf(where, sizeof where, "%s, walk %d", layout, i);
        collect(r[i], &got);
        compare(&got, &w[i], w[i].want.n, where);
        check_rounds(&got, &w[i]);
    }
    fst_engine_close(e);
}

/* 768 rounds: every (position mod 128, accepted).  216 and two: every three in a row.  MTP: 512, 64. */
static void test_all(void **state)
{
    struct walk *w = calloc(2, sizeof *w);
    struct test_rng r = {.s = 11};
    uint8_t triples[ROUNDS_MAX], *all;
    bool seen[ORACLE_MOD][ORACLE_CHOICES_MAX] = {{false}};
    bool row[ORACLE_CHOICES_MAX][ORACLE_CHOICES_MAX][ORACLE_CHOICES_MAX] = {{{false}}};
    int n, pos, found = 0, n_triples = oracle_triples(triples, ROUNDS_MAX), c = oracle_choices;

    (void)state;
    triples[n_triples] = triples[0]; /* the list is circular */
    triples[n_triples + 1] = triples[1];
    n_triples += 2;
    for (int i = 2; i < n_triples; i++)
        row[triples[i - 2]][triples[i - 1]][triples[i]] = true;
    for (int i = 0; i < c * c * c; i++)
        found += row[i / c / c][i / c % c][i % c];
    assert_int_equal(found, c * c * c);
    all = oracle_circuit(0, 37, &n);
    pos = 37;
    for (int i = 0; i < n; i++) {
        seen[pos][all[i]] = true;
        pos = (pos + all[i] + 1) % ORACLE_MOD;
    }
    for (int i = 0; i < ORACLE_MOD * c; i++)
        assert_true(seen[i / c][i % c]);
    walk_init(&w[0], 37, all, test_size(n, n, 60), 1, &r);
    walk_init(&w[1], 101, triples, test_size(n_triples, n_triples, 40), 0, &r);
    free(all);
    make_wants(w, 2);
    for (size_t l = 0; l < FST_COUNT(layouts); l++) {
        run_walks(w, 2, layouts[l]);
        printf("%s: %d rounds by position, %d by rounds in a row\n", layouts[l], w[0].n_rounds,
               w[1].n_rounds);
    }
    free(w);
}

/* Every (position mod 128, three rounds in a row): 27,648 rounds (MTP: 8,192) in pieces that overlap by two. */
static void test_positions_of_triples(void **state)
{
    enum { PIECE = 900, AT_ONCE = 8 };
    struct walk *w = calloc(AT_ONCE, sizeof *w);
    struct test_rng r = {.s = 12};
    int n, pos = 0, n_walks = 0, n_done = 0;
    uint8_t *all = oracle_circuit(2, 0, &n);
    int most = test_size(PIECE, n, 0);

    (void)state;
    assert_int_equal(n, ORACLE_MOD * oracle_choices * oracle_choices * oracle_choices);
    /* the rounds in a row that lead to a piece's first must be in it too */
    for (int at = 0; at < most;) {
        int len = FST_MIN(PIECE, most - at);
        walk_init(&w[n_walks], pos, all + at, len, n_walks & 1, &r);
        n_walks++;
        for (int i = 0; i < len - 2; i++)
            pos = (pos + all[at + i] + 1) % ORACLE_MOD;
        n_done += len;
        at += at + len < most ? len - 2 : len;
        if (n_walks < AT_ONCE && at < most)
            continue;
        make_wants(w, n_walks);
        for (size_t l = 0; l < FST_COUNT(layouts); l++)
            if (l == 0 || test_size(0, !getenv("FST_TEST_DEVICE"), 0))
                run_walks(w, n_walks, layouts[l]);
        n_walks = 0;
    }
    printf("%d rounds\n", n_done);
    free(all);
    free(w);
}

/* The end falls on every place of a block that is accepted whole, by length and by a stop id. */
static void test_ends_inside(void **state)
{
    enum { N = 14 };
    static struct answer got;
    struct walk *w = calloc(1, sizeof *w);
    struct test_rng r = {.s = 13};
    uint8_t whole[8];
    char path[128];

    (void)state;
    memset(whole, gamma_of, sizeof whole);
    walk_init(w, 5, whole, 8, 1, &r);
    make_wants(w, 1);
    write_oracle(w, 1, path);
    fst_engine *e = engine_of_test(with_oracle(path), model_dir, CONTEXT, 8);
    for (int n = 1; n <= N; n++) {
        fst_request *by_length, *by_id;
        int32_t id = w->want.ids[n - 1];
        size_t first = 0;
        while (w->want.ids[first] != id)
            first++;
        submit(e, w, n, -1, &by_length);
        submit(e, w, w->n_new, id, &by_id);
        collect(by_length, &got);
        compare(&got, w, (size_t)n, "length");
        assert_int_equal(got.finish, FST_FINISH_LENGTH);
        collect(by_id, &got);
        compare(&got, w, first + 1, "stop id");
        assert_int_equal(got.finish, FST_FINISH_STOP);
        assert_int_equal(got.matched, id);
    }
    fst_engine_close(e);
    free(w);
}

/* The drafter's own drafts, rejected at one place in every round, in batches of 1 to 9. */
static void test_forced_rejection(void **state)
{
    enum { N = 9 };
    static struct answer got;
    struct walk *w = calloc(N, sizeof *w);
    struct test_rng r = {.s = 14};
    uint8_t none[40] = {0};

    (void)state;
    for (int i = 0; i < N; i++)
        walk_init(&w[i], 13 * i, none, test_size(16, 40, 10), i & 1, &r);
    make_wants(w, N);
    for (int k = 1; k <= gamma_of; k++) {
        struct fst_engine_opts o = {.spec_algorithm = algorithm,
                                    .verify_mode = "static",
                                    .debug_hooks = true,
                                    .debug_reject_at = k};
        fst_engine *e = engine_of_test(o, model_dir, CONTEXT, N);
        int most = test_size(N, N, 2);
        for (int batch = 1; batch <= most; batch++) {
            fst_request *req[N];
            for (int i = 0; i < batch; i++)
                submit(e, &w[i], w[i].n_new, -1, &req[i]);
            for (int i = 0; i < batch; i++) {
                collect(req[i], &got);
                compare(&got, &w[i], w[i].want.n, "forced rejection");
                for (int at = k - 1; at < gamma_of; at++)
                    assert_int_equal(got.spec.accepted_by_position[at], 0);
            }
        }
        fst_engine_close(e);
    }
    free(w);
}

/* The same behind an MTP block. */
static void as_mtp(void (*test)(void **), void **state)
{
    algorithm = "mtp";
    gamma_of = 3;
    oracle_choices = gamma_of + 1;
    test(state);
    algorithm = "dspark";
    gamma_of = 5;
    oracle_choices = gamma_of + 1;
}

static void test_mtp_all(void **state)
{
    as_mtp(test_all, state);
}

static void test_mtp_positions_of_triples(void **state)
{
    as_mtp(test_positions_of_triples, state);
}

static void test_mtp_ends_inside(void **state)
{
    as_mtp(test_ends_inside, state);
}

static void test_mtp_forced_rejection(void **state)
{
    as_mtp(test_forced_rejection, state);
}

static int load(void **state)
{
    (void)state;
    tmpdir_make(dir, sizeof dir);
    if (tokenizer_load(&tok, "models/kindling/tokenizer.json") < 0) {
        print_error("%s\n", fst_error_text());
        return -1;
    }
    return 0;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tok);
    tmpdir_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all),
                                       cmocka_unit_test(test_positions_of_triples),
                                       cmocka_unit_test(test_ends_inside),
                                       cmocka_unit_test(test_forced_rejection),
                                       cmocka_unit_test(test_mtp_all),
                                       cmocka_unit_test(test_mtp_positions_of_triples),
                                       cmocka_unit_test(test_mtp_ends_inside),
                                       cmocka_unit_test(test_mtp_forced_rejection)};
    return cmocka_run_group_tests(tests, load, unload);
}
