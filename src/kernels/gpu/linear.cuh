/* linear.cuh - y = W x for stored weights: what one wave does, and the launches of linear.cu.
 *
 * Input rows are bf16 in scratch, which is exact: activations lie on the bf16 grid, and a value of
 * the E4M3 grid times a power of two fits as well.  A wave sums two weight rows with up to LIN_TILE
 * input rows; each lane takes 16 bytes of codes at a time, decodes them once and uses them for all
 * rows.
 *
 * Order of a sum, by the matrix alone: K in chunks of 32 (FP4), 16 (FP8) or 8 (BF16, F32) values,
 * chunk c on lane c % GPU_WAVE, ascending; inside a chunk ascending fmaf, then times the scale of
 * the chunk; lanes by wave_sum.  With LIN_SEGMENTS each of the 8 segments of K lies on an eighth of
 * the wave's lanes, so that wave_sum adds a segment first and then the tree of kernels.h.  A matrix
 * whose rows or segments are no whole chunks (narrow test shapes) takes chunks of one value. */
#ifndef FST_KERNELS_LINEAR_CUH
#define FST_KERNELS_LINEAR_CUH

#include "kernels/gpu/gpu.h"

enum {
    LIN_TILE = 8,   /* input rows of a wave, at most */
#ifdef KERNELS_SM90 /* rows that an entry takes through its scratch at a time */
    LIN_ROWS = 4096,
#else
    LIN_ROWS = 1024,
#endif
    LIN_JOBS = 8,      /* products of one launch */
    LIN_THREADS = 256, /* of a block, at most */
    LIN_FILL = 264,    /* blocks that fill a card: two on each of 132 processors */
    LIN_BLOCK = 128    /* inputs that share a scale of the E4M3 grid */
};
/* LIN_WIDE: the operand is raw although the weights are codes.  LIN_PACK: rounded, and y holds bf16; for products that
 * can (LIN_PACKS).  LIN_CODES: rounded, and y is the next product's operand, codes; where lin_leaves_codes. */
enum lin_flags { LIN_ROUND = 1, LIN_SEGMENTS = 2, LIN_WIDE = 4, LIN_PACK = 8, LIN_CODES = 16 };
#ifdef KERNELS_SM90
#define LIN_PACKS true
#else
#define LIN_PACKS false
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
/* of a loop over chunks for R rows: so many loads in flight */
#define LIN_UNROLL_R _Pragma("unroll R == 1 ? 4 : R == 2 ? 2 : 1")
#else
#define LIN_UNROLL_R
#endif

GPU_BOTH bool lin_coded(enum weight_format fmt)
{
    return fmt == WEIGHT_FP8 || fmt == WEIGHT_FP4;
}

GPU_BOTH constexpr int lin_chunk(int fmt)
{
    return fmt == WEIGHT_FP8 ? 16 : fmt == WEIGHT_FP4 ? 32 : 8;
}

#ifndef KERNELS_SM90
/* Value d of row i of a raw operand of n_rows rows of n_in values. */
GPU_FN uint16_t *lin_raw_place(uint16_t *x, int n_rows, int n_in, int i, int d)
{
    (void)n_rows;
    return x + (int64_t)i * n_in + d;
}
#endif

/* ---------------------------------------------------------------- codes to floats */

/* The values of two fp16 that are no infinities. */
GPU_FN void lin_halves(uint32_t pair, float *low, float *high)
{
#if defined(__CUDACC__)
    asm("{\n\t.reg .b16 a, b;\n\tmov.b32 {a, b}, %2;\n\t"
        "cvt.f32.f16 %0, a;\n\tcvt.f32.f16 %1, b;\n\t}"
        : "=f"(*low), "=f"(*high)
        : "r"(pair));
#else
    *low = gpu_float((pair & 0x8000u) << 16 | (pair & 0x7fffu) << 13) * 0x1p112f;
    *high = gpu_float((pair & 0x80000000u) | (pair & 0x7fff0000u) >> 3) * 0x1p112f;
#endif
}

/* Four E4M3 codes: moved into fp16 they are 2^-8 of their value, subnormals too. */
GPU_FN void lin_fp8(float *v, uint32_t u)
{
    lin_halves((u << 8 & 0x80008000u) | (u << 7 & 0x3f803f80u), &v[0], &v[2]);
    lin_halves((u & 0x80008000u) | (u >> 1 & 0x3f803f80u), &v[1], &v[3]);
}

