/* wgmma_bits.cu - does a Hopper matrix instruction give the same bits for a value whatever the tile's
 * width, and on whichever side of the product the weights stand?
 *
 *     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a wgmma_bits.cu -o wgmma_bits && ./wgmma_bits
 *
 * One warpgroup multiplies A [64, K] by B [N, K] transposed, K = 128 in four steps of 32 (E4M3) or
 * eight of 16 (BF16), summed by the instruction itself in fp32.  Compared, bit by bit over many random
 * inputs with wide exponents:
 *   width     the first n columns of N = 256 with N = n, n = 8, 16, 32, 64, 128
 *   register  A from registers with A from shared memory
 *   order     A times B with B times A (64 by 64), transposed
 *   place     row i of A with the same row at another place (i * 5 mod 64)
 *   double    how far the result is from the exact sum, relative to the sum of magnitudes
 * Kernels may rely on what is equal here (kernels.h: a row's bits do not depend on the batch). */
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s\n", #call, cudaGetErrorString(e_));                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { M = 64, NMAX = 256, K = 128 };

/* Unswizzled K-major operand: core matrices of 8 rows x 16 bytes, contiguous; the two of a K step lie
 * 128 bytes apart, groups of 8 rows 256 bytes apart; one K step of R rows is R * 32 bytes. */
__device__ static uint64_t descriptor(const void *p)
{
    uint64_t a = (uint64_t)__cvta_generic_to_shared(p);
    return (a & 0x3ffff) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}

/* x [rows, K] row-major in bytes of `size` to that layout, one K step of 32 bytes after the other. */
__device__ static void lay(uint8_t *out, const uint8_t *x, int rows, int size)
{
    int line = K * size;
    for (int i = (int)threadIdx.x; i < rows * line; i += (int)blockDim.x) {
        int r = i / line, b = i % line, step = b / 32, in = b % 32;
        out[step * rows * 32 + (r / 8) * 256 + (in / 16) * 128 + (r % 8) * 16 + in % 16] = x[i];
    }
}

#define ACC4(d, i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC16(d, i) ACC4(d, i), ACC4(d, i + 4), ACC4(d, i + 8), ACC4(d, i + 12)
#define ACC64(d, i) ACC16(d, i), ACC16(d, i + 16), ACC16(d, i + 32), ACC16(d, i + 48)

template <int N, bool FP8, bool REG> struct mma;

#define L4  "%0,%1,%2,%3"
#define L8  L4 ",%4,%5,%6,%7"
#define L16 L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define L32                                                                                        \
    L16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define L64                                                                                        \
    L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"    \
        "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define L128                                                                                       \
    L64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,"    \
        "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,"    \
        "%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,"    \
        "%122,%123,%124,%125,%126,%127"

#define MMA(n, list, acc, a0, a1, a2, a3, a4)                                                      \
    template <> struct mma<n, true, false> {                                                       \
        __device__ static void run(float *d, uint64_t a, const uint32_t *, uint64_t b)             \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list         \
                         "}, %" #a0 ", %" #a1 ", 1, 1, 1;\n"                                       \
                         : acc                                                                     \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
    };                                                                                             \
    template <> struct mma<n, false, false> {                                                      \
        __device__ static void run(float *d, uint64_t a, const uint32_t *, uint64_t b)             \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list         \
                         "}, %" #a0 ", %" #a1 ", 1, 1, 1, 0, 0;\n"                                 \
                         : acc                                                                     \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
    };                                                                                             \
    template <> struct mma<n, true, true> {                                                        \
        __device__ static void run(float *d, uint64_t, const uint32_t *r, uint64_t b)              \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list         \
                         "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #a4 ", 1, 1, 1;\n"          \
                         : acc                                                                     \
                         : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(b));                    \
        }                                                                                          \
    };                                                                                             \
    template <> struct mma<n, false, true> {                                                       \
        __device__ static void run(float *d, uint64_t, const uint32_t *r, uint64_t b)              \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list         \
                         "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #a4 ", 1, 1, 1, 0;\n"       \
                         : acc                                                                     \
                         : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(b));                    \
        }                                                                                          \
    }
