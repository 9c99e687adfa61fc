#!/usr/bin/env python3
"""Tensor parallel devices (--gpus ...,parallel=tensor) give the CPU's answers: every kind of model that can be sharded, alone
and in two micro-batches, after prompts read by the CPU and by devices, in every format of the KV cache, in batches, and when a device
fails; a model that cannot be sharded keeps its layers on single devices and says why.

usage: test_tensor.py HEARTH FIXTURES_DIR    without fixtures only the built-in model"""
import json, os, sys, tempfile

from against import SCALAR, check, end, greedy, known, run, warnings

models = known("mixtral", "gpt_oss", "dbrx", "qwen2_moe", "glm4_moe", "phimoe", "deepseek_v3", "deepseek_v2_lite", "deepseek_v32", "glm_moe_dsa")
TENSOR = "emu:{},cpu=scalar,parallel=tensor"


def same(model, prompt, n, base, args, decode="hybrid"):
    """Compares with the ids of the CPU alone; the decode batch must have run on all devices at once."""
    rc, want, err = greedy(model, prompt, base, n)
    assert not rc, (model, err)
    rc, out, err = greedy(model, prompt, base + args, n)
    check(not rc and out == want and "(tensor parallel)" in err and f"decode by {decode}" in err and "instead" not in err, model, prompt, *base, *args, rc, out, "for", want, err)


for i, model in enumerate(models):
    base = ["--cpu", "scalar", "--kv", ("f32", "bf16", "fp8")[i % 3]]
    same(model, 20, 12, base, ["--gpus", TENSOR.format(2 + i % 2), "--prefill", ("cpu", "slp")[i // 2 % 2], "--decode", "hybrid"])
same("ember:", 700, 4, SCALAR, ["--gpus", TENSOR.format(2), "--prefill", "dslp", "--decode", "hybrid"])  # caches are divided by a stage's threads
same("ember:", 20, 8, SCALAR, ["--gpus", TENSOR.format(2) + ",nograph,nopeer", "--prefill", "cpu", "--decode", "hybrid"])
same("ember:", 20, 8, SCALAR, ["--gpus", TENSOR.format(2), "--prefill", "cpu", "--decode", "hybrid", "--draft", "mtp"])
same("ember:", 20, 8, SCALAR, ["--gpus", TENSOR.format(2), "--prefill", "cpu", "--decode", "hybrid", "--expert-cache", "4"])


# --- In batches, in micro-batches
def batch(prompts, args):
    with tempfile.TemporaryDirectory() as tmp:
        name = os.path.join(tmp, "batch")
        with open(name, "w") as f:
            for i, p in prompts:
                f.write(json.dumps({"prompt": p, "seed": i, "temperature": 1, "max_tokens": 8 + i % 5}) + "\n")
        rc, out, err = run("--raw", "--batch", name, *SCALAR, *args)
    return [rc] + [(j["text"], j["usage"]["answer_tokens"]) for j in sorted(map(json.loads, out.splitlines()), key=lambda a: a["index"])]


prompts = [(i, "How do I " + "list files in a directory? " * (i * 7 % 5) + str(i)) for i in range(5)]
want = batch(prompts, [])
check(len(want) == 6 and not want[0], "the processor's own", want)
for decode in ("hybrid", "dual"):
    got = batch(prompts, ["--gpus", TENSOR.format(2), "--prefill", "cpu", "--decode", decode])
    check(got == want, "prompts together by", decode, got, want)

# --- A rank fails: one warning, and the answer is complete
want = greedy("ember:", 24, SCALAR, 8)[1]
failed = 0
for kind, n in (("copy", 150), ("copy", 260), ("launch", 40), ("launch", 160), ("alloc", 40), ("alloc", 95), ("die", 300)):
    for rank in (0, 1):
        rc, out, err = greedy("ember:", 24, SCALAR + ["--gpus", TENSOR.format(2) + f",fail={kind}:{n}@{rank}", "--prefill", "cpu", "--decode", "hybrid"], 8)
        said = warnings(err)
        opening = rc == 5 and kind == "alloc" and "decoding in mode hybrid: device" in said[-1]  # a forced mode cannot even be opened
        check(opening or not rc and out == want and len(said) <= 1, f"fail={kind}:{n}@{rank}", rc, out, err)
        failed += len(said)
check(failed > 5, "only", failed, "devices failed")

# --- Report of the placement
with tempfile.TemporaryDirectory() as tmp:
    name = os.path.join(tmp, "trace")
    greedy("ember:", 8, SCALAR + ["--gpus", TENSOR.format(2), "--prefill", "cpu", "--decode", "hybrid", "--trace", name], 4)
    spans = {(e["pid"], e["name"]) for e in json.load(open(name))["traceEvents"] if e["ph"] == "X"}
check({(0, "attention"), (1, "attention"), (0, "route"), (1, "route"), (0, "join"), (1, "join"), (1, "head"), (8, "experts")} <= spans, "a trace:", spans)

# --- A model that cannot be sharded keeps its layers on single devices
for model, why in zip(known("qwen3_moe", "minimax_m2", "qwen3_next", "deepseek_v4")[1:], ("between blocks", "over all heads together", "DeltaNet", "residual streams")):
    rc, out, err = greedy(model, 9, SCALAR + ["--gpus", TENSOR.format(2), "--prefill", "cpu", "--decode", "hybrid"], 4)
    check(not rc and "not tensor parallel: " in err and why in err and "decode by hybrid" in err, model, rc, err)
rc, out, err = run("--tokens", "1,2", "-n", "1", "--ids", "--gpus", TENSOR.format(2), "--prefill", "blend")
check(rc == 2 and "cannot be combined with tensor parallelism" in err, "--prefill blend with it:", rc, err)
rc, out, err = run("--inspect", "--json", "--gpus", TENSOR.format(2))
check(not rc and "(tensor parallel)" in json.loads(out)["runs"]["resident"], "--inspect:", rc, out[-400:], err)
where = [] if rc else json.loads(out)["runs"]["where"]
heads = [r for r in where if r["what"] == "head"]
check([r["in"] for r in where if r["what"] == "attention and dense parts"] == ["device 0", "device 1"] and len(heads) == 1 and heads[0]["in"] != "device 0"
      and [r["in"] for r in where if r["what"] == "routed experts"] == ["host memory"] and all(r["bytes"] > 0 and r["why"] for r in where), "where parts lie, by --inspect:", where)
rc, out, err = run("--tokens", "1", "-n", "1", "--ids", "--gpus", "emu:2,parallel=both")
check(rc == 2 and "parallel=both" in err, "a word that it is not:", rc, err)
sys.exit(end())
