/* check_project.c - blocks whose rows stand alone: seam, projections, routing, experts, head. */
#include "checkkern.h"

#define ROW(p, first, width) ((p) ? (p) + (int64_t)(first) * (width) : NULL)

static void label(struct ck_case *t, const char *entry, const struct ck_shape *m, const char *what,
                  int n_rows, int n_ref)
{
    memset(t, 0, sizeof *t);
    t->entry = entry;
    t->n_rows = n_rows;
    t->n_ref = FST_MIN(n_rows, n_ref);
    snprintf(t->label, sizeof t->label, "%s %s", m->name, what);
}

static int32_t *ids(struct ck *c, int n, int vocab)
{
    int32_t *id = ck_alloc(c, (size_t)n * 4);
    for (int i = 0; i < n; i++)
        id[i] = ck_below(c, vocab);
    return id;
}

static float *floats(struct ck *c, int64_t n, float mean, float spread)
{
    float *x = ck_alloc(c, (size_t)n * 4);
    ck_floats(c, x, n, mean, spread);
    return x;
}

static float *acts(struct ck *c, int64_t n_rows, int width, float scale)
{
    float *x = ck_alloc(c, (size_t)(n_rows * width) * 4);
    ck_activations(c, x, n_rows, width, scale);
    return x;
}

static int64_t mat_bytes(const struct mat *m)
{
    int64_t n = (int64_t)m->n_out * m->n_in;
    return m->fmt == WEIGHT_F32    ? 4 * n
           : m->fmt == WEIGHT_BF16 ? 2 * n
           : m->fmt == WEIGHT_FP8  ? n
           : m->fmt == WEIGHT_FP4  ? n / 2 + n / 32
                                   : 0;
}

static void count(struct ck_case *t, const struct mat *m, int64_t rows)
{
    t->bytes += mat_bytes(m);
    t->macs += (int64_t)m->n_out * m->n_in * rows;
}

/* cos and sin as the table's rope makes them. */
static float *angles(struct ck *c, const struct ck_shape *m, int n, int first_pos)
{
    float *cs = ck_alloc(c, (size_t)n * (size_t)m->rope_dim * 4), *freq = ck_alloc(c, 32 * 4);
    int32_t *pos = ck_alloc(c, (size_t)n * 4);
    for (int i = 0; i < n; i++)
        pos[i] = first_pos + i;
    for (int i = 0; i < m->rope_dim / 2; i++)
        freq[i] = powf(10000, -2.0f * (float)i / (float)m->rope_dim);
    struct rope_args a = {cs, freq, pos, n, m->rope_dim};
    c->k.rope(&a, &c->s);
    return cs;
}

/* ---------------------------------------------------------------- operands */

/* Room for the operand of n rows, at most, where the set under test has them. */
static uint8_t *operand_room(struct ck *c, int n, int width)
{
    const struct kernels *k = &c->k;
    n = FST_MIN(n, k->operand_rows);
    return n && k->operand_bytes(n, width) ? ck_alloc(c, k->operand_bytes(n, width)) : NULL;
}

/* Whether n rows go with an operand: p is room for one. */
static bool operand_taken(const struct kernels *k, const void *p, int n)
{
    return p && n && n <= k->operand_rows;
}

/* A copy of the outputs of a case's rows, which are then overwritten; the same once more? */
static void keep(const struct ck_case *t, void **kept, int first, int n)
{
    for (int i = 0; i < t->n_outputs; i++) {
        size_t row = (size_t)t->out[i].width * 4;
        uint8_t *p = (uint8_t *)t->out[i].data + (size_t)first * row;
        kept[i] = mem_alloc((size_t)n * row + 1);
        FST_ASSERT(kept[i]);
        memcpy(kept[i], p, (size_t)n * row);
        memset(p, 0x5b, (size_t)n * row);
    }
}
static void same_again(struct ck *c, const struct ck_case *t, void **kept, int first, int n,
                       const char *what)
{
    for (int i = 0; i < t->n_outputs; i++) {
        size_t row = (size_t)t->out[i].width * 4;
        const uint8_t *p = (const uint8_t *)t->out[i].data + (size_t)first * row;
        ck_verdict(c, memcmp(p, kept[i], (size_t)n * row) == 0, t->entry,
                   "%s: %s of %d rows is another with %s", t->label, t->out[i].name, n, what);
        mem_free(kept[i]);
    }
}

/* The operand that an entry left of x, in whole or (codes) its first form. */
static void check_operand(struct ck *c, const struct ck_case *t, const uint8_t *left,
                          const float *x, int n, int width, bool codes)
{
    size_t bytes = c->k.operand_bytes(n, width);
    uint8_t *want = mem_alloc(bytes);
    FST_ASSERT(want);
    memset(want, 0x7e, bytes); /* between the forms nothing is written */
    size_t first = ck_operand(want, x, n, width);
    ck_verdict(c, memcmp(left, want, codes ? first : bytes) == 0, t->entry,
               "%s: operand of %d rows", t->label, n);
    mem_free(want);
}

