/* fake_engine.c - include/firesteel/engine.h with scripted replies, for tests of the server.
 *
 * Linked instead of src/engine into build/firesteel-fake.  Every submit reads script.json of the
 * model folder anew:
 *
 *   {"text": "..." | "ids": [...] | "replies": ["...", ...],   replies[choice % count]
 *    "turns": ["...", ...],   the k-th submit of this script says turns[k], the last one from then on
 *    "eos": true,          append the end id          "repeat": false,  start over until max tokens
 *    "prefill_ms": 0,      before the first token     "prefill_chunks": 1
 *    "token_ms": 0,        between publications       "chunk": 1,  tokens per publication
 *    "fail_after": -1,     ERROR finish after so many tokens
 *    "lost": false,        after fail_after the device counts as lost
 *    "submit": "ok" | "full" | "shutdown",
 *    "hang": false,        the step thread stops while true in the script of a running request
 *    "beat": false}        and while it hangs, it shows signs of life, as a long step does
 *
 * FST_FAKE_OPEN_MS delays opening, FST_FAKE_OPEN_FAIL makes it fail, FST_FAKE_CLOSE_MS delays closing. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "firesteel/engine.h"
#include "firesteel/replay.h"
#include "tokenizer/tokenizer.h"

enum { CONTEXT = 65536, SLOTS = 8, PAGE = 256, POOL_PAGES = 1024 };

struct fst_request {
    fst_engine *e;
    struct fst_request *prev, *next; /* all that the engine still holds */
    bool running, cancel, freed;
    struct fst_request_opts o;
    int32_t *stop; /* owned */
    int32_t *ids;  /* owned: the reply as it comes */
    float *logprobs, *prompt_logprobs;
    struct fst_top_logprob *top, *prompt_top;
    int32_t *script; /* owned */
    size_t n_script, n;
    bool repeat;
    int64_t max_new;
    int64_t prefill_ms, token_ms, chunk, fail_after, prefill_chunks;
    bool hang, beat, lost;
    size_t n_prompt, n_prefilled;
    enum fst_finish finish;
    enum fst_status status;
    int32_t matched;
    int64_t submit_ns, start_ns, first_ns, last_ns;
};

struct fst_engine {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    pthread_t thread;
    bool stop, draining;
    struct fst_request *first;
    struct fst_engine_stats st;
    struct fst_engine_info info;
    char dir[4096];
    struct tokenizer *tok;
    int open_handles;
    struct hash128 script; /* the last one that was read, and how often */
    size_t turn;
};

/* ------------------------------------------------------------------ the step thread */

static void unlink_request(fst_request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        r->e->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
}

static void destroy(fst_request *r)
{
    mem_free(r->stop);
    mem_free(r->ids);
    mem_free(r->logprobs);
    mem_free(r->prompt_logprobs);
    mem_free(r->top);
    mem_free(r->prompt_top);
    mem_free(r->script);
    mem_free(r);
}

static void finish(fst_request *r, enum fst_finish f)
{
    fst_engine *e = r->e;
    if (r->finish != FST_FINISH_NONE)
        return;
    r->finish = f;
    r->last_ns = clock_ns();
    if (r->running) {
        e->st.running--;
        e->st.slots_used--;
        e->st.kv_tokens_used -= PAGE * div_up((int64_t)r->n_prompt + r->max_new, PAGE);
    } else {
        e->st.waiting--;
    }
    r->running = false;
    e->st.finished += f != FST_FINISH_ABORT && f != FST_FINISH_ERROR;
    e->st.aborted += f == FST_FINISH_ABORT;
    e->st.failed += f == FST_FINISH_ERROR;
}

static void one_token(fst_request *r)
{
    if (!r->n_script || (r->n >= r->n_script && !r->repeat)) {
        finish(r, FST_FINISH_LENGTH);
        return;
    }
    int32_t id = r->script[r->n % r->n_script];
    if (r->logprobs)
        r->logprobs[r->n] = -0.5f * (float)(r->n % 7 + 1);
    for (int k = 0; k < r->o.top_logprobs; k++)
        r->top[r->n * (size_t)r->o.top_logprobs + (size_t)k] = (struct fst_top_logprob){
            k ? (id + k) % r->e->info.vocab_size : id, -0.5f * (float)(r->n % 7 + 1 + (size_t)k)};
    r->ids[r->n++] = id;
    r->e->st.generation_tokens++;
    bool stop = id == r->e->info.eos_id && !r->o.ignore_eos;
    for (size_t i = 0; i < r->o.n_stop_ids; i++)
        stop |= id == r->stop[i];
    if (stop && (int64_t)r->n > r->o.min_new_tokens) {
        r->matched = id;
        finish(r, FST_FINISH_STOP);
    } else if ((int64_t)r->n >= r->max_new) {
        finish(r, FST_FINISH_LENGTH);
    }
}

