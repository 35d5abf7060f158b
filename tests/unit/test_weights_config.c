/* test_weights_config.c - config.json: published, saved by transformers, wrong. */
#include "support/cm.h"

#include "weights/config.h"

static enum fst_status parse(struct model_config *c, const char *json)
{
    return config_parse(c, json, strlen(json), "config.json");
}

static void parse_ok(struct model_config *c, const char *json)
{
    if (parse(c, json) < 0)
        fail_msg("%s", fst_error_text());
}

/* The message must name the key and say what was expected. */
static void refuse(const char *json, enum fst_status want, const char *key, const char *expected)
{
    struct model_config c;
    enum fst_status rc = parse(&c, json);
    if (rc != want || !strstr(fst_error_text(), key) || !strstr(fst_error_text(), expected))
        fail_msg("%s: %s: %s", json, fst_status_name(rc), rc ? fst_error_text() : "accepted");
}

static void test_defaults(void **state)
{
    struct model_config c, flash;
    (void)state;
    parse_ok(&c, "{\"model_type\": \"deepseek_v4\"}");
    assert_int_equal(config_preset(&flash, "v4-flash"), FST_OK);
    flash.has_mtp = false;
    assert_memory_equal(&c, &flash, sizeof c);
    assert_int_equal(c.compress_ratio[1], 0);
    assert_int_equal(c.compress_ratio[2], 4);
    assert_int_equal(c.compress_ratio[41], 128);
    assert_int_equal(c.compress_ratio[42], 4);
}

static const char t1[] =
    "{\"vocab_size\":512, \"hidden_size\":256, \"num_hidden_layers\":8, "
    "\"num_attention_heads\":4, \"num_key_value_heads\":1, \"head_dim\":128, "
    "\"qk_rope_head_dim\":64, \"q_lora_rank\":128, \"o_lora_rank\":128, \"o_groups\":2, "
    "\"sliding_window\":16, \"compress_ratios\":[0,128,4,128,4,0,4,128,0], "
    "\"compress_rope_theta\":160000, \"rope_theta\":10000, \"rope_scaling\":{\"type\":\"yarn\","
    "\"factor\":16,\"original_max_position_embeddings\":65536,\"beta_fast\":32,\"beta_slow\":1}, "
    "\"max_position_embeddings\":65536, \"index_n_heads\":16, \"index_head_dim\":128, "
    "\"index_topk\":8, \"num_hash_layers\":3, \"n_routed_experts\":8, \"n_shared_experts\":1, "
    "\"num_experts_per_tok\":2, \"moe_intermediate_size\":128, "
    "\"scoring_func\":\"sqrtsoftplus\", \"topk_method\":\"noaux_tc\", \"norm_topk_prob\":true, "
    "\"routed_scaling_factor\":1.5, \"swiglu_limit\":1.0, \"hc_mult\":4, "
    "\"hc_sinkhorn_iters\":20, \"hc_eps\":1e-6, \"rms_norm_eps\":1e-6, "
    "\"num_nextn_predict_layers\":1, \"bos_token_id\":0, \"eos_token_id\":1, "
    "\"tie_word_embeddings\":false, \"model_type\":\"deepseek_v4\"}";

/* The same model as transformers 5.17 writes it. */
static const char t1_saved[] =
    "{\"attention_bias\": false, \"bos_token_id\": 0, \"compress_rates\": "
    "{\"compressed_sparse_attention\": 4, \"heavily_compressed_attention\": 128}, "
    "\"compress_rope_theta\": 160000, \"eos_token_id\": 1, \"hc_eps\": 1e-06, \"hc_mult\": 4, "
    "\"hc_sinkhorn_iters\": 20, \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 256, "
    "\"index_head_dim\": 128, \"index_n_heads\": 16, \"index_topk\": 8, \"layer_types\": "
    "[\"sliding_attention\", \"heavily_compressed_attention\", \"compressed_sparse_attention\", "
    "\"heavily_compressed_attention\", \"compressed_sparse_attention\", \"sliding_attention\", "
    "\"compressed_sparse_attention\", \"heavily_compressed_attention\"], "
    "\"max_position_embeddings\": 65536, \"mlp_bias\": false, \"mlp_layer_types\": [\"hash_moe\", "
    "\"hash_moe\", \"hash_moe\", \"moe\", \"moe\", \"moe\", \"moe\", \"moe\"], \"model_type\": "
    "\"deepseek_v4\", \"moe_intermediate_size\": 128, \"n_routed_experts\": 8, "
    "\"n_shared_experts\": 1, \"norm_topk_prob\": true, \"num_attention_heads\": 4, "
    "\"num_experts_per_tok\": 2, \"num_hidden_layers\": 8, \"num_key_value_heads\": 1, "
    "\"o_groups\": 2, \"o_lora_rank\": 128, \"pad_token_id\": null, \"partial_rotary_factor\": "
    "0.5, "
    "\"q_lora_rank\": 128, \"rms_norm_eps\": 1e-06, \"rope_parameters\": {\"compress\": "
    "{\"attention_factor\": 1.0, \"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 16, "
    "\"original_max_position_embeddings\": 65536, \"partial_rotary_factor\": 0.5, \"rope_theta\": "
    "160000, \"rope_type\": \"yarn\", \"type\": \"yarn\"}, \"main\": {\"partial_rotary_factor\": "
    "0.5, \"rope_theta\": 10000, \"rope_type\": \"default\"}}, \"routed_scaling_factor\": 1.5, "
    "\"scoring_func\": \"sqrtsoftplus\", \"sliding_window\": 16, \"swiglu_limit\": 1.0, "
    "\"vocab_size\": 512}";

