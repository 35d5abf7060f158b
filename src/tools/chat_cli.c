/* chat_cli.c - `firesteel chat`: a conversation in the terminal.
 *
 * One message a line, or several lines (read_message).  On a terminal lines are edited and kept in a
 * history file; from a pipe they are read as they come, so that a script can talk.  Ctrl-C ends the
 * answer, not the program.  Calls of tools are shown, and what is typed next are their results. */
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "tools/chat_turns.h"
#include "tools/edit.h"
#include "tools/tool.h"

static const struct option_def defs[] = {
    {.name = "thinking",
     .type = OPTION_WORD,
     .initial = "on",
     .words = "off on",
     .help = "let the model think before it answers"},
    {.name = "reasoning-effort",
     .alias = "effort",
     .type = OPTION_TEXT,
     .arg = "E",
     .help = "low, high or max"},
    {.name = "system", .alias = "sys", .type = OPTION_TEXT, .arg = "TEXT", .help = "system prompt"},
    {.name = "max-tokens",
     .alias = "tokens n",
     .type = OPTION_INT,
     .initial = "50000",
     .min = 1,
     .max = 1e12,
     .help = "at most so many tokens per answer"},
    {.name = "temperature",
     .alias = "temp",
     .type = OPTION_FLOAT,
     .initial = "1",
     .min = 0,
     .max = 100,
     .help = "0 is greedy"},
    {.name = "top-p", .type = OPTION_FLOAT, .initial = "1", .min = 1e-6, .max = 1, .help = "1 off"},
    {.name = "seed", .type = OPTION_TEXT, .arg = "S", .help = "same seed, same answers"},
    {.name = "prompt",
     .alias = "p",
     .type = OPTION_TEXT,
     .arg = "TEXT",
     .help = "answer this and end"},
    {.name = "tools",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "JSON: tools in OpenAI's form, a list or an object with one"},
    {.name = "stats", .type = OPTION_FLAG, .initial = "true", .help = "speed after each answer"},
};

struct chat {
    fst_engine *e;
    struct fst_engine_info info;
    struct tokenizer *t;
    struct chat_defaults d;
    char *system; /* owned */
    struct turns turns;
    struct json_doc *tools; /* {"tools": [..]}, owned; NULL: none */
    struct buf attached;    /* goes before the next message */
    bool thinking, color, stats;
    enum chat_effort effort;
    int64_t max_tokens;
    struct fst_sampling sampling;
    /* The answer under way. */
    bool is_dim, has_text, failed;
    /* Totals for /stats. */
    uint64_t answers, tokens;
    double decode_s;
    struct fst_spec_stats spec;
};

static json_val *tools_of(const struct chat *c)
{
    return c->tools ? json_get(json_root(c->tools), "tools") : NULL;
}

/* ------------------------------------------------------------------ an answer */

static void shade(struct chat *c, bool dim)
{
    if (c->color && dim != c->is_dim)
        fputs(dim ? "\033[2m" : "\033[0m", stdout);
    c->is_dim = dim;
}

/* Thoughts are dim, and a line apart from what follows them; so are calls. */
static void section(struct chat *c, bool dim)
{
    bool apart = c->has_text && c->is_dim && !dim;
    shade(c, dim);
    if (apart)
        fputs("\n\n", stdout);
    c->has_text = true;
}

static void on_event(void *ud, const struct chat_event *e)
{
    struct chat *c = ud;
    c->failed |= !turns_event(&c->turns, e);
    switch (e->type) {
    case CHAT_EVENT_REASONING:
        section(c, true);
        fwrite(e->text, 1, e->len, stdout);
        break;
    case CHAT_EVENT_CONTENT:
        section(c, false);
        fwrite(e->text, 1, e->len, stdout);
        break;
    case CHAT_EVENT_CALL_BEGIN:
        if (c->has_text)
            fputs(c->is_dim ? "\n\n" : "\n", stdout);
        shade(c, false);
        c->has_text = true;
        printf("call %s ", e->name);
        break;
    case CHAT_EVENT_CALL_ARGS:
        fwrite(e->text, 1, e->len, stdout);
        break;
    case CHAT_EVENT_CALL_END:
        break;
    case CHAT_EVENT_CALL_CANCEL:
        fputs(" (cut off)", stdout);
        break;
    }
    fflush(stdout);
}

