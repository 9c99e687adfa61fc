"""Small random models without experts, each as a pair of files (gguf_pair.py)."""
import array

from gguf_pair import Pair, gqa, dense, HEADS


def without_experts(arch, fmt, seed, layers=2, tied=False, norms=("attn_norm", "input_layernorm", "ffn_norm", "post_attention_layernorm"), shift=0, kv=2, **gqa_options):
    """A dense model. norms: pairs of names in both formats. shift: what GGUF's norm weights have more than the published ones."""
    p = Pair(arch, fmt, seed)
    p.key(block_count=layers, context_length=512, embedding_length=256, attention__layer_norm_rms_epsilon=1e-6, **{**HEADS, "attention__head_count_kv": kv})
    p.config.update(model_type=arch, vocab_size=288, hidden_size=256, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=kv, intermediate_size=512,
                    tie_word_embeddings=tied)
    p.both("token_embd", [288, 256], "model.embed_tokens.weight", spread=1 / 16 if tied else 1)
    if not tied:
        p.both("output", [288, 256], "lm_head.weight")
    p.norm("output_norm", 256, "model.norm.weight")
    for i in range(layers):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        gqa(p, i, 256, 4, kv, 64, **gqa_options)
        for name in ("attn_norm", "ffn_norm"):  # which gqa has added
            p.gguf = [t for t in p.gguf if t[0] != f"{b}{name}.weight"]
        for name in ("input_layernorm", "post_attention_layernorm"):
            p.hf.pop(f"{h}{name}.weight")
        for name, hf in zip(norms[::2], norms[1::2]):
            p.norm(b + name, 256, f"{h}{hf}.weight")
        dense(p, i, 256, 512, "mlp")
    for name, (shape, f) in p.hf.items():
        if shift and name.endswith("norm.weight"):
            p.hf[name] = (shape, array.array("f", [x - shift for x in f]))
    return p


def gate_and_up(p, layers):
    """Both halves in one tensor, named ffn_up in GGUF."""
    of = {t[0]: t for t in p.gguf}
    for i in range(layers):
        gate, up = of[f"blk.{i}.ffn_gate.weight"], of[f"blk.{i}.ffn_up.weight"]
        p.gguf = [t for t in p.gguf if t not in (gate, up)] + [(up[0], up[1], [2 * up[2][0], up[2][1]], gate[3] + up[3])]
        h = f"model.layers.{i}.mlp."
        (shape, g), (_, u) = p.hf.pop(h + "gate_proj.weight"), p.hf.pop(h + "up_proj.weight")
        p.hf[h + "gate_up_proj.weight"] = ([2 * shape[0], shape[1]], g + u)
    return p


def llama_dense(fmt):
    p = without_experts("llama", fmt, 21, permute=True)
    p.key(rope__freq_base=5e5, rope__dimension_count=64, vocab_size=288)
    p.config.update(rope_theta=5e5)
    return p


def internlm2(fmt):
    p = without_experts("internlm2", fmt, 54, permute=True)
    p.key(rope__freq_base=1e6)
    p.config.update(model_type="llama", rope_theta=1e6)
    return p


