"""Elementwise and reducing pieces of the model, written as plain functions that torch.compile can fuse.

Matrix products stay outside, so a compiled piece reads and writes each tensor once and nothing else. Every function
works eagerly too (CPU, evaluation); `compile_all(True)` turns the compiled versions on. Shapes: B batch, T tokens,
H heads, C head width, D model width, n compressed rows.
"""

import functools

import torch
import torch.nn.functional as F

from . import numerics as num

_STATE = {"on": False}


def fused(fn):
    compiled = []

    @functools.wraps(fn)
    def call(*args):
        if not _STATE["on"]:
            return fn(*args)
        if not compiled:
            compiled.append(torch.compile(fn, dynamic=False))
        return compiled[0](*args)

    return call


def compile_all(on):
    """Use compiled pieces from now on, or eager ones (evaluation, where every batch has another shape)."""
    _STATE["on"] = on
    if on:
        torch._dynamo.config.recompile_limit = 64


def rms(x, w, eps):
    """RMSNorm in float32, one rounding at the end; w may be None."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y if w is None else y * w.float()).to(x.dtype)


def rotate(x, cos, sin):
    """Interleaved-pair rotation of the last 2 * cos.shape[-1] dims; cos, sin broadcast against x[..., pairs]."""
    d = 2 * cos.shape[-1]
    a, b = x[..., -d::2].float(), x[..., 1 - d :: 2].float()
    r = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-d], r.to(x.dtype)], -1)


@fused
def norm(x, w, eps, quant):
    """(normed, the same as an FP8 linear sees it)."""
    y = rms(x, w, eps)
    return y, (num.act_qdq(y) if quant else y)


@fused
def act(x, quant):
    return num.act_qdq(x) if quant else x


@fused
def hc_controls(x, z, base, scale, weight, eps, quant):
    """Hyper-connection in front of a sublayer.

    x [..., 4, D] streams, z [..., 24] = fn . flatten(x) -> (u normed, its FP8 view, post [..., 4], logits of comb [..., 4, 4]).
    """
    f = x.float()
    z = z.float() * torch.rsqrt(f.square().mean((-2, -1)) + eps)[..., None]
    pre = torch.sigmoid(z[..., :4] * scale[0] + base[:4]) + 1e-6
    post = 2 * torch.sigmoid(z[..., 4:8] * scale[1] + base[4:8])
    logits = (z[..., 8:] * scale[2] + base[8:]).unflatten(-1, (4, 4))
    u = (pre[..., None] * f).sum(-2).to(x.dtype)
    y = rms(u, weight, eps)
    return y, (num.act_qdq(y) if quant else y), post, logits


@fused
def hc_expand(x, y, post, comb):
    """x'[k] = post[k] y + sum_j comb[j][k] x[j]."""
    f = x.float()
    out = post[..., None] * y.float()[..., None, :]
    for j in range(4):
        out = out + comb[..., j, :, None] * f[..., j, None, :]
    return out.to(x.dtype)


@fused
def hc_collapse(x, z, base, scale, eps):
    """Final collapse of the streams: x [..., 4, D], z [..., 4] -> [..., D]."""
    f = x.float()
    z = z.float() * torch.rsqrt(f.square().mean((-2, -1)) + eps)[..., None]
    pre = torch.sigmoid(z * scale + base) + 1e-6
    return (pre[..., None] * f).sum(-2).to(x.dtype)


@fused
def prepare_q(q, cos, sin, eps):
    """q [..., H, C]: weightless RMS per head, rotation; cos, sin [T, 1, pairs] or broadcastable."""
    return rotate(rms(q, None, eps), cos, sin)


@fused
def prepare_kv(kv, w, cos, sin, eps, quant):
    y = rotate(rms(kv, w, eps), cos, sin)
    return num.kv_qdq(y, 2 * cos.shape[-1]) if quant else y


@fused
def unrotate(o, cos, sin):
    return rotate(o, cos, -sin)


@fused
def pool(kv, score, ape, w, cos, sin, m, eps, quant, dtype):
    """Compressed rows before the index rows' Hadamard step: kv, score [B, T, c*d] float32, T a multiple of m -> [B, T/m, d].

    m = 4 overlaps: a row pools the second half-channels of its own four tokens and the first half-channels of the four
    tokens before. `quant` rounds the row as the cache stores it.
    """
    kv, score = kv.float(), score.float()
    kv = kv.unflatten(1, (-1, m))
    score = score.unflatten(1, (-1, m)) + ape
    if m == 4:
        d = kv.shape[-1] // 2
        before_kv = F.pad(kv[:, :-1, :, :d], (0, 0, 0, 0, 1, 0))
        before_score = F.pad(score[:, :-1, :, :d], (0, 0, 0, 0, 1, 0), value=-1e30)
        kv, score = torch.cat([before_kv, kv[..., d:]], 2), torch.cat([before_score, score[..., d:]], 2)
    y = (torch.softmax(score, 2) * kv).sum(2).to(dtype)
    y = rotate(rms(y, w, eps), cos, sin)
    return num.kv_qdq(y, 2 * cos.shape[-1]) if quant else y


