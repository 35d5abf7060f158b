"""Muon for matrices inside the layers, AdamW for everything else, and the schedule by elapsed time.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by its nearest semi-orthogonal matrix, through five
Newton-Schulz iterations; updates are scaled to a root mean square of 0.2 per element (Liu et al., 2025), so both
optimisers share one learning rate. Matrices of equal shape are stacked and iterated together: one batched product
instead of dozens of small ones.
"""

import torch


def orthogonalize(g, steps=5):
    """Semi-orthogonal matrices near g [N, rows, cols], in bfloat16."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).bfloat16()
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x.transpose(-1, -2) if tall else x


class Muon:
    def __init__(self, params, momentum=0.95, decay=0.02):
        self.momentum, self.decay = momentum, decay
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.buffers = {p: torch.zeros_like(p) for ps in self.groups.values() for p in ps}

    @torch.no_grad()
    def step(self, lr):
        for (rows, cols), params in self.groups.items():
            params = [p for p in params if p.grad is not None]
            if not params:
                continue
            grads, bufs = [p.grad for p in params], [self.buffers[p] for p in params]
            torch._foreach_lerp_(bufs, grads, 1 - self.momentum)
            mixed = torch._foreach_lerp(grads, bufs, self.momentum)  # Nesterov
            flat = torch.cat([m.reshape(-1, rows, cols) for m in mixed])
            update = orthogonalize(flat).float().split([p.numel() // (rows * cols) for p in params])
            torch._foreach_mul_(params, 1 - lr * self.decay)
            torch._foreach_add_(
                params, [u.view(p.shape) for u, p in zip(update, params)], alpha=-lr * 0.2 * max(rows, cols) ** 0.5
            )


class Optimizer:
    """Both optimisers over a module; `lr` is set by the caller before each step."""

    def __init__(self, module, adam_decay=0.0):
        matrices, rest = [], []
        for name, p in module.named_parameters():
            if not p.requires_grad:
                continue
            wide = p.dim() >= 2 and min(p.shape[-2:]) >= 64
            plain = (
                "hc_" in name or "embed" in name or "markov" in name or name.startswith("head.") or name.endswith("ape")
            )
            (matrices if wide and not plain else rest).append(p)
        self.rest = rest
        self.muon = Muon(matrices)
        fused = bool(rest) and rest[0].is_cuda
        self.adam = torch.optim.AdamW(
            rest, lr=0.0, betas=(0.9, 0.95), eps=1e-9, weight_decay=adam_decay, fused=fused or None
        )

    def step(self, lr):
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for g in self.adam.param_groups:
            g["lr"] = lr
        self.adam.step()
        self.muon.step(lr)

    def zero_grad(self):
        self.adam.zero_grad(set_to_none=True)
        for ps in self.muon.groups.values():
            for p in ps:
                p.grad = None


def schedule(progress, peak, warm=0.02, flat=0.4, final=0.05):
    """Learning rate at `progress` (0..1 of the stage's time): warm-up, plateau, straight line down to final * peak."""
    if progress < warm:
        return peak * (0.02 + 0.98 * progress / warm)
    if progress < flat:
        return peak
    return peak * (1 - (1 - final) * min(1.0, (progress - flat) / (1 - flat)))
