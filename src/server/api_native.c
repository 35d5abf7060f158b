/* api_native.c - POST /generate: ids or text in, text, ids and meta_info out.  Stream events hold
 * everything so far (or, with incremental streaming, what is new) and are never mixed with
 * comments: benchmark clients parse every line. */
#include <math.h>

#include "base/clock.h"
#include "server/fields.h"
#include "server/gen.h"

/* ------------------------------------------------------------------ request */

static bool read_sampling(struct gen *g, struct gen_params *p, json_val *o, const char *prefix,
                          const struct gen_params *base)
{
    *p = *base;
    struct field_reader r = {o, prefix, &g->err};
    if (json_is_null(o))
        return true;
    int64_t max = p->max_new;
    if (!fields_check(o, ON_SAMPLING, prefix, &g->err) || !gen_params_read(p, &r, g->s, false) ||
        !field_int(&r, "max_new_tokens", 0, INT64_MAX, &max))
        return false;
    p->max_new = max;
    int64_t limit = FST_MIN(max, g->s->info.context_length);
    if (p->min_new > limit) {
        char param[96];
        snprintf(param, sizeof param, "%smin_new_tokens", prefix);
        return api_fail(&g->err, 400, "invalid_value", param,
                        "%s must be at most max_new_tokens %lld, got %lld", param, (long long)limit,
                        (long long)p->min_new);
    }
    return true;
}

static bool read_prompts(struct gen *g, json_val *body)
{
    json_val *text = json_get(body, "text"), *ids = json_get(body, "input_ids");
    if (json_is_null(text) == json_is_null(ids))
        return api_fail(&g->err, 400, "invalid_value", json_is_null(text) ? "text" : "input_ids",
                        "exactly one of text and input_ids must be given");
    bool is_text = !json_is_null(text);
    const char *name = is_text ? "text" : "input_ids";
    json_val *v = is_text ? text : ids;
    enum json_type t = json_type_of(v);
    enum json_type element = json_type_of(json_at(v, 0));
    g->list = t == JSON_ARRAY && (is_text || element == JSON_ARRAY);
    if ((is_text && t != JSON_STRING && t != JSON_ARRAY) || (!is_text && t != JSON_ARRAY))
        return field_type_error(&(struct field_reader){body, "", &g->err}, name,
                                is_text ? "a string or an array of strings"
                                        : "an array of integers or of such arrays");
    size_t n = g->list ? json_count(v) : 1;
    if (!n)
        return api_fail(&g->err, 400, "invalid_value", name, "%s must not be empty", name);
    if (!gen_alloc_prompts(g, n))
        return false;
    for (size_t i = 0; i < n; i++) {
        json_val *one = g->list ? json_at(v, i) : v;
        char param[40];
        snprintf(param, sizeof param, g->list ? "%s[%zu]" : "%s", name, i);
        if (json_type_of(one) != (is_text ? JSON_STRING : JSON_ARRAY))
            return api_fail(&g->err, 400, "invalid_type", param, "%s: expected %s, got %s", param,
                            is_text ? "a string" : "an array of integers",
                            json_type_name(json_type_of(one)));
        if (is_text) {
            size_t len;
            const char *s = json_string(one, &len);
            if (tokenizer_encode_text(g->s->tok, s, len, true, &g->prompts[i]) < 0)
                return gen_oom(g);
        } else if (!gen_read_ids(g, one, param, &g->prompts[i])) {
            return false;
        }
        if (!gen_check_prompt(g, i, param))
            return false;
    }
    return true;
}

/* A request-level value that may be one for all or a list with one per prompt: of lists the first
 * is taken when all are equal in meaning to it (clients send them so). */
static json_val *first_of(json_val *v)
{
    return json_type_of(v) == JSON_ARRAY ? json_at(v, 0) : v;
}

static bool read_logprobs(struct gen *g, json_val *body, struct gen_params *base)
{
    struct field_reader r = {body, "", &g->err};
    json_val *want = first_of(json_get(body, "return_logprob"));
    if (!json_is_null(want) && json_type_of(want) != JSON_TRUE && json_type_of(want) != JSON_FALSE)
        return field_type_error(&r, "return_logprob", "a boolean");
    base->logprobs = json_bool(want, false);
    int64_t start = -1, top = 0;
    if (json_type_of(json_get(body, "logprob_start_len")) == JSON_ARRAY) {
        if (!json_int(first_of(json_get(body, "logprob_start_len")), &start))
            return field_type_error(&r, "logprob_start_len", "integers");
    } else if (!field_int(&r, "logprob_start_len", -1, INT32_MAX, &start)) {
        return false;
    }
    if (json_type_of(json_get(body, "top_logprobs_num")) == JSON_ARRAY) {
        if (!json_int(first_of(json_get(body, "top_logprobs_num")), &top) || top < 0 ||
            top > FST_TOP_LOGPROBS_MAX)
            return field_type_error(&r, "top_logprobs_num", "integers of 0 to 20");
    } else if (!field_int(&r, "top_logprobs_num", 0, FST_TOP_LOGPROBS_MAX, &top)) {
        return false;
    }
    if (!base->logprobs)
        return true;
    base->top_logprobs = (int)top;
    for (size_t i = 0; i < g->n_prompts && start >= 0; i++)
        if (start >= (int64_t)g->prompts[i].n)
            return api_fail(&g->err, 400, "invalid_value", "logprob_start_len",
                            "logprob_start_len must be below the prompt's %zu tokens, got %lld",
                            g->prompts[i].n, (long long)start);
    base->prompt_logprobs_from = start;
    base->prompt_top_logprobs = start >= 0 ? (int)top : 0;
    return true;
}

