/* test_weights_open.c - the tree of a checkpoint, and every way to be no checkpoint. */
#include <inttypes.h>
#include <math.h>

#include "support/tiny_checkpoint.h"
#include "weights/weights.h"

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    tmpdir_make(dir, sizeof dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    tmpdir_remove(dir);
    return 0;
}

static void write_spec(const struct hashweights_spec *spec)
{
    tmpdir_remove(dir);
    if (hashweights_write(dir, spec) < 0)
        fail_msg("%s", fst_error_text());
}

static void write_tiny(enum inventory_draft draft, enum hashweights_format format)
{
    struct hashweights_spec s = tiny_spec(draft, format);
    write_spec(&s);
}

static struct weights *open_ok(const struct weights_opts *o)
{
    struct weights *w;
    if (weights_open(&w, dir, o) < 0)
        fail_msg("%s", fst_error_text());
    return w;
}

/* Refused, and the one line holds all of `what` (up to three parts; NULL ends). */
static void refuse(enum fst_status want, const char *a, const char *b, const char *c)
{
    struct weights *w = (void *)dir;
    const char *what[] = {a, b, c};
    enum fst_status rc = weights_open(&w, dir, NULL);
    assert_null(rc < 0 ? w : NULL);
    for (int i = 0; i < 3; i++) {
        if (rc != want || (what[i] && !strstr(fst_error_text(), what[i])) ||
            strchr(fst_error_text(), '\n'))
            fail_msg("expected %s with \"%s\": %s: %s", fst_status_name(want), what[i],
                     fst_status_name(rc), rc ? fst_error_text() : "accepted");
    }
}

/* ---- right ----------------------------------------------------------------------------------- */
static double e4m3(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    double v = e == 0 ? m * 0x1p-9 : ldexp(1 + m / 8.0, e - 7);
    return b & 0x80 ? -v : v;
}

static double element(const struct mat *m, int64_t r, int64_t c)
{
    static const double e2m1[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    int64_t i = r * m->n_in + c;
    const uint8_t *p = m->data;
    uint32_t bits;
    float f;
    switch (m->fmt) {
    case WEIGHT_F32:
        memcpy(&f, p + 4 * i, 4);
        return (double)f;
    case WEIGHT_BF16:
        bits = (uint32_t)(p[2 * i] | p[2 * i + 1] << 8) << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    case WEIGHT_FP8:
        return ldexp(e4m3(p[i]), m->scale[r / 128 * div_up(m->n_in, 128) + c / 128] - 127);
    case WEIGHT_FP4: {
        int n = c % 2 ? p[i / 2] >> 4 : p[i / 2] & 15;
        return ldexp(n & 8 ? -e2m1[n & 7] : e2m1[n], m->scale[i / 32] - 127);
    }
    default:
        fail_msg("format %d", (int)m->fmt);
    }
    return 0;
}

/* The hashed weight that was written, before quantisation. */
static double hashed(const char *name, int64_t i, int64_t n_in)
{
    float *u = malloc((size_t)(i + 1) * sizeof *u);
    assert_non_null(u);
    hashweights_stream(u, i + 1, name, 0);
    double w = 2.6 / sqrt((double)n_in) * (double)u[i];
    free(u);
    return w;
}

static void check_mat(const struct mat *m, const char *name, int rows, int cols, double tolerance)
{
    assert_int_equal(m->n_out, rows);
    assert_int_equal(m->n_in, cols);
    for (int k = 0; k < 5; k++) {
        int64_t i = ((int64_t)rows * cols - 1) * k / 4, r = i / cols, c = i % cols;
        double want = hashed(name, i, cols), got = element(m, r, c);
        if (!(fabs(got - want) <= tolerance * 2.6 / sqrt(cols)))
            fail_msg("%s [%d, %d]: %g, expected %g", name, (int)r, (int)c, got, want);
    }
}

/* Rounding steps relative to the largest weight: bf16 2^-9; E4M3 top binade 2^-4; E2M1 1/6 top
 * step halved, and a scale up to twice the largest weight. */
static void test_tree(void **state)
{
    static const struct {
        enum hashweights_format format;
        enum weight_format dense, expert, plain;
        double dense_tolerance, expert_tolerance;
    } cases[] = {
        {HASHWEIGHTS_F32, WEIGHT_F32, WEIGHT_F32, WEIGHT_F32, .004, .004},
        {HASHWEIGHTS_BF16, WEIGHT_BF16, WEIGHT_BF16, WEIGHT_BF16, .004, .004},
        {HASHWEIGHTS_FP8, WEIGHT_FP8, WEIGHT_FP8, WEIGHT_BF16, .07, .07},
        {HASHWEIGHTS_FP4, WEIGHT_FP8, WEIGHT_FP4, WEIGHT_BF16, .07, .35},
    };
    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        for (int variant = 0; variant < 3; variant++) {
            struct hashweights_spec s = tiny_spec(INVENTORY_MTP, cases[i].format);
            s.n_shards = variant == 1 ? 5 : 1;
            s.unaligned = variant == 2;
            write_spec(&s);
            struct weights *w = open_ok(NULL);
            assert_int_equal(weights_check_values(w), FST_OK);
            assert_string_equal(w->warning, "");
            const struct layer_weights *l = &w->layer[1];
            assert_int_equal(l->attn.wq_b.fmt, cases[i].dense);
            assert_int_equal(l->ffn.experts[3].w2.fmt, cases[i].expert);
            assert_int_equal(l->ffn.gate.fmt, cases[i].plain);
            check_mat(&l->attn.wq_b, "layers.1.attn.wq_b.weight", 256, 32,
                      cases[i].dense_tolerance);
            check_mat(&l->attn.wo_a, "layers.1.attn.wo_a.weight", 64, 128,
                      cases[i].dense_tolerance);
            check_mat(&l->ffn.experts[3].w2, "layers.1.ffn.experts.3.w2.weight", 128, 64,
                      cases[i].expert_tolerance);
            check_mat(&w->stage[0].ffn.experts[0].w1, "mtp.0.ffn.experts.0.w1.weight", 64, 128,
                      cases[i].expert_tolerance);
            check_mat(&w->mtp.h_proj, "mtp.0.h_proj.weight", 128, 128, cases[i].dense_tolerance);
            check_mat(&l->attn.indexer.compressor.wgate,
                      "layers.1.attn.indexer.compressor.wgate.weight", 256, 128, .004);
            check_mat(&w->head, "head.weight", 64, 128, .004);
            assert_true(fabs((double)l->hc_ffn.fn[24 * 512 - 1] -
                             hashed("layers.1.hc_ffn_fn", 24 * 512 - 1, 512)) < .001);
            weights_free(w);
        }
    }
}

