#!/usr/bin/env python3
"""The longest pause of running streams while a long prompt is read next door.

    bench/stall.py [--streams 8] [--prompt 8000] [--max-stall-ms 250] [--serve FLAGS] [--out FILE]

Starts a server on the bundled model, lets STREAMS answers run, sends a prompt of PROMPT ids and notes the time
between the events of each stream: in front of the prompt, and while it is read.  Standard library alone."""

import argparse
import datetime
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "api"))
from harness import Server, program  # noqa: E402


def stream(port, seed, times, stop):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"input_ids": [100 + seed] * 20, "stream": True,
            "sampling_params": {"max_new_tokens": 100000, "ignore_eos": True, "temperature": 0}}
    c.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    while not stop.is_set():
        line = r.readline()
        if not line:
            break
        if line.startswith(b"data:"):
            times.append(time.perf_counter())
    c.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--prompt", type=int, default=8000)
    p.add_argument("--max-stall-ms", type=int, default=250)
    p.add_argument("--serve", default="", help="more flags of the server")
    p.add_argument("--out")
    o = p.parse_args()
    stop, times = threading.Event(), [[] for _ in range(o.streams)]
    with Server(fake=False, flags=["--max-stall-ms", str(o.max_stall_ms)] + o.serve.split()) as s:
        threads = [threading.Thread(target=stream, args=(s.port, i, t, stop)) for i, t in enumerate(times)]
        for t in threads:
            t.start()
        time.sleep(4)
        began = time.perf_counter()
        r = s.post("/generate", {"input_ids": [200 + i % 700 for i in range(o.prompt)],
                                 "sampling_params": {"max_new_tokens": 1, "temperature": 0}})
        ended = time.perf_counter()
        assert r.status == 200, r.body
        stop.set()
        for t in threads:
            t.join()

    def gaps(low, high):
        return sorted(1e3 * (b - a) for t in times for a, b in zip(t, t[1:]) if low <= a and b <= high)

    alone, beside = gaps(began - 3, began), gaps(began, ended)
    row = {"name": "stall", "streams": o.streams, "prompt": o.prompt, "max_stall_ms": o.max_stall_ms,
           "prompt_s": round(ended - began, 3), "step_ms": round(statistics.median(alone), 1),
           "gap_alone_ms": round(alone[-1], 1), "gap_median_ms": round(statistics.median(beside), 1),
           "gap_worst_ms": round(beside[-1], 1), "bound_ms": round(o.max_stall_ms + statistics.median(alone), 1)}
    print(json.dumps(row))
    if o.out:
        build = subprocess.run([program("firesteel"), "version"], capture_output=True, text=True).stdout.strip()
        command = "bench/stall.py " + " ".join(a for a in sys.argv[1:] if a not in ("--out", o.out))
        with open(o.out, "w", encoding="utf-8") as f:
            json.dump({"card": platform.processor() or platform.machine(), "driver": "",
                       "date": datetime.date.today().isoformat(), "build": build, "command": command.strip(),
                       "rows": [row]}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
