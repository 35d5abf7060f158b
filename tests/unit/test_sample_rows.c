/* test_sample_rows.c - the sampling pipeline against small exact tables. */
#include "support/cm.h"

#include <math.h>

#include "sample/sample.h"
#include "support/far.h"

static struct kernels ref;
static struct stream stream;

static struct sampler make(int vocab, const int32_t *masked, int n_masked)
{
    struct sampler s;
    kernels_init(&ref, 0);
    assert_int_equal(sample_init(&s, &ref, &stream, vocab, 4, masked, n_masked), FST_OK);
    return s;
}

static const struct sample_params greedy = {.temperature = 0, .top_p = 1, .top_k = -1};

static void test_greedy(void **state)
{
    struct sampler s = make(6, NULL, 0);
    float l[12] = {0, 3, 1, 3, -1, 2, /* second row */ 5, 5, 5, 5, 5, 5};
    struct sample_top top[3];
    struct sample_row row[2] = {{.params = &greedy, .n_top = 3, .top = top}, {.params = &greedy}};
    double z = 0;

    (void)state;
    for (int i = 0; i < 6; i++)
        z += exp((double)l[i]);
    assert_int_equal(sample_rows(&s, l, row, 2), FST_OK);
    assert_int_equal(row[0].id, 1); /* ties go to the lower id */
    assert_true(fabs((double)row[0].logprob - (3 - log(z))) < 1e-6);
    assert_int_equal(top[0].id, 1);
    assert_int_equal(top[1].id, 3);
    assert_int_equal(top[2].id, 5);
    assert_true(fabs((double)top[2].logprob - (2 - log(z))) < 1e-6);
    assert_int_equal(row[1].id, 0);
    assert_true(fabs((double)row[1].logprob + log(6)) < 1e-6);
    sample_release(&s);
}

static void test_masks(void **state)
{
    int32_t masked[] = {1}, banned[] = {3, 5};
    struct sampler s = make(6, masked, 1);
    float l[6] = {0, 9, 1, 3, -1, 2};
    struct sample_row row = {.params = &greedy, .banned = banned, .n_banned = 2};
    double z = exp(0.0) + exp(1.0) + exp(3.0) + exp(-1.0) + exp(2.0);

    (void)state;
    assert_int_equal(sample_rows(&s, l, &row, 1), FST_OK);
    assert_int_equal(row.id, 2);
    /* Reported from the logits without the unnamed id, bans not applied. */
    assert_true(fabs((double)row.logprob - (1 - log(z))) < 1e-6);
    sample_release(&s);
}

static void test_nan(void **state)
{
    struct sampler s = make(3, NULL, 0);
    float l[6] = {0, NAN, 1, 1, 2, 3};
    struct sample_params p = {.temperature = 1, .top_p = 0.5f, .top_k = 2};
    struct sample_row row[2] = {{.params = &p}, {.params = &greedy}};

    (void)state;
    assert_int_equal(sample_rows(&s, l, row, 2), FST_OK);
    assert_int_equal(row[0].id, -1);
    assert_int_equal(row[1].id, 2);
    sample_release(&s);
}

/* Kept set and distribution: 1e5 draws against exact probabilities, chi-square at alpha 1e-3. */
static void chi_square(struct sample_params p, const float *logits, int vocab, const double *want)
{
    /* upper 1e-3 points of chi-square by degrees of freedom 1..9 */
    static const double limit[] = {0,     10.83, 13.82, 16.27, 18.47,
                                   20.52, 22.46, 24.32, 26.12, 27.88};
    struct sampler s = make(vocab, NULL, 0);
    int n = 100000, dof = -1;
    double count[10] = {0}, x2 = 0;

    for (int i = 0; i < n; i++) {
        float l[10];
        struct sample_row row = {.params = &p, .out_pos = (uint32_t)(i % 1000)};
        p.seed = (uint64_t)(i / 1000) + 4711;
        memcpy(l, logits, (size_t)vocab * sizeof *l);
        assert_int_equal(sample_rows(&s, l, &row, 1), FST_OK);
        count[row.id]++;
    }
    for (int v = 0; v < vocab; v++) {
        if (want[v] == 0) {
            assert_true(count[v] == 0);
            continue;
        }
        dof++;
        x2 += (count[v] - n * want[v]) * (count[v] - n * want[v]) / (n * want[v]);
    }
    if (x2 > limit[dof])
        fail_msg("chi-square %.2f over %.2f at %d degrees", x2, limit[dof], dof);
    sample_release(&s);
}

