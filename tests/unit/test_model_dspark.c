/* The drafter's windows, mask, positions and Markov chain. */
#include "support/rig.h"

#include "kernels/ref/ref.h"

static struct weights *tiny, *small;

static int setup(void **state)
{
    struct hashweights_spec a = hashweights_dspark(), b = rig_small(HASHWEIGHTS_FP4);
    (void)state;
    tiny = rig_weights(&a);
    small = rig_weights(&b);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    weights_free(tiny);
    weights_free(small);
    return 0;
}

/* What the chain saw and made, of the last draft. */
static struct {
    float base[5 * 512], corrected[5 * 512];
    int32_t ids[5];
    float conf[5];
    bool bend_last_row; /* add to the block's last KV row */
} seen;

static enum fst_status tap_chain(const struct draft_chain_args *a, struct stream *s)
{
    struct draft_chain_args b = *a;
    b.corrected = seen.corrected;
    memcpy(seen.base, a->base, sizeof seen.base);
    return draft_chain_ref(&b, s);
}

static enum fst_status tap_attention(const struct attention_args *a, struct stream *s)
{
    if (!seen.bend_last_row || a->mode != ATTN_BLOCK)
        return attention_ref(a, s);
    int64_t n = (int64_t)a->rows->n_rows * a->head_dim;
    float *kv = rig_floats(n);
    memcpy(kv, a->kv, (size_t)n * sizeof *kv);
    kv[n - 100] += 1;
    struct attention_args b = *a;
    b.kv = kv;
    enum fst_status rc = attention_ref(&b, s);
    free(kv);
    return rc;
}

static const struct kernels *table(void)
{
    static struct kernels k;
    kernels_init(&k, 0);
    k.draft_chain = tap_chain;
    k.attention = tap_attention;
    return &k;
}

static struct rig_opts options(const struct weights *w, int rows)
{
    bool reference = w == tiny;
    return (struct rig_opts){.w = w,
                             .kernels = table(),
                             .precision = reference ? PRECISION_REFERENCE : PRECISION_NATIVE,
                             .format = reference ? ROW_F32 : ROW_FP8,
                             .index_format = reference ? INDEX_F32 : INDEX_FP4,
                             .max_rows = rows,
                             .n_slots = 2,
                             .context = 512,
                             .block = 6,
                             .threads = 2,
                             .drafting = true};
}

static void draft(struct rig *r, int slot, int64_t n, int32_t anchor)
{
    struct draw_params greedy = {0};
    uint32_t out = 0;
    struct draft_batch d = {.n = 1,
                            .gamma = 5,
                            .slot = &slot,
                            .n_committed = &n,
                            .anchor = &anchor,
                            .draw = &greedy,
                            .out_pos = &out,
                            .ids = seen.ids,
                            .conf = seen.conf};
    rig_ok(model_draft(r->m, &r->kv, &d));
}

/* Held in pieces of any size, as steps without drafts would, and injected from there: whole, or in two parts that
 * each need more than one call where the workspace is small. */
static void hold_and_inject(struct rig *r, int slot, int n, struct test_rng *rng, bool parts)
{
    int keep = model_held_rows(r->m, &r->kv), from = FST_MAX(0, n - keep);
    struct model_held h[1] = {{.slot = slot, .from = from, .to = n}};
    for (int at = 0, len; at < n; at += len) {
        len = 1 + test_below(rng, 40);
        len = FST_MIN(len, n - at);
        rig_ok(model_hold(r->m, &r->kv, &r->rows, r->pick + at, len));
    }
    if (parts) {
        h->to = from + keep / 3;
        rig_ok(model_inject_held(r->m, &r->kv, h, 1));
        h->from = h->to;
        h->to = n;
    }
    rig_ok(model_inject_held(r->m, &r->kv, h, 1));
}

