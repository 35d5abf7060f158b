/* cmd_bench_step.c - `bench step`: what a step costs, block by block, against what this machine could.
 *
 * Bytes and operations of each block follow from the configuration (DeepSeek-V4 technical report
 * §2); the floor of a row is the larger of bytes over the measured read bandwidth and operations
 * over the measured rate of multiply-adds.  Names weights/config.h by exception. */
#include <immintrin.h>
#include <math.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "tools/tool.h"
#include "weights/config.h"

static const struct option_def defs[] = {
    {.name = "steps",
     .type = OPTION_INT,
     .initial = "64",
     .min = 2,
     .max = 100000,
     .help = "tokens to generate"},
    {.name = "context",
     .type = OPTION_INT,
     .initial = "512",
     .min = 1,
     .max = 1e7,
     .help = "prompt tokens"},
    {.name = "rows",
     .type = OPTION_INT,
     .initial = "1",
     .min = 1,
     .max = 1024,
     .help = "requests decoded together"},
    {.name = "out",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "result file {card, driver, date, build, command, rows}"},
};

enum { BLOCKS_MAX = 64 };

struct machine {
    double read_bytes_s, macs_s;
};

struct cost {
    double bytes, flops;
};

struct row {
    char name[40], kind[16];
    int rows, calls;
    double time_us;
    struct cost c;
};

struct bench {
    fst_engine *e;
    struct fst_engine_info info;
    struct model_config cfg;
    struct machine m;
    int steps, rows;
    int64_t context;
    struct row *out; /* owned */
    size_t n, cap;
    struct rng rng;
};

/* ------------------------------------------------------------------ the machine's ceilings */

/* One pass over n bytes with the widest loads there are: 8-byte ones end at 48 GB/s of a core, below
 * what its caches give. */
__attribute__((target("avx2"))) static uint64_t read_avx2(const uint64_t *p, size_t n)
{
    __m256i s[4] = {0};
    uint64_t out[4];
    for (size_t i = 0; i < n / 8; i += 16)
        for (size_t k = 0; k < 4; k++)
            s[k] = _mm256_xor_si256(s[k], _mm256_load_si256((const void *)(p + i + 4 * k)));
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    _mm256_storeu_si256((void *)out, s[0]);
    return out[0] ^ out[1] ^ out[2] ^ out[3];
}

static uint64_t read_plain(const uint64_t *p, size_t n)
{
    uint64_t s[8] = {0};
    for (size_t i = 0; i < n / 8; i += 16)
        for (size_t k = 0; k < 16; k++)
            s[k % 8] ^= p[i + k];
    return s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

/* Best of the passes of a quarter of a second over as many bytes as the model has: what is in reach of
 * a cache here is in reach of it there.  One thread; the caller multiplies by the threads in use, which
 * is an upper bound, so that no fraction is flattered. */
static double read_rate(size_t n)
{
    n -= n % 128;
    uint64_t *p = mem_aligned(64, n);
    volatile uint64_t sum = 0;
    double best = 0;
    if (!p)
        return 0;
    memset(p, 1, n);
    uint64_t (*f)(const uint64_t *, size_t) =
        __builtin_cpu_supports("avx2") ? read_avx2 : read_plain;
    for (int64_t end = clock_ns() + 250000000, t = 0; t < end;) {
        t = clock_ns();
        sum = sum + f(p, n);
        best = fmax(best, (double)n / clock_seconds(clock_ns() - t));
    }
    mem_free(p);
    return best;
}

enum { MAC_REPS = 400000 };

/* Multiply-adds of MAC_REPS rounds in registers alone: 12 chains hide the latency of 4 to 6 cycles
 * of two units.  Each returns how many it did. */
__attribute__((target("avx512f,avx512bf16"))) static double macs_avx512(void)
{
    __m512 s[12];
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3C003C00), y = x;
    for (int i = 0; i < 12; i++)
        s[i] = _mm512_setzero_ps();
    for (int r = 0; r < MAC_REPS; r++)
        for (int i = 0; i < 12; i++)
            s[i] = _mm512_dpbf16_ps(s[i], x, y);
    float out = 0;
    for (int i = 0; i < 12; i++)
        out += _mm512_reduce_add_ps(s[i]);
    return out > 0 ? 12.0 * 32 * MAC_REPS : 0;
}

