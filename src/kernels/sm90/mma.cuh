/* mma.cuh - matrix instructions of Hopper for the kernels of this folder, and their emulation.
 *
 * A warpgroup is 128 threads (4 waves).  mma_ss and mma_rs add a product of bf16 operands to 64 rows
 * and N columns of fp32 sums: d += A B^T over 16 values of k.  Wave w of the group has rows 16w ..
 * 16w+15; a thread of it (lane l) has of every 8 columns: d[4j], d[4j+1] row l/4, columns 8j + 2(l%4)
 * and the next; d[4j+2], d[4j+3] the same of row l/4 + 8.  A in registers: a[0] row l/4, k = 2(l%4)
 * and the next; a[1] row l/4 + 8; a[2], a[3] the same at k + 8.  So the sums of columns 16s .. 16s+15
 * packed in pairs are the A of step s of the next product.
 *
 * Tiles lie in shared memory as blocks of rows of 128 bytes (64 values), aligned to 1024 bytes, with the 16-byte
 * chunk c of row r at place c ^ r%8 (the "128-byte swizzle").  The same tile is B of S = Q K^T (rows are
 * columns of the product, k along a row) and of O = P V (k down the rows, columns along a row).
 *
 * The sums of a column do not depend on N nor on the other columns: who multiplies what may change with
 * the batch, no bit does.  The emulation adds in another order than a card.  It multiplies when the
 * instruction is issued: what a card does meanwhile (and who may write the tile) it does not check. */
#ifndef FST_KERNELS_SM90_MMA_CUH
#define FST_KERNELS_SM90_MMA_CUH

#include "kernels/gpu/rows.cuh"
#if defined(__CUDACC__)
#include "kernels/sm90/wgmma.cuh"
#endif

enum {
    MMA_GROUP = 128,  /* threads of a warpgroup */
    MMA_BLOCK = 64,   /* values of a row of a block */
    MMA_LINE = 128,   /* bytes of it */
    MMA_ALIGN = 1024, /* of a block, 8 rows */
    MMA_STEP = 32     /* bytes of a line for 16 values */
};

#define SM90_ENTRY(entry)                                                                          \
    extern "C" enum fst_status entry##_sm90(const struct entry##_args *a, struct stream *s)
extern "C" {
size_t attention_sm90_scratch(const struct kernel_limits *l);
bool attention_sm90_fits(int head_dim);
size_t route_sm90_scratch(const struct kernel_limits *l);
size_t seam_sm90_scratch(const struct kernel_limits *l);
size_t draft_chain_sm90_scratch(const struct kernel_limits *l);
enum fst_status attention_sm90(const struct attention_args *a, struct stream *s);
enum fst_status index_topk_sm90(const struct index_topk_args *a, struct stream *s);
enum fst_status route_sm90(const struct route_args *a, struct stream *s);
enum fst_status seam_sm90(const struct seam_args *a, struct stream *s);
enum fst_status draft_chain_sm90(const struct draft_chain_args *a, struct stream *s);
}

GPU_FN uint32_t mma_address(const void *p)
{
#if defined(__CUDACC__)
    return shared_at(p);
#else
    return (uint32_t)(uintptr_t)p;
#endif
}
/* Place of the 16-byte chunk c of row r of a block. */
GPU_FN int mma_place(int r, int c)
{
    return r * MMA_LINE + ((c ^ (r & 7)) << 4);
}

/* The next multiple of MMA_ALIGN: as bytes to add, so that a compiler still sees a place in shared memory
 * and takes the loads and stores of that. */
GPU_FN uint8_t *mma_aligned(uint8_t *p)
{
    return p + (-mma_address(p) & (uint32_t)(MMA_ALIGN - 1));
}

GPU_FN void mma_store16(uint8_t *p, struct gpu_words w)
{
    *(struct gpu_words *)(void *)p = w;
}

GPU_FN struct gpu_words mma_load16(const uint8_t *p) /* shared memory */
{
    return *(const struct gpu_words *)(const void *)p;
}

/* 16 bytes on their way to shared memory; groups of them; all but the last LEFT groups of this thread have
 * arrived.  What lanes of one wave wrote to shared memory is seen by the others behind wave_order. */
