/* gpu.h - the language of kernels/gpu: one source for CUDA, HIP and a test emulation on the CPU.
 *
 * A kernel is a `GPU_KERNEL void f(struct some_args a)`, launched by gpu_launch(f, grid, threads,
 * shared bytes, stream, args); its launcher is GPU_ENTRY(entry), with the contract of kernels.h.
 * Everything here is portable: no matrix instructions, no asynchronous copies, waves of 32 or 64
 * lanes (GPU_WAVE).  The files end in .cu; the emulation (emulate.h) compiles them as C++ and runs
 * the threads of a block as fibers, so that logic, barriers and wave widths are tested where there
 * is no card.
 *
 * Rules
 *  - C++ without library: structs, functions, templates on numbers.
 *  - All threads of a block reach every gpu_sync, all lanes of a wave every wave_ function (the
 *    emulation stops when they do not).  Threads whose work has run out stay to the end.
 *  - Sums have one order that depends on shapes alone: lane by lane, then wave_sum, then waves in
 *    order.  No float atomics.  Nothing is contracted (-fmad=false): a fused multiply-add is fmaf.
 *  - Weights and activations are 16-byte aligned (the device's loader and model_open see to it);
 *    KV rows too, by their format.
 *  - Arrays of `struct rows` and other small ones may lie in host memory that the device reads over
 *    the bus (device.h, shared memory): read each element once.
 *  - 64-bit offsets into anything that grows with rows, slots or vocabulary.
 *  - Launches may be recorded and run again (device.h): what a launcher reads of the step on the host
 *    is n_rows, n_spans and which pointers there are; everything else is read by the kernel.
 *
 * Early starts.  gpu_launch_early lets a kernel start while the one in front of it still runs (from
 * compute capability 9.0; elsewhere it is gpu_launch).  On an H200 a small dependent kernel in a graph
 * costs 0.82 .. 0.97 us so, and 1.1 .. 1.3 us otherwise.
 *  - Such a kernel calls gpu_wait_before, in every thread and before any return, and until then neither
 *    reads what an earlier kernel or copy of the stream wrote nor writes anything global.  Weights may be
 *    read before; so may struct rows and its pages, which copies alone write: the first launch behind a
 *    copy starts when that is over, and those behind it later still.
 *  - gpu_let_next says that the next kernel may start, which happens once all blocks of this one have
 *    said so or ended.  It promises nothing about what was written.  Usually first thing:
 *    gpu_start is both.
 *  - The wait is for the one kernel in front, to its end and with all that it wrote.  That this covers
 *    everything before it as well is only true when that kernel waited too: so a kernel without
 *    the wait is launched with gpu_launch, which begins after everything is over, and one with it may
 *    follow anything: a kernel with or without the wait, a copy, nothing.  */
#ifndef FST_KERNELS_GPU_H
#define FST_KERNELS_GPU_H

/* The runtimes first: base/banned.h forbids names that their headers mention. */
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#endif
#include <math.h>
#include <string.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define FILL_FN static __host__ __device__ __forceinline__
#else
#define FILL_FN static inline __attribute__((unused))
#endif
extern "C" {
#include "kernels/kernels.h"
#include "kernels/rows.h"
}

/* ---------------------------------------------------------------- the three compilers */

#if defined(__CUDACC__) || defined(__HIPCC__)
#define GPU_KERNEL static __global__
#define GPU_FN     static __device__ __forceinline__
#define GPU_BOTH   static __host__ __device__ __forceinline__
#define GPU_SHARED __shared__
#ifndef GPU_NAME /* kernels/sm90 compiles some files once more under its own names */
#define GPU_NAME(entry) entry##_gpu
#endif
/* the block's dynamic shared memory, as an array of T */
#define GPU_DYNAMIC(T, name)                                                                       \
    extern __shared__ __attribute__((aligned(16))) unsigned char gpu_dynamic_bytes[];              \
    T *name = (T *)gpu_dynamic_bytes
#define gpu_sync() __syncthreads()
#endif

/* Loops whose loads are to be under way together; whose turns are not to share registers; registers for so
 * many blocks a processor. */
