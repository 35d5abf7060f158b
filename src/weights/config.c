/* config.c - config.json into struct model_config.
 *
 * Owns which keys are read, their ranges and the published presets.  A key that this engine does
 * not know is ignored; a key whose value it does not implement is refused by name, because running
 * on with another meaning would give fluent nonsense. */
#include "weights/config.h"

#include <inttypes.h>
#include <math.h>

#include "base/json.h"
#include "weights/io.h"

enum { CONFIG_BYTES_MAX = 16 << 20 };

static const char known_types[] = "deepseek_v4";

/* What was found, for messages: "a string", "1.5", "null". */
static const char *describe(json_val *v, char *buf, size_t size)
{
    size_t len;
    const char *text = json_number_text(v, &len);
    if (text)
        snprintf(buf, size, "%.*s", (int)FST_MIN(len, (size_t)40), text);
    else if (json_type_of(v) == JSON_STRING && (text = json_string(v, &len)))
        snprintf(buf, size, "\"%.*s\"", (int)FST_MIN(len, (size_t)60), text);
    else if (json_type_of(v) == JSON_TRUE || json_type_of(v) == JSON_FALSE)
        snprintf(buf, size, "%s", json_bool(v, false) ? "true" : "false");
    else
        snprintf(buf, size, "%s", json_type_name(json_type_of(v)));
    return buf;
}

static enum fst_status wrong(const char *path, const char *key, json_val *v, const char *expected)
{
    char found[80];
    return fst_error(FST_EFORMAT, "%s: key \"%s\" is %s; expected %s", path, key,
                     describe(v, found, sizeof found), expected);
}

static enum fst_status want_int(const char *path, const char *key, json_val *v, int64_t min,
                                int64_t max, int64_t *out)
{
    char expected[80];
    if (json_type_of(v) == JSON_NUMBER && json_int(v, out) && *out >= min && *out <= max)
        return FST_OK;
    snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, min, max);
    return wrong(path, key, v, expected);
}

static enum fst_status want_real(const char *path, const char *key, json_val *v, double min,
                                 double max, double *out)
{
    char expected[80];
    if (json_type_of(v) == JSON_NUMBER && json_real(v, out) && *out >= min && *out <= max)
        return FST_OK;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    return wrong(path, key, v, expected);
}

/* Integer keys: one row each.  Limits are far above the published values; they keep products of
 * two sizes within 63 bits. */
static const struct int_key {
    const char *key;
    size_t offset;
    int min, max;
} int_keys[] = {
#define K(key, field, min, max)                                                                    \
    {                                                                                              \
        key, offsetof(struct model_config, field), min, max                                        \
    }
    K("vocab_size", vocab_size, 1, 1 << 24),
    K("hidden_size", hidden_size, 1, 1 << 17),
    K("num_hidden_layers", n_layers, 1, CONFIG_LAYERS_MAX),
    K("num_attention_heads", n_heads, 1, 1024),
    K("head_dim", head_dim, 2, 4096),
    K("q_lora_rank", q_lora_rank, 1, 1 << 16),
    K("o_lora_rank", o_lora_rank, 1, 1 << 16),
    K("o_groups", o_groups, 1, 1024),
    K("sliding_window", window, 1, 1 << 16),
    K("index_n_heads", index_heads, 1, 1024),
    K("index_head_dim", index_dim, 2, 4096),
    K("index_topk", index_topk, 1, 1 << 20),
    K("num_hash_layers", n_hash_layers, 0, CONFIG_LAYERS_MAX),
    K("n_routed_experts", n_experts, 1, CONFIG_EXPERTS_MAX),
    K("num_experts_per_tok", n_experts_per_token, 1, CONFIG_TOPK_EXPERTS_MAX),
    K("moe_intermediate_size", moe_dim, 1, 1 << 16),
    K("hc_sinkhorn_iters", hc_iters, 1, 1000),
    K("bos_token_id", bos_id, 0, 1 << 24),
    K("dspark_block_size", gamma, 1, CONFIG_GAMMA_MAX),
    K("dspark_markov_rank", markov_rank, 1, 1 << 14),
    K("dspark_noise_token_id", noise_id, 0, 1 << 24),
#undef K
};

