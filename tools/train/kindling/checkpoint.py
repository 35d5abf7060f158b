"""Training state (bf16 shards) and the published checkpoint format (FP8 / FP4 / BF16 / F32 / I64 safetensors).

`named_tensors` is the one place that knows the checkpoint's tensor names and storage classes; export, the read-back
check and the loader of trained state all go through it.
"""

import json
import os

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from . import numerics as num

SHARD_BYTES = 14 * 2**20
_NIBBLE = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _block_names(block, prefix):
    """(checkpoint name, tensor, class) of one layer; class is fp8, fp4, bf16, f32 or i64."""
    a, f = block.attn, block.ffn
    for n in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b"):
        yield f"{prefix}attn.{n}.weight", getattr(a, n).weight, "fp8"
    for n in ("q_norm", "kv_norm"):
        yield f"{prefix}attn.{n}.weight", getattr(a, n).weight, "bf16"
    yield f"{prefix}attn.attn_sink", a.attn_sink, "f32"
    compressors = [("attn.compressor.", a.compressor)] if a.m else []
    if a.m == 4:
        yield f"{prefix}attn.indexer.wq_b.weight", a.indexer.wq_b.weight, "fp8"
        yield f"{prefix}attn.indexer.weights_proj.weight", a.indexer.weights_proj.weight, "bf16"
        compressors.append(("attn.indexer.compressor.", a.indexer.compressor))
    for p, k in compressors:
        yield f"{prefix}{p}ape", k.ape, "f32"
        for n in ("wkv", "wgate", "norm"):
            yield f"{prefix}{p}{n}.weight", getattr(k, n).weight, "bf16"
    for n in ("attn_norm", "ffn_norm"):
        yield f"{prefix}{n}.weight", getattr(block, n).weight, "bf16"
    for site in ("attn", "ffn"):
        for k in ("fn", "base", "scale"):
            yield f"{prefix}hc_{site}_{k}", getattr(block, f"hc_{site}_{k}"), "f32"
    yield f"{prefix}ffn.gate.weight", f.gate.weight, "bf16"
    if f.hashed:
        yield f"{prefix}ffn.gate.tid2eid", f.gate.tid2eid, "i64"
    else:
        yield f"{prefix}ffn.gate.bias", f.gate.bias, "f32"
    for n in ("w1", "w2", "w3"):
        yield f"{prefix}ffn.shared_experts.{n}.weight", f.shared_experts[n].weight, "fp8"
        for e in range(f.c.n_routed_experts):
            yield f"{prefix}ffn.experts.{e}.{n}.weight", getattr(f.experts, n)[e], "fp4"


def _head_names(module, prefix):
    for k in ("fn", "base", "scale"):
        yield f"{prefix}hc_head_{k}", getattr(module, f"hc_head_{k}"), "f32"
    yield f"{prefix}norm.weight", module.norm.weight, "bf16"


def named_tensors(target, drafter=None):
    """Every tensor of the checkpoint as (name, live tensor or view, storage class)."""
    yield "embed.weight", target.embed.weight, "bf16"
    yield "head.weight", target.head.weight, "bf16"
    yield from _head_names(target, "")
    for l, block in enumerate(target.layers):
        yield from _block_names(block, f"layers.{l}.")
    if drafter is None:
        return
    yield "mtp.0.main_proj.weight", drafter.main_proj.weight, "fp8"
    yield "mtp.0.main_norm.weight", drafter.main_norm.weight, "bf16"
    for s, block in enumerate(drafter.stages):
        yield from _block_names(block, f"mtp.{s}.")
    last = f"mtp.{len(drafter.stages) - 1}."
    yield from _head_names(drafter.last, last)
    yield last + "markov_head.markov_w1.weight", drafter.last.markov_w1, "bf16"
    yield last + "markov_head.markov_w2.weight", drafter.last.markov_w2, "bf16"
    yield last + "confidence_head.proj.weight", drafter.last.confidence, "bf16"


def mtp_tensors(mtp):
    """The same for the block of multi-token prediction."""
    for n in ("enorm", "hnorm"):
        yield f"mtp.0.{n}.weight", getattr(mtp, n).weight, "bf16"
    for n in ("e_proj", "h_proj"):
        yield f"mtp.0.{n}.weight", getattr(mtp, n).weight, "fp8"
    yield from _block_names(mtp.block, "mtp.0.")
    yield from _head_names(mtp, "mtp.0.")


