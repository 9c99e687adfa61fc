#!/usr/bin/env python3
"""Times ik_llama.cpp (PyPI: ik-llama-cpp-python) on a GGUF file; run by peers.py in its venv, with IK_LLAMA_CPP_LIB_PATH set to the library built for
this CPU. Its default parameters hold (flash attention, fused experts, batches of 512). Prints a JSON object a test, as soon as it is measured.

    peers_ik.py MODEL THREADS NAME:BEFORE:PROMPT:TOKENS...     TOKENS 0: prefill of PROMPT, else decode behind BEFORE positions
"""
import json
import statistics
import sys
import time

from ik_llama_cpp import _ctypes_api as api

ROUNDS, BATCH = 2, 512


class Context:
    def __init__(self, path, threads, positions):
        model = api.llama_model_default_params()
        self.model = api.llama_model_load_from_file(path.encode(), model)
        p = api.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = positions, 2048, BATCH, threads, threads
        self.ctx = api.llama_init_from_model(self.model, p)
        self.batch = api.llama_batch_init(BATCH, 0, 1)
        self.pos = 0

    def clear(self):
        api.llama_kv_cache_clear(self.ctx)
        self.pos = 0

    def decode(self, n, seed):
        """n new tokens in one call, with the logits of the last one."""
        b = self.batch
        b.n_tokens = n
        for i in range(n):
            b.token[i] = ((self.pos + i) * 2654435761 + seed * 69069) % 31000
            b.pos[i], b.n_seq_id[i], b.logits[i] = self.pos + i, 1, i == n - 1
            b.seq_id[i][0] = 0
        if api.llama_decode(self.ctx, b):
            sys.exit("llama_decode failed")
        api.llama_get_logits_ith(self.ctx, n - 1)[0]
        self.pos += n

    def read(self, n, seed):
        for at in range(0, n, BATCH):
            self.decode(min(BATCH, n - at), seed)


def main():
    tests = [(name, int(before), int(prompt), int(tokens)) for name, before, prompt, tokens in (t.split(":") for t in sys.argv[3:])]
    api.llama_backend_init()
    c = Context(sys.argv[1], int(sys.argv[2]), max(BATCH, *(b + p + t for _, b, p, t in tests)) + 64)
    c.read(BATCH, 1)  # touches every expert
    for name, before, prompt, tokens in tests:
        speeds = []
        for seed in range(ROUNDS):
            c.clear()
            c.read(before, seed)
            if tokens:
                c.decode(1, seed)
            begin = time.perf_counter()
            if tokens:
                for _ in range(tokens):
                    c.decode(1, seed)
            else:
                c.read(prompt, seed)
            speeds.append((tokens or prompt) / (time.perf_counter() - begin))
        print("\n" + json.dumps({name: statistics.mean(speeds)}), flush=True)


main()