/* ---------------------------------------------------------------- rope, embed */

static void run_rope(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                     int first, int n)
{
    struct rope_args a = *(struct rope_args *)t->ud;
    (void)c;
    a.cs = ROW(a.cs, first, a.rope_dim);
    a.pos += first;
    a.n = n;
    FST_ASSERT(k->rope(&a, s) == FST_OK);
}

static void case_rope(struct ck *c, const struct ck_shape *m, int n)
{
    struct ck_case t;
    float *freq = ck_alloc(c, 32 * 4);
    int32_t *pos = ids(c, n, 1 << 20);
    for (int i = 0; i < m->rope_dim / 2; i++)
        freq[i] = powf(160000, -2.0f * (float)i / (float)m->rope_dim);
    struct rope_args a = {NULL, freq, pos, n, m->rope_dim};
    label(&t, "rope", m, "", n, n);
    t.run = run_rope;
    t.ud = &a;
    ck_out(&t, c, "cs", &a.cs, m->rope_dim, 1e-12);
    ck_run(c, &t);
}

static void run_embed(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                      int first, int n)
{
    struct embed_args a = *(struct embed_args *)t->ud;
    (void)c;
    a.x = ROW(a.x, first, KERN_HC * a.dim);
    a.id += first;
    a.n_rows = n;
    FST_ASSERT(k->embed(&a, s) == FST_OK);
}

static void case_embed(struct ck *c, const struct ck_shape *m, int n)
{
    struct ck_case t;
    struct mat table = ck_mat(c, WEIGHT_BF16, m->vocab, m->dim, 1);
    struct embed_args a = {NULL, &table, ids(c, n, m->vocab), n, m->dim};
    label(&t, "embed", m, "", n, n);
    t.run = run_embed;
    t.ud = &a;
    t.bytes = (int64_t)n * m->dim * 18;
    ck_out(&t, c, "x", &a.x, KERN_HC * m->dim, 0);
    ck_run(c, &t);
}

/* ---------------------------------------------------------------- seam */

struct seam_case {
    struct seam_args a;
    const float *x0, *mix0;
    uint8_t *operand;
    const float *parts; /* (n, k+1, dim): y in parts, the shared expert's last */
    float *apart;       /* as of experts_apart: room for those of some rows */
    int k;
};

/* y in parts is the same as their sum. */
static void run_parts(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                      struct seam_args a, int first)
{
    struct seam_case *u = t->ud;
    int64_t wide = KERN_HC * a.dim, n = a.n_rows, one = u->k + 1;
    void *kept[CK_OUTPUTS];
    keep(t, kept, first, a.n_rows);
    if (!a.fn) /* out is left alone */
        memcpy(a.out, kept[2], (size_t)(n * a.dim) * 4);
    memcpy(a.x, u->x0 + first * wide, (size_t)(n * wide) * 4);
    memcpy(a.mix, u->mix0 + (int64_t)first * KERN_MIX, (size_t)n * KERN_MIX * 4);
    for (int64_t v = 0; v < n * one; v++) {
        int64_t row = v / one, e = v % one, to = e < u->k ? row * u->k + e : n * u->k + row;
        memcpy(u->apart + to * a.dim, u->parts + (first * one + v) * a.dim, (size_t)a.dim * 4);
    }
    a.y = u->apart;
    a.parts = u->k;
    FST_ASSERT(k->seam(&a, s) == FST_OK);
    same_again(c, t, kept, first, a.n_rows, "y in parts");
}

static void run_seam(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                     int first, int n)
{
    struct seam_case *u = t->ud;
    struct seam_args a = u->a;
    int64_t wide = KERN_HC * a.dim;
    a.x = ROW(a.x, first, wide);
    a.mix = ROW(a.mix, first, KERN_MIX);
    memcpy(a.x, u->x0 + first * wide, (size_t)(n * wide) * 4);
    memcpy(a.mix, u->mix0 + (int64_t)first * KERN_MIX, (size_t)n * KERN_MIX * 4);
    a.y = ROW(a.y, first, a.dim);
    a.capture = ROW(a.capture, first, a.capture_ld);
    a.out = ROW(a.out, first, a.dim);
    a.n_rows = n;
    FST_ASSERT(k->seam(&a, s) == FST_OK);
    if (u->apart && operand_taken(k, u->apart, n))
        run_parts(c, t, k, s, a, first);
    if (!operand_taken(k, u->operand, n))
        return;
    void *kept[CK_OUTPUTS];
    keep(t, kept, first, n);
    memcpy(a.x, u->x0 + first * wide, (size_t)(n * wide) * 4);
    memcpy(a.mix, u->mix0 + (int64_t)first * KERN_MIX, (size_t)n * KERN_MIX * 4);
    memset(u->operand, 0x7e, k->operand_bytes(n, a.dim));
    a.operand = u->operand;
    FST_ASSERT(k->seam(&a, s) == FST_OK);
    same_again(c, t, kept, first, n, "an operand");
    check_operand(c, t, u->operand, a.out, n, a.dim, false);
}

