/* sm90_attention.cu - attention and index_topk of kernels/sm90 with everything in the card's memory, as
 * a server has it: checked against the portable kernels, then timed in a graph of many layers.
 *
 *     F="-std=c++17 -O3 -fmad=false -D_GNU_SOURCE -Isrc -Iinclude -gencode arch=compute_90a,code=sm_90a"
 *     nvcc $F bench/anchors/sm90_attention.cu src/kernels/sm90/{attention,index}.cu \
 *         src/kernels/gpu/{attention,index}.cu -o sm90_attention && ./sm90_attention [attention|index]
 *
 * Shapes are Flash's: 64 heads, head_dim 512, window 128, 512 selected rows (or all of ratio 128, or the
 * window alone), FP8 rows, FP4 keys.  Attention has its heads packed, as between Hopper's products.  A
 * line has the NMSE against the portable kernels, how many values of a row change when it runs alone, or a
 * prompt's first rows without the others (0 wanted), and the median time of a layer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gpu/gpu.h"

extern "C" {
enum fst_status attention_sm90(const struct attention_args *a, struct stream *s);
enum fst_status index_topk_sm90(const struct index_topk_args *a, struct stream *s);
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

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s\n", #call, cudaGetErrorString(e_));                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum {
    HEADS = 64,
    DIM = 512,
    ROPE = 64,
    WINDOW = 128,
    RING = 144,
    TOPK = 512,
    IDX = 128,
    REPS = 60
};
static size_t scratch_bytes = (size_t)512 << 20;

static uint32_t seed_now = 1;
static uint32_t draw_bits(void)
{
    seed_now = seed_now * 1664525u + 1013904223u;
    return seed_now >> 8;
}

__device__ static uint32_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(x >> 32);
}
enum fill { FILL_NORMAL, FILL_NORMAL_BF16, FILL_CODES, FILL_KEYS, FILL_QUERIES };
__global__ static void fill_kernel(uint8_t *p, int64_t n, int what, uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t u = mix((uint64_t)seed << 40 ^ (uint64_t)i), v = mix((uint64_t)i * 7 + seed);
        float g = (float)(u & 0xffff) + (float)(u >> 16) + (float)(v & 0xffff) + (float)(v >> 16);
        g = (g / 65536 - 2) * 1.7f;
        float grid[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        if (what == FILL_NORMAL)
            ((float *)p)[i] = gpu_bf16(g);
        else if (what == FILL_QUERIES)
            ((float *)p)[i] = (u & 8 ? -0.25f : 0.25f) * grid[u & 7];
        else if (what == FILL_NORMAL_BF16)
            ((uint16_t *)p)[i] = gpu_bf16_bits(g);
        else if (what == FILL_CODES)
            p[i] = i % 512 < 448 ? (uint8_t)((u & 0x80) | (0x20 + u % 32)) : (uint8_t)(126 + v % 2);
        else
            p[i] = i % 4352 < 4096 ? (uint8_t)u : (uint8_t)(126 + v % 3);
    }
}
__global__ static void pack_kernel(const float *x, uint16_t *to, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        to[i] = gpu_bf16_bits(x[i]);
}
static void *device_bytes(size_t n)
{
    void *p;
    CHECK(cudaMalloc(&p, n + 256));
    return p;
}
static void *filled(int64_t n, size_t size, enum fill what)
{
    void *p = device_bytes((size_t)n * size);
    fill_kernel<<<1024, 256>>>((uint8_t *)p, n, what, draw_bits());
    return p;
}
static int32_t *to_device(const int32_t *x, int64_t n, bool host)
{
    void *p;
    if (host)
        CHECK(cudaMallocHost(&p, (size_t)n * 4));
    else
        p = device_bytes((size_t)n * 4);
    CHECK(cudaMemcpy(p, x, (size_t)n * 4, cudaMemcpyDefault));
    return (int32_t *)p;
}

struct layer {
    struct kv_layer l;
    float *q, *packed, *kv, *o, *qi, *iw;
    int32_t *sel, *n_sel, *out_sel, *out_n;
};
struct world {
    struct rows rows;
    int n, span, entries, layers;
    int64_t n_rows;
    struct layer *layer;
    float *sink, *cs;
};

static void make_rows(struct world *w, int spans, int start, bool host)
{
    int n = w->n, stride = (start + w->span) / KERN_PAGE + 2;
    int32_t *slot = (int32_t *)malloc((size_t)n * 4), *pos = (int32_t *)malloc((size_t)n * 4);
    int32_t *span = (int32_t *)malloc((size_t)n * 4);
    int32_t *first = (int32_t *)malloc((size_t)(spans + 1) * 4);
    int32_t *pages = (int32_t *)malloc((size_t)spans * (size_t)stride * 4);
    for (int t = 0; t < n; t++) {
        slot[t] = span[t] = t / w->span;
        pos[t] = start + t % w->span;
        first[t / w->span] = t / w->span * w->span;
    }
    first[spans] = n;
    int count = spans * stride;
    for (int i = 0; i < count; i++)
        pages[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int k = (int)(draw_bits() % (uint32_t)(i + 1)), x = pages[i];
        pages[i] = pages[k];
        pages[k] = x;
    }
    w->rows.n_rows = n;
    w->rows.n_spans = spans;
    w->rows.slot = to_device(slot, n, host);
    w->rows.pos = to_device(pos, n, host);
    w->rows.id = w->rows.slot;
    w->rows.span = to_device(span, n, host);
    w->rows.span_first = to_device(first, spans + 1, host);
    w->rows.pages = to_device(pages, count, host);
    w->rows.page_stride = stride;
    w->n_rows = (int64_t)spans * RING + (int64_t)count * 64;
}

/* Selections: TOPK of the visible entries, ascending. */
static void make_sel(struct world *w, struct layer *y, int start)
{
    int32_t *sel = (int32_t *)calloc((size_t)w->n * TOPK, 4),
            *n_sel = (int32_t *)malloc((size_t)w->n * 4);
    for (int t = 0; t < w->n; t++) {
        int nv = (start + t % w->span + 1) / 4, k = nv < TOPK ? nv : TOPK, at = 0;
        for (int e = 0; e < nv && at < k; e++)
            if (draw_bits() % (uint32_t)(nv - e) < (uint32_t)(k - at))
                sel[(int64_t)t * TOPK + at++] = e;
        n_sel[t] = k;
    }
    y->sel = to_device(sel, (int64_t)w->n * TOPK, false);
    y->n_sel = to_device(n_sel, w->n, false);
    free(sel);
    free(n_sel);
}

