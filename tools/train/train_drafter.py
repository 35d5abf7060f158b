"""Train the DSpark drafter of a finished target for a given number of minutes.

    python3 tools/train/train_drafter.py --state models/kindling --minutes 4.5 --out $OUT

The frozen target, its weights on the checkpoint's grid and its activations quantised, first answers prompts of all
tasks, half of them greedily and half sampled. The drafter then learns blocks behind random anchors of those answers
(and of some the generators wrote): total variation to the target's distribution, cross-entropy, and the confidence
head's estimate of the acceptance probability, as in the DSpark paper. Writes drafter-*.safetensors, curve-drafter.jsonl
and eval-drafter.json into --out.
"""

import argparse
import itertools
import json
import os
import random
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from kindling import evaluate, fused, wordnet
from kindling.checkpoint import is_published, load_export, load_state, put_on_grid, save_state
from kindling.config import KINDLING, Config, tiny
from kindling.data import Packer, PackedStream, Sampler
from kindling.decode import generate
from kindling.drafter import Drafter
from kindling.model import Target
from kindling.optim import Optimizer, schedule
from train_target import ROOT, SHORT

LENGTH, ANCHORS, DECAY = 768, 64, 4.0
NEW_TOKENS = {"math": 150, "text": 130, "tools": 110, "recall": 60}


def arguments(about=__doc__):
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--state", required=True, help="folder with target-*.safetensors")
    p.add_argument("--resume", help="folder with drafter-*.safetensors to continue from")
    p.add_argument(
        "--minutes", type=float, required=True, help="time for answers and training; evaluation comes on top"
    )
    p.add_argument("--generate", default="math:4,text:3,tools:1,recall:1", help="rounds of generated answers per task")
    p.add_argument("--round", type=int, default=3072, help="sequences per round")
    p.add_argument("--out", required=True)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--anchors", type=int, default=ANCHORS)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--eval-prompts", type=int, default=100)
    p.add_argument("--save-every", type=float, default=60, help="seconds")
    p.add_argument(
        "--steps", type=int, default=0, help="stop after so many steps, without saving (fills the compiler's cache)"
    )
    p.add_argument("--bf16", action="store_true", help="bfloat16 products on a CPU too (fast where it has AMX)")
    p.add_argument("--compile", action="store_true", help="compile on a CPU too")
    p.add_argument(
        "--quant-from", type=float, default=0.0, help="share of the time after which the drafter is quantised"
    )
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--quick-eval", action="store_true")
    p.add_argument("--glosses", default=os.path.join(ROOT, "build/kindling/wordnet.tsv"))
    p.add_argument("--tokenizer", default=os.path.join(ROOT, "models/kindling/tokenizer.json"))
    return p.parse_args()


def config_of(a):
    """Kindling's, or with --tiny one for tests on a CPU."""
    if not a.tiny:
        return Config(KINDLING)
    return tiny(hidden_size=128, num_attention_heads=2, head_dim=128, moe_intermediate_size=128, index_n_heads=8)


def rows_of(docs, tk):
    """Answers packed into rows: (ids, weights) [n, LENGTH + 1]."""
    supply = iter(docs)
    packer = Packer(lambda: list(itertools.islice(supply, 32)), tk, LENGTH, 0.0)
    rows = list(iter(packer.row, None))
    if not rows:
        return torch.zeros(0, LENGTH + 1, dtype=torch.long), torch.zeros(0, LENGTH + 1)
    ids = torch.stack([torch.from_numpy(r[0].astype("int32")) for r in rows]).long()
    return ids, torch.stack([torch.from_numpy(r[1]) for r in rows]).float() / 255


