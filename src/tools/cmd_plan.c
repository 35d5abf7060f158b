/* cmd_plan.c - what fits: weights, KV tokens and requests, before anything is loaded.
 *
 * What the engine would choose and refuse comes from model/plan.h, which the engine opens by.  Names
 * device, kernels, weights, kv and model by exception: it asks them for sizes. */
#include "base/pool.h"
#include "device/device.h"
#include "model/plan.h"
#include "tools/tool.h"
#include "weights/weights.h"

enum { LARGEST = 4, TABLE_ROWS = 32 };
#define GIB 1073741824.0

static const struct option_def defs[] = {
    {.name = "preset",
     .type = OPTION_TEXT,
     .arg = "NAME",
     .help = "a published shape without any files: " CONFIG_PRESETS},
    {.name = "table",
     .type = OPTION_FLAG,
     .help =
         "the published shapes with their drafters on 1, 2, 4 and 8 cards, as a Markdown table; "
         "cards of 139 GiB when --device-memory is not given"},
};
static const struct option_def card_defs[] = {
    {.name = "device",
     .type = OPTION_WORD,
     .words = "cpu cuda hip",
     .help = "whose free memory counts; a card that is here, else the host, when not given"},
    {.name = "device-memory",
     .alias = "card-memory",
     .type = OPTION_SIZE,
     .min = 1,
     .max = 1e15,
     .help = "free memory of a card that need not be here, such as 139GiB"},
    {.name = "mem-fraction-static",
     .type = OPTION_FLOAT,
     .initial = "0.92",
     .min = 0.05,
     .max = 1,
     .help = "of a card's free memory, for weights, workspace and KV"},
    {.name = "tensor-parallel-size",
     .alias = "tp cards",
     .type = OPTION_INT,
     .initial = "1",
     .min = 1,
     .max = MODEL_PLAN_CARDS_MAX,
     .help = "equal cards that share the model; serve takes 1 in this build"},
    {.name = "share",
     .type = OPTION_WORD,
     .initial = "experts",
     .words = "experts tensors",
     .help = "how cards share it.  experts: each has a part of the routed experts, all of the "
             "rest, and "
             "the KV of its own requests; tensors: heads, experts and vocabulary are cut, KV is on "
             "every card"},
};
static const struct option_def ask_defs[] = {
    {.name = "max-running-requests",
     .alias = "requests slots",
     .type = OPTION_INT,
     .min = 1,
     .max = MODEL_PLAN_REQUESTS_MAX,
     .help = "requests computed at once, over all cards (16)"},
    {.name = "context-length",
     .alias = "ctx c context",
     .type = OPTION_INT,
     .min = 2,
     .max = 16777216,
     .help =
         "prompt and reply together; the checkpoint's, bounded by memory, when not given.  With "
         "--max-running-requests: all of them have it at the same time"},
    {.name = "sizing",
     .type = OPTION_WORD,
     .initial = "tight",
     .words = "tight published",
     .help =
         "tight: what serve allocates; published: the rule of published accounts, with fp8 index "
         "keys, short rings, a surcharge for the draft and no workspace"},
};

/* What the flags come to, for one model. */
struct plan {
    const char *name;
    struct weights_report *report; /* owned */
    struct weights *shape;         /* owned */
    struct kernels kernels;
    enum weights_share share;
    int n_cards;
    double memory_bytes; /* of a card, or of the host */
    const char *device, *layout, *keys;
    struct model_plan_ask ask;
    struct model_plan p;
    struct kv_plan full; /* with p.fit_tokens */
    struct sizing_snapshot page, mean, worst;
    struct {
        int64_t context;
        int requests;
    } largest[LARGEST];
    int n_largest;
    enum fst_status fits;
    char why[512]; /* when it does not */
};

static void plan_release(struct plan *x)
{
    weights_report_free(x->report);
    weights_free(x->shape);
}

/* A card that is not here: sizes alone are asked of it. */
static const struct device absent = {.name = "card"};

/* ------------------------------------------------------------------ flags */

static enum fst_status read_model(struct plan *x, const struct options *o, const char *preset)
{
    if (preset) {
        enum fst_status rc = weights_inspect_preset(&x->report, preset);
        if (rc < 0)
            return rc == FST_ENOTFOUND ? FST_EINVAL : rc;
        x->name = preset;
    } else {
        const char *dir = tool_model_dir(o);
        if (!dir)
            return FST_EMACHINE;
        FST_TRY(weights_inspect(&x->report, dir));
        if (x->report->n_missing || x->report->n_unknown || x->report->n_wrong)
            return fst_error(FST_EFORMAT,
                             "%s: the checkpoint is not whole; inspect says what is wrong", dir);
        const char *slash = strrchr(dir, '/');
        x->name = slash && slash[1] ? slash + 1 : dir;
    }
    return weights_shape(&x->shape, &x->report->config);
}

