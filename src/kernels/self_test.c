/* self_test.c - one small layer, by the table under test and by ref, on the same numbers. */
#include "kernels/self_test.h"

#include <math.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kernels/rows.h"

/* Widths that every table takes, Hopper's own kernels too. */
enum {
    ROWS = 3,
    DIM = 256,
    HEADS = 2,
    HEAD_DIM = 512,
    ROPE_DIM = 64,
    Q_RANK = 256,
    O_RANK = 1024,
    MOE = 1024,
    EXPERTS = 4,
    K = 2,
    VOCAB = 512,
    WINDOW = 128,
    RING = 129,
    HEADS_WIDE = HEADS * HEAD_DIM
};
/* What is broken is off by 1e-2 and more.  A block is within 1e-5, but behind attention's bf16 weights (9e-6)
 * stands wo_b's operand: of its E4M3 codes those near a tie fall the other way, and q_path, attention and
 * attn_out in a row are off by 1.3e-4. */
#define ALLOWED 1e-3

/* Arrays begin as those of a model do; kernels load 16 bytes at a time. */
#define ALIGNED _Alignas(64)

/* What one table makes. */
struct side {
    ALIGNED float x[ROWS * KERN_HC * DIM], mix[ROWS * KERN_MIX], a[ROWS * DIM];
    ALIGNED float qr[ROWS * Q_RANK], kv0[ROWS * HEAD_DIM], kv[ROWS * HEAD_DIM],
        q[ROWS * HEADS_WIDE], o[ROWS * HEADS_WIDE];
    ALIGNED float out[ROWS * DIM], weight[ROWS * K], y[ROWS * DIM], head_y[ROWS * DIM];
    ALIGNED float logits[ROWS * VOCAB], lse[ROWS];
    ALIGNED int32_t expert[ROWS * K], id[ROWS];
};

/* Everything that kernels see. */
struct numbers {
    ALIGNED uint8_t wq_a[Q_RANK * DIM], wkv[HEAD_DIM * DIM], wq_b[HEADS_WIDE * Q_RANK];
    ALIGNED uint8_t wo_a[O_RANK * HEADS_WIDE], wo_b[DIM * O_RANK], shared[3][MOE * DIM];
    ALIGNED uint8_t codes[EXPERTS][3][DIM * MOE / 2], code_scales[EXPERTS][3][DIM * MOE / 32];
    ALIGNED uint8_t scales[64]; /* of 128 x 128 values, any FP8 matrix: all begin here */
    ALIGNED uint8_t nope[RING * ROWS_FP8_BYTES], rope[RING * ROWS_ROPE_BYTES];
    ALIGNED uint16_t gate[EXPERTS * DIM], head[VOCAB * DIM];
    ALIGNED float fn[KERN_MIX * KERN_HC * DIM], base[KERN_MIX], scale[3], norm[O_RANK];
    ALIGNED float x[ROWS * KERN_HC * DIM], sublayer[ROWS * DIM], mix[ROWS * KERN_MIX];
    ALIGNED float cs[ROWS * ROPE_DIM], freq[ROPE_DIM / 2], sink[HEADS], bias[EXPERTS];
    ALIGNED int32_t slot[ROWS], pos[ROWS], id[ROWS], span[ROWS], span_first[2], pages[1], row[ROWS];
    ALIGNED uint32_t out_pos[ROWS];
    ALIGNED struct draw_params draw[ROWS];
    ALIGNED struct expert_mats expert[EXPERTS];
    ALIGNED struct side side[2]; /* ref, the table */
};

/* ---------------------------------------------------------------- numbers */

static float on_grid(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

static void put_bf16(uint16_t *p, int64_t n, double spread, struct rng *g)
{
    for (int64_t i = 0; i < n; i++) {
        float x = on_grid((float)(rng_normal(g) * spread));
        uint32_t u;
        memcpy(&u, &x, sizeof u);
        p[i] = (uint16_t)(u >> 16);
    }
}

static void put_floats(float *p, int64_t n, double mean, double spread, struct rng *g)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = on_grid((float)(mean + rng_normal(g) * spread));
}

