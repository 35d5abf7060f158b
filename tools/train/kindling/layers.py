"""Layers of DeepSeek-V4 for training: hyper-connections, attention with compressed rows, indexer, mixture of experts.

Parameter names are the checkpoint's, except that routed experts are stacked (`ffn.experts.w1` [E, I, D]; `checkpoint`
splits them). `Linear` knows its storage class: "fp8" and "fp4" weights are rounded to their grid when the model's
`quant` switch is on. Everything runs on whole sequences; `decode` has the cached one-token form.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint as recompute

from . import fused, numerics as num
from .sinkhorn import sinkhorn


class Switches:
    """What one forward pass simulates or collects; shared by all modules of a model."""

    def __init__(self):
        self.quant = False  # FP8/FP4 weights and activations, FP8 rows, FP4 index rows
        self.weights_ready = False  # weights are on their grid already: skip rounding them
        self.select = False  # ratio-4 layers attend only to the indexer's choice
        self.index_loss = 0.0  # share of query positions at which the indexer is trained (0 = not)
        self.losses = []  # index losses of the pass
        self.loads = []  # (gate, share of tokens per expert) of the pass


class Linear(nn.Module):
    """y = W x without bias; weight [out, in]."""

    def __init__(self, inputs, outputs, switches, kind="fp8", gain=0.5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * gain * inputs**-0.5)
        self.kind, self.sw = kind, switches

    def value(self, dtype):
        w = self.weight
        if self.kind and self.sw.quant and not self.sw.weights_ready:
            w = num.ste(w, num.fp8_weight_qdq(w.detach()))
        return w.to(dtype)

    def forward(self, x):
        return F.linear(x, self.value(x.dtype))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class Compressor(nn.Module):
    """Pools m tokens into one row of width d (see fused.pool); parameters in float32 products."""

    def __init__(self, c, m, d, switches):
        super().__init__()
        k = 2 if m == 4 else 1
        self.m, self.d, self.c, self.sw = m, d, c, switches
        self.wkv = Linear(c.hidden_size, k * d, switches, kind=None)
        self.wgate = Linear(c.hidden_size, k * d, switches, kind=None)
        self.ape = nn.Parameter(torch.randn(m, k * d) * 0.02)
        self.norm = Norm(d)

    def forward(self, x, index=False):
        """x [B, T, D] -> rows [B, T // m, d] in x's dtype."""
        n = x.shape[1] // self.m
        x = x[:, : n * self.m]
        cos, sin = num.rope_table(self.c, True, torch.arange(n, device=x.device) * self.m)
        kv, gate = self.wkv(x), self.wgate(x)
        y = fused.pool(
            kv,
            gate,
            self.ape,
            self.norm.weight,
            cos,
            sin,
            self.m,
            self.c.rms_norm_eps,
            self.sw.quant and not index,
            x.dtype,
        )
        return index_rows(y) if index and self.sw.quant else y


def index_rows(x):
    """Hadamard and FP4 rounding of index queries and rows, straight-through."""
    y = x @ num.hadamard_matrix(x.shape[-1], x.device, x.dtype)
    return num.ste(y, num.qdq(y, 32, num.E2M1, 6 * 2.0**-120))


class Indexer(nn.Module):
    """Scores compressed rows cheaply; its choice of index_topk rows is what a ratio-4 layer attends to.

    It learns from a KL divergence alone: its inputs are detached, its target is the layer's own attention.
    """

    CHUNK = 1024

    def __init__(self, c, switches):
        super().__init__()
        self.c, self.sw = c, switches
        self.heads, self.width = c.index_n_heads, c.index_head_dim
        self.wq_b = Linear(c.q_lora_rank, self.heads * self.width, switches)
        self.weights_proj = Linear(c.hidden_size, self.heads, switches, kind=None)
        self.compressor = Compressor(c, 4, self.width, switches)

    def queries(self, x, qr_q, positions):
        """(index queries [B, S, heads, width], head weights [B, S, heads]) at the given positions."""
        q = self.wq_b(qr_q).unflatten(-1, (self.heads, self.width))
        cos, sin = num.rope_table(self.c, True, positions)
        q = fused.unrotate(q, cos[:, None], -sin[:, None])
        if self.sw.quant:
            q = index_rows(q)
        return q, self.weights_proj(x) * (self.width * self.heads) ** -0.5

    @staticmethod
    def score(q, w, rows):
        """q [B, S, heads, d], w [B, S, heads], rows [B, n, d] -> [B, S, n] float32."""
        dots = (q.flatten(1, 2) @ rows.transpose(1, 2)).unflatten(1, q.shape[1:3])
        return fused.index_reduce(dots, w)

    def select(self, x, qr_q, rows, positions):
        """Rows that each position may attend to: bool [B, T, n], at most index_topk visible ones per position."""
        out, n, k = [], rows.shape[1], self.c.index_topk
        for s in range(0, x.shape[1], self.CHUNK):
            p = positions[s : s + self.CHUNK]
            score = self.score(*self.queries(x[:, s : s + self.CHUNK], qr_q[:, s : s + self.CHUNK], p), rows)
            hidden = torch.arange(n, device=x.device)[None] >= ((p + 1) // 4)[:, None]
            score = score.masked_fill(hidden[None], float("-inf"))
            if n > k:
                score = score >= score.topk(k, -1).values[..., -1:]
                out.append(score & ~hidden[None])
            else:
                out.append((~hidden[None]).expand(x.shape[0], -1, -1))
        return torch.cat(out, 1)

    def loss(self, x, qr_q, rows, target, positions):
        """KL(target || softmax(scores)) at the given positions; x, qr_q [B, S, .], target [B, S, n]."""

        def part(x, qr_q, rows, target, p):
            score = self.score(*self.queries(x, qr_q, p), rows)
            seen = torch.arange(rows.shape[1], device=x.device)[None] < ((p + 1) // 4)[:, None]
            logp = torch.log_softmax(score.masked_fill(~seen[None], -1e30), -1)
            return (target * (torch.log(target + 1e-9) - logp)).sum()

        total = x.new_zeros((), dtype=torch.float32)
        for s in range(0, x.shape[1], self.CHUNK):
            e = s + self.CHUNK
            total = total + recompute(
                part, x[:, s:e], qr_q[:, s:e], rows, target[:, s:e], positions[s:e], use_reentrant=False
            )
        return total / (x.shape[0] * x.shape[1])


class Attention(nn.Module):
    """Shared-KV attention over a window, compressed rows (m = 4: chosen by the indexer, m = 128: all) and a sink."""

    def __init__(self, c, m, switches):
        super().__init__()
        H, C, Q, G, O = c.num_attention_heads, c.head_dim, c.q_lora_rank, c.o_groups, c.o_lora_rank
        self.c, self.m, self.sw = c, m, switches
        self.wq_a = Linear(c.hidden_size, Q, switches)
        self.q_norm = Norm(Q)
        self.wq_b = Linear(Q, H * C, switches)
        self.wkv = Linear(c.hidden_size, C, switches)
        self.kv_norm = Norm(C)
        self.attn_sink = nn.Parameter(torch.zeros(H))
        self.wo_a = Linear(H * C // G, G * O, switches)
        self.wo_b = Linear(G * O, c.hidden_size, switches, gain=0.3)
        if m:
            self.compressor = Compressor(c, m, C, switches)
        if m == 4:
            self.indexer = Indexer(c, switches)

    def project_q(self, xq, cos, sin):
        """(q [..., H, C], the index queries' input); cos, sin [..., pairs] at the rows' positions."""
        c = self.c
        _, qr_q = fused.norm(self.wq_a(xq), self.q_norm.weight, c.rms_norm_eps, self.sw.quant)
        q = self.wq_b(qr_q).unflatten(-1, (c.num_attention_heads, c.head_dim))
        return fused.prepare_q(q, cos[..., None, :], sin[..., None, :], c.rms_norm_eps), qr_q

    def project_kv(self, xq, cos, sin):
        return fused.prepare_kv(self.wkv(xq), self.kv_norm.weight, cos, sin, self.c.rms_norm_eps, self.sw.quant)

    def output(self, o, cos, sin):
        """o [..., H, C] -> [..., D]."""
        c = self.c
        o = fused.unrotate(o, cos[..., None, :], sin[..., None, :])
        if c.o_groups == 1:
            z = self.wo_a(o.flatten(-2))
        else:
            o = o.flatten(-2).unflatten(-1, (c.o_groups, -1))
            wa = self.wo_a.value(o.dtype).unflatten(0, (c.o_groups, -1))
            z = torch.einsum("...gd,grd->...gr", o, wa).flatten(-2)
        return self.wo_b(fused.act(z, self.sw.quant))

    def forward(self, x, xq):
        """x [B, T, D] normed, xq the same as FP8 linears see it; T a multiple of the window."""
        c, sw, W = self.c, self.sw, self.c.sliding_window
        B, T, _ = x.shape
        pos = torch.arange(T, device=x.device)
        cos, sin = num.rope_table(c, self.m != 0, pos)
        q, qr_q = self.project_q(xq, cos, sin)
        kv = self.project_kv(xq, cos, sin)
        H, C, scale = c.num_attention_heads, c.head_dim, c.head_dim**-0.5
        own = kv.reshape(B, T // W, W, C)
        keys = torch.cat([F.pad(own[:, :-1], (0, 0, 0, 0, 1, 0)), own], 2).flatten(0, 1)  # [B nb, 2W, C]
        s1 = (q.reshape(B * (T // W), W * H, C) @ keys.transpose(1, 2)).view(B, T, H, 2 * W)
        s2 = rows = allowed = None
        if self.m and T >= self.m:
            rows = self.compressor(x)
            s2 = (q.reshape(B, T * H, C) @ rows.transpose(1, 2)).view(B, T, H, -1)
        if self.m == 4 and s2 is not None and (sw.select or sw.index_loss):
            xd, qd = x.detach(), qr_q.detach()
            irows = self.indexer.compressor(xd, index=True)
            if sw.index_loss:
                at = torch.randperm(T, device=x.device)[: max(1, int(T * sw.index_loss))].sort().values
                with torch.no_grad():
                    target = fused.index_target(s1[:, at], s2[:, at], self.attn_sink, scale, W, 4, at)
                sw.losses.append(self.indexer.loss(xd[:, at], qd[:, at], irows, target, at))
            if sw.select:
                with torch.no_grad():
                    allowed = self.indexer.select(xd, qd, irows.detach(), pos)
        p1, p2 = fused.attention_weights(s1, s2, self.attn_sink, scale, W, self.m, allowed)
        o = (p1.view(B * (T // W), W * H, -1) @ keys).view(B, T, H, C)
        if p2 is not None:
            o = o + (p2.view(B, T * H, -1) @ rows).view(B, T, H, C)
        return self.output(o, cos, sin)

    def block(self, x, xq, context, ok, cos, sin):
        """Draft form: every row of a block sees its context rows and the whole block.

        x [N, G, D]; context [N, K, C] rows before the block, ok [N, K]; cos, sin [N, G, pairs].
        """
        q, _ = self.project_q(xq, cos, sin)
        keys = torch.cat([context, self.project_kv(xq, cos, sin)], 1)
        N, G, H, C = q.shape
        s = (q.flatten(1, 2) @ keys.transpose(1, 2)).view(N, G, H, -1)
        ok = torch.cat([ok, ok.new_ones(N, G)], 1)
        p = fused.block_weights(s, self.attn_sink, C**-0.5, ok)
        return self.output((p.flatten(1, 2) @ keys).view(N, G, H, C), cos, sin)


class Experts(nn.Module):
    """Routed experts, stacked: w1, w3 [E, I, D], w2 [E, D, I]."""

    def __init__(self, c):
        super().__init__()
        E, I, D = c.n_routed_experts, c.moe_intermediate_size, c.hidden_size
        self.w1 = nn.Parameter(torch.randn(E, I, D) * 0.5 * D**-0.5)
        self.w3 = nn.Parameter(torch.randn(E, I, D) * 0.5 * D**-0.5)
        self.w2 = nn.Parameter(torch.randn(E, D, I) * 0.3 * I**-0.5)


class Gate(nn.Module):
    def __init__(self, c, hashed):
        super().__init__()
        E, k = c.n_routed_experts, c.num_experts_per_tok
        self.weight = nn.Parameter(torch.randn(E, c.hidden_size) * 0.02)
        if hashed:
            g = torch.Generator().manual_seed(4)
            self.register_buffer("tid2eid", torch.rand(c.vocab_size, E, generator=g).argsort(1)[:, :k].contiguous())
        else:
            self.register_buffer("bias", torch.zeros(E))


class MoE(nn.Module):
    """sqrt(softplus) routing to k experts plus a shared one.

    With 8 experts of width 256 it is cheaper to run all of them as one wide product than to sort tokens, so the choice
    is a factor on the hidden rows, zero for experts not chosen.
    """

    def __init__(self, c, hashed, switches):
        super().__init__()
        self.c, self.sw, self.hashed = c, switches, hashed
        I, D = c.moe_intermediate_size, c.hidden_size
        self.gate = Gate(c, hashed)
        self.experts = Experts(c)
        self.shared_experts = nn.ModuleDict(
            {"w1": Linear(D, I, switches), "w3": Linear(D, I, switches), "w2": Linear(I, D, switches, gain=0.3)}
        )

    def routing(self, x, tokens):
        """Weights [N, E] float32, zero for experts not chosen; x [N, D], tokens [N] (needed in hash layers only)."""
        c = self.c
        score = F.softplus(F.linear(x.float(), self.gate.weight.float())).sqrt()
        if self.hashed:
            ids = self.gate.tid2eid[tokens]
        else:
            ids = (score + self.gate.bias).topk(c.num_experts_per_tok, -1).indices
            if self.training:
                hot = torch.zeros_like(score).scatter_(-1, ids, 1.0)
                self.sw.loads.append((self.gate, hot.mean(0).detach()))
        w = score.gather(-1, ids)
        w = w / w.sum(-1, keepdim=True) * c.routed_scaling_factor
        return torch.zeros_like(score).scatter(-1, ids, w)

    def _wide(self, name, dtype):
        """All experts' matrices of that name side by side, the shared one last."""
        w = getattr(self.experts, name)
        if self.sw.quant and not self.sw.weights_ready:
            w = num.ste(w, num.fp4_weight_qdq(w.detach()))
        shared = self.shared_experts[name].value(dtype)
        if name == "w2":
            return torch.cat([w.to(dtype).transpose(0, 1).flatten(1), shared], 1)  # [D, (E+1) I]
        return torch.cat([w.to(dtype).flatten(0, 1), shared], 0)  # [(E+1) I, D]

    def forward(self, x, xq, tokens):
        shape = x.shape
        x, xq = x.flatten(0, -2), xq.flatten(0, -2)
        w = self.routing(x, None if tokens is None else tokens.flatten())
        w = torch.cat([w, torch.ones_like(w[:, :1])], -1)
        a, b = F.linear(xq, self._wide("w1", x.dtype)), F.linear(xq, self._wide("w3", x.dtype))
        h = fused.swiglu(a, b, w, self.c.swiglu_limit, self.c.moe_intermediate_size, self.sw.quant, x.dtype)
        return F.linear(h, self._wide("w2", x.dtype)).view(shape)


def hc_init(fn, base, scale, streams=4):
    """Start as a plain residual network: mean of the streams in, the same output to all, streams kept apart."""
    nn.init.normal_(fn, std=0.01)
    with torch.no_grad():
        base.zero_()
        base[:streams] = -1.1
        if len(base) > streams:
            base[2 * streams :] = (torch.eye(streams) * 4).flatten()
        scale.fill_(0.1)


class Block(nn.Module):
    """One layer: attention and experts, each between a hyper-connection's collapse and expansion."""

    def __init__(self, c, m, hashed, switches):
        super().__init__()
        self.c, self.sw, n = c, switches, c.hc_mult
        self.attn = Attention(c, m, switches)
        self.ffn = MoE(c, hashed, switches)
        self.attn_norm, self.ffn_norm = Norm(c.hidden_size), Norm(c.hidden_size)
        for site in ("attn", "ffn"):
            fn, base, scale = (
                nn.Parameter(torch.empty((2 + n) * n, n * c.hidden_size)),
                nn.Parameter(torch.empty((2 + n) * n)),
                nn.Parameter(torch.empty(3)),
            )
            hc_init(fn, base, scale)
            for k, v in (("fn", fn), ("base", base), ("scale", scale)):
                setattr(self, f"hc_{site}_{k}", v)

    def site(self, name, x, f):
        """Run sublayer f between the collapse and the expansion of the streams x [..., 4, D]."""
        fn, base, scale = (getattr(self, f"hc_{name}_{k}") for k in ("fn", "base", "scale"))
        z = F.linear(x.flatten(-2), fn.to(x.dtype))
        weight = getattr(self, f"{name}_norm").weight
        u, uq, post, logits = fused.hc_controls(x, z, base, scale, weight, self.c.rms_norm_eps, self.sw.quant)
        comb = sinkhorn(logits, self.c.hc_sinkhorn_iters)
        return fused.hc_expand(x, f(u, uq), post, comb)

    def forward(self, x, tokens):
        x = self.site("attn", x, self.attn)
        return self.site("ffn", x, lambda u, uq: self.ffn(u, uq, tokens))

    def draft(self, x, context, ok, cos, sin):
        x = self.site("attn", x, lambda u, uq: self.attn.block(u, uq, context, ok, cos, sin))
        return self.site("ffn", x, lambda u, uq: self.ffn(u, uq, None))


class HeadCollapse(nn.Module):
    """Mixin with the parameters and the collapse in front of the output norm."""

    def add_head(self, c):
        self.hc_head_fn = nn.Parameter(torch.empty(c.hc_mult, c.hc_mult * c.hidden_size))
        self.hc_head_base, self.hc_head_scale = nn.Parameter(torch.empty(c.hc_mult)), nn.Parameter(torch.empty(1))
        hc_init(self.hc_head_fn, self.hc_head_base, self.hc_head_scale)
        self.norm = Norm(c.hidden_size)

    def collapse(self, x):
        z = F.linear(x.flatten(-2), self.hc_head_fn.to(x.dtype))
        return fused.hc_collapse(x, z, self.hc_head_base, self.hc_head_scale, 1e-6)
