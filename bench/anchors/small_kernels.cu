/* small_kernels.cu - the entries of a layer that are more latency than work, with everything in the
 * card's memory: two builds of them compared with each other, bits of a row alone and among others, times
 * in a graph.  Shapes are Flash's.
 *
 * The objects are those of
 * src/kernels/{gpu/{seam,route,kv,inputs},sm90/{seam,linear,project,experts,lists,route}}.cu, of
 * project_alone.cu and, for the comparison, of an earlier commit, all of whose symbols got `_before` behind them
 * (objcopy --redefine-syms); -DNO_BEFORE: without.
 *
 *     nvcc -std=c++17 -O3 -fmad=false -D_GNU_SOURCE -Isrc -Iinclude -cudart static \
 *         -gencode arch=compute_90a,code=sm_90a bench/anchors/small_kernels.cu OBJECTS -o small_kernels
 *     ./small_kernels [ENTRY]
 *
 * `chain` is the median of a layer in a graph of layers that do nothing else: what an entry costs when
 * its weights may still lie in the second-level cache.  `in step` is what it adds to a graph in which
 * each layer also reads 12 MB that nobody has read before, as a step does. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gpu/gpu.h"

#define ENTRIES(X)                                                                                 \
    X(seam, seam_sm90, seam_gpu_before)                                                            \
    X(route, route_sm90, route_sm90_before)                                                        \
    X(kv_write, kv_write_gpu, kv_write_gpu_before)                                                 \
    X(embed, embed_gpu, embed_gpu_before)                                                          \
    X(ring_store, ring_store_gpu, ring_store_gpu_before)                                           \
    X(attn_in, attn_in_sm90, attn_in_sm90_before)                                                  \
    X(q_path, q_path_sm90, q_path_sm90_before)                                                     \
    X(experts, experts_sm90, experts_sm90_before)
extern "C" {
#ifdef NO_BEFORE
#define DECLARE(entry, now, before)                                                                \
    enum fst_status now(const struct entry##_args *a, struct stream *s);
#define BEFORE(now, before) now
#else
#define DECLARE(entry, now, before)                                                                \
    enum fst_status now(const struct entry##_args *a, struct stream *s);                           \
    enum fst_status before(const struct entry##_args *a, struct stream *s);
#define BEFORE(now, before) before
#endif
ENTRIES(DECLARE)
enum fst_status attn_in_alone(const struct attn_in_args *a, struct stream *s);
enum fst_status q_path_alone(const struct q_path_args *a, struct stream *s);
void base_assert_failed(const char *file, int line, const char *text)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    abort();
}
enum fst_status fst_error(enum fst_status rc, const char *fmt, ...)
{
    fprintf(stderr, "error: %s\n", fmt);
    return rc;
}
}
#define RUN(entry, now, before)                                                                    \
    static void run_##entry(const struct entry##_args *a, struct stream *s, bool old)              \
    {                                                                                              \
        if ((old ? BEFORE(now, before) : now)(a, s) != FST_OK)                                     \
            exit(1);                                                                               \
    }
ENTRIES(RUN)

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s\n", #call, cudaGetErrorString(e_));                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum {
    N = 128,     /* rows, at most */
    MANY = 8192, /* of entries with little data to a row */
    DIM = 4096,
    HEAD = 512,
    ROPE = 64,
    HEADS = 64,
    IDX = 128,
    RANK = 1024,
    MOE = 2048,
    EXPERTS = 256,
    FEW_EXPERTS = 48, /* of a layer, for memory's sake */
    K = 6,
    RING = 144,
    STRIDE = 40, /* pages of a slot */
    LAYERS = 64, /* with weights of their own */
    FAT = 8,     /* such layers of the entries with large weights */
    REPS = 40,
    PUSH = 12 << 20 /* bytes that a layer reads of others */
};

/* ---------------------------------------------------------------- contents */

