"""What a checkpoint's logits are: DeepSeek-V2 and V3, Qwen2-MoE, Qwen3-MoE and Mixtral in float64, written after the papers
and the vendors' code to be read, not to be fast. Nothing here is shared with the engine, not even the reading of files.
Needs NumPy; the tests do not: they compare with what references.py has written down."""
import json
import math
import os
import struct

import numpy as np


def e4m3(codes):
    """FP8 E4M3 without infinities: sign, 4 bits of exponent (bias 7), 3 of mantissa; exponent 0 is subnormal."""
    codes = codes.astype(np.int64)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where(codes & 128, -value, value)


class Checkpoint:
    """The tensors of a directory in float64; those in FP8 multiplied by their blocks' scales."""

    def __init__(self, directory):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.block = (self.config.get("quantization_config") or {}).get("weight_block_size") or [128, 128]
        self.raw = {}
        for name in sorted(os.listdir(directory)):
            if name.endswith(".safetensors"):
                with open(os.path.join(directory, name), "rb") as f:
                    data = f.read()
                n = struct.unpack("<Q", data[:8])[0]
                for key, t in json.loads(data[8 : 8 + n]).items():
                    if key != "__metadata__":
                        self.raw[key] = (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]])

    def __contains__(self, name):
        return name in self.raw

    def __getitem__(self, name):
        dtype, shape, data = self.raw[name]
        if dtype == "F32":
            x = np.frombuffer(data, "<f4").astype(np.float64)
        elif dtype == "BF16":
            x = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        else:
            assert dtype == "F8_E4M3", dtype
            x = e4m3(np.frombuffer(data, np.uint8))
        x = x.reshape(shape)
        if dtype == "F8_E4M3":
            scale = self[name + "_scale_inv"]
            x = x * np.repeat(np.repeat(scale, self.block[0], 0), self.block[1], 1)[: shape[0], : shape[1]]
        return x

    def linear(self, x, name):
        y = x @ self[name + ".weight"].T
        return y + self[name + ".bias"] if name + ".bias" in self else y


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


# --- Positions --------------------------------------------------------------------------------------------------------------