/* y as a sum of k+1 parts, in floats and in order. */
static float *sum_of_parts(struct ck *c, struct seam_case *u, int k)
{
    int64_t n = u->a.n_rows, dim = u->a.dim;
    float *parts = floats(c, n * (k + 1) * dim, 0, 0.4f);
    float *y = ck_alloc(c, (size_t)(n * dim) * 4);
    for (int64_t i = 0; i < n * dim; i++) {
        const float *p = parts + i / dim * (k + 1) * dim + i % dim;
        y[i] = p[0];
        for (int e = 1; e <= k; e++)
            y[i] += p[e * dim];
    }
    u->parts = parts;
    u->k = k;
    int64_t rows = FST_MIN(n, c->k.operand_rows) * (k + 1);
    u->apart = rows ? ck_alloc(c, (size_t)(rows * dim) * 4) : NULL;
    return y;
}

static void case_seam(struct ck *c, const struct ck_shape *m, int n, int n_ref, int kind)
{
    static const char *const what[] = {"first", "between", "between, captured", "last"};
    struct ck_case t;
    int wide = KERN_HC * m->dim;
    struct seam_case u = {
        .a = {.n_rows = n, .dim = m->dim, .iters = 20, .hc_eps = 1e-6f, .norm_eps = 1e-6f}};
    float *mix0 = floats(c, (int64_t)n * KERN_MIX, 0.4f, 0.2f);
    u.x0 = acts(c, n, wide, 1);
    u.mix0 = mix0;
    if (kind > 0)
        u.a.y = sum_of_parts(c, &u, kind == 1 ? 6 : kind == 2 ? 8 : 1);
    if (kind < 3) {
        u.a.fn = floats(c, (int64_t)KERN_MIX * wide, 0, 1 / sqrtf((float)wide));
        u.a.base = floats(c, KERN_MIX, 0, 1);
        u.a.scale = floats(c, 3, 1, 0.3f);
        u.a.norm = floats(c, m->dim, 1, 0.2f);
        u.operand = operand_room(c, n, m->dim);
    }
    label(&t, "seam", m, what[kind], n, n_ref);
    t.run = run_seam;
    t.ud = &u;
    t.macs = (int64_t)n * wide * (KERN_MIX + 8);
    t.bytes = (int64_t)wide * KERN_MIX * 4 + (int64_t)n * wide * 8;
    ck_out(&t, c, "x", &u.a.x, wide, 1e-5);
    ck_out(&t, c, "mix", &u.a.mix, KERN_MIX, 1e-5);
    ck_out(&t, c, "out", &u.a.out, m->dim, kind == 3 ? 0 : 1e-5);
    if (kind == 2) {
        u.a.capture_ld = m->dim;
        ck_out(&t, c, "capture", &u.a.capture, m->dim, 1e-5);
    }
    ck_run(c, &t);
}

/* ---------------------------------------------------------------- attn_in */

struct in_case {
    struct attn_in_args a;
    struct mat m[7];
    uint8_t *operand, *qr_operand; /* on a card: the emulation's attn_in takes none */
};

static void run_in(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                   int first, int n)
{
    struct in_case *u = t->ud;
    struct attn_in_args a = u->a;
    a.x = ROW(a.x, first, a.wkv->n_in);
    a.qr = a.wq_a ? ROW(a.qr, first, a.wq_a->n_out) : NULL;
    a.kv = ROW(a.kv, first, a.wkv->n_out);
    a.cmp = a.cmp_wkv ? ROW(a.cmp, first, 2 * a.cmp_wkv->n_out) : NULL;
    a.idx = a.idx_wkv ? ROW(a.idx, first, 2 * a.idx_wkv->n_out) : NULL;
    a.iw = a.weights_proj ? ROW(a.iw, first, a.weights_proj->n_out) : NULL;
    a.n_rows = n;
    FST_ASSERT(k->attn_in(&a, s) == FST_OK);
    if (!operand_taken(k, u->operand, n))
        return;
    void *kept[CK_OUTPUTS];
    keep(t, kept, first, n);
    (void)ck_operand(u->operand, a.x, n, a.wkv->n_in);
    a.operand = u->operand;
    a.qr_operand = u->qr_operand;
    FST_ASSERT(k->attn_in(&a, s) == FST_OK);
    same_again(c, t, kept, first, n, "an operand");
    if (a.qr_operand)
        check_operand(c, t, u->qr_operand, a.qr, n, a.wq_a->n_out, true);
}

