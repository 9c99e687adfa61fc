#!/usr/bin/env python3
"""What BF16 and FP8 products of a card change in a model's logits: stream-loaded prompts against the scalar CPU in float32.

    math_error.py HEARTH FIXTURE ...      HEARTH: build/test/gpu/hearth_cuda (the CUDA emulation), or hearth on a card

Prints, for each math, the root mean square of the logits' error over that of the logits: median over the positions and the largest; in how many positions the
most likely token is another one; the products' own errors: gpu_conform 0,math=fp8 1 rounding."""
import array
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

N = 64


def logits(hearth, model, tokens, *args):
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "logits")
        p = subprocess.run([hearth, "-m", model, "--tokens", ",".join(map(str, tokens)), "--logits-out", out, "--cpu", "scalar", "--kv", "f32", "--threads", "1", *args],
                           capture_output=True, text=True)
        if p.returncode or "instead" in p.stderr:
            sys.exit(f"{model} {args}: exit {p.returncode}: {p.stderr[-400:]}")
        got = array.array("f")
        got.frombytes(open(out, "rb").read())
        return [got[i:i + len(got) // N] for i in range(0, len(got), len(got) // N)]


def rms(values):
    return math.sqrt(sum(v * v for v in values) / len(values))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    hearth = sys.argv[1]
    print(f"| model | math | error of the logits, median of {N} positions | largest | other first token |\n|---|---|---|---|---|")
    for model in sys.argv[2:]:
        config = json.load(open(os.path.join(model, "config.json")))
        tokens = [(i * 37 + 11) % config.get("text_config", config)["vocab_size"] for i in range(N)]
        want = logits(hearth, model, tokens)
        for how in ("f32", "bf16", "fp8"):
            got = logits(hearth, model, tokens, "--gpus", f"0,math={how}", "--prefill", "slp")
            off = [rms([a - b for a, b in zip(g, w)]) / rms(w) for g, w in zip(got, want)]
            other = sum(max(range(len(g)), key=g.__getitem__) != max(range(len(w)), key=w.__getitem__) for g, w in zip(got, want))
            print(f"| {os.path.basename(model.rstrip('/'))} | {how} | {statistics.median(off):.1e} | {max(off):.1e} | {other} |", flush=True)


if __name__ == "__main__":
    main()
