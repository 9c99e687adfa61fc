#!/usr/bin/env python3
"""Answers made with emulated devices equal the CPU's: attention on devices with experts on the CPU
(--decode hybrid, --expert-cache off), prompts read by both (--prefill blend, every --split), whole models and as many layers as fit, all number
formats of the KV cache; and the same seed gives the same text alone, in a batch, in two micro-batches, and beside a prefill.

usage: test_step.py HEARTH FIXTURES_DIR [full]    without fixtures only the built-in model"""
import array, itertools, json, os, re, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
from part import choose  # noqa: E402
from against import FULL, SCALAR, check, end, greedy, known, run, warnings  # FULL: all families at both levels

os.environ["HEARTH_EXPERT_CACHE"] = "off"  # experts on the CPU; test_layers.py has them on devices
NAMES = ("deepseek_v3", "deepseek_v2_lite", "deepseek_v3_nogroup", "qwen2_moe", "qwen3_moe", "mixtral", "gpt_oss", "dbrx", "qwen3_next", "deepseek_v32", "glm_moe_dsa", "deepseek_v4")
models = known(*choose(NAMES, len(NAMES) if FULL else 4))


def ids(model, n_prompt, args, n=14):
    return greedy(model, n_prompt, args, n)


wants = {}


def want(model, n_prompt, base):
    key = model, n_prompt, tuple(base)
    if key not in wants:
        wants[key] = ids(model, n_prompt, base)
        assert not wants[key][0], wants[key]
    return wants[key][1]


def one(model, n_prompt, base, args, prefill, decode, layers=None):
    """The ids are the CPU's, and the requested mode ran."""
    text = want(model, n_prompt, base)
    rc, out, err = ids(model, n_prompt, base + args)
    ran_as = f"prefill by {prefill}, decode by {decode}"
    check(not rc and out == text and ran_as in err and "instead" not in err, model, n_prompt, *base, *args, f"exit {rc}, {out!r} for {text!r}:", err)


# --- Every family, every split, several devices
LEVELS = (SCALAR, "emu:{},cpu=scalar"), ([], "emu:{}")
AVX2 = ["--cpu", "avx2"], "emu:{},cpu=avx2"  # the best level may round activations of many rows, which may flip a near tie
for i, model in enumerate(models):
    for base, gpus in LEVELS if i < 3 or FULL else LEVELS[i % 2:][:1]:
        for devices in (1, 2):
            one(model, 9, base, ["--gpus", gpus.format(devices), "--prefill", "cpu", "--decode", "hybrid"], "cpu", "hybrid")
            if i < 3 or FULL or devices == 1 + i % 2:
                one(model, 9, base, ["--gpus", gpus.format(devices), "--prefill", "cpu", "--decode", "dual", "--draft", "none"], "cpu", "hybrid")  # without drafts a single session is not split
        one(model, 9, base, ["--gpus", gpus.format(2), "--prefill", "dslp", "--decode", "hybrid"], "dslp", "hybrid")
        base, gpus = (base, gpus) if base else AVX2
        for k, split in enumerate(("auto", "hybrimoe", "trimoe", "cut")):
            if i < 3 or FULL or k % 3 == i % 3:
                one(model, 31, base, ["--gpus", gpus.format(1 + (k + i) % 2) + ",h2d=2", "--prefill", "blend", "--split", split, "--decode", ("hybrid", "cpu")[k % 2]], "blend", ("hybrid", "cpu")[k % 2])
    os.environ["HEARTH_LIMITS"] = f"spin=100,layers={3 if model == 'ember:' else 2},rows=16"  # the layers on two devices, the third has experts only; a prompt in batches
    for devices, split in ((2, "auto"), (3, "trimoe")):
        one(model, 31, SCALAR, ["--gpus", f"emu:{devices},cpu=scalar,h2d=1", "--prefill", "blend", "--split", split, "--decode", "hybrid"], "blend", "hybrid")
    os.environ["HEARTH_LIMITS"] = "spin=100"
