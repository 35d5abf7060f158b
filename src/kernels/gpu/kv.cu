/* kv.cu - finish the step's KV rows, pool finished groups, keep the compressors' inputs, store rows
 * in rings.
 *
 * kv_write is two launches, since a state may be overwritten only after all pooling:
 * write_kernel  per row one block that finishes the row, and one per compressor that pools the group
 *               which the row ends (or returns);
 * keep_kernel   per row and compressor one block: the inputs go into the state.
 *
 * A pooled channel belongs to one thread: inputs in order of position.  Sums of squares: channels of
 * a thread, lanes as a tree, waves in order. */
#include "kernels/gpu/rows.cuh"

enum { THREADS = 256, DIM_MAX = 512, ROPE_MAX = 128, INPUTS_MAX = 128 };

/* One compressor of a layer: the attention's, or the indexer's. */
struct compressor {
    const float *in; /* (n_rows, 2*width): kv | score without ape */
    float *state;    /* (n_slots, state_ring, 2*width): kv | score with ape */
    const float *ape, *norm;
    int dim, width; /* of an entry; of one half input row */
};

struct kv_job {
    struct rows rows;
    struct kv_layer l;
    float *kv;
    const float *cs, *freq;
    struct compressor c[2];
    int compressors, dim, rope;
    float eps;
};

/* ---------------------------------------------------------------- rows of the step */

GPU_FN void finish_row(const struct kv_job *j, int64_t t)
{
    float *kv = j->kv + t * j->dim;
    const float *cs = j->cs + t * j->rope;
    for (int d0 = 0; d0 < j->dim; d0 += 4 * (int)blockDim.x) {
        int d = d0 + 4 * (int)threadIdx.x;
        struct gpu_quad x = {};
        if (d < j->dim)
            x = gpu_load4(kv + d);
        rows_finish(&x, d, j->dim - j->rope, j->dim, cs);
        if (d < j->dim)
            gpu_store4(kv + d, x);
    }
}

/* ---------------------------------------------------------------- groups */

/* Inputs of a group, by the block: kv row of each, already at the half of channels that enters; what
 * is added to its scores, if anything is (the state's have it); 0, or -inf for one that is not there.
 * Every pointer may be read, so that loads need no branch. */
struct group {
    const float *in[INPUTS_MAX], *ape[INPUTS_MAX];
    float mask[INPUTS_MAX];
    bool add[INPUTS_MAX];
};

/* With overlap (ratio 4) the previous group enters with its first half of channels, the current one
 * with its second. */
GPU_FN void find_inputs(const struct kv_job *j, const struct compressor *c, const struct row_at *at,
                        int t, int n, struct group *g)
{
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        int q = at->pos + 1 - n + i, shift = j->l.ratio == 4 && i >= 4 ? c->dim : 0;
        int64_t own = q < 0 ? t : (int64_t)at->first + q - at->start;
        const float *in = c->in + own * 2 * c->width;
        bool add = q >= at->start;
        if (q >= 0 && !add)
            in = c->state +
                 ((int64_t)at->slot * j->l.state_ring + q % j->l.state_ring) * 2 * c->width;
        g->in[i] = in + shift;
        g->ape[i] = add ? c->ape + (int64_t)(q % j->l.ratio) * c->width + shift : in + shift;
        g->add[i] = add;
        g->mask[i] = q < 0 ? -INFINITY : 0;
    }
}

/* Scores of inputs i .. i+7. */
GPU_FN void eight_scores(const struct group *g, int i, int width, int ch, float s[8])
{
    float ape[8];
    for (int k = 0; k < 8; k++) {
        s[k] = g->in[i + k][width + ch];
        ape[k] = g->ape[i + k][ch];
    }
    for (int k = 0; k < 8; k++)
        s[k] = s[k] + (g->add[i + k] ? ape[k] : 0) + g->mask[i + k];
}

/* y = softmax-weighted mean of the n inputs, channel by channel, bf16. */
GPU_FN void pool_group(const struct compressor *c, const struct group *g, int n, float *y)
{
    for (int ch = (int)threadIdx.x; ch < c->dim; ch += (int)blockDim.x) {
        float top = -INFINITY, sum = 0, out = 0, s[8], kv[8];
        for (int i = 0; i < n; i += 8) {
            eight_scores(g, i, c->width, ch, s);
            for (int k = 0; k < 8; k++)
                top = fmaxf(top, s[k]);
        }
        for (int i = 0; i < n; i += 8) {
            for (int k = 0; k < 8; k++)
                kv[k] = g->in[i + k][ch];
            eight_scores(g, i, c->width, ch, s);
            for (int k = 0; k < 8; k++) {
                float w = expf(s[k] - top);
                sum += w;
                out = fmaf(w, kv[k], out);
            }
        }
        y[ch] = gpu_bf16(out / sum);
    }
}