static void test_shape_of_tree(void **state)
{
    (void)state;
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
    struct weights *w = open_ok(&(struct weights_opts){.populate = true});
    static const int ratio[] = {0, 4, 128, 4};
    for (int l = 0; l < 4; l++) {
        const struct layer_weights *x = &w->layer[l];
        assert_int_equal(x->ratio, ratio[l]);
        assert_int_equal(x->hash_route, l < 2);
        assert_int_equal(!!x->ffn.tid2eid, l < 2);
        assert_int_equal(!!x->ffn.bias, l >= 2);
        assert_int_equal(x->attn.compressor.ratio, ratio[l]);
        assert_int_equal(!!x->attn.compressor.ape, ratio[l] != 0);
        assert_int_equal(x->attn.indexer.wq_b.fmt, ratio[l] == 4 ? WEIGHT_FP8 : WEIGHT_NONE);
        assert_int_equal(x->attn.compressor.wkv.n_out, ratio[l] == 4   ? 256
                                                       : ratio[l] == 0 ? 0
                                                                       : 128);
        const float *const vectors[] = {x->attn_norm,    x->ffn_norm,      x->hc_attn.fn,
                                        x->hc_ffn.base,  x->hc_attn.scale, x->attn.q_norm,
                                        x->attn.kv_norm, x->attn.sink};
        for (size_t i = 0; i < FST_COUNT(vectors); i++) {
            assert_non_null(vectors[i]);
            assert_int_equal((uintptr_t)vectors[i] % sizeof(float), 0);
        }
    }
    assert_true(w->config.has_mtp);
    assert_int_equal(w->n_stages, 1);
    assert_int_equal(w->stage[0].ratio, 0);
    assert_non_null(w->stage[0].ffn.bias);
    assert_non_null(w->mtp.enorm);
    assert_true(w->rope_main[8] < .1001f && w->rope_main[8] > .0999f);
    assert_true(w->rope_compress[8] < .0501f);
    int64_t bytes = 0;
    struct weights_tensor t;
    for (int64_t i = 0; i < weights_n_tensors(w); i++) {
        weights_tensor_at(w, i, &t);
        bytes += t.bytes;
    }
    assert_int_equal(bytes, w->bytes);
    weights_tensor_at(w, 0, &t);
    assert_string_equal(t.name, "embed.weight");
    assert_string_equal(t.dtype, "BF16");
    weights_free(w);
    weights_free(NULL);
}