/* Returns whether something changed. */
static bool advance(fst_request *r, int64_t now)
{
    fst_engine *e = r->e;
    if (r->cancel) {
        finish(r, FST_FINISH_ABORT);
        return true;
    }
    if (!r->running) {
        int64_t need = PAGE * div_up((int64_t)r->n_prompt + r->max_new, PAGE);
        if (e->st.running == SLOTS || e->st.kv_tokens_used + need > e->st.kv_tokens_total)
            return false;
        r->running = true;
        r->start_ns = now;
        e->st.waiting--;
        e->st.running++;
        e->st.slots_used++;
        e->st.kv_tokens_used += need;
        return false;
    }
    if (r->o.timeout_s > 0 && clock_seconds(now - r->submit_ns) > r->o.timeout_s) {
        r->status = FST_ETIMEOUT;
        finish(r, FST_FINISH_ERROR);
        return true;
    }
    int64_t since_ms = (now - r->start_ns) / 1000000;
    if (!r->first_ns) {
        size_t parts = (size_t)r->prefill_chunks;
        size_t part = r->prefill_ms > 0 ? (size_t)FST_MIN((int64_t)parts,
                                                          since_ms * (int64_t)parts / r->prefill_ms)
                                        : parts;
        size_t done = r->n_prompt * part / parts;
        bool more = done > r->n_prefilled;
        r->n_prefilled = FST_MAX(done, r->n_prefilled);
        if (since_ms < r->prefill_ms)
            return more;
        r->n_prefilled = r->n_prompt;
        r->first_ns = now;
        e->st.prompt_tokens += r->n_prompt;
    } else if ((now - r->last_ns) / 1000000 < r->token_ms) {
        return false;
    }
    r->last_ns = now;
    if (r->max_new == 0) {
        finish(r, FST_FINISH_LENGTH);
        return true;
    }
    for (int64_t i = 0; i < r->chunk && r->finish == FST_FINISH_NONE; i++) {
        if (r->fail_after >= 0 && (int64_t)r->n >= r->fail_after) {
            r->status = r->lost ? FST_EINTERNAL : FST_ENUMERIC;
            r->e->st.lost |= r->lost;
            finish(r, FST_FINISH_ERROR);
            return true;
        }
        one_token(r);
    }
    return true;
}

