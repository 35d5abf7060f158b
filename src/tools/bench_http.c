/* bench_http.c - `bench http`: what a token costs that no model computes.  Starts `firesteel serve --debug-null-model` on one core,
 * asks it for streams by each route, and divides the time that its threads worked by the tokens: the server's thread (HTTP,
 * JSON, events) and the rest of the engine. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/figures.h"
#include "tools/bench_remote.h"

extern char **environ;

static const struct option_def defs[] = {
    {.name = "max-concurrency",
     .type = OPTION_TEXT,
     .initial = "1,16,64,256",
     .arg = "N[,N...]",
     .help = "streams at once, a row of each"},
    {.name = "num-prompts",
     .alias = "n",
     .type = OPTION_INT,
     .initial = "2",
     .min = 1,
     .max = 1e5,
     .help = "replies a stream, one after the other"},
    {.name = "output-len",
     .type = OPTION_INT,
     .initial = "256",
     .min = 2,
     .max = 1e5,
     .help = "tokens of each"},
    {.name = "step-us",
     .type = OPTION_FLOAT,
     .initial = "1000",
     .min = 1,
     .max = 1e6,
     .arg = "US",
     .help = "what a step takes, as if on a card: shorter ones bring several tokens in an event"},
    {.name = "one-core",
     .type = OPTION_FLAG,
     .initial = "true",
     .help = "the server's threads share one core; the client takes another where there is one"},
};

static const struct {
    enum answer_api api;
    const char *name;
} routes[] = {
    {ANSWER_COMPLETIONS, "completions"}, {ANSWER_CHAT, "chat"}, {ANSWER_GENERATE, "generate"}};

struct job {
    struct bench_remote b;
    const struct options *o;
    pid_t pid;
    int port, core; /* core -1: any */
    struct buf text;
};

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &len) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

/* The last core that this program may use; the rest stays for the client. */
static void take_core(struct job *j, cpu_set_t *rest)
{
    cpu_set_t all;
    j->core = -1;
    if (!options_flag(j->o, "one-core") || sched_getaffinity(0, sizeof all, &all) < 0)
        return;
    *rest = all;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all))
            j->core = i;
    if (CPU_COUNT(&all) > 1)
        CPU_CLR(j->core, rest);
}

static enum fst_status start_server(struct job *j)
{
    char port[16], running[16], us[32], exe[] = "/proc/self/exe";
    const char *model = tool_model_dir(j->o);
    cpu_set_t rest, one;
    if (!model)
        return FST_EMACHINE;
    j->port = free_port();
    snprintf(port, sizeof port, "%d", j->port);
    snprintf(us, sizeof us, "%g", options_float(j->o, "step-us", 1000));
    snprintf(running, sizeof running, "%d", 256);
    const char *args[] = {"firesteel",
                          "serve",
                          "--model",
                          model,
                          "--port",
                          port,
                          "--debug-hooks",
                          "--debug-null-model",
                          us,
                          "--speculative-algorithm",
                          "none",
                          "--disable-radix-cache",
                          "--max-running-requests",
                          running,
                          "--context-length",
                          "8192",
                          "--threads",
                          "1",
                          "--log-level",
                          "error",
                          NULL};

