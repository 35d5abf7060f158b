/* project.cu - the projections around attention and the inputs of the drafters.
 *
 * Each entry is: input rows to operands, one launch for all its products, one for what follows them
 * (norms, rotations, grids).  LIN_ROWS rows at a time go through scratch. */
#include "kernels/gpu/linear.cuh"
#include "kernels/gpu/rows.cuh"

/* Rows of packed floats that start at row t0. */
static struct lin_input input_rows(const float *x, int64_t t0, int n_rows, int n_in)
{
    struct lin_input in = {x + t0 * n_in, NULL, n_in, n_rows, n_in, NULL, NULL};
    return in;
}

/* y = w x for all rows of `in`; w NULL or absent: nothing. */
static void add(struct lin_batch *b, struct gpu_cut *c, struct lin_input *in, const struct mat *w,
                float *y, int64_t ldy, unsigned flags)
{
    if (gpu_there(w))
        lin_add(b, w, 1, lin_operand(c, in, w), in->n_rows, y, ldy, flags);
}

/* ---------------------------------------------------------------- norms after a product */

enum { NORM_THREADS = 256, NORM_ITEMS = 3, NORM_WAVES = 4, NORM_QUADS = 12 };

/* y = bf16(norm * y / rms(y)) or, without norm, bf16(y * scale), in place. */
struct norm_item {
    float *y;
    const float *norm;
    int width;
    float scale;
    void *operand; /* NULL, or y once more for q_path */
};
struct norm_job {
    struct norm_item item[NORM_ITEMS];
    int n, n_rows;
    float eps;
};

GPU_FN struct norm_item norm_item_of(const struct norm_job &j, int which)
{
    return which == 0 ? j.item[0] : which == 1 ? j.item[1] : j.item[2];
}

/* One wave per row and item, without a barrier; a lane keeps Q quads of the row.  The norm's weights are
 * asked for before the wait. */
template <int Q>
GPU_KERNEL void GPU_BOUNDS(NORM_WAVES *GPU_WAVE, 4) norm_rows_kernel(struct norm_job j)
{
    int64_t unit = (int64_t)blockIdx.x * NORM_WAVES + gpu_wave(), all = (int64_t)j.n * j.n_rows;
    int which = (int)(FST_MIN(unit, all - 1) / j.n_rows), d0 = 4 * gpu_lane();
    struct norm_item t = norm_item_of(j, which);
    float *y = t.y + (unit - (int64_t)which * j.n_rows) * t.width, r = t.scale, sum = 0;
    struct gpu_quad x[Q], norm[Q];
    gpu_let_next();
    GPU_UNROLL
    for (int i = 0; i < Q; i++) {
        norm[i] = {{1, 1, 1, 1}};
        if (t.norm && d0 + 4 * i * GPU_WAVE < t.width)
            norm[i] = gpu_load4(t.norm + d0 + 4 * i * GPU_WAVE);
    }
    gpu_wait_before();
    if (unit >= all) /* the whole wave */
        return;
    GPU_UNROLL
    for (int i = 0; i < Q; i++) {
        x[i] = {};
        if (d0 + 4 * i * GPU_WAVE < t.width)
            x[i] = gpu_load4(y + d0 + 4 * i * GPU_WAVE);
    }
    GPU_UNROLL
    for (int i = 0; i < 4 * Q; i++)
        sum = fmaf(x[i / 4].v[i % 4], x[i / 4].v[i % 4], sum);
    sum = wave_sum(sum);
    if (t.norm)
        r = 1.0f / sqrtf(sum / (float)t.width + j.eps);
    GPU_UNROLL
    for (int i = 0; i < Q; i++) {
        for (int m = 0; m < 4; m++)
            x[i].v[m] = gpu_bf16(x[i].v[m] * r * norm[i].v[m]);
        if (d0 + 4 * i * GPU_WAVE < t.width)
            gpu_store4(y + d0 + 4 * i * GPU_WAVE, x[i]);
        if (t.operand && 4 * i * GPU_WAVE < t.width)
            lin_leave(t.operand, j.n_rows, t.width, unit - (int64_t)which * j.n_rows, i, x[i]);
    }
}

