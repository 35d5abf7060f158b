"""Published checkpoint format of DeepSeek-V4 in numpy: names, shapes, dtypes, codes, files.

Small on purpose: everything is float32 arrays in memory; meant for models of a few million weights.
"""
import json
import os

import numpy as np

f32 = np.float32
LAYER_TYPES = {"sliding_attention": 0, "compressed_sparse_attention": 4,
               "heavily_compressed_attention": 128}


# ---------------------------------------------------------------- configurations
YARN = dict(type="yarn", factor=16, original_max_position_embeddings=65536, beta_fast=32,
            beta_slow=1)

T1 = dict(
    architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", vocab_size=512,
    hidden_size=256, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=1,
    head_dim=128, qk_rope_head_dim=64, q_lora_rank=128, o_lora_rank=128, o_groups=2,
    sliding_window=16, compress_ratios=[0, 128, 4, 128, 4, 0, 4, 128, 0],
    compress_rope_theta=160000, rope_theta=10000, rope_scaling=YARN,
    max_position_embeddings=65536, index_n_heads=16, index_head_dim=128, index_topk=8,
    num_hash_layers=3, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
    moe_intermediate_size=128, scoring_func="sqrtsoftplus", topk_method="noaux_tc",
    norm_topk_prob=True, routed_scaling_factor=1.5, swiglu_limit=1.0, hc_mult=4,
    hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6, num_nextn_predict_layers=1,
    bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, torch_dtype="bfloat16")

# head_dim 512 in groups of 8 heads and window 128: what kernels made for the real models accept.
T2 = dict(T1, head_dim=512, num_attention_heads=16, o_groups=2, sliding_window=128,
          index_n_heads=64, index_topk=16, compress_ratios=[0, 0, 4, 128, 4, 128, 4, 128, 0])

# T1 with a DSpark drafter of three stages.
DSPARK = dict(T1, compress_ratios=T1["compress_ratios"][:8] + [0, 0, 0], dspark_block_size=5,
              dspark_markov_rank=64, dspark_noise_token_id=511, dspark_target_layer_ids=[5, 6, 7])

PRESETS = {"t1": T1, "t2": T2, "dspark": DSPARK}


def layer_ratios(c):
    """Compress ratio per trunk layer, from either spelling of the key."""
    n = c["num_hidden_layers"]
    if c.get("compress_ratios"):
        return list(c["compress_ratios"][:n])
    return [LAYER_TYPES[t] for t in c["layer_types"][:n]]


def draft_kind(c, names=()):
    if "dspark_target_layer_ids" in c:
        return "dspark"
    return "mtp" if not names or any(n.startswith("mtp.") for n in names) else "none"


