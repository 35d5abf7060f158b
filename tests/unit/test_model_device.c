/* The seam to a card: a model whose weights, KV and workspace lie where the host cannot look gives the
 * bits that it gives on the host. */
#include "support/far.h"
#include "support/rig.h"
#include "weights/io.h"

enum { VOCAB = 512, N = 150, DRAFT = 3 };

/* far.h is no place for threads; stages that cut tensors and hold many. */
static const struct weights_upload_opts one_reader = {.n_threads = 1, .stage_bytes = 40000};

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
    rig_ok(weights_upload(w, &far_device, &one_reader));
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

/* ---------------------------------------------------------------- recorded steps */

enum { SLOTS = 4, ROWS = 16, CONTEXT = 512 };

/* The host, and the device that records; both get the same calls. */
struct pair {
    struct rig rig[2];
    int slot[SLOTS];
    int64_t n[SLOTS]; /* positions so far */
    struct kernels k[2];
    struct batch {
        int32_t slot[SLOTS], anchor[SLOTS], ids[SLOTS * DRAFT];
        int64_t n[SLOTS];
        uint32_t out_pos[SLOTS];
        struct draw_params draw[SLOTS];
    } * batch[2]; /* shared memory */
    struct test_rng rng;
};

static void pair_weights(struct weights *w[2], bool mtp)
{
    struct hashweights_spec spec =
        mtp ? rig_small_mtp(HASHWEIGHTS_FP4) : rig_small(HASHWEIGHTS_FP4);
    for (int i = 0; i < 2; i++)
        w[i] = rig_weights(&spec);
    rig_ok(weights_upload(w[1], &far_device, &one_reader));
}

static void pair_weights_free(struct weights *w[2])
{
    weights_free(w[0]);
    weights_free(w[1]);
    assert_int_equal(far_state.n, 0);
}

static void pair_open(struct pair *p, struct weights *w[2], bool disable_graphs)
{
    *p = (struct pair){.rng = {.s = 7}};
    kernels_init(&p->k[0], kernels_probe());
    rig_ok(kernels_of_device(&p->k[1], &far_device, NULL, PRECISION_NATIVE));
    for (int i = 0; i < 2; i++) {
        const struct device *d = i ? &far_device : NULL;
        struct rig_opts o = {.w = w[i],
                             .kernels = &p->k[i],
                             .device = d,
                             .precision = PRECISION_NATIVE,
                             .format = ROW_FP8,
                             .index_format = INDEX_FP4,
                             .max_rows = ROWS,
                             .n_slots = SLOTS,
                             .context = CONTEXT,
                             .block = DRAFT + 1,
                             .drafting = true,
                             .disable_graphs = disable_graphs};
        rig_open(&p->rig[i], &o);
        for (int s = 0; s < SLOTS; s++)
            p->slot[s] = rig_slot(&p->rig[i]);
        p->batch[i] = device_alloc_shared(d, sizeof *p->batch[i]);
        assert_non_null(p->batch[i]);
    }
    far_state.begun = far_state.ended = far_state.launched = 0;
}

static void pair_close(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        device_free_shared(p->rig[i].stream.device, p->batch[i], sizeof *p->batch[i]);
        rig_close(&p->rig[i]);
    }
    assert_int_equal(far_state.held, 0);
    assert_false(far_state.recording);
}

/* A step of these spans with arrays that no step before or after has, nor any device can read: the
 * logits of the last n_logits rows, on both. */
static void pair_step(struct pair *p, const struct rig_span *span, int n_spans, int n_logits)
{
    float *logits[2];
    int n = 0;
    for (int i = 0; i < 2; i++) {
        struct rig *r = &p->rig[i];
        rig_rows(r, span, n_spans);
        n = r->rows.n_rows;
        int32_t *copy = calloc((size_t)n * 6 + 1, sizeof *copy);
        assert_non_null(copy);
        const int32_t *from[] = {r->slot, r->pos, r->id, r->span, r->pick, r->first};
        for (int k = 0; k < 6; k++)
            memcpy(copy + k * n, from[k], (size_t)(k < 5 ? n : n_spans + 1) * sizeof *copy);
        struct rows rows = r->rows;
        rows.slot = copy;
        rows.pos = copy + n;
        rows.id = copy + 2 * n;
        rows.span = copy + 3 * n;
        rows.span_first = copy + 5 * n;
        rig_ok(model_forward(r->m, &r->kv, &rows, copy + 5 * n - n_logits, n_logits, &logits[i]));
        logits[i] = rig_logits(r, logits[i], n_logits);
        free(copy);
    }
    rig_same(logits[1], logits[0], (int64_t)n_logits * VOCAB, "logits of a recorded step");
}

