#include "server/gen.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "server/fields.h"
#include "server/keep.h"

/* Bodies above this are parsed, rendered and tokenised on a helper thread: 64 KiB take about 2 ms,
 * as long as the loop may be away from its other connections. */
enum { INLINE_BODY_MAX = 64 << 10 };

const struct gen_params *gen_params_of(const struct gen_choice *c)
{
    const struct gen *g = c->g;
    return &g->params[g->n_params > 1 ? c->prompt : 0];
}

const struct fst_request_view *gen_prompt_view(const struct gen_choice *c)
{
    return &c[-c->k].view; /* choices of one prompt lie side by side */
}

bool gen_oom(struct gen *g)
{
    return api_fail(&g->err, 503, "out_of_memory", NULL, "out of memory for this request");
}

/* ------------------------------------------------------------------ life */

static void free_choice(struct gen *g, struct gen_choice *c)
{
    if (c->req) {
        fst_request_free(c->req);
        g->s->handles_given++;
    }
    chat_stream_free(c->st);
    chat_watch_free(c->watch); /* the request, which feeds it, is gone */
    buf_release(&c->content);
    buf_release(&c->reasoning);
    buf_release(&c->pending);
    for (size_t i = 0; i < c->n_calls; i++) {
        mem_free(c->calls[i].id);
        mem_free(c->calls[i].name);
        buf_release(&c->calls[i].args);
    }
    mem_free(c->calls);
}

static void gen_free(struct gen *g)
{
    struct server *s = g->s;
    FST_ASSERT(!g->working);
    if (g->x) {
        g->x->on_gone = NULL;
        g->x->on_tick = NULL;
    }
    for (int i = 0; i < g->n_choices; i++)
        free_choice(g, &g->choices[i]);
    mem_free(g->choices);
    for (size_t i = 0; i < g->n_prompts; i++) {
        tokenizer_ids_release(&g->prompts[i]);
        if (g->echo_text)
            buf_release(&g->echo_text[i]);
    }
    mem_free(g->prompts);
    mem_free(g->echo_text);
    for (size_t i = 0; i < g->n_params; i++) {
        grammar_ask_release(g->s->grammars, &g->params[i].ask);
        gen_params_release(&g->params[i]);
    }
    mem_free(g->params);
    tokenizer_ids_release(&g->force);
    if (g->has_chat) {
        chat_prompt_release(&g->prompt);
        chat_request_release(&g->chat);
    }
    if (g->d->release && g->ud)
        g->d->release(g);
    if (g->keep)
        keep_without_gen(g->keep);
    json_free(g->doc);
    buf_release(&g->body);
    mem_free(g->key);
    mem_free(g->rid);
    mem_free(g->model);
    if (g->prev)
        g->prev->next = g->next;
    else
        s->gens = g->next;
    if (g->next)
        g->next->prev = g->prev;
    s->n_gens--;
    mem_free(g);
}

static void count_abort(struct gen *g)
{
    g->s->m.aborted++;
}

static void on_gone(struct exch *x, void *ud)
{
    (void)x;
    struct gen *g = ud;
    g->x = NULL;
    if (g->working)
        return; /* freed when the helper thread is back */
    if (g->keep) {
        keep_touch(g->keep);
        return;
    }
    gen_drop(g);
}

void gen_drop(struct gen *g)
{
    count_abort(g);
    gen_free(g);
}

/* What a reader of a kept answer gets that failed. */
static void keep_error(struct gen *g)
{
    struct buf b = {0};
    bool stream = g->stream;
    g->stream = false;
    if (g->d->failed)
        g->d->failed(g, &b);
    else
        api_error_json(&b, &g->err, g->d->shape, NULL);
    keep_answer(g->keep, g->d->failed ? 200 : g->err.status, &b);
    g->stream = stream;
    buf_release(&b);
}

/* Answer with g->err: as a status while the head is not out, else inside the stream. */
static void answer_error(struct gen *g)
{
    struct exch *x = g->x;
    FST_ASSERT(g->err.status);
    if (x) {
        x->on_gone = NULL;
        x->on_tick = NULL;
    }
    g->answered = true;
    if (x && !x->status) {
        g->x = NULL;
        api_send_error(x, &g->err, g->d->shape);
        return;
    }
    struct buf b = {0};
    if (g->stream && g->d->failed) {
        g->d->failed(g, NULL);
    } else if (g->stream) {
        api_error_stream_json(&b, &g->err, g->d->shape, x ? x->request_id : NULL);
        gen_send_named(g, g->d->shape == SHAPE_ANTHROPIC ? "error" : NULL, &b);
        buf_release(&b);
    }
    bool broken = !g->stream || !g->d->failed;
    if (g->keep) {
        g->keep->failed = broken;
        keep_error(g);
    }
    g->x = NULL;
    if (x && broken)
        exch_stream_break(x);
    else if (x)
        exch_stream_end(x);
}

static void fail(struct gen *g)
{
    if (g->x || g->keep)
        answer_error(g);
    gen_free(g);
}

/* ------------------------------------------------------------------ preparing */

static bool too_many_choices(struct gen *g, int64_t total)
{
    return api_fail(&g->err, 400, "invalid_value", "n",
                    "prompts times n must be at most %d, got %lld", GEN_CHOICES_MAX,
                    (long long)total);
}

bool gen_alloc_prompts(struct gen *g, size_t n)
{
    if (n > GEN_CHOICES_MAX) /* before memory is taken for each of them */
        return too_many_choices(g, (int64_t)n);
    g->prompts = mem_calloc(n, sizeof *g->prompts);
    if (!g->prompts)
        return gen_oom(g);
    g->n_prompts = n;
    return true;
}

