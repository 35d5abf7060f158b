/* Committed vectors of the numpy model (tools/golden): logits, inside of a layer of each kind, MTP
 * block, DSpark's capture, injection and drafts.  fp32, nothing quantised. */
#include "golden/golden.h"
#include "support/rig.h"

#include "kernels/ref/ref.h"

/* fp32 sums in another order: 2.3e-5 was seen between three implementations at logits of 7. */
static void near(const float *got, const float *want, int64_t n, const char *what)
{
    double top = 1;
    for (int64_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)want[i]));
    double d = rig_max_diff(got, want, n);
    if (!(d <= 1e-4 * fmax(1, top / 7)))
        fail_msg("%s: differs by %.3g (values up to %.3g)", what, d, top);
}

static struct rig_opts options(const struct weights *w, int n)
{
    return (struct rig_opts){.w = w,
                             .precision = PRECISION_REFERENCE,
                             .format = ROW_F32,
                             .index_format = INDEX_F32,
                             .max_rows = n,
                             .n_slots = 1,
                             .context = 512,
                             .threads = 2,
                             .drafting = true};
}

static void same_best(const float *logits, const struct golden *g, const char *name, int vocab)
{
    const struct golden_array *best = golden_get(g, name);
    for (int64_t p = 0; p < best->n; p++)
        assert_int_equal(rig_argmax(logits + p * vocab, vocab), best->i[p]);
}

static void same_at(const float *logits, const struct golden *g, const char *name, int vocab)
{
    const struct golden_array *want = golden_get(g, name), *at = golden_get(g, "positions");
    char what[96];
    for (int64_t i = 0; i < at->n; i++) {
        snprintf(what, sizeof what, "%s at %d", name, at->i[i]);
        near(logits + (int64_t)at->i[i] * vocab, want->f + i * vocab, vocab, what);
    }
}

/* Rounds of three drafts, each behind another number of committed positions. */
static void check_rounds(struct rig *r, int slot, const struct golden *g, const int32_t *ids)
{
    enum { STEPS = MODEL_MTP_STEPS };
    const struct golden_array *at = golden_get(g, "draft_at"),
                              *tokens = golden_get(g, "draft_tokens"),
                              *want = golden_get(g, "draft_logits");
    float *logits = rig_floats((int64_t)STEPS * r->vocab);
    for (int64_t i = 0; i < at->n; i++) {
        int32_t n = at->i[i], drafts[STEPS], first = FST_MAX(0, n - r->kv.ring);
        struct model_held h = {slot, first, n - 1, ids + first + 1};
        rig_ok(model_hold(r->m, &r->kv, &r->rows, r->pick + first, n - first));
        if (h.to > h.from)
            rig_ok(model_inject_held(r->m, &r->kv, &h, 1));
        rig_mtp_round(r, slot, n, ids[n], STEPS, drafts, logits);
        assert_memory_equal(drafts, tokens->i + i * STEPS, sizeof drafts);
        near(logits, want->f + i * STEPS * r->vocab, (int64_t)STEPS * r->vocab, "a round's logits");
    }
    free(logits);
}

/* Trunk and MTP block of one file. */
static void check_case(const char *path, struct hashweights_spec spec, bool rounds)
{
    struct golden g;
    struct rig r;
    float *logits;
    rig_ok(golden_init(&g, path));
    const struct golden_array *ids = golden_get(&g, "tokens");
    int n = (int)ids->n - 1;
    spec.seed = (uint64_t)golden_get(&g, "seed")->i[0];
    struct weights *w = rig_weights(&spec);
    struct rig_opts o = options(w, n);
    o.block = MODEL_MTP_STEPS + 1;
    rig_open(&r, &o);
    int slot = rig_slot(&r);
    logits = rig_run(&r, slot, 0, ids->i, n);
    same_at(logits, &g, "logits", r.vocab);
    same_best(logits, &g, "argmax", r.vocab);
    float *mtp = rig_floats((int64_t)n * r.vocab);
    rig_mtp(&r, slot, ids->i, n, mtp);
    same_at(mtp, &g, "mtp_logits", r.vocab);
    same_best(mtp, &g, "mtp_argmax", r.vocab);
    free(mtp);
    if (rounds)
        check_rounds(&r, slot, &g, ids->i);
    rig_close(&r);
    weights_free(w);
    golden_release(&g);
}

static void test_t1(void **state)
{
    (void)state;
    check_case("tests/golden/data/t1.gold", hashweights_t1(), false);
}