__attribute__((target("avx2,fma"))) static double macs_avx2(void)
{
    __m256 s[12], x = _mm256_set1_ps(0.01f);
    for (int i = 0; i < 12; i++)
        s[i] = _mm256_setzero_ps();
    for (int r = 0; r < MAC_REPS; r++)
        for (int i = 0; i < 12; i++)
            s[i] = _mm256_fmadd_ps(x, x, s[i]);
    float out[8], sum = 0;
    for (int i = 0; i < 12; i++) {
        _mm256_storeu_ps(out, s[i]);
        sum += out[0];
    }
    return sum > 0 ? 12.0 * 8 * MAC_REPS : 0;
}

static double macs_plain(void)
{
    float s[12] = {0};
    volatile float one = 0.01f;
    float x = one;
    for (int r = 0; r < MAC_REPS; r++)
        for (int i = 0; i < 12; i++)
            s[i] += x * x;
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += s[i];
    return sum > 0 ? 12.0 * MAC_REPS : 0;
}

/* With the instructions that the named kernels use. */
static double mac_rate(const char *kernels)
{
    double (*f)(void) = !strcmp(kernels, "avx512") ? macs_avx512
                        : !strcmp(kernels, "avx2") ? macs_avx2
                                                   : macs_plain;
    double best = 0;
    for (int pass = 0; pass < 5; pass++) {
        int64_t t = clock_ns();
        double n = f();
        best = fmax(best, n / clock_seconds(clock_ns() - t));
    }
    return best;
}

static void measure_ceilings(struct bench *b)
{
    uint64_t bytes = FST_MAX(b->info.weight_bytes, (uint64_t)4 << 20);
    double read = read_rate((size_t)FST_MIN(bytes, (uint64_t)256 << 20));
    b->m.read_bytes_s = fmax(b->m.read_bytes_s, read * b->info.threads);
    b->m.macs_s = fmax(b->m.macs_s, mac_rate(b->info.kernels) * b->info.threads);
}

/* ------------------------------------------------------------------ cost of a block */

