/* Statuses, memory and bookkeeping of a forward; the bundled model. */
#include "support/rig.h"

static struct weights *t1;

static int setup(void **state)
{
    struct hashweights_spec spec = hashweights_t1();
    (void)state;
    t1 = rig_weights(&spec);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    weights_free(t1);
    return 0;
}

static struct rig_opts options(int rows)
{
    return (struct rig_opts){.w = t1,
                             .precision = PRECISION_REFERENCE,
                             .format = ROW_F32,
                             .index_format = INDEX_F32,
                             .max_rows = rows,
                             .n_slots = 2,
                             .context = 512,
                             .threads = 2,
                             .drafting = true};
}

/* A foreign token id is a status, and the rows that others hold are as they were. */
static void test_foreign_ids(void **state)
{
    static const int32_t foreign[] = {-1, 512, INT32_MAX, INT32_MIN};
    struct rig r;
    int32_t ids[20], bad[20];
    float *logits, want[512];
    (void)state;
    struct rig_opts o = options(20);
    rig_open(&r, &o);
    hashweights_tokens(ids, 20, 512, 0);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, ids, 12);
    memcpy(want, rig_run(&r, slot, 12, ids + 12, 1), sizeof want);
    for (size_t i = 0; i < FST_COUNT(foreign); i++) {
        memcpy(bad, ids, sizeof bad);
        bad[14] = foreign[i];
        struct rig_span s = {slot, 12, bad + 12, 4};
        rig_rows(&r, &s, 1);
        assert_int_equal(model_forward(r.m, &r.kv, &r.rows, r.pick, 4, &logits), FST_EINVAL);
        assert_non_null(strstr(fst_error_text(), "row 2"));
    }
    rig_same(rig_run(&r, slot, 12, ids + 12, 1), want, 512, "after refusals");
    rig_close(&r);
}

/* After model_open nobody allocates: prefill, decode, no logits at all. */
static void test_no_allocation(void **state)
{
    struct rig r;
    int32_t ids[41];
    (void)state;
    struct rig_opts o = options(40);
    rig_open(&r, &o);
    hashweights_tokens(ids, 41, 512, 0);
    int slot = rig_slot(&r);
    uint64_t before = mem_count();
    rig_run(&r, slot, 0, ids, 40);
    rig_run(&r, slot, 40, ids + 40, 1);
    rig_ok(model_forward(r.m, &r.kv, &r.rows, NULL, 0, NULL));
    assert_true(mem_count() == before);
    rig_close(&r);

    struct hashweights_spec spec = hashweights_dspark();
    struct weights *w = rig_weights(&spec);
    o.w = w;
    o.block = 6;
    rig_open(&r, &o);
    slot = rig_slot(&r);
    before = mem_count();
    rig_run(&r, slot, 0, ids, 40);
    rig_inject(&r, 0, 40);
    rig_ok(model_inject(r.m, &r.kv, &r.rows, NULL, 0));
    struct draw_params greedy = {0};
    int64_t n = 40;
    uint32_t out = 0;
    int32_t drafts[5];
    float conf[5];
    struct draft_batch d = {.n = 1,
                            .gamma = 5,
                            .slot = &slot,
                            .n_committed = &n,
                            .anchor = &ids[40],
                            .draw = &greedy,
                            .out_pos = &out,
                            .ids = drafts,
                            .conf = conf};
    rig_ok(model_draft(r.m, &r.kv, &d));
    d.n = 0;
    rig_ok(model_draft(r.m, &r.kv, &d));
    assert_true(mem_count() == before);
    rig_close(&r);
    weights_free(w);
}

/* Every allocation of model_open fails once. */
static void test_open_faults(void **state)
{
    struct kernels k;
    struct stream s;
    struct model *m;
    (void)state;
    kernels_init(&k, 0);
    struct model_opts o = {.kernels = &k,
                           .stream = &s,
                           .max_rows = 4,
                           .max_logits = 2,
                           .max_requests = 1,
                           .context_length = 64,
                           .drafting = true};
    rig_ok(stream_init(&s, NULL, NULL, PRECISION_REFERENCE, model_scratch_bytes(t1, &o, 1)));
    int n = 0;
    for (;; n++) {
        m = NULL;
        mem_fail_at((uint64_t)n + 1);
        enum fst_status rc = model_open(&m, t1, &o);
        mem_fail_at(0);
        if (rc == FST_OK)
            break;
        assert_int_equal(rc, FST_ENOMEM);
        assert_null(m);
    }
    assert_int_equal(n,
                     5); /* the struct, its workspace in two parts, the experts' views and a copy */
    assert_ptr_equal(model_config_of(m), &t1->config);
    model_free(m);
    model_free(NULL);
    /* drafting without a draft */
    struct weights *bare = malloc(sizeof *bare);
    assert_non_null(bare);
    *bare = *t1;
    bare->n_stages = 0;
    assert_int_equal(model_open(&m, bare, &o), FST_EINVAL);
    assert_null(m);
    o.drafting = false;
    rig_ok(model_open(&m, bare, &o));
    model_free(m);
    /* one layer captured twice */
    bare->n_stages = 2;
    bare->config.has_mtp = false;
    bare->config.has_dspark = true;
    bare->config.gamma = 2;
    o.drafting = true;
    stream_release(&s);
    rig_ok(stream_init(&s, NULL, NULL, PRECISION_REFERENCE, model_scratch_bytes(bare, &o, 1)));
    assert_int_equal(model_open(&m, bare, &o), FST_EUNSUPPORTED);
    free(bare);
    stream_release(&s);
}

