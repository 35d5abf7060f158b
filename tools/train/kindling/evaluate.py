"""Figures on held-out items: arithmetic, tool calls, needles, accept length of the drafter.

Everything is seeded, so two evaluations see the same items. Arithmetic is generated; tool calls and needles have one
right continuation, so a single pass with the answer given shows whether greedy decoding would have produced it: every
token of it must be the argmax.
"""

import random
import re

import torch

from . import fused, tasks_recall, tasks_tools
from .chat import ASSISTANT, render
from .data import Packer, math_messages
from .decode import generate
from .mtp import STEPS, Mtp
from .words import Vocabulary


def _ids(tk, text):
    return tk.encode(text, add_special_tokens=False).ids


def math_items(tk, count, thinking, held_out=True, seed=101):
    """(prompt ids, right number) of word problems."""
    rng, v, out = random.Random(seed), Vocabulary(held_out), []
    for _ in range(count):
        messages, problem = math_messages(rng, v, thinking)
        out.append((_ids(tk, render(messages[:-1], thinking=thinking)), problem.answer))
    return out


def math_accuracy(target, tk, count=256, thinking=True, held_out=True, new_tokens=170, show=0):
    items = math_items(tk, count, thinking, held_out)
    outs = generate(target, [p for p, _ in items], new_tokens)
    right = 0
    for i, ((p, answer), ids) in enumerate(zip(items, outs)):
        text = tk.decode(ids[len(p) :], skip_special_tokens=False)
        found = re.findall(r"#### (-?\d+)", text)
        ok = bool(found) and int(found[-1]) == answer
        right += ok
        if show and (i < show or (not ok and show > 0 and i < 4 * show)):
            print(
                "  ",
                "ok " if ok else "BAD",
                answer,
                "|",
                tk.decode(p, skip_special_tokens=False)[-160:],
                "->",
                text.replace("\n", " // "),
                flush=True,
            )
    return right / count


