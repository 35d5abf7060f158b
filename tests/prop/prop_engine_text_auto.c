/* prop_engine_text_auto.c - the planner inside the engine, on the bundled model: lengths against brute force on
 * live confidences; a table of costs decides who drafts; what a request without drafts leaves behind. */
#include <math.h>

#include "base/file.h"
#include "engine/draft.h"
#include "support/engine.h"
#include "support/prompts.h"
#include "support/tmpdir.h"

enum { N_PROMPTS = 8, MAX_NEW = 48, CONTEXT = 1024, GAMMA = 5 };

static const char *model_dir = "models/kindling";
static struct tokenizer_ids prompts[N_PROMPTS];
static char dir[256], table[300];

static fst_engine *open_engine(const char *mode, bool measure, const char *cost_path)
{
    return engine_of_test((struct fst_engine_opts){.spec_algorithm = mode ? "dspark" : "none",
                                                   .verify_mode = mode,
                                                   .measure_cost = measure,
                                                   .cost_path = cost_path,
                                                   .threads = 1},
                          model_dir, CONTEXT, 4);
}

static fst_request *submit(fst_engine *e, const int32_t *ids, size_t n, int n_new,
                           float temperature)
{
    struct fst_request_opts o;
    fst_request *r;
    fst_request_opts_default(&o);
    o.ids = ids;
    o.n_ids = n;
    o.max_new_tokens = n_new;
    o.ignore_eos = true;
    o.sampling.temperature = temperature;
    o.sampling.has_seed = true;
    o.sampling.seed = 3;
    if (fst_request_submit(e, &o, &r) < 0)
        fail_msg("%s", fst_error_text());
    return r;
}

/* Answers of all prompts, four at a time, half of them at temperature 1; compared with `want`, or kept there. */
static void answers(fst_engine *e, int32_t (*want)[MAX_NEW], bool keep)
{
    for (int i = 0; i < N_PROMPTS; i += 4) {
        fst_request *r[4];
        for (int k = 0; k < 4; k++)
            r[k] = submit(e, prompts[i + k].id, prompts[i + k].n, MAX_NEW, (float)(k & 1));
        for (int k = 0; k < 4; k++) {
            struct fst_request_view v;
            engine_finished(r[k], &v);
            assert_int_equal(v.n, MAX_NEW);
            if (keep)
                memcpy(want[i + k], v.ids, sizeof want[i + k]);
            assert_memory_equal(v.ids, want[i + k], sizeof want[i + k]);
            fst_request_free(r[k]);
        }
    }
}

static int32_t plain[N_PROMPTS][MAX_NEW], plain0[N_PROMPTS][MAX_NEW]; /* all at temperature 0 */

/* ------------------------------------------------------------------ lengths */

static struct seen {
    int n, n_table;
    double worst, sum_early, worst_early;
} seen;

static double brute_force(const struct spec_ask *ask, int n, double base, const double *seconds)
{
    int len[4] = {0};
    double best = 0;
    for (;;) {
        double tokens = base;
        int extra = 0, i = 0;
        for (int a = 0; a < n; a++)
            for (int j = 0; j < len[a]; j++, extra++)
                tokens += ask[a].survive[j];
        best = fmax(best, tokens / seconds[extra]);
        while (i < n && ++len[i] > ask[i].n_max)
            len[i++] = 0;
        if (i == n)
            return best;
    }
}

static void look(void *ud, const struct spec_ask *ask, int n, double base, const double *seconds,
                 int n_seconds)
{
    struct seen *s = ud;
    struct spec_ask copy[4];
    s->n++;
    if (!seconds || n > 4)
        return;
    double best = brute_force(ask, n, base, seconds);
    double got = spec_plan_objective(ask, n, base, seconds, n_seconds);
    memcpy(copy, ask, (size_t)n * sizeof *ask);
    double early = spec_plan_early_stop(copy, n, base, seconds, n_seconds).objective;
    s->n_table++;
    s->worst = fmin(s->worst, got / best);
    s->sum_early += early / best;
    s->worst_early = fmin(s->worst_early, early / best);
}