__device__ static uint32_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(x >> 32);
}
enum fill { NORMAL, NORMAL_BF16, CODES8, CODES4, SCALES };
struct fill_job {
    uint8_t *p;
    int64_t n;
    enum fill what;
    uint32_t seed;
    float mean, spread;
    bool round;
};
__global__ static void fill_kernel(struct fill_job j)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < j.n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t u = mix((uint64_t)j.seed << 40 ^ (uint64_t)i), v = mix((uint64_t)i * 7 + j.seed);
        float g = (float)(u & 0xffff) + (float)(u >> 16) + (float)(v & 0xffff) + (float)(v >> 16);
        g = (g / 65536 - 2) * 1.7f * j.spread + j.mean;
        if (j.what == NORMAL)
            ((float *)j.p)[i] = j.round ? gpu_bf16(g) : g;
        else if (j.what == NORMAL_BF16)
            ((uint16_t *)j.p)[i] = gpu_bf16_bits(g);
        else if (j.what == CODES8)
            j.p[i] = (uint8_t)((u & 0x80) | (0x20 + u % 32));
        else
            j.p[i] = j.what == CODES4 ? (uint8_t)u : (uint8_t)(120 + v % 3);
    }
}
static uint32_t seed_now = 1;
static void *bytes_of(size_t n)
{
    void *p;
    CHECK(cudaMalloc(&p, n + 256));
    CHECK(cudaMemset(p, 0, n + 256));
    return p;
}
static void *filled(int64_t n, size_t size, enum fill what, float mean, float spread, bool round)
{
    struct fill_job j = {
        (uint8_t *)bytes_of((size_t)n * size), n, what, seed_now++, mean, spread, round};
    fill_kernel<<<2048, 256>>>(j);
    return j.p;
}
static float *normal(int64_t n, float mean, float spread)
{
    return (float *)filled(n, 4, NORMAL, mean, spread, false);
}
static float *grid(int64_t n, float spread)
{
    return (float *)filled(n, 4, NORMAL, 0, spread, true);
}
static int32_t *ints(const int32_t *x, int64_t n)
{
    int32_t *p = (int32_t *)bytes_of((size_t)n * 4);
    CHECK(cudaMemcpy(p, x, (size_t)n * 4, cudaMemcpyDefault));
    return p;
}
static struct mat mat_of(enum weight_format fmt, int n_out, int n_in, float spread)
{
    struct mat m = {fmt, n_out, n_in, NULL, NULL};
    int64_t n = (int64_t)n_out * n_in;
    if (fmt == WEIGHT_BF16)
        m.data = filled(n, 2, NORMAL_BF16, 0, spread, true);
    else if (fmt == WEIGHT_FP8) {
        m.data = filled(n, 1, CODES8, 0, 0, false);
        m.scale = (uint8_t *)filled(n / (128 * 128) + 64, 1, SCALES, 0, 0, false);
    } else {
        m.data = filled(n / 2, 1, CODES4, 0, 0, false);
        m.scale = (uint8_t *)filled(n / 32, 1, SCALES, 0, 0, false);
    }
    return m;
}

/* ---------------------------------------------------------------- entries */

struct out {
    const char *name;
    void *p;
    int64_t width; /* words of a row */
    bool is_int, in_place;
};

/* One entry with its buffers.  `run`: rows first .. first+n-1 of layer i; `reset`: inputs that a run
 * changes, as they were. */
struct bench {
    const char *name;
    int layers;
    void (*run)(struct bench *b, int layer, int first, int n, struct stream *s, bool old);
    void (*reset)(struct bench *b);
    struct out out[4];
    int n_out;
    int ratio, max_rows;
    double allowed;
};

static void add_out(struct bench *b, const char *name, void *p, int64_t width, bool is_int,
                    bool in_place = false)
{
    b->out[b->n_out++] = {name, p, width, is_int, in_place};
}
static void no_reset(struct bench *b)
{
    (void)b;
}
static void restore(void *to, const void *from, size_t n)
{
    CHECK(cudaMemcpy(to, from, n, cudaMemcpyDeviceToDevice));
}

