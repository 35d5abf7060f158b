/* server.c - start, load, serve, drain, stop. */
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "server/app.h"
#include "server/gen.h"
#include "server/keep.h"
#include "server/responses.h"
#include "chat/gate.h"

enum { LOAD_RUNNING, LOAD_DONE, LOAD_SEEN };

void server_opts_default(struct server_opts *o)
{
    *o = (struct server_opts){
        .host = "127.0.0.1",
        .port = 30000,
        .max_n = 128,
        .thinking_budget = -1,
        .stream_interval = 1,
        .sse_keepalive_s = 10,
        .keep_max_s = 900,
        .keep_max_streams = 64,
        .shutdown_grace_s = 30,
        .health_stall_s = 30,
        .watchdog_s = 300,
        .enable_metrics = true,
        .metrics_prefix = "sglang:",
        .queue_full_status = 503,
        .access_log = false,
        .log_requests_level = 1,
        .flags_json = "",
    };
    struct chat_memory_opts mo;
    chat_memory_opts_default(&mo);
    o->call_memory_ids = mo.max_ids;
    o->call_memory_bytes = mo.max_bytes;
    http_limits_default(&o->limits);
    chat_defaults_init(&o->chat);
}

struct fst_engine_stats server_stats(const struct server *s)
{
    struct fst_engine_stats st = {0};
    if (s->engine)
        fst_engine_get_stats(s->engine, &st);
    return st;
}

double server_stalled_s(const struct server *s)
{
    struct fst_engine_stats st = server_stats(s);
    if (!s->engine || st.running + st.waiting == 0)
        return 0;
    /* Blocks within a step count: a step of a large checkpoint may take long and yet go on. */
    int64_t last = FST_MAX(FST_MAX(st.last_step_ns, st.heartbeat_ns), s->ready_ns);
    /* Work that has just come after an idle time: it waits since it came. */
    int64_t oldest = INT64_MAX;
    for (const struct gen *g = s->gens; g; g = g->next)
        oldest = FST_MIN(oldest, g->start_ns);
    if (oldest != INT64_MAX)
        last = FST_MAX(last, oldest);
    return clock_seconds(clock_ns() - last);
}

/* ------------------------------------------------------------------ loading */

static void on_load(void *ud, uint64_t done, uint64_t total)
{
    struct server *s = ud;
    s->load.done = done;
    s->load.total = total;
}

static enum fst_status warm_up(struct server *s)
{
    struct fst_request_opts o;
    fst_request_opts_default(&o);
    int32_t bos = tokenizer_specials(s->load.tok)->bos;
    o.ids = &bos;
    o.n_ids = 1;
    o.max_new_tokens = 4;
    o.ignore_eos = true;
    fst_request *r = NULL;
    FST_TRY(fst_request_submit(s->load.engine, &o, &r));
    enum fst_status rc = fst_request_wait(r, 600);
    struct fst_request_view v;
    fst_request_get_view(r, &v);
    if (rc == FST_OK && v.finish == FST_FINISH_ERROR)
        rc = fst_error(v.status, "warm-up failed: %s", v.error);
    fst_request_free(r);
    fst_engine_reset_spec_stats(s->load.engine);
    return rc;
}