static enum fst_status read_ints(struct model_config *c, json_val *root, const char *path)
{
    for (size_t i = 0; i < FST_COUNT(int_keys); i++) {
        const struct int_key *k = &int_keys[i];
        json_val *v = json_get(root, k->key);
        int64_t x;
        if (!v || json_is_null(v))
            continue;
        FST_TRY(want_int(path, k->key, v, k->min, k->max, &x));
        *(int *)(void *)((char *)c + k->offset) = (int)x;
    }
    json_val *v = json_get(root, "max_position_embeddings");
    if (v && !json_is_null(v))
        FST_TRY(
            want_int(path, "max_position_embeddings", v, 1, (int64_t)1 << 40, &c->max_positions));
    return FST_OK;
}

static enum fst_status read_reals(struct model_config *c, json_val *root, const char *path)
{
    static const struct {
        const char *key;
        size_t offset;
        double min, max;
    } keys[] = {
        {"routed_scaling_factor", offsetof(struct model_config, routed_scale), 0, 1e6},
        {"swiglu_limit", offsetof(struct model_config, swiglu_limit), 1e-6, 1e30},
        {"hc_eps", offsetof(struct model_config, hc_eps), 0, 1},
        {"rms_norm_eps", offsetof(struct model_config, norm_eps), 0, 1},
    };
    double x;
    for (size_t i = 0; i < FST_COUNT(keys); i++) {
        json_val *v = json_get(root, keys[i].key);
        if (!v || json_is_null(v))
            continue;
        FST_TRY(want_real(path, keys[i].key, v, keys[i].min, keys[i].max, &x));
        *(float *)(void *)((char *)c + keys[i].offset) = (float)x;
    }
    return FST_OK;
}

/* eos_token_id: an integer, or a list (generation settings sometimes hold several): the first. */
static enum fst_status read_eos(struct model_config *c, json_val *root, const char *path)
{
    json_val *v = json_get(root, "eos_token_id");
    int64_t x;
    if (!v || json_is_null(v))
        return FST_OK;
    if (json_type_of(v) == JSON_ARRAY && json_count(v) > 0)
        v = json_at(v, 0);
    FST_TRY(want_int(path, "eos_token_id", v, 0, 1 << 24, &x));
    c->eos_id = (int)x;
    return FST_OK;
}

/* Keys with one implemented value.  An absent key and null count as that value. */
static enum fst_status refuse_others(json_val *root, const char *path)
{
    static const struct {
        const char *key;
        int value;
    } ints[] = {{"num_key_value_heads", 1}, {"n_shared_experts", 1}, {"hc_mult", CONFIG_HC}};
    static const struct {
        const char *key;
        bool value;
    } bools[] = {{"norm_topk_prob", true},     {"tie_word_embeddings", false},
                 {"attention_bias", false},    {"mlp_bias", false},
                 {"sample_from_anchor", true}, {"confidence_head_with_markov", true}};
    static const struct {
        const char *key, *value;
    } strings[] = {{"scoring_func", "sqrtsoftplus"},
                   {"topk_method", "noaux_tc"},
                   {"hidden_act", "silu"},
                   {"dspark_markov_head_type", "vanilla"}};
    char found[80];
    for (size_t i = 0; i < FST_COUNT(ints); i++) {
        json_val *v = json_get(root, ints[i].key);
        int64_t x;
        if (v && !json_is_null(v) && !(json_int(v, &x) && x == ints[i].value))
            return fst_error(FST_EUNSUPPORTED, "%s: key \"%s\" is %s; only %d is supported", path,
                             ints[i].key, describe(v, found, sizeof found), ints[i].value);
    }
    for (size_t i = 0; i < FST_COUNT(bools); i++) {
        json_val *v = json_get(root, bools[i].key);
        enum json_type t = bools[i].value ? JSON_TRUE : JSON_FALSE;
        if (v && !json_is_null(v) && json_type_of(v) != t)
            return fst_error(FST_EUNSUPPORTED, "%s: key \"%s\" is %s; only %s is supported", path,
                             bools[i].key, describe(v, found, sizeof found),
                             bools[i].value ? "true" : "false");
    }
    for (size_t i = 0; i < FST_COUNT(strings); i++) {
        json_val *v = json_get(root, strings[i].key);
        size_t len = 0;
        const char *s = json_string(v, &len);
        if (v && !json_is_null(v) &&
            !(s && len == strlen(strings[i].value) && !memcmp(s, strings[i].value, len)))
            return fst_error(FST_EUNSUPPORTED, "%s: key \"%s\" is %s; only \"%s\" is supported",
                             path, strings[i].key, describe(v, found, sizeof found),
                             strings[i].value);
    }
    return FST_OK;
}