/* T rows at context n through block `name` of all target layers (or of the draft stages). */
static struct cost block_cost(const struct bench *b, const char *name, double t, double n,
                              bool stages)
{
    const struct model_config *c = &b->cfg;
    double D = c->hidden_size, H = c->n_heads, C = c->head_dim, Q = c->q_lora_rank;
    double O = (double)c->o_groups * c->o_lora_rank, I = c->moe_dim, E = c->n_experts;
    double k = c->n_experts_per_token, V = c->vocab_size, HI = c->index_heads, CI = c->index_dim;
    double S = c->n_stages, r = c->markov_rank, layers = stages ? S : c->n_layers;
    struct cost x = {0, 0};
    int n4 = 0, n128 = 0;
    for (int i = 0; i < c->n_layers && !stages; i++) {
        n4 += c->compress_ratio[i] == 4;
        n128 += c->compress_ratio[i] == 128;
    }
    double window = fmin(n, c->window), e4 = n / 4, e128 = n / 128;
    double sel = fmin(e4, c->index_topk), row_bytes = 640; /* FP8 row: 512 + 128 */
    if (!strcmp(name, "seam")) {
        x.bytes = layers * 2 * (24 * 4 * D * 4 + t * 4 * D * 8);
        x.flops = 2 * layers * 2 * t * (24 * 4 * D + 20 * D);
    } else if (!strcmp(name, "attn_in")) {
        double w = layers * D * (Q + C), cmp = D * 2 * C * (2 * n4 + n128);
        double idx = n4 * D * (4 * CI + HI);
        x.bytes = w + 2 * (cmp + idx) + t * D * 4 * layers;
        x.flops = 2 * t * (w + cmp + idx);
    } else if (!strcmp(name, "q_path")) {
        double w = layers * H * C * Q + n4 * HI * CI * Q;
        x.bytes = w + t * layers * H * C * 4;
        x.flops = 2 * t * w;
    } else if (!strcmp(name, "index_topk")) {
        if (e4 > c->index_topk) { /* below that all entries are taken, unread */
            x.bytes = n4 * t * e4 * 68;
            x.flops = 2 * n4 * t * e4 * HI * CI;
        }
    } else if (!strcmp(name, "attention")) {
        double keys = layers * window + n4 * sel + n128 * e128;
        x.bytes = t * keys * row_bytes;
        x.flops = 2 * t * keys * H * C * 2;
    } else if (!strcmp(name, "attn_out")) {
        double a = layers * O * (H * C / c->o_groups), w = layers * D * O;
        x.bytes = 2 * a + w + t * layers * D * 4;
        x.flops = 2 * t * (a + w);
    } else if (!strcmp(name, "route")) {
        x.bytes = layers * E * D * 2;
        x.flops = 2 * t * layers * E * D;
    } else if (!strcmp(name, "experts")) {
        double met = E * (1 - pow(1 - k / E, t)); /* experts that t independent rows meet */
        x.bytes = layers * 3 * I * D * (met * 0.53125 + 1);
        x.flops = 2 * t * layers * 3 * I * D * (k + 1);
    } else if (!strcmp(name, "head")) {
        x.bytes = V * D * 2;
        x.flops = 2 * t * V * D;
    } else if (!strcmp(name, "main_proj")) {
        x.bytes = D * S * D;
        x.flops = 2 * t * D * S * D;
    } else if (!strcmp(name, "draft_chain")) {
        x.bytes = t * V * r * 2;
        x.flops = 2 * t * V * r;
    } else if (!strcmp(name, "draw")) {
        x.bytes = t * V * 4;
        x.flops = t * V;
    } else if (!strcmp(name, "embed")) {
        x.bytes = t * D * (2 + 16);
    } else if (!strcmp(name, "kv_write") || !strcmp(name, "ring_store")) {
        x.bytes = t * layers * row_bytes;
    } else if (!strcmp(name, "rope")) {
        x.bytes = t * c->rope_dim * 4;
    }
    return x;
}

static struct cost whole_cost(const struct bench *b, double t, double heads, double n, bool stages)
{
    static const char *const names[] = {"seam",      "attn_in",  "q_path", "index_topk",
                                        "attention", "attn_out", "route",  "experts",
                                        "kv_write",  "embed",    "rope"};
    struct cost sum = {0, 0};
    for (size_t i = 0; i < FST_COUNT(names); i++) {
        struct cost c = block_cost(b, names[i], t, n, stages);
        sum.bytes += c.bytes;
        sum.flops += c.flops;
    }
    struct cost h = block_cost(b, "head", heads, n, stages);
    return (struct cost){sum.bytes + h.bytes, sum.flops + h.flops};
}

/* ------------------------------------------------------------------ running */

static void add_row(struct bench *b, const char *name, const char *kind, int rows, int calls,
                    double us, struct cost c)
{
    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 64;
        struct row *more = mem_realloc(b->out, cap * sizeof *more);
        if (!more)
            return;
        b->out = more;
        b->cap = cap;
    }
    struct row *r = &b->out[b->n++];
    *r = (struct row){.rows = rows, .calls = calls, .time_us = us, .c = c};
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->kind, sizeof r->kind, "%s", kind);
}

struct sample {
    struct fst_block_time block[BLOCKS_MAX];
    int n;
    struct fst_engine_stats st;
};

