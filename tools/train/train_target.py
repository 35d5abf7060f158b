"""Train the target model for a given number of minutes.

    python3 tools/train/train_target.py --stage base --minutes 8 --out $OUT
    python3 tools/train/train_target.py --stage long --minutes 6 --init models/kindling --out $OUT

Stage `base` learns the tasks at 1k tokens with dense attention to compressed rows; stage `long` goes to 8k, trains the
indexer, then lets it choose, in the checkpoint's own number formats from the start (quantisation-aware). The learning
rate follows the clock, so a run always ends in time. Writes target-*.safetensors (bf16), curve-<stage>.jsonl and
eval-<stage>.json into --out.
"""

import argparse
import json
import os
import time

import torch
from tokenizers import Tokenizer

from kindling import evaluate, fused, wordnet
from kindling.checkpoint import is_published, load_export, load_state, save_state
from kindling.config import KINDLING, Config, tiny
from kindling.data import PackedStream
from kindling.model import Target
from kindling.optim import Optimizer, schedule

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SHORT = {"math": 0.33, "drill": 0.05, "tools": 0.25, "recall": 0.20, "text": 0.10, "echo": 0.06, "count": 0.01}
STAGES = {
    # parts: (shares of the tasks, share of rows, characters of the texts that facts are hidden in)
    "base": dict(
        length=1024,
        batch=48,
        lr=4e-3,
        final=0.15,
        seed=1,
        quant=False,
        prompt_weight=0.1,
        parts=[(SHORT, 1.0, (300, 3000))],
    ),
    "long": dict(
        length=8192,
        batch=6,
        lr=2e-3,
        final=0.03,
        seed=2,
        quant=True,
        prompt_weight=0.05,
        parts=[({"recall": 1.0}, 0.5, (2500, 27000)), (SHORT, 0.5, (300, 6000))],
    ),
    # a continuation of `long`, heavy on copying and calls; a fifth of the rows keeps the long texts
    "polish": dict(
        length=4096,
        batch=12,
        lr=1e-3,
        final=0.02,
        seed=5,
        quant=True,
        prompt_weight=0.05,
        sampler=dict(wild=0.55, second_call=0.2),
        parts=[
            ({"recall": 1.0}, 0.2, (2500, 13500)),
            (
                {"echo": 0.22, "tools": 0.42, "math": 0.14, "recall": 0.10, "text": 0.11, "count": 0.01},
                0.8,
                (300, 3000),
            ),
        ],
    ),
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--stage", choices=STAGES, required=True)
    p.add_argument("--minutes", type=float, required=True, help="time for training; evaluation and saving come on top")
    p.add_argument("--init", help="folder with target-*.safetensors to continue from")
    p.add_argument("--out", required=True)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--lr", type=float)
    p.add_argument("--batch", type=int)
    p.add_argument("--length", type=int)
    p.add_argument("--seed", type=int)
    p.add_argument(
        "--select-from", type=float, default=0.4, help="long: share of the time after which the indexer chooses"
    )
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--profile", action="store_true", help="print where the time of one step goes")
    p.add_argument("--tiny", action="store_true", help="a toy model for trying the script on a CPU")
    p.add_argument("--quick-eval", action="store_true")
    p.add_argument("--no-eval", action="store_true")
    p.add_argument("--glosses", default=os.path.join(ROOT, "build/kindling/wordnet.tsv"))
    p.add_argument("--tokenizer", default=os.path.join(ROOT, "models/kindling/tokenizer.json"))
    return p.parse_args()


def main():
    a = arguments()
    started = time.time()
    s = STAGES[a.stage]
    length, batch, seed = a.length or s["length"], a.batch or s["batch"], a.seed or s["seed"]
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    rows = 8 if batch % 8 == 0 else 2 if batch % 2 == 0 else 1
    stream = PackedStream(
        dict(
            tokenizer=a.tokenizer,
            glosses=a.glosses,
            length=length,
            rows=rows,
            parts=s["parts"],
            prompt_weight=s["prompt_weight"],
            sampler=s.get("sampler", {}),
        ),
        batch,
        seed,
        a.workers,
    )
    c = (
        tiny(hidden_size=128, num_attention_heads=2, head_dim=128, moe_intermediate_size=128, index_n_heads=8)
        if a.tiny
        else Config(KINDLING)
    )
    model = Target(c, torch.bfloat16 if a.device == "cuda" else torch.float32)
    if a.init and is_published(a.init):
        load_export(model, None, a.init)  # on the grid: a later stage goes on from the same function
    elif a.init:
        load_state(model, a.init, "target")
    model.to(a.device).train()
    model.sw.quant = s["quant"]
    optimizer = Optimizer(model)
    fused.compile_all(a.device == "cuda" and not a.no_compile)
    os.makedirs(a.out, exist_ok=True)
    curve = open(os.path.join(a.out, f"curve-{a.stage}.jsonl"), "w", encoding="utf-8")
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, ready after {time.time() - started:.0f} s",
        flush=True,
    )

    limit, begin, step, seen, told, first = a.minutes * 60, time.time(), 0, 0, 0.0, None
    stats = torch.zeros(3, device=a.device)
    counted = 0
    while True:
        now = time.time() - begin
        progress = now / limit
        if progress >= 1:
            break
        lr = schedule(progress, a.lr or s["lr"], final=s["final"])
        if s["quant"]:
            model.sw.index_loss = 0.125
            model.sw.select = a.stage == "polish" or progress >= a.select_from
        ids, weights = stream.next(a.device)
        profile = a.profile and step == 12
        if profile:
            prof = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
            )
            prof.__enter__()
        loss, hit = model.loss(ids, weights)
        index = sum(model.sw.losses) if model.sw.losses else loss.new_zeros(())
        (loss + index).backward()
        optimizer.step(lr)
        optimizer.zero_grad()
        if profile:
            torch.cuda.synchronize()
            prof.__exit__(None, None, None)
            print(
                prof.key_averages()
                .table(sort_by="self_cuda_time_total", row_limit=32, max_name_column_width=70)
                .replace("  ", " "),
                flush=True,
            )
        model.balance(2e-3 * (1 - 0.9 * progress))
        stats += torch.stack([loss.detach(), hit, index.detach()])
        step, seen, counted = step + 1, seen + batch * length, counted + 1
        if first is None and step == 3:
            first = time.time()
            print(f"compiled after {first - begin:.0f} s", flush=True)
            at_first = seen
        if time.time() - begin - told > limit / 40 or step in (1, 10, 30):
            told = time.time() - begin
            mean = (stats / counted).tolist()
            stats.zero_()
            counted = 0
            line = dict(
                step=step,
                seconds=round(told, 1),
                tokens=seen,
                lr=round(lr, 6),
                loss=round(mean[0], 4),
                right=round(mean[1], 4),
                index=round(mean[2], 4),
            )
            if first and time.time() > first + 1:
                line["tokens_per_second"] = int((seen - at_first) / (time.time() - first))
            if a.device == "cuda":
                line["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
            print(json.dumps(line), flush=True)
            curve.write(json.dumps(line) + "\n")
            curve.flush()
    stream.close()
    print(f"trained {step} steps, {seen / 1e6:.1f} M tokens; saving", flush=True)
    for name in save_state(model, a.out, "target"):
        print(name)
    if a.no_eval:
        return
    t = time.time()
    model.sw.select, model.sw.index_loss = s["quant"], 0.0
    tk, glosses = Tokenizer.from_file(a.tokenizer), wordnet.load(a.glosses)
    lengths = (1024, 2048, 4096, 8000) if s["quant"] else (500, 900, 2048)
    report = evaluate.target_report(model, tk, glosses, quick=a.quick_eval, lengths=lengths, show=4)
    report["seconds"] = round(time.time() - t, 1)
    print(json.dumps(report), flush=True)
    with open(os.path.join(a.out, f"eval-{a.stage}.json"), "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)


if __name__ == "__main__":
    main()