static void test_drafts(void **state)
{
    (void)state;
    write_tiny(INVENTORY_DSPARK, HASHWEIGHTS_FP4);
    struct weights *w = open_ok(NULL);
    assert_true(w->config.has_dspark);
    assert_false(w->config.has_mtp);
    assert_int_equal(w->n_stages, 2);
    assert_int_equal(w->dspark.main_proj.n_in, 256);
    assert_int_equal(w->dspark.markov_w1.n_in, 16);
    assert_int_equal(w->dspark.confidence.n_out, 1);
    assert_int_equal(w->dspark.confidence.n_in, 144);
    assert_non_null(w->dspark.norm);
    assert_non_null(w->dspark.hc_head.fn);
    check_mat(&w->stage[1].attn.wkv, "mtp.1.attn.wkv.weight", 128, 128, .07);
    weights_free(w);
    w = open_ok(&(struct weights_opts){.no_draft = true});
    assert_true(w->config.has_dspark);
    assert_int_equal(w->n_stages, 0);
    assert_null(w->stage[0].attn_norm);
    assert_int_equal(w->dspark.main_proj.fmt, WEIGHT_NONE);
    weights_free(w);

    write_tiny(INVENTORY_NO_DRAFT, HASHWEIGHTS_BF16);
    w = open_ok(NULL);
    assert_int_equal(w->n_stages, 0);
    assert_false(w->config.has_mtp);
    weights_free(w);
}

/* ---- names ----------------------------------------------------------------------------------- */
static void rename_old_style(struct tiny_tensor *t, void *ud)
{
    static const char *const from[] = {".attn.", ".ffn.", ".scale", "gate.bias"};
    static const char *const to[] = {".self_attn.", ".mlp.", ".weight_scale_inv",
                                     "gate.e_score_correction_bias"};
    struct buf out = {0};
    const char *rest = t->name;
    (void)ud;
    if (strncmp(t->name, "mtp.", 4) != 0)
        buf_puts(&out, "model.");
    for (int i = 0; i < 4; i++) {
        const char *p = strstr(rest, from[i]);
        if (!p)
            continue;
        buf_append(&out, rest, (size_t)(p - rest));
        buf_append(&out, to[i], strlen(to[i]) - (to[i][strlen(to[i]) - 1] == '.'));
        rest = p + strlen(from[i]) - (to[i][strlen(to[i]) - 1] == '.');
    }
    buf_puts(&out, rest);
    assert_true(out.len < sizeof t->name);
    memcpy(t->name, out.data, out.len + 1);
    buf_release(&out);
}

static void test_name_variants(void **state)
{
    char out[80];
    (void)state;
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
    tiny_rewrite(dir, "model.safetensors", rename_old_style, NULL);
    struct weights *w = open_ok(NULL);
    check_mat(&w->layer[2].attn.wkv, "layers.2.attn.wkv.weight", 128, 128, .07);
    assert_non_null(w->layer[2].ffn.bias);
    weights_free(w);
    shards_canonical(out, "model.layers.3.self_attn.wkv.weight_scale_inv");
    assert_string_equal(out, "layers.3.attn.wkv.scale");
    shards_canonical(out, "layers.3.mlp_extra.model.x");
    assert_string_equal(out, "layers.3.mlp_extra.model.x");
}

/* ---- wrong ----------------------------------------------------------------------------------- */
struct edit {
    const char *name; /* tensor */
    const char *rename, *dtype;
    int64_t shape[2]; /* 0: as it is */
    bool drop, halve; /* halve: keep the first half of the bytes */
    int64_t set_at;   /* byte offset + 1; 0: nothing */
    uint8_t set_to;
    int seen;
};

static void apply(struct tiny_tensor *t, void *ud)
{
    struct edit *e = ud;
    if (strcmp(t->name, e->name) != 0)
        return;
    e->seen++;
    t->drop = e->drop;
    if (e->halve)
        t->bytes /= 2;
    if (e->rename)
        snprintf(t->name, sizeof t->name, "%s", e->rename);
    if (e->dtype)
        snprintf(t->dtype, sizeof t->dtype, "%s", e->dtype);
    for (int i = 0; i < 2; i++)
        if (e->shape[i])
            t->shape[i] = e->shape[i];
    if (e->set_at)
        t->data[e->set_at - 1] = e->set_to;
}

