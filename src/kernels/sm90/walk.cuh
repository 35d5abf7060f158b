/* walk.cuh - routed experts for few visits: blocks that go from tile to tile.
 *
 * Items are 64 weight rows of a tile of up to eight visits of one expert.  A block's first one follows
 * from its number; whoever is done asks a counter for the next, since blocks do not stay abreast: with
 * every n-th item fixed, 2,112 items of six rows left a tenth of the blocks with one more than the others.
 *
 * Four warps multiply, each 16 weight rows that it copies itself into a ring of its own: nobody else
 * waits for them.  A fifth, the clerk, does what needs others: it says which item is next and brings the
 * inputs, eight blocks of 128 values at a time (a chunk), in two buffers.  Only the clerk's writes are read
 * by the matrix units, so only it needs the fence between proxies, which is a MEMBAR: in the warps that
 * copy weights it waited for more than the inputs.
 *
 * With up to eight rows (FEW) a block makes the list of tiles itself, so that its weights are under way
 * before the kernel in front is done: who chose the experts was over before that one started.  Down
 * then quantises the hidden values itself too. */
#ifndef FST_KERNELS_SM90_WALK_CUH
#define FST_KERNELS_SM90_WALK_CUH

#include "kernels/sm90/experts.cuh"

enum {
    WALK_WARPS = 4, /* that multiply */
    WALK_THREADS = 32 * (WALK_WARPS + 1),
    WALK_SLOTS = 4, /* of a warp's ring: stages of 128 bytes of its rows */
    CHUNK = 8,      /* blocks of 128 inputs in a buffer */
    PLANS = 4,
    WALK_FEW = VISITS, /* rows */
    WALK_VISITS = 64   /* of those */
};

/* An item for the warps that multiply. */
struct alignas(16) walk_plan {
    const uint8_t *w[2], *s[2]; /* row 0 of w1 and w3, or of w2, and scales */
    int32_t there, out, n, none;
    int32_t visit[VISITS], row[VISITS];
};

struct walk_memory {
    uint8_t x[2][CHUNK][VISITS][LIN_BLOCK]; /* wgmma_rows, at a multiple of 1024 */
    uint8_t w[WALK_SLOTS][STREAM_ROWS * STREAM_LINE];
    uint8_t s[STREAM_ROWS][4 * CHUNK]; /* scales of a chunk */
    float f[WALK_WARPS][32][4];        /* a stage's scales as floats: row and block, step */
    float xs[2][CHUNK][VISITS];
};
enum { WALK_BYTES = 1024 + sizeof(struct walk_memory) };

/* Tiles, by the block. */
struct walk_list {
    int n;
    union {
        struct {
            int of[WALK_VISITS],
                at[WALK_VISITS]; /* of a visit: its expert, how many of its visits come before */
        };
        uint8_t first
            [EXPERTS_MAX]; /* of an expert: 1 + the lane of its first visit below 32, 0: none */
    };
    int expert[WALK_VISITS], count[WALK_VISITS]; /* of a tile */
    uint8_t tile_of[WALK_VISITS], visit[WALK_VISITS][VISITS];
};

struct walk_shared {
    uint64_t full[2], empty[2];
    struct walk_plan plan[PLANS];
};

/* ---------------------------------------------------------------- barriers in shared memory */

GPU_FN void turns_init(uint64_t *b, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_at(b)), "r"(arrivals)
                 : "memory");
}
GPU_FN void turns_arrive(uint64_t *b)
{
    asm volatile(
        "{\n.reg .b64 s;\nmbarrier.arrive.shared::cta.b64 s, [%0];\n}\n" ::"r"(shared_at(b))
        : "memory");
}
/* Until the phase of that parity is over. */
GPU_FN void turns_wait(uint64_t *b, int parity)
{
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}\n" ::"r"(
                     shared_at(b)),
                 "r"(parity)
                 : "memory");
}

/* Buffer and phase of the block's n-th chunk. */
GPU_FN void chunk_wait(struct walk_shared &h, int n)
{
    turns_wait(&h.full[n & 1], n >> 1 & 1);
}
GPU_FN void chunk_done(struct walk_shared &h, int n)
{
    __syncwarp();
    if (gpu_lane() == 0)
        turns_arrive(&h.empty[n & 1]);
}

/* ---------------------------------------------------------------- the list of few rows */