/* 300 positions injected at once, in cuts, as verify steps would, only the last window, or held before. */
static void test_any_split(void **state)
{
    static const int cuts[] = {1, 127, 128, 44};
    float want[5 * 512];
    int32_t ids[301];
    (void)state;
    for (int which = 0; which < 2; which++) {
        const struct weights *w = which ? small : tiny;
        int n = which ? test_size(160, 300, 140) : 300;
        struct rig r;
        struct rig_opts o = options(w, n);
        struct test_rng rng = {9};
        hashweights_tokens(ids, n + 1, 512, 2);
        rig_open(&r, &o);
        int slot = rig_slot(&r);
        rig_run(&r, slot, 0, ids, n); /* captured once; injection alone is under test */
        for (int way = 0; way < 6; way++) {
            /* old rows of the stages' windows are made useless first */
            for (int l = w->config.n_layers; l < r.kv.spec.n_layers; l++)
                memset(r.kv.layer[l].nope, 0x11,
                       (size_t)(r.kv.layer[l].n_rows * (which ? 512 : 4 * 128)));
            if (way >= 4)
                hold_and_inject(&r, slot, n, &rng, way == 5);
            for (int at = 0, i = 0, len; at < n && way < 4; at += len, i++) {
                len = way == 0 ? n : way == 1 ? cuts[FST_MIN(i, 3)] : 1 + test_below(&rng, 6);
                len = FST_MIN(len, n - at);
                if (way == 3) {
                    at = n - w->config.window;
                    len = w->config.window;
                }
                rig_inject(&r, at, len);
            }
            draft(&r, slot, n, ids[n]);
            if (way == 0)
                memcpy(want, seen.corrected, sizeof want);
            rig_same(seen.corrected, want, 5 * 512, way == 1 ? "cuts" : "other ways");
        }
        rig_close(&r);
    }
}

/* Two slots' held rows in one call, in a workspace of few rows: each gets its own, those of another tenant of the
 * ring's place are not touched. */
static void test_held_together(void **state)
{
    enum { ROWS = 40, N = 200 };
    static int32_t ids[2][N + 1];
    float want[2][5 * 512];
    struct rig r;
    struct rig_opts o = options(small, ROWS);
    int slot[2];
    (void)state;
    rig_open(&r, &o);
    for (int i = 0; i < 2; i++) {
        hashweights_tokens(ids[i], N + 1, 512, (uint64_t)i + 5);
        slot[i] = rig_slot(&r);
    }
    for (int held = 0; held < 2; held++) {
        struct model_held h[2];
        for (int at = 0; at < N; at += ROWS)
            for (int i = 0; i < 2; i++) {
                rig_run(&r, slot[i], at, ids[i] + at, ROWS);
                if (held)
                    rig_ok(model_hold(r.m, &r.kv, &r.rows, r.pick, ROWS));
                else
                    rig_inject(&r, 0, ROWS);
            }
        if (held) {
            for (int l = small->config.n_layers; l < r.kv.spec.n_layers; l++)
                memset(r.kv.layer[l].nope, 0x11, (size_t)(r.kv.layer[l].n_rows * 512));
            for (int i = 0; i < 2; i++)
                h[i] = (struct model_held){slot[i], N - small->config.window, N, NULL};
            rig_ok(model_inject_held(r.m, &r.kv, h, 2));
        }
        for (int i = 0; i < 2; i++) {
            draft(&r, slot[i], N, ids[i][N]);
            if (!held)
                memcpy(want[i], seen.corrected, sizeof want[i]);
            rig_same(seen.corrected, want[i], 5 * 512, "held");
        }
    }
    rig_close(&r);
}

static float *stage_row(struct rig *r, int stage, int slot, int64_t p)
{
    struct kv_layer *l = &r->kv.layer[r->w->config.n_layers + stage];
    return (float *)(void *)(l->nope + (slot * l->ring + p % l->ring) * 128 * 4);
}

static int rows_changed(const float *was)
{
    int n = 0;
    for (int k = 0; k < 5; k++)
        n += memcmp(seen.base + k * 512, was + k * 512, 512 * sizeof *was) != 0;
    return n;
}

