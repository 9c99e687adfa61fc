#!/usr/bin/env python3
"""The pre-tokenizers that GGUF files name, against llama.cpp: the token ids of a text with words, digits, scripts and spaces, of a vocabulary whose merges cross
the borders that pre-tokenizers draw. llama.cpp comes from the package xllamacpp; without it nothing is compared.
gguf_pretok.py HEARTH [NAME]"""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import gguf_formats  # noqa: E402
import gguf_pair  # noqa: E402

HEARTH, ROOT = os.path.abspath(sys.argv[1]), os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LOWER = {"kimi-k2", "cohere2moe", "tiny_aya"}  # which split at capital letters; llama.cpp does not
with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
    TEXT = readme.read()[:3500] + """
I'm sure they'll say "don't", it's O'Neil's; WE'RE DON'T I'D've.
1 12 123 1234 12345 123456 1234567 12,345.678 x86_64 v1.2.3 007
\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002\u4e2d\u6587\u5b57\u7b26 abc\u4e2d12 \uc548\ub155\ud558\uc138\uc694 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0645\u0631\u062d\u0628\u0627 \u0915\u094d\u0937
  two  spaces\t\ttab \n\n\n   indent\r\n\r\nwindows   \n
#include <stdio.h>\nint main(){return 0;}//a/b/c ... !!! ?? --- $5.00 (a+b)*c=d
"""


def learn(text, alphabet, n):
    """Merges of a text as a whole."""
    seq, merges = [alphabet[b] for b in text.encode()], []
    for _ in range(n):
        pairs = collections.Counter(zip(seq, seq[1:]))
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        out, i = [], 0
        while i < len(seq):
            joins = tuple(seq[i : i + 2]) == best
            out.append("".join(seq[i : i + 1 + joins]))
            i += 1 + joins
        seq = out
    return merges


def make(file, pre, tokens, merges):
    """A model that llama.cpp loads."""
    n, h = len(tokens), 32
    meta = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * (n - 1) + [3], "tokenizer.ggml.merges": [" ".join(m) for m in merges], "tokenizer.ggml.bos_token_id": n - 1,
            "tokenizer.ggml.eos_token_id": n - 1, "tokenizer.ggml.add_bos_token": False}
    for key, value in {"block_count": 1, "context_length": 4096, "embedding_length": h, "feed_forward_length": h, "attention.head_count": 1, "attention.head_count_kv": 1,
                       "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": h, "vocab_size": n}.items():
        meta["llama." + key] = value
    shapes = {"token_embd": [n, h], "output": [n, h], "output_norm": [h], "blk.0.attn_norm": [h], "blk.0.ffn_norm": [h]}
    shapes.update({"blk.0." + k: [h, h] for k in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")})
    gguf_formats.write(file, meta, [(k + ".weight", "F32", s, bytes(4 * s[0] * (s[1] if len(s) > 1 else 1))) for k, s in shapes.items()])


def ours(file, text):
    p = subprocess.run([HEARTH, "-m", file, "--tokenize"], input=text.encode(), capture_output=True, timeout=120)
    return json.loads(p.stdout) if not p.returncode else p.stderr.decode()


def theirs(file, text):
    code = f"""
import json, os, sys, urllib.request, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.warmup, p.verbosity = {file!r}, 256, 1, False, 1
server = xllamacpp.Server(p)
address = server.listening_address
body = json.dumps(dict(content=sys.stdin.buffer.read().decode(), add_special=False, parse_special=False)).encode()
request = urllib.request.Request((address if "://" in address else "http://" + address) + "/tokenize", body, {{"Content-Type": "application/json"}})
print("RESULT", urllib.request.urlopen(request, timeout=60).read().decode(), flush=True)
os._exit(0)
"""
    p = subprocess.run([sys.executable, "-c", code], input=text.encode(), capture_output=True, timeout=300)
    lines = [x for x in p.stdout.decode(errors="replace").splitlines() if x.startswith("RESULT ")]
    return json.loads(lines[0][7:])["tokens"] if lines else p.stderr.decode(errors="replace")[-300:]


def main():
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        print("SKIPPED: llama.cpp's pre-tokenizers: the Python package xllamacpp is not installed")
        return 77
    with open(os.path.join(ROOT, "tokenizer", "load_gguf.c"), encoding="utf-8") as f:
        table = f.read().split("gguf_pretoks[] = {")[1].split("\n};")[0]
    alphabet = gguf_pair.vocabulary(0)[0][:256]
    merges, failed = learn(TEXT, alphabet, 700), 0
    tokens = list(dict.fromkeys(alphabet + [a + b for a, b in merges] + ["<s>"]))
    names = sys.argv[2:] or re.findall(r'(?m)^ {4}\{"([^"]+)"', table)
    for name in names:
        text = TEXT.lower() if name in LOWER else TEXT
        with tempfile.TemporaryDirectory() as tmp:
            file = os.path.join(tmp, "t.gguf")
            make(file, name, tokens, merges)
            got, want = ours(file, text), theirs(file, text)
        if got != want or not isinstance(got, list):
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), 0)
            show = [x[max(at - 3, 0) : at + 5] if isinstance(x, list) else x[:200] for x in (got, want)]
            print(f"FAILED {name}: {[[tokens[i] for i in x] if isinstance(x, list) else x for x in show]}")
            failed += 1
    print(f"{len(names)} pre-tokenizers, {failed} failed")
    return failed != 0 or not names


if __name__ == "__main__":
    sys.exit(main())
