/* api_text.c - /tokenize, /detokenize, /apply-template, /v1/messages/count_tokens, /parse_function_call,
 * /separate_reasoning: text work without
 * the engine.
 * Large bodies go to a helper thread like those of generating requests. */
#include <strings.h>

#include "chat/parse.h"
#include "server/fields.h"

enum { INLINE_BODY_MAX = 64 << 10 };

struct task {
    struct server *s;
    struct exch *x; /* NULL: the client left */
    void (*run)(struct task *t, json_val *body);
    struct buf body, out;
    char *key; /* owned: of the sender (auth_key) */
    enum api_shape shape;
    struct api_error err;
};

static void oom(struct task *t)
{
    api_fail(&t->err, 503, "out_of_memory", NULL, "out of memory for this request");
}

static void on_gone(struct exch *x, void *ud)
{
    (void)x;
    ((struct task *)ud)->x = NULL;
}

static void work(void *ud)
{
    struct task *t = ud;
    struct json_doc *doc = NULL;
    enum fst_status rc = json_parse(&doc, buf_str(&t->body), t->body.len);
    if (rc == FST_ENOMEM)
        oom(t);
    else if (rc < 0)
        api_fail(&t->err, 400, "invalid_json", NULL, "%s", fst_error_text());
    else if (json_type_of(json_root(doc)) != JSON_OBJECT)
        api_fail(&t->err, 400, "invalid_type", NULL, "body: expected an object, got %s",
                 json_type_name(json_type_of(json_root(doc))));
    else
        t->run(t, json_root(doc));
    json_free(doc);
    if (t->out.failed)
        oom(t);
}

static void done(void *ud)
{
    struct task *t = ud;
    if (t->x) {
        t->x->on_gone = NULL;
        if (t->err.status)
            api_send_error(t->x, &t->err, t->shape);
        else
            api_send(t->x, 200, &t->out);
    }
    buf_release(&t->body);
    buf_release(&t->out);
    mem_free(t->key);
    mem_free(t);
}

static void start(struct server *s, struct exch *x, void (*run)(struct task *, json_val *),
                  enum api_shape shape)
{
    struct task *t = mem_calloc(1, sizeof *t);
    char *key = mem_strdup(auth_key(s, x));
    if (!t || !key) {
        mem_free(t);
        mem_free(key);
        struct api_error e = {0};
        api_fail(&e, 503, "out_of_memory", NULL, "out of memory for this request");
        api_send_error(x, &e, shape);
        return;
    }
    t->s = s;
    t->shape = shape;
    t->x = x;
    t->run = run;
    t->key = key;
    t->body = x->body;
    x->body = (struct buf){0};
    x->ud = t;
    x->on_gone = on_gone;
    if (t->body.len > INLINE_BODY_MAX && loop_work(s->loop, work, done, t) == FST_OK)
        return;
    work(t);
    done(t);
}

/* ------------------------------------------------------------------ tokenize */

static bool encode(struct task *t, json_val *v, const char *param, bool specials,
                   struct tokenizer_ids *ids)
{
    size_t len;
    const char *text = json_string(v, &len);
    if (!text)
        return api_fail(&t->err, 400, "invalid_type", param, "%s: expected a string, got %s", param,
                        json_type_name(json_type_of(v)));
    if (tokenizer_encode_text(t->s->tok, text, len, specials, ids) < 0) {
        oom(t);
        return false;
    }
    return true;
}

typedef enum fst_status read_fn(struct chat_request *r, json_val *body,
                                const struct chat_defaults *d);

static bool render(struct task *t, json_val *body, read_fn *read, struct chat_request *r,
                   struct chat_prompt *p)
{
    enum fst_status rc = read(r, body, &t->s->chat);
    r->memory = t->s->memory;
    if (rc == FST_OK && !remember_tenant(t->s, t->key, body, &r->tenant, &t->err))
        return false;
    if (rc == FST_OK)
        rc = chat_render(p, r);
    if (rc == FST_ENOMEM)
        oom(t);
    else if (rc < 0)
        api_fail(&t->err, 400, r->error_code ? r->error_code : "invalid_value", r->error_param,
                 "%s", fst_error_text());
    return rc == FST_OK;
}

