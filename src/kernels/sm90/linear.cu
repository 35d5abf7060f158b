/* linear.cu - matrix products of activations for Hopper: operands, then one launch for all products of
 * an input.
 *
 * The functions of kernels/gpu/linear.cuh, under which kernels/gpu/project.cu is compiled once more
 * (project.cu here).  An operand is what stream.cuh multiplies: `grid` holds a row's E4M3 codes, and
 * behind all rows their scales, one float per 128 values; `raw` holds bf16.
 *
 * A warpgroup multiplies 64 outputs by up to 64 input rows over one slice of K; K is cut into 1, 2, 4 or
 * 8 slices, by the matrix alone, so that every matrix keeps a card busy at one row.  Four slices of
 * a tile are warpgroups of one block, eight a cluster of two; their sums are added as a tree. */
#include "kernels/sm90/linear.cuh"

/* ---------------------------------------------------------------- operands */

/* A wave takes 128 values of a row. */
GPU_KERNEL void prepare_kernel(struct lin_input in)
{
    gpu_let_next();
    gpu_wait_before();
    int blocks = in.n_in / LIN_BLOCK, unit = (int)blockIdx.x * gpu_waves() + gpu_wave();
    int row = unit / blocks, b = unit % blocks;
    if (row >= in.n_rows)
        return;
    int64_t from = in.pick ? in.pick[row] : row;
    struct gpu_quad v = gpu_load4(in.x + from * in.ldx + b * LIN_BLOCK + 4 * gpu_lane());
    if (in.raw)
        operand_bf16(operand_at((uint8_t *)in.raw, in.n_rows, 2 * (int64_t)in.n_in, row), b, v);
    if (in.grid)
        operand_codes<false>(operand_at((uint8_t *)in.grid, in.n_rows, in.n_in, row), b, v);
}

void lin_prepare(struct stream *s, const struct lin_input *in)
{
    int64_t waves = (int64_t)in->n_rows * (in->n_in / LIN_BLOCK);
    if (in->x && (in->raw || in->grid))
        sm90_launch(prepare_kernel, div_up(waves, 4), 128, 0, 1, s, *in);
}

/* ---------------------------------------------------------------- products */

void lin_add(struct lin_batch *b, const struct mat *w, int groups, const uint16_t *x, int n_rows,
             float *y, int64_t ldy, unsigned flags)
{
    FST_ASSERT(b->n < LIN_JOBS);
    struct lin_job j = {*w, x, y, ldy, groups * w->n_in, n_rows, w->n_out / groups, 0, flags};
    b->job[b->n++] = j;
}

/* Slices side by side in a block, as many as there are up to four; the others are blocks of its
 * cluster. */
enum { GROUPS_MAX = 4 };
GPU_BOTH int slices_here(int n)
{
    return n < GROUPS_MAX ? n : (int)GROUPS_MAX;
}

/* A warpgroup's part of job j: 64 outputs from o, input rows from `row`, slice `slice` of n. */
struct lin_part {
    int o, row, slice, n;
};

/* Of group `group` of block `block` of the job. */
template <int N> GPU_FN struct lin_part lin_part_of(const struct lin_job &j, int block, int group)
{
    struct lin_part p;
    int tiles = (j.n_rows + N - 1) / N;
    p.n = slices(j);
    int here = slices_here(p.n), blocks = p.n / here;
    p.slice = block % blocks * here + group % here;
    block = block / blocks * (blockDim.x / STREAM_THREADS / here) + group / here;
    p.o = block / tiles * STREAM_ROWS;
    p.row = block % tiles * N;
    return p;
}

template <int N>
GPU_FN struct stream_tile lin_tile(const struct lin_job &j, const struct lin_part &p, bool wide)
{
    struct stream_tile t = {};
    int k = j.w.n_in, values = k / p.n, first = p.slice * values, left = j.w.n_out - p.o - 1;
    int bytes = j.w.fmt == WEIGHT_BF16 ? 2 : 1; /* of a value */
    int group = p.o / j.group * k;              /* values of an input row before its group's */
    t.pitch = (int64_t)k * bytes;
    t.w[0] = (const uint8_t *)j.w.data + p.o * t.pitch + (int64_t)first * bytes;
    t.w[1] = t.w[0] + (left >= 8 ? 8 * t.pitch : 0);
    t.last[0] = left;
    t.last[1] = left >= 8 ? left - 8 : 0;
    t.step = 16;
    if (j.w.fmt == WEIGHT_FP8)
        t.s[0] = t.s[1] = j.w.scale + (int64_t)(p.o / 128) * (k / 128) + first / 128;
    bool coded = j.w.fmt == WEIGHT_FP8 && !wide;
    t.x = (const uint8_t *)j.x + (int64_t)(group + first) * (coded ? 1 : 2);
    t.x_pitch = (int64_t)j.ldx * (coded ? 1 : 2);
    t.xs = operand_scales((const uint8_t *)j.x, j.n_rows, j.ldx) + first / 128;
    t.xs_pitch = j.ldx / 128;
    t.n = min(N, j.n_rows - p.row);
    t.values = values;
    return t;
}

