"""Tensors of tiny checkpoints (models.py) whose layers differ from others by their experts."""
from models import mlp, tensor, weight


def norm(out, name, n):
    out[name + ".weight"] = tensor(name, [n], 0.3, 1)


def ends(out, c):
    tied = c.get("tie_word_embeddings")
    out["model.embed_tokens.weight"] = tensor("embed", [c["vocab_size"], c["hidden_size"]], 0.2 if tied else 1)
    norm(out, "model.norm", c["hidden_size"])
    if tied:
        return
    weight(out, c, "lm_head", c["vocab_size"], c["hidden_size"], fp8=False)


def attention(out, c, p):
    h, dim = c["hidden_size"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    for name, n in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
        weight(out, c, f"{p}{name}_proj", n * dim, h, 2 if name == "q" else 1)
    weight(out, c, p + "o_proj", h, c["num_attention_heads"] * dim)


def arctic(c):
    out, h = {}, c["hidden_size"]
    ends(out, c)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "residual_layernorm", "post_attention_layernorm"):
            norm(out, p + name, h)
        attention(out, c, p + "self_attn.")
        mlp(out, c, p + "residual_mlp.", h, names=("w1", "w3", "w2"))
        weight(out, c, p + "block_sparse_moe.gate", c["num_local_experts"], h, 1.5, fp8=False)
        for e in range(c["num_local_experts"]):
            mlp(out, c, f"{p}block_sparse_moe.experts.{e}.", c["intermediate_size"], names=("w1", "w3", "w2"))
    return out


def smallthinker(c):
    out, h = {}, c["hidden_size"]
    ends(out, c)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(out, p + name, h)
        attention(out, c, p + "self_attn.")
        weight(out, c, p + "block_sparse_moe.primary_router", c["moe_num_primary_experts"], h, 3, fp8=False)
        for e in range(c["moe_num_primary_experts"]):
            mlp(out, c, f"{p}block_sparse_moe.experts.{e}.", c["moe_ffn_hidden_size"], names=("gate", "up", "down"))
    return out


def grok(c):
    out, h = {}, c["hidden_size"]
    ends(out, c)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"):
            norm(out, p + name, h)
        attention(out, c, p + "self_attn.")
        mlp(out, c, p + "mlp.", c["intermediate_size"])
        weight(out, c, p + "block_sparse_moe.gate", c["num_local_experts"], h, 3, fp8=False)
        for e in range(c["num_local_experts"]):
            mlp(out, c, f"{p}block_sparse_moe.experts.{e}.", c["moe_intermediate_size"], names=("w1", "w3", "w2"))
    return out


FAMILIES = {"arctic": arctic, "grok": grok, "smallthinker": smallthinker}