/* Any list: for rows that name an expert twice, so that it may have more visits than a tile. */
GPU_FN void list_any(const struct expert_job &j, struct walk_list &l)
{
    int routed = routed_visits(j), lane = gpu_lane(), tiles = 0;
    for (int v = lane; v < routed; v += 32)
        l.of[v] = j.expert[v];
    __syncwarp();
    for (int v0 = 0; v0 < routed; v0 += 32) {
        int v = v0 + lane, e = v < routed ? l.of[v] : -1, before = 0, all = 0;
#pragma unroll 8
        for (int u = 0; u < routed; u++) {
            int same = l.of[u] == e;
            all += same;
            before += same & (u < v);
        }
        bool first = v < routed && before % VISITS == 0; /* of a tile */
        uint32_t firsts = __ballot_sync(0xffffffffu, first);
        int tile = tiles + __popc(firsts & ((1u << lane) - 1));
        if (v < routed)
            l.at[v] = before;
        if (first) {
            l.tile_of[v] = (uint8_t)tile;
            l.expert[tile] = e;
            l.count[tile] = min(all - before, (int)VISITS);
        }
        tiles += __popc(firsts);
    }
    __syncwarp();
    for (int v = lane; v < routed; v += 32) {
        int e = l.of[v], at = l.at[v], first = 0;
#pragma unroll 8
        for (int u = 0; u < routed; u++)
            first = l.of[u] == e && l.at[u] == at / VISITS * VISITS ? u : first;
        l.visit[l.tile_of[first]][at % VISITS] = (uint8_t)v;
    }
    if (lane == 0)
        l.n = tiles;
    __syncwarp();
}

/* By one wave, two visits a lane; experts with as many visits as a tile at most, else false and nothing is
 * listed.  The way from the choice of experts to the first weights goes through here, with cold instructions:
 * so it has few of them, and none for a second half where there is none. */
GPU_FN bool list_matches(const struct expert_job &j, struct walk_list &l)
{
    int routed = routed_visits(j), lane = gpu_lane();
    uint32_t all = 0xffffffffu, below = (1u << lane) - 1;
    bool two = routed > 32, there[2] = {lane < routed, lane + 32 < routed};
    int e[2] = {there[0] ? j.expert[lane] : -1 - lane, there[1] ? j.expert[lane + 32] : -1 - lane};
    uint32_t same = __match_any_sync(all, e[0]), same2 = 0;
    int at = __popc(same & below), n = __popc(same), before = 0, at2 = 0;
    if (two) {
        if (there[1])
            l.first[e[1]] = 0;
        if (there[0])
            l.visit[e[0] / VISITS][e[0] % VISITS] = 0;
        __syncwarp();
        same2 = __match_any_sync(all, e[1]);
        if (there[0] && at == 0)
            l.first[e[0]] = (uint8_t)(lane + 1);
        at2 = __popc(same2 & below);
        if (there[1] && at2 == 0) /* how many more: where visits come later */
            l.visit[e[1] / VISITS][e[1] % VISITS] = (uint8_t)__popc(same2);
        __syncwarp();
        before = there[1] ? l.first[e[1]] : 0;
        if (there[0])
            n += l.visit[e[0] / VISITS][e[0] % VISITS];
        int first_n = __shfl_sync(all, __popc(same), before - 1);
        at2 += before ? first_n : 0;
        __syncwarp();
    }
    if (__any_sync(all, (there[0] && at >= VISITS) || at2 >= VISITS || (there[0] && n > VISITS)))
        return false;
    bool first = there[0] && at == 0, first2 = there[1] && !before && at2 == 0;
    uint32_t firsts = __ballot_sync(all, first), firsts2 = __ballot_sync(all, first2);
    int tile = __popc(firsts & below), tile2 = __popc(firsts) + __popc(firsts2 & below);
    if (first) {
        l.expert[tile] = e[0];
        l.count[tile] = n;
    }
    if (first2) {
        l.expert[tile2] = e[1];
        l.count[tile2] = __popc(same2);
    }
    tile = __shfl_sync(all, tile, __ffs((int)same) - 1);
    if (there[0])
        l.visit[tile][at] = (uint8_t)lane;
    if (two) {
        int with = __shfl_sync(all, tile, before - 1),
            own = __shfl_sync(all, tile2, __ffs((int)same2) - 1);
        if (there[1])
            l.visit[before ? with : own][at2] = (uint8_t)(lane + 32);
    }
    if (lane == 0)
        l.n = __popc(firsts) + __popc(firsts2);
    __syncwarp();
    return true;
}

/* By one wave.  The order within an expert is of no account. */
GPU_FN void list_here(const struct expert_job &j, struct walk_list &l)
{
    if (!list_matches(j, l))
        list_any(j, l);
}

/* ---------------------------------------------------------------- the clerk */

struct walk {
    int all, outs, given; /* given: items that are not the counter's */
    int32_t *next;
};

