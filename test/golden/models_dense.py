"""Tensors of tiny checkpoints (models.py) of dense families with layer norms and FFNs of one matrix before GELU."""
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


FAMILIES = {"gpt_neox": gpt_neox, "starcoder2": starcoder2}