bool gen_set_model(struct gen *g, json_val *body)
{
    const struct server *s = g->s;
    const char *name = NULL;
    struct field_reader r = {body, "", &g->err};
    if (!field_str(&r, "model", &name, NULL))
        return false;
    if (name && s->o.strict_model_name && strcmp(name, s->model_name) != 0) {
        char q[96];
        return api_fail(&g->err, 404, "model_not_found", "model",
                        "The model '%s' does not exist; this server has '%s'.",
                        api_quote(q, name, strlen(name)), s->model_name);
    }
    const char *rid = NULL;
    if (!field_str(&r, "rid", &rid, NULL))
        return false;
    if (rid && !(g->rid = mem_strdup(rid)))
        return gen_oom(g);
    g->model = mem_strdup(name && name[0] ? name : s->model_name);
    return g->model || gen_oom(g);
}

bool gen_read_ids(struct gen *g, json_val *array, const char *param, struct tokenizer_ids *out)
{
    size_t n = json_count(array);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        char q[96];
        if (!json_int(json_at(array, i), &id))
            return api_fail(&g->err, 400, "invalid_type", param,
                            "%s[%zu]: expected an integer, got %s", param, i,
                            api_quote_value(q, json_at(array, i)));
        if (id < 0 || id >= g->s->info.vocab_size)
            return api_fail(&g->err, 400, "invalid_value", param,
                            "The %s[%zu] is out of range: got %lld, vocabulary size is %d", param,
                            i, (long long)id, g->s->info.vocab_size);
        if (tokenizer_ids_push(out, (int32_t)id) != FST_OK)
            return gen_oom(g);
    }
    return true;
}

bool gen_check_prompt(struct gen *g, size_t i, const char *param)
{
    int64_t n = (int64_t)g->prompts[i].n, ctx = g->s->info.context_length;
    if (n == 0)
        return api_fail(&g->err, 400, "invalid_value", param,
                        "%s: the prompt has no tokens, at least one is needed", param);
    if (n >= ctx && g->d->shape == SHAPE_ANTHROPIC) /* its clients look for these words */
        return api_fail(&g->err, 400, "context_length_exceeded", param,
                        "prompt is too long: %lld tokens > %lld maximum", (long long)n,
                        (long long)ctx);
    if (n >= ctx) {
        api_fail(&g->err, 400, "context_length_exceeded", param,
                 "This model's maximum context length is %lld tokens. The input (%lld tokens) is "
                 "longer than the model's context length (%lld tokens).",
                 (long long)ctx, (long long)n, (long long)ctx);
        g->err.n_prompt = n;
        g->err.n_ctx = ctx;
        return false;
    }
    return true;
}

static void prepare(void *ud)
{
    struct gen *g = ud;
    enum fst_status rc = json_parse(&g->doc, buf_str(&g->body), g->body.len);
    if (rc == FST_ENOMEM) {
        gen_oom(g);
        return;
    }
    if (rc < 0) {
        api_fail(&g->err, 400, "invalid_json", NULL, "%s", fst_error_text());
        return;
    }
    if (json_type_of(json_root(g->doc)) != JSON_OBJECT) {
        api_fail(&g->err, 400, "invalid_type", NULL, "body: expected an object, got %s",
                 json_type_name(json_type_of(json_root(g->doc))));
        return;
    }
    if ((!g->d->prepare(g) || (g->has_chat && !gen_ask_chat(g))) && !g->err.status)
        api_fail(&g->err, 500, "internal_error", NULL, "%s", fst_error_text());
}

/* Of a helper thread. */
static void compile(void *ud)
{
    gen_compile(ud);
}

static void prepare_all(void *ud)
{
    struct gen *g = ud;
    prepare(g);
    if (!g->err.status && !gen_find_grammars(g))
        gen_compile(g);
}

/* ------------------------------------------------------------------ text events */

static struct gen_call *new_call(struct gen_choice *c, const struct chat_event *e)
{
    if (c->n_calls == c->cap_calls) {
        size_t cap = c->cap_calls ? 2 * c->cap_calls : 4;
        struct gen_call *more = mem_realloc(c->calls, cap * sizeof *more);
        if (!more)
            return NULL;
        c->calls = more;
        c->cap_calls = cap;
    }
    struct gen_call *k = &c->calls[c->n_calls];
    *k = (struct gen_call){.id = mem_strdup(e->id), .name = mem_strdup(e->name)};
    c->n_calls++;
    return k->id && k->name ? k : NULL;
}

static void on_event(void *ud, const struct chat_event *e)
{
    struct gen_choice *c = ud;
    struct gen *g = c->g;
    switch (e->type) {
    case CHAT_EVENT_REASONING:
        buf_append(&c->reasoning, e->text, e->len);
        break;
    case CHAT_EVENT_CONTENT:
        buf_append(&c->content, e->text, e->len);
        break;
    case CHAT_EVENT_CALL_BEGIN:
        if (!new_call(c, e))
            gen_oom(g);
        break;
    case CHAT_EVENT_CALL_ARGS:
        if ((size_t)e->index < c->n_calls)
            buf_append(&c->calls[e->index].args, e->text, e->len);
        break;
    case CHAT_EVENT_CALL_END:
        if ((size_t)e->index < c->n_calls)
            c->calls[e->index].complete = true;
        break;
    case CHAT_EVENT_CALL_CANCEL:
        if ((size_t)e->index < c->n_calls)
            c->calls[e->index].cancelled = true;
        break;
    }
    if (c->reasoning.failed || c->content.failed)
        gen_oom(g);
    if (g->stream && g->d->event && !g->err.status)
        g->d->event(c, e);
}

/* ------------------------------------------------------------------ starting */

