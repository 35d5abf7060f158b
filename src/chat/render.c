/* render.c - a chat_request to prompt text.
 *
 * Follows the reference encoder (DeepSeek-V4, encoding_dsv4.py): messages become turns (tool
 * results and users in a row are one user turn), old thoughts are dropped, then each turn is
 * written as body and transition. Around it, unless the request says `reference`, what a server
 * adds: a system turn for tools, roles the format does not know, an open assistant turn at the
 * end.
 *
 * Every byte is marked: written by the template (special tokens count) or by a client (they do
 * not, so that nobody can type a role change). */
#include "chat/memory.h"
#include "chat/noise.h"
#include "chat/protocol.h"
#include "chat/request.h"

enum block_kind { BLOCK_TEXT, BLOCK_RESULT };

struct block {
    enum block_kind kind;
    const struct chat_message *m;
};

struct turn {
    enum chat_role role; /* never CHAT_TOOL */
    enum chat_task task;
    bool wo_eos;
    bool no_reasoning;             /* dropped */
    const struct chat_message **m; /* system: those joined; else one, or none */
    size_t n_m;
    struct block *blocks; /* user */
    size_t n_blocks;
    const struct chat_tool *tools;
    size_t n_tools;
    struct chat_str response_format;
};

struct render {
    struct chat_prompt *p;
    struct chat_request *r;
    struct turn *turns;
    size_t n_turns;
    bool thinking, drop;
    ptrdiff_t last_user; /* index of the last user or developer turn, -1: none */
    bool in_think;       /* the text so far ends inside <think> */
    bool is_open;        /* ... inside an assistant turn */
    bool all_template;
    bool failed;
};

/* ---- writing -------------------------------------------------------------------------------- */

static void write_marked(struct render *w, const char *s, size_t len, bool is_template)
{
    struct buf *text = &w->p->text, *allowed = &w->p->allowed;
    size_t from = text->len, bytes = (from + len + 7) / 8;

    buf_append(text, s, len);
    if (!buf_reserve(allowed, bytes - allowed->len))
        return;
    memset(allowed->data + allowed->len, 0, bytes - allowed->len);
    allowed->len = bytes;
    if (is_template || w->all_template)
        for (size_t i = from; i < from + len; i++)
            allowed->data[i >> 3] |= (char)(1u << (i & 7));
}

static void put(struct render *w, const char *s)
{
    write_marked(w, s, strlen(s), true);
}

static void put_str(struct render *w, struct chat_str s)
{
    write_marked(w, s.data, s.len, false);
}

/* Client text inside an element that `closer` ends ("": none): with escape_dsml its '<' is replaced
 * there. */
static void put_payload(struct render *w, const char *s, size_t len, const char *closer,
                        const char *instead)
{
    size_t n = strlen(closer);
    const char *hit;

    while (n && w->r->d.escape_dsml && (hit = memmem(s, len, closer, n))) {
        size_t before = (size_t)(hit - s);
        write_marked(w, s, before, false);
        write_marked(w, instead, strlen(instead), false);
        s = hit + 1;
        len -= before + 1;
    }
    write_marked(w, s, len, false);
}

static void put_think(struct render *w, bool open)
{
    put(w, open ? PROTOCOL_THINK : PROTOCOL_END_THINK);
    w->in_think = open;
}

static void put_header(struct render *w, bool think)
{
    put(w, PROTOCOL_ASSISTANT);
    put_think(w, think);
    w->is_open = true;
}

static void put_parts(struct render *w, const struct chat_message *m, const char *between,
                      const char *closer)
{
    for (size_t i = 0; i < m->n_parts; i++) {
        const struct chat_part *part = &m->parts[i];
        if (i)
            put(w, between);
        if (part->is_text)
            put_payload(w, part->text.data, part->text.len, closer, "&lt;");
        else {
            write_marked(w, "[Unsupported ", 13, false);
            put_str(w, part->text);
            write_marked(w, "]", 1, false);
        }
    }
}

/* ---- bodies --------------------------------------------------------------------------------- */

