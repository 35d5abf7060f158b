/* kv.cu - finish the step's KV rows, pool finished groups, keep the compressors' inputs, store rows
 * in rings.
 *
 * kv_write is one launch: per row a block that finishes the row and, per compressor, one that pools the
 * group which the row ends (or returns) and one that puts the row's inputs into the state.  A state may
 * be overwritten only after all pooling that reads it: where a span is so long that it can reach round
 * the ring to the group before it, the states are a launch of their own.
 *
 * Four neighbouring channels of a group belong to a thread, or to several that have a part of the inputs
 * each: inputs in order of position, parts in order.  Sums of squares: channels of a thread, lanes as a
 * tree, waves in order. */
#include "kernels/gpu/rows.cuh"

enum {
    POOLERS = 256,      /* threads that pool at ratio 4 */
    POOLERS_WIDE = 512, /* at ratio 128 */
    ANGLES = 64,        /* threads that make an entry's angles meanwhile */
    WAVES_MAX = (POOLERS_WIDE + ANGLES) / 32,
    DIM_MAX = 512,
    ROPE_MAX = 128,
    INPUTS_MAX = 128
};

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
    int parts; /* blocks of a row: finish it, pool, keep */
    float eps;
};

/* ---------------------------------------------------------------- rows of the step */

GPU_FN void finish_row(const struct kv_job *j, int64_t t)
{
    float *kv = j->kv + t * j->dim;
    int nope = j->dim - j->rope;
    const float *cs = j->cs + t * j->rope - nope;
    for (int d0 = 0; d0 < j->dim; d0 += 4 * (int)blockDim.x) {
        int d = d0 + 4 * (int)threadIdx.x;
        struct gpu_quad x = {}, angle = {};
        if (d < j->dim)
            x = gpu_load4(kv + d);
        if (d < j->dim && d >= nope)
            angle = gpu_load4(cs + d);
        rows_finish(&x, d, nope, j->dim, angle.v);
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

/* What a part of the inputs comes to: softmax weights over their largest score. */
struct pooled {
    struct gpu_quad top, sum, out;
};

/* Weights over a score of -inf: there is none, and its inputs weigh 0. */
GPU_FN float pool_base(float top)
{
    return top == -INFINITY ? 0 : top;
}

/* Inputs i .. i+N-1 at once, those below end. */
template <int N>
GPU_FN void pool_inputs(const struct group *g, int i, int end, int width, int ch, struct pooled *p)
{
    struct gpu_quad s[N], kv[N], ape[N];
    GPU_UNROLL
    for (int k = 0; k < N; k++) {
        int at = FST_MIN(i + k, end - 1);
        kv[k] = gpu_load4(g->in[at] + ch);
        s[k] = gpu_load4(g->in[at] + width + ch);
        ape[k] = gpu_load4(g->ape[at] + ch);
    }
    GPU_UNROLL
    for (int c = 0; c < 4; c++) {
        float top = p->top.v[c], before;
        GPU_UNROLL
        for (int k = 0; k < N; k++) {
            int at = FST_MIN(i + k, end - 1);
            s[k].v[c] = s[k].v[c] + (g->add[at] ? ape[k].v[c] : 0) + g->mask[at];
            s[k].v[c] = i + k < end ? s[k].v[c] : -INFINITY;
            top = fmaxf(top, s[k].v[c]);
        }
        before = expf(p->top.v[c] - pool_base(top));
        p->sum.v[c] *= before;
        p->out.v[c] *= before;
        p->top.v[c] = top;
        GPU_UNROLL
        for (int k = 0; k < N; k++) {
            float w = expf(s[k].v[c] - pool_base(top));
            p->sum.v[c] += w;
            p->out.v[c] = fmaf(w, kv[k].v[c], p->out.v[c]);
        }
    }
}

/* Channel c of four from the group's parts, which lie `step` apart. */
GPU_FN float pool_parts(const struct pooled *p, int c, int parts, int step)
{
    float top = -INFINITY, sum = 0, out = 0;
    for (int i = 0; i < parts; i++)
        top = fmaxf(top, p[i * step].top.v[c]);
    for (int i = 0; i < parts; i++) {
        const struct pooled *q = p + i * step;
        float w = expf(q->top.v[c] - top);
        sum = fmaf(w, q->sum.v[c], sum);
        out = fmaf(w, q->out.v[c], out);
    }
    return gpu_bf16(out / sum);
}

/* y = softmax-weighted mean of the n inputs, channel by channel, bf16.  The first `poolers` threads
 * do it, in `shared`; all call. */
template <int N>
GPU_FN void pool_group(const struct compressor *c, const struct group *g, int n, int poolers,
                       struct pooled *shared, float *y)
{
    int tid = (int)threadIdx.x, quads = c->dim / 4, parts = FST_MIN(poolers / quads, n);
    int each = (n + parts - 1) / parts, part = tid / quads, ch = tid % quads * 4;
    const float none = -INFINITY;
    struct pooled p = {{{none, none, none, none}}, {}, {}};
    if (part < parts) {
        for (int i = part * each; i < FST_MIN(n, (part + 1) * each); i += N)
            pool_inputs<N>(g, i, FST_MIN(n, (part + 1) * each), c->width, ch, &p);
        shared[tid] = p;
    }
    gpu_sync();
    for (int i = tid; i < c->dim; i += (int)blockDim.x)
        y[i] = pool_parts(shared + i / 4, i % 4, parts, quads);
    gpu_sync();
}

/* y = bf16 rmsnorm(y; norm); the first threads have four channels each. */
GPU_FN void norm_entry(const struct compressor *c, float eps, float *y)
{
    GPU_SHARED float part[WAVES_MAX];
    int ch = 4 * (int)threadIdx.x;
    struct gpu_quad x = {}, norm = {};
    float sum = 0;
    if (ch < c->dim) {
        norm = gpu_load4(c->norm + ch);
        x = gpu_load4(y + ch);
    }
    for (int i = 0; i < 4; i++)
        sum = fmaf(x.v[i], x.v[i], sum);
    sum = block_sum(sum, part);
    float r = gpu_inverse_root(fmaf(sum, 1.0f / (float)c->dim, eps));
    for (int i = 0; i < 4; i++)
        x.v[i] = gpu_bf16(x.v[i] * r * norm.v[i]);
    if (ch < c->dim)
        gpu_store4(y + ch, x);
}

/* (rope) of an entry's position, by the threads behind the first `poolers`, which have their freq. */
GPU_FN void entry_angles(const struct kv_job *j, int pos, int poolers, float freq, float *cs)
{
    int i = (int)threadIdx.x - poolers;
    if (i >= 0 && i < j->rope / 2)
        gpu_angle(cs + 2 * i, freq, pos);
}

GPU_FN void store_entry(const struct kv_job *j, int64_t row, const float *y, const float *cs)
{
    for (int d0 = 0; d0 < j->dim; d0 += 4 * (int)blockDim.x) {
        int d = d0 + 4 * (int)threadIdx.x;
        struct gpu_quad x = {};
        if (d < j->dim)
            x = gpu_load4(y + d);
        rows_finish(&x, d, j->dim - j->rope, j->dim, cs + d - (j->dim - j->rope));
        rows_store4(&j->l, row, d, j->dim, &x);
    }
}

/* By the first wave: 32 lanes have the key, in a wave of 64 twice. */
GPU_FN void store_key(const struct kv_job *j, int32_t page_at, int e, const float *y,
                      const float *cs)
{
    int i = gpu_lane() % 32, nope = ROWS_INDEX_DIM - j->rope;
    bool there = gpu_lane() < 32;
    uint8_t *page = rows_index_page(&j->l, page_at);
    if (gpu_wave())
        return;
    struct gpu_quad q = gpu_load4(y + 4 * i);
    if (4 * i >= nope)
        rows_rotate(&q, cs + 4 * i - nope);
    GPU_UNROLL
    for (int h = 1; h < ROWS_INDEX_DIM; h *= 2)
        rows_hadamard(q.v, h);
    for (int k = 0; k < 4; k++)
        q.v[k] = gpu_bf16((float)((double)q.v[k] * (1.0 / sqrt((double)ROWS_INDEX_DIM))));
    if (j->l.index_format == INDEX_FP8)
        rows_index_store8(page, e, i, q.v, there);
    else
        rows_index_store4(page, e, i, q.v, there);
}

/* The weights that a group of compressor c needs on their way to the cache, as far as they are known
 * before the row: the norm's and, at ratio 4, all of ape, which is 16 KB. */
GPU_FN void expect_weights(const struct kv_job *j, const struct compressor *c)
{
    enum { LINE = 128 / sizeof(float) };
    int i = LINE * (int)threadIdx.x;
    if (i < c->dim)
        gpu_prefetch(c->norm + i);
    for (; j->l.ratio == 4 && i < 4 * c->width; i += LINE * (int)blockDim.x)
        gpu_prefetch(c->ape + i);
}

/* The group that row t ends, if it ends one, as an entry of compressor `which`. */
template <int RATIO> GPU_FN void write_entry(const struct kv_job *j, int t, int which)
{
    GPU_SHARED struct group g;
    GPU_SHARED struct pooled parts[RATIO == 4 ? POOLERS : POOLERS_WIDE];
    GPU_SHARED struct gpu_quad shared_y[DIM_MAX / 4];
    GPU_SHARED float cs[ROPE_MAX];
    const struct compressor *c = &j->c[which];
    int poolers = (int)blockDim.x - ANGLES, angle = (int)threadIdx.x - poolers;
    float freq = angle >= 0 && angle < j->rope / 2 ? j->freq[angle] : 0;
    expect_weights(j, c);
    gpu_wait_before();
    const struct row_at at = rows_at(&j->rows, t);
    int n = RATIO == 4 ? 8 : RATIO, e = at.pos / RATIO;
    float *y = shared_y->v;
    if ((at.pos + 1) % RATIO)
        return;
    int32_t page = rows_pages(&j->rows, at.slot)[at.pos / KERN_PAGE];
    find_inputs(j, c, &at, t, n, &g);
    gpu_sync();
    entry_angles(j, at.pos + 1 - RATIO, poolers, freq, cs);
    if (RATIO == 128)
        pool_group<8>(c, &g, n, poolers, parts, y);
    else if (which == 0)
        pool_group<4>(c, &g, n, poolers, parts, y);
    else
        pool_group<1>(c, &g, n, poolers, parts, y);
    norm_entry(c, j->eps, y);
    gpu_sync();
    if (which == 0)
        store_entry(j, rows_of_page(&j->l, page, e), y, cs);
    else if (RATIO == 4)
        store_key(j, page, e, y, cs);
}

/* Row t's inputs into the state of compressor `which`.  Only the last state_ring positions of a span: two
 * positions of one span never share a row. */
GPU_FN void keep_inputs(const struct kv_job *j, int t, int which)
{
    const struct compressor *c = &j->c[which];
    const struct row_at at = rows_at(&j->rows, t);
    if (at.last - t > j->l.state_ring)
        return;
    const float *in = c->in + (int64_t)t * 2 * c->width;
    const float *ape = c->ape + (int64_t)(at.pos % j->l.ratio) * c->width;
    float *row =
        c->state + ((int64_t)at.slot * j->l.state_ring + at.pos % j->l.state_ring) * 2 * c->width;
    for (int i = 4 * (int)threadIdx.x; i < c->width; i += 4 * (int)blockDim.x) {
        struct gpu_quad x = gpu_load4(in + i), s = gpu_load4(in + c->width + i),
                        y = gpu_load4(ape + i);
        for (int k = 0; k < 4; k++)
            s.v[k] += y.v[k];
        gpu_store4(row + i, x);
        gpu_store4(row + c->width + i, s);
    }
}

template <int RATIO>
GPU_KERNEL void GPU_BOUNDS((RATIO == 4 ? POOLERS : POOLERS_WIDE) + ANGLES, RATIO == 4 ? 3 : 1)
    write_kernel(struct kv_job j)
{
    int t = (int)blockIdx.x / j.parts, part = (int)blockIdx.x % j.parts;
    gpu_let_next();
    if (part && part <= j.compressors) {
        write_entry<RATIO>(&j, t, part - 1);
        return;
    }
    gpu_wait_before();
    if (part)
        keep_inputs(&j, t, part - 1 - j.compressors);
    else
        finish_row(&j, t);
}

GPU_KERNEL void keep_kernel(struct kv_job j)
{
    gpu_start();
    keep_inputs(&j, (int)blockIdx.x / j.compressors, (int)blockIdx.x % j.compressors);
}

static void check_layer(const struct kv_layer *l, int dim, int rope)
{
    FST_ASSERT(l->format != ROW_F32);
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

/* Whether no row of the step can write a state that another one still reads.  A row that ends a group reads
 * positions down to inputs - 2 before its span; a span of n rows writes n positions. */
static bool one_launch(const struct kv_write_args *a)
{
    int inputs = a->l->ratio == 4 ? 8 : a->l->ratio;
    int longest = a->rows->n_rows - a->rows->n_spans + 1;
    return longest + inputs - 2 < a->l->state_ring;
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
    bool apart = !one_launch(a);
    j.parts = 1 + (apart ? 1 : 2) * j.compressors;
    if (ratio == 128)
        gpu_launch_early(write_kernel<128>, (int64_t)n * j.parts, POOLERS_WIDE + ANGLES, 0, s, j);
    else
        gpu_launch_early(write_kernel<4>, (int64_t)n * j.parts, POOLERS + ANGLES, 0, s, j);
    if (apart)
        gpu_launch_early(keep_kernel, (int64_t)n * j.compressors, POOLERS, 0, s, j);
    return gpu_done("kv_write");
}

/* ---------------------------------------------------------------- rings */

GPU_KERNEL void ring_kernel(struct kv_job j)
{
    gpu_start();
    int t = (int)blockIdx.x, d = 4 * (int)threadIdx.x;
    struct gpu_quad x = {};
    if (d < j.dim) /* under way together with the row's place */
        x = gpu_load4(j.kv + (int64_t)t * j.dim + d);
    const struct row_at at = rows_at(&j.rows, t);
    if (at.last - t > j.l.ring)
        return;
    rows_store4(&j.l, rows_ring(&j.l, at.slot, at.pos), d, j.dim, &x);
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
    gpu_launch_early(ring_kernel, a->rows->n_rows, DIM_MAX / 4, 0, s, j);
    return gpu_done("ring_store");
}

size_t gpu_kv_scratch(const struct kernel_limits *l)
{
    (void)l;
    return 0;
}