static void test_t1_seed_3(void **state)
{
    (void)state;
    check_case("tests/golden/data/t1s3.gold", hashweights_t1(), true);
}

static void test_t2(void **state)
{
    (void)state;
    check_case("tests/golden/data/t2.gold", hashweights_t2(), true);
}

/* ---------------------------------------------------------------- inside of the layers */

enum { LAYERS = 6, AT = 4, T1_ROWS = 300 };

static struct {
    const struct golden *g;
    int layer; /* of the attention site that started last */
    bool ffn;  /* its experts' seam has come */
    float *scores;
    const int32_t *at;
    int checked;
} tap;

/* Row i of `got` (stride ld) belongs to position at[i]'s row of the golden. */
static void check(const char *name, const float *x, int64_t ld, int64_t width)
{
    char full[64];
    snprintf(full, sizeof full, "layers.%d.%s", tap.layer, name);
    const struct golden_array *want = golden_get(tap.g, full);
    assert_int_equal(want->n, AT * width);
    for (int i = 0; i < AT; i++)
        near(x + tap.at[i] * ld, want->f + i * width, width, full);
    tap.checked++;
}

static enum fst_status tap_seam(const struct seam_args *a, struct stream *s)
{
    bool inside = tap.layer >= 0 && tap.layer < LAYERS;
    if (a->y && inside)
        check(tap.ffn ? "ffn_out" : "attn_out", a->y, a->dim, a->dim);
    FST_TRY(seam_ref(a, s));
    if (a->y && tap.ffn && inside)
        check("X", a->x, 4 * a->dim, 4 * a->dim);
    if (a->fn) {
        tap.ffn = tap.layer >= 0 && !tap.ffn; /* the very first seam is an attention's */
        tap.layer += !tap.ffn;
        if (tap.layer >= LAYERS)
            return FST_OK;
        float *u = rig_floats((int64_t)a->n_rows * a->dim);
        for (int64_t t = 0; t < a->n_rows; t++)
            for (int k = 0; k < 4; k++)
                for (int d = 0; d < a->dim; d++)
                    u[t * a->dim + d] += a->mix[t * KERN_MIX + k] * a->x[(t * 4 + k) * a->dim + d];
        check(tap.ffn ? "ffn_u" : "attn_u", u, a->dim, a->dim);
        free(u);
    }
    return FST_OK;
}

static bool tapped(void)
{
    return tap.layer < LAYERS;
}

static enum fst_status tap_attn_in(const struct attn_in_args *a, struct stream *s)
{
    FST_TRY(attn_in_ref(a, s));
    if (tapped())
        check("qr", a->qr, a->wq_a->n_out, a->wq_a->n_out);
    return FST_OK;
}

static enum fst_status tap_q_path(const struct q_path_args *a, struct stream *s)
{
    FST_TRY(q_path_ref(a, s));
    int64_t wide = (int64_t)a->n_heads * a->head_dim;
    if (tapped())
        check("q", a->q, wide, wide);
    return FST_OK;
}

static enum fst_status tap_kv_write(const struct kv_write_args *a, struct stream *s)
{
    FST_TRY(kv_write_ref(a, s));
    if (tapped())
        check("kv", a->kv, a->head_dim, a->head_dim);
    return FST_OK;
}

static enum fst_status tap_topk(const struct index_topk_args *a, struct stream *s)
{
    struct index_topk_args b = *a;
    char name[64];
    b.scores = tap.scores;
    FST_TRY(index_topk_ref(&b, s));
    if (!tapped())
        return FST_OK;
    snprintf(name, sizeof name, "layers.%d.index_score", tap.layer);
    const struct golden_array *score = golden_get(tap.g, name);
    snprintf(name, sizeof name, "layers.%d.selected", tap.layer);
    const struct golden_array *kept = golden_get(tap.g, name);
    for (int i = 0; i < AT; i++) {
        int t = tap.at[i], nv = (t + 1) / 4, all = score->dim[1];
        near(tap.scores + t * a->max_entries, score->f + i * all, nv, "index scores");
        for (int e = 0, j = 0; e < nv; e++) {
            bool mine = j < a->n_sel[t] && a->sel[t * a->topk + j] == e;
            assert_int_equal(mine, kept->i[i * all + e]);
            j += mine;
        }
    }
    tap.checked++;
    return FST_OK;
}

