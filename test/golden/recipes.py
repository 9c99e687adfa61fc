"""Recipes of checkpoints for vary.py, in the form of ../shared/fixtures: families that the fixtures lack."""
import dataclasses
import re

import make_fixture as mf
import families_a as a
import families_b as b

# What every config has. The embedding and the blocks' outputs are small, so that norm_eps matters.
BASE = {**mf.COMMON, "max_position_embeddings": 4096, "num_hidden_layers": 4, "pad_token_id": 0}


def flex_olmo():
    return a.Recipe(
        model="FlexOlmoForCausalLM",
        config={
            **BASE, "architectures": ["FlexOlmoForCausalLM"], "hidden_size": 128, "intermediate_size": 72, "model_type": "flex_olmo", "norm_topk_prob": False,
            "num_attention_heads": 4, "num_experts": 7, "num_experts_per_tok": 3, "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-6,
            "rope_scaling": None, "rope_theta": 500000.0, "router_aux_loss_coef": 0.01,
        },
        tokenizer="olmo", special=a.sandwich("post_attention_layernorm", "post_feedforward_layernorm"),
    )


def granitemoe_swa():
    recipe = a.granitemoe()
    recipe.config.update({
        "architectures": ["GraniteMoeSWAForCausalLM"], "layer_rope_theta": [0, 10000.0, 500000.0, 10000.0, 0],
        "layer_types": ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"], "model_type": "granitemoe_swa", "num_hidden_layers": 5,
        "rope_theta": 10000.0, "shared_intermediate_size": 96, "sliding_window": 11,
    })
    return dataclasses.replace(recipe, model="GraniteMoeSWAForCausalLM", pieces=mf.same_pieces, f32=r"sinks$")


def granite_swa():
    recipe = a.granite()
    recipe.config.update({
        "architectures": ["GraniteSWAForCausalLM"], "layer_rope_theta": [0, 10000.0, 500000.0, 10000.0, 0],
        "layer_types": ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"], "mlp_bias": False, "model_type": "granite_swa",
        "num_hidden_layers": 5, "sliding_window": 11,
    })
    return dataclasses.replace(recipe, model="GraniteSWAForCausalLM", f32=r"sinks$")


def flint():
    return a.Recipe(
        model="FlintForCausalLM",
        config={
            **BASE, "architectures": ["FlintForCausalLM"], "decoder_sparse_step": 1, "head_dim": 48, "hidden_size": 160, "intermediate_size": 272,
            "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"], "mlp_only_layers": [0], "model_type": "flint",
            "moe_intermediate_size": 56, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 10, "num_experts_per_tok": 3,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "router_aux_loss_coef": 0.0005, "shared_expert_intermediate_size": 72, "sliding_window": 13,
        },
        pieces=a.renamed((r"self_attn\.sinks", "self_attn.softmax_offset")), f32=r"softmax_offset$|mlp\.gate\.weight$",
    )


def lara_pieces(key, shape):
    """The rows of in_proj_qkv, in_proj_z, in_proj_b and in_proj_a, which come in this order, are one matrix."""
    part = re.search(r"in_proj_(qkv|z|b|a)\.weight$", key)
    if not part:
        return [(key.replace("linear_attn.norm.", "linear_attn.out_norm."), mf.whole)]
    first = 0 if part[1] == "qkv" else lara_pieces.end
    lara_pieces.end = first + shape[0]
    return [(f"{key[: part.start()]}in_proj.weight[{first}:{lara_pieces.end}]", mf.whole)]


def lara_mini():
    return a.Recipe(
        model="LaraMiniForCausalLM",
        config={
            **BASE, "architectures": ["LaraMiniForCausalLM"], "head_dim": 48, "hidden_size": 160,
            "layer_types": ["linear_attention", "sliding_attention", "linear_attention", "full_attention"], "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 32, "model_type": "lara_mini",
            "moe_intermediate_size": 56, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 10, "num_experts_per_tok": 3,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 72, "sliding_window": 13, "tie_word_embeddings": True,
        },
        pieces=lara_pieces,
    )


ARIA_NAMES = ((r"experts\.gate_up_proj$", "experts.fc1.weight"), (r"experts\.down_proj$", "experts.fc2.weight"))


def aria():
    text = {
        **BASE, "hidden_size": 160, "intermediate_size": 56, "mlp_bias": False, "model_type": "aria_text", "moe_num_experts": 9, "moe_num_shared_experts": 2,
        "moe_topk": 3, "num_attention_heads": 5, "num_key_value_heads": 5, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 5000000.0,
    }
    return a.Recipe(
        model="AriaTextForCausalLM",
        config={
            "architectures": ["AriaForConditionalGeneration"], "ignore_index": -100, "image_token_index": 9, "initializer_range": 0.02, "model_type": "aria",
            "projector_patch_to_query_dict": {"1225": 128, "4900": 256}, "text_config": text, "torch_dtype": "bfloat16",
            "vision_config": {"hidden_size": 32, "model_type": "idefics3_vision"},
        },
        adapt=lambda config: config["text_config"], pieces=a.prefixed("language_model.", a.renamed(*ARIA_NAMES, pieces=mf.same_pieces)), untransposed=True,
        extra={"multi_modal_projector.query": (8, 32), "vision_tower.embeddings.patch_embedding.weight": (32, 3, 4, 4)},
    )