/* The same for an MTP block: held, then those in front of the last one injected. */
static void pair_hold(struct pair *p, struct rig *r, const int32_t *row, int rows, int n)
{
    struct model_held h[SLOTS];
    int held = 0;
    rig_ok(model_hold(r->m, &r->kv, &r->rows, row, rows));
    for (int s = 0; s < n; s++) {
        int t = r->first[s];
        if (r->pos[t] < p->n[s] - 1)
            h[held++] = (struct model_held){p->slot[s], r->pos[t], p->n[s] - 1, r->id + t + 1};
    }
    rig_ok(model_inject_held(r->m, &r->kv, h, held));
}

/* The rows of the step that stay, into the drafter; then a draft for the first n slots. */
static void pair_draft(struct pair *p, int n)
{
    for (int i = 0; i < 2; i++) {
        struct rig *r = &p->rig[i];
        struct batch *b = p->batch[i];
        int32_t row[ROWS];
        int rows = 0;
        for (int t = 0; t < r->rows.n_rows; t++)
            if (r->pos[t] < p->n[r->slot[t] - p->slot[0]])
                row[rows++] = t;
        if (r->w->config.has_mtp)
            pair_hold(p, r, row, rows, n);
        else
            rig_ok(model_inject(r->m, &r->kv, &r->rows, row, rows));
        for (int s = 0; s < n; s++) {
            b->slot[s] = p->slot[s];
            b->anchor[s] = (int32_t)(p->n[s] * 7 % VOCAB);
            b->n[s] = p->n[s];
            b->out_pos[s] = (uint32_t)p->n[s];
            b->draw[s] = (struct draw_params){.temperature = 1, .seed = 5};
        }
        struct draft_batch d = {.n = n,
                                .gamma = DRAFT,
                                .slot = b->slot,
                                .n_committed = b->n,
                                .anchor = b->anchor,
                                .draw = b->draw,
                                .out_pos = b->out_pos,
                                .ids = b->ids};
        rig_ok(model_draft(r->m, &r->kv, &d));
    }
    assert_memory_equal(p->batch[1]->ids, p->batch[0]->ids,
                        (size_t)n * DRAFT * sizeof *p->batch[0]->ids);
}

/* A step as an engine makes them: the first n slots go on by 1 .. DRAFT + 1 rows of which some stay,
 * then drafts. */
static void pair_turn(struct pair *p)
{
    struct rig_span span[SLOTS];
    int32_t ids[SLOTS][DRAFT + 1];
    int n = 1 + test_below(&p->rng, SLOTS), rows = test_below(&p->rng, 2) ? 1 : DRAFT + 1, all = 0;
    for (int s = 0; s < n; s++) {
        for (int i = 0; i < rows; i++)
            ids[s][i] = test_below(&p->rng, VOCAB);
        span[s] = (struct rig_span){p->slot[s], p->n[s], ids[s], rows};
        all += rows;
    }
    pair_step(p, span, n, test_below(&p->rng, 2) ? all : n);
    for (int s = 0; s < n; s++)
        p->n[s] += 1 + test_below(&p->rng, rows);
    pair_draft(p, n);
}

/* Positions on both sides of those where index top-k begins to choose, and of a page's end.  What lies
 * before the first is zeros for both. */
static void check_recorded(bool mtp)
{
    static const int64_t start[SLOTS] = {40, 230, 3, 100};
    enum { TURNS = 60 };
    struct weights *w[2];
    struct pair p;
    pair_weights(w, mtp);
    pair_open(&p, w, false);
    memcpy(p.n, start, sizeof start);
    for (int i = 0; i < TURNS; i++)
        pair_turn(&p);
    assert_true(p.n[0] > 4 * 16 + 3);
    assert_true(p.n[1] > KERN_PAGE);
    struct model_graphs g = model_graphs_of(p.rig[1].m);
    assert_int_equal(far_state.begun, far_state.ended);
    assert_int_equal(far_state.held, g.held);
    assert_int_equal((uint64_t)far_state.launched, g.replayed);
    assert_true(far_state.launched > TURNS); /* of three calls each turn */
    assert_int_equal(model_graphs_of(p.rig[0].m).replayed, 0);
    pair_close(&p);
    pair_weights_free(w);
}

