/* calls.c - calls of tools in the model's own format (the caller's texts), each parameter by the
 * tool's schema. */
#include "grammar/schema.h"

struct calls {
    struct compile *c;
    const struct grammar_tool *tool;
    const struct grammar_tool_format *f;
};

/* The parameters of a tool, between its opening and closing tags. */
static void put_params(struct calls *k, size_t i, uint32_t from, uint32_t to)
{
    const struct grammar_tool *t = &k->tool[i];
    struct compile *c = k->c;
    struct reader r;
    struct leaf any = {.types = T_OBJECT}, *l = &any;
    uint32_t n = 1;
    bool some = false, lenient = c->opts.lenient;

    if (!t->any && json_is_null(t->parameters)) {
        nfa_eps(c, from, to);
        return;
    }
    if (!reader_init(&r, c, t->parameters))
        return;
    c->opts.lenient |= t->lenient;
    r.format = k->f;
    if (!t->any) {
        struct schema *s = schema_read(&r, t->parameters, t->parameters,
                                       compile_text(c, "tool %.100s: #", t->name));
        l = schema_leaves(&r, &s, 1, &n);
    }
    for (uint32_t j = 0; j < n && c->rc >= 0; j++)
        if (l[j].types & T_OBJECT) {
            schema_params(&r, &l[j], from, to);
            some = true;
        }
    if (!some)
        compile_fail(c, FST_EINVAL, "tool %.100s: its parameters allow no object", t->name);
    schema_fill(&r);
    c->opts.lenient = lenient;
}

/* A document that may stand instead of calls. */
static void put_answer(struct compile *c, const struct grammar_tools_opts *o, uint32_t from,
                       uint32_t to)
{
    struct reader r;
    bool lenient = c->opts.lenient;
    struct schema *s;

    if (!reader_init(&r, c, o->answer))
        return;
    c->opts.lenient |= o->answer_lenient;
    s = schema_read(&r, o->answer, o->answer, "#");
    if (c->rc >= 0)
        nfa_call(c, from, schema_rule(&r, &s, 1), 1, 1, to);
    schema_fill(&r);
    c->opts.lenient = lenient;
}

static void put_invoke(struct calls *k, size_t i, uint32_t from, uint32_t to)
{
    struct compile *c = k->c;
    const struct grammar_tool_format *f = k->f;
    uint32_t name = nfa_state(c), go = nfa_state(c), params = nfa_state(c), end = nfa_state(c);

    schema_tag(c, f, f->invoke_open, from, name);
    nfa_text(c, name, k->tool[i].name, strlen(k->tool[i].name), go);
    schema_tag(c, f, f->invoke_go, go, params);
    put_params(k, i, params, end);
    schema_tag(c, f, f->invoke_end, end, to);
}

enum fst_status grammar_from_tools(struct grammar **out, const struct grammar_tool *tools,
                                   size_t n_tools, const struct grammar_tool_format *format,
                                   const struct grammar_tools_opts *tools_opts,
                                   const struct grammar_opts *opts)
{
    struct compile c;
    struct calls k = {.c = &c, .tool = tools, .f = format};
    uint32_t root, invoke, from, again, done;
    enum fst_status rc;

    *out = NULL;
    if (!n_tools)
        return fst_error(FST_EINVAL, "Tools cannot be empty if tool choice is set to required.");
    compile_init(&c, opts);
    root = rule_new(&c, "tool calls");
    invoke = rule_new(&c, "tool call");
    again = nfa_state(&c);
    done = nfa_state(&c);
    if (c.rc >= 0) {
        for (size_t i = 0; i < n_tools && c.rc >= 0; i++)
            put_invoke(&k, i, c.rule[invoke].start, c.rule[invoke].end);
        from = c.rule[root].start;
        if (tools_opts->start == GRAMMAR_TOOLS_INVOKE) {
            uint32_t end = nfa_state(&c);
            put_params(&k, 0, from, end);
            schema_tag(&c, format, format->invoke_end, end, done);
        } else {
            uint32_t a = nfa_state(&c), b = nfa_state(&c);
            if (tools_opts->start == GRAMMAR_TOOLS_LEAD) {
                nfa_text(&c, from, format->calls_lead, strlen(format->calls_lead), a);
                schema_tag(&c, format, format->calls_open, a, b);
            } else {
                nfa_eps(&c, from, b);
            }
            nfa_call(&c, b, invoke, 1, 1, done);
        }
        if (!tools_opts->one_call) {
            nfa_bytes(&c, done, '\n', '\n', again);
            nfa_call(&c, again, invoke, 1, 1, done);
        }
        schema_tag(&c, format, format->calls_close, done, c.rule[root].end);
        if (tools_opts->answer)
            put_answer(&c, tools_opts, c.rule[root].start, c.rule[root].end);
    }
    if (c.rc >= 0 && c.left_out.failed)
        compile_fail(&c, FST_ENOMEM, "grammar: out of memory");
    rc = c.rc < 0 ? c.rc : grammar_build(out, &c, root);
    compile_release(&c);
    return rc;
}
