"""More conversions of checkpoints to GGUF as llama.cpp's scripts do (gguf_convert.py)."""
import array
import math

from gguf_convert import Model, Tensor, adjacent, gguf_formats, llama3_factors, plus_one, qwen_delta


def mla(m, name="self_attn"):
    """What DeepSeek's attention has in common; the up-projection in two tensors, the keys' transposed."""
    c = m.config
    heads, nope, v = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
    m.key(attention__head_count_kv=1, attention__key_length=c["kv_lora_rank"] + c["qk_rope_head_dim"], attention__value_length=c["kv_lora_rank"],
          attention__key_length_mla=nope + c["qk_rope_head_dim"], expert_weights_scale=float(c["routed_scaling_factor"]))
    if c.get("q_lora_rank"):
        m.keys_of(attention__q_lora_rank="q_lora_rank")
    m.keys_of(attention__kv_lora_rank="kv_lora_rank", attention__value_length_mla="v_head_dim",
              rope__dimension_count="qk_rope_head_dim", feed_forward_length="intermediate_size", expert_feed_forward_length="moe_intermediate_size",
              expert_used_count="num_experts_per_tok", leading_dense_block_count="first_k_dense_replace", expert_weights_norm="norm_topk_prob")
    m.key(expert_count=m.first("n_routed_experts", "num_experts"), expert_shared_count=m.first("n_shared_experts", "num_shared_experts"))
    for i in range(m.layers):
        if f"layers.{i}.{name}.kv_b_proj.weight" not in m.source:
            continue
        both = m.take(f"layers.{i}.{name}.kv_b_proj.weight").shaped(heads, nope + v, c["kv_lora_rank"])
        m.put(f"blk.{i}.attn_k_b", both.each(lambda t: t.rows(range(nope)).turned()))
        m.put(f"blk.{i}.attn_v_b", both.each(lambda t: t.rows(range(nope, nope + v))))
    m.attention(name, ffn_norm="post_attention_layernorm", attn_q_a=name + ".q_a_proj", attn_q_a_norm=name + ".q_a_layernorm", attn_q_b=name + ".q_b_proj",
                attn_kv_a_mqa=name + ".kv_a_proj_with_mqa", attn_kv_a_norm=name + ".kv_a_layernorm", ffn_gate_inp="mlp.gate",
                exp_probs_b__bias="mlp.gate.e_score_correction_bias")
    m.dense()
    m.dense("mlp.shared_experts", "_shexp")
    m.experts("layers.{}.mlp.experts.{}.{}.weight")


def glm4_moe_lite(d):
    m = Model(d, "deepseek2")
    m.key(rope__freq_base=float(m.config["rope_theta"]), expert_gating_func=2, expert_group_count=1, expert_group_used_count=1)
    m.ends()
    mla(m)
    return m


def dots3note(d):
    """Norms of latents take in the roots of hidden / width. Both kinds of layers have one rank of queries and one width of the rotated part."""
    m = Model(d, "dots3note")
    c = m.config
    sliding = [i >= 2 and i % 4 != 1 for i in range(m.layers)]
    kv, rope = c["swa_kv_lora_rank"], c["qk_rope_head_dim"]
    assert c["swa_q_lora_rank"] == c["q_lora_rank"] and c["swa_head_dim"] - c["swa_qk_nope_head_dim"] == rope
    m.key(rope__freq_base=float(c["rope_theta"]), rope__freq_base_swa=float(c["swa_rope_theta"]), expert_gating_func=2, attention__sliding_window_pattern=sliding,
          attention__indexer__types=[not x for x in sliding], attention__key_length_swa=kv + rope, attention__value_length_swa=kv,
          attention__head_count=[c["swa_num_attention_heads" if x else "num_attention_heads"] for x in sliding])
    m.keys_of(attention__sliding_window="sliding_window_size", attention__kv_lora_rank_swa="swa_kv_lora_rank", attention__key_length_mla_swa="swa_head_dim",
              attention__value_length_mla_swa="swa_v_head_dim", attention__indexer__head_count="index_n_heads", attention__indexer__key_length="index_head_dim",
              attention__indexer__top_k="index_topk")
    m.ends()
    for i, window in enumerate(sliding):
        p, s = "swa_" if window else "", f"layers.{i}.self_attn."
        for name, width in (("q_a_layernorm.weight", c["q_lora_rank"]), ("kv_a_layernorm.weight", c[p + "kv_lora_rank"])):
            m.source[s + name] = m.source[s + name].map(lambda x, width=width: x * math.sqrt(c["hidden_size"] / width))
        nope, v = c[p + "qk_nope_head_dim"], c[p + "v_head_dim"]
        both = m.take(s + "kv_b_proj.weight").shaped(c[p + "num_attention_heads"], nope + v, c[p + "kv_lora_rank"])
        m.put(f"blk.{i}.attn_k_b", both.each(lambda t, nope=nope: t.rows(range(nope)).turned()))
        m.put(f"blk.{i}.attn_v_b", both.each(lambda t, nope=nope, v=v: t.rows(range(nope, nope + v))))
    m.each_layer(attn_gate="self_attn.g_proj", attn_k_norm="self_attn.k_rope_only_layernorm")
    mla(m)
    indexer(m)
    return m


