"""Cached generation: many sequences in lock step, one token at a time, with exact-length caches.

All sequences start at position 0 and share the step's position; while a sequence is inside its prompt the next token
is forced. That keeps every cache a plain slice. Arithmetic is that of `layers` (and of its quantisation switches).
"""

import torch

from . import fused, numerics as num
from .layers import index_rows


class Pool:
    """A compressor's open window and finished rows."""

    def __init__(self, compressor, batch, length, device, dtype, index):
        self.k, self.index, self.parts = compressor, index, []
        self.rows = torch.zeros(batch, max(1, length // compressor.m), compressor.d, device=device, dtype=dtype)
        self.n = 0

    def push(self, x, t):
        """x [B, D] at position t; appends a row when it completes a window."""
        k, m = self.k, self.k.m
        self.parts = self.parts[-(2 * m if m == 4 else m) + 1 :] + [(k.wkv(x), k.wgate(x))]
        if (t + 1) % m:
            return
        take = 2 * m if m == 4 and t >= 2 * m - 1 else m
        kv = torch.stack([p[0] for p in self.parts[-take:]], 1)
        gate = torch.stack([p[1] for p in self.parts[-take:]], 1)
        first = t + 1 - take
        cos, sin = num.rope_table(k.c, True, torch.arange(first, t + 1, m, device=x.device))
        quant = k.sw.quant
        y = fused.pool(
            kv, gate, k.ape, k.norm.weight, cos, sin, m, k.c.rms_norm_eps, quant and not self.index, x.dtype
        )[:, -1]
        self.rows[:, self.n] = index_rows(y) if self.index and quant else y
        self.n += 1


class Cache:
    def __init__(self, target, batch, length):
        p = target.head.weight
        self.layers = []
        for block in target.layers:
            a = block.attn
            layer = {"raw": torch.zeros(batch, length, a.c.head_dim, device=p.device, dtype=target.dtype)}
            if a.m:
                layer["pool"] = Pool(a.compressor, batch, length, p.device, target.dtype, False)
            if a.m == 4:
                layer["index"] = Pool(a.indexer.compressor, batch, length, p.device, target.dtype, True)
            self.layers.append(layer)


def _attend(a, layer, x, xq, t):
    """One position of attention: x, xq [B, D] -> [B, D]."""
    c = a.c
    cos, sin = num.rope_table(c, a.m != 0, torch.tensor([t], device=x.device))
    q, qr_q = a.project_q(xq, cos, sin)
    layer["raw"][:, t] = a.project_kv(xq, cos, sin)
    keys = layer["raw"][:, max(0, t + 1 - c.sliding_window) : t + 1]
    if a.m:
        if a.m == 4:
            layer["index"].push(x, t)
        layer["pool"].push(x, t)
        n = layer["pool"].n
        rows = layer["pool"].rows[:, :n]
        if a.m == 4 and n > c.index_topk and a.sw.select:
            qi, w = a.indexer.queries(x[:, None], qr_q[:, None], torch.tensor([t], device=x.device))
            score = a.indexer.score(qi, w, layer["index"].rows[:, :n])[:, 0]
            ids = score.topk(c.index_topk, -1).indices
            rows = rows.gather(1, ids[..., None].expand(-1, -1, rows.shape[-1]))
        keys = torch.cat([keys, rows], 1)
    s = (q @ keys.transpose(1, 2))[:, None]  # [B, 1, H, K]
    p = fused.block_weights(s, a.attn_sink, c.head_dim**-0.5, s.new_ones(s.shape[0], s.shape[-1], dtype=torch.bool))
    return a.output((p[:, 0] @ keys), cos, sin)


@torch.no_grad()
def step(target, cache, ids, t):
    """Logits [B, V] after tokens ids [B] at position t."""
    x = target.streams(ids)
    for block, layer in zip(target.layers, cache.layers):
        x = block.site("attn", x, lambda u, uq: _attend(block.attn, layer, u, uq, t))
        x = block.site("ffn", x, lambda u, uq: block.ffn(u, uq, ids))
    y, _ = fused.norm(target.collapse(x), target.norm.weight, target.c.rms_norm_eps, False)
    return target.logits(y)


@torch.no_grad()
def generate(target, prompts, new_tokens, temperature=0.0, eos=1, limit=None):
    """Continue every prompt (list of ids) by up to new_tokens; temperature is one number or a list. Returns full id lists."""
    device = target.head.weight.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    total = min(int(lengths.max()) + new_tokens, limit or 1 << 30)
    ids = torch.full((len(prompts), total), 2, device=device)
    for i, p in enumerate(prompts):
        ids[i, : len(p)] = torch.tensor(p[:total], device=device)
    heat = torch.as_tensor(temperature, device=device, dtype=torch.float32).expand(len(prompts))
    cache, done = Cache(target, len(prompts), total), torch.zeros(len(prompts), dtype=torch.bool, device=device)
    sampled = bool((heat > 0).any())
    ends = lengths + new_tokens
    first = int(lengths.min()) - 1
    for t in range(total - 1):
        logits = step(target, cache, ids[:, t], t)
        if t < first:
            continue
        x = logits.float()
        if sampled:
            noise = -torch.log(-torch.log(torch.rand_like(x).clamp(1e-20, 1 - 1e-7)))
            x = x + noise * heat[:, None]
        choice = x.argmax(-1)
        free = (t + 1 >= lengths) & ~done & (t + 1 < ends)
        ids[:, t + 1] = torch.where(free, choice, ids[:, t + 1])
        done |= (free & (choice == eos)) | (t + 2 >= ends)
        if t % 16 == 0 and bool(done.all()):
            break
    out = []
    for row, n in zip(ids.tolist(), lengths.tolist()):
        tail = row[n : n + new_tokens]
        tail = tail[: tail.index(eos) + 1] if eos in tail else [i for i in tail if i != 2]
        out.append(row[:n] + tail)
    return out
