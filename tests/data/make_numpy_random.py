#!/usr/bin/env python3
"""Writes numpy-random.json and bench/decode-prompt.json: draws of numpy's legacy generator and of Python's random, which src/client/numpy.c must
give bit for bit.  Needs numpy; made with numpy 2.4.6 and Python 3.11."""

import json
import os
import random

import numpy as np

out = {"randint": [], "exponential": [], "shuffle": [], "choices": [], "dataset": []}
for seed in (0, 1, 42, 4294967295):
    for low, high in ((1, 2), (1, 3), (1, 1025), (512, 1025), (8192, 8193), (0, 128000), (0, 2**32), (-5, 2**31)):
        r = np.random.RandomState(seed)
        out["randint"].append({"seed": seed, "low": low, "high": high,
                               "values": [int(x) for x in r.randint(low, high, size=40)],
                               "then": int(r.randint(0, 2**32))})
for rate in (0.5, 4.0):
    r = np.random.RandomState(42)
    out["exponential"].append({"seed": 42, "scale": 1 / rate, "values": [float(r.exponential(1 / rate)) for _ in range(20)]})
for seed, n in ((42, 2), (42, 100), (7, 33), (2**40 + 5, 12)):
    random.seed(seed)
    order = list(range(n))
    random.shuffle(order)
    out["shuffle"].append({"seed": seed, "n": n, "order": order})
random.seed(42)
out["choices"].append({"seed": 42, "n": 4080, "values": random.choices(range(4080), k=20)})
# As bench_serving draws them: the global generator, inputs first, then outputs, then the waits.
for n, full_in, full_out, ratio in ((32, 1024, 1024, 0.0), (16, 8192, 1024, 1.0), (24, 512, 100, 0.5)):
    np.random.seed(42)
    ins = np.random.randint(max(int(full_in * ratio), 1), full_in + 1, size=n).tolist()
    outs = np.random.randint(max(int(full_out * ratio), 1), full_out + 1, size=n).tolist()
    waits = [float(np.random.exponential(1 / 8.0)) for _ in range(5)]
    out["dataset"].append({"n": n, "input_len": full_in, "output_len": full_out, "ratio": ratio,
                           "input_lens": ins, "output_lens": outs, "rate": 8.0, "waits": waits})
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "numpy-random.json"), "w") as f:
    f.write("{\n" + ",\n".join('"%s": [\n%s\n]' % (k, ",\n".join(json.dumps(x) for x in v)) for k, v in out.items()) + "\n}\n")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "decode-prompt.json"), "w") as f:
    json.dump([int(x) for x in np.random.RandomState(42).randint(0, 128000, 4096)], f)
    f.write("\n")
