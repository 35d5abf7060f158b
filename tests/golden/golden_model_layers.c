/* One layer of each ratio, the head and the drafter, quantised, against the numpy model, on every
 * kernel set.
 *
 * Every block starts from numpy's inputs and decisions: a flipped index entry or expert would change
 * a row completely, and a difference of 2e-3 in front of an FP8 grid is one of 1e-2 behind it.  What
 * is left in a block is summation order, one bf16 rounding where model.py has two (q, o), and a code
 * at the edge of a rounding here and there: relative L2 at most 2e-3, and fast kernels as near to the
 * plain ones.  numpy rounds what a tensor-parallel group sums as we do, once (precision "served");
 * model.py rounds each expert's output, which alone is 2.7e-3 to 2.8e-3 of ffn_out
 * (make_layers.py --why).
 *
 * A decision may differ only where it is within the noise of its scores.  The noise of a layer is the
 * largest error of a score in the rows that decide alike: of the index at most NOISE of the scores'
 * root mean square, of the router of the largest score.  Only the rows compared start from numpy's
 * numbers, so scores of the others also carry what the blocks before them differ by. */
#include "golden/golden.h"
#include "support/rig.h"

#include "kernels/ref/ref.h"

enum { ROWS = 132, DIM = 256, STAGES = 3, INJECTED = 24, GAMMA = 5, SEEN_MAX = 512 };
static const double LIMIT = 2e-3, INDEX_NOISE = 0.02, ROUTER_NOISE = 1e-2;

/* What set "ref" gave at each check, in order. */
struct seen {
    float *x;
    int64_t n;
};

static struct {
    struct kernels real;
    const struct golden *g;
    const int32_t *at;
    int n_at, n_rows, layer, stage;
    bool ffn, drafting;
    float *x, *scores;
    struct seen *seen; /* (SEEN_MAX) */
    int n_seen, n_decisions, flips;
    double worst, worst_ref;
    char worst_name[64];
} tap;

static void label(char *out, size_t size, const char *name)
{
    snprintf(out, size, "%s.%d.%s", tap.drafting ? "mtp" : "layers",
             tap.drafting ? tap.stage : tap.layer, name);
}

static void check(const char *name, const float *got, const float *want, int64_t n)
{
    char full[64];
    double d = rig_rel_l2(got, want, n);
    label(full, sizeof full, name);
    if (!(d <= LIMIT))
        fail_msg("%s: %s: relative L2 %.2e", tap.real.name, full, d);
    if (d > tap.worst) {
        tap.worst = d;
        memcpy(tap.worst_name, full, sizeof full);
    }
    assert_true(tap.n_seen < SEEN_MAX);
    struct seen *s = &tap.seen[tap.n_seen++];
    if (strcmp(tap.real.name, "ref") == 0) {
        s->x = rig_floats(n);
        s->n = n;
        memcpy(s->x, got, (size_t)n * sizeof *got);
        return;
    }
    assert_int_equal(s->n, n);
    d = rig_rel_l2(got, s->x, n);
    if (!(d <= LIMIT))
        fail_msg("%s: %s: relative L2 %.2e to the plain kernels", tap.real.name, full, d);
    tap.worst_ref = fmax(tap.worst_ref, d);
}

static const struct golden_array *array(const char *name)
{
    char full[64];
    label(full, sizeof full, name);
    return golden_get(tap.g, full);
}

/* The golden holds all rows of an array, or those at tap.at. */
static int64_t row_of(const struct golden_array *want, int64_t i)
{
    return want->dim[0] == tap.n_rows ? i : tap.at[i];
}

/* The golden's rows of x (stride width) are compared, then replaced, so that the next block starts
 * from the same numbers. */
static void check_rows(const char *name, float *x, int64_t width, enum precision p)
{
    const struct golden_array *want = array(name);
    float *got = rig_floats(want->n);
    assert_true(want->dim[0] == tap.n_rows || want->dim[0] == tap.n_at);
    assert_int_equal(want->n, want->dim[0] * width);
    for (int64_t i = 0; i < want->n; i++) {
        float *v = &x[row_of(want, i / width) * width + i % width];
        got[i] = ref_round(*v, p);
        *v = want->f[i];
    }
    check(name, got, want->f, want->n);
    free(got);
}

