#!/usr/bin/env python3
"""Prompts with images against transformers (images.json, by images_reference.py): logits after pictures of several shapes, two pictures, a picture between
texts, of each family; and answers in every mode. images.py HEARTH [KIND...]: without kinds, three of them (part.py)"""
import array
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
import eyes  # noqa: E402
import eyes_families  # noqa: E402
import eyes_gguf  # noqa: E402
import part  # noqa: E402

# Ids, and pictures (width, height, seed), among them larger and smaller ones than the processor's limits, odd sizes, long ones
CASES = [[7, 8, (64, 48, 0), 9, 10, 11], [3, (200, 50, 1), 4, (33, 77, 2), 5, 6, 7, 8], [(300, 240, 3), 20, 21, 22], [1, 2, 3, (16, 16, 4), 5, (96, 96, 0), 30, 31],
         [40, (500, 20, 5), 41], [50, 51, (1, 1, 6), 52, 53]]
EVERY = 9  # columns recorded
BOUND, BOUND_BF16 = 2e-5, 2e-2  # of the largest logit: activations of float32; of 16 or 8 bits
EXACT = ["--cpu", "avx2" if " avx2 " in open("/proc/cpuinfo", encoding="utf-8").read() else "scalar"]
WHOLE = ["gemma4_moe"]  # kinds whose tokens of an image see all of it: new images are read on the CPU
MODES = [[], ["--gpus", "emu:1,cpu=scalar"], ["--gpus", "emu:1,cpu=scalar", "--prefill", "slp", "--decode", "hybrid"], ["--gpus", "emu:2,cpu=scalar", "--prefill", "dslp"],
         ["--gpus", "emu:1,cpu=scalar", "--prefill", "blend", "--decode", "dual"], ["--draft", "lookup"], ["--draft", "int4"]]


# Device modes in which prompts are read, and the word of --explain for each
DEVICES = [(["--gpus", "emu:1,cpu=scalar", "--prefill", "slp"], "stream-loaded"), (["--gpus", "emu:1,cpu=scalar,chunk=5", "--prefill", "slp"], "stream-loaded"),
           (["--gpus", "emu:2,cpu=scalar,chunk=3", "--prefill", "dslp"], "stream-loaded"), (["--gpus", "emu:1,cpu=scalar", "--prefill", "blend"], "blended"),
           (["--gpus", "emu:2,cpu=scalar", "--prefill", "blend"], "blended")]


def rows(n):
    """Positions recorded of n."""
    return sorted({0, n // 3, n // 2, n - 3, n - 2, n - 1} & set(range(n)))


def command(hearth, model, folder, case, *args, most=0):
    """most: tokens that are read at once, at most"""
    files = []
    for i, piece in enumerate(case):
        if not isinstance(piece, int):
            files.append(os.path.join(folder, f"{i}.png"))
            with open(files[-1], "wb") as f:
                f.write(eyes.picture(*piece))
    ids = ",".join(str(p if isinstance(p, int) else eyes.IMAGE) for p in case)
    full = [hearth, "-m", model, "--tokens", ids, "--kv", "f32", *args] + [x for f in files for x in ("-f", f)]
    return subprocess.run(full, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, env={**os.environ, "HEARTH_LIMITS": f"spin=100,rows={most}"} if most else None)


def compare(hearth, folder, model, case, want, *args, most=0, bound=BOUND, how=""):
    """how: a word of --explain that names the mode"""
    out = os.path.join(folder, "logits")
    p = command(hearth, model, folder, case, "--logits-out", out, "--explain", *args, most=most)
    if p.returncode or how not in p.stderr.decode():
        return p.stderr.decode()
    with open(out, "rb") as f:
        got = array.array("f", f.read())
    width = eyes_families.TEXT["vocab_size"]
    if len(got) != want["n"] * width:
        return f"{len(got) // width} positions, not {want['n']}"
    off = max(abs(got[r * width + i * EVERY] - x) for r, row in zip(rows(want["n"]), want["logits"]) for i, x in enumerate(row)) / want["largest"]
    return None if off < bound else f"off by {off:.1e}"


def continuation(hearth, folder, model, case, n, *args):
    p = command(hearth, model, folder, case, "-n", str(n), "--temp", "0", "--ids", *args)
    return json.loads(p.stdout) if p.returncode == 0 else p.stderr.decode()


def main(hearth, *kinds):
    kinds = kinds or part.choose(list(eyes.KINDS), 3)
    with open(os.path.join(HERE, "images.json"), encoding="utf-8") as f:
        reference = [want for want in json.load(f) if want["kind"] in kinds]
    failed = 0

    def check(what, wrong):
        nonlocal failed
        failed += bool(wrong)
        print("FAIL" if wrong else "ok", what, wrong or "")

    with tempfile.TemporaryDirectory() as folder:
        models = {kind: eyes.make(os.path.join(folder, kind), kind) for kind in kinds}
        gguf = {kind: eyes_gguf.make(os.path.join(folder, kind + "-gguf"), kind) for kind in models if kind in eyes_gguf.KINDS}
        for i, want in enumerate(reference):
            case = CASES[i % len(CASES)]
            for level, bound in ((["--cpu", "scalar"], BOUND), (EXACT, BOUND), ([], BOUND_BF16)):
                check(f"{want['kind']} case {i % len(CASES)} {' '.join(level)}", compare(hearth, folder, models[want["kind"]], case, want, *level, bound=bound))
            for most in (1, 5, 8):
                check(f"{want['kind']} case {i % len(CASES)} by {most}", compare(hearth, folder, models[want["kind"]], case, want, "--cpu", "scalar", most=most))
            for k in (i % len(DEVICES), (i + 2) % len(DEVICES)):
                args, how = DEVICES[k]
                most = 7 if "blend" in args else 0
                check(f"{want['kind']} case {i % len(CASES)} {' '.join(args)}", compare(hearth, folder, models[want["kind"]], case, want, "--cpu", "scalar", *args, most=most, how="only the CPU computes" if want["kind"] in WHOLE else how))
            if want["kind"] in gguf:
                check(f"{want['kind']} case {i % len(CASES)} of GGUF files", compare(hearth, folder, gguf[want["kind"]], case, want, "--cpu", "scalar"))
        for kind, model in models.items():
            for case in (CASES[1], CASES[3]):
                # each token of an answer is what the whole text up to it, read at once, gives
                whole, n = list(case), 9
                for _ in range(n):
                    whole += continuation(hearth, folder, model, whole, 1, "--cpu", "scalar")
                for mode in MODES:
                    if "int4" in mode and not kind.endswith("moe"):
                        continue
                    got = continuation(hearth, folder, model, case, n, "--cpu", "scalar", *mode)
                    check(f"{kind} answers {' '.join(mode)}", got != whole[len(case):] and f"{got}, not {whole[len(case):]}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1]), *sys.argv[2:]))
