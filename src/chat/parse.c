/* parse.c - the model's text to events.
 *
 * Text waits in `in` until it is certain what it is: a step looks at in[pos..), consumes what it
 * can and says whether it moved. A step may only decide what no later byte can change (matchers
 * answer "more"), so that the events do not depend on how the text is cut. What waits is small: a
 * run of newlines, or one tag.
 *
 * Thoughts and content leave as slices of `in`, [sent, pos), as late as possible, so that one feed
 * gives one event where it can. */
#include "chat/parse.h"

#include <inttypes.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "chat/args.h"
#include "chat/fence.h"
#include "chat/protocol.h"
#include "chat/request.h"
#include "chat/tags.h"

enum state { IN_REASONING, IN_CONTENT, IN_BLOCK, IN_CALL, IN_VALUE, IN_REST };

struct chat_parser {
    struct chat_parser_opts o;
    enum state state;
    struct utf8_stream utf8;
    struct buf in;
    size_t sent, pos;
    uint64_t base; /* offset of in.data[0] in the whole text */
    size_t run;    /* newlines known to stand at pos */

    /* text */
    bool skip_newlines; /* nothing of this part has appeared yet */
    bool line_start;
    bool any_content;
    struct fence fence;

    /* calls */
    bool start_call; /* start_name is still to be announced */
    bool is_open;    /* a call has begun and not ended */
    int n_calls, n_complete;
    struct args args;
    struct tag_mark mark; /* of the current parameter */
    struct buf name;
    struct buf raw; /* the block as written, until a call is complete */
    bool keep_raw;
};

const char *chat_finish_name(enum chat_finish f)
{
    static const char *const names[] = {"stop", "length", "tool_calls", "abort"};

    return names[f];
}

void chat_call_id_random(void *ud, int index, char out[CHAT_CALL_ID_MAX])
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    const char *prefix = ud ? ud : "call_";
    size_t at = strlen(prefix);

    (void)index;
    FST_ASSERT(at + 25 <= CHAT_CALL_ID_MAX);
    memcpy(out, prefix, at);
    for (int i = 0; i < 24; i += 12) {
        /* 36^12 is a quarter of 2^64, so no letter is favoured by more than 1 in 10^17 */
        uint64_t x = rng_os();
        for (int k = 0; k < 12; k++, x /= 36)
            out[at++] = alphabet[x % 36];
    }
    out[at] = 0;
}

static enum fst_status no_memory(void)
{
    return fst_error(FST_ENOMEM, "no memory for a reply");
}

enum fst_status chat_parser_new(struct chat_parser **out, const struct chat_parser_opts *o)
{
    struct chat_parser *p = mem_calloc(1, sizeof *p);

    FST_ASSERT(o->event);
    *out = p;
    if (!p)
        return no_memory();
    p->o = *o;
    if (!buf_reserve(&p->in, 1024)) { /* newlines, a tag: more is asked for by tool calls alone */
        mem_free(p);
        *out = NULL;
        return no_memory();
    }
    if (!p->o.call_id)
        p->o.call_id = chat_call_id_random;
    p->skip_newlines = !o->keep_leading;
    p->line_start = !o->keep_leading;
    switch (o->start) {
    case CHAT_START_REASONING:
        p->state = IN_REASONING;
        p->skip_newlines &= !o->keep_think;
        break;
    case CHAT_START_CONTENT:
        p->state = IN_CONTENT;
        break;
    case CHAT_START_BLOCK:
        p->state = IN_BLOCK;
        p->keep_raw = true;
        break;
    case CHAT_START_CALL:
        p->state = IN_CALL;
        p->keep_raw = true;
        p->start_call = true;
        break;
    }
    return FST_OK;
}

void chat_parser_free(struct chat_parser *p)
{
    if (!p)
        return;
    args_release(&p->args);
    buf_release(&p->in);
    buf_release(&p->name);
    buf_release(&p->raw);
    mem_free(p);
}

