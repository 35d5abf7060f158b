#include "server/fields.h"

#include <errno.h>
#include <math.h>

#define CC    (ON_CHAT | ON_COMPLETIONS)
#define CCM   (CC | ON_MESSAGES)
#define CCMR  (CCM | ON_RESPONSES)
#define ALL   (CCMR | ON_SAMPLING)
#define CHATS (ON_CHAT | ON_MESSAGES | ON_RESPONSES)

const struct field field_table[] = {
    {"model", CC | ON_RESPONSES, FIELD_WORKS, 0,
     "any name, echoed; deepseek-chat and deepseek-reasoner set thinking"},
    {"messages", ON_CHAT, FIELD_WORKS, 0, "text parts; images and audio are refused"},
    {"prompt", ON_COMPLETIONS, FIELD_WORKS, 0, "text, list of texts, ids, list of id lists"},
    {"text", ON_GENERATE, FIELD_WORKS, 0, "text or list of texts"},
    {"input_ids", ON_CHAT | ON_GENERATE, FIELD_WORKS, 0, "ids instead of text"},
    {"sampling_params", ON_GENERATE, FIELD_WORKS, 0, "object, or one per prompt"},
    {"max_tokens", CCM, FIELD_WORKS, 0, "all generated tokens; clamped to the context"},
    {"max_completion_tokens", ON_CHAT, FIELD_WORKS, 0, "wins over max_tokens"},
    {"max_new_tokens", ON_SAMPLING, FIELD_WORKS, 0, "128; 0: prefill only"},
    {"min_tokens", CCMR, FIELD_WORKS, 0, "no end of text before"},
    {"min_new_tokens", ON_SAMPLING, FIELD_WORKS, 0, "no end of text before"},
    {"temperature", ALL, FIELD_WORKS, 0, "1; 0 is greedy"},
    {"top_p", ALL, FIELD_WORKS, 0, "1"},
    {"top_k", ALL, FIELD_WORKS, 0, "-1"},
    {"min_p", ALL, FIELD_WORKS, 0, "0"},
    {"seed", CCMR, FIELD_WORKS, 0, "-2^63 to 2^64-1; same seed, same text"},
    {"sampling_seed", ON_SAMPLING, FIELD_WORKS, 0, "-2^63 to 2^64-1; same seed, same text"},
    {"n", CC | ON_SAMPLING, FIELD_WORKS, 0, "choices per prompt"},
    {"best_of", ON_COMPLETIONS, FIELD_WORKS, 0,
     "n; so many are drawn, the n with the highest log-probability per token are given; not in "
     "streams"},
    {"stop", ALL, FIELD_WORKS, 0, "up to 64 strings; in chat on content only"},
    {"stop_token_ids", ALL, FIELD_WORKS, 0, "up to 64 ids"},
    {"stop_regex", ALL, FIELD_REFUSED, "\"\"|[]", "not built"},
    {"no_stop_trim", ALL, FIELD_WORKS, 0, "keep the stop string"},
    {"ignore_eos", ALL, FIELD_WORKS, 0, "go on after the end of text"},
    {"skip_special_tokens", ALL, FIELD_WORKS, 0, "true"},
    {"spaces_between_special_tokens", ALL, FIELD_INERT, 0, "byte-level tokens carry their spaces"},
    {"logprobs", CC, FIELD_WORKS, 0, "chat: bool; completions: 0 to 20"},
    {"top_logprobs", ON_CHAT, FIELD_WORKS, 0, "0 to 20, with logprobs"},
    {"return_logprob", ON_GENERATE, FIELD_WORKS, 0, "log-probabilities in meta_info"},
    {"logprob_start_len", ON_GENERATE, FIELD_WORKS, 0, "-1: of the output only"},
    {"top_logprobs_num", ON_GENERATE, FIELD_WORKS, 0, "0 to 20"},
    {"return_text_in_logprobs", ON_GENERATE, FIELD_WORKS, 0, "texts beside the ids"},
    {"token_ids_logprob", ON_GENERATE, FIELD_REFUSED, "[]", "not built"},
    {"frequency_penalty", ALL, FIELD_WORKS, 0, "0; -2 to 2, of generated tokens"},
    {"presence_penalty", ALL, FIELD_WORKS, 0, "0; -2 to 2, of generated tokens"},
    {"repetition_penalty", ALL, FIELD_WORKS, 0, "1; above 0 to 2, of prompt and generated tokens"},
    {"logit_bias", ALL, FIELD_WORKS, 0, "ids and what is added to their logits, -100 to 100"},
    {"echo", ON_COMPLETIONS, FIELD_WORKS, 0, "the prompt before the text"},
    {"suffix", ON_COMPLETIONS, FIELD_REFUSED, "\"\"", "not built"},
    {"return_token_ids", ON_COMPLETIONS, FIELD_WORKS, 0, "token_ids beside the text"},
    {"stream", CCMR | ON_GENERATE, FIELD_WORKS, 0, "server-sent events"},
    {"stream_options", CC, FIELD_WORKS, 0, "include_usage, continuous_usage_stats"},
    {"tools", ON_CHAT | ON_RESPONSES, FIELD_WORKS, 0,
     "up to 512 functions; a name has at most 256 bytes, no quotes and no control characters"},
    {"tool_choice", ON_CHAT | ON_RESPONSES, FIELD_WORKS, 0, "auto, none, required, a function"},
    {"parallel_tool_calls", ON_CHAT | ON_RESPONSES, FIELD_WORKS, 0, "false: one call"},
    {"response_format", ON_CHAT, FIELD_WORKS, 0,
     "text, json_object, json_schema; structural_tag is refused"},
    {"json_schema", ALL, FIELD_WORKS, 0, "schema, or its text: the reply is such a document"},
    {"regex", ALL, FIELD_WORKS, 0, "the whole reply matches; RE2's syntax"},
    {"ebnf", ALL, FIELD_WORKS, 0, "GBNF (rule root) or Lark (rule start)"},
    {"structural_tag", ALL, FIELD_REFUSED, "", "not built"},
    {"guided_json", CC, FIELD_WORKS, 0, "json_schema under another name"},
    {"guided_regex", CC, FIELD_WORKS, 0, "regex under another name"},
    {"guided_grammar", CC, FIELD_WORKS, 0, "ebnf under another name"},
    {"guided_choice", CC, FIELD_WORKS, 0, "the reply is one of these texts"},
    {"reasoning_effort", ON_CHAT | ON_RESPONSES, FIELD_WORKS, 0,
     "none, low, high, max and their kin"},
    {"thinking", ON_CHAT, FIELD_WORKS, 0, "type, budget_tokens"},
    {"think", ON_CHAT | ON_RESPONSES, FIELD_WORKS, 0, "thinking on or off"},
    {"enable_thinking", ON_CHAT | ON_RESPONSES, FIELD_WORKS, 0, "thinking on or off"},
    {"reasoning", ON_CHAT, FIELD_WORKS, 0, "effort, enabled, max_tokens"},
    {"chat_template_kwargs", ON_CHAT | ON_RESPONSES, FIELD_WORKS, 0, "thinking, reasoning_effort"},
    {"thinking_budget", CHATS, FIELD_WORKS, 0, "tokens of thoughts, then `</think>` is forced"},
    {"thinking_token_budget", CHATS, FIELD_WORKS, 0, "the same"},
    {"max_reasoning_tokens", CHATS, FIELD_WORKS, 0, "the same"},
    {"loop_guard", CHATS, FIELD_WORKS, 0, "true; false: replies may go round in circles"},
    {"separate_reasoning", ON_CHAT, FIELD_WORKS, 0, "false: thoughts stay in the content"},
    {"stream_reasoning", ON_CHAT, FIELD_WORKS, 0, "false: thoughts in one piece"},
    {"continue_final_message", ON_CHAT, FIELD_WORKS, 0, "the reply continues the last message"},
    {"add_generation_prompt", ON_CHAT, FIELD_WORKS, 0, "true"},
    {"task", ON_CHAT, FIELD_WORKS, 0, "quick instructions"},
    {"rid", CCMR | ON_GENERATE, FIELD_WORKS, 0, "name for /abort_request"},
    {"return_progress", CCMR, FIELD_WORKS, 0, "prompt_progress events while the prompt is read"},
    {"timings_per_token", CC | ON_RESPONSES, FIELD_WORKS, 0,
     "timings in the last chunk or the answer"},
    {"return_hidden_states", ON_CHAT | ON_COMPLETIONS | ON_GENERATE, FIELD_REFUSED, "false",
     "not built"},
    {"lora_path", ON_CHAT | ON_COMPLETIONS | ON_GENERATE, FIELD_REFUSED, "\"\"|[]", "not built"},
    {"image_data", ON_GENERATE, FIELD_REFUSED, "[]", "the model reads text"},
    {"video_data", ON_GENERATE, FIELD_REFUSED, "[]", "the model reads text"},
    {"audio_data", ON_GENERATE, FIELD_REFUSED, "[]", "the model reads text"},
    {"input_embeds", ON_GENERATE, FIELD_REFUSED, "[]", "not built"},
    {"session_params", ON_GENERATE, FIELD_REFUSED, "{}", "not built"},
    {"custom_logit_processor", ON_GENERATE, FIELD_REFUSED, "\"\"", "not built"},
    {"custom_params", ON_SAMPLING, FIELD_INERT, 0, "nothing reads it"},
    {"priority", ON_CHAT | ON_COMPLETIONS | ON_GENERATE | ON_RESPONSES, FIELD_INERT, 0,
     "requests run in order of arrival"},
    {"cache_salt", ON_CHAT | ON_MESSAGES | ON_RESPONSES, FIELD_WORKS, 0,
     "divides users of one key: turns with calls and cached prompts are its own alone"},
    {"cache_salt", ON_COMPLETIONS | ON_GENERATE, FIELD_WORKS, 0,
     "divides users of one key: cached prompts are its own alone"},
    {"firesteel", CCMR | ON_GENERATE, FIELD_WORKS, 0,
     "`{\"cache\": true}`: what of the prompt was cached, and why not more"},
    {"debug", CCMR | ON_GENERATE, FIELD_WORKS, 0,
     "force_ids, retract_at; only with `--debug-hooks`"},
    {"user", CC, FIELD_INERT, 0, ""},
    {"metadata", ON_CHAT | ON_MESSAGES, FIELD_INERT, 0, ""},
    {"store", ON_CHAT, FIELD_INERT, 0, "nothing is stored"},
    {"service_tier", ON_CHAT | ON_MESSAGES, FIELD_INERT, 0, ""},
    {"prompt_cache_key", ON_CHAT, FIELD_INERT, 0, ""},
    {"safety_identifier", ON_CHAT, FIELD_INERT, 0, ""},
    {"verbosity", ON_CHAT, FIELD_INERT, 0, ""},
    {"model", ON_MESSAGES, FIELD_WORKS, 0, "any name, echoed"},
    {"messages", ON_MESSAGES, FIELD_WORKS, 0,
     "text, thinking, tool_use and tool_result blocks; images and documents are refused"},
    {"system", ON_MESSAGES, FIELD_WORKS, 0, "text, or text blocks"},
    {"n", ON_MESSAGES, FIELD_REFUSED, "1", "an answer is one message"},
    {"stop_sequences", ON_MESSAGES, FIELD_WORKS, 0, "stop, under that API's name"},
    {"tools", ON_MESSAGES, FIELD_WORKS, 0,
     "up to 512, with names as in chat; those that run at Anthropic (a type but custom) are left "
     "out"},
    {"tool_choice", ON_MESSAGES, FIELD_WORKS, 0,
     "auto, any, tool, none; disable_parallel_tool_use: one call"},
    {"thinking", ON_MESSAGES, FIELD_WORKS, 0,
     "type enabled, adaptive or disabled, which is the default; budget_tokens"},
    {"output_config", ON_MESSAGES, FIELD_WORKS, 0, "effort; format json_schema"},
    {"output_format", ON_MESSAGES, FIELD_WORKS, 0, "output_config.format under its older name"},
    {"cache_control", ON_MESSAGES, FIELD_INERT, 0, "every prompt is cached; in blocks too"},
    {"context_management", ON_MESSAGES, FIELD_INERT, 0, "the conversation stays as it is sent"},
    {"container", ON_MESSAGES, FIELD_INERT, 0, "nothing is run"},
    {"mcp_servers", ON_MESSAGES, FIELD_REFUSED, "[]", "not built"},
    {"modalities", ON_CHAT, FIELD_REFUSED, "[\"text\"]|[]", "the model writes text"},
    {"audio", ON_CHAT, FIELD_REFUSED, "{}", "the model writes text"},
    {"input", ON_RESPONSES, FIELD_WORKS, 0, "text, or list of items"},
    {"instructions", ON_RESPONSES, FIELD_WORKS, 0, "a system message before the input"},
    {"max_output_tokens", ON_RESPONSES, FIELD_WORKS, 0,
     "all generated tokens; clamped to the context"},
    {"text", ON_RESPONSES, FIELD_WORKS, 0, "format text, json_object or json_schema"},
    {"reasoning", ON_RESPONSES, FIELD_WORKS, 0,
     "effort, enabled, max_tokens, summary (thoughts as items)"},
    {"previous_response_id", ON_RESPONSES, FIELD_WORKS, 0, "with `--response-store`"},
    {"store", ON_RESPONSES, FIELD_WORKS, 0, "false: not into `--response-store`"},
    {"background", ON_RESPONSES, FIELD_WORKS, 0, "answered at once, made without the client"},
    {"metadata", ON_RESPONSES, FIELD_WORKS, 0, "comes back in the answer"},
    {"conversation", ON_RESPONSES, FIELD_REFUSED, "", "conversations are not kept"},
    {"prompt", ON_RESPONSES, FIELD_REFUSED, "", "prompts are not kept"},
    {"n", ON_RESPONSES, FIELD_REFUSED, "1", "there is one answer"},
    {"top_logprobs", ON_RESPONSES, FIELD_REFUSED, "0", "not built"},
    {"include", ON_RESPONSES, FIELD_INERT, 0, "nothing more can be included"},
    {"truncation", ON_RESPONSES, FIELD_INERT, 0, "nothing is cut; an input too long is an error"},
    {"stream_options", ON_RESPONSES, FIELD_INERT, 0, "usage is always in the last event"},
    {"max_tool_calls", ON_RESPONSES, FIELD_INERT, 0, "no tool is run here"},
    {"service_tier", ON_RESPONSES, FIELD_INERT, 0, ""},
    {"prompt_cache_key", ON_RESPONSES, FIELD_INERT, 0, ""},
    {"safety_identifier", ON_RESPONSES, FIELD_INERT, 0, ""},
    {"user", ON_RESPONSES, FIELD_INERT, 0, ""},
};
const size_t field_count = FST_COUNT(field_table);

