#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "server/server.h"
#include "tools/tool.h"

static const struct option_def model_defs[] = {
    {.name = "model",
     .alias = "model-path m",
     .type = OPTION_TEXT,
     .arg = "DIR",
     .help = "checkpoint folder (safetensors, config.json, tokenizer.json); the bundled model "
             "when not given"},
    {.name = "tokenizer",
     .alias = "tokenizer-path",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "tokenizer.json, or the folder that holds it; the model's when not given"},
    {.name = "json", .type = OPTION_FLAG, .help = "print one JSON object on stdout"},
};
const struct option_group tool_model_group = OPTION_GROUP("Model", model_defs);
const struct option_group tool_folder_group = {"Model", model_defs, FST_COUNT(model_defs) - 1};
const struct option_group tool_json_group = {"Output", model_defs + FST_COUNT(model_defs) - 1, 1};

enum { SIZING_DEFS = 9 };
static const struct option_def engine_defs[] = {
    {.name = "device",
     .type = OPTION_WORD,
     .initial = "cpu",
     .words = "cpu cuda hip",
     .help = "where the model runs; cuda needs its module (make gpu)"},
    {.name = "disable-cuda-graph",
     .type = OPTION_FLAG,
     .help = "launch kernel by kernel on a card instead of recording steps; same results, slower"},
    {.name = "disable-radix-cache",
     .alias = "disable-prefix-cache",
     .type = OPTION_FLAG,
     .help = "compute every prompt whole; same results, slower"},
    {.name = "prefix-cache-mb",
     .type = OPTION_INT,
     .min = 1,
     .max = 1 << 24,
     .arg = "N",
     .help = "host memory that prompts go on from; default room for 128 snapshots, 4096 at most"},
    {.name = "enable-hierarchical-cache",
     .type = OPTION_FLAG,
     .help =
         "keep in host memory what the prefixes let go: twice the KV pages, a quarter of what is "
         "free at most, if no size is given"},
    {.name = "kv-host-mb",
     .type = OPTION_INT,
     .min = 1,
     .max = 1 << 24,
     .arg = "N",
     .help = "the same with so many MiB"},
    {.name = "hicache-size",
     .type = OPTION_INT,
     .min = 1,
     .max = 1 << 14,
     .arg = "N",
     .help = "the same with so many GB"},
    {.name = "hicache-ratio",
     .type = OPTION_FLOAT,
     .min = 0.001,
     .max = 1e6,
     .arg = "R",
     .help = "the same with room for so many times the KV pages (2, in a quarter of what is free)"},
    {.name = "hicache-mem-layout",
     .type = OPTION_WORD,
     .initial = "page_first_direct",
     .words = "page_first_direct=page_first layer_first",
     .help = "where the bytes of a page lie there"},
    {.name = "hicache-io-backend",
     .type = OPTION_WORD,
     .words = "direct kernel",
     .no_use = "a card gathers pages by a kernel and copies them directly"},
    {.name = "kv-disk-dir",
     .type = OPTION_TEXT,
     .arg = "DIR",
     .help = "keep it in this folder too, for the next start"},
    {.name = "kv-disk-mb",
     .alias = "kv-disk-space-mb",
     .type = OPTION_INT,
     .min = 1,
     .max = 1 << 30,
     .arg = "N",
     .help = "how much of the disk at most (4096)"},
    {.name = "kv-disk-write-mb-hour",
     .type = OPTION_INT,
     .min = 1,
     .max = 1 << 30,
     .arg = "N",
     .help = "write no more than this in any hour (no limit)"},
    {.name = "kv-disk-zstd",
     .type = OPTION_FLAG,
     .help = "compress it, where that makes it smaller"},
    {.name = "hicache-write-policy",
     .alias = "kv-write-policy",
     .type = OPTION_WORD,
     .initial = "write_through",
     .words = "write_through write_through_selective write_back",
     .help = "copy at once, what is used again, or what is about to go"},
    {.name = "hicache-storage-prefetch-policy",
     .alias = "kv-load-policy",
     .type = OPTION_WORD,
     .initial = "wait_complete",
     .words = "wait_complete best_effort timeout",
     .help =
         "how long a request waits for what only the disk has: to the end, no longer than it is "
         "kept from running, or a second and 0.25 per 1024 tokens"},
    {.name = "kernels",
     .type = OPTION_TEXT,
     .initial = "auto",
     .arg = "NAME",
     .help = "auto; on the CPU ref, avx2 or avx512, on a card gpu or sm90"},
    {.name = "precision",
     .type = OPTION_WORD,
     .initial = "native",
     .words = "native reference",
     .help = "reference: fp32 arithmetic, no activation or KV quantisation (slow)"},
    {.name = "verify-mode",
     .type = OPTION_WORD,
     .initial = "auto",
     .words = "auto static cap compact",
     .env = "SGLANG_RAGGED_VERIFY_MODE",
     .help =
         "how many drafts of a round are verified.  auto: who drafts, and how much, by what it "
         "brings and costs; static: all; compact: of full blocks what pays; cap: as compact, but "
         "computes all.  Results are the same"},
    {.name = "speculative-dspark-sps-table-path",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "what steps cost: read if it was measured here, else measured; written at the end"},
    {.name = "speculative-dspark-confidence-sts-path",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "calibration of the confidence head (dspark-sts.json of the model's folder)"},
    {.name = "max-running-requests",
     .type = OPTION_INT,
     .min = 1,
     .max = 4096,
     .help = "requests computed at once (16)"},
    {.name = "max-queued-requests",
     .type = OPTION_INT,
     .min = 1,
     .max = 1000000,
     .help = "requests that may wait (1024); more are refused"},
    {.name = "context-length",
     .alias = "ctx c",
     .type = OPTION_INT,
     .min = 2,
     .max = 16777216,
     .help = "prompt and reply together; the checkpoint's, bounded by memory, when not given"},
    {.name = "threads",
     .type = OPTION_INT,
     .min = 1,
     .max = 256,
     .help = "compute threads; one per core when not given.  Results do not depend on it"},
    {.name = "random-seed",
     .type = OPTION_TEXT,
     .arg = "N",
     .help = "seeds requests that bring no seed; random when not given"},
    {.name = "tensor-parallel-size",
     .alias = "tp",
     .type = OPTION_INT,
     .initial = "1",
     .min = 1,
     .max = 1,
     .help = "devices that share the model; 1 in this build"},
    {.name = "log-level",
     .type = OPTION_WORD,
     .initial = "info",
     .words = LOG_LEVEL_WORDS,
     .help = "how much is logged on stderr"},
    {.name = "max-stall-ms",
     .type = OPTION_INT,
     .initial = "250",
     .min = 0,
     .max = 60000,
     .help =
         "fewer prompt rows in a step that running streams would wait longer for; 0: never fewer"},
    /* the last SIZING_DEFS, which memory depends on */
    {.name = "kv-layout",
     .type = OPTION_WORD,
     .initial = "unified-fp8",
     .words = "unified-fp8 unified-bf16 paged",
     .help = "how KV rows are stored; results do not depend on it"},
    {.name = "index-keys",
     .type = OPTION_WORD,
     .initial = "fp4",
     .words = "fp4 fp8",
     .help = "how index keys are stored"},
    {.name = "speculative-algorithm",
     .type = OPTION_WORD,
     .words = "none dspark mtp=eagle",
     .help = "drafting; what the checkpoint bundles when not given"},
    {.name = "speculative-dspark-block-size",
     .type = OPTION_INT,
     .min = 1,
     .max = FST_SPEC_MAX,
     .help = "DSpark: draft tokens per round; the checkpoint's when not given"},
    {.name = "speculative-num-steps",
     .type = OPTION_INT,
     .min = 1,
     .max = 3,
     .help = "MTP: draft tokens per round (3)"},
    {.name = "speculative-eagle-topk",
     .type = OPTION_INT,
     .initial = "1",
     .min = 1,
     .max = 1,
     .help = "MTP: drafts of a position; 1: compressed KV follows one line of tokens"},
    {.name = "speculative-num-draft-tokens",
     .type = OPTION_INT,
     .min = 2,
     .max = 4,
     .help = "MTP: rows of a verify step, one more than the steps"},
    {.name = "chunked-prefill-size",
     .type = OPTION_INT,
     .min = 1,
     .max = 65536,
     .help = "prompt rows per step (512)"},
    {.name = "max-total-tokens",
     .type = OPTION_INT,
     .min = 1,
     .max = 1e12,
     .help = "KV tokens over all requests; by the memory plan when not given"},
};
const struct option_group tool_engine_group = OPTION_GROUP("Engine", engine_defs);
const struct option_group tool_sizing_group = {
    "Engine", engine_defs + FST_COUNT(engine_defs) - SIZING_DEFS, SIZING_DEFS};

