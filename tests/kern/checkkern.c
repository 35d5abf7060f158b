/* checkkern.c - the harness: every set of kernels that this machine runs, against ref.
 *
 * checkkern                 all entries, sets ref, avx2, avx512, and kernels/gpu emulated with waves
 *                           of 32 and 64 lanes
 * checkkern --set NAME      one set: ref, avx2, avx512, wave32, wave64, or cuda, which needs a card
 * checkkern ENTRY           one entry
 * checkkern --bench [ENTRY] times (table on stdout, then JSON); --threads 1 counts the thread's CPU
 *                           time, so that a busy machine does not blur it
 * checkkern --seed N        another seed; FST_TEST_SIZE=long: 8192 rows too
 * checkkern --sweep N       N seeds, prints the largest NMSE seen per entry */
#include "checkkern.h"

#include <inttypes.h>
#include <stdarg.h>

#include "kernels/ref/ref.h"
#include "kernels/self_test.h"

const struct ck_shape ck_kindling = {"kindling", 256, 8,  512, 64,  128,  128, 1,  256,
                                     8,          2,   64, 128, 128, 4096, 3,   64, 128};
const struct ck_shape ck_flash = {"flash", 4096, 64, 512, 64,  1024, 1024, 8,   2048,
                                  256,     6,    64, 128, 512, 2048, 3,    256, 128};
const struct ck_shape ck_pro = {"pro", 7168, 128, 512, 64,   1536, 1024, 16,  3072,
                                384,   6,    64,  128, 1024, 1024, 3,    256, 128};

const struct ck_shape ck_t1 = {"t1", 256, 4,  128, 64, 128, 128, 2,  128,
                               8,    2,   16, 128, 8,  512, 3,   64, 16};

/* ---------------------------------------------------------------- data */

uint64_t ck_next(struct ck *c)
{
    c->rng ^= c->rng << 13;
    c->rng ^= c->rng >> 7;
    c->rng ^= c->rng << 17;
    return c->rng;
}

float ck_uniform(struct ck *c)
{
    return (float)(int32_t)(ck_next(c) >> 32) * 0x1p-31f;
}

float ck_normal(struct ck *c)
{
    float s = 0;
    for (int i = 0; i < 6; i++) /* variance of one: 1/3 */
        s += ck_uniform(c);
    return s * 0.70710678f;
}

int ck_below(struct ck *c, int n)
{
    return (int)((ck_next(c) >> 33) % (uint64_t)n);
}

float ck_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + ((u >> 16) & 1) + 0x7fff) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

void ck_floats(struct ck *c, float *x, int64_t n, float mean, float spread)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = mean + spread * ck_normal(c);
}

void ck_activations(struct ck *c, float *x, int64_t n_rows, int width, float scale)
{
    for (int64_t t = 0; t < n_rows; t++) {
        float *row = x + t * width, s = scale;
        int kind = ck_below(c, 12);
        if (kind == 0)
            s *= 1e-6f; /* below the floor of the FP8 scale in parts */
        if (kind == 1)
            s *= 300;
        for (int i = 0; i < width; i++)
            row[i] = ck_bf16(s * ck_normal(c));
        if (kind == 2)
            row[ck_below(c, width)] = ck_bf16(1000 * scale);
        if (kind == 3) /* a block of nothing */
            memset(row, 0, (size_t)FST_MIN(width, 128) * 4);
    }
}

enum { GUARD = 256, BLOCKS_MAX = 4096 };
static const uint8_t guard_byte = 0xa7;
static struct {
    uint8_t *p;
    size_t bytes;
} blocks[BLOCKS_MAX];
static int n_blocks;

/* What a card's kernels are to see is cut from one piece of shared memory: pinning thousands of small
 * ones takes minutes. */
static uint8_t *arena_take(struct ck *c, size_t bytes)
{
    FST_ASSERT(c->arena_used + bytes <= c->arena_bytes);
    uint8_t *p = c->arena + c->arena_used;
    c->arena_used += bytes;
    return p;
}

void *ck_alloc(struct ck *c, size_t bytes)
{
    size_t whole = (size_t)round_up((int64_t)bytes, 64) + 2 * GUARD;
    uint8_t *p = c->device ? arena_take(c, whole) : mem_aligned(64, whole);
    FST_ASSERT(p);
    FST_ASSERT(n_blocks < BLOCKS_MAX);
    memset(p, guard_byte, whole);
    memset(p + GUARD, 0, bytes);
    blocks[n_blocks].p = p;
    blocks[n_blocks++].bytes = bytes;
    return p + GUARD;
}

