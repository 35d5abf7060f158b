#!/usr/bin/env python3
"""`firesteel score --precision reference` on fresh random checkpoints against another program.

    check_score.py --oracle numpy t1-fp4              numpy_v4.py; needs numpy
    check_score.py --oracle transformers              all cases; needs torch and transformers
    check_score.py --list

Every case is a shape, a stored format and at least 600 tokens, so that the indexer has to leave
entries out.  Seeds whose smallest decision margin (router, index top-k, argmax) is below 1e-5 are
replaced by the next: two right programs could then differ.  Exit status 1 when a logit differs by
more than 1e-4, or an argmax at all.  --result writes a result file.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

from make_checkpoint import make_config
from numpy_v4 import MUTATIONS, Model
from v4_format import (PRESETS, draft_kind, hash_weights, layer_ratios, normal_weights,
                       read_checkpoint, token_ids, write_checkpoint)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 1e-4
MARGIN_MIN = 1e-5
SEEDS = 20  # tried for one case


def case(preset, fmt, tokens, settings="", draft=None, weights="hash", shards=1, seed=0, args=()):
    return dict(preset=preset, format=fmt, tokens=tokens, settings=settings.split(), draft=draft,
                weights=weights, shards=shards, seed=seed, args=list(args))


CASES = {
    # 8 layers 0 128 4 128 4 0 4 128, three of them hashed
    "t1-f32": case("t1", "f32", 640),
    "t1-fp4": case("t1", "fp4", 640, shards=3, seed=3),
    "t1-fp8-chunks": case("t1", "fp8", 611, weights="normal",
                          args=["--chunked-prefill-size", "100", "--kernels", "ref"]),
    # head_dim 512, window 128, 64 index heads
    "t2-bf16": case("t2", "bf16", 640, draft="none"),
    "t2-fp4": case("t2", "fp4", 700, shards=2),
    # other mixes: ratio-4 layers first and last, none plain; 128 alone beside one 4
    "mix-4-4-128": case("t1", "fp4", 700, "compress_ratios=4,4,128,4 num_hash_layers=0 "
                        "index_topk=32 sliding_window=32", draft="none"),
    "mix-128-0-4": case("t1", "fp8", 900, "compress_ratios=128,128,0,0,4 num_hash_layers=1 "
                        "index_topk=64 sliding_window=128", draft="none"),
    "mix-plain-ends": case("t1", "f32", 620, "compress_ratios=0,4,0,4,0 num_hash_layers=2 "
                           "index_n_heads=32", draft="none", weights="normal"),
    "hash-all": case("t1", "fp4", 640, "compress_ratios=4,128,0,4 num_hash_layers=4",
                     draft="none"),
    # top 6 of 24 experts, one group of 8 heads, other ranks
    "experts-6-of-24": case("t1", "fp4", 640, "compress_ratios=0,4,128,4 num_hash_layers=1 "
                            "n_routed_experts=24 num_experts_per_tok=6 num_attention_heads=8 "
                            "o_groups=1 hidden_size=384 q_lora_rank=256 o_lora_rank=256 "
                            "moe_intermediate_size=256 swiglu_limit=10.0 vocab_size=1000",
                            draft="none"),
    "dspark-fp4": case("dspark", "fp4", 640, seed=7),
}


def prepare(k, folder):
    """The checkpoint and ids of a case, of the first seed that has margins -> seed, ids, model,
    its logits."""
    draft = k["draft"] or draft_kind(PRESETS[k["preset"]])
    c = make_config(k["preset"], k["settings"], draft)
    for seed in range(k["seed"], k["seed"] + SEEDS):
        make = hash_weights if k["weights"] == "hash" else normal_weights
        write_checkpoint(folder, make(c, draft, seed), c, draft, k["format"], k["shards"])
        ids = token_ids(k["tokens"], c["vocab_size"], seed)
        m = Model(*read_checkpoint(folder))
        logits = m.forward(ids)
        # The case is worthless when nothing is left out.
        assert 4 in m.ratios and k["tokens"] >= 600 and np.isfinite(m.margin["index"])
        smallest = min(m.margin.values())
        if smallest >= MARGIN_MIN:
            return seed, ids, m, logits
        print(f"seed {seed}: smallest margin {smallest:.1e}, taking another", flush=True)
    sys.exit(f"none of {SEEDS} seeds has margins of {MARGIN_MIN}")


def score(program, folder, ids, vocab, args):
    """Logits [T, V] of `firesteel score`."""
    with tempfile.TemporaryDirectory() as d:
        ids_path, raw = os.path.join(d, "ids.json"), os.path.join(d, "raw.f32")
        with open(ids_path, "w", encoding="ascii") as f:
            json.dump([int(i) for i in ids], f)
        command = [program, "score", "--json", "--model", folder, "--ids", ids_path,
                   "--raw-logits", raw, "--precision", "reference"] + args
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-2000:]}")
        assert json.loads(done.stdout)["n"] == len(ids)
        size, want = os.path.getsize(raw), 4 * len(ids) * vocab
        if size != want:
            sys.exit(f"--raw-logits wrote {size} bytes, expected {want}")
        return np.fromfile(raw, "<f4").reshape(len(ids), vocab)


def compare(name, k, oracle, program, fault):
    with tempfile.TemporaryDirectory() as folder:
        seed, ids, m, mine = prepare(k, folder)
        got = score(program, folder, ids, m.c["vocab_size"], k["args"])
        if oracle == "transformers":
            from transformers_logits import build, logits

            want = logits(build(m.c, m.W), ids)
        else:
            want = mine
        if fault:
            wrong = np.abs(Model(m.c, m.W, mutation=fault).forward(ids) - got).max()
    d = np.abs(got - want)
    worst = float(d.max()) if np.isfinite(got).all() else float("inf")
    row = dict(name="golden/score", case=name, oracle=oracle, preset=k["preset"],
               format=k["format"], ratios=layer_ratios(m.c), hash_layers=m.c["num_hash_layers"],
               hidden=m.c["hidden_size"], heads=m.c["num_attention_heads"],
               head_dim=m.c["head_dim"], experts=m.c["n_routed_experts"],
               experts_per_token=m.c["num_experts_per_tok"], index_topk=m.c["index_topk"],
               tokens=len(ids), seed=seed, margin=float(f"{min(m.margin.values()):.2e}"),
               logit_max=round(float(np.abs(want).max()), 3), max_dlogit=float(f"{worst:.3g}"),
               at=int(d.max(1).argmax()),
               argmax_equal=int((got.argmax(1) == want.argmax(1)).sum()))
    row["ok"] = worst <= LIMIT and row["argmax_equal"] == len(ids)
    if oracle == "transformers":
        row["numpy_max_dlogit"] = float(f"{np.abs(mine - want).max():.3g}")
    if fault:  # would it be seen?
        print(f"{name}: with the fault {fault} {wrong:.2e}", flush=True)
        row["ok"] = row["ok"] and wrong > LIMIT
    print(f"{name} {k['format']} seed {seed}, {len(ids)} tokens, margin {row['margin']:.1e}: max "
          f"|dlogit| {worst:.2e} at {row['at']}, argmax equal at {row['argmax_equal']}: "
          f"{'ok' if row['ok'] else 'DIFFERS'}", flush=True)
    return row


def revision():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--oracle", choices=["numpy", "transformers"], default="numpy")
    p.add_argument("--program", default=os.path.join(ROOT, "build", "firesteel"))
    p.add_argument("--result", metavar="FILE", help="write a result file")
    p.add_argument("--fault", choices=sorted(MUTATIONS),
                   help="also compare with numpy_v4.py with this fault: must differ")
    p.add_argument("--list", action="store_true")
    p.add_argument("case", nargs="*", help=f"of {', '.join(CASES)}; all")
    a = p.parse_args()
    if a.list:
        return print("\n".join(CASES))
    if set(a.case) - set(CASES):
        sys.exit(f"no case {', '.join(set(a.case) - set(CASES))}")
    rows = [compare(n, CASES[n], a.oracle, a.program, a.fault) for n in a.case or CASES]
    if a.result:
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        command = " ".join(["tools/golden/check_score.py", "--oracle", a.oracle] + a.case)
        with open(a.result, "w", encoding="ascii") as f:
            json.dump(dict(card="cpu", driver="", date=date, build=revision(), command=command,
                           rows=rows), f, indent=1)
            f.write("\n")
    bad = [r["case"] for r in rows if not r["ok"]]
    print(f"{len(rows) - len(bad)} of {len(rows)} cases within {LIMIT}, largest "
          f"{max(r['max_dlogit'] for r in rows):.2e}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
