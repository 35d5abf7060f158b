/* ask.c - what a request asks its reply to be, and how the engine is told. */
#include "chat/gate.h"
#include "server/fields.h"
#include "server/gen.h"

/* ------------------------------------------------------------------ fields */

static const struct {
    const char *name;
    enum grammar_kind kind;
} spellings[] = {
    {"json_schema", ASK_SCHEMA}, {"guided_json", ASK_SCHEMA}, {"regex", ASK_REGEX},
    {"guided_regex", ASK_REGEX}, {"ebnf", ASK_EBNF},          {"guided_grammar", ASK_EBNF},
    {"guided_choice", ASK_NONE}, /* a list: becomes ASK_EBNF */
};

/* A text in quotes, for a grammar whose rule is a list of them. */
static void put_quoted(struct buf *b, const char *s, size_t len)
{
    buf_putc(b, '"');
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == '"' || s[i] == '\\')
            buf_printf(b, "\\x%02X", (unsigned)(unsigned char)s[i]);
        else
            buf_putc(b, s[i]);
    buf_putc(b, '"');
}

static bool read_choice(struct grammar_ask *a, const struct field_reader *r, const char *name,
                        json_val *v)
{
    if (json_type_of(v) != JSON_ARRAY)
        return field_type_error(r, name, "an array of strings");
    if (!json_count(v))
        return api_fail(r->e, 400, "invalid_value", a->param, "%s: at least one text is needed",
                        a->param);
    a->kind = ASK_EBNF;
    buf_puts(&a->text, "root ::= ");
    for (size_t i = 0; i < json_count(v); i++) {
        size_t len;
        const char *s = json_string(json_at(v, i), &len);
        if (!s)
            return field_type_error(r, name, "an array of strings");
        buf_puts(&a->text, i ? " | " : "");
        put_quoted(&a->text, s, len);
    }
    return true;
}

/* A schema as text.  It is written anew: one that goes together with tools is put into a greater text,
 * which it must not end, and both spellings have one grammar. */
static bool read_schema_text(struct grammar_ask *a, const struct field_reader *r, const char *s,
                             size_t len)
{
    struct json_doc *d;
    enum fst_status rc = json_parse(&d, s, len);

    if (rc == FST_ENOMEM)
        return api_fail(r->e, 503, "out_of_memory", NULL, "out of memory for this request");
    if (rc < 0)
        return api_fail(r->e, 400, "invalid_grammar", a->param, "%s: %s", a->param,
                        fst_error_text());
    json_put(&a->text, json_root(d), JSON_COMPACT);
    json_free(d);
    return true;
}

static bool read_one(struct grammar_ask *a, const struct field_reader *r, const char *name,
                     enum grammar_kind kind, json_val *v)
{
    size_t len;
    const char *s = json_string(v, &len);
    enum json_type type = json_type_of(v);
    bool whole = kind == ASK_SCHEMA && (type == JSON_OBJECT || type == JSON_TRUE);

    if (kind == ASK_NONE)
        return read_choice(a, r, name, v);
    if (!s && !whole)
        return field_type_error(r, name, kind == ASK_SCHEMA ? "a schema or its text" : "a string");
    a->kind = kind;
    if (s && kind == ASK_SCHEMA)
        return read_schema_text(a, r, s, len);
    if (whole)
        json_put(&a->text, v, JSON_COMPACT);
    else
        buf_append(&a->text, s, len);
    return true;
}

static bool exclude(struct api_error *e, const char *one, const char *other)
{
    return api_fail(e, 400, "invalid_value", other,
                    "%s and %s exclude each other: a reply has one grammar", one, other);
}

bool gen_read_grammar(struct gen_params *p, const struct field_reader *r)
{
    for (size_t i = 0; i < FST_COUNT(spellings); i++) {
        json_val *v = json_get(r->object, spellings[i].name);
        char param[160];
        if (json_is_null(v))
            continue;
        snprintf(param, sizeof param, "%s%s", r->prefix, spellings[i].name);
        if (p->ask.kind)
            return exclude(r->e, p->ask.param, param);
        memcpy(p->ask.param, param, sizeof param);
        if (!read_one(&p->ask, r, spellings[i].name, spellings[i].kind, v))
            return false;
        if (p->ask.text.failed)
            return api_fail(r->e, 503, "out_of_memory", NULL, "out of memory for this request");
    }
    return true;
}

/* ------------------------------------------------------------------ chat */

