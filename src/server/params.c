/* params.c - sampling parameters of a request body. */
#include <math.h>

#include "server/fields.h"
#include "server/gen.h"

void gen_params_default(struct gen_params *p)
{
    *p = (struct gen_params){
        .sampling = {.temperature = 1, .top_p = 1, .top_k = -1, .repetition_penalty = 1},
        .max_new = -1,
        .n = 1,
        .skip_special = true,
        .prompt_logprobs_from = -1,
        .budget = GEN_BUDGET_NONE,
    };
}

void gen_params_release(struct gen_params *p)
{
    mem_free(p->bias);
    p->bias = NULL;
}

bool gen_read_stops(struct gen_params *p, const struct field_reader *r, const char *name)
{
    json_val *v = json_get(r->object, name);
    if (json_is_null(v))
        return true;
    char param[160];
    snprintf(param, sizeof param, "%s%s", r->prefix, name);
    bool one = json_type_of(v) == JSON_STRING;
    if (!one && json_type_of(v) != JSON_ARRAY)
        return field_type_error(r, name, "a string or an array of strings");
    size_t n = one ? 1 : json_count(v);
    if (p->n_stops + n > GEN_STOPS_MAX)
        return api_fail(r->e, 400, "invalid_value", param, "%s: at most %d strings, got %zu", param,
                        GEN_STOPS_MAX, n);
    for (size_t i = 0; i < n; i++) {
        json_val *s = one ? v : json_at(v, i);
        size_t len = 0;
        const char *text = json_string(s, &len);
        if (!text)
            return api_fail(r->e, 400, "invalid_type", param, "%s[%zu]: expected a string, got %s",
                            param, i, json_type_name(json_type_of(s)));
        if (!len || len > GEN_STOP_BYTES_MAX)
            return api_fail(r->e, 400, "invalid_value", param,
                            "%s[%zu]: 1 to %d bytes are allowed, got %zu", param, i,
                            GEN_STOP_BYTES_MAX, len);
        p->stop[p->n_stops++] = (struct chat_str){text, len};
    }
    return true;
}

static bool read_stop_ids(struct gen_params *p, const struct field_reader *r, int vocab)
{
    json_val *v = json_get(r->object, "stop_token_ids");
    if (json_is_null(v))
        return true;
    char param[160];
    snprintf(param, sizeof param, "%sstop_token_ids", r->prefix);
    if (json_type_of(v) != JSON_ARRAY)
        return field_type_error(r, "stop_token_ids", "an array of integers");
    if (json_count(v) > FST_STOP_IDS_MAX)
        return api_fail(r->e, 400, "invalid_value", param, "%s: at most %d ids, got %zu", param,
                        FST_STOP_IDS_MAX, json_count(v));
    for (size_t i = 0; i < json_count(v); i++) {
        int64_t id;
        char q[96];
        if (!json_int(json_at(v, i), &id))
            return api_fail(r->e, 400, "invalid_type", param,
                            "%s[%zu]: expected an integer, got %s", param, i,
                            api_quote_value(q, json_at(v, i)));
        if (id < 0 || id >= vocab)
            return api_fail(r->e, 400, "invalid_value", param,
                            "%s[%zu] must be in [0, %d], got %lld", param, i, vocab - 1,
                            (long long)id);
        p->stop_id[p->n_stop_ids++] = (int32_t)id;
    }
    return true;
}

static bool read_penalties(struct gen_params *p, const struct field_reader *r)
{
    struct fst_sampling *s = &p->sampling;
    double presence = (double)s->presence_penalty, frequency = (double)s->frequency_penalty;
    double repetition = (double)s->repetition_penalty;
    if (!field_real(r, "presence_penalty", -2, false, 2, &presence) ||
        !field_real(r, "frequency_penalty", -2, false, 2, &frequency) ||
        !field_real(r, "repetition_penalty", 0, true, 2, &repetition))
        return false;
    s->presence_penalty = (float)presence;
    s->frequency_penalty = (float)frequency;
    s->repetition_penalty = (float)repetition;
    if (s->repetition_penalty <= 0) /* as top_p */
        s->repetition_penalty = 1e-37f;
    return true;
}

/* The number in a member's name; -1: it is none. */
static int64_t id_of_name(const char *name, size_t len)
{
    int64_t id = 0;
    for (size_t i = 0; i < len; i++) {
        if (name[i] < '0' || name[i] > '9' || id > INT32_MAX)
            return -1;
        id = 10 * id + (name[i] - '0');
    }
    return len ? id : -1;
}

