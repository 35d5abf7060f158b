/* api_info.c - what the server says about itself, and abort. */
#include <math.h>

#include "base/clock.h"
#include "server/fields.h"
#include "server/gen.h"
#include "server/keep.h"

void api_page(struct server *s, struct exch *x)
{
    struct buf b = {0};
    buf_printf(&b,
               "firesteel %s serving %s\n\n"
               "  POST /v1/chat/completions   OpenAI chat\n"
               "  POST /v1/responses          OpenAI Responses\n"
               "  POST /v1/messages           Anthropic chat\n"
               "  POST /v1/completions        text completion\n"
               "  POST /generate              native\n"
               "  POST /tokenize /detokenize  text to ids and back\n"
               "  GET  /v1/models /health /metrics /server_info\n\n"
               "  curl http://127.0.0.1:%d/v1/chat/completions -d "
               "'{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n",
               FST_VERSION, s->model_name, s->port);
    exch_reply(x, 200, "text/plain; charset=utf-8", buf_str(&b), b.len);
    buf_release(&b);
}

void api_health(struct server *s, struct exch *x)
{
    struct buf b = {0};
    int status = 503;
    double stalled = server_stalled_s(s);
    if (s->state == SERVER_STARTING) {
        uint64_t done = s->load.done, total = s->load.total;
        buf_printf(&b,
                   "{\"status\":\"starting\",\"stage\":\"%s\",\"loaded_bytes\":%llu,"
                   "\"total_bytes\":%llu}",
                   s->load.what, (unsigned long long)done, (unsigned long long)total);
    } else if (s->state != SERVER_READY) {
        buf_puts(&b, "{\"status\":\"shutting down\"}");
    } else if (stalled > s->o.health_stall_s) {
        buf_printf(&b, "{\"status\":\"stalled\",\"last_step_age\":%.1f}", stalled);
    } else {
        status = 200;
        buf_puts(&b, "{\"status\":\"ok\"}");
    }
    api_send(x, status, &b);
    buf_release(&b);
}

/* ------------------------------------------------------------------ models */

static void put_model(const struct server *s, struct buf *b)
{
    long long ctx = (long long)s->info.context_length;
    buf_puts(b, "{\"id\":");
    json_put_string_safe(b, s->model_name, strlen(s->model_name));
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"firesteel\",\"root\":",
               (long long)s->created);
    json_put_string_safe(b, s->model_dir, strlen(s->model_dir));
    buf_puts(b, ",\"parent\":null");
    if (s->engine)
        buf_printf(b, ",\"max_model_len\":%lld,\"context_length\":%lld,\"max_output_tokens\":%lld",
                   ctx, ctx, ctx - 1);
    buf_putc(b, '}');
}

void api_models(struct server *s, struct exch *x)
{
    struct buf b = {0};
    const char *id = !strncmp(x->path, "/v1/models/", 11) ? x->path + 11 : "";
    if (!id[0]) {
        buf_puts(&b, "{\"object\":\"list\",\"data\":[");
        put_model(s, &b);
        buf_puts(&b, "]}");
        api_send(x, 200, &b);
    } else if (!strcmp(id, s->model_name)) {
        put_model(s, &b);
        api_send(x, 200, &b);
    } else {
        struct api_error e = {0};
        char q[96];
        api_fail(&e, 404, "model_not_found", "model",
                 "The model '%s' does not exist; this server has '%s'.",
                 api_quote(q, id, strlen(id)), s->model_name);
        api_send_error(x, &e, SHAPE_OPENAI);
    }
    buf_release(&b);
}

void api_model_info(struct server *s, struct exch *x)
{
    struct buf b = {0};
    buf_puts(&b, "{\"model_path\":");
    json_put_string_safe(&b, s->model_dir, strlen(s->model_dir));
    buf_puts(&b, ",\"tokenizer_path\":");
    const char *t = s->o.tokenizer_path ? s->o.tokenizer_path : s->model_dir;
    json_put_string_safe(&b, t, strlen(t));
    buf_puts(&b, ",\"is_generation\":true,\"preferred_sampling_params\":null,"
                 "\"weight_version\":\"default\",\"model_type\":");
    json_put_string_safe(&b, s->info.model_type, strlen(s->info.model_type));
    buf_putc(&b, '}');
    api_send(x, 200, &b);
    buf_release(&b);
}

