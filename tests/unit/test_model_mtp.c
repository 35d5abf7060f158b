/* The MTP block as a drafter: its window from held streams, chains of drafts, what a round leaves behind. */
#include "support/rig.h"

#include "kernels/ref/ref.h"

enum { VOCAB = 512, STEPS = MODEL_MTP_STEPS, RING = 128 + STEPS };

static struct weights *t1, *real;

/* T1 in fp32; the kernels' own shapes with FP4 experts and fp8 rows. */
static int setup(void **state)
{
    struct hashweights_spec a = hashweights_t1(), b = rig_small_mtp(HASHWEIGHTS_FP4);
    (void)state;
    t1 = rig_weights(&a);
    real = rig_weights(&b);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    weights_free(t1);
    weights_free(real);
    return 0;
}

static struct rig_opts options(const struct weights *w, int rows)
{
    bool reference = w == t1;
    return (struct rig_opts){.w = w,
                             .precision = reference ? PRECISION_REFERENCE : PRECISION_NATIVE,
                             .format = reference ? ROW_F32 : ROW_FP8,
                             .index_format = reference ? INDEX_F32 : INDEX_FP4,
                             .max_rows = rows,
                             .n_slots = 2,
                             .context = 512,
                             .block = STEPS + 1,
                             .threads = 2,
                             .drafting = true};
}

struct round {
    int32_t ids[STEPS];
    float logits[STEPS * VOCAB];
};

static void draft(struct rig *r, int slot, int64_t n, int32_t anchor, struct round *out)
{
    rig_mtp_round(r, slot, n, anchor, STEPS, out->ids, out->logits);
}

static void expect(const struct round *got, const struct round *want, const char *what)
{
    rig_same(got->logits, want->logits, STEPS * VOCAB, what);
    assert_memory_equal(got->ids, want->ids, sizeof got->ids);
}

static struct kv_layer *window_of(struct rig *r)
{
    return &r->kv.layer[r->w->config.n_layers];
}

static void spoil(struct rig *r)
{
    struct kv_layer *l = window_of(r);
    memset(l->nope, 0x11, (size_t)(l->n_rows * (r->w == t1 ? 4 * r->w->config.head_dim : 512)));
}

/* Rows first .. first+n-1 of the last step, which began at position 0. */
static void hold(struct rig *r, int first, int n)
{
    rig_ok(model_hold(r->m, &r->kv, &r->rows, r->pick + first, n));
}

static void inject(struct rig *r, int slot, const int32_t *ids, int64_t from, int64_t to)
{
    struct model_held h = {slot, from, to, ids + from + 1};
    if (from < to) /* a round that accepted nothing has left its one row */
        rig_ok(model_inject_held(r->m, &r->kv, &h, 1));
}

/* A round after n positions gives the same bits whatever way the window came: drafted position by
 * position, injected from held streams at once, in two calls, in cuts as steps of any size hold them, or only
 * what the window shows. */
static void test_any_way(void **state)
{
    static struct round want, got;
    int32_t ids[RING + 171];
    (void)state;
    for (int which = 0; which < 2; which++) {
        const struct weights *w = which ? real : t1;
        int window = w->config.window, n = window + test_size(37, 170, 20);
        struct rig r;
        struct rig_opts o = options(w, n);
        struct test_rng rng = {9};
        hashweights_tokens(ids, n + 1, VOCAB, 2);
        rig_open(&r, &o);
        int slot = rig_slot(&r), keep = r.kv.ring, first = n - keep;
        rig_run(&r, slot, 0, ids, n);
        for (int p = 0; p < n; p++) { /* each position as a round of its own */
            hold(&r, p, 1);
            draft(&r, slot, p + 1, ids[p + 1], &want);
        }
        for (int way = 0; way < 4; way++) {
            spoil(&r);
            if (way < 3)
                hold(&r, first, keep);
            for (int at = 0, len; way == 3 && at < n; at += len) {
                len = 1 + test_below(&rng, 40);
                len = FST_MIN(len, n - at);
                hold(&r, at, len);
            }
            if (way == 0) {
                inject(&r, slot, ids, first, n - 1);
            } else if (way == 1) {
                inject(&r, slot, ids, first, n - 7);
                inject(&r, slot, ids, n - 7, n - 1);
            } else {
                inject(&r, slot, ids, n - window, n - 1);
            }
            draft(&r, slot, n, ids[n], &got);
            expect(&got, &want, "a way to the window");
            draft(&r, slot, n, ids[n], &got);
            expect(&got, &want, "the same round again");
        }
        rig_close(&r);
    }
}