static void put_tools(struct render *w, const struct turn *t)
{
    if (t->n_tools) {
        put(w, "\n\n" PROTOCOL_TOOLS_HEAD);
        for (size_t i = 0; i < t->n_tools; i++) {
            if (i)
                put(w, "\n");
            put_str(w, t->tools[i].json);
        }
        put(w, PROTOCOL_TOOLS_TAIL);
    }
    if (t->response_format.len) {
        put(w, "\n\n" PROTOCOL_RESPONSE_FORMAT);
        put_str(w, t->response_format);
    }
}

static void put_param(struct render *w, const char *key, size_t key_len, const char *text,
                      size_t len, bool is_string)
{
    put(w, PROTOCOL_PARAM_OPEN);
    write_marked(w, key, key_len, false);
    put(w, is_string ? PROTOCOL_PARAM_TEXT : PROTOCOL_PARAM_JSON);
    put_payload(w, text, len, PROTOCOL_END, is_string ? "&lt;" : "\\u003c");
    put(w, PROTOCOL_PARAM_CLOSE);
}

/* Arguments are a JSON object; what is none becomes one parameter named "arguments", so that a
 * conversation with one spoilt call can go on. */
static enum fst_status put_arguments(struct render *w, const struct chat_call *c)
{
    struct json_doc *doc = NULL;
    enum fst_status rc = FST_EFORMAT;
    struct buf value = {0};
    json_val *root;

    if (c->arguments.len == 0)
        return FST_OK;
    rc = json_parse(&doc, c->arguments.data, c->arguments.len);
    if (rc == FST_ENOMEM)
        return rc;
    root = rc < 0 ? NULL : json_root(doc);
    if (rc < 0 || json_type_of(root) != JSON_OBJECT) {
        w->p->n_wrapped++;
        put_param(w, "arguments", 9, c->arguments.data, c->arguments.len, true);
        json_free(doc);
        return FST_OK;
    }
    for (size_t i = 0; i < json_count(root); i++) {
        const char *key, *s;
        size_t key_len, len;
        json_val *v = json_member(root, i, &key, &key_len);

        if (i)
            put(w, "\n");
        if ((s = json_string(v, &len))) {
            put_param(w, key, key_len, s, len, true);
            continue;
        }
        buf_reset(&value);
        json_put(&value, v, JSON_PYTHON);
        put_param(w, key, key_len, buf_str(&value), value.len, false);
    }
    rc = value.failed ? fst_error(FST_ENOMEM, "no memory for a prompt") : FST_OK;
    buf_release(&value);
    json_free(doc);
    return rc;
}

static enum fst_status put_calls(struct render *w, const struct chat_message *m)
{
    put(w, "\n\n" PROTOCOL_CALLS_OPEN);
    for (size_t i = 0; i < m->n_calls; i++) {
        if (i)
            put(w, "\n");
        put(w, PROTOCOL_INVOKE_OPEN);
        put_str(w, m->calls[i].name);
        put(w, PROTOCOL_INVOKE_GO);
        FST_TRY(put_arguments(w, &m->calls[i]));
        put(w, PROTOCOL_INVOKE_END);
    }
    put(w, PROTOCOL_CALLS_CLOSE);
    return FST_OK;
}

static void put_user_tag(struct render *w)
{
    put(w, PROTOCOL_USER);
    w->in_think = w->is_open = false;
}

static void put_user(struct render *w, const struct turn *t)
{
    put_user_tag(w);
    for (size_t i = 0; i < t->n_blocks; i++) {
        if (i)
            put(w, "\n\n");
        if (t->blocks[i].kind == BLOCK_RESULT) {
            put(w, PROTOCOL_RESULT_OPEN);
            put_parts(w, t->blocks[i].m, "\n\n", PROTOCOL_RESULT_CLOSE);
            put(w, PROTOCOL_RESULT_CLOSE);
        } else
            put_parts(w, t->blocks[i].m, "\n\n", "");
    }
}

static bool has_text(const struct chat_message *m)
{
    for (size_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].text.len)
            return true;
    return false;
}

/* The text of a message as one string, for the rare cases that look inside it. */
static struct chat_str flat(struct render *w, const struct chat_message *m)
{
    struct buf b = {0};
    struct chat_str s = {"", 0};