def aria_text():
    recipe = aria()
    config = {**recipe.config["text_config"], "architectures": ["AriaTextForCausalLM"], "hidden_act": "silu"}
    return dataclasses.replace(recipe, config=config, adapt=mf.whole, pieces=a.renamed(*ARIA_NAMES, pieces=mf.same_pieces), extra={})


def beam():
    return a.Recipe(
        model="BeamForCausalLM",
        config={
            **BASE, "architectures": ["BeamForCausalLM"], "final_logit_softcapping": 30.0, "head_dim": 48, "hidden_size": 160, "intermediate_size": 272,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "model_type": "beam", "moe_intermediate_size": 56, "n_group": 4, "norm_topk_prob": True,
            "num_attention_heads": 4, "num_experts": 16, "num_experts_per_tok": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "rope_parameters": {"full_attention": None, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}, "routed_scaling_factor": 2.5,
            "sliding_window": 13, "topk_group": 2,
        },
        special=a.sandwich("post_attention_layernorm", "post_feedforward_layernorm"),
    )


def kolibri_special(recipe, key, noise):
    if key.endswith("e_score_correction_bias"):
        return 1.5 * noise  # the choice of experts by scores plus bias would be another
    return a.sandwich("post_self_attn_layernorm", "post_mlp_layernorm")(recipe, key, noise)


def kolibri1():
    names = ((r"mlp\.gate\.e_score_correction_bias", "moe.router.expert_bias"), ("post_self_attn_layernorm", "post_attn_norm"), ("post_mlp_layernorm", "post_ffn_norm"))
    return a.Recipe(
        model="Kolibri1ForCausalLM",
        config={
            **{k: v for k, v in BASE.items() if k != "attention_bias"}, "architectures": ["Kolibri1ForCausalLM"], "head_dim": 48, "hidden_size": 160,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "model_type": "kolibri1", "moe_intermediate_size": 56,
            "norm_topk_prob": False, "num_attention_heads": 4, "num_experts": 10, "num_experts_per_tok": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "shared_expert_intermediate_size": 72, "sliding_window": 13,
        },
        pieces=a.renamed(*names), f32=r"expert_bias$", special=kolibri_special,
    )


def ministral():
    recipe = a.mistral()
    recipe.config.update({
        "architectures": ["MinistralForCausalLM"], "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "head_dim": 32, "model_type": "ministral", "num_hidden_layers": 4, "pad_token_id": 0, "sliding_window": 13,
    })
    return dataclasses.replace(recipe, model="MinistralForCausalLM")


def cohere():
    return a.Recipe(
        model="CohereForCausalLM",
        config={
            **BASE, "architectures": ["CohereForCausalLM"], "hidden_size": 160, "intermediate_size": 272, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
            "model_type": "cohere", "num_attention_heads": 5, "num_key_value_heads": 5, "rope_theta": 10000.0, "rope_scaling": None,
            "tie_word_embeddings": True, "use_qk_norm": False,
        },
        pieces=mf.same_pieces,
    )


def arcee():
    recipe = a.llama()
    recipe.config.update({"architectures": ["ArceeForCausalLM"], "hidden_act": "relu2", "model_type": "arcee", "pad_token_id": 0})
    return dataclasses.replace(recipe, model="ArceeForCausalLM")


def dots3_note():
    media = ("audio_config", "audio_token_id", "image_token_id", "video_token_id", "vision_config")
    return a.Recipe(
        model="Dots3NoteForCausalLM",
        config={
            **BASE, "architectures": ["Dots3NoteForConditionalGeneration"], "audio_config": {"adapter_out_dim": 160}, "audio_token_id": 9,
            "first_k_dense_replace": 1, "head_dim": 48, "hidden_size": 160, "image_token_id": 10, "index_head_dim": 40, "index_n_heads": 6, "index_topk": 9,
            "intermediate_size": 272, "kv_lora_rank": 72, "model_type": "dots3_note", "moe_intermediate_size": 56, "moe_layer_freq": 1,
            "moe_shared_expert_intermediate_size": 48, "n_group": 2, "n_routed_experts": 10, "n_shared_experts": 1, "norm_topk_prob": True,
            "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 6, "num_key_value_heads": 4, "q_lora_rank": 64, "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
            "sliding_window_size": 11, "swa_head_dim": 40, "swa_kv_lora_rank": 96, "swa_num_attention_heads": 6, "swa_num_key_value_heads": 6,
            "swa_q_lora_rank": 48, "swa_qk_nope_head_dim": 16, "swa_rope_theta": 50000.0, "swa_v_head_dim": 28, "topk_group": 1, "use_dsa": True,
            "v_head_dim": 36, "video_token_id": 11, "vision_config": {"adapter_out_dim": 160},
        },
        adapt=lambda config: {**{k: v for k, v in config.items() if k not in media}, "model_type": "dots3_note_text"},
        f32=r"e_score_correction_bias$|mlp\.gate\.weight$|indexer\.k_norm",
    )