/* One block per row and item, for wide rows: a thread keeps V values, all that are known to fit. */
template <int V> GPU_KERNEL void norm_kernel(struct norm_job j)
{
    GPU_SHARED float part[NORM_THREADS / GPU_WAVE];
    int which = (int)blockIdx.x / j.n_rows, tid = (int)threadIdx.x;
    struct norm_item t = norm_item_of(j, which);
    float *y = t.y + (int64_t)((int)blockIdx.x % j.n_rows) * t.width;
    float x[V], norm[V], sum = 0, r = t.scale;
    gpu_let_next();
    GPU_UNROLL
    for (int i = 0; i < V; i++)
        norm[i] = t.norm && tid + i * NORM_THREADS < t.width ? t.norm[tid + i * NORM_THREADS] : 1;
    gpu_wait_before();
    GPU_UNROLL
    for (int i = 0; i < V; i++)
        x[i] = tid + i * NORM_THREADS < t.width ? y[tid + i * NORM_THREADS] : 0;
    if (t.norm) {
        GPU_UNROLL
        for (int i = 0; i < V; i++)
            sum = fmaf(x[i], x[i], sum);
        r = 1.0f / sqrtf(block_sum(sum, part) / (float)t.width + j.eps);
    }
    GPU_UNROLL
    for (int i = 0; i < V; i++)
        if (tid + i * NORM_THREADS < t.width)
            y[tid + i * NORM_THREADS] = gpu_bf16(x[i] * r * norm[i]);
}

static void add_norm(struct norm_job *j, float *y, const float *norm, int width, float scale)
{
    struct norm_item t = {y, norm, width, scale, NULL};
    FST_ASSERT(j->n < NORM_ITEMS);
    j->item[j->n++] = t;
}

static int widest(const struct norm_job *j)
{
    int most = 0;
    for (int i = 0; i < j->n; i++)
        most = FST_MAX(most, j->item[i].width);
    return most;
}

/* Whether norm_rows_kernel does it. */
static bool norms_by_waves(const struct norm_job *j)
{
    for (int i = 0; i < j->n; i++)
        if (j->item[i].width % 4)
            return false;
    return widest(j) <= 4 * GPU_WAVE * NORM_QUADS;
}

static void run_norms(struct stream *s, const struct norm_job *j)
{
    int most = widest(j);
    FST_ASSERT(most <= 64 * NORM_THREADS);
    if (norms_by_waves(j)) {
        gpu_launch_early(most <= 4 * GPU_WAVE * 4   ? norm_rows_kernel<4>
                         : most <= 4 * GPU_WAVE * 8 ? norm_rows_kernel<8>
                                                    : norm_rows_kernel<NORM_QUADS>,
                         div_up((int64_t)j->n * j->n_rows, NORM_WAVES), NORM_WAVES * GPU_WAVE, 0, s,
                         *j);
        return;
    }
    gpu_launch_early(most <= 4 * NORM_THREADS    ? norm_kernel<4>
                     : most <= 16 * NORM_THREADS ? norm_kernel<16>
                                                 : norm_kernel<64>,
                     (int64_t)j->n * j->n_rows, NORM_THREADS, 0, s, *j);
}

/* ---------------------------------------------------------------- attn_in */

/* [wkv x | wgate x] in fp32. */
static void add_both(struct lin_batch *b, struct gpu_cut *c, struct lin_input *in,
                     const struct mat *wkv, const struct mat *wgate, float *y, int64_t t0)
{
    if (!gpu_there(wkv))
        return;
    int n = wkv->n_out;
    FST_ASSERT(gpu_there(wgate) && wgate->n_out == n);
    add(b, c, in, wkv, y + t0 * 2 * n, 2 * n, 0);
    add(b, c, in, wgate, y + t0 * 2 * n + n, 2 * n, 0);
}