/* ------------------------------------------------------------------ usage */

int tool_fail(enum fst_status rc)
{
    fprintf(stderr, "firesteel: %s\n", fst_error_text());
    return rc == FST_ENOTFOUND ? 3 : fst_exit_status(rc); /* a file that is not there */
}

static struct options *parse(const char *program, const char *usage,
                             const struct option_group *groups, size_t n, bool words, int argc,
                             char **argv, int *status)
{
    struct options *o = NULL;
    const char *const *word;
    enum fst_status rc = options_new(&o, program, usage, groups, n);
    if (rc == FST_OK)
        rc = options_parse(o, argc, argv);
    if (rc == FST_OK && !words && !options_help_wanted(o) && options_args(o, &word))
        rc = fst_error(FST_EINVAL, "unexpected word \"%s\" (see %s --help)", word[0], program);
    if (rc < 0) {
        *status = tool_fail(rc);
        options_free(o);
        return NULL;
    }
    if (options_help_wanted(o)) {
        struct buf b = {0};
        options_help(o, &b);
        fwrite(buf_str(&b), 1, b.len, stdout);
        buf_release(&b);
        options_free(o);
        *status = 0;
        return NULL;
    }
    for (size_t i = 0; options_notice(o, i); i++)
        fprintf(stderr, "firesteel: note: %s\n", options_notice(o, i));
    return o;
}