/* Every row of the block sees n-window .. n-1 and the whole block, and nothing else. */
static void test_mask(void **state)
{
    struct rig r;
    int32_t ids[101];
    float was[5 * 512];
    (void)state;
    struct rig_opts o = options(tiny, 100);
    rig_open(&r, &o);
    hashweights_tokens(ids, 101, 512, 5);
    int slot = rig_slot(&r), w = tiny->config.window;
    rig_run(&r, slot, 0, ids, 100);
    rig_inject(&r, 0, 100);
    draft(&r, slot, 100, ids[100]);
    memcpy(was, seen.base, sizeof was);
    for (int stage = 0; stage < 3; stage++) {
        stage_row(&r, stage, slot, 100 - w - 1)[7] += 1;
        draft(&r, slot, 100, ids[100]);
        assert_int_equal(rows_changed(was), 0);
        stage_row(&r, stage, slot, 100 - w)[7] += 1;
        draft(&r, slot, 100, ids[100]);
        assert_int_equal(rows_changed(was), 5);
        stage_row(&r, stage, slot, 100 - w)[7] -= 1;
        stage_row(&r, stage, slot, 100)[7] += 1; /* the anchor's own place is not in the window */
        draft(&r, slot, 100, ids[100]);
        memcpy(was, seen.base, sizeof was); /* += 1 - 1 may leave an ulp */
        stage_row(&r, stage, slot, 100)[7] += 1;
        draft(&r, slot, 100, ids[100]);
        assert_int_equal(rows_changed(was), 0);
    }
    seen.bend_last_row = true;
    draft(&r, slot, 100, ids[100]);
    seen.bend_last_row = false;
    assert_int_equal(rows_changed(was), 5); /* row 0 sees row gamma-1 */
    rig_close(&r);
}

/* The anchor's position is n: one more or less is another block. */
static void test_position(void **state)
{
    struct rig r;
    int32_t ids[101];
    float was[5 * 512];
    (void)state;
    struct rig_opts o = options(tiny, 100);
    rig_open(&r, &o);
    hashweights_tokens(ids, 101, 512, 6);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, ids, 100);
    rig_inject(&r, 0, 100);
    draft(&r, slot, 99, ids[100]);
    memcpy(was, seen.base, sizeof was);
    draft(&r, slot, 100, ids[100]);
    assert_int_equal(rows_changed(was), 5);
    assert_true(rig_rel_l2(seen.base, was, 5 * 512) > 1e-2);
    rig_close(&r);
}

/* Drafts of several requests together, and of fewer tokens, are those of each alone. */
static void test_batch(void **state)
{
    struct rig r;
    int32_t ids[2][91], alone[2][5], together[10];
    (void)state;
    struct rig_opts o = options(tiny, 100);
    rig_open(&r, &o);
    int32_t slot[2] = {rig_slot(&r), rig_slot(&r)};
    int64_t n[2] = {90, 41};
    for (int i = 0; i < 2; i++) {
        hashweights_tokens(ids[i], 91, 512, (uint64_t)i + 7);
        rig_run(&r, slot[i], 0, ids[i], (int)n[i]);
        rig_inject(&r, 0, (int)n[i]);
    }
    for (int i = 0; i < 2; i++) {
        draft(&r, slot[i], n[i], ids[i][n[i]]);
        memcpy(alone[i], seen.ids, sizeof alone[i]);
    }
    struct draw_params greedy[2] = {{0}};
    uint32_t out[2] = {0};
    int32_t anchor[2] = {ids[0][90], ids[1][41]};
    float conf[10];
    struct draft_batch d = {.n = 2,
                            .gamma = 5,
                            .slot = slot,
                            .n_committed = n,
                            .anchor = anchor,
                            .draw = greedy,
                            .out_pos = out,
                            .ids = together,
                            .conf = conf};
    static struct kernels plain; /* the tap holds one request's logits */
    kernels_init(&plain, 0);
    struct rig p;
    o.kernels = &plain;
    rig_open(&p, &o);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rig_slot(&p), slot[i]);
        rig_run(&p, slot[i], 0, ids[i], (int)n[i]);
        rig_inject(&p, 0, (int)n[i]);
    }
    rig_ok(model_draft(p.m, &p.kv, &d));
    assert_memory_equal(together, alone[0], sizeof alone[0]);
    assert_memory_equal(together + 5, alone[1], sizeof alone[1]);
    rig_close(&p);
    rig_close(&r);
}