static struct world new_world(int spans, int span, int start, int layers, int ratio, bool attention,
                              bool host)
{
    struct world w = {};
    w.n = spans * span;
    w.span = span;
    w.layers = layers;
    w.entries = (start + span) / 4 + 1;
    make_rows(&w, spans, start, host);
    w.layer = (struct layer *)calloc((size_t)layers, sizeof *w.layer);
    w.sink = (float *)filled(HEADS, 4, FILL_NORMAL);
    w.cs = (float *)filled((int64_t)w.n * ROPE, 4, FILL_NORMAL);
    for (int i = 0; i < layers; i++) {
        struct layer *y = w.layer + i;
        y->l = {};
        y->l.format = ROW_FP8;
        y->l.ring = RING;
        y->l.ratio = ratio;
        y->l.compressed_base = (int64_t)spans * RING;
        y->l.n_rows = w.n_rows;
        y->l.index_format = INDEX_FP4;
        if (attention) {
            y->l.nope = (uint8_t *)filled(w.n_rows * 512, 1, FILL_CODES);
            y->l.rope = (uint8_t *)filled(w.n_rows * 64, 2, FILL_NORMAL_BF16);
            int64_t heads = (int64_t)w.n * HEADS * DIM;
            y->q = (float *)filled(heads, 4, FILL_NORMAL);
            y->packed = (float *)device_bytes((size_t)heads * 2);
            pack_kernel<<<1024, 256>>>(y->q, (uint16_t *)y->packed, heads);
            y->kv = (float *)filled((int64_t)w.n * DIM, 4, FILL_NORMAL);
            y->o = (float *)device_bytes((size_t)w.n * HEADS * DIM * 4);
            make_sel(&w, y, start);
        } else {
            int64_t pages = (int64_t)spans * w.rows.page_stride;
            y->l.index_keys = (uint8_t *)filled(pages * 4352, 1, FILL_KEYS);
            y->qi = (float *)filled((int64_t)w.n * HEADS * IDX, 4, FILL_QUERIES);
            y->iw = (float *)filled((int64_t)w.n * HEADS, 4, FILL_NORMAL);
            y->out_sel = (int32_t *)device_bytes((size_t)w.n * TOPK * 4);
            y->out_n = (int32_t *)device_bytes((size_t)w.n * 4);
        }
    }
    CHECK(cudaDeviceSynchronize());
    return w;
}

