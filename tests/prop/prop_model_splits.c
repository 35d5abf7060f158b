/* However a prompt is cut, batched or stored, every row keeps its bits. */
#include "support/rig.h"

static struct weights *t1, *small;
static struct kernels sets[3];
static int n_sets;

static int setup(void **state)
{
    struct hashweights_spec a = hashweights_t1(), b = rig_small(HASHWEIGHTS_FP4);
    (void)state;
    t1 = rig_weights(&a);
    small = rig_weights(&b);
    n_sets = rig_sets(sets);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    weights_free(t1);
    weights_free(small);
    return 0;
}

static struct rig_opts native(const struct kernels *k)
{
    return (struct rig_opts){.w = small,
                             .kernels = k,
                             .precision = PRECISION_NATIVE,
                             .format = ROW_FP8,
                             .index_format = INDEX_FP4,
                             .max_rows = 300,
                             .n_slots = 3,
                             .context = 512,
                             .block = 6};
}

static struct rig_opts reference(void)
{
    return (struct rig_opts){.w = t1,
                             .precision = PRECISION_REFERENCE,
                             .format = ROW_F32,
                             .index_format = INDEX_F32,
                             .max_rows = 300,
                             .n_slots = 3,
                             .context = 512};
}

/* One shot against chunks: each of `sizes` apart, then mixed sizes by a seed. */
static void compare_chunks(const struct rig_opts *o, int n, const int *sizes, int n_sizes)
{
    struct rig r;
    int32_t ids[300];
    char what[96];
    const char *set = o->kernels ? o->kernels->name : "reference";
    struct test_rng rng = {n * 31 + n_sizes};
    rig_open(&r, o);
    int64_t all = (int64_t)n * r.vocab;
    float *want = rig_floats(all), *got = rig_floats(all);
    hashweights_tokens(ids, n, r.vocab, 0);
    rig_chunks(&r, rig_slot(&r), ids, n, n, want);
    for (int i = 0; i <= n_sizes; i++) {
        int slot = rig_slot(&r);
        if (i < n_sizes) {
            rig_chunks(&r, slot, ids, n, sizes[i], got);
            snprintf(what, sizeof what, "%s, chunks of %d", set, sizes[i]);
        } else {
            for (int at = 0, len; at < n; at += len) {
                len = 1 + test_below(&rng, test_below(&rng, 3) ? 9 : 140);
                len = FST_MIN(len, n - at);
                float *logits = rig_run(&r, slot, at, ids + at, len);
                memcpy(got + (int64_t)at * r.vocab, logits, (size_t)len * (size_t)r.vocab * 4);
            }
            snprintf(what, sizeof what, "%s, mixed chunks", set);
        }
        rig_same(got, want, all, what);
        kv_slot_close(&r.kv, slot); /* the next run finds this one's rows and states in its place */
    }
    free(want);
    free(got);
    rig_close(&r);
}

static void test_chunks_reference(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 64, 127, 128, 129};
    static const int few[] = {1, 3, 129};
    (void)state;
    struct rig_opts o = reference();
    compare_chunks(&o, 300, few, 3);
    compare_chunks(&o, 132, sizes, test_size(10, 10, 3));
}

static void test_chunks_native(void **state)
{
    static const int sizes[] = {1, 129, 128, 127, 64, 7, 5, 4, 3, 2};
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        struct rig_opts o = native(&sets[i]);
        bool quick = sets[i].flags == 0; /* ref takes seconds where the others take tenths */
        compare_chunks(&o, test_size(quick ? 140 : 290, 290, 70), sizes,
                       test_size(quick ? 4 : 10, 10, 2));
    }
}

