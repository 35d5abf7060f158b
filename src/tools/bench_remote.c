#include "tools/bench_remote.h"

#include <limits.h>

#include "base/file.h"
#include "base/rng.h"
#include "tools/charts.h"

static const struct option_def defs[] = {
    {.name = "base-url",
     .type = OPTION_TEXT,
     .arg = "URL",
     .help =
         "of the server, http:// alone; made of host and port when not given. A key is read from "
         "OPENAI_API_KEY or API_KEY"},
    {.name = "host", .type = OPTION_TEXT, .initial = "127.0.0.1", .help = "of the server"},
    {.name = "port",
     .type = OPTION_INT,
     .initial = "30000",
     .min = 1,
     .max = 65535,
     .help = "of the server"},
    {.name = "ready-check-timeout-sec",
     .type = OPTION_FLOAT,
     .initial = "60",
     .min = 0,
     .max = 86400,
     .arg = "SECONDS",
     .help = "wait so long until the server answers GET /v1/models"},
    {.name = "model",
     .alias = "m",
     .type = OPTION_TEXT,
     .arg = "NAME",
     .help = "as requests name it, or its folder; the server's first when not given"},
    {.name = "served-model-name",
     .type = OPTION_TEXT,
     .arg = "NAME",
     .help = "as requests name it, when --model is a folder"},
    {.name = "tokenizer",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help =
         "tokenizer.json or its folder; of --model's folder, of the server's if that is here, or "
         "of the bundled model when not given"},
    {.name = "hardware",
     .type = OPTION_TEXT,
     .arg = "TEXT",
     .help =
         "what the server runs on, for the result file; this computer's processor when a server "
         "here says that it runs on it"},
    {.name = "out",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "result file {card, driver, date, build, command, rows}"},
    {.name = "svg", .type = OPTION_TEXT, .arg = "FILE", .help = "a plot of the result"},
    {.name = "json", .type = OPTION_FLAG, .help = "print the result file on stdout"},
};
const struct option_group bench_remote_group = OPTION_GROUP("Server and output", defs);

bool bench_remote_interrupted(void)
{
    return tool_interrupted(false);
}

void bench_remote_release(struct bench_remote *b)
{
    target_release(&b->t);
    tokenizer_free(b->tok);
    buf_release(&b->command);
    buf_release(&b->rows);
    *b = (struct bench_remote){0};
}

static bool has_tokenizer(const char *dir)
{
    char path[PATH_MAX];
    return dir && file_join(path, sizeof path, dir, "tokenizer.json") == FST_OK &&
           file_exists(path);
}

static enum fst_status open_tokenizer(struct bench_remote *b)
{
    const char *named = options_text(b->o, "model"), *dir;
    char path[PATH_MAX];
    if (options_text(b->o, "tokenizer"))
        return tool_tokenizer(&b->tok, b->o);
    dir = has_tokenizer(named)                                        ? named
          : http_is_local(b->t.http) && has_tokenizer(b->t.model_dir) ? b->t.model_dir
                                                                      : tool_bundled_dir();
    if (!dir)
        return fst_error(FST_EMACHINE, "no --tokenizer given, and there is no bundled model");
    FST_TRY(file_join(path, sizeof path, dir, "tokenizer.json"));
    return tokenizer_load(&b->tok, path);
}

/* What the server says of itself: hardware, whether its acceptance is made up. */
static void describe(struct bench_remote *b)
{
    struct json_doc *doc = target_get(&b->t, "/server_info");
    json_val *info = target_root(doc);
    const char *device = json_string(json_get(info, "device"), NULL);
    const char *hooks = json_string(json_get(info, "debug_hooks"), NULL);
    const char *version = json_string(json_get(info, "version"), NULL);
    const char *hardware = options_text(b->o, "hardware");

    b->simulated = hooks && strstr(hooks, "simulate");
    if (http_is_local(b->t.http) && device && !strcmp(device, "cpu"))
        bench_file_host(b->card, b->driver);
    else
        snprintf(b->card, sizeof b->card, "not known; --hardware names it");
    if (hardware)
        snprintf(b->card, sizeof b->card, "%s", hardware);
    if (!b->driver[0])
        snprintf(b->driver, sizeof b->driver, "server version %.60s",
                 version ? version : "unknown");
    json_free(doc);
}

enum fst_status bench_remote_open(struct bench_remote *b, const struct options *o, const char *url,
                                  bool tokenizer, int argc, char **argv)
{
    char made[600];
    const char *model = options_text(o, "model"), *host = options_text(o, "host");
    *b = (struct bench_remote){.o = o};
    snprintf(made, sizeof made, "http://%s:%d", strcmp(host, "0.0.0.0") ? host : "127.0.0.1",
             (int)options_int(o, "port", 0));
    if (!url)
        url = options_text(o, "base-url") ? options_text(o, "base-url") : made;
    buf_puts(&b->command, "firesteel bench");
    struct buf rest = {0};
    bench_file_command(&rest, argc, argv, "");
    buf_puts(&b->command, buf_str(&rest) + strlen("firesteel"));
    buf_release(&rest);
    enum fst_status rc = target_open(&b->t, url, options_float(o, "ready-check-timeout-sec", 60),
                                     bench_remote_interrupted);
    if (rc == FST_OK && tokenizer)
        rc = open_tokenizer(b);
    if (rc < 0) {
        bench_remote_release(b);
        return rc;
    }
    b->model = options_text(o, "served-model-name");
    if (!b->model)
        b->model = model && !file_is_folder(model) ? model : b->t.model ? b->t.model : "default";
    describe(b);
    return FST_OK;
}

