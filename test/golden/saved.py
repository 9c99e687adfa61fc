#!/usr/bin/env python3
"""Fixtures give the same logits with their tensors as transformers 5 saves them: experts with rows and columns exchanged and without MXFP4, other names.
saved.py HEARTH SHARED"""
import array
import math
import os
import re
import sys

import checkpoint

CODES = [0, .5, 1, 1.5, 2, 3, 4, 6]
CODES += [-c for c in CODES]


def exchanged(dtype, shape, raw):
    """[n, rows, cols] as [n, cols, rows]."""
    n, rows, cols = shape
    a, out = array.array("I" if dtype == "F32" else "H", raw), array.array("I" if dtype == "F32" else "H")
    for e in range(n):
        for c in range(cols):
            out.extend(a[e * rows * cols + c:(e + 1) * rows * cols:cols])
    return dtype, [n, cols, rows], out.tobytes()


def turned(tensors):
    return {k: exchanged(*t) if re.search(r"mlp\.experts\.\w+_proj$", k) else t for k, t in tensors.items()}


def unquantized(tensors):
    """Experts of gpt-oss in F32, exchanged."""
    out = {}
    for name, (dtype, shape, raw) in tensors.items():
        if name.endswith("_blocks"):
            scales, values = tensors[name[:-7] + "_scales"][2], array.array("f")
            for i, b in enumerate(raw):
                by = 2.0 ** (scales[i // 16] - 127)
                values.extend((CODES[b & 15] * by, CODES[b >> 4] * by))
            out[name[:-7]] = exchanged("F32", [shape[0], shape[1], shape[2] * 32], values.tobytes())
        elif not name.endswith("_scales"):
            out[name] = dtype, shape, raw
    return out


def renamed(pattern, by):
    return lambda tensors: {re.sub(pattern, by, name): t for name, t in tensors.items()}


def with_idle_experts(tensors):
    """Weights for the experts that return their input, which have numbers after the others."""
    numbers = {int(m[1]) for m in (re.search(r"mlp\.experts\.(\d+)\.", name) for name in tensors) if m}
    more = {name.replace("mlp.experts.0.", f"mlp.experts.{max(numbers) + 1 + i}."): t for name, t in tensors.items() if "mlp.experts.0." in name for i in range(2)}
    return {**tensors, **more}


def joined(tensors, pattern, by):
    """Tensors whose names match, apart from their last number or word, one after the other in a tensor with the new name; experts get a dimension of their own."""
    out, parts = {}, {}
    for name, t in tensors.items():
        m = re.fullmatch(pattern, name)
        if m:
            parts.setdefault(m.expand(by), []).append((m["part"], t))
        else:
            out[name] = t
    for name, found in parts.items():
        found.sort(key=lambda f: int(f[0]) if f[0].isdigit() else f[0])
        dtype, (rows, *cols), _ = found[0][1]
        shape = [len(found), rows, *cols] if found[0][0].isdigit() else [len(found) * rows, *cols]
        out[name] = dtype, shape, b"".join(t[2] for _, t in found)
    return out


def minimax_m3_text(tensors):
    """gate and up of each FFN together, the experts of a layer in one tensor."""
    t = {re.sub(r"^language_model\.(model\.)?", r"\1", k): v for k, v in tensors.items() if k.startswith("language_model.")}
    t = {re.sub(r"block_sparse_moe\.", "mlp.", re.sub(r"block_sparse_moe\.(e_score)", r"mlp.gate.\1", re.sub(r"self_attn\.index_", "self_attn.indexer.", k))): v for k, v in t.items()}
    t = {k.replace(".w1.", ".gate_proj.").replace(".w2.", ".down_proj.").replace(".w3.", ".up_proj."): v for k, v in t.items()}
    t = joined(t, r"(?P<p>.*)\.(?P<part>gate|up)_proj\.weight", r"\g<p>.gate_up_proj.weight")
    return joined(t, r"(?P<p>.*\.experts)\.(?P<part>\d+)\.(?P<m>\w+)\.weight", r"\g<p>.\g<m>")


def inkling_text(tensors):
    """Rows of gate and up one after the other instead of alternating; those of shared experts and dense FFNs apart."""
    names = ((r"llm\.embed\.", "embed_tokens."), (r"llm\.embed_norm", "embed_tokens.embed_norm"), (r"^model\.llm\.unembed", "lm_head"), (r"llm\.", ""),
             (r"sconv\.weight", "sconv.conv1d.weight"), (r"attn_norm", "input_layernorm"), (r"mlp_norm", "post_attention_layernorm"), (r"\.attn\.w(.)_(du|dv|ud)", r".attn.\1_proj"),
             (r"\.attn\.", ".self_attn."), (r"gate\.bias", "gate.e_score_correction_bias"), (r"(shared_)?w2_(md|weight)", "down_proj"))
    out = {}
    for name, (dtype, shape, raw) in tensors.items():
        if not name.startswith("model.llm."):
            continue
        for pattern, by in names:
            name = re.sub(pattern, by, name)
        if "w13" not in name:
            out[name] = dtype, shape, raw
            continue
        size = len(raw) // math.prod(shape[:-1])
        half = [b"".join(raw[i:i + size] for i in range(at * size, len(raw), 2 * size)) for at in range(2)]
        if "mlp.experts." in name:
            n, each = shape[0], len(half[0]) // shape[0]
            out[name.replace("w13_weight", "gate_up_proj")] = dtype, shape, b"".join(h[e * each:(e + 1) * each] for e in range(n) for h in half)
        else:
            for part, h in zip(("gate", "up"), half):
                out[re.sub(r"(shared_)?w13_(dn|weight)", part + "_proj", name)] = dtype, [*shape[:-2], shape[-2] // 2, shape[-1]], h
    return out


CASES = {"qwen3_vl_moe": turned, "gpt_oss": unquantized, "kimi_linear": renamed(r"\.mlp\.", ".block_sparse_moe."),
         "bailing_hybrid": renamed(r"attention\.o_proj", "attention.dense"), "longcat_flash": with_idle_experts}
ALONE = {"qwen4_exp": renamed(r"model\.language_model\.", "model."), "minimax_m3_vl": minimax_m3_text, "inkling": inkling_text}
hearth, fixtures, failed = os.path.abspath(sys.argv[1]), checkpoint.fixtures(sys.argv[2]), 0
for family, save in CASES.items():
    config, tensors = checkpoint.fixture(fixtures, family)
    saved = save(tensors)
    assert {(k, tuple(t[1])) for k, t in saved.items()} != {(k, tuple(t[1])) for k, t in tensors.items()}
    want = checkpoint.fixture_logits(hearth, config, tensors)
    config.pop("quantization_config", None)
    failed += not checkpoint.are_close(family, want, checkpoint.fixture_logits(hearth, config, saved))
# The text model alone, with its own config
for family, save in ALONE.items():
    config, tensors = checkpoint.fixture(fixtures, family)
    alone = {**config["text_config"], **{k: config[k] for k in ("tie_word_embeddings", "quantization_config") if k in config}}
    want, got = checkpoint.fixture_logits(hearth, config, tensors), checkpoint.fixture_logits(hearth, alone, save(tensors))
    same = isinstance(want, bytes) and want == got
    print(f"{'ok' if same else 'FAIL'} {alone['model_type']} {got if isinstance(got, str) else ''}")
    failed += not same
sys.exit(failed != 0)
