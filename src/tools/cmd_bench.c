/* cmd_bench.c - `bench step`: what a step costs, block by block, against what this machine could; `bench
 * kernels` (bench_kernels.c): the same of each entry of the kernel table alone; `bench kv` (bench_kv.c,
 * bench_disk.c): what keeping prefixes costs.  The benches that ask a server stand in files of their own.
 *
 * Bytes and operations of each block follow from the configuration (model/cost.h); the floor of a row
 * is the larger of bytes over the ceiling of reads and operations over that of products.  Names
 * the model's cost by exception. */
#include <math.h>

#include "base/file.h"
#include "tools/bench.h"
#include "tools/bench_file.h"
#include "tools/bench_remote.h"

/* Of several benches. */
static const struct option_def defs[] = {
    {.name = "synthetic",
     .type = OPTION_TEXT,
     .arg = "PRESET",
     .help =
         "no checkpoint: random weights in the formats and shapes of v4-flash, v4-pro or of a "
         "folder's config.json, KV rows likewise, steps without the engine; v4-flash-dspark and "
         "v4-pro-dspark draft after each step. kernels is always so: v4-flash when not given"},
    {.name = "context",
     .type = OPTION_INT,
     .initial = "512",
     .min = 1,
     .max = 1e7,
     .help =
         "prompt tokens; with --synthetic: tokens before a row; of kv: ids of a prompt, 100000"},
    {.name = "rows",
     .type = OPTION_TEXT,
     .arg = "N[,N...]",
     .initial = "1",
     .help = "requests decoded together; a list with --synthetic"},
    {.name = "prefill",
     .type = OPTION_INT,
     .arg = "N",
     .min = 1,
     .max = 1e6,
     .help = "with --synthetic: also a step of the first N rows of one request"},
    {.name = "verify",
     .type = OPTION_FLAG,
     .help = "with --synthetic: steps of 6 rows per request, as when 5 drafts are verified"},
    {.name = "layers",
     .type = OPTION_INT,
     .initial = "0",
     .min = 0,
     .max = CONFIG_LAYERS_MAX,
     .help = "with --synthetic: the first N layers alone; 0: all. kernels, when not given: 8 on a "
             "card, 4 on a processor, or what memory holds"},
    {.name = "routing",
     .type = OPTION_WORD,
     .initial = "independent",
     .words = "independent correlated",
     .help =
         "with --synthetic: the random routers' own choice, or for rows of one sequence one with "
         "as many experts in common as a trained model's has: 6, 9.7, 12.6, 15.2, 17.5 and 19.8 "
         "different ones in 1 to 6 rows of 6 (it replaces the routers' after they ran)"},
    {.name = "out",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "result file {card, driver, date, build, command, rows}"},
};

static const struct option_def step_defs[] = {
    {.name = "steps",
     .type = OPTION_INT,
     .initial = "64",
     .min = 2,
     .max = 100000,
     .help = "tokens to generate; with --synthetic: steps to time, fewer when they take 20 s"},
    {.name = "whole",
     .type = OPTION_FLAG,
     .help = "with --synthetic: steps as a whole, nothing block by block"},
};

static const struct option_def kernels_defs[] = {
    {.name = "entries",
     .type = OPTION_TEXT,
     .arg = "NAME[,NAME...]",
     .help =
         "these alone; all that a step launches when not given. Launches of an entry follow each "
         "other over different weights, on a card as one recording, in which each may start while "
         "the one in front still runs (not with FIRESTEEL_EARLY_LAUNCH=0). A time is the median of "
         "five passes"},
    {.name = "rest",
     .type = OPTION_FLAG,
     .help = "passes of one round behind half a second of rest, instead of some 10 ms of them: "
             "without what a card's power cap takes"},
};

static const struct option_def kv_defs[] = {
    {.name = "disk-dir",
     .type = OPTION_TEXT,
     .arg = "DIR",
     .help = "also the disk tier, in a folder of its own below DIR that is removed again"},
    {.name = "disk-bytes",
     .type = OPTION_SIZE,
     .initial = "256MiB",
     .min = 1,
     .max = 68719476736.0,
     .help = "with --disk-dir: of all objects; as much memory is used"},
    {.name = "disk-object",
     .type = OPTION_SIZE,
     .initial = "998208",
     .min = 1,
     .max = 1073741824.0,
     .help = "with --disk-dir: of one object; a page of v4-flash when not given"},
};

