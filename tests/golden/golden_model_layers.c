/* One layer of each ratio and the head, quantised, against the numpy model, on every kernel set.
 *
 * Every block starts from numpy's inputs and decisions: a flipped index entry or expert would change
 * a row completely, and a difference of 2e-3 in front of an FP8 grid is one of 1e-2 behind it.  What
 * is left in a block is summation order, one bf16 rounding where model.py has two (q, o), and a code
 * at the edge of a rounding here and there: relative L2 at most 2e-3; 4e-3
 * behind the experts, whose outputs model.py rounds one by one and we only once, summed. */
#include "golden/golden.h"
#include "support/rig.h"

#include "kernels/ref/ref.h"

enum { ROWS = 132, DIM = 256 };

static struct {
    struct kernels real;
    const struct golden *g;
    const int32_t *at;
    int n_at, layer, flips, checked;
    bool ffn;
    float *x, *scores;
    double worst;
    char worst_name[64];
} tap;

static void check(const char *name, const float *got, const float *want, int64_t n)
{
    double d = rig_rel_l2(got, want, n);
    double most = strcmp(name, "ffn_out") == 0 ? 4e-3 : 2e-3;
    if (!(d <= most))
        fail_msg("%s: layer %d, %s: relative L2 %.2e", tap.real.name, tap.layer, name, d);
    if (d > tap.worst) {
        tap.worst = d;
        snprintf(tap.worst_name, sizeof tap.worst_name, "layer %d %s", tap.layer, name);
    }
    tap.checked++;
}

static const struct golden_array *array(const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "layers.%d.%s", tap.layer, name);
    return golden_get(tap.g, full);
}

/* Rows at the golden's positions of x (stride width) are compared, then replaced by the golden's, so
 * that the next block starts from the same numbers. */
static void check_rows(const char *name, float *x, int64_t width, enum precision p)
{
    const struct golden_array *want = array(name);
    float *got = rig_floats(tap.n_at * width);
    assert_int_equal(want->n, tap.n_at * width);
    for (int64_t i = 0; i < tap.n_at * width; i++) {
        float *v = &x[tap.at[i / width] * width + i % width];
        got[i] = ref_round(*v, p);
        *v = want->f[i];
    }
    check(name, got, want->f, want->n);
    free(got);
}

static enum fst_status tap_embed(const struct embed_args *a, struct stream *s)
{
    (void)s;
    memcpy(a->x, tap.x, (size_t)a->n_rows * 4 * DIM * sizeof *a->x);
    return FST_OK;
}

static enum fst_status tap_seam(const struct seam_args *a, struct stream *s)
{
    struct seam_args b = *a;
    float *y = a->y ? rig_floats((int64_t)a->n_rows * DIM) : NULL;
    if (a->y) { /* a sublayer's sum is rounded by the seam */
        memcpy(y, a->y, (size_t)a->n_rows * DIM * sizeof *y);
        check_rows(tap.ffn ? "ffn_out" : "attn_out", y, DIM, s->precision);
        b.y = y;
    }
    FST_TRY(tap.real.seam(&b, s));
    free(y);
    if (a->y && !a->fn)
        check_rows("X", a->x, 4 * DIM, s->precision);
    if (a->fn) { /* out = norm * u / rms(u): the golden holds u */
        const struct golden_array *u = array(a->y ? "ffn_u" : "attn_u");
        for (int i = 0; i < tap.n_at; i++) {
            float want[DIM], *out = a->out + (int64_t)tap.at[i] * DIM;
            ref_rmsnorm(want, u->f + i * DIM, a->norm, DIM, a->norm_eps, s->precision);
            check("seam", out, want, DIM);
            memcpy(out, want, sizeof want);
        }
    }
    tap.ffn = tap.ffn || a->y;
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
    int all = score->dim[1];
    b.scores = tap.scores;
    FST_TRY(tap.real.index_topk(&b, s));
    for (int i = 0; i < tap.n_at; i++)
        check("index_score", tap.scores + tap.at[i] * a->max_entries, score->f + i * all,
              (tap.at[i] + 1) / 4);
    for (int t = 0; t < ROWS; t++) {
        int32_t sel[64], n = 0;
        for (int e = 0; e < all; e++)
            if (kept->i[t * all + e])
                sel[n++] = e;
        assert_int_equal(n, a->n_sel[t]);
        tap.flips += memcmp(sel, a->sel + t * a->topk, (size_t)n * sizeof *sel) != 0;
        memcpy(a->sel + t * a->topk, sel, (size_t)n * sizeof *sel);
    }
    return FST_OK;
}