static void add_normed(struct lin_batch *b, struct norm_job *j, struct gpu_cut *c,
                       struct lin_input *in, const struct mat *w, const float *norm, float *y,
                       int64_t t0, float scale)
{
    if (!gpu_there(w))
        return;
    add(b, c, in, w, y + t0 * w->n_out, w->n_out, LIN_ROUND);
    add_norm(j, y + t0 * w->n_out, norm, w->n_out, scale);
}

static void attn_in_rows(const struct attn_in_args *a, struct stream *s, int64_t t0, int n)
{
    struct gpu_cut c = gpu_scratch(s);
    struct lin_input in = input_rows(a->x, t0, n, a->wkv->n_in);
    struct lin_batch b = {};
    struct norm_job j = {};
    lin_take(&in, a->operand, true);
    j.n_rows = n;
    j.eps = a->norm_eps;
    add_normed(&b, &j, &c, &in, a->wq_a, a->q_norm, a->qr, t0, 1);
    add_normed(&b, &j, &c, &in, a->wkv, a->kv_norm, a->kv, t0, 1);
    add_normed(&b, &j, &c, &in, a->weights_proj, NULL, a->iw, t0, a->iw_scale);
    add_both(&b, &c, &in, a->cmp_wkv, a->cmp_wgate, a->cmp, t0);
    add_both(&b, &c, &in, a->idx_wkv, a->idx_wgate, a->idx, t0);
    lin_make(s, &in, &b);
    bool with = a->qr_operand && norms_by_waves(&j);
    if (with)
        j.item[0].operand = a->qr_operand; /* wq_a comes first */
    run_norms(s, &j);
    if (a->qr_operand && !with)
        lin_leave_rows(s, a->qr, n, a->wq_a->n_out, a->qr_operand);
}

GPU_ENTRY(attn_in)
{
    FST_ASSERT(gpu_there(a->wkv));
    FST_ASSERT(a->kv_norm && (a->q_norm || !gpu_there(a->wq_a)));
    FST_ASSERT(!a->qr_operand || gpu_there(a->wq_a));
    for (int t0 = 0; t0 < a->n_rows; t0 += LIN_ROWS)
        attn_in_rows(a, s, t0, FST_MIN(a->n_rows - t0, LIN_ROWS));
    return gpu_done("attn_in");
}

/* ---------------------------------------------------------------- q_path */

enum { HEAD_WAVES = 4, HEAD_THREADS = HEAD_WAVES * GPU_WAVE, HEAD_MAX = 2048, INDEX_MAX = 128 };

struct heads_job {
    float *q, *qi; /* q packed: bf16 in its place */
    const float *cs;
    int n_rows, n_heads, head_dim, rope_dim, index_heads, index_dim;
    float norm_eps, index_scale; /* of the Hadamard transform */
    int q_blocks;                /* the first ones, for q */
};

/* Eight values of q, as they lie in memory. */
template <bool PACKED> struct query_words {
    struct gpu_words w[PACKED ? 1 : 2];
};
template <bool PACKED> GPU_FN const uint8_t *query_at(const float *q, int64_t at)
{
    return (const uint8_t *)q + (PACKED ? 2 : 4) * at;
}
template <bool PACKED>
GPU_FN void load_query(struct query_words<PACKED> *p, const float *q, int64_t at)
{
    GPU_UNROLL
    for (int i = 0; i < (PACKED ? 1 : 2); i++)
        p->w[i] = gpu_load16(query_at<PACKED>(q, at) + 16 * i);
}
template <bool PACKED> GPU_FN float query_value(const struct query_words<PACKED> &p, int i)
{
    if (!PACKED)
        return gpu_float(p.w[i / 4 % (int)(sizeof p / 16)].w[i % 4]);
    return i % 2 ? gpu_high(p.w[0].w[i / 2]) : gpu_low(p.w[0].w[i / 2]);
}
/* v is on the bf16 grid. */
template <bool PACKED> GPU_FN void store_query(float *q, int64_t at, const struct gpu_quad (&v)[2])
{
    if (PACKED) {
        struct gpu_words w;
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            w.w[i] = gpu_pair(v[i / 2].v[i % 2 * 2], v[i / 2].v[i % 2 * 2 + 1]);
        *(struct gpu_words *)(void *)((uint16_t *)(void *)q + at) = w;
    } else {
        gpu_store4(q + at, v[0]);
        gpu_store4(q + at + 4, v[1]);
    }
}