static bool is_neutral(json_val *v, const char *list)
{
    struct buf b = {0};
    json_put(&b, v, JSON_COMPACT);
    double x;
    bool number = json_real(v, &x);
    bool yes = b.failed;
    for (const char *p = list; p && *p && !yes;) {
        size_t n = strcspn(p, "|");
        yes = b.len == n && !memcmp(b.data, p, n);
        if (!yes && number && p[0] >= '0' && p[0] <= '9') /* 0, 0.0 and -0.0 are one value */
            yes = fabs(x - (double)(p[0] - '0')) < 1e-300;
        p += n;
        if (*p)
            p++;
    }
    buf_release(&b);
    return yes;
}

/* Each value of a field's `neutral` behind `sep`, between quotes. */
static void put_neutral(struct buf *out, const char *list, const char *sep, const char *quote)
{
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, "|");
        buf_puts(out, sep);
        buf_puts(out, quote);
        buf_append(out, p, n);
        buf_puts(out, quote);
        p += n;
        if (*p)
            p++;
    }
}

bool fields_check(json_val *object, unsigned on, const char *prefix, struct api_error *e)
{
    for (size_t i = 0; i < field_count; i++) {
        const struct field *f = &field_table[i];
        if (f->state != FIELD_REFUSED || !(f->on & on))
            continue;
        json_val *v = json_get(object, f->name);
        if (json_is_null(v) || is_neutral(v, f->neutral))
            continue;
        char param[160], q[96];
        struct buf allowed = {0};
        snprintf(param, sizeof param, "%s%s", prefix, f->name);
        put_neutral(&allowed, f->neutral, " or ", "");
        api_fail(e, 400, "unsupported_parameter", param,
                 "%s is not supported: got %s, only null%s is allowed", param,
                 api_quote_value(q, v), buf_str(&allowed));
        buf_release(&allowed);
        return false;
    }
    return true;
}

