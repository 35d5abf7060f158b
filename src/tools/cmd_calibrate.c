/* cmd_calibrate.c - fit temperatures to a checkpoint's confidence head.
 * Runs prompts with whole blocks verified, keeps what the head said and how much was right, and writes the file
 * that serve reads beside the model.  Looks into spec (the fit) by exception. */
#include <math.h>

#include "base/file.h"
#include "spec/sts.h"
#include "tools/tool.h"

enum { ROUNDS_MAX = 1 << 20, TOGETHER = 8 };

static const struct option_def defs[] = {
    {.name = "prompts",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "JSON array; an element is an array of ids, or messages as of a chat request's body"},
    {.name = "temperatures",
     .type = OPTION_LIST,
     .arg = "T",
     .help = "every prompt is answered once at each (0 0.6 1)"},
    {.name = "max-tokens",
     .alias = "n",
     .type = OPTION_INT,
     .initial = "160",
     .min = 2,
     .max = 100000,
     .help = "of an answer"},
    {.name = "dataset",
     .type = OPTION_TEXT,
     .arg = "TEXT",
     .help = "what the prompts are, for the file; its name when not given"},
    {.name = "out",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "where it goes (dspark-sts.json of the model's folder)"},
};

struct job {
    const struct options *o;
    struct tokenizer *t;
    fst_engine *e;
    struct tokenizer_ids *prompt; /* (n_prompts), owned */
    size_t n_prompts;
    struct spec_round *round; /* (ROUNDS_MAX), owned; the engine's thread fills it */
    size_t n_rounds;
    int gamma;
    double temperature[16];
    int n_temperatures;
    struct spec_sts sts;
    struct spec_sts_report report;
};

static void on_round(void *ud, const struct fst_spec_round *r)
{
    struct job *j = ud;
    if (j->n_rounds == ROUNDS_MAX)
        return;
    struct spec_round *to = &j->round[j->n_rounds++];
    memcpy(to->logit, r->confidence, (size_t)r->n_drafts * sizeof *to->logit);
    to->accepted = (int8_t)r->accepted;
}

/* ------------------------------------------------------------------ prompts */

static enum fst_status read_ids(struct tokenizer_ids *out, json_val *v)
{
    for (size_t i = 0; i < json_count(v); i++) {
        int64_t id;
        if (!json_int(json_at(v, i), &id) || id < 0 || id > INT32_MAX)
            return fst_error(FST_EFORMAT, "element %zu is no token id", i);
        FST_TRY(tokenizer_ids_push(out, (int32_t)id));
    }
    return FST_OK;
}

static enum fst_status read_messages(const struct job *j, struct tokenizer_ids *out, json_val *v)
{
    struct chat_request r;
    struct chat_prompt p = {0};
    struct chat_defaults d;
    chat_defaults_init(&d);
    d.profile = chat_profile_detect(tool_model_dir(j->o));
    chat_request_init(&r, &d);
    enum fst_status rc = chat_request_from_json(&r, v, &d);
    if (rc == FST_OK)
        rc = chat_render(&p, &r);
    if (rc == FST_OK)
        rc = chat_encode(&p, j->t, out);
    chat_prompt_release(&p);
    chat_request_release(&r);
    return rc;
}

