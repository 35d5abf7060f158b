"""The model against golden logits, its cached form against the full pass, the export against its own rounding.

`python3 -m pytest tools/train/tests`; needs PyTorch, runs on a CPU in under a minute.
"""

import os
import sys

import numpy as np
import pytest
import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from kindling import decode, evaluate, fused, numerics as num  # noqa: E402
from kindling.checkpoint import encode, export, load_export, named_tensors, put_on_grid  # noqa: E402
from kindling.config import Config, tiny  # noqa: E402
from kindling.drafter import Drafter  # noqa: E402
from kindling.model import Target  # noqa: E402
from kindling.sinkhorn import sinkhorn_reference  # noqa: E402

torch.set_num_threads(1)

# The lean tiny model T1: every layer kind, hash routing, an active top-k. Weights are hashed from the tensor names, so
# the golden numbers below are all that has to be stored.
T1 = dict(
    vocab_size=512,
    hidden_size=256,
    num_hidden_layers=8,
    num_attention_heads=4,
    head_dim=128,
    qk_rope_head_dim=64,
    q_lora_rank=128,
    o_lora_rank=128,
    o_groups=2,
    sliding_window=16,
    compress_ratios=[0, 128, 4, 128, 4, 0, 4, 128, 0],
    compress_rope_theta=160000.0,
    rope_theta=10000.0,
    rope_scaling=dict(factor=16, original_max_position_embeddings=65536, beta_fast=32, beta_slow=1),
    index_n_heads=16,
    index_head_dim=128,
    index_topk=8,
    num_hash_layers=3,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
    routed_scaling_factor=1.5,
    swiglu_limit=1.0,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    rms_norm_eps=1e-6,
)
ARGMAX = {
    0: 361,
    1: 245,
    3: 428,
    4: 465,
    7: 143,
    15: 320,
    16: 334,
    35: 36,
    36: 501,
    127: 7,
    128: 373,
    255: 334,
    256: 190,
    299: 273,
}
LOGITS = {
    0: (-0.41502, -1.16985, 0.61945, -1.65895),
    35: (-0.78643, 0.65683, 3.4198, -0.30255),
    128: (1.94128, -0.98204, 2.4182, -1.58503),
    256: (-3.55759, -1.47461, 0.11519, 1.68341),
    299: (0.65563, 0.4102, -0.69925, 1.51229),
}
NORMS = {0: 32.26293, 127: 35.03110, 299: 34.32163}
ARGMAX_HASH = "c463fa06603f59f2"


def fnv1a64(data):
    h = 0xCBF29CE484222325
    for x in data:
        h = ((h ^ x) * 0x100000001B3) & (2**64 - 1)
    return h


