#!/usr/bin/env python3
"""GGUF files made from ../shared/fixtures as llama.cpp's scripts convert them, against the fixtures' logits, which transformers computed; and files made from
models of models.py, against hearth's logits of the checkpoint.
gguf_fixtures.py HEARTH SHARED [FIXTURE]"""
import array
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import gguf_convert as convert  # noqa: E402
import gguf_convert_more as more  # noqa: E402
import models  # noqa: E402
import ollama_file  # noqa: E402

HEARTH = os.path.abspath(sys.argv[1])
TOLERANCE = 2e-4
FAMILIES = {"jamba": convert.jamba, "granitemoehybrid": convert.granitehybrid, "nemotron_h": convert.nemotron_h, "gemma4": convert.gemma4,
            "lfm2_moe": convert.lfm2moe, "step3p7": convert.step35, "mimo_v2_flash": convert.mimo2, "afmoe": convert.afmoe, "exaone_moe": convert.exaone_moe,
            "llama4": convert.llama4, "glm4_moe_lite": more.glm4_moe_lite, "glm_moe_dsa": more.glm_dsa, "mistral4": more.mistral4, "qwen3_5_moe": convert.qwen35,
            "laguna": more.laguna, "cohere2_moe": more.cohere2moe, "hy_v3": more.hy_v3, "deepseek_v32": more.deepseek32,
            "hy_v4": more.hy_v4, "deepseek_v4": more.deepseek4, "bailing_hybrid": more.bailingmoe3, "glm5_next": more.glm5_next,
            "qwen4_exp": more.qwen4exp}
