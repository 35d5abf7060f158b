/* The seam to a card: a model whose weights, KV and workspace lie where the host cannot look gives the
 * bits that it gives on the host. */
#include "support/far.h"
#include "support/rig.h"

enum { VOCAB = 512, N = 150, DRAFT = 3 };

/* What one run leaves: logits of a prompt in two chunks, of one token more, and a draft. */
struct outcome {
    float logits[(N + 1) * VOCAB];
    int32_t ids[DRAFT];
    float conf[DRAFT];
};

static void play(const struct weights *w, const struct device *d, const struct kernels *k,
                 struct outcome *out)
{
    struct rig r;
    struct rig_opts o = {.w = w,
                         .kernels = k,
                         .device = d,
                         .precision = PRECISION_NATIVE,
                         .format = ROW_FP8,
                         .index_format = INDEX_FP4,
                         .max_rows = N,
                         .n_slots = 2,
                         .context = 512,
                         .block = DRAFT + 1,
                         .drafting = true};
    int32_t ids[N + 1];
    rig_open(&r, &o);
    hashweights_tokens(ids, N + 1, VOCAB, 0);
    int slot = rig_slot(&r);
    memcpy(out->logits, rig_run(&r, slot, 0, ids, 90), 90 * VOCAB * sizeof(float));
    rig_inject(&r, 0, 90);
    memcpy(out->logits + 90 * VOCAB, rig_run(&r, slot, 90, ids + 90, N - 90),
           (N - 90) * VOCAB * sizeof(float));
    rig_inject(&r, 0, N - 90);

    struct shared {
        int32_t slot, anchor, ids[DRAFT];
        int64_t n;
        uint32_t out_pos;
        float conf[DRAFT];
        struct draw_params draw;
    } *s = device_alloc_shared(d, sizeof *s);
    assert_non_null(s);
    s->slot = slot;
    s->anchor = ids[N];
    s->n = N;
    struct draft_batch b = {.n = 1,
                            .gamma = DRAFT,
                            .slot = &s->slot,
                            .n_committed = &s->n,
                            .anchor = &s->anchor,
                            .draw = &s->draw,
                            .out_pos = &s->out_pos,
                            .ids = s->ids,
                            .conf = s->conf};
    rig_ok(model_draft(r.m, &r.kv, &b));
    memcpy(out->ids, s->ids, sizeof s->ids);
    memcpy(out->conf, s->conf, sizeof s->conf);
    device_free_shared(d, s, sizeof *s);
    memcpy(out->logits + N * VOCAB, rig_run(&r, slot, N, ids + N, 1), VOCAB * sizeof(float));
    rig_close(&r);
}

static void test_same_bits(void **state)
{
    struct hashweights_spec spec = rig_small(HASHWEIGHTS_FP4);
    struct weights *near = rig_weights(&spec), *w = rig_weights(&spec);
    struct outcome *want = calloc(2, sizeof *want), *got = want + 1;
    struct kernels host, k;
    (void)state;
    assert_non_null(want);
    assert_int_equal(near->config.vocab_size, VOCAB);
    kernels_init(&host, kernels_probe());
    rig_ok(kernels_of_device(&k, &far_device, NULL, PRECISION_NATIVE));
    play(near, NULL, &host, want);
    rig_ok(weights_upload(w, &far_device));
    far_state.calls = 0;
    play(w, &far_device, &k, got);
    assert_true(far_state.calls > 100);
    rig_same(got->logits, want->logits, (N + 1) * VOCAB, "logits on the device");
    assert_memory_equal(got->ids, want->ids, sizeof want->ids);
    rig_same(got->conf, want->conf, DRAFT, "confidence on the device");
    weights_free(w);
    assert_int_equal(far_state.n, 0); /* all of it was given back */
    weights_free(near);
    free(want);
}

