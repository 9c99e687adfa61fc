#!/usr/bin/env python3
"""Subjects of commits since 0.2.0: 'area: Do one thing', at most 72 characters, an empty line before the body (CONTRIBUTING.md).
Areas since AREAS_FROM are parts of paths in that commit or its parent, or one of OTHER_AREAS.

usage: test_commits.py ROOT    skipped outside a git checkout, and where history ends before 0.2.0"""
import re, subprocess, sys

FIRST = "95ed4f0"  # the last commit before the rule
AREAS_FROM = "cf1b738"  # the last commit before the rule of areas
SUBJECT = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*: [A-Z]")
OTHER_AREAS = {"docs", "build", "ci", "tree", "release"}


def git(*args):
    return subprocess.run(["git", "-C", sys.argv[1], *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def areas(commit):
    """Returns the names of folders and files, without endings, before and after a commit."""
    paths = "\n".join(git("ls-tree", "-r", "--name-only", c).stdout for c in (commit, commit + "~"))
    return {part.split(".")[0] for path in paths.split("\n") for part in path.split("/")} | OTHER_AREAS


bounded = set(git("rev-list", AREAS_FROM + "..HEAD").stdout.split())
log = git("log", "--no-merges", "--format=%H%x00%B%x01", FIRST + "..HEAD")
if log.returncode:
    print("SKIPPED: no git history since 0.2.0")
    sys.exit(77)
wrong = n = 0
for entry in filter(str.strip, log.stdout.split("\x01")):
    commit, _, text = entry.strip().partition("\x00")
    lines = text.rstrip().split("\n")
    n += 1
    unknown = set(lines[0].split(":")[0].split("/")) - areas(commit) if commit in bounded else ()
    why = [', '.join(sorted(unknown)) + ": no area (CONTRIBUTING.md, Commits)" if unknown else "",
           f"{len(lines[0])} characters" if len(lines[0]) > 72 else "", "" if SUBJECT.match(lines[0]) else "not 'area: Do one thing'",
           "ends with a period" if lines[0].endswith(".") else "", "no empty line before the body" if len(lines) > 1 and lines[1] else ""]
    if any(why):
        wrong += 1
        print(f"FAIL {commit[:9]} {lines[0]}: {', '.join(filter(None, why))}")
print(f"{n} commits, {wrong} wrong")
sys.exit(wrong > 0)
