#!/usr/bin/env python3
"""A checkpoint of Mistral Large 4 gives the same logits under the published names of its tensors and under those of transformers, with a layer's experts in
one tensor or one by one. A tensor without elements that the family lacks changes nothing; one with elements is refused. A text model inside a model with
images, of a family that hearth does not know, gives the logits that it gives alone, and its tensors may have any prefix.
names.py HEARTH"""
import array
import os
import re
import sys

import models
from checkpoint import logits

NAMES = (("tok_embeddings", "M.embed_tokens"), ("norm", "M.norm"), ("output", "lm_head"), ("lerope", "M.rotary_emb"), (r"layers\.(\d+)", r"M.layers.\1"))
PARTS = (("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attention", "self_attn"), ("wq", "q_proj"), ("wo", "o_proj"),
         ("wkv_a_with_mqa", "kv_a_proj_with_mqa"), ("kv_a_norm", "kv_a_layernorm"), ("wkv_b", "kv_b_proj"), ("feed_forward", "mlp"), ("gate", "mlp.gate"),
         ("experts", "mlp.experts"), ("shared_experts", "mlp.shared_experts"), ("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"),
         (r"ssmax_scaling\.s", "softmax_scaling.scale"), (r"ssmax_scaling\.b", "softmax_scaling.bias"))


def renamed(name):
    for old, new in NAMES:
        name = re.sub(rf"^{old}\.", new.replace("M.", "model.language_model.") + ".", name)
    for old, new in PARTS:
        name = re.sub(rf"(?<=\.){old}(?=\.|$)", new, name)
    return name


def stacked(tensors):
    """The same tensors with those of a layer's experts joined."""
    out = {}
    for name, (dtype, shape, raw) in tensors.items():
        part = re.match(r"(.*\.mlp\.experts\.)\d+\.(gate|up|down)_proj\.weight$", name)
        if not part:
            out[name] = dtype, shape, raw
            continue
        key = part[1] + ("down_proj" if part[2] == "down" else "gate_up_proj")
        old = out.get(key, (dtype, [0, shape[0] * (1 if part[2] == "down" else 2), shape[1]], b""))
        out[key] = dtype, [old[1][0] + (part[2] != "up"), *old[1][1:]], old[2] + raw
    return out


def inside(name, prefix, member, outer):
    """The config and tensors of a text model as part of a larger one: names that begin with prefix[0] begin with prefix[1] instead."""
    text = dict(models.MODELS[name])
    tied = text.get("tie_word_embeddings", False)
    text["tie_word_embeddings"] = False  # the whole model's key decides
    tensors = {prefix[1] + n.removeprefix(prefix[0]) if n.startswith(prefix[0]) else n: t for n, t in models.tensors(models.MODELS[name]).items()}
    config = {"model_type": "some_vl", "image_gates": [1, 2], "tie_word_embeddings": tied, **outer, member: text}
    return config, {"vision_tower.layers.0.norm.weight": ("BF16", [2], bytes(4)), **tensors}


def check_inside(hearth, tokens):
    """Returns the number of failures."""
    failed = 0
    for name, prefix, member, more in (("mla_plain", ("", "language_model."), "text_config", {}), ("gqa_norm", ("model.", "model.language_model."), "text_config", {}),
                                       ("gqa_norm", ("", "llm."), "llm_config", {}), ("gqa_shared", ("", "language."), "language_config", {}),
                                       ("gqa_half", ("model.", "model.text_model."), "text_config", {}),
                                       # the family of the whole is known, but for another text model
                                       ("gqa_norm", ("", "language_model."), "text_config", {"model_type": "mistral3"})):
        got, want = logits(hearth, *inside(name, prefix, member, more), tokens), logits(hearth, models.MODELS[name], models.tensors(models.MODELS[name]), tokens)
        ok = got == want and isinstance(want, bytes)
        print(f"{'ok' if ok else 'FAIL'} {name} with {prefix[1]} in {member} {got if isinstance(got, str) else ''}")
        failed += not ok
    config, tensors = inside("gqa_norm", ("", "language_model."), "text_config", {})
    twice = {**tensors, "model.norm.weight": tensors["language_model.model.norm.weight"]}
    for what, one, tensors_of_one, part in (("both ways", {**config, "model_type": "paligemma"}, tensors, "its prompts see later tokens"),
                                           ("an unknown text model", {**config, "text_config": {**config["text_config"], "model_type": "unknown"}}, tensors, "'some_vl' with 'unknown'"),
                                           ("inside of inside", {**config, "text_config": {"model_type": "mistral3", "text_config": {"model_type": "mistral"}}}, tensors, "some_vl"),
                                           ("a tensor twice", config, twice, "under another name"),
                                           ("an unknown key of the text model", {**config, "text_config": {**config["text_config"], "gates": 3}}, tensors, "'gates'")):
        got = logits(hearth, one, tensors_of_one, tokens)
        ok = isinstance(got, str) and part in got
        print(f"{'ok' if ok else 'FAIL'} {what}: {got if isinstance(got, str) else 'accepted'}")
        failed += not ok
    return failed