/* A round's own rows of the window are its first one's alone: what it drafted is overwritten when others are
 * committed there, and a run with rejected rounds in between ends as one without. */
static void test_rejected_rounds(void **state)
{
    enum { N = 150 };
    static struct round want, got;
    int32_t ids[N + 1];
    struct rig r;
    struct rig_opts o = options(real, N);
    (void)state;
    hashweights_tokens(ids, N + 1, VOCAB, 4);
    rig_open(&r, &o);
    for (int way = 0; way < 2; way++) {
        int slot = rig_slot(&r);
        struct test_rng rng = {5};
        rig_run(&r, slot, 0, ids, 20);
        hold(&r, 0, 20);
        inject(&r, slot, ids, 0, 19);
        for (int64_t n = 20; n < N;) {
            int len = 1 + test_below(&rng, STEPS + 1);
            len = (int)FST_MIN((int64_t)len, N - n);
            if (way)
                draft(&r, slot, n, ids[n], &got);
            rig_run(&r, slot, n, ids + n, len);
            rig_ok(model_hold(r.m, &r.kv, &r.rows, r.pick, len));
            inject(&r, slot, ids, n - !way, n + len - 1);
            n += len;
        }
        draft(&r, slot, N, ids[N], way ? &got : &want);
        kv_slot_close(&r.kv, slot);
    }
    expect(&got, &want, "after rejected rounds");
    rig_close(&r);
}

/* The first draft's position sees n-window .. n-1 and nothing else; the next steps go on from what it saw. */
static void test_mask(void **state)
{
    enum { N = 60 };
    static struct round want, got;
    int32_t ids[N + 1];
    struct rig r;
    struct rig_opts o = options(t1, N);
    (void)state;
    hashweights_tokens(ids, N + 1, VOCAB, 5);
    rig_open(&r, &o);
    int slot = rig_slot(&r), w = t1->config.window, wide = t1->config.head_dim;
    struct kv_layer *l = window_of(&r);
    rig_run(&r, slot, 0, ids, N);
    hold(&r, N - r.kv.ring, r.kv.ring);
    inject(&r, slot, ids, N - r.kv.ring, N - 1);
    draft(&r, slot, N, ids[N], &want);
    for (int back = w + 1; back >= w - STEPS; back--) {
        /* only the ring's rows that no step of the round writes */
        float *row =
            (float *)(void *)l->nope + ((int64_t)slot * l->ring + (N - back) % l->ring) * wide;
        float was = row[7];
        row[7] += 1;
        draft(&r, slot, N, ids[N], &got);
        row[7] = was;
        for (int k = 0; k < STEPS; k++)
            assert_int_equal(memcmp(got.logits + k * VOCAB, want.logits + k * VOCAB,
                                    VOCAB * sizeof *got.logits) == 0,
                             back > w);
    }
    rig_close(&r);
}

