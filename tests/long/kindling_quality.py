#!/usr/bin/env python3
"""The bundled model on held-out items, through the server: real generations over HTTP, 8 at a time.

    tests/python tests/long/kindling_quality.py [--size ci|san|long] [--parts A,B] [--out FILE]

Greedy, FP8 KV rows, static verification.  A word problem is right when the number behind #### is, a call
when the parsed tool_calls have the names and arguments expected (in order, nothing beside), a needle when
its digits and no other code are in the answer.  Accept length and accepted_by_position are differences of
/server_info around the requests of one kind.  `long` draws its items from the generators and writes
bench/results/kindling-quality.json; `ci` and `san` use stored ones and looser bounds.  --parts measures
some kinds alone; with --keep the other rows of the file stay, if they are of the same weights.
The exit status is 1 when a bound is missed.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api")]
import harness  # noqa: E402
import kindling_items  # noqa: E402
from kindling_items import KINDS, NEEDLE_TOKENS  # noqa: E402

ROOT = harness.ROOT
RESULT = os.path.join("bench", "results", "kindling-quality.json")
FLAGS = ["--kv-layout", "unified-fp8", "--verify-mode", "static", "--max-running-requests", "8"]
CONCURRENCY = 8
REPLY_TOKENS = {"arithmetic": 200, "tools": 256, "mix": 160}
COUNTS = {
    "san": {"arithmetic": 2, "tools": 2, "needle_1k": 2},
    "ci": {"arithmetic": 10, "tools": 10, "needle_1k": 10, "needle_2k": 10},
    "long": {"arithmetic": 400, "tools": 400, "needle_1k": 50, "needle_2k": 50, "needle_4k": 50,
             "needle_8k": 50, "mix": 100},
}
# long: what is promised.  ci: ten fixed items, of which a model that keeps the promise may miss three.
BOUNDS = {
    "san": {"arithmetic": 0.5, "tools": 0.5, "needle_1k": 0.5},
    "ci": {"arithmetic": 0.7, "tools": 0.7, "needle_1k": 0.7, "needle_2k": 0.7},
    "long": {"arithmetic": 0.90, "tools": 0.95, "needle_1k": 0.95, "needle_2k": 0.95, "needle_4k": 0.95,
             "needle_8k": 0.80},
}
# Tokens per verification; where the drafter learnt nothing it is about 1.1.
ACCEPT_BOUNDS = {"san": {"arithmetic": 2.0}, "ci": {"arithmetic": 3.0}, "long": {"mix": 3.0}}


# ---------------------------------------------------------------- one request, one judgement
def post(server, body):
    with server.connect(timeout=3600) as c:
        c.send(harness.request_bytes("POST", "/v1/chat/completions", body))
        r = c.response()
    assert r.status == 200, r.body
    return r.json()


def ask(server, item):
    body = {"messages": item["messages"], "temperature": 0,
            "max_tokens": REPLY_TOKENS.get(item["kind"], 64),
            "thinking": {"type": "enabled" if item["thinking"] else "disabled"}}
    if item["tools"]:
        body["tools"] = item["tools"]
    return post(server, body)


def calls_of(message):
    """[[name, arguments], ...] of a reply; None for arguments that are no JSON object."""
    out = []
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            arguments = None
        out.append([call["function"]["name"], arguments])
    return out


def same(a, b):
    """Equal as JSON: in Python True == 1 == 1.0, here not; the order of keys does not matter."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def is_right(item, reply):
    choice = reply["choices"][0]
    message, kind = choice["message"], item["kind"]
    text = message["content"] or ""
    if kind == "arithmetic":
        found = re.findall(r"#### (-?\d+)\s*$", text)
        return choice["finish_reason"] == "stop" and found == [str(item["answer"])]
    if kind == "tools":
        return choice["finish_reason"] == "tool_calls" and same(calls_of(message), item["answer"])
    want, slack = NEEDLE_TOKENS[kind]
    n = reply["usage"]["prompt_tokens"]
    assert abs(n - want) <= slack, "an item of %s has %d tokens" % (kind, n)
    return set(re.findall(r"\d+", text)) == {item["answer"]}


def judge_self_test():
    """The judges must be able to say no."""
    def reply(content, finish="stop", calls=(), prompt=1000):
        return {"usage": {"prompt_tokens": prompt}, "choices": [{"finish_reason": finish, "message": {
            "content": content, "tool_calls": [{"function": {"name": n, "arguments": a}} for n, a in calls]}}]}

    sums = {"kind": "arithmetic", "answer": 12}
    call = {"kind": "tools", "answer": [["get_it", {"on": True, "n": 1}]]}
    code = {"kind": "needle_1k", "answer": "1234567"}
    good = [(sums, reply("6 + 6 = 12.\n#### 12")),
            (call, reply(None, "tool_calls", [("get_it", '{"n": 1, "on": true}')])),
            (code, reply("The code is 1234567."))]
    bad = [(sums, reply("#### 13")), (sums, reply("12")), (sums, reply("#### 12", "length")),
           (sums, reply("#### 12\n#### 13")), (sums, reply("#### 120")), (sums, reply(None)),
           (call, reply(None, "tool_calls", [("get_it", '{"n": 1, "on": 1}')])),
           (call, reply(None, "tool_calls", [("get_it", '{"n": "1", "on": true}')])),
           (call, reply(None, "tool_calls", [("get_it", '{"n": 1}')])),
           (call, reply(None, "tool_calls", [("Get_it", '{"n": 1, "on": true}')])),
           (call, reply(None, "tool_calls", [("get_it", '{"n": 1, "on": tr')])),
           (call, reply(None, "tool_calls", [("get_it", '{"n": 1, "on": true}')] * 2)),
           (call, reply("I call get_it.")),
           (code, reply("The code is 1234568.")), (code, reply("1234567 or 7654321")), (code, reply(""))]
    for expected, cases in ((True, good), (False, bad)):
        for case in cases:
            assert is_right(*case) is expected, case