struct options *tool_parse(const char *program, const char *usage,
                           const struct option_group *groups, size_t n, int argc, char **argv,
                           int *status)
{
    return parse(program, usage, groups, n, false, argc, argv, status);
}

struct options *tool_parse_words(const char *program, const char *usage,
                                 const struct option_group *groups, size_t n, int argc, char **argv,
                                 int *status)
{
    return parse(program, usage, groups, n, true, argc, argv, status);
}

/* ------------------------------------------------------------------ model */

static bool has_config(const char *dir)
{
    char path[PATH_MAX];
    return file_join(path, sizeof path, dir, "config.json") == FST_OK && file_exists(path);
}

const char *tool_bundled_dir(void)
{
    static char found[PATH_MAX];
    static const char *const beside[] = {"../models/kindling", "models/kindling",
                                         "../share/firesteel/models/kindling",
                                         "../../models/kindling"};
    char exe[PATH_MAX / 2];
    bool known = file_program_folder(exe, sizeof exe);
    for (size_t i = 0; known && i < FST_COUNT(beside); i++)
        if (file_join(found, sizeof found, exe, beside[i]) == FST_OK && has_config(found)) {
            char real[PATH_MAX];
            if (realpath(found, real))
                memcpy(found, real, strlen(real) + 1);
            return found;
        }
    if (has_config("models/kindling"))
        return "models/kindling";
    return NULL;
}

const char *tool_model_dir(const struct options *o)
{
    const char *dir = options_text(o, "model");
    if (dir) {
        if (file_is_folder(dir))
            return dir;
        fst_error(FST_EMACHINE,
                  "--model %s: no such folder.  Published checkpoints: huggingface.co/deepseek-ai, "
                  "e.g. `hf download deepseek-ai/DeepSeek-V4-Flash --local-dir %s` (about 160 GB)",
                  dir, dir);
        return NULL;
    }
    dir = tool_bundled_dir();
    if (!dir)
        fst_error(FST_EMACHINE,
                  "no --model given, and the bundled model models/kindling is neither "
                  "beside the program nor in the working directory");
    return dir;
}

