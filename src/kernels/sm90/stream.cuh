/* stream.cuh - one warpgroup streams 64 weight rows from memory through the matrix units.
 *
 * Weights stay as the checkpoint stores them.  A stage is 128 bytes of each of the tile's 64 rows (256
 * values in FP4, 128 in FP8, 64 in BF16), copied asynchronously into a ring; each warp copies the 16
 * rows that it multiplies.  The input rows of the stage ride along.
 *
 * Which of a step's values stands where does not matter as long as both sides agree, so a thread
 * takes 16 or 32 bytes in a row of the stored weights, and inputs are laid out to match, once, by the
 * kernel that quantises them (linear.cuh):
 *   for FP4   within 128 values, 32j + 8q + 2i goes to step j, byte 4q + i, the next one to byte 16 + 4q + i
 *   for FP8   within 128 values, 32q + 8j + i goes to step j, byte 4q + i (i < 4) or 16 + 4q + i - 4
 *   bf16      within  64 values, 16q + 4j + i goes to step j, byte 4q + 2i (i < 2) or 16 + 4q + 2i - 4
 * q is the thread's place in its quad (wgmma.cuh).
 *
 * Order of a sum, by the matrix alone: 32 values (FP4), 128 (FP8) or all (BF16) in the matrix unit; sums
 * of 128, scaled, ascending in fp32.  Those of FP4 are one chain of fmaf over all of K or a segment: each
 * 32 times its weight row's scale, in units of the inputs' scale, to whose next value the sum is moved
 * (an exact power of two) when a block of 128 begins; the last unit and the codes' gain at the end.
 *
 * An E2M1 code moved into E4M3 is 2^-6 of its value, zero and subnormal too, in five integer
 * instructions for eight codes; a table with the scale folded in took nine, and their unit, not the
 * memory, set the pace (experts of 6 rows: 2.7 TB/s).  The scale comes after the product instead. */
#ifndef FST_KERNELS_SM90_STREAM_CUH
#define FST_KERNELS_SM90_STREAM_CUH

#include "kernels/sm90/operand.cuh"
#include "kernels/sm90/wgmma.cuh"

enum {
    STREAM_THREADS = 128,
    STREAM_ROWS = 64, /* weight rows of a tile */
    STREAM_LINE = 128 /* bytes of each in a stage */
};

/* A block is one warpgroup or more, each with a ring and a tile of its own. */
GPU_FN int group_thread(void)
{
    return (int)threadIdx.x % STREAM_THREADS;
}
GPU_FN int group_of(void)
{
    return (int)threadIdx.x / STREAM_THREADS;
}
GPU_FN void group_sync(void)
{
    asm volatile("bar.sync %0, 128;\n" ::"r"(1 + group_of()) : "memory");
}

/* Weights and the inputs that they meet. */
enum stream_form {
    FORM_FP4,  /* E2M1 with E4M3 inputs */
    FORM_FP8,  /* E4M3 with E4M3 inputs */
    FORM_BF16, /* BF16 with bf16 inputs */
    FORM_WIDE  /* E4M3 with bf16 inputs */
};

/* Values of K in a stage; input lines of 128 bytes per row of them; values that share an fp32 step. */
template <int F> struct form_of {
    static constexpr int values = F == FORM_FP4 ? 256 : F == FORM_BF16 ? 64 : 128;
    static constexpr int lines = F == FORM_FP4 || F == FORM_WIDE ? 2 : 1;
    static constexpr int blocks = F == FORM_FP4 ? 2 : 1; /* scales of an input row */
    static constexpr bool coded = F == FORM_FP4 || F == FORM_FP8;
};

/* What one warpgroup multiplies.  Its warps take `step` rows each from both halves: rows 0..7 of a warp
 * from w[0], rows 8..15 from w[1]. */
