#!/usr/bin/env python3
"""Perplexity and greedy answers of every type that llama.cpp's quantizer writes, hearth beside llama.cpp: the same files, the same tokens.

    python3 -m venv VENV && VENV/bin/pip install llama-cpp-python gguf numpy
    VENV/bin/python quantized.py HEARTH MODEL.gguf TEXT FOLDER [TYPE...] [--pad] [--windows 8] [--threads 2] [-- OPTION OF HEARTH...]

MODEL is SmolLM2's GGUF file of test/e2e/test_speaking.py. Each window of TEXT has 512 tokens and begins with an empty context; all tokens but the first are
scored. The importance matrix is of the text's first four windows, which are not scored. The answer: greedy tokens until the first other one, of 16; at that one,
llama.cpp's distance from its best logit to hearth's choice. --pad makes the model wider with zeros, 768 columns and 12 heads instead of 576 and 9, and computes
the same: all its matrices then have blocks of 256 columns, where the quantizer otherwise takes another type. Where the two differ by more than 1 %, both are
compared with llama.cpp on the same weights in F32: it then rounds no activations."""
import argparse
import ctypes
import json
import math
import os
import subprocess
import sys

import gguf
import llama_cpp as api
import numpy as np

WINDOW, IMATRIX_WINDOWS, ANSWER = 512, 4, 16
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
TYPES = {"F32": 0, **{n[len("LLAMA_FTYPE_MOSTLY_"):]: getattr(api, n) for n in dir(api) if n.startswith("LLAMA_FTYPE_MOSTLY_")}}


class Tensor(ctypes.Structure):
    """The beginning of struct ggml_tensor."""
    _fields_ = [("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4), ("op", ctypes.c_int),
                ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32), ("src", ctypes.c_void_p * 10), ("view_src", ctypes.c_void_p),
                ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64)]


class Llama:
    """llama.cpp's own defaults: KV cache in F16, flash attention where it has it. With `squares`, adds the squares of each matrix's inputs to it."""

    def __init__(self, path, threads, squares=None):
        self.model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp cannot load " + path)
        p = api.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = WINDOW, WINDOW, WINDOW, threads, threads

        def seen(at, ask, _):
            t = ctypes.cast(at, ctypes.POINTER(Tensor))[0]
            w, x = (ctypes.cast(t.src[i], ctypes.POINTER(Tensor))[0] if t.src[i] else None for i in (0, 1))
            if not w or not x or not w.name.endswith(b".weight") or x.type != 0:
                return False
            if not ask:
                rows = np.ctypeslib.as_array(ctypes.cast(x.data, ctypes.POINTER(ctypes.c_float)), (x.ne[1], x.ne[0]))
                squares[w.name] = squares.get(w.name, 0) + (rows * rows).mean(0)
            return True

        if squares is not None:
            self.seen = p.cb_eval = api.ggml_backend_sched_eval_callback(seen)
        self.ctx = api.llama_init_from_model(self.model, p)
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = api.llama_batch_init(WINDOW, 0, 1)

    def logits(self, ids, at=0):
        """Returns the logits of all of `ids`, which begin at position `at`; at 0 the context is emptied."""
        b = self.batch
        if not at:
            api.llama_memory_clear(api.llama_get_memory(self.ctx), True)
        b.n_tokens = len(ids)
        for i, token in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, at + i, 1, 1
            b.seq_id[i][0] = 0
        if api.llama_decode(self.ctx, b):
            raise RuntimeError("llama_decode failed")
        return np.ctypeslib.as_array(api.llama_get_logits(self.ctx), (len(ids), self.vocab)).copy()

    def close(self):
        api.llama_batch_free(self.batch)
        api.llama_free(self.ctx)
        api.llama_model_free(self.model)


def hearth(binary, *args, text=None):
    p = subprocess.run([binary, "--no-attach", *args], input=text, capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(p.stderr.strip().splitlines()[-1])
    return p.stdout


def loss(logits, ids):
    """Sum of the negative log-likelihoods of all ids but the first."""
    best = logits.max(-1, keepdims=True)
    all_of = best[:, 0] + np.log(np.exp(logits - best).sum(-1, dtype=np.float64))
    return (all_of[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]).sum(dtype=np.float64)


def losses(llama, windows):
    return [loss(llama.logits(part), part) for part in windows]


def exact(path, threads, windows):
    """The losses of llama.cpp with the weights of `path` as F32."""
    quantize(path, path + ".f32", 0)
    llama = Llama(path + ".f32", threads)
    os.unlink(path + ".f32")
    try:
        return losses(llama, windows)
    finally:
        llama.close()


def answers(binary, path, llama, prompt, options):
    mine = json.loads(hearth(binary, "-m", path, "--tokens", ",".join(map(str, prompt)), "--ids", "-n", str(ANSWER), "--temp", "0", *options))
    row, at = llama.logits(prompt)[-1], len(prompt)
    for i, token in enumerate(mine):
        if token != row.argmax():
            return f"{i}, {row.max() - row[token]:.3f}"
        row, at = llama.logits([token], at)[-1], at + 1
    return f"{len(mine)}"


def quantize(source, out, ftype, imatrix=None):
    p = api.llama_model_quantize_default_params()
    p.ftype, p.allow_requantize, p.nthread = ftype, True, os.cpu_count()
    if imatrix:
        kept = [(name, np.ascontiguousarray(v, np.float32)) for name, v in imatrix.items()]
        rows = (api.llama_model_imatrix_data * (len(kept) + 1))()
        for row, (name, v) in zip(rows, kept):
            row.name, row.data, row.size = name, v.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), v.size
        p.imatrix = ctypes.cast(rows, ctypes.POINTER(api.llama_model_imatrix_data))
    if api.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(p)):
        raise RuntimeError("llama.cpp cannot write the type")