/* seam */
static struct {
    float *x, *x0, *mix, *mix0, *y, *out, *fn[LAYERS], *base[LAYERS], *scale[LAYERS], *norm[LAYERS];
} se;
static void seam_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct seam_args a = {};
    (void)b;
    a.x = se.x + (int64_t)first * 4 * DIM;
    a.y = se.y + (int64_t)first * DIM;
    a.mix = se.mix + first * KERN_MIX;
    a.fn = se.fn[layer];
    a.base = se.base[layer];
    a.scale = se.scale[layer];
    a.norm = se.norm[layer];
    a.out = se.out + (int64_t)first * DIM;
    a.n_rows = n;
    a.dim = DIM;
    a.iters = 20;
    a.hc_eps = a.norm_eps = 1e-6f;
    run_seam(&a, s, old);
}
static void seam_reset(struct bench *b)
{
    (void)b;
    restore(se.x, se.x0, (size_t)MANY * 4 * DIM * 4);
    restore(se.mix, se.mix0, (size_t)MANY * KERN_MIX * 4);
}
static void seam_make(struct bench *b)
{
    se.x0 = grid((int64_t)MANY * 4 * DIM, 1);
    se.x = grid((int64_t)MANY * 4 * DIM, 1);
    se.mix0 = normal(MANY * KERN_MIX, 0.3f, 0.05f);
    se.mix = normal(MANY * KERN_MIX, 0.3f, 0.05f);
    se.y = normal((int64_t)MANY * DIM, 0, 1);
    se.out = normal((int64_t)MANY * DIM, 0, 1);
    for (int i = 0; i < LAYERS; i++) {
        se.fn[i] = normal((int64_t)KERN_MIX * 4 * DIM, 0, 1.0f / 128);
        se.base[i] = normal(KERN_MIX, 0, 1);
        se.scale[i] = normal(4, 1, 0.2f);
        se.norm[i] = normal(DIM, 1, 0.2f);
    }
    add_out(b, "x", se.x, 4 * DIM, false, true);
    add_out(b, "mix", se.mix, KERN_MIX, false, true);
    add_out(b, "out", se.out, DIM, false);
}

/* route */
static struct {
    float *x, *bias[LAYERS], *weight;
    int32_t *expert;
    struct mat gate[LAYERS];
} ro;
static void route_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct route_args a = {};
    (void)b;
    a.x = ro.x + (int64_t)first * DIM;
    a.gate = &ro.gate[layer];
    a.bias = ro.bias[layer];
    a.expert = ro.expert + first * K;
    a.weight = ro.weight + first * K;
    a.n_rows = n;
    a.k = K;
    a.scale = 1.5f;
    run_route(&a, s, old);
}
static void route_make(struct bench *b)
{
    ro.x = grid((int64_t)MANY * DIM, 1);
    ro.expert = (int32_t *)bytes_of(MANY * K * 4);
    ro.weight = normal(MANY * K, 0, 1);
    for (int i = 0; i < LAYERS; i++) {
        ro.gate[i] = mat_of(WEIGHT_BF16, EXPERTS, DIM, 1.0f / 32);
        ro.bias[i] = normal(EXPERTS, 0, 0.1f);
    }
    add_out(b, "expert", ro.expert, K, true);
    add_out(b, "weight", ro.weight, K, false);
}

/* embed */
static struct {
    float *x;
    int32_t *id;
    struct mat table;
} em;
static void embed_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct embed_args a = {em.x + (int64_t)first * 4 * DIM, &em.table, em.id + first, n, DIM};
    (void)b;
    (void)layer;
    run_embed(&a, s, old);
}
static void embed_make(struct bench *b)
{
    int32_t id[MANY];
    for (int i = 0; i < MANY; i++)
        id[i] = (int)((int64_t)i * 7919 % 65536);
    em.x = grid((int64_t)MANY * 4 * DIM, 1);
    em.id = ints(id, MANY);
    em.table = mat_of(WEIGHT_BF16, 65536, DIM, 1);
    add_out(b, "x", em.x, 4 * DIM, false);
}