static enum fst_status load(struct server *s)
{
    char path[4096];
    if (s->o.tokenizer_path && !file_is_folder(s->o.tokenizer_path)) {
        FST_TRY(tokenizer_load(&s->load.tok, s->o.tokenizer_path));
    } else {
        const char *dir = s->o.tokenizer_path ? s->o.tokenizer_path : s->model_dir;
        FST_TRY(file_join(path, sizeof path, dir, "tokenizer.json"));
        FST_TRY(tokenizer_load(&s->load.tok, path));
    }
    s->load.profile = chat_profile_detect(s->model_dir);
    struct fst_engine_opts eo = s->o.engine;
    struct tokenizer_ids unnamed = {0};
    enum fst_status rc = server_unnamed_ids(&unnamed, s->load.tok, s->model_dir);
    if (rc == FST_OK) {
        eo.on_load = on_load;
        eo.on_load_ud = s;
        eo.masked_ids = unnamed.id;
        eo.n_masked_ids = unnamed.n;
        s->load.what = "checkpoint";
        rc = fst_engine_open(&s->load.engine, &eo);
    }
    tokenizer_ids_release(&unnamed);
    if (rc < 0)
        return rc;
    fst_engine_get_info(s->load.engine, &s->load.info);
    const char *dir = s->load.info.kv_disk_dir;
    s->load.salt = s->salt;
    if (dir && secret_of_folder(dir, &s->load.salt) < 0)
        log_warn("tiers", "prompts of this run will not be found again: %s", fst_error_text());
    int32_t named = tokenizer_vocab_size(s->load.tok);
    if (named > s->load.info.vocab_size)
        return fst_error(FST_EFORMAT, "%s: tokenizer.json names %d ids, the model has only %d rows",
                         s->model_dir, named, s->load.info.vocab_size);
    const struct grammars_opts go = {.tokenizer = s->load.tok,
                                     .n_ids = s->load.info.vocab_size,
                                     .eos_id = s->load.info.eos_id,
                                     .space = s->o.json_space};
    FST_TRY(grammars_new(&s->load.grammars, &go));
    FST_TRY(gate_rules_new(&s->load.gates, s->load.tok));
    if (s->o.call_memory_ids) {
        struct chat_memory_opts mo = {.tokenizer = s->load.tok,
                                      .max_ids = s->o.call_memory_ids,
                                      .max_bytes = s->o.call_memory_bytes,
                                      .dir = s->o.call_memory_dir};
        FST_TRY(chat_memory_new(&s->load.memory, &mo));
    }
    s->load.what = "warm-up";
    return s->o.skip_warmup ? FST_OK : warm_up(s);
}

static void *load_thread(void *ud)
{
    struct server *s = ud;
    s->load.rc = load(s);
    snprintf(s->load.message, sizeof s->load.message, "%s", s->load.rc ? fst_error_text() : "");
    atomic_store(&s->load.stage, LOAD_DONE);
    loop_wake(s->loop);
    return NULL;
}