static void *steps(void *ud)
{
    fst_engine *e = ud;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        int64_t now = clock_ns();
        bool any = false, hang = false, beat = false;
        for (fst_request *r = e->first, *next; r; r = next) {
            next = r->next;
            hang |= r->hang && r->running && r->n > 0 && !r->cancel;
            beat |= r->beat;
        }
        for (fst_request *r = e->first, *next; r && !hang; r = next) {
            next = r->next;
            if (r->finish == FST_FINISH_NONE) {
                any = true;
                if (advance(r, now) && r->o.on_change && !r->freed)
                    r->o.on_change(r->o.on_change_ud);
            }
            if (r->freed && r->finish != FST_FINISH_NONE) {
                unlink_request(r);
                destroy(r);
            }
        }
        if (any) {
            e->st.steps++;
            e->st.last_step_ns = now;
        }
        if (any || (hang && beat))
            e->st.heartbeat_ns = now;
        pthread_cond_broadcast(&e->cond);
        pthread_mutex_unlock(&e->lock);
        usleep(any ? 200 : 1000);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ------------------------------------------------------------------ engine */

enum fst_status fst_engine_open(fst_engine **out, const struct fst_engine_opts *opts)
{
    const char *ms = getenv("FST_FAKE_OPEN_MS");
    *out = NULL;
    for (int64_t left = ms ? strtoll(ms, NULL, 10) : 0, done = 0; done < left; done += 10) {
        usleep(10000);
        if (opts->on_load)
            opts->on_load(opts->on_load_ud, (uint64_t)done, (uint64_t)left);
    }
    if (getenv("FST_FAKE_OPEN_FAIL"))
        return fst_error(FST_EFORMAT, "model.safetensors: tensor embed.weight is missing");
    fst_engine *e = mem_calloc(1, sizeof *e);
    if (!e)
        return fst_error(FST_ENOMEM, "out of memory");
    snprintf(e->dir, sizeof e->dir, "%s", opts->model_dir);
    char path[4200];
    snprintf(path, sizeof path, "%s/tokenizer.json", e->dir);
    enum fst_status rc = tokenizer_load(&e->tok, path);
    if (rc < 0) {
        mem_free(e);
        return rc;
    }
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->cond, NULL);
    const struct tokenizer_specials *sp = tokenizer_specials(e->tok);
    e->info = (struct fst_engine_info){.model_type = "scripted",
                                       .model_dir = e->dir,
                                       .kernels = "none",
                                       .device = "cpu",
                                       .kv_layout = "unified-fp8",
                                       .index_keys = "fp4",
                                       .spec_algorithm = "dspark",
                                       .verify_mode = "static",
                                       .precision = "native",
                                       .vocab_size = tokenizer_vocab_size(e->tok),
                                       .eos_id = sp->eos,
                                       .bos_id = sp->bos,
                                       .gamma = 5,
                                       .threads = 1,
                                       .max_running_requests = SLOTS,
                                       .max_queued_requests = 1024,
                                       .chunked_prefill_size = 512,
                                       .context_length =
                                           opts->context_length ? opts->context_length : CONTEXT,
                                       .max_total_tokens = PAGE * POOL_PAGES};
    if (opts->max_queued_requests)
        e->info.max_queued_requests = opts->max_queued_requests;
    e->st.kv_tokens_total = PAGE * POOL_PAGES;
    e->st.slots_total = SLOTS;
    e->st.spec = (struct fst_spec_stats){
        .verify_steps = 10, .drafted = 50, .accepted = 24, .accept_length = 3.4};
    if (pthread_create(&e->thread, NULL, steps, e) != 0)
        return fst_error(FST_EMACHINE, "no thread");
    *out = e;
    return FST_OK;
}

void fst_engine_close_within(fst_engine *e, double seconds)
{
    (void)seconds; /* it hangs, if it is told to */
    fst_engine_close(e);
}

void fst_engine_close(fst_engine *e)
{
    const char *ms = getenv("FST_FAKE_CLOSE_MS");
    if (!e)
        return;
    for (int64_t left = ms ? strtoll(ms, NULL, 10) : 0; left > 0; left -= 10)
        usleep(10000);
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    for (fst_request *r = e->first, *next; r; r = next) {
        next = r->next;
        FST_ASSERT(r->freed); /* the server must have given every handle back */
        destroy(r);
    }
    FST_ASSERT(e->open_handles == 0);
    tokenizer_free(e->tok);
    mem_free(e);
}

void fst_engine_drain(fst_engine *e)
{
    e->draining = true;
}

void fst_engine_get_info(const fst_engine *e, struct fst_engine_info *out)
{
    *out = e->info;
}

void fst_engine_get_stats(const fst_engine *ce, struct fst_engine_stats *out)
{
    fst_engine *e = (fst_engine *)(uintptr_t)ce;
    pthread_mutex_lock(&e->lock);
    *out = e->st;
    pthread_mutex_unlock(&e->lock);
    out->now_ns = clock_ns();
}

void fst_engine_flush_prefixes(fst_engine *e)
{
    (void)e; /* keeps none */
}

void fst_engine_reset_spec_stats(fst_engine *e)
{
    pthread_mutex_lock(&e->lock);
    if (e->st.requests > 1) /* the warm-up's own reset leaves the scripted figures */
        e->st.spec = (struct fst_spec_stats){0};
    pthread_mutex_unlock(&e->lock);
}

int fst_engine_block_times(fst_engine *e, struct fst_block_time *out, int n, bool reset)
{
    (void)e, (void)out, (void)n, (void)reset;
    return 0;
}

enum fst_status fst_replay(const char *path, const struct fst_replay_opts *o,
                           struct fst_replay_report *out)
{
    (void)o, (void)out;
    return fst_error(FST_EUNSUPPORTED, "%s: the scripted engine has no steps", path);
}

/* ------------------------------------------------------------------ requests */

void fst_request_opts_default(struct fst_request_opts *o)
{
    *o = (struct fst_request_opts){.max_new_tokens = -1,
                                   .sampling = {.temperature = 1, .top_p = 1, .top_k = -1},
                                   .prompt_logprobs_from = -1};
}