/* From the engine's thread. */
static void wake(void *ud)
{
    loop_wake(ud);
}

/* From the engine's thread. */
static struct fst_verdict on_token(void *ud, int64_t n, int32_t id, enum fst_finish ends)
{
    struct chat_watch_verdict v = chat_watch_feed(ud, id,
                                                  ends == FST_FINISH_STOP     ? CHAT_WATCH_STOP_ID
                                                  : ends == FST_FINISH_LENGTH ? CHAT_WATCH_LENGTH
                                                                              : CHAT_WATCH_GOES_ON);

    (void)n;
    return (struct fst_verdict){.force = v.force, .stop = v.stop, .keep = (int64_t)v.keep};
}

/* Tokens that may be thoughts, so that an answer has room; -1: any number. */
static int64_t budget_of(const struct gen_choice *c)
{
    const struct gen *g = c->g;
    const struct gen_params *p = gen_params_of(c);
    int64_t room = g->s->info.context_length - (int64_t)g->prompts[c->prompt].n;
    int64_t max = p->max_new < 0 ? room : FST_MIN(p->max_new, room);
    int64_t most = FST_MAX(max - FST_MAX(64, max / 4), 0);

    if (p->budget == GEN_BUDGET_NONE || g->kind != CHAT_STREAM_CHAT)
        return -1;
    return p->budget == GEN_BUDGET_AUTO ? most : FST_MIN(p->budget, most);
}

/* Nothing but ids and the engine's own ends: nobody has to look. */
static bool needs_watch(const struct gen *g, const struct gen_params *p)
{
    return p->n_stops > 0 || p->loop_guard || g->kind == CHAT_STREAM_CHAT;
}

/* Ids before the first user turn: the system text and the tools, which conversations share. */
static size_t preamble(const struct gen *g, const struct tokenizer_ids *ids)
{
    int32_t user = tokenizer_specials(g->s->tok)->user;
    for (size_t i = 0; g->kind == CHAT_STREAM_CHAT && i < ids->n; i++)
        if (ids->id[i] == user)
            return i;
    return 0;
}

static bool start_choice(struct gen *g, struct gen_choice *c)
{
    const struct gen_params *p = gen_params_of(c);
    const struct tokenizer_ids *ids = &g->prompts[c->prompt];
    struct server *s = g->s;
    struct chat_stream_opts so = {.tokenizer = s->tok, .kind = g->kind};
    if (g->kind == CHAT_STREAM_CHAT)
        chat_stream_opts_init(&so, s->tok, &g->chat, &g->prompt);
    so.parser.event = on_event;
    so.parser.ud = c;
    so.parser.call_id_ud = (void *)(uintptr_t)g->d->call_prefix;
    so.stops = p->stop;
    so.n_stops = p->n_stops;
    so.no_stop_trim = p->no_stop_trim;
    so.skip_special = p->skip_special;
    struct chat_watch_opts wo = {.stream = so,
                                 .budget = budget_of(c),
                                 .loops = p->loop_guard && !p->ignore_eos,
                                 .bound = grammar_of(&p->ask) && !p->ask.of_block};
    if (chat_stream_new(&c->st, &so) < 0 ||
        (needs_watch(g, p) && chat_watch_new(&c->watch, &wo) < 0))
        return gen_oom(g);
    struct fst_request_opts ro;
    struct hash128 key = hash128(g->key, strlen(g->key), s->salt);
    fst_request_opts_default(&ro);
    /* Users of other keys or salts find nothing of each other's prompts. */
    ro.cache_salt[0] = key.lo;
    ro.cache_salt[1] = key.hi;
    ro.cache_salt[2] = g->salt.lo;
    ro.cache_salt[3] = g->salt.hi;
    ro.report_prefix = g->report_cache;
    ro.after = c->k > 0 ? c[-c->k].req : NULL;
    ro.ids = ids->id;
    ro.n_ids = ids->n;
    ro.n_preamble = preamble(g, ids);
    ro.max_new_tokens = p->max_new;
    ro.min_new_tokens = p->min_new;
    ro.sampling = p->sampling;
    ro.sampling.choice = (uint32_t)c->k;
    ro.sampling.seed = c->seed;
    ro.sampling.has_seed = true;
    ro.ignore_eos = p->ignore_eos;
    ro.stop_ids = p->stop_id;
    ro.n_stop_ids = p->n_stop_ids;
    ro.logit_bias = p->bias;
    ro.n_logit_bias = p->n_bias;
    ro.force_ids = g->force.id;
    ro.n_force_ids = g->force.n;
    ro.debug_retract_at = g->retract_at;
    ro.on_token = c->watch ? on_token : NULL;
    ro.on_token_ud = c->watch;
    ro.logprobs = p->logprobs || p->rank;
    ro.top_logprobs = p->top_logprobs;
    if (c->k == 0) { /* gen_prompt_view */
        ro.prompt_logprobs_from = p->prompt_logprobs_from;
        ro.prompt_top_logprobs = p->prompt_top_logprobs;
    }
    ro.timeout_s = s->o.request_timeout_s;
    ro.on_change = wake;
    ro.on_change_ud = s->loop;
    struct fst_gate gate;
    struct buf text = {0};
    if (!gen_put_grammar(c, &ro, &gate, &text))
        return false;
    enum fst_status rc = fst_request_submit(s->engine, &ro, &c->req);
    buf_release(&text);
    if (rc < 0) {
        if (rc == FST_EFULL && s->o.queue_full_status == 429) {
            api_fail(&g->err, 429, "queue_full", NULL, "The request queue is full.");
            return false;
        }
        return api_fail_status(&g->err, rc, NULL);
    }
    s->handles_taken++;
    return true;
}

