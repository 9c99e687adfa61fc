"""More small random models with experts, each as a pair of files (gguf_pair.py)."""
import array

from gguf_pair import Pair, usual, gqa, experts, dense


def mellum(fmt):
    """Windows in three of four layers, YaRN in the others only."""
    p = Pair("mellum", fmt, 61)
    usual(p, layers=4)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512,
          expert_feed_forward_length=256, attention__sliding_window=24, attention__sliding_window_pattern=[True, True, True, False], rope__freq_base=5e5,
          rope__freq_base_swa=5e5, rope__scaling__type="yarn", rope__scaling__factor=16.0, rope__scaling__original_context_length=64,
          rope__scaling__yarn_beta_fast=32.0, rope__scaling__yarn_beta_slow=1.0)
    p.config.update(model_type="mellum", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256, num_experts=4,
                    norm_topk_prob=True, sliding_window=24, layer_types=["sliding_attention"] * 3 + ["full_attention"], mlp_layer_types=["sparse"] * 4,
                    rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 16.0, "original_max_position_embeddings": 64,
                                                        "beta_fast": 32.0, "beta_slow": 1.0},
                                     "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}})
    for i in range(4):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
    return p


def ling1(fmt):
    """q, k and v in one published matrix; rotated pairs are neighbours in GGUF."""
    p = Pair("bailingmoe", fmt, 62)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, rope__dimension_count=64, rope__freq_base=6e5, feed_forward_length=512, expert_feed_forward_length=256,
          expert_shared_count=2, leading_dense_block_count=0, expert_weights_scale=1.0, expert_weights_norm=True, vocab_size=288)
    p.config.update(model_type="bailing_moe", num_attention_heads=4, num_key_value_heads=2, rope_theta=6e5, intermediate_size=512, moe_intermediate_size=256,
                    num_experts=4, num_shared_experts=2, first_k_dense_replace=0, norm_topk_prob=True)
    p.hf["model.word_embeddings.weight"] = p.hf.pop("model.embed_tokens.weight")
    for i in range(2):
        h = f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, permute=True)
        q, k, v = (p.hf.pop(f"{h}self_attn.{g}_proj.weight")[1] for g in "qkv")
        p.hf[h + "attention.query_key_value.weight"] = ([512, 256], q + k + v)
        p.hf[h + "attention.dense.weight"] = p.hf.pop(h + "self_attn.o_proj.weight")
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        dense(p, i, 256, 512, "mlp.shared_experts", "_shexp")
    return p


def minimax01(fmt):
    """Lightning attention in two of three layers. One scale for all blocks, which GGUF has no more of."""
    p = Pair("minimax-01", fmt, 63)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, rope__dimension_count=32, rope__freq_base=1e7,
          feed_forward_length=256, residual_scale=1.75, attention__recurrent_layers=[True, True, False])
    p.config.update(model_type="minimax_text_01", num_attention_heads=4, num_key_value_heads=2, head_dim=64, rotary_dim=32, rope_theta=1e7, intermediate_size=256,
                    num_local_experts=4, postnorm=True, attn_type_list=[0, 0, 1],
                    **{f"layernorm_{x}_alpha": 1.75 for x in ("full_attention", "linear_attention", "mlp")})
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
        if i == 2:
            gqa(p, i, 256, 4, 2, 64)
            continue
        p.norm(b + "attn_norm", 256, h + "input_layernorm.weight")
        p.norm(b + "ffn_norm", 256, h + "post_attention_layernorm.weight")
        p.both(b + "attn_qkv", [768, 256], h + "self_attn.qkv_proj.weight")
        p.both(b + "attn_gate", [256, 256], h + "self_attn.output_gate.weight")
        p.norm(b + "attn_norm_2", 256, h + "self_attn.norm.weight")
        p.both(b + "attn_output", [256, 256], h + "self_attn.out_proj.weight")
    return p


