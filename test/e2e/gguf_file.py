"""Makes GGUF files of small random models of each architecture, as a pair: a GGUF file, and the same weights as safetensors in
float32 under the family's names. MODELS names all; here are those with experts."""
import array
import math

import gguf_normed
from gguf_dense import arcee, chatglm, internlm2, minicpm3, cohere2, exaone, command_r, exaone4, hunyuan_dense, ernie4_5, lfm2, llama_dense, qwen2, qwen3, gemma2, gemma3, phi3, smollm3, glm4, glm4v, gemma, olmo2, seed_oss, granite, minicpm, mistral3, muse_glimmer, nemotron
from gguf_families import arctic, deepseek_v1, grok, k2_horizon, ling1, maple, mellum, minimax01, minimax_m3, smallthinker
from gguf_pair import vocabulary, Pair, usual, gqa, experts, dense, together


def qwen3moe(fmt, seed=1, fused=False):
    p = Pair("qwen3moe", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512,
          expert_feed_forward_length=256, rope__freq_base=1e6)
    p.config.update(model_type="qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256,
                    num_experts=4, norm_topk_prob=True, rope_theta=1e6)
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
    if fused:
        together(p, 2)
    return p


def mixed(fmt, seed=9):
    """Layers whose experts are stored in different formats, gate and up in another one than down, as quantizers choose by layer."""
    p = Pair("qwen3moe", fmt, seed)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512,
          expert_feed_forward_length=256, rope__freq_base=1e6)
    p.config.update(model_type="qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256,
                    num_experts=4, norm_topk_prob=True, rope_theta=1e6)
    for i, (up, down) in enumerate(((fmt, "Q8_0"), ("IQ2_XS", "IQ3_S"), ("Q8_0", "BF16"))):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True)
        p.fmt = up
        experts(p, i, 256, 256, 4, "mlp.experts.{}.", down=down)
        p.fmt = fmt
    return p


def qwen2moe(fmt, seed=2):
    p = Pair("qwen2moe", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_feed_forward_length=512,
          rope__freq_base=1e6)
    p.config.update(model_type="qwen2_moe", num_attention_heads=4, num_key_value_heads=2, intermediate_size=512, moe_intermediate_size=256,
                    shared_expert_intermediate_size=512, num_experts=4, norm_topk_prob=False, rope_theta=1e6)
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64, bias=True)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        dense(p, i, 256, 512, "mlp.shared_expert", "_shexp")
        p.both(f"blk.{i}.ffn_gate_inp_shexp", [256], f"model.layers.{i}.mlp.shared_expert_gate.weight", "F32")
        shape, f = p.hf[f"model.layers.{i}.mlp.shared_expert_gate.weight"]
        p.hf[f"model.layers.{i}.mlp.shared_expert_gate.weight"] = ([1, 256], f)
    return p


def llama(fmt, seed=3, freqs=False):
    """freqs: Llama 3's stretched frequencies, which llama.cpp stores as a tensor of factors."""
    p = Pair("llama", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=256, rope__freq_base=1e6, rope__dimension_count=64, vocab_size=288)
    p.config.update(model_type="mixtral", num_attention_heads=4, num_key_value_heads=2, intermediate_size=256, num_local_experts=4, rope_theta=1e6)
    if freqs:
        p.config["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        factors = []
        for j in range(32):
            wave = 2 * math.pi * 1e6 ** (j / 32)
            smooth = (64 / wave - 1) / 3
            factors.append(1.0 if wave < 16 else 8.0 if wave > 64 else 1 / ((1 - smooth) / 8 + smooth))
        p.gguf.append(("rope_freqs.weight", "F32", [32], array.array("f", factors).tobytes()))
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64, permute=True)
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
    return p


def kv_b(p, b, name, heads, latent, nope, v, split):
    """The second projection of MLA's keys and values: joint as in safetensors, or split and with keys transposed."""
    if not split:
        p.both(b + "attn_kv_b", [heads * (nope + v), latent], name)
        return
    p.both(b + "attn_k_b", [heads, latent, nope], "k_b")
    p.both(b + "attn_v_b", [heads, v, latent], "v_b")
    k, w, out = p.hf.pop("k_b")[1], p.hf.pop("v_b")[1], array.array("f")
    for n in range(heads):
        for r in range(nope):
            out.extend(k[(n * latent + c) * nope + r] for c in range(latent))
        out.extend(w[n * v * latent : (n + 1) * v * latent])
    p.hf[name] = ([heads * (nope + v), latent], out)