static void list_endpoints(struct buf *out, unsigned on)
{
    static const char *const name[] = {"chat",     "completions", "generate", "sampling_params",
                                       "messages", "responses"};
    const char *sep = "";
    for (unsigned i = 0; i < FST_COUNT(name); i++)
        if (on & (1u << i)) {
            buf_printf(out, "%s%s", sep, name[i]);
            sep = ", ";
        }
}

void fields_markdown(struct buf *out)
{
    static const char *const state[] = {"works", "inert", "refused"};
    buf_puts(out, "| field | on | state | notes |\n|---|---|---|---|\n");
    for (size_t i = 0; i < field_count; i++) {
        const struct field *f = &field_table[i];
        buf_printf(out, "| `%s` | ", f->name);
        list_endpoints(out, f->on);
        buf_printf(out, " | %s | %s", state[f->state], f->note);
        if (f->state == FIELD_REFUSED)
            buf_puts(out, f->neutral[0] ? "; allowed: null" : "; allowed: null only");
        if (f->state == FIELD_REFUSED)
            put_neutral(out, f->neutral, ", ", "`");
        buf_puts(out, " |\n");
    }
}

/* ------------------------------------------------------------------ typed reading */

static json_val *member(const struct field_reader *r, const char *name)
{
    json_val *v = json_get(r->object, name);
    return json_is_null(v) ? NULL : v;
}