static enum fst_status use_card(struct plan *x, const char *name)
{
    const struct device *d;
    FST_TRY(device_open(&d, name));
    FST_TRY(kernels_of_device(&x->kernels, d, NULL, PRECISION_NATIVE));
    x->device = d->card;
    x->ask.device = d;
    x->memory_bytes = (double)d->free_bytes;
    return FST_OK;
}

/* Of a card that is not here nothing is known but its memory: plain kernels stand for its own. */
static void use_absent(struct plan *x, double bytes)
{
    kernels_init(&x->kernels, 0);
    x->device = "card";
    x->ask.device = &absent;
    x->memory_bytes = bytes;
}

static enum fst_status use_host(struct plan *x)
{
    FST_TRY(kernels_select(&x->kernels, NULL, PRECISION_NATIVE));
    x->device = "host";
    x->memory_bytes = (double)mem_available_bytes();
    return FST_OK;
}

static enum fst_status read_memory(struct plan *x, const struct options *o, double absent_bytes)
{
    static const char *const devices[] = {"cpu", "cuda", "hip"};
    int device = options_word(o, "device");
    double given = (double)options_int(o, "device-memory", 0);
    if (given > 0 && device >= 0)
        return fst_error(FST_EINVAL, "--device-memory: a card's that need not be here; give it or "
                                     "--device");
    if (given > 0 || (absent_bytes > 0 && device < 0))
        use_absent(x, given > 0 ? given : absent_bytes);
    else if (device > 0)
        FST_TRY(use_card(x, devices[device]));
    else if (device == 0 || use_card(x, "cuda") < 0)
        FST_TRY(use_host(x));
    x->ask.card = x->ask.device != NULL;
    if (!x->ask.card && x->n_cards > 1)
        return fst_error(FST_EINVAL,
                         "--tensor-parallel-size %d: there is no card here; give --device-memory",
                         x->n_cards);
    return FST_OK;
}

static enum fst_status read_rows(struct plan *x, const struct options *o)
{
    static const enum row_format format[] = {ROW_FP8, ROW_BF16, ROW_PAGED};
    static const char *const layouts[] = {"unified-fp8", "unified-bf16", "paged"};
    struct model_plan_ask *a = &x->ask;
    bool v41 = x->report->config.v41, fp8 = options_word(o, "index-keys") == 1;
    a->rule = options_word(o, "sizing") == 1 ? SIZING_PUBLISHED : SIZING_TIGHT;
    a->own_rows = v41 && !options_is_given(o, "kv-layout");
    a->format = format[options_word(o, "kv-layout")];
    if (a->rule == SIZING_PUBLISHED && !v41) {
        if (!fp8 && options_is_given(o, "index-keys"))
            return fst_error(FST_EINVAL,
                             "--index-keys fp4: --sizing published is of fp8 index keys");
        fp8 = true;
    }
    a->index_format = fp8 ? INDEX_FP8 : INDEX_FP4;
    x->layout = a->own_rows ? "own" : layouts[options_word(o, "kv-layout")];
    x->keys = fp8 ? "fp8" : "fp4";
    return FST_OK;
}

static enum fst_status read_ask(struct plan *x, const struct options *o)
{
    static const char *const algorithms[] = {"none", "dspark", "mtp"};
    struct model_plan_ask *a = &x->ask;
    int algorithm = options_word(o, "speculative-algorithm");
    struct model_drafting_ask ask = {.algorithm = algorithm < 0 ? NULL : algorithms[algorithm],
                                     .block_size =
                                         (int)options_int(o, "speculative-dspark-block-size", 0)};
    const char *name;
    FST_TRY(tool_num_steps(o, &ask.num_steps));
    FST_TRY(read_rows(x, o));
    FST_TRY(model_plan_drafting(&x->report->config, &ask, &name, &a->gamma));
    a->drafting = a->gamma > 0;
    a->kernels = &x->kernels;
    a->n_threads = x->ask.card ? 1 : pool_cores();
    a->memory_bytes = x->memory_bytes;
    a->share = options_float(o, "mem-fraction-static", MODEL_PLAN_SHARE);
    a->requests = (int)options_int(o, "max-running-requests", 0);
    a->chunk = (int)options_int(o, "chunked-prefill-size", MODEL_PLAN_CHUNK);
    a->context_length = options_int(o, "context-length", 0);
    a->total_tokens = options_int(o, "max-total-tokens", 0);
    a->at_once = a->context_length && a->requests;
    return FST_OK;
}

