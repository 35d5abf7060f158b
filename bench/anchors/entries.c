/* entries.c - time of the projections, the experts and the head of V4-Flash on a card, alone.
 *
 *     cc -O2 -D_GNU_SOURCE -I../../src -I../../include entries.c -o entries -rdynamic -Wl,--start-group \
 *         ../../build/libfst_kernels.a ../../build/libfst_device.a ../../build/libfst_base.a -Wl,--end-group \
 *         -lm -lpthread -ldl && FIRESTEEL_MODULES=../../build ./entries [MOST_ROWS] [NAMES] [ROWS] [rest]
 *
 * Each entry is launched on the distinct weights of eight layers, recorded as one graph through the
 * driver, and played 20 times, five times over; the best is printed: microseconds of one launch of the
 * entry, weight bytes over time, and their share of 4.60 TB/s.  Rows route independently.  NAMES picks by
 * the first letter: i (attn_in), q (q_path), o (attn_out), e (experts), h (head); ROWS: that number alone; rest:
 * once instead of 20 times, behind half a second in which the card cools: what its power cap would take. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

enum {
    LAYERS = 8,
    DIM = 4096,
    MOE = 2048,
    EXPERTS = 256,
    K = 6,
    HEADS = 64,
    HEAD = 512,
    RANK = 1024
};
enum { VOCAB = 129280, PATTERN = 64 << 20, HEAD_ROWS = 128 };

struct layer {
    struct attn_in_args in;
    struct q_path_args q;
    struct attn_out_args out;
    struct experts_args experts;
    struct mat mat[11];
    struct expert_mats shared;
};

static const struct device *dev;
static struct kernels kernels;
static struct stream stream;
static struct layer layer[LAYERS];
static struct head_args head;
static struct mat head_mat;
static uint8_t *fp8, *fp4, *bf16, *scales; /* random bytes of each kind */
static uint64_t state = 88172645463325252u;

static uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void stop(const char *what)
{
    printf("%s: %s\n", what, fst_error_text());
    exit(1);
}

static void *room(size_t bytes)
{
    void *p = device_alloc(dev, bytes);
    if (!p)
        stop("out of the card's memory");
    return p;
}

static void *filled(const uint8_t *pattern, size_t bytes)
{
    uint8_t *p = room(bytes + 16);
    for (size_t at = 0; at < bytes; at += PATTERN)
        if (device_copy(dev, p + at, pattern, FST_MIN(bytes - at, (size_t)PATTERN)) < 0)
            stop("copy");
    return p;
}

static struct mat matrix(enum weight_format fmt, int n_out, int n_in)
{
    struct mat m = {.fmt = fmt, .n_out = n_out, .n_in = n_in};
    size_t n = (size_t)n_out * (size_t)n_in;
    m.data = fmt == WEIGHT_FP8 ? filled(fp8, n) : filled(bf16, 2 * n);
    if (fmt == WEIGHT_FP8)
        m.scale = filled(scales, (size_t)(div_up(n_out, 128) * div_up(n_in, 128)));
    return m;
}

/* n values between -1 and 1 on the bf16 grid. */
static float *activations(size_t n)
{
    float *host = malloc(n * sizeof *host), *p = room(n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        float v = ((float)(next() % 2001) - 1000) / 1000;
        uint32_t u;
        memcpy(&u, &v, 4);
        u &= 0xffff0000u;
        memcpy(&host[i], &u, 4);
    }
    if (device_copy(dev, p, host, n * sizeof *p) < 0)
        stop("copy");
    free(host);
    return p;
}

static void make_patterns(void)
{
    fp8 = malloc(PATTERN);
    fp4 = malloc(PATTERN);
    bf16 = malloc(PATTERN);
    scales = malloc(PATTERN);
    for (int i = 0; i < PATTERN; i++) {
        uint32_t r = next();
        fp8[i] = (uint8_t)((r & 0x80) | (0x20 + (r >> 8) % 40));
        fp4[i] = (uint8_t)(r >> 16);
        scales[i] = (uint8_t)(118 + (r >> 24) % 3);
    }
    for (int i = 0; i < PATTERN; i += 2) { /* exponents of 2^-9 to 2^-4 */
        uint16_t h = (uint16_t)((next() & 0x807f) | (118 + next() % 6) << 7);
        memcpy(bf16 + i, &h, 2);
    }
}

/* All experts of a layer in one piece. */
static struct expert_mats *routed(void)
{
    static struct expert_mats host[EXPERTS];
    size_t codes = (size_t)MOE * DIM / 2, rows = (size_t)MOE * DIM / 32;
    uint8_t *data = filled(fp4, 3 * codes * EXPERTS), *s = filled(scales, 3 * rows * EXPERTS);
    for (int e = 0; e < EXPERTS; e++) {
        struct mat *m[] = {&host[e].w1, &host[e].w3, &host[e].w2};
        for (size_t i = 0; i < 3; i++, data += codes, s += rows)
            *m[i] = (struct mat){WEIGHT_FP4, i < 2 ? MOE : DIM, i < 2 ? DIM : MOE, data, s};
    }
    struct expert_mats *p = room(sizeof host);
    if (device_copy(dev, p, host, sizeof host) < 0)
        stop("copy");
    return p;
}