static bool string_is(json_val *v, const char *want)
{
    size_t len = 0;
    const char *s = json_string(v, &len);
    return s && len == strlen(want) && !memcmp(s, want, len);
}

static enum fst_status read_type(struct model_config *c, json_val *root, const char *path)
{
    json_val *v = json_get(root, "model_type");
    char found[80];
    if (!v || json_is_null(v))
        return fst_error(FST_EFORMAT, "%s: key \"model_type\" is missing; known: %s", path,
                         known_types);
    if (json_type_of(v) != JSON_STRING)
        return wrong(path, "model_type", v, "a string");
    if (!string_is(v, "deepseek_v4"))
        return fst_error(FST_EUNSUPPORTED, "%s: model_type %s is not supported; known: %s", path,
                         describe(v, found, sizeof found), known_types);
    snprintf(c->model_type, sizeof c->model_type, "deepseek_v4");
    return FST_OK;
}

/* The layer kinds: compress_ratios (published) or layer_types (saved by transformers). */
static enum fst_status read_ratios(struct model_config *c, json_val *root, const char *path)
{
    json_val *ratios = json_get(root, "compress_ratios");
    json_val *types = json_get(root, "layer_types");
    json_val *list = ratios && !json_is_null(ratios) ? ratios : types;
    const char *key = list == ratios ? "compress_ratios" : "layer_types";
    char name[64], expected[80];

    if (!list || json_is_null(list)) { /* Flash: two plain layers, then 4 and 128 in turn */
        for (int l = 0; l < c->n_layers; l++)
            c->compress_ratio[l] = l < 2 ? 0 : l % 2 ? 128 : 4;
        return FST_OK;
    }
    if (json_type_of(list) != JSON_ARRAY)
        return wrong(path, key, list, "a list");
    if (json_count(list) < (size_t)c->n_layers) {
        return fst_error(FST_EFORMAT, "%s: key \"%s\" has %zu entries for %d layers", path, key,
                         json_count(list), c->n_layers);
    }
    for (int l = 0; l < c->n_layers; l++) {
        json_val *v = json_at(list, (size_t)l);
        int64_t x = -1;
        if (list == ratios) {
            if (!json_int(v, &x))
                x = -1;
        } else if (string_is(v, "sliding_attention")) {
            x = 0;
        } else if (string_is(v, "compressed_sparse_attention")) {
            x = 4;
        } else if (string_is(v, "heavily_compressed_attention")) {
            x = 128;
        }
        if (x != 0 && x != 4 && x != 128) {
            snprintf(name, sizeof name, "%s[%d]", key, l);
            snprintf(expected, sizeof expected, "%s",
                     list == ratios ? "0, 4 or 128"
                                    : "sliding_attention, compressed_sparse_attention or "
                                      "heavily_compressed_attention");
            return wrong(path, name, v, expected);
        }
        c->compress_ratio[l] = (int)x;
    }
    /* transformers names the rates apart; the kernels know these two only. */
    json_val *rates = json_get(root, "compress_rates");
    static const struct {
        const char *key;
        int value;
    } known[] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
    for (size_t i = 0; i < FST_COUNT(known); i++) {
        json_val *v = json_get(rates, known[i].key);
        int64_t x;
        if (v && !(json_int(v, &x) && x == known[i].value)) {
            snprintf(name, sizeof name, "compress_rates.%s", known[i].key);
            snprintf(expected, sizeof expected, "%d", known[i].value);
            return wrong(path, name, v, expected);
        }
    }
    return FST_OK;
}

