#!/usr/bin/env python3
"""Regenerate tests/golden/data/drafter.gold: DSpark quantised (precision "served"), block by block.

    make_drafter.py [--check]

The model is make_layers.py's.  Captured rows H come from a hash ("streams.H", times 2, in bf16); of
the ROWS injected main_x and the window rows K of all stages are kept, of one block behind them what
make_layers.py keeps of a layer, for every row; U and y of the head, tokens, corrected logits and
confidence of the chain.  Needs numpy.
"""
import argparse
import os

import numpy as np

import goldfile
from make_layers import DATA, SMALL, check, model
from v4_format import bf16, stream

ROWS = 24
ANCHOR = 77


def run():
    S, D = len(SMALL["dspark_target_layer_ids"]), SMALL["hidden_size"]
    m = model(dump_layers=[f"mtp.{s}." for s in range(S)])
    H = bf16(2 * stream("streams.H", ROWS * S * D)).reshape(ROWS, S * D)
    main_x, K = m.inject(H)
    b = m.draft(ANCHOR, ROWS, K)
    out = dict(at=np.arange(SMALL["dspark_block_size"]), anchor=np.array([ANCHOR]), main_x=main_x, K=K)
    for name, a in m.dump.items():
        if not name.endswith(".o"):
            out[name] = a
    out.update({"draft_" + k: b[k] for k in ("y", "U", "tokens", "corrected", "confidence")})
    print("smallest margin of a drafted token:", f"{m.margin['draft']:.1e}")
    assert m.margin["draft"] >= 1e-4
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--check", action="store_true", help="compare with the file instead")
    a = p.parse_args()
    path = os.path.join(DATA, "drafter.gold")
    if a.check:
        return check(path, run())
    goldfile.write(path, run())
    print(f"{path}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
