/* cmd_score.c - log-probabilities of a given sequence. */
#include <math.h>
#include <stdatomic.h>

#include "base/file.h"
#include "tools/tool.h"

static const struct option_def defs[] = {
    {.name = "ids", .type = OPTION_TEXT, .arg = "FILE", .help = "JSON array of ids"},
    {.name = "text-file", .type = OPTION_TEXT, .arg = "FILE", .help = "text to be tokenised"},
    {.name = "top-k",
     .type = OPTION_INT,
     .initial = "0",
     .min = 0,
     .max = FST_TOP_LOGPROBS_MAX,
     .help = "likeliest ids at each place"},
    {.name = "raw-logits",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "write float32 logits, row-major [n, vocab]; row i is what follows id i"},
};

struct raw {
    FILE *f;
    int64_t next; /* row */
    bool bad;
};

/* From the engine's thread; rows come in order. */
static bool on_logits(void *ud, int64_t pos, const float *logits, int vocab)
{
    struct raw *r = ud;
    if (r->bad || pos != r->next ||
        fwrite(logits, sizeof *logits, (size_t)vocab, r->f) != (size_t)vocab) {
        r->bad = true;
        return false;
    }
    r->next++;
    return true;
}

static enum fst_status read_ids(const struct options *o, struct tokenizer_ids *ids)
{
    const char *ids_path = options_text(o, "ids"), *text_path = options_text(o, "text-file");
    if ((ids_path != NULL) + (text_path != NULL) != 1)
        return fst_error(FST_EINVAL, "score: give exactly one of --ids F and --text-file F");
    if (ids_path)
        return tool_read_ids(ids, ids_path);
    struct tokenizer *t = NULL;
    struct buf text = {0};
    enum fst_status rc = tool_tokenizer(&t, o);
    if (rc == FST_OK)
        rc = file_read(&text, text_path, 0);
    if (rc == FST_OK)
        rc = tokenizer_encode_text(t, buf_str(&text), text.len, true, ids);
    buf_release(&text);
    tokenizer_free(t);
    return rc;
}

static void put_top(struct buf *b, const struct fst_top_logprob *t, int k)
{
    buf_putc(b, '[');
    for (int i = 0; i < k && t[i].id >= 0; i++) {
        buf_printf(b, "%s[%d,", i ? "," : "", t[i].id);
        json_put_double(b, (double)t[i].logprob);
        buf_putc(b, ']');
    }
    buf_putc(b, ']');
}

static int print_result(const struct fst_request_view *v, int top_k, bool json)
{
    struct buf b = {0};
    double sum = 0;
    buf_printf(&b, "{\"n\":%zu,\"logprobs\":[null", v->n_prompt);
    for (size_t i = 1; i < v->n_prompt; i++) {
        buf_putc(&b, ',');
        json_put_double(&b, (double)v->prompt_logprobs[i]);
        sum += (double)v->prompt_logprobs[i];
    }
    double perplexity = v->n_prompt > 1 ? exp(-sum / (double)(v->n_prompt - 1)) : (double)NAN;
    buf_puts(&b, "],\"perplexity\":");
    json_put_double(&b, perplexity);
    if (top_k > 0) {
        buf_puts(&b, ",\"top\":[null");
        for (size_t i = 1; i < v->n_prompt; i++) {
            buf_putc(&b, ',');
            put_top(&b, v->prompt_top + i * (size_t)top_k, top_k);
        }
        buf_putc(&b, ']');
    }
    buf_printf(&b, ",\"timing\":{\"prefill_s\":%.6f}}", v->prefill_s);
    int status = 0;
    if (json)
        status = tool_print_json(&b);
    else
        printf("%zu tokens, mean log-probability %.6f, perplexity %.6f\n", v->n_prompt,
               v->n_prompt > 1 ? sum / (double)(v->n_prompt - 1) : 0.0, perplexity);
    buf_release(&b);
    return status;
}

struct job {
    struct tokenizer_ids ids;
    fst_engine *e;
    fst_request *req;
    struct raw raw;
};

static enum fst_status run(const struct options *o, struct job *j, struct fst_request_view *v)
{
    struct fst_engine_opts eo;
    FST_TRY(read_ids(o, &j->ids));
    if (!j->ids.n)
        return fst_error(FST_EFORMAT, "score: the sequence is empty");
    FST_TRY(tool_engine_opts(o, &eo));
    const char *path = options_text(o, "raw-logits");
    if (path && !(j->raw.f = fopen(path, "wbe")))
        return fst_error(FST_EIO, "%s: cannot be written", path);
    tool_engine_for_one(o, &eo, (int64_t)j->ids.n);
    FST_TRY(tool_engine_open(&j->e, &eo, NULL));
    struct fst_request_opts r;
    fst_request_opts_default(&r);
    r.ids = j->ids.id;
    r.n_ids = j->ids.n;
    r.max_new_tokens = 0;
    r.prompt_logprobs_from = 0;
    r.prompt_top_logprobs = (int)options_int(o, "top-k", 0);
    if (path) {
        r.on_prompt_logits = on_logits;
        r.on_prompt_logits_ud = &j->raw;
    }
    FST_TRY(fst_request_submit(j->e, &r, &j->req));
    enum fst_status rc = tool_follow(j->req, NULL, v);
    if (path && (fclose(j->raw.f) != 0 || j->raw.bad)) {
        j->raw.f = NULL;
        return fst_error(FST_EIO, "%s: write failed", path);
    }
    j->raw.f = NULL;
    if (rc == FST_OK && v->finish == FST_FINISH_ABORT)
        return fst_error(FST_ECANCELED, "score: interrupted");
    return rc;
}

int cmd_score(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Sequence", defs), tool_model_group,
                                          tool_engine_group};
    int status;
    struct options *o = tool_parse("firesteel score", "--ids FILE | --text-file FILE [options]",
                                   groups, 3, argc, argv, &status);
    if (!o)
        return status;
    struct job j = {0};
    struct fst_request_view v = {0};
    tool_catch_interrupt();
    enum fst_status rc = run(o, &j, &v);
    status = rc < 0 ? tool_fail(rc)
                    : print_result(&v, (int)options_int(o, "top-k", 0), options_flag(o, "json"));
    if (j.raw.f)
        fclose(j.raw.f);
    if (j.req)
        fst_request_free(j.req);
    fst_engine_close(j.e);
    tokenizer_ids_release(&j.ids);
    options_free(o);
    return status;
}
