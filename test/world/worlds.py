#!/usr/bin/env python3
"""Runs simulated worlds and shrinks what fails to a short script.

    worlds.py WORLD MODELS [--seeds A-B] [--model NAME] [--gpus LIST] [--actions N] [--minutes M] [-j N] [--found] [--whole] [--replay FILE]

--minutes runs new seeds, from the clock, on -j processes. A failure is printed with a script of as few actions as show it,
and with the command that replays that. Exits 1 on any."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PART = 20  # seeds of one process
# At this level emulated devices have the CPU's bits, whatever reads a prompt (as alone_level() in alone.c).
LEVEL = "avx2" if re.search(r"\bavx2\b", open("/proc/cpuinfo", encoding="utf-8").read()) else "scalar"
DEVICES = ["emu:1", "emu:2", "emu:1,mem=1600K", "emu:2,fail=die:3000@1", "emu:1,fail=copy:700", "emu:2,fail=launch:2000", "emu:1,fail=alloc:90", "emu:1,fail=die:500"]
p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("world")
p.add_argument("models")
p.add_argument("--seeds")
p.add_argument("--model", action="append")
p.add_argument("--gpus", action="append", default=[], help="also with these devices; --minutes: with all of a list")
p.add_argument("--actions", type=int, default=400)
p.add_argument("--minutes", type=float)
p.add_argument("-j", type=int, default=1)
p.add_argument("--whole", action="store_true", help="do not shrink")
p.add_argument("--found", action="store_true", help="run the scripts of found/, too")
p.add_argument("--replay", metavar="FILE")
a = p.parse_args()
models = a.model or ["rows", "states"]  # "experts" are for devices
scratch = tempfile.mkdtemp(prefix="hearth-world-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
lock = threading.Lock()
counts, failures = {}, []


def call(model, where, *arguments):
    command = [a.world, os.path.join(a.models, model), os.path.join(scratch, where), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace").stdout


def devices(gpus):
    return ["--gpus", f"{gpus},cpu={LEVEL}"] if gpus else []


def failure(text):
    """Returns what the first FAIL line says, without numbers: shrinking must not slip to another defect."""
    found = re.search(r"^FAIL seed \d+, action \d+: (.*)$", text, re.M)
    return found and re.sub(r"\d+", "N", found.group(1))[:60]


def shrink(model, gpus, seed, where):
    """Removes actions as long as the same failure remains. Returns the script."""
    lines = call(model, where, "--print", *devices(gpus), "--seeds", str(seed), "--actions", str(a.actions)).splitlines()
    head, actions = lines[0], lines[1:]
    path = os.path.join(scratch, where + ".script")

    def fails(some):
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join([head, *some]) + "\n")
        return call(model, where, "--script", path)

    first = fails(actions)
    want = failure(first)
    if not want:
        return None
    last = int(re.search(r"action (\d+)", first).group(1))
    cut = [x for x in actions if int(x.split()[0]) <= last]
    actions = cut if failure(fails(cut)) == want else actions
    size, until = len(actions) // 2, time.monotonic() + 120
    while size and time.monotonic() < until:
        at = 0
        while at < len(actions):
            less = actions[:at] + actions[at + size:]
            if failure(fails(less)) == want:
                actions = less
            else:
                at += size
        size = size // 2 if size > 1 else 0
    fails(actions)
    return path


def take(model, gpus, text, where, script=None):
    """Adds up the counts of one process and reports its failures."""
    with lock:
        for number, name in re.findall(r"(\d+) ([a-z ]+?)(?:,|$)", text.splitlines()[-1] if text.strip() else ""):
            counts[name] = counts.get(name, 0) + int(number)
    if "events" not in text:
        failures.append(text)
        print(text)
    for line in re.findall(r"^FAIL .*$", text, re.M):
        seed = re.search(r"seed (\d+)", line).group(1)
        shrunk = None if script or a.whole or len(failures) > 2 else shrink(model, gpus, seed, where)
        with lock:
            failures.append(line)
            print(f"model {model} {gpus or script or ''}: {line}", flush=True)
            if shrunk:
                kept = os.path.join(tempfile.gettempdir(), f"world-{model}-{seed}.script")
                shutil.copy(shrunk, kept)
                print(f"shrunk to {kept}:\n{open(kept, encoding='utf-8').read()}", flush=True)
                print(f"    {sys.argv[0]} {a.world} {a.models} --model {model} --replay {kept}", flush=True)
            elif not script:
                print(f"    {sys.argv[0]} {a.world} {a.models} --model {model} {f'--gpus {gpus} ' if gpus else ''}--seeds {seed} --actions {a.actions}", flush=True)


def run(model, gpus, first, last, where):
    take(model, gpus, call(model, where, *devices(gpus), "--seeds", f"{first}-{last}", "--actions", str(a.actions)), where)


def new_seeds(worker, begin, until):
    at = begin + worker * PART
    while time.monotonic() < until and len(failures) < 3:
        for model in models:
            run(model, "", at, at + PART - 1, f"w{worker}")
        gpus = DEVICES[at // PART % len(DEVICES)]
        run("experts", gpus, at, at + PART // 10 - 1, f"w{worker}")
        at += a.j * PART


def main():
    begin = time.monotonic()
    if a.replay:
        print(call(models[0], "replay", "--script", os.path.abspath(a.replay), "--trace"))
        return
    if a.minutes:
        seed = int(time.time()) * 1000
        workers = [threading.Thread(target=new_seeds, args=(i, seed, begin + a.minutes * 60)) for i in range(a.j)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    if a.seeds:
        first, _, last = a.seeds.partition("-")
        for model in models:
            for gpus in a.gpus or [""]:
                run(model, gpus, int(first), int(last or first), "w")
    if a.found:
        for name in sorted(os.listdir(os.path.join(HERE, "found"))):
            path = os.path.join(HERE, "found", name)
            model = re.search(r"^# model (\w+)", open(path, encoding="utf-8").read(), re.M).group(1)
            take(model, "", call(model, "w", "--script", path), "w", path)
    traces = [re.findall(r"^trace .*$", call(models[0], "w", "--seeds", "3", "--actions", "100", "--trace"), re.M) for _ in range(2)]
    if traces[0] != traces[1] or (not traces[0] and not failures):
        failures.append(f"the same seed gives two worlds: {traces}")
        print(failures[-1])
    seconds = time.monotonic() - begin
    print(", ".join(f"{n} {name}" for name, n in counts.items()), f"in {seconds:.1f} s: {counts.get('events', 0) / seconds * 60:,.0f} events a minute")


try:
    main()
finally:
    shutil.rmtree(scratch, ignore_errors=True)
sys.exit(bool(failures))
