/* Twenty-two classic mistakes in a DeepSeek-V4 engine, each of which T1 must notice.
 *
 * Mistakes in the model's data are made in a copy of the weights, mistakes in a block by wrapping its
 * table entry; rotations are mutated in copies of three reference blocks compiled here under other
 * names.  The figures in the table (largest difference of a logit, first position that moves) were
 * measured in numpy; the smallest is 5e-4, the golden's tolerance 1e-4. */
#include "support/rig.h"

#include "kernels/ref/ref.h"

enum mutation {
    NONE,
    NO_INVERSE_ROPE,
    HALF_SPLIT_PAIRS,
    COMPRESS_TABLE_EVERYWHERE,
    MAIN_TABLE_EVERYWHERE,
    COMPRESS_BASE_WITHOUT_YARN,
    MSCALE_ON_ROPE,
    ENTRY_AT_LAST_TOKEN,
    ENTRY_AT_ENTRY_INDEX,
    OVERLAP_LOST,
    HALVES_SWAPPED,
    ENTRY_ONE_TOKEN_LATE,
    APE_MISSING,
    RELU_MISSING,
    WINDOW_ONE_SHORT,
    SINK_OMITTED,
    HEAD_NORM_OMITTED,
    COMB_UNTRANSPOSED,
    HC_RMS_PER_STREAM,
    BIAS_IN_WEIGHTS,
    UNIFORM_HASH_WEIGHTS,
    SHARED_UNCLAMPED,
    SINKHORN_ONE_SHORT,
    MUTATIONS
};

static const struct {
    const char *name;
    double at_least; /* largest difference of a logit, about half of what was measured */
    int first;       /* no row before it may move */
} expected[MUTATIONS] = {
    [NO_INVERSE_ROPE] = {"no inverse rope", 3, 1},
    [HALF_SPLIT_PAIRS] = {"half-split pairs", 3, 1},
    [COMPRESS_TABLE_EVERYWHERE] = {"compress table on ratio-0 layers", 2, 1},
    [MAIN_TABLE_EVERYWHERE] = {"main table on all layers", 2, 1},
    [COMPRESS_BASE_WITHOUT_YARN] = {"compress base without YaRN", 0.5, 1},
    [MSCALE_ON_ROPE] = {"mscale on cos and sin", 3, 0},
    [ENTRY_AT_LAST_TOKEN] = {"entry rotated at its last token", 1.5, 3},
    [ENTRY_AT_ENTRY_INDEX] = {"entry rotated at its index", 1.5, 7},
    [OVERLAP_LOST] = {"overlap lost", 1.5, 7},
    [HALVES_SWAPPED] = {"channel halves swapped", 1.5, 3},
    [ENTRY_ONE_TOKEN_LATE] = {"entry visible one token late", 1, 3},
    [APE_MISSING] = {"ape missing", 1.5, 3},
    [RELU_MISSING] = {"relu missing in the indexer", 1, 35},
    [WINDOW_ONE_SHORT] = {"window 15", 2, 15},
    [SINK_OMITTED] = {"sink omitted", 2, 0},
    [HEAD_NORM_OMITTED] = {"q head norm omitted", 2, 0},
    [COMB_UNTRANSPOSED] = {"comb not transposed", 1, 0},
    [HC_RMS_PER_STREAM] = {"hyper-connection rms per stream", 1, 0},
    [BIAS_IN_WEIGHTS] = {"bias in the routing weights", 1, 0},
    [UNIFORM_HASH_WEIGHTS] = {"uniform weights in hash layers", 1.5, 0},
    [SHARED_UNCLAMPED] = {"shared expert unclamped", 4, 0},
    [SINKHORN_ONE_SHORT] = {"19 Sinkhorn rounds", 1e-4, 0},
};

static enum mutation now;
static const struct weights *truth;

/* ---------------------------------------------------------------- rotations */