def deepseek2(fmt, seed=3, v3=True, split=True):
    """v3: sigmoid router with groups and a correction; split: the up-projection of keys and values in two tensors, keys transposed."""
    p = Pair("deepseek2", fmt, seed)
    hidden, heads, nope, rope, v, lora, latent = 256, 4, 32, 32, 32, 256, 256
    usual(p, layers=3, experts=8)
    p.key(attention__head_count=heads, attention__head_count_kv=1, attention__kv_lora_rank=latent, rope__dimension_count=rope, rope__freq_base=1e4,
          feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=1, leading_dense_block_count=1, expert_weights_scale=2.0,
          vocab_size=288, rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=128,
          rope__scaling__yarn_log_multiplier=0.1)
    p.config.update(model_type="deepseek_v3" if v3 else "deepseek_v2", num_attention_heads=heads, num_key_value_heads=heads, kv_lora_rank=latent,
                    qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v, intermediate_size=512, moe_intermediate_size=256, n_routed_experts=8,
                    n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.0, rope_theta=1e4,
                    rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                  "mscale_all_dim": 1.0})
    if split:
        p.key(attention__key_length=latent + rope, attention__value_length=latent, attention__key_length_mla=nope + rope, attention__value_length_mla=v)
    else:
        p.key(attention__key_length=nope + rope, attention__value_length=v)
    if v3:
        p.key(attention__q_lora_rank=lora, expert_gating_func=2, expert_weights_norm=True, expert_group_count=2, expert_group_used_count=1)
        p.config.update(q_lora_rank=lora, scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True, n_group=2, topk_group=1)
    else:
        p.config.update(scoring_func="softmax", topk_method="greedy", norm_topk_prob=False)
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        p.norm(b + "attn_norm", hidden, h + "input_layernorm.weight")
        p.norm(b + "ffn_norm", hidden, h + "post_attention_layernorm.weight")
        if v3:
            p.both(b + "attn_q_a", [lora, hidden], h + "self_attn.q_a_proj.weight")
            p.norm(b + "attn_q_a_norm", lora, h + "self_attn.q_a_layernorm.weight")
            p.both(b + "attn_q_b", [heads * (nope + rope), lora], h + "self_attn.q_b_proj.weight")
        else:
            p.both(b + "attn_q", [heads * (nope + rope), hidden], h + "self_attn.q_proj.weight")
        p.both(b + "attn_kv_a_mqa", [latent + rope, hidden], h + "self_attn.kv_a_proj_with_mqa.weight")
        p.norm(b + "attn_kv_a_norm", latent, h + "self_attn.kv_a_layernorm.weight")
        kv_b(p, b, h + "self_attn.kv_b_proj.weight", heads, latent, nope, v, split)
        p.both(b + "attn_output", [hidden, heads * v], h + "self_attn.o_proj.weight")
        if i < 1:
            dense(p, i, hidden, 512, "mlp")
        else:
            experts(p, i, hidden, 256, 8, "mlp.experts.{}.")
            dense(p, i, hidden, 256, "mlp.shared_experts", "_shexp")
            if v3:
                p.both(b + "exp_probs_b.bias", [8], h + "mlp.gate.e_score_correction_bias", "F32", 0.05)
    return p


def gpt_oss(fmt, seed=7, yarn=True):
    p = Pair("gpt-oss", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, attention__sliding_window=8,
          feed_forward_length=256, expert_feed_forward_length=256, rope__freq_base=15e4)
    if yarn:
        p.key(rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=128)
    p.config.update(model_type="gpt_oss", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=256, num_local_experts=4,
                    sliding_window=8, attention_bias=True, rope_theta=15e4,
                    rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0,
                                  "truncate": False} if yarn else {"rope_type": "default"})
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, bias=True, ffn_norm="post_attention_norm")
        p.both(b + "attn_output.bias", [256], h + "self_attn.o_proj.bias", "F32", 0.3)
        p.both(b + "attn_sinks", [4], h + "self_attn.sinks", "F32", 1)
        experts(p, i, 256, 256, 4, "mlp.experts.{}.", router="mlp.router.weight")
        p.both(b + "ffn_gate_inp.bias", [4], h + "mlp.router.bias", "F32", 0.3)
        for g in ("gate", "up", "down"):
            p.both(f"{b}ffn_{g}_exps.bias", [4, 256], f"{g} bias", "F32", 0.3)
        # safetensors has all experts in two tensors, with interleaved rows of gate and up
        turns, bias, down = array.array("f"), array.array("f"), array.array("f")
        for k in range(4):
            gate, up = (p.hf.pop(f"{h}mlp.experts.{k}.{g}_proj.weight")[1] for g in ("gate", "up"))
            for r in range(256):
                turns.extend(gate[r * 256 : (r + 1) * 256])
                turns.extend(up[r * 256 : (r + 1) * 256])
                bias.append(p.hf["gate bias"][1][k * 256 + r])
                bias.append(p.hf["up bias"][1][k * 256 + r])
            down.extend(p.hf.pop(f"{h}mlp.experts.{k}.down_proj.weight")[1])
        p.hf[h + "mlp.experts.gate_up_proj"] = ([4, 512, 256], turns)
        p.hf[h + "mlp.experts.gate_up_proj_bias"] = ([4, 512], bias)
        p.hf[h + "mlp.experts.down_proj"] = ([4, 256, 256], down)
        p.hf[h + "mlp.experts.down_proj_bias"] = p.hf["down bias"]
        for g in ("gate", "up", "down"):
            p.hf.pop(g + " bias")
    return p


