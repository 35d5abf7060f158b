/* wgmma.cuh - Hopper's instructions as functions: warpgroup products with the weights in registers,
 * asynchronous copies, clusters, dependent launches.
 *
 * A warpgroup (128 threads, all of them call) multiplies a tile of 64 weight rows by N input rows.
 * Thread t holds of a step the rows g and g+8 of its warp's 16, g = t%32/4: a[0], a[2] are row g,
 * a[1], a[3] row g+8; with q = t%4, a[0] and a[1] are the step's bytes 4q .. 4q+3, a[2] and a[3] its
 * bytes 16+4q .. 16+4q+3, which stand for 32 E4M3 codes or 16 bf16 values.  Of the sum thread t has
 * d[i] = weight row g + 8*(i/2%2), input row i/4*8 + 2q + i%2.
 *
 * bench/results/h200-wgmma-bits.txt: a value's bits are the same for every N. */
#ifndef FST_KERNELS_SM90_WGMMA_CUH
#define FST_KERNELS_SM90_WGMMA_CUH

#include "kernels/gpu/gpu.h"

/* ---------------------------------------------------------------- products */

/* Input rows of 128 bytes in shared memory, at a multiple of 1024; piece p (16 bytes) of row r lies at
 * piece p ^ r%8 (the 128-byte swizzle).  Add 2 for the next 32 bytes of K. */
GPU_FN uint64_t wgmma_rows(uint32_t shared)
{
    const uint64_t lead = 1, stride = 1024 >> 4, swizzle = 1;
    return (shared & 0x3ffff) >> 4 | lead << 16 | stride << 32 | swizzle << 62;
}

template <int N> struct wgmma;

/* Sums d[i] .. as operands of an instruction, and the first of its operands by number. */
#define WGMMA_D4(d, i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D8(d, i)  WGMMA_D4(d, i), WGMMA_D4(d, i + 4)
#define WGMMA_D16(d, i) WGMMA_D8(d, i), WGMMA_D8(d, i + 8)
#define WGMMA_D32(d, i) WGMMA_D16(d, i), WGMMA_D16(d, i + 16)
#define WGMMA_D64(d, i) WGMMA_D32(d, i), WGMMA_D32(d, i + 32)
#define WGMMA_D12(d, i) WGMMA_D8(d, i), WGMMA_D4(d, i + 8)
#define WGMMA_D24(d, i) WGMMA_D16(d, i), WGMMA_D8(d, i + 16)
#define WGMMA_D28(d, i) WGMMA_D24(d, i), WGMMA_D4(d, i + 24)
#define WGMMA_D48(d, i) WGMMA_D32(d, i), WGMMA_D16(d, i + 32)
#define WGMMA_4         "%0,%1,%2,%3"
#define WGMMA_8         WGMMA_4 ",%4,%5,%6,%7"
#define WGMMA_16        WGMMA_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_32        WGMMA_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_12        WGMMA_8 ",%8,%9,%10,%11"
#define WGMMA_24        WGMMA_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define WGMMA_28        WGMMA_24 ",%24,%25,%26,%27"
#define WGMMA_48        WGMMA_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_64                                                                                   \
    WGMMA_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"                    \
             ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_128                                                                                  \
    WGMMA_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                    \
             ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"                    \
             ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"        \
             ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* d = a b, or d += a b with `more`. */
#define WGMMA(n, list, acc, r0, r1, r2, r3, rb, rm)                                                \
    template <> struct wgmma<n> {                                                                  \
        GPU_FN void fp8(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, int more)           \
        {                                                                                          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #rm ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list         \
                         "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #rb ", p, 1, 1;\n}\n"       \
                         : acc                                                                     \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));         \
        }                                                                                          \
        GPU_FN void bf16(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, int more)          \
        {                                                                                          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #rm ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list         \
                         "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #rb ", p, 1, 1, 0;\n}\n"    \
                         : acc                                                                     \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));         \
        }                                                                                          \
    }
WGMMA(8, WGMMA_4, WGMMA_D4(d, 0), 4, 5, 6, 7, 8, 9);
WGMMA(16, WGMMA_8, WGMMA_D8(d, 0), 8, 9, 10, 11, 12, 13);
WGMMA(24, WGMMA_12, WGMMA_D12(d, 0), 12, 13, 14, 15, 16, 17);
WGMMA(32, WGMMA_16, WGMMA_D16(d, 0), 16, 17, 18, 19, 20, 21);
WGMMA(48, WGMMA_24, WGMMA_D24(d, 0), 24, 25, 26, 27, 28, 29);
WGMMA(56, WGMMA_28, WGMMA_D28(d, 0), 28, 29, 30, 31, 32, 33);
WGMMA(64, WGMMA_32, WGMMA_D32(d, 0), 32, 33, 34, 35, 36, 37);
WGMMA(96, WGMMA_48, WGMMA_D48(d, 0), 48, 49, 50, 51, 52, 53);
WGMMA(128, WGMMA_64, WGMMA_D64(d, 0), 64, 65, 66, 67, 68, 69);

/* Before the first product of a series whose registers were written since; after the last; wait. */
GPU_FN void wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
GPU_FN void wgmma_end(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int LEFT> GPU_FN void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(LEFT) : "memory");
}
/* The compiler must not use these registers before a wait. */
template <int N> GPU_FN void wgmma_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* ---------------------------------------------------------------- copies to shared memory */

GPU_FN uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
GPU_FN void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(to), "l"(from));
}
/* Bytes that are read once a step: they are the first to leave the second-level cache again, where code and what
 * small kernels read stays meanwhile.  `to` must not be a sum with a uniform part that changes in a loop:
 * ptxas 13.0 puts that and the policy into one pair of registers, an illegal instruction. */
#define COPY_ONCE 0x12f0000000000000ull
GPU_FN void copy16_once(uint32_t to, const void *from)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to),
        "l"(from), "l"(COPY_ONCE));
}
GPU_FN void copy8(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n" ::"r"(to), "l"(from));
}
GPU_FN void copy4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(to), "l"(from));
}
GPU_FN void copy4_pair(uint32_t to, const uint8_t *from, bool both)
{
    copy4(to, from);
    if (both)
        copy4(to + 4, from + 4);
}
GPU_FN void copies_end(void) /* of a group */
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
/* All but the last LEFT groups of this thread have arrived. */
template <int LEFT> GPU_FN void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT) : "memory");
}
/* What this thread wrote to shared memory is seen by products that start after the next barrier. */
GPU_FN void shared_to_wgmma(void)
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

/* ---------------------------------------------------------------- clusters */

GPU_FN void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}
/* A float at this block's shared address in block `rank` of the cluster. */
GPU_FN float cluster_load(uint32_t at, int rank)
{
    uint32_t there;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(v) : "r"(there) : "memory");
    return v;
}

/* Four floats there, at a multiple of 16. */
GPU_FN float4 cluster_load4(uint32_t at, int rank)
{
    uint32_t there;
    float4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(there)
                 : "memory");
    return v;
}

/* ---------------------------------------------------------------- launches */

/* gpu_launch_early with clusters of `cluster` blocks. */
template <typename A>
static inline void sm90_launch(void (*kernel)(A), int64_t grid, int threads, size_t shared,
                               int cluster, struct stream *s, const A &a)
{
    FST_ASSERT(grid % cluster == 0);
    gpu_launch_how(kernel, grid, threads, shared, s, a, true, cluster);
}

#endif
