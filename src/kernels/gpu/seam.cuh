/* seam.cuh - what follows the sums of a seam: control values and the next input, for kernels/gpu and
 * kernels/sm90.
 *
 * mix_kernel: two blocks per row add up the pieces; one makes the next sublayer's input, the other post
 * and comb, whose many dependent steps take about as long.
 *
 * Order of a sum over pieces: a binary tree over every 2*wave neighbours, then one such tree after another.
 * Squares of the input: the four columns of a quad, a binary tree over the quads of wave^2 neighbours, then
 * one tree after another. */
#ifndef FST_KERNELS_GPU_SEAM_CUH
#define FST_KERNELS_GPU_SEAM_CUH

#include "kernels/gpu/linear.cuh"

enum {
    SEAM_SQUARES =
        KERN_MIX / 4,          /* quad of a piece's sums that the sum of squares is: of all four */
    SEAM_PITCH = KERN_MIX + 4, /* floats of a piece's sums: pre, post, comb, squares */
    MIXERS = 512, /* threads of mix_kernel that share a row's input, of ordinary widths */
    MIXERS_WIDE = 1024,
    ITEMS_WIDE = 12 /* quads of it that a thread has, at most */
};

#ifndef SEAM_LEAVES /* no operands (kernels.h, operand_bytes) */
GPU_FN void seam_leave(const struct seam_args *a, int64_t row, int d, const struct gpu_quad &v)
{
    (void)a;
    (void)row;
    (void)d;
    (void)v;
}
#endif

struct seam_job {
    struct seam_args a;
    float *part; /* (n_rows, pieces, SEAM_PITCH) */
    int pieces, tile;
};

/* ---------------------------------------------------------------- second launch: mix, input */

/* Sums 4*quad .. of a row, by one wave: sum 4*quad + i in the lanes that are i modulo 4. */
GPU_FN float add_pieces(const struct seam_job *j, int64_t row, int quad)
{
    const float *part = j->part + row * j->pieces * SEAM_PITCH + 4 * quad;
    float sum = 0;
    GPU_ROLLED
    for (int p0 = 0; p0 < j->pieces; p0 += 2 * GPU_WAVE) {
        float v[8];
        GPU_UNROLL
        for (int h = 0; h < 2; h++) {
            int p = p0 + h * GPU_WAVE + gpu_lane();
            struct gpu_quad q = {};
            if (p < j->pieces)
                q = gpu_load4(part + (int64_t)p * SEAM_PITCH);
            GPU_UNROLL
            for (int i = 0; i < 4; i++)
                v[4 * h + i] = q.v[i];
        }
        float s = lin_fold<8>(v, 1);
        sum += s + wave_xor(s, 4);
    }
    return sum;
}

/* Sums 4*first .. of `quads` quads of a row into `sum` (shared), then four more, those of the squares.  A
 * wave per four. */
GPU_FN void add_row(const struct seam_job *j, int64_t row, int first, int quads, float *sum)
{
    GPU_ROLLED
    for (int i = gpu_wave(); i <= quads; i += gpu_waves()) {
        float s = add_pieces(j, row, i == quads ? (int)SEAM_SQUARES : first + i);
        if (gpu_lane() < 4)
            sum[4 * i + gpu_lane()] = s;
    }
    gpu_sync();
}

/* 1/sqrt(mean + eps), without the divisions: two of them in a row are a tenth of a microsecond. */
GPU_FN float seam_norm(float squares, int n, float eps)
{
    return gpu_inverse_root(fmaf(squares, 1.0f / (float)n, eps));
}
GPU_FN float seam_sigmoid(float z)
{
    return gpu_inverse(1.0f + expf(-fmaxf(z, -80.0f))); /* of gpu_inverse's range */
}

/* Scale and base of a control value. */
struct terms {
    float scale, base;
};
GPU_FN struct terms load_terms(const struct seam_args *a, int i)
{
    struct terms c = {a->scale[i < 4 ? 0 : i < 8 ? 1 : 2], a->base[i]};
    return c;
}
/* squares: their four sums. */
GPU_FN float control(const struct seam_args *a, struct terms c, float sum, const float *squares)
{
    float all = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    return sum * seam_norm(all, KERN_HC * a->dim, a->norm_eps) * c.scale + c.base;
}

/* c[k] = 1/(sum_i m_ik r_i + eps/c[k]), for columns or (rows) the other way round; g: the inverses.
 * Returns the largest change of g over g. */
