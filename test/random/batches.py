#!/usr/bin/env python3
"""Random --batch files with good and bad lines, in random modes, whole and continued: batches.py BINARY [--seeds 1-5] [--models DIR...]
Each line of the output must be what the same line gives in a batch without others."""
import json
import os
import re

from common import EXACT, check, main, text

BAD = ["{", '{"prompt": 5}', '{"prompt": ""}', '{"messages": []}', '{"messages": [{"content": "x"}]}', '{"prompt": "x", "max_tokens": 0}', "7", '"x" "y"',
       '{"prompt": "x", "temperature": -1}', '{"prompt": "x", "seed": 1.5}', '{"prompt": "x", "system": []}', '{"id": "lost"}', '{"prompt": "x", "id": 1.5}']


def line(r, i):
    if r.random() < 0.15:
        return r.choice(BAD)
    if r.random() < 0.2:
        return json.dumps(text(r, 60), ensure_ascii=r.random() < 0.5)
    j = {"prompt": text(r, r.choice((3, 20, 80)))}
    if r.random() < 0.3:
        j = {"messages": [{"role": "user", "content": text(r)}]}
        if r.random() < 0.5:
            j["messages"] += [{"role": "assistant", "content": text(r, 5)}, {"role": "user", "content": text(r)}]
    elif r.random() < 0.3:
        j["system"] = text(r, 5)
    for name, values in (("seed", (1, 2, 3)), ("max_tokens", (1, 3, 12, 30, None)), ("temperature", (0, 0, 1, 1.5, None)), ("id", (i, f"n{i}", "same", None))):
        if r.random() < 0.6:
            j[name] = r.choice(values)
    return json.dumps(j, ensure_ascii=r.random() < 0.5)


def rows(out):
    """Returns the output by index, without what depends on other lines: the line's number, and cached tokens."""
    found = {}
    for row in map(json.loads, out.splitlines()):
        row.get("usage", {}).pop("cached_tokens", None)
        if "error" in row:
            row["error"]["message"] = re.sub(r"^line \d+(, column \d+)?", "line", row["error"]["message"])
        i = row.pop("index")
        row.pop("line", None)
        check(f"other answers to line {i}", found.get(i), None)
        found[i] = row
    return found


def one(run):
    r = run.r
    plain = r.random() < 0.15
    lines = [text(r, 30) for _ in range(r.randrange(1, 6))] if plain else [line(r, i) for i in range(r.randrange(2, 5 if run.few else 14))]
    first = [] if plain else ['""']  # says that the lines are JSON; is an error itself
    common = EXACT + ["--temp", r.choice(("0", "1")), "--seed", "5", "-n", str(r.choice((4, 25)))]
    common += r.choice(([], [], ["-s", "be brief"], ["--raw"], ["-c", "100"], ["--until", "e"], ["--choices", "yes,no,maybe é"]))
    plainly = [*common, "--kv-cache", "off", "--draft", "none", "--batch", "-"]
    alone = [run.hearth(*plainly, data="\n".join(first + [one_line]).encode())[1] for one_line in lines]
    want = {i: rows(out).get(len(first)) for i, out in enumerate(alone, len(first))}
    if first:
        want[0] = rows(alone[0])[0]
    options = run.usual_options((1, 2, 6, 16), 0.4)
    data = r.choice((b"", b"\xef\xbb\xbf")) + r.choice(("\n", "\r\n", "\n\n")).join(first + lines).encode() + b"\n" * r.randrange(2)
    known = [json.dumps({"index": i, **want[i]}) + "\n" for i in want if r.random() < 0.5 and "error" not in want[i]] if r.random() < 0.4 else []
    with open(os.path.join(run.home, "out"), "a+b") as f:  # the output of an earlier run that was killed
        f.write("".join(known + [line[:r.randrange(len(line))] for line in known[-1:]]).encode())
        f.flush()
        status, _, err = run.hearth(*common, *options, "--batch", "-", data=data, stdout=f)
        f.seek(0)
        got = rows(f.read())
    what = f"{common} {options} {data!r} {err}{len(known)} known"
    for i in want:
        check(f"line {i} of {what}", got.get(i), want[i])
    check(f"indices of {what}", sorted(got), sorted(want))
    check(f"exit status of {what}", status, int(any("error" in row for row in want.values())))
    return f"{len(lines)} lines"


main(["ember", "tiny"], one)