static bool read_rid(struct gen *g, json_val *body)
{
    json_val *v = json_get(body, "rid");
    if (json_type_of(v) == JSON_ARRAY)
        v = json_at(v, 0);
    if (json_is_null(v))
        return true;
    const char *s = json_string(v, NULL);
    if (!s)
        return field_type_error(&(struct field_reader){body, "", &g->err}, "rid", "a string");
    g->rid = mem_strdup(s);
    return g->rid || gen_oom(g);
}

static bool prepare(struct gen *g)
{
    json_val *body = json_root(g->doc);
    struct field_reader r = {body, "", &g->err};
    g->kind = CHAT_STREAM_TEXT;
    struct gen_params base;
    gen_params_default(&base);
    base.max_new = 128;
    if (!fields_check(body, ON_GENERATE, "", &g->err) || !read_rid(g, body) ||
        !field_bool(&r, "stream", &g->stream) || !gen_read_cache(g, &r) ||
        !field_bool(&r, "return_text_in_logprobs", &g->text_in_logprobs) ||
        !read_prompts(g, body) || !read_logprobs(g, body, &base))
        return false;
    json_val *sp = json_get(body, "sampling_params");
    bool many = json_type_of(sp) == JSON_ARRAY;
    if (!many && !json_is_null(sp) && json_type_of(sp) != JSON_OBJECT)
        return field_type_error(&r, "sampling_params", "an object or an array of objects");
    if (many && json_count(sp) != g->n_prompts)
        return api_fail(&g->err, 400, "invalid_value", "sampling_params",
                        "sampling_params: expected one for each of the %zu prompts, got %zu",
                        g->n_prompts, json_count(sp));
    size_t n = many ? g->n_prompts : 1;
    g->params = mem_calloc(n, sizeof *g->params);
    if (!g->params)
        return gen_oom(g);
    g->n_params = n;
    for (size_t i = 0; i < n; i++) {
        char prefix[48] = "sampling_params.";
        if (many)
            snprintf(prefix, sizeof prefix, "sampling_params[%zu].", i);
        if (!read_sampling(g, &g->params[i], many ? json_at(sp, i) : sp, prefix, &base))
            return false;
    }
    for (size_t i = 0; i < n; i++)
        g->list |= g->params[i].n > 1;
    return true;
}

/* ------------------------------------------------------------------ answer */

static void put_entry(const struct gen *g, struct buf *b, bool has, float logprob, int32_t id)
{
    buf_putc(b, '[');
    if (has)
        gen_put_logprob(b, logprob);
    else
        buf_puts(b, "null");
    buf_printf(b, ",%d,", id);
    if (g->text_in_logprobs)
        gen_put_token_text(g->s, b, id);
    else
        buf_puts(b, "null");
    buf_putc(b, ']');
}

static void put_top(const struct gen *g, struct buf *b, const struct fst_top_logprob *t, int n)
{
    if (!t) {
        buf_puts(b, "null");
        return;
    }
    buf_putc(b, '[');
    for (int k = 0; k < n && t[k].id >= 0; k++) {
        if (k)
            buf_putc(b, ',');
        put_entry(g, b, true, t[k].logprob, t[k].id);
    }
    buf_putc(b, ']');
}

static void put_logprobs(const struct gen_choice *c, struct buf *b, size_t from, size_t to)
{
    const struct gen *g = c->g;
    const struct gen_params *p = gen_params_of(c);
    const struct fst_request_view *v = &c->view, *pv = gen_prompt_view(c);
    const struct tokenizer_ids *ids = &g->prompts[c->prompt];
    /* -1: the last prompt token alone, whose entry has no value like every first one. */
    size_t first = p->prompt_logprobs_from >= 0 ? (size_t)p->prompt_logprobs_from : ids->n - 1;
    buf_puts(b, ",\"input_token_logprobs\":[");
    for (size_t i = first; i < ids->n; i++) {
        if (i > first)
            buf_putc(b, ',');
        bool has = i > first && pv->prompt_logprobs && isfinite(pv->prompt_logprobs[i]);
        put_entry(g, b, has, has ? pv->prompt_logprobs[i] : 0, ids->id[i]);
    }
    buf_puts(b, "],\"output_token_logprobs\":[");
    for (size_t i = from; i < to; i++) {
        if (i > from)
            buf_putc(b, ',');
        put_entry(g, b, true, v->logprobs[i], v->ids[i]);
    }
    buf_putc(b, ']');
    if (!p->top_logprobs)
        return;
    size_t n = (size_t)p->top_logprobs;
    buf_puts(b, ",\"input_top_logprobs\":[");
    for (size_t i = first; i < ids->n; i++) {
        if (i > first)
            buf_putc(b, ',');
        put_top(g, b, i > first && pv->prompt_top ? &pv->prompt_top[i * n] : NULL, (int)n);
    }
    buf_puts(b, "],\"output_top_logprobs\":[");
    for (size_t i = from; i < to; i++) {
        if (i > from)
            buf_putc(b, ',');
        put_top(g, b, &v->top[i * n], (int)n);
    }
    buf_putc(b, ']');
}