/* E4M3 codes of every kind but the two that are no numbers. */
static void put_fp8(uint8_t *p, int64_t n, struct rng *g)
{
    rng_bytes(g, p, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        p[i] = (p[i] & 0x7F) == 0x7F ? p[i] ^ 1 : p[i];
}

static struct mat fp8_mat(const struct numbers *n, const uint8_t *data, int n_out, int n_in)
{
    struct mat m = {
        .fmt = WEIGHT_FP8, .n_out = n_out, .n_in = n_in, .data = data, .scale = n->scales};
    return m;
}

static void fill_experts(struct numbers *n, struct rng *g)
{
    rng_bytes(g, n->codes, sizeof n->codes);
    for (size_t i = 0; i < sizeof n->code_scales; i++)
        ((uint8_t *)n->code_scales)[i] = (uint8_t)rng_range(g, 119, 123);
    for (int e = 0; e < EXPERTS; e++) {
        struct mat w[3];
        for (int k = 0; k < 3; k++)
            w[k] = (struct mat){.fmt = WEIGHT_FP4,
                                .n_out = k == 1 ? DIM : MOE,
                                .n_in = k == 1 ? MOE : DIM,
                                .data = n->codes[e][k],
                                .scale = n->code_scales[e][k]};
        n->expert[e] = (struct expert_mats){.w1 = w[0], .w2 = w[1], .w3 = w[2]};
    }
}

static void fill(struct numbers *n, struct rng *g)
{
    put_fp8(n->wq_a, sizeof n->wq_a, g);
    put_fp8(n->wkv, sizeof n->wkv, g);
    put_fp8(n->wq_b, sizeof n->wq_b, g);
    put_fp8(n->wo_a, sizeof n->wo_a, g);
    put_fp8(n->wo_b, sizeof n->wo_b, g);
    put_fp8(n->shared[0], sizeof n->shared, g);
    for (size_t i = 0; i < sizeof n->scales; i++)
        n->scales[i] = (uint8_t)rng_range(g, 115, 118);
    fill_experts(n, g);
    put_bf16(n->gate, EXPERTS * DIM, 0.06, g);
    put_bf16(n->head, VOCAB * DIM, 0.05, g);
    put_floats(n->fn, KERN_MIX * KERN_HC * DIM, 0, 0.02, g);
    put_floats(n->base, KERN_MIX, 0, 1, g);
    put_floats(n->scale, 3, 0.5, 0.1, g);
    put_floats(n->norm, O_RANK, 1, 0.1, g);
    put_floats(n->x, ROWS * KERN_HC * DIM, 0, 1, g);
    put_floats(n->sublayer, ROWS * DIM, 0, 1, g);
    put_floats(n->mix, ROWS * KERN_MIX, 0.4, 0.1, g);
    put_floats(n->sink, HEADS, 0, 1, g);
    for (int e = 0; e < EXPERTS; e++)
        n->bias[e] = (float)e; /* the choice is the same however the last bit of a score falls */
    for (int i = 0; i < ROPE_DIM / 2; i++)
        n->freq[i] = powf(10000, -2.0f * (float)i / ROPE_DIM);
    n->span_first[1] = ROWS;
    for (int t = 0; t < ROWS; t++) {
        n->pos[t] = n->row[t] = t;
        n->id[t] = (int32_t)rng_below(g, VOCAB);
        n->out_pos[t] = (uint32_t)t;
        n->draw[t] = (struct draw_params){.temperature = t ? 1 : 0, .seed = rng_u64(g)};
    }
}

/* ---------------------------------------------------------------- comparing */

static double nmse(const float *a, const float *b, int n)
{
    double num = 0, den = 0;
    for (int i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        num += isfinite(d) ? d * d : (double)INFINITY;
        den += (double)b[i] * (double)b[i];
    }
    return den > 0 ? num / den : num;
}

/* One run over the blocks. */
struct run {
    const struct kernels *k;
    struct stream *s;
    struct numbers *n;
    struct side *own; /* of this run */
    struct self_test *t;
};

/* A block is done, and x (n floats) is its output.  The table under test goes on with what ref had, so
 * that a difference is the block's own, and a code that fell the other way does not travel. */
static enum fst_status made(struct run *r, const char *where, float *x, int n)
{
    const struct side *ref = &r->n->side[0];
    FST_TRY(stream_sync(r->s));
    if (r->own == ref)
        return FST_OK;
    const float *want =
        (const float *)(const void *)((const uint8_t *)ref + ((uint8_t *)x - (uint8_t *)r->own));
    double e = nmse(x, want, n);
    if (!(e <= r->t->worst)) {
        r->t->worst = e;
        snprintf(r->t->where, sizeof r->t->where, "%s", where);
    }
    memcpy(x, want, (size_t)n * sizeof *x);
    return FST_OK;
}

/* ---------------------------------------------------------------- the layer */

static enum fst_status attend(struct run *r)
{
    const struct kernels *k = r->k;
    struct stream *s = r->s;
    struct numbers *n = r->n;
    struct side *o = r->own;
    struct rows rows = {ROWS, 1, n->slot, n->pos, n->id, n->span, n->span_first, n->pages, 1};
    struct kv_layer l = {.format = ROW_FP8,
                         .nope = n->nope,
                         .rope = n->rope,
                         .n_rows = RING,
                         .ring = RING,
                         .compressed_base = RING};
    struct mat wq_a = fp8_mat(n, n->wq_a, Q_RANK, DIM), wkv = fp8_mat(n, n->wkv, HEAD_DIM, DIM);
    struct mat wq_b = fp8_mat(n, n->wq_b, HEADS_WIDE, Q_RANK);
    struct mat wo_a = fp8_mat(n, n->wo_a, O_RANK, HEADS_WIDE),
               wo_b = fp8_mat(n, n->wo_b, DIM, O_RANK);
    struct rope_args rope = {n->cs, n->freq, n->pos, ROWS, ROPE_DIM};
    struct attn_in_args in = {.x = o->a,
                              .wq_a = &wq_a,
                              .wkv = &wkv,
                              .q_norm = n->norm,
                              .kv_norm = n->norm,
                              .qr = o->qr,
                              .kv = o->kv0, /* kv_write works in place */
                              .norm_eps = 1e-6f,
                              .n_rows = ROWS};
    struct kv_write_args write = {.rows = &rows,
                                  .l = &l,
                                  .kv = o->kv,
                                  .cs = n->cs,
                                  .freq = n->freq,
                                  .head_dim = HEAD_DIM,
                                  .rope_dim = ROPE_DIM,
                                  .norm_eps = 1e-6f};
    struct q_path_args q = {.qr = o->qr,
                            .wq_b = &wq_b,
                            .cs = n->cs,
                            .q = o->q,
                            .n_rows = ROWS,
                            .n_heads = HEADS,
                            .head_dim = HEAD_DIM,
                            .rope_dim = ROPE_DIM,
                            .norm_eps = 1e-6f};
    struct attention_args attention = {.rows = &rows,
                                       .l = &l,
                                       .q = o->q,
                                       .kv = o->kv,
                                       .sink = n->sink,
                                       .cs = n->cs,
                                       .o = o->o,
                                       .n_heads = HEADS,
                                       .head_dim = HEAD_DIM,
                                       .rope_dim = ROPE_DIM,
                                       .window = WINDOW,
                                       .scale = 0.044194174f};
    struct ring_store_args ring = {&rows, &l, o->kv, HEAD_DIM, ROPE_DIM};
    struct attn_out_args out = {
        .o = o->o, .wo_a = &wo_a, .wo_b = &wo_b, .y = o->out, .n_rows = ROWS, .groups = 1};
    q.packed = attention.packed = out.packed = k->heads_packed && k->heads_packed(&q, &out);
    FST_TRY(k->rope(&rope, s));
    FST_TRY(k->attn_in(&in, s));
    FST_TRY(made(r, "attn_in", o->qr, ROWS * Q_RANK));
    FST_TRY(made(r, "attn_in", o->kv0, ROWS * HEAD_DIM));
    memcpy(o->kv, o->kv0, sizeof o->kv);
    FST_TRY(k->kv_write(&write, s));
    FST_TRY(made(r, "kv_write", o->kv, ROWS * HEAD_DIM));
    FST_TRY(k->q_path(&q, s));
    FST_TRY(k->attention(&attention, s));
    FST_TRY(k->ring_store(&ring, s));
    FST_TRY(k->attn_out(&out, s));
    return made(r, "q_path, attention, attn_out", o->out, ROWS * DIM);
}

static enum fst_status think(struct run *r)
{
    struct numbers *n = r->n;
    struct side *o = r->own;
    struct mat gate = {.fmt = WEIGHT_BF16, .n_out = EXPERTS, .n_in = DIM, .data = n->gate};
    struct expert_mats shared = {.w1 = fp8_mat(n, n->shared[0], MOE, DIM),
                                 .w3 = fp8_mat(n, n->shared[1], MOE, DIM),
                                 .w2 = fp8_mat(n, n->shared[2], DIM, MOE)};
    struct route_args route = {.x = o->a,
                               .gate = &gate,
                               .bias = n->bias,
                               .expert = o->expert,
                               .weight = o->weight,
                               .n_rows = ROWS,
                               .k = K,
                               .scale = 1.5f};
    struct experts_args experts = {.x = o->a,
                                   .expert = o->expert,
                                   .weight = o->weight,
                                   .experts = n->expert,
                                   .routed = WEIGHT_FP4,
                                   .shared = &shared,
                                   .y = o->y,
                                   .n_rows = ROWS,
                                   .k = K,
                                   .n_experts = EXPERTS,
                                   .dim = DIM,
                                   .moe_dim = MOE,
                                   .limit = 10};
    FST_TRY(r->k->route(&route, r->s));
    FST_TRY(made(r, "route", o->weight, ROWS * K));
    FST_TRY(r->k->experts(&experts, r->s));
    return made(r, "experts", o->y, ROWS * DIM);
}

static enum fst_status speak(struct run *r)
{
    struct numbers *n = r->n;
    struct side *o = r->own;
    struct mat head = {.fmt = WEIGHT_BF16, .n_out = VOCAB, .n_in = DIM, .data = n->head};
    struct head_args h = {.x = o->x,
                          .row = n->row,
                          .fn = n->fn,
                          .base = n->base,
                          .scale = n->scale,
                          .norm = n->norm,
                          .head = &head,
                          .y = o->head_y,
                          .logits = o->logits,
                          .n = ROWS,
                          .dim = DIM,
                          .hc_eps = 1e-6f,
                          .norm_eps = 1e-6f};
    struct draw_args draw = {.logits = o->logits,
                             .draw = n->draw,
                             .out_pos = n->out_pos,
                             .id = o->id,
                             .lse = o->lse,
                             .n = ROWS,
                             .vocab = VOCAB};
    FST_TRY(r->k->head(&h, r->s));
    FST_TRY(made(r, "head", o->logits, ROWS * VOCAB));
    FST_TRY(r->k->draw(&draw, r->s));
    return made(r, "draw", o->lse, ROWS);
}

static enum fst_status run_layer(struct run *r)
{
    struct numbers *n = r->n;
    struct side *o = r->own;
    struct seam_args seam = {.x = o->x,
                             .y = n->sublayer,
                             .mix = o->mix,
                             .fn = n->fn,
                             .base = n->base,
                             .scale = n->scale,
                             .norm = n->norm,
                             .out = o->a,
                             .n_rows = ROWS,
                             .dim = DIM,
                             .iters = 20,
                             .hc_eps = 1e-6f,
                             .norm_eps = 1e-6f};
    memcpy(o->x, n->x, sizeof o->x);
    memcpy(o->mix, n->mix, sizeof o->mix);
    FST_TRY(r->k->seam(&seam, r->s));
    FST_TRY(made(r, "seam", o->x, ROWS * KERN_HC * DIM));
    FST_TRY(made(r, "seam", o->mix, ROWS * KERN_MIX));
    FST_TRY(made(r, "seam", o->a, ROWS * DIM));
    FST_TRY(attend(r));
    FST_TRY(think(r));
    return speak(r);
}

static size_t scratch_for(const struct kernels *k)
{
    struct kernel_limits l = {.n_rows = ROWS,
                              .dim = DIM,
                              .n_heads = HEADS,
                              .head_dim = HEAD_DIM,
                              .q_rank = Q_RANK,
                              .o_rank = O_RANK,
                              .groups = 1,
                              .moe_dim = MOE,
                              .n_experts = EXPERTS,
                              .k = K,
                              .index_heads = 1,
                              .index_dim = 128,
                              .topk = 8,
                              .n_stages = 1,
                              .vocab = VOCAB,
                              .markov_rank = 8,
                              .window = WINDOW,
                              .max_entries = 8};
    return kernels_scratch_bytes(k, &l, 1);
}

static enum fst_status rounds(const struct kernels *k, struct stream *s, const struct kernels *ref,
                              struct stream *host, struct numbers *n, double seconds,
                              struct self_test *t)
{
    struct rng g;
    int64_t start = clock_ns();
    rng_init(&g, t->seed);
    do {
        fill(n, &g);
        struct run want = {ref, host, n, &n->side[0], t}, got = {k, s, n, &n->side[1], t};
        FST_TRY(run_layer(&want));
        FST_TRY(run_layer(&got));
        t->rounds++;
        if (!(t->worst <= ALLOWED))
            return fst_error(FST_EINTERNAL,
                             "self-test: %s of %s is %.1e off ref, allowed %.0e (seed %llu)",
                             t->where, k->name, t->worst, ALLOWED, (unsigned long long)t->seed);
    } while (clock_seconds(clock_ns() - start) < seconds);
    return FST_OK;
}

enum fst_status kernels_self_test(const struct kernels *k, const struct device *d, double seconds,
                                  struct self_test *t)
{
    struct kernels ref;
    struct stream s = {0}, host = {0};
    kernels_init(&ref, 0);
    struct numbers *n = device_alloc_shared(d, sizeof *n);
    enum fst_status rc =
        n ? FST_OK : fst_error(FST_ENOMEM, "self-test: no memory for %zu bytes", sizeof *n);
    if (rc == FST_OK)
        rc = stream_init(&s, d, NULL, PRECISION_NATIVE, scratch_for(k));
    if (rc == FST_OK)
        rc = stream_init(&host, NULL, NULL, PRECISION_NATIVE, scratch_for(&ref));
    t->rounds = 0;
    t->worst = 0;
    snprintf(t->where, sizeof t->where, "none");
    if (rc == FST_OK)
        rc = rounds(k, &s, &ref, &host, n, seconds, t);
    stream_release(&host);
    stream_release(&s);
    device_free_shared(d, n, sizeof *n);
    return rc;
}