static void say_ready(struct server *s)
{
    const char *host = s->o.host;
    bool v6 = strchr(host, ':') != NULL;
    if (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"))
        host = v6 ? "::1" : "127.0.0.1";
    const struct fst_engine_info *in = &s->info;
    log_info("ready",
             "url=http://%s%s%s:%d model=%s context=%lld kv_tokens=%lld max_running=%d "
             "kernels=%s kv_layout=%s draft=%s gamma=%d load_s=%.2f",
             v6 ? "[" : "", host, v6 ? "]" : "", s->port, s->model_name,
             (long long)in->context_length, (long long)in->max_total_tokens,
             in->max_running_requests, in->kernels, in->kv_layout, in->spec_algorithm, in->gamma,
             clock_seconds(s->ready_ns - s->start_ns));
    fprintf(stderr,
            "firesteel is ready at http://%s%s%s:%d\n"
            "try: curl http://%s%s%s:%d/v1/chat/completions %s-d "
            "'{\"messages\":[{\"role\":\"user\",\"content\":\"What is 17 + 25?\"}]}'\n",
            v6 ? "[" : "", host, v6 ? "]" : "", s->port, v6 ? "[" : "", host, v6 ? "]" : "",
            s->port, s->o.n_api_keys ? "-H \"Authorization: Bearer $KEY\" " : "");
    fflush(stderr);
}

static void loaded(struct server *s)
{
    s->load.stage = LOAD_SEEN;
    pthread_join(s->loader, NULL);
    s->engine = s->load.engine;
    s->tok = s->load.tok;
    s->memory = s->load.memory;
    s->grammars = s->load.grammars;
    s->gates = s->load.gates;
    s->info = s->load.info;
    s->salt = s->load.salt;
    s->chat.profile = s->load.profile;
    if (s->load.rc < 0) {
        s->state = SERVER_FAILED;
        s->end_status = s->load.rc;
        loop_stop(s->loop);
        return;
    }
    s->ready_ns = clock_ns();
    if (s->state == SERVER_STARTING) {
        s->state = SERVER_READY;
        say_ready(s);
    } else {
        loop_stop(s->loop); /* asked to stop while loading */
    }
}

/* ------------------------------------------------------------------ loop callbacks */

static void on_wake(void *ud)
{
    struct server *s = ud;
    if (s->load.stage == LOAD_DONE)
        loaded(s);
    gen_update_all(s);
}

static void drain_step(struct server *s, int64_t now_ms)
{
    struct loop_counts n;
    loop_get_counts(s->loop, &n);
    if (!n.exchanges && !s->gens && !loop_is_writing(s->loop)) {
        log_info("stopped", "reason=drained");
        loop_stop(s->loop);
    } else if (now_ms >= s->drain_deadline_ms && !s->cancelled_all) {
        s->cancelled_all = true;
        int k = gen_abort(s, NULL);
        log_warn("shutdown grace is over", "aborted=%d", k);
        s->drain_deadline_ms = now_ms + 2000;
    } else if (now_ms >= s->drain_deadline_ms) {
        log_warn("stopped", "reason=grace connections=%d jobs=%d", n.connections, n.jobs);
        if (n.jobs) { /* text work cannot be interrupted; nobody waits for it any more */
            log_stop();
            _exit(0);
        }
        loop_stop(s->loop);
    }
}

/* One line per interval in which tokens were made. */
static void log_progress(struct server *s)
{
    int64_t now = clock_ns();
    if (now - s->last_log_ns < 10000000000)
        return;
    struct fst_engine_stats st = server_stats(s);
    s->last_log_ns = now;
    if (st.steps == s->last_log_steps)
        return;
    s->last_log_steps = st.steps;
    log_info("decode",
             "running=%d queue=%d token_usage=%.3f accept_len=%.2f gen_tok_s=%.1f steps=%llu "
             "loaded_tokens=%llu",
             st.running, st.waiting,
             st.kv_tokens_total ? (double)st.kv_tokens_used / (double)st.kv_tokens_total : 0.0,
             st.spec.accept_length, st.last_decode_tok_s, (unsigned long long)st.steps,
             (unsigned long long)st.loaded_tokens);
}

/* No request can succeed any more: open ones have ended with an error, which their readers get within
 * two seconds, and the process ends with status 1 for a supervisor to see. */
static void device_lost(struct server *s, int64_t now_ms)
{
    log_error("device lost", "device=%s generations=%d", s->info.device, s->n_gens);
    s->end_status = FST_EINTERNAL;
    snprintf(s->load.message, sizeof s->load.message, "the device %s failed", s->info.device);
    s->state = SERVER_DRAINING;
    s->drain_deadline_ms = now_ms + 1000;
    loop_close_idle(s->loop);
}

static void on_tick(void *ud, int64_t now_ms)
{
    struct server *s = ud;
    if (s->state == SERVER_DRAINING)
        drain_step(s, now_ms);
    keep_tick(s, now_ms);
    if (!s->engine || s->state == SERVER_STARTING || s->load.stage != LOAD_SEEN)
        return;
    log_progress(s);
    if (s->state != SERVER_DRAINING && server_stats(s).lost)
        device_lost(s, now_ms);
    double stalled = s->o.watchdog_s > 0 ? server_stalled_s(s) : 0;
    if (s->o.watchdog_s > 0 && stalled > s->o.watchdog_s) {
        struct fst_engine_stats st = server_stats(s);
        log_error("watchdog", "no sign of life for %.0f s running=%d queue=%d steps=%llu", stalled,
                  st.running, st.waiting, (unsigned long long)st.steps);
        log_stop();
        _exit(1); /* the engine hangs: nothing can be closed in order; a supervisor restarts us */
    }
}

static void on_signal(void *ud, int signum)
{
    struct server *s = ud;
    if (s->state == SERVER_DRAINING || s->state == SERVER_FAILED) {
        log_stop();
        _exit(128 + signum);
    }
    bool loading = s->state == SERVER_STARTING;
    s->state = SERVER_DRAINING;
    s->stop_ns = clock_ns();
    s->drain_deadline_ms = loop_now_ms(s->loop) + (int64_t)(1e3 * s->o.shutdown_grace_s);
    if (loading && s->load.stage == LOAD_RUNNING) {
        /* Opening a checkpoint cannot be interrupted; nothing of it needs an orderly end. */
        log_info("stopped", "reason=signal while=loading");
        log_stop();
        _exit(0);
    }
    log_info("shutting down", "signal=%d generations=%d grace_s=%.0f", signum, s->n_gens,
             s->o.shutdown_grace_s);
    loop_close_idle(s->loop);
    drain_step(s, loop_now_ms(s->loop));
}

/* The loop hears no signals any more, and the engine may have much to write. */
static void end_at_once(int signum)
{
    _exit(128 + signum);
}

static void refuse(void *ud, const struct exch *x, int status, const char *why, struct buf *out)
{
    (void)ud;
    struct api_error e = {0};
    const char *text = status == 413   ? "request body is too large"
                       : status == 431 ? "request headers are too large"
                       : status == 408 ? "request took too long"
                       : status == 417 ? "only Expect: 100-continue is understood"
                       : status == 503 ? "no room for this request"
                                       : "bad HTTP request";
    api_fail(&e, status, status == 400 ? "bad_http" : NULL, NULL, "%s%s%s", text,
             why[0] ? ": " : "", status == 503 ? "try again" : why);
    api_error_json(out, &e, route_shape(x->path), x->request_id);
}

static void finished(void *ud, const struct exch *x, const char *peer)
{
    struct server *s = ud;
    if (x->status > 0 && x->status < (int)FST_COUNT(s->m.responses))
        s->m.responses[x->status]++;
    if (!s->o.access_log)
        return;
    char path[256], ip[80];
    const char *p = x->path ? x->path : "-";
    if (!strncmp(p, "/v1/streams/", 12)) /* who has the token can read the answer */
        p = "/v1/streams/...";
    log_info("http", "ip=%s method=%s path=%s status=%d ms=%lld bytes=%llu id=%s",
             log_value(ip, sizeof ip, peer, strlen(peer)), x->verb_name,
             log_value(path, sizeof path, p, strlen(p)), x->status,
             (long long)(loop_now_ms(s->loop) - x->start_ms), (unsigned long long)x->bytes_out,
             x->request_id);
}

static void dispatch(void *ud, struct exch *x)
{
    route_dispatch(ud, x);
}

/* ------------------------------------------------------------------ run */

/* Whether all addresses of the host are loopback ones. */
static bool is_loopback(const char *host)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    if (strcmp(host, "localhost") == 0)
        return true; /* loop_listen does not ask a resolver for it */
    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return true; /* loop_listen says why it cannot be used */
    bool yes = true;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        if (a->ai_family == AF_INET6)
            yes &= IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_addr);
        else
            yes &= ntohl(((struct sockaddr_in *)(void *)a->ai_addr)->sin_addr.s_addr) >> 24 == 127;
    }
    freeaddrinfo(list);
    return yes;
}