bool chat_parser_in_reasoning(const struct chat_parser *p)
{
    return p->state == IN_REASONING;
}

bool chat_parser_done(const struct chat_parser *p)
{
    return p->state == IN_REST;
}

/* ---- giving out ----------------------------------------------------------------------------- */

static void flush_text(struct chat_parser *p)
{
    struct chat_event e = {.type = p->state == IN_REASONING ? CHAT_EVENT_REASONING
                                                            : CHAT_EVENT_CONTENT};

    if (p->sent == p->pos)
        return;
    e.text = p->in.data + p->sent;
    e.len = p->pos - p->sent;
    e.at = p->base + p->sent;
    p->any_content |= p->state == IN_CONTENT;
    p->sent = p->pos;
    p->o.event(p->o.ud, &e);
}

static void flush_args(struct chat_parser *p)
{
    struct chat_event e = {.type = CHAT_EVENT_CALL_ARGS, .index = p->n_calls - 1};

    if (!p->args.out.len || p->args.out.failed)
        return;
    e.text = p->args.out.data;
    e.len = p->args.out.len;
    p->o.event(p->o.ud, &e);
    buf_reset(&p->args.out);
}

/* The next n bytes are thoughts or content. */
static void keep(struct chat_parser *p, size_t n)
{
    fence_feed(&p->fence, p->in.data + p->pos, n);
    p->pos += n;
    p->run = 0;
    p->skip_newlines = false;
}

/* The next n bytes are markup. */
static void drop(struct chat_parser *p, size_t n)
{
    flush_text(p);
    if (p->keep_raw)
        buf_append(&p->raw, p->in.data + p->pos, n);
    p->pos += n;
    p->sent = p->pos;
    p->run = 0;
}

/* ---- thoughts and content ------------------------------------------------------------------- */

static bool is_newline(char c)
{
    return c == '\r' || c == '\n';
}

/* Whether a tag behind `run` newlines would stand in a code fence. */
static bool in_fence(const struct chat_parser *p, size_t run)
{
    struct fence f = p->fence;

    fence_feed(&f, p->in.data + p->pos, run);
    return fence_inside(&f);
}

static void end_thoughts(struct chat_parser *p, size_t run)
{
    if (p->o.keep_think)
        keep(p, run + strlen(PROTOCOL_END_THINK));
    else
        drop(p, run + strlen(PROTOCOL_END_THINK));
    flush_text(p);
    p->state = IN_CONTENT;
    p->skip_newlines = !p->o.keep_think;
    p->line_start = true;
    p->fence = (struct fence){0};
}

/* At a '<' behind `run` newlines. */
static bool step_at_tag(struct chat_parser *p, size_t run, bool end)
{
    const char *tag = p->in.data + p->pos + run;
    size_t n = p->in.len - p->pos - run, len;
    enum tag_match m = tag_literal(tag, n, PROTOCOL_END_THINK);

    if (m == TAG_MORE && !end)
        return false;
    if (m == TAG_YES && p->state == IN_REASONING) {
        end_thoughts(p, run);
        return true;
    }
    if (m == TAG_YES) {
        if (run) {
            keep(p, run);
            p->line_start = true;
        }
        drop(p, strlen(PROTOCOL_END_THINK));
        return true;
    }
    if (p->o.tools_on && (run || p->line_start) && !in_fence(p, run)) {
        m = tag_calls_open(tag, n, &len);
        if (m == TAG_MORE && !end)
            return false;
        if (m == TAG_YES) {
            flush_text(p);
            p->keep_raw = p->n_complete == 0;
            buf_reset(&p->raw);
            drop(p, run + len);
            p->state = IN_BLOCK;
            return true;
        }
    }
    keep(p, run + 1);
    p->line_start = false;
    return true;
}

