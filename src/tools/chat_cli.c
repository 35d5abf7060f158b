/* chat_cli.c - `firesteel chat`: a conversation in the terminal.
 *
 * One message a line.  On a terminal lines are edited and kept in a history file; from a
 * pipe they are read as they come, so that a script can talk.  Ctrl-C ends the answer, not the
 * program. */
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
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
    {.name = "stats", .type = OPTION_FLAG, .initial = "true", .help = "speed after each answer"},
};

struct turn {
    bool user;
    char *text, *reasoning; /* owned */
};

struct chat {
    fst_engine *e;
    struct fst_engine_info info;
    struct tokenizer *t;
    struct chat_defaults d;
    char *system;       /* owned */
    struct turn *turns; /* owned */
    size_t n, cap;
    bool thinking, color, stats;
    enum chat_effort effort;
    int64_t max_tokens;
    struct fst_sampling sampling;
    /* The answer under way. */
    struct buf text, reasoning;
    bool in_reasoning;
    /* Totals for /stats. */
    uint64_t answers, tokens;
    double decode_s;
    struct fst_spec_stats spec;
};

static bool add_turn(struct chat *c, bool user, const char *text, const char *reasoning)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 16;
        struct turn *more = mem_realloc(c->turns, cap * sizeof *more);
        if (!more)
            return false;
        c->turns = more;
        c->cap = cap;
    }
    struct turn *t = &c->turns[c->n];
    *t = (struct turn){user, mem_strdup(text), mem_strdup(reasoning)};
    if (!t->text || !t->reasoning)
        return false;
    c->n++;
    return true;
}

static void drop_turns(struct chat *c, size_t to)
{
    while (c->n > to) {
        c->n--;
        mem_free(c->turns[c->n].text);
        mem_free(c->turns[c->n].reasoning);
    }
}

static void shade(struct chat *c, bool dim)
{
    if (c->color && dim != c->in_reasoning)
        fputs(dim ? "\033[2m" : "\033[0m", stdout);
    c->in_reasoning = dim;
}

static void on_event(void *ud, const struct chat_event *e)
{
    struct chat *c = ud;
    if (e->type == CHAT_EVENT_REASONING) {
        shade(c, true);
        buf_append(&c->reasoning, e->text, e->len);
    } else if (e->type == CHAT_EVENT_CONTENT) {
        if (c->in_reasoning) {
            shade(c, false);
            fputs("\n\n", stdout);
        }
        buf_append(&c->text, e->text, e->len);
    } else {
        return;
    }
    fwrite(e->text, 1, e->len, stdout);
    fflush(stdout);
}

static void build(struct chat *c, struct chat_request *r)
{
    chat_request_init(r, &c->d);
    r->thinking = c->thinking;
    r->effort = c->effort;
    if (c->system && c->system[0]) {
        struct chat_message *m = chat_add_message(r, CHAT_SYSTEM);
        chat_add_text(r, m, c->system, strlen(c->system));
    }
    for (size_t i = 0; i < c->n; i++) {
        const struct turn *t = &c->turns[i];
        struct chat_message *m = chat_add_message(r, t->user ? CHAT_USER : CHAT_ASSISTANT);
        chat_add_text(r, m, t->text, strlen(t->text));
        if (!t->user && t->reasoning[0])
            chat_set_reasoning(r, m, t->reasoning, strlen(t->reasoning));
    }
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
    buf_reset(&c->text);
    buf_reset(&c->reasoning);
    build(c, &r);
    enum fst_status rc = chat_render(&p, &r);
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
    if (req)
        fst_request_free(req);
    chat_stream_free(st);
    tokenizer_ids_release(&ids);
    chat_prompt_release(&p);
    chat_request_release(&r);
    return rc;
}

static enum fst_status say(struct chat *c, const char *text)
{
    size_t before = c->n;
    if (!add_turn(c, true, text, ""))
        return fst_error(FST_ENOMEM, "out of memory");
    enum fst_status rc = answer(c);
    if (rc < 0) {
        drop_turns(c, before);
        return rc;
    }
    if (!add_turn(c, false, buf_str(&c->text), buf_str(&c->reasoning)))
        return fst_error(FST_ENOMEM, "out of memory");
    return FST_OK;
}

static void help(void)
{
    puts("/think /nothink    thinking on or off\n"
         "/effort E          low, high, max, default\n"
         "/system TEXT       system prompt (a new conversation begins)\n"
         "/new               forget the conversation\n"
         "/stats             speed and acceptance so far\n"
         "/quit              end (also Ctrl-D)\n"
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

/* Returns false to quit. */
static bool command(struct chat *c, const char *line)
{
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
        return false;
    if (!strcmp(line, "/help")) {
        help();
    } else if (!strcmp(line, "/think") || !strcmp(line, "/nothink")) {
        c->thinking = line[1] == 't';
        printf("thinking is %s\n", c->thinking ? "on" : "off");
    } else if (!strncmp(line, "/effort ", 8)) {
        if (!strcmp(line + 8, "default"))
            c->effort = CHAT_EFFORT_DEFAULT;
        else if (!chat_effort_parse(line + 8, &c->thinking, &c->effort))
            puts("low, high, max and default are known");
    } else if (!strncmp(line, "/system", 7) && (line[7] == ' ' || !line[7])) {
        mem_free(c->system);
        c->system = mem_strdup(line[7] ? line + 8 : "");
        drop_turns(c, 0);
        puts("system prompt set, a new conversation begins");
    } else if (!strcmp(line, "/new")) {
        drop_turns(c, 0);
        puts("a new conversation begins");
    } else if (!strcmp(line, "/stats")) {
        stats(c);
    } else {
        printf("unknown command %s; /help lists them\n", line);
    }
    fflush(stdout);
    return true;
}

/* Returns false to quit. */
static bool one_line(struct chat *c, char *line, int *status)
{
    size_t n = strlen(line);
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        line[--n] = 0;
    if (!n)
        return true;
    if (line[0] == '/')
        return command(c, line);
    enum fst_status rc = say(c, line);
    if (rc < 0) {
        *status = tool_fail(rc);
        /* A message that does not fit or cannot be rendered is no reason to leave. */
        return rc == FST_EINVAL;
    }
    return true;
}

static void from_terminal(struct chat *c, int *status)
{
    char path[4096] = "";
    const char *home = getenv("HOME");
    if (home)
        snprintf(path, sizeof path, "%s/.firesteel_history", home);
    struct edit *e = edit_open(path);
    if (!e)
        return;
    puts("firesteel chat: /help for commands, Ctrl-D to end");
    for (bool more = true; more;) {
        bool interrupted;
        const char *line = edit_line(e, tool_interrupted, &interrupted);
        if (interrupted) { /* Ctrl-C at the prompt: a fresh line */
            putchar('\n');
            continue;
        }
        char *copy = line ? mem_strdup(line) : NULL;
        if (!copy)
            break;
        more = one_line(c, copy, status);
        mem_free(copy);
    }
    edit_close(e);
}

static void from_pipe(struct chat *c, int *status)
{
    char *line = NULL;
    size_t cap = 0;
    bool more = true;
    while (more && getline(&line, &cap, stdin) > 0)
        more = one_line(c, line, status);
    free(line); /* getline's own */
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
        return fst_error(FST_ENOMEM, "out of memory");
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
    drop_turns(&c, 0);
    mem_free(c.turns);
    mem_free(c.system);
    buf_release(&c.text);
    buf_release(&c.reasoning);
    options_free(o);
    return status;
}