#if defined(__CUDACC__)
GPU_FN void mma_copy16(uint8_t *to, const void *from)
{
    copy16(shared_at(to), from);
}
GPU_FN void mma_copies_end(void)
{
    copies_end();
}
template <int LEFT> GPU_FN void mma_copies_wait(void)
{
    copies_wait<LEFT>();
}
GPU_FN void wave_order(void)
{
    __syncwarp();
}
GPU_FN bool wave_any(bool x) /* in a lane of the wave */
{
    return __any_sync(0xffffffffu, x);
}
#else
GPU_FN void mma_copy16(uint8_t *to, const void *from)
{
    mma_store16(to, gpu_load16(from));
}
GPU_FN void mma_copies_end(void) {}
template <int LEFT> GPU_FN void mma_copies_wait(void) {}
GPU_FN void wave_order(void)
{
    gpu_shfl_xor(0, 0);
}
GPU_FN bool wave_any(bool x)
{
    return wave_max(x, GPU_WAVE) > 0;
}
#endif

#if defined(__CUDACC__)
#define MMA_APART                static __device__ __noinline__ /* the rare case: costs no registers elsewhere */
#define MMA_SIZE(card, emulated) (card) /* what takes thousands of blocks to reach: less in tests */

/* Barrier n (1 .. 15) of as many threads, in whole waves.  part_arrive is for those who need not wait. */
GPU_FN void part_sync(int n, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(n), "r"(threads) : "memory");
}
GPU_FN void part_arrive(int n, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(n), "r"(threads) : "memory");
}
/* Registers of a thread from here on: more, or fewer so that other warpgroups of the block may have more.
 * All threads of a warpgroup call. */
template <int N> GPU_FN void more_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> GPU_FN void fewer_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* A tile as the instructions take it: its place in shared memory and two strides. */
typedef uint64_t mma_tile;
GPU_FN mma_tile mma_tile_of(const void *p, uint32_t block_bytes)
{
    uint64_t at = shared_at(p) & 0x3ffff; /* a cluster numbers its blocks above */
    return at >> 4 | (uint64_t)(block_bytes >> 4) << 16 | (uint64_t)(MMA_ALIGN >> 4) << 32 |
           (uint64_t)1 << 62;
}
GPU_FN mma_tile mma_ahead(mma_tile t, int bytes) /* the low half holds the place: no carry */
{
    return (t & ~(uint64_t)UINT32_MAX) | ((uint32_t)t + (uint32_t)(bytes >> 4));
}
/* The same, of which the compiler knows nothing: what follows from it, such as the places of all steps of a
 * product, it keeps in registers otherwise, from one piece or row to the next.  A tile comes out the same
 * in all lanes, so that its places are worked out once a wave: two instructions a step instead of ten. */
GPU_FN mma_tile mma_anew(mma_tile t)
{
    return (t & ~(uint64_t)UINT32_MAX) | gpu_shfl((uint32_t)t, 0);
}
GPU_FN int mma_anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Bytes on their way to shared memory by the copy engine, a multiple of 16 from and to such: mma_copied waits for
 * those that a barrier of mma_expect counts, its first use.  Of `places` barriers, by one thread, with a
 * block's barrier behind. */
GPU_FN void mma_copy_barriers(uint64_t *bar, int places)
{
    for (int i = 0; i < places; i++)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_at(bar + i)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
GPU_FN void mma_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_at(bar)),
                 "r"(bytes)
                 : "memory");
}
GPU_FN void mma_bulk(uint8_t *to, const void *from, int bytes, uint64_t *bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_at(to)),
        "l"(from), "r"(bytes), "r"(shared_at(bar))
        : "memory");
}
GPU_FN void mma_copied(uint64_t *bar, int phase)
{
    asm volatile("{\n.reg .pred p;\nwait: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@p bra.uni done;\nbra.uni wait;\ndone:\n}" ::"r"(shared_at(bar)),
                 "r"(phase)
                 : "memory");
}
GPU_FN void mma_copied_all(uint64_t *bar, int phase)
{
    mma_copied(bar, phase);
}
/* The other way, by one thread behind shared_to_wgmma: on its way; shared memory may be overwritten, global memory is
 * written. */
GPU_FN void mma_bulk_back(void *to, const uint8_t *from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_at(from)), "r"(bytes)
                 : "memory");
}
GPU_FN void mma_back_read(void)
{
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
GPU_FN void mma_back_done(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* A of a step from rows of shared memory, `pitch` bytes each: of 16 heads and 16 values at p. */
GPU_FN void mma_fragment(const uint8_t *p, int pitch, uint32_t (&a)[4])
{
    int lane = gpu_lane();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_at(p) + (uint32_t)(lane % 16 * pitch + lane / 16 * 16))
                 : "memory");
}

