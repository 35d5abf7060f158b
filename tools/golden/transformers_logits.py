#!/usr/bin/env python3
"""Logits of a checkpoint folder through Hugging Face transformers: CPU, fp32, eager, no cache.

    transformers_logits.py CHECKPOINT --tokens 300 [--npy OUT.npy] [--compare] [--against FILE.npy]

The trunk only: transformers ignores mtp.*.  Prints argmax per position, the smallest decision
margins of the same ids (numpy_v4.py: router, index top-k, argmax) and refuses ids or a seed whose
margin is below 1e-5 (--any-margin prints them all the same).  --compare: difference to
numpy_v4.py; --against: to raw float32 logits [T, V], as `firesteel score --raw-logits` writes
them (any suffix but .npy).

Needs torch and transformers from PyPI (5.17 was used); build/venv-golden is a good place:
    python3 -m venv build/venv-golden
    build/venv-golden/bin/pip install numpy torch transformers==5.17.0
"""
import argparse
import os
import sys

import numpy as np

from numpy_v4 import Model
from v4_format import draft_kind, layer_ratios, read_checkpoint, token_ids

MARGIN_MIN = 1e-5

SIMPLE = {"embed.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight",
          "norm.weight": "model.norm.weight", "hc_head_fn": "model.hc_head.hc_fn",
          "hc_head_base": "model.hc_head.hc_base", "hc_head_scale": "model.hc_head.hc_scale"}
COMPRESSOR = {"wkv.weight": "kv_proj.weight", "wgate.weight": "gate_proj.weight",
              "ape": "position_bias", "norm.weight": "kv_norm.weight"}
ATTENTION = {"attn_sink": "sinks", "wq_a.weight": "q_a_proj.weight",
             "q_norm.weight": "q_a_norm.weight", "wq_b.weight": "q_b_proj.weight",
             "wkv.weight": "kv_proj.weight", "kv_norm.weight": "kv_norm.weight",
             "wo_a.weight": "o_a_proj.weight", "wo_b.weight": "o_b_proj.weight",
             "indexer.wq_b.weight": "compressor.indexer.q_b_proj.weight",
             "indexer.weights_proj.weight": "compressor.indexer.scorer.weights_proj.weight"}
FFN = {"gate.weight": "gate.weight", "gate.bias": "gate.e_score_correction_bias",
       "gate.tid2eid": "gate.tid2eid", "shared_experts.w1.weight": "shared_experts.gate_proj.weight",
       "shared_experts.w2.weight": "shared_experts.down_proj.weight",
       "shared_experts.w3.weight": "shared_experts.up_proj.weight"}
LAYER = {"attn_norm.weight": "input_layernorm.weight",
         "ffn_norm.weight": "post_attention_layernorm.weight"}
LAYER.update({f"hc_{s}_{k}": f"{s}_hc.{k}" for s in ("attn", "ffn")
              for k in ("fn", "base", "scale")})
LAYER.update({"attn." + k: "self_attn." + v for k, v in ATTENTION.items()})
for _q, _p in (("compressor.", "compressor."), ("indexer.compressor.", "compressor.indexer.")):
    LAYER.update({"attn." + _q + k: "self_attn." + _p + v for k, v in COMPRESSOR.items()})
LAYER.update({"ffn." + k: "mlp." + v for k, v in FFN.items()})


def transformers_state(W, c):
    """Published names -> the state dict of DeepseekV4ForCausalLM (numpy arrays)."""
    out = {SIMPLE[k]: W[k] for k in SIMPLE}
    for l in range(c["num_hidden_layers"]):
        p, q = f"layers.{l}.", f"model.layers.{l}."
        for k, v in LAYER.items():
            if p + k in W:
                out[q + v] = W[p + k]
        e = [f"{p}ffn.experts.{i}." for i in range(c["n_routed_experts"])]
        out[q + "mlp.experts.gate_up_proj"] = np.stack(
            [np.concatenate([W[x + "w1.weight"], W[x + "w3.weight"]]) for x in e])
        out[q + "mlp.experts.down_proj"] = np.stack([W[x + "w2.weight"] for x in e])
    return out


def build(c, W):
    import torch
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    torch.set_num_threads(1)
    drop = ("quantization_config", "architectures", "torch_dtype")
    keys = {k: v for k, v in c.items() if k not in drop and not k.startswith("dspark_")}
    keys["compress_ratios"] = layer_ratios(c)
    config = DeepseekV4Config(**keys)
    config._attn_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).to(torch.float32).eval()
    state = {k: torch.from_numpy(np.array(v)) for k, v in
             transformers_state(W, c).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [k for k in missing if "inv_freq" not in k]
    if missing or unexpected:
        sys.exit(f"transformers' names differ: missing {missing[:5]}, unexpected {unexpected[:5]}")
    return model


def logits(model, ids):
    import torch

    with torch.no_grad():
        return model(input_ids=torch.tensor([list(map(int, ids))]), use_cache=False
                     ).logits[0].float().numpy()


def report(name, y, other):
    d = np.abs(y - other)
    print(f"{name}: max |difference| {d.max():.2e} at position {int(d.max(1).argmax())}, argmax "
          f"equal at {(y.argmax(1) == other.argmax(1)).sum()} of {len(y)}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("checkpoint")
    p.add_argument("--ids", help="token ids, as 1,2,3")
    p.add_argument("--tokens", type=int, default=64, help="or: that many hashed ids")
    p.add_argument("--seed", type=int, default=0, help="of the hashed ids")
    p.add_argument("--npy", help="write the logits [T, V]")
    p.add_argument("--compare", action="store_true")
    p.add_argument("--against")
    p.add_argument("--any-margin", action="store_true")
    a = p.parse_args()
    c, W = read_checkpoint(a.checkpoint)
    assert draft_kind(c, W) in ("mtp", "dspark", "none")
    ids = ([int(x) for x in a.ids.split(",")] if a.ids else
           token_ids(a.tokens, c["vocab_size"], a.seed))
    ours = Model(c, W)
    mine = ours.forward(ids)
    print("smallest margins:", {k: f"{v:.2e}" for k, v in ours.margin.items()})
    if min(ours.margin.values()) < MARGIN_MIN and not a.any_margin:
        sys.exit(f"refused: a margin below {MARGIN_MIN}; take another seed")
    y = logits(build(c, W), ids)
    print("argmax:", " ".join(str(int(t)) for t in y.argmax(1)))
    if a.npy:
        np.save(a.npy, y)
    if a.compare:
        report("numpy_v4.py", y, mine)
    if a.against:
        other = (np.load(a.against) if os.path.splitext(a.against)[1] == ".npy" else
                 np.fromfile(a.against, "<f4"))
        report(a.against, y, other.reshape(y.shape))


if __name__ == "__main__":
    main()