/* ------------------------------------------------------------------ rows */

void bench_remote_row(struct bench_remote *b, const char *name, const char *members)
{
    buf_puts(&b->rows, b->rows.len ? "," : "");
    buf_printf(&b->rows, "{\"name\":\"%s\"%s%s}", name, *members ? "," : "", members);
}

static enum fst_status write_svg(const struct bench_remote *b, const struct buf *file)
{
    struct json_doc *doc = NULL;
    struct buf svg = {0}, caption = {0};
    FST_TRY(json_parse(&doc, buf_str(file), file->len));
    json_val *rows = json_get(json_root(doc), "rows");
    size_t n = json_count(rows);
    json_val **row = mem_calloc(n + 1, sizeof *row);
    enum fst_status rc = row ? FST_OK : fst_error(FST_ENOMEM, "no memory for a plot");
    for (size_t i = 0; row && i < n; i++)
        row[i] = json_at(rows, i);
    buf_printf(&caption, "$ %s  |  %s  |  %s", buf_str(&b->command), b->card, b->driver);
    if (rc == FST_OK)
        rc = charts_draw(&svg, (enum chart_kind)charts_kind_of(row, n), row, n, buf_str(&caption));
    if (rc == FST_OK)
        rc = file_write(options_text(b->o, "svg"), buf_str(&svg), svg.len);
    json_free(doc);
    mem_free(row);
    buf_release(&svg);
    buf_release(&caption);
    return rc;
}

int bench_remote_finish(struct bench_remote *b, const struct buf *text)
{
    struct buf file = {0};
    const char *out = options_text(b->o, "out");
    int status = 0;

    bench_file_head(&file, b->card, b->driver, buf_str(&b->command));
    buf_puts(&file, ",\"rows\":[");
    buf_append(&file, buf_str(&b->rows), b->rows.len);
    buf_puts(&file, "]}");
    enum fst_status rc =
        file.failed || b->rows.failed ? fst_error(FST_ENOMEM, "no memory") : FST_OK;
    if (rc == FST_OK && out)
        rc = file_write(out, buf_str(&file), file.len);
    if (rc == FST_OK && options_text(b->o, "svg"))
        rc = write_svg(b, &file);
    if (rc < 0)
        status = tool_fail(rc);
    else if (options_flag(b->o, "json"))
        status = tool_print_json(&file);
    else
        fwrite(buf_str(text), 1, text->len, stdout);
    buf_release(&file);
    return status;
}

/* ------------------------------------------------------------------ requests */

void bench_remote_salt(char out[40])
{
    snprintf(out, 40, "bench-%016llx", (unsigned long long)rng_os());
}

void bench_remote_put_ids(struct buf *out, const struct tokenizer_ids *ids)
{
    buf_putc(out, '[');
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(out, "%s%d", i ? "," : "", ids->id[i]);
    buf_putc(out, ']');
}

void bench_remote_generate(struct buf *out, const struct tokenizer_ids *ids, int64_t n_tokens,
                           const char *salt)
{
    buf_puts(out, "{\"input_ids\":");
    bench_remote_put_ids(out, ids);
    buf_printf(out,
               ",\"sampling_params\":{\"temperature\":0.0,\"max_new_tokens\":%lld,"
               "\"ignore_eos\":true},\"stream\":true",
               (long long)n_tokens);
    if (salt)
        buf_printf(out, ",\"cache_salt\":\"%s\"", salt);
    buf_putc(out, '}');
}

enum fst_status bench_remote_call(struct bench_remote *b, enum answer_api api, const char *body,
                                  int64_t n_prompt, int64_t n_wanted, struct answer *r)
{
    struct load_opts o = {.api = api,
                          .path = load_path(api),
                          .key = b->t.key,
                          .streams = true,
                          .interrupted = bench_remote_interrupted};
    struct load_item item = {body, strlen(body), n_prompt, n_wanted};
    double s;
    FST_TRY(load_run(b->t.http, &o, &item, 1, r, &s, NULL));
    return answer_ok(r) ? FST_OK
                        : fst_error(answer_fault(r), "%s%s: %s", http_url(b->t.http), o.path,
                                    r->error ? r->error : "no memory");
}

double bench_remote_accept_length(const struct target_counts *a, const struct target_counts *z)
{
    double rounds = z->verify_steps - a->verify_steps;
    return a->has_spec && z->has_spec && rounds > 0 ? (z->accepted - a->accepted + rounds) / rounds
                                                    : 0;
}

void bench_remote_put_spec(struct buf *out, const struct target_counts *a,
                           const struct target_counts *z)
{
    double length = bench_remote_accept_length(a, z);
    double rounds = z->verify_steps - a->verify_steps;
    buf_puts(out, "\"accept_length\":");
    if (length > 0)
        json_put_double(out, length);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"accepted_by_position\":[");
    for (int i = 0; length > 0 && i < z->n_positions; i++) {
        buf_puts(out, i ? "," : "");
        json_put_double(out, (z->by_position[i] - a->by_position[i]) / rounds);
    }
    buf_putc(out, ']');
}
