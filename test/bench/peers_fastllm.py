#!/usr/bin/env python3
"""Times fastllm (PyPI: ftllm) on an FP8 checkpoint; run by peers.py in fastllm's venv. Prints a JSON object a test, as soon as it is measured.

    peers_fastllm.py MODEL THREADS NAME:PROMPT:TOKENS...     TOKENS 1: prefill, else decode
"""
import ctypes
import json
import sys
import time

from ftllm import llm


def respond(model, prompt, tokens, seed):
    """Start time and the time of each token."""
    lib = llm.fastllm_lib
    ids = [(i * 2654435761 + seed * 69069) % 31000 for i in range(prompt)]
    n_stop, stop = model.stop_token_ctypes(None)
    real, whole, yes = ctypes.c_float, ctypes.c_int, ctypes.c_bool
    times, begin = [], time.perf_counter()
    handle = lib.launch_response_llm_model(model.model, prompt, (whole * prompt)(*ids), whole(tokens), whole(tokens), yes(False), real(1), whole(1), real(1),
                                           real(1), yes(False), n_stop, stop)
    while lib.fetch_response_llm_model(model.model, handle) > -1:
        times.append(time.perf_counter())
    return begin, times


def main():
    llm.set_cpu_threads(int(sys.argv[2]))
    llm.set_device_map("cpu")
    llm.set_device_map("cpu", True)
    model = llm.model(sys.argv[1], dtype="auto")
    respond(model, 32, 2, 1)
    for seed, test in enumerate(sys.argv[3:]):
        name, prompt, tokens = test.split(":")
        begin, times = respond(model, int(prompt), int(tokens), seed + 2)
        speed = int(prompt) / (times[0] - begin) if int(tokens) == 1 else (len(times) - 1) / (times[-1] - times[0])
        print("\n" + json.dumps({name: speed}), flush=True)


main()