    for (size_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].is_text)
            buf_append(&b, m->parts[i].text.data, m->parts[i].text.len);
    if (b.failed)
        w->failed = true;
    else if (b.len)
        s = chat_copy(w->r, b.data, b.len);
    buf_release(&b);
    return s;
}

/* A last assistant message that the reply continues.  Thoughts may stand in its content, as clients
 * that keep raw text send them ("<think>...</think>The answer is"). */
static void put_continued(struct render *w, const struct chat_message *m, bool with_thoughts)
{
    struct chat_str text = flat(w, m), thought = m->reasoning;
    const char *close = memmem(text.data, text.len, PROTOCOL_END_THINK, 8);

    if (close && thought.len == 0) {
        thought = (struct chat_str){text.data, (size_t)(close - text.data)};
        if (thought.len >= 7 && memcmp(thought.data, PROTOCOL_THINK, 7) == 0)
            thought = (struct chat_str){thought.data + 7, thought.len - 7};
        text = (struct chat_str){close + 8, text.len - (size_t)(close + 8 - text.data)};
    }
    w->p->continued = text.len > 0;
    if (with_thoughts) {
        put_str(w, thought);
        if (text.len == 0 && thought.len > 0 && !close && m->n_calls == 0) {
            w->p->continued = true;
            return; /* only a thought: go on thinking */
        }
        put_think(w, false);
    }
    put_str(w, text);
}

/* ids from..end of a turn, which the prompt refers to from now on. */
static enum fst_status put_run(struct render *w, const struct chat_turn *t, size_t from)
{
    struct chat_prompt *p = w->p;
    struct chat_run *more = mem_realloc(p->runs, (p->n_runs + 1) * sizeof *more);
    struct chat_run *run;
    struct buf text = {0};
    enum fst_status rc;

    if (!more) {
        chat_turn_unref(t);
        return fst_error(FST_ENOMEM, "no memory for a prompt");
    }
    p->runs = more;
    run = &more[p->n_runs++];
    *run = (struct chat_run){
        .from = p->text.len, .ids = t->ids + from, .n_ids = t->n_ids - from, .turn = t};
    rc = chat_memory_text(w->r->memory, run->ids, run->n_ids, &text);
    if (rc == FST_OK)
        write_marked(w, buf_str(&text), text.len, false);
    buf_release(&text);
    run->to = p->text.len;
    return rc;
}

/* The model's own ids instead of m, if m is a turn that it wrote and that came back unchanged; *done
 * says so.  Whether thoughts are shown is the format's business and not the client's: where they are
 * dropped, what was sampled behind them stands. */
static enum fst_status put_sampled(struct render *w, const struct chat_message *m,
                                   bool with_thoughts, bool *done)
{
    const struct chat_turn *t = NULL;
    size_t from = 0;

    *done = false;
    if (w->r->memory && m->n_calls && m->calls[0].id.len)
        t = chat_memory_find(w->r->memory, w->r->tenant, m->calls[0].id);
    if (!t)
        return FST_OK;
    enum fst_status rc = chat_turn_matches(t, m, done);
    if (rc == FST_OK)
        chat_memory_count(w->r->memory, *done);
    if (t->start == CHAT_START_REASONING && !with_thoughts) {
        from = t->n_thought;
        *done &= from > 0; /* thoughts that never ended have nothing behind them */
    }
    if (rc < 0 || !*done) {
        chat_turn_unref(t);
        return rc;
    }
    if (t->start != CHAT_START_REASONING && with_thoughts)
        put_think(w, false); /* it was written with thinking off, or its call was opened for it */
    if (t->start == CHAT_START_BLOCK || t->start == CHAT_START_CALL)
        put(w, "\n\n" PROTOCOL_CALLS_OPEN);
    if (t->start == CHAT_START_CALL) {
        put(w, PROTOCOL_INVOKE_OPEN);
        put_str(w, m->calls[0].name);
        put(w, PROTOCOL_INVOKE_GO);
    }
    w->in_think = w->is_open = false;
    return put_run(w, t, from);
}

static enum fst_status put_assistant(struct render *w, size_t i)
{
    const struct turn *t = &w->turns[i];
    const struct chat_message *m = t->m[0];
    bool after_task = i > 0 && w->turns[i - 1].task != CHAT_TASK_NONE;
    bool with_thoughts = w->thinking && !after_task && (!w->drop || (ptrdiff_t)i > w->last_user);
    bool is_continued = !w->r->reference && w->r->continue_final && i + 1 == w->n_turns;

