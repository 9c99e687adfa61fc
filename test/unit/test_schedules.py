#!/usr/bin/env python3
"""Random schedules over the built-in model and a tiny one, on the processor and on devices that fail (schedules.c).
test_schedules.py SCHEDULES [SHARE]    SHARE: of the requests, for builds that are slow"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import tiny  # noqa: E402

program, share = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1
failed = 0
with tempfile.TemporaryDirectory() as tmp:
    tiny.make(tmp)
    runs = [("ember:", 40, [])] + [(tmp, 200, [])] * 2
    runs += [(tmp, 200, [g]) for g in ("emu:1,cpu=scalar,fail=copy:700", "emu:2,cpu=scalar,fail=launch:3000@1", "emu:1,cpu=scalar,fail=die:5000", "emu:2,cpu=scalar,fail=die:2500@1")]
    runs += [(tmp, 200, [gpus, prefill, decode]) for gpus, prefill, decode in (
        ("emu:1,cpu=scalar", "cpu", "hybrid"), ("emu:1,cpu=scalar", "blend", "dual"), ("emu:2,cpu=scalar", "slp", "dual"), ("emu:1,cpu=scalar,mem=1600K", "cpu", "dual"),
        ("emu:1,cpu=scalar,fail=copy:20000", "cpu", "dual"), ("emu:1,cpu=scalar,fail=launch:20000", "blend", "hybrid"), ("emu:1,cpu=scalar,fail=copy:20000", "slp", "dual"),
        ("emu:2,cpu=scalar,fail=die:60000", "blend", "dual"), ("emu:2,cpu=scalar,fail=die:30000@1", "dslp", "dual"), ("emu:1,cpu=scalar,fail=alloc:900", "blend", "dual"))]
    for seed, (model, n, gpus) in enumerate(runs, int(os.environ.get("SEED", "1"))):
        p = subprocess.run([program, model, str(int(n * share)), str(seed), *gpus], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=900)
        print(f"seed {seed}:", p.stdout.strip(), flush=True)
        failed += p.returncode != 0
sys.exit(1 if failed else 0)