/* One slice alone: straight from the registers. */
template <int N>
GPU_FN void lin_put_sums(const struct lin_job &j, const struct lin_part &p,
                         const float (&acc)[N / 2])
{
    int t = group_thread(), o = p.o + t / 32 * 16 + t / 4 % 8, row = p.row + 2 * (t % 4);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        lin_store(j, row + i / 4 * 8 + i % 2, o + i / 2 % 2 * 8, acc[i]);
}

/* This block's sums to its shared memory, as [row][output]; the pitch keeps banks apart. */
enum { SUM_PITCH = STREAM_ROWS + 4 };
template <int N> GPU_FN void lin_share(float *sums, const float (&acc)[N / 2])
{
    int t = group_thread(), o = t / 32 * 16 + t / 4 % 8, row = 2 * (t % 4);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sums[(row + i / 4 * 8 + i % 2) * SUM_PITCH + o + i / 2 % 2 * 8] = acc[i];
}

/* The slices' sums as a tree; the groups of a tile share its values.  `shared`: the block's, `bytes` a
 * group. */
template <int N>
GPU_FN void lin_join(const struct lin_job &j, const struct lin_part &p, const uint8_t *shared,
                     int bytes)
{
    int here = slices_here(p.n), blocks = p.n / here, rows = min(N, j.n_rows - p.row);
    int first = group_of() / here * here; /* group of slice 0 of a block */
    int rank = p.slice / here, block0 = (int)blockIdx.x % 2 - rank;
    for (int i = p.slice * STREAM_THREADS + group_thread(); i < rows * STREAM_ROWS;
         i += p.n * STREAM_THREADS) {
        int row = i / STREAM_ROWS, o = i % STREAM_ROWS;
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint8_t *group = shared + (first + k % GROUPS_MAX) * bytes;
            const float *sum = (const float *)(const void *)group + row * SUM_PITCH + o;
            v[k] = 0;
            if (k < p.n)
                v[k] = blocks == 1 ? *sum : cluster_load(shared_at(sum), block0 + k / GROUPS_MAX);
        }
        float low = (v[0] + v[1]) + (v[2] + v[3]), high = (v[4] + v[5]) + (v[6] + v[7]);
        lin_store(j, p.row + row, p.o + o, low + high);
    }
}

template <int N>
GPU_FN void lin_sums(float (&acc)[N / 2], const struct lin_job &j, const struct stream_tile &t,
                     uint8_t *shared)
{
    if (j.w.fmt == WEIGHT_BF16)
        stream_sum<FORM_BF16, N, 0>(acc, t, shared);
    else if (j.flags & LIN_WIDE)
        stream_sum<FORM_WIDE, N, 0>(acc, t, shared);
    else
        stream_sum<FORM_FP8, N, 0>(acc, t, shared);
}

/* GROUPS warpgroups; clusters of two blocks with more than one. */
template <int N, int GROUPS>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS *GROUPS, N <= 16       ? 4 / GROUPS
                                                          : GROUPS == 1 ? 3
                                                                        : 1)
    product_kernel(const __grid_constant__ struct lin_batch b)
{
    GPU_DYNAMIC(uint8_t, shared);
    GPU_SHARED int row_of[GROUPS][N];
    int block = (int)blockIdx.x, i = 0;
    gpu_let_next();
    while (block >= b.job[i].blocks)
        block -= b.job[i++].blocks;
    const struct lin_job &j = b.job[i];
    struct lin_part p = lin_part_of<N>(j, block, group_of());
    uint8_t *own = shared + group_of() * group_bytes<N>();
    float acc[N / 2];
    bool mine = p.o < j.w.n_out; /* a job's last blocks may be wider than it */
    if (mine) {
        struct stream_tile t = lin_tile<N>(j, p, j.flags & LIN_WIDE);
        t.row = row_of[group_of()];
        for (int r = group_thread(); r < N; r += STREAM_THREADS)
            row_of[group_of()][r] = p.row + r;
        lin_sums<N>(acc, j, t, own);
        if (p.n == 1)
            lin_put_sums<N>(j, p, acc);
        else
            lin_share<N>((float *)(void *)own, acc);
    } else
        gpu_wait_before();
    if (GROUPS == 1)
        return;
    cluster_sync();
    if (mine && p.n > 1)
        lin_join<N>(j, p, shared, (int)group_bytes<N>());
    cluster_sync(); /* nobody leaves while others read its sums */
}

