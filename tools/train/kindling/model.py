"""The target model: embedding, layers, collapse of the streams, output head."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from . import fused
from .layers import Block, HeadCollapse, Switches


class Target(HeadCollapse):
    """forward(ids [B, T]) -> logits [B, T, V] and the draft features [B, T, 3 D].

    T is padded to a multiple of the window inside. `dtype` is what activations and products use: bfloat16 on the card,
    float32 in tests.
    """

    def __init__(self, c, dtype=torch.bfloat16):
        nn.Module.__init__(self)
        self.c, self.dtype, self.sw = c, dtype, Switches()
        self.embed = nn.Embedding(c.vocab_size, c.hidden_size)
        nn.init.normal_(self.embed.weight, std=0.5)
        self.layers = nn.ModuleList(
            Block(c, c.compress_ratios[l], l < c.num_hash_layers, self.sw) for l in range(c.num_hidden_layers)
        )
        self.add_head(c)
        self.head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.5 * c.hidden_size**-0.5)

    def streams(self, ids):
        """Embedded tokens as hc_mult equal streams [..., 4, D]."""
        x = F.embedding(ids, self.embed.weight.to(self.dtype))
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.c.hc_mult, -1).contiguous()

    def body(self, ids):
        """(normed output [B, T, D], draft features [B, T, 3 D] or None)."""
        y, h, _ = self.trunk(ids)
        return y, h

    def trunk(self, ids):
        """body's two, and the streams [B, T, 4, D] in front of the collapse."""
        T = ids.shape[1]
        pad = -T % self.c.sliding_window
        ids = F.pad(ids, (0, pad), value=2)
        x, taps = self.streams(ids), []
        for l, block in enumerate(self.layers):
            x = block(x, ids)
            if l in getattr(self.c, "dspark_target_layer_ids", ()):
                taps.append(x.float().mean(-2).to(x.dtype))
        y, _ = fused.norm(self.collapse(x), self.norm.weight, self.c.rms_norm_eps, False)
        return y[:, :T], torch.cat(taps, -1)[:, :T] if taps else None, x[:, :T]

    def logits(self, y):
        return F.linear(y, self.head.weight.to(y.dtype))

    def forward(self, ids):
        y, h = self.body(ids)
        return self.logits(y), h

    def loss(self, ids, weights):
        """Training loss of rows ids [B, T+1] with weights [B, T+1] on the targets; returns (loss, share of right answers)."""
        self.sw.losses.clear()
        self.sw.loads.clear()
        y, _ = self.body(ids[:, :-1])
        return fused.token_loss(self.logits(y).flatten(0, 1), ids[:, 1:].flatten(), weights[:, 1:].flatten())

    @torch.no_grad()
    def balance(self, rate):
        """Loss-free balancing: nudge each expert's choice bias against its load."""
        for gate, load in self.sw.loads:
            gate.bias += rate * torch.sign(load.mean() - load)
        self.sw.loads.clear()