static enum fst_status tap_attention(const struct attention_args *a, struct stream *s)
{
    FST_TRY(tap.real.attention(a, s));
    check_rows("o_unrotated", a->o, (int64_t)a->n_heads * a->head_dim, s->precision);
    return FST_OK;
}

static enum fst_status tap_route(const struct route_args *a, struct stream *s)
{
    const struct golden_array *id = array("expert_ids"), *weight = array("expert_weights");
    FST_TRY(tap.real.route(a, s));
    assert_int_equal(a->k, 2);
    for (int t = 0; t < ROWS; t++) {
        int lo = FST_MIN(id->i[2 * t], id->i[2 * t + 1]), hi = id->i[2 * t] + id->i[2 * t + 1] - lo;
        if (a->expert[2 * t] == lo && a->expert[2 * t + 1] == hi)
            continue;
        tap.flips++;
        a->expert[2 * t] = lo;
        a->expert[2 * t + 1] = hi;
    }
    for (int i = 0; i < tap.n_at; i++) { /* numpy lists them best first */
        float *mine = a->weight + 2 * tap.at[i], want[2];
        bool swapped = id->i[2 * tap.at[i]] > id->i[2 * tap.at[i] + 1];
        want[0] = weight->f[2 * i + swapped];
        want[1] = weight->f[2 * i + !swapped];
        check("expert_weights", mine, want, 2);
    }
    return FST_OK;
}

static void run_layer(const struct weights *w, int layer)
{
    struct weights *one = malloc(sizeof *one);
    struct kernels k = tap.real;
    struct rig r;
    char name[32];
    float row[512];
    assert_non_null(one);
    *one = *w;
    one->config.n_layers = 1;
    one->layer[0] = w->layer[layer];
    k.embed = tap_embed;
    k.seam = tap_seam;
    k.attn_in = tap_attn_in;
    k.kv_write = tap_kv_write;
    k.q_path = tap_q_path;
    k.index_topk = tap_topk;
    k.attention = tap_attention;
    k.route = tap_route;
    tap.layer = layer;
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
    rig_ok(stream_init(&s, NULL, PRECISION_NATIVE, kernels_scratch_bytes(&tap.real, &l, 1)));
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

static void test_layers(void **state)
{
    struct golden g;
    struct kernels sets[3];
    struct hashweights_spec spec = rig_small(HASHWEIGHTS_FP4);
    struct weights *w = rig_weights(&spec);
    int n_sets = rig_sets(sets);
    (void)state;
    rig_ok(golden_init(&g, "tests/golden/data/layers.gold"));
    for (int i = 0; i < n_sets; i++) {
        memset(&tap, 0, sizeof tap);
        tap.real = sets[i];
        tap.g = &g;
        tap.at = golden_get(&g, "at")->i;
        tap.n_at = (int)golden_get(&g, "at")->n;
        assert_int_equal(tap.n_at, 3);
        tap.x = rig_floats(ROWS * 4 * DIM);
        tap.scores = rig_floats(ROWS * 64);
        for (int layer = 0; layer < 3; layer++)
            run_layer(w, layer);
        run_head(w);
        print_message("%s: largest relative L2 %.1e (%s), %d of %d decisions flipped\n",
                      sets[i].name, tap.worst, tap.worst_name, tap.flips, 3 * ROWS + ROWS);
        assert_true(tap.checked > 40);
        assert_true(tap.flips <= 8); /* 2 % */
        free(tap.x);
        free(tap.scores);
    }
    golden_release(&g);
    weights_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