enum fst_status tool_seed(uint64_t *out, const char *flag, const char *text)
{
    size_t minus = text[0] == '-', digits = strspn(text + minus, "0123456789");
    errno = 0;
    *out = minus ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
    if (!digits || text[minus + digits] || errno == ERANGE)
        return fst_error(FST_EINVAL,
                         "%s: expected an integer in [-9223372036854775808, "
                         "18446744073709551615], got '%s'",
                         flag, text);
    return FST_OK;
}

/* Of the host tier; -1: by the engine, 0: none. */
static int64_t host_bytes(const struct options *o)
{
    if (options_is_given(o, "kv-host-mb"))
        return options_int(o, "kv-host-mb", 0) << 20;
    if (options_is_given(o, "hicache-size"))
        return options_int(o, "hicache-size", 0) * 1000000000;
    return options_flag(o, "enable-hierarchical-cache") || options_is_given(o, "hicache-ratio") ? -1
                                                                                                : 0;
}

/* Flags that say how to do what nobody asked for: most likely another one was forgotten. */
static void say_without_effect(const struct options *o, const struct fst_engine_opts *e)
{
    const struct {
        const char *name, *needs;
        bool has;
    } flag[] = {{"hicache-mem-layout", "--enable-hierarchical-cache", e->kv_host_bytes != 0},
                {"hicache-storage-prefetch-policy", "--kv-disk-dir", e->kv_disk_dir},
                {"hicache-write-policy", "--enable-hierarchical-cache_or_--kv-disk-dir",
                 e->kv_host_bytes || e->kv_disk_dir}};

    for (size_t i = 0; i < FST_COUNT(flag); i++)
        if (!flag[i].has && options_is_given(o, flag[i].name))
            log_warn("tiers", "flag=--%s effect=none why=needs_%s", flag[i].name, flag[i].needs);
}

enum fst_status tool_num_steps(const struct options *o, int *steps)
{
    int rows = (int)options_int(o, "speculative-num-draft-tokens", 0);
    *steps = (int)options_int(o, "speculative-num-steps", rows ? rows - 1 : 0);
    if (!rows || rows == *steps + 1)
        return FST_OK;
    return fst_error(FST_EINVAL,
                     "--speculative-num-draft-tokens must be one more than "
                     "--speculative-num-steps %d, got %d",
                     *steps, rows);
}