static enum fst_status read_hash_layers(struct model_config *c, json_val *root, const char *path)
{
    json_val *types = json_get(root, "mlp_layer_types");
    json_val *hash = json_get(root, "num_hash_layers");
    int n = 0;
    if (!types || json_is_null(types) || (hash && !json_is_null(hash)))
        return FST_OK;
    if (json_type_of(types) != JSON_ARRAY)
        return wrong(path, "mlp_layer_types", types, "a list");
    if (json_count(types) < (size_t)c->n_layers)
        return fst_error(FST_EFORMAT, "%s: key \"mlp_layer_types\" has %zu entries for %d layers",
                         path, json_count(types), c->n_layers);
    for (int l = 0; l < c->n_layers; l++) {
        json_val *v = json_at(types, (size_t)l);
        bool is_hash = string_is(v, "hash_moe");
        if (!is_hash && !string_is(v, "moe"))
            return wrong(path, "mlp_layer_types", v, "entries hash_moe or moe");
        if (is_hash && n != l)
            return fst_error(FST_EUNSUPPORTED,
                             "%s: key \"mlp_layer_types\": hash_moe at layer %d after a moe layer; "
                             "hash layers must come first",
                             path, l);
        n += is_hash;
    }
    c->n_hash_layers = n;
    return FST_OK;
}

static enum fst_status read_yarn(struct model_config *c, json_val *yarn, const char *path,
                                 const char *key)
{
    char name[96];
    json_val *type = json_get(yarn, "rope_type");
    double x;
    int64_t n;
    static const struct {
        const char *key;
        size_t offset;
        double min, max;
    } reals[] = {
        {"factor", offsetof(struct model_config, yarn_factor), 1, 1e6},
        {"beta_fast", offsetof(struct model_config, yarn_beta_fast), 1e-3, 1e6},
        {"beta_slow", offsetof(struct model_config, yarn_beta_slow), 1e-3, 1e6},
    };

    if (!type)
        type = json_get(yarn, "type");
    if (string_is(type, "default")) {
        c->yarn_factor = 1;
        return FST_OK;
    }
    if (type && !string_is(type, "yarn")) {
        snprintf(name, sizeof name, "%s.type", key);
        return wrong(path, name, type, "\"yarn\" or \"default\"");
    }
    for (size_t i = 0; i < FST_COUNT(reals); i++) {
        json_val *v = json_get(yarn, reals[i].key);
        snprintf(name, sizeof name, "%s.%s", key, reals[i].key);
        if (!v || json_is_null(v))
            continue;
        FST_TRY(want_real(path, name, v, reals[i].min, reals[i].max, &x));
        *(double *)(void *)((char *)c + reals[i].offset) = x;
    }
    json_val *v = json_get(yarn, "original_max_position_embeddings");
    if (v && !json_is_null(v)) {
        snprintf(name, sizeof name, "%s.original_max_position_embeddings", key);
        FST_TRY(want_int(path, name, v, 1, 1 << 30, &n));
        c->yarn_original_positions = (int)n;
    }
    /* Neither cos/sin nor the softmax scale carry YaRN's magnitude factor in this model. */
    v = json_get(yarn, "attention_factor");
    snprintf(name, sizeof name, "%s.attention_factor", key);
    if (v && !json_is_null(v))
        FST_TRY(want_real(path, name, v, 1, 1, &x));
    return FST_OK;
}

/* rope_theta, compress_rope_theta, rope_scaling (published) or rope_parameters{main,compress}. */
static enum fst_status read_rope(struct model_config *c, json_val *root, const char *path)
{
    json_val *v, *saved = json_get(root, "rope_parameters");
    json_val *saved_main = json_get(saved, "main"), *saved_cmp = json_get(saved, "compress");
    int64_t dim;

    v = json_get(root, "rope_theta");
    if (v && !json_is_null(v))
        FST_TRY(want_real(path, "rope_theta", v, 1.5, 1e12, &c->rope_theta));
    v = json_get(root, "compress_rope_theta");
    if (v && !json_is_null(v))
        FST_TRY(want_real(path, "compress_rope_theta", v, 1.5, 1e12, &c->compress_rope_theta));
    v = json_get(root, "rope_scaling");
    if (v && json_is_null(v) && !saved_cmp) {
        c->yarn_factor = 1; /* said outright: no scaling */
    } else if (v && !json_is_null(v)) {
        if (json_type_of(v) != JSON_OBJECT)
            return wrong(path, "rope_scaling", v, "an object");
        FST_TRY(read_yarn(c, v, path, "rope_scaling"));
    }
    if (saved && !json_is_null(saved) && json_type_of(saved) != JSON_OBJECT)
        return wrong(path, "rope_parameters", saved, "an object");
    v = json_get(saved_main, "rope_theta");
    if (v)
        FST_TRY(want_real(path, "rope_parameters.main.rope_theta", v, 1.5, 1e12, &c->rope_theta));
    v = json_get(saved_main, "rope_type");
    if (v && !string_is(v, "default"))
        return wrong(path, "rope_parameters.main.rope_type", v, "\"default\"");
    if (saved_cmp) {
        v = json_get(saved_cmp, "rope_theta");
        if (v)
            FST_TRY(want_real(path, "rope_parameters.compress.rope_theta", v, 1.5, 1e12,
                              &c->compress_rope_theta));
        FST_TRY(read_yarn(c, saved_cmp, path, "rope_parameters.compress"));
    }

