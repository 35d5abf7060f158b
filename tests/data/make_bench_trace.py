#!/usr/bin/env python3
"""Writes bench-trace.json: answers of servers as bytes with the times at which they came, and the figures that
benchmarks of serving define for them, computed here from the times alone.  Needs numpy (percentiles)."""

import json
import os
import random

import numpy as np

rng = random.Random(5)
WORDS = ["Hello", " world", ",", " \u00e9t\u00e9", " \"quoted\"", "\n", " tab\t", " \u4e2d\u6587", " \U0001f600", "."]


def pieces(rng, events):
    """Events with their times as reads: some split over two reads, some joined; (t, bytes)."""
    reads, held = [], b""
    for t, data in events:
        data = held + data
        held = b""
        if len(data) > 20 and rng.random() < 0.3:  # its end comes with the next read
            cut = rng.randrange(len(data) - 4)  # before its line is whole
            if reads or cut:
                reads.append((t - rng.randrange(1, 1000), data[:cut]))
            data = data[cut:]
        reads.append((t, data))
    return reads


def chat(text=None, thought=None, finish=None, calls=None):
    delta = {}
    if text is not None:
        delta["content"] = text
    if thought is not None:
        delta["reasoning_content"] = thought
    if calls:
        delta["tool_calls"] = calls
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def request(api, start, n, total, rng):
    """One request of n tokens: what the server sends, and what it means."""
    t = start + rng.randrange(5_000_000, 90_000_000)
    events, gaps, text = [], [], ""
    first = last_text = None
    sent = 0
    if api == "chat":
        events.append((t, chat(text="")))  # the role: no text, no token
        t += 1_000_000
    while sent < n:
        k = min(n - sent, rng.choice([1, 1, 2, 5]))
        if first is not None:
            t += rng.randrange(1_000_000, 400_000_000)
        new = "".join(rng.choice(WORDS) for _ in range(k))
        text += new
        sent += k
        if api == "generate":
            events.append((t, {"text": text, "meta_info": {"prompt_tokens": 7, "cached_tokens": 3,
                                                           "completion_tokens": sent, "finish_reason": None}}))
        elif api == "completions":
            events.append((t, {"choices": [{"text": new, "finish_reason": None}], "usage": None}))
        elif sent <= n // 3:
            events.append((t, chat(thought=new)))
        else:
            events.append((t, chat(text=new)))
        if first is None:
            first = t
        else:
            gaps += [(t - last_text) / 1e9 / k] * k if api == "generate" else [(t - last_text) / 1e9]
        last_text = t
    t += rng.randrange(0, 3_000_000)
    if api == "generate":
        events.append((t, {"text": text, "meta_info": {"prompt_tokens": 7, "cached_tokens": 3, "completion_tokens": n,
                                                       "finish_reason": {"type": "length", "length": n}}}))
    else:
        events.append((t, chat(finish="length") if api == "chat" else {"choices": [{"text": "", "finish_reason": "length"}]}))
        t += rng.randrange(0, 2_000_000)
        events.append((t, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": n, "total_tokens": n + 7,
                                                    "prompt_tokens_details": {"cached_tokens": 3}}}))
    ascii_only = rng.random() < 0.5
    wire = []
    for i, (when, e) in enumerate(events):
        nl = "\r\n" if total % 3 == 0 else "\n"
        if i % 4 == 1:
            wire.append((when, b": keep-alive" + nl.encode() * 2))
        wire.append((when, ("data: " + json.dumps(e, ensure_ascii=ascii_only) + nl * 2).encode()))
    wire.append((t + 7_000_000, b"data: [DONE]\n\n"))
    return {"api": api, "start": start, "reads": [[w, d.decode("latin-1")] for w, d in pieces(rng, wire)],
            "end": t + 8_000_000, "status": 200, "prompt_len": 5 + total, "wanted_len": n + 3, "text": text,
            "means": {"ttft": (first - start) / 1e9, "latency": (t - start) / 1e9, "itl": gaps, "output_len": n}}


def spread(x):
    if not len(x):
        return None
    return {"mean": float(np.mean(x)), "median": float(np.median(x)), "std": float(np.std(x)),
            "p90": float(np.percentile(x, 90)), "p95": float(np.percentile(x, 95)),
            "p99": float(np.percentile(x, 99)), "max": float(np.max(x)), "n": len(x)}


def figures(requests, duration):
    ok = [r for r in requests if "means" in r]
    m = [r["means"] for r in ok]
    out = sum(x["output_len"] for x in m)
    inp = sum(r["prompt_len"] for r in ok)
    zero = min(r["start"] for r in ok) / 1e9
    tokens, busy = {}, {}
    for r in ok:
        at = r["start"] / 1e9 + r["means"]["ttft"]
        for gap in [0.0] + r["means"]["itl"]:
            at += gap
            tokens[int(at - zero)] = tokens.get(int(at - zero), 0) + 1
        for s in range(int(r["start"] / 1e9 - zero), int(r["start"] / 1e9 + r["means"]["latency"] - zero) + 1):
            busy[s] = busy.get(s, 0) + 1
    return {"completed": len(ok), "failed": len(requests) - len(ok), "input_tokens": inp, "output_tokens": out,
            "request_s": len(ok) / duration, "input_s": inp / duration, "output_s": out / duration,
            "total_s": (inp + out) / duration, "concurrency": sum(x["latency"] for x in m) / duration,
            "peak_output_s": max(tokens.values()), "peak_requests": max(busy.values()),
            "prompt_tokens": 7 * len(ok), "cached_tokens": 3 * len(ok),
            "e2e": spread([x["latency"] for x in m]), "ttft": spread([x["ttft"] for x in m]),
            "tpot": spread([(x["latency"] - x["ttft"]) / (x["output_len"] - 1) for x in m if x["output_len"] > 1]),
            "itl": spread([g for x in m for g in x["itl"]])}


cases = []
for api in ("generate", "completions", "chat"):
    requests = []
    start = 1_000_000_000
    for i in range(12):
        requests.append(request(api, start, rng.choice([1, 2, 9, 30]), i, rng))
        start += rng.randrange(0, 900_000_000)
    broken = request(api, start, 5, 3, rng)  # ends in its middle
    del broken["means"]
    broken["reads"] = broken["reads"][:2]
    refused = {"api": api, "start": start, "reads": [[start + 5, '{"error": {"message": "no"}}']], "end": start + 6,
               "status": 503, "prompt_len": 1, "wanted_len": 1, "text": ""}
    requests += [broken, refused]
    duration = (max(r["end"] for r in requests) - 1_000_000_000) / 1e9
    cases.append({"duration": duration, "requests": requests, "figures": figures(requests, duration)})
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench-trace.json"), "w") as f:
    f.write("[\n" + ",\n".join('{"duration": %r, "figures": %s, "requests": [\n%s\n]}' % (
        c["duration"], json.dumps(c["figures"]), ",\n".join(json.dumps(r) for r in c["requests"])) for c in cases) + "\n]\n")