/* ------------------------------------------------------------------ server_info */

static void put_str(struct buf *b, const char *key, const char *v)
{
    buf_printf(b, "\"%s\":", key);
    if (v)
        json_put_string_safe(b, v, strlen(v));
    else
        buf_puts(b, "null");
    buf_putc(b, ',');
}

static const char *upper(char out[32], const char *s)
{
    size_t i = 0;
    for (; s && s[i] && i < 31; i++)
        out[i] = (char)(s[i] >= 'a' && s[i] <= 'z' ? s[i] - 32 : s[i]);
    out[i] = 0;
    return out;
}

static void put_call_memory(const struct server *s, struct buf *b)
{
    struct chat_memory_stats m = {0};
    if (s->memory)
        chat_memory_get_stats(s->memory, &m);
    buf_printf(b,
               "\"call_memory\":{\"ids\":%zu,\"turns\":%zu,\"bytes\":%zu,\"file_bytes\":%llu,"
               "\"on_disk\":%s,\"added\":%llu,\"evicted\":%llu,\"spliced\":%llu,"
               "\"changed\":%llu,\"unknown\":%llu},",
               m.n_ids, m.n_turns, m.n_bytes, (unsigned long long)m.file_bytes,
               m.on_disk ? "true" : "false", (unsigned long long)m.added,
               (unsigned long long)m.evicted, (unsigned long long)m.spliced,
               (unsigned long long)m.changed, (unsigned long long)m.missed);
}

static void put_tiers(const struct fst_engine_stats *st, struct buf *b)
{
    buf_printf(b,
               "\"loads\":%llu,\"loads_incomplete\":%llu,\"loaded_tokens\":%llu,"
               "\"tier_queue\":%lld,\"tiers\":[",
               (unsigned long long)st->loads, (unsigned long long)st->loads_incomplete,
               (unsigned long long)st->loaded_tokens, (long long)st->tier_queue);
    for (int i = 0; i < st->n_tiers; i++) {
        const struct fst_tier_stats *t = &st->tier[i];
        buf_printf(b,
                   "%s{\"name\":\"%s\",\"objects\":%llu,\"bytes\":%llu,\"written\":%llu,"
                   "\"written_bytes\":%llu,\"read\":%llu,\"read_bytes\":%llu,\"missed\":%llu,"
                   "\"evicted\":%llu,\"refused\":%llu,\"bad\":%llu}",
                   i ? "," : "", t->name, (unsigned long long)t->objects,
                   (unsigned long long)t->bytes, (unsigned long long)t->n_put,
                   (unsigned long long)t->put_bytes, (unsigned long long)t->n_got,
                   (unsigned long long)t->got_bytes, (unsigned long long)t->n_missed,
                   (unsigned long long)t->n_evicted, (unsigned long long)t->n_refused,
                   (unsigned long long)t->n_bad);
    }
    buf_putc(b, ']');
}

static void put_audit(const struct fst_engine_stats *st, struct buf *b)
{
    const struct fst_audit_stats *a = &st->audit;
    buf_printf(b,
               "\"audit\":{\"equal\":%llu,\"mismatches\":%llu,\"abandoned\":%llu,"
               "\"dropped\":%llu,\"waiting\":%d,\"tokens\":%llu,\"seconds\":%.3f,"
               "\"drafting_off\":%s},\"records\":%llu,",
               (unsigned long long)a->equal, (unsigned long long)a->mismatches,
               (unsigned long long)a->abandoned, (unsigned long long)a->dropped, a->waiting,
               (unsigned long long)a->tokens, (double)a->ns * 1e-9,
               a->drafting_off ? "true" : "false", (unsigned long long)st->records);
}

