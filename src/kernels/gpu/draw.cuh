/* draw.cuh - the race of a draw, which kernels/sm90 has too. */
#ifndef FST_KERNELS_GPU_DRAW_CUH
#define FST_KERNELS_GPU_DRAW_CUH

#include "kernels/gpu/gpu.h"
#define PHILOX_FN GPU_FN
#include "kernels/philox.h"

struct best {
    float v;
    int32_t id;
};

GPU_FN struct best better(struct best a, struct best b)
{
    return b.v > a.v || (b.v == a.v && b.id < a.id) ? b : a;
}

/* Over so many neighbouring lanes, in each of them. */
GPU_FN struct best wave_best(struct best b, int lanes = GPU_WAVE)
{
    for (int m = 1; m < lanes; m *= 2) {
        struct best other = {wave_xor(b.v, m), (int32_t)gpu_shfl_xor((uint32_t)b.id, m)};
        b = better(b, other);
    }
    return b;
}

/* Nothing but entries that never win: id 0. */
GPU_FN int32_t winner(struct best b)
{
    return b.v > -INFINITY ? b.id : 0;
}

/* Token v in the race; a logit that is no number never wins. */
GPU_FN void enter(struct best *b, float logit, int32_t v, const struct draw_params *d,
                  uint32_t out_pos)
{
    if (d->temperature > 0)
        logit = logit / d->temperature + philox_gumbel(d->seed, (uint32_t)v, out_pos, d->choice);
    if (logit > b->v) {
        b->v = logit;
        b->id = v;
    }
}

/* conf of all drafts, when they are drawn: (n, gamma) ids in the device's memory. */
extern "C" void GPU_NAME(draft_confidence)(const struct draft_chain_args *a, int32_t *drawn,
                                           struct stream *s);

#endif