/* The item as plan p; all lanes of the wave. */
template <bool DOWN, bool FEW>
GPU_FN void plan_item(const struct expert_job &j, const struct walk &w, const struct walk_list &l,
                      struct walk_plan &p, int item)
{
    int lane = gpu_lane(), tile = item / w.outs, c = lane % VISITS;
    if (lane == 0) {
        p.there = item < w.all;
        p.out = item - tile * w.outs;
    }
    if (item >= w.all)
        return;
    const struct visit_tile *t = j.tile + tile;
    const struct expert_mats *m = FEW ? j.experts + l.expert[tile] : NULL;
    if (lane < 2) {
        const struct mat *from = DOWN ? &m->w2 : lane ? &m->w3 : &m->w1;
        p.w[lane] = FEW ? (const uint8_t *)from->data : t->w[DOWN ? 2 : lane];
        p.s[lane] = FEW ? from->scale : t->s[DOWN ? 2 : lane];
    } else if (lane == 2) {
        p.n = FEW ? l.count[tile] : t->n;
    } else if (lane / VISITS == 1) {
        int v = FEW ? l.visit[tile][c] : t->visit[c];
        p.visit[c] = v;
        p.row[c] = FEW ? v / j.k : t->row[c];
    }
    __syncwarp();
}

/* The larger magnitudes of two pairs of bf16, a NaN only of two. */
GPU_FN uint32_t larger_pair(uint32_t a, uint32_t b)
{
    uint32_t m;
    asm("max.bf16x2 %0, %1, %2;\n" : "=r"(m) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
    return m;
}

/* Up to eight blocks of a row, bf16, to codes in the inputs' layout (linear.cuh): four lanes a block, each 32
 * values.  A wave that took one block after the other was 1,200 instructions in a row: with the products of
 * three more blocks of threads they did not fit the instruction cache, and a stage took 2 us instead of 0.5. */
template <bool FP4>
GPU_FN void make_codes(struct walk_memory &m, int buffer, int c, const uint16_t *h, int blocks)
{
    int lane = gpu_lane(), line = lane / 4, part = lane % 4;
    uint4 v[4] = {};
    if (line < blocks)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = *(const uint4 *)(const void *)(h + line * LIN_BLOCK + 32 * part + 8 * i);
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        most = larger_pair(most,
                           larger_pair(larger_pair(v[i].x, v[i].y), larger_pair(v[i].z, v[i].w)));
    float top = fmaxf(gpu_low(most), gpu_high(most));
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
    uint32_t code = gpu_fp8_code(top);
    float down = gpu_e8m0(254 - code);
    if (line >= blocks)
        return;
    uint8_t *row = m.x[buffer][line][c];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
        for (int k = 0; k < 2; k++) { /* values 8*i + 4*k .. of the part */
            float a = gpu_low(w[2 * k]) * down, b = gpu_high(w[2 * k]) * down;
            float d = gpu_low(w[2 * k + 1]) * down, e = gpu_high(w[2 * k + 1]) * down;
            int four = 2 * i + k;
            if (FP4) {
                uint8_t *at = row + 2 * four;
                *(uint16_t *)(void *)(at + ((2 * part ^ c) << 4)) = (uint16_t)e4m3_pair(a, d);
                *(uint16_t *)(void *)(at + (((2 * part + 1) ^ c) << 4)) = (uint16_t)e4m3_pair(b, e);
            } else
                *(uint32_t *)(void *)(row + ((four ^ c) << 4) + 4 * part) =
                    e4m3_pair(a, b) | e4m3_pair(d, e) << 16;
        }
    }
    if (part == 0)
        m.xs[buffer][line][c] = gpu_e8m0(code);
}

/* Where a chunk's inputs come from. */
struct walk_source {
    const uint8_t *codes;
    const float *scales;
    const uint16_t *h; /* bf16, to be made codes: instead of those */
    int width, first;  /* values of a row; the first block of them */
};

/* `blocks` blocks of the plan's rows, from block `from` on, into a buffer; all lanes of the wave. */
template <bool MAKE, bool FP4>
GPU_FN void fill_chunk(struct walk_memory &m, const struct walk_source &x, const int *row, int n,
                       int buffer, int from, int blocks)
{
    int lane = gpu_lane(), b0 = x.first + from;
    if (MAKE) {
        for (int c = 0; c < n; c++)
            make_codes<FP4>(m, buffer, c, x.h + (int64_t)row[c] * x.width + b0 * LIN_BLOCK, blocks);
        return;
    }
    int piece = lane % 8, line = lane / 8;
    for (int c = 0; c < n; c++) {
        const uint8_t *codes = x.codes + (int64_t)row[c] * x.width + (b0 + line) * LIN_BLOCK;
        uint32_t to = shared_at(&m.x[buffer][line][c][(piece ^ c) << 4]);
        if (line < blocks)
            copy16(to, codes + 16 * piece);
        if (line + 4 < blocks)
            copy16(to + (uint32_t)sizeof m.x[0] / 2, codes + 4 * LIN_BLOCK + 16 * piece);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int c = lane / CHUNK + 4 * h, b = lane % CHUNK;
        if (c < n && b < blocks)
            copy4(shared_at(&m.xs[buffer][b][c]),
                  x.scales + (int64_t)row[c] * (x.width / LIN_BLOCK) + b0 + b);
    }
}