static uint64_t block_ns(const struct sample *s, const char *name, uint64_t *calls)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->block[i].name, name)) {
            *calls = s->block[i].calls;
            return s->block[i].ns;
        }
    *calls = 0;
    return 0;
}

/* Run `rows` equal requests side by side and take what they cost. */
static enum fst_status run(struct bench *b, int64_t max_new, bool drafting, struct sample *out)
{
    enum { ROWS_MAX = 1024 };
    fst_request *req[ROWS_MAX] = {0};
    int32_t *ids = mem_calloc((size_t)b->context, sizeof *ids);
    struct fst_engine_stats before;
    enum fst_status rc = ids ? FST_OK : fst_error(FST_ENOMEM, "out of memory");
    fst_engine_get_stats(b->e, &before);
    fst_engine_block_times(b->e, out->block, BLOCKS_MAX, true);
    struct fst_request_opts o;
    fst_request_opts_default(&o);
    for (int i = 0; i < b->rows && rc == FST_OK; i++) {
        for (int64_t k = 0; k < b->context; k++)
            ids[k] = (int32_t)rng_below(&b->rng, (uint64_t)b->info.vocab_size);
        o.ids = ids;
        o.n_ids = (size_t)b->context;
        o.max_new_tokens = max_new;
        o.sampling.temperature = 1;
        o.sampling.has_seed = true;
        o.sampling.seed = (uint64_t)i;
        o.ignore_eos = true;
        o.no_drafting = !drafting;
        rc = fst_request_submit(b->e, &o, &req[i]);
    }
    for (int i = 0; i < b->rows; i++) {
        if (!req[i])
            continue;
        while (fst_request_wait(req[i], 0.2) == FST_ETIMEOUT)
            if (tool_interrupted(false))
                fst_request_cancel(req[i]);
        struct fst_request_view v;
        fst_request_get_view(req[i], &v);
        if (rc == FST_OK && v.finish == FST_FINISH_ERROR)
            rc = fst_error(v.status, "%s", v.error);
        if (rc == FST_OK && v.finish == FST_FINISH_ABORT)
            rc = fst_error(FST_ECANCELED, "bench: interrupted");
        fst_request_free(req[i]);
    }
    mem_free(ids);
    if (rc < 0)
        return rc;
    out->n = FST_MIN(fst_engine_block_times(b->e, out->block, BLOCKS_MAX, false), BLOCKS_MAX);
    struct fst_engine_stats after;
    fst_engine_get_stats(b->e, &after);
    out->st = after;
    out->st.steps = after.steps - before.steps;
    out->st.draft_ns = after.draft_ns - before.draft_ns;
    out->st.verify_ns = after.verify_ns - before.verify_ns;
    out->st.prefill_ns = after.prefill_ns - before.prefill_ns;
    out->st.decode_ns = after.decode_ns - before.decode_ns;
    out->st.draft_steps = after.draft_steps - before.draft_steps;
    out->st.verify_steps_n = after.verify_steps_n - before.verify_steps_n;
    out->st.prefill_steps_n = after.prefill_steps_n - before.prefill_steps_n;
    out->st.decode_steps_n = after.decode_steps_n - before.decode_steps_n;
    out->st.verify_rows = after.verify_rows - before.verify_rows;
    out->st.decode_rows = after.decode_rows - before.decode_rows;
    out->st.draft_rounds = after.draft_rounds - before.draft_rounds;
    return FST_OK;
}

/* Blocks of `s` less those of `base`, per step of t rows of which `heads` give logits; dt: rows of
 * the draft stages in the same step. */