def indexer(m):
    m.each_layer(indexer__attn_q_b="self_attn.indexer.wq_b", indexer__attn_k="self_attn.indexer.wk", indexer__k_norm="self_attn.indexer.k_norm",
                 indexer__k_norm__bias="self_attn.indexer.k_norm.bias", indexer__proj="self_attn.indexer.weights_proj")


def glm_dsa(d):
    m = Model(d, "glm-dsa")
    c = m.config
    m.key(rope__freq_base=float(c["rope_parameters"]["rope_theta"]), expert_gating_func=2, expert_group_count=1, expert_group_used_count=1,
          attention__indexer__types=[f"layers.{i}.self_attn.indexer.wk.weight" in m.source for i in range(m.layers)])
    m.keys_of(attention__indexer__head_count="index_n_heads", attention__indexer__key_length="index_head_dim", attention__indexer__top_k="index_topk")
    m.ends()
    mla(m)
    indexer(m)
    return m


def mistral4(d, arch="mistral4"):
    m = Model(d, arch, "language_model.model.")
    r = m.config["rope_parameters"]
    m.key(rope__freq_base=r["rope_theta"], rope__scaling__type="yarn", rope__scaling__factor=r["factor"],
          rope__scaling__original_context_length=r["original_max_position_embeddings"], rope__scaling__yarn_beta_fast=r["beta_fast"],
          rope__scaling__yarn_beta_slow=r["beta_slow"], rope__scaling__yarn_log_multiplier=0.1 * r["mscale_all_dim"],
          attention__temperature_scale=r["llama_4_scaling_beta"], attention__temperature_length=r["original_max_position_embeddings"], expert_gating_func=1)
    m.ends(head="language_model.lm_head")
    for i in range(m.layers):
        if arch == "mistral4":
            m.copy(f"blk.{i}.ffn_gate_up_exps", f"layers.{i}.mlp.experts.gate_up_proj")
        else:
            both = m.take(f"layers.{i}.mlp.experts.gate_up_proj")
            inter = both.shape[1] // 2
            m.put(f"blk.{i}.ffn_gate_exps", both.each(lambda t, inter=inter: t.rows(range(inter))))
            m.put(f"blk.{i}.ffn_up_exps", both.each(lambda t, inter=inter: t.rows(range(inter, 2 * inter))))
        m.copy(f"blk.{i}.ffn_down_exps", f"layers.{i}.mlp.experts.down_proj")
    mla(m)
    return m


def mistral_large3(d):
    """The converter writes the vendor's Mistral Large 3, which has the architecture of Mistral Small 4, as DeepSeek."""
    return mistral4(d, "deepseek2")


def usual_keys(m):
    m.keys_of(attention__key_length="head_dim", attention__value_length="head_dim", attention__head_count_kv="num_key_value_heads", expert_count="num_experts",
              expert_used_count="num_experts_per_tok")