def minimax_m3(fmt):
    """A dense layer, and two whose groups of heads see selected blocks of keys; GGUF's norms include the 1."""
    p = Pair("minimax-m3", fmt, 64)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, rope__dimension_count=32, rope__freq_base=5e6,
          feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=1, expert_weights_scale=2.0, expert_weights_norm=True, expert_gating_func=2,
          leading_dense_block_count=1, attention__indexer__head_count=2, attention__indexer__key_length=64, attention__indexer__top_k=3,
          attention__indexer__block_size=8, attention__indexer__local_blocks=1)
    p.config.update(num_attention_heads=4, num_key_value_heads=2, head_dim=64, rotary_dim=32, partial_rotary_factor=0.5, rope_theta=5e6, dense_intermediate_size=512,
                    intermediate_size=256, shared_intermediate_size=256, num_local_experts=4, routed_scaling_factor=2.0, moe_layer_freq=[0, 1, 1],
                    sparse_attention_config={"sparse_attention_freq": [0, 1, 1], "sparse_num_index_heads": 2, "sparse_index_dim": 64, "sparse_block_size": 8,
                                             "sparse_topk_blocks": 3, "sparse_local_block": 1})
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, qk_norm=True)
        if not i:
            dense(p, i, 256, 512, "mlp")
            continue
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
        dense(p, i, 256, 256, "block_sparse_moe.shared_experts", "_shexp")
        p.both(b + "exp_probs_b.bias", [4], h + "block_sparse_moe.e_score_correction_bias", "F32", 0.05)
        for g, n in (("q", 128), ("k", 64)):
            p.both(f"{b}indexer.{g}_proj", [n, 256], f"{h}self_attn.index_{g}_proj.weight", "F32")
            p.norm(f"{b}indexer.{g}_norm", 64, f"{h}self_attn.index_{g}_norm.weight")
    p.hf = {"language_model." + n: (s, array.array("f", [x - 1 for x in f]) if n.endswith("norm.weight") else f) for n, (s, f) in p.hf.items()}
    p.config = {"model_type": "minimax_m3_vl", "vocab_size": 288, "hidden_act": "swigluoai", "text_config": p.config}
    return p


def deepseek_v1(fmt):
    """Llama's attention; a dense layer, then softmax routers whose weights are not normed."""
    p = Pair("deepseek", fmt, 65)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=2, rope__dimension_count=64, rope__freq_base=1e4, feed_forward_length=512,
          expert_feed_forward_length=256, expert_shared_count=2, leading_dense_block_count=1, expert_weights_scale=1.0, vocab_size=288)
    p.config.update(model_type="deepseek", num_attention_heads=4, num_key_value_heads=2, rope_theta=1e4, intermediate_size=512, moe_intermediate_size=256,
                    n_routed_experts=4, n_shared_experts=2, first_k_dense_replace=1, moe_layer_freq=1, norm_topk_prob=False, scoring_func="softmax")
    for i in range(3):
        gqa(p, i, 256, 4, 2, 64, permute=True)
        if not i:
            dense(p, i, 256, 512, "mlp")
            continue
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        dense(p, i, 256, 512, "mlp.shared_experts", "_shexp")
    return p


def arctic(fmt):
    """A dense FFN of the model's width beside experts, which read the stream before attention."""
    p = Pair("arctic", fmt, 66)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=512, rope__freq_base=1e4, rope__dimension_count=64, vocab_size=288)
    p.config.update(model_type="arctic", num_attention_heads=4, num_key_value_heads=2, intermediate_size=512, num_local_experts=4, rope_theta=1e4,
                    moe_layer_frequency=1, parallel_attn_mlp_res=True, use_residual=True, sliding_window=None, quantization=None)
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, permute=True)
        p.hf[h + "residual_layernorm.weight"] = p.hf.pop(h + "post_attention_layernorm.weight")
        p.norm(b + "ffn_norm_exps", 256, h + "post_attention_layernorm.weight")
        experts(p, i, 256, 512, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
        for g, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            p.both(f"{b}ffn_{g}", [256, 256], f"{h}residual_mlp.{name}.weight")
    return p


def smallthinker(fmt, window=0):
    """Routers read the stream before attention, experts have ReLU gates. With a window the first of four layers has none and no rotation; then weights of
    the chosen experts are a softmax."""
    p = Pair("smallthinker", fmt, 67)
    layers = 5 if window else 2
    usual(p, layers=layers)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=256,
          expert_feed_forward_length=256, rope__freq_base=1.5e6, rope__dimension_count=64, expert_gating_func=1 if window else 2)
    layout = [int(i % 4 != 0) for i in range(layers)]
    p.config.update(model_type="smallthinker", num_attention_heads=4, num_key_value_heads=2, head_dim=64, rope_theta=1.5e6, moe_num_primary_experts=4,
                    moe_num_active_primary_experts=2, moe_ffn_hidden_size=256, moe_primary_router_apply_softmax=window > 0, rope_scaling=None,
                    sliding_window_layout=layout if window else [0] * layers, rope_layout=layout if window else [1] * layers)
    if window:
        p.key(attention__sliding_window=window)
        p.config["sliding_window_size"] = window
    del p.config["num_experts_per_tok"]
    p.leaves_out.append("hidden_act")
    for i in range(layers):
        gqa(p, i, 256, 4, 2, 64)
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("gate", "up", "down"), "block_sparse_moe.primary_router.weight")
    return p