# ---------------------------------------------------------------- a kind of items
def run_items(server, items):
    """(replies in the order of the items, what the counters of drafting grew by)."""
    replies, todo = [None] * len(items), list(range(len(items)))[::-1]
    before = server.state()

    def worker(_):
        while todo:
            try:
                i = todo.pop()
            except IndexError:
                return
            replies[i] = ask(server, items[i])

    harness.in_threads(CONCURRENCY, worker)
    after = server.state()
    spent = {k: after[k] - before[k] for k in ("spec_verify_steps", "spec_drafted", "spec_accepted")}
    spent["by_position"] = [a - b for a, b in zip(after["spec_accepted_by_position"],
                                                 before["spec_accepted_by_position"])]
    return replies, spent


def show_wrong(item, reply):
    message = reply["choices"][0]["message"]
    print("  wrong: %s%s\n    asked: ...%s\n    wanted: %s\n    got: %s" % (
        item["kind"], " (thinking)" if item["thinking"] else "",
        json.dumps(item["messages"][-1]["content"], ensure_ascii=False)[-160:],
        json.dumps(item["answer"]),
        json.dumps(calls_of(message) or message["content"], ensure_ascii=False)[:300]), flush=True)


def share_row(name, items, replies, bound):
    right = [is_right(i, r) for i, r in zip(items, replies)]
    for i, r, ok in [x for x in zip(items, replies, right) if not x[2]][:4]:
        show_wrong(i, r)
    tokens = [r["usage"]["prompt_tokens"] for r in replies]
    share = sum(right) / len(right)
    return {"name": name, "items": len(items), "right": sum(right), "share": round(share, 4), "bound": bound,
            "prompt_tokens": [min(tokens), max(tokens)], "passed": share >= bound}


def accept_rows(name, items, spent, bound):
    """Accept length, and of all verifications the share that accepted at least k + 1 drafts."""
    steps, counts = spent["spec_verify_steps"], spent["by_position"]
    length = (spent["spec_accepted"] + steps) / steps if steps else 0.0
    # A draft stands only if those before it do; over few verifications two positions may well be equal.
    falls = len(counts) > 1 and counts[0] > 0 and sum(counts) == spent["spec_accepted"] and all(
        a > b or a == b and (steps < 200 or a == 0) for a, b in zip(counts, counts[1:]))
    return [{"name": "accept_length/" + name, "items": items, "verify_steps": steps,
             "value": round(length, 4), "bound": bound, "passed": bound is None or length >= bound},
            {"name": "accepted_by_position/" + name, "items": items, "verify_steps": steps,
             "value": [round(c / max(steps, 1), 4) for c in counts], "bound": "falling", "passed": falls}]


def part_rows(server, kind, items, bound, accept_bound):
    replies, spent = run_items(server, items)
    rows = []
    if kind in ("arithmetic", "tools") and len(items) >= 20:
        for thinking, name in ((True, "thinking"), (False, "plain")):
            pairs = [(i, r) for i, r in zip(items, replies) if i["thinking"] == thinking]
            rows.append(share_row("%s/%s" % (kind, name), [p[0] for p in pairs], [p[1] for p in pairs], bound))
    elif kind != "mix":
        rows.append(share_row(kind, items, replies, bound))
    if not kind.startswith("needle"):
        rows += accept_rows(kind, len(items), spent, accept_bound)
    return rows, replies


def equal_rows(samples):
    """The same replies without drafting: whole messages, thoughts and calls included."""
    equal = total = 0
    with harness.Server(fake=False, flags=FLAGS[:2] + ["--speculative-algorithm", "none"] + FLAGS[4:]) as s:
        for kind, items, replies in samples:
            again, _ = run_items(s, items)
            for item, a, b in zip(items, replies, again):
                a, b = (json.loads(re.sub(r'"call_\w+"', '""', json.dumps(x["choices"]))) for x in (a, b))
                total += 1
                equal += a == b
                if a != b:
                    print("  drafting changed a reply: %s %r %r" % (kind, a, b), flush=True)
        assert s.state()["spec_verify_steps"] == 0
    return [{"name": "equal_without_drafting", "items": total, "right": equal,
             "share": round(equal / total, 4), "bound": 1.0, "passed": equal == total}]