static void route(int32_t *expert, int n_rows)
{
    for (int t = 0; t < n_rows; t++)
        for (int i = 0; i < K; i++) { /* ascending, none twice */
            int at = i, again = 1, e = 0;
            while (again) {
                e = (int)(next() % EXPERTS);
                again = 0;
                for (int k = 0; k < i; k++)
                    again |= expert[t * K + k] == e;
            }
            for (; at > 0 && expert[t * K + at - 1] > e; at--)
                expert[t * K + at] = expert[t * K + at - 1];
            expert[t * K + at] = e;
        }
}

static void make_projections(struct layer *l, size_t rows)
{
    static const int width[] = {RANK, HEAD, 1024, 1024, 256, 256, 64};
    static float *x, *o, *qr, *norm, *cs, *out[7], *q, *qi, *y;
    if (!x) {
        x = activations(rows * DIM);
        o = activations(rows * HEADS * HEAD);
        qr = activations(rows * RANK);
        norm = activations(DIM);
        cs = activations(rows * 64);
        for (int i = 0; i < 7; i++)
            out[i] = room(rows * 2048 * sizeof(float));
        q = room(rows * HEADS * HEAD * sizeof(float));
        qi = room(rows * 64 * 128 * sizeof(float));
        y = room(rows * DIM * sizeof(float));
    }
    struct mat *m = l->mat;
    for (int i = 0; i < 7; i++)
        m[i] = matrix(i < 2 ? WEIGHT_FP8 : WEIGHT_BF16, width[i], DIM);
    m[7] = matrix(WEIGHT_FP8, HEADS * HEAD, RANK);
    m[8] = matrix(WEIGHT_FP8, 64 * 128, RANK);
    m[9] = matrix(WEIGHT_FP8, 8 * RANK, DIM);
    m[10] = matrix(WEIGHT_FP8, DIM, 8 * RANK);
    l->in = (struct attn_in_args){x,    &m[0],  &m[1],  &m[2],  &m[3],  &m[4],  &m[5], &m[6], norm,
                                  norm, out[0], out[1], out[2], out[4], out[6], 0.01f, 1e-6f, 0};
    l->q = (struct q_path_args){qr, &m[7], &m[8], cs, q, qi, 0, HEADS, HEAD, 64, 64, 128, 1e-6f};
    l->out = (struct attn_out_args){o, &m[9], &m[10], y, 0, 8};
    l->q.packed = l->out.packed = kernels.heads_packed && kernels.heads_packed(&l->q, &l->out);
    l->experts = (struct experts_args){.x = x, .y = y};
}

static int launch(char name, struct layer *l, int n)
{
    l->in.n_rows = l->q.n_rows = l->out.n_rows = l->experts.n_rows = head.n = n;
    switch (name) {
    case 'i':
        return kernels.attn_in(&l->in, &stream);
    case 'q':
        return kernels.q_path(&l->q, &stream);
    case 'o':
        return kernels.attn_out(&l->out, &stream);
    case 'e':
        return kernels.experts(&l->experts, &stream);
    default:
        return kernels.head(&head, &stream);
    }
}

static bool rests;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The driver's functions: the program itself links none of CUDA. */
static double time_graph(char name, int n)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *graph = NULL, *exec = NULL;
    int (*begin)(void *, int), (*end)(void *, void **), (*sync)(void *), (*play)(void *, void *);
    int (*make)(void **, void *, unsigned long long);
    *(void **)&begin = dlsym(cuda, "cuStreamBeginCapture_v2");
    *(void **)&end = dlsym(cuda, "cuStreamEndCapture");
    *(void **)&make = dlsym(cuda, "cuGraphInstantiateWithFlags");
    *(void **)&play = dlsym(cuda, "cuGraphLaunch");
    *(void **)&sync = dlsym(cuda, "cuStreamSynchronize");
    for (int i = 0; i < LAYERS; i++)
        if (launch(name, &layer[i], n) < 0 || stream_sync(&stream) < 0)
            stop("launch");
    if (begin(stream.queue, 2))
        stop("begin of a graph");
    for (int i = 0; i < LAYERS; i++)
        launch(name, &layer[i], n);
    if (end(stream.queue, &graph) || make(&exec, graph, 0) || play(exec, stream.queue) ||
        sync(stream.queue))
        stop("graph");
    double best = 1e30;
    for (int pass = 0; pass < 5; pass++) {
        int times = rests ? 1 : 20;
        if (rests)
            nanosleep(&(struct timespec){0, 500000000}, NULL);
        double t = now_us();
        for (int r = 0; r < times; r++)
            play(exec, stream.queue);
        if (sync(stream.queue))
            stop("graph");
        best = FST_MIN(best, (now_us() - t) / (times * LAYERS));
    }
    return best;
}

