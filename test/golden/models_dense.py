"""Tensors of tiny checkpoints (models.py) of dense families with layer norms and FFNs of one matrix before GELU, and of Falcon-H1."""
from models import tensor, weight


def norm(out, c, name):
    out[name + ".weight"], out[name + ".bias"] = tensor(name, [c["hidden_size"]], 0.3, 1), tensor(name + " bias", [c["hidden_size"]], 0.2)


def biased(out, c, name, rows, cols, gain=1.0):
    weight(out, c, name, rows, cols, gain)
    out[name + ".bias"] = tensor(name + " bias", [rows], 0.3)


def gpt_neox(c):
    out, h, inter = {"gpt_neox.embed_in.weight": tensor("embed", [c["vocab_size"], c["hidden_size"]], 1)}, c["hidden_size"], c["intermediate_size"]
    for i in range(c["num_hidden_layers"]):
        p = f"gpt_neox.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(out, c, p + name)
        biased(out, c, p + "attention.query_key_value", 3 * h, h, 1.5)
        biased(out, c, p + "attention.dense", h, h)
        biased(out, c, p + "mlp.dense_h_to_4h", inter, h, 1.5)
        biased(out, c, p + "mlp.dense_4h_to_h", h, inter, 1.5)
        out[p + "attention.bias"] = "BOOL", [1, 1, 4, 4], bytes([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1])  # not read
        out[p + "attention.masked_bias"] = "F32", [], bytes(4)
    norm(out, c, "gpt_neox.final_layer_norm")
    weight(out, c, "embed_out", c["vocab_size"], h)
    return out


def starcoder2(c):
    out, h, inter = {"model.embed_tokens.weight": tensor("embed", [c["vocab_size"], c["hidden_size"]], 0.2)}, c["hidden_size"], c["intermediate_size"]
    dim = h // c["num_attention_heads"]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(out, c, p + name)
        for name, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
            biased(out, c, f"{p}self_attn.{name}_proj", heads * dim, h, 1.5)
        biased(out, c, p + "self_attn.o_proj", h, h)
        biased(out, c, p + "mlp.c_fc", inter, h, 1.5)
        biased(out, c, p + "mlp.c_proj", h, inter, 1.5)
    norm(out, c, "model.norm")
    return out


def falcon_h1(c):
    out, h, inner, heads = {"model.embed_tokens.weight": tensor("embed", [c["vocab_size"], c["hidden_size"]], 1)}, c["hidden_size"], c["mamba_d_ssm"], c["mamba_n_heads"]
    channels, dim = inner + 2 * c["mamba_n_groups"] * c["mamba_d_state"], c["head_dim"]
    for i in range(c["num_hidden_layers"]):
        p, s = f"model.layers.{i}.", f"model.layers.{i}.mamba."
        for name, size in ((p + "input_layernorm", h), (p + "pre_ff_layernorm", h), (s + "norm", inner)):
            out[name + ".weight"] = tensor(name, [size], 0.3, 1)
        for name, of in (("q", "num_attention_heads"), ("k", "num_key_value_heads"), ("v", "num_key_value_heads")):
            weight(out, c, f"{p}self_attn.{name}_proj", c[of] * dim, h, 1.5)
        weight(out, c, p + "self_attn.o_proj", h, c["num_attention_heads"] * dim)
        weight(out, c, s + "in_proj", inner + channels + heads, h, 1.5)
        out[s + "conv1d.weight"], out[s + "conv1d.bias"] = tensor(s + "conv", [channels, 1, c["mamba_d_conv"]], 0.5), tensor(s + "conv bias", [channels], 0.3)
        out[s + "A_log"], out[s + "dt_bias"], out[s + "D"] = tensor(s + "A_log", [heads], 1), tensor(s + "dt", [heads], 0.5, -1), tensor(s + "D", [heads], 0.5, 1)
        weight(out, c, s + "out_proj", h, inner)
        weight(out, c, p + "feed_forward.gate_proj", c["intermediate_size"], h, 2)
        weight(out, c, p + "feed_forward.up_proj", c["intermediate_size"], h, 2)
        weight(out, c, p + "feed_forward.down_proj", h, c["intermediate_size"], 3)
    out["model.final_layernorm.weight"] = tensor("norm", [h], 0.3, 1)
    weight(out, c, "lm_head", c["vocab_size"], h, 3)
    return out


FAMILIES = {"falcon_h1": falcon_h1, "gpt_neox": gpt_neox, "starcoder2": starcoder2}
