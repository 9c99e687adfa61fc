#!/usr/bin/env python3
"""Fixtures give the same logits with their tensors as MLX names, stacks, splits and shapes them, without quantization (which e2e_quantized tests).
mlx.py HEARTH SHARED"""
import array
import os
import re
import struct
import sys

import checkpoint

PLUS_ONE = re.compile(r"(input_layernorm|post_attention_layernorm|model\.norm|language_model\.norm|q_norm|k_norm)\.weight$")


def floats(dtype, raw):
    if dtype == "F32":
        return array.array("f", raw)
    return array.array("f", [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)])


def switched(tensors, old=("gate_proj", "up_proj", "down_proj"), to="mlp.switch_mlp", new=("gate_proj", "up_proj", "down_proj")):
    """The experts of a layer in one tensor for each of their matrices."""
    out, parts = {}, {}
    for name, t in tensors.items():
        m = re.fullmatch(r"(.*\.layers\.\d+\.)\w+\.experts\.(\d+)\.(\w+)\.weight", name)
        if m:
            parts.setdefault(f"{m[1]}{to}.{new[old.index(m[3])]}.weight", {})[int(m[2])] = t
        else:
            out[name] = t
    for name, experts in parts.items():
        out[name] = experts[0][0], [len(experts), *experts[0][1]], b"".join(experts[e][2] for e in range(len(experts)))
    return out


def qwen3_5(tensors):
    """Another prefix, norms with their 1, the channels of convolutions before the taps, and stacked gate and up apart."""
    out = {}
    for name, (dtype, shape, raw) in tensors.items():
        if "visual" in name:
            continue
        if PLUS_ONE.search(name):
            dtype, raw = "F32", array.array("f", [1 + w for w in floats(dtype, raw)]).tobytes()
        if name.endswith("conv1d.weight"):
            shape = [shape[0], shape[2], 1]
        name = re.sub(r"^model\.language_model\.", "language_model.model.", name) if name.startswith("model.") else "language_model." + name
        if not name.endswith("gate_up_proj"):
            out[re.sub(r"experts\.down_proj$", "switch_mlp.down_proj.weight", name)] = dtype, shape, raw
            continue
        n, rows, cols = shape
        each = len(raw) // n // 2
        for at, part in enumerate(("gate_proj", "up_proj")):
            out[name.replace("experts.gate_up_proj", f"switch_mlp.{part}.weight")] = dtype, [n, rows // 2, cols], b"".join(raw[(2 * e + at) * each:(2 * e + at + 1) * each] for e in range(n))
    return out


def gpt_oss(tensors):
    """Rows of gate and up, which alternate, apart; MXFP4 as words with exponents beside them."""
    out = {}
    for name, (dtype, shape, raw) in tensors.items():
        m = re.fullmatch(r"(.*experts\.)(gate_up|down)_proj_(blocks|scales|bias)", name)
        if not m:
            out[name] = dtype, shape, raw
            continue
        ending = {"blocks": "weight", "scales": "scales", "bias": "bias"}[m[3]]
        row = len(raw) // (shape[0] * shape[1])
        lines = [raw[i:i + row] for i in range(0, len(raw), row)]
        parts = {"gate_proj": lines[::2], "up_proj": lines[1::2]} if m[2] == "gate_up" else {"down_proj": lines}
        for part, some in parts.items():
            cols = {"blocks": [row // 4], "scales": [row], "bias": []}[m[3]]
            out[f"{m[1]}{part}.{ending}"] = "U32" if m[3] == "blocks" else dtype, [shape[0], len(some) // shape[0], *cols], b"".join(some)
    return out


def split_kv_b(tensors, config):
    """MLA's up-projection of keys, transposed, and of values, each by heads."""
    heads, nope, v, out = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"], {}
    for name, (dtype, shape, raw) in tensors.items():
        if not name.endswith("self_attn.kv_b_proj.weight"):
            out[name] = dtype, shape, raw
            continue
        size, lora = len(raw) // (shape[0] * shape[1]), shape[1]
        rows = [raw[i:i + lora * size] for i in range(0, len(raw), lora * size)]
        keys = [rows[h * (nope + v):][:nope] for h in range(heads)]
        out[name.replace("kv_b_proj", "embed_q")] = dtype, [heads, lora, nope], b"".join(k[c * size:(c + 1) * size] for head in keys for c in range(lora) for k in head)
        out[name.replace("kv_b_proj", "unembed_out")] = dtype, [heads, v, lora], b"".join(b"".join(rows[h * (nope + v) + nope:][:v]) for h in range(heads))
    return switched(out)


CASES = {"qwen3_5_moe": lambda t, c: qwen3_5(t), "gpt_oss": lambda t, c: gpt_oss(t), "glm4_moe_lite": split_kv_b,
         "mixtral": lambda t, c: switched(t, ("w1", "w3", "w2"), "block_sparse_moe.switch_mlp")}
hearth, fixtures, failed = os.path.abspath(sys.argv[1]), checkpoint.fixtures(sys.argv[2]), 0
for family, save in CASES.items():
    config, tensors = checkpoint.fixture(fixtures, family)
    want = checkpoint.fixture_logits(hearth, config, tensors)
    failed += not checkpoint.are_close(family, want, checkpoint.fixture_logits(hearth, config, save(tensors, config), metadata={"format": "mlx"}))
sys.exit(failed != 0)