static void test_objective(void **state)
{
    (void)state;
    seen = (struct seen){.worst = 1, .worst_early = 1};
    draft_seams = (struct draft_seams){.planned = look, .ud = &seen};
    fst_engine *e = open_engine("compact", true, NULL);
    answers(e, plain, false);
    fst_engine_close(e);
    draft_seams = (struct draft_seams){0};
    printf("%d plans on live confidences and this machine's table: at worst %.6f of brute force; "
           "early stop "
           "%.4f on average, %.4f at worst\n",
           seen.n_table, seen.worst, seen.sum_early / seen.n_table, seen.worst_early);
    assert_true(seen.n_table > 10);
    assert_true(seen.worst >= 0.99);
}

/* ------------------------------------------------------------------ costs */

static void total(fst_engine *e, struct fst_engine_stats *s)
{
    fst_engine_get_stats(e, s);
    fst_engine_close(e);
}

/* The file that closing writes, with another price for drafting. */
static void reprice(double step_s, double row_s, double draft_s)
{
    struct buf b = {0};
    char *at;
    assert_int_equal(file_read(&b, table, 0), FST_OK);
    at = strstr(buf_str(&b), "\"inject_call_seconds\"");
    assert_non_null(at);
    b.len = (size_t)(at - b.data);
    buf_printf(&b,
               "\"inject_call_seconds\": %g, \"inject_row_seconds\": %g, \"context_seconds\": 0, "
               "\"points\": [",
               draft_s / 10, draft_s / 100);
    for (int p = 0; p < 3; p++) {
        int r = 1 << p;
        buf_printf(&b, "%s{\"requests\": %d, \"rows\": [], \"step_seconds\": [", p ? "," : "", r);
        for (int k = 0; k <= GAMMA; k++)
            buf_printf(&b, "%s%g", k ? "," : "", step_s + row_s * r * (1 + k));
        buf_puts(&b, "], \"draft_seconds\": [");
        for (int k = 0; k < GAMMA; k++)
            buf_printf(&b, "%s%g", k ? "," : "", draft_s * (1 + 0.1 * k));
        buf_puts(&b, "]}");
    }
    buf_puts(&b, "]}");
    assert_int_equal(file_write(table, b.data, b.len), FST_OK);
    buf_release(&b);
}

static void test_table(void **state)
{
    struct fst_engine_stats s;
    struct fst_engine_info info;
    (void)state;
    fst_engine *e =
        open_engine("auto", true, table); /* none there: measured, and written at the end */
    fst_engine_get_info(e, &info);
    assert_true(info.cost_measured);
    assert_string_equal(info.sts_path, "models/kindling/dspark-sts.json");
    answers(e, plain, false);
    fst_engine_close(e);

    reprice(1, 1e-5, 1e-4); /* a step takes a second, whatever is in it: everybody drafts */
    e = open_engine("auto", false, table);
    fst_engine_get_info(e, &info);
    assert_true(info.cost_measured);
    answers(e, plain, false);
    total(e, &s);
    assert_true(s.spec.verify_steps > 20);
    assert_int_equal(s.spec_skipped[FST_SPEC_SKIP_COST], 0);

    e = open_engine("auto", true, table); /* closing has written what was learned: it holds here */
    fst_engine_get_info(e, &info);
    assert_true(info.cost_measured);
    fst_engine_close(e);

    reprice(1e-9, 1e-9, 10); /* a draft costs as much as ten billion steps: nobody does */
    e = open_engine("auto", false, table);
    answers(e, plain, false);
    total(e, &s);
    assert_int_equal(s.spec.verify_steps, 0);
    assert_int_equal(s.draft_steps, 0);
    assert_true(s.spec_skipped[FST_SPEC_SKIP_COST] > 100);
    assert_true(s.held_rows > 100); /* and a round without costs nothing: what is held stays held */
    assert_true(s.resumed_rows < 2 * 128);

    /* Of another machine: ignored, which a log line says; measured anew where that is asked for. */
    struct buf b = {0};
    assert_int_equal(file_read(&b, table, 0), FST_OK);
    char *at = strstr(buf_str(&b), "\"threads\": ");
    assert_non_null(at);
    at[strlen("\"threads\": ")] = '9';
    assert_int_equal(file_write(table, b.data, b.len), FST_OK);
    buf_release(&b);
    e = open_engine("auto", false, table);
    fst_engine_get_info(e, &info);
    assert_false(info.cost_measured);
    answers(e, plain, false);
    fst_engine_close(e);
}

