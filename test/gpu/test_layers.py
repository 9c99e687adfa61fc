#!/usr/bin/env python3
"""Layers whose routed experts are all on a device (--expert-cache layers): the same text and the same logits, bit for bit, as
with experts on the CPU, on one to three devices, with one chat and with several, beside prompts that take the memory, with drafts, and
on devices that fail or have room for a part of the layers; the CPU computes no expert of such a layer.

usage: test_layers.py HEARTH FIXTURES_DIR [full]    without fixtures only the built-in model"""
import json, os, re, sys, tempfile

from against import FULL, SCALAR, batch, check, end, greedy, known, run, warnings

models = known("qwen3_moe", "deepseek_v3", "gpt_oss", "mixtral", "qwen3_next", "deepseek_v4", "phimoe")
models = models if FULL else models[:4]
LAYERS, NONE = ["--expert-cache", "layers"], ["--expert-cache", "off"]


def device(n, more=""):
    return ["--gpus", f"emu:{n},cpu=scalar{more}"]


def resident(err):
    """Layers with resident experts, and layers with experts, over all devices."""
    m = re.findall(r"all experts of (\d+) of (\d+) layers", err)
    return (sum(int(a) for a, _ in m), sum(int(b) for _, b in m)) if m else (0, 0)


# --- The same text in every mode; all layers fit
for i, model in enumerate(models):
    want = greedy(model, 9, SCALAR, 15)[1]
    for k, (n, prefill, decode) in enumerate(((1, "cpu", "hybrid"), (2, "blend", "hybrid"), (1, "slp", "dual"), (3, "cpu", "hybrid"), (1, "blend", "auto"))):
        if not FULL and (i + k) % 2:
            continue
        rc, out, err = greedy(model, 9, SCALAR + device(n) + ["--prefill", prefill, "--decode", decode, *LAYERS], 15)
        have, of = resident(err)
        check(not rc and out == want and have == of > 0, model, n, prefill, decode, rc, out, want, err)

# --- The same logits, bit for bit, wherever the experts run
for model in models:
    got = []
    for more in (NONE, LAYERS):
        with tempfile.TemporaryDirectory() as tmp:
            name = os.path.join(tmp, "logits")
            rc, _, err = run("-m", model, "--tokens", ",".join(str(5 + 3 * i) for i in range(12)), "--logits-out", name, *SCALAR, *device(1), "--prefill", "cpu", "--decode", "hybrid", *more)
            got.append((rc, open(name, "rb").read() if not rc else err))
    check(got[0][0] == got[1][0] == 0 and got[0][1] == got[1][1], model, "logits differ with resident experts", got[0][0], got[1][0])

# --- All devices hold experts: layers are divided so that these fit, or fill every device; the text and the logits stay
counts = set()
for model, n, mem in [("ember:", n, mem) for n in (2, 3) for mem in ("5M", "6M", "7M", "9M")]:
    args = SCALAR + ["--gpus", f"emu:{n},cpu=scalar,mem={mem}", "--prefill", "cpu", "--decode", "hybrid", "-c", "256"]
    rc, out, err = run("-m", model, "--inspect", "--json", *args)
    rows = json.loads(out)["runs"]["where"] if not rc else []
    with_layers, with_experts = ({r["in"] for r in rows if r["what"] == what and r["in"] != "host memory"} for what in ("attention and dense parts", "routed experts"))
    counts.add(len(with_experts))
    check(not rc and len(with_layers) > 1 and with_experts, model, n, mem, "--inspect", rows)
    got = []
    for more in (NONE, LAYERS):
        with tempfile.TemporaryDirectory() as tmp:
            name = os.path.join(tmp, "logits")
            rc, _, err = run("-m", model, "--tokens", ",".join(str(5 + 3 * i) for i in range(12)), "--logits-out", name, *args, *more)
            got.append(open(name, "rb").read() if not rc else err)
    check(got[0] == got[1], model, n, mem, "logits differ")
    want = greedy(model, 9, SCALAR + ["-c", "256"], 15)[1]
    for decode in ("hybrid", "dual"):
        rc, out, err = greedy(model, 9, args[:-4] + ["--decode", decode, "-c", "256", "--draft", "none", *LAYERS], 15) # a draft has rows for two batches
        check(not rc and out == want and "decode by hybrid" in err, model, n, mem, decode, rc, out, want, err)
check(counts >= {2, 3}, "devices with experts", counts)

# --- The CPU computes experts of the other layers only; a trace has one span per layer and step on each side
for mem, all_of_them in (("", True), (",mem=12M", False)):
    with tempfile.TemporaryDirectory() as tmp:
        name = os.path.join(tmp, "trace")
        rc, out, err = run("-p", "hi", "--raw", "-n", "8", "--temp", "0", "--draft", "none", *SCALAR, *device(1, mem), "--prefill", "slp" if all_of_them else "cpu", "--decode", "hybrid", "-c", "512", "--explain", "--trace", name, *LAYERS)
        spans = [(e["pid"], e["name"]) for e in json.load(open(name))["traceEvents"] if e.get("ph") == "X"] if not rc else []
    have, of = resident(err)
    steps = sum(s == (0, "attention") for s in spans)
    check(not rc and of == 4 and (have == of) == all_of_them and have, "memory", mem, rc, have, of, err)
    if all_of_them:
        check(steps and (8, "experts") not in spans and not any(n == "join" for _, n in spans), "the CPU took part", set(spans))
    else:
        check(steps and sum(n == "join" for _, n in spans) > 0, "no layer was left to the CPU", set(spans))