def hy_v4_vl():
    recipe = b.hy_v4()
    text = {k: v for k, v in recipe.config.items() if k not in ("architectures", "enable_ihc", "gated_mla", "learnable_sink", "num_nextn_predict_layers")}
    text.update({"model_type": "hy_v4_vl_text", "rms_norm_eps": 1e-4,
                 "rope_parameters": {"mrope_section": [4, 2, 2], "rope_theta": 10000000.0, "rope_type": "default"}})
    vision = {"hidden_size": 32, "intermediate_size": 48, "model_type": "hy_v4_vl_vision", "num_attention_heads": 2, "num_hidden_layers": 1, "out_hidden_size": 128}
    return dataclasses.replace(
        recipe, model="HYV4VLForConditionalGeneration", pieces=lambda key, shape: b.hy_v4_pieces(key.replace("model.language_model.", "model."), shape),
        config={"architectures": ["HYV4VLForConditionalGeneration"], "image_token_id": 317, "model_type": "hy_v4_vl", "text_config": text,
                "tie_word_embeddings": False, "video_token_id": 318, "vision_config": vision})


def text_config(config, usual=mf.text_config):
    return usual(config.get("thinker_config", config))


mf.text_config = text_config


def qwen3_omni_moe():
    recipe = a.qwen3_vl_moe()
    text = {**recipe.config["text_config"], "model_type": "qwen3_omni_moe_text"}
    audio = {"d_model": 32, "downsample_hidden_size": 8, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "encoder_layers": 1,
             "model_type": "qwen3_omni_moe_audio_encoder", "output_dim": 128}
    thinker = {**{k: v for k, v in recipe.config.items() if "token_id" in k}, "audio_config": audio,
               "model_type": "qwen3_omni_moe_thinker", "position_id_per_seconds": 13, "text_config": text, "vision_config": recipe.config["vision_config"]}
    return a.Recipe(
        model="Qwen3OmniMoeThinkerForConditionalGeneration",
        config={"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "assistant_token_id": 9, "code2wav_config": {}, "enable_audio_output": True,
                "im_end_token_id": 3, "im_start_token_id": 4, "model_type": "qwen3_omni_moe", "system_token_id": 5, "talker_config": {"hidden_size": 32},
                "thinker_config": thinker, "tts_bos_token_id": 6, "tts_eos_token_id": 7, "tts_pad_token_id": 8, "user_token_id": 10},
        adapt=lambda config: config["thinker_config"], pieces=a.prefixed("thinker.", a.renamed((r"language_model\.", ""))),
        extra={"talker.model.norm.weight": (32,), "code2wav.decoder.0.conv.weight": (4, 4, 3)},
    )


LARGE4_NAMES = (
    (r"^lm_head", "output"), (r"^model\.language_model\.", ""), (r"^embed_tokens", "tok_embeddings"), (r"^rotary_emb\.", "lerope."), (r"\.self_attn\.", ".attention."),
    (r"\.q_proj\.", ".wq."), (r"\.o_proj\.", ".wo."), (r"\.kv_a_proj_with_mqa\.", ".wkv_a_with_mqa."), (r"\.kv_b_proj\.", ".wkv_b."), (r"\.kv_a_layernorm\.", ".kv_a_norm."),
    (r"\.input_layernorm\.", ".attention_norm."), (r"\.post_attention_layernorm\.", ".ffn_norm."), (r"\.softmax_scaling\.scale", ".ssmax_scaling.s"),
    (r"\.softmax_scaling\.bias", ".ssmax_scaling.b"), (r"\.gate_proj\.", ".w1."), (r"\.up_proj\.", ".w3."), (r"\.down_proj\.", ".w2."), (r"\.mlp\.(w\d\.)", r".feed_forward.\1"),
    (r"\.mlp\.", "."),
)


def large4_special(recipe, key, noise):
    if key.endswith("softmax_scaling.scale"):
        return 0.3 + 0.1 * noise
    if key.endswith(("softmax_scaling.bias", "rotary_emb.alpha")):
        return (0.6 if key.endswith("bias") else 0) + 0.2 * noise
    return None if key.startswith(("model.vision", "model.multi")) else a.usual(recipe, key, noise)