/* True when every byte around the blocks is as it was. */
static bool guards_whole(void)
{
    for (int b = 0; b < n_blocks; b++) {
        size_t whole = (size_t)round_up((int64_t)blocks[b].bytes, 64) + 2 * GUARD;
        for (size_t i = 0; i < whole; i++) {
            if (i == GUARD)
                i += blocks[b].bytes;
            if (i < whole && blocks[b].p[i] != guard_byte)
                return false;
        }
    }
    return true;
}

void ck_free_all(struct ck *c)
{
    for (int b = 0; b < n_blocks && !c->device; b++)
        mem_free(blocks[b].p);
    n_blocks = 0;
    c->arena_used = 0;
}

struct mat ck_mat(struct ck *c, enum weight_format fmt, int n_out, int n_in, float gain)
{
    struct mat m = {.fmt = fmt, .n_out = n_out, .n_in = n_in};
    int64_t n = (int64_t)n_out * n_in;
    float size = gain / sqrtf((float)n_in);
    int e = (int)floorf(log2f(size)), odd = c->k.flags & KERN_GPU ? 0 : 1;
    if (fmt == WEIGHT_F32 || fmt == WEIGHT_BF16) {
        int bytes = fmt == WEIGHT_F32 ? 4 : 2;
        uint8_t *p = (uint8_t *)ck_alloc(c, (size_t)(n * bytes) + 1) + (fmt == WEIGHT_BF16) * odd;
        for (int64_t i = 0; i < n; i++) {
            float v = size * ck_normal(c);
            uint32_t u;
            if (fmt == WEIGHT_BF16)
                v = ck_bf16(v);
            memcpy(&u, &v, 4);
            u >>= fmt == WEIGHT_BF16 ? 16 : 0;
            memcpy(p + i * bytes, &u, (size_t)bytes);
        }
        m.data = p;
        return m;
    }
    uint8_t *p = (uint8_t *)ck_alloc(c, (size_t)n + 1) + odd;
    int64_t n_scales =
        fmt == WEIGHT_FP8 ? div_up(n_out, 128) * div_up(n_in, 128) : (int64_t)n_out * (n_in / 32);
    uint8_t *s = (uint8_t *)ck_alloc(c, (size_t)n_scales + 1) + odd;
    if (fmt == WEIGHT_FP8)
        for (int64_t i = 0; i < n; i++) { /* all codes but the two NaNs; mostly 2^1 .. 2^7 */
            uint64_t r = ck_next(c) >> 20;
            bool common = c->bench || (r >> 8 & 15);
            uint64_t code = common ? 0x40 + (r >> 12) % 48 : (r >> 12) % 127;
            p[i] = (uint8_t)((r & 0x80) | code);
        }
    else
        for (int64_t i = 0; i < n / 2; i++)
            p[i] = (uint8_t)(ck_next(c) >> 33);
    for (int64_t i = 0; i < n_scales; i++)
        s[i] = (uint8_t)(127 + e - (fmt == WEIGHT_FP8 ? 5 : 1) + ck_below(c, 3));
    m.data = p;
    m.scale = s;
    return m;
}

double ck_nmse(const float *a, const float *b, int64_t n)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(a[i]) != isnan(b[i]))
            return (double)INFINITY;
        if (a[i] == b[i] || isnan(a[i]))
            continue;
        double x = (double)a[i] - (double)b[i];
        d += x * x;
    }
    for (int64_t i = 0; i < n; i++)
        s += isfinite(b[i]) ? (double)b[i] * (double)b[i] : 0;
    return d == 0 ? 0 : d / fmax(s, 1e-60);
}

/* Place of value i of row t of packed heads, `wide` values a row, of a step of n rows.  q: in order.  o: 4,096
 * rows at a time; value 16q+4j+i of every 64 in piece 2j + i/2 of 8 values, at 2q + i%2; from 33 rows on in
 * tiles of up to 128 rows, where the rows' first lines of 64 values come first, then their second ones,
 * and pieces are crossed with the row's last three bits. */
static int64_t packed_place(int64_t t, int64_t i, int64_t n, int64_t wide, bool o)
{
    int64_t base = t / 4096 * 4096, rows = FST_MIN(n - base, 4096), row = t - base;
    int64_t line = i / 64, v = i % 64, piece = v / 4 % 4 * 2 + v % 4 / 2, at = v / 16 * 2 + v % 2;
    if (!o)
        return t * wide + i;
    if (rows < 33)
        return (base + row) * wide + line * 64 + piece * 8 + at;
    int64_t tiles = (rows + 127) / 128, tall = round_up(div_up(rows, tiles), 8);
    int64_t first = row / tall * tall, here = round_up(FST_MIN(tall, rows - first), 8),
            r = row - first;
    return (base + first) * wide + (line * here + r) * 64 + (piece ^ r % 8) * 8 + at;
}

