"""Makes tiny checkpoints with the standard library only, which together cover everything that the families do differently.
Bytes come from SHAKE-256 of a tensor's name, so they never change; references.py has recorded their logits.
The widths are not multiples of a block of 128, of a vector register or of a tile, so that every edge is partial. One file, because
a model's name selects its config, its tensors and its files in tables that all models share."""
import hashlib
import json
import math
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import tiny  # noqa: E402

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
COMMON = {"vocab_size": 120, "hidden_size": 152, "num_hidden_layers": 3, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu", "eos_token_id": 1}
MODELS = {
    # Latent attention with low-rank queries and YaRN, a dense layer, expert groups ranked by their two best, a shared expert
    "mla_yarn": {
        **COMMON, "model_type": "deepseek_v3", "intermediate_size": 200, "moe_intermediate_size": 72, "num_attention_heads": 5, "num_key_value_heads": 5,
        "n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "q_lora_rank": 56, "kv_lora_rank": 136, "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16, "v_head_dim": 20, "rope_theta": 10000, "quantization_config": FP8,
        "rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 4, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    # Latent attention with full queries, experts of the best group only, scaled and not normalised, two shared experts
    "mla_plain": {
        **COMMON, "model_type": "deepseek_v2", "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 3, "num_key_value_heads": 3,
        "n_routed_experts": 10, "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": False,
        "routed_scaling_factor": 1.5, "scoring_func": "softmax", "topk_method": "group_limited_greedy", "kv_lora_rank": 72, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_theta": 5000,
    },
    # Latent attention without experts, tied embedding and head
    "mla_dense": {
        **COMMON, "model_type": "youtu", "intermediate_size": 168, "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 56, "kv_lora_rank": 72,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_theta": 5000, "tie_word_embeddings": True, "quantization_config": FP8,
    },
    # Latents that later layers of the same kind take, with and without rotated dimensions; queries with factors by position; learned rotary frequencies;
    # a text model in a checkpoint with more parts
    "dsa_sources": {
        **COMMON, "model_type": "mistral_large4", "num_hidden_layers": 7, "image_token_index": 10, "vision_config": {"model_type": "pixtral"},
        "quantization_config": FP8,
        "text_config": {
            "model_type": "mistral_large4_text", "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 3, "num_key_value_heads": 3,
            "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5, "kv_lora_rank": 72, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "index_n_heads": 9,
            "index_head_dim": 20, "index_topk": 9, "final_logit_softcapping": 4.0, "no_rope_layers": [1, 0, 1, 1, 0, 1, 0],
            "kv_source_layers": [0, 1, 2, 2, 1, 2, 6], "indexer_types": ["full", "shared", "full", "full", "shared", "full", "full"],
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4.0,
                                "beta_slow": 1.0, "attention_factor": 1.0},
        },
    },
    # Latents and heads of two sizes: in layers with a window, and in those over keys that an indexer selects; gates per head, normed rotary keys
    "mla_sizes": {
        **COMMON, "model_type": "dots3_note", "num_hidden_layers": 5, "intermediate_size": 168, "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 56, "num_attention_heads": 3, "num_key_value_heads": 3, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "q_lora_rank": 40,
        "kv_lora_rank": 72, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_theta": 20000, "index_n_heads": 5, "index_head_dim": 20,
        "index_topk": 9, "sliding_window_size": 7, "swa_num_attention_heads": 5, "swa_num_key_value_heads": 5, "swa_q_lora_rank": 56, "swa_kv_lora_rank": 48,
        "swa_head_dim": 36, "swa_qk_nope_head_dim": 24, "swa_v_head_dim": 20, "swa_rope_theta": 5000, "use_dsa": True,
    },
    # Experts for images after those for text, routers stored transposed, two rows of biases, neighbours rotated by positions with three parts
    "gqa_images": {
        "model_type": "ernie4_5_vl_moe", "tie_word_embeddings": True, "vision_config": {}, "image_token_id": 5,
        "text_config": {
            **COMMON, "model_type": "ernie4_5_vl_moe_text", "rms_norm_eps": 1e-5, "num_hidden_layers": 4, "intermediate_size": 168, "num_attention_heads": 4,
            "num_key_value_heads": 2, "mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "moe_num_experts": 9, "moe_k": 3,
            "moe_intermediate_size": [56, 24], "moe_num_shared_experts": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000, "mrope_section": [7, 7, 5]},
        },
    },
    # Short convolutions with biases and normed outputs, gates per head, windows and rotations of half of a head by layer, a text model beside one of images
    "conv_around": {
        "model_type": "lfm3_vl", "tie_word_embeddings": True, "vision_config": {}, "image_token_id": 5, "projector_bias": True,
        "text_config": {
            **{k: v for k, v in COMMON.items() if k not in ("rms_norm_eps", "hidden_act")}, "model_type": "lfm3", "norm_eps": 1e-5, "num_hidden_layers": 6, "intermediate_size": 168,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "sliding_window": 7, "conv_L_cache": 5, "conv_bias": True,
            "layer_types": ["conv", "sliding_attention", "full_attention", "conv", "conv", "full_attention"],
            "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 5000},
                                "full_attention": {"rope_type": "proportional", "rope_theta": 100000, "partial_rotary_factor": 0.5}},
        },
    },
    # Norms without weights, pairs that turn backwards before a norm of heads, one matrix before squared ReLU, a cap on the logits
    "gqa_unit": {
        **{k: v for k, v in COMMON.items() if k != "hidden_act"}, "model_type": "nanochat", "rms_norm_eps": 1e-3, "intermediate_size": 168,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "final_logit_softcapping": 4.0,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000, "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64},
    },
    # Layer norms by 1 + w with biases, half of each head turns, squared ReLU
    "dense_squared": {
        **{k: v for k, v in COMMON.items() if k not in ("hidden_act", "rms_norm_eps")}, "model_type": "nemotron", "norm_eps": 1e-3, "hidden_act": "relu2",
        "intermediate_size": 168, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
    },
    # Norms of parts of the stream and of single heads, values from experts, gates to base 2, heads of which some pairs turn
    "gqa_values": {
        **COMMON, "model_type": "k2_horizon", "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 24, "rope_head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "layernorm_num_groups": 2,
        "query_key_norm": True, "attention_bias": False, "attention_gate_func": "softplus", "mlp_only_layers": [0], "decoder_sparse_step": 1,
        "mova_num_experts": 6, "mova_num_experts_per_tok": 2, "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 2, "moe_gate_bias": True,
        "norm_topk_prob": True, "router_score_func": "sigmoid", "router_scaling_factor": 1.5, "sliding_window": None, "use_sliding_window": False,
        "output_router_logits": False, "router_aux_loss_coef": 0.001, "quantization_config": FP8,
    },
    # Queries, keys and values in one matrix, gates per head, the exact GELU, rotations and windows by kind of layer, tied
    "dense_exact": {
        **{k: v for k, v in COMMON.items() if k != "hidden_act"}, "model_type": "spark2_5", "num_hidden_layers": 4, "hidden_act": "gelu",
        "intermediate_size": 168, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "sliding_window": 7, "tie_word_embeddings": True,
        "gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True, "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "attention_bias": False, "mlp_bias": False,
        "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 20000}, "sliding_attention": {"partial_rotary_factor": 1.0, "rope_theta": 5000}},
    },
    # Attention and an FFN of one matrix before the exact GELU side by side, each after a layer norm of its own; q, k and v by head in one matrix, biases
    "dense_beside": {
        **{k: v for k, v in COMMON.items() if k not in ("hidden_act", "rms_norm_eps")}, "model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 160,
        "intermediate_size": 168, "layer_norm_eps": 1e-3, "num_attention_heads": 5, "rotary_emb_base": 10000, "rotary_pct": 0.25, "use_parallel_residual": True,
        "classifier_dropout": 0.1, "hidden_dropout": 0.0,
    },
    # FFNs of one matrix before GELU by tanh, windows, biases, tied
    "dense_tanh": {
        **{k: v for k, v in COMMON.items() if k not in ("hidden_act", "rms_norm_eps")}, "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "hidden_size": 160,
        "intermediate_size": 168, "norm_epsilon": 1e-3, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 20000.0, "sliding_window": 7,
        "use_bias": True, "attention_dropout": 0.1, "residual_dropout": 0.1, "embedding_dropout": 0.1, "tie_word_embeddings": True,
    },
    # Mamba-2, normed in groups before its gate, beside attention, and factors of every part
    "mamba_beside": {
        **COMMON, "model_type": "falcon_h1", "rms_norm_eps": 1e-3, "intermediate_size": 168, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
        "rope_theta": 20000.0, "attention_in_multiplier": 1.5, "attention_out_multiplier": 0.7, "embedding_multiplier": 3.0, "key_multiplier": 0.4,
        "lm_head_multiplier": 0.3, "mlp_multipliers": [0.8, 0.3], "ssm_in_multiplier": 1.3, "ssm_multipliers": [0.4, 0.7, 1.2, 0.9, 0.5], "ssm_out_multiplier": 0.6,
        "mamba_d_ssm": 96, "mamba_n_heads": 4, "mamba_d_head": "auto", "mamba_d_state": 20, "mamba_n_groups": 2, "mamba_d_conv": 3, "mamba_conv_bias": True,
        "mamba_rms_norm": True, "mamba_norm_before_gate": True, "mamba_proj_bias": False, "projectors_bias": False, "attention_bias": False, "mlp_bias": False,
    },
    # FFNs of one matrix, whose activation has learned numbers
    "dense_learned": {
        **{k: v for k, v in COMMON.items() if k != "hidden_act"}, "model_type": "apertus", "hidden_act": "xielu", "intermediate_size": 168,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 160, "rope_theta": 20000.0, "qk_norm": True, "post_norm": False,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "attention_dropout": 0.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    },
    # Layers with their own KV heads and widths, without attention, and without an FFN
    "dense_blocks": {
        **COMMON, "model_type": "nemotron-nas", "hidden_size": 160, "num_hidden_layers": 5, "intermediate_size": None, "num_attention_heads": 4,
        "num_key_value_heads": None, "rope_theta": 20000.0, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "architectures": ["DeciLMForCausalLM"],
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        "block_configs": [{"attention": {"no_op": not group, "n_heads_in_group": group, "replace_with_linear": False, "sparsify": None},
                           "ffn": {"no_op": not wide, "ffn_mult": wide, "replace_with_linear": False, "sparsify": None}}
                          for group, wide in ((2, 2.625), (None, 1.3125), (4, None), (1, 0.5), (4, 5.25))],
    },
    # Windows with heads of which a part turns, other layers with heads that do not turn; clamped activations
    "gqa_clamped": {
        **COMMON, "model_type": "maple", "num_hidden_layers": 4, "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 24, "rope_theta": 5000, "partial_rotary_factor": 0.5, "use_qk_norm": True, "use_bias": False,
        "sliding_window": 7, "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "nope_on_global_attention": True, "num_experts": 8,
        "num_experts_per_tok": 3, "num_shared_experts": 0, "norm_topk_prob": True, "moe_router_enable_expert_bias": False, "router_dtype": "fp32",
        "quantize": True, "preaffine": False, "tie_word_embeddings": False,
    },
    # Keys without values that are learned, streams that are normed in some layers, scaled outputs, stacked experts
    "gqa_sink_keys": {
        **COMMON, "model_type": "iquest_q1", "num_hidden_layers": 6, "dense_intermediate_size": 168, "intermediate_size": 40, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 24, "rotary_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}, "no_rope_layers": [4],
        "swa_rope_theta": 5000.0, "sliding_window": 7, "use_sliding_window": True, "use_hybrid_layers": True, "first_layers_types": ["full_attention"],
        "hybrid_layers_types_block": ["full_attention", "sliding_attention"], "num_hybrid_layers_block": 2, "last_layers_types": ["full_attention"],
        "mlp_only_layers": [0], "num_experts": 8, "num_experts_per_tok": 3, "moe_router_dtype": "fp32", "enable_sink_attention": True,
        "first_layer_attn_out_scale": 0.9, "first_layer_ffn_out_scale": 0.8, "attn_out_scale": 0.7, "ffn_out_scale": 0.5, "softmax_scale": 0.3,
        "logit_scale": 0.6, "enable_lm_head_fp32": True, "num_mtp_layers": 1, "attention_bias": False,
    },
    # Gates between the stream and normed outputs, experts in a wide latent space that are normed one by one, unit norms of heads, dense and unrotated layers
    "stream_gates": {
        "model_type": "muse_spark",
        "text_config": {
            **COMMON, "model_type": "muse_spark_text", "rms_norm_eps": 1e-4, "post_norm_eps": 1e-3, "num_hidden_layers": 5, "intermediate_size": 168,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "moe_hidden_size": 168, "moe_intermediate_size": 40, "num_local_experts": 8,
            "num_experts_per_tok": 3, "routed_scaling_factor": 1.5, "mlp_layer_types": ["dense", "sparse", "sparse", "dense", "sparse"],
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"], "sliding_window": 7,
            "layer_rope_theta": [5000, 0, 5000, 0, 5000], "rope_parameters": {"rope_type": "default", "rope_theta": 5000}, "qk_scale_factor": 1.2,
            "output_multiplier": 0.7, "final_logit_softcapping": 6, "residual_gate_temperature": 0.8,
        },
        "vision_config": {"model_type": "muse_spark_vision"}, "audio_config": {"model_type": "muse_spark_audio"}, "image_token_id": 5,
    },
    # Attention residuals of raw streams, Kimi delta attention with gates of full rank and a bound, latent attention with gates; experts in a latent space, in
    # MXFP4, whose sum is normed; capped activations, rates with padding, a text model in a checkpoint with more parts
    "kda_residuals": {
        "model_type": "kimi_k3", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 3, "ignore_index": -100, "media_placeholder_token_id": 5,
        "image_placeholder": "<|image|>", "vision_config": {"vt_hidden_size": 24}, "tie_word_embeddings": False,
        "text_config": {
            **COMMON, "model_type": "kimi_linear", "hidden_act": "situ", "rms_norm_eps": 1e-3, "num_hidden_layers": 7, "intermediate_size": 168,
            "moe_intermediate_size": 64, "num_attention_heads": 3, "num_key_value_heads": 3, "activation_situ_beta": 1.5, "activation_situ_linear_beta": 2.0,
            "attn_res_block_size": 3, "num_experts": 8, "num_experts_per_token": 3, "num_shared_experts": 2, "num_expert_group": 1, "topk_group": 1,
            "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "topk_method": "noaux_tc",
            "use_grouped_topk": True, "routed_scaling_factor": 1.5, "routed_expert_hidden_size": 96, "latent_moe_use_norm": True, "q_lora_rank": 40,
            "kv_lora_rank": 72, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "mla_use_nope": True, "mla_use_output_gate": True,
            "num_nextn_predict_layers": 0, "top_k": 50,
            "linear_attn_config": {"full_attn_layers": [3, 6, 7], "kda_layers": [1, 2, 4, 5], "gate_lower_bound": -5.0, "head_dim": 20, "num_heads": 3,
                                   "short_conv_kernel_size": 4, "use_full_rank_gate": True},
            "quantization_config": {
                "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "quantization_status": "compressed", "kv_cache_scheme": None,
                "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*lm_head.*"],
                "config_groups": {"group_0": {
                    "format": "mxfp4-pack-quantized", "input_activations": None, "output_activations": None, "targets": ["Linear"],
                    "weights": {"actorder": None, "block_structure": None, "dynamic": False, "group_size": 32, "num_bits": 4, "scale_dtype": "torch.uint8",
                                "strategy": "group", "symmetric": True, "type": "float"}}},
            },
        },
    },
    # The same latent attention over keys that an indexer selects, which rotates halves; every layer has its own
    "dsa_halves": {
        **COMMON, "model_type": "deepseek_v32", "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 3, "num_key_value_heads": 3,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "q_lora_rank": 40, "kv_lora_rank": 72, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_theta": 10000, "quantization_config": FP8, "index_n_heads": 5, "index_head_dim": 20, "index_topk": 9,
        "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "beta_fast": 4, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    # Norms with a gate except that of the dense layer, queries from the normed and the raw latent, with a gate of the output; other groups' experts count as 0
    "dsa_gates": {
        **COMMON, "model_type": "axk2", "rms_norm_eps": 1e-3, "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 3,
        "num_key_value_heads": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "q_lora_rank": 40, "kv_lora_rank": 72,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 10000}, "index_n_heads": 5,
        "index_head_dim": 20, "index_topk": 9, "gated_norm_rank": 12, "quantization_config": FP8,
    },
    # An indexer that rotates adjacent elements, whose selection the next two layers reuse
    "dsa_shared": {
        **COMMON, "model_type": "glm_moe_dsa", "num_hidden_layers": 4, "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 3,
        "num_key_value_heads": 3, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "q_lora_rank": 40, "kv_lora_rank": 72,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 100000}, "index_n_heads": 3,
        "index_head_dim": 24, "index_topk": 6, "index_topk_pattern": "FSSF", "indexer_rope_interleave": True,
    },
    # Heads with norms and biases, a window on every layer, tied embedding and head
    "gqa_norm": {
        **COMMON, "model_type": "qwen3_moe", "intermediate_size": 168, "moe_intermediate_size": 136, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 28,
        "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "attention_bias": True, "use_sliding_window": True, "sliding_window": 13,
        "rope_theta": 1000000, "tie_word_embeddings": True, "quantization_config": FP8,
    },
    # A gated shared expert, windows on some layers, a dense layer in the middle, Llama's frequency bands
    "gqa_shared": {
        **COMMON, "model_type": "qwen2_moe", "intermediate_size": 168, "moe_intermediate_size": 56, "shared_expert_intermediate_size": 88, "num_attention_heads": 4,
        "num_key_value_heads": 4, "num_experts": 9, "num_experts_per_tok": 4, "norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "mlp_only_layers": [1], "rope_theta": 10000,
        "rope_scaling": {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64},
    },
    # Partial rotary (half of a head), no norm over q and k, two groups, FP8 with one scale per row, a shared expert
    "gqa_half": {
        **COMMON, "model_type": "glm4_moe", "intermediate_size": 168, "moe_intermediate_size": 72, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24,
        "partial_rotary_factor": 0.5, "attention_bias": True, "use_qk_norm": False, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 2,
        "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "rope_theta": 10000,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    },
    # One norm over all heads, rotary on less than half of a head, a corrected choice of experts
    "gqa_flat": {
        **COMMON, "model_type": "minimax_m2", "intermediate_size": 72, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 28, "rotary_dim": 12,
        "num_local_experts": 9, "num_experts_per_tok": 4, "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "rope_theta": 5000000,
        "quantization_config": FP8,
    },
    # MXFP4 experts in few tensors with biases and limits, sinks, a window on every other layer, YaRN without rounded dimensions
    "gqa_sinks": {
        **COMMON, "model_type": "gpt_oss", "hidden_size": 160, "intermediate_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "attention_bias": True,
        "num_local_experts": 7, "num_experts_per_tok": 3, "sliding_window": 11, "swiglu_limit": 1.5, "rope_theta": 150000,
        "rope_scaling": {"rope_type": "yarn", "factor": 8, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 24, "truncate": False},
        "quantization_config": {"quant_method": "mxfp4"},
    },
    # Leading dense layers, then every other layer has experts, normed softmax weights, two shared experts
    "gqa_lead": {
        **COMMON, "model_type": "deepseek", "num_hidden_layers": 5, "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_routed_experts": 10, "num_experts_per_tok": 3, "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_freq": 2,
        "norm_topk_prob": True, "scoring_func": "softmax", "rope_theta": 10000,
    },
    # Lightning attention whose heads are normed and rotated in part, groups of heads normed together after it; MLA in other layers
    "lightning_mla": {
        **COMMON, "model_type": "bailing_hybrid", "architectures": ["BailingMoeV2_5ForCausalLM"], "num_hidden_layers": 5, "intermediate_size": 168,
        "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 56, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20,
        "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "score_function": "sigmoid", "moe_router_enable_expert_bias": True, "q_lora_rank": 40, "kv_lora_rank": 72,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_interleave": True, "rope_theta": 10000,
        "partial_rotary_factor": 0.5, "layer_group_size": 2, "group_norm_size": 2, "use_qk_norm": True, "linear_silu": False, "use_qkv_bias": False,
        "use_bias": False, "tie_word_embeddings": False,
    },
    # The same lightning attention, GQA of normed heads, rotated in part, in other layers
    "lightning_gqa": {
        **COMMON, "model_type": "bailing_moe_linear", "num_hidden_layers": 5, "intermediate_size": 168, "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 56, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 20, "num_experts": 8,
        "num_experts_per_tok": 3, "num_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "score_function": "sigmoid", "moe_router_enable_expert_bias": True, "rope_theta": 10000, "partial_rotary_factor": 0.5,
        "layer_group_size": 4, "group_norm_size": 4, "use_qk_norm": True, "linear_silu": False, "use_rmsnorm": True, "router_dtype": "fp32",
    },
    # q, k and v in pieces of one FP8 tensor, whose blocks begin anew in each; values narrower than keys, sinks in layers with a window
    "gqa_pieces": {
        **{k: v for k, v in COMMON.items() if k != "rms_norm_eps"}, "model_type": "mimo_v2", "num_hidden_layers": 4, "layernorm_epsilon": 1e-6,
        "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 24, "v_head_dim": 20,
        "swa_num_attention_heads": 8, "swa_num_key_value_heads": 4, "swa_head_dim": 24, "swa_v_head_dim": 20, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "n_shared_experts": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": None, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "sliding_window": 7, "sliding_window_size": 7,
        "attention_chunk_size": 7, "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "attention_value_scale": 0.612,
        "partial_rotary_factor": 0.334, "rope_theta": 10000, "swa_rope_theta": 500, "attention_projection_layout": "fused_qkv",
        "quantization_config": {**FP8, "ignored_layers": ["model.layers.0.self_attn.o_proj"]}, "vision_config": {}, "audio_config": {},
    },
    # GQA of normed heads from one matrix, two shared experts whose width is that of both
    "gqa_both": {
        **COMMON, "model_type": "param2moe", "intermediate_size": 168, "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 80,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20, "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 2, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True, "rope_theta": 10000, "use_qk_norm": True, "use_rmsnorm": True, "router_dtype": "fp32", "max_window_layers": 2,
    },
    # Experts and shared experts that a softmax over two numbers mixes, biases of all projections of attention, a dense layer
    "gqa_mixed": {
        **COMMON, "model_type": "Klear", "rms_norm_eps": 1e-5, "num_hidden_layers": 4, "intermediate_size": 168, "moe_intermediate_size": 40,
        "n_shared_experts": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "num_experts": 9, "num_experts_per_tok": 3,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1], "rope_theta": 10000, "routed_scaling_factor": 2.5,
        "sliding_window": None, "use_sliding_window": False, "moe_aux_loss_coeff": 0.0001, "attention_dropout": 0.0,
    },
    # Latent attention and experts with norms around both, under the vendor's names of keys; a selection bias without groups
    "mla_around": {
        **COMMON, "model_type": "pangu_ultra_moe", "rms_norm_eps": 1e-5, "num_hidden_layers": 4, "intermediate_size": 168, "moe_intermediate_size": 40,
        "num_attention_heads": 3, "num_key_value_heads": 3, "attention_q_lora_dim": 56, "attention_kv_lora_dim": 72, "attention_qk_dim": 16,
        "attention_qk_rope_dim": 8, "attention_v_dim": 24, "num_routed_experts": 9, "num_shared_experts": 2, "num_experts_per_tok": 3, "num_dense_layers": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 1.5, "router_enable_expert_bias": True, "sandwich_norm": True, "num_mtp_layers": 1, "rope_theta": 30000,
        "attention_dropout": 0.0, "quantization_config": FP8,
    },
    # Gated DeltaNet and gated MLA whose norms are all multiplied by gates of low rank; a clamped activation, YaRN, a selection bias
    "delta_gates": {
        **COMMON, "model_type": "gigachat3_5", "num_hidden_layers": 5, "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 3,
        "num_key_value_heads": 3, "full_attention_layers": [1, 3], "q_lora_rank": 56, "kv_lora_rank": 72, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 24, "head_dim": 8, "n_routed_experts": 9, "n_shared_experts": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 2, "swiglu_limit": 1.5,
        "routed_scaling_factor": 1.5, "linear_key_head_dim": 20, "linear_value_head_dim": 28, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
        "linear_sigmoid_gate_scale": 1.5, "layernorm_gating_weight": 1.7, "rope_theta": 10000, "quantization_config": FP8,
        "rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 4, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    # One head of keys and values, queries of low rank with a norm between; a softmax router of stacked experts; a text model in one that sees
    "gqa_lowrank": {
        "model_type": "step3_vl", "vision_config": {"model_type": "step3_vision"}, "image_token_id": 110, "image_token_len": 169, "quantization_config": FP8,
        "text_config": {
            "model_type": "step3_text", "vocab_size": 120, "hidden_size": 152, "hidden_act": "silu", "eos_token_id": 1, "rms_norm_eps": 1e-5,
            "num_hidden_layers": 4, "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 5, "num_attention_groups": 1, "head_dim": 32,
            "share_q_dim": 72, "moe_num_experts": 9, "moe_top_k": 3, "share_expert_dim": 56,
            "moe_layers_enum": "0,1,3", "norm_expert_weight": False, "max_position_embedding": 4096, "max_seq_len": 4096, "rope_theta": 30000,
        },
    },
    # Cos and sin of each KV head by weights of its own (FoPE), some frequencies left out; two experts of each group; inside a model that also sees and hears
    "gqa_fourier": {
        "model_type": "interns1_pro", "vision_config": {"model_type": "interns1_pro_vision"}, "ts_config": {"model_type": "ts"}, "quantization_config": FP8,
        "text_config": {
            **COMMON, "model_type": "interns1_pro_text", "num_hidden_layers": 4, "intermediate_size": 168, "moe_intermediate_size": 40, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 24, "num_experts": 12, "num_experts_per_tok": 6, "router_n_groups": 3, "norm_topk_prob": True,
            "mlp_only_layers": [1], "decoder_sparse_step": 1, "rope_theta": 10000,
            "rope_scaling": {"rope_type": "default", "fope_init_factor": 0.5, "fope_sep_head": True, "num_inv_freq": None},
        },
    },
    # The best expert of each group, with a factor of its own; biases of queries, keys, values and the output
    "gqa_each": {
        **COMMON, "model_type": "PanguProMoE", "num_hidden_layers": 4, "rms_norm_eps": 1e-5, "moe_intermediate_size": 40, "intermediate_size": 168,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 12, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 56, "mlp_only_layers": [1],
        "rope_theta": 30000,
    },
    # Kimi delta attention whose updates have a factor of up to 2, gated GQA without rotation, a dense layer
    "kda_gqa": {
        **COMMON, "model_type": "solar_open2", "num_hidden_layers": 5, "rms_norm_eps": 1e-5, "intermediate_size": 168, "moe_intermediate_size": 40,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 2,
        "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "gqa_layers": [1, 4], "gqa_interval": 3,
        "linear_attn_config": {"short_conv_kernel_size": 4, "head_dim": 24, "num_heads": 5, "num_kv_heads": None}, "use_rope": False, "use_gqa_gate": True,
        "kda_allow_neg_eigval": True, "kda_gate_lower_bound": -5.0,
    },
    # A dense FFN beside experts, which read the stream before attention
    "gqa_early": {
        **COMMON, "model_type": "arctic", "intermediate_size": 56, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 9,
        "num_experts_per_tok": 2, "moe_layer_frequency": 1, "parallel_attn_mlp_res": True, "use_residual": True, "rope_theta": 10000,
    },
    # Routers that read the stream before attention, ReLU gates, rotations and windows by layer, tied embedding and head
    "gqa_router": {
        **{k: v for k, v in COMMON.items() if k != "hidden_act"}, "model_type": "smallthinker", "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 20, "moe_num_primary_experts": 9, "moe_num_active_primary_experts": 3, "moe_ffn_hidden_size": 56,
        "moe_primary_router_apply_softmax": False, "rope_layout": [0, 1, 1, 0], "sliding_window_layout": [0, 1, 0, 1], "sliding_window_size": 9,
        "rope_theta": 10000, "tie_word_embeddings": True,
    },
    # Attention residuals of three streams, the last of one layer; shortened heads, projected sinks, two head sizes, keys and values with inputs and taps of
    # their own, queries past the floor of their scale, a padded head
    "gqa_pooled": {
        **COMMON, "model_type": "inkling2_text", "vocab_size": 128, "unpadded_vocab_size": 120, "num_hidden_layers": 5, "rms_norm_eps": 1e-3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 24,
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid_sliding", "hybrid"], "sliding_window_size": 9, "rel_extent": 13, "d_rel": 5,
        "conv_kernel_size": 3, "log_scaling_n_floor": 11, "log_scaling_alpha": 0.4, "qk_l2_clip_threshold": 4.0, "rel_l2_clip_threshold": 2.0,
        "n_layers_per_attn_res_block": 2, "n_routed_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 56, "route_scale": 2.0,
        "mlp_gate_softcap": 2.0, "mlp_up_softcap": 1.5, "final_logit_softcapping": 6.0,
    },
    # The same with three passes over two streams' layers, whose inputs get messages of the pass before, and a stream before and after them;
    # experts in NVFP4 and MXFP8
    "gqa_looped": {
        **COMMON, "model_type": "inkling2_loop_text", "rms_norm_eps": 1e-2, "hidden_size": 160, "vocab_size": 128, "unpadded_vocab_size": 120, "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 20, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 24,
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"], "sliding_window_size": 9, "rel_extent": 13, "d_rel": 5,
        "conv_kernel_size": 3, "log_scaling_n_floor": 11, "log_scaling_alpha": 0.2, "qk_l2_clip_threshold": 2.5, "rel_l2_clip_threshold": 1.0,
        "n_layers_per_attn_res_block": 1, "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "route_scale": 1.0,
        "mlp_gate_softcap": 1.0, "mlp_up_softcap": 0.75, "final_logit_softcapping": 12.0, "loop_layer_index_start": 1, "loop_layer_index_end": 3,
        "loop_num_passes": 3, "loop_gate_rank": 12,
    },
    # Norms around both blocks, capped scores, router and logits, GELU, a dense FFN beside the experts, factors of embeddings and logits
    "gqa_capped": {
        **{k: v for k, v in COMMON.items() if k != "hidden_act"}, "model_type": "grok", "rms_norm_eps": 1e-3, "intermediate_size": 104, "moe_intermediate_size": 56,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "num_local_experts": 9, "num_experts_per_tok": 3, "residual_moe": True,
        "attn_output_multiplier": 0.3, "attn_logit_softcapping": 3, "router_logit_softcapping": 2, "final_logit_softcapping": 4, "embedding_multiplier_scale": 1.5,
        "output_multiplier_scale": 0.5, "rope_theta": 10000, "rope_type": "original", "attn_temperature_len": 17,
    },
    # Norms after attention and experts, none before them; one norm over all heads
    "gqa_after": {
        **COMMON, "model_type": "flex_olmo", "intermediate_size": 72, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 7, "num_experts_per_tok": 3,
        "norm_topk_prob": False, "rope_theta": 500000,
    },
    # Norms around both blocks, rotation in layers with a window only, a router whose bias is added to its logits
    "gqa_logits": {
        **COMMON, "model_type": "kolibri1", "moe_intermediate_size": 40, "shared_expert_intermediate_size": 72, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 20, "num_experts": 9, "num_experts_per_tok": 3, "norm_topk_prob": False, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": {"rope_type": "default", "rope_theta": 10000},
    },
    # Norms around both blocks, a stream that is divided as it grows, gates with a bias per head, queries scaled by position in layers without rotation
    "gqa_depth": {
        **COMMON, "model_type": "beam", "rms_norm_eps": 1e-3, "num_hidden_layers": 4, "intermediate_size": 168, "moe_intermediate_size": 40,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "num_experts": 12, "num_experts_per_tok": 3, "n_group": 3, "topk_group": 2,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "sliding_window": 9, "final_logit_softcapping": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000}, "full_attention": None},
    },
    # LayerNorm and a head with biases, the sparse mixer, LongRoPE past its original length, a window
    "gqa_mixer": {
        **COMMON, "model_type": "phimoe", "intermediate_size": 72, "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "lm_head_bias": True,
        "num_local_experts": 9, "num_experts_per_tok": 2, "router_jitter_noise": 0.1, "sliding_window": 33, "rope_theta": 10000, "original_max_position_embeddings": 24,
        "rope_scaling": {"type": "longrope", "original_max_position_embeddings": 24, "short_mscale": 1.1, "long_mscale": 1.25,
                         "short_factor": [round(1 + 0.1 * i, 2) for i in range(19)], "long_factor": [round(1 + 1.5 * i, 2) for i in range(19)]},
    },
    # q, k and v in one matrix and clamped, experts in three, the last one transposed, LayerNorm without bias
    "gqa_fused": {
        "model_type": "dbrx", "vocab_size": 120, "d_model": 152, "n_layers": 3, "n_heads": 4, "max_seq_len": 4096, "eos_token_id": 1,
        "attn_config": {"clip_qkv": 1.5, "kv_n_heads": 2, "rope_theta": 500000}, "ffn_config": {"ffn_hidden_size": 72, "moe_num_experts": 7, "moe_top_k": 3},
    },
    # Gated DeltaNet in most layers, gated attention in the others, norms by 1 + w, a dense layer, fused inputs
    "delta_fused": {
        **COMMON, "model_type": "qwen3_next", "num_hidden_layers": 4, "intermediate_size": 168, "moe_intermediate_size": 56, "shared_expert_intermediate_size": 72,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "partial_rotary_factor": 0.5, "num_experts": 9, "num_experts_per_tok": 3,
        "norm_topk_prob": True, "rope_theta": 1000000, "full_attention_interval": 3, "mlp_only_layers": [1], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 20,
        "linear_value_head_dim": 28, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "quantization_config": FP8,
    },
    # The same without experts, with inputs in four tensors
    "delta_dense": {
        **COMMON, "model_type": "qwen3_5_text", "num_hidden_layers": 4, "intermediate_size": 168, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2], "mrope_interleaved": True},
        "partial_rotary_factor": 0.5, "rope_theta": 1000000, "full_attention_interval": 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 20,
        "linear_value_head_dim": 28, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "tie_word_embeddings": True,
    },
    # DeltaNet with its inputs in one tensor, attention with a window and rotation or with neither, stacked experts, a shared one without a gate
    "delta_window": {
        **COMMON, "model_type": "lara_mini", "num_hidden_layers": 4, "moe_intermediate_size": 56, "shared_expert_intermediate_size": 72, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 24, "num_experts": 9, "num_experts_per_tok": 3, "norm_topk_prob": True, "sliding_window": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000}, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 20,
        "linear_value_head_dim": 28, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "tie_word_embeddings": False,
        "layer_types": ["linear_attention", "sliding_attention", "full_attention", "linear_attention"],
    },
    # No experts: norms by 1 + w before and after both blocks, GELU, a scaled embedding, capped scores and logits, a window with unscaled rotation in
    # two of three layers
    "dense_around": {
        **{k: v for k, v in COMMON.items() if k != "hidden_act"}, "model_type": "gemma3_text", "num_hidden_layers": 4, "intermediate_size": 168,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 28, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 40,
        "sliding_window": 11, "sliding_window_pattern": 3, "rope_theta": 1000000, "rope_local_base_freq": 10000,
        "rope_scaling": {"rope_type": "linear", "factor": 4}, "attn_logit_softcapping": 3, "final_logit_softcapping": 2, "tie_word_embeddings": True,
    },
    # Attention and experts side by side after one LayerNorm, the mean of routed and shared experts, adjacent rotated elements, layers without rotation
    "beside": {
        **{k: v for k, v in COMMON.items() if k != "rms_norm_eps"}, "model_type": "cohere2_moe", "num_hidden_layers": 4, "intermediate_size": 72,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 28, "layer_norm_eps": 1e-5, "num_experts": 8, "num_experts_per_tok": 3,
        "num_shared_experts": 2, "norm_topk_prob": True, "expert_selection_fn": "softmax", "shared_expert_combination_strategy": "average",
        "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 168, "prefix_dense_sliding_window_pattern": 1, "sliding_window": 9,
        "sliding_window_pattern": 3, "rope_theta": 50000, "logit_scale": 0.25, "tie_word_embeddings": False, "quantization_config": FP8,
    },
    # A vector of the token that gates each layer's stream, layers that take keys of earlier ones and have a wider FFN, two head sizes, a few rotated pairs
    "token_input": {
        **{k: v for k, v in COMMON.items() if k != "hidden_act"}, "model_type": "gemma4_text", "num_hidden_layers": 8, "intermediate_size": 104,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "global_head_dim": 28, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9,
        "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2 + ["sliding_attention", "full_attention"], "num_kv_shared_layers": 4,
        "use_double_wide_mlp": True, "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 120, "final_logit_softcapping": 8, "tie_word_embeddings": True,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000},
                            "full_attention": {"rope_type": "proportional", "rope_theta": 1000000, "partial_rotary_factor": 0.5}},
    },
    # A prediction layer with a head of its own
    "guess_mla": {
        **COMMON, "model_type": "deepseek_v3", "num_hidden_layers": 2, "intermediate_size": 200, "moe_intermediate_size": 72, "num_attention_heads": 3,
        "num_key_value_heads": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "q_lora_rank": 40, "kv_lora_rank": 72,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_theta": 10000, "num_nextn_predict_layers": 1,
    },
    # A prediction layer with the model's head, over heads in groups
    "guess_gqa": {
        **COMMON, "model_type": "glm4_moe", "num_hidden_layers": 2, "intermediate_size": 168, "moe_intermediate_size": 72, "num_attention_heads": 6,
        "num_key_value_heads": 3, "head_dim": 24, "partial_rotary_factor": 0.5, "attention_bias": True, "use_qk_norm": False, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.5, "rope_theta": 10000, "quantization_config": FP8, "num_nextn_predict_layers": 1,
    },
    # Three residual streams, a window and keys compressed by 3 that an indexer selects, or by 7, experts in FP4, power-of-two scales, a
    # layer whose experts are chosen by token id, groups of heads before the output
    "streams": {
        **COMMON, "model_type": "deepseek_v4", "num_hidden_layers": 5, "hidden_size": 160, "moe_intermediate_size": 96, "num_attention_heads": 6, "head_dim": 40,
        "qk_rope_head_dim": 12, "q_lora_rank": 72, "o_groups": 3, "o_lora_rank": 20, "sliding_window": 8, "index_n_heads": 9, "index_head_dim": 20, "index_topk": 4,
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 7}, "rope_theta": 10000, "compress_rope_theta": 60000,
        "rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 4, "beta_slow": 1}, "n_routed_experts": 7,
        "num_experts_per_tok": 3, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "routed_scaling_factor": 1.5, "swiglu_limit": 2, "num_hash_layers": 1,
        "hc_mult": 3, "hc_sinkhorn_iters": 6, "hc_eps": 1e-6, "quantization_config": FP8,
    },
    # An embedding averaged with those of n-grams, which end tokens end; two attention blocks and dense FFNs per layer, experts that return their input
    "ngram_mean": {
        **{k: v for k, v in COMMON.items() if k != "num_hidden_layers"}, "model_type": "longcat_flash_ngram", "architectures": ["LongcatFlashNgramForCausalLM"],
        "num_layers": 2, "rms_norm_eps": 1e-5, "attention_method": "MLA", "ffn_hidden_size": 168, "expert_ffn_hidden_size": 40, "num_attention_heads": 3,
        "n_routed_experts": 8, "zero_expert_num": 3, "zero_expert_type": "identity", "moe_topk": 3, "routed_scaling_factor": 1.5, "q_lora_rank": 40,
        "kv_lora_rank": 72, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "rope_theta": 5000, "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True, "attention_bias": False, "emb_neighbor_num": 4, "emb_split_num": 2, "ngram_vocab_size_ratio": 2.5,
        "rope_scaling": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 4, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1},
    },
    # Keys of two tokens and of one that layers make for later ones, indexers that later layers reuse or that are limited to blocks of an earlier one, streams
    # whose weights come from the block before, embeddings of n-grams of texts without case and accents
    "engrams": {
        "model_type": "deepseek_v41", "eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 2, "image_token_id": 119, "vision_config": {"model_type": "deepseek_v41_vision"},
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        "text_config": {
            **COMMON, "model_type": "deepseek_v41_text", "rms_norm_eps": 1e-20, "num_hidden_layers": 9, "hidden_size": 160, "moe_intermediate_size": 96,
            "num_attention_heads": 6, "head_dim": 40, "qk_rope_head_dim": 12, "q_lora_rank": 96, "o_groups": 3, "o_lora_rank": 32, "sliding_window": 8,
            "compress_ratios": [0, 2, 2, 2, 2, 1, 1, 1, 1, 0], "kv_source_layer_ids": [1, 3, 5], "index_source_layer_ids": [1, 3, 5, 6, 8], "index_n_heads": 9,
            "index_head_dim": 20, "index_topk": 4, "candidate_source_layer_id": 5, "candidate_topk_blocks": 4, "candidate_block_size": 3, "rope_theta": 10000,
            "compress_rope_theta": 60000, "rope_scaling": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 4, "beta_slow": 1},
            "n_routed_experts": 7, "num_experts_per_tok": 3, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
            "routed_scaling_factor": 1.5, "swiglu_limit": 2, "hc_mult": 3, "hc_sinkhorn_iters": 6, "hc_eps": 1e-6, "engram_layer_ids": [1, 4],
            "engram_num_embeddings": [304, 462], "engram_max_ngram_size": 4, "engram_vocab_size": 40, "engram_n_heads": 2, "engram_head_dim": 64,
            "engram_pad_token_id": 2, "engram_compressed_vocab_size": 87, "num_nextn_predict_layers": 1,
        },
    },
}
# The same with fewer layers, and heads of whole blocks, which are rounded
MODELS["rounded_keys"] = {**MODELS["engrams"], "text_config": {
    **MODELS["engrams"]["text_config"], "num_hidden_layers": 4, "head_dim": 64, "index_head_dim": 32, "index_n_heads": 4, "compress_ratios": [2, 2, 1, 1],
    "kv_source_layer_ids": [0, 2], "index_source_layer_ids": [0, 2, 3], "candidate_source_layer_id": 2, "engram_layer_ids": [1], "engram_num_embeddings": [304]}}