/* Rounds of two requests together are those of each alone, and a shorter one is a longer one's beginning. */
static void test_batch(void **state)
{
    static struct round alone[2];
    int32_t ids[2][91], together[2 * 2];
    static float logits[2 * 2 * VOCAB];
    struct rig r;
    struct rig_opts o = options(t1, 100);
    (void)state;
    rig_open(&r, &o);
    int32_t slot[2] = {rig_slot(&r), rig_slot(&r)};
    int64_t n[2] = {90, 41};
    for (int i = 0; i < 2; i++) {
        int first = (int)n[i] - r.kv.ring;
        hashweights_tokens(ids[i], 91, VOCAB, (uint64_t)i + 7);
        rig_run(&r, slot[i], 0, ids[i], (int)n[i]);
        hold(&r, first, r.kv.ring);
        inject(&r, slot[i], ids[i], first, n[i] - 1);
        draft(&r, slot[i], n[i], ids[i][n[i]], &alone[i]);
    }
    struct draw_params greedy[2] = {{0}};
    uint32_t out[2] = {0};
    int32_t anchor[2] = {ids[0][90], ids[1][41]};
    struct draft_batch d = {.n = 2,
                            .gamma = 2,
                            .slot = slot,
                            .n_committed = n,
                            .anchor = anchor,
                            .draw = greedy,
                            .out_pos = out,
                            .ids = together,
                            .logits = logits};
    rig_ok(model_draft(r.m, &r.kv, &d));
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(together + 2 * i, alone[i].ids, 2 * sizeof *together);
        rig_same(logits + 2 * i * VOCAB, alone[i].logits, 2 * VOCAB, "of two together");
    }
    rig_close(&r);
}

/* Draws are those of draw() on the step's own logits, at the drafts' own output positions; what is no number
 * is never drawn, and no step is asked for an embedding that is not there. */
static int spoil_step;

static enum fst_status tap_head(const struct head_args *a, struct stream *s)
{
    enum fst_status rc = head_ref(a, s);
    for (int64_t i = 0; spoil_step && i < (int64_t)a->n * a->head->n_out; i++)
        a->logits[i] = NAN;
    return rc;
}

static void test_draws(void **state)
{
    static struct kernels k;
    int32_t ids[31], a[STEPS], b[STEPS], c[STEPS];
    static float logits[STEPS * VOCAB];
    struct rig r;
    struct rig_opts o = options(t1, 30);
    (void)state;
    kernels_init(&k, 0);
    k.head = tap_head;
    o.kernels = &k;
    rig_open(&r, &o);
    hashweights_tokens(ids, 31, VOCAB, 9);
    int slot = rig_slot(&r);
    int64_t n = 30;
    rig_run(&r, slot, 0, ids, 30);
    hold(&r, 30 - r.kv.ring, r.kv.ring);
    inject(&r, slot, ids, 30 - r.kv.ring, 29);
    struct draw_params draw = {.temperature = 1, .seed = 77};
    uint32_t out = 4;
    struct draft_batch d = {.n = 1,
                            .gamma = STEPS,
                            .slot = &slot,
                            .n_committed = &n,
                            .anchor = &ids[30],
                            .draw = &draw,
                            .out_pos = &out,
                            .ids = a,
                            .logits = logits};
    rig_ok(model_draft(r.m, &r.kv, &d));
    struct draw_params same[STEPS];
    uint32_t at[STEPS];
    for (int i = 0; i < STEPS; i++) {
        same[i] = draw;
        at[i] = out + (uint32_t)i;
    }
    struct draw_args one = {
        .logits = logits, .draw = same, .out_pos = at, .id = b, .n = STEPS, .vocab = VOCAB};
    rig_ok(draw_ref(&one, &r.stream));
    assert_memory_equal(a, b, sizeof a);
    draw.seed++;
    d.ids = c;
    rig_ok(model_draft(r.m, &r.kv, &d));
    assert_memory_not_equal(a, c, sizeof a);
    spoil_step = 1;
    rig_ok(model_draft(r.m, &r.kv, &d));
    spoil_step = 0;
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(c[i], 0);
    rig_close(&r);
}

/* Nobody allocates behind model_open. */
static void test_no_allocation(void **state)
{
    static struct round got;
    int32_t ids[41];
    struct rig r;
    struct rig_opts o = options(t1, 40);
    (void)state;
    rig_open(&r, &o);
    hashweights_tokens(ids, 41, VOCAB, 0);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, ids, 40);
    uint64_t before = mem_count();
    hold(&r, 40 - r.kv.ring, r.kv.ring);
    inject(&r, slot, ids, 40 - r.kv.ring, 39);
    draft(&r, slot, 40, ids[40], &got);
    assert_true(mem_count() == before);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_way), cmocka_unit_test(test_rejected_rounds),
        cmocka_unit_test(test_mask),    cmocka_unit_test(test_batch),
        cmocka_unit_test(test_draws),   cmocka_unit_test(test_no_allocation)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
