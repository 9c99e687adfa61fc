#!/usr/bin/env python3
"""Random schedules over the built-in model and two tiny ones (latent and grouped keys), on the CPU and on devices that fail, and over every other tiny
model in random modes (schedules.c). test_schedules.py SCHEDULES [SHARE]    SHARE: fraction of the requests, to save time; each mode then runs with one of
the two kinds of attention and no others, and with AVX2, which takes half of the scalar level's time"""
import os
import random
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "golden"))
import models  # noqa: E402
import tiny  # noqa: E402

program, share = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1
LEVEL = "scalar" if share == 1 else "avx2"
ONE, TWO = f"gpus=emu:1,cpu={LEVEL}", f"gpus=emu:2,cpu={LEVEL}"
FAULTS = (ONE + ",fail=copy:700", TWO + ",fail=launch:3000@1", ONE + ",fail=die:5000", TWO + ",fail=die:2500@1")
# gpus, prefill, decode
N_MODES = (
    (ONE, "cpu", "hybrid"), (ONE, "blend", "dual"), (TWO, "slp", "dual"), (ONE + ",mem=1600K", "cpu", "dual"),
    (ONE + ",fail=copy:20000", "cpu", "dual"), (ONE + ",fail=launch:20000", "blend", "hybrid"), (ONE + ",fail=copy:20000", "slp", "dual"),
    (TWO + ",h2d=1,fail=die:20000@1", "blend", "dual"), (TWO + ",fail=die:30000@1", "dslp", "dual"), (ONE + ",fail=alloc:900", "blend", "dual"))
SPLITS = ("hybrimoe", "trimoe", "cut", "auto")
LAG = {"HEARTH_LIMITS": "spin=100,lag=100"}
# whole models, for pages, shards and drafts; also on devices with one delayed stream
BOTH = (
    (["draft=3"], {}), ([ONE, "prefill=cpu", "decode=hybrid", "draft=3"], {}), ([ONE, "prefill=blend", "decode=dual", "draft=2"], LAG),
    ([TWO + ",fail=die:9000@1", "prefill=slp", "decode=dual", "draft=4"], {}),
    ([TWO + ",parallel=tensor", "prefill=slp", "decode=dual"], {}), ([TWO + ",parallel=tensor,fail=launch:9000@1", "prefill=cpu", "decode=hybrid", "draft=2"], LAG),
    ([TWO, "prefill=dslp", "decode=dual"], LAG), ([ONE + ",fail=die:9000", "prefill=blend", "decode=hybrid"], LAG))
PAGED = (([ONE, "decode=paged"], {}), ([ONE, "decode=paged"], LAG), ([ONE + ",fail=copy:4000", "decode=paged"], {}))
failed = []
with tempfile.TemporaryDirectory() as tmp:
    mla, gqa = os.path.join(tmp, "mla"), os.path.join(tmp, "gqa")
    tiny.make(mla)
    models.make(gqa, "gqa_shared")
    runs = [("ember:", 40, [], {}), (mla, 200, [], {}), (gqa, 200, [], {})]
    runs += [((mla, gqa)[i % 2], 200, [gpus], {}) for i, gpus in enumerate(FAULTS)]
    runs += [(model, 200, [gpus, f"prefill={prefill}", f"decode={decode}"], {})
             for k, model in enumerate((mla, gqa)) for i, (gpus, prefill, decode) in enumerate(N_MODES) if share == 1 or i % 2 == k]
    runs += [((mla, gqa)[i % 2], 200, [f"gpus=emu:{1 + i % 3 % 2},cpu={LEVEL},h2d=1", "prefill=blend", f"decode={('dual', 'hybrid')[i // 2 % 2]}", f"split={split}"], {})
             for i, split in enumerate(SPLITS)]
    runs += [(model, 200, args, env) for k, model in enumerate((mla, gqa)) for i, (args, env) in enumerate(BOTH) if share == 1 or i % 2 == k]
    runs += [(gqa, 200, args, env) for args, env in PAGED]
    ngrams = os.path.join(tmp, "ngrams")  # embeddings depend on earlier tokens, also on those in the cache
    models.make(ngrams, "ngram_mean")
    runs += [(ngrams, 100, args, {}) for args in (["draft=3"], [ONE, "prefill=blend", "decode=dual", "draft=2"], [TWO, "prefill=slp", "decode=hybrid"])]
    if share == 1:
        modes = [args for _, _, args, _ in runs]
        for k, name in enumerate(sorted(models.MODELS) * 4):
            other = os.path.join(tmp, name)
            if k < len(models.MODELS):
                models.make(other, name)
            runs.append((other, 80, random.Random(k).choice(modes), LAG if k % 3 == 2 else {}))
    for seed, (model, n, args, env) in enumerate(runs, int(os.environ.get("SEED", "1"))):
        p = subprocess.run([program, model, str(int(n * share)), str(seed), "cpu=" + LEVEL, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                           timeout=900, env={**os.environ, **env})
        line = f"seed {seed}, {os.path.basename(model)} {' '.join(args[1:])}{' late' if env else ''}: {p.stdout.strip()}"
        print(line, flush=True)
        if p.returncode and not (model not in (mla, gqa) and "decoding in mode paged: " in p.stdout):  # not every model decodes that way
            failed.append(f"exit status {p.returncode}, {line}")
if failed:
    sys.exit("\n".join(failed))
