/* cmd_generate.c - one completion. */
#include <unistd.h>

#include "base/file.h"
#include "base/utf8.h"
#include "tools/tool.h"

static const struct option_def defs[] = {
    {.name = "prompt", .alias = "p", .type = OPTION_TEXT, .arg = "TEXT", .help = "raw prompt text"},
    {.name = "prompt-file", .type = OPTION_TEXT, .arg = "FILE", .help = "raw prompt of a file"},
    {.name = "ids", .type = OPTION_TEXT, .arg = "FILE", .help = "JSON array of prompt ids"},
    {.name = "messages",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "JSON messages, rendered as the server does"},
    {.name = "thinking", .type = OPTION_WORD, .words = "off on", .help = "with --messages"},
    {.name = "reasoning-effort", .type = OPTION_TEXT, .arg = "E", .help = "with --messages"},
    {.name = "max-tokens",
     .alias = "n",
     .type = OPTION_INT,
     .initial = "256",
     .min = 0,
     .max = 1e12,
     .help = "at most so many new tokens"},
    {.name = "temperature",
     .alias = "temp",
     .type = OPTION_FLOAT,
     .initial = "1",
     .min = 0,
     .max = 100,
     .help = "0 is greedy"},
    {.name = "top-p", .type = OPTION_FLOAT, .initial = "1", .min = 1e-6, .max = 1, .help = "1 off"},
    {.name = "min-p", .type = OPTION_FLOAT, .initial = "0", .min = 0, .max = 1, .help = "0 off"},
    {.name = "top-k", .type = OPTION_INT, .initial = "-1", .min = -1, .max = 1e9, .help = "-1 off"},
    {.name = "seed", .type = OPTION_TEXT, .arg = "S", .help = "same seed, same text"},
    {.name = "ignore-eos", .type = OPTION_FLAG, .help = "go on after the end of text"},
    {.name = "stop", .type = OPTION_LIST, .arg = "TEXT", .help = "end before this text"},
    {.name = "logprobs",
     .type = OPTION_FLAG,
     .help = "add the log-probability of each id to the JSON"},
};

struct job {
    const struct options *o;
    fst_engine *e;
    struct fst_engine_info info;
    struct tokenizer *t;
    struct tokenizer_ids prompt;
    bool chat;
    struct chat_request cr;
    struct chat_prompt cp;
    struct chat_stream *st;
    fst_request *req;
    struct fst_request_view v;
    struct buf text; /* everything that was shown */
    bool show;
    uint64_t seed;
};

static enum fst_status read_prompt(struct job *j)
{
    const struct options *o = j->o;
    static const char *const names[] = {"prompt", "prompt-file", "ids", "messages"};
    int given = 0;
    for (size_t i = 0; i < FST_COUNT(names); i++)
        given += options_text(o, names[i]) != NULL;
    const char *const *args;
    size_t n_args = options_args(o, &args);
    if (given + (n_args > 0) != 1 || n_args > 1)
        return fst_error(FST_EINVAL,
                         "generate: give exactly one of --prompt TEXT, --prompt-file F, "
                         "--ids F and --messages F");
    if (options_text(o, "ids"))
        return tool_read_ids(&j->prompt, options_text(o, "ids"));
    if (!j->t)
        return fst_error(FST_ENOTFOUND, "%s has no tokenizer.json: only --ids works with it",
                         j->info.model_dir);
    if (options_text(o, "messages")) {
        static const char *const on_off[] = {"off", "on"};
        int th = options_word(o, "thinking");
        j->chat = true;
        FST_TRY(tool_render(&j->cr, &j->cp, options_text(o, "messages"), th < 0 ? NULL : on_off[th],
                            options_text(o, "reasoning-effort"), j->info.model_dir, false));
        return chat_encode(&j->cp, j->t, &j->prompt);
    }
    struct buf text = {0};
    enum fst_status rc = FST_OK;
    if (options_text(o, "prompt-file"))
        rc = file_read(&text, options_text(o, "prompt-file"), 0);
    else
        buf_puts(&text, n_args ? args[0] : options_text(o, "prompt"));
    if (rc == FST_OK)
        rc = tokenizer_encode_text(j->t, buf_str(&text), text.len, true, &j->prompt);
    buf_release(&text);
    return rc;
}

