#!/usr/bin/env python3
"""Families without experts that differ from another one in the names of their keys, or in options which the other has, too: the same weights give the same
logits. Each pair also has a third config, with the option changed, whose logits must differ.
dense_twins.py HEARTH"""
import os
import sys

from checkpoint import logits
from models import tensor

H, HEADS, KV, DIM, INTER, LAYERS = 96, 4, 2, 24, 136, 4
BASE = {"vocab_size": 120, "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM, "intermediate_size": INTER,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 1, "rope_theta": 10000.0, "tie_word_embeddings": False}
SHAPES = {"self_attn.q_proj": (HEADS * DIM, H), "self_attn.k_proj": (KV * DIM, H), "self_attn.v_proj": (KV * DIM, H), "self_attn.o_proj": (H, HEADS * DIM),
          "mlp.gate_proj": (INTER, H), "mlp.up_proj": (INTER, H), "mlp.down_proj": (H, INTER)}


def checkpoint(biases=False, norms=(), factor=1.0):
    """norms: names of norms of what blocks add, whose weights are multiplied by factor."""
    out = {"model.embed_tokens.weight": tensor("embed", [120, H], 1), "lm_head.weight": tensor("head", [120, H], H ** -0.5), "model.norm.weight": tensor("norm", [H], 0.2, 1)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for name, (rows, cols) in SHAPES.items():
            out[p + name + ".weight"] = tensor(p + name, [rows, cols], cols ** -0.5)
            if biases:
                out[p + name + ".bias"] = tensor(p + name + "b", [rows], 0.3)
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[p + name + ".weight"] = tensor(p + name, [H], 0.2, 1)
        for name in norms:
            out[p + name + ".weight"] = tensor(p + name, [H], 0.2 * factor, factor)
    return out


GRANITE = {"residual_multiplier": 0.5, "embedding_multiplier": 2.0, "attention_multiplier": 0.25}
WINDOWS = ["sliding_attention"] * LAYERS
POST = ("post_norm1", "post_norm2")
# what, its config and weights, those of the same model in another family, a key that must matter
PAIRS = [
    ("IQuest-Coder as Llama", {"model_type": "iquestcoder"}, {}, {"model_type": "llama"}, {}, {"rope_theta": 500.0}),
    ("InternLM 3 as Llama", {"model_type": "internlm3", "qkv_bias": True, "bias": True}, {"biases": True},
     {"model_type": "llama", "attention_bias": True, "mlp_bias": True}, {"biases": True}, {"rope_theta": 500.0}),
    ("InternLM 3 as transformers saves it", {"model_type": "internlm3", "attention_bias": True, "mlp_bias": True}, {"biases": True},
     {"model_type": "llama", "attention_bias": True, "mlp_bias": True}, {"biases": True}, {"rope_theta": 500.0}),
    ("CWM with windows in all layers as Mistral", {"model_type": "cwm", "layer_types": WINDOWS, "sliding_window": 9}, {}, {"model_type": "mistral", "sliding_window": 9}, {},
     {"sliding_window": 7}),
    ("CWM without a list of windows", {"model_type": "cwm", "sliding_window": 9}, {},
     {"model_type": "cwm", "layer_types": ["full_attention", *WINDOWS[1:]], "sliding_window": 9}, {}, {"layer_types": ["sliding_attention", *WINDOWS[1:]]}),
    ("MiniCPM as Granite", {"model_type": "minicpm", "scale_emb": 2.0, "scale_depth": 1.0, "dim_model_base": 48}, {},
     {"model_type": "granite", **GRANITE, "attention_multiplier": DIM ** -0.5, "logits_scaling": 2.0}, {}, {"scale_depth": 1.4}),
    ("HyperCLOVA X as Granite", {"model_type": "hyperclovax", **GRANITE, "logits_scaling": 0.5, "use_post_norm": False}, {}, {"model_type": "granite", **GRANITE, "logits_scaling": 2.0}, {},
     {"attention_multiplier": 0.125}),
    ("HyperCLOVA X without factors as Llama", {"model_type": "hyperclovax", "attention_multiplier": None, "use_post_norm": False}, {}, {"model_type": "llama"}, {},
     {"residual_multiplier": 0.5}),
    # half the norms' weights are half of what is added
    ("HyperCLOVA X with norms of what blocks add", {"model_type": "hyperclovax", "residual_multiplier": 0.5}, {"norms": POST},
     {"model_type": "hyperclovax"}, {"norms": POST, "factor": 0.5}, {"residual_multiplier": 1.0}),
]
REFUSED = [("biases that differ", {"model_type": "internlm3", "qkv_bias": True, "bias": False}, "'qkv_bias' and 'bias' differ"),
           ("selected blocks", {"model_type": "minicpm", "sparse_config": {"topk": 4}}, "sparse_config"),
           ("missing norms", {"model_type": "hyperclovax"}, "post_norm")]


def run(config, tensors):
    return logits(HEARTH, {**BASE, **config}, tensors, TOKENS)


HEARTH, TOKENS, failed = os.path.abspath(sys.argv[1]), ",".join(str(t) for t in range(2, 40)), 0
for what, config, weights, other, other_weights, change in PAIRS:
    got, want, changed = run(config, checkpoint(**weights)), run(other, checkpoint(**other_weights)), run({**config, **change}, checkpoint(**weights))
    ok = isinstance(got, bytes) and got == want and isinstance(changed, bytes) and changed != got
    print(f"{'ok' if ok else 'FAIL'} {what} {next((x for x in (got, want, changed) if isinstance(x, str)), '')}")
    failed += not ok
for what, config, part in REFUSED:
    got = run(config, checkpoint(biases=True))
    ok = isinstance(got, str) and part in got
    print(f"{'ok' if ok else 'FAIL'} {what}: {got if isinstance(got, str) else 'accepted'}")
    failed += not ok
sys.exit(failed != 0)