/* kv_write, ring_store: every row a slot of its own, at positions 8191, 8192, .. */
static struct {
    struct kv_layer l[2][LAYERS]; /* ratio 4, 128 */
    float *ape[2][LAYERS], *idx_ape[LAYERS], *norm[LAYERS], *idx_norm[LAYERS];
    float *kv, *kv0, *cmp, *idx, *cs, *freq;
    int32_t *slot, *pos, *span, *first, *pages;
    int rows_of_pool;
} kv;
static struct rows rows_from(int first, int n)
{
    struct rows r = {};
    r.n_rows = r.n_spans = n;
    r.slot = kv.slot + first;
    r.pos = kv.pos + first;
    r.id = r.slot;
    r.span = kv.span;
    r.span_first = kv.first;
    r.pages = kv.pages;
    r.page_stride = STRIDE;
    return r;
}
static void kv_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct rows r = rows_from(first, n);
    bool four = b->ratio == 4;
    struct kv_write_args a = {};
    a.rows = &r;
    a.l = &kv.l[four ? 0 : 1][layer];
    a.kv = kv.kv + (int64_t)first * HEAD;
    a.cmp = kv.cmp + (int64_t)first * (four ? 4 : 2) * HEAD;
    a.idx = four ? kv.idx + (int64_t)first * 4 * IDX : NULL;
    a.ape = kv.ape[four ? 0 : 1][layer];
    a.cmp_norm = kv.norm[layer];
    a.idx_ape = kv.idx_ape[layer];
    a.idx_norm = kv.idx_norm[layer];
    a.cs = kv.cs + (int64_t)first * ROPE;
    a.freq = kv.freq;
    a.head_dim = HEAD;
    a.rope_dim = ROPE;
    a.index_dim = IDX;
    a.norm_eps = 1e-6f;
    run_kv_write(&a, s, old);
}
static void ring_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct rows r = rows_from(first, n);
    struct ring_store_args a = {&r, &kv.l[0][layer], kv.kv + (int64_t)first * HEAD, HEAD, ROPE};
    (void)b;
    run_ring_store(&a, s, old);
}
static void kv_reset(struct bench *b)
{
    (void)b;
    restore(kv.kv, kv.kv0, (size_t)N * HEAD * 4);
}
static void kv_buffers(void)
{
    int32_t x[N + 1], *pages = (int32_t *)malloc((size_t)N * STRIDE * 4);
    kv.kv0 = grid((int64_t)N * HEAD, 1);
    kv.kv = grid((int64_t)N * HEAD, 1);
    kv.cmp = normal((int64_t)N * 4 * HEAD, 0, 1);
    kv.idx = normal((int64_t)N * 4 * IDX, 0, 1);
    kv.cs = normal((int64_t)N * ROPE, 0, 0.7f);
    kv.freq = normal(ROPE / 2, 0.3f, 0.05f);
    for (int i = 0; i <= N; i++)
        x[i] = i;
    kv.slot = ints(x, N);
    kv.span = ints(x, N);
    kv.first = ints(x, N + 1);
    for (int i = 0; i < N; i++)
        x[i] = 8191 + i;
    kv.pos = ints(x, N);
    for (int i = 0; i < N * STRIDE; i++) /* each slot's pages apart */
        pages[i] = (int)((int64_t)i * 7919 % (N * STRIDE));
    kv.pages = ints(pages, (int64_t)N * STRIDE);
    free(pages);
}
static void kv_layers(int which)
{
    int ratio = which ? 128 : 4, state = which ? 256 : 32, wide = which ? 2 * HEAD : 4 * HEAD;
    struct kv_layer l = {};
    l.format = ROW_FP8;
    l.ring = RING;
    l.compressed_base = N * RING;
    l.n_rows = l.compressed_base + (int64_t)N * STRIDE * (256 / ratio);
    l.nope = (uint8_t *)bytes_of((size_t)l.n_rows * 512);
    l.rope = (uint8_t *)bytes_of((size_t)l.n_rows * 128);
    l.ratio = ratio;
    l.state_ring = state;
    l.index_format = INDEX_FP4;
    if (!which)
        l.index_keys = (uint8_t *)bytes_of((size_t)N * STRIDE * 4352);
    for (int i = 0; i < LAYERS; i++) {
        if (i < FAT) { /* states are large: eight of them */
            l.state = normal((int64_t)N * state * wide, 0, 1);
            l.index_state = which ? NULL : normal((int64_t)N * state * 4 * IDX, 0, 1);
        } else {
            l.state = kv.l[which][i % FAT].state;
            l.index_state = kv.l[which][i % FAT].index_state;
        }
        kv.l[which][i] = l;
        kv.ape[which][i] = normal((int64_t)ratio * wide / 2, 0, 0.5f);
        kv.idx_ape[i] = normal(4 * 2 * IDX, 0, 0.5f);
        kv.norm[i] = normal(HEAD, 1, 0.2f);
        kv.idx_norm[i] = normal(IDX, 1, 0.2f);
    }
}
static void kv_make(struct bench *b)
{
    if (!kv.kv) {
        kv_buffers();
        kv_layers(0);
        kv_layers(1);
    }
    if (b->run == kv_run)
        add_out(b, "kv", kv.kv, HEAD, false, true);
}