GPU_FN float sinkhorn_half(const float m[KERN_HC][KERN_HC], bool rows, const float r[KERN_HC],
                           float c[KERN_HC], float g[KERN_HC], float eps)
{
    float change = 0;
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++) {
        float v[KERN_HC];
        GPU_UNROLL
        for (int i = 0; i < KERN_HC; i++)
            v[i] = rows ? m[k][i] : m[i][k];
        float low = fmaf(v[1], r[1], fmaf(v[0], r[0], eps * g[k]));
        float sum = low + fmaf(v[3], r[3], v[2] * r[2]);
        c[k] = gpu_inverse(sum);
        change = fmaxf(change, fabsf(sum - g[k]) * c[k]);
        g[k] = sum;
    }
    return change;
}

/* The factors of a matrix, and their inverses. */
struct factors {
    float r[KERN_HC], c[KERN_HC], rg[KERN_HC], cg[KERN_HC];
};
GPU_FN float sinkhorn_round(const float m[KERN_HC][KERN_HC], struct factors *f, bool first,
                            float eps)
{
    if (!first)
        sinkhorn_half(m, true, f->c, f->r, f->rg, eps);
    return sinkhorn_half(m, false, f->r, f->c, f->cg, eps);
}

/* The normalised matrix is r[j]*m[j][k]*c[k] all the way: a round changes eight factors and leaves the
 * sixteen values alone.  Rounds end early when they change nothing any more that a float shows: 2^-21
 * of a factor, of which the rounds left out, each smaller than the one before, are at most 16.  Only every
 * fourth looks: the change is a third of a round's instructions, and one wave issues them all. */
GPU_FN void sinkhorn(float m[KERN_HC][KERN_HC], int iters, float eps)
{
    const float still = 0x1p-21f;
    struct factors f = {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}};
    float change = 1;
    int it = 0;
    for (; it + 4 <= iters && change > still; it += 4) {
        sinkhorn_round(m, &f, it == 0, eps);
        sinkhorn_round(m, &f, false, eps);
        sinkhorn_round(m, &f, false, eps);
        change = sinkhorn_round(m, &f, false, eps);
    }
    for (; it < iters && change > still; it++)
        sinkhorn_round(m, &f, it == 0, eps);
    GPU_UNROLL
    for (int i = 0; i < KERN_HC; i++)
        GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++)
        m[i][k] = f.r[i] * m[i][k] * f.c[k];
}

/* Row i/4 of the softmax, entry i%4, plus eps: four adjacent lanes per row. */
GPU_FN float soft_entry(float z, float eps)
{
    float top = fmaxf(z, wave_xor(z, 1));
    top = fmaxf(top, wave_xor(top, 2));
    float e = expf(z - top), s = e + wave_xor(e, 1);
    s = s + wave_xor(s, 2);
    return fmaf(e, gpu_inverse(s), eps);
}

/* Post and comb of a row.  After the sums one wave goes on, all lanes of it alike. */
GPU_FN void comb_block(const struct seam_job *j, int64_t row)
{
    GPU_SHARED float sum[KERN_MIX]; /* post, comb, squares */
    const struct seam_args *a = &j->a;
    float *mix = a->mix + row * KERN_MIX, m[KERN_HC][KERN_HC];
    int lane = gpu_lane(), i = 4 + lane % 20; /* lanes 0..3: post; 4..19: comb; the rest repeats */
    struct terms of = load_terms(a, i);
    gpu_wait_before();
    add_row(j, row, 1, KERN_MIX / 4 - 1, sum);
    if (gpu_wave())
        return;
    float z = control(a, of, sum[i - 4], sum + KERN_MIX - 4), e = soft_entry(z, a->hc_eps);
    if (lane < 4)
        mix[i] = 2 * seam_sigmoid(z);
    GPU_UNROLL
    for (int k = 0; k < 16; k++)
        m[k / 4][k % 4] = gpu_float(gpu_shfl(gpu_bits(e), 4 + k));
    sinkhorn(m, a->iters, a->hc_eps);
    GPU_UNROLL
    for (int k = 0; k < KERN_HC; k++) {
        struct gpu_quad q = {{m[k][0], m[k][1], m[k][2], m[k][3]}};
        if (lane == k)
            gpu_store4(mix + 8 + 4 * k, q);
    }
}

/* u of four columns in place of stream 0; returns the sum of its squares. */
GPU_FN float collapse(struct gpu_quad x[KERN_HC], const float pre[KERN_HC])
{
    float squares = 0;
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        float s = pre[0] * x[0].v[i];
        for (int k = 1; k < KERN_HC; k++)
            s = fmaf(pre[k], x[k].v[i], s);
        x[0].v[i] = gpu_bf16(s);
        squares = fmaf(x[0].v[i], x[0].v[i], squares);
    }
    return squares;
}