/* ------------------------------------------------------------------ the plan */

static void set_cards(struct plan *x, int n_cards, enum weights_share share)
{
    x->n_cards = n_cards;
    x->share = share;
    x->ask.n_cards = share == WEIGHTS_SHARE_EXPERTS ? n_cards : 1;
    x->ask.weights_bytes = (double)weights_card_bytes(x->report, share, n_cards);
}

static int64_t times_cards(const struct plan *x, int64_t tokens)
{
    return tokens * x->ask.n_cards;
}

static bool fits_with(const struct plan *x, int n_cards, enum weights_share share)
{
    struct plan other = *x;
    set_cards(&other, n_cards, share);
    return model_plan(x->shape, &other.ask, &other.p) == FST_OK;
}

/* Weights that are too large for a card, and what would do: sharing them the other way, or more cards.
 * Those are doubled, since heads and experts are powers of two and small multiples of them. */
static enum fst_status too_large(const struct plan *x)
{
    enum weights_share tensors = WEIGHTS_SHARE_TENSORS;
    double room = x->ask.share * x->memory_bytes;
    int n = 2 * x->n_cards;
    char hint[80];
    while (n <= MODEL_PLAN_CARDS_MAX && !fits_with(x, n, x->share))
        n *= 2;
    if (x->n_cards > 1 && x->share != tensors && fits_with(x, x->n_cards, tensors))
        snprintf(hint, sizeof hint, "with --share tensors they do");
    else if (n <= MODEL_PLAN_CARDS_MAX)
        snprintf(hint, sizeof hint, "%d cards would do", n);
    else
        snprintf(hint, sizeof hint, "nor would %d cards do", MODEL_PLAN_CARDS_MAX);
    return fst_error(
        FST_EBUDGET,
        "--tensor-parallel-size %d: weights of %.2f GiB on a card do not fit into %.2f GiB "
        "of it; %s",
        x->n_cards, x->ask.weights_bytes / GIB, room / GIB, hint);
}

static void find_largest(struct plan *x)
{
    const int64_t contexts[] = {8192, 131072, x->report->config.max_positions,
                                x->ask.context_length};
    int64_t last = 0;
    for (int i = 0; i < LARGEST; i++) {
        if (contexts[i] > x->report->config.max_positions || contexts[i] <= 0 ||
            contexts[i] == last)
            continue;
        last = contexts[i];
        x->largest[x->n_largest].context = last;
        x->largest[x->n_largest++].requests = model_plan_requests(x->shape, &x->ask, last);
    }
}

/* FST_EBUDGET is a result (x->fits); others are returned. */
static enum fst_status make_plan(struct plan *x)
{
    x->fits = model_plan(x->shape, &x->ask, &x->p);
    if (x->fits < 0 && x->fits != FST_EBUDGET)
        return x->fits;
    if (x->fits < 0 && x->ask.card && x->ask.weights_bytes > x->ask.share * x->memory_bytes)
        x->fits = too_large(x);
    if (x->fits < 0)
        snprintf(x->why, sizeof x->why, "%s", fst_error_text());
    struct kv_spec s = x->p.kv;
    s.n_pages = FST_MAX(x->p.fit_tokens / KERN_PAGE, 1);
    FST_TRY(kv_plan_by(&s, &x->p.sizing, &x->full));
    int window = x->report->config.window;
    x->page = sizing_snapshot_at(&x->p.sizing, window, round_up(window, KERN_PAGE));
    sizing_snapshot_elsewhere(&x->p.sizing, window, &x->mean, &x->worst);
    x->n_largest = 0;
    find_largest(x);
    return FST_OK;
}

/* ------------------------------------------------------------------ text */

static void line(const char *name, double bytes, const char *more)
{
    printf("  %-16s%10.3f%s%s\n", name, bytes / GIB, *more ? "  " : "", more);
}

/* What serve of this build would refuse. */
static const char *not_built(const struct plan *x)
{
    return x->report->config.v41             ? "DeepSeek-V4.1"
           : x->n_cards > 1                  ? "several cards"
           : x->ask.rule == SIZING_PUBLISHED ? "--sizing published"
                                             : NULL;
}