static bool counts_tokens(const struct gen_params *p)
{
    const struct fst_sampling *s = &p->sampling;
    return s->presence_penalty != 0 || s->frequency_penalty != 0 || s->repetition_penalty != 1;
}

/* How many choices there are; 0 after an error: too many, or prompts too long for so many. */
static int count_choices(struct gen *g)
{
    int64_t total = 0, bytes = 0;
    for (size_t i = 0; i < g->n_prompts; i++) {
        const struct gen_params *p = &g->params[g->n_params > 1 ? i : 0];
        int64_t n = (int64_t)g->prompts[i].n;
        total += p->n;
        bytes += n * (int64_t)sizeof(int32_t) * p->n;
        bytes += (int64_t)(p->n_bias * sizeof *p->bias) * p->n;
        if (counts_tokens(p)) /* a place and a count for each of the vocabulary, at most */
            bytes += (int64_t)g->s->info.vocab_size * 12 * p->n;
        if (p->prompt_logprobs_from >= 0)
            bytes += n * (int64_t)(sizeof(float) +
                                   (size_t)p->prompt_top_logprobs * sizeof(struct fst_top_logprob));
    }
    if (total > GEN_CHOICES_MAX) {
        too_many_choices(g, total);
        return 0;
    }
    if (bytes > GEN_COPIES_MAX) {
        api_fail(&g->err, 400, "invalid_value", "n",
                 "n: prompts, their log-probabilities, biases and counts for %lld choices take "
                 "%lld MiB, "
                 "at most %d MiB are allowed in one request",
                 (long long)total, (long long)(bytes >> 20), GEN_COPIES_MAX >> 20);
        return 0;
    }
    return (int)total;
}

/* The token goes out at once: a client that is cut off before the first word must have it. */
static void announce(struct gen *g)
{
    if (g->d->accepted && g->d->accepted(g))
        return;
    if (g->stream) {
        gen_stream_head(g->x, g->keep->token);
        return;
    }
    exch_add_header(g->x, "X-Firesteel-Resume", g->keep->token);
    exch_stream_begin(g->x, 200, "application/json");
}

static void start(struct gen *g)
{
    struct server *s = g->s;
    int total = count_choices(g);
    if (!total) {
        fail(g);
        return;
    }
    g->choices = mem_calloc((size_t)total, sizeof *g->choices);
    if (!g->choices) {
        gen_oom(g);
        fail(g);
        return;
    }
    g->n_choices = total;
    int at = 0;
    for (size_t i = 0; i < g->n_prompts; i++) {
        const struct gen_params *p = &g->params[g->n_params > 1 ? i : 0];
        /* Choices of one prompt without a seed share one that is drawn here, and differ by their
         * index alone, so that the seed in the answer gives all of them again.  53 bits pass
         * through clients that read numbers as doubles. */
        uint64_t seed = p->sampling.has_seed ? p->sampling.seed : rng_u64(&s->seeds) >> 11;
        for (int k = 0; k < p->n; k++, at++)
            g->choices[at] = (struct gen_choice){.g = g,
                                                 .index = at,
                                                 .prompt = (int)i,
                                                 .k = k,
                                                 .seed = seed,
                                                 .matched_id = -1,
                                                 .matched_stop = -1};
    }
    if (g->keep_s > 0 && !keep_open(g)) {
        fail(g);
        return;
    }
    for (int i = 0; i < total; i++) {
        if (!start_choice(g, &g->choices[i])) {
            fail(g);
            return;
        }
    }
    if (g->stream)
        s->m.requests_stream++;
    else
        s->m.requests_plain++;
    const struct gen_params *p = &g->params[0];
    int64_t room = s->info.context_length - (int64_t)g->prompts[0].n;
    if (p->max_new > room && g->x) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)room);
        exch_add_header(g->x, "X-Max-Tokens", text);
    }
    bool stops = false; /* the answer names the one that matched: they live in the document */
    for (size_t i = 0; i < g->n_params; i++)
        stops |= g->params[i].n_stops > 0;
    if (!stops) {
        json_free(g->doc);
        g->doc = NULL;
    }
    buf_release(&g->body);
    if (g->has_chat && g->prompt.n_wrapped)
        log_warn("tool arguments", "id=%s calls=%d no JSON object: rendered as one parameter",
                 g->id, g->prompt.n_wrapped);
    if (s->o.log_requests_level >= 2 && g->has_chat) {
        char v[512];
        log_info("request prompt", "id=%s text=%s", g->id,
                 log_value(v, sizeof v, buf_str(&g->prompt.text), g->prompt.text.len));
    }
    if (g->keep)
        announce(g);
}

static void prepared(void *ud)
{
    struct gen *g = ud;
    g->working = false;
    gen_count_grammars(g);
    if (!g->x) { /* the client left meanwhile */
        count_abort(g);
        gen_free(g);
        return;
    }
    if (!g->err.status && g->aborted)
        api_fail(&g->err, 503, "aborted", NULL, "The request was aborted.");
    if (!g->err.status && g->s->state != SERVER_READY)
        api_fail(&g->err, 503, "shutting_down", NULL, "server shutting down");
    if (g->err.status)
        fail(g);
    else
        start(g);
}

/* ------------------------------------------------------------------ following */