static void case_in(struct ck *c, const struct ck_shape *m, int n, int n_ref, int ratio,
                    enum weight_format q)
{
    struct ck_case t;
    struct in_case u = {.a = {.n_rows = n, .iw_scale = 0.011048543456039806f, .norm_eps = 1e-6f}};
    char what[32];
    int w = ratio == 4 ? 2 * m->head_dim : m->head_dim;
    snprintf(what, sizeof what, "ratio %d%s", FST_MAX(ratio, 0),
             ratio < 0         ? ", injection"
             : q == WEIGHT_FP8 ? ""
                               : ", wq_a fp32");
    label(&t, "attn_in", m, what, n, n_ref);
    u.a.x = acts(c, n, m->dim, 1);
    u.m[1] = ck_mat(c, WEIGHT_FP8, m->head_dim, m->dim, 1);
    u.a.wkv = &u.m[1];
    u.a.kv_norm = floats(c, m->head_dim, 1, 0.2f);
    count(&t, &u.m[1], n);
    if (ratio >= 0) {
        u.m[0] = ck_mat(c, q, m->q_rank, m->dim, 1);
        u.a.wq_a = &u.m[0];
        u.a.q_norm = floats(c, m->q_rank, 1, 0.2f);
        ck_out(&t, c, "qr", &u.a.qr, m->q_rank, 1e-5);
        count(&t, &u.m[0], n);
    }
    ck_out(&t, c, "kv", &u.a.kv, m->head_dim, 1e-5);
    if (ratio > 0) {
        u.m[2] = ck_mat(c, WEIGHT_BF16, w, m->dim, 1);
        u.m[3] = ck_mat(c, WEIGHT_BF16, w, m->dim, 1);
        u.a.cmp_wkv = &u.m[2];
        u.a.cmp_wgate = &u.m[3];
        ck_out(&t, c, "cmp", &u.a.cmp, 2 * w, 1e-9);
        count(&t, &u.m[2], 2 * n);
        t.bytes += mat_bytes(&u.m[3]);
    }
    if (ratio == 4) {
        u.m[4] = ck_mat(c, WEIGHT_BF16, 2 * m->index_dim, m->dim, 1);
        u.m[5] = ck_mat(c, WEIGHT_BF16, 2 * m->index_dim, m->dim, 1);
        u.m[6] = ck_mat(c, WEIGHT_BF16, m->index_heads, m->dim, 1);
        u.a.idx_wkv = &u.m[4];
        u.a.idx_wgate = &u.m[5];
        u.a.weights_proj = &u.m[6];
        ck_out(&t, c, "idx", &u.a.idx, 4 * m->index_dim, 1e-9);
        ck_out(&t, c, "iw", &u.a.iw, m->index_heads, 1e-5);
    }
    u.operand = c->hopper ? operand_room(c, n, m->dim) : NULL;
    u.qr_operand = c->hopper && ratio >= 0 ? operand_room(c, n, m->q_rank) : NULL;
    t.run = run_in;
    t.ud = &u;
    ck_run(c, &t);
}

/* ---------------------------------------------------------------- q_path, attn_out */

struct q_case {
    struct q_path_args a;
    struct mat q, qi;
    bool packs;       /* q packed where the table takes it so */
    uint8_t *operand; /* on a card */
};

static void run_q(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                  int first, int n)
{
    struct q_case *u = t->ud;
    struct q_path_args a = u->a;
    struct attn_out_args out = {.groups = 1};
    a.packed = u->packs && k->heads_packed && k->heads_packed(&a, &out);
    a.qr = ROW(a.qr, first, a.wq_b->n_in);
    a.cs = ROW(a.cs, first, a.rope_dim);
    a.q = ROW(a.q, first, a.n_heads * a.head_dim);
    a.qi = ROW(a.qi, first, a.index_heads * a.index_dim);
    a.n_rows = n;
    int64_t wide = (int64_t)a.n_heads * a.head_dim;
    FST_ASSERT(k->q_path(&a, s) == FST_OK);
    if (a.packed)
        ck_unpack(a.q, n, wide, false);
    if (!operand_taken(k, u->operand, n))
        return;
    void *kept[CK_OUTPUTS];
    keep(t, kept, first, n);
    (void)ck_operand(u->operand, a.qr, n, a.wq_b->n_in);
    a.operand = u->operand;
    FST_ASSERT(k->q_path(&a, s) == FST_OK);
    if (a.packed)
        ck_unpack(a.q, n, wide, false);
    same_again(c, t, kept, first, n, "an operand");
}

static void case_q(struct ck *c, const struct ck_shape *m, int n, int n_ref, bool index,
                   enum weight_format fmt)
{
    struct ck_case t;
    struct q_case u = {.a = {.n_rows = n,
                             .n_heads = m->n_heads,
                             .head_dim = m->head_dim,
                             .rope_dim = m->rope_dim,
                             .index_heads = m->index_heads,
                             .index_dim = m->index_dim,
                             .norm_eps = 1e-6f},
                       .packs = index};
    label(&t, "q_path", m, index ? "with index" : fmt == WEIGHT_BF16 ? "wq_b bf16" : "", n, n_ref);
    u.operand = c->hopper ? operand_room(c, n, m->q_rank) : NULL;
    u.q = ck_mat(c, fmt, m->n_heads * m->head_dim, m->q_rank, 1);
    u.a.wq_b = &u.q;
    u.a.qr = acts(c, n, m->q_rank, 1);
    u.a.cs = angles(c, m, n, 1000);
    count(&t, &u.q, n);
    ck_out(&t, c, "q", &u.a.q, (int64_t)m->n_heads * m->head_dim, 1e-5);
    if (index) {
        u.qi = ck_mat(c, WEIGHT_FP8, m->index_heads * m->index_dim, m->q_rank, 1);
        u.a.idx_wq_b = &u.qi;
        count(&t, &u.qi, n);
        ck_out(&t, c, "qi", &u.a.qi, (int64_t)m->index_heads * m->index_dim, 1e-3);
    }
    t.run = run_q;
    t.ud = &u;
    ck_run(c, &t);
}