static void print_head(const struct plan *x)
{
    const struct model_config *c = &x->report->config;
    printf("%s: %d layers, draft %s, %.2f GiB of weights\n", x->name, c->n_layers,
           !x->ask.gamma               ? "none"
           : x->report->config.has_mtp ? "mtp"
                                       : "dspark",
           (double)x->report->bytes / GIB);
    if (x->ask.card)
        printf("%s: %d of %.2f GiB free, of which %.0f %% are used%s%s\n", x->device, x->n_cards,
               x->memory_bytes / GIB, 100 * x->ask.share, x->n_cards > 1 ? ", shared by " : "",
               x->n_cards == 1                     ? ""
               : x->share == WEIGHTS_SHARE_EXPERTS ? "experts"
                                                   : "tensors");
    else
        printf("host: %.2f GiB available; weights are mapped, KV and workspace get %.2f GiB\n",
               x->memory_bytes / GIB, x->p.budget_bytes / GIB);
    printf("%d requests, %d a card; rows %s, index keys %s, sizing %s\n", x->p.requests,
           x->p.requests_per_card, x->layout, x->keys,
           x->ask.rule == SIZING_PUBLISHED ? "published" : "tight");
}

static void print_memory(const struct plan *x)
{
    const struct model_plan *p = &x->p;
    const struct kv_plan *k = &x->full;
    char graphs[120];
    double used = (double)k->total_bytes + (double)p->work_bytes + (double)p->scratch_bytes;
    snprintf(graphs, sizeof graphs, "driver, code, up to %d recorded steps of at most %d rows",
             MODEL_GRAPHS_MAX, MODEL_GRAPH_ROWS_MAX);
    printf("%s\n", x->ask.card ? "GiB on a card, with all tokens that fit"
                               : "GiB, with all tokens that fit");
    line("weights", x->ask.weights_bytes, "");
    line("workspace", (double)p->work_bytes, "");
    line("scratch", (double)p->scratch_bytes, "");
    line("window rings", (double)k->window_bytes, "");
    line("states", (double)k->state_bytes, "");
    line("rows", (double)k->compressed_bytes, "");
    line("index keys", (double)k->index_bytes, "");
    line("tables", (double)k->table_bytes, "");
    line(p->budget_bytes < used ? "missing" : "left",
         FST_MAX(p->budget_bytes - used, used - p->budget_bytes), "");
    if (x->ask.card)
        line("held back", (1 - x->ask.share) * x->memory_bytes, graphs);
}

static void print_snapshot(const char *where, const struct sizing_snapshot *s)
{
    printf("  %-16s%10.3f  windows %.3f, states %.3f, page %.3f\n", where, (double)s->total * 1e-6,
           (double)s->window * 1e-6, (double)s->state * 1e-6, (double)s->page * 1e-6);
}

static void print_text(const struct plan *x)
{
    const struct model_plan *p = &x->p;
    print_head(x);
    print_memory(x);
    printf("a token takes %.2f bytes, a request %.2f MB; %lld tokens fit%s",
           x->full.bytes_per_full_token, (double)x->full.bytes_per_slot * 1e-6,
           (long long)times_cards(x, p->fit_tokens), x->ask.n_cards > 1 ? ", over all cards" : "");
    if (x->fits == FST_OK)
        printf(", %lld are taken", (long long)times_cards(x, p->tokens));
    printf("\nrequests that fit at the same time\n");
    for (int i = 0; i < x->n_largest; i++)
        printf("  %d of %lld tokens\n", x->largest[i].requests, (long long)x->largest[i].context);
    printf("MB of a snapshot\n");
    print_snapshot("at a page's end", &x->page);
    print_snapshot("elsewhere", &x->mean);
    print_snapshot("at worst", &x->worst);
    if (not_built(x))
        printf("note: serve does not do this yet: %s\n", not_built(x));
}

/* ------------------------------------------------------------------ JSON */

static void put_text(struct buf *b, const char *key, const char *text)
{
    buf_printf(b, ",\"%s\":", key);
    if (text)
        json_put_string(b, text, strlen(text));
    else
        buf_puts(b, "null");
}

static void put_bytes(struct buf *b, const char *key, double n)
{
    buf_printf(b, ",\"%s\":%.0f", key, n);
}