static struct attention_args attention_of(const struct world *w, const struct layer *y, bool packed)
{
    struct attention_args a = {};
    a.rows = &w->rows;
    a.l = &y->l;
    a.mode = ATTN_CAUSAL;
    a.q = packed ? y->packed : y->q;
    a.packed = packed;
    a.kv = y->kv;
    a.sel = y->sel;
    a.n_sel = y->n_sel;
    a.topk = TOPK;
    a.sink = w->sink;
    a.cs = w->cs;
    a.o = y->o;
    a.n_heads = HEADS;
    a.head_dim = DIM;
    a.rope_dim = ROPE;
    a.window = WINDOW;
    a.scale = 1 / sqrtf(DIM);
    return a;
}
static struct index_topk_args index_of(const struct world *w, const struct layer *y)
{
    struct index_topk_args a = {};
    a.rows = &w->rows;
    a.l = &y->l;
    a.qi = y->qi;
    a.iw = y->iw;
    a.sel = y->out_sel;
    a.n_sel = y->out_n;
    a.max_entries = w->entries;
    a.index_heads = HEADS;
    a.index_dim = IDX;
    a.topk = TOPK;
    return a;
}

static float *host_copy(const void *p, size_t bytes)
{
    float *x = (float *)malloc(bytes);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(x, p, bytes, cudaMemcpyDeviceToHost));
    return x;
}

/* n rows from row t on, the first of their span, alone; `first` is device memory. */
static struct rows alone(const struct world *w, int t, int n, int32_t *first)
{
    struct rows r = w->rows;
    int32_t x[3] = {0, n, 0};
    CHECK(cudaMemcpy(first, x, 12, cudaMemcpyHostToDevice));
    r.n_rows = n;
    r.n_spans = 1;
    r.slot += t;
    r.pos += t;
    r.span = w->rows.span; /* of the first span: zeros */
    r.span_first = first;
    return r;
}

/* Row `row` of the packed heads of n rows (kernels/sm90/operand.cuh). */
static void unpack(const float *o, int n, int row, float *to)
{
    int64_t wide = HEADS * DIM, tiles = (n + 127) / 128,
            tall = ((n + tiles - 1) / tiles + 7) / 8 * 8;
    int64_t first = n < 33 ? row : row / tall * tall, left = n - first;
    int64_t here = n < 33 ? 1 : ((left < tall ? left : tall) + 7) / 8 * 8, r = row - first;
    const uint16_t *x = (const uint16_t *)o + first * wide;
    for (int k = 0; k < wide; k++) {
        int v = k % 64, q = v / 16, piece = v / 4 % 4 * 2 + v % 4 / 2, i = v % 2;
        uint32_t u = x[(k / 64 * here + r) * 64 + (piece ^ (n < 33 ? 0 : r % 8)) * 8 + 2 * q + i];
        u <<= 16;
        memcpy(to + k, &u, 4);
    }
}

