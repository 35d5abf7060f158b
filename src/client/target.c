#include "client/target.h"

#include <unistd.h>

#include "base/clock.h"

enum { FETCH_MS = 10000, READY_MS = 2000 };

void target_release(struct target *t)
{
    http_close(t->http);
    mem_free(t->key);
    mem_free(t->model);
    mem_free(t->model_dir);
    *t = (struct target){0};
}

struct json_doc *target_get(struct target *t, const char *path)
{
    struct buf b = {0};
    struct json_doc *doc = NULL;
    int status;
    enum fst_status rc = http_fetch(t->http, path, t->key, NULL, FETCH_MS, &status, &b);
    if (rc < 0 || status != 200 || json_parse(&doc, buf_str(&b), b.len) < 0)
        doc = NULL;
    buf_release(&b);
    return doc;
}

enum fst_status target_post(struct target *t, const char *path, const char *body)
{
    struct buf b = {0};
    int status;
    enum fst_status rc = http_fetch(t->http, path, t->key, body, FETCH_MS, &status, &b);
    if (rc == FST_OK && status != 200)
        rc = fst_error(FST_EIO, "%s%s: status %d: %.400s", http_url(t->http), path, status,
                       buf_str(&b));
    buf_release(&b);
    return rc;
}

json_val *target_root(const struct json_doc *doc)
{
    return doc ? json_root(doc) : NULL;
}

static char *copy(json_val *v)
{
    const char *s = json_string(v, NULL);
    return s ? mem_strdup(s) : NULL;
}

/* Some list their model while it is still being loaded, and say so at /health alone. */
static bool is_loading(struct target *t)
{
    struct buf b = {0};
    int status;
    bool yes = http_fetch(t->http, "/health", t->key, NULL, READY_MS, &status, &b) == FST_OK &&
               status == 503;
    buf_release(&b);
    return yes;
}

static enum fst_status wait_ready(struct target *t, double ready_s, bool (*interrupted)(void))
{
    int64_t end = clock_ns() + (int64_t)(ready_s * 1e9);
    struct buf b = {0};
    struct json_doc *doc = NULL;
    int status = 0;
    enum fst_status rc;
    for (;;) {
        buf_reset(&b);
        rc = http_fetch(t->http, "/v1/models", t->key, NULL, READY_MS, &status, &b);
        if (rc == FST_OK && status == 200 && !is_loading(t))
            break;
        if (rc == FST_OK && status == 401)
            rc = fst_error(FST_EINVAL, "%s: status 401: the server wants a key (OPENAI_API_KEY)",
                           http_url(t->http));
        else if (interrupted && interrupted())
            rc = fst_error(FST_ECANCELED, "interrupted");
        else if (clock_ns() < end) {
            usleep(100000);
            continue;
        } else if (rc == FST_OK)
            rc = fst_error(FST_ETIMEOUT,
                           "%s is not ready: /v1/models has status %d after %.0f s: %.300s",
                           http_url(t->http), status, ready_s, buf_str(&b));
        buf_release(&b);
        return rc;
    }
    if (json_parse(&doc, buf_str(&b), b.len) == FST_OK)
        t->model = copy(json_get(json_at(json_get(target_root(doc), "data"), 0), "id"));
    json_free(doc);
    buf_release(&b);
    return FST_OK;
}

enum fst_status target_open(struct target *t, const char *url, double ready_s,
                            bool (*interrupted)(void))
{
    const char *key = getenv("OPENAI_API_KEY");
    *t = (struct target){0};
    key = key && *key ? key : getenv("API_KEY");
    FST_TRY(http_open(&t->http, url));
    if (key && *key)
        t->key = mem_strdup(key);
    enum fst_status rc = wait_ready(t, ready_s, interrupted);
    if (rc < 0) {
        target_release(t);
        return rc;
    }
    struct json_doc *info = target_get(t, "/model_info");
    t->model_dir = copy(json_get(target_root(info), "tokenizer_path"));
    json_free(info);
    return FST_OK;
}

/* ------------------------------------------------------------------ counters */

/* Value of a sample line of this name (behind any prefix up to ':'), or false. */
static bool sample(const char *line, size_t len, const char *name, double *x)
{
    size_t n = strlen(name), colon = 0;
    while (colon < len && line[colon] != ':' && line[colon] != '{' && line[colon] != ' ')
        colon++;
    if (colon < len && line[colon] == ':') {
        line += colon + 1;
        len -= colon + 1;
    }
    if (len <= n || memcmp(line, name, n) != 0 || (line[n] != '{' && line[n] != ' '))
        return false;
    const char *p = line + n, *end = line + len;
    if (*p == '{') {
        bool quoted = false;
        for (; p < end && (quoted || *p != '}'); p++) {
            if (quoted && *p == '\\' && p + 1 < end)
                p++;
            else if (*p == '"')
                quoted = !quoted;
        }
        p += p < end;
    }
    char number[64];
    while (p < end && *p == ' ')
        p++;
    size_t k = FST_MIN((size_t)(end - p), sizeof number - 1);
    memcpy(number, p, k);
    number[k] = 0;
    char *stop;
    *x = strtod(number, &stop);
    return stop != number;
}

void target_parse_metrics(struct target_counts *c, const char *page, size_t len)
{
    static const char *const tokens = "generation_tokens_total";
    /* Ours and SGLang's; vLLM's counts finished ones by reason. */
    static const char *const requests[] = {"num_requests_total", "request_success_total"};
    double x;
    while (len) {
        const char *nl = memchr(page, '\n', len);
        size_t n = nl ? (size_t)(nl - page) : len;
        if (n && page[0] != '#') {
            if (sample(page, n, tokens, &x)) {
                c->generation_tokens += x;
                c->has_tokens = true;
            }
            for (size_t i = 0; i < FST_COUNT(requests); i++)
                if (sample(page, n, requests[i], &x)) {
                    c->requests += x;
                    c->has_requests = true;
                }
            if (sample(page, n, "time_to_first_token_seconds_sum", &x)) {
                c->ttft_sum_s += x;
                c->has_ttft = true;
            }
            if (sample(page, n, "time_to_first_token_seconds_count", &x))
                c->ttft_count += x;
        }
        page += n + (nl != NULL);
        len -= n + (nl != NULL);
    }
}

void target_parse_state(struct target_counts *c, json_val *state)
{
    json_val *by = json_get(state, "spec_accepted_by_position");
    c->has_spec = json_real(json_get(state, "spec_verify_steps"), &c->verify_steps) &&
                  json_real(json_get(state, "spec_accepted"), &c->accepted);
    c->n_positions = (int)FST_MIN(json_count(by), FST_COUNT(c->by_position));
    for (int i = 0; i < c->n_positions; i++)
        if (!json_real(json_at(by, (size_t)i), &c->by_position[i]))
            c->by_position[i] = 0;
}

void target_count(struct target *t, struct target_counts *out)
{
    struct buf b = {0};
    int status;
    *out = (struct target_counts){0};
    if (http_fetch(t->http, "/metrics", t->key, NULL, FETCH_MS, &status, &b) == FST_OK &&
        status == 200)
        target_parse_metrics(out, buf_str(&b), b.len);
    buf_release(&b);
    struct json_doc *info = target_get(t, "/server_info");
    target_parse_state(out, json_at(json_get(target_root(info), "internal_states"), 0));
    json_free(info);
}