/* The clerk's n-th chunk is written. */
GPU_FN void chunk_full(struct walk_shared &h, int n)
{
    copies_end();
    copies_wait<0>();
    shared_to_wgmma();
    __syncwarp();
    if (gpu_lane() == 0)
        turns_arrive(&h.full[n & 1]);
}
/* Its buffer may be written again. */
GPU_FN void chunk_free(struct walk_shared &h, int n)
{
    turns_wait(&h.empty[n & 1], (n >> 1 & 1) ^ 1);
}

/* Inputs of the items from plan 0 on, and the plans after it. */
template <bool DOWN, int BLOCKS, bool FEW>
GPU_FN void clerk_walk(const struct expert_job &j, const struct walk &w, const struct walk_list &l,
                       struct walk_memory &m, struct walk_shared &h, int chunk)
{
    constexpr int chunks = BLOCKS / CHUNK;
    constexpr bool make = DOWN && FEW;
    struct walk_source x = {DOWN ? j.h_codes : j.x_fp4, NULL, j.h, BLOCKS * LIN_BLOCK, 0};
    x.scales = operand_scales(x.codes, DOWN ? all_visits(j) : j.n_rows, x.width);
    bool asks = w.given < w.all;
    int asked = w.all;
    for (int i = 0; h.plan[i % PLANS].there; i++) {
        const struct walk_plan &p = h.plan[i % PLANS];
        for (int c = 0; c < chunks; c++, chunk++) {
            if (c == chunks - 2 && asks && gpu_lane() == 0)
                asked = w.given + atomicAdd(w.next, 1);
            chunk_free(h, chunk);
            fill_chunk<make, true>(m, x, DOWN ? p.visit : p.row, p.n, chunk & 1, c * CHUNK, CHUNK);
            if (c == chunks - 1)
                plan_item<DOWN, FEW>(j, w, l, h.plan[(i + 1) % PLANS],
                                     __shfl_sync(0xffffffffu, asked, 0));
            chunk_full(h, chunk);
        }
    }
}

/* ---------------------------------------------------------------- weights */

/* An address that is not worked out again at every use. */
GPU_FN uint32_t kept(uint32_t at)
{
    asm volatile("" : "+r"(at));
    return at;
}
/* What a thread copies of a chunk: up: rows 8 .. of the warp's 16, NULL: those behind w's. */
struct walk_feed {
    const uint8_t *w, *up, *s;
    uint32_t to, to_s; /* in slot 0 */
};

GPU_FN void feed_places(struct walk_feed &f, struct walk_memory &m)
{
    int warp = gpu_wave(), lane = gpu_lane();
    f.to = kept(shared_at(m.w[0]) + (uint32_t)weight_piece(16 * warp + lane / 8, lane % 8));
    f.to_s = kept(shared_at(m.s[16 * warp]) + (uint32_t)(16 * lane));
}

template <bool DOWN, int PITCH>
GPU_FN void feed_rows(struct walk_feed &f, const uint8_t *const (&w)[2], int out)
{
    int warp = gpu_wave(), lane = gpu_lane();
    int o = DOWN ? out * STREAM_ROWS + warp * 16 : out * GATES + warp * 8;
    int64_t mine = (int64_t)(o + lane / 8) * PITCH + 16 * (lane % 8);
    f.w = w[0] + mine;
    f.up = DOWN ? NULL : w[1] + mine;
}
/* The scales of FP4 too. */
template <bool DOWN, int BLOCKS>
GPU_FN void feed_item(struct walk_feed &f, const struct walk_plan &p)
{
    int warp = gpu_wave(), lane = gpu_lane();
    int row = lane / 2; /* two lanes a row */
    int o = DOWN ? p.out * STREAM_ROWS + warp * 16 + row : p.out * GATES + warp * 8 + row % 8;
    feed_rows<DOWN, BLOCKS * 64>(f, p.w, p.out);
    f.s = p.s[!DOWN && row >= 8] + (int64_t)o * (BLOCKS * 4) + 16 * (lane % 2);
}