static void test_distribution(void **state)
{
    static const float l[8] = {1.0f, 0.5f, -0.5f, 2.0f, 0.0f, -2.0f, 1.5f, 0.25f};
    double p1[8], p07[8], z1 = 0, z07 = 0, kept = 0, want[8];

    (void)state;
    for (int v = 0; v < 8; v++) {
        z1 += p1[v] = exp((double)l[v]);
        z07 += p07[v] = exp((double)l[v] / 0.7);
    }
    for (int v = 0; v < 8; v++) {
        p1[v] /= z1;
        p07[v] /= z07;
    }
    chi_square((struct sample_params){.temperature = 1, .top_p = 1}, l, 8, p1);
    chi_square((struct sample_params){.temperature = 0.7f, .top_p = 1}, l, 8, p07);
    chi_square((struct sample_params){.temperature = 1, .top_p = 1, .choice = 3}, l, 8, p1);

    /* top_k 3: ids 3, 6, 0 */
    memset(want, 0, sizeof want);
    kept = p1[3] + p1[6] + p1[0];
    want[3] = p1[3] / kept, want[6] = p1[6] / kept, want[0] = p1[0] / kept;
    chi_square((struct sample_params){.temperature = 1, .top_p = 1, .top_k = 3}, l, 8, want);

    /* top_p 0.6: 3 has .40, 6 has .24: together .64 */
    assert_true(p1[3] < 0.6 && p1[3] + p1[6] >= 0.6);
    memset(want, 0, sizeof want);
    kept = p1[3] + p1[6];
    want[3] = p1[3] / kept, want[6] = p1[6] / kept;
    chi_square((struct sample_params){.temperature = 1, .top_p = 0.6f}, l, 8, want);

    /* min_p 0.3 of the best: e^-1.2 */
    memset(want, 0, sizeof want);
    kept = 0;
    for (int v = 0; v < 8; v++)
        if (p1[v] >= 0.3 * p1[3])
            kept += p1[v];
    for (int v = 0; v < 8; v++)
        if (p1[v] >= 0.3 * p1[3])
            want[v] = p1[v] / kept;
    chi_square((struct sample_params){.temperature = 1, .top_p = 1, .min_p = 0.3f}, l, 8, want);
}

/* A draw depends on seed, choice and position, not on the row's place or neighbours; the best logit
 * wins always with top_k 1 and with a tiny top_p. */
static void test_place(void **state)
{
    struct sampler s = make(9, NULL, 0);
    struct test_rng r = {.s = 3};

    (void)state;
    for (int k = 0; k < 2000; k++) {
        float l[36], one[9];
        struct sample_params p = {.temperature = 0.5f + 0.25f * (float)test_below(&r, 6),
                                  .top_p = k % 3 ? 1.0f : 0.8f,
                                  .top_k = k % 4 ? -1 : 4,
                                  .seed = test_next(&r),
                                  .choice = (uint32_t)test_below(&r, 4)};
        struct sample_params best = {.temperature = 2, .top_p = k % 2 ? 1e-6f : 1, .top_k = 1};
        struct sample_row row[4];
        int32_t id;
        int at = test_below(&r, 3), arg = 0;
        for (int i = 0; i < 36; i++)
            l[i] = (float)test_below(&r, 1000) * 0.01f;
        memcpy(one, l + 9 * at, sizeof one);
        for (int i = 0; i < 4; i++)
            row[i] = (struct sample_row){.params = i == 3 ? &best : &p, .out_pos = (uint32_t)k};
        for (int v = 1; v < 9; v++)
            if (l[27 + v] > l[27 + arg])
                arg = v;
        assert_int_equal(sample_rows(&s, l, row, 4), FST_OK);
        id = row[at].id;
        assert_int_equal(row[3].id, arg);
        row[0] = (struct sample_row){.params = &p, .out_pos = (uint32_t)k};
        assert_int_equal(sample_rows(&s, one, row, 1), FST_OK);
        assert_int_equal(row[0].id, id);
    }
    sample_release(&s);
}