/* The Markov head with made-up matrices. */
static void test_markov(void **state)
{
    enum { V = 512, R = 64 };
    static float w1[V * R], w2[V * R];
    struct rig r;
    int32_t ids[31];
    (void)state;
    struct weights *w = malloc(sizeof *w);
    assert_non_null(w);
    *w = *tiny;
    w->dspark.markov_w1 = (struct mat){.fmt = WEIGHT_F32, .n_out = V, .n_in = R, .data = w1};
    w->dspark.markov_w2 = (struct mat){.fmt = WEIGHT_F32, .n_out = V, .n_in = R, .data = w2};
    struct rig_opts o = options(w, 30);
    o.precision = PRECISION_REFERENCE;
    o.format = ROW_F32;
    o.index_format = INDEX_F32;
    rig_open(&r, &o);
    hashweights_tokens(ids, 31, V, 8);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, ids, 30);
    rig_inject(&r, 0, 30);
    draft(&r, slot, 30, ids[30]); /* all zero: every draft is the argmax of its base row */
    for (int k = 0; k < 5; k++)
        assert_int_equal(seen.ids[k], rig_argmax(seen.base + k * V, V));
    /* token t lights dim t % 64 and is followed by 3t + 1 mod 512, whatever the base says */
    int32_t want = ids[30];
    for (int k = 0; k < 6; k++) {
        int32_t next = (3 * want + 1) % V;
        memset(w1 + want * R, 0, R * sizeof *w1);
        w1[want * R + k] = 1;
        w2[next * R + k] = 1e4f;
        want = next;
    }
    draft(&r, slot, 30, ids[30]);
    want = ids[30];
    for (int k = 0; k < 5; k++) {
        want = (3 * want + 1) % V;
        assert_int_equal(seen.ids[k], want);
    }
    rig_close(&r);
    free(w);
}

/* Gumbel draws: temperature enters the drafter's own logits, seed and output position the noise. */
static void test_draws(void **state)
{
    struct rig r;
    int32_t ids[31], a[5], b[5], c[5];
    (void)state;
    struct rig_opts o = options(tiny, 30);
    rig_open(&r, &o);
    hashweights_tokens(ids, 31, 512, 9);
    int slot = rig_slot(&r);
    int64_t n = 30;
    rig_run(&r, slot, 0, ids, 30);
    rig_inject(&r, 0, 30);
    struct draw_params draw = {.temperature = 1, .seed = 77};
    uint32_t out = 4;
    struct draft_batch d = {.n = 1,
                            .gamma = 5,
                            .slot = &slot,
                            .n_committed = &n,
                            .anchor = &ids[30],
                            .draw = &draw,
                            .out_pos = &out,
                            .ids = a};
    rig_ok(model_draft(r.m, &r.kv, &d)); /* without confidences */
    /* row k of the chain is what draw() makes of its corrected logits at position out + k */
    struct draw_params same[5];
    uint32_t at[5];
    for (int k = 0; k < 5; k++) {
        same[k] = draw;
        at[k] = out + (uint32_t)k;
    }
    struct draw_args alone = {
        .logits = seen.corrected, .draw = same, .out_pos = at, .id = b, .n = 5, .vocab = 512};
    rig_ok(draw_ref(&alone, &r.stream));
    assert_memory_equal(a, b, sizeof a);
    draw.seed++;
    d.ids = c;
    rig_ok(model_draft(r.m, &r.kv, &d));
    assert_memory_not_equal(a, c, sizeof a);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split), cmocka_unit_test(test_held_together),
        cmocka_unit_test(test_mask),      cmocka_unit_test(test_position),
        cmocka_unit_test(test_batch),     cmocka_unit_test(test_markov),
        cmocka_unit_test(test_draws)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