/* Rotates two pairs by cos, sin, cos, sin. */
GPU_FN void turn(struct gpu_quad *v, const struct gpu_quad &cs)
{
    GPU_UNROLL
    for (int i = 0; i < 4; i += 2) {
        float x = v->v[i], y = v->v[i + 1];
        v->v[i] = fmaf(x, cs.v[i], -(y * cs.v[i + 1]));
        v->v[i + 1] = fmaf(x, cs.v[i + 1], y * cs.v[i]);
    }
}

/* cos and sin of dims d .. d+3 of a head, in registers with its values: 1 and 0 where nothing turns. */
GPU_FN struct gpu_quad angles_of(const float *cs, int d, int dim, int rope_dim)
{
    struct gpu_quad q = {{1, 0, 1, 0}};
    return d < dim && d >= dim - rope_dim ? gpu_load4(cs + d - (dim - rope_dim)) : q;
}

/* A head of q by a wave: norm and rotation, one rounding.  A lane has O times eight values. */
template <int O, bool PACKED>
GPU_FN void finish_query(float *q, int64_t at, int dim, int rope_dim, const float *cs, float eps)
{
    struct query_words<PACKED> p[O] = {
    };
    struct gpu_quad angle[O][2];
    float sum = 0;
    GPU_UNROLL
    for (int i = 0; i < O; i++) {
        int d = 8 * (gpu_lane() + i * GPU_WAVE);
        if (d < dim)
            load_query<PACKED>(&p[i], q, at + d);
    }
    GPU_UNROLL
    for (int i = 0; i < 2 * O; i++)
        angle[i / 2][i % 2] =
            angles_of(cs, 8 * (gpu_lane() + i / 2 * GPU_WAVE) + i % 2 * 4, dim, rope_dim);
    GPU_UNROLL
    for (int i = 0; i < 8 * O; i++) {
        float v = query_value<PACKED>(p[i / 8], i % 8);
        sum = fmaf(v, v, sum);
    }
    float r = 1.0f / sqrtf(wave_sum(sum) / (float)dim + eps);
    GPU_UNROLL
    for (int i = 0; i < O; i++) {
        int d = 8 * (gpu_lane() + i * GPU_WAVE);
        struct gpu_quad v[2];
        GPU_UNROLL
        for (int m = 0; m < 8; m++)
            v[m / 4].v[m % 4] = query_value<PACKED>(p[i], m) * r;
        GPU_UNROLL
        for (int h = 0; h < 2; h++) {
            turn(&v[h], angle[i][h]);
            for (int m = 0; m < 4; m++)
                v[h].v[m] = gpu_bf16(v[h].v[m]);
        }
        if (d < dim)
            store_query<PACKED>(q, at + d, v);
    }
}

/* Four values to the nearest bf16. */
GPU_FN void nearest4(float *y)
{
    GPU_UNROLL
    for (int i = 0; i < 4; i += 2) {
        uint32_t pair = gpu_nearest_pair(y[i], y[i + 1]);
        y[i] = gpu_low(pair);
        y[i + 1] = gpu_high(pair);
    }
}