static enum fst_status check_exposure(const struct server_opts *o)
{
    if (o->n_api_keys || is_loopback(o->host))
        return FST_OK;
    if (!o->allow_public)
        return fst_error(FST_EINVAL,
                         "--host %s opens the server to the network without an API key: give "
                         "--api-key KEY, or --allow-public if that is meant",
                         o->host);
    log_warn("no API key", "host=%s everybody on the network may use this server", o->host);
    return FST_OK;
}

static void set_names(struct server *s)
{
    snprintf(s->model_dir, sizeof s->model_dir, "%s", s->o.engine.model_dir);
    size_t n = strlen(s->model_dir);
    while (n > 1 && s->model_dir[n - 1] == '/')
        s->model_dir[--n] = 0;
    const char *slash = strrchr(s->model_dir, '/');
    const char *name = s->o.served_model_name ? s->o.served_model_name
                       : slash                ? slash + 1
                                              : s->model_dir;
    snprintf(s->model_name, sizeof s->model_name, "%.255s", name);
}

static enum fst_status serve(struct server *s)
{
    enum fst_status rc = loop_listen(s->loop, s->o.host, s->o.port, &s->port);
    if (rc < 0)
        return rc;
    log_info("listening", "host=%s port=%d model=%s", s->o.host, s->port, s->model_name);
    if (pthread_create(&s->loader, NULL, load_thread, s) != 0)
        return fst_error(FST_EMACHINE, "cannot start a thread");
    loop_run(s->loop);
    FST_ASSERT(s->load.stage == LOAD_SEEN); /* the loop ends only when loading has */
    if (s->end_status < 0)
        return fst_error(s->end_status, "%s", s->load.message);
    return FST_OK;
}

