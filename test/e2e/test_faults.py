#!/usr/bin/env python3
"""Failures in the middle of a turn: memory, devices, one prompt of several, the trace. Text and logits are then those of
an undisturbed run, complete and without repetition, or the turn ends with an error that gives the reason; nothing crashes or hangs.
test_faults.py HEARTH"""
import array
import json
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny  # noqa: E402

HEARTH = os.path.abspath(sys.argv[1])
PROMPT = [(i * 37 + 11) % 250 + 3 for i in range(40)]
passed = failed = 0


def run(directory, *args, fault=None):
    env = dict(os.environ, **({"HEARTH_FAULT": fault} if fault else {}))
    p = subprocess.run([HEARTH, "-m", directory, "--threads", "1", *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=120, env=env)
    return p.returncode, p.stdout, p.stderr.decode("utf-8", "replace")


def check(ok, what, detail=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAILED {what}: {detail}")


def ids(tokens):
    return ",".join(map(str, tokens))


def memory(good):
    """Every allocation of a prefill on devices fails: the CPU takes over, or an error is reported. What decode keeps on devices gives way first."""
    args = ["--tokens", ids(PROMPT), "-n", "4", "--temp", "0", "--ids"]
    want = run(good, *args)[1]
    for gpus, mode, decode in (("emu:1", "slp", "cpu"), ("emu:2", "dslp", "cpu"), ("emu:2", "dslp", "auto")):
        last = ok = fell = 0
        for n in list(range(60, 400, 3)) + list(range(126, 130)):
            rc, out, err = run(good, *args, "--gpus", gpus, "--prefill", mode, "--decode", decode, fault=f"alloc:{n}")
            last = rc
            ok += rc == 0
            fell += "instead" in err
            check(rc == 0 and out == want or rc == 5 and err.startswith("hearth: "), f"{mode}, allocation {n}", f"exit {rc} {out!r} {err!r}")
        check(ok and (fell > 3 or decode == "auto"), f"{mode}: some allocation is of the device alone", f"{ok} fine, {fell} fell back, last exit {last}")


def logits_once(good, tmp):
    """A device fails after it has given some logits: the rest follows, none comes twice."""
    out = os.path.join(tmp, "logits")
    plain = os.path.join(tmp, "plain")
    prompt = (PROMPT * 5)[:200]
    args = ["--tokens", ids(prompt), "--cpu", "scalar", "--kv", "f32", "--logits-out"]
    run(good, *args, plain)
    want = array.array("f", open(plain, "rb").read())
    fell, calm, n = 0, 0, 20
    while calm < 3 and n < 200:
        n += 1
        rc, _, err = run(good, *args, out, "--prefill", "slp", "--gpus", f"emu:1,cpu=scalar,chunk=64,fail=copy:{n}")
        got = array.array("f", open(out, "rb").read())
        fell, calm = fell + ("instead" in err), 0 if "instead" in err else calm + 1
        near = len(got) == len(want) and max(abs(a - b) for a, b in zip(got, want)) < 1e-3 * max(map(abs, want))
        check(rc == 0 and near, f"copy {n} fails", f"exit {rc}, {len(got)} logits of {len(want)}, {err!r}")
    check(fell > 10, "copies fail", f"{fell} times only")


def only_the_guilty(good, tmp):
    """A token that only one of three answers samples has a damaged embedding: the other two are unaffected."""
    prompts, drawn = [], []
    for word in (f"word {i}" for i in range(60)): # ids over 257 have no text, and end an answer
        got = json.loads(run(good, "--tokens", ids((word + "\n").encode()), "-n", "12", "--temp", "0", "--cpu", "scalar", "--ids")[1])
        if len(prompts) < 3 and len(got) == 12 and max(got) < 258 and got not in drawn:
            prompts.append(word)
            drawn.append(got)
        if len(prompts) == 3:
            break
    lines = os.path.join(tmp, "prompts.jsonl")
    with open(lines, "w") as f:
        for p in prompts:
            f.write(json.dumps(p) + "\n")
    args = ["--batch", lines, "-n", "12", "--temp", "0", "--cpu", "scalar"]

    def answers(directory):
        rc, out, err = run(directory, *args)
        return rc, sorted((json.loads(x) for x in out.decode().splitlines()), key=lambda row: row["index"]), err

    rc, want, err = answers(good)
    check(rc == 0 and len(want) == 3, "three prompts are answered", err)
    texts = [w.get("text", "") for w in want]
    check(len(set(texts)) == 3 and all(texts), "they differ", texts)
    for guilty in range(3):
        others = {t for i in range(3) if i != guilty for t in drawn[i]}
        typed = {b for p in prompts for b in (p + "\n").encode()}
        alone = [t for t in drawn[guilty][:-1] if t not in others and t not in typed]
        check(alone, f"answer {guilty} draws a token of its own", drawn)
        if not alone:
            continue
        d = os.path.join(tmp, f"guilty{guilty}")
        tiny.make(d)
        for f in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            raw = open(os.path.join(d, f), "rb").read()
            n = struct.unpack("<Q", raw[:8])[0]
            header, data = json.loads(raw[8 : 8 + n]), bytearray(raw[8 + n :])
            if "model.embed_tokens.weight" in header:
                at = header["model.embed_tokens.weight"]["data_offsets"][0] + alone[0] * tiny.CONFIG["hidden_size"] * 2
                data[at : at + 2] = b"\xc0\x7f"
                open(os.path.join(d, f), "wb").write(tiny.pack(header, bytes(data)))
        rc, got, err = answers(d)
        for i in range(3):
            if i == guilty:
                check("error" in got[i] and got[i]["error"]["code"] == 3 and "embedding" in got[i]["error"]["message"], f"answer {i} is told", got[i])
            else:
                check(got[i].get("text") == texts[i], f"answer {i} beside a damaged {guilty}", got[i])


def no_text(good):
    """A token id beyond the tokenizer's: the text before it is printed, the end is reported, and other answers continue."""
    for seed in range(100):
        args = ["-n", "12", "--temp", "1", "--cpu", "scalar", "--seed", str(seed)]
        got = json.loads(run(good, "--tokens", ids(b"word\n"), "--ids", *args)[1])
        if 33 <= got[0] < 127 and len(got) == 12 and max(got) > 257:
            break
    rc, out, err = run(good, "-p", "word", *args)
    check(rc == 3 and out[:1] == bytes(got[:1]) and "without text" in err, "an id without a text", f"exit {rc} {out!r} {err!r}, ids {got}")
    p = subprocess.run([HEARTH, "-m", good, "--batch", "-", *args], input=b'"word"\n{"prompt": "word", "max_tokens": 1}\n', capture_output=True, timeout=120)
    rows = sorted((json.loads(x) for x in p.stdout.splitlines()), key=lambda row: row["index"])
    check(p.returncode == 1 and rows[0]["error"]["code"] == 3 and rows[1].get("text") == chr(got[0]), "an id without a text in a batch", f"exit {p.returncode} {rows}")


def damaged_for_devices(tmp):
    """NaN codes are found before the upload, and the message is that of the CPU."""
    name = "model.layers.1.mlp.experts.2.gate_proj.weight"
    for tensor, prompt in ((name, PROMPT), ("model.layers.1.self_attn.o_proj.weight", PROMPT[:2]), (name, PROMPT[:12])):
        d = os.path.join(tmp, "codes")
        tiny.make(d)
        for f in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            raw = open(os.path.join(d, f), "rb").read()
            n = struct.unpack("<Q", raw[:8])[0]
            header, data = json.loads(raw[8 : 8 + n]), bytearray(raw[8 + n :])
            if tensor in header:
                data[header[tensor]["data_offsets"][0] + header[tensor]["shape"][1] + 3] = 0x7F
                open(os.path.join(d, f), "wb").write(tiny.pack(header, bytes(data)))
        args = ["--tokens", ids(prompt), "-n", "1", "--ids"]
        for gpus in (["--prefill", "cpu"], ["--gpus", "emu:1", "--prefill", "slp"], ["--gpus", "emu:2", "--prefill", "dslp"]):
            rc, out, err = run(d, *args, *gpus)
            check(rc == 3 and tensor in err and "row 1, column 3" in err, f"{tensor} on {gpus}", f"exit {rc} {out!r} {err!r}")


def trace(good, tmp):
    args = ["--tokens", ids(PROMPT), "-n", "2", "--temp", "0", "--ids", "--gpus", "emu:1", "--prefill", "slp"]
    rc, out, err = run(good, *args, "--stats", "--trace", os.path.join(tmp, "no", "such", "directory"))
    check(rc == 0 and out == run(good, *args)[1] and "directory" in err, "a trace that cannot be written", f"exit {rc} {err!r}")
    check("instead" not in err and "slp" in err, "the prefill is not thrown away", err)


def routing(good, tmp):
    """The routers' choices, a line for each token and layer with experts, are the same wherever attention runs."""
    path, seen = os.path.join(tmp, "routing"), []
    args = ["--tokens", ids(PROMPT), "-n", "4", "--temp", "0", "--ids", "--cpu", "scalar", "--kv", "f32"]
    want = run(good, *args)[1]
    for gpus in ([], ["--gpus", "emu:1,cpu=scalar", "--prefill", "blend", "--decode", "hybrid"]):
        rc, out, err = run(good, *args, *gpus, "--trace-routing", path)
        head, *lines = [json.loads(line) for line in open(path)] if rc == 0 else [None]
        check(rc == 0 and out == want and not err and head and set(head) == {"model", "layers", "experts", "topk"}, f"--trace-routing {gpus}", f"exit {rc} {err!r} {head}")
        layers = {j["layer"] for j in lines}
        check({(j["pos"], j["layer"], j["prompt"]) for j in lines} == {(p, l, p < len(PROMPT)) for p in range(len(PROMPT) + 3) for l in layers} and len(lines) == len(layers) * (len(PROMPT) + 3), "a line for each token and layer", f"{len(lines)} lines, layers {layers}")
        check([j["token"] for j in lines if j["layer"] == max(layers)] == PROMPT + json.loads(want)[:3], "tokens in their order")
        for j in lines:
            near = j.get("near", j["ids"])
            check(len(set(j["ids"])) == head["topk"] == len(j["weights"]) and set(j["ids"]) <= set(near) and all(0 <= i < head["experts"] for i in near) and abs(sum(j.get("chances", [1])) - 1) < 1e-3, "a line", j)
        check(all(("near" in j) == (not gpus or not j["prompt"]) for j in lines), "scores where they are in host memory")
        seen.append({(j["pos"], j["layer"]): j["ids"] for j in lines})
    check(seen[0] == seen[-1], "other experts on a device")
    rc, out, err = run(good, *args, "--trace-routing", os.path.join(tmp, "no", "such", "directory"))
    check(rc == 0 and out == want and len(err.splitlines()) == 1 and "directory" in err, "a trace of the routing that cannot be written", f"exit {rc} {err!r}")


def values(good, tmp):
    """The stages of all layers, batch by batch, the same in every run; the logits are those of --logits-out."""
    path, logits, seen = os.path.join(tmp, "values"), os.path.join(tmp, "logits"), []
    args = ["--tokens", ids(PROMPT), "-n", "3", "--temp", "0", "--ids", "--gpus", "none"]
    want = run(good, *args)[1]
    for _ in range(2):
        rc, out, err = run(good, *args, "--trace-values", path)
        check(rc == 0 and out == want and not err, "--trace-values", f"exit {rc} {err!r}")
        seen.append([json.loads(line) for line in open(path)] if rc == 0 else [])
    check(seen[0] == seen[1], "the same values in two runs")
    batches, n_layers = [], max([j["layer"] for j in seen[0]], default=0) + 1
    for j in seen[0]:
        if j["stage"] == "embedding":
            batches.append([])
        batches[-1].append(j)
    check([b[0]["shape"][0] for b in batches] == [len(PROMPT), 1, 1], "a batch for the prompt and one for each token but the last", [b[0]["shape"] for b in batches])
    for b in batches:
        for layer in range(n_layers):
            stages = [j["stage"] for j in b if j["layer"] == layer]
            routed = ["router", "expert_weights"] if "router" in stages else []
            check(stages == ["attention_norm", "latent", "q", "attention", "after_attention", "ffn_norm", *routed, "after_ffn"], f"stages of layer {layer}", stages)
        check([j["stage"] for j in b if j["layer"] < 0] == ["embedding", "final_norm", "logits"], "stages outside of layers")
        check(any(j["stage"] == "router" for j in b) and all(len(j["first"]) == min(8, j["shape"][1]) for j in b), "routers, and eight values")
    rc, out, err = run(good, "--tokens", ids(PROMPT), "--logits-out", logits, "--gpus", "none", "--trace-values", path)
    first = next(json.loads(line) for line in open(path) if '"logits"' in line)
    check(rc == 0 and array.array("f", first["first"]) == array.array("f", open(logits, "rb").read())[:8], "the first logits", first)
    rc, out, err = run(good, *args[:-1], "emu:1", "--trace-values", path)
    check(rc == 2 and "use no devices (--gpus none)" in err, "a device", f"exit {rc} {err!r}")
    rc, out, err = run(good, *args, "--trace-values", os.path.join(tmp, "no", "such", "directory"))
    check(rc == 0 and out == want and len(err.splitlines()) == 1 and "directory" in err, "a trace of values that cannot be written", f"exit {rc} {err!r}")


def inspect(good):
    rc, out, err = run(good, "--inspect", "--json", "--gpus", "emu:2,mem=3G")
    gpus = json.loads(out)["runs"]["gpus"] if rc == 0 else None
    check(gpus and len(gpus) == 2 and all(g["bytes"] == 3 << 30 and g["name"] for g in gpus), "--inspect lists the devices", f"{gpus} {err!r}")
    rc, out, err = run(good, "--inspect", "--json")
    check(rc == 0 and json.loads(out)["runs"]["gpus"] == [], "no devices without --gpus", err)


with tempfile.TemporaryDirectory() as tmp:
    good = os.path.join(tmp, "good")
    tiny.make(good)
    memory(good)
    logits_once(good, tmp)
    only_the_guilty(good, tmp)
    no_text(good)
    damaged_for_devices(tmp)
    trace(good, tmp)
    routing(good, tmp)
    values(good, tmp)
    inspect(good)
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed or not passed else 0)