/* A head of the indexer, by dim/4 neighbouring lanes: rotation, Hadamard, FP4 grid in blocks of 32. */
GPU_FN void finish_index(struct gpu_quad *v, const struct gpu_quad &angle, int dim, float scale)
{
    float y[4], top = 0;
    turn(v, angle);
    for (int i = 0; i < 4; i++)
        y[i] = v->v[i];
    nearest4(y);
    GPU_UNROLL
    for (int h = 1; h < INDEX_MAX; h *= 2)
        if (h < dim)
            rows_hadamard(y, h);
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        y[i] *= scale;
    nearest4(y);
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        top = fmaxf(top, fabsf(y[i]));
    uint32_t code = gpu_fp4_code(wave_max(top, 32 / 4)); /* lanes that hold one block */
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        v->v[i] = gpu_fp4_round(y[i], code);
}

/* Heads of qi that a block takes at once. */
GPU_BOTH int index_heads_here(const struct heads_job &j)
{
    return 4 * HEAD_THREADS / j.index_dim;
}

/* EACH times so many, whose loads are under way together. */
template <int EACH> GPU_FN void finish_indexes(const struct heads_job &j, int block)
{
    int here = index_heads_here(j), last = j.n_rows * j.index_heads - 1;
    int d = 4 * ((int)threadIdx.x % (j.index_dim / 4));
    int first = block * EACH * here + 4 * (int)threadIdx.x / j.index_dim;
    struct gpu_quad v[EACH], angle[EACH];
    GPU_UNROLL
    for (int i = 0; i < EACH; i++) {
        int h = FST_MIN(first + i * here, last);
        v[i] = gpu_load4(j.qi + (int64_t)h * j.index_dim + d);
        angle[i] =
            angles_of(j.cs + (int64_t)(h / j.index_heads) * j.rope_dim, d, j.index_dim, j.rope_dim);
    }
    GPU_UNROLL
    for (int i = 0; i < EACH; i++) {
        finish_index(&v[i], angle[i], j.index_dim, j.index_scale);
        if (first + i * here <= last)
            gpu_store4(j.qi + (int64_t)(first + i * here) * j.index_dim + d, v[i]);
    }
}

/* A wave per head of q, then one per few heads of qi.  Heads are counted in 32 bits: a division in 64 is as
 * long as a head's norm. */
template <int O, bool PACKED, int EACH>
GPU_KERNEL void GPU_BOUNDS(HEAD_THREADS, O <= 2 ? 8 : 2) heads_kernel(struct heads_job j)
{
    gpu_start();
    int block = (int)blockIdx.x, h = block * HEAD_WAVES + gpu_wave();
    if (block >= j.q_blocks)
        finish_indexes<EACH>(j, block - j.q_blocks);
    else if (h < j.n_rows * j.n_heads) /* the whole wave */
        finish_query<O, PACKED>(j.q, (int64_t)h * j.head_dim, j.head_dim, j.rope_dim,
                                j.cs + (int64_t)(h / j.n_heads) * j.rope_dim, j.norm_eps);
}

/* Heads of qi from which there are enough blocks with INDEX_EACH times as many of them. */
#if defined(__CUDACC__) || defined(__HIPCC__)
enum { INDEX_EACH = 4, INDEX_FILL = 4 * 132 * 8 * INDEX_EACH };
#else
enum { INDEX_EACH = 4, INDEX_FILL = 100 };
#endif

template <int O> static void run_heads(const struct heads_job &j, bool packed, struct stream *s)
{
    int64_t blocks = j.q_blocks, heads = (int64_t)j.n_rows * j.index_heads;
    bool many = O <= 2 && heads >= INDEX_FILL;
    if (heads)
        blocks += div_up(heads, (int64_t)index_heads_here(j) * (many ? INDEX_EACH : 1));
    enum { EACH = O <= 2 ? INDEX_EACH : 1 };
    gpu_launch_early(packed ? many ? heads_kernel<O, true, EACH> : heads_kernel<O, true, 1>
                     : many ? heads_kernel<O, false, EACH>
                            : heads_kernel<O, false, 1>,
                     blocks, HEAD_THREADS, 0, s, j);
}