/* Eight E2M1 codes: moved into fp16 they are 2^-14 of their value. */
GPU_FN void lin_fp4(float *v, uint32_t u)
{
    lin_halves((u << 12 & 0x80008000u) | (u << 9 & 0x0e000e00u), &v[0], &v[4]);
    lin_halves((u << 8 & 0x80008000u) | (u << 5 & 0x0e000e00u), &v[1], &v[5]);
    lin_halves((u << 4 & 0x80008000u) | (u << 1 & 0x0e000e00u), &v[2], &v[6]);
    lin_halves((u & 0x80008000u) | (u >> 3 & 0x0e000e00u), &v[3], &v[7]);
}

GPU_FN void lin_bf16(float *v, const uint32_t *w)
{
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        v[2 * i] = gpu_low(w[i]);
        v[2 * i + 1] = gpu_high(w[i]);
    }
}

/* What undoes the small values of lin_fp8 and lin_fp4, once per sum: powers of two change no bits. */
GPU_BOTH constexpr float lin_gain(int fmt)
{
    return fmt == WEIGHT_FP8 ? 0x1p8f : fmt == WEIGHT_FP4 ? 0x1p14f : 1.0f;
}

/* Weights: read-only and in global memory, which a pointer from a struct in memory does not tell. */
GPU_FN struct gpu_words lin_load16(const uint8_t *p)
{
#if defined(__CUDACC__)
    uint4 v = __ldg((const uint4 *)p);
    return {v.x, v.y, v.z, v.w};
#else
    return gpu_load16(p);
#endif
}
GPU_FN uint32_t lin_load1(const uint8_t *p)
{
#if defined(__CUDACC__)
    return __ldg(p);
#else
    return *p;
#endif
}

template <int FMT> struct lin_words {
    uint32_t w[FMT == WEIGHT_F32 ? 8 : 4];
};

/* Chunk c of a weight row. */
template <int FMT> GPU_FN lin_words<FMT> lin_load(const uint8_t *row, int c)
{
    lin_words<FMT> q;
    GPU_UNROLL
    for (int h = 0; h < (FMT == WEIGHT_F32 ? 2 : 1); h++) {
        struct gpu_words p = lin_load16(row + (int64_t)c * (int)sizeof q + 16 * h);
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            q.w[4 * h + i] = p.w[i];
    }
    return q;
}

/* Values 8*p .. 8*p+7 of a chunk, over lin_gain. */
template <int FMT> GPU_FN void lin_decode(float *v, const lin_words<FMT> &q, int p)
{
    if (FMT == WEIGHT_FP8) {
        lin_fp8(v, q.w[2 * p]);
        lin_fp8(v + 4, q.w[2 * p + 1]);
    } else if (FMT == WEIGHT_FP4) {
        lin_fp4(v, q.w[p]);
    } else if (FMT == WEIGHT_BF16) {
        lin_bf16(v, q.w);
    } else {
        GPU_UNROLL
        for (int i = 0; i < 8; i++)
            v[i] = gpu_float(q.w[i % (int)(sizeof q / 4)]);
    }
}

/* ---------------------------------------------------------------- sums of a wave */

/* Two weight rows of n values. */
struct lin_pair {
    enum weight_format fmt[2];
    const uint8_t *data[2], *scale[2];
    int n;
};

GPU_FN void lin_put(struct lin_pair *p, int i, const struct mat &m, int64_t o)
{
    const uint8_t *data = (const uint8_t *)m.data;
    int64_t n = m.n_in;
    p->fmt[i] = m.fmt;
    p->n = m.n_in;
    p->scale[i] = m.scale;
    switch (m.fmt) {
    case WEIGHT_FP8:
        p->data[i] = data + o * n;
        p->scale[i] += (o >> 7) * ((n + LIN_BLOCK - 1) / LIN_BLOCK);
        break;
    case WEIGHT_FP4:
        p->data[i] = data + o * (n / 2);
        p->scale[i] += o * (n / 32);
        break;
    case WEIGHT_BF16:
        p->data[i] = data + o * n * 2;
        break;
    default:
        p->data[i] = data + o * n * 4;
    }
}