N_TOKENS = 48

# A byte of the stream as an FP8 code: every sign and exponent, subnormals too, without NaN and the largest.
CODES = bytes((b & 0x80) | (b & 0x7F) % 0x70 for b in range(256))
CODES_RMS = 27.0  # of their values


def stream(*what):
    return hashlib.shake_256(" ".join(map(str, what)).encode())


def bf16(x):
    return struct.pack("<f", x)[2:]


def tensor(name, shape, size, middle=0.0):
    """BF16, uniform around `middle`, with standard deviation `size`."""
    value = [bf16(middle + size * math.sqrt(3) * (b - 127.5) / 127.5) for b in range(256)]
    return "BF16", shape, b"".join(value[b] for b in stream(name).digest(math.prod(shape)))


def weight(out, config, name, rows, cols, gain=1.0, fp8=True):
    """A matrix that preserves the size of its input, times gain."""
    size = gain / math.sqrt(cols)
    method = config.get("quantization_config", {}).get("quant_method")
    if not fp8 or method not in ("fp8", "compressed-tensors"):
        out[name + ".weight"] = tensor(name, [rows, cols], size)
        return
    if method == "compressed-tensors":
        out[name + ".weight"] = "F8_E4M3", [rows, cols], stream(name).digest(rows * cols).translate(CODES)
        out[name + ".weight_scale"] = "BF16", [rows, 1], b"".join(bf16(size / CODES_RMS * 4 ** (b / 255 - 0.5)) for b in stream(name, "scales").digest(rows))
        return
    blocks = [-(-rows // 128), -(-cols // 128)]
    spread = stream(name, "scales").digest(math.prod(blocks))  # neighbours differ by up to 4, so that a wrong one is detected
    out[name + ".weight"] = "F8_E4M3", [rows, cols], stream(name).digest(rows * cols).translate(CODES)
    out[name + ".weight_scale_inv"] = "F32", blocks, b"".join(struct.pack("<f", size / CODES_RMS * 4 ** (b / 255 - 0.5)) for b in spread)


def mxfp4(out, name, n, rows, cols, gain=1.0):
    """As gpt-oss stores it. Codes are uniform over all sixteen, whose values have a deviation of 2.9; exponents differ by up to 2."""
    size = gain / math.sqrt(cols)
    power = round(math.log2(size / 2.9)) + 127
    out[name + "_blocks"] = "U8", [n, rows, cols // 32, 16], stream(name).digest(n * rows * cols // 2)
    out[name + "_scales"] = "U8", [n, rows, cols // 32], bytes(power - 1 + b % 3 for b in stream(name, "scales").digest(n * rows * cols // 32))


def powers(out, name, size, blocks):
    """Power-of-two scales near size."""
    middle = round(math.log2(size)) + 127
    out[name + ".scale"] = "F8_E8M0", blocks, bytes(middle - 1 + b % 3 for b in stream(name, "scales").digest(math.prod(blocks)))


def fp8(out, name, rows, cols, gain=1.0):
    out[name + ".weight"] = "F8_E4M3", [rows, cols], stream(name).digest(rows * cols).translate(CODES)
    powers(out, name, gain / math.sqrt(cols) / CODES_RMS, [-(-rows // 128), -(-cols // 128)])


def fp4(out, name, rows, cols, gain=1.0):
    """Two codes per byte, scales for 32 columns each."""
    out[name + ".weight"] = "I8", [rows, cols // 2], stream(name).digest(rows * cols // 2)
    powers(out, name, gain / math.sqrt(cols) / 2.9, [rows, cols // 32])


def floats(name, shape, middle, wide):
    return "F32", shape, b"".join(struct.pack("<f", middle + wide * (b - 127.5) / 127.5) for b in stream(name).digest(math.prod(shape)))


def streams(c):
    """DeepSeek-V4, with its own names."""
    out, h, s, dim, heads, low = {}, c["hidden_size"], c["hc_mult"], c["head_dim"], c["num_attention_heads"], c["q_lora_rank"]

    def mix(name, n, parts):
        out[name + "_fn"] = floats(name + "_fn", [n, s * h], 0, 1.7 / math.sqrt(s * h))
        out[name + "_base"], out[name + "_scale"] = floats(name + "_base", [n], 0, 2), floats(name + "_scale", [parts], 1, 0.4)

    def compressor(name, ratio, dim, series):
        for w in ("wkv", "wgate"):
            weight(out, c, name + w, series * dim, h, fp8=False)
        out[name + "ape"] = floats(name + "ape", [ratio, series * dim], 0, 1)
        out[name + "norm.weight"] = tensor(name + "norm", [dim], 0.3, 1)

    out["embed.weight"] = tensor("embed", [c["vocab_size"], h], 1)
    for i, kind in enumerate(c["layer_types"]):
        p, ratio, sparse = f"layers.{i}.attn.", c["compress_rates"].get(kind), kind == "compressed_sparse_attention"
        for half in ("attn", "ffn"):
            mix(f"layers.{i}.hc_{half}", (2 + s) * s, 3)
            out[f"layers.{i}.{half}_norm.weight"] = tensor(f"layers.{i}.{half}_norm", [h], 0.3, 1)
        fp8(out, p + "wq_a", low, h)
        fp8(out, p + "wq_b", heads * dim, low, 2)
        fp8(out, p + "wkv", dim, h)
        fp8(out, p + "wo_a", c["o_groups"] * c["o_lora_rank"], heads * dim // c["o_groups"], 2)
        fp8(out, p + "wo_b", h, c["o_groups"] * c["o_lora_rank"], 2)
        out[p + "q_norm.weight"], out[p + "kv_norm.weight"] = tensor(p + "q_norm", [low], 0.3, 1), tensor(p + "kv_norm", [dim], 0.3, 1.5)
        out[p + "attn_sink"] = floats(p + "attn_sink", [heads], 0, 2)
        if ratio:
            compressor(p + "compressor.", ratio, dim, 1 + sparse)
        if sparse:
            compressor(p + "indexer.compressor.", ratio, c["index_head_dim"], 2)
            fp8(out, p + "indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], low, 2)
            weight(out, c, p + "indexer.weights_proj", c["index_n_heads"], h, fp8=False)
        p, n, k = f"layers.{i}.ffn.", c["n_routed_experts"], c["num_experts_per_tok"]
        weight(out, c, p + "gate", n, h, 1.5, fp8=False)
        if i < c["num_hash_layers"]:
            places = stream(p, "table").digest(c["vocab_size"])
            out[p + "gate.tid2eid"] = "I32", [c["vocab_size"], k], b"".join(struct.pack("<i", (b + 2 * j) % n) for b in places for j in range(k))
        else:
            out[p + "gate.bias"] = floats(p + "bias", [n], 0, 0.3)
        for e in range(n):
            for w, rows, cols, gain in (("w1", c["moe_intermediate_size"], h, 1.5), ("w3", c["moe_intermediate_size"], h, 1), ("w2", h, c["moe_intermediate_size"], 1.5)):
                fp4(out, f"{p}experts.{e}.{w}", rows, cols, gain)
        for w, rows, cols in (("w1", c["moe_intermediate_size"], h), ("w3", c["moe_intermediate_size"], h), ("w2", h, c["moe_intermediate_size"])):
            fp8(out, f"{p}shared_experts.{w}", rows, cols)
    mix("hc_head", s, 1)
    out["norm.weight"] = tensor("norm", [h], 0.3, 1)
    weight(out, c, "head", c["vocab_size"], h, fp8=False)
    return out


def delta(out, c, p):
    """Gated DeltaNet with its inputs in one tensor, two or four."""
    h, k_heads, v_heads = c["hidden_size"], c["linear_num_key_heads"], c["linear_num_value_heads"]
    keys, values, taps = k_heads * c["linear_key_head_dim"], v_heads * c["linear_value_head_dim"], c["linear_conv_kernel_dim"]
    apart, one_tensor = c["model_type"] == "qwen3_5_text", c["model_type"] == "lara_mini"
    if one_tensor:
        weight(out, c, p + "in_proj", 2 * (keys + values + v_heads), h, fp8=False)
    for name, rows in () if one_tensor else (("qkv", 2 * keys + values), ("z", values), ("b", v_heads), ("a", v_heads)) if apart else (("qkvz", 2 * keys + 2 * values), ("ba", 2 * v_heads)):
        weight(out, c, p + "in_proj_" + name, rows, h, fp8=name not in ("ba", "b", "a"))
    out[p + "conv1d.weight"] = tensor(p + "conv1d", [2 * keys + values, 1, taps], 1 / math.sqrt(taps))
    out[p + "A_log"] = tensor(p + "A_log", [v_heads], 1)
    out[p + "dt_bias"] = tensor(p + "dt_bias", [v_heads], 0.5, -1)
    out[p + ("out_norm" if one_tensor else "norm") + ".weight"] = tensor(p + "norm", [c["linear_value_head_dim"]], 0.3, 1)
    weight(out, c, p + "out_proj", h, values)


def attention(out, c, p):
    h, heads = c["hidden_size"], c["num_attention_heads"]
    if "kv_lora_rank" in c:
        nope, rope, v, latent, low = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"], c.get("q_lora_rank")
        if low:
            weight(out, c, p + "q_a_proj", low, h)
            out[p + "q_a_layernorm.weight"] = tensor(p + "q_a_layernorm", [low], 0.3, 1)
        gate = v if c["model_type"] == "axk2" else 0  # its queries come from the raw latent, too, with a gate per element of the output
        weight(out, c, p + ("q_b_proj" if low else "q_proj"), heads * (nope + rope + gate), 2 * low if gate else low or h, 2)
        weight(out, c, p + "kv_a_proj_with_mqa", latent + rope, h)
        out[p + "kv_a_layernorm.weight"] = tensor(p + "kv_a_layernorm", [latent], 0.3, 1)
        weight(out, c, p + "kv_b_proj", heads * (nope + v), latent)
        weight(out, c, p + "o_proj", h, heads * v)
        if "index_topk" in c and c.get("index_topk_pattern", "F" * 99)[int(p.split(".")[2])] == "F":
            index, dim = p + "indexer.", c["index_head_dim"]
            weight(out, c, index + "wq_b", c["index_n_heads"] * dim, low, 2)
            weight(out, c, index + "wk", dim, h)
            weight(out, c, index + "weights_proj", c["index_n_heads"], h, fp8=False)
            out[index + "k_norm.weight"] = tensor(index + "k_norm", [dim], 0.3, 1)
            out[index + "k_norm.bias"] = tensor(index + "k_norm_bias", [dim], 0.3)
        return
    kv = c["num_key_value_heads"]
    dim = c.get("head_dim", h // heads)
    for name, n in (("q", heads), ("k", kv), ("v", kv)):
        weight(out, c, p + name + "_proj", n * dim * (2 if name == "q" and one(c) and c["model_type"] != "gemma3_text" else 1), h, 2 if name == "q" else 1)
        if c["model_type"] == "qwen2_moe" or c.get("attention_bias"):
            out[p + name + "_proj.bias"] = tensor(p + name + "_bias", [n * dim], 0.5)
    if c["model_type"] in ("qwen3_moe", "minimax_m2", "flex_olmo", "qwen3_next", "qwen3_5_text", "gemma3_text", "lara_mini", "beam", "kolibri1"):
        for name, n in (("q_norm", heads), ("k_norm", kv)):
            out[p + name + ".weight"] = tensor(p + name, [n * dim if c["model_type"] in ("minimax_m2", "flex_olmo") else dim], 0.3, 1.2 - one(c))
    if c["model_type"] == "gpt_oss":
        out[p + "sinks"] = tensor(p + "sinks", [heads], 1, 1)
    if c["model_type"] == "beam":
        weight(out, c, p + "gate_proj", heads * dim, h, 2)
        out[p + "gate_bias"] = tensor(p + "gate_bias", [heads], 1)
    weight(out, c, p + "o_proj", h, heads * dim)
    if c.get("attention_bias") and c["model_type"] != "glm4_moe":
        out[p + "o_proj.bias"] = tensor(p + "o_bias", [h], 0.2)


def mlp(out, c, p, inter, gain=1.0, names=("gate_proj", "up_proj", "down_proj")):
    weight(out, c, p + names[0], inter, c["hidden_size"], 1.5)
    weight(out, c, p + names[1], inter, c["hidden_size"])
    weight(out, c, p + names[2], c["hidden_size"], inter, 1.5 * gain)


def dbrx(c):
    out, h, heads, kv, f = {}, c["d_model"], c["n_heads"], c["attn_config"]["kv_n_heads"], c["ffn_config"]
    out["transformer.wte.weight"] = tensor("embed", [c["vocab_size"], h], 1)
    for i in range(c["n_layers"]):
        p = f"transformer.blocks.{i}."
        for name in ("norm_1", "norm_2"):
            out[p + f"norm_attn_norm.{name}.weight"] = tensor(p + name, [h], 0.3, 1)
        weight(out, c, p + "norm_attn_norm.attn.Wqkv", (heads + 2 * kv) * (h // heads), h, 1.5)
        weight(out, c, p + "norm_attn_norm.attn.out_proj", h, h)
        weight(out, c, p + "ffn.router.layer", f["moe_num_experts"], h, 1.5)
        for name, gain in (("w1", 1.5), ("v1", 1), ("w2", 1.5)):
            inner = h if name != "w2" else f["ffn_hidden_size"]
            out[p + "ffn.experts.mlp." + name] = tensor(p + name, [f["moe_num_experts"] * f["ffn_hidden_size"], h], gain / math.sqrt(inner))
    out["transformer.norm_f.weight"] = tensor("norm", [h], 0.3, 1)
    weight(out, c, "lm_head", c["vocab_size"], h)
    return out


def routed(out, c, p):
    """The experts of a layer, for families with other names; False: not one of those."""
    kind, n, h, inter = c["model_type"], c.get("num_local_experts"), c["hidden_size"], c.get("intermediate_size")
    if kind == "gpt_oss":
        weight(out, c, p + "mlp.router", n, h, 1.5)
        out[p + "mlp.router.bias"] = tensor(p + "router bias", [n], 0.5)
        mxfp4(out, p + "mlp.experts.gate_up_proj", n, 2 * inter, h, 2)
        mxfp4(out, p + "mlp.experts.down_proj", n, h, inter)
        for name, rows in (("gate_up_proj_bias", 2 * inter), ("down_proj_bias", h)):
            out[p + "mlp.experts." + name] = tensor(p + name, [n, rows], 0.3)
    elif kind in ("minimax_m2", "phimoe"):
        p += "block_sparse_moe."
        weight(out, c, p + "gate", n, h, 1.5, fp8=False)
        if kind == "minimax_m2":
            out[p + "e_score_correction_bias"] = "F32", [n], b"".join(struct.pack("<f", (b - 127.5) / 500) for b in stream(p, "bias").digest(n))
        for e in range(n):
            mlp(out, c, f"{p}experts.{e}.", inter, names=("w1", "w3", "w2"))
    return kind in ("gpt_oss", "minimax_m2", "phimoe")


def one(c):
    """The offset that a norm's published weight omits."""
    return 1 if c["model_type"] in ("qwen3_next", "qwen3_5_text", "gemma3_text") else 0


def norms(c):
    """The norms of a layer."""
    if c["model_type"] == "flex_olmo":
        return "post_attention_layernorm", "post_feedforward_layernorm"
    if c["model_type"] == "kolibri1":
        return "input_layernorm", "post_attn_norm", "post_attention_layernorm", "post_ffn_norm"
    around = ("pre_feedforward_layernorm", "post_feedforward_layernorm") if c["model_type"] in ("gemma3_text", "beam") else ()
    return ("input_layernorm",) + (("post_attention_layernorm",) if c["model_type"] != "cohere2_moe" else ()) + around


def tensors(c):
    """Returns {name: (dtype, shape, bytes)}, with the vendors' names."""
    import models_autumn  # which import this module
    import models_deepseek
    import models_dense
    import models_experts
    import models_longcat
    import models_lowrank

    if c["model_type"] == "longcat_flash_ngram":
        return models_longcat.longcat_flash_ngram(c)
    if c["model_type"] == "deepseek_v41":
        return models_deepseek.deepseek_v41(c)
    for families in (models_autumn.FAMILIES, models_dense.FAMILIES, models_experts.FAMILIES, models_lowrank.FAMILIES):
        if c["model_type"] in families:
            return families[c["model_type"]](c)
    if c["model_type"] in ("dbrx", "deepseek_v4"):
        return dbrx(c) if c["model_type"] == "dbrx" else streams(c)
    out, h = {}, c["hidden_size"]
    out["model.embed_tokens.weight"] = tensor("embed", [c["vocab_size"], h], 0.2 if c.get("tie_word_embeddings") else 1)
    ahead = c.get("num_nextn_predict_layers", 0)
    for i in range(c["num_hidden_layers"] + ahead):
        p = f"model.layers.{i}."
        if i >= c["num_hidden_layers"]:
            for name in ("enorm", "hnorm", "shared_head.norm"):
                out[p + name + ".weight"] = tensor(p + name, [h], 0.3, 1)
            weight(out, c, p + "eh_proj", h, 2 * h, 2, fp8=False)
            if c["model_type"] == "deepseek_v3":
                weight(out, c, p + "shared_head.head", c["vocab_size"], h, fp8=False)
        for name in norms(c):
            if "gated_norm_rank" in c and (name == "input_layernorm" or i >= c["first_k_dense_replace"]):
                weight(out, c, p + name + ".W_down", c["gated_norm_rank"], h, 2, fp8=False)
                weight(out, c, p + name + ".W_up", h, c["gated_norm_rank"], 2, fp8=False)
                name += ".norm"
            out[p + name + ".weight"] = tensor(p + name, [h], 0.3, 1 - one(c))
            if c["model_type"] == "phimoe":
                out[p + name + ".bias"] = tensor(p + name + " bias", [h], 0.2)
        if (i + 1) % c.get("full_attention_interval", 1) or c.get("layer_types", [""] * 99)[i] == "linear_attention":
            delta(out, c, p + "linear_attn.")
        else:
            attention(out, c, p + "self_attn.")
        if routed(out, c, p):
            continue
        n = c.get("n_routed_experts") or c.get("num_experts")
        if not n or i < c.get("first_k_dense_replace", 0) or i % c.get("moe_layer_freq", 1) or i in c.get("mlp_only_layers", []) or c.get("mlp_layer_types", [""] * 99)[i] == "dense":
            mlp(out, c, p + "mlp.", c.get("prefix_dense_intermediate_size", c["intermediate_size"]))
            continue
        inter = c.get("moe_intermediate_size") or c["intermediate_size"]
        weight(out, c, p + "mlp.gate", n, h, 1.5, fp8=False)
        if c["model_type"] in ("glm4_moe", "beam") or c.get("topk_method") == "noaux_tc":
            out[p + "mlp.gate.e_score_correction_bias"] = "F32", [n], b"".join(struct.pack("<f", (b - 127.5) / 500) for b in stream(p, "bias").digest(n))
        if c["model_type"] == "kolibri1":
            out[p + "moe.router.expert_bias"] = floats(p + "expert_bias", [n], 0, 2)
        if c["model_type"] == "lara_mini":
            for name, rows, cols in (("gate_up_proj", 2 * inter, h), ("down_proj", h, inter)):
                out[f"{p}mlp.experts.{name}"] = tensor(p + name, [n, rows, cols], 1.5 / math.sqrt(cols))
        for e in range(n) if c["model_type"] != "lara_mini" else ():
            mlp(out, c, f"{p}mlp.experts.{e}.", inter)
        if c.get("n_shared_experts") or c.get("num_shared_experts"):
            mlp(out, c, p + "mlp.shared_experts.", (c.get("n_shared_experts") or c["num_shared_experts"]) * inter)
        if c.get("shared_expert_intermediate_size"):
            mlp(out, c, p + ("mlp.shared_experts." if c["model_type"] == "kolibri1" else "mlp.shared_expert."), c["shared_expert_intermediate_size"])
        if c.get("shared_expert_intermediate_size") and c["model_type"] not in ("lara_mini", "kolibri1"):
            weight(out, c, p + "mlp.shared_expert_gate", 1, h, 2, fp8=False)
    out["model.norm.weight"] = tensor("norm", [h], 0.3, 1 - one(c))
    if c["model_type"] == "phimoe":
        out["model.norm.bias"], out["lm_head.bias"] = tensor("norm bias", [h], 0.2), tensor("head bias", [c["vocab_size"]], 1)
    if not c.get("tie_word_embeddings"):
        weight(out, c, "lm_head", c["vocab_size"], h, fp8=False)
    return out


def make(directory, name):
    """Writes the checkpoint; returns the hash of its config and weights, by which references identify it."""
    return write(directory, MODELS[name], tensors(MODELS[name]))


def write(directory, config, all_tensors):
    os.makedirs(directory, exist_ok=True)
    weights = tiny.shard_bytes(list(all_tensors.items()))
    text = json.dumps(config, indent=1)
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(weights)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        f.write(text)
    if config["model_type"] == "deepseek_v41":  # whose n-grams depend on the texts of tokens
        import models_deepseek

        with open(os.path.join(directory, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(models_deepseek.tokenizer(config["text_config"]["vocab_size"]), f)
    return hashlib.sha256(text.encode() + weights).hexdigest()


if __name__ == "__main__":
    if sys.argv[1] == "all":  # each in a directory of its own
        for each in MODELS:
            print(each, make(os.path.join(sys.argv[2], each), each))
    else:
        print(make(sys.argv[2], sys.argv[1]))