#define D4 ACC4(d, 0)
#define D8 ACC4(d, 0), ACC4(d, 4)
MMA(8, L4, D4, 4, 5, 6, 7, 8);
MMA(16, L8, D8, 8, 9, 10, 11, 12);
MMA(32, L16, ACC16(d, 0), 16, 17, 18, 19, 20);
#define D32 ACC16(d, 0), ACC16(d, 16)
MMA(64, L32, D32, 32, 33, 34, 35, 36);
MMA(128, L64, ACC64(d, 0), 64, 65, 66, 67, 68);
#define D128 ACC64(d, 0), ACC64(d, 64)
MMA(256, L128, D128, 128, 129, 130, 131, 132);

/* out [64, N] of one product; blockIdx.x picks the inputs. */
template <int N, bool FP8, bool REG>
__global__ void product(const uint8_t *a, const uint8_t *b, float *out)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const int size = FP8 ? 1 : 2, line = K * size, steps = line / 32;
    uint8_t *sa = shared, *sb = shared + M * line;
    a += (size_t)blockIdx.x * M * line;
    b += (size_t)blockIdx.x * NMAX * line;
    lay(sa, a, M, size);
    lay(sb, b, N, size);
    asm volatile("fence.proxy.async.shared::cta;\n");
    __syncthreads();
    float d[N / 2];
    for (int i = 0; i < N / 2; i++)
        d[i] = 0;
    int t = (int)threadIdx.x, row = t / 32 * 16 + t % 32 / 4, at = t % 4 * 4;
    asm volatile("wgmma.fence.sync.aligned;\n");
    for (int s = 0; s < steps; s++) {
        uint32_t r[4];
        if (REG)
            for (int i = 0; i < 4; i++) /* rows +0, +8, then the second 16 bytes of the step */
                memcpy(&r[i], a + (row + i % 2 * 8) * line + s * 32 + i / 2 * 16 + at, 4);
        mma<N, FP8, REG>::run(d, descriptor(sa + s * M * 32), r, descriptor(sb + s * N * 32));
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
    out += (size_t)blockIdx.x * M * NMAX;
    for (int i = 0; i < N / 2; i++) {
        int col = i / 4 * 8 + t % 4 * 2 + i % 2;
        out[(row + i / 2 % 2 * 8) * NMAX + col] = d[i];
    }
}

static uint64_t state = 88172645463325252ull;
static uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static double decode(const uint8_t *x, bool fp8)
{
    if (fp8) {
        int e = *x >> 3 & 15, m = *x & 7;
        double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        return *x & 128 ? -v : v;
    }
    uint32_t u = (uint32_t)x[0] << 16 | (uint32_t)x[1] << 24;
    float f;
    memcpy(&f, &u, 4);
    return (double)f;
}

static void fill(uint8_t *x, size_t n, bool fp8)
{
    for (size_t i = 0; i < n; i++)
        if (fp8) {
            do
                x[i] = (uint8_t)next();
            while ((x[i] & 127) == 127);
        } else { /* exponents of 2^-20 .. 2^11 */
            uint16_t h = (uint16_t)((next() & 0x807f) | (107 + next() % 32) << 7);
            memcpy(x + 2 * i, &h, 2);
        }
}

struct device_data {
    uint8_t *a, *b, *a2, *b2;
    float *out;
};

template <int N, bool FP8, bool REG>
static void run(const uint8_t *a, const uint8_t *b, float *out, float *host, int cases)
{
    size_t shared = (size_t)(M + N) * K * (FP8 ? 1 : 2);
    CHECK(cudaFuncSetAttribute(product<N, FP8, REG>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)shared));
    CHECK(cudaMemset(out, 0xff, (size_t)cases * M * NMAX * 4));
    product<N, FP8, REG><<<cases, 128, shared>>>(a, b, out);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(host, out, (size_t)cases * M * NMAX * 4, cudaMemcpyDeviceToHost));
}

static size_t differing(const float *x, const float *y, int cases, int n, bool transposed)
{
    size_t bad = 0;
    for (int c = 0; c < cases; c++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < n; j++) {
                const float *p = x + ((size_t)c * M + i) * NMAX + j;
                const float *q = y + ((size_t)c * M + (transposed ? j : i)) * NMAX +
                                 (transposed ? i : j);
                bad += memcmp(p, q, 4) != 0;
            }
    return bad;
}