def check_bias(hearth, tokens):
    """A.X K1's selection bias, which transformers saves and the published checkpoint lacks: without it, it is 0. Returns the number of failures."""
    config = {**models.MODELS["mla_yarn"], "model_type": "axk1"}
    tensors = models.tensors(models.MODELS["mla_yarn"])
    for i in range(config["num_hidden_layers"]):
        tensors[f"model.layers.{i}.post_mlp_layernorm.weight"] = tensors["model.norm.weight"]
    bias = [n for n in tensors if n.endswith("e_score_correction_bias")]
    without = {n: t for n, t in tensors.items() if n not in bias}
    zero = {n: (t[0], t[1], bytes(len(t[2]))) if n in bias else t for n, t in tensors.items()}
    given, none, zeros = (logits(hearth, config, t, tokens) for t in (tensors, without, zero))
    ok = isinstance(none, bytes) and zeros == none and isinstance(given, bytes) and given != none
    print(f"{'ok' if ok else 'FAIL'} A.X K1's bias {none if isinstance(none, str) else given if isinstance(given, str) else ''}")
    return not ok


def check_sarvam(hearth, tokens):
    """Sarvam 105B's published config gives DeepSeek-V3's keys other names. Returns the number of failures."""
    common = {**models.MODELS["mla_yarn"], "n_group": 1, "topk_group": 1}
    tensors, yarn = models.tensors(models.MODELS["mla_yarn"]), common["rope_scaling"]
    left_out = ("n_routed_experts", "n_shared_experts", "n_group", "topk_group", "topk_method", "scoring_func", "norm_topk_prob")
    published = {**{k: v for k, v in common.items() if k not in left_out}, "model_type": "sarvam_mla", "num_experts": 12, "num_shared_experts": 1, "q_head_dim": 40, "head_dim": 152,
                 "use_qk_norm": True, "moe_router_enable_expert_bias": True, "embedding_dropout": 0.0, "output_dropout": 0.0, "rope_scaling": {**yarn, "type": "deepseek_yarn"}}
    saved = {**common, "model_type": "sarvam_mla", "num_mtp_layers": 0}
    biases = [n for n in tensors if n.endswith("e_score_correction_bias")]
    without = {n: t for n, t in tensors.items() if n not in biases}
    zero = {n: (t[0], t[1], bytes(len(t[2]))) if n in biases else t for n, t in tensors.items()}
    want, unbiased = logits(hearth, common, tensors, tokens), logits(hearth, common, zero, tokens)
    failed = 0
    for what, config, given, expected in (("published", published, tensors, want), ("saved", saved, tensors, want),
                                          ("without a bias", {**published, "moe_router_enable_expert_bias": False}, without, unbiased)):
        got = logits(hearth, config, given, tokens)
        ok = got == expected and isinstance(got, bytes) and want != unbiased
        print(f"{'ok' if ok else 'FAIL'} Sarvam's config, {what} {got if isinstance(got, str) else ''}")
        failed += not ok
    got = logits(hearth, {**published, "q_head_dim": 48}, tensors, tokens)
    ok = isinstance(got, str) and "'q_head_dim' is 48" in got
    print(f"{'ok' if ok else 'FAIL'} heads of another size: {got if isinstance(got, str) else 'accepted'}")
    return failed + (not ok)


def check_alone(hearth, tokens):
    """Gemma 4's text model with the config of the unified one, inside it and alone. Returns the number of failures."""
    text, tensors = models.MODELS["token_input"], models.tensors(models.MODELS["token_input"])
    whole = {"model_type": "gemma4_unified", "tie_word_embeddings": True, "vision_config": {}, "text_config": {**text, "model_type": "gemma4_unified_text"}}
    want = logits(hearth, whole, {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}, tokens)
    got = logits(hearth, {**text, "model_type": "gemma4_unified_text"}, tensors, tokens)
    ok = got == want and isinstance(got, bytes)
    print(f"{'ok' if ok else 'FAIL'} the unified Gemma 4's text model alone {next((x for x in (got, want) if isinstance(x, str)), '')}")
    return not ok


def check_prefixes(hearth, tokens):
    """The prefix of a text model may be any: that of the larger model, of a program's wrapper, or none. Returns the number of failures."""
    failed = 0
    heads = {"language_model.model.": "language_model.", "_orig_mod.model.": "_orig_mod.", "base_model.model.model.": "base_model.model."}
    for name, own in (("gqa_norm", "model."), ("gqa_fourier", "model.language_model.")):
        tensors = models.tensors(models.MODELS[name])
        want = logits(hearth, models.MODELS[name], tensors, tokens)
        others = {"vision_tower.embed.weight": ("BF16", [2], bytes(4)), "mtp.layers.0.norm.weight": ("BF16", [2], bytes(4)), "mtp.embed_tokens.weight": ("BF16", [2], bytes(4))}
        for prefix in ("model.language_model.language_model.", "language_model.model.", "_orig_mod.model.", "base_model.model.model.", "model.", "model.text_model.", ""):
            given = {prefix + n.removeprefix(own) if n.startswith(own) else heads.get(prefix, "") + n: t for n, t in tensors.items()}
            got = logits(hearth, models.MODELS[name], {**({} if prefix == "" else others), **given}, tokens)
            ok = got == want and isinstance(want, bytes)
            print(f"{'ok' if ok else 'FAIL'} {name} with the prefix '{prefix}' {got if isinstance(got, str) else ''}")
            failed += not ok
    twice = {p + n.removeprefix("model."): t for n, t in models.tensors(models.MODELS["gqa_norm"]).items() for p in ("a.", "b.")}
    got = logits(hearth, models.MODELS["gqa_norm"], twice, tokens)
    ok = isinstance(got, str) and "model.embed_tokens.weight is missing" in got
    print(f"{'ok' if ok else 'FAIL'} two text models: {got if isinstance(got, str) else 'accepted'}")
    return failed + (not ok)