/* attn_in and q_path of a layer of ratio 4 */
static struct {
    float *x, *qr, *kv, *cmp, *idx, *iw, *q, *qi, *cs, *q_norm[FAT], *kv_norm[FAT];
    struct mat m[FAT][9];
} pr;
static void in_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct mat *m = pr.m[layer];
    struct attn_in_args a = {};
    (void)b;
    a.x = pr.x + (int64_t)first * DIM;
    a.wq_a = m;
    a.wkv = m + 1;
    a.cmp_wkv = m + 2;
    a.cmp_wgate = m + 3;
    a.idx_wkv = m + 4;
    a.idx_wgate = m + 5;
    a.weights_proj = m + 6;
    a.q_norm = pr.q_norm[layer];
    a.kv_norm = pr.kv_norm[layer];
    a.qr = pr.qr + (int64_t)first * RANK;
    a.kv = pr.kv + (int64_t)first * HEAD;
    a.cmp = pr.cmp + (int64_t)first * 4 * HEAD;
    a.idx = pr.idx + (int64_t)first * 4 * IDX;
    a.iw = pr.iw + (int64_t)first * HEADS;
    a.iw_scale = 0.01f;
    a.norm_eps = 1e-6f;
    a.n_rows = n;
    run_attn_in(&a, s, old);
}
static void q_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct mat *m = pr.m[layer];
    struct q_path_args a = {};
    (void)b;
    a.qr = pr.qr + (int64_t)first * RANK;
    a.wq_b = m + 7;
    a.idx_wq_b = m + 8;
    a.cs = pr.cs + (int64_t)first * ROPE;
    a.q = pr.q + (int64_t)first * HEADS * HEAD;
    a.qi = pr.qi + (int64_t)first * HEADS * IDX;
    a.n_rows = n;
    a.n_heads = a.index_heads = HEADS;
    a.head_dim = HEAD;
    a.rope_dim = ROPE;
    a.index_dim = IDX;
    a.norm_eps = 1e-6f;
    run_q_path(&a, s, old);
}
static void project_make(struct bench *b)
{
    if (!pr.x) {
        pr.x = grid((int64_t)N * DIM, 1);
        pr.qr = grid((int64_t)N * RANK, 1);
        pr.kv = grid((int64_t)N * HEAD, 1);
        pr.cmp = grid((int64_t)N * 4 * HEAD, 1);
        pr.idx = grid((int64_t)N * 4 * IDX, 1);
        pr.iw = grid((int64_t)N * HEADS, 1);
        pr.q = grid((int64_t)N * HEADS * HEAD, 1);
        pr.qi = grid((int64_t)N * HEADS * IDX, 1);
        pr.cs = normal((int64_t)N * ROPE, 0, 0.7f);
        for (int i = 0; i < FAT; i++) {
            struct mat *m = pr.m[i];
            m[0] = mat_of(WEIGHT_FP8, RANK, DIM, 1);
            m[1] = mat_of(WEIGHT_FP8, HEAD, DIM, 1);
            m[2] = mat_of(WEIGHT_BF16, 2 * HEAD, DIM, 0.02f);
            m[3] = mat_of(WEIGHT_BF16, 2 * HEAD, DIM, 0.02f);
            m[4] = mat_of(WEIGHT_BF16, 2 * IDX, DIM, 0.02f);
            m[5] = mat_of(WEIGHT_BF16, 2 * IDX, DIM, 0.02f);
            m[6] = mat_of(WEIGHT_BF16, HEADS, DIM, 0.02f);
            m[7] = mat_of(WEIGHT_FP8, HEADS * HEAD, RANK, 1);
            m[8] = mat_of(WEIGHT_FP8, HEADS * IDX, RANK, 1);
            pr.q_norm[i] = normal(RANK, 1, 0.2f);
            pr.kv_norm[i] = normal(HEAD, 1, 0.2f);
        }
    }
    if (b->run == in_run) {
        add_out(b, "qr", pr.qr, RANK, false);
        add_out(b, "kv", pr.kv, HEAD, false);
        add_out(b, "iw", pr.iw, HEADS, false);
        add_out(b, "cmp", pr.cmp, 4 * HEAD, false);
        return;
    }
    add_out(b, "q", pr.q, HEADS * HEAD, false);
    add_out(b, "qi", pr.qi, HEADS * IDX, false);
}