static void test_recorded(void **state)
{
    (void)state;
    check_recorded(false);
}

static void test_recorded_mtp(void **state)
{
    (void)state;
    check_recorded(true);
}

/* More shapes than are held: the oldest go, and are recorded again when they come again. */
static void test_many_shapes(void **state)
{
    struct weights *w[2];
    struct pair p;
    int32_t ids[ROWS] = {0};
    (void)state;
    pair_weights(w, false);
    pair_open(&p, w, false);
    for (int n = 1, shapes = 0; shapes < 70 + 5; n = n % 10 + 1)
        for (int logits = 0; logits < 7 && shapes < 70 + 5; logits++, shapes++)
            for (int call = 0; call < 3; call++) {
                struct rig_span span = {p.slot[0], call, ids, n + 6};
                ids[0] = n + logits + call;
                pair_step(&p, &span, 1, logits);
            }
    assert_int_equal(far_state.begun, 75);
    assert_int_equal(far_state.ended, 75);
    assert_int_equal(far_state.launched, 2 * 75);
    assert_int_equal(far_state.held, 64);
    pair_close(&p);
    pair_weights_free(w);
}

/* A recording that cannot be made or started: the step is what it is without, and no other is tried. */
static void test_recording_faults(void **state)
{
    int *const fail[] = {&far_state.fail_begin, &far_state.fail_end, &far_state.fail_launch,
                         &far_state.fail_kernel, NULL};
    struct weights *w[2];
    (void)state;
    pair_weights(w, false);
    for (size_t i = 0; i < FST_COUNT(fail); i++) {
        struct pair p;
        int32_t ids[4] = {1, 2, 3, 4};
        pair_open(&p, w, !fail[i]);
        for (int n = 0; n < 12; n++) {
            struct rig_span span = {p.slot[0], 2 * n, ids, 2 + n % 2};
            if (n >= 6)
                span.n = 4;
            if (n == 7 && fail[i]) /* two shapes are recorded, this would be the third */
                *fail[i] = 1;
            pair_step(&p, &span, 1, 2);
        }
        assert_int_equal(model_graphs_of(p.rig[1].m).held, 0);
        assert_int_equal(far_state.begun, fail[i] ? 3 : 0);
        assert_true(!fail[i] || *fail[i] == 0);
        pair_close(&p);
    }
    pair_weights_free(w);
}

/* The slab, a copy or a read fails: a status that says so, and everything can be freed. */
static void test_upload_faults(void **state)
{
    static const enum fst_status want[] = {FST_ENOMEM, FST_EINTERNAL, FST_EIO};
    static const char *const says[] = {"memory out of reach", "copy failed",
                                       ".safetensors: cannot read"};
    struct hashweights_spec spec = rig_small(HASHWEIGHTS_FP4);
    (void)state;
    for (int n = 0; n < 3; n++) {
        struct weights *w = rig_weights(&spec);
        far_state.fail_alloc = n == 0;
        far_state.fail_copy = n == 1 ? 100 : 0;
        weights_io_fail_at(n == 2 ? 50 : 0);
        assert_int_equal(weights_upload(w, &far_device, &one_reader), want[n]);
        assert_non_null(strstr(fst_error_text(), says[n]));
        weights_io_fail_at(0);
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
    if (i >= DEVICE_MARK_END) /* of the step */
        return FST_OK;
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
    rig_ok(weights_upload(w, &d, &one_reader));
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
    assert_int_equal(kernels_of_device(&k, &far_device, "sm90", PRECISION_NATIVE), FST_EMACHINE);
    assert_int_equal(kernels_of_device(&k, &far_device, "sm80", PRECISION_NATIVE), FST_EINVAL);
    assert_int_equal(kernels_of_device(&k, &far_device, "avx2", PRECISION_NATIVE), FST_EINVAL);
    assert_int_equal(kernels_of_device(&k, &far_device, NULL, PRECISION_REFERENCE), FST_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_recorded),
                                       cmocka_unit_test(test_recorded_mtp),
                                       cmocka_unit_test(test_many_shapes),
                                       cmocka_unit_test(test_recording_faults),
                                       cmocka_unit_test(test_upload_faults),
                                       cmocka_unit_test(test_marks),
                                       cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