static bool step_text(struct chat_parser *p, bool end)
{
    const char *s = p->in.data + p->pos;
    size_t n = p->in.len - p->pos, run = 0, k = 1;
    bool hold = p->state == IN_REASONING || p->o.tools_on;

    if (p->skip_newlines && is_newline(s[0])) {
        drop(p, 1);
        p->line_start = true;
        return true;
    }
    if (hold) {
        for (run = p->run; run < n && is_newline(s[run]);)
            run++;
        p->run = run;
        if (run == n && !end)
            return false;
    }
    if (run < n && s[run] == '<') {
        bool moved = step_at_tag(p, run, end);
        if (!moved)
            p->run = run;
        return moved;
    }
    if (run) {
        keep(p, run);
        p->line_start = true;
        return true;
    }
    while (k < n && s[k] != '<' && !(hold && is_newline(s[k])))
        k++;
    keep(p, k);
    p->line_start = false;
    return true;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void begin_call(struct chat_parser *p, const char *name, size_t len)
{
    char id[CHAT_CALL_ID_MAX] = "";
    struct chat_event e = {.type = CHAT_EVENT_CALL_BEGIN, .index = p->n_calls, .id = id};
    const struct chat_tool *tool = chat_find_tool(p->o.tools, p->o.n_tools, name, len);

    buf_reset(&p->name);
    buf_append(&p->name, name, len);
    p->o.call_id(p->o.call_id_ud, p->n_calls, id);
    p->n_calls++;
    p->is_open = true;
    args_begin(&p->args, tool, p->o.coerce_args);
    e.name = buf_str(&p->name);
    p->o.event(p->o.ud, &e);
    p->state = IN_CALL;
}

static void end_call(struct chat_parser *p)
{
    struct chat_event e = {.type = CHAT_EVENT_CALL_END, .index = p->n_calls - 1};

    args_end(&p->args);
    flush_args(p);
    p->is_open = false;
    p->n_complete++;
    p->keep_raw = false;
    buf_release(&p->raw);
    p->o.event(p->o.ud, &e);
    p->state = p->o.one_call ? IN_REST : IN_BLOCK;
}

/* Between the tags of a block or a call. */
static bool step_markup(struct chat_parser *p, bool end)
{
    const char *s = p->in.data + p->pos, *lt = memchr(s, '<', p->in.len - p->pos);
    size_t n = lt ? (size_t)(lt - s) : p->in.len - p->pos, len;
    struct tag_open t;
    enum tag_name which;
    enum tag_match call, param = TAG_NO, close;

    if (n) {
        if (p->state == IN_CALL)
            args_body(&p->args, s, n);
        drop(p, n);
        return true;
    }
    n = p->in.len - p->pos;
    call = tag_named(s, n, TAG_INVOKE, &t, &len);
    if (call == TAG_YES) {
        /* the name is copied before `in` moves on; a call that was not closed ends here */
        struct buf name = {0};
        buf_append(&name, t.name, t.name_len);
        if (p->is_open)
            end_call(p);
        drop(p, len);
        if (p->state != IN_REST)
            begin_call(p, buf_str(&name), name.len);
        p->args.failed |= name.failed;
        buf_release(&name);
        return true;
    }
    if (p->state == IN_CALL) {
        param = tag_named(s, n, TAG_PARAMETER, &t, &len);
        if (param == TAG_YES) {
            p->mark = t.mark;
            args_param(&p->args, t.name, t.name_len, t.is_json);
            drop(p, len);
            p->state = IN_VALUE;
            return true;
        }
    }
    close = tag_close(s, n, NULL, &which, &len);
    if (close == TAG_YES) {
        if (which != TAG_PARAMETER && p->is_open)
            end_call(p);
        drop(p, len);
        if (which == TAG_CALLS)
            p->state = IN_REST;
        return true;
    }
    if (!end && (call == TAG_MORE || param == TAG_MORE || close == TAG_MORE))
        return false;
    if (p->state == IN_CALL)
        args_body(&p->args, s, 1);
    drop(p, 1);
    return true;
}

/* Inside a parameter.  Only its own end tag ends it, or that of what is around it. */
static bool step_value(struct chat_parser *p, bool end)
{
    const char *s = p->in.data + p->pos, *lt = memchr(s, '<', p->in.len - p->pos);
    size_t n = lt ? (size_t)(lt - s) : p->in.len - p->pos, len;
    enum tag_name which;
    enum tag_match m;

    if (n) {
        args_text(&p->args, s, n);
        drop(p, n);
        return true;
    }
    m = tag_close(s, p->in.len - p->pos, &p->mark, &which, &len);
    if (m == TAG_MORE && !end)
        return false;
    if (m == TAG_YES) {
        args_param_end(&p->args);
        p->state = IN_CALL;
        if (which == TAG_PARAMETER)
            drop(p, len);
        return true;
    }
    args_text(&p->args, s, 1);
    drop(p, 1);
    return true;
}

/* ---- driving -------------------------------------------------------------------------------- */

static bool step(struct chat_parser *p, bool end)
{
    switch (p->state) {
    case IN_REASONING:
    case IN_CONTENT:
        return step_text(p, end);
    case IN_BLOCK:
    case IN_CALL:
        return step_markup(p, end);
    case IN_VALUE:
        return step_value(p, end);
    case IN_REST:
        drop(p, p->in.len - p->pos);
        return true;
    }
    return false;
}

static bool failed(const struct chat_parser *p)
{
    return p->in.failed || p->raw.failed || p->name.failed || args_failed(&p->args);
}

static enum fst_status run(struct chat_parser *p, bool end)
{
    if (p->start_call && (p->in.len || end)) {
        p->start_call = false;
        begin_call(p, p->o.start_name.data, p->o.start_name.len);
    }
    while (p->pos < p->in.len && !failed(p) && step(p, end)) {
    }
    if (failed(p))
        return no_memory();
    flush_text(p);
    flush_args(p);
    memmove(p->in.data, p->in.data + p->pos, p->in.len - p->pos);
    p->in.len -= p->pos;
    p->base += p->pos;
    p->pos = p->sent = 0;
    return FST_OK;
}

enum fst_status chat_parse_feed(struct chat_parser *p, const char *bytes, size_t len)
{
    if (len == 0)
        return FST_OK;
    utf8_stream_feed(&p->utf8, &p->in, bytes, len);
    if (p->in.failed)
        return no_memory();
    return p->in.len ? run(p, false) : FST_OK;
}

static void give_back_block(struct chat_parser *p)
{
    struct chat_event e = {.type = CHAT_EVENT_CONTENT, .raw = true};

    e.text = buf_str(&p->raw);
    e.len = p->raw.len;
    for (; !p->any_content && e.len && is_newline(*e.text); e.len--)
        e.text++;
    if (e.len)
        p->o.event(p->o.ud, &e);
}

enum fst_status chat_parse_end(struct chat_parser *p, enum chat_end end, enum chat_finish *finish)
{
    struct chat_event cancel = {.type = CHAT_EVENT_CALL_CANCEL, .index = p->n_calls - 1};
    bool in_block = p->state != IN_REASONING && p->state != IN_CONTENT;

    utf8_stream_end(&p->utf8, &p->in);
    buf_append(&p->in, "", 0); /* never NULL below */
    if (p->in.failed)
        return no_memory();
    FST_TRY(run(p, true));
    in_block |= p->state != IN_REASONING && p->state != IN_CONTENT;
    if (p->is_open) {
        cancel.index = p->n_calls - 1;
        p->is_open = false;
        p->o.event(p->o.ud, &cancel);
    }
    if (in_block && p->n_complete == 0 && end == CHAT_END_STOP)
        give_back_block(p);
    p->state = IN_REST;
    if (finish)
        *finish = end == CHAT_END_LENGTH  ? CHAT_FINISH_LENGTH
                  : end == CHAT_END_ABORT ? CHAT_FINISH_ABORT
                  : p->n_complete         ? CHAT_FINISH_TOOL_CALLS
                                          : CHAT_FINISH_STOP;
    return FST_OK;
}