/* Behind "avg_spec_accept_length". */
static void put_spec(const struct fst_engine_stats *st, int gamma, struct buf *b)
{
    buf_puts(b, ",\"avg_spec_accept_length_window\":");
    if (st->spec_window_accept_length > 0)
        json_put_double(b, st->spec_window_accept_length);
    else
        buf_puts(b, "null");
    buf_printf(b,
               ",\"spec_verify_steps\":%llu,\"spec_drafted\":%llu,\"spec_accepted\":%llu,"
               "\"spec_accepted_by_position\":[",
               (unsigned long long)st->spec.verify_steps, (unsigned long long)st->spec.drafted,
               (unsigned long long)st->spec.accepted);
    for (int k = 0; k < gamma && k < FST_SPEC_MAX; k++)
        buf_printf(b, "%s%llu", k ? "," : "", (unsigned long long)st->spec.accepted_by_position[k]);
    buf_printf(b, "],\"spec_draft_share\":%.6f,\"spec_trimmed\":%llu,\"spec_skipped\":{",
               st->step_ns ? (double)st->draft_ns / (double)st->step_ns : 0.0,
               (unsigned long long)st->spec_trimmed);
    for (int i = 0; i < FST_SPEC_SKIPS; i++)
        buf_printf(b, "%s\"%s\":%llu", i ? "," : "", metrics_spec_skip[i],
                   (unsigned long long)st->spec_skipped[i]);
    buf_puts(b, "},\"spec_by_temperature\":{");
    for (int i = 0; i < FST_SPEC_BANDS; i++) {
        const struct fst_spec_band_stats *x = &st->spec_band[i];
        double rounds = (double)x->verify_steps;
        buf_printf(b,
                   "%s\"%s\":{\"spec_verify_steps\":%llu,\"avg_spec_accept_length\":", i ? "," : "",
                   metrics_spec_band[i], (unsigned long long)x->verify_steps);
        if (x->verify_steps)
            json_put_double(b, ((double)x->accepted + rounds) / rounds);
        else
            buf_puts(b, "null");
        buf_putc(b, '}');
    }
    buf_puts(b, "},");
}