template <int N, int GROUPS> static void launch(struct stream *s, struct lin_batch *b)
{
    int64_t grid = 0;
    for (int i = 0; i < b->n; i++) {
        struct lin_job *j = &b->job[i];
        int64_t parts = div_up(j->w.n_out, STREAM_ROWS) * div_up(j->n_rows, N) * slices(*j);
        int64_t blocks = GROUPS == 1 ? parts : round_up(div_up(parts, GROUPS), 2);
        FST_ASSERT(blocks <= INT32_MAX);
        j->blocks = (int)blocks;
        grid += blocks;
    }
    sm90_launch(product_kernel<N, GROUPS>, grid, STREAM_THREADS * GROUPS, GROUPS * group_bytes<N>(),
                GROUPS == 1 ? 1 : 2, s, *b);
}

template <int N> static void run(struct stream *s, struct lin_batch *b)
{
    bool sliced = false;
    for (int i = 0; i < b->n; i++)
        sliced = sliced || slices(b->job[i]) > 1;
    if (sliced)
        launch<N, GROUPS_MAX>(s, b);
    else
        launch<N, 1>(s, b);
}

void lin_run(struct stream *s, struct lin_batch *b)
{
    int rows = 0;
    bool tiles = true;
    for (int i = 0; i < b->n; i++) {
        rows = FST_MAX(rows, b->job[i].n_rows);
        tiles = tiles && b->job[i].n_rows >= MANY && !(b->job[i].flags & LIN_PLAIN);
    }
    if (tiles)
        sm90_run_tiles(s, b);
    else if (rows <= 8)
        run<8>(s, b);
    else if (rows <= 16)
        run<16>(s, b);
    else if (rows <= 32)
        run<32>(s, b);
    else
        run<64>(s, b);
}

/* ---------------------------------------------------------------- few rows */

/* One to eight rows.  A warpgroup's slice of the inputs is in shared memory before its first product, made
 * there from the floats with up to four rows: no kernel in front of this one that quantises, and no
 * fence and no barrier from stage to stage, since each warp waits for its own copies of its own 16 rows.
 * Weights are free as soon as they are in registers, so all slots are under way during the products.
 *
 * Blocks take half of a processor's threads and registers at most, so that the next product's can find
 * room while this one's still stream, and ask for their first weights.
 *
 * The inputs lie without a swizzle, 16 bytes of each row side by side, and only the rows that there are:
 * what the matrix units read as those up to the eighth are other bytes, in columns that nobody keeps. */
enum {
    THIN_ROWS = 8,
    THIN_MAKE = 4,
    THIN_SLOTS = 3,
    THIN_BLOCKS = 32 /* of 128 values, of a slice */
};

struct thin_job {
    struct lin_batch b;
    struct lin_input in;
    int rings, bytes; /* of a group's shared memory: where the inputs begin, and all */
    int x_bytes;      /* of the inputs, before their scales */
    int rows;         /* places side by side for a piece of input rows */
    bool make;        /* from the floats */
};

/* Where piece `piece` (16 bytes) of line `line` of input row r lies; `rows`: side by side. */
GPU_FN int thin_piece(int rows, int line, int piece, int r)
{
    return ((line * 8 + piece) * rows + r) * 16;
}

/* Block b of input row r; lane l has values 4l .. 4l+3 (linear.cuh). */
template <bool CODED>
GPU_FN void thin_block(uint8_t *x, float *xs, int rows, int b, int r, const struct gpu_quad &v)
{
    int lane = gpu_lane();
    if (CODED) {
        float top = fmaxf(fmaxf(fabsf(v.v[0]), fabsf(v.v[1])), fmaxf(fabsf(v.v[2]), fabsf(v.v[3])));
        uint32_t code = gpu_fp8_code(wave_max(top));
        float down = gpu_e8m0(254 - code);
        *(uint32_t *)(void *)(x + thin_piece(rows, b, lane % 8, r) + 4 * (lane / 8)) =
            e4m3_pair(v.v[0] * down, v.v[1] * down) | e4m3_pair(v.v[2] * down, v.v[3] * down) << 16;
        if (lane == 0)
            xs[b * THIN_ROWS + r] = gpu_e8m0(code);
    } else {
        int line = 2 * b + lane / 16, piece = 2 * (lane % 4), q = lane / 4 % 4;
        uint8_t *at = x + thin_piece(rows, line, piece, r) + 4 * q;
        *(uint32_t *)(void *)at = gpu_pair(v.v[0], v.v[1]);
        *(uint32_t *)(void *)(at + 16 * rows) = gpu_pair(v.v[2], v.v[3]);
    }
}

