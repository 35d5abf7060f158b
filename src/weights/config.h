/* config.h - config.json of a DeepSeek-V4 checkpoint as one plain struct.
 *
 * Keys and defaults: DeepSeek-V4's published config.json (Flash and Pro) and the dspark_* keys of
 * the DSpark checkpoints.  A missing key takes the Flash value; a key with a value this engine does
 * not implement is refused by name (norm_topk_prob false, scoring_func other than sqrtsoftplus, ...).
 * Also reads what transformers writes on save (layer_types, mlp_layer_types, compress_rates,
 * rope_parameters). */
#ifndef FST_WEIGHTS_CONFIG_H
#define FST_WEIGHTS_CONFIG_H

#include "base/base.h"

enum {
    CONFIG_LAYERS_MAX = 128, /* target layers; Pro has 61 */
    CONFIG_STAGES_MAX = 8,   /* draft stages; published checkpoints have 3 */
    CONFIG_GAMMA_MAX = 8,    /* draft tokens per round; published 5 */
    CONFIG_EXPERTS_MAX = 512,
    CONFIG_TOPK_EXPERTS_MAX = 16,
    CONFIG_HC = 4 /* residual streams; other values are refused */
};

struct model_config {
    char model_type[32];
    int vocab_size;                        /* V */
    int hidden_size;                       /* D */
    int n_layers;                          /* L, target layers */
    int n_heads;                           /* H */
    int head_dim;                          /* C */
    int rope_dim;                          /* R: trailing dims that rotate */
    int q_lora_rank;                       /* Q */
    int o_lora_rank;                       /* O */
    int o_groups;                          /* G */
    int window;                            /* W, includes the token itself */
    int compress_ratio[CONFIG_LAYERS_MAX]; /* per target layer: 0, 4 or 128 */
    double rope_theta, compress_rope_theta;
    double yarn_factor, yarn_beta_fast, yarn_beta_slow; /* ratio != 0 layers only */
    int yarn_original_positions;
    int64_t max_positions;
    int index_heads; /* HI */
    int index_dim;   /* CI */
    int index_topk;  /* K */
    int n_hash_layers;
    int n_experts; /* E */
    int n_experts_per_token;
    int moe_dim; /* I, routed and shared alike */
    float routed_scale;
    float swiglu_limit;
    int hc_iters; /* Sinkhorn rounds */
    float hc_eps, norm_eps;
    int bos_id, eos_id;
    int block_out, block_in; /* FP8 scale blocks: 128, 128 */

    /* Drafting.  What the tensors hold decides; the loader fills has_mtp. */
    bool has_dspark; /* any dspark_* key */
    bool has_mtp;    /* mtp.0 is a classic MTP block */
    int n_stages;    /* S; 0 without DSpark */
    int gamma;       /* dspark_block_size */
    int markov_rank; /* r */
    int noise_id;
    int target_layer[CONFIG_STAGES_MAX]; /* captured target layers, in concatenation order */
    bool confidence_head;

    /* DeepSeek-V4.1, which is known by its preset alone: no folder of it is opened yet.  Its layers read
     * compressed rows of ratio 1 and 2 (compress_ratio), which few of them own. */
    bool v41;
    bool kv_source[CONFIG_LAYERS_MAX];      /* owns compressed rows and index keys */
    bool index_source[CONFIG_LAYERS_MAX];   /* has an indexer */
    int64_t engram_rows[CONFIG_LAYERS_MAX]; /* of its table of n-grams; 0: none */
    int engram_dim, engram_heads;           /* values of such a row; rows a token reads */
    int n_stage_experts;                    /* of a draft stage; 0: as many as a layer has */
};

/* Parse the JSON text of config.json; `path` is for messages.  FST_EUNSUPPORTED for another
 * model_type (the message lists the known ones), FST_EFORMAT for a key of wrong type or range. */
enum fst_status config_parse(struct model_config *c, const char *json, size_t len,
                             const char *path);
enum fst_status config_read(struct model_config *c, const char *model_dir);

/* Built-in: CONFIG_PRESETS, as help texts list them.  FST_ENOTFOUND lists them too. */
#define CONFIG_PRESETS "v4-flash, v4-pro, v4-flash-dspark, v4-pro-dspark, v4.1-flash"
enum fst_status config_preset(struct model_config *c, const char *name);

#endif