struct bench_row *bench_add(struct bench *b, const char *name, const char *kind)
{
    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 64;
        struct bench_row *more = mem_realloc(b->out, cap * sizeof *more);
        if (!more)
            return NULL;
        b->out = more;
        b->cap = cap;
    }
    struct bench_row *r = &b->out[b->n++];
    *r = (struct bench_row){.calls = 1};
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->kind, sizeof r->kind, "%s", kind);
    return r;
}

double bench_floor_us(const struct bench *b, struct model_cost c)
{
    double compute = 0;
    if (b->m.fp8_s > 0 && b->m.bf16_s > 0)
        compute = c.fp8 / b->m.fp8_s + c.bf16 / b->m.bf16_s;
    return 1e6 * fmax(c.bytes / b->m.read_bytes_s, compute);
}

/* ------------------------------------------------------------------ output */

static double row_floor_us(const struct bench *b, const struct bench_row *r)
{
    return r->read_bytes_s > 0 ? 1e6 * r->c.bytes / r->read_bytes_s : bench_floor_us(b, r->c);
}

static void put_row(const struct bench *b, struct buf *o, const struct bench_row *r)
{
    double f = row_floor_us(b, r);
    buf_printf(o,
               "{\"name\":\"%s\",\"kind\":\"%s\",\"preset\":\"%s\",\"layers\":%d,\"rows\":%d,"
               "\"context\":%lld,\"layout\":\"%s\",\"kernels\":\"%s\",\"threads\":%d,"
               "\"calls\":%d,\"time_us\":%.3f,\"bytes\":%.0f,\"flops\":%.0f,\"floor_us\":%.3f,"
               "\"fraction_of_floor\":%.4f",
               r->name, r->kind, b->preset, b->cfg.n_layers, r->rows, (long long)r->context,
               b->layout, b->kernels, b->threads, r->calls, r->time_us, r->c.bytes,
               r->c.fp8 + r->c.bf16, f, r->time_us > 0 ? f / r->time_us : 0.0);
    if (r->site)
        buf_printf(o, ",\"layer_kind\":\"%s\"", r->site);
    if (r->best_us > 0)
        buf_printf(o, ",\"best_us\":%.3f,\"sets\":%d", r->best_us, r->sets);
    if (r->p95_us > 0)
        buf_printf(o, ",\"p95_us\":%.3f,\"steps\":%d", r->p95_us, r->steps);
    if (r->distinct > 0)
        buf_printf(o, ",\"distinct_experts\":%.2f", r->distinct);
    if (b->routing)
        buf_printf(o, ",\"routing\":\"%s\"", b->routing);
    buf_putc(o, '}');
}

void bench_host_names(struct bench *b)
{
    bench_file_host(b->card, b->driver);
}

static void put_file(const struct bench *b, struct buf *o, int argc, char **argv)
{
    struct buf cmd = {0};
    bench_file_command(&cmd, argc, argv, "");
    bench_file_head(o, b->card, b->driver, buf_str(&cmd));
    buf_release(&cmd);
    buf_printf(o, ",\"read_gb_s\":%.3f,\"gmac_s\":%.3f,\"weight_bytes\":%lld,",
               b->m.read_bytes_s * 1e-9, b->m.bf16_s * 0.5e-9, (long long)b->weight_bytes);
    if (b->fill_s > 0)
        buf_printf(o, "\"fill_s\":%.3f,", b->fill_s);
    buf_puts(o, "\"rows\":[");
    for (size_t i = 0; i < b->n; i++) {
        if (i)
            buf_putc(o, ',');
        put_row(b, o, &b->out[i]);
    }
    buf_puts(o, "]}");
}

