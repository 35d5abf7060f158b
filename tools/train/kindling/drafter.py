"""DSpark drafter: proposes gamma tokens at once from the target's hidden features, then corrects them left to right.

Per round it sees the target's features of the window before the anchor (as keys), the anchor token and gamma - 1 noise
tokens; three window layers give base logits for all positions, a low-rank Markov head adds a bias from the previous
token, and a confidence head estimates whether each draft will be accepted. Checkpoint names are `mtp.<stage>.*`.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from . import fused, numerics as num
from .layers import Block, HeadCollapse, Linear, Norm, Switches


class Last(HeadCollapse):
    """What only the last stage owns: head collapse, output norm, Markov and confidence heads."""

    def __init__(self, c):
        nn.Module.__init__(self)
        self.add_head(c)
        V, r, D = c.vocab_size, c.dspark_markov_rank, c.hidden_size
        self.markov_w1 = nn.Parameter(torch.randn(V, r) * 0.5)
        self.markov_w2 = nn.Parameter(torch.zeros(V, r))
        self.confidence = nn.Parameter(torch.zeros(1, D + r))


class Drafter(nn.Module):
    def __init__(self, c, dtype=torch.bfloat16):
        super().__init__()
        self.c, self.dtype, self.sw = c, dtype, Switches()
        S = c.n_stages
        self.main_proj = Linear(S * c.hidden_size, c.hidden_size, self.sw)
        self.main_norm = Norm(c.hidden_size)
        self.stages = nn.ModuleList(Block(c, 0, False, self.sw) for _ in range(S))
        self.last = Last(c)

    @torch.no_grad()
    def init_from(self, target):
        """Stages start as copies of the last target layers (their compressors left out), main_proj as the mean."""
        S, D = self.c.n_stages, self.c.hidden_size
        for stage, source in zip(self.stages, target.layers[-S:]):
            own, theirs = stage.state_dict(), source.state_dict()
            stage.load_state_dict({k: theirs.get(k, v) for k, v in own.items()})
        for k in ("hc_head_fn", "hc_head_base", "hc_head_scale"):
            getattr(self.last, k).copy_(getattr(target, k))
        self.last.norm.weight.copy_(target.norm.weight)
        self.main_proj.weight.copy_(torch.cat([torch.eye(D)] * S, 1) / S)

    def features(self, h):
        """Target features [B, T, 3 D] -> (fused features, their FP8 view), shared by the stages."""
        h = fused.act(h, self.sw.quant)
        return fused.norm(self.main_proj(h), self.main_norm.weight, self.c.rms_norm_eps, self.sw.quant)

    def backbone(self, target, h, anchor_ids, anchors):
        """Base logits of the blocks behind the anchors.

        h [B, T, 3 D] features by position; anchor_ids, anchors [B, A]: token and position n of each anchor. Context are
        the features at n - W .. n - 1, whatever stands at n and later is not read.
        Returns (y [B, A, G, D] in front of the norm, base logits [B, A, G, V] float32).
        """
        c, W, G = self.c, self.c.sliding_window, self.c.dspark_block_size
        B, A = anchors.shape
        _, main = self.features(h)
        T = h.shape[1]
        cos, sin = num.rope_table(c, False, torch.arange(T + G, device=h.device))
        at = anchors[..., None] + torch.arange(-W, 0, device=h.device)
        ok = (at >= 0).flatten(0, 1)
        rows = (torch.arange(B, device=h.device)[:, None, None] * T + at.clamp(0, T - 1)).flatten()
        ids = torch.full((B * A, G), c.dspark_noise_token_id, device=h.device)
        ids[:, 0] = anchor_ids.flatten()
        x = target.streams(ids).detach()
        pos = anchors.flatten()[:, None] + torch.arange(G, device=h.device)
        for stage in self.stages:
            kv = stage.attn.project_kv(main, cos[:T], sin[:T])
            context = kv.flatten(0, 1).index_select(0, rows).view(B * A, W, -1)
            x = stage.draft(x, context, ok, cos[pos], sin[pos])
        y = self.last.collapse(x)
        u, _ = fused.norm(y, self.last.norm.weight, c.rms_norm_eps, False)
        base = F.linear(u, target.head.weight.detach().to(u.dtype)).float()
        return y.view(B, A, G, -1), base.view(B, A, G, -1)

    def bias(self, previous):
        """Markov correction [..., V] of the tokens in front."""
        w = self.last.markov_w1.to(self.dtype)[previous]
        return F.linear(w, self.last.markov_w2.to(self.dtype)).float()

    def confidence(self, y, previous):
        """Logit of "this draft is accepted, given that those before it were"."""
        return F.linear(
            torch.cat([y.float(), self.last.markov_w1[previous].float()], -1), self.last.confidence.float()
        ).squeeze(-1)

    def propose(self, y, base, anchor_ids, pick):
        """Left-to-right choice of the drafts: y, base [N, G, .], anchor_ids [N] -> (ids [N, G], confidence logits [N, G])."""
        previous, ids, conf = anchor_ids, [], []
        for k in range(self.c.dspark_block_size):
            conf.append(self.confidence(y[:, k], previous))
            previous = pick(base[:, k] + self.bias(previous))
            ids.append(previous)
        return torch.stack(ids, 1), torch.stack(conf, 1)
