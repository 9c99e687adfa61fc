#!/usr/bin/env python3
"""Answers with and without routed experts cached on a device, in real time on an emulated device of given speeds, alternately; medians of the ratios of
tokens/s.

usage: cached.py HEARTH MODEL [ROUNDS]     MODEL: mkmodel.py --shape experts --out MODEL (32 experts a layer, 4 chosen)

The CPU computes scalar with one thread, the device with AVX2 and one thread, so that an expert on the device is cheap, as on a card. At full speed
both would wait for the memory that they share."""
import re
import statistics
import subprocess
import sys

hearth, model = sys.argv[1:3]
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3


def run(cache, device, temperature, n):
    p = subprocess.run([hearth, "-m", model, "--tokens", "1,2,3,4,5", "-n", str(n), "--temp", str(temperature), "--seed", "3", "--ids", "--stats", "--threads", "1", "--cpu", "scalar",
                        "--gpus", f"emu:1,threads=1,cpu=avx2,{device}", "--prefill", "cpu", "--decode", "hybrid", "--draft", "none", "--expert-cache", str(cache)], capture_output=True, text=True)
    there = re.search(r"(\d+)% of its experts on a device", p.stderr)
    return float(re.search(r"\(([\d.]+) tokens/s\)[^(]*of weights read", p.stderr)[1]), int(there[1]) if there else 0, p.stdout


CASES = (("a quarter kept, the likeliest token", 8, "bw=10,h2d=3", 0, 40), ("a quarter kept, drawn at temperature 1", 8, "bw=10,h2d=3", 1, 40),
         ("one kept, hardly any is used again in time", 1, "bw=10,h2d=1", 1, 40), ("a quarter kept, a device so slow that it cannot pay", 8, "bw=0.1,h2d=3", 1, 24))
for what, cache, device, temperature, n in CASES:
    ratio, there = [], 0
    for _ in range(rounds):
        without, _, a = run("off", device, temperature, n)
        kept, there, b = run(cache, device, temperature, n)
        assert temperature or a == b, (a, b)
        ratio.append(kept / without)
    print(f"{what}: {statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f}), {there}% of the chosen on the device", flush=True)