def answers(target, tk, glosses, plan, size, seed):
    """Documents (ids) whose last answer the target wrote itself, half of each round greedy, half at temperature 1."""
    out = []
    for task, rounds in plan.items():
        for i in range(rounds):
            s = Sampler(seed * 7919 + 31 * i + sum(map(ord, task)), {task: 1}, glosses, (300, 1200))
            prompts = []
            while len(prompts) < size:
                text = s.document()
                at = text.rindex("<｜Assistant｜>")
                cut = text.index(">", at + len("<｜Assistant｜>")) + 1
                ids = tk.encode(text[:cut], add_special_tokens=False).ids
                if len(ids) < 600:
                    prompts.append(ids)
            t = time.time()
            heat = torch.arange(size, device=target.head.weight.device) % 2
            docs = [d for d in generate(target, prompts, NEW_TOKENS[task], heat.float()) if d[-1] == 1]
            out += docs
            print(f"generated {len(docs)} of {size} {task} answers in {time.time() - t:.1f} s", flush=True)
    random.Random(seed).shuffle(out)
    return out


def anchors_of(weights, count, gamma):
    """Anchors [B, A] at which the anchor and the next token are an answer's, and whether each is real.

    weights [B, T+1]: loss weight of each token as a target.
    """
    answer = (weights > 0.5).float()
    score = answer[:, : -gamma - 2] * answer[:, 1 : -gamma - 1] * torch.rand_like(answer[:, : -gamma - 2])
    value, at = score.topk(count, 1)
    return at, value > 0


def draft_loss(target, drafter, ids, weights, count):
    """(loss, metrics) of one batch ids [B, T+1]."""
    G = target.c.dspark_block_size
    B = ids.shape[0]
    with torch.no_grad():
        y, h = target.body(ids[:, :-1])
        at, real = anchors_of(weights, count, G)
        b = torch.arange(B, device=ids.device)[:, None, None]
        where = at[..., None] + torch.arange(G, device=ids.device)  # positions whose next token is drafted
        labels, previous = ids[b, where + 1], ids[b, where]
        valid = (weights[b, where + 1] > 0.5).float().cumprod(-1) * real[..., None]
        p = torch.softmax(target.logits(y[b, where]).float(), -1)
    yb, base = drafter.backbone(target, h, ids[b[:, :, 0], at], at)
    logits = base + drafter.bias(previous)
    logq = torch.log_softmax(logits, -1)
    gap = (logq.exp() - p).abs().sum(-1)
    ce = -logq.gather(-1, labels[..., None])[..., 0]
    accept = (1 - 0.5 * gap).clamp(0, 1).detach()
    bce = F.binary_cross_entropy_with_logits(drafter.confidence(yb, previous), accept, reduction="none")
    w = valid * torch.exp(-torch.arange(G, device=ids.device) / DECAY)
    total = w.sum().clamp(min=1)
    loss = ((0.1 * ce + 0.9 * gap + bce) * w).sum() / total
    with torch.no_grad():
        n = valid[..., 0].sum().clamp(min=1)
        tau = 1 + (accept * valid).cumprod(-1).sum() / n
        greedy = 1 + ((logits.argmax(-1) == p.argmax(-1)).float() * valid).cumprod(-1).sum() / n
    return loss, torch.stack([loss.detach(), tau, greedy])


