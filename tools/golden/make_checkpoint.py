#!/usr/bin/env python3
"""Write a random DeepSeek-V4 checkpoint in the published format into a folder (no tokenizer).

    make_checkpoint.py --preset t1 --format fp4 --shards 3 OUT
    make_checkpoint.py --preset t2 --set hidden_size=512 --set compress_ratios=0,4,128 \
                       --draft none --weights normal --seed 7 OUT

Presets: t1 (8 layers of every kind, 12 M parameters), t2 (head_dim 512), dspark (t1 with a
drafter).  Formats: f32, bf16 (no scales), fp8 (experts FP8 too, as base checkpoints), fp4 (as
published).  Needs numpy.
"""
import argparse
import json

from v4_format import PRESETS, draft_kind, hash_weights, normal_weights, write_checkpoint


def parse_value(text):
    if "," in text:
        return [int(x) for x in text.split(",") if x]
    try:
        return json.loads(text)
    except ValueError:
        return text


def make_config(preset, settings, draft):
    c = dict(PRESETS[preset])
    for s in settings:
        key, _, value = s.partition("=")
        c[key] = parse_value(value)
    c["num_hidden_layers"] = int(c["num_hidden_layers"])
    if any(s.startswith("compress_ratios=") for s in settings):
        if not any(s.startswith("num_hidden_layers=") for s in settings):
            c["num_hidden_layers"] = len(c["compress_ratios"])
    if draft == "dspark":
        L = c["num_hidden_layers"]
        c.setdefault("dspark_block_size", 5)
        c.setdefault("dspark_markov_rank", 64)
        c.setdefault("dspark_noise_token_id", c["vocab_size"] - 1)
        c.setdefault("dspark_target_layer_ids", list(range(max(0, L - 3), L)))
    else:
        for k in [k for k in c if k.startswith("dspark_")]:
            del c[k]
    return c


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out")
    p.add_argument("--preset", choices=sorted(PRESETS), default="t1")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                   help="any key of config.json; lists as 0,4,128")
    p.add_argument("--draft", choices=["mtp", "dspark", "none"])
    p.add_argument("--format", choices=["f32", "bf16", "fp8", "fp4"], default="f32")
    p.add_argument("--weights", choices=["hash", "normal"], default="hash")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--shards", type=int, default=1)
    p.add_argument("--unaligned", action="store_true",
                   help="tensor data at odd addresses, as the format allows")
    a = p.parse_args()
    draft = a.draft or draft_kind(PRESETS[a.preset])
    c = make_config(a.preset, a.set, draft)
    W = (hash_weights if a.weights == "hash" else normal_weights)(c, draft, a.seed)
    write_checkpoint(a.out, W, c, draft, a.format, a.shards, a.unaligned)


if __name__ == "__main__":
    main()
