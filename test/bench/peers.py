#!/usr/bin/env python3
"""hearth beside llama.cpp on the same random weights' shape, in one run, each as a share of this machine's limits.

    peers.py --work DIR --build                    # once: venv with gguf, llama.cpp from the sdist of llama-cpp-python
    peers.py --work DIR --hearth BUILD/hearth [--shape qwen3-30b-a3b] [--type q8_0|q4_k_m] [--layers 8] [--vocab 32000] [--threads 2]

DIR lies outside the repository and takes 15 GB: an FP8 checkpoint (mkmodel.py) and the same shape as GGUF, which both are
given. A measurement, not a dependency: nothing of it is built or tested with hearth.

Read bandwidth is measured (by hearth --bench) before and after; runs alternate hearth (FP8), hearth (GGUF), llama.cpp, and the
median of each is printed. Decode: bytes of a token over time, as a share of the bandwidth. Prefill: 2 * multiply-adds of the
layers (the head runs once) over time.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GGUF_ARCH = {"qwen3-30b-a3b": "qwen3moe"}


def call(cmd, **more):
    return subprocess.run(cmd, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def python(work):
    return os.path.join(work, "venv", "bin", "python")


def build(work):
    os.makedirs(work, exist_ok=True)
    if not os.path.exists(python(work)):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(work, "venv")], check=True)
        subprocess.run([python(work), "-m", "pip", "install", "-q", "gguf", "numpy"], check=True)
    bench = os.path.join(work, "build", "bin", "llama-bench")
    if os.path.exists(bench):
        return
    sdist = os.path.join(work, "sdist")
    subprocess.run([python(work), "-m", "pip", "download", "--no-binary", "llama-cpp-python", "--no-deps", "-d", sdist, "llama-cpp-python"], check=True)
    for f in os.listdir(sdist):
        shutil.unpack_archive(os.path.join(sdist, f), sdist)
    top = next(os.path.join(sdist, d) for d in os.listdir(sdist) if os.path.isdir(os.path.join(sdist, d)))
    subprocess.run(["cmake", "-S", os.path.join(top, "vendor", "llama.cpp"), "-B", os.path.join(work, "build"), "-DCMAKE_BUILD_TYPE=Release",
                    "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"], check=True)
    subprocess.run(["nice", "-n", "19", "cmake", "--build", os.path.join(work, "build"), "--target", "llama-bench", "-j2"], check=True)


# ---- GGUF: run again inside the venv ----

BLOCKS = {"q8_0": (32, 34), "q4_k": (256, 144), "q6_k": (256, 210)}  # weights, bytes


def kind(name, mix):
    """llama.cpp's mix for Q4_K_M: the head, and values and down of every second layer, have more bits."""
    if mix == "q8_0":
        return mix
    more = name == "output.weight" or (("attn_v" in name or "ffn_down" in name) and int(name.split(".")[1]) % 2 == 0)
    return "q6_k" if more else "q4_k"


def blocks_of(fmt, rng, n=1 << 18):
    """Random blocks whose weights have a deviation of about 0.02."""
    import numpy as np
    half = lambda x: np.frombuffer(np.float16(x).tobytes(), np.uint8)
    out = rng.integers(0, 256, (n, BLOCKS[fmt][1]), np.uint8)
    if fmt == "q8_0":
        out[:, :2] = half(0.02 / 42)
        out[:, 2:] = np.clip(np.rint(rng.standard_normal((n, 32), np.float32) * 42), -127, 127).astype(np.int8).view(np.uint8)
    elif fmt == "q4_k":  # a scale averages 31 and a code 7.5, and so does the subtracted minimum
        out[:, :2], out[:, 2:4] = half(0.02 / 31 / 4.6), half(0.02 * 7.5 / 31 / 4.6)
    else:
        out[:, 208:] = half(0.02 / 74 / 18.5)
    return out


