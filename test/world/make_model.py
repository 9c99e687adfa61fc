#!/usr/bin/env python3
"""Writes the small random models of the simulated world. make_model.py DIR    prints the hash of each"""
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import models  # noqa: E402

SMALL = {"vocab_size": 72, "hidden_size": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu", "eos_token_id": 70}
MODELS = {
    # A row of keys has 256 bytes in float32, so that chunks of 20 rows begin and end inside pages
    "rows": {**SMALL, "model_type": "llama", "num_hidden_layers": 2, "intermediate_size": 32, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
             "rope_theta": 10000},
    # Experts that move to devices and in paged batches
    "experts": {**SMALL, "model_type": "qwen3_moe", "num_hidden_layers": 2, "intermediate_size": 32, "moe_intermediate_size": 32, "num_attention_heads": 1,
                "num_key_value_heads": 1, "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "rope_theta": 10000},
    # Recurrent states beside rows: a batch resumes from a state that an earlier one left
    "states": {**SMALL, "model_type": "qwen3_5_text", "num_hidden_layers": 2, "intermediate_size": 32, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
               "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.5, "mrope_section": [4, 6, 6], "mrope_interleaved": True},
               "partial_rotary_factor": 0.5, "rope_theta": 10000, "full_attention_interval": 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
               "linear_value_head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 2},
}


def sixteenth(tensor):
    """The same numbers of a BF16 tensor divided by 16: four less in the exponent."""
    kind, shape, data = tensor
    codes = struct.unpack(f"<{len(data) // 2}H", data)
    return kind, shape, struct.pack(f"<{len(codes)}H", *(v - (4 << 7) if (v >> 7 & 255) > 4 else 0 for v in codes))


for name, config in MODELS.items():
    tensors = models.tensors(config)
    # What attention reads outweighs the token itself, so that an answer depends on each row of the cache.
    tensors["model.embed_tokens.weight"] = sixteenth(tensors["model.embed_tokens.weight"])
    print(name, models.write(os.path.join(sys.argv[1], name), config, tensors))
