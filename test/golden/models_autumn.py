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


def spark2_5(c):
    out = {}
    for p in layers(out, c, "input_layernorm", "post_attention_layernorm"):
        q, k, v, o = (out.pop(f"{p}self_attn.{name}_proj.weight") for name in "qkvo")
        out[p + "self_attn.q_k_v_proj.weight"] = q[0], [q[1][0] + k[1][0] + v[1][0], q[1][1]], q[2] + k[2] + v[2]
        out[p + "self_attn.out_proj.weight"] = o
        weight(out, c, p + "self_attn.g_proj", c["num_attention_heads"], c["hidden_size"], 2)
        mlp(out, c, p + "mlp.", c["intermediate_size"], 2)
    out["model.embedding.weight"] = out.pop("model.embed_tokens.weight")
    return out


def apertus(c):
    out = {}
    for p in layers(out, c, "attention_layernorm", "feedforward_layernorm"):
        for name in ("q_norm", "k_norm"):
            norm(out, f"{p}self_attn.{name}", c["hidden_size"] // c["num_attention_heads"])
        weight(out, c, p + "mlp.up_proj", c["intermediate_size"], c["hidden_size"], 1.5)
        weight(out, c, p + "mlp.down_proj", c["hidden_size"], c["intermediate_size"])
        for name, middle in (("alpha_p", 0.2), ("alpha_n", -1), ("beta", 0.5), ("eps", -1e-6)):
            learned = name.startswith("alpha")
            out[f"{p}mlp.act_fn.{name}"] = tensor(p + name, [1] if learned else [], 0.3 if learned else 0, middle)
    return out


def nemotron_nas(c):
    out = {}
    for i, p in enumerate(layers(out, {**c, "num_key_value_heads": 1}, "input_layernorm", "post_attention_layernorm")):
        block, dim = c["block_configs"][i], c["hidden_size"] // c["num_attention_heads"]
        for name in [name for name in out if name.startswith((p + "self_attn.k", p + "self_attn.v") if not block["attention"]["no_op"] else (p + "self_attn.", p + "input_"))]:
            del out[name]
        for name in "kv" if not block["attention"]["no_op"] else "":
            weight(out, c, f"{p}self_attn.{name}_proj", c["num_attention_heads"] // block["attention"]["n_heads_in_group"] * dim, c["hidden_size"])
        if block["ffn"]["no_op"]:
            del out[p + "post_attention_layernorm.weight"]
            continue
        mlp(out, c, p + "mlp.", -(-int(2 * block["ffn"]["ffn_mult"] * c["hidden_size"] / 3) // 256) * 256)
    return out


FAMILIES = {"apertus": apertus, "iquest_q1": iquest_q1, "k2_horizon": k2_horizon, "maple": maple, "nemotron-nas": nemotron_nas, "spark2_5": spark2_5}
