#!/usr/bin/env python3
"""A checkpoint as Mistral publishes Large 3, with params.json and consolidated.safetensors, gives the logits of the same model as Mistral Small 4 with
transformers' config.json and names. Values that hearth does not know are refused by their keys.
params_json.py HEARTH"""
import json
import os
import re
import subprocess
import sys
import tempfile

import checkpoint
import models
import tiny

NAMES = (("model.", ""), ("embed_tokens", "tok_embeddings"), ("lm_head", "output"), ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm"),
         ("self_attn.", "attention."), ("q_a_proj", "wq_a"), ("q_b_proj", "wq_b"), ("q_a_layernorm", "q_a_norm"), ("kv_a_proj_with_mqa", "wkv_a_with_mqa"),
         ("kv_a_layernorm", "kv_a_norm"), ("kv_b_proj", "wkv_b"), ("o_proj", "wo"), ("mlp.gate.", "gate."), ("mlp.experts", "experts"),
         ("mlp.shared_experts", "shared_experts"), ("mlp.", "feed_forward."), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
BASE = {k: v for k, v in models.MODELS["mla_yarn"].items() if k not in ("quantization_config", "scoring_func", "topk_method", "rope_scaling", "rope_theta")}
CONFIG = {**BASE, "model_type": "mistral4", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "bos_token_id": 1, "eos_token_id": 2,
          "rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0,
                              "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}}
PARAMS = {"dim": CONFIG["hidden_size"], "n_layers": CONFIG["num_hidden_layers"], "head_dim": 128, "hidden_dim": CONFIG["intermediate_size"],
          "n_heads": CONFIG["num_attention_heads"], "n_kv_heads": CONFIG["num_attention_heads"], "rope_theta": 5000.0, "norm_eps": CONFIG["rms_norm_eps"],
          "vocab_size": CONFIG["vocab_size"], "tied_embeddings": False, "max_position_embeddings": CONFIG["max_position_embeddings"], "activation": "silu",
          **{k: CONFIG[k] for k in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")}, "model_type": "transformer",
          "yarn": {"original_max_position_embeddings": 16, "factor": 8, "apply_scale": False, "beta": 4, "alpha": 1}, "sliding_window": None,
          "moe": {"expert_parallel": 1, "expert_model_parallel": 1, "route_every_n": 1, "first_k_dense_replace": CONFIG["first_k_dense_replace"], "num_experts": CONFIG["n_routed_experts"],
                  "num_experts_per_tok": CONFIG["num_experts_per_tok"], "num_expert_groups": 1, "num_expert_groups_per_tok": 1, "routed_scale": 1.5,
                  "expert_hidden_dim": CONFIG["moe_intermediate_size"], "num_shared_experts": CONFIG["n_shared_experts"]},
          "vision_encoder": {"hidden_size": 8}, "llama_4_scaling": {"original_max_position_embeddings": 16, "beta": 0.3}}
TOKENS = ",".join(str(t) for t in range(2, 60))


def renamed(name):
    for old, new in NAMES:
        name = name.replace(old, new, 1)
    return name


def stacked(tensors):
    """The same tensors with those of a layer's experts joined."""
    out = {}
    for name, (dtype, shape, raw) in tensors.items():
        part = re.match(r"(.*\.mlp\.experts\.)\d+\.(gate|up|down)_proj\.weight$", name)
        key = part[1] + ("down_proj" if part[2] == "down" else "gate_up_proj") if part else name
        if part:
            old = out.get(key, (dtype, [0, shape[0] * (1 if part[2] == "down" else 2), shape[1]], b""))
            dtype, shape, raw = dtype, [old[1][0] + (part[2] != "up"), *old[1][1:]], old[2] + raw
        out[key] = dtype, shape, raw
    return out


def logits(params, tensors, listed=False, name=""):
    """The bytes of the logits of a checkpoint in Mistral's form, or what hearth says of it."""
    with tempfile.TemporaryDirectory() as d:
        file = "consolidated-00001-of-00001.safetensors" if listed else "consolidated.safetensors"
        with open(os.path.join(d, file), "wb") as f:
            f.write(tiny.shard_bytes(list(tensors.items())))
        if listed:
            with open(os.path.join(d, "consolidated.safetensors.index.json"), "w", encoding="utf-8") as f:
                json.dump({"weight_map": {n: file for n in tensors}}, f)
        for part, content in (("params.json", params), ("tekken.json", {})):
            with open(os.path.join(d, part), "w", encoding="utf-8") as f:
                json.dump(content, f)
        out = os.path.join(d, "logits")
        p = subprocess.run([HEARTH, "-m", os.path.join(d, name), "--tokens", TOKENS, "--logits-out", out], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if p.returncode:
            return f"exit {p.returncode} {p.stderr}"
        with open(out, "rb") as f:
            return f.read()


def changed(key, **values):
    return {**PARAMS, key: {**PARAMS[key], **values}}


def report(what, ok, got):
    print(f"{'ok' if ok else 'FAIL'} {what} {got.strip() if isinstance(got, str) else ''}")
    return not ok


def main():
    tensors = {n: t for n, t in models.tensors({**CONFIG, "model_type": "deepseek_v3"}).items() if not n.endswith("e_score_correction_bias")}
    want, failed = checkpoint.logits(HEARTH, CONFIG, stacked(tensors), TOKENS), 0
    vendors = {**{renamed(n): t for n, t in tensors.items()}, "vision_encoder.transformer.layers.0.attention.wq.weight": ("BF16", [2], bytes(4))}
    fp8 = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    for what, params, more in (("one file", PARAMS, {}), ("a list of files", PARAMS, {"listed": True}), ("-m params.json", PARAMS, {"name": "params.json"}),
                               ("-m consolidated.safetensors", PARAMS, {"name": "consolidated.safetensors"}), ("FP8's key", {**PARAMS, "quantization": fp8}, {}),
                               ("another quantizer's key", {**PARAMS, "quantization": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, {})):
        got = logits(params, vendors, **more)
        failed += report(what, got == want and isinstance(want, bytes), want if isinstance(want, str) else got)
    got = logits(changed("llama_4_scaling", beta=0.2), vendors)
    failed += report("queries scaled otherwise", isinstance(got, bytes) and got != want, got)
    for what, params, words in (("scaled rotation", changed("yarn", apply_scale=True), "'apply_scale' is false"),
                                ("another length", changed("llama_4_scaling", original_max_position_embeddings=32), "'llama_4_scaling'"),
                                ("no factor of queries", changed("llama_4_scaling", beta=None), "'llama_4_scaling'"),
                                ("no YaRN", {k: v for k, v in PARAMS.items() if k != "yarn"}, "'yarn'"),
                                ("dense layers between", changed("moe", route_every_n=2), "'moe.route_every_n' has a value"),
                                ("an unknown key of experts", changed("moe", capacity=3), "'moe.capacity' is unknown"),
                                ("an unknown key of YaRN", changed("yarn", gamma=3), "'yarn.gamma' is unknown"),
                                ("an unknown key", {**PARAMS, "residual_gates": 3}, "'residual_gates' is unknown"),
                                ("no shared experts", changed("moe", num_shared_experts=0), "without shared experts"),
                                ("no experts", {k: v for k, v in PARAMS.items() if k != "moe"}, "without shared experts"),
                                ("another format", {**PARAMS, "quantization": {"qformat_weight": "int3"}}, "'qformat_weight'"),
                                ("not an object", [PARAMS], "params.json")):
        got = logits(params, vendors)
        failed += report(what, isinstance(got, str) and got.startswith("exit 3") and words in got and "params.json" in got, got if isinstance(got, str) else "accepted")
    return failed != 0


HEARTH = os.path.abspath(sys.argv[1])
sys.exit(main())
