"""Rewrites a GGUF model of llama.cpp's converter as ollama's converter wrote it until August 2026."""
NAMES = {"gpt-oss": "gptoss", "deepseek2": "glm4moelite", "olmo2": "olmo3"}
KEYS = {"gemma3": {"rope.freq_base": "rope.global.freq_base", "rope.freq_base_swa": "rope.local.freq_base"},
        "mistral3": {"rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast", "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
                     "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim", "attention.temperature_scale": "rope.scaling_beta"},
        "laguna": {"rope.dimension_count_swa": "rope.swa.dimension_count", "rope.freq_base_swa": "rope.swa.freq_base"}}
LEFT_OUT = {"gpt-oss": ["expert_feed_forward_length", "rope.scaling.type"],
            "gemma3": ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type", "rope.scaling.factor"],
            "qwen3vl": ["rope.dimension_sections", "n_deepstack_layers"], "qwen3vlmoe": ["rope.dimension_sections", "n_deepstack_layers"],
            "nemotron_h_moe": ["moe_latent_size"]}
ADDED = {"qwen35": {"ssm.v_head_reordered": True, "rope.mrope_interleaved": True, "rope.mrope_section": [11, 11, 10], "mrope_sections": [11, 11, 10], "rope.dimension_sections": [11, 11, 10],
                    "image_token_id": 3, "vision_start_token_id": 4},
         "gemma3": {"mm.tokens_per_image": 256}, "mistral3": {"spatial_merge_size": 2, "image_token_index": 10, "mm.projector_bias": False, "vision.rope.freq_base": 10000.0}}
ADDED["qwen35moe"] = ADDED["qwen35"]
TENSORS = {"gpt-oss": {".attn_output.": ".attn_out.", ".attn_sinks.weight": ".attn_sinks", ".post_attention_norm.": ".ffn_norm."},
           "gemma4": {".ffn_down_exps.scale": ".ffn_gate_inp.per_expert_scale"}, "qwen35": {".ssm_dt.bias": ".ssm_dt"}, "qwen35moe": {".ssm_dt.bias": ".ssm_dt"},
           "qwen3next": {".ssm_dt.bias": ".ssm_dt"}, "laguna": {".attn_gate.": ".attn_g."}, "lfm2": {"token_embd_norm.": "output_norm."},
           "nemotron_h_moe": {".ffn_latent_down.": ".ffn_latent_in.", ".ffn_latent_up.": ".ffn_latent_out."}}
TOWERS = {"qwen35", "qwen35moe", "gemma3", "gemma4", "mistral3", "llama4", "qwen3vl", "qwen3vlmoe"}  # with a tower in the same file


def rewrite(meta, tensors, filler):
    """Returns the metadata and the tensors, [(name, ...)]. filler: what follows the name of a tensor of a tower."""
    arch, out = meta["general.architecture"], {}
    name = NAMES.get(arch, arch)
    for key, value in meta.items():
        own = key.removeprefix(arch + ".")
        if own == key:
            out[key] = value
        elif own not in LEFT_OUT.get(arch, ()):
            out[f"{name}.{KEYS.get(arch, {}).get(own, own)}"] = value
    out.update({f"{name}.{k}": v for k, v in ADDED.get(arch, {}).items()}, **{"general.architecture": name})
    if arch in ("qwen35", "qwen35moe", "qwen3next"):  # a number for each layer, 0 for those without attention
        every, heads = meta[f"{arch}.full_attention_interval"], meta[f"{arch}.attention.head_count_kv"]
        out[f"{name}.attention.head_count_kv"] = [heads * ((i + 1) % every == 0) for i in range(meta[f"{arch}.block_count"])]
    if name == "glm4moelite":  # sizes of heads as published
        head = meta["deepseek2.attention.key_length_mla"]
        out.update({f"{name}.attention.head_count_kv": meta["deepseek2.attention.head_count"], f"{name}.attention.key_length": head, f"{name}.attention.value_length": head,
                    f"{name}.attention.key_length_mla": meta["deepseek2.attention.key_length"], f"{name}.attention.value_length_mla": meta["deepseek2.attention.value_length"]})
        for key in ("expert_group_count", "expert_group_used_count"):
            out.pop(f"{name}.{key}", None)
    if arch == "gemma3":  # tokens of images without an embedding
        out["tokenizer.ggml.tokens"], out["tokenizer.ggml.token_type"] = [*meta["tokenizer.ggml.tokens"], "<image>"], [*meta["tokenizer.ggml.token_type"], 4]
    if name == "gptoss":
        out["tokenizer.ggml.pre"] = "default"
    renamed = []
    for tensor, *rest in tensors:
        for old, new in TENSORS.get(arch, {}).items():
            tensor = tensor.replace(old, new)
        renamed.append((tensor, *rest))
    if arch in TOWERS:
        out[f"{name}.vision.block_count"] = 27
        renamed += [(n, *filler) for n in ("v.blk.0.attn_q.weight", "mm.input_projection.weight", "a.blk.0.ln1.weight", "mtp.layers.0.norm.weight")]
    return out, renamed