static void build(struct chat *c, struct chat_request *r)
{
    json_val *tools = tools_of(c);
    chat_request_init(r, &c->d);
    r->thinking = c->thinking;
    r->effort = c->effort;
    if (c->system && c->system[0]) {
        struct chat_message *m = chat_add_message(r, CHAT_SYSTEM);
        chat_add_text(r, m, c->system, strlen(c->system));
    }
    turns_put(&c->turns, r);
    for (size_t i = 0; i < json_count(tools); i++)
        chat_add_tool_json(r, json_get(json_at(tools, i), "function"));
}

static enum fst_status no_memory(void)
{
    return fst_error(FST_ENOMEM, "out of memory");
}

static enum fst_status follow(struct chat *c, fst_request *req, struct chat_stream *st)
{
    struct fst_request_view v;
    enum fst_status rc = tool_follow(req, st, &v);
    tool_interrupted(true); /* Ctrl-C ended the answer, not the program */
    shade(c, false);
    if (rc < 0)
        return rc;
    size_t n = (size_t)chat_stream_result(st)->n_tokens;
    c->answers++;
    c->tokens += n;
    c->decode_s += v.decode_s;
    c->spec.verify_steps += v.spec.verify_steps;
    c->spec.accepted += v.spec.accepted;
    c->spec.drafted += v.spec.drafted;
    fputs("\n", stdout);
    fflush(stdout);
    if (c->stats) {
        fprintf(stderr, "%s[%zu tokens, %.1f tok/s", c->color ? "\033[2m" : "", n,
                tool_decode_rate(&v, n));
        if (v.spec.verify_steps)
            fprintf(stderr, ", accept length %.2f", v.spec.accept_length);
        fprintf(stderr, "%s]%s\n",
                v.finish == FST_FINISH_ABORT    ? ", stopped"
                : v.finish == FST_FINISH_LENGTH ? ", out of tokens"
                                                : "",
                c->color ? "\033[0m" : "");
    }
    return FST_OK;
}

static enum fst_status answer(struct chat *c)
{
    struct chat_request r;
    struct chat_prompt p = {0};
    struct tokenizer_ids ids = {0};
    struct chat_stream *st = NULL;
    fst_request *req = NULL;
    struct chat_stream_opts so = {0};
    struct fst_request_opts ro;
    build(c, &r);
    enum fst_status rc = chat_render(&p, &r);
    c->has_text = c->failed = false;
    if (rc == FST_OK && !turns_add(&c->turns, CHAT_ASSISTANT, "", NULL))
        rc = no_memory();
    if (rc == FST_OK)
        rc = chat_encode(&p, c->t, &ids);
    if (rc == FST_OK) {
        chat_stream_opts_init(&so, c->t, &r, &p);
        so.parser.event = on_event;
        so.parser.ud = c;
        rc = chat_stream_new(&st, &so);
    }
    if (rc == FST_OK) {
        fst_request_opts_default(&ro);
        ro.ids = ids.id;
        ro.n_ids = ids.n;
        ro.max_new_tokens = c->max_tokens;
        ro.sampling = c->sampling;
        rc = fst_request_submit(c->e, &ro, &req);
    }
    tool_interrupted(true);
    if (rc == FST_OK)
        rc = follow(c, req, st);
    if (rc == FST_OK && c->failed)
        rc = no_memory();
    if (req)
        fst_request_free(req);
    chat_stream_free(st);
    tokenizer_ids_release(&ids);
    chat_prompt_release(&p);
    chat_request_release(&r);
    return rc;
}