static void put_ids(struct task *t, const struct tokenizer_ids *ids, bool pieces)
{
    buf_putc(&t->out, '[');
    for (size_t i = 0; i < ids->n; i++) {
        if (i)
            buf_putc(&t->out, ',');
        if (pieces) {
            size_t len;
            const char *bytes = tokenizer_bytes(t->s->tok, ids->id[i], &len);
            buf_printf(&t->out, "{\"id\":%d,\"piece\":", ids->id[i]);
            json_put_string_safe(&t->out, bytes, len);
            buf_putc(&t->out, '}');
        } else {
            buf_printf(&t->out, "%d", ids->id[i]);
        }
    }
    buf_putc(&t->out, ']');
}

static void run_tokenize(struct task *t, json_val *body)
{
    struct field_reader r = {body, "", &t->err};
    json_val *prompt = json_get(body, "prompt"), *content = json_get(body, "content");
    json_val *messages = json_get(body, "messages");
    bool pieces = false, specials = true, bos = false;
    if (!field_bool(&r, "with_pieces", &pieces) || !field_bool(&r, "parse_special", &specials) ||
        !field_bool(&r, "add_special", &bos) || !field_bool(&r, "add_special_tokens", &specials))
        return;
    specials |=
        json_is_null(json_get(body, "parse_special")); /* add_special_tokens adds none here */
    size_t given = !json_is_null(prompt) + !json_is_null(content) + !json_is_null(messages);
    if (given != 1) {
        api_fail(&t->err, 400, "invalid_value", "prompt",
                 "exactly one of prompt, content and messages must be given, got %zu", given);
        return;
    }
    struct tokenizer_ids ids = {0};
    size_t count = 0;
    buf_puts(&t->out, "{\"tokens\":");
    if (!json_is_null(messages)) {
        struct chat_request cr;
        struct chat_prompt cp = {0};
        if (render(t, body, chat_request_from_json, &cr, &cp) &&
            chat_encode(&cp, t->s->tok, &ids) < 0)
            oom(t);
        chat_prompt_release(&cp);
        chat_request_release(&cr);
        count = ids.n;
        put_ids(t, &ids, pieces);
        buf_printf(&t->out, ",\"count\":%zu", count);
    } else if (json_type_of(prompt) == JSON_ARRAY) {
        struct buf counts = {0};
        buf_putc(&t->out, '[');
        for (size_t i = 0; i < json_count(prompt) && !t->err.status; i++) {
            char param[40];
            snprintf(param, sizeof param, "prompt[%zu]", i);
            ids.n = 0;
            if (i)
                buf_putc(&t->out, ',');
            encode(t, json_at(prompt, i), param, specials, &ids);
            put_ids(t, &ids, pieces);
            buf_printf(&counts, "%s%zu", i ? "," : "", ids.n);
        }
        buf_printf(&t->out, "],\"count\":[%s]", buf_str(&counts));
        buf_release(&counts);
    } else {
        bool is_prompt = !json_is_null(prompt);
        if (bos && tokenizer_ids_push(&ids, tokenizer_specials(t->s->tok)->bos) < 0)
            oom(t);
        encode(t, is_prompt ? prompt : content, is_prompt ? "prompt" : "content", specials, &ids);
        put_ids(t, &ids, pieces);
        buf_printf(&t->out, ",\"count\":%zu", ids.n);
    }
    buf_printf(&t->out, ",\"max_model_len\":%lld}", (long long)t->s->info.context_length);
    tokenizer_ids_release(&ids);
}

void api_tokenize(struct server *s, struct exch *x)
{
    start(s, x, run_tokenize, SHAPE_OPENAI);
}

/* ------------------------------------------------------------------ detokenize */

static bool read_ids(struct task *t, json_val *v, const char *param, struct tokenizer_ids *ids)
{
    for (size_t i = 0; i < json_count(v); i++) {
        int64_t id;
        char q[96];
        if (!json_int(json_at(v, i), &id) || id < 0 || id >= t->s->info.vocab_size)
            return api_fail(&t->err, 400, "invalid_value", param,
                            "%s[%zu]: expected an id in [0, %d], got %s", param, i,
                            t->s->info.vocab_size - 1, api_quote_value(q, json_at(v, i)));
        if (tokenizer_ids_push(ids, (int32_t)id) < 0) {
            oom(t);
            return false;
        }
    }
    return true;
}