def glm4moe(fmt, seed=8):
    """The last block is a prediction layer, which is recognised and ignored."""
    p = Pair("glm4moe", fmt, seed)
    usual(p, layers=3)
    p.key(block_count=4, nextn_predict_layers=1, attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64,
          rope__dimension_count=32, rope__freq_base=1e6, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=1,
          leading_dense_block_count=1, expert_weights_scale=1.5, expert_weights_norm=True, expert_gating_func=2)
    p.config.update(model_type="glm4_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, partial_rotary_factor=0.5, rope_theta=1e6,
                    intermediate_size=512, moe_intermediate_size=256, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1,
                    routed_scaling_factor=1.5, norm_topk_prob=True, attention_bias=True, use_qk_norm=True, num_nextn_predict_layers=1)
    for i in range(4):
        gqa(p, i, 256, 4, 2, 64, qk_norm=True, bias=True, ffn_norm="post_attention_norm")
        if i < 1:
            dense(p, i, 256, 512, "mlp")
        else:
            experts(p, i, 256, 256, 4, "mlp.experts.{}.")
            dense(p, i, 256, 256, "mlp.shared_experts", "_shexp")
            p.both(f"blk.{i}.exp_probs_b.bias", [4], f"model.layers.{i}.mlp.gate.e_score_correction_bias", "F32", 0.05)
    p.both("blk.3.nextn.eh_proj", [256, 512], "model.layers.3.eh_proj.weight")
    for name, hf in (("enorm", "enorm"), ("hnorm", "hnorm"), ("shared_head_norm", "shared_head.norm")):
        p.norm("blk.3.nextn." + name, 256, f"model.layers.3.{hf}.weight")
    return p


def minimax(fmt, seed=9):
    p = Pair("minimax-m2", fmt, seed)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, rope__dimension_count=32,
          rope__freq_base=5e6, feed_forward_length=256, expert_feed_forward_length=256, expert_gating_func=2)
    p.config.update(model_type="minimax_m2", num_attention_heads=4, num_key_value_heads=2, head_dim=64, rotary_dim=32, rope_theta=5e6,
                    intermediate_size=256, num_local_experts=4)
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64)
        p.norm(b + "attn_q_norm", 256, h + "self_attn.q_norm.weight")
        p.norm(b + "attn_k_norm", 128, h + "self_attn.k_norm.weight")
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
        p.both(b + "exp_probs_b.bias", [4], h + "block_sparse_moe.e_score_correction_bias", "F32", 0.05)
    return p


def layer_norm(p, name, n, hf, bias):
    p.norm(name, n, hf + ".weight")
    if bias:
        p.both(name + ".bias", [n], hf + ".bias", "F32", 0.1)


def dbrx(fmt, seed=10):
    p = Pair("dbrx", fmt, seed)
    hidden, heads, kv, inter, n = 256, 4, 2, 256, 4
    p.key(block_count=2, context_length=512, embedding_length=hidden, attention__layer_norm_epsilon=1e-5, expert_count=n, expert_used_count=2,
          attention__head_count=heads, attention__head_count_kv=kv, attention__clamp_kqv=1.5, feed_forward_length=inter, rope__freq_base=5e5)
    p.config.update(model_type="dbrx", vocab_size=288, d_model=hidden, n_layers=2, n_heads=heads, max_seq_len=512,
                    attn_config={"kv_n_heads": kv, "clip_qkv": 1.5, "rope_theta": 5e5},
                    ffn_config={"ffn_hidden_size": inter, "moe_num_experts": n, "moe_top_k": 2, "moe_normalize_expert_weights": 1})
    p.both("token_embd", [288, hidden], "transformer.wte.weight", spread=1)
    p.both("output", [288, hidden], "lm_head.weight")
    p.norm("output_norm", hidden, "transformer.norm_f.weight")
    for i in range(2):
        b, h = f"blk.{i}.", f"transformer.blocks.{i}."
        p.norm(b + "attn_norm", hidden, h + "norm_attn_norm.norm_1.weight")
        p.norm(b + "attn_output_norm", hidden, h + "norm_attn_norm.norm_2.weight")
        p.both(b + "attn_qkv", [(heads + 2 * kv) * 64, hidden], h + "norm_attn_norm.attn.Wqkv.weight")
        p.both(b + "attn_output", [hidden, hidden], h + "norm_attn_norm.attn.out_proj.weight")
        p.both(b + "ffn_gate_inp", [n, hidden], h + "ffn.router.layer.weight", "F32")
        for g, name in (("gate", "w1"), ("up", "v1")):
            p.both(f"{b}ffn_{g}_exps", [n, inter, hidden], h + f"ffn.experts.mlp.{name}")
            p.hf[h + f"ffn.experts.mlp.{name}"] = ([n * inter, hidden], p.hf[h + f"ffn.experts.mlp.{name}"][1])
        p.both(b + "ffn_down_exps", [n, hidden, inter], "down")
        down = p.hf.pop("down")[1]  # published transposed
        turned = array.array("f", [down[(k * hidden + c) * inter + r] for k in range(n) for r in range(inter) for c in range(hidden)])
        p.hf[h + "ffn.experts.mlp.w2"] = ([n * inter, hidden], turned)
    for key in ("rms_norm_eps", "hidden_act", "max_position_embeddings"):
        p.leaves_out.append(key)
    return p