    /* Two assistant messages in a row, or one before any user: the reference encoder writes no
     * header; the official request converter (deepseek-recipe) does, and so does the prompt that
     * the reply was made from. */
    if (!w->r->reference && !w->is_open)
        put_header(w, with_thoughts);
    if (!w->r->reference && !is_continued && !t->wo_eos && !after_task) {
        bool done;
        FST_TRY(put_sampled(w, m, with_thoughts, &done));
        if (done)
            return FST_OK;
    }
    if (is_continued)
        put_continued(w, m, with_thoughts);
    else {
        if (with_thoughts) {
            if (!t->no_reasoning)
                put_str(w, m->reasoning);
            put_think(w, false);
        }
        put_parts(w, m, "", "");
    }
    if (m->n_calls)
        FST_TRY(put_calls(w, m));
    if (!t->wo_eos && !is_continued) {
        put(w, PROTOCOL_EOS);
        w->is_open = false;
    }
    return FST_OK;
}

static enum fst_status put_body(struct render *w, size_t i)
{
    const struct turn *t = &w->turns[i];

    switch (t->role) {
    case CHAT_SYSTEM:
        for (size_t k = 0, n = 0; k < t->n_m; k++) {
            if (!has_text(t->m[k]))
                continue;
            if (n++)
                put(w, "\n\n");
            put_parts(w, t->m[k], "", "");
        }
        put_tools(w, t);
        return FST_OK;
    case CHAT_DEVELOPER:
        if (!has_text(t->m[0]))
            return fst_error(FST_EINVAL, "messages: a developer message must have content");
        put_user_tag(w);
        put_parts(w, t->m[0], "\n\n", "");
        put_tools(w, t);
        return FST_OK;
    case CHAT_USER:
        put_user(w, t);
        return FST_OK;
    case CHAT_ASSISTANT:
        return put_assistant(w, i);
    case CHAT_LATEST_REMINDER:
        put(w, PROTOCOL_LATEST_REMINDER);
        put_parts(w, t->m[0], "\n\n", "");
        return FST_OK;
    case CHAT_TOOL:
        break;
    }
    FST_ASSERT(false);
    return FST_EINTERNAL;
}

/* ---- transitions ---------------------------------------------------------------------------- */

static const char *const task_tags[] = {
    "",
    PROTOCOL_TAG("action"),
    PROTOCOL_TAG("query"),
    PROTOCOL_TAG("authority"),
    PROTOCOL_TAG("domain"),
    PROTOCOL_TAG("title"),
    PROTOCOL_TAG("read_url"),
};

static void put_transition(struct render *w, size_t i)
{
    const struct turn *t = &w->turns[i];
    bool is_last = i + 1 == w->n_turns;

    if (!is_last && w->turns[i + 1].role != CHAT_ASSISTANT &&
        w->turns[i + 1].role != CHAT_LATEST_REMINDER)
        return;
    if (is_last && !w->r->reference && !w->r->generation_prompt)
        return;
    if (t->task == CHAT_TASK_ACTION) {
        put_header(w, w->thinking);
        put(w, task_tags[t->task]);
    } else if (t->task != CHAT_TASK_NONE) {
        put(w, task_tags[t->task]);
        w->is_open = true;
    } else if (t->role == CHAT_USER || t->role == CHAT_DEVELOPER)
        put_header(w, w->thinking && (!w->drop || (ptrdiff_t)i >= w->last_user));
}

/* ---- messages to turns ---------------------------------------------------------------------- */

static struct turn *new_turn(struct render *w, enum chat_role role, const struct chat_message *m)
{
    struct turn *t = chat_grow(w->r, w->turns, w->n_turns, sizeof *t);
    const struct chat_message **list = arena_calloc(&w->r->arena, 1, sizeof *list);

    if (!t || !list) {
        w->failed = true;
        return NULL;
    }
    w->turns = t;
    t += w->n_turns++;
    *list = m;
    *t = (struct turn){.role = role, .m = list, .n_m = m ? 1 : 0};
    if (m) {
        t->task = m->task;
        t->wo_eos = m->wo_eos;
        t->tools = m->tools;
        t->n_tools = m->n_tools;
        t->response_format = m->response_format;
    }
    return t;
}