AGAIN = {"mistral4": more.mistral_large3, "cohere2_moe": lambda d: renamed(more.cohere2moe(d), "cohere2_moe")}  # as other architectures of llama.cpp, or of ik_llama.cpp
# With a vocabulary for the converter's tokenizer, and what llama.cpp needs: keys of the last two own layers, of which the second is global; one size of
# DeltaNet's heads; heads of an indexer that are multiples of 64, and many of them, because it breaks ties between keys otherwise; an epsilon with which it may
# also norm the queries and keys of Kimi delta attention.
OWN = {"mla_sizes": (more.dots3note, {"vocab_size": 288, "n_group": 1, "topk_group": 1, "swa_q_lora_rank": 40, "swa_qk_nope_head_dim": 28, "moe_shared_expert_intermediate_size": 40}),
       "token_input": (convert.gemma4, {"vocab_size": 288, "vocab_size_per_layer_input": 288, "num_kv_shared_layers": 5}),
       "dsa_halves": (more.deepseek32, {"vocab_size": 288, "index_head_dim": 64, "index_n_heads": 32}),
       "dsa_shared": (more.glm_dsa, {"vocab_size": 288, "index_head_dim": 64}),
       "streams": (more.deepseek4, {"vocab_size": 288, "hc_mult": 4, "index_head_dim": 64, "index_n_heads": 32,
                                    "rope_scaling": {**models.MODELS["streams"]["rope_scaling"], "beta_fast": 32}, "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}}),
       "kda_residuals": (more.kimi_k3, {"text_config": {**models.MODELS["kda_residuals"]["text_config"], "vocab_size": 288, "rms_norm_eps": 1e-6}}),
       "dense_blocks": (more.deci, {"vocab_size": 288}),
       "dense_learned": (more.apertus, {"vocab_size": 288}),
       # norms after the gate, as all published models have
       "mamba_beside": (more.falcon_h1, {"vocab_size": 288, "mamba_norm_before_gate": False}),
       "delta_dense": (convert.qwen35, {"vocab_size": 288, "linear_key_head_dim": 32, "linear_value_head_dim": 32})}
OLLAMA = ("qwen3_5_moe", "gemma4", "laguna", "glm4_moe_lite", "nemotron_h", "llama4")  # also as ollama's converter wrote them
POSITIONS = {"llama4": 38}  # that do not depend on values which the format lacks


def renamed(model, arch):
    old = model.meta["general.architecture"]
    model.meta = {k.replace(old + ".", arch + ".", 1) if k.startswith(old + ".") else k: v for k, v in model.meta.items()}
    model.meta["general.architecture"] = arch
    return model


def as_ollama(model):
    tensor = type(model.out[0][1])([4, 8], array.array("f", [0] * 32))
    model.meta, model.out = ollama_file.rewrite(model.meta, model.out, (tensor,))
    return model


def logits(file, tokens, *args):
    out = file + ".logits"
    p = subprocess.run([HEARTH, "-m", file, "--tokens", ",".join(map(str, tokens)), "--logits-out", out, "--kv", "f32", *args], capture_output=True, text=True, timeout=300)
    if p.returncode:
        return f"exit {p.returncode} {p.stderr.strip()}"
    with open(out, "rb") as f:
        return array.array("f", f.read())


def compare(name, directory, file):
    """Returns the largest difference, relative to the largest logit of its sequence, or a message."""
    with open(os.path.join(directory, "golden.json")) as f:
        sequences = json.load(f)["sequences"]
    worst = 0
    for s in sequences:
        with open(os.path.join(directory, s["logits"]), "rb") as f:
            want = array.array("f", f.read())
        n = min(s["shape"][0], POSITIONS.get(name, 1 << 30))
        want = want[: n * s["shape"][1]]
        got = logits(file, s["tokens"][:n], "--cpu", "scalar")
        if isinstance(got, str) or len(got) != len(want):
            return got if isinstance(got, str) else f"{len(got)} logits instead of {len(want)}"
        worst = max(worst, max(abs(a - b) if a == a else 1e30 for a, b in zip(got, want)) / max(map(abs, want)))
    return worst


def make_own(name, tmp):
    """Writes a model of OWN as a checkpoint and as GGUF; returns both paths."""
    make, changes = OWN[name]
    models.MODELS["changed"] = {**models.MODELS[name], **changes}
    directory, file = os.path.join(tmp, name), os.path.join(tmp, name + ".gguf")
    models.make(directory, "changed")
    make(directory).save(file)
    return directory, file


def compare_own(name):
    with tempfile.TemporaryDirectory() as tmp:
        want, got = (logits(path, [i * 7 % 288 for i in range(48)], "--cpu", "scalar") for path in make_own(name, tmp))
    if isinstance(want, str) or isinstance(got, str):
        return want if isinstance(want, str) else got
    return max(abs(a - b) for a, b in zip(got, want)) / max(map(abs, want))


def odd_width():
    """The message on FFN widths by layer that no config.json can say."""
    with tempfile.TemporaryDirectory() as tmp:
        directory, file = make_own("token_input", tmp)
        m = convert.gemma4(directory)
        m.meta["gemma4.feed_forward_length"][1] += 8
        m.save(file)
        return logits(file, [1], "--cpu", "scalar")


def main():
    failed = done = 0
    for name in OWN:
        if name in (sys.argv[3:] or OWN):
            worst = compare_own(name)
            good = not isinstance(worst, str) and worst <= 1e-5
            done, failed = done + 1, failed + (not good)
            print(f"{'' if good else 'FAILED '}{name}: {worst if isinstance(worst, str) else f'off by {worst:.2g}'}", flush=True)
    for name, make in [*FAMILIES.items(), *AGAIN.items(), *((n, lambda d, n=n: as_ollama(FAMILIES[n](d))) for n in OLLAMA)]:
        directory = os.path.join(sys.argv[2], "fixtures", name)
        if not os.path.isdir(directory) or name not in (sys.argv[3:] or FAMILIES):
            continue
        with tempfile.TemporaryDirectory() as tmp:
            file = os.path.join(tmp, name + ".gguf")
            make(directory).save(file)
            worst = compare(name, directory, file)
        done += 1
        good = not isinstance(worst, str) and worst <= TOLERANCE
        failed += not good
        print(f"{'' if good else 'FAILED '}{name}: {worst if isinstance(worst, str) else f'off by {worst:.2g}'}", flush=True)
    if "'gemma4.feed_forward_length' differs between layers" not in odd_width():
        failed += 1
        print("FAILED token_input: FFNs of odd widths are accepted")
    if not os.path.isdir(os.path.join(sys.argv[2], "fixtures")):
        print(f"SKIPPED: no fixtures in {sys.argv[2]}")
    print(f"{done} models, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