def phimoe(fmt, seed=11):
    """LongRoPE: the tests' prompt is short, so an original context of 32 makes its long factors apply."""
    p = Pair("phimoe", fmt, seed)
    p.key(block_count=2, context_length=512, embedding_length=256, attention__layer_norm_rms_epsilon=1e-5, expert_count=4, expert_used_count=2,
          attention__head_count=4, attention__head_count_kv=2, feed_forward_length=256, rope__dimension_count=64, rope__freq_base=1e4,
          rope__scaling__original_context_length=32, rope__scaling__attn_factor=1.3, attention__sliding_window=0)
    near, far = [1 + j / 64 for j in range(32)], [1 + j / 8 for j in range(32)]
    p.config.update(model_type="phimoe", vocab_size=288, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    intermediate_size=256, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5, rope_theta=1e4, attention_bias=True, lm_head_bias=True,
                    rope_scaling={"type": "longrope", "short_factor": near, "long_factor": far, "original_max_position_embeddings": 32,
                                  "attention_factor": 1.3})
    for name, f in (("short", near), ("long", far)):
        p.gguf.append((f"rope_factors_{name}.weight", "F32", [32], array.array("f", f).tobytes()))
    p.both("token_embd", [288, 256], "model.embed_tokens.weight", spread=1)
    p.both("output", [288, 256], "lm_head.weight")
    p.both("output.bias", [288], "lm_head.bias", "F32", 0.3)
    layer_norm(p, "output_norm", 256, "model.norm", True)
    for i in range(2):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, bias=True)
        for g, name in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            p.both(b + g + ".bias", [256], h + name + ".bias", "F32", 0.1)
        p.both(b + "attn_output.bias", [256], h + "self_attn.o_proj.bias", "F32", 0.3)
        experts(p, i, 256, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
    return p


def qwen3next(fmt, seed=12, old=False):
    """Three of four layers are DeltaNet. Norms are stored with the 1 that the published ones omit, decay rates precomputed. old: all of
    DeltaNet's inputs except b and a in one tensor, as published."""
    p = Pair("qwen3next", fmt, seed)
    hidden, kh, vh, dim, taps = 256, 2, 4, 32, 4
    usual(p, layers=4)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=512,
          expert_feed_forward_length=256, expert_shared_feed_forward_length=256, rope__dimension_count=16, rope__freq_base=1e6, ssm__conv_kernel=taps,
          ssm__state_size=dim, ssm__group_count=kh, ssm__time_step_rank=vh, ssm__inner_size=vh * dim, full_attention_interval=4)
    p.config.update(model_type="qwen3_next", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512, moe_intermediate_size=256,
                    shared_expert_intermediate_size=256, num_experts=4, norm_topk_prob=True, rope_theta=1e6, partial_rotary_factor=0.25,
                    full_attention_interval=4, linear_conv_kernel_dim=taps, linear_key_head_dim=dim, linear_value_head_dim=dim, linear_num_key_heads=kh,
                    linear_num_value_heads=vh)
    for i in range(4):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        if i == 3:
            gqa(p, i, hidden, 4, 2, 64, qk_norm=True, ffn_norm="post_attention_norm", gated=True)
        else:
            p.norm(b + "attn_norm", hidden, h + "input_layernorm.weight")
            p.norm(b + "post_attention_norm", hidden, h + "post_attention_layernorm.weight")
            la = h + "linear_attn."
            p.both(b + "ssm_ba", [2 * vh, hidden], la + "in_proj_ba.weight")
            p.both(b + "ssm_conv1d", [(2 * kh + vh) * dim, taps], la + "conv1d.weight", "F32", 0.5)
            p.hf[la + "conv1d.weight"] = ([(2 * kh + vh) * dim, 1, taps], p.hf[la + "conv1d.weight"][1])
            log = array.array("f", [p.rng.uniform(0, 2) for _ in range(vh)])
            p.hf[la + "A_log"] = ([vh], log)
            p.gguf.append((b + "ssm_a", "F32", [vh], array.array("f", [-math.exp(x) for x in log]).tobytes()))
            p.both(b + "ssm_dt.bias", [vh], la + "dt_bias", "F32", 0.5)
            p.norm(b + "ssm_norm", dim, la + "norm.weight")
            p.both(b + "ssm_out", [hidden, vh * dim], la + "out_proj.weight")
            share = vh // kh * dim
            group = 2 * dim + 2 * share
            p.both(b + "ssm_in", [kh * group, hidden], la + "in_proj_qkvz.weight")
            if not old:  # rows grouped by head, to all heads' q, then k, v; and z
                _, fmt_in, _, raw = p.gguf.pop()
                size = len(raw) // (kh * group)
                pick = lambda lo, n: [k * group + r for k in range(kh) for r in range(lo, lo + n)]
                for name, rows in (("attn_qkv", pick(0, dim) + pick(dim, dim) + pick(2 * dim, share)), ("attn_gate", pick(2 * dim + share, share))):
                    p.gguf.append((f"{b}{name}.weight", fmt_in, [len(rows), hidden], b"".join(raw[r * size : (r + 1) * size] for r in rows)))
        experts(p, i, hidden, 256, 4, "mlp.experts.{}.")
        dense(p, i, hidden, 256, "mlp.shared_expert", "_shexp")
        p.both(f"{b}ffn_gate_inp_shexp", [hidden], h + "mlp.shared_expert_gate.weight", "F32")
        p.hf[h + "mlp.shared_expert_gate.weight"] = ([1, hidden], p.hf[h + "mlp.shared_expert_gate.weight"][1])
    for name, (shape, f) in p.hf.items():
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            p.hf[name] = (shape, array.array("f", [x - 1 for x in f]))
    return p


