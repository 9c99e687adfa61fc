#!/usr/bin/env python3
"""The binary against a reference beside this file, and with PIECES the engine's ways to cut a sequence (pieces.c).
reference.py HEARTH NAME [PIECES]    NAME: of models.py, or ember_0 and so on. Of the devices' cases of PIECES a third, chosen by the commit
(part.py) and NAME. Nothing but the standard library."""
import array
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

import models
from part import key

HERE = os.path.dirname(os.path.abspath(__file__))
hearth, name, pieces = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
kv = "bf16" if name.endswith("_bf16") else "f32"
BOUND = 5e-4 if kv == "bf16" else 1e-5  # of the largest logit, float32 activations; see pieces.c. BF16 caches: a float32 sum may round to the other neighbour
N_MODES = ([], ["--gpus", "emu:1,cpu=scalar", "--prefill", "slp"], ["--gpus", "emu:2,cpu=scalar", "--prefill", "dslp"])
LATENT = ("stream_gates", "kda_residuals")  # families whose experts are in a latent space: sums of several devices' parts are exchanged there, also in BF16
NARROW = [(["--gpus", f"emu:{devices},cpu=scalar,math=bf16", "--prefill", "dslp"], 2e-2) for devices in ("2", "3,nopeer,chunk=5")]



def greedy(model, tokens, n, mode):
    p = run_greedy(model, tokens, n, mode)
    return json.loads(p.stdout) if p.returncode == 0 else p.stderr


def run_greedy(model, tokens, n, mode):
    args = [hearth, "-m", model, "--tokens", ",".join(map(str, tokens)), "-n", str(n), "--temp", "0", "--ids", "--cpu", "scalar", "--kv", "f32", *mode]
    return subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def across(model, tokens, first):
    """An answer past the length at which LongRoPE turns all keys anew is, token by token, that of the whole text read at once."""
    failed = 0
    for start in (first - 4, first, first + 1):
        whole, n = list(tokens[:start]), 9
        for _ in range(n):
            whole += greedy(model, whole, 1, [])
        for mode in ([], ["--gpus", "emu:1,cpu=scalar", "--decode", "hybrid"]):
            got = greedy(model, tokens[:start], n, mode)
            failed += got != whole[start:]
            print(f"{'ok' if got == whole[start:] else 'FAIL'} {name} from {start} tokens on {' '.join(mode)}: {got}")
    return failed


def pooled(model, tokens):
    """An answer with some experts of each layer on a device, where the family allows it, the others on the CPU, is the CPU's."""
    want = greedy(model, tokens[:10], 20, [])
    got = greedy(model, tokens[:10], 20, ["--gpus", "emu:1,cpu=scalar", "--prefill", "cpu", "--decode", "hybrid", "--expert-cache", "3"])
    print(f"{'ok' if got == want else 'FAIL'} {name} with a pool: {got}")
    return got != want


def drafted(model, tokens):
    """Drafts in four bits of FFNs of several widths, which some layers lack, leave the answer as it is."""
    want, got = (greedy(model, tokens[:10], 20, mode) for mode in ([], ["--draft", "int4", "--draft-len", "3"]))
    print(f"{'ok' if got == want else 'FAIL'} {name} with drafts in four bits: {got}")
    return got != want


def other_tokenizer(model):
    """A tokenizer with other texts would hash n-grams to other rows."""
    path = os.path.join(model, "tokenizer.json")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace('"fi"', '"fj"'))
    got = greedy(model, [5], 1, [])
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    ok = "88 different texts, config.json says 87" in got
    print(f"{'ok' if ok else 'FAIL'} {name} with another tokenizer: {got}")
    return not ok


def in_company(model, tokens):
    """An answer is, token by token, that of the whole text read at once, in every mode; its n-grams reach over the end of the prompt, of drafts and of batches."""
    failed, start = 0, 20
    want = list(tokens[:start])
    for _ in range(9):
        want += greedy(model, want, 1, [])
    for mode in ([], ["--draft", "lookup"], ["--draft", "int4", "--draft-len", "3"], ["--gpus", "emu:1,cpu=scalar", "--decode", "hybrid", "--prefill", "blend"],
                 ["--gpus", "emu:1,cpu=scalar", "--decode", "dual", "--draft", "lookup", "--draft-len", "4"], ["--gpus", "emu:1,cpu=scalar", "--decode", "paged"]):
        got = greedy(model, tokens[:start], 9, mode)
        failed += got != want[start:]
        print(f"{'ok' if got == want[start:] else 'FAIL'} {name} {' '.join(mode)}: {got}")
    for n in (9, 60, *[240] * 20):  # a thread converts the drafts' weights meanwhile: take an answer that had them for most of its time
        stats = run_greedy(model, tokens[:start], n, ["--draft", "int4", "--draft-len", "3", "--stats"]).stderr
        accepted = re.search(r"(\d+) of (\d+) drafted tokens accepted", stats)
        if accepted and int(accepted[2]) > n // 2:
            break
    good = bool(accepted) and 0 < int(accepted[2]) <= 1.5 * int(accepted[1])  # a draft without the tokens before it is refused
    failed += not good
    print(f"{'ok' if good else 'FAIL'} {name}, drafts of experts in four bits: {accepted and accepted[0]}")
    return failed


