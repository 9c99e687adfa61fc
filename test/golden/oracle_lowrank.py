"""Forward passes (oracle.py) of families whose queries are of low rank, written from the vendors' code."""
import math

import numpy as np

from oracle import attend, delta_rule, mlp, rms_norm, rotate, sigmoid, silu, softmax
from oracle_experts import best, one, weighted


def latents(m, x, name, nope, rope, theta, normed):
    """Queries and keys [rows, heads, nope + rope] and values of MLA; normed(x, name) norms a latent."""
    c, n = {**m.config, "rope_theta": theta}, len(x)
    heads = c["num_attention_heads"]
    q = m.linear(normed(m.linear(x, name + "q_a_proj"), name + "q_a_layernorm"), name + "q_b_proj").reshape(n, heads, nope + rope)
    both = m.linear(x, name + "kv_a_proj_with_mqa")
    kv = m.linear(normed(both[:, :-rope], name + "kv_a_layernorm"), name + "kv_b_proj").reshape(n, heads, -1)
    turned = rotate(both[:, None, -rope:], c, True)
    k = np.concatenate((kv[..., :nope], np.repeat(turned, heads, 1)), -1)
    return np.concatenate((q[..., :nope], rotate(q[..., nope:], c, True)), -1), k, kv[..., nope:]


def pangu_ultra_moe(m, tokens):
    """h = x + norm(attention(norm(x))); x = h + norm(FFN(norm(h))). The experts with the largest sigmoid + bias; their normed sigmoids weigh them."""
    c, nearest = m.config, math.inf
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        q, k, v = latents(m, one(m, x, name + "input_layernorm"), name + "self_attn.", c["attention_qk_dim"], c["attention_qk_rope_dim"], c["rope_theta"],
                          lambda y, part: y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-6) * m[part + ".weight"])
        y = m.linear(attend(q, k, v, q.shape[-1] ** -0.5), name + "self_attn.o_proj")
        x = x + one(m, y, name + "post_attention_layernorm")
        h, part = one(m, x, name + "pre_mlp_layernorm"), name + "mlp."
        if layer < c["num_dense_layers"]:
            y = mlp(m, h, part)
        else:
            score = sigmoid(m.linear(h, part + "gate"))
            chosen, gap = best(score + m[part + "e_score_correction_bias"], c["num_experts_per_tok"])
            weight = np.take_along_axis(score, chosen, -1)
            weight = weight / weight.sum(-1, keepdims=True) if c["norm_topk_prob"] else weight
            y = weighted(h, chosen, weight * c["routed_scaling_factor"], lambda e, rows: mlp(m, rows, f"{part}experts.{e}.")) + mlp(m, h, part + "shared_experts.")
            nearest = min(nearest, gap)
        x = x + one(m, y, name + "post_mlp_layernorm")
    return m.linear(one(m, x, "model.norm"), "lm_head"), nearest


def step3(m, tokens):
    """h = x + attention(norm(x)) over one head of keys and values, with queries wq(norm(q_proj)); x = h + experts(norm'(h)) + shared(norm'(h))."""
    c, nearest, outer = m.config["text_config"], math.inf, m.config
    m.config = c
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name, dim, heads = f"model.layers.{layer}.", c["head_dim"], c["num_attention_heads"]
        y, s = one(m, x, name + "input_layernorm"), name + "self_attn."
        q = m.linear(one(m, m.linear(y, s + "q_proj"), s + "inter_norm"), s + "wq").reshape(len(x), heads, dim)
        k, v = (np.repeat(t, heads, 1) for t in (rotate(m.linear(y, s + "k_proj")[:, None], c, False), m.linear(y, s + "v_proj")[:, None]))
        x = x + m.linear(attend(rotate(q, c, False), k, v, dim**-0.5), s + "o_proj")
        h, part = one(m, x, name + "post_attention_layernorm"), name + "moe."
        if part + "gate.weight" not in m:
            x = x + mlp(m, h, name + "mlp.")
            continue
        score = softmax(m.linear(h, part + "gate"))
        chosen, gap = best(score, c["moe_top_k"])
        weight = np.take_along_axis(score, chosen, -1)
        weight = weight / weight.sum(-1, keepdims=True) if c["norm_expert_weight"] else weight
        gate, up, down = (m[f"{part}{p}_proj.weight"] for p in ("gate", "up", "down"))
        x = x + weighted(h, chosen, weight, lambda e, rows: silu(rows @ gate[e].T) * (rows @ up[e].T) @ down[e].T) + mlp(m, h, name + "share_expert.")
        nearest = min(nearest, gap)
    logits = m.linear(one(m, x, "model.norm"), "lm_head")
    m.config = outer
    return logits, nearest


def gigachat3_5(m, tokens):
    """h = x + norm(mixer(norm(x))); x = h + norm(FFN(norm(h))). Every norm is w * sigmoid(down silu(up y)) y of y = norm(x); FFNs are silu(min(gate, limit)) times
    the clamped up."""
    c, nearest = m.config, math.inf
    limit, factor = c["swiglu_limit"], (c.get("rope_scaling") or {}).get("factor", 1)
    scale = (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]) ** -0.5 * (0.1 * (c.get("rope_scaling") or {}).get("mscale_all_dim", 0) * math.log(factor) + 1) ** 2

    def gated(x, name):
        y = rms_norm(x, 1 + m[name + ".weight"], c["rms_norm_eps"])
        return y * c["layernorm_gating_weight"] * sigmoid(m.linear(silu(m.linear(y, name + ".gate_up_projection")), name + ".gate_down_projection"))

    def latent(x, name):
        return gated(x, name) * math.sqrt(c["hidden_size"] / x.shape[-1])

    def ffn(x, name):
        gate, up = np.minimum(m.linear(x, name + "gate_proj"), limit), np.clip(m.linear(x, name + "up_proj"), -limit, limit)
        return m.linear(silu(gate) * up, name + "down_proj")
    x = m["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        y, s = gated(x, name + "input_layernorm"), name + "self_attn."
        if layer in c["full_attention_layers"]:
            q, k, v = latents(m, y, s, c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["rope_theta"], latent)
            y = m.linear(attend(q, k, v, scale) * sigmoid(m.linear(y, s + "gate_proj")), s + "o_proj")
        else:
            out, z = delta_rule(m, y, s)
            out = rms_norm(out, 1 + m[s + "norm.weight"], c["rms_norm_eps"]) * sigmoid(z) * c["linear_sigmoid_gate_scale"]
            y = m.linear(out.reshape(len(x), -1), s + "out_proj")
        x = x + gated(y, name + "post_self_attn_layernorm")
        h, part = gated(x, name + "post_attention_layernorm"), name + "mlp."
        if layer < c["first_k_dense_replace"]:
            y = ffn(h, part)
        else:
            score = sigmoid(m.linear(h, part + "gate"))
            chosen, gap = best(score + m[part + "gate.e_score_correction_bias"], c["num_experts_per_tok"])
            weight = np.take_along_axis(score, chosen, -1)
            weight = weight / weight.sum(-1, keepdims=True) * c["routed_scaling_factor"]
            y = weighted(h, chosen, weight, lambda e, rows: ffn(rows, f"{part}experts.{e}.")) + ffn(h, part + "shared_experts.")
            nearest = min(nearest, gap)
        x = x + gated(y, name + "post_feedforward_layernorm")
    return m.linear(gated(x, "model.norm"), "lm_head"), nearest


FAMILIES = {"gigachat3_5": gigachat3_5, "pangu_ultra_moe": pangu_ultra_moe, "step3_vl": step3}
