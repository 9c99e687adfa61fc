#!/usr/bin/env python3
"""A checkpoint of twice the memory limit still answers, with the same text. test_memory.py HEARTH
Skipped, with the reason, where memory cannot be limited."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import limit
from checks import HEARTH, check, end

MKMODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "mkmodel.py")
PROMPTS = {"decode": ("17,901,44,3001,7", "24"), "prefill": (",".join(str(i * 37 % 4000 + 5) for i in range(150)), "4")}
ASKED = "reading experts from disk on demand"


def foretold(d, size):
    """Drafted tokens announce the experts that the verifying batch will need, which are read from disk during drafting. INT4 experts take half of the memory.
    One thread: while answers use all CPUs, checking the draft's file gets a 200th of the time. Of experts that were not predicted a quarter would be chosen."""
    args = [HEARTH, "-m", d, "--tokens", PROMPTS["decode"][0], "--temp", "0", "--ids", "-c", "2048", "-v", "-t", "1"]
    draft = ["--draft", "int4", "--draft-len", "3"]
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "XDG_CACHE_HOME": cache}
        with subprocess.Popen(args + draft + ["-n", "1900"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env) as maker:
            while maker.poll() is None and not any(name.endswith(".int4") for _, _, names in os.walk(cache) for name in names):
                time.sleep(0.1)
            maker.terminate()  # the draft file is made and kept
        for n in ("400", "1900"):  # on a busy machine a short answer may end before the file is checked
            want = subprocess.run(args + ["-n", n], capture_output=True, timeout=500).stdout
            limit.forget(d)
            group = limit.Group(size * 85 // 100)
            try:
                got = group.run(args + draft + ["-n", n], capture_output=True, timeout=500, env=env)
            finally:
                group.close()
            err = got.stderr.decode()
            check(got.returncode == 0 and got.stdout == want and ASKED in err, "a draft in 0.85 of it: the same answer", (got.stdout, want, err[-600:]))
            told = re.search(r"the draft predicted (\d+) experts that were not in memory, (\d+) of them were chosen", err)
            if told:
                break
        check(told and int(told[1]) and int(told[2]) * 3 > int(told[1]), "a draft in 0.85 of it: experts are announced", err[-600:])
        print(f"drafted: {got.seconds:.1f} s; {err.splitlines()[-2:]}")


def main():
    # Not in /tmp where that is a tmpfs: nothing could be dropped there.
    disk = os.environ.get("HEARTH_TEST_DISK", "/var/tmp")
    if shutil.disk_usage(disk).free < 2 << 30:
        print(f"SKIPPED: {disk} has no room for a checkpoint of 700 MB; set HEARTH_TEST_DISK to another directory")
        return 77
    with tempfile.TemporaryDirectory(dir=disk) as tmp:
        d = os.path.join(tmp, "m")
        subprocess.run([sys.executable, MKMODEL, "--shape", "qwen3-30b-a3b", "--layers", "4", "--experts", "32", "--vocab", "4096", "--out", d],
                       check=True, stdout=subprocess.DEVNULL)
        size = sum(os.path.getsize(os.path.join(d, f)) for f in os.listdir(d))
        try:
            group = limit.Group(size // 2)
        except limit.Unlimited as e:
            print(f"SKIPPED: memory cannot be limited on this system: {e}")
            return 77
        try:
            for name, (prompt, n) in PROMPTS.items():
                args = [HEARTH, "-m", d, "--tokens", prompt, "-n", n, "--temp", "0", "--ids", "-c", "256", "-v"]
                free = subprocess.run(args, capture_output=True, timeout=300)
                check(free.returncode == 0 and ASKED not in free.stderr.decode(), f"{name}: with all memory", free.stderr[-300:])
                for threads in ("1", "3"):
                    limit.forget(d)
                    tight = group.run(args + ["-t", threads], capture_output=True, timeout=500)
                    err = tight.stderr.decode()
                    check(tight.returncode == 0, f"{name} in half of it: exit", f"{tight.returncode} {err[-300:]}")
                    check(tight.stdout == free.stdout and len(free.stdout) > 10, f"{name} in half of it: the same answer", (tight.stdout, free.stdout))
                    check(ASKED in err, f"{name} in half of it: knows that it does not fit", err)
                    counts = re.search(r"of (\d+) chosen experts (\d+) were not in memory", err)
                    check(counts and 0 < int(counts[2]) <= int(counts[1]), f"{name} in half of it: experts had to be read", err)
                    slots = re.search(r"memory has (\d+) slots per layer, (\d+) experts were evicted", err)
                    check(slots and 8 <= int(slots[1]) < 32 and (int(slots[2]) > 0 or name == "decode"), f"{name} in half of it: slots by score", err)
                    check(tight.read > size // 4, f"{name} in half of it: came from the disk", tight.read)
                    print(f"{name}, {threads} threads: {tight.seconds:.1f} s, {tight.faults} faults, {tight.read >> 20} MB read of {size >> 20} MB; {err.splitlines()[-1]}")
            # A device has some experts: the host does not need to read those.
            limit.forget(d)
            prompt, n = PROMPTS["decode"]
            kept = group.run([HEARTH, "-m", d, "--tokens", prompt, "-n", n, "--temp", "0", "--ids", "-c", "256", "-v", "--gpus", "emu:1", "--prefill", "cpu", "--decode", "hybrid", "--expert-cache", "4", "--stats"],
                             capture_output=True, timeout=500)
            err = kept.stderr.decode()
            check(kept.returncode == 0 and len(json.loads(kept.stdout)) == int(n) and ASKED in err and "of its experts on a device" in err, "with experts on a device, in half of it", err[-600:])
        finally:
            group.close()
        foretold(d, size)
    return end()


sys.exit(main())
