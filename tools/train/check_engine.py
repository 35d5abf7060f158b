"""Held-out items through the firesteel binary itself: the figures of the model card, with the engine's own numerics.

    python3 tools/train/check_engine.py --firesteel build/firesteel --model models/kindling

Every item is one greedy `firesteel generate --ids`. Word problems count by the number after `####`, calls by name and
arguments (whatever the thought said), needles by the digits; accept length is tokens per verify step over a mix of all tasks.
Needs only the `tokenizers` package beside the repository.
"""

import argparse
import json
import os
import random
import re
import subprocess
import tempfile

from tokenizers import Tokenizer

from kindling import tasks_recall, tasks_tools, wordnet
from kindling.chat import ASSISTANT, render
from kindling.data import Sampler, math_messages
from kindling.words import Vocabulary

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Engine:
    def __init__(self, args, tk):
        self.args, self.tk = args, tk

    def __call__(self, text, new_tokens, algorithm="none"):
        """(reply text with special tokens, the JSON result) of one prompt text."""
        ids = self.tk.encode(text, add_special_tokens=False).ids
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(ids, f)
            f.flush()
            a = self.args
            command = [a.firesteel, "generate", "--model", a.model, "--ids", f.name, "--max-tokens", str(new_tokens)]
            command += ["--temperature", str(a.temperature), "--seed", "1", "--threads", str(a.threads), "--json"]
            command += ["--speculative-algorithm", algorithm]
            command += ["--verify-mode", "static"] if algorithm != "none" else []
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        result = json.loads(done.stdout)
        return self.tk.decode(result["ids"], skip_special_tokens=False), result


def parse_calls(text):
    """[(name, arguments)] of the DSML block in a reply, None if there is none or it is malformed."""
    block = re.search(r"<｜DSML｜tool_calls>\n(.*)\n</｜DSML｜tool_calls>", text, re.S)
    if not block:
        return None
    calls = []
    for name, body in re.findall(r'<｜DSML｜invoke name="([^"]+)">\n(.*?)\n</｜DSML｜invoke>', block[1], re.S):
        arguments = {}
        for key, is_string, value in re.findall(
            r'<｜DSML｜parameter name="([^"]+)" string="(true|false)">(.*?)</｜DSML｜parameter>', body, re.S
        ):
            try:
                arguments[key] = value if is_string == "true" else json.loads(value)
            except json.JSONDecodeError:
                return None
        calls.append((name, arguments))
    return calls


def word_problems(engine, count, thinking, seed=101):
    rng, v, right = random.Random(seed), Vocabulary(True), 0
    for _ in range(count):
        messages, problem = math_messages(rng, v, thinking)
        text, _ = engine(render(messages[:-1], thinking=thinking), 200)
        found = re.findall(r"#### (-?\d+)", text)
        right += bool(found) and int(found[-1]) == problem.answer
    return right / count


def tool_calls(engine, count, seed=202):
    rng, v, right, done = random.Random(seed), Vocabulary(True), 0, 0
    while done < count:
        messages, expected = tasks_tools.conversation(rng, v)
        if not expected:
            continue
        last = max(i for i, m in enumerate(messages) if m.get("tool_calls"))
        want = [(c["function"]["name"], c["function"]["arguments"]) for c in messages[last]["tool_calls"]]
        text, _ = engine(render(messages[:last], thinking=done % 2 == 0), 200)
        right += parse_calls(text) == want
        done += 1
    return right / count


def needles(engine, glosses, tokens, count, seed=303):
    """(share found, mean prompt length in tokens)."""
    rng, v, right, length = random.Random(seed + tokens), Vocabulary(True), 0, 0
    for i in range(count):
        # glosses, stories and numbered lines differ in characters per token: cut or stretch to the length asked for
        chars = tokens * 2.4
        for _ in range(6):
            state = rng.getstate()
            messages, answer = tasks_recall.needle(rng, v, glosses, chars, (i + 0.5) / count)
            prompt = render(messages, thinking=False)
            size = len(engine.tk.encode(prompt, add_special_tokens=False).ids)
            if abs(size - tokens) < 0.05 * tokens:
                break
            rng.setstate(state)
            chars *= tokens / size
        text, _ = engine(prompt, 64)
        right += re.search(r"\d{7}", answer)[0] in text
        length += size
    return right / count, length // count


def accept_length(engine, glosses, count, seed=404):
    """{task: tokens per verify step} and the whole mix, greedy or at the engine's temperature."""
    sampler, steps = Sampler(seed, {"math": 1}, glosses, (300, 1800), True), {}
    tasks = ("math", "math", "tools", "text", "recall")
    for i in range(count):
        task = tasks[i % len(tasks)]
        text = sampler.document(task)
        at = text.rindex(ASSISTANT) + len(ASSISTANT)
        _, result = engine(text[: text.index(">", at) + 1], 160, "dspark")
        n = steps.setdefault(task, [0, 0])
        n[0] += result["spec"]["accept_length"] * result["spec"]["verify_steps"]
        n[1] += result["spec"]["verify_steps"]
    out = {task: round(t / max(1, n), 3) for task, (t, n) in steps.items()}
    out["mix"] = round(sum(t for t, _ in steps.values()) / sum(n for _, n in steps.values()), 3)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--firesteel", default=os.path.join(ROOT, "build/firesteel"))
    p.add_argument("--model", default=os.path.join(ROOT, "models/kindling"))
    p.add_argument("--glosses", default=os.path.join(ROOT, "build/kindling/wordnet.tsv"))
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--parts", default="math,tools,needle,accept")
    p.add_argument("--scale", type=float, default=1.0, help="share of the usual number of items")
    a = p.parse_args()
    tk = Tokenizer.from_file(os.path.join(a.model, "tokenizer.json"))
    glosses, engine = wordnet.load(a.glosses), Engine(a, tk)
    n = lambda usual: max(5, int(usual * a.scale))
    if "math" in a.parts:
        for thinking in (True, False):
            print(json.dumps({"word_problems": word_problems(engine, n(200), thinking), "thinking": thinking, "items": n(200)}), flush=True)
    if "tools" in a.parts:
        print(json.dumps({"tool_calls": tool_calls(engine, n(150)), "items": n(150)}), flush=True)
    if "accept" in a.parts:
        print(json.dumps({"accept_length": accept_length(engine, glosses, n(60)), "items": n(60)}), flush=True)
    if "needle" in a.parts:
        for tokens in (1000, 2000, 4000, 8000):
            found, length = needles(engine, glosses, tokens, n(25))
            print(json.dumps({"needle": found, "tokens": length, "items": n(25)}), flush=True)


if __name__ == "__main__":
    main()