/* The slab or a copy fails: a status that says so, and everything can be freed. */
static void test_upload_faults(void **state)
{
    struct hashweights_spec spec = rig_small(HASHWEIGHTS_FP4);
    (void)state;
    for (int n = 0; n < 2; n++) {
        struct weights *w = rig_weights(&spec);
        far_state.fail_alloc = n == 0;
        far_state.fail_copy = n == 1 ? 100 : 0;
        assert_int_equal(weights_upload(w, &far_device), n ? FST_EINTERNAL : FST_ENOMEM);
        assert_non_null(strstr(fst_error_text(), n ? "copy failed" : "memory out of reach"));
        weights_free(w);
        assert_int_equal(far_state.n, 0);
    }
}

/* A clock that ticks a microsecond between the marks of a block, whatever lies between. */
static int marks_seen, marks_set;

static enum fst_status tick(void *queue, int i)
{
    (void)queue;
    assert_true(i >= 0 && i < DEVICE_MARKS);
    assert_int_equal(i, marks_set); /* pairs in order, from 0 after each reading */
    marks_set++;
    return FST_OK;
}

static enum fst_status between(int from, int to, double *us)
{
    assert_int_equal(from % 2, 0);
    assert_int_equal(to, from + 1);
    assert_true(to < marks_set);
    marks_seen++;
    if (to == marks_set - 1)
        marks_set = 0;
    *us = 1;
    return FST_OK;
}

/* Blocks are counted by kind of layer, also when the marks are used up in between. */
static void test_marks(void **state)
{
    struct hashweights_spec spec = rig_small(HASHWEIGHTS_FP4);
    struct weights *w = rig_weights(&spec);
    struct device d = far_device;
    struct kernels k;
    struct rig r;
    const struct model_timing *t;
    int32_t id = 1;
    enum { STEPS = 60 };
    (void)state;
    d.mark = tick;
    d.between = between;
    rig_ok(kernels_of_device(&k, &d, NULL, PRECISION_NATIVE));
    rig_ok(weights_upload(w, &d));
    struct rig_opts o = {.w = w,
                         .kernels = &k,
                         .device = &d,
                         .precision = PRECISION_NATIVE,
                         .format = ROW_FP8,
                         .index_format = INDEX_FP4,
                         .max_rows = 1,
                         .n_slots = 1,
                         .context = 256};
    rig_open(&r, &o);
    model_profile(r.m, true);
    int slot = rig_slot(&r);
    for (int i = 0; i < STEPS; i++)
        rig_run(&r, slot, i, &id, 1);
    int n = model_timings(r.m, &t), calls = 0;
    for (int i = 0; i < n; i++) {
        int sum = 0;
        for (int s = 0; s < MODEL_SITES; s++) {
            assert_int_equal(t[i].at[s].ns, 1000 * t[i].at[s].calls);
            sum += (int)t[i].at[s].calls;
        }
        assert_int_equal(t[i].calls, sum);
        calls += sum;
        if (!strcmp(t[i].name, "seam")) {
            assert_int_equal(t[i].at[MODEL_SITE_NONE].calls, STEPS);
            assert_int_equal(t[i].at[MODEL_SITE_WINDOW].calls, 2 * STEPS);
            assert_int_equal(t[i].at[MODEL_SITE_RATIO4].calls, 4 * STEPS);
            assert_int_equal(t[i].at[MODEL_SITE_RATIO128].calls, 2 * STEPS);
        }
    }
    assert_true(calls > DEVICE_MARKS / 2);
    assert_int_equal(calls, marks_seen);
    model_timings_reset(r.m);
    assert_int_equal(t[0].calls, 0);
    rig_close(&r);
    weights_free(w);
}

static void test_table(void **state)
{
    struct kernels k;
    (void)state;
    assert_int_equal(kernels_of_device(&k, &far_device, "auto", PRECISION_NATIVE), FST_OK);
    assert_int_equal(kernels_of_device(&k, &far_device, "gpu", PRECISION_NATIVE), FST_OK);
    assert_int_equal(kernels_of_device(&k, &far_device, "avx2", PRECISION_NATIVE), FST_EINVAL);
    assert_int_equal(kernels_of_device(&k, &far_device, NULL, PRECISION_REFERENCE), FST_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_upload_faults),
                                       cmocka_unit_test(test_marks), cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