/* What of the grace requests have left, at least two seconds of it, is for writing what is kept. */
static double writing_s(const struct server *s)
{
    double spent = s->stop_ns ? clock_seconds(clock_ns() - s->stop_ns) : 0;
    return FST_MAX(s->o.shutdown_grace_s - spent, FST_MIN(s->o.shutdown_grace_s, 2));
}

/* A disk that hangs keeps a call in the system for as long as it likes: then the process ends without it. */
struct guard {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct timespec until;
    bool over;
    int status;
};

static void *guard_thread(void *ud)
{
    struct guard *g = ud;
    int rc = 0;
    pthread_mutex_lock(&g->lock);
    while (!g->over && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&g->changed, &g->lock, &g->until);
    if (!g->over) {
        log_warn("stopped", "reason=grace while=writing");
        log_stop();
        _exit(g->status);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static void close_engine(struct server *s, int status)
{
    enum { CALL_S = 2 }; /* for a call of the disk's that has begun */
    double seconds = writing_s(s);
    struct guard g = {.status = status};
    pthread_t thread;
    pthread_mutex_init(&g.lock, NULL);
    pthread_cond_init(&g.changed, NULL);
    clock_gettime(CLOCK_REALTIME, &g.until);
    int64_t end_ns = g.until.tv_nsec + (int64_t)((seconds + CALL_S) * 1e9);
    g.until.tv_sec += (time_t)(end_ns / 1000000000);
    g.until.tv_nsec = (long)(end_ns % 1000000000);
    bool guarded = s->engine && pthread_create(&thread, NULL, guard_thread, &g) == 0;
    fst_engine_close_within(s->engine, seconds);
    pthread_mutex_lock(&g.lock);
    g.over = true;
    pthread_cond_signal(&g.changed);
    pthread_mutex_unlock(&g.lock);
    if (guarded)
        pthread_join(thread, NULL);
    pthread_cond_destroy(&g.changed);
    pthread_mutex_destroy(&g.lock);
}

enum fst_status server_run(const struct server_opts *o)
{
    FST_ASSERT(o->engine.model_dir);
    FST_TRY(check_exposure(o));
    struct server *s = mem_calloc(1, sizeof *s);
    if (!s)
        return fst_error(FST_ENOMEM, "server: out of memory");
    s->o = *o;
    s->chat = o->chat;
    s->created = clock_wall_ns() / 1000000000;
    s->start_ns = s->last_log_ns = clock_ns();
    metrics_init(&s->m);
    s->salt = (struct hash128){rng_os(), rng_os()};
    rng_init(&s->seeds, o->engine.has_random_seed ? o->engine.random_seed : rng_os());
    s->load.what = "tokenizer";
    set_names(s);
    struct loop_opts lo = {.limits = o->limits,
                           .ud = s,
                           .dispatch = dispatch,
                           .refuse = refuse,
                           .finished = finished,
                           .on_wake = on_wake,
                           .on_tick = on_tick,
                           .on_signal = on_signal};
    enum fst_status rc = loop_new(&s->loop, &lo);
    if (rc == FST_OK && o->response_store &&
        !(s->responses = response_store_new(o->response_store)))
        rc = fst_error(FST_ENOMEM, "--response-store %d: out of memory", o->response_store);
    if (rc == FST_OK)
        rc = serve(s);
    char message[1024];
    snprintf(message, sizeof message, "%s", rc < 0 ? fst_error_text() : "");
    /* Clients that are still there are let go first: their requests go back to the engine while
     * it lives, and the engine goes before the loop that it wakes. */
    if (s->loop) {
        loop_close_all(s->loop);
        signal(SIGINT, end_at_once);
        signal(SIGTERM, end_at_once);
    }
    keep_free_all(s);
    FST_ASSERT(!s->gens);
    FST_ASSERT(s->handles_taken == s->handles_given);
    close_engine(s, rc < 0);
    loop_free(s->loop);
    response_store_free(s->responses);
    chat_memory_free(s->memory);
    grammars_free(s->grammars);
    gate_rules_free(s->gates);
    tokenizer_free(s->tok);
    mem_free(s);
    return rc < 0 ? fst_error(rc, "%s", message) : FST_OK;
}