/* ---------------------------------------------------------------- decisions */

/* Scores of a layer's decisions, ours and numpy's. */
struct noise {
    const char *what;
    double error, gap, sum2, top; /* of rows that agree; of those that do not */
    int64_t n;
    int flips, rows;
};

static bool has(const int32_t *set, int n, int32_t e)
{
    for (int i = 0; i < n; i++)
        if (set[i] == e)
            return true;
    return false;
}

/* One row: k chosen of n scores by both. */
static void decide(struct noise *z, const float *mine, const float *numpy, int n,
                   const int32_t *my_set, const int32_t *numpy_set, int k)
{
    double out = -INFINITY, in = INFINITY; /* numpy's scores of what only one of the two chose */
    for (int i = 0; i < k; i++) {
        if (!has(my_set, k, numpy_set[i]))
            out = fmax(out, (double)numpy[numpy_set[i]]);
        if (!has(numpy_set, k, my_set[i]))
            in = fmin(in, (double)numpy[my_set[i]]);
    }
    z->rows++;
    if (isinf(out)) {
        z->error = fmax(z->error, rig_max_diff(mine, numpy, n));
        for (int i = 0; i < n; i++) {
            z->sum2 += (double)numpy[i] * (double)numpy[i];
            z->top = fmax(z->top, fabs((double)numpy[i]));
        }
        z->n += n;
        return;
    }
    z->flips++;
    z->gap = fmax(z->gap, out - in);
}

/* Two scores may be off by the noise, one up and one down. */
static void judge(const struct noise *z, double scale, double most)
{
    char full[64];
    label(full, sizeof full, z->what);
    print_message("%s: %s: noise %.1e of %.1e, %d of %d decisions differ, at margins up to %.1e\n",
                  tap.real.name, full, z->error, scale, z->flips, z->rows, z->gap);
    if (!(z->error <= most * scale))
        fail_msg("%s: noise %.2e is above %.2e", full, z->error, most * scale);
    if (!(z->gap <= 2 * z->error))
        fail_msg("%s: a decision differs at a margin of %.2e, noise is %.2e", full, z->gap,
                 z->error);
    tap.flips += z->flips;
    tap.n_decisions += z->rows;
}

/* ---------------------------------------------------------------- taps */

static enum fst_status tap_embed(const struct embed_args *a, struct stream *s)
{
    if (tap.drafting)
        return tap.real.embed(a, s);
    memcpy(a->x, tap.x, (size_t)a->n_rows * 4 * DIM * sizeof *a->x);
    return FST_OK;
}

/* The streams behind a layer, and what the drafter captures of them. */
static void check_layer_end(const struct seam_args *a, struct stream *s)
{
    if (!tap.drafting) {
        struct seam_args b = *a;
        float *h = rig_floats((int64_t)a->n_rows * DIM);
        check_rows("X", a->x, 4 * DIM, s->precision);
        b.y = NULL;
        b.fn = NULL;
        b.capture = h;
        b.capture_ld = DIM;
        rig_ok(tap.real.seam(&b, s));
        check_rows("H", h, DIM, s->precision);
        free(h);
        return;
    }
    check_rows("X", a->x, 4 * DIM, s->precision);
    tap.stage++;
    tap.ffn = false;
}