def minicpm3(fmt):
    """MLA with joint keys and values, whose rotated halves have factors; those of longer texts are not in force."""
    p = without_experts("minicpm3", fmt, 67)
    heads, lora, latent, nope, rope, v = 4, 96, 64, 32, 16, 64
    p.gguf = [t for t in p.gguf if ".attn_" not in t[0] or "attn_norm" in t[0]]
    p.hf = {name: t for name, t in p.hf.items() if "self_attn" not in name}
    p.key(rope__freq_base=1e4, rope__dimension_count=rope, attention__q_lora_rank=lora, attention__kv_lora_rank=latent, attention__key_length=nope + rope,
          attention__head_count_kv=heads)
    factors = [1 + j / 4 for j in range(rope // 2)]
    p.config.update(rope_theta=1e4, q_lora_rank=lora, kv_lora_rank=latent, qk_nope_head_dim=nope, qk_rope_head_dim=rope, num_key_value_heads=heads, scale_emb=12, scale_depth=1.4,
                    dim_model_base=256, rope_scaling={"type": "longrope", "short_factor": factors, "long_factor": [2 * x for x in factors], "original_max_position_embeddings": 512})
    for name, by in (("short", 1), ("long", 2)):
        p.gguf.append((f"rope_factors_{name}.weight", "F32", [rope // 2], array.array("f", [by * x for x in factors]).tobytes()))
    for i in range(2):
        b, h = f"blk.{i}.attn_", f"model.layers.{i}.self_attn."
        p.both(b + "q_a", [lora, 256], h + "q_a_proj.weight")
        p.norm(b + "q_a_norm", lora, h + "q_a_layernorm.weight")
        p.both(b + "q_b", [heads * (nope + rope), lora], h + "q_b_proj.weight")
        p.both(b + "kv_a_mqa", [latent + rope, 256], h + "kv_a_proj_with_mqa.weight")
        p.norm(b + "kv_a_norm", latent, h + "kv_a_layernorm.weight")
        p.both(b + "kv_b", [heads * (nope + v), latent], h + "kv_b_proj.weight")
        p.both(b + "output", [256, heads * v], h + "o_proj.weight")
    return p


def chatglm(fmt, fused):
    """GLM-4-9B as its own code names the tensors, and as transformers does."""
    p = gate_and_up(without_experts("chatglm", fmt, 55, bias=True), 2)
    p.key(rope__freq_base=5e4, rope__dimension_count=32)
    p.config.update(model_type="glm", rope_theta=5e4, attention_bias=True, partial_rotary_factor=0.5, head_dim=64)
    of = {t[0]: t for t in p.gguf}
    for i in range(2 if fused else 0):
        for ending in ("weight", "bias"):
            parts = [of[f"blk.{i}.attn_{g}.{ending}"] for g in "qkv"]
            p.gguf = [t for t in p.gguf if t not in parts]
            p.gguf.append((f"blk.{i}.attn_qkv.{ending}", parts[0][1], [512, *parts[0][2][1:]], b"".join(t[3] for t in parts)))
    return p


def qwen2(fmt):
    p = without_experts("qwen2", fmt, 22, tied=True, bias=True)
    p.key(rope__freq_base=1e6)
    p.config.update(rope_theta=1e6)
    return p


def exaone(fmt):
    p = without_experts("exaone", fmt, 45)
    p.key(rope__freq_base=5e5, rope__dimension_count=64)
    p.config.update(model_type="llama", rope_theta=5e5)
    return p


def qwen3(fmt):
    p = without_experts("qwen3", fmt, 23, qk_norm=True)
    p.key(rope__freq_base=1e6, attention__key_length=64, attention__value_length=64)
    p.config.update(rope_theta=1e6, head_dim=64)
    return p


def ernie4_5(fmt):
    p = without_experts("ernie4_5", fmt, 36, tied=True)
    p.key(rope__freq_base=5e5, attention__key_length=64, attention__value_length=64)
    p.config.update(rope_theta=5e5, head_dim=64)
    return p


AROUND = ("attn_norm", "input_layernorm", "post_attention_norm", "post_attention_layernorm", "ffn_norm", "pre_feedforward_layernorm", "post_ffw_norm",
          "post_feedforward_layernorm")


def gemma2(fmt):
    p = without_experts("gemma2", fmt, 24, tied=True, norms=AROUND, shift=1)
    p.key(attention__key_length=64, attention__value_length=64, attention__sliding_window=16, attn_logit_softcapping=2.0, final_logit_softcapping=30.0)
    p.config.update(head_dim=64, sliding_window=16, attn_logit_softcapping=2.0, final_logit_softcapping=30.0, query_pre_attn_scalar=64,
                    hidden_act="gelu_pytorch_tanh")
    return p


def gemma3(fmt):
    p = without_experts("gemma3", fmt, 25, layers=7, tied=True, norms=AROUND, shift=1, qk_norm=True)
    p.key(attention__key_length=64, attention__value_length=64, attention__sliding_window=16, rope__freq_base=1e6, rope__scaling__type="linear",
          rope__scaling__factor=8.0)
    p.config.update(model_type="gemma3_text", head_dim=64, sliding_window=16, rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 8.0},
                    query_pre_attn_scalar=64, hidden_activation="gelu_pytorch_tanh")
    p.leaves_out.append("hidden_act")
    return p


def phi3(fmt):
    p = gate_and_up(without_experts("phi3", fmt, 26), 2)
    p.key(rope__freq_base=1e4, rope__dimension_count=48, attention__sliding_window=16)
    p.config.update(rope_theta=1e4, partial_rotary_factor=0.75, sliding_window=16)
    of = {t[0]: t for t in p.gguf}
    for i in range(2):
        parts = [of[f"blk.{i}.attn_{g}.weight"] for g in "qkv"]
        p.gguf = [t for t in p.gguf if t not in parts]
        p.gguf.append((f"blk.{i}.attn_qkv.weight", parts[0][1], [512, 256], b"".join(t[3] for t in parts)))
        h = f"model.layers.{i}.self_attn."
        p.hf[h + "qkv_proj.weight"] = ([512, 256], sum((p.hf.pop(f"{h}{g}_proj.weight")[1] for g in "qkv"), array.array("f")))
    return p


def smollm3(fmt):
    p = without_experts("smollm3", fmt, 27, layers=5, tied=True, permute=True)
    p.key(rope__freq_base=5e6, rope__dimension_count=64)
    p.config.update(rope_theta=5e6)
    return p


def glm4(fmt):
    norms = ("attn_norm", "input_layernorm", "post_attention_norm", "post_self_attn_layernorm", "ffn_norm", "post_attention_layernorm", "post_ffw_norm",
             "post_mlp_layernorm")
    p = gate_and_up(without_experts("glm4", fmt, 28, norms=norms, bias=True), 2)
    p.key(rope__freq_base=1e4, rope__dimension_count=32)
    p.config.update(rope_theta=1e4, attention_bias=True, partial_rotary_factor=0.5)
    return p


def glm4v(fmt):
    """GLM-4.1V: llama.cpp has the even rows of what turns in each head before the odd ones."""
    p = glm4(fmt)
    p.key(rope__dimension_sections=[4, 6, 6, 0])
    for name, (shape, f) in p.hf.items():
        if ".q_proj." not in name and ".k_proj." not in name:
            continue
        each = len(f) // shape[0]
        rows = [f[i * each:(i + 1) * each] for i in range(shape[0])]
        for head in range(0, shape[0], 64):
            rows[head:head + 32] = [rows[head + i // 2 + i % 2 * 16] for i in range(32)]
        p.hf[name] = (shape, array.array("f", [x for row in rows for x in row]))
    return p


def gemma(fmt):
    p = without_experts("gemma", fmt, 53, tied=True, shift=1)
    p.key(attention__key_length=64, attention__value_length=64)
    p.config.update(head_dim=64, hidden_act="gelu_pytorch_tanh")
    return p


def olmo2(fmt):
    norms = ("post_attention_norm", "post_attention_layernorm", "post_ffw_norm", "post_feedforward_layernorm")
    p = without_experts("olmo2", fmt, 29, norms=norms)
    p.key(rope__freq_base=5e5)
    p.config.update(rope_theta=5e5)
    for i in range(2):
        p.norm(f"blk.{i}.attn_q_norm", 256, f"model.layers.{i}.self_attn.q_norm.weight")
        p.norm(f"blk.{i}.attn_k_norm", 128, f"model.layers.{i}.self_attn.k_norm.weight")
    return p


def seed_oss(fmt):
    p = without_experts("seed_oss", fmt, 30, bias=True, norms=("attn_norm", "input_layernorm", "post_attention_norm", "post_attention_layernorm"))
    p.key(rope__freq_base=1e7, attention__key_length=64, attention__value_length=64)
    p.config.update(rope_theta=1e7, head_dim=64, attention_bias=True)
    return p


def granite(fmt):
    p = without_experts("granite", fmt, 31, tied=True, permute=True)
    p.key(rope__freq_base=1e7, rope__dimension_count=64, attention__scale=0.02, embedding_scale=12.0, residual_scale=0.22, logit_scale=8.0)
    p.config.update(rope_theta=1e7, attention_multiplier=0.02, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0)
    return p


def minicpm(fmt):
    """Granite's factors, which config.json gives by other names."""
    p = without_experts("minicpm", fmt, 51, tied=True, permute=True)
    p.key(rope__freq_base=1e4, rope__dimension_count=64, embedding_scale=12.0, residual_scale=0.7 / 2**0.5, logit_scale=4.0)
    p.config.update(rope_theta=1e4, scale_emb=12.0, scale_depth=0.7, dim_model_base=64)
    return p


def nemotron(fmt):
    """Layer norms with biases, whose published weights lack 1; half of each head turns; squared ReLU."""
    p = without_experts("nemotron", fmt, 52, shift=1)
    p.key(rope__freq_base=1e4, rope__dimension_count=32, attention__layer_norm_epsilon=1e-5)
    del p.meta["nemotron.attention.layer_norm_rms_epsilon"]
    p.config.update(rope_theta=1e4, norm_eps=1e-5, hidden_act="relu2", partial_rotary_factor=0.5)
    p.leaves_out = ["rms_norm_eps"]
    p.gguf = [t for t in p.gguf if "ffn_gate" not in t[0]]
    p.hf = {name: t for name, t in p.hf.items() if "gate_proj" not in name}
    for name, hf in [("output_norm", "model.norm")] + [(f"blk.{i}.{a}", f"model.layers.{i}.{b}") for i in range(2) for a, b in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"))]:
        p.both(name + ".bias", [256], hf + ".bias", "F32", 0.3)
    return p


def muse_glimmer(fmt):
    """Norms around the blocks, whose published weights lack 1; a gate of the attention's output; the factor of scores, in GGUF as weights of the queries' norm."""
    p = without_experts("muse-glimmer", fmt, 48, layers=3, shift=1, permute=True,
                        norms=("attn_norm", "input_layernorm", "ffn_norm", "pre_feedforward_layernorm", "post_attention_norm", "post_attention_layernorm", "post_ffw_norm",
                               "post_feedforward_layernorm"))
    p.hf["model.norm.weight"] = ([256], array.array("f", [x + 1 for x in p.hf["model.norm.weight"][1]]))
    windows = [True, False, True]
    p.key(rope__freq_base=2e4, rope__freq_base_swa=2e4, rope__dimension_count=64, attention__key_length=64, attention__value_length=64, attention__sliding_window=9,
          attention__sliding_window_pattern=windows, final_logit_softcapping=6.0, logit_scale=0.7)
    for i in range(3):
        p.both(f"blk.{i}.attn_gate", [256, 256], f"model.layers.{i}.self_attn.gate_proj.weight")
        for g, factor in (("q", 2.5), ("k", 1.0)):
            p.gguf.append((f"blk.{i}.attn_{g}_norm.weight", "F32", [64], array.array("f", [factor] * 64).tobytes()))
    p.hf = {k.replace("model.", "model.language_model."): v for k, v in p.hf.items()}
    text = {**p.config, "model_type": "muse_glimmer_text", "head_dim": 64, "hidden_activation": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
            "qk_scale_factor": 2.5, "output_multiplier": 0.7, "final_logit_softcapping": 6.0, "sliding_window": 9, "post_norm_eps": 1e-8,
            "layer_types": ["sliding_attention" if w else "full_attention" for w in windows], "layer_rope_theta": [2e4 * w for w in windows],
            "rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}
    p.config = {"model_type": "muse_glimmer", "vocab_size": 288, "text_config": text}
    p.leaves_out = ["vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act"]
    return p


def mistral3(fmt):
    """YaRN, and queries scaled by position."""
    p = without_experts("mistral3", fmt, 32, permute=True)
    p.key(rope__freq_base=1e6, rope__dimension_count=64, attention__key_length=64, attention__value_length=64, rope__scaling__type="yarn",
          rope__scaling__factor=4.0, rope__scaling__original_context_length=16, rope__scaling__yarn_beta_fast=32.0, rope__scaling__yarn_beta_slow=1.0,
          rope__scaling__yarn_log_multiplier=1.0, attention__temperature_scale=0.1)
    p.config.update(model_type="ministral3", head_dim=64,
                    rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
                                     "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1})
    return p


def lfm2(fmt):
    """Short convolutions in two of three layers; GGUF has the width of the FFN after config.json's adjustment."""
    p = Pair("lfm2", fmt, 35)
    p.key(block_count=3, context_length=512, embedding_length=256, attention__layer_norm_rms_epsilon=1e-6, attention__head_count=4, attention__head_count_kv=[0, 2, 0],
          feed_forward_length=512, shortconv__l_cache=3, rope__freq_base=1e6, vocab_size=288)
    p.config.update(model_type="lfm2", vocab_size=288, hidden_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, block_ff_dim=768,
                    block_multiple_of=64, block_ffn_dim_multiplier=1.0, full_attn_idxs=[1], conv_L_cache=3, rope_theta=1000000.0, norm_eps=1e-6, tie_word_embeddings=True)
    p.leaves_out = ["rms_norm_eps", "hidden_act"]
    p.both("token_embd", [288, 256], "model.embed_tokens.weight", spread=1 / 16)
    p.norm("token_embd_norm", 256, "model.embedding_norm.weight")
    for i in range(3):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        p.norm(b + "attn_norm", 256, h + "operator_norm.weight")
        p.norm(b + "ffn_norm", 256, h + "ffn_norm.weight")
        if i == 1:
            for g, name, rows in (("q", "q_proj", 256), ("k", "k_proj", 128), ("v", "v_proj", 128), ("output", "out_proj", 256)):
                p.both(f"{b}attn_{g}", [rows, 256], f"{h}self_attn.{name}.weight")
            for g in "qk":
                p.norm(f"{b}attn_{g}_norm", 64, f"{h}self_attn.{g}_layernorm.weight")
        else:
            p.both(b + "shortconv.in_proj", [768, 256], h + "conv.in_proj.weight")
            p.both(b + "shortconv.conv", [256, 3], h + "conv.conv.weight", "F32", 0.5)
            p.hf[h + "conv.conv.weight"] = ([256, 1, 3], p.hf[h + "conv.conv.weight"][1])
            p.both(b + "shortconv.out_proj", [256, 256], h + "conv.out_proj.weight")
        for g, name, shape in (("gate", "w1", [512, 256]), ("up", "w3", [512, 256]), ("down", "w2", [256, 512])):
            p.both(f"{b}ffn_{g}", shape, f"{h}feed_forward.{name}.weight")
    return p


def arcee(fmt):
    """Squared ReLU of one matrix instead of a gate times another."""
    p = without_experts("arcee", fmt, 35, permute=True)
    p.key(rope__freq_base=5e5, rope__dimension_count=64, vocab_size=288)
    p.config.update(rope_theta=5e5, hidden_act="relu2", rms_norm_eps=1e-6)
    p.gguf = [t for t in p.gguf if "ffn_gate" not in t[0]]
    p.hf = {name: t for name, t in p.hf.items() if "gate_proj" not in name}
    return p


def command_r(fmt):
    """Attention and FFN side by side after one LayerNorm; rotation in all layers."""
    p = without_experts("command-r", fmt, 34, tied=True, norms=("attn_norm", "input_layernorm"))
    p.key(rope__freq_base=5e4, rope__scaling__type="none", attention__layer_norm_epsilon=1e-5, logit_scale=0.25)
    del p.meta["command-r.attention.layer_norm_rms_epsilon"]
    p.config.update(model_type="cohere", rope_theta=5e4, layer_norm_eps=1e-5, logit_scale=0.25)
    p.leaves_out = ["rms_norm_eps"]
    return p


def cohere2(fmt):
    """Attention and FFN side by side after one LayerNorm; a window, and rotation, in three of four layers."""
    p = without_experts("cohere2", fmt, 33, layers=4, tied=True, norms=("attn_norm", "input_layernorm"))
    p.key(rope__freq_base=5e4, rope__dimension_count=64, rope__scaling__type="none", attention__layer_norm_epsilon=1e-5, attention__sliding_window=24, logit_scale=0.25)
    del p.meta["cohere2.attention.layer_norm_rms_epsilon"]
    p.config.update(rope_theta=5e4, layer_norm_eps=1e-5, sliding_window=24, sliding_window_pattern=4, logit_scale=0.25)
    p.leaves_out = ["rms_norm_eps"]
    return p


def exaone4(fmt):
    """Norms after the blocks. llama.cpp knows windows in the model of 64 layers only."""
    p = without_experts("exaone4", fmt, 34, qk_norm=True, norms=("post_attention_norm", "post_attention_layernorm", "post_ffw_norm", "post_feedforward_layernorm"))
    p.key(rope__freq_base=1e6, vocab_size=288)
    p.config.update(rope_theta=1e6, sliding_window=None)
    return p


def hunyuan_dense(fmt):
    p = without_experts("hunyuan-dense", fmt, 35)
    p.key(rope__freq_base=1e4 * 1000 ** (64 / 62), rope__scaling__type="none", rope__scaling__factor=1.0)
    p.config.update(model_type="hunyuan_v1_dense", head_dim=64, rope_theta=1e4, rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0})
    for i in range(2):
        p.norm(f"blk.{i}.attn_q_norm", 64, f"model.layers.{i}.self_attn.query_layernorm.weight")
        p.norm(f"blk.{i}.attn_k_norm", 64, f"model.layers.{i}.self_attn.key_layernorm.weight")
    return p