static void full_name(char out[160], const struct field_reader *r, const char *name)
{
    snprintf(out, 160, "%s%s", r->prefix, name);
}

bool field_type_error(const struct field_reader *r, const char *name, const char *expected)
{
    char param[160], q[96];
    full_name(param, r, name);
    json_val *v = member(r, name);
    if (json_is_null(v))
        return api_fail(r->e, 400, "invalid_type", param, "%s: expected %s, got null", param,
                        expected);
    return api_fail(r->e, 400, "invalid_type", param, "%s: expected %s, got %s %s", param, expected,
                    json_type_name(json_type_of(v)), api_quote_value(q, v));
}

bool field_int(const struct field_reader *r, const char *name, int64_t lo, int64_t hi, int64_t *out)
{
    json_val *v = member(r, name);
    int64_t x;
    if (!v)
        return true;
    if (!json_int(v, &x))
        return field_type_error(r, name, "an integer");
    if (x < lo || x > hi) {
        char param[160];
        full_name(param, r, name);
        if (hi == INT64_MAX)
            return api_fail(r->e, 400, "invalid_value", param, "%s must be at least %lld, got %lld",
                            param, (long long)lo, (long long)x);
        return api_fail(r->e, 400, "invalid_value", param, "%s must be in [%lld, %lld], got %lld",
                        param, (long long)lo, (long long)hi, (long long)x);
    }
    *out = x;
    return true;
}