static void run_detokenize(struct task *t, json_val *body)
{
    struct field_reader r = {body, "", &t->err};
    bool skip = false;
    json_val *tokens = json_get(body, "tokens");
    if (!field_bool(&r, "skip_special_tokens", &skip))
        return;
    if (json_type_of(tokens) != JSON_ARRAY) {
        field_type_error(&r, "tokens", "an array of integers");
        return;
    }
    bool many = json_type_of(json_at(tokens, 0)) == JSON_ARRAY;
    size_t n = many ? json_count(tokens) : 1;
    struct buf list = {0};
    for (size_t i = 0; i < n && !t->err.status; i++) {
        struct tokenizer_ids ids = {0};
        struct buf text = {0};
        if (read_ids(t, many ? json_at(tokens, i) : tokens, "tokens", &ids) &&
            tokenizer_decode(t->s->tok, ids.id, ids.n, skip, &text) < 0)
            oom(t);
        if (i)
            buf_putc(&list, ',');
        json_put_string_safe(&list, buf_str(&text), text.len);
        buf_release(&text);
        tokenizer_ids_release(&ids);
    }
    if (many)
        buf_printf(&t->out, "{\"text\":[%s],\"content\":[%s]}", buf_str(&list), buf_str(&list));
    else
        buf_printf(&t->out, "{\"text\":%s,\"content\":%s}", buf_str(&list), buf_str(&list));
    t->out.failed |= list.failed;
    buf_release(&list);
}

void api_detokenize(struct server *s, struct exch *x)
{
    start(s, x, run_detokenize, SHAPE_OPENAI);
}

/* ------------------------------------------------------------------ apply-template */

static void run_template(struct task *t, json_val *body)
{
    struct chat_request cr;
    struct chat_prompt cp = {0};
    if (render(t, body, chat_request_from_json, &cr, &cp)) {
        buf_puts(&t->out, "{\"prompt\":");
        json_put_string_safe(&t->out, buf_str(&cp.text), cp.text.len);
        buf_putc(&t->out, '}');
    }
    chat_prompt_release(&cp);
    chat_request_release(&cr);
}

void api_apply_template(struct server *s, struct exch *x)
{
    start(s, x, run_template, SHAPE_OPENAI);
}

/* ------------------------------------------------------------------ count_tokens */

static void run_count(struct task *t, json_val *body)
{
    struct chat_request cr;
    struct chat_prompt cp = {0};
    struct tokenizer_ids ids = {0};
    if (!fields_check(body, ON_MESSAGES, "", &t->err))
        return;
    if (render(t, body, chat_request_from_messages, &cr, &cp)) {
        if (chat_encode(&cp, t->s->tok, &ids) < 0)
            oom(t);
        buf_printf(&t->out, "{\"input_tokens\":%zu}", ids.n);
    }
    tokenizer_ids_release(&ids);
    chat_prompt_release(&cp);
    chat_request_release(&cr);
}

void api_count_tokens(struct server *s, struct exch *x)
{
    start(s, x, run_count, SHAPE_ANTHROPIC);
}

/* ------------------------------------------------------------------ the parsers on given text */

/* A parser by the name that its flag would have; absent: the model's. */
static bool check_parser(struct task *t, json_val *body, const char *name)
{
    static const char *const known[] = {"auto", "deepseekv4", "deepseek-v4", "deepseekv41"};
    struct field_reader r = {body, "", &t->err};
    const char *s = NULL;
    size_t len = 0;
    char q[96];
    if (!field_str(&r, name, &s, &len))
        return false;
    for (size_t i = 0; s && i < FST_COUNT(known); i++)
        if (strcasecmp(s, known[i]) == 0)
            return true;
    return !s || api_fail(&t->err, 400, "invalid_value", name,
                          "%s: known are auto, deepseekv4 and deepseekv41, got %s", name,
                          api_quote(q, s, len));
}

/* What the parser gives of a text. */
struct parsed {
    struct buf reasoning, content, calls; /* calls: JSON objects, commas between */
    struct buf name, args;                /* of the call that is open */
    int n_calls;
};