def olmoe(fmt):
    p = Pair("olmoe", fmt, 41)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=4, feed_forward_length=256, rope__freq_base=1e4)
    p.config.update(model_type="olmoe", num_attention_heads=4, num_key_value_heads=4, intermediate_size=256, num_experts=4, norm_topk_prob=False, rope_theta=1e4)
    for i in range(2):
        gqa(p, i, 256, 4, 4, 64)
        p.norm(f"blk.{i}.attn_q_norm", 256, f"model.layers.{i}.self_attn.q_norm.weight")
        p.norm(f"blk.{i}.attn_k_norm", 256, f"model.layers.{i}.self_attn.k_norm.weight")
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
    return p


def granitemoe(fmt, shared=False):
    """In safetensors gate and up are one tensor."""
    p = Pair("granitemoe", fmt, 42)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=256, rope__freq_base=1e4, rope__dimension_count=64, attention__scale=0.02,
          embedding_scale=12.0, residual_scale=0.22, logit_scale=6.0)
    p.config.update(model_type="granitemoe", num_attention_heads=4, num_key_value_heads=2, intermediate_size=256, num_local_experts=4, rope_theta=1e4,
                    attention_multiplier=0.02, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=6.0)
    if shared:
        p.key(expert_shared_feed_forward_length=512)
        p.config.update(model_type="granitemoeshared", shared_intermediate_size=512)
    for i in range(2):
        h = f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, permute=True)
        experts(p, i, 256, 256, 4, "experts.{}.", router="block_sparse_moe.router.layer.weight")
        parts = {g: [p.hf.pop(f"{h}experts.{k}.{g}_proj.weight")[1] for k in range(4)] for g in ("gate", "up", "down")}
        both = sum((g + u for g, u in zip(parts["gate"], parts["up"])), array.array("f"))
        p.hf[h + "block_sparse_moe.input_linear.weight"] = ([4, 512, 256], both)
        p.hf[h + "block_sparse_moe.output_linear.weight"] = ([4, 256, 256], sum(parts["down"], array.array("f")))
        if shared:
            dense(p, i, 256, 512, "shared", "_shexp")
            gate, up, down = (p.hf.pop(f"{h}shared.{g}_proj.weight") for g in ("gate", "up", "down"))
            p.hf[h + "shared_mlp.input_linear.weight"] = ([1024, 256], gate[1] + up[1])
            p.hf[h + "shared_mlp.output_linear.weight"] = down
    return p


def granite_swa(fmt, moe=True):
    """Windows and rotations by layer, sinks; gate and up of the experts and of the shared expert are joined in both forms."""
    p = Pair("granite_swa", fmt, 47)
    usual(p, layers=3)
    windows, rotated = [False, True, True], [True, False, True]
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=256, rope__freq_base=2e4, rope__dimension_count=64, attention__scale=0.02,
          embedding_scale=12.0, residual_scale=0.22, logit_scale=6.0, attention__sliding_window=9, attention__sliding_window_pattern=windows,
          attention__rope_pattern=rotated, **({"expert_shared_feed_forward_length": 512} if moe else {"expert_count": 0, "expert_used_count": 0}))
    p.config.update(model_type="granitemoe_swa" if moe else "granite_swa", num_attention_heads=4, num_key_value_heads=2, intermediate_size=256, rope_theta=2e4,
                    attention_multiplier=0.02, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=6.0, sliding_window=9,
                    layer_types=["sliding_attention" if w else "full_attention" for w in windows], layer_rope_theta=[2e4 * r for r in rotated],
                    **({"num_local_experts": 4, "shared_intermediate_size": 512} if moe else {}))
    p.leaves_out = [] if moe else ["num_experts_per_tok"]
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, 2, 64, permute=True)
        p.both(b + "attn_sinks", [4], h + "self_attn.sinks", "F32", 1)
        if not moe:
            dense(p, i, 256, 256, "mlp")
            continue
        p.both(b + "ffn_gate_inp", [4, 256], h + "block_sparse_moe.router.weight", "F32")
        p.both(b + "ffn_gate_up_exps", [4, 512, 256], h + "block_sparse_moe.experts.gate_up_proj")
        p.both(b + "ffn_down_exps", [4, 256, 256], h + "block_sparse_moe.experts.down_proj")
        p.both(b + "ffn_up_shexp", [1024, 256], h + "shared_mlp.input_linear.weight")
        p.both(b + "ffn_down_shexp", [256, 512], h + "shared_mlp.output_linear.weight")
    return p


