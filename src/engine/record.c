/* record.c - read a record file. */
#include "engine/record.h"

#include "base/file.h"
#include "engine/recorder.h"

/* A line on its way; the first fault stays. */
struct line {
    struct record *r;
    const char *path;
    size_t number;
    enum fst_status rc;
};

static void fault(struct line *l, const char *key, const char *want)
{
    if (l->rc == FST_OK)
        l->rc =
            fst_error(FST_EFORMAT, "%s: line %zu: %s: expected %s", l->path, l->number, key, want);
}

static void *take(struct line *l, size_t n, size_t size)
{
    void *p = arena_calloc(&l->r->arena, n ? n : 1, size);
    if (!p && l->rc == FST_OK)
        l->rc = fst_error(FST_ENOMEM, "%s: no memory for line %zu", l->path, l->number);
    return p;
}

static int64_t get_int(struct line *l, json_val *v, const char *key, int64_t low, int64_t high)
{
    int64_t x = low;
    if (!json_int(json_get(v, key), &x) || x < low || x > high) {
        fault(l, key, "an integer in range");
        return low;
    }
    return x;
}

static char *get_text(struct line *l, json_val *v, const char *key, bool may_be_null)
{
    size_t n = 0;
    json_val *t = json_get(v, key);
    const char *s = json_string(t, &n);
    if (!s && !(may_be_null && json_is_null(t)))
        fault(l, key, "a text");
    char *copy = arena_strndup(&l->r->arena, s ? s : "", s ? n : 0);
    if (!copy && l->rc == FST_OK)
        l->rc = fst_error(FST_ENOMEM, "%s: no memory for line %zu", l->path, l->number);
    return copy;
}

/* A number as text: 64 bits do not pass through every reader of JSON. */
static uint64_t get_word(struct line *l, json_val *t, const char *key, int base)
{
    size_t n = 0;
    const char *s = json_string(t, &n);
    char *end = NULL;
    uint64_t x = s ? strtoull(s, &end, base) : 0;
    if (!s || n == 0 || *end)
        fault(l, key, "digits in a text");
    return x;
}

static float get_bits(struct line *l, json_val *v, const char *key)
{
    int64_t x = 0;
    uint32_t u;
    float f;
    if (!json_int(v, &x) || x < 0 || x > UINT32_MAX)
        fault(l, key, "the bits of a float as an integer");
    u = (uint32_t)x;
    memcpy(&f, &u, sizeof f);
    return f;
}

static int32_t *get_ids(struct line *l, json_val *v, const char *key, int64_t *n)
{
    json_val *list = json_get(v, key);
    size_t count = json_count(list);
    int32_t *ids = take(l, count, sizeof *ids);
    int64_t x;

    *n = 0;
    if (json_type_of(list) != JSON_ARRAY)
        fault(l, key, "an array of ids");
    for (size_t i = 0; i < count && l->rc == FST_OK; i++) {
        if (!json_int(json_at(list, i), &x) || x < 0 || x > INT32_MAX)
            fault(l, key, "an array of ids");
        else
            ids[i] = (int32_t)x;
    }
    *n = l->rc == FST_OK ? (int64_t)count : 0;
    return ids;
}

static struct fst_logit_bias *get_bias(struct line *l, json_val *v, int64_t *n)
{
    json_val *list = json_get(v, "logit_bias");
    size_t count = json_count(list);
    struct fst_logit_bias *bias = take(l, count, sizeof *bias);
    int64_t id = 0;

    *n = 0;
    if (json_type_of(list) != JSON_ARRAY)
        fault(l, "logit_bias", "an array");
    for (size_t i = 0; i < count && l->rc == FST_OK; i++) {
        json_val *pair = json_at(list, i);
        if (!json_int(json_at(pair, 0), &id) || id < 0 || id > INT32_MAX)
            fault(l, "logit_bias", "an id and the bits of a bias for each");
        bias[i] = (struct fst_logit_bias){(int32_t)id, get_bits(l, json_at(pair, 1), "logit_bias")};
    }
    *n = l->rc == FST_OK ? (int64_t)count : 0;
    return bias;
}