/* y = bf16 rmsnorm(y; norm); every thread has its own channels, as in pool_group. */
GPU_FN void norm_entry(const struct compressor *c, float eps, float *y)
{
    GPU_SHARED float part[THREADS / 32];
    float sum = 0;
    for (int ch = (int)threadIdx.x; ch < c->dim; ch += (int)blockDim.x)
        sum = fmaf(y[ch], y[ch], sum);
    sum = block_sum(sum, part);
    double r = 1.0 / sqrt((double)sum / c->dim + (double)eps);
    for (int ch = (int)threadIdx.x; ch < c->dim; ch += (int)blockDim.x)
        y[ch] = gpu_bf16((float)((double)y[ch] * r * (double)c->norm[ch]));
}

/* (rope) of an entry's position. */
GPU_FN void entry_angles(const struct kv_job *j, int pos, float *cs)
{
    for (int i = (int)threadIdx.x; i < j->rope / 2; i += (int)blockDim.x)
        gpu_angle(cs + 2 * i, j->freq[i], pos);
}

GPU_FN void store_entry(const struct kv_job *j, int64_t row, const float *y, const float *cs)
{
    for (int d0 = 0; d0 < j->dim; d0 += 4 * (int)blockDim.x) {
        int d = d0 + 4 * (int)threadIdx.x;
        struct gpu_quad x = {};
        if (d < j->dim)
            x = gpu_load4(y + d);
        rows_finish(&x, d, j->dim - j->rope, j->dim, cs);
        rows_store4(&j->l, row, d, j->dim, &x);
    }
}

/* Walsh-Hadamard in Sylvester order of 128 shared values. */
GPU_FN void hadamard(float *y)
{
    int p = (int)threadIdx.x;
    for (int h = 1; h < ROWS_INDEX_DIM; h *= 2) {
        gpu_sync();
        if (p < ROWS_INDEX_DIM / 2) {
            int i = p / h * 2 * h + p % h;
            float a = y[i], b = y[i + h];
            y[i] = a + b;
            y[i + h] = a - b;
        }
    }
    gpu_sync();
}

GPU_FN void store_key(const struct kv_job *j, const int32_t *pages, int e, float *y,
                      const float *cs)
{
    GPU_SHARED float part[THREADS / 32];
    int i = (int)threadIdx.x, nope = ROWS_INDEX_DIM - j->rope;
    if (4 * i >= nope && 4 * i < ROWS_INDEX_DIM) {
        struct gpu_quad x = gpu_load4(y + 4 * i);
        rows_rotate(&x, cs + 4 * i - nope);
        gpu_store4(y + 4 * i, x);
    }
    hadamard(y);
    float x = 0;
    if (i < ROWS_INDEX_DIM)
        x = gpu_bf16((float)((double)y[i] * (1.0 / sqrt((double)ROWS_INDEX_DIM))));
    float amax = block_max(fabsf(x), part);
    if (i >= ROWS_INDEX_DIM) /* whole waves */
        return;
    uint8_t *page = rows_index_page(&j->l, pages[e / ROWS_INDEX_PAGE]);
    if (j->l.index_format == INDEX_FP8) {
        rows_index_store8(page, e, i, x, amax);
        return;
    }
    rows_index_store4(page, e, i, x);
}

/* The group that row t ends, if it ends one, as an entry of compressor `which`. */
GPU_FN void write_entry(const struct kv_job *j, int t, int which)
{
    GPU_SHARED struct group g;
    GPU_SHARED struct gpu_quad shared_y[DIM_MAX / 4];
    GPU_SHARED float cs[ROPE_MAX];
    const struct compressor *c = &j->c[which];
    const struct row_at at = rows_at(&j->rows, t);
    int ratio = j->l.ratio, n = ratio == 4 ? 8 : ratio;
    float *y = shared_y->v;
    if ((at.pos + 1) % ratio)
        return;
    find_inputs(j, c, &at, t, n, &g);
    entry_angles(j, at.pos + 1 - ratio, cs);
    gpu_sync();
    pool_group(c, &g, n, y);
    norm_entry(c, j->eps, y);
    gpu_sync();
    const int32_t *pages = rows_pages(&j->rows, at.slot);
    if (which == 0)
        store_entry(j, rows_compressed(&j->l, pages, at.pos / ratio), y, cs);
    else
        store_key(j, pages, at.pos / ratio, y, cs);
}

GPU_KERNEL void write_kernel(struct kv_job j)
{
    gpu_start();
    int parts = 1 + j.compressors, t = (int)blockIdx.x / parts, part = (int)blockIdx.x % parts;
    if (part == 0)
        finish_row(&j, t);
    else
        write_entry(&j, t, part - 1);
}

