/* stream.c - ids to events.
 *
 * Text positions: `fed` counts the bytes of whole code points that went in; ends[] remembers for
 * the last few ids where they ended. A stop string is found at a position, possibly some ids after
 * the one that completed it (the parser holds newlines until it knows that no tool block follows),
 * and the position says which id that was. */
#include "chat/stream.h"

#include "base/utf8.h"
#include "chat/protocol.h"
#include "chat/stops.h"

enum { IDS_REMEMBERED = 1024 }; /* looking further back is only for endless runs of newlines */

struct chat_stream {
    struct chat_stream_opts o;
    chat_event_fn *event;
    void *ud;
    struct chat_parser *parser; /* NULL for kind TEXT */
    struct utf8_stream utf8;
    struct buf text; /* of the id being fed */
    struct stops stops;
    struct buf held; /* content that may begin a stop string */
    uint64_t fed;    /* bytes of text so far */
    uint64_t n_fed;  /* ids so far */
    struct buf ends; /* uint64_t: fed after each id from first_end on */
    uint64_t first_end;
    struct chat_stream_result result;
};

static enum fst_status no_memory(void)
{
    return fst_error(FST_ENOMEM, "no memory for a reply");
}

void chat_stream_opts_init(struct chat_stream_opts *o, const struct tokenizer *t,
                           const struct chat_request *r, const struct chat_prompt *p)
{
    *o = (struct chat_stream_opts){.kind = CHAT_STREAM_CHAT, .tokenizer = t, .skip_special = true};
    o->parser.start = p->start;
    o->parser.start_name = p->start_name;
    o->parser.tools_on = p->tools_on;
    o->parser.tools = r->tools;
    o->parser.n_tools = r->n_tools;
    for (size_t i = 0; !o->parser.n_tools && i < r->n_messages; i++) {
        o->parser.tools = r->messages[i].tools;
        o->parser.n_tools = r->messages[i].n_tools;
    }
    o->parser.coerce_args = r->d.coerce_args;
    o->parser.one_call = !r->parallel_calls;
    o->parser.keep_think = !r->separate_reasoning;
    o->parser.keep_leading = p->continued;
}

/* ---- content: stop strings ------------------------------------------------------------------ */

static void give(struct chat_stream *s, const char *text, size_t len)
{
    struct chat_event e = {.type = CHAT_EVENT_CONTENT, .text = text, .len = len};

    if (len)
        s->event(s->ud, &e);
}

static void flush_held(struct chat_stream *s)
{
    give(s, buf_str(&s->held), s->held.len);
    buf_reset(&s->held);
    stops_reset(&s->stops);
}

/* The number of ids that had been fed when text position `at` was complete. */
static uint64_t ids_until(const struct chat_stream *s, uint64_t at)
{
    size_t n = s->ends.len / sizeof(uint64_t);

    for (size_t i = 0; i < n; i++) {
        uint64_t end;
        memcpy(&end, s->ends.data + i * sizeof end, sizeof end);
        if (end >= at)
            return FST_MIN(s->first_end + i + 1, s->n_fed);
    }
    return s->n_fed;
}

static void on_content(struct chat_stream *s, const char *text, size_t len, uint64_t at)
{
    size_t used, hold;
    int index;

    if (s->result.stopped)
        return;
    if (stops_feed(&s->stops, text, len, &used, &index)) {
        size_t cut = s->o.no_stop_trim ? 0 : s->stops.one[index].len;

        s->result.stopped = true;
        s->result.stop_index = index;
        s->result.n_tokens = ids_until(s, at + used);
        buf_append(&s->held, text, used);
        if (!s->held.failed)
            give(s, s->held.data, s->held.len - cut);
        return;
    }
    hold = stops_held(&s->stops);
    if (hold <= len) { /* what was held is certain now */
        if (s->held.len && len > hold) {
            buf_append(&s->held, text, len - hold);
            if (!s->held.failed)
                give(s, s->held.data, s->held.len);
        } else {
            give(s, buf_str(&s->held), s->held.len);
            give(s, text, len - hold);
        }
        buf_reset(&s->held);
        buf_append(&s->held, text + len - hold, hold);
    } else {
        size_t out = s->held.len + len - hold;
        buf_append(&s->held, text, len);
        if (s->held.failed)
            return;
        give(s, s->held.data, out);
        memmove(s->held.data, s->held.data + out, hold);
        s->held.len = hold;
    }
}

/* ---- parser events -------------------------------------------------------------------------- */

static void on_event(void *ud, const struct chat_event *e)
{
    struct chat_stream *s = ud;
    struct chat_event copy = *e;

    if (s->result.stopped && s->result.stop_index >= 0)
        return;
    copy.at = 0;
    switch (e->type) {
    case CHAT_EVENT_CONTENT:
        if (e->raw)
            break;
        on_content(s, e->text, e->len, e->at);
        return;
    case CHAT_EVENT_REASONING:
        if (s->o.parser.keep_think)
            copy.type = CHAT_EVENT_CONTENT;
        break;
    default:
        break;
    }
    if (e->type == CHAT_EVENT_CALL_BEGIN || e->raw)
        flush_held(s);
    s->event(s->ud, &copy);
}

/* ---- driving -------------------------------------------------------------------------------- */

