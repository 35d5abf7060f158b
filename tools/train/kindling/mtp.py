"""The multi-token-prediction block of preview checkpoints: one more layer that predicts the token after the next.

At position i it reads the target's residual streams there (in front of the collapse) and the embedding of token i + 1,
and its output, collapsed, normed and through the target's head, predicts token i + 2. Drafting goes on from its own
output streams: position i + 1 with token i + 2, and so on, always through the same weights, so a later draft is worth
less. Checkpoint names are `mtp.0.*`.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from . import fused, numerics as num
from .layers import Block, HeadCollapse, Linear, Norm, Switches

STEPS = 3  # drafts of a round


class Mtp(HeadCollapse):
    def __init__(self, c, dtype=torch.bfloat16):
        nn.Module.__init__(self)
        self.c, self.dtype, self.sw = c, dtype, Switches()
        D = c.hidden_size
        self.enorm, self.hnorm = Norm(D), Norm(D)
        self.e_proj, self.h_proj = Linear(D, D, self.sw), Linear(D, D, self.sw)
        self.block = Block(c, 0, False, self.sw)
        self.add_head(c)

    @torch.no_grad()
    def init_from(self, target):
        """The layer starts as a copy of the last target layer (compressors left out), reading the streams alone."""
        own, theirs = self.block.state_dict(), target.layers[-1].state_dict()
        self.block.load_state_dict({k: theirs.get(k, v) for k, v in own.items()})
        for k in ("hc_head_fn", "hc_head_base", "hc_head_scale"):
            getattr(self, k).copy_(getattr(target, k))
        self.norm.weight.copy_(target.norm.weight)
        eye = torch.eye(self.c.hidden_size)
        self.h_proj.weight.copy_(eye)
        self.e_proj.weight.copy_(eye)

    def inputs(self, target, x, ids):
        """Streams x [..., 4, D] of positions and the ids [...] behind them -> the layer's streams."""
        eps, quant = self.c.rms_norm_eps, self.sw.quant
        e = F.embedding(ids, target.embed.weight.detach().to(self.dtype))
        _, e = fused.norm(e, self.enorm.weight, eps, quant)
        _, h = fused.norm(x, self.hnorm.weight, eps, quant)
        return self.h_proj(h) + self.e_proj(e).unsqueeze(-2)

    def logits(self, target, x):
        """Logits [..., V] float32 of output streams."""
        u, _ = fused.norm(self.collapse(x), self.norm.weight, self.c.rms_norm_eps, False)
        return F.linear(u, target.head.weight.detach().to(u.dtype)).float()

    def rows(self, xq, cos, sin):
        return self.block.attn.project_kv(xq, cos, sin)

    def extend(self, target, x, ids):
        """All positions at once: x [B, T, 4, D] the target's streams, ids [B, T] the next tokens.

        Returns (output streams [B, T, 4, D], KV rows [B, T, C]).
        """
        kept, T = [], x.shape[1]
        pad = -T % self.c.sliding_window
        x, ids = F.pad(x, (0, 0, 0, 0, 0, pad)), F.pad(ids, (0, pad), value=2)

        def attend(u, uq):
            kept.append(uq)
            return self.block.attn(u, uq)

        y = self.block.site("attn", self.inputs(target, x, ids), attend)
        y = self.block.site("ffn", y, lambda u, uq: self.block.ffn(u, uq, None))
        cos, sin = num.rope_table(self.c, False, torch.arange(x.shape[1], device=x.device))
        return y[:, :T], self.rows(kept[0], cos, sin)[:, :T]

    def step(self, target, x, ids, positions, context, ok):
        """One draft step: x [N, 4, D] streams of the step before, ids [N] the drafts, at positions [N].

        context [N, K, C] rows of the positions before, ok [N, K] which of them exist. Returns (streams, own rows [N, C]).
        """
        kept = []
        cos, sin = num.rope_table(self.c, False, torch.arange(int(positions.max()) + 1, device=x.device))
        cos, sin = cos[positions][:, None], sin[positions][:, None]

        def attend(u, uq):
            kept.append(uq)
            return self.block.attn.block(u, uq, context, ok, cos, sin)

        y = self.block.site("attn", self.inputs(target, x[:, None], ids[:, None]), attend)
        y = self.block.site("ffn", y, lambda u, uq: self.block.ffn(u, uq, None))
        return y[:, 0], self.rows(kept[0], cos, sin)[:, 0]

    def drafts(self, target, y, rows, first, pick):
        """STEPS steps from output streams y [B, T, 4, D] and rows [B, T, C] of true positions.

        first [B, A]: the drafts' first inputs' positions i; token i + 2 is step 1's draft. pick(k, logits [N, V]) gives the
        token that goes on (the draft, or the true one when training). Returns (logits [STEPS, N, V], tokens [N, STEPS]),
        N = B * A.
        """
        W, (B, A) = self.c.sliding_window, first.shape
        T, N, device = y.shape[1], B * A, y.device
        at = first.flatten()
        b = torch.arange(B, device=device).repeat_interleave(A)
        where = at[:, None] + torch.arange(2 - W, 1, device=device)  # W - 1 rows up to position i
        ok = where >= 0
        context = rows.flatten(0, 1).index_select(0, (b[:, None] * T + where.clamp(0, T - 1)).flatten()).view(N, W - 1, -1)
        x, out, ids = y[b, at], [], []
        for k in range(STEPS):
            if k:
                x, row = self.step(target, x, ids[-1], at + k, context, ok)
                context = torch.cat([context[:, 1:], row[:, None]], 1)
                ok = torch.cat([ok[:, 1:], ok.new_ones(N, 1)], 1)
            out.append(self.logits(target, x))
            ids.append(pick(k, out[-1]))
        return torch.stack(out), torch.stack(ids, 1)