    /* The rotating dims: a count, or (transformers) a share of head_dim. */
    v = json_get(root, "qk_rope_head_dim");
    if (v && !json_is_null(v)) {
        FST_TRY(want_int(path, "qk_rope_head_dim", v, 2, 64, &dim));
        c->rope_dim = (int)dim;
    } else if ((v = json_get(root, "partial_rotary_factor")) && !json_is_null(v)) {
        double share;
        FST_TRY(want_real(path, "partial_rotary_factor", v, 1e-6, 1, &share));
        c->rope_dim = (int)floor(c->head_dim * share);
    }
    return FST_OK;
}

static enum fst_status check_quantisation(json_val *root, const char *path)
{
    json_val *q = json_get(root, "quantization_config");
    static const char *const keys[][2] = {
        {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"scale_fmt", "ue8m0"}};
    char found[80];
    if (!q || json_is_null(q))
        return FST_OK;
    if (json_type_of(q) != JSON_OBJECT)
        return wrong(path, "quantization_config", q, "an object");
    for (size_t i = 0; i < FST_COUNT(keys); i++) {
        json_val *v = json_get(q, keys[i][0]);
        if (v && !string_is(v, keys[i][1])) {
            return fst_error(FST_EUNSUPPORTED,
                             "%s: key \"quantization_config.%s\" is %s; only \"%s\" is supported",
                             path, keys[i][0], describe(v, found, sizeof found), keys[i][1]);
        }
    }
    json_val *b = json_get(q, "weight_block_size");
    int64_t rows = 0, cols = 0;
    if (b && !(json_count(b) == 2 && json_int(json_at(b, 0), &rows) &&
               json_int(json_at(b, 1), &cols) && rows == 128 && cols == 128)) {
        return fst_error(FST_EUNSUPPORTED,
                         "%s: key \"quantization_config.weight_block_size\": only [128, 128] is "
                         "supported",
                         path);
    }
    return FST_OK;
}

static const char *const dspark_keys[] = {"dspark_block_size", "dspark_markov_rank",
                                          "dspark_noise_token_id", "dspark_target_layer_ids",
                                          "dspark_markov_head_type"};

static enum fst_status read_dspark(struct model_config *c, json_val *root, const char *path)
{
    json_val *v;
    int64_t x;
    char name[64];
    for (size_t i = 0; i < FST_COUNT(dspark_keys); i++) {
        v = json_get(root, dspark_keys[i]);
        if (v && !json_is_null(v))
            c->has_dspark = true;
    }
    if (!c->has_dspark)
        return FST_OK;
    v = json_get(root, "dspark_target_layer_ids");
    if (v && !json_is_null(v)) {
        if (json_type_of(v) != JSON_ARRAY || json_count(v) < 1 ||
            json_count(v) > CONFIG_STAGES_MAX) {
            snprintf(name, sizeof name, "a list of 1 to %d layer numbers", CONFIG_STAGES_MAX);
            return wrong(path, "dspark_target_layer_ids", v, name);
        }
        c->n_stages = (int)json_count(v);
        for (int i = 0; i < c->n_stages; i++) {
            snprintf(name, sizeof name, "dspark_target_layer_ids[%d]", i);
            FST_TRY(want_int(path, name, json_at(v, (size_t)i), 0, c->n_layers - 1, &x));
            c->target_layer[i] = (int)x;
        }
    } else { /* as published: the last three */
        if (c->n_layers < 3)
            return fst_error(FST_EFORMAT, "%s: key \"dspark_target_layer_ids\" is missing", path);
        c->n_stages = 3;
        for (int i = 0; i < 3; i++)
            c->target_layer[i] = c->n_layers - 3 + i;
    }
    v = json_get(root, "enable_confidence_head");
    if (v && !json_is_null(v)) {
        if (json_type_of(v) != JSON_TRUE && json_type_of(v) != JSON_FALSE)
            return wrong(path, "enable_confidence_head", v, "a boolean");
        c->confidence_head = json_bool(v, true);
    }
    return FST_OK;
}