struct out_case {
    struct attn_out_args a;
    struct mat wo_a, wo_b;
    float *packed; /* o, where the table takes it so */
    int head_dim;
};

static void run_out(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                    int first, int n)
{
    struct out_case *u = t->ud;
    struct attn_out_args a = u->a;
    struct q_path_args q = {.head_dim = u->head_dim};
    int64_t wide = (int64_t)a.wo_a->n_in * a.groups;
    (void)c;
    a.o = ROW(a.o, first, wide);
    a.packed = u->packed && k->heads_packed && k->heads_packed(&q, &a);
    if (a.packed) {
        memcpy(u->packed, a.o, (size_t)(n * wide) * 4);
        ck_pack(u->packed, n, wide, true);
        a.o = u->packed;
    }
    a.y = ROW(a.y, first, a.wo_b->n_out);
    a.n_rows = n;
    FST_ASSERT(k->attn_out(&a, s) == FST_OK);
}

static void case_out(struct ck *c, const struct ck_shape *m, int n, int n_ref,
                     enum weight_format fmt)
{
    struct ck_case t;
    struct out_case u = {.a = {.n_rows = n, .groups = m->groups}, .head_dim = m->head_dim};
    int heads = m->n_heads * m->head_dim;
    label(&t, "attn_out", m, fmt == WEIGHT_BF16 ? "wo_a bf16" : "", n, n_ref);
    u.wo_a = ck_mat(c, fmt, m->groups * m->o_rank, heads / m->groups, 1);
    u.wo_b = ck_mat(c, WEIGHT_FP8, m->dim, m->groups * m->o_rank, 1);
    u.a.wo_a = &u.wo_a;
    u.a.wo_b = &u.wo_b;
    u.a.o = acts(c, n, heads, 1);
    if (fmt == WEIGHT_FP8 && c->k.heads_packed)
        u.packed = ck_alloc(c, (size_t)n * (size_t)heads * 4);
    count(&t, &u.wo_a, n);
    count(&t, &u.wo_b, n);
    ck_out(&t, c, "y", &u.a.y, m->dim, 1e-5);
    t.run = run_out;
    t.ud = &u;
    ck_run(c, &t);
}

/* ---------------------------------------------------------------- route, experts */

static void run_route(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                      int first, int n)
{
    struct route_args a = *(struct route_args *)t->ud;
    (void)c;
    a.x = ROW(a.x, first, a.gate->n_in);
    a.id = ROW(a.id, first, 1);
    a.expert = ROW(a.expert, first, a.k);
    a.weight = ROW(a.weight, first, a.k);
    a.n_rows = n;
    FST_ASSERT(k->route(&a, s) == FST_OK);
}

static void case_route(struct ck *c, const struct ck_shape *m, int n, int n_ref, int kind)
{
    static const char *const what[] = {"learned", "hashed", "all equal"};
    struct ck_case t;
    struct mat gate = ck_mat(c, WEIGHT_BF16, m->n_experts, m->dim, 0.2f);
    struct route_args a = {.gate = &gate, .n_rows = n, .k = m->k, .scale = 1.5f};
    label(&t, "route", m, what[kind], n, n_ref);
    a.x = acts(c, n, m->dim, 1);
    a.bias = floats(c, m->n_experts, 0, 0.1f);
    a.margin = ck_alloc(c, (size_t)n * 4);
    if (kind == 1) {
        int32_t *table = ck_alloc(c, (size_t)m->vocab * (size_t)m->k * 4);
        for (int v = 0; v < m->vocab; v++) /* distinct, in no order */
            for (int i = 0; i < m->k; i++)
                table[v * m->k + i] = (v * 7 + (m->k - i) * 3) % m->n_experts;
        a.tid2eid = table;
        a.id = ids(c, n, m->vocab);
    }
    if (kind == 2) { /* ties: the lower ids win */
        memset(ck_alloc(c, 64), 0, 64);
        float *x = ck_alloc(c, (size_t)n * (size_t)m->dim * 4), *b = ck_alloc(c, 4 * 512);
        a.x = x;
        a.bias = b;
    }
    count(&t, &gate, n);
    ck_out_int(&t, c, "expert", &a.expert, m->k);
    ck_out(&t, c, "weight", &a.weight, m->k, 1e-6);
    t.run = run_route;
    t.ud = &a;
    ck_run(c, &t);
}

