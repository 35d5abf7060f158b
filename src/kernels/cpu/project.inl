/* project.inl - blocks that are matrix products with a little around them: attn_in, q_path, attn_out,
 * route, head, mtp_in, main_proj; and rope, embed. */
#include "kernels/cpu/linear.h"
#include "kernels/cpu/streams.h"

/* ---------------------------------------------------------------- tables and embeddings */

static void rope_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct rope_args *a = ud;
    (void)worker;
    for (int64_t t = first; t < last; t++)
        for (int i = 0; i < a->rope_dim / 2; i++) {
            float angle = (float)a->pos[t] * a->freq[i]; /* one fp32 product: the published table */
            a->cs[t * a->rope_dim + 2 * i] = cosf(angle);
            a->cs[t * a->rope_dim + 2 * i + 1] = sinf(angle);
        }
}

enum fst_status SIMD_NAME(rope)(const struct rope_args *a, struct stream *s)
{
    struct rope_args copy = *a;
    simd_spread(s, a->n, (int64_t)a->rope_dim * 400, rope_body, &copy);
    return FST_OK;
}

static void embed_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct embed_args *a = ud;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        float *x = a->x + t * KERN_HC * a->dim;
        lin_table_row(a->table, a->id[t], x);
        for (int k = 1; k < KERN_HC; k++)
            memcpy(x + (int64_t)k * a->dim, x, (size_t)a->dim * 4);
    }
}

enum fst_status SIMD_NAME(embed)(const struct embed_args *a, struct stream *s)
{
    struct embed_args copy = *a;
    FST_ASSERT(a->table->n_in == a->dim);
    simd_spread(s, a->n_rows, 4 * a->dim, embed_body, &copy);
    return FST_OK;
}

/* ---------------------------------------------------------------- norms after a product */

struct norm_rows {
    float *x;
    const float *w;
    int n;
    float eps;
};

static void norm_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct norm_rows *j = ud;
    (void)worker;
    for (int64_t t = first; t < last; t++)
        v_rmsnorm(j->x + t * j->n, j->x + t * j->n, j->w, j->n, j->eps);
}

static void norm_rows(struct stream *s, float *x, const float *w, int n_rows, int n, float eps)
{
    struct norm_rows j = {x, w, n, eps};
    simd_spread(s, n_rows, 4 * n, norm_body, &j);
}

/* ---------------------------------------------------------------- attention site */

enum fst_status SIMD_NAME(attn_in)(const struct attn_in_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    struct lin_input in = {
        .x = a->x, .n_rows = a->n_rows, .n_in = a->wkv->n_in, .ldx = a->wkv->n_in};
    struct lin_job j[7];
    int n = 0, rank = 0, dim = a->wkv->n_out;
    if (lin_there(a->wq_a)) {
        rank = a->wq_a->n_out;
        j[n++] = lin_make(s, &c, &in, a->wq_a, true, a->qr, rank, LIN_ROUND);
    }
    j[n++] = lin_make(s, &c, &in, a->wkv, true, a->kv, dim, LIN_ROUND);
    if (lin_there(a->cmp_wkv)) {
        int w = a->cmp_wkv->n_out;
        j[n++] = lin_make(s, &c, &in, a->cmp_wkv, true, a->cmp, 2 * w, 0);
        j[n++] = lin_make(s, &c, &in, a->cmp_wgate, true, a->cmp + w, 2 * w, 0);
    }
    if (lin_there(a->idx_wkv)) {
        int w = a->idx_wkv->n_out;
        j[n++] = lin_make(s, &c, &in, a->idx_wkv, true, a->idx, 2 * w, 0);
        j[n++] = lin_make(s, &c, &in, a->idx_wgate, true, a->idx + w, 2 * w, 0);
    }
    int64_t heads = 0;
    if (lin_there(a->weights_proj)) {
        heads = a->weights_proj->n_out;
        j[n++] = lin_make(s, &c, &in, a->weights_proj, true, a->iw, heads, LIN_ROUND);
    }
    lin_run(s, j, n);
    if (rank)
        norm_rows(s, a->qr, a->q_norm, a->n_rows, rank, a->norm_eps);
    norm_rows(s, a->kv, a->kv_norm, a->n_rows, dim, a->norm_eps);
    for (int64_t i = 0; i < a->n_rows * heads; i++)
        a->iw[i] = s_bf16(a->iw[i] * a->iw_scale);
    return FST_OK;
}

