/* cmd_doctor.c - is this machine fit, and is everything in its place?
 *
 * Names weights/, kernels/ and device/ by exception: it looks into what the engine would use. */
#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "tools/tool.h"
#include "weights/weights.h"

static const struct option_def defs[] = {
    {.name = "port",
     .type = OPTION_INT,
     .initial = "30000",
     .min = 1,
     .max = 65535,
     .help = "port that serve would use"},
    {.name = "kernels",
     .type = OPTION_TEXT,
     .initial = "auto",
     .arg = "NAME",
     .help = "kernels to test"},
    {.name = "seconds",
     .type = OPTION_FLOAT,
     .initial = "2",
     .min = 0.01,
     .max = 600,
     .help = "length of the kernel self-test"},
};

struct report {
    struct buf json;
    bool json_wanted, ok, machine_bad;
    int n;
};

/* machine: a failure means exit status 3. */
static void check(struct report *r, const char *name, bool ok, bool machine, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void check(struct report *r, const char *name, bool ok, bool machine, const char *fmt, ...)
{
    char detail[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    r->ok &= ok;
    r->machine_bad |= !ok && machine;
    if (r->n++)
        buf_putc(&r->json, ',');
    buf_printf(&r->json, "{\"name\":\"%s\",\"ok\":%s,\"detail\":", name, ok ? "true" : "false");
    json_put_string(&r->json, detail, strlen(detail));
    buf_putc(&r->json, '}');
    if (!r->json_wanted)
        printf("%-5s %-10s %s\n", ok ? "ok" : "FAIL", name, detail);
}

/* ------------------------------------------------------------------ kernel self-test */

enum { DIM = 256, MOE = 256, EXPERTS = 4, K = 2, VOCAB = 512, ROWS = 3 };

struct bench_mats {
    uint8_t fp8[DIM * DIM], fp8_scale[4];
    uint8_t fp4[EXPERTS][3][DIM * MOE / 2], fp4_scale[EXPERTS][3][DIM * MOE / 32];
    uint16_t bf16[VOCAB * DIM];
    float norm[DIM], x[ROWS * DIM], x4[ROWS * 4 * DIM], fn[4 * 4 * DIM], base[4], scale[1];
    float weight[ROWS * K], y[2][ROWS * DIM], main[2][ROWS * DIM], logits[2][ROWS * VOCAB];
    int32_t expert[ROWS * K], row[ROWS];
    struct expert_mats e[EXPERTS], shared;
};

static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static float on_grid(float x)
{
    uint32_t u = (uint32_t)to_bf16(x) << 16;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint8_t fp8_code(struct rng *g)
{
    uint8_t c = (uint8_t)rng_below(g, 256);
    return (c & 0x7F) == 0x7F ? c ^ 1 : c; /* 0x7F and 0xFF are not numbers */
}

static void fill(struct bench_mats *m, struct rng *g)
{
    for (size_t i = 0; i < sizeof m->fp8; i++)
        m->fp8[i] = fp8_code(g);
    for (size_t i = 0; i < sizeof m->fp8_scale; i++)
        m->fp8_scale[i] = (uint8_t)rng_range(g, 115, 120);
    rng_bytes(g, m->fp4, sizeof m->fp4);
    for (size_t i = 0; i < sizeof m->fp4_scale; i++)
        ((uint8_t *)m->fp4_scale)[i] = (uint8_t)rng_range(g, 119, 123);
    for (size_t i = 0; i < VOCAB * DIM; i++)
        m->bf16[i] = to_bf16((float)rng_normal(g) * 0.05f);
    for (int i = 0; i < DIM; i++)
        m->norm[i] = on_grid((float)(1 + 0.1 * rng_normal(g)));
    for (int i = 0; i < ROWS * DIM; i++)
        m->x[i] = on_grid((float)rng_normal(g));
    for (int i = 0; i < ROWS * 4 * DIM; i++)
        m->x4[i] = on_grid((float)rng_normal(g));
    for (int i = 0; i < 4 * 4 * DIM; i++)
        m->fn[i] = (float)rng_normal(g) * 0.02f;
    for (int i = 0; i < 4; i++)
        m->base[i] = (float)rng_normal(g);
    m->scale[0] = 0.5f;
    for (int t = 0; t < ROWS; t++) {
        m->row[t] = t;
        m->expert[t * K] = (int32_t)rng_below(g, 2);
        m->expert[t * K + 1] = 2 + (int32_t)rng_below(g, 2);
        m->weight[t * K] = 0.9f;
        m->weight[t * K + 1] = 0.6f;
    }
    for (int e = 0; e < EXPERTS; e++) {
        struct mat w[3];
        for (int k = 0; k < 3; k++)
            w[k] = (struct mat){.fmt = WEIGHT_FP4,
                                .n_out = k == 1 ? DIM : MOE,
                                .n_in = k == 1 ? MOE : DIM,
                                .data = m->fp4[e][k],
                                .scale = m->fp4_scale[e][k]};
        m->e[e] = (struct expert_mats){.w1 = w[0], .w2 = w[1], .w3 = w[2]};
    }
    struct mat s = {
        .fmt = WEIGHT_FP8, .n_out = DIM, .n_in = DIM, .data = m->fp8, .scale = m->fp8_scale};
    m->shared = (struct expert_mats){.w1 = s, .w2 = s, .w3 = s};
}

static enum fst_status run_blocks(const struct kernels *k, struct stream *st, struct bench_mats *m,
                                  int side)
{
    struct mat proj = m->shared.w1;
    struct mat head = {.fmt = WEIGHT_BF16, .n_out = VOCAB, .n_in = DIM, .data = m->bf16};
    float y[ROWS * DIM];
    struct main_proj_args mp = {.h = m->x,
                                .main_proj = &proj,
                                .main_norm = m->norm,
                                .main = m->main[side],
                                .n_rows = ROWS,
                                .norm_eps = 1e-6f};
    struct experts_args ex = {.x = m->x,
                              .expert = m->expert,
                              .weight = m->weight,
                              .experts = m->e,
                              .shared = &m->shared,
                              .y = m->y[side],
                              .n_rows = ROWS,
                              .k = K,
                              .n_experts = EXPERTS,
                              .dim = DIM,
                              .moe_dim = MOE,
                              .limit = 10};
    struct head_args hd = {.x = m->x4,
                           .row = m->row,
                           .fn = m->fn,
                           .base = m->base,
                           .scale = m->scale,
                           .norm = m->norm,
                           .head = &head,
                           .y = y,
                           .logits = m->logits[side],
                           .n = ROWS,
                           .dim = DIM,
                           .hc_eps = 1e-6f,
                           .norm_eps = 1e-6f};
    FST_TRY(k->main_proj(&mp, st));
    FST_TRY(k->experts(&ex, st));
    return k->head(&hd, st);
}

static double nmse(const float *a, const float *b, int n)
{
    double num = 0, den = 0;
    for (int i = 0; i < n; i++) {
        num += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        den += (double)b[i] * (double)b[i];
    }
    return den > 0 ? num / den : num;
}

static void check_kernels(struct report *r, const char *name, double seconds)
{
    struct kernels fast, ref;
    struct stream st;
    struct rng g;
    if (kernels_select(&fast, name, PRECISION_NATIVE) < 0) {
        check(r, "kernels", false, true, "%s", fst_error_text());
        return;
    }
    kernels_init(&ref, 0);
    struct kernel_limits lim = {.n_rows = ROWS,
                                .dim = DIM,
                                .n_heads = 1,
                                .head_dim = 512,
                                .q_rank = DIM,
                                .o_rank = DIM,
                                .groups = 1,
                                .moe_dim = MOE,
                                .n_experts = EXPERTS,
                                .k = K,
                                .index_heads = 1,
                                .index_dim = 128,
                                .topk = 8,
                                .n_stages = 1,
                                .vocab = VOCAB,
                                .markov_rank = 8,
                                .window = 128,
                                .max_entries = 8};
    size_t scratch =
        FST_MAX(kernels_scratch_bytes(&fast, &lim, 1), kernels_scratch_bytes(&ref, &lim, 1));
    struct bench_mats *m = mem_calloc(1, sizeof *m);
    if (!m || stream_init(&st, NULL, NULL, PRECISION_NATIVE, scratch) < 0) {
        mem_free(m);
        check(r, "kernels", false, true, "no memory");
        return;
    }
    uint64_t seed = rng_os();
    rng_init(&g, seed);
    int64_t start = clock_ns(), rounds = 0;
    double worst = 0;
    enum fst_status rc = FST_OK;
    do {
        fill(m, &g);
        rc = run_blocks(&ref, &st, m, 0);
        if (rc == FST_OK)
            rc = run_blocks(&fast, &st, m, 1);
        worst = fmax(worst, nmse(m->main[1], m->main[0], ROWS * DIM));
        worst = fmax(worst, nmse(m->y[1], m->y[0], ROWS * DIM));
        worst = fmax(worst, nmse(m->logits[1], m->logits[0], ROWS * VOCAB));
        rounds++;
    } while (rc == FST_OK && worst <= 1e-5 && clock_seconds(clock_ns() - start) < seconds);
    check(r, "kernels", rc == FST_OK && worst <= 1e-5, true,
          "%s against ref: main_proj, experts, head; %lld rounds, seed %llu, worst NMSE %.1e "
          "(allowed 1e-5)",
          fast.name, (long long)rounds, (unsigned long long)seed, worst);
    stream_release(&st);
    mem_free(m);
}

/* ------------------------------------------------------------------ the rest */

static int64_t memory_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[256];
    long long kb = -1;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb < 0 ? -1 : (int64_t)kb * 1024;
}

static void check_cpu(struct report *r)
{
    unsigned flags = kernels_probe();
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    check(r, "cpu", true, true, "%ld cores, %s", cores,
          flags & KERN_AVX512 ? "AVX2, AVX-512 with BF16"
          : flags & KERN_AVX2 ? "AVX2"
                              : "no vector kernels fit: ref will be used, which is slow");
}

/* A machine without a card, or without its module, is whole as well. */
static void check_card(struct report *r)
{
    const struct device *d;
    if (device_open(&d, "cuda") < 0)
        check(r, "cuda", true, true, "none: %s", fst_error_text());
    else
        check(r, "cuda", true, true, "%s, %d multiprocessors, %.1f of %.1f GB free, driver %s",
              d->card, d->multiprocessors, (double)d->free_bytes * 1e-9,
              (double)d->total_bytes * 1e-9, d->driver);
}

static void check_model(struct report *r, const struct options *o)
{
    struct weights_report *w = NULL;
    struct tokenizer *t = NULL;
    const char *dir = tool_model_dir(o);
    int64_t need = 0;
    if (!dir) {
        check(r, "model", false, true, "%s", fst_error_text());
    } else if (weights_inspect(&w, dir) < 0) {
        check(r, "model", false, false, "%s", fst_error_text());
    } else {
        bool whole = !w->n_missing && !w->n_unknown && !w->n_wrong;
        need = w->bytes;
        check(r, "model", whole, false,
              "%s: %lld tensors, %.3f GB, %lld missing, %lld unknown, %lld of wrong type", dir,
              (long long)w->tensors, (double)w->bytes * 1e-9, (long long)w->n_missing,
              (long long)w->n_unknown, (long long)w->n_wrong);
    }
    if (dir) {
        enum fst_status rc = tool_tokenizer(&t, o);
        if (rc == FST_OK)
            check(r, "tokenizer", true, false, "%d ids", tokenizer_vocab_size(t));
        else
            check(r, "tokenizer", false, false, "%s", fst_error_text());
    }
    int64_t have = memory_available();
    check(r, "memory", have < 0 || have > need + need / 10, true,
          "%.2f GB available, the model's weights take %.2f GB", (double)have * 1e-9,
          (double)need * 1e-9);
    tokenizer_free(t);
    weights_report_free(w);
}

static void check_port(struct report *r, int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
              bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0;
    check(r, "port", ok, false, "port %d on 127.0.0.1 is %s", port, ok ? "free" : "taken");
    if (fd >= 0)
        close(fd);
}

int cmd_doctor(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Checks", defs), tool_model_group};
    int status;
    struct options *o = tool_parse("firesteel doctor", "[options]", groups, 2, argc, argv, &status);
    if (!o)
        return status;
    struct report r = {.ok = true, .json_wanted = options_flag(o, "json")};
    check_cpu(&r);
    check_card(&r);
    check_model(&r, o);
    check_kernels(&r, options_text(o, "kernels"), options_float(o, "seconds", 2));
    check_port(&r, (int)options_int(o, "port", 30000));
    status = r.ok ? 0 : r.machine_bad ? 3 : 1;
    if (r.json_wanted) {
        struct buf b = {0};
        buf_printf(&b, "{\"ok\":%s,\"checks\":[%s]}", r.ok ? "true" : "false", buf_str(&r.json));
        int p = tool_print_json(&b);
        status = status ? status : p;
        buf_release(&b);
    }
    buf_release(&r.json);
    options_free(o);
    return status;
}
