"""Sinkhorn normalisation of the 4x4 stream-mixing matrices (hyper-connections of DeepSeek-V4).

    A <- softmax over columns of each row, + eps;  A <- A / (column sums + eps)
    19 times: A <- A / (row sums + eps);  A <- A / (column sums + eps)

`sinkhorn_reference` is that in PyTorch. On a GPU 80 tiny kernels per call would cost more than the model, so
`sinkhorn` runs one Triton kernel forward and one backward. Every step y = x / (s + eps) is undone from its result and
its divisor, x = y (s + eps), so the backward pass needs the final matrix and the divisors, not 40 intermediates.
"""

import torch

EPS = 1e-6

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of PyTorch come without it
    triton = None


def sinkhorn_reference(a, iters):
    """a [..., 4, 4] logits (source row j, destination column k) -> doubly normalised matrix, float32."""
    a = torch.softmax(a.float(), -1) + EPS
    a = a / (a.sum(-2, keepdim=True) + EPS)
    for _ in range(iters - 1):
        a = a / (a.sum(-1, keepdim=True) + EPS)
        a = a / (a.sum(-2, keepdim=True) + EPS)
    return a


if triton is not None:

    @triton.jit
    def _forward(a_ptr, y_ptr, d_ptr, n, ITERS: tl.constexpr, BLOCK: tl.constexpr, EPS_: tl.constexpr):
        """Rows of 16 logits -> rows of 16 results; divisors of every step to d [2 * ITERS, 4, n]."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = i < n
        e = tl.arange(0, 16)
        x = tl.load(a_ptr + i[:, None] * 16 + e[None, :], mask=ok[:, None], other=0.0)
        x = tl.reshape(x, (BLOCK, 4, 4))
        k = tl.arange(0, 4)
        x = tl.exp(x - tl.max(x, 2)[:, :, None])
        x = x / tl.sum(x, 2)[:, :, None] + EPS_
        for step in tl.static_range(2 * ITERS - 1):
            if step % 2 == 0:
                s = tl.sum(x, 1) + EPS_
                x = x / s[:, None, :]
            else:
                s = tl.sum(x, 2) + EPS_
                x = x / s[:, :, None]
            tl.store(d_ptr + (step * 4 + k[None, :]) * n + i[:, None], s, mask=ok[:, None])
        tl.store(y_ptr + i[:, None] * 16 + e[None, :], tl.reshape(x, (BLOCK, 16)), mask=ok[:, None])

    @triton.jit
    def _backward(g_ptr, y_ptr, d_ptr, o_ptr, n, ITERS: tl.constexpr, BLOCK: tl.constexpr, EPS_: tl.constexpr):
        """Gradient of the result -> gradient of the logits, walking the steps backwards."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = i < n
        e = tl.arange(0, 16)
        k = tl.arange(0, 4)
        x = tl.reshape(tl.load(y_ptr + i[:, None] * 16 + e[None, :], mask=ok[:, None], other=0.25), (BLOCK, 4, 4))
        g = tl.reshape(tl.load(g_ptr + i[:, None] * 16 + e[None, :], mask=ok[:, None], other=0.0), (BLOCK, 4, 4))
        for r in tl.static_range(2 * ITERS - 1):
            step = 2 * ITERS - 2 - r
            s = tl.load(d_ptr + (step * 4 + k[None, :]) * n + i[:, None], mask=ok[:, None], other=1.0)
            if step % 2 == 0:
                g = (g - tl.sum(g * x, 1)[:, None, :]) / s[:, None, :]
                x = x * s[:, None, :]
            else:
                g = (g - tl.sum(g * x, 2)[:, :, None]) / s[:, :, None]
                x = x * s[:, :, None]
        p = x - EPS_  # the softmax
        g = p * (g - tl.sum(g * p, 2)[:, :, None])
        tl.store(o_ptr + i[:, None] * 16 + e[None, :], tl.reshape(g, (BLOCK, 16)), mask=ok[:, None])


class _Sinkhorn(torch.autograd.Function):
    BLOCK = 64

    @staticmethod
    def forward(ctx, a, iters):
        a = a.contiguous()
        n = a.numel() // 16
        y = torch.empty_like(a)
        d = torch.empty(2 * iters - 1, 4, n, dtype=torch.float32, device=a.device)
        _forward[(triton.cdiv(n, _Sinkhorn.BLOCK),)](
            a, y, d, n, ITERS=iters, BLOCK=_Sinkhorn.BLOCK, EPS_=EPS, num_warps=2
        )
        ctx.save_for_backward(y, d)
        ctx.iters = iters
        return y

    @staticmethod
    def backward(ctx, g):
        y, d = ctx.saved_tensors
        n = y.numel() // 16
        out = torch.empty_like(y)
        _backward[(triton.cdiv(n, _Sinkhorn.BLOCK),)](
            g.contiguous(), y, d, out, n, ITERS=ctx.iters, BLOCK=_Sinkhorn.BLOCK, EPS_=EPS, num_warps=2
        )
        return out, None


def sinkhorn(a, iters):
    """a [..., 4, 4] float32; the Triton kernel on a GPU, the reference elsewhere."""
    if triton is not None and a.is_cuda:
        return _Sinkhorn.apply(a, iters)
    return sinkhorn_reference(a, iters)
