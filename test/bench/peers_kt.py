#!/usr/bin/env python3
"""Times kt-kernel's CPU experts (PyPI: kt-kernel) on random FP8 weights; run by peers.py in kt-kernel's venv. Prints a JSON object a test.

    peers_kt.py SHAPE.json THREADS NAME:TOKENS...

The package has no whole model for a CPU alone. The printed speed is that of a model whose routed experts take all of its time: an upper bound.
Layers take turns in two sets of weights, each larger than the caches.
"""
import json
import math
import statistics
import sys
import time

import kt_kernel
import torch

kt = kt_kernel.kt_kernel_ext
SETS, LEAST_RUNS, SECONDS = 2, 5, 2


def random_codes(shape):
    """One pool of codes repeated, so that making them takes seconds."""
    n = math.prod(shape)
    pool = (torch.randn(min(n, 16 << 20)) * 30).clamp(-440, 440).to(torch.float8_e4m3fn)
    return pool.repeat(-(-n // len(pool)))[:n].view(shape)


def open_experts(s, backend, most, keep):
    c = kt.moe.MOEConfig(s["experts"], s["topk"], s["hidden"], s["inter"], 0)
    c.max_len, c.pool = most, backend
    c.quant_config.bits, c.quant_config.group_size, c.quant_config.zero_point = 8, 128, False
    gate = (s["experts"], s["inter"], s["hidden"])
    for name, shape in (("gate", gate), ("up", gate), ("down", (s["experts"], s["hidden"], s["inter"]))):
        w = random_codes(shape)
        scale = torch.full((shape[0], shape[1] // 128, shape[2] // 128), 0.02 / 30, dtype=torch.float32)
        keep += [w, scale]
        setattr(c, name + "_proj", w.data_ptr())
        setattr(c, name + "_scale", scale.data_ptr())
    return kt.moe.AMXFP8_MOE(c)


def main():
    with open(sys.argv[1]) as f:
        s = json.load(f)
    tests = [(name, int(tokens)) for name, tokens in (t.split(":") for t in sys.argv[3:])]
    infer, keep = kt.CPUInfer(int(sys.argv[2])), []
    layers = [open_experts(s, infer.backend_, max(n for _, n in tests), keep) for _ in range(SETS)]
    order = torch.arange(s["experts"], dtype=torch.int64)
    for layer in layers:
        infer.submit(layer.load_weights_task(order.data_ptr()))
        infer.sync()
    for name, n in tests:
        ids = torch.rand(16, n, s["experts"]).argsort(dim=-1)[:, :, :s["topk"]].contiguous()
        weights = torch.rand(16, n, s["topk"]).softmax(-1).contiguous()
        x, y, count = torch.randn(n, s["hidden"]).bfloat16(), torch.empty(n, s["hidden"], dtype=torch.bfloat16), torch.tensor([n], dtype=torch.int32)
        times, start = [], time.perf_counter()
        while len(times) < LEAST_RUNS + 2 or time.perf_counter() - start < SECONDS:
            i = len(times)
            begin = time.perf_counter()
            infer.submit(layers[i % SETS].forward_task(count.data_ptr(), s["topk"], ids[i % 16].data_ptr(), weights[i % 16].data_ptr(), x.data_ptr(),
                                                      y.data_ptr(), False))
            infer.sync()
            times.append(time.perf_counter() - begin)
        print("\n" + json.dumps({name: n / s["layers"] / statistics.median(times[2:])}), flush=True)


main()