def ernie(fmt):
    p = Pair("ernie4_5-moe", fmt, 43)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=2, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=2,
          expert_shared_feed_forward_length=512, interleave_moe_layer_step=1, leading_dense_block_count=1, rope__freq_base=5e5, attention__key_length=64,
          attention__value_length=64)
    p.config.update(model_type="ernie4_5_moe", num_attention_heads=4, num_key_value_heads=2, intermediate_size=512, moe_intermediate_size=256, moe_num_experts=4,
                    moe_k=2, moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=1, rope_theta=5e5)
    del p.config["num_experts_per_tok"]
    for i in range(3):
        gqa(p, i, 256, 4, 2, 64)
        if i < 1:
            dense(p, i, 256, 512, "mlp")
            continue
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        dense(p, i, 256, 512, "mlp.shared_experts", "_shexp")
        p.both(f"blk.{i}.exp_probs_b.bias", [4], f"model.layers.{i}.mlp.moe_statics.e_score_correction_bias", "F32", 0.05)
    return p


def qwen3vlmoe(fmt):
    p = qwen3moe(fmt, 44)
    p.arch = "qwen3vlmoe"
    p.meta = {k.replace("qwen3moe", "qwen3vlmoe"): v.replace("qwen3moe", "qwen3vlmoe") if isinstance(v, str) else v for k, v in p.meta.items()}
    p.key(rope__dimension_sections=[12, 10, 10, 0], n_deepstack_layers=0)
    return p


def qwen2vl(fmt):
    p = qwen2(fmt)
    p.arch = "qwen2vl"
    p.meta = {("qwen2vl" + k[5:] if k.startswith("qwen2.") else k): "qwen2vl" if v == "qwen2" else v for k, v in p.meta.items()}
    p.key(rope__dimension_sections=[12, 10, 10, 0])
    return p


def qwen3vl(fmt):
    p = qwen3(fmt)
    p.arch = "qwen3vl"
    p.meta = {("qwen3vl" + k[5:] if k.startswith("qwen3.") else k): "qwen3vl" if v == "qwen3" else v for k, v in p.meta.items()}
    p.key(rope__dimension_sections=[12, 10, 10, 0], n_deepstack_layers=0)
    return p


def hunyuan(fmt):
    p = Pair("hunyuan-moe", fmt, 45)
    usual(p)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, feed_forward_length=256,
          expert_feed_forward_length=256, expert_shared_feed_forward_length=256, expert_shared_count=1, rope__freq_base=1e4 * 1000 ** (64 / 62),
          rope__scaling__type="none", rope__scaling__factor=1.0)
    p.config.update(model_type="hunyuan_v1_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=256, moe_intermediate_size=256,
                    num_experts=4, moe_topk=2, num_shared_expert=1, rope_theta=1e4, rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0})
    del p.config["num_experts_per_tok"]
    for i in range(2):
        gqa(p, i, 256, 4, 2, 64)
        p.norm(f"blk.{i}.attn_q_norm", 64, f"model.layers.{i}.self_attn.query_layernorm.weight")
        p.norm(f"blk.{i}.attn_k_norm", 64, f"model.layers.{i}.self_attn.key_layernorm.weight")
        experts(p, i, 256, 256, 4, "mlp.experts.{}.", router="mlp.gate.wg.weight")
        dense(p, i, 256, 256, "mlp.shared_mlp", "_shexp")
    return p


def dots1(fmt):
    p = Pair("dots1", fmt, 46)
    usual(p, layers=3)
    p.key(attention__head_count=4, attention__head_count_kv=4, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=2,
          leading_dense_block_count=1, expert_weights_scale=2.5, expert_weights_norm=True, expert_gating_func=2, rope__freq_base=1e7)
    p.config.update(model_type="dots1", num_attention_heads=4, num_key_value_heads=4, intermediate_size=512, moe_intermediate_size=256, n_routed_experts=4,
                    n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, rope_theta=1e7)
    for i in range(3):
        gqa(p, i, 256, 4, 4, 64, qk_norm=True)
        if i < 1:
            dense(p, i, 256, 512, "mlp")
            continue
        experts(p, i, 256, 256, 4, "mlp.experts.{}.")
        dense(p, i, 256, 512, "mlp.shared_experts", "_shexp")
        p.both(f"blk.{i}.exp_probs_b.bias", [4], f"model.layers.{i}.mlp.gate.e_score_correction_bias", "F32", 0.05)
    return p


