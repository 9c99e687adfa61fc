"""Computes a checkpoint's logits: DeepSeek-V2, V3, V4 and V4.1, Qwen2-MoE, Qwen3-MoE, Mixtral, GLM-4 MoE, MiniMax-M2, gpt-oss, Phi-3.5-MoE and DBRX in float64, written from the papers
and the vendors' code, for readability rather than speed. Shares nothing with the engine, not even the reading of files.
One file, because the families are told apart inside common functions, as in the papers.
Needs NumPy; the tests do not, because they compare with what references.py has recorded."""
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


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Checkpoint:
    """The tensors of a directory in float64; FP8 ones multiplied by their blocks' scales."""

    bf16_caches = False  # for families that call cached()

    def __init__(self, directory):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.block = (self.config.get("quantization_config") or {}).get("weight_block_size") or [128, 128]
        self.raw, self.vocab, tokenizer = {}, None, os.path.join(directory, "tokenizer.json")
        if os.path.exists(tokenizer):
            with open(tokenizer, encoding="utf-8") as f:
                self.vocab = json.load(f)["model"].get("vocab")
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

    def cached(self, x):
        """Rows as a KV cache has them."""
        return bf16(x) if self.bf16_caches else x

    def __getitem__(self, name):
        if name + "_blocks" in self.raw:
            return self.mxfp4(name)
        if name + "_packed" in self.raw:  # MXFP4 of compressed-tensors: two codes per byte, exponents of 32 columns
            (_, shape, data), (_, _, scale) = self.raw[name + "_packed"], self.raw[name + "_scale"]
            codes, power = np.frombuffer(data, np.uint8).reshape(shape), np.frombuffer(scale, np.uint8).astype(int) - 127
            return (np.stack((FP4[codes & 15], FP4[codes >> 4]), -1).reshape(-1, 32) * 2.0 ** power[:, None]).reshape(shape[0], -1)
        dtype, shape, data = self.raw[name]
        if name + "_amax" in self.raw:  # NVFP4: two codes per byte, a scale for 16 columns, two factors for each expert
            codes, scale = np.frombuffer(data, np.uint8).reshape(shape), e4m3(np.frombuffer(self.raw[name + "_scale"][2], np.uint8))
            x = np.stack((FP4[codes & 15], FP4[codes >> 4]), -1).reshape(*shape[:2], -1, 16) * scale.reshape(*shape[:2], -1, 1)
            return x.reshape(*shape[:2], -1) * (self[name + "_amax"] / self[name + "_outer_scale_denominator"])[:, None, None]
        if self.raw.get(name + "_scale", [""])[0] == "U8":  # MXFP8: exponents of 32 columns
            power = np.frombuffer(self.raw[name + "_scale"][2], np.uint8).astype(int) - 127
            return (e4m3(np.frombuffer(data, np.uint8)).reshape(-1, 32) * 2.0 ** power[:, None]).reshape(shape)
        if dtype == "F32":
            x = np.frombuffer(data, "<f4").astype(np.float64)
        elif dtype == "BF16":
            x = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        elif dtype in ("I32", "I64"):
            return np.frombuffer(data, "<i4" if dtype == "I32" else "<i8").reshape(shape)
        elif dtype == "F8_E8M0":
            x = 2.0 ** (np.frombuffer(data, np.uint8).astype(int) - 127)
        elif dtype == "I8":  # two FP4 codes per byte, the low one first; power-of-two scales for blocks of 32
            codes = np.frombuffer(data, np.uint8)
            x = np.stack((FP4[codes & 15], FP4[codes >> 4]), -1).reshape(shape[0], -1, 32) * self[name.removesuffix("weight") + "scale"][..., None]
            shape = [shape[0], -1]
        else:
            assert dtype == "F8_E4M3", dtype
            x = e4m3(np.frombuffer(data, np.uint8))
        x = x.reshape(shape)
        if dtype == "F8_E4M3" and name + "_scale" in self.raw:  # one per row
            x = x * self[name + "_scale"].reshape(-1, 1)
        elif dtype == "F8_E4M3":
            names = name + "_scale_inv", name.removesuffix("weight") + "qscale_weight", name.removesuffix("weight") + "scale"
            scale = self[next(n for n in names if n in self.raw)]
            x = x * np.repeat(np.repeat(scale, self.block[0], 0), self.block[1], 1)[: shape[0], : shape[1]]
        return x

    def mxfp4(self, name):
        """[experts, rows, cols / 32, 16] of two codes per byte, the low one first, and exponents of blocks of 32."""
        (_, shape, blocks), (_, _, scales) = self.raw[name + "_blocks"], self.raw[name + "_scales"]
        codes, power = np.frombuffer(blocks, np.uint8).reshape(shape), np.frombuffer(scales, np.uint8).reshape(shape[:3]).astype(int)
        x = np.stack((FP4[codes & 15], FP4[codes >> 4]), -1).reshape(*shape[:3], 32) * 2.0 ** (power - 127)[..., None]
        return x.reshape(*shape[:2], -1)

    def linear(self, x, name):
        y = x @ self[name + ".weight"].T
        return y + self[name + ".bias"] if name + ".bias" in self else y


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


NEXT = ("qwen3_next", "qwen3_5_text")


def norm(m, x, name):
    """The model's kind of norm: LayerNorm (Phi, DBRX) or RMSNorm."""
    eps = m.config.get("rms_norm_eps", 1e-5 if m.config["model_type"] == "dbrx" else 1e-6)
    if name + ".W_down.weight" in m:  # multiplied by a gate of low rank
        y = rms_norm(x, m[name + ".norm.weight"], eps)
        return y * sigmoid(m.linear(silu(m.linear(y, name + ".W_down")), name + ".W_up"))
    if m.config["model_type"] not in ("phimoe", "dbrx"):
        return rms_norm(x, m[name + ".weight"] + (m.config["model_type"] in NEXT), eps)  # that family publishes it minus 1
    x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * m[name + ".weight"]
    return y + m[name + ".bias"] if name + ".bias" in m else y


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