def pad(source, out):
    """Writes the model as F32 with zeros that make every matrix's columns a multiple of 256. Norms of more columns are smaller: their weights make up for it."""
    reader = gguf.GGUFReader(source)
    get = lambda key: reader.fields["llama." + key].contents()
    hidden, heads, kv_heads = get("embedding_length"), get("attention.head_count"), get("attention.head_count_kv")
    dim, wide = hidden // heads, -(-hidden // 256) * 256
    new_heads, new_kv = wide // dim, wide // dim * kv_heads // heads
    size = {hidden: wide, kv_heads * dim: new_kv * dim}
    values = {"embedding_length": wide, "attention.head_count": new_heads, "attention.head_count_kv": new_kv, "rope.dimension_count": dim,
              "attention.layer_norm_rms_epsilon": get("attention.layer_norm_rms_epsilon") * hidden / wide}
    w = gguf.GGUFWriter(out, "llama")
    for f in reader.fields.values():
        if f.name.startswith("GGUF.") or f.name in ("general.architecture", "general.file_type"):
            continue
        kind, sub = f.types[0], f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None
        w.add_key_value(f.name, values.get(f.name.removeprefix("llama."), f.contents()), kind, sub)
    for t in reader.tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if x.ndim == 1:
            x = x * np.float32(math.sqrt(hidden / wide))
        fixed = {0} if t.name == "token_embd.weight" else set()  # the vocabulary's rows
        x = np.pad(x, [(0, 0 if i in fixed else size.get(n, n) - n) for i, n in enumerate(x.shape)])
        w.add_tensor(t.name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, options = sys.argv[1:cut], sys.argv[cut + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("hearth", "model", "text", "folder"):
        parser.add_argument(name)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--pad", action="store_true")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    a = parser.parse_intermixed_args(own)
    options += ["-t", str(a.threads)]
    api.llama_log_set(silent, None)
    os.makedirs(a.folder, exist_ok=True)
    base = os.path.join(a.folder, "padded.gguf" if a.pad else "f32.gguf")
    if not os.path.exists(base):
        pad(a.model, base) if a.pad else quantize(a.model, base, 0)
    with open(a.text, encoding="utf-8") as f:
        ids = json.loads(hearth(a.hearth, "-m", a.model, "--tokenize", text=f.read()))
    prompt = json.loads(hearth(a.hearth, "-m", a.model, "--tokenize", "--special", text=PROMPT))
    windows = [ids[i * WINDOW:(i + 1) * WINDOW] for i in range(a.windows + IMATRIX_WINDOWS)]
    assert len(windows[-1]) == WINDOW, "the text is too short"
    imatrix, kept = {}, base + ".imatrix.npz"
    if os.path.exists(kept):
        imatrix = {name.encode(): v for name, v in np.load(kept).items()}
    else:
        llama = Llama(base, a.threads, imatrix)
        losses(llama, windows[:IMATRIX_WINDOWS])
        llama.close()
        np.savez(kept, **{name.decode(): v for name, v in imatrix.items()})
    print("| type | MB | hearth | llama.cpp | | largest of a window | same tokens of %d |\n|---|---|---|---|---|---|---|" % ANSWER, flush=True)
    for name in a.types or ["own", *TYPES]:
        path, out = os.path.join(a.folder, name + ".gguf"), os.path.join(a.folder, name + ".logits")
        try:
            if name == "own":
                path = a.model
            else:
                quantize(base, path, TYPES[name], imatrix)
            llama, mine = Llama(path, a.threads), []
            try:
                other = losses(llama, windows[IMATRIX_WINDOWS:])
                for part in windows[IMATRIX_WINDOWS:]:
                    hearth(a.hearth, "-m", path, "--tokens", ",".join(map(str, part)), "--logits-out", out, *options)
                    mine.append(loss(np.fromfile(out, np.float32).reshape(WINDOW, -1), part))
                same = answers(a.hearth, path, llama, prompt, options)
            finally:
                llama.close()
            n = WINDOW - 1
            ratio = [math.exp((x - y) / n) - 1 for x, y in zip(mine, other)]
            whole = [math.exp(sum(x) / n / a.windows) for x in (mine, other)]
            print(f"| {name} | {os.path.getsize(path) / 1e6:.0f} | {whole[0]:.4f} | {whole[1]:.4f} | {100 * (whole[0] / whole[1] - 1):+.3f} % | "
                  f"{100 * max(ratio, key=abs):+.2f} % | {same} |", flush=True)
            if abs(whole[0] / whole[1] - 1) > 0.01:
                want = math.exp(sum(exact(path, a.threads, windows[IMATRIX_WINDOWS:])) / n / a.windows)
                print(f"| {name}'s weights in F32 | | {100 * (whole[0] / want - 1):+.3f} % | {want:.4f}, {100 * (whole[1] / want - 1):+.3f} % | | | |", flush=True)
        except RuntimeError as e:
            print(f"| {name} | {e} |", flush=True)
        finally:
            for made in {path, out} - {a.model}:
                if os.path.exists(made):
                    os.unlink(made)


silent = api.llama_log_callback(lambda level, text, data: None)
main()
