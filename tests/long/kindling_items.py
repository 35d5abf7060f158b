#!/usr/bin/env python3
"""Held-out items for the bundled model, as requests with the answer they should get.

    tests/python tests/long/kindling_items.py            writes tests/data/kindling-items.json anew

They come from the generators of tools/train/kindling with the side of the split that training never
uses (names, things, tool names, templates), under seeds of their own, so that no choice of a model was
made by them.  An item is {kind, thinking, messages, tools, answer}: the answer is the number of a word
problem, the calls [[name, arguments], ...] or the digits of a needle; items of the mix have none.

The generators need numpy, the lengths of needles `tokenizers` (scripts/setup long); the stored items
need neither.
"""

import json
import os
import random
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STORED = os.path.join(ROOT, "tests", "data", "kindling-items.json")
WORDNET = "/usr/share/wordnet"
KINDS = ("arithmetic", "tools", "needle_1k", "needle_2k", "needle_4k", "needle_8k", "mix")
# Tokens of the whole prompt, and how far an item may be off: the long ones must be what they say.
NEEDLE_TOKENS = {"needle_1k": (1000, 30), "needle_2k": (2000, 40), "needle_4k": (4000, 60),
                 "needle_8k": (7950, 100)}
SEEDS = {kind: 7001 + 11 * i for i, kind in enumerate(KINDS)}
MIX = ("math", "math", "tools", "text", "recall")  # the tasks of kindling.evaluate.mixed_prompts


def stored():
    """{kind: [item]} of the repository: enough for a quick run."""
    with open(STORED, encoding="utf-8") as f:
        return json.load(f)


def item(kind, thinking, messages, answer):
    """The system message of the generators carries the tools; over HTTP they are a field."""
    tools = [t for m in messages for t in m.get("tools", ())]
    bare = [{k: v for k, v in m.items() if k != "tools"} for m in messages]
    for m in bare:
        for call in m.get("tool_calls", ()):
            if not isinstance(call["function"]["arguments"], str):
                call["function"] = dict(call["function"],
                                        arguments=json.dumps(call["function"]["arguments"]))
    return {"kind": kind, "thinking": thinking, "messages": bare, "tools": tools, "answer": answer}


class Generator:
    """Makes items; raises ImportError without numpy and tokenizers, OSError without WordNet."""

    def __init__(self):
        sys.path.insert(0, os.path.join(ROOT, "tools", "train"))
        from kindling import chat, data, tasks_recall, tasks_tools, wordnet, words
        from tokenizers import Tokenizer
        self.chat, self.data, self.recall, self.calls = chat, data, tasks_recall, tasks_tools
        self.tk = Tokenizer.from_file(os.path.join(ROOT, "models", "kindling", "tokenizer.json"))
        self.held_out = words.Vocabulary(True)
        # The same choice as the file that training reads; that file may be absent here.
        self.glosses = [row[1:] for row in wordnet.extract(WORDNET)[:24000]]

    def tokens(self, messages, thinking):
        text = self.chat.render(messages, thinking=thinking)
        return len(self.tk.encode(text, add_special_tokens=False).ids)

    def arithmetic(self, count):
        rng = random.Random(SEEDS["arithmetic"])
        for i in range(count):
            messages, problem = self.data.math_messages(rng, self.held_out, i % 2 == 0)
            yield item("arithmetic", i % 2 == 0, messages[:-1], problem.answer)

    def tools(self, count):
        rng, i = random.Random(SEEDS["tools"]), 0
        while i < count:
            messages, expected = self.calls.conversation(rng, self.held_out)
            if not expected:
                continue  # a question that needs no tool
            last = max(k for k, m in enumerate(messages) if m.get("tool_calls"))
            calls = [[c["function"]["name"], c["function"]["arguments"]]
                     for c in messages[last]["tool_calls"]]
            yield item("tools", i % 2 == 0, messages[:last], calls)
            i += 1

    def needle(self, kind, count):
        """Depths are spread evenly; the text is stretched until the prompt has the tokens asked for."""
        want, slack = NEEDLE_TOKENS[kind]
        rng = random.Random(SEEDS[kind])
        for i in range(count):
            low, high, start = 0.0, want * 6.0, rng.getstate()
            chars = want * 2.4
            for _ in range(40):
                rng.setstate(start)
                messages, answer = self.recall.needle(rng, self.held_out, self.glosses, chars,
                                                      (i + 0.5) / count)
                size = self.tokens(messages, False)
                if abs(size - want) <= slack:
                    break
                low, high = (chars, high) if size < want else (low, chars)
                guess = chars * want / size
                chars = guess if low < guess < high else (low + high) / 2
            else:
                raise AssertionError("no text of %d tokens: %d" % (want, size))
            yield item(kind, False, messages, re.search(r"\d{7}", answer)[0])

    def mix(self, count):
        """What accept length is promised over: word problems, calls, plain English, recall."""
        sampler = self.data.Sampler(SEEDS["mix"], {"math": 1}, self.glosses, (300, 1800), held_out=True)
        for i in range(count):
            thinking = sampler.rng.random() < 0.55
            messages = sampler.messages(MIX[i % len(MIX)], thinking)
            last = max(k for k, m in enumerate(messages) if m["role"] == "assistant")
            yield item("mix", thinking, messages[:last], None)

    def make(self, kind, count):
        if kind.startswith("needle"):
            return list(self.needle(kind, count))
        return list({"arithmetic": self.arithmetic, "tools": self.tools, "mix": self.mix}[kind](count))


def main():
    g = Generator()
    items = {kind: g.make(kind, 10) for kind in ("arithmetic", "tools", "needle_1k", "needle_2k")}
    with open(STORED, "w", encoding="utf-8") as f:
        f.write("{\n")
        for i, (kind, some) in enumerate(items.items()):
            lines = ",\n".join(json.dumps(x, ensure_ascii=False) for x in some)
            f.write('"%s": [\n%s\n]%s\n' % (kind, lines, "," if i + 1 < len(items) else ""))
        f.write("}\n")
    print("written: %s, %d bytes" % (os.path.relpath(STORED, ROOT), os.path.getsize(STORED)))


if __name__ == "__main__":
    main()