def laguna(d):
    """The pattern of windows, which llama.cpp reads but its converter omits, because published models have its default."""
    m = Model(d, "laguna")
    c = m.config
    full, own = c["rope_parameters"]["full_attention"], c["rope_parameters"]["sliding_attention"]
    usual_keys(m)
    m.keys_of(attention__head_count="num_attention_heads_per_layer", attention__sliding_window="sliding_window", feed_forward_length="intermediate_size",
              expert_feed_forward_length="moe_intermediate_size", expert_shared_feed_forward_length="shared_expert_intermediate_size",
              expert_weights_scale="moe_routed_scaling_factor")
    m.key(attention__sliding_window_pattern=[t == "sliding_attention" for t in c["layer_types"]], expert_weights_norm=True, expert_gating_func=2,
          leading_dense_block_count=c["mlp_layer_types"].index("sparse"), rope__freq_base=full["rope_theta"], rope__freq_base_swa=own["rope_theta"],
          rope__dimension_count=int(c["head_dim"] * full["partial_rotary_factor"]), rope__dimension_count_swa=int(c["head_dim"] * own.get("partial_rotary_factor", 1)),
          rope__scaling__type="yarn", rope__scaling__factor=full["factor"], rope__scaling__original_context_length=full["original_max_position_embeddings"],
          rope__scaling__yarn_attn_factor=full["attention_factor"], rope__scaling__yarn_beta_fast=full["beta_fast"], rope__scaling__yarn_beta_slow=full["beta_slow"])
    m.ends()
    m.attention(attn_gate="self_attn.g_proj", ffn_norm="post_attention_layernorm", ffn_gate_inp="mlp.gate", exp_probs_b__bias="mlp.experts.e_score_correction_bias")
    m.dense()
    m.dense("mlp.shared_expert", "_shexp")
    m.experts("layers.{}.mlp.experts.{}.{}.weight")
    return m


def cohere2moe(d):
    m = Model(d, "cohere2moe")
    c = m.config
    usual_keys(m)
    del m.meta["cohere2moe.attention.layer_norm_rms_epsilon"]
    m.keys_of(attention__layer_norm_epsilon="layer_norm_eps", attention__sliding_window="sliding_window", feed_forward_length="prefix_dense_intermediate_size",
              expert_feed_forward_length="intermediate_size", expert_shared_count="num_shared_experts", leading_dense_block_count="first_k_dense_replace",
              logit_scale="logit_scale", vocab_size="vocab_size", rope__dimension_count="head_dim", expert_weights_norm="norm_topk_prob")
    dense, first, every = c["first_k_dense_replace"], c["prefix_dense_sliding_window_pattern"], c["sliding_window_pattern"]
    m.key(attention__sliding_window_pattern=[bool((i + 1) % first if i < dense else (i - dense + 1) % every) for i in range(m.layers)],
          rope__freq_base=float(c["rope_theta"]), rope__scaling__type="none",
          expert_shared_feed_forward_length=c["intermediate_size"] * c["num_shared_experts"], expert_gating_func={"softmax": 1, "sigmoid": 2}[c["expert_selection_fn"]])
    m.ends()
    m.attention(ffn_gate_inp="mlp.gate")
    m.dense()
    m.dense("mlp.shared_experts", "_shexp")
    m.experts("layers.{}.mlp.experts.{}.{}.weight")
    return m


def hy_v3(d):
    m = Model(d, "hy_v3")
    usual_keys(m)
    m.keys_of(feed_forward_length="intermediate_size", expert_feed_forward_length="moe_intermediate_size", expert_weights_norm="route_norm",
              expert_weights_scale="router_scaling_factor")
    m.key(rope__freq_base=m.config["rope_parameters"]["rope_theta"], expert_gating_func=2,
          expert_shared_feed_forward_length=m.config["moe_intermediate_size"] * m.config["num_shared_experts"])
    m.ends()
    m.attention(ffn_norm="post_attention_layernorm", ffn_gate_inp="mlp.router.gate")
    m.dense()
    m.dense("mlp.shared_mlp", "_shexp")
    m.experts("layers.{}.mlp.experts.{}.{}.weight")
    for i in range(m.layers):
        m.copy(f"blk.{i}.exp_probs_b", f"layers.{i}.mlp.expert_bias")
    return m


def deepseek32(d):
    m = Model(d, "deepseek32")
    r = m.config.get("rope_scaling") or {}
    m.key(rope__freq_base=float(m.config["rope_theta"]), expert_gating_func=2)
    if r:
        m.key(rope__scaling__type="yarn", rope__scaling__factor=float(r["factor"]), rope__scaling__original_context_length=r["original_max_position_embeddings"],
              rope__scaling__yarn_beta_fast=float(r["beta_fast"]), rope__scaling__yarn_beta_slow=float(r["beta_slow"]),
              rope__scaling__yarn_log_multiplier=0.1 * r["mscale_all_dim"])
    m.keys_of(expert_group_count="n_group", expert_group_used_count="topk_group", attention__indexer__head_count="index_n_heads",
              attention__indexer__key_length="index_head_dim", attention__indexer__top_k="index_topk")
    m.ends()
    mla(m)
    indexer(m)
    return m