static void test_timings(void **state)
{
    struct rig r;
    struct model *m;
    const struct model_timing *t;
    int32_t ids[8];
    float *logits;
    (void)state;
    struct rig_opts o = options(8);
    rig_open(&r, &o);
    hashweights_tokens(ids, 8, 512, 0);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, ids, 8);
    int blocks = model_timings(r.m, &t);
    assert_int_equal(blocks, 18);
    for (int i = 0; i < blocks; i++)
        assert_int_equal(t[i].calls, 0); /* switched off */

    struct model_opts mo = {.kernels = &r.ref,
                            .stream = &r.stream,
                            .max_rows = 8,
                            .max_logits = 8,
                            .max_requests = 1,
                            .context_length = 64,
                            .profile = true};
    rig_ok(model_open(&m, t1, &mo));
    rig_ok(model_forward(m, &r.kv, &r.rows, r.pick, 8, &logits));
    model_timings(m, &t);
    for (int i = 0; i < blocks; i++) {
        int calls = !strcmp(t[i].name, "seam")                                  ? 17
                    : !strcmp(t[i].name, "rope")                                ? 2
                    : !strcmp(t[i].name, "index_topk")                          ? 3
                    : !strcmp(t[i].name, "embed") || !strcmp(t[i].name, "head") ? 1
                    : !strcmp(t[i].name, "mtp_in") || !strcmp(t[i].name, "draw") ||
                            !strcmp(t[i].name, "main_proj") || !strcmp(t[i].name, "draft_chain") ||
                            !strcmp(t[i].name, "copy_pieces")
                        ? 0
                        : 8;
        assert_int_equal(t[i].calls, calls);
        assert_true((t[i].ns > 0) == (calls > 0));
    }
    model_timings_reset(m);
    for (int i = 0; i < blocks; i++)
        assert_true(t[i].calls == 0 && t[i].ns == 0);
    model_free(m);
    rig_close(&r);
}

/* Padding rows (slot 0) disturb nobody. */
static void test_padding_rows(void **state)
{
    struct rig r;
    int32_t ids[30], zero[5] = {0};
    float want[512];
    (void)state;
    struct rig_opts o = options(40);
    rig_open(&r, &o);
    hashweights_tokens(ids, 30, 512, 0);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, ids, 29);
    memcpy(want, rig_run(&r, slot, 29, ids + 29, 1), sizeof want);
    struct rig_span s = {slot, 29, ids + 29, 1};
    rig_rows(&r, &s, 1);
    r.rows.n_spans = 2;
    for (int t = 1; t < 6; t++) {
        r.slot[t] = 0;
        r.pos[t] = t - 1;
        r.id[t] = zero[t - 1];
        r.span[t] = 1;
    }
    r.first[1] = 1;
    r.first[2] = 6;
    r.rows.n_rows = 6;
    float *logits;
    rig_ok(model_forward(r.m, &r.kv, &r.rows, r.pick, 1, &logits));
    rig_same(logits, want, 512, "beside padding");
    rig_ok(kv_check(&r.kv));
    rig_close(&r);
}

/* The bundled model runs on every kernel set: finite logits, drafts within the vocabulary, and
 * sets that agree on most of the argmaxes. */
static void test_bundled(void **state)
{
    struct weights *w;
    struct kernels sets[3];
    (void)state;
    if (access("models/kindling/config.json", R_OK) != 0) {
        print_message("models/kindling is not there\n");
        skip();
    }
    if (weights_open(&w, "models/kindling", NULL) < 0)
        fail_msg("%s", fst_error_text());
    int n_sets = rig_sets(sets), vocab = w->config.vocab_size, n = 140;
    int32_t ids[141], best[140] = {0};
    hashweights_tokens(ids, n + 1, vocab, 1);
    for (int i = n_sets - 1; i >= 0; i--) {
        struct rig r;
        struct rig_opts o = {.w = w,
                             .kernels = &sets[i],
                             .precision = PRECISION_NATIVE,
                             .format = ROW_FP8,
                             .index_format = INDEX_FP4,
                             .max_rows = n,
                             .n_slots = 1,
                             .context = 512,
                             .block = w->config.gamma + 1,
                             .threads = 2,
                             .drafting = w->n_stages > 0};
        rig_open(&r, &o);
        int slot = rig_slot(&r), same = 0;
        float *logits = rig_run(&r, slot, 0, ids, n);
        for (int t = 0; t < n; t++) {
            for (int v = 0; v < vocab; v++)
                assert_true(isfinite(logits[(int64_t)t * vocab + v]));
            int a = rig_argmax(logits + (int64_t)t * vocab, vocab);
            same += a == best[t];
            best[t] = a;
        }
        assert_true(i == n_sets - 1 || same > n / 2);
        if (w->n_stages && w->config.has_dspark) {
            int64_t at = n;
            int32_t drafts[8];
            float conf[8];
            uint32_t out = 0;
            struct draw_params greedy = {0};
            struct draft_batch d = {.n = 1,
                                    .gamma = w->config.gamma,
                                    .slot = &slot,
                                    .n_committed = &at,
                                    .anchor = &ids[n],
                                    .draw = &greedy,
                                    .out_pos = &out,
                                    .ids = drafts,
                                    .conf = conf};
            rig_inject(&r, 0, n);
            rig_ok(model_draft(r.m, &r.kv, &d));
            for (int k = 0; k < d.gamma; k++)
                assert_true(drafts[k] >= 0 && drafts[k] < vocab && isfinite(conf[k]));
        }
        rig_close(&r);
    }
    weights_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign_ids),  cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_open_faults),  cmocka_unit_test(test_timings),
        cmocka_unit_test(test_padding_rows), cmocka_unit_test(test_bundled)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