void ck_pack(float *x, int64_t n, int64_t wide, bool o)
{
    uint16_t *to = mem_calloc((size_t)(round_up(n, 8) * wide), sizeof *to);
    FST_ASSERT(to);
    for (int64_t i = 0; i < n * wide; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        to[packed_place(i / wide, i % wide, n, wide, o)] = (uint16_t)(u >> 16);
    }
    memcpy(x, to, (size_t)FST_MIN(round_up(n, 8), 2 * n) * (size_t)wide * sizeof *to);
    mem_free(to);
}

void ck_unpack(float *x, int64_t n, int64_t wide, bool o)
{
    size_t bytes = (size_t)(n * wide) * sizeof *x;
    uint16_t *from = mem_alloc(bytes);
    FST_ASSERT(from);
    memcpy(from, x, bytes);
    for (int64_t i = 0; i < n * wide; i++) {
        uint32_t u = (uint32_t)from[packed_place(i / wide, i % wide, n, wide, o)] << 16;
        memcpy(x + i, &u, 4);
    }
    mem_free(from);
}

/* Codes: rows one after the other, then their scales.  Value 32q+8j+i of every 128 at 32j + 4q + i, or
 * 12 on for i > 3; for FP4 weights value 32j+8q+2i+h at 32j + 16h + 4q + i. */
static uint8_t *put_codes(uint8_t *to, const float *x, int64_t n, int64_t wide, bool fp4)
{
    float *scale = (float *)(void *)(to + n * wide);
    for (int64_t b = 0; b < n * wide / 128; b++) {
        float v[128];
        uint8_t code;
        memcpy(v, x + b * 128, sizeof v);
        ref_fp8_grid(v, 128, 128, &code);
        scale[b] = ldexpf(1, code - 127);
        for (int i = 0; i < 128; i++) {
            int j = fp4 ? i / 32 : i / 8 % 4, q = fp4 ? i / 8 % 4 : i / 32, at = 32 * j + 4 * q;
            at += fp4 ? i % 2 * 16 + i % 8 / 2 : i % 8 < 4 ? i % 8 : 12 + i % 8;
            to[b * 128 + at] = ref_e4m3_encode(v[i] / scale[b]);
        }
    }
    return to + round_up(n * wide + n * wide / 128 * 4, 256);
}

size_t ck_operand(uint8_t *to, const float *x, int n, int wide)
{
    uint8_t *fp4 = put_codes(to, x, n, wide, false), *raw = put_codes(fp4, x, n, wide, true);
    for (int64_t i = 0; i < (int64_t)n * wide; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        u >>= 16;
        memcpy(raw + 2 * packed_place(0, i, 1, 0, true), &u, 2);
    }
    memset(raw + 2 * (int64_t)n * wide, 0, 8);
    return (size_t)n * (size_t)wide / 128 * 132;
}

void ck_scratch(struct ck *c, const struct ck_shape *m, int n_rows, int64_t max_entries)
{
    struct kernel_limits l = {n_rows,         m->dim,       m->n_heads, m->head_dim,  m->q_rank,
                              m->o_rank,      m->groups,    m->moe_dim, m->n_experts, m->k,
                              m->index_heads, m->index_dim, m->topk,    m->n_stages,  m->vocab,
                              m->rank,        m->window,    max_entries};
    size_t n = kernels_scratch_bytes(&c->k, &l, 3), n_ref = kernels_scratch_bytes(&c->ref, &l, 3);
    FST_ASSERT(n <= c->scratch_bytes);
    FST_ASSERT(n_ref <= c->scratch_bytes);
    c->s.scratch_bytes = n;
    c->s_ref.scratch_bytes = n_ref;
}

/* ---------------------------------------------------------------- verdicts */

static const char *const entry_names[] = {
#define CK_NAME(entry, args) #entry,
    KERNELS_MAP(CK_NAME)
#undef CK_NAME
};

static int entry_index(const char *entry)
{
    for (size_t i = 0; i < FST_COUNT(entry_names); i++)
        if (strcmp(entry_names[i], entry) == 0)
            return (int)i;
    FST_ASSERT(!"entry of the table");
    return 0;
}