def bailingmoe2(fmt):
    p = Pair("bailingmoe2", fmt, 47)
    usual(p, layers=3, experts=8)
    p.key(attention__head_count=4, attention__head_count_kv=2, attention__key_length=64, attention__value_length=64, rope__dimension_count=32,
          rope__freq_base=6e5, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_feed_forward_length=256, expert_shared_count=1,
          leading_dense_block_count=1, expert_weights_scale=2.5, expert_weights_norm=True, expert_gating_func=2, expert_group_count=4, expert_group_used_count=2,
          vocab_size=288)
    p.config.update(model_type="bailing_moe_v2", num_attention_heads=4, num_key_value_heads=2, head_dim=64, partial_rotary_factor=0.5, rope_theta=6e5,
                    intermediate_size=512, moe_intermediate_size=256, num_experts=8, num_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2,
                    routed_scaling_factor=2.5, norm_topk_prob=True, use_qk_norm=True, score_function="sigmoid", moe_router_enable_expert_bias=True)
    p.hf["model.word_embeddings.weight"] = p.hf.pop("model.embed_tokens.weight")
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        p.norm(b + "attn_norm", 256, h + "input_layernorm.weight")
        p.norm(b + "ffn_norm", 256, h + "post_attention_layernorm.weight")
        p.both(b + "attn_qkv", [512, 256], h + "attention.query_key_value.weight")
        p.both(b + "attn_output", [256, 256], h + "attention.dense.weight")
        p.norm(b + "attn_q_norm", 64, h + "attention.query_layernorm.weight")
        p.norm(b + "attn_k_norm", 64, h + "attention.key_layernorm.weight")
        if i < 1:
            dense(p, i, 256, 512, "mlp")
            continue
        experts(p, i, 256, 256, 8, "mlp.experts.{}.")
        dense(p, i, 256, 256, "mlp.shared_experts", "_shexp")
        p.both(b + "exp_probs_b.bias", [8], h + "mlp.gate.expert_bias", "F32", 0.05)
    return p


def kimi_linear(fmt, seed=31, split=True):
    """Kimi delta attention in layers without KV heads, with precomputed decay rates; MLA without rotation in the last one."""
    p = Pair("kimi-linear", fmt, seed)
    hidden, heads, dim, taps, nope, rope, v, latent = 256, 4, 32, 4, 32, 16, 32, 256
    usual(p, layers=3)
    p.key(attention__head_count=heads, attention__head_count_kv=[0, 0, 1], attention__kv_lora_rank=latent, attention__key_length=latent + rope,
          attention__value_length=latent, attention__key_length_mla=nope + rope, attention__value_length_mla=v, rope__dimension_count=rope,
          rope__freq_base=1e4, feed_forward_length=512, expert_feed_forward_length=256, expert_shared_count=1, leading_dense_block_count=1,
          expert_weights_scale=2.0, expert_weights_norm=True, expert_gating_func=2, kda__head_dim=dim, ssm__conv_kernel=taps)
    p.config.update(model_type="kimi_linear", model_max_length=512, num_attention_heads=heads, num_key_value_heads=heads, kv_lora_rank=latent,
                    qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v, mla_use_nope=True, intermediate_size=512, moe_intermediate_size=256,
                    num_experts=4, num_experts_per_token=2, num_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.0,
                    moe_renormalize=True, moe_router_activation_func="sigmoid",
                    linear_attn_config={"kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": heads, "head_dim": dim, "short_conv_kernel_size": taps})
    p.leaves_out = ["num_experts_per_tok", "max_position_embeddings"]
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        s = h + "self_attn."
        p.norm(b + "attn_norm", hidden, h + "input_layernorm.weight")
        p.norm(b + "ffn_norm", hidden, h + "post_attention_layernorm.weight")
        if i < 2:
            kda(p, b, s, hidden, heads, dim, taps)
        else:
            p.both(b + "attn_q", [heads * (nope + rope), hidden], s + "q_proj.weight")
            p.both(b + "attn_kv_a_mqa", [latent + rope, hidden], s + "kv_a_proj_with_mqa.weight")
            p.norm(b + "attn_kv_a_norm", latent, s + "kv_a_layernorm.weight")
            kv_b(p, b, s + "kv_b_proj.weight", heads, latent, nope, v, split)
            p.both(b + "attn_output", [hidden, heads * v], s + "o_proj.weight")
        if i < 1:
            dense(p, i, hidden, 512, "mlp")
        else:
            experts(p, i, hidden, 256, 4, "block_sparse_moe.experts.{}.", ("w1", "w3", "w2"), "block_sparse_moe.gate.weight")
            dense(p, i, hidden, 256, "block_sparse_moe.shared_experts", "_shexp")
            p.both(b + "exp_probs_b.bias", [4], h + "block_sparse_moe.gate.e_score_correction_bias", "F32", 0.05)
    return p


