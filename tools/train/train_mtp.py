"""Train a block of multi-token prediction for a finished target for a given number of minutes.

    python3 tools/train/train_mtp.py --state models/kindling --minutes 4 --out models/kindling-mtp

As train_drafter.py: the frozen target answers prompts of all tasks, and the block learns three drafts in a row behind
random anchors of those answers, each from its own streams of the one before (teacher-forced tokens): total variation to
the target's distribution and cross-entropy, later drafts for less. Writes the block's shard with a config and an index
for a checkpoint of the target's shards, curve-mtp.jsonl and eval-mtp.json into --out.
"""

import json
import os
import time

import torch
from tokenizers import Tokenizer

import train_drafter
from kindling import evaluate, fused, wordnet
from kindling.checkpoint import export_mtp, load_export, put_on_grid
from kindling.drafter import Drafter
from kindling.model import Target
from kindling.mtp import STEPS, Mtp
from kindling.optim import Optimizer, schedule
from train_drafter import anchors_of, answers, config_of, rows_of

WEIGHTS = (1.0, 0.8, 0.6)  # of the drafts


def mtp_loss(target, mtp, ids, weights, count):
    """(loss, metrics) of one batch ids [B, T+1]."""
    B = ids.shape[0]
    with torch.no_grad():
        y, _, x = target.trunk(ids[:, :-1])
        at, real = anchors_of(weights, count, STEPS)
        b = torch.arange(B, device=ids.device)[:, None, None]
        where = at[..., None] + 2 + torch.arange(STEPS, device=ids.device)  # positions that are drafted
        labels = ids[b, where].flatten(0, 1)
        valid = ((weights[b, where] > 0.5).float().cumprod(-1) * real[..., None]).flatten(0, 1)
        p = torch.softmax(target.logits(y[b, where - 1]).float(), -1).flatten(0, 1)  # [N, STEPS, V]
    out, rows = mtp.extend(target, x, ids[:, 1:])
    logits, _ = mtp.drafts(target, out, rows, at, lambda k, _: labels[:, k])
    logits = logits.transpose(0, 1)
    logq = torch.log_softmax(logits, -1)
    gap = (logq.exp() - p).abs().sum(-1)
    ce = -logq.gather(-1, labels[..., None])[..., 0]
    w = valid * torch.tensor(WEIGHTS, device=ids.device)
    loss = ((0.1 * ce + 0.9 * gap) * w).sum() / w.sum().clamp(min=1)
    with torch.no_grad():
        n = valid[:, 0].sum().clamp(min=1)
        accept = (1 - 0.5 * gap).clamp(0, 1)
        tau = 1 + (accept * valid).cumprod(-1).sum() / n
        greedy = 1 + ((logits.argmax(-1) == p.argmax(-1)).float() * valid).cumprod(-1).sum() / n
    return loss, torch.stack([loss.detach(), tau, greedy])


def main():
    a = train_drafter.arguments(__doc__)
    began = time.time()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    os.makedirs(a.out, exist_ok=True)
    tk, glosses = Tokenizer.from_file(a.tokenizer), wordnet.load(a.glosses)
    c = config_of(a)
    dtype = torch.bfloat16 if a.device == "cuda" or a.bf16 else torch.float32
    target, mtp = Target(c, dtype), Mtp(c, dtype)
    if not a.tiny:
        load_export(target, Drafter(c, dtype), a.state)
    mtp.init_from(target)
    target.to(a.device).eval().requires_grad_(False)
    mtp.to(a.device).train()
    target.sw.quant = target.sw.weights_ready = target.sw.select = True
    mtp.sw.quant = True
    plan = {k: int(v) for k, v in (p.split(":") for p in a.generate.split(",") if p)}
    docs = answers(target, tk, glosses, plan, a.round, a.seed)
    ids, weights = (x.to(a.device) for x in rows_of(docs, tk))
    print(f"{len(docs)} answers in {len(ids)} rows after {time.time() - began:.0f} s", flush=True)
    fused.compile_all(a.compile or (a.device == "cuda" and not a.no_compile))
    optimizer = Optimizer(mtp)
    begin = time.time()
    limit = max(20.0, began + a.minutes * 60 - begin)
    step, told, sums, counted = 0, 0.0, torch.zeros(3, device=a.device), 0
    order, at = torch.randperm(len(ids)), 0
    with open(os.path.join(a.out, "curve-mtp.jsonl"), "w", encoding="utf-8") as curve:
        while time.time() - begin < limit and not (a.steps and step >= a.steps):
            lr = schedule((time.time() - begin) / limit, a.lr, warm=0.04, flat=0.35, final=0.03)
            if at + min(a.batch, len(ids)) > len(order):
                order, at = torch.randperm(len(ids)), 0
            pick = order[at : at + a.batch].to(a.device)
            at += a.batch
            loss, metrics = mtp_loss(target, mtp, ids[pick], weights[pick], a.anchors)
            loss.backward()
            optimizer.step(lr)
            optimizer.zero_grad()
            for gate, load in mtp.sw.loads:
                gate.bias += 1e-3 * torch.sign(load.mean() - load)
            mtp.sw.loads.clear()
            sums, counted, step = sums + metrics, counted + 1, step + 1
            if time.time() - begin - told > limit / 30 or step in (1, 10, 30):
                told = time.time() - begin
                m = (sums / counted).tolist()
                sums.zero_()
                counted = 0
                line = dict(step=step, seconds=round(told, 1), lr=round(lr, 6), loss=round(m[0], 4))
                line.update(tau_sampled=round(m[1], 3), tau_greedy=round(m[2], 3))
                print(json.dumps(line), flush=True)
                curve.write(json.dumps(line) + "\n")
                curve.flush()
    if a.tiny:
        return
    for name in export_mtp(mtp, a.state, a.out):
        print(name)
    report(a, target, mtp, tk, glosses)


def report(a, target, mtp, tk, glosses):
    """Accept lengths on held-out prompts with the exported values of all weights."""
    fused.compile_all(False)
    put_on_grid(target, None, mtp)
    mtp.eval()
    mtp.sw.weights_ready = True
    prompts = evaluate.mixed_prompts(tk, glosses, 10 if a.quick_eval else a.eval_prompts)
    out = {}
    for name, heat in (("greedy", 0.0), ("t1", 1.0)):
        out[f"accept_{name}"], out[f"by_position_{name}"], _ = evaluate.accept_length(
            target, mtp, [p for _, p in prompts], heat, new_tokens=96
        )
        print(json.dumps(out), flush=True)
    with open(os.path.join(a.out, "eval-mtp.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