/* What follows their products: norms, heads. */
static struct {
    float *qr, *kv, *iw, *q, *qi, *cs, *norm;
    struct mat wq_a, wkv, weights_proj, wq_b, idx_wq_b;
} al;
static void norms_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct attn_in_args a = {};
    (void)b;
    (void)layer;
    (void)old;
    a.x = al.q; /* nobody reads it */
    a.wq_a = &al.wq_a;
    a.wkv = &al.wkv;
    a.weights_proj = &al.weights_proj;
    a.q_norm = a.kv_norm = al.norm;
    a.qr = al.qr + (int64_t)first * RANK;
    a.kv = al.kv + (int64_t)first * HEAD;
    a.iw = al.iw + (int64_t)first * HEADS;
    a.iw_scale = 1;
    a.norm_eps = 1e-6f;
    a.n_rows = n;
    if (attn_in_alone(&a, s) != FST_OK)
        exit(1);
}
static void heads_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct q_path_args a = {};
    (void)b;
    (void)layer;
    (void)old;
    a.qr = al.q; /* nobody reads it */
    a.wq_b = &al.wq_b;
    a.idx_wq_b = b->ratio == 4 ? &al.idx_wq_b : NULL;
    a.cs = al.cs + (int64_t)first * ROPE;
    a.q = al.q + (int64_t)first * HEADS * HEAD / 2;
    a.qi = al.qi + (int64_t)first * HEADS * IDX;
    a.n_rows = n;
    a.n_heads = a.index_heads = HEADS;
    a.head_dim = HEAD;
    a.rope_dim = ROPE;
    a.index_dim = IDX;
    a.norm_eps = 1e-6f;
    a.packed = true;
    if (q_path_alone(&a, s) != FST_OK)
        exit(1);
}
static void alone_make(struct bench *b)
{
    (void)b;
    if (al.q)
        return;
    al.wq_a = {WEIGHT_FP8, RANK, DIM, NULL, NULL};
    al.wkv = {WEIGHT_FP8, HEAD, DIM, NULL, NULL};
    al.weights_proj = {WEIGHT_BF16, HEADS, DIM, NULL, NULL};
    al.wq_b = {WEIGHT_FP8, HEADS * HEAD, RANK, NULL, NULL};
    al.idx_wq_b = {WEIGHT_FP8, HEADS * IDX, RANK, NULL, NULL};
    al.qr = grid((int64_t)MANY * RANK, 1);
    al.kv = grid((int64_t)MANY * HEAD, 1);
    al.iw = grid((int64_t)MANY * HEADS, 1);
    al.qi = grid((int64_t)MANY * HEADS * IDX, 1);
    al.cs = normal((int64_t)MANY * ROPE, 0, 0.7f);
    al.norm = normal(RANK, 1, 0.2f);
    al.q = (float *)filled((int64_t)MANY * HEADS * HEAD, 2, NORMAL_BF16, 0, 1, true);
}

/* experts */
static struct {
    float *x, *weight, *y;
    int32_t *expert;
    struct expert_mats *experts[FAT], shared[FAT];
} ex;
static void experts_run(struct bench *b, int layer, int first, int n, struct stream *s, bool old)
{
    struct experts_args a = {};
    (void)b;
    a.x = ex.x + (int64_t)first * DIM;
    a.expert = ex.expert + first * K;
    a.weight = ex.weight + first * K;
    a.experts = ex.experts[layer];
    a.routed = WEIGHT_FP4;
    a.shared = &ex.shared[layer];
    a.y = ex.y + (int64_t)first * DIM;
    a.n_rows = n;
    a.k = K;
    a.n_experts = FEW_EXPERTS;
    a.dim = DIM;
    a.moe_dim = MOE;
    a.limit = 10;
    run_experts(&a, s, old);
}
static struct expert_mats expert_of(enum weight_format fmt)
{
    struct expert_mats m = {mat_of(fmt, MOE, DIM, 1), mat_of(fmt, MOE, DIM, 1),
                            mat_of(fmt, DIM, MOE, 1)};
    return m;
}
static void experts_make(struct bench *b)
{
    int32_t e[N * K];
    ex.x = grid((int64_t)N * DIM, 1);
    ex.weight = normal(N * K, 0.25f, 0.02f);
    ex.y = grid((int64_t)N * DIM, 1);
    for (int t = 0; t < N; t++)
        for (int i = 0; i < K; i++) /* ascending, spread */
            e[t * K + i] = FEW_EXPERTS / K * i + (t * 3 + i) % (FEW_EXPERTS / K);
    ex.expert = ints(e, N * K);
    for (int i = 0; i < FAT; i++) {
        struct expert_mats m[FEW_EXPERTS];
        for (int k = 0; k < FEW_EXPERTS; k++)
            m[k] = expert_of(WEIGHT_FP4);
        ex.experts[i] = (struct expert_mats *)bytes_of(sizeof m);
        CHECK(cudaMemcpy(ex.experts[i], m, sizeof m, cudaMemcpyDefault));
        ex.shared[i] = expert_of(WEIGHT_FP8);
    }
    add_out(b, "y", ex.y, DIM, false);
}