static void add_blocks(struct bench *b, const char *kind, const struct sample *s,
                       const struct sample *base, double steps, double t, double heads, double dt,
                       double n)
{
    for (int i = 0; i < s->n; i++) {
        uint64_t calls0 = 0, ns0 = base ? block_ns(base, s->block[i].name, &calls0) : 0;
        /* A tenth of the prompt's time is the noise between two runs: less is not measured. */
        if (s->block[i].ns <= ns0 + ns0 / 10 || s->block[i].calls <= calls0 || steps <= 0)
            continue;
        char name[40];
        snprintf(name, sizeof name, "block/%s", s->block[i].name);
        const char *block = s->block[i].name;
        bool of_draft = !strcmp(block, "draft_chain");
        bool of_trunk = !strcmp(block, "main_proj") || !strcmp(block, "draw");
        double rows = !strcmp(block, "head") ? heads : t;
        struct cost c = of_draft ? (struct cost){0, 0} : block_cost(b, block, rows, n, false);
        if (dt > 0 && !of_trunk) {
            struct cost d = block_cost(b, block, dt, fmin(n, b->cfg.window), true);
            c.bytes += d.bytes;
            c.flops += d.flops;
        }
        add_row(b, name, kind, (int)lround(t),
                (int)lround((double)(s->block[i].calls - calls0) / steps),
                (double)(s->block[i].ns - ns0) * 1e-3 / steps, c);
    }
}

/* The prompts alone: of the runs with the fewest steps (requests may reach the engine one by one)
 * block by block the fastest.  What is subtracted from a run that decodes must neither hold what other
 * programs did to it nor steps that the other run had not. */
static enum fst_status run_prompt(struct bench *b, bool drafting, struct sample *out)
{
    enum { RUNS = 4 };
    FST_TRY(run(b, 1, drafting, out)); /* also touches all pages */
    for (int i = 1; i < RUNS; i++) {
        struct sample s = {0};
        FST_TRY(run(b, 1, drafting, &s));
        if (s.st.prefill_steps_n < out->st.prefill_steps_n)
            *out = s;
        if (s.st.prefill_steps_n > out->st.prefill_steps_n)
            continue;
        for (int k = 0; k < out->n; k++) {
            uint64_t calls, ns = block_ns(&s, out->block[k].name, &calls);
            if (calls)
                out->block[k].ns = FST_MIN(out->block[k].ns, ns);
        }
        out->st.prefill_ns = FST_MIN(out->st.prefill_ns, s.st.prefill_ns);
        out->st.draft_ns = FST_MIN(out->st.draft_ns, s.st.draft_ns);
    }
    return FST_OK;
}

/* Prompts and decoding, in at least as many steps for the prompts as `pre`; else *out has no blocks. */
static enum fst_status run_all(struct bench *b, bool drafting, const struct sample *pre,
                               struct sample *out)
{
    for (int i = 0; i < 4; i++) {
        FST_TRY(run(b, b->steps, drafting, out));
        if (out->st.prefill_steps_n >= pre->st.prefill_steps_n)
            return FST_OK;
    }
    out->n = 0;
    return FST_OK;
}

/* Rows of one step on average: requests begin and end at different steps. */
static double per_step(uint64_t rows, uint64_t steps, double most)
{
    return steps ? fmin(most, (double)rows / (double)steps) : 0;
}

static enum fst_status measure_drafting(struct bench *b, double mid)
{
    struct sample pre = {0}, spec = {0};
    /* The prompt's injection into the drafter is no part of a round. */
    FST_TRY(run_prompt(b, true, &pre));
    FST_TRY(run_all(b, true, &pre, &spec));
    const struct fst_engine_stats *st = &spec.st;
    if (!st->verify_steps_n || !st->draft_steps)
        return FST_OK;
    double gamma = b->info.gamma, width = gamma + 1, steps = (double)st->verify_steps_n;
    double batches = (double)st->draft_steps;
    double vt = per_step(st->verify_rows, st->verify_steps_n, b->rows * width);
    double requests = per_step(st->draft_rounds, st->draft_steps, b->rows), dt = gamma * requests;
    add_row(b, "step", "verify", (int)lround(vt), 1, (double)st->verify_ns * 1e-3 / steps,
            whole_cost(b, vt, vt, mid, false));
    struct cost draft = whole_cost(b, dt, dt, fmin(mid, b->cfg.window), true);
    struct cost chain = block_cost(b, "draft_chain", dt, mid, true);
    struct cost inject = block_cost(b, "main_proj", requests, mid, true);
    draft.bytes += chain.bytes + inject.bytes;
    draft.flops += chain.flops + inject.flops;
    double draft_ns = (double)st->draft_ns - (double)FST_MIN(pre.st.draft_ns, st->draft_ns);
    add_row(b, "step", "draft", (int)lround(dt), 1, draft_ns * 1e-3 / batches, draft);
    add_blocks(b, "round", &spec, &pre, steps, vt, vt, dt, mid);
    return FST_OK;
}