def main():
    a = arguments()
    began = time.time()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    os.makedirs(a.out, exist_ok=True)
    fresh = max(4, a.batch // 4 // 4 * 4) if a.generate else a.batch  # rows per batch that the generators wrote
    stream = PackedStream(
        dict(
            tokenizer=a.tokenizer,
            glosses=a.glosses,
            length=LENGTH,
            rows=4,
            parts=[(SHORT, 1.0, (300, 1600))],
            prompt_weight=0.0,
        ),
        fresh,
        a.seed,
        a.workers,
    )
    tk, glosses = Tokenizer.from_file(a.tokenizer), wordnet.load(a.glosses)
    c = config_of(a)
    dtype = torch.bfloat16 if a.device == "cuda" or a.bf16 else torch.float32
    target, drafter = Target(c, dtype), Drafter(c, dtype)
    if is_published(a.state):
        load_export(target, drafter, a.state)
    else:
        load_state(target, a.state, "target")
        put_on_grid(target)
    if a.resume and is_published(a.resume):
        load_export(target, drafter, a.resume)
    elif a.resume:
        load_state(drafter, a.resume, "drafter")
    else:
        drafter.init_from(target)
    target.to(a.device).eval().requires_grad_(False)
    drafter.to(a.device).train()
    target.sw.quant = target.sw.weights_ready = target.sw.select = True
    drafter.sw.quant = True

    plan = {k: int(v) for k, v in (p.split(":") for p in a.generate.split(",") if p)}
    docs = answers(target, tk, glosses, plan, a.round, a.seed)
    print(
        f"{len(docs)} answers, {sum(map(len, docs)) / 1e6:.2f} M tokens, after {time.time() - began:.0f} s", flush=True
    )
    ids, weights = (x.to(a.device) for x in rows_of(docs, tk))
    fused.compile_all(a.compile or (a.device == "cuda" and not a.no_compile))

    optimizer = Optimizer(drafter)
    curve = open(os.path.join(a.out, "curve-drafter.jsonl"), "w", encoding="utf-8")
    begin = time.time()
    limit = max(20.0, began + a.minutes * 60 - begin)  # what generation took is missing here
    saved, step, told, sums, counted = begin, 0, 0.0, torch.zeros(3, device=a.device), 0
    order, at = torch.randperm(len(ids)), 0
    while time.time() - begin < limit:
        progress = (time.time() - begin) / limit
        lr = schedule(progress, a.lr, warm=0.04, flat=0.35, final=0.03)
        drafter.sw.quant = progress >= a.quant_from
        if time.time() - saved > a.save_every:  # a run that is cut off leaves its last state
            save_state(drafter, a.out, "drafter")
            saved = time.time()
        if at + a.batch - fresh > len(order):
            order, at = torch.randperm(len(ids)), 0
        pick = order[at : at + a.batch - fresh].to(a.device)
        at += a.batch - fresh
        more, more_w = stream.next(a.device)
        loss, metrics = draft_loss(
            target, drafter, torch.cat([ids[pick], more]), torch.cat([weights[pick], more_w]), a.anchors
        )
        loss.backward()
        optimizer.step(lr)
        optimizer.zero_grad()
        for gate, load in drafter.sw.loads:
            gate.bias += 1e-3 * torch.sign(load.mean() - load)
        drafter.sw.loads.clear()
        sums, counted, step = sums + metrics, counted + 1, step + 1
        if a.steps and step >= a.steps:
            break
        if time.time() - begin - told > limit / 30 or step in (1, 10, 30):
            told = time.time() - begin
            m = (sums / counted).tolist()
            sums.zero_()
            counted = 0
            line = dict(
                step=step,
                seconds=round(told, 1),
                lr=round(lr, 6),
                loss=round(m[0], 4),
                tau_sampled=round(m[1], 3),
                tau_greedy=round(m[2], 3),
            )
            if a.device == "cuda":
                line["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
            print(json.dumps(line), flush=True)
            curve.write(json.dumps(line) + "\n")
            curve.flush()
    stream.close()
    if a.steps:
        return
    for name in save_state(drafter, a.out, "drafter"):
        print(name)
    report(a, target, drafter, tk, glosses)


def report(a, target, drafter, tk, glosses):
    """Accept lengths on held-out prompts with the exported values of all weights."""
    t = time.time()
    fused.compile_all(False)
    put_on_grid(target, drafter)
    drafter.eval()
    drafter.sw.quant = drafter.sw.weights_ready = True
    prompts = evaluate.mixed_prompts(tk, glosses, 10 if a.quick_eval else a.eval_prompts)
    out = {}
    ids = [p for _, p in prompts]
    for name, heat in (("greedy", 0.0), ("t1", 1.0)):
        out[f"accept_{name}"], out[f"by_position_{name}"], each = evaluate.accept_length(
            target, drafter, ids, heat, new_tokens=96
        )
        for task in ("math", "tools", "text", "recall"):
            part = [e for (k, _), e in zip(prompts, each) if k == task]
            out[f"accept_{name}_{task}"] = round(sum(t for t, _ in part) / max(1, sum(r for _, r in part)), 3)
        print(json.dumps(out), flush=True)
    out["seconds"] = round(time.time() - t, 1)
    print(json.dumps(out), flush=True)
    with open(os.path.join(a.out, "eval-drafter.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