static void edit(struct edit e)
{
    tiny_rewrite(dir, "model.safetensors", apply, &e);
    assert_int_equal(e.seen, 1);
}

static void test_wrong_tensors(void **state)
{
    static const struct {
        struct edit e;
        const char *name, *what;
    } cases[] = {
        {{.name = "layers.1.attn.wkv.weight", .drop = true}, "layers.1.attn.wkv.weight", "missing"},
        {{.name = "layers.1.attn.wkv.scale", .drop = true}, "layers.1.attn.wkv.scale", "missing"},
        {{.name = "layers.3.ffn.gate.bias", .drop = true}, "layers.3.ffn.gate.bias", "missing"},
        {{.name = "mtp.0.enorm.weight", .drop = true}, "mtp.0.enorm.weight", "missing"},
        {{.name = "mtp.0.ffn.experts.2.w3.scale", .drop = true},
         "mtp.0.ffn.experts.2.w3.scale",
         "missing"},
        {{.name = "norm.weight", .rename = "norm.wait"},
         "norm.weight",
         "(0 wrong, 1 missing, 1 unknown)"},
        {{.name = "layers.0.attn_norm.weight", .rename = "layers.4.attn_norm.weight"},
         "layers.0.attn_norm.weight",
         "missing"},
        {{.name = "layers.1.attn.wkv.weight", .dtype = "U8"},
         "layers.1.attn.wkv.weight",
         "expected F8_E4M3 [128, 128]"},
        {{.name = "layers.1.attn.wkv.scale", .dtype = "U8"},
         "layers.1.attn.wkv.scale",
         "expected F8_E8M0 [1, 1]"},
        {{.name = "layers.1.ffn.experts.0.w1.weight", .dtype = "F8_E4M3"},
         "layers.1.ffn.experts.0.w1.weight",
         "expected F8_E4M3 [64, 128]"},
        {{.name = "head.weight", .dtype = "F16"}, "head.weight", "expected BF16 [64, 128]"},
        {{.name = "head.weight", .shape = {128, 64}}, "head.weight", "BF16 [128, 64]; expected"},
        {{.name = "layers.1.ffn.gate.tid2eid", .shape = {32, 4}},
         "layers.1.ffn.gate.tid2eid",
         "expected I64 [64, 2]"},
        {{.name = "layers.2.attn.attn_sink", .dtype = "I32"},
         "layers.2.attn.attn_sink",
         "expected F32 [2]"},
    };
    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
        edit(cases[i].e);
        refuse(FST_EFORMAT, cases[i].name, cases[i].what, dir);
    }
    /* One tensor more than expected. */
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
    struct hashweights_spec s = tiny_spec(INVENTORY_NO_DRAFT, HASHWEIGHTS_FP4);
    s.config.n_layers = 3;
    size_t len;
    char *data = tmpdir_read(dir, "model.safetensors", &len);
    write_spec(&s);
    tmpdir_write(dir, "model.safetensors", data, len);
    free(data);
    refuse(FST_EFORMAT, "layers.3.", "unknown", "model.safetensors");
    /* A scale beside an unquantised weight. */
    write_tiny(INVENTORY_NO_DRAFT, HASHWEIGHTS_BF16);
    edit((struct edit){.name = "layers.0.attn_norm.weight", .rename = "layers.0.attn.wq_a.scale"});
    refuse(FST_EFORMAT, "layers.0.attn.wq_a.scale", "beside a weight of dtype BF16", NULL);
}

