"""Tensors of families whose queries are of low rank, with the vendors' names. Imported by models.py."""
from models import delta, floats, mlp, tensor, weight
from models_experts import ends, norm


def experts(out, c, p, n, inter, shared):
    """A router, its experts one by one, and a shared expert of this width."""
    weight(out, c, p + "gate", n, c["hidden_size"], 1.5, fp8=False)
    for e in range(n):
        mlp(out, c, f"{p}experts.{e}.", inter)
    mlp(out, c, p + "shared_experts.", shared)


def pangu_ultra_moe(c):
    out, h, heads = {}, c["hidden_size"], c["num_attention_heads"]
    q, kv, nope, rope, v = (c[f"attention_{k}_dim"] for k in ("q_lora", "kv_lora", "qk", "qk_rope", "v"))
    ends(out, c)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        s = p + "self_attn."
        for name in ("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"):
            norm(out, p + name, h)
        for name, n in (("q_a_layernorm", q), ("kv_a_layernorm", kv)):
            norm(out, s + name, n)
        for name, rows, cols in (("q_a_proj", q, h), ("q_b_proj", heads * (nope + rope), q), ("kv_a_proj_with_mqa", kv + rope, h),
                                 ("kv_b_proj", heads * (nope + v), kv), ("o_proj", h, heads * v)):
            weight(out, c, s + name, rows, cols)
        if i < c["num_dense_layers"]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        experts(out, c, p + "mlp.", c["num_routed_experts"], c["moe_intermediate_size"], c["moe_intermediate_size"] * c["num_shared_experts"])
        out[p + "mlp.e_score_correction_bias"] = floats(p + "bias", [c["num_routed_experts"]], 0, 0.25)
    return out


def step3(config):
    c, out = config["text_config"], {}
    h, low, dim, heads, n, inter = c["hidden_size"], c["share_q_dim"], c["head_dim"], c["num_attention_heads"], c["moe_num_experts"], c["moe_intermediate_size"]
    ends(out, c)
    out["vision_model.post_layernorm.weight"] = tensor("vision", [24], 1)  # not read
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        s = p + "self_attn."
        for name, width in (("input_layernorm", h), ("post_attention_layernorm", h), ("self_attn.inter_norm", low)):
            norm(out, p + name, width)
        for name, rows, cols, gain in (("q_proj", low, h, 1), ("wq", heads * dim, low, 2), ("k_proj", dim, h, 1), ("v_proj", dim, h, 1), ("o_proj", h, heads * dim, 1)):
            weight(out, config, s + name, rows, cols, gain)
        if str(i) not in c["moe_layers_enum"].split(","):
            mlp(out, {**config, **c}, p + "mlp.", c["intermediate_size"])
            continue
        weight(out, config, p + "moe.gate", n, h, 1.5, fp8=False)
        for name, rows, cols, gain in (("gate_proj", inter, h, 1.5), ("up_proj", inter, h, 1), ("down_proj", h, inter, 1.5)):
            out[f"{p}moe.{name}.weight"] = tensor(f"{p}moe.{name}", [n, rows, cols], gain / cols**0.5)
        mlp(out, {**config, **c}, p + "share_expert.", c["share_expert_dim"])
    return out


def gated_norm(out, name, n):
    """A norm that is published less 1, and its gate."""
    out[name + ".weight"] = tensor(name, [n], 0.3)
    out[name + ".gate_up_projection.weight"] = tensor(name + " up", [16, n], 1 / n**0.5)
    out[name + ".gate_down_projection.weight"] = tensor(name + " down", [n, 16], 0.3)


def gigachat3_5(config):
    c, out, h, heads, q, kv = {"linear_conv_kernel_dim": 4, **config}, {}, config["hidden_size"], config["num_attention_heads"], config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    ends(out, c)
    gated_norm(out, "model.norm", h)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        s = p + "self_attn."
        for name in ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"):
            gated_norm(out, p + name, h)
        if i in c["full_attention_layers"]:
            gated_norm(out, s + "q_a_layernorm", q)
            gated_norm(out, s + "kv_a_layernorm", kv)
            for name, rows, cols in (("q_a_proj", q, h), ("q_b_proj", heads * (nope + rope), q), ("kv_a_proj_with_mqa", kv + rope, h), ("kv_b_proj", heads * (nope + v), kv),
                                     ("o_proj", h, heads * v), ("gate_proj", heads * v, h)):
                weight(out, c, s + name, rows, cols)
        else:
            delta(out, c, s)
            out[s + "norm.weight"] = tensor(s + "norm", [c["linear_value_head_dim"]], 0.3)
        if i < c["first_k_dense_replace"]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        experts(out, c, p + "mlp.", c["n_routed_experts"], c["moe_intermediate_size"], c["moe_intermediate_size"] * c["n_shared_experts"])
        out[p + "mlp.gate.e_score_correction_bias"] = floats(p + "bias", [c["n_routed_experts"]], 0, 0.25)
    return out


FAMILIES = {"gigachat3_5": gigachat3_5, "pangu_ultra_moe": pangu_ultra_moe, "step3_vl": step3}
