"""From tasks to packed token batches.

`Sampler` draws documents: a rendered conversation of one of the tasks. `Packer` tokenises them and cuts the stream into
rows of T + 1 tokens with loss weights: 1 on what the assistant says (with its EOS), `prompt_weight` on everything else.
`PackedStream` does that in worker processes, because one core cannot feed the card.
"""

import itertools
import math
import random

import numpy as np

from . import tasks_math, tasks_recall, tasks_text, tasks_tools, wordnet
from .chat import ASSISTANT, EOS, PAD, render
from .words import Pool, Vocabulary, wild

SYSTEMS = (
    "You are a helpful assistant.",
    "You solve word problems.",
    "Think step by step.",
    "Be exact.",
    "You are Kindling, a small assistant.",
    "Answer briefly.",
    "You are a careful math teacher.",
)
SUFFIXES = (
    "",
    "",
    "",
    "",
    " Answer with #### and the number.",
    "\nEnd your answer with #### and the number.",
    " Think step by step.",
)


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
    """Draws rendered conversations.

    `mix` maps task names to shares of the tokens (roughly: TOKENS holds each task's mean length); `recall_chars` is the
    (low, high) length of the texts that facts are hidden in.
    """

    TOKENS = {"math": 90, "drill": 106, "tools": 476, "recall": None, "text": 62, "count": 40, "echo": 90}
    TASKS = tuple(TOKENS)

    def __init__(
        self, seed, mix, glosses, recall_chars=(300, 2400), held_out=False, pool=None, wild=0.4, second_call=0.08
    ):
        """`wild`: share of documents about words from the pool, where there is one; `second_call`: of tasks_tools."""
        self.rng = random.Random(seed)
        self.v = self.listed = Vocabulary(held_out)
        self.pool, self.wild, self.second_call = pool, wild, second_call
        if pool:
            self.listed.echo = pool.echo
        self.glosses = glosses
        self.recall_chars = recall_chars
        self.names = list(mix)
        low, high = recall_chars
        mean = 150 + (high - low) / math.log(high / low) / 3.7 if high > low else 150 + low / 3.7
        shares = [mix[n] / (self.TOKENS[n] or mean) for n in self.names]
        self.edges = list(itertools.accumulate(s / sum(shares) for s in shares))

    def messages(self, task, thinking):
        rng = self.rng
        self.v = wild(rng, self.pool) if self.pool and rng.random() < self.wild else self.listed
        if task == "math":
            return math_messages(rng, self.v, thinking, 1 if rng.random() < 0.85 else 2)[0]
        if task == "drill":
            return math_messages(rng, self.v, thinking, 3, drill=True)[0]
        if task == "tools":
            return tasks_tools.conversation(rng, self.v, self.second_call)[0]
        if task == "count":
            q, a = tasks_math.counting(rng)
            return [
                {"role": "user", "content": q},
                {"role": "assistant", "content": a, "reasoning_content": "I list them."},
            ]
        if task == "echo" and self.pool:
            q, a = tasks_text.echo(rng, self.pool)
            return [
                {"role": "user", "content": q},
                {"role": "assistant", "content": a, "reasoning_content": "I copy the words."},
            ]
        if task == "recall":
            low, high = self.recall_chars
            chars = low * (high / low) ** rng.random()
            questions = 2 + int(rng.random() * (5 if chars < 4000 else 16))
            return tasks_recall.conversation(rng, self.v, self.glosses, chars, questions)
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
    """Rows (tokens uint16 [T+1], weights uint8 [T+1], 255 = weight 1) from an endless stream of documents.

    A document is never cut by a row's end, because an answer without its question teaches guessing: what does not fit
    waits for the next row, shorter ones go first, and the rest of a row is padding with weight 0.
    """

    WAITING = 48

    def __init__(self, draw, tokenizer, length, prompt_weight=0.1):
        """`draw()` returns the next few documents as arrays of ids, an empty list when there are no more."""
        self.draw, self.length = draw, length
        self.weight = int(round(prompt_weight * 255))
        self.assistant, self.eos, self.pad = (tokenizer.token_to_id(t) for t in (ASSISTANT, EOS, PAD))
        self.waiting, self.dry = [], False

    def weights(self, ids):
        """Loss weight of every token as a target: 1 behind <Assistant> and the think tag, which is given, up to EOS."""
        out = np.full(len(ids), self.weight, np.uint8)
        for s in np.flatnonzero(ids == self.assistant):
            ends = np.flatnonzero(ids[s:] == self.eos)
            out[s + 1] = 0
            out[s + 2 : s + (ends[0] + 1 if len(ends) else len(ids))] = 255
        out[0] = 0
        return out

    def _refill(self):
        docs = self.draw()
        self.dry = not docs
        for ids in docs:
            ids = np.asarray(ids, np.uint16)
            if len(ids) <= self.length + 1:
                self.waiting.append((ids, self.weights(ids)))

    def row(self):
        """The next row, or None when all documents are used up."""
        n = self.length + 1
        ids, w, at = np.full(n, self.pad, np.uint16), np.zeros(n, np.uint8), 0
        while at < n:
            while len(self.waiting) < self.WAITING and not self.dry:
                self._refill()
            i = next((i for i, d in enumerate(self.waiting) if len(d[0]) <= n - at), None)
            if i is None:
                break
            d, dw = self.waiting.pop(i)
            ids[at : at + len(d)], w[at : at + len(d)] = d, dw
            at += len(d)
        return (ids, w) if at else None


def sampled_documents(sampler, tokenizer, batch=32):
    """A `draw` function for Packer: the sampler's next conversations, tokenised together."""

    def draw():
        texts = [sampler.document() for _ in range(batch)]
        return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return draw


def _worker(queue, stop, index, seed, spec):
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    glosses = wordnet.load(spec["glosses"])
    tk = Tokenizer.from_file(spec["tokenizer"])
    pool = Pool([g[0] for g in glosses], tk.get_vocab())
    packers = []
    for part, (mix, share, chars) in enumerate(spec["parts"]):
        s = Sampler(seed * 1000003 + index * 101 + part, mix, glosses, chars, pool=pool, **spec.get("sampler", {}))
        packers.append((share, Packer(sampled_documents(s, tk), tk, spec["length"], spec["prompt_weight"])))
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
    of (mix, share, recall_chars): a row comes wholly from one part, chosen by share. `sampler`: options of Sampler.
    """

    def __init__(self, spec, batch, seed, workers, depth=8):
        import torch.multiprocessing as mp

        ctx = mp.get_context("spawn")
        self.queue, self.stop = ctx.Queue(depth * max(1, batch // spec["rows"])), ctx.Event()
        self.batch, self.spec = batch, spec
        self.procs = [
            ctx.Process(target=_worker, args=(self.queue, self.stop, i, seed, spec), daemon=True)
            for i in range(workers)
        ]
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
        ids = torch.from_numpy(np.concatenate(ids)[: self.batch].astype(np.int32))
        w = torch.from_numpy(np.concatenate(w)[: self.batch])
        if device != "cpu":
            ids, w = ids.pin_memory().to(device, non_blocking=True), w.pin_memory().to(device, non_blocking=True)
        return ids.long(), w.float() / 255

    def close(self):
        self.stop.set()
        for p in self.procs:
            p.terminate()