static double distinct(const int32_t *expert, int n_rows)
{
    char seen[EXPERTS] = {0};
    int n = 0;
    for (int i = 0; i < n_rows * K; i++)
        n += !seen[expert[i]] ? seen[expert[i]] = 1 : 0;
    return n;
}

static int32_t *make_experts(int rows)
{
    int32_t *expert = malloc((size_t)rows * K * sizeof *expert);
    int32_t *far = room((size_t)rows * K * sizeof *far);
    float *weight = activations((size_t)rows * K);
    route(expert, rows);
    if (device_copy(dev, far, expert, (size_t)rows * K * sizeof *far) < 0)
        stop("copy");
    for (int i = 0; i < LAYERS; i++) {
        struct layer *l = &layer[i];
        l->shared = (struct expert_mats){matrix(WEIGHT_FP8, MOE, DIM), matrix(WEIGHT_FP8, MOE, DIM),
                                         matrix(WEIGHT_FP8, DIM, MOE)};
        l->experts = (struct experts_args){.x = l->experts.x,
                                           .expert = far,
                                           .weight = weight,
                                           .experts = routed(),
                                           .routed = WEIGHT_FP4,
                                           .shared = &l->shared,
                                           .y = l->experts.y,
                                           .k = K,
                                           .n_experts = EXPERTS,
                                           .dim = DIM,
                                           .moe_dim = MOE,
                                           .limit = 10};
    }
    return expert;
}

static void make_head(void)
{
    int32_t *row = device_alloc_shared(dev, HEAD_ROWS * sizeof *row);
    float *four = activations(4);
    for (int i = 0; i < HEAD_ROWS; i++)
        row[i] = i;
    head_mat = matrix(WEIGHT_BF16, VOCAB, DIM);
    head = (struct head_args){activations((size_t)HEAD_ROWS * 4 * DIM),
                              row,
                              activations((size_t)16 * DIM),
                              four,
                              four,
                              activations(DIM),
                              &head_mat,
                              room((size_t)HEAD_ROWS * DIM * 4),
                              room((size_t)HEAD_ROWS * VOCAB * 4),
                              0,
                              DIM,
                              1e-6f,
                              1e-6f};
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        char key;
        double mb;
    } entries[] = {{"attn_in", 'i', 6.29 + 16.78 + 4.72},
                   {"q_path", 'q', 33.55 + 8.39},
                   {"attn_out", 'o', 67.1},
                   {"experts", 'e', 0},
                   {"head", 'h', 1059}};
    static const int rows[] = {1, 6, 8, 16, 32, 128, 1024, 8192};
    int most = argc > 1 ? (int)strtol(argv[1], NULL, 10) : HEAD_ROWS;
    const char *names = argc > 2 ? argv[2] : "iqoeh";
    int only = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0;
    rests = argc > 4;
    if (device_open(&dev, "cuda") < 0 ||
        kernels_of_device(&kernels, dev, getenv("FIRESTEEL_KERNELS"), PRECISION_NATIVE) < 0)
        stop("card");
    struct kernel_limits lim = {most, DIM, HEADS, HEAD, RANK, RANK,  8,   MOE, EXPERTS,
                                K,    64,  128,   512,  3,    VOCAB, 256, 128, 4096};
    if (stream_init(&stream, dev, NULL, PRECISION_NATIVE,
                    kernels_scratch_bytes(&kernels, &lim, 1)) < 0)
        stop("scratch");
    make_patterns();
    for (int i = 0; i < LAYERS; i++)
        make_projections(&layer[i], (size_t)most);
    int32_t *expert = strchr(names, 'e') ? make_experts(most) : NULL;
    make_head();
    for (size_t e = 0; e < FST_COUNT(entries); e++)
        for (size_t r = 0; r < FST_COUNT(rows) && strchr(names, entries[e].key); r++) {
            int n = rows[r];
            if (n > most || (only && n != only) || (entries[e].key == 'h' && n > HEAD_ROWS))
                continue;
            double mb = entries[e].key == 'e' ? distinct(expert, n) * 13.37 + 25.2 : entries[e].mb;
            double us = time_graph(entries[e].key, n);
            printf("%-5s %-9s %5d rows %9.2f us  %7.1f MB  %5.2f TB/s %5.1f %%\n", kernels.name,
                   entries[e].name, n, us, mb, mb / us, 100 * mb / 4.6 / us);
        }
    return 0;
}