static void on_event(void *ud, const struct chat_event *e)
{
    struct job *j = ud;
    if (e->type != CHAT_EVENT_CONTENT)
        return;
    buf_append(&j->text, e->text, e->len);
    if (j->show) {
        fwrite(e->text, 1, e->len, stdout);
        fflush(stdout);
    }
}

/* All text of the reply, thoughts and tool markup included, as the model wrote it. */
static enum fst_status open_stream(struct job *j)
{
    const char *const *stops;
    size_t n = options_list(j->o, "stop", &stops);
    struct chat_str s[64];
    if (!j->t)
        return n ? fst_error(FST_EINVAL, "--stop needs a tokenizer") : FST_OK;
    if (n > FST_COUNT(s))
        return fst_error(FST_EINVAL, "--stop: at most %zu texts", FST_COUNT(s));
    for (size_t i = 0; i < n; i++)
        s[i] = (struct chat_str){stops[i], strlen(stops[i])};
    struct chat_stream_opts so = {.kind = CHAT_STREAM_TEXT,
                                  .tokenizer = j->t,
                                  .stops = s,
                                  .n_stops = n,
                                  .skip_special = true};
    so.parser.event = on_event;
    so.parser.ud = j;
    return chat_stream_new(&j->st, &so);
}

static enum fst_status submit(struct job *j)
{
    const struct options *o = j->o;
    struct fst_request_opts r;
    fst_request_opts_default(&r);
    r.ids = j->prompt.id;
    r.n_ids = j->prompt.n;
    r.max_new_tokens = options_int(o, "max-tokens", 256);
    r.sampling.temperature = (float)options_float(o, "temperature", 1);
    r.sampling.top_p = (float)options_float(o, "top-p", 1);
    r.sampling.min_p = (float)options_float(o, "min-p", 0);
    r.sampling.top_k = (int)options_int(o, "top-k", -1);
    r.ignore_eos = options_flag(o, "ignore-eos");
    r.logprobs = options_flag(o, "logprobs");
    r.sampling.has_seed = options_text(o, "seed") != NULL;
    r.sampling.seed = j->seed;
    return fst_request_submit(j->e, &r, &j->req);
}

static int print_result(const struct job *j)
{
    const struct fst_request_view *v = &j->v;
    const struct chat_stream_result *r = j->st ? chat_stream_result(j->st) : NULL;
    size_t n = r ? (size_t)r->n_tokens : v->n;
    struct buf b = {0};
    buf_puts(&b, "{\"text\":");
    json_put_string(&b, buf_str(&j->text), j->text.len);
    buf_puts(&b, ",\"ids\":[");
    for (size_t i = 0; i < n; i++)
        buf_printf(&b, "%s%d", i ? "," : "", v->ids[i]);
    const char *finish = r && r->stop_index >= 0 ? "stop" : tool_finish_name(v->finish);
    buf_printf(&b,
               "],\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%zu,"
               "\"cached_tokens\":%zu,\"completion_tokens\":%zu},\"seed\":%llu,",
               finish, v->n_prompt, v->n_cached, n, (unsigned long long)v->seed);
    if (v->logprobs) {
        buf_puts(&b, "\"logprobs\":[");
        for (size_t i = 0; i < n; i++) {
            if (i)
                buf_putc(&b, ',');
            json_put_double(&b, (double)v->logprobs[i]);
        }
        buf_puts(&b, "],");
    }
    if (j->info.debug_hooks) {
        buf_puts(&b, "\"debug_hooks\":");
        json_put_string(&b, j->info.debug_hooks, strlen(j->info.debug_hooks));
        buf_putc(&b, ',');
    }
    buf_puts(&b, "\"spec\":");
    tool_put_spec(&b, j->info.spec_algorithm, j->info.gamma, &v->spec);
    double computed = (double)(v->n_prompt - v->n_cached);
    buf_printf(&b,
               ",\"timing\":{\"load_s\":%.6f,\"prefill_s\":%.6f,\"decode_s\":%.6f,"
               "\"prefill_tok_s\":%.3f,\"decode_tok_s\":%.3f}}",
               j->info.load_s, v->prefill_s, v->decode_s,
               v->prefill_s > 0 ? computed / v->prefill_s : 0.0, tool_decode_rate(v, n));
    int status = tool_print_json(&b);
    buf_release(&b);
    return status;
}