struct stream_tile {
    const uint8_t *w[2]; /* at the slice's first byte */
    const uint8_t *s[2]; /* FP4: scales of row 0; FP8: of the 128 rows; at the slice's first */
    int64_t pitch;       /* bytes of a weight row */
    int s_pitch;         /* FP4: scales of a row */
    int step;         /* weight rows from warp to warp: 16, or 8 when the halves are two matrices */
    int last[2];      /* rows beyond it are read as this one */
    const uint8_t *x; /* operand at the slice's first byte */
    const float *xs;  /* coded inputs: their scales at the slice's first */
    int64_t x_pitch;  /* bytes of an operand row */
    int xs_pitch;
    const int *row; /* shared: operand row of each of the n input rows */
    int n;
    int values; /* of K in this slice */
};

/* ---------------------------------------------------------------- shared memory */

/* The ring, then scales slot by slot.  Four rings fill a processor. */
template <int N> struct stream_ring {
    static constexpr int weights = STREAM_ROWS * STREAM_LINE;
    static constexpr int slot = weights + 2 * N * STREAM_LINE; /* a multiple of 1024 */
    static constexpr int slots = N <= 16 ? 4 : N <= 32 ? 3 : 2;
    static constexpr int w_scales = STREAM_ROWS * 8;
    static constexpr int scales = w_scales + 2 * N * 4; /* of a slot */
    static constexpr int all_scales = slots * slot;
    static constexpr size_t bytes = 1024 + (size_t)all_scales + (size_t)slots * scales;
};

/* Bytes of a group's part of the shared memory. */
template <int N> GPU_BOTH constexpr size_t group_bytes(void)
{
    return (stream_ring<N>::bytes + 127) / 128 * 128;
}

/* ---------------------------------------------------------------- codes */

/* Codes 0, 2, 4, 6 and 1, 3, 5, 7 of a word as E4M3, over FP4_GAIN. */
#define FP4_GAIN 64.0f
GPU_FN void fp4_to_fp8(uint32_t *even, uint32_t *odd, uint32_t w)
{
    *even = (w << 2 & 0x1c1c1c1cu) | (w << 4 & 0x80808080u);
    *odd = (w >> 2 & 0x1c1c1c1cu) | (w & 0x80808080u);
}
/* The four E8M0 scales in a word as floats; code 0 as 0. */
GPU_FN void scales_of(float (&f)[4], uint32_t s)
{
    f[0] = gpu_float((s & 0xffu) << 23);
    f[1] = gpu_float((s & 0xff00u) << 15);
    f[2] = gpu_float((s & 0xff0000u) << 7);
    f[3] = gpu_float((s & 0xff000000u) >> 1);
}

/* Four E4M3 codes as two pairs of bf16, exact. */
GPU_FN uint32_t fp8_to_pair(uint32_t x)
{
    uint32_t y = (x & 0x80008000u) | (x >> 4 & 0x07f007f0u), out;
    asm("mul.rn.bf16x2 %0, %1, %2;\n" : "=r"(out) : "r"(y), "r"(0x7b807b80u)); /* 2^120 */
    return out;
}
GPU_FN void fp8_to_bf16(uint32_t *low, uint32_t *high, uint32_t w)
{
    *low = fp8_to_pair(__byte_perm(w, 0, 0x1404));
    *high = fp8_to_pair(__byte_perm(w, 0, 0x3424));
}

/* ---------------------------------------------------------------- copies of a stage */

/* 16 bytes of a weight row, whose next 128 come with the next stage: both from memory at once.  ONCE: for few rows,
 * as copy16_once; with many visits that is 2 % slower. */
template <bool ONCE, int TO, int FROM> GPU_FN void copy16_at(uint32_t to, const uint8_t *from)
{
    if (ONCE)
        asm volatile(
            "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0+%2], [%1+%3], 16, %4;\n" ::"r"(
                to),
            "l"(from), "n"(TO), "n"(FROM), "l"(COPY_ONCE));
    else
        asm volatile("cp.async.cg.shared.global.L2::256B [%0+%2], [%1+%3], 16;\n" ::"r"(to),
                     "l"(from), "n"(TO), "n"(FROM));
}

/* Each of eight rows keeps its 16-byte pieces at other places, so that neither the same piece of eight
 * rows nor four of two rows meet in a bank. */
GPU_FN int weight_piece(int row, int piece)
{
    return row * STREAM_LINE + ((piece ^ (row & 6) ^ (row & 1 ? 5 : 0)) << 4);
}

