"""Number formats of the published checkpoints and their simulation in training.

FP8 is E4M3 with power-of-two scales, FP4 is E2M1 with power-of-two scales (OCP MX formats); scale = 2^ceil(log2(amax /
largest code)), as in the DeepSeek-V4 reference kernels. All rounding is done with float32 arithmetic on exact powers of
two, so CPU, GPU and numpy agree to the bit. `ste` makes a rounding transparent to gradients (straight-through).
"""

import math

import torch

E4M3, E2M1 = (448.0, 3, -6), (6.0, 1, 0)  # largest value, mantissa bits, smallest exponent


def exponent(x):
    """floor(log2 |x|) of normal float32 values, on the bits."""
    return ((x.view(torch.int32) >> 23) & 255) - 127


def pow2(e):
    """2^e as float32 for int32 e in the normal range, on the bits."""
    return ((e + 127) << 23).view(torch.float32)


def pow2_ceil(t):
    """2^ceil(log2 t) of positive float32 t; never through log2, which misrounds beside powers of two."""
    return pow2(exponent(t) + ((t.view(torch.int32) & 0x7FFFFF) != 0).to(torch.int32))


def round_to(x, fmt):
    """Nearest representable value (ties to even, saturating) of a small float format, as float32."""
    top, mantissa, low = fmt
    x = x.clamp(-top, top)
    step = pow2(exponent(x).clamp(min=low) - mantissa)
    return torch.round(x / step) * step


def block_scale(amax, fmt, floor):
    """Power-of-two scale of a block with that largest magnitude."""
    inverse = torch.tensor(1.0 / fmt[0], dtype=torch.float32, device=amax.device)
    return pow2_ceil(amax.clamp(min=floor) * inverse)


def qdq(x, block, fmt=E4M3, floor=1e-4):
    """Quantise and dequantise along the last axis in blocks; float32 arithmetic, result in x's dtype."""
    y = x.float().unflatten(-1, (-1, block))
    s = block_scale(y.abs().amax(-1, keepdim=True), fmt, floor)
    return (round_to(y / s, fmt) * s).flatten(-2).to(x.dtype)


def ste(x, q):
    """q forward, identity backward."""
    return x + (q - x).detach()


def act_qdq(x):
    """Activation in front of an FP8 or FP4 linear: E4M3 per token and 128 inputs."""
    return ste(x, qdq(x, 128))


def kv_qdq(row, rope):
    """A cached row: E4M3 in blocks of 64, the last `rope` dims stay as they are."""
    n = row.shape[-1] - rope
    return torch.cat([ste(row[..., :n], qdq(row[..., :n], 64)), row[..., n:]], -1)


def fp8_weight_scale(w):
    """Scales [..., out/128, in/128] of a float32 weight [..., out, in], both multiples of 128."""
    blocks = w.unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128))  # [..., ob, 128, ib, 128]
    return block_scale(blocks.abs().amax((-3, -1)), E4M3, 448 * 2.0**-120)


def fp8_weight_qdq(w):
    s = fp8_weight_scale(w)
    blocks = w.unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128))
    s = s[..., :, None, :, None]
    return (round_to(blocks / s, E4M3) * s).flatten(-4, -3).flatten(-2)


def fp4_weight_scale(w):
    """Scales [..., out, in/32] of a float32 weight [..., out, in]."""
    return block_scale(w.unflatten(-1, (-1, 32)).abs().amax(-1), E2M1, 6 * 2.0**-120)


def fp4_weight_qdq(w):
    s = fp4_weight_scale(w)[..., None]
    return (round_to(w.unflatten(-1, (-1, 32)) / s, E2M1) * s).flatten(-2)


_HADAMARD = {}


def hadamard_matrix(n, device, dtype):
    """Sylvester order, scaled to be orthogonal."""
    key = (n, str(device), dtype)
    if key not in _HADAMARD:
        h = torch.ones(1, 1, dtype=torch.float64)
        while h.shape[0] < n:
            h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
        _HADAMARD[key] = (h / math.sqrt(n)).to(dtype).to(device)
    return _HADAMARD[key]


def rope_frequencies(c, compressed):
    """The 32 angular frequencies of a layer kind: plain base for window layers, YaRN for compressed ones."""
    d = c.qk_rope_head_dim
    base = float(c.compress_rope_theta if compressed else c.rope_theta)
    f = 1.0 / base ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
    if not compressed:
        return f
    r = c.rope_scaling

    def dim_of(rotations):
        return d * math.log(r["original_max_position_embeddings"] / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(dim_of(r["beta_fast"])), 0), min(math.ceil(dim_of(r["beta_slow"])), d - 1)
    smooth = 1 - ((torch.arange(d // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return f / r["factor"] * (1 - smooth) + f * smooth


def rope_table(c, compressed, positions):
    """(cos, sin) float32 [n, 32] at integer positions; the angle is one float32 product, as in the reference."""
    angle = positions.float()[:, None] * rope_frequencies(c, compressed).to(positions.device)
    return angle.cos(), angle.sin()