static void q_path_rows(const struct q_path_args *a, struct stream *s, int64_t t0, int n)
{
    struct gpu_cut c = gpu_scratch(s);
    struct lin_input in = input_rows(a->qr, t0, n, a->wq_b->n_in);
    struct lin_batch b = {};
    int64_t wide = (int64_t)a->n_heads * a->head_dim;
    int64_t index = (int64_t)a->index_heads * a->index_dim;
    bool with = gpu_there(a->idx_wq_b);
    struct heads_job j = {a->q + t0 * wide / (a->packed ? 2 : 1),
                          with ? a->qi + t0 * index : NULL,
                          a->cs + t0 * a->rope_dim,
                          n,
                          a->n_heads,
                          a->head_dim,
                          a->rope_dim,
                          with ? a->index_heads : 0,
                          with ? a->index_dim : 0,
                          a->norm_eps,
                          with ? 1.0f / sqrtf((float)a->index_dim) : 0,
                          (int)div_up((int64_t)n * a->n_heads, HEAD_WAVES)};
    if (lin_coded(a->wq_b->fmt) && (!with || lin_coded(a->idx_wq_b->fmt)))
        lin_take(&in, a->operand, false);
    add(&b, &c, &in, a->wq_b, j.q, wide, a->packed ? LIN_PACK : LIN_ROUND);
    add(&b, &c, &in, a->idx_wq_b, j.qi, index, LIN_ROUND);
    lin_make(s, &in, &b);
    enum { WIDE = HEAD_MAX / 8 / GPU_WAVE };
    if (j.head_dim <= 2 * 8 * GPU_WAVE)
        run_heads<2>(j, a->packed, s);
    else
        run_heads<WIDE>(j, a->packed, s);
}

GPU_ENTRY(q_path)
{
    FST_ASSERT(!a->packed || LIN_PACKS);
    FST_ASSERT(a->wq_b->n_out == a->n_heads * a->head_dim);
    FST_ASSERT(a->head_dim % 8 == 0 && a->rope_dim % 4 == 0 && a->rope_dim <= a->head_dim);
    FST_ASSERT(a->head_dim <= HEAD_MAX);
    if (gpu_there(a->idx_wq_b)) {
        FST_ASSERT(a->idx_wq_b->n_out == a->index_heads * a->index_dim);
        FST_ASSERT(a->index_dim % 32 == 0 && a->rope_dim <= a->index_dim);
        FST_ASSERT((a->index_dim & (a->index_dim - 1)) == 0 && a->index_dim <= INDEX_MAX);
    }
    for (int t0 = 0; t0 < a->n_rows; t0 += LIN_ROWS)
        q_path_rows(a, s, t0, FST_MIN(a->n_rows - t0, LIN_ROWS));
    return gpu_done("q_path");
}

/* ---------------------------------------------------------------- attn_out */

static void attn_out_rows(const struct attn_out_args *a, struct stream *s, int64_t t0, int n)
{
    struct gpu_cut c = gpu_scratch(s);
    int wide = a->groups * a->wo_a->n_in, ranks = a->wo_a->n_out, dim = a->wo_b->n_out;
    float *r = gpu_take<float>(&c, (int64_t)n * ranks);
    struct lin_input o = input_rows(a->o, t0, n, wide), in = input_rows(r, 0, n, ranks);
    struct lin_batch first = {}, second = {};
    if (a->packed) {
        o.x = NULL;
        o.raw = (uint16_t *)(uintptr_t)a->o + t0 * wide;
    } else
        o.raw = gpu_take<uint16_t>(&c, lin_operand_rows(n) *
                                           wide); /* not quantised, whatever wo_a's form */
    bool codes = lin_coded(a->wo_b->fmt) && lin_leaves_codes(a->wo_a, n);
    if (codes) {
        in.x = NULL;
        (void)lin_operand(&c, &in, a->wo_b);
    }
    lin_add(&first, a->wo_a, a->groups, o.raw, n, codes ? (float *)(void *)in.grid : r, ranks,
            LIN_ROUND | LIN_WIDE | (codes ? LIN_CODES : 0));
    lin_make(s, &o, &first);
    add(&second, &c, &in, a->wo_b, a->y + t0 * dim, dim, LIN_SEGMENTS);
    lin_make(s, &in, &second);
}