# ---------------------------------------------------------------- the result
def digest_of_model(drafter):
    """Of every tensor (name, type, shape, bytes); without drafter only of those that decide the text."""
    h = hashlib.sha256()
    for name in sorted(n for n in os.listdir(harness.MODEL) if n.endswith(".safetensors")):
        with open(os.path.join(harness.MODEL, name), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            start = f.tell()
            for tensor, t in sorted(header.items()):
                if tensor == "__metadata__" or (tensor.startswith("mtp.") and not drafter):
                    continue
                h.update(json.dumps([tensor, t["dtype"], t["shape"]]).encode())
                f.seek(start + t["data_offsets"][0])
                h.update(f.read(t["data_offsets"][1] - t["data_offsets"][0]))
    return h.hexdigest()[:16]


def git(*args):
    done = subprocess.run(("git",) + args, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def place(row):
    """Rows in the order of KINDS, accept lengths behind what is right."""
    kind = [i for i, k in enumerate(KINDS) if k in row["name"]] or [len(KINDS)]
    return kind[0], row["name"].startswith("acc"), row["name"]


def write_result(path, rows, weights, args):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    build = args.build or git("rev-parse", "HEAD")[:12] + (
        "-changed" if git("diff", "HEAD", "--", "src", "include") else "")
    for row in rows:
        row.update(date=now, build=build)
    if args.keep and os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            old = json.load(f)
        names = {row["name"] for row in rows}
        # Greedy text is the target's alone; how much of a draft stands is not.
        rows += [row for row in old["rows"] if row["name"] not in names and
                 old["target" if "right" in row else "model"] == weights["target" if "right" in row else "model"]]
    result = {"card": "cpu", "driver": "", "date": now, "build": build, **weights,
              "command": "tests/long/kindling_quality.py " + " ".join(sys.argv[1:]), "flags": " ".join(FLAGS)}
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as f:
        lines = ",\n  ".join(json.dumps(row) for row in sorted(rows, key=place))
        f.write(json.dumps(result, indent=1)[:-2] + ',\n "rows": [\n  ' + lines + "\n ]\n}\n")
    os.replace(path + ".new", path)
    print("written: " + os.path.relpath(path, ROOT))


def print_row(row):
    if "right" in row:
        got = "%d of %d = %.3f" % (row["right"], row["items"], row["share"])
    elif isinstance(row["value"], list):
        got = " ".join("%.3f" % x for x in row["value"])
    else:
        got = "%.3f over %d verifications" % (row["value"], row["verify_steps"])
    tokens = "  prompts %d..%d tokens" % tuple(row["prompt_tokens"]) if "prompt_tokens" in row else ""
    bound = "-" if row["bound"] is None else row["bound"]
    print("%-6s %-34s %-36s bound %s%s" % ("ok" if row["passed"] else "MISSED", row["name"], got, bound,
                                          tokens), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--size", choices=list(COUNTS), default=os.environ.get("FST_TEST_SIZE", "ci"))
    p.add_argument("--parts", help="kinds, and `equal`, separated by commas; all when not given")
    p.add_argument("--keep", action="store_true", help="keep other rows of the result file")
    p.add_argument("--build", help="commit of the program in FST_BUILD, when it is not this tree's")
    p.add_argument("--out", help="result file; for long " + RESULT)
    args = p.parse_args()
    judge_self_test()
    parts = args.parts.split(",") if args.parts else list(COUNTS[args.size]) + ["equal"]
    if args.size == "long":
        try:
            generator = kindling_items.Generator()
        except (ImportError, OSError) as e:
            print("SKIP kindling_quality: scripts/setup long has not installed what it needs (%s)" % e)
            return 0
        make = generator.make
    else:
        items_of = kindling_items.stored()
        make = lambda kind, n: items_of[kind][:n]  # noqa: E731
    rows, samples = [], []
    weights = {"target": digest_of_model(False), "model": digest_of_model(True)}
    with harness.Server(fake=False, flags=FLAGS) as s:
        info = s.info()
        assert (info["kv_layout"], info["verify_mode"]) == ("unified-fp8", "static"), info
        for kind, count in COUNTS[args.size].items():
            if kind not in parts and not ("equal" in parts and kind in ("arithmetic", "tools")):
                continue
            items = make(kind, count if kind in parts else 20)
            start = time.time()
            new, replies = part_rows(s, kind, items, BOUNDS[args.size].get(kind),
                                     ACCEPT_BOUNDS[args.size].get(kind))
            if kind in ("arithmetic", "tools") and "equal" in parts:
                n = 20 if args.size == "long" else 2
                samples.append((kind, items[:n], replies[:n]))
            if kind in parts:
                rows += new
                print("%s: %d items in %.1f s" % (kind, len(items), time.time() - start))
                for row in new:
                    print_row(row)
    if samples:
        rows += equal_rows(samples)
        print_row(rows[-1])
    if args.size == "long" or args.out:
        write_result(args.out or os.path.join(ROOT, RESULT), rows, weights, args)
    failed = sum(not row["passed"] for row in rows)
    print("%d passed, %d failed, 0 skipped" % (len(rows) - failed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