bool ck_wanted(const struct ck *c, const char *entry)
{
    return !c->only || strcmp(c->only, entry) == 0;
}

void ck_verdict(struct ck *c, bool ok, const char *entry, const char *fmt, ...)
{
    if (ok) {
        c->passed++;
        return;
    }
    va_list ap;
    c->failed++;
    printf("FAIL %s %s: ", c->k.name, entry);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf(" (seed %" PRIu64 ")\n", c->seed);
}

/* ---------------------------------------------------------------- cases */

static void add_out(struct ck_case *t, struct ck *c, const char *name, void *slot, int64_t width,
                    double nmse, bool is_int)
{
    FST_ASSERT(t->n_outputs < CK_OUTPUTS);
    void *data = ck_alloc(c, (size_t)(t->n_rows * width) * 4);
    t->out[t->n_outputs++] = (struct ck_output){name, data, width, nmse, is_int};
    memcpy(slot, &data, sizeof data);
}

void ck_out(struct ck_case *t, struct ck *c, const char *name, void *slot, int64_t width,
            double nmse)
{
    add_out(t, c, name, slot, width, nmse, false);
}

void ck_out_int(struct ck_case *t, struct ck *c, const char *name, void *slot, int64_t width)
{
    add_out(t, c, name, slot, width, 0, true);
}

static size_t row_bytes(const struct ck_output *o)
{
    return (size_t)o->width * 4;
}

static void poison(struct ck_case *t)
{
    for (int i = 0; i < t->n_outputs; i++)
        memset(t->out[i].data, 0x7e, (size_t)t->n_rows * row_bytes(&t->out[i]));
}

static void *save(const struct ck_output *o, int rows)
{
    size_t n = (size_t)rows * row_bytes(o);
    void *p = mem_alloc(n + 1);
    FST_ASSERT(p);
    memcpy(p, o->data, n);
    return p;
}

static void run_rows(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                     int rows, int chunk)
{
    if (t->reset)
        t->reset(c, t);
    for (int first = 0; first < rows; first += chunk)
        t->run(c, t, k, s, first, FST_MIN(chunk, rows - first));
}

/* Row of the first difference in bits, -1: none. */
static int64_t first_change(const struct ck_output *o, const void *before, int rows)
{
    const uint8_t *a = o->data, *b = before;
    for (int64_t r = 0; r < rows; r++)
        if (memcmp(a + (size_t)r * row_bytes(o), b + (size_t)r * row_bytes(o), row_bytes(o)))
            return r;
    return -1;
}

static void check_values(struct ck *c, const struct ck_case *t, void *const *truth)
{
    for (int i = 0; i < t->n_outputs; i++) {
        const struct ck_output *o = &t->out[i];
        if (o->nmse < 0) /* bits among batches only */
            continue;
        if (o->nmse == 0) {
            int64_t at = first_change(o, truth[i], t->n_ref);
            ck_verdict(c, at < 0, t->entry, "%s: %s differs from ref in row %lld", t->label,
                       o->name, (long long)at);
            continue;
        }
        double all = ck_nmse(o->data, truth[i], t->n_ref * o->width), worst = 0;
        int64_t at = 0;
        for (int64_t r = 0; r < t->n_ref; r++) {
            double e = ck_nmse((float *)o->data + r * o->width, (float *)truth[i] + r * o->width,
                               o->width);
            if (e > worst) {
                worst = e;
                at = r;
            }
        }
        double *seen = &c->worst[entry_index(t->entry)];
        *seen = fmax(*seen, all / o->nmse);
        /* one row alone may be noisier: 20 times */
        ck_verdict(c, all <= o->nmse && worst <= 20 * o->nmse, t->entry,
                   "%s: %s NMSE %.3g, row %lld %.3g, allowed %.3g", t->label, o->name, all,
                   (long long)at, worst, o->nmse);
    }
}

static void check_bits(struct ck *c, const struct ck_case *t, void *const *before, int rows,
                       const char *what, int n)
{
    bool ok = true;
    for (int i = 0; i < t->n_outputs && ok; i++) {
        int64_t at = first_change(&t->out[i], before[i], rows);
        ok = at < 0;
        if (!ok)
            ck_verdict(c, false, t->entry, "%s: %s changes with %s %d in row %lld", t->label,
                       t->out[i].name, what, n, (long long)at);
    }
    if (ok)
        ck_verdict(c, true, t->entry, " ");
}

static void bench(struct ck *c, struct ck_case *t);