/* Chunks first, first + step, .. below end: a lane's share of n. */
struct lin_span {
    int first, end, step;
};
GPU_FN struct lin_span lin_share(int n, bool segments)
{
    const int lanes = GPU_WAVE / KERN_SEGMENTS;
    int lane = gpu_lane(), first = lane / lanes * (n / KERN_SEGMENTS);
    struct lin_span all = {lane, n, GPU_WAVE};
    struct lin_span part = {first + lane % lanes, first + n / KERN_SEGMENTS, lanes};
    return segments ? part : all;
}

template <int FMT> GPU_FN float lin_scale(const uint8_t *scale, int c)
{
    int chunks = FMT == WEIGHT_FP8 ? LIN_BLOCK / lin_chunk(FMT) : 1; /* of one scale */
    return gpu_e8m0(lin_load1(scale + c / chunks));
}

/* Adds chunk c's products, not yet scaled, to part. */
template <int FMT, int R>
GPU_FN void lin_products(float (&part)[2][R], const lin_words<FMT> &w0, const lin_words<FMT> &w1,
                         const uint16_t *x, const int (&at)[R], uint32_t first)
{
    GPU_UNROLL
    for (int p = 0; p < lin_chunk(FMT) / 8; p++) {
        float a[8], b[8], v[8];
        lin_decode<FMT>(a, w0, p);
        lin_decode<FMT>(b, w1, p);
        GPU_UNROLL
        for (int r = 0; r < R; r++) {
            struct gpu_words in = gpu_load16(x + ((uint32_t)at[r] + first + 8 * (uint32_t)p));
            lin_bf16(v, in.w);
            GPU_UNROLL
            for (int i = 0; i < 8; i++) {
                part[0][r] = fmaf(a[i], v[i], part[0][r]);
                part[1][r] = fmaf(b[i], v[i], part[1][r]);
            }
        }
    }
}

template <int FMT, int R>
GPU_FN void lin_chunks(float (&sum)[2][R], const struct lin_pair &w, const uint16_t *x,
                       const int (&at)[R], struct lin_span s)
{
    constexpr bool scaled = FMT == WEIGHT_FP8 || FMT == WEIGHT_FP4;
    LIN_UNROLL_R
    for (int c = s.first; c < s.end; c += s.step) {
        lin_words<FMT> w0 = lin_load<FMT>(w.data[0], c), w1 = lin_load<FMT>(w.data[1], c);
        uint32_t first = (uint32_t)(c * lin_chunk(FMT));
        if (!scaled) {
            lin_products<FMT, R>(sum, w0, w1, x, at, first);
            continue;
        }
        float part[2][R] = {};
        float s0 = lin_scale<FMT>(w.scale[0], c), s1 = lin_scale<FMT>(w.scale[1], c);
        lin_products<FMT, R>(part, w0, w1, x, at, first);
        GPU_UNROLL
        for (int r = 0; r < R; r++) {
            sum[0][r] = fmaf(part[0][r], s0, sum[0][r]);
            sum[1][r] = fmaf(part[1][r], s1, sum[1][r]);
        }
    }
    GPU_UNROLL
    for (int r = 0; r < R; r++) {
        sum[0][r] *= lin_gain(FMT);
        sum[1][r] *= lin_gain(FMT);
    }
}

/* Value i of a weight row in any form. */
GPU_FN float lin_value(const struct lin_pair &w, int which, int i)
{
    const uint8_t *p = w.data[which], *scale = w.scale[which];
    switch (w.fmt[which]) {
    case WEIGHT_FP8:
        return gpu_e4m3(p[i]) * gpu_e8m0(scale[i / LIN_BLOCK]);
    case WEIGHT_FP4:
        return gpu_e2m1(i % 2 ? p[i / 2] >> 4 : p[i / 2] & 15) * gpu_e8m0(scale[i / 32]);
    default:
        return gpu_load1(w.fmt[which], p, i);
    }
}

template <int R>
GPU_FN void lin_singles(float (&sum)[2][R], const struct lin_pair &w, const uint16_t *x,
                        const int (&at)[R], struct lin_span s)
{
    for (int i = s.first; i < s.end; i += s.step) {
        float a = lin_value(w, 0, i), b = lin_value(w, 1, i);
        GPU_UNROLL
        for (int r = 0; r < R; r++) {
            float v = gpu_from_bf16(x[at[r] + (int64_t)i]);
            sum[0][r] = fmaf(a, v, sum[0][r]);
            sum[1][r] = fmaf(b, v, sum[1][r]);
        }
    }
}