static void add_block(struct render *w, struct turn *t, enum block_kind kind,
                      const struct chat_message *m)
{
    struct block *b;

    if (!t)
        return;
    b = chat_grow(w->r, t->blocks, t->n_blocks, sizeof *b);
    if (!b) {
        w->failed = true;
        return;
    }
    t->blocks = b;
    b[t->n_blocks++] = (struct block){kind, m};
}

static void add_user(struct render *w, const struct chat_message *m, bool is_result)
{
    struct turn *t = w->n_turns ? &w->turns[w->n_turns - 1] : NULL;
    bool joins = t && t->role == CHAT_USER && (is_result || t->task == CHAT_TASK_NONE);

    if (!joins) {
        t = new_turn(w, CHAT_USER, m);
        if (!t)
            return;
        t->n_m = 0; /* its text is in the blocks */
        t->tools = NULL;
        t->n_tools = 0;
        t->response_format = (struct chat_str){0};
        if (is_result)
            t->task = CHAT_TASK_NONE;
    } else if (!is_result && !w->r->reference)
        t->task = m->task; /* the reference encoder forgets it here */
    add_block(w, t, is_result ? BLOCK_RESULT : BLOCK_TEXT, m);
}

static void join_system(struct render *w, struct turn *t, const struct chat_message *m)
{
    const struct chat_message **list = arena_calloc(&w->r->arena, t->n_m + 1, sizeof *list);

    if (!list) {
        w->failed = true;
        return;
    }
    memcpy(list, t->m, t->n_m * sizeof *list);
    list[t->n_m++] = m;
    t->m = list;
    if (!t->n_tools) {
        t->tools = m->tools;
        t->n_tools = m->n_tools;
    }
    if (!t->response_format.len)
        t->response_format = m->response_format;
}

static void add_turns(struct render *w)
{
    const struct chat_request *r = w->r;

    for (size_t i = 0; i < r->n_messages && !w->failed; i++) {
        const struct chat_message *m = &r->messages[i];
        bool is_system = m->role == CHAT_SYSTEM || m->role == CHAT_DEVELOPER;

        if (m->role == CHAT_USER || m->role == CHAT_TOOL)
            add_user(w, m, m->role == CHAT_TOOL);
        else if (!is_system || r->reference)
            new_turn(w, m->role, m);
        else if (w->n_turns == 0)
            new_turn(w, CHAT_SYSTEM, m);
        else if (w->n_turns == 1 && w->turns[0].role == CHAT_SYSTEM)
            join_system(w, &w->turns[0], m);
        else
            add_user(w, m, false);
    }
}

/* What the request says apart from its messages. */
static enum fst_status add_request(struct render *w)
{
    struct chat_request *r = w->r;
    bool with_tools = r->n_tools && r->tool_choice != CHAT_TOOLS_NONE;
    struct turn *first;

    if ((with_tools || r->response_format.len) &&
        (w->n_turns == 0 || w->turns[0].role != CHAT_SYSTEM)) {
        if (!new_turn(w, CHAT_SYSTEM, NULL))
            return FST_OK;
        struct turn made = w->turns[w->n_turns - 1];
        memmove(w->turns + 1, w->turns, (w->n_turns - 1) * sizeof *w->turns);
        w->turns[0] = made;
    }
    first = w->turns;
    if (r->tool_choice == CHAT_TOOLS_NONE && !r->reference)
        for (size_t i = 0; i < w->n_turns; i++)
            w->turns[i].n_tools = 0;
    if (with_tools) {
        first->tools = r->tools;
        first->n_tools = r->n_tools;
    }
    if (r->response_format.len)
        first->response_format = r->response_format;
    if (r->task != CHAT_TASK_NONE) {
        size_t i = w->n_turns;
        while (i > 0 && w->turns[i - 1].role != CHAT_USER && w->turns[i - 1].role != CHAT_DEVELOPER)
            i--;
        if (i == 0)
            return fst_error(FST_EINVAL, "task: needs a user message");
        w->turns[i - 1].task = r->task;
    }
    return FST_OK;
}