/* What this thread copies: where from, next stage. */
template <int F, int N> struct stream_feed {
    static constexpr int pieces = (N * form_of<F>::lines + 15) / 16; /* of the inputs, per stage */
    const uint8_t *w[4], *s, *x[pieces];
    const float *xs;
    uint32_t w_to; /* where the next weights go; further pieces lie 4 rows on */
    uint32_t x_at; /* in the slot; further pieces lie 16 rows on */
    int left;      /* bytes of a weight row of the slice */
};

template <int F, int N>
GPU_FN void feed_weights(struct stream_feed<F, N> &f, const struct stream_tile &t, uint32_t ring)
{
    int warp = group_thread() / 32, lane = group_thread() % 32, piece = lane % 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int row = min(warp * t.step + (4 * k + lane / 8) % 8, t.last[k / 2]);
        f.w[k] = t.w[k / 2] + row * t.pitch + 16 * piece;
    }
    f.w_to = ring + (uint32_t)weight_piece(16 * warp + lane / 8, piece);
    f.left = (int)((int64_t)t.values * STREAM_LINE / form_of<F>::values);
    if (F == FORM_FP4) {
        bool second = lane >= 8; /* an index into t would put t into memory */
        int row = min(warp * t.step + lane % 8, second ? t.last[1] : t.last[0]);
        f.s = (second ? t.s[1] : t.s[0]) + (int64_t)row * t.s_pitch;
    }
}

/* After t.row is there.  NULL: nothing to copy. */
template <int F, int N>
GPU_FN void feed_inputs(struct stream_feed<F, N> &f, const struct stream_tile &t)
{
    constexpr int blocks = form_of<F>::blocks, lines = form_of<F>::lines;
    int piece = group_thread() % 8, at = group_thread() / 8, r = group_thread() / blocks;
#pragma unroll
    for (int i = 0; i < f.pieces; i++) {
        int line = (at + 16 * i) / N, row = (at + 16 * i) % N;
        bool there = line < lines && row < t.n;
        f.x[i] = there ? t.x + t.row[row] * t.x_pitch + line * STREAM_LINE + 16 * piece : NULL;
    }
    f.x_at = (uint32_t)(at * STREAM_LINE + ((piece ^ (at & 7)) << 4));
    f.xs = NULL;
    if (form_of<F>::coded && r < t.n)
        f.xs = t.xs + (int64_t)t.row[r] * t.xs_pitch + group_thread() % blocks;
}

/* Into slot number `at` of the ring. */
template <int F, int N> GPU_FN void copy_weights(struct stream_feed<F, N> &f, uint32_t ring, int at)
{
    uint32_t scales = ring + (uint32_t)(stream_ring<N>::all_scales + at * stream_ring<N>::scales);
    int lane = group_thread() % 32, warp = group_thread() / 32;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (16 * (lane % 8) < f.left)
            copy16_once((f.w_to ^ (k & 1 ? 64 : 0)) + (uint32_t)(4 * k * STREAM_LINE), f.w[k]);
        f.w[k] += STREAM_LINE;
    }
    f.w_to += (uint32_t)stream_ring<N>::slot;
    if (at + 1 == stream_ring<N>::slots)
        f.w_to -= (uint32_t)stream_ring<N>::all_scales;
    if (F == FORM_FP4) {
        uint32_t to = scales + (uint32_t)(8 * (16 * warp + lane));
        bool whole = f.left > 64 && ((uintptr_t)f.s & 7) == 0;
        if (lane < 16 && whole)
            copy8(to, f.s);
        else if (lane < 16 && f.left > 0)
            copy4_pair(to, f.s, f.left > 64);
        f.s += 8;
    }
    f.left -= STREAM_LINE;
}