/* A message, or the result of the call that waits for one; answered once no call waits. */
static enum fst_status say(struct chat *c, const char *text)
{
    const struct turn_call *call = turns_pending(&c->turns);
    size_t before = c->turns.n;
    bool ok;
    if (call) {
        ok = turns_add(&c->turns, CHAT_TOOL, text, call->id);
    } else {
        buf_puts(&c->attached, text);
        ok = !c->attached.failed && turns_add(&c->turns, CHAT_USER, buf_str(&c->attached), NULL);
        buf_reset(&c->attached);
    }
    enum fst_status rc = !ok ? no_memory() : turns_pending(&c->turns) ? FST_OK : answer(c);
    if (rc < 0)
        turns_drop(&c->turns, before);
    return rc;
}

/* ------------------------------------------------------------------ commands */

static void help(void)
{
    puts("/think /nothink    thinking on or off\n"
         "/effort E          low, high, max, default\n"
         "/system TEXT       system prompt (a new conversation begins)\n"
         "/tools FILE        tools that may be called (JSON); /tools off; /tools lists them\n"
         "/read FILE         its text goes before the next message\n"
         "/save FILE         the conversation as JSON, for `render` and `generate --messages`\n"
         "/new               forget the conversation\n"
         "/stats             speed and acceptance so far\n"
         "/quit              end (also Ctrl-D)\n"
         "A line that ends in \\ goes on in the next; \"\"\" alone on a line begins and ends "
         "several.\n"
         "Ctrl-C stops the answer.");
}

static void stats(const struct chat *c)
{
    printf("%llu answers, %llu tokens, %.1f tok/s", (unsigned long long)c->answers,
           (unsigned long long)c->tokens, c->decode_s > 0 ? (double)c->tokens / c->decode_s : 0.0);
    if (c->spec.verify_steps)
        printf(", accept length %.2f",
               (double)(c->spec.accepted + c->spec.verify_steps) / (double)c->spec.verify_steps);
    printf(", kernels %s, draft %s\n", c->info.kernels,
           c->info.gamma > 0 ? c->info.spec_algorithm : "none");
}

/* Tools of a file: a list, or an object with one, as chats send them. */
static enum fst_status load_tools(struct chat *c, const char *path)
{
    struct buf file = {0}, body = {0};
    struct json_doc *given = NULL, *doc = NULL;
    struct chat_request r;
    enum fst_status rc = file_read(&file, path, 0);
    if (rc == FST_OK)
        rc = json_parse(&given, buf_str(&file), file.len);
    if (rc == FST_OK) {
        json_val *root = json_root(given), *list = json_get(root, "tools");
        buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tools\":");
        json_put(&body, list ? list : root, JSON_COMPACT);
        buf_putc(&body, '}');
        rc = body.failed ? no_memory() : json_parse(&doc, body.data, body.len);
    }
    if (rc == FST_OK) {
        rc = chat_request_from_json(&r, json_root(doc), NULL);
        chat_request_release(&r);
    }
    if (rc == FST_OK) {
        json_free(c->tools);
        c->tools = doc;
        doc = NULL;
    }
    json_free(doc);
    json_free(given);
    buf_release(&file);
    buf_release(&body);
    return rc;
}

static enum fst_status set_tools(struct chat *c, const char *what)
{
    if (!strcmp(what, "off")) {
        json_free(c->tools);
        c->tools = NULL;
    } else if (*what) {
        FST_TRY(load_tools(c, what));
    }
    json_val *tools = tools_of(c);
    if (!json_count(tools))
        puts("no tools");
    for (size_t i = 0; i < json_count(tools); i++) {
        json_val *f = json_get(json_at(tools, i), "function");
        const char *about = json_string(json_get(f, "description"), NULL);
        printf("%s%s%s\n", json_string(json_get(f, "name"), NULL), about ? ": " : "",
               about ? about : "");
    }
    return FST_OK;
}

static enum fst_status attach(struct chat *c, const char *path)
{
    enum { TEXT_MAX = 16 << 20 };
    FST_TRY(file_read(&c->attached, path, TEXT_MAX));
    buf_puts(&c->attached, "\n\n");
    printf("%zu bytes go before the next message\n", c->attached.len - 2);
    return FST_OK;
}