static enum fst_status tap_seam(const struct seam_args *a, struct stream *s)
{
    struct seam_args b = *a;
    bool ends = a->y && tap.ffn;
    if (a->y) { /* a sublayer's sum is rounded by the seam */
        float *y = rig_floats((int64_t)a->n_rows * DIM);
        memcpy(y, a->y, (size_t)a->n_rows * DIM * sizeof *y);
        check_rows(tap.ffn ? "ffn_out" : "attn_out", y, DIM, s->precision);
        b.y = y;
        if (ends)
            b.fn = NULL;
        FST_TRY(tap.real.seam(&b, s));
        free(y);
        b = *a;
        b.y = NULL; /* is in the streams */
    }
    if (ends)
        check_layer_end(a, s);
    if (!a->fn)
        return FST_OK;
    if (!a->y || ends)
        FST_TRY(tap.real.seam(&b, s));
    tap.ffn = a->y && !ends;
    const struct golden_array *u = array(tap.ffn ? "ffn_u" : "attn_u");
    for (int i = 0; i < tap.n_at; i++) { /* out = norm * u / rms(u): the golden holds u */
        float want[DIM], *out = a->out + (int64_t)tap.at[i] * DIM;
        ref_rmsnorm(want, u->f + i * DIM, a->norm, DIM, a->norm_eps, s->precision);
        check("seam", out, want, DIM);
        memcpy(out, want, sizeof want);
    }
    return FST_OK;
}

static enum fst_status tap_attn_in(const struct attn_in_args *a, struct stream *s)
{
    FST_TRY(tap.real.attn_in(a, s));
    check_rows("qr", a->qr, a->wq_a->n_out, s->precision);
    return FST_OK;
}

static enum fst_status tap_kv_write(const struct kv_write_args *a, struct stream *s)
{
    FST_TRY(tap.real.kv_write(a, s));
    check_rows("kv", a->kv, a->head_dim, s->precision);
    return FST_OK;
}

static enum fst_status tap_q_path(const struct q_path_args *a, struct stream *s)
{
    FST_TRY(tap.real.q_path(a, s));
    check_rows("q", a->q, (int64_t)a->n_heads * a->head_dim, s->precision);
    return FST_OK;
}

static enum fst_status tap_topk(const struct index_topk_args *a, struct stream *s)
{
    struct index_topk_args b = *a;
    const struct golden_array *score = array("index_score"), *kept = array("selected");
    struct noise z = {.what = "index"};
    int all = score->dim[1];
    b.scores = tap.scores;
    FST_TRY(tap.real.index_topk(&b, s));
    for (int i = 0; i < tap.n_at; i++)
        check("index_score", tap.scores + tap.at[i] * a->max_entries, score->f + tap.at[i] * all,
              (tap.at[i] + 1) / 4);
    for (int t = 0; t < ROWS; t++) {
        int32_t sel[64], n = 0, *mine = a->sel + t * a->topk;
        for (int e = 0; e < all; e++)
            if (kept->i[t * all + e])
                sel[n++] = e;
        assert_int_equal(n, a->n_sel[t]);
        if ((t + 1) / 4 > a->topk)
            decide(&z, tap.scores + t * a->max_entries, score->f + t * all, (t + 1) / 4, mine, sel,
                   n);
        memcpy(mine, sel, (size_t)n * sizeof *sel);
    }
    assert_true(z.rows > 60);
    judge(&z, sqrt(z.sum2 / (double)z.n), INDEX_NOISE);
    return FST_OK;
}

static enum fst_status tap_attention(const struct attention_args *a, struct stream *s)
{
    FST_TRY(tap.real.attention(a, s));
    check_rows("o_unrotated", a->o, (int64_t)a->n_heads * a->head_dim, s->precision);
    return FST_OK;
}

/* sqrt(softplus(gate x)) + bias of one row, in double: every kernel set's decision is judged by it. */
static void router_scores(const struct route_args *a, int t, float *out)
{
    float row[DIM];
    for (int e = 0; e < a->gate->n_out; e++) {
        ref_mat_row(a->gate, e, row);
        double v = log1p(exp(ref_dot(row, a->x + t * DIM, DIM)));
        out[e] = (float)sqrt(v) + a->bias[e];
    }
}