enum fst_status tool_engine_opts(const struct options *o, struct fst_engine_opts *e)
{
    static const char *const devices[] = {"cpu", "cuda", "hip"};
    static const char *const layouts[] = {"unified-fp8", "unified-bf16", "paged"};
    static const char *const host_layouts[] = {"page_first_direct", "layer_first"};
    static const char *const policies[] = {"write_through", "write_through_selective",
                                           "write_back"};
    static const char *const loads[] = {"wait_complete", "best_effort", "timeout"};
    static const char *const keys[] = {"fp4", "fp8"};
    static const char *const precisions[] = {"native", "reference"};
    static const char *const algorithms[] = {"none", "dspark", "mtp"};
    static const char *const modes[] = {"auto", "static", "cap", "compact"};
    *e = (struct fst_engine_opts){0};
    e->model_dir = tool_model_dir(o);
    if (!e->model_dir)
        return FST_EMACHINE;
    e->device = devices[options_word(o, "device")];
    e->disable_cuda_graph = options_flag(o, "disable-cuda-graph");
    e->disable_prefix_cache = options_flag(o, "disable-radix-cache");
    e->prefix_cache_bytes = options_int(o, "prefix-cache-mb", 0) << 20;
    e->kv_host_bytes = host_bytes(o);
    e->kv_host_ratio = options_float(o, "hicache-ratio", 0);
    e->kv_host_layout = host_layouts[options_word(o, "hicache-mem-layout")];
    e->kv_write_policy = policies[options_word(o, "hicache-write-policy")];
    e->kv_load_policy = loads[options_word(o, "hicache-storage-prefetch-policy")];
    e->kv_disk_dir = options_text(o, "kv-disk-dir");
    e->kv_disk_bytes = options_int(o, "kv-disk-mb", 0) << 20;
    e->kv_disk_write_bytes_hour = options_int(o, "kv-disk-write-mb-hour", 0) << 20;
    e->kv_disk_zstd = options_flag(o, "kv-disk-zstd");
    e->kernels = options_text(o, "kernels");
    e->kv_layout = layouts[options_word(o, "kv-layout")];
    e->index_keys = keys[options_word(o, "index-keys")];
    e->precision = precisions[options_word(o, "precision")];
    int a = options_word(o, "speculative-algorithm");
    e->spec_algorithm = a < 0 ? NULL : algorithms[a];
    e->spec_block_size = (int)options_int(o, "speculative-dspark-block-size", 0);
    FST_TRY(tool_num_steps(o, &e->spec_num_steps));
    e->verify_mode = modes[options_word(o, "verify-mode")];
    e->cost_path = options_text(o, "speculative-dspark-sps-table-path");
    e->sts_path = options_text(o, "speculative-dspark-confidence-sts-path");
    e->threads = (int)options_int(o, "threads", 0);
    e->max_running_requests = (int)options_int(o, "max-running-requests", 0);
    e->max_queued_requests = (int)options_int(o, "max-queued-requests", 0);
    e->context_length = options_int(o, "context-length", 0);
    e->max_total_tokens = options_int(o, "max-total-tokens", 0);
    e->chunked_prefill_size = (int)options_int(o, "chunked-prefill-size", 0);
    int64_t stall_ms = options_int(o, "max-stall-ms", 250);
    e->max_stall_s = stall_ms > 0 ? 1e-3 * (double)stall_ms : -1;
    log_set_level((enum log_level)options_word(o, "log-level"));
    say_without_effect(o, e);
    const char *seed = options_text(o, "random-seed");
    e->has_random_seed = seed && strcmp(seed, "random") != 0;
    return e->has_random_seed ? tool_seed(&e->random_seed, "--random-seed", seed) : FST_OK;
}

void tool_engine_for_one(const struct options *o, struct fst_engine_opts *e, int64_t tokens)
{
    /* ROOM: drafts may reach beyond the last token.  More than ASKED_MAX may not fit, which is no
     * reason to refuse: then the memory plan decides, as without this. */
    enum { ROOM = 64, ASKED_MAX = 65536 };
    int64_t most = server_config_int(e->model_dir, "max_position_embeddings");
    if (!options_is_given(o, "max-running-requests"))
        e->max_running_requests = 1;
    if (!options_is_given(o, "context-length") && !options_is_given(o, "max-total-tokens") &&
        tokens + ROOM < FST_MIN(most, (int64_t)ASKED_MAX))
        e->context_length = tokens + ROOM;
}

struct loading {
    struct progress p;
    bool started;
    uint64_t seen;
};

static void on_load(void *ud, uint64_t done, uint64_t total)
{
    struct loading *l = ud;
    if (!l->started) {
        progress_start(&l->p, "loading", PROGRESS_BYTES, (int64_t)total);
        l->started = true;
    }
    if (done > l->seen)
        progress_add(&l->p, (int64_t)(done - l->seen));
    l->seen = done;
}

enum fst_status tool_engine_open(fst_engine **out, struct fst_engine_opts *e,
                                 const struct tokenizer *t)
{
    struct loading l = {0};
    struct tokenizer_ids unnamed = {0};
    enum fst_status rc = t ? server_unnamed_ids(&unnamed, t, e->model_dir) : FST_OK;
    e->masked_ids = unnamed.id;
    e->n_masked_ids = unnamed.n;
    e->on_load = on_load;
    e->on_load_ud = &l;
    if (rc == FST_OK)
        rc = fst_engine_open(out, e);
    tokenizer_ids_release(&unnamed);
    if (l.started)
        progress_end(&l.p);
    return rc;
}