GPU_ENTRY(attn_out)
{
    FST_ASSERT(!a->packed || LIN_PACKS);
    FST_ASSERT(a->groups > 0 && a->wo_b->n_in == a->wo_a->n_out);
    for (int t0 = 0; t0 < a->n_rows; t0 += LIN_ROWS)
        attn_out_rows(a, s, t0, FST_MIN(a->n_rows - t0, LIN_ROWS));
    return gpu_done("attn_out");
}

/* ---------------------------------------------------------------- main_proj */

static void main_proj_rows(const struct main_proj_args *a, struct stream *s, int64_t t0, int n)
{
    struct gpu_cut c = gpu_scratch(s);
    struct lin_input in = input_rows(a->h, a->row ? 0 : t0, n, a->main_proj->n_in);
    struct lin_batch b = {};
    struct norm_job j = {};
    j.n_rows = n;
    j.eps = a->norm_eps;
    in.pick = a->row ? a->row + t0 : NULL;
    add_normed(&b, &j, &c, &in, a->main_proj, a->main_norm, a->main, t0, 1);
    lin_make(s, &in, &b);
    run_norms(s, &j);
}

GPU_ENTRY(main_proj)
{
    FST_ASSERT(gpu_there(a->main_proj) && a->main_norm);
    for (int t0 = 0; t0 < a->n_rows; t0 += LIN_ROWS)
        main_proj_rows(a, s, t0, FST_MIN(a->n_rows - t0, LIN_ROWS));
    return gpu_done("main_proj");
}

/* ---------------------------------------------------------------- mtp_in */

#ifndef KERNELS_SM90 /* its kernels lay out operands themselves */

struct mtp_job {
    const float *src;   /* (any, 4, dim) */
    const int32_t *row; /* (n_rows) or NULL */
    float *x;           /* (n_rows, 4, dim) */
    struct mat table;
    const int32_t *id;
    const float *enorm, *hnorm;
    uint16_t *e, *h; /* operands of e_proj, h_proj */
    float *out;      /* e_proj's outputs */
    bool grid_e, grid_h;
    int n_rows, dim;
    float eps;
};

/* Element d of row `at` of the streams or of the embeddings. */
GPU_FN float mtp_value(const struct mtp_job &j, int64_t at, bool stream, int d)
{
    at = at * j.dim + d;
    return stream ? j.src[at] : gpu_load1(j.table.fmt, j.table.data, at);
}

/* One block per row and part: norm, then the operand, a wave per 128 values. */
GPU_KERNEL void mtp_start_kernel(struct mtp_job j)
{
    gpu_start();
    GPU_SHARED float part[NORM_THREADS / GPU_WAVE];
    int64_t t = blockIdx.x / (KERN_HC + 1);
    int k = (int)(blockIdx.x % (KERN_HC + 1));
    bool stream = k < KERN_HC, grid = stream ? j.grid_h : j.grid_e;
    int64_t from = stream && j.row ? lin_once(j.row + t) : t;
    int64_t at = stream ? from * KERN_HC + k : lin_once(j.id + t);
    const float *norm = stream ? j.hnorm : j.enorm;
    uint16_t *out = stream ? j.h + (t * KERN_HC + k) * j.dim : j.e + t * j.dim;
    float sum = 0;
    for (int d = (int)threadIdx.x; d < j.dim; d += NORM_THREADS) {
        float x = mtp_value(j, at, stream, d);
        sum = fmaf(x, x, sum);
    }
    float r = 1.0f / sqrtf(block_sum(sum, part) / (float)j.dim + j.eps);
    for (int b = gpu_wave() * LIN_BLOCK; b < j.dim; b += gpu_waves() * LIN_BLOCK) {
        float v[LIN_LANE_VALUES];
        GPU_UNROLL
        for (int i = 0; i < LIN_LANE_VALUES; i++) {
            int d = b + gpu_lane() + i * GPU_WAVE;
            v[i] = d < j.dim ? gpu_bf16(mtp_value(j, at, stream, d) * r * norm[d]) : 0;
        }
        if (grid)
            lin_grid(v);
        GPU_UNROLL
        for (int i = 0; i < LIN_LANE_VALUES; i++) {
            int d = b + gpu_lane() + i * GPU_WAVE;
            if (d < j.dim)
                out[d] = gpu_bf16_bits(v[i]);
        }
    }
}

