/* cpu.h - the AVX2 and AVX-512 blocks by name, and what they need of a stream.
 *
 * Every *.inl here is compiled twice, by X_avx2.c and by X_avx512.c; simd.h gives it vectors of the
 * width of the file. */
#ifndef FST_KERNELS_CPU_H
#define FST_KERNELS_CPU_H

#include "kernels/kernels.h"

#define CPU_DECLARE(entry, args)                                                                   \
    enum fst_status entry##_avx2(const args *a, struct stream *s);                                 \
    enum fst_status entry##_avx512(const args *a, struct stream *s);
KERNELS_MAP(CPU_DECLARE)
#undef CPU_DECLARE

/* Scratch bytes for any block within the limits, of either width. */
size_t cpu_scratch_bytes(const struct kernel_limits *l, int n_threads);

#endif