static enum fst_status tap_route(const struct route_args *a, struct stream *s)
{
    const struct golden_array *id = array("expert_ids"), *weight = array("expert_weights");
    const struct golden_array *score = array("router_score");
    struct noise z = {.what = "router"};
    float mine[8];
    FST_TRY(tap.real.route(a, s));
    assert_int_equal(a->k, 2);
    assert_int_equal(a->gate->n_out, 8);
    assert_int_equal(a->n_rows, tap.n_rows);
    for (int t = 0; t < tap.n_rows; t++) {
        int32_t *e = &a->expert[2 * t], lo = FST_MIN(id->i[2 * t], id->i[2 * t + 1]);
        int32_t want[2] = {lo, id->i[2 * t] + id->i[2 * t + 1] - lo};
        if (a->tid2eid) { /* by the token: nothing to differ */
            assert_memory_equal(e, want, sizeof want);
            continue;
        }
        router_scores(a, t, mine);
        decide(&z, mine, score->f + t * 8, 8, e, want, 2);
        memcpy(e, want, sizeof want);
    }
    if (!a->tid2eid)
        judge(&z, z.top, ROUTER_NOISE);
    for (int i = 0; i < tap.n_at; i++) { /* numpy lists them best first */
        int t = tap.at[i];
        bool swapped = id->i[2 * t] > id->i[2 * t + 1];
        float want[2] = {weight->f[2 * i + swapped], weight->f[2 * i + !swapped]};
        check("expert_weights", a->weight + 2 * t, want, 2);
        memcpy(a->weight + 2 * t, want, sizeof want);
    }
    return FST_OK;
}

static void set_taps(struct kernels *k)
{
    *k = tap.real;
    k->embed = tap_embed;
    k->seam = tap_seam;
    k->attn_in = tap_attn_in;
    k->kv_write = tap_kv_write;
    k->q_path = tap_q_path;
    k->index_topk = tap_topk;
    k->attention = tap_attention;
    k->route = tap_route;
}

static void run_layer(const struct weights *w, int layer)
{
    struct weights *one = malloc(sizeof *one);
    struct kernels k;
    struct rig r;
    char name[32];
    float row[512];
    assert_non_null(one);
    *one = *w;
    one->config.n_layers = 1;
    one->layer[0] = w->layer[layer];
    set_taps(&k);
    tap.layer = layer;
    tap.n_rows = ROWS;
    tap.ffn = false;
    snprintf(name, sizeof name, "streams.%d", layer);
    hashweights_stream(tap.x, ROWS * 4 * DIM, name, 0);
    for (int i = 0; i < ROWS * 4 * DIM; i++)
        tap.x[i] = ref_bf16(2 * tap.x[i]);
    struct rig_opts o = {.w = one,
                         .kernels = &k,
                         .precision = PRECISION_NATIVE,
                         .format = ROW_FP8,
                         .index_format = INDEX_FP4,
                         .max_rows = ROWS,
                         .n_slots = 1,
                         .context = 256};
    rig_open(&r, &o);
    int slot = rig_slot(&r), ratio = w->layer[layer].ratio;
    rig_run(&r, slot, 0, golden_get(tap.g, "tokens")->i, ROWS);
    for (int i = 0; ratio && i < 2; i++) {
        kv_read_entry(&r.kv, 0, slot, i ? ROWS / ratio - 1 : 0, row);
        check("rows", row, array("rows")->f + i * 512, 512);
        if (ratio != 4)
            continue;
        kv_read_index(&r.kv, 0, slot, i ? ROWS / ratio - 1 : 0, row);
        check("index_rows", row, array("index_rows")->f + i * 128, 128);
    }
    rig_close(&r);
    free(one);
}