/* ---------------------------------------------------------------- checks */

static void *host_copy(const void *p, size_t bytes)
{
    void *x = malloc(bytes);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(x, p, bytes, cudaMemcpyDeviceToHost));
    return x;
}

/* Largest NMSE of an output against the build before; ints: share that differ. */
static double compare(const struct out *o, const void *now, const void *before, int64_t n)
{
    const float *a = (const float *)now, *b = (const float *)before;
    double d = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        if (o->is_int) {
            d += memcmp(a + i, b + i, 4) != 0;
            all += 1;
            continue;
        }
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)b[i] * b[i];
    }
    return all > 0 ? d / all : d;
}

/* How many words change when 1, 3, .. rows run instead of all. */
static int64_t changes(struct bench *b, struct stream *s, void **whole)
{
    static const int sizes[] = {1, 3, 8, 33, 600};
    int64_t changed = 0;
    for (int size : sizes)
        for (int first = 0; first + size <= b->max_rows; first += FST_MAX(29, b->max_rows / 20)) {
            b->reset(b);
            b->run(b, 0, first, size, s, false);
            for (int i = 0; i < b->n_out; i++) {
                const struct out *o = &b->out[i];
                size_t at = (size_t)first * (size_t)o->width, n = (size_t)size * (size_t)o->width;
                uint32_t *x = (uint32_t *)host_copy((uint32_t *)o->p + at, n * 4);
                for (size_t k = 0; k < n; k++)
                    changed += x[k] != ((uint32_t *)whole[i])[at + k];
                free(x);
            }
        }
    return changed;
}

static void check(struct bench *b, struct stream *s)
{
    void *before[4], *now[4];
    for (int old = 1; old >= 0; old--) {
        b->reset(b);
        for (int i = 0; i < b->n_out; i++)
            if (!b->out[i].in_place)
                CHECK(cudaMemset(b->out[i].p, 0x7e, (size_t)b->max_rows * b->out[i].width * 4));
        b->run(b, 0, 0, b->max_rows, s, old);
        for (int i = 0; i < b->n_out; i++)
            (old ? before : now)[i] =
                host_copy(b->out[i].p, (size_t)b->max_rows * b->out[i].width * 4);
    }
    printf("%-15s", b->name);
    bool good = true;
    for (int i = 0; i < b->n_out; i++) {
        double e = compare(&b->out[i], now[i], before[i], b->max_rows * b->out[i].width);
        good &= e <= b->allowed;
        printf(" %s %.1e", b->out[i].name, e);
    }
    int64_t changed = changes(b, s, now);
    printf("  %lld words change with the batch: %s\n", (long long)changed,
           good && !changed ? "good" : "BAD");
    for (int i = 0; i < b->n_out; i++) {
        free(before[i]);
        free(now[i]);
    }
}

/* ---------------------------------------------------------------- times */