static void log_end(const struct gen *g)
{
    const struct server *s = g->s;
    if (s->o.log_requests_level < 1)
        return;
    for (int i = 0; i < g->n_choices; i++) {
        const struct gen_choice *c = &g->choices[i];
        double decode = c->view.decode_s;
        log_info("request end",
                 "id=%s api=%s choice=%d prompt=%zu cached=%zu completion=%llu queue_s=%.3f "
                 "ttft_s=%.3f tpot_ms=%.2f accept_len=%.2f finish=%s%s",
                 g->id, g->d->name, c->index, c->view.n_prompt, c->view.n_cached,
                 (unsigned long long)c->n_tokens, c->view.queue_s,
                 c->view.queue_s + c->view.prefill_s,
                 c->n_tokens > 1 ? 1e3 * decode / (double)(c->n_tokens - 1) : 0.0,
                 c->view.spec.accept_length, c->finish_reason,
                 s->info.debug_hooks ? " debug_hooks=1" : "");
    }
}

static void count_end(struct gen *g)
{
    struct metrics *m = &g->s->m;
    double e2e = clock_seconds(clock_ns() - g->start_ns);
    for (int i = 0; i < g->n_choices; i++) {
        const struct gen_choice *c = &g->choices[i];
        m->generation_tokens += c->n_tokens;
        histogram_observe(&m->generation_len, (double)c->n_tokens, 1);
        histogram_observe(&m->queue, c->view.queue_s, 1);
        if (c->k == 0) { /* choices share their prompt, as in usage */
            m->prompt_tokens += c->view.n_prompt;
            m->cached_tokens += c->view.n_cached;
            histogram_observe(&m->prompt_len, (double)c->view.n_prompt, 1);
            histogram_observe(&m->uncached_len, (double)(c->view.n_prompt - c->view.n_cached), 1);
        }
    }
    histogram_observe(&m->e2e, e2e, 1);
}

/* The choice is complete: by its end in the engine, or by a stop string before that. */
static void end_choice(struct gen_choice *c)
{
    struct gen *g = c->g;
    const struct chat_stream_result *r = chat_stream_result(c->st);
    bool by_text = r->stopped;
    enum chat_end end = CHAT_END_STOP;
    if (!by_text && c->view.finish == FST_FINISH_LENGTH)
        end = CHAT_END_LENGTH;
    else if (!by_text && (c->view.finish == FST_FINISH_ABORT))
        end = CHAT_END_ABORT;
    if (chat_stream_finish(c->st, end) < 0) {
        gen_oom(g);
        return;
    }
    if (by_text)
        fst_request_cancel(c->req);
    c->done = true;
    g->n_done++;
    c->n_tokens = r->n_tokens;
    c->n_reasoning = r->reasoning_tokens;
    c->finish_reason = chat_finish_name(r->finish);
    if (c->view.finish == FST_FINISH_WATCH && !by_text) { /* nobody asked for calls that go round */
        c->loop = chat_watch_loop(c->watch);
        c->finish_reason = chat_finish_name(CHAT_FINISH_STOP);
    }
    c->matched_stop = r->stop_index;
    if (!by_text && c->view.finish == FST_FINISH_STOP)
        c->matched_id = c->view.matched_id;
    remember_choice(c); /* before the client can send it back */
    if (g->stream && !g->err.status)
        g->d->choice_end(c);
}

/* Returns false when g was freed. */
static void update_choice(struct gen_choice *c)
{
    struct gen *g = c->g;
    struct server *s = g->s;
    size_t seen = c->view.n;
    fst_request_get_view(c->req, &c->view);
    const struct fst_request_view *v = &c->view;
    bool ended = v->finish != FST_FINISH_NONE;
    if (v->finish == FST_FINISH_ERROR) {
        if (v->status == FST_ETIMEOUT)
            api_fail(&g->err, 503, "timeout", NULL, "Request timeout reached: %s", v->error);
        else if (v->status == FST_ESHUTDOWN)
            api_fail(&g->err, 503, "shutting_down", NULL, "server shutting down");
        else
            api_fail(&g->err, 500, "engine_error", NULL, "%s",
                     v->error && v->error[0] ? v->error : fst_status_text(v->status));
        return;
    }
    if (v->n > seen) {
        int64_t now = clock_ns();
        if (!seen && !g->first_ns) {
            g->first_ns = now;
            histogram_observe(&s->m.ttft, clock_seconds(now - g->start_ns), 1);
        }
        if (seen && c->last_token_ns)
            histogram_observe(&s->m.itl,
                              clock_seconds(now - c->last_token_ns) / (double)(v->n - seen),
                              v->n - seen);
        c->last_token_ns = now;
    }
    if (!v->n && !ended) {
        if (g->stream && g->progress && g->d->progress && v->n_prefilled != c->progress_seen) {
            c->progress_seen = v->n_prefilled;
            g->d->progress(c);
        }
        return;
    }
    if (!ended && v->n - c->fed < (size_t)s->o.stream_interval)
        return;
    if (c->k > 0 && gen_params_of(c)->prompt_logprobs_from >= 0) {
        const struct fst_request_view *first = gen_prompt_view(c);
        if (!first->n && first->finish == FST_FINISH_NONE)
            return; /* its wake-up looks at this choice again */
    }
    size_t before = c->fed;
    while (c->fed < v->n && !chat_stream_result(c->st)->stopped) {
        bool is_stop = v->finish == FST_FINISH_STOP && v->matched_id >= 0 && c->fed + 1 == v->n;
        if (chat_stream_feed(c->st, v->ids[c->fed], is_stop) < 0)
            gen_oom(g);
        c->fed++;
        if (g->err.status)
            return;
    }
    ended |= chat_stream_result(c->st)->stopped;
    if (g->stream && !ended && c->fed > before)
        g->d->batch(c);
    if (ended)
        end_choice(c);
}