static void test_wrong_values(void **state)
{
    (void)state;
    /* Little-endian I64 [64, 2]: byte 8 * 11 is token 5, choice 1. */
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
    edit((struct edit){.name = "layers.1.ffn.gate.tid2eid", .set_at = 8 * 11 + 1, .set_to = 4});
    refuse(FST_EFORMAT, "layers.1.ffn.gate.tid2eid", "token 5, choice 1: expert 4", "0 to 3");
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
    edit((struct edit){.name = "layers.1.ffn.gate.tid2eid", .set_at = 8 * 11 + 8, .set_to = 0x80});
    refuse(FST_EFORMAT, "layers.1.ffn.gate.tid2eid", "token 5, choice 1: expert -", NULL);

    /* A repeated expert is only remarked upon. */
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
    struct weights *w = open_ok(NULL);
    uint8_t other = (uint8_t)w->layer[1].ffn.tid2eid[10];
    weights_free(w);
    edit((struct edit){.name = "layers.1.ffn.gate.tid2eid", .set_at = 8 * 11 + 1, .set_to = other});
    w = open_ok(NULL);
    assert_non_null(strstr(w->warning, "token 5 names one expert twice"));
    weights_free(w);

    static const struct {
        const char *name, *where;
        int64_t at;
        uint8_t to;
    } nans[] = {
        {"layers.1.attn.wq_b.weight", "element 8191 (row 255, column 31)", 8191, 0x7f},
        {"layers.1.attn.wq_b.weight", "element 0 (row 0, column 0)", 0, 0xff},
        {"layers.1.attn.wq_b.scale", "element 1 (row 1, column 0)", 1, 0xff},
        {"layers.1.ffn.experts.2.w1.scale", "element 7 (row 1, column 3)", 7, 0xff},
        {"mtp.0.e_proj.scale", "element 0", 0, 0xff},
    };
    for (size_t i = 0; i < FST_COUNT(nans); i++) {
        write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
        w = open_ok(NULL);
        assert_int_equal(weights_check_values(w), FST_OK);
        weights_free(w);
        edit((struct edit){.name = nans[i].name, .set_at = nans[i].at + 1, .set_to = nans[i].to});
        w = open_ok(NULL);
        assert_int_equal(weights_check_values(w), FST_EFORMAT);
        assert_non_null(strstr(fst_error_text(), nans[i].name));
        assert_non_null(strstr(fst_error_text(), nans[i].where));
        weights_free(w);
    }
    /* BF16 infinity: high byte of element 5 of [64, 128] and the top bit of the low byte. */
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_F32);
    edit((struct edit){.name = "head.weight", .set_at = 4 * 5 + 4, .set_to = 0x7f});
    edit((struct edit){.name = "head.weight", .set_at = 4 * 5 + 3, .set_to = 0x80});
    w = open_ok(NULL);
    assert_int_equal(weights_check_values(w), FST_EFORMAT);
    assert_non_null(strstr(fst_error_text(), "\"head.weight\": element 5 "));
    weights_free(w);
}

/* Formats are by layer: one expert of another dtype would need its own kernels. */
static void test_mixed_experts(void **state)
{
    (void)state;
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_F32);
    edit((struct edit){.name = "layers.2.ffn.experts.1.w2.weight", .dtype = "BF16", .halve = true});
    refuse(FST_EFORMAT, "layers.2.ffn.experts.1.w2.weight", "another dtype than its layer's", NULL);
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_F32);
    edit((struct edit){.name = "mtp.0.ffn.experts.3.w3.weight", .dtype = "BF16", .halve = true});
    refuse(FST_EFORMAT, "mtp.0.ffn.experts.3.w3.weight", "another dtype than its layer's", NULL);
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_F32); /* other tensors may differ */
    edit((struct edit){.name = "layers.2.attn.wkv.weight", .dtype = "BF16", .halve = true});
    struct weights *w = open_ok(NULL);
    assert_int_equal(w->layer[2].attn.wkv.fmt, WEIGHT_BF16);
    weights_free(w);
}

/* ---- folders and shards ---------------------------------------------------------------------- */
static void replace_in(const char *file, const char *from, const char *to)
{
    size_t len;
    char *text = tmpdir_read(dir, file, &len), *p = strstr(text, from);
    struct buf b = {0};
    assert_non_null(p);
    buf_append(&b, text, (size_t)(p - text));
    buf_puts(&b, to);
    buf_append(&b, p + strlen(from), len - (size_t)(p - text) - strlen(from));
    tmpdir_write(dir, file, b.data, b.len);
    buf_release(&b);
    free(text);
}

