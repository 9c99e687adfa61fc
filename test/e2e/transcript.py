#!/usr/bin/env python3
"""Makes the chat that README.md shows, from a real run: hearth on a pseudo-terminal, its screen read through an emulated one.

    HEARTH_BIN=build/hearth test/e2e/transcript.py [--write | --model DIR]

--write puts it into README.md; otherwise it is printed. --model records another chat, with that model; README.md has one by hand."""
import os
import re
import shutil
import sys
import tempfile

import driver

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
BLOCK = re.compile(r"(made by `test/e2e/transcript\.py`\):\n\n```\n)(.*?)(\n```\n)", re.S)
QUESTIONS = ("How do I ask about a PDF?", "/bye")
OF_A_MODEL = ("What is the capital of France?", "Explain in one sentence what a mutex is.", "/stats", "/bye")
ROWS, COLS = 60, 100


def record(args=("--temp", "0"), questions=QUESTIONS):
    home = tempfile.mkdtemp(prefix="hearth-test-")
    env = {"HOME": home, "PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8"}
    t = driver.Terminal([driver.BIN, *args], env, ROWS, COLS)
    try:
        at = t.prompt()
        for q in questions:
            t.send(q + "\r")
            at = len(t.out) if q == "/bye" else t.prompt(t.until(re.escape(q).encode() + rb"[^\n]*\n", at))
        t.wait()
    finally:
        t.close()
        shutil.rmtree(home, ignore_errors=True)
    lines = t.screen(ROWS, COLS)
    while lines and not lines[-1]:
        lines.pop()
    return f"$ hearth {' '.join(args)}\n" + "\n".join(lines)


def shown():
    """Returns the one in README.md."""
    with open(README, encoding="utf-8") as f:
        return BLOCK.search(f.read())[2]


if __name__ == "__main__":
    text = record(("--temp", "0", "-m", sys.argv[2]), OF_A_MODEL) if sys.argv[1:2] == ["--model"] else record()
    if sys.argv[1:] == ["--write"]:
        with open(README, encoding="utf-8") as f:
            readme = f.read()
        with open(README, "w", encoding="utf-8") as f:
            f.write(BLOCK.sub(lambda m: m[1] + text + m[3], readme))
    else:
        print(text)
