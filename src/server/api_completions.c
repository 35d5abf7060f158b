/* api_completions.c - POST /v1/completions: text goes on, no chat format. */
#include <math.h>

#include "base/utf8.h"
#include "server/fields.h"
#include "server/gen.h"

/* ------------------------------------------------------------------ request */

static bool one_prompt(struct gen *g, size_t i, json_val *v, const char *param)
{
    if (json_type_of(v) == JSON_STRING) {
        size_t len;
        const char *text = json_string(v, &len);
        if (tokenizer_encode_text(g->s->tok, text, len, true, &g->prompts[i]) < 0)
            return gen_oom(g);
        if (g->echo)
            buf_append(&g->echo_text[i], text, len);
    } else {
        if (!gen_read_ids(g, v, param, &g->prompts[i]))
            return false;
        if (g->echo && tokenizer_decode(g->s->tok, g->prompts[i].id, g->prompts[i].n, false,
                                        &g->echo_text[i]) < 0)
            return gen_oom(g);
    }
    if (g->echo && g->echo_text[i].failed)
        return gen_oom(g);
    return gen_check_prompt(g, i, param);
}

static bool read_prompts(struct gen *g, const struct field_reader *r)
{
    json_val *v = json_get(r->object, "prompt");
    enum json_type t = json_type_of(v), first = json_type_of(json_at(v, 0));
    bool many = t == JSON_ARRAY && (first == JSON_STRING || first == JSON_ARRAY);
    if (t != JSON_STRING && !(t == JSON_ARRAY && (many || first == JSON_NUMBER)))
        return api_fail(r->e, 400,
                        t == JSON_ARRAY || t == JSON_NULL ? "invalid_value" : "invalid_type",
                        "prompt",
                        "prompt: expected a text, a list of texts, a list of ids or a "
                        "list of lists of ids, none of them empty; got %s",
                        json_type_name(t));
    size_t n = many ? json_count(v) : 1;
    if (!gen_alloc_prompts(g, n))
        return false;
    if (g->echo && !(g->echo_text = mem_calloc(n, sizeof *g->echo_text)))
        return gen_oom(g);
    if (!many)
        return one_prompt(g, 0, v, "prompt");
    for (size_t i = 0; i < n; i++) {
        char param[32];
        snprintf(param, sizeof param, "prompt[%zu]", i);
        if (json_type_of(json_at(v, i)) != first)
            return api_fail(r->e, 400, "invalid_type", param,
                            "%s: expected %s like the others, got %s", param, json_type_name(first),
                            json_type_name(json_type_of(json_at(v, i))));
        if (!one_prompt(g, i, json_at(v, i), param))
            return false;
    }
    return true;
}

static bool prepare(struct gen *g)
{
    json_val *body = json_root(g->doc);
    struct field_reader r = {body, "", &g->err};
    g->kind = CHAT_STREAM_TEXT;
    g->params = mem_calloc(1, sizeof *g->params);
    if (!g->params)
        return gen_oom(g);
    g->n_params = 1;
    struct gen_params *p = g->params;
    gen_params_default(p);
    int64_t max = 16, top = -1, best_of;
    if (!gen_set_model(g, body) || !fields_check(body, ON_COMPLETIONS, "", &g->err) ||
        !gen_params_read(p, &r, g->s, true) || !field_bool(&r, "echo", &g->echo) ||
        !gen_read_stream(g, &r) || !gen_read_cache(g, &r) ||
        !field_bool(&r, "return_token_ids", &g->return_ids) ||
        !field_int(&r, "logprobs", 0, FST_TOP_LOGPROBS_MAX, &top) ||
        !field_int(&r, "max_tokens", INT64_MIN, INT64_MAX, &max))
        return false;
    if (max < 0 || (max == 0 && !g->echo))
        return api_fail(&g->err, 400, "invalid_value", "max_tokens",
                        "max_tokens must be positive (0 with echo), got %lld", (long long)max);
    best_of = p->n;
    if (!field_int(&r, "best_of", p->n, g->s->o.max_n, &best_of))
        return false;
    if (best_of > p->n) {
        if (g->stream)
            return api_fail(
                &g->err, 400, "invalid_value", "best_of",
                "best_of must be n, %d, in a stream, which cannot take back what it has "
                "sent, got %lld",
                p->n, (long long)best_of);
        g->n_best = p->n;
        p->n = (int)best_of;
        p->rank = true;
    }
    if (p->min_new > max)
        return api_fail(&g->err, 400, "invalid_value", "min_tokens",
                        "min_tokens must be at most max_tokens %lld, got %lld", (long long)max,
                        (long long)p->min_new);
    p->max_new = max;
    p->logprobs = top >= 0;
    p->top_logprobs = top > 0 ? (int)top : 0;
    if (g->echo && p->logprobs) {
        p->prompt_logprobs_from = 0;
        p->prompt_top_logprobs = p->top_logprobs;
    }
    return read_prompts(g, &r);
}