#if defined(__CUDACC__) || defined(__HIPCC__)
#define GPU_UNROLL                  _Pragma("unroll")
#define GPU_ROLLED                  _Pragma("unroll 1")
#define GPU_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#else
#define GPU_UNROLL
#define GPU_ROLLED
#define GPU_BOUNDS(threads, blocks)
#endif

#if defined(__CUDACC__) && defined(FST_TIMELINE)
#include "kernels/gpu/timeline.cuh"
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
GPU_FN void gpu_wait_before(void)
{
#if defined(FST_TIMELINE)
    uint64_t begin = timeline_now();
#endif
    asm volatile("griddepcontrol.wait;" ::: "memory");
#if defined(FST_TIMELINE)
    timeline_put(begin, timeline_now(), 0);
#endif
}
GPU_FN void gpu_let_next(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#elif defined(__CUDACC__) || defined(__HIPCC__)
GPU_FN void gpu_wait_before(void) {}
GPU_FN void gpu_let_next(void) {}
#endif

#if defined(__CUDACC__)
#define GPU_WAVE 32
typedef cudaStream_t gpu_queue;
GPU_FN uint32_t gpu_shfl_xor(uint32_t v, int mask)
{
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
GPU_FN uint32_t gpu_shfl(uint32_t v, int lane)
{
    return __shfl_sync(0xffffffffu, v, lane);
}
#elif defined(__HIPCC__)
#define GPU_WAVE 64
typedef hipStream_t gpu_queue;
GPU_FN uint32_t gpu_shfl_xor(uint32_t v, int mask)
{
    return (uint32_t)__shfl_xor((int)v, mask, 64);
}
GPU_FN uint32_t gpu_shfl(uint32_t v, int lane)
{
    return (uint32_t)__shfl((int)v, lane, 64);
}
#else
#include "kernels/gpu/emulate.h"
#endif
GPU_FN void gpu_start(void)
{
    gpu_let_next();
    gpu_wait_before();
}

#define GPU_ENTRY(entry)                                                                           \
    extern "C" enum fst_status GPU_NAME(entry)(const struct entry##_args *a, struct stream *s)

#if defined(__CUDACC__)
/* Dynamic shared memory beyond 48 KB is asked for once per kernel and size, not at each launch. */
static inline void gpu_allow_shared(const void *kernel, size_t bytes)
{
    enum { KERNELS = 32 };
    static thread_local struct {
        const void *kernel;
        size_t bytes;
    } allowed[KERNELS];
    int i = 0;
    if (bytes <= 48 << 10)
        return;
    while (i < KERNELS - 1 && allowed[i].kernel && allowed[i].kernel != kernel)
        i++;
    if (allowed[i].kernel == kernel && allowed[i].bytes >= bytes)
        return;
    allowed[i] = {kernel, bytes};
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
#endif

/* cluster: blocks of one (Hopper); 0: no clusters. */
template <typename A>
static inline void gpu_launch_how(void (*kernel)(A), int64_t grid, int threads, size_t shared,
                                  struct stream *s, const A &a, bool early, int cluster)
{
    if (grid <= 0)
        return;
    FST_ASSERT(grid <= INT32_MAX);
#if defined(__CUDACC__)
#if defined(FST_TIMELINE)
    timeline_start();
#endif
    cudaLaunchAttribute how[2] = {};
    cudaLaunchConfig_t c = {};
    gpu_allow_shared((const void *)kernel, shared);
    c.gridDim = dim3((unsigned)grid);
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = shared;
    c.stream = (gpu_queue)s->queue;
    c.attrs = how;
    if (cluster) {
        how[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        how[c.numAttrs++].val.clusterDim = {(unsigned)cluster, 1, 1};
    }
    if (early && s->early) {
        how[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        how[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    (void)cudaLaunchKernelEx(&c, kernel, a);
#elif defined(__HIPCC__)
    kernel<<<dim3((unsigned)grid), dim3((unsigned)threads), shared, (gpu_queue)s->queue>>>(a);
#else
    (void)s;
    emulate_launch(kernel, grid, threads, shared, a, early);
#endif
    (void)early;
    (void)cluster;
}

/* Launch, not wait.  What goes wrong is reported by gpu_done at the end of the launcher. */
template <typename A>
static inline void gpu_launch(void (*kernel)(A), int64_t grid, int threads, size_t shared,
                              struct stream *s, const A &a)
{
    gpu_launch_how(kernel, grid, threads, shared, s, a, false, 0);
}

/* The same for a kernel that calls gpu_wait_before: see above. */
template <typename A>
static inline void gpu_launch_early(void (*kernel)(A), int64_t grid, int threads, size_t shared,
                                    struct stream *s, const A &a)
{
    gpu_launch_how(kernel, grid, threads, shared, s, a, true, 0);
}

static inline enum fst_status gpu_done(const char *entry)
{
#if defined(__CUDACC__)
    cudaError_t e = cudaPeekAtLastError();
    if (e != cudaSuccess)
        return fst_error(FST_EINTERNAL, "%s: launch failed: %s", entry, cudaGetErrorString(e));
#elif defined(__HIPCC__)
    hipError_t e = hipPeekAtLastError();
    if (e != hipSuccess)
        return fst_error(FST_EINTERNAL, "%s: launch failed: %s", entry, hipGetErrorString(e));
#else
    (void)entry;
#endif
    return FST_OK;
}

/* Pieces of the stream's scratch, 256-byte aligned, taken by the launcher. */
struct gpu_cut {
    uint8_t *p;
    size_t left;
};
static inline struct gpu_cut gpu_scratch(struct stream *s)
{
    struct gpu_cut c = {s->scratch, s->scratch_bytes};
    return c;
}
static inline size_t gpu_piece(int64_t n, size_t size)
{
    return (size_t)round_up(n * (int64_t)size, 256);
}
template <typename T> static inline T *gpu_take(struct gpu_cut *c, int64_t n)
{
    size_t bytes = gpu_piece(n, sizeof(T));
    FST_ASSERT(bytes <= c->left);
    T *p = (T *)(void *)c->p;
    c->p += bytes;
    c->left -= bytes;
    return p;
}

static inline bool gpu_there(const struct mat *m)
{
    return m && m->fmt != WEIGHT_NONE;
}

/* ---------------------------------------------------------------- lanes, waves, blocks */

GPU_FN int gpu_lane(void)
{
    return (int)(threadIdx.x % GPU_WAVE);
}
GPU_FN int gpu_wave(void)
{
    return (int)(threadIdx.x / GPU_WAVE);
}
GPU_FN int gpu_waves(void)
{
    return (int)(blockDim.x / GPU_WAVE);
}

GPU_FN uint32_t gpu_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
GPU_FN float gpu_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
GPU_FN float wave_xor(float v, int mask)
{
    return gpu_float(gpu_shfl_xor(gpu_bits(v), mask));
}
/* Over the wave, or each `lanes` neighbouring lanes of it (a power of two), in all of them;
 * neighbours first, so the order is one tree. */
GPU_FN float wave_sum(float v, int lanes = GPU_WAVE)
{
    for (int m = 1; m < lanes; m *= 2)
        v += wave_xor(v, m);
    return v;
}
GPU_FN float wave_max(float v, int lanes = GPU_WAVE)
{
    for (int m = 1; m < lanes; m *= 2)
        v = fmaxf(v, wave_xor(v, m));
    return v;
}
/* Sum over the block in every thread: waves in order.  `part`: one float per wave, shared; all
 * threads call, and the next use of `part` needs no barrier of the caller's. */
GPU_FN float block_sum(float v, float *part)
{
    v = wave_sum(v);
    gpu_sync();
    if (gpu_lane() == 0)
        part[gpu_wave()] = v;
    gpu_sync();
    float sum = 0;
    for (int w = 0; w < gpu_waves(); w++)
        sum += part[w];
    return sum;
}
GPU_FN float block_max(float v, float *part)
{
    v = wave_max(v);
    gpu_sync();
    if (gpu_lane() == 0)
        part[gpu_wave()] = v;
    gpu_sync();
    float top = part[0];
    for (int w = 1; w < gpu_waves(); w++)
        top = fmaxf(top, part[w]);
    return top;
}

/* Sum of v over the lanes up to this one. */
GPU_FN uint32_t wave_sum_to(uint32_t v)
{
    int lane = gpu_lane();
    for (int m = 1; m < GPU_WAVE; m *= 2) {
        uint32_t left = gpu_shfl(v, (lane - m) & (GPU_WAVE - 1));
        v += lane >= m ? left : 0;
    }
    return v;
}

/* Sum of v over the threads before this one; all: over the block.  Every wave adds up the waves by lanes;
 * `part` as of block_sum. */
GPU_FN uint32_t block_sum_before(uint32_t v, uint32_t *part, uint32_t *all)
{
    uint32_t sum = wave_sum_to(v);
    int lane = gpu_lane(), wave = gpu_wave();
    gpu_sync();
    if (lane == GPU_WAVE - 1)
        part[wave] = sum;
    gpu_sync();
    uint32_t waves = wave_sum_to(lane < gpu_waves() ? part[lane] : 0);
    uint32_t before = gpu_shfl(waves, (wave - 1) & (GPU_WAVE - 1));
    *all = gpu_shfl(waves, GPU_WAVE - 1);
    return (wave ? before : 0) + sum - v;
}

/* ---------------------------------------------------------------- numbers, as in ref/numeric.c */

/* Nearest bf16, ties to even, as a float; and its 16 bits. */
GPU_FN float gpu_bf16(float x)
{
    uint32_t u = gpu_bits(x);
    return gpu_float((u + ((u >> 16) & 1) + 0x7fff) & 0xffff0000u);
}
GPU_FN uint16_t gpu_bf16_bits(float x)
{
    return (uint16_t)(gpu_bits(gpu_bf16(x)) >> 16);
}
GPU_FN float gpu_from_bf16(uint32_t bits)
{
    return gpu_float(bits << 16);
}
/* Two bf16 values in a word as floats, and back. */
GPU_FN float gpu_low(uint32_t pair)
{
    return gpu_float(pair << 16);
}
GPU_FN float gpu_high(uint32_t pair)
{
    return gpu_float(pair & 0xffff0000u);
}
GPU_FN uint32_t gpu_pair(float low, float high) /* both are bf16 values */
{
    return gpu_bits(low) >> 16 | (gpu_bits(high) & 0xffff0000u);
}
/* The nearest two, in one instruction where there is one. */
GPU_FN uint32_t gpu_nearest_pair(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return gpu_pair(gpu_bf16(low), gpu_bf16(high));
#endif
}
GPU_FN float gpu_e8m0(uint32_t b)
{
    return gpu_float(b ? b << 23 : 0x00400000u);
}
/* E4M3, exact, subnormals too. */
GPU_FN float gpu_e4m3(uint32_t c)
{
    return gpu_float(((c & 0x80) << 24) | ((c & 0x7f) << 20)) * 0x1p120f;
}
GPU_FN float gpu_e2m1(uint32_t nibble)
{
    uint32_t m = nibble & 7, sign = (nibble & 8) << 28;
    /* codes 2..7 are fp32 exponent and top mantissa bit; 0 and 1 are 0 and 0.5 */
    uint32_t u = m >= 2 ? (126u << 23) + (m << 22) : m ? 126u << 23 : 0;
    return gpu_float(u | sign);
}
GPU_FN uint32_t gpu_e4m3_encode(float x)
{
    uint32_t sign = gpu_bits(x) >> 31 << 7;
    float a = fminf(fabsf(x), 448.0f);
    if (a < 0x1p-6f)
        return sign | (uint32_t)rintf(a * 0x1p9f);
    uint32_t u = gpu_bits(a);
    u += 0x7ffffu + ((u >> 20) & 1);
    return sign | ((u >> 20) - (120u << 3));
}
GPU_FN uint32_t gpu_e2m1_encode(float x)
{
    uint32_t sign = gpu_bits(x) >> 31 << 3;
    float a = fabsf(x);
    uint32_t c = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                 (a >= 3.5f) + (a > 5.0f);
    return sign | c;
}
/* E8M0 code of 2^ceil(log2 t). */
GPU_FN uint32_t gpu_scale_code(float t)
{
    uint32_t u = gpu_bits(t);
    return ((u >> 23) & 255) + ((u & 0x7fffff) != 0);
}
/* Code of the scale of a block of E4M3 values with this largest magnitude; of E2M1 values. */
GPU_FN uint32_t gpu_fp8_code(float amax)
{
    return gpu_scale_code(fmaxf(amax, 1e-4f) * (1.0f / 448.0f));
}
GPU_FN uint32_t gpu_fp4_code(float amax)
{
    return gpu_scale_code(fmaxf(amax, 6 * 0x1p-126f) * (1.0f / 6.0f));
}
/* x on the grid of that code. */
GPU_FN float gpu_fp8_round(float x, uint32_t code)
{
    return gpu_e4m3(gpu_e4m3_encode(x * gpu_e8m0(254 - code))) * gpu_e8m0(code);
}
/* By adding and taking away what has the grid's step in its last bit: 1/2 below 2, then twice that from 2
 * and from 4 on.  Ties to even, as gpu_e2m1_encode has them. */
GPU_FN float gpu_fp4_round(float x, uint32_t code)
{
    float a = fminf(fabsf(x * gpu_e8m0(254 - code)), 6.0f);
    uint32_t power = gpu_bits(a) & 0x7f800000u;
    float far = gpu_float((power < 0x3f800000u ? 0x3f800000u : power) + (22u << 23));
    a = (a + far) - far;
    return gpu_float(gpu_bits(a) | (gpu_bits(x) & 0x80000000u)) * gpu_e8m0(code);
}
/* A number in the order of the floats: zeros equal, what is no number lowest, 0. */
GPU_FN uint32_t gpu_ordered(float x)
{
    uint32_t u = gpu_bits(x + 0.0f); /* one zero */
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return x != x ? 0 : u;
}
/* cos and sin to 2^-50 for angles below 2^30: fdlibm's polynomials within a quarter turn.  Those of CUDA
 * load their coefficients from memory, twice, which costs 0.7 us where somebody waits. */
GPU_FN void gpu_sincos(double angle, double *c, double *s)
{
    double n = rint(angle * 0x1.45f306dc9c883p-1); /* quarter turns */
    double r = fma(-n, 0x1.1a62633145c07p-54, fma(-n, 0x1.921fb54442d18p+0, angle)), z = r * r;
    double p = fma(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08);
    double q = fma(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09);
    p = fma(z, fma(z, p, 2.75573137070700676789e-06), -1.98412698298579493134e-04);
    q = fma(z, fma(z, q, -2.75573143513906633035e-07), 2.48015872894767294178e-05);
    p = fma(z, fma(z, p, 8.33333333332248946124e-03), -1.66666666666666324348e-01);
    q = fma(z, fma(z, q, -1.38888888888741095749e-03), 4.16666666666666019037e-02);
    double sine = fma(r * z, p, r), cosine = fma(z * z, q, fma(z, -0.5, 1.0));
    int turn = (int)n & 3;
    double a = turn & 1 ? sine : cosine, b = turn & 1 ? cosine : sine;
    *c = turn == 1 || turn == 2 ? -a : a;
    *s = turn & 2 ? -b : b;
}
/* cos and sin of the fp32 angle pos*freq, as the published table has them. */
GPU_FN void gpu_angle(float cs[2], float freq, int pos)
{
    double angle = (double)((float)pos * freq), c, s;
    gpu_sincos(angle, &c, &s);
    cs[0] = (float)c;
    cs[1] = (float)s;
}
GPU_FN float gpu_sigmoid(float z)
{
    return 1.0f / (1.0f + expf(-z));
}
/* 1/x to 1 ulp in a few cycles; x from 2^-126 to 2^126. */
GPU_FN float gpu_inverse(float x)
{
#if defined(__CUDACC__)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(__HIPCC__)
    return __builtin_amdgcn_rcpf(x);
#else
    return 1.0f / x;
#endif
}
/* 1/sqrt(x) to 2 ulp, for x as above. */
GPU_FN float gpu_inverse_root(float x)
{
#if defined(__CUDACC__)
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(__HIPCC__)
    return __builtin_amdgcn_rsqf(x);
#else
    return 1.0f / sqrtf(x);
#endif
}

/* ---------------------------------------------------------------- 16 bytes at once */

struct alignas(16) gpu_words {
    uint32_t w[4];
};
struct alignas(16) gpu_quad {
    float v[4];
};
template <typename T> GPU_FN T gpu_load_as(const void *p)
{
#if defined(__CUDACC__) || defined(__HIPCC__)
    return *(const T *)p;
#else
    T v;
    FST_ASSERT((uintptr_t)p % alignof(T) == 0); /* as a card would */
    memcpy(&v, p, sizeof v);
    return v;
#endif
}
GPU_FN struct gpu_words gpu_load16(const void *p)
{
    return gpu_load_as<struct gpu_words>(p);
}
GPU_FN struct gpu_quad gpu_load4(const float *p)
{
    return gpu_load_as<struct gpu_quad>(p);
}
GPU_FN void gpu_store4(float *p, struct gpu_quad q)
{
#if defined(__CUDACC__) || defined(__HIPCC__)
    *(float4 *)(void *)p = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
#else
    *(struct gpu_quad *)(void *)p = q;
#endif
}
/* The line of p on its way to the second-level cache.  Of weights: early, since they come from memory. */
GPU_FN void gpu_prefetch(const void *p)
{
#if defined(__CUDACC__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
    (void)p;
#endif
}
/* Values at .. at+7 of BF16 or F32 data; at is a multiple of 8. */
GPU_FN void gpu_load8(float v[8], enum weight_format fmt, const void *data, int64_t at)
{
    if (fmt == WEIGHT_F32) {
        struct gpu_quad a = gpu_load4((const float *)data + at);
        struct gpu_quad b = gpu_load4((const float *)data + at + 4);
        for (int i = 0; i < 4; i++) {
            v[i] = a.v[i];
            v[4 + i] = b.v[i];
        }
        return;
    }
    struct gpu_words q = gpu_load16((const uint16_t *)data + at);
    for (int i = 0; i < 4; i++) {
        v[2 * i] = gpu_low(q.w[i]);
        v[2 * i + 1] = gpu_high(q.w[i]);
    }
}
/* Value `at` of BF16 or F32 data. */
GPU_FN float gpu_load1(enum weight_format fmt, const void *data, int64_t at)
{
    return fmt == WEIGHT_F32 ? gpu_load_as<float>((const float *)data + at)
                             : gpu_from_bf16(gpu_load_as<uint16_t>((const uint16_t *)data + at));
}

/* ---------------------------------------------------------------- blocks (files of this folder) */

#define GPU_DECLARE(entry, args)                                                                   \
    extern "C" enum fst_status GPU_NAME(entry)(const args *a, struct stream *s);
KERNELS_MAP(GPU_DECLARE)
#undef GPU_DECLARE

/* Fill memory (device.h). */
extern "C" enum fst_status GPU_NAME(memory_fill)(void *queue, void *p, size_t bytes,
                                                 const struct device_fill *f);
/* The table (device.h), and the scratch that any entry needs within the limits: each file answers for
 * its own. */
extern "C" bool GPU_NAME(kernels_fill)(void *table, size_t bytes);
extern "C" size_t GPU_NAME(kernels_scratch)(const struct kernel_limits *l);
#define gpu_linear_scratch    GPU_NAME(linear_scratch)    /* linear.cu and its users */
#define gpu_kv_scratch        GPU_NAME(kv_scratch)        /* kv.cu */
#define gpu_index_scratch     GPU_NAME(index_scratch)     /* index.cu */
#define gpu_attention_scratch GPU_NAME(attention_scratch) /* attention.cu */
#define gpu_seam_scratch      GPU_NAME(seam_scratch)      /* seam.cu */
#define gpu_route_scratch     GPU_NAME(route_scratch)     /* route.cu */
#define gpu_draw_scratch      GPU_NAME(draw_scratch)      /* draw.cu */
extern "C" {
size_t gpu_linear_scratch(const struct kernel_limits *l);
size_t gpu_kv_scratch(const struct kernel_limits *l);
size_t gpu_index_scratch(const struct kernel_limits *l);
size_t gpu_attention_scratch(const struct kernel_limits *l);
size_t gpu_seam_scratch(const struct kernel_limits *l);
size_t gpu_route_scratch(const struct kernel_limits *l);
size_t gpu_draw_scratch(const struct kernel_limits *l);
}

#endif
