#!/usr/bin/env python3
"""Families without experts that differ from another one in the names of their keys, or in options which the other has, too: the same weights give the same
logits. Each pair also has a third config, with the option changed, whose logits must differ.
dense_twins.py HEARTH"""
import json
import os
import struct
import sys

from checkpoint import logits
from models import stream, tensor

H, HEADS, KV, DIM, INTER, LAYERS = 96, 4, 2, 24, 136, 4
BASE = {"vocab_size": 120, "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM, "intermediate_size": INTER,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 1, "rope_theta": 10000.0, "tie_word_embeddings": False}
SHAPES = {"self_attn.q_proj": (HEADS * DIM, H), "self_attn.k_proj": (KV * DIM, H), "self_attn.v_proj": (KV * DIM, H), "self_attn.o_proj": (H, HEADS * DIM),
          "mlp.gate_proj": (INTER, H), "mlp.up_proj": (INTER, H), "mlp.down_proj": (H, INTER)}


QKV = ("q_proj", "k_proj", "v_proj")


def checkpoint(biases=False, norms=(), factor=1.0, joined=False, names=(), head=120):
    """biases: of all matrices, or of those with these endings. norms: names of norms of what blocks add, whose weights are multiplied by factor. joined: gate and
    up are one matrix. names: what parts of names become. head: rows of the head."""
    out = {"model.embed_tokens.weight": tensor("embed", [120, H], 1), "lm_head.weight": tensor("head", [120, H], H ** -0.5), "model.norm.weight": tensor("norm", [H], 0.2, 1)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for name, (rows, cols) in SHAPES.items():
            out[p + name + ".weight"] = tensor(p + name, [rows, cols], cols ** -0.5)
            if biases is True or (biases and name.endswith(biases)):
                out[p + name + ".bias"] = tensor(p + name + "b", [rows], 0.3)
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[p + name + ".weight"] = tensor(p + name, [H], 0.2, 1)
        for name in norms:
            out[p + name + ".weight"] = tensor(p + name, [H], 0.2 * factor, factor)
        if joined:
            (kind, _, gate), (_, _, up) = (out.pop(f"{p}mlp.{x}_proj.weight") for x in ("gate", "up"))
            out[p + "mlp.gate_up_proj.weight"] = kind, [2 * INTER, H], gate + up
    dtype, shape, raw = out["lm_head.weight"]
    out["lm_head.weight"] = dtype, [head, H], raw[:len(raw) // shape[0] * head]
    for old, new in names:
        out = {n.replace(old, new): t for n, t in out.items()}
    return out


def learned(**more):
    """Weights of Apertus."""
    out = {n: t for n, t in checkpoint(**more).items() if "gate_proj" not in n}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        out |= {f"{p}self_attn.{x}_norm.weight": tensor(p + x, [DIM], 0.2, 1) for x in "qk"}
        out |= {f"{p}mlp.act_fn.{x}": tensor(p + x, [1], 0.1, 0.6) for x in ("alpha_p", "alpha_n", "beta")}
    return {n.replace("input_layernorm", "attention_layernorm").replace("post_attention_layernorm", "feedforward_layernorm"): t for n, t in out.items()}


def plain(norm, **more):
    """The weights of all norms are one number."""
    return {n: ("F32", t[1], struct.pack("<f", norm) * H) if "norm" in n else t for n, t in checkpoint(**more).items()}


def squared(norm):
    """Weights of Nemotron and Jais 2: layer norms with biases, all matrices have some, and FFNs have no gate."""
    out = {n: t for n, t in plain(norm, biases=True).items() if "gate_proj" not in n}
    return out | {n.replace(".weight", ".bias"): tensor(n, [H], 0.3) for n in out if "norm" in n}


def by_group():
    """InternLM 2: q, k and v are one matrix, of which each KV head has a piece."""
    out = checkpoint(names=INTERNLM)
    for i in range(LAYERS):
        p = f"model.layers.{i}.attention."
        kind, _, q = out.pop(p + "q_proj.weight")
        k, v = (out.pop(f"{p}{x}_proj.weight")[2] for x in "kv")
        group, each = len(q) // KV, len(k) // KV
        raw = b"".join(q[j * group:(j + 1) * group] + k[j * each:(j + 1) * each] + v[j * each:(j + 1) * each] for j in range(KV))
        out[p + "wqkv.weight"] = kind, [(HEADS + 2 * KV) * DIM, H], raw
    return out


def adapted(has_adapters):
    """Phi-4-multimodal: q, k and v are one matrix; each matrix may have adapters beside it."""
    out = checkpoint(joined=True)
    for i in range(LAYERS):
        p = f"model.layers.{i}.self_attn."
        parts = [out.pop(f"{p}{x}_proj.weight") for x in "qkv"]
        out[p + "qkv_proj.weight"] = parts[0][0], [(HEADS + 2 * KV) * DIM, H], b"".join(t[2] for t in parts)
    if has_adapters:
        out = {n.replace("_proj.weight", "_proj.base_layer.weight"): t for n, t in out.items()}
        out |= {n.replace("base_layer", f"lora_{x}.{of}"): tensor(n + x, [4, H], 1) for n in list(out) if "base_layer" in n for x in "AB" for of in ("speech", "vision")}
        out["model.embed_tokens_extend.image_embed.glb_GN"] = tensor("glb", [1, H], 1)
    return out


def beside(has_biases):
    """Attention and FFN after one layer norm, whose biases are 0."""
    out = {n: t for n, t in checkpoint().items() if "post_attention" not in n}
    return out | {n.replace(".weight", ".bias"): ("F32", [H], bytes(4 * H)) for n in out if "norm" in n and has_biases}


def ungated(names, kv, joined=True, norms=1, head_bias=False):
    """Layer norms, biases everywhere, FFNs of one matrix. joined: q, k and v are one matrix, of which each KV head has a piece. norms: of a layer, with the same weights."""
    out = {"embed.weight": tensor("embed", [120, H], 1), "head.weight": tensor("head", [120, H], H ** -0.5)}

    def biased(name, of, rows, cols=0):
        out[name + ".weight"] = tensor(of, [rows, cols] if cols else [rows], cols ** -0.5 if cols else 0.2, 0 if cols else 1)
        out[name + ".bias"] = tensor(of + "b", [rows], 0.3)
    for i in range(LAYERS):
        p = f"layers.{i}."
        for j in range(norms):
            biased(f"{p}norm{j}", p + "norm", H)
        for x, heads in (("q", HEADS), ("k", kv), ("v", kv)):
            biased(p + x, p + x, heads * DIM, H)
        biased(p + "o", p + "o", H, HEADS * DIM)
        biased(p + "up", p + "up", INTER, H)
        biased(p + "down", p + "down", H, INTER)
        for end, shape in (("weight", [(HEADS + 2 * kv) * DIM, H]), ("bias", [(HEADS + 2 * kv) * DIM])) if joined else ():
            parts = [out.pop(f"{p}{x}.{end}")[2] for x in "qkv"]
            out[f"{p}qkv.{end}"] = "BF16", shape, b"".join(t[j * len(t) // kv:(j + 1) * len(t) // kv] for j in range(kv) for t in parts)
    biased("last", "last", H)
    if head_bias:
        out["head.bias"] = "F32", [120], bytes(4 * 120)
    for old, new in names:
        out = {n.replace(old, new): t for n, t in out.items()}
    return out


def fours(is_packed):
    """Phi-3 whose matrices in layers are bitsandbytes' FP4, with scales whose twelfths are powers of two, or the same numbers."""
    levels = [sign * x / 12 for sign in (1, -1) for x in (0, 0.0625, 8, 12, 4, 6, 2, 3)]
    out = {n: t for n, t in checkpoint(joined=True).items() if "_proj" not in n}
    for i in range(LAYERS):
        for name, rows, cols in (("self_attn.qkv_proj", (HEADS + 2 * KV) * DIM, H), ("self_attn.o_proj", H, HEADS * DIM), ("mlp.gate_up_proj", 2 * INTER, H), ("mlp.down_proj", H, INTER)):
            name = f"model.layers.{i}.{name}"
            packed, n = stream(name, "codes").digest(rows * cols // 2), rows * cols // 64
            scales = [12 * 2.0 ** -(6 + b % 3) for b in stream(name, "scales").digest(n)]
            if is_packed:
                state = json.dumps({"quant_type": "fp4", "blocksize": 64, "dtype": "float32", "shape": [rows, cols]}).encode()
                out |= {name + ".weight": ("U8", [len(packed), 1], packed), name + ".weight.absmax": ("F32", [n], struct.pack(f"<{n}f", *scales)),
                        name + ".weight.quant_map": ("F32", [16], struct.pack("<16f", *levels)), name + ".weight.quant_state.bitsandbytes__fp4": ("U8", [len(state)], state)}
            else:
                codes = [c for b in packed for c in (b >> 4, b & 15)]
                out[name + ".weight"] = "F32", [rows, cols], struct.pack(f"<{rows * cols}f", *(levels[c] * scales[k // 64] for k, c in enumerate(codes)))
    return out


def level(has_norms):
    """Layer norms with weights of 1 and biases of 0, or without either."""
    out = plain(1.0)
    if not has_norms:
        return {n: t for n, t in out.items() if "norm" not in n}
    return out | {n.replace(".weight", ".bias"): ("F32", [H], bytes(4 * H)) for n in out if "norm" in n}


def latent():
    """MLA in place of GQA."""
    out = {n: t for n, t in checkpoint().items() if "_proj" not in n or "mlp" in n}
    for i in range(LAYERS):
        p = f"model.layers.{i}.self_attn."
        shapes = {"q_a_proj": (40, H), "q_b_proj": (HEADS * 40, 40), "kv_a_proj_with_mqa": (32 + 16, H), "kv_b_proj": (HEADS * (24 + DIM), 32), "o_proj": (H, HEADS * DIM)}
        out |= {f"{p}{n}.weight": tensor(p + n, [rows, cols], cols ** -0.5) for n, (rows, cols) in shapes.items()}
        out |= {f"{p}{n}.weight": tensor(p + n, [size], 0.2, 1) for n, size in (("q_a_layernorm", 40), ("kv_a_layernorm", 32))}
    return out


EXAONE = (("embed_tokens", "wte"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"), ("model.norm", "model.ln_f"), ("layers.", "h."), ("self_attn.o_proj", "self_attn.out_proj"),
          ("self_attn", "attn.attention"), ("gate_proj", "c_fc_0"), ("up_proj", "c_fc_1"), ("down_proj", "c_proj"), ("model.", "transformer."))
INTERNLM = (("embed_tokens", "tok_embeddings"), ("lm_head", "output"), ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm"),
            ("self_attn.o_proj", "attention.wo"), ("self_attn", "attention"), ("mlp.gate_proj", "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2"))
MLP = (("embed.", "model.embed_tokens."), ("head.", "lm_head."), ("layers.", "model.layers."))
PHI = (("norm0", "input_layernorm"), ("last.", "model.final_layernorm."), (".o.", ".self_attn.dense."), (".up.", ".mlp.fc1."), (".down.", ".mlp.fc2."),
       *((f".{x}.", f".self_attn.{x}_proj.") for x in "qkv"), *MLP)
STARCODER = (("norm0", "input_layernorm"), ("norm1", "post_attention_layernorm"), ("last.", "model.norm."), (".up.", ".mlp.c_fc."), (".down.", ".mlp.c_proj."),
             *((f".{x}.", f".self_attn.{x}_proj.") for x in "qkvo"), *MLP)
DENSE = ((".o.", ".attention.dense."), (".qkv.", ".attention.query_key_value."), (".up.", ".mlp.dense_h_to_4h."), (".down.", ".mlp.dense_4h_to_h."))
NEOX = (("norm0", "input_layernorm"), ("norm1", "post_attention_layernorm"), ("last.", "gpt_neox.final_layer_norm."), ("embed.", "gpt_neox.embed_in."), *DENSE, ("layers.", "gpt_neox.layers."),
        ("head.", "embed_out."))
FALCON = (("norm0", "input_layernorm"), ("last.", "transformer.ln_f."), *DENSE, (".attention.", ".self_attention."), ("layers.", "transformer.h."),
          ("embed.", "transformer.word_embeddings."), ("head.", "lm_head."))
FALCON_40B = (("norm0", "ln_attn"), ("norm1", "ln_mlp"), *FALCON)
GROUPED = {"model_type": "falcon", "new_decoder_architecture": True, "bias": True, "hidden_act": None, "activation": "gelu", "num_kv_heads": KV, "num_key_value_heads": None}
NEW = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}
BLOCK = {"attention": {"no_op": False, "n_heads_in_group": HEADS // KV}, "ffn": {"no_op": False, "intermediate_size": INTER}}
NOTHING = {"attention": {"no_op": True}, "ffn": {"no_op": True}}
VAULT = (("post_attention_layernorm", "pre_feedforward_layernorm"),)
BLOCKS = {"norms": ("post_self_attn_layernorm", "post_mlp_layernorm"), "joined": True, "biases": QKV}
MROPE = {"mrope_section": [3, 4, 5]}


def flat(model_type, **more):
    """The keys of the text model beside those of images."""
    return {"model_type": model_type, "vision_config": {"depth": 1}, "image_token_id": 5, "vision_start_token_id": 6, "vision_token_id": 7, "sliding_window": 32, "max_window_layers": 2, **more}


def nested(model_type, text_type, **more):
    text = {**BASE, "model_type": text_type, **more}
    return {"model_type": model_type, "vision_config": {"depth": 1}, "image_token_id": 5, "text_config": text, **{k: None for k in BASE}}


MLA = {"q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "num_key_value_heads": HEADS, "head_dim": None, "rope_theta": 10000.0}
GRANITE = {"residual_multiplier": 0.5, "embedding_multiplier": 2.0, "attention_multiplier": 0.25}
WINDOWS = ["sliding_attention"] * LAYERS
POST = ("post_norm1", "post_norm2")
# what, its config and weights, those of the same model in another family, a key that must matter
PAIRS = [
    ("GLM-4-9B as ERNIE 4.5", {"model_type": "glm", "partial_rotary_factor": 1.0, "attention_bias": False}, {"joined": True}, {"model_type": "ernie4_5"}, {},
     {"partial_rotary_factor": None}),
    ("Jais 2 as Nemotron", {"model_type": "jais2", "layer_norm_eps": 1e-4, "rms_norm_eps": None, "hidden_act": "relu2"}, {"make": squared, "norm": 1},
     {"model_type": "nemotron", "norm_eps": 1e-4, "rms_norm_eps": None, "hidden_act": "relu2", "attention_bias": True, "mlp_bias": True, "partial_rotary_factor": 1.0},
     {"make": squared, "norm": 0}, {"layer_norm_eps": 0.5}),
    ("Gemma as Granite", {"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None}, {"make": plain, "norm": 0},
     {"model_type": "granite", "embedding_multiplier": 9.8125, "attention_multiplier": DIM ** -0.5, "logits_scaling": 1.0, "residual_multiplier": 1.0, "hidden_act": "gelu_pytorch_tanh"},
     {"make": plain, "norm": 1}, {"rope_theta": 500.0}),
    ("MiniCPM 3 as Youtu", {"model_type": "minicpm3", **MLA, "scale_emb": 1, "scale_depth": 2.0, "dim_model_base": H}, {"make": latent},
     {"model_type": "youtu", **MLA, "v_head_dim": DIM, "rope_interleave": False}, {"make": latent}, {"scale_emb": None}),
    ("EXAONE as Llama", {"model_type": "exaone", "num_layers": LAYERS, "num_hidden_layers": None, "layer_norm_epsilon": 1e-4, "rms_norm_eps": None, "activation_function": "silu",
                         "hidden_act": None, "embed_dropout": 0.0}, {"names": EXAONE}, {"model_type": "llama", "rms_norm_eps": 1e-4}, {}, {"layer_norm_epsilon": 0.5}),
    ("Qwen2.5-VL as Qwen2", flat("qwen2_5_vl", rope_scaling={"type": "mrope", **MROPE}), {"biases": QKV}, {"model_type": "qwen2"}, {"biases": QKV},
     {"rope_theta": 500.0}),
    ("Qwen2-VL as transformers saves it", nested("qwen2_vl", "qwen2_vl_text", rope_parameters={"rope_type": "default", "rope_theta": 10000.0, **MROPE}),
     {"biases": QKV, "names": (("model.", "model.language_model."),)}, {"model_type": "qwen2"}, {"biases": QKV}, nested("qwen2_vl", "qwen2_vl_text", rms_norm_eps=0.5)),
    ("the text model of Qwen2-VL alone", {"model_type": "qwen2_vl_text"}, {"biases": QKV}, {"model_type": "qwen2"}, {"biases": QKV}, {"rope_theta": 500.0}),
    ("GLM-4V as GLM-4", nested("glm4v", "glm4v_text", partial_rotary_factor=0.5, rope_scaling={"type": "default", **MROPE}), {**BLOCKS, "names": (("model.", "model.language_model."),)},
     {"model_type": "glm4", "attention_bias": True}, BLOCKS, nested("glm4v", "glm4v_text", partial_rotary_factor=1.0)),
    ("Apertus 1.5 as Apertus", nested("apertus1p5", "apertus1p5_text", hidden_act="xielu"), {"make": learned}, {"model_type": "apertus", "hidden_act": "xielu"}, {"make": learned},
     nested("apertus1p5", "apertus1p5_text", hidden_act="xielu", rope_theta=500.0)),
    ("IQuest-Coder as Llama", {"model_type": "iquestcoder"}, {}, {"model_type": "llama"}, {}, {"rope_theta": 500.0}),
    ("InternLM 3 as Llama", {"model_type": "internlm3", "qkv_bias": True, "bias": True}, {"biases": True},
     {"model_type": "llama", "attention_bias": True, "mlp_bias": True}, {"biases": True}, {"rope_theta": 500.0}),
    ("InternLM 3 as published, up to its trained context", {"model_type": "internlm3", "qkv_bias": False, "bias": False, "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}}, {},
     {"model_type": "llama"}, {}, {"rope_theta": 500.0}),
    ("InternLM 2 as Llama", {"model_type": "internlm2", "bias": False, "rope_scaling": {"factor": 2.0, "type": "dynamic"}}, {"make": by_group}, {"model_type": "llama"}, {},
     {"rope_theta": 500.0}),
    ("Phi-4-multimodal as Phi-3", {"model_type": "phi4mm", "speech_lora": {"r": 320}, "vision_lora": {"r": 256}, "embd_layer": {"embedding_cls": "image_audio"}, "img_processor": None,
                                   "audio_processor": {"name": "cascades"}}, {"make": adapted, "has_adapters": True}, {"model_type": "phi3"}, {"make": adapted, "has_adapters": False},
     {"rope_theta": 500.0}),
    ("Phi-4-multimodal as transformers has it", {"model_type": "phi4_multimodal", "vision_config": {"hidden_size": 64}, "audio_config": {"hidden_size": 64}},
     {"make": adapted, "has_adapters": False}, {"model_type": "phi3"}, {"make": adapted, "has_adapters": False}, {"rope_theta": 500.0}),
    ("Granite 4 Vision as Granite", nested("granite4_vision", "granite4_vision_text", **GRANITE, logits_scaling=2.0), {"names": (("model.", "model.language_model."),)},
     {"model_type": "granite", **GRANITE, "logits_scaling": 2.0}, {}, nested("granite4_vision", "granite4_vision_text", **GRANITE, logits_scaling=4.0)),
    ("Helium as ERNIE 4.5", {"model_type": "helium"}, {}, {"model_type": "ernie4_5", "rms_norm_eps": 1e-5}, {}, {"rope_theta": None}),
    ("VaultGemma as Gemma", {"model_type": "vaultgemma", "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": DIM, "attn_logit_softcapping": None,
                             "final_logit_softcapping": None, "layer_types": ["full_attention"] * LAYERS}, {"names": VAULT}, {"model_type": "gemma", "hidden_act": "gelu"}, {},
     {"final_logit_softcapping": 2.0}),
    ("StableLM with parallel blocks as Cohere", {"model_type": "stablelm", "use_parallel_residual": True, "rope_interleave": True, "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5}, {"make": beside, "has_biases": True},
     {"model_type": "cohere", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "logit_scale": 1.0}, {"make": beside, "has_biases": False}, {"partial_rotary_factor": 0.25}),
    ("Phi as Falcon 2", {"model_type": "phi", **NEW, "partial_rotary_factor": 1.0}, {"make": ungated, "names": PHI, "kv": KV, "joined": False, "head_bias": True},
     {**GROUPED, "num_ln_in_parallel_attn": 1, "activation": "gelu_new"}, {"make": ungated, "names": FALCON, "kv": KV}, {"partial_rotary_factor": None}),
    ("Falcon 7B as Falcon 2", {"model_type": "falcon", "bias": True, "hidden_act": None, "num_kv_heads": HEADS, "num_key_value_heads": None},
     {"make": ungated, "names": FALCON, "kv": 1}, {**GROUPED, "num_kv_heads": 1, "num_ln_in_parallel_attn": 1}, {"make": ungated, "names": FALCON, "kv": 1}, {"activation": "gelu_new"}),
    ("Falcon 40B with equal norms as Falcon 2", GROUPED, {"make": ungated, "names": FALCON_40B, "kv": KV, "norms": 2}, {**GROUPED, "num_ln_in_parallel_attn": 1},
     {"make": ungated, "names": FALCON, "kv": KV}, {"rope_theta": 500.0}),
    ("GPT-NeoX as Falcon 40B", {"model_type": "gpt_neox", "hidden_act": "gelu", "num_key_value_heads": None, "rotary_pct": 1.0},
     {"make": ungated, "names": NEOX, "kv": HEADS, "norms": 2}, {**GROUPED, "num_kv_heads": HEADS}, {"make": ungated, "names": FALCON_40B, "kv": HEADS, "norms": 2},
     {"rotary_pct": None}),
    ("GPT-NeoX with blocks in turn as StarCoder 2", {"model_type": "gpt_neox", "hidden_act": "gelu_fast", "num_key_value_heads": None, "rotary_pct": 1.0, "use_parallel_residual": False},
     {"make": ungated, "names": NEOX, "kv": HEADS, "norms": 2}, {"model_type": "starcoder2", "num_key_value_heads": HEADS, "hidden_act": "gelu_pytorch_tanh"},
     {"make": ungated, "names": STARCODER, "kv": HEADS, "norms": 2, "joined": False}, {"use_parallel_residual": True}),
    ("Nemotron NAS with a layer that does nothing as Llama", {"model_type": "nemotron-nas", "num_hidden_layers": LAYERS + 1, "block_configs": [BLOCK, BLOCK, NOTHING, BLOCK, BLOCK]},
     {"names": (("layers.3.", "layers.4."), ("layers.2.", "layers.3."))}, {"model_type": "llama"}, {}, {"rope_theta": 500.0}),
    ("Phi-3 in bitsandbytes' FP4", {"model_type": "phi3", "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}},
     {"make": fours, "is_packed": True}, {"model_type": "phi3"}, {"make": fours, "is_packed": False}, {"rope_theta": 500.0}),
    ("OLMo as StableLM", {"model_type": "olmo"}, {"make": level, "has_norms": False}, {"model_type": "stablelm", "partial_rotary_factor": 1.0}, {"make": level, "has_norms": True},
     {"clip_qkv": 0.25}),
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


def weights_of(make=checkpoint, **more):
    return make(**more)


HEARTH, TOKENS, failed = os.path.abspath(sys.argv[1]), ",".join(str(t) for t in range(2, 40)), 0
for what, config, weights, other, other_weights, change in PAIRS:
    got, want, changed = run(config, weights_of(**weights)), run(other, weights_of(**other_weights)), run({**config, **change}, weights_of(**weights))
    ok = isinstance(got, bytes) and got == want and isinstance(changed, bytes) and changed != got
    print(f"{'ok' if ok else 'FAIL'} {what} {next((x for x in (got, want, changed) if isinstance(x, str)), '')}")
    failed += not ok
for what, config, part in REFUSED:
    got = run(config, checkpoint(biases=True))
    ok = isinstance(got, str) and part in got
    print(f"{'ok' if ok else 'FAIL'} {what}: {got if isinstance(got, str) else 'accepted'}")
    failed += not ok
# A head without the rows of tokens of images gives the first logits.
config = {"model_type": "apertus1p5_text", "hidden_act": "xielu"}
whole, cut = run(config, learned()), run({**config, "output_vocab_size": 100}, learned(head=100))
ok = isinstance(whole, bytes) and isinstance(cut, bytes) and cut == b"".join(whole[i:i + 400] for i in range(0, len(whole), 480))
print(f"{'ok' if ok else 'FAIL'} Apertus 1.5 with a smaller head {next((x for x in (whole, cut) if isinstance(x, str)), '')}")
sys.exit(failed != 0 or not ok)
