#!/usr/bin/env python3
"""Prompts for `firesteel calibrate` of the bundled model.

    tests/python tools/train/sts_prompts.py COUNT > build/sts-prompts.json
    build/firesteel calibrate --prompts build/sts-prompts.json --dataset "kindling tasks, COUNT prompts, seed 8117"

All tasks of training in the mix over which accept length is promised, with the words of training's own side (the
held-out ones are for tests) and a seed that training does not use.  Needs numpy and WordNet (scripts/setup long)."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kindling import data, wordnet  # noqa: E402

TASKS = ("math", "math", "tools", "text", "recall")
SEED = 8117


def body(messages, thinking):
    """The system message of the generators carries the tools; over HTTP they are a field."""
    tools = [t for m in messages for t in m.get("tools", ())]
    bare = [{k: v for k, v in m.items() if k != "tools"} for m in messages]
    for m in bare:
        for call in m.get("tool_calls", ()):
            if not isinstance(call["function"]["arguments"], str):
                call["function"] = dict(call["function"], arguments=json.dumps(call["function"]["arguments"]))
    out = {"messages": bare, "thinking": {"type": "enabled" if thinking else "disabled"}}
    return dict(out, tools=tools) if tools else out


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    glosses = [row[1:] for row in wordnet.extract("/usr/share/wordnet")[:24000]]
    sampler = data.Sampler(SEED, {"math": 1}, glosses, (300, 1800), held_out=False)
    out = []
    for i in range(count):
        thinking = sampler.rng.random() < 0.55
        messages = sampler.messages(TASKS[i % len(TASKS)], thinking)
        last = max(k for k, m in enumerate(messages) if m["role"] == "assistant")
        out.append(body(messages[:last], thinking))
    json.dump(out, sys.stdout, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
