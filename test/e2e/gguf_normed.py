"""Small random dense models with layer norms (engine/model/gguf_normed.c), each as a pair of files (gguf_pair.py)."""
import array

from gguf_dense import without_experts

LAYERS, HEADS, KV = 2, 4, 2


def layer_norms(arch, fmt, seed, biased, second=True, gates=False, **options):
    """biased: matrices with biases, beside q, k and v. second: FFNs have a norm of their own."""
    p = without_experts(arch, fmt, seed, **options)
    p.key(rope__freq_base=2e4, attention__layer_norm_epsilon=1e-5)
    del p.meta[f"{arch}.attention.layer_norm_rms_epsilon"]
    p.config.update(rope_theta=2e4)
    p.leaves_out = ["rms_norm_eps"]

    def drop(gguf, hf):
        p.gguf = [t for t in p.gguf if gguf not in t[0]]
        p.hf = {name: t for name, t in p.hf.items() if hf not in name}
    if not gates:
        drop("ffn_gate", "gate_proj")
    if not second:
        drop("ffn_norm", "post_attention_layernorm")
    names = [("output_norm", "model.norm", 256)]
    for i in range(LAYERS):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        names += [(b + "attn_norm", h + "input_layernorm", 256)] + [(b + "ffn_norm", h + "post_attention_layernorm", 256)] * second
        names += [(b + g, f"{h}{x}_proj", n) for g, x, n in (("attn_output", "self_attn.o", 256), ("ffn_up", "mlp.up", 512), ("ffn_down", "mlp.down", 256))] if biased else []
    for name, hf, n in names:
        p.both(name + ".bias", [n], hf + ".bias", "F32", 0.3)
    return p


def rename(p, *pairs):
    for old, new in pairs:
        p.hf = {name.replace(old, new): t for name, t in p.hf.items()}
    return p


def join(p, kv, name):
    """q, k and v as one tensor: in GGUF all of q, then k, then v; published in a piece for each KV head."""
    of = {t[0]: t for t in p.gguf}
    for i in range(LAYERS):
        for end in [e for e in ("weight", "bias") if f"blk.{i}.attn_q.{e}" in of]:
            parts = [of[f"blk.{i}.attn_{g}.{end}"] for g in "qkv"]
            p.gguf = [t for t in p.gguf if t not in parts]
            rows = sum(t[2][0] for t in parts)
            p.gguf.append((f"blk.{i}.attn_qkv.{end}", parts[0][1], [rows, *parts[0][2][1:]], b"".join(t[3] for t in parts)))
            shapes, whole = [p.hf.pop(f"model.layers.{i}.self_attn.{g}_proj.{end}") for g in "qkv"], array.array("f")
            for j in range(kv):
                for _, f in shapes:
                    whole.extend(f[j * len(f) // kv : (j + 1) * len(f) // kv])
            p.hf[f"model.layers.{i}.{name}.{end}"] = [rows, *shapes[0][0][1:]], whole
    return p


def starcoder2(fmt):
    p = layer_norms("starcoder2", fmt, 60, True, tied=True, bias=True)
    p.config.update(norm_epsilon=1e-5, hidden_act="gelu_pytorch_tanh", sliding_window=4096)
    return rename(p, ("up_proj", "c_fc"), ("down_proj", "c_proj"))


def phi2(fmt):
    p = layer_norms("phi2", fmt, 61, True, second=False, bias=True)
    p.key(rope__dimension_count=32)
    p.both("output.bias", [288], "lm_head.bias", "F32", 0.3)
    p.config.update(model_type="phi", layer_norm_eps=1e-5, hidden_act="gelu_new", partial_rotary_factor=0.5)
    return rename(p, ("self_attn.o_proj", "self_attn.dense"), ("up_proj", "fc1"), ("down_proj", "fc2"), ("model.norm", "model.final_layernorm"))


def gptneox(fmt, parallel=True):
    p = join(layer_norms("gptneox", fmt, 62, True, bias=True, kv=HEADS), HEADS, "attention.query_key_value")
    p.key(rope__dimension_count=16, use_parallel_residual=parallel)
    p.config.update(model_type="gpt_neox", hidden_act="gelu", layer_norm_eps=1e-5, rotary_pct=0.25, rotary_emb_base=2e4, use_parallel_residual=parallel)
    p.leaves_out += ["rope_theta", "num_key_value_heads"]
    return rename(p, ("self_attn.o_proj", "attention.dense"), ("up_proj", "dense_h_to_4h"), ("down_proj", "dense_4h_to_h"), ("model.norm", "gpt_neox.final_layer_norm"),
                  ("model.layers", "gpt_neox.layers"), ("model.embed_tokens", "gpt_neox.embed_in"), ("lm_head", "embed_out"))


def falcon(fmt, norms=1):
    p = join(layer_norms("falcon", fmt, 63, False, second=norms == 2, tied=norms == 1), KV, "self_attention.query_key_value")
    p.key(tensor_data_layout="jploski")
    p.config.update(layer_norm_epsilon=1e-5, activation="gelu", new_decoder_architecture=True, num_kv_heads=KV, ffn_hidden_size=512, num_ln_in_parallel_attn=norms)
    p.leaves_out += ["hidden_act", "num_key_value_heads", "intermediate_size"]
    if norms == 2:
        p.gguf = [(n.replace("attn_norm", "attn_norm_2").replace("ffn_norm", "attn_norm"), *t) for n, *t in p.gguf]
        rename(p, ("input_layernorm", "ln_attn"), ("post_attention_layernorm", "ln_mlp"))
    return rename(p, ("self_attn.o_proj", "self_attention.dense"), ("up_proj", "dense_h_to_4h"), ("down_proj", "dense_4h_to_h"), ("model.norm", "transformer.ln_f"),
                  ("model.layers", "transformer.h"), ("model.embed_tokens", "transformer.word_embeddings"))


def jais2(fmt):
    p = layer_norms("jais2", fmt, 64, True, bias=True)
    p.config.update(layer_norm_eps=1e-5, hidden_act="relu2", attention_bias=True, mlp_bias=True)
    return p


def stablelm(fmt, parallel=False):
    p = layer_norms("stablelm", fmt, 65, False, second=not parallel, gates=True, bias=True)
    p.key(rope__dimension_count=16, use_parallel_residual=parallel)
    p.config.update(layer_norm_eps=1e-5, partial_rotary_factor=0.25, use_parallel_residual=parallel, use_qkv_bias=True)
    return p


def olmo(fmt):
    p = layer_norms("olmo", fmt, 66, False, gates=True, permute=True)
    p.key(attention__clamp_kqv=0.75)
    p.config.update(clip_qkv=0.75)
    p.gguf = [t for t in p.gguf if "norm" not in t[0]]
    p.hf = {name: t for name, t in p.hf.items() if "norm" not in name}
    return p
