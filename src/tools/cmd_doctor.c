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
#include "kernels/self_test.h"
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

static void check_kernels(struct report *r, const char *name, double seconds)
{
    struct kernels k;
    struct self_test t = {.seed = rng_os()};
    enum fst_status rc = kernels_select(&k, name, PRECISION_NATIVE);
    if (rc == FST_OK)
        rc = kernels_self_test(&k, NULL, seconds, &t);
    if (rc == FST_OK)
        check(
            r, "kernels", true, true,
            "%s against ref: a layer, head and draw; %lld rounds, seed %llu, worst NMSE %.1e (%s)",
            k.name, (long long)t.rounds, (unsigned long long)t.seed, t.worst, t.where);
    else
        check(r, "kernels", false, true, "%s", fst_error_text());
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
    struct kernels k;
    struct self_test t = {.seed = rng_os()};
    if (device_open(&d, "cuda") < 0) {
        check(r, "cuda", true, true, "none: %s", fst_error_text());
        return;
    }
    enum fst_status rc = kernels_of_device(&k, d, NULL, PRECISION_NATIVE);
    if (rc == FST_OK)
        rc = kernels_self_test(&k, d, 0, &t);
    check(r, "cuda", rc == FST_OK, true,
          "%s, %d multiprocessors, %.1f of %.1f GB free, driver %s; %s", d->card,
          d->multiprocessors, (double)d->free_bytes * 1e-9, (double)d->total_bytes * 1e-9,
          d->driver, rc == FST_OK ? "its kernels agree with ref" : fst_error_text());
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