def write_gguf(path, s, mix):
    import gguf
    import numpy as np
    h, q, kv, d, e, m = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"], s["head_dim"], s["experts"], s["inter"]

    def tensors():  # name, shape (rows last as numpy has it), quantised
        yield "token_embd.weight", (s["vocab"], h), True
        for i in range(s["layers"]):
            b = f"blk.{i}."
            yield b + "attn_norm.weight", (h,), False
            for n, rows in (("q", q), ("k", kv), ("v", kv)):
                yield b + f"attn_{n}.weight", (rows, h), True
            yield b + "attn_q_norm.weight", (d,), False
            yield b + "attn_k_norm.weight", (d,), False
            yield b + "attn_output.weight", (h, q), True
            yield b + "ffn_norm.weight", (h,), False
            yield b + "ffn_gate_inp.weight", (e, h), False
            yield b + "ffn_gate_exps.weight", (e, m, h), True
            yield b + "ffn_up_exps.weight", (e, m, h), True
            yield b + "ffn_down_exps.weight", (e, h, m), True
        yield "output_norm.weight", (h,), False
        yield "output.weight", (s["vocab"], h), True

    w = gguf.GGUFWriter(path, GGUF_ARCH[s["name"]])
    w.add_block_count(s["layers"])
    w.add_context_length(40960)
    w.add_embedding_length(h)
    w.add_feed_forward_length(6144)
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_key_length(d)
    w.add_value_length(d)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e6)
    w.add_vocab_size(s["vocab"])
    w.add_expert_count(e)
    w.add_expert_used_count(s["topk"])
    w.add_expert_feed_forward_length(m)
    w.add_file_type({"q8_0": 7, "q4_k_m": 15}[mix])
    w.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(1)
    pool = {fmt: blocks_of(fmt, rng) for fmt in BLOCKS}
    for name, shape, quant in tensors():
        fmt = kind(name, mix)
        per, size = BLOCKS[fmt]
        if quant:
            w.add_tensor_info(name, shape[:-1] + (shape[-1] // per * size,), np.dtype(np.uint8), int(np.prod(shape)) // per * size,
                              raw_dtype=gguf.GGMLQuantizationType[fmt.upper()])
        else:
            w.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for name, shape, quant in tensors():
        n = int(np.prod(shape))
        if quant:
            blocks = pool[kind(name, mix)]
            at = int(rng.integers(0, len(blocks)))
            w.write_tensor_data(np.resize(np.roll(blocks, -at, axis=0), (n // BLOCKS[kind(name, mix)][0], blocks.shape[1])))
        else:
            w.write_tensor_data(np.ones(n, np.float32) if len(shape) == 1 else rng.standard_normal(n, np.float32) * 0.02)
    w.close()


# ---- Runs ----

def hearth_bench(a, model):
    rows = json.loads(call([a.hearth, "-m", model, "--bench", "--json", "-t", str(a.threads)]))
    machine = next(r for r in rows if r["what"] == "machine")
    get = lambda what, prompt: next((r["tokens_per_s"] for r in rows if r["what"] == what and r["prompt"] == prompt and r["sessions"] == 1), None)
    return machine, {"decode": get("decode", 16), "decode at 2048": get("decode", 2048), "prefill 128": get("prefill", 128),
                     "prefill 512": get("prefill", 512)}


def llama_bench(a, model):
    bench, out = os.path.join(a.work, "build", "bin", "llama-bench"), {}
    for name, args in (("decode", ["-p", "0", "-n", "32"]), ("decode at 2048", ["-p", "0", "-n", "32", "-d", "2048"]),
                       ("prefill 128", ["-p", "128", "-n", "0"]), ("prefill 512", ["-p", "512", "-n", "0"])):
        try:
            rows = json.loads(call([bench, "-m", model, "-t", str(a.threads), "-r", "3", "-o", "json", *args], stderr=subprocess.DEVNULL))
            out[name] = statistics.median(rows[-1]["samples_ts"])
        except subprocess.CalledProcessError as why:  # its AMX path ends with signal 11 on some files
            print(f"llama.cpp, {name}: {why}", file=sys.stderr)
            out[name] = None
    return out


def main():
    ap = argparse.ArgumentParser(description="hearth beside llama.cpp")
    ap.add_argument("--work", required=True, help="directory outside the repository")
    ap.add_argument("--build", action="store_true")
    ap.add_argument("--hearth")
    ap.add_argument("--shape", choices=GGUF_ARCH, default="qwen3-30b-a3b")
    ap.add_argument("--type", choices=["q8_0", "q4_k_m"], default="q8_0", help="of the GGUF file")
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--vocab", type=int, default=32000, help="small, so that the head does not drown the experts")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--write-gguf", help=argparse.SUPPRESS)
    a = ap.parse_args()
    a.work = os.path.abspath(a.work)
    if a.write_gguf:
        with open(a.write_gguf) as f:
            job = json.load(f)
        write_gguf(job["path"], job["shape"], job["type"])
        return
    if a.build:
        build(a.work)
    if not a.hearth:
        return
    name = f"{a.shape}-{a.layers}-{a.vocab}"
    model, peer = os.path.join(a.work, name), os.path.join(a.work, f"{name}-{a.type}.gguf")
    mk = [sys.executable, os.path.join(HERE, "mkmodel.py"), "--shape", a.shape, "--layers", str(a.layers), "--vocab", str(a.vocab)]
    figures = json.loads(call(mk + ["--count"]))
    if not os.path.exists(os.path.join(model, "model.safetensors.index.json")):
        call(mk + ["--out", model])
    if not os.path.exists(peer):
        from runpy import run_path
        shape = dict(run_path(mk[1])["SHAPES"][a.shape], name=a.shape, layers=a.layers, vocab=a.vocab)
        job = peer + ".json"
        with open(job, "w") as f:
            json.dump(dict(path=peer + ".part", shape=shape, type=a.type), f)
        subprocess.run([python(a.work), os.path.abspath(__file__), "--work", a.work, "--write-gguf", job], check=True)
        os.rename(peer + ".part", peer)
    # What a token reads of a file: all matrices except the embedding, of the experts only the chosen ones.
    info = json.loads(call([a.hearth, "-m", peer, "--inspect", "--json"]))
    peer_bytes = info["bytes"]["per_token"]
    every, limits = {"hearth, FP8": [], f"hearth, {a.type}": [], f"llama.cpp, {a.type}": []}, []
    for _ in range(a.rounds):
        for what, rows in every.items():
            if what.startswith("llama"):
                rows.append(llama_bench(a, peer))
                continue
            machine, row = hearth_bench(a, model if "FP8" in what else peer)
            rows.append(row)
            limits.append(machine["read_gbps"])
    limit = statistics.median(limits)
    print(f"{name}, {a.threads} threads, {machine['level']}, read bandwidth {limit:.1f} GB/s ({min(limits):.1f} to {max(limits):.1f})")
    gflop = 2 * (figures["macs_per_token"] - figures["head_macs"]) / 1e9
    for test in every["hearth, FP8"][0]:
        speeds = {what: statistics.median(values) for what, rows in every.items() if (values := [r[test] for r in rows if r[test] is not None])}
        theirs = speeds.get(f"llama.cpp, {a.type}", float("nan"))
        for what, v in speeds.items():
            kv = figures["kv_bytes_per_position"] * (2048 if "2048" in test else 16)
            share = ((figures["decode_bytes"] if "FP8" in what else peer_bytes) + kv) * v / 1e9 / limit
            note = f"{share:.2f} of the read bandwidth" if test.startswith("decode") else f"{gflop * v:.0f} GFLOP/s"
            print(f"{test:16s} {what:18s} {v:9.1f} tok/s  {v / theirs:5.2f} of llama.cpp's  {note}")


main()