# ---------------------------------------------------------------- inventory
def inventory(c, draft):
    """[(name, kind, shape)]: kind fp8, expert, plain, norm, float or ids; linears by full name."""
    D, H, C, Q, G, O, I, E, V = (c[k] for k in (
        "hidden_size", "num_attention_heads", "head_dim", "q_lora_rank", "o_groups",
        "o_lora_rank", "moe_intermediate_size", "n_routed_experts", "vocab_size"))
    HI, CI = c["index_n_heads"], c["index_head_dim"]
    out = []
    add = lambda name, kind, *shape: out.append((name, kind, shape))

    def layer(p, m, hashed):
        for s in ("attn", "ffn"):
            add(f"{p}{s}_norm.weight", "norm", D)
            add(f"{p}hc_{s}_fn", "float", 24, 4 * D)
            add(f"{p}hc_{s}_base", "float", 24)
            add(f"{p}hc_{s}_scale", "float", 3)
        a, f = p + "attn.", p + "ffn."
        add(a + "attn_sink", "float", H)
        add(a + "wq_a.weight", "fp8", Q, D)
        add(a + "q_norm.weight", "norm", Q)
        add(a + "wq_b.weight", "fp8", H * C, Q)
        add(a + "wkv.weight", "fp8", C, D)
        add(a + "kv_norm.weight", "norm", C)
        add(a + "wo_a.weight", "fp8", G * O, H * C // G)
        add(a + "wo_b.weight", "fp8", D, G * O)
        compressors = [(a + "compressor.", C)] if m else []
        if m == 4:
            add(a + "indexer.wq_b.weight", "fp8", HI * CI, Q)
            add(a + "indexer.weights_proj.weight", "plain", HI, D)
            compressors.append((a + "indexer.compressor.", CI))
        for q, d in compressors:
            k = 2 if m == 4 else 1
            add(q + "ape", "float", m, k * d)
            add(q + "wkv.weight", "plain", k * d, D)
            add(q + "wgate.weight", "plain", k * d, D)
            add(q + "norm.weight", "norm", d)
        add(f + "gate.weight", "plain", E, D)
        if hashed:
            add(f + "gate.tid2eid", "ids", V, c["num_experts_per_tok"])
        else:
            add(f + "gate.bias", "float", E)
        for q, kind in [(f"{f}experts.{e}.", "expert") for e in range(E)] + [
                (f + "shared_experts.", "fp8")]:
            add(q + "w1.weight", kind, I, D)
            add(q + "w2.weight", kind, D, I)
            add(q + "w3.weight", kind, I, D)

    def hc_head(p):
        add(p + "hc_head_fn", "float", 4, 4 * D)
        add(p + "hc_head_base", "float", 4)
        add(p + "hc_head_scale", "float", 1)

    add("embed.weight", "plain", V, D)
    add("head.weight", "plain", V, D)
    add("norm.weight", "norm", D)
    hc_head("")
    for l, m in enumerate(layer_ratios(c)):
        layer(f"layers.{l}.", m, l < c["num_hash_layers"])
    if draft == "mtp":
        layer("mtp.0.", 0, False)
        for s in ("enorm", "hnorm", "norm"):
            add(f"mtp.0.{s}.weight", "norm", D)
        add("mtp.0.e_proj.weight", "fp8", D, D)
        add("mtp.0.h_proj.weight", "fp8", D, D)
        hc_head("mtp.0.")
    if draft == "dspark":
        S, r = len(c["dspark_target_layer_ids"]), c["dspark_markov_rank"]
        for s in range(S):
            layer(f"mtp.{s}.", 0, False)
        last = f"mtp.{S - 1}."
        add("mtp.0.main_proj.weight", "fp8", D, S * D)
        add("mtp.0.main_norm.weight", "norm", D)
        add(last + "norm.weight", "norm", D)
        hc_head(last)
        add(last + "markov_head.markov_w1.weight", "plain", V, r)
        add(last + "markov_head.markov_w2.weight", "plain", V, r)
        add(last + "confidence_head.proj.weight", "plain", 1, D + r)
    return out


# ---------------------------------------------------------------- hashed weights
def bf16(x):
    """Round to bfloat16, nearest even, kept as float32."""
    u = np.ascontiguousarray(x, f32).view(np.uint32)
    return ((u + ((u >> 16) & 1) + np.uint32(0x7FFF)) & np.uint32(0xFFFF0000)).view(f32)


def fnv1a64(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & (2**64 - 1)
    return h


def stream(name, n, seed=0):
    """n values in [-1, 1): splitmix64 of a counter that starts at the hash of the name."""
    start = fnv1a64((name if seed == 0 else f"{seed}/{name}").encode())
    with np.errstate(over="ignore"):
        z = np.uint64(start) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(np.float64) / 2**23 - 1).astype(f32)


def token_ids(n, vocab, seed=0):
    return ((stream("tokens", n, seed).astype(np.float64) + 1) / 2 * vocab).astype(np.int64)


def _shaped(name, shape, u):
    """Unit values to weights: what makes every part of the model matter (sinks, ape, biases)."""
    if name.endswith("norm.weight"):
        w = f32(1) + f32(0.17) * u
    elif name.endswith("_scale"):
        w = f32(0.75) + f32(0.25) * u
    elif name.endswith(".bias"):
        w = f32(0.85) * u
    elif len(shape) == 1 or name.endswith(("ape", "embed.weight", "markov_w1.weight")):
        w = f32(1.7) * u
    else:
        w = f32(2.6 * shape[-1] ** -0.5) * u
    return bf16(w)


def _ids(values, k):
    return np.argsort(-values, axis=1, kind="stable")[:, :k].astype(np.int64)


def hash_weights(c, draft, seed=0):
    W = {}
    for name, kind, shape in inventory(c, draft):
        if kind == "ids":
            E = c["n_routed_experts"]
            W[name] = _ids(stream(name, shape[0] * E, seed).reshape(-1, E), shape[1])
        else:
            W[name] = _shaped(name, shape, stream(name, int(np.prod(shape)), seed).reshape(shape))
    return W


def normal_weights(c, draft, seed=0):
    """The same spreads from a Gaussian generator instead of the hash."""
    rng = np.random.default_rng(seed)
    W = {}
    for name, kind, shape in inventory(c, draft):
        if kind == "ids":
            W[name] = _ids(rng.random((shape[0], c["n_routed_experts"])), shape[1])
        else:  # u has standard deviation 3^-0.5
            u = (rng.standard_normal(shape) * 3**-0.5).astype(f32)
            W[name] = _shaped(name, shape, u)
    return W


# ---------------------------------------------------------------- codes
E4M3 = np.array([m * 2.0**-9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
                 for e in range(16) for m in range(8)][:127])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def codes(x, grid):
    """Index of the nearest grid value, ties to the even index, saturating; x float64."""
    a = np.abs(x)
    hi = np.clip(np.searchsorted(grid, a), 1, len(grid) - 1)
    down, up = a - grid[hi - 1], grid[hi] - a
    take_hi = (up < down) | ((up == down) & (hi % 2 == 0))
    return np.where(take_hi, hi, hi - 1)


def scale_exponent(amax, top):
    """ceil(log2(amax / top)); -127 for zero."""
    m, e = np.frexp(amax.astype(np.float64) / top)
    return np.where(amax > 0, np.maximum(np.where(m > 0.5, e, e - 1), -127), -127)


def quantise_fp8(w):
    """-> E4M3 codes [rows, cols], E8M0 bytes [ceil(rows/128), ceil(cols/128)]."""
    rows, cols = w.shape
    br, bc = -(-rows // 128), -(-cols // 128)
    p = np.zeros((br * 128, bc * 128), f32)
    p[:rows, :cols] = w
    e = scale_exponent(np.abs(p).reshape(br, 128, bc, 128).max((1, 3)), 448)
    x = np.ldexp(p.astype(np.float64), -np.repeat(np.repeat(e, 128, 0), 128, 1))
    q = codes(x, E4M3).astype(np.uint8) | (np.signbit(x) << 7).astype(np.uint8)
    return q[:rows, :cols], (e + 127).astype(np.uint8)


def quantise_fp4(w):
    """-> bytes of two E2M1 codes (even column low) [rows, cols/2], E8M0 bytes [rows, cols/32]."""
    rows, cols = w.shape
    e = scale_exponent(np.abs(w).reshape(rows, cols // 32, 32).max(2), 6)
    x = np.ldexp(w.astype(np.float64), -np.repeat(e, 32, 1))
    q = codes(x, E2M1).astype(np.uint8) | (np.signbit(x) << 3).astype(np.uint8)
    return q[:, 0::2] | (q[:, 1::2] << 4), (e + 127).astype(np.uint8)


def dequantise_fp8(q, scale):
    table = np.concatenate([E4M3, [np.nan], -E4M3, [np.nan]]).astype(f32)
    s = np.ldexp(f32(1), scale.astype(np.int32) - 127).astype(f32)
    s = np.repeat(np.repeat(s, 128, 0), 128, 1)[: q.shape[0], : q.shape[1]]
    return table[q] * s


def dequantise_fp4(q, scale):
    table = np.concatenate([E2M1, -E2M1]).astype(f32)
    w = np.stack([table[q & 15], table[q >> 4]], -1).reshape(q.shape[0], -1)
    return w * np.repeat(np.ldexp(f32(1), scale.astype(np.int32) - 127).astype(f32), 32, 1)


# ---------------------------------------------------------------- files
WIDTH = {"F32": 4, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def stored(W, c, draft, fmt):
    """[(name, dtype, shape, bytes)] of all tensors in a format, sorted by name."""
    out = []
    for name, kind, shape in inventory(c, draft):
        w = W[name]
        if kind == "ids":
            out.append((name, "I64", shape, w.astype("<i8").tobytes()))
        elif fmt == "f32" or (kind == "float"):
            out.append((name, "F32", shape, w.astype("<f4").tobytes()))
        elif fmt == "bf16" or kind in ("plain", "norm"):
            out.append((name, "BF16", shape, (w.view(np.uint32) >> 16).astype("<u2").tobytes()))
        else:
            four = kind == "expert" and fmt == "fp4"
            q, s = quantise_fp4(w) if four else quantise_fp8(w)
            out.append((name, "I8" if four else "F8_E4M3", q.shape, q.tobytes()))
            out.append((name[: -len("weight")] + "scale", "F8_E8M0", s.shape, s.tobytes()))
    return sorted(out)


def write_safetensors(path, tensors, unaligned=False):
    """Wide elements first (all aligned), as common writers do; unaligned: as given, odd header."""
    if not unaligned:
        tensors = sorted(tensors, key=lambda t: (-WIDTH[t[1]], t[0]))
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, data in tensors:
        head[name] = dict(dtype=dtype, shape=list(shape), data_offsets=[at, at + len(data)])
        at += len(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    while len(text) % 8 != (1 if unaligned else 0):
        text += b" "
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, data in tensors:
            f.write(data)


def write_checkpoint(folder, W, c, draft, fmt="f32", shards=1, unaligned=False):
    os.makedirs(folder, exist_ok=True)
    c = dict(c)
    if fmt in ("fp8", "fp4"):
        c["quantization_config"] = dict(activation_scheme="dynamic", fmt="e4m3",
                                        quant_method="fp8", scale_fmt="ue8m0",
                                        weight_block_size=[128, 128])
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f, indent=2)
        f.write("\n")
    tensors = stored(W, c, draft, fmt)
    n, weight_map = len(tensors), {}
    for s in range(shards):
        part = tensors[n * s // shards : n * (s + 1) // shards]
        name = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        weight_map.update({t[0]: name for t in part})
        write_safetensors(os.path.join(folder, "model.safetensors" if shards == 1 else name), part,
                          unaligned)
    if shards > 1:
        index = dict(metadata=dict(total_size=sum(len(t[3]) for t in tensors)),
                     weight_map=weight_map)
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
            json.dump(index, f, separators=(",", ":"))


def _decode(dtype, shape, raw):
    if dtype == "F32":
        return np.frombuffer(raw, "<f4").reshape(shape)
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(f32).reshape(shape)
    if dtype in ("I64", "I32"):
        return np.frombuffer(raw, "<i8" if dtype == "I64" else "<i4").astype(np.int64).reshape(shape)
    return np.frombuffer(raw, np.uint8).reshape(shape)


def read_checkpoint(folder):
    """-> config, dict of float32 arrays by published name (ids stay integers), dequantised."""
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    raw, dtype = {}, {}
    for name in files:
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        n = 8 + int.from_bytes(data[:8], "little")
        head = json.loads(data[8:n])
        head.pop("__metadata__", None)
        for k, t in head.items():
            a, b = t["data_offsets"]
            raw[k], dtype[k] = _decode(t["dtype"], t["shape"], data[n + a : n + b]), t["dtype"]
    W = {}
    for k, x in raw.items():
        if dtype[k] == "F8_E8M0":
            continue
        s = raw.get(k[: -len("weight")] + "scale") if k.endswith(".weight") else None
        if dtype[k] == "F8_E4M3":
            x = dequantise_fp8(x, s)
        elif dtype[k] == "I8":
            x = dequantise_fp4(x, s)
        W[k] = x
    return c, W