/* Blocks of 128 values of a slice, as codes or bf16, a wave each; several waves' loads under way. */
template <bool CODED>
GPU_FN void thin_make(uint8_t *x, float *xs, const struct lin_input &in, int rows, int first,
                      int blocks)
{
    constexpr int waves = STREAM_THREADS / 32, at_once = 2;
    int wave = group_thread() / 32;
    for (int r = 0; r < in.n_rows; r++) {
        const float *from = in.x + r * in.ldx + first + 4 * gpu_lane();
        for (int b0 = wave; b0 < blocks; b0 += waves * at_once) {
            struct gpu_quad v[at_once];
#pragma unroll
            for (int i = 0; i < at_once; i++)
                if (b0 + i * waves < blocks)
                    v[i] = gpu_load4(from + (b0 + i * waves) * LIN_BLOCK);
#pragma unroll
            for (int i = 0; i < at_once; i++)
                if (b0 + i * waves < blocks)
                    thin_block<CODED>(x, xs, rows, b0 + i * waves, r, v[i]);
        }
    }
}

/* The same from an operand. */
template <bool CODED>
GPU_FN void thin_fetch(uint8_t *x, float *xs, const struct lin_job &j, int rows, int first,
                       int blocks)
{
    int thread = group_thread(), n = j.n_rows, piece = thread % 8;
    constexpr int bytes = CODED ? 1 : 2;
    const float *scales = operand_scales((const uint8_t *)j.x, n, j.ldx) + first / LIN_BLOCK;
    for (int i = thread / 8; i < blocks * bytes * n; i += STREAM_THREADS / 8) {
        int line = i / n, r = i % n;
        const uint8_t *from = (const uint8_t *)j.x + ((int64_t)r * j.ldx + first) * bytes;
        copy16(shared_at(x + thin_piece(rows, line, piece, r)),
               from + line * STREAM_LINE + 16 * piece);
    }
    for (int i = thread; i < blocks * n && CODED; i += STREAM_THREADS)
        copy4(shared_at(xs + i / n * THIN_ROWS + i % n),
              scales + (int64_t)(i % n) * (j.ldx / LIN_BLOCK) + i / n);
    copies_end();
    copies_wait<0>();
}

/* 128 bytes of 16 rows of a warp; w: this lane's of the first four. */
GPU_FN void thin_copy(uint32_t to, const uint8_t *w, int64_t four)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        copy16_at<0, 0>((to ^ (k & 1 ? 64 : 0)) + (uint32_t)(4 * k * STREAM_LINE), w + k * four);
}

/* d = four steps with the inputs at `at` (a descriptor's low word), or d += them. */
template <bool FP8>
GPU_FN void thin_steps(float (&d)[THIN_ROWS / 2], const uint32_t (&a)[4][4], uint32_t at, int rows,
                       bool more)
{
    constexpr uint64_t high = (uint64_t)8 << 32; /* no swizzle; from eight rows to eight: unused */
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint64_t b = high | (at + (uint32_t)(2 * j * rows));
        if (FP8)
            wgmma<THIN_ROWS>::fp8(d, a[j], b, more || j > 0);
        else
            wgmma<THIN_ROWS>::bf16(d, a[j], b, more || j > 0);
    }
}

