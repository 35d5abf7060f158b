#!/usr/bin/env python3
"""Regenerate tests/golden/data/layers.gold: one layer of each ratio, quantised (precision "served").

Final logits of a random model are chaotic under quantisation, so layers are compared one at a time:
the streams that enter come from a hash ("streams.L", times 2, in bf16), the weights are those of a
small FP8/FP4 checkpoint with the kernels' shapes, and the decisions (index top-k, experts) are kept
for all rows with the scores behind them, to be replayed.  The head is run on such streams too.
make_drafter.py does the same for the drafter.  Needs numpy.
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
DECISIONS = ("selected", "expert_ids")  # of every row, as are their scores
SCORES = ("index_score", "router_score")
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/data")


def streams(name):
    n = ROWS * 4 * SMALL["hidden_size"]
    return bf16(2 * stream(name, n)).reshape(ROWS, 4, SMALL["hidden_size"])


def model(precision="served", dump_layers=()):
    with tempfile.TemporaryDirectory() as d:
        write_checkpoint(d, hash_weights(SMALL, "dspark"), SMALL, "dspark", "fp4")
        c, W = read_checkpoint(d)
    return Model(c, W, precision, dump_layers=dump_layers)


def run(precision="served"):
    m = model(precision, [f"layers.{l}." for l in LAYERS])
    c = m.c
    ids = token_ids(ROWS, c["vocab_size"])
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
        elif name.endswith(SCORES):
            out[name] = a
        elif name.endswith("rows"):
            out[name] = a[[0, len(a) - 1]]
        else:
            out[name] = a[AT]
        if name.endswith(".X"):  # what the drafter reads of it
            out[name[:-1] + "H"] = m.store(a[AT].mean(1, dtype=np.float32))
    X = streams("streams.head")[AT]
    out.update(head_y=m.hc_collapse(X, ""), head_logits=m.head(X, ""))
    return out


def rel_l2(x, y):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return float(np.sqrt(((x - y) ** 2).sum() / max((y**2).sum(), 1e-30)))


def check(path, out):
    """Another BLAS may move a code to the next: 1e-3, and one row in a hundred of decisions."""
    old = goldfile.read(path)
    assert list(old) == list(out), "other arrays than in the file"
    worst = 0.0
    for k, v in out.items():
        if old[k].dtype.kind == "i":
            assert (old[k] != v).mean() <= 0.01, k
        else:
            worst = max(worst, rel_l2(v, old[k]))
    print(f"equal; largest difference {worst:.2e}")
    assert worst <= 1e-3, worst


def why():
    """What the published rounding of every expert's output does to one layer, behind equal inputs."""
    a, b = run("served"), run("native")
    for k in a:
        if k.endswith(("attn_out", "ffn_out")):
            print(f"{k}: each expert rounded against the sum rounded, relative L2 "
                  f"{rel_l2(b[k], a[k]):.2e}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--check", action="store_true", help="compare with the file instead")
    p.add_argument("--why", action="store_true", help="served against native")
    a = p.parse_args()
    path = os.path.join(DATA, "layers.gold")
    if a.why:
        return why()
    if a.check:
        return check(path, run())
    goldfile.write(path, run())
    print(f"{path}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