/* Stage AT of the chunk into slot AT modulo four; with its first one SCALES of all. */
template <bool DOWN, int PITCH, int AT, bool SCALES, bool FEW>
GPU_FN void feed_stage(const struct walk_feed &f)
{
    constexpr int slot = AT % WALK_SLOTS * STREAM_ROWS * STREAM_LINE, at = AT * STREAM_LINE;
    constexpr int second = DOWN ? 8 * PITCH : 0, line = STREAM_LINE;
    const uint8_t *up = DOWN ? f.w : f.up;
    uint32_t to4 = f.to ^ 64;
    copy16_at<FEW, slot, at>(f.to, f.w);
    copy16_at<FEW, slot + 4 * line, at + 4 * PITCH>(to4, f.w);
    copy16_at<FEW, slot + 8 * line, at + second>(f.to, up);
    copy16_at<FEW, slot + 12 * line, at + second + 4 * PITCH>(to4, up);
    if (SCALES && AT == 0)
        copy16(f.to_s, f.s);
}

/* ---------------------------------------------------------------- products of routed tiles */

struct walk_sum {
    float acc[VISITS / 2], x[VISITS / 4], pending[3][VISITS / 2];
};

GPU_FN void sum_begin(struct walk_sum &s)
{
#pragma unroll
    for (int i = 0; i < VISITS / 2; i++)
        s.acc[i] = 0;
    s.x[0] = s.x[1] = 1; /* another tile has other columns */
}

/* Where this thread reads, in slot 0 and buffer 0, and where it stands. */
struct walk_place {
    uint32_t words; /* load_words' address */
    uint32_t scale,
        f_to;       /* four scales of a stage, and as floats: row and block lane of the warp */
    uint32_t f, xs; /* its own rows' floats, its columns' scales of inputs */
    uint32_t rows;  /* low word of wgmma_rows */
    int item, chunk;
    bool more; /* weights to copy */
};
enum { WALK_ROWS_HIGH = 0x40000040 }; /* the other word */

GPU_FN void places_of(struct walk_place &at, struct walk_memory &m)
{
    int warp = gpu_wave(), lane = gpu_lane();
    uint32_t f = shared_at(m.f[warp]);
    at.words = kept(shared_at(m.w[0]) + (uint32_t)weight_piece(16 * warp + lane % 16, lane / 16));
    at.scale = kept(shared_at(m.s[16 * warp]) + (uint32_t)(32 * (lane / 2) + 4 * (lane % 2)));
    at.f = kept(f + (uint32_t)(32 * (lane / 4)));
    at.xs = kept(shared_at(m.xs[0]) + (uint32_t)(8 * (lane % 4)));
    at.rows = kept((uint32_t)wgmma_rows(shared_at(m.x[0])));
}

/* Words of two steps: [step][rows g, g+8]. */
GPU_FN void load_words(uint32_t (&w)[2][2], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(w[0][0]), "=r"(w[0][1]), "=r"(w[1][0]), "=r"(w[1][1])
                 : "r"(at)
                 : "memory");
}
template <int OFFSET> GPU_FN uint32_t load_word(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1+%2];\n" : "=r"(v) : "r"(at), "n"(OFFSET) : "memory");
    return v;
}
template <int OFFSET> GPU_FN float4 load_floats(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4+%5];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at), "n"(OFFSET)
                 : "memory");
    return v;
}
template <int OFFSET> GPU_FN float2 load_pair(uint32_t at)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2+%3];\n"
                 : "=f"(v.x), "=f"(v.y)
                 : "r"(at), "n"(OFFSET)
                 : "memory");
    return v;
}

/* A lane's scales of a chunk, four a stage: read at once, since the next chunk's take their place. */
GPU_FN void load_scales(uint32_t (&s)[WALK_SLOTS], const struct walk_place &at)
{
    s[0] = load_word<0>(at.scale);
    s[1] = load_word<8>(at.scale);
    s[2] = load_word<16>(at.scale);
    s[3] = load_word<24>(at.scale);
}

/* Those of a stage as floats; to_s: walk_feed's, which is this lane's place in m.f as well. */
GPU_FN void walk_scales(uint32_t to_s, uint32_t s)
{
    constexpr int on = offsetof(struct walk_memory, f) - offsetof(struct walk_memory, s);
    static_assert(sizeof(walk_memory::f[0]) == 16 * sizeof(walk_memory::s[0]), "of a warp");
    float f[4];
    scales_of(f, s);
    asm volatile("st.shared.v4.f32 [%0+%5], {%1,%2,%3,%4};\n" ::"r"(to_s), "f"(f[0]), "f"(f[1]),
                 "f"(f[2]), "f"(f[3]), "n"(on)
                 : "memory");
}