struct expert_case {
    struct experts_args a;
    struct expert_mats shared, all[512];
    uint8_t *operand; /* on a card */
    float *apart;     /* room for outputs of few rows */
};

static void run_experts(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                        int first, int n)
{
    struct expert_case *u = t->ud;
    struct experts_args a = u->a;
    a.x = ROW(a.x, first, a.dim);
    a.expert = ROW(a.expert, first, a.k);
    a.weight = ROW(a.weight, first, a.k);
    a.y = ROW(a.y, first, a.dim);
    a.n_rows = n;
    FST_ASSERT(k->experts(&a, s) == FST_OK);
    if (!operand_taken(k, u->operand, n))
        return;
    void *kept[CK_OUTPUTS];
    keep(t, kept, first, n);
    (void)ck_operand(u->operand, a.x, n, a.dim);
    a.operand = u->operand;
    FST_ASSERT(k->experts(&a, s) == FST_OK);
    same_again(c, t, kept, first, n, "an operand");
    if (!k->experts_apart || !k->experts_apart(&a))
        return;
    float *y = a.y;
    keep(t, kept, first, n);
    (void)ck_operand(u->operand, a.x, n, a.dim); /* experts use it up */
    a.y = u->apart;
    a.apart = true;
    FST_ASSERT(k->experts(&a, s) == FST_OK);
    for (int64_t i = 0; i < (int64_t)n * a.dim; i++) {
        int64_t row = i / a.dim, d = i % a.dim;
        y[i] = u->apart[row * a.k * a.dim + d];
        for (int e = 1; e <= a.k; e++)
            y[i] += u->apart[(e < a.k ? row * a.k + e : (int64_t)n * a.k + row) * a.dim + d];
    }
    same_again(c, t, kept, first, n, "outputs left apart");
}

static struct expert_mats make_expert(struct ck *c, const struct ck_shape *m,
                                      enum weight_format fmt)
{
    return (struct expert_mats){ck_mat(c, fmt, m->moe_dim, m->dim, 3),
                                ck_mat(c, fmt, m->moe_dim, m->dim, 3),
                                ck_mat(c, fmt, m->dim, m->moe_dim, 1)};
}

static void case_experts(struct ck *c, const struct ck_shape *m, int n, int n_ref,
                         enum weight_format fmt)
{
    struct ck_case t;
    struct expert_case *u = ck_alloc(c, sizeof *u);
    struct expert_mats some[4];
    int32_t *expert = ck_alloc(c, (size_t)n * (size_t)m->k * 4);
    label(&t, "experts", m, fmt == WEIGHT_FP4 ? "fp4" : "fp8", n, n_ref);
    u->a = (struct experts_args){.n_rows = n,
                                 .k = m->k,
                                 .n_experts = m->n_experts,
                                 .routed = fmt,
                                 .dim = m->dim,
                                 .moe_dim = m->moe_dim,
                                 .limit = 10};
    for (int i = 0; i < 4; i++) /* a few stand for all, to keep the data small */
        some[i] = make_expert(c, m, fmt);
    for (int e = 0; e < m->n_experts; e++)
        u->all[e] = some[e % 4];
    u->shared = make_expert(c, m, WEIGHT_FP8);
    u->a.experts = u->all;
    u->a.shared = &u->shared;
    u->a.x = acts(c, n, m->dim, 1);
    u->operand = c->hopper ? operand_room(c, n, m->dim) : NULL;
    int64_t few = FST_MIN(n, c->k.operand_rows);
    u->apart = u->operand ? ck_alloc(c, (size_t)(few * (m->k + 1) * m->dim) * 4) : NULL;
    for (int t0 = 0; t0 < n; t0++) {
        int at = ck_below(c, m->n_experts - m->k + 1);
        if (t0 % 5 == 4)
            at = 0; /* some rows agree */
        for (int i = 0; i < m->k; i++)
            expert[t0 * m->k + i] = at + i;
        if (t0 % 5 == 3 &&
            m->k > 1) /* and some name one expert for all their places but the last */
            for (int i = 1; i < m->k - 1; i++)
                expert[t0 * m->k + i] = at;
    }
    u->a.expert = expert;
    float *weight = floats(c, (int64_t)n * m->k, 0.5f, 0.2f);
    u->a.weight = weight;
    t.macs = (int64_t)n * m->dim * m->moe_dim * 3 * (m->k + 1);
    int64_t distinct = FST_MIN((int64_t)n * m->k, (int64_t)m->n_experts);
    t.bytes = distinct * 3 * mat_bytes(&some[0].w1) + 3 * mat_bytes(&u->shared.w1);
    /* a last bit of h more or less: its code falls the other way near a tie; 1.9e-5 of a row seen */
    ck_out(&t, c, "y", &u->a.y, m->dim, c->hopper ? 4e-5 : 1e-5);
    t.run = run_experts;
    t.ud = u;
    ck_run(c, &t);
}

/* ---------------------------------------------------------------- head, drafters' inputs */

