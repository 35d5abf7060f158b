"""From tasks to packed token batches.

`Sampler` draws documents: a rendered conversation of one of the tasks. `Packer` tokenises them and cuts the stream into
rows of T + 1 tokens with loss weights: 1 on what the assistant says (with its EOS), `prompt_weight` on everything else.
`PackedStream` does that in worker processes, because one core cannot feed the card.
"""
import random

import numpy as np

from . import tasks_math, tasks_recall, tasks_text, tasks_tools, wordnet
from .chat import ASSISTANT, EOS, render
from .words import Vocabulary

SYSTEMS = ("You are a helpful assistant.", "You solve word problems.", "Think step by step.", "Be exact.", "You are Kindling, a small assistant.",
           "Answer briefly.", "You are a careful math teacher.")
SUFFIXES = ("", "", "", "", " Answer with #### and the number.", "\nEnd your answer with #### and the number.", " Think step by step.")


def math_messages(rng, v, thinking, turns=1, drill=False):
    """Messages of one or more problems with the answers in the form of the mode, and the last problem."""
    messages = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": SYSTEMS[int(rng.random() * len(SYSTEMS))]})
    for _ in range(turns):
        p = tasks_math.drill(rng) if drill else tasks_math.word_problem(rng, v)
        messages.append({"role": "user", "content": p.question + SUFFIXES[int(rng.random() * len(SUFFIXES))]})
        work = " ".join(p.steps)
        if thinking:
            messages.append({"role": "assistant", "reasoning_content": work, "content": p.final})
        else:
            messages.append({"role": "assistant", "content": p.final if drill else f"{work}\n{p.final}"})
    return messages, p


class Sampler:
    """Draws rendered conversations. `mix` maps task names to shares; `recall_chars` is the (low, high) text length."""

    TASKS = ("math", "drill", "tools", "recall", "text", "count")

    def __init__(self, seed, mix, glosses, recall_chars=(300, 2400), held_out=False):
        self.rng = random.Random(seed)
        self.v = Vocabulary(held_out)
        self.glosses = glosses
        self.recall_chars = recall_chars
        self.names = list(mix)
        total, acc = sum(mix.values()), 0.0
        self.edges = []
        for n in self.names:
            acc += mix[n] / total
            self.edges.append(acc)

    def messages(self, task, thinking):
        rng = self.rng
        if task == "math":
            return math_messages(rng, self.v, thinking, 1 if rng.random() < 0.85 else 2)[0]
        if task == "drill":
            return math_messages(rng, self.v, thinking, 3, drill=True)[0]
        if task == "tools":
            return tasks_tools.conversation(rng, self.v)[0]
        if task == "count":
            q, a = tasks_math.counting(rng)
            return [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": "I list them."}]
        if task == "recall":
            low, high = self.recall_chars
            chars = low * (high / low) ** rng.random()
            return tasks_recall.conversation(rng, self.v, self.glosses, chars, 2 + int(rng.random() * 5))
        return tasks_text.dialogue(rng, self.v, self.glosses)

    def document(self, task=None):
        rng = self.rng
        if task is None:
            x = rng.random()
            task = next((n for n, e in zip(self.names, self.edges) if x < e), self.names[-1])
        thinking = rng.random() < 0.55
        effort = ("high", "max")[int(rng.random() * 2)] if thinking and rng.random() < 0.02 else None
        return render(self.messages(task, thinking), thinking=thinking, effort=effort)


class Packer:
    """Rows (tokens uint16 [T+1], weights uint8 [T+1], 255 = weight 1) from an endless stream of documents."""

    def __init__(self, sampler, tokenizer, length, prompt_weight=0.1, batch=64):
        self.sampler, self.tk, self.length, self.batch = sampler, tokenizer, length, batch
        self.weight = int(round(prompt_weight * 255))
        self.assistant, self.eos = tokenizer.token_to_id(ASSISTANT), tokenizer.token_to_id(EOS)
        self.ids, self.w = np.empty(0, np.uint16), np.empty(0, np.uint8)

    def weights(self, ids):
        """Loss weight of every token as a target: on from two behind <Assistant> (the think tag is given) up to EOS."""
        out = np.full(len(ids), self.weight, np.uint8)
        for s in np.flatnonzero(ids == self.assistant):
            ends = np.flatnonzero(ids[s:] == self.eos)
            out[s + 1] = 0
            out[s + 2:s + (ends[0] + 1 if len(ends) else len(ids))] = 255
        return out

    def row(self):
        n = self.length + 1
        while len(self.ids) < n:
            texts = [self.sampler.document() for _ in range(self.batch)]
            ids, w = [self.ids], [self.w]
            for e in self.tk.encode_batch_fast(texts, add_special_tokens=False):
                a = np.asarray(e.ids, np.uint16)
                ids.append(a)
                w.append(self.weights(a))
            self.ids, self.w = np.concatenate(ids), np.concatenate(w)
        row = self.ids[:n], self.w[:n]
        self.ids, self.w = self.ids[self.length:], self.w[self.length:]  # the last token is the next row's first
        return row


def _worker(queue, stop, index, seed, spec):
    import os
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer
    glosses = wordnet.load(spec["glosses"])
    tk = Tokenizer.from_file(spec["tokenizer"])
    packers = []
    for part, (mix, share, chars) in enumerate(spec["parts"]):
        s = Sampler(seed * 1000003 + index * 101 + part, mix, glosses, chars)
        packers.append((share, Packer(s, tk, spec["length"], spec["prompt_weight"], spec.get("doc_batch", 32))))
    pick = random.Random(seed + 7 * index)
    while not stop.is_set():
        rows = []
        for _ in range(spec["rows"]):
            x = pick.random()
            for share, p in packers:
                x -= share
                if x < 0:
                    break
            rows.append(p.row())
        queue.put((np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows])))


class PackedStream:
    """Batches (ids [B, T+1] int64, weights [B, T+1] float32) as torch tensors, made in `workers` processes.

    spec: tokenizer, glosses (paths), length T, rows (per queue item; must divide B), prompt_weight, and parts, a list
    of (mix, share, recall_chars): a row comes wholly from one part, chosen by share.
    """

    def __init__(self, spec, batch, seed, workers, depth=8):
        import torch.multiprocessing as mp
        ctx = mp.get_context("spawn")
        self.queue, self.stop = ctx.Queue(depth * max(1, batch // spec["rows"])), ctx.Event()
        self.batch, self.spec = batch, spec
        self.procs = [ctx.Process(target=_worker, args=(self.queue, self.stop, i, seed, spec), daemon=True) for i in range(workers)]
        for p in self.procs:
            p.start()

    def next(self, device):
        import torch
        ids, w, have = [], [], 0
        while have < self.batch:
            a, b = self.queue.get()
            ids.append(a)
            w.append(b)
            have += len(a)
        ids = torch.from_numpy(np.concatenate(ids)[:self.batch].astype(np.int32))
        w = torch.from_numpy(np.concatenate(w)[:self.batch])
        if device != "cpu":
            ids, w = ids.pin_memory().to(device, non_blocking=True), w.pin_memory().to(device, non_blocking=True)
        return ids.long(), w.float() / 255

    def close(self):
        self.stop.set()
        for p in self.procs:
            p.terminate()