static int64_t number(json_val *v, const char *key, int64_t fallback)
{
    int64_t x = fallback;
    json_int(json_get(v, key), &x);
    return x;
}

static enum fst_status read_script(fst_request *r)
{
    char path[4200];
    struct buf b = {0};
    struct json_doc *doc = NULL;
    struct tokenizer_ids ids = {0};
    snprintf(path, sizeof path, "%s/script.json", r->e->dir);
    if (file_read(&b, path, 0) < 0)
        buf_puts(&b, "{\"text\":\"ok\"}");
    enum fst_status rc =
        b.failed ? fst_error(FST_ENOMEM, "out of memory") : json_parse(&doc, buf_str(&b), b.len);
    if (rc < 0)
        goto out;
    json_val *s = json_root(doc), *replies = json_get(s, "replies");
    json_val *turns = json_get(s, "turns");
    struct hash128 now = hash128(b.data, b.len, (struct hash128){0});
    fst_engine *e = r->e;
    e->turn = now.lo == e->script.lo && now.hi == e->script.hi ? e->turn + 1 : 0;
    e->script = now;
    json_val *text = json_count(replies)
                         ? json_at(replies, r->o.sampling.choice % json_count(replies))
                     : json_count(turns) ? json_at(turns, FST_MIN(e->turn, json_count(turns) - 1))
                                         : json_get(s, "text");
    size_t len;
    const char *t = json_string(text, &len);
    if (t)
        rc = tokenizer_encode_text(r->e->tok, t, len, true, &ids);
    for (size_t i = 0; i < json_count(json_get(s, "ids")); i++) {
        int64_t id = 0;
        json_int(json_at(json_get(s, "ids"), i), &id);
        rc = tokenizer_ids_push(&ids, (int32_t)id);
    }
    if (json_bool(json_get(s, "eos"), true))
        rc = tokenizer_ids_push(&ids, r->e->info.eos_id);
    r->script = ids.id;
    r->n_script = ids.n;
    r->repeat = json_bool(json_get(s, "repeat"), false);
    r->prefill_ms = number(s, "prefill_ms", 0);
    r->prefill_chunks = FST_MAX(number(s, "prefill_chunks", 1), (int64_t)1);
    r->token_ms = number(s, "token_ms", 0);
    r->chunk = FST_MAX(number(s, "chunk", 1), (int64_t)1);
    r->fail_after = number(s, "fail_after", -1);
    r->lost = json_bool(json_get(s, "lost"), false);
    r->hang = json_bool(json_get(s, "hang"), false);
    r->beat = json_bool(json_get(s, "beat"), false);
    const char *submit = json_string(json_get(s, "submit"), NULL);
    if (submit && !strcmp(submit, "full"))
        rc = fst_error(FST_EFULL, "The request queue is full.");
    if (submit && !strcmp(submit, "shutdown"))
        rc = fst_error(FST_ESHUTDOWN, "server shutting down");
out:
    json_free(doc);
    buf_release(&b);
    return rc;
}

static enum fst_status make_arrays(fst_request *r)
{
    const struct fst_request_opts *o = &r->o;
    size_t n = (size_t)r->max_new + 1;
    r->ids = mem_calloc(n, sizeof *r->ids);
    r->stop = mem_calloc(o->n_stop_ids + 1, sizeof *r->stop);
    if (o->logprobs)
        r->logprobs = mem_calloc(n, sizeof *r->logprobs);
    if (o->top_logprobs)
        r->top = mem_calloc(n * (size_t)o->top_logprobs, sizeof *r->top);
    if (o->prompt_logprobs_from >= 0) {
        r->prompt_logprobs = mem_calloc(r->n_prompt, sizeof *r->prompt_logprobs);
        for (size_t i = 0; r->prompt_logprobs && i < r->n_prompt; i++)
            r->prompt_logprobs[i] = -1.25f;
        if (o->prompt_top_logprobs)
            r->prompt_top =
                mem_calloc(r->n_prompt * (size_t)o->prompt_top_logprobs, sizeof *r->prompt_top);
    }
    if (!r->ids || !r->stop || (o->logprobs && !r->logprobs) || (o->top_logprobs && !r->top) ||
        (o->prompt_logprobs_from >= 0 && !r->prompt_logprobs) ||
        (o->prompt_logprobs_from >= 0 && o->prompt_top_logprobs && !r->prompt_top))
        return fst_error(FST_ENOMEM, "out of memory");
    for (size_t i = 0; i < o->n_stop_ids; i++)
        r->stop[i] = o->stop_ids[i];
    return FST_OK;
}