static const float *sort_by;
static int by_logit(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_by[x] != sort_by[y])
        return sort_by[x] > sort_by[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Kept sets of a large vocabulary, from a handful to nearly all, against a full sort: the draw over
 * the set must be the draw of sample_rows. */
static void test_large(void **state)
{
    enum { V = 5000 };
    static float l[V], work[V];
    static int32_t order[V];
    struct sampler s = make(V, NULL, 0);
    struct test_rng r = {.s = 8};
    int wide = 0;

    (void)state;
    for (int k = 0; k < 300; k++) {
        struct sample_params p = {.temperature = 0.3f + 0.3f * (float)test_below(&r, 8),
                                  .top_p = k % 4 ? 0.05f + 0.11f * (float)test_below(&r, 9) : 1.0f,
                                  .min_p = k % 3 ? 0.0f : 0.02f * (float)test_below(&r, 6),
                                  .top_k = k % 5 ? -1 : 1 + test_below(&r, 3000),
                                  .seed = test_next(&r)};
        struct draw_params d = {.temperature = p.temperature, .seed = p.seed};
        struct sample_row row = {.params = &p, .out_pos = (uint32_t)k};
        struct draw_args a = {
            .logits = work, .draw = &d, .out_pos = &row.out_pos, .n = 1, .vocab = V};
        float spread = 0.5f + (float)test_below(&r, 12), lse;
        double sum = 0, cum = 0, max;
        int n = p.top_k > 0 ? p.top_k : V, kept;
        int32_t id;

        for (int v = 0; v < V; v++) { /* steps of 1/64: many ties */
            l[v] = spread * (float)test_below(&r, 64) / 64.0f;
            order[v] = v;
        }
        sort_by = l;
        qsort(order, V, sizeof *order, by_logit);
        max = (double)l[order[0]];
        for (int i = 0; i < n; i++)
            sum += exp(((double)l[order[i]] - max) / (double)p.temperature);
        for (kept = 0; kept < n;) {
            cum += exp(((double)l[order[kept++]] - max) / (double)p.temperature) / sum;
            if (p.top_p < 1 && cum >= (double)p.top_p)
                break;
        }
        if (p.min_p > 0)
            while (kept > 1 && exp(((double)l[order[kept - 1]] - max) / (double)p.temperature) <
                                   (double)p.min_p)
                kept--;
        wide += kept > 64;
        for (int v = 0; v < V; v++)
            work[v] = -INFINITY;
        for (int i = 0; i < kept; i++)
            work[order[i]] = l[order[i]];
        a.id = &id;
        a.lse = &lse;
        ref.draw(&a, &stream);
        assert_int_equal(sample_rows(&s, l, &row, 1), FST_OK);
        assert_int_equal(row.id, id);
    }
    assert_true(wide > 50);
    sample_release(&s);
}

static void test_score(void **state)
{
    struct sampler s = make(5, NULL, 0);
    float l[5] = {0.5f, -1, 2, 0, 1}, lp;
    struct sample_top top[2];
    double z = 0;

    (void)state;
    for (int v = 0; v < 5; v++)
        z += exp((double)l[v]);
    assert_int_equal(sample_score(&s, l, 4, &lp, 2, top), FST_OK);
    assert_true(fabs((double)lp - (1 - log(z))) < 1e-6);
    assert_int_equal(top[0].id, 2);
    assert_int_equal(top[1].id, 4);
    sample_release(&s);
}

/* Logits that the host cannot read give the same draws, log-probabilities and alternatives. */
static void test_far_logits(void **state)
{
    enum { V = 700, N = 5, TOPS = 3 };
    static const int32_t masked[] = {3, 11, 699}, banned[] = {7, 8};
    const struct sample_params nucleus = {.temperature = 0.8f, .top_p = 0.7f, .seed = 5};
    const struct sample_params plain = {.temperature = 1, .top_p = 1, .seed = 6};
    struct sampler near = make(V, masked, 3), far;
    struct stream far_stream;
    struct kernels k;
    struct sample_row row[2][N];
    struct sample_top top[2][N][TOPS];
    float l[N * V], score[2];
    size_t bytes = sizeof l;
    struct test_rng r = {77};

    (void)state;
    for (int i = 0; i < N * V; i++)
        l[i] = (float)test_below(&r, 4000) / 500;
    l[4 * V + 20] = NAN;
    assert_int_equal(stream_init(&far_stream, &far_device, NULL, PRECISION_NATIVE, 1 << 20),
                     FST_OK);
    assert_true(far_kernels(&k, sizeof k, false));
    assert_int_equal(sample_init(&far, &k, &far_stream, V, N, masked, 3), FST_OK);
    float *there = device_alloc(&far_device, bytes);
    assert_non_null(there);
    assert_int_equal(device_copy(&far_device, there, l, bytes), FST_OK);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < N; i++)
            row[side][i] = (struct sample_row){.params = i == 1 ? &nucleus
                                                         : i    ? &plain
                                                                : &greedy,
                                               .out_pos = (uint32_t)i,
                                               .banned = banned,
                                               .n_banned = i == 2 ? 2 : 0,
                                               .n_top = i == 3 ? TOPS : 0,
                                               .top = top[side][i]};
    assert_int_equal(sample_rows(&far, there, row[1], N), FST_OK);
    assert_int_equal(sample_score(&far, there, 9, &score[1], TOPS, top[1][0]), FST_OK);
    near.max_rows = 4;
    assert_int_equal(sample_rows(&near, l, row[0], 4), FST_OK);
    assert_int_equal(sample_score(&near, l, 9, &score[0], TOPS, top[0][0]), FST_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(row[1][i].id, row[0][i].id);
        assert_float_equal(row[1][i].logprob, row[0][i].logprob, 1e-5);
    }
    assert_int_equal(row[1][4].id, -1);
    assert_float_equal(score[1], score[0], 1e-5);
    for (int i = 0; i < 4; i += 3)
        for (int k1 = 0; k1 < TOPS; k1++) {
            assert_int_equal(top[1][i][k1].id, top[0][i][k1].id);
            assert_float_equal(top[1][i][k1].logprob, top[0][i][k1].logprob, 1e-5);
        }
    /* A row that is changed first: the alternatives and the log-probability are of the raw one. */
    for (int side = 0; side < 2; side++) {
        struct sampler *s = side ? &far : &near;
        float *raw = side ? there : l, *copy;
        struct sample_row *x = &row[side][3];
        *x = (struct sample_row){
            .params = &nucleus, .out_pos = 9, .n_top = TOPS, .top = top[side][3], .later = true};
        assert_int_equal(sample_rows(s, raw, x, 1), FST_OK);
        float was = x->logprob;
        int32_t id = x->id;
        assert_int_equal(sample_copy(s, raw, &copy), FST_OK);
        copy[id] = -INFINITY;
        copy[50] += 9;
        x->banned = banned;
        x->n_banned = 2;
        assert_int_equal(sample_later(s, raw, copy, x, 0), FST_OK);
        assert_int_not_equal(x->id, id);
        assert_int_equal(sample_take(s, raw, id, x, 0), FST_OK);
        assert_float_equal(x->logprob, was, 0);
        assert_int_equal(sample_copy(s, raw, &copy), FST_OK);
        for (int v = 0; v < V; v++)
            copy[v] = v == 7 || v == 8 ? copy[v] : -INFINITY; /* both are banned */
        assert_int_equal(sample_later(s, raw, copy, x, 0), FST_OK);
        assert_int_equal(x->id, SAMPLE_NONE);
        assert_int_equal(sample_copy(s, raw, &copy), FST_OK);
        copy[50] += 9;
        assert_int_equal(sample_later(s, raw, copy, x, 0), FST_OK);
    }
    assert_int_equal(row[1][3].id, row[0][3].id);
    assert_float_equal(row[1][3].logprob, row[0][3].logprob, 1e-5);
    for (int k1 = 0; k1 < TOPS; k1++)
        assert_int_equal(top[1][3][k1].id, top[0][3][k1].id);
    /* Logits that are still being made: whoever asks for a row gets it when it is there. */
    float *seen;
    assert_int_equal(stream_copy(&far_stream, there, l + V, V * sizeof *l), FST_OK);
    assert_int_equal(sample_host_row(&far, there, &seen), FST_OK);
    assert_memory_equal(seen, l + V, V * sizeof *l);
    device_free(&far_device, there, bytes);
    sample_release(&far);
    sample_release(&near);
    stream_release(&far_stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy), cmocka_unit_test(test_masks),
        cmocka_unit_test(test_nan),    cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_place),  cmocka_unit_test(test_large),
        cmocka_unit_test(test_score),  cmocka_unit_test(test_far_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