for kv in ("bf16", "fp8"):
    for model in models[:2]:
        for base, gpus in ((["--kv", kv, "--cpu", "scalar"], "emu:{},cpu=scalar"), (["--kv", kv], "emu:{}")):
            one(model, 20, base, ["--gpus", gpus.format(2), "--prefill", "cpu", "--decode", "hybrid"], "cpu", "hybrid")
            one(model, 20, base, ["--gpus", gpus.format(1), "--prefill", "blend", "--decode", "hybrid"], "blend", "hybrid")


# --- Devices that hold some layers: the CPU has the others
def layers_of(model, gpus):
    """Returns the layers that devices hold, and the total; None where they hold none."""
    rc, out, err = ids(model, 2, SCALAR + ["--gpus", gpus, "--decode", "hybrid", "--prefill", "cpu", "-v"], 2)
    m = re.search(r"of (\d+) of (\d+) layers", err)
    return m and (int(m[1]), int(m[2]))


for model in models[:4 if FULL else 2]:
    seen = set()
    for step in (1 << (18 if FULL else 19), 1 << 17):  # the second where a step is more than a layer
        for devices, mem in itertools.product((1, 2), range(1 << 20, 8 << 20, step) if len(seen) < 3 else ()):
            gpus = f"emu:{devices},cpu=scalar,mem={mem}"
            part = layers_of(model, gpus)
            if not part or not part[0] or (devices, part[0]) in seen:
                continue
            seen.add((devices, part[0]))
            one(model, 9, SCALAR, ["--gpus", gpus, "--prefill", "cpu", "--decode", "hybrid"], "cpu", "hybrid")
            rc, out, err = ids(model, 9, SCALAR + ["--gpus", gpus, "--prefill", "blend"])
            check(rc and "needs room for all layers on devices" in err or part[0] == part[1], model, gpus, "--prefill blend on a part of the layers", rc, err)
    check(len(seen) > 2, model, "only", seen, "numbers of layers were tried")


# --- The automatic choice can run: nothing falls back, whatever the device's memory
seen = set()
for mem in ("1200K", "3M", "4M", "6M", "8M", "9M", "10M", "12M", "16M", "64M"):
    for at, n in enumerate((40, 250)):
        for devices in (1, 2) if FULL else (1 + (at + len(mem)) % 2,):
            rc, out, err = ids("ember:", n, ["--cpu", "scalar", "--gpus", f"emu:{devices},mem={mem}", "--context", "512"], 4)
            check(not rc and "instead" not in err and "failed" not in err, "auto with", mem, n, "tokens:", rc, err)
            seen |= set(re.findall(r"prefill by (\w+), decode by (\w+)", err))
check({p for p, d in seen} >= {"cpu", "blend"} and {d for p, d in seen} >= {"cpu", "hybrid"}, "auto chose only", seen)


# --- The same seed gives the same text
def batch(model, prompts, args):
    with tempfile.TemporaryDirectory() as tmp:
        name = os.path.join(tmp, "batch")
        with open(name, "w") as f:
            for i, p in prompts:
                f.write(json.dumps({"prompt": p, "seed": i, "temperature": 1, "max_tokens": 12 + i % 9}) + "\n")
        rc, out, err = run("-m", model, "--raw", "--batch", name, *args)
    lines = sorted(map(json.loads, out.splitlines()), key=lambda a: a["index"])
    return [rc] + [(j["text"], j["usage"]["answer_tokens"]) for j in lines], err