/* Block B of the stage in slot AT. */
template <int AT, int B>
GPU_FN void walk_block(struct walk_sum &s, const struct walk_place &at, uint32_t rows, uint32_t xs)
{
    uint32_t a[4][4];
    float d[4][VISITS / 2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t w[2][2];
        load_words(w, (at.words ^ (uint32_t)(64 * B + 32 * i)) + AT * STREAM_ROWS * STREAM_LINE);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                fp4_to_fp8(&a[2 * i + j][half], &a[2 * i + j][2 + half], w[j][half]);
    }
    constexpr int line = 2 * AT + B;
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t low = rows + (uint32_t)(line * (VISITS * LIN_BLOCK >> 4) + 2 * j);
        wgmma<VISITS>::fp8(d[j], a[j], (uint64_t)WALK_ROWS_HIGH << 32 | low, 0);
    }
    wgmma_end();
    float4 f0 = load_floats<16 * B>(at.f), f1 = load_floats<256 + 16 * B>(at.f);
    float2 x = load_pair<line * VISITS * 4>(xs);
    fp4_units<VISITS>(s.acc, s.x, x);
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 4; j++) {
        wgmma_hold(d[j]);
        float low = j == 0 ? f0.x : j == 1 ? f0.y : j == 2 ? f0.z : f0.w;
        float high = j == 0 ? f1.x : j == 1 ? f1.y : j == 2 ? f1.z : f1.w;
#pragma unroll
        for (int i = 0; i < VISITS / 2; i++)
            s.acc[i] = fmaf(d[j][i], i / 2 ? high : low, s.acc[i]);
    }
}

/* A block of w2 is over: perhaps a segment. */
template <int BLOCKS> GPU_FN void walk_segment(struct walk_sum &s, int block)
{
    constexpr int segment = BLOCKS / KERN_SEGMENTS;
    if ((block + 1) % segment)
        return;
    fp4_values<VISITS>(s.acc, s.x);
    stream_segment<VISITS>(s.acc, s.pending, block / segment);
}

/* In the second stage of chunk c: what is copied from here on is the next chunk's. */
template <bool DOWN, int BLOCKS>
GPU_FN void feed_next(struct walk_feed &f, struct walk_place &at, const struct walk_shared &h,
                      int c)
{
    if (c + 1 == BLOCKS / CHUNK) {
        const struct walk_plan &p = h.plan[(at.item + 1) % PLANS];
        at.more = p.there;
        if (at.more)
            feed_item<DOWN, BLOCKS>(f, p);
    } else {
        f.w += CHUNK / 2 * STREAM_LINE;
        f.up += DOWN ? 0 : CHUNK / 2 * STREAM_LINE;
        f.s += 4 * CHUNK;
    }
}

/* Stage AT of chunk c of the item. */
template <bool DOWN, int BLOCKS, int AT, bool FEW>
GPU_FN void walk_stage(struct walk_sum &s, struct walk_feed &f, struct walk_place &at,
                       const struct walk_shared &h, uint32_t (&scales)[WALK_SLOTS], uint32_t rows,
                       uint32_t xs, int c)
{
    constexpr int ahead = WALK_SLOTS - 1;
    copies_wait<WALK_SLOTS - 2>();
    __syncwarp();
    if (AT == 0)
        load_scales(scales, at);
    if (AT == 1)
        feed_next<DOWN, BLOCKS>(f, at, h, c);
    if (at.more)
        feed_stage<DOWN, BLOCKS * 64, (AT + ahead) % (CHUNK / 2), true, FEW>(f);
    copies_end();
    walk_scales(f.to_s, scales[AT]);
    __syncwarp();
    walk_block<AT, 0>(s, at, rows, xs);
    if (DOWN)
        walk_segment<BLOCKS>(s, c * CHUNK + 2 * AT);
    walk_block<AT, 1>(s, at, rows, xs);
    if (DOWN)
        walk_segment<BLOCKS>(s, c * CHUNK + 2 * AT + 1);
}

/* Stage i of chunk c by one body for all four: a quarter of the instructions, for who goes through them
 * once or twice a launch. */
template <bool DOWN, int BLOCKS, bool FEW>
GPU_FN void walk_any_stage(struct walk_sum &s, struct walk_feed &f, struct walk_place &at,
                           const struct walk_shared &h, uint32_t (&scales)[WALK_SLOTS],
                           uint32_t rows, uint32_t xs, int c, int i)
{
    constexpr int ahead = WALK_SLOTS - 1, slot = STREAM_ROWS * STREAM_LINE;
    copies_wait<WALK_SLOTS - 2>();
    __syncwarp();
    if (i == 0)
        load_scales(scales, at);
    if (i == 1)
        feed_next<DOWN, BLOCKS>(f, at, h, c);
    if (at.more) {
        struct walk_feed to = f;
        int next = (i + ahead) % WALK_SLOTS;
        to.to += (uint32_t)(next * slot);
        to.w += next * STREAM_LINE;
        to.up += DOWN ? 0 : next * STREAM_LINE;
        feed_stage<DOWN, BLOCKS * 64, 0, false, FEW>(to);
        if (next == 0)
            copy16(f.to_s, f.s);
    }
    copies_end();
    walk_scales(f.to_s, i == 0 ? scales[0] : i == 1 ? scales[1] : i == 2 ? scales[2] : scales[3]);
    __syncwarp();
    struct walk_place here = at;
    here.words += (uint32_t)(i * slot);
    rows += (uint32_t)(i * (2 * VISITS * LIN_BLOCK >> 4));
    xs += (uint32_t)(i * 2 * VISITS * 4);
    walk_block<0, 0>(s, here, rows, xs);
    if (DOWN)
        walk_segment<BLOCKS>(s, c * CHUNK + 2 * i);
    walk_block<0, 1>(s, here, rows, xs);
    if (DOWN)
        walk_segment<BLOCKS>(s, c * CHUNK + 2 * i + 1);
}

