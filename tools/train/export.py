"""Write models/kindling from trained state, or (--random) an untrained model of the same shape.

python3 tools/train/export.py --state s/polish --out models/kindling
python3 tools/train/export.py --random --out models/kindling
"""

import argparse
import os

import torch

from kindling.checkpoint import export, load_state
from kindling.config import KINDLING, Config
from kindling.drafter import Drafter
from kindling.model import Target


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--state", help="folder with target-*.safetensors and drafter-*.safetensors")
    p.add_argument("--random", action="store_true", help="random weights (seed 0) instead of trained ones")
    p.add_argument("--out", required=True)
    a = p.parse_args()
    torch.manual_seed(0)
    c = Config(KINDLING)
    target, drafter = Target(c), Drafter(c)
    if a.random:
        with torch.no_grad():
            for m in (target, drafter):
                for name, w in m.named_parameters():
                    if name.endswith(("attn_sink", "ape")):
                        w.normal_(std=0.5)
                    if name.endswith("markov_w2") or name.endswith("confidence"):
                        w.normal_(std=0.05)
                for name, b in m.named_buffers():
                    if name.endswith("bias"):
                        b.normal_(std=0.05)
    else:
        load_state(target, a.state, "target")
        if os.path.exists(os.path.join(a.state, "drafter.safetensors.index.json")):
            load_state(drafter, a.state, "drafter")
        else:
            print("no trained drafter: its stages become copies of the last target layers")
            drafter.init_from(target)
    for name in export(target, drafter, a.out):
        print(name)


if __name__ == "__main__":
    main()