/* Three requests, interleaved chunks of different length in one step, against each alone. */
static void compare_interleaved(const struct rig_opts *o, int n)
{
    struct rig r;
    int32_t ids[3][200];
    struct test_rng rng = {7};
    rig_open(&r, o);
    int vocab = r.vocab;
    float *want = rig_floats((int64_t)3 * n * vocab), *got = rig_floats((int64_t)3 * n * vocab);
    for (int s = 0; s < 3; s++) {
        hashweights_tokens(ids[s], n, vocab, (uint64_t)s + 1);
        int slot = rig_slot(&r);
        rig_chunks(&r, slot, ids[s], n, n, want + (int64_t)s * n * vocab);
        kv_slot_close(&r.kv, slot);
    }
    int slot[3], at[3] = {0};
    for (int s = 0; s < 3; s++)
        slot[s] = rig_slot(&r);
    while (at[0] < n || at[1] < n || at[2] < n) {
        struct rig_span span[3];
        int who[3], k = 0, first = test_below(&rng, 3);
        for (int i = 0; i < 3; i++) {
            int s = (first + i) % 3;
            int len = 1 + test_below(&rng, i == 0 ? 60 : 6);
            len = FST_MIN(len, n - at[s]);
            if (len == 0 || (test_below(&rng, 4) == 0 && k))
                continue;
            who[k] = s;
            span[k++] = (struct rig_span){slot[s], at[s], ids[s] + at[s], len};
        }
        if (k == 0)
            continue;
        float *logits = rig_step(&r, span, k);
        for (int i = 0, row = 0; i < k; row += span[i++].n) {
            memcpy(got + ((int64_t)who[i] * n + at[who[i]]) * vocab, logits + (int64_t)row * vocab,
                   (size_t)span[i].n * (size_t)vocab * 4);
            at[who[i]] += span[i].n;
        }
    }
    rig_same(got, want, (int64_t)3 * n * vocab, "interleaved requests");
    free(want);
    free(got);
    rig_close(&r);
}

static void test_interleaved(void **state)
{
    (void)state;
    struct rig_opts o = reference();
    compare_interleaved(&o, 140);
    for (int i = 0; i < n_sets; i++) {
        o = native(&sets[i]);
        compare_interleaved(&o, test_size(sets[i].flags ? 140 : 70, 140, 20));
    }
}

/* bf16 rows hold what fp8 rows hold; threads change nothing. */
static void test_formats_and_threads(void **state)
{
    int32_t ids[150];
    (void)state;
    hashweights_tokens(ids, 150, 512, 3);
    for (int i = 0; i < n_sets; i++) {
        int n = test_size(sets[i].flags ? 150 : 100, 150, 40);
        float *want = rig_floats((int64_t)n * 512), *got = rig_floats((int64_t)n * 512);
        for (int v = 0; v < 4; v++) {
            struct rig r;
            struct rig_opts o = native(&sets[i]);
            o.format = v == 1 ? ROW_BF16 : v == 3 ? ROW_PAGED : ROW_FP8;
            o.threads = v == 2 ? 2 : 0;
            rig_open(&r, &o);
            rig_chunks(&r, rig_slot(&r), ids, n, 37, v ? got : want);
            if (v)
                rig_same(got, want, (int64_t)n * 512,
                         v == 1   ? "bf16 rows"
                         : v == 3 ? "paged rows"
                                  : "two threads");
            rig_close(&r);
        }
        free(want);
        free(got);
    }
}

/* The smaller of two steps must not depend on rows that ask for no logits, nor on their order. */
static void test_picked_logits(void **state)
{
    struct rig r;
    int32_t ids[40], pick[3] = {2, 17, 39};
    float *logits, *all;
    (void)state;
    struct rig_opts o = reference();
    rig_open(&r, &o);
    hashweights_tokens(ids, 40, 512, 4);
    all = rig_floats(40 * 512);
    rig_chunks(&r, rig_slot(&r), ids, 40, 40, all);
    struct rig_span s = {rig_slot(&r), 0, ids, 40};
    rig_rows(&r, &s, 1);
    rig_ok(model_forward(r.m, &r.kv, &r.rows, pick, 3, &logits));
    for (int i = 0; i < 3; i++)
        rig_same(logits + i * 512, all + pick[i] * 512, 512, "picked rows");
    free(all);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_reference), cmocka_unit_test(test_chunks_native),
        cmocka_unit_test(test_interleaved), cmocka_unit_test(test_formats_and_threads),
        cmocka_unit_test(test_picked_logits)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