/* [[id,] bits, hash, forced] for each row. */
static struct record_drawn *get_drawn(struct line *l, json_val *v, const char *key, bool ids,
                                      int64_t *n)
{
    json_val *list = json_get(v, key);
    size_t count = json_count(list);
    struct record_drawn *d = take(l, count, sizeof *d);

    *n = 0;
    if (json_type_of(list) != JSON_ARRAY)
        fault(l, key, "an array");
    for (size_t i = 0; i < count && l->rc == FST_OK; i++) {
        json_val *row = json_at(list, i);
        int64_t id = 0, was_forced = 0;
        if (json_count(row) != (ids ? 4u : 3u) || (ids && !json_int(json_at(row, 0), &id)) ||
            !json_int(json_at(row, ids + 2u), &was_forced))
            fault(l, key, "an id, the bits of a log-probability, a hash and 0 or 1 for each row");
        d[i].forced = was_forced != 0;
        d[i].id = (int32_t)id;
        d[i].logprob = get_bits(l, json_at(row, ids), key);
        d[i].hash = get_word(l, json_at(row, ids + 1u), key, 16);
    }
    *n = l->rc == FST_OK ? (int64_t)count : 0;
    return d;
}

static void read_head(struct line *l, json_val *v)
{
    struct record *r = l->r;
    int64_t version = get_int(l, v, "record", 0, INT32_MAX);

    if (l->rc == FST_OK && version != RECORDER_VERSION) {
        l->rc = fst_error(FST_EUNSUPPORTED, "%s: a record of version %lld, this build reads %d",
                          l->path, (long long)version, RECORDER_VERSION);
        return;
    }
    if (l->rc == FST_OK && json_bool(json_get(v, "redacted"), false)) {
        l->rc =
            fst_error(FST_EUNSUPPORTED,
                      "%s: a redacted record: it holds no ids, so it cannot be run again", l->path);
        return;
    }
    r->time = get_text(l, v, "time", false);
    r->reason = get_text(l, v, "reason", false);
    r->detail = get_text(l, v, "detail", false);
    r->debug_hooks = get_text(l, v, "debug_hooks", true);
    r->model = get_text(l, v, "model", false);
    r->device = get_text(l, v, "device", false);
    r->kernels = get_text(l, v, "kernels", false);
    r->precision = get_text(l, v, "precision", false);
    r->kv_layout = get_text(l, v, "kv_layout", false);
    r->index_keys = get_text(l, v, "index_keys", false);
    r->algorithm = get_text(l, v, "speculative_algorithm", false);
    r->accept = get_text(l, v, "speculative_accept", false);
    r->weights = get_word(l, json_get(v, "weights"), "weights", 16);
    r->gamma = get_int(l, v, "gamma", 0, KERN_GAMMA_MAX);
    r->chunk = get_int(l, v, "chunked_prefill_size", 1, 65536);
    r->max_running = get_int(l, v, "max_running_requests", 1, 1 << 20);
    r->context_length = get_int(l, v, "context_length", 1, INT32_MAX);
    r->max_total_tokens = get_int(l, v, "max_total_tokens", 1, INT64_MAX);
    r->masked_ids = get_ids(l, v, "masked_ids", &r->n_masked_ids);
}

static void read_request(struct line *l, json_val *v)
{
    struct record_request *q = &l->r->request[l->r->n_requests++];

    q->number = (uint64_t)get_int(l, v, "request", 1, INT64_MAX);
    q->n_prompt = get_int(l, v, "n_prompt", 1, INT32_MAX);
    q->min_new = get_int(l, v, "min_new_tokens", 0, INT64_MAX);
    q->sampling = (struct sample_params){
        .temperature = get_bits(l, json_get(v, "temperature"), "temperature"),
        .top_p = get_bits(l, json_get(v, "top_p"), "top_p"),
        .min_p = get_bits(l, json_get(v, "min_p"), "min_p"),
        .top_k = (int)get_int(l, v, "top_k", -1, INT32_MAX),
        .seed = get_word(l, json_get(v, "seed"), "seed", 10),
        .choice = (uint32_t)get_int(l, v, "choice", 0, UINT32_MAX)};
    q->presence = get_bits(l, json_get(v, "presence_penalty"), "presence_penalty");
    q->frequency = get_bits(l, json_get(v, "frequency_penalty"), "frequency_penalty");
    q->repetition = get_bits(l, json_get(v, "repetition_penalty"), "repetition_penalty");
    q->bias = get_bias(l, v, &q->n_bias);
    q->end_ids = get_ids(l, v, "end_ids", &q->n_end_ids);
    q->ids = get_ids(l, v, "ids", &q->n_ids);
    if (l->rc == FST_OK && q->n_ids < q->n_prompt)
        fault(l, "ids", "at least n_prompt ids");
    if (json_get(v, "audited"))
        q->audited = get_drawn(l, v, "audited", false, &q->n_audited);
    if (l->rc == FST_OK && q->n_audited > q->n_ids - q->n_prompt)
        fault(l, "audited", "no more rows than tokens");
}