/* wave_sum of N values at once, N a power of two: value i in the lanes that are i modulo N.  The tree
 * of a value is that of wave_sum; lanes just divide the values among themselves on the way. */
template <int N> GPU_FN float lin_fold(const float (&v)[N], int m)
{
    if constexpr (N == 1) {
        float sum = v[0];
        for (; m < GPU_WAVE; m *= 2)
            sum += wave_xor(sum, m);
        return sum;
    } else {
        float half[N / 2];
        bool odd = gpu_lane() & m;
        GPU_UNROLL
        for (int i = 0; i < N / 2; i++) {
            float keep = odd ? v[2 * i + 1] : v[2 * i], give = odd ? v[2 * i] : v[2 * i + 1];
            half[i] = keep + wave_xor(give, m);
        }
        return lin_fold<N / 2>(half, 2 * m);
    }
}

/* Weight row i . input row r (which starts at x + at[r]) in lane 2*r + i, for i < 2, r < R. */
template <int R>
GPU_FN float lin_sums(const struct lin_pair &w, const uint16_t *x, const int (&at)[R],
                      bool segments)
{
    int chunk = lin_chunk(w.fmt[0]), unit = segments ? chunk * KERN_SEGMENTS : chunk;
    float sum[2][R] = {}, all[2 * R];
    if (w.fmt[0] != w.fmt[1] || w.n % unit) {
        lin_singles<R>(sum, w, x, at, lin_share(w.n, segments));
    } else {
        struct lin_span s = lin_share(w.n / chunk, segments);
        switch (w.fmt[0]) {
        case WEIGHT_FP8:
            lin_chunks<WEIGHT_FP8, R>(sum, w, x, at, s);
            break;
        case WEIGHT_FP4:
            lin_chunks<WEIGHT_FP4, R>(sum, w, x, at, s);
            break;
        case WEIGHT_BF16:
            lin_chunks<WEIGHT_BF16, R>(sum, w, x, at, s);
            break;
        default:
            lin_chunks<WEIGHT_F32, R>(sum, w, x, at, s);
        }
    }
    GPU_UNROLL
    for (int i = 0; i < 2 * R; i++)
        all[i] = sum[i % 2][i / 2];
    return lin_fold<2 * R>(all, 1);
}

/* ---------------------------------------------------------------- input rows */

/* Rows of floats, row i at x + i*ldx or (pick) x + pick[i]*ldx, and their operands in scratch, n_in
 * values a row. */
struct lin_input {
    const float *x;
    const int32_t *pick; /* NULL: all */
    int64_t ldx;
    int n_rows, n_in;
    uint16_t *raw, *grid; /* NULL: nobody asked */
};

#ifndef KERNELS_SM90 /* no operands from entry to entry (kernels.h, operand_bytes) */
static inline void lin_take(struct lin_input *in, const void *operand, bool raw)
{
    (void)in;
    (void)operand;
    (void)raw;
}
GPU_FN void lin_leave(void *operand, int n_rows, int n, int64_t row, int b,
                      const struct gpu_quad &v)
{
    (void)operand;
    (void)n_rows;
    (void)n;
    (void)row;
    (void)b;
    (void)v;
}
static inline bool lin_leaves_codes(const struct mat *w, int n_rows)
{
    (void)w;
    (void)n_rows;
    return false;
}
static inline void lin_leave_rows(struct stream *s, const float *x, int n_rows, int n,
                                  void *operand)
{
    (void)s;
    (void)x;
    (void)n_rows;
    (void)n;
    (void)operand;
}
#endif

enum { LIN_LANE_VALUES = LIN_BLOCK / GPU_WAVE };

/* A block of 128 inputs on the E4M3 grid; value i of a lane is input lane + i*GPU_WAVE. */
GPU_FN void lin_grid(float (&v)[LIN_LANE_VALUES])
{
    float top = 0;
    GPU_UNROLL
    for (int i = 0; i < LIN_LANE_VALUES; i++)
        top = fmaxf(top, fabsf(v[i]));
    uint32_t code = gpu_fp8_code(wave_max(top));
    GPU_UNROLL
    for (int i = 0; i < LIN_LANE_VALUES; i++)
        v[i] = gpu_fp8_round(v[i], code);
}