def uniforms(name, n):
    """n values in [-1, 1): splitmix64 of the name's hash."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a64(name.encode())) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(np.float64) / 2**23 - 1).astype(np.float32)


def golden_tensor(name, shape):
    u = torch.from_numpy(uniforms(name, int(np.prod(shape)))).reshape(shape)
    if name.endswith("norm.weight"):
        w = 1 + 0.17 * u
    elif name.endswith("_scale"):
        w = 0.75 + 0.25 * u
    elif name.endswith(".bias"):
        w = 0.85 * u
    elif len(shape) == 1 or name.endswith(("ape", "embed.weight")):
        w = 1.7 * u
    else:
        w = torch.tensor(2.6 * shape[-1] ** -0.5, dtype=torch.float32) * u
    return w.bfloat16().float()


@pytest.fixture(scope="module")
def golden():
    model = Target(Config(T1), torch.float32)
    with torch.no_grad():
        for name, tensor, kind in named_tensors(model):
            if kind == "i64":
                u = uniforms(name, T1["vocab_size"] * 8).reshape(-1, 8)
                tensor.copy_(torch.from_numpy(np.argsort(-u, axis=1, kind="stable")[:, :2].copy()))
            else:
                tensor.copy_(golden_tensor(name, tuple(tensor.shape)))
    model.eval()
    model.sw.select = True
    ids = ((uniforms("tokens", 300).astype(np.float64) + 1) / 2 * T1["vocab_size"]).astype(int)
    return model, torch.from_numpy(ids)[None]


def test_golden_logits(golden):
    model, ids = golden
    with torch.no_grad():
        y = model(ids)[0][0]
    best = y.argmax(-1).tolist()
    assert {p: best[p] for p in ARGMAX} == ARGMAX
    assert "%016x" % fnv1a64(b"".join(x.to_bytes(4, "little") for x in best)) == ARGMAX_HASH
    for p, want in LOGITS.items():
        assert torch.allclose(y[p, :4], torch.tensor(want), atol=1e-4)
    for p, want in NORMS.items():
        assert abs(float(y[p].norm()) - want) < 2e-4


def test_cached_equals_full(golden):
    model, ids = golden
    with torch.no_grad():
        full = model(ids)[0][0]
        cache = decode.Cache(model, 1, 300)
        for t in range(300):
            y = decode.step(model, cache, ids[:, t], t)[0]
            assert torch.allclose(y, full[t], atol=2e-3), t


def small(**changes):
    torch.manual_seed(1)
    c = tiny(
        hidden_size=128,
        num_attention_heads=2,
        head_dim=128,
        moe_intermediate_size=128,
        index_n_heads=8,
        index_topk=16,
        **changes,
    )
    target, drafter = Target(c, torch.float32).eval(), Drafter(c, torch.float32).eval()
    with torch.no_grad():
        for p in list(target.parameters()) + list(drafter.parameters()):
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.1)
        drafter.last.markov_w2.normal_(std=0.1)
        drafter.last.confidence.normal_()
    return c, target, drafter


def test_gradients_reach_everything():
    c, target, drafter = small()
    target.train()
    target.sw.quant, target.sw.index_loss, target.sw.select = True, 0.5, True
    ids = torch.randint(3, 4000, (2, 257))
    loss, _ = target.loss(ids, torch.ones(2, 257))
    (loss + sum(target.sw.losses)).backward()
    missing = [n for n, p in target.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not missing


def test_drafter_against_plain_loop():
    """backbone() gathers and batches; this walks one block with one query at a time."""
    c, target, drafter = small()
    T, W, G = 200, c.sliding_window, c.dspark_block_size
    ids = torch.randint(3, 4000, (2, T))
    with torch.no_grad():
        _, h = target.body(ids)
        anchors = torch.tensor([[7, 150], [128, 199]])
        y, base = drafter.backbone(target, h, ids.gather(1, anchors), anchors)
        main = fused.rms(drafter.main_proj(h), drafter.main_norm.weight, 1e-6)

        def rope(x, p, sign=1.0):
            f = 1e4 ** (-torch.arange(0, 64, 2, dtype=torch.float32) / 64)
            z = torch.view_as_complex(x[..., -64:].reshape(*x.shape[:-1], 32, 2).contiguous())
            z = z * torch.polar(torch.ones(32), sign * p * f)
            return torch.cat([x[..., :-64], torch.view_as_real(z).flatten(-2)], -1)

        def site(block, name, X, f):
            v = X.reshape(G, -1)
            z = v @ getattr(block, f"hc_{name}_fn").T / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            s, b = getattr(block, f"hc_{name}_scale"), getattr(block, f"hc_{name}_base")
            pre = torch.sigmoid(z[:, :4] * s[0] + b[:4]) + 1e-6
            post = 2 * torch.sigmoid(z[:, 4:8] * s[1] + b[4:8])
            comb = sinkhorn_reference((z[:, 8:] * s[2] + b[8:]).view(G, 4, 4), 20)
            u = fused.rms(torch.einsum("gk,gkd->gd", pre, X), getattr(block, f"{name}_norm").weight, 1e-6)
            return post[:, :, None] * f(u)[:, None] + torch.einsum("gjk,gjd->gkd", comb, X)

        for r, i in ((0, 0), (0, 1), (1, 0), (1, 1)):
            n = int(anchors[r, i])
            tokens = [int(ids[r, n])] + [c.dspark_noise_token_id] * (G - 1)
            X = target.embed.weight[tokens][:, None].expand(G, 4, -1)
            for stage in drafter.stages:
                a = stage.attn

                def attention(u):
                    rows = [
                        rope(fused.rms(a.wkv(main[r, p]), a.kv_norm.weight, 1e-6), p) for p in range(max(0, n - W), n)
                    ]
                    keys = torch.stack(
                        rows + [rope(fused.rms(a.wkv(u[k]), a.kv_norm.weight, 1e-6), n + k) for k in range(G)]
                    )
                    out = []
                    for k in range(G):
                        q = a.wq_b(fused.rms(a.wq_a(u[k]), a.q_norm.weight, 1e-6)).view(c.num_attention_heads, -1)
                        q = rope(q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt(), n + k)
                        s = torch.cat([q @ keys.T * c.head_dim**-0.5, a.attn_sink[:, None]], 1)
                        o = rope(torch.softmax(s, 1)[:, :-1] @ keys, n + k, -1.0)
                        out.append(a.wo_b(a.wo_a(o.flatten())))
                    return torch.stack(out)

                X = site(stage, "attn", X, attention)
                X = site(stage, "ffn", X, lambda u: stage.ffn(u, u, None))
            v = X.reshape(G, -1)
            z = v @ drafter.last.hc_head_fn.T / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            want = torch.einsum(
                "gk,gkd->gd", torch.sigmoid(z * drafter.last.hc_head_scale + drafter.last.hc_head_base) + 1e-6, X
            )
            assert torch.allclose(y[r, i], want, atol=1e-4)
            logits = fused.rms(want, drafter.last.norm.weight, 1e-6) @ target.head.weight.T
            assert torch.allclose(base[r, i], logits, atol=1e-3)


def test_accept_length_is_lossless():
    """Whatever the drafter proposes, greedy speculative text is the greedy text of the target."""
    c, target, drafter = small()
    prompts = [torch.randint(3, 4000, (n,)).tolist() for n in (5, 40, 131)]
    plain = decode.generate(target, prompts, 12)
    taken, positions, each = evaluate.accept_length(target, drafter, prompts, new_tokens=12)
    assert 1.0 <= taken <= c.dspark_block_size + 1 and len(positions) == c.dspark_block_size
    assert len(each) == 3 and all(len(p) > 5 for p in plain)


def test_formats():
    e4m3 = torch.tensor([0.0, 2.0**-9, 0.0177, 0.3, 1.06, 17.0, 449.0, -460.0])
    assert torch.equal(num.round_to(e4m3, num.E4M3), e4m3.clamp(-448, 448).to(torch.float8_e4m3fn).float())
    x = torch.randn(100000) * torch.exp(torch.randn(100000) * 3)
    assert torch.equal(num.round_to(x, num.E4M3), x.clamp(-448, 448).to(torch.float8_e4m3fn).float())
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0])
    assert num.round_to(ties, num.E2M1).tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert num.pow2_ceil(torch.tensor([1.0, 1.0000001, 0.5, 3.0])).tolist() == [1, 2, 0.5, 4]
    w = torch.randn(256, 256)
    for rounded in (num.fp8_weight_qdq, num.fp4_weight_qdq):
        assert torch.equal(rounded(w), rounded(rounded(w)))
    stored = encode("x.weight", torch.tensor([[1.0, -6.0] + [0.5] * 30]), "fp4")
    assert stored["x.weight"].view(torch.uint8)[0, :2].tolist() == [0x2 | 0xF << 4, 0x1 | 0x1 << 4]


def test_export_round_trip(tmp_path):
    c, target, drafter = small()
    export(target, drafter, str(tmp_path))
    torch.manual_seed(9)
    target2, drafter2 = Target(c, torch.float32), Drafter(c, torch.float32)
    load_export(target2, drafter2, str(tmp_path))
    put_on_grid(target, drafter)
    a, b = dict((n, t) for n, t, _ in named_tensors(target, drafter)), dict(
        (n, t) for n, t, _ in named_tensors(target2, drafter2)
    )
    assert all(torch.equal(a[n], b[n]) for n in a)