/* Units of q_path: (row tile, head), then (row tile, four index heads). */
enum { Q_ROWS = 48, Q_INDEX_HEADS = 4 };
struct q_job {
    const struct q_path_args *a;
    struct lin_job q, qi;
    int64_t n_tiles;
};

static void finish_head(const struct q_path_args *a, int64_t t, int h)
{
    float *q = a->q + (t * a->n_heads + h) * a->head_dim;
    int nope = a->head_dim - a->rope_dim;
    float f = v_rms_factor(q, a->head_dim, a->norm_eps);
    v_scale_row(q, q, NULL, nope, f);
    vf s = v_set1(f); /* the rotated part is rounded once, after the rotation */
    for (int i = nope; i < a->head_dim; i += VL)
        v_store(q + i, v_mul(v_load(q + i), s));
    v_rotate(q + nope, a->rope_dim, a->cs + t * a->rope_dim, 1.0f);
}

static void finish_index_head(const struct q_path_args *a, int64_t t, int h)
{
    float *q = a->qi + (t * a->index_heads + h) * a->index_dim;
    v_rotate(q + a->index_dim - a->rope_dim, a->rope_dim, a->cs + t * a->rope_dim, 1.0f);
    v_hadamard(q, a->index_dim);
    for (int i = 0; i < a->index_dim; i += 32)
        v_fp4_block(q + i, q + i);
}

static void q_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct q_job *j = ud;
    const struct q_path_args *a = j->a;
    (void)worker;
    for (int64_t u = first; u < last; u++) {
        int r0 = (int)(u % j->n_tiles) * Q_ROWS, r1 = FST_MIN(r0 + Q_ROWS, a->n_rows);
        int h = (int)(u / j->n_tiles);
        if (h < a->n_heads) {
            lin_part(&j->q, r0, r1, h * a->head_dim, (h + 1) * a->head_dim);
            for (int t = r0; t < r1; t++)
                finish_head(a, t, h);
            continue;
        }
        int h0 = (h - a->n_heads) * Q_INDEX_HEADS, h1 = FST_MIN(h0 + Q_INDEX_HEADS, a->index_heads);
        lin_part(&j->qi, r0, r1, h0 * a->index_dim, h1 * a->index_dim);
        for (int t = r0; t < r1; t++)
            for (int i = h0; i < h1; i++)
                finish_index_head(a, t, i);
    }
}

enum fst_status SIMD_NAME(q_path)(const struct q_path_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    int rank = a->wq_b->n_in;
    struct lin_input in = {.x = a->qr, .n_rows = a->n_rows, .n_in = rank, .ldx = rank};
    struct q_job j = {.a = a, .n_tiles = div_up(a->n_rows, Q_ROWS)};
    FST_ASSERT(a->wq_b->n_out == a->n_heads * a->head_dim);
    FST_ASSERT((a->head_dim - a->rope_dim) % VL == 0);
    j.q = lin_make(s, &c, &in, a->wq_b, true, a->q, a->wq_b->n_out, LIN_ROUND);
    int64_t units = a->n_heads;
    if (lin_there(a->idx_wq_b)) {
        FST_ASSERT(a->idx_wq_b->n_out == a->index_heads * a->index_dim);
        j.qi = lin_make(s, &c, &in, a->idx_wq_b, true, a->qi, a->idx_wq_b->n_out, LIN_ROUND);
        units += div_up(a->index_heads, Q_INDEX_HEADS);
    }
    simd_spread(s, units * j.n_tiles, (int64_t)a->head_dim * rank * FST_MIN(Q_ROWS, a->n_rows),
                q_body, &j);
    return FST_OK;
}

enum { GROUPS_MAX = 64, OUT_ROWS = 256 };

/* Rows t0 .. t0+n-1: a chunk's heads are its widest rows, so they are prepared block by block. */
static void out_block(const struct attn_out_args *a, struct stream *s, struct cut c, int64_t t0,
                      int n)
{
    int wide = a->wo_a->n_in, ranks = a->wo_a->n_out, rank = ranks / a->groups;
    int64_t heads = (int64_t)a->groups * wide;
    float *r = cut_take(&c, (int64_t)n * ranks * 4);
    struct lin_job j[GROUPS_MAX];
    for (int g = 0; g < a->groups; g++) {
        struct lin_input o = {
            .x = a->o + t0 * heads + (int64_t)g * wide, .n_rows = n, .n_in = wide, .ldx = heads};
        j[g] = lin_make(s, &c, &o, a->wo_a, false, r + g * rank, ranks, LIN_ROUND);
        j[g].first = g * rank;
        j[g].n_out = rank;
    }
    lin_run(s, j, a->groups);
    struct lin_input in = {.x = r, .n_rows = n, .n_in = ranks, .ldx = ranks};
    int dim = a->wo_b->n_out;
    j[0] = lin_make(s, &c, &in, a->wo_b, true, a->y + t0 * dim, dim, LIN_SEGMENTS);
    lin_run(s, j, 1);
}