for model in models[:2]:
    prompts = [(i, "How do I " + "list files in a directory? " * (i * 7 % 5) + str(i)) for i in range(8)]
    texts, turn = [], 0
    for gpus, modes in (("emu:1,cpu=scalar", [("hybrid", "cpu"), ("dual", "cpu"), ("dual", "blend"), ("dual", "slp")]),
                        ("emu:2,cpu=scalar", [("hybrid", "dslp"), ("dual", "blend")])):
        for decode, prefill in modes:
            args = SCALAR + ["--gpus", gpus, "--decode", decode, "--prefill", prefill]
            some = [i for i in range(8) if FULL or i % 4 == turn % 4]  # alternating over all
            turn += 1
            alone = {i: batch(model, [prompts[i]], args)[0][1] for i in some}
            for n in (8, 2):
                got, err = batch(model, prompts[:n], args)
                check(not got[0] and len(got) == n + 1 and all(got[i + 1] == alone[i] for i in some if i < n) and not err, model, *args, n, "prompts together:", got, "alone:", alone, err)
                texts.append(got)
    without = batch(model, prompts, SCALAR)[0]
    check(all(got == without[:len(got)] for got in texts), model, "with and without devices")

# --- With --deterministic a run repeats exactly, whatever splits a layer, and a text does not depend on the batch
def logits_twice(model, args):
    got = []
    for i in range(2):
        with tempfile.TemporaryDirectory() as tmp:
            name = os.path.join(tmp, "logits")
            rc, out, err = run("-m", model, "--tokens", ",".join(str((i * 37 + 11) % 250) for i in range(40)), "--logits-out", name, "--deterministic", *args)
            got.append((rc, open(name, "rb").read() if not rc else err))
    return got


for at, model in enumerate(models[:2] + models[4:5]):
    prompts = [(i, "Tell me " + "about the sea " * (i * 5 % 4) + str(i)) for i in range(4)]
    for k, split in enumerate(("hybrimoe", "trimoe", "cut", "auto")):
        if not FULL and k % 3 != at:  # three models together cover all
            continue
        args = ["--gpus", "emu:1,h2d=0.5", "--prefill", "blend", "--split", split]
        a, b = logits_twice(model, args)
        check(a == b and not a[0], model, *args, "--deterministic: two runs differ", a[0], b[0])
        args = SCALAR + ["--deterministic", "--gpus", "emu:1,cpu=scalar,h2d=0.5", "--prefill", "blend", "--split", split, "--decode", ("dual", "hybrid")[k % 2]]
        alone = {i: batch(model, [prompts[i]], args)[0][1] for i in range(4) if FULL or i % 2 == k % 2}
        got, err = batch(model, prompts, args)
        check(not got[0] and len(got) == 5 and all(got[i + 1] == text for i, text in alone.items()) and not err and got == batch(model, prompts, args)[0], model, *args, "together:", got, "alone:", alone, err)

# --- Devices that fail at the nth copy, launch or allocation, or for good: the answer is complete, with one warning. A forced mode
# that cannot even be opened is an error. Requested logits of a prompt come once per position.
def fault(gpus, kind, n, args):
    """Returns whether the device failed at all."""
    rank = "@1" if gpus.startswith("emu:2") and n % 2 else ""
    rc, out, err = ids("ember:", 24, SCALAR + ["--gpus", f"{gpus},fail={kind}:{n}{rank}", *args], 8)
    said = warnings(err)
    opening = rc == {"alloc": 5, "die": 1}.get(kind) and re.search(r"\(--(decode|prefill)", said[-1])
    check(opening or not rc and out == want("ember:", 24, SCALAR) and len(said) <= 1, *args, "--gpus", gpus, f"fail={kind}:{n}{rank}", rc, out, err)
    return bool(said)


def logits(args):
    with tempfile.TemporaryDirectory() as tmp:
        name = os.path.join(tmp, "logits")
        rc, out, err = run("--tokens", ",".join(str((i * 37 + 11) % 250) for i in range(24)), "--logits-out", name, *SCALAR, *args)
        return rc, len(err.splitlines()), array.array("f", open(name, "rb").read()) if not rc else [], err


def close(a, b):
    return len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) <= 1e-4 * max(map(abs, a))