/* A call's id or a tool result, with its place. */
struct ranked {
    struct chat_str id;
    size_t rank;
    const struct chat_message *m;
};

static int by_id(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    int c = memcmp(x->id.data, y->id.data, FST_MIN(x->id.len, y->id.len));

    if (c == 0)
        c = (x->id.len > y->id.len) - (x->id.len < y->id.len);
    return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Index of the last call with this id; 0 when there is none. */
static size_t rank_of(const struct ranked *calls, size_t n, struct chat_str id)
{
    struct ranked key = {.id = id, .rank = SIZE_MAX};
    size_t lo = 0, hi = n;

    while (lo < hi) { /* the first that sorts behind (id, SIZE_MAX) */
        size_t mid = (lo + hi) / 2;
        if (by_id(&calls[mid], &key) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0 || calls[lo - 1].id.len != id.len ||
        memcmp(calls[lo - 1].id.data, id.data, id.len) != 0)
        return 0;
    return calls[lo - 1].rank;
}

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank > y->rank ? 1 : -1;
    return x->m > y->m ? 1 : -1; /* messages lie in one array, in order */
}

/* Tool results of one user turn in the order of the calls they answer; texts stay where they are. */
static void sort_results(struct render *w, struct turn *t, const struct chat_message *caller)
{
    struct ranked *calls, *results;
    size_t n = 0, n_calls = 0;

    if (!caller)
        return;
    calls = arena_calloc(&w->r->arena, caller->n_calls, sizeof *calls);
    results = arena_calloc(&w->r->arena, t->n_blocks, sizeof *results);
    if (!calls || !results) {
        w->failed = true;
        return;
    }
    for (size_t i = 0; i < caller->n_calls; i++)
        if (caller->calls[i].id.len)
            calls[n_calls++] = (struct ranked){.id = caller->calls[i].id, .rank = i};
    qsort(calls, n_calls, sizeof *calls, by_id);
    for (size_t i = 0; i < t->n_blocks; i++)
        if (t->blocks[i].kind == BLOCK_RESULT) {
            const struct chat_message *m = t->blocks[i].m;
            size_t rank = m->tool_call_id.len ? rank_of(calls, n_calls, m->tool_call_id) : 0;
            results[n++] = (struct ranked){.rank = rank, .m = m};
        }
    qsort(results, n, sizeof *results, by_rank);
    for (size_t i = 0, k = 0; i < t->n_blocks; i++)
        if (t->blocks[i].kind == BLOCK_RESULT)
            t->blocks[i].m = results[k++].m;
}

static void find_last_user(struct render *w)
{
    w->last_user = -1;
    for (size_t i = 0; i < w->n_turns; i++)
        if (w->turns[i].role == CHAT_USER || w->turns[i].role == CHAT_DEVELOPER)
            w->last_user = (ptrdiff_t)i;
}

static void arrange(struct render *w)
{
    const struct chat_message *caller = NULL;
    bool any_tools = false;
    size_t n = 0;

    for (size_t i = 0; i < w->n_turns; i++) {
        struct turn *t = &w->turns[i];
        if (t->role == CHAT_ASSISTANT && t->m[0]->n_calls)
            caller = t->m[0];
        if (t->role == CHAT_USER)
            sort_results(w, t, caller);
        any_tools |= t->n_tools > 0;
    }
    w->drop = w->r->drop_thinking && !any_tools;
    find_last_user(w);
    if (!w->thinking || !w->drop)
        return;
    for (size_t i = 0; i < w->n_turns; i++) {
        struct turn t = w->turns[i];
        if ((ptrdiff_t)i < w->last_user) {
            if (t.role == CHAT_DEVELOPER)
                continue;
            t.no_reasoning = true;
        }
        w->turns[n++] = t;
    }
    w->n_turns = n;
    find_last_user(w);
}

/* Lines of the system text that change with every request: see noise.c. */
static void quiet(struct render *w)
{
    struct chat_request *r = w->r;
    struct turn *system = w->turns, *last = w->last_user < 0 ? NULL : &w->turns[w->last_user];
    struct buf lines = {0};
    struct chat_message *m;

    if (r->reference || system->role != CHAT_SYSTEM)
        return;
    for (size_t k = 0; r->d.drop_billing_line && k < system->n_m; k++) {
        system->m[k] = noise_without_billing(r, system->m[k]);
        if (has_text(system->m[k]))
            break;
    }
    if (!r->d.move_date_lines || !last || last->role != CHAT_USER)
        return;
    for (size_t k = 0; k < system->n_m; k++)
        system->m[k] = noise_without_dates(r, system->m[k], &lines);
    if (lines.len && !lines.failed) {
        m = arena_calloc(&r->arena, 1, sizeof *m);
        if (m) {
            m->role = CHAT_USER;
            chat_add_text(r, m, lines.data, lines.len - 1);
            add_block(w, last, BLOCK_TEXT, m);
        }
        w->failed |= !m;
    }
    w->failed |= lines.failed;
    buf_release(&lines);
}

/* ---- the whole prompt ----------------------------------------------------------------------- */

static const char *effort_text(const struct chat_request *r)
{
    bool official = r->d.profile == CHAT_PROFILE_OFFICIAL;

    if (r->effort == CHAT_EFFORT_MAX)
        return official ? PROTOCOL_EFFORT_BEYOND : PROTOCOL_EFFORT_ABSOLUTE;
    if (r->effort == CHAT_EFFORT_HIGH && official)
        return PROTOCOL_EFFORT_ABSOLUTE;
    return "";
}

/* What a server adds at the end, so that the assistant speaks. */
static void put_server_end(struct render *w)
{
    const struct chat_request *r = w->r;
    const struct turn *last = &w->turns[w->n_turns - 1];
    bool forced = r->tool_choice == CHAT_TOOLS_REQUIRED || r->tool_choice == CHAT_TOOLS_NAMED;

    if (r->continue_final || !r->generation_prompt)
        return;
    if (!w->is_open && !last->wo_eos)
        put_header(w, w->thinking);
    if (!forced || last->task != CHAT_TASK_NONE || w->in_think)
        return; /* behind thoughts the grammar asks for the calls */
    put(w, "\n\n" PROTOCOL_CALLS_OPEN);
    w->p->start = CHAT_START_BLOCK;
    if (r->tool_choice == CHAT_TOOLS_NAMED) {
        put(w, PROTOCOL_INVOKE_OPEN);
        put_str(w, r->tool_name);
        put(w, PROTOCOL_INVOKE_GO);
        w->p->start = CHAT_START_CALL;
        w->p->start_name = r->tool_name;
    }
}

static bool any_tools(const struct render *w)
{
    for (size_t i = 0; i < w->n_turns; i++)
        if (w->turns[i].n_tools)
            return true;
    return false;
}

static enum fst_status no_memory(void)
{
    return fst_error(FST_ENOMEM, "no memory for a prompt");
}

enum fst_status chat_render(struct chat_prompt *p, struct chat_request *r)
{
    struct render w = {.p = p, .r = r, .thinking = r->thinking};

    *p = (struct chat_prompt){0};
    if (r->failed)
        return no_memory();
    w.all_template = r->d.special_in_content;
    add_turns(&w);
    if (w.failed)
        return no_memory();
    FST_TRY(add_request(&w));
    if (w.failed || r->failed)
        return no_memory();
    if (w.n_turns == 0)
        return fst_error(FST_EINVAL, "Messages cannot be empty.");
    arrange(&w);
    quiet(&w);
    if (w.failed || r->failed)
        return no_memory();
    p->tools_on = any_tools(&w) && r->tool_choice != CHAT_TOOLS_NONE;
    if (r->add_bos)
        put(&w, PROTOCOL_BOS);
    if (w.thinking)
        put(&w, effort_text(r));
    for (size_t i = 0; i < w.n_turns; i++) {
        FST_TRY(put_body(&w, i));
        if (!(i + 1 == w.n_turns && !r->reference && r->continue_final))
            put_transition(&w, i);
    }
    if (!r->reference)
        put_server_end(&w);
    if (p->start == CHAT_START_CONTENT && w.in_think)
        p->start = CHAT_START_REASONING;
    return w.failed || r->failed || p->text.failed || p->allowed.failed ? no_memory() : FST_OK;
}