HC = ("fn", "base", "scale")


def hy_v4(d):
    """Rotated pairs are neighbours in GGUF, which llama.cpp's converter takes for granted, and halves in transformers."""
    m = Model(d, "hy_v4")
    c = m.config
    rope, heads, key = c["qk_rope_head_dim"], c["num_attention_heads"], c["qk_nope_head_dim"] + c["qk_rope_head_dim"]

    def turned(name, n, dim):  # the last dimensions of each of n heads
        rows = [h * dim + (j if j < dim - rope else dim - rope + adjacent(1, rope)[j - dim + rope]) for h in range(n) for j in range(dim)]
        if name in m.source:
            m.source[name] = m.take(name).rows(rows)

    for i in range(m.layers):
        s = f"layers.{i}.self_attn."
        turned(s + "q_b_proj.weight", heads, key)
        turned(s + "kv_a_proj_with_mqa.weight", 1, c["kv_lora_rank"] + rope)
        turned(s + "indexer.wq_b.weight", c["index_n_heads"], c["index_head_dim"])
        for name in ("wk.weight", "k_norm.weight", "k_norm.bias"):
            turned(s + "indexer." + name, 1, c["index_head_dim"])
    m.key(rope__freq_base=float(c["rope_parameters"]["rope_theta"]), expert_gating_func=2, swiglu_clamp_exp=[float(c["swiglu_limit"])] * m.layers,
          attention__indexer__types=[t == "full" for t in c["indexer_types"][: m.layers]])
    m.keys_of(attention__indexer__head_count="index_n_heads", attention__indexer__key_length="index_head_dim", attention__indexer__top_k="index_topk",
              hyper_connection__count="hc_mult", hyper_connection__epsilon="hc_eps", hyper_connection__magnitude="hc_magnitude", vocab_size="vocab_size")
    c.setdefault("first_k_dense_replace", sum(t == "dense" for t in c.get("mlp_layer_types", ["dense"])))
    m.ends()
    mla(m)
    indexer(m)
    m.each_layer(attn_gate="self_attn.linear_gate")
    for i in range(m.layers):
        m.copy(f"blk.{i}.attn_sinks", f"layers.{i}.self_attn.learnable_sink_param")
        both, n = m.source.pop(f"layers.{i}.mlp.experts.gate_up_proj", None), c["moe_intermediate_size"]
        for k, g in enumerate(("gate", "up")):
            if both:
                m.put(f"blk.{i}.ffn_{g}_exps", both.each(lambda t: t.rows(range(k * n, k * n + n))))
        m.copy(f"blk.{i}.ffn_down_exps", f"layers.{i}.mlp.experts.down_proj")
        for part, name in (("attn", "attn"), ("ffn", "mlp")):
            for x in HC:
                m.copy(f"blk.{i}.hc_{part}_{x}", f"layers.{i}.hc_{name}_layer.hc_pre.hc_{x}")
    for x in HC:
        m.copy(f"output_hc_{x}", f"hc_head.hc_head_{x}")
    return m