@fused
def attention_weights(s1, s2, sink, scale, window, m, allowed):
    """Softmax over window keys and compressed rows with a sink in the denominator.

    s1 [B, T, H, 2W]: scores against the W tokens of the previous and of the own block; s2 [B, T, H, n] against compressed
    rows or None; allowed [B, T, n] bool or None -> weights of both in the scores' dtype.
    """
    t = torch.arange(s1.shape[1], device=s1.device)
    back = (t % window)[:, None] + window - torch.arange(2 * window, device=s1.device)[None]  # distance to the key
    ok = (back >= 0) & (back < window) & (back <= t[:, None])
    a = (s1.float() * scale).masked_fill(~ok[None, :, None], -1e30)
    top = torch.maximum(a.amax(-1, keepdim=True), sink[:, None])
    if s2 is not None:
        seen = torch.arange(s2.shape[-1], device=s1.device)[None] < (t[:, None] + 1) // m
        seen = seen[None] if allowed is None else seen[None] & allowed
        b = (s2.float() * scale).masked_fill(~seen[:, :, None], -1e30)
        top = torch.maximum(top, b.amax(-1, keepdim=True))
        eb = torch.exp(b - top)
    ea = torch.exp(a - top)
    den = ea.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top)
    if s2 is None:
        return (ea / den).to(s1.dtype), None
    den = den + eb.sum(-1, keepdim=True)
    return (ea / den).to(s1.dtype), (eb / den).to(s2.dtype)


@fused
def block_weights(s, sink, scale, ok):
    """Softmax with sink for draft blocks: s [N, G, H, K], ok [N, K] bool -> weights in s's dtype."""
    a = (s.float() * scale).masked_fill(~ok[:, None, None], -1e30)
    top = torch.maximum(a.amax(-1, keepdim=True), sink[:, None])
    e = torch.exp(a - top)
    return (e / (e.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top))).to(s.dtype)


@fused
def index_target(s1, s2, sink, scale, window, m, t):
    """Head-mean attention over compressed rows at positions t [S], normalised to sum 1 over them.

    s1 [B, S, H, 2W], s2 [B, S, H, n] -> [B, S, n]: what the index scores should predict.
    """
    back = (t % window)[:, None] + window - torch.arange(2 * window, device=s1.device)[None]
    ok = (back >= 0) & (back < window) & (back <= t[:, None])
    a = (s1.float() * scale).masked_fill(~ok[None, :, None], -1e30)
    seen = torch.arange(s2.shape[-1], device=s1.device)[None] < (t[:, None] + 1) // m
    b = (s2.float() * scale).masked_fill(~seen[None, :, None], -1e30)
    top = torch.maximum(torch.maximum(a.amax(-1, keepdim=True), sink[:, None]), b.amax(-1, keepdim=True))
    den = (
        torch.exp(a - top).sum(-1, keepdim=True)
        + torch.exp(b - top).sum(-1, keepdim=True)
        + torch.exp(sink[:, None] - top)
    )
    p = (torch.exp(b - top) / den).sum(2)
    return p / (p.sum(-1, keepdim=True) + 1e-20)


@fused
def index_reduce(dots, w):
    """sum_h w[h] relu(dots[h]): dots [..., h, n], w [..., h] -> [..., n] float32."""
    return (torch.relu(dots.float()) * w.float()[..., None]).sum(-2)


@fused
def swiglu(a, b, w, limit, inner, quant, dtype):
    """Expert hidden rows, all experts side by side: a, b [N, (E+1) I], w [N, E+1] routing weights (0 = not chosen)."""
    a, b = a.float().clamp(max=limit), b.float().clamp(-limit, limit)
    h = ((F.silu(a) * b).unflatten(-1, (-1, inner)) * w[..., None]).flatten(-2).to(dtype)
    return num.act_qdq(h) if quant else h


@fused
def token_loss(logits, targets, weights):
    """Weighted mean cross-entropy and the weighted count of right argmaxes; logits [N, V]."""
    x = logits.float()
    ce = torch.logsumexp(x, -1) - x.gather(-1, targets[:, None])[:, 0]
    hit = (x.argmax(-1) == targets).float()
    total = weights.sum().clamp(min=1)
    return (ce * weights).sum() / total, (hit * (weights > 0.5)).sum() / (weights > 0.5).float().sum().clamp(min=1)