# --- Little memory: layer by layer; KV caches come first, and the text stays
want = greedy("ember:", 9, SCALAR, 20)[1]
seen = set()
for mem in ("4M", "6M", "7M", "8M", "9M", "10M", "11M", "12M", "14M", "20M"):
    rc, out, err = greedy("ember:", 9, SCALAR + device(1, ",mem=" + mem) + ["--prefill", "cpu", "--decode", "auto", "-c", "512", *LAYERS], 20)
    seen.add(resident(err)[0])
    check(not rc and out == want and "instead" not in err, "memory of", mem, rc, out, want, err)
check(len(seen) >= 3 and 4 in seen, "numbers of resident layers seen", seen)


# --- Several chats at once, and prompts that need the memory of the experts: they return
for model in models[:2]:
    want = batch(model, 6, [])[0]
    for devices, decode, prefill in ((1, "dual", "cpu"), (1, "hybrid", "blend"), (1, "dual", "slp"), (2, "hybrid", "dslp")):
        got, err = batch(model, 6, device(devices) + ["--decode", decode, "--prefill", prefill, *LAYERS])
        check(got == want and not err, model, devices, decode, prefill, got, want, err)

# --- Drafts do not change the text
for model in models[:2]:
    want = greedy(model, 9, SCALAR, 15)[1]
    for draft in ("lookup", "int4"):
        rc, out, err = greedy(model, 9, SCALAR + device(1) + ["--prefill", "cpu", "--decode", "hybrid", "--draft", draft, *LAYERS], 15)
        check(not rc and out == want, model, "draft", draft, rc, out, want, err)

# --- The routing trace still has every selection
with tempfile.TemporaryDirectory() as tmp:
    lines = []
    for more in (NONE, LAYERS):
        name = os.path.join(tmp, "routing")
        rc, out, err = run("-p", "hi", "--raw", "-n", "6", "--temp", "0", "--draft", "none", *SCALAR, *device(1), "--prefill", "cpu", "--decode", "hybrid", "--trace-routing", name, *more)
        lines.append([{k: v for k, v in json.loads(line).items() if k in ("pos", "layer", "ids", "token")} for line in open(name)][1:])
    check(lines[0] and lines[0] == lines[1], "routing traces differ", len(lines[0]), len(lines[1]))

# --- The selections of resident experts are counted, as those of the CPU's
shown = []
for more in (NONE, LAYERS):
    rc, out, err = run("-p", "hi", "--raw", "-n", "12", "--temp", "0", "--draft", "none", "--json", *SCALAR, *device(1), "--prefill", "cpu", "--decode", "hybrid", *more)
    shown.append((rc, json.loads(out).get("text")))
check(shown[0] == shown[1], "answers differ", shown)

# --- A device that fails at the nth copy, launch or allocation, or for good: the answer is complete, and a warning says so
want = greedy("ember:", 9, SCALAR, 10)[1]
for kind, first, step in (("copy", 20, 61), ("launch", 20, 97), ("alloc", 3, 37), ("die", 40, 211)):
    n, clean, at = first, 0, 0
    while clean < 2 and at < (1000 if FULL else 4):
        rc, out, err = greedy("ember:", 9, SCALAR + device(1, f",fail={kind}:{n}") + ["--prefill", "cpu", "--decode", "hybrid", *LAYERS], 10)
        said = warnings(err)
        opening = rc in (1, 5) and kind in ("alloc", "die") and re.search("decoding in mode hybrid", said[-1])
        check(opening or not rc and out == want and len(said) <= 1, f"fail={kind}:{n}", rc, out, err)
        clean, n, at = (0 if said else clean + 1), n + step, at + 1

# --- --explain says when an expert's upload pays, and until when the link limits it: later where the link is slower
turns = []
for link in ("25", "1", "0.001"):
    rc, out, err = greedy("ember:", 24, SCALAR + device(1, f",h2d={link}") + ["--prefill", "blend", "--deterministic"], 2)
    m = re.search(r"uploading an expert is faster than the CPU from (\d+) of its tokens, limited by the link(?: below (\d+))?(?:;| \()", err)
    check(not rc and m, "--explain", link, err)
    turns.append((int(m[1]), int(m[2] or 1 << 20)))
check(turns[0][0] <= turns[1][0] < turns[2][0] and turns[0][1] < turns[1][1] < turns[2][1], turns)
check("uploading an expert" not in greedy("ember:", 24, SCALAR + device(1) + ["--prefill", "cpu"], 2)[2], "a prompt that is read by the CPU")

# --- The report names them
for more, has in (([], True), (NONE, False), (LAYERS, True), (["--expert-cache", "auto"], True)):
    rc, out, err = run("--gpus", "emu:1", "--inspect", *more)
    check(not rc and bool(re.search(r"routed experts: all experts of 4 of 4 layers", " ".join(out.split()))) == has, "--inspect", *more, out, err)
for model, mem, word in (("ember:", "", "devices compute all routed experts, since they have room"), ("ember:", ",mem=12M", "the CPU computes the routed experts of ")):
    rc, out, err = greedy(model, 9, SCALAR + device(1, mem) + ["--prefill", "cpu", "--decode", "hybrid", "-c", "512", *LAYERS], 5)
    check(not rc and word in err, "--explain", mem, err)
    rc, out, err = run("--gpus", "emu:1,cpu=scalar" + mem, "--inspect", "--json", "-c", "512", *LAYERS)
    rows = [r for r in json.loads(out)["runs"]["where"] if "class" in r]
    check(len(rows) == 1 and rows[0]["class"] == "resident" and (rows[0]["choices"] == 1) == (not mem) and rows[0]["bytes"] > 1e6, "--inspect", mem, rows)
sys.exit(end())