/* How many values of rows t .. t+n-1, which are whole spans or the first rows of one, change alone. */
static int64_t count_changed(const struct world *w, struct stream *s, int t, int n,
                             const float *out, int32_t *first)
{
    struct attention_args a = attention_of(w, w->layer, true);
    size_t row = (size_t)HEADS * DIM * 2, some = (size_t)n;
    struct rows r = alone(w, t, n, first);
    int64_t changed = 0;
    a.rows = &r;
    a.q += t * row / 4;
    a.kv += (int64_t)t * DIM;
    a.sel += (int64_t)t * TOPK;
    a.n_sel += t;
    a.cs += (int64_t)t * ROPE;
    a.o += t * row / 4;
    attention_sm90(&a, s);
    float *x = host_copy(a.o, (n < 33 ? some : (some + 7) / 8 * 8) * row);
    float *alone = (float *)malloc(row * 2), *among = (float *)malloc(row * 2);
    for (int i = 0; i < n; i++) {
        unpack(x, n, i, alone);
        unpack(out, w->n, t + i, among);
        for (int k = 0; k < HEADS * DIM; k++)
            changed += alone[k] != among[k];
    }
    free(alone);
    free(among);
    free(x);
    return changed;
}

static void check_attention(const struct world *w, struct stream *s, double *nmse, int64_t *changed)
{
    struct attention_args a = attention_of(w, w->layer, false), p = attention_of(w, w->layer, true);
    size_t row = (size_t)HEADS * DIM, some = (size_t)(w->n < 256 ? w->n : 256);
    float *mine = (float *)malloc(row * 4);
    attention_gpu(&a, s);
    float *ref = host_copy(a.o, some * row * 4);
    CHECK(cudaMemset(a.o, 0xff, (size_t)w->n * row * 4));
    attention_sm90(&p, s);
    float *out = host_copy(a.o, (size_t)(w->n < 33 ? w->n : (w->n + 7) / 8 * 8) * row * 2);
    double d = 0, b = 0;
    for (size_t t = 0; t < some; t++) {
        unpack(out, w->n, (int)t, mine);
        for (size_t i = 0; i < row; i++) {
            double x = mine[i], y = ref[t * row + i];
            d += (x - y) * (x - y);
            b += y * y;
        }
    }
    *nmse = d / b;
    *changed = 0;
    int32_t *first = (int32_t *)device_bytes(64);
    for (int t = 0; t < (w->span == 1 ? w->n : 1); t += w->n / 2 + 1)
        *changed += count_changed(w, s, t, 1, out, first);
    for (int n = 6; w->rows.n_spans == 1 && n <= w->span && n <= 256; n *= 6)
        *changed += count_changed(w, s, 0, n, out, first);
    CHECK(cudaFree(first));
    free(mine);
    free(ref);
    free(out);
}

