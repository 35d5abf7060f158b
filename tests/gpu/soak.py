#!/usr/bin/env python3
"""A card under load: many streams with random aborts, every whole reply the same each time.

    FST_BUILD=build/gpu-bundle tests/gpu/soak.py [--seconds 480] [--streams 64] [--device cuda] [--out FILE]

The CPU answers the stored held-out items greedily, alone.  Then the device serves them to --streams
clients at once: three in ten hang up in the middle, the others read to the end.  Checked: no error,
replies of one item equal to the byte whatever ran beside them, as good as all equal to the CPU's (a
near tie may fall the other way), slots and pages free afterwards, memory flat, an orderly end.
Standard library only; the last line counts.
"""

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import threading
import time

sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api")]
import harness  # noqa: E402

# Of the replies that the CPU gives too: one token in 10,000 differs, a reply has about 50.
EQUAL_TO_CPU = 0.95
# Host memory may grow by what the first requests still allocate (threads, buffers of connections).
RSS_GROWTH_MB = 64


def items():
    with open(os.path.join(harness.ROOT, "tests", "data", "kindling-items.json"), encoding="utf-8") as f:
        return [x for kind in json.load(f).values() for x in kind]


def body(item, stream):
    out = {"messages": item["messages"], "temperature": 0, "max_tokens": 120, "stream": stream,
           "thinking": {"type": "enabled" if item["thinking"] else "disabled"}}
    if item["tools"]:
        out["tools"] = item["tools"]
    return out


def said(message):
    """What was said, without the names that calls get."""
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    return json.dumps([message.get("reasoning_content"), message.get("content"), calls])


def ask(server, item):
    with server.connect(timeout=300) as c:
        c.send(harness.request_bytes("POST", "/v1/chat/completions", body(item, False)))
        r = c.response()
    if r.status != 200:
        raise AssertionError("status %d: %s" % (r.status, r.text[:200]))
    return said(r.json()["choices"][0]["message"])


def hang_up(server, item, rng):
    """Read a few events of a stream, then go."""
    with server.connect(timeout=300) as c:
        c.send(harness.request_bytes("POST", "/v1/chat/completions", body(item, True)))
        for _ in range(rng.randrange(12)):
            if not c.more():
                break


def rss_mb(pid):
    with open("/proc/%d/status" % pid, encoding="utf-8") as f:
        return next(int(x.split()[1]) / 1024 for x in f if x.startswith("VmRSS"))


def card_mb():
    done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, check=False) if os.path.exists("/dev/nvidiactl") else None
    return float(done.stdout.split()[0]) if done and done.returncode == 0 else 0.0


class Soak:
    def __init__(self, server, todo, seconds):
        self.server, self.todo, self.end = server, todo, time.time() + seconds
        self.lock = threading.Lock()
        self.first, self.whole, self.aborted, self.errors, self.changed = {}, 0, 0, [], 0

    def client(self, number):
        rng = random.Random(number)
        while time.time() < self.end and len(self.errors) < 10:
            i = rng.randrange(len(self.todo))
            try:
                if rng.random() < 0.3:
                    hang_up(self.server, self.todo[i], rng)
                    with self.lock:
                        self.aborted += 1
                    continue
                text = ask(self.server, self.todo[i])
            except Exception as e:  # whatever it is, it is the finding
                with self.lock:
                    self.errors.append("%s: %s" % (type(e).__name__, e))
                continue
            with self.lock:
                self.whole += 1
                self.changed += self.first.setdefault(i, text) != text


def about(args):
    """What a result file says of where it was measured: card, driver, build, date, command."""
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                         capture_output=True, text=True, check=False) if args.device == "cuda" else None
    card, driver = smi.stdout.splitlines()[0].split(",") if smi and smi.returncode == 0 else ("", "")
    build = os.path.join(os.environ.get("FST_BUILD", ""), "build.json")
    commit = ""
    if os.path.exists(build):
        with open(build, encoding="utf-8") as f:
            commit = json.load(f)["commit"]
    return {"card": card.strip(), "driver": driver.strip(), "build": commit,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": "tests/gpu/soak.py --seconds %g --streams %d --device %s" % (
                args.seconds, args.streams, args.device)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=480)
    p.add_argument("--streams", type=int, default=64)
    p.add_argument("--device", default="cuda")
    p.add_argument("--out")
    args = p.parse_args()
    todo = items()
    flags = ["--max-running-requests", str(args.streams), "--context-length", "4096", "--max-total-tokens", "262144"]
    cpu = [None] * len(todo)
    with harness.Server(fake=False, flags=["--max-running-requests", "8", "--context-length", "4096"]) as s:
        left = list(range(len(todo)))

        def worker(_):
            while left:
                i = left.pop()
                cpu[i] = ask(s, todo[i])

        harness.in_threads(8, worker)
    with harness.Server(fake=False, flags=["--device", args.device] + flags) as s:
        soak = Soak(s, todo, args.seconds)
        threads = [threading.Thread(target=soak.client, args=(n,)) for n in range(args.streams)]
        for t in threads:
            t.start()
        time.sleep(min(10, args.seconds / 4))
        before = rss_mb(s.proc.pid), card_mb()
        for t in threads:
            t.join()
        s.wait_idle(30)
        after, state = (rss_mb(s.proc.pid), card_mb()), s.state()
    same = sum(soak.first[i] == cpu[i] for i in soak.first)
    verdicts = [
        ("no error", not soak.errors, "; ".join(soak.errors[:3])),
        ("replies of an item are equal", soak.changed == 0, "%d of %d changed" % (soak.changed, soak.whole)),
        ("replies are the CPU's", same >= EQUAL_TO_CPU * len(soak.first), "%d of %d" % (same, len(soak.first))),
        ("slots and pages are free", state["slots_used"] == 0 == state["kv_tokens_used"], ""),
        ("host memory is flat", after[0] - before[0] < RSS_GROWTH_MB, "%.0f to %.0f MB" % (before[0], after[0])),
        ("card memory is flat", after[1] == before[1], "%.0f to %.0f MB" % (before[1], after[1])),
    ]
    for what, ok, detail in verdicts:
        print("%-6s %s  %s" % ("ok" if ok else "FAILED", what, detail))
    print("%d whole replies, %d aborted, %.0f s, %d streams" % (soak.whole, soak.aborted, args.seconds, args.streams))
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            row = {"name": "test/soak", "seconds": args.seconds, "streams": args.streams, "whole": soak.whole,
                   "aborted": soak.aborted, "equal_to_cpu": same, "items": len(soak.first),
                   "rss_mb": [round(before[0], 1), round(after[0], 1)], "card_mb": [before[1], after[1]],
                   "failed": [w for w, ok, _ in verdicts if not ok]}
            json.dump(dict(about(args), rows=[row]), f, indent=1)
            f.write("\n")
    failed = sum(not ok for _, ok, _ in verdicts)
    print("%d passed, %d failed, 0 skipped" % (len(verdicts) - failed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