    char *argv[FST_COUNT(args)];
    for (size_t i = 0; i < FST_COUNT(args); i++)
        argv[i] = args[i] ? mem_strdup(args[i]) : NULL;
    take_core(j, &rest);
    /* A child has the cores of the moment in which it was made. */
    if (j->core >= 0) {
        CPU_ZERO(&one);
        CPU_SET(j->core, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    int e = posix_spawn(&j->pid, exe, &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (j->core >= 0)
        sched_setaffinity(0, sizeof rest, &rest);
    for (size_t i = 0; i < FST_COUNT(args); i++)
        mem_free(argv[i]);
    if (e) {
        j->pid = 0;
        return fst_error(FST_EMACHINE, "%s: cannot start: %s", exe, strerror(e));
    }
    return FST_OK;
}

/* Until it listens: from then on the client waits by itself. */
static enum fst_status wait_server(struct job *j, const char *url)
{
    struct http *h;
    struct buf b = {0};
    int status;
    FST_TRY(http_open(&h, url));
    while (http_fetch(h, "/health", NULL, NULL, 1000, &status, &b) < 0) {
        if (waitpid(j->pid, &status, WNOHANG) == j->pid) {
            j->pid = 0;
            http_close(h);
            return fst_error(FST_EMACHINE, "the server did not start; it says why above");
        }
        usleep(20000);
    }
    http_close(h);
    buf_release(&b);
    return FST_OK;
}

static void stop_server(struct job *j)
{
    int status;
    if (j->pid <= 0)
        return;
    kill(j->pid, SIGTERM);
    while (waitpid(j->pid, &status, 0) < 0 && errno == EINTR)
        ;
}

/* ------------------------------------------------------------------ time that threads worked */

struct worked {
    double server_s, rest_s; /* the server's thread is the first; the others */
};

static double thread_s(pid_t pid, const char *tid)
{
    char path[96];
    unsigned long long ns = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%.16s/schedstat", (int)pid, tid);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%llu", &ns) != 1)
        ns = 0;
    if (f)
        fclose(f);
    return (double)ns * 1e-9;
}

static struct worked worked(pid_t pid)
{
    char path[64], first[16];
    struct worked w = {0};
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    snprintf(first, sizeof first, "%d", (int)pid);
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        if (!strcmp(e->d_name, first))
            w.server_s += thread_s(pid, e->d_name);
        else
            w.rest_s += thread_s(pid, e->d_name);
    }
    if (d)
        closedir(d);
    return w;
}

/* ------------------------------------------------------------------ a row */

static void put_body(struct buf *b, enum answer_api api, int64_t n)
{
    static const char prompt[] = "The null model says the same word again and again.";
    const char *more = api == ANSWER_CHAT ? ",\"chat_template_kwargs\":{\"thinking\":false}" : "";
    if (api == ANSWER_GENERATE)
        buf_printf(
            b,
            "{\"text\":\"%s\",\"sampling_params\":{\"temperature\":0.0,\"max_new_tokens\":%lld,"
            "\"ignore_eos\":true},\"stream\":true}",
            prompt, (long long)n);
    else
        buf_printf(b,
                   api == ANSWER_CHAT ? "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]"
                                      : "{\"prompt\":\"%s\"",
                   prompt);
    if (api != ANSWER_GENERATE)
        buf_printf(b,
                   ",\"temperature\":0.0,\"max_tokens\":%lld,\"ignore_eos\":true,\"stream\":true,"
                   "\"stream_options\":{\"include_usage\":true}%s}",
                   (long long)n, more);
}

static void add_row(struct job *j, const char *route, size_t c, const struct figures *f,
                    struct worked w, const struct load_cost *cost)
{
    struct buf row = {0};
    double tokens = (double)f->output_tokens, events = (double)f->n_events, s = f->duration_s;
    buf_printf(&row,
               "\"route\":\"%s\",\"max_concurrency\":%zu,\"output_tokens\":%.0f,\"events\":%.0f,"
               "\"duration\":%.6f,\"tokens_per_s\":%.1f,\"events_per_s\":%.1f,\"time_us\":%.3f,"
               "\"server_thread_us_per_token\":%.3f,\"engine_us_per_token\":%.3f,"
               "\"server_thread_us_per_event\":%.3f,\"client_us_per_event\":%.3f,\"one_core\":%s,"
               "\"step_us\":%g",
               route, c, tokens, events, s, tokens / s, events / s,
               1e6 * (w.server_s + w.rest_s) / tokens, 1e6 * w.server_s / tokens,
               1e6 * w.rest_s / tokens, 1e6 * w.server_s / events, 1e6 * cost->cpu_s / events,
               j->core >= 0 ? "true" : "false", options_float(j->o, "step-us", 1000));
    bench_remote_row(&j->b, "http", buf_str(&row));
    buf_release(&row);
    if (!j->text.len)
        buf_printf(&j->text, "%-12s %8s %12s %12s %14s %16s %16s %16s\n", "route", "streams",
                   "tokens/s", "events/s", "us per token", "of it: HTTP", "the engine",
                   "client us/event");
    buf_printf(&j->text, "%-12s %8zu %12.0f %12.0f %14.2f %16.2f %16.2f %16.2f\n", route, c,
               tokens / s, events / s, 1e6 * (w.server_s + w.rest_s) / tokens,
               1e6 * w.server_s / tokens, 1e6 * w.rest_s / tokens, 1e6 * cost->cpu_s / events);
}