/* The squares of a row, of which thread t has quads t, t + threads, ..: over all of them, in every
 * thread. */
template <int N> GPU_FN float sum_quads(const float (&v)[N], float *part)
{
    int waves = gpu_waves(), lane = gpu_lane();
    float sum = 0;
    GPU_UNROLL
    for (int i = 0; i < N; i++) {
        float s = wave_sum(v[i]);
        if (lane == 0)
            part[i * waves + gpu_wave()] = s;
    }
    gpu_sync();
    GPU_ROLLED
    for (int i = 0; i < N * waves; i += GPU_WAVE)
        sum += wave_sum(i + lane < N * waves ? part[i + lane] : 0);
    return sum;
}

/* Pre and the normed input of a row; thread t has quads t, t + threads, .. of it.  The norm's weights wait
 * in shared memory, each thread's own: with them in registers, one block fits where two do. */
template <int N> GPU_FN void input_block(const struct seam_job *j, int64_t row)
{
    GPU_SHARED float sum[8], pre[KERN_HC], part[N * (MIXERS_WIDE / 32)];
    const struct seam_args *a = &j->a;
    const float *x = a->x + row * KERN_HC * a->dim;
    int tid = (int)threadIdx.x, step = 4 * (int)blockDim.x;
    struct terms of = load_terms(a, tid % KERN_HC);
    enum { HELD = N <= 4 ? N : 1 }; /* of the widest rows too many */
    GPU_SHARED struct gpu_quad norm[HELD][N <= 4 ? (int)MIXERS : (int)MIXERS_WIDE];
    struct gpu_quad in[N][KERN_HC] = {};
    float squares[N], all = 0;
    GPU_UNROLL
    for (int i = 0; i < HELD; i++)
        if (4 * tid + i * step < a->dim)
            norm[i][tid] = gpu_load4(a->norm + 4 * tid + i * step);
    gpu_wait_before();
    GPU_UNROLL
    for (int i = 0; i < N; i++) /* under way while the sums are made */
        for (int k = 0; k < KERN_HC; k++)
            if (4 * tid + i * step < a->dim)
                in[i][k] = gpu_load4(x + (int64_t)k * a->dim + 4 * tid + i * step);
    add_row(j, row, 0, 1, sum);
    if (tid < KERN_HC) {
        pre[tid] = seam_sigmoid(control(a, of, sum[tid], sum + 4)) + a->hc_eps;
        a->mix[row * KERN_MIX + tid] = pre[tid];
    }
    gpu_sync();
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        squares[i] = collapse(in[i], pre);
    all = sum_quads(squares, part);
    float r = seam_norm(all, a->dim, a->norm_eps);
    GPU_UNROLL
    for (int i = 0; i < N; i++) {
        int d = 4 * tid + i * step;
        if (d >= a->dim)
            continue;
        struct gpu_quad w = i < HELD ? norm[i % HELD][tid] : gpu_load4(a->norm + d);
        for (int m = 0; m < 4; m++)
            in[i][0].v[m] = gpu_bf16(in[i][0].v[m] * r * w.v[m]);
        gpu_store4(a->out + row * a->dim + d, in[i][0]);
        if (a->operand)
            seam_leave(a, row, d, in[i][0]);
    }
}

template <int N>
GPU_KERNEL void GPU_BOUNDS((int)(N == ITEMS_WIDE ? MIXERS_WIDE : MIXERS), N == 2 ? 2 : 1)
    mix_kernel(struct seam_job j)
{
    gpu_let_next();
    int64_t row = blockIdx.x / 2;
    if (blockIdx.x % 2)
        input_block<N>(&j, row);
    else
        comb_block(&j, row);
}

template <int N> static void launch_mixers(struct stream *s, const struct seam_job *j, int threads)
{
    gpu_launch_early(mix_kernel<N>, 2 * (int64_t)j->a.n_rows, threads, 0, s, *j);
}

static void seam_mix(struct stream *s, const struct seam_job *j)
{
    if (j->a.dim <= 4 * MIXERS * 2)
        launch_mixers<2>(s, j, MIXERS);
    else if (j->a.dim <= 4 * MIXERS * 4)
        launch_mixers<4>(s, j, MIXERS);
    else
        launch_mixers<ITEMS_WIDE>(s, j, MIXERS_WIDE);
}

#endif