/* The answer of a kept stream as one, for those who ask later. */
static void keep_whole(struct gen *g)
{
    struct exch *x = g->x;
    g->x = NULL;
    g->stream = false;
    for (int i = 0; i < g->n_choices; i++)
        g->choices[i].sent_logprobs = g->choices[i].sent_text = g->choices[i].sent_ids = 0;
    g->d->finish(g);
    if (g->err.status) /* the stream itself is well */
        keep_error(g);
    g->err = (struct api_error){0};
    g->stream = true;
    g->x = x;
}

static void update(struct gen *g)
{
    if (g->working || g->answered || !g->n_choices)
        return;
    for (int i = 0; i < g->n_choices && !g->err.status; i++)
        if (!g->choices[i].done)
            update_choice(&g->choices[i]);
    if (g->err.status) {
        fail(g);
        return;
    }
    if (g->n_done < g->n_choices)
        return;
    count_end(g);
    log_end(g);
    g->answered = true;
    if (g->x) {
        g->x->on_gone = NULL;
        g->x->on_tick = NULL;
    }
    if (g->keep && g->stream) /* first: when the stream ends, its reader's next request is begun */
        keep_whole(g);
    g->d->finish(g);
    if (g->err.status) {
        g->answered = false;
        fail(g);
        return;
    }
    g->x = NULL;
    gen_free(g);
}

void gen_update_all(struct server *s)
{
    for (struct gen *g = s->gens, *next; g; g = next) {
        next = g->next;
        update(g);
    }
}

int gen_abort(struct server *s, const char *rid)
{
    int n = 0;
    for (struct gen *g = s->gens; g; g = g->next) {
        if (rid && strcmp(rid, g->id) != 0 && (!g->rid || strcmp(rid, g->rid) != 0))
            continue;
        n++;
        s->m.aborted++;
        for (int i = 0; i < g->n_choices; i++)
            if (!g->choices[i].done)
                fst_request_cancel(g->choices[i].req);
        g->aborted = true; /* for one that a helper thread still prepares */
    }
    return n;
}

/* ------------------------------------------------------------------ streams */

void gen_stream_head(struct exch *x, const char *token)
{
    exch_add_header(x, "Cache-Control", "no-cache");
    exch_add_header(x, "X-Accel-Buffering", "no");
    if (token)
        exch_add_header(x, "X-Firesteel-Resume", token);
    exch_stream_begin(x, 200, "text/event-stream; charset=utf-8");
}

static void stream_head(struct gen *g)
{
    if (!g->x->status)
        gen_stream_head(g->x, g->keep ? g->keep->token : NULL);
}

/* One event: to who reads, and to what is kept. */
static void send_event(struct gen *g, const char *type, const char *data, size_t len)
{
    struct buf b = {0};
    if (g->keep)
        buf_printf(&b, "id: %llu\n", (unsigned long long)keep_next(g->keep));
    if (type)
        buf_printf(&b, "event: %s\n", type);
    buf_puts(&b, "data: ");
    buf_append(&b, data, len);
    buf_puts(&b, "\n\n");
    if (b.failed) {
        gen_oom(g);
    } else {
        if (g->keep)
            keep_event(g->keep, &b);
        if (g->x) {
            stream_head(g);
            exch_stream_write(g->x, b.data, b.len);
        }
    }
    buf_release(&b);
}

void gen_send_named(struct gen *g, const char *type, const struct buf *json)
{
    if (g->err.status && !g->answered)
        return; /* an event was lost: what follows it may not look whole */
    if (json->failed)
        gen_oom(g);
    else
        send_event(g, type, json->data, json->len);
}

void gen_send_event(struct gen *g, const struct buf *json)
{
    gen_send_named(g, NULL, json);
}

void gen_send_done(struct gen *g)
{
    send_event(g, NULL, "[DONE]", 6);
    gen_end(g);
}

void gen_end(struct gen *g)
{
    if (g->x && !g->err.status)
        exch_stream_end(g->x);
}

void gen_reply(struct gen *g, const struct buf *json)
{
    if (json->failed) {
        gen_oom(g);
        return;
    }
    if (g->keep)
        keep_answer(g->keep, 200, json);
    if (!g->x)
        return;
    if (!g->x->status) {
        api_send(g->x, 200, json);
        return;
    }
    exch_stream_write(g->x, json->data, json->len);
    exch_stream_end(g->x);
}

void gen_reply_early(struct gen *g, const struct buf *json)
{
    struct exch *x = g->x;
    g->x = NULL;
    x->on_gone = NULL;
    x->on_tick = NULL;
    exch_add_header(x, "X-Firesteel-Resume", g->keep->token);
    api_send(x, 200, json);
    keep_touch(g->keep);
}

/* Places in line change without a sign of the request's own. */
static void tick_progress(struct gen *g)
{
    for (int i = 0; i < g->n_choices; i++) {
        struct gen_choice *c = &g->choices[i];
        if (c->view.n || c->done)
            continue;
        fst_request_get_view(c->req, &c->view);
        if (c->view.n || c->view.queue_place == c->place_seen)
            continue;
        c->place_seen = c->view.queue_place;
        g->d->progress(c);
    }
}

static void on_tick(struct exch *x, void *ud, int64_t now_ms)
{
    struct gen *g = ud;
    double every = g->s->o.sse_keepalive_s;
    /* body.len is not looked at: before `prepare` is back nothing is known of the request. */
    if (g->working || g->answered || !g->stream)
        return;
    if (g->progress && g->d->progress)
        tick_progress(g);
    if ((!g->d->comments && !g->d->keep_alive) || every <= 0)
        return;
    if ((double)(now_ms - x->last_write_ms) < 1e3 * every)
        return;
    if (g->d->keep_alive) {
        g->d->keep_alive(g);
        return;
    }
    stream_head(g);
    exch_stream_write(x, ": keep-alive\n\n", 14);
}