/* x = bf16(e + x), one thread per value. */
GPU_KERNEL void mtp_sum_kernel(struct mtp_job j)
{
    gpu_start();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / j.dim;
    if (row < (int64_t)j.n_rows * KERN_HC)
        j.x[i] = gpu_bf16(j.out[row / KERN_HC * j.dim + i % j.dim] + j.x[i]);
}

static void mtp_in_rows(const struct mtp_in_args *a, struct stream *s, int64_t t0, int n)
{
    struct gpu_cut c = gpu_scratch(s);
    int64_t dim = a->dim, all = n * dim;
    float *x = a->x + t0 * KERN_HC * dim;
    uint16_t *e = gpu_take<uint16_t>(&c, all), *h = gpu_take<uint16_t>(&c, all * KERN_HC);
    struct mtp_job j = {a->row ? a->src : a->src + t0 * KERN_HC * dim,
                        a->row ? a->row + t0 : NULL,
                        x,
                        *a->table,
                        a->id + t0,
                        a->enorm,
                        a->hnorm,
                        e,
                        h,
                        gpu_take<float>(&c, all),
                        lin_coded(a->e_proj->fmt),
                        lin_coded(a->h_proj->fmt),
                        n,
                        a->dim,
                        a->norm_eps};
    struct lin_batch b = {};
    gpu_launch_early(mtp_start_kernel, (int64_t)n * (KERN_HC + 1), NORM_THREADS, 0, s, j);
    lin_add(&b, a->e_proj, 1, e, n, j.out, dim, LIN_ROUND);
    lin_add(&b, a->h_proj, 1, h, n * KERN_HC, x, dim, LIN_ROUND);
    lin_run(s, &b);
    gpu_launch_early(mtp_sum_kernel, div_up(all * KERN_HC, 256), 256, 0, s, j);
}

GPU_ENTRY(mtp_in)
{
    FST_ASSERT(a->table->fmt == WEIGHT_F32 || a->table->fmt == WEIGHT_BF16);
    FST_ASSERT(a->table->n_in == a->dim);
    FST_ASSERT(a->e_proj->n_in == a->dim && a->e_proj->n_out == a->dim);
    FST_ASSERT(a->h_proj->n_in == a->dim && a->h_proj->n_out == a->dim);
    for (int t0 = 0; t0 < a->n_rows; t0 += LIN_ROWS)
        mtp_in_rows(a, s, t0, FST_MIN(a->n_rows - t0, LIN_ROWS));
    return gpu_done("mtp_in");
}

#endif

/* ---------------------------------------------------------------- scratch */

size_t lin_project_scratch(const struct kernel_limits *l)
{
    int64_t n = FST_MIN(l->n_rows, LIN_ROWS), dim = n * l->dim;
    int64_t ranks = n * l->groups * l->o_rank;
    int64_t n8 = lin_operand_rows(n); /* of operands */
    size_t in = 2 * gpu_piece(n8 * FST_MAX(l->dim, l->q_rank), 2);
    size_t out = gpu_piece(ranks, 4) + gpu_piece(n8 * l->n_heads * l->head_dim, 2) +
                 gpu_piece(n8 * l->groups * l->o_rank, 2);
    size_t main = gpu_piece(n8 * l->dim * l->n_stages, 2);
    size_t mtp = gpu_piece(dim, 2) + gpu_piece(dim * KERN_HC, 2) + gpu_piece(dim, 4);
    return FST_MAX(FST_MAX(in, out), FST_MAX(main, mtp));
}