static bool read_bias(struct gen_params *p, const struct field_reader *r, int vocab)
{
    json_val *v = json_get(r->object, "logit_bias");
    size_t n = json_count(v), len;
    char param[160], q[96];
    if (json_is_null(v))
        return true;
    if (json_type_of(v) != JSON_OBJECT)
        return field_type_error(r, "logit_bias", "an object of ids and numbers");
    snprintf(param, sizeof param, "%slogit_bias", r->prefix);
    if (n > (size_t)vocab)
        return api_fail(r->e, 400, "invalid_value", param,
                        "%s: at most %d ids are allowed, got %zu", param, vocab, n);
    p->bias = n ? mem_calloc(n, sizeof *p->bias) : NULL;
    if (n && !p->bias)
        return api_fail(r->e, 503, "out_of_memory", NULL, "out of memory for this request");
    for (size_t i = 0; i < n; i++) {
        const char *name;
        json_val *x = json_member(v, i, &name, &len);
        int64_t id = id_of_name(name, len);
        double bias;
        if (id < 0 || id >= vocab)
            return api_fail(r->e, 400, "invalid_value", param,
                            "%s: names must be token ids in [0, %d], got \"%s\"", param, vocab - 1,
                            api_quote(q, name, len));
        if (!json_real(x, &bias))
            return api_fail(r->e, 400, "invalid_type", param, "%s.%lld: expected a number, got %s",
                            param, (long long)id, api_quote_value(q, x));
        if (!(bias >= -100 && bias <= 100))
            return api_fail(r->e, 400, "invalid_value", param,
                            "%s.%lld must be in [-100, 100], got %s", param, (long long)id,
                            api_quote_value(q, x));
        p->bias[p->n_bias++] = (struct fst_logit_bias){(int32_t)id, (float)bias};
    }
    return true;
}

bool gen_params_read(struct gen_params *p, const struct field_reader *r, const struct server *s,
                     bool openai)
{
    double temperature = (double)p->sampling.temperature, top_p = 1, min_p = 0;
    int64_t top_k = -1, n = p->n;
    const char *seed_name = openai ? "seed" : "sampling_seed";
    if (!field_real(r, "temperature", 0, false, openai ? 2 : INFINITY, &temperature) ||
        !field_real(r, "top_p", 0, true, 1, &top_p) ||
        !field_real(r, "min_p", 0, false, 1, &min_p) ||
        !field_int(r, "top_k", -1, INT32_MAX, &top_k) || !field_int(r, "n", 1, s->o.max_n, &n) ||
        !field_seed(r, seed_name, &p->sampling.seed))
        return false;
    if (!json_is_null(json_get(r->object, "top_k")) && top_k == 0) {
        char param[160];
        snprintf(param, sizeof param, "%stop_k", r->prefix);
        return api_fail(r->e, 400, "invalid_value", param,
                        "%s must be -1 (off) or at least 1, got 0", param);
    }
    p->n = (int)n;
    p->sampling.temperature = (float)temperature;
    if (!isfinite(p->sampling.temperature)) {
        char param[160];
        snprintf(param, sizeof param, "%stemperature", r->prefix);
        return api_fail(r->e, 400, "invalid_value", param, "%s must be finite in single precision",
                        param);
    }
    p->sampling.top_p = (float)top_p;
    if (p->sampling.top_p <= 0) /* a positive double may vanish in single precision */
        p->sampling.top_p = 1e-37f;
    p->sampling.min_p = (float)min_p;
    p->sampling.top_k = (int)top_k;
    p->sampling.has_seed = !json_is_null(json_get(r->object, seed_name));
    return field_int(r, openai ? "min_tokens" : "min_new_tokens", 0, INT64_MAX, &p->min_new) &&
           field_bool(r, "ignore_eos", &p->ignore_eos) &&
           field_bool(r, "skip_special_tokens", &p->skip_special) &&
           field_bool(r, "no_stop_trim", &p->no_stop_trim) && gen_read_stops(p, r, "stop") &&
           read_stop_ids(p, r, s->info.vocab_size) && read_penalties(p, r) &&
           read_bias(p, r, s->info.vocab_size) && gen_read_grammar(p, r);
}