void ck_run(struct ck *c, struct ck_case *t)
{
    void *truth[CK_OUTPUTS] = {0}, *whole[CK_OUTPUTS] = {0};
    bool is_ref = c->k.flags == 0;
    if (c->bench) {
        bench(c, t);
        return;
    }
    int rows = is_ref ? t->n_ref : t->n_rows; /* ref against itself only on a few rows */
    if (!is_ref) {
        poison(t);
        run_rows(c, t, &c->ref, &c->s_ref, t->n_ref, t->n_ref);
        for (int i = 0; i < t->n_outputs; i++)
            truth[i] = save(&t->out[i], t->n_ref);
    }
    poison(t);
    run_rows(c, t, &c->k, &c->s, rows, rows);
    ck_verdict(c, guards_whole(), t->entry, "%s: wrote outside its outputs", t->label);
    for (int i = 0; i < t->n_outputs; i++)
        whole[i] = save(&t->out[i], rows);
    if (!is_ref)
        check_values(c, t, truth);
    static const int chunks[] = {1, 6, 7, 16, 24, 64, 128, 1024};
    for (size_t i = 0; i < FST_COUNT(chunks) && !c->sweep; i++) {
        if (chunks[i] >= rows && i)
            break;
        int some = t->sequential ? rows : FST_MIN(rows, 4 * chunks[i] + 3);
        poison(t);
        run_rows(c, t, &c->k, &c->s, some, chunks[i]);
        check_bits(c, t, whole, some, "batches of", chunks[i]);
    }
    bool threaded = !(c->k.flags & KERN_GPU);
    for (int threads = 1; threads <= 3 && !c->sweep && threaded; threads++) {
        struct stream s = c->s;
        s.pool = c->pool[threads];
        poison(t);
        run_rows(c, t, &c->k, &s, rows, rows);
        check_bits(c, t, whole, rows, "threads", threads);
    }
    if (!t->sequential && !c->sweep) { /* no rows: nothing is touched */
        void *kept[CK_OUTPUTS];
        for (int i = 0; i < t->n_outputs; i++)
            kept[i] = save(&t->out[i], rows);
        t->run(c, t, &c->k, &c->s, 0, 0);
        check_bits(c, t, kept, rows, "rows", 0);
        for (int i = 0; i < t->n_outputs; i++)
            mem_free(kept[i]);
    }
    ck_verdict(c, guards_whole(), t->entry, "%s: wrote outside its outputs in small batches",
               t->label);
    for (int i = 0; i < t->n_outputs; i++) {
        mem_free(truth[i]);
        mem_free(whole[i]);
    }
}

/* ---------------------------------------------------------------- times */

