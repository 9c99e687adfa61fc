"""Forward passes (oracle.py) of the families of autumn 2026, written from the vendors' code."""
import math

import numpy as np

from oracle import attend, mlp, rms_norm, rotate, sigmoid, silu, softmax
from oracle_experts import best, one, weighted


def turned(x, theta, turning, first=0):
    """x [T, heads, dim]: of the pairs (j, j + dim / 2) the first `turning` turn by theta^(-j / turning) per position."""
    half = x.shape[-1] // 2
    angle = np.zeros((len(x), 1, half))
    angle[:, 0, :turning] = np.outer(np.arange(len(x)) + first, theta ** (-np.arange(turning) / turning))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), -1)


def k2_horizon(m, tokens):
    """Norms of `groups` parts of a row each alone. x += o(attention * log2(1 + 2^gate)), of which some pairs of a head turn; in layers with experts values are a
    weighted sum of the SiLU of the best value experts. x += FFN or DeepSeek-V3's experts."""
    c, nearest, n = m.config, math.inf, len(tokens)
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    def parts(x, name, groups):
        y = x.reshape(n, groups, -1)
        return rms_norm(y, 1, c["rms_norm_eps"]).reshape(n, -1) * m[name + ".weight"]

    def choose(x, name, k, normed):
        score = sigmoid(x @ m[name + ".weight"].T)
        chosen, gap = best(score + m[name + ".bias"], k)
        weight = np.take_along_axis(score, chosen, -1)
        return chosen, (weight / weight.sum(-1, keepdims=True) if normed else weight) * c["router_scaling_factor"], gap
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        a, sparse = name + "self_attn.", layer not in c["mlp_only_layers"]
        h = parts(x, name + "input_layernorm", c["layernorm_num_groups"])
        q, k = parts(m.linear(h, a + "q_proj"), a + "q_norm", heads), parts(m.linear(h, a + "k_proj"), a + "k_norm", kv)
        if sparse:
            chosen, weight, gap = choose(h, a + "v_router", c["mova_num_experts_per_tok"], c["mova_num_experts_per_tok"] > 1)
            nearest, v = min(nearest, gap), np.zeros((n, kv * dim))
            for e in np.unique(chosen):
                rows, place = np.nonzero(chosen == e)
                v[rows] += weight[rows, place][:, None] * silu(m.linear(h[rows], f"{a}v_experts.{e}"))
        else:
            v = m.linear(h, a + "v_proj")
        q, k = (turned(y.reshape(n, -1, dim), c["rope_parameters"]["rope_theta"], c["rope_head_dim"] // 2) for y in (q, k))
        k, v = (np.repeat(y.reshape(n, kv, dim), heads // kv, 1) for y in (k, v))
        gate = np.log2(1 + 2 ** m.linear(h, a + "gate_proj"))
        x = x + m.linear(attend(q, k, v, dim**-0.5) * gate, a + "o_proj")
        h = parts(x, name + "post_attention_layernorm", c["layernorm_num_groups"])
        if not sparse:
            x = x + mlp(m, h, name + "mlp.")
            continue
        chosen, weight, gap = choose(h, name + "mlp.gate", c["num_experts_per_tok"], c["norm_topk_prob"])
        x = x + weighted(h, chosen, weight, lambda e, rows: mlp(m, rows, f"{name}mlp.experts.{e}.")) + mlp(m, h, name + "mlp.shared_experts.")
        nearest = min(nearest, gap)
    return m.linear(parts(x, "model.norm", c["layernorm_num_groups"]), "lm_head"), nearest


def heads_of(m, h, name, turn):
    """Queries [T, heads, dim] and keys [T, KV heads, dim], normed and turned, and values."""
    c, n = m.config, len(h)
    q, k, v = (m.linear(h, f"{name}{p}_proj").reshape(n, -1, c["head_dim"]) for p in "qkv")
    return turn(one(m, q, name + "q_norm")), turn(one(m, k, name + "k_norm")), v


def partly(x, theta, part):
    return np.concatenate((turned(x[..., :part], theta, part // 2), x[..., part:]), -1)


def softmax_experts(m, h, router, k, expert):
    """Qwen3-MoE's router with weights of sum 1."""
    chosen, gap = best(softmax(m.linear(h, router)), k)
    weight = np.take_along_axis(softmax(m.linear(h, router)), chosen, -1)
    return weighted(h, chosen, weight / weight.sum(-1, keepdims=True), expert), gap


def maple(m, tokens):
    """Windows, with heads of which a part turns, or all keys, with heads that do not turn. An expert is down(silu(min(gate, 7)) * clip(up, 7))."""
    c, nearest, part = m.config, math.inf, int(m.config["head_dim"] * m.config["partial_rotary_factor"])
    repeats = c["num_attention_heads"] // c["num_key_value_heads"]
    x = m["model.word_embeddings.weight"][tokens]
    for layer, kind in enumerate(c["layer_types"]):
        name, slides = f"model.layers.{layer}.", kind == "sliding_attention"
        q, k, v = heads_of(m, one(m, x, name + "input_layernorm"), name + "self_attn.", lambda y: partly(y, c["rope_theta"], part) if slides else y)
        x = x + m.linear(attend(q, np.repeat(k, repeats, 1), np.repeat(v, repeats, 1), c["head_dim"] ** -0.5, c["sliding_window"] if slides else 0), name + "self_attn.o_proj")

        def expert(e, rows):
            gate, up = (m.linear(rows, f"{name}mlp.experts.{e}.{p}_proj") for p in ("gate", "up"))
            return m.linear(silu(np.minimum(gate, 7)) * np.clip(up, -7, 7), f"{name}mlp.experts.{e}.down_proj")
        y, gap = softmax_experts(m, one(m, x, name + "post_attention_layernorm"), name + "mlp.gate", c["num_experts_per_tok"], expert)
        x, nearest = x + y, min(nearest, gap)
    return m.linear(one(m, x, "model.norm"), "lm_head"), nearest


def iquest_q1(m, tokens):
    """x = y + a * norm(attention(norm(x))), where y is x in the first layer and norm(x) in the others; x += b * FFN(norm(x)), in the first layer of its norm.
    Queries also see a key of their KV head without a value."""
    c, nearest, inter = m.config, math.inf, m.config["intermediate_size"]
    repeats, x = c["num_attention_heads"] // c["num_key_value_heads"], m["model.embed_tokens.weight"][tokens]
    kinds = c["first_layers_types"] + c["hybrid_layers_types_block"] * c["num_hybrid_layers_block"] + c["last_layers_types"]
    for layer, kind in enumerate(kinds):
        name, slides = f"model.layers.{layer}.", kind == "sliding_attention"
        theta, turns = c["swa_rope_theta"] if slides else c["rope_parameters"]["rope_theta"], layer not in c["no_rope_layers"]
        h = one(m, x, name + "attention_norm")
        q, k, v = heads_of(m, h, name + "self_attn.", lambda y: partly(y, theta, c["rotary_dim"]) if turns else y)
        k, v = (np.repeat(np.concatenate((first, y)), repeats, 1) for first, y in ((m[name + "self_attn.sink_k"], k), (np.zeros((1, *v.shape[1:])), v)))
        at, key = np.arange(len(x))[:, None], np.arange(-1, len(x))[None, :]
        seen = (key <= at) & ((key > at - (c["sliding_window"] if slides else len(x) + 1)) | (key < 0))
        score = np.where(seen, np.einsum("qhd,khd->hqk", q, k) * c["softmax_scale"], -np.inf)
        y = m.linear(np.einsum("hqk,khd->qhd", softmax(score), v).reshape(len(x), -1), name + "self_attn.o_proj")
        x = (h if layer else x) + one(m, y, name + "attn_out_norm") * c["attn_out_scale" if layer else "first_layer_attn_out_scale"]
        h = one(m, x, name + "feed_forward_norm")
        if layer in c["mlp_only_layers"]:
            x = x + one(m, mlp(m, h, name + "mlp."), name + "ffn_out_norm") * c["first_layer_ffn_out_scale"]
            continue
        fc, proj = m[name + "mlp.experts.fc"], m[name + "mlp.experts.proj"]
        y, gap = softmax_experts(m, h, name + "mlp.router", c["num_experts_per_tok"],
                                 lambda e, rows: silu(rows @ fc[e, :inter].T) * (rows @ fc[e, inter:].T) @ proj[e].T)
        x, nearest = x + y * c["ffn_out_scale"], min(nearest, gap)
    return m.linear(one(m, x, "model.norm"), "lm_head") * c["logit_scale"], nearest


def spark2_5(m, tokens):
    """Gates per head, windows and other rotations in three of four layers; FFN: down(GELU(gate) * up), with the normal distribution."""
    c, n = m.config, len(tokens)
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    phi = np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))
    x = m["model.embedding.weight"][tokens]
    for layer, kind in enumerate(c["layer_types"]):
        name, rope = f"model.layers.{layer}.", c["rope_parameters"][kind]
        h = one(m, x, name + "input_layernorm")
        q, k, v = (y.reshape(n, -1, dim) for y in np.split(m.linear(h, name + "self_attn.q_k_v_proj"), [heads * dim, (heads + kv) * dim], -1))
        q, k = (partly(y, rope["rope_theta"], int(dim * rope.get("partial_rotary_factor", 1))) for y in (q, k))
        y = attend(q, np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1), dim**-0.5, c["sliding_window"] if kind == "sliding_attention" else 0)
        gate = sigmoid(m.linear(h, name + "self_attn.g_proj"))
        x = x + m.linear((y.reshape(n, heads, dim) * gate[..., None]).reshape(n, -1), name + "self_attn.out_proj")
        h = one(m, x, name + "post_attention_layernorm")
        gate = m.linear(h, name + "mlp.gate_proj")
        x = x + m.linear(gate * phi(gate) * m.linear(h, name + "mlp.up_proj"), name + "mlp.down_proj")
    return one(m, x, "model.norm") @ m["model.embedding.weight"].T, math.inf


def apertus(m, tokens):
    """Norms of heads; FFN: down(xIELU(up)) with numbers of each layer."""
    c, n = m.config, len(tokens)
    heads, kv, x = c["num_attention_heads"], c["num_key_value_heads"], m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        h, a = one(m, x, name + "attention_layernorm"), name + "self_attn."
        q, k, v = (m.linear(h, f"{a}{p}_proj").reshape(n, of, -1) for p, of in (("q", heads), ("k", kv), ("v", kv)))
        q, k = rotate(one(m, q, a + "q_norm"), c, False), rotate(one(m, k, a + "k_norm"), c, False)
        x = x + m.linear(attend(q, np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1), q.shape[-1] ** -0.5), a + "o_proj")
        up, act = m.linear(one(m, x, name + "feedforward_layernorm"), name + "mlp.up_proj"), name + "mlp.act_fn."
        p, beta = np.log1p(np.exp(m[act + "alpha_p"])), m[act + "beta"]
        below = beta + np.log1p(np.exp(m[act + "alpha_n"]))
        x = x + m.linear(np.where(up > 0, p * up * up, below * (np.expm1(np.minimum(up, 0)) - up)) + beta * up, name + "mlp.down_proj")
    return m.linear(one(m, x, "model.norm"), "lm_head"), math.inf


def nemotron_nas(m, tokens):
    """Llama whose layers have their own KV heads and widths, or lack attention or the FFN."""
    c, n = m.config, len(tokens)
    heads, x = c["num_attention_heads"], m["model.embed_tokens.weight"][tokens]
    for layer, block in enumerate(c["block_configs"]):
        name = f"model.layers.{layer}."
        if not block["attention"]["no_op"]:
            h = one(m, x, name + "input_layernorm")
            q, k, v = (m.linear(h, f"{name}self_attn.{p}_proj").reshape(n, -1, c["hidden_size"] // heads) for p in "qkv")
            group = block["attention"]["n_heads_in_group"]
            y = attend(rotate(q, c, False), np.repeat(rotate(k, c, False), group, 1), np.repeat(v, group, 1), q.shape[-1] ** -0.5)
            x = x + m.linear(y, name + "self_attn.o_proj")
        if not block["ffn"]["no_op"]:
            x = x + mlp(m, one(m, x, name + "post_attention_layernorm"), name + "mlp.")
    return m.linear(one(m, x, "model.norm"), "lm_head"), math.inf


FAMILIES = {"apertus": apertus, "iquest_q1": iquest_q1, "k2_horizon": k2_horizon, "maple": maple, "nemotron-nas": nemotron_nas, "spark2_5": spark2_5}