void api_server_info(struct server *s, struct exch *x)
{
    struct buf b = {0};
    char name[32];
    struct fst_engine_stats st = server_stats(s);
    const struct fst_engine_info *in = &s->info;
    struct loop_counts lc;
    loop_get_counts(s->loop, &lc);
    bool spec = in->gamma > 0;
    buf_putc(&b, '{');
    if (s->o.flags_json && s->o.flags_json[0]) {
        buf_puts(&b, s->o.flags_json);
        buf_putc(&b, ',');
    }
    put_str(&b, "version", FST_VERSION);
    put_str(&b, "status", s->state == SERVER_READY ? "ready" : "not ready");
    put_str(&b, "model_path", s->model_dir);
    put_str(&b, "served_model_name", s->model_name);
    put_str(&b, "model_type", in->model_type);
    put_str(&b, "device", in->device);
    put_str(&b, "kernels", in->kernels);
    put_str(&b, "kv_layout", in->kv_layout);
    put_str(&b, "index_keys", in->index_keys);
    put_str(&b, "precision", in->precision);
    put_str(&b, "verify_mode", in->verify_mode);
    put_str(&b, "speculative_accept", in->spec_accept);
    put_str(&b, "debug_hooks", in->debug_hooks);
    put_str(&b, "speculative_dspark_confidence_sts_path", in->sts_path);
    put_str(&b, "speculative_algorithm", spec ? upper(name, in->spec_algorithm) : NULL);
    buf_printf(&b,
               "\"speculative_num_draft_tokens\":%d,\"tp_size\":1,\"dp_size\":1,\"page_size\":256,"
               "\"threads\":%d,\"chunked_prefill_size\":%d,\"max_running_requests\":%d,"
               "\"max_queued_requests\":%d,\"disable_radix_cache\":%s,\"prefix_cache_bytes\":%llu,"
               "\"kv_host_bytes\":%llu,"
               "\"context_length\":%lld,"
               "\"max_total_num_tokens\":%lld,\"max_req_input_len\":%lld,\"load_s\":%.3f,",
               in->gamma, in->threads, in->chunked_prefill_size, in->max_running_requests,
               in->max_queued_requests, in->prefix_cache_bytes ? "false" : "true",
               (unsigned long long)in->prefix_cache_bytes, (unsigned long long)in->kv_host_bytes,
               (long long)in->context_length, (long long)in->max_total_tokens,
               (long long)(in->context_length > 0 ? in->context_length - 1 : 0), in->load_s);
    buf_printf(&b,
               "\"http\":{\"connections\":%d,\"exchanges\":%d,\"accepted\":%llu,\"refused\":%llu,"
               "\"requests\":%llu,\"generations\":%d,\"handles_taken\":%llu,"
               "\"handles_given\":%llu,\"kept_streams\":%d,\"kept_bytes\":%llu},",
               lc.connections, lc.exchanges, (unsigned long long)lc.accepted,
               (unsigned long long)lc.refused, (unsigned long long)lc.requests, s->n_gens,
               (unsigned long long)s->handles_taken, (unsigned long long)s->handles_given,
               s->n_keeps, (unsigned long long)keep_bytes(s));
    put_call_memory(s, &b);
    buf_printf(&b, "\"internal_states\":[{\"last_gen_throughput\":%.3f,\"avg_spec_accept_length\":",
               st.last_decode_tok_s);
    if (spec && st.spec.verify_steps)
        json_put_double(&b, st.spec.accept_length);
    else
        buf_puts(&b, "null");
    put_spec(&st, in->gamma, &b);
    double gib = 1.0 / (1024.0 * 1024.0 * 1024.0);
    buf_printf(&b,
               "\"effective_max_running_requests_per_dp\":%d,\"memory_usage\":{\"weight\":%.4f,"
               "\"kvcache\":%.4f,\"token_capacity\":%lld,\"graph\":0},\"num_running\":%d,"
               "\"num_waiting\":%d,\"slots_used\":%d,\"slots_total\":%d,\"kv_tokens_used\":%lld,"
               "\"kv_tokens_total\":%lld,\"steps\":%llu,\"prompt_tokens\":%llu,"
               "\"cached_tokens\":%llu,\"generation_tokens\":%llu,\"requests\":%llu,"
               "\"finished\":%llu,\"aborted\":%llu,\"failed\":%llu,\"last_step_age\":%.3f,",
               in->max_running_requests, (double)in->weight_bytes * gib,
               (double)(in->kv_bytes + in->state_bytes) * gib, (long long)in->max_total_tokens,
               st.running, st.waiting, st.slots_used, st.slots_total, (long long)st.kv_tokens_used,
               (long long)st.kv_tokens_total, (unsigned long long)st.steps,
               (unsigned long long)st.prompt_tokens, (unsigned long long)st.cached_tokens,
               (unsigned long long)st.generation_tokens, (unsigned long long)st.requests,
               (unsigned long long)st.finished, (unsigned long long)st.aborted,
               (unsigned long long)st.failed,
               st.last_step_ns ? clock_seconds(st.now_ns - st.last_step_ns) : 0.0);
    put_audit(&st, &b);
    put_tiers(&st, &b);
    buf_puts(&b, "}]}");
    api_send(x, 200, &b);
    buf_release(&b);
}

void api_load(struct server *s, struct exch *x)
{
    struct buf b = {0};
    struct fst_engine_stats st = server_stats(s);
    buf_printf(&b, "[{\"dp_rank\":0,\"num_reqs\":%d,\"num_waiting_reqs\":%d,\"num_tokens\":%lld}]",
               st.running + st.waiting, st.waiting, (long long)st.kv_tokens_used);
    api_send(x, 200, &b);
    buf_release(&b);
}

/* ------------------------------------------------------------------ small commands */