bool field_seed(const struct field_reader *r, const char *name, uint64_t *out)
{
    json_val *v = member(r, name);
    int64_t x;
    size_t len = 0;
    if (!v)
        return true;
    if (json_int(v, &x)) {
        *out = (uint64_t)x;
        return true;
    }
    /* Beyond int64 the spelling is read: a double would lose the low bits. */
    const char *text = json_number_text(v, &len);
    size_t digits = text && text[0] == '-' ? 1 : 0;
    if (!text || len == digits || strspn(text + digits, "0123456789") < len - digits)
        return field_type_error(r, name, "an integer");
    errno = 0;
    uint64_t u = strtoull(text, NULL, 10);
    if (digits || errno == ERANGE) {
        char param[160], q[96];
        full_name(param, r, name);
        return api_fail(
            r->e, 400, "invalid_value", param,
            "%s must be an integer in [-9223372036854775808, 18446744073709551615], got %s", param,
            api_quote_value(q, v));
    }
    *out = u;
    return true;
}

bool field_real(const struct field_reader *r, const char *name, double lo, bool lo_open, double hi,
                double *out)
{
    json_val *v = member(r, name);
    double x;
    if (!v)
        return true;
    if (!json_real(v, &x))
        return field_type_error(r, name, "a number");
    if (!isfinite(x) || x < lo || (lo_open && x <= lo) || x > hi) {
        char param[160], q[96];
        full_name(param, r, name);
        if (isinf(hi))
            return api_fail(r->e, 400, "invalid_value", param,
                            "%s must be a finite number of at least %g, got %s", param, lo,
                            api_quote_value(q, v));
        return api_fail(r->e, 400, "invalid_value", param, "%s must be in %c%g, %g], got %s", param,
                        lo_open ? '(' : '[', lo, hi, api_quote_value(q, v));
    }
    *out = x;
    return true;
}

bool field_bool(const struct field_reader *r, const char *name, bool *out)
{
    json_val *v = member(r, name);
    if (!v)
        return true;
    if (json_type_of(v) != JSON_TRUE && json_type_of(v) != JSON_FALSE)
        return field_type_error(r, name, "a boolean");
    *out = json_bool(v, false);
    return true;
}

bool field_str(const struct field_reader *r, const char *name, const char **out, size_t *len)
{
    json_val *v = member(r, name);
    size_t n;
    if (!v)
        return true;
    const char *s = json_string(v, &n);
    if (!s)
        return field_type_error(r, name, "a string");
    *out = s;
    if (len)
        *len = n;
    return true;
}