enum fst_status SIMD_NAME(attn_out)(const struct attn_out_args *a, struct stream *s)
{
    FST_ASSERT(a->groups <= GROUPS_MAX);
    for (int t = 0; t < a->n_rows; t += OUT_ROWS)
        out_block(a, s, cut_start(s), t, FST_MIN(OUT_ROWS, a->n_rows - t));
    return FST_OK;
}

/* ---------------------------------------------------------------- routing */

enum { EXPERTS_MAX = 512, EXPERTS_K_MAX = 16 };
struct route_job {
    const struct route_args *a;
    float *g; /* (n_rows, n_experts) */
};

/* The k largest of v (kept marks them), ties to the lower id, ids ascending; returns the margin. */
static float choose(const float *v, int n, int k, int32_t *id)
{
    uint8_t kept[EXPERTS_MAX] = {0};
    float last = 0, next = -INFINITY;
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!kept[e] && (best < 0 || v[e] > v[best]))
                best = e;
        kept[best] = 1;
        last = v[best];
    }
    for (int e = 0, i = 0; e < n; e++) {
        if (kept[e])
            id[i++] = e;
        else if (v[e] > next)
            next = v[e];
    }
    return last - next;
}

static void route_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct route_job *j = ud;
    const struct route_args *a = j->a;
    int n = a->gate->n_out, k = a->k;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        float score[EXPERTS_MAX + VL], v[EXPERTS_MAX], margin = INFINITY, sum = 0;
        int32_t *id = a->expert + t * k;
        memcpy(score, j->g + t * n, (size_t)n * 4);
        memset(score + n, 0, VL * 4);
        for (int e = 0; e < n; e += VL)
            v_store(score + e, v_sqrt_softplus(v_load(score + e)));
        if (a->tid2eid) {
            memcpy(id, a->tid2eid + (int64_t)a->id[t] * k, (size_t)k * 4);
            for (int i = 1; i < k; i++) /* ascending */
                for (int m = i; m > 0 && id[m - 1] > id[m]; m--) {
                    int32_t x = id[m];
                    id[m] = id[m - 1];
                    id[m - 1] = x;
                }
        } else {
            for (int e = 0; e < n; e++)
                v[e] = score[e] + a->bias[e];
            margin = choose(v, n, k, id);
        }
        if (a->margin)
            a->margin[t] = margin;
        for (int i = 0; i < k; i++)
            sum += score[id[i]];
        for (int i = 0; i < k; i++) /* the bias chooses, it does not weigh */
            a->weight[t * k + i] = score[id[i]] / sum * a->scale;
    }
}

enum fst_status SIMD_NAME(route)(const struct route_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    int n = a->gate->n_out;
    struct lin_input in = {
        .x = a->x, .n_rows = a->n_rows, .n_in = a->gate->n_in, .ldx = a->gate->n_in};
    struct route_job j = {a, cut_take(&c, (int64_t)a->n_rows * n * 4)};
    FST_ASSERT(n <= EXPERTS_MAX);
    FST_ASSERT(a->k <= EXPERTS_K_MAX && a->k <= n);
    FST_ASSERT(a->tid2eid || a->bias);
    struct lin_job gate = lin_make(s, &c, &in, a->gate, false, j.g, n, 0);
    lin_run(s, &gate, 1);
    simd_spread(s, a->n_rows, (int64_t)n * (8 + 4 * a->k), route_body, &j);
    return FST_OK;
}

/* ---------------------------------------------------------------- head and drafter inputs */

struct head_job {
    const struct head_args *a;
    const float *z; /* (n, 4) */
    float *h;       /* (n, dim) */
};

static void head_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct head_job *j = ud;
    const struct head_args *a = j->a;
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        const float *x = a->x + (int64_t)a->row[i] * KERN_HC * a->dim;
        float rho = v_rms_factor(x, (int64_t)KERN_HC * a->dim, a->norm_eps), pre[2 * VL] = {0};
        for (int k = 0; k < KERN_HC; k++)
            pre[k] = j->z[4 * i + k] * rho * a->scale[0] + a->base[k];
        v_store(pre, v_sigmoid(v_load(pre)));
        for (int k = 0; k < KERN_HC; k++)
            pre[k] += a->hc_eps;
        streams_collapse(a->y + i * a->dim, x, pre, a->dim);
        v_rmsnorm(j->h + i * a->dim, a->y + i * a->dim, a->norm, a->dim, a->norm_eps);
    }
}