static void run_head(const struct weights *w)
{
    struct stream s;
    struct kernel_limits l = {
        .n_rows = ROWS, .dim = DIM, .vocab = 512, .n_heads = 1, .head_dim = 512, .groups = 1};
    float y[3 * DIM], logits[3 * 512];
    hashweights_stream(tap.x, ROWS * 4 * DIM, "streams.head", 0);
    for (int i = 0; i < ROWS * 4 * DIM; i++)
        tap.x[i] = ref_bf16(2 * tap.x[i]);
    rig_ok(stream_init(&s, NULL, NULL, PRECISION_NATIVE, kernels_scratch_bytes(&tap.real, &l, 1)));
    struct head_args a = {.x = tap.x,
                          .row = tap.at,
                          .fn = w->hc_head.fn,
                          .base = w->hc_head.base,
                          .scale = w->hc_head.scale,
                          .norm = w->norm,
                          .head = &w->head,
                          .y = y,
                          .logits = logits,
                          .n = 3,
                          .dim = DIM,
                          .hc_eps = w->config.hc_eps,
                          .norm_eps = w->config.norm_eps};
    rig_ok(tap.real.head(&a, &s));
    check("head y", y, golden_get(tap.g, "head_y")->f, 3 * DIM);
    check("logits", logits, golden_get(tap.g, "head_logits")->f, 3 * 512);
    stream_release(&s);
}

/* ---------------------------------------------------------------- the drafter */

static enum fst_status tap_main(const struct main_proj_args *a, struct stream *s)
{
    struct main_proj_args b = *a;
    b.h = tap.x;
    b.row = NULL;
    FST_TRY(tap.real.main_proj(&b, s));
    const struct golden_array *want = golden_get(tap.g, "main_x");
    assert_int_equal(want->n, a->n_rows * DIM);
    check("main_x", a->main, want->f, want->n);
    memcpy(a->main, want->f, (size_t)want->n * sizeof *a->main);
    return FST_OK;
}

/* The rows a stage gets, as they are stored. */
static enum fst_status tap_ring(const struct ring_store_args *a, struct stream *s)
{
    struct ring_store_args b = *a;
    int64_t n = (int64_t)INJECTED * a->head_dim;
    const float *want = golden_get(tap.g, "K")->f + tap.stage * n;
    assert_int_equal(a->rows->n_rows, INJECTED);
    check("K", a->kv, want, n);
    b.kv = want;
    tap.stage++;
    return tap.real.ring_store(&b, s);
}

static enum fst_status tap_chain(const struct draft_chain_args *a, struct stream *s)
{
    struct draft_chain_args b = *a;
    const struct golden_array *u = golden_get(tap.g, "draft_U"), *y = golden_get(tap.g, "draft_y");
    const struct golden_array *want = golden_get(tap.g, "draft_corrected");
    float *corrected = rig_floats(want->n);
    for (int i = 0; i < tap.n_at; i++) {
        int64_t t = tap.at[i];
        check("head y", a->y + t * a->dim, y->f + t * a->dim, a->dim);
        check("U", a->base + t * a->vocab, u->f + t * a->vocab, a->vocab);
    }
    b.base = u->f;
    b.y = y->f;
    b.corrected = corrected;
    FST_TRY(tap.real.draft_chain(&b, s));
    check("corrected", corrected, want->f, want->n);
    free(corrected);
    return FST_OK;
}