/* The products of the items from plan 0 on.  S: walk_kernel's; ONCE: no block has a second item.  Then w2's
 * first pass through its stages is half of them all, and instructions come from far: with one body for all
 * stages a step of one row is 1.6 % shorter, but six rows are 1.5 % faster with a body for each. */
template <bool DOWN, int BLOCKS, int S, bool ONCE>
GPU_FN void walk_routed(const struct expert_job &j, struct walk_memory &m, struct walk_shared &h,
                        int chunk)
{
    constexpr bool few = S == WALK_FEW;
    static_assert(BLOCKS % CHUNK == 0 && BLOCKS > CHUNK && CHUNK / 2 == WALK_SLOTS, "static slots");
    struct walk_sum s = {};
    struct walk_feed f;
    struct walk_place at;
    if (!h.plan[0].there) {
        gpu_wait_before();
        return;
    }
    places_of(at, m);
    at.chunk = chunk;
    at.more = true;
    feed_places(f, m);
    feed_item<DOWN, BLOCKS>(f, h.plan[0]);
    feed_stage<DOWN, BLOCKS * 64, 0, true, few>(f);
    copies_end();
    feed_stage<DOWN, BLOCKS * 64, 1, true, few>(f);
    copies_end();
    feed_stage<DOWN, BLOCKS * 64, 2, true, few>(f);
    copies_end();
    if (S)
        gpu_wait_before();
    for (at.item = 0; at.more; at.item++) {
        const struct walk_plan &p = h.plan[at.item % PLANS];
        sum_begin(s);
#pragma unroll 1
        for (int c = 0; c < BLOCKS / CHUNK; c++) {
            uint32_t odd = at.chunk & 1, scales[WALK_SLOTS];
            uint32_t rows = __shfl_sync(0xffffffffu, at.rows + odd * (sizeof m.x[0] >> 4), 0);
            uint32_t xs = at.xs + odd * sizeof m.xs[0];
            chunk_wait(h, at.chunk);
            if (ONCE) {
#pragma unroll 1
                for (int i = 0; i < WALK_SLOTS; i++)
                    walk_any_stage<DOWN, BLOCKS, few>(s, f, at, h, scales, rows, xs, c, i);
            } else {
                walk_stage<DOWN, BLOCKS, 0, few>(s, f, at, h, scales, rows, xs, c);
                walk_stage<DOWN, BLOCKS, 1, few>(s, f, at, h, scales, rows, xs, c);
                walk_stage<DOWN, BLOCKS, 2, few>(s, f, at, h, scales, rows, xs, c);
                walk_stage<DOWN, BLOCKS, 3, few>(s, f, at, h, scales, rows, xs, c);
            }
            chunk_done(h, at.chunk++);
        }
        if (DOWN) {
            put_sums<VISITS>(j, p.visit, p.n, p.out * STREAM_ROWS, s.acc);
        } else {
            fp4_values<VISITS>(s.acc, s.x);
            put_hidden<VISITS>(j, p.visit, p.n, p.out * GATES, s.acc);
        }
    }
    copies_wait<0>();
}

/* ---------------------------------------------------------------- the shared expert */