def mistral_large4():
    text = {
        **BASE, "first_k_dense_replace": 1, "final_logit_softcapping": 20.0, "head_dim": 16, "hidden_size": 160, "index_head_dim": 40, "index_n_heads": 12,
        "index_topk": 9, "indexer_types": ["full", "shared", "full", "full", "shared", "full", "full"], "intermediate_size": 272, "kv_lora_rank": 72,
        "kv_source_layers": [0, 1, 2, 2, 1, 2, 6], "model_type": "mistral_large4_text", "moe_intermediate_size": 56, "n_group": 2, "n_routed_experts": 10,
        "n_shared_experts": 1, "no_rope_layers": [1, 0, 1, 1, 0, 1, 0], "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 7,
        "num_key_value_heads": 4, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "rms_norm_eps": 1e-5,
        "rope_parameters": {"attention_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "original_max_position_embeddings": 64,
                            "rope_theta": 10000.0, "rope_type": "yarn"},
        "routed_scaling_factor": 1.5, "topk_group": 1, "v_head_dim": 36,
    }
    return a.Recipe(
        model="MistralLarge4ForConditionalGeneration",
        config={
            "architectures": ["MistralLarge4ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral_large4", "spatial_merge_size": 2,
            "text_config": text, "tie_word_embeddings": False,
            "vision_config": {"head_dim": 16, "hidden_size": 32, "image_size": 8, "intermediate_size": 48, "model_type": "pixtral", "num_attention_heads": 2,
                              "num_hidden_layers": 1, "patch_size": 4},
        },
        pieces=a.renamed(*LARGE4_NAMES), special=large4_special, extra={"mtp_dspark.layers.0.attention.wq.weight": (8, 8)},
        f32=r"lerope|ssmax|\.gate\.weight$|indexer\.k_norm",
    )


MUSE_TEXT = {
    **{k: v for k, v in BASE.items() if k != "torch_dtype"}, "final_logit_softcapping": 6.0, "head_dim": 24, "hidden_size": 160, "intermediate_size": 272,
    "layer_rope_theta": [10000.0, 0, 10000.0, 0, 10000.0, 0],
    "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "num_attention_heads": 4, "num_hidden_layers": 6, "num_key_value_heads": 2, "output_multiplier": 0.7, "post_norm_eps": 1e-8, "qk_scale_factor": 1.6,
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": 13,
}
MUSE_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 1, "patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4}


def muse_config(config):
    """transformers wants these to agree."""
    if "audio_config" in config:
        config["audio_config"]["out_hidden_size"] = config["text_config"].get("hidden_size", 8192)
    return config


def muse_spark():
    text = {
        **MUSE_TEXT, "mlp_layer_types": ["dense", "sparse", "sparse", "dense", "sparse", "sparse"], "model_type": "muse_spark_text", "moe_hidden_size": 96,
        "moe_intermediate_size": 56, "num_experts_per_tok": 3, "num_local_experts": 10, "residual_gate_temperature": 0.5, "routed_scaling_factor": 1.5,
    }
    return a.Recipe(
        model="MuseSparkForConditionalGeneration",
        config={
            "architectures": ["MuseSparkForConditionalGeneration"], "audio_token_id": 319, "image_token_id": 317, "model_type": "muse_spark",
            "out_hidden_size": 128, "projector_hidden_act": "gelu", "projector_hidden_size": 48, "text_config": text, "video_token_id": 318,
            "vision_config": {**MUSE_VISION, "model_type": "muse_spark_vision"},
            "audio_config": {"conv_kernel_size": 3, "depths": [1, 1], "hidden_sizes": [16, 32], "model_type": "muse_spark_audio", "num_hidden_layers": 2,
                             "out_hidden_size": 160, "patch_sizes": [4, 2]},
        },
        adapt=muse_config, pieces=mf.same_pieces, centred_norms=r"layernorm|_expert_norm", f32=r"e_score_correction_bias$|mlp\.gate\.weight$|residual_gate",
    )


def muse_glimmer():
    return a.Recipe(
        model="MuseGlimmerForConditionalGeneration",
        config={
            "architectures": ["MuseGlimmerForConditionalGeneration"], "image_token_id": 317, "model_type": "muse_glimmer", "out_hidden_size": 128,
            "projector_hidden_act": "gelu", "projector_hidden_size": 48, "video_token_id": 318, "vision_config": {**MUSE_VISION, "model_type": "muse_glimmer_vision"},
            "text_config": {**{k: v for k, v in MUSE_TEXT.items() if k != "hidden_act"}, "hidden_activation": "silu", "model_type": "muse_glimmer_text"},
        },
        pieces=mf.same_pieces, centred_norms=r"layernorm",
    )


def inkling2_pieces(key, shape):
    layer = re.search(r"^model\.layers\.(\d+)\.attention_input\.query$", key)
    if layer:
        return [(f"model.llm.attn_res.attn_queries.{int(layer[1]) - 1}", mf.whole)]
    key = b.renamed(
        key, (r"^model\.embed_tokens\.embed_norm\.", "model.llm.embed_norm."), (r"^model\.embed_tokens\.", "model.llm.embed."), (r"^lm_head\.", "model.llm.unembed."),
        (r"^model\.final_input\.query", "model.llm.attn_res.output_query"), (r"^model\.layers\.(\d+)\.mlp_input\.query", r"model.llm.attn_res.mlp_queries.\1"),
        (r"^model\.(layers|norm)\.", r"model.llm.\1."), (r"\.self_attn\.", ".attn."), (r"\.conv1d\.", "."), (r"\.static_weight", ".static_w"),
        (r"\.weight_proj\.weight", ".weight_proj"), (r"\.attn\.(k|v)_proj\.sconv", r".attn.\1_sconv"), (r"\.attn\.q_proj\.norm", ".attn.q_l2_clip"),
        (r"\.relative_position_bias\.norm", ".rel_l2_clip"), (r"\.relative_position_bias\.linear", ".wr_du"), (r"\.relative_position_bias\.proj", ".rel_logits_proj.proj"),
        (r"\.attn\.q_proj\.linear", ".attn.wq_du"), (r"\.attn\.(k|v)_proj\.linear", r".attn.w\1_dv"), (r"\.o_proj\.linear", ".wo_ud"),
        (r"\.o_proj\.gate_proj", ".gate_attn"), (r"\.attn\.sink_proj", ".attn.attn_sink_proj"), (r"post_attention_convolution", "attn_sconv"),
        (r"post_mlp_convolution", "mlp_sconv"), (r"\.(q|k|v)_input_layernorm", r".\1_input_norm"), (r"\.input_layernorm", ".attn_norm"),
        (r"\.post_attention_layernorm", ".mlp_norm"), (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.gate.bias"), (r"experts\.down_proj$", "experts.w2_weight"),
    )
    if key.endswith("experts.gate_up_proj"):
        n, base = shape[1] // 2, key.replace("gate_up_proj", "w13_weight")
        return [(base + "#0", lambda t: t[:, :n]), (base + "#1", lambda t: t[:, n:])]
    return [(key, mf.whole)]


def inkling2_special(recipe, key, shape, rng):
    if key.endswith(".query"):
        return 2 * b.noise(shape, rng)
    if key.endswith("norm.scale"):
        return 1 + 0.3 * b.noise(shape, rng)
    if key.endswith("relative_position_bias.proj") or key.endswith("static_weight"):
        return 0.5 * b.noise(shape, rng)
    return None


def inkling2():
    text = {
        **{k: v for k, v in BASE.items() if k not in ("attention_bias", "tie_word_embeddings")}, "conv_kernel_size": 4, "d_rel": 8, "final_logit_softcapping": 30.0, "head_dim": 32,
        "hidden_size": 128, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid_sliding", "hybrid"], "log_scaling_alpha": 0.1,
        "log_scaling_n_floor": 12, "mlp_gate_softcap": 4.0, "mlp_up_softcap": 2.0, "model_type": "inkling2_text", "moe_intermediate_size": 48,
        "n_layers_per_attn_res_block": 2, "n_routed_experts": 8, "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 5,
        "num_key_value_heads": 1, "qk_l2_clip_threshold": 5.0, "rel_extent": 17, "rel_l2_clip_threshold": 2.5, "rms_norm_eps": 1e-6, "route_scale": 2.0,
        "scoring_func": "sigmoid", "sliding_window_size": 13, "swa_head_dim": 24, "swa_num_attention_heads": 6, "swa_num_key_value_heads": 2,
        "unpadded_vocab_size": BASE.get("vocab_size", 320),
    }
    return b.RecipeB(
        model="Inkling2ForCausalLM",
        config={"architectures": ["Inkling2ForConditionalGeneration"], "image_token_id": 9, "model_type": "inkling2", "text_config": text,
                "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 32, "model_type": "inkling2_vision", "text_hidden_size": 128}},
        adapt=lambda config: config["text_config"], pieces=inkling2_pieces, special=inkling2_special, f32=r"gate\.bias$|sconv\.|attn_res\.", tokenizer="granite4",
    )


def inkling2_loop():
    parts, messages = {"q": "attn", "k": "k", "v": "v", "mlp": "mlp"}, "model.llm.middle_cycle_cross_pass_"
    recipe = inkling2()
    text = recipe.config["text_config"]
    recipe.config.update({"architectures": ["Inkling2LoopForConditionalGeneration"], "model_type": "inkling2_loop"})
    text.update({
        "layer_types": text["layer_types"] + ["hybrid", "hybrid_sliding"], "loop_gate_rank": 12, "loop_layer_index_end": 6, "loop_layer_index_start": 2,
        "loop_num_passes": 3, "model_type": "inkling2_loop_text", "num_hidden_layers": 7, "route_scale": 1.0,
    })

    def pieces(key, shape):
        if key == "model.message_input.query":
            rows = (("queries#0", 0), ("queries#1", 3), ("kv_queries#0", 1), ("kv_queries#1", 2))
            return [(messages + name, lambda t, i=i: t[:, i]) for name, i in rows]
        name = inkling2_pieces(key, shape)[0][0] if "message_gate" in key else ""
        for part, new in parts.items():
            for module, end in (("down_proj", "down_weight"), ("forget_gate_proj", "forget_weight"), ("message_gate_proj", "gain_weight")):
                if name.endswith(f".{part}_message_gate.{module}.weight"):
                    return [(name.replace(f".{part}_message_gate.{module}.weight", f".controllers.{part and new}.{end}"), mf.whole)]
        return inkling2_pieces(key, shape)
    return dataclasses.replace(recipe, model="Inkling2LoopForCausalLM", pieces=pieces)


def ernie_vl_pieces(key, shape):
    """A layer's experts for images follow those for text; both routers are published transposed, and both biases in one tensor."""
    key = key.replace("model.language_model.", "model.")
    part = re.search(r"mlp\.(text|vision)_moe\.(.*)", key)
    if not part:
        return [(key, mf.whole)]
    layer, images = key[: part.start()] + "mlp.", part[1] == "vision"
    if part[2] == "gate.weight":
        return [(layer + "gate.weight" + "_1" * images, lambda t: t.T)]
    if part[2].startswith("gate.moe_statics"):
        return [(f"{layer}moe_statics.e_score_correction_bias[{int(images)}:{int(images) + 1}]", mf.whole)]
    first = shape[0] * images
    return [(re.sub(r"experts\.(\d+)", lambda e: f"experts.{int(e[1]) + first}", name), view) for name, view in mf.expert_pieces(layer + part[2], shape)]


def ernie4_5_vl_moe():
    text = {k: v for k, v in BASE.items() if k not in ("attention_bias", "tie_word_embeddings", "torch_dtype")}
    text.update({
        "head_dim": 40, "hidden_size": 128, "intermediate_size": 272, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "model_type": "ernie4_5_vl_moe_text", "moe_intermediate_size": [72, 40], "moe_k": 4, "moe_norm_min": 1e-12, "moe_num_experts": 12,
        "moe_num_shared_experts": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_parameters": {"mrope_section": [7, 7, 6], "rope_theta": 500000.0, "rope_type": "default"}, "use_bias": False,
    })
    return a.Recipe(
        model="Ernie4_5_VLMoeForConditionalGeneration",
        config={"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "image_end_token_id": 316, "image_start_token_id": 317, "image_token_id": 318,
                "model_type": "ernie4_5_vl_moe", "text_config": text, "tie_word_embeddings": True, "video_end_token_id": 313, "video_start_token_id": 314,
                "video_token_id": 315, "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4}},
        pieces=ernie_vl_pieces, special=a.ernie_special, f32=r"e_score_correction_bias$|mlp\.gate\.weight", tokenizer="ernie",
    )


def exaone4():
    return a.Recipe(
        model="Exaone4ForCausalLM",
        config={
            **BASE, "architectures": ["Exaone4ForCausalLM"], "head_dim": 40, "hidden_size": 128, "intermediate_size": 272,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"], "model_type": "exaone4", "num_attention_heads": 4,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 13, "sliding_window_pattern": 4,
        },
        pieces=mf.same_pieces, special=a.sandwich("post_attention_layernorm", "post_feedforward_layernorm"),
    )


def exaone4_5():
    recipe = exaone4()
    text = {k: v for k, v in recipe.config.items() if k not in ("architectures", "torch_dtype", "tie_word_embeddings")}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "num_key_value_heads": 1, "out_hidden_size": 128, "patch_size": 4}
    return dataclasses.replace(
        recipe, model="Exaone4_5_ForConditionalGeneration",
        config={"architectures": ["Exaone4_5_ForConditionalGeneration"], "image_token_id": 317, "model_type": "exaone4_5", "text_config": text,
                "tie_word_embeddings": False, "video_token_id": 318, "vision_config": vision})


def lfm3():
    return a.Recipe(
        model="Lfm3ForCausalLM",
        config={
            **BASE, "architectures": ["Lfm3ForCausalLM"], "conv_L_cache": 7, "conv_bias": False, "head_dim": 40, "hidden_size": 128, "intermediate_size": 272,
            "layer_types": ["conv", "conv", "full_attention", "conv", "sliding_attention", "conv"], "model_type": "lfm3", "norm_eps": 1e-5,
            "num_attention_heads": 4, "num_hidden_layers": 6, "num_key_value_heads": 2,
            "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "rope_type": "proportional"},
                                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
            "sliding_window": 11, "tie_word_embeddings": True, "use_attention_gate": True, "use_sandwich_norm": True,
        },
        pieces=a.renamed((r"self_attn\.g_proj\.", "self_attn.gate_proj.")), special=a.sandwich("post_operator_norm", "post_ffn_norm"),
    )


def lfm3_vl():
    recipe = lfm3()
    text = {k: v for k, v in recipe.config.items() if k not in ("architectures", "torch_dtype", "tie_word_embeddings")}
    return dataclasses.replace(
        recipe, model="Lfm3VlForConditionalGeneration",
        config={"architectures": ["Lfm3VlForConditionalGeneration"], "image_token_id": 318, "model_type": "lfm3_vl", "projector_bias": True,
                "projector_hidden_act": "gelu", "projector_hidden_size": 48, "text_config": text, "tie_word_embeddings": True, "video_token_id": 317,
                "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 1,
                                  "patch_size": 4}, "vision_end_token_id": 316, "vision_start_token_id": 315})


def youtu():
    return a.Recipe(
        model="YoutuForCausalLM",
        config={
            **BASE, "architectures": ["YoutuForCausalLM"], "embedding_initializer_range": 0.04, "hidden_size": 128, "intermediate_size": 272, "kv_lora_rank": 72,
            "model_type": "youtu", "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 56, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
            "rms_norm_eps": 1e-6, "rope_interleave": True, "rope_scaling": None, "rope_theta": 1600000.0, "tie_word_embeddings": True, "v_head_dim": 32,
        },
        pieces=mf.same_pieces,
    )


def sarvam_config(config):
    """What transformers makes of the published config, for DeepSeek-V3's class."""
    import transformers

    return {**transformers.SarvamMLAConfig(**config).to_dict(), "model_type": "deepseek_v3"}


def sarvam_mla():
    recipe = mf.deepseek_v3()
    drop = ("n_routed_experts", "n_shared_experts", "n_group", "topk_group", "topk_method", "scoring_func", "ep_size", "num_nextn_predict_layers", "quantization_config")
    config = {key: value for key, value in recipe.config.items() if key not in drop}
    config.update({
        "architectures": ["SarvamMLAForCausalLM"], "model_type": "sarvam_mla", "num_experts": 12, "num_shared_experts": 1, "q_lora_rank": None, "q_head_dim": 48,
        "head_dim": 160, "moe_router_enable_expert_bias": True, "use_qk_norm": True, "embedding_dropout": 0.0, "output_dropout": 0.0,
        "rope_scaling": {**{k: v for k, v in config["rope_scaling"].items() if k not in ("type", "rope_type")}, "type": "deepseek_yarn"},
    })
    return dataclasses.replace(recipe, config=config, encoders={}, mtp="", shards=1, stray_scales=False, gains={r"q_proj": 0.8, r"down_proj": 0.4},
                               adapt=sarvam_config)


def nanochat():
    return a.Recipe(
        model="NanoChatForCausalLM",
        config={
            **BASE, "architectures": ["NanoChatForCausalLM"], "final_logit_softcapping": 4.0, "head_dim": 40, "hidden_act": "relu2", "hidden_size": 128,
            "intermediate_size": 272, "model_type": "nanochat", "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-3,
            "rope_scaling": None, "rope_theta": 10000.0,
        },
        pieces=mf.same_pieces,
    )


def gemma():
    """hearth rounds the root of hidden_size to BF16, as the reference does in BF16 but not in float32: at 256 both are 16."""
    return a.Recipe(
        model="GemmaForCausalLM",
        config={
            **BASE, "architectures": ["GemmaForCausalLM"], "head_dim": 40, "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 256,
            "intermediate_size": 272, "model_type": "gemma", "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": True,
        },
        pieces=mf.same_pieces,
    )


def glm():
    return a.Recipe(
        model="GlmForCausalLM",
        config={
            **BASE, "architectures": ["GlmForCausalLM"], "attention_bias": True, "head_dim": 32, "hidden_size": 144, "intermediate_size": 272,
            "model_type": "glm", "num_attention_heads": 6, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07,
            "rope_theta": 10000.0,
        },
        pieces=mf.same_pieces, tokenizer="glm",
    )


def jais2():
    recipe = cohere()
    config = {k: v for k, v in recipe.config.items() if k not in ("logit_scale", "use_qk_norm")}
    config.update({"architectures": ["Jais2ForCausalLM"], "attention_bias": True, "hidden_act": "relu2", "mlp_bias": True, "model_type": "jais2",
                   "num_key_value_heads": 1, "tie_word_embeddings": False})
    return dataclasses.replace(recipe, model="Jais2ForCausalLM", config=config)


def minicpm3():
    return a.Recipe(
        model="MiniCPM3ForCausalLM",
        config={
            **BASE, "architectures": ["MiniCPM3ForCausalLM"], "dim_model_base": 64, "hidden_size": 128, "intermediate_size": 272, "kv_lora_rank": 72,
            "model_type": "minicpm3", "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 56, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
            "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0, "scale_depth": 1.4, "scale_emb": 12, "tie_word_embeddings": True,
        },
        pieces=mf.same_pieces,
    )


def dense(model, model_type, **more):
    config = {**BASE, "architectures": [model], "head_dim": 32, "hidden_size": 160, "intermediate_size": 272, "model_type": model_type, "num_attention_heads": 5,
              "num_key_value_heads": 5, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 10000.0}
    return a.Recipe(model=model, config={**config, **more}, pieces=mf.same_pieces)


def without(recipe, *keys):
    for key in keys:
        del recipe.config[key]
    return recipe


def helium():
    return dense("HeliumForCausalLM", "helium", attention_bias=False, mlp_bias=False, rms_norm_eps=1e-8, rope_theta=20000.0)


def vaultgemma():
    return dense("VaultGemmaForCausalLM", "vaultgemma", attn_logit_softcapping=50.0, final_logit_softcapping=30.0, hidden_act=None, hidden_activation="gelu_pytorch_tanh",
                 hidden_size=144, layer_types=["sliding_attention", "full_attention"] * 2, num_attention_heads=6, num_key_value_heads=2, query_pre_attn_scalar=24,
                 sliding_window=11, tie_word_embeddings=True)


def stablelm():
    recipe = dense("StableLmForCausalLM", "stablelm", layer_norm_eps=1e-5, num_key_value_heads=1, partial_rotary_factor=0.25, qk_layernorm=False,
                   use_parallel_residual=False, use_qkv_bias=True)
    return without(recipe, "head_dim", "rms_norm_eps")


def stablelm_parallel():
    recipe = stablelm()
    recipe.config["use_parallel_residual"] = True
    return recipe


def bamba():
    recipe = b.granitemoehybrid()
    config = {k: v for k, v in recipe.config.items() if not re.search("expert|router|multiplier|logits_scaling|shared|layer|position_embedding_type|normalization|mlp_bias", k)}
    config.update({"architectures": ["BambaForCausalLM"], "attn_layer_indices": [2], "intermediate_size": 272, "model_type": "bamba", "num_hidden_layers": 4,
                   "num_logits_to_keep": 1, "z_loss_coefficient": 0.0})
    return dataclasses.replace(recipe, model="BambaForCausalLM", config=config, pieces=mf.same_pieces, also_writes=r"feed_forward\.down_proj",
                               choice=None,
                               gains={r"\.[qk]_proj": 1.7, r"down_proj|out_proj|o_proj": 20.0, r"gate_proj|up_proj|in_proj": 1.3})


def falcon_h1():
    recipe = bamba()
    config = {k: v for k, v in recipe.config.items() if k not in ("attn_layer_indices", "normalization_function", "z_loss_coefficient", "partial_rotary_factor", "attn_rotary_emb")}
    config.update({
        "architectures": ["FalconH1ForCausalLM"], "attention_in_multiplier": 1.5, "attention_out_multiplier": 0.7, "embedding_multiplier": 3.0, "key_multiplier": 0.4,
        "lm_head_multiplier": 0.3, "mamba_d_ssm": config["mamba_n_heads"] * config["mamba_d_head"], "mamba_norm_before_gate": False, "mamba_rms_norm": True, "mamba_use_mlp": True,
        "mlp_expansion_factor": 8, "mlp_multipliers": [0.8, 0.3], "model_type": "falcon_h1", "projectors_bias": False, "ssm_in_multiplier": 1.3,
        "ssm_multipliers": [0.4, 0.7, 1.2, 0.9, 0.5], "ssm_out_multiplier": 0.6,
    })
    return dataclasses.replace(recipe, model="FalconH1ForCausalLM", config=config)


def falcon_h1_plain():
    """As most are published: Mamba's output is gated and not normed."""
    recipe = falcon_h1()
    recipe.config["mamba_rms_norm"] = False
    return recipe


def ungated(recipe):
    """Names of GPT-NeoX and Falcon."""
    return dataclasses.replace(recipe, writes=mf.WRITES_RESIDUAL + r"|embed_in|word_embeddings|attention\.dense|dense_4h_to_h", gains={r"embed_in|word_embeddings": None})


def starcoder2():
    recipe = dense("Starcoder2ForCausalLM", "starcoder2", hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5, num_key_value_heads=1, sliding_window=13, tie_word_embeddings=True, use_bias=True)
    return without(recipe, "attention_bias", "head_dim", "rms_norm_eps")


def phi():
    recipe = dense("PhiForCausalLM", "phi", embd_pdrop=0.0, hidden_act="gelu_new", layer_norm_eps=1e-5, num_key_value_heads=1, partial_rotary_factor=0.4, qk_layernorm=False, resid_pdrop=0.1)
    return dataclasses.replace(without(recipe, "attention_bias", "head_dim", "rms_norm_eps"), writes=mf.WRITES_RESIDUAL + r"|self_attn\.dense|mlp\.fc2")


def gpt_neox():
    recipe = dense("GPTNeoXForCausalLM", "gpt_neox", attention_bias=True, classifier_dropout=0.1, hidden_act="gelu", hidden_dropout=0.0, layer_norm_eps=1e-5, rotary_emb_base=10000,
                   rotary_pct=0.25, use_parallel_residual=True)
    return dataclasses.replace(ungated(without(recipe, "head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta")), pieces=a.renamed((r"lm_head", "embed_out")))


def gpt_neox_serial():
    recipe = gpt_neox()
    recipe.config.update({"hidden_act": "gelu_fast", "use_parallel_residual": False})
    return recipe


def falcon():
    """Falcon 7B: one KV head."""
    recipe = dense("FalconForCausalLM", "falcon", alibi=False, apply_residual_connection_post_layernorm=False, bias=False, hidden_dropout=0.0, layer_norm_epsilon=1e-5, multi_query=True,
                   new_decoder_architecture=False, parallel_attn=True)
    keys = ("attention_bias", "head_dim", "hidden_act", "intermediate_size", "num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings")
    return dataclasses.replace(ungated(without(recipe, *keys)), pieces=a.renamed((r"lm_head", "transformer.word_embeddings")))


def falcon_40b():
    recipe = falcon()
    recipe.config.update({"bias": True, "hidden_size": 192, "new_decoder_architecture": True, "num_attention_heads": 6, "num_kv_heads": 2, "tie_word_embeddings": False})
    return dataclasses.replace(recipe, pieces=mf.same_pieces)


def falcon2():
    """Falcon 2 11B: several KV heads, one norm."""
    recipe = falcon_40b()
    recipe.config.update({"activation": "gelu", "bias": False, "ff_factor": 4, "ffn_hidden_size": 272, "num_ln_in_parallel_attn": 1, "rope_theta": 500042.0})
    return recipe


def olmo():
    recipe = dense("OlmoForCausalLM", "olmo", clip_qkv=1.5, num_key_value_heads=1)
    return without(recipe, "rms_norm_eps")


FAMILIES = (falcon_h1, falcon_h1_plain, starcoder2, phi, gpt_neox, gpt_neox_serial, falcon, falcon_40b, falcon2, olmo, helium, vaultgemma, stablelm, stablelm_parallel, bamba, gemma, glm, jais2, minicpm3, inkling2_loop, inkling2, muse_spark, muse_glimmer, mistral_large4, hy_v4_vl, qwen3_omni_moe, ernie4_5_vl_moe, exaone4, exaone4_5, lfm3, lfm3_vl, youtu, sarvam_mla, nanochat, dots3_note, arcee, beam, cohere, ministral, kolibri1, flex_olmo, granitemoe_swa, granite_swa, flint, lara_mini, aria, aria_text)
mf.RECIPES.update({f.__name__: f for f in FAMILIES})