static struct json_doc *parse_body(struct exch *x, struct api_error *e)
{
    struct json_doc *doc = NULL;
    bool empty = x->body.len == 0;
    enum fst_status rc =
        json_parse(&doc, empty ? "{}" : buf_str(&x->body), empty ? 2 : x->body.len);
    if (rc == FST_ENOMEM)
        api_fail(e, 503, "out_of_memory", NULL, "out of memory for this request");
    else if (rc < 0)
        api_fail(e, 400, "invalid_json", NULL, "%s", fst_error_text());
    else if (json_type_of(json_root(doc)) != JSON_OBJECT)
        api_fail(e, 400, "invalid_type", NULL, "body: expected an object, got %s",
                 json_type_name(json_type_of(json_root(doc))));
    return doc;
}

void api_abort(struct server *s, struct exch *x)
{
    struct api_error e = {0};
    struct json_doc *doc = parse_body(x, &e);
    struct field_reader r = {doc ? json_root(doc) : NULL, "", &e};
    bool all = false;
    const char *rid = NULL;
    int n = 0;
    if (!e.status && field_bool(&r, "abort_all", &all) && field_str(&r, "rid", &rid, NULL)) {
        if (!all && !rid)
            api_fail(&e, 400, "invalid_value", "rid", "rid or abort_all must be given");
        else
            n = gen_abort(s, all ? NULL : rid);
    }
    json_free(doc);
    if (e.status) {
        api_send_error(x, &e, SHAPE_OPENAI);
        return;
    }
    struct buf b = {0};
    buf_printf(&b, "{\"success\":true,\"aborted\":%d}", n);
    api_send(x, 200, &b);
    buf_release(&b);
}

void api_internal_state(struct server *s, struct exch *x)
{
    struct api_error e = {0};
    struct json_doc *doc = parse_body(x, &e);
    struct field_reader r = {doc ? json_root(doc) : NULL, "", &e};
    bool reset = false;
    if (!e.status && field_bool(&r, "reset_spec_stats", &reset)) {
        if (reset)
            fst_engine_reset_spec_stats(s->engine);
        else
            api_fail(&e, 400, "unsupported_parameter", "reset_spec_stats",
                     "only reset_spec_stats: true can be set");
    }
    json_free(doc);
    if (e.status) {
        api_send_error(x, &e, SHAPE_OPENAI);
        return;
    }
    static const char text[] = "{\"updated\":true}";
    exch_reply(x, 200, "application/json", text, sizeof text - 1);
}

void api_flush_cache(struct server *s, struct exch *x)
{
    struct fst_engine_stats st = server_stats(s);
    if (st.running + st.waiting > 0) {
        struct api_error e = {0};
        api_fail(&e, 400, "busy", NULL, "Cache not flushed: %d requests are running, %d wait.",
                 st.running, st.waiting);
        api_send_error(x, &e, SHAPE_OPENAI);
        return;
    }
    static const char text[] = "Cache flushed.\n";
    fst_engine_flush_prefixes(s->engine);
    exch_reply(x, 200, "text/plain; charset=utf-8", text, sizeof text - 1);
}

/* ------------------------------------------------------------------ /health_generate */

static bool probe_prepare(struct gen *g)
{
    g->kind = CHAT_STREAM_TEXT;
    g->params = mem_calloc(1, sizeof *g->params);
    if (!g->params || !gen_alloc_prompts(g, 1))
        return gen_oom(g);
    g->n_params = 1;
    gen_params_default(g->params);
    g->params->max_new = 1;
    g->params->ignore_eos = true;
    g->params->sampling.temperature = 0;
    if (tokenizer_ids_push(&g->prompts[0], tokenizer_specials(g->s->tok)->bos) < 0)
        return gen_oom(g);
    g->model = mem_strdup(g->s->model_name);
    return g->model || gen_oom(g);
}

static void probe_finish(struct gen *g)
{
    static const char text[] = "{\"status\":\"ok\"}";
    exch_reply(g->x, 200, "application/json", text, sizeof text - 1);
}

void api_health_generate(struct server *s, struct exch *x)
{
    static const struct gen_dialect probe = {.name = "health",
                                             .shape = SHAPE_OPENAI,
                                             .id_prefix = "health-",
                                             .prepare = probe_prepare,
                                             .finish = probe_finish};
    buf_reset(&x->body);
    buf_puts(&x->body, "{}");
    gen_run(s, x, &probe);
}