struct push_job {
    const uint8_t *p;
    float *sink;
};
/* Reads PUSH bytes, 16 KB a block, and waits for the kernel in front like everybody. */
GPU_KERNEL void push_kernel(struct push_job j)
{
    const uint8_t *p = j.p + (int64_t)blockIdx.x * 16384 + threadIdx.x * 16;
    struct gpu_words w[4];
    gpu_let_next();
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        w[i] = gpu_load16(p + i * 4096);
    gpu_wait_before();
    uint32_t all = 0;
    for (int i = 0; i < 16; i++)
        all ^= w[i / 4].w[i % 4];
    if (all == 0x12345678)
        *j.sink = 1;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static uint8_t *pushed;
static size_t pushed_bytes = (size_t)LAYERS * PUSH;
static float *sink;

/* Median of a layer; n 0: nothing but the reads. */
static float time_layers(struct bench *b, int n, struct stream *s, bool old, bool push)
{
    cudaStream_t queue = (cudaStream_t)s->queue;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    int layers = n > N ? 4 : LAYERS, reps = n > N ? 12 : REPS;
    float us[REPS];
    if (b)
        b->reset(b);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamBeginCapture(queue, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < layers; i++) {
        struct push_job j = {pushed + (size_t)i * PUSH, sink};
        if (push)
            gpu_launch_early(push_kernel, PUSH / 16384, 256, 0, s, j);
        if (n)
            b->run(b, i % b->layers, 0, n, s, old);
    }
    CHECK(cudaStreamEndCapture(queue, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int i = 0; i < reps + 5; i++) {
        float ms;
        CHECK(cudaEventRecord(from, queue));
        CHECK(cudaGraphLaunch(exec, queue));
        CHECK(cudaEventRecord(to, queue));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (i >= 5)
            us[i - 5] = ms * 1000 / (float)layers;
    }
    qsort(us, (size_t)reps, sizeof *us, by_value);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return us[reps / 2];
}

static void times(struct bench *b, struct stream *s)
{
    static const int rows[] = {1, 6, 16, 32, 128, 512, 1024, 2048, 8192};
    for (int n : rows) {
        if (n > b->max_rows)
            break;
        bool step = n <= N;
        float base = step ? time_layers(NULL, 0, s, false, true) : 0, us[2][2] = {};
        for (int old = 0; old < 2; old++)
            for (int push = 0; push < (step ? 2 : 1); push++)
                us[old][push] = time_layers(b, n, s, old, push) - (push ? base : 0);
        printf("%-15s %4d rows   chain %7.2f -> %7.2f us   in step %7.2f -> %7.2f us\n", b->name, n,
               (double)us[1][0], (double)us[0][0], (double)us[1][1], (double)us[0][1]);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    struct stream s = {};
    struct device card = {};
    cudaStream_t queue;
    struct {
        struct bench b;
        void (*make)(struct bench *b);
    } all[] = {
        {{"seam", LAYERS, seam_run, seam_reset, {}, 0, 0, MANY, 1e-5}, seam_make},
        {{"route", LAYERS, route_run, no_reset, {}, 0, 0, MANY, 2e-3}, route_make},
        {{"embed", 1, embed_run, no_reset, {}, 0, 0, MANY, 0}, embed_make},
        {{"norms", 1, norms_run, no_reset, {}, 0, 0, MANY, 0}, alone_make},
        {{"heads", 1, heads_run, no_reset, {}, 0, 0, MANY, 0}, alone_make},
        {{"heads and index", 1, heads_run, no_reset, {}, 0, 4, MANY, 0}, alone_make},
        {{"kv_write 4", LAYERS, kv_run, kv_reset, {}, 0, 4, N, 1e-5}, kv_make},
        {{"kv_write 128", LAYERS, kv_run, kv_reset, {}, 0, 128, N, 1e-5}, kv_make},
        {{"ring_store", LAYERS, ring_run, no_reset, {}, 0, 4, N, 1e-5}, kv_make},
        {{"attn_in", FAT, in_run, no_reset, {}, 0, 4, N, 1e-5}, project_make},
        {{"q_path", FAT, q_run, no_reset, {}, 0, 4, N, 1e-3}, project_make},
        {{"experts", FAT, experts_run, no_reset, {}, 0, 4, 8, 1e-5}, experts_make},
    };
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* a recording loads no code */
    CHECK(cudaStreamCreate(&queue));
    CHECK(cudaDeviceGetAttribute(&card.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    s.device = &card;
    s.queue = queue;
    s.early = true;
    s.scratch_bytes = (size_t)256 << 20;
    s.scratch = (uint8_t *)bytes_of(s.scratch_bytes);
    pushed = (uint8_t *)bytes_of(pushed_bytes);
    sink = (float *)bytes_of(4);
    for (auto &x : all) {
        if (argc > 1 && strncmp(x.b.name, argv[1], strlen(argv[1])) != 0)
            continue;
        x.make(&x.b);
        CHECK(cudaDeviceSynchronize());
        check(&x.b, &s);
        times(&x.b, &s);
    }
    return 0;
}
