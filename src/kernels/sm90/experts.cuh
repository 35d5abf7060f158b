/* experts.cuh - what the launches of experts.cu share: visits, tiles of them, the job. */
#ifndef FST_KERNELS_SM90_EXPERTS_CUH
#define FST_KERNELS_SM90_EXPERTS_CUH

#include "kernels/sm90/linear.cuh"
#include "kernels/sm90/visits.cuh"

enum {
    EXPERT_ROWS = 4096, /* rows at a time: bounds the scratch for the visits' outputs */
    EXPERTS_MANY = 257, /* rows from which experts.cu leaves them to many.cu */
    EXPERTS_MAX = 512,
    VISITS = 8,             /* of a tile of a warpgroup that goes from tile to tile */
    GATES = STREAM_ROWS / 2 /* hidden values of a block: their gate and up rows are its tile */
};

/* Up to N visits of one expert, or S of the shared one: list[first .. first+n-1] (many.cu), or, with tiles of
 * VISITS, here with their rows. */
struct alignas(16) visit_tile {
    const uint8_t *w[3], *s[3]; /* w1, w3, w2 and their scales; routed ones */
    int32_t expert, first, n;
    int32_t place; /* many.cu: its first row in an operand */
    int32_t visit[VISITS], row[VISITS];
};

/* many.cu: where a routed visit's operand lies: row `row` of a tile that begins with row `first`. */
struct visit_place {
    int32_t first;
    int16_t row, n8;
};

/* many.cu: a visit of a list, and the weight of its expert. */
struct alignas(8) routed_visit {
    int32_t visit;
    float weight;
};

struct expert_job {
    struct expert_mats shared;
    const struct expert_mats *experts;
    struct lin_input in; /* operand of the shared expert */
    uint8_t *x_fp4;      /* of the routed ones */
    const int32_t *expert;
    const float *weight;
    struct visit_tile *tile; /* routed ones; many.cu: the widest first */
    int32_t *n_tiles,
        *next; /* many.cu: of each width; next: items that were asked for, of gate and up and of down */
    int32_t *list;
    uint16_t *h;      /* (visits, moe_dim) bf16 */
    uint8_t *h_codes; /* operand of w2 */
    float *z;         /* (visits, dim) */
    float *y;         /* NULL: z is what is wanted */
    /* many.cu; places: rows of the routed visits' operands */
    struct visit_place *place;
    struct routed_visit *visit; /* instead of list */
    uint8_t *h_shared;
    int64_t places;
    int n_rows, k, dim, moe_dim, n_experts, per_tile, per_shared;
    int processors, shared_blocks;
    float limit;
    bool few;  /* no lists, no operand of w2 (walk.cuh) */
    bool left; /* x is there as operands; few: nothing runs in front, and next is 0 */
};

GPU_BOTH int routed_visits(const struct expert_job &j)
{
    return j.n_rows * j.k;
}
GPU_BOTH int all_visits(const struct expert_job &j)
{
    return j.n_rows * (j.k + 1);
}
GPU_BOTH int shared_tiles(const struct expert_job &j)
{
    return (j.n_rows + j.per_shared - 1) / j.per_shared;
}
/* Warpgroups that share the outputs of a tile, gate and up or down. */
GPU_BOTH int outputs(const struct expert_job &j, bool down)
{
    return down ? (j.dim + STREAM_ROWS - 1) / STREAM_ROWS : (j.moe_dim + GATES - 1) / GATES;
}
/* Routed tiles, at most. */
GPU_BOTH int64_t routed_tiles(const struct expert_job &j)
{
    int64_t v = routed_visits(j), spread = j.n_experts + v / j.per_tile;
    return v < spread ? v : spread;
}

/* Most rows of their operands, in tiles of j.per_tile visits, each filled up to a multiple of 8. */
GPU_BOTH int64_t routed_places(const struct expert_job &j)
{
    return (routed_visits(j) + 7 * routed_tiles(j) + 7) / 8 * 8;
}

/* many.cu: tiles of up to routed_most(w) visits are the work of a kernel for each w; which one a tile of n is of. */
enum { ROUTED_WIDTHS = 5, ROUTED_MOST = 112 };
GPU_BOTH constexpr int routed_most(int width)
{
    return width == 0 ? 32 : width == 1 ? 48 : width == 2 ? 64 : width == 3 ? 96 : (int)ROUTED_MOST;
}
GPU_BOTH int routed_width(int n)
{
    return (n > routed_most(0)) + (n > routed_most(1)) + (n > routed_most(2)) +
           (n > routed_most(3));
}

/* A hidden value of its gate and up.  Sigmoid by the card's quick exponential and reciprocal, 2^-21 off where
 * bf16 keeps 2^-9: by division it was half of what a tile costs behind its sums. */
GPU_FN uint16_t hidden_value(float gate, float up, float weight, float limit)
{
    float a = fminf(gpu_bf16(gate), limit), e;
    float b = fmaxf(-limit, fminf(gpu_bf16(up), limit));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.4426950408889634f * a));
    return gpu_bf16_bits(weight * (a * gpu_inverse(1.0f + e) * b));
}

/* Hidden values o .. of the tile's visits.  Thread: gate and up of one value for its visits. */
template <int N>
GPU_FN void put_hidden(const struct expert_job &j, const int *visit, int n, int o0,
                       const float (&acc)[N / 2])
{
    int t = group_thread(), o = o0 + t / 32 * 8 + t / 4 % 8, routed = routed_visits(j);
    if (o >= j.moe_dim)
        return;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int c = i / 4 * 8 + 2 * (t % 4) + i % 2;
        if (i & 2 || c >= n)
            continue;
        int v = visit[c];
        float weight = v < routed ? j.weight[v] : 1.0f;
        j.h[(int64_t)v * j.moe_dim + o] = hidden_value(acc[i], acc[i + 2], weight, j.limit);
    }
}

/* Outputs o .. of the tile's visits. */
template <int N>
GPU_FN void put_sums(const struct expert_job &j, const int *visit, int n, int o,
                     const float (&acc)[N / 2])
{
    int t = group_thread();
    o += t / 32 * 16 + t / 4 % 8;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int c = i / 4 * 8 + 2 * (t % 4) + i % 2, at = o + i / 2 % 2 * 8;
        if (c < n && at < j.dim)
            j.z[(int64_t)visit[c] * j.dim + at] = acc[i];
    }
}

/* The table of experts on its way to the cache, by a block, while the kernel in front still chooses among
 * them: 28 KB of 256 of them, two lines or three a thread. */
GPU_FN void expect_experts(const struct expert_job &j)
{
    const uint8_t *p = (const uint8_t *)j.experts;
    int bytes = j.n_experts * (int)sizeof *j.experts;
    for (int i = 128 * (int)threadIdx.x; i < bytes; i += 128 * (int)blockDim.x)
        gpu_prefetch(p + i);
}

/* j.tile and j.n_tiles from the visits; x as operand (lists.cu). */
void experts_lists(const struct expert_job &j, struct stream *s);
/* The same without operands, and j.place. */
void experts_places(const struct expert_job &j, struct stream *s);
/* EXPERTS_MANY rows and more: all of it (many.cu), of a job with its matrices, inputs, output and sizes;
 * bytes of scratch, by the sizes alone. */
void experts_many(struct expert_job j, struct stream *s);
size_t experts_many_scratch(const struct expert_job &j);
/* j.y from j.z (experts.cu). */
void experts_sums(const struct expert_job &j, struct stream *s);

#endif
