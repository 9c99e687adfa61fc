#!/usr/bin/env python3
"""Comments of the program name only what exists: a function written with (), and a name of several words, occurs in code, in
a string or in a document.

usage: test_comments.py ROOT"""
import os, re, sys

ROOT = sys.argv[1]
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
FOREIGN = re.compile(r"(modeling|encoding|curl)_")  # of reference implementations and libraries
PROGRAM = ("base", "engine", "cli", "cpu", "gpu", "tokenizer")
names = [os.path.relpath(os.path.join(at, f), ROOT) for top in PROGRAM + ("test", "man") for at, _, files in os.walk(os.path.join(ROOT, top)) for f in files]
names += [f for f in os.listdir(ROOT) if os.path.isfile(os.path.join(ROOT, f))]
known, comments = set(re.split(r"[/.\n]", "\n".join(names))), []
for name in names:
    if not re.search(r"\.(c|h|cu|cuh|md|1|py|build)$", name) or "/corpus/" in name:
        continue
    with open(f"{ROOT}/{name}", encoding="utf-8") as f:
        text = f.read()
    if name.split("/")[0] in PROGRAM and re.search(r"\.(c|h|cu|cuh)$", name):
        comments += [(name, text.count("\n", 0, c.start()) + 1, c.group()) for c in COMMENT.finditer(text)]
        text = COMMENT.sub(" ", text)
    known |= set(re.findall(r"\w+", text))
assert len(comments) > 5000, len(comments)
failed = 0
for name, line, comment in comments:
    for word in re.findall(r"\b[a-z]\w*\(\)|\b[a-z]{2,}_[a-z]\w*[a-z0-9]\b", comment):
        if word.strip("()") not in known and not FOREIGN.match(word):
            print(f"FAIL {name}:{line}: {word} does not exist")
            failed += 1
print(f"{len(comments) - failed} passed, {failed} failed")
sys.exit(failed > 0)