/* S = Q K^T: 32 columns, k along the rows of both tiles. */
GPU_FN void mma_ss(float (&d)[16], mma_tile a, mma_tile b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" WGMMA_16
                 "}, %16, %17, 1, 1, 1, 0, 0;"
                 : WGMMA_D16(d, 0)
                 : "l"(a), "l"(b));
}
/* A in registers; DOWN: k runs down the rows of b, columns along them. */
template <int DOWN> GPU_FN void mma_rs(float (&d)[16], const uint32_t (&a)[4], mma_tile b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" WGMMA_16
                 "}, {%16, %17, %18, %19}, %20, 1, 1, 1, %21;"
                 : WGMMA_D16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(DOWN));
}
template <int DOWN> GPU_FN void mma_rs(float (&d)[32], const uint32_t (&a)[4], mma_tile b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                 : WGMMA_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(DOWN));
}
template <int DOWN> GPU_FN void mma_rs(float (&d)[64], const uint32_t (&a)[4], mma_tile b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
                 : WGMMA_D64(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(DOWN));
}
template <int DOWN> GPU_FN void mma_rs(float (&d)[128], const uint32_t (&a)[4], mma_tile b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" WGMMA_128
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, %133;"
                 : WGMMA_D64(d, 0), WGMMA_D64(d, 64)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(DOWN));
}

/* d += A B by one wave: 16 rows, 8 columns, 16 values of k.  A as of a warpgroup's wave; b[0]: column
 * l/4, k = 2(l%4) and the next, b[1] the same at k + 8; d as the first four of a warpgroup's. */
GPU_FN void mma_16x8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two bf16 times a power of two. */
GPU_FN uint32_t mma_times(uint32_t pair, uint32_t both)
{
    uint32_t x;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(pair), "r"(both));
    return x;
}
/* Two floats, rounded. */
GPU_FN uint32_t mma_pair(float low, float high)
{
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}
/* Bytes of {u, v}, u first, that the digits of `select` name. */
GPU_FN uint32_t mma_bytes(uint32_t u, uint32_t v, uint32_t select)
{
    return __byte_perm(u, v, select);
}
/* The same of c and of zeros; digits from 8 on: the sign of byte digit - 8, eight times. */
template <int SELECT> GPU_FN uint32_t mma_bytes_signed(uint32_t c)
{
    uint32_t x;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(x) : "r"(c), "n"(SELECT));
    return x;
}
/* The lesser of the low halves, of the high halves. */
GPU_FN uint32_t mma_least(uint32_t u, uint32_t v)
{
    uint32_t x;
    asm("min.u16x2 %0, %1, %2;" : "=r"(x) : "r"(u), "r"(v));
    return x;
}
/* 2^x, x <= 0; below 2^-126: 0. */
GPU_FN float mma_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else
#define MMA_APART                static
#define MMA_SIZE(card, emulated) (emulated)