static void mut_rotate(float *x, int n, int rope_dim, const float *cs, float sign, enum precision p)
{
    if (now == NO_INVERSE_ROPE && sign < 0)
        return;
    if (now != HALF_SPLIT_PAIRS) {
        ref_rotate(x, n, rope_dim, cs, sign, p);
        return;
    }
    float *y = x + n - rope_dim;
    int half = rope_dim / 2;
    for (int i = 0; i < half; i++) {
        float c = cs[2 * i], s = sign * cs[2 * i + 1], a = y[i], b = y[i + half];
        y[i] = a * c - b * s;
        y[i + half] = a * s + b * c;
    }
}

static float mscale(void)
{
    return now == MSCALE_ON_ROPE ? 1.2772589f : 1.0f; /* 0.1 ln 16 + 1 */
}

static void mut_rope_cs(float *cs, const float *freq, int rope_dim, int32_t pos, int ratio)
{
    if (now == ENTRY_AT_LAST_TOKEN)
        pos += ratio - 1;
    if (now == ENTRY_AT_ENTRY_INDEX)
        pos /= ratio;
    ref_rope_cs(cs, freq, rope_dim, pos);
    for (int i = 0; i < rope_dim; i++)
        cs[i] *= mscale();
}

#define ref_rotate            mut_rotate
#define ref_attention_scratch mut_attention_scratch
#define attention_ref         mut_attention
#define kv_write_ref          mut_kv_write
#define ring_store_ref        mut_ring_store
#define q_path_ref            mut_q_path
enum fst_status mut_attention(const struct attention_args *a, struct stream *s);
enum fst_status mut_kv_write(const struct kv_write_args *a, struct stream *s);
enum fst_status mut_ring_store(const struct ring_store_args *a, struct stream *s);
enum fst_status mut_q_path(const struct q_path_args *a, struct stream *s);
size_t mut_attention_scratch(int n_heads, int head_dim, int n_threads);

#include "kernels/ref/attention.c"

#define ref_rope_cs(cs, freq, dim, pos) mut_rope_cs(cs, freq, dim, pos, l->ratio)
#include "kernels/ref/kv_write.c"
#undef ref_rope_cs

#define job       q_job
#define rows_body q_rows_body
#include "kernels/ref/q_path.c"
#undef job
#undef rows_body
#undef ref_rotate
#undef ref_attention_scratch
#undef attention_ref
#undef kv_write_ref
#undef ring_store_ref
#undef q_path_ref

/* ---------------------------------------------------------------- wrapped blocks */

static enum fst_status wrap_rope(const struct rope_args *a, struct stream *s)
{
    FST_TRY(rope_ref(a, s));
    for (int i = 0; a->freq != truth->rope_main && i < a->n * a->rope_dim; i++)
        a->cs[i] *= mscale();
    return FST_OK;
}

/* The row that completes an entry of ratio 128 must not see it: such rows once more, with the
 * entries named one by one (page 0 alone: enough for 511 tokens). */
static enum fst_status late_attention(const struct attention_args *a, struct stream *s)
{
    FST_TRY(attention_ref(a, s));
    int32_t page = 0, list[2] = {0, 1};
    for (int t = 0; a->l->ratio == 128 && t < a->rows->n_rows; t++) {
        if ((a->rows->pos[t] + 1) % 128 != 0)
            continue;
        int64_t heads = (int64_t)a->n_heads * a->head_dim;
        int first[2] = {0, t + 1};
        int32_t *n_sel = calloc((size_t)t + 1, sizeof *n_sel);
        int32_t *sel = calloc(2 * (size_t)t + 2, sizeof *sel);
        float *o = rig_floats((t + 1) * heads);
        n_sel[t] = a->rows->pos[t] / 128;
        memcpy(sel + (int64_t)2 * t, list, sizeof list);
        struct kv_layer l = *a->l;
        l.ratio = 4;
        l.compressed_base += 2 * a->rows->pages[a->rows->slot[t] * a->rows->page_stride];
        struct rows r = *a->rows;
        r.n_rows = t + 1;
        r.span_first = first;
        r.pages = &page;
        r.page_stride = 0;
        struct attention_args b = *a;
        b.rows = &r;
        b.l = &l;
        b.sel = sel;
        b.n_sel = n_sel;
        b.topk = 2;
        b.o = o;
        FST_TRY(attention_ref(&b, s));
        memcpy(a->o + t * heads, o + t * heads, (size_t)heads * sizeof *o);
        free(o);
        free(sel);
        free(n_sel);
    }
    return FST_OK;
}