enum fst_status SIMD_NAME(head)(const struct head_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    int64_t wide = (int64_t)KERN_HC * a->dim;
    struct mat fn = {WEIGHT_F32, KERN_HC, (int)wide, a->fn, NULL};
    float *z = cut_take(&c, (int64_t)a->n * KERN_HC * 4);
    struct head_job j = {a, z, cut_take(&c, (int64_t)a->n * a->dim * 4)};
    struct lin_job zs = {.w = &fn,
                         .x = (const uint8_t *)a->x,
                         .ldx = wide * 4,
                         .pick_x = a->row,
                         .y = z,
                         .ldy = KERN_HC,
                         .n_rows = a->n,
                         .n_out = KERN_HC};
    lin_run(s, &zs, 1);
    simd_spread(s, a->n, 12 * a->dim, head_body, &j);
    struct lin_input in = {.x = j.h, .n_rows = a->n, .n_in = a->dim, .ldx = a->dim};
    struct lin_job out = lin_make(s, &c, &in, a->head, false, a->logits, a->head->n_out, 0);
    lin_run(s, &out, 1);
    return FST_OK;
}

struct mtp_job {
    const struct mtp_in_args *a;
    float *in;      /* (n_rows, 1 + 4, dim): normed embedding, normed streams */
    const float *e; /* (n_rows, dim) */
};

static void mtp_norm_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct mtp_job *j = ud;
    const struct mtp_in_args *a = j->a;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        float *in = j->in + t * (1 + KERN_HC) * a->dim;
        const float *src = a->src + (a->row ? a->row[t] : t) * KERN_HC * a->dim;
        lin_table_row(a->table, a->id[t], in);
        v_rmsnorm(in, in, a->enorm, a->dim, a->norm_eps);
        for (int k = 0; k < KERN_HC; k++)
            v_rmsnorm(in + (int64_t)(1 + k) * a->dim, src + (int64_t)k * a->dim, a->hnorm, a->dim,
                      a->norm_eps);
    }
}

static void mtp_add_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct mtp_job *j = ud;
    int dim = j->a->dim;
    (void)worker;
    for (int64_t t = first; t < last; t++)
        for (int k = 0; k < KERN_HC; k++) {
            float *x = j->a->x + (t * KERN_HC + k) * dim;
            for (int d = 0; d < dim; d += VL)
                v_store(x + d, v_bf16(v_add(v_load(j->e + t * dim + d), v_load(x + d))));
        }
}

enum fst_status SIMD_NAME(mtp_in)(const struct mtp_in_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    int64_t dim = a->dim, five = (1 + KERN_HC) * dim;
    FST_ASSERT(dim % VL == 0);
    float *e = cut_take(&c, a->n_rows * dim * 4);
    struct mtp_job m = {a, cut_take(&c, a->n_rows * five * 4), e};
    simd_spread(s, a->n_rows, 20 * dim, mtp_norm_body, &m);
    struct lin_job j[1 + KERN_HC];
    struct lin_input in = {.x = m.in, .n_rows = a->n_rows, .n_in = (int)dim, .ldx = five};
    j[0] = lin_make(s, &c, &in, a->e_proj, true, e, dim, LIN_ROUND);
    for (int k = 0; k < KERN_HC; k++) {
        struct lin_input h = {
            .x = m.in + (1 + k) * dim, .n_rows = a->n_rows, .n_in = (int)dim, .ldx = five};
        j[1 + k] = lin_make(s, &c, &h, a->h_proj, true, a->x + k * dim, KERN_HC * dim, LIN_ROUND);
    }
    lin_run(s, j, 1 + KERN_HC);
    simd_spread(s, a->n_rows, 4 * dim, mtp_add_body, &m);
    return FST_OK;
}

enum fst_status SIMD_NAME(main_proj)(const struct main_proj_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    int n = a->main_proj->n_in, dim = a->main_proj->n_out;
    struct lin_input in = {
        .x = a->h, .n_rows = a->n_rows, .n_in = n, .ldx = n, .pick = a->row};
    struct lin_job j = lin_make(s, &c, &in, a->main_proj, true, a->main, dim, LIN_ROUND);
    lin_run(s, &j, 1);
    norm_rows(s, a->main, a->main_norm, a->n_rows, dim, a->norm_eps);
    return FST_OK;
}