static void test_two_spellings(void **state)
{
    struct model_config a, b;
    (void)state;
    parse_ok(&a, t1);
    parse_ok(&b, t1_saved);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.n_layers, 8);
    assert_int_equal(a.rope_dim, 64);
    assert_int_equal(a.n_hash_layers, 3);
    assert_int_equal(a.compress_ratio[7], 128);
    assert_true(a.swiglu_limit == 1);
    assert_int_equal(a.max_positions, 65536);
    assert_int_equal(a.gamma, 0);
}

/* A number spelled in every other kind must be refused, with its key named. */
static void test_every_integer(void **state)
{
    static const char *const keys[] = {"vocab_size",
                                       "hidden_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "head_dim",
                                       "q_lora_rank",
                                       "o_lora_rank",
                                       "o_groups",
                                       "sliding_window",
                                       "index_n_heads",
                                       "index_head_dim",
                                       "index_topk",
                                       "num_hash_layers",
                                       "n_routed_experts",
                                       "num_experts_per_tok",
                                       "moe_intermediate_size",
                                       "hc_sinkhorn_iters",
                                       "bos_token_id",
                                       "dspark_block_size",
                                       "dspark_markov_rank",
                                       "qk_rope_head_dim",
                                       "eos_token_id",
                                       "dspark_noise_token_id",
                                       "max_position_embeddings"};
    static const char *const values[] = {"\"64\"", "1.5",  "-1",   "[]",
                                         "{}",     "true", "1e30", "99999999999999999999"};
    char json[256];
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        for (size_t j = 0; j < sizeof values / sizeof *values; j++) {
            snprintf(json, sizeof json, "{\"model_type\":\"deepseek_v4\",\"%s\":%s}", keys[i],
                     values[j]);
            refuse(json, FST_EFORMAT, keys[i], "expected an integer");
        }
    }
}