/* ------------------------------------------------------------------ legacy log-probabilities */

/* One token of the four parallel lists. */
struct token_row {
    int32_t id;
    float logprob;
    const struct fst_top_logprob *top;
    int n_top;
};

static void put_top(const struct gen *g, struct buf *b, const struct token_row *t)
{
    buf_putc(b, '{');
    for (int k = 0; k < t->n_top && t->top[k].id >= 0; k++) {
        if (k)
            buf_putc(b, ',');
        gen_put_token_text(g->s, b, t->top[k].id);
        buf_putc(b, ':');
        gen_put_logprob(b, t->top[k].logprob);
    }
    buf_putc(b, '}');
}

/* Output tokens from..to-1, before them all prompt tokens when asked.  offset: where in the text
 * (in code points) the first one begins. */
static void put_logprobs(const struct gen_choice *c, struct buf *b, bool prompt, size_t from,
                         size_t to, size_t *offset)
{
    const struct gen *g = c->g;
    const struct gen_params *p = gen_params_of(c);
    const struct fst_request_view *v = &c->view, *pv = gen_prompt_view(c);
    const struct tokenizer_ids *ids = &g->prompts[c->prompt];
    struct buf tokens = {0}, lp = {0}, top = {0}, at = {0}, text = {0};
    struct utf8_stream u = {0};
    size_t n_prompt = prompt ? ids->n : 0;
    for (size_t i = 0; i < n_prompt + to - from; i++) {
        struct token_row t = {0};
        bool has = true;
        if (i < n_prompt) {
            t.id = ids->id[i];
            has = i > 0 && pv->prompt_logprobs;
            t.logprob = has ? pv->prompt_logprobs[i] : 0;
            t.n_top = pv->prompt_top && has ? p->prompt_top_logprobs : 0;
            t.top = t.n_top ? &pv->prompt_top[i * (size_t)t.n_top] : NULL;
        } else {
            size_t k = from + i - n_prompt;
            t = (struct token_row){v->ids[k], v->logprobs[k],
                                   p->top_logprobs ? &v->top[k * (size_t)p->top_logprobs] : NULL,
                                   p->top_logprobs};
        }
        const char *sep = i ? "," : "";
        size_t len;
        const char *bytes = tokenizer_bytes(g->s->tok, t.id, &len);
        buf_puts(&tokens, sep);
        gen_put_token_text(g->s, &tokens, t.id);
        buf_puts(&lp, sep);
        if (has)
            gen_put_logprob(&lp, t.logprob);
        else
            buf_puts(&lp, "null");
        buf_puts(&top, sep);
        if (has)
            put_top(g, &top, &t);
        else
            buf_puts(&top, "null");
        buf_printf(&at, "%s%zu", sep, *offset + utf8_count(buf_str(&text), text.len));
        buf_reset(&text);
        utf8_stream_feed(&u, &text, bytes, len);
        *offset += utf8_count(buf_str(&text), text.len);
        buf_reset(&text);
    }
    buf_printf(b, "{\"tokens\":[%s],\"token_logprobs\":[%s],", buf_str(&tokens), buf_str(&lp));
    if (p->top_logprobs)
        buf_printf(b, "\"top_logprobs\":[%s],", buf_str(&top));
    else
        buf_puts(b, "\"top_logprobs\":null,");
    buf_printf(b, "\"text_offset\":[%s]}", buf_str(&at));
    b->failed |= tokens.failed | lp.failed | top.failed | at.failed | text.failed;
    buf_release(&tokens);
    buf_release(&lp);
    buf_release(&top);
    buf_release(&at);
    buf_release(&text);
}

static void put_ids(struct buf *b, const int32_t *id, size_t n)
{
    buf_putc(b, '[');
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%d", i ? "," : "", id[i]);
    buf_putc(b, ']');
}

/* ------------------------------------------------------------------ answers */

static const char object[] = "text_completion";

static void put_choice(struct gen_choice *c, struct buf *b, bool prompt, const char *text,
                       size_t len, size_t from, size_t to, const char *finish)
{
    const struct gen *g = c->g;
    buf_printf(b, "{\"index\":%d,\"text\":", c->index);
    json_put_string_safe(b, text, len);
    buf_puts(b, ",\"logprobs\":");
    if (gen_params_of(c)->logprobs && (to > from || prompt || finish))
        put_logprobs(c, b, prompt, from, to, &c->sent_text);
    else
        buf_puts(b, "null");
    if (finish)
        buf_printf(b, ",\"finish_reason\":\"%s\",\"matched_stop\":", finish);
    else
        buf_puts(b, ",\"finish_reason\":null,\"matched_stop\":");
    if (finish)
        gen_put_matched(c, b);
    else
        buf_puts(b, "null");
    if (g->return_ids) {
        if (prompt || !g->stream) {
            buf_puts(b, ",\"prompt_token_ids\":");
            put_ids(b, g->prompts[c->prompt].id, g->prompts[c->prompt].n);
        }
        buf_puts(b, ",\"token_ids\":");
        put_ids(b, c->view.ids + from, to - from);
    }
    buf_putc(b, '}');
}