/* Sums of a slice, as stream_sum has them. */
template <int F>
GPU_FN void thin_sum(float (&acc)[THIN_ROWS / 2], const struct thin_job &t, const struct lin_job &j,
                     const struct lin_part &p, uint8_t *own)
{
    constexpr bool coded = F == FORM_FP8;
    constexpr int bytes = F == FORM_BF16 ? 2 : 1, lines = form_of<F>::lines;
    constexpr int ring = STREAM_ROWS * STREAM_LINE;
    int k = j.w.n_in, values = k / p.n, first = p.slice * values, blocks = values / LIN_BLOCK;
    int stages = values / form_of<F>::values, rows = t.rows, lane = gpu_lane();
    int row = group_thread() / 32 * 16 + lane / 8;
    int64_t pitch = (int64_t)k * bytes, four = 4 * pitch;
    const uint8_t *w =
        (const uint8_t *)j.w.data + (p.o + row) * pitch + (int64_t)first * bytes + 16 * (lane % 8);
    uint32_t to = shared_at(own) + (uint32_t)weight_piece(row, lane % 8), scale = 0;
    uint8_t *x = own + t.rings;
    float *xs = (float *)(void *)(x + t.x_bytes);
#pragma unroll
    for (int i = 0; i < THIN_SLOTS; i++) {
        if (i < stages)
            thin_copy(to + (uint32_t)(i * ring), w, four);
        copies_end();
        w += STREAM_LINE;
    }
    if (F != FORM_BF16 && lane < blocks)
        scale = __ldg(j.w.scale + (int64_t)(p.o / LIN_BLOCK) * (k / LIN_BLOCK) + first / LIN_BLOCK +
                      lane);
    int from = p.o / j.group * k + first; /* in an input row */
    gpu_wait_before();
    if (t.make)
        thin_make<coded>(x, xs, t.in, rows, from, blocks);
    else
        thin_fetch<coded>(x, xs, j, rows, from, blocks);
    shared_to_wgmma();
    group_sync();
    uint32_t inputs = (shared_at(x) & 0x3ffff) >> 4 |
                      (uint32_t)rows << 16; /* a cluster numbers its blocks above */
#pragma unroll
    for (int i = 0; i < THIN_ROWS / 2; i++)
        acc[i] = 0;
    for (int i = 0, at = 0; i < stages; i++) {
        uint32_t a[4][4];
        uint4 raw[2];
        const uint8_t *slot = own + at * ring;
        copies_wait<THIN_SLOTS - 1>();
        __syncwarp();
        if (F == FORM_WIDE) {
            wide_steps(a, slot, 0);
            raw[0] = weight_words(slot, 0, 4 + lane % 4);
            raw[1] = weight_words(slot, 1, 4 + lane % 4);
        } else
            plain_steps(a, slot);
        __syncwarp();
        if (i + THIN_SLOTS < stages)
            thin_copy(to + (uint32_t)(at * ring), w, four);
        copies_end();
        w += STREAM_LINE;
        at = at + 1 == THIN_SLOTS ? 0 : at + 1;
        uint32_t input = __shfl_sync(0xffffffffu, inputs, 0);
        inputs += (uint32_t)(8 * lines * rows);
        if (F == FORM_BF16) {
            wgmma_begin();
            thin_steps<false>(acc, a, input, rows, true);
            wgmma_end();
            wgmma_wait<0>();
            wgmma_hold(acc);
            continue;
        }
        float d[THIN_ROWS / 2], f = gpu_e8m0(__shfl_sync(0xffffffffu, scale, i));
        wgmma_begin();
        thin_steps<coded>(d, a, input, rows, false);
        if (F == FORM_WIDE) {
            /* the other half in the same registers: 64 a thread are all there are */
            wgmma_end();
            wgmma_wait<0>();
            wgmma_hold(d);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                fp8_to_bf16(&a[0][half], &a[0][2 + half], raw[half].x);
                fp8_to_bf16(&a[1][half], &a[1][2 + half], raw[half].y);
                fp8_to_bf16(&a[2][half], &a[2][2 + half], raw[half].z);
                fp8_to_bf16(&a[3][half], &a[3][2 + half], raw[half].w);
            }
            wgmma_begin();
            thin_steps<false>(d, a, input + (uint32_t)(8 * rows), rows, true);
        }
        wgmma_end();
        wgmma_wait<0>();
        wgmma_hold(d);
        const float both[2] = {f, f};
        stream_add<THIN_ROWS>(acc, d, both, coded ? (const uint8_t *)(xs + i * THIN_ROWS) : NULL);
    }
    copies_wait<0>();
    group_sync(); /* the ring takes the sums */
}