/* A block behind INJECTED rows, all of its rows replayed. */
static void run_drafter(const struct weights *w)
{
    struct kernels trunk = tap.real, k;
    struct rig r;
    int32_t ids[INJECTED], got[GAMMA], anchor;
    float conf[GAMMA];
    int64_t n = INJECTED;
    uint32_t out = 0;
    struct draw_params greedy = {0};
    /* The table is the model's by reference: plain for the trunk, tapped from the injection on. */
    struct kernels table = trunk;
    struct rig_opts o = {.w = w,
                         .kernels = &table,
                         .precision = PRECISION_NATIVE,
                         .format = ROW_FP8,
                         .index_format = INDEX_FP4,
                         .max_rows = INJECTED,
                         .n_slots = 1,
                         .context = 256,
                         .drafting = true};
    rig_open(&r, &o);
    hashweights_tokens(ids, INJECTED, 512, 0);
    int slot = rig_slot(&r);
    rig_run(&r, slot, 0, ids, INJECTED);
    hashweights_stream(tap.x, INJECTED * STAGES * DIM, "streams.H", 0);
    for (int i = 0; i < INJECTED * STAGES * DIM; i++)
        tap.x[i] = ref_bf16(2 * tap.x[i]);
    tap.drafting = true;
    tap.stage = 0;
    table.main_proj = tap_main;
    table.ring_store = tap_ring;
    rig_inject(&r, 0, INJECTED);
    assert_int_equal(tap.stage, STAGES);

    tap.stage = 0;
    tap.ffn = false;
    tap.n_rows = GAMMA;
    tap.at = golden_get(tap.g, "at")->i;
    assert_int_equal(golden_get(tap.g, "at")->n, tap.n_at);
    set_taps(&k);
    table = k;
    table.draft_chain = tap_chain;
    anchor = golden_get(tap.g, "anchor")->i[0];
    struct draft_batch d = {.n = 1,
                            .gamma = GAMMA,
                            .slot = &slot,
                            .n_committed = &n,
                            .anchor = &anchor,
                            .draw = &greedy,
                            .out_pos = &out,
                            .ids = got,
                            .conf = conf};
    rig_ok(model_draft(r.m, &r.kv, &d));
    assert_int_equal(tap.stage, STAGES);
    assert_memory_equal(got, golden_get(tap.g, "draft_tokens")->i, sizeof got);
    for (int j = 0; j < GAMMA; j++)
        conf[j] = (float)ref_sigmoid((double)conf[j]);
    check("confidence", conf, golden_get(tap.g, "draft_confidence")->f, GAMMA);
    rig_close(&r);
    tap.drafting = false;
}

static void run_all(bool drafter, int checks)
{
    struct golden g;
    struct kernels sets[3];
    struct hashweights_spec spec = rig_small(HASHWEIGHTS_FP4);
    struct weights *w = rig_weights(&spec);
    struct seen *seen = calloc(SEEN_MAX, sizeof *seen);
    int n_sets = rig_sets(sets);
    assert_non_null(seen);
    rig_ok(golden_init(&g, drafter ? "tests/golden/data/drafter.gold"
                                   : "tests/golden/data/layers.gold"));
    for (int i = 0; i < n_sets; i++) {
        memset(&tap, 0, sizeof tap);
        tap.real = sets[i];
        tap.g = &g;
        tap.seen = seen;
        tap.at = golden_get(&g, "at")->i;
        tap.n_at = (int)golden_get(&g, "at")->n;
        assert_int_equal(tap.n_at, drafter ? GAMMA : 3);
        tap.x = rig_floats(ROWS * 4 * DIM);
        tap.scores = rig_floats(ROWS * 64);
        if (drafter) {
            run_drafter(w);
        } else {
            for (int layer = 0; layer < 3; layer++)
                run_layer(w, layer);
            run_head(w);
        }
        print_message("%s: %d checks, largest relative L2 %.1e (%s), to the plain kernels %.1e; %d "
                      "of %d decisions differ\n",
                      sets[i].name, tap.n_seen, tap.worst, tap.worst_name, tap.worst_ref, tap.flips,
                      tap.n_decisions);
        assert_int_equal(tap.n_seen, checks);
        free(tap.x);
        free(tap.scores);
    }
    for (int i = 0; i < SEEN_MAX; i++)
        free(seen[i].x);
    free(seen);
    golden_release(&g);
    weights_free(w);
}

/* A layer: 3+3 seams, qr, kv, q, o, attn_out, 3 routing weights, ffn_out, X, H; rows of ratio 128 and
 * 4 two each, index rows 2, index scores 3; the head 2. */
static void test_layers(void **state)
{
    (void)state;
    run_all(false, 3 * 17 + 2 + 2 + 2 + 3 + 2);
}

/* main_x, K of 3 stages; of a stage 5+5 seams, qr, kv, q, o, attn_out, 5 routing weights, ffn_out, X;
 * y and U of 5 rows, corrected, confidence. */
static void test_drafter(void **state)
{
    (void)state;
    run_all(true, 1 + 3 + 3 * 22 + 10 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers),
                                       cmocka_unit_test(test_drafter)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