struct mma_tile {
    const uint8_t *p;
    uint32_t block_bytes;
};
GPU_FN mma_tile mma_tile_of(const void *p, uint32_t block_bytes)
{
    struct mma_tile t = {(const uint8_t *)p, block_bytes};
    return t;
}
GPU_FN mma_tile mma_ahead(mma_tile t, int bytes)
{
    t.p += bytes;
    return t;
}
GPU_FN void part_sync(int n, int threads)
{
    emulate_part_barrier(n, threads, true);
}
GPU_FN void part_arrive(int n, int threads)
{
    emulate_part_barrier(n, threads, false);
}
template <int N> GPU_FN void more_registers(void) {}
template <int N> GPU_FN void fewer_registers(void) {}
GPU_FN mma_tile mma_anew(mma_tile t)
{
    return t;
}
GPU_FN int mma_anew(int x)
{
    return x;
}
/* Copies are done when they are issued; what another thread issued is there behind a barrier of both. */
GPU_FN void mma_copy_barriers(uint64_t *, int) {}
GPU_FN void mma_expect(uint64_t *, int) {}
GPU_FN void mma_bulk(uint8_t *to, const void *from, int bytes, uint64_t *)
{
    memcpy(to, from, (size_t)bytes);
}
GPU_FN void mma_copied(uint64_t *, int) {}
GPU_FN void mma_bulk_back(void *to, const uint8_t *from, int bytes)
{
    memcpy(to, from, (size_t)bytes);
}
GPU_FN void mma_back_read(void) {}
GPU_FN void mma_back_done(void) {}
GPU_FN void mma_copied_all(uint64_t *, int) /* every thread of the block waits */
{
    gpu_sync();
}
GPU_FN void mma_fragment(const uint8_t *p, int pitch, uint32_t (&a)[4])
{
    for (int i = 0; i < 4; i++)
        memcpy(a + i, p + (gpu_lane() / 4 + i % 2 * 8) * pitch + i / 2 * 16 + gpu_lane() % 4 * 4,
               4);
}
/* As in wgmma.cuh. */
GPU_FN void copies_end(void) {}
template <int LEFT> GPU_FN void copies_wait(void) {}
GPU_FN void shared_to_wgmma(void) {}
GPU_FN void wgmma_begin(void) {}
GPU_FN void wgmma_end(void) {}
template <int LEFT> GPU_FN void wgmma_wait(void) {}
template <int N> GPU_FN void wgmma_hold(float (&)[N]) {}

/* Value k of column n: address bits 4..6 are crossed with bits 7..9. */
GPU_FN float mma_value(struct mma_tile t, bool down, int n, int k)
{
    uintptr_t at = (uintptr_t)t.p;
    at += down ? (uintptr_t)(n / 64) * t.block_bytes + (uintptr_t)(n % 64 * 2 + k * MMA_LINE)
               : (uintptr_t)(n * MMA_LINE + k * 2);
    at ^= (at >> 7 & 7) << 4;
    uint16_t bits;
    memcpy(&bits, (const void *)at, 2);
    return gpu_from_bf16(bits);
}
/* d += rows x0 and x1 (16 values) times the columns of b. */
GPU_FN void mma_add(float *d, int columns, const float *x0, const float *x1, struct mma_tile b,
                    bool down)
{
    for (int j = 0; j < columns / 8; j++)
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 16; k++) {
                float y = mma_value(b, down, 8 * j + gpu_lane() % 4 * 2 + i, k);
                d[4 * j + i] = fmaf(x0[k], y, d[4 * j + i]);
                d[4 * j + 2 + i] = fmaf(x1[k], y, d[4 * j + 2 + i]);
            }
}
GPU_FN void mma_ss(float (&d)[16], struct mma_tile a, struct mma_tile b)
{
    float x[2][16];
    int row = gpu_wave() % 4 * 16 + gpu_lane() / 4;
    for (int i = 0; i < 32; i++)
        x[i / 16][i % 16] = mma_value(a, false, row + i / 16 * 8, i % 16);
    mma_add(d, 32, x[0], x[1], b, false);
}
template <int DOWN, int N> GPU_FN void mma_rs(float (&d)[N], const uint32_t (&a)[4], mma_tile b)
{
    float x[2][16];
    for (int i = 0; i < 16; i++) { /* register i/4 of lane i%4 of the four that have the rows */
        uint32_t pair = gpu_shfl(a[i / 4], gpu_lane() / 4 * 4 + i % 4);
        int k = i / 8 * 8 + i % 4 * 2;
        x[i / 4 % 2][k] = gpu_low(pair);
        x[i / 4 % 2][k + 1] = gpu_high(pair);
    }
    mma_add(d, 2 * N, x[0], x[1], b, DOWN);
}
GPU_FN void mma_16x8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    for (int k = 0; k < 16; k += 2) {
        int lane = gpu_lane(), half = k % 8 / 2;
        uint32_t x[2], y[2];
        for (int i = 0; i < 2; i++) {
            x[i] = gpu_shfl(a[k / 8 * 2 + i], lane / 4 * 4 + half);
            y[i] = gpu_shfl(b[k / 8], (lane % 4 * 2 + i) * 4 + half);
        }
        for (int i = 0; i < 4; i++) {
            d[i] = fmaf(gpu_low(x[i / 2]), gpu_low(y[i % 2]), d[i]);
            d[i] = fmaf(gpu_high(x[i / 2]), gpu_high(y[i % 2]), d[i]);
        }
    }
}
GPU_FN uint32_t mma_pair(float low, float high)
{
    return gpu_pair(gpu_bf16(low), gpu_bf16(high));
}
GPU_FN uint32_t mma_times(uint32_t pair, uint32_t both)
{
    return mma_pair(gpu_low(pair) * gpu_low(both), gpu_high(pair) * gpu_high(both));
}
GPU_FN uint32_t mma_bytes(uint32_t u, uint32_t v, uint32_t select)
{
    uint64_t both = (uint64_t)v << 32 | u;
    uint32_t x = 0;
    for (int i = 0; i < 4; i++)
        x |= (uint32_t)(both >> (8 * (select >> (4 * i) & 7)) & 255) << (8 * i);
    return x;
}
template <int SELECT> GPU_FN uint32_t mma_bytes_signed(uint32_t c)
{
    uint32_t x = 0;
    for (int i = 0; i < 4; i++) {
        int digit = SELECT >> (4 * i) & 15;
        uint32_t byte = digit & 4 ? 0 : c >> (8 * (digit & 3)) & 255;
        x |= (digit & 8 ? (byte >> 7) * 255 : byte) << (8 * i);
    }
    return x;
}
GPU_FN uint32_t mma_least(uint32_t u, uint32_t v)
{
    return FST_MIN(u & 65535, v & 65535) | FST_MIN(u >> 16, v >> 16) << 16;
}
GPU_FN float mma_exp2(float x)
{
    return exp2f(x);
}
#endif