static enum fst_status save(const struct chat *c, const char *path)
{
    struct buf b = {0};
    turns_json(&c->turns, c->system, tools_of(c), c->thinking, &b);
    enum fst_status rc = b.failed ? no_memory() : file_write(path, b.data, b.len);
    buf_release(&b);
    if (rc == FST_OK)
        printf("%zu messages are in %s\n", c->turns.n, path);
    return rc;
}

/* What follows a command's word; NULL when the line is no such command. */
static const char *argument(const char *line, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(line, word, n) != 0 || (line[n] && line[n] != ' '))
        return NULL;
    return line + n + strspn(line + n, " ");
}

/* Returns false to quit.  What a command cannot do is said, and no reason to leave. */
static bool command(struct chat *c, const char *line)
{
    enum fst_status rc = FST_OK;
    const char *arg;
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
        return false;
    if (!strcmp(line, "/help")) {
        help();
    } else if (!strcmp(line, "/think") || !strcmp(line, "/nothink")) {
        c->thinking = line[1] == 't';
        printf("thinking is %s\n", c->thinking ? "on" : "off");
    } else if ((arg = argument(line, "/effort"))) {
        if (!strcmp(arg, "default"))
            c->effort = CHAT_EFFORT_DEFAULT;
        else if (!chat_effort_parse(arg, &c->thinking, &c->effort))
            puts("low, high, max and default are known");
    } else if ((arg = argument(line, "/system"))) {
        mem_free(c->system);
        c->system = mem_strdup(arg);
        turns_drop(&c->turns, 0);
        puts("system prompt set, a new conversation begins");
    } else if ((arg = argument(line, "/tools"))) {
        rc = set_tools(c, arg);
    } else if ((arg = argument(line, "/read")) && *arg) {
        rc = attach(c, arg);
    } else if ((arg = argument(line, "/save")) && *arg) {
        rc = save(c, arg);
    } else if (!strcmp(line, "/new")) {
        turns_drop(&c->turns, 0);
        buf_reset(&c->attached);
        puts("a new conversation begins");
    } else if (!strcmp(line, "/stats")) {
        stats(c);
    } else {
        printf("unknown command %s; /help lists them\n", line);
    }
    fflush(stdout);
    if (rc < 0)
        tool_fail(rc);
    return true;
}

/* ------------------------------------------------------------------ what is typed */

struct source {
    struct edit *e; /* NULL: standard input as it comes */
    char *line;     /* getline's own */
    size_t cap;
};

static const char *next_line(struct source *s, const char *prompt, bool *interrupted)
{
    *interrupted = false;
    if (s->e)
        return edit_line(s->e, prompt, tool_interrupted, interrupted);
    return getline(&s->line, &s->cap, stdin) > 0 ? s->line : NULL;
}

/* One message: a line; lines of which all but the last end in a backslash; or the lines between two
 * that are \"\"\".  *is_line: it was the first.  False at the end of input or by Ctrl-C. */
static bool read_message(struct source *s, const char *prompt, struct buf *out, bool *is_line,
                         bool *interrupted)
{
    static const char fence[] = "\"\"\"";
    bool fenced = false;
    const char *line = next_line(s, prompt, interrupted);
    buf_reset(out);
    if (!line)
        return false;
    *is_line = true;
    for (size_t at = 0; line; line = next_line(s, "... ", interrupted)) {
        size_t n = strlen(line);
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        bool is_fence = n == sizeof fence - 1 && !memcmp(line, fence, n);
        if (is_fence && fenced)
            return true;
        if (is_fence && *is_line) {
            fenced = true;
        } else {
            bool goes_on = !fenced && n && line[n - 1] == '\\';
            if (at++)
                buf_putc(out, '\n');
            buf_append(out, line, goes_on ? n - 1 : n);
            if (!fenced && !goes_on)
                return true;
        }
        *is_line = false;
    }
    return !*interrupted; /* the input ended within the message */
}

/* Returns false to quit. */
static bool one_message(struct chat *c, const struct buf *m, bool is_line, int *status)
{
    if (m->failed) {
        *status = tool_fail(no_memory());
        return false;
    }
    if (!m->len && !turns_pending(&c->turns)) /* a result may be empty, a message is not */
        return true;
    if (is_line && m->len && m->data[0] == '/')
        return command(c, m->data);
    enum fst_status rc = say(c, buf_str(m));
    if (rc < 0) {
        *status = tool_fail(rc);
        /* A message that does not fit or cannot be rendered is no reason to leave. */
        return rc == FST_EINVAL;
    }
    return true;
}

