"""Helpers for tests that are one script: checks are counted, and one failure does not hide the next. The binary is the
script's first argument."""
import os
import subprocess
import sys

HEARTH = os.path.abspath(sys.argv[1])
passed = failed = 0


def check(ok, what, detail=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAILED {what}: {detail}")


def run(*args):
    """Returns exit code (negative for a signal), stdout, stderr as text."""
    p = subprocess.run([HEARTH, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    return p.returncode, p.stdout, p.stderr.decode("utf-8", "replace")


def end():
    """Returns the script's exit code; no checks at all is a failure."""
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0
