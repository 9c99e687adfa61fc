"""More conversions of checkpoints to GGUF as llama.cpp's scripts do (gguf_convert.py)."""
import gguf_convert
from gguf_convert import Model, mla


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
        if f"layers.{i}.mlp.expert_bias" in m.source:
            m.out.append((f"blk.{i}.exp_probs_b", m.take(f"layers.{i}.mlp.expert_bias")))
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
    gguf_convert.indexer(m)
    return m
