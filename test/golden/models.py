"""Four tiny checkpoints out of nothing but the standard library: between them everything that the families do differently.
Bytes come from SHAKE-256 of a tensor's name, so they are the same for ever; references.py wrote down what their logits are.
The widths are no multiples of a block of 128, of a vector register or of a tile, so that every edge is ragged."""
import hashlib
import json
import math
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import tiny  # noqa: E402

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
COMMON = {"vocab_size": 120, "hidden_size": 152, "num_hidden_layers": 3, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu", "eos_token_id": 1}
MODELS = {
    # Latent attention with low-rank queries and YaRN, a dense layer, groups of experts by their two best, a shared expert
    "mla_yarn": {
        **COMMON, "model_type": "deepseek_v3", "intermediate_size": 200, "moe_intermediate_size": 72, "num_attention_heads": 5, "num_key_value_heads": 5,
        "n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "q_lora_rank": 56, "kv_lora_rank": 136, "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16, "v_head_dim": 20, "rope_theta": 10000, "quantization_config": FP8,
        "rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 4, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    # Latent attention with full queries, experts of the best group alone, scaled and not normalised, two shared experts
    "mla_plain": {
        **COMMON, "model_type": "deepseek_v2", "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 3, "num_key_value_heads": 3,
        "n_routed_experts": 10, "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": False,
        "routed_scaling_factor": 1.5, "scoring_func": "softmax", "topk_method": "group_limited_greedy", "kv_lora_rank": 72, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_theta": 5000,
    },
    # Heads with norms and biases, a window on every layer, the embedding as head
    "gqa_norm": {
        **COMMON, "model_type": "qwen3_moe", "intermediate_size": 168, "moe_intermediate_size": 136, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 28,
        "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "attention_bias": True, "use_sliding_window": True, "sliding_window": 13,
        "rope_theta": 1000000, "tie_word_embeddings": True, "quantization_config": FP8,
    },
    # A gated shared expert, windows on some layers, a dense layer in the middle, Llama's frequency bands
    "gqa_shared": {
        **COMMON, "model_type": "qwen2_moe", "intermediate_size": 168, "moe_intermediate_size": 56, "shared_expert_intermediate_size": 88, "num_attention_heads": 4,
        "num_key_value_heads": 4, "num_experts": 9, "num_experts_per_tok": 4, "norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "mlp_only_layers": [1], "rope_theta": 10000,
        "rope_scaling": {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64},
    },
}
N_TOKENS = 48

# A byte of the stream as a code of FP8: every sign and exponent, subnormals too, NaN and the largest left out.
CODES = bytes((b & 0x80) | (b & 0x7F) % 0x70 for b in range(256))
CODES_RMS = 27.0  # of their values


def stream(*what):
    return hashlib.shake_256(" ".join(map(str, what)).encode())


def bf16(x):
    return struct.pack("<f", x)[2:]


def tensor(name, shape, size, middle=0.0):
    """BF16, evenly spread around `middle`, as wide as a standard deviation of `size` makes it."""
    value = [bf16(middle + size * math.sqrt(3) * (b - 127.5) / 127.5) for b in range(256)]
    return "BF16", shape, b"".join(value[b] for b in stream(name).digest(math.prod(shape)))


def weight(out, config, name, rows, cols, gain=1.0, fp8=True):
    """A matrix that keeps the size of what it multiplies, times gain."""
    size = gain / math.sqrt(cols)
    if not fp8 or "quantization_config" not in config:
        out[name + ".weight"] = tensor(name, [rows, cols], size)
        return
    blocks = [-(-rows // 128), -(-cols // 128)]
    spread = stream(name, "scales").digest(math.prod(blocks))  # neighbours differ by up to 4, so that a wrong one shows
    out[name + ".weight"] = "F8_E4M3", [rows, cols], stream(name).digest(rows * cols).translate(CODES)
    out[name + ".weight_scale_inv"] = "F32", blocks, b"".join(struct.pack("<f", size / CODES_RMS * 4 ** (b / 255 - 0.5)) for b in spread)


def attention(out, c, p):
    h, heads = c["hidden_size"], c["num_attention_heads"]
    if "kv_lora_rank" in c:
        nope, rope, v, latent, low = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"], c.get("q_lora_rank")
        if low:
            weight(out, c, p + "q_a_proj", low, h)
            out[p + "q_a_layernorm.weight"] = tensor(p + "q_a_layernorm", [low], 0.3, 1)
        weight(out, c, p + ("q_b_proj" if low else "q_proj"), heads * (nope + rope), low or h, 2)
        weight(out, c, p + "kv_a_proj_with_mqa", latent + rope, h)
        out[p + "kv_a_layernorm.weight"] = tensor(p + "kv_a_layernorm", [latent], 0.3, 1)
        weight(out, c, p + "kv_b_proj", heads * (nope + v), latent)
        weight(out, c, p + "o_proj", h, heads * v)
        return
    kv = c["num_key_value_heads"]
    dim = c.get("head_dim", h // heads)
    for name, n in (("q", heads), ("k", kv), ("v", kv)):
        weight(out, c, p + name + "_proj", n * dim, h, 2 if name == "q" else 1)
        if c["model_type"] == "qwen2_moe" or c.get("attention_bias"):
            out[p + name + "_proj.bias"] = tensor(p + name + "_bias", [n * dim], 0.5)
    if c["model_type"] == "qwen3_moe":
        for name in ("q_norm", "k_norm"):
            out[p + name + ".weight"] = tensor(p + name, [dim], 0.3, 1.2)
    weight(out, c, p + "o_proj", h, heads * dim)
    if c.get("attention_bias"):
        out[p + "o_proj.bias"] = tensor(p + "o_bias", [h], 0.2)


def mlp(out, c, p, inter, gain=1.0):
    weight(out, c, p + "gate_proj", inter, c["hidden_size"], 1.5)
    weight(out, c, p + "up_proj", inter, c["hidden_size"])
    weight(out, c, p + "down_proj", c["hidden_size"], inter, 1.5 * gain)


def tensors(c):
    """name -> (dtype, shape, bytes), by the names that the vendors publish."""
    out, h = {}, c["hidden_size"]
    out["model.embed_tokens.weight"] = tensor("embed", [c["vocab_size"], h], 0.2 if c.get("tie_word_embeddings") else 1)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[p + name + ".weight"] = tensor(p + name, [h], 0.3, 1)
        attention(out, c, p + "self_attn.")
        if i < c.get("first_k_dense_replace", 0) or i in c.get("mlp_only_layers", []):
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        n = c.get("n_routed_experts") or c["num_experts"]
        weight(out, c, p + "mlp.gate", n, h, 1.5, fp8=False)
        if c["model_type"] == "deepseek_v3":
            out[p + "mlp.gate.e_score_correction_bias"] = "F32", [n], b"".join(struct.pack("<f", (b - 127.5) / 500) for b in stream(p, "bias").digest(n))
        for e in range(n):
            mlp(out, c, f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
        if c.get("n_shared_experts"):
            mlp(out, c, p + "mlp.shared_experts.", c["n_shared_experts"] * c["moe_intermediate_size"])
        if c.get("shared_expert_intermediate_size"):
            mlp(out, c, p + "mlp.shared_expert.", c["shared_expert_intermediate_size"])
            weight(out, c, p + "mlp.shared_expert_gate", 1, h, 2, fp8=False)
    out["model.norm.weight"] = tensor("norm", [h], 0.3, 1)
    if not c.get("tie_word_embeddings"):
        weight(out, c, "lm_head", c["vocab_size"], h, fp8=False)
    return out


def make(directory, name):
    """Writes the checkpoint; returns the hash of its config and weights, by which a reference knows it."""
    config = MODELS[name]
    os.makedirs(directory, exist_ok=True)
    weights = tiny.shard_bytes(list(tensors(config).items()))
    text = json.dumps(config, indent=1)
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(weights)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        f.write(text)
    return hashlib.sha256(text.encode() + weights).hexdigest()