/* Two E4M3 codes in the high bytes of the halves, times 2^(code - 127): moved into bf16 they are 2^-120
 * of their value, subnormals too.  Two steps, so that no power leaves the range: up to 2^71. */
GPU_FN uint32_t mma_codes(uint32_t halves, uint32_t scale)
{
    uint32_t x = (halves & 0x80008000u) | (halves >> 4 & 0x07f007f0u);
    return mma_times(mma_times(x, 0x5f805f80u), scale); /* 2^64 */
}
/* The second factor: 2^(code - 127 + 56) twice.  codes: the code in both halves. */
GPU_FN uint32_t mma_code_scale(uint32_t codes)
{
    return mma_least(codes, 198 * 0x10001) * 128 + 56 * 0x00800080;
}

/* Codes at bytes `first` and the next of c as bf16, 2^-120 of their value.  The low half's sign is in the whole byte
 * above it, so that one arithmetic shift moves both halves: three instructions, of which a scheduler
 * starts one in two clocks. */
template <int FIRST> GPU_FN uint32_t mma_two_codes(uint32_t c)
{
    uint32_t x = mma_bytes_signed<0x1804 + 0x1110 * FIRST>(c);
    return (uint32_t)((int32_t)x >> 4) & 0x87f087f0u;
}
/* 16 E4M3 codes as two chunks, times a power of two, twice as bf16. */
GPU_FN void mma_unpack_by(const struct gpu_words &c, uint32_t scale, struct gpu_words out[2])
{
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        out[i / 2].w[i % 2 * 2] = mma_times(mma_two_codes<0>(c.w[i]), scale);
        out[i / 2].w[i % 2 * 2 + 1] = mma_times(mma_two_codes<2>(c.w[i]), scale);
    }
}
/* For 2^(code - 127), codes: the code in both halves.  Rows have codes of about 120: up to MMA_CODE one factor does,
 * 2^(code - 127 + 120), which is mma_scale; what is beyond needs mma_rest as a second one.  Beyond 198 they count
 * as 198.  No branches: keys are unpacked several at a time, each some 200 clocks from its first instruction
 * to its last. */
enum { MMA_CODE = 134, MMA_CODE_LAST = 198 };
GPU_FN uint32_t mma_scale(uint32_t codes)
{
    return mma_least(codes, MMA_CODE * 0x10001) * 128 + 120 * 0x00800080;
}
GPU_FN bool mma_has_rest(uint32_t codes)
{
    return codes > MMA_CODE * 0x10001;
}
GPU_FN void mma_rest(uint32_t codes, struct gpu_words *x)
{
    uint32_t scale =
        (mma_least(codes, MMA_CODE_LAST * 0x10001) - MMA_CODE * 0x10001) * 128 + 127 * 0x00800080;
    for (int i = 0; i < 4; i++)
        x->w[i] = mma_times(x->w[i], scale);
}

#endif