def kda(p, b, s, hidden, heads, dim, taps):
    """A layer's Kimi delta attention: b, s are the prefixes of its names."""
    width = heads * dim
    for g in "qkv":
        p.both(f"{b}attn_{g}", [width, hidden], f"{s}{g}_proj.weight")
        p.both(f"{b}ssm_conv1d_{g}", [1, width, 1, taps], f"{s}{g}_conv1d.weight", "F32", 0.5)
        p.hf[f"{s}{g}_conv1d.weight"] = ([width, 1, taps], p.hf[f"{s}{g}_conv1d.weight"][1])
    for g in "fg":
        p.both(f"{b}ssm_{g}_a", [dim, hidden], f"{s}{g}_a_proj.weight")
        p.both(f"{b}ssm_{g}_b", [width, dim], f"{s}{g}_b_proj.weight")
    p.both(b + "ssm_beta", [heads, hidden], s + "b_proj.weight")
    log = array.array("f", [p.rng.uniform(0, 2) for _ in range(heads)])
    p.hf[s + "A_log"] = ([1, 1, heads, 1], log)
    p.gguf.append((b + "ssm_a", "F32", [1, 1, heads, 1], array.array("f", [-math.exp(x) for x in log]).tobytes()))
    p.both(b + "ssm_dt.bias", [width], s + "dt_bias", "F32", 0.5)
    p.norm(b + "ssm_norm", dim, s + "o_norm.weight")
    p.both(b + "attn_output", [hidden, width], s + "o_proj.weight")


MODELS = {"arcee": arcee, "minicpm": minicpm, "nemotron": nemotron, "arctic": arctic, "cohere2": cohere2, "command-r": command_r, "exaone4": exaone4, "hunyuan-dense": hunyuan_dense, "mellum": mellum, "maple": maple, "maple old": lambda fmt: maple(fmt, False), "k2-horizon": k2_horizon, "bailingmoe": ling1, "deepseek": deepseek_v1, "grok": grok, "grok first": lambda fmt: grok(fmt, False), "smallthinker": smallthinker, "smallthinker window": lambda fmt: smallthinker(fmt, 16), "minimax-01": minimax01, "minimax-m3": minimax_m3, "olmoe": olmoe, "kimi-linear": kimi_linear, "kimi-linear old": lambda fmt: kimi_linear(fmt, split=False), "granitemoe": granitemoe, "muse-glimmer": muse_glimmer, "granite_swa": granite_swa, "granite_swa dense": lambda fmt: granite_swa(fmt, False), "granitemoe shared": lambda fmt: granitemoe(fmt, True), "ernie4_5-moe": ernie, "qwen3vlmoe": qwen3vlmoe,
          "hunyuan-moe": hunyuan, "dots1": dots1, "bailingmoe2": bailingmoe2,
          "llama dense": llama_dense, "qwen2": qwen2, "qwen2vl": qwen2vl, "exaone": exaone, "internlm2": internlm2, "minicpm3": minicpm3, "chatglm": lambda fmt: chatglm(fmt, True), "chatglm split": lambda fmt: chatglm(fmt, False), "qwen3": qwen3, "qwen3vl": qwen3vl, "lfm2": lfm2, "ernie4_5": ernie4_5, "gemma2": gemma2, "gemma3": gemma3, "phi3": phi3, "smollm3": smollm3, "glm4": glm4, "glm4v": glm4v, "gemma": gemma,
          "starcoder2": gguf_normed.starcoder2, "phi2": gguf_normed.phi2, "gptneox": gguf_normed.gptneox, "gptneox serial": lambda fmt: gguf_normed.gptneox(fmt, False), "falcon": gguf_normed.falcon,
          "falcon norms": lambda fmt: gguf_normed.falcon(fmt, 2), "jais2": gguf_normed.jais2, "stablelm": gguf_normed.stablelm, "stablelm parallel": lambda fmt: gguf_normed.stablelm(fmt, True),
          "olmo": gguf_normed.olmo,
          "olmo2": olmo2, "seed_oss": seed_oss, "granite": granite, "mistral3": mistral3,
          "dbrx": dbrx, "phimoe": phimoe, "qwen3next": qwen3next, "qwen3next old": lambda fmt: qwen3next(fmt, old=True),
          "qwen3moe fused": lambda fmt: qwen3moe(fmt, fused=True), "llama freqs": lambda fmt: llama(fmt, freqs=True), "gpt-oss": gpt_oss, "gpt-oss plain": lambda fmt: gpt_oss(fmt, yarn=False), "glm4moe": glm4moe, "minimax-m2": minimax, "qwen3moe": qwen3moe, "qwen2moe": qwen2moe, "llama": llama, "deepseek2": deepseek2,
          "deepseek2 v2": lambda fmt: deepseek2(fmt, 5, v3=False), "deepseek2 old": lambda fmt: deepseek2(fmt, 6, split=False)}