static void take_reader(struct gen *g, struct exch *x)
{
    g->x = x;
    x->ud = g;
    x->on_gone = on_gone;
    x->on_tick = on_tick;
}

void gen_attach(struct gen *g, struct exch *x)
{
    struct exch *old = g->x;
    if (old) {
        old->on_gone = NULL;
        old->on_tick = NULL;
        exch_stream_break(old);
    }
    take_reader(g, x);
}

void gen_run(struct server *s, struct exch *x, const struct gen_dialect *d)
{
    struct api_error e = {0};
    struct gen *g = mem_calloc(1, sizeof *g);
    if (!g) {
        api_fail(&e, 503, "out_of_memory", NULL, "out of memory for this request");
        api_send_error(x, &e, d->shape);
        return;
    }
    g->s = s;
    g->d = d;
    g->start_ns = clock_ns();
    g->created = clock_wall_ns() / 1000000000;
    api_random_id(g->id, d->id_prefix);
    g->next = s->gens;
    if (g->next)
        g->next->prev = g;
    s->gens = g;
    s->n_gens++;
    g->body = x->body;
    x->body = (struct buf){0};
    take_reader(g, x);
    g->working = true;
    if (!(g->key = mem_strdup(auth_key(s, x))))
        gen_oom(g);
    else if (!keep_read(g)) {
        /* the error is recorded */
    } else if (g->body.len > INLINE_BODY_MAX) {
        if (loop_work(s->loop, prepare_all, prepared, g) == FST_OK)
            return;
        gen_oom(g);
    } else {
        prepare(g);
        if (!g->err.status && !gen_find_grammars(g)) {
            s->n_compiling++;
            g->compiling = true;
            if (loop_work(s->loop, compile, prepared, g) == FST_OK)
                return;
            gen_oom(g);
        }
    }
    prepared(g);
}

/* ------------------------------------------------------------------ pieces of answers */

struct usage {
    uint64_t prompt, cached, completion, reasoning;
};

static void put_usage(struct buf *b, const struct usage *u)
{
    buf_printf(b,
               "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%llu},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%llu},"
               "\"prompt_cache_hit_tokens\":%llu,\"prompt_cache_miss_tokens\":%llu,"
               "\"reasoning_tokens\":%llu}",
               (unsigned long long)u->prompt, (unsigned long long)u->completion,
               (unsigned long long)(u->prompt + u->completion), (unsigned long long)u->cached,
               (unsigned long long)u->reasoning, (unsigned long long)u->cached,
               (unsigned long long)(u->prompt - u->cached), (unsigned long long)u->reasoning);
}

static void add_usage(struct usage *u, const struct gen_choice *c)
{
    const struct chat_stream_result *r = chat_stream_result(c->st);
    if (c->k == 0) { /* n choices have one prompt */
        u->prompt += c->g->prompts[c->prompt].n;
        u->cached += c->view.n_cached;
    }
    u->completion += r->n_tokens;
    u->reasoning += r->reasoning_tokens;
}

void gen_put_usage(const struct gen *g, struct buf *b)
{
    struct usage u = {0};
    for (int i = 0; i < g->n_choices; i++)
        add_usage(&u, &g->choices[i]);
    put_usage(b, &u);
}

void gen_put_choice_usage(const struct gen_choice *c, struct buf *b)
{
    struct usage u = {0};
    struct gen_choice one = *c;
    one.k = 0;
    add_usage(&u, &one);
    put_usage(b, &u);
}

void gen_put_timings(const struct gen *g, struct buf *b)
{
    uint64_t cached = 0, prompt = 0, made = 0, drafted = 0, accepted = 0;
    double prefill = 0, decode = 0;
    for (int i = 0; i < g->n_choices; i++) {
        const struct gen_choice *c = &g->choices[i];
        cached += c->view.n_cached;
        prompt += c->view.n_prompt - c->view.n_cached;
        made += chat_stream_result(c->st)->n_tokens;
        drafted += c->view.spec.drafted;
        accepted += c->view.spec.accepted;
        prefill += c->view.prefill_s;
        decode += c->view.decode_s;
    }
    double pn = (double)FST_MAX(prompt, (uint64_t)1), mn = (double)FST_MAX(made, (uint64_t)1);
    buf_printf(b,
               "{\"cache_n\":%llu,\"prompt_n\":%llu,\"prompt_ms\":%.3f,"
               "\"prompt_per_token_ms\":%.3f,\"prompt_per_second\":%.2f,\"predicted_n\":%llu,"
               "\"predicted_ms\":%.3f,\"predicted_per_token_ms\":%.3f,"
               "\"predicted_per_second\":%.2f,\"draft_n\":%llu,\"draft_n_accepted\":%llu}",
               (unsigned long long)cached, (unsigned long long)prompt, 1e3 * prefill,
               1e3 * prefill / pn, prefill > 0 ? (double)prompt / prefill : 0.0,
               (unsigned long long)made, 1e3 * decode, 1e3 * decode / mn,
               decode > 0 ? (double)made / decode : 0.0, (unsigned long long)drafted,
               (unsigned long long)accepted);
}

static const char *reason_text(enum fst_prefix_reason r)
{
    static const char *const text[] = {"unknown", "off",  "scored",  "new",
                                       "differs", "ends", "dropped", "whole"};
    return text[r];
}