template <bool FP8> static void all(const char *name)
{
    enum { CASES = 256 };
    int size = FP8 ? 1 : 2;
    size_t na = (size_t)CASES * M * K, nb = (size_t)CASES * NMAX * K, no = (size_t)CASES * M * NMAX;
    uint8_t *a = (uint8_t *)malloc(na * size), *b = (uint8_t *)malloc(nb * size);
    uint8_t *a2 = (uint8_t *)malloc(na * size), *b2 = (uint8_t *)malloc(nb * size), *da, *db;
    float *wide = (float *)malloc(no * 4), *other = (float *)malloc(no * 4), *out;
    fill(a, na, FP8);
    fill(b, nb, FP8);
    CHECK(cudaMalloc(&da, na * size));
    CHECK(cudaMalloc(&db, nb * size));
    CHECK(cudaMalloc(&out, no * 4));
    CHECK(cudaMemcpy(da, a, na * size, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b, nb * size, cudaMemcpyHostToDevice));
    run<256, FP8, false>(da, db, out, wide, CASES);
    double worst = 0;
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < NMAX; j++) {
                double sum = 0, mag = 0;
                for (int k = 0; k < K; k++) {
                    double v = decode(a + (((size_t)c * M + i) * K + k) * size, FP8) *
                               decode(b + (((size_t)c * NMAX + j) * K + k) * size, FP8);
                    sum += v;
                    mag += fabs(v);
                }
                double e = fabs((double)wide[((size_t)c * M + i) * NMAX + j] - sum) / mag;
                worst = e > worst || isnan(e) ? e : worst;
            }
    printf("%s double   largest error %.3g of the sum of magnitudes\n", name, worst);
#define WIDTH(n)                                                                                   \
    run<n, FP8, false>(da, db, out, other, CASES);                                                 \
    printf("%s width    N = %3d: %zu of %d values differ\n", name, n,                              \
           differing(wide, other, CASES, n, false), CASES *M *n);                                  \
    run<n, FP8, true>(da, db, out, other, CASES);                                                  \
    printf("%s register N = %3d: %zu of %d values differ\n", name, n,                              \
           differing(wide, other, CASES, n, false), CASES *M *n)
    WIDTH(8);
    WIDTH(16);
    WIDTH(32);
    WIDTH(64);
    WIDTH(128);
    run<256, FP8, true>(da, db, out, other, CASES);
    printf("%s register N = 256: %zu values differ\n", name, differing(wide, other, CASES, 256, false));
    size_t line = (size_t)K * size;
    for (int c = 0; c < CASES; c++)
        for (int i = 0; i < M; i++) { /* the two operands change sides: their first 64 rows */
            memcpy(a2 + ((size_t)c * M + i) * line, b + ((size_t)c * NMAX + i) * line, line);
            memcpy(b2 + ((size_t)c * NMAX + i) * line, a + ((size_t)c * M + i) * line, line);
        }
    CHECK(cudaMemcpy(da, a2, na * size, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b2, nb * size, cudaMemcpyHostToDevice));
    run<64, FP8, false>(da, db, out, other, CASES);
    printf("%s order    %zu of %d values differ\n", name, differing(wide, other, CASES, 64, true),
           CASES * M * M);
    for (int c = 0; c < CASES; c++)
        for (int i = 0; i < M; i++)
            memcpy(a2 + ((size_t)c * M + i * 5 % M) * line, a + ((size_t)c * M + i) * line, line);
    CHECK(cudaMemcpy(da, a2, na * size, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b, nb * size, cudaMemcpyHostToDevice));
    run<256, FP8, false>(da, db, out, other, CASES);
    size_t bad = 0;
    for (int c = 0; c < CASES; c++)
        for (int i = 0; i < M; i++)
            bad += memcmp(wide + ((size_t)c * M + i) * NMAX, other + ((size_t)c * M + i * 5 % M) * NMAX,
                          NMAX * 4) != 0;
    printf("%s place    %zu of %d rows differ\n", name, bad, CASES * M);
    cudaFree(da);
    cudaFree(db);
    cudaFree(out);
    free(a);
    free(b);
    free(a2);
    free(b2);
    free(wide);
    free(other);
}

int main(void)
{
    all<true>("e4m3");
    all<false>("bf16");
    return 0;
}