static void on_parsed(void *ud, const struct chat_event *e)
{
    struct parsed *p = ud;
    switch (e->type) {
    case CHAT_EVENT_REASONING:
        buf_append(&p->reasoning, e->text, e->len);
        break;
    case CHAT_EVENT_CONTENT:
        buf_append(&p->content, e->text, e->len);
        break;
    case CHAT_EVENT_CALL_BEGIN:
        buf_reset(&p->name);
        buf_reset(&p->args);
        buf_puts(&p->name, e->name);
        break;
    case CHAT_EVENT_CALL_ARGS:
        buf_append(&p->args, e->text, e->len);
        break;
    case CHAT_EVENT_CALL_END:
        buf_printf(&p->calls, "%s{\"tool_index\":%d,\"name\":", p->n_calls ? "," : "", p->n_calls);
        json_put_string_safe(&p->calls, buf_str(&p->name), p->name.len);
        buf_puts(&p->calls, ",\"parameters\":");
        json_put_string_safe(&p->calls, buf_str(&p->args), p->args.len);
        buf_putc(&p->calls, '}');
        p->n_calls++;
        break;
    case CHAT_EVENT_CALL_CANCEL:
        break;
    }
}

static bool parse_text(struct task *t, json_val *body, struct chat_parser_opts *o, struct parsed *p)
{
    size_t len;
    const char *text = json_string(json_get(body, "text"), &len);
    struct chat_parser *parser;
    if (!text)
        return field_type_error(&(struct field_reader){body, "", &t->err}, "text", "a string");
    o->event = on_parsed;
    o->ud = p;
    if (o->start == CHAT_START_REASONING && len >= 7 && memcmp(text, "<think>", 7) == 0) {
        text += 7; /* as a prompt would have it */
        len -= 7;
    }
    bool ok = chat_parser_new(&parser, o) == FST_OK &&
              chat_parse_feed(parser, text, len) == FST_OK &&
              chat_parse_end(parser, CHAT_END_STOP, NULL) == FST_OK;
    chat_parser_free(parser);
    ok &= !p->reasoning.failed && !p->content.failed && !p->calls.failed && !p->name.failed &&
          !p->args.failed;
    if (!ok)
        oom(t);
    return ok;
}

static void release_parsed(struct parsed *p)
{
    buf_release(&p->reasoning);
    buf_release(&p->content);
    buf_release(&p->calls);
    buf_release(&p->name);
    buf_release(&p->args);
}

static void run_parse_calls(struct task *t, json_val *body)
{
    struct chat_request r;
    struct parsed p = {0};
    chat_request_init(&r, &t->s->chat);
    if (check_parser(t, body, "tool_call_parser")) {
        enum fst_status rc = chat_tools_from_json(&r, json_get(body, "tools"));
        struct chat_parser_opts o = {.start = CHAT_START_CONTENT,
                                     .tools_on = true,
                                     .tools = r.tools,
                                     .n_tools = r.n_tools,
                                     .coerce_args = t->s->chat.coerce_args};
        if (rc < 0 && rc != FST_ENOMEM)
            api_fail(&t->err, 400, r.error_code, r.error_param, "%s", fst_error_text());
        else if (rc < 0)
            oom(t);
        else if (parse_text(t, body, &o, &p)) {
            buf_puts(&t->out, "{\"normal_text\":");
            json_put_string_safe(&t->out, buf_str(&p.content), p.content.len);
            buf_printf(&t->out, ",\"calls\":[%s]}", buf_str(&p.calls));
        }
    }
    release_parsed(&p);
    chat_request_release(&r);
}

void api_parse_calls(struct server *s, struct exch *x)
{
    start(s, x, run_parse_calls, SHAPE_OPENAI);
}

/* Text without either tag was not thought. */
static bool has_thoughts(const char *text)
{
    return text && (strncmp(text, "<think>", 7) == 0 || strstr(text, "</think>"));
}

static void run_separate(struct task *t, json_val *body)
{
    struct parsed p = {0};
    size_t len;
    const char *text = json_string(json_get(body, "text"), &len);
    struct chat_parser_opts o = {.start = has_thoughts(text) ? CHAT_START_REASONING
                                                             : CHAT_START_CONTENT};
    if (check_parser(t, body, "reasoning_parser") && parse_text(t, body, &o, &p)) {
        buf_puts(&t->out, "{\"reasoning_text\":");
        json_put_string_safe(&t->out, buf_str(&p.reasoning), p.reasoning.len);
        buf_puts(&t->out, ",\"text\":");
        json_put_string_safe(&t->out, buf_str(&p.content), p.content.len);
        buf_putc(&t->out, '}');
    }
    release_parsed(&p);
}

void api_separate_reasoning(struct server *s, struct exch *x)
{
    start(s, x, run_separate, SHAPE_OPENAI);
}
