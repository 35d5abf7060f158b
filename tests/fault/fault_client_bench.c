/* Every allocation of a benchmark fails once, from its prompts over answers and figures to its line: FST_ENOMEM, or an answer
 * that says so, and nothing is lost or read that is not there. */
#include "support/cm.h"

#include "client/dataset.h"
#include "client/load.h"
#include "client/report.h"
#include "client/target.h"
#include "support/tmpdir.h"

static struct tokenizer *tok;
static char dir[128], path[160];

static const char talks[] =
    "{\"conversations\":[{\"value\":\"one two three\"},{\"value\":\"four five\"}]}\n"
    "{\"prompt\":\"six seven eight\",\"output_len\":4}\n";

static enum fst_status prompts(enum dataset_kind kind, size_t *n)
{
    struct mt19937 numpy, python;
    struct dataset d;
    struct dataset_opts o = {.kind = kind,
                             .tok = tok,
                             .numpy = &numpy,
                             .python = &python,
                             .path = kind == DATASET_CUSTOM ? path : NULL,
                             .n = 3,
                             .input_len = 12,
                             .output_len = 6,
                             .n_groups = 2,
                             .per_group = 2,
                             .prefix_len = 5,
                             .question_len = 3,
                             .shared_output_len = 2};
    numpy_seed(&numpy, 1);
    python_seed(&python, 1);
    enum fst_status rc = dataset_make(&d, &o);
    *n = d.n;
    if (rc == FST_OK)
        dataset_release(&d);
    return rc;
}

static void test_prompts(void **state)
{
    static const struct {
        enum dataset_kind kind;
        size_t n;
    } kinds[] = {{DATASET_RANDOM, 3},
                 {DATASET_RANDOM_IDS, 3},
                 {DATASET_CUSTOM, 2},
                 {DATASET_SHARED_PREFIX, 4}};
    (void)state;
    for (size_t k = 0; k < FST_COUNT(kinds); k++) {
        enum fst_status rc;
        uint64_t at = 0, used;
        size_t n;
        do {
            uint64_t before = mem_count();
            mem_fail_at(++at);
            rc = prompts(kinds[k].kind, &n);
            mem_fail_at(0);
            used = mem_count() - before;
            assert_true(rc == FST_OK || rc == FST_ENOMEM);
        } while (at <= used);
        assert_int_equal(rc, FST_OK);
        assert_int_equal(n, kinds[k].n);
        assert_true(at > 5);
    }
}

static const char stream[] =
    "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"text\":\"some more of it\",\"finish_reason\":null}]}\n\n"
    "data: "
    "{\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}],\"usage\":{\"completion_tokens\":3}"
    "}\n\n"
    "data: [DONE]\n\n";

static enum fst_status answer(struct answer *a)
{
    FST_TRY(answer_init(a, ANSWER_COMPLETIONS, true, 4, 1));
    a->start_ns = 1;
    answer_head(a, 200, 2);
    for (size_t i = 0; i + 1 < sizeof stream; i += 7)
        answer_bytes(a, stream + i, FST_MIN((size_t)7, sizeof stream - 1 - i), (int64_t)(10 + i));
    answer_end(a, NULL, 1000);
    return answer_ok(a) ? FST_OK : FST_ENOMEM;
}

static void test_answers(void **state)
{
    enum fst_status rc;
    uint64_t at = 0, used;
    (void)state;
    do {
        struct answer a = {0};
        struct report r = {.backend = "openai", .dataset = "random", .max_concurrency = 1};
        struct buf line = {0};
        uint64_t before = mem_count();
        mem_fail_at(++at);
        rc = answer(&a);
        if (rc == FST_OK)
            rc = figures_compute(&r.f, &a, 1, 1);
        if (rc == FST_OK) {
            report_put_json(&line, &r, &a, 1);
            report_print(&line, &r);
            rc = line.failed ? FST_ENOMEM : report_against_published(&line, &r, "serve");
        }
        mem_fail_at(0);
        used = mem_count() - before;
        assert_true(rc == FST_OK || rc == FST_ENOMEM);
        answer_release(&a);
        buf_release(&line);
    } while (at <= used);
    assert_int_equal(rc, FST_OK);
}

/* A server that is not there: what a load or a target cannot get memory for is said, what it has is given back. */
static void test_requests(void **state)
{
    uint64_t at = 0, used;
    (void)state;
    do {
        struct http *h = NULL;
        struct target t;
        struct load_item item[2] = {{"{}", 2, 1, 1}, {"{}", 2, 1, 1}};
        struct answer a[2] = {{0}};
        struct load_opts o = {.api = ANSWER_CHAT, .path = "/x", .streams = true};
        double s;
        uint64_t before = mem_count();
        mem_fail_at(++at);
        if (http_open(&h, "http://127.0.0.1:1") == FST_OK) {
            enum fst_status rc = load_run(h, &o, item, 2, a, &s, NULL);
            assert_true(rc == FST_OK || rc == FST_ENOMEM);
            for (int i = 0; i < 2; i++) {
                assert_true(rc < 0 || !answer_ok(&a[i]));
                answer_release(&a[i]);
            }
        }
        http_close(h);
        assert_true(target_open(&t, "http://127.0.0.1:1", 0, NULL) < 0);
        mem_fail_at(0);
        used = mem_count() - before;
    } while (at <= used);
}

static int open_all(void **state)
{
    (void)state;
    tmpdir_make(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/talks.jsonl", dir);
    tmpdir_write(dir, "talks.jsonl", talks, sizeof talks - 1);
    return tokenizer_load(&tok, "models/kindling/tokenizer.json") == FST_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    tokenizer_free(tok);
    tmpdir_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_requests),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