/* lines_left: of the operand, from this stage on. */
template <int F, int N>
GPU_FN void copy_inputs(struct stream_feed<F, N> &f, uint32_t ring, int at, int lines_left)
{
    uint32_t inputs = ring + (uint32_t)(at * stream_ring<N>::slot + stream_ring<N>::weights);
    uint32_t x_scales = ring + (uint32_t)(stream_ring<N>::all_scales + at * stream_ring<N>::scales +
                                          stream_ring<N>::w_scales);
    constexpr int lines = form_of<F>::lines, blocks = form_of<F>::blocks;
#pragma unroll
    for (int i = 0; i < f.pieces; i++) {
        bool there = lines == 1 || (group_thread() / 8 + 16 * i) / N < lines_left;
        if (f.x[i] && there)
            copy16(inputs + f.x_at + (uint32_t)(16 * i * STREAM_LINE), f.x[i]);
        f.x[i] += f.x[i] ? lines * STREAM_LINE : 0;
    }
    if (form_of<F>::coded) {
        int r = group_thread() / blocks, b = group_thread() % blocks;
        if (f.xs && b < lines_left) {
            copy4(x_scales + (uint32_t)(4 * (b * N + r)), f.xs);
            f.xs += blocks;
        }
    }
}

/* ---------------------------------------------------------------- products of a stage */

/* acc += d times the scales of its weight rows (f[0], f[1]) and input rows (xs; NULL: none). */
template <int N>
GPU_FN void stream_add(float (&acc)[N / 2], const float (&d)[N / 2], const float (&f)[2],
                       const uint8_t *xs)
{
#pragma unroll
    for (int c = 0; c < N / 8; c++) {
        float2 x = {1, 1};
        if (xs)
            x = *(const float2 *)(const void *)(xs + 32 * c + 8 * (group_thread() % 4));
        acc[4 * c] = fmaf(d[4 * c] * f[0], x.x, acc[4 * c]);
        acc[4 * c + 1] = fmaf(d[4 * c + 1] * f[0], x.y, acc[4 * c + 1]);
        acc[4 * c + 2] = fmaf(d[4 * c + 2] * f[1], x.x, acc[4 * c + 2]);
        acc[4 * c + 3] = fmaf(d[4 * c + 3] * f[1], x.y, acc[4 * c + 3]);
    }
}

/* This thread's row g of its warp's 16. */
GPU_FN int weight_row(void)
{
    return group_thread() / 4 % 8 + group_thread() / 32 * 16;
}
/* Piece `piece` of row g + 8*half. */
GPU_FN uint4 weight_words(const uint8_t *slot, int half, int piece)
{
    return *(const uint4 *)(const void *)(slot + weight_piece(weight_row(), piece) +
                                          half * 8 * STREAM_LINE);
}

/* Bytes 32q .. of both rows as operands of four steps, as they are: E4M3 codes or bf16. */
GPU_FN void plain_steps(uint32_t (&a)[4][4], const uint8_t *slot)
{
    int q = group_thread() % 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 v = weight_words(slot, half, 2 * q + h);
            a[2 * h][half] = v.x;
            a[2 * h][2 + half] = v.y;
            a[2 * h + 1][half] = v.z;
            a[2 * h + 1][2 + half] = v.w;
        }
}

/* Bytes 64*block + 16q .. of both rows, E4M3, as operands of four steps in bf16. */
GPU_FN void wide_steps(uint32_t (&a)[4][4], const uint8_t *slot, int block)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 v = weight_words(slot, half, 4 * block + group_thread() % 4);
        fp8_to_bf16(&a[0][half], &a[0][2 + half], v.x);
        fp8_to_bf16(&a[1][half], &a[1][2 + half], v.y);
        fp8_to_bf16(&a[2][half], &a[2][2 + half], v.z);
        fp8_to_bf16(&a[3][half], &a[3][2 + half], v.w);
    }
}

/* d = the four steps, or d += them. */
template <bool FP8, int N>
GPU_FN void multiply(float (&d)[N / 2], const uint32_t (&a)[4][4], uint32_t inputs, bool more)
{
    uint64_t b = wgmma_rows(inputs);
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (FP8)
            wgmma<N>::fp8(d, a[j], b + 2 * j, more || j > 0);
        else
            wgmma<N>::bf16(d, a[j], b + 2 * j, more || j > 0);
}

/* Line `block` of a stage's inputs, for wgmma_rows. */
template <int N> GPU_FN uint32_t input_line(const uint8_t *slot, int block)
{
    return shared_at(slot) + (uint32_t)(stream_ring<N>::weights + block * N * STREAM_LINE);
}