# ---------------------------------------------------------------- encoding
def _e8m0(scale):
    return (num.exponent(scale) + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def encode(name, tensor, kind):
    """Stored tensors of one parameter: {name: tensor} with a `.scale` beside quantised weights."""
    w = tensor.detach().float().cpu().contiguous()
    if kind in ("fp8", "fp4"):
        w = w.bfloat16().float()  # training state is kept in bf16: quantise the same numbers whenever it is done
    if kind == "fp8":
        s = num.fp8_weight_scale(w)
        q = w / s.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return {name: num.round_to(q, num.E4M3).to(torch.float8_e4m3fn), name[:-6] + "scale": _e8m0(s)}
    if kind == "fp4":
        s = num.fp4_weight_scale(w)
        q = num.round_to(w / s.repeat_interleave(32, 1), num.E2M1)
        code = torch.searchsorted(_NIBBLE, q.abs()).to(torch.uint8) | (torch.signbit(q).to(torch.uint8) << 3)
        return {name: (code[:, 0::2] | (code[:, 1::2] << 4)).view(torch.int8), name[:-6] + "scale": _e8m0(s)}
    if kind == "i64":
        return {name: tensor.detach().cpu().long().contiguous()}
    return {name: w.bfloat16() if kind == "bf16" else w}


def decode(name, stored, kind):
    """Float32 values of one parameter from its stored tensors."""
    t = stored[name]
    if kind in ("fp8", "fp4"):
        s = num.pow2(stored[name[:-6] + "scale"].view(torch.uint8).to(torch.int32) - 127)
        if kind == "fp8":
            return t.float() * s.repeat_interleave(128, 0).repeat_interleave(128, 1)
        code = t.view(torch.uint8)
        code = torch.stack([code & 15, code >> 4], -1).flatten(-2).long()
        return _NIBBLE[code & 7] * torch.where(code > 7, -1.0, 1.0) * s.repeat_interleave(32, 1)
    return t if kind == "i64" else t.float()


def _write_shards(tensors, folder, stem, limit=SHARD_BYTES):
    """Write {name: tensor} into shards of at most `limit` bytes with an index; returns the file names."""
    os.makedirs(folder, exist_ok=True)
    shards, size = [{}], 0
    for k, v in tensors.items():
        n = v.numel() * v.element_size()
        if size + n > limit and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][k] = v.contiguous()
        size += n
    names = [f"{stem}-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for old in os.listdir(folder):
        if old.startswith(stem + "-") and old.endswith(".safetensors"):
            os.remove(os.path.join(folder, old))
    weight_map = {}
    for n, s in zip(names, shards):
        save_file(s, os.path.join(folder, n), metadata={"format": "pt"})
        weight_map.update({k: n for k in s})
    index = {
        "metadata": {"total_size": sum(v.numel() * v.element_size() for v in tensors.values())},
        "weight_map": weight_map,
    }
    with open(os.path.join(folder, f"{stem}.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump(index, f, indent=1, sort_keys=True)
        f.write("\n")
    return names


def _read_shards(folder, stem):
    with open(os.path.join(folder, f"{stem}.safetensors.index.json"), encoding="utf-8") as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    out = {}
    for n in files:
        out.update(load_file(os.path.join(folder, n)))
    return out


def _stored(tensors):
    """Encoded tensors, after a look that reading them back gives the rounded weights."""
    stored = {}
    for name, tensor, kind in tensors:
        part = encode(name, tensor, kind)
        stored.update(part)
        w = tensor.detach().float().cpu()
        w = w if kind in ("f32", "i64") else w.bfloat16().float()
        want = num.fp8_weight_qdq(w) if kind == "fp8" else num.fp4_weight_qdq(w) if kind == "fp4" else w
        if not torch.equal(decode(name, part, kind).float(), want):
            raise ValueError(f"{name}: stored values do not read back")
    return stored


def _write_config(raw, folder):
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(raw, f, indent=2)
        f.write("\n")


def export(target, drafter, folder):
    """Write the published format."""
    names = _write_shards(_stored(named_tensors(target, drafter)), folder, "model")
    _write_config(target.c.raw, folder)
    return names


def export_mtp(mtp, base, folder):
    """Write the block as a shard of its own, with the config and the index of a checkpoint whose other shards are `base`'s."""
    stored = _stored(mtp_tensors(mtp))
    names = _write_shards(stored, folder, "mtp")
    os.remove(os.path.join(folder, "mtp.safetensors.index.json"))
    with open(os.path.join(base, "model.safetensors.index.json"), encoding="utf-8") as f:
        weight_map = {k: v for k, v in json.load(f)["weight_map"].items() if not k.startswith("mtp.")}
    sizes = {}
    for shard in sorted(set(weight_map.values())):
        with safe_open(os.path.join(base, shard), "pt") as f:
            for k in f.keys():
                sizes[k] = f.get_tensor(k).numel() * f.get_tensor(k).element_size()
    total = sum(sizes[k] for k in weight_map) + sum(v.numel() * v.element_size() for v in stored.values())
    weight_map.update({k: names[0] for k in stored})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=1, sort_keys=True)
        f.write("\n")
    raw = {k: v for k, v in mtp.c.raw.items() if not k.startswith("dspark_")}
    raw["compress_ratios"] = raw["compress_ratios"][: raw["num_hidden_layers"]] + [0]
    _write_config(raw, folder)
    return names


@torch.no_grad()
def put_on_grid(target, drafter=None, mtp=None):
    """Replace every weight by the value that its exported form will have, so that no pass has to round it again."""
    for name, tensor, kind in [*named_tensors(target, drafter), *(mtp_tensors(mtp) if mtp else ())]:
        if kind in ("fp8", "fp4", "bf16"):
            tensor.copy_(decode(name, encode(name, tensor, kind), kind))


@torch.no_grad()
def load_export(target, drafter, folder):
    """Fill a model with the dequantised weights of a published-format folder."""
    stored = _read_shards(folder, "model")
    for name, tensor, kind in named_tensors(target, drafter):
        tensor.copy_(decode(name, stored, kind))


# ---------------------------------------------------------------- state between stages
def save_state(module, folder, stem):
    """bf16 weights (float32 for vectors and hyper-connections, which are few) of a module; optimiser moments are not kept."""
    out = {}
    for k, v in module.state_dict().items():
        small = v.dim() < 2 or "hc_" in k or k.endswith("ape")
        out[k] = v.detach().cpu().contiguous() if small or not v.is_floating_point() else v.detach().cpu().bfloat16()
    return _write_shards(out, folder, stem)


def load_state(module, folder, stem):
    module.load_state_dict(_read_shards(folder, stem))


def is_published(folder):
    """Whether `folder` holds a checkpoint in the published format rather than training state."""
    return os.path.exists(os.path.join(folder, "model.safetensors.index.json"))