static void run_head(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                     int first, int n)
{
    struct head_args a = *(struct head_args *)t->ud;
    (void)c;
    a.row += first;
    a.y = ROW(a.y, first, a.dim);
    a.logits = ROW(a.logits, first, a.head->n_out);
    a.n = n;
    FST_ASSERT(k->head(&a, s) == FST_OK);
}

static void case_head(struct ck *c, const struct ck_shape *m, int n, int n_ref)
{
    struct ck_case t;
    int wide = KERN_HC * m->dim;
    struct mat head = ck_mat(c, WEIGHT_BF16, m->vocab - 3, m->dim, 1);
    struct head_args a = {.head = &head, .n = n, .dim = m->dim, .hc_eps = 1e-6f, .norm_eps = 1e-6f};
    label(&t, "head", m, "", n, n_ref);
    a.x = acts(c, n + 2, wide, 1);
    int32_t *row = ck_alloc(c, (size_t)n * 4);
    for (int i = 0; i < n; i++)
        row[i] = n + 1 - i;
    a.row = row;
    a.fn = floats(c, (int64_t)KERN_HC * wide, 0, 1 / sqrtf((float)wide));
    a.base = floats(c, KERN_HC, 0, 1);
    a.scale = floats(c, 1, 1, 0.2f);
    a.norm = floats(c, m->dim, 1, 0.2f);
    count(&t, &head, n);
    ck_out(&t, c, "y", &a.y, m->dim, 1e-5);
    ck_out(&t, c, "logits", &a.logits, head.n_out, 1e-5);
    t.run = run_head;
    t.ud = &a;
    ck_run(c, &t);
}

struct mtp_case {
    struct mtp_in_args a;
    struct mat table, e, h;
};

static void run_mtp(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                    int first, int n)
{
    struct mtp_case *u = t->ud;
    struct mtp_in_args a = u->a;
    int64_t wide = KERN_HC * a.dim;
    (void)c;
    a.x = ROW(a.x, first, wide);
    if (a.row) {
        a.row += first;
    } else { /* in place, as a chain of drafts goes on */
        memcpy(a.x, a.src + first * wide, (size_t)(n * wide) * 4);
        a.src = a.x;
    }
    a.id += first;
    a.n_rows = n;
    FST_ASSERT(k->mtp_in(&a, s) == FST_OK);
}

static void case_mtp(struct ck *c, const struct ck_shape *m, int n, int n_ref, bool picked)
{
    struct ck_case t;
    struct mtp_case u = {.a = {.n_rows = n, .dim = m->dim, .norm_eps = 1e-6f}};
    label(&t, "mtp_in", m, picked ? "picked" : "in place", n, n_ref);
    u.table = ck_mat(c, WEIGHT_BF16, 300, m->dim, 1);
    u.e = ck_mat(c, WEIGHT_FP8, m->dim, m->dim, 1);
    u.h = ck_mat(c, WEIGHT_FP8, m->dim, m->dim, 1);
    u.a.table = &u.table;
    u.a.e_proj = &u.e;
    u.a.h_proj = &u.h;
    u.a.enorm = floats(c, m->dim, 1, 0.2f);
    u.a.hnorm = floats(c, m->dim, 1, 0.2f);
    u.a.id = ids(c, n, 300);
    u.a.src = acts(c, n + 2, KERN_HC * m->dim, 1);
    int32_t *row = ck_alloc(c, (size_t)n * 4);
    for (int i = 0; i < n; i++)
        row[i] = n + 1 - i;
    u.a.row = picked ? row : NULL;
    count(&t, &u.e, n);
    count(&t, &u.h, 4 * n);
    ck_out(&t, c, "x", &u.a.x, KERN_HC * m->dim, 1e-5);
    t.run = run_mtp;
    t.ud = &u;
    ck_run(c, &t);
}

static void run_main(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                     int first, int n)
{
    struct main_proj_args a = *(struct main_proj_args *)t->ud;
    (void)c;
    a.h = ROW(a.h, first, a.main_proj->n_in);
    a.main = ROW(a.main, first, a.main_proj->n_out);
    a.n_rows = n;
    FST_ASSERT(k->main_proj(&a, s) == FST_OK);
}

static void case_main(struct ck *c, const struct ck_shape *m, int n, int n_ref)
{
    struct ck_case t;
    int wide = m->n_stages * m->dim;
    struct mat w = ck_mat(c, WEIGHT_FP8, m->dim, wide, 1);
    struct main_proj_args a = {.main_proj = &w, .n_rows = n, .norm_eps = 1e-6f};
    label(&t, "main_proj", m, "", n, n_ref);
    a.h = acts(c, n, wide, 1);
    a.main_norm = floats(c, m->dim, 1, 0.2f);
    count(&t, &w, n);
    ck_out(&t, c, "main", &a.main, m->dim, 1e-5);
    t.run = run_main;
    t.ud = &a;
    ck_run(c, &t);
}

/* ---------------------------------------------------------------- all */

