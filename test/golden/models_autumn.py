"""Tensors of tiny checkpoints (models.py) of the families of autumn 2026."""
from models import floats, mlp, tensor, weight
from models_experts import attention, ends, layers, norm, routed


def k2_horizon(c):
    out, h, dim = {}, c["hidden_size"], c["head_dim"]
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    for i, p in enumerate(layers(out, c, "input_layernorm", "post_attention_layernorm")):
        a = p + "self_attn."
        weight(out, c, a + "gate_proj", heads * dim, h)
        norm(out, a + "q_norm", heads * dim)
        norm(out, a + "k_norm", kv * dim)
        if i in c["mlp_only_layers"]:
            mlp(out, c, p + "mlp.", c["intermediate_size"])
            continue
        for name in [name for name in out if name.startswith(a + "v_proj.")]:
            del out[name]
        weight(out, c, a + "v_router", c["mova_num_experts"], h, 1.5, fp8=False)
        out[a + "v_router.bias"] = floats(a + "v_bias", [c["mova_num_experts"]], 0, 0.25)
        for e in range(c["mova_num_experts"]):
            weight(out, c, f"{a}v_experts.{e}", kv * dim, h, 2)
        routed(out, c, p + "mlp.", c["num_experts"], "bias", c["moe_intermediate_size"] * c["num_shared_experts"])
    return out


def maple(c):
    out = {}
    for p in layers(out, c, "input_layernorm", "post_attention_layernorm"):
        for name in ("q_norm", "k_norm"):
            norm(out, f"{p}self_attn.{name}", c["head_dim"])
        weight(out, c, p + "mlp.gate", c["num_experts"], c["hidden_size"], 3, fp8=False)
        for e in range(c["num_experts"]):
            mlp(out, c, f"{p}mlp.experts.{e}.", c["moe_intermediate_size"], 3)
    out["model.word_embeddings.weight"] = out.pop("model.embed_tokens.weight")
    return out


def iquest_q1(c):
    out, h, inter = {}, c["hidden_size"], c["intermediate_size"]
    for i, p in enumerate(layers(out, c, "attention_norm", "attn_out_norm", "feed_forward_norm")):
        for name in ("q_norm", "k_norm"):
            norm(out, f"{p}self_attn.{name}", c["head_dim"])
        out[p + "self_attn.sink_k"] = tensor(p + "sink_k", [1, c["num_key_value_heads"], c["head_dim"]], 1)
        if i in c["mlp_only_layers"]:
            norm(out, p + "ffn_out_norm", h)
            mlp(out, c, p + "mlp.", c["dense_intermediate_size"])
            continue
        weight(out, c, p + "mlp.router", c["num_experts"], h, 3, fp8=False)
        for name, rows, cols in (("fc", 2 * inter, h), ("proj", h, inter)):
            out[f"{p}mlp.experts.{name}"] = tensor(p + name, [c["num_experts"], rows, cols], cols**-0.5)
    out["mtp_layers.0.norm.weight"] = tensor("draft", [h], 1)  # not read
    return out


FAMILIES = {"iquest_q1": iquest_q1, "k2_horizon": k2_horizon, "maple": maple}
