#!/usr/bin/env python3
"""The gain or loss of a draft in real time: pairs of runs without and with it, in alternating order; the ratio of tokens/s,
median, quartiles, and the sums of all; the acceptance, and in how many texts both agree (all of them).

usage: drafts.py HEARTH MODEL DRAFT TEMPERATURE [PAIRS] [TOKENS] [HEARTH'S OWN OPTIONS ...]      MODEL: a directory, or - for the built-in model

On a shared machine run it at low priority, and with few pairs at a time: it continues where FILE, named by DRAFTS_LOG, ended."""
import json
import os
import re
import statistics
import subprocess
import sys

hearth, model, draft, temperature = sys.argv[1:5]
pairs, tokens = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((5, 10), (6, 1000)))
log = os.environ.get("DRAFTS_LOG")


def run(how, seed):
    p = subprocess.run([hearth, *([] if model == "-" else ["-m", model]), "--no-attach", "--tokens", "17,90,44,301,7,12", "-n", str(tokens), "--temp", temperature,
                        "--seed", str(seed), "--ids", "--stats", "--draft", how, "-c", str(tokens + 64), *sys.argv[7:]], capture_output=True, text=True)
    speed = re.search(r"\(([\d.]+) tokens/s\); [^;]* of weights read", p.stderr)
    if not speed:
        sys.exit(f"no answer: {p.stderr[-400:]}")
    right = re.search(r"(\d+) of (\d+) drafted", p.stderr)
    return float(speed[1]), [int(x) for x in right.groups()] if right else [0, 0], p.stdout


done = [json.loads(line) for line in open(log)] if log and os.path.exists(log) else []
for _ in range(pairs):
    seed = len(done) + 1
    ran = {i: run(draft if i else "none", seed) for i in ((0, 1) if seed % 2 else (1, 0))}
    done.append({"none": ran[0][0], "draft": ran[1][0], "right": ran[1][1], "same": ran[0][2] == ran[1][2]})
    if log:
        with open(log, "a") as f:
            print(json.dumps(done[-1]), file=f)
ratio = sorted(d["draft"] / d["none"] for d in done)
quarter = statistics.quantiles(ratio, n=4) if len(ratio) > 1 else ratio * 3
print(f"{draft} at {temperature}: median {statistics.median(ratio):.3f} ({quarter[0]:.3f} to {quarter[2]:.3f}), sums "
      f"{sum(1 / d['none'] for d in done) / sum(1 / d['draft'] for d in done):.3f}, {len(done)} pairs of {tokens} tokens; none {statistics.median(d['none'] for d in done):.1f} a second; "
      f"right {sum(d['right'][0] for d in done)} of {sum(d['right'][1] for d in done)}; the same text in {sum(d['same'] for d in done)}")