/* Relations between keys that the shapes and the kernels rely on. */
static enum fst_status check_relations(const struct model_config *c, const char *path)
{
    const struct {
        bool ok;
        const char *text;
    } rules[] = {
        {c->rope_dim >= 2 && c->rope_dim <= 64 && c->rope_dim % 2 == 0,
         "qk_rope_head_dim must be even and at most 64"},
        {c->rope_dim <= c->head_dim, "qk_rope_head_dim must not exceed head_dim"},
        {c->rope_dim <= c->index_dim, "qk_rope_head_dim must not exceed index_head_dim"},
        {c->n_heads % c->o_groups == 0, "num_attention_heads must be a multiple of o_groups"},
        {c->n_hash_layers <= c->n_layers, "num_hash_layers must not exceed num_hidden_layers"},
        {c->n_experts_per_token <= c->n_experts,
         "num_experts_per_tok must not exceed n_routed_experts"},
        {c->bos_id < c->vocab_size, "bos_token_id must be below vocab_size"},
        {c->eos_id < c->vocab_size, "eos_token_id must be below vocab_size"},
        {!c->has_dspark || c->noise_id < c->vocab_size,
         "dspark_noise_token_id must be below vocab_size"},
    };
    for (size_t i = 0; i < FST_COUNT(rules); i++)
        if (!rules[i].ok)
            return fst_error(FST_EFORMAT, "%s: %s", path, rules[i].text);
    return FST_OK;
}

/* The values a missing key takes: V4-Flash. */
static void flash_defaults(struct model_config *c)
{
    *c = (struct model_config){
        .model_type = "deepseek_v4",
        .vocab_size = 129280,
        .hidden_size = 4096,
        .n_layers = 43,
        .n_heads = 64,
        .head_dim = 512,
        .rope_dim = 64,
        .q_lora_rank = 1024,
        .o_lora_rank = 1024,
        .o_groups = 8,
        .window = 128,
        .rope_theta = 10000,
        .compress_rope_theta = 160000,
        .yarn_factor = 16,
        .yarn_beta_fast = 32,
        .yarn_beta_slow = 1,
        .yarn_original_positions = 65536,
        .max_positions = 1048576,
        .index_heads = 64,
        .index_dim = 128,
        .index_topk = 512,
        .n_hash_layers = 3,
        .n_experts = 256,
        .n_experts_per_token = 6,
        .moe_dim = 2048,
        .routed_scale = 1.5f,
        .swiglu_limit = 10,
        .hc_iters = 20,
        .hc_eps = 1e-6f,
        .norm_eps = 1e-6f,
        .bos_id = 0,
        .eos_id = 1,
        .block_out = 128,
        .block_in = 128,
        .gamma = 5,
        .markov_rank = 256,
        .noise_id = 128799,
        .confidence_head = true,
    };
}

/* Without a drafter its numbers mean nothing: zero, so that nobody reads them by mistake. */
static void clear_dspark(struct model_config *c)
{
    c->gamma = c->markov_rank = c->noise_id = c->n_stages = 0;
    c->confidence_head = false;
}

static enum fst_status read_root(struct model_config *c, json_val *root, const char *path)
{
    if (json_type_of(root) != JSON_OBJECT)
        return fst_error(FST_EFORMAT, "%s: %s; expected an object", path,
                         json_type_name(json_type_of(root)));
    FST_TRY(read_type(c, root, path));
    FST_TRY(refuse_others(root, path));
    FST_TRY(read_ints(c, root, path));
    if (c->n_hash_layers > c->n_layers && !json_get(root, "num_hash_layers"))
        c->n_hash_layers = c->n_layers; /* the default of 3 on a smaller model */
    FST_TRY(read_eos(c, root, path));
    FST_TRY(read_reals(c, root, path));
    FST_TRY(read_ratios(c, root, path));
    FST_TRY(read_hash_layers(c, root, path));
    FST_TRY(read_rope(c, root, path));
    FST_TRY(check_quantisation(root, path));
    FST_TRY(read_dspark(c, root, path));
    if (!c->has_dspark)
        clear_dspark(c);
    return check_relations(c, path);
}