static enum fst_status wrap_attention(const struct attention_args *a, struct stream *s)
{
    return now == ENTRY_ONE_TOKEN_LATE ? late_attention(a, s) : mut_attention(a, s);
}

static enum fst_status late_topk(const struct index_topk_args *a, struct stream *s)
{
    int32_t pos[300];
    struct rows r = *a->rows;
    struct index_topk_args b = *a;
    for (int t = 0; t < r.n_rows; t++)
        pos[t] = r.pos[t] - 1;
    r.pos = pos;
    b.rows = &r;
    return index_topk_ref(&b, s);
}

static enum fst_status topk_without_relu(const struct index_topk_args *a, struct stream *s)
{
    FST_TRY(index_topk_ref(a, s));
    for (int t = 0; t < a->rows->n_rows; t++) {
        int nv = (a->rows->pos[t] + 1) / 4;
        float score[128], key[128];
        bool kept[128] = {false};
        for (int e = 0; e < nv; e++) {
            rows_index_load(a->l, a->rows->pages + a->rows->slot[t] * a->rows->page_stride, e, key,
                            a->index_dim);
            score[e] = 0;
            for (int h = 0; h < a->index_heads; h++)
                score[e] += a->iw[t * a->index_heads + h] *
                            (float)ref_dot(a->qi + (int64_t)(t * a->index_heads + h) * a->index_dim,
                                           key, a->index_dim);
        }
        for (int i = 0; i < a->n_sel[t]; i++) {
            int best = -1;
            for (int e = 0; e < nv; e++)
                if (!kept[e] && (best < 0 || score[e] > score[best]))
                    best = e;
            kept[best] = true;
        }
        for (int e = 0, i = 0; e < nv; e++)
            if (kept[e])
                a->sel[t * a->topk + i++] = e;
    }
    return FST_OK;
}

static enum fst_status wrap_topk(const struct index_topk_args *a, struct stream *s)
{
    return now == ENTRY_ONE_TOKEN_LATE ? late_topk(a, s)
           : now == RELU_MISSING       ? topk_without_relu(a, s)
                                       : index_topk_ref(a, s);
}

static enum fst_status wrap_q_path(const struct q_path_args *a, struct stream *s)
{
    FST_TRY(mut_q_path(a, s));
    if (now != HEAD_NORM_OMITTED)
        return FST_OK;
    ref_linear_all(s, a->wq_b, a->qr, a->n_rows, a->q, 0, s->scratch);
    for (int64_t i = 0; i < (int64_t)a->n_rows * a->n_heads; i++)
        ref_rotate(a->q + i * a->head_dim, a->head_dim, a->rope_dim,
                   a->cs + i / a->n_heads * a->rope_dim, 1.0f, s->precision);
    return FST_OK;
}

static void transpose_comb(float *mix)
{
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < j; k++) {
            float v = mix[8 + 4 * j + k];
            mix[8 + 4 * j + k] = mix[8 + 4 * k + j];
            mix[8 + 4 * k + j] = v;
        }
}

static void rms_per_stream(const struct seam_args *a, int t)
{
    int dim = a->dim;
    float *x = a->x + (int64_t)t * 4 * dim, *mix = a->mix + t * KERN_MIX;
    float *y = rig_floats(4 * dim), *u = a->out + (int64_t)t * dim;
    for (int k = 0; k < 4; k++)
        ref_rmsnorm(y + k * dim, x + k * dim, NULL, dim, a->norm_eps, PRECISION_REFERENCE);
    ref_hc_split(mix, y, dim, a->fn, a->base, a->scale, a->iters, a->hc_eps, a->norm_eps);
    for (int d = 0; d < dim; d++) {
        u[d] = 0;
        for (int k = 0; k < 4; k++)
            u[d] += mix[k] * x[k * dim + d];
    }
    ref_rmsnorm(u, u, a->norm, dim, a->norm_eps, PRECISION_REFERENCE);
    free(y);
}

