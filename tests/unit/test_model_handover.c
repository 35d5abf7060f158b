/* What a set of kernels may pass from entry to entry through the model (kernels.h: operands, experts' outputs
 * left apart): a table that does so with ways of its own, and looks whether what arrives is what was left,
 * gives the bits of the same kernels without. */
#include "support/rig.h"

enum { FEW = 8, TOKENS = 40, DRAFT = 3, VOCAB = 512 };

static struct kernels plain;
static struct {
    int seams, added, attn_in, q_path, experts; /* that took something */
} seen;

static size_t bytes_of(int n_rows, int width)
{
    return (size_t)n_rows * (size_t)width * sizeof(float);
}

/* An operand here is a copy. */
static void expect_copy(const void *operand, const float *x, int n_rows, int width)
{
    assert_true(!operand == (n_rows > FEW));
    assert_true(!operand || memcmp(operand, x, bytes_of(n_rows, width)) == 0);
}

static float *sum_of_parts(const struct seam_args *a)
{
    float *y = rig_floats((int64_t)a->n_rows * a->dim);
    for (int64_t i = 0; i < (int64_t)a->n_rows * a->dim; i++) {
        int64_t row = i / a->dim, d = i % a->dim;
        y[i] = a->y[row * a->parts * a->dim + d];
        for (int e = 1; e < a->parts; e++)
            y[i] += a->y[(row * a->parts + e) * a->dim + d];
        y[i] += a->y[((int64_t)a->n_rows * a->parts + row) * a->dim + d];
    }
    return y;
}

static enum fst_status seam(const struct seam_args *a, struct stream *s)
{
    struct seam_args b = *a;
    float *y = a->parts ? sum_of_parts(a) : NULL;
    if (y)
        b.y = y;
    b.parts = 0;
    b.operand = NULL;
    enum fst_status rc = plain.seam(&b, s);
    assert_true(!a->operand == (a->n_rows > FEW || !a->fn));
    if (a->operand)
        memcpy(a->operand, a->out, bytes_of(a->n_rows, a->dim));
    seen.seams += a->operand != NULL;
    seen.added += y != NULL;
    free(y);
    return rc;
}

static enum fst_status attn_in(const struct attn_in_args *a, struct stream *s)
{
    struct attn_in_args b = *a;
    b.operand = b.qr_operand = NULL;
    enum fst_status rc = plain.attn_in(&b, s);
    if (!a->wq_a) { /* of an injection, whose x no seam made */
        assert_null(a->operand);
        assert_null(a->qr_operand);
        return rc;
    }
    expect_copy(a->operand, a->x, a->n_rows, a->wkv->n_in);
    assert_true(!a->qr_operand == !a->operand);
    if (a->qr_operand)
        memcpy(a->qr_operand, a->qr, bytes_of(a->n_rows, a->wq_a->n_out));
    seen.attn_in += a->operand != NULL;
    return rc;
}

static enum fst_status q_path(const struct q_path_args *a, struct stream *s)
{
    struct q_path_args b = *a;
    expect_copy(a->operand, a->qr, a->n_rows, a->wq_b->n_in);
    seen.q_path += a->operand != NULL;
    b.operand = NULL;
    return plain.q_path(&b, s);
}

/* The shared expert's place holds all, the others a zero that changes nothing. */
static enum fst_status experts(const struct experts_args *a, struct stream *s)
{
    struct experts_args b = *a;
    int64_t all = (int64_t)a->n_rows * a->dim;
    expect_copy(a->operand, a->x, a->n_rows, a->dim);
    assert_true(a->apart == (a->n_rows <= FEW));
    if (a->operand)
        memset(a->operand, 0x55, bytes_of(a->n_rows, a->dim)); /* used up */
    seen.experts += a->operand != NULL;
    b.operand = NULL;
    b.apart = false;
    if (a->apart)
        b.y = a->y + all * a->k;
    for (int64_t i = 0; i < all * a->k && a->apart; i++)
        a->y[i] = -0.0f;
    return plain.experts(&b, s);
}

static bool experts_apart(const struct experts_args *a)
{
    return a->n_rows <= FEW;
}

/* Logits of chunks below and above FEW rows, of a draft's block and of one token more. */
struct outcome {
    float logits[TOKENS * VOCAB], conf[DRAFT];
    int32_t ids[DRAFT];
};