/* Half of K of 64 weight rows (experts.cu, half_sum) for up to eight rows; `first`: the half's first block. */
template <bool DOWN, int BLOCKS>
GPU_FN void shared_products(float (&acc)[VISITS / 2], const struct expert_job &j,
                            struct walk_memory &m, struct walk_shared &h, int out, int first)
{
    constexpr int half = BLOCKS / 2, pitch = BLOCKS * LIN_BLOCK;
    constexpr int ahead = WALK_SLOTS - 1, segment = BLOCKS / KERN_SEGMENTS;
    const struct expert_mats &e = j.shared;
    const uint8_t *w[2] = {(const uint8_t *)(DOWN ? e.w2.data : e.w1.data) + first * LIN_BLOCK,
                           (const uint8_t *)e.w3.data + first * LIN_BLOCK};
    int64_t scales =
        (int64_t)(out * (DOWN ? (int)STREAM_ROWS : (int)GATES) / LIN_BLOCK) * BLOCKS + first;
    const uint8_t *s0 = (DOWN ? e.w2.scale : e.w1.scale) + scales;
    const uint8_t *s1 = (DOWN ? e.w2.scale : e.w3.scale) + scales;
    float pending[3][VISITS / 2];
    struct walk_feed f;
    feed_places(f, m);
    feed_rows<DOWN, pitch>(f, w, out);
    feed_stage<DOWN, pitch, 0, false, true>(f);
    copies_end();
    feed_stage<DOWN, pitch, 1, false, true>(f);
    copies_end();
    feed_stage<DOWN, pitch, 2, false, true>(f);
    copies_end();
    f.w += ahead * STREAM_LINE;
    f.up += DOWN ? 0 : ahead * STREAM_LINE;
    gpu_wait_before();
#pragma unroll
    for (int i = 0; i < VISITS / 2; i++)
        acc[i] = 0;
    for (int b = 0; b < half; b++) {
        int chunk = b / CHUNK, line = b % CHUNK, slot = b % WALK_SLOTS;
        float g[2] = {gpu_e8m0(__ldg(s0 + b)), gpu_e8m0(__ldg(s1 + b))};
        if (line == 0)
            chunk_wait(h, chunk);
        copies_wait<WALK_SLOTS - 2>();
        __syncwarp();
        if (b + ahead < half) {
            struct walk_feed to = f;
            uint32_t next = (uint32_t)((b + ahead) % WALK_SLOTS * STREAM_ROWS * STREAM_LINE);
            to.to += next;
            feed_stage<DOWN, pitch, 0, false, true>(to);
            f.w += STREAM_LINE;
            f.up += DOWN ? 0 : STREAM_LINE;
        }
        copies_end();
        uint32_t a[4][4];
        float d[VISITS / 2];
        plain_steps(a, m.w[slot]);
        wgmma_begin();
        multiply<true, VISITS>(d, a, shared_at(m.x[chunk & 1][line]), false);
        wgmma_end();
        wgmma_wait<0>();
        wgmma_hold(d);
        stream_add<VISITS>(acc, d, g, (const uint8_t *)m.xs[chunk & 1][line]);
        if (DOWN && (b + 1) % segment == 0)
            stream_segment<VISITS>(acc, pending, b / segment);
        if (line + 1 == CHUNK || b + 1 == half)
            chunk_done(h, chunk);
    }
#pragma unroll
    for (int i = 0; i < VISITS / 2 && DOWN; i++)
        acc[i] = pending[2][i];
    copies_wait<0>();
}

/* All warps of both blocks of the cluster call; chunks that went by: the same for all. */
template <bool DOWN, int BLOCKS>
GPU_FN int walk_half(const struct expert_job &j, struct walk_memory &m, struct walk_shared &h,
                     struct walk_list &list)
{
    constexpr int half = BLOCKS / 2, chunks = (half + CHUNK - 1) / CHUNK;
    int rank = (int)blockIdx.x % 2, out = (int)blockIdx.x / 2, n = j.n_rows, lane = gpu_lane();
    int thread = (int)threadIdx.x, *visit = h.plan[0].visit;
    float *sums = (float *)(void *)m.x, acc[VISITS / 2];
    if (gpu_wave() < WALK_WARPS) {
        shared_products<DOWN, BLOCKS>(acc, j, m, h, out, rank * half);
    } else {
        const uint8_t *codes = (const uint8_t *)j.in.grid;
        int *row = h.plan[0].row;
        if (lane < VISITS) {
            visit[lane] = routed_visits(j) + lane;
            row[lane] = lane;
        }
        __syncwarp();
        gpu_wait_before();
        struct walk_source x = {codes, operand_scales(codes, n, BLOCKS * LIN_BLOCK), j.h,
                                BLOCKS * LIN_BLOCK, rank * half};
        for (int c = 0; c < chunks; c++) {
            chunk_free(h, c);
            fill_chunk<DOWN, false>(m, x, DOWN ? visit : row, n, c & 1, c * CHUNK,
                                    min((int)CHUNK, half - c * CHUNK));
            chunk_full(h, c);
        }
        list_here(j, list);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < VISITS / 2 && rank; i++)
        if (thread < STREAM_THREADS)
            sums[i * STREAM_THREADS + thread] = acc[i];
    cluster_sync();
    if (!rank && thread < STREAM_THREADS) {
#pragma unroll
        for (int i = 0; i < VISITS / 2; i++)
            acc[i] += cluster_load(shared_at(sums + i * STREAM_THREADS + thread), 1);
        if (DOWN)
            put_sums<VISITS>(j, visit, n, out * STREAM_ROWS, acc);
        else
            put_hidden<VISITS>(j, visit, n, out * GATES, acc);
    }
    cluster_sync(); /* nobody leaves while the other reads */
    return chunks;
}

#endif