# --- Positions --------------------------------------------------------------------------------------------------------------

def frequencies(config, dim, length):
    """Radians per position for each of dim / 2 pairs, and the factor on cos and sin."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = config.get("attn_config", config).get("rope_theta") or scaling.get("rope_theta", 10000)
    freq = theta ** (-np.arange(0, dim, 2) / dim)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return freq, 1.0
    if kind == "longrope":
        far = "long" if length > scaling["original_max_position_embeddings"] else "short"
        return freq / np.array(scaling[far + "_factor"]), scaling[far + "_mscale"]
    factor = scaling["factor"]
    if kind == "linear":
        return freq / factor, 1.0
    original = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
    if kind == "llama3":  # long wavelengths are stretched, short ones stay, those between are interpolated
        turns = original * freq / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = np.clip((turns - low) / (high - low), 0, 1)
        return keep * freq + (1 - keep) * freq / factor, 1.0
    assert kind == "yarn", kind

    def dimension(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    down, up = (math.floor, math.ceil) if scaling.get("truncate", True) else (float, float)
    first = max(down(dimension(scaling.get("beta_fast") or 32)), 0)
    last = min(up(dimension(scaling.get("beta_slow") or 1)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - first) / ((last - first) or 0.001), 0, 1)
    freq = freq / factor * ramp + freq * (1 - ramp)
    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dim:
        return freq, (0.1 * mscale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
    return freq, 0.1 * math.log(factor) + 1


def bf16(x):
    """Rounded to BF16."""
    u = np.asarray(x, "<f4").view("<u4")
    return ((u + np.uint32(0x7FFF) + (u >> 16 & 1)) >> 16 << 16).view("<f4").astype(np.float64)


def rotate(x, config, pairs):
    """x [T, heads, dim] rotated by its position; pairs: adjacent elements form pairs (DeepSeek), otherwise halves do."""
    half = x.shape[-1] // 2
    freq, factor = frequencies(config, x.shape[-1], len(x))
    angle = np.arange(len(x))[:, None, None] * freq
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
    a, b = a * cos - b * sin, b * cos + a * sin
    return np.stack((a, b), -1).reshape(x.shape) if pairs else np.concatenate((a, b), -1)


# --- Attention --------------------------------------------------------------------------------------------------------------

def attend(q, k, v, scale, window=0, sinks=None, chosen=None):
    """q, k [T, heads, dim], v [T, heads, v_dim]: each position attends to itself and earlier ones, `window` of them at most, or to the
    selected ones among them [T, T]. sinks [heads]: an additional score in the softmax without a value."""
    t = np.arange(len(q))
    seen = t[None, :] <= t[:, None]
    if window:
        seen &= t[None, :] > t[:, None] - window
    if chosen is not None:
        seen &= chosen
    score = np.einsum("qhd,khd->hqk", q, k) * scale
    score = np.where(seen, score, -np.inf)
    if sinks is not None:
        score = np.concatenate((score, np.broadcast_to(sinks[:, None, None], (*score.shape[:2], 1))), -1)
    return np.einsum("hqk,khd->qhd", softmax(score)[..., : len(k)], v).reshape(len(q), -1)


def lightning_indexer(m, x, low, name):
    """The keys that each position attends to [T, T]: the best by the weighted sum of its heads' positive products; and the distance of
    the closest choice to a tie."""
    c, n, heads, dim, rope = m.config, len(x), m.config["index_n_heads"], m.config["index_head_dim"], m.config["qk_rope_head_dim"]
    pairs = c.get("indexer_rope_interleave", c["model_type"] in ("glm_moe_dsa", "dots3_note"))
    turn = lambda y: np.concatenate((rotate(y[..., :rope], c, pairs), y[..., rope:]), -1)
    k = m.linear(x, name + "wk")
    k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-6) * m[name + "k_norm.weight"] + m[name + "k_norm.bias"]
    q, k = turn(m.linear(low, name + "wq_b").reshape(n, heads, dim)), turn(k[:, None])[:, 0]
    score = np.einsum("qh,hqk->qk", m.linear(x, name + "weights_proj"), np.maximum(np.einsum("qhd,kd->hqk", q, k), 0))
    chosen, gap = np.zeros((n, n), bool), math.inf
    for t in range(n):
        best = np.argsort(-score[t, : t + 1], kind="stable")
        chosen[t, best[: c["index_topk"]]] = True
        if t >= c["index_topk"]:
            gap = min(gap, score[t, best[c["index_topk"] - 1]] - score[t, best[c["index_topk"]]])
    return chosen, gap / np.abs(score).max()


def latent_attention(m, x, name, taken):
    """Multi-head latent attention as in the DeepSeek-V2 paper: keys and values of every head from one small latent. With an
    indexer, over the keys that it selects, or over those of the last selection [T, T]; returns these too."""
    c, n, heads = m.config, len(x), m.config["num_attention_heads"]
    nope, rope, latent = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
    axk2 = c["model_type"] == "axk2"
    eps = 1e-6 if axk2 else c["rms_norm_eps"]
    if c.get("q_lora_rank"):
        raw = m.linear(x, name + "q_a_proj")
        low = rms_norm(raw, m[name + "q_a_layernorm.weight"], eps)
        q = m.linear(np.concatenate((low, raw), -1) if axk2 else low, name + "q_b_proj").reshape(n, heads, -1)
    else:
        q = m.linear(x, name + "q_proj").reshape(n, heads, -1)
    q, gate = q[..., : nope + rope], sigmoid(q[..., nope + rope :].reshape(n, -1))
    q = np.concatenate((q[..., :nope], rotate(q[..., nope:], c, True)), -1)
    kv = m.linear(x, name + "kv_a_proj_with_mqa")
    key_rope = rotate(kv[:, None, latent:], c, True)
    kv = m.linear(rms_norm(kv[:, :latent], m[name + "kv_a_layernorm.weight"], eps), name + "kv_b_proj").reshape(n, heads, -1)
    k = np.concatenate((kv[..., :nope], np.broadcast_to(key_rope, (n, heads, rope))), -1)
    scale = (nope + rope) ** -0.5
    scaling = c.get("rope_scaling") or {}
    if scaling.get("mscale_all_dim") and scaling["factor"] > 1:
        scale *= (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2
    gap = math.inf
    if name + "indexer.weights_proj.weight" in m:
        taken, gap = lightning_indexer(m, x, low, name + "indexer.")
    y = attend(q, k, kv[..., nope:], scale, chosen=taken)
    return m.linear(y * gate if axk2 else y, name + "o_proj"), taken, gap


def grouped_attention(m, x, name, layer):
    """Several query heads per key head."""
    c, n = m.config, len(x)
    if c["model_type"] == "dbrx":
        heads, kv, clip = c["n_heads"], c["attn_config"]["kv_n_heads"], c["attn_config"].get("clip_qkv") or np.inf
        dim = c["d_model"] // heads
        whole = np.clip(m.linear(x, name + "Wqkv"), -clip, clip)
        q, k, v = (y.reshape(n, -1, dim) for y in np.split(whole, (heads * dim, (heads + kv) * dim), -1))
    else:
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        q, k, v = (m.linear(x, name + p).reshape(n, h, -1) for p, h in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)))
    gated = c["model_type"] in NEXT  # a head's query, then the gate of its output
    if gated:
        q, gate = q[..., : q.shape[-1] // 2], q[..., q.shape[-1] // 2 :]
    if name + "q_norm.weight" in m:
        flat = c["model_type"] in ("minimax_m2", "flex_olmo")  # over all heads together
        q, k = (rms_norm(y.reshape(n, -1) if flat else y, m[name + p + "_norm.weight"] + gated, c["rms_norm_eps"]).reshape(y.shape) for y, p in ((q, "q"), (k, "k")))
    turned = c.get("rotary_dim") or int(q.shape[-1] * c.get("partial_rotary_factor", 0.5 if c["model_type"] == "glm4_moe" else 0.25 if gated else 1))
    by_window = c["model_type"] in ("lara_mini", "kolibri1")  # layers with a window rotate, those without do not
    if not by_window or c["layer_types"][layer] == "sliding_attention":
        q, k = (np.concatenate((rotate(y[..., :turned], c, False), y[..., turned:]), -1) for y in (q, k))
    window = (c.get("sliding_window") or 0) if c.get("use_sliding_window", c["model_type"] in ("mixtral", "gpt_oss", "phimoe", "minimax_m2", "lara_mini", "kolibri1")) else 0
    if (c.get("layer_types") or (["sliding_attention", "full_attention"] * 999 if c["model_type"] == "gpt_oss" else [""] * 999))[layer] == "full_attention":
        window = 0
    k, v = (np.repeat(y, heads // kv, 1) for y in (k, v))
    out = attend(q, k, v, q.shape[-1] ** -0.5, window, m[name + "sinks"] if name + "sinks" in m else None)
    if gated:
        out = out * sigmoid(gate.reshape(n, -1))
    return m.linear(out, name + ("out_proj" if c["model_type"] == "dbrx" else "o_proj"))


def delta_rule(m, x, name):
    """Gated DeltaNet, token by token: a matrix per head that decays, and is updated by each token with the prediction error. Returns its rows and the gate's."""
    c, n, k_heads, v_heads = m.config, len(x), m.config["linear_num_key_heads"], m.config["linear_num_value_heads"]
    k_dim, v_dim, share = c["linear_key_head_dim"], c["linear_value_head_dim"], v_heads // k_heads
    if name + "in_proj.weight" in m:
        values = v_heads * v_dim
        mixed, z, b, a = np.split(m.linear(x, name + "in_proj"), np.cumsum((2 * k_heads * k_dim + values, values, v_heads)), -1)
    elif name + "in_proj_qkv.weight" in m:
        mixed, z, b, a = (m.linear(x, name + "in_proj_" + p) for p in ("qkv", "z", "b", "a"))
    else:
        groups = m.linear(x, name + "in_proj_qkvz").reshape(n, k_heads, -1)
        q, k, v, z = np.split(groups, np.cumsum((k_dim, k_dim, share * v_dim)), -1)
        b, a = np.split(m.linear(x, name + "in_proj_ba").reshape(n, k_heads, -1), 2, -1)
        mixed = np.concatenate([part.reshape(n, -1) for part in (q, k, v)], -1)
    taps = m[name + "conv1d.weight"][:, 0]  # [channels, taps], the last one for the token itself
    padded = np.concatenate((np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed))
    mixed = silu(sum(padded[j : j + n] * taps[:, j] for j in range(taps.shape[1])))
    q, k, v = np.split(mixed, (k_heads * k_dim, 2 * k_heads * k_dim), -1)
    q, k = (np.repeat(y.reshape(n, k_heads, k_dim), share, 1) for y in (q, k))
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    v, z, b, a = (y.reshape(n, v_heads, -1) for y in (v, z, b, a))
    keep = np.exp(-np.exp(m[name + "A_log"])[:, None] * np.log1p(np.exp(a + m[name + "dt_bias"][:, None])))
    state, out = np.zeros((v_heads, k_dim, v_dim)), np.zeros((n, v_heads, v_dim))
    for t in range(n):
        state = state * keep[t][..., None]
        lacking = v[t] - np.einsum("hk,hkv->hv", k[t], state)
        state = state + np.einsum("hk,hv->hkv", k[t], sigmoid(b[t]) * lacking)
        out[t] = np.einsum("hk,hkv->hv", q[t], state) * k_dim**-0.5
    return out, z