static size_t certain(const struct gen_choice *c)
{
    size_t n = (size_t)chat_stream_result(c->st)->n_tokens;
    return c->done || !n ? n : n - 1;
}

static void send_chunk(struct gen_choice *c, const char *text, size_t len, bool prompt,
                       const char *finish)
{
    struct gen *g = c->g;
    struct buf b = {0};
    size_t to = prompt ? c->sent_logprobs : certain(c);
    gen_put_head(g, &b, object);
    put_choice(c, &b, prompt, text, len, c->sent_logprobs, to, finish);
    c->sent_logprobs = to;
    gen_put_chunk_tail(c, &b, finish != NULL);
    gen_send_event(g, &b);
    buf_release(&b);
}

static void begin(struct gen_choice *c)
{
    if (c->began)
        return;
    c->began = true;
    if (c->g->echo) {
        const struct buf *t = &c->g->echo_text[c->prompt];
        send_chunk(c, buf_str(t), t->len, true, NULL);
    }
}

static void on_event(struct gen_choice *c, const struct chat_event *e)
{
    buf_append(&c->pending, e->text, e->len);
    if (c->pending.failed)
        gen_oom(c->g);
}

static void on_batch(struct gen_choice *c)
{
    begin(c);
    if (!c->pending.len)
        return;
    send_chunk(c, c->pending.data, c->pending.len, false, NULL);
    buf_reset(&c->pending);
}

static void on_choice_end(struct gen_choice *c)
{
    begin(c);
    send_chunk(c, buf_str(&c->pending), c->pending.len, false, c->finish_reason);
    buf_reset(&c->pending);
}

static void on_progress(struct gen_choice *c)
{
    struct gen *g = c->g;
    struct buf b = {0};
    gen_put_head(g, &b, object);
    buf_printf(&b, "{\"index\":%d,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null}]",
               c->index);
    gen_put_progress(c, &b);
    gen_send_event(g, &b);
    buf_release(&b);
}

/* Log-probability per token: the measure that best_of ranks by. */
static double mean_logprob(const struct gen_choice *c)
{
    double sum = 0;
    for (uint64_t i = 0; i < c->n_tokens; i++)
        sum += (double)c->view.logprobs[i];
    return c->n_tokens ? sum / (double)c->n_tokens : (double)-INFINITY;
}

/* Of each prompt's choices the best ones are marked, by the index they have in the answer; others get -1. */
static void rank(struct gen *g)
{
    for (int i = 0; g->n_best && i < g->n_choices; i++) {
        struct gen_choice *c = &g->choices[i];
        int better = 0, n = gen_params_of(c)->n;
        for (int k = i - c->k; k < i - c->k + n; k++) {
            double x = mean_logprob(&g->choices[k]), mine = mean_logprob(c);
            better += x > mine || (k < i && x >= mine);
        }
        c->index = better < g->n_best ? c->prompt * g->n_best + better : -1;
    }
}

/* The choice with that place in the answer. */
static struct gen_choice *choice_at(struct gen *g, int index)
{
    for (int i = 0; i < g->n_choices; i++)
        if (g->choices[i].index == index)
            return &g->choices[i];
    return NULL;
}

static void finish(struct gen *g)
{
    struct buf b = {0};
    struct gen_choice *c;
    if (g->stream) {
        gen_end_stream(g, object);
        return;
    }
    gen_put_head(g, &b, object);
    rank(g);
    for (int i = 0; (c = choice_at(g, i)); i++) {
        struct buf text = {0};
        if (g->echo)
            buf_append(&text, buf_str(&g->echo_text[c->prompt]), g->echo_text[c->prompt].len);
        buf_append(&text, buf_str(&c->content), c->content.len);
        if (i)
            buf_putc(&b, ',');
        put_choice(c, &b, g->echo, buf_str(&text), text.len, 0, (size_t)c->n_tokens,
                   c->finish_reason);
        b.failed |= text.failed;
        buf_release(&text);
    }
    gen_answer(g, &b);
    buf_release(&b);
}

static const struct gen_dialect dialect = {
    .name = "completions",
    .shape = SHAPE_OPENAI,
    .comments = true,
    .id_prefix = "cmpl-",
    .prepare = prepare,
    .event = on_event,
    .batch = on_batch,
    .progress = on_progress,
    .choice_end = on_choice_end,
    .finish = finish,
};

void api_completions(struct server *s, struct exch *x)
{
    gen_run(s, x, &dialect);
}
