"""The checkpoint directory: writing a trained model as DeepSeek publishes V3, and reading it back."""

import json
import os

import torch
from safetensors.torch import load_file, save_file

import vocabulary
from network import Ember, block_scales, spread_scales

WEIGHTS = "model.safetensors"


def config(vocab_size):
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": vocabulary.BEGIN_ID,
        "eos_token_id": vocabulary.END_ID,
        "ep_size": 1,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 768,
        "kv_lora_rank": 128,
        "max_position_embeddings": 8192,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 128,
        "moe_layer_freq": 1,
        "n_group": 4,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 8,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "pad_token_id": vocabulary.PAD_ID,
        "q_lora_rank": 128,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 2,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "v_head_dim": 32,
        "vocab_size": vocab_size,
    }


def published(model):
    """{published name: (float tensor, stored in FP8?)}"""
    out = {}
    fp8 = {name + ".weight" for name, m in model.named_modules() if getattr(m, "fp8", False)}
    for name, tensor in model.state_dict().items():
        if name.endswith(".experts.gate_up"):
            for e, both in enumerate(tensor):
                for part, w in zip(("gate_proj", "up_proj"), both.chunk(2)):
                    out[f"{name[:-8]}.{e}.{part}.weight"] = (w, True)
        elif name.endswith(".experts.down"):
            for e, w in enumerate(tensor):
                out[f"{name[:-5]}.{e}.down_proj.weight"] = (w, True)
        else:
            out[name] = (tensor, name in fp8)
    last = f"model.layers.{model.config['num_hidden_layers']}"
    out[f"{last}.embed_tokens.weight"] = out["model.embed_tokens.weight"]
    out[f"{last}.shared_head.head.weight"] = out["lm_head.weight"]
    return out


def write(directory, model, tokenizer):
    tensors = {}
    for name, (tensor, fp8) in published(model).items():
        w = tensor.detach().float()
        if fp8:
            scales = block_scales(w)
            tensors[name] = (w / spread_scales(scales, w.shape)).to(torch.float8_e4m3fn)
            tensors[name + "_scale_inv"] = scales.contiguous()
        elif name.endswith("e_score_correction_bias"):
            tensors[name] = w.clone()
        else:
            tensors[name] = w.to(torch.bfloat16)
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, WEIGHTS)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path + ".new", metadata={"format": "pt"})
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)
    vocabulary.write(directory, tokenizer, model.config["max_position_embeddings"])
    generation = {
        "bos_token_id": vocabulary.BEGIN_ID,
        "do_sample": False,
        "eos_token_id": [vocabulary.END_ID],
        "pad_token_id": vocabulary.PAD_ID,
        "temperature": 0.0,
    }
    for name, value in (("config.json", model.config), ("generation_config.json", generation)):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=2)
            f.write("\n")


def dequantised(directory):
    """The published tensors in float32, without their scales."""
    raw = load_file(os.path.join(directory, WEIGHTS))
    out = {}
    for name, tensor in raw.items():
        if name.endswith("_scale_inv"):
            continue
        w = tensor.float()
        scale = raw.get(name + "_scale_inv")
        out[name] = w if scale is None else w * spread_scales(scale, w.shape)
    return out


def read(directory):
    """(model, tokenizer) of a checkpoint directory, in float32."""
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
        model = Ember(json.load(f))
    tensors = dequantised(directory)
    for name, value in model.state_dict().items():
        if name.endswith(".experts.gate_up"):
            pairs = [f"{name[:-8]}.{e}.%s_proj.weight" for e in range(len(value))]
            value.copy_(torch.stack([torch.cat((tensors[p % "gate"], tensors[p % "up"])) for p in pairs]))
        elif name.endswith(".experts.down"):
            value.copy_(torch.stack([tensors[f"{name[:-5]}.{e}.down_proj.weight"] for e in range(len(value))]))
        else:
            value.copy_(tensors[name])
    return model.eval(), vocabulary.load(directory)
