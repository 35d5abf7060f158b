#!/usr/bin/env python3
"""Regenerate tests/golden/data/layers.gold: one layer of each ratio, quantised (precision "native").

Final logits of a random model are chaotic under quantisation, so layers are compared one at a time:
the streams that enter come from a hash ("streams.L", times 2, in bf16), the weights are those of a
small FP8/FP4 checkpoint with the kernels' shapes, and the decisions (index top-k, experts) are kept
for all rows, to be replayed.  The head is run on such streams too.  Needs numpy.
"""
import argparse
import os
import tempfile

import numpy as np

import goldfile
from numpy_v4 import Model
from v4_format import (DSPARK, bf16, hash_weights, read_checkpoint, stream, token_ids,
                       write_checkpoint)

SMALL = dict(DSPARK, num_hidden_layers=4, compress_ratios=[0, 128, 4, 4, 0, 0, 0], head_dim=512,
             num_attention_heads=8, o_groups=1, sliding_window=128, index_n_heads=64,
             index_topk=16, num_hash_layers=1, dspark_target_layer_ids=[1, 2, 3])
ROWS = 132
AT = [5, 64, 131]
LAYERS = [0, 1, 2]
DECISIONS = ("selected", "expert_ids")  # of every row
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/data")


def streams(name):
    n = ROWS * 4 * SMALL["hidden_size"]
    return bf16(2 * stream(name, n)).reshape(ROWS, 4, SMALL["hidden_size"])


def run():
    with tempfile.TemporaryDirectory() as d:
        write_checkpoint(d, hash_weights(SMALL, "dspark"), SMALL, "dspark", "fp4")
        c, W = read_checkpoint(d)
    ids = token_ids(ROWS, c["vocab_size"])
    m = Model(c, W, "native", dump_layers=[f"layers.{l}." for l in LAYERS])
    out = dict(tokens=ids, at=np.array(AT))
    for l in LAYERS:
        p = f"layers.{l}."
        m.layer(p, streams(f"streams.{l}"), ids, l < c["num_hash_layers"],
                lambda x: m.attention(p, m.ratios[l], x))
    for name, a in m.dump.items():
        if name.endswith(".o"):
            continue
        if name.endswith(DECISIONS):
            out[name] = a.astype(np.int32)
        elif name.endswith("rows"):
            out[name] = a[[0, len(a) - 1]]
        else:
            out[name] = a[AT]
    X = streams("streams.head")[AT]
    out.update(head_y=m.hc_collapse(X, ""), head_logits=m.head(X, ""))
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--check", action="store_true", help="compare with the file instead")
    a = p.parse_args()
    path, out = os.path.join(DATA, "layers.gold"), run()
    if not a.check:
        goldfile.write(path, out)
        print(f"{path}: {os.path.getsize(path)} bytes")
        return
    old = goldfile.read(path)
    assert list(old) == list(out)
    worst = max(float(np.abs(old[k].astype(np.float64) - v).max()) for k, v in out.items())
    print(f"largest difference {worst:.2e}")
    assert worst == 0


if __name__ == "__main__":
    main()
