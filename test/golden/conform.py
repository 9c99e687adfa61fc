#!/usr/bin/env python3
"""Runs the independent references' own checker against the binary, where ../shared has them. With `pieces`: our pieces.c on
their sequences of 200 tokens, with every CPU level, prefills after a prefix, decoding, emulated devices.
conform.py HEARTH SHARED WHAT [ARG...] | conform.py PIECES SHARED pieces [all]; exit 77 (skipped) without them.
tokenizer EACH: one text in EACH of the long list, because each is a process; test_tokenizer_vendors.c runs all of them through the same code."""
import json
import os
import subprocess
import sys
import tempfile

from part import choose

FAMILIES = ["deepseek_v3", "deepseek_v3_nogroup", "deepseek_v2_lite", "qwen3_moe", "mixtral", "qwen2_moe", "glm4_moe", "minimax_m2",
            "gpt_oss", "phimoe", "dbrx", "deepseek_v32", "glm_moe_dsa", "qwen3_next", "qwen3_5_moe", "deepseek_v4",
            "afmoe", "exaone_moe", "cohere2_moe", "olmoe", "granitemoe", "ernie4_5_moe", "glm4_moe_lite", "qwen3_vl_moe", "hunyuan_v1_moe",
            "hy_v3", "dots1", "bailing_moe_v2", "mistral4", "mimo_v2_flash", "step3p7", "longcat_flash", "laguna", "llama4",
            "kimi_k2_int4", "kimi_k25", "qwen3_moe_nvfp4", "qwen3_moe_nvfp4_packed", "qwen3_moe_awq", "qwen3_moe_gptq",
            "lfm2_moe", "minimax", "granitemoehybrid", "kimi_linear", "bailing_hybrid", "glm5_next", "gemma4", "hy_v4", "inkling", "qwen4_exp", "nemotron_h", "jamba", "zaya",
            "minimax_m3_vl",
            # without experts
            "llama", "qwen2", "qwen3", "qwen3_fp8", "mistral", "gemma3", "phi3", "smollm3", "gemma2", "gemma3_text", "ministral3", "glm4", "olmo3", "seed_oss", "granite"]

FLIPS = ["qwen3_moe_nvfp4_packed"]  # with BF16 activations and BF16 keys one position in 200 takes another expert

hearth, shared, what, *more = sys.argv[1:]
checker = os.path.join(shared, "check", "conform.py")
if not os.path.exists(checker):
    print(f"SKIPPED: no references at {shared}")
    sys.exit(77)
exact = "scalar" in " ".join(more)
fixtures = [os.path.join(shared, "fixtures", f) for f in FAMILIES if (exact or f not in FLIPS) and os.path.isdir(os.path.join(shared, "fixtures", f))]
KINDS = ["deepseek_v3", "qwen3_moe", "gpt_oss", "qwen3_next", "glm_moe_dsa", "deepseek_v4", "llama", "gemma3", "afmoe", "cohere2_moe", "lfm2_moe", "minimax",
         "granitemoehybrid", "kimi_linear", "bailing_hybrid", "glm5_next", "gemma4", "hy_v4", "inkling", "qwen4_exp", "nemotron_h", "jamba", "zaya", "minimax_m3_vl"]
if what == "pieces":  # without `all`: a third of one family per kind of attention; our own references cover the others in pieces
    failed = 0
    third = 0
    names = FAMILIES if more == ["all"] else choose(KINDS, 6)
    for d in fixtures:
        if os.path.basename(d) not in names:
            continue
        if d.endswith(("phimoe", "phi3")):
            continue  # positions past its original length rotate all keys differently: no reference for a sequence in pieces (positions.py has ours)
        with open(os.path.join(d, "golden.json"), encoding="utf-8") as f:
            s = json.load(f)["sequences"][-1]
        print(d, flush=True)
        share = [] if more == ["all"] else [str(third % 3)]  # of the devices' cases; three families together cover all
        third += 1
        failed += subprocess.run([os.path.abspath(hearth), d, ",".join(map(str, s["tokens"])), os.path.join(d, s["logits"]), *share]).returncode != 0
    sys.exit(failed != 0 or not fixtures)
def thinned(source, to, each):
    """Links the vocabularies' directory, with one line in `each` of the long list of texts, and of their ids."""
    for name in os.listdir(source):
        if not name.startswith("mixed_"):
            os.symlink(os.path.abspath(os.path.join(source, name)), os.path.join(to, name))
            continue
        with open(os.path.join(source, name), newline="", encoding="utf-8") as f:
            lines = f.read().rstrip("\n").split("\n")
        with open(os.path.join(to, name), "w", newline="", encoding="utf-8") as f:
            f.write("\n".join(lines[::each]) + "\n")


dirs = fixtures if what == "logits" else [os.path.join(shared, what + "s" if what == "tokenizer" else what)]
with tempfile.TemporaryDirectory() as tmp:
    if what == "tokenizer":
        thinned(dirs[0], tmp, int(more.pop()))
        dirs = [tmp]
    p = subprocess.run([sys.executable, checker, what, hearth, *dirs, *more], capture_output=True, text=True)
print(p.stdout, p.stderr)
sys.exit(p.returncode != 0)