def gated_delta(m, x, name):
    c, n, (out, z) = m.config, len(x), delta_rule(m, x, name)
    return m.linear((rms_norm(out, m[name + ("norm" if name + "norm.weight" in m else "out_norm") + ".weight"], c["rms_norm_eps"]) * silu(z)).reshape(n, -1), name + "out_proj")


# --- Experts ----------------------------------------------------------------------------------------------------------------

def mlp(m, x, name, gate="gate_proj", up="up_proj", down="down_proj"):
    return m.linear(silu(m.linear(x, name + gate)) * m.linear(x, name + up), name + down)


def route(m, x, name):
    """Experts and weights [T, k] of each token, and the distance of the closest choice to a tie."""
    c, kind = m.config, m.config["model_type"]
    logits = m.linear(x, name + {"gpt_oss": "router", "dbrx": "router.layer"}.get(kind, "gate"))
    experts, k = logits.shape[1], c["num_experts_per_tok"] if kind != "dbrx" else c["ffn_config"]["moe_top_k"]
    if kind == "phimoe":
        return mixer(logits, c["router_jitter_noise"])
    sigmoid = c.get("scoring_func", "sigmoid" if kind in ("deepseek_v3", "kimi_k2", "glm4_moe", "minimax_m2", "beam", "kolibri1", "dots3_note", "solar_open2", "bailing_hybrid", "bailing_moe_linear", "param2moe") else "softmax") == "sigmoid"
    score = 1 / (1 + np.exp(-logits)) if sigmoid else softmax(logits)
    choice = logits + m[name.replace("mlp.", "moe.router.expert_bias")] if kind == "kolibri1" else score.copy()
    gap = math.inf
    for bias in ("gate.e_score_correction_bias", "e_score_correction_bias", "gate.expert_bias"):
        if name + bias in m:
            choice += m[name + bias]
    best_two = c.get("topk_method") == "noaux_tc" or kind in ("glm4_moe", "beam", "dots3_note", "solar_open2", "bailing_hybrid", "bailing_moe_linear", "param2moe")
    groups = c.get("n_group", 1) if best_two or c.get("topk_method") == "group_limited_greedy" else 1
    if groups > 1:  # only the best groups count: by their two best experts (V3) or by their best (V2)
        inside = np.sort(choice.reshape(len(x), groups, -1), -1)
        rank = inside[..., -2:].sum(-1) if best_two else inside[..., -1]
        order = np.sort(rank, -1)[:, ::-1]
        if c["topk_group"] < groups:
            gap = min(gap, (order[:, c["topk_group"] - 1] - order[:, c["topk_group"]]).min())
        kept = rank >= order[:, c["topk_group"] - 1][:, None]
        choice = np.where(np.repeat(kept, experts // groups, 1), choice, 0 if kind == "axk2" else -np.inf)
    chosen = np.argsort(-choice, -1, kind="stable")[:, :k]
    order = -np.sort(-choice, -1)
    gap = min(gap, (order[:, k - 1] - order[:, k]).min())
    weight = np.take_along_axis(score, chosen, -1)
    normed = c.get("norm_topk_prob", False) or kind in ("mixtral", "minimax_m2", "gpt_oss", "dbrx")
    if kind == "deepseek_v2":  # either normalised or scaled (the vendor's MoEGate)
        return chosen, weight / weight.sum(-1, keepdims=True) if normed and k > 1 else weight * c.get("routed_scaling_factor", 1), gap
    if normed:
        weight = weight / (weight.sum(-1, keepdims=True) + 1e-20)
    return chosen, weight * (c.get("routed_scaling_factor") or 1), gap


def mixer(logits, jitter):
    """Phi's two experts: each is weighted by a softmax over the scores near it, the second one without the first."""
    rows, left, chosen, weight = np.arange(len(logits)), logits.copy(), [], []
    for _ in range(2):
        best = left.argmax(-1)
        top = left[rows, best][:, None]
        near = (top - logits) / np.maximum(np.abs(logits), top) <= 2 * jitter
        chosen.append(best)
        weight.append(softmax(np.where(near, left, -np.inf))[rows, best])
        left[rows, best] = -np.inf
    order = -np.sort(-logits, -1)
    behind = (order[:, :1] - logits) / np.maximum(np.abs(logits), order[:, :1]), (order[:, 1:2] - logits) / np.maximum(np.abs(logits), order[:, 1:2])
    gap = min((order[:, 0] - order[:, 1]).min(), (order[:, 1] - order[:, 2]).min(), *(np.abs(b - 2 * jitter).min() for b in behind))
    return np.stack(chosen, -1), np.stack(weight, -1), gap


def stacked_experts(m, name):
    """expert(e, x) of families that store all experts of a layer in a few tensors."""
    c = m.config
    if c["model_type"] == "gpt_oss":  # interleaved rows of gate and up
        up, down = m[name + "experts.gate_up_proj"], m[name + "experts.down_proj"]
        up_bias, down_bias, limit = m[name + "experts.gate_up_proj_bias"], m[name + "experts.down_proj_bias"], c.get("swiglu_limit", 7)

        def expert(e, x):
            both = x @ up[e].T + up_bias[e]
            gate, linear = np.minimum(both[:, 0::2], limit), np.clip(both[:, 1::2], -limit, limit)
            return gate / (1 + np.exp(-1.702 * gate)) * (linear + 1) @ down[e].T + down_bias[e]
    elif c["model_type"] == "lara_mini":  # rows of gate, then of up
        up, down = m[name + "experts.gate_up_proj"], m[name + "experts.down_proj"]

        def expert(e, x):
            gate, linear = np.split(x @ up[e].T, 2, -1)
            return silu(gate) * linear @ down[e].T
    else:
        w1, v1, w2 = (m[f"{name}experts.mlp.{w}"].reshape(c["ffn_config"]["moe_num_experts"], -1, c["d_model"]) for w in ("w1", "v1", "w2"))

        def expert(e, x):
            return (silu(x @ w1[e].T) * (x @ v1[e].T)) @ w2[e]
    return expert


def experts(m, x, name):
    mixtral = m.config["model_type"] in ("mixtral", "minimax_m2", "phimoe")
    stacked = stacked_experts(m, name) if m.config["model_type"] in ("gpt_oss", "dbrx", "lara_mini") else None
    chosen, weight, gap = route(m, x, name)
    y = np.zeros_like(x)
    for e in np.unique(chosen):
        rows, place = np.nonzero(chosen == e)
        names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        out = stacked(e, x[rows]) if stacked else mlp(m, x[rows], f"{name}experts.{e}.", *names)
        y[rows] += weight[rows, place][:, None] * out
    if name + "shared_experts.up_proj.weight" in m:
        y += mlp(m, x, name + "shared_experts.")
    if name + "shared_expert.up_proj.weight" in m:
        gate = sigmoid(m.linear(x, name + "shared_expert_gate")) if name + "shared_expert_gate.weight" in m else 1
        y += mlp(m, x, name + "shared_expert.") * gate
    return y, gap


# --- DeepSeek-V4: residual streams, compressed keys, experts by token id ----------------------------------------------------

def turn_tail(x, angle, back=False):
    """x [T, heads, dim]: rotates the last dimensions of each head, in adjacent pairs, by angle [T, pairs] or back by it."""
    rope = 2 * angle.shape[1]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None] * (-1 if back else 1)
    a, b = x[..., -rope::2], x[..., x.shape[-1] - rope + 1 :: 2]
    tail = np.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(*x.shape[:-1], rope)
    return np.concatenate((x[..., :-rope], tail), -1)


def compressed(m, x, name, ratio, overlap, freq):
    """One key for every `ratio` tokens: an element-wise weighted mean of the tokens of its window, and with overlap also of those of the
    previous window. The key is rotated by the position of its window's first token."""
    kv, gate, bias = m.linear(x, name + "wkv"), m.linear(x, name + "wgate"), m[name + "ape"]
    windows, dim, out = len(x) // ratio, m[name + "norm.weight"].size, []
    for w in range(windows):
        rows = slice(w * ratio, (w + 1) * ratio)
        values, gates = kv[rows, -dim:], gate[rows, -dim:] + bias[:, -dim:]
        if overlap and w:
            rows = slice((w - 1) * ratio, w * ratio)
            values, gates = np.concatenate((kv[rows, :dim], values)), np.concatenate((gate[rows, :dim] + bias[:, :dim], gates))
        share = np.exp(gates - gates.max(0))
        out.append((values * share).sum(0) / share.sum(0))
    out = rms_norm(np.array(out).reshape(windows, dim), m[name + "norm.weight"], m.config["rms_norm_eps"])
    return turn_tail(out[:, None], np.arange(windows)[:, None] * ratio * freq)[:, 0]


def windowed_attention(m, x, name, layer):
    """Each position attends to a window of keys and then to compressed ones whose windows have ended: all, or those that an indexer
    selects. Keys are values too. Returns the distance of the closest choice to a tie."""
    c, n = m.config, len(x)
    heads, dim, eps, t, gap = c["num_attention_heads"], c["head_dim"], c["rms_norm_eps"], np.arange(n), math.inf
    if "layer_types" in c:
        ratio, overlap = c["compress_rates"].get(c["layer_types"][layer], 0), c["layer_types"][layer] == "compressed_sparse_attention"
    else:
        ratio, overlap = c["compress_ratios"][layer], c["compress_ratios"][layer] == 4
    rope = {**c, "rope_theta": c["compress_rope_theta"]} if ratio else {**c, "rope_scaling": None}
    freq = frequencies(rope, c["qk_rope_head_dim"], n)[0]  # YaRN's factor on cos and sin is omitted
    angle = t[:, None] * freq
    low = rms_norm(m.linear(x, name + "wq_a"), m[name + "q_norm.weight"], eps)
    q = turn_tail(rms_norm(m.linear(low, name + "wq_b").reshape(n, heads, dim), 1, eps), angle)
    keys = turn_tail(rms_norm(m.linear(x, name + "wkv"), m[name + "kv_norm.weight"], eps)[:, None], angle)[:, 0]
    seen = (t[None] <= t[:, None]) & (t[None] > t[:, None] - c["sliding_window"])
    if ratio:
        far = compressed(m, x, name + "compressor.", ratio, overlap, freq)
        visible = np.arange(len(far))[None] < (t[:, None] + 1) // ratio
        if overlap:
            index, h = name + "indexer.", c["index_n_heads"]
            index_q = turn_tail(m.linear(low, index + "wq_b").reshape(n, h, -1), angle)
            index_k = compressed(m, x, index + "compressor.", ratio, True, freq)
            score = np.einsum("qh,hqk->qk", m.linear(x, index + "weights_proj"), np.maximum(np.einsum("qhd,kd->hqk", index_q, index_k), 0))
            for i in range(n):
                best = np.argsort(-score[i, : visible[i].sum()], kind="stable")
                if len(best) > c["index_topk"]:
                    gap = min(gap, (score[i, best[c["index_topk"] - 1]] - score[i, best[c["index_topk"]]]) / np.abs(score).max())
                visible[i, best[c["index_topk"] :]] = False
        keys, seen = np.concatenate((keys, far)), np.concatenate((seen, visible), 1)
    score = np.where(seen, np.einsum("qhd,kd->hqk", q, keys) * dim**-0.5, -np.inf)
    score = np.concatenate((score, np.broadcast_to(m[name + "attn_sink"][:, None, None], (heads, n, 1))), -1)
    out = turn_tail(np.einsum("hqk,kd->qhd", softmax(score)[..., :-1], keys), angle, back=True)
    groups = out.reshape(n, c["o_groups"], -1)
    out = np.einsum("ngi,goi->ngo", groups, m[name + "wo_a.weight"].reshape(c["o_groups"], -1, groups.shape[-1])).reshape(n, -1)
    return m.linear(out, name + "wo_b"), gap


def v4_experts(m, x, name, tokens):
    """By sqrt(softplus): the best ones, or those of the token's table entry."""
    c, gap, y, limit = m.config, math.inf, np.zeros_like(x), m.config["swiglu_limit"]
    score, k = np.sqrt(np.log1p(np.exp(x @ m[name + "gate.weight"].T))), c["num_experts_per_tok"]
    if name + "gate.tid2eid" in m:
        chosen = m[name + "gate.tid2eid"][tokens]
    else:
        choice = score + m[name + "gate.bias"]
        chosen, order = np.argsort(-choice, -1, kind="stable")[:, :k], -np.sort(-choice, -1)
        gap = (order[:, k - 1] - order[:, k]).min()
    weight = np.take_along_axis(score, chosen, -1)
    weight = weight / weight.sum(-1, keepdims=True) * c["routed_scaling_factor"]

    def one(h, name):
        gate, up = np.minimum(m.linear(h, name + "w1"), limit), np.clip(m.linear(h, name + "w3"), -limit, limit)
        return m.linear(silu(gate) * up, name + "w2")

    for e in np.unique(chosen):
        rows, place = np.nonzero(chosen == e)
        y[rows] += weight[rows, place][:, None] * one(x[rows], f"{name}experts.{e}.")
    return y + one(x, name + "shared_experts."), gap


def stream_weights(m, streams, name):
    """How much of each stream a part of a block reads [T, S], how much of its output goes to each, and how the streams mix
    [T, S, S] (Sinkhorn-Knopp)."""
    c, (n, s, _) = m.config, streams.shape
    flat = streams.reshape(n, -1)
    w, base, scale = rms_norm(flat, 1, c["rms_norm_eps"]) @ m[name + "_fn"].T, m[name + "_base"], m[name + "_scale"]
    pre = sigmoid(w[:, :s] * scale[0] + base[:s]) + c["hc_eps"]
    if len(base) == s:
        return pre
    post = 2 * sigmoid(w[:, s : 2 * s] * scale[1] + base[s : 2 * s])
    comb = softmax((w[:, 2 * s :] * scale[2] + base[2 * s :]).reshape(n, s, s)) + c["hc_eps"]
    comb = comb / (comb.sum(1, keepdims=True) + c["hc_eps"])
    for _ in range(c["hc_sinkhorn_iters"] - 1):
        comb = comb / (comb.sum(2, keepdims=True) + c["hc_eps"])
        comb = comb / (comb.sum(1, keepdims=True) + c["hc_eps"])
    return pre, post, comb


def forward_v4(m, tokens):
    c, nearest = m.config, math.inf
    streams = np.repeat(m["embed.weight"][tokens][:, None], c["hc_mult"], 1)
    for layer in range(c["num_hidden_layers"]):
        name = f"layers.{layer}."
        for half in ("attn", "ffn"):
            pre, post, comb = stream_weights(m, streams, f"{name}hc_{half}")
            h = rms_norm((pre[..., None] * streams).sum(1), m[f"{name}{half}_norm.weight"], c["rms_norm_eps"])
            y, gap = windowed_attention(m, h, name + "attn.", layer) if half == "attn" else v4_experts(m, h, name + "ffn.", tokens)
            streams = post[..., None] * y[:, None] + np.einsum("nst,nsd->ntd", comb, streams)
            nearest = min(nearest, gap)
    x = (stream_weights(m, streams, "hc_head")[..., None] * streams).sum(1)
    return m.linear(rms_norm(x, m["norm.weight"], c["rms_norm_eps"]), "head"), nearest


# --- The whole model --------------------------------------------------------------------------------------------------------

BLOCKS = {"dbrx": "ffn.", "mixtral": "block_sparse_moe.", "minimax_m2": "block_sparse_moe.", "phimoe": "block_sparse_moe."}


# --- Norms around the blocks, blocks side by side ---------------------------------------------------------------------------

def capped(x, cap):
    return np.tanh(x / cap) * cap


def heads_of(m, x, name):
    return (m.linear(x, f"{name}self_attn.{p}_proj").reshape(len(x), -1, m.config["head_dim"]) for p in "qkv")


def forward_gemma(m, tokens):
    """Gemma 3: x += norm(attention(norm(x))), the same for the FFN. Layers with a window rotate by their own base."""
    c = m.config
    x = m["model.embed_tokens.weight"][tokens] * bf16(math.sqrt(c["hidden_size"]))
    def one(y, name):
        return rms_norm(y, 1 + m[name + ".weight"], c["rms_norm_eps"])
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        local = (layer + 1) % c["sliding_window_pattern"] != 0
        rope = {"rope_theta": c["rope_local_base_freq"]} if local else c
        q, k, v = heads_of(m, one(x, name + "input_layernorm"), name)
        q, k = (rotate(one(y, f"{name}self_attn.{p}_norm"), rope, False) for y, p in ((q, "q"), (k, "k")))
        t, out = np.arange(len(x)), []
        seen = (t[None] <= t[:, None]) & (t[None] > t[:, None] - (c["sliding_window"] if local else 1 << 30))
        for h in range(c["num_attention_heads"]):
            g = h // (c["num_attention_heads"] // c["num_key_value_heads"])
            score = capped(q[:, h] @ k[:, g].T * c["query_pre_attn_scalar"] ** -0.5, c["attn_logit_softcapping"])
            out.append(softmax(np.where(seen, score, -np.inf)) @ v[:, g])
        x = x + one(m.linear(np.concatenate(out, -1), name + "self_attn.o_proj"), name + "post_attention_layernorm")
        y = one(x, name + "pre_feedforward_layernorm")
        gate = m.linear(y, name + "mlp.gate_proj")
        x = x + one(m.linear(gelu(gate) * m.linear(y, name + "mlp.up_proj"), name + "mlp.down_proj"), name + "post_feedforward_layernorm")
    return capped(m.linear(one(x, "model.norm"), "model.embed_tokens"), c["final_logit_softcapping"]), math.inf


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def forward_gemma4(m, tokens):
    """Gemma 4 without experts: Gemma 3's layers with plain norms, unscaled scores and normed values; then x += norm(out(gelu(gate(x)) * v)), v a vector of the
    token for this layer, and x *= a factor. The last layers use the keys and values of the last own ones of their kind."""
    c, eps, dim, n = m.config, m.config["rms_norm_eps"], m.config["hidden_size_per_layer_input"], len(tokens)
    x = m["model.embed_tokens.weight"][tokens] * math.sqrt(c["hidden_size"])
    table = m["model.embed_tokens_per_layer.weight"][tokens].reshape(n, -1, dim) * math.sqrt(dim)
    vectors = m.linear(x, "model.per_layer_model_projection").reshape(n, -1, dim) / math.sqrt(c["hidden_size"])
    vectors = (rms_norm(vectors, m["model.per_layer_projection_norm.weight"], eps) + table) * math.sqrt(0.5)
    t, kept = np.arange(n), {}

    def one(y, name):
        return rms_norm(y, m[name + ".weight"], eps)

    def turn(y, kind):
        rope, half = c["rope_parameters"][kind], y.shape[-1] // 2
        pairs = int(rope.get("partial_rotary_factor", 1) * half)
        angle = t[:, None] * np.where(np.arange(half) < pairs, rope["rope_theta"] ** (-np.arange(half) / half), 0)
        cos, sin, a, b = np.cos(angle)[:, None], np.sin(angle)[:, None], y[..., :half], y[..., half:]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)
    for layer, kind in enumerate(c["layer_types"]):
        name = f"model.layers.{layer}."
        head, window = (c["head_dim"], c["sliding_window"]) if kind == "sliding_attention" else (c["global_head_dim"], 0)
        h = one(x, name + "input_layernorm")

        def heads(p):
            return m.linear(h, f"{name}self_attn.{p}_proj").reshape(n, -1, head)
        q = turn(one(heads("q"), name + "self_attn.q_norm"), kind)
        if layer < c["num_hidden_layers"] - c["num_kv_shared_layers"]:
            kept[kind] = turn(one(heads("k"), name + "self_attn.k_norm"), kind), rms_norm(heads("v"), 1, eps)
        k, v = (np.repeat(y, c["num_attention_heads"] // c["num_key_value_heads"], 1) for y in kept[kind])
        x = x + one(m.linear(attend(q, k, v, 1, window), name + "self_attn.o_proj"), name + "post_attention_layernorm")
        y = one(x, name + "pre_feedforward_layernorm")
        y = m.linear(gelu(m.linear(y, name + "mlp.gate_proj")) * m.linear(y, name + "mlp.up_proj"), name + "mlp.down_proj")
        x = x + one(y, name + "post_feedforward_layernorm")
        y = m.linear(gelu(m.linear(x, name + "per_layer_input_gate")) * vectors[:, layer], name + "per_layer_projection")
        x = (x + one(y, name + "post_per_layer_input_norm")) * m[name + "layer_scalar"]
    return capped(m.linear(one(x, "model.norm"), "model.embed_tokens"), c["final_logit_softcapping"]), math.inf


def forward_beam(m, tokens):
    """Beam: the k-th block, of attention or FFN, leaves (sqrt(k) x + norm(block(norm(x)))) / sqrt(k + 1). Layers without rotation multiply their queries by
    (1 + position / 2048)^0.1, positions from 1; gates are of the elements, with a bias of the head."""
    c, nearest, n = m.config, math.inf, len(tokens)
    x = m["model.embed_tokens.weight"][tokens]

    def one(y, name):
        return rms_norm(y, m[name + ".weight"], c["rms_norm_eps"])
    for layer, kind in enumerate(c["layer_types"]):
        name, rope = f"model.layers.{layer}.", c["rope_parameters"][kind]
        h = one(x, name + "input_layernorm")
        q, k, v = heads_of(m, h, name)
        q, k = one(q, name + "self_attn.q_norm"), one(k, name + "self_attn.k_norm")
        if rope:
            q, k = rotate(q, rope, False), rotate(k, rope, False)
        else:
            q = q * ((1 + np.arange(1, n + 1) / 2048) ** 0.1)[:, None, None]
        k, v = (np.repeat(y, c["num_attention_heads"] // c["num_key_value_heads"], 1) for y in (k, v))
        y = attend(q, k, v, c["head_dim"] ** -0.5, c["sliding_window"] if kind == "sliding_attention" else 0)
        gate = sigmoid(m.linear(h, name + "self_attn.gate_proj").reshape(q.shape) + m[name + "self_attn.gate_bias"][:, None])
        y = m.linear(y * gate.reshape(n, -1), name + "self_attn.o_proj")
        x = (math.sqrt(2 * layer + 1) * x + one(y, name + "post_attention_layernorm")) / math.sqrt(2 * layer + 2)
        h = one(x, name + "pre_feedforward_layernorm")
        y, gap = experts(m, h, name + "mlp.") if c["mlp_layer_types"][layer] == "sparse" else (mlp(m, h, name + "mlp."), math.inf)
        nearest = min(nearest, gap)
        x = (math.sqrt(2 * layer + 2) * x + one(y, name + "post_feedforward_layernorm")) / math.sqrt(2 * layer + 3)
    return capped(m.linear(one(x, "model.norm"), "lm_head"), c["final_logit_softcapping"]), nearest


def forward_cohere(m, tokens):
    """Cohere 2 MoE: x += attention(h) + FFN(h), h = LayerNorm(x)."""
    c, nearest = m.config, math.inf
    x = m["model.embed_tokens.weight"][tokens]

    def layer_norm(y, name):
        y = y - y.mean(-1, keepdims=True)
        return y / np.sqrt((y * y).mean(-1, keepdims=True) + c["layer_norm_eps"]) * m[name + ".weight"]
    for layer in range(c["num_hidden_layers"]):
        name, dense = f"model.layers.{layer}.", layer < c["first_k_dense_replace"]
        local = not dense and (layer - c["first_k_dense_replace"] + 1) % c["sliding_window_pattern"] != 0
        h = layer_norm(x, name + "input_layernorm")
        q, k, v = heads_of(m, h, name)
        if local or dense:
            q, k = rotate(q, c, True), rotate(k, c, True)
        k, v = (np.repeat(y, c["num_attention_heads"] // c["num_key_value_heads"], 1) for y in (k, v))
        y = m.linear(attend(q, k, v, c["head_dim"] ** -0.5, c["sliding_window"] if local else 0), name + "self_attn.o_proj")
        if dense:
            x = x + y + mlp(m, h, name + "mlp.")
            continue
        both, gap = experts(m, h, name + "mlp.")
        nearest = min(nearest, gap)
        x = x + y + both / 2
    return m.linear(layer_norm(x, "model.norm"), "lm_head") * c["logit_scale"], nearest


def forward(m, tokens):
    """Logits [T, vocab] of a sequence, and the smallest distance of any router's choice to a tie."""
    import oracle_autumn  # which import this module
    import oracle_deepseek
    import oracle_dense
    import oracle_experts
    import oracle_longcat
    import oracle_lowrank

    other = {**oracle_autumn.FAMILIES, **oracle_dense.FAMILIES, **oracle_longcat.FAMILIES, **oracle_lowrank.FAMILIES, "gemma3_text": forward_gemma, "gemma4_text": forward_gemma4, "cohere2_moe": forward_cohere, "beam": forward_beam, "deepseek_v41": oracle_deepseek.forward, **oracle_experts.FAMILIES}.get(m.config["model_type"])
    if other:
        return other(m, tokens)
    if m.config["model_type"] == "deepseek_v4":
        return forward_v4(m, tokens)
    x, nearest, head, last = stack(m, tokens)
    return m.linear(norm(m, x, last), head), nearest


def stack(m, tokens):
    """The last layer's output [T, hidden], that distance, and the names of the head and of the norm before it."""
    c, dbrx = m.config, m.config["model_type"] == "dbrx"
    embed, last, layers = ("transformer.wte", "transformer.norm_f", "n_layers") if dbrx else ("model.embed_tokens", "model.norm", "num_hidden_layers")
    x = m[embed + ".weight"][tokens]
    nearest, taken = math.inf, None
    for layer in range(c[layers]):
        x, gap, taken = block(m, x, layer, taken)
        nearest = min(nearest, gap)
    return x, nearest, embed if c.get("tie_word_embeddings") else "lm_head", last


def guesses(m, tokens):
    """The prediction layer's logits [T - 1, 2, vocab]: from a position and its next token, those of the token after that; and from its own
    output and the likeliest token, those of the following one. DeepSeek-V3, section 2.2; the model's final norm is applied to the last layer's output,
    but not to the prediction layer's."""
    c, layer = m.config, m.config["num_hidden_layers"]
    name, eps = f"model.layers.{layer}.", c["rms_norm_eps"]
    x, nearest, head, last = stack(m, tokens)
    x, embed = norm(m, x, last), m["model.embed_tokens.weight"]
    if name + "shared_head.head.weight" in m:
        head = name + "shared_head.head"

    def entrance(h, token):
        return m.linear(np.concatenate((rms_norm(embed[token], m[name + "enorm.weight"], eps), rms_norm(h, m[name + "hnorm.weight"], eps)), -1), name + "eh_proj")

    rows, out = np.stack([entrance(x[i], tokens[i + 1]) for i in range(len(tokens) - 1)]), []
    for i in range(len(rows)):
        own, pair = rows[: i + 1], []
        for _ in range(2):
            left, gap, _ = block(m, own, layer, None)
            nearest = min(nearest, gap)
            pair.append(m.linear(rms_norm(left[-1], m[name + "shared_head.norm.weight"], eps), head))
            own = np.concatenate((own, entrance(left[-1], int(pair[-1].argmax()))[None]))
        out.append(pair)
    return np.array(out), nearest


def block(m, x, layer, taken):
    """One layer over the previous one's output; with the distance to a tie, and the keys that an indexer selected."""
    c, dbrx, nearest = m.config, m.config["model_type"] == "dbrx", math.inf
    name = f"transformer.blocks.{layer}." if dbrx else f"model.layers.{layer}."
    after = c["model_type"] == "flex_olmo"  # norms of the outputs instead of the inputs
    out_norms = {"flex_olmo": ("post_attention_layernorm", "post_feedforward_layernorm"), "kolibri1": ("post_attn_norm", "post_ffn_norm")}.get(c["model_type"])
    h = x if after else norm(m, x, name + ("norm_attn_norm.norm_1" if dbrx else "input_layernorm"))
    if name + "linear_attn.A_log" in m:
        y = gated_delta(m, h, name + "linear_attn.")
    elif "kv_lora_rank" in c:
        y, taken, gap = latent_attention(m, h, name + "self_attn.", taken)
        nearest = min(nearest, gap)
    else:
        y = grouped_attention(m, h, name + ("norm_attn_norm.attn." if dbrx else "self_attn."), layer)
    x = x + (norm(m, y, name + out_norms[0]) if out_norms else y)
    h = x if after else norm(m, x, name + ("norm_attn_norm.norm_2" if dbrx else "post_attention_layernorm"))
    part = name + BLOCKS.get(c["model_type"], "mlp.")
    if any(part + router in m for router in ("gate.weight", "router.weight", "router.layer.weight")):
        y, gap = experts(m, h, part)
        nearest = min(nearest, gap)
    else:
        y = mlp(m, h, part)
    x = x + (norm(m, y, name + out_norms[1]) if out_norms else y)
    return x, nearest, taken