/* ------------------------------------------------------------------ windows */

static int block_now;

static int all_or_none(void *ud, int64_t n_committed, int gamma)
{
    (void)ud;
    (void)n_committed;
    return FST_MIN(block_now, gamma);
}

/* A first turn that never drafts leaves a snapshot without the drafter's rows; the second turn goes on from
 * there, drafts once it has a window of its own, and says what it says without drafts. */
static void test_resume(void **state)
{
    enum { FIRST = 60, SECOND = 300 };
    static int32_t turn[CONTEXT], want[SECOND];
    struct fst_request_view v;
    struct fst_engine_stats s, before;
    size_t n = prompts[0].n;
    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        draft_seams = (struct draft_seams){.drafting = all_or_none};
        block_now = 0;
        fst_engine *e = open_engine(pass ? "auto" : NULL, false, NULL);
        fst_request *r = submit(e, prompts[0].id, n, FIRST, 0);
        engine_finished(r, &v);
        memcpy(turn, prompts[0].id, n * sizeof *turn);
        memcpy(turn + n, v.ids, FIRST * sizeof *turn);
        turn[n + FIRST] = prompts[1].id[prompts[1].n - 1];
        fst_request_free(r);
        fst_engine_get_stats(e, &before);
        block_now = GAMMA;
        r = submit(e, turn, n + FIRST + 1, SECOND, 0);
        engine_finished(r, &v);
        assert_int_equal(v.n, SECOND);
        assert_true(v.n_cached >= n + FIRST - 1);
        if (!pass)
            memcpy(want, v.ids, sizeof want);
        assert_memory_equal(v.ids, want, sizeof want);
        fst_request_free(r);
        total(e, &s);
        if (!pass)
            continue;
        assert_int_equal(before.spec.verify_steps, 0);
        uint64_t waited = s.spec_skipped[FST_SPEC_SKIP_WINDOW];
        assert_true(waited >= 120 &&
                    waited <= 130); /* plain steps, until 128 positions are there */
        assert_true(s.spec.verify_steps > 10);
        assert_true(s.resumed_rows >= 128);
        assert_true(s.spec.accept_length > 1.3);
        printf("%llu steps without, then accept length %.2f\n", (unsigned long long)waited,
               s.spec.accept_length);
    }
    draft_seams = (struct draft_seams){0};
}

/* On and off every few tokens: as many are accepted as when it drafts all the time, within what chance does. */
static void test_on_and_off(void **state)
{
    double length[2];
    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        struct fst_engine_stats s;
        draft_seams = (struct draft_seams){0};
        fst_engine *e = open_engine(pass ? "auto" : "static", false, NULL);
        draft_seams = (struct draft_seams){.drafting = all_or_none};
        block_now = GAMMA;
        for (int i = 0; i < N_PROMPTS; i++) {
            fst_request *r = submit(e, prompts[i].id, prompts[i].n, 200, 0);
            struct fst_request_view v;
            do {
                block_now = pass && block_now ? 0 : GAMMA;
            } while (fst_request_wait(r, 0.004) == FST_ETIMEOUT);
            fst_request_get_view(r, &v);
            assert_int_equal(v.finish, FST_FINISH_LENGTH);
            fst_request_free(r);
        }
        total(e, &s);
        length[pass] = s.spec.accept_length;
        printf("accept length %.3f in %llu rounds\n", s.spec.accept_length,
               (unsigned long long)s.spec.verify_steps);
        assert_true(s.spec.verify_steps > 50);
    }
    draft_seams = (struct draft_seams){0};
    assert_true(length[1] > 0.75 * length[0]);
}

/* ------------------------------------------------------------------ in company */

/* Rounds and accepted drafts of a request do not depend on who runs beside it: drafts follow from its own tokens
 * and windows alone.  And no position of the block falls off against the one before it. */