def frequencies(config, dim):
    """Radians a position for each of dim / 2 pairs, and the factor that cos and sin carry."""
    scaling = config.get("rope_scaling") or {}
    theta = config.get("rope_theta", 10000)
    freq = theta ** (-np.arange(0, dim, 2) / dim)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return freq, 1.0
    factor = scaling["factor"]
    if kind == "linear":
        return freq / factor, 1.0
    original = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
    if kind == "llama3":  # long waves are stretched, short ones stay, those between are mixed
        turns = original * freq / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = np.clip((turns - low) / (high - low), 0, 1)
        return keep * freq + (1 - keep) * freq / factor, 1.0
    assert kind == "yarn", kind

    def dimension(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(dimension(scaling.get("beta_fast") or 32)), 0)
    last = min(math.ceil(dimension(scaling.get("beta_slow") or 1)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - first) / ((last - first) or 0.001), 0, 1)
    freq = freq / factor * ramp + freq * (1 - ramp)
    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dim:
        return freq, (0.1 * mscale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
    return freq, 0.1 * math.log(factor) + 1


def rotate(x, config, pairs):
    """x [T, heads, dim] turned by its position; pairs: neighbours belong together (DeepSeek), else halves do."""
    half = x.shape[-1] // 2
    freq, factor = frequencies(config, x.shape[-1])
    angle = np.arange(len(x))[:, None, None] * freq
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
    a, b = a * cos - b * sin, b * cos + a * sin
    return np.stack((a, b), -1).reshape(x.shape) if pairs else np.concatenate((a, b), -1)


# --- Attention --------------------------------------------------------------------------------------------------------------

def attend(q, k, v, scale, window=0):
    """q, k [T, heads, dim], v [T, heads, v_dim]: each position sees itself and those before it, `window` of them at most."""
    t = np.arange(len(q))
    seen = t[None, :] <= t[:, None]
    if window:
        seen &= t[None, :] > t[:, None] - window
    score = np.einsum("qhd,khd->hqk", q, k) * scale
    return np.einsum("hqk,khd->qhd", softmax(np.where(seen, score, -np.inf)), v).reshape(len(q), -1)


def latent_attention(m, x, name):
    """Multi-head latent attention as the DeepSeek-V2 paper writes it: keys and values of every head from one small latent."""
    c, n, heads = m.config, len(x), m.config["num_attention_heads"]
    nope, rope, latent = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
    eps = c["rms_norm_eps"]
    if c.get("q_lora_rank"):
        low = rms_norm(m.linear(x, name + "q_a_proj"), m[name + "q_a_layernorm.weight"], eps)
        q = m.linear(low, name + "q_b_proj").reshape(n, heads, -1)
    else:
        q = m.linear(x, name + "q_proj").reshape(n, heads, -1)
    q = np.concatenate((q[..., :nope], rotate(q[..., nope:], c, True)), -1)
    kv = m.linear(x, name + "kv_a_proj_with_mqa")
    key_rope = rotate(kv[:, None, latent:], c, True)
    kv = m.linear(rms_norm(kv[:, :latent], m[name + "kv_a_layernorm.weight"], eps), name + "kv_b_proj").reshape(n, heads, -1)
    k = np.concatenate((kv[..., :nope], np.broadcast_to(key_rope, (n, heads, rope))), -1)
    scale = (nope + rope) ** -0.5
    scaling = c.get("rope_scaling") or {}
    if scaling.get("mscale_all_dim") and scaling["factor"] > 1:
        scale *= (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2
    return m.linear(attend(q, k, kv[..., nope:], scale), name + "o_proj")


def grouped_attention(m, x, name, layer):
    """Several heads of queries to one of keys and values."""
    c, n, heads, kv = m.config, len(x), m.config["num_attention_heads"], m.config["num_key_value_heads"]
    q, k, v = (m.linear(x, name + p).reshape(n, h, -1) for p, h in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)))
    if name + "q_norm.weight" in m:
        q, k = (rms_norm(y, m[name + p + "_norm.weight"], c["rms_norm_eps"]) for y, p in ((q, "q"), (k, "k")))
    q, k = rotate(q, c, False), rotate(k, c, False)
    window = (c.get("sliding_window") or 0) if c.get("use_sliding_window", c["model_type"] == "mixtral") else 0
    if "layer_types" in c and c["layer_types"][layer] == "full_attention":
        window = 0
    k, v = (np.repeat(y, heads // kv, 1) for y in (k, v))
    return m.linear(attend(q, k, v, q.shape[-1] ** -0.5, window), name + "o_proj")


# --- Experts ----------------------------------------------------------------------------------------------------------------

def mlp(m, x, name, gate="gate_proj", up="up_proj", down="down_proj"):
    return m.linear(silu(m.linear(x, name + gate)) * m.linear(x, name + up), name + down)


def route(m, x, name):
    """Experts and weights [T, k] of each token, and how near to a tie the nearest choice was."""
    c = m.config
    logits = m.linear(x, name + "gate")
    experts, k = logits.shape[1], c["num_experts_per_tok"]
    sigmoid = c.get("scoring_func", "sigmoid" if c["model_type"] in ("deepseek_v3", "kimi_k2") else "softmax") == "sigmoid"
    score = 1 / (1 + np.exp(-logits)) if sigmoid else softmax(logits)
    choice = score.copy()
    gap = math.inf
    if name + "gate.e_score_correction_bias" in m:
        choice += m[name + "gate.e_score_correction_bias"]
    groups = c.get("n_group", 1) if c.get("topk_method") in ("noaux_tc", "group_limited_greedy") else 1
    if groups > 1:  # only the best groups count: by their two best experts (V3) or by their best (V2)
        inside = np.sort(choice.reshape(len(x), groups, -1), -1)
        rank = inside[..., -2:].sum(-1) if c["topk_method"] == "noaux_tc" else inside[..., -1]
        order = np.sort(rank, -1)[:, ::-1]
        if c["topk_group"] < groups:
            gap = min(gap, (order[:, c["topk_group"] - 1] - order[:, c["topk_group"]]).min())
        kept = rank >= order[:, c["topk_group"] - 1][:, None]
        choice = np.where(np.repeat(kept, experts // groups, 1), choice, -np.inf)
    chosen = np.argsort(-choice, -1, kind="stable")[:, :k]
    order = -np.sort(-choice, -1)
    gap = min(gap, (order[:, k - 1] - order[:, k]).min())
    weight = np.take_along_axis(score, chosen, -1)
    normed = c.get("norm_topk_prob", False) or c["model_type"] == "mixtral"
    if c["model_type"] == "deepseek_v2":  # either normalised or scaled (the vendor's MoEGate)
        return chosen, weight / weight.sum(-1, keepdims=True) if normed and k > 1 else weight * c.get("routed_scaling_factor", 1), gap
    if normed:
        weight = weight / (weight.sum(-1, keepdims=True) + 1e-20)
    return chosen, weight * c.get("routed_scaling_factor", 1), gap


def experts(m, x, name):
    mixtral = m.config["model_type"] == "mixtral"
    chosen, weight, gap = route(m, x, name)
    y = np.zeros_like(x)
    for e in np.unique(chosen):
        rows, place = np.nonzero(chosen == e)
        names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        y[rows] += weight[rows, place][:, None] * mlp(m, x[rows], f"{name}experts.{e}.", *names)
    if name + "shared_experts.up_proj.weight" in m:
        y += mlp(m, x, name + "shared_experts.")
    if name + "shared_expert.up_proj.weight" in m:
        y += mlp(m, x, name + "shared_expert.") / (1 + np.exp(-m.linear(x, name + "shared_expert_gate")))
    return y, gap


# --- The whole --------------------------------------------------------------------------------------------------------------

def forward(m, tokens):
    """Logits [T, vocab] of a sequence, and the smallest distance of any router's choice to a tie."""
    c, eps = m.config, m.config.get("rms_norm_eps", 1e-6)
    x = m["model.embed_tokens.weight"][tokens]
    nearest = math.inf
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        h = rms_norm(x, m[name + "input_layernorm.weight"], eps)
        x = x + (latent_attention(m, h, name + "self_attn.") if "kv_lora_rank" in c else grouped_attention(m, h, name + "self_attn.", layer))
        h = rms_norm(x, m[name + "post_attention_layernorm.weight"], eps)
        block = name + ("block_sparse_moe." if c["model_type"] == "mixtral" else "mlp.")
        if block + "gate.weight" in m:
            y, gap = experts(m, h, block)
            nearest = min(nearest, gap)
        else:
            y = mlp(m, h, block)
        x = x + y
    head = "model.embed_tokens" if c.get("tie_word_embeddings") else "lm_head"
    return m.linear(rms_norm(x, m["model.norm.weight"], eps), head), nearest
