#include "chat/watch.h"

#include "chat/loops.h"

struct chat_watch {
    const struct tokenizer *tokenizer;
    struct chat_stream *stream;
    int64_t budget;
    bool looks, bound, failed, closed;
    bool round; /* by calls */
    enum chat_watch_loop loop;
    uint64_t n;
    struct loops loops;
};

static void call_id(void *ud, int index, char out[CHAT_CALL_ID_MAX])
{
    (void)ud;
    (void)index;
    out[0] = 0;
}

static void on_event(void *ud, const struct chat_event *e)
{
    struct chat_watch *w = ud;

    if (!w->looks)
        return;
    if (e->type == CHAT_EVENT_CALL_BEGIN)
        loops_call_begin(&w->loops, e->name);
    else if (e->type == CHAT_EVENT_CALL_ARGS)
        loops_call_args(&w->loops, e->text, e->len);
    else if (e->type == CHAT_EVENT_CALL_END)
        w->round |= loops_call_end(&w->loops);
}

enum fst_status chat_watch_new(struct chat_watch **out, const struct chat_watch_opts *o)
{
    struct chat_stream_opts so = o->stream;
    struct chat_watch *w = mem_calloc(1, sizeof *w);

    *out = NULL;
    if (!w)
        return fst_error(FST_ENOMEM, "no memory for a reply");
    w->tokenizer = so.tokenizer;
    w->budget = o->budget;
    w->looks = o->loops;
    w->bound = o->bound;
    so.parser.event = on_event;
    so.parser.ud = w;
    so.parser.call_id = call_id;
    enum fst_status rc = chat_stream_new(&w->stream, &so);
    if (rc < 0)
        chat_watch_free(w);
    else
        *out = w;
    return rc;
}

void chat_watch_free(struct chat_watch *w)
{
    if (!w)
        return;
    chat_stream_free(w->stream);
    mem_free(w);
}

static struct chat_watch_verdict close_thoughts(struct chat_watch *w)
{
    w->closed = true;
    return (struct chat_watch_verdict){.force = tokenizer_specials(w->tokenizer)->end_think};
}

static bool spent(const struct chat_watch *w)
{
    return w->budget >= 0 && chat_stream_result(w->stream)->reasoning_tokens >= (uint64_t)w->budget;
}

/* The text, or the calls, have gone round. */
static bool look_for_loops(struct chat_watch *w, int32_t id, bool reasoning)
{
    size_t len;
    const char *bytes = tokenizer_bytes(w->tokenizer, id, &len);

    if (!w->looks)
        return false;
    bool text = (reasoning || !w->bound) && loops_text(&w->loops, bytes, len);
    w->loop = w->round ? CHAT_LOOP_CALLS : text ? CHAT_LOOP_TEXT : CHAT_LOOP_NONE;
    return w->loop != CHAT_LOOP_NONE;
}

struct chat_watch_verdict chat_watch_feed(struct chat_watch *w, int32_t id,
                                          enum chat_watch_ends ends)
{
    struct chat_watch_verdict goes_on = {.force = -1};
    const struct chat_stream_result *r = chat_stream_result(w->stream);

    if (w->failed)
        return goes_on;
    if (id >= 0) {
        w->n++;
        w->failed = chat_stream_feed(w->stream, id, ends == CHAT_WATCH_STOP_ID) < 0;
    }
    if (!w->failed && ends != CHAT_WATCH_GOES_ON)
        w->failed = chat_stream_finish(w->stream, ends == CHAT_WATCH_LENGTH ? CHAT_END_LENGTH
                                                                            : CHAT_END_STOP) < 0;
    if (w->failed)
        return goes_on;
    if (r->stopped)
        return (struct chat_watch_verdict){.force = -1, .stop = true, .keep = r->n_tokens};
    if (ends != CHAT_WATCH_GOES_ON)
        return goes_on;
    bool reasoning = chat_stream_in_reasoning(w->stream);
    if (id >= 0 && look_for_loops(w, id, reasoning)) {
        if (!reasoning)
            return (struct chat_watch_verdict){.force = -1, .stop = true, .keep = w->n};
        w->loop = CHAT_LOOP_NONE;
        loops_reset_text(&w->loops);
        return close_thoughts(w);
    }
    return reasoning && spent(w) ? close_thoughts(w) : goes_on;
}

enum chat_watch_loop chat_watch_loop(const struct chat_watch *w)
{
    return w->loop;
}

bool chat_watch_closed(const struct chat_watch *w)
{
    return w->closed;
}