static void put_double(struct buf *b, const char *key, double x)
{
    buf_printf(b, ",\"%s\":", key);
    json_put_double(b, x);
}

static void put_snapshot(struct buf *b, const char *key, const struct sizing_snapshot *s)
{
    buf_printf(
        b, "\"%s\":{\"window_bytes\":%lld,\"state_bytes\":%lld,\"page_bytes\":%lld,\"bytes\":%lld}",
        key, (long long)s->window, (long long)s->state, (long long)s->page, (long long)s->total);
}

static void put_plan(struct buf *b, const struct plan *x)
{
    const struct model_plan *p = &x->p;
    const struct kv_plan *k = &x->full;
    buf_puts(b, "{\"model\":");
    json_put_string(b, x->name, strlen(x->name));
    buf_printf(b, ",\"fits\":%s", x->fits == FST_OK ? "true" : "false");
    put_text(b, "why_not", x->fits == FST_OK ? NULL : x->why);
    put_text(b, "not_built", not_built(x));
    put_text(b, "sizing", x->ask.rule == SIZING_PUBLISHED ? "published" : "tight");
    put_text(b, "kv_layout", x->layout);
    put_text(b, "index_keys", x->keys);
    put_text(b, "speculative_algorithm",
             !x->ask.gamma               ? "none"
             : x->report->config.has_mtp ? "mtp"
                                         : "dspark");
    buf_printf(b, ",\"gamma\":%d,\"tensor_parallel_size\":%d", x->ask.gamma, x->n_cards);
    put_text(b, "share", x->share == WEIGHTS_SHARE_EXPERTS ? "experts" : "tensors");
    put_text(b, "device", x->device);
    put_bytes(b, "device_memory_bytes", x->memory_bytes);
    put_double(b, "mem_fraction_static", x->ask.share);
    put_bytes(b, "budget_bytes", p->budget_bytes);
    buf_printf(b, ",\"max_running_requests\":%d,\"requests_per_card\":%d", p->requests,
               p->requests_per_card);
    put_bytes(b, "context_length", (double)p->context_length);
    put_bytes(b, "weights_bytes", x->ask.weights_bytes);
    put_bytes(b, "checkpoint_bytes", (double)x->report->bytes);
    put_bytes(b, "work_bytes", (double)p->work_bytes);
    put_bytes(b, "scratch_bytes", (double)p->scratch_bytes);
    put_double(b, "bytes_per_full_token", k->bytes_per_full_token);
    put_bytes(b, "bytes_per_request", (double)k->bytes_per_slot);
    put_bytes(b, "full_tokens", (double)p->fit_tokens);
    put_bytes(b, "full_tokens_all_cards", (double)times_cards(x, p->fit_tokens));
    put_bytes(b, "pool_tokens", (double)p->tokens);
    put_bytes(b, "swa_bytes", (double)k->window_bytes);
    put_bytes(b, "state_bytes", (double)k->state_bytes);
    put_bytes(b, "compressed_bytes", (double)k->compressed_bytes);
    put_bytes(b, "index_bytes", (double)k->index_bytes);
    put_bytes(b, "table_bytes", (double)k->table_bytes);
    put_bytes(b, "kv_bytes", (double)k->total_bytes);
    buf_printf(b, ",\"graphs\":{\"held\":%d,\"rows\":%d},\"snapshot\":{",
               x->ask.card ? MODEL_GRAPHS_MAX : 0, x->ask.card ? MODEL_GRAPH_ROWS_MAX : 0);
    put_snapshot(b, "page_end", &x->page);
    buf_putc(b, ',');
    put_snapshot(b, "elsewhere", &x->mean);
    buf_putc(b, ',');
    put_snapshot(b, "worst", &x->worst);
    buf_puts(b, "},\"largest\":[");
    for (int i = 0; i < x->n_largest; i++)
        buf_printf(b, "%s{\"context_length\":%lld,\"requests\":%d}", i ? "," : "",
                   (long long)x->largest[i].context, x->largest[i].requests);
    buf_puts(b, "]}");
}

/* ------------------------------------------------------------------ commands */

/* One model: what the flags ask for. */
static enum fst_status one(const struct options *o, struct plan *x, struct buf *json)
{
    FST_TRY(read_model(x, o, options_text(o, "preset")));
    x->n_cards = (int)options_int(o, "tensor-parallel-size", 1);
    FST_TRY(read_memory(x, o, 0));
    FST_TRY(read_ask(x, o));
    set_cards(x, x->n_cards,
              options_word(o, "share") == 1 ? WEIGHTS_SHARE_TENSORS : WEIGHTS_SHARE_EXPERTS);
    FST_TRY(make_plan(x));
    if (json)
        put_plan(json, x);
    else
        print_text(x);
    return x->fits == FST_OK ? FST_OK : fst_error(x->fits, "%s", x->why);
}