static bool is_forced(const struct chat_request *r)
{
    return r->tool_choice == CHAT_TOOLS_REQUIRED || r->tool_choice == CHAT_TOOLS_NAMED;
}

static bool ask_format(struct gen *g, struct grammar_ask *a)
{
    const struct chat_request *r = &g->chat;
    const char *param = r->response_param       ? r->response_param
                        : r->response_is_schema ? "response_format.json_schema.schema"
                                                : "response_format";

    if (a->kind)
        return exclude(&g->err, a->param, param);
    a->kind = ASK_SCHEMA;
    a->lenient = r->response_is_schema && !r->response_strict;
    snprintf(a->param, sizeof a->param, "%s", param);
    if (r->response_is_schema)
        buf_append(&a->text, r->response_format.data, r->response_format.len);
    else
        buf_puts(&a->text, "{\"type\":\"object\"}");
    return !a->text.failed || gen_oom(g);
}

/* Of the request and of its system turns; those that may be called. */
static size_t list_tools(const struct chat_request *r, const struct chat_tool **out)
{
    size_t n = 0;

    for (size_t i = 0; i <= r->n_messages; i++) {
        const struct chat_tool *t = i ? r->messages[i - 1].tools : r->tools;
        size_t count = i ? r->messages[i - 1].n_tools : r->n_tools;
        for (size_t k = 0; k < count; k++, t++) {
            if (r->tool_choice == CHAT_TOOLS_NAMED &&
                (t->name.len != r->tool_name.len ||
                 memcmp(t->name.data, r->tool_name.data, t->name.len) != 0))
                continue;
            if (out)
                out[n] = t;
            n++;
        }
    }
    return n;
}

static bool ask_tools(struct gen *g, struct grammar_ask *a)
{
    const struct chat_request *r = &g->chat;
    bool forced = is_forced(r), strict = false, ok;
    enum server_tool_grammar mode = g->s->o.tool_grammar;
    struct calls_ask c = {.n_tools = list_tools(r, NULL),
                          .one_call = !r->parallel_calls,
                          .schemas =
                              forced || mode == SERVER_TOOLS_STRICT ? CALLS_LENIENT : CALLS_ANY};
    struct grammar_ask calls = {.of_block = !forced && !a->kind};
    const struct chat_tool **tools = mem_calloc(c.n_tools + 1, sizeof(const struct chat_tool *));

    if (!tools)
        return gen_oom(g);
    list_tools(r, tools);
    for (size_t i = 0; i < c.n_tools; i++)
        strict |= tools[i]->strict;
    if (calls.of_block && mode == SERVER_TOOLS_OFF && !strict) {
        mem_free(tools);
        return true;
    }
    c.tools = tools;
    calls.optional = calls.of_block && !strict;
    snprintf(calls.param, sizeof calls.param, "tools");
    if (!forced && a->kind) {
        c.answer = buf_str(&a->text);
        c.answer_lenient = a->lenient;
        memcpy(calls.param, a->param, sizeof calls.param);
    }
    ok = ask_calls(&calls, &c);
    mem_free(tools);
    grammar_ask_release(g->s->grammars, a);
    *a = calls;
    return ok || gen_oom(g);
}

bool gen_ask_chat(struct gen *g)
{
    struct grammar_ask *a = &g->params->ask;

    if (g->chat.response_format.data && !ask_format(g, a))
        return false;
    if (!g->prompt.tools_on)
        return true;
    if (a->kind && a->kind != ASK_SCHEMA)
        return api_fail(&g->err, 400, "invalid_value", a->param,
                        "%s and tools exclude each other, but for tool_choice none", a->param);
    return ask_tools(g, a);
}

/* ------------------------------------------------------------------ compiling */

bool gen_find_grammars(struct gen *g)
{
    bool all = true;

    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i].ask.kind)
            all &= grammars_find(g->s->grammars, &g->params[i].ask);
    return all;
}

/* A schema of a tool is told by its place in the list, under the dialect's own name. */
static bool refuse_tool(struct gen *g, const char *text)
{
    const struct chat_tool *t = g->chat.tools;
    bool responses = strcmp(g->d->name, "responses") == 0;
    const char *field = g->d->shape == SHAPE_ANTHROPIC ? "input_schema"
                        : responses                    ? "parameters"
                                                       : "function.parameters";

    for (size_t i = 0; g->has_chat && i < g->chat.n_tools; i++) {
        char lead[128], param[64];
        int n = snprintf(lead, sizeof lead, "tool %.100s: ", t[i].name.data);
        if (strncmp(text, lead, (size_t)n) != 0)
            continue;
        snprintf(param, sizeof param, "tools[%zu].%s", t[i].at, field);
        if (g->d->shape == SHAPE_ANTHROPIC || responses)
            api_fail(&g->err, 400, "invalid_grammar", param, "%s: %s", param, text + n);
        else
            api_fail(&g->err, 400, "invalid_grammar", param,
                     "Tool %zu function has invalid 'parameters' schema: %s", t[i].at, text + n);
        return true;
    }
    return false;
}

