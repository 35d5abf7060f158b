#!/usr/bin/env python3
"""Drafting against none over HTTP: ratios of two servers that run side by side and take turns.

    python3 bench/spec_auto.py [--concurrency 1,4,16] [--temperature 0,0.6,1] [--blocks 8] [--threads 2]
                               [--modes auto,static] [--out FILE]

Each cell (mode, concurrency, temperature) runs blocks in the order A B B A, A B B A ..: A is a server with
--verify-mode MODE, B one with --speculative-algorithm none; a block sends the same requests to either, none of
which came before, and counts tokens a second.  Neighbours on the machine disturb both alike, so only the ratio is
told: median of the ratios of adjacent blocks, with a 90 % interval of its bootstrap.  The ratio of tokens a
second of the servers' own processor time stands beside it, which means something with --threads 1 alone: more
threads wait for each other in a loop.  Standard library alone."""

import argparse
import concurrent.futures
import datetime
import http.client
import json
import os
import platform
import random
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "api"))
import time  # noqa: E402

from harness import Server, program  # noqa: E402

NAMES = "Tom Ann Zoe Max Lea Sam Eva Ben Mia Jon Ida Leo Amy Kai Joy Rob".split()
THINGS = "pens apples books coins stones cards shells stamps eggs keys".split()


def question(r):
    a, b, c = r.randint(3, 90), r.randint(2, 60), r.randint(2, 9)
    who, what = r.choice(NAMES), r.choice(THINGS)
    return r.choice([
        f"{who} has {a} {what}. Then {who} finds {b} more. How many {what} does {who} have?",
        f"{who} buys {c} bags with {a} {what} each. How many {what} is that?",
        f"Count from {c} to {c + 9}.",
        f"{who} had {a + b} {what} and gave {b} to {r.choice(NAMES)}. How many are left?",
        f"What is a {what[:-1]}?",
        f"Write a short story about {who} and {a} {what}.",
    ])


def one(port, text, temperature, seed, max_tokens):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"messages": [{"role": "user", "content": text}], "temperature": temperature, "seed": seed,
            "max_tokens": max_tokens}
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = json.loads(c.getresponse().read())
    c.close()
    return r["usage"]["completion_tokens"], r["choices"][0]["message"]["content"]


def cpu_seconds(server):
    """Of the server's process: what neighbours take from it is not in there."""
    with open("/proc/%d/stat" % server.proc.pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def block(server, concurrency, temperature, seed, max_tokens, n):
    r = random.Random(seed)
    work = [(question(r), r.randrange(1 << 30)) for _ in range(n)]
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        start, cpu = time.perf_counter(), cpu_seconds(server)
        got = list(pool.map(lambda w: one(server.port, w[0], temperature, w[1], max_tokens), work))
        took, cpu = time.perf_counter() - start, cpu_seconds(server) - cpu
    tokens = sum(g[0] for g in got)
    return tokens / took, tokens / max(cpu, 0.01), [g[1] for g in got]


def interval(ratios, r):
    medians = sorted(statistics.median(r.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[100], medians[1899]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--concurrency", default="1,4,16")
    p.add_argument("--temperature", default="0")
    p.add_argument("--modes", default="auto")
    p.add_argument("--blocks", type=int, default=8, help="ratios a cell")
    p.add_argument("--threads", default="2")
    p.add_argument("--max-tokens", type=int, default=160)
    p.add_argument("--seconds", type=float, default=2, help="of a block, about")
    p.add_argument("--out")
    p.add_argument("--serve", default="", help="more flags of both servers")
    o = p.parse_args()
    flags = ["--threads", o.threads, "--max-running-requests", "64"] + o.serve.split()
    rows, seed, rand = [], 1, random.Random(1)
    for mode in o.modes.split(","):
        a = Server(fake=False, flags=flags + ["--verify-mode", mode])
        b = Server(fake=False, flags=flags + ["--speculative-algorithm", "none"])
        try:
            for t in map(float, o.temperature.split(",")):
                for c in map(int, o.concurrency.split(",")):
                    speed, _, _ = block(b, c, t, 0, o.max_tokens, 2 * c + 2)
                    n = max(2 * c, int(speed * o.seconds / 70))
                    block(a, c, t, 0, o.max_tokens, n)  # it learns; B was measured above
                    a.post("/set_internal_state", {"reset_spec_stats": True})
                    ratios, by_cpu = [], []
                    while len(ratios) < o.blocks:
                        seed += 1
                        first, second = (a, b) if len(ratios) % 2 == 0 else (b, a)
                        x, u, said = block(first, c, t, seed, o.max_tokens, n)
                        y, v, answered = block(second, c, t, seed, o.max_tokens, n)
                        assert said == answered, "answers differ"
                        ratios.append(x / y if first is a else y / x)
                        by_cpu.append(u / v if first is a else v / u)
                    st = a.state()
                    low, high = interval(ratios, rand)
                    rows.append({"name": "spec_auto", "mode": mode, "concurrency": c, "temperature": t,
                                 "ratio": round(statistics.median(ratios), 4), "low_90": round(low, 4),
                                 "high_90": round(high, 4), "blocks": len(ratios), "requests": n,
                                 "cpu_ratio": round(statistics.median(by_cpu), 4),
                                 "accept_length": st["avg_spec_accept_length"],
                                 "draft_share": st["spec_draft_share"], "skipped": st["spec_skipped"],
                                 "verify_steps": st["spec_verify_steps"]})
                    print("%-8s c=%-3d T=%.1f  ratio %.3f  [%.3f, %.3f]  cpu %.3f  accept %s  rounds %d  skipped %s" % (
                        mode, c, t, rows[-1]["ratio"], low, high, rows[-1]["cpu_ratio"],
                        "%.2f" % st["avg_spec_accept_length"] if st["avg_spec_accept_length"] else "-",
                        st["spec_verify_steps"], {k: v for k, v in st["spec_skipped"].items() if v}), flush=True)
        finally:
            for s in (a, b):
                print([line for line in s.output().splitlines() if " cost" in line][:2])
                s.stop()
    if o.out:
        build = subprocess.run([program("firesteel"), "version"], capture_output=True, text=True).stdout.strip()
        with open(o.out, "w", encoding="utf-8") as f:
            json.dump({"card": platform.processor() or platform.machine(), "driver": "",
                       "date": datetime.date.today().isoformat(), "build": build,
                       "command": "bench/spec_auto.py " + " ".join(sys.argv[1:]), "rows": rows}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
