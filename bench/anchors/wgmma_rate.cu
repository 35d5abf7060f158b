/* wgmma_rate.cu - how long a narrow matrix instruction of Hopper keeps a processor busy.
 *
 *     nvcc -std=c++17 -O3 -I../../src -I../../include -gencode arch=compute_90a,code=sm_90a wgmma_rate.cu \
 *         -o wgmma_rate && ./wgmma_rate
 *
 * Clocks per instruction and warpgroup, and per processor, for 64 weight rows by N input rows: E4M3 (32
 * of K) and BF16 (16 of K), weights in registers (RS) or in shared memory (SS), four instructions per wait,
 * adding to one sum or to four, with 1 to 4 blocks of one warpgroup on a processor. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/sm90/wgmma.cuh"

enum { TIMES = 2000, STEPS = 4 };

template <int N> struct wgmma_shared;
#define SS(n, list, acc, ra, rb)                                                                   \
    template <> struct wgmma_shared<n> {                                                           \
        GPU_FN void fp8(float (&d)[n / 2], uint64_t a, uint64_t b)                                 \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list         \
                         "}, %" #ra ", %" #rb ", 1, 1, 1;\n"                                       \
                         : acc                                                                     \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
    }
SS(8, WGMMA_4, WGMMA_D4(d, 0), 4, 5);
SS(16, WGMMA_8, WGMMA_D8(d, 0), 8, 9);
SS(32, WGMMA_16, WGMMA_D16(d, 0), 16, 17);

template <int N, int KIND> /* 0 fp8 RS one sum, 1 fp8 RS four sums, 2 bf16 RS, 3 fp8 SS */
__global__ void rate(float *out, long long *clocks)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    for (int i = (int)threadIdx.x; i < 32768 / 4; i += 128)
        ((uint32_t *)shared)[i] = 0x38383838u;
    shared_to_wgmma();
    __syncthreads();
    float d[STEPS][N / 2] = {};
    uint32_t a[STEPS][4];
    for (int j = 0; j < STEPS; j++)
        for (int i = 0; i < 4; i++)
            a[j][i] = 0x38383838u ^ (threadIdx.x & 1);
    uint64_t b = wgmma_rows(shared_at(shared)), w = wgmma_rows(shared_at(shared) + 16384);
    long long t = clock64();
    for (int k = 0; k < TIMES; k++) {
        wgmma_begin();
        for (int j = 0; j < STEPS; j++) {
            if (KIND == 0)
                wgmma<N>::fp8(d[0], a[j], b + 2 * j, 1);
            else if (KIND == 1)
                wgmma<N>::fp8(d[j], a[j], b + 2 * j, 1);
            else if (KIND == 2)
                wgmma<N>::bf16(d[0], a[j], b + 2 * j, 1);
            else
                wgmma_shared<N>::fp8(d[0], w + 2 * j, b + 2 * j);
        }
        wgmma_end();
        wgmma_wait<0>();
        for (int j = 0; j < STEPS; j++)
            wgmma_hold(d[j]);
    }
    t = clock64() - t;
    float s = 0;
    for (int j = 0; j < STEPS; j++)
        for (int i = 0; i < N / 2; i++)
            s += d[j][i];
    out[blockIdx.x * 128 + threadIdx.x] = s;
    if (threadIdx.x == 0)
        clocks[blockIdx.x] = t;
}

template <int N, int KIND> static void run(const char *name)
{
    static float *out;
    static long long *clocks;
    if (!out) {
        cudaMalloc(&out, 132 * 8 * 128 * 4);
        cudaMallocManaged(&clocks, 132 * 8 * 8);
    }
    cudaFuncSetAttribute(rate<N, KIND>, cudaFuncAttributeMaxDynamicSharedMemorySize, 32768);
    printf("%-22s N = %2d:", name, N);
    for (int blocks = 1; blocks <= 4; blocks++) {
        rate<N, KIND><<<132 * blocks, 128, 32768>>>(out, clocks);
        if (cudaDeviceSynchronize() != cudaSuccess) {
            printf(" %s\n", cudaGetErrorString(cudaGetLastError()));
            exit(1);
        }
        double t = (double)clocks[0] / (TIMES * STEPS);
        printf("  %6.1f (%5.1f)", t, t / blocks);
    }
    printf("\n");
}

int main(void)
{
    printf("clocks per instruction with 1, 2, 3, 4 blocks on a processor (per processor)\n");
    run<8, 0>("E4M3 RS, one sum");
    run<8, 1>("E4M3 RS, four sums");
    run<8, 2>("BF16 RS");
    run<8, 3>("E4M3 SS");
    run<16, 0>("E4M3 RS, one sum");
    run<16, 3>("E4M3 SS");
    run<32, 0>("E4M3 RS, one sum");
    run<32, 3>("E4M3 SS");
    return 0;
}