static double now_s(const struct ck *c)
{
    struct timespec t;
    clock_gettime(c->s.pool ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static struct {
    char set[16], entry[16], label[96];
    int rows;
    double ns, gbs, gmacs, share;
} timed[1024];
static int n_timed;

/* Weights of this size come from memory in every run: the memory roof counts. */
#define BEYOND_CACHE (64 << 20)

/* The time that one run in eight beats, over 0.15 s. */
static void bench(struct ck *c, struct ck_case *t)
{
    double ns[256], end, start = now_s(c);
    int n = 0;
    poison(t);
    run_rows(c, t, &c->k, &c->s, t->n_rows, t->n_rows);
    do {
        if (t->reset)
            t->reset(c, t);
        double a = now_s(c);
        t->run(c, t, &c->k, &c->s, 0, t->n_rows);
        end = now_s(c);
        ns[n++] = (end - a) * 1e9;
    } while (n < 256 && (end - start < 0.15 || n < 3));
    qsort(ns, (size_t)n, sizeof *ns, by_value);
    double best = ns[n / 8], gbs = (double)t->bytes / best, gmacs = (double)t->macs / best;
    double floor_ns = (double)t->macs / c->roof_gmacs;
    if (t->bytes > BEYOND_CACHE)
        floor_ns = fmax(floor_ns, (double)t->bytes / c->roof_gbs);
    FST_ASSERT(n_timed < (int)FST_COUNT(timed));
    snprintf(timed[n_timed].set, sizeof timed->set, "%s", c->k.name);
    snprintf(timed[n_timed].entry, sizeof timed->entry, "%s", t->entry);
    snprintf(timed[n_timed].label, sizeof timed->label, "%s", t->label);
    timed[n_timed].rows = t->n_rows;
    timed[n_timed].ns = best;
    timed[n_timed].gbs = gbs;
    timed[n_timed].gmacs = gmacs;
    timed[n_timed++].share = floor_ns / best;
    printf("%-7s %-12s %-40s %5d rows %12.0f ns %8.2f GB/s %8.2f GMAC/s %5.1f%%\n", c->k.name,
           t->entry, t->label, t->n_rows, best, gbs, gmacs, 100 * floor_ns / best);
    fflush(stdout);
}

static void roof_body(void *ud, int64_t first, int64_t last, int worker)
{
    const uint64_t *p = ud;
    uint64_t s = 0;
    for (int64_t i = first; i < last; i++)
        for (int j = 0; j < 512; j++)
            s += p[i * 512 + j];
    ((volatile uint64_t *)ud)[worker] = s & 1;
}

/* Read bandwidth of memory: 256 MiB, all threads. */
static void measure_memory(struct ck *c)
{
    int64_t n = 64 << 10;
    uint64_t *p = ck_alloc(c, (size_t)n * 4096);
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        double a = now_s(c);
        pool_run(c->s.pool, n, 64, roof_body, p);
        best = fmin(best, now_s(c) - a);
    }
    c->roof_gbs = (double)n * 4096 / best * 1e-9;
    ck_free_all(c);
}

/* Multiply-adds of this set: a bf16 product that stays in cache, 96 rows (its norms are 1%). */
static void measure_products(struct ck *c)
{
    enum { N = 96, DIM = 512, OUT = 1024 };
    struct mat head = ck_mat(c, WEIGHT_BF16, OUT, DIM, 1);
    float *zero = ck_alloc(c, 16 * DIM * 4), base[4] = {0}, scale = 1;
    int32_t *row = ck_alloc(c, N * 4);
    struct head_args a = {.x = zero,
                          .row = row,
                          .fn = zero,
                          .base = base,
                          .scale = &scale,
                          .norm = zero,
                          .head = &head,
                          .n = N,
                          .dim = DIM,
                          .hc_eps = 1e-6f,
                          .norm_eps = 1e-6f};
    double best = 1e30;
    a.y = ck_alloc(c, N * DIM * 4);
    a.logits = ck_alloc(c, N * OUT * 4);
    for (int i = 0; i < 20; i++) {
        double t = now_s(c);
        FST_ASSERT(c->k.head(&a, &c->s) == FST_OK);
        best = fmin(best, now_s(c) - t);
    }
    c->roof_gmacs = (double)N * DIM * OUT / best * 1e-9;
    printf("%s: %.1f GMAC/s in cache, %.1f GB/s from memory, %d thread(s)\n", c->k.name,
           c->roof_gmacs, c->roof_gbs, pool_threads(c->s.pool));
    ck_free_all(c);
}

static void print_json(const struct ck *c)
{
    printf("{\"roof_gbs\": %.2f, \"threads\": %d, \"rows\": [\n", c->roof_gbs,
           pool_threads(c->s.pool));
    for (int i = 0; i < n_timed; i++)
        printf(
            "  {\"name\": \"kernel/%s\", \"set\": \"%s\", \"case\": \"%s\", \"rows\": %d, "
            "\"time_us\": %.3f, \"gbs\": %.3f, \"gmacs\": %.3f, \"fraction_of_floor\": %.4f}%s\n",
            timed[i].entry, timed[i].set, timed[i].label, timed[i].rows, timed[i].ns * 1e-3,
            timed[i].gbs, timed[i].gmacs, timed[i].share, i + 1 < n_timed ? "," : "");
    printf("]}\n");
}

/* ---------------------------------------------------------------- main */

static void check_select(struct ck *c)
{
    static const char *const good[] = {"ref", "auto", "-avx512", "-avx2", "-avx512,-avx2"};
    static const char *const bad[] = {"sse9", "-ref", "-", "avx512,", "-avx512;-avx2"};
    unsigned have = kernels_probe();
    struct kernels k;
    for (size_t i = 0; i < FST_COUNT(good); i++)
        ck_verdict(c, kernels_select(&k, good[i], PRECISION_NATIVE) == FST_OK, "select", "'%s'",
                   good[i]);
    for (size_t i = 0; i < FST_COUNT(bad); i++)
        ck_verdict(c, kernels_select(&k, bad[i], PRECISION_NATIVE) == FST_EINVAL, "select",
                   "'%s' taken", bad[i]);
    ck_verdict(
        c, kernels_select(&k, "-avx512", PRECISION_NATIVE) == FST_OK && !(k.flags & KERN_AVX512),
        "select", "-avx512 leaves it on");
    ck_verdict(c, kernels_select(&k, "auto", PRECISION_REFERENCE) == FST_OK && k.flags == 0,
               "select", "reference precision is not on ref");
    ck_verdict(c,
               kernels_select(&k, "avx2", PRECISION_REFERENCE) ==
                   (have & KERN_AVX2 ? FST_EINVAL : FST_EMACHINE),
               "select", "reference precision on avx2");
}

static struct kernels right;
static enum fst_status experts_off(const struct experts_args *a, struct stream *s)
{
    enum fst_status rc = right.experts(a, s);
    for (int i = 0; i < a->n_rows * a->dim; i++)
        a->y[i] *= 1.1f;
    return rc;
}

/* What an engine runs before it is ready. */
static void check_self_test(struct ck *c)
{
    struct self_test t = {.seed = c->seed};
    struct kernels broken = right = c->k;
    if (!ck_wanted(c, "self_test") || c->bench)
        return;
    bool ok = kernels_self_test(&c->k, c->device, 0, &t) == FST_OK;
    ck_verdict(c, ok, "self_test", "%s", ok ? "" : fst_error_text());
    broken.experts = experts_off;
    ok = kernels_self_test(&broken, c->device, 0, &t) == FST_EINTERNAL;
    ck_verdict(c, ok && strstr(fst_error_text(), "experts of"), "self_test",
               "experts that are off by a tenth pass, or: %s", fst_error_text());
}

static void one_pass(struct ck *c)
{
    c->rng = c->seed * 0x9e3779b97f4a7c15u + 1;
    check_formats(c);
    check_project(c);
    check_draw(c);
    check_kv(c);
    check_fill(c);
    check_copy(c);
    check_self_test(c);
}

#ifdef CK_EMULATE /* the build has kernels/gpu compiled for the CPU */
bool kernels_fill_emulate32(void *table, size_t bytes);
bool kernels_fill_emulate64(void *table, size_t bytes);
bool kernels_fill_sm90_emulated(void *table, size_t bytes);
#else
#define kernels_fill_emulate32     NULL
#define kernels_fill_emulate64     NULL
#define kernels_fill_sm90_emulated NULL
#endif

static const struct ck_set {
    const char *name;
    unsigned flags;
    bool (*fill)(void *table, size_t bytes);
} sets[] = {{"ref", 0, NULL},
            {"avx2", KERN_AVX2, NULL},
            {"avx512", KERN_AVX2 | KERN_AVX512, NULL},
            {"wave32", KERN_GPU, kernels_fill_emulate32},
            {"wave64", KERN_GPU, kernels_fill_emulate64},
            {"hopper", KERN_GPU, kernels_fill_sm90_emulated},
            {"cuda", KERN_GPU, NULL}}; /* only when asked for */

/* ---------------------------------------------------------------- a card */

/* Its kernels with a wait behind each: cases look at the results at once. */
static struct kernels queued;
#define CK_SYNCED(entry, args)                                                                     \
    static enum fst_status entry##_synced(const args *a, struct stream *s)                         \
    {                                                                                              \
        enum fst_status rc = queued.entry(a, s);                                                   \
        if (rc == FST_OK)                                                                          \
            rc = stream_sync(s);                                                                   \
        if (rc < 0)                                                                                \
            printf("%s\n", fst_error_text());                                                      \
        return rc;                                                                                 \
    }
KERNELS_MAP(CK_SYNCED)
#undef CK_SYNCED

static bool open_card(struct ck *c, const char *name)
{
    enum { ARENA = 6 };
    if (device_open(&c->device, name) < 0 ||
        kernels_of_device(&queued, c->device, getenv("FIRESTEEL_KERNELS"), PRECISION_NATIVE) < 0) {
        printf("%s\n", fst_error_text());
        return false;
    }
    c->k = queued;
#define CK_FILL(entry, args) c->k.entry = entry##_synced;
    KERNELS_MAP(CK_FILL)
#undef CK_FILL
    c->k.name = name;
    c->hopper = strcmp(queued.name, "sm90") == 0;
    c->arena_bytes = (size_t)ARENA << 30;
    c->arena = device_alloc_shared(c->device, c->arena_bytes);
    FST_ASSERT(c->arena);
    c->s_host = c->s;
    FST_ASSERT(stream_init(&c->s, c->device, NULL, PRECISION_NATIVE, c->scratch_bytes) == FST_OK);
    printf("%s: %s, %d multiprocessors, driver %s\n", name, c->device->card,
           c->device->multiprocessors, c->device->driver);
    return true;
}

static void close_card(struct ck *c)
{
    c->s.scratch_bytes = c->scratch_bytes;
    stream_release(&c->s);
    device_free_shared(c->device, c->arena, c->arena_bytes);
    c->s = c->s_host;
    c->device = NULL;
    c->hopper = false;
}

static bool have_set(const struct ck_set *set, const char *only)
{
    if (strcmp(set->name, "cuda") == 0)
        return only != NULL;
    return set->flags & KERN_GPU ? set->fill != NULL : !(set->flags & ~kernels_probe());
}

static void all_sets(struct ck *c, const char *only, int sweeps)
{
    for (size_t i = 0; i < FST_COUNT(sets); i++) {
        if (only && strcmp(only, sets[i].name))
            continue;
        if (!have_set(&sets[i], only)) {
            if (strcmp(sets[i].name, "cuda") == 0)
                continue;
            printf("%s: not on this machine\n", sets[i].name);
            c->skipped++;
            continue;
        }
        if (c->sweep && sets[i].flags == 0)
            continue;
        c->emulated = sets[i].fill != NULL;
        if (c->emulated && (c->bench || c->sweep)) /* its times say nothing */
            continue;
        int before = c->failed, start = c->passed;
        uint64_t seed = c->seed;
        bool card = strcmp(sets[i].name, "cuda") == 0;
        if (card) {
            if (!open_card(c, sets[i].name)) {
                c->failed++;
                continue;
            }
        } else if (sets[i].fill) {
            FST_ASSERT(sets[i].fill(&c->k, sizeof c->k));
            c->k.name = sets[i].name;
        } else
            kernels_init(&c->k, sets[i].flags);
        if (c->bench)
            measure_products(c);
        for (int n = 0; n < sweeps; n++, c->seed++)
            one_pass(c);
        c->seed = seed;
        if (card)
            close_card(c);
        if (!c->bench)
            printf("%s: %d checks, %d failed\n", sets[i].name,
                   c->passed - start + c->failed - before, c->failed - before);
        if (c->sweep)
            for (size_t e = 0; e < FST_COUNT(entry_names); e++) {
                printf("  %-12s largest NMSE %.3g of the allowed\n", entry_names[e], c->worst[e]);
                c->worst[e] = 0;
            }
    }
}

int main(int argc, char **argv)
{
    struct ck c = {.seed = 1};
    int sweeps = 1, threads = 2;
    const char *size = getenv("FST_TEST_SIZE"), *set = NULL;
    c.is_long = size && strcmp(size, "long") == 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            c.bench = true;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            c.seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--sweep") == 0 && i + 1 < argc) {
            sweeps = (int)strtol(argv[++i], NULL, 10);
            c.sweep = true;
        } else if (strcmp(argv[i], "--set") == 0 && i + 1 < argc)
            set = argv[++i];
        else if (argv[i][0] != '-' && !c.only)
            c.only = argv[i];
        else {
            fprintf(
                stderr,
                "usage: checkkern [--bench] [--seed N] [--sweep N] [--threads 1..3] [--set NAME] "
                "[ENTRY]\n");
            return 2;
        }
    }
    /* which are no entries of the table */
    if (c.only && strcmp(c.only, "fill") != 0 && strcmp(c.only, "self_test") != 0)
        entry_index(c.only);
    FST_ASSERT(threads >= 1 && threads <= 3);
    for (int n = 2; n <= 3; n++)
        FST_ASSERT(pool_new(&c.pool[n], n) == FST_OK);
    size_t scratch = c.scratch_bytes = (size_t)1 << 30;
    FST_ASSERT(stream_init(&c.s, NULL, c.pool[threads], PRECISION_NATIVE, scratch) == FST_OK);
    FST_ASSERT(stream_init(&c.s_ref, NULL, c.pool[threads], PRECISION_NATIVE, scratch) == FST_OK);
    kernels_init(&c.ref, 0);
    kernels_init(&c.k, 0);
    printf("checkkern seed %" PRIu64 "\n", c.seed);
    if (c.bench)
        measure_memory(&c);
    else if (!c.only)
        check_select(&c);
    all_sets(&c, set, sweeps);
    if (c.bench)
        print_json(&c);
    c.s.scratch_bytes = c.s_ref.scratch_bytes = scratch;
    stream_release(&c.s);
    stream_release(&c.s_ref);
    for (int n = 2; n <= 3; n++)
        pool_free(c.pool[n]);
    printf("%d passed, %d failed, %d skipped\n", c.passed, c.failed, c.skipped);
    return c.failed != 0;
}