def turned(tensors):
    """The same tensors with the matrices of stacked experts stored as [columns, rows]."""
    out = {}
    for name, (dtype, shape, raw) in tensors.items():
        if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            n, rows, cols = shape
            at = [2 * (e * rows * cols + r * cols + c) for e in range(n) for c in range(cols) for r in range(rows)]
            shape, raw = [n, cols, rows], b"".join(raw[i : i + 2] for i in at)
        out[name] = dtype, shape, raw
    return out


def is_near(a, b):
    """Whether logits differ by rounding only: turned matrices are summed in another order."""
    if not isinstance(a, bytes) or not isinstance(b, bytes):
        return False
    a, b = array.array("f", a), array.array("f", b)
    return len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < 1e-5 * max(map(abs, b))


def check_intern(hearth, tokens):
    """Intern-S1-Pro's experts in one tensor, as transformers saves them and turned, as Qwen3-VL-MoE publishes them. In float32, since
    kernels that round activations to integers differ by more than the order of sums. Returns the number of failures."""
    exact = ("--cpu", "scalar")
    config = {k: v for k, v in models.MODELS["gqa_fourier"].items() if k != "quantization_config"}
    tensors, failed = models.tensors(config), 0
    want = logits(hearth, config, tensors, tokens, *exact)
    for what, other in (("in one tensor", stacked(tensors)), ("in one tensor, turned", turned(stacked(tensors)))):
        got = logits(hearth, config, other, tokens, *exact)
        ok = is_near(got, want)
        print(f"{'ok' if ok else 'FAIL'} Intern-S1-Pro's experts {what} {got if isinstance(got, str) else ''}")
        failed += not ok
    name = "model.language_model.rotary_emb.cos_coef"
    dtype, shape, raw = tensors[name]
    for what, other, part in (("flat", {**tensors, name: (dtype, [shape[0] * shape[1], shape[2]], raw)}, "config.json asks for [2, 9, 9]"),
                              ("missing", {k: t for k, t in tensors.items() if k != name}, "rotary_emb.cos_coef is missing")):
        got = logits(hearth, config, other, tokens, *exact)
        ok = isinstance(got, str) and part in got
        print(f"{'ok' if ok else 'FAIL'} FoPE's weights, {what}: {got if isinstance(got, str) else 'accepted'}")
        failed += not ok
    return failed


hearth = os.path.abspath(sys.argv[1])
config = {k: v for k, v in models.MODELS["dsa_sources"].items() if k != "quantization_config"}
tensors = models.tensors(config)
apart = {renamed(name): t for name, t in tensors.items()}
tokens, failed = ",".join(str(t) for t in range(2, 40)), 0
want = logits(hearth, config, tensors, tokens)
extra = "model.language_model.layers.1.mlp.other.weight"
for what, other in (("one by one", apart), ("in one tensor", stacked(apart)), ("one by one, and an empty tensor", {**apart, extra: ("BF16", [0, 8], b"")})):
    got = logits(hearth, config, other, tokens)
    ok = got == want and isinstance(want, bytes)
    print(f"{'ok' if ok else 'FAIL'} names of transformers, experts {what} {got if isinstance(got, str) else ''}")
    failed += not ok
idle = {f"model.language_model.layers.1.self_attn.{n}": ("F32", [1], bytes(4)) for n in
        ("k_proj.output_scale", "v_proj.output_scale", "kv_scale", "prob_output_scale", "k_zero_point", "q_proj.input_zero_point", "attn.kv_cache_scale")}
got = logits(hearth, config, {**apart, **idle}, tokens)
print(f"{'ok' if got == want else 'FAIL'} scales of caches and outputs {got if isinstance(got, str) else ''}")
failed += got != want
got = logits(hearth, config, {**apart, extra: ("BF16", [1, 8], bytes(16))}, tokens)
ok = isinstance(got, str) and extra in got and "unknown tensor" in got
print(f"{'ok' if ok else 'FAIL'} an unknown tensor: {got if isinstance(got, str) else 'accepted'}")
failed += check_inside(hearth, tokens) + check_bias(hearth, tokens) + check_sarvam(hearth, tokens) + check_alone(hearth, tokens) + check_intern(hearth, tokens) + check_prefixes(hearth, tokens)
sys.exit(failed != 0 or not ok)