enum fst_status fst_request_submit(fst_engine *e, const struct fst_request_opts *o,
                                   fst_request **out)
{
    *out = NULL;
    fst_request *r = mem_calloc(1, sizeof *r);
    if (!r)
        return fst_error(FST_ENOMEM, "out of memory");
    /* The server asks for them once for all choices of a prompt. */
    FST_ASSERT(o->sampling.choice == 0 || o->prompt_logprobs_from < 0);
    r->e = e;
    r->o = *o;
    r->matched = -1;
    r->n_prompt = o->n_ids;
    int64_t room = e->info.context_length - (int64_t)o->n_ids;
    r->max_new = o->max_new_tokens < 0 ? room : FST_MIN(o->max_new_tokens, room);
    r->submit_ns = clock_ns();
    enum fst_status rc = read_script(r);
    if (rc == FST_OK)
        rc = make_arrays(r);
    pthread_mutex_lock(&e->lock);
    if (rc == FST_OK && e->st.waiting >= e->info.max_queued_requests)
        rc = fst_error(FST_EFULL, "The request queue is full.");
    if (rc == FST_OK) {
        fst_request *last = e->first; /* first come, first served */
        while (last && last->next)
            last = last->next;
        r->prev = last;
        if (last)
            last->next = r;
        else
            e->first = r;
        e->st.waiting++;
        e->st.requests++;
        e->open_handles++;
        *out = r;
    }
    pthread_mutex_unlock(&e->lock);
    if (rc < 0)
        destroy(r);
    return rc;
}

void fst_request_cancel(fst_request *r)
{
    pthread_mutex_lock(&r->e->lock);
    r->cancel = true;
    pthread_mutex_unlock(&r->e->lock);
}

void fst_request_free(fst_request *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->e->lock);
    FST_ASSERT(!r->freed);
    r->cancel = r->freed = true;
    r->e->open_handles--;
    pthread_mutex_unlock(&r->e->lock);
}

static size_t queue_place(const fst_request *r)
{
    size_t n = 0;
    if (r->running || r->finish != FST_FINISH_NONE)
        return 0;
    for (const fst_request *o = r->e->first; o; o = o->next)
        n += !o->running && o->finish == FST_FINISH_NONE && o->submit_ns <= r->submit_ns;
    return n;
}

void fst_request_get_view(const fst_request *r, struct fst_request_view *v)
{
    pthread_mutex_lock(&r->e->lock);
    int64_t now = r->finish != FST_FINISH_NONE ? r->last_ns : clock_ns();
    *v = (struct fst_request_view){
        .ids = r->ids,
        .logprobs = r->logprobs,
        .top = r->top,
        .n = r->n,
        .finish = r->finish,
        .matched_id = r->matched,
        .status = r->status,
        .error = r->status == FST_ENUMERIC ? "logits of step 7 are not numbers"
                 : r->status               ? "deadline passed"
                                           : "",
        .n_prompt = r->n_prompt,
        .n_prefilled = r->n_prefilled,
        .queue_place = queue_place(r),
        .prompt_logprobs = r->prompt_logprobs,
        .prompt_top = r->prompt_top,
        .seed = r->o.sampling.seed,
        .spec = {.verify_steps = r->n ? (r->n + 2) / 3 : 0,
                 .drafted = r->n,
                 .accepted = r->n / 2,
                 .accept_length = 3.0},
        .queue_s = r->start_ns ? clock_seconds(r->start_ns - r->submit_ns) : 0,
        .prefill_s =
            r->start_ns ? clock_seconds((r->first_ns ? r->first_ns : now) - r->start_ns) : 0,
        .decode_s = r->first_ns ? clock_seconds(now - r->first_ns) : 0,
    };
    pthread_mutex_unlock(&r->e->lock);
}

enum fst_status fst_request_wait(fst_request *r, double timeout_s)
{
    int64_t until = clock_ns() + (int64_t)(1e9 * timeout_s);
    for (;;) {
        pthread_mutex_lock(&r->e->lock);
        bool done = r->finish != FST_FINISH_NONE;
        pthread_mutex_unlock(&r->e->lock);
        if (done)
            return FST_OK;
        if (clock_ns() >= until)
            return fst_error(FST_ETIMEOUT, "deadline passed");
        usleep(1000);
    }
}