static void print_table(const struct bench *b, int argc, char **argv)
{
    struct buf cmd = {0};
    printf(
        "%s: read %.2f GB/s, %.2f Gop/s of bf16, %.2f of fp8; kernels %s, %d layers of %.2f GB\n",
        b->card, b->m.read_bytes_s * 1e-9, b->m.bf16_s * 1e-9, b->m.fp8_s * 1e-9, b->kernels,
        b->cfg.n_layers, (double)b->weight_bytes * 1e-9);
    bool alone = b->n && b->out[0].best_us > 0;
    printf("%-20s %-8s %-7s %6s %6s %12s %12s %12s %12s %9s\n", "name", "kind", "layers", "rows",
           "calls", "time_us", alone ? "best_us" : "p95_us", "MB", "floor_us", "of floor");
    for (size_t i = 0; i < b->n; i++) {
        const struct bench_row *r = &b->out[i];
        double f = row_floor_us(b, r);
        printf("%-20s %-8s %-7s %6d %6d %12.1f %12.1f %12.3f %12.1f %8.1f%%\n", r->name, r->kind,
               r->site ? r->site : "", r->rows, r->calls, r->time_us,
               alone ? r->best_us : r->p95_us, r->c.bytes * 1e-6, f,
               r->time_us > 0 ? 100 * f / r->time_us : 0.0);
    }
    bench_file_command(&cmd, argc, argv, "");
    printf("command: %s\n", buf_str(&cmd));
    buf_release(&cmd);
}

static enum fst_status bench_step(struct bench *b, const struct options *o)
{
    static const char *const only[] = {"layers", "routing", "verify", "whole", "prefill"};
    if (options_text(o, "synthetic"))
        return bench_synthetic(b, o);
    for (size_t i = 0; i < FST_COUNT(only); i++)
        if (options_is_given(o, only[i]))
            return fst_error(FST_EINVAL, "--%s goes with --synthetic", only[i]);
    return bench_engine(b, o);
}

static enum fst_status kv(struct bench *b, const struct options *o)
{
    FST_TRY(bench_kv(b, o));
    return options_text(o, "disk-dir") ? bench_disk(b, o) : FST_OK;
}

static const struct {
    const char *name;
    enum fst_status (*run)(struct bench *b, const struct options *o);
    const char *without; /* options that it does not take, blanks around */
} benches[] = {
    {"step", bench_step, " entries rest disk-dir disk-bytes disk-object "},
    {"kernels", bench_kernels, " steps whole disk-dir disk-bytes disk-object "},
    {"kv", kv, " rows prefill verify layers routing steps whole entries rest "},
};

static enum fst_status check_options(const struct options *o, size_t which)
{
    char name[32];
    for (const char *p = benches[which].without + 1; *p; p += strlen(name) + 1) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p, " "), p);
        if (options_is_given(o, name))
            return fst_error(FST_EINVAL, "bench %s takes no --%s", benches[which].name, name);
    }
    return FST_OK;
}

/* Which bench the words name; the number of benches: none, and it was said. */
static size_t which_bench(const struct options *o)
{
    const char *const *args;
    size_t n = options_args(o, &args), i = 0;
    while (n > 0 && i < FST_COUNT(benches) && strcmp(args[0], benches[i].name))
        i++;
    if (n == 1 && i < FST_COUNT(benches))
        return i;
    fprintf(stderr,
            "firesteel bench: expected serve, decode, agent, http, frontier, step, kernels or kv, "
            "got \"%s\"\n",
            n == 0                   ? ""
            : i < FST_COUNT(benches) ? args[n > 1]
                                     : args[0]);
    return FST_COUNT(benches);
}

/* Benches with flags of their own: they ask a server. */
static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} remote[] = {{"serve", bench_serve},
              {"decode", bench_decode},
              {"agent", bench_agent},
              {"http", bench_http},
              {"frontier", bench_frontier}};

int cmd_bench(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < FST_COUNT(remote); i++)
        if (!strcmp(argv[1], remote[i].name))
            return remote[i].run(argc - 1, argv + 1);
    const struct option_group groups[] = {OPTION_GROUP("Bench", defs),
                                          OPTION_GROUP("Bench step", step_defs),
                                          OPTION_GROUP("Bench kernels", kernels_defs),
                                          OPTION_GROUP("Bench kv", kv_defs),
                                          tool_model_group,
                                          tool_engine_group};
    int status;
    struct options *o = tool_parse_words(
        "firesteel bench", "serve|decode|agent|http|frontier|step|kernels|kv [options]", groups,
        FST_COUNT(groups), argc, argv, &status);
    if (!o)
        return status;
    size_t which = which_bench(o);
    if (which == FST_COUNT(benches)) {
        options_free(o);
        return 2;
    }
    struct bench b = {0};
    struct buf file = {0};
    tool_catch_interrupt();
    enum fst_status rc = check_options(o, which);
    if (rc == FST_OK)
        rc = benches[which].run(&b, o);
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
        print_table(&b, argc, argv), status = 0;
    mem_free(b.out);
    buf_release(&file);
    options_free(o);
    return status;
}