static void shape(struct ck *c, const struct ck_shape *m, int n, int n_ref)
{
    ck_scratch(c, m, n, 1);
#define CASE(entry, call)                                                                          \
    if (ck_wanted(c, #entry)) {                                                                    \
        call;                                                                                      \
        ck_free_all(c);                                                                            \
    }
    CASE(rope, case_rope(c, m, n))
    CASE(embed, case_embed(c, m, n))
    for (int kind = 0; kind < 4; kind++)
        CASE(seam, case_seam(c, m, n, n_ref, kind))
    CASE(attn_in, case_in(c, m, n, n_ref, -1, WEIGHT_FP8))
    CASE(attn_in, case_in(c, m, n, n_ref, 0, WEIGHT_FP8))
    CASE(attn_in, case_in(c, m, n, n_ref, 128, WEIGHT_FP8))
    CASE(attn_in, case_in(c, m, n, n_ref, 4, WEIGHT_FP8))
    CASE(q_path, case_q(c, m, n, n_ref, false, WEIGHT_FP8))
    CASE(q_path, case_q(c, m, n, n_ref, true, WEIGHT_FP8))
    CASE(attn_out, case_out(c, m, n, n_ref, WEIGHT_FP8))
    CASE(attn_out, case_out(c, m, n, n_ref, WEIGHT_BF16))
    for (int kind = 0; kind < 3; kind++)
        CASE(route, case_route(c, m, n, n_ref, kind))
    CASE(experts, case_experts(c, m, n, n_ref, WEIGHT_FP4))
    CASE(experts, case_experts(c, m, n, n_ref, WEIGHT_FP8))
    CASE(head, case_head(c, m, n, n_ref))
    for (int picked = 0; picked < 2; picked++)
        CASE(mtp_in, case_mtp(c, m, n, n_ref, picked))
    CASE(main_proj, case_main(c, m, n, n_ref))
#undef CASE
}

/* Small widths; wo_a and the Markov rank fit no vector form. */
static const struct ck_shape narrow = {"narrow", 128, 2, 64, 16, 128, 64, 2,  128,
                                       5,        2,   4, 32, 4,  70,  2,  16, 8};

/* Wide enough for every way in which Hopper's kernels divide K and rows. */
static const struct ck_shape many = {"many", 4096, 8,  512, 64, 1024, 512, 2,   2048,
                                     8,      3,    16, 128, 32, 512,  2,   256, 128};

/* The narrowest gates that Hopper's kernels take, and rows enough for all of them. */
static void gates(struct ck *c)
{
    static const struct ck_shape shapes[] = {
        {.name = "gate", .dim = 1024, .n_experts = 64, .k = 6, .vocab = 64},
        {.name = "tall gate", .dim = 2048, .n_experts = 256, .k = 6, .vocab = 64},
    };
    for (int i = 0; i < 2; i++)
        for (int kind = 0; kind < 3 && ck_wanted(c, "route"); kind++) {
            int n = i ? 66 : 37;
            ck_scratch(c, &shapes[i], n, 1);
            case_route(c, &shapes[i], n, 8, kind);
            ck_free_all(c);
        }
}

/* What Hopper's attn_in and q_path leave to others: wq_a in fp32, norms too wide for a wave, wq_b in BF16. */
static void strangers(struct ck *c)
{
    static const struct ck_shape wide = {.name = "wide q",
                                         .dim = 256,
                                         .n_heads = 2,
                                         .head_dim = 128,
                                         .rope_dim = 64,
                                         .q_rank = 1664,
                                         .index_heads = 2,
                                         .index_dim = 64};
    ck_scratch(c, &wide, 9, 1);
    if (ck_wanted(c, "attn_in")) {
        case_in(c, &wide, 9, 9, 0, WEIGHT_FP8);
        case_in(c, &wide, 9, 9, 0, WEIGHT_F32);
        ck_free_all(c);
    }
    if (ck_wanted(c, "q_path")) {
        case_q(c, &wide, 9, 9, false, WEIGHT_BF16);
        ck_free_all(c);
    }
}

void check_project(struct ck *c)
{
    if (c->bench) {
        shape(c, &ck_kindling, 1, 1);
        shape(c, &ck_kindling, 6, 1);
        if (c->k.flags)
            shape(c, &ck_kindling, 1024, 1);
        shape(c, &ck_flash, 1, 1);
        if (c->k.flags)
            shape(c, &ck_flash, 6, 1);
        return;
    }
    bool few = c->sweep || c->k.flags == 0;
    shape(c, &ck_kindling, few ? 8 : c->emulated && !c->is_long ? 19 : 150, 8);
    if (c->sweep)
        return;
    shape(c, &narrow, 9, 9);
    shape(c, &ck_t1, 9, 9);
    gates(c);
    strangers(c);
    if (c->k.flags == 0)
        return;
    if (c->emulated)
        return;
    shape(c, &ck_flash, 3, 1);
    if (c->device)
        shape(c, &many, c->is_long ? 4200 : 1100, 2);
    if (c->is_long) {
        shape(c, &ck_kindling, 8192, 4);
        shape(c, &ck_pro, 2, 1);
    }
}