def deepseek4(d):
    """All in float32, where llama.cpp's converter keeps FP4 and turns FP8 into Q8_0; with the biases of the model that sees."""
    m = Model(d, "deepseek4", "")
    c, n = m.config, m.layers
    r = c["rope_scaling"]
    kinds = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    m.key(attention__compress_ratios=c.get("compress_ratios") or [kinds[t] for t in c["layer_types"]])
    m.keys_of(attention__key_length="head_dim", attention__value_length="head_dim", expert_count="n_routed_experts",
              expert_used_count="num_experts_per_tok", expert_shared_count="n_shared_experts", expert_feed_forward_length="moe_intermediate_size",
              expert_weights_scale="routed_scaling_factor", rope__dimension_count="qk_rope_head_dim",
              attention__q_lora_rank="q_lora_rank", attention__sliding_window="sliding_window", attention__indexer__head_count="index_n_heads",
              attention__indexer__key_length="index_head_dim", attention__indexer__top_k="index_topk", attention__output_group_count="o_groups",
              attention__output_lora_rank="o_lora_rank", hyper_connection__count="hc_mult",
              hyper_connection__sinkhorn_iterations="hc_sinkhorn_iters", hyper_connection__epsilon="hc_eps", hash_layer_count="num_hash_layers")
    m.key(attention__head_count_kv=1, expert_gating_func=4, expert_weights_norm=True, swiglu_clamp_exp=[float(c["swiglu_limit"])] * n, swiglu_clamp_shexp=[float(c["swiglu_limit"])] * n,
          rope__freq_base=float(c["rope_theta"]), attention__compress_rope_freq_base=float(c["compress_rope_theta"]), embedding_length_out=c["hidden_size"] * c["hc_mult"],
          rope__scaling__type="yarn", rope__scaling__factor=float(r["factor"]), rope__scaling__original_context_length=r["original_max_position_embeddings"],
          rope__scaling__yarn_beta_fast=float(r["beta_fast"]), rope__scaling__yarn_beta_slow=float(r["beta_slow"]))
    m.ends("embed", "norm", "head")
    m.each_layer(attn_norm="attn_norm", ffn_norm="ffn_norm", attn_q_a="attn.wq_a", attn_q_a_norm="attn.q_norm", attn_q_b="attn.wq_b", attn_kv="attn.wkv",
                 attn_kv_a_norm="attn.kv_norm", attn_output_a="attn.wo_a", attn_output_b="attn.wo_b", attn_compressor_kv="attn.compressor.wkv",
                 attn_compressor_gate="attn.compressor.wgate", attn_compressor_norm="attn.compressor.norm", indexer_compressor_kv="attn.indexer.compressor.wkv",
                 indexer_compressor_gate="attn.indexer.compressor.wgate", indexer_compressor_norm="attn.indexer.compressor.norm",
                 indexer__attn_q_b="attn.indexer.wq_b", indexer__proj="attn.indexer.weights_proj", ffn_gate_inp="ffn.gate")
    m.each_layer(**{f"ffn_{g}_shexp": f"ffn.shared_experts.{w}" for g, w in (("gate", "w1"), ("up", "w3"), ("down", "w2"))})
    m.experts("layers.{}.ffn.experts.{}.{}.weight", ("w1", "w3", "w2"))
    for i in range(n):
        m.copy(f"blk.{i}.attn_sinks", f"layers.{i}.attn.attn_sink")
        m.copy(f"blk.{i}.attn_compressor_ape", f"layers.{i}.attn.compressor.ape")
        m.copy(f"blk.{i}.indexer_compressor_ape", f"layers.{i}.attn.indexer.compressor.ape")
        for part in ("attn", "ffn"):
            for x in HC:
                m.copy(f"blk.{i}.hc_{part}_{x}", f"layers.{i}.hc_{part}_{x}")
        if i < c["num_hash_layers"]:
            table = m.take(f"layers.{i}.ffn.gate.tid2eid")
            m.put(f"blk.{i}.ffn_gate_tid2eid", Tensor(table.shape, array.array("i", table.values)))
        else:
            m.copy(f"blk.{i}.exp_probs_b.bias", f"layers.{i}.ffn.gate.bias")
        m.put(f"blk.{i}.exp_probs_b_vl.bias", Tensor([c["n_routed_experts"]], [0.5] * c["n_routed_experts"]))  # of images
    for x in HC:
        m.copy(f"output_hc_{x}", f"hc_head_{x}")
    return m


def kda(m, name, rate, low):
    """Kimi delta attention. rate: what is stored of A_log. low: projections of decays and gates in two parts."""
    each = {f"ssm_{g}_{x}": f"{name}.{g}_{x}_proj" for g in "fg" for x in "ab"} if low else {"ssm_f_a": name + ".f_proj"}
    m.each_layer(ssm_beta=name + ".b_proj", ssm_dt__bias=name + ".dt_bias", ssm_norm=name + ".o_norm", **each)
    for i in range(m.layers):
        s = f"layers.{i}.{name}."
        if s + "A_log" not in m.source:
            continue
        heads, taps = m.config["num_attention_heads"], m.source[s + "q_conv1d.weight"].shape[-1]
        m.put(f"blk.{i}.ssm_a", m.take(s + "A_log").map(rate).shaped(*([heads] if low else [heads, 1])))
        for g in "qkv":
            conv = m.take(f"{s}{g}_conv1d.weight")
            m.put(f"blk.{i}.ssm_conv1d_{g}", conv.shaped(1, conv.shape[0], 1, taps))