static enum fst_status wrap_seam(const struct seam_args *a, struct stream *s)
{
    for (int t = 0; now == COMB_UNTRANSPOSED && a->y && t < a->n_rows; t++)
        transpose_comb(a->mix + t * KERN_MIX);
    FST_TRY(seam_ref(a, s));
    for (int t = 0; now == HC_RMS_PER_STREAM && a->fn && t < a->n_rows; t++)
        rms_per_stream(a, t);
    return FST_OK;
}

static enum fst_status wrap_route(const struct route_args *a, struct stream *s)
{
    float line[256];
    FST_TRY(route_ref(a, s));
    for (int i = 0; now == UNIFORM_HASH_WEIGHTS && a->tid2eid && i < a->n_rows * a->k; i++)
        a->weight[i] = a->scale / (float)a->k;
    for (int t = 0; now == BIAS_IN_WEIGHTS && a->bias && t < a->n_rows; t++) {
        float sum = 0, *w = a->weight + t * a->k;
        for (int i = 0; i < a->k; i++) {
            int e = a->expert[t * a->k + i];
            ref_mat_row(a->gate, e, line);
            double z = ref_dot(line, a->x + (int64_t)t * a->gate->n_in, a->gate->n_in);
            w[i] = (float)sqrt(log1p(exp(z))) + a->bias[e];
            sum += w[i];
        }
        for (int i = 0; i < a->k; i++)
            w[i] = w[i] / sum * a->scale;
    }
    return FST_OK;
}

static enum fst_status wrap_experts(const struct experts_args *a, struct stream *s)
{
    FST_TRY(experts_ref(a, s));
    if (now != SHARED_UNCLAMPED)
        return FST_OK;
    int64_t n = (int64_t)a->n_rows * a->dim;
    float *clamped = rig_floats(n), *open = rig_floats(n);
    struct experts_args shared = *a;
    shared.k = 0;
    shared.y = clamped;
    FST_TRY(experts_ref(&shared, s));
    shared.limit = INFINITY;
    shared.y = open;
    FST_TRY(experts_ref(&shared, s));
    for (int64_t i = 0; i < n; i++)
        a->y[i] += open[i] - clamped[i];
    free(clamped);
    free(open);
    return FST_OK;
}

static const struct kernels *table(void)
{
    static struct kernels k;
    kernels_init(&k, 0);
    k.rope = wrap_rope;
    k.attention = wrap_attention;
    k.kv_write = mut_kv_write;
    k.ring_store = mut_ring_store;
    k.index_topk = wrap_topk;
    k.q_path = wrap_q_path;
    k.seam = wrap_seam;
    k.route = wrap_route;
    k.experts = wrap_experts;
    return &k;
}

/* ---------------------------------------------------------------- changed weights */

static void *copies[256]; /* freed after each run */
static int n_copies;

static float *copy(const float *p, int64_t n)
{
    float *q = rig_floats(n);
    memcpy(q, p, (size_t)n * sizeof *q);
    copies[n_copies++] = q;
    return q;
}

static void swap_halves(float *p, int64_t rows_per_half, int64_t width)
{
    for (int64_t i = 0; i < rows_per_half * width; i++) {
        float v = p[i];
        p[i] = p[i + rows_per_half * width];
        p[i + rows_per_half * width] = v;
    }
}

static void change_compressor(struct compressor_weights *c)
{
    int64_t wide = c->wkv.n_out;
    if (!c->ratio || (now != APE_MISSING && c->ratio != 4))
        return;
    float *ape = copy(c->ape, c->ratio * wide);
    c->ape = ape;
    if (now == APE_MISSING)
        memset(ape, 0, (size_t)(c->ratio * wide) * sizeof *ape);
    for (int r = 0; now == OVERLAP_LOST && r < 4; r++) /* the group before gets no weight */
        for (int64_t j = 0; j < wide / 2; j++)
            ape[r * wide + j] = -1e30f;
    if (now != HALVES_SWAPPED)
        return;
    for (int r = 0; r < 4; r++)
        swap_halves(ape + r * wide, 1, wide / 2);
    struct mat *m[2] = {&c->wkv, &c->wgate};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(m[i]->fmt, WEIGHT_F32);
        float *p = copy(m[i]->data, wide * m[i]->n_in);
        swap_halves(p, wide / 2, m[i]->n_in);
        m[i]->data = p;
    }
}