static enum fst_status measure(struct bench *b)
{
    struct sample pre = {0}, dec = {0};
    double rows = b->rows, ctx = (double)b->context, mid = ctx + b->steps / 2.0;
    FST_TRY(run_prompt(b, false, &pre));
    double tokens = rows * ctx;
    add_row(b, "step", "prefill", (int)tokens, 1, (double)pre.st.prefill_ns * 1e-3,
            whole_cost(b, tokens, rows, ctx / 2, false));
    add_blocks(b, "prefill", &pre, NULL, 1, tokens, rows, 0, ctx / 2);
    FST_TRY(run_all(b, false, &pre, &dec));
    double n_dec = (double)dec.st.decode_steps_n;
    double t = per_step(dec.st.decode_rows, dec.st.decode_steps_n, rows);
    if (n_dec > 0)
        add_row(b, "step", "decode", (int)lround(t), 1, (double)dec.st.decode_ns * 1e-3 / n_dec,
                whole_cost(b, t, t, mid, false));
    add_blocks(b, "decode", &dec, &pre, n_dec, t, t, 0, mid);
    return b->info.gamma > 0 ? measure_drafting(b, mid) : FST_OK;
}

/* ------------------------------------------------------------------ output */

static double floor_us(const struct bench *b, struct cost c)
{
    return 1e6 * fmax(c.bytes / b->m.read_bytes_s, c.flops / 2 / b->m.macs_s);
}

static void put_rows(const struct bench *b, struct buf *o)
{
    buf_puts(o, "\"rows\":[");
    for (size_t i = 0; i < b->n; i++) {
        const struct row *r = &b->out[i];
        double f = floor_us(b, r->c);
        buf_printf(o,
                   "%s{\"name\":\"%s\",\"kind\":\"%s\",\"preset\":\"%s\",\"layers\":%d,\"rows\":%d,"
                   "\"context\":%lld,\"layout\":\"%s\",\"kernels\":\"%s\",\"threads\":%d,"
                   "\"calls\":%d,\"time_us\":%.3f,\"bytes\":%.0f,\"flops\":%.0f,\"floor_us\":%.3f,"
                   "\"fraction_of_floor\":%.4f}",
                   i ? "," : "", r->name, r->kind, b->cfg.model_type, b->cfg.n_layers, r->rows,
                   (long long)b->context, b->info.kv_layout, b->info.kernels, b->info.threads,
                   r->calls, r->time_us, r->c.bytes, r->c.flops, f,
                   r->time_us > 0 ? f / r->time_us : 0.0);
    }
    buf_putc(o, ']');
}

static void cpu_name(char *out, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512];
    snprintf(out, size, "unknown CPU");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", strchr(line, ':') + 2);
            break;
        }
    if (f)
        fclose(f);
}