static enum fst_status tap_attention(const struct attention_args *a, struct stream *s)
{
    FST_TRY(attention_ref(a, s));
    int64_t wide = (int64_t)a->n_heads * a->head_dim;
    if (tapped())
        check("o_unrotated", a->o, wide, wide);
    return FST_OK;
}

static enum fst_status tap_route(const struct route_args *a, struct stream *s)
{
    char name[64];
    FST_TRY(route_ref(a, s));
    if (!tapped())
        return FST_OK;
    snprintf(name, sizeof name, "layers.%d.expert_ids", tap.layer);
    const struct golden_array *id = golden_get(tap.g, name);
    snprintf(name, sizeof name, "layers.%d.expert_weights", tap.layer);
    const struct golden_array *weight = golden_get(tap.g, name);
    for (int i = 0; i < AT * a->k; i++) {
        int t = tap.at[i / a->k], j = 0;
        while (j < a->k && a->expert[t * a->k + j] != id->i[i])
            j++;
        assert_true(j < a->k);
        near(&a->weight[t * a->k + j], &weight->f[i], 1, "routing weights");
    }
    tap.checked++;
    return FST_OK;
}

static void test_layers(void **state)
{
    struct golden g;
    struct rig r;
    struct kernels k;
    struct hashweights_spec spec = hashweights_t1();
    struct weights *w = rig_weights(&spec);
    float x[128];
    (void)state;
    rig_ok(golden_init(&g, "tests/golden/data/t1.gold"));
    kernels_init(&k, 0);
    k.seam = tap_seam;
    k.attn_in = tap_attn_in;
    k.q_path = tap_q_path;
    k.kv_write = tap_kv_write;
    k.index_topk = tap_topk;
    k.attention = tap_attention;
    k.route = tap_route;
    struct rig_opts o = options(w, T1_ROWS);
    o.kernels = &k;
    rig_open(&r, &o);
    tap.g = &g;
    tap.layer = -1;
    tap.at = golden_get(&g, "dump_positions")->i;
    tap.scores = rig_floats(T1_ROWS * 128);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, golden_get(&g, "tokens")->i, T1_ROWS);
    /* 6 layers of 10 arrays (attn_u, qr, kv, q, o, attn_out, ffn_u, routing, ffn_out, X), 2 indexers */
    assert_int_equal(tap.checked, 62);

    for (int l = 1; l < LAYERS; l++) { /* entries 0..3 and the last, or both of ratio 128 */
        int ratio = spec.config.compress_ratio[l];
        char name[64];
        snprintf(name, sizeof name, "layers.%d.rows", l);
        for (int i = 0; ratio && i < (ratio == 4 ? 5 : 2); i++) {
            int e = ratio == 4 && i == 4 ? T1_ROWS / 4 - 1 : i;
            kv_read_entry(&r.kv, l, slot, e, x);
            near(x, golden_get(&g, name)->f + i * 128, 128, name);
        }
        snprintf(name, sizeof name, "layers.%d.index_rows", l);
        for (int i = 0; ratio == 4 && i < 5; i++) {
            kv_read_index(&r.kv, l, slot, i == 4 ? T1_ROWS / 4 - 1 : i, x);
            ref_hadamard(x, 128, PRECISION_REFERENCE); /* its own inverse: the golden has none */
            near(x, golden_get(&g, name)->f + i * 128, 128, name);
        }
    }
    free(tap.scores);
    rig_close(&r);
    weights_free(w);
    golden_release(&g);
}

/* ---------------------------------------------------------------- the drafter */

static struct {
    int n, stage;
    const struct golden_array *at, *h, *main_x, *k;
    float *base, *y, *corrected;
} draft;

/* Index of position p in the golden, or -1. */
static int place(int32_t p)
{
    for (int i = 0; i < draft.at->n; i++)
        if (draft.at->i[i] == p)
            return i;
    return -1;
}

static int32_t first_pos; /* of the rows that are being injected */

static enum fst_status tap_main(const struct main_proj_args *a, struct stream *s)
{
    int wide = a->main_proj->n_in, dim = a->main_proj->n_out;
    FST_TRY(main_proj_ref(a, s));
    for (int t = 0; t < a->n_rows; t++) {
        int i = place(first_pos + t);
        if (i < 0)
            continue;
        near(a->h + (int64_t)(a->row ? a->row[t] : t) * wide, draft.h->f + i * wide, wide,
             "captured rows");
        near(a->main + (int64_t)t * dim, draft.main_x->f + i * dim, dim, "main_x");
        draft.n++;
    }
    draft.stage = 0;
    return FST_OK;
}