/* What thoughts and content need: more is asked for only by tokens of many bytes, and by tool calls. */
static bool reserve(struct chat_stream *s)
{
    enum { TOKEN_BYTES = 512 };
    size_t longest = 0;

    for (size_t i = 0; i < s->stops.n; i++)
        longest = FST_MAX(longest, (size_t)s->stops.one[i].len);
    return buf_reserve(&s->text, TOKEN_BYTES) && buf_reserve(&s->held, longest + TOKEN_BYTES) &&
           buf_reserve(&s->ends, (IDS_REMEMBERED + 2) * sizeof(uint64_t));
}

enum fst_status chat_stream_new(struct chat_stream **out, const struct chat_stream_opts *o)
{
    struct chat_stream *s = mem_calloc(1, sizeof *s);
    struct chat_parser_opts po = o->parser;
    enum fst_status rc;

    *out = NULL;
    if (!s)
        return no_memory();
    FST_ASSERT(o->parser.event);
    s->o = *o;
    s->o.stops = NULL;
    s->event = po.event;
    s->ud = po.ud;
    s->result.stop_index = -1;
    rc = stops_init(&s->stops, o->stops, o->n_stops);
    if (rc == FST_OK && !reserve(s))
        rc = no_memory();
    if (rc == FST_OK && o->kind == CHAT_STREAM_CHAT) {
        po.event = on_event;
        po.ud = s;
        rc = chat_parser_new(&s->parser, &po);
    }
    if (rc < 0)
        chat_stream_free(s);
    else
        *out = s;
    return rc;
}

void chat_stream_free(struct chat_stream *s)
{
    if (!s)
        return;
    chat_parser_free(s->parser);
    stops_release(&s->stops);
    buf_release(&s->text);
    buf_release(&s->held);
    buf_release(&s->ends);
    mem_free(s);
}

static bool failed(const struct chat_stream *s)
{
    return s->text.failed || s->held.failed || s->ends.failed;
}

/* Whole code points onwards. */
static enum fst_status pass_on(struct chat_stream *s)
{
    uint64_t at = s->fed;

    if (s->text.failed)
        return no_memory();
    s->fed += s->text.len;
    buf_append(&s->ends, &s->fed, sizeof s->fed);
    if (s->text.len && s->parser)
        FST_TRY(chat_parse_feed(s->parser, s->text.data, s->text.len));
    else if (s->text.len)
        on_content(s, s->text.data, s->text.len, at);
    return failed(s) ? no_memory() : FST_OK;
}

enum fst_status chat_stream_feed(struct chat_stream *s, int32_t id, bool is_stop)
{
    bool was_reasoning = s->parser && chat_parser_in_reasoning(s->parser);
    const char *bytes;
    size_t len;

    if (s->result.stopped)
        return FST_OK;
    if (s->parser && chat_parser_done(s->parser) && !is_stop &&
        id != tokenizer_specials(s->o.tokenizer)->eos) {
        s->result.stopped = true; /* nothing may follow the calls */
        return FST_OK;
    }
    s->result.n_tokens = ++s->n_fed;
    if (was_reasoning)
        s->result.reasoning_tokens = s->n_fed;
    bytes = tokenizer_bytes(s->o.tokenizer, id, &len);
    if ((is_stop && !s->o.no_stop_trim) ||
        (s->o.skip_special && tokenizer_is_special(s->o.tokenizer, id)))
        len = 0;
    /* Only ids whose text may still be undecided are remembered. */
    if (s->ends.len > IDS_REMEMBERED * sizeof(uint64_t)) {
        size_t half = s->ends.len / sizeof(uint64_t) / 2;
        memmove(s->ends.data, s->ends.data + half * sizeof(uint64_t),
                s->ends.len - half * sizeof(uint64_t));
        s->ends.len -= half * sizeof(uint64_t);
        s->first_end += half;
    }
    buf_reset(&s->text);
    utf8_stream_feed(&s->utf8, &s->text, bytes, len);
    return pass_on(s);
}

enum fst_status chat_stream_finish(struct chat_stream *s, enum chat_end end)
{
    bool by_string = s->result.stop_index >= 0;

    if (!by_string) {
        buf_reset(&s->text);
        utf8_stream_end(&s->utf8, &s->text);
        FST_TRY(pass_on(s));
    }
    if (s->result.stopped) /* whatever ended the engine's run, the reply ended before */
        end = CHAT_END_STOP;
    if (s->result.stop_index < 0 && s->parser)
        FST_TRY(chat_parse_end(s->parser, end, &s->result.finish));
    else
        s->result.finish = end == CHAT_END_LENGTH  ? CHAT_FINISH_LENGTH
                           : end == CHAT_END_ABORT ? CHAT_FINISH_ABORT
                                                   : CHAT_FINISH_STOP;
    if (s->result.stop_index < 0)
        flush_held(s);
    else
        s->result.finish = CHAT_FINISH_STOP; /* the end of the text completed a stop string */
    s->result.reasoning_tokens = FST_MIN(s->result.reasoning_tokens, s->result.n_tokens);
    return failed(s) ? no_memory() : FST_OK;
}

bool chat_stream_in_reasoning(const struct chat_stream *s)
{
    return s->parser && chat_parser_in_reasoning(s->parser);
}

const struct chat_stream_result *chat_stream_result(const struct chat_stream *s)
{
    return &s->result;
}