bool gen_read_budget(struct gen *g, const struct field_reader *r)
{
    static const char *const flat[] = {"thinking_budget", "thinking_token_budget",
                                       "max_reasoning_tokens"};
    static const char *const nested[][2] = {{"thinking", "budget_tokens"},
                                            {"reasoning", "max_tokens"}};
    int64_t budget = g->s->o.thinking_budget, n;
    bool found = false;
    for (size_t i = 0; i < FST_COUNT(nested); i++) { /* the first that is given counts */
        char prefix[16];
        snprintf(prefix, sizeof prefix, "%s.", nested[i][0]);
        struct field_reader ro = {json_get(r->object, nested[i][0]), prefix, r->e};
        if (json_type_of(ro.object) != JSON_OBJECT)
            continue;
        n = -1;
        if (!field_int(&ro, nested[i][1], 0, INT64_MAX, &n))
            return false;
        if (!found && n >= 0)
            budget = n;
        found |= n >= 0;
    }
    for (size_t i = 0; i < FST_COUNT(flat); i++) {
        n = -1;
        if (!field_int(r, flat[i], 0, INT64_MAX, &n))
            return false;
        if (!found && n >= 0)
            budget = n;
        found |= n >= 0;
    }
    for (size_t i = 0; i < g->n_params; i++)
        g->params[i].budget = budget;
    return true;
}

bool gen_read_guard(struct gen *g, const struct field_reader *r)
{
    bool on = true;
    if (!field_bool(r, "loop_guard", &on))
        return false;
    for (size_t i = 0; i < g->n_params; i++)
        g->params[i].loop_guard = on;
    return true;
}

/* For tests of parsers and clients: what is given out, whatever the model says. */
static bool read_debug(struct gen *g, const struct field_reader *r)
{
    json_val *o = json_get(r->object, "debug"), *ids = json_get(o, "force_ids");
    struct field_reader ro = {o, "debug.", r->e};
    if (json_is_null(o))
        return true;
    if (!g->s->info.debug_hooks)
        return api_fail(r->e, 400, "unsupported_parameter", "debug",
                        "debug needs a server with --debug-hooks");
    if (json_type_of(o) != JSON_OBJECT)
        return field_type_error(r, "debug", "an object");
    if (!json_is_null(ids) && json_type_of(ids) != JSON_ARRAY)
        return field_type_error(&ro, "force_ids", "an array of integers");
    return field_int(&ro, "retract_at", 0, INT64_MAX, &g->retract_at) &&
           (json_is_null(ids) || gen_read_ids(g, ids, "debug.force_ids", &g->force));
}

bool gen_read_cache(struct gen *g, const struct field_reader *r)
{
    json_val *o = json_get(r->object, "firesteel");
    const char *salt = NULL, *name;
    size_t n = 0, name_len;
    if (!field_str(r, "cache_salt", &salt, &n) || !read_debug(g, r))
        return false;
    if (salt && n)
        g->salt = hash128(salt, n, g->s->salt);
    if (json_is_null(o))
        return true;
    if (json_type_of(o) != JSON_OBJECT)
        return field_type_error(r, "firesteel", "an object");
    for (size_t i = 0; i < json_count(o); i++) {
        json_member(o, i, &name, &name_len);
        if (name_len != 5 || memcmp(name, "cache", 5) != 0)
            return api_fail(r->e, 400, "unknown_field", "firesteel",
                            "firesteel has no member %.*s; there is: cache",
                            (int)FST_MIN(name_len, (size_t)40), name);
    }
    struct field_reader ro = {o, "firesteel.", r->e};
    return field_bool(&ro, "cache", &g->report_cache);
}

bool gen_read_stream(struct gen *g, const struct field_reader *r)
{
    json_val *o = json_get(r->object, "stream_options");
    if (!field_bool(r, "stream", &g->stream) || !field_bool(r, "return_progress", &g->progress) ||
        !field_bool(r, "timings_per_token", &g->timings))
        return false;
    if (json_is_null(o))
        return true;
    if (json_type_of(o) != JSON_OBJECT)
        return field_type_error(r, "stream_options", "an object");
    struct field_reader ro = {o, "stream_options.", r->e};
    return field_bool(&ro, "include_usage", &g->include_usage) &&
           field_bool(&ro, "continuous_usage_stats", &g->continuous_usage);
}