static enum fst_status tap_ring(const struct ring_store_args *a, struct stream *s)
{
    FST_TRY(ring_store_ref(a, s));
    if (draft.stage < 0)
        return FST_OK;
    for (int t = 0; t < a->rows->n_rows; t++) {
        int i = place(a->rows->pos[t]);
        if (i >= 0)
            near(a->kv + (int64_t)t * a->head_dim,
                 draft.k->f + (draft.stage * draft.at->n + i) * a->head_dim, a->head_dim,
                 "injected rows");
    }
    draft.stage++;
    return FST_OK;
}

static enum fst_status tap_chain(const struct draft_chain_args *a, struct stream *s)
{
    struct draft_chain_args b = *a;
    int64_t rows = (int64_t)a->n * a->gamma;
    b.corrected = draft.corrected;
    memcpy(draft.base, a->base, (size_t)(rows * a->vocab) * sizeof *draft.base);
    memcpy(draft.y, a->y, (size_t)(rows * a->dim) * sizeof *draft.y);
    return draft_chain_ref(&b, s);
}

static void test_dspark(void **state)
{
    struct golden g;
    struct rig r;
    struct kernels k;
    struct hashweights_spec spec = hashweights_dspark();
    (void)state;
    rig_ok(golden_init(&g, "tests/golden/data/dspark.gold"));
    spec.seed = (uint64_t)golden_get(&g, "seed")->i[0];
    struct weights *w = rig_weights(&spec);
    kernels_init(&k, 0);
    k.main_proj = tap_main;
    k.ring_store = tap_ring;
    k.draft_chain = tap_chain;
    struct rig_opts o = options(w, 200);
    o.kernels = &k;
    rig_open(&r, &o);
    draft.at = golden_get(&g, "positions");
    draft.h = golden_get(&g, "H");
    draft.main_x = golden_get(&g, "main_x");
    draft.k = golden_get(&g, "K");
    draft.base = rig_floats(5 * 512);
    draft.corrected = rig_floats(5 * 512);
    draft.y = rig_floats(5 * 256);
    draft.stage = -1; /* the trunk's own rows are not looked at */
    int slot = rig_slot(&r);
    const int32_t *ids = golden_get(&g, "tokens")->i;
    float *logits = rig_run(&r, slot, 0, ids, 200);
    same_at(logits, &g, "logits", 512);
    same_best(logits, &g, "argmax", 512);

    const struct golden_array *at = golden_get(&g, "draft_at");
    const struct golden_array *anchor = golden_get(&g, "draft_anchor");
    int32_t done = 0, got[5];
    float conf[5];
    struct draw_params greedy = {0};
    uint32_t out = 0;
    for (int i = 0; i < at->n; i++) {
        int64_t n = at->i[i];
        first_pos = done;
        rig_inject(&r, done, (int)n - done);
        done = (int32_t)n;
        struct draft_batch d = {.n = 1,
                                .gamma = 5,
                                .slot = &slot,
                                .n_committed = &n,
                                .anchor = &anchor->i[i],
                                .draw = &greedy,
                                .out_pos = &out,
                                .ids = got,
                                .conf = conf};
        rig_ok(model_draft(r.m, &r.kv, &d));
        assert_memory_equal(got, golden_get(&g, "draft_tokens")->i + i * 5, sizeof got);
        near(draft.base, golden_get(&g, "draft_U")->f + i * 5 * 512, 5 * 512, "base logits");
        near(draft.corrected, golden_get(&g, "draft_corrected")->f + i * 5 * 512, 5 * 512,
             "corrected logits");
        near(draft.y, golden_get(&g, "draft_y")->f + i * 5 * 256, 5 * 256, "y");
        for (int j = 0; j < 5; j++)
            conf[j] = (float)ref_sigmoid((double)conf[j]);
        near(conf, golden_get(&g, "draft_confidence")->f + i * 5, 5, "confidence");
    }
    assert_true(draft.n >= 14); /* positions below 199 */
    free(draft.base);
    free(draft.corrected);
    free(draft.y);
    rig_close(&r);
    weights_free(w);
    golden_release(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_t1), cmocka_unit_test(test_t1_seed_3),
                                       cmocka_unit_test(test_t2), cmocka_unit_test(test_layers),
                                       cmocka_unit_test(test_dspark)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