def grok(fmt, second=True):
    """Capped scores, norms around both blocks, GELU. The second generation has a dense FFN beside the experts; the first ties its embedding to the head,
    omits the keys of its factors, and has an older name of the last norm."""
    p = Pair("grok", fmt, 68)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=512, rope__freq_base=1e4, rope__dimension_count=64)
    p.config.update(model_type="grok", num_attention_heads=4, num_key_value_heads=2, intermediate_size=512, num_local_experts=4, rope_theta=1e4)
    if second:
        p.key(attention__key_length=64, attention__value_length=64, attention__output_scale=0.2, attention__temperature_length=1024, embedding_scale=16.0,
              logit_scale=0.5, attn_logit_softcapping=3.0, router_logit_softcapping=2.0, final_logit_softcapping=5.0, expert_feed_forward_length=256)
        p.config.update(head_dim=64, attn_output_multiplier=0.2, attn_temperature_len=1024, embedding_multiplier_scale=16.0, output_multiplier_scale=0.5,
                        attn_logit_softcapping=3.0, router_logit_softcapping=2.0, final_logit_softcapping=5.0, moe_intermediate_size=256, residual_moe=True)
    else:
        p.config.update(attn_output_multiplier=0.08838834764831845)
    p.leaves_out.append("hidden_act")
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64)
        for old, new in (("input_layernorm", "pre_attn_norm"), ("post_attention_layernorm", "pre_moe_norm")):
            p.hf[f"{h}{new}.weight"] = p.hf.pop(f"{h}{old}.weight")
        p.norm(b + "attn_output_norm", 256, h + "post_attn_norm.weight")
        p.norm(b + ("post_ffw_norm" if second else "layer_output_norm"), 256, h + "post_moe_norm.weight")
        experts(p, i, 256, 256 if second else 512, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
        if second:
            dense(p, i, 256, 512, "mlp")
    return p


def maple(fmt, limit=True):
    """Windows with heads of which a part turns in three of four layers, none turns in the others; clamped activations."""
    p = Pair("maple", fmt, 66)
    usual(p, layers=4)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512, rope__freq_base=1e4,
          expert_feed_forward_length=256, attention__sliding_window=24, attention__sliding_window_pattern=[True, True, True, False], rope__dimension_count=32,
          vocab_size=288)
    if limit:
        p.key(swiglu_clamp_exp=[7.0] * 4)
    p.config.update(model_type="maple", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256, num_experts=4,
                    norm_topk_prob=True, sliding_window=24, layer_types=["sliding_attention"] * 3 + ["full_attention"], rope_theta=1e4, partial_rotary_factor=0.5,
                    nope_on_global_attention=True)
    p.hf["model.word_embeddings.weight"] = p.hf.pop("model.embed_tokens.weight")
    for i in range(4):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
    return p


def k2_horizon(fmt):
    """Values from experts behind a dense layer; norms of parts of the stream; gates of every element."""
    p = Pair("k2-horizon", fmt, 67)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512, rope__freq_base=1e7,
          expert_feed_forward_length=256, expert_shared_count=1, expert_shared_feed_forward_length=256, leading_dense_block_count=1, moe_every_n_layers=1,
          expert_weights_norm=True, expert_weights_scale=2.5, expert_gating_func=2, attention__group_norm_groups=2, attention__value_expert_count=3,
          attention__value_expert_used_count=2, rope__dimension_count=64)
    p.config.update(model_type="k2_horizon", num_attention_heads=4, num_key_value_heads=2, head_dim=64, rope_head_dim=64, rope_theta=1e7, intermediate_size=512,
                    moe_intermediate_size=256, num_experts=4, num_shared_experts=1, mlp_only_layers=[0], norm_topk_prob=True, router_scaling_factor=2.5,
                    router_score_func="sigmoid", moe_gate_bias=True, layernorm_num_groups=2, attention_gate_func="softplus", mova_num_experts=3,
                    mova_num_experts_per_tok=2)
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64)
        p.both(b + "attn_gate", [256, 256], h + "self_attn.gate_proj.weight")
        if not i:
            dense(p, i, 256, 512, "mlp")
            continue
        p.gguf = [t for t in p.gguf if t[0] != b + "attn_v.weight"]
        del p.hf[h + "self_attn.v_proj.weight"]
        p.both(b + "attn_v_gate", [3, 256], h + "self_attn.v_router.weight", "F32")
        p.both(b + "attn_v_gate.bias", [3], h + "self_attn.v_router.bias", "F32", 0.05)
        p.both(b + "attn_v_exps", [3, 128, 256], [f"{h}self_attn.v_experts.{e}.weight" for e in range(3)])
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        p.both(b + "exp_probs_b.bias", [4], h + "mlp.gate.bias", "F32", 0.05)
        dense(p, i, 256, 256, "mlp.shared_experts", "_shexp")
    return p