static void play(const struct weights *w, const struct kernels *k, struct outcome *out)
{
    static const int chunks[] = {3, 12, 8, 9, 1, 6, 1};
    struct rig r;
    struct rig_opts o = {.w = w,
                         .kernels = k,
                         .precision = PRECISION_NATIVE,
                         .format = ROW_FP8,
                         .index_format = INDEX_FP4,
                         .max_rows = 12,
                         .n_slots = 2,
                         .context = 256,
                         .block = DRAFT + 1,
                         .drafting = true};
    int32_t ids[TOKENS];
    rig_open(&r, &o);
    hashweights_tokens(ids, TOKENS, VOCAB, 0);
    int slot = rig_slot(&r);
    int32_t at_slot = slot, anchor = ids[TOKENS - 1];
    uint32_t out_pos = 0;
    struct draw_params draw = {0};
    int64_t at = 0;
    for (size_t i = 0; i < FST_COUNT(chunks); at += chunks[i++]) {
        const float *logits = rig_run(&r, slot, at, ids + at, chunks[i]);
        memcpy(out->logits + at * VOCAB, logits, bytes_of(chunks[i], VOCAB));
        rig_inject(&r, 0, chunks[i]);
    }
    assert_int_equal(at, TOKENS);
    struct draft_batch b = {.n = 1,
                            .gamma = DRAFT,
                            .slot = &at_slot,
                            .n_committed = &at,
                            .anchor = &anchor,
                            .draw = &draw,
                            .out_pos = &out_pos,
                            .ids = out->ids,
                            .conf = out->conf};
    rig_ok(model_draft(r.m, &r.kv, &b));
    rig_close(&r);
}

static struct kernels table(void)
{
    struct kernels k = plain;
    k.seam = seam;
    k.attn_in = attn_in;
    k.q_path = q_path;
    k.experts = experts;
    k.operand_rows = FEW;
    k.operand_bytes = bytes_of;
    k.experts_apart = experts_apart;
    return k;
}

static void test_forward_and_draft(void **state)
{
    struct hashweights_spec spec = rig_small(HASHWEIGHTS_FP4);
    struct weights *w = rig_weights(&spec);
    struct outcome *want = calloc(2, sizeof *want), *got = want + 1;
    (void)state;
    assert_non_null(want);
    assert_int_equal(w->config.vocab_size, VOCAB);
    kernels_init(&plain, kernels_probe());
    memset(&seen, 0, sizeof seen);
    struct kernels k = table();
    play(w, &plain, want);
    play(w, &k, got);
    rig_same(got->logits, want->logits, TOKENS * VOCAB, "logits");
    rig_same(got->conf, want->conf, DRAFT, "confidence");
    assert_memory_equal(got->ids, want->ids, sizeof want->ids);
    int layers = 5 * w->config.n_layers + w->n_stages; /* of steps of few rows, and the draft */
    assert_int_equal(seen.seams, 2 * layers);
    assert_int_equal(seen.added, layers);
    assert_int_equal(seen.attn_in, layers);
    assert_int_equal(seen.q_path, layers);
    assert_int_equal(seen.experts, layers);
    weights_free(w);
    free(want);
}

/* The block of preview checkpoints, whose experts a last seam adds up. */
static void test_mtp(void **state)
{
    struct hashweights_spec spec = hashweights_t1();
    struct weights *w = rig_weights(&spec);
    float *want = rig_floats(6 * VOCAB);
    int32_t ids[7];
    (void)state;
    kernels_init(&plain, 0);
    memset(&seen, 0, sizeof seen);
    struct kernels k[] = {plain, table()};
    hashweights_tokens(ids, 7, VOCAB, 0);
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct rig_opts o = {.w = w,
                             .kernels = &k[i],
                             .precision = PRECISION_REFERENCE,
                             .format = ROW_F32,
                             .index_format = INDEX_F32,
                             .max_rows = 6,
                             .n_slots = 1,
                             .context = 256,
                             .drafting = true};
        float *logits = rig_floats(6 * VOCAB);
        rig_open(&r, &o);
        int slot = rig_slot(&r);
        rig_run(&r, slot, 0, ids, 6);
        rig_mtp(&r, slot, ids, 6, logits);
        if (i)
            rig_same(logits, want, 6 * VOCAB, "logits of the block");
        memcpy(want, logits, bytes_of(6, VOCAB));
        free(logits);
        rig_close(&r);
    }
    assert_int_equal(seen.added, w->config.n_layers + 6);
    weights_free(w);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward_and_draft),
                                       cmocka_unit_test(test_mtp)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