static void put_row(struct buf *b, const struct plan *x)
{
    buf_printf(b, "| %s | %d | %s | %.1f |", x->name, x->n_cards,
               x->n_cards == 1                     ? "–"
               : x->share == WEIGHTS_SHARE_EXPERTS ? "experts"
                                                   : "tensors",
               x->ask.weights_bytes / GIB);
    if (x->p.fit_tokens == 0) {
        buf_puts(b, " does not fit | | | | |\n");
        return;
    }
    buf_printf(b, " %.1f | %.2f |", x->p.budget_bytes / GIB,
               (double)times_cards(x, x->p.fit_tokens) * 1e-6);
    for (int i = x->n_largest; i > 0; i--)
        buf_printf(b, " %d |", x->largest[i - 1].requests);
    buf_putc(b, '\n');
}

static enum fst_status table_of(const struct options *o, const char *preset, struct buf *b,
                                bool json)
{
    struct plan x = {.n_cards = 1};
    enum fst_status rc = read_model(&x, o, preset);
    if (rc == FST_OK)
        rc = read_memory(&x, o, 139 * GIB);
    if (rc == FST_OK)
        rc = read_ask(&x, o);
    for (int i = 0; rc == FST_OK && i < 7; i++) {
        set_cards(&x, 1 << (i + 1) / 2,
                  i > 0 && i % 2 == 0 ? WEIGHTS_SHARE_TENSORS : WEIGHTS_SHARE_EXPERTS);
        rc = make_plan(&x);
        if (rc == FST_OK && json) {
            buf_puts(b, b->len > 9 ? "," : "");
            put_plan(b, &x);
        } else if (rc == FST_OK) {
            put_row(b, &x);
        }
    }
    plan_release(&x);
    return rc;
}

static enum fst_status table(const struct options *o, struct buf *b, bool json)
{
    static const char *const presets[] = {"v4-flash-dspark", "v4-pro-dspark", "v4.1-flash"};
    static const char *const fixed[] = {"preset", "model", "tensor-parallel-size", "share",
                                        "context-length"};
    for (size_t i = 0; i < FST_COUNT(fixed); i++)
        if (options_is_given(o, fixed[i]) && !strcmp(options_source(o, fixed[i]), "command line"))
            return fst_error(FST_EINVAL, "--%s: --table has its own", fixed[i]);
    buf_puts(b, json ? "{\"rows\":["
                     : "| model | cards | shared by | weights, GiB a card | left, GiB a card | "
                       "tokens, millions | requests of 1M | of 128k | of 8k |\n"
                       "|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < FST_COUNT(presets); i++)
        FST_TRY(table_of(o, presets[i], b, json));
    if (json)
        buf_puts(b, "]}");
    return FST_OK;
}

int cmd_plan(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Plan", defs), tool_model_group,
                                          OPTION_GROUP("Memory", card_defs),
                                          OPTION_GROUP("Asked for", ask_defs), tool_sizing_group};
    int status;
    struct options *o = tool_parse("firesteel plan", "[--preset NAME | --model DIR] [options]",
                                   groups, FST_COUNT(groups), argc, argv, &status);
    if (!o)
        return status;
    bool json = options_flag(o, "json");
    struct buf b = {0};
    struct plan x = {0};
    enum fst_status rc;
    if (options_flag(o, "table")) {
        rc = table(o, &b, json);
    } else if (options_text(o, "preset") && options_is_given(o, "model") &&
               !strcmp(options_source(o, "model"), "command line")) {
        rc = fst_error(FST_EINVAL, "plan: give --preset NAME or --model DIR");
    } else {
        rc = one(o, &x, json ? &b : NULL);
    }
    status = 0;
    if (b.len && (rc == FST_OK || x.fits < 0))
        status = json ? tool_print_json(&b) : fwrite(buf_str(&b), 1, b.len, stdout) != b.len;
    if (rc < 0)
        status = tool_fail(rc == FST_EBUDGET ? FST_ENOMEM : rc); /* the machine lacks memory */
    plan_release(&x);
    buf_release(&b);
    options_free(o);
    return status;
}
