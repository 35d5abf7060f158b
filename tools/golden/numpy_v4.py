#!/usr/bin/env python3
"""DeepSeek-V4 in numpy: trunk, classic MTP block, DSpark drafter; whole sequences at once.

Written from the DeepSeek-V4 technical report (section 2), DeepSeek's published inference code and
the DSpark paper (sections 3 and 5), to be read beside the C code, not to be fast: no cache, dense
masks, one pass over T tokens.  Every array is float32.

    numpy_v4.py CHECKPOINT --ids 1,2,3            argmax and logits of every position
    numpy_v4.py CHECKPOINT --tokens 300 --precision native

Precisions: reference (fp32, nothing quantised), sim (KV rows FP8, index rows and queries FP4, the
compressor's bf16 roundings), native (sim, FP8 activations in front of every FP8/FP4 linear, bf16
wherever the published inference code stores bf16), served (native, but what a tensor-parallel group
sums is rounded once: wo_b and w2 add 8 fixed pieces of K in fp32, experts add up unrounded).  `mutation` plants one of MUTATIONS, to see what a test catches.
"""
import argparse
import math

import numpy as np

from v4_format import E2M1, E4M3, bf16, layer_ratios, read_checkpoint, token_ids

f32 = np.float32

# ---------------------------------------------------------------- rotary tables
# Bits of the published tables: base 10000, and base 160000 with YaRN(16, 65536, 32, 1).
MAIN_BITS = """
3f800000 3f3ff911 3f0ff59a 3ed7e89b 3ea1e89b 3e72d423 3e361887 3e088d77
3dcccccd 3d99940d 3d6655c2 3d2cba15 3d0186e3 3cc2434f 3c91ad39 3c5a7bf2
3c23d70a 3bf5b9b0 3bb8449c 3b8a2e77 3b4f3e38 3b1b690d 3ae91528 3aaec98e
3a83126f 3a44948c 3a136a16 39dd1725 39a5cb60 3978a815 393a7753 390bd472"""
YARN_BITS = """
3f800000 3f300a3a 3ef21c1f 3ea67d01 3e64f92e 3e1d7475 3dd88cb4 3d94e963
3d4ccccd 3d0cd4fb 3cc1b019 3c8530ce 3c372dbf 3bfbed88 3bad3d5e 3b6e4237
3b147ae1 3ab714e0 3a5ebdb6 3a0530ce 399bb3af 39305978 38be904d 383e9b5f
37a3d70c 36b443d0 3677eba6 362a7be8 35ea77ff 35a13bdc 355dbf30 35187c4d"""


def _from_bits(text):
    return np.array([int(x, 16) for x in text.split()], np.uint32).view(f32)


