#!/usr/bin/env python3
"""Answers made with the help of emulated devices are the processor's: attention halves on devices beside experts on the processor
(--decode hybrid), prompts read by both (--prefill blend, every --split), whole models and as many layers as fit, all number
formats of the KV cache; and the same seed gives the same text alone, in a batch, cut in two halves, and beside a prefill.

usage: test_step.py HEARTH FIXTURES_DIR    without fixtures the built-in model alone"""
import json, os, re, subprocess, sys, tempfile

hearth, fixtures = sys.argv[1:3]
models = ["ember:"] + [os.path.join(fixtures, m) for m in ("deepseek_v3", "deepseek_v2_lite", "deepseek_v3_nogroup", "qwen2_moe", "qwen3_moe", "mixtral") if os.path.isdir(os.path.join(fixtures, m))]
SCALAR = ["--cpu", "scalar", "--kv", "f32"]
failed = ran = 0


def run(*args):
    p = subprocess.run([hearth, "--threads", "2", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")


def check(ok, what, *why):
    global failed, ran
    ran += 1
    if not ok:
        failed += 1
        print("FAIL", what, *why)


def ids(model, n_prompt, args, n=14):
    prompt = ",".join(str((i * 37 + 11) % 250) for i in range(n_prompt))
    return run("-m", model, "--tokens", prompt, "-n", str(n), "--temp", "0", "--ids", "--stats", "--explain", *args)


wants = {}


def want(model, n_prompt, base):
    key = model, n_prompt, tuple(base)
    if key not in wants:
        wants[key] = ids(model, n_prompt, base)
        assert not wants[key][0], wants[key]
    return wants[key][1]


def one(model, n_prompt, base, args, prefill, decode, layers=None):
    """The ids are the processor's, and it ran as it was to run."""
    text = want(model, n_prompt, base)
    rc, out, err = ids(model, n_prompt, base + args)
    ran_as = f"prefill {prefill}, decode {decode}"
    check(not rc and out == text and ran_as in err and "instead" not in err, model, n_prompt, *base, *args, f"exit {rc}, {out!r} for {text!r}:", err)


# --- Every family, every split, several devices
for model in models:
    for base, gpus in ((SCALAR, "emu:{},cpu=scalar"), ([], "emu:{}")):
        for devices in (1, 2):
            one(model, 9, base, ["--gpus", gpus.format(devices), "--prefill", "cpu", "--decode", "hybrid"], "cpu", "hybrid")
            one(model, 9, base, ["--gpus", gpus.format(devices), "--prefill", "cpu", "--decode", "dual"], "cpu", "hybrid")  # a single session is not cut
        one(model, 9, base, ["--gpus", gpus.format(2), "--prefill", "dslp", "--decode", "hybrid"], "dslp", "hybrid")
        for k, split in enumerate(("auto", "host", "stream", "hybrimoe", "trimoe", "cut", "exact")):
            one(model, 31, base, ["--gpus", gpus.format(1) + ",h2d=2", "--prefill", "blend", "--split", split, "--decode", ("hybrid", "cpu")[k % 2]], "blend", ("hybrid", "cpu")[k % 2])
for kv in ("bf16", "fp8"):
    for model in models[:2]:
        for base, gpus in ((["--kv", kv, "--cpu", "scalar"], "emu:{},cpu=scalar"), (["--kv", kv], "emu:{}")):
            one(model, 20, base, ["--gpus", gpus.format(2), "--prefill", "cpu", "--decode", "hybrid"], "cpu", "hybrid")
            one(model, 20, base, ["--gpus", gpus.format(1), "--prefill", "blend", "--decode", "hybrid"], "blend", "hybrid")


# --- Devices that hold some layers: the processor has the others
def layers_of(model, gpus):
    """Layers that devices hold, of how many; None where they hold none."""
    rc, out, err = ids(model, 2, SCALAR + ["--gpus", gpus, "--decode", "hybrid", "--prefill", "cpu", "-v"], 2)
    m = re.search(r"of (\d+) of (\d+) layers", err)
    return m and (int(m[1]), int(m[2]))


for model in models[:4]:
    seen = set()
    for devices in (1, 2):
        for mem in range(1 << 20, 8 << 20, 1 << 18):
            gpus = f"emu:{devices},cpu=scalar,mem={mem}"
            part = layers_of(model, gpus)
            if not part or not part[0] or (devices, part[0]) in seen:
                continue
            seen.add((devices, part[0]))
            one(model, 9, SCALAR, ["--gpus", gpus, "--prefill", "cpu", "--decode", "hybrid"], "cpu", "hybrid")
            rc, out, err = ids(model, 9, SCALAR + ["--gpus", gpus, "--prefill", "blend"])
            check(rc and "needs one device for all layers" in err or part[0] == part[1], model, gpus, "--prefill blend on a part of the layers", rc, err)
    check(len(seen) > 2, model, "only", seen, "numbers of layers were tried")


# --- The same seed gives the same text
def batch(model, prompts, args):
    with tempfile.TemporaryDirectory() as tmp:
        name = os.path.join(tmp, "batch")
        with open(name, "w") as f:
            for i, p in prompts:
                f.write(json.dumps({"prompt": p, "seed": i, "temperature": 1, "max_tokens": 12 + i % 9}) + "\n")
        rc, out, err = run("-m", model, "--raw", "--batch", name, *args)
    lines = [json.loads(line) for line in out.splitlines()]
    return [rc] + [(j["text"], j["usage"]["answer_tokens"]) for j in lines], err


for model in models[:2]:
    prompts = [(i, "How do I " + "list files in a directory? " * (i * 7 % 5) + str(i)) for i in range(8)]
    for gpus, modes in (("emu:1,cpu=scalar", [("hybrid", "cpu"), ("dual", "cpu"), ("dual", "blend"), ("dual", "slp")]),
                        ("emu:2,cpu=scalar", [("hybrid", "dslp"), ("dual", "blend")])):
        for decode, prefill in modes:
            args = SCALAR + ["--gpus", gpus, "--decode", decode, "--prefill", prefill]
            alone = [0] + [batch(model, [p], args)[0][1] for p in prompts]
            for n in (8, 2):
                got, err = batch(model, prompts[:n], args)
                check(got == alone[:n + 1] and not err, model, *args, n, "prompts together:", got, "alone:", alone[:n + 1], err)
    check(alone == batch(model, prompts, SCALAR)[0], model, "with and without devices")
print(f"{ran} cases, {failed} failed")
sys.exit(failed != 0)