@torch.no_grad()
def exact_continuations(target, tk, texts, batch_tokens=32768, only_digits=False, show=0):
    """For each rendered conversation: are all tokens of the last assistant turn the argmax? (digits only, if asked.)"""
    packer = Packer(None, tk, 1)
    digits = {tk.token_to_id(d) for d in "0123456789"}
    docs, out = [_ids(tk, t) for t in texts], [None] * len(texts)
    order = sorted(range(len(docs)), key=lambda i: len(docs[i]))
    device = target.head.weight.device
    while order:
        longest = len(docs[order[-1]])
        part = [order.pop() for _ in range(min(len(order), max(1, batch_tokens // longest)))]
        ids = torch.full((len(part), longest), 2, device=device)
        for r, i in enumerate(part):
            ids[r, : len(docs[i])] = torch.tensor(docs[i], device=device)
        y, _ = target.body(ids)
        for r, i in enumerate(part):
            d = docs[i]
            start = max(j for j, x in enumerate(d) if x == packer.assistant) + 2
            where = [j for j in range(start, len(d)) if not only_digits or d[j] in digits]
            guess = target.logits(y[r, torch.tensor(where, device=device) - 1]).argmax(-1).tolist()
            out[i] = guess == [d[j] for j in where]
            if not out[i] and show > 0:
                show -= 1
                print(
                    "   want",
                    repr(tk.decode(d[start - 40 :], skip_special_tokens=False)),
                    "\n    got",
                    repr(tk.decode(guess, skip_special_tokens=False)),
                    flush=True,
                )
    return out


def tool_items(count, held_out=True, seed=202):
    """Conversations that end with a call (rendered in both modes in turn) and the expected calls."""
    rng, v, out = random.Random(seed), Vocabulary(held_out), []
    while len(out) < count:
        messages, expected = tasks_tools.conversation(rng, v)
        if not expected:
            continue
        last = max(i for i, m in enumerate(messages) if m.get("tool_calls"))
        out.append((messages[: last + 1], len(out) % 2 == 0))
    return out


def tool_accuracy(target, tk, count=128, held_out=True, show=0):
    """(thinking, plain): items alternate."""
    texts = [render(m, thinking=t) for m, t in tool_items(count, held_out)]
    right = exact_continuations(target, tk, texts, show=show)
    return _mean(right[::2]), _mean(right[1::2])


def needle_accuracy(target, tk, glosses, tokens, count=32, seed=303, held_out=True):
    """Needle sentences at even depths in texts of about `tokens` tokens; non-thinking, as the server's own evaluation."""
    rng, v, texts = random.Random(seed + tokens), Vocabulary(held_out), []
    for i in range(count):
        chars = int(tokens * (2.5 if tokens > 1000 else 2.2))
        messages, answer = tasks_recall.needle(rng, v, glosses, chars, (i + 0.5) / count)
        text = render(messages + [{"role": "assistant", "content": answer}], thinking=False)
        texts.append(text)
    return _mean(exact_continuations(target, tk, texts, only_digits=True)), max(len(_ids(tk, t)) for t in texts[:4])


def _mean(xs):
    return sum(map(bool, xs)) / max(1, len(xs))


@torch.no_grad()
def accept_length(target, drafter, prompts, temperature=0.0, new_tokens=128, limit=1024, eos=1, seed=5, collect=None):
    """Speculative decoding by the book, with full passes instead of caches.

    Returns (tokens per round over all prompts, P(first k drafts accepted), [tokens, rounds] of each prompt).
    Sequences stop at EOS; tokens of a round behind EOS are not counted. At temperature T drafts and target share Gumbel
    noise per position and token, as firesteel's sampler does.
    """
    g = torch.Generator(device=target.head.weight.device).manual_seed(seed)
    c, device = target.c, target.head.weight.device
    mtp = isinstance(drafter, Mtp)
    G, V = STEPS if mtp else c.dspark_block_size, c.vocab_size
    B = len(prompts)
    total = min(limit, max(map(len, prompts)) + new_tokens + G + 1)
    ids = torch.full((B, total + 2 * G + 4), 2, device=device)  # finished rows still index behind their end
    n = torch.tensor([len(p) for p in prompts], device=device)
    for i, p in enumerate(prompts):
        ids[i, : len(p)] = torch.tensor(p, device=device)
    start, b = n.clone(), torch.arange(B, device=device)

    def noise(positions):
        """The same numbers for the same position, whoever asks: one table row per position modulo 4096."""
        return table[positions % table.shape[0]] * temperature

    table = (
        -torch.log(-torch.log(torch.rand(256, V, generator=g, device=device).clamp(1e-20, 1 - 1e-7)))
        if temperature
        else None
    )
    y, h, x = target.trunk(ids)
    row = target.logits(y[b, n - 1]).float()
    anchor = (row + noise(n) if temperature else row).argmax(-1)
    alive = (anchor != eos) & (n + G + 2 <= total)
    tokens, rounds = torch.zeros(B, device=device), torch.zeros(B, device=device)
    accepted = torch.zeros(G, device=device)
    while bool(alive.any()):
        ids[b, n] = torch.where(alive, anchor, ids[b, n])
        k, conf = [0], torch.zeros(B, G, device=device)

        def pick(logits):
            k[0] += 1
            return (logits + noise(n + k[0]) if temperature else logits).argmax(-1)

        if mtp:
            out, rows = drafter.extend(target, x, ids.roll(-1, 1))
            drafts = drafter.drafts(target, out, rows, n[:, None] - 1, lambda k, logits: pick(logits))[1]
        else:
            yb, base = drafter.backbone(target, h, anchor[:, None], n[:, None])
            drafts, conf = drafter.propose(yb[:, 0], base[:, 0], anchor, pick)
        for j in range(G):
            ids[b, n + 1 + j] = torch.where(alive, drafts[:, j], ids[b, n + 1 + j])
        y, h, x = target.trunk(ids)
        at = n[:, None] + torch.arange(G + 1, device=device)
        rows = target.logits(y[b[:, None], at]).float()
        choice = (rows + noise(at + 1) if temperature else rows).argmax(-1)  # [B, G + 1]
        good = (choice[:, :G] == drafts).long().cumprod(1)
        took = good.sum(1)
        if collect is not None:
            collect.append((conf[alive].float().cpu(), took[alive].cpu()))
        emitted = torch.cat([drafts, drafts[:, :1]], 1).scatter(1, took[:, None], choice.gather(1, took[:, None]))
        stop = (emitted == eos) & (torch.arange(G + 1, device=device)[None] <= took[:, None])
        count = torch.where(stop.any(1), stop.float().argmax(1) + 1, took + 1)
        tokens += torch.where(alive, count, 0)
        rounds += alive
        accepted += good[alive].sum(0)
        anchor = choice.gather(1, took[:, None])[:, 0]
        n = torch.where(alive, n + took + 1, n)
        alive = alive & ~stop.any(1) & (n + G + 2 <= total) & (n - start < new_tokens)
    total = max(1.0, float(rounds.sum()))
    return (
        float(tokens.sum()) / total,
        [round(float(a) / total, 3) for a in accepted],
        torch.stack([tokens, rounds], 1).tolist(),
    )


def mixed_prompts(tk, glosses, count, seed=404, held_out=True, longest=700):
    """Prompts of all tasks: (task, ids); the mix over which accept length is promised."""
    from .data import Sampler

    out, tasks = [], ("math", "math", "tools", "text", "recall")
    s = Sampler(seed, {"math": 1}, glosses, (300, 1800), held_out)
    cut = len(ASSISTANT)
    while len(out) < count:
        task = tasks[len(out) % len(tasks)]
        text = s.document(task)
        at = text.rindex(ASSISTANT) + cut
        ids = _ids(tk, text[: text.index(">", at) + 1])
        if len(ids) <= longest:
            out.append((task, ids))
    return out


def target_report(target, tk, glosses, quick=False, lengths=(1024, 2048, 4096, 8000), show=0):
    """All figures of the target as a dict; eager, because shapes vary."""
    fused.compile_all(False)
    training = target.training
    target.eval()
    n = (64, 256, 16) if quick else (512, 512, 60)
    out = {
        "math_thinking": math_accuracy(target, tk, n[0], True, show=show),
        "math_chat": math_accuracy(target, tk, n[0], False, show=show // 2),
        "math_seen_words": math_accuracy(target, tk, n[0] // 2, True, held_out=False),
    }
    out["tools_thinking"], out["tools_chat"] = tool_accuracy(target, tk, n[1], show=show)
    out["tools_seen_words"] = sum(tool_accuracy(target, tk, n[1] // 2, held_out=False)) / 2
    for t in lengths:
        out[f"needle_{t}"], out[f"needle_{t}_tokens"] = needle_accuracy(target, tk, glosses, t, n[2])
    target.train(training)
    return out