/* Columns c of acc go from units of the scales x to those of the inputs of the next block, `now`, which x
 * then holds.  Powers of two: the factor is a difference of exponents. */
template <int N>
GPU_FN void fp4_units(float (&acc)[N / 2], float (&x)[N / 4], float2 now, int c = 0)
{
    float f0 = gpu_float(0x3f800000u + gpu_bits(x[2 * c]) - gpu_bits(now.x));
    float f1 = gpu_float(0x3f800000u + gpu_bits(x[2 * c + 1]) - gpu_bits(now.y));
    acc[4 * c] *= f0;
    acc[4 * c + 1] *= f1;
    acc[4 * c + 2] *= f0;
    acc[4 * c + 3] *= f1;
    x[2 * c] = now.x;
    x[2 * c + 1] = now.y;
}

/* The sum or segment is over: from those units to values. */
template <int N> GPU_FN void fp4_values(float (&acc)[N / 2], const float (&x)[N / 4])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] *= x[i / 4 * 2 + i % 2] * FP4_GAIN;
}

/* acc += this thread's products of block `block` of an FP4 stage: a step is 32 values with one scale per
 * weight row.  As many steps at once as there are registers for. */
template <int N>
GPU_FN void fp4_block(float (&acc)[N / 2], float (&x)[N / 4], const uint8_t *slot,
                      const uint8_t *scales, int block)
{
    constexpr int steps = 4, at_once = N <= 16 ? 4 : N <= 32 ? 2 : 1;
    int row = weight_row();
    const uint8_t *words = slot + 4 * (group_thread() % 4);
    float f[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++)
        scales_of(f[half],
                  *(const uint32_t *)(const void *)(scales + 8 * (row + 8 * half) + 4 * block));
#pragma unroll
    for (int j0 = 0; j0 < steps; j0 += at_once) {
        uint32_t a[at_once][4];
        float d[at_once][N / 2];
#pragma unroll
        for (int j = 0; j < at_once; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint8_t *w =
                    words + weight_piece(row, 4 * block + j0 + j) + half * 8 * STREAM_LINE;
                fp4_to_fp8(&a[j][half], &a[j][2 + half], *(const uint32_t *)(const void *)w);
            }
        wgmma_begin();
#pragma unroll
        for (int j = 0; j < at_once; j++)
            wgmma<N>::fp8(d[j], a[j], wgmma_rows(input_line<N>(slot, block)) + 2 * (j0 + j), 0);
        wgmma_end();
        const uint8_t *xs = scales + stream_ring<N>::w_scales + 4 * block * N;
#pragma unroll
        for (int c = 0; c < N / 8 && j0 == 0; c++)
            fp4_units<N>(
                acc, x, *(const float2 *)(const void *)(xs + 32 * c + 8 * (group_thread() % 4)), c);
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < at_once; j++) {
            wgmma_hold(d[j]);
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                acc[i] = fmaf(d[j][i], f[i / 2 % 2][j0 + j], acc[i]);
        }
    }
}

template <int F, int N>
GPU_FN void stream_block(float (&acc)[N / 2], float (&x)[N / 4], const uint8_t *slot,
                         const uint8_t *scales, const float (&f)[2], int block)
{
    uint32_t a[4][4], b[4][4];
    float d[N / 2];
    if (F == FORM_FP4) {
        fp4_block<N>(acc, x, slot, scales, block);
        return;
    }
    if (F == FORM_WIDE) {
        wide_steps(a, slot, 0);
        wide_steps(b, slot, 1);
    } else
        plain_steps(a, slot);
    wgmma_begin();
    if (F == FORM_BF16) {
        multiply<false, N>(acc, a, input_line<N>(slot, 0), true);
    } else if (F == FORM_WIDE) {
        multiply<false, N>(d, a, input_line<N>(slot, 0), false);
        multiply<false, N>(d, b, input_line<N>(slot, 1), true);
    } else
        multiply<true, N>(d, a, input_line<N>(slot, 0), false);
    wgmma_end();
    wgmma_wait<0>();
    if (F == FORM_BF16) {
        wgmma_hold(acc);
        return;
    }
    wgmma_hold(d);
    stream_add<N>(acc, d, f, F == FORM_WIDE ? NULL : scales + stream_ring<N>::w_scales);
}