static void test_company(void **state)
{
    struct fst_spec_stats alone[N_PROMPTS], sum = {0};
    fst_engine *e;
    (void)state;
    for (int together = 0; together < 2; together++) {
        fst_request *r[N_PROMPTS];
        e = engine_of_test((struct fst_engine_opts){.verify_mode = "static"}, model_dir, CONTEXT,
                           N_PROMPTS);
        for (int i = 0; i < N_PROMPTS; i++) {
            r[i] = submit(e, prompts[i].id, prompts[i].n, MAX_NEW, (float)(i & 1));
            if (!together)
                assert_int_equal(fst_request_wait(r[i], 600), FST_OK);
        }
        for (int i = 0; i < N_PROMPTS; i++) {
            struct fst_request_view v;
            engine_finished(r[i], &v);
            if (!together)
                alone[i] = v.spec;
            assert_int_equal(v.spec.verify_steps, alone[i].verify_steps);
            assert_int_equal(v.spec.accepted, alone[i].accepted);
            assert_memory_equal(v.spec.accepted_by_position, alone[i].accepted_by_position,
                                sizeof v.spec.accepted_by_position);
            fst_request_free(r[i]);
        }
        fst_engine_close(e);
    }
    for (int i = 0; i < N_PROMPTS; i++) {
        sum.verify_steps += alone[i].verify_steps;
        for (int k = 0; k < GAMMA; k++)
            sum.accepted_by_position[k] += alone[i].accepted_by_position[k];
    }
    for (int k = 0; k < GAMMA; k++) {
        double before = (double)(k ? sum.accepted_by_position[k - 1] : sum.verify_steps);
        printf("%s%.2f", k ? ", " : "accepted of those before: ",
               (double)sum.accepted_by_position[k] / before);
        assert_true((double)sum.accepted_by_position[k] >= (k ? 0.5 : 0.3) * before);
    }
    printf("\n");
}

/* A batch that shrinks one by one to nothing, in each mode: everybody ends, and soon. */
static void test_drain(void **state)
{
    enum { N = 64 };
    static const char *const modes[] = {"auto", "static", "cap", "compact"};
    int rounds = test_size(1, 5, 1);
    (void)state;
    for (int m = 0; m < 4 * rounds; m++) {
        fst_request *r[N];
        fst_engine *e = engine_of_test(
            (struct fst_engine_opts){.verify_mode = modes[m % 4], .measure_cost = m % 4 != 1},
            model_dir, CONTEXT, N);
        for (int i = 0; i < N; i++)
            r[i] = submit(e, prompts[i % N_PROMPTS].id, prompts[i % N_PROMPTS].n, 1 + i, 0);
        for (int i = 0; i < N; i++) {
            struct fst_request_view v;
            engine_finished(r[i], &v);
            assert_int_equal(v.n, 1 + i);
            assert_memory_equal(v.ids, plain0[i % N_PROMPTS],
                                (size_t)FST_MIN(1 + i, MAX_NEW) * sizeof *v.ids);
            fst_request_free(r[i]);
        }
        fst_engine_close(e);
    }
}

static int load(void **state)
{
    struct tokenizer *t;
    char path[256];
    int n = 0;
    (void)state;
    tmpdir_make(dir, sizeof dir);
    snprintf(table, sizeof table, "%s/cost.json", dir);
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir);
    if (tokenizer_load(&t, path) < 0) {
        print_error("%s\n", fst_error_text());
        return -1;
    }
    for (int i = 0; n < N_PROMPTS && i < 200; i++) {
        struct tokenizer_ids p = {0};
        prompt_make(t, 1, i, &p);
        if (p.n >= 30 && p.n < 200)
            prompts[n++] = p;
        else
            tokenizer_ids_release(&p);
    }
    tokenizer_free(t);
    fst_engine *e = open_engine(NULL, false, NULL);
    answers(e, plain, true);
    for (int i = 0; i < N_PROMPTS; i++) {
        fst_request *r = submit(e, prompts[i].id, prompts[i].n, MAX_NEW, 0);
        struct fst_request_view v;
        engine_finished(r, &v);
        memcpy(plain0[i], v.ids, sizeof plain0[i]);
        fst_request_free(r);
    }
    fst_engine_close(e);
    return n == N_PROMPTS ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    tmpdir_remove(dir);
    for (int i = 0; i < N_PROMPTS; i++)
        tokenizer_ids_release(&prompts[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objective), cmocka_unit_test(test_table),
        cmocka_unit_test(test_resume),    cmocka_unit_test(test_on_and_off),
        cmocka_unit_test(test_company),   cmocka_unit_test(test_drain)};
    return cmocka_run_group_tests(tests, load, unload);
}