enum fst_status tool_tokenizer(struct tokenizer **out, const struct options *o)
{
    char path[PATH_MAX];
    const char *t = options_text(o, "tokenizer");
    if (t && !file_is_folder(t))
        return tokenizer_load(out, t);
    const char *dir = t ? t : tool_model_dir(o);
    if (!dir)
        return FST_EMACHINE;
    FST_TRY(file_join(path, sizeof path, dir, "tokenizer.json"));
    return tokenizer_load(out, path);
}

/* ------------------------------------------------------------------ ids, messages */

enum fst_status tool_parse_ids(struct tokenizer_ids *out, const char *text, size_t len,
                               const char *name)
{
    struct json_doc *doc = NULL;
    enum fst_status rc = json_parse(&doc, text, len);
    if (rc < 0) {
        char why[512];
        snprintf(why, sizeof why, "%s", fst_error_text());
        return fst_error(FST_EFORMAT, "%s: %s", name, why);
    }
    json_val *v = json_root(doc);
    if (json_type_of(v) == JSON_OBJECT && json_type_of(json_get(v, "ids")) == JSON_ARRAY)
        v = json_get(v, "ids"); /* what `tokenize --json` prints */
    if (json_type_of(v) != JSON_ARRAY)
        rc = fst_error(FST_EFORMAT, "%s: expected a JSON array of integers, got %s", name,
                       json_type_name(json_type_of(v)));
    for (size_t i = 0; rc == FST_OK && i < json_count(v); i++) {
        int64_t id;
        if (!json_int(json_at(v, i), &id) || id < 0 || id > INT32_MAX)
            rc = fst_error(FST_EFORMAT, "%s: element %zu is no token id", name, i);
        else
            rc = tokenizer_ids_push(out, (int32_t)id);
    }
    json_free(doc);
    return rc;
}

enum fst_status tool_read_ids(struct tokenizer_ids *out, const char *path)
{
    struct buf b = {0};
    enum fst_status rc = file_read(&b, path, 0);
    if (rc == FST_OK)
        rc = tool_parse_ids(out, buf_str(&b), b.len, path);
    buf_release(&b);
    return rc;
}

enum fst_status tool_render(struct chat_request *r, struct chat_prompt *p, const char *path,
                            const char *thinking, const char *effort, const char *model_dir,
                            bool reference)
{
    struct buf b = {0};
    struct json_doc *doc = NULL;
    struct chat_defaults d;
    *p = (struct chat_prompt){0};
    chat_defaults_init(&d);
    d.placeholder_parts = reference;
    if (model_dir)
        d.profile = chat_profile_detect(model_dir);
    chat_request_init(r, &d);
    FST_TRY(file_read(&b, path, 0));
    enum fst_status rc = json_parse(&doc, buf_str(&b), b.len);
    if (rc == FST_OK) {
        chat_request_release(r);
        rc = chat_request_from_json(r, json_root(doc), &d);
    }
    if (rc < 0) {
        char why[800];
        snprintf(why, sizeof why, "%s", fst_error_text());
        rc = fst_error(rc == FST_EINVAL ? FST_EFORMAT : rc, "%s: %s", path, why);
    }
    if (rc == FST_OK && effort && !chat_effort_parse(effort, &r->thinking, &r->effort))
        rc = fst_error(FST_EINVAL,
                       "--reasoning-effort %s: none, minimal, low, medium, high, xhigh, "
                       "max and ultra are known",
                       effort);
    if (rc == FST_OK && thinking)
        r->thinking = !strcmp(thinking, "on");
    r->reference = reference;
    if (rc == FST_OK)
        rc = chat_render(p, r);
    json_free(doc);
    buf_release(&b);
    return rc;
}

/* ------------------------------------------------------------------ following */

static enum fst_status feed(struct chat_stream *st, const struct fst_request_view *v, size_t *fed)
{
    while (st && *fed < v->n && !chat_stream_result(st)->stopped) {
        bool is_stop = v->finish == FST_FINISH_STOP && *fed + 1 == v->n;
        FST_TRY(chat_stream_feed(st, v->ids[*fed], is_stop));
        ++*fed;
    }
    return FST_OK;
}