/* Block b of a row of n floats, as it is and on the grid (NULL: not wanted). */
GPU_FN void lin_prepare_block(const float *x, int b, int n, uint16_t *raw, uint16_t *grid)
{
    float v[LIN_LANE_VALUES];
    int first = b * LIN_BLOCK + gpu_lane();
    GPU_UNROLL
    for (int i = 0; i < LIN_LANE_VALUES; i++) {
        int d = first + i * GPU_WAVE;
        v[i] = d < n ? x[d] : 0;
        if (raw && d < n)
            raw[d] = gpu_bf16_bits(v[i]);
    }
    if (!grid)
        return;
    lin_grid(v);
    GPU_UNROLL
    for (int i = 0; i < LIN_LANE_VALUES; i++)
        if (first + i * GPU_WAVE < n)
            grid[first + i * GPU_WAVE] = gpu_bf16_bits(v[i]);
}

/* An element that may lie in host memory, read once for the block.  One call a kernel. */
GPU_FN int32_t lin_once(const int32_t *p)
{
    GPU_SHARED int32_t v;
    if (threadIdx.x == 0)
        v = *p;
    gpu_sync();
    return v;
}

/* Work of block number `block` of lin_prepare_blocks: 128 inputs of one row a wave. */
GPU_FN void lin_prepare_part(const struct lin_input &in, int block)
{
    int blocks = (in.n_in + LIN_BLOCK * gpu_waves() - 1) / (LIN_BLOCK * gpu_waves());
    int row = block / blocks, b = block % blocks * gpu_waves() + gpu_wave();
    int64_t from = in.pick ? lin_once(in.pick + row) : row, to = (int64_t)row * in.n_in;
    if (b * LIN_BLOCK < in.n_in)
        lin_prepare_block(in.x + from * in.ldx, b, in.n_in, in.raw ? in.raw + to : NULL,
                          in.grid ? in.grid + to : NULL);
}
static inline int64_t lin_prepare_blocks(const struct lin_input *in)
{
    return in->n_rows * div_up(in->n_in, LIN_BLOCK * (LIN_THREADS / GPU_WAVE));
}

/* Rows of an operand in scratch: those for Hopper come in eights. */
static inline int64_t lin_operand_rows(int64_t n_rows)
{
    return round_up(n_rows, 8);
}

/* The operand of `in` that w reads, in scratch; what lin_prepare then fills. */
static inline const uint16_t *lin_operand(struct gpu_cut *c, struct lin_input *in,
                                          const struct mat *w)
{
    uint16_t **p = lin_coded(w->fmt) ? &in->grid : &in->raw;
    FST_ASSERT(w->n_in == in->n_in);
    if (!*p)
        *p = gpu_take<uint16_t>(c, lin_operand_rows(in->n_rows) * in->n_in);
    return *p;
}

/* ---------------------------------------------------------------- launches (linear.cu) */

/* Output o of row i: y[i*ldy + o].  Outputs come in groups of `group`; group g reads inputs
 * g*w.n_in .. of a row of x. */
struct lin_job {
    struct mat w;
    const uint16_t *x;
    float *y;
    int64_t ldy;
    int ldx, n_rows, group, blocks;
    unsigned flags;
};
struct lin_batch {
    struct lin_job job[LIN_JOBS];
    int n;
};

#define lin_add             GPU_NAME(lin_add)
#define lin_prepare         GPU_NAME(lin_prepare)
#define lin_run             GPU_NAME(lin_run)
#define lin_make            GPU_NAME(lin_make)
#define lin_project_scratch GPU_NAME(lin_project_scratch)
#define lin_experts_scratch GPU_NAME(lin_experts_scratch)
#define lin_head_scratch    GPU_NAME(lin_head_scratch)

/* One more product of the batch; x: rows of `groups`*w->n_in bf16. */
void lin_add(struct lin_batch *b, const struct mat *w, int groups, const uint16_t *x, int n_rows,
             float *y, int64_t ldy, unsigned flags);
void lin_prepare(struct stream *s, const struct lin_input *in);
void lin_run(struct stream *s, struct lin_batch *b);
/* Both: all products read operands of `in`.  x NULL: they are there. */
void lin_make(struct stream *s, const struct lin_input *in, struct lin_batch *b);

/* Parts of gpu_linear_scratch. */
size_t lin_project_scratch(const struct kernel_limits *l);
size_t lin_experts_scratch(const struct kernel_limits *l);
size_t lin_head_scratch(const struct kernel_limits *l);

#endif