static int32_t request_index(const struct record *r, uint64_t number)
{
    for (size_t i = 0; i < r->n_requests; i++)
        if (r->request[i].number == number)
            return (int32_t)i;
    return -1;
}

static void read_span(struct line *l, json_val *v, struct record_span *s)
{
    struct record *r = l->r;
    int64_t n_ids;
    size_t n;
    const char *kind = json_string(json_get(v, "kind"), &n);

    if (!kind)
        fault(l, "kind", "prefill, decode or verify");
    s->verify = kind && !strcmp(kind, "verify");
    s->request = request_index(r, (uint64_t)get_int(l, v, "request", 1, INT64_MAX));
    s->pos = get_int(l, v, "pos", 0, INT32_MAX);
    s->n_rows = get_int(l, v, "rows", 1, 1 << 24);
    s->n_commit = get_int(l, v, "commit", 0, s->n_rows);
    s->drawn = get_drawn(l, v, "drawn", true, &s->n_drawn);
    s->ids = get_ids(l, v, "ids", &n_ids);
    if (n_ids == 0)
        s->ids = NULL;
    else if (n_ids != s->n_rows)
        fault(l, "ids", "an id for each row");
    if (s->n_drawn > s->n_rows)
        fault(l, "drawn", "no more than rows");
    if (l->rc == FST_OK && s->request >= 0) {
        struct record_request *q = &r->request[s->request];
        q->last_step = r->n_steps;
        if (s->pos > q->n_ids)
            fault(l, "pos", "a position whose ids are there");
    }
}

static void read_step(struct line *l, json_val *v)
{
    struct record_step *s = &l->r->step[l->r->n_steps];
    json_val *spans = json_get(v, "spans");

    s->number = get_int(l, v, "step", 0, INT64_MAX);
    s->block = get_int(l, v, "block", 0, l->r->gamma);
    if (json_type_of(spans) != JSON_ARRAY)
        fault(l, "spans", "an array");
    s->n_spans = json_count(spans);
    s->span = take(l, s->n_spans, sizeof *s->span);
    for (size_t i = 0; i < s->n_spans && l->rc == FST_OK; i++)
        read_span(l, json_at(spans, i), &s->span[i]);
    l->r->n_steps++;
}

/* The line's object decides what it is; false: it was the last one. */
static bool read_line(struct line *l, const char *text, size_t n)
{
    struct json_doc *doc = NULL;
    char why[512];
    bool more = true;

    if (json_parse(&doc, text, n) < 0) {
        snprintf(why, sizeof why, "%s", fst_error_text());
        l->rc = fst_error(FST_EFORMAT, "%s: line %zu: %s", l->path, l->number, why);
        return false;
    }
    json_val *v = json_root(doc);
    if (l->number == 1)
        read_head(l, v);
    else if (json_get(v, "request"))
        read_request(l, v);
    else if (json_get(v, "step"))
        read_step(l, v);
    else if (json_get(v, "end")) {
        more = false;
        if (get_int(l, v, "end", 0, INT64_MAX) != (int64_t)l->r->n_steps)
            fault(l, "end", "the number of steps before it");
    } else
        fault(l, "line", "a request, a step or the end");
    json_free(doc);
    return more && l->rc == FST_OK;
}

static enum fst_status read_lines(struct record *r, const char *path, const struct buf *b)
{
    struct line l = {.r = r, .path = path};
    const char *at = buf_str(b), *end = at + b->len;
    size_t n_lines = 1;
    bool more = true;

    for (const char *c = at; c < end; c++)
        n_lines += *c == '\n';
    r->request = take(&l, n_lines, sizeof *r->request);
    r->step = take(&l, n_lines, sizeof *r->step);
    while (more && l.rc == FST_OK && at < end) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        size_t n = eol ? (size_t)(eol - at) : (size_t)(end - at);
        l.number++;
        more = read_line(&l, at, n);
        at += n + 1;
    }
    if (more && l.rc == FST_OK)
        l.rc = fst_error(FST_EFORMAT, "%s: ends after line %zu, before its end", path, l.number);
    return l.rc;
}

enum fst_status record_read(struct record *r, const char *path)
{
    struct buf b = {0};

    *r = (struct record){0};
    arena_init(&r->arena, 1 << 20, 0);
    enum fst_status rc = file_read(&b, path, 0);
    if (rc == FST_OK)
        rc = read_lines(r, path, &b);
    buf_release(&b);
    if (rc < 0)
        record_release(r);
    return rc;
}

void record_release(struct record *r)
{
    arena_release(&r->arena);
    *r = (struct record){0};
}