static enum fst_status read_prompts(struct job *j)
{
    const char *path = options_text(j->o, "prompts");
    struct json_doc *doc = NULL;
    struct buf text = {0};
    if (!path)
        return fst_error(FST_EINVAL, "calibrate: --prompts FILE is required");
    enum fst_status rc = file_read(&text, path, 0);
    if (rc == FST_OK)
        rc = json_parse(&doc, buf_str(&text), text.len);
    json_val *list = doc ? json_root(doc) : NULL;
    if (rc == FST_OK && (json_type_of(list) != JSON_ARRAY || json_count(list) == 0))
        rc = fst_error(FST_EFORMAT, "expected an array of prompts");
    if (rc == FST_OK) {
        j->n_prompts = json_count(list);
        j->prompt = mem_calloc(j->n_prompts, sizeof *j->prompt);
        rc = j->prompt ? FST_OK : fst_error(FST_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < j->n_prompts && rc == FST_OK; i++) {
        json_val *v = json_at(list, i);
        rc = json_type_of(v) == JSON_ARRAY ? read_ids(&j->prompt[i], v)
                                           : read_messages(j, &j->prompt[i], v);
        if (rc < 0) {
            char why[600];
            snprintf(why, sizeof why, "%s", fst_error_text());
            rc = fst_error(rc == FST_EINVAL ? FST_EFORMAT : rc, "prompt %zu: %s", i, why);
        }
    }
    if (rc < 0 && rc != FST_ENOTFOUND) {
        char why[800];
        snprintf(why, sizeof why, "%s", fst_error_text());
        rc = fst_error(rc, "--prompts %s: %s", path, why);
    }
    json_free(doc);
    buf_release(&text);
    return rc;
}

static enum fst_status read_temperatures(struct job *j)
{
    const char *const *word;
    size_t n = options_list(j->o, "temperatures", &word);
    static const char *const usual[] = {"0", "0.6", "1"};
    if (n == 0) {
        word = usual;
        n = FST_COUNT(usual);
    }
    if (n > FST_COUNT(j->temperature))
        return fst_error(FST_EINVAL, "--temperatures: at most %zu", FST_COUNT(j->temperature));
    for (size_t i = 0; i < n; i++) {
        char *end;
        double t = strtod(word[i], &end);
        if (end == word[i] || *end || !(t >= 0) || !(t <= 100))
            return fst_error(FST_EINVAL, "--temperatures: expected numbers in [0, 100], got '%s'",
                             word[i]);
        j->temperature[j->n_temperatures++] = t;
    }
    return FST_OK;
}

/* ------------------------------------------------------------------ rounds */

static enum fst_status answer(struct job *j, size_t first, size_t n, double temperature)
{
    fst_request *req[TOGETHER] = {0};
    enum fst_status rc = FST_OK;
    for (size_t i = 0; i < n && rc == FST_OK; i++) {
        struct fst_request_opts o;
        fst_request_opts_default(&o);
        o.ids = j->prompt[first + i].id;
        o.n_ids = j->prompt[first + i].n;
        o.max_new_tokens = options_int(j->o, "max-tokens", 160);
        o.sampling.temperature = (float)temperature;
        o.sampling.has_seed = true;
        o.sampling.seed = first + i;
        rc = fst_request_submit(j->e, &o, &req[i]);
    }
    for (size_t i = 0; i < n; i++) {
        struct fst_request_view v;
        if (!req[i])
            continue;
        while (fst_request_wait(req[i], 0.2) == FST_ETIMEOUT)
            if (tool_interrupted(false))
                fst_request_cancel(req[i]);
        fst_request_get_view(req[i], &v);
        if (rc == FST_OK && v.finish == FST_FINISH_ERROR)
            rc = fst_error(v.status, "prompt %zu: %s", first + i, v.error);
        if (rc == FST_OK && v.finish == FST_FINISH_ABORT)
            rc = fst_error(FST_ECANCELED, "calibrate: interrupted");
        fst_request_free(req[i]);
    }
    return rc;
}

static enum fst_status run(struct job *j)
{
    struct fst_engine_opts eo;
    struct fst_engine_info info;
    FST_TRY(tool_engine_opts(j->o, &eo));
    FST_TRY(read_temperatures(j));
    FST_TRY(tool_tokenizer(&j->t, j->o));
    FST_TRY(read_prompts(j));
    j->round = mem_calloc(ROUNDS_MAX, sizeof *j->round);
    if (!j->round)
        return fst_error(FST_ENOMEM, "calibrate: out of memory");
    eo.verify_mode = "static"; /* every label needs its whole block */
    eo.sts_path = NULL;
    eo.on_spec_round = on_round;
    eo.on_spec_round_ud = j;
    FST_TRY(tool_engine_open(&j->e, &eo, j->t));
    fst_engine_get_info(j->e, &info);
    if (info.gamma == 0)
        return fst_error(FST_EUNSUPPORTED, "%s does not draft: there is nothing to calibrate",
                         info.model_dir);
    j->gamma = info.gamma;
    size_t together = FST_MIN((size_t)TOGETHER, (size_t)info.max_running_requests);
    for (int k = 0; k < j->n_temperatures; k++)
        for (size_t i = 0; i < j->n_prompts; i += together)
            FST_TRY(answer(j, i, FST_MIN(together, j->n_prompts - i), j->temperature[k]));
    fst_engine_close(j->e); /* its thread is done with the rounds */
    j->e = NULL;
    FST_TRY(spec_sts_fit(j->round, j->n_rounds, j->gamma, &j->sts, &j->report));
    char path[4096];
    const char *out = options_text(j->o, "out"), *name = options_text(j->o, "dataset");
    if (!out) {
        FST_TRY(file_join(path, sizeof path, eo.model_dir, "dspark-sts.json"));
        out = path;
    }
    if (!name) {
        const char *p = options_text(j->o, "prompts"), *slash = strrchr(p, '/');
        name = slash ? slash + 1 : p;
    }
    return spec_sts_save(&j->sts, &j->report, name, out);
}

static void put_line(struct buf *b, const char *name, const double *x, int n)
{
    buf_printf(b, ",\"%s\":[", name);
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s%.6g", i ? "," : "", x[i]);
    buf_putc(b, ']');
}

static int print_result(const struct job *j, bool json, bool helps)
{
    struct buf b = {0};
    double t[FST_SPEC_MAX];
    for (int i = 0; i < j->gamma; i++)
        t[i] = (double)j->sts.temperature[i];
    if (json) {
        buf_printf(&b, "{\"rounds\":%zu,\"written\":%s", j->n_rounds, helps ? "true" : "false");
        put_line(&b, "temperatures", t, j->gamma);
        put_line(&b, "ece_before", j->report.ece_before, j->gamma);
        put_line(&b, "ece_after", j->report.ece_after, j->gamma);
        buf_putc(&b, '}');
        int status = tool_print_json(&b);
        buf_release(&b);
        return helps ? status : 1;
    }
    printf("%zu rounds; calibration error of the first k drafts, held out\n", j->n_rounds);
    for (int i = 0; i < j->gamma; i++)
        printf("  %d  temperature %.3f  %.4f -> %.4f\n", i + 1, t[i], j->report.ece_before[i],
               j->report.ece_after[i]);
    return helps ? 0 : 1;
}

int cmd_calibrate(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Calibration", defs), tool_model_group,
                                          tool_engine_group};
    int status;
    struct options *o = tool_parse("firesteel calibrate", "--prompts FILE [options]", groups,
                                   FST_COUNT(groups), argc, argv, &status);
    if (!o)
        return status;
    struct job j = {.o = o};
    tool_catch_interrupt();
    enum fst_status rc = run(&j);
    status = rc < 0 ? tool_fail(rc) : 0;
    if (rc == FST_OK || (rc == FST_EUNSUPPORTED && j.report.n_held_out)) /* the figures say why */
        status = print_result(&j, options_flag(o, "json"), rc == FST_OK);
    fst_engine_close(j.e);
    for (size_t i = 0; i < j.n_prompts; i++)
        tokenizer_ids_release(&j.prompt[i]);
    mem_free(j.prompt);
    mem_free(j.round);
    tokenizer_free(j.t);
    options_free(o);
    return status;
}
