"""Forward passes (oracle.py) of dense families with layer norms and FFNs of one matrix before GELU, written from the vendors' code."""
import math

import numpy as np

from oracle import attend, gelu, rotate


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


FAMILIES = {"gpt_neox": gpt_neox, "starcoder2": starcoder2}
