"""Model configurations under the key names of DeepSeek-V4's config.json."""

import json

# Why these sizes: the widths that kernels are built for stay as published (head_dim 512, rope 64, index heads 64 x 128,
# window 128, ratios 4 and 128, 4 streams); the rest is as small as the tasks allow. index_topk 128 is passed from the
# 512th token on, so that selection is real in every longer prompt.
KINDLING = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 128,
    "o_lora_rank": 128,
    "o_groups": 1,
    "sliding_window": 128,
    "compress_ratios": [0, 4, 128, 4, 0, 0, 0],
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 65536,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 128,
    "num_hash_layers": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hidden_act": "silu",
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
    },
    "dspark_block_size": 5,
    "dspark_markov_rank": 64,
    "dspark_noise_token_id": 4080,
    "dspark_target_layer_ids": [1, 2, 3],
}


class Config:
    """Attribute access to a config dict; unknown keys are kept in `raw`."""

    def __init__(self, raw):
        self.raw = dict(raw)
        for k, v in raw.items():
            setattr(self, k, v)
        self.n_stages = len(raw.get("dspark_target_layer_ids", ()))

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f))


def tiny(**changes):
    """A copy of KINDLING for tests on a CPU, with changes."""
    return Config({**KINDLING, **changes})