enum fst_status config_parse(struct model_config *c, const char *json, size_t len, const char *path)
{
    struct json_doc *doc = NULL;
    char text[512];
    flash_defaults(c);
    enum fst_status rc = json_parse(&doc, json, len);
    if (rc < 0) {
        snprintf(text, sizeof text, "%s", fst_error_text());
        return fst_error(rc, "%s: %s", path, text);
    }
    rc = read_root(c, json_root(doc), path);
    json_free(doc);
    return rc;
}

enum fst_status config_read(struct model_config *c, const char *model_dir)
{
    char *text = NULL, *path = weights_path_join(model_dir, "config.json");
    size_t len;
    enum fst_status rc = path ? FST_OK : FST_ENOMEM;
    if (rc == FST_OK)
        rc = weights_file_read(&text, &len, path, CONFIG_BYTES_MAX);
    if (rc == FST_OK)
        rc = config_parse(c, text, len, path);
    mem_free(text);
    mem_free(path);
    return rc;
}

static void preset_flash(struct model_config *c)
{
    flash_defaults(c);
    for (int l = 0; l < c->n_layers; l++)
        c->compress_ratio[l] = l < 2 ? 0 : l % 2 ? 128 : 4;
}

static void preset_pro(struct model_config *c)
{
    flash_defaults(c);
    c->hidden_size = 7168;
    c->n_layers = 61;
    c->n_heads = 128;
    c->q_lora_rank = 1536;
    c->o_groups = 16;
    c->index_topk = 1024;
    c->n_experts = 384;
    c->moe_dim = 3072;
    c->routed_scale = 2.5f;
    c->markov_rank = 512;
    for (int l = 0; l < c->n_layers; l++)
        c->compress_ratio[l] = l < 2 || l % 2 ? 128 : 4;
}

/* V4.1-Flash (its config.json; DeepSeek-V4.1's reference inference, model.py): layers 2-19 read rows
 * of ratio 2, layers 20-39 of ratio 1. */
static void preset_v41_flash(struct model_config *c)
{
    static const int kv_source[] = {2, 8, 14, 20};
    static const int index_source[] = {2, 8, 14, 20, 24, 28, 32, 36};
    flash_defaults(c);
    snprintf(c->model_type, sizeof c->model_type, "deepseek_v41");
    c->v41 = true;
    c->hidden_size = 5120;
    c->n_layers = 40;
    c->q_lora_rank = 1280;
    c->index_heads = 32;
    c->n_hash_layers = 0;
    c->n_experts = 384;
    c->n_stage_experts = 128;
    c->moe_dim = 2304;
    c->norm_eps = 1e-20f;
    c->block_out = c->block_in = 32;
    for (int l = 2; l < c->n_layers; l++)
        c->compress_ratio[l] = l < 20 ? 2 : 1;
    for (size_t i = 0; i < FST_COUNT(kv_source); i++)
        c->kv_source[kv_source[i]] = true;
    for (size_t i = 0; i < FST_COUNT(index_source); i++)
        c->index_source[index_source[i]] = true;
    c->engram_rows[1] = 384006168;
    c->engram_rows[14] = 384016682;
    c->engram_dim = 256;
    c->engram_heads = 24;
}

enum fst_status config_preset(struct model_config *c, const char *name)
{
    static const struct {
        const char *name;
        void (*fill)(struct model_config *);
        bool dspark;
    } presets[] = {{"v4-flash", preset_flash, false},
                   {"v4-pro", preset_pro, false},
                   {"v4-flash-dspark", preset_flash, true},
                   {"v4-pro-dspark", preset_pro, true},
                   {"v4.1-flash", preset_v41_flash, true}};
    for (size_t i = 0; i < FST_COUNT(presets); i++) {
        if (strcmp(name, presets[i].name) != 0)
            continue;
        presets[i].fill(c);
        c->has_dspark = presets[i].dspark;
        c->has_mtp = !presets[i].dspark;
        if (!c->has_dspark)
            clear_dspark(c);
        c->n_stages = c->has_dspark ? 3 : 0;
        for (int s = 0; s < c->n_stages; s++)
            c->target_layer[s] = c->n_layers - 3 + s;
        return FST_OK;
    }
    return fst_error(FST_ENOTFOUND, "no preset \"%s\"; known: " CONFIG_PRESETS, name);
}