def bailingmoe3(d):
    m = Model(d, "bailingmoe3")
    c = m.config
    period = c["layer_group_size"]
    attends = [(i + 1) % period == 0 or i >= m.layers // period * period for i in range(m.layers)]
    m.ends("word_embeddings")
    mla(m, "attention")
    m.key(attention__head_count_kv=[int(a) for a in attends], attention__value_length=c["head_dim"], expert_gating_func=2, rope__freq_base=float(c["rope_theta"]),
          kda__safe_gate=True, kda__gate_lower_bound=float(c["kda_lower_bound"]), expert_shared_feed_forward_length=c["moe_intermediate_size"] * c["num_shared_experts"])
    m.keys_of(vocab_size="vocab_size", ssm__conv_kernel="short_conv_kernel_size", kda__head_dim="head_dim", expert_group_count="n_group",
              expert_group_used_count="topk_group")
    kda(m, "attention", math.exp, False)
    m.each_layer(attn_output="attention.dense", exp_probs_b__bias="mlp.gate.expert_bias")
    for i in range(m.layers):
        m.copy(f"blk.{i}.{'attn_gate' if attends[i] else 'ssm_g_a'}", f"layers.{i}.attention.g_proj.weight")
    return m


def kimi_k3(d):
    m = Model(d, "kimi-k3", "language_model.model.")
    c = m.config
    linear = c["linear_attn_config"]
    attends = [i + 1 in linear["full_attn_layers"] for i in range(m.layers)]
    m.config.update(num_experts_per_tok=c["num_experts_per_token"], norm_topk_prob=c["moe_renormalize"])
    m.ends(head="language_model.lm_head")
    mla(m)
    m.key(attention__head_count_kv=[int(a) for a in attends], expert_gating_func=2, ssm__conv_kernel=linear["short_conv_kernel_size"],
          kda__head_dim=linear["head_dim"], kda__gate_lower_bound=float(linear["gate_lower_bound"]), activation__situ_beta=float(c["activation_situ_beta"]),
          activation__situ_linear_beta=float(c["activation_situ_linear_beta"]))
    m.keys_of(vocab_size="vocab_size", expert_latent_length="routed_expert_hidden_size", attn_res__block_size="attn_res_block_size")
    for i in range(m.layers):
        s = f"layers.{i}.self_attn."
        m.copy(f"blk.{i}.{'attn_gate' if attends[i] else 'ssm_g'}", s + "g_proj.weight")
        if s + "A_log" in m.source:  # with padding
            m.source[s + "A_log"] = Tensor([linear["num_heads"]], m.source[s + "A_log"].values[:linear["num_heads"]])
        for name, end in (("self_attention_res", "attn_res_score"), ("mlp_res", "ffn_res_score")):
            fuse_residuals(m, f"blk.{i}.{end}", f"layers.{i}.{name}")
    fuse_residuals(m, "output_res_score", "output_attn_res")
    kda(m, "self_attn", lambda x: -math.exp(x), True)
    sparse = "block_sparse_moe."
    m.each_layer(ffn_gate_inp=sparse + "gate", exp_probs_b__bias=sparse + "gate.e_score_correction_bias",
                 **{f"ffn_routed_{x}": f"{sparse}routed_expert_{y}" for x, y in (("down", "down_proj"), ("up", "up_proj"), ("norm", "norm"))})
    m.experts("layers.{}.block_sparse_moe.experts.{}.{}.weight", ("w1", "w3", "w2"))
    m.dense(sparse + "shared_experts", "_shexp")
    return m


def fuse_residuals(m, to, name):
    """The query of an attention residual times the factors of its norm."""
    if f"{name}_proj.weight" in m.source:
        query, factors = m.take(f"{name}_proj.weight"), m.take(f"{name}_norm.weight")
        m.put(to, Tensor([len(factors.values)], [a * b for a, b in zip(query.values, factors.values)]))


def glm5_next(d):
    m = Model(d, "glm5-next", "model.language_model.")
    c, n = m.config, m.layers
    linear = c["linear_attn_config"]
    m.ends()
    mla(m)
    indexer(m)
    m.key(attention__head_count_kv=[int(t != "linear_attention") for t in c["layer_types"]], attention__layer_norm_epsilon=1e-6, expert_gating_func=2,
          ssm__conv_kernel=linear["short_conv_kernel_size"], kda__head_dim=linear["head_dim"], kda__gate_lower_bound=float(linear["gate_lower_bound"]),
          attention__indexer__types=[t == "full" for t in c["indexer_types"]], swiglu_clamp_exp=[float(c["swiglu_limit"])] * n,
          swiglu_clamp_shexp=[float(c["swiglu_limit"])] * n)
    m.keys_of(vocab_size="vocab_size", attention__indexer__head_count="index_n_heads", attention__indexer__key_length="index_head_dim",
              attention__indexer__top_k="index_topk", attention__indexer__kpool="index_kpool",
              attention__indexer__kpool_select_tail="index_kpool_always_select_tail", hyper_connection__count="hc_mult",
              hyper_connection__sinkhorn_iterations="hc_sinkhorn_iters", hyper_connection__epsilon="hc_eps", expert_group_count="n_group",
              expert_group_used_count="topk_group")
    kda(m, "self_attn", lambda x: -math.exp(x), True)
    for i in range(n):
        for x in ("ape", "gate"):
            m.copy(f"blk.{i}.indexer_compressor_{x}", f"layers.{i}.self_attn.indexer.index_kpool_compress_{x}")
        for part in ("attn", "ffn"):
            for x in HC:
                m.copy(f"blk.{i}.hc_{part}_{x}", f"layers.{i}.hc_{part}_{x}")
    return m


def qwen4exp(d):
    m = Model(d, "qwen4exp", "model.language_model.")
    c = m.config
    m.keys_of(expert_count="num_experts", expert_used_count="num_experts_per_tok", expert_feed_forward_length="moe_intermediate_size",
              expert_shared_feed_forward_length="shared_expert_intermediate_size", hyper_connection__count="hc_count", hyper_connection__low_rank="hc_lowrank",
              attention__indexer__head_count="indexer_n_heads", attention__indexer__key_length="indexer_head_dim", attention__indexer__top_k="indexer_budget",
              ple__ngram_size="ngram_size", ple__heads_per_ngram="heads_per_ngram", ple__conv_kernel="ple_conv_kernel_size", ple__eos_token_id="eos_token_id")
    attends = [t == "full_attention" for t in c["layer_types"]]
    m.key(attention__recurrent_layers=[not a for a in attends], attention__compress_ratios=[c["indexer_compress_ratio"] * a for a in attends],
          ple__layers=[i - 1 for i in c["ple_layer_ids"]])
    plus_one(m)
    qwen_delta(m)
    hyper = {"norm": "hc_norm", "down": "input_mix_weight_down", "up": "input_mix_weight_up", "inject": "block_inject_weight"}
    for part, name in (("attn", "attn"), ("ffn", "mlp")):
        m.each_layer(**{f"hc_{part}_{x}": f"{name}_hyper_connection.{y}" for x, y in hyper.items()})
    for x in ("norm", "down", "up"):
        m.copy(f"output_hc_{x}", f"hyper_connection_mixer.{hyper[x]}.weight")
    m.each_layer(indexer__q_norm="self_attn.indexer.q_layernorm", indexer__k_norm="self_attn.indexer.k_layernorm", ple_key="ple.key_proj", ple_value="ple.value_proj")
    for i in range(m.layers):
        if attends[i]:
            q, k = m.take(f"layers.{i}.self_attn.indexer.index_qk_proj.weight").parts(c["indexer_n_heads"] * c["indexer_head_dim"], c["indexer_head_dim"])
            m.put(f"blk.{i}.indexer.q_proj", q)
            m.put(f"blk.{i}.indexer.k_proj", k)
        s = f"layers.{i}.ple."
        if s + "conv1d.weight" not in m.source:
            continue
        conv = m.take(s + "conv1d.weight")
        m.put(f"blk.{i}.ple_conv1d", conv.shaped(conv.shape[0], conv.shape[2]))
        for x in ("key", "query", "conv"):
            m.put(f"blk.{i}.ple_norm_{x}", m.take(f"{s}norm_{x}.weight").map(lambda v: v + 1))
        for key, name in (("layer_multipliers", "layer_multipliers"), ("head_offsets", "ngram_heads_offsets"), ("head_vocab_sizes", "ngram_heads_vocab_sizes")):
            m.key(**{"ple__" + key: (gguf_formats.U64, list(m.take(f"{s}ple_embedding.{name}").values))})
        parts = [m.take(f"{s}ple_embedding.ngram_embedding.shard_{k}.weight") for k in range(c["split_ngram_parts"])]
        m.key(embedding_length_per_layer_input=parts[0].shape[1])
        m.put("per_layer_token_embd", Tensor([sum(p.shape[0] for p in parts), parts[0].shape[1]], [x for p in parts for x in p.values]))
    return m


def deci(d):
    """Nemotron NAS: heads and widths by layer, 0 where a layer lacks the part."""
    m = Model(d, "deci")
    c = m.config
    heads, dim = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
    widths = [0 if b["ffn"]["no_op"] else -(-int(2 * b["ffn"]["ffn_mult"] * c["hidden_size"] / 3) // 256) * 256 for b in c["block_configs"]]
    kv = [0 if b["attention"]["no_op"] else heads // b["attention"]["n_heads_in_group"] for b in c["block_configs"]]
    m.key(attention__head_count=[heads * (n > 0) for n in kv], attention__head_count_kv=kv, feed_forward_length=widths, rope__freq_base=float(c["rope_theta"]), rope__dimension_count=dim)
    m.ends()
    m.put("rope_freqs", llama3_factors(c["rope_scaling"], c["rope_theta"], dim))
    for i, n in enumerate(kv):
        for g, of in (("q", heads), ("k", n)) if n else ():
            m.put(f"blk.{i}.attn_{g}", m.take(f"layers.{i}.self_attn.{g}_proj.weight").rows(adjacent(of, dim)))
    m.attention(ffn_norm="post_attention_layernorm")
    m.dense()
    return m


def falcon_h1(d):
    """All factors become weights."""
    m = Model(d, "falcon-h1")
    c = m.config
    m.keys_of(attention__head_count_kv="num_key_value_heads", attention__key_length="head_dim", attention__value_length="head_dim", feed_forward_length="intermediate_size",
              ssm__conv_kernel="mamba_d_conv", ssm__inner_size="mamba_d_ssm", ssm__state_size="mamba_d_state", ssm__time_step_rank="mamba_n_heads", ssm__group_count="mamba_n_groups")
    m.key(rope__freq_base=float(c["rope_theta"]))

    def times(name, factor):
        m.source[name] = m.source[name].map(lambda x: x * factor)
    times("embed_tokens.weight", c["embedding_multiplier"])
    times("lm_head.weight", c["lm_head_multiplier"])
    sizes = [c["mamba_d_ssm"]] * 2 + [c["mamba_n_groups"] * c["mamba_d_state"]] * 2 + [c["mamba_n_heads"]]
    for i in range(m.layers):
        p = f"layers.{i}."
        for name, factor in (("self_attn.q_proj", c["attention_in_multiplier"]), ("self_attn.k_proj", c["attention_in_multiplier"] * c["key_multiplier"]),
                             ("self_attn.v_proj", c["attention_in_multiplier"]), ("self_attn.o_proj", c["attention_out_multiplier"]),
                             ("mamba.out_proj", c["ssm_out_multiplier"]), ("feed_forward.gate_proj", c["mlp_multipliers"][0]), ("feed_forward.down_proj", c["mlp_multipliers"][1])):
            times(f"{p}{name}.weight", factor)
        parts, out = m.source[p + "mamba.in_proj.weight"].parts(*sizes), array.array("f")
        for part, factor in zip(parts, c["ssm_multipliers"]):
            out.extend(x * factor * c["ssm_in_multiplier"] for x in part.values)
        m.source[p + "mamba.in_proj.weight"] = Tensor([sum(sizes), c["hidden_size"]], out)
    m.ends(norm="final_layernorm")
    m.attention(ffn_norm="pre_ff_layernorm")
    m.dense("feed_forward")
    m.mamba("mamba", c["mamba_n_groups"])
    m.out = [(name.replace("ffn_norm.weight", "ffn_norm"), t) for name, t in m.out]
    return m


def apertus(d):
    m = Model(d, "apertus")
    c = m.config
    dim = c["hidden_size"] // c["num_attention_heads"]
    m.keys_of(attention__head_count_kv="num_key_value_heads", feed_forward_length="intermediate_size")
    m.key(rope__freq_base=float(c["rope_theta"]), rope__dimension_count=dim)
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        m.meta["xielu." + name] = [float(m.take(f"layers.{i}.mlp.act_fn.{name}").values[0]) for i in range(m.layers)]
    m.ends()
    m.put("rope_freqs", llama3_factors(c["rope_scaling"], c["rope_theta"], dim))
    for i in range(m.layers):
        m.source[f"layers.{i}.input_layernorm.weight"] = m.take(f"layers.{i}.attention_layernorm.weight")
    m.attention(ffn_norm="feedforward_layernorm", ffn_up="mlp.up_proj", ffn_down="mlp.down_proj")
    return m