static enum fst_status one_case(struct job *j, size_t route, size_t c)
{
    size_t n = c * (size_t)options_int(j->o, "num-prompts", 2);
    int64_t tokens = options_int(j->o, "output-len", 256);
    struct load_item *item = mem_calloc(n, sizeof *item);
    struct answer *a = mem_calloc(n, sizeof *a);
    struct buf body = {0};
    struct load_opts o = {.api = routes[route].api,
                          .path = load_path(routes[route].api),
                          .streams = true,
                          .max_concurrency = c,
                          .what = routes[route].name,
                          .interrupted = bench_remote_interrupted};
    struct load_cost cost;
    struct figures f;
    double s;
    put_body(&body, routes[route].api, tokens);
    for (size_t i = 0; item && i < n; i++)
        item[i] = (struct load_item){buf_str(&body), body.len, 12, tokens};
    struct worked before = worked(j->pid), after;
    enum fst_status rc = item && a && !body.failed
                             ? load_run(j->b.t.http, &o, item, n, a, &s, &cost)
                             : fst_error(FST_ENOMEM, "no memory for %zu requests", n);
    after = worked(j->pid);
    if (rc == FST_OK)
        rc = figures_compute(&f, a, n, s);
    for (size_t i = 0; rc == FST_OK && f.failed && i < n; i++)
        if (!answer_ok(&a[i]))
            rc = fst_error(answer_fault(&a[i]), "%s: %.300s", o.path, a[i].error);
    if (rc == FST_OK)
        add_row(j, routes[route].name, c, &f,
                (struct worked){after.server_s - before.server_s, after.rest_s - before.rest_s},
                &cost);
    for (size_t i = 0; a && i < n; i++)
        answer_release(&a[i]);
    mem_free(item);
    mem_free(a);
    buf_release(&body);
    return rc;
}

static enum fst_status all_cases(struct job *j)
{
    const char *text = options_text(j->o, "max-concurrency");
    for (size_t r = 0; r < FST_COUNT(routes); r++)
        for (const char *p = text; p;) {
            char *end;
            unsigned long c = strtoul(p, &end, 10);
            if (*p < '0' || *p > '9' || (*end && *end != ',') || !c || c > 256)
                return fst_error(FST_EINVAL,
                                 "--max-concurrency: expected numbers from 1 to 256 with commas "
                                 "between, got '%s'",
                                 text);
            FST_TRY(one_case(j, r, c));
            p = *end ? end + 1 : NULL;
        }
    return FST_OK;
}

int bench_http(int argc, char **argv)
{
    static const char *const not_here[] = {"base-url", "host", "port"};
    const struct option_group groups[] = {OPTION_GROUP("Bench http", defs), bench_remote_group};
    int status;
    char url[64];
    struct options *o = tool_parse("firesteel bench http", "[options]", groups, FST_COUNT(groups),
                                   argc, argv, &status);
    if (!o)
        return status;
    struct job j = {.o = o};
    enum fst_status rc = FST_OK;
    tool_catch_interrupt();
    for (size_t i = 0; rc == FST_OK && i < FST_COUNT(not_here); i++)
        if (options_is_given(o, not_here[i]))
            rc = fst_error(FST_EINVAL, "bench http starts its own server and takes no --%s",
                           not_here[i]);
    if (rc == FST_OK)
        rc = start_server(&j);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", j.port);
    if (rc == FST_OK)
        rc = wait_server(&j, url);
    if (rc == FST_OK)
        rc = bench_remote_open(&j.b, o, url, false, argc, argv);
    if (rc == FST_OK)
        rc = all_cases(&j);
    stop_server(&j);
    buf_printf(&j.text, "on %s\ncommand: %s\n", j.b.card, buf_str(&j.b.command));
    status = rc < 0 ? tool_fail(rc) : bench_remote_finish(&j.b, &j.text);
    buf_release(&j.text);
    bench_remote_release(&j.b);
    options_free(o);
    return status;
}