def refused(directory):
    """Tables and projections of n-grams that are missing or have another shape; the embedding under its other name."""
    failed, whole, p = 0, models.tensors(models.MODELS[name]), "model.ngram_embeddings."

    def shortened(key):
        kind, (rows, cols), data = whole[key]
        return {**whole, key: (kind, [rows - 1, cols], data[: (rows - 1) * cols * 2])}
    renamed = {p + "word_embeddings.weight" if key == "model.embed_tokens.weight" else key: t for key, t in whole.items()}
    for tensors, message in ((whole, ""), (renamed, ""), ({k: t for k, t in whole.items() if k != p + "embedders.5.weight"}, p + "embedders.5.weight is missing"),
                             ({k: t for k, t in whole.items() if k != p + "post_projs.0.weight"}, p + "post_projs.0.weight is missing"),
                             (shortened(p + "embedders.1.weight"), p + "embedders.1.weight"), (shortened(p + "post_projs.4.weight"), p + "post_projs.4.weight"),
                             ({k: t for k, t in whole.items() if k != "model.embed_tokens.weight"}, "model.embed_tokens.weight is missing")):
        models.write(directory, models.MODELS[name], tensors)
        got = greedy(directory, [5, 6, 7], 1, [])
        ok = message in got if message else got == greedy(model, [5, 6, 7], 1, [])
        print(f"{'ok' if ok else 'FAIL'} {name}: {message or 'opens'}: {got}")
        failed += not ok
    return failed


with open(os.path.join(HERE, name + ".json"), encoding="utf-8") as f:
    wanted = json.load(f)
tokens = ",".join(map(str, wanted["tokens"]))
want = array.array("f")
with open(os.path.join(HERE, name + ".f32"), "rb") as f:
    want.frombytes(f.read())
assert len(want) == len(wanted["tokens"]) * wanted["columns"]
failed = 0
with tempfile.TemporaryDirectory() as tmp:
    if name.startswith("ember"):
        model = "ember:"
        with open(os.path.join(HERE, "..", "..", "engine", "ember", "model", "model.safetensors"), "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
    else:
        model = os.path.join(tmp, "model")
        digest = models.make(model, name.removesuffix("_bf16"))
    if digest != wanted["checkpoint"]:
        print(f"FAIL {name}: the checkpoint is not the one that {name}.f32 belongs to; see references.py")
        sys.exit(1)
    for mode, most in (*((mode, BOUND) for mode in N_MODES), *(NARROW if name in LATENT else ())):
        out = os.path.join(tmp, "logits")
        p = subprocess.run([hearth, "-m", model, "--tokens", tokens, "--logits-out", out, "--cpu", "scalar", "--kv", kv, "--stats", *mode], stdin=subprocess.DEVNULL,
                           capture_output=True, timeout=120)
        err = p.stderr.decode("utf-8", "replace")
        got = array.array("f")
        if p.returncode == 0:
            with open(out, "rb") as f:
                got.frombytes(f.read())
        step = len(got) // len(want) or 1
        off = max((abs(a - b) if a == a else float("inf") for a, b in zip(got[::step], want)), default=float("inf")) / max(map(abs, want))
        ok = p.returncode == 0 and len(got) == len(want) * step and off <= most and "instead" not in err
        print(f"{'ok' if ok else 'FAIL'} {name} {' '.join(mode)}: {off:.1e} {'' if ok else err[:300]}")
        failed += not ok
    rope = models.MODELS.get(name, {}).get("rope_scaling", {})
    if rope.get("type") == "longrope":
        failed += across(model, wanted["tokens"], rope["original_max_position_embeddings"])
    if name == "ngram_mean":
        failed += in_company(model, wanted["tokens"]) + refused(os.path.join(tmp, "other"))
    if name == "engrams":
        failed += other_tokenizer(model)
    if name in ("dense_blocks", "mamba_beside"):
        failed += drafted(model, wanted["tokens"])
    if name in LATENT:
        failed += pooled(model, wanted["tokens"])
    for program in pieces:
        third = ["joined"] if rope.get("type") == "longrope" else [] if key() == "all" else [str(hashlib.sha256(f"{key()} {name}".encode()).digest()[0] % 3)]
        failed += subprocess.run([program, model, tokens, os.path.join(HERE, name + ".f32"), *third], timeout=300).returncode != 0
sys.exit(failed != 0)