static enum fst_status run(struct job *j)
{
    struct fst_engine_opts eo;
    FST_TRY(tool_engine_opts(j->o, &eo));
    FST_TRY(tool_audit_opts(j->o, &eo));
    enum fst_status rc = tool_tokenizer(&j->t, j->o);
    /* A folder without tokenizer serves ids. */
    if (rc < 0 && !(rc == FST_ENOTFOUND && options_text(j->o, "ids")))
        return rc;
    j->info.model_dir = eo.model_dir;
    FST_TRY(read_prompt(j)); /* wrong usage is told before the model is loaded */
    if (options_text(j->o, "seed"))
        FST_TRY(tool_seed(&j->seed, "--seed", options_text(j->o, "seed")));
    tool_engine_for_one(j->o, &eo, (int64_t)j->prompt.n + options_int(j->o, "max-tokens", 256));
    FST_TRY(tool_engine_open(&j->e, &eo, j->t));
    fst_engine_get_info(j->e, &j->info);
    FST_TRY(open_stream(j));
    FST_TRY(submit(j));
    return tool_follow(j->req, j->st, &j->v);
}

int cmd_generate(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Prompt and sampling", defs),
                                          tool_model_group, tool_engine_group, tool_audit_group};
    int status;
    struct options *o = tool_parse_words("firesteel generate", "[options] [PROMPT]", groups,
                                         FST_COUNT(groups), argc, argv, &status);
    if (!o)
        return status;
    bool json = options_flag(o, "json");
    struct job j = {.o = o, .show = !json};
    chat_request_init(&j.cr, NULL);
    tool_catch_interrupt();
    enum fst_status rc = run(&j);
    if (rc < 0) {
        status = tool_fail(rc);
    } else if (json) {
        status = print_result(&j);
    } else {
        status = j.v.finish == FST_FINISH_ABORT && tool_interrupted(false) ? 1 : 0;
        if (!j.t) /* no text without a tokenizer: the ids are the answer */
            for (size_t i = 0; i < j.v.n; i++)
                printf("%s%d%s", i ? ", " : "[", j.v.ids[i], i + 1 == j.v.n ? "]" : "");
        putc('\n', stdout);
        fprintf(stderr, "%zu prompt, %zu new tokens, prefill %.2f s, decode %.1f tok/s",
                j.v.n_prompt, j.v.n, j.v.prefill_s, tool_decode_rate(&j.v, j.v.n));
        if (j.v.spec.verify_steps)
            fprintf(stderr, ", accept length %.2f", j.v.spec.accept_length);
        fprintf(stderr, "\n");
        if (j.info.debug_hooks)
            fprintf(stderr, "not the model's result: %s\n", j.info.debug_hooks);
    }
    chat_stream_free(j.st);
    if (j.req)
        fst_request_free(j.req);
    fst_engine_close(j.e);
    tokenizer_ids_release(&j.prompt);
    tokenizer_free(j.t);
    chat_prompt_release(&j.cp);
    chat_request_release(&j.cr);
    buf_release(&j.text);
    options_free(o);
    return status;
}