wants["ember:", 24, tuple(SCALAR)] = ids("ember:", 24, SCALAR, 8)
right = logits([])[2]
for gpus, args in (("emu:1,cpu=scalar", ["--prefill", "cpu", "--decode", "hybrid"]), ("emu:2,cpu=scalar", ["--prefill", "cpu", "--decode", "hybrid"]),
                   ("emu:2,cpu=scalar,h2d=1", ["--prefill", "blend", "--split", "trimoe", "--decode", "hybrid"])):
    for kind in ("copy", "launch", "alloc", "die"):
        n, clean = 3, 0
        while clean < 2:
            clean = 0 if fault(gpus, kind, n, args) else clean + 1
            n += (11 if n < 50 else 97) * (1 if FULL else 2)
# A prefill that fails while it is opened drops its uploads, which late streams have not done: decode uploads them again.
os.environ["HEARTH_LIMITS"] = "spin=100,lag=60000,lag_of=1"  # later than the host, however busy the machine is
rc, out, err = ids("ember:", 24, SCALAR + ["--gpus", "emu:2,cpu=scalar,h2d=1,fail=alloc:3@1", "--prefill", "blend", "--split", "trimoe", "--decode", "hybrid"], 2)
check(not rc and out == ids("ember:", 24, SCALAR, 2)[1] and len(warnings(err)) == 1, "decoding after a prefill that could not be opened:", rc, out, err)
os.environ["HEARTH_LIMITS"] = "spin=100"
for kind, n in (("copy", 40), ("copy", 111), ("launch", 30), ("launch", 70), ("alloc", 110), ("die", 300)):
    rc, warnings, got, err = logits(["--gpus", f"emu:1,cpu=scalar,fail={kind}:{n}", "--prefill", "blend"])
    check(not rc and warnings == 1 and close(right, got), "logits of a blended prefill that fails at", kind, n, rc, len(got), err)
rc, out, err = ids("ember:", 24, SCALAR + ["--gpus", "emu:1,cpu=scalar,fail=die:200", "--prefill", "slp", "--decode", "hybrid"], 8)
check(not rc and out == want("ember:", 24, SCALAR) and err.count("lost (injected)") == 3 and "on devices: device 0" in err, "a device lost in a prefill is left by steps, with one warning:", rc, err)
for kind in ("alloc:2", "die:2", "alloc:30"):  # nothing is forced: a device that cannot be opened is not used
    rc, out, err = ids("ember:", 24, SCALAR + ["--gpus", "emu:1,cpu=scalar,fail=" + kind], 8)
    check(not rc and out == want("ember:", 24, SCALAR) and err.count("sessions decode on the CPU") == 1, "opening with", kind, rc, err)


# --- The trace has everything that ran, devices and the CPU on one clock
def trace(args):
    with tempfile.TemporaryDirectory() as tmp:
        name = os.path.join(tmp, "trace")
        rc, out, err = ids("ember:", 24, SCALAR + ["--trace", name, *args], 6)
        spans = [e for e in json.load(open(name))["traceEvents"] if e["ph"] == "X"]
    return {(e["pid"], e["name"]) for e in spans}, max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans), err


for prefill, of_it in (("cpu", {(8, "attention"), (8, "experts")}), ("blend", {(0, "load expert"), (0, "experts")}), ("slp", {(0, "load expert"), (0, "route")})):
    seen, length, err = trace(["--gpus", "emu:1,cpu=scalar", "--prefill", prefill, "--decode", "hybrid"])
    steps = {(0, "attention"), (0, "join"), (0, "head"), (8, "experts")}
    check(steps | of_it <= seen and 0 < length < 60e6, "a trace of prefill", prefill, "and steps:", seen, length, err)
seen, length, err = trace(["--gpus", "emu:2,cpu=scalar,h2d=1", "--prefill", "blend", "--split", "trimoe", "--decode", "hybrid"])
check({(1, "load expert"), (1, "experts"), (0, "load expert"), (0, "experts"), (0, "attention")} <= seen and (1, "attention") not in seen, "a trace of a blend on two devices:", seen, err)
check({p for p, n in trace([])[0]} == {8}, "a trace without devices")
sys.exit(end())