def rope_computed(dim, base, yarn=None):
    """Frequencies in float32, the power correctly rounded."""
    e = np.arange(0, dim, 2, dtype=f32) / f32(dim)
    f = (f32(1) / (np.float64(base) ** e.astype(np.float64)).astype(f32)).astype(f32)
    if not yarn or yarn["factor"] == 1:
        return f
    pair = lambda turns: dim * math.log(yarn["original_max_position_embeddings"] / (
        turns * 2 * math.pi)) / (2 * math.log(base))
    lo = max(math.floor(pair(yarn["beta_fast"])), 0)
    hi = min(math.ceil(pair(yarn["beta_slow"])), dim - 1)
    smooth = (1 - np.clip((np.arange(dim // 2) - lo) / max(hi - lo, 0.001), 0, 1)).astype(f32)
    return (f / f32(yarn["factor"]) * (1 - smooth) + f * smooth).astype(f32)


def rope_frequencies(c, compressed):
    dim, yarn = c["qk_rope_head_dim"], c.get("rope_scaling")
    if not compressed:
        if dim == 64 and c["rope_theta"] == 10000:
            return _from_bits(MAIN_BITS)
        return rope_computed(dim, c["rope_theta"])
    key = yarn and tuple(yarn[k] for k in ("factor", "original_max_position_embeddings",
                                           "beta_fast", "beta_slow"))
    if dim == 64 and c["compress_rope_theta"] == 160000 and key == (16, 65536, 32, 1):
        return _from_bits(YARN_BITS)
    return rope_computed(dim, c["compress_rope_theta"], yarn)


# ---------------------------------------------------------------- numeric pieces
def pow2_ceil(t):
    """2^ceil(log2 t) on the bits of float32."""
    u = np.ascontiguousarray(t, f32).view(np.uint32)
    e = ((u >> 23) & 255).astype(np.int32) - 127 + ((u & 0x7FFFFF) != 0)
    return np.ldexp(f32(1), e).astype(f32)


def _round_to(x, grid):
    a = np.abs(x)
    hi = np.clip(np.searchsorted(grid, a), 1, len(grid) - 1)
    down, up = a - grid[hi - 1], grid[hi] - a
    i = np.where((up < down) | ((up == down) & (hi % 2 == 0)), hi, hi - 1)
    return np.copysign(grid[i], x).astype(f32)


def quantise(x, block, grid, floor):
    """Round to grid * 2^e per block of the last axis: quantise, then dequantise."""
    y = x.reshape(*x.shape[:-1], -1, block)
    top = f32(grid[-1])
    amax = np.maximum(np.abs(y).max(-1, keepdims=True), f32(floor))
    s = pow2_ceil(amax * f32(1 / top))
    return (_round_to(np.clip(y / s, -top, top), grid.astype(f32)) * s).reshape(x.shape)


def fp8_round(x, block):
    return quantise(x, block, E4M3, 1e-4)


def fp4_round(x):
    return quantise(x, 32, E2M1, 6 * 2.0**-126)


def hadamard(x):
    """Walsh-Hadamard in Sylvester order over the last axis, orthonormal."""
    n, h, y = x.shape[-1], 1, x.astype(f32)
    while h < n:
        y = y.reshape(*x.shape[:-1], n // (2 * h), 2, h)
        y = np.stack([y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]], -2)
        y = y.reshape(x.shape)
        h *= 2
    return y * f32(n**-0.5)


def sigmoid(z):
    return f32(1) / (f32(1) + np.exp(-z))


def softplus(z):
    return np.where(z > 20, z, np.log1p(np.exp(np.minimum(z, f32(20)))))


# ---------------------------------------------------------------- precision and mutations
PRECISIONS = {
    "reference": frozenset(),
    "sim": frozenset(["kv_fp8", "index_fp4", "compressor_bf16"]),
    "native": frozenset(["kv_fp8", "index_fp4", "compressor_bf16", "act_fp8", "bf16"]),
    "served": frozenset(["kv_fp8", "index_fp4", "compressor_bf16", "act_fp8", "bf16", "sum_once"]),
}

MUTATIONS = {
    "no_inverse_rope": "no inverse rope",
    "neox_pairing": "NeoX pairing",
    "compress_table_on_plain": "compress table on ratio-0 layers",
    "theta_10000_everywhere": "theta 10000, no YaRN everywhere",
    "no_yarn": "theta 160000 without YaRN",
    "mscale": "mscale on cos/sin",
    "rotate_at_last": "compressed row rotated at last token",
    "rotate_at_index": "compressed row rotated at entry index",
    "overlap_lost": "overlap lost",
    "halves_swapped": "channel halves swapped",
    "visible_late": "entry visible one token late",
    "no_ape": "ape missing",
    "no_relu": "ReLU missing in indexer",
    "window_short": "window one shorter",
    "no_sink": "sink omitted",
    "no_head_norm": "q head norm omitted",
    "comb_untransposed": "comb not transposed",
    "rms_per_stream": "mHC rms per stream",
    "bias_in_weights": "bias inside routing weights",
    "uniform_hash_weights": "uniform weights in hash layers",
    "shared_unclamped": "shared expert unclamped",
    "sinkhorn_short": "Sinkhorn one round less",
}


class Model:
    def __init__(self, c, W, precision="reference", mutation=None, dump_layers=()):
        assert mutation is None or mutation in MUTATIONS, mutation
        self.c, self.W = c, W
        self.sim = PRECISIONS[precision]
        self.mut = mutation
        self.eps, self.hc_eps = f32(c["rms_norm_eps"]), f32(c["hc_eps"])
        self.ratios = layer_ratios(c)
        self.freq = {False: rope_frequencies(c, False), True: rope_frequencies(c, True)}
        dim = c["qk_rope_head_dim"]
        if mutation == "compress_table_on_plain":
            self.freq[False] = self.freq[True]
        if mutation == "theta_10000_everywhere":
            self.freq[True] = rope_computed(dim, 10000)
        if mutation == "no_yarn":
            self.freq[True] = rope_computed(dim, c["compress_rope_theta"])
        self.dump_layers, self.dump = set(dump_layers), {}
        self.margin = {"router": np.inf, "index": np.inf, "argmax": np.inf}
        self._prefix = ""

    # -- small parts
    def keep(self, name, x):
        if self._prefix in self.dump_layers:
            self.dump[f"{self._prefix}{name}"] = np.array(x)

    def store(self, x):
        """What the model keeps in bf16."""
        return bf16(x) if "bf16" in self.sim else x.astype(f32)

    def matmul(self, name, x):
        return (x @ self.W[name + ".weight"].T).astype(f32)

    def linear(self, name, x):
        """FP8 or FP4 weights: activations rounded to E4M3 per 128, output stored."""
        if "act_fp8" in self.sim:
            x = fp8_round(x, 128)
        return self.store(self.matmul(name, x))

    def partial(self, name, x):
        """Like linear, before the rounding that follows a sum over ranks."""
        if "sum_once" not in self.sim:
            return self.linear(name, x)
        x, w = fp8_round(x, 128), self.W[name + ".weight"]
        n = x.shape[-1] // 8
        p = [(x[:, i * n : (i + 1) * n] @ w[:, i * n : (i + 1) * n].T).astype(f32)
             for i in range(8)]
        return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))

    def rms(self, x, w=None, keep32=False):
        y = x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=f32) + self.eps)
        if w is not None:
            y = y * w
        return y.astype(f32) if keep32 else self.store(y)

    def rope(self, x, pos, compressed, inverse=False):
        """x [n, ..., C]; the last 64 dims turn by pos[n]."""
        f = self.freq[compressed]
        d = 2 * len(f)
        angle = (np.asarray(pos, f32)[:, None] * f[None]).astype(f32).astype(np.float64)
        shape = (len(pos),) + (1,) * (x.ndim - 2) + (len(f),)
        cos = np.cos(angle).astype(f32).reshape(shape)
        sin = np.sin(angle).astype(f32).reshape(shape)
        if self.mut == "mscale" and compressed:
            scale = f32(0.1 * math.log(self.c["rope_scaling"]["factor"]) + 1)
            cos, sin = cos * scale, sin * scale
        if inverse:
            sin = -sin
        y = x.copy()
        t = x[..., -d:]
        if self.mut == "neox_pairing":
            a, b = t[..., : d // 2], t[..., d // 2 :]
            y[..., -d : -d // 2], y[..., -d // 2 :] = a * cos - b * sin, a * sin + b * cos
        else:
            a, b = t[..., 0::2], t[..., 1::2]
            y[..., -d::2], y[..., -d + 1 :: 2] = a * cos - b * sin, a * sin + b * cos
        return self.store(y)

    def fp8_row(self, row):
        """The 448 unrotated dims of a KV row as the cache holds them."""
        n = row.shape[-1] - self.c["qk_rope_head_dim"]
        if "kv_fp8" in self.sim:
            row = row.copy()
            row[..., :n] = fp8_round(row[..., :n], 64)
        return row

    # -- hyper-connections
    def hc_control(self, X, p):
        n, T = 4, len(X)
        fn, base, scale = (self.W[p + k] for k in ("fn", "base", "scale"))
        v = X.reshape(T, -1)
        if self.mut == "rms_per_stream":
            v = self.rms(X, keep32=True).reshape(T, -1)
            z = v @ fn.T
        else:
            z = (v @ fn.T) / np.sqrt((v * v).mean(-1, keepdims=True, dtype=f32) + self.eps)
        if base.shape[0] == n:  # the head's: a sigmoid gate only
            return sigmoid(z * scale[0] + base) + self.hc_eps
        pre = sigmoid(z[:, :n] * scale[0] + base[:n]) + self.hc_eps
        post = 2 * sigmoid(z[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        A = (z[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(T, n, n)
        A = np.exp(A - A.max(2, keepdims=True))
        A = A / A.sum(2, keepdims=True) + self.hc_eps
        A = A / (A.sum(1, keepdims=True) + self.hc_eps)
        rounds = self.c["hc_sinkhorn_iters"] - (self.mut == "sinkhorn_short")
        for _ in range(rounds - 1):
            A = A / (A.sum(2, keepdims=True) + self.hc_eps)
            A = A / (A.sum(1, keepdims=True) + self.hc_eps)
        return pre, post, A.astype(f32)

    def hc_collapse(self, X, p):
        """The head's sum of the four streams -> [T, D]."""
        pre = self.hc_control(X, p + "hc_head_")
        return self.store((pre[:, :, None] * X).sum(1))

    # -- attention
    def compress(self, p, m, d, x, index):
        """All entries that the T tokens complete -> [T // m, d]."""
        W, T = self.W, len(x)
        kv = self.matmul(p + "wkv", x)
        sc = self.matmul(p + "wgate", x)
        if self.mut != "no_ape":
            sc = sc + W[p + "ape"][np.arange(T) % m]
        n = T // m
        if n == 0:
            return np.zeros((0, d), f32)
        kv, sc = (t[: n * m].reshape(n, m, -1) for t in (kv, sc))
        if m == 4:
            first, second = slice(0, d), slice(d, 2 * d)
            if self.mut == "halves_swapped":
                first, second = second, first
            before_v = np.zeros((n, m, d), f32)
            before_s = np.full((n, m, d), -np.inf, f32)
            if self.mut != "overlap_lost":
                before_v[1:], before_s[1:] = kv[:-1, :, first], sc[:-1, :, first]
            kv = np.concatenate([before_v, kv[:, :, second]], 1)
            sc = np.concatenate([before_s, sc[:, :, second]], 1)
        e = np.exp(sc - sc.max(1, keepdims=True))
        y = (kv * (e / e.sum(1, keepdims=True))).sum(1).astype(f32)
        r = bf16 if "compressor_bf16" in self.sim else lambda t: t.astype(f32)
        y = r(self.rms(r(y), W[p + "norm.weight"], keep32=True))
        at = np.arange(n) * m
        if self.mut == "rotate_at_last":
            at = at + m - 1
        if self.mut == "rotate_at_index":
            at = np.arange(n)
        y = r(self.rope(y, at, True))
        if not index:
            return self.fp8_row(y)
        return bf16(fp4_round(bf16(hadamard(y)))) if "index_fp4" in self.sim else y

    def index_scores(self, p, x, qr, pos, keys):
        c = self.c
        HI, CI = c["index_n_heads"], c["index_head_dim"]
        q = self.linear(p + "indexer.wq_b", qr).reshape(len(x), HI, CI)
        q = self.rope(q, pos, True)
        if "index_fp4" in self.sim:
            q = bf16(fp4_round(bf16(hadamard(bf16(q)))))
        w = self.store(self.matmul(p + "indexer.weights_proj", x))
        w = self.store(w * f32((CI * HI) ** -0.5))
        dots = (q.reshape(-1, CI) @ keys.T).reshape(len(x), HI, -1)
        if self.mut != "no_relu":
            dots = np.maximum(dots, 0)
        return (dots * w[:, :, None]).sum(1).astype(f32)

    def select(self, score, visible):
        """[T, n] mask: the K best of the visible entries, ties to the lower index."""
        K, chosen = self.c["index_topk"], np.zeros(score.shape, bool)
        for i, nv in enumerate(visible):
            if nv <= K:
                chosen[i, :nv] = True
                continue
            order = np.argsort(-score[i, :nv], kind="stable")
            chosen[i, order[:K]] = True
            gap = float(score[i, order[K - 1]] - score[i, order[K]])
            self.margin["index"] = min(self.margin["index"], gap)
        return chosen

    def kv_row(self, p, x, pos, compressed):
        """One latent per token, key and value at once -> [T, C]."""
        k = self.rms(self.linear(p + "wkv", x), self.W[p + "kv_norm.weight"])
        return self.fp8_row(self.rope(k, pos, compressed))

    def query(self, p, x, pos, compressed):
        c = self.c
        qr = self.rms(self.linear(p + "wq_a", x), self.W[p + "q_norm.weight"])
        q = self.linear(p + "wq_b", qr).reshape(len(x), c["num_attention_heads"], c["head_dim"])
        if self.mut != "no_head_norm":
            q = self.rms(q)
        q = self.rope(q, pos, compressed)
        self.keep("qr", qr)
        self.keep("q", q)
        return qr, q

    def attend(self, p, q, pos, keys, mask, compressed):
        """q [T, H, C] over keys [n, C] where mask [T, n] -> [T, D]."""
        c, W = self.c, self.W
        T, H, C = q.shape
        s = (q.reshape(-1, C) @ keys.T).reshape(T, H, -1) * f32(C**-0.5)
        s = np.where(mask[:, None, :], s, f32(-np.inf))
        top = s.max(2, keepdims=True)
        e = np.exp(s - top)
        den = e.sum(2, keepdims=True)
        if self.mut != "no_sink":
            den = den + np.exp(W[p + "attn_sink"][None, :, None] - top)
        o = self.store((self.store(e).reshape(T * H, -1) @ keys).reshape(T, H, C) / den)
        self.keep("o", o)
        if self.mut != "no_inverse_rope":
            o = self.rope(o, pos, compressed, inverse=True)
        self.keep("o_unrotated", o)
        G, O = c["o_groups"], c["o_lora_rank"]
        wa = W[p + "wo_a.weight"].reshape(G, O, -1)
        z = self.store(np.einsum("tgd,grd->tgr", o.reshape(T, G, -1), wa, optimize=True))
        return self.store(self.partial(p + "wo_b", z.reshape(T, G * O)))

    def attention(self, p, m, x):
        """A trunk layer (or the MTP layer): positions 0..T-1, causal."""
        c, T = self.c, len(x)
        pos = np.arange(T)
        P = p + "attn."
        qr, q = self.query(P, x, pos, m != 0)
        kv = self.kv_row(P, x, pos, m != 0)
        self.keep("kv", kv)
        age = pos[:, None] - pos[None, :]
        window = c["sliding_window"] - (self.mut == "window_short")
        keys, mask = kv, (age >= 0) & (age < window)
        if m:
            rows = self.compress(P + "compressor.", m, c["head_dim"], x, False)
            self.keep("rows", rows)
            visible = (pos + (self.mut != "visible_late")) // m
            chosen = np.arange(len(rows))[None] < visible[:, None]
            if m == 4:
                irows = self.compress(P + "indexer.compressor.", 4, c["index_head_dim"], x, True)
                score = self.index_scores(P, x, qr, pos, irows)
                chosen = self.select(score, visible)
                self.keep("index_rows", irows)
                self.keep("index_score", score)
                self.keep("selected", chosen.astype(np.int32))
            keys, mask = np.concatenate([kv, rows]), np.concatenate([mask, chosen], 1)
        return self.attend(P, q, pos, keys, mask, m != 0)

    # -- experts
    def expert(self, q, x, weight, limit):
        a, b = self.linear(q + "w1", x), self.linear(q + "w3", x)
        a, b = np.minimum(a, limit), np.clip(b, -limit, limit)
        return self.partial(q + "w2", self.store(weight * (a * sigmoid(a) * b)))

    def moe(self, p, x, tokens, hashed):
        c, W, limit = self.c, self.W, f32(self.c["swiglu_limit"])
        P, k = p + "ffn.", c["num_experts_per_tok"]
        score = np.sqrt(softplus(self.matmul(P + "gate", x))).astype(f32)
        self.keep("router_score", score if hashed else score + W[P + "gate.bias"])
        if hashed:
            ids = W[P + "gate.tid2eid"][tokens]
        else:
            biased = score + W[P + "gate.bias"]
            order = np.argsort(-biased, axis=1, kind="stable")
            ids = order[:, :k]
            if k < biased.shape[1]:
                ranked = np.take_along_axis(biased, order, 1)
                gap = float((ranked[:, k - 1] - ranked[:, k]).min())
                self.margin["router"] = min(self.margin["router"], gap)
        base = score
        if self.mut == "bias_in_weights" and not hashed:
            base = score + W[P + "gate.bias"]
        w = np.take_along_axis(base, ids, 1)
        w = w / w.sum(1, keepdims=True) * f32(c["routed_scaling_factor"])
        if self.mut == "uniform_hash_weights" and hashed:
            w = np.full_like(w, c["routed_scaling_factor"] / k)
        self.keep("expert_ids", ids.astype(np.int32))
        self.keep("expert_weights", w)
        out = np.zeros_like(x)
        for e in range(c["n_routed_experts"]):
            t, j = np.nonzero(ids == e)
            if len(t):
                np.add.at(out, t, self.expert(f"{P}experts.{e}.", x[t], w[t, j][:, None], limit))
        shared = f32(1e30) if self.mut == "shared_unclamped" else limit
        return self.store(out + self.expert(P + "shared_experts.", x, f32(1), shared))

    # -- layers and heads
    def layer(self, p, X, tokens, hashed, attend):
        """attend(x) is the attention of this layer."""
        self._prefix = p
        for site, fn in (("attn", attend), ("ffn", lambda x: self.moe(p, x, tokens, hashed))):
            pre, post, comb = self.hc_control(X, f"{p}hc_{site}_")
            u = self.store((pre[:, :, None] * X).sum(1))
            x = self.rms(u, self.W[f"{p}{site}_norm.weight"])
            self.keep(f"{site}_u", u)
            y = fn(x)
            self.keep(f"{site}_out", y)
            if self.mut != "comb_untransposed":
                comb = comb.transpose(0, 2, 1)
            X = self.store(post[:, :, None] * y[:, None, :] + comb @ X)
        self.keep("X", X)
        self._prefix = ""
        return X

    def head(self, X, p):
        h = self.rms(self.hc_collapse(X, p), self.W[p + "norm.weight"])
        return self.matmul("head", h)

    def embed(self, tokens):
        return np.repeat(self.W["embed.weight"][tokens][:, None], 4, 1).astype(f32)

    def forward(self, tokens):
        """tokens [T] -> logits [T, V]; keeps the streams X [T, 4, D] and, with a DSpark drafter,
        the captured rows H [T, S * D]."""
        tokens = np.asarray(tokens)
        X, taps = self.embed(tokens), {}
        for l, m in enumerate(self.ratios):
            p = f"layers.{l}."
            X = self.layer(p, X, tokens, l < self.c["num_hash_layers"],
                           lambda x: self.attention(p, m, x))
            taps[l] = X
        self.X = X
        if "dspark_target_layer_ids" in self.c:
            self.H = np.concatenate([self.store(taps[l].mean(1, dtype=f32))
                                     for l in self.c["dspark_target_layer_ids"]], 1)
        logits = self.head(X, "")
        two = np.sort(logits, 1)[:, -2:]
        self.margin["argmax"] = float((two[:, 1] - two[:, 0]).min())
        return logits

    def mtp_streams(self, X, next_tokens):
        """Streams after positions 0..T-1 and the tokens at 1..T -> the block's own streams."""
        W, p = self.W, "mtp.0."
        e = self.linear(p + "e_proj", self.rms(W["embed.weight"][next_tokens],
                                               W[p + "enorm.weight"]))
        h = self.linear(p + "h_proj", self.rms(X, W[p + "hnorm.weight"]))
        Y = self.store(e[:, None] + h)
        return self.layer(p, Y, next_tokens, False, lambda x: self.attention(p, 0, x))

    def mtp(self, X, next_tokens):
        """The same -> logits for positions 2..T+1."""
        return self.head(self.mtp_streams(X, next_tokens), "mtp.0.")

    def mtp_draft(self, X, tokens, n, steps=3):
        """A round behind n committed positions: X, tokens of at least n and n + 1 positions -> greedy drafts.

        Step k is the block over everything once more, its position n - 1 + k fed with step k - 1's streams.
        """
        X, ids, out = X[:n], list(tokens[1 : n + 1]), dict(tokens=[], logits=[])
        for _ in range(steps):
            Y = self.mtp_streams(X, np.array(ids))
            z = self.head(Y[-1:], "mtp.0.")[0]
            out["tokens"].append(int(z.argmax()))
            out["logits"].append(z)
            ids.append(out["tokens"][-1])
            X = np.concatenate([X, Y[-1:]])
        out = {k: np.array(v) for k, v in out.items()}
        two = np.sort(out["logits"], 1)[:, -2:]
        self.margin["draft"] = min(self.margin.get("draft", np.inf),
                                   float((two[:, 1] - two[:, 0]).min()))
        return out

    # -- DSpark
    def inject(self, H):
        """Captured rows of positions 0..T-1 -> main_x [T, D], K [S, T, C]."""
        S = len(self.c["dspark_target_layer_ids"])
        main_x = self.rms(self.linear("mtp.0.main_proj", H), self.W["mtp.0.main_norm.weight"])
        pos = np.arange(len(H))
        return main_x, np.stack([self.kv_row(f"mtp.{s}.attn.", main_x, pos, False)
                                 for s in range(S)])

    def draft_attention(self, p, x, pos, injected):
        """Every row of the block sees the injected window and the whole block."""
        P = p + "attn."
        _, q = self.query(P, x, pos, False)
        kv = self.kv_row(P, x, pos, False)
        self.keep("kv", kv)
        keys = np.concatenate([injected, kv])
        return self.attend(P, q, pos, keys, np.ones((len(x), len(keys)), bool), False)

    def draft(self, anchor, n, K):
        """Anchor token at position n, K [S, >= n, C] -> dict of the block's tensors (greedy)."""
        c, W = self.c, self.W
        S, g = len(K), c["dspark_block_size"]
        tokens = np.array([anchor] + [c["dspark_noise_token_id"]] * (g - 1))
        pos, first = n + np.arange(g), max(0, n - c["sliding_window"])
        X = self.embed(tokens)
        for s in range(S):
            p = f"mtp.{s}."
            X = self.layer(p, X, tokens, False,
                           lambda x: self.draft_attention(p, x, pos, K[s, first:n]))
        last = f"mtp.{S - 1}."
        y = self.hc_collapse(X, last)
        U = self.matmul("head", self.rms(y, W[last + "norm.weight"]))
        w1, w2 = (W[f"{last}markov_head.markov_w{i}.weight"] for i in (1, 2))
        w = W[last + "confidence_head.proj.weight"][0]
        prev, out = anchor, dict(tokens=[], corrected=[], confidence=[])
        for k in range(g):
            corrected = U[k] + w2 @ w1[prev]
            z = np.concatenate([y[k], w1[prev]]) @ w
            prev = int(corrected.argmax())
            out["tokens"].append(prev)
            out["corrected"].append(corrected)
            out["confidence"].append(sigmoid(z))
        out = {k: np.array(v) for k, v in out.items()}
        two = np.sort(out["corrected"], 1)[:, -2:]
        self.margin["draft"] = min(self.margin.get("draft", np.inf),
                                   float((two[:, 1] - two[:, 0]).min()))
        return dict(out, U=U, y=y)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("checkpoint")
    p.add_argument("--ids", help="token ids, as 1,2,3")
    p.add_argument("--tokens", type=int, default=32, help="or: that many hashed ids")
    p.add_argument("--precision", choices=sorted(PRECISIONS), default="reference")
    p.add_argument("--mutation", choices=sorted(MUTATIONS))
    a = p.parse_args()
    c, W = read_checkpoint(a.checkpoint)
    ids = [int(x) for x in a.ids.split(",")] if a.ids else token_ids(a.tokens, c["vocab_size"])
    m = Model(c, W, a.precision, a.mutation)
    y = m.forward(ids)
    for t, row in enumerate(y):
        print(t, ids[t], int(row.argmax()), *(f"{v:.5f}" for v in row[:4]))
    print("smallest margins:", {k: f"{v:.2e}" for k, v in m.margin.items()})


if __name__ == "__main__":
    main()
