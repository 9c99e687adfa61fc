#!/usr/bin/env python3
"""Random schedules over the built-in model and two tiny ones (latent and grouped keys), on the processor and on devices that fail
(schedules.c). test_schedules.py SCHEDULES [SHARE]    SHARE: of the requests, where time is short; each mode is then tried with one of the two kinds of attention"""
import os
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "golden"))
import models  # noqa: E402
import tiny  # noqa: E402

program, share = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1
FAULTS = ("emu:1,cpu=scalar,fail=copy:700", "emu:2,cpu=scalar,fail=launch:3000@1", "emu:1,cpu=scalar,fail=die:5000", "emu:2,cpu=scalar,fail=die:2500@1")
MODES = (
    ("emu:1,cpu=scalar", "cpu", "hybrid"), ("emu:1,cpu=scalar", "blend", "dual"), ("emu:2,cpu=scalar", "slp", "dual"), ("emu:1,cpu=scalar,mem=1600K", "cpu", "dual"),
    ("emu:1,cpu=scalar,fail=copy:20000", "cpu", "dual"), ("emu:1,cpu=scalar,fail=launch:20000", "blend", "hybrid"), ("emu:1,cpu=scalar,fail=copy:20000", "slp", "dual"),
    ("emu:2,cpu=scalar,h2d=1,fail=die:20000@1", "blend", "dual"), ("emu:2,cpu=scalar,fail=die:30000@1", "dslp", "dual"), ("emu:1,cpu=scalar,fail=alloc:900", "blend", "dual"))
SPLITS = ("host", "stream", "hybrimoe", "trimoe", "cut", "exact", "auto")
failed = 0
with tempfile.TemporaryDirectory() as tmp:
    mla, gqa = os.path.join(tmp, "mla"), os.path.join(tmp, "gqa")
    tiny.make(mla)
    models.make(gqa, "gqa_shared")
    runs = [("ember:", 40, []), (mla, 200, []), (gqa, 200, [])]
    runs += [((mla, gqa)[i % 2], 200, [gpus]) for i, gpus in enumerate(FAULTS)]
    runs += [(model, 200, list(mode)) for k, model in enumerate((mla, gqa)) for i, mode in enumerate(MODES) if share == 1 or i % 2 == k]
    runs += [((mla, gqa)[i % 2], 200, [f"emu:{1 + i % 3 % 2},cpu=scalar,h2d=1", "blend", ("dual", "hybrid")[i // 2 % 2], split]) for i, split in enumerate(SPLITS)]
    for seed, (model, n, gpus) in enumerate(runs, int(os.environ.get("SEED", "1"))):
        p = subprocess.run([program, model, str(int(n * share)), str(seed), *gpus], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=900)
        print(f"seed {seed}, {os.path.basename(model)} {' '.join(gpus[1:])}:", p.stdout.strip(), flush=True)
        failed += p.returncode != 0
sys.exit(1 if failed else 0)