static void check_index(const struct world *w, struct stream *s, double *nmse, int64_t *changed)
{
    struct index_topk_args a = index_of(w, w->layer);
    size_t n = (size_t)w->n * (size_t)w->entries;
    float *scores = (float *)device_bytes(n * 4), *margin = (float *)device_bytes((size_t)w->n * 4);
    CHECK(cudaMemset(scores, 0, n * 4));
    a.scores = scores;
    a.margin = margin;
    index_topk_gpu(&a, s);
    float *ref = host_copy(scores, n * 4);
    float *sel = host_copy(a.sel, (size_t)w->n * TOPK * 4);
    index_topk_sm90(&a, s);
    float *out = host_copy(scores, n * 4);
    float *sel2 = host_copy(a.sel, (size_t)w->n * TOPK * 4);
    double d = 0, b = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)out[i] - ref[i]) * ((double)out[i] - ref[i]);
        b += (double)ref[i] * ref[i];
    }
    *nmse = d / b;
    *changed = 0; /* choices that differ from the portable kernels': a few at equal scores */
    for (int i = 0; i < w->n * TOPK; i++)
        *changed += memcmp(sel + i, sel2 + i, 4) != 0;
    cudaFree(scores);
    cudaFree(margin);
    free(ref);
    free(out);
    free(sel);
    free(sel2);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static float time_layers(const struct world *w, struct stream *s, bool attention, bool portable)
{
    cudaStream_t queue = (cudaStream_t)s->queue;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    float us[REPS];
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamBeginCapture(queue, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < w->layers; i++) {
        struct attention_args a = attention_of(w, w->layer + i, !portable);
        struct index_topk_args x = index_of(w, w->layer + i);
        if (attention)
            (portable ? attention_gpu : attention_sm90)(&a, s);
        else
            (portable ? index_topk_gpu : index_topk_sm90)(&x, s);
    }
    CHECK(cudaStreamEndCapture(queue, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int i = 0; i < REPS + 5; i++) {
        CHECK(cudaEventRecord(from, queue));
        CHECK(cudaGraphLaunch(exec, queue));
        CHECK(cudaEventRecord(to, queue));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (i >= 5)
            us[i - 5] = ms * 1000 / w->layers;
    }
    qsort(us, REPS, sizeof *us, by_value);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return us[REPS / 2];
}

static void one_case(struct stream *s, bool attention, int spans, int span, int start, int layers,
                     int ratio, bool host)
{
    struct world w = new_world(spans, span, start, layers, ratio, attention, host);
    double nmse;
    int64_t changed;
    (attention ? check_attention : check_index)(&w, s, &nmse, &changed);
    float us = time_layers(&w, s, attention, false);
    float before = w.n <= 256 ? time_layers(&w, s, attention, true) : 0;
    printf("%-9s %4d spans of %4d rows from %6d, ratio %3d, rows in %s: NMSE %.2g, %lld changed, "
           "%8.2f us "
           "(portable %8.2f)\n",
           attention ? "attention" : "index", spans, span, start, ratio, host ? "host  " : "device",
           nmse, (long long)changed, (double)us, (double)before);
    fflush(stdout);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < layers; i++) {
        struct layer *y = w.layer + i;
        void *p[] = {y->l.nope, y->l.rope, y->q,  y->packed,  y->kv,    y->o,           y->sel,
                     y->n_sel,  y->qi,     y->iw, y->out_sel, y->out_n, y->l.index_keys};
        for (size_t k = 0; k < sizeof p / sizeof *p; k++)
            if (p[k])
                CHECK(cudaFree(p[k]));
    }
}

int main(int argc, char **argv)
{
    struct stream s = {};
    cudaStream_t queue;
    bool attention = argc < 2 || strcmp(argv[1], "attention") == 0;
    bool index = argc < 2 || strcmp(argv[1], "index") == 0;
    CHECK(cudaStreamCreate(&queue));
    s.queue = queue;
    s.early = true;
    s.scratch = (uint8_t *)device_bytes(scratch_bytes);
    s.scratch_bytes = scratch_bytes;
    for (int host = 0; attention && host < 2; host++) {
        one_case(&s, true, 1, 1, 8191, 64, 4, host);
        one_case(&s, true, 1, 6, 8190, 64, 4, host);
    }
    for (int b = 2; attention && b <= 128; b *= 2)
        one_case(&s, true, b, 1, 8191 + b, b > 32 ? 4 : 16, 4, false);
    if (attention) {
        one_case(&s, true, 8, 6, 8190, 16, 4, false);
        one_case(&s, true, 32, 6, 8190, 6, 4, false);
        for (int ratio = 4; ratio >= 0; ratio = ratio == 4 ? 128 : ratio ? 0 : -1)
            one_case(&s, true, 1, 4096, 4096, 2, ratio, false);
    }
    for (int host = 0; index && host < 2; host++) {
        one_case(&s, false, 1, 1, 8191, 64, 4, host);
        one_case(&s, false, 1, 6, 8190, 64, 4, host);
        one_case(&s, false, 1, 1, 69631, 64, 4, host);
        one_case(&s, false, 1, 6, 69630, 64, 4, host);
    }
    if (index) {
        one_case(&s, false, 8, 6, 69630, 4, 4, false);
        one_case(&s, false, 128, 1, 8191, 8, 4, false);
        one_case(&s, false, 1, 128, 8064, 8, 4, false);
        one_case(&s, false, 1, 8192, 0, 1, 4, false);
        one_case(&s, false, 1, 1, 1000000, 8, 4, false);
        one_case(&s, false, 1, 4096, 61440, 1, 4, false);
    }
    return 0;
}