static void put_finish(const struct gen_choice *c, struct buf *b)
{
    if (!c->done) {
        buf_puts(b, "null");
    } else if (!strcmp(c->finish_reason, "length")) {
        buf_printf(b, "{\"type\":\"length\",\"length\":%llu}", (unsigned long long)c->n_tokens);
    } else if (!strcmp(c->finish_reason, "abort")) {
        buf_puts(b, "{\"type\":\"abort\",\"message\":\"Aborted\",\"status_code\":499}");
    } else {
        buf_puts(b, "{\"type\":\"stop\",\"matched\":");
        gen_put_matched(c, b);
        buf_putc(b, '}');
    }
}

/* One result; text and ids from the given offsets on. */
static void put_result(const struct gen_choice *c, struct buf *b, size_t from_text, size_t from_id)
{
    const struct gen *g = c->g;
    size_t n = (size_t)chat_stream_result(c->st)->n_tokens;
    from_id = FST_MIN(from_id, n);
    buf_puts(b, "{\"text\":");
    json_put_string_safe(b, buf_str(&c->content) + from_text, c->content.len - from_text);
    buf_puts(b, ",\"output_ids\":[");
    for (size_t i = from_id; i < n; i++)
        buf_printf(b, "%s%d", i > from_id ? "," : "", c->view.ids[i]);
    buf_puts(b, "],\"meta_info\":{\"id\":");
    const char *id = g->rid ? g->rid : g->id;
    if (g->list) {
        struct buf name = {0};
        buf_puts(&name, id);
        if (!g->rid || g->n_choices > 1)
            buf_printf(&name, "_%d", c->index);
        json_put_string_safe(b, buf_str(&name), name.len);
        b->failed |= name.failed;
        buf_release(&name);
    } else {
        json_put_string_safe(b, id, strlen(id));
    }
    buf_puts(b, ",\"finish_reason\":");
    put_finish(c, b);
    buf_printf(b,
               ",\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"cached_tokens\":%zu,"
               "\"weight_version\":\"default\"",
               c->view.n_prompt, n, c->view.n_cached);
    if (c->done)
        buf_printf(b, ",\"e2e_latency\":%.6f,\"seed\":%llu",
                   clock_seconds(clock_ns() - g->start_ns), (unsigned long long)c->view.seed);
    if (c->view.spec.verify_steps)
        buf_printf(b, ",\"spec_accept_length\":%.6f,\"spec_verify_ct\":%llu",
                   c->view.spec.accept_length, (unsigned long long)c->view.spec.verify_steps);
    if (gen_params_of(c)->logprobs)
        put_logprobs(c, b, from_id, n);
    if (c->done)
        gen_put_firesteel(c, b);
    buf_puts(b, "}");
    if (g->stream && g->list)
        buf_printf(b, ",\"index\":%d", c->index);
    buf_putc(b, '}');
}

static void send_result(struct gen_choice *c)
{
    struct buf b = {0};
    bool deltas = c->g->s->o.incremental_streaming;
    put_result(c, &b, deltas ? c->sent_text : 0, deltas ? c->sent_ids : 0);
    c->sent_text = c->content.len;
    c->sent_ids = (size_t)chat_stream_result(c->st)->n_tokens;
    gen_send_event(c->g, &b);
    buf_release(&b);
}

static void finish(struct gen *g)
{
    if (g->stream) {
        gen_send_done(g);
        return;
    }
    struct buf b = {0};
    if (g->list)
        buf_putc(&b, '[');
    for (int i = 0; i < g->n_choices; i++) {
        if (i)
            buf_putc(&b, ',');
        put_result(&g->choices[i], &b, 0, 0);
    }
    if (g->list)
        buf_putc(&b, ']');
    gen_reply(g, &b);
    buf_release(&b);
}

static const struct gen_dialect dialect = {
    .name = "generate",
    .shape = SHAPE_NATIVE,
    .comments = false,
    .id_prefix = "gen-",
    .prepare = prepare,
    .batch = send_result,
    .choice_end = send_result,
    .finish = finish,
};

void api_generate(struct server *s, struct exch *x)
{
    gen_run(s, x, &dialect);
}