static void refuse(struct gen *g, const struct grammar_ask *a, enum fst_status rc)
{
    static const struct {
        enum grammar_kind kind;
        const char *word;
    } own[] = {{ASK_REGEX, "regex: "}, {ASK_EBNF, "EBNF: "}};
    const char *text = fst_error_text();

    for (size_t i = 0; i < FST_COUNT(own); i++) /* the field's name says the same */
        if (a->kind == own[i].kind && strncmp(text, own[i].word, strlen(own[i].word)) == 0)
            text += strlen(own[i].word);
    if (rc == FST_ENOMEM)
        gen_oom(g);
    else if (rc == FST_EFULL)
        api_fail(&g->err, 503, "grammars_full", a->param, "%s", text);
    else if (a->kind != ASK_CALLS || !refuse_tool(g, text))
        api_fail(&g->err, 400, "invalid_grammar", a->param, "%s: %s", a->param, text);
}

void gen_compile(struct gen *g)
{
    for (size_t i = 0; i < g->n_params && !g->err.status; i++) {
        struct grammar_ask *a = &g->params[i].ask;
        if (!a->kind || a->found)
            continue;
        enum fst_status rc = grammars_make(g->s->grammars, a);
        a->failed = rc < 0;
        if (rc < 0 && !a->optional)
            refuse(g, a, rc);
    }
}

void gen_count_grammars(struct gen *g)
{
    struct metrics *m = &g->s->m;

    g->s->n_compiling -= g->compiling;
    g->compiling = false;
    for (size_t i = 0; i < g->n_params; i++) {
        const struct grammar_ask *a = &g->params[i].ask;
        m->grammars_found += a->was_kept;
        m->grammars_failed += a->failed;
        if (a->found && !a->was_kept)
            histogram_observe(&m->grammar, a->seconds, 1);
    }
}

/* ------------------------------------------------------------------ the engine's request */

_Static_assert(sizeof(struct gate) <= FST_GATE_BYTES, "the engine holds a gate");
_Static_assert((int)GATE_SHUT == (int)FST_GATE_SHUT && (int)GATE_OPEN == (int)FST_GATE_OPEN &&
                   (int)GATE_BLOCK == (int)FST_GATE_BLOCK && (int)GATE_FOUL == (int)FST_GATE_FOUL,
               "the same events");

static enum fst_gate_event feed(const void *rules, void *state, int32_t id)
{
    return (enum fst_gate_event)gate_feed(rules, state, id);
}

static bool bar(const void *rules, const void *state, uint32_t *mask)
{
    return gate_bar(rules, state, mask);
}

bool gen_put_grammar(const struct gen_choice *c, struct fst_request_opts *ro, struct fst_gate *gate,
                     struct buf *text)
{
    struct gen *g = c->g;
    const struct server *s = g->s;
    const struct grammar_ask *a = &gen_params_of(c)->ask;
    const struct chat_prompt *p = &g->prompt;
    bool shut = g->has_chat && (p->start == CHAT_START_REASONING ||
                                (p->start == CHAT_START_CONTENT && a->of_block));

    ro->grammar = grammar_of(a);
    if (!ro->grammar)
        return true;
    if (shut) {
        struct gate first;
        gate_init(&first, p, !a->of_block);
        *gate =
            (struct fst_gate){.feed = feed,
                              .bar = bar,
                              .rules = s->gates,
                              .open_id = a->of_block ? -1 : tokenizer_specials(s->tok)->end_think};
        memcpy(gate->state, &first, sizeof first);
        ro->gate = gate;
    }
    if (a->kind == ASK_CALLS && shut)
        calls_text(text, false, NULL, 0);
    else if (a->kind == ASK_CALLS && p->start == CHAT_START_BLOCK)
        calls_text(text, true, NULL, 0);
    else if (a->kind == ASK_CALLS && p->start == CHAT_START_CALL)
        calls_text(text, true, p->start_name.data, p->start_name.len);
    ro->grammar_text = buf_str(text);
    ro->n_grammar_text = text->len;
    return !text->failed || gen_oom(g);
}
