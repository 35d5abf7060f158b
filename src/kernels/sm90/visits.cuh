/* visits.cuh - a row's experts added up: by the experts' last launch, or by the seam that follows. */
#ifndef FST_KERNELS_SM90_VISITS_CUH
#define FST_KERNELS_SM90_VISITS_CUH

#include "kernels/gpu/gpu.h"

enum { SUM_LOADS = 6 };

/* Values d .. d+3 of row t of n_rows: outputs of its k experts lie at t*k .. of z, the shared one's at
 * n_rows*k + t.  Experts ascending, the shared one last; the loads are under way together, and what is too many
 * of them loads the last one again. */
GPU_FN struct gpu_quad visits_sum(const float *z, int n_rows, int k, int dim, int64_t t, int d)
{
    const float *p = z + t * k * dim + d, *shared = z + ((int64_t)n_rows * k + t) * dim + d;
    struct gpu_quad sum = gpu_load4(p);
    for (int s0 = 1; s0 <= k; s0 += SUM_LOADS) {
        struct gpu_quad v[SUM_LOADS];
        GPU_UNROLL
        for (int i = 0; i < SUM_LOADS; i++) {
            p = s0 + i < k ? p + dim : shared;
            v[i] = gpu_load4(p);
        }
        GPU_UNROLL
        for (int i = 0; i < 4 * SUM_LOADS; i++)
            if (s0 + i / 4 <= k)
                sum.v[i % 4] += v[i / 4].v[i % 4];
    }
    return sum;
}

#endif