/* Only the last state_ring positions of a span: two positions of one span never share a row. */
GPU_KERNEL void keep_kernel(struct kv_job j)
{
    gpu_start();
    int t = (int)blockIdx.x / j.compressors;
    const struct compressor *c = &j.c[(int)blockIdx.x % j.compressors];
    const struct row_at at = rows_at(&j.rows, t);
    if (at.last - t > j.l.state_ring)
        return;
    const float *in = c->in + (int64_t)t * 2 * c->width;
    const float *ape = c->ape + (int64_t)(at.pos % j.l.ratio) * c->width;
    float *row =
        c->state + ((int64_t)at.slot * j.l.state_ring + at.pos % j.l.state_ring) * 2 * c->width;
    for (int i = 4 * (int)threadIdx.x; i < 2 * c->width; i += 4 * (int)blockDim.x) {
        struct gpu_quad x = gpu_load4(in + i);
        if (i >= c->width) {
            struct gpu_quad y = gpu_load4(ape + i - c->width);
            for (int k = 0; k < 4; k++)
                x.v[k] += y.v[k];
        }
        gpu_store4(row + i, x);
    }
}

static void check_layer(const struct kv_layer *l, int dim, int rope)
{
    FST_ASSERT(l->format == ROW_BF16 || l->format == ROW_FP8);
    FST_ASSERT(l->format == ROW_BF16 || (dim == ROWS_FP8_DIM && dim - rope == ROWS_FP8_NOPE));
    FST_ASSERT(dim <= DIM_MAX);
    FST_ASSERT(dim % 16 == 0); /* rows of 16-byte pieces */
    FST_ASSERT((dim - rope) % ROWS_FP8_TILE == 0);
    FST_ASSERT(rope % 4 == 0);
}

static void check_compressors(const struct kv_write_args *a)
{
    FST_ASSERT(a->cmp);
    FST_ASSERT(a->l->ratio == 4 || a->l->ratio == 128);
    FST_ASSERT(a->rope_dim <= ROPE_MAX);
    if (a->l->ratio == 128)
        return;
    FST_ASSERT(a->idx);
    FST_ASSERT(a->l->index_format == INDEX_FP4 || a->l->index_format == INDEX_FP8);
    FST_ASSERT(a->index_dim == ROWS_INDEX_DIM);
    FST_ASSERT(a->rope_dim <= ROWS_INDEX_DIM);
}

GPU_ENTRY(kv_write)
{
    int n = a->rows->n_rows, ratio = a->l->ratio, wide = ratio == 4 ? 2 : 1;
    struct kv_job j = {};
    check_layer(a->l, a->head_dim, a->rope_dim);
    j.rows = *a->rows;
    j.l = *a->l;
    j.kv = a->kv;
    j.cs = a->cs;
    j.freq = a->freq;
    j.dim = a->head_dim;
    j.rope = a->rope_dim;
    j.eps = a->norm_eps;
    if (ratio) {
        check_compressors(a);
        j.c[j.compressors++] = {a->cmp,      a->l->state, a->ape,
                                a->cmp_norm, a->head_dim, wide * a->head_dim};
    }
    if (ratio == 4)
        j.c[j.compressors++] = {a->idx,      a->l->index_state, a->idx_ape,
                                a->idx_norm, a->index_dim,      2 * a->index_dim};
    gpu_launch_early(write_kernel, (int64_t)n * (1 + j.compressors), THREADS, 0, s, j);
    gpu_launch_early(keep_kernel, (int64_t)n * j.compressors, THREADS, 0, s, j);
    return gpu_done("kv_write");
}

/* ---------------------------------------------------------------- rings */

GPU_KERNEL void ring_kernel(struct kv_job j)
{
    gpu_start();
    int t = (int)blockIdx.x;
    const struct row_at at = rows_at(&j.rows, t);
    if (at.last - t > j.l.ring)
        return;
    int64_t row = rows_ring(&j.l, at.slot, at.pos);
    for (int d0 = 0; d0 < j.dim; d0 += 4 * (int)blockDim.x) {
        int d = d0 + 4 * (int)threadIdx.x;
        struct gpu_quad x = {};
        if (d < j.dim)
            x = gpu_load4(j.kv + (int64_t)t * j.dim + d);
        rows_store4(&j.l, row, d, j.dim, &x);
    }
}

GPU_ENTRY(ring_store)
{
    struct kv_job j = {};
    check_layer(a->l, a->head_dim, a->rope_dim);
    j.rows = *a->rows;
    j.l = *a->l;
    j.dim = a->head_dim;
    j.rope = a->rope_dim;
    /* the rows are read alone: the job is kv_write's */
    j.kv = const_cast<float *>(a->kv);
    gpu_launch_early(ring_kernel, a->rows->n_rows, 128, 0, s, j);
    return gpu_done("ring_store");
}

size_t gpu_kv_scratch(const struct kernel_limits *l)
{
    (void)l;
    return 0;
}