static void test_folder(void **state)
{
    static const char index[] = "model.safetensors.index.json";
    struct hashweights_spec s = tiny_spec(INVENTORY_MTP, HASHWEIGHTS_FP4);
    char path[128];
    size_t len;
    (void)state;
    s.n_shards = 3;

    write_spec(&s);
    weights_free(open_ok(NULL));
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    refuse(FST_ENOTFOUND, "config.json", NULL, NULL);

    write_spec(&s);
    snprintf(path, sizeof path, "%s/%s", dir, index);
    unlink(path);
    refuse(FST_ENOTFOUND, "neither model.safetensors.index.json nor model.safetensors", NULL, NULL);

    write_spec(&s);
    snprintf(path, sizeof path, "%s/model-00002-of-00003.safetensors", dir);
    unlink(path);
    refuse(FST_EFORMAT, index, "model-00002-of-00003.safetensors is missing", NULL);

    write_spec(&s); /* in the index, in no shard */
    replace_in(index, "\"embed.weight\"",
               "\"embed.wait\":\"model-00001-of-00003.safetensors\","
               "\"embed.weight\"");
    refuse(FST_EFORMAT, "\"embed.wait\" is not in model-00001", index, NULL);

    write_spec(&s); /* in a shard, not in the index */
    replace_in(index, "\"embed.weight\":\"model-00001-of-00003.safetensors\",", "");
    refuse(FST_EFORMAT, "\"embed.weight\" is not in", index, NULL);

    write_spec(&s); /* in another shard than the index says */
    replace_in(index, "\"embed.weight\":\"model-00001", "\"embed.weight\":\"model-00003");
    refuse(FST_EFORMAT, "\"embed.weight\" should be in", "it is in", NULL);

    write_spec(&s); /* the same file under two names: all its tensors twice */
    char *data = tmpdir_read(dir, "model-00001-of-00003.safetensors", &len);
    tmpdir_write(dir, "again.safetensors", data, len);
    free(data);
    replace_in(index, "\"embed.weight\":\"model-00001-of-00003.safetensors\"",
               "\"embed.weight\":\"again.safetensors\"");
    refuse(FST_EFORMAT, "is also in", "embed.weight", NULL);

    write_spec(&s); /* two spellings of one name */
    struct edit e = {.name = "layers.0.ffn.gate.weight", .rename = "model.embed.weight"};
    tiny_rewrite(dir, "model-00001-of-00003.safetensors", apply, &e);
    assert_int_equal(e.seen, 1);
    replace_in(index, "\"layers.0.ffn.gate.weight\":\"model-00001",
               "\"model.embed.weight\":\"model-00001");
    refuse(FST_EFORMAT, "is also in", "embed.weight", NULL);

    static const char *const bad_files[] = {"../x.safetensors", "/etc/passwd", "", ".hidden"};
    for (size_t i = 0; i < FST_COUNT(bad_files); i++) {
        char to[128];
        write_spec(&s);
        snprintf(to, sizeof to, "\"embed.weight\":\"%s\"", bad_files[i]);
        replace_in(index, "\"embed.weight\":\"model-00001-of-00003.safetensors\"", to);
        refuse(FST_EFORMAT, index, "embed.weight", "file of this folder");
    }
    static const char *const bad_index[] = {
        "{", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{\"embed.weight\":7}}", ""};
    for (size_t i = 0; i < FST_COUNT(bad_index); i++) {
        write_spec(&s);
        tmpdir_write(dir, index, bad_index[i], strlen(bad_index[i]));
        refuse(FST_EFORMAT, index, NULL, NULL);
    }
    write_spec(&s); /* an empty map: every tensor is missing */
    tmpdir_write(dir, index, "{\"weight_map\":{}}", 17);
    refuse(FST_EFORMAT, "\"embed.weight\" is missing", NULL, NULL);
}

/* A drafter that config.json does not announce cannot be guessed. */
static void test_unannounced_dspark(void **state)
{
    (void)state;
    write_tiny(INVENTORY_DSPARK, HASHWEIGHTS_FP4);
    replace_in("config.json", "dspark_block_size", "x1");
    replace_in("config.json", "dspark_markov_rank", "x2");
    replace_in("config.json", "dspark_noise_token_id", "x3");
    replace_in("config.json", "dspark_target_layer_ids", "x4");
    refuse(FST_EFORMAT, "config.json", "dspark_target_layer_ids", "mtp.0.main_proj.weight");
    /* Announced, but a classic MTP block is there. */
    write_tiny(INVENTORY_MTP, HASHWEIGHTS_FP4);
    replace_in("config.json", "\"hc_mult\"",
               "\"dspark_block_size\":5,\"dspark_noise_token_id\":63,\"hc_mult\"");
    refuse(FST_EFORMAT, "mtp.0.main_proj.weight", "missing", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_shape_of_tree),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_name_variants),
        cmocka_unit_test(test_wrong_tensors),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_mixed_experts),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_unannounced_dspark),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
