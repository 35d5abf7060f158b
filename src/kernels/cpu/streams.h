/* streams.h - what seam and head share: the weighted sum of the residual streams. */
#ifndef FST_KERNELS_CPU_STREAMS_H
#define FST_KERNELS_CPU_STREAMS_H

#include "kernels/cpu/simd.h"

/* u = bf16(sum_k pre[k] * x[k]), k ascending; dim a multiple of VL. */
SIMD_INLINE void streams_collapse(float *u, const float *x, const float *pre, int dim)
{
    vf p[KERN_HC];
    FST_ASSERT(dim % VL == 0);
    for (int k = 0; k < KERN_HC; k++)
        p[k] = v_set1(pre[k]);
    for (int d = 0; d < dim; d += VL) {
        vf s = v_mul(p[0], v_load(x + d));
        for (int k = 1; k < KERN_HC; k++)
            s = v_fma(p[k], v_load(x + (int64_t)k * dim + d), s);
        v_store(u + d, v_bf16(s));
    }
}

#endif