static void change(struct weights *w)
{
    if (now == COMPRESS_TABLE_EVERYWHERE)
        memcpy(w->rope_main, w->rope_compress, sizeof w->rope_main);
    if (now == MAIN_TABLE_EVERYWHERE)
        memcpy(w->rope_compress, w->rope_main, sizeof w->rope_main);
    if (now == COMPRESS_BASE_WITHOUT_YARN) {
        struct model_config c = w->config;
        c.yarn_factor = 1;
        weights_rope_table_computed(w->rope_compress, &c, true);
    }
    if (now == WINDOW_ONE_SHORT)
        w->config.window--;
    if (now == SINKHORN_ONE_SHORT)
        w->config.hc_iters--;
    for (int l = 0; l < w->config.n_layers; l++) {
        struct attn_weights *a = &w->layer[l].attn;
        if (now == SINK_OMITTED) {
            float *sink = copy(a->sink, w->config.n_heads);
            for (int h = 0; h < w->config.n_heads; h++)
                sink[h] = -1e30f;
            a->sink = sink;
        }
        if (now == APE_MISSING || now == OVERLAP_LOST || now == HALVES_SWAPPED) {
            change_compressor(&a->compressor);
            change_compressor(&a->indexer.compressor);
        }
    }
}

/* ---------------------------------------------------------------- the runs */

static float *logits_of(enum mutation m, int n)
{
    static struct weights changed;
    struct rig r;
    int32_t ids[300];
    now = m;
    changed = *truth;
    change(&changed);
    struct rig_opts o = {.w = &changed,
                         .kernels = table(),
                         .precision = PRECISION_REFERENCE,
                         .format = ROW_F32,
                         .index_format = INDEX_F32,
                         .max_rows = 300,
                         .n_slots = 1,
                         .context = 512,
                         .threads = 2};
    rig_open(&r, &o);
    hashweights_tokens(ids, n, 512, 0);
    float *out = rig_floats((int64_t)n * 512);
    memcpy(out, rig_run(&r, rig_slot(&r), 0, ids, n), (size_t)n * 512 * sizeof *out);
    rig_close(&r);
    while (n_copies)
        free(copies[--n_copies]);
    return out;
}

static void test_all(void **state)
{
    struct hashweights_spec spec = hashweights_t1();
    struct weights *w = rig_weights(&spec);
    int n = test_size(132, 300, 40);
    (void)state;
    truth = w;
    float *want = logits_of(NONE, n);
    for (int m = NONE + 1; m < MUTATIONS; m++) {
        float *got = logits_of(m, n);
        double most = rig_max_diff(got, want, (int64_t)n * 512);
        int first = 0;
        while (first < n && rig_max_diff(got + first * 512, want + first * 512, 512) < 1e-4)
            first++;
        print_message("%-34s %9.5f from %d\n", expected[m].name, most, first);
        free(got);
        double least = n < 132 ? 1e-4 : expected[m].at_least; /* few rows: only caught at all */
        if (!(most > least) || first < expected[m].first)
            fail_msg("%s: %.6f from position %d, expected more than %g, not before %d",
                     expected[m].name, most, first, least, expected[m].first);
    }
    free(want);
    weights_free(w);
}

/* The wrapped table without a mutation is the reference to the bit: the wrapping proves nothing
 * otherwise. */
static void test_wrapping(void **state)
{
    struct hashweights_spec spec = hashweights_t1();
    struct weights *w = rig_weights(&spec);
    struct rig r;
    int32_t ids[130];
    (void)state;
    truth = w;
    struct rig_opts o = {.w = w,
                         .precision = PRECISION_REFERENCE,
                         .format = ROW_F32,
                         .index_format = INDEX_F32,
                         .max_rows = 300,
                         .n_slots = 1,
                         .context = 512};
    rig_open(&r, &o);
    hashweights_tokens(ids, 130, 512, 0);
    float *got = logits_of(NONE, 130);
    rig_same(got, rig_run(&r, rig_slot(&r), 0, ids, 130), 130 * 512, "wrapped table");
    free(got);
    rig_close(&r);
    weights_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wrapping), cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