template <int GROUPS>
GPU_KERNEL void __launch_bounds__(STREAM_THREADS *GROUPS, 8 / GROUPS)
    thin_kernel(const __grid_constant__ struct thin_job t)
{
    GPU_DYNAMIC(uint8_t, dynamic);
    uint8_t *shared = dynamic + (-shared_at(dynamic) & 127); /* weight_piece and ^ 64 */
    int block = (int)blockIdx.x, i = 0;
    gpu_let_next();
    while (block >= t.b.job[i].blocks)
        block -= t.b.job[i++].blocks;
    const struct lin_job &j = t.b.job[i];
    struct lin_part p = lin_part_of<THIN_ROWS>(j, block, group_of());
    uint8_t *own = shared + group_of() * t.bytes;
    float acc[THIN_ROWS / 2];
    bool mine = p.o < j.w.n_out;
    if (!mine)
        gpu_wait_before();
    else if (j.w.fmt == WEIGHT_BF16)
        thin_sum<FORM_BF16>(acc, t, j, p, own);
    else if (j.flags & LIN_WIDE)
        thin_sum<FORM_WIDE>(acc, t, j, p, own);
    else
        thin_sum<FORM_FP8>(acc, t, j, p, own);
    if (mine && p.n == 1)
        lin_put_sums<THIN_ROWS>(j, p, acc);
    if (GROUPS == 1)
        return;
    if (mine && p.n > 1)
        lin_share<THIN_ROWS>((float *)(void *)own, acc);
    cluster_sync();
    if (mine && p.n > 1)
        lin_join<THIN_ROWS>(j, p, shared, t.bytes);
    cluster_sync(); /* nobody leaves while others read its sums */
}

static bool thin_takes(const struct lin_input *in, const struct lin_batch *b)
{
    bool takes = in->n_rows <= THIN_ROWS;
    for (int i = 0; i < b->n; i++) {
        const struct lin_job *j = &b->job[i];
        int values = j->w.n_in / slices(*j);
        takes = takes && j->x && (j->x == in->raw || j->x == in->grid) &&
                j->w.n_out % STREAM_ROWS == 0 && values % LIN_BLOCK == 0 &&
                values <= THIN_BLOCKS * LIN_BLOCK;
    }
    return takes;
}

template <int GROUPS> static void launch_thin(struct stream *s, struct thin_job *t, int cluster)
{
    int64_t grid = 0;
    for (int i = 0; i < t->b.n; i++) {
        struct lin_job *j = &t->b.job[i];
        int64_t parts = (int64_t)j->w.n_out / STREAM_ROWS * slices(*j);
        j->blocks = (int)round_up(div_up(parts, GROUPS), cluster);
        grid += j->blocks;
    }
    sm90_launch(thin_kernel<GROUPS>, grid, STREAM_THREADS * GROUPS,
                (size_t)(127 + GROUPS * t->bytes), cluster, s, *t);
}

void lin_make(struct stream *s, const struct lin_input *in, struct lin_batch *b)
{
    struct thin_job t = {};
    int most = 1, blocks = 0;
    if (!thin_takes(in, b)) {
        lin_prepare(s, in);
        lin_run(s, b);
        return;
    }
    t.b = *b;
    t.in = *in;
    t.make = in->x && in->n_rows <= THIN_MAKE && !in->pick; /* which may be on the host */
    t.rows = in->n_rows;
    t.rings = THIN_SLOTS * STREAM_ROWS * STREAM_LINE;
    for (int i = 0; i < b->n; i++) {
        const struct lin_job *j = &b->job[i];
        int n = slices(*j), here = j->w.n_in / n / LIN_BLOCK;
        bool wide = j->w.fmt == WEIGHT_BF16 || j->flags & LIN_WIDE;
        most = FST_MAX(most, n);
        blocks = FST_MAX(blocks, here);
        t.x_bytes = FST_MAX(t.x_bytes, here * LIN_BLOCK * (wide ? 2 : 1) * t.rows);
    }
    t.x_bytes += THIN_ROWS * 16; /* the last piece is read as eight rows */
    t.bytes = (int)round_up(t.rings + t.x_bytes + blocks * THIN_ROWS * 4, 128);
    if (!t.make)
        lin_prepare(s, in);
    if (most == 1)
        launch_thin<1>(s, &t, 1);
    else
        launch_thin<GROUPS_MAX>(s, &t, most > GROUPS_MAX ? 2 : 1);
}

/* ---------------------------------------------------------------- what is fast here */

bool sm90_mat(const struct mat *m, int groups, bool segments)
{
    if (!gpu_there(m))
        return true;
    bool form = m->fmt == WEIGHT_FP8 || m->fmt == WEIGHT_BF16;
    int slices = segments ? (int)KERN_SEGMENTS : 1;
    return form && m->n_in % (128 * slices) == 0 && m->n_out % groups == 0 &&
           (groups == 1 || m->n_out / groups % STREAM_ROWS == 0);
}