static void put_file(const struct bench *b, struct buf *o, int argc, char **argv)
{
    char cpu[256], date[CLOCK_ISO_SIZE];
    struct utsname un;
    uname(&un);
    cpu_name(cpu, sizeof cpu);
    clock_iso(date, clock_wall_ns());
    buf_puts(o, "{\"card\":");
    json_put_string(o, cpu, strlen(cpu));
    buf_printf(o,
               ",\"driver\":\"Linux %s\",\"date\":\"%s\",\"build\":\"firesteel %s\",\"command\":",
               un.release, date, FST_VERSION);
    struct buf cmd = {0};
    buf_puts(&cmd, "firesteel");
    for (int i = 0; i < argc; i++)
        buf_printf(&cmd, " %s", argv[i]);
    json_put_string(o, buf_str(&cmd), cmd.len);
    buf_release(&cmd);
    buf_printf(o, ",\"read_gb_s\":%.3f,\"gmac_s\":%.3f,", b->m.read_bytes_s * 1e-9,
               b->m.macs_s * 1e-9);
    put_rows(b, o);
    buf_putc(o, '}');
}

static void print_table(const struct bench *b)
{
    printf("this machine: read %.2f GB/s, %.2f GMAC/s (one thread x %d); kernels %s\n",
           b->m.read_bytes_s * 1e-9, b->m.macs_s * 1e-9, b->info.threads, b->info.kernels);
    printf("%-20s %-8s %7s %6s %12s %12s %12s %10s\n", "name", "kind", "rows", "calls", "time_us",
           "MB", "floor_us", "of floor");
    for (size_t i = 0; i < b->n; i++) {
        const struct row *r = &b->out[i];
        double f = floor_us(b, r->c);
        printf("%-20s %-8s %7d %6d %12.1f %12.3f %12.1f %9.1f%%\n", r->name, r->kind, r->rows,
               r->calls, r->time_us, r->c.bytes * 1e-6, f,
               r->time_us > 0 ? 100 * f / r->time_us : 0.0);
    }
}

static enum fst_status bench_step(struct bench *b, const struct options *o)
{
    struct fst_engine_opts eo;
    FST_TRY(tool_engine_opts(o, &eo));
    FST_TRY(config_read(&b->cfg, eo.model_dir));
    b->steps = (int)options_int(o, "steps", 64);
    b->rows = (int)options_int(o, "rows", 1);
    b->context = options_int(o, "context", 512);
    if (!eo.max_running_requests || eo.max_running_requests < b->rows)
        eo.max_running_requests = FST_MAX(b->rows, 1);
    eo.profile = true;
    FST_TRY(tool_engine_open(&b->e, &eo, NULL));
    fst_engine_get_info(b->e, &b->info);
    measure_ceilings(b);
    if (b->m.read_bytes_s <= 0 || b->m.macs_s <= 0)
        return fst_error(FST_EMACHINE, "bench: the machine's ceilings could not be measured");
    rng_init(&b->rng, 1);
    FST_TRY(measure(b));
    /* Once more: other programs may have been in the way the first time. */
    measure_ceilings(b);
    return FST_OK;
}

int cmd_bench(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Bench", defs), tool_model_group,
                                          tool_engine_group};
    int status;
    struct options *o =
        tool_parse_words("firesteel bench", "step [options]", groups, 3, argc, argv, &status);
    if (!o)
        return status;
    const char *const *args;
    size_t n = options_args(o, &args);
    if (n != 1 || strcmp(args[0], "step") != 0) {
        fprintf(stderr, "firesteel bench: expected `step`, got \"%s\"\n",
                n == 0                         ? ""
                : strcmp(args[0], "step") != 0 ? args[0]
                                               : args[1]);
        options_free(o);
        return 2;
    }
    struct bench b = {0};
    struct buf file = {0};
    tool_catch_interrupt();
    enum fst_status rc = bench_step(&b, o);
    if (rc == FST_OK) {
        put_file(&b, &file, argc, argv);
        if (options_text(o, "out"))
            rc = file_write(options_text(o, "out"), buf_str(&file), file.len);
    }
    if (rc < 0)
        status = tool_fail(rc);
    else if (options_flag(o, "json"))
        status = tool_print_json(&file);
    else
        print_table(&b), status = 0;
    fst_engine_close(b.e);
    mem_free(b.out);
    buf_release(&file);
    options_free(o);
    return status;
}
