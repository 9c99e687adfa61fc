#!/usr/bin/env python3
"""Which JSON schemas of other programs the grammars take: schema_coverage.py GRAMMAR_WALK DIR...

Each DIR is one row of the table; its files NAME.json are schemas if they have "$schema" of json-schema.org. A schema is refused with a
keyword, or texts of its grammar are written at random and judged by python-jsonschema with the draft that the schema names. --limit N takes about N files of
each DIR, spread over it."""
import argparse
import collections
import json
import os
import re
import select
import subprocess
import sys
import time

import jsonschema

PATIENCE = 20  # seconds for the texts of one schema


class Walk:
    def __init__(self, path):
        self.path, self.p = path, None

    def ask(self, schema, count):
        """Returns the reply, or an error when the time is over."""
        if not self.p:
            self.p = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.p.stdin.write(json.dumps({"kind": "schema", "source": json.dumps(schema), "seed": 1, "count": count}).encode() + b"\n")
        self.p.stdin.flush()
        data, until = b"", time.time() + PATIENCE
        while not data.endswith(b"\n"):
            ready = select.select([self.p.stdout], [], [], max(until - time.time(), 0))[0]
            part = os.read(self.p.stdout.fileno(), 1 << 20) if ready else b""
            if not part:
                self.p.kill()
                self.p.wait()
                self.p = None
                return {"error": f"# no answer in {PATIENCE} s: " + ("time" if not ready else "crash")}
            data += part
        return json.loads(data)


def schemas(place, limit):
    files = sorted(os.path.join(d, f) for d, _, names in os.walk(place, followlinks=True) for f in names if f.endswith(".json"))
    found = []
    for path in files[:: max(len(files) // limit, 1)] if limit else files:
        try:
            with open(path, encoding="utf-8") as f:
                j = json.load(f)
        except ValueError:
            continue
        if isinstance(j, dict) and "json-schema.org" in str(j.get("$schema")):
            found.append((path, bundle(j, os.path.dirname(path))))
    return found


def bundle(schema, place):
    """Adds the definitions that a file refers to and that its package keeps in _definitions.json."""
    def local(j):
        return json.loads(re.sub(r'"[^"#]*_definitions\.json#/', '"#/', json.dumps(j)))

    path = os.path.join(place, "_definitions.json")
    if "_definitions.json#/" not in json.dumps(schema) or not os.path.exists(path):
        return schema
    with open(path, encoding="utf-8") as f:
        every, used, new = local(json.load(f))["$defs"], {}, {"": local(schema)}
    while new:
        names = {n for j in new.values() for n in re.findall(r'"#/\$defs/([^"/]+)"', json.dumps(j))}
        new = {n: every[n] for n in names - used.keys()}
        used.update(new)
    return {**local(schema), "$defs": used}


def reason(error):
    """The last keyword of the pointer in an error."""
    pointer = error.split(": ")[0]
    return "too large or slow" if re.search("too complex|too large|more than|no answer|nested", error) else pointer.rsplit("/", 1)[-1]


def judge(schema, texts):
    """Returns the number of invalid texts; None: python-jsonschema cannot judge, such as for a reference to a file."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    check, wrong = kind(schema, format_checker=kind.FORMAT_CHECKER), 0
    for text in texts:
        try:
            errors = list(check.iter_errors(json.loads(text)))
        except ValueError as e:
            errors = [e]
        except Exception:
            return None
        wrong += bool(errors)
        if errors:
            print(f"  INVALID {text[:150]}: {str(errors[0]).splitlines()[0][:200]}")
    return wrong


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("walk")
    ap.add_argument("dirs", nargs="+")
    ap.add_argument("--limit", type=int, default=0)
    ap.add_argument("--texts", type=int, default=5)
    a = ap.parse_args()
    walk, rows, bad = Walk(a.walk), [], 0
    for place in a.dirs:
        refused, taken, texts, wrong, unjudged = collections.Counter(), 0, 0, 0, 0
        found = schemas(place, a.limit)
        for path, schema in found:
            reply = walk.ask(schema, a.texts)
            if "error" in reply:
                refused[reason(reply["error"])] += 1
                if "crash" in reply["error"]:
                    print(f"  CRASH {path}")
                    bad += 1
                continue
            taken += 1
            n = judge(schema, reply["texts"])
            unjudged += n is None
            texts += 0 if n is None else len(reply["texts"])
            wrong += n or 0
            if n:
                print(f"  in {path}")
        bad += wrong
        most = ", ".join(f"{k} {n}" for k, n in refused.most_common(4))
        rows.append(f"| {os.path.basename(os.path.normpath(place))} | {len(found)} | {taken} | {texts} | {wrong} | {most} |")
        print(rows[-1], flush=True)
    print("\n| package | schemas | taken | texts judged | invalid | refused for |\n|---|---|---|---|---|---|\n" + "\n".join(rows))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
