"""Forward passes (oracle.py) of dense families with layer norms and FFNs of one matrix before GELU, and of Falcon-H1, written from the vendors' code."""
import math

import numpy as np

from oracle import attend, gelu, rms_norm, rotate, silu


def layer_norm(m, x, name, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * m[name + ".weight"] + m[name + ".bias"]


def gpt_neox(m, tokens):
    """x += attention(norm(x)) + FFN(other norm(x)); the rows of q, k and v are ordered by head; a part of each head turns; FFN: down(GELU(up)), with the normal
    distribution."""
    c, n = m.config, len(tokens)
    heads, eps, x = c["num_attention_heads"], c["layer_norm_eps"], m["gpt_neox.embed_in.weight"][tokens]
    dim = c["hidden_size"] // heads
    turned = int(dim * c["rotary_pct"])
    phi = np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))
    for layer in range(c["num_hidden_layers"]):
        name = f"gpt_neox.layers.{layer}."
        qkv = m.linear(layer_norm(m, x, name + "input_layernorm", eps), name + "attention.query_key_value").reshape(n, heads, 3, dim)
        q, k = (np.concatenate((rotate(y[..., :turned], {"rope_theta": c["rotary_emb_base"]}, False), y[..., turned:]), -1) for y in (qkv[:, :, 0], qkv[:, :, 1]))
        y = m.linear(attend(q, k, qkv[:, :, 2], dim**-0.5), name + "attention.dense")
        up = m.linear(layer_norm(m, x, name + "post_attention_layernorm", eps), name + "mlp.dense_h_to_4h")
        x = x + y + m.linear(up * phi(up), name + "mlp.dense_4h_to_h")
    return m.linear(layer_norm(m, x, "gpt_neox.final_layer_norm", eps), "embed_out"), math.inf


def starcoder2(m, tokens):
    """Windows in all layers; FFN: down(GELU(up)), by tanh."""
    c, n = m.config, len(tokens)
    heads, kv, eps, x = c["num_attention_heads"], c["num_key_value_heads"], c["norm_epsilon"], m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        h = layer_norm(m, x, name + "input_layernorm", eps)
        q, k, v = (m.linear(h, f"{name}self_attn.{p}_proj").reshape(n, of, -1) for p, of in (("q", heads), ("k", kv), ("v", kv)))
        q, k = rotate(q, c, False), rotate(k, c, False)
        y = attend(q, np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1), q.shape[-1] ** -0.5, c["sliding_window"])
        x = x + m.linear(y, name + "self_attn.o_proj")
        up = m.linear(layer_norm(m, x, name + "post_attention_layernorm", eps), name + "mlp.c_fc")
        x = x + m.linear(gelu(up), name + "mlp.c_proj")
    return layer_norm(m, x, "model.norm", eps) @ m["model.embed_tokens.weight"].T, math.inf


def mamba2(m, x, name):
    """Token by token: a state per head that decays, to which the step times x B is added; C reads it. Each part of the projection has a factor; the output is
    normed by group, then gated."""
    c, n, inner, heads, size = m.config, len(x), m.config["mamba_d_ssm"], m.config["mamba_n_heads"], m.config["mamba_d_state"]
    groups, taps = c["mamba_n_groups"], m[name + "conv1d.weight"][:, 0]
    parts = np.split(m.linear(x * c["ssm_in_multiplier"], name + "in_proj"), np.cumsum((inner, inner, groups * size, groups * size)), -1)
    z, *mixed, step = (part * f for part, f in zip(parts, c["ssm_multipliers"]))
    mixed = np.concatenate(mixed, -1)
    padded = np.concatenate((np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed))
    mixed = silu(sum(padded[j : j + n] * taps[:, j] for j in range(taps.shape[1])) + m[name + "conv1d.bias"])
    v, b, read = np.split(mixed, (inner, inner + groups * size), -1)
    v, (b, read) = v.reshape(n, heads, -1), (np.repeat(y.reshape(n, groups, size), heads // groups, 1) for y in (b, read))
    step = np.log1p(np.exp(step + m[name + "dt_bias"]))
    keep, state, out = np.exp(-step * np.exp(m[name + "A_log"])), np.zeros((heads, v.shape[-1], size)), np.zeros_like(v)
    for t in range(n):
        state = state * keep[t][:, None, None] + np.einsum("h,hv,hs->hvs", step[t], v[t], b[t])
        out[t] = np.einsum("hvs,hs->hv", state, read[t]) + m[name + "D"][:, None] * v[t]
    out = rms_norm(out.reshape(n, groups, -1), 1, c["rms_norm_eps"]).reshape(n, inner) * m[name + "norm.weight"] * silu(z)
    return m.linear(out, name + "out_proj") * c["ssm_out_multiplier"]


def falcon_h1(m, tokens):
    """x += Mamba-2(h) + attention(h), h = norm(x); x += FFN(norm(x)); factors of all."""
    c, n = m.config, len(tokens)
    heads, kv, eps, dim = c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"], c["head_dim"]
    gate, down = c["mlp_multipliers"]
    x = m["model.embed_tokens.weight"][tokens] * c["embedding_multiplier"]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        h = rms_norm(x, m[name + "input_layernorm.weight"], eps)
        q, k, v = (m.linear(h * c["attention_in_multiplier"], f"{name}self_attn.{p}_proj").reshape(n, -1, dim) for p in "qkv")
        q, k = rotate(q, c, False), rotate(k * c["key_multiplier"], c, False)
        y = m.linear(attend(q, np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1), dim**-0.5), name + "self_attn.o_proj")
        x = x + y * c["attention_out_multiplier"] + mamba2(m, h, name + "mamba.")
        h = rms_norm(x, m[name + "pre_ff_layernorm.weight"], eps)
        f = name + "feed_forward."
        x = x + m.linear(silu(m.linear(h, f + "gate_proj") * gate) * m.linear(h, f + "up_proj"), f + "down_proj") * down
    return m.linear(rms_norm(x, m["model.final_layernorm.weight"], eps), "lm_head") * c["lm_head_multiplier"], math.inf


FAMILIES = {"falcon_h1": falcon_h1, "gpt_neox": gpt_neox, "starcoder2": starcoder2}