static void talk(struct chat *c, struct source *s, int *status)
{
    struct buf message = {0};
    bool is_line, interrupted;
    for (bool more = true; more;) {
        const struct turn_call *call = turns_pending(&c->turns);
        char prompt[64] = "> ";
        if (call)
            snprintf(prompt, sizeof prompt, "result of %.40s> ", call->name);
        if (read_message(s, prompt, &message, &is_line, &interrupted))
            more = one_message(c, &message, is_line, status);
        else if (interrupted) /* Ctrl-C at the prompt: a fresh line */
            putchar('\n');
        else
            more = false;
    }
    buf_release(&message);
}

static void from_terminal(struct chat *c, int *status)
{
    char path[4096] = "";
    const char *home = getenv("HOME");
    if (home)
        snprintf(path, sizeof path, "%s/.firesteel_history", home);
    struct source s = {.e = edit_open(path)};
    if (!s.e)
        return;
    puts("firesteel chat: /help for commands, Ctrl-D to end");
    talk(c, &s, status);
    edit_close(s.e);
}

static void from_pipe(struct chat *c, int *status)
{
    struct source s = {0};
    talk(c, &s, status);
    free(s.line);
}

static enum fst_status open_chat(struct chat *c, const struct options *o)
{
    struct fst_engine_opts eo;
    FST_TRY(tool_engine_opts(o, &eo));
    chat_defaults_init(&c->d);
    c->d.profile = chat_profile_detect(eo.model_dir);
    c->thinking = options_word(o, "thinking") == 1;
    c->stats = options_flag(o, "stats");
    c->color = isatty(1) && !getenv("NO_COLOR");
    c->max_tokens = options_int(o, "max-tokens", 50000);
    c->sampling = (struct fst_sampling){.temperature = (float)options_float(o, "temperature", 1),
                                        .top_p = (float)options_float(o, "top-p", 1),
                                        .top_k = -1,
                                        .has_seed = options_is_given(o, "seed")};
    if (c->sampling.has_seed)
        FST_TRY(tool_seed(&c->sampling.seed, "--seed", options_text(o, "seed")));
    const char *effort = options_text(o, "reasoning-effort");
    if (effort && !chat_effort_parse(effort, &c->thinking, &c->effort))
        return fst_error(FST_EINVAL, "--reasoning-effort %s: low, high and max are known", effort);
    if (options_text(o, "system") && !(c->system = mem_strdup(options_text(o, "system"))))
        return no_memory();
    if (options_text(o, "tools"))
        FST_TRY(load_tools(c, options_text(o, "tools")));
    FST_TRY(tool_tokenizer(&c->t, o));
    if (!eo.max_running_requests)
        eo.max_running_requests = 1;
    FST_TRY(tool_engine_open(&c->e, &eo, c->t));
    fst_engine_get_info(c->e, &c->info);
    return FST_OK;
}

int cmd_chat(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Chat", defs), tool_folder_group,
                                          tool_engine_group};
    int status = 0;
    struct options *o = tool_parse("firesteel chat", "[options]", groups, 3, argc, argv, &status);
    if (!o)
        return status;
    struct chat c = {0};
    tool_catch_interrupt();
    enum fst_status rc = open_chat(&c, o);
    const char *prompt = options_text(o, "prompt");
    if (rc == FST_OK && prompt)
        rc = say(&c, prompt);
    if (rc < 0)
        status = tool_fail(rc);
    else if (!prompt && isatty(0) && isatty(1))
        from_terminal(&c, &status);
    else if (!prompt)
        from_pipe(&c, &status);
    fst_engine_close(c.e);
    tokenizer_free(c.t);
    turns_release(&c.turns);
    json_free(c.tools);
    mem_free(c.system);
    buf_release(&c.attached);
    options_free(o);
    return status;
}