/* A line while a prompt is read that takes longer than half a second. */
struct reading {
    struct progress p;
    bool is_drawn;
    int64_t start_ns, seen;
};

static void show_reading(struct reading *r, const struct fst_request_view *v)
{
    enum { WAIT_NS = 500000000 };
    int64_t done = (int64_t)v->n_prefilled - (int64_t)v->n_cached;
    bool reads = v->finish == FST_FINISH_NONE && !v->n && v->n_prompt > v->n_cached;
    if (reads && !r->is_drawn && clock_ns() - r->start_ns > WAIT_NS) {
        progress_start(&r->p, "reading", PROGRESS_TOKENS, (int64_t)(v->n_prompt - v->n_cached));
        r->p.start_ns = r->start_ns;
        r->is_drawn = true;
    }
    if (!r->is_drawn)
        return;
    progress_add(&r->p, FST_MAX(done - r->seen, (int64_t)0));
    r->seen = FST_MAX(done, r->seen);
    if (!reads) {
        progress_end(&r->p);
        r->is_drawn = false;
    }
}

enum fst_status tool_follow(fst_request *req, struct chat_stream *st, struct fst_request_view *v)
{
    struct reading reading = {.start_ns = clock_ns()};
    size_t fed = 0;
    for (;;) {
        enum fst_status rc = fst_request_wait(req, 0.015);
        fst_request_get_view(req, v);
        show_reading(&reading, v);
        FST_TRY(feed(st, v, &fed));
        if (v->finish != FST_FINISH_NONE || (st && chat_stream_result(st)->stopped))
            break;
        if (rc < 0 && rc != FST_ETIMEOUT) {
            if (reading.is_drawn)
                progress_end(&reading.p);
            return rc;
        }
        if (tool_interrupted(false))
            fst_request_cancel(req);
    }
    enum chat_end end = v->finish == FST_FINISH_LENGTH  ? CHAT_END_LENGTH
                        : v->finish == FST_FINISH_ABORT ? CHAT_END_ABORT
                                                        : CHAT_END_STOP;
    if (st)
        FST_TRY(chat_stream_finish(st, end));
    return v->finish == FST_FINISH_ERROR ? fst_error(v->status, "%s", v->error) : FST_OK;
}

double tool_decode_rate(const struct fst_request_view *v, size_t n)
{
    return v->decode_s > 0 && n > 1 ? (double)(n - 1) / v->decode_s : 0;
}

/* ------------------------------------------------------------------ output */

int tool_print_json(const struct buf *b)
{
    if (b->failed) {
        fprintf(stderr, "firesteel: out of memory\n");
        return 3;
    }
    fwrite(buf_str(b), 1, b->len, stdout);
    putc('\n', stdout);
    return fflush(stdout) == 0 ? 0 : 1;
}

void tool_put_spec(struct buf *b, const char *algorithm, int gamma, const struct fst_spec_stats *s)
{
    buf_puts(b, "{\"algorithm\":");
    const char *name = gamma > 0 && algorithm ? algorithm : "none";
    json_put_string(b, name, strlen(name));
    buf_puts(b, ",\"accept_length\":");
    if (s->verify_steps)
        json_put_double(b, s->accept_length);
    else
        buf_puts(b, "null");
    buf_printf(b,
               ",\"verify_steps\":%llu,\"drafted\":%llu,\"accepted\":%llu,"
               "\"accepted_by_position\":[",
               (unsigned long long)s->verify_steps, (unsigned long long)s->drafted,
               (unsigned long long)s->accepted);
    for (int i = 0; i < gamma && i < FST_SPEC_MAX; i++)
        buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)s->accepted_by_position[i]);
    buf_puts(b, "]}");
}

const char *tool_finish_name(enum fst_finish f)
{
    static const char *const name[] = {"none", "stop", "length", "abort", "error"};
    return name[f];
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signum)
{
    (void)signum;
    interrupted = 1;
}

void tool_catch_interrupt(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &sa, NULL);
}

bool tool_interrupted(bool reset)
{
    bool yes = interrupted != 0;
    if (reset)
        interrupted = 0;
    return yes;
}
