#!/usr/bin/env python3
"""How soon a chat shows its first prompt, and how soon a key shows on its screen: idle, during one long answer, during many short ones (each of which is saved twice).
For comparison, the times of `cat` on such a terminal: what the machine itself takes.

    test/bench/echo.py HEARTH [KEYS]          HEARTH may be hearth_fake, which answers at once"""
import os
import re
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
os.environ["HEARTH_BIN"] = os.path.abspath(sys.argv[1])
import driver  # noqa: E402

KEYS = int(sys.argv[2]) if len(sys.argv) > 2 else 300
PAUSE = 0.02  # between two keys
STARTS = 20


def seen(t, key, pattern):
    at = len(t.out)
    begin = time.monotonic()
    t.send(key)
    rx = re.compile(pattern)
    while not rx.search(t.out, at):
        if not t.read(5) or time.monotonic() - begin > 30:
            raise SystemExit(f"no {key!r} in {t.out[at:]!r}")
    return time.monotonic() - begin


def typed(t, prepare=lambda i: None, pattern=rb"%s\r(?:\x1b\[\d+C|\r\n)"):
    times = []
    for i in range(KEYS):
        prepare(i)
        key = "QXZJVW"[i % 6]
        times.append(seen(t, key, pattern % key.encode()) * 1e3)
        if i % 40 == 39:
            t.send("\x15")
        end = time.monotonic() + PAUSE
        while time.monotonic() < end:
            t.read(max(0, end - time.monotonic()))
    times.sort()
    return times


def report(name, times):
    print(f"{name:22} p50 {times[len(times) // 2]:6.2f} ms   p99 {times[int(len(times) * 0.99)]:6.2f}   most {times[-1]:6.2f}", flush=True)


def chat(env):
    t = driver.Terminal([driver.BIN, "-n", "2000"], env)
    t.prompt()
    return t


def started(command, env, pattern):
    """Returns the time from starting a program to its first output."""
    times = []
    for _ in range(STARTS):
        begin = time.monotonic()
        t = driver.Terminal(command, env)
        t.until(pattern)
        times.append((time.monotonic() - begin) * 1e3)
        t.close()
    return sorted(times)


def main():
    home = tempfile.mkdtemp(prefix="hearth-test-", dir=os.environ.get("ECHO_DIR"))
    env = {"HOME": home, "PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8"}
    try:
        report("a shell, started", started(["sh", "-c", "printf X; sleep 5"], env, b"X"))
        report("first prompt", started([driver.BIN], env, b"\x1b\\[1m> \x1b\\[0m\r"))
        t = driver.Terminal(["cat"], env)
        report("cat", typed(t, pattern=rb"%s"))
        t.close()
        t = chat(env)
        report("idle", typed(t))
        t.close()
        t = chat(env)
        # queued lines are sent one after the other; a few more whenever they run low
        t.send("long\r")
        report("many short answers", typed(t, lambda i: t.send("\x15hello\r" * 3) if i % 8 == 0 else None))
        saved = os.path.join(home, ".local/share/hearth/sessions")
        answers = sum(open(os.path.join(saved, n)).read().count('"assistant"') for n in os.listdir(saved) if n.endswith(".json"))
        print(f"{'':22} {answers} answers saved meanwhile")
        t.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