static void test_refusals(void **state)
{
#define WITH(rest) "{\"model_type\":\"deepseek_v4\"," rest "}"
    static const struct {
        const char *json;
        enum fst_status rc;
        const char *key, *expected;
    } cases[] = {
        {"{\"model_type\":\"deepseek_v41\"}", FST_EUNSUPPORTED, "deepseek_v41",
         "known: deepseek_v4"},
        {"{\"model_type\":\"llama\"}", FST_EUNSUPPORTED, "llama", "known: deepseek_v4"},
        {"{}", FST_EFORMAT, "model_type", "missing"},
        {"{\"model_type\":4}", FST_EFORMAT, "model_type", "a string"},
        {"[]", FST_EFORMAT, "config.json", "an object"},
        {"{\"model_type\":", FST_EFORMAT, "config.json", "byte"},
        {WITH("\"norm_topk_prob\":false"), FST_EUNSUPPORTED, "norm_topk_prob", "true"},
        {WITH("\"scoring_func\":\"softmax\""), FST_EUNSUPPORTED, "scoring_func", "sqrtsoftplus"},
        {WITH("\"topk_method\":\"greedy\""), FST_EUNSUPPORTED, "topk_method", "noaux_tc"},
        {WITH("\"hidden_act\":\"gelu\""), FST_EUNSUPPORTED, "hidden_act", "silu"},
        {WITH("\"hc_mult\":2"), FST_EUNSUPPORTED, "hc_mult", "4"},
        {WITH("\"n_shared_experts\":2"), FST_EUNSUPPORTED, "n_shared_experts", "1"},
        {WITH("\"num_key_value_heads\":8"), FST_EUNSUPPORTED, "num_key_value_heads", "1"},
        {WITH("\"tie_word_embeddings\":true"), FST_EUNSUPPORTED, "tie_word_embeddings", "false"},
        {WITH("\"attention_bias\":true"), FST_EUNSUPPORTED, "attention_bias", "false"},
        {WITH("\"dspark_markov_head_type\":\"rnn\""), FST_EUNSUPPORTED, "dspark_markov_head_type",
         "vanilla"},
        {WITH("\"sample_from_anchor\":false"), FST_EUNSUPPORTED, "sample_from_anchor", "true"},
        {WITH("\"quantization_config\":{\"weight_block_size\":[32,32]}"), FST_EUNSUPPORTED,
         "weight_block_size", "[128, 128]"},
        {WITH("\"quantization_config\":{\"quant_method\":\"awq\"}"), FST_EUNSUPPORTED,
         "quant_method", "fp8"},
        {WITH("\"quantization_config\":7"), FST_EFORMAT, "quantization_config", "an object"},
        {WITH("\"compress_ratios\":[0,0,4]"), FST_EFORMAT, "compress_ratios", "3 entries for 43"},
        {WITH("\"compress_ratios\":4"), FST_EFORMAT, "compress_ratios", "a list"},
        {WITH("\"num_hidden_layers\":2,\"compress_ratios\":[0,2]"), FST_EFORMAT,
         "compress_ratios[1]", "0, 4 or 128"},
        {WITH("\"num_hidden_layers\":1,\"layer_types\":[\"full_attention\"]"), FST_EFORMAT,
         "layer_types[0]", "sliding_attention"},
        {WITH("\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"],"
              "\"compress_rates\":{\"compressed_sparse_attention\":8}"),
         FST_EFORMAT, "compress_rates.compressed_sparse_attention", "expected 4"},
        {WITH("\"num_hidden_layers\":2,\"mlp_layer_types\":[\"moe\",\"hash_moe\"]"),
         FST_EUNSUPPORTED, "mlp_layer_types", "first"},
        {WITH("\"rope_scaling\":\"yarn\""), FST_EFORMAT, "rope_scaling", "an object"},
        {WITH("\"rope_scaling\":{\"type\":\"linear\"}"), FST_EFORMAT, "rope_scaling.type", "yarn"},
        {WITH("\"rope_scaling\":{\"factor\":\"16\"}"), FST_EFORMAT, "rope_scaling.factor",
         "a number"},
        {WITH("\"rope_scaling\":{\"attention_factor\":1.2}"), FST_EFORMAT,
         "rope_scaling.attention_factor", "from 1 to 1"},
        {WITH("\"rope_theta\":\"10000\""), FST_EFORMAT, "rope_theta", "a number"},
        {WITH("\"rms_norm_eps\":\"1e-6\""), FST_EFORMAT, "rms_norm_eps", "a number"},
        {WITH("\"swiglu_limit\":0"), FST_EFORMAT, "swiglu_limit", "a number"},
        {WITH("\"qk_rope_head_dim\":63"), FST_EFORMAT, "qk_rope_head_dim", "even"},
        {WITH("\"o_groups\":7"), FST_EFORMAT, "o_groups", "multiple"},
        {WITH("\"num_experts_per_tok\":16,\"n_routed_experts\":8"), FST_EFORMAT,
         "num_experts_per_tok", "exceed"},
        {WITH("\"vocab_size\":1,\"eos_token_id\":1"), FST_EFORMAT, "eos_token_id", "below"},
        {WITH("\"dspark_target_layer_ids\":[40,41,43]"), FST_EFORMAT, "dspark_target_layer_ids[2]",
         "from 0 to 42"},
        {WITH("\"dspark_target_layer_ids\":[]"), FST_EFORMAT, "dspark_target_layer_ids", "a list"},
        {WITH("\"dspark_block_size\":5,\"vocab_size\":128799"), FST_EFORMAT,
         "dspark_noise_token_id", "below"},
        {WITH("\"dspark_block_size\":5,\"enable_confidence_head\":1"), FST_EFORMAT,
         "enable_confidence_head", "a boolean"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(cases[i].json, cases[i].rc, cases[i].key, cases[i].expected);
}

static void test_dspark(void **state)
{
    struct model_config c, preset;
    (void)state;
    parse_ok(&c, WITH("\"dspark_block_size\":5,\"dspark_markov_rank\":256,"
                      "\"dspark_noise_token_id\":128799,\"dspark_target_layer_ids\":[40,41,42]"));
    assert_int_equal(config_preset(&preset, "v4-flash-dspark"), FST_OK);
    assert_memory_equal(&c, &preset, sizeof c);
    parse_ok(&c, WITH("\"dspark_block_size\":4,\"enable_confidence_head\":false"));
    assert_int_equal(c.gamma, 4);
    assert_false(c.confidence_head);
    assert_int_equal(c.n_stages, 3);
    assert_int_equal(c.target_layer[0], 40);
    assert_int_equal(config_preset(&c, "v4-pro-dspark"), FST_OK);
    assert_int_equal(c.target_layer[2], 60);
    assert_int_equal(c.markov_rank, 512);
    assert_int_equal(config_preset(&c, "v5"), FST_ENOTFOUND);
    assert_non_null(strstr(fst_error_text(), "v4-flash-dspark"));
}

static void test_small_variants(void **state)
{
    struct model_config c;
    (void)state;
    parse_ok(&c, WITH("\"eos_token_id\":[1,2],\"rope_scaling\":null,\"hc_mult\":null"));
    assert_int_equal(c.eos_id, 1);
    assert_true(c.yarn_factor == 1);
    parse_ok(&c, WITH("\"num_hidden_layers\":2,\"unknown_key\":{\"x\":[1]}"));
    assert_int_equal(c.n_hash_layers, 2); /* the default of 3 does not fit */
    parse_ok(&c, WITH("\"hidden_size\":4096.0"));
    assert_int_equal(c.hidden_size, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),      cmocka_unit_test(test_two_spellings),
        cmocka_unit_test(test_every_integer), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_dspark),        cmocka_unit_test(test_small_variants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