static void put_cache_report(const struct gen_choice *c, struct buf *b)
{
    const struct gen *g = c->g;
    const struct fst_prefix_report *p = &c->view.prefix;
    const struct tokenizer_ids *ids = &g->prompts[c->prompt];
    struct buf text = {0};

    buf_printf(b, "\"cache\":{\"cached\":%zu,\"boundary\":%zu,\"same\":%zu,", c->view.n_cached,
               p->boundary, p->same);
    if (p->reason == FST_PREFIX_DIFFERS && p->same < ids->n) {
        int32_t id = ids->id[p->same];
        if (tokenizer_decode(g->s->tok, &id, 1, false, &text) < 0)
            b->failed = true;
        buf_printf(b, "\"first_differing_token\":{\"index\":%zu,\"id\":%d,\"text\":", p->same, id);
        json_put_string_safe(b, buf_str(&text), text.len);
        buf_puts(b, "},");
        buf_release(&text);
    } else {
        buf_puts(b, "\"first_differing_token\":null,");
    }
    buf_printf(b, "\"reason\":\"%s\"}", reason_text(p->reason));
}

/* What an answer says about itself beside the protocol: that it is not to be taken for the model's, and what
 * of its prompt was computed. */
void gen_put_firesteel(const struct gen_choice *c, struct buf *b)
{
    const char *debug = c->g->s->info.debug_hooks;

    if (!debug && !c->g->report_cache)
        return;
    buf_puts(b, ",\"firesteel\":{");
    if (debug) {
        buf_puts(b, "\"debug_hooks\":");
        json_put_string_safe(b, debug, strlen(debug));
        buf_puts(b, c->g->report_cache ? "," : "");
    }
    if (c->g->report_cache)
        put_cache_report(c, b);
    buf_putc(b, '}');
}

void gen_put_head(const struct gen *g, struct buf *b, const char *object)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
               (long long)g->created);
    json_put_string_safe(b, g->model, strlen(g->model));
    buf_puts(b, ",\"choices\":[");
}

void gen_put_chunk_tail(const struct gen_choice *c, struct buf *b, bool last)
{
    const struct gen *g = c->g;
    buf_putc(b, ']');
    if (last && (g->timings || g->progress)) {
        buf_puts(b, ",\"timings\":");
        gen_put_timings(g, b);
    }
    if (last)
        gen_put_firesteel(c, b);
    if (g->continuous_usage) {
        buf_puts(b, ",\"usage\":");
        gen_put_choice_usage(c, b);
    } else if (g->include_usage) {
        buf_puts(b, ",\"usage\":null");
    }
    buf_putc(b, '}');
}

void gen_put_progress_object(const struct gen_choice *c, struct buf *b)
{
    const struct fst_request_view *v = &c->view;
    double done = (double)(v->n_prefilled - FST_MIN(v->n_cached, v->n_prefilled));
    buf_printf(b, "{\"total\":%zu,\"cache\":%zu,\"processed\":%zu,\"time_ms\":%.0f,\"eta_ms\":",
               v->n_prompt, v->n_cached, v->n_prefilled, 1e3 * v->prefill_s);
    if (done > 0)
        buf_printf(b, "%.0f", 1e3 * v->prefill_s / done * (double)(v->n_prompt - v->n_prefilled));
    else
        buf_puts(b, "null");
    buf_printf(b, ",\"queue_position\":%zu}", v->queue_place);
}

void gen_put_progress(const struct gen_choice *c, struct buf *b)
{
    buf_puts(b, ",\"prompt_progress\":");
    gen_put_progress_object(c, b);
    buf_printf(b, "%s}", c->g->include_usage ? ",\"usage\":null" : "");
}

void gen_answer(struct gen *g, struct buf *b)
{
    buf_puts(b, "],\"usage\":");
    gen_put_usage(g, b);
    buf_printf(b, ",\"system_fingerprint\":\"firesteel-%s%s\",\"seed\":%llu", FST_VERSION,
               g->s->info.debug_hooks ? "-debug" : "", (unsigned long long)g->choices[0].view.seed);
    if (g->timings || g->progress) {
        buf_puts(b, ",\"timings\":");
        gen_put_timings(g, b);
    }
    gen_put_firesteel(&g->choices[0], b);
    buf_putc(b, '}');
    gen_reply(g, b);
}

void gen_end_stream(struct gen *g, const char *object)
{
    if (g->include_usage) {
        struct buf b = {0};
        gen_put_head(g, &b, object);
        buf_puts(&b, "],\"usage\":");
        gen_put_usage(g, &b);
        buf_putc(&b, '}');
        gen_send_event(g, &b);
        buf_release(&b);
        if (g->err.status)
            return;
    }
    gen_send_done(g);
}

void gen_put_finish_details(const struct gen_choice *c, struct buf *b)
{
    if (c->loop != CHAT_LOOP_NONE)
        buf_printf(b, ",\"finish_details\":{\"type\":\"loop_guard\",\"repeats\":\"%s\"}",
                   c->loop == CHAT_LOOP_CALLS ? "tool_call" : "text");
}

void gen_put_matched(const struct gen_choice *c, struct buf *b)
{
    const struct gen_params *p = gen_params_of(c);
    if (c->matched_stop >= 0) {
        const struct chat_str *s = &p->stop[c->matched_stop];
        json_put_string_safe(b, s->data, s->len);
    } else if (c->matched_id >= 0) {
        buf_printf(b, "%lld", (long long)c->matched_id);
    } else {
        buf_puts(b, "null");
    }
}

void gen_put_token_text(const struct server *s, struct buf *b, int32_t id)
{
    size_t len;
    const char *bytes = tokenizer_bytes(s->tok, id, &len);
    json_put_string_safe(b, bytes, len); /* broken UTF-8 becomes U+FFFD */
}

double gen_put_logprob(struct buf *b, float x)
{
    double y = isfinite(x) ? (double)x : -9999.0;
    if (y < -9999.0)
        y = -9999.0;
    json_put_double(b, y);
    return y;
}
