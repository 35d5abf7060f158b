/* Random weights: the same on every device, and a model on them has numbers of order 1 and routers that
 * spread rows. */
#include "support/far.h"
#include "support/rig.h"

enum { VOCAB = 512, N = 40, LAYERS = 12 };

static struct model_config config(void)
{
    struct model_config c = rig_small(HASHWEIGHTS_FP4).config;
    c.n_layers = LAYERS;
    for (int l = 0; l < LAYERS; l++)
        c.compress_ratio[l] = l < 2 ? 0 : l % 2 ? 128 : 4;
    c.n_hash_layers = 3;
    c.has_dspark = c.has_mtp = false;
    c.n_stages = 0;
    return c;
}

static struct weights *make(const struct device *d, const struct model_config *c)
{
    struct stream s;
    struct weights *w;
    rig_ok(stream_init(&s, d, NULL, PRECISION_NATIVE, 0));
    rig_ok(weights_synthetic(&w, c, &s, 1));
    stream_release(&s);
    return w;
}

static void play(const struct weights *w, const struct device *d, const struct kernels *k,
                 float *logits)
{
    struct rig r;
    struct rig_opts o = {.w = w,
                         .kernels = k,
                         .device = d,
                         .precision = PRECISION_NATIVE,
                         .format = ROW_FP8,
                         .index_format = INDEX_FP4,
                         .max_rows = N,
                         .n_slots = 1,
                         .context = 256};
    int32_t ids[N];
    rig_open(&r, &o);
    hashweights_tokens(ids, N, VOCAB, 0);
    memcpy(logits, rig_run(&r, rig_slot(&r), 0, ids, N), N * VOCAB * sizeof *logits);
    rig_close(&r);
}

static void test_same_on_all(void **state)
{
    struct model_config c = config();
    struct kernels host, k;
    float *want = rig_floats(N * VOCAB), *got = rig_floats(N * VOCAB);
    (void)state;
    assert_int_equal(c.vocab_size, VOCAB);
    kernels_init(&host, kernels_probe());
    rig_ok(kernels_of_device(&k, &far_device, NULL, PRECISION_NATIVE));
    struct weights *near = make(NULL, &c), *w = make(&far_device, &c);
    assert_true(near->bytes > 0);
    assert_int_equal(near->bytes, w->bytes);
    play(near, NULL, &host, want);
    play(w, &far_device, &k, got);
    rig_same(got, want, N * VOCAB, "logits on the device");
    weights_free(w);
    assert_int_equal(far_state.n, 0);
    weights_free(near);

    double rms = rig_norm(want, N * VOCAB) / sqrt(N * VOCAB);
    if (!(rms > 0.5 && rms < 2))
        fail_msg("logits have a root mean square of %g", rms);
    free(want);
    free(got);
}

/* What does not fit is named, and everything is given back. */
static void test_no_room(void **state)
{
    struct model_config c = config();
    (void)state;
    for (int n = 1; n <= 3; n++) {
        struct stream s;
        struct weights *w;
        rig_ok(stream_init(&s, &far_device, NULL, PRECISION_NATIVE, 0));
        far_state.fail_alloc = n;
        assert_int_equal(weights_synthetic(&w, &c, &s, 1), FST_ENOMEM);
        assert_null(w);
        assert_non_null(strstr(fst_error_text(), n == 1   ? "embedding and head"
                                                 : n == 2 ? "layer 0 "
                                                          : "layer 1 "));
        assert_non_null(strstr(fst_error_text(), "1073741824 were free"));
        stream_release(&s);
        assert_int_equal(far_state.n, 0);
    }
}

/* A draft comes with the configuration that has one. */
static void test_draft(void **state)
{
    struct model_config c = rig_small(HASHWEIGHTS_FP4).config;
    (void)state;
    assert_true(c.has_dspark);
    struct weights *w = make(NULL, &c);
    assert_int_equal(w->n_stages, c.n_stages);
    assert_int_equal(w->dspark.main_proj.fmt, WEIGHT_FP8);
    assert_int_equal(w->dspark.markov_w2.n_out, c.vocab_size);
    assert_int_equal(w->stage[2].ffn.experts[1].w2.fmt, WEIGHT_FP4);
    weights_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_on_all),
                                       cmocka_unit_test(test_no_room),
                                       cmocka_unit_test(test_draft)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
