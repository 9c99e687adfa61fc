"""The part of a list of cases that a run of the suite takes: which one follows from the commit, so that each commit is tested with another
part, and two runs of one commit with the same. HEARTH_TEST_PART=TEXT chooses another part, HEARTH_TEST_PART=all the whole list.

part.py choose N CASE... prints N of the cases. part.py N NAME COMMAND... runs the command at every N-th commit, and is skipped at the others: of long tests each commit takes a share,
and N commits in a row take all."""
import hashlib
import os
import subprocess
import sys


def key():
    given = os.environ.get("HEARTH_TEST_PART")
    if given:
        return given
    here = os.path.dirname(os.path.abspath(__file__))
    p = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return p.stdout.strip()[:12] or "no commit"  # in an unpacked archive


def choose(cases, n, quiet=False):
    """n of the cases, in their order."""
    by = key()
    if by == "all" or n >= len(cases):
        return list(cases)
    chosen = sorted(cases, key=lambda c: hashlib.sha256(f"{by} {c}".encode()).digest())[:n]
    quiet or print(f"part {by}: {' '.join(map(str, chosen))}", flush=True)
    return [c for c in cases if c in chosen]


def is_in_turn(n, name):
    """Whether the test of that name is among those of this commit."""
    by = key()
    if by == "all" or n == 1:
        return True
    p = subprocess.run(["git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-list", "--count", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    turn = p.stdout.strip()
    if not turn.isdigit() or os.environ.get("HEARTH_TEST_PART"):
        turn = int(hashlib.sha256(by.encode()).hexdigest(), 16)
    return (int(turn) + int(hashlib.sha256(name.encode()).hexdigest(), 16)) % n == 0


if __name__ == "__main__":
    if sys.argv[1] == "choose":
        print(" ".join(choose(sys.argv[3:], int(sys.argv[2]), quiet=True)))
        sys.exit(0)
    every, test = int(sys.argv[1]), sys.argv[2]
    if not is_in_turn(every, test):
        print(f"SKIPPED: one of {every} commits runs this long test; HEARTH_TEST_PART=all runs it")
        sys.exit(77)
    os.execv(sys.argv[3], sys.argv[3:])