/* ---------------------------------------------------------------- a tile */

/* Segment k of eight is done: into the tree, by the bits of k. */
template <int N> GPU_FN void stream_segment(float (&acc)[N / 2], float (&pending)[3][N / 2], int k)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float v = acc[i];
        acc[i] = 0;
        if (!(k & 1)) {
            pending[0][i] = v;
            continue;
        }
        v = pending[0][i] + v;
        if (!(k & 2)) {
            pending[1][i] = v;
            continue;
        }
        v = pending[1][i] + v;
        if (k & 4)
            acc[i] = pending[2][i] + v;
        else
            pending[2][i] = v;
    }
}

/* acc = the products of tile t with its input rows.  `shared`: stream_ring<N>::bytes, used up to the
 * end; all threads of the warpgroup call.  What t.x holds may come from the kernel ahead.
 * SEGMENTS: w2's: 8 sums of K apart, added as ((0+1)+(2+3))+((4+5)+(6+7)), or 4 of them, a half; 0:
 * one sum. */
template <int F, int N, int SEGMENTS>
GPU_FN void stream_sum(float (&acc)[N / 2], const struct stream_tile &t, uint8_t *shared)
{
    constexpr int slots = stream_ring<N>::slots, lines = form_of<F>::lines;
    uint8_t *base = shared + (-shared_at(shared) & 1023);
    uint32_t ring = shared_at(base);
    int stages = (t.values + form_of<F>::values - 1) / form_of<F>::values;
    int segment = SEGMENTS ? t.values / SEGMENTS / 128 : 0, in_segment = 0, done = 0;
    int lines_left = stages * lines;
    float pending[3][N / 2], x[N / 4], f[2] = {1, 1};
    struct stream_feed<F, N> feed;
    if (F == FORM_FP4)
        lines_left = t.values / 128;
    feed_weights<F, N>(feed, t, ring);
#pragma unroll
    for (int i = 0; i < slots - 1; i++)
        copy_weights<F, N>(feed, ring, i);
    gpu_wait_before();
    group_sync(); /* t.row */
    feed_inputs<F, N>(feed, t);
#pragma unroll
    for (int i = 0; i < slots - 1; i++) {
        if (i < stages)
            copy_inputs<F, N>(feed, ring, i, lines_left - i * lines);
        copies_end();
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = 0;
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        x[i] = 1;
    int at = 0, fill = slots - 1;
    for (int i = 0; i < stages; i++) {
        const uint8_t *slot = base + at * stream_ring<N>::slot;
        const uint8_t *scales = base + stream_ring<N>::all_scales + at * stream_ring<N>::scales;
        if (F == FORM_FP8 || F == FORM_WIDE) {
            f[0] = gpu_e8m0(__ldg(t.s[0] + i));
            f[1] = gpu_e8m0(__ldg(t.s[1] + i));
        }
        copies_wait<slots - 2>();
        shared_to_wgmma();
        group_sync();
        if (i + slots - 1 < stages) {
            copy_weights<F, N>(feed, ring, fill);
            copy_inputs<F, N>(feed, ring, fill, lines_left - (i + slots - 1) * lines);
        }
        copies_end();
#pragma unroll
        for (int b = 0; b < form_of<F>::blocks; b++) {
            if (F == FORM_FP4 && 2 * i + b >= lines_left)
                break;
            stream_block<F, N>(acc, x, slot, scales, f, b);
            if (SEGMENTS && ++in_segment == segment) {
                if (F == FORM_FP4)
                    fp4_values<N>(acc, x);
                stream_segment<N>(acc, pending, done++);
                in_segment = 0;
            }
        }
        fill = at;
        at = at + 1 == slots ? 0 : at + 1;
    }
#pragma unroll
    for (int k = 0; k < N / 2 && SEGMENTS == 4; k++)
        acc[k] = pending[2][k];
    if (F == FORM_FP4 && !SEGMENTS)
        fp4_values<N>(acc, x);
    copies_wait<0>();
    group_sync();
}

#endif
