"""More small random models with experts, each as a pair of files (gguf_pair.py)."""
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
