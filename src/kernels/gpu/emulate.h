/* emulate.h - kernels/gpu on the CPU, for tests: the threads of a block are fibers.
 *
 * Slow and exact: barriers and wave functions are the only places where a fiber gives way, so a
 * missing barrier shows as a wrong result and one that only some threads reach stops the program.
 * GPU_WAVE is 32 or 64 by a compiler flag.  One thread at a time; not for the product. */
#ifndef FST_KERNELS_GPU_EMULATE_H
#define FST_KERNELS_GPU_EMULATE_H

#include <stddef.h>
#include <stdint.h>

extern "C" {
#include "base/base.h"
}

#ifndef GPU_WAVE
#error "GPU_WAVE: 32 or 64"
#endif
#define GPU_KERNEL           static
#define GPU_FN               static inline __attribute__((unused))
#define GPU_BOTH             static inline __attribute__((unused))
#define GPU_SHARED           static
#define GPU_DYNAMIC(T, name) T *name = (T *)emulate_shared()
#if GPU_WAVE == 32
#define GPU_NAME(entry) entry##_emulate32
#elif GPU_WAVE == 64
#define GPU_NAME(entry) entry##_emulate64
#endif

struct emulate_dim {
    unsigned x, y, z;
};
extern struct emulate_dim emulate_thread, emulate_block, emulate_block_dim, emulate_grid_dim;
#define threadIdx emulate_thread
#define blockIdx  emulate_block
#define blockDim  emulate_block_dim
#define gridDim   emulate_grid_dim

/* Run body(ud) in grid * threads fibers, block after block.  wave: lanes that exchange values. */
void emulate_run(void (*body)(void *ud), void *ud, int64_t grid, int threads, int wave,
                 size_t shared_bytes);
void emulate_block_barrier(void);
/* Barrier `part` (1 .. 15) of as many of the block's threads; without `wait` the thread only comes by. */
void emulate_part_barrier(int part, int threads, bool wait);
/* Every lane gives v and gets lane `from`'s (0 .. wave-1). */
uint32_t emulate_exchange(uint32_t v, int from);
void *emulate_shared(void);   /* poisoned before every block */
extern int64_t emulate_waits; /* threads that have called gpu_wait_before */

template <typename A> struct emulate_call {
    void (*kernel)(A);
    const A *a;
};
/* Of this file alone: two files may each have a struct of the same name, whose weak function the linker
 * would make one. */
template <typename A> static inline void emulate_body(void *ud)
{
    struct emulate_call<A> *c = (struct emulate_call<A> *)ud;
    c->kernel(*c->a);
}

template <typename A>
static inline void emulate_launch(void (*kernel)(A), int64_t grid, int threads, size_t shared,
                                  const A &a, bool early)
{
    struct emulate_call<A> c = {
        kernel, &a
    };
    emulate_waits = 0;
    emulate_run(emulate_body<A>, &c, grid, threads, GPU_WAVE, shared);
    FST_ASSERT(!early || emulate_waits == grid * threads);
}
static inline void gpu_wait_before(void)
{
    emulate_waits++;
}
static inline void gpu_let_next(void) {}

#define gpu_sync() emulate_block_barrier()
static inline uint32_t gpu_shfl_xor(uint32_t v, int mask)
{
    return emulate_exchange(v, (int)(threadIdx.x % GPU_WAVE) ^ mask);
}
static inline uint32_t gpu_shfl(uint32_t v, int lane)
{
    return emulate_exchange(v, lane);
}
/* What kernels use of CUDA's own functions. */
static inline int atomicAdd(int *p, int v)
{
    int old = *p;
    *p += v;
    return old;
}
static inline unsigned atomicAdd(unsigned *p, unsigned v)
{
    unsigned old = *p;
    *p += v;
    return old;
}
#define __restrict__ __restrict

#endif
